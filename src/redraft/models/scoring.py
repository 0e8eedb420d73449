"""The client of endpoints that return numbers about a text: reward models, classifiers, rerankers,
embeddings, moderation.

`ScoringModel` is a `Model`, so that its calls get the same retries, timeouts, limits, budgets and
cache as a chat model's. The last message of a request is the text to be scored, the messages
before it are the task. The reply is JSON: {"score": NUMBER}; {"vector": [...]}, an embedding of all
messages; or, from a moderation endpoint, {"flagged": BOOL, "category_scores": {...}, "categories":
{...}}.

The requests and responses are those that the servers publish:

- vLLM: https://docs.vllm.ai/en/latest/models/pooling_models/ (/classify, /score, /rerank, /pooling)
- Text Embeddings Inference: https://huggingface.github.io/text-embeddings-inference/ (/predict,
  /rerank)
- llama.cpp: /rerank, as vLLM
- OpenAI: https://platform.openai.com/docs/api-reference/moderations (/moderations) and /embeddings,
  which vLLM, Ollama and llama.cpp also have
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import fsum, hypot, isfinite
from typing import Any, Literal, TypeAlias, cast, get_args

import orjson

from ..base import checks
from ..base.text import shorten
from ..errors import ConfigError
from ..loop.task import Message, message_text
from ..protocols import Reply, Request
from ..usage import Usage
from .chat_replies import json_type_name, read_usage
from .endpoint_url import parse_base_url, redacted_model_name, redacted_url
from .http_client import malformed_response
from .model_names import VENDORS
from .openai_chat import OPENAI_URL, Chat
from .pricing import FREE, Price
from .registry import connect, connect_endpoint

ServerApi: TypeAlias = Literal[
    "classify",
    "score",
    "rerank",
    "pooling",
    "predict",
    "tei_rerank",
    "moderations",
    "embeddings",
    "vectors",
]
# whose path is below the base URL of chat models
OPENAI_APIS: tuple[ServerApi, ...] = ("moderations", "embeddings", "vectors")
# of reward models
REWARD_APIS = tuple(name for name in get_args(ServerApi) if name not in OPENAI_APIS)
MAX_CATEGORIES = 200  # of a moderation endpoint


@dataclass(frozen=True, slots=True)
class ApiForm:
    """The form of one API: `make_body(model, messages, raw)` returns a request, `read(data, label)`
    what a response says.

    `raw` asks for scores before any activation function. `label` chooses the class of a classifier.
    `takes_label`: it has classes.
    """

    make_body: Callable[[str, Sequence[Message], bool], dict[str, Any]]
    read: Callable[[Any, str], dict[str, Any]]
    takes_label: bool = False


class ScoringModel:
    """A model that returns a number about a text, behind one path of a server. Its calls write no
    tokens.

    Args:
        chat: The server and the name of the model; the base URL is everything before the last part
            of the path.
        api: The API that the server speaks.
        path: The path below the base URL, such as "/classify".
        raw: Ask for the score before any activation function; else a probability in [0, 1].
        label: The class whose probability counts: its number, from 0, for /classify; its name for
            /predict.
    """

    formats = ("text",)
    takes_probes = False
    writes_text = False

    def __init__(
        self, chat: Chat, api: ServerApi, path: str, *, raw: bool = False, label: str = ""
    ) -> None:
        checks.one_of("api", api, get_args(ServerApi))
        if label and not API_FORMS[api].takes_label:
            with_classes = " and ".join(
                f"/{name}" for name, form in API_FORMS.items() if form.takes_label
            )
            raise ConfigError(
                f"label={label!r}: only the APIs {with_classes} have classes, not {api!r}"
            )
        if (
            label
            and api == "classify"
            and not (label.isascii() and label.isdigit() and len(label) < 6)
        ):
            raise ConfigError(f"label={label!r}: the classes of /classify have numbers, from 0")
        self.chat, self.path = chat, path
        self.api: ServerApi = api
        self.raw, self.label = raw, label
        self.name, self.base_url, self.host = chat.name, chat.base_url, chat.host
        self.timeouts = chat.timeouts
        self.operation = api  # (what its calls are in telemetry)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.identity!r})"

    @property
    def identity(self) -> str:
        """Endpoint, path, model and what is asked for, without secrets."""
        return f"{self.api} {self.path} raw={self.raw} label={self.label} {self.chat.identity}"

    @property
    def price(self) -> Price | None:
        """Free for OpenAI's moderation endpoint; None: as published for the name, else unknown."""
        return FREE if self.api == "moderations" and self.base_url == OPENAI_URL else None

    async def complete(self, request: Request) -> Reply:
        """Have the last message scored. Raises ModelError."""
        form = API_FORMS[self.api]

        def read(data: Any) -> Reply:
            result = form.read(data, self.label)
            return Reply(orjson.dumps(result).decode(), _usage_of(data))

        return await self.chat.post(
            self.path, form.make_body(self.chat.name, request.messages, self.raw), read
        )


