"""Records: what happened in a run, as immutable values.

A record and the step that asked for it share a `slot`; resuming, replaying and de-duplicating are
look-ups by slot. What can be computed from other records is not stored (see `trace`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain
from math import sqrt
from numbers import Complex, Number, Real
from typing import Any, ClassVar, TypeAlias, cast

from ..base import checks
from ..base.jsontext import MAX_DEPTH, nesting_depth, strict_loads
from ..errors import ERROR_TYPES, ModelError, RedraftError
from ..usage import NO_USAGE, Usage

Slot: TypeAlias = tuple[Any, ...]
MAX_SHOWN_RANKS = 40
ROUNDING_ERROR = 1e-6  # a score that lies outside [0, 1] by no more is clipped


class StopReason(StrEnum):
    """Why a run ended. Members are strings: `result.stop == "target"`.

    Attributes:
        TARGET: The best answer reached `target_score`.
        DONE: The graders say that nothing should change.
        TOOL_CALLS: The answer calls tools, and no grader reads tool calls; it is returned ungraded.
        PATIENCE: Several refinements in a row brought no improvement.
        MAX_ITERATIONS: All refinements were used.
        BUDGET: The budget of money, tokens or calls is used up.
        DEADLINE: The deadline has passed.
        GAIN: No step is expected to be worth its cost.
        FAILED: A model, or all graders, failed.
        CANCELLED: The caller interrupted the run.
    """

    TARGET = "target"
    DONE = "done"
    TOOL_CALLS = "tool_calls"
    PATIENCE = "patience"
    MAX_ITERATIONS = "max_iterations"
    BUDGET = "budget"
    DEADLINE = "deadline"
    GAIN = "gain"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def converged(self) -> bool:
        """Whether no further improvement was expected; `Trace.converged` also requires that all
        musts are met.
        """
        return self in _CONVERGED

    @property
    def resumable(self) -> bool:
        """Whether the run was cut short, so that it can be continued."""
        return self in _RESUMABLE


_CONVERGED = frozenset({StopReason.TARGET, StopReason.DONE, StopReason.PATIENCE, StopReason.GAIN})
_RESUMABLE = frozenset(
    {StopReason.BUDGET, StopReason.DEADLINE, StopReason.FAILED, StopReason.CANCELLED}
)

MAX_TOOL_CALLS = 128  # in one answer


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call that a model asks for: the function's name, and its arguments as the JSON text
    that the model wrote.

    The result of the call refers to it by its `id`. Raises ValueError if a field is not text or the
    name is empty.
    """

    name: str
    arguments: str = "{}"
    id: str = ""

    def __post_init__(self) -> None:
        if (
            not all(isinstance(text, str) for text in (self.name, self.arguments, self.id))
            or not self.name
        ):
            raise ValueError(
                f"a tool call has a name, arguments and an id, all of them texts, got {self!r:.200}"
            )

    @property
    def parsed_arguments(self) -> Any:
        """The arguments as a value, normally a dict. Raises ValueError for invalid JSON, as
        `jsontext.strict_loads` does.
        """
        return strict_loads(self.arguments)

    def as_message_part(self) -> dict[str, Any]:
        """Return the call in the form of an assistant's message: {"id", "type", "function":
        {"name", "arguments"}}.
        """
        return {
            "id": self.id,
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }


