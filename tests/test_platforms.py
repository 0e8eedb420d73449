"""What Windows lacks of Python is taken away: the commands that need none of it work without."""

import subprocess
import sys

import pytest

SCRIPT = r"""
import os, signal, sys
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
for module, names in (
    (os, "fork forkpty geteuid getuid register_at_fork fchown waitid sysconf O_NOFOLLOW O_NONBLOCK"),
    (signal, "SIGHUP SIGPROF setitimer pthread_sigmask"),
):
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
from redraft.cli import main

for command in (
    "grade t.csv --require words:1-3",
    "batch t.csv -o out.csv --model none --require no_commas",
    "batch t.csv -o out.csv --model none --require no_commas",
    "runs",
    "export out.csv -o pairs.jsonl --format preference",
    "compare t.csv t.csv",
):
    code = main(command.split())
    assert not code, (command, code)
"""


@pytest.mark.slow
def test_commands_work_without_what_windows_lacks(tmp_path):
    """Locks of files, limits on resources, forks, users, and some signals. (This shows nothing
    about Windows itself.)
    """
    (tmp_path / "t.csv").write_bytes(
        "id;prompt;response;score\r\n1;Käse?;gelb, rot;0,8\r\n2;Brot?;grün;0,5\r\n".encode("cp1252")
    )
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "gelb rot" in (tmp_path / "out.csv").read_text("utf-8")
