"""The endpoints besides the three protocols for conversations that `pass/NAME` serves: embeddings,
moderations, completions of a text and the like.

A request goes to a model whose server has the endpoint, with nothing changed but the model's name.
Nothing is converted or refined. Keys, rates, budgets and retention are those of all requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..base.checks import format_value
from .client_exchange import ClientExchange
from .config import ServedModel
from .exchange import invalid_request
from .field_tables import OUTPUT_LIMITS
from .neutral import ProtocolName
from .passing import ForwardedReply
from .plain_passing import Answers, forward_plain
from .request_costs import MeteredRequest, refuse_routing


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An endpoint of OpenAI's protocol at `path`, for models of kind "openai".

    - `name`: what logs, metrics and OUTPUT_LIMITS call it; `protocol`: the form of its errors.
    - `answer`: the field that each answer has.
    - `text`: the field in which keys with a limit in USD may send texts and tokens only; "": the
      request is searched as a conversation is.
    - `is_free`: its requests cost nothing.
    """

    name: str
    path: str
    answer: str
    text: str = ""
    protocol: ProtocolName = "chat"
    is_free: bool = False


ENDPOINTS: Mapping[str, Endpoint] = {
    each.path: each
    for each in (
        Endpoint("embeddings", "/v1/embeddings", "data", text="input"),
        Endpoint("moderations", "/v1/moderations", "results"),
        Endpoint("completions", "/v1/completions", "choices", text="prompt"),
        Endpoint("compact", "/v1/responses/compact", "output", protocol="responses"),
        Endpoint(
            "input_tokens",
            "/v1/responses/input_tokens",
            "input_tokens",
            protocol="responses",
            is_free=True,
        ),
    )
}


class EndpointExchange(ClientExchange):
    """One request of a client to an endpoint, and its reply."""

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint that is asked."""
        return ENDPOINTS[self.scope["path"]]

    @property
    def label(self) -> str:
        return self.endpoint.name

    async def answer(self, body: Mapping[str, Any]) -> None:
        """Answer a request with this body. Raises GatewayError as long as nothing is sent."""
        assert self.caller
        self.model = body["model"] if isinstance(body.get("model"), str) else ""
        model = self._find_model(body)
        refuse_routing(body)
        if self.caller.limits.has_usd:
            self.metered = self._meter(model, body)
            self.notice, body = self.metered.notice, self.metered.body
        await self._relay(self._passed_items(model, body, self.routing.retention(model)))

    def _find_model(self, body: Mapping[str, Any]) -> ServedModel:
        """Return the model of the request. Raises GatewayError 400, 403 or 404."""
        assert self.caller
        path = self.endpoint.path
        if body.get("model") is None:
            raise invalid_request("model", f"model is missing: {path} needs a model pass/NAME")
        target = self.routing.find(body["model"], self.caller)
        if not isinstance(target, ServedModel):
            served = self.routing.model_of(target.profile)
            use = f"'pass/{served.name}'" if served else "a model pass/NAME"
            raise invalid_request("model", f"{path} is not refined: use {use}")
        if target.kind != "openai":
            message = "its model speaks the protocol of Anthropic, which has no"
            raise invalid_request(
                "model", f"{self.model!r}: {message} {path}; use a model of kind 'openai'"
            )
        return target

    def _meter(self, model: ServedModel, body: Mapping[str, Any]) -> MeteredRequest:
        """Return the request of a key with a limit in USD. Raises GatewayError 400 for what costs
        money without a known price.
        """
        name = self.endpoint.text
        text = {key: value for key, value in body.items() if key == name}
        if text and not is_text_or_tokens(text[name]):
            message = f"{name} must be a text, tokens, or a list of these"
            raise invalid_request(
                name,
                f"{message}, got {format_value(text[name], 80)}, and the key has a limit in USD",
            )
        rest = {key: value for key, value in body.items() if key != name}
        metered = self.routing.meter(model, rest, self.endpoint.protocol)
        if metered.unbounded:
            message = f"{metered.unbounded}: how many tokens it has is unknown"
            raise invalid_request(metered.unbounded, f"{message}, and the key has a limit in USD")
        return replace(metered, body={**metered.body, **text})

    def _pass_cost(self, model: ServedModel, body: Mapping[str, Any]) -> float | None:
        if self.endpoint.is_free:
            return 0.0
        prompts = count_of_texts(body.get(self.endpoint.text))
        return self.routing.pass_cost(
            model, self.label, body, len(self.raw), self.metered, prompts=prompts
        )

    async def _forward(self, model: ServedModel, body: Mapping[str, Any]) -> ForwardedReply:
        endpoint = self.endpoint
        answers = Answers(
            endpoint.protocol,
            endpoint.answer,
            has_text=endpoint.name in OUTPUT_LIMITS,
            is_free=endpoint.is_free,
        )
        upstream, path = self.routing.passing.upstream(model), endpoint.path.removeprefix("/v1")
        return await forward_plain(upstream, path, answers, body, self.headers)


def is_text_or_tokens(value: Any) -> bool:
    """Whether a value is a text, a list of tokens, or a list of these."""
    return isinstance(value, str) or (
        isinstance(value, list)
        and all(isinstance(each, str | int) or _is_tokens(each) for each in value)
    )


def _is_tokens(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(token, int) for token in value)


def count_of_texts(prompt: Any) -> int:
    """Return how many texts a prompt has, each of which is answered: a list of tokens is one."""
    if not isinstance(prompt, list):
        return 1
    return max(1, sum(not isinstance(each, int) for each in prompt))
