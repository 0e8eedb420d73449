"""A gateway in the event loop of a test, and the clients that talk to it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import httpx2
import uvicorn

import vendors
from redraft.gateway.app import Gateway
from redraft.gateway.config import GatewayConfig, Profile, ServedModel
from redraft.gateway.server import GatewayHttpServer, bind_socket, url_of

PROMPT = [{"role": "user", "content": "Say it well."}]


def config_for(folder, url, **changes):
    """Return the configuration of a gateway before one model, with one profile; `changes` are those
    of the profile.
    """
    name = url.partition("#")[2] or "tiny"
    fields = {"graders": ["judge"], **changes}
    models = {"tiny": ServedModel("tiny", url.partition("#")[0], name, prices=(1.0, 2.0))}
    return GatewayConfig(folder, models, {"fast": Profile("fast", "tiny", **fields)}, port=0)


@asynccontextmanager
async def running(config, env={}, telemetry=None):
    """Serve a gateway on a free port; yields its base URL and the gateway."""
    with bind_socket(config.host, 0) as listener:
        async with Gateway(config, env, telemetry) as gateway:
            server: uvicorn.Server = GatewayHttpServer(gateway)
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            try:
                while not server.started:
                    await asyncio.sleep(0.001)
                yield url_of(listener), gateway
            finally:
                server.should_exit = True
                await serving


@asynccontextmanager
async def openai_client(config, key="none", **options):
    """Serve a gateway and yield a client of OpenAI, which retries nothing."""
    async with (
        running(config) as (url, gateway),
        vendors.AsyncOpenAI(base_url=url, api_key=key, max_retries=0, **options) as client,
    ):
        client.gateway = gateway
        yield client


def http_client(url, **options):
    """Return an HTTP client of a gateway, with paths from /v1 on."""
    return httpx2.AsyncClient(base_url=url, timeout=120, **options)


async def wait_until_recorded(gateway):
    """Wait until every request that was answered is counted, which happens after its reply."""
    while gateway._exchanges:
        await asyncio.wait(list(gateway._exchanges))
