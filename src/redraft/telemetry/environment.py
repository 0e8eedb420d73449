"""Configures OpenTelemetry's SDK for a program of ours by the usual OTEL_ variables, and sends what
is left when it ends.

A library must not do that: in Python the user's own providers are used. Of each signal (traces,
metrics, logs, of which the evaluation events are a part), OTEL_TRACES_EXPORTER and so on choose
`otlp`, `console` or `none`; without it, the signal is sent if OTEL_EXPORTER_OTLP_ENDPOINT or the
signal's own endpoint is set. The SDK reads the other variables itself: headers, sampler, resource,
limits, timeouts. Sending happens in threads of the SDK. A collector that does not answer delays the
end of the program by two seconds at most, and never fails it: `ExportWatch` knows what is lost.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from threading import Lock, Thread
from time import monotonic
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

from ..base.checks import install_command
from ..base.masking import Mask, secrets_in_environment
from ..base.text import pluralize

Signal: TypeAlias = Literal["traces", "metrics", "logs"]
Say: TypeAlias = Callable[[str], object]

SIGNALS: tuple[Signal, ...] = ("traces", "metrics", "logs")
EXPORTERS = ("otlp", "console", "none")
ITEMS: Mapping[Signal, str] = {
    "traces": "span",
    "metrics": "metric report",  # of all metrics
    "logs": "event",
}
UNTAKEN = frozenset({"status 404", "status 405", "status 501"})
NO_REPLY = "no reply"
QUEUE_LOGGER = "opentelemetry.sdk._shared_internal"
WARNING_SECONDS = 60.0  # between two warnings of what could not be sent
END_SECONDS = 2.0  # for what is left when the program ends
# spans, and events, that wait to be sent; the SDK's own default drops spans of a fast batch
MAX_QUEUE = 16_384
EXTRA_HINT = install_command("otel")


def exporters_of(environ: Mapping[str, str], say: Say) -> dict[Signal, str]:
    """Return the exporter of each signal that is to be sent; none if the SDK is disabled. `say`
    gets what is ignored, and why.
    """
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return {}
    exporters: dict[Signal, str] = {}
    for signal in SIGNALS:
        variable = f"OTEL_{signal.upper()}_EXPORTER"
        endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT")
        default = "otlp" if any(environ.get(name, "").strip() for name in endpoints) else "none"
        chosen = environ.get(variable, "").strip().lower() or default
        if chosen not in EXPORTERS:
            say(
                f"{variable} is {chosen[:40]!r}, and only {', '.join(EXPORTERS)} are available: "
                f"no {signal} are sent"
            )
        elif chosen != "none":
            exporters[signal] = chosen
    return exporters


@contextmanager
def telemetry_from_environment(say: Say) -> Iterator[ExportWatch | None]:
    """While this is open, send telemetry, if the environment asks for it and the program has
    configured nothing itself. At the end, send what is left, for two seconds at most.

    The value knows what could not be sent; it is None if nothing is sent. `say` gets one line for
    what is ignored, such as a missing extra (these variables may be meant for other programs), and
    at most one a minute for what could not be sent. Raises ConfigError for a value of our own
    variables that does not exist.
    """
    exporters = exporters_of(os.environ, say)
    if not exporters or not _may_configure(say):
        yield None
        return
    watch = ExportWatch(say)
    with watch.collect():
        providers = _configure(exporters, watch, say)
        if not providers:
            yield None
            return
        try:
            from .recorder import configured_recorder

            configured_recorder()  # refuses a setting of ours now, not at the first request
            yield watch
        finally:
            watch.next_warning_at = inf  # one line has all that is lost from now on
            watch.tell(*_shut_down(providers))


def _may_configure(say: Say) -> bool:
    """Whether the SDK is installed and the program has not configured it."""
    try:
        import opentelemetry.sdk.trace  # noqa: F401

        from .recorder import configured_recorder
    except ImportError:
        say(f"OpenTelemetry is asked for by OTEL_ variables and is not installed: {EXTRA_HINT}")
        return False
    return configured_recorder() is None


def _shut_down(providers: Mapping[Signal, Any]) -> list[Signal]:
    """Send what is left, for END_SECONDS at most. Return the signals that were not sent in time."""
    threads: dict[Signal, Thread] = {
        signal: Thread(target=provider.shutdown, daemon=True)
        for signal, provider in providers.items()
    }
    ends_at = monotonic() + END_SECONDS
    for thread in threads.values():
        thread.start()
    for thread in threads.values():
        thread.join(max(0.0, ends_at - monotonic()))
    return [signal for signal, thread in threads.items() if thread.is_alive()]


class ExportWatch(logging.Handler):
    """Watches what exporters send: how much of each signal is lost, and why.

    OpenTelemetry itself only logs that. This handler takes the records of its loggers, so that they
    get on no terminal; those about its configuration are kept, because they quote variables.

    `failing` has, of each signal whose last batch could not be sent, the reason, such as "status
    500" or "ConnectionError". `on_dropped` is called with a signal and how many of its items are
    lost: spans, events, or reports of all metrics. Both are used from the threads that send.
    """

    def __init__(self, say: Say, clock: Callable[[], float] = monotonic) -> None:
        super().__init__(logging.WARNING)
        self.failing: dict[Signal, str] = {}
        self.on_dropped: Callable[[Signal, int], object] = lambda *_: None
        self._say, self._clock, self.next_warning_at = say, clock, -inf
        self._texts: list[str] | None = []
        self._ends: dict[Signal, str] = {}  # of the last requests
        self._untold: dict[Signal, tuple[int, str]] = {}  # what is lost, and why
        self._untaken: set[Signal] = set()
        self._lock = Lock()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep what is said of the configuration."""
        if self._texts is not None:
            self._texts.append(record.getMessage())

    def session(self, signal: Signal) -> Any:
        """Return a session of `requests` for the exporter of a signal; how each request ends is
        noted.
        """
        from requests import Session

        session = Session()

        def send_watched(request: Any, **options: Any) -> Any:
            self._ends[signal] = NO_REPLY
            try:
                reply = Session.send(session, request, **options)
            except OSError as error:
                self._ends[signal] = type(error).__name__
                raise
            self._ends[signal] = f"status {reply.status_code}"
            return reply

        session.send = send_watched  # type: ignore[method-assign]
        return session

    def watch(self, signal: Signal, exporter: Any) -> Any:
        """Return the exporter of a signal, with its failures noted here."""

        def export_watched(batch: Any, **options: Any) -> Any:
            result = type(exporter).export(exporter, batch, **options)
            if result.name == "SUCCESS":
                self.failing.pop(signal, None)
            else:
                self.failing[signal] = self._ends.get(signal, "for an unknown reason")
                self._drop(signal, len(batch) if isinstance(batch, Sequence) else 1)
            return result

        exporter.export = export_watched
        return exporter

    def count_full_queue(self, record: logging.LogRecord) -> bool:
        """Count what the SDK loses because a queue is full, as a filter of its logger. Its own
        filter lets only one such record in 20 seconds pass.
        """
        if record.msg == "Queue full, dropping %s.":
            self._drop("logs" if record.args == ("Log",) else "traces", 1)
        return True

    def _drop(self, signal: Signal, count: int) -> None:
        self.on_dropped(signal, count)
        reason = self.failing.get(signal, "the queue is full")
        with self._lock:
            if signal != "traces" and reason in UNTAKEN:  # as by backends for traces only
                if signal in self._untaken:
                    return
                self._untaken.add(signal)
                reason += f", OTEL_{signal.upper()}_EXPORTER=none switches them off"
            self._untold[signal] = (count + self._untold.get(signal, (0, ""))[0], reason)
            if self._clock() >= self.next_warning_at:
                self.next_warning_at = self._clock() + WARNING_SECONDS
                self.tell()

    def tell(self, *unfinished: Signal) -> None:
        """Say what could not be sent and was not said yet, and which signals the end of the program
        leaves `unfinished`.
        """
        untold, self._untold = self._untold, {}
        lost: list[tuple[str, Signal, str]] = [
            *(
                (pluralize(count, ITEMS[signal]), signal, reason)
                for signal, (count, reason) in untold.items()
            ),
            *(
                (f"the last {ITEMS[signal]}s", signal, self._ends.get(signal, NO_REPLY))
                for signal in unfinished
            ),
        ]
        if lost:
            texts = (f"{what} to {collector(os.environ, to)} ({why})" for what, to, why in lost)
            self._say(f"telemetry: not sent: {'; '.join(texts)}")

    def take_texts(self) -> list[str]:
        """Return the different texts so far, without the secrets of the environment; from now on,
        none is kept.
        """
        mask, texts = Mask(secrets_in_environment(os.environ)), dict.fromkeys(self._texts or ())
        self._texts = None
        return [mask(text) for text in texts]

    @contextmanager
    def collect(self) -> Iterator[None]:
        """While this is open, take the log records of OpenTelemetry from all other handlers."""
        logger = logging.getLogger("opentelemetry")
        before, logger.propagate = logger.propagate, False
        logger.addHandler(self)
        logging.getLogger(QUEUE_LOGGER).filters.insert(0, self.count_full_queue)
        try:
            yield
        finally:
            # the handler stays: an exporter that is late must not write to stderr
            logger.propagate = before


