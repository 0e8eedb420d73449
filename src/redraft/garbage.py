"""How often Python looks for cycles of objects, in processes that are Redraft's own."""

from __future__ import annotations

import gc


def collect_rarely() -> None:
    """Look for cycles rarely: what a row or a request leaves behind is freed at once, and looking took 4 % of a batch."""
    gc.set_threshold(10_000, 20, 100)
