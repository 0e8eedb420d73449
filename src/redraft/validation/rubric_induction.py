"""Rubric induction: propose criteria from labelled data, measure how far a judge that uses them
agrees with people, revise.

The cases are split by the hash of their IDs into examples for the proposing model, cases on which
the rubric is selected, and test cases that are used once, at the end, for the reported agreement:
the agreement on the selection cases is biased upwards. The starting rubric is measured on the same
test cases and is returned unless the new one is better there. If the budget or the time is used up
earlier, the best rubric so far is returned.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from time import monotonic
from typing import Any

from ..base.text import format_estimate, pluralize, strip_control_sequences
from ..errors import BudgetExhaustedError, ConfigError, ModelError
from ..graders import Criterion, Judge, Rubric
from ..graders.cards import Measure
from ..graders.judging.prompt import data_notice, enclose, fresh_nonce, truncate_middle
from ..graders.judging.structured import (
    UnreadableOutput,
    ask_for_json,
    object_schema,
    read_object,
    string_at,
    text_schema,
)
from ..loop.records import StopReason
from ..middleware.timeout import enforce_deadline
from ..protocols import Reply, Request
from ..session.perform import StepClient
from ..session.session import Session
from .cases import (
    CaseVerdicts,
    LabelledCase,
    Verdict,
    better_of_two,
    preferred_response,
)
from .report import build_report
from .rubric_proposal import WEIGHT_SCHEMA, WEIGHTS, criteria_schema, parse_criteria
from .run import GraderHarness
from .statistics import mean_ranks

MIN_CASES = 24  # with fewer cases each of the three parts is too small
MAX_NAME_CHARS, MAX_CRITERION_CHARS = 40, 300
MAX_EXAMPLES = 10  # in one request
MAX_EXAMPLE_CHARS = 1500  # of one answer

PROPOSE_PROMPT = (
    "People judged answers. Work out what decided their judgement, and write criteria with which "
    "a careful judge, who reads one answer at a time and gives each criterion 0 to 5, would agree "
    "with them. Each criterion is about one thing that can be seen in the answer. Describe it in "
    "one or two sentences, with what a 0 and a 5 look like. Write 1 to 6 criteria, none twice."
)
REVISE_PROMPT = (
    "A judge used the criteria below and disagreed with people on these answers. Change what "
    "misled the judge, and keep the rest."
)
ANSWER_FORMAT = (
    '{"criteria": [{"name": "short_name", "description": "what is judged, what 0 and 5 look '
    'like", "weight": 1-3}]}'
)


UNKNOWN_AGREEMENT = Measure("agreement", None)


@dataclass(frozen=True)
class InducedRubric:
    """A rubric, the agreement by which it was selected, and the agreement on the test cases.

    `start_agreement` is that of the starting rubric on the test cases, `round_agreements` are all
    agreements on the selection cases, the start's first. `improved` says whether the rubric is
    better than the start (else it is the start): on the test cases or, if the search ended early
    (`stop_reason`), on the selection cases. An agreement is unknown if nothing was judged, and is
    of fewer rows (`n`) if judging was interrupted. `note` says what went wrong.
    """

    rubric: Rubric
    selection_agreement: Measure
    test_agreement: Measure
    start_agreement: Measure
    round_agreements: tuple[Measure, ...]
    improved: bool
    stop_reason: StopReason | None = None
    note: str = ""


@dataclass
class RubricInduction:
    """The search for a rubric. It tries at most `max_rounds` proposals, and stops when the
    agreement no longer rises.

    The budget and the deadline of the session apply to the whole search. Raises ConfigError for too
    few rows, or for rankings.
    """

    session: Session
    cases: Sequence[LabelledCase]
    start: Rubric
    max_rounds: int = 4
    on_agreement: Callable[[str, Measure], object] = lambda _, __: None
    _splits: tuple[list[LabelledCase], list[LabelledCase], list[LabelledCase]] = field(init=False)
    _deadline: float | None = field(default=None, init=False)
    _stop_reason: StopReason | None = field(default=None, init=False)
    _note: str = field(default="", init=False)

    def __post_init__(self) -> None:
        if len(self.cases) < MIN_CASES:
            raise ConfigError(
                f"inducing a rubric needs at least {MIN_CASES} labelled rows, got {len(self.cases)}"
            )
        if self.cases[0].kind == "ranking":
            raise ConfigError(
                "a rubric is induced from scores, pass and fail, or pairs; rankings are not "
                "supported"
            )
        self._splits = split_cases(self.cases)

    async def run(self) -> InducedRubric:
        """Propose, select, and measure once more on the test cases.

        Raises a ModelError if there is not even a first proposal.
        """
        seconds = self.session.options.deadline
        self._deadline = None if seconds is None else monotonic() + seconds
        best, selected, rounds = await self._search()
        start = await self._measure_test("start", self.start)
        tested = (
            start if best is self.start else await self._measure_test("the best proposal", best)
        )
        improved = is_better(selected, rounds[0]) if self._stop_reason else is_better(tested, start)
        result = (best, selected, tested) if improved else (self.start, rounds[0], start)
        return InducedRubric(*result, start, tuple(rounds), improved, self._stop_reason, self._note)

    async def _search(self) -> tuple[Rubric, Measure, list[Measure]]:
        """Return the best rubric on the selection cases, its agreement there, and the agreements of
        all tried rubrics.
        """
        best, value = self.start, await self._measure_selection("start", self.start)
        rounds = [value]
        for n in range(1, self.max_rounds + 1):
            proposed = None if self._stop_reason else await self._try_propose(best, n)
            if proposed is None:
                break
            rounds.append(await self._measure_selection(f"proposal {n}", proposed))
            if self._stop_reason or not is_promising(rounds[-1], value):
                break
            best, value = proposed, rounds[-1]
        return best, value, rounds

    async def _measure_selection(self, label: str, rubric: Rubric) -> Measure:
        agreement = await self._measure_agreement(rubric, self._splits[1])
        self.on_agreement(label, agreement)
        return agreement

    async def _measure_test(self, label: str, rubric: Rubric) -> Measure:
        if self._stop_reason:
            return UNKNOWN_AGREEMENT
        agreement = await self._measure_agreement(rubric, self._splits[2])
        self.on_agreement(f"{label}, on rows not used before", agreement)
        return agreement

    async def _measure_agreement(self, rubric: Rubric, cases: Sequence[LabelledCase]) -> Measure:
        verdicts = await self._judge_cases(rubric, cases)
        all_verdicts = [v for by_case in verdicts.values() for v in by_case]
        return build_report(cases, all_verdicts).headline if all_verdicts else UNKNOWN_AGREEMENT

    async def _judge_cases(
        self, rubric: Rubric, cases: Sequence[LabelledCase]
    ) -> dict[str, list[Verdict]]:
        """Return the verdicts of a judge with this rubric, by case. If there are none, the search
        ends.
        """
        verdicts: defaultdict[str, list[Verdict]] = defaultdict(list)
        outage = ""
        async for judged in self._harness(rubric).judge(cases):
            self._stop_reason = self._stop_reason or judged.stop_reason
            outage = judged.outage or outage
            for verdict in judged.verdicts:
                verdicts[judged.case].append(verdict)
        self._stop_reason = self._stop_reason or (None if verdicts else StopReason.FAILED)
        self._note = self._note or (outage if self._stop_reason else "")
        return dict(verdicts)

    def _harness(self, rubric: Rubric) -> GraderHarness:
        """Return a harness for a judge with this rubric and the remaining time."""
        options = self.session.options
        if self._deadline is not None:
            options = replace(options, deadline=max(0.0, self._deadline - monotonic()))
        return GraderHarness(Session(options, self.session.models, Judge(rubric, rubric.name)))

    async def _try_propose(self, rubric: Rubric, n: int) -> Rubric | None:
        """Return proposal `n`; None if the budget or the time is used up, it cannot be read, or
        there are no disagreements.
        """
        try:
            return await enforce_deadline(self._propose, self._deadline)((rubric, n == 1))
        except BudgetExhaustedError as error:
            self._stop_reason = (
                StopReason.DEADLINE if error.limit == "deadline" else StopReason.BUDGET
            )
        except ModelError as error:
            if n == 1:
                raise
            self._note = f"there is no proposal {n}: {error}"
        return None

    async def _propose(self, start: tuple[Rubric, bool]) -> Rubric | None:
        """Return the model's criteria from examples or, after the first round, from cases where
        judge and people disagree.
        """
        rubric, is_first = start
        shown = self._splits[0] if is_first else await self._find_disagreements(rubric)
        if not shown or self._stop_reason:
            return None
        revision = (
            []
            if is_first
            else [REVISE_PROMPT, *(f"- {c.name}: {c.description}" for c in rubric.criteria)]
        )
        request = proposal_request(shown[:MAX_EXAMPLES], [PROPOSE_PROMPT, *revision])
        parse = partial(parse_rubric, start=self.start)
        return await ask_for_json(
            StepClient(self.session.models.writing_client),
            request,
            parse,
            subject="the proposed rubric",
            params="model_params",
        )

    async def _find_disagreements(self, rubric: Rubric) -> list[LabelledCase]:
        verdicts = await self._judge_cases(rubric, self._splits[0])
        return disagreements(
            [
                CaseVerdicts(case, tuple(verdicts[case.id]))
                for case in self._splits[0]
                if case.id in verdicts
            ]
        )


def is_better(one: Measure, other: Measure) -> bool:
    """Return whether both agreements are known and the first is higher."""
    return one.value is not None and other.value is not None and one.value > other.value


def is_promising(one: Measure, other: Measure) -> bool:
    """Return whether the first agreement is better, or only the first is known."""
    return is_better(one, other) or (one.value is not None and other.value is None)


def proposal_request(examples: Sequence[LabelledCase], instructions: Sequence[str]) -> Request:
    """Return the request to the proposing model: instructions, labelled cases as data, answer
    format.
    """
    nonce = fresh_nonce(part for case in examples for part in _case_texts(case))
    lines = [
        *instructions,
        data_notice(nonce),
        *(_format_case(case, n, nonce) for n, case in enumerate(examples, 1)),
    ]
    prompt = "\n\n".join([*lines, f"Answer with one JSON object only:\n{ANSWER_FORMAT}"])
    return Request(({"role": "user", "content": prompt},), 0.0, schema=ANSWER_SCHEMA, nonce=nonce)


def split_cases(
    cases: Sequence[LabelledCase],
) -> tuple[list[LabelledCase], list[LabelledCase], list[LabelledCase]]:
    """Return examples, selection cases and test cases: two fifths, three tenths, three tenths, by
    the hash of the id.
    """
    ordered = sorted(
        cases, key=lambda case: sha256(case.id.encode("utf-8", "backslashreplace")).digest()
    )
    a, b = len(ordered) * 2 // 5, len(ordered) * 7 // 10
    return ordered[:a], ordered[a:b], ordered[b:]


def disagreements(rows: Sequence[CaseVerdicts]) -> list[LabelledCase]:
    """Return the cases on which grader and people disagree, the largest disagreement first.

    Pairs: the grader does not prefer what people prefer. Pass or fail: the distance of its score
    from 1 or 0. Scores, for which people use another scale: the difference of the ranks among all
    rows.
    """
    kind = rows[0].case.kind if rows else "pair"
    if kind == "pair":
        return [
            row.case for row in rows if preferred_response(row) != better_of_two(row.case.ranks)
        ]
    gaps = _score_gaps(rows, by_rank=kind == "score")
    return [case for gap, case in sorted(gaps, key=lambda pair: pair[0], reverse=True) if gap > 0]


def _score_gaps(rows: Sequence[CaseVerdicts], *, by_rank: bool) -> list[tuple[float, LabelledCase]]:
    """Return the distance of score and label, for the rows that have a score."""
    known = [(score, row) for row in rows if (score := row.mean_score()) is not None]
    scores, labels = [score for score, _ in known], [row.label for _, row in known]
    if by_rank:
        scores, labels = map(mean_ranks, (scores, labels))
    return [(abs(s - p), row.case) for s, p, (_, row) in zip(scores, labels, known, strict=True)]


def _case_texts(case: LabelledCase) -> Iterator[str]:
    yield case.task.prompt
    yield from case.responses


def _format_case(case: LabelledCase, n: int, nonce: str) -> str:
    """Return a labelled case as the proposing model sees it."""
    task = enclose(f"task-{n}", truncate_middle(case.task.prompt, MAX_EXAMPLE_CHARS)[0], nonce)
    answers = [
        enclose(f"answer-{n}-{i}", truncate_middle(r, MAX_EXAMPLE_CHARS)[0], nonce)
        for i, r in enumerate(case.responses, 1)
    ]
    return "\n".join([task, *answers, f"People: {_format_label(case)}"])


def _format_label(case: LabelledCase) -> str:
    if case.kind == "pair":
        return {
            "first": "answer 1 is better",
            "second": "answer 2 is better",
            "tie": "both are as good",
        }[better_of_two(case.ranks)]
    if case.kind == "pass":
        return "acceptable" if case.label else "not acceptable"
    return f"{case.label:g}"


def parse_rubric(reply: Reply, start: Rubric) -> Rubric:
    """Return the starting rubric with the criteria in a reply, without examples and template.
    Raises UnreadableOutput.
    """
    criteria = parse_criteria(read_object(reply.text), _parse_criterion)
    return replace(start, criteria=criteria, examples=(), template=None)


def _parse_criterion(row: Mapping[str, Any]) -> Criterion:
    name, description, weight = (
        string_at(row, "name"),
        string_at(row, "description"),
        row.get("weight", 1),
    )
    if (
        not name
        or not description
        or len(name) > MAX_NAME_CHARS
        or len(description) > 2 * MAX_CRITERION_CHARS
    ):
        raise UnreadableOutput("each criterion needs a short name and a description")
    if isinstance(weight, bool) or weight not in WEIGHTS:
        raise UnreadableOutput(f"'weight' must be 1, 2 or 3, got {weight!r}")
    return Criterion(name, description, float(weight))


ANSWER_SCHEMA = object_schema(
    criteria=criteria_schema(
        name=text_schema(MAX_NAME_CHARS),
        description=text_schema(MAX_CRITERION_CHARS),
        weight=WEIGHT_SCHEMA,
    )
)


def to_toml(result: InducedRubric, data: str) -> str:
    """Return the rubric as a file for `--rubric`, with its measures as comments. Raises ConfigError
    (see `Rubric.to_toml`).
    """
    lines = "".join(f"# {line}\n" for line in _header_lines(result, data))
    return f"{lines}\n{result.rubric.to_toml()}"


def _header_lines(result: InducedRubric, data: str) -> Iterator[str]:
    yield f"Induced from {json.dumps(strip_control_sequences(data), ensure_ascii=False)}."
    if result.stop_reason:
        yield f"The search ended early: {result.stop_reason}."
    if not result.improved:
        yield "No proposal was better than this rubric, with which the search started."
    yield _agreement_line(
        "selected by",
        result.selection_agreement,
        result.round_agreements[0],
        with_start=result.improved,
    )
    yield _agreement_line(
        "not selected by", result.test_agreement, result.start_agreement, with_start=result.improved
    )


def _agreement_line(role: str, agreement: Measure, start: Measure, *, with_start: bool) -> str:
    comparison = f"; the starting rubric: {_figure(start)} on {start.n}" if with_start else ""
    return (
        f"On {pluralize(agreement.n, 'row')} that it was {role}: {agreement.name} "
        f"{_figure(agreement)}{comparison}."
    )


def _figure(measure: Measure) -> str:
    return format_estimate(measure.value, measure.low, measure.high)
