"""Every vendor with a protocol of its own, through pydantic-ai's direct requests (extra `providers`).

It translates: our request to theirs, their answer and errors to ours. It knows no vendor; their retries are switched
off, as ours are wrapped around every model alike.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.records import Message, ToolCall, message_text
from ..errors import (
    BadResponseError,
    ConfigError,
    ContentFilterError,
    ModelError,
    ModelTimeoutError,
    ModelUnavailableError,
)
from ..jsontext import replace_lone_surrogates
from ..ledger import current_entry
from ..masking import (
    Mask,
    answer_mask,
    secrets_in_environment,
    secrets_in_fields,
    secrets_in_proxy,
    without_cause,
    without_secret_fields,
)
from ..protocols import Format, Reply, Request
from ..usage import Usage
from .endpoint_url import check_proxy, redirect_error
from .http_client import REFUSED_USAGE, UNKNOWN_USAGE, LoopLocal
from .openai_chat import ExtraBodyTools, extra_parameters, masked_reply, without_none
from .openai_responses import ErrorBody, error_from_status, read_tool_calls, shorten, split_thinking
from .vendor_clients import apply_http_policy, mask_logs, secrets_of

_INSTALL = "needs pydantic-ai and the vendor's package: pip install 'redraft[providers]'"
IMAGE_DOWNLOADING_MODULES = ("pydantic_ai.models.google", "pydantic_ai.models.bedrock", "pydantic_ai.models.cohere")
"""Where pydantic-ai downloads an image by its address, to send its bytes, or may."""
VENDOR_ALIASES = {"gemini": "google", "google-gla": "google", "google-vertex": "google-cloud", "grok": "xai"}


class ProviderModel(ExtraBodyTools):
    """A vendor's model, as "anthropic:claude-..." or as an object of pydantic-ai's. Keys come from the vendor's variables.

    A schema is asked for natively where the model knows how, else it is left to the words of the request. `proxy` is a URL,
    or "env" to use what HTTP_PROXY, HTTPS_PROXY and NO_PROXY say; without it there is none. Redirects are not followed. An
    object that was given an HTTP client of yours keeps it as it is.
    """

    def __init__(
        self, spec: Any, *, timeout: float = 600.0, settings: Mapping[str, Any] | None = None, proxy: str | None = None
    ) -> None:
        self._spec = _canonical_spec(spec) if isinstance(spec, str) else spec
        self._timeout = timeout
        self._settings = dict(settings or {})
        self._extra = self._settings.get("extra_body") or {}
        self._proxy = proxy
        self._models = LoopLocal(self._make_model, _close_model)
        check_proxy(proxy)
        first = self._make_model()
        secrets = {*secrets_of(first), *secrets_in_proxy(proxy), *secrets_in_fields(self._settings)}
        self._mask, self._reply_mask = Mask(secrets), answer_mask(secrets)
        mask_logs(secrets)
        self.provider, self.model_name = str(first.system), str(first.model_name)
        self.name = spec if isinstance(spec, str) else f"{self.provider}:{self.model_name}"
        self._supports_schema = _profile_flag(first, "supports_json_schema_output")

    def _make_model(self) -> Any:
        made = _infer_model(self._spec)
        apply_http_policy(made, self._proxy, created_here=isinstance(self._spec, str))
        return made

    @property
    def formats(self) -> tuple[Format, ...]:
        return ("json_schema", "text") if self._supports_schema else ("text",)

    def __repr__(self) -> str:
        return f"ProviderModel({self.name!r})"

    @property
    def identity(self) -> str:
        return f"provider:{self.name}" + (f"{sorted(without_secret_fields(self._settings).items())}" if self._settings else "")

    async def complete(self, request: Request) -> Reply:
        from pydantic_ai.direct import model_request

        model = await self._models.get()
        try:
            async with asyncio.timeout(self._timeout):
                answer = await model_request(
                    model,
                    _to_messages(request, model),
                    model_settings=self._model_settings(request),
                    model_request_parameters=_request_parameters(request, supports_schema=self._supports_schema),
                )
            return masked_reply(_to_reply(answer), self._reply_mask)
        except Exception as error:
            failure = _to_model_error(error, self._timeout, self._mask)
            if failure is None:
                raise
        failure.args = (self._mask(f"{self.name}: {failure}"),)
        raise without_cause(failure)

    def _model_settings(self, request: Request) -> Any:
        sampling = {"temperature": request.temperature, "max_tokens": request.max_tokens, "seed": request.seed}
        taken = {key: value for key, value in sampling.items() if key not in request.unsupported_parameters}
        own = extra_parameters(request, self._settings)
        if own.get("extra_body"):
            own["extra_body"] = extra_parameters(request, own["extra_body"])
        choice = {"tool_choice": _to_tool_choice(request.tool_choice)} if request.tool_choice is not None else {}
        return without_none({"max_retries": 0} | taken | own | choice)


# ---- to theirs


def _canonical_spec(spec: str) -> str:
    vendor, colon, name = spec.partition(":")
    return f"{VENDOR_ALIASES.get(vendor, vendor)}{colon}{name}"


def _infer_model(spec: Any) -> Any:
    try:
        from pydantic_ai.exceptions import UserError
        from pydantic_ai.models import infer_model
    except ImportError:
        raise ConfigError(f"{spec!r} {_INSTALL}") from None
    try:
        return infer_model(spec)
    except ImportError as error:
        raise ConfigError(f"{spec!r} {_INSTALL} ({shorten(_masked_message(error), 120)})") from None
    except (UserError, ValueError) as error:
        raise ConfigError(f"{spec!r}: {shorten(_masked_message(error))}") from None


def _masked_message(error: Exception) -> str:
    return Mask(secrets_in_environment(os.environ))(str(error))


async def _close_model(model: Any) -> None:
    """Entering and leaving a model closes the HTTP client it opened for itself."""
    if hasattr(model, "__aenter__"):
        async with model:
            pass


def _profile_flag(model: Any, key: str) -> bool:
    profile = model.profile
    return bool(profile.get(key) if isinstance(profile, Mapping) else getattr(profile, key, False))


def _to_messages(request: Request, model: Any) -> list[Any]:
    """System and user messages and results of tools as parts of requests, assistant messages as responses."""
    from pydantic_ai.messages import (
        ModelRequest,
        ModelResponse,
        SystemPromptPart,
        TextPart,
        ToolCallPart,
        ToolReturnPart,
        UserPromptPart,
    )  # fmt: skip

    turns: list[Any] = []
    called: dict[str, str] = {}  # the names of functions, by the ids of their calls
    for message in request.messages:
        role, text = message["role"], replace_lone_surrogates(message_text(message))
        if role == "assistant":
            calls = read_tool_calls(message, None, REFUSED_USAGE)
            called |= {call.id: call.name for call in calls}
            said = [TextPart(text)] if text or not calls else []
            turns.append(
                ModelResponse(parts=[*said, *(ToolCallPart(c.name, replace_lone_surrogates(c.arguments), c.id) for c in calls)])
            )
            continue
        if role == "tool" and (id := message.get("tool_call_id")) in called:
            part: Any = ToolReturnPart(called[id], text, id)
        else:
            part = (
                SystemPromptPart(text) if role in {"system", "developer"} else UserPromptPart(_user_content(message, text, model))
            )
        if turns and isinstance(turns[-1], ModelRequest):
            turns[-1] = ModelRequest(parts=[*turns[-1].parts, part])
        else:
            turns.append(ModelRequest(parts=[part]))
    return turns


def _user_content(message: Message, text: str, model: Any) -> Any:
    """The text of a message, and its images where it has any. Raises BadResponseError for an image that cannot be sent."""
    from pydantic_ai.messages import BinaryContent, ImageUrl

    content = message["content"]
    parts = [part["image_url"] for part in content if "image_url" in part] if isinstance(content, list | tuple) else []
    urls = [str(part.get("url", "")) if isinstance(part, Mapping) else str(part) for part in parts]
    if type(model).__module__.startswith(IMAGE_DOWNLOADING_MODULES) and not all(url.startswith("data:") for url in urls):
        why = "this vendor takes images as data only, and an address in a task is never fetched from here: give a data: URL"
        raise BadResponseError(f"an image of the task cannot be sent: {why}", status=400, usage=REFUSED_USAGE)
    try:
        images = [BinaryContent.from_data_uri(url) if url.startswith("data:") else ImageUrl(url=url) for url in urls]
    except ValueError as error:
        raise BadResponseError(f"an image of the task cannot be sent: {error}", status=400, usage=REFUSED_USAGE) from error
    return [text, *images] if images else text


def _request_parameters(request: Request, *, supports_schema: bool) -> Any:
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.output import OutputObjectDefinition

    if request.format != "json_schema" or request.schema is None or not supports_schema:
        return ModelRequestParameters(function_tools=[_tool_definition(tool) for tool in request.tools])
    wanted = OutputObjectDefinition(json_schema=dict(request.schema), name="answer", strict=True)
    return ModelRequestParameters(output_mode="native", output_object=wanted)


def _tool_definition(tool: Mapping[str, Any]) -> Any:
    """A function tool in their form. Raises ConfigError for a tool of another kind."""
    from pydantic_ai.tools import ToolDefinition

    function = tool.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ConfigError(f"only functions can be offered as tools here, got {shorten(repr(tool), 200)}")
    schema = dict(function.get("parameters") or {"type": "object", "properties": {}})
    about = function.get("description")
    return ToolDefinition(name=function["name"], parameters_json_schema=schema, description=about, strict=function.get("strict"))


def _to_tool_choice(choice: Any) -> Any:
    """Theirs names a function that must be called in a list."""
    return [choice["function"]["name"]] if isinstance(choice, Mapping) and "function" in choice else choice


# ---- and back


def _to_reply(answer: Any) -> Reply:
    usage = _to_usage(answer.usage)
    text, inline = split_thinking(_join_parts(answer.parts, "text"))
    thoughts = [t for t in (_join_parts(answer.parts, "thinking"), inline) if t]
    finish = getattr(answer, "finish_reason", None)
    if finish == "content_filter":
        raise ContentFilterError("refused, or withheld by a content filter", usage=usage)
    calls = _to_tool_calls(answer, usage)
    if not text.strip() and not calls:
        kinds = ", ".join(sorted({p.part_kind for p in answer.parts})) or "nothing"
        error = BadResponseError(f"sent no text (finish_reason {finish!r}, parts: {kinds})", retryable=True, usage=usage)
        error.empty = True
        raise error
    return Reply(text if text.strip() else "", usage, finish, "\n".join(thoughts) or None, tool_calls=calls)


def _to_tool_calls(answer: Any, usage: Usage) -> tuple[ToolCall, ...]:
    """The calls of functions in an answer. Raises BadResponseError for what is no call."""
    parts = [p for p in answer.parts if p.part_kind == "tool-call"]
    told = [{"id": p.tool_call_id, "function": {"name": p.tool_name, "arguments": p.args}} for p in parts]
    return read_tool_calls({"tool_calls": told}, getattr(answer, "finish_reason", None), usage)


def _join_parts(parts: Sequence[Any], kind: str) -> str:
    return "".join(p.content for p in parts if p.part_kind == kind and p.content)


def _to_usage(usage: Any) -> Usage:
    """Theirs says 0 where nothing is known: an answer that took no input or made no output does not exist."""
    return Usage(calls=1, input_tokens=usage.input_tokens or None, output_tokens=usage.output_tokens or None, cost=None)


def _to_model_error(error: Exception, timeout: float, mask: Mask) -> ModelError | None:
    """The typed error for one of theirs, with what they say masked; None for what is none of theirs."""
    from pydantic_ai import exceptions as theirs

    words = shorten(mask(str(error)))
    match error:
        case ModelError():
            return error
        case theirs.UserError():
            return ModelError(words, usage=REFUSED_USAGE)
        case theirs.ModelHTTPError():
            return _redirect_error(error, mask) or _http_error(error, mask)
        case TimeoutError():
            return ModelTimeoutError(f"still waiting for an answer after {timeout:.3g} s", usage=UNKNOWN_USAGE)
        case theirs.UnexpectedModelBehavior() if "ContentFilter" in type(error).__name__:
            return ContentFilterError(words, usage=UNKNOWN_USAGE)
        case theirs.UnexpectedModelBehavior():
            return BadResponseError(words, retryable=True, usage=UNKNOWN_USAGE)
        case theirs.AgentRunError():
            return _redirect_error(error, mask) or _connection_error(error, words)
    if type(error).__module__ == "builtins" and not isinstance(error, UnicodeError) and not _raised_in_pydantic_ai(error):
        return None
    return BadResponseError(f"{type(error).__name__}: {words}", retryable=True, usage=UNKNOWN_USAGE)


def _raised_in_pydantic_ai(error: Exception) -> bool:
    """Whether pydantic-ai's own code raised it, as in reading a body of an odd shape."""
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    return trace is not None and str(trace.tb_frame.f_globals.get("__name__")).startswith("pydantic_ai.")


