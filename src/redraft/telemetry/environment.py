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
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
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


def configure_from_environment(
    say: Say, environ: Mapping[str, str] | None = None
) -> TelemetryExport | None:
    """Configure the SDK as the environment asks for; None if it asks for nothing, or the program is
    configured already.

    `say` gets one line for what is ignored, such as a missing extra: these variables may be meant
    for other programs.
    """
    exporters = exporters_of(os.environ if environ is None else environ, say)
    if not exporters:
        return None
    try:
        import opentelemetry.sdk.trace  # noqa: F401

        from .recorder import configured_recorder
    except ImportError:
        say(f"OpenTelemetry is asked for by OTEL_ variables and is not installed: {EXTRA_HINT}")
        return None
    if configured_recorder() is not None:
        return None
    complaints = ExportComplaints()
    with ExitStack() as stack:
        stack.enter_context(complaints.collect())
        try:
            providers = _configure(exporters)
        except (ImportError, ValueError, OSError) as error:
            say(
                f"OpenTelemetry is not used: {type(error).__name__} in its OTEL_ variables, or a "
                f"missing part ({EXTRA_HINT})"
            )
            return None
        finally:
            for text in complaints.take_texts():
                say(f"OpenTelemetry: {text}")
        return TelemetryExport(providers, complaints, stack.pop_all())


@contextmanager
def telemetry_from_environment(say: Say) -> Iterator[None]:
    """Send telemetry meanwhile, if the environment asks for it, and at the end what is left, for
    two seconds at most.
    """
    export = configure_from_environment(say)
    try:
        yield
    finally:
        if export:
            export.close(say)


@dataclass
class TelemetryExport:
    """The SDK's providers, and what their exporters complain about, which would else be written to
    stderr line by line.
    """

    providers: list[Any]
    complaints: ExportComplaints
    _logs_taken: ExitStack

    def close(self, say: Say, seconds: float = END_SECONDS) -> None:
        """Send what is left, for so many seconds at most. `say` gets one line if something could
        not be sent.
        """
        threads = [Thread(target=provider.shutdown, daemon=True) for provider in self.providers]
        ends_at = monotonic() + seconds
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, ends_at - monotonic()))
        in_time = not any(thread.is_alive() for thread in threads)
        self._logs_taken.close()
        if self.complaints.count or not in_time:
            say(f"telemetry: not everything could be sent to {collector(os.environ)}")


class ExportComplaints(logging.Handler):
    """Counts the warnings of OpenTelemetry's own loggers. Those of its configuration are kept, too:
    they quote variables.
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
        """Take the log records of OpenTelemetry meanwhile, so that no other handler writes them."""
        logger = logging.getLogger("opentelemetry")
        before, logger.propagate = logger.propagate, False
        logger.addHandler(self)
        try:
            yield
        finally:
            logger.propagate = (
                before  # the handler stays: an exporter that is late must not write to stderr
            )


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


def _configure(exporters: Mapping[Signal, str]) -> list[Any]:
    from opentelemetry.sdk.resources import Resource

    from .recorder import VERSION

    named = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    resource = Resource.create(
        {"service.version": VERSION, **({} if named else {"service.name": "redraft"})}
    )
    makers = {"traces": _trace_provider, "metrics": _meter_provider, "logs": _event_provider}
    return [makers[signal](exporter, resource) for signal, exporter in exporters.items()]


def _queue_size(prefix: str) -> dict[str, Any]:
    """Return the size of a queue as an argument, unless a variable sets it."""
    return {} if os.environ.get(f"OTEL_{prefix}_MAX_QUEUE_SIZE") else {"max_queue_size": MAX_QUEUE}


def _trace_provider(exporter: str, resource: Any) -> Any:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
    from opentelemetry.trace import set_tracer_provider

    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    sender: SpanExporter
    if exporter == "console":
        sender = ConsoleSpanExporter(out=_stderr())
    else:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        sender = OTLPSpanExporter()
    provider.add_span_processor(BatchSpanProcessor(sender, **_queue_size("BSP")))
    set_tracer_provider(provider)
    return provider


def _meter_provider(exporter: str, resource: Any) -> Any:
    from opentelemetry.metrics import set_meter_provider
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import (
        ConsoleMetricExporter,
        MetricExporter,
        PeriodicExportingMetricReader,
    )

    sender: MetricExporter
    if exporter == "console":
        sender = ConsoleMetricExporter(out=_stderr())
    else:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

        sender = OTLPMetricExporter()
    provider = MeterProvider(
        [PeriodicExportingMetricReader(sender)], resource, shutdown_on_exit=False
    )
    set_meter_provider(provider)
    return provider


def _event_provider(exporter: str, resource: Any) -> Any:
    from opentelemetry._logs import set_logger_provider
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import (
        BatchLogRecordProcessor,
        ConsoleLogRecordExporter,
        LogRecordExporter,
    )

    sender: LogRecordExporter
    if exporter == "console":
        sender = ConsoleLogRecordExporter(out=_stderr())
    else:
        from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter

        sender = OTLPLogExporter()
    provider = LoggerProvider(resource, shutdown_on_exit=False)
    provider.add_log_record_processor(BatchLogRecordProcessor(sender, **_queue_size("BLRP")))
    set_logger_provider(provider)
    return provider


def _stderr() -> Any:
    """Return stderr: stdout is for answers."""
    import sys

    return sys.stderr
