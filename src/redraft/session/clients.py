"""The clients of the models of a session: the calls of each with all middleware around them.

They know nothing of the session: what it keeps of them, such as the roles of a task, leads back to
nothing that keeps it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from math import inf
from typing import TYPE_CHECKING, Any, Protocol

from ..base.jsontext import dumps
from ..base.parameters import SAMPLING, merge_parameters, without_sampling
from ..errors import ConfigError
from ..middleware import BudgetTracker, EndpointCapabilities
from ..middleware.adapt import adapt
from ..middleware.cache import cache
from ..middleware.call_costs import CostEstimator
from ..middleware.concurrency import ConcurrencyLimit, limit_concurrency
from ..middleware.messages import checked_reply, offer_own_tools
from ..middleware.metering import meter, with_cost
from ..middleware.prompt_cuts import notice_cut_prompts
from ..middleware.retry import retry
from ..middleware.timeout import MAX_WAIT, timeout
from ..models.endpoint_url import redacted_url
from ..models.pricing import FREE, Price, price_of
from ..protocols import Call, Model, Reply, Request
from ..telemetry import record_calls
from ..telemetry.attributes import call_target
from .options import Options
from .perform import ModelClient

if TYPE_CHECKING:
    from ..middleware.failover import Availability


class LimitCalls(Protocol):
    """Limits the calls of a model. `has_fallback`: another model answers if this one is out of
    service.
    """

    def __call__(self, call: Call, model: Model, *, has_fallback: bool = False) -> Call: ...


@dataclass
class SessionClients:
    """The clients of a session's models. `options`, `connect`, `limit_calls` and `watch` are those
    of the session.

    `listeners` are called with a message when one of several models goes out of service or comes
    back.
    """

    options: Options
    connect: Callable[[Any], Model]
    limit_calls: LimitCalls | None = None
    watch: Callable[[Call], Call] | None = None
    budget_tracker: BudgetTracker = field(init=False)
    capabilities: EndpointCapabilities = field(default_factory=EndpointCapabilities, init=False)
    listeners: list[Callable[[str], object]] = field(default_factory=list, init=False)
    _limiter: ConcurrencyLimit = field(init=False)
    _clients: dict[int, tuple[Any, ModelClient]] = field(default_factory=dict, init=False)
    _connected: dict[int, tuple[Any, Model]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.budget_tracker = BudgetTracker(self.options.budget)
        self._limiter = ConcurrencyLimit(self.options.max_in_flight)

    def client_for(self, model: Any, params: Mapping[str, Any] | None = None) -> ModelClient:
        """Return the client of a model: its call inside timeout, limit, budget, adaptation, retry
        and cache.

        `params` are further parameters of its calls; those of a request win.
        """
        if id(model) not in self._clients:
            self._clients[id(model)] = (model, self._wrap_model(self._connect(model)))
        return with_params(self._clients[id(model)][1], params)

    def _connect(self, model: Any) -> Model:
        """Return the connected model, which `close` closes."""
        if id(model) not in self._connected:
            self._connected[id(model)] = (model, self.connect(model))
        return self._connected[id(model)][1]

    def writing_client(self, models: Sequence[Any]) -> ModelClient:
        """Return the client that calls the first of several models that is in service. Raises
        ConfigError.
        """
        params = self.options.model_params
        if len(models) == 1:
            return self.client_for(models[0], params)
        if id(models) not in self._clients:
            self._clients[id(models)] = (
                models,
                self._wrap_models([self._connect(model) for model in models]),
            )
        return with_params(self._clients[id(models)][1], params)

    def _wrap_models(self, models: Sequence[Model]) -> ModelClient:
        # most runs have one model
        from ..middleware.failover import Availability, FailoverModel, fail_over

        counts, names = (
            Counter(model.identity for model in models),
            Counter(model.name for model in models),
        )
        if repeated := [model.name for model in models if counts[model.identity] > 1]:
            raise ConfigError(f"a list of models names each once, got {repeated[0]!r} twice")
        labels = [
            model.name if names[model.name] == 1 else endpoint_label(model) for model in models
        ]
        availabilities = [
            Availability(label, partial(_tell, self.listeners)) for label in labels[:-1]
        ]
        clients = [
            self._wrap_model(model, each) for model, each in zip_longest(models, availabilities)
        ]
        alternatives = [
            FailoverModel(c.name, c.call, each)
            for c, each in zip(clients, availabilities, strict=False)
        ]
        return ModelClient(
            ", ".join(client.name for client in clients),
            fail_over(alternatives, clients[-1].name, clients[-1].call),
            " or ".join(client.identity for client in clients),
            next((client.price for client in clients if client.price != FREE), FREE),
            clients[0].costs,
            " or ".join(client.endpoint for client in clients),
        )

    def _wrap_model(self, model: Model, availability: Availability | None = None) -> ModelClient:
        """Return the client of a model; with `availability`, one that another model replaces while
        it is out of service.
        """
        options = self.options
        price = self._price_or_raise(model)
        endpoint = endpoint_label(model)
        call = (
            model.complete
            if _enforces_timeout(model, options.timeout)
            else timeout(model.complete, options.timeout, endpoint)
        )
        capabilities = self.capabilities.for_model(model.identity, model.name)
        check = partial(checked_reply, endpoint, may_offer_tools=not hasattr(model, "tools"))
        is_chat = getattr(model, "takes_probes", True)  # and has one prompt
        if is_chat:
            call = notice_cut_prompts(call, endpoint)
        call = with_cost(call, price, check)
        call = availability.guard(call) if availability else call
        if self.limit_calls:
            call = (
                self.limit_calls(call, model, has_fallback=True)
                if availability
                else self.limit_calls(call, model)
            )
        else:
            call = limit_concurrency(call, self._limiter, endpoint)
        writes_text = getattr(model, "writes_text", True)
        costs = (
            CostEstimator(price, model.name, writes_text=writes_text) if options.budget else None
        )
        if costs:
            call = meter(call, self.budget_tracker, price, costs)
        if availability and is_chat:
            availability.probe = call
        call = adapt(call, capabilities, getattr(model, "formats", ("text",)))
        retries = (
            min(options.retries, availability.max_retries) if availability else options.retries
        )
        # for longer the endpoint's limiter waits, if anything does
        longest = MAX_WAIT if self.limit_calls else inf
        call = retry(call, endpoint=endpoint, attempts=retries + 1, max_wait=longest)
        operation = getattr(model, "operation", "chat")
        call = record_calls(
            call, call_target(model.name, getattr(model, "base_url", None), operation=operation)
        )
        if options.cache is not None:
            call = cache(call, options.cache, model.identity)
        call = offer_own_tools(
            call, getattr(model, "tools", ()), getattr(model, "tool_choice", None)
        )
        if self.watch:
            call = self.watch(call)
        return with_params(
            ModelClient(model.name, call, model.identity, price, costs, endpoint),
            getattr(model, "params", None),
        )

    def _price_or_raise(self, model: Model) -> Price | None:
        given = (self.options.prices or {}).get(model.name)
        price = Price(*given) if given else price_of(model)
        if price is None and (problem := self._usd_requirement()):
            raise ConfigError(
                f"{problem}, the price of {model.name!r} is unknown; give it as "
                f"prices={{{model.name!r}: (USD per million input tokens, USD per million output "
                f"tokens)}}, or --price {model.name}=IN,OUT"
            )
        return price

    def _usd_requirement(self) -> str:
        """Return the start of an error message about the setting that needs prices; "" if none
        does.
        """
        options = self.options
        if options.budget and options.budget.usd is not None:
            return "budget: usd cannot be kept"
        plan_uses_cost = (
            options.cost_unit == "usd" and options.noise_aware is not False and options.plan is None
        )
        return "cost_unit: 'usd' cannot be weighed" if plan_uses_cost else ""

    async def close(self) -> None:
        """Close the models that were connected here."""
        async with AsyncExitStack() as closing:
            for given, model in self._connected.values():
                if given is not model and (closes := getattr(model, "aclose", None)):
                    closing.push_async_callback(closes)


def with_params(client: ModelClient, params: Mapping[str, Any] | None) -> ModelClient:
    """Return a client whose requests have these parameters where they have none of their own.

    A `temperature` also replaces one of 0 that is not for an answer: it is the default of judges.
    The parameters are part of its identity.
    """
    if not params:
        return client
    call, rest = client.call, without_sampling(params)

    def call_with_params(request: Request) -> Awaitable[Reply]:
        changes: dict[str, Any] = (
            {"params": merge_parameters(rest, request.params or {})} if rest else {}
        )
        for name in SAMPLING:
            value = getattr(request, name)
            if name in params and (value is None or (value == 0 and not request.is_generation)):
                changes[name] = params[name]
        return call(replace(request, **changes))

    identity = f"{client.identity} {dumps(params, sort_keys=True).decode()}"
    return replace(
        client,
        call=call_with_params,
        identity=identity,
        max_tokens=params.get("max_tokens") or client.max_tokens,
    )


def endpoint_label(model: Model) -> str:
    """Return where a model is served, for messages: its address, if it has one, and its name."""
    address = getattr(model, "base_url", None)
    return (
        f"{redacted_url(str(address))} (model {model.name})" if address else f"model {model.name}"
    )


def _enforces_timeout(model: Model, seconds: float | None) -> bool:
    """Whether a model itself ends every call within this many seconds."""
    own = getattr(model, "timeouts", None)
    return seconds is None or (own is not None and own.total <= seconds)


def _tell(listeners: Sequence[Callable[[str], object]], message: str) -> None:
    for listener in listeners:
        listener(message)
