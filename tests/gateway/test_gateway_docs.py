"""The examples of docs/gateway.md run against a gateway before a real llama.cpp server."""

import ast
import asyncio
import re
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from in_process import run_code
from redraft import gateway
from redraft.gateway import upstream_errors
from redraft.gateway.config import (
    LIMIT_KEYS,
    MODEL_KEYS,
    PLACE_KEYS,
    RETENTION_KEYS,
    default_config,
    load_config,
)
from redraft.gateway.protocols.registry import CLIENTS
from redraft.gateway.server import GatewayServer

PAGE = (Path(__file__).parents[2] / "docs" / "gateway.md").read_text()


def test_the_package_says_what_each_module_is_for():
    """A reader finds the place of each in its docstring, and none that is not there."""
    folder = Path(gateway.__file__).parent
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    named = set(re.findall(r"`([a-z_.]+)`", gateway.__doc__))
    protocols = {name.partition(".")[2] for name in named if name.startswith("protocols.")}
    assert modules == {name for name in named if "." not in name}
    assert protocols <= {path.stem for path in (folder / "protocols").glob("*.py")}


@pytest.fixture(scope="module")
def gateway_url(plain_server, tmp_path_factory):
    """The address of a gateway before that server, in a thread of its own."""
    started, found = threading.Event(), []
    folder = tmp_path_factory.mktemp("gateway")
    server = GatewayServer(
        replace(default_config(plain_server, {}, folder=folder), port=0),
        {},
        say=lambda text: None,
        warn=lambda text: None,
        announce=lambda url, gateway: (
            found.extend((url, asyncio.get_running_loop())),
            started.set(),
        ),
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    assert started.wait(30)
    url, loop = found
    yield url
    loop.call_soon_threadsafe(server.stop)
    thread.join(30)


@pytest.mark.parametrize("code", re.findall(r"^```py\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))
def test_client_examples(code, gateway_url, tmp_path):
    """Each block prints something and ends well."""
    code = code.replace("http://127.0.0.1:8484/v1", gateway_url).replace(
        "http://127.0.0.1:8484", gateway_url.removesuffix("/v1")
    )
    done = run_code(code, cwd=tmp_path)
    assert done.returncode == 0 and done.out.strip(), done.err


def test_the_configuration_is_valid(tmp_path):
    """The file of the page can be read."""
    (tmp_path / "gateway.toml").write_text(
        re.search(r'^```toml title="gateway.toml"\n(.*?)^```', PAGE, re.DOTALL | re.MULTILINE)[1]
    )
    config = load_config(tmp_path / "gateway.toml", {"OPENAI_API_KEY": "sk-test"})
    assert list(config.profiles) == ["fast", "careful"] and config.profiles["careful"].maximum


@pytest.mark.parametrize(
    ("table", "keys"),
    [("models.NAME", MODEL_KEYS), ("gateway", {**PLACE_KEYS, **LIMIT_KEYS, **RETENTION_KEYS})],
)
def test_the_page_lists_every_key(table, keys):
    """Each key that a table of the configuration may have is in the page, and no other."""
    rows = PAGE.partition(f"| key of `[{table}]` |")[2].partition("\n\n")[0].splitlines()[2:]
    assert {key for row in rows for key in re.findall(r"`([^`]+)`", row.split("|")[1])} == set(keys)


def codes_in_source():
    """Return the codes of all errors that the source of the gateway can make, and the expressions
    from which others come.
    """
    codes = set(upstream_errors._CODES.values())
    expressions = set()
    for path in (Path(__file__).parents[2] / "src/redraft/gateway").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Name("GatewayError"), args=[_, ast.Constant(str(code)), *_]):
                    codes.add(code)
                case ast.Call(func=ast.Name("GatewayError"), args=[_, other, *_]):
                    expressions.add(ast.unparse(other))
                case ast.Assign(
                    targets=[ast.Name("code")],
                    value=ast.IfExp(ast.Name() | ast.Call(), ast.Constant(one), ast.Constant(two)),
                ):
                    codes |= {one, two}
                case ast.Tuple([_, ast.Constant(str(code)), ast.Constant(str())]) if (
                    path.name == "upstream_errors.py"
                ):
                    codes.add(code)
    return codes, expressions


def test_the_page_lists_every_code():
    """Each code of an error is in the section, and no other; the codes of models are passed on."""
    section = PAGE.partition("| status | code | when |")[2].partition("Errors have the form")[0]
    table, _, after = section.partition("\n\n")
    listed = {
        code for row in table.splitlines()[2:] for code in re.findall(r"`(\w+)`", row.split("|")[2])
    }
    listed |= set(re.findall(r"`(\w+)`", after))
    codes, expressions = codes_in_source()
    assert listed == codes
    forwarded = {"code", "self.code", "error.code"}
    assert expressions == {*forwarded, "UNKNOWN_PATH_CODE", "_code(status, body, mask)"}
    assert set(CLIENTS) == {"chat", "responses", "messages"}
