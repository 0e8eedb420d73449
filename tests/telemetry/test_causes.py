"""One list of causes: the same failure of a model has the same name in `refine/` and in `pass/`, on
spans, in metrics and in the access log.
"""

import asyncio
import json
import logging
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from fault_server import (
    FaultServer,
    completion,
    error,
    good,
    http,
    send_and_close,
    silence,
)

from gateway.running import PROMPT, config_for, http_client, running, wait_until_recorded
from redraft import batch
from redraft.cli.errors import error_event
from redraft.errors import CAUSES, MODEL_CAUSES, AuthenticationError
from redraft.gateway.request_table import find_requests
from redraft.models import ScriptedModel
from redraft.runs.endpoints import LimitedEndpoints
from redraft.session import models
from redraft.settings import EndpointLimits

FAULTS = {
    "no server": (None, "ModelUnavailableError"),
    "400": (error(400), "ModelError"),
    "401": (error(401), "AuthenticationError"),
    "402": (error(402), "AuthenticationError"),
    "403": (error(403), "AuthenticationError"),
    "404": (error(404), "ModelUnavailableError"),
    "405": (error(405), "ModelUnavailableError"),
    "408": (error(408), "ModelTimeoutError"),
    "409": (error(409), "ModelUnavailableError"),
    "413": (error(413), "ContextLengthError"),
    "418": (error(418), "ModelError"),
    "422": (error(422), "ModelError"),
    "429": (error(429), "RateLimitError"),
    "500": (error(500), "ModelUnavailableError"),
    "503": (error(503), "ModelUnavailableError"),
    "504": (error(504), "ModelUnavailableError"),
    "a key in words": (error(400, "API key not valid. Please pass it."), "AuthenticationError"),
    "no credit": (error(429, code="insufficient_quota"), "AuthenticationError"),
    "too long": (error(400, code="context_length_exceeded"), "ContextLengthError"),
    "filtered": (error(400, code="content_filter"), "ContentFilterError"),
    "redirect": (http(b"", 302, Location="/v2"), "ModelUnavailableError"),
    "no JSON": (http(b"<html>"), "BadResponseError"),
    "an error in an answer": (http({"error": {"message": "broken"}}), "BadResponseError"),
    "a limit in an answer": (http({"error": {"code": 429, "message": "no"}}), "RateLimitError"),
    "no choices": (http(completion() | {"choices": []}), "BadResponseError"),
    "breaks off": (send_and_close(b"HTTP/1.1 2"), "ModelUnavailableError"),
    "silent": (silence, "ModelTimeoutError"),
}

PAGE = (Path(__file__).parents[2] / "docs/reference/errors.md").read_text(encoding="utf-8")
ROWS = PAGE.partition("| cause | meaning |")[2].partition("\n\n")[0].splitlines()[2:]
CODES = {  # what the page says that clients are told
    cause: re.findall(r"`(\w+)`", row.split("|")[3])
    for row in ROWS
    for cause in re.findall(r"`(\w+)`", row.split("|")[1])
}


def test_the_page_lists_every_cause():
    """And no other; the causes of failed calls to models come first."""
    assert sorted(CODES) == sorted(CAUSES)
    assert tuple(CODES)[: len(MODEL_CAUSES)] == MODEL_CAUSES


@pytest.fixture
async def faults():
    async with FaultServer() as server:
        yield server


@pytest.fixture
def access_lines():
    """The lines of the access log, as they are written."""
    lines, handler, logger = [], logging.Handler(), logging.getLogger("redraft.access")
    handler.emit = lambda record: lines.append(json.loads(record.getMessage()))
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.INFO)
    yield lines
    logger.setLevel(level)
    logger.removeHandler(handler)


