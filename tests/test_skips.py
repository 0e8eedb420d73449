"""Tests that are skipped: the last lines of a run count them by reason, and the next run may choose
them.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOME_TESTS = """
import pytest
from require import require_program

def test_needs_nothing():
    pass

def test_needs_sh():
    require_program("sh")

@pytest.mark.parametrize("n", [1, 2])
def test_needs_cat(n):
    require_program("cat")
"""


def run_tests(folder, path, *options):
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "conftest",
        "-p",
        "xdist",
        "-n",
        "1",
        *options,
    ]
    environment = {
        **os.environ,
        "PATH": path,
        "PYTHONPATH": str(Path(__file__).parent),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)


@pytest.mark.slow
def test_skipped_tests_are_counted_by_reason_and_can_be_run_later(tmp_path):
    """Also by other processes, and in a random order."""
    (tmp_path / "test_some.py").write_text(SOME_TESTS)

    def last_lines(path, *options):
        done = run_tests(tmp_path, path, *options)
        assert done.returncode == 0, done.stdout
        return [line.partition(" in ")[0] for line in done.stdout.splitlines()[-2:]]

    assert last_lines("") == ["2 skipped: no cat; 1 skipped: no sh", "1 passed, 3 skipped"]
    assert last_lines("", "--skipped", "--shuffle=1") == [
        "2 skipped: no cat; 1 skipped: no sh",
        "3 skipped",
    ]
    assert last_lines(os.environ["PATH"], "--skipped")[-1] == "3 passed"
    assert last_lines(os.environ["PATH"], "--skipped")[-1] == "no tests ran"


FAILS = "\n\ndef test_fails():\n    require_program('cat')\n    assert 0\n"


@pytest.mark.slow
def test_a_failure_of_skipped_tests_is_repeated(tmp_path):
    """A second run does not pass because the first one left nothing that was skipped; also if the
    file cannot be read.
    """
    (tmp_path / "test_some.py").write_text(SOME_TESTS + FAILS)

    def code(path, *options):
        return run_tests(tmp_path, path, *options).returncode

    assert code("") == 0
    assert [code(os.environ["PATH"], "--skipped") for _ in range(2)] == [1, 1]
    (tmp_path / "test_some.py").write_text("import nothing_of_this_name\n")
    assert [code(os.environ["PATH"], "--skipped") != 0 for _ in range(2)] == [True, True]
    (tmp_path / "test_some.py").write_text(SOME_TESTS)
    assert [code(os.environ["PATH"], "--skipped") for _ in range(2)] == [0, 0]
