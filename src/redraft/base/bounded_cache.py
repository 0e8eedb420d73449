"""A cache with a limit that any thread may use. It takes no lock, which modules without side
effects could not import.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """At most `size` values by their keys; the one that was not used for longest is dropped.

    `lru_cache`, which is safe in threads, holds a list for each key: empty, or with the value.
    """

    def __init__(self, size: int) -> None:
        def new_list(_: K) -> list[V]:
            return []

        self._lists = lru_cache(size)(new_list)

    def get(self, key: K) -> V | None:
        """Return the value of a key; None if there is none."""
        return next(iter(self._lists(key)), None)

    def __setitem__(self, key: K, value: V) -> None:
        self._lists(key)[:] = [value]

    def __len__(self) -> int:
        return self._lists.cache_info().currsize

    def clear(self) -> None:
        """Drop all values."""
        self._lists.cache_clear()
