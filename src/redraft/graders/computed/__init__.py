"""Graders that compute: they ask no model (`embedding` asks an endpoint for vectors), and say the same thing every time."""

from __future__ import annotations

from ..registry import Entry

COMPUTED: tuple[Entry, ...] = ()

__all__ = ["COMPUTED"]
