"""What to do next: pure functions from a trace to the steps it still lacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from ..steps import Step
from ..trace import Trace

Plan: TypeAlias = Callable[[Trace], Sequence[Step]]

__all__ = ["Plan"]
