"""Editors repair texts without a model: free, deterministic, and unable to write anything new."""

from __future__ import annotations

from .editor import FormEditor, leftovers

__all__ = ["FormEditor", "leftovers"]
