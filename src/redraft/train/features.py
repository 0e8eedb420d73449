"""What a head reads of an answer: the scores of graders, those of their criteria, and the vector of
an embedding model.
"""

from __future__ import annotations

from array import array
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..base.jsontext import strict_loads
from ..base.own_code import fingerprint_name
from ..errors import ConfigError
from ..graders.composite import Composite, as_parts, grade_parts
from ..loop.records import Candidate, Feedback
from ..loop.task import Message, Task
from ..models.endpoint_url import redacted_model_name
from ..models.scoring import ScoringModel, connect_vectors
from ..protocols import JudgeClient, Request
from .head import Features

VALUES, VECTOR = "values", "vector"  # keys in the metadata of a feedback
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
    if any(not isinstance(name, str) for name in names):
        raise ConfigError(
            "graders: a trained grader is stored with the names of its graders, so each is a name "
            f"or a SPEC such as 'helpfulness', got {names!r:.200}"
        )
    graders = as_parts(names, "train") if names else ()
    parts = (*graders, *([EmbeddingVector(embeddings)] if embeddings else ()))
    if not parts:
        raise ConfigError(
            "name what a head can learn from: graders, such as 'helpfulness' or 'readability', or "
            "a model for embeddings"
        )
    return parts


def feature_data(votes: Iterable[Feedback]) -> dict[str, Any]:
    """Return the features in the feedback of graders, as JSON: "NAME" is a score, "NAME: CRITERION"
    that of a criterion, if there are several.
    """
    values, vector = dict[str, float | None](), ""
    for vote in votes:
        if VECTOR in vote.metadata:
            vector = vote.metadata[VECTOR]
            continue
        values[vote.grader] = vote.score
        if len(vote.criteria) > 1:
            values |= {f"{vote.grader}{CRITERION}{each.name}": each.score for each in vote.criteria}
    return {VALUES: values, VECTOR: vector}


def features_of(data: Mapping[str, Any]) -> Features:
    """Return the features in what `feature_data` returned."""
    return Features(data[VALUES], tuple(array("f", b64decode(data[VECTOR]))))


def without_vectors(votes: Iterable[Feedback]) -> tuple[Feedback, ...]:
    """Return votes that can be recorded: vectors are long, and can be had again."""
    return tuple(replace(v, metadata={}) if VECTOR in v.metadata else v for v in votes)


@fingerprint_name("feature_reader")
@dataclass(frozen=True)
class FeatureReader(Composite):
    """Has graders grade an answer and puts its features into `Feedback.metadata`; the score says
    nothing.
    """

    graders: tuple[object, ...]
    name: str = "features"

    @property
    def parts(self) -> tuple[object, ...]:
        return self.graders

    async def grade(self, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback:
        """Return the features. Raises what a grader raises."""
        votes = await grade_parts(self.part_traits, task, candidate, ask)
        return Feedback(1.0, metadata=feature_data(votes))
