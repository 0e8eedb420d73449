"""A chat model of LangChain as a model.

Everything in it is LangChain's interface for all chat models: messages, `usage_metadata`,
`response_metadata` and tool calls. `temperature`, `max_tokens` and `seed` are set as the fields of
the model that have these meanings, on a copy; a model without such a field is asked without the
parameter. Its retries and its cache are switched off, because middleware retries and caches.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

from ..base.jsontext import replace_lone_surrogates
from ..base.log import log
from ..base.masking import without_cause, without_secret_fields
from ..base.parameters import merge_parameters
from ..errors import ConfigError
from ..protocols import FORMATS, Format, Reply, Request
from ..usage import Usage
from .chat_replies import read_count, reply_from_message
from .client_packages import derives_from, masks_of, model_error
from .endpoint_url import redacted_url
from .http_client import LoopLocal
from .openai_chat import (
    ExtraBodyTools,
    extra_parameters,
    masked_reply,
    response_format,
    without_length_bounds,
)
from .openai_client import client_without_retries, close_if_own

SAMPLING_FIELDS = {
    "temperature": ("temperature",),
    "max_tokens": ("max_tokens", "max_output_tokens", "num_predict", "max_new_tokens"),
    "seed": ("seed", "random_seed"),
}
"""The fields of LangChain's models for a parameter of a request, in the order in which they are
looked for.
"""

OPENAI_COMPATIBLE = ("langchain_openai", "BaseChatOpenAI")
"""The class of the models that send their parameters to an OpenAI-compatible endpoint, response
formats included.
"""

FINISH_FIELDS = ("finish_reason", "stop_reason", "stopReason", "done_reason")

PROVIDERS = {
    "google_genai": "google",
    "google_vertexai": "google",
    "amazon_bedrock": "aws",
    "mistralai": "mistral",
}
"""The names of providers in the list of prices, where LangChain has others."""

ADDRESS_FIELDS = (
    "openai_api_base",
    "base_url",
    "azure_endpoint",
    "anthropic_api_url",
    "endpoint_url",
    "endpoint",
)
_NOT_IN_IDENTITY = re.compile(
    r"client|callback|cache|limiter|http|api_key|secret|credential|profile|verbose|^(name|tags|metadata|streaming|max_retries|"
    r"custom_get_token_ids|request_timeout|timeout|stream_chunk_timeout|disable_streaming)$"
)


class LangChainModel(ExtraBodyTools):
    """A chat model of LangChain, or one with parameters bound to it (`bind`, `bind_tools`).

    Args:
        model: The chat model.

    Raises:
        ConfigError: It is another kind of object of LangChain, such as a chain.
    """

    def __init__(self, model: Any) -> None:
        self._model, self._extra = _unwrap(model)
        kind = type(self._model)
        described = self._model._get_ls_params()  # noqa: SLF001
        self.provider = PROVIDERS.get(
            str(described.get("ls_provider")), str(described.get("ls_provider") or "")
        )
        self.model_name = str(described.get("ls_model_name") or kind.__name__)
        self.name = (
            f"{self.provider}:{self.model_name}"
            if described.get("ls_model_name")
            else kind.__name__
        )
        if address := _address(self._model):
            self.base_url = redacted_url(address)
        self.identity = f"langchain:{kind.__module__}.{kind.__qualname__}{_parameters(self._model, self._extra)}"  # noqa: E501
        self.formats: tuple[Format, ...] = (
            FORMATS if derives_from(self._model, *OPENAI_COMPATIBLE) else ("text",)
        )
        self._mask, self._reply_mask = masks_of(self._model)
        self._models = LoopLocal(lambda: _without_retries(self._model), _close_clients)
        self._unsupported: set[str] = set()

    def __repr__(self) -> str:
        return f"LangChainModel({self.name!r})"

    async def complete(self, request: Request) -> Reply:
        """Send a request and return the reply. Raises ModelError."""
        model, _ = await self._models.get()
        messages, keywords = _to_messages(request), self._keywords(request)
        model = self._with_tools(self._with_sampling(model, request), request)
        try:
            return masked_reply(
                _to_reply(await model.ainvoke(messages, **keywords)), self._reply_mask
            )
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001  (the exceptions of any vendor's package)
            failure = model_error(error, self._mask)
        failure.args = (self._mask(f"{self.name}: {failure}"),)
        raise without_cause(failure)

    def _keywords(self, request: Request) -> dict[str, Any]:
        """Return the bound parameters, and the response format.

        The parameters of the request win over bound ones. To an OpenAI-compatible model they go
        into the body, and so does the response format: directly: as a parameter of LangChain's it
        raises an error for an answer that is cut off.
        """
        own, further = extra_parameters(request, self._extra), request.params or {}
        if "json_schema" not in self.formats:
            return merge_parameters(own, further)
        schema = without_length_bounds(request.schema) if request.schema else None
        asked = response_format(Request((), schema=schema, format=request.format))
        given = {"response_format": asked} if asked else {}
        if not given and not further:
            return own
        body = merge_parameters(
            getattr(self._model, "extra_body", None) or {}, own.get("extra_body") or {}, further
        )
        return own | {"extra_body": body | given}

    def _with_sampling(self, model: Any, request: Request) -> Any:
        """Return a copy of the model with the parameters of the request; the model itself if it has
        none.
        """
        update: dict[str, Any] = {}
        for parameter, fields in SAMPLING_FIELDS.items():
            value = getattr(request, parameter)
            if value is None or (
                parameter != "max_tokens" and parameter in request.unsupported_parameters
            ):
                continue
            field = next((field for field in fields if field in type(model).model_fields), None)
            if field is not None:
                update[field] = value
            elif parameter not in self._unsupported:
                self._unsupported.add(parameter)
                log.warning(
                    "model %s has no parameter %s in LangChain; it is not sent",
                    self.name,
                    parameter,
                )
        return model.model_copy(update=update) if update else model

    def _with_tools(self, model: Any, request: Request) -> Any:
        """Return the model with the tools of the request. Raises ConfigError if it takes none."""
        if not request.tools:
            return model
        choice: Any = request.tool_choice
        if isinstance(choice, Mapping) and "function" in choice:
            choice = choice["function"]["name"]
        try:
            return model.bind_tools(
                [dict(tool) for tool in request.tools],
                **({} if choice is None else {"tool_choice": choice}),
            )
        except NotImplementedError:
            raise ConfigError(
                f"the task has tools, and the LangChain model {self.name!r} does not support them"
            ) from None


def _unwrap(model: Any) -> tuple[Any, dict[str, Any]]:
    """Return the chat model below bound parameters, and these. Raises ConfigError if there is
    none.
    """
    given, bound = model, dict[str, Any]()
    for _ in range(10):
        if derives_from(model, "langchain_core.language_models", "BaseChatModel"):
            return model, bound
        if not any(
            kind.__name__ in {"RunnableBinding", "RunnableRetry"} for kind in type(model).__mro__
        ):
            break
        bound = dict(model.kwargs) | bound
        model = model.bound
    kind = type(given).__name__
    advice = (
        "for models that replace each other, give them as a list"
        if "Fallbacks" in kind
        else "for a chain, give a function"
    )
    raise ConfigError(f"of LangChain's objects, a model can be a chat model, got {kind}: {advice}")


def _address(model: Any) -> str | None:
    return next(
        (
            value
            for name in ADDRESS_FIELDS
            if isinstance(value := getattr(model, name, None), str) and "://" in value
        ),
        None,
    )


def _parameters(model: Any, bound: Mapping[str, Any]) -> str:
    """Return the fields of a model that decide its answers, without secrets; with a unique text if
    they cannot all be shown.
    """
    values, unknown = dict(bound), False
    for name in type(model).model_fields:
        value = getattr(model, name, None)
        if (
            value is None
            or _NOT_IN_IDENTITY.search(name)
            or callable(getattr(value, "get_secret_value", None))
        ):
            continue
        values[name] = redacted_url(value) if isinstance(value, str) and "://" in value else value
    try:
        text = json.dumps(without_secret_fields(values), sort_keys=True)
    except (TypeError, ValueError):
        text, unknown = json.dumps(sorted(values)), True
    return text + (uuid4().hex if unknown else "")


def _without_retries(model: Any) -> tuple[Any, list[Any]]:
    """Return a model without retries and cache, a copy if it has any, and the clients that were
    made for it.
    """
    update: dict[str, Any] = {"max_retries": 0} if "max_retries" in type(model).model_fields else {}
    if model.cache is not False and _has_cache(model):
        update["cache"] = False
    made: dict[int, tuple[Any, bool]] = {}
    for name, value in vars(model).items():
        client = value if hasattr(value, "with_options") else getattr(value, "_client", None)
        if not hasattr(client, "with_options") or not hasattr(client, "max_retries"):
            continue
        if id(client) not in made:
            made[id(client)] = client_without_retries(client)
        copy = made[id(client)][0]
        update[name] = copy if client is value else type(value)(copy)
    return (model.model_copy(update=update) if update else model), list(made.values())


def _has_cache(model: Any) -> bool:
    from langchain_core.globals import get_llm_cache

    return bool(model.cache) or get_llm_cache() is not None


async def _close_clients(made: tuple[Any, list[Any]]) -> None:
    for client in made[1]:
        await close_if_own(client)


# ---- messages and replies


def _to_messages(request: Request) -> list[Any]:
    from langchain_core.messages import convert_to_messages

    return convert_to_messages(
        [
            {**message, "content": message.get("content") or ""}
            for message in replace_lone_surrogates(list(request.messages))
        ]
    )


def _to_reply(answer: Any) -> Reply:
    """Return the reply in a message of LangChain. Raises ModelError for a refusal and for an empty
    answer.
    """
    counts = getattr(answer, "usage_metadata", None) or {}
    usage = Usage(
        1,
        read_count(counts.get("input_tokens")),
        read_count(counts.get("output_tokens")),
        cost=None,
    )
    more = answer.additional_kwargs
    message = {
        "content": _content(answer.content),
        "reasoning_content": more.get("reasoning_content") or _reasoning(answer.content),
        "refusal": more.get("refusal"),
        "tool_calls": _tool_calls(answer),
    }
    finish = next(
        (reason for name in FINISH_FIELDS if (reason := answer.response_metadata.get(name))), None
    )
    return reply_from_message(message, finish, usage)


def _content(content: Any) -> Any:
    """Return the text parts of a content in OpenAI's form."""
    if isinstance(content, str):
        return content
    parts = [{"type": "text", "text": part} if isinstance(part, str) else part for part in content]
    return [
        part
        for part in parts
        if isinstance(part, dict) and part.get("type") in {"text", "output_text", None}
    ]


def _reasoning(content: Any) -> str:
    """Return the reasoning in the parts of a content: `thinking` of Anthropic, `reasoning` of
    others.
    """
    parts = [p for p in content if isinstance(p, dict)] if isinstance(content, list) else []
    texts = (p.get(p["type"]) for p in parts if p.get("type") in {"thinking", "reasoning"})
    return "\n".join(text for text in texts if isinstance(text, str))


def _tool_calls(answer: Any) -> Sequence[Mapping[str, Any]]:
    calls = [*getattr(answer, "tool_calls", ()), *getattr(answer, "invalid_tool_calls", ())]
    return [
        {
            "id": call.get("id"),
            "function": {"name": call.get("name"), "arguments": call.get("args")},
        }
        for call in calls
    ]
