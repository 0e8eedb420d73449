"""Graders made of graders: cascades, gates, means, minima, juries, and routers, which choose one
grader for each task.

`Feedback.votes` holds the vote of every part. Each part asks the model that it names, or the judge
of the call, and the calls of all parts are accounted for together. A part that fails is tried once
more, as any grader is. If it fails again, so does the composite; a jury continues without that
vote.

Panels of several judges: Verga et al., arXiv:2404.18796.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from statistics import fmean, median
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from ..base import checks
from ..base.descriptors import is_shortage
from ..base.error_text import error_text
from ..base.own_code import fingerprint_name
from ..errors import (
    EXTERNAL_ERRORS,
    BudgetExhaustedError,
    ConfigError,
    GradingError,
    RedraftError,
    error_name,
)
from ..loop.records import (
    Candidate,
    Comparison,
    CriterionScore,
    Failure,
    Feedback,
    Record,
)
from ..loop.task import Task
from ..protocols import Comparer, Grader, JudgeClient
from ..usage import NO_USAGE, Usage
from .base import (
    MAX_REPEATS,
    all_actions,
    as_feedback,
    consensus,
    copeland,
    gather_or_cancel,
    retry_once,
    unique_name,
    unique_texts,
)
from .registry import as_grader
from .traits import GraderTraits, traits_of

T = TypeVar("T")
Key: TypeAlias = str | Callable[[Task], str]
Aggregation = Literal["mean", "median", "majority", "trimmed"]
METADATA = "metadata."
REPEAT_STRIDE = (
    1000  # distance between the repeat indices of two votes: a part may itself use that many
)


class Composite:
    """A grader or comparer made of others, its `parts`."""

    @property
    def parts(self) -> tuple[Any, ...]:
        raise NotImplementedError

    @cached_property
    def part_traits(self) -> tuple[GraderTraits, ...]:
        """What the parts say of themselves."""
        return tuple(map(traits_of, self.parts))

    @property
    def model_free(self) -> bool:
        """Whether none of the parts asks a model."""
        return all(part.model_free for part in self.part_traits)


@fingerprint_name("cascade")
@dataclass(frozen=True)
class Cascade(Composite):
    """A cheap grader first; an expensive one unless the cheap one clearly rejects the answer.

    If `first` scores the answer below `reject_below`, in (0, 1], that is the verdict. Otherwise,
    and if it gives no score or fails, `then` decides. The reason says which of the two decided.
    Both are names, functions or graders. Raises ConfigError.
    """

    first: Any
    then: Any
    reject_below: float = 0.3
    name: str = "cascade"

    def __post_init__(self) -> None:
        _resolve_parts(self, first=self.first, then=self.then)
        checks.share("reject_below", self.reject_below)
        checks.text("name", self.name)

    @property
    def parts(self) -> tuple[Any, ...]:
        return (self.first, self.then)

    async def grade(self, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback:
        """Return the feedback of the part that decides. Raises what `then` raises, and
        BudgetExhaustedError.
        """
        cheap, expensive = self.part_traits
        slot = ("feedback", candidate.id, cheap.name, 0)
        first = await capture_failure(grade_part(cheap, task, candidate, ask), slot, "grade")
        if (
            isinstance(first, Feedback)
            and first.score is not None
            and first.score < self.reject_below
        ):
            reason = _join(f"{cheap.name} decided", first.reason)
            return replace(first, reason=reason, votes=(first,))
        then = await grade_part(expensive, task, candidate, ask)
        reason = _join(f"{expensive.name} decided, after {format_vote(first)}", then.reason)
        return replace(then, reason=reason, usage=total_usage((first, then)), votes=(first, then))


@fingerprint_name("gate")
@dataclass(frozen=True)
class Gate(Composite):
    """A grader that is asked only about answers that pass a gate.

    An answer that `gate` scores below `threshold`, in (0, 1], gets 0 with the gate's reason and
    actions, and `grader` is not asked. If the gate gives no score, there is none. Both are names,
    functions or graders. Raises ConfigError.
    """

    gate: Any
    grader: Any
    threshold: float = 1.0
    name: str = "gate"

    def __post_init__(self) -> None:
        _resolve_parts(self, gate=self.gate, grader=self.grader)
        checks.share("threshold", self.threshold)
        checks.text("name", self.name)

    @property
    def parts(self) -> tuple[Any, ...]:
        return (self.gate, self.grader)

    async def grade(self, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback:
        """Return the grader's feedback, or the gate's. Raises what they raise."""
        gate_part, grader_part = self.part_traits
        gate = await grade_part(gate_part, task, candidate, ask)
        if gate.score is None or gate.score < self.threshold:
            score = None if gate.score is None else 0.0
            return replace(
                gate,
                score=score,
                reason=_join(f"stopped by {format_vote(gate)}", gate.reason),
                done=False,
                votes=(gate,),
            )
        feedback = await grade_part(grader_part, task, candidate, ask)
        return replace(feedback, usage=total_usage((gate, feedback)), votes=(gate, feedback))


@fingerprint_name("weighted_mean")
@dataclass(frozen=True)
class WeightedMean(Composite):
    """The weighted mean of several graders as one: `{grader: weight}` or pairs of them; weights are
    numbers > 0.

    Each part is a criterion of the feedback. If a part gives no score, there is none: weights are
    never renormalised. Raises ConfigError.
    """

    weights: Mapping[Any, float] | Sequence[tuple[Any, float]]
    name: str = "weighted"

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", _parse_weights(self.weights))
        checks.text("name", self.name)

    @property
    def parts(self) -> tuple[Any, ...]:
        return tuple(grader for grader, _ in self.weights)

    async def grade(self, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback:
        """Return the combined feedback of all parts. Raises what a part raises."""
        weights = [weight for _, weight in self.weights]
        votes = await grade_parts(self.part_traits, task, candidate, ask)
        scores = _complete_scores(votes)
        score = (
            sum(w * s for w, s in zip(weights, scores, strict=True)) / sum(weights)
            if scores
            else None
        )
        return _combine_feedback(votes, weights, score)


@fingerprint_name("minimum")
@dataclass(frozen=True)
class Minimum(Composite):
    """The lowest score of several graders: an answer is as good as its worst aspect.

    Each part is a criterion of the feedback. If a part gives no score, there is none. Raises
    ConfigError.
    """

    graders: Sequence[Any]
    name: str = "minimum"

    def __post_init__(self) -> None:
        object.__setattr__(self, "graders", as_parts(self.graders, "minimum"))
        checks.text("name", self.name)

    @property
    def parts(self) -> tuple[Any, ...]:
        return tuple(self.graders)

    async def grade(self, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback:
        """Return the combined feedback of all parts. Raises what a part raises."""
        votes = await grade_parts(self.part_traits, task, candidate, ask)
        return _combine_feedback(
            votes, [1.0] * len(votes), min(_complete_scores(votes), default=None)
        )


def _complete_scores(votes: Sequence[Feedback]) -> list[float]:
    """Return all scores, or an empty list if one is unknown."""
    scores = [vote.score for vote in votes if vote.score is not None]
    return scores if len(scores) == len(votes) else []


def _combine_feedback(
    votes: Sequence[Feedback], weights: Sequence[float], score: float | None
) -> Feedback:
    criteria = []
    for vote, weight in zip(votes, weights, strict=True):
        if vote.score is not None:
            action = ("; ".join(vote.actions) or vote.reason) if vote.score < 1 else ""
            criteria.append(CriterionScore(vote.grader, vote.score, action=action, weight=weight))
    return Feedback(
        score,
        "; ".join(map(format_vote, votes)),
        unique_texts(c.action for c in criteria),
        consensus(vote.done for vote in votes),
        tuple(criteria),
        usage=total_usage(votes),
        votes=tuple(votes),
    )


# ---- juries


@fingerprint_name("jury")
@dataclass(frozen=True)
class Jury(Composite):
    """A grader made of several, or of several votes of one; all vote at the same time.

    `graders`: names, functions or graders, or a single one; each votes `repeats` times (>= 1).
    Repeated votes of a model differ only at a temperature above 0. `aggregation` combines the
    scores: their "mean"; their "median"; "trimmed", the mean without the lowest and the highest (of
    fewer than three, the mean of all); or "majority": a score of at least `pass_threshold` is a
    vote to pass, and the result is 1 if more than half of the votes are, 0 if fewer are, 0.5 at a
    tie.

    A vote that fails, or says nothing, does not count; at least `quorum` votes must count (None:
    more than half). A critic's vote counts and is no part of the score, which critics alone leave
    unknown. The actions are those of critics and of the votes below 1; `done` is True if every vote
    with a known `done` says so. Raises ConfigError.
    """

    graders: Any
    aggregation: Aggregation = "mean"
    quorum: int | None = None
    name: str = "jury"
    repeats: int = 1
    pass_threshold: float = 0.5

    def __post_init__(self) -> None:
        checks.text("name", self.name)
        object.__setattr__(self, "graders", as_parts(self.graders, self.name))
        checks.one_of(f"{self.name}: aggregation", self.aggregation, get_args(Aggregation))
        checks.whole_number(f"{self.name}: repeats", self.repeats, 1, MAX_REPEATS)
        checks.whole_number(
            f"{self.name}: quorum", self.quorum, 1, len(self.parts) * self.repeats, optional=True
        )
        checks.share(f"{self.name}: pass_threshold", self.pass_threshold)

    @property
    def parts(self) -> tuple[Any, ...]:
        return tuple(self.graders)

    async def grade(self, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback:
        """Return the combined feedback of all votes. Raises GradingError without a quorum, and
        BudgetExhaustedError.
        """

        async def vote(slot: VoteSlot) -> Feedback | Failure:
            work = grade_part(
                slot.part, task, candidate, ask, name=slot.name, repeat=slot.sample_offset
            )
            result = await capture_failure(
                work, ("feedback", candidate.id, slot.name, slot.repeat), "grade"
            )
            return replace(result, repeat=slot.repeat) if isinstance(result, Feedback) else result

        return self.aggregate_votes(
            await gather_or_cancel(map(vote, assign_repeats(self.part_traits, self.repeats)))
        )

    def aggregate_votes(self, votes: Sequence[Feedback | Failure]) -> Feedback:
        """Return the combined feedback of all votes. Raises GradingError without a quorum."""
        valid = [vote for vote in votes if isinstance(vote, Feedback)]
        critiques = [vote for vote in valid if vote.is_critique]
        scores = [vote.score for vote in valid if vote.score is not None]
        _check_quorum(self.name, len(scores) + len(critiques), votes, self.quorum)
        summary = f"{self.aggregation} of {len(scores)}: {', '.join(map(format_vote, votes))}"
        return Feedback(
            self._score(scores) if scores else None,
            "; ".join([summary, *unique_texts(vote.reason for vote in valid)]),
            all_actions(vote for vote in valid if vote.score is None or vote.score < 1),
            consensus(vote.done for vote in valid),
            usage=total_usage(votes),
            votes=tuple(votes),
        )

    def _score(self, scores: list[float]) -> float:
        match self.aggregation:
            case "median":
                return median(scores)
            case "majority":
                return median(float(score >= self.pass_threshold) for score in scores)
            case "trimmed" if len(scores) >= 3:
                return fmean(sorted(scores)[1:-1])
        return fmean(scores)


@fingerprint_name("ranking_jury")
@dataclass(frozen=True)
class RankingJury(Composite):
    """A comparer made of several. A candidate beats another if most votes rank it higher; the
    ranking is by wins (Copeland).

    `comparers` are names or comparers such as `Ranker` and `Pairwise`; each votes `repeats` times
    (>= 1). Candidates with equally many wins tie. A vote that fails does not count; at least
    `quorum` votes must count (None: more than half). Raises ConfigError.
    """

    comparers: Any
    quorum: int | None = None
    name: str = "ranking_jury"
    repeats: int = 1

    def __post_init__(self) -> None:
        checks.text("name", self.name)
        object.__setattr__(self, "comparers", as_parts(self.comparers, self.name, "compare"))
        checks.whole_number(f"{self.name}: repeats", self.repeats, 1, MAX_REPEATS)
        checks.whole_number(
            f"{self.name}: quorum", self.quorum, 1, len(self.parts) * self.repeats, optional=True
        )

    @property
    def parts(self) -> tuple[Any, ...]:
        return tuple(self.comparers)

    async def compare(
        self, task: Task, candidates: Sequence[Candidate], ask: JudgeClient
    ) -> Comparison:
        """Return the combined ranking of all votes. Raises GradingError without a quorum, and
        BudgetExhaustedError.
        """
        ids = tuple(sorted(c.id for c in candidates))

        async def vote(slot: VoteSlot) -> Comparison | Failure:
            client = ask.with_options(slot.part.model, slot.sample_offset)

            async def compare() -> Comparison:
                result: Comparison = await slot.part.grader.compare(task, candidates, client)
                if tuple(sorted(result.ranking)) != ids:
                    raise ValueError(
                        f"it ranked {result.ranking!r}; it must rank each of {list(ids)} once"
                    )
                return replace(result, grader=slot.name, repeat=slot.repeat)

            return await capture_failure(
                call_part(slot.name, compare),
                ("comparison", ids, slot.name, slot.repeat),
                "compare",
            )

        return self.aggregate_votes(
            await gather_or_cancel(map(vote, assign_repeats(self.part_traits, self.repeats)))
        )

    def aggregate_votes(self, votes: Sequence[Comparison | Failure]) -> Comparison:
        """Return the combined ranking of all votes. Raises GradingError without a quorum."""
        valid = [vote for vote in votes if isinstance(vote, Comparison)]
        _check_quorum(self.name, len(valid), votes, self.quorum)
        ranking, ties = copeland(valid)
        return Comparison(
            ranking,
            "; ".join(unique_texts(vote.reason for vote in valid)),
            all_actions(valid),
            consensus(vote.done for vote in valid),
            usage=total_usage(votes),
            ties=ties,
            votes=tuple(votes),
        )


@dataclass(frozen=True, slots=True)
class VoteSlot:
    """One vote of one part: the part's unique name, the number of the vote, and the repeat index
    that it asks with.
    """

    part: GraderTraits
    name: str
    repeat: int
    sample_offset: int


def assign_repeats(parts: Sequence[GraderTraits], repeats: int) -> list[VoteSlot]:
    """Give every vote a distinct repeat index, so that a cache never shares an answer between two
    votes.
    """
    votes = [
        (part, name, repeat)
        for part, name in zip(parts, unique_names(parts), strict=True)
        for repeat in range(repeats)
    ]
    offsets = accumulate((_vote_count(part) for part, _, _ in votes), initial=0)
    return [
        VoteSlot(*vote, offset * REPEAT_STRIDE)
        for vote, offset in zip(votes, offsets, strict=False)
    ]


def _vote_count(part: GraderTraits) -> int:
    """Return how many votes one vote of a part consists of: more than one for a jury, or for a
    grader made of juries.
    """
    return max(1, sum(map(_vote_count, part.parts)) * part.repeats)


def _check_quorum(name: str, valid: int, votes: Sequence[Record], quorum: int | None) -> None:
    """Raise GradingError without a quorum; or the error of a failed vote, if an endpoint or the
    budget caused it.
    """
    needed = len(votes) // 2 + 1 if quorum is None else quorum
    if valid >= needed:
        return
    reasons, external = [], []
    for vote in votes:
        if isinstance(vote, Failure):
            voter = f"{vote.step_slot[2]}: "
            reasons.append(voter + vote.message.removeprefix(voter))
            external += [vote] if vote.error in EXTERNAL_ERRORS else []
        elif isinstance(vote, Feedback) and vote.score is None and not vote.is_critique:
            reasons.append(_join(f"{vote.grader}: no score", vote.reason))
    message = (
        f"{name}: {valid} of {len(votes)} votes are valid, it needs {needed}: {'; '.join(reasons)}"[
            :2000
        ]
    )
    raise external[0].as_error(message) if external else GradingError(message)


# ---- routers


def router(
    graders: Mapping[str, Any], by: Key, default: Any = None, *, name: str = "router"
) -> Router:
    """Return a grader that chooses one of several graders for each task.

    Args:
        graders: The graders by key: names, functions or graders.
        by: What gives the key of a task: the path of a value in its metadata, such as
            "metadata.domain", or a function of the task. Numbers and bools are converted as in
            JSON: 3 becomes "3", True "true".
        default: The grader of tasks whose key is missing or not in the mapping; None: such a task
            is an error.
        name: The name of the grader.

    Returns:
        A grader; its feedback is that of the chosen one, which is also its only vote.

    Raises:
        ConfigError: An argument is not as described. A task without a grader is an error before any
            call.
    """
    return Router(graders, by, default, name)


@fingerprint_name("router")
@dataclass(frozen=True)
class Router(Composite):
    """A grader that chooses one of several graders for each task; see `router`."""

    graders: Mapping[str, Any]
    by: Key
    default: Any = None
    name: str = "router"

    reads_metadata = True

    def __post_init__(self) -> None:
        checks.text("name", self.name)
        keys = list(self.graders) if isinstance(self.graders, Mapping) else []
        if not keys or not all(isinstance(key, str) for key in keys):
            raise checks.invalid_argument(
                "graders",
                'graders by key, such as {"math": "math", "code": "code_quality"}',
                self.graders,
            )
        graders = {key: as_part(each, f"{self.name}: {key}") for key, each in self.graders.items()}
        object.__setattr__(self, "graders", graders)
        if self.default is not None:
            object.__setattr__(self, "default", as_part(self.default, f"{self.name}: default"))
        is_path = (
            isinstance(self.by, str) and self.by.startswith(METADATA) and all(self.by.split("."))
        )
        if isinstance(self.by, type) or not (is_path or callable(self.by)):
            raise checks.invalid_argument(
                "by", 'a path such as "metadata.domain", or a function of a task', self.by
            )

    @property
    def parts(self) -> tuple[Any, ...]:
        return (*self.graders.values(), *(() if self.default is None else (self.default,)))

    @property
    def may_call_model(self) -> bool:
        """Whether only the usage shows if a model is called: whether some of the graders call one,
        and others do not.
        """
        return not self.model_free and any(
            part.model_free or part.may_call_model for part in self.part_traits
        )

    def parts_for(self, task: Task) -> tuple[Any, ...]:
        """Return the grader of a task, as a tuple. Raises ConfigError if there is none."""
        key = self._key_of(task)
        grader = self.graders.get(key, self.default) if isinstance(key, str) else self.default
        if grader is None:
            problem = f"there is no grader for {checks.format_value(key)}"
            if key is None and isinstance(self.by, str):
                problem = f"the task has no {self.by}"
            known = ", ".join(map(repr, self.graders))
            raise ConfigError(f"grader {self.name!r}: {problem}; there are {known}, and no default")
        return (grader,)

    async def grade(self, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback:
        """Return the feedback of the chosen grader. Raises what it raises, and ConfigError for a
        task without a grader.
        """
        (grader,) = self.parts_for(task)
        part = next(part for part in self.part_traits if part.grader is grader)
        feedback = await grade_part(part, task, candidate, ask)
        return replace(feedback, votes=(feedback,))

    def _key_of(self, task: Task) -> Any:
        """Return the key of a task, None without one, or any other value that is no key. Raises
        ConfigError.
        """
        if isinstance(self.by, str):
            value: Any = task.metadata
            for key in self.by.removeprefix(METADATA).split("."):
                value = value.get(key) if isinstance(value, Mapping) else None
        else:
            try:
                value = self.by(task)
            except Exception as error:
                raise ConfigError(f"grader {self.name!r}: by: {error_text(error)}") from error
        return json.dumps(value) if isinstance(value, bool | int | float) else value


# ---- parts


async def grade_part(
    part: GraderTraits,
    task: Task,
    candidate: Candidate,
    ask: JudgeClient,
    *,
    name: str = "",
    repeat: int = 0,
) -> Feedback:
    """Return the feedback of a part, under its name. Raises RedraftError: users' code that fails
    twice is a GradingError.
    """
    name = name or part.name

    async def grade() -> Feedback:
        result = await part.grader.grade(task, candidate, ask.with_options(part.model, repeat))
        return replace(as_feedback(result, name), grader=name, candidate=candidate.id)

    return await call_part(name, grade)


async def call_part(name: str, work: Callable[[], Awaitable[T]]) -> T:
    """Run a part's code, and once more if it fails. Raises RedraftError, and what says that this
    machine is short of something.
    """
    try:
        return await retry_once(work)
    except RedraftError:
        raise
    except Exception as error:
        if is_shortage(error):  # the whole step waits and tries again
            raise
        raise GradingError(f"{name}: {error_text(error)}") from error


async def capture_failure(work: Awaitable[T], slot: tuple[Any, ...], role: str) -> T | Failure:
    """Return the result, or the Failure of that slot. Raises BudgetExhaustedError: it ends more
    than one vote.
    """
    try:
        return await work
    except BudgetExhaustedError:
        raise
    except RedraftError as error:
        return Failure(slot, role, error_name(error), str(error)[:2000], **error.details)


async def grade_parts(
    parts: Sequence[GraderTraits], task: Task, candidate: Candidate, ask: JudgeClient
) -> list[Feedback]:
    """Return the feedback of all parts, each under a unique name."""
    names = unique_names(parts)
    return await gather_or_cancel(
        grade_part(p, task, candidate, ask, name=name) for p, name in zip(parts, names, strict=True)
    )


def unique_names(parts: Sequence[GraderTraits]) -> list[str]:
    """Return the names of the parts, with numbers where they are equal: judge, judge#2."""
    names: list[str] = []
    for part in parts:
        names.append(unique_name(part.name, names))
    return names


