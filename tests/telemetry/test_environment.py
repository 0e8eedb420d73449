"""The SDK configured by OTEL_ variables: what is chosen, and `redraft` with a receiver of OTLP, a
dead one and a slow one.
"""

import os
import subprocess
import sys
from time import monotonic

import pytest
from chat_server import ChatServer

from redraft.telemetry.environment import collector, exporters_of

from .conftest import Receiver, values_of

ENDPOINT, TRACES = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_TRACES_EXPORTER"
ALL = {"traces": "otlp", "metrics": "otlp", "logs": "otlp"}


@pytest.mark.parametrize(
    ("environ", "expected", "complaint"),
    [
        ({}, {}, ""),
        ({ENDPOINT: "http://collector:4318"}, ALL, ""),
        ({ENDPOINT: " "}, {}, ""),
        ({ENDPOINT: "http://c:4318", "OTEL_SDK_DISABLED": "true"}, {}, ""),
        ({ENDPOINT: "http://c:4318", "OTEL_SDK_DISABLED": "false"}, ALL, ""),
        ({TRACES: "otlp"}, {"traces": "otlp"}, ""),
        ({TRACES: "none"}, {}, ""),
        ({TRACES: " Console "}, {"traces": "console"}, ""),
        (
            {ENDPOINT: "http://c:4318", "OTEL_LOGS_EXPORTER": "none"},
            {"traces": "otlp", "metrics": "otlp"},
            "",
        ),
        (
            {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c:4318/v1/metrics"},
            {"metrics": "otlp"},
            "",
        ),
        (
            {TRACES: "zipkin", "OTEL_LOGS_EXPORTER": "otlp"},
            {"logs": "otlp"},
            "OTEL_TRACES_EXPORTER is 'zipkin'",
        ),
    ],
)
def test_exporter_of_each_signal(environ, expected, complaint):
    """A signal is sent where its exporter is named, or an endpoint is; what is not available is
    said and left out.
    """
    said = []
    assert exporters_of(environ, said.append) == expected
    assert (complaint in said[0]) if complaint else said == []


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://user:SECRET@collector:4318/SECRET?key=SECRET", "collector:4318"),
        ("https://otlp.example.com", "otlp.example.com"),
        ("http://[broken", "the collector"),
        ("http://:4318", "the collector"),
        ("collector:4318", "the collector"),
        ("", "localhost:4318"),
    ],
)
def test_collector_without_secrets(url, shown):
    """A message names the host of the collector only."""
    assert collector({ENDPOINT: url}, "traces") == shown


