"""Which rows a list shows, and in which order: read from the address of a page, checked, and
written as SQL with bound values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import urlencode

from ..base.checks import unknown_name_message
from ..errors import ConfigError

ORDERS: Mapping[str, str] = {
    "position": "rows.position",
    "uplift": "rows.uplift",
    "change": "abs(rows.uplift)",
    "score": "rows.best",
    "first": "rows.first",
    "iteration": "rows.best_iteration",
    "iterations": "rows.iterations",
    "cost": "rows.cost",
    "calls": "rows.calls",
    "seconds": "rows.seconds",
    "stop": "rows.stop",
    "error": "rows.error_kind",
    "grader": (
        "(SELECT best FROM scores WHERE scores.number = rows.number AND kind = 'grader' AND name "
        "= ?)"
    ),
    "criterion": (
        "(SELECT best FROM scores WHERE scores.number = rows.number AND kind = 'criterion' AND "
        "name = ?)"
    ),
}
"""The orders of a list, and their SQL."""

CHANGES: Mapping[str, str] = {
    "improved": "rows.improved",
    "unsure": "rows.unsure",
    "unchanged": "rows.uplift IS NOT NULL AND NOT (rows.improved OR rows.unsure OR rows.worse)",
    "worse": "rows.worse AND NOT (rows.improved OR rows.unsure)",
    "unknown": "rows.uplift IS NULL",
}
"""The groups of rows by what became of their score, as a batch's report counts them."""

STATUSES = ("done", "failed", "open")
MAX_TEXT = 500  # characters of a search


@dataclass(frozen=True, slots=True)
class RowQuery:
    """A list of rows: its filters ("" or None: none) and its order. Raises ConfigError for a value
    that is not allowed.

    Attributes:
        sort: One of `ORDERS`.
        descending: The highest first. Rows without a value come last either way.
        part: The name of the grader or criterion that `sort` means.
        text: Text in the ID, the prompt or the answer.
        change: One of `CHANGES`.
        status: "done", "failed" or "open".
        stop: The reason why the row ended.
        error: The kind of the error.
        iteration: The iteration of the best answer.
        grader: The name of a grader that scored the best answer below `below`.
        criterion: The name of a criterion that scored it below `below`.
        below: A score.
    """

    sort: str = "position"
    descending: bool = False
    part: str = ""
    text: str = ""
    change: str = ""
    status: str = ""
    stop: str = ""
    error: str = ""
    iteration: int | None = None
    grader: str = ""
    criterion: str = ""
    below: float = 1.0

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("sort", self.sort, ORDERS),
            ("change", self.change or "improved", CHANGES),
            ("status", self.status or "done", STATUSES),
        ):
            if value not in allowed:
                raise ConfigError(unknown_name_message(name, value[:80], list(allowed)))
        if not 0 <= self.below <= 1:
            raise ConfigError(f"below must be a score from 0 to 1, got {self.below!r}")
        if len(self.text) > MAX_TEXT:
            raise ConfigError(f"a search has at most {MAX_TEXT} characters, got {len(self.text):,}")

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, str]) -> RowQuery:
        """Return the query in the parameters of an address; unknown parameters are ignored."""
        values: dict[str, Any] = {
            f.name: parameters[f.name] for f in fields(cls) if parameters.get(f.name)
        }
        try:
            if "iteration" in values:
                values["iteration"] = int(values["iteration"][:9])
            if "below" in values:
                values["below"] = float(values["below"][:20])
        except ValueError as error:
            raise ConfigError(f"iteration and below are numbers, got {str(error)[:80]}") from None
        values["descending"] = values.get("descending") == "1"
        return cls(**values)

    def parameters(self, **changes: Any) -> str:
        """Return the query as parameters of an address, with changes; defaults are left out."""
        values = {f.name: changes.pop(f.name, getattr(self, f.name)) for f in fields(self)}
        defaults = RowQuery()
        given = {
            name: value
            for name, value in values.items()
            if value != getattr(defaults, name) and value is not None
        }
        if "descending" in given:
            given["descending"] = "1"
        given |= {name: value for name, value in changes.items() if value is not None}
        return urlencode(given)

    @property
    def filters(self) -> dict[str, Any]:
        """The filters that are set, by name."""
        names = ("text", "change", "status", "stop", "error", "iteration", "grader", "criterion")
        return {name: value for name in names if (value := getattr(self, name)) not in ("", None)}

    def condition(self) -> tuple[str, list[Any]]:
        """Return the condition of SQL on a row, and its values."""
        terms: list[tuple[str, list[Any]]] = []
        for name, column in (("status", "status"), ("stop", "stop"), ("error", "error_kind")):
            if value := getattr(self, name):
                terms.append((f"rows.{column} = ?", [value]))
        if self.iteration is not None:
            terms.append(("rows.best_iteration = ?", [self.iteration]))
        if self.change:
            terms.append((f"({CHANGES[self.change]})", []))
        for kind in ("grader", "criterion"):
            if value := getattr(self, kind):
                scores = "SELECT number FROM scores WHERE kind = ? AND name = ? AND best < ?"
                terms.append((f"rows.number IN ({scores})", [kind, value, self.below]))
        if self.text:
            terms.append(
                (
                    "rows.number IN (SELECT number FROM texts WHERE instr(text, ?))",
                    [self.text.casefold()],
                )
            )
        return " AND ".join(sql for sql, _ in terms) or "1", [
            value for _, values in terms for value in values
        ]

    def ordering(self) -> tuple[str, list[Any]]:
        """Return the order of SQL, and its values."""
        expression = ORDERS[self.sort]
        values = [self.part] * expression.count("?")
        direction = "DESC" if self.descending else "ASC"
        if self.sort == "position":
            return f"{expression} {direction}, rows.number", values
        return f"({expression}) {direction} NULLS LAST, rows.position, rows.number", values
