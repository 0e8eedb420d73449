"""The models behind the profiles: connected once for a process, and shared by all requests with
what is known of their endpoints.

`WriterModel` is what one request sees of the model that writes: with the parameters of that
request, and without tools once the first drafts are written. Judges use the connected model itself,
so that no parameter of a client reaches them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..base.checks import needs_extra
from ..base.log import log
from ..base.parameters import merge_parameters
from ..errors import BadResponseError, ConfigError
from ..middleware import EndpointCapabilities
from ..middleware.endpoint_limiter import EndpointLimiter, limit_endpoint
from ..models import connect
from ..models.http_client import Timeouts
from ..models.openai_chat import Chat
from ..models.registry import configured_proxy, connect_endpoint
from ..models.traits import traits_of_model
from ..protocols import Call, Model, Reply, Request
from .config import ServedModel
from .exchange import invalid_request

gateway_log = log.getChild("gateway")
FIRST_CALLS, MAX_CALLS = 64, 1024  # calls in flight at an endpoint: at first, and at most


class ConnectedModels:
    """The models of a gateway by the names that profiles use: those of the configuration, and those
    that `connect` takes.

    `capabilities` is what is known of each model; `limit_calls` holds calls back while their
    endpoint is full or asks for it. An endpoint that is out of service is not waited for: the
    request fails at once, and its client may ask again.
    """

    def __init__(self, served: Mapping[str, ServedModel], env: Mapping[str, str]) -> None:
        self.capabilities = EndpointCapabilities()
        self._served, self._env = served, env
        self._models: dict[str, Model] = {}
        self._limiters: dict[str, EndpointLimiter] = {}

    def model(self, name: str) -> Model:
        """Return the model of this name; it is connected when it is first asked for. Raises
        ConfigError.
        """
        if name not in self._models:
            served = self._served.get(name)
            self._models[name] = model = (
                connect_served(served, self._env) if served else connect(name, env=self._env)
            )
            if served:
                model.params = served.params  # type: ignore[attr-defined]
        return self._models[name]

    def prices(self, *names: str) -> dict[str, tuple[float, float]]:
        """Return the prices that the configuration gives for these models, by their names at their
        endpoints.

        Those of all others follow, for the graders that name a model of their own: of two models of
        one name the higher one.
        """
        known = {
            self.model(name).name: self._served[name].prices
            for name in names
            if name in self._served
        }
        others = sorted(
            (each.prices, each.model)
            for each in self._served.values()
            if each.prices and each.model not in known
        )
        given = {**{model: prices for prices, model in others}, **known}
        return {model: prices for model, prices in given.items() if prices}

    def limit_calls(self, call: Call, model: Model, *, has_fallback: bool = False) -> Call:
        """Return the call of a model, limited by the limiter that all calls to its endpoint
        share.
        """
        traits = traits_of_model(model)
        if traits.address not in self._limiters:
            self._limiters[traits.address] = EndpointLimiter(
                traits.host,
                initial=FIRST_CALLS,
                maximum=MAX_CALLS,
                notify=gateway_log.warning,
                raises_outages=True,
            )
        return limit_endpoint(call, self._limiters[traits.address])


def connect_served(served: ServedModel, env: Mapping[str, str]) -> Model:
    """Return the model of a table [models.NAME]. Raises ConfigError if its key is missing."""
    key = env.get(served.key_env, "").strip() if served.key_env else ""
    if served.key_env and not key:
        raise ConfigError(
            f"set the environment variable {served.key_env} to the key of {served.model!r} "
            f"(pass/{served.name})"
        )
    if served.kind == "anthropic":
        return _anthropic_model(served, key, configured_proxy(served.url, env))
    timeouts = Timeouts(total=served.timeout, idle=served.timeout)
    return connect_endpoint(served.model, served.url, env, key=key or None, timeouts=timeouts)


def _anthropic_model(served: ServedModel, key: str, proxy: str | None) -> Model:
    """Return a model that speaks Anthropic's protocol, through pydantic-ai. Raises ConfigError if
    that is not installed.
    """
    purpose = f"models.{served.name}: refining with a model of kind 'anthropic' needs an extra"
    with needs_extra("providers", purpose):
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider
    from ..models.pydantic_ai import ProviderModel

    # the package adds /v1 to its base URL itself
    provider = AnthropicProvider(
        api_key=key or "none", base_url=served.url.rstrip("/").removesuffix("/v1")
    )
    return ProviderModel(
        AnthropicModel(served.model, provider=provider), timeout=served.timeout, proxy=proxy
    )


class WriterModel:
    """The model that writes for one request: with its parameters, and with tools in the first
    `drafts` answers only.

    After them a text is refined, and a call of a tool would replace it.
    """

    def __init__(self, model: Model, parameters: Mapping[str, Any], drafts: int) -> None:
        _check_parameters(model, parameters)
        self.identity, self.name = model.identity, model.name
        self._model, self._parameters, self._drafts = model, parameters, drafts

    def __getattr__(self, name: str) -> Any:
        """Return an optional attribute of a model, such as its `formats` or `base_url`."""
        return getattr(self._model, name)

    async def complete(self, request: Request) -> Reply:
        """Send a request and return the reply. Raises ModelError."""
        if self._parameters:
            request = replace(
                request, params=merge_parameters(request.params or {}, self._parameters)
            )
        if request.tools and request.sample_index >= self._drafts:
            return _without_tool_calls(
                await self._model.complete(replace(request, tool_choice="none")), self.name
            )
        return await self._model.complete(request)


def _without_tool_calls(reply: Reply, name: str) -> Reply:
    """Return the text of a reply alone. Raises BadResponseError if it only calls tools."""
    if reply.tool_calls and not reply.text.strip():
        raise BadResponseError(
            f"{name} called a tool instead of improving its text", usage=reply.usage
        )
    return replace(reply, tool_calls=())


def _check_parameters(model: Model, parameters: Mapping[str, Any]) -> None:
    """Raise GatewayError 400 for parameters of OpenAI's chat protocol that a model does not
    take.
    """
    if isinstance(model, Chat):
        return
    taken = traits_of_model(model).parameters
    for name in parameters:
        if name not in taken:
            which = f", which takes {', '.join(taken)}" if taken else ""
            raise invalid_request(name, f"{name!r} cannot be passed on to {model.name}{which}")
