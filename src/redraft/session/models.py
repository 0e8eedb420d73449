"""The models of a run: the one that writes, the one that judges, and those that graders name.

A call reaches a model through a `ModelClient`: the model's own call with all middleware around it.
Nothing here knows of the session, so what keeps a client leads back to nothing that keeps one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
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
from ..middleware.observe import observer
from ..middleware.prompt_cuts import notice_cut_prompts
from ..middleware.retry import retry
from ..middleware.timeout import MAX_WAIT, timeout
from ..models import connect
from ..models.pricing import FREE, Price, price_of
from ..models.registry import alternative_models
from ..models.traits import ModelTraits, traits_of_model
from ..protocols import Call, Model, Reply, Request
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
class Models:
    """The models of a run and their clients, which share a budget, a limit on calls in flight and
    what is learned about the endpoints.

    `writer` is the model that writes (None: there is none); of a list, the next one answers while
    those before it are out of service. `judge` is the one that graders ask (None: the writer, the
    first of a list). `limit_calls` replaces the limit around the calls of a model. `connect`
    returns the model that a user names; `watch` wraps the complete call. `listeners` are called
    with a message when one of several models goes out of service or comes back. `failed_attempts`
    counts the attempts to call a model that failed, by their cause.
    """

    options: Options
    writer: Any = None
    judge: Any = None
    limit_calls: LimitCalls | None = None
    connect: Callable[[Any], Model] = field(default=connect, kw_only=True)
    watch: Callable[[Call], Call] | None = field(default=None, kw_only=True)
    capabilities: EndpointCapabilities = field(default_factory=EndpointCapabilities, kw_only=True)
    budget_tracker: BudgetTracker = field(init=False)
    failed_attempts: Counter[str] = field(default_factory=Counter, init=False)
    listeners: list[Callable[[str], object]] = field(default_factory=list, init=False)
    _limiter: ConcurrencyLimit = field(init=False)
    _clients: dict[int, tuple[Any, ModelClient]] = field(default_factory=dict, init=False)
    _connected: dict[int, tuple[Any, Model]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.budget_tracker = BudgetTracker(self.options.budget)
        self._limiter = ConcurrencyLimit(self.options.max_in_flight)

    @property
    def has_any(self) -> bool:
        """Whether there is a model that writes, or one that judges."""
        return self.writer is not None or self.judge is not None

    @cached_property
    def writing_client(self) -> ModelClient | None:
        """The client of the model that writes; None if there is none. Raises ConfigError."""
        models = alternative_models(self.writer)
        if not models:
            return None
        with _errors_of_argument("model"):
            client = (
                self.client_for(models[0])
                if len(models) == 1
                else self._wrap_models([self._connect(model) for model in models])
            )
        return with_params(client, self.options.model_params)

    @cached_property
    def judging_client(self) -> ModelClient | None:
        """The client of the model that graders ask who name none; None if there is none. Raises
        ConfigError.

        If the model that writes judges, its parameters are beneath the judge's.
        """
        params, judge, argument = self.options.judge_params or {}, self.judge, "judge"
        if judge is None:
            params = merge_parameters(without_sampling(self.options.model_params or {}), params)
            judge, argument = next(iter(alternative_models(self.writer)), None), "model"
        with _errors_of_argument(argument):
            return None if judge is None else with_params(self.client_for(judge), params)

    def client_for(self, model: Any) -> ModelClient:
        """Return the client of a model: its call inside timeout, limit, budget, adaptation, retry
        and cache.
        """
        if id(model) not in self._clients:
            self._clients[id(model)] = (model, self._wrap_model(self._connect(model)))
        return self._clients[id(model)][1]

    def _connect(self, model: Any) -> Model:
        """Return the connected model, which `close` closes."""
        if id(model) not in self._connected:
            self._connected[id(model)] = (model, self.connect(model))
        return self._connected[id(model)][1]

    def _wrap_models(self, models: Sequence[Model]) -> ModelClient:
        # most runs have one model
        from ..middleware.failover import Availability, FailoverModel, fail_over

        availabilities = [
            Availability(label, partial(_tell, self.listeners)) for label in _labels(models)[:-1]
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
            identity=" or ".join(client.identity for client in clients),
            price=next((client.price for client in clients if client.price != FREE), FREE),
            costs=clients[0].costs,
            endpoint=" or ".join(client.endpoint for client in clients),
        )

    def _wrap_model(self, model: Model, availability: Availability | None = None) -> ModelClient:
        """Return the client of a model; with `availability`, one that another model replaces while
        it is out of service.
        """
        options, traits = self.options, traits_of_model(model)
        price, costs, retries = self._price_or_raise(model), None, options.retries
        call = self._limited_call(model, traits, price, availability)
        if options.budget:
            costs = CostEstimator(price, model.name, writes_text=traits.writes_text)
            call = meter(call, self.budget_tracker, price, costs)
        if availability:
            availability.probe = call if traits.takes_probes else None
            retries = min(retries, availability.max_retries)
        capabilities = self.capabilities.for_model(model.identity, model.name)
        call = adapt(call, capabilities, traits.formats)
        # for longer the endpoint's limiter waits, if anything does
        longest = MAX_WAIT if self.limit_calls else inf
        call = retry(
            call,
            endpoint=traits.endpoint,
            attempts=retries + 1,
            max_wait=longest,
            failures=self.failed_attempts,
        )
        call = observer().record_calls(call, model.name, traits.base_url or None, traits.operation)
        if options.cache is not None:
            call = cache(call, options.cache, model.identity)
        call = offer_own_tools(call, traits.tools, traits.tool_choice)
        if self.watch:
            call = self.watch(call)
        return with_params(
            ModelClient(model.name, call, model.identity, price, costs, traits.endpoint),
            traits.params,
        )

    def _limited_call(
        self,
        model: Model,
        traits: ModelTraits,
        price: Price | None,
        availability: Availability | None,
    ) -> Call:
        """Return what sends one request to a model: with its timeout, its cost and the limits on
        calls in flight.
        """
        seconds, endpoint = self.options.timeout, traits.endpoint
        call: Call = model.complete
        if seconds is not None and (traits.timeout or inf) > seconds:
            call = timeout(call, seconds, endpoint)
        if traits.takes_probes:
            call = notice_cut_prompts(call, endpoint)
        check = partial(checked_reply, endpoint, may_offer_tools=traits.may_offer_tools)
        call = with_cost(call, price, check)
        if availability:
            call = availability.guard(call)
        if self.limit_calls:
            return self.limit_calls(call, model, has_fallback=availability is not None)
        return limit_concurrency(call, self._limiter, endpoint)

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
                if given is not model and (closes := traits_of_model(model).close):
                    closing.push_async_callback(closes)


@contextmanager
def _errors_of_argument(argument: str) -> Iterator[None]:
    """Begin the message of a ConfigError with the argument that the model was given as."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{argument}: {error}") from None


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


def _labels(models: Sequence[Model]) -> list[str]:
    """Return what messages call each of several models: its name, or where it is served if two have
    that name. Raises ConfigError for a model that is given twice.
    """
    identities, names = (
        Counter(model.identity for model in models),
        Counter(model.name for model in models),
    )
    if repeated := [model.name for model in models if identities[model.identity] > 1]:
        raise ConfigError(f"a list of models names each once, got {repeated[0]!r} twice")
    return [
        model.name if names[model.name] == 1 else traits_of_model(model).endpoint
        for model in models
    ]


def _tell(listeners: Sequence[Callable[[str], object]], message: str) -> None:
    for listener in listeners:
        listener(message)
