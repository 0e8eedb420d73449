"""Vendors with protocols of their own, through pydantic-ai's direct requests (extra `providers`).

This module converts requests to pydantic-ai's form, and its responses and errors back. Nothing in
it is specific to a vendor. The retries of vendors' packages are switched off, because middleware
retries. Their HTTP clients follow the same policy as `http_client`: redirects are not followed, and
no proxy is used that was not configured. The keys that a vendor's client holds are found, so that
they can be masked.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

from ..base.checks import install_command
from ..base.jsontext import replace_lone_surrogates
from ..base.masking import (
    Mask,
    secrets_in_environment,
    secrets_in_fields,
    secrets_in_proxy,
    without_cause,
    without_secret_fields,
)
from ..base.parameters import merge_parameters
from ..base.text import shorten
from ..errors import (
    BadResponseError,
    ConfigError,
    ContentFilterError,
    ModelError,
    ModelTimeoutError,
    ModelUnavailableError,
)
from ..loop.task import Message, message_text
from ..middleware.messages import SYSTEM_ROLES
from ..protocols import Format, Reply, Request
from ..usage import Usage
from .chat_replies import read_tool_calls, reply_from_message
from .client_packages import (
    http_client_class,
    masks_of,
    model_error,
    reachable_objects,
)
from .endpoint_url import check_proxy, clean_key, redacted_url
from .http_client import REFUSED_USAGE, UNKNOWN_USAGE, LoopLocal, malformed_response
from .openai_chat import ExtraBodyTools, extra_parameters, masked_reply, without_none

_INSTALL = f"needs pydantic-ai and the vendor's package: {install_command('providers')}"
IMAGE_DOWNLOADING_MODULES = (
    "pydantic_ai.models.google",
    "pydantic_ai.models.bedrock",
    "pydantic_ai.models.cohere",
)
"""Where pydantic-ai may download an image from its address to send its bytes."""


VENDOR_ALIASES = {
    "gemini": "google",
    "google-gla": "google",
    "google-vertex": "google-cloud",
    "grok": "xai",
}


class ProviderModel(ExtraBodyTools):
    """A model that pydantic-ai provides. Keys come from the vendor's environment variables.

    A schema is requested natively if the model supports it; if not, only the words of the request
    describe it. An HTTP client of yours in a pydantic-ai model is used unchanged.

    Args:
        spec: A name such as "anthropic:claude-sonnet-4-5", or a model object of pydantic-ai.
        timeout: Seconds for a whole call.
        settings: Model settings of pydantic-ai for every request.
        proxy: A URL, or "env" for HTTP_PROXY, HTTPS_PROXY and NO_PROXY. None: no proxy.
        api_key: The key, instead of that in the environment; only for a name.
        base_url: The address of the vendor's API, if its provider takes one; only for a name.

    Raises:
        ConfigError: The name is unknown, a package or a key is missing, or a proxy cannot be
            configured.
    """

    def __init__(
        self,
        spec: Any,
        *,
        timeout: float = 600.0,
        settings: Mapping[str, Any] | None = None,
        proxy: str | None = None,
        api_key: str | None = None,
        base_url: str | None = None,
    ) -> None:
        self._spec = spec
        access = {"api_key": clean_key(api_key), "base_url": base_url}
        self._access = {name: value for name, value in access.items() if value is not None}
        if isinstance(spec, str):
            vendor, colon, name = spec.partition(":")
            self._spec = f"{VENDOR_ALIASES.get(vendor, vendor)}{colon}{name}"
        self._timeout = timeout
        self._settings = dict(settings or {})
        self._extra = self._settings.get("extra_body") or {}
        self._proxy = proxy
        self.parameters = tuple(SETTINGS)  # of OpenAI's chat protocol, that it is known to take
        self._models = LoopLocal(lambda: _EnteredModel(self._make_model()), _EnteredModel.close)
        check_proxy(proxy)
        model = self._make_model()
        self._mask, self._reply_mask = masks_of(
            model,
            *([api_key.strip()] if api_key else []),
            *secrets_in_proxy(proxy),
            *secrets_in_fields(self._settings),
        )
        self.provider, self.model_name = str(model.system), str(model.model_name)
        self.name = spec if isinstance(spec, str) else f"{self.provider}:{self.model_name}"
        self._origin, self._own_settings = "", dict[str, Any]()
        if not isinstance(spec, str):
            address = getattr(model, "base_url", None)
            self._origin = (
                f"{type(model).__qualname__} {redacted_url(address) if address else uuid4().hex} "
            )
            self._own_settings = dict(getattr(model, "settings", None) or {})
            if address:
                self.base_url = redacted_url(address)
        self._ignored = frozenset(getattr(model, "unsupported_settings", ()))
        profile, flag = model.profile, "supports_json_schema_output"
        supports_schema = (
            profile.get(flag) if isinstance(profile, Mapping) else getattr(profile, flag, False)
        )
        self.formats: tuple[Format, ...] = ("json_schema", "text") if supports_schema else ("text",)

    def _make_model(self) -> Any:
        model = _infer_model(self._spec, self._access)
        apply_http_policy(model, self._proxy, created_here=isinstance(self._spec, str))
        return model

    def __repr__(self) -> str:
        return f"ProviderModel({self.name!r})"

    @property
    def identity(self) -> str:
        """The class, the address and the settings of a model object, the name and the settings of a
        named model, without secrets.

        A model object without an address, such as a `FunctionModel`, has an identity of its own.
        """
        settings = {**self._own_settings, **self._settings}
        shown = f"{sorted(without_secret_fields(settings).items())}" if settings else ""
        return f"provider:{self._origin}{self.name}{shown}"

    async def complete(self, request: Request) -> Reply:
        from pydantic_ai.direct import model_request

        model = await (await self._models.get()).get()
        try:
            async with asyncio.timeout(self._timeout):
                answer = await model_request(
                    model,
                    _to_messages(request, model),
                    model_settings=self._model_settings(request),
                    model_request_parameters=_request_parameters(
                        request, supports_schema="json_schema" in self.formats
                    ),
                )
            return masked_reply(_to_reply(answer), self._reply_mask)
        except Exception as error:
            failure = _to_model_error(error, self._timeout, self._mask)
            if failure is None:
                raise
        failure.args = (self._mask(f"{self.name}: {failure}"),)
        raise without_cause(failure)

    def _model_settings(self, request: Request) -> Any:
        sampling = {
            "temperature": request.temperature,
            "max_tokens": request.max_tokens,
            "seed": request.seed,
        }
        supported = {
            key: value
            for key, value in sampling.items()
            if key not in request.unsupported_parameters
        }
        own = extra_parameters(request, self._settings)
        if own.get("extra_body"):
            own["extra_body"] = extra_parameters(request, own["extra_body"])
        if request.params:
            own = merge_parameters(own, self._settings_of(request.params))
        choice: Any = request.tool_choice
        if isinstance(choice, Mapping) and "function" in choice:
            # pydantic-ai's form of a function that must be called
            choice = [choice["function"]["name"]]
        return without_none(
            {"max_retries": 0}
            | supported
            | own
            | ({} if choice is None else {"tool_choice": choice})
        )

    def _settings_of(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return parameters of a request as settings; those that are none go into the body. Raises
        ConfigError if it is ignored.
        """
        settings: dict[str, Any] = {}
        body: dict[str, Any] = {}
        vendor = f"{self.provider.partition('-')[0]}_"
        for name, value in params.items():
            is_setting = (
                name in SETTINGS
                and SETTINGS[name] not in self._ignored
                and not isinstance(value, Mapping)
            )
            if is_setting or name.startswith(vendor):
                settings[SETTINGS.get(name, name)] = value
            else:
                body[name] = value
        if body and "extra_body" in self._ignored:
            taken = ", ".join(
                [
                    *(name for name in SETTINGS if SETTINGS[name] not in self._ignored),
                    f"{vendor}...",
                ]
            )
            raise ConfigError(
                f"{next(iter(body))!r} cannot be passed on to {self.name}, which takes {taken}"
            )
        if isinstance(stop := settings.get("stop_sequences"), str):
            settings["stop_sequences"] = [stop]
        return settings | ({"extra_body": body} if body else {})


