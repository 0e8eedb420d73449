"""The ID of a request in the header of its reply, by which it is found: also if it failed."""

import asyncio
from dataclasses import replace

import pytest
from fault_server import error, good, http, silence

from redraft.gateway import client_exchange, passing
from redraft.gateway.config import Retention

from .running import PROMPT, config_for, http_client, running

FAILURES = {
    "the model fails": (error(500), 502),
    "its key is refused": (error(401), 502),
    "no answer": (http(b"null"), 502),
    "no reply in time": (silence, 504),
}
MODELS = ["refine/fast", "pass/tiny"]


def config_of(folder, url, timeout=60.0):
    config = config_for(
        folder, url, graders=["words:1-9"], settings={"retries": 0}, retention=Retention("full")
    )
    models = {"tiny": replace(config.models["tiny"], timeout=timeout)}
    return replace(config, models=models, passed_retention=Retention("full"))


async def ask(client, model, **headers):
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return await client.post(
        "/chat/completions",
        json={"model": model, "messages": PROMPT, "max_tokens": 9},
        headers=given,
    )


@pytest.mark.slow(but_each=4)
@pytest.mark.parametrize("headers", [{}, {"idempotency_key": "k1"}], ids=["", "with a key"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("answer", "status"), FAILURES.values(), ids=FAILURES)
async def test_a_request_that_failed_is_found(faults, tmp_path, answer, status, model, headers):
    """The reply has the ID of the stored request, which has its status."""
    faults.says(answer)
    config = config_of(tmp_path, faults.url, timeout=0.3 if answer is silence else 60.0)
    async with running(config) as (url, gateway), http_client(url) as client:
        reply = await ask(client, model, **headers)
        await gateway.admission.wait_until_idle()
        facts = gateway.store.find(reply.headers["x-redraft-trace-id"]).facts
    assert (reply.status_code, facts.status, facts.outcome) == (status, status, "failed")
    assert facts.error == reply.json()["error"]["code"]


@pytest.mark.parametrize("model", MODELS)
async def test_a_fault_of_the_gateway_is_found(faults, tmp_path, monkeypatch, model):
    """A bug, too, is a failure of a request that has an ID."""

    def fail(*_, **__):
        raise ZeroDivisionError

    faults.says(good())
    monkeypatch.setattr(client_exchange, "answer_request", fail)
    monkeypatch.setattr(passing, "translation_of", fail)
    async with (
        running(config_of(tmp_path, faults.url)) as (url, gateway),
        http_client(url) as client,
    ):
        reply = await ask(client, model)
        facts = gateway.store.find(reply.headers["x-redraft-trace-id"]).facts
    assert (reply.status_code, facts.status, facts.error) == (500, 500, "internal_error")


@pytest.mark.parametrize("model", MODELS)
async def test_a_request_that_the_end_of_the_gateway_cut_off_is_found(faults, tmp_path, model):
    """Its reply says so, with the ID."""
    called = asyncio.Event()

    async def hang(writer):
        called.set()
        await asyncio.sleep(3600)

    faults.says(hang)
    async with (
        running(config_of(tmp_path, faults.url)) as (url, gateway),
        http_client(url) as client,
    ):
        request = asyncio.create_task(ask(client, model))
        await called.wait()
        gateway.drain()
        await gateway.cut_off()
        reply = await request
        facts = gateway.store.find(reply.headers["x-redraft-trace-id"]).facts
    assert (reply.status_code, facts.status, facts.error) == (503, 503, "shutting_down")
    assert (reply.headers["retry-after"], reply.headers.get("x-should-retry")) == ("5", None)


async def test_requests_with_one_idempotency_key_have_the_id_of_the_run(faults, tmp_path):
    """The run that failed is one request, for all that joined it."""
    both_wait = asyncio.Event()

    async def refuse(writer):
        await both_wait.wait()
        writer.write(error(500))
        await writer.drain()

    faults.says(refuse)
    async with (
        running(config_of(tmp_path, faults.url)) as (url, gateway),
        http_client(url) as client,
    ):
        requests = [
            asyncio.create_task(ask(client, "pass/tiny", idempotency_key="k1")) for _ in range(2)
        ]
        while sum(run.readers for run in gateway.runs._in_progress) < 2:
            await asyncio.sleep(0.001)
        both_wait.set()
        replies = await asyncio.gather(*requests)
        (trace_id,) = {reply.headers["x-redraft-trace-id"] for reply in replies}
        assert gateway.store.find(trace_id).facts.outcome == "failed"
    assert len(faults.requests) == 1


async def test_a_request_that_was_not_admitted_has_no_id(faults, tmp_path):
    """Nothing of it is stored."""
    async with (
        running(config_of(tmp_path, faults.url)) as (url, gateway),
        http_client(url) as client,
    ):
        replies = [await ask(client, "pass/none")]
        gateway.drain()
        replies.append(await ask(client, "pass/tiny"))
    assert [reply.status_code for reply in replies] == [404, 503]
    assert not any("x-redraft-trace-id" in reply.headers for reply in replies)