MAX_METADATA = 65_536  # characters of a record's metadata as JSON
_ARTIFACT_KIND = re.compile(r"[a-z][a-z0-9_.+-]{0,63}")
_DIGEST_LENGTHS = {"sha1": 40, "sha256": 64, "sha384": 96, "sha512": 128}
_MEDIA_TYPE = re.compile(r"[\w!#$&^.+-]+/[\w!#$&^.+-]+(;[ -~]*)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Artifact:
    """A reference to a result that is stored elsewhere: a git tree, a file, an image.

    `kind` is "git-tree", "file", "image" or a word of your own, `uri` the location, `digest` the
    hash of the content as "ALGORITHM:HEX" with sha1, sha256, sha384 or sha512 in lower case.
    `media_type` is a MIME type, such as "image/png". `metadata` is any JSON object. Redraft stores
    and compares references; it never reads what they point to. Two artifacts of the same kind with
    the same digest are the same, wherever they are stored.

    Raises ValueError for a field that is not as described.
    """

    kind: str
    uri: str
    digest: str
    media_type: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or not _ARTIFACT_KIND.fullmatch(self.kind):
            raise ValueError(
                "the kind of an artifact is a word such as 'git-tree', got "
                f"{checks.format_value(self.kind)}"
            )
        if not isinstance(self.uri, str) or not self.uri.isprintable() or not self.uri.strip():
            raise ValueError(
                "the uri of an artifact is text without control characters, got "
                f"{checks.format_value(self.uri)}"
            )
        algorithm, _, value = (
            self.digest.partition(":") if isinstance(self.digest, str) else ("", "", "")
        )
        if len(value) != _DIGEST_LENGTHS.get(algorithm) or not set(value) <= set(
            "0123456789abcdef"
        ):
            raise ValueError(
                "the digest of an artifact is ALGORITHM:HEX, such as 'sha256:9f86...', with "
                f"{', '.join(_DIGEST_LENGTHS)}, got {checks.format_value(self.digest)}"
            )
        if self.media_type is not None and not (
            isinstance(self.media_type, str) and _MEDIA_TYPE.fullmatch(self.media_type)
        ):
            raise ValueError(
                "the media type of an artifact is such as 'image/png', got "
                f"{checks.format_value(self.media_type)}"
            )
        object.__setattr__(self, "metadata", _json_copy("an artifact", self.metadata))


def _json_copy(owner: str, metadata: Any) -> dict[str, Any]:
    """Return a copy of metadata. Raises ValueError unless it is a JSON object that is not too long
    or nested too deeply.
    """
    if not isinstance(metadata, Mapping):
        raise ValueError(
            f"the metadata of {owner} is a mapping, got {checks.format_value(metadata)}"
        )
    try:
        copy: dict[str, Any] = json.loads(text := json.dumps(dict(metadata), allow_nan=False))
        if copy != metadata or len(text) > MAX_METADATA or nesting_depth(copy) > MAX_DEPTH:
            raise ValueError
    except (TypeError, ValueError, RecursionError):
        raise ValueError(
            f"the metadata of {owner} is JSON of at most {MAX_METADATA:,} characters with texts "
            f"as keys, got {checks.format_value(metadata)}"
        ) from None
    return copy


@dataclass(frozen=True, slots=True)
class Candidate:
    """One response.

    Two candidates with equal text, tool calls and artifact count as the same. `text` may be empty
    if there is one of the others.

    Attributes:
        id: Its number in the trace, from 0.
        text: The answer.
        parent: ID of the candidate that it was made from, or None.
        by: The name of the model that wrote it, "editor" or "given".
        role: How it was made: "generate", "refine", "repair" or "given".
        truncated: Whether the model was cut off at its token limit.
        reasoning: The model's reasoning, if the endpoint returned it. It is not part of the answer.
        reasoning_form: How the reply contained its reasoning: "separate" (in a field of its own),
            "block" (in one block or channel before the answer), "end_tag" (before the answer and a
            closing tag; the chat template had opened the block), "empty" (a think block without
            text), or "other" (several blocks, or one after the start of the answer). None if there
            is none, or if that is unknown.
        note: What the editor did, why the models before this one did not write it, or that the
            server cut the prompt, in words.
        lossy: Whether the editor removed content.
        usage: The usage of the calls that made it.
        seconds: How long that took, or None.
        tool_calls: Tool calls that the model asks for.
        artifact: A reference to a result that is stored elsewhere, or None.
    """

    id: int
    text: str
    parent: int | None = None
    by: str = "given"
    role: str = "given"
    truncated: bool = False
    reasoning: str | None = None
    note: str = ""
    lossy: bool = False
    usage: Usage = NO_USAGE
    seconds: float | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    artifact: Artifact | None = None
    reasoning_form: str | None = None

    @property
    def slot(self) -> Slot:
        return ("candidate", self.id)

    @property
    def display_text(self) -> str:
        """The text and, each on a line of its own, the tool calls: `[tool call: NAME]
        ARGUMENTS`.
        """
        if not self.tool_calls:
            return self.text
        calls = (f"[tool call: {call.name}] {call.arguments}" for call in self.tool_calls)
        return "\n".join(filter(None, (self.text, *calls)))

    @property
    def content_key(self) -> tuple[Any, ...]:
        """The text, the tool calls without their ids (which differ in every answer), and the kind
        and digest of the artifact.

        Two candidates with equal keys are the same response.
        """
        if not self.tool_calls and self.artifact is None:
            return (self.text,)
        calls = ((call.name, call.arguments) for call in self.tool_calls)
        artifact = [("artifact", self.artifact.kind, self.artifact.digest)] if self.artifact else []
        return (self.text, *calls, *artifact)


@dataclass(frozen=True, slots=True)
class CriterionScore:
    """The score of one criterion in a grader's feedback.

    Attributes:
        name: The criterion.
        score: From 0 to 1.
        evidence: A quotation from the answer.
        action: What to change, or "".
        weight: Its weight in the mean, above 0.

    Raises:
        ValueError: The score is not a number from 0 to 1.
    """

    name: str
    score: float
    evidence: str = ""
    action: str = ""
    weight: float = 1.0

    def __post_init__(self) -> None:
        if self.score.__class__ is not float or not 0 <= self.score <= 1:
            object.__setattr__(
                self, "score", as_score(self.score, f"the score of criterion {self.name!r}")
            )


@dataclass(frozen=True, slots=True)
class Feedback:
    """The verdict of one grader on one candidate.

    A grader of your own sets the first five fields, and may set `nearness` and `metadata`. Redraft
    sets the others. A score is a real number of any type (NumPy's too). One that lies outside [0,
    1] by at most 1e-6, a rounding error, is clipped; any other out of range is an error.

    Attributes:
        score: From 0 to 1, higher is better; None means unknown.
        reason: Why, in words.
        actions: What to change. The refinement prompt lists them.
        done: Whether the grader would stop here; None if it does not say.
        criteria: Scores by criterion.
        candidate: ID of the candidate.
        grader: Name of the grader.
        repeat: Which of several repeated grades this is, from 0.
        by: Name of the model that graded, or "".
        usage: The usage of the calls that grading took.
        seconds: How long grading took, or None.
        votes: The votes of a jury; a `Failure` for each vote that failed.
        nearness: How near the text comes to a requirement that it breaks, from 0 to 1; None means
            the same as the score.
        metadata: Any JSON object of at most 65,536 characters, such as the figures behind the
            score. No prompt contains it.
        traceparent: The span in OpenTelemetry that the grade belongs to, in the form of W3C Trace
            Context; "" if nothing was recorded.

    Raises:
        ValueError: The score or nearness is not a number from 0 to 1, a list is not a list, or the
            metadata is not a JSON object.
    """

    role: ClassVar[str] = "grade"
    score: float | None = None
    reason: str = ""
    actions: tuple[str, ...] = ()
    done: bool | None = None
    criteria: tuple[CriterionScore, ...] = ()
    candidate: int = 0
    grader: str = ""
    repeat: int = 0
    by: str = ""
    usage: Usage = NO_USAGE
    seconds: float | None = None
    votes: tuple[Feedback | Failure, ...] = ()
    nearness: float | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)
    traceparent: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if self.nearness is not None:
            object.__setattr__(self, "nearness", as_score(self.nearness, "a nearness"))
        score = self.score
        if score is not None and not (score.__class__ is float and 0 <= score <= 1):
            object.__setattr__(self, "score", as_score(score))
        if (
            self.actions.__class__ is not tuple
            or self.criteria.__class__ is not tuple
            or self.votes.__class__ is not tuple
        ):
            _set_tuples(self, "actions", "criteria", "votes")
        if self.metadata != {}:
            object.__setattr__(self, "metadata", _json_copy("feedback", self.metadata))

    @property
    def slot(self) -> Slot:
        return ("feedback", self.candidate, self.grader, self.repeat)

    @property
    def is_critique(self) -> bool:
        """Whether it has actions or `done`, and no score."""
        return self.score is None and (bool(self.actions) or self.done is not None)

    @property
    def is_empty(self) -> bool:
        """Whether it says nothing: neither a score nor a critique, and no reason why."""
        return self.score is None and not (
            self.is_critique or self.reason or self.criteria or self.votes
        )

    @property
    def vote_sd(self) -> float | None:
        """The standard deviation (n - 1) of the scores of its votes; None with fewer than two."""
        scores = [v.score for v in self.votes if isinstance(v, Feedback) and v.score is not None]
        if len(scores) < 2:
            return None
        mean = sum(scores) / len(scores)
        return sqrt(sum((s - mean) ** 2 for s in scores) / (len(scores) - 1))


