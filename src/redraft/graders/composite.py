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
from ..core.records import NOTHING, Candidate, Criterion, Failure, Feedback, Record, Task, Usage
from ..error_text import error_text
from ..errors import BudgetExhaustedError, ConfigError, GradingError, RedraftError, name_of
from ..protocols import Ask

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
    rejects: float = 0.3
    name: str = "cascade"

    def __post_init__(self) -> None:
        _take(self, "first", "then")
        checks.share("rejects", self.rejects)
        checks.text("name", self.name)

    @property
    def parts(self) -> tuple[Any, ...]:
        return (self.first, self.then)

    @property
    def free(self) -> bool:
        return all_free(self.parts)

    async def grade(self, task: Task, candidate: Candidate, ask: Ask) -> Feedback:
        """The view of whoever decided. Raises what `then` raises, and BudgetExhaustedError."""
        first = await view_or_failure(self.first, task, candidate, ask)
        if isinstance(first, Feedback) and first.score is not None and first.score < self.rejects:
            return replace(first, reason=f"{self.first.name} decided: {first.reason}", votes=(first,))
        then = await view_of(self.then, task, candidate, ask)
        reason = f"{self.then.name} decided, after {told(first)}: {then.reason}"
        return replace(then, reason=reason, usage=spent((first, then)), votes=(first, then))


@dataclass(frozen=True)
class Gate:
    """A grader that is asked only about answers that pass a gate.

    An answer that `gate` scores below `at`, in (0, 1], gets 0 with the gate's reason and actions, and `grader` is not
    asked. One that the gate gives no score stays without one. Both are names, functions or graders. Raises ConfigError.
    """

    gate: Any
    grader: Any
    at: float = 1.0
    name: str = "gate"

    def __post_init__(self) -> None:
        _take(self, "gate", "grader")
        checks.share("at", self.at)
        checks.text("name", self.name)

    @property
    def parts(self) -> tuple[Any, ...]:
        return (self.gate, self.grader)

    @property
    def free(self) -> bool:
        return all_free(self.parts)

    async def grade(self, task: Task, candidate: Candidate, ask: Ask) -> Feedback:
        """The grader's view, or the gate's. Raises what they raise."""
        gate = await view_of(self.gate, task, candidate, ask)
        if gate.score is None or gate.score < self.at:
            score = None if gate.score is None else 0.0
            return replace(gate, score=score, reason=f"stopped by {told(gate)}: {gate.reason}", done=False, votes=(gate,))
        view = await view_of(self.grader, task, candidate, ask)
        return replace(view, usage=spent((gate, view)), votes=(gate, view))


@dataclass(frozen=True)
class Weighted:
    """The weighted mean of several graders as one: `{grader: weight}` or pairs of them; weights are numbers > 0.

    Each part is a criterion of the feedback. A part without a score leaves the whole without one: weights are never
    renormalised. Raises ConfigError.
    """

    weights: Mapping[Any, float] | Sequence[tuple[Any, float]]
    name: str = "weighted"

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", _weighed(self.weights))
        checks.text("name", self.name)

    @property
    def parts(self) -> tuple[Any, ...]:
        return tuple(grader for grader, _ in self.weights)

    @property
    def free(self) -> bool:
        return all_free(self.parts)

    async def grade(self, task: Task, candidate: Candidate, ask: Ask) -> Feedback:
        """One view made of all. Raises what a part raises."""
        weights = [weight for _, weight in self.weights]
        views = await views_of(self.parts, task, candidate, ask)
        scores = _known(views)
        score = sum(w * s for w, s in zip(weights, scores, strict=True)) / sum(weights) if scores else None
        return _as_one(views, weights, score)


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
    def free(self) -> bool:
        return all_free(self.parts)

    async def grade(self, task: Task, candidate: Candidate, ask: Ask) -> Feedback:
        """One view made of all. Raises what a part raises."""
        views = await views_of(self.parts, task, candidate, ask)
        return _as_one(views, [1.0] * len(views), min(_known(views), default=None))


def _known(views: Sequence[Feedback]) -> list[float]:
    """All scores; none of them where one is unknown."""
    scores = [v.score for v in views if v.score is not None]
    return scores if len(scores) == len(views) else []


def _as_one(views: Sequence[Feedback], weights: Sequence[float], score: float | None) -> Feedback:
    criteria = tuple(_criterion(view, weight) for view, weight in zip(views, weights, strict=True) if view.score is not None)
    actions = unlike(c.action for c in criteria if c.action)
    reason, done = "; ".join(map(told, views)), agreed(v.done for v in views)
    return Feedback(score, reason, actions, done, criteria, usage=spent(views), votes=tuple(views))


