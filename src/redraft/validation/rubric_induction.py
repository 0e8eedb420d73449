"""A rubric from labelled data: propose criteria, see how far the judge that uses them agrees with people, revise.

The cases are split three ways by the hash of their ids: examples that the proposing model is shown, cases on which the
rubric is chosen, and cases that are looked at once, at the end, for the agreement that is reported. Choosing and
reporting on the same rows would promise too much. The start is judged on the same rows as the rubric it became, and
stays unless that is better there. Where money or time ends first, what was chosen so far is handed over.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from time import monotonic
from typing import Any

from ..core.records import StopReason
from ..errors import BudgetExhaustedError, ConfigError, ModelError
from ..graders import Criterion, Judge, Rubric
from ..graders.judging.json_reader import Unreadable, read_object, text
from ..graders.judging.prompt import cut_middle, enclose, fresh_nonce, notice
from ..graders.judging.structured import ask_strictly
from ..middleware import until
from ..perform import Line, Tab
from ..protocols import Reply, Request
from ..session import Desk
from ..text import plain
from .cases import Case, Verdict
from .estimates import Measure, Row
from .harness import Bench
from .report import preferred, report, winner

FEWEST = 24  # cases, so that each of the three parts can say something
MOST_CRITERIA = 6
LONGEST_NAME, LONGEST_CRITERION = 40, 300  # characters
SHOWN = 10  # examples in one request
LONGEST_EXAMPLE = 1500  # characters of one answer

ASKED = (
    "People judged answers. Find out by what: write criteria by which a careful judge, who reads one answer at a time and "
    "gives each criterion 0 to 5, would come to the same view. Each criterion is one thing that can be seen in the answer, "
    "told in a sentence or two, with what a 0 and a 5 look like. Write few (1 to 6), and none twice."
)
REVISED = "A judge used the criteria below and disagreed with people on these answers. Change what misled it; keep what serves."
FORM = '{"criteria": [{"name": "short_name", "description": "what is judged, what 0 and 5 look like", "weight": 1-3}]}'


UNKNOWN = Measure("agreement", None)


@dataclass(frozen=True)
class Induced:
    """A rubric, the agreement by which it was chosen, and that which its judge reached on rows nobody had looked at.

    `began` is what the start reached on those rows, `rounds` are all agreements on the rows to choose by, the start's
    first. `improved`: whether the rubric is better than the start, else it is the start; on rows nobody had looked at, or,
    where the search ended early (`ends` says why), on those to choose by. An agreement is unknown where nothing was
    judged, and of fewer rows (`n`) where its judging was cut short. `note`: what went wrong, in words.
    """

    rubric: Rubric
    chosen: Measure
    reached: Measure
    began: Measure
    rounds: tuple[Measure, ...]
    improved: bool
    ends: StopReason | None = None
    note: str = ""


@dataclass
class Induction:
    """The search for a rubric. `rounds` is how many proposals are tried at most; it stops when agreement no longer rises.

    The budget and the deadline of the desk are those of the whole search. Raises ConfigError for too few rows, or such
    with rankings.
    """

    desk: Desk
    cases: Sequence[Case]
    start: Rubric
    rounds: int = 4
    told: Callable[[str, Measure], object] = lambda _, __: None
    _parts: tuple[list[Case], list[Case], list[Case]] = field(init=False)
    _moment: float | None = field(default=None, init=False)
    _ends: StopReason | None = field(default=None, init=False)
    _note: str = field(default="", init=False)

    def __post_init__(self) -> None:
        if len(self.cases) < FEWEST:
            raise ConfigError(f"a rubric is drawn from at least {FEWEST} labelled rows, got {len(self.cases)}")
        if self.cases[0].kind == "ranking":
            raise ConfigError("a rubric is drawn from scores, pass and fail, or pairs; rankings are not supported")
        self._parts = split(self.cases)

    async def run(self) -> Induced:
        """Propose, choose, and measure once more on rows not used before.

        Raises a ModelError when there is not even a first proposal.
        """
        seconds = self.desk.options.deadline
        self._moment = None if seconds is None else monotonic() + seconds
        best, chosen, rounds = await self._search()
        began = await self._tested("start", self.start)
        reached = began if best is self.start else await self._tested("the best proposal", best)
        improved = better(chosen, rounds[0]) if self._ends else better(reached, began)
        kept = (best, chosen, reached) if improved else (self.start, rounds[0], began)
        return Induced(*kept, began, tuple(rounds), improved, self._ends, self._note)

    async def _search(self) -> tuple[Rubric, Measure, list[Measure]]:
        """The best rubric by the rows to choose by, its agreement there, and that of all that were tried."""
        best, value = self.start, await self._chosen_by("start", self.start)
        rounds = [value]
        for n in range(1, self.rounds + 1):
            proposed = None if self._ends else await self._proposed(best, n)
            if proposed is None:
                break
            rounds.append(await self._chosen_by(f"proposal {n}", proposed))
            if self._ends or not promises_more(rounds[-1], value):
                break
            best, value = proposed, rounds[-1]
        return best, value, rounds

    async def _chosen_by(self, what: str, rubric: Rubric) -> Measure:
        agreement = await self._agreement(rubric, self._parts[1])
        self.told(what, agreement)
        return agreement

    async def _tested(self, what: str, rubric: Rubric) -> Measure:
        if self._ends:
            return UNKNOWN
        agreement = await self._agreement(rubric, self._parts[2])
        self.told(f"{what}, on rows not used before", agreement)
        return agreement

    async def _agreement(self, rubric: Rubric, cases: Sequence[Case]) -> Measure:
        said = await self._said(rubric, cases)
        return report(cases, [v for held in said.values() for v in held]).headline if said else UNKNOWN

    async def _said(self, rubric: Rubric, cases: Sequence[Case]) -> dict[str, list[Verdict]]:
        """What a judge with this rubric says, by case. When that is nothing, the search is over."""
        said: defaultdict[str, list[Verdict]] = defaultdict(list)
        lost = ""
        async for judged in self._bench(rubric).judge(cases):
            self._ends = self._ends or judged.ends
            lost = judged.lost or lost
            for verdict in judged.verdicts:
                said[judged.case].append(verdict)
        self._ends = self._ends or (None if said else StopReason.FAILED)
        self._note = self._note or (lost if self._ends else "")
        return dict(said)

    def _bench(self, rubric: Rubric) -> Bench:
        """Where a judge with this rubric is asked, for as long as there is time."""
        desk = self.desk.with_graders(Judge(rubric, rubric.name))
        if self._moment is not None:
            desk.options = replace(desk.options, deadline=max(0.0, self._moment - monotonic()))
        return Bench(desk)

    async def _proposed(self, rubric: Rubric, n: int) -> Rubric | None:
        """Proposal `n`; None where there is none: money or time is out, it cannot be read, or nothing needs changing."""
        try:
            return await until(self._propose, self._moment)((rubric, n == 1))
        except BudgetExhaustedError as error:
            self._ends = StopReason.DEADLINE if error.what == "deadline" else StopReason.BUDGET
        except ModelError as error:
            if n == 1:
                raise
            self._note = f"there is no proposal {n}: {error}"
        return None

    async def _propose(self, asked: tuple[Rubric, bool]) -> Rubric | None:
        """The model's criteria from examples; or, once a rubric was tried, from where its judge and people disagree."""
        rubric, first = asked
        shown = self._parts[0] if first else await self._misses(rubric)
        if not shown or self._ends:
            return None
        told = [ASKED] if first else [ASKED, REVISED, *(f"- {c.name}: {c.description}" for c in rubric.criteria)]
        request = asking(shown[:SHOWN], told)
        return await ask_strictly(Tab(self._writer), request, lambda reply: read(reply, self.start))

    async def _misses(self, rubric: Rubric) -> list[Case]:
        said = await self._said(rubric, self._parts[0])
        return disagreements([Row(case, tuple(said[case.id])) for case in self._parts[0] if case.id in said])

    @property
    def _writer(self) -> Line:
        return self.desk.line(self.desk.writer)


