"""Sandboxed processes: what works inside, the messages, how they end, and which sandbox is
chosen.
"""

import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from descriptors import open_files
from redraft.base.descriptors import open_descriptors
from redraft.errors import ConfigError, SandboxUnavailableError
from redraft.sandbox import (
    Limits,
    Sandbox,
    SandboxedProcessError,
    bubblewrap,
    monitor,
    process,
)
from redraft.sandbox import tiers as tiers_module
from redraft.sandbox.interpreter import Packages
from require import as_root, require_program, require_sandbox
from sandbox.grader import is_alive
from sandbox.test_attacks import LEARNED, RUN, tiers

sandbox = tiers("bubblewrap", "landlock", "unsafe")
isolated = tiers("bubblewrap", "landlock")
namespaces = tiers("bubblewrap")
WRITING = ("temporary files", "files")

ECHO = """
import os, sys, time
def main(settings, channel):
    while (message := channel.receive()) is not None:
        if isinstance(message, dict) and "run" in message:
            message = eval(message["run"])
        channel.send(message)
    print("the end of", settings)
"""
GRADER = Path(__file__).with_name("grader.py")


@pytest.fixture
def echo(tmp_path):
    path = tmp_path / "echo.py"
    path.write_text(ECHO)
    return path


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "run.py"
    path.write_text(RUN)
    return path


LEGITIMATE = {
    "asyncio": (
        "import asyncio\nasync def f():\n return await asyncio.to_thread(lambda: 3)\nprint(asyncio.run(f()))",
        "3",
    ),
    "threads": (
        "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(8) as p: print(sum(p.map(abs, range(-9, 1))))",
        "45",
    ),
    "temporary files": (
        "import tempfile, os\nwith tempfile.NamedTemporaryFile() as f: f.write(b'x'); f.flush(); print(os.path.getsize(f.name))",
        "1",
    ),
    "files": (
        "import shutil\nopen('a', 'w').write('é'); shutil.copy2('a', 'b'); print(open('b').read())",
        "é",
    ),
    "JSON": ("import json\nprint(json.dumps({'a': [1, None]}))", '{"a": [1, null]}'),
    "SQLite": (
        "import sqlite3\nprint(sqlite3.connect(':memory:').execute('select 1 + 1').fetchone())",
        "(2,)",
    ),
    "empty input": ("try: input()\nexcept EOFError: print('empty')", "empty"),
    "exit": ("print('before')\nexit()", "before"),
    "at exit": ("import atexit\natexit.register(print, 'after')", "after"),
    "text": ("print('Ω≈ç√ 漢字 🙂')", "Ω≈ç√ 漢字 🙂"),
    "an alarm": (
        "import signal, time\nsignal.signal(signal.SIGALRM, lambda *a: print('alarm'))\nsignal.setitimer(signal.ITIMER_REAL, 0.01)\ntime.sleep(0.05)",
        "alarm",
    ),
    "random numbers": (
        "import random, secrets, uuid\nprint(len(secrets.token_hex(4)), random.Random(1).randint(0, 9), uuid.uuid4().version)",
        "8 2 4",
    ),
    "dates": (
        "import datetime\nprint(datetime.datetime(2024, 2, 29).isoformat())",
        "2024-02-29T00:00:00",
    ),
    "a fixed order of sets": (
        "print(list({'a', 'b', 'c'}) == list({'a', 'b', 'c'}), hash('a') % 1000)",
        "True",
    ),
    "decimals": (
        "from decimal import Decimal\nfrom fractions import Fraction\nprint(Decimal('0.1') + 1, Fraction(1, 3))",
        "1.1 1/3",
    ),
    "large output": ("print('x' * 900_000)", "x" * 900_000),
    "standard error": ("import sys\nprint('e', file=sys.stderr)\nprint('o')", "o"),
}


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("name", LEGITIMATE)
def test_ordinary_programs_work(isolated, run, name):
    """What ordinary programs do works inside, except that tier landlock refuses to write files."""
    program, said = LEGITIMATE[name]
    with isolated.start(run, program) as process:
        execution = process.wait()
    if isolated.spec == "landlock" and name in WRITING:
        assert execution.exit_code == 1 and re.search(
            "PermissionError|FileNotFoundError", execution.stderr
        ), execution
        return
    assert (execution.status, execution.exit_code, execution.truncated) == ("exited", 0, False), (
        execution
    )
    assert execution.stdout.startswith(said)
    assert execution.tier == isolated.spec


