"""The SDK in the process of the tests, with what it records in memory, and a receiver of OTLP over
HTTP.
"""

import gzip
import json
import threading
from collections import defaultdict
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import opentelemetry._logs._internal as logs_api
import opentelemetry.metrics._internal as metrics_api
import opentelemetry.trace as trace_api
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


@dataclass
class Memory:
    """What the SDK has recorded."""

    tracers: TracerProvider
    exporter: InMemorySpanExporter
    logs: InMemoryLogRecordExporter
    reader: InMemoryMetricReader

    @property
    def spans(self):
        """All spans, in the order in which they began."""
        return sorted(self.exporter.get_finished_spans(), key=lambda span: span.start_time)

    def named(self, start):
        return [span for span in self.spans if span.name.startswith(start)]

    def one(self, start):
        (span,) = self.named(start)
        return span

    @property
    def events(self):
        return [each.log_record for each in self.logs.get_finished_logs()]

    @property
    def metrics(self):
        """The points of each metric."""
        data, points = self.reader.get_metrics_data(), defaultdict(list)
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    points[metric.name] += metric.data.data_points
        return points

    @property
    def text(self):
        """Everything that was recorded, as one text."""
        spans = [span.to_json() for span in self.spans]
        data = self.reader.get_metrics_data()
        return "\n".join(
            [
                *spans,
                *(each.to_json() for each in self.logs.get_finished_logs()),
                data.to_json() if data else "",
            ]
        )


def configure(monkeypatch, tracers=None, meters=None, loggers=None):
    """Make these the providers of this process, until the test ends."""
    monkeypatch.setattr(trace_api, "_TRACER_PROVIDER", tracers)
    monkeypatch.setattr(metrics_api, "_METER_PROVIDER", meters)
    monkeypatch.setattr(logs_api, "_LOGGER_PROVIDER", loggers)


@pytest.fixture
def memory(monkeypatch):
    """All three signals are recorded in memory, without content."""
    monkeypatch.delenv(CONTENT, raising=False)
    exporter, logs, reader = (
        InMemorySpanExporter(),
        InMemoryLogRecordExporter(),
        InMemoryMetricReader(),
    )
    tracers, loggers, meters = TracerProvider(), LoggerProvider(), MeterProvider([reader])
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    loggers.add_log_record_processor(SimpleLogRecordProcessor(logs))
    configure(monkeypatch, tracers, meters, loggers)
    yield Memory(tracers, exporter, logs, reader)
    for provider in (tracers, loggers, meters):
        provider.shutdown()


def value_of(any_value):
    """Return a protobuf AnyValue as a Python value."""
    kind = any_value.WhichOneof("value")
    value = getattr(any_value, kind) if kind else None
    return [value_of(each) for each in value.values] if kind == "array_value" else value


def values_of(attributes):
    return {each.key: value_of(each.value) for each in attributes}


@dataclass
class Receiver:
    """An OTLP collector: it decodes what it gets. `delay` holds every reply until the receiver is
    closed.
    """

    status: int = 200
    delay: bool = False
    spans: list = field(default_factory=list)
    logs: list = field(default_factory=list)
    metrics: list = field(default_factory=list)
    resources: list = field(default_factory=list)
    headers: list = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)
    is_asked: threading.Event = field(default_factory=threading.Event)

    def __enter__(self):
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                receiver.take(self)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        return self

    def __exit__(self, *_):
        self.closing.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(10)

    def take(self, handler):
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        if handler.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.is_asked.set()
        if self.delay:
            self.closing.wait(30)
            return
        self.headers.append(dict(handler.headers))
        if handler.path == "/v1/traces":
            for each in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.resources.append(values_of(each.resource.attributes))
                self.spans += [span for scope in each.scope_spans for span in scope.spans]
        elif handler.path == "/v1/logs":
            for each in ExportLogsServiceRequest.FromString(body).resource_logs:
                self.logs += [record for scope in each.scope_logs for record in scope.log_records]
        elif handler.path == "/v1/metrics":
            for each in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                self.metrics += [metric for scope in each.scope_metrics for metric in scope.metrics]
        handler.send_response(self.status)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    @property
    def text(self):
        return json.dumps([str(each) for each in (*self.spans, *self.logs, *self.metrics)])


@pytest.fixture
def receiver():
    with Receiver() as running:
        yield running
