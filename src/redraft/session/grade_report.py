"""The report of a graded response: a view of the trace of its grades, by grader."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from html import escape
from typing import Any

from ..base import checks
from ..base.text import strip_control_sequences
from ..errors import RedraftError
from ..graders.base import consensus, unique_texts
from ..loop.records import CriterionScore, Failure, Feedback
from ..loop.trace import PanelGrader, Trace
from ..plans.quality.likelihood import Z_95
from ..plans.quality.lineage import llm_graders, observe
from ..plans.quality.posterior import Posterior
from ..plans.quality.priors import Priors
from ..plans.quality.result_facts import broken_musts, result_facts
from ..result import error_data, format_score
from ..usage import NO_USAGE, Usage

# the facts of a result that a grade has, too
GRADE_FACTS = ("schema", "broken", "calls", "tokens", "cost", "error", "error_kind")


@dataclass(frozen=True)
class GraderFeedback:
    """What one grader says of a response; with repeats, what all of them say together.

    Attributes:
        grader: The grader's name in the report; of two with one name, the second is "NAME#2".
        repeats: The feedback of each repeat that did not fail.
        failure: Why the grader failed, or why a repeat of it did; None if none failed.
        must: Whether the grader is a condition, which is no part of the mean.
        weight: Its weight in the mean.
        score: The mean over the repeats, from 0 to 1; None if a score is unknown or a repeat
            failed.
    """

    grader: str
    repeats: tuple[Feedback, ...]
    failure: Failure | None = None
    must: bool = False
    weight: float = 1.0
    score: float | None = None
    _failed_usage: Usage = field(default=NO_USAGE, repr=False)

    @property
    def reason(self) -> str:
        """Why, in words; the different reasons of repeats are separated by semicolons."""
        return "; ".join(unique_texts(f.reason for f in self.repeats if f.reason))

    @property
    def actions(self) -> tuple[str, ...]:
        """What to change."""
        return unique_texts(action for f in self.repeats for action in f.actions)

    @property
    def done(self) -> bool | None:
        """Whether the grader would stop here; None if it does not say."""
        return consensus(f.done for f in self.repeats)

    @property
    def is_critique(self) -> bool:
        """Whether it has actions or `done`, and no score."""
        return self.score is None and (bool(self.actions) or self.done is not None)

    @property
    def criteria(self) -> tuple[CriterionScore, ...]:
        """Scores by criterion: the mean over the repeats, with the evidence and the action of the
        lowest.
        """
        by_name: defaultdict[str, list[CriterionScore]] = defaultdict(list)
        for criterion in (c for f in self.repeats for c in f.criteria):
            by_name[criterion.name].append(criterion)
        return tuple(
            replace(
                min(scores, key=lambda c: c.score), score=sum(c.score for c in scores) / len(scores)
            )
            for scores in by_name.values()
        )

    @property
    def metadata(self) -> dict[str, Any]:
        """What the grader added to its feedback; of repeats with the same key, the first counts."""
        return {key: value for f in reversed(self.repeats) for key, value in f.metadata.items()}

    @property
    def by(self) -> str:
        """The model that graded, or ""."""
        return ", ".join(unique_texts(f.by for f in self.repeats if f.by))

    @property
    def usage(self) -> Usage:
        """The usage of all calls, failed ones included."""
        return sum((f.usage for f in self.repeats), self._failed_usage)

    def to_dict(self) -> dict[str, Any]:
        """Return the feedback as plain data that `json.dumps` accepts."""
        return {
            "grader": self.grader,
            "score": self.score,
            "reason": self.reason,
            "actions": list(self.actions),
            "done": self.done,
            "criteria": [asdict(criterion) for criterion in self.criteria],
            "metadata": self.metadata,
            "must": self.must,
            "weight": self.weight,
            "by": self.by,
            "usage": asdict(self.usage),
            "failure": self.failure
            and {"error": self.failure.error, "message": self.failure.message},
        }


@dataclass(frozen=True)
class GradeReport:
    """The grades of one response: the score of all graders together, and the feedback of each.

    `report["NAME"]` is the feedback of the grader with that name.

    Attributes:
        trace: The task with the response, and all records.
        error: The error of a sample of `grade_many` that no grader could grade, else None.
        callback_errors: What `on_record` raised, in words; grading went on.
    """

    trace: Trace
    error: RedraftError | None = None
    callback_errors: tuple[str, ...] = field(default=(), compare=False)

    @property
    def score(self) -> float | None:
        """The weighted mean of the graders' scores, from 0 to 1; None if one of them is unknown or
        failed.

        Conditions (`must`, requirements of the task) are part of it only if there are no other
        graders.
        """
        return self.trace.scores.get(0)

    @cached_property
    def score_interval(self) -> tuple[float, float] | None:
        """The 95% interval of the answer's quality, given the scores and the usual noise of judges
        (the shipped priors); None if no judge takes part in the score, or it is unknown.
        """
        if self.score is None or not llm_graders(self.trace.scorers):
            return None
        posterior = Posterior(observe(self.trace), Priors())
        half = Z_95 * posterior.sd_of(0)
        low, high = posterior.means[0] - half, posterior.means[0] + half
        return round(max(0.0, low), 2), round(min(1.0, high), 2)

    @cached_property
    def feedback(self) -> tuple[GraderFeedback, ...]:
        """The feedback of each grader, in the order of the graders; requirements of the task come
        first.
        """
        return grader_feedback(self.trace, 0)

    @property
    def by_name(self) -> dict[str, GraderFeedback]:
        """The feedback by the grader's name."""
        return {feedback.grader: feedback for feedback in self.feedback}

    def __getitem__(self, grader: str) -> GraderFeedback:
        try:
            return self.by_name[grader]
        except KeyError:
            raise KeyError(
                checks.unknown_name_message("grader", str(grader), self.by_name)
            ) from None

    @property
    def failures(self) -> dict[str, Failure]:
        """The failures by the grader's name."""
        return {feedback.grader: feedback.failure for feedback in self.feedback if feedback.failure}

    @property
    def broken_musts(self) -> list[str]:
        """The conditions that the response does not meet."""
        return broken_musts(self.trace)

    @property
    def usage(self) -> Usage:
        """The usage of all calls, failed and repeated ones included."""
        return self.trace.usage

    @property
    def cost(self) -> float | None:
        """The cost in USD; None if a price or a token count is unknown."""
        return self.usage.cost

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data that `json.dumps` accepts: with the names, and the
        meanings, of `Result.to_dict`.
        """
        facts = result_facts(self.trace).as_data()
        return {
            **{name: facts[name] for name in GRADE_FACTS},
            **error_data(self.error),
            "score": self.score,
            "feedback": [feedback.to_dict() for feedback in self.feedback],
            "usage": asdict(self.usage),
            "callback_errors": list(self.callback_errors),
        }

    def summary(self) -> str:
        """Return one line: the score, the conditions that are not met, and the graders that
        failed.
        """
        broken = (
            [f"broken: {strip_control_sequences(', '.join(self.broken_musts))}"]
            if self.broken_musts
            else []
        )
        failed = (
            [f"failed: {strip_control_sequences(', '.join(self.failures))}"]
            if self.failures
            else []
        )
        raised = map(strip_control_sequences, self.callback_errors)
        return " · ".join(
            [
                f"score {format_score(self.score)}",
                *broken,
                *failed,
                *raised,
                f"calls {self.usage.calls}",
            ]
        )

    def __repr__(self) -> str:
        scores = ", ".join(f"{f.grader}: {format_score(f.score)}" for f in self.feedback)
        return f"GradeReport(score={format_score(self.score)}, {{{scores}}})"

    def __rich__(self) -> Any:
        from rich.text import Text

        return Text(
            "\n".join(
                [
                    self.summary(),
                    *(f"{name}: {score} {what}".rstrip() for name, score, what in self._rows()),
                ]
            )
        )

    def _repr_html_(self) -> str:
        cells = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in self._rows())
        rows = "".join(f"<tr>{row}</tr>" for row in cells)
        return f"<p>{escape(self.summary())}</p><table><tr><th>grader<th>score<th>reason</tr>{rows}</table>"  # noqa: E501

    def _rows(self) -> list[tuple[str, str, str]]:
        """Return name, score and reason of each grader, safe for a terminal."""
        return [
            (
                strip_control_sequences(f.grader),
                "failed" if f.failure else format_score(f.score),
                strip_control_sequences(
                    f.failure.message
                    if f.failure
                    else "; ".join(filter(None, (f.reason, *f.actions)))
                ),
            )
            for f in self.feedback
        ]


def grader_feedback(trace: Trace, candidate: int) -> tuple[GraderFeedback, ...]:
    """Return the feedback of each grader of the panel that grades single responses, in the order of
    the panel.
    """
    return tuple(
        [_feedback_of(trace, candidate, grader) for grader in trace.panel if not grader.compares]
    )


def _feedback_of(trace: Trace, candidate: int, grader: PanelGrader) -> GraderFeedback:
    given = tuple([f for f in trace.feedback.get(candidate, ()) if f.grader == grader.name])
    slot = ("feedback", candidate, grader.name)
    score = trace.grader_score(candidate, grader) if candidate in trace.feedback else None
    failures = [record for record in trace.records if isinstance(record, Failure)]
    usage = sum([each.usage for each in failures if each.step_slot[:3] == slot], NO_USAGE)
    return GraderFeedback(
        grader.name,
        given,
        next((failure for of, failure in trace.failures.items() if of[:3] == slot), None),
        must=grader.must,
        weight=grader.weight,
        score=score,
        _failed_usage=usage,
    )