def as_score(value: Any, what: str = "a score") -> float:
    """Return a real number (no bool) that lies in [0, 1], or outside by a rounding error, as a
    float. Raises ValueError.
    """
    number = plain_scalar(value)
    # the latter: Decimal
    is_real = isinstance(number, Real) or (
        isinstance(number, Number) and not isinstance(number, Complex)
    )
    if is_real and not isinstance(number, bool):
        with suppress(ArithmeticError, TypeError, ValueError):
            score = float(cast("float", number))
            if -ROUNDING_ERROR <= score <= 1 + ROUNDING_ERROR:
                return min(max(score, 0.0), 1.0)
    raise _score_error(value, what)


def _check_score(score: Any, what: str) -> None:
    is_number = score.__class__ is float or (
        isinstance(score, (int, float)) and not isinstance(score, bool)
    )
    if not is_number or not 0 <= score <= 1:
        raise _score_error(score, what)


def _score_error(value: Any, what: str) -> ValueError:
    return ValueError(f"{what} must be a number in [0, 1], got {checks.format_value(value)}")


def plain_scalar(value: Any) -> Any:
    """Return a scalar of an array library (NumPy, PyTorch, JAX), or an array of no dimension, as
    Python's; others unchanged.

    None for one that is masked, whose data are not its value.
    """
    unwrap = getattr(value, "item", None)
    if not callable(unwrap) or getattr(value, "ndim", None) != 0:
        return value
    return None if getattr(value, "mask", False) else unwrap()


