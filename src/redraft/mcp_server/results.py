"""What each tool returns: structured, with a JSON schema, and a short text for people and for
clients that read only text.

Results of refining, grading and comparing are views of the one form of results (`Result.to_dict`
and `GradeReport.to_dict`, schema 2): the same names mean the same.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ..base.money import format_usd
from ..gateway.outcome import SpentUsage
from ..graders.cards import Measure
from ..loop.records import Candidate
from ..loop.trace import Trace
from ..plans.quality.result_facts import broken_musts
from ..result import Result, format_score, headline
from ..session.grade_report import GradeReport, grader_feedback
from ..usage import Usage
from ..validation.run import ValidationResult

MAX_DISAGREEMENTS = 20


class View(BaseModel):
    """Data that a client reads, taken from the fields or the keys of these names. What is unknown
    is null.
    """

    model_config = ConfigDict(frozen=True, from_attributes=True)


class ToolResult(View):
    """A result of a tool."""

    usage: SpentUsage

    def texts(self) -> list[str]:
        """Return the result in words, one text for each content block."""
        raise NotImplementedError


class GradedResult(ToolResult):
    """A result in the form of all results."""

    version: Literal[2] = Field(2, alias="schema", description="The version of the form.")


class GraderFailure(View):
    """Why a grader could not grade: the kind of the error, and its message."""

    error: str
    message: str


class GraderOpinion(View):
    """What one grader says of an answer."""

    grader: str
    score: float | None = Field(description="From 0 to 1; null if it is unknown.")
    reason: str
    actions: list[str] = Field(description="What to change.")
    must: bool = Field(description="Whether it is a requirement, which is met (1) or not.")
    failure: GraderFailure | None = Field(description="Why it could not grade; null if it could.")

    def __str__(self) -> str:
        if self.failure:
            said = f"failed: {self.failure.message}"
        else:
            is_repeated = any(action.startswith(self.reason) for action in self.actions)
            said = "; ".join(filter(None, ["" if is_repeated else self.reason, *self.actions]))
        return f"{self.grader} {format_score(self.score)}" + (f": {said}" if said else "")


class AnswerVersion(View):
    """An answer on the way: how it came about, its score, and what the graders asked for."""

    origin: str = Field(
        description=(
            '"given", "generate" (a draft), "refine" (a rewrite) or "repair" (without a model).'
        )
    )
    score: float | None
    note: str
    actions: list[str]

    @classmethod
    def from_candidate(cls, trace: Trace, candidate: Candidate) -> AnswerVersion:
        feedback = grader_feedback(trace, candidate.id)
        return cls(
            origin=candidate.role,
            score=trace.scores.get(candidate.id),
            note=candidate.note,
            actions=list(dict.fromkeys(action for each in feedback for action in each.actions)),
        )


class RefineResult(GradedResult):
    """The result of `refine`."""

    status: str = Field(
        description='"done", "failed" (nothing could be graded) or "open" (it was cut short).'
    )
    answer: str = Field(description="The best answer.")
    parsed: Any = Field(
        default=None,
        description=(
            "The answer as a JSON value, if `answer_schema` was given and the answer follows it."
        ),
    )
    score: float | None = Field(description="From 0 to 1; null if it is unknown.")
    interval: tuple[float, float] | None = Field(description="The 95 % interval of the score.")
    initial_score: float | None = Field(description="The score of the first answer.")
    reason: str = Field(description="Why it has this score.")
    broken: list[str] = Field(description="The requirements that the answer does not meet.")
    iterations: int = Field(description="The number of rewrites.")
    stop: str = Field(
        description='Why the work ended, such as "target", "patience", "budget" or "deadline".'
    )
    stop_note: str = Field(description="The same in words.")
    summary: str = Field(
        description=(
            "The scores of the first and of the best answer, and why the work ended, in words."
        )
    )
    changes: list[AnswerVersion] = Field(description="Every version of the answer, in order.")
    trace_id: str | None = Field(
        description="The name of the stored trace; null if traces are not stored."
    )

    @classmethod
    def from_result(cls, result: Result[Any], trace_id: str | None) -> RefineResult:
        trace = result.trace
        more = {
            "summary": headline(result),
            "changes": [AnswerVersion.from_candidate(trace, each) for each in trace.candidates],
            "trace_id": trace_id,
        }
        return cls.model_validate({**result.to_dict(), **more})

    def texts(self) -> list[str]:
        broken = [f"not met: {', '.join(self.broken)}"] if self.broken else []
        facts = [self.summary, *broken, f"{self.iterations} rewrites", _calls_text(self.usage)]
        return [self.answer, " · ".join(facts)]


class Grades(View):
    """What graders say of an answer."""

    score: float | None = Field(
        description="Of all graders together, from 0 to 1; null if one is unknown."
    )
    broken: list[str] = Field(description="The requirements that the answer does not meet.")
    feedback: list[GraderOpinion] = Field(description="What each grader says.")


class GradeResult(Grades, GradedResult):
    """The result of `grade`."""

    @classmethod
    def from_report(cls, report: GradeReport) -> GradeResult:
        return cls.model_validate(report.to_dict())

    def texts(self) -> list[str]:
        summary = f"score {format_score(self.score)} · {_calls_text(self.usage)}"
        return ["\n".join([summary, *map(str, self.feedback)])]


class RankedText(Grades):
    """An answer with its rank."""

    number: int = Field(description="The place of the answer in `answers`, from 1.")
    rank: int | None = Field(description="From 1, equal for ties; null if it was not graded.")
    tie: bool


class CompareResult(GradedResult):
    """The result of `compare`."""

    best: int | None = Field(
        description="The number of the best answer, from 1; null if none was graded."
    )
    is_tie: bool = Field(description="Whether others are as good.")
    ranking: list[RankedText] = Field(description="The answers, best first.")
    reasons: list[str] = Field(description="What graders that compare answers say.")

    @classmethod
    def from_result(cls, result: Result[Any]) -> CompareResult:
        trace = result.trace
        rows = [
            {
                **row.to_dict(),
                "number": row.candidate.id + 1,
                "broken": broken_musts(trace, row.candidate.id),
                "feedback": [
                    each
                    for each in grader_feedback(trace, row.candidate.id)
                    if each.repeats or each.failure
                ],
            }
            for row in result.ranking
        ]
        first = next((row for row in rows if row["rank"] is not None), None)
        data = {
            "best": first and first["number"],
            "is_tie": bool(first and first["tie"]),
            "ranking": rows,
            "reasons": [f"{c.grader}: {c.reason}" for c in trace.comparisons if c.reason],
            "usage": asdict(result.usage),
        }
        return cls.model_validate(data)

    def texts(self) -> list[str]:
        tie = " (a tie)" if self.is_tie else ""
        best = "nothing was graded" if self.best is None else f"best: answer {self.best}{tie}"
        rows = [
            f"{row.rank or '-'}. answer {row.number}, score {format_score(row.score)}"
            for row in self.ranking
        ]
        return ["\n".join([f"{best} · {_calls_text(self.usage)}", *rows, *self.reasons])]


class ValidateResult(ToolResult):
    """The result of `validate_grader`."""

    grader: str
    better_than_chance: bool = Field(description="With 95 % confidence.")
    headline: Measure
    measures: list[Measure] = Field(
        description="All measures, such as accuracy, kappa and false alarms."
    )
    judged: int
    unjudged: int
    disagreements: list[int] = Field(
        description=(
            "Numbers of examples, from 1, in which the grader says something else than the label: "
            "look at these first."
        )
    )
    summary: str

    @classmethod
    def from_validation(cls, result: ValidationResult, disagreements: list[int]) -> ValidateResult:
        data = {
            "grader": result.card.grader,
            "better_than_chance": result.trusted,
            "headline": result.headline,
            "measures": list(result.measures.values()),
            "judged": result.card.rows,
            "unjudged": result.card.unjudged,
            "disagreements": disagreements[:MAX_DISAGREEMENTS],
            "usage": asdict(result.usage or Usage()),
            "summary": result.card.summary(),
        }
        return cls.model_validate(data)

    def texts(self) -> list[str]:
        is_better = "better" if self.better_than_chance else "not shown to be better"
        numbers = ", ".join(map(str, self.disagreements))
        others = f"\ndisagrees in examples {numbers}" if numbers else ""
        used = _calls_text(self.usage)
        return [f"{self.grader}: {is_better} than chance. {self.summary}{others} · {used}"]


def _calls_text(usage: SpentUsage) -> str:
    """Return the number of calls, and what they cost if that is known."""
    calls, cost = usage["calls"], usage["cost"]
    return f"{calls} model calls" + (f", {format_usd(cost)}" if calls and cost is not None else "")