@pytest.mark.slow(but_each=7)
@pytest.mark.parametrize(("answer", "cause"), FAULTS.values(), ids=FAULTS)
async def test_one_failure_has_one_cause(
    memory, faults, closed_url, access_lines, tmp_path, answer, cause
):
    """On each span of it, in both metrics and in the log, whether a request is refined or passed
    on.
    """
    assert cause in CAUSES
    faults.says(answer or good())
    url = faults.url if answer else closed_url
    config = config_for(tmp_path, f"{url}#tiny", graders=["words:1-9"], settings={"retries": 0})
    model = replace(config.models["tiny"], timeout=0.3 if answer is silence else 60.0)
    config = replace(config, models={"tiny": model})
    async with running(config) as (url, gateway), http_client(url) as client:
        for name in ("refine/fast", "pass/tiny"):
            reply = await client.post("/chat/completions", json={"model": name, "messages": PROMPT})
            assert reply.status_code >= 400
            assert reply.json()["error"]["code"] in CODES[cause], name
        await wait_until_recorded(gateway)
        figures = gateway.metrics.text()
    causes = [(span.name, span.attributes["error.type"]) for span in memory.spans if ours(span)]
    assert causes == [
        ("invoke_workflow refine", cause),
        ("generate", cause),
        ("chat tiny", cause),
        ("chat tiny", cause),
    ]
    seconds = memory.metrics["gen_ai.client.operation.duration"]
    assert {point.attributes["error.type"] for point in seconds} == {cause}
    assert [line["cause"] for line in access_lines] == [cause, cause]
    stored = [find_requests(tmp_path / "requests.db", line["trace_id"], 1) for line in access_lines]
    assert [facts.cause for (facts,) in stored] == [cause, cause]
    for name in ("refine/fast", "pass/tiny"):
        labels = f'{{cause="{cause}",model="{name}"}} 1.0'
        assert f"redraft_gateway_upstream_errors_total{labels}" in figures


def ours(span):
    return not span.name.startswith("POST")


@pytest.mark.parametrize("model", ["refine/fast", "pass/tiny"])
async def test_a_busy_model_is_no_refusal_of_the_gateway(faults, tmp_path, model):
    """What the gateway refuses by itself is counted by its own codes; a model's 429 and 503 are
    not.
    """
    config = config_for(tmp_path, faults.url, graders=["words:1-9"], settings={"retries": 0})
    async with running(config) as (url, gateway), http_client(url) as client:
        for status in (429, 503):
            faults.says(error(status))
            body = {"model": model, "messages": PROMPT}
            assert (await client.post("/chat/completions", json=body)).status_code == status
        await wait_until_recorded(gateway)
        figures = gateway.metrics.text()
    refusals = re.findall(r"redraft_gateway_refusals_total{.*} (.*)", figures)
    assert refusals and set(refusals) == {"0.0"}


def events_of(span):
    """The failed attempts of a call: cause, status, and whether it was made again after a wait."""
    return [
        (
            event.attributes["error.type"],
            event.attributes.get("http.response.status_code"),
            "redraft.retry.wait" in event.attributes,
        )
        for event in span.events
    ]


LIMITED, FAILED = ("RateLimitError", 429, True), ("ModelUnavailableError", 500, True)
ATTEMPTS = {  # the answers of a model, what is told of the call, and the counts by cause
    "answered at once": ([good("one two")], [], 0, {}),
    "answered in the end": (
        [*[error(429)] * 2, error(500), good("one two")],
        [LIMITED, LIMITED, FAILED],
        3,
        {"RateLimitError": 2, "ModelUnavailableError": 1},
    ),
    "never answered": (
        [error(429)],
        [LIMITED, LIMITED, LIMITED, (*LIMITED[:2], False)],
        3,
        {"RateLimitError": 4},
    ),
    "not worth another attempt": (
        [error(500), error(401)],
        [FAILED, ("AuthenticationError", 401, False)],
        1,
        {"ModelUnavailableError": 1, "AuthenticationError": 1},
    ),
}


