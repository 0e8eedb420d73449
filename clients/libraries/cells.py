"""What the scripts of this folder share. Each is run by the interpreter of build/clients/venv with
the gateway's address, the scripted model's, and the names of models; it prints a line of JSON for
each of its cells and models.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2] / "tests"), str(Path(__file__).parents[1])]

from gateway.clients.agents import DRAFT, FINAL, QUESTION, to_fahrenheit
from gateway.clients.library_model import BETTER_GREETING, GREETING, HELLO

__all__ = [
    "FINAL",
    "HELLO",
    "KEY",
    "PICTURE",
    "QUESTION",
    "SEEN",
    "Server",
    "expect",
    "main",
    "to_fahrenheit",
    "weather",
]

KEY = "none"
CELL_SECONDS = 90
PICTURE = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
    "+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)  # a PNG of one pixel
SEEN = "I see 1 picture"


def weather(city: str) -> str:
    """Return the temperature in a city, in Celsius."""
    return {"Oslo": "20", "Rome": "25"}[city]


@dataclass(frozen=True)
class Server:
    """The gateway, as one client is told of it."""

    root: str
    upstream: str
    model: str

    @property
    def url(self) -> str:
        return f"{self.root}/v1"

    @property
    def refines(self) -> bool:
        return self.model.startswith("refine/")

    @property
    def greeting(self) -> str:
        """The answer to HELLO."""
        return BETTER_GREETING if self.refines else GREETING

    @property
    def answer(self) -> str:
        """The answer to QUESTION, after the calls of tools."""
        return FINAL if self.refines else DRAFT


def expect(found: object, expected: object) -> None:
    """Raise AssertionError for another value."""
    assert found == expected, f"error: {found!r} instead of {expected!r}"


def main(client: str, *cells: Callable, only: dict[Callable, str] | None = None) -> None:
    """Run each cell for each model, or those cells alone whose names the variable CELLS matches;
    `only`: what the model's name must begin with for some cells.
    """
    root, upstream, *models = sys.argv[1:]
    for cell in cells:
        for model in models:
            if not re.fullmatch(os.environ.get("CELLS") or ".*", cell.__name__):
                continue
            if not model.startswith((only or {}).get(cell, "")):
                continue
            error = error_of(cell, Server(root, upstream, model))
            line = {
                "cell": (cell.__doc__ or cell.__name__).strip(),
                "client": client,
                "model": model,
                "error": error,
            }
            print("\n" + json.dumps(line), flush=True)


def error_of(cell: Callable, server: Server) -> str | None:
    """Run a cell; return the last line of what it raised, then the rest."""
    try:
        if inspect.iscoroutinefunction(cell):
            asyncio.run(asyncio.wait_for(cell(server), CELL_SECONDS))
        else:
            cell(server)
    except Exception as error:
        last = " ".join(str(error).split()) or repr(error)
        return f"{type(error).__name__} error: {last}\n{traceback.format_exc()}"
    return None