SETTINGS = {
    "stop": "stop_sequences",
    **{
        name: name
        for name in (
            "top_p",
            "top_k",
            "seed",
            "presence_penalty",
            "frequency_penalty",
            "logit_bias",
        )
    },
    **{name: name for name in ("parallel_tool_calls", "service_tier", "thinking")},
}
"""Settings of pydantic-ai, by the names that they have in OpenAI's chat protocol."""


def _infer_model(spec: Any, access: Mapping[str, str]) -> Any:
    """Return the model of pydantic-ai; `access`: arguments of its provider. Raises ConfigError."""
    try:
        from pydantic_ai.exceptions import UserError
        from pydantic_ai.models import infer_model
        from pydantic_ai.providers import infer_provider, infer_provider_class
    except ImportError:
        raise ConfigError(f"{spec!r} {_INSTALL}") from None
    try:
        return infer_model(
            spec,
            lambda name: infer_provider_class(name)(**access) if access else infer_provider(name),
        )
    except TypeError as error:
        if not access:
            raise
        raise ConfigError(
            f"{spec!r} takes no {' and '.join(access)}: {_masked_message(error)}"
        ) from None
    except ImportError as error:
        raise ConfigError(f"{spec!r} {_INSTALL} ({shorten(_masked_message(error), 120)})") from None
    except (UserError, ValueError) as error:
        raise ConfigError(f"{spec!r}: {shorten(_masked_message(error))}") from None


