"""What an operator deploys: the image's file, the systemd unit, and the example configuration."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from redraft.gateway.config import load_config
from redraft.gateway.request_store import retentions
from require import require_program

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "deploy/redraft.service"


def instructions():
    """The instructions of the Dockerfile: (stage, name, arguments)."""
    text = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text())
    stage = 0
    for line in text.splitlines():
        name, _, arguments = line.partition(" ")
        if line and not line.startswith("#"):
            stage += name == "FROM"
            yield stage, name, arguments.strip()


def arguments_of(name, stage=2):
    return [arguments for at, each, arguments in instructions() if (at, each) == (stage, name)]


def test_example_configuration_is_valid():
    """It has the profiles of the documentation, and keeps what its comments say."""
    config = load_config(ROOT / "deploy/gateway.toml", {})
    kept = {
        name: (each.level, each.days, each.megabytes) for name, each in retentions(config).items()
    }
    assert kept == {
        "pass/small": ("metadata", 30, 500),
        "refine/fast": ("full", 7, 1000),
        "refine/careful": ("metadata", 30, 500),
    }
    assert config.host == "127.0.0.1"


def test_configuration_in_the_manual_is_valid(tmp_path):
    """The page for operators shows one that can be copied."""
    page = (ROOT / "docs/how-to/operate-a-gateway.md").read_text(encoding="utf-8")
    block = re.search(r"```toml\n(.*?)```", page, re.DOTALL)[1]
    (tmp_path / "gateway.toml").write_text(block)
    config = load_config(tmp_path / "gateway.toml", {"SMALL_MODEL_KEY": "a key of a model"})
    assert list(retentions(config)) == ["refine/fast", "pass/small"]


def test_image_is_small_and_unprivileged():
    """Nothing of the build is in it but the installed program; it does not run as root, and what it
    stores is in a volume.
    """
    assert {arguments.split()[0] for _, name, arguments in instructions() if name == "FROM"} == {
        "python:3.13-slim"
    }
    assert arguments_of("USER") == ["redraft"] and "useradd --system" in arguments_of("RUN")[0]
    assert arguments_of("COPY") == [
        "--from=build /opt/redraft /opt/redraft",
        "deploy/gateway.toml /etc/redraft/gateway.toml",
    ]
    assert (
        arguments_of("VOLUME") == ["/var/lib/redraft"]
        and "REDRAFT_HOME=/var/lib/redraft" in arguments_of("ENV")[0]
    )
    order = [name for stage, name, _ in instructions() if stage == 2]
    assert order.index("USER") > max(n for n, name in enumerate(order) if name in {"RUN", "COPY"})
    assert "://" not in "".join(
        arguments for _, name, arguments in instructions() if name in {"RUN", "FROM", "COPY"}
    )


def test_build_needs_what_the_context_has():
    """Each file that is copied exists and is not ignored."""
    allowed = [
        line[1:]
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    ]
    sources = [
        each
        for a in arguments_of("COPY", 1) + arguments_of("COPY", 2)
        if "--from" not in a
        for each in a.split()[:-1]
    ]
    assert sources and all((ROOT / each).exists() for each in sources)
    assert all(any(each == a or each.startswith(f"{a}/") for a in allowed) for each in sources)


def test_unit_is_accepted_by_systemd(tmp_path):
    """`systemd-analyze verify` finds nothing, with a program and a user that exist here."""
    require_program("systemd-analyze")
    text = (
        UNIT.read_text()
        .replace("/opt/redraft/bin/redraft", "/bin/true")
        .replace("=redraft\nGroup=redraft", "=root\nGroup=root")
    )
    (tmp_path / "redraft.service").write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", tmp_path / "redraft.service"],
        capture_output=True,
        text=True,
        check=False,
    )
    ours = [line for line in (done.stdout + done.stderr).splitlines() if "redraft.service" in line]
    assert ours == []


def test_unit_reloads_drains_and_is_confined():
    """SIGHUP reloads; systemd waits longer than the gateway drains; the exposure that systemd
    computes is low.
    """
    text = UNIT.read_text()
    assert "ExecReload=/bin/kill -HUP $MAINPID" in text
    drain = load_config(ROOT / "deploy/gateway.toml", {}).limits.drain_seconds
    assert int(re.search(r"TimeoutStopSec=(\d+)", text)[1]) > drain
    if shutil.which("systemd-analyze"):
        done = subprocess.run(
            ["systemd-analyze", "security", "--offline=yes", "--no-pager", UNIT],
            capture_output=True,
            text=True,
            check=False,
        )
        level = re.search(r"exposure level for redraft.service: ([\d.]+)", done.stdout)
        if level is None:
            pytest.skip("a systemd that cannot compute the exposure")
        assert float(level[1]) < 3


def in_prefix(command, prefix):
    """A command of the Dockerfile, with its folders inside a prefix."""
    moved = [
        re.sub(r"^(?=/(?:src|opt|var|etc)\b)", str(prefix), word) for word in shlex.split(command)
    ]
    return [sys.executable if word == "python" else word for word in moved]


def build_in(prefix, environment):
    """Copy and run what the first stage of the image copies and runs."""
    for arguments in arguments_of("COPY", 1):
        *sources, target = arguments.split()
        place = prefix / target.lstrip("/")
        for source in sources:
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, place, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                place.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / source, place)
    for command in arguments_of("RUN", 1):
        done = subprocess.run(
            in_prefix(command, prefix),
            capture_output=True,
            text=True,
            env=environment,
            cwd=prefix,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_build_steps_in_a_fresh_root(tmp_path):
    """What the image's build copies and runs gives a gateway that works, from the files of the
    context alone.

    Then as an operator would: it refuses to listen on all addresses without a key; with one it
    starts, the health check passes, a client without the key is refused, and SIGTERM ends it with
    exit code 0.
    """
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "VIRTUAL"))
    }
    environment |= {
        "HOME": str(tmp_path / "home"),
        "REDRAFT_HOME": str(tmp_path / "var/lib/redraft"),
    }
    build_in(tmp_path, environment)
    program = tmp_path / "opt/redraft/bin/redraft"
    for folder in ("etc/redraft", "var/lib/redraft"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(ROOT / "deploy/gateway.toml", tmp_path / "etc/redraft/gateway.toml")

    def run(*command):
        return subprocess.run(
            [*map(str, command)],
            capture_output=True,
            text=True,
            env=environment,
            cwd=tmp_path,
            check=False,
        )

    where = run(
        program.with_name("python"),
        "-c",
        "import mcp, opentelemetry.sdk, redraft; print(redraft.__file__)",
    )
    assert where.stdout.startswith(str(tmp_path)), where.stderr
    serve = [
        program,
        *in_prefix(shlex.join(json.loads(arguments_of("CMD")[0])), tmp_path),
        "--port",
        "0",
    ]
    refused = run(*serve)
    assert refused.returncode == 2 and "key" in refused.stderr, refused.stderr
    assert run(program, "keys", "add", "app").returncode == 0
    gateway = subprocess.Popen(
        [*map(str, serve)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=tmp_path,
    )
    try:
        port = re.search(r":(\d+)", json.loads(gateway.stdout.readline())["url"])[1]
        check = json.loads(arguments_of("HEALTHCHECK")[0].partition("CMD ")[2])
        assert check[0] == "python"
        healthy = run(
            program.with_name("python"), *(word.replace("8484", port) for word in check[1:])
        )
        assert healthy.returncode == 0, healthy.stderr
        asking = f"from urllib.request import urlopen; urlopen('http://127.0.0.1:{port}/v1/models')"
        assert "401" in run(program.with_name("python"), "-c", asking).stderr
        gateway.terminate()
        assert gateway.wait(30) == 0
    finally:
        gateway.kill()
        gateway.communicate()
    assert {path.name for path in (tmp_path / "var/lib/redraft/gateway").iterdir()} == {
        "gateway.db",
        "requests.db",
        "gateway.journal",
    }
    unhealthy = run(
        program.with_name("python"), *(word.replace("8484", port) for word in check[1:])
    )
    assert unhealthy.returncode != 0
