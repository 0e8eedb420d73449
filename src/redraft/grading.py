"""Grades of given responses: `grade`, `grade_sync`, `grade_many` and `GradingSession` change
nothing.

Grading is a refinement without a model that writes: one response, the panel of graders, and a plan
that ends when all of them have graded. So sessions, budgets, retries, caches and traces are those
of `refine`. A report (`grade_report`) is a view of such a trace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from inspect import signature
from typing import Any, Self, Unpack, cast

from .base import checks
from .base.sync import async_to_sync
from .errors import ConfigError, RedraftError
from .graders.base import gather_or_cancel
from .loop.records import Feedback
from .loop.task import Task
from .loop.trace import PanelGrader, Trace
from .result import Result, conclusion_error
from .session.grade_report import GradeReport, GraderFeedback
from .session.models import Models
from .session.options import Options
from .session.panel import NOTHING_GRADES, graders_for_tasks, needs_judge
from .session.refinement import (
    Refinement,
    RefinementRun,
    Sample,
    as_task,
    is_pair,
    log_default_judge,
    make_refinement,
    resolve_model,
)
from .session.session import Session
from .settings import GradeSettings, Settings, check_names
from .tables.columns import with_one_response

__all__ = [
    "GradeReport",
    "GradeSettings",
    "GraderFeedback",
    "GradingSession",
    "Sample",
    "grade",
    "grade_many",
    "grade_sync",
]

SAMPLE_FORMS = (
    "a Task with a response, (prompt, response), or a mapping such as {'prompt': ..., "
    "'response': ...}"
)


async def grade(
    sample: Sample,
    graders: Any = None,
    judge: Any = None,
    *,
    answer: Any = None,
    **settings: Unpack[GradeSettings],
) -> GradeReport:
    """Grade a response with one grader or several, and change nothing.

    A grader that fails hides no other: its failure is in the report, and the score is None.

    Args:
        sample: A `Task` with a response, `(prompt, response)`, or a mapping with the usual names:
            prompt (or messages, query, question, instruction, input) and response (or answer,
            output, completion), and if there are any, reference, context, requirements and others.
            Other keys are the task's `metadata`.
        graders: As in `refine`: a name, the spec of a requirement, a function, a grader, or a list
            of these. The requirements of the task and its tests grade, too. With none of these, no
            `judge` and no `answer`, the default judge grades.
        judge: The model that LLM graders ask, as in `refine`. None looks for one if a grader asks a
            judge; False means none.
        answer: The form of the answer, as in `refine`. It is a condition, and functions that are
            annotated with its type receive the object.
        **settings: Any of `budget`, `deadline`, `timeout`, `retries`, `max_in_flight`, `cache`,
            `prices`, `on_record`, `sandbox`, `packages`, `trust_in_process`, `require_validated`
            and `cards_dir`, as in `refine`.

    Returns:
        The score of all graders together, and the feedback of each.

    Raises:
        ConfigError: An argument is wrong, or a grader needs something that the sample does not
            have. Raised before any call.
        GradingError: No grader could say anything.
        BudgetExhaustedError: The budget or the time ran out before any grader had graded.
    """
    report = (
        await grade_tasks(
            [_task_of(sample, "sample")],
            graders,
            judge,
            answer=answer,
            settings=settings,
            names=[""],
        )
    )[0]
    if report.error:
        try:
            raise report.error
        finally:
            del report  # which keeps the error, whose traceback keeps this frame
    return report


ARGUMENTS = tuple(
    name for name in signature(grade).parameters if name not in {"sample", "settings"}
)


grade_sync = async_to_sync(grade)
"""Call `grade` without await. It also works where an event loop is running."""


async def grade_many(
    samples: Iterable[Sample],
    graders: Any = None,
    judge: Any = None,
    *,
    answer: Any = None,
    **settings: Unpack[GradeSettings],
) -> list[GradeReport]:
    """Grade many responses with one budget, one deadline and one limit on calls in flight.

    A sample that cannot be graded does not stop the others.

    Args:
        samples: The samples, each as in `grade`. For a table of them, see `redraft.batch` with
            `mode="grade"`.
        graders: As in `grade`.
        judge: As in `grade`.
        answer: As in `grade`.
        **settings: As in `grade`; `budget`, `deadline` and `max_in_flight` are shared by all
            samples.

    Returns:
        One report for each sample, in their order. The report of a sample that no grader could
        grade has an `error`.

    Raises:
        ConfigError: An argument is wrong, or a sample is. Raised before any call.
    """
    if isinstance(samples, str | bytes | Mapping | Task | type) or not isinstance(
        samples, Iterable
    ):
        raise checks.invalid_argument("samples", f"a list, each item {SAMPLE_FORMS}", samples)
    tasks = [_task_of(sample, f"samples[{n}]") for n, sample in enumerate(samples)]
    names = [f"samples[{n}]" for n in range(len(tasks))]
    return (
        await grade_tasks(tasks, graders, judge, answer=answer, settings=settings, names=names)
        if tasks
        else []
    )


def _task_of(sample: Any, name: str) -> Task:
    """Return the task in a sample, with its response. Raises ConfigError that names the
    argument.
    """
    if not (isinstance(sample, Task | Mapping) or is_pair(sample)):
        raise checks.invalid_argument(name, SAMPLE_FORMS, sample)
    task = as_task(sample, name)
    try:
        return with_one_response(task)
    except ConfigError as error:
        several, none = (
            "give a sample for each to `grade_many`",
            "give Task(prompt, response), or a key 'response'",
        )
        raise ConfigError(f"{name}: {error}; {several if task.responses else none}") from None


async def grade_tasks(
    tasks: Sequence[Task],
    graders: Any,
    judge: Any,
    *,
    answer: Any,
    settings: GradeSettings,
    names: Sequence[str],
) -> list[GradeReport]:
    """Return a report for each task. `names` say in errors which task is meant, such as
    "rows.csv:3"; "" says nothing.

    Raises ConfigError before any call.
    """
    async with await _open_session(tasks, graders, judge, answer, settings) as session:
        semaphore = asyncio.Semaphore(session.options.max_in_flight)
        return await _reports_of(tasks, names, session, semaphore)


class GradingSession:
    """Grades responses until it is closed, such as during a training run.

    All its calls share one budget, one cache, one limit on calls in flight, and what is learned of
    the endpoints; `deadline` counts from each call. It is an asynchronous context manager, and
    belongs to the event loop in which it was opened.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._semaphore = asyncio.Semaphore(session.options.max_in_flight)
        self.panel: tuple[PanelGrader, ...] = session.common_panel().panel

    @classmethod
    async def open(
        cls,
        graders: Any = None,
        judge: Any = None,
        *,
        answer: Any = None,
        **settings: Unpack[GradeSettings],
    ) -> Self:
        """Open a session. The arguments are those of `grade`. Raises ConfigError."""
        return cls(await _open_session((), graders, judge, answer, settings))

    async def grade_many(self, samples: Iterable[Sample]) -> list[GradeReport]:
        """Return a report for each sample, as `grade_many` does. Raises ConfigError."""
        tasks = [_task_of(sample, f"samples[{n}]") for n, sample in enumerate(samples)]
        names = [f"samples[{n}]" for n in range(len(tasks))]
        return await _reports_of(tasks, names, self._session, self._semaphore)

    async def grade_group(self, task: Task) -> Trace:
        """Grade the `responses` of a task, and rank them if a grader ranks.

        The candidates of the trace are the responses, without blank and equal ones. Raises
        ConfigError, and what `RefinementRun` raises.
        """
        deadline_at = self._session.options.deadline_at
        group = make_refinement(task, self._session, deadline_at, owns_session=False)
        async with self._semaphore:
            return await RefinementRun(group).finish()

    async def close(self) -> None:
        """Close the models that were connected for this session."""
        await self._session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def _reports_of(
    tasks: Sequence[Task], names: Sequence[str], session: Session, semaphore: asyncio.Semaphore
) -> list[GradeReport]:
    """Return a report for each task. Raises ConfigError before any call."""
    deadline_at = session.options.deadline_at
    graded = list(map(session.grades, tasks))
    refinements = [
        _make_refinement(task, session, deadline_at, name) if grades or not any(graded) else task
        for task, name, grades in zip(tasks, names, graded, strict=True)
    ]
    return await gather_or_cancel(_report_of(refinement, semaphore) for refinement in refinements)


