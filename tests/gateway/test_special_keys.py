"""Keys that may do little: those for Prometheus, and those with a limit of 0."""

from dataclasses import replace

import pytest
from fault_server import good

from redraft.cli import main
from redraft.gateway.app import COUNT_PATH, MODEL_PATHS
from redraft.gateway.endpoints import ENDPOINTS
from redraft.gateway.guardrail import GUARDRAIL_PATH
from redraft.gateway.keys import METRICS_ONLY, KeyRing
from redraft.gateway.rewards import REWARDS_PATH, VERIFY_PATH

from .running import PROMPT, config_for, http_client, running

AFAR = {"x-forwarded-for": "10.0.0.9"}  # (what comes through a proxy is not from this machine)
REFUSED = [
    *(("POST", path) for path in (*MODEL_PATHS, *ENDPOINTS, COUNT_PATH, GUARDRAIL_PATH)),
    *(("POST", path) for path in (REWARDS_PATH, VERIFY_PATH)),
    *(("GET", path) for path in ("/v1/models", "/v1/models/pass/tiny", "/openapi.json")),
    *(("GET", path) for path in ("/v1/files", "/v1/batches", "/v1/responses/resp_1")),
]


@pytest.mark.parametrize("is_open", [False, True], ids=["keys needed", "open to all"])
async def test_a_key_that_only_scrapes_gets_the_figures_and_nothing_else(faults, tmp_path, is_open):
    """It is 403 everywhere else, and says so; also where no key would be needed. Paths that are
    free stay free.
    """
    with KeyRing(tmp_path) as ring:
        _, secret = ring.add("prometheus", profiles=METRICS_ONLY)
    headers = {"authorization": f"Bearer {secret}", **AFAR}
    config = config_for(tmp_path, faults.url)
    config = replace(config, require_keys=not is_open)
    async with (
        running(config) as (url, _),
        http_client(url.removesuffix("/v1"), headers=headers) as client,
    ):
        figures = await client.get("/metrics")
        assert figures.status_code == 200 and "redraft_gateway_in_flight" in figures.text
        assert (await client.get("/healthz")).status_code == 200
        for method, path in REFUSED:
            body = {"model": "pass/tiny", "messages": PROMPT, "input": "a"}
            reply = await client.request(method, path, json=body if method == "POST" else None)
            assert (method, path, reply.status_code) == (method, path, 403)
            message = "key 'prometheus' may only read /metrics: use another key"
            assert message in reply.text and secret not in reply.text
    assert not faults.requests


@pytest.mark.parametrize(
    ("option", "statuses"),
    [
        ("--usd-per-day", (200, 402, 402)),
        ("--usd-per-month", (200, 402, 402)),
        ("--calls-per-day", (402, 402, 402)),
        ("--calls-per-month", (402, 402, 402)),
        ("--requests-per-minute", "x>0"),
        ("--expires-in-days", "x>0"),
    ],
)
async def test_limits_of_0(faults, tmp_path, capsys, option, statuses):
    """0 USD allow what is free: neither a model with a price nor one whose price is unknown. 0 calls
    allow none. Of the other limits 0 is refused, and the range is in the help.
    """
    added = main(["keys", "add", "ci", option, "0", "--folder", str(tmp_path)])
    out, err = capsys.readouterr()
    if isinstance(statuses, str):
        assert added == 2 and statuses in err and out == ""
        return
    faults.says(good("a fine answer"))
    config = config_for(tmp_path, f"{faults.url}#tiny")
    tiny = config.models["tiny"]
    for name, prices in (("free", (0.0, 0.0)), ("unknown", None)):
        config.models[name] = replace(tiny, name=name, prices=prices)
    async with (
        running(config) as (url, _),
        http_client(url, headers={"x-api-key": out.strip()}) as client,
    ):
        replies = [
            await client.post("/chat/completions", json={"model": model, "messages": PROMPT})
            for model in ("pass/free", "pass/tiny", "pass/unknown")
        ]
    assert tuple(reply.status_code for reply in replies) == statuses
    assert len(faults.requests) == statuses.count(200)
