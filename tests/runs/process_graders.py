"""Graders for the workers of test_processes.py."""

import multiprocessing
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
    if "word " * 5 == text and not mark.exists():
        mark.touch()
        os._exit(9)
    return 1.0


def crash_always(text):
    os._exit(9)


def ends_a_program(text):
    process = subprocess.Popen([sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"], stdout=subprocess.PIPE)
    process.stdout.readline()
    process.terminate()
    return float(process.wait(30) == -signal.SIGTERM)


def ends_a_fork(text):
    context = multiprocessing.get_context("fork")
    started = context.Event()
    process = context.Process(target=sleep_long, args=(started,))
    process.start()
    started.wait(30)
    process.terminate()
    process.join(30)
    return float(process.exitcode == -signal.SIGTERM)


def sleep_long(started):
    started.set()
    time.sleep(60)