def test_the_same_order_in_each_run(isolated, run):
    """Hashes of text are the same in each run, so that a program gives the same results."""
    said = set()
    for _ in range(2):
        with isolated.start(run, "print(hash('a'), list({'x', 'y', 'z'}))") as process:
            said.add(process.wait().stdout)
    assert len(said) == 1


@pytest.mark.slow(but_each=2)
def test_packages(isolated, run):
    """A package can be imported if it was named, and only then."""
    program = "import numpy\nprint((numpy.ones((9, 9)) @ numpy.ones((9, 9))).sum())"
    with Sandbox(isolated.spec, packages=["numpy"]).start(run, program) as process:
        assert process.wait().stdout == "729.0\n"
    with isolated.start(run, program) as process:
        assert "No module named 'numpy'" in process.wait().stderr


@pytest.mark.parametrize("places", [("/var/tmp",), ("/tmp",), ("/tmp", "/var/tmp")])
def test_packages_in_temporary_folders(namespaces, run, monkeypatch, places):
    """The folder in memory hides no package and no tool, and temporary files work, wherever the
    packages are.
    """
    with ExitStack() as stack:
        folders = [stack.enter_context(tempfile.TemporaryDirectory(dir=place)) for place in places]
        for number, folder in enumerate(folders):
            Path(folder, f"module{number}.py").write_text(f"VALUE = {number + 7}")
        files = tuple(str(file) for folder in folders for file in Path(folder).iterdir())
        monkeypatch.setattr(
            tiers_module, "find_packages", lambda names: Packages(files, tuple(folders))
        )
        program = "import module0, os, tempfile; tempfile.mkdtemp(); open('a', 'w').close(); print(module0.VALUE, os.getcwd())"
        place = next(f for f in bubblewrap.FOLDERS if f not in places)
        with namespaces.start(run, program) as process:
            execution = process.wait()
        assert execution.stdout == f"7 {place}\n", execution.stderr
        assert namespaces.run_tool(["python", "-c", program]).stdout == f"7 {place}\n"


