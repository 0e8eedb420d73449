"""What requests cost that fail: `pass/NAME` and `refine/NAME` say the same of each failure, to the
key, the store and the figures.
"""

import re
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest
from fault_server import completion, cut, error, good, http, send_and_close, silence

from redraft.errors import MODEL_CAUSES
from redraft.gateway.keys import KeyLimits, KeyRing

from .running import PROMPT, config_for, http_client, running

UNSENT = (0, 0, 0, 0.0)  # calls, input tokens, output tokens and cost
REFUSED = (1, 0, 0, 0.0)
UNKNOWN = (1, None, None, None)  # it may have been paid for: it is charged as it was reserved
FAILURES = {
    "no server": (None, UNSENT),
    **{
        f"status {status}": (error(status), REFUSED)
        for status in (400, 401, 402, 403, 404, 413, 422, 429, 500, 503, 504, 529)
    },
    "no JSON": (http(b"<html>hi</html>", content_type="text/html"), UNKNOWN),
    "no answer": (http({"error": {"message": "broken"}}), UNKNOWN),
    "a reply that breaks off": (cut(good(), 120), UNKNOWN),
    "a connection that breaks off": (send_and_close(b""), UNKNOWN),
    "no reply in time": (silence, UNKNOWN),
}


def config_of(folder, faults, closed_url, answer):
    """The configuration for a model that answers so; None: no server."""
    faults.says(answer or error(500))
    config = config_for(
        folder, faults.url if answer else closed_url, graders=["words:1-9"], settings={"retries": 0}
    )
    return replace(
        config,
        models={"tiny": replace(config.models["tiny"], timeout=0.3 if answer is silence else 60.0)},
    )


@pytest.mark.slow(but_each=14)
@pytest.mark.parametrize(
    ("model", "is_stream"), [("refine/fast", False), ("pass/tiny", False), ("pass/tiny", True)]
)
@pytest.mark.parametrize(("answer", "expected"), FAILURES.values(), ids=FAILURES)
async def test_what_a_failure_costs(
    faults, closed_url, tmp_path, answer, expected, model, is_stream
):
    """What certainly cost nothing is not charged, and what was not sent is no call; what is unknown
    is charged as reserved.
    """
    config = config_of(tmp_path, faults, closed_url, answer)
    with KeyRing(tmp_path) as ring:
        key, secret = ring.add("app", KeyLimits(usd_per_day=1.0))
    async with running(config) as (url, gateway), http_client(url) as client:
        body = {"model": model, "messages": PROMPT, "max_tokens": 20, "stream": is_stream}
        reply = await client.post(
            "/chat/completions", json=body, headers={"authorization": f"Bearer {secret}"}
        )
        assert reply.status_code >= 400 and reply.json()["error"]["message"]
        await gateway.admission.wait_until_idle()
        await gateway.store.wait_for_commit()
        figures = gateway.metrics.text()
        with closing(sqlite3.connect(tmp_path / "requests.db")) as database:
            rows = database.execute(
                "SELECT outcome, calls, input_tokens, output_tokens, cost FROM requests"
            ).fetchall()
        with KeyRing(tmp_path) as ring:
            spending = ring.spending("day", key)
    assert rows == [("failed", *expected)]
    assert (spending.calls, spending.spent > 0, spending.reserved) == (
        expected[0],
        expected is UNKNOWN,
        0,
    )
    assert (f'redraft_gateway_unmetered_requests_total{{model="{model}"}}' in figures) == (
        expected is UNKNOWN
    )
    assert re.search(
        rf'redraft_gateway_upstream_errors_total{{cause="\w+",model="{model}"}} 1.0', figures
    )


CODES = {  # of what a model did
    "upstream_unavailable": [None, send_and_close(b"HTTP/1.1 200")],
    "upstream_authentication": [
        error(401),
        error(403),
        error(400, "API key not valid. Please pass a valid API key."),
    ],
    "upstream_quota": [
        error(402),
        error(429, code="insufficient_quota"),
        error(429, "on tokens per day (TPD): Limit 1, Used 1"),
        error(400, "Your credit balance is too low"),
    ],
    "context_length_exceeded": [
        error(400, "maximum context length is 10 tokens", code="context_length_exceeded"),
        error(429, "Request too large on tokens per min (TPM): Limit 30, Requested 31."),
        error(500, "the request exceeds the available context size"),
    ],
    "content_filter": [
        error(400, code="content_filter"),
        error(403, "Content violates usage guidelines."),
    ],
    "upstream_rate_limit": [error(429), error(429, "Please try again in 15s.")],
    "upstream_overloaded": [error(503), error(529)],
    "upstream_error": [error(500), error(502), http(b"<html>hi</html>"), http(b"null")],
    "upstream_redirect": [http(b"", 302, Location="/v2")],
    "upstream_timeout": [silence, error(408)],
}


