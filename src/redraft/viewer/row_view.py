"""What the page of one row shows: the trace as values for a template, with every text cut to a
length that a browser can hold.
"""

from __future__ import annotations

import json
import pprint
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from ..base.sync import run_sync
from ..base.word_diff import DiffSpan, word_diff
from ..errors import ConfigError
from ..graders.base import unique_texts
from ..graders.judging.stored_judge import judge_from_data, judge_prompts
from ..graders.registry import resolve_spec
from ..loop.records import Candidate, Failure
from ..loop.task import Message, Task, message_text
from ..loop.trace import PanelGrader, Trace
from ..plans.prompts import Prompts
from ..plans.quality.result_facts import score_interval
from ..requirements import kinds, reads_file
from ..result import Result, diagnosis_text
from ..session.grade_report import GraderFeedback, grader_feedback
from ..session.options import PROMPT_KEYS
from ..usage import Usage, sum_usage
from .charts import CurvePoint, score_curve
from .rows import total_seconds

MAX_TEXT = 60_000  # characters of a text that a page shows
MAX_SNIPPET = 20_000  # characters of a task that a snippet holds
MAX_CANDIDATES = 200
MAX_FAILURES, MAX_HEAT_ROWS, MAX_COMPARISONS = 20, 60, 50  # that a page shows
IN_PROGRESS = "in progress"
WRITING = ("generate", "refine")  # the roles of a model that writes answers
PROVIDER_NOTE = "  # its recorded name: put the provider before it, such as openai:"


@dataclass(frozen=True, slots=True)
class ShownText:
    """A text, or its start, and how many characters are left out."""

    text: str
    omitted: int = 0


def shown_text(text: str, limit: int = MAX_TEXT) -> ShownText:
    """Return a text cut to a limit."""
    return ShownText(text[:limit], max(0, len(text) - limit))


@dataclass(frozen=True, slots=True)
class HeatRow:
    """A grader or a criterion: its score of each answer, in the order of the answers (None:
    unknown).
    """

    name: str
    is_criterion: bool
    must: bool
    scores: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class AnswerView:
    """One answer: how it came about, its score, what it cost, and the prompt that asked for it."""

    candidate: Candidate
    score: float | None
    estimate: float | None
    is_best: bool
    is_unchanged: bool
    grades: tuple[GraderFeedback, ...]
    grade_usage: Usage
    grade_seconds: float | None

    @property
    def best_guess(self) -> float | None:
        """The estimate of its score, or else the score."""
        return self.score if self.estimate is None else self.estimate

    @property
    def origin(self) -> str:
        """How it was made, in words."""
        c = self.candidate
        made = {
            "generate": "draft",
            "refine": "refinement",
            "repair": "repair",
            "given": "given answer",
        }.get(c.role, c.role)
        return made if c.parent is None else f"{made} of {c.parent}"


@dataclass(frozen=True, slots=True)
class Change:
    """The difference of two answers: `before` None if there is nothing to compare with."""

    before: AnswerView | None
    after: AnswerView
    spans: tuple[DiffSpan, ...]
    omitted: int
    added: int
    removed: int
    feedback: tuple[GraderFeedback, ...]

    def side(self, kind: str) -> list[DiffSpan]:
        """Return the spans of one side: those that are the same, and those of this kind."""
        return [span for span in self.spans if span.kind in {"same", kind}]


def answer_views(trace: Trace) -> list[AnswerView]:
    """Return the answers of a trace in order: of a very long one the first ones, and the best."""
    estimates = dict(trace.outcome.estimates) if trace.outcome else {}
    best = trace.best.id if trace.best else None
    return [
        _answer_view(trace, candidate, estimates.get(candidate.id), is_best=candidate.id == best)
        for n, candidate in enumerate(trace.candidates)
        if n < MAX_CANDIDATES or candidate.id == best
    ]


def _answer_view(
    trace: Trace, candidate: Candidate, estimate: float | None, *, is_best: bool
) -> AnswerView:
    unchanged = trace.is_unchanged(candidate)
    feedback = () if unchanged else trace.feedback[candidate.id]
    return AnswerView(
        candidate,
        trace.scores[candidate.id],
        estimate,
        is_best,
        unchanged,
        grader_feedback(trace, candidate.id),
        sum_usage(feedback),
        total_seconds(feedback),
    )


def heat_rows(answers: Sequence[AnswerView]) -> list[HeatRow]:
    """Return the scores by grader and criterion, a row each."""
    rows: dict[tuple[str, str], list[float | None]] = {}
    musts: set[str] = set()
    for place, answer in enumerate(answers):
        for grade in answer.grades:
            parts: list[tuple[str, float | None]] = [
                ("", grade.score),
                *((c.name, c.score) for c in grade.criteria),
            ]
            for name, score in parts:
                rows.setdefault((grade.grader, name), [None] * len(answers))[place] = score
            musts |= {grade.grader} if grade.must else set()
    order = list(dict.fromkeys(grader for grader, _ in rows))
    ordered = sorted(rows.items(), key=lambda item: order.index(item[0][0]))
    return [
        HeatRow(name or grader, bool(name), grader in musts, tuple(scores))
        for (grader, name), scores in ordered
    ]