def _set_tuples(record: Any, *names: str) -> None:
    """Make tuples of the lists in these fields. Raises ValueError for anything else."""
    for name in names:
        if (value := getattr(record, name)).__class__ is not tuple:
            object.__setattr__(record, name, _as_tuple(name, value))


def _as_tuple(name: str, value: Any) -> tuple[Any, ...]:
    """Return a list as a tuple. Raises ValueError for anything else, including text, which would be
    split.
    """
    if value.__class__ is tuple:
        return value
    if isinstance(value, str | bytes | Mapping | type) or not isinstance(value, Iterable):
        raise ValueError(f"{name} must be a list, got {checks.format_value(value)}")
    return tuple(value)


def _check_interval(interval: Any) -> None:
    if not isinstance(interval, tuple | list) or len(interval) != 2:
        raise ValueError(
            f"an interval must be a pair of numbers (low, high), got {interval!r:.200}"
        )
    low, high = interval
    for end in interval:
        _check_score(end, "an end of an interval")
    if low > high:
        raise ValueError(
            f"the lower end of an interval must not exceed the upper one, got {(low, high)!r}"
        )


def _check_estimates(estimates: Any) -> None:
    for pair in _as_tuple("estimates", estimates):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise ValueError(f"estimates must hold pairs (id, score), got {pair!r:.200}")
        id, score = pair
        _check_id(id)
        _check_score(score, "an estimated score")


def _check_id(id: Any) -> None:
    if isinstance(id, bool) or not isinstance(id, int):
        raise ValueError(f"the id of a candidate must be a whole number, got {id!r}")


