"""What each tool returns: structured, with a JSON schema, and a short text for people and for
clients that read only text.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from ..base.money import format_usd
from ..graders.cards import Measure
from ..loop.records import Candidate
from ..loop.trace import Trace
from ..result import Result, broken_musts, format_score, headline
from ..session.grade_report import GradeReport, GraderFeedback, grader_feedback
from ..usage import Usage
from ..validation.run import ValidationResult

MAX_DISAGREEMENTS = 20


class ToolResult(BaseModel):
    """A result of a tool. What is unknown is null."""

    model_config = ConfigDict(frozen=True)

    def texts(self) -> list[str]:
        """Return the result in words, one text for each content block."""
        raise NotImplementedError


class CallUsage(BaseModel):
    """The model calls of a tool call."""

    calls: int
    input_tokens: int | None
    output_tokens: int | None
    cost_usd: float | None

    @classmethod
    def from_usage(cls, usage: Usage) -> CallUsage:
        return cls(
            calls=usage.calls,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cost_usd=usage.cost,
        )

    def __str__(self) -> str:
        cost = "" if self.cost_usd is None or not self.calls else f", {format_usd(self.cost_usd)}"
        return f"{self.calls} model calls{cost}"


class GraderOpinion(BaseModel):
    """What one grader says of an answer."""

    grader: str
    score: float | None = Field(description="From 0 to 1; null if it is unknown.")
    reason: str
    actions: list[str] = Field(description="What to change.")
    must: bool = Field(description="Whether it is a requirement, which is met (1) or not.")
    failure: str | None = Field(description="Why it could not grade; null if it could.")

    @classmethod
    def from_feedback(cls, feedback: GraderFeedback) -> GraderOpinion:
        return cls(
            grader=feedback.grader,
            score=feedback.score,
            reason=feedback.reason,
            actions=list(feedback.actions),
            must=feedback.must,
            failure=feedback.failure.message if feedback.failure else None,
        )

    def __str__(self) -> str:
        reasons = (
            [self.reason]
            if self.reason and not any(action.startswith(self.reason) for action in self.actions)
            else []
        )
        said = f"failed: {self.failure}" if self.failure else "; ".join([*reasons, *self.actions])
        return f"{self.grader} {format_score(self.score)}" + (f": {said}" if said else "")


def opinions(feedback: Iterable[GraderFeedback]) -> list[GraderOpinion]:
    """Return what each grader says."""
    return [GraderOpinion.from_feedback(each) for each in feedback]


class AnswerVersion(BaseModel):
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
        actions = dict.fromkeys(
            action for each in grader_feedback(trace, candidate.id) for action in each.actions
        )
        return cls(
            origin=candidate.role,
            score=trace.scores.get(candidate.id),
            note=candidate.note,
            actions=list(actions),
        )


class RefineResult(ToolResult):
    """The result of `refine`."""

    answer: str = Field(description="The best answer.")
    value: Any = Field(
        description=(
            "The answer as a JSON value, if `answer_schema` was given and the answer follows it."
        )
    )
    score: float | None = Field(description="From 0 to 1; null if it is unknown.")
    reason: str = Field(description="Why it has this score.")
    unmet: list[str] = Field(description="The requirements that the answer does not meet.")
    iterations: int
    stop: str = Field(
        description='Why the work ended, such as "target", "patience", "budget" or "deadline".'
    )
    note: str
    summary: str = Field(
        description=(
            "The scores of the first and of the best answer, and why the work ended, in words."
        )
    )
    changes: list[AnswerVersion] = Field(description="Every version of the answer, in order.")
    usage: CallUsage
    trace_id: str | None = Field(
        description="The name of the stored trace; null if traces are not stored."
    )

    @classmethod
    def from_result(cls, result: Result[Any], trace_id: str | None) -> RefineResult:
        trace, facts = result.trace, result.metadata
        return cls(
            answer=result.value,
            value=result.to_dict().get("parsed"),
            score=result.score,
            reason=result.reason,
            unmet=facts["broken"],
            iterations=facts["iterations"],
            stop=str(result.stop),
            note=facts["note"],
            summary=headline(result),
            changes=[AnswerVersion.from_candidate(trace, each) for each in trace.candidates],
            usage=CallUsage.from_usage(result.usage),
            trace_id=trace_id,
        )

    def texts(self) -> list[str]:
        unmet = [f"not met: {', '.join(self.unmet)}"] if self.unmet else []
        facts = [self.summary, *unmet, f"{self.iterations} rewrites", str(self.usage)]
        return [self.answer, " · ".join(facts)]


class GradeResult(ToolResult):
    """The result of `grade`."""

    score: float | None = Field(
        description="Of all graders together, from 0 to 1; null if one is unknown."
    )
    unmet: list[str] = Field(description="The requirements that the answer does not meet.")
    graders: list[GraderOpinion]
    usage: CallUsage

    @classmethod
    def from_report(cls, report: GradeReport) -> GradeResult:
        return cls(
            score=report.score,
            unmet=list(report.broken_musts),
            graders=opinions(report.feedback),
            usage=CallUsage.from_usage(report.usage),
        )

    def texts(self) -> list[str]:
        return [
            "\n".join([f"score {format_score(self.score)} · {self.usage}", *map(str, self.graders)])
        ]


class RankedText(BaseModel):
    """An answer with its rank."""

    number: int = Field(description="The place of the answer in `answers`, from 1.")
    rank: int | None = Field(description="From 1, equal for ties; null if it was not graded.")
    tie: bool
    score: float | None
    unmet: list[str]
    graders: list[GraderOpinion]


class CompareResult(ToolResult):
    """The result of `compare`."""

    best: int | None = Field(
        description="The number of the best answer, from 1; null if none was graded."
    )
    is_tie: bool = Field(description="Whether others are as good.")
    ranking: list[RankedText] = Field(description="The answers, best first.")
    reasons: list[str] = Field(description="What graders that compare answers say.")
    usage: CallUsage

    @classmethod
    def from_result(cls, result: Result[Any]) -> CompareResult:
        trace = result.trace
        rows = [
            RankedText(
                number=row.candidate.id + 1,
                rank=row.rank,
                tie=row.tied,
                score=row.score,
                unmet=broken_musts(trace, row.candidate.id),
                graders=opinions(
                    each
                    for each in grader_feedback(trace, row.candidate.id)
                    if each.repeats or each.failure
                ),
            )
            for row in result.ranking
        ]
        first = next((row for row in rows if row.rank is not None), None)
        reasons = [f"{each.grader}: {each.reason}" for each in trace.comparisons if each.reason]
        return cls(
            best=first.number if first else None,
            is_tie=bool(first and first.tie),
            ranking=rows,
            reasons=reasons,
            usage=CallUsage.from_usage(result.usage),
        )

    def texts(self) -> list[str]:
        best = (
            "nothing was graded"
            if self.best is None
            else f"best: answer {self.best}{' (a tie)' if self.is_tie else ''}"
        )
        rows = [
            f"{row.rank or '-'}. answer {row.number}, score {format_score(row.score)}"
            for row in self.ranking
        ]
        return ["\n".join([f"{best} · {self.usage}", *rows, *self.reasons])]


class AgreementMeasure(BaseModel):
    """A measure of agreement with its 95 % interval."""

    name: str
    value: float | None
    low: float | None
    high: float | None
    n: int
    chance: float | None = Field(description="The value of a grader that guesses.")

    @classmethod
    def from_measure(cls, measure: Measure) -> AgreementMeasure:
        return cls(
            name=measure.name,
            value=measure.value,
            low=measure.low,
            high=measure.high,
            n=measure.n,
            chance=measure.chance,
        )


class ValidateResult(ToolResult):
    """The result of `validate_grader`."""

    grader: str
    better_than_chance: bool = Field(description="With 95 % confidence.")
    headline: AgreementMeasure
    measures: list[AgreementMeasure] = Field(
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
    usage: CallUsage
    summary: str

    @classmethod
    def from_validation(cls, result: ValidationResult, disagreements: list[int]) -> ValidateResult:
        return cls(
            grader=result.card.grader,
            better_than_chance=result.trusted,
            headline=AgreementMeasure.from_measure(result.headline),
            measures=[AgreementMeasure.from_measure(each) for each in result.measures.values()],
            judged=result.card.rows,
            unjudged=result.card.unjudged,
            disagreements=disagreements[:MAX_DISAGREEMENTS],
            usage=CallUsage.from_usage(result.usage or Usage()),
            summary=result.card.summary(),
        )

    def texts(self) -> list[str]:
        verdict = (
            "better than chance"
            if self.better_than_chance
            else "not shown to be better than chance"
        )
        others = (
            f"\ndisagrees in examples {', '.join(map(str, self.disagreements))}"
            if self.disagreements
            else ""
        )
        return [f"{self.grader}: {verdict}. {self.summary}{others} · {self.usage}"]
