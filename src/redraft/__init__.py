"""Redraft makes LLM answers better and proves it."""

__version__ = "0.1.0"
