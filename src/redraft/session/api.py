"""The public entry points: `refine`, `refine_sync`, `stream` and `refine_many`. What they do is in
`refinement`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import AsyncExitStack, aclosing
from typing import Any, TypeVar, Unpack, overload

from ..base.checks import invalid_argument
from ..base.sync import async_to_sync
from ..errors import ConfigError, RedraftError, attach
from ..loop.engine import cancel_and_wait
from ..loop.task import Task
from ..loop.trace import Trace
from ..result import Result
from ..settings import Settings
from .options import Options
from .refinement import (
    Refinement,
    RefinementRun,
    TaskInput,
    as_task,
    finish_refinement,
    make_refinement,
    open_session,
    prepare_refinement,
)

T = TypeVar("T")


@overload
async def refine(
    task: TaskInput,
    model: Any = None,
    graders: Any = None,
    judge: Any = None,
    *,
    answer: None = None,
    **settings: Unpack[Settings],
) -> Result[None]: ...
@overload
async def refine(
    task: TaskInput,
    model: Any = None,
    graders: Any = None,
    judge: Any = None,
    *,
    answer: type[T],
    **settings: Unpack[Settings],
) -> Result[T]: ...
@overload
async def refine(
    task: TaskInput,
    model: Any = None,
    graders: Any = None,
    judge: Any = None,
    *,
    answer: str,
    **settings: Unpack[Settings],
) -> Result[str]: ...
@overload
async def refine(
    task: TaskInput,
    model: Any = None,
    graders: Any = None,
    judge: Any = None,
    *,
    answer: Any,
    **settings: Unpack[Settings],
) -> Result[Any]: ...
async def refine(
    task: TaskInput,
    model: Any = None,
    graders: Any = None,
    judge: Any = None,
    *,
    answer: Any = None,
    **settings: Unpack[Settings],
) -> Result[Any]:
    """Answer a task as well as the settings allow, and return the best answer with everything that
    led to it.

    When cancelled, it makes no further call and raises CancelledError, which carries the best
    answer so far as `.result`; under `asyncio.timeout` that is `error.__context__.result` of the
    TimeoutError. A TaskGroup drops that exception; `on_record` and a `store` have every record in
    any case. Use `deadline` to get the best answer by a given time.

    Every error carries the best answer so far as `.result`, or None.

    Args:
        task: A prompt, chat messages, a `Task`, a pair `(prompt, response)` or a mapping such as
            {"query": ..., "response": ...}, as in `grade`, or a `Trace` to continue, whose
            requirements name no files.
        model: The model that writes: a name such as "openai:gpt-4o-mini", a `Model`, a function
            `(messages) -> str`, sync or async, or a client that you have (see `connect`). Of a
            list, the next one answers while those before it are out of service. None looks for one
            (see `redraft models`) and works with the editor alone if there is none; False means no
            model.
        graders: A name, the spec of a requirement such as "words:80-200", a function, a grader, or
            a list of these. The requirements of the task, its tests (in a sandbox) and the form of
            its answer grade, too. With none of these the default judge grades.
        judge: The model that LLM graders ask, in the same forms, but no list. One that is named
            judges, whatever else grades. None means `model`, the first of a list, if a grader asks
            a judge; False means no judge.
        answer: The form of the answer: a type that pydantic validates (a model, a dataclass,
            `list[Model]`), a JSON schema as a dict, or "code:python". It is a hard constraint, and
            `result.parsed` is the value. None means any text.
        **settings: Any of the settings, such as `target_score`, `max_iterations`, `budget` or
            `deadline`.

    Returns:
        The best answer with its score, the reason why the work stopped, and the trace. At the end
        of a budget or deadline it is the best so far. If nothing graded it, its score is None, and
        the note in `metadata` says what is missing.

    Raises:
        ConfigError: An argument is wrong. Raised before any call.
        ModelError: No answer could be obtained.
        GradingError: A grader of your own raised an error, or gave no score, for every answer.
        BudgetExhaustedError: The budget or the time ran out before there was an answer; with
            `strict_budget` also afterwards.
    """
    options = Options.from_settings(settings, answer)
    return await finish_refinement(await prepare_refinement(task, model, graders, judge, options))


refine_sync = async_to_sync(refine)
"""Call `refine` without await. It also works where an event loop is running.

