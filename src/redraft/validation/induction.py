"""A rubric from labelled data: propose criteria, see how far the judge that uses them agrees with people, revise.

The cases are split three ways by the hash of their ids: examples that the proposing model is shown, cases on which the
rubric is chosen, and cases that are looked at once, at the end, for the agreement that is reported. Choosing and
reporting on the same rows would promise too much. The start is judged on the same rows as the rubric it became.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from ..casting import Desk
from ..contracts import Reply, Request
from ..core.errors import ConfigError
from ..graders import Criterion, Judge, Rubric
from ..graders.asking import ask_strictly
from ..graders.envelope import cut_middle, enclose, fresh_nonce, notice
from ..graders.reading import Unreadable, read_object, text
from ..perform import Line, Tab
from .cases import Case, Verdict
from .estimates import Measure, Row
from .judging import Bench
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


@dataclass(frozen=True)
class Induced:
    """A rubric and the agreement that its judge reached on rows nobody had looked at, beside that of the start.

    `rounds` are the agreements by which it was chosen, the start's first. `improved`: whether anything beat the start.
    """

    rubric: Rubric
    reached: Measure
    began: Measure
    rounds: tuple[Measure, ...]
    improved: bool


@dataclass
class Induction:
    """The search for a rubric. `rounds` is how many proposals are tried at most; it stops when agreement no longer rises."""

    desk: Desk
    cases: Sequence[Case]
    start: Rubric
    rounds: int = 4
    told: Callable[[str, Measure], object] = lambda _, __: None
    _parts: tuple[list[Case], list[Case], list[Case]] = field(init=False)

    def __post_init__(self) -> None:
        if len(self.cases) < FEWEST:
            raise ConfigError(f"a rubric is drawn from at least {FEWEST} labelled rows, got {len(self.cases)}")
        if self.cases[0].kind == "ranking":
            raise ConfigError("a rubric is drawn from scores, pass and fail, or pairs; rankings are not supported")
        self._parts = split(self.cases)

    async def run(self) -> Induced:
        """Propose, choose, and measure once more on rows not used before."""
        _, choosing, testing = self._parts
        best, value = self.start, await self._agreement(self.start, choosing)
        values = [value]
        self.told("start", value)
        for n in range(1, self.rounds + 1):
            proposed = await self._propose(best, first=n == 1)
            agreement = await self._agreement(proposed, choosing)
            values.append(agreement)
            self.told(f"proposal {n}", agreement)
            if (agreement.value or 0.0) <= (value.value or 0.0):
                break
            best, value = proposed, agreement
        began = await self._agreement(self.start, testing)
        reached = began if best is self.start else await self._agreement(best, testing)
        return Induced(best, reached, began, tuple(values), best is not self.start)

    async def _agreement(self, rubric: Rubric, cases: Sequence[Case]) -> Measure:
        said = await self._said(rubric, cases)
        if not said:
            raise ConfigError("nothing could be judged: is there a model that answers?")
        return report(cases, [v for held in said.values() for v in held]).headline

    async def _said(self, rubric: Rubric, cases: Sequence[Case]) -> dict[str, list[Verdict]]:
        bench = Bench(self.desk.with_graders(Judge(rubric, rubric.name)))
        said: defaultdict[str, list[Verdict]] = defaultdict(list)
        async for judged in bench.judge(cases):
            for verdict in judged.verdicts:
                said[judged.case].append(verdict)
        return dict(said)

    async def _propose(self, rubric: Rubric, *, first: bool) -> Rubric:
        """The model's criteria from examples; or, once a rubric was tried, from where its judge and people disagree."""
        examples = self._parts[0]
        if first:
            shown, told = examples[:SHOWN], [ASKED]
        else:
            said = await self._said(rubric, examples)
            shown = disagreements([Row(c, tuple(said.get(c.id, ()))) for c in examples])[:SHOWN]
            told = [ASKED, REVISED, *(f"- {c.name}: {c.description}" for c in rubric.criteria)]
        texts = [part for case in shown for part in _materials(case)]
        nonce = fresh_nonce(texts)
        lines = [*told, notice(nonce), *(_example(case, n, nonce) for n, case in enumerate(shown, 1))]
        prompt = "\n\n".join([*lines, f"Answer with one JSON object only:\n{FORM}"])
        request = Request(({"role": "user", "content": prompt},), 0.0, 2048, schema=SCHEMA, nonce=nonce)
        return await ask_strictly(Tab(self._writer), request, lambda reply: read(reply, self.start.name))

    @property
    def _writer(self) -> Line:
        return self.desk.line(self.desk.writer)


def split(cases: Sequence[Case]) -> tuple[list[Case], list[Case], list[Case]]:
    """Examples, cases to choose by, cases to report on: two fifths, three tenths, three tenths, by the hash of the id."""
    ordered = sorted(cases, key=lambda case: sha256(case.id.encode("utf-8", "backslashreplace")).digest())
    a, b = len(ordered) * 2 // 5, len(ordered) * 7 // 10
    return ordered[:a], ordered[a:b], ordered[b:]


def disagreements(rows: Sequence[Row]) -> list[Case]:
    """The cases in the order of how far grader and people are apart, the widest first."""
    return [row.case for row in sorted(rows, key=_apart, reverse=True)]


def _apart(row: Row) -> float:
    if row.case.kind == "pair":
        return float(preferred(row) != winner(row.case.places))
    score = row.score()
    return 0.0 if score is None else abs(score - row.label)


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


def read(reply: Reply, name: str) -> Rubric:
    """The rubric in a reply. Raises Unreadable."""
    rows = read_object(reply.text).get("criteria")
    if not isinstance(rows, list) or not 0 < len(rows) <= MOST_CRITERIA:
        raise Unreadable(f"'criteria' must be a list of 1 to {MOST_CRITERIA}")
    criteria = tuple(_criterion(row) for row in rows)
    if len({c.name for c in criteria}) < len(criteria):
        raise Unreadable("two criteria have the same name")
    return Rubric(name, criteria)


def _criterion(row: Any) -> Criterion:
    if not isinstance(row, dict):
        raise Unreadable("each criterion is an object")
    name, description, weight = text(row, "name"), text(row, "description"), row.get("weight", 1)
    if not name or not description or len(name) > LONGEST_NAME or len(description) > 2 * LONGEST_CRITERION:
        raise Unreadable("each criterion needs a short name and a description")
    if isinstance(weight, bool) or weight not in {1, 2, 3}:
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


def as_toml(induced: Induced, data: str) -> str:
    """The rubric as a file that `--rubric` takes, with what was measured above it."""
    lines = [
        f"# Drawn from {_quoted(data)}. On {induced.reached.n} rows that it was not chosen by:",
        f"# {induced.reached.name} {_value(induced.reached)}, where the rubric it started from reached {_value(induced.began)}.",
        f"name = {_quoted(induced.rubric.name)}",
    ]
    for c in induced.rubric.criteria:
        lines += [
            "",
            "[[criteria]]",
            f"name = {_quoted(c.name)}",
            f"description = {_quoted(c.description)}",
            f"weight = {c.weight:g}",
        ]
    return "\n".join(lines) + "\n"


def _value(x: Measure) -> str:
    span = "" if x.low is None or x.high is None else f" ({x.low:.2f} to {x.high:.2f})"
    return ("unknown" if x.value is None else f"{x.value:.2f}") + span


def _quoted(foreign: str) -> str:
    """A TOML basic string: one line, every control character and surrogate escaped."""
    import json

    safe = foreign.encode("utf-8", "replace").decode()
    return json.dumps(safe, ensure_ascii=False).replace("\x7f", "\\u007f")