def test_hidden_package_is_an_error(namespaces, run, monkeypatch):
    """A package that cannot be seen inside raises; nothing runs without it."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder, "module.py").write_text("")
        monkeypatch.setattr(
            tiers_module,
            "find_packages",
            lambda names: Packages((f"{folder}/module.py",), (folder,)),
        )
        monkeypatch.setattr(bubblewrap, "_working_folder", lambda shown: "/tmp")
        with pytest.raises(SandboxUnavailableError, match=r"No such file.*module\.py"):
            namespaces.start(run, "print(1)")


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False)
    | st.text(st.characters(), max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=5), inner, max_size=4).filter(lambda d: "run" not in d)
    ),
    max_leaves=10,
)


@pytest.mark.slow
@settings(max_examples=150)
@given(value=VALUES)
@example(
    value=[
        None,
        True,
        10**30,
        -(2**63),
        5e-324,
        float("inf"),
        -float("inf"),
        "",
        "\0",
        "\ud800",
        "\U0001f600",
        {"": [[]], "\udfff": {}},
    ]
)
def test_messages_arrive_unchanged(value):
    """Any JSON value goes in and comes back as it was: long integers, infinity, lone halves of
    surrogate pairs.
    """
    assert ECHO_PROCESS[0].request([value]) == [value]


ECHO_PROCESS = []


@pytest.fixture(scope="module", autouse=True)
def echo_process(tmp_path_factory):
    """One process for all examples of a property."""
    path = tmp_path_factory.mktemp("echo") / "echo.py"
    path.write_text(ECHO)
    with Sandbox("unsafe").start(path, None, Limits(wall_seconds=120)) as process:
        ECHO_PROCESS[:] = [process]
        yield


def test_the_last_message(sandbox, echo):
    """None is the end of the messages, so it cannot be one."""
    with sandbox.start(echo, None) as process, pytest.raises(ValueError, match="None"):
        process.request(None)


def test_a_message_that_is_not_read_ends_in_time(sandbox, run):
    """One that no pipe holds: the time of the request counts while it is written, not only that of
    the process.
    """
    with sandbox.start(
        run, "import time\nwhile True: time.sleep(1)", Limits(wall_seconds=3600)
    ) as process:
        with pytest.raises(SandboxedProcessError) as caught:
            process.request("x" * 500_000, timeout=0.1)
    assert caught.value.execution.status == "wall"


def test_a_large_message(sandbox, echo):
    """A message as large as the limit passes, a larger one is an error of the caller, a larger
    answer ends the process.
    """
    with sandbox.start(echo, None, Limits(frame_bytes=2**20)) as process:
        assert process.request("x" * 1_000_000) == "x" * 1_000_000
        with pytest.raises(ValueError, match="more than frame_bytes=1,048,576"):
            process.request("x" * 2_000_000)
        with pytest.raises(SandboxedProcessError) as caught:
            process.request({"run": "'x' * 2_000_000"})
    assert caught.value.execution.status == "protocol"


GARBAGE = {
    "no JSON": "os.write(target, b'\\0\\0\\0\\5abcde')",
    "not UTF-8": "os.write(target, b'\\0\\0\\0\\2\\xff\\xff')",
    "a length of 4 GB": "os.write(target, b'\\xff' * 8)",
    "nested deep": "os.write(target, (100_000).to_bytes(4, 'big') + b'[' * 100_000)",
    "many digits": "os.write(target, (9000).to_bytes(4, 'big') + b'9' * 9000)",
    "not an answer": "frame(1)",
    "without a number": "frame({'message': 1})",
    "with a number of its own": "frame({'number': 'aaaaaaaaaaaaaaaa', 'message': 1})",
    "the number of the last answer": "frame({'number': channel_number, 'message': 1})",
    "an answer ahead": "[frame({'number': None, 'message': 1}) for _ in range(100)]",
    "closed": "os.close(target)",
}


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_instead_of_an_answer(tmp_path, name):
    """Whatever else a program writes where answers belong ends it, and is never taken for an
    answer. The tier does not matter.
    """
    source = f"""
import json, os
def main(settings, channel):
    target = channel._target
    def frame(value):
        body = json.dumps(value).encode()
        os.write(target, len(body).to_bytes(4, "big") + body)
    channel.receive()
    channel.send("first")
    channel_number = channel._number
    {GARBAGE[name]}
    channel.receive()
    channel.send("second")