def connect_scoring(
    url: str,
    *,
    api: ServerApi | None = None,
    raw: bool = False,
    label: str = "",
    env: Mapping[str, str] | None = None,
) -> ScoringModel:
    """Return the client for a URL with a path, such as "http://127.0.0.1:8000/classify#MODEL".
    Nothing is sent.

    Without `api`, the last part of the path says which API it is. A key in the URL is sent to that
    host only; OPENAI_API_KEY only to the host of OPENAI_BASE_URL. Raises ConfigError.
    """
    address, _, model = url.strip().partition("#")
    base, _ = parse_base_url(address)
    _, slash, last = base.path.rpartition("/")
    if api is not None:
        checks.one_of("api", api, REWARD_APIS)
    chosen = api or (cast("ServerApi", last) if last in REWARD_APIS else None)
    if not slash or not last or chosen is None:
        known = ", ".join(f"/{name}" for name in REWARD_APIS if name != "tei_rerank")
        raise ConfigError(
            f"{redacted_url(address)} does not say which API it is: the path ends with one of "
            f"{known}, or state it as api=NAME"
        )
    environment = os.environ if env is None else env
    head, query_mark, query = address.partition("?")
    base_url = f"{head.rstrip('/')[: -len(last) - 1]}{query_mark}{query}"
    name = model.strip() or base.netloc
    chat = connect_endpoint(name, base_url, environment)
    return ScoringModel(chat, chosen, f"/{last}", raw=raw, label=label)


def connect_moderation(model_name: str) -> ScoringModel:
    """Return the client of a moderation endpoint, by the name of a model on it, such as
    "openai:NAME". Raises ConfigError.
    """
    return _connect_openai_api("moderations", model_name, "moderation")


def connect_embeddings(model_name: str) -> ScoringModel:
    """Return the client of an embeddings endpoint, by the name of a model on it. Raises
    ConfigError.

    Its score is the cosine of the vectors of the last message and of the messages before it, from
    -1 to 1.
    """
    return _connect_openai_api("embeddings", model_name, "embedding")


def connect_vectors(model_name: str) -> ScoringModel:
    """Return the client of an embeddings endpoint that gives the vector of all messages as one
    text. Raises ConfigError.
    """
    return _connect_openai_api("vectors", model_name, "embedding", "embeddings")


def _connect_openai_api(
    api: ServerApi, model_name: str, grader: str, path: str = ""
) -> ScoringModel:
    """Return the client of an API beside the one for chat models; `path` is "" if it is called as
    the API. A URL may include it, as the URLs of reward models do.
    """
    path = path or api
    address, hash_sign, name = model_name.partition("#")
    model_name = (
        f"{address.rstrip('/').removesuffix(f'/{path}')}{hash_sign}{name}"
        if "://" in address
        else model_name
    )
    client = None if model_name.partition(":")[0] in {*VENDORS, "local"} else connect(model_name)
    if not isinstance(client, Chat):
        shown = redacted_model_name(model_name)
        raise ConfigError(
            f"{grader} needs an OpenAI-compatible endpoint (openai:NAME, "
            f"http://host:port/v1#NAME), got {shown!r}"
        )
    return ScoringModel(client, api, f"/{path}")


def _usage_of(data: Any) -> Usage:
    """Return the usage of a call: no output, and the input tokens if the server counts them."""
    usage = data.get("usage") if isinstance(data, Mapping) else None
    return replace(read_usage(usage), output_tokens=0)


# ---- requests


def conversation_text(messages: Sequence[Message]) -> str:
    """Return messages as one text: a single one as it is, several as "ROLE: TEXT" with empty lines
    between them.
    """
    if len(messages) == 1:
        return message_text(messages[0])
    return "\n\n".join(f"{message['role']}: {message_text(message)}" for message in messages)


def _split(messages: Sequence[Message]) -> tuple[str, str]:
    """Return the task as a text, and the text to be scored."""
    return conversation_text(messages[:-1]), message_text(messages[-1])