@dataclass(frozen=True, slots=True)
class Comparison:
    """One grader's ranking of several candidates.

    Attributes:
        ranking: IDs of the candidates, best first.
        reason: Why, in words.
        actions: What to change.
        done: Whether the grader would stop here; None if it does not say.
        grader: Name of the grader.
        repeat: Which of several repeated comparisons this is, from 0.
        by: Name of the model that compared, or "".
        usage: The usage of the calls that comparing took.
        seconds: How long comparing took, or None.
        ties: Groups of IDs that share a rank. Within a group the order has no meaning.
        presentation_order: IDs in the order in which the grader saw them, if there was a single
            one.
        votes: The comparisons that this one consists of, such as both orders of a pair; a `Failure`
            for each that failed.

    Raises:
        ValueError: The ranking or the ties hold something other than IDs of candidates.
    """

    role: ClassVar[str] = "compare"
    ranking: tuple[int, ...]
    reason: str = ""
    actions: tuple[str, ...] = ()
    done: bool | None = None
    grader: str = ""
    repeat: int = 0
    by: str = ""
    usage: Usage = NO_USAGE
    seconds: float | None = None
    ties: tuple[tuple[int, ...], ...] = ()
    presentation_order: tuple[int, ...] = ()
    votes: tuple[Comparison | Failure, ...] = ()

    def __post_init__(self) -> None:
        _set_tuples(self, "ranking", "actions", "presentation_order", "votes")
        groups = [_as_tuple("a group of ties", group) for group in _as_tuple("ties", self.ties)]
        if wrong := [id for id in chain(self.ranking, *groups) if not isinstance(id, int)]:
            raise ValueError(
                "ranking and ties hold ids of candidates, which are whole numbers, got "
                f"{wrong[0]!r}"
            )
        object.__setattr__(self, "ties", tuple(tuple(sorted(group)) for group in groups))
        if not {id for group in self.ties for id in group} <= set(self.ranking):
            raise ValueError(
                f"ties are of candidates in the ranking {list(self.ranking)!r}, got {self.ties!r}"
            )

    @property
    def slot(self) -> Slot:
        return ("comparison", tuple(sorted(self.ranking)), self.grader, self.repeat)

    @property
    def order_text(self) -> str:
        """The ranking in one line, such as "2 > 0 = 1"; of very many candidates, the best."""
        groups: dict[int, list[str]] = {}
        for id, rank in [*self.ranks.items()][:MAX_SHOWN_RANKS]:
            groups.setdefault(rank, []).append(str(id))
        more = (
            [f"{len(self.ranking) - MAX_SHOWN_RANKS:,} more"]
            if len(self.ranking) > MAX_SHOWN_RANKS
            else []
        )
        return " > ".join([*(" = ".join(groups[rank]) for rank in sorted(groups)), *more])

    @property
    def ranks(self) -> dict[int, int]:
        """The rank of every candidate, from 0; tied candidates share the best rank among them."""
        ranks = {id: rank for rank, id in enumerate(self.ranking)}
        for group in self.ties:
            ranks.update(dict.fromkeys(group, min(ranks[id] for id in group)))
        return ranks

    @property
    def net_win_rates(self) -> dict[int, float]:
        """Of every candidate: its wins less its losses against the others, a tie being neither, as
        a share of those that it is compared with, from -1 to 1. The rates of all add up to 0.

        They are a reward for each answer of a group. Empty if there is only one candidate.
        """
        ranks = self.ranks
        return {
            id: sum((rank > own) - (rank < own) for rank in ranks.values()) / (len(ranks) - 1)
            for id, own in ranks.items()
            if len(ranks) > 1
        }

    @property
    def consistent(self) -> bool | None:
        """Whether all votes on the same candidates agree; None if no two votes are on the same
        candidates.
        """
        ranks_by_candidates: dict[frozenset[int], list[dict[int, int]]] = {}
        for vote in self.votes:
            if isinstance(vote, Comparison):
                ranks_by_candidates.setdefault(frozenset(vote.ranking), []).append(vote.ranks)
        repeated = [ranks for ranks in ranks_by_candidates.values() if len(ranks) > 1]
        return all(r == ranks[0] for ranks in repeated for r in ranks) if repeated else None


