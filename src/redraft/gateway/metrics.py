"""The figures of a gateway for Prometheus.

No label holds a key, a prompt or anything else that a client or the server of a model can choose:
`model` is one of the configured names, the other values are words of Redraft, and beyond the first
MAX_VALUES of a label they count as "other". Unknown tokens and costs are not added up; how many
requests had none is a figure of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from itertools import product
from typing import TYPE_CHECKING, Any

from ..base.checks import needs_extra
from ..errors import MODEL_CAUSES
from ..telemetry.environment import SIGNALS, Signal

if TYPE_CHECKING:
    from .request_table import RequestFacts

PASS_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
REFINE_SECONDS = (0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 90, 120, 180, 300, 600)
SCORES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
ITERATIONS = (0, 1, 2, 3, 4, 5, 8, 13, 21)
MAX_VALUES = 64  # of one label
OTHER = "other"
# codes of the requests that the gateway itself refuses for a budget, a rate or the load
REFUSALS = (
    "budget_exhausted",
    "budget_reserved",
    "budgets_unavailable",
    "cancelled",
    "overloaded",
    "rate_limited",
    "shutting_down",
    "unknown_price",
)
CREATION_TIMES = re.compile(r"^(?:# (?:HELP|TYPE) )?redraft_\w+_created[ {].*\n", re.MULTILINE)
"""Samples that the client adds to each counter and histogram; nothing here uses them."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class GatewayMetrics:
    """The figures of one gateway, in a registry of their own. Raises ConfigError without
    prometheus-client.

    `models`: the names that clients can use, such as "refine/fast". `queue_length`: reads how many
    requests wait.
    """

    def __init__(
        self, models: Iterable[str] = (), queue_length: Callable[[], int] = lambda: 0
    ) -> None:
        with needs_extra("gateway", "redraft serve needs prometheus-client"):
            from prometheus_client import (
                CollectorRegistry,
                Counter,
                Gauge,
                Histogram,
                ProcessCollector,
            )
        self.registry = CollectorRegistry()
        self._label_values: dict[str, set[str]] = {}

        def counter(name: str, about: str, *labels: str) -> Counter:
            return Counter(f"redraft_gateway_{name}", about, labels, registry=self.registry)

        def histogram(name: str, about: str, buckets: Iterable[float]) -> Histogram:
            return Histogram(
                f"redraft_gateway_{name}",
                about,
                ["model"],
                registry=self.registry,
                buckets=tuple(buckets),
            )

        self._requests = counter(
            "requests", "Requests that ended, by HTTP status", "model", "wire", "status"
        )
        self._pass_seconds = histogram(
            "pass_seconds",
            "Seconds of requests to pass/NAME, to the end of the reply",
            PASS_SECONDS,
        )
        self._refine_seconds = histogram(
            "refine_seconds", "Seconds of requests to refine/NAME", REFINE_SECONDS
        )
        self._in_flight = Gauge(
            "redraft_gateway_in_flight", "Requests being answered", registry=self.registry
        )
        Gauge(
            "redraft_gateway_queued", "Requests waiting for a slot", registry=self.registry
        ).set_function(queue_length)
        self._tokens = counter(
            "tokens", "Tokens of all model calls behind the requests", "model", "direction"
        )
        self._cost = counter(
            "cost_usd", "US dollars of all model calls behind the requests", "model"
        )
        self._unmetered = counter(
            "unmetered_requests", "Requests whose tokens are unknown", "model"
        )
        self._iterations = histogram("iterations", "Refinements made in a request", ITERATIONS)
        self._scores = histogram("score", "Scores of the answers that were given", SCORES)
        self._stops = counter("stops", "Why refinements ended", "model", "reason")
        self._refusals = counter(
            "refusals", "Requests refused for a budget, a rate or the load, by error code", "reason"
        )
        self._upstream_errors = counter(
            "upstream_errors", "Failed calls to models behind the gateway", "model", "cause"
        )
        self._failed_attempts = counter(
            "failed_attempts",
            "Attempts to call models that failed, retried ones included",
            "model",
            "cause",
        )
        self.store_errors = counter("store_errors", "Errors of the store of requests")
        self.lost_lines = counter(
            "access_log_lost_lines", "Lines of the access log that could not be written in time"
        )
        self._dropped = Counter(
            "redraft_telemetry_dropped",
            "Spans, events and metric reports that could not be sent to OpenTelemetry",
            ["signal"],
            registry=self.registry,
        )
        ProcessCollector(registry=self.registry)
        self.use_models(models)
        for code in REFUSALS:
            self._refusals.labels(code)
        for signal in SIGNALS:
            self._dropped.labels(signal)

    def use_models(self, models: Iterable[str]) -> None:
        """Count requests for these models under their names. Their failures are counted from 0, so
        that `increase()` sees the first of each cause.
        """
        self.models = frozenset(models)
        for model, cause in product(self.models, MODEL_CAUSES):
            self._upstream_errors.labels(model, cause)
            self._failed_attempts.labels(model, cause)

    def request_started(self) -> None:
        """Count a request as in flight."""
        self._in_flight.inc()

    def request_finished(self, facts: RequestFacts) -> None:
        """Count a request for which `request_started` was called."""
        self._in_flight.dec()
        model = facts.model if facts.model in self.models else OTHER
        self._requests.labels(
            model,
            self._limited_value("wire", facts.wire),
            self._limited_value("status", str(facts.status)),
        ).inc()
        if facts.error in REFUSALS:
            self._refusals.labels(facts.error).inc()
        if facts.milliseconds is not None and facts.calls != 0:
            seconds = self._refine_seconds if model.startswith("refine/") else self._pass_seconds
            seconds.labels(model).observe(facts.milliseconds / 1000)
        self._count_usage(model, facts)
        if facts.stop:
            self._count_refinement(model, facts)

    def upstream_error(self, model: str, cause: str) -> None:
        """Count a failed call to a model behind the gateway, if that is the cause."""
        if cause in MODEL_CAUSES:
            name = model if model in self.models else OTHER
            self._upstream_errors.labels(name, cause).inc()

    def failed_attempts(self, model: str, counts: Mapping[str, int]) -> None:
        """Count attempts to call models behind the gateway that failed, by their cause."""
        name = model if model in self.models else OTHER
        for cause in counts.keys() & MODEL_CAUSES:
            self._failed_attempts.labels(name, cause).inc(counts[cause])

    def telemetry_dropped(self, signal: Signal, count: int) -> None:
        """Count what could not be sent to OpenTelemetry's collector."""
        self._dropped.labels(signal).inc(count)

    def text(self) -> str:
        """Return all figures in Prometheus's text format, whose content type is CONTENT_TYPE."""
        from prometheus_client import generate_latest

        return CREATION_TIMES.sub("", generate_latest(self.registry).decode())

    def _count_usage(self, model: str, facts: RequestFacts) -> None:
        if facts.calls != 0 and (facts.input_tokens is None or facts.output_tokens is None):
            self._unmetered.labels(model).inc()
        for direction, tokens in (("input", facts.input_tokens), ("output", facts.output_tokens)):
            if tokens:
                self._tokens.labels(model, direction).inc(tokens)
        if facts.cost:
            self._cost.labels(model).inc(facts.cost)

    def _count_refinement(self, model: str, facts: RequestFacts) -> None:
        self._stops.labels(model, self._limited_value("stop", facts.stop)).inc()
        if facts.iterations is not None:
            self._iterations.labels(model).observe(facts.iterations)
        if facts.score is not None:
            self._scores.labels(model).observe(facts.score)

    def _limited_value(self, label: str, value: Any) -> str:
        """Return a value of a label; "other" once the label has too many."""
        values = self._label_values.setdefault(label, set())
        if value in values:
            return str(value)
        if len(values) >= MAX_VALUES:
            return OTHER
        values.add(value)
        return str(value)