Ctrl-C stops it at once: KeyboardInterrupt carries the best answer so far as `.result`, or None if
no call had begun.
"""


async def stream(
    task: TaskInput,
    model: Any = None,
    graders: Any = None,
    judge: Any = None,
    *,
    answer: Any = None,
    **settings: Unpack[Settings],
) -> AsyncGenerator[Trace, None]:
    """Refine, and yield the trace after each new record.

    The last trace has an `outcome`. Arguments and errors are as in `refine`, except that what
    ends the run, such as a budget, or a model or grader that fails, raises no error: it is the
    reason in the outcome. If the generator is cancelled or closed early, it makes no further call.

    Args:
        task: As in `refine`.
        model: As in `refine`.
        graders: As in `refine`.
        judge: As in `refine`.
        answer: As in `refine`.
        **settings: As in `refine`.

    Yields:
        The trace so far. Its newest record is `trace.records[-1]`; `trace.best` is the best answer
        so far, or None.
    """
    refinement = await prepare_refinement(
        task, model, graders, judge, Options.from_settings(settings, answer)
    )
    async with aclosing(RefinementRun(refinement).traces()) as traces:
        async for trace in traces:
            yield trace


@overload
async def refine_many(
    tasks: Iterable[TaskInput],
    model: Any = None,
    graders: Any = None,
    judge: Any = None,
    *,
    answer: None = None,
    **settings: Unpack[Settings],
) -> list[Result[None]]: ...
@overload
async def refine_many(
    tasks: Iterable[TaskInput],
    model: Any = None,
    graders: Any = None,
    judge: Any = None,
    *,
    answer: type[T],
    **settings: Unpack[Settings],
) -> list[Result[T]]: ...
@overload
async def refine_many(
    tasks: Iterable[TaskInput],
    model: Any = None,
    graders: Any = None,
    judge: Any = None,
    *,
    answer: str,
    **settings: Unpack[Settings],
) -> list[Result[str]]: ...
@overload
async def refine_many(
    tasks: Iterable[TaskInput],
    model: Any = None,
    graders: Any = None,
    judge: Any = None,
    *,
    answer: Any,
    **settings: Unpack[Settings],
) -> list[Result[Any]]: ...
async def refine_many(
    tasks: Iterable[TaskInput],
    model: Any = None,
    graders: Any = None,
    judge: Any = None,
    *,
    answer: Any = None,
    **settings: Unpack[Settings],
) -> list[Result[Any]]:
    """Refine many tasks with one budget, one deadline and one limit on calls in flight.

    A task that fails does not stop the others. When cancelled, it makes no further call, and
    CancelledError carries `.results`, one for each task.

    Args:
        tasks: The tasks, each as in `refine`.
        model: As in `refine`.
        graders: As in `refine`.
        judge: As in `refine`.
        answer: As in `refine`.
        **settings: As in `refine`; `budget`, `deadline` and `max_in_flight` are shared by all
            tasks.

    Returns:
        One result for each task, in their order. The result of a task that failed has an `error`.

    Raises:
        ConfigError: An argument is wrong. Raised before any call.
    """
    inputs = as_tasks(tasks)
    refinements: list[Refinement] = []
    running: list[asyncio.Task[Result[Any]]] = []
    try:
        async with AsyncExitStack() as cleanup:
            session = await open_session(
                inputs, model, graders, judge, Options.from_settings(settings, answer)
            )
            cleanup.push_async_callback(session.close)
            deadline_at = session.options.deadline_at
            for n, task in enumerate(inputs):
                try:
                    refinement = make_refinement(
                        task,
                        session,
                        deadline_at,
                        owns_session=False,
                        model_searched=model is None,
                    )
                except ConfigError as error:
                    raise ConfigError(f"tasks[{n}]: {error}") from None
                refinements.append(refinement)
            semaphore = asyncio.Semaphore(session.options.max_in_flight)
            running += [
                asyncio.ensure_future(_refine_one(refinement, semaphore))
                for refinement in refinements
            ]
            cleanup.push_async_callback(cancel_and_wait, running)
            return await asyncio.gather(*running)
    except asyncio.CancelledError as error:
        results = map(_result_of, running, refinements)
        attach(error, results=list(results))
        raise


async def _refine_one(refinement: Refinement, semaphore: asyncio.Semaphore) -> Result[Any]:
    run = RefinementRun(refinement)
    try:
        async with semaphore:
            await run.finish()
        return refinement.result_or_raise(run.trace)
    except RedraftError as error:
        return refinement.result(run.trace, error)
    except asyncio.CancelledError:
        return refinement.result(run.trace)


def _result_of(finished: asyncio.Task[Result[Any]], refinement: Refinement) -> Result[Any]:
    """Return the result of a finished task; the state before it if it failed or was cancelled."""
    return (
        refinement.result(refinement.trace)
        if finished.cancelled() or finished.exception()
        else finished.result()
    )


def as_tasks(tasks: Any) -> list[Task | Trace]:
    """Return the tasks in an iterable. Raises ConfigError for a single task, or anything else."""
    if isinstance(tasks, str | bytes | Mapping | Task | Trace | type) or not isinstance(
        tasks, Iterable
    ):
        raise invalid_argument(
            "tasks", "a list of prompts, of lists of messages, of rows, or of Tasks", tasks
        )
    return [
        task if isinstance(task, Trace) else as_task(task, f"tasks[{n}]")
        for n, task in enumerate(tasks)
    ]
