"""What the page of one row shows: the trace as values for a template, with every text cut to a
length that a browser can hold.
"""

from __future__ import annotations

import json
import pprint
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup

from ..base.sync import run_sync
from ..base.word_diff import DiffSpan, word_diff
from ..errors import ConfigError
from ..graders.base import unique_texts
from ..graders.judging.stored_judge import judge_from_data, judge_prompts
from ..graders.registry import resolve_spec
from ..loop.prompts import draft_messages, refinement_messages
from ..loop.records import Candidate, Comparison, Failure
from ..loop.task import Message, Task, message_text
from ..loop.trace import PanelGrader, Trace
from ..plans.prompts import Prompts
from ..plans.quality.result_facts import score_interval
from ..requirements import kinds, reads_file
from ..result import Result, diagnosis_text
from ..session.grade_report import GraderFeedback, grader_feedback
from ..session.options import PROMPT_KEYS
from ..usage import Usage
from .charts import CurvePoint, score_curve

MAX_TEXT = 60_000  # characters of a text that a page shows
MAX_SNIPPET = 20_000  # characters of a task that a snippet holds
MAX_CANDIDATES = 200
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
    iteration: int
    score: float | None
    estimate: float | None
    is_best: bool
    is_unchanged: bool
    grades: tuple[GraderFeedback, ...]
    grade_usage: Usage
    grade_seconds: float | None

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
    views, iteration = [], -1
    shown = {c.id for c in trace.candidates[:MAX_CANDIDATES]} | {best}
    for c in trace.candidates:
        iteration = max(iteration, 0) + (c.role == "refine")
        if c.id not in shown:
            continue
        unchanged = trace.is_unchanged(c)
        feedback = () if unchanged else trace.feedback[c.id]
        seconds = [f.seconds for f in feedback if f.seconds is not None]
        views.append(
            AnswerView(
                c,
                iteration,
                trace.scores[c.id],
                estimates.get(c.id),
                c.id == best,
                unchanged,
                grader_feedback(trace, c.id),
                sum((f.usage for f in feedback), Usage()),
                sum(seconds) if seconds else None,
            )
        )
    return views


def curve_points(answers: Iterable[AnswerView]) -> list[CurvePoint]:
    """Return the points of the score curve."""
    return [CurvePoint(a.candidate.id, a.score, a.estimate, a.origin) for a in answers]


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


def prompt_messages(trace: Trace, candidate: Candidate) -> tuple[Message, ...] | None:
    """Return the messages that asked for an answer; () if no model was asked, None if they cannot
    be made again.

    They are not recorded: they follow from the records before the answer, and from the templates in
    the settings. Functions of the user are not recorded either, nor the columns of the input that a
    template may show.
    """
    if candidate.role not in {"generate", "refine"}:
        return ()
    n = trace.records.index(candidate)
    before = replace(trace, records=trace.records[:n], resumed_at=min(trace.resumed_at, n))
    own = [trace.settings.get(key) for key in PROMPT_KEYS]
    templates = [
        setting.get("template") if isinstance(setting, Mapping) else None for setting in own
    ]
    if any(setting and not template for setting, template in zip(own, templates, strict=True)):
        return None
    parent = None if candidate.parent is None else before.by_id.get(candidate.parent)
    if any(templates):
        with suppress(ConfigError):
            prompts = Prompts(*templates)
            return (
                prompts.draft_messages(before)
                if parent is None
                else prompts.refinement_messages(before, parent)
            )
        return None
    return draft_messages(before) if parent is None else refinement_messages(before, parent)


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


@dataclass(frozen=True, slots=True)
class RowView:
    """A row: its result, its answers, and its charts."""

    score: float | None
    interval: tuple[float, float] | None
    uplift: float | None
    stop: str
    outcome: str
    usage: Usage
    seconds: float | None
    failures: tuple[Failure, ...]
    answers: list[AnswerView]
    heat: list[HeatRow]
    curve: Markup
    comparisons: list[Comparison]
    task: ShownText
    reference: ShownText | None
    context: ShownText | None


def row_view(trace: Trace) -> RowView:
    """Return what the page of a row shows of a trace."""
    answers = answer_views(trace)
    interval = score_interval(trace)
    first = next(iter(trace.with_estimates.score_history), None)
    seconds = [s for r in trace.records if (s := getattr(r, "seconds", None)) is not None]
    end = trace.outcome
    outcome = (
        " ".join(filter(None, (end.note, diagnosis_text(Result(trace))))) if end else "in progress"
    )
    task = "\n\n".join(
        f"[{role}] {shown.text}" for role, shown in shown_messages(trace.task.messages)
    )
    return RowView(
        trace.score,
        interval,
        None if trace.score is None or first is None else trace.score - first,
        str(end.reason) if end else "in progress",
        outcome,
        trace.usage,
        sum(seconds) if seconds else None,
        tuple(trace.failures.values())[:20],
        answers,
        heat_rows(answers)[:60],
        score_curve(curve_points(answers), trace.best.id if trace.best else None, interval),
        trace.comparisons[:50],
        shown_text(task if len(trace.task.messages) > 1 else trace.task.prompt),
        shown_text(trace.task.reference) if trace.task.reference else None,
        shown_text(trace.task.context) if trace.task.context else None,
    )


def snippet(trace: Trace, source: str) -> str:
    """Return Python code that runs the row again: its task, the models that wrote and judged, and
    its graders.

    `source`: the expression whose value is the trace, for a task that is too long to be written
    out. The settings of the run are not recorded, so the code has the default ones. What a file of
    other people must not choose is a comment: graders that are no names, and requirements that read
    files.
    """
    code, made = ["import redraft"], _task_literal(trace.task)
    if len(made) > MAX_SNIPPET:
        code.append("from redraft.storage import Journal, read_trace")
        made = f"task = {source}.task"
    written = [
        r
        for r in trace.records
        if isinstance(r, Candidate | Failure) and r.role in {"generate", "refine"}
    ]
    writers = unique_texts(record.by for record in written if record.by)
    judges = [
        f.by for c in trace.candidates for f in trace.feedback[c.id] if f.by and f.by not in writers
    ]
    models = {"model": writers[0] if writers else False, "judge": judges[0] if judges else None}
    lines = [
        f"    {name}={value!r},{PROVIDER_NOTE if value else ''}"
        for name, value in models.items()
        if value is not None
    ]
    own = [grader for grader in trace.panel if grader.name not in trace.task.requirements]
    lines += ["    graders=[", *(f"        {_grader_code(grader)}" for grader in own), "    ],"]
    return "\n".join(
        [
            *code,
            "",
            made,
            "result = redraft.refine_sync(",
            "    task,",
            *lines,
            ")",
            "print(result.summary())",
            "",
        ]
    )


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
