"""Functions for the workers of test_compute.py."""

import os
import re
import sys
import time

from redraft import errors


def echo(value):
    return value


def spin(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def hold_the_lock(letters):
    """Backtrack for years in one call that never releases the interpreter's lock."""
    return bool(re.search("(a+)+$", "a" * letters + "b"))


def sleep(seconds):
    time.sleep(seconds)


def eat(size):
    return len(bytearray(size))


def nest(depth):
    return depth and nest(depth - 1)


def abort(number):
    os.kill(os.getpid(), number)
    time.sleep(60)


def fail(kind, message):
    raise getattr(errors, kind, ValueError)(message)


def environment():
    return sorted(os.environ)


def process():
    return os.getpid()


def shout(text):
    print(text, flush=True)
    os.write(1, text.encode() + b"\n")
    sys.stdout.write("no end of line")
    return text


def compute_again(value):
    from redraft.workers.pool import run_sync

    return [os.getpid(), *run_sync(pid_and, value, failure_text="", text_length=0)]


def pid_and(value):
    return [os.getpid(), value]


def refused():
    """What a worker cannot do, by the names of the errors."""
    import socket
    import subprocess

    attempts = {
        "connect": lambda: socket.create_connection(("127.0.0.1", 9)),
        "bind": lambda: socket.socket().bind(("127.0.0.1", 0)),
        "run a program": lambda: subprocess.run(["/bin/true"], check=True),
        "fork": os.fork,
        "signal the parent": lambda: os.kill(os.getppid(), 0),
    }
    errors = {}
    for name, attempt in attempts.items():
        try:
            errors[name] = repr(attempt())
        except OSError as error:
            errors[name] = type(error).__name__
    return errors