def _masked_message(error: Exception) -> str:
    return Mask(secrets_in_environment(os.environ))(str(error))


class _EnteredModel:
    """A model that is entered at its first use in an event loop, so that its HTTP client is open,
    and left with the loop.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._entering: asyncio.Future[Any] | None = None

    async def get(self) -> Any:
        """Return the model, entered."""
        if hasattr(self._model, "__aenter__"):
            self._entering = entering = self._entering or asyncio.ensure_future(
                self._model.__aenter__()
            )
            await asyncio.shield(entering)
        return self._model

    async def close(self) -> None:
        """Leave the model, which closes the HTTP client that it opened."""
        if self._entering:
            await self._model.__aexit__(None, None, None)


def _to_messages(request: Request, model: Any) -> list[Any]:
    """Convert messages: the assistant's become responses, all others parts of requests."""
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
    function_names: dict[str, str] = {}  # by the IDs of their calls
    for message in request.messages:
        role, text = message["role"], replace_lone_surrogates(message_text(message))
        if role == "assistant":
            calls = read_tool_calls(message, None, REFUSED_USAGE)
            function_names |= {call.id: call.name for call in calls}
            parts: list[Any] = [TextPart(text)] if text or not calls else []
            parts += [
                ToolCallPart(call.name, replace_lone_surrogates(call.arguments), call.id)
                for call in calls
            ]
            turns.append(ModelResponse(parts=parts))
            continue
        if role == "tool" and (id := message.get("tool_call_id")) in function_names:
            part: Any = ToolReturnPart(function_names[id], text, id)
        else:
            part = (
                SystemPromptPart(text)
                if role in SYSTEM_ROLES
                else UserPromptPart(_user_content(message, text, model))
            )
        if turns and isinstance(turns[-1], ModelRequest):
            turns[-1] = ModelRequest(parts=[*turns[-1].parts, part])
        else:
            turns.append(ModelRequest(parts=[part]))
    return turns


def _user_content(message: Message, text: str, model: Any) -> Any:
    """Return the text of a message with its images. Raises BadResponseError for an image that
    cannot be sent.
    """
    from pydantic_ai.messages import BinaryContent, ImageUrl

    content = message["content"]
    parts = content if isinstance(content, list | tuple) else ()
    urls = [_image_url(part["image_url"]) for part in parts if "image_url" in part]
    try:
        _check_image_urls(urls, model)
        images = [
            BinaryContent.from_data_uri(url) if url.startswith("data:") else ImageUrl(url=url)
            for url in urls
        ]
    except ValueError as error:
        raise BadResponseError(
            f"an image of the task cannot be sent: {error}", status=400, usage=REFUSED_USAGE
        ) from error
    return [text, *images] if images else text


def _image_url(image: object) -> str:
    return str(image.get("url", "")) if isinstance(image, Mapping) else str(image)


def _check_image_urls(urls: list[str], model: Any) -> None:
    """Raise ValueError if the vendor's client would download an image."""
    has_addresses = not all(url.startswith("data:") for url in urls)
    if has_addresses and type(model).__module__.startswith(IMAGE_DOWNLOADING_MODULES):
        raise ValueError(
            "this vendor accepts images as data only, and Redraft does not fetch addresses in "
            "tasks: use a data: URL"
        )


def _request_parameters(request: Request, *, supports_schema: bool) -> Any:
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.output import OutputObjectDefinition

    if request.format != "json_schema" or request.schema is None or not supports_schema:
        return ModelRequestParameters(
            function_tools=[_tool_definition(tool) for tool in request.tools]
        )
    output = OutputObjectDefinition(json_schema=dict(request.schema), name="answer", strict=True)
    return ModelRequestParameters(output_mode="native", output_object=output)


def _tool_definition(tool: Mapping[str, Any]) -> Any:
    """Convert a function tool. Raises ConfigError for a tool of another kind."""
    from pydantic_ai.tools import ToolDefinition

    function = tool.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ConfigError(
            f"only functions can be offered as tools here, got {shorten(repr(tool), 200)}"
        )
    schema = dict(function.get("parameters") or {"type": "object", "properties": {}})
    return ToolDefinition(
        name=function["name"],
        parameters_json_schema=schema,
        description=function.get("description"),
        strict=function.get("strict"),
    )