def as_part(value: Any, owner: str, method: str = "grade") -> Any:
    """Return the grader that a value names; it must have the method `grade` or `compare`. Raises
    ConfigError.
    """
    part = as_grader(value)
    if not (isinstance(part, Grader) if method == "grade" else isinstance(part, Comparer)):
        only, other = ("ranks", "a RankingJury") if method == "grade" else ("scores", "a Jury")
        raise ConfigError(f"{owner}: {part.name!r} only {only} answers; that is for {other}")
    return part


def as_parts(value: Any, owner: str, method: str = "grade") -> tuple[Any, ...]:
    """Return the graders that a list, or a single value, names. Raises ConfigError if there is
    none.
    """
    values = value if isinstance(value, list | tuple) else [value]
    if not values:
        raise ConfigError(f"{owner} needs at least one part, got {checks.format_value(value)}")
    return tuple(as_part(one, owner, method) for one in values)


def _resolve_parts(composite: Cascade | Gate, **parts: Any) -> None:
    for name, part in parts.items():
        object.__setattr__(composite, name, as_part(part, f"{composite.name}: {name}"))


def _parse_weights(value: Any) -> tuple[tuple[Any, float], ...]:
    pairs = list(value.items()) if isinstance(value, Mapping) else value
    is_list = isinstance(pairs, list | tuple) and pairs
    if not is_list or not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
        raise ConfigError(
            "weighted needs {grader: weight} or pairs (grader, weight), got "
            f"{checks.format_value(value)}"
        )
    for _, weight in pairs:
        checks.positive("weight", weight)
    return tuple((as_part(grader, "weighted"), float(weight)) for grader, weight in pairs)


def format_vote(vote: Feedback | Failure) -> str:
    """Return the grader's name with its score, "unknown" or "failed"."""
    if isinstance(vote, Failure):
        return f"{vote.step_slot[2]} failed"
    return f"{vote.grader} {'unknown' if vote.score is None else format(vote.score, '.2f')}"


def _join(decision: str, reason: str) -> str:
    return ": ".join(filter(None, [decision, reason]))


def total_usage(votes: Iterable[Record]) -> Usage:
    """Return the usage that the votes report themselves; model calls are accounted for by the
    caller.
    """
    return sum((vote.usage for vote in votes), NO_USAGE)
