"""What to do next: pure functions from a trace to the steps it still lacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from ..core.steps import Step
from ..core.trace import Trace

Plan: TypeAlias = Callable[[Trace], Sequence[Step]]

__all__ = ["Plan"]