def better(one: Measure, other: Measure) -> bool:
    """Whether one agreement is higher than another: both must be known."""
    return one.value is not None and other.value is not None and one.value > other.value


def promises_more(one: Measure, other: Measure) -> bool:
    """Whether it is worth going on with one: it is better, or the only one that is known."""
    return better(one, other) or (one.value is not None and other.value is None)


def asking(shown: Sequence[Case], told: Sequence[str]) -> Request:
    """What the proposing model is asked: what to do, then labelled cases as data, then how to answer."""
    nonce = fresh_nonce(part for case in shown for part in _materials(case))
    lines = [*told, notice(nonce), *(_example(case, n, nonce) for n, case in enumerate(shown, 1))]
    prompt = "\n\n".join([*lines, f"Answer with one JSON object only:\n{FORM}"])
    return Request(({"role": "user", "content": prompt},), 0.0, 2048, schema=SCHEMA, nonce=nonce)


def split(cases: Sequence[Case]) -> tuple[list[Case], list[Case], list[Case]]:
    """Examples, cases to choose by, cases to report on: two fifths, three tenths, three tenths, by the hash of the id."""
    ordered = sorted(cases, key=lambda case: sha256(case.id.encode("utf-8", "backslashreplace")).digest())
    a, b = len(ordered) * 2 // 5, len(ordered) * 7 // 10
    return ordered[:a], ordered[a:b], ordered[b:]


def disagreements(rows: Sequence[Row]) -> list[Case]:
    """The cases on which grader and people are apart, the widest first.

    Pairs: it does not prefer what they prefer. Pass and fail: its score is far from 1 or 0. Scores, where people have a
    unit of their own: the places among all rows, since it is their order that counts.
    """
    kind = rows[0].case.kind if rows else "pair"
    gaps = _unlike(rows) if kind == "pair" else _apart(rows, by_place=kind == "score")
    return [case for gap, case in sorted(gaps, key=lambda found: found[0], reverse=True) if gap > 0]


