"""What a head reads of an answer: the scores of graders, those of their criteria, and the vector of
an embedding model.
"""

from __future__ import annotations

from array import array
from base64 import b64decode, b64encode
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from ..base import checks
from ..base.jsontext import strict_loads
from ..base.own_code import fingerprint_name
from ..errors import ConfigError
from ..graders.composite import Composite, as_parts, grade_parts, total_usage
from ..loop.records import Candidate, Feedback
from ..loop.task import Message, Task
from ..models.endpoint_url import redacted_model_name
from ..models.scoring import ScoringModel, connect_vectors
from ..protocols import JudgeClient, Request
from .head import Features

VECTOR = "vector"  # a key in the metadata of a feedback
MAX_GRADERS = 100
CRITERION = ": "  # between the names of a grader and of its criterion


@fingerprint_name("embedding_vector")
@dataclass(frozen=True, repr=False)
class EmbeddingVector:
    """The vector of the task and the answer as one text, in `Feedback.metadata` (base64 of 32-bit
    floats, since metadata are short); it gives no score.

    `endpoint` is named as that of the grader `embedding`. Raises ConfigError for one of another
    kind.
    """

    endpoint: str = field(compare=False)
    name: str = "embedding vector"
    model: ScoringModel = field(init=False)

    model_free = True
    prompt_texts = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "model", connect_vectors(self.endpoint))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({redacted_model_name(self.endpoint)!r})"

    async def grade(self, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback:
        """Return the vector. Raises ModelError if the endpoint fails."""
        answer: Message = {"role": "assistant", "content": candidate.text}
        reply = await ask.complete(Request((*task.messages, answer)))
        numbers = array("f", strict_loads(reply.text)[VECTOR])
        return Feedback(None, metadata={VECTOR: b64encode(numbers.tobytes()).decode()})


def graders_of(specs: Iterable[str], embeddings: str | None) -> tuple[object, ...]:
    """Return the graders whose scores are features, and the reader of vectors if `embeddings` names
    a model. Raises ConfigError.
    """
    names = list(specs)
    if embeddings is not None:
        checks.text("embeddings", embeddings)
    if len(names) > MAX_GRADERS:
        raise ConfigError(f"graders: {len(names):,} are named, and {MAX_GRADERS} are the most")
    if any(not isinstance(name, str) for name in names):
        raise ConfigError(
            "graders: a trained grader is stored with the names of its graders, so each is a name "
            f"or a SPEC such as 'helpfulness', got {names!r:.200}"
        )
    if nested := next((name for name in names if "trained:" in name), None):
        raise ConfigError(
            f"graders: a trained grader cannot read another one, got {nested!r:.80}: name the "
            "graders that it reads"
        )
    graders = as_parts(names, "train") if names else ()
    parts = (*graders, *([EmbeddingVector(embeddings)] if embeddings else ()))
    if not parts:
        raise ConfigError(
            "name what a head can learn from: graders, such as 'helpfulness' or 'readability', or "
            "a model for embeddings"
        )
    return parts


def features_of(votes: Iterable[Feedback]) -> Features:
    """Return the features in the feedback of graders: "NAME" is a score, "NAME: CRITERION" that of
    a criterion, if there are several.
    """
    values, vector = dict[str, float | None](), ""
    for vote in votes:
        if VECTOR in vote.metadata:
            vector = vote.metadata[VECTOR]
            continue
        values[vote.grader] = vote.score
        if len(vote.criteria) > 1:
            values |= {f"{vote.grader}{CRITERION}{each.name}": each.score for each in vote.criteria}
    return Features(values, tuple(array("f", b64decode(vector))))


def without_vectors(votes: Iterable[Feedback]) -> tuple[Feedback, ...]:
    """Return votes that can be recorded: vectors are long, and can be had again."""
    return tuple(replace(v, metadata={}) if VECTOR in v.metadata else v for v in votes)


@fingerprint_name("feature_reader")
@dataclass(frozen=True)
class FeatureReader(Composite):
    """Has graders grade an answer: their votes hold its features, and the score says nothing."""

    graders: tuple[object, ...]
    name: str = "features"

    @property
    def parts(self) -> tuple[object, ...]:
        return self.graders

    async def grade(self, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback:
        """Return the votes. Raises what a grader raises."""
        votes = await grade_parts(self.part_traits, task, candidate, ask)
        return Feedback(1.0, usage=total_usage(votes), votes=tuple(votes))
