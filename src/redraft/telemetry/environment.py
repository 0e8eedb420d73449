"""Configures OpenTelemetry's SDK for a program of ours by the usual OTEL_ variables, and sends what
is left when it ends.

A library must not do that: in Python the user's own providers are used. Of each signal (traces,
metrics, logs, of which the evaluation events are a part), OTEL_TRACES_EXPORTER and so on choose
`otlp`, `console` or `none`; without it, the signal is sent if OTEL_EXPORTER_OTLP_ENDPOINT or the
signal's own endpoint is set. The SDK reads the other variables itself: headers, sampler, resource,
limits, timeouts. Sending happens in threads of the SDK. A collector that does not answer delays the
end of the program by two seconds at most, and never fails it.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from threading import Thread
from time import monotonic
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

from ..base.checks import install_command
from ..base.masking import Mask, secrets_in_environment

Signal: TypeAlias = Literal["traces", "metrics", "logs"]
Say: TypeAlias = Callable[[str], object]

SIGNALS: tuple[Signal, ...] = ("traces", "metrics", "logs")
EXPORTERS = ("otlp", "console", "none")
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
def telemetry_from_environment(say: Say) -> Iterator[None]:
    """While this is open, send telemetry, if the environment asks for it and the program has
    configured nothing itself. At the end, send what is left, for two seconds at most.

    `say` gets one line for what is ignored, such as a missing extra (these variables may be meant
    for other programs), and one if something could not be sent.
    """
    exporters = exporters_of(os.environ, say)
    if not exporters or not _may_configure(say):
        yield
        return
    complaints = ExportComplaints()
    with complaints.collect():
        providers = _configure(exporters, complaints, say)
    if not providers:
        yield
        return
    with complaints.collect():
        try:
            yield
        finally:
            in_time = _shut_down(providers)
            if complaints.count or not in_time:
                say(f"telemetry: not everything could be sent to {collector(os.environ)}")


def _may_configure(say: Say) -> bool:
    """Whether the SDK is installed and the program has not configured it."""
    try:
        import opentelemetry.sdk.trace  # noqa: F401

        from .recorder import configured_recorder
    except ImportError:
        say(f"OpenTelemetry is asked for by OTEL_ variables and is not installed: {EXTRA_HINT}")
        return False
    return configured_recorder() is None


def _shut_down(providers: Iterable[Any]) -> bool:
    """Send what is left, for END_SECONDS at most. Return whether the providers ended in time."""
    threads = [Thread(target=provider.shutdown, daemon=True) for provider in providers]
    ends_at = monotonic() + END_SECONDS
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, ends_at - monotonic()))
    return not any(thread.is_alive() for thread in threads)


class ExportComplaints(logging.Handler):
    """Counts the warnings of OpenTelemetry's own loggers. Warnings about its configuration are
    kept, too: they quote variables.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.count = 0
        self._texts: list[str] | None = []

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1
        if self._texts is not None:
            self._texts.append(record.getMessage())

    def take_texts(self) -> list[str]:
        """Return the different texts so far, without the secrets of the environment; from now on,
        only count.
        """
        mask, texts = Mask(secrets_in_environment(os.environ)), dict.fromkeys(self._texts or ())
        self.count, self._texts = 0, None
        return [mask(text) for text in texts]

    @contextmanager
    def collect(self) -> Iterator[None]:
        """While this is open, take the log records of OpenTelemetry from all other handlers."""
        logger = logging.getLogger("opentelemetry")
        before, logger.propagate = logger.propagate, False
        logger.addHandler(self)
        try:
            yield
        finally:
            # the handler stays: an exporter that is late must not write to stderr
            logger.propagate = before


def collector(environ: Mapping[str, str]) -> str:
    """Return the host and port of the collector, for messages; its URL may contain a key."""
    names = (
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        *(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT" for signal in SIGNALS),
    )
    url = next(
        (environ[name] for name in names if environ.get(name, "").strip()), "http://localhost:4318"
    )
    try:
        parts = urlsplit(url.strip())
        return f"{parts.hostname}:{parts.port}" if parts.port else parts.hostname or "the collector"
    except ValueError:
        return "the collector"


# ---- the SDK


def _configure(
    exporters: Mapping[Signal, str], complaints: ExportComplaints, say: Say
) -> list[Any]:
    """Configure the SDK, and return its providers; none if that fails."""
    makers = {"traces": _trace_provider, "metrics": _meter_provider, "logs": _event_provider}
    try:
        resource = _resource()
        return [
            makers[signal](_sender(signal, exporter), resource)
            for signal, exporter in exporters.items()
        ]
    except (ImportError, ValueError, OSError) as error:
        say(
            f"OpenTelemetry is not used: {type(error).__name__} in its OTEL_ variables, or a "
            f"missing part ({EXTRA_HINT})"
        )
        return []
    finally:
        for text in complaints.take_texts():
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


def _sender(signal: Signal, exporter: str) -> Any:
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
    return senders[signal]()


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
