"""How close an answer is to the reference in meaning, as an embedding model sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, hypot, isfinite
from typing import Any

import orjson

from ...core.records import Candidate, Feedback, Task
from ...errors import BadResponseError, ConfigError, ModelError
from ...models.endpoint_url import model_shown
from ...models.http_client import PERHAPS_BILLED, fetch
from ...models.openai_chat import Chat, mended
from ...models.openai_responses import parsed
from ...models.registry import VENDORS, connect
from ...protocols import Ask
from .views import measured, reference_of

EXAMPLE = "embedding:openai:text-embedding-3-small"
CLOSER = "Say what the expected answer says, and leave out what it does not."


@dataclass(frozen=True, repr=False)
class Embedding:
    """The cosine of the answer's and the reference's vectors; a negative one is 0, which the reason then says.

    `endpoint` is named like a chat model: "openai:NAME", "ollama:NAME", "http://host:port/v1#NAME"; it is asked once for
    each answer, at /v1/embeddings, and finds its key as chat models do. It calls no chat model, so it counts as free in a
    plan; what the endpoint charges is in no budget. A text that was written to be close to everything gets a high score:
    an embedding model can be fooled, so don't let this grader alone decide about answers that are not to be trusted.
    Reads `reference`. Raises ModelError where the endpoint fails.
    """

    endpoint: str
    name: str = "embedding"

    free = True
    needs = ("reference",)

    def __post_init__(self) -> None:
        embedder(self.endpoint)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({model_shown(self.endpoint)!r})"

    async def grade(self, task: Task, candidate: Candidate, ask: Ask) -> Feedback:
        """max(0, cosine)."""
        if not candidate.text.strip():
            return Feedback(0.0, "the answer is empty", (CLOSER,))
        answer, wanted = await embedder(self.endpoint).embed([candidate.text, reference_of(task, self.name)])
        found = cosine(answer, wanted)
        mapped = " (negative, which counts as 0)" if found < 0 else ""
        return measured(min(1.0, max(0.0, found)), f"cosine {found:.3f} with the expected answer{mapped}", CLOSER)


def made(argument: str) -> Embedding:
    """The grader of what stands after "embedding:". Raises ConfigError."""
    if not argument:
        raise ConfigError(f"grader 'embedding' needs a model after the colon, such as {EXAMPLE!r}")
    return Embedding(argument)


def embedder(named: str) -> Embedder:
    """The client of an endpoint, by the name of a model on it. Raises ConfigError."""
    known = None if named.partition(":")[0] in {*VENDORS, "local"} else connect(named)
    if not isinstance(known, Chat):
        shown = model_shown(named)
        raise ConfigError(f"embedding needs an OpenAI-compatible endpoint (openai:NAME, http://host:port/v1#NAME), got {shown!r}")
    return Embedder(known)


@dataclass(frozen=True)
class Embedder:
    """The client of an endpoint that makes vectors of texts; `chat` knows where it is and how it is asked."""

    chat: Chat

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """A vector for each text, in their order. One call. Raises ModelError."""
        route = self.chat.route_to("/embeddings")
        asked = {"model": self.chat.name, "input": mended(list(texts)), "encoding_format": "float"}
        try:
            status, headers, body = await fetch(route, "POST", orjson.dumps(asked))
            if status >= 300:
                raise self.chat.refusal(status, headers, body)
            return vectors(parsed(body, headers.get("Content-Type", "")), len(texts))
        except ModelError as error:
            raise self.chat.told(error) from None


def vectors(data: Any, count: int) -> list[list[float]]:
    """The vectors in an answer, by their index. Raises BadResponseError for anything else."""
    rows = data.get("data") if isinstance(data, dict) else None
    if not isinstance(rows, list) or len(rows) != count or not all(isinstance(row, dict) for row in rows):
        raise _bad(f"sent no list of {count} embeddings")
    if sorted(str(row.get("index")) for row in rows) != sorted(map(str, range(count))):
        raise _bad("sent embeddings that do not say which text they belong to")
    found = [row.get("embedding") for row in sorted(rows, key=lambda row: int(row["index"]))]
    if not all(isinstance(v, list) and v and all(_is_number(x) for x in v) for v in found):
        raise _bad("sent an embedding that is no list of numbers")
    if len({len(v) for v in found}) != 1:
        raise _bad("sent embeddings of different lengths")
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _bad(what: str) -> BadResponseError:
    return BadResponseError(what, usage=PERHAPS_BILLED)


def cosine(a: Sequence[float], b: Sequence[float]) -> float:
    """From -1 to 1. Raises BadResponseError for a vector of zeros, which has no direction."""
    lengths = [hypot(*v) for v in (a, b)]
    if not all(isfinite(length) and length > 0 for length in lengths):
        raise _bad("sent an embedding without a direction")
    return max(-1.0, min(1.0, fsum(x / lengths[0] * (y / lengths[1]) for x, y in zip(a, b, strict=True))))
