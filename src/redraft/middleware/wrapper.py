"""The shape that all wrappers share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias, TypeVar

S = TypeVar("S")
R = TypeVar("R")
AsyncFunction: TypeAlias = Callable[[S], Awaitable[R]]
