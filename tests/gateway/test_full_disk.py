"""A gateway whose disk of 3 MB fills and is emptied again."""

import json
import re
import signal
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import closing

import pytest
from chat_server import ChatServer

from disk_faults import fill, small_disk
from redraft.errors import StoreError
from redraft.gateway.request_store import RequestStore, find_stored_requests

from .test_stored_requests import CONFIG, START, served, wait_until

TEXT = "three words here " * 200


@pytest.fixture
def upstream():
    server = ChatServer(lambda messages, n: TEXT)
    yield server
    server.close()


def add_key(folder):
    """Return a new key with a budget."""
    command = [
        sys.executable,
        "-m",
        "redraft",
        "keys",
        "add",
        "k",
        "--usd-per-day",
        "5",
        "--config",
        folder / "gateway.toml",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.split()[-1]


def status_with_key(gateway, key):
    body = json.dumps(
        {"model": "pass/m", "max_tokens": 100, "messages": [{"role": "user", "content": "hello"}]}
    ).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(f"{gateway.url}/v1/chat/completions", body, headers), timeout=60
        ) as reply:
            return reply.status
    except urllib.error.HTTPError as error:
        return error.code


def readiness(gateway):
    return json.loads(gateway.get("/readyz"))


def error_at_start(folder):
    """Return what opening the store says; "" if it opens."""
    try:
        RequestStore(folder).close()
    except StoreError as error:
        return str(error)
    return ""


@pytest.mark.slow
def test_a_start_on_a_full_disk_says_so(tmp_path):
    """Whichever of the files has no room: a gateway needs its lock, and the indexes of its
    files.
    """
    with small_disk(tmp_path / "data") as disk:
        assert error_at_start(disk / "store") == ""
        said = []
        for room in range(0, 2**17, 4096):
            ballast = fill(disk, leave=room)
            said.append(error_at_start(disk / "store"))
            ballast.unlink()
        assert len(set(said)) > 2
        assert [
            error for error in said if error and not re.search("disk is full|No space left", error)
        ] == []


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("room", [0, 8192])
def test_a_disk_that_fills_and_is_emptied(tmp_path, upstream, end, room):
    """Requests go on, but for those with a budget; /readyz says so; within seconds of there being
    room all is recorded again.
    """
    with (
        small_disk(tmp_path / "data") as disk,
        served(tmp_path, upstream.port, "require-keys = false") as gateway,
    ):
        key = add_key(tmp_path)
        assert status_with_key(gateway, key) == 200
        before = [gateway.ask("refine/full", f"before {n}")[0] for n in range(5)]
        gateway.get("/readyz")
        ballast = fill(disk, leave=room)
        during = []
        assert wait_until(
            lambda: (
                during.append(gateway.ask("refine/full", "during")[0])
                or readiness(gateway).get("store")
            )
        )
        assert readiness(gateway) == {"status": "ready", "store": "failing"}
        assert wait_until(lambda: status_with_key(gateway, key) == 503)
        during.append(gateway.ask("refine/full", "during")[0])
        ballast.unlink()
        assert wait_until(lambda: readiness(gateway) == {"status": "ready"})
        assert status_with_key(gateway, key) == 200
        after = [gateway.ask("refine/full", f"after {n}")[0] for n in range(5)]
        if end == signal.SIGKILL:  # the outcome of the last ones may not be committed yet
            assert wait_until(
                lambda: all(find_stored_requests(disk, each)[0].facts.outcome for each in after)
            )
        gateway.end(end)
        warnings = [
            line["message"]
            for line in map(json.loads, gateway.log)
            if line.get("event") == "warning"
        ]
        with served(tmp_path, upstream.port, "require-keys = false") as again:
            assert readiness(again) == {"status": "ready"}
            again.end()
        for trace_id in before + after:
            found = find_stored_requests(disk, trace_id)[0]
            assert found.facts.outcome == "answered" and found.trace.best.text == TEXT, trace_id
        assert {find_stored_requests(disk, trace_id)[0].facts.outcome for trace_id in during} == {
            "answered"
        }
        for name in ("gateway.db", "gateway.journal", "requests.db"):
            with closing(sqlite3.connect(disk / name)) as connection:
                assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    failing = [
        text for text in warnings if "disk is full" in text and "the file of keys" not in text
    ]
    assert 1 <= len(failing) <= 2, "one a minute"


@pytest.mark.slow
@pytest.mark.parametrize("room", [0, 40_000, 100_000])
def test_a_gateway_that_could_not_start_can_later(tmp_path, upstream, monkeypatch, room):
    """Twice the start fails on a full disk, and says so; once there is room, the gateway starts in
    that folder.
    """
    with small_disk(tmp_path / "data") as disk:
        ballast = fill(disk, leave=room)
        (tmp_path / "gateway.toml").write_text(CONFIG.format(port=upstream.port, gateway=""))
        monkeypatch.setenv("UPSTREAM_KEY", "any")
        for _ in range(2):
            done = subprocess.run(
                [*START, "gateway.toml"],
                capture_output=True,
                text=True,
                check=False,
                cwd=tmp_path,
                timeout=60,
            )
            assert done.returncode and "Traceback" not in done.stderr
            assert "disk is full" in done.stderr or "No space left" in done.stderr, done.stderr
        ballast.unlink()
        with served(tmp_path, upstream.port) as gateway:
            trace_id, _ = gateway.ask("refine/full")
            gateway.end()
        assert find_stored_requests(disk, trace_id)[0].trace.best.text == TEXT