"""
    (tmp_path / "garbage.py").write_text(source)
    with Sandbox("unsafe").start(tmp_path / "garbage.py", None) as process:
        assert process.request(0) == "first"
        with pytest.raises(SandboxedProcessError) as caught:
            process.request(0)
    assert caught.value.execution.status in ("protocol", "exited")


ENDS = {
    "exit": ("sys.exit(3)", "exited", 3, None),
    "exit at once": ("os._exit(0)", "exited", 0, None),
    "an error": ("1 / 0", "exited", 1, None),
    "a lack of memory": ("bytearray(10**15)", "memory", 124, None),
    "a crash": ("__import__('ctypes').string_at(0)", "crashed", None, signal.SIGSEGV),
}


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("name", ENDS)
def test_an_end_instead_of_an_answer(sandbox, echo, name):
    """A process that ends instead of answering raises with the way in which it ended; so does each
    later request.
    """
    program, status, exit_code, signal_number = ENDS[name]
    with sandbox.start(echo, None) as process:
        for _ in range(2):
            with pytest.raises(SandboxedProcessError) as caught:
                process.request({"run": program})
            execution = caught.value.execution
            assert (execution.status, execution.exit_code, execution.signal) == (
                status,
                exit_code,
                signal_number,
            )


def test_the_time_of_one_request(sandbox, echo):
    """A request can have a shorter time than the process."""
    with sandbox.start(echo, None) as process:
        with pytest.raises(SandboxedProcessError) as caught:
            process.request({"run": "time.sleep(30)"}, timeout=0.1)
    assert caught.value.execution.status == "wall"
    assert caught.value.execution.wall_seconds < 5


def test_killed_from_another_thread(sandbox, echo):
    """`kill` ends a request that another thread waits for."""
    with sandbox.start(echo, None) as process:
        threading.Timer(0.1, process.kill).start()
        with pytest.raises(SandboxedProcessError) as caught:
            process.request({"run": "time.sleep(30)"})
    assert caught.value.execution.status == "killed"
    assert process.wait() == caught.value.execution


def test_started_in_a_thread_that_has_ended(sandbox, echo):
    """A process lives on when the thread that started it has ended."""
    started = []
    thread = threading.Thread(target=lambda: started.append(sandbox.start(echo, None)))
    thread.start()
    thread.join()
    time.sleep(0.05)
    with started[0] as process:
        assert process.request(1) == 1


@pytest.mark.slow(but_each=2)
def test_a_forked_copy_of_the_caller(sandbox, echo):
    """A copy of the calling process that lives on does not keep a program from ending."""
    process = sandbox.start(echo, "x")
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    try:
        started = time.monotonic()
        assert process.wait().stdout == "the end of x\n"
        assert time.monotonic() - started < 30
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_no_descriptor_is_left(sandbox, echo):
    """A process leaves no descriptor open here, however it ends."""
    before = open_files()
    for message in (1, {"run": "os._exit(1)"}, {"run": "os.close(channel._target)"}):
        with sandbox.start(echo, None) as process:
            try:
                process.request(message)
            except SandboxedProcessError:
                pass
    assert open_files() <= before


KINDS = """
import os, stat
kinds = {}
for n in range(5000):
    try:
        kinds[n] = stat.filemode(os.fstat(n).st_mode)[0]
    except OSError:
        pass