async def _open_session(
    tasks: Sequence[Task], graders: Any, judge: Any, answer: Any, settings: GradeSettings
) -> Session:
    """Return the session for the tasks; without a `judge`, a model is looked for only if a grader
    calls one.
    """
    check_names("grade", settings, ARGUMENTS)
    fixed = {"max_iterations": 0, "noise_aware": False, "editor": False}
    options = Options.from_settings(cast("Settings", {**settings, **fixed}), answer)
    graders = graders_for_tasks(graders, judge, options.answer, tasks)
    if judge is None and not needs_judge(graders):
        judge = False
    session = Session(options, Models(options, None, await resolve_model(judge)), graders)
    log_default_judge(session)
    return session


def _make_refinement(
    task: Task, session: Session, deadline_at: float | None, name: str
) -> Refinement:
    """Return the refinement that grades a task; `name` begins an error, if it is not "". Raises
    ConfigError.
    """
    try:
        refinement = make_refinement(
            with_one_response(task), session, deadline_at, owns_session=False
        )
    except ConfigError as error:
        raise (ConfigError(f"{name}: {error}") if name else error) from None
    if rankers := [grader.name for grader in refinement.trace.panel if grader.compares]:
        raise ConfigError(
            f"graders: {rankers[0]!r} ranks several responses; a single one needs a grader that "
            "scores it"
        )
    return refinement


async def _report_of(refinement: Refinement | Task, semaphore: asyncio.Semaphore) -> GradeReport:
    """Grade one response; an error is part of the report, also that nothing grades a task."""
    if isinstance(refinement, Task):
        return GradeReport(Trace(refinement), ConfigError(NOTHING_GRADES))
    run, failure = RefinementRun(refinement), None
    try:
        async with semaphore:
            trace = await run.finish()
        if not any(isinstance(record, Feedback) for record in trace.records):
            failure = conclusion_error(Result(trace))
    except RedraftError as error:
        failure = error
    return GradeReport(run.trace, failure, refinement.callback_errors.texts)
