"""What a type checker must infer for the public API. Checked by mypy, not run."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, assert_type

import redraft
from redraft import (
    Budget,
    Feedback,
    Judge,
    Result,
    ScriptedModel,
    SelfRefine,
    Task,
    Trace,
    Usage,
)
from redraft.comparison import ComparisonReport, RunResults, read_results
from redraft.errors import RedraftError
from redraft.grading import GradeReport, GraderFeedback, grade_many
from redraft.loop.stopping import patience, target
from redraft.loop.task import Message
from redraft.protocols import Grader, JudgeClient, Model
from redraft.pytest_plugin import RedraftGate
from redraft.runs import BatchReport, LearnedPriors, RunForecast
from redraft.validation import (
    Calibration,
    GraderComparison,
    ValidationResult,
    fit_calibration,
    paired_difference,
    ppi_difference,
    ppi_mean,
)


async def entry_points() -> None:
    result = await redraft.refine(
        "q", "openai:x", lambda text: 0.5, target_score=0.8, budget=Budget(calls=3)
    )
    assert_type(result, Result[None])
    assert_type(result.parsed, None)
    assert_type(result.value, str)
    assert_type(result.score, float | None)
    assert_type(result.cost, float | None)
    assert_type(result.usage, Usage)
    assert_type(await redraft.refine_many(["a", Task("b")], max_in_flight=8), list[Result[None]])
    assert_type(redraft.stream("q"), AsyncGenerator[Trace, None])
    assert_type(redraft.refine_sync([{"role": "user", "content": "q"}]), Result[None])
    await redraft.refine(
        "q", plan=SelfRefine(target(0.9) | patience(2), drafts=3, refine_prompt="{response}")
    )
    await redraft.refine(
        "q",
        refine_prompt=lambda trace, parent: f"{trace.task.prompt} {parent.text}",
        draft_prompt=Path("p.txt"),
    )
    assert_type(result.steps[0].messages, tuple[Message, ...] | None)
    assert_type(result.steps[0].prompt, str | None)
    assert_type(Task("q", responses=["a", "b"]).given_responses, tuple[str, ...])


@dataclass
class Invoice:
    total: float


def adds_up(answer: Invoice) -> float:
    return float(answer.total > 0)


async def typed_answers() -> None:
    result = await redraft.refine("q", "openai:x", adds_up, answer=Invoice, target_score=0.8)
    assert_type(result, Result[Invoice])
    assert_type(result.parsed, Invoice | None)
    assert_type(redraft.refine_sync("q", answer=list[Invoice]), Result[list[Invoice]])
    assert_type(redraft.refine_sync("q", answer={"type": "object"}).parsed, Any | None)
    assert_type(redraft.refine_sync("q", answer="code:python").parsed, str | None)
    assert_type(await redraft.refine_many(["q"], answer=int), list[Result[int]])
    assert_type(redraft.stream("q", answer=Invoice), AsyncGenerator[Trace, None])
    any_result: Result = result
    print(any_result, await redraft.batch("in.jsonl", answer=Invoice))


def without_await() -> None:
    """They have the signatures of the coroutine functions."""
    rows = [{"prompt": "q", "response": "a", "label": 1}]
    assert_type(redraft.batch_sync("in.jsonl", mode="grade"), BatchReport)
    assert_type(redraft.calibrate_sync(["q"], "openai:x", calls=50), LearnedPriors)
    assert_type(redraft.validation.validate_sync(rows, "clarity", repeats=3), ValidationResult)
    redraft.refine_sync("q", target=0.9)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    redraft.batch_sync("in.jsonl", limit="3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def protocols() -> None:
    model: Model = ScriptedModel(["a"])
    grader: Grader = Judge({"truth": "It is true."})
    error: RedraftError = redraft.errors.ConfigError("no")
    print(model, grader, error, Feedback(0.5, "reason", ("change",)))


async def evaluator(text: str, model: JudgeClient) -> float:
    return float(await model(text))


async def grading() -> None:
    report = await redraft.grade(("q", "a"), "clarity", judge="openai:x", budget=Budget(calls=3))
    assert_type(report, GradeReport)
    assert_type(report.score, float | None)
    assert_type(redraft.grade_sync({"query": "q", "answer": "a"})["judge"], GraderFeedback)
    assert_type(await grade_many([Task("q", "a")], max_in_flight=8), list[GradeReport])
    result = await redraft.validation.validate([{"prompt": "q"}], "clarity", repeats=3)
    assert_type(result, ValidationResult)
    assert_type(result.calibration, Calibration | None)


def labels_of_people() -> None:
    mean, (low, high) = fit_calibration(
        [0.2, 0.5, 0.9], [0.1, 0.5, 1], clusters=["a", "b", "b"]
    ).predict(0.5)
    assert_type((mean, low, high), tuple[float, float, float])
    assert_type(ppi_mean([1, 0], [0.9, 0.2], [0.5]).interval, tuple[float, float] | None)
    assert_type(ppi_difference([(1, 0)], [(0.9, 0.2)]).value, float)


async def comparisons() -> None:
    report = await redraft.comparison.compare(
        "a.jsonl", "b.jsonl", labels="people.jsonl", slices=["topic"], margin=0.03
    )
    assert_type(report, ComparisonReport)
    assert_type(report.interval, tuple[float, float] | None)
    tasks = [{"prompt": "q"}]
    run = redraft.comparison.compare_sync(
        "openai:x", "openai:y", tasks, graders="clarity", judge="openai:z", max_in_flight=4
    )
    assert_type(run.gate == "not worse", bool)
    assert_type(read_results("log.eval", score="match"), RunResults)
    assert_type(
        await redraft.validation.compare_graders("people.csv", "clarity", "judge", "openai:x"),
        GraderComparison,
    )
    assert_type(paired_difference([0, 1], [1, 1]).value, float)
    assert_type((await redraft.batch("in.jsonl", pilot=20)).forecast, RunForecast | None)


def gate(redraft_gate: RedraftGate) -> None:
    assert_type(redraft_gate("a.jsonl", "b.jsonl", margin=0.05), ComparisonReport)
