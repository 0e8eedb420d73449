"""Graders made of graders: the dear one only where the cheap one passes, one behind a gate, or several as one score.

What the parts said is kept in `votes`. Nothing here asks a model itself: each part asks the model that it names, or the
judge of the call, and all go on one bill. A part that fails fails the whole, unless a class says otherwise; what it
fails at is tried once more first, as with any grader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from .. import checks
from ..core.cancellation import cancel_and_wait
from ..core.records import NO_USAGE, Candidate, CriterionScore, Failure, Feedback, Record, Task, Usage
from ..error_text import error_text
from ..errors import BudgetExhaustedError, ConfigError, GradingError, RedraftError, error_name
from ..protocols import JudgeClient

T = TypeVar("T")


@dataclass(frozen=True)
class Cascade:
    """A cheap grader first, a dear one where that is not enough.

    The verdict of `first` stands only where it clearly fails the answer: a score below `rejects`, in (0, 1]. Where it
    passes, is unsure (no score) or fails to answer, `then` decides. The reason says who decided. Both are names,
    functions or graders. Raises ConfigError.
    """

    first: Any
    then: Any
    reject_below: float = 0.3
    name: str = "cascade"

    def __post_init__(self) -> None:
        _set_parts(self, "first", "then")
        checks.share("rejects", self.reject_below)
        checks.text("name", self.name)

    @property
    def parts(self) -> tuple[Any, ...]:
        return (self.first, self.then)

    @property
    def model_free(self) -> bool:
        return all_model_free(self.parts)

    async def grade(self, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback:
        """The view of whoever decided. Raises what `then` raises, and BudgetExhaustedError."""
        first = await grade_part_or_failure(self.first, task, candidate, ask)
        if isinstance(first, Feedback) and first.score is not None and first.score < self.reject_below:
            return replace(first, reason=f"{self.first.name} decided: {first.reason}", votes=(first,))
        then = await grade_part(self.then, task, candidate, ask)
        reason = f"{self.then.name} decided, after {format_vote(first)}: {then.reason}"
        return replace(then, reason=reason, usage=total_usage((first, then)), votes=(first, then))


@dataclass(frozen=True)
class Gate:
    """A grader that is asked only about answers that pass a gate.

    An answer that `gate` scores below `at`, in (0, 1], gets 0 with the gate's reason and actions, and `grader` is not
    asked. One that the gate gives no score stays without one. Both are names, functions or graders. Raises ConfigError.
    """

    gate: Any
    grader: Any
    threshold: float = 1.0
    name: str = "gate"

    def __post_init__(self) -> None:
        _set_parts(self, "gate", "grader")
        checks.share("at", self.threshold)
        checks.text("name", self.name)

    @property
    def parts(self) -> tuple[Any, ...]:
        return (self.gate, self.grader)

    @property
    def model_free(self) -> bool:
        return all_model_free(self.parts)

    async def grade(self, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback:
        """The grader's view, or the gate's. Raises what they raise."""
        gate = await grade_part(self.gate, task, candidate, ask)
        if gate.score is None or gate.score < self.threshold:
            score = None if gate.score is None else 0.0
            return replace(gate, score=score, reason=f"stopped by {format_vote(gate)}: {gate.reason}", done=False, votes=(gate,))
        view = await grade_part(self.grader, task, candidate, ask)
        return replace(view, usage=total_usage((gate, view)), votes=(gate, view))


@dataclass(frozen=True)
class WeightedMean:
    """The weighted mean of several graders as one: `{grader: weight}` or pairs of them; weights are numbers > 0.

    Each part is a criterion of the feedback. A part without a score leaves the whole without one: weights are never
    renormalised. Raises ConfigError.
    """

    weights: Mapping[Any, float] | Sequence[tuple[Any, float]]
    name: str = "weighted"

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", _parse_weights(self.weights))
        checks.text("name", self.name)

    @property
    def parts(self) -> tuple[Any, ...]:
        return tuple(grader for grader, _ in self.weights)

    @property
    def model_free(self) -> bool:
        return all_model_free(self.parts)

    async def grade(self, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback:
        """One view made of all. Raises what a part raises."""
        weights = [weight for _, weight in self.weights]
        views = await grade_parts(self.parts, task, candidate, ask)
        scores = _complete_scores(views)
        score = sum(w * s for w, s in zip(weights, scores, strict=True)) / sum(weights) if scores else None
        return _combine_feedback(views, weights, score)


@dataclass(frozen=True)
class Minimum:
    """The lowest score of several graders: an answer is as good as what is worst in it.

    Each part is a criterion of the feedback. A part without a score leaves the whole without one. Raises ConfigError.
    """

    graders: Sequence[Any]
    name: str = "minimum"

    def __post_init__(self) -> None:
        object.__setattr__(self, "graders", as_parts(self.graders, "minimum"))
        checks.text("name", self.name)

    @property
    def parts(self) -> tuple[Any, ...]:
        return tuple(self.graders)

    @property
    def model_free(self) -> bool:
        return all_model_free(self.parts)

    async def grade(self, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback:
        """One view made of all. Raises what a part raises."""
        views = await grade_parts(self.parts, task, candidate, ask)
        return _combine_feedback(views, [1.0] * len(views), min(_complete_scores(views), default=None))


def _complete_scores(views: Sequence[Feedback]) -> list[float]:
    """All scores; none of them where one is unknown."""
    scores = [v.score for v in views if v.score is not None]
    return scores if len(scores) == len(views) else []


def _combine_feedback(views: Sequence[Feedback], weights: Sequence[float], score: float | None) -> Feedback:
    criteria = tuple(_criterion(view, weight) for view, weight in zip(views, weights, strict=True) if view.score is not None)
    actions = unique_texts(c.action for c in criteria if c.action)
    reason, done = "; ".join(map(format_vote, views)), consensus(v.done for v in views)
    return Feedback(score, reason, actions, done, criteria, usage=total_usage(views), votes=tuple(views))


def _criterion(view: Feedback, weight: float) -> CriterionScore:
    assert view.score is not None
    action = ("; ".join(view.actions) or view.reason) if view.score < 1 else ""
    return CriterionScore(view.grader, view.score, action=action, weight=weight)


def format_vote(vote: Feedback | Failure) -> str:
    """Who said what, in a word: a score, or that there is none."""
    if isinstance(vote, Failure):
        return f"{vote.step_slot[2]} failed"
    return f"{vote.grader} {'unknown' if vote.score is None else format(vote.score, '.2f')}"


def total_usage(votes: Iterable[Record]) -> Usage:
    """What the parts themselves say they consumed; what they asked of models is on the bill already."""
    return sum((vote.usage for vote in votes), NO_USAGE)


def consensus(values: Iterable[bool | None]) -> bool | None:
    """True when all who say anything say so; None when nobody does."""
    words = [word for word in values if word is not None]
    return all(words) if words else None


def unique_texts(texts: Iterable[str]) -> tuple[str, ...]:
    """The texts in order, each once."""
    return tuple(dict.fromkeys(texts))


async def grade_part(part: Any, task: Task, candidate: Candidate, ask: JudgeClient, *, name: str = "", repeat: int = 0) -> Feedback:
    """What a part says, under its name. Raises RedraftError: foreign code that fails twice is a GradingError."""

    async def grade() -> Feedback:
        said = await part.grade(task, candidate, ask.with_options(getattr(part, "model", None), repeat))
        if not isinstance(said, Feedback):
            raise TypeError(f"it returned {said!r}; it must return Feedback")
        return replace(said, grader=name or part.name, candidate=candidate.id)

    return await retry_once(name or part.name, grade)


async def retry_once(name: str, work: Callable[[], Awaitable[T]]) -> T:
    """What comes of it. Foreign code that fails is tried again; a model's failure was retried where it arose."""
    for last in (False, True):
        try:
            return await work()
        except RedraftError:
            raise
        except Exception as error:
            if last:
                raise GradingError(f"{name}: {error_text(error)}") from error
    raise AssertionError("unreachable")