@pytest.mark.slow(but_each=7)
@pytest.mark.parametrize(
    ("code", "answer"),
    [pytest.param(code, answer, id=code) for code, answers in CODES.items() for answer in answers],
)
async def test_one_cause_has_one_code(faults, closed_url, tmp_path, code, answer):
    """Whether a request is refined or passed on."""
    config = config_of(tmp_path, faults, closed_url, answer)
    async with running(config) as (url, _), http_client(url) as client:
        replies = [
            await client.post("/chat/completions", json={"model": model, "messages": PROMPT})
            for model in ("refine/fast", "pass/tiny")
        ]
    assert [reply.json()["error"]["code"] for reply in replies] == [code, code]


async def test_what_is_refused_before_it_is_sent_costs_nothing(faults, tmp_path):
    """A request that the model's protocol cannot say is no call, and no error of the model."""
    config = config_for(tmp_path, faults.url)
    config = replace(config, models={"tiny": replace(config.models["tiny"], kind="anthropic")})
    with KeyRing(tmp_path) as ring:
        key, secret = ring.add("app", KeyLimits(usd_per_day=1.0, calls_per_day=5))
    async with running(config) as (url, gateway), http_client(url) as client:
        for _ in range(2):
            body = {"model": "pass/tiny", "messages": PROMPT, "max_tokens": 20, "n": 2}
            reply = await client.post(
                "/chat/completions", json=body, headers={"authorization": f"Bearer {secret}"}
            )
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, "n")
        await gateway.admission.wait_until_idle()
        assert not re.search(r"upstream_errors_total{.*} [1-9]", gateway.metrics.text())
    with KeyRing(tmp_path) as ring:
        spending = ring.spending("day", key)
    assert (spending.calls, spending.spent, spending.reserved) == (0, 0, 0)


async def test_each_form_in_which_a_request_is_sent_is_a_call(faults, tmp_path):
    """A server that refuses the first one is asked again: the refusal costs nothing, and both are
    counted.
    """
    faults.says(error(404, "no such path"), good("fine"))
    with KeyRing(tmp_path) as ring:
        key, secret = ring.add("app", KeyLimits(usd_per_day=1.0))
    async with (
        running(config_for(tmp_path, faults.url)) as (url, gateway),
        http_client(url) as client,
    ):
        body = {"model": "pass/tiny", "input": "hello", "max_output_tokens": 20}
        reply = await client.post(
            "/responses", json=body, headers={"authorization": f"Bearer {secret}"}
        )
        facts = gateway.store.find(reply.headers["x-redraft-trace-id"]).facts
    with KeyRing(tmp_path) as ring:
        spending = ring.spending("day", key)
    cost = (7 * 1.0 + 3 * 2.0) / 1e6
    assert (facts.calls, facts.input_tokens, facts.output_tokens, facts.cost) == (
        2,
        7,
        3,
        pytest.approx(cost),
    )
    assert (spending.calls, spending.spent) == (2, round(cost * 1e9))