def collector(environ: Mapping[str, str], signal: Signal) -> str:
    """Return the host and port of the collector of a signal, for messages; its URL may contain a
    key.
    """
    names = (f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    url = next(
        (environ[name] for name in names if environ.get(name, "").strip()), "http://localhost:4318"
    )
    try:
        parts = urlsplit(url.strip())
        host, port = parts.hostname or "the collector", parts.port
    except ValueError:
        return "the collector"
    return f"{host}:{port}" if parts.hostname and port else host


# ---- the SDK


def _configure(
    exporters: Mapping[Signal, str], watch: ExportWatch, say: Say
) -> Mapping[Signal, Any]:
    """Configure the SDK, and return its providers; none if that fails."""
    makers = {"traces": _trace_provider, "metrics": _meter_provider, "logs": _event_provider}
    try:
        resource = _resource()
        return {
            signal: makers[signal](watch.watch(signal, _sender(signal, exporter, watch)), resource)
            for signal, exporter in exporters.items()
        }
    except (ImportError, ValueError, OSError) as error:
        say(
            f"OpenTelemetry is not used: {type(error).__name__} in its OTEL_ variables, or a "
            f"missing part ({EXTRA_HINT})"
        )
        return {}
    finally:
        for text in watch.take_texts():
            say(f"OpenTelemetry: {text}")


def _resource() -> Any:
    from opentelemetry.sdk.resources import Resource

    from .recorder import VERSION

    named = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    return Resource.create(
        {"service.version": VERSION, **({} if named else {"service.name": "redraft"})}
    )


def _queue_size(prefix: str) -> dict[str, Any]:
    """Return the size of a queue as an argument, unless a variable sets it."""
    return {} if os.environ.get(f"OTEL_{prefix}_MAX_QUEUE_SIZE") else {"max_queue_size": MAX_QUEUE}


def _sender(signal: Signal, exporter: str, watch: ExportWatch) -> Any:
    """Return what sends a signal. Raises ImportError if it is not installed."""
    senders: dict[Signal, Callable[..., Any]]
    if exporter == "console":
        from opentelemetry.sdk._logs.export import ConsoleLogRecordExporter
        from opentelemetry.sdk.metrics.export import ConsoleMetricExporter
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        senders = {
            "traces": ConsoleSpanExporter,
            "metrics": ConsoleMetricExporter,
            "logs": ConsoleLogRecordExporter,
        }
        return senders[signal](out=sys.stderr)
    from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    senders = {"traces": OTLPSpanExporter, "metrics": OTLPMetricExporter, "logs": OTLPLogExporter}
    # a provider of credentials has a session of its own
    has_session = any(name.endswith("CREDENTIAL_PROVIDER") for name in os.environ)
    return senders[signal](session=None if has_session else watch.session(signal))


def _trace_provider(sender: Any, resource: Any) -> Any:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.trace import set_tracer_provider

    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(sender, **_queue_size("BSP")))
    set_tracer_provider(provider)
    return provider


def _meter_provider(sender: Any, resource: Any) -> Any:
    from opentelemetry.metrics import set_meter_provider
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    reader = PeriodicExportingMetricReader(sender)
    provider = MeterProvider([reader], resource, shutdown_on_exit=False)
    set_meter_provider(provider)
    return provider


def _event_provider(sender: Any, resource: Any) -> Any:
    from opentelemetry._logs import set_logger_provider
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import BatchLogRecordProcessor

    provider = LoggerProvider(resource, shutdown_on_exit=False)
    provider.add_log_record_processor(BatchLogRecordProcessor(sender, **_queue_size("BLRP")))
    set_logger_provider(provider)
    return provider
