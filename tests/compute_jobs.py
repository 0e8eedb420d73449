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