def _chat_body(model: str, messages: Sequence[Message], raw: bool) -> dict[str, Any]:  # noqa: FBT001
    return {
        "model": model,
        "messages": [dict(message) for message in messages],
        "use_activation": not raw,
    }


def _score_body(model: str, messages: Sequence[Message], raw: bool) -> dict[str, Any]:  # noqa: FBT001
    task, text = _split(messages)
    return {"model": model, "text_1": task, "text_2": text, "use_activation": not raw}


def _rerank_body(model: str, messages: Sequence[Message], raw: bool) -> dict[str, Any]:  # noqa: FBT001
    task, text = _split(messages)
    return {"model": model, "query": task, "documents": [text], "use_activation": not raw}


def _predict_body(model: str, messages: Sequence[Message], raw: bool) -> dict[str, Any]:  # noqa: FBT001
    return {"inputs": list(_split(messages)), "raw_scores": raw, "truncate": False}


def _tei_rerank_body(model: str, messages: Sequence[Message], raw: bool) -> dict[str, Any]:  # noqa: FBT001
    task, text = _split(messages)
    return {"query": task, "texts": [text], "raw_scores": raw, "truncate": False}


def _moderation_body(model: str, messages: Sequence[Message], raw: bool) -> dict[str, Any]:  # noqa: FBT001
    return {"model": model, "input": _split(messages)[1]}


def _embeddings_body(model: str, messages: Sequence[Message], raw: bool) -> dict[str, Any]:  # noqa: FBT001
    return {"model": model, "input": list(reversed(_split(messages))), "encoding_format": "float"}


def _vectors_body(model: str, messages: Sequence[Message], raw: bool) -> dict[str, Any]:  # noqa: FBT001
    return {"model": model, "input": [conversation_text(messages)], "encoding_format": "float"}


# ---- responses


def _wrong_shape(problem: str) -> Exception:
    return malformed_response(problem, retryable=False)


def _only_item(data: Any, key: str) -> Mapping[str, Any]:
    return _items(data, key, 1, "one result")[0]


def _items(data: Any, key: str, count: int, what: str) -> list[Mapping[str, Any]]:
    """Return the objects in the list `key` of a response, or in the response if `key` is empty.
    Raises BadResponseError if there are not so many.
    """
    rows = data if not key else data.get(key) if isinstance(data, Mapping) else None
    if (
        not isinstance(rows, list)
        or len(rows) != count
        or not all(isinstance(row, Mapping) for row in rows)
    ):
        where = f" in {key!r}" if key else ""
        raise _wrong_shape(f"sent no list of {what}{where}: {shorten(repr(data), 100)}")
    return rows


def _number(value: Any, what: str) -> float:
    if not checks.is_number(value):
        raise _wrong_shape(f"sent {json_type_name(value)} as {what}")
    return float(value)


def _read_field(data: Any, label: str, *, key: str, field: str, what: str) -> dict[str, Any]:
    """Return the number in a field of the only object in the list `key`."""
    return {"score": _number(_only_item(data, key).get(field), what)}


def _read_classify(data: Any, label: str) -> dict[str, Any]:
    """Return the number of the class `label`, or of the only class."""
    numbers = _only_item(data, "data").get("probs")
    if not isinstance(numbers, list) or not numbers:
        raise _wrong_shape(f"sent {json_type_name(numbers)} as the probabilities of the classes")
    if not label and len(numbers) > 1:
        raise _wrong_shape(
            f"has {len(numbers)} classes: state whose probability counts, label=0 to "
            f"label={len(numbers) - 1}"
        )
    if (index := int(label or 0)) >= len(numbers):
        raise _wrong_shape(f"has {len(numbers)} classes, numbered from 0, and no class {label!r}")
    return {"score": _number(numbers[index], "a probability")}


def _read_pooling(data: Any, label: str) -> dict[str, Any]:
    """Return the only number, or the last token's."""
    values = _only_item(data, "data").get("data")
    last = values[-1] if isinstance(values, list) and values else None
    if isinstance(last, list):
        last = last[0] if len(last) == 1 else None
    elif isinstance(values, list) and len(values) != 1:
        last = None
    if last is None:
        raise _wrong_shape(
            "sent no single number for the last token: is this a reward model of one output?"
        )
    return {"score": _number(last, "the reward")}


