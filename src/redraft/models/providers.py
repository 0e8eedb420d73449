"""Every vendor with a protocol of its own, through pydantic-ai's direct requests (extra `providers`).

It translates: our request to theirs, their answer and errors to ours. It knows no vendor; their retries are switched
off, as ours are wrapped around every model alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from ..contracts import Format, Reply, Request
from ..core.errors import (
    BadResponseError,
    ConfigError,
    ContentFilterError,
    ModelError,
    ModelTimeoutError,
    ModelUnavailableError,
)
from ..core.records import Message, Usage, text_of
from ..ledger import current_entry
from .chat import mended, without_none
from .reading import Said, refused, shorten, without_thoughts
from .wire import PERHAPS_BILLED, REFUSED, PerLoop

_INSTALL = "needs pydantic-ai and the vendor's package: pip install 'redraft[providers]'"
RENAMED = {"gemini": "google", "google-gla": "google", "google-vertex": "google-cloud", "grok": "xai"}


class ProviderModel:
    """A vendor's model, as "anthropic:claude-..." or as an object of pydantic-ai's. Keys come from the vendor's variables.

    A schema is asked for natively where the model knows how, else it is left to the words of the request.
    """

    def __init__(self, spec: Any, *, timeout: float = 600.0, settings: Mapping[str, Any] | None = None) -> None:
        self._spec = _renamed(spec) if isinstance(spec, str) else spec
        self._timeout = timeout
        self._settings = dict(settings or {})
        self._models = PerLoop(lambda: _inferred(self._spec), _closed)
        first = _inferred(self._spec)
        self.provider, self.model_name = str(first.system), str(first.model_name)
        self.name = spec if isinstance(spec, str) else f"{self.provider}:{self.model_name}"
        self._native = _profile(first, "supports_json_schema_output")

    @property
    def formats(self) -> tuple[Format, ...]:
        return ("json_schema", "text") if self._native else ("text",)

    def __repr__(self) -> str:
        return f"ProviderModel({self.name!r})"

    @property
    def identity(self) -> str:
        return f"provider:{self.name}" + (f"{sorted(self._settings.items())}" if self._settings else "")

    async def complete(self, request: Request) -> Reply:
        from pydantic_ai.direct import model_request

        model = await self._models.get()
        try:
            async with asyncio.timeout(self._timeout):
                answer = await model_request(
                    model,
                    _messages(request),
                    model_settings=self._asked(request),
                    model_request_parameters=_parameters(request, native=self._native),
                )
            return _reply(answer)
        except Exception as error:
            failure = _failure(error, self._timeout)
            if failure is None:
                raise
            failure.args = (f"{self.name}: {failure}",)
            raise failure from None

    def _asked(self, request: Request) -> Any:
        sampling = {"temperature": request.temperature, "max_tokens": request.max_tokens, "seed": request.seed}
        taken = {key: value for key, value in sampling.items() if key not in request.unsupported}
        return without_none({"max_retries": 0} | taken | self._settings)


# ---- to theirs


def _renamed(spec: str) -> str:
    vendor, colon, name = spec.partition(":")
    return f"{RENAMED.get(vendor, vendor)}{colon}{name}"


def _inferred(spec: Any) -> Any:
    try:
        from pydantic_ai.exceptions import UserError
        from pydantic_ai.models import infer_model
    except ImportError:
        raise ConfigError(f"{spec!r} {_INSTALL}") from None
    try:
        return infer_model(spec)
    except ImportError as error:
        raise ConfigError(f"{spec!r} {_INSTALL} ({shorten(str(error), 120)})") from None
    except (UserError, ValueError) as error:
        raise ConfigError(f"{spec!r}: {shorten(str(error))}") from None


async def _closed(model: Any) -> None:
    """Entering and leaving a model closes the HTTP client it opened for itself."""
    if hasattr(model, "__aenter__"):
        async with model:
            pass


def _profile(model: Any, key: str) -> bool:
    profile = model.profile
    return bool(profile.get(key) if isinstance(profile, Mapping) else getattr(profile, key, False))


def _messages(request: Request) -> list[Any]:
    """System and user messages as parts of requests, assistant messages as responses."""
    from pydantic_ai.messages import ModelRequest, ModelResponse, SystemPromptPart, TextPart, UserPromptPart

    turns: list[Any] = []
    for message in request.messages:
        role, text = message["role"], mended(text_of(message))
        if role == "assistant":
            turns.append(ModelResponse(parts=[TextPart(text)]))
            continue
        part = SystemPromptPart(text) if role in {"system", "developer"} else UserPromptPart(_seen(message, text))
        if turns and isinstance(turns[-1], ModelRequest):
            turns[-1] = ModelRequest(parts=[*turns[-1].parts, part])
        else:
            turns.append(ModelRequest(parts=[part]))
    return turns


def _seen(message: Message, text: str) -> Any:
    """The text of a message, and its images where it has any. Raises BadResponseError for an image that is none."""
    from pydantic_ai.messages import BinaryContent, ImageUrl

    content = message["content"]
    parts = [part["image_url"] for part in content if "image_url" in part] if isinstance(content, list | tuple) else []
    urls = [str(part.get("url", "")) if isinstance(part, Mapping) else str(part) for part in parts]
    try:
        images = [BinaryContent.from_data_uri(url) if url.startswith("data:") else ImageUrl(url=url) for url in urls]
    except ValueError as error:
        raise BadResponseError(f"an image of the task cannot be sent: {error}", status=400, usage=REFUSED) from error
    return [text, *images] if images else text


def _parameters(request: Request, *, native: bool) -> Any:
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.output import OutputObjectDefinition

    if request.format != "json_schema" or request.schema is None or not native:
        return ModelRequestParameters()
    wanted = OutputObjectDefinition(json_schema=dict(request.schema), name="answer", strict=True)
    return ModelRequestParameters(output_mode="native", output_object=wanted)


# ---- and back


def _reply(answer: Any) -> Reply:
    usage = _usage(answer.usage)
    text, inline = without_thoughts(_joined(answer.parts, "text"))
    thoughts = [t for t in (_joined(answer.parts, "thinking"), inline) if t]
    finish = getattr(answer, "finish_reason", None)
    if finish == "content_filter":
        raise ContentFilterError("refused, or withheld by a content filter", usage=usage)
    if not text.strip():
        kinds = ", ".join(sorted({p.part_kind for p in answer.parts})) or "nothing"
        error = BadResponseError(f"sent no text (finish_reason {finish!r}, parts: {kinds})", retryable=True, usage=usage)
        error.empty = True
        raise error
    return Reply(text, usage, finish, "\n".join(thoughts) or None)


def _joined(parts: Sequence[Any], kind: str) -> str:
    return "".join(p.content for p in parts if p.part_kind == kind and p.content)


def _usage(usage: Any) -> Usage:
    """Theirs says 0 where nothing is known: an answer that took no input or made no output does not exist."""
    return Usage(calls=1, input_tokens=usage.input_tokens or None, output_tokens=usage.output_tokens or None, cost=None)


def _failure(error: Exception, timeout: float) -> ModelError | None:
    """The typed error for one of theirs; None for what is none of theirs."""
    from pydantic_ai import exceptions as theirs

    match error:
        case ModelError():
            return error
        case theirs.UserError():
            return ModelError(shorten(str(error)), usage=REFUSED)
        case theirs.ModelHTTPError():
            return _http(error)
        case TimeoutError():
            return ModelTimeoutError(f"still waiting for an answer after {timeout:.3g} s", usage=PERHAPS_BILLED)
        case theirs.UnexpectedModelBehavior():
            return _unexpected(error)
        case theirs.AgentRunError():
            return _unreached(error)
    return None


def _http(error: Any) -> ModelError:
    said = Said(error.body if error.body is not None else str(error))
    failure = refused(error.status_code, said, getattr(error, "headers", None))
    if failure.retryable and failure.retry_after is None:
        failure.retry_after = getattr(error, "retry_after", None)
    return failure


def _unexpected(error: Exception) -> ModelError:
    if "ContentFilter" in type(error).__name__:
        return ContentFilterError(shorten(str(error)), usage=PERHAPS_BILLED)
    return BadResponseError(shorten(str(error)), retryable=True, usage=PERHAPS_BILLED)


def _unreached(error: Exception) -> ModelError:
    kind = ModelTimeoutError if "Timeout" in type(error).__name__ else ModelUnavailableError
    if _never_left(error):
        current_entry().watch()
        return kind(shorten(str(error)), retryable=True)
    return kind(shorten(str(error)), retryable=True, usage=PERHAPS_BILLED)


def _never_left(error: BaseException | None) -> bool:
    """Whether there was no connection to send anything over: their clients keep what httpx said as the cause."""
    while error is not None:
        if type(error).__name__ in {"ConnectError", "ConnectTimeout", "PoolTimeout"}:
            return True
        error = error.__cause__ or error.__context__
    return False