async def grade_part_or_failure(part: Any, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback | Failure:
    """What a part says, or why it could not. Raises BudgetExhaustedError."""
    return await capture_failure(grade_part(part, task, candidate, ask), ("feedback", candidate.id, part.name, 0), "grade")


async def capture_failure(work: Awaitable[T], slot: tuple[Any, ...], role: str) -> T | Failure:
    """What comes of it, or the Failure of that slot. Raises BudgetExhaustedError: it ends more than one vote."""
    try:
        return await work
    except BudgetExhaustedError:
        raise
    except RedraftError as error:
        return Failure(slot, role, error_name(error), str(error)[:2000], **error.details)


async def grade_parts(parts: Sequence[Any], task: Task, candidate: Candidate, ask: JudgeClient) -> list[Feedback]:
    """What all parts say, each under a name of its own."""
    names = unique_names(parts)
    return await gather_or_cancel(grade_part(p, task, candidate, ask, name=name) for p, name in zip(parts, names, strict=True))


async def gather_or_cancel(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """What comes of all of them, in order. An error, or being cancelled, ends the others."""
    going = [asyncio.ensure_future(work) for work in coroutines]
    try:
        return await asyncio.gather(*going)
    finally:
        await cancel_and_wait(going)


def unique_names(parts: Sequence[Any]) -> list[str]:
    """The names of the parts, made different where they are not: judge, judge#2."""
    names: list[str] = []
    for part in parts:
        n, name = 1, part.name
        while name in names:
            n += 1
            name = f"{part.name}#{n}"
        names.append(name)
    return names


def all_model_free(parts: Sequence[Any]) -> bool:
    """Whether none of the parts asks a model."""
    return all(getattr(part, "model_free", False) for part in parts)


def as_part(value: Any, owner: str, method: str = "grade") -> Any:
    """A part from whatever names a grader; one that `does` grade, or compare. Raises ConfigError."""
    from .names import as_grader  # it leads to the registry, which leads here

    part = as_grader(value)
    if not hasattr(part, method):
        only, other = ("ranks", "a Council") if method == "grade" else ("scores", "a Jury")
        raise ConfigError(f"{owner}: {part.name!r} only {only} answers; that is for {other}")
    return part


def as_parts(value: Any, owner: str, method: str = "grade") -> tuple[Any, ...]:
    """The parts in a list, or the one that is given alone. Raises ConfigError where there is none."""
    listed = value if isinstance(value, list | tuple) else [value]
    if not listed:
        raise ConfigError(f"{owner} needs at least one part, got {checks.format_value(value)}")
    return tuple(as_part(one, owner, method) for one in listed)


def _set_parts(grader: Any, *names: str) -> None:
    for name in names:
        object.__setattr__(grader, name, as_part(getattr(grader, name), f"{grader.name}: {name}"))


def _parse_weights(value: Any) -> tuple[tuple[Any, float], ...]:
    pairs = list(value.items()) if isinstance(value, Mapping) else list(value) if isinstance(value, list | tuple) else []
    if not pairs or not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
        raise ConfigError(f"weighted needs {{grader: weight}} or pairs (grader, weight), got {checks.format_value(value)}")
    for _, weight in pairs:
        checks.positive("weight", weight)
    return tuple((as_part(grader, "weighted"), float(weight)) for grader, weight in pairs)
