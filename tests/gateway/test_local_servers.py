"""Models in files of this machine, as models of a gateway."""

import asyncio

import pytest

from redraft.errors import ConfigError
from redraft.gateway.config import default_config, parse_config

from .running import http_client, openai_client, running

USER = [{"role": "user", "content": "hello"}]


def config_of(folder, path, **fields):
    """Return a configuration with a local model, and a profile that uses it."""
    tables = {
        "gateway": {"folder": str(folder / "state"), "port": 0},
        "models": {"tiny": {"model": f"local:{path}", **fields}},
        "profiles": {"fast": {"model": "tiny", "judge": "none", "graders": ["words:1-"]}},
    }
    return parse_config(tables, folder, {})


async def test_a_local_model_is_served(gguf_file, tmp_path):
    """It is passed on to, whole and as a stream, refines, counts tokens and costs nothing."""
    (tmp_path / "tiny.gguf").symlink_to(gguf_file)
    async with openai_client(config_of(tmp_path, "tiny.gguf")) as client:
        create = client.chat.completions.create
        for model in ("pass/tiny", "refine/fast"):
            reply = await create(model=model, messages=USER, max_tokens=5)
            assert 0 < reply.usage.completion_tokens <= 5
        stream = await create(model="pass/tiny", messages=USER, max_tokens=5, stream=True)
        assert any([chunk.choices async for chunk in stream])
        raw = await client.chat.completions.with_raw_response.create(
            model="pass/tiny", messages=USER, max_tokens=5
        )
        facts = client.gateway.store.find(raw.headers["x-redraft-trace-id"]).facts
        assert facts.cost == 0.0
        async with http_client(str(client.base_url)) as http:
            counted = await http.post(
                "/messages/count_tokens", json={"model": "pass/tiny", "messages": USER}
            )
        assert counted.json()["input_tokens"] == facts.input_tokens


async def test_its_server_asks_for_a_key_and_ends_with_the_gateway(gguf_file, tmp_path):
    """Nobody else on the machine uses it, and reading the configuration again keeps it."""
    config = config_of(tmp_path, gguf_file, **{"context-window": 512})
    async with running(config) as (url, gateway):
        address = gateway.config.models["tiny"].url
        async with http_client(address) as other:
            body = {"model": "tiny", "messages": USER}
            assert (await other.post("/chat/completions", json=body)).status_code == 401
        await gateway.reload(config)
        assert gateway.config.models["tiny"].url == address
        async with http_client(url) as client:
            body = {"model": "pass/tiny", "messages": USER, "max_tokens": 3}
            assert (await client.post("/chat/completions", json=body)).status_code == 200
            long = {**body, "messages": [{"role": "user", "content": "word " * 600}]}
            assert (await client.post("/chat/completions", json=long)).status_code == 400
    port = int(address.rpartition(":")[2].partition("/")[0])
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", port)


def test_the_model_of_the_command_line(gguf_file):
    """`redraft serve --model local:FILE.gguf` serves it, too."""
    served = default_config(f"local:{gguf_file}", {}).models["default"]
    assert (served.url, served.model) == (f"local:{gguf_file}", gguf_file.stem)


def test_files_that_are_no_models(tmp_path):
    """They are found before the gateway starts, or when it does."""
    with pytest.raises(ConfigError, match=r"models.tiny.*there is no model file"):
        config_of(tmp_path, "none.gguf")


async def test_a_file_that_cannot_be_loaded(tmp_path):
    (tmp_path / "bad.gguf").write_bytes(b"nothing")
    config = config_of(tmp_path, "bad.gguf")
    with pytest.raises(ConfigError, match=r"models.tiny: .*cannot be loaded"):
        async with running(config):
            pass
