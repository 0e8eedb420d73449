"""Where requests go: the profiles and the models of one configuration, with the connections to
them.

A `Routing` is never changed. When the configuration is read again, requests at work keep the one
that they began with, and it is closed after the last of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from ..base.checks import format_value
from ..middleware.call_costs import max_image_tokens
from ..models.pricing import Price, context_window_of, price_of
from ..models.traits import traits_of_model
from .config import GatewayConfig, Profile, Retention, ServedModel
from .exchange import GatewayError, invalid_request
from .field_tables import ANSWER_COUNTS, OUTPUT_FIELDS, OUTPUT_LIMITS
from .keys import Caller
from .neutral import ProtocolName, Request
from .passing import PassThrough
from .prepared_requests import PreparedRequest
from .profile_models import ConnectedModels
from .protocols.messages_requests import DEFAULT_MAX_TOKENS
from .refining import ProfileRefiner
from .request_costs import MeteredRequest, meter_request, unbounded_error

REFINE, PASS = "refine/", "pass/"
ASSUMED_OUTPUT_TOKENS = 4096  # of an answer without a limit, until a model has written a longer one
# a feature in `anthropic-beta` with which a context window is longer than the published one
LONGER_CONTEXT = "context-1m"


@dataclass(frozen=True, slots=True)
class InputLimits:
    """The most tokens of a prompt (None: unknown) and of an image. `is_stated`: the operator says
    so, not a published list.
    """

    context_window: int | None
    image_tokens: int
    is_stated: bool = False

    def tokens(self, size: float, request: MeteredRequest | None) -> float:
        """Return the most input tokens of a request of so many bytes; those that may cost more
        count for more.

        Tokenizers work on bytes or longer texts: no script has more than a token for each byte.
        """
        tokens = size
        if request is not None:
            tokens += (
                request.images * self.image_tokens
                - request.image_bytes
                + ((self.context_window or 0) if request.unbounded else 0)
            )
        most = (
            min(tokens, self.context_window) if self.is_stated and self.context_window else tokens
        )
        return most * (request.cache_factor if request else 1.0)


class Routing:
    """The models of one configuration by the names that clients use. Raises ConfigError if a
    profile cannot be served.
    """

    def __init__(self, config: GatewayConfig, env: Mapping[str, str]) -> None:
        self.config = config
        deadline = config.limits.deadline  # no call to a model may take longer than a request
        self._served = {
            name: replace(each, timeout=min(each.timeout, deadline))
            for name, each in config.models.items()
        }
        self.models = ConnectedModels(self._served, env)
        self.refiners = {
            name: ProfileRefiner(each, self.models, config.limits)
            for name, each in config.profiles.items()
        }
        self._targets: dict[str, ProfileRefiner | ServedModel] = {
            **{REFINE + name: each for name, each in self.refiners.items()},
            **{PASS + name: each for name, each in self._served.items()},
        }
        self.passing = PassThrough(self._served, env)
        self._prices = {name: _price(each) for name, each in self._served.items()}
        self._limits = {name: _input_limits(each) for name, each in self._served.items()}
        self._users = 0
        self._is_replaced = False

    @property
    def names(self) -> list[str]:
        """The names that clients use, refined ones first."""
        return list(self._targets)

    def may_use(self, name: str, caller: Caller) -> bool:
        """Whether a client may use one of the names: by the list of its key, and unless the model
        belongs to another key.
        """
        target = self._targets.get(name)
        owner = target.owner if isinstance(target, ServedModel) else None
        return caller.may_use(name) and owner in {None, caller.name}

    def find(self, name: Any, caller: Caller) -> ProfileRefiner | ServedModel:
        """Return what answers requests for a model. Raises GatewayError 400, 403 or 404."""
        if not isinstance(name, str):
            raise invalid_request(
                "model", f"model must be a name such as {self.names[0]!r}, got {format_value(name)}"
            )
        target = self._targets.get(name)
        if target is None:
            usable = ", ".join(each for each in self.names if self.may_use(each, caller)) or "none"
            message = f"there is no model {format_value(name)} here; the models are {usable}"
            raise GatewayError(404, "model_not_found", message, param="model", should_retry=False)
        caller.check_model(name)
        if not self.may_use(name, caller):
            message = f"{name!r} belongs to another key than {caller.name!r}"
            raise GatewayError(403, "model_not_allowed", message, param="model", should_retry=False)
        return target

    def retention(self, target: ProfileRefiner | ServedModel) -> Retention:
        """Return what is kept of requests to a model."""
        return (
            target.profile.retention
            if isinstance(target, ProfileRefiner)
            else self.config.passed_retention
        )

    def model_of(self, profile: Profile) -> ServedModel | None:
        """Return the model that writes for a profile if it is one of the configuration."""
        return self._served.get(profile.model)

    def meter(
        self,
        target: ProfileRefiner | ServedModel,
        body: Mapping[str, Any],
        wire: ProtocolName,
        features: str = "",
    ) -> MeteredRequest:
        """Return a request of a key with a limit in USD; `features`: those of the client in
        `anthropic-beta`.

        Raises GatewayError 400 for what costs money without a known price.
        """
        if isinstance(target, ServedModel):
            model: ServedModel | None = target
            roles = {target.name}
        else:
            model, roles = self.model_of(target.profile), _roles(target.profile)
        request = meter_request(body, wire, model)
        if LONGER_CONTEXT in features and model and model.kind == "anthropic" and not model.prices:
            message = (
                f"anthropic-beta: prompts with {LONGER_CONTEXT} may cost more than published, and "
                "the key has a limit in USD"
            )
            raise invalid_request(
                "anthropic-beta", f"{message}: the operator may set prices in [models.{model.name}]"
            )
        for role in roles if request.unbounded else ():
            limits = self._limits_of(role)
            if limits.context_window is None or (
                LONGER_CONTEXT in features and not limits.is_stated
            ):
                raise unbounded_error(request.unbounded, role, is_configured=role in self._served)
        return request

    def pass_cost(
        self,
        model: ServedModel,
        endpoint: str,
        body: Mapping[str, Any],
        size: int,
        metered: MeteredRequest | None = None,
        *,
        prompts: int = 1,
    ) -> float | None:
        """Return what a request that is passed on may cost in USD; None without known prices.

        `endpoint`: a protocol, or another endpoint; one without OUTPUT_LIMITS writes no text.
        `prompts`: how many texts of the request are answered, each on its own.
        """
        unlimited = max(_unlimited_tokens(model), self.passing.upstream(model).longest_answer)
        limits = OUTPUT_LIMITS.get(endpoint)
        tokens = 0.0 if limits is None else _output_tokens(body, limits, unlimited)
        answers = prompts * max(
            (body[name] for name in ANSWER_COUNTS if _is_count(body.get(name))), default=1
        )
        cost = _cost(
            self._prices[model.name],
            self._limits[model.name].tokens(size, metered),
            tokens * answers,
        )
        return cost if cost is None or metered is None else cost + metered.usd

    def refine_cost(
        self, prepared: PreparedRequest, size: int, metered: MeteredRequest | None = None
    ) -> float | None:
        """Return what a request that is refined may cost in USD: its budget, else an estimate; None
        without known prices.

        A budget is kept by the likely tokens of images, so what they may have is added; a file may
        exceed it by far.
        """
        budget, added = prepared.max_cost, prepared.max_calls * metered.usd if metered else 0.0
        if budget is not None and not (metered and (metered.images or metered.unbounded)):
            return budget + added
        options = prepared.refinement.session.options
        unlimited = _unlimited_tokens(self.model_of(prepared.profile))
        written = _output_tokens(prepared.writer.parameters, (), options.max_tokens or unlimited)
        only_images = budget is not None and metered and not metered.unbounded
        if only_images:
            size = written = 0
        roles = {
            traits_of_model(self.models.model(name)).endpoint: name
            for name in _roles(prepared.profile)
        }
        calls = [
            (name, self._prices.get(name) or price_of(self.models.model(name)), written)
            for name in roles.values()
        ]
        for client, limit in prepared.grading_calls:
            # of a grader that names a model of its own, too
            price = client.price if isinstance(client.price, Price) else None
            verdict = 0 if only_images else ASSUMED_OUTPUT_TOKENS if limit is None else limit
            calls.append((roles.get(client.endpoint, client.name), price, verdict))
        costs: list[float] = []
        texts = 1 + prepared.writer.max_pauses  # that the model may have written before
        for name, price, answer in calls:
            tokens = self._limits_of(name).tokens(size + texts * written, metered)
            if (cost := _cost(price, tokens, answer)) is None:
                return None
            costs.append(cost)
        return (budget or 0.0) + prepared.max_calls * max(costs) + added

    def _limits_of(self, role: str) -> InputLimits:
        """Return the limits of a model, which need not be one of the configuration."""
        return self._limits.get(role) or InputLimits(None, max_image_tokens(role))

    # ---- the requests at work

    async def __aenter__(self) -> Self:
        await self.passing.__aenter__()
        return self

    async def aclose(self) -> None:
        """Close the connections once no request uses them."""
        self._is_replaced = True
        if not self._users:
            await self.passing.__aexit__(None, None, None)

    def acquire(self) -> None:
        """Count a request that begins."""
        self._users += 1

    async def release(self) -> None:
        """Count a request that ends."""
        self._users -= 1
        if self._is_replaced and not self._users:
            await self.passing.__aexit__(None, None, None)


def _is_count(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _output_tokens(body: Mapping[str, Any], limits: tuple[str, ...], unlimited: int) -> float:
    """Return the most tokens of an answer: only `limits` can make them fewer than those of an
    answer without a limit.
    """
    given = [name for name in OUTPUT_FIELDS if body.get(name) is not None]
    tokens = [body[name] if _is_count(body[name]) else unlimited for name in given]
    return max(tokens if any(name in limits for name in given) else [unlimited, *tokens])


def _unlimited_tokens(model: ServedModel | None) -> int:
    """Return the most tokens of an answer for which a client states no limit, as far as is known:
    Anthropic's protocol needs one, so that the gateway states it.
    """
    is_limited = model is not None and model.kind == "anthropic"
    return DEFAULT_MAX_TOKENS if is_limited else ASSUMED_OUTPUT_TOKENS


def _price(model: ServedModel) -> Price | None:
    return Price(*model.prices) if model.prices else price_of(model.model, model.url)


def _input_limits(model: ServedModel) -> InputLimits:
    window, images = model.context_window, model.image_tokens
    most = max_image_tokens(model.model) if images is None else images
    return InputLimits(
        context_window_of(model.model, model.url) if window is None else window,
        most,
        window is not None,
    )


def _roles(profile: Profile) -> set[str]:
    """Return the models that answer requests to a profile."""
    return {profile.model, profile.judge or profile.model}


def _cost(price: Price | None, input_tokens: float, output_tokens: float) -> float | None:
    """Return the cost of a call in USD."""
    return (
        None if price is None else (input_tokens * price.input + output_tokens * price.output) / 1e6
    )


def check_forwarding(routing: Routing, request: Request, profile: Profile) -> ServedModel | None:
    """Return the model to which a request to a profile is passed on as it is; None if this process
    answers it.
    """
    return None if routing.refiners[profile.name].is_refined(request) else routing.model_of(profile)
