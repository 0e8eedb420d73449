"""The tier "landlock": what older kernels refuse, where it takes over from bubblewrap, and the
folder of a tool.
"""

import errno
import json
import os
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from redraft.errors import SandboxUnavailableError
from redraft.sandbox import Limits, Sandbox, SandboxedProcess, landlock
from redraft.sandbox import tiers as tiers_module
from redraft.sandbox.landlock_rules import landlock_version
from redraft.sandbox.launch import Program
from require import require_program
from sandbox.test_attacks import LEARNED
from sandbox.test_process import GRADER, fresh_choice  # noqa: F401  (a fixture)

pytestmark = pytest.mark.skipif(
    not (sys.platform == "linux" and landlock_version()), reason="no Landlock"
)

RUNNER = """
import os, sys
def main(path, channel):
    while (expression := channel.receive()) is not None:
        try:
            channel.send(["succeeded", repr(eval(expression, {"os": os, "path": path}))])
        except OSError as error:
            channel.send(["refused", error.errno])
"""
CHANGES = [
    "os.truncate(path, 0)",
    "os.open(path, os.O_RDONLY | os.O_TRUNC)",
    "os.open(path, os.O_WRONLY)",
    "os.open(path, os.O_RDWR | os.O_APPEND)",
    "os.ftruncate(os.open(path, os.O_RDONLY), 0)",
    "os.chmod(path, 0)",
    "os.fchmod(os.open(path, os.O_RDONLY), 0)",
    "os.chown(path, 1, 1)",
    "os.utime(path, (0, 0))",
    "os.utime(os.open(path, os.O_RDONLY), (0, 0))",
    "os.setxattr(path, 'user.a', b'b')",
    "os.unlink(path)",
    "os.rename(path, path + '2')",
    "os.link(path, path + '2')",
    "os.symlink(path, path + '2')",
    "os.mkdir(path + '2')",
    "os.mkfifo(path + '2')",
    "os.open(path + '2', os.O_CREAT | os.O_WRONLY)",
    "os.open(os.path.dirname(path), os.O_TMPFILE | os.O_WRONLY)",
    "os.copy_file_range(os.open(path, os.O_RDONLY), os.open(path, os.O_WRONLY), 1)",
    "os.execv(path, [path])",
]


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5, 6, 7])
def test_a_visible_file_cannot_be_changed(version, tmp_path):
    """Whatever the version of the kernel's interface, a file that can be read stays as it is."""
    if version > landlock_version():
        pytest.skip("an older Landlock")
    path = tmp_path / "file"
    path.write_text("content")
    path.chmod(0o777)
    with suppress(OSError):  # a file system without
        os.setxattr(path, "user.secret", b"secret")
    before = path.stat()
    launch = landlock.launch(
        Program({"runner": RUNNER, "settings": str(path)}, Limits()), version=version
    )
    launch.setup["landlock"]["readable"].append(str(tmp_path))
    with SandboxedProcess(launch, Limits()) as process:
        assert process.request("open(path).read()") == ["succeeded", "'content'"]
        assert process.request("open('/dev/null', 'a').write('x')") == ["succeeded", "1"]
        assert process.request("os.getxattr(path, 'user.secret')")[0] == "refused"
        assert process.request("os.listxattr(path)")[0] == "refused"
        for change in CHANGES:
            answer = process.request(change)
            assert answer[0] == "refused", change
            assert answer[1] in (errno.EACCES, errno.EPERM, errno.EINVAL, errno.ENOTSUP), change
    assert path.read_text() == "content"
    assert (path.stat().st_mode, path.stat().st_mtime, path.stat().st_uid) == (
        before.st_mode,
        before.st_mtime,
        before.st_uid,
    )
    assert os.listdir(tmp_path) == ["file"]


NO_NAMESPACES = "echo 0 > /proc/sys/user/max_user_namespaces && exec {} {} attacks auto"


@pytest.mark.slow
def test_it_is_chosen_where_no_namespaces_are_to_be_had():
    """Where bubblewrap is installed and the system gives it no namespaces, the attacks meet this
    tier, and fail.
    """
    unshare = require_program("unshare")
    script = NO_NAMESPACES.format(sys.executable, GRADER)
    command = [unshare, "--user", "--map-root-user", "sh", "-c"]
    if subprocess.run(
        [*command, "echo 0 > /proc/sys/user/max_user_namespaces"], capture_output=True
    ).returncode:
        pytest.skip("no limit of namespaces")
    done = subprocess.run([*command, script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["tier"] == "landlock"
    succeeded = {
        name
        for name, result in report["results"].items()
        if result[0] == "succeeded" or "succeeded" in str(result)
    }
    assert succeeded == {*LEARNED["landlock"]}


def test_a_kernel_without_it_is_refused(fresh_choice, monkeypatch):  # noqa: F811
    """The error says what is missing and what to install."""
    monkeypatch.setattr(landlock, "landlock_version", lambda: 0)
    with pytest.raises(
        SandboxUnavailableError,
        match=r"landlock: the kernel has no Landlock.*apt install bubblewrap",
    ):
        Sandbox("landlock").tier


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_other_systems_are_refused(system, fresh_choice, monkeypatch):  # noqa: F811
    """On macOS and Windows the error names the reason for each tier, and offers Docker."""
    monkeypatch.setattr(sys, "platform", system)
    with pytest.raises(SandboxUnavailableError) as caught:
        Sandbox().tier
    for words in (
        f"bubblewrap needs Linux, and this is {system}",
        f"Landlock needs Linux, and this is {system}",
        "sandbox='docker:IMAGE'",
    ):
        assert words in str(caught.value)


def test_it_is_not_used_in_place_of_a_tier_that_was_asked_for(fresh_choice, monkeypatch):  # noqa: F811
    """Only "auto" chooses; and never the tier without protection."""
    monkeypatch.setattr(
        tiers_module,
        "LAUNCHES",
        {**tiers_module.LAUNCHES, "bubblewrap": (_unavailable,), "landlock": (_unavailable,)},
    )
    for spec in ("bubblewrap", "landlock", "auto"):
        with pytest.raises(SandboxUnavailableError, match="not today"):
            Sandbox(spec).tier


def _unavailable(program):
    raise SandboxUnavailableError("not today")


TOOL = """
import sys
from redraft.sandbox import Limits, Sandbox
code = "import os, sys, time; print(os.getcwd(), flush=True); sys.stderr.close(); time.sleep(60)"
Sandbox("landlock").run_tool(["python", "-c", code], files={"a/b": b"c"}, limits=Limits(wall_seconds=60))
"""


@pytest.mark.parametrize("end", ["limit", "kill"])
def test_the_folder_of_a_tool_is_deleted(end, tmp_path, monkeypatch):
    """It is gone at the end of the tool, and within two seconds if the grader is killed."""
    if end == "limit":
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        code = (
            "import os, time; print(os.listdir(), open('a/b').read(), flush=True); time.sleep(60)"
        )
        execution = Sandbox("landlock").run_tool(
            ["python", "-c", code], files={"a/b": b"c"}, limits=Limits(wall_seconds=0.6)
        )
        assert (execution.status, execution.stdout) == ("wall", "['a'] c\n")
    else:
        with subprocess.Popen(
            [sys.executable, "-c", TOOL], env={**os.environ, "TMPDIR": str(tmp_path)}
        ) as grader:
            _wait_for(lambda: os.listdir(tmp_path))
            grader.kill()
    _wait_for(lambda: not os.listdir(tmp_path))


def _wait_for(condition, seconds=60):
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, f"not within {seconds} s"
        time.sleep(0.01)