def _to_reply(answer: Any) -> Reply:
    # pydantic-ai reports 0 for an unknown number of tokens
    usage = Usage(
        1, answer.usage.input_tokens or None, answer.usage.output_tokens or None, cost=None
    )
    calls = [p for p in answer.parts if p.part_kind == "tool-call"]
    message = {
        "content": _join_parts(answer.parts, "text"),
        "reasoning_content": _join_parts(answer.parts, "thinking"),
        "tool_calls": [
            {"id": p.tool_call_id, "function": {"name": p.tool_name, "arguments": p.args}}
            for p in calls
        ],
    }
    return reply_from_message(message, getattr(answer, "finish_reason", None), usage)


def _join_parts(parts: Sequence[Any], kind: str) -> str:
    return "".join(p.content for p in parts if p.part_kind == kind and p.content)


def _to_model_error(error: Exception, timeout: float, mask: Mask) -> ModelError | None:
    """Convert an error of pydantic-ai or a vendor's package, with its message masked; None if it is
    an error of our own code.
    """
    from pydantic_ai import exceptions

    message = shorten(mask(str(error)))
    match error:
        case ModelError():
            return error
        case exceptions.UserError():
            return ModelError(message, usage=REFUSED_USAGE)
        case TimeoutError():
            return ModelTimeoutError(
                f"still waiting for an answer after {timeout:.3g} s", usage=UNKNOWN_USAGE
            )
        case exceptions.UnexpectedModelBehavior() if "ContentFilter" in type(error).__name__:
            return ContentFilterError(message, usage=UNKNOWN_USAGE)
        case exceptions.UnexpectedModelBehavior():
            return BadResponseError(message, retryable=True, usage=UNKNOWN_USAGE)
        case exceptions.AgentRunError():
            return _call_error(error, message, mask)
    if (
        type(error).__module__ == "builtins"
        and not isinstance(error, UnicodeError)
        and not _raised_in_pydantic_ai(error)
    ):
        return None
    return malformed_response(f"{type(error).__name__}: {message}")


def _raised_in_pydantic_ai(error: Exception) -> bool:
    """Whether pydantic-ai's own code raised an error, as when it reads a body of an unexpected
    shape.
    """
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    return trace is not None and str(trace.tb_frame.f_globals.get("__name__")).startswith(
        "pydantic_ai."
    )


def _call_error(error: Any, message: str, mask: Mask) -> ModelError:
    """Return what a failed call means. A failure of which nothing more is known may be repeated."""
    failure = model_error(error, mask)
    if failure.retryable and failure.retry_after is None:
        failure.retry_after = getattr(error, "retry_after", None)
    if type(failure) is ModelError and failure.status is None:
        return ModelUnavailableError(message, retryable=True, usage=UNKNOWN_USAGE)
    return failure


# ---- the HTTP clients of vendors' packages


def apply_http_policy(model: Any, proxy: str | None, *, created_here: bool) -> None:
    """Apply the policy to the HTTP clients of a model. A client that the user made (not
    `created_here`) is left alone.

    Raises ConfigError if the vendor's package uses proxies of the environment, there are some, and
    none was configured.
    """
    provider = getattr(model, "_provider", None)
    own = getattr(provider, "_own_http_client", None)
    if created_here:
        clients = [value for value in reachable_objects(model) if http_client_class(value)]
    else:
        clients = [] if own is None else [own]
    for client in clients:
        _apply_client_policy(client, proxy)
    if own is not None and (make := getattr(provider, "_http_client_factory", None)):
        provider._http_client_factory = lambda: _apply_client_policy(make(), proxy)  # type: ignore[union-attr]  # noqa: SLF001
    if created_here and not clients and proxy != "env":
        _check_environment_proxies(model, proxy)


def _apply_client_policy(client: Any, proxy: str | None) -> Any:
    """Apply the policy to a client of httpx, and return the client.

    httpx stores the proxies of the environment in the private attribute `_mounts`; there is no
    public way to change them.
    """
    client.follow_redirects = False
    if proxy != "env":
        other = http_client_class(client)(proxy=proxy, trust_env=False) if proxy else None
        client._mounts = other._mounts if other else {}  # noqa: SLF001
    return client


def _check_environment_proxies(model: Any, proxy: str | None) -> None:
    from urllib.request import getproxies

    proxies = sorted(getproxies().keys() & {"http", "https", "all"})
    vendor = str(getattr(model, "system", "")) or type(model).__name__
    if proxy:
        raise ConfigError(
            f"{vendor}: its package takes a proxy from HTTP_PROXY and HTTPS_PROXY only: set "
            "REDRAFT_PROXY=env"
        )
    if (
        proxies
        and type(model).__module__.startswith("pydantic_ai.models.")
        and vendor not in {"test", "function"}
    ):
        names = ", ".join(f"{name.upper()}_PROXY" for name in proxies)
        raise ConfigError(
            f"{vendor}: its package would use the proxy of {names}: allow it with "
            "REDRAFT_PROXY=env, or unset them"
        )
