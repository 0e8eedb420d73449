"""How close an answer is to the reference in meaning, according to an embedding model."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...base.jsontext import strict_loads
from ...base.own_code import fingerprint_name
from ...errors import ConfigError
from ...loop.records import Candidate, Feedback
from ...loop.task import Task
from ...models.endpoint_url import redacted_model_name
from ...models.scoring import ScoringModel, connect_embeddings
from ...protocols import JudgeClient, Request
from .base import reference_of, score_feedback, with_composed_texts

EXAMPLE = "embedding:openai:text-embedding-3-small"
CLOSER_ACTION = "Say what the expected answer says, and leave out what it does not."


@fingerprint_name("embedding")
@dataclass(frozen=True, repr=False)
class Embedding:
    """The cosine similarity of the vectors of answer and reference; a negative one counts as 0, and
    the reason says so.

    `endpoint` is named like a chat model: "openai:NAME", "ollama:NAME", "http://host:port/v1#NAME";
    it is called once for each answer, at /v1/embeddings, and finds its key as chat models do. Its
    calls count in usage and budgets, are retried and cached, and need validation like those of a
    judge. An embedding model can be fooled: do not let this grader alone decide about untrusted
    answers. Reads `reference`. Raises ConfigError for an endpoint of another kind.
    """

    endpoint: str = field(compare=False)
    name: str = "embedding"
    model: ScoringModel = field(init=False)

    model_free = True
    prompt_texts = ()
    needs = ("reference",)

    def __post_init__(self) -> None:
        object.__setattr__(self, "model", connect_embeddings(self.endpoint))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({redacted_model_name(self.endpoint)!r})"

    async def grade(self, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback:
        """Return max(0, cosine). Raises ModelError if the endpoint fails."""
        if not candidate.text.strip():
            return Feedback(0.0, "the answer is empty", (CLOSER_ACTION,))
        task, candidate = await with_composed_texts(task, candidate)
        texts = {"user": reference_of(task, self.name), "assistant": candidate.text}
        reply = await ask.complete(
            Request(tuple({"role": role, "content": text} for role, text in texts.items()))
        )
        cosine = float(strict_loads(reply.text)["score"])
        note = " (negative, which counts as 0)" if cosine < 0 else ""
        return score_feedback(
            max(0.0, cosine), f"cosine {cosine:.3f} with the expected answer{note}", CLOSER_ACTION
        )


def make_embedding(argument: str) -> Embedding:
    """Return the grader for the text after "embedding:". Raises ConfigError."""
    if not argument:
        raise ConfigError(f"grader 'embedding' needs a model after the colon, such as {EXAMPLE!r}")
    return Embedding(argument)