@pytest.mark.slow
async def test_nobody_outside_makes_series(faults, tmp_path):
    """Codes and types of models, names, paths and methods of clients: the second flood of new words
    adds no series.
    """
    statuses = (400, 404, 413, 422, 429, 402, 403, 500, 503)

    def flood(n):
        fields = {"code": f"code_{n}", "type": f"kind_{n}"}
        return [error(status, f"no, {n}", **fields) for status in statuses], [
            ("POST", "/chat/completions", {"model": "pass/tiny", "messages": PROMPT})
            for _ in statuses
        ] + [
            ("POST", "/chat/completions", {"model": f"pass/{n}", "messages": PROMPT}),
            ("POST", f"/chat/{n}", {}),
            (f"M{n}", "/chat/completions", {}),
            ("POST", "/messages", {"model": f"refine/{n}", "messages": [], "max_tokens": 1}),
        ]

    def series(gateway):
        return {
            line.rpartition(" ")[0]
            for line in gateway.metrics.text().splitlines()
            if not line.startswith("#")
        }

    async with (
        running(config_of(tmp_path, faults, "", error(500))) as (url, gateway),
        http_client(url) as client,
    ):
        seen = []
        for n in range(60):
            answers, requests = flood(n)
            faults.says(*answers)
            for method, path, body in requests:
                await client.request(method, path, json=body)
            seen.append(series(gateway))
    assert seen[-1] == seen[0]
    causes = {
        match
        for line in seen[0]
        for match in re.findall(r'upstream_errors_total{cause="(\w+)"', line)
    }
    assert causes == set(MODEL_CAUSES)


WAITS = [  # of a model, and those that the client is told, in whole seconds
    (error(429, "slow down, please try again in 14.5s"), "15"),
    (error(429, "slow down", {"Retry-After": "90"}), "90"),
    (
        http([{"error": {"code": 429, "message": "no", "details": [{"retryDelay": "95s"}]}}], 429),
        "95",
    ),
    (error(503, "loading", estimated_time=70), "70"),
    (error(429, "slow down", {"x-ratelimit-reset-tokens": "1m35s"}), "95"),
    (error(429, "slow down"), None),
]


@pytest.mark.parametrize(("answer", "wait"), WAITS, ids=map(str, range(len(WAITS))))
async def test_the_client_is_told_how_long_the_model_wants_to_wait(
    faults, closed_url, tmp_path, answer, wait
):
    """Wherever the model says it. A request is refined at once or refused at once when that is more
    than a minute.
    """
    config = config_of(tmp_path, faults, closed_url, answer)
    if wait and int(wait) > 60:  # (its profile would ask again)
        config = replace(config, profiles={"fast": replace(config.profiles["fast"], settings={})})
    async with running(config) as (url, _), http_client(url) as client:
        for body in (
            {"model": "refine/fast"},
            {"model": "pass/tiny"},
            {"model": "pass/tiny", "stream": True},
        ):
            faults.requests.clear()
            reply = await client.post("/chat/completions", json={"messages": PROMPT, **body})
            assert (reply.headers.get("retry-after"), len(faults.requests)) == (wait, 1)
            assert reply.json()["error"]["code"] in {"upstream_rate_limit", "upstream_overloaded"}


async def test_the_client_is_told_that_the_model_did_not_read_all(faults, closed_url, tmp_path):
    """A prompt that the server cut is named beside the score; the operator is warned once."""
    config = config_of(tmp_path, faults, closed_url, http(completion("fine", usage=(2048, 1))))
    async with running(config) as (url, _), http_client(url) as client:
        with pytest.warns(UserWarning, match="the server cut the prompt") as caught:
            for n in range(2):
                body = {
                    "model": "refine/fast",
                    "messages": [{"role": "user", "content": f"{n} " + "word " * 5000}],
                }
                reply = (await client.post("/chat/completions", json=body)).json()
                assert (
                    "it read 2,048 tokens of a prompt of 25,002 bytes"
                    in reply["usage"]["redraft"]["note"]
                )
    assert len(caught) == 1


async def test_the_log_says_that_a_model_is_waited_for(faults, closed_url, tmp_path, caplog):
    """One line for each pause of more than a second, without the words of the model."""
    config = config_of(tmp_path, faults, closed_url, error(500))
    config = replace(config, profiles={"fast": replace(config.profiles["fast"], settings={})})
    faults.says(error(429, "slow down, try again in 1.1s"), good("fine"))
    async with running(config) as (url, _), http_client(url) as client:
        for _ in range(2):
            reply = await client.post(
                "/chat/completions", json={"messages": PROMPT, "model": "refine/fast"}
            )
            assert reply.status_code == 200
    (line,) = [each.getMessage() for each in caplog.records if each.name == "redraft.gateway"]
    assert re.fullmatch(
        r"127\.0\.0\.1:\d+: paused until .+ \(for 1\.1 s\), as it asked: RateLimitError \(status 429\)",
        line,
    )
