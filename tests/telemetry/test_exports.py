"""What cannot be sent to a collector is seen while that goes on: in warnings, and by who asks."""

import logging

import pytest
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor

from gateway.running import config_for, http_client, running
from redraft.telemetry.environment import QUEUE_LOGGER, SIGNALS, ExportWatch

from .conftest import Receiver

# for which an exporter tries: far more than an answer takes, as it tries again only without one
SECONDS, SECONDS_WITHOUT_ANSWER = 60, 0.5


class Clock:
    """A clock that the test moves."""

    now = 1000.0

    def __call__(self):
        return self.now


class Sender:
    """Sends one item of a signal after the other to a collector, watched."""

    def __init__(self, watch, signal, url, seconds=SECONDS):
        make, self.seconds = getattr(self, signal), seconds
        self.send = make(watch, f"{url}/v1/{signal}")

    def traces(self, watch, url):
        provider = TracerProvider(shutdown_on_exit=False)
        exporter = watch.watch(
            "traces", OTLPSpanExporter(url, timeout=self.seconds, session=watch.session("traces"))
        )
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        return lambda: provider.get_tracer("test").start_span("a span").end()

    def metrics(self, watch, url):
        exporter = watch.watch(
            "metrics",
            OTLPMetricExporter(url, timeout=self.seconds, session=watch.session("metrics")),
        )
        reader = PeriodicExportingMetricReader(exporter, export_interval_millis=float("inf"))
        counter = MeterProvider([reader], shutdown_on_exit=False).get_meter("test")
        counter.create_counter("a.counter").add(1)
        return reader.collect

    def logs(self, watch, url):
        provider = LoggerProvider(shutdown_on_exit=False)
        exporter = watch.watch(
            "logs", OTLPLogExporter(url, timeout=self.seconds, session=watch.session("logs"))
        )
        provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
        return lambda: provider.get_logger("test").emit(event_name="an event")


@pytest.fixture
def said():
    return []


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def watch(said, clock, monkeypatch):
    """What watches the SDK, until the test ends."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://me:SECRET@collector:4318")
    logger, queue = logging.getLogger("opentelemetry"), logging.getLogger(QUEUE_LOGGER)
    before = list(queue.filters)
    watch = ExportWatch(said.append, clock)
    with watch.collect():
        yield watch
    logger.removeHandler(watch)
    queue.filters[:] = before


ITEMS = {"traces": "1 span", "metrics": "1 metric report", "logs": "1 event"}
FAULTS = {
    "fails": ({"status": 500}, "status 500"),
    "refuses the key": ({"status": 401}, "status 401"),
    "hangs": ({"delay": True}, "ReadTimeout"),
    "is not there": (None, "ConnectionError"),
}


@pytest.mark.parametrize("signal", SIGNALS)
@pytest.mark.parametrize(("fault", "reason"), FAULTS.values(), ids=FAULTS)
def test_a_failing_collector_is_seen(watch, said, closed_url, signal, fault, reason):
    """At once, with the signal, the host, the reason, and how much was lost."""
    counts = []
    watch.on_dropped = lambda *dropped: counts.append(dropped)
    if fault is None:
        Sender(watch, signal, closed_url.removesuffix("/v1"), SECONDS_WITHOUT_ANSWER).send()
    else:
        seconds = SECONDS_WITHOUT_ANSWER if "delay" in fault else SECONDS
        with Receiver(**fault) as receiver:
            Sender(watch, signal, receiver.url, seconds).send()
    assert said == [f"telemetry: not sent: {ITEMS[signal]} to collector:4318 ({reason})"]
    assert (watch.failing, counts) == ({signal: reason}, [(signal, 1)])


def test_one_warning_a_minute(watch, said, clock):
    """It has what was lost since the one before; what is sent again is no longer failing."""
    with Receiver(status=500) as receiver:
        senders = [Sender(watch, signal, receiver.url) for signal in ("traces", "logs")]
        for second in (0, 1, 2, 59):
            clock.now = 1000.0 + second
            for sender in senders:
                sender.send()
        assert said == ["telemetry: not sent: 1 span to collector:4318 (status 500)"]
        clock.now = 1060.0
        senders[0].send()
        assert said[1:] == [
            (
                "telemetry: not sent: 4 events to collector:4318 (status 500); 4 spans to "
                "collector:4318 (status 500)"
            )
        ]
        receiver.status = 200
        senders[0].send()
        assert watch.failing == {"logs": "status 500"}
    watch.tell()
    assert len(said) == 2


@pytest.mark.parametrize("status", [404, 405])
@pytest.mark.parametrize("signal", ["metrics", "logs"])
def test_a_backend_that_takes_traces_only(watch, said, clock, signal, status):
    """Which variable switches the signal off is said once; what is lost is counted all the same."""
    counts = []
    watch.on_dropped = lambda *dropped: counts.append(dropped)
    with Receiver(status=status) as receiver:
        sender = Sender(watch, signal, receiver.url)
        for _ in range(3):
            clock.now += 100
            sender.send()
    assert said == [
        (
            f"telemetry: not sent: {ITEMS[signal]} to collector:4318 (status {status}, "
            f"OTEL_{signal.upper()}_EXPORTER=none switches them off)"
        )
    ]
    watch.tell()
    assert len(said) == 1 and counts == [(signal, 1)] * 3


def test_a_full_queue_is_seen(watch, said):
    """Each span that the SDK drops is counted, also those of which it writes no log record."""
    counts = []
    watch.on_dropped = lambda *dropped: counts.append(dropped)
    with Receiver(delay=True) as receiver:
        exporter = watch.watch("traces", OTLPSpanExporter(f"{receiver.url}/v1/traces", timeout=60))
        provider = TracerProvider(shutdown_on_exit=False)
        processor = BatchSpanProcessor(
            exporter, max_queue_size=4, max_export_batch_size=4, schedule_delay_millis=1e9
        )
        provider.add_span_processor(processor)
        tracer = provider.get_tracer("test")
        for _ in range(4):
            tracer.start_span("sent").end()
        assert receiver.is_asked.wait(60)
        for _ in range(4 + 3):
            tracer.start_span("too many").end()
        assert counts == [("traces", 1)] * 3
        watch.tell()
        receiver.closing.set()
    provider.shutdown()
    assert said == [
        "telemetry: not sent: 1 span to collector:4318 (the queue is full)",
        "telemetry: not sent: 2 spans to collector:4318 (the queue is full)",
    ]


async def test_a_gateway_tells_it(watch, tmp_path):
    """/readyz names the signals and the reasons, and is 200; /metrics has what was lost."""
    async with (
        running(config_for(tmp_path, "http://127.0.0.1:9/v1"), telemetry=watch) as (url, _),
        http_client(url.removesuffix("/v1")) as client,
    ):
        assert (await client.get("/readyz")).json() == {"status": "ready"}
        figures = (await client.get("/metrics")).text
        assert all(f'dropped_total{{signal="{signal}"}} 0.0' in figures for signal in SIGNALS)
        with Receiver(status=500) as receiver:
            sender = Sender(watch, "traces", receiver.url)
            sender.send()
            sender.send()
        reply = await client.get("/readyz")
        assert (reply.status_code, reply.json()) == (
            200,
            {"status": "ready", "telemetry": {"traces": "status 500"}},
        )
        assert (
            'redraft_telemetry_dropped_total{signal="traces"} 2.0'
            in (await client.get("/metrics")).text
        )
