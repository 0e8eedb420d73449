"""The tools: what each does, and how it is described to the model that calls it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any, cast

from ..base.checks import is_blank
from ..errors import ConfigError
from ..graders import Judge
from ..grading import grade
from ..loop.records import Candidate
from ..loop.task import Message, Task
from ..loop.trace import Trace
from ..plans.self_refine import BestOfN
from ..result import Result, conclusion_error, is_graded
from ..session.options import Options
from ..session.refinement import Refinement, prepare_refinement, run_refinement
from ..session.session import graders_for_tasks, needs_judge, traits_of_named
from ..settings import GradeSettings, Settings, ValidationSettings, settings_for
from ..validation.api import validate
from ..validation.cases import LabelledCase, Verdict
from ..validation.run import JudgedCase
from .arguments import (
    CompareInput,
    GradedBy,
    GradeInput,
    LabelledExample,
    QuestionInput,
    RefineInput,
    ToolInput,
    ValidateInput,
)
from .progress import CallProgress
from .results import (
    CompareResult,
    GradeResult,
    RefineResult,
    ToolResult,
    ValidateResult,
)
from .workbench import NO_MODEL, Workbench

IMPROVE = "Improve this text."  # the prompt of a draft without one
UNKNOWN_PROMPT = "(The request is unknown. Judge the answers as texts.)"
MAX_PAIRWISE = 4  # answers that are compared two at a time; a ranker ranks more in one call


@dataclass(frozen=True)
class ToolEntry:
    """A tool: its name, what it is for, its input and its result, and the work."""

    name: str
    title: str
    description: str
    input: type[ToolInput]
    result: type[ToolResult]
    run: Callable[[Any, Workbench, CallProgress], Awaitable[ToolResult]]


async def refine_answer(
    call: RefineInput, bench: Workbench, progress: CallProgress
) -> RefineResult:
    """Refine an answer. Raises RedraftError."""
    model = await bench.model(call.model)
    if model is None and is_blank(call.draft):
        raise ConfigError(NO_MODEL)
    task = _task(call, call, default=IMPROVE, response=call.draft or None)
    graders = bench.graders(call.graders, call.rubric)
    _check_model(graders, bench.named_judge or model)
    async with AsyncExitStack() as closing:
        store, trace_id = bench.open_trace(closing)
        chosen = {
            "target_score": call.target_score,
            "max_iterations": call.max_iterations,
            "store": store,
        }
        settings = {
            **_settings(bench, progress),
            **{name: value for name, value in chosen.items() if value is not None},
        }
        options = Options.from_settings(cast("Settings", settings), call.answer_schema)
        refinement = await prepare_refinement(
            task, model or False, graders, bench.named_judge, options
        )
        return RefineResult.from_result(await _finish(refinement, progress), trace_id)


async def grade_answer(call: GradeInput, bench: Workbench, progress: CallProgress) -> GradeResult:
    """Grade an answer, and change nothing. Raises RedraftError."""
    task = _task(call, call, default=UNKNOWN_PROMPT, response=call.response)
    graders = graders_for_tasks(
        bench.graders(call.graders, call.rubric), bench.named_judge, None, [task]
    )
    judge: Any = False
    if needs_judge(graders):
        judge = await bench.judge(call.model) or False
        _check_model(graders or [Judge()], judge or None)
    settings = settings_for("grade", _settings(bench, progress))
    return GradeResult.from_report(
        await grade(task, graders, judge, **cast("GradeSettings", settings))
    )


async def compare_answers(
    call: CompareInput, bench: Workbench, progress: CallProgress
) -> CompareResult:
    """Rank answers. Raises RedraftError."""
    task = _task(call, call, default=UNKNOWN_PROMPT)
    if (
        blank := next((n for n, text in enumerate(call.answers) if is_blank(text)), None)
    ) is not None:
        raise ConfigError(f"answers[{blank}] is blank, which is no answer: leave it out")
    trace = Trace(task, records=tuple(Candidate(id, text) for id, text in enumerate(call.answers)))
    graders = bench.graders(call.graders, call.rubric) or []
    judge, model = bench.named_judge, None
    is_named = graders or call.requirements or judge is False
    if not is_named or (judge and not needs_judge(graders)):
        graders.append(bench.grader("pairwise" if len(call.answers) <= MAX_PAIRWISE else "ranker"))
    if needs_judge(graders):
        model = await bench.judge(call.model)
        _check_model(graders, model)
    plan = BestOfN(len(call.answers), repairs=False)
    options = Options.from_settings(
        {**_settings(bench, progress), "plan": plan, "editor": False, "max_iterations": 0}
    )
    refinement = await prepare_refinement(trace, model or False, graders, judge, options)
    result = await _finish(refinement, progress)
    if not is_graded(result.trace):  # without a ranking there is nothing to return
        raise conclusion_error(result)
    return CompareResult.from_result(result)


async def validate_grader(
    call: ValidateInput, bench: Workbench, progress: CallProgress
) -> ValidateResult:
    """Measure a grader against labels of people. No card is saved. Raises RedraftError."""
    grader = bench.grader(call.grader) if call.grader else Judge(call.rubric, "rubric")
    judge: Any = False
    if needs_judge([grader]):
        judge = await bench.judge(call.model)
        _check_model([grader], judge)
    cases = [_case(n, example) for n, example in enumerate(call.examples, 1)]
    judged = 0

    def count(case: JudgedCase) -> None:
        nonlocal judged
        judged += 1
        progress.usage += case.usage
        progress.note(f"judged {judged} of {len(cases)} examples")

    settings = settings_for("validate", _settings(bench, progress))
    with TemporaryDirectory(prefix="redraft-") as folder:
        given = cast("ValidationSettings", {**settings, "cards_dir": folder})
        result = await validate(
            cases, grader, judge, threshold=call.threshold, on_case=count, **given
        )
    wrong = {
        verdict.case
        for verdict in result.verdicts
        if _disagrees(verdict, cases[int(verdict.case) - 1], call.threshold)
    }
    return ValidateResult.from_validation(result, sorted(map(int, wrong)))


async def _finish(refinement: Refinement, progress: CallProgress) -> Result[Any]:
    """Run a refinement to its end and return its result, or raise its error."""
    trace = refinement.trace
    async with aclosing(run_refinement(refinement)) as traces:
        async for latest in traces:
            trace = latest
            progress.trace(trace)
    return refinement.result_or_raise(trace)


def _settings(bench: Workbench, progress: CallProgress) -> Settings:
    """Return the settings of a call: the operator's limits, and what reports its progress."""
    return {**bench.limits.settings, "on_record": progress.record, "on_step": progress.step}