def _criterion(view: Feedback, weight: float) -> Criterion:
    assert view.score is not None
    action = ("; ".join(view.actions) or view.reason) if view.score < 1 else ""
    return Criterion(view.grader, view.score, action=action, weight=weight)


def told(vote: Feedback | Failure) -> str:
    """Who said what, in a word: a score, or that there is none."""
    if isinstance(vote, Failure):
        return f"{vote.of[2]} failed"
    return f"{vote.grader} {'unknown' if vote.score is None else format(vote.score, '.2f')}"


def spent(votes: Iterable[Record]) -> Usage:
    """What the parts themselves say they consumed; what they asked of models is on the bill already."""
    return sum((vote.usage for vote in votes), NOTHING)


def agreed(said: Iterable[bool | None]) -> bool | None:
    """True when all who say anything say so; None when nobody does."""
    words = [word for word in said if word is not None]
    return all(words) if words else None


def unlike(texts: Iterable[str]) -> tuple[str, ...]:
    """The texts in order, each once."""
    return tuple(dict.fromkeys(texts))


async def view_of(part: Any, task: Task, candidate: Candidate, ask: Ask, *, name: str = "", look: int = 0) -> Feedback:
    """What a part says, under its name. Raises RedraftError: foreign code that fails twice is a GradingError."""

    async def grade() -> Feedback:
        said = await part.grade(task, candidate, ask.on(getattr(part, "model", None), look))
        if not isinstance(said, Feedback):
            raise TypeError(f"it returned {said!r}; it must return Feedback")
        return replace(said, grader=name or part.name, candidate=candidate.id)

    return await twice(name or part.name, grade)


async def twice(name: str, work: Callable[[], Awaitable[T]]) -> T:
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


async def view_or_failure(part: Any, task: Task, candidate: Candidate, ask: Ask) -> Feedback | Failure:
    """What a part says, or why it could not. Raises BudgetExhaustedError."""
    return await or_failure(view_of(part, task, candidate, ask), ("feedback", candidate.id, part.name, 0), "grade")


async def or_failure(work: Awaitable[T], slot: tuple[Any, ...], role: str) -> T | Failure:
    """What comes of it, or the Failure of that slot. Raises BudgetExhaustedError: it ends more than one vote."""
    try:
        return await work
    except BudgetExhaustedError:
        raise
    except RedraftError as error:
        return Failure(slot, role, name_of(error), str(error)[:2000], **error.details)


async def views_of(parts: Sequence[Any], task: Task, candidate: Candidate, ask: Ask) -> list[Feedback]:
    """What all parts say, each under a name of its own."""
    names = own_names(parts)
    return await together(view_of(p, task, candidate, ask, name=name) for p, name in zip(parts, names, strict=True))


async def together(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """What comes of all of them, in order. An error, or being cancelled, ends the others."""
    going = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*going)
    finally:
        await cancel_and_wait(going)


def own_names(parts: Sequence[Any]) -> list[str]:
    """The names of the parts, made different where they are not: judge, judge#2."""
    names: list[str] = []
    for part in parts:
        n, name = 1, part.name
        while name in names:
            n += 1
            name = f"{part.name}#{n}"
        names.append(name)
    return names


def all_free(parts: Sequence[Any]) -> bool:
    """Whether none of the parts asks a model."""
    return all(getattr(part, "free", False) for part in parts)


def as_part(given: Any, whose: str, does: str = "grade") -> Any:
    """A part from whatever names a grader; one that `does` grade, or compare. Raises ConfigError."""
    from .names import as_grader  # it leads to the registry, which leads here

    part = as_grader(given)
    if not hasattr(part, does):
        only, other = ("ranks", "a Council") if does == "grade" else ("scores", "a Jury")
        raise ConfigError(f"{whose}: {part.name!r} only {only} answers; that is for {other}")
    return part


def as_parts(given: Any, whose: str, does: str = "grade") -> tuple[Any, ...]:
    """The parts in a list, or the one that is given alone. Raises ConfigError where there is none."""
    listed = given if isinstance(given, list | tuple) else [given]
    if not listed:
        raise ConfigError(f"{whose} needs at least one part, got {checks.shown(given)}")
    return tuple(as_part(one, whose, does) for one in listed)


def _take(whole: Any, *names: str) -> None:
    for name in names:
        object.__setattr__(whole, name, as_part(getattr(whole, name), f"{whole.name}: {name}"))


def _weighed(given: Any) -> tuple[tuple[Any, float], ...]:
    pairs = list(given.items()) if isinstance(given, Mapping) else list(given) if isinstance(given, list | tuple) else []
    if not pairs or not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
        raise ConfigError(f"weighted needs {{grader: weight}} or pairs (grader, weight), got {checks.shown(given)}")
    for _, weight in pairs:
        checks.positive("weight", weight)
    return tuple((as_part(grader, "weighted"), float(weight)) for grader, weight in pairs)
