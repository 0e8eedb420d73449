"""Which lines of a program the failing tests run, so that changes are tried there first.

The program is run once more in the sandbox with an addition that returns the lines of a call
instead of its value. What comes back is the program's own word: it decides the order of the changes
and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import sqrt

from .report import TestReport

ADDITION = """


def _redraft_record_lines(function):
    import functools
    import sys

    @functools.wraps(function)
    def call(*args, **kwargs):
        lines = 0
        name = function.__code__.co_filename

        def trace(frame, event, arg):
            nonlocal lines
            if frame.f_code.co_filename != name:
                return None
            if frame.f_lineno <= {count}:
                lines |= 1 << frame.f_lineno
            return trace

        sys.settrace(trace)
        try:
            function(*args, **kwargs)
        except BaseException:
            pass
        finally:
            sys.settrace(None)
        return hex(lines)

    return call


{name} = _redraft_record_lines({name})
"""
MAX_LINES = 1_000  # of a program, so that the answer is short
LINES = re.compile(r"'0x([0-9a-f]{1,260})'")


def with_line_recording(code: str, entry_point: str) -> str | None:
    """Return the program whose function returns the lines that it runs, as bits of a number; None
    if that cannot be done.
    """
    if not entry_point.isidentifier() or code.count("\n") > MAX_LINES:
        return None
    return code.rstrip() + ADDITION.replace("{count}", str(code.count("\n") + 1)).replace(
        "{name}", entry_point
    )


def suspicious_lines(recorded: TestReport, passed: Sequence[bool]) -> Mapping[int, float]:
    """Return how suspicious each line is, from 0 to 1, by which tests run it and which of these
    passed.

    The measure is Ochiai's: failing tests that run the line, divided by the square root of all
    failing tests times all tests that run the line (Abreu, Zoeteweij and van Gemund, 2006). Empty
    if the lines are not known.
    """
    runs = [_lines_of(result.got) for result in recorded.results]
    if len(runs) != len(passed) or not any(runs) or all(passed):
        return {}
    failing = sum(not ok for ok in passed)
    counts: dict[int, tuple[int, int]] = {}
    for lines, ok in zip(runs, passed, strict=True):
        for line in lines:
            failed, every = counts.get(line, (0, 0))
            counts[line] = (failed + (not ok), every + 1)
    return {
        line: failed / sqrt(failing * every) for line, (failed, every) in counts.items() if failed
    }


def _lines_of(text: str | None) -> frozenset[int]:
    match = LINES.fullmatch(text or "")
    number = int(match[1], 16) if match else 0
    return frozenset(line for line in range(number.bit_length()) if number >> line & 1)
