"""What `validate` and `rubric` share: labelled data, and the options of the judge calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import click

from ..text import strip_control_sequences
from . import options, output

if TYPE_CHECKING:
    from ..options import Options
    from ..validation.labelled import LabelledCases

MAX_LISTED = 20  # skipped rows that are listed one by one

column_option = click.option(
    "--column", "-c", "columns", multiple=True, metavar="OURS=THEIRS", help="Name of a column in the data (repeatable)."
)
limit_option = click.option("--limit", type=options.COUNT, metavar="N", help="Use only the first N rows.")
max_in_flight_option = click.option(
    "--max-in-flight", type=options.COUNT, default=16, show_default=True, metavar="N", help="Concurrent calls."
)


@dataclass(frozen=True, kw_only=True)
class JudgingRequest:
    """The parameters that both commands have, named after their options."""

    data: str
    columns: tuple[str, ...]
    kind: Literal["score", "pass", "pair", "ranking"] | None
    limit: int | None
    model: str | None
    judge: str | None
    max_in_flight: int
    budget_usd: float | None
    budget_calls: int | None
    budget_tokens: int | None
    deadline: float | None
    price: tuple[str, ...]
    timeout: float
    as_json: bool

    @property
    def column_names(self) -> dict[str, str]:
        """The columns that were named, by our names. Raises UsageError."""
        names = {}
        for text in self.columns:
            ours, equals, theirs = text.partition("=")
            if not equals or not ours or not theirs:
                raise click.UsageError(f"-c {text}: a column is given as OURS=THEIRS, such as -c prompt=question")
            names[ours.strip()] = theirs.strip()
        return names

    def read_cases(self) -> LabelledCases:
        """Read the labelled data and report how its columns were understood and which rows were skipped."""
        from ..validation.labelled import read_cases

        labelled = read_cases(self.data, self.column_names, kind=self.kind, limit=self.limit)
        for text in labelled.column_notes:
            click.echo(f"redraft: {strip_control_sequences(text)}", err=True)
        for row in labelled.skipped_rows[:MAX_LISTED]:
            output.warning(f"skipped: {row.location}: {row.message}")
        if labelled.skipped_rows:
            output.warning(f"{output.pluralize(len(labelled.skipped_rows), 'row')} skipped")
        return labelled

    def session_options(self, **more: Any) -> Options:
        """The options of a session with the limits that were given."""
        from ..middleware import Budget
        from ..options import Options

        budget = Budget(usd=self.budget_usd, calls=self.budget_calls, tokens=self.budget_tokens)
        prices = dict(map(options.parse_price, self.price)) or None
        return Options(
            budget=None if budget == Budget() else budget,
            prices=prices,
            max_in_flight=self.max_in_flight,
            deadline=self.deadline,
            timeout=self.timeout,
            **more,
        )
