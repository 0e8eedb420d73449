"""Keys and budgets of a real `redraft serve`: what is charged, refused, shared and recovered, with
a scripted model behind it.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from chat_server import ChatServer

from redraft.gateway.keys import KeyLimits, KeyRing

PRICE = 10_000  # USD for a million tokens: a reply of 10 and 5 tokens costs 0.15
REPLY_COST = 0.15


class Gateway:
    """A gateway in a process of its own, in a folder that outlives it, and its model."""

    def __init__(self, folder):
        self.folder = folder
        self.model = ChatServer(lambda messages, n: "Yes.")
        (folder / "gateway.toml").write_text(
            '[gateway]\nfolder = "data"\nport = 0\nmax-concurrent = 2\nmax-queue = 2\nmax-body-mb = 0.01\n'
            f'[models.small]\nurl = "http://127.0.0.1:{self.model.port}/v1"\nmodel = "tiny"\n'
            f'prices = [{PRICE}, {PRICE}]\n[models.unpriced]\nurl = "http://127.0.0.1:{self.model.port}/v1"\nmodel = "tiny"\n'
        )
        self.process = None
        self.key, self.secret = self.add_key("ci", KeyLimits(usd_per_day=1.5))

    def add_key(self, *args):
        """Add a key, and wait until a gateway that works knows it."""
        with KeyRing(self.folder / "data") as ring:
            key, secret = ring.add(*args)
        end = time.monotonic() + 60
        while self.process and not self.knows(secret) and time.monotonic() < end:
            time.sleep(0.02)
        return key, secret

    def knows(self, secret):
        request = urllib.request.Request(f"{self.url}/v1/models", headers={"x-api-key": secret})
        try:
            with urllib.request.urlopen(request):
                return True
        except urllib.error.HTTPError as error:
            assert error.code == 401
            return False

    def start(self):
        command = [
            sys.executable,
            "-m",
            "redraft",
            "serve",
            "--log-format",
            "json",
            "--config",
            "gateway.toml",
            "--no-access-log",
        ]
        environment = {**os.environ, "PYTHONWARNINGS": "default"}
        self.process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        self.url = json.loads(line)["url"].removesuffix("/v1")
        return self

    def end(self, number=signal.SIGTERM):
        if self.process:
            self.process.send_signal(number)
            self.process.communicate(timeout=30)

    def close(self):
        if self.process and self.process.poll() is None:
            self.end(signal.SIGKILL)
        self.model.close()

    def ask(self, text="Say yes.", *, model="pass/small", max_tokens=20, key=None, **headers):
        """Send a request; return the status, the headers, and the reply."""
        body = json.dumps(
            {
                "model": model,
                "max_tokens": max_tokens,
                "messages": [{"role": "user", "content": text}],
            }
        )
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(
            f"{self.url}/v1/chat/completions",
            body.encode(),
            {
                "authorization": f"Bearer {key or self.secret}",
                "content-type": "application/json",
                **given,
            },
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as reply:
                return reply.status, reply.headers, json.load(reply)
        except urllib.error.HTTPError as error:
            return error.code, error.headers, json.load(error)

    def today(self):
        with KeyRing(self.folder / "data") as ring:
            spending = ring.spending("day", self.key)
        return spending.requests, spending.spent / 1e9, spending.reserved / 1e9

    def wait_for(self, expected, seconds=60):
        """Wait until what is spent and reserved is as expected."""
        end = time.monotonic() + seconds
        while (today := self.today()) != expected and time.monotonic() < end:
            time.sleep(0.02)
        assert today == expected


@contextmanager
def started(folder):
    gateway = Gateway(folder)
    try:
        yield gateway.start()
    finally:
        gateway.close()


@pytest.fixture(scope="module")
def process(tmp_path_factory):
    """A gateway that goes on for all tests."""
    with started(tmp_path_factory.mktemp("gateway")) as gateway:
        yield gateway


@pytest.fixture
def gateway(process, request):
    """The same with a key for this test, which has spent nothing, and a model that nobody has
    asked.
    """
    process.model.forget()
    process.name = request.node.name[:40]
    process.key, process.secret = process.add_key(process.name, KeyLimits(usd_per_day=1.5))
    return process


@pytest.fixture
def own_gateway(tmp_path):
    """A gateway that has answered nothing, and that a test may kill."""
    with started(tmp_path) as gateway:
        yield gateway


def test_replies_are_charged_until_the_budget_could_be_exceeded(gateway):
    """By what they cost; then 402, which asks not to be retried and costs nothing, and no model is
    asked.
    """
    answered = 0
    while (reply := gateway.ask(max_tokens=5))[0] == 200:
        answered += 1
        gateway.wait_for((answered, pytest.approx(answered * REPLY_COST), 0))
    status, headers, data = reply
    assert (status, headers["x-should-retry"], data["error"]["code"]) == (
        402,
        "false",
        "budget_exhausted",
    )
    assert 2 <= answered <= 6 and gateway.model.calls == answered
    assert gateway.today() == (answered, pytest.approx(answered * REPLY_COST), 0)


def test_a_model_without_a_price_is_refused_to_a_key_with_a_budget(gateway):
    """A limit in USD cannot be kept without one."""
    status, _, data = gateway.ask(model="pass/unpriced")
    assert (status, data["error"]["code"]) == (402, "unknown_price") and not gateway.model.calls


@pytest.mark.slow
def test_a_killed_gateway_charges_what_was_at_work_once(own_gateway):
    """kill -9 in the middle: the settled reply is charged as it was, the one at work as it was
    reserved, once for all restarts.
    """
    own_gateway.key, own_gateway.secret = own_gateway.add_key("cd", KeyLimits(usd_per_day=100))
    charged = 0
    for call in (0, 2):  # (of the model, which gets one more for each reply that was lost)
        assert own_gateway.ask()[0] == 200
        own_gateway.wait_for((call + 1, pytest.approx(charged + REPLY_COST), 0))
        arrived = own_gateway.model.hold(call + 1)
        with ThreadPoolExecutor() as pool:
            lost = pool.submit(own_gateway.ask)
            assert arrived.wait(60)
            requests, spent, reserved = own_gateway.today()
            assert (requests, spent) == (
                call + 2,
                pytest.approx(charged + REPLY_COST),
            ) and reserved > 0
            own_gateway.end(signal.SIGKILL)
            with pytest.raises(OSError):
                lost.result(10)
        assert own_gateway.today() == (requests, spent, reserved)
        charged = spent + reserved
        own_gateway.start()
    for _ in range(2):
        assert own_gateway.today() == (4, pytest.approx(charged), 0)
        own_gateway.end()
        own_gateway.start()
    assert own_gateway.model.calls == 4


def test_a_client_that_leaves_returns_what_was_reserved(gateway):
    """What it cost is not known, so it is charged as it was reserved, and the key can go on."""
    arrived = gateway.model.hold(0)
    body = json.dumps(
        {"model": "pass/small", "max_tokens": 20, "messages": [{"role": "user", "content": "x"}]}
    )
    host, port = gateway.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as client:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nx-api-key: {gateway.secret}\r\ncontent-length: {len(body)}\r\n\r\n"
        client.sendall((head + body).encode())
        assert arrived.wait(60)
        reserved = gateway.today()[2]
    gateway.wait_for((1, reserved, 0.0))
    assert 0 < reserved < 1.5


def test_requests_with_one_idempotency_key_are_charged_once(gateway):
    """Two at the same time ask the model once; a third gets the same reply later; another body is
    an error.
    """
    arrived = gateway.model.hold(0)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(gateway.ask, idempotency_key="one")
        assert arrived.wait(60)
        second = pool.submit(gateway.ask, idempotency_key="one")
        other = gateway.ask("Another text.", idempotency_key="one")
        assert (other[0], other[1]["x-should-retry"]) == (422, "false")
        gateway.model.release()
        replies = [first.result(10), second.result(10), gateway.ask(idempotency_key="one")]
    assert [status for status, *_ in replies] == [200] * 3
    assert len({json.dumps(data) for *_, data in replies}) == 1
    assert len({headers["x-redraft-trace-id"] for _, headers, _ in replies}) == 1
    gateway.wait_for((1, REPLY_COST, 0.0))
    assert gateway.model.calls == 1


@pytest.mark.slow
def test_a_revoked_key_is_refused_within_a_second(gateway):
    """The command and the gateway are two processes."""
    assert gateway.ask()[0] == 200
    revoke = [
        sys.executable,
        "-m",
        "redraft",
        "keys",
        "revoke",
        gateway.name,
        "--config",
        "gateway.toml",
    ]
    subprocess.run(revoke, cwd=gateway.folder, check=True, capture_output=True)
    time.sleep(1)
    status, _, data = gateway.ask()
    assert status == 401 and f"{gateway.name!r} is revoked" in data["error"]["message"]
    assert gateway.model.calls == 1


@pytest.mark.slow
def test_a_second_gateway_in_the_folder_is_refused(own_gateway):
    """Budgets and traces have one owner."""
    command = [sys.executable, "-m", "redraft", "serve", "--config", "gateway.toml"]
    second = subprocess.run(
        command, cwd=own_gateway.folder, capture_output=True, text=True, timeout=30
    )
    assert (
        second.returncode == 1
        and f"process {own_gateway.process.pid}" in second.stderr
        and "Traceback" not in second.stderr
    )
    assert own_gateway.ask()[0] == 200


def test_a_key_is_limited_to_its_rate_and_its_models(gateway):
    """429 says when to come back, 403 what the key is for; the list of models has only those."""
    _, other = gateway.add_key("other", KeyLimits(), ("pass/small",))
    _, secret = gateway.add_key("slow", KeyLimits(requests_per_minute=1), ("pass/small",))
    assert gateway.ask(key=secret)[0] == 200
    status, headers, data = gateway.ask(key=secret)
    assert (status, data["error"]["code"]) == (429, "rate_limited") and 50 <= float(
        headers["retry-after"]
    ) <= 61
    assert gateway.ask(key=other, model="pass/unpriced")[0] == 403
    request = urllib.request.Request(f"{gateway.url}/v1/models", headers={"x-api-key": secret})
    with urllib.request.urlopen(request) as reply:
        assert [model["id"] for model in json.load(reply)["data"]] == ["pass/small"]


@pytest.mark.slow
def test_a_full_queue_refuses_and_the_others_are_answered(own_gateway):
    """Two work, two wait, two are told when to come back, and nothing is charged to these."""
    _, secret = own_gateway.add_key("open")
    arrived = [own_gateway.model.hold(n) for n in range(2)]
    with ThreadPoolExecutor() as pool:
        asked = [pool.submit(own_gateway.ask, key=secret) for _ in range(6)]
        assert all(event.wait(60) for event in arrived)
        end = time.monotonic() + 60
        while sum(each.done() for each in asked) < 2 and time.monotonic() < end:
            time.sleep(0.01)
        refused = [each.result() for each in asked if each.done()]
        own_gateway.model.release()
        statuses = [each.result(60)[0] for each in asked]
    assert [status for status, *_ in refused] == [503, 503]
    assert [headers["retry-after"] for _, headers, _ in refused] == ["2", "2"]
    assert sorted(statuses) == [200] * 4 + [503] * 2 and own_gateway.model.calls == 4


@pytest.mark.slow
def test_foreign_hosts_pages_and_large_bodies_reach_no_model(gateway):
    """421, 403 and 413, before anything is reserved."""
    assert gateway.ask(host="evil.test")[0] == 421
    assert gateway.ask(origin="https://evil.test")[0] == 403
    assert gateway.ask(sec_fetch_site="cross-site")[0] == 403
    assert gateway.ask("x" * 20_000)[0] == 413
    assert gateway.today() == (0, 0, 0) and not gateway.model.calls