def _http_error(error: Any, mask: Mask) -> ModelError:
    headers = getattr(error, "headers", None)
    failure = error_from_status(
        error.status_code, ErrorBody(mask.mask_json(error.body if error.body is not None else str(error))), headers
    )
    if failure.retryable and failure.retry_after is None:
        failure.retry_after = getattr(error, "retry_after", None)
    return failure


def _redirect_error(error: BaseException | None, mask: Mask) -> ModelError | None:
    """The error for a redirect, which their clients keep as the cause; None where there was none."""
    while error is not None:
        response = getattr(error, "response", None)
        status = getattr(response, "status_code", None)
        if isinstance(status, int) and 300 <= status < 400:
            return redirect_error(status, mask(str(getattr(response, "headers", {}).get("location", ""))))
        error = error.__cause__ or error.__context__
    return None


def _connection_error(error: Exception, message: str) -> ModelError:
    kind = ModelTimeoutError if "Timeout" in type(error).__name__ else ModelUnavailableError
    if _failed_to_connect(error):
        current_entry().start_counting()
        return kind(message, retryable=True)
    return kind(message, retryable=True, usage=UNKNOWN_USAGE)


def _failed_to_connect(error: BaseException | None) -> bool:
    """Whether there was no connection to send anything over: their clients keep what httpx said as the cause."""
    while error is not None:
        if type(error).__name__ in {"ConnectError", "ConnectTimeout", "PoolTimeout"}:
            return True
        error = error.__cause__ or error.__context__
    return False