@dataclass(frozen=True, slots=True)
class Failure:
    """A step that failed. It fills no slot, so a resumed run tries the step again.

    Attributes:
        step_slot: The slot of the step, which stays empty.
        role: The kind of step: "generate", "refine", "repair", "grade" or "compare".
        error: The cause, one of `errors.CAUSES`.
        message: What went wrong, in words.
        stop_reason: BUDGET, DEADLINE or, of a validator with a fault, FAILED if the run must end
            because of it, else None.
        by: Name of the model that was called, or "".
        usage: The usage of all attempts.
        seconds: How long they took, or None.
        status: HTTP status of the last attempt, or None.
        retry_after: Seconds that the server asked to wait, or None.
        retryable: Whether the same call may succeed later, or None.
        limit: The limit that was reached, such as "calls", or "".
        traceparent: Of a grade, as in `Feedback`.
    """

    step_slot: Slot
    role: str
    error: str
    message: str = ""
    stop_reason: StopReason | None = None
    by: str = ""
    usage: Usage = NO_USAGE
    seconds: float | None = None
    status: int | None = None
    retry_after: float | None = None
    retryable: bool | None = None
    limit: str = ""
    traceparent: str = field(default="", compare=False)

    @property
    def slot(self) -> Slot:
        return ("failure", *self.step_slot)

    def as_error(self, message: str = "", usage: Usage | None = None) -> RedraftError:
        """Return the error that the failure records, with its attributes; a ModelError if it is
        none of Redraft's errors.
        """
        kind = ERROR_TYPES.get(self.error, ModelError)
        details = {name: getattr(self, name) for name in kind().details}
        return kind(message or self.message, usage=usage, **details)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Which candidate is best, and why the run ended. As a step of a plan (`steps.Stop`) it asks
    only to be recorded.

    Attributes:
        best: ID of the best candidate, or None if there is none.
        reason: Why the run ended.
        note: The same in words.
        score: Estimated quality of the best candidate, from 0 to 1; None if the graders' score is
            used without an estimate.
        interval: Its 95% interval, or None.
        estimates: Estimated quality of each candidate, as pairs of ID and score.
        noise_sd: Standard deviation of the noise of one score, as assumed by the plan's priors, or
            None.
        kept: IDs of the candidates that the plan keeps, best first; empty if it keeps only the
            best.
        p_target: Probability that the quality of the best candidate reaches the target, or None.
        labels: How many labels of people stand behind the score, the interval, the estimates and
            the probability, which are then in people's points; None if they are in the graders'
            points.
        traceparent: The span of the refinement, as in `Feedback`.

    Raises:
        ValueError: A score or an interval is out of range.
    """

    role: ClassVar[str] = "stop"
    best: int | None
    reason: StopReason
    note: str = ""
    score: float | None = None
    interval: tuple[float, float] | None = None
    estimates: tuple[tuple[int, float], ...] = ()
    noise_sd: float | None = None
    kept: tuple[int, ...] = ()
    p_target: float | None = None
    labels: int | None = None
    traceparent: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if self.reason.__class__ is not StopReason:
            object.__setattr__(self, "reason", StopReason(self.reason))
        for score in (self.score, self.noise_sd, self.p_target):
            if score is not None:
                _check_score(score, "an estimated score")
        if self.interval is not None:
            _check_interval(self.interval)
        if self.estimates != ():
            _check_estimates(self.estimates)
        if self.kept != ():
            _set_tuples(self, "kept")
            for id in self.kept:
                _check_id(id)
        if self.best is not None:
            _check_id(self.best)

    @property
    def slot(self) -> Slot:
        return ("outcome",)

    @property
    def usage(self) -> Usage:
        return NO_USAGE


Record: TypeAlias = Candidate | Feedback | Comparison | Failure | Outcome
