"""Serves the metrics of a batch to Prometheus. Names are defined here; values come from the run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from ..errors import ConfigError

MetricsSource = Callable[[], Mapping[str, Any]]

HOST = "127.0.0.1"
TIMEOUT = 5.0  # seconds to wait for the event loop when Prometheus asks

COUNTERS = {
    "done": ("redraft_rows_done", "Rows with a result."),
    "failed": ("redraft_rows_failed", "Rows that ended in an error."),
    "unfinished": ("redraft_rows_unfinished", "Rows that were interrupted."),
    "bad": ("redraft_rows_bad", "Rows that could not be read."),
    "reused": ("redraft_rows_reused", "Rows that were already finished and were reused."),
    "calls": ("redraft_calls", "Model calls made."),
    "cached_calls": ("redraft_cached_calls", "Calls answered from the cache."),
    "tokens": ("redraft_tokens", "Tokens in prompts and answers."),
    "cost": ("redraft_cost_usd", "USD spent."),
}
GAUGES = {
    "total": ("redraft_rows", "Rows in the input."),
    "remaining": ("redraft_rows_remaining", "Rows that are not finished."),
    "under_way": ("redraft_rows_under_way", "Rows in progress."),
    "in_flight": ("redraft_calls_in_flight", "Calls in progress."),
    "limit": ("redraft_calls_in_flight_limit", "Present limit of concurrent calls."),
    "rows_per_s": ("redraft_rows_per_second", "Rows finished per second, recently."),
    "eta": ("redraft_eta_seconds", "Estimated seconds until the end."),
    "projected_cost": ("redraft_projected_cost_usd", "Estimated USD for the whole run."),
    "mean_first": ("redraft_mean_first_score", "Mean score of the first answers."),
    "mean_best": ("redraft_mean_best_score", "Mean score of the best answers."),
    "seconds": ("redraft_seconds", "Seconds since the start of the run."),
}


@contextmanager
def serve_metrics(port: int, source: MetricsSource) -> Iterator[str]:
    """Serve metrics within the context, whose value is their address. Raises ConfigError.

    The server has its own threads; `source` is called in the running event loop.
    """
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError as error:
        raise ConfigError("--metrics needs Prometheus's client: pip install 'redraft[metrics]'") from error
    registry = CollectorRegistry()
    registry.register(_MetricsCollector(source, asyncio.get_running_loop()))
    try:
        server, thread = start_http_server(port, HOST, registry)
    except OSError as error:
        raise ConfigError(
            f"--metrics {port}: {HOST}:{port} cannot be served: {error.strerror or error}; name another port"
        ) from error
    try:
        yield f"http://{HOST}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _MetricsCollector:
    """Reads the metrics when Prometheus asks for them. Unknown values are left out, as Prometheus recommends."""

    def __init__(self, source: MetricsSource, loop: asyncio.AbstractEventLoop) -> None:
        self._source, self._loop = source, loop

    def describe(self) -> list[Any]:
        return []  # otherwise the registry would collect them to learn their names

    def collect(self) -> Iterator[Any]:
        """Yield all metrics with a known value."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        answer: Future[Mapping[str, Any]] = Future()
        self._loop.call_soon_threadsafe(lambda: answer.set_result(self._source()))
        known = answer.result(TIMEOUT)
        for kind, names in ((CounterMetricFamily, COUNTERS), (GaugeMetricFamily, GAUGES)):
            for key, (name, about) in names.items():
                if known.get(key) is not None:
                    yield kind(name, about, value=known[key])