def _task(asked: QuestionInput, by: GradedBy, *, default: str, response: str | None = None) -> Task:
    """Return the task of a call; `default` is the prompt of a call without one. Raises
    ConfigError.
    """
    from ..requirements import parse

    messages: list[Message] = [
        {"role": turn.role, "content": turn.content} for turn in asked.messages
    ]
    return Task(
        messages or (default if is_blank(asked.prompt) else asked.prompt),
        response,
        requirements=[parse(spec, files=False).spec for spec in by.requirements],
        reference=by.reference or None,
        context=by.context or None,
    )


def _check_model(graders: list[Any] | None, model: Any) -> None:
    """Raise ConfigError if one of the graders asks a model and there is none."""
    if model is None and graders and needs_judge(graders):
        names = ", ".join(
            traits.name for grader in graders if (traits := traits_of_named(grader)).asks_judge
        )
        raise ConfigError(f"{names}: asks a model, and {NO_MODEL}")


def _case(number: int, example: LabelledExample) -> LabelledCase:
    """Return an example as a labelled case."""
    task = Task(
        example.prompt or UNKNOWN_PROMPT,
        reference=example.reference or None,
        context=example.context or None,
    )
    if example.is_pair:
        ranks = {"a": (0, 1), "b": (1, 0), "tie": (0, 0)}[str(example.better)]
        return LabelledCase(
            str(number),
            "pair",
            task,
            (str(example.response_a), str(example.response_b)),
            ranks=ranks,
        )
    kind = "pass" if isinstance(example.label, bool) else "score"
    return LabelledCase(
        str(number),
        cast("Any", kind),
        task,
        (str(example.response),),
        float(cast("float", example.label)),
    )


def _disagrees(verdict: Verdict, case: LabelledCase, threshold: float) -> bool:
    """Whether a verdict contradicts a label of kind pass or pair; a tie of either contradicts
    nothing.
    """
    if case.kind == "pass" and verdict.scores and verdict.scores[0] is not None:
        return (verdict.scores[0] >= threshold) != bool(case.label)
    if case.kind == "pair" and case.ranks and verdict.readable:
        said: tuple[float, ...] = verdict.ranks or tuple(
            -(score or 0.0) for score in verdict.scores
        )
        return (said[0] - said[1]) * (case.ranks[0] - case.ranks[1]) < 0
    return False


TOOLS: dict[str, ToolEntry] = {
    tool.name: tool
    for tool in (
        ToolEntry(
            "refine",
            "Refine an answer",
            "Write an answer, or improve a draft, until it is good: it is graded, rewritten by "
            "what the graders say, and graded again; the best version is returned with its score "
            "and the reasons. Use it for texts that must meet requirements (length, format, "
            "content) or that matter. It calls models and may take minutes.",
            RefineInput,
            RefineResult,
            refine_answer,
        ),
        ToolEntry(
            "grade",
            "Grade an answer",
            "Grade an answer and change nothing: a score from 0 to 1, and for each grader the "
            "reason and what to change. With requirements alone no model is called, unless the "
            "server has a judge, and it is instant.",
            GradeInput,
            GradeResult,
            grade_answer,
        ),
        ToolEntry(
            "compare",
            "Compare answers",
            "Say which of several answers to the same prompt is best, with a ranking and the "
            "reasons. By default a model compares them in both orders, so that their order does "
            "not matter.",
            CompareInput,
            CompareResult,
            compare_answers,
        ),
        ToolEntry(
            "validate_grader",
            "Validate a grader",
            "Measure whether a grader can be trusted: it judges examples that people labelled. "
            "Returns accuracy, kappa and others with 95 % intervals, and the examples in which it "
            "disagrees.",
            ValidateInput,
            ValidateResult,
            validate_grader,
        ),
    )
}
