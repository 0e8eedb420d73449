"""Graders for the workers of test_processes.py."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Extra:
    """An object in a row."""

    number: int


def brevity(text):
    return 1 / len(text)


def crash_once(text):
    mark = Path(os.environ["CRASH_MARK"])
    if text == "word " * 5 and not mark.exists():
        mark.touch()
        os._exit(9)
    return 1.0


def crash_always(text):
    os._exit(9)


def ends_a_program(text):
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"],
        stdout=subprocess.PIPE,
    )
    process.stdout.readline()
    process.terminate()
    return float(process.wait(30) == -signal.SIGTERM)


def ends_a_fork(text):
    """Terminate children as soon as they are forked."""
    return float(all(_exit_of_terminated_fork() == -signal.SIGTERM for _ in range(50)))


def _exit_of_terminated_fork():
    # not by multiprocessing, whose threads also wait for the children of each other
    child = os.fork()
    if not child:
        time.sleep(60)
        os._exit(0)
    os.kill(child, signal.SIGTERM)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