def _unlike(rows: Sequence[Row]) -> list[tuple[float, Case]]:
    return [(float(preferred(row) != winner(row.case.places)), row.case) for row in rows]


def _apart(rows: Sequence[Row], *, by_place: bool) -> list[tuple[float, Case]]:
    """How far score and label are apart, of the rows that have a score."""
    known = [(score, row) for row in rows if (score := row.score()) is not None]
    scores, labels = [score for score, _ in known], [row.label for _, row in known]
    if by_place:
        scores, labels = _places(scores), _places(labels)
    return [(abs(s - p), row.case) for s, p, (_, row) in zip(scores, labels, known, strict=True)]


def _places(values: Sequence[float]) -> list[float]:
    """The place of each among all, equal values sharing their mean place."""
    ordered = sorted(values)
    return [(bisect_left(ordered, value) + bisect_right(ordered, value)) / 2 for value in values]


def _materials(case: Case) -> Iterator[str]:
    yield case.task.prompt
    yield from case.responses


def _example(case: Case, n: int, nonce: str) -> str:
    """A labelled case as the proposing model is shown it."""
    task = enclose(f"task-{n}", cut_middle(case.task.prompt, LONGEST_EXAMPLE)[0], nonce)
    answers = [enclose(f"answer-{n}-{i}", cut_middle(r, LONGEST_EXAMPLE)[0], nonce) for i, r in enumerate(case.responses, 1)]
    return "\n".join([task, *answers, f"People: {_label(case)}"])


def _label(case: Case) -> str:
    if case.kind == "pair":
        return {"first": "answer 1 is better", "second": "answer 2 is better", "tie": "both are as good"}[winner(case.places)]
    if case.kind == "pass":
        return "acceptable" if case.label else "not acceptable"
    return f"{case.label:g}"


def read(reply: Reply, start: Rubric) -> Rubric:
    """The rubric in a reply: its criteria in place of those of the start, and of what goes with them. Raises Unreadable."""
    rows = read_object(reply.text).get("criteria")
    if not isinstance(rows, list) or not 0 < len(rows) <= MOST_CRITERIA:
        raise Unreadable(f"'criteria' must be a list of 1 to {MOST_CRITERIA}")
    criteria = tuple(_criterion(row) for row in rows)
    if len({c.name for c in criteria}) < len(criteria):
        raise Unreadable("two criteria have the same name")
    return replace(start, criteria=criteria, examples=(), template=None)


def _criterion(row: Any) -> Criterion:
    if not isinstance(row, dict):
        raise Unreadable("each criterion is an object")
    name, description, weight = text(row, "name"), text(row, "description"), row.get("weight", 1)
    if not name or not description or len(name) > LONGEST_NAME or len(description) > 2 * LONGEST_CRITERION:
        raise Unreadable("each criterion needs a short name and a description")
    if isinstance(weight, bool) or weight not in (1, 2, 3):
        raise Unreadable(f"'weight' must be 1, 2 or 3, got {weight!r}")
    return Criterion(name, description, float(weight))


_ROW = {
    "name": {"type": "string", "maxLength": LONGEST_NAME},
    "description": {"type": "string", "maxLength": LONGEST_CRITERION},
    "weight": {"type": "integer", "enum": [1, 2, 3]},
}
SCHEMA = {
    "type": "object",
    "properties": {
        "criteria": {
            "type": "array",
            "minItems": 1,
            "maxItems": MOST_CRITERIA,
            "items": {"type": "object", "properties": _ROW, "required": list(_ROW), "additionalProperties": False},
        }
    },
    "required": ["criteria"],
    "additionalProperties": False,
}


def as_toml(found: Induced, data: str) -> str:
    """The rubric as a file that `--rubric` takes, with what was measured above it. Raises ConfigError (see `Rubric.to_toml`)."""
    lines = "".join(f"# {line}\n" for line in _measured(found, data))
    return f"{lines}\n{found.rubric.to_toml()}"


def _measured(found: Induced, data: str) -> Iterator[str]:
    yield f"Drawn from {json.dumps(plain(data), ensure_ascii=False)}."
    if found.ends:
        yield f"The search ended early: {found.ends}."
    if not found.improved:
        yield "Nothing was better than this rubric, which the search started from."
    yield _told("chosen by", found.chosen, found.rounds[0], besides=found.improved)
    yield _told("not chosen by", found.reached, found.began, besides=found.improved)


def _told(rows: str, one: Measure, start: Measure, *, besides: bool) -> str:
    beside = f", where the rubric it started from reached {_value(start)} on {start.n}" if besides else ""
    return f"On {one.n} rows that it was {rows}: {one.name} {_value(one)}{beside}."


def _value(x: Measure) -> str:
    span = "" if x.low is None or x.high is None else f" ({x.low:.2f} to {x.high:.2f})"
    return ("unknown" if x.value is None else f"{x.value:.2f}") + span