def change(before: AnswerView | None, after: AnswerView) -> Change:
    """Return the difference of two answers, and the feedback on the first."""
    new = shown_text(after.candidate.display_text)
    if before is None:
        return Change(None, after, (DiffSpan("same", new.text),), new.omitted, 0, 0, ())
    old = shown_text(before.candidate.display_text)
    spans = tuple(word_diff(old.text, new.text))
    counts = {
        kind: sum(len(s.text.split()) for s in spans if s.kind == kind)
        for kind in ("added", "removed")
    }
    return Change(
        before,
        after,
        spans,
        max(old.omitted, new.omitted),
        counts["added"],
        counts["removed"],
        before.grades,
    )


def prompt_messages(trace: Trace, candidate: Candidate) -> Sequence[Message]:
    """Return the messages that asked for an answer; () if no model was asked. Raises ConfigError if
    they cannot be made again.

    They are not recorded: they follow from the records before the answer, and from the templates in
    the settings. Functions of the user are not recorded either, nor the columns of the input that a
    template may show.
    """
    if candidate.role not in WRITING:
        return ()
    n = trace.records.index(candidate)
    before = replace(trace, records=trace.records[:n], resumed_at=min(trace.resumed_at, n))
    prompts = Prompts(*(_recorded_template(trace.settings.get(key)) for key in PROMPT_KEYS))
    parent = None if candidate.parent is None else before.by_id.get(candidate.parent)
    if parent is None:
        return prompts.draft_messages(before)
    return prompts.refinement_messages(before, parent)


def _recorded_template(setting: Any) -> str | None:
    """Return the template of a prompt in the settings of a trace; None for the default. Raises
    ConfigError for a function, of which nothing is recorded.
    """
    match setting:
        case {"template": str() as template} if template:
            return template
    if setting:
        raise ConfigError("the prompt was made by a function, which is not recorded")
    return None


def shown_messages(messages: Sequence[Message]) -> Iterator[tuple[str, ShownText]]:
    """Yield the role and the text of each message; what is no text is shown as JSON."""
    for message in messages:
        content = message.get("content")
        text = (
            message_text(message)
            if isinstance(content, str)
            else json.dumps(content, ensure_ascii=False, default=str)
        )
        if calls := message.get("tool_calls"):
            text = f"{text}\n{json.dumps(calls, ensure_ascii=False, default=str)}"
        yield str(message.get("role", ""))[:40], shown_text(text)


def row_values(trace: Trace) -> dict[str, Any]:
    """Return what the page of a row shows of a trace: its result, its answers and its charts."""
    answers, interval, task = answer_views(trace), score_interval(trace), trace.task
    curve = [CurvePoint(a.candidate.id, a.best_guess, a.origin) for a in answers]
    texts = {"reference": task.reference, "context": task.context, "task": task.prompt}
    if len(task.messages) > 1:
        said = (f"[{role}] {shown.text}" for role, shown in shown_messages(task.messages))
        texts["task"] = "\n\n".join(said)
    return {
        "score": trace.score,
        "interval": interval,
        "uplift": _uplift(trace),
        "stop": str(trace.outcome.reason) if trace.outcome else IN_PROGRESS,
        "outcome": _outcome_text(trace),
        "usage": trace.usage,
        "seconds": total_seconds(trace.records),
        "failures": list(trace.failures.values())[:MAX_FAILURES],
        "answers": answers,
        "heat": heat_rows(answers)[:MAX_HEAT_ROWS],
        "curve": score_curve(curve, trace.best.id if trace.best else None, interval),
        "comparisons": trace.comparisons[:MAX_COMPARISONS],
        **{name: shown_text(text) if text else None for name, text in texts.items()},
    }


def _uplift(trace: Trace) -> float | None:
    first = next(iter(trace.with_estimates.score_history), None)
    return None if trace.score is None or first is None else trace.score - first


def _outcome_text(trace: Trace) -> str:
    if trace.outcome is None:
        return IN_PROGRESS
    return " ".join(filter(None, (trace.outcome.note, diagnosis_text(Result(trace)))))


# ---- a row as code