def _read_predict(data: Any, label: str) -> dict[str, Any]:
    """Return the score of the class `label`, or of the only class. A batch of one is unwrapped."""
    rows = (
        data[0] if isinstance(data, list) and len(data) == 1 and isinstance(data[0], list) else data
    )
    if not isinstance(rows, list) or not rows or not all(isinstance(row, Mapping) for row in rows):
        raise _wrong_shape(f"sent no list of predictions: {shorten(repr(data), 100)}")
    labels = [str(row.get("label")) for row in rows]
    if not label and len(rows) > 1:
        raise _wrong_shape(
            "has several classes: state whose score counts, "
            f"label={shorten(' or '.join(labels), 100)}"
        )
    if label and label not in labels:
        raise _wrong_shape(f"has no class {label!r}; there are {shorten(', '.join(labels), 200)}")
    return {"score": _number(rows[labels.index(label) if label else 0].get("score"), "the score")}


def _read_moderation(data: Any, label: str) -> dict[str, Any]:
    """Return whether the text is flagged, and the score and the decision of each category."""
    result = _only_item(data, "results")
    flagged, scores, categories = (
        result.get("flagged"),
        result.get("category_scores"),
        result.get("categories"),
    )
    if (
        not isinstance(flagged, bool)
        or not isinstance(scores, Mapping)
        or not isinstance(categories, Mapping)
    ):
        raise _wrong_shape("sent a result without flagged, categories and category_scores")
    if not 0 < len(scores) <= MAX_CATEGORIES or not all(
        checks.is_number(s) and 0 <= s <= 1 for s in scores.values()
    ):
        raise _wrong_shape(
            f"sent category_scores that are not 1 to {MAX_CATEGORIES} numbers from 0 to 1"
        )
    decided = {
        shorten(str(name), 60): value is True
        for name, value in list(categories.items())[:MAX_CATEGORIES]
    }
    return {
        "flagged": flagged,
        "category_scores": {shorten(str(k), 60): v for k, v in scores.items()},
        "categories": decided,
    }


def _read_embeddings(data: Any, label: str) -> dict[str, Any]:
    return {"score": cosine_similarity(*_parse_vectors(data, 2))}


def _read_vectors(data: Any, label: str) -> dict[str, Any]:
    return {"vector": _parse_vectors(data, 1)[0]}


def _parse_vectors(data: Any, count: int) -> list[list[float]]:
    """Return the vectors in a response, sorted by index. Raises BadResponseError for anything
    else.
    """
    rows = _items(data, "data", count, f"{count} embeddings")
    vectors: dict[str, Any] = {str(row.get("index")): row.get("embedding") for row in rows}
    if vectors.keys() != set(map(str, range(count))):
        raise _wrong_shape("sent embeddings that do not say which text they belong to")
    if not all(
        isinstance(v, list) and v and all(map(checks.is_number, v)) for v in vectors.values()
    ):
        raise _wrong_shape("sent an embedding that is not a list of numbers")
    if len(set(map(len, vectors.values()))) != 1:
        raise _wrong_shape("sent embeddings of different lengths")
    return [vectors[str(n)] for n in range(count)]


def cosine_similarity(a: Sequence[float], b: Sequence[float]) -> float:
    """Return a value from -1 to 1. Raises BadResponseError for a zero vector, which has no
    direction.
    """
    lengths = [hypot(*v) for v in (a, b)]
    if not all(isfinite(length) and length > 0 for length in lengths):
        raise _wrong_shape("sent an embedding without a direction")
    return max(
        -1.0, min(1.0, fsum(x / lengths[0] * (y / lengths[1]) for x, y in zip(a, b, strict=True)))
    )


API_FORMS: Mapping[ServerApi, ApiForm] = {
    "classify": ApiForm(_chat_body, _read_classify, takes_label=True),
    "score": ApiForm(
        _score_body, partial(_read_field, key="data", field="score", what="the score")
    ),
    "rerank": ApiForm(
        _rerank_body,
        partial(_read_field, key="results", field="relevance_score", what="the relevance score"),
    ),
    "pooling": ApiForm(_chat_body, _read_pooling),
    "predict": ApiForm(_predict_body, _read_predict, takes_label=True),
    "tei_rerank": ApiForm(
        _tei_rerank_body, partial(_read_field, key="", field="score", what="the score")
    ),
    "moderations": ApiForm(_moderation_body, _read_moderation),
    "embeddings": ApiForm(_embeddings_body, _read_embeddings),
    "vectors": ApiForm(_vectors_body, _read_vectors),
}
