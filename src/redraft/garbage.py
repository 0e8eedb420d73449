"""How often Python looks for cycles of objects while Redraft works on many rows. A server looks as
often as any program.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# the first: more objects than the rows under way hold, else each of them is looked at again and
# again
RARELY = (50_000, 20, 100)


def collect_rarely() -> None:
    """Look for cycles rarely: what a row leaves behind is freed at once, and looking took a tenth
    of a batch.
    """
    gc.set_threshold(*RARELY)


@contextmanager
def rare_collection() -> Iterator[None]:
    """Look for cycles rarely while a block runs, in a program that looks more often. One that never
    looks is left alone.
    """
    before = gc.get_threshold()
    if not 0 < before[0] < RARELY[0]:
        yield
        return
    collect_rarely()
    try:
        yield
    finally:
        if gc.get_threshold()[0] == RARELY[0]:  # else the program has changed it meanwhile
            gc.set_threshold(*before)