def snippet(trace: Trace, source: str) -> str:
    """Return Python code that runs the row again: its task, the models that wrote and judged, and
    its graders.

    `source`: the expression whose value is the trace, for a task that is too long to be written
    out. The settings of the run are not recorded, so the code has the default ones. What a file of
    other people must not choose is a comment: graders that are no names, and requirements that read
    files.
    """
    imports, task = ["import redraft"], _task_literal(trace.task)
    if len(task) > MAX_SNIPPET:
        imports.append("from redraft.storage import Journal, read_trace")
        task = f"task = {source}.task"
    own = [grader for grader in trace.panel if grader.name not in trace.task.requirements]
    lines = [
        *imports,
        "",
        task,
        "result = redraft.refine_sync(",
        "    task,",
        *_model_arguments(trace),
        "    graders=[",
        *(f"        {_grader_code(grader)}" for grader in own),
        "    ],",
        ")",
        "print(result.summary())",
    ]
    return "".join(f"{line}\n" for line in lines)


def _model_arguments(trace: Trace) -> Iterator[str]:
    """Yield the arguments for the models that wrote and judged, by their recorded names."""
    steps = (r for r in trace.records if isinstance(r, Candidate | Failure) and r.role in WRITING)
    writers = unique_texts(step.by for step in steps)
    graded = chain.from_iterable(trace.feedback.values())
    judges = unique_texts(each.by for each in graded if each.by not in writers)
    yield f"    model={writers[0]!r},{PROVIDER_NOTE}" if writers else "    model=False,"
    if judges:
        yield f"    judge={judges[0]!r},{PROVIDER_NOTE}"


def _task_literal(task: Task) -> str:
    arguments: dict[str, Any] = {"messages": [dict(message) for message in task.messages]}
    for name in (
        "response",
        "responses",
        "reference",
        "context",
        "tests",
        "metadata",
        "tools",
        "tool_choice",
    ):
        if value := getattr(task, name):
            arguments[name] = list(value) if isinstance(value, tuple) else value
    arguments["requirements"] = [spec for spec in task.requirements if not reads_file(spec)]
    notes = [
        f"    # it also reads a file: {spec!r}" for spec in task.requirements if reads_file(spec)
    ]
    return "\n".join(
        [
            "task = redraft.Task(",
            *(f"    {name}={_literal(value)}," for name, value in arguments.items()),
            *notes,
            ")",
        ]
    )


def _grader_code(grader: PanelGrader) -> str:
    """Return a grader as code: its name, with its weight; a comment for a name that stands for no
    grader that is safe to make.
    """
    name = grader.name.partition("#")[0]
    try:
        is_known = not reads_file(name) and (
            name.partition(":")[0] in kinds() or bool(resolve_spec(name))
        )
    except ConfigError:
        is_known = False
    if not is_known:
        return f"# your own: {grader.name!r}"
    code = repr(name)
    if (grader.weight, grader.repeats) != (1.0, 1):
        code = f"redraft.with_weight({code}, {grader.weight!r}, repeats={grader.repeats!r})"
    return f"redraft.must({code})," if grader.must else f"{code},"


def _literal(value: Any) -> str:
    return pprint.pformat(value, width=100, sort_dicts=False).replace("\n", "\n    ")


# ---- the prompts of judges

NO_PROMPTS = (
    "its prompts cannot be made again: journals describe judges with a rubric or a template, not "
    "other graders that ask a model"
)
MAX_CALLS = 20  # of one grader that are shown


@dataclass(frozen=True, slots=True)
class JudgingView:
    """The prompts of one grader, as roles and texts; `problem` says why they cannot be shown, or
    that some are left out.
    """

    grader: str
    prompts: tuple[tuple[tuple[str, ShownText], ...], ...] = ()
    problem: str = ""


def judging_views(
    trace: Trace, candidate: Candidate, judges: Mapping[str, Any]
) -> Iterator[JudgingView]:
    """Yield what each grader that asks a model was sent about an answer, if it graded it. `judges`:
    as `RunIndex.judges`.
    """
    graded = {feedback.grader for feedback in trace.feedback[candidate.id]}
    for grader in trace.panel:
        if grader.name in graded and not grader.model_free:
            yield _judging_view(trace, candidate, grader, judges.get(grader.name))


def _judging_view(
    trace: Trace, candidate: Candidate, grader: PanelGrader, data: Any
) -> JudgingView:
    if data is None:
        return JudgingView(grader.name, problem=NO_PROMPTS)
    try:
        prompts = run_sync(judge_prompts(judge_from_data(data), trace.task, candidate))
    except ConfigError as error:
        return JudgingView(grader.name, problem=f"its prompts cannot be made again: {error}"[:1000])
    problem = "" if prompts else "it judged this answer without asking a model"
    if len(prompts) > MAX_CALLS:
        problem = f"the first {MAX_CALLS} of {len(prompts):,} calls"
    return JudgingView(
        grader.name,
        tuple(tuple(shown_messages(messages)) for messages in prompts[:MAX_CALLS]),
        problem,
    )
