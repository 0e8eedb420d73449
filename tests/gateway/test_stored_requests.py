"""What a running gateway leaves: rows with outcomes, traces, figures and log lines, also after
SIGTERM and `kill -9`.
"""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import closing, contextmanager

import pytest
from chat_server import ChatServer

from redraft.gateway.request_store import RequestStore, find_stored_requests

SECRET = "sk-upstream-0123456789abcdef"
CONFIG = """
[gateway]
folder = "data"
port = 0
drain-seconds = 20
{gateway}
[models.m]
url = "http://127.0.0.1:{port}/v1"
model = "tiny"
key-env = "UPSTREAM_KEY"
prices = [1, 2]
[profiles.full]
model = "m"
graders = ["words:3-3"]
max-iterations = 1
store = "full"
[profiles.less]
model = "m"
graders = ["words:3-3"]
max-iterations = 1
[profiles.off]
model = "m"
graders = ["words:3-3"]
max-iterations = 1
store = "off"
"""
START = [sys.executable, "-m", "redraft", "serve", "--log-format", "json", "--config"]


@pytest.fixture
def upstream():
    server = ChatServer(lambda messages, n: "three words here")
    yield server
    server.close()


def wait_until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < end:
        time.sleep(0.01)
    return met


class Served:
    """A gateway in a process of its own."""

    def __init__(self, folder, port, gateway=""):
        self.folder = folder
        (folder / "gateway.toml").write_text(CONFIG.format(port=port, gateway=gateway))
        environment = {**os.environ, "UPSTREAM_KEY": SECRET}
        self.process = subprocess.Popen(
            [*START, folder / "gateway.toml"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            cwd=folder,
        )
        serving = json.loads(self.process.stdout.readline())
        self.url = serving["url"].rstrip("/").removesuffix("/v1")
        self.log = []
        self._reader = threading.Thread(target=lambda: self.log.extend(self.process.stderr))
        self._reader.start()

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=60) as reply:
            return reply.read().decode()

    def ask(self, model, prompt="private prompt", **fields):
        body = {"model": model, "messages": [{"role": "user", "content": prompt}], **fields}
        request = urllib.request.Request(
            self.url + "/v1/chat/completions",
            json.dumps(body).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.headers["x-redraft-trace-id"], json.loads(reply.read())

    def end(self, number=signal.SIGTERM):
        """Send a signal, and return the exit code and the lines of the log."""
        self.process.send_signal(number)
        code = self.process.wait(30)
        self._reader.join()
        self.process.stdout.close()
        self.process.stderr.close()
        return code, [json.loads(line) for line in self.log]


@contextmanager
def served(folder, port, gateway=""):
    gateway = Served(folder, port, gateway)
    try:
        yield gateway
    finally:
        if gateway.process.poll() is None:
            gateway.end(signal.SIGKILL)


def contents(folder):
    return b"".join(
        path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.suffix != ".toml"
    )


@pytest.mark.slow
def test_each_level_and_the_end(tmp_path, upstream):
    """After SIGTERM the exit code is 0, and each request is as its level says: in the store, in the
    figures and in the log.
    """
    with served(tmp_path, upstream.port) as gateway:
        full, answer = gateway.ask("refine/full", "prompt of full")
        assert answer["choices"][0]["message"]["content"] == "three words here"
        asked_not_to, _ = gateway.ask("refine/full", "prompt not stored", store=False)
        less, _ = gateway.ask("refine/less", "prompt of less")
        off, _ = gateway.ask("refine/off", "prompt of off")
        passed, _ = gateway.ask("pass/m", "prompt of pass")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            gateway.ask("refine/nothing")
        figures = gateway.get("/metrics")
        assert json.loads(gateway.get("/readyz")) == {"status": "ready"}
        code, log = gateway.end()
    assert code == 0
    folder = tmp_path / "data"
    stored = find_stored_requests(folder, full)[0]
    assert stored.trace.best.text == "three words here" and stored.trace.task.prompt
    for trace_id, model in (
        (full, "refine/full"),
        (asked_not_to, "refine/full"),
        (less, "refine/less"),
        (passed, "pass/m"),
    ):
        facts = find_stored_requests(folder, trace_id)[0].facts
        assert (facts.model, facts.outcome, facts.status, facts.wire) == (
            model,
            "answered",
            200,
            "chat",
        )
        assert facts.milliseconds > 0 and facts.calls == 1
    assert find_stored_requests(folder, off) == []
    everything = contents(tmp_path) + b"".join(gateway.log) + figures.encode()
    assert b"prompt of full" in everything
    for text in ("prompt not stored", "prompt of less", "prompt of off", "prompt of pass", SECRET):
        assert text.encode() not in everything, text
    lines = {line["trace_id"]: line for line in log if "trace_id" in line}
    assert [lines[each]["status"] for each in (full, asked_not_to, less, off, passed)] == [200] * 5
    assert lines[full]["score"] == 1 and lines[full]["stop"] and lines[passed]["score"] is None
    assert [line["status"] for line in lines.values()].count(404) == 1
    assert (
        'redraft_gateway_requests_total{model="refine/full",status="200",wire="chat"} 2.0'
        in figures
    )
    assert 'redraft_gateway_requests_total{model="other",status="404",wire="chat"} 1.0' in figures
    assert 'redraft_gateway_score_count{model="refine/less"} 1.0' in figures
    assert "redraft_gateway_in_flight 0.0" in figures


@pytest.mark.slow
def test_content_in_the_log_only_if_asked(tmp_path, upstream):
    """`log-content` adds texts, and still no key."""
    with served(tmp_path, upstream.port, "log-content = true") as gateway:
        trace_id, _ = gateway.ask("refine/less", "prompt \x1b[2J")
        _, log = gateway.end()
    line = next(line for line in log if line.get("trace_id") == trace_id)
    assert "prompt" in str(line["content"]) and "three words here" in str(line["content"])
    assert b"\x1b" not in b"".join(gateway.log) and SECRET.encode() not in b"".join(gateway.log)


@pytest.mark.slow
def test_an_answer_has_its_trace_even_after_kill_9(tmp_path, upstream):
    """What a client has received is in the journal, whatever happens to the gateway in the next
    moment, also the second time.
    """
    received = []
    for is_stream in (False, True):
        with served(tmp_path, upstream.port) as gateway:
            body = {
                "model": "refine/full",
                "messages": [{"role": "user", "content": "private prompt"}],
                "stream": is_stream,
            }
            request = urllib.request.Request(
                gateway.url + "/v1/chat/completions", json.dumps(body).encode()
            )
            with urllib.request.urlopen(request, timeout=60) as reply:
                while b"words here" not in (line := reply.readline()):
                    assert line
                gateway.end(signal.SIGKILL)
        received.append(reply.headers["x-redraft-trace-id"])
    for trace_id in received:
        trace = find_stored_requests(tmp_path / "data", trace_id)[0].trace
        assert (trace.best.text, trace.score) == ("three words here", 1)


@pytest.mark.slow
def test_no_outcome_without_its_trace_after_kill_9(tmp_path, upstream):
    """Killed while another program locks the journal, the gateway has not recorded how requests
    with texts ended, but the others.

    The next gateway does, and what it finds is as it was after another kill of the same kind.
    """
    upstream.answer = lambda messages, n: (
        400 if messages[-1]["content"] == "refuse" else "three words here"
    )
    data, earlier = tmp_path / "data", []
    for kills in (1, 2):
        with served(tmp_path, upstream.port, 'store = "full"') as gateway:
            earlier += [gateway.ask("pass/m")[0], gateway.ask("refine/full")[0]]
            assert wait_until(
                lambda: outcomes(data).keys() >= {*earlier} and None not in outcomes(data).values()
            )
            with closing(sqlite3.connect(data / "gateway.journal", isolation_level=None)) as lock:
                lock.execute("BEGIN IMMEDIATE")
                gateway.ask("pass/m")
                with pytest.raises(urllib.error.HTTPError, match="400"):
                    gateway.ask("refine/full", "refuse")
                last, _ = gateway.ask("pass/m", store=False)
                assert wait_until(lambda last=last: outcomes(data).get(last))
                gateway.end(signal.SIGKILL)
            found = outcomes(data)
        assert sorted(map(str, found.values())) == ["None"] * 2 + ["answered"] * 3 * kills + [
            "interrupted"
        ] * 2 * (kills - 1)
        assert {
            find_stored_requests(data, id)[0].trace
            for id, outcome in found.items()
            if outcome is None
        } == {None}
    RequestStore(data).close()
    assert sorted(outcomes(data).values()) == ["answered"] * 6 + ["interrupted"] * 4
    assert all(find_stored_requests(data, id)[0].trace for id in earlier)


def outcomes(folder):
    """The outcomes of all requests, by ID."""
    with closing(sqlite3.connect(f"file:{folder}/requests.db?mode=ro", uri=True)) as connection:
        return dict(connection.execute("SELECT trace_id, outcome FROM requests"))


def test_bodies_of_passed_requests(tmp_path, upstream):
    """With `store = "full"` in [gateway] the request and the reply are kept as they were, unless
    the client asks not to.
    """
    with served(tmp_path, upstream.port, 'store = "full"') as gateway:
        stored, _ = gateway.ask("pass/m", "prompt of pass")
        asked_not_to, _ = gateway.ask("pass/m", "prompt not stored", store=False)
        gateway.end()
    trace = find_stored_requests(tmp_path / "data", stored)[0].trace
    assert "prompt of pass" in trace.task.prompt and "three words here" in trace.best.text
    assert find_stored_requests(tmp_path / "data", asked_not_to)[0].trace is None
    assert b"prompt not stored" not in contents(tmp_path)


def test_another_retention_after_sighup(tmp_path, upstream):
    """It holds for the requests to come."""
    with served(tmp_path, upstream.port) as gateway:
        before, _ = gateway.ask("refine/full")
        config = tmp_path / "gateway.toml"
        config.write_text(config.read_text().replace('store = "full"', 'store = "off"'))
        gateway.process.send_signal(signal.SIGHUP)
        assert wait_until(
            lambda: any(b"gateway.toml" in line or b"configuration" in line for line in gateway.log)
        )
        after, _ = gateway.ask("refine/full")
        gateway.end()
    assert (
        find_stored_requests(tmp_path / "data", before)[0].trace
        and find_stored_requests(tmp_path / "data", after) == []
    )


@pytest.mark.slow
def test_second_gateway_on_one_folder_is_refused(tmp_path, upstream):
    """It says which process has the folder, and the first goes on."""
    with served(tmp_path, upstream.port) as gateway:
        second = subprocess.run(
            [*START, tmp_path / "gateway.toml"],
            capture_output=True,
            env={**os.environ, "UPSTREAM_KEY": SECRET},
            cwd=tmp_path,
            timeout=60,
        )
        assert second.returncode == 1 and str(gateway.process.pid).encode() in second.stderr, (
            second.stderr
        )
        assert str(tmp_path / "data").encode() in second.stderr
        trace_id, _ = gateway.ask("refine/full")
        gateway.end()
    assert find_stored_requests(tmp_path / "data", trace_id)[0].facts.outcome == "answered"


@pytest.mark.slow
def test_kill_in_the_middle(tmp_path, upstream):
    """Answers that clients have got are in the store with their traces; a request in the middle
    gets an outcome at the next start.

    What the first kill left is as it was after the second.
    """
    done = {"refine/full": [], "pass/m": []}
    for _ in range(2):
        with served(tmp_path, upstream.port) as gateway:
            for model, ids in done.items():
                ids += [gateway.ask(model)[0] for _ in range(5)]
            arrived = upstream.hold(upstream.calls)
            waiting = threading.Thread(
                target=pytest.raises, args=(Exception, gateway.ask, "refine/full")
            )
            waiting.start()
            assert arrived.wait(60)
            code, _ = gateway.end(signal.SIGKILL)
            waiting.join()
            upstream.release()
        assert code == -signal.SIGKILL
    store = RequestStore(tmp_path / "data")
    stored = [store.find(trace_id) for trace_id in done["refine/full"] + done["pass/m"]]
    store.close()
    with sqlite3.connect(tmp_path / "data/requests.db") as connection:
        others = connection.execute(
            "SELECT model, outcome FROM requests WHERE outcome != 'answered'"
        ).fetchall()
    assert [each.facts.outcome for each in stored] == ["answered"] * 20
    assert [each.trace is not None for each in stored] == [True] * 10 + [False] * 10
    assert others == [("refine/full", "interrupted")] * 2
