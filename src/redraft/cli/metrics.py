"""The numbers of a run, for Prometheus to fetch. What they are called is decided here; what they are is not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from ..errors import ConfigError

Now = Callable[[], Mapping[str, Any]]

HERE = "127.0.0.1"
PATIENCE = 5.0  # seconds until whoever fetches is told that nothing is known

TOTALS = {
    "done": ("redraft_rows_done", "Rows that have a result."),
    "failed": ("redraft_rows_failed", "Rows that ended in an error."),
    "cut": ("redraft_rows_cut", "Rows that were cut short."),
    "bad": ("redraft_rows_bad", "Rows that could not be read."),
    "kept": ("redraft_rows_kept", "Rows that were finished before, and were not done again."),
    "calls": ("redraft_calls", "Model calls made."),
    "cached_calls": ("redraft_cached_calls", "Calls answered from the cache."),
    "tokens": ("redraft_tokens", "Tokens read and written."),
    "cost": ("redraft_cost_usd", "USD spent."),
}
LEVELS = {
    "total": ("redraft_rows", "Rows in the input."),
    "left": ("redraft_rows_left", "Rows to go."),
    "under_way": ("redraft_rows_under_way", "Rows begun and not finished."),
    "in_flight": ("redraft_calls_in_flight", "Calls being made."),
    "limit": ("redraft_calls_in_flight_limit", "Calls that may be made at once, as found out."),
    "rows_per_s": ("redraft_rows_per_second", "Rows finished a second, lately."),
    "eta": ("redraft_eta_seconds", "Seconds until the end, as it looks now."),
    "projected_cost": ("redraft_projected_cost_usd", "USD for all of it, as it looks now."),
    "mean_first": ("redraft_mean_first_score", "Mean score of the first answers."),
    "mean_best": ("redraft_mean_best_score", "Mean score of the best answers."),
    "seconds": ("redraft_seconds", "Seconds since the run began."),
}


@contextmanager
def served(port: int, now: Now) -> Iterator[str]:
    """The address where the numbers can be fetched, as long as this lasts. Raises ConfigError.

    It answers in threads of its own; `now` is called in the running event loop.
    """
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError as error:
        raise ConfigError("--metrics needs Prometheus's client: pip install 'redraft[metrics]'") from error
    registry = CollectorRegistry()
    registry.register(_Numbers(now, asyncio.get_running_loop()))
    try:
        server, thread = start_http_server(port, HERE, registry)
    except OSError as error:
        raise ConfigError(
            f"--metrics {port}: {HERE}:{port} cannot be served: {error.strerror or error}; name another port"
        ) from error
    try:
        yield f"http://{HERE}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Numbers:
    """Reads the numbers when they are fetched. What is unknown is left out, as Prometheus wants it."""

    def __init__(self, now: Now, loop: asyncio.AbstractEventLoop) -> None:
        self._now, self._loop = now, loop

    def describe(self) -> list[Any]:
        return []  # or the registry would fetch them to learn their names

    def collect(self) -> Iterator[Any]:
        """All that is known right now."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        answer: Future[Mapping[str, Any]] = Future()
        self._loop.call_soon_threadsafe(lambda: answer.set_result(self._now()))
        known = answer.result(PATIENCE)
        for kind, named in ((CounterMetricFamily, TOTALS), (GaugeMetricFamily, LEVELS)):
            for key, (name, about) in named.items():
                if known.get(key) is not None:
                    yield kind(name, about, value=known[key])
