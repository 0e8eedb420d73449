"""What a run would read, ask and roughly cost, before anything is asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from ..core.records import Message, Usage
from ..middleware import Budget
from ..middleware.budget import CHARS_PER_TOKEN, DEFAULT_OUTPUT_TOKENS
from ..plans import Plan
from ..plans.adaptive import Adaptive
from ..plans.self_refine import BestOfN
from ..session import Session
from ..storage.journal import Journal, RowInfo
from ..tables.readers import BadRow
from .asked import Asked
from .entries import Entry, Survey, Table
from .forecast import DUEL, Likely, Range, calls_a_look, calls_a_task, likely_of
from .keys import Keys, changed, key_of
from .rows import Came

N = TypeVar("N", int, float)
SAMPLES = 3
CHUNK = 256
PROMPT = 1200  # tokens that a judge's own instructions take, roughly
LEAST_OUTPUT = 64


@dataclass(frozen=True)
class Preview:
    """What would be done.

    `said` tells what is read, `samples` are the messages of the first rows. `calls` and `tokens` are ranges over all rows
    that are not finished (`known` are), `cost` in USD, None where a price is unknown; `likely` what is expected within
    them, None for a plan of the user's own. `bad` are rows that cannot be used, with their complaints. `changes` say what
    of an earlier run would be redone, and why.
    """

    said: tuple[str, ...]
    rows: int
    bad: tuple[BadRow, ...]
    known: int
    samples: tuple[tuple[Message, ...], ...]
    calls: Range
    tokens: Range
    cost: tuple[float, float] | None
    likely: Likely | None
    changes: tuple[str, ...] = ()


def previewed(asked: Asked, table: Table, survey: Survey, desk: Session, plan: Plan, *, explain: bool = False) -> Preview:
    """Look through the data and, where there is one, the journal. Raises ConfigError and StoreError."""
    bad: list[BadRow] = []
    entries = table.entries(survey.twins, lambda row: bad.append(row) if len(bad) < SAMPLES else None)
    seen = Seen(asked, desk, plan)
    samples: list[tuple[Message, ...]] = []
    while chunk := list(islice(entries, CHUNK)):
        samples += [entry.task.messages for entry in chunk[: SAMPLES - len(samples)]]
        if not seen.look(chunk) and not explain and len(samples) >= SAMPLES:
            break
    rows = survey.total - seen.known
    ranges, likely = ranges_of(desk, plan, survey, rows), likely_of(desk, plan, survey, rows)
    starts = of_responses(table, survey, writes=desk.writer is not None)
    return Preview(
        (f"{survey.total:,} rows in {table.source.name}", table.shape.description, *starts),
        survey.total,
        tuple(bad),
        seen.known,
        tuple(samples),
        *ranges,
        likely and likely.within(*ranges),
        tuple(seen.changes()),
    )


def of_responses(table: Table, survey: Survey, *, writes: bool) -> Iterator[str]:
    """How many rows begin with a response; where none does, why. `writes`: whether a model can draft one."""
    if survey.answered:
        others = "get a first draft" if writes else "have none"
        yield f"{survey.answered:,} rows have a response to begin with, {survey.total - survey.answered:,} {others}"
    else:
        yield f"every row gets a first draft: {table.without_response}"


def ranges_of(desk: Session, plan: Plan, survey: Survey, rows: int) -> tuple[Range, Range, tuple[float, float] | None]:
    """The least and the most calls, tokens and USD that so many rows take, within the budget."""
    given = round(rows * survey.answered / max(1, survey.total))
    (new, most_new), (old, most_old) = (calls_of(desk, plan, answered=answered) for answered in (False, True))
    calls = ((rows - given) * new + given * old, (rows - given) * most_new + given * most_old)
    least, most = tokens_of(desk, survey)
    tokens = (calls[0] * least, calls[1] * most)
    cost, limits = cost_of(desk, calls, tokens), desk.options.budget or Budget()
    return limited(calls, limits.calls), limited(tokens, limits.tokens), cost and limited(cost, limits.usd)


def limited(amounts: tuple[N, N], limit: N | None) -> tuple[N, N]:
    """As much of them as a budget allows."""
    return amounts if limit is None else (min(amounts[0], limit), min(amounts[1], limit))


class Seen:
    """What a journal knows of the rows, as they are now."""

    def __init__(self, asked: Asked, desk: Session, plan: Plan) -> None:
        self._asked, self._keys = asked, Keys(desk, plan)
        self._journal = Journal(asked.journal, create=False, read_only=True) if asked.journal.exists() else None
        self._name = asked.name
        self._why: Counter[str] = Counter()
        self._rows: Counter[str] = Counter()
        self.known = 0

    def look(self, entries: Sequence[Entry]) -> bool:
        """Compare rows with the journal; whether there is one to compare with."""
        if self._journal is None:
            return False
        notes = self._journal.rows_by_id(self._name, [entry.id for entry in entries])
        for entry in entries:
            self._compare(entry, notes.get(entry.id))
        return True

    def _compare(self, entry: Entry, note: RowInfo | None) -> None:
        parts = self._keys.parts(entry.task)
        if note is None:
            self._rows["new"] += 1
        elif note.key == key_of(parts):
            kept = note.status != "open" and not (note.result and self._asked.redoes(Came.of(note.status, note.result)))
            self._rows["finished" if kept else "to go on with"] += 1
            self.known += kept
        else:
            self._rows["changed"] += 1
            self._why.update(self._reasons(note, parts))

    def _reasons(self, note: RowInfo, parts: dict[str, str]) -> Iterator[str]:
        for part in changed(note.key_parts, parts):
            yield from (f"setting {name}" for name in self._settings_since(note)) if part == "settings" else [f"the row's {part}"]

    def _settings_since(self, note: RowInfo) -> list[str]:
        run = self._journal.run(self._name) if self._journal else None
        old = run.metadata.get("settings", {}).get(note.key_parts.get("settings")) if run else None
        return changed(old, self._keys.settings) if old else ["(of an older journal)"]

    def changes(self) -> Iterator[str]:
        """Lines for people."""
        if self._journal is None:
            yield "there is no journal yet: every row is new"
            return
        self._journal.close()
        yield ", ".join(f"{n:,} rows {what}" for what, n in sorted(self._rows.items())) or "no rows"
        for why, n in sorted(self._why.items()):
            yield f"{why} changed: {n:,} rows are redone; calls that stay the same come from the cache"


def calls_of(desk: Session, plan: Plan, *, answered: bool) -> Range:
    """The fewest and the most calls of a row, retries and re-asks apart. `answered`: it has a response."""
    panel, cast = desk.common_panel()
    weighs = isinstance(plan, Adaptive)
    asks = {seat.name: seat.repeats * calls_a_look(cast.graders[seat.name]) for seat in panel if not seat.model_free}
    looks = sum(asks[seat.name] for seat in panel if not (seat.model_free or (weighs and seat.compares)))
    drafts = getattr(plan, "n", getattr(plan.base_plan if isinstance(plan, Adaptive) else plan, "drafts", 1))
    once = sum(calls_a_task(grader) for grader in cast.graders.values())
    if desk.writer is None:
        return (once + looks, once + looks) if answered else (0, 0)
    least = once + (looks if answered else drafts * (1 + looks))
    more = 0 if isinstance(plan, BestOfN) else desk.options.max_iterations
    duels = DUEL * sum(asks.get(seat.name, 0) for seat in panel if seat.compares) if weighs else 0
    return least, least + more * (1 + looks) + duels


def tokens_of(desk: Session, survey: Survey) -> Range:
    """Tokens of a call, roughly: the prompt and a short answer; or with a judge's instructions, and all that is allowed."""
    prompt = survey.prompt_bytes // max(1, survey.total) // CHARS_PER_TOKEN + 1
    most = desk.options.max_tokens or DEFAULT_OUTPUT_TOKENS
    return prompt + LEAST_OUTPUT, prompt + PROMPT + 2 * most


def cost_of(desk: Session, calls: Range, tokens: Range) -> tuple[float, float] | None:
    """USD for so many tokens, at the dearest price of a model that is asked: all read, or half of them written."""
    _, cast = desk.common_panel()
    prices = [line.price for line in (cast.writer, *cast.judges.values()) if line]
    if not calls[1] or not prices:
        return 0.0, 0.0
    ends = Usage(calls[0], tokens[0], 0), Usage(calls[1], tokens[1] // 2, tokens[1] // 2)
    costs = [price.cost(end) if price else None for price in prices for end in ends]
    known = [cost for cost in costs if cost is not None]
    return (min(known), max(known)) if len(known) == len(costs) else None
