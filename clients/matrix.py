"""What was tried, how it ended, and the table of it for docs/gateway.md."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

ERROR_CHARS = 220
# Errors that are not the gateway's, by a pattern.
WHOSE = ((r"litellm\.UnsupportedParamsError", "litellm's, without `drop_params`"),)


@dataclass(frozen=True)
class Cell:
    """One client doing one thing over one route. `error`: None if it worked."""

    client: str
    version: str
    task: str
    route: str
    error: str | None

    @property
    def place(self) -> tuple[str, str, str, str]:
        """Where the cell is in the table."""
        return self.client, self.version, self.task, self.route


def first_line(error: str) -> str:
    """Return the line of an error that says most, without addresses and escapes."""
    plain = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", error)
    plain = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1", plain)
    plain = re.sub(r"/tmp/[\w./-]+", "/tmp/...", plain)
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    told = [line for line in lines if re.search(r"error|fail|\b[45]\d\d\b", line, re.IGNORECASE)]
    return (told or lines or ["no output"])[0][:ERROR_CHARS]


def table(cells: Iterable[Cell], routes: Iterable[str]) -> str:
    """Return a Markdown table with a row for each task of a client and a column for each route,
    and below it the errors that its cells number.
    """
    rows: dict[tuple[str, str, str], dict[str, str]] = {}
    numbers: dict[str, int] = {}
    for cell in cells:
        row = rows.setdefault((cell.client, cell.version, cell.task), {})
        if cell.error is None:
            row[cell.route] = "works"
        else:
            number = numbers.setdefault(first_line(cell.error), len(numbers) + 1)
            row[cell.route] = f"fault {number}"
    names = [*routes]
    lines = [
        "| client | version | task | " + " | ".join(names) + " |",
        "|---" * (3 + len(names)) + "|",
    ]
    for key, row in rows.items():
        lines.append("| " + " | ".join([*key, *(row.get(name, "") for name in names)]) + " |")
    lines.append("")
    lines += [f"{number}. {described(error)}" for error, number in numbers.items()]
    return "\n".join(lines) + "\n"


def summary_table(cells: Iterable[Cell], routes: Iterable[str]) -> str:
    """Return a Markdown table with a row for each client, for docs/gateway.md: how many of its
    tasks work over each route.
    """
    names = [*routes]
    rows: dict[tuple[str, str], dict[str, list[bool]]] = {}
    for cell in cells:
        found = rows.setdefault((cell.client, cell.version), {})
        found.setdefault(cell.route, []).append(cell.error is None)
    lines = ["| client | version | " + " | ".join(names) + " |", "|---" * (2 + len(names)) + "|"]
    for key, found in sorted(rows.items(), key=lambda row: row[0][0].lower()):
        counts = [found.get(name, []) for name in names]
        told = [f"{sum(done)} of {len(done)}" if done else "" for done in counts]
        lines.append("| " + " | ".join([*key, *told]) + " |")
    return "\n".join(lines) + "\n"


def described(error: str) -> str:
    """Return an error as Markdown, with whose it is if it is not the gateway's."""
    whose = next((told for pattern, told in WHOSE if re.search(pattern, error)), "")
    plain = error.replace("`", "'")
    return f"`{plain}`" + (f" ({whose})" if whose else "")


def summary(cells: list[Cell]) -> str:
    works = sum(cell.error is None for cell in cells)
    return f"{works} of {len(cells)} cells work"
