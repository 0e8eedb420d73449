"""How long something takes, measured so that a busy machine does not make a test fail."""

from collections.abc import Callable
from time import process_time

ATTEMPTS = 5


def least_seconds(
    call: Callable[[], object], bound: float, clock: Callable[[], float] = process_time
) -> float:
    """Return the shortest time of up to five calls; no more are made once one takes less than
    `bound` seconds.

    Other processes can only make a call slower, by cold caches and a slower core, so the shortest
    time says most about the code. What takes more than linear time for its input exceeds a bound
    each time.
    """
    shortest = float("inf")
    for _ in range(ATTEMPTS):
        start = clock()
        call()
        shortest = min(shortest, clock() - start)
        if shortest < bound:
            break
    return shortest