def redraft(*args, folder, **env):
    """Run the command in a process of its own; return it with the seconds that it took."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    started = monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "redraft", *map(str, args)],
        capture_output=True,
        text=True,
        cwd=folder,
        env=clean | env,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )
    return done, monotonic() - started


@pytest.fixture
def chat():
    server = ChatServer(lambda messages, n: "hello there my friend")
    yield server
    server.close()


def test_run_is_received(receiver, chat, tmp_path):
    """`redraft run` sends its spans, evaluation events and metrics over OTLP, with the headers and
    the name that are set.
    """
    done, _ = redraft(
        *("run", "PROMPT-4711", "--model", chat.model, "--grader", "words:3-9"),
        folder=tmp_path,
        OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url,
        OTEL_EXPORTER_OTLP_HEADERS="x-token=abc",
        OTEL_SERVICE_NAME="my-service",
    )
    assert (done.returncode, done.stdout) == (0, "hello there my friend\n")
    by_name = {span.name: span for span in receiver.spans}
    assert set(by_name) == {"invoke_workflow refine", "generate", "chat tiny", "grade words:3-9"}
    assert by_name["chat tiny"].parent_span_id == by_name["generate"].span_id
    chat_span = values_of(by_name["chat tiny"].attributes)
    assert (chat_span["server.port"], chat_span["gen_ai.request.model"]) == (chat.port, "tiny")
    (event,) = receiver.logs
    assert (
        event.event_name == "gen_ai.evaluation.result"
        and event.span_id == by_name["chat tiny"].span_id
    )
    attributes = values_of(event.attributes)
    assert (
        attributes["gen_ai.evaluation.score.value"] == 1.0
        and len(attributes["redraft.grader.fingerprint"]) == 16
    )
    assert "gen_ai.client.operation.duration" in {metric.name for metric in receiver.metrics}
    assert {each["service.name"] for each in receiver.resources} == {"my-service"}
    assert {each.get("x-token") for each in receiver.headers} == {"abc"}
    assert "PROMPT-4711" not in receiver.text and "hello there" not in receiver.text


@pytest.mark.slow
def test_batch_is_received(receiver, chat, tmp_path):
    """`redraft batch` sends a trace for each row and one for the run; the service is called redraft
    by default.
    """
    (tmp_path / "rows.jsonl").write_text(
        "".join(f'{{"prompt": "Question {n}"}}\n' for n in range(5))
    )
    done, _ = redraft(
        *("batch", "rows.jsonl", "-o", "out.jsonl", "--model", chat.model, "--grader", "words:3-9"),
        folder=tmp_path,
        OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url,
        OTEL_LOGS_EXPORTER="none",
    )
    assert done.returncode == 0, done.stderr
    roots = [span for span in receiver.spans if not span.parent_span_id]
    assert sorted(span.name for span in roots) == [
        "invoke_workflow batch",
        *["invoke_workflow refine"] * 5,
    ]
    assert len({span.trace_id for span in roots}) == 6
    assert {each["service.name"] for each in receiver.resources} == {"redraft"}
    assert receiver.logs == []
    grades = [span for span in receiver.spans if span.name == "grade words:3-9"]
    assert [event.name for span in grades for event in span.events] == [
        "gen_ai.evaluation.result"
    ] * 5


TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CONTEXT = {"TRACEPARENT": f"00-{TRACE}-{PARENT}-01", "TRACESTATE": "vendor=opaque"}


def run_and_rows(receiver):
    """Return the one span of a run, and those of its rows."""
    [run] = [span for span in receiver.spans if span.name == "invoke_workflow batch"]
    return run, [span for span in receiver.spans if span.name == "invoke_workflow refine"]


@pytest.mark.slow
def test_batch_continues_the_trace_of_its_environment(tmp_path):
    """The span of the run belongs to the pipeline that started it. Rows are traces of their own with
    a link to it: also those that a second start, under another pipeline, takes up.
    """
    chat = ChatServer(lambda messages, n: 400 if n == 1 else "hello there my friend")
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"prompt": "Q{n}"}}\n' for n in range(3)))
    command = ("batch", "rows.jsonl", "-o", "out.jsonl", "--model", chat.model)
    settings = ("--grader", "words:3-9", "--retry", "failed")
    try:
        for parent, row_count in ((PARENT, 3), ("00f067aa0ba902b7", 1)):
            traceparent = f"00-{TRACE}-{parent}-01"
            with Receiver() as receiver:
                done, _ = redraft(
                    *command,
                    *settings,
                    folder=tmp_path,
                    OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url,
                    **CONTEXT | {"TRACEPARENT": traceparent},
                )
            run, rows = run_and_rows(receiver)
            assert (run.trace_id.hex(), run.parent_span_id.hex()) == (TRACE, parent), done.stderr
            assert run.trace_state == "vendor=opaque"
            assert len(rows) == row_count
            assert {span.parent_span_id for span in rows} == {b""}
            traces = {span.trace_id for span in rows}
            assert len(traces) == row_count and run.trace_id not in traces
            assert [[link.span_id for link in span.links] for span in rows] == [
                [run.span_id]
            ] * row_count
    finally:
        chat.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("context", "trace", "parent"),
    [
        (CONTEXT, TRACE, PARENT),
        ({"TRACEPARENT": "garbage"}, None, ""),
        ({"TRACEPARENT": CONTEXT["TRACEPARENT"], "OTEL_PROPAGATORS": "none"}, None, ""),
        ({"TRACESTATE": "vendor=opaque"}, None, ""),
    ],
)
def test_run_continues_the_trace_of_its_environment(
    receiver, chat, tmp_path, context, trace, parent
):
    """What is no trace context begins a trace, and fails nothing."""
    done, _ = redraft(
        *("run", "Say hi", "--model", chat.model, "--grader", "words:3-9"),
        folder=tmp_path,
        OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url,
        **context,
    )
    assert done.returncode == 0, done.stderr
    [root] = [span for span in receiver.spans if span.name == "invoke_workflow refine"]
    assert root.parent_span_id.hex() == parent
    assert trace in {None, root.trace_id.hex()}


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["closed", "silent", "refuses"])
def test_collector_that_does_not_work(fault, chat, closed_url, tmp_path):
    """A dead, silent or refusing collector costs at most two seconds and one line, which has no
    secret; the answer is there.
    """
    asked = ("run", "Say hi", "--model", chat.model, "--grader", "words:3-9")
    plain, usual = redraft(*asked, folder=tmp_path)
    with Receiver(delay=fault == "silent", status=500 if fault == "refuses" else 200) as receiver:
        address = receiver.url.removeprefix("http://")
        if fault == "closed":
            address = closed_url.removeprefix("http://").removesuffix("/v1")
        done, seconds = redraft(
            *asked,
            folder=tmp_path,
            OTEL_EXPORTER_OTLP_ENDPOINT=f"http://me:SECRET-4711@{address}",
            OTEL_EXPORTER_OTLP_HEADERS="k=SECRET-4711",
        )
    assert (done.returncode, done.stdout) == (0, plain.stdout)
    extra = set(done.stderr.splitlines()) - set(plain.stderr.splitlines())
    (line,) = (line for line in extra if "telemetry" in line)
    expected = {
        "closed": f"the last spans to {address} (ConnectionError); the last metric reports to {address} "
        f"(ConnectionError); the last events to {address} (ConnectionError)",
        "silent": f"the last spans to {address} (no reply); the last metric reports to {address} (no "
        f"reply); the last events to {address} (no reply)",
        "refuses": f"4 spans to {address} (status 500); 1 metric report to {address} (status "
        f"500); 1 event to {address} (status 500)",
    }
    said = line.removeprefix("redraft: telemetry: not sent: ")
    assert sorted(said.split("; ")) == sorted(expected[fault].split("; "))
    assert "SECRET-4711" not in done.stderr and "Traceback" not in done.stderr
    # two at the end; without that limit the SDK would try again for a minute
    assert seconds < usual + 30.0


@pytest.mark.slow
@pytest.mark.parametrize("command", ["serve", "mcp", "run"])
def test_a_setting_that_does_not_exist_ends_a_command_at_its_start(command, chat, tmp_path):
    """Also a server, before its first request."""
    (tmp_path / "gateway.toml").write_text(f'[models.tiny]\nurl = "{chat.model}"\n')
    arguments = {"serve": ("--config", "gateway.toml", "--port", "0"), "run": ("Say hi",)}
    done, _ = redraft(
        *(command, *arguments.get(command, ())),
        folder=tmp_path,
        OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9",
        REDRAFT_OPENINFERENCE="yes",
    )
    assert done.returncode == 2, done.stderr
    assert "REDRAFT_OPENINFERENCE must be one of true, false, got 'yes'" in done.stderr


@pytest.mark.slow
def test_missing_extra_is_said(chat, tmp_path):
    """Without the extra, the command works and says what to install."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nsys.modules['opentelemetry'] = None\nsys.modules['opentelemetry.sdk'] = None\n"
    )
    done, _ = redraft(
        *("run", "Say hi", "--model", chat.model, "--grader", "words:3-9"),
        folder=tmp_path,
        OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9",
        PYTHONPATH=str(tmp_path),
    )
    assert (done.returncode, done.stdout) == (0, "hello there my friend\n"), done.stderr
    assert "redraft[otel]" in done.stderr and "Traceback" not in done.stderr


def test_commands_that_only_show_do_not_load_it(tmp_path):
    """`redraft models` and help do not load the SDK, whatever the environment says."""
    code = "import sys; from redraft.cli import main; main(['graders']); print([n for n in sys.modules if n.startswith('opentelemetry')])"
    env = {**os.environ, ENDPOINT: "http://127.0.0.1:9"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=env,
        timeout=60,
    )
    assert done.stdout.splitlines()[-1] == "[]"