"""
OF_PROGRAM = f"{KINDS}print([kinds.pop(n) for n in range(3)], *kinds.values())"
OF_CHILD = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {KINDS + 'print(kinds)'!r}], close_fds=False)"


@pytest.mark.slow(but_each=2)
def test_what_runs_inside_has_no_descriptor_of_ours(sandbox, run):
    """A tool has three pipes. A program reads nothing, and has the pipes of its messages, which no
    program that it starts gets.
    """
    with ExitStack() as ours:
        for each in (socket.socket(), tempfile.TemporaryFile(), *map(os.fdopen, os.pipe(), "rw")):
            os.set_inheritable(ours.enter_context(each).fileno(), True)
        assert (
            sandbox.run_tool(["python", "-c", f"{KINDS}print(kinds)"]).stdout
            == "{0: 'p', 1: 'p', 2: 'p'}\n"
        )
        with sandbox.start(run, OF_PROGRAM) as process:
            assert process.wait().stdout == "['c', 'p', 'p'] p p\n"
        if sandbox.spec == "unsafe":
            with sandbox.start(run, OF_CHILD) as process:
                assert process.wait().stdout == "{0: 'c', 1: 'p', 2: 'p'}\n"


def test_the_limits_that_the_kernel_enforces(sandbox, run):
    """Programs and tools have the same: whole seconds of CPU time, with two to spare, and no core
    files or locked memory.
    """
    names = ("AS", "CORE", "CPU", "FSIZE", "MEMLOCK", "MSGQUEUE", "NOFILE")
    program = f"import resource\nprint(*[resource.getrlimit(getattr(resource, 'RLIMIT_' + n)) for n in {names}])"
    limits = Limits(cpu_seconds=3.7, memory_bytes=200 * 2**20, open_files=20, file_bytes=12_345)
    expected = " ".join(str((n, n)) for n in (200 * 2**20, 0, 5, 12_345, 0, 0, 20)) + "\n"
    assert sandbox.run_tool(["python", "-c", program], limits=limits).stdout == expected
    with sandbox.start(run, program, limits) as process:
        assert process.wait().stdout == expected


@pytest.mark.parametrize(
    ("out", "err", "kept", "status"),
    [
        (10, 0, 10, "exited"),
        (10, 10, 10, "exited"),
        (11, 0, 10, "exited"),
        (0, 11, 0, "exited"),
        (2**20, 0, 10, "exited"),  # sixteen times what a pipe holds
        (2**20 - 7, 7, 10, "exited"),
        (2**20 + 1, 0, 10, "output"),
        (2**20 - 7, 8, 10, "output"),
    ],
)
def test_how_much_output_is_kept(namespaces, out, err, kept, status):
    """The first bytes of each stream; it says whether there were more. A flood ends the process,
    however small the limit is.
    """
    program = f"import os\nfor n, size in ((1, {out}), (2, {err})):\n    while size: size -= os.write(n, b'x' * size)"
    execution = namespaces.run_tool(["python", "-c", program], limits=Limits(output_bytes=10))
    assert (execution.status, execution.stdout, execution.stderr) == (
        status,
        "x" * kept,
        "x" * min(err, 10),
    )
    assert execution.truncated == (out > 10 or err > 10)


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize(
    ("code", "end"),
    [
        (0, ("exited", 0, None)),
        (123, ("exited", 123, None)),
        (124, ("memory", 124, None)),
        (125, ("exited", 125, None)),
        (128, ("exited", 128, None)),
        (129, ("crashed", None, 1)),  # as launchers report a signal
        (192, ("crashed", None, 64)),
        (193, ("exited", 193, None)),
        (255, ("exited", 255, None)),
    ],
)
def test_what_an_exit_code_means(namespaces, code, end):
    """Those of launchers, and that of an interpreter without memory."""
    execution = namespaces.run_tool(["python", "-c", f"import os; os._exit({code})"])
    assert (execution.status, execution.exit_code, execution.signal) == end


def test_tools(sandbox):
    """A tool gets input, files and arguments, and may start programs."""
    program = "import sys, os\nprint(sys.argv[1:], sys.stdin.read(), open('folder/file').read(), os.path.exists(sys.argv[1]))"
    execution = sandbox.run_tool(
        ["python", "-c", program, "a b"],
        stdin="é".encode() * 100_000,
        files={"folder/file": b"content"},
    )
    assert (execution.status, execution.exit_code) == ("exited", 0), execution
    assert execution.stdout == f"['a b'] {'é' * 100_000} content False\n"
    execution = sandbox.run_tool(
        ["ruff", "check", "--isolated", "--no-cache", "--output-format", "concise", "-"],
        stdin=b"import os\n",
    )
    assert execution.exit_code == 1
    assert "F401" in execution.stdout
    with pytest.raises(ConfigError, match="'no-such-tool' is not installed"):
        sandbox.run_tool(["no-such-tool"])


@pytest.mark.slow
def test_packages_of_tools(isolated):
    """A tool imports its packages, and what they require; another package is absent, not
    forbidden.
    """
    code = "import mypy.build, mypy_extensions, importlib.util\nprint(mypy.__name__, importlib.util.find_spec('numpy'))\nimport orjson"
    execution = Sandbox(isolated.spec, packages=["mypy"]).run_tool(
        ["python", "-c", code], limits=Limits(cpu_seconds=20, memory_bytes=2**30)
    )
    assert execution.stdout == "mypy None\n"
    assert execution.stderr.endswith("ModuleNotFoundError: No module named 'orjson'\n")


def test_a_package_that_was_not_named_is_absent(isolated, run):
    """It is not found, though it lies in the same folder, so that programs which do without it
    work.
    """
    program = "import numpy, importlib.util\nprint(importlib.util.find_spec('pytest'), importlib.util.find_spec('orjson'))\ntry: import orjson\nexcept ImportError: print('absent')"
    with Sandbox(isolated.spec, packages=["numpy"]).start(run, program) as process:
        assert process.wait().stdout == "None None\nabsent\n"


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside", "a/../../outside"])
def test_files_of_tools_stay_in_the_folder(name):
    """The name of a file for a tool is a relative one."""
    with pytest.raises(ConfigError, match="files must be"):
        Sandbox("unsafe").run_tool(["python", "-c", ""], files={name: b""})


RANGES = {
    "memory_bytes": (64 * 2**20, 2**48),
    "threads": (1, 10_000),
    "open_files": (16, 10_000),
    "file_bytes": (0, 2**48),
    "disk_bytes": (4096, 2**48),
    "inodes": (2, 10**7),
    "output_bytes": (0, 2**30),
    "frame_bytes": (1024, 2**30),
    "cpu_seconds": (1, 86_400),
    "wall_seconds": (1, 86_400),
}


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (dict(cpu_seconds=0), "cpu_seconds must be"),
        (dict(wall_seconds=-1), "wall_seconds must be"),
        (dict(memory_bytes=1000), "memory_bytes must be"),
        (dict(memory_bytes=1e9), "memory_bytes must be a whole number"),
        (dict(threads=0), "threads must be"),
        (dict(open_files=3), "open_files must be"),
        (dict(inodes=True), "inodes must be"),
        *(
            ({name: value}, f"{name} must be")
            for name, ends in RANGES.items()
            for value in (ends[0] - 1, ends[1] + 1)
        ),
    ],
)
def test_invalid_limits(limits, message):
    """A limit out of range is an error that names it."""
    with pytest.raises(ConfigError, match=message):
        Limits(**limits)


def test_valid_limits():
    """The ends of each range are in it. By the clock a process has twice its CPU time and five
    seconds, unless it is said.
    """
    for name, ends in RANGES.items():
        assert [getattr(Limits(**{name: value}), name) for value in ends] == list(ends)
    assert (Limits().wall, Limits(cpu_seconds=0.5).wall, Limits(wall_seconds=0.1).wall) == (
        25.0,
        6.0,
        0.1,
    )
    assert Limits() == Limits(10.0, None, 2**29, 64, 64, 2**24, 2**25, 1000, 2**20, 2**23)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sandbox("chroot"), "sandbox must be one of auto, bubblewrap, .*got 'chroot'"),
        (
            lambda: Sandbox(packages="numpy"),
            'packages must be a list of names such as \\["numpy"\\]',
        ),
        (
            lambda: Sandbox(packages=["nunpy"]),
            "packages: 'nunpy' is not installed.*did you mean 'numpy'",
        ),
    ],
)
def test_invalid_sandboxes(make, message):
    """An unknown sandbox or package is an error that says what there is."""
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.fixture
def fresh_choice():
    """Forgets which tiers work before and after a test."""
    tiers_module.choose_tier.cache_clear()
    yield
    tiers_module.choose_tier.cache_clear()


def test_refused_without_bubblewrap(fresh_choice, monkeypatch):
    """Without bubblewrap the tier is refused with what to install, and never replaced by one
    without protection.
    """
    monkeypatch.setattr(bubblewrap.shutil, "which", lambda name: None)
    with pytest.raises(
        SandboxUnavailableError,
        match=r"bubblewrap \(bwrap\) is not installed.*apt install bubblewrap",
    ):
        Sandbox("bubblewrap").tier
    monkeypatch.setattr(tiers_module, "AUTOMATIC", ("bubblewrap",))
    with pytest.raises(SandboxUnavailableError):
        Sandbox().tier


def test_refused_where_bubblewrap_fails(fresh_choice, monkeypatch, tmp_path):
    """A bubblewrap that cannot create namespaces is refused with its own words."""
    broken = tmp_path / "bwrap"
    broken.write_text(
        "#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n"
    )
    broken.chmod(0o755)
    monkeypatch.setattr(bubblewrap.shutil, "which", lambda name: str(broken))
    with pytest.raises(
        SandboxUnavailableError, match="bubblewrap: bwrap: No permissions to create new namespace"
    ):
        Sandbox("bubblewrap").tier


@pytest.mark.parametrize(
    "script",
    [
        "exit 0",
        "kill -9 $$",
        "sleep 30 & exit 0",
        "for i in 3 4 5 6 7 8 9; do (head -c 9999 /dev/urandom >&$i) 2>/dev/null; done",
        "for i in 3 4 5 6 7 8 9; do (echo '{\"child-pid\": 0}' >&$i) 2>/dev/null; done; exec sleep 30",
        "exec sleep 30",
        "cat > /dev/null",
    ],
)
def test_bubblewrap_replaced_by_something_broken(fresh_choice, monkeypatch, tmp_path, script):
    """Whatever it does, it counts as missing, and a program that never answers is asked only
    once.
    """
    broken = tmp_path / "bwrap"
    broken.write_text(f"#!/bin/sh\necho >> {tmp_path}/starts\n{script}\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(monitor, "START_SECONDS", 1.0)
    with pytest.raises(SandboxUnavailableError, match="bubblewrap: "):
        Sandbox("bubblewrap").tier
    assert "exec sleep" not in script or len((tmp_path / "starts").read_text()) == 1


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("way", range(len(bubblewrap.LAUNCHES)))
def test_every_way_to_start_bubblewrap(namespaces, fresh_choice, monkeypatch, run, way):
    """Each form of the command works; without capabilities a program has no writable folder, but a
    tool has one.
    """
    monkeypatch.setattr(
        tiers_module, "LAUNCHES", {"bubblewrap": bubblewrap.LAUNCHES[way : way + 1]}
    )
    with namespaces.start(
        run, "import os\nprint(os.getcwd(), os.listdir('.'))\nopen('file', 'w')\nprint('written')"
    ) as process:
        execution = process.wait()
    writable = "has_capabilities" not in bubblewrap.LAUNCHES[way].keywords
    assert execution.stdout == "/tmp []\n" + "written\n" * writable
    assert writable or "Read-only file system" in execution.stderr
    assert (
        namespaces.run_tool(
            ["python", "-c", "print(open('a').read())"], files={"a": b"content"}
        ).stdout
        == "content\n"
    )


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("tier", ["bubblewrap", "landlock"])
def test_kill_9_of_the_grader_leaves_nothing(tier, tmp_path):
    """After `kill -9` no process, mount or file of the programs is left."""
    require_sandbox(tier)
    mounts = Path("/proc/self/mounts").read_text()
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, str(GRADER), "wait", tier], stdout=subprocess.PIPE, env=environment
    ) as grader:
        pids = json.loads(grader.stdout.readline())
        # bubblewrap: a launcher and a program each
        assert len(pids) >= (6 if tier == "bubblewrap" else 3)
        folders = os.listdir(tmp_path)
        assert all(is_alive(pid) for pid in pids)
        grader.kill()
    deadline = time.monotonic() + 60
    while any(is_alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not [pid for pid in pids if is_alive(pid)]
    assert Path("/proc/self/mounts").read_text() == mounts
    assert os.listdir(tmp_path) == folders  # the grader's own
    assert [file for folder in folders for file in os.listdir(tmp_path / folder)] == []


NOBODY = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]


@pytest.mark.slow(but_each=2)
@as_root
@pytest.mark.parametrize("tier", ["bubblewrap", "landlock"])
def test_attacks_as_a_normal_user(tier, tmp_path):
    """The sandbox holds for a user without privileges, too, with an interpreter of the system."""
    require_sandbox(tier)
    require_program("setpriv")
    name = f"python3.{sys.version_info[1]}"
    python = shutil.which(name, path="/usr/bin:/usr/local/bin") or pytest.skip(
        f"no {name} of the system"
    )
    search_path = [
        str(Path(__file__).parents[2] / "src"),
        *(p for p in sys.path if p.endswith("site-packages")),
    ]
    command = [
        "env",
        "-i",
        f"PATH={os.environ['PATH']}",
        f"PYTHONPATH={os.pathsep.join(search_path)}",
        "HOME=/nonexistent",
        *NOBODY,
        python,
        str(GRADER),
    ]
    if subprocess.run(
        [*command[:-1], "-c", "import redraft.sandbox"], capture_output=True
    ).returncode:
        pytest.skip("the environment is unreadable for normal users")
    done = subprocess.run([*command, "attacks", tier], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["tier"] == tier
    assert len(report["results"]) > 100
    succeeded = {
        name
        for name, result in report["results"].items()
        if result[0] == "succeeded" or "succeeded" in str(result)
    }
    assert succeeded - {*LEARNED.get(tier, ())} == set()


@pytest.mark.parametrize(
    ("number", "cpu_seconds", "status"),
    [
        (signal.SIGKILL, 19.9, "cpu"),
        (signal.SIGKILL, 21.0, "cpu"),
        (signal.SIGXCPU, None, "cpu"),
        (signal.SIGKILL, 12.0, "crashed"),
        (signal.SIGKILL, None, "crashed"),
        (signal.SIGSEGV, 20.0, "crashed"),
    ],
)
def test_status_after_a_signal(number, cpu_seconds, status):
    """A process that the kernel ended at the limit of CPU time ran out of time, in a container too;
    ticks are not exact.
    """
    assert monitor._status(None, number, cpu_seconds, Limits(cpu_seconds=20)) == status


def test_a_process_with_thousands_of_open_files_starts_sandboxed_ones(sandbox):
    """Descriptors beyond 1,023, which `select` does not have, are those of any server with many
    clients.
    """
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limits[1] != resource.RLIM_INFINITY and limits[1] < 2048:
        pytest.skip("the hard limit on open files is below 2,048")
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], 2048), limits[1]))
        for _ in range(1100):
            stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        assert (
            sandbox.run_tool(["python", "-c", "import time; time.sleep(0.2); print(1)"]).stdout
            == "1\n"
        )


def test_process_that_cannot_be_started_keeps_no_descriptor(isolated):
    """Wherever it fails: else each try would leave less for the next."""
    assert isolated.run_tool(["python", "-c", ""]).status == "exited"
    limits, before, failed = resource.getrlimit(resource.RLIMIT_NOFILE), open_files(), 0
    for free in range(12):
        resource.setrlimit(resource.RLIMIT_NOFILE, (open_descriptors() + free, limits[1]))
        try:
            isolated.run_tool(["python", "-c", ""])
        except OSError:
            failed += 1
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert (open_files() <= before, failed > 3) == (True, True)


def test_process_without_a_thread_to_watch_it_is_ended(isolated, monkeypatch):
    """Neither a descriptor nor a process stays."""
    assert isolated.run_tool(["python", "-c", ""]).status == "exited"
    before, started = open_files(), []

    def no_thread(*_):
        raise RuntimeError("can't start new thread")

    spawn = process._spawn
    monkeypatch.setattr(
        process, "_spawn", lambda *arguments: started.append(spawn(*arguments)) or started[-1]
    )
    monkeypatch.setattr(monitor.Thread, "start", no_thread)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        isolated.run_tool(["python", "-c", ""])
    assert (open_files() <= before, started[0].returncode) == (True, -signal.SIGKILL)
