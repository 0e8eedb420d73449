"""The access log: fields, what it never holds, and a reader that does not keep up."""

import json
import logging
import os
import threading
from dataclasses import replace

import pytest

from redraft.gateway import access_log as module
from redraft.gateway.access_log import access_log, access_log_on, log_request, request_line
from redraft.gateway.request_table import RequestFacts

FACTS = RequestFacts(
    "t1",
    key_id="k1",
    key_name="alice",
    model="refine/fast",
    status=200,
    score=0.9,
    iterations=2,
    stop="target",
    input_tokens=10,
    output_tokens=5,
    cost=0.01,
    milliseconds=12.5,
    outcome="answered",
    otel_trace_id="0af7651916cd43dd8448eb211c80319c",
    client_request_id="order-7",
)


def read_lines(descriptor):
    with os.fdopen(descriptor, encoding="ascii") as file:
        return [json.loads(line) for line in file]


def test_line_of_a_request():
    """One JSON object with what an operator asks for; unknown values are null."""
    line = json.loads(request_line(FACTS, "POST", "/v1/chat/completions"))
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "trace_id": "t1",
        "otel_trace_id": "0af7651916cd43dd8448eb211c80319c",
        "client_request_id": "order-7",
        "key": "alice",
        "method": "POST",
        "path": "/v1/chat/completions",
        "model": "refine/fast",
        "status": 200,
        "error": None,
        "cause": None,
        "ms": 12.5,
        "input_tokens": 10,
        "output_tokens": 5,
        "cost": 0.01,
        "score": 0.9,
        "iterations": 2,
        "stop": "target",
    }
    unknown = json.loads(
        request_line(RequestFacts("t1", status=404, error="not_found"), "GET", "/x")
    )
    names = ("key", "model", "input_tokens", "cost", "otel_trace_id", "client_request_id")
    assert [unknown[name] for name in names] == [None] * 6


def test_content_only_when_it_is_given():
    """And cut to a limit."""
    assert "content" not in json.loads(request_line(FACTS, "POST", "/"))
    line = json.loads(request_line(FACTS, "POST", "/", {"prompt": "hello", "answer": "x" * 10**6}))
    assert line["content"]["prompt"] == "hello"
    assert len(line["content"]["answer"]) == module.MAX_CONTENT


@pytest.mark.parametrize(
    "hostile", ["\n{}", "\x1b[2J", "\x9b2J", "\u2028", "\0", "\ud800", "é", "\x7f"]
)
def test_hostile_text_stays_on_its_line(hostile):
    """A path or a name cannot begin a line or reach the terminal as a control sequence."""
    line = request_line(replace(FACTS, key_name=hostile, model=hostile), "GET", f"/{hostile}")
    assert line.isascii() and line.isprintable()
    assert json.loads(line)["path"] == f"/{hostile}"


def test_long_paths_are_cut():
    """A line has a bounded size."""
    line = request_line(replace(FACTS, model="m" * 10**6), "G" * 10**6, "/" * 10**6)
    assert len(line) < 2000


def test_lines_arrive_in_order_and_nowhere_else(caplog):
    """Handlers of the root logger do not get them; after the context nothing is written."""
    reading, writing = os.pipe()
    with access_log_on(writing):
        for n in range(100):
            log_request(replace(FACTS, trace_id=f"t{n}"), "POST", "/v1/messages")
    log_request(FACTS, "POST", "/after")
    os.close(writing)
    assert [line["trace_id"] for line in read_lines(reading)] == [f"t{n}" for n in range(100)]
    assert caplog.records == []
    assert (
        access_log.handlers == []
        and access_log.getEffectiveLevel() == logging.getLogger().getEffectiveLevel()
    )


@pytest.mark.slow
def test_reader_that_does_not_read(monkeypatch):
    """A full pipe holds up nobody: lines are lost and counted, and what is written is whole."""
    monkeypatch.setattr(module, "MAX_WAITING_LINES", 50)
    reading, writing = os.pipe()
    lost, finished = [], threading.Event()
    with access_log_on(writing) as handler:
        handler.on_lost = lost.append
        for n in range(20_000):
            log_request(replace(FACTS, trace_id=f"t{n}"), "POST", "/v1/messages")
        lines = []
        thread = threading.Thread(
            target=lambda: (lines.extend(read_lines(reading)), finished.set())
        )
        thread.start()
    os.close(writing)
    assert finished.wait(30)
    thread.join()
    notes = [line["count"] for line in lines if line.get("event") == "lost_lines"]
    assert sum(notes) == sum(lost) > 0
    assert len(lines) - len(notes) + sum(lost) == 20_000


def test_reader_that_went_away():
    """The lines are lost, and requests go on."""
    reading, writing = os.pipe()
    os.close(reading)
    lost = []
    with access_log_on(writing) as handler:
        handler.on_lost = lost.append
        log_request(FACTS, "POST", "/v1/messages")
    os.close(writing)
    assert lost == [1]