@pytest.mark.parametrize(("script", "events", "retried", "counts"), ATTEMPTS.values(), ids=ATTEMPTS)
async def test_each_failed_attempt_is_seen(
    memory, faults, tmp_path, monkeypatch, script, events, retried, counts
):
    """As an event of the call's span, which says how many calls were repeated, also where it fails;
    and by its cause in both metrics.
    """
    monkeypatch.setattr(models, "retry", partial(models.retry, base_delay=0.0))
    faults.says(*script)
    config = config_for(
        tmp_path, f"{faults.url}#tiny", graders=["words:1-9"], settings={"retries": 3}
    )
    async with running(config) as (url, gateway), http_client(url) as client:
        body = {"model": "refine/fast", "messages": PROMPT}
        reply = await client.post("/chat/completions", json=body)
        await wait_until_recorded(gateway)
        figures = gateway.metrics.text()
    call = memory.one("chat")
    assert events_of(call) == events
    assert call.attributes.get("redraft.usage.retried_calls", 0) == retried
    assert (reply.status_code == 200) == ("error.type" not in call.attributes)
    points = memory.metrics["redraft.client.failed_attempts"]
    assert {point.attributes["error.type"]: point.value for point in points} == counts
    assert all(point.attributes["gen_ai.request.model"] == "tiny" for point in points)
    counted = re.findall(
        r'redraft_gateway_failed_attempts_total{cause="(\w+)",model="refine/fast"} (\d+)', figures
    )
    assert {cause: int(count) for cause, count in counted if count != "0"} == counts


@pytest.mark.parametrize(
    ("status", "cause"),
    [(429, "RateLimitError"), (401, "AuthenticationError"), (400, "ModelError")],
)
async def test_a_failed_attempt_is_seen_of_a_request_that_is_passed_on(
    memory, faults, tmp_path, status, cause
):
    """It is the only one, with the status of the model's own reply."""
    faults.says(error(status))
    async with (
        running(config_for(tmp_path, f"{faults.url}#tiny")) as (url, gateway),
        http_client(url) as client,
    ):
        await client.post("/chat/completions", json={"model": "pass/tiny", "messages": PROMPT})
        await wait_until_recorded(gateway)
        figures = gateway.metrics.text()
    assert events_of(memory.one("chat")) == [(cause, status, False)]
    (point,) = memory.metrics["redraft.client.failed_attempts"]
    assert (point.attributes["error.type"], point.value) == (cause, 1)
    assert f'failed_attempts_total{{cause="{cause}",model="pass/tiny"}} 1.0' in figures


async def test_a_batch_that_a_wrong_key_ends_says_so(memory, faults, tmp_path):
    """The call waits until it is cancelled, as the run ends: it has the cause of its attempt, and
    so have its step and its row. The attempt counts once.
    """
    faults.says(error(401))
    report = await batch(
        [{"prompt": "a"}], tmp_path / "out.jsonl", f"{faults.url}#tiny", ["words:1-9"]
    )
    assert "AuthenticationError" in report.stop_note
    assert events_of(memory.one("chat")) == [("AuthenticationError", 401, False)]
    for name in ("chat", "generate", "invoke_workflow refine"):
        assert memory.one(name).attributes["error.type"] == "AuthenticationError"
    (point,) = memory.metrics["redraft.client.failed_attempts"]
    assert (point.attributes["error.type"], point.value) == ("AuthenticationError", 1)


def test_errors_of_other_classes_have_a_cause():
    """A class that is not in the list is told by the one above it, in the events of the command
    line and in what ends a run.
    """

    class KeyOfAnotherRegionError(AuthenticationError):
        pass

    failure = KeyOfAnotherRegionError("no")
    assert error_event(failure)["error"] == "AuthenticationError"
    told = []
    endpoints = LimitedEndpoints(EndpointLimits(), 4, lambda *said: told.append(said), print)
    model = ScriptedModel([failure])
    limiter = endpoints._limiter(model, has_fallback=False)
    limiter.record_failure(asyncio.run(limiter.acquire()), failure)
    assert [detail for _, _, detail in told] == ["AuthenticationError: no"]
