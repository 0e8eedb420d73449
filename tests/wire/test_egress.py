"""Where requests go: addresses and their secrets, proxies, redirects and image addresses, with one
policy for all clients.
"""

from __future__ import annotations

import asyncio
import json
import os
import warnings
from dataclasses import replace
from urllib.parse import unquote, urlsplit

import pytest

import vendors
from each_row import each_row
from redraft import Task
from redraft.base.masking import Mask, secrets_in_environment
from redraft.errors import ConfigError, ModelError, ModelUnavailableError
from redraft.gateway.config import ServedModel
from redraft.gateway.exchange import GatewayError
from redraft.gateway.passing import PassThrough
from redraft.gateway.profile_models import ConnectedModels
from redraft.loop.task import message_text
from redraft.models import Chat, connect, find_model
from redraft.models.discovery import search_address
from redraft.models.endpoint_url import redacted_model_name, redacted_url
from redraft.models.http_client import Timeouts
from redraft.models.openai_batches import BatchClient
from redraft.models.pydantic_ai import ProviderModel
from redraft.models.scoring import connect_embeddings, connect_moderation, connect_scoring
from redraft.protocols import Request
from redraft.requirements.spec import check_foreign_spec
from redraft.tables import infer_columns

from . import fault_server as fs

KEY = "sk-canary-5f2d9c81e7a6"
PW = "pw5f2d9c81"


def by_vendor(url):
    return ProviderModel(
        vendors.OpenAIChatModel("m", provider=vendors.OpenAIProvider(base_url=url, api_key=KEY))
    )


CLIENTS = {
    "ours": lambda url: Chat("m", url, key=KEY),
    "streaming": lambda url: Chat("m", url, key=KEY, stream=True),
    "vendor": by_vendor,
}


@pytest.mark.parametrize("client", CLIENTS)
async def test_redirects_are_not_followed(faults, ask, client):
    """The error names the target without its secrets, and the target receives no request."""
    model = CLIENTS[client](faults.url)
    async with fs.FaultServer() as elsewhere:
        elsewhere.says(fs.good())
        for status in (301, 302, 303, 307, 308):
            faults.says(
                fs.http(b"", status, Location=f"{elsewhere.url}/chat/completions?key={KEY}")
            )
            with pytest.raises(ModelUnavailableError, match="redirects are not followed") as caught:
                await model.complete(ask())
            assert caught.value.status == status
            assert elsewhere.host in str(caught.value)
            assert "?" not in str(caught.value)
        assert elsewhere.requests == []


@pytest.mark.parametrize("client", CLIENTS)
async def test_proxies_of_the_environment_are_not_used(faults, ask, monkeypatch, client):
    """No client, of Redraft or of a vendor, sends a request to HTTP_PROXY."""
    async with fs.FaultServer() as proxy:
        proxy.says(fs.http(fs.completion("from the proxy") | {"model": "m", "created": 1}))
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://u:{PW}@{proxy.host}")
        model = CLIENTS[client](faults.url)
        faults.says(
            fs.sse(fs.chunk("direct", "stop"))
            if client == "streaming"
            else fs.http(fs.completion("direct") | {"model": "m", "created": 1})
        )
        assert (await model.complete(ask())).text == "direct"
        assert proxy.requests == []


@pytest.mark.parametrize("switch", ["url", "env"])
@pytest.mark.parametrize("named", ["http://model.example/v1#m", "deepseek:m"])
async def test_configured_proxy_is_used(ask, monkeypatch, named, switch):
    """REDRAFT_PROXY holds for every named model: a proxy's URL or "env"."""
    monkeypatch.setenv("DEEPSEEK_API_KEY", KEY)
    async with fs.FaultServer() as proxy:
        answer = fs.http(fs.completion("from the proxy") | {"model": "m", "created": 1})
        proxy.says(answer if named.startswith("http") else fs.error(405, "no tunnel"))
        monkeypatch.setenv(
            "REDRAFT_PROXY", proxy.url.removesuffix("/v1") if switch == "url" else "env"
        )
        for name in ("HTTP_PROXY", "HTTPS_PROXY"):
            monkeypatch.setenv(
                name, f"http://{proxy.host}" if switch == "env" else "http://127.0.0.1:9"
            )
        model = connect(named)
        if named.startswith("http"):
            assert (await model.complete(ask())).text == "from the proxy"
        else:  # over https: the proxy is asked for a tunnel, and this one has none
            with pytest.raises(ModelError):
                await model.complete(ask())
            assert [r.method for r in proxy.requests][:1] == ["CONNECT"]
        assert proxy.requests


SERVED = {
    kind: ServedModel("m", "http://models.example/v1", "m", kind)
    for kind in ("openai", "anthropic")
}
HELLO = {"model": "pass/m", "max_tokens": 5, "messages": [{"role": "user", "content": "hello"}]}


def asked(name, env):
    return connect(name, env=env).complete(Request(tuple(HELLO["messages"])))


def scored(client):
    return client.complete(Request((*HELLO["messages"], {"role": "assistant", "content": "hi"})))


def passed_on(kind, env, **fields):
    return PassThrough({"m": SERVED[kind]}, env).forward(
        SERVED[kind], "messages" if kind == "anthropic" else "chat", HELLO | fields
    )


def refined(kind, env):
    return (
        ConnectedModels({"m": SERVED[kind]}, env)
        .model("m")
        .complete(Request(tuple(HELLO["messages"])))
    )


# whatever sends a request to a model that is given by its name or in the configuration of a gateway
REQUESTS = {
    "address": lambda env: asked("http://models.example/v1#m", env),
    "openai": lambda env: asked("openai:m", {**env, "OPENAI_BASE_URL": "http://models.example/v1"}),
    "ollama": lambda env: asked("ollama:m", {**env, "OLLAMA_HOST": "http://models.example"}),
    "list of models": lambda env: connect("http://models.example/v1#m", env=env).list_models(),
    "batch": lambda env: BatchClient(connect("http://models.example/v1#m", env=env)).retrieve("b"),
    "reward model": lambda env: scored(
        connect_scoring("http://models.example/classify#m", env=env)
    ),
    "embeddings": lambda env: scored(connect_embeddings("http://models.example/v1#m")),
    "moderation": lambda env: scored(connect_moderation("http://models.example/v1#m")),
    "search: model": lambda env: find_model(
        {**env, "REDRAFT_MODEL": "http://models.example/v1#m"}, servers=(), search_all=True
    ),
    "search: server": lambda env: find_model(
        {**env, "REDRAFT_MODEL": "http://models.example/v1"}, servers=(), search_all=True
    ),
    "search: openai": lambda env: find_model(
        {**env, "OPENAI_BASE_URL": "http://models.example/v1"}, servers=()
    ),
    "search: ollama": lambda env: find_model({**env, "OLLAMA_HOST": "http://models.example"}),
    "pass/": lambda env: passed_on("openai", env),
    "pass/, a stream": lambda env: passed_on("openai", env, stream=True),
    "pass/, tokens": lambda env: PassThrough({"m": SERVED["openai"]}, env).count_tokens(
        SERVED["openai"], HELLO
    ),
    "pass/ of Anthropic": lambda env: passed_on("anthropic", env),
    "refine/": lambda env: refined("openai", env),
    "refine/ of Anthropic": lambda env: refined("anthropic", env),
}


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize("switch", ["url", "env"])
@pytest.mark.parametrize("kind", REQUESTS)
async def test_every_request_uses_the_configured_proxy(monkeypatch, kind, switch):
    """REDRAFT_PROXY holds for whatever asks a named model, in a command or in the gateway; its
    password is not shown.
    """
    async with fs.FaultServer() as proxy:
        proxy.says(fs.error(404, f"nothing here, {PW}"))
        address = f"http://u:{PW}@{proxy.host}"
        monkeypatch.setenv("REDRAFT_PROXY", address if switch == "url" else "env")
        monkeypatch.setenv("HTTP_PROXY", address if switch == "env" else "http://127.0.0.1:9")
        said = ""
        try:
            said = str(await REQUESTS[kind](dict(os.environ)))
        except (ModelError, GatewayError) as error:
            said = str(error)
        assert proxy.requests
        for request in proxy.requests:
            assert urlsplit(request.path).hostname == "models.example"
            assert request.headers["proxy-authorization"]
        assert PW not in said


async def test_proxy_password_is_masked(ask, monkeypatch):
    """With "env" as well, an echo of the proxy is masked."""
    async with fs.FaultServer() as proxy:
        monkeypatch.setenv("http_proxy", f"http://u:{PW}@{proxy.host}")
        proxy.says(fs.error(407, f"bad {PW}"))
        with pytest.raises(ModelError) as caught:
            await Chat("m", "http://model.example/v1", proxy="env").complete(ask())
    assert PW not in str(caught.value)


@pytest.mark.parametrize("named", ["http://model.example/v1#m", "deepseek:m"])
@pytest.mark.parametrize(
    "proxy", [f"u:{PW}@h:8080", f"socks5://u:{PW}@h", f"http://u:{PW}@h:x", f"//u:{PW}@h"]
)
def test_invalid_proxy_is_rejected_without_its_password(monkeypatch, named, proxy):
    """The error comes before anything is sent, for every client."""
    monkeypatch.setenv("DEEPSEEK_API_KEY", KEY)
    monkeypatch.setenv("REDRAFT_PROXY", proxy)
    with pytest.raises(ConfigError, match="REDRAFT_PROXY") as caught:
        connect(named)
    assert PW not in str(caught.value)


@pytest.mark.parametrize(
    "value", ["2024-05-01-preview", "gpt-4o-mini-2024-07-18", "us-east-1-deployment"]
)
async def test_version_in_an_address_is_no_secret(faults, ask, value):
    """Answers may contain it."""
    model = Chat("m", f"{faults.url}?api-version={value}", key=KEY)
    faults.says(fs.good(f"since {value}"))
    assert (await model.complete(ask())).text == f"since {value}"


@pytest.mark.parametrize(
    "name, value, masked",
    [
        ("AWS_BEARER_TOKEN_BEDROCK", PW, True),
        ("HEROKU_INFERENCE_KEY", PW, True),
        ("GOOGLE_APPLICATION_CREDENTIALS", "/home/ubuntu/key1.json", False),
    ],
)
def test_environment_keys(name, value, masked):
    """Vendors' variables hold keys, and the path of a file is no key."""
    assert (value in set(secrets_in_environment({name: value}))) is masked


ADDRESSES = {
    "http://host?key=K#m": "http://host/v1/chat/completions?key=K",
    "http://host/?key=K#m": "http://host/v1/chat/completions?key=K",
    "http://host/v1?a=1&code=K#m": "http://host/v1/chat/completions?a=1&code=K",
    "http://host/v1/chat/completions?key=K#m": "http://host/v1/chat/completions?key=K",
    "http://host:8080#m": "http://host:8080/v1/chat/completions",
}


@pytest.mark.parametrize("named", ADDRESSES)
def test_query_is_sent_but_not_shown(named):
    """The query of an address goes with every request and appears nowhere."""
    model = connect(named)
    assert model.target.url == ADDRESSES[named]
    assert "K" not in f"{model!r} {model.name} {model.base_url} {model.host} {model.identity}"


def test_endpoints_with_different_queries_differ():
    """A short hash of the query without secrets distinguishes them, and a new key keeps the
    name.
    """
    one, other, again = (
        connect(f"http://host/v1?deployment={d}&sig={k}#m").identity
        for d, k in (("a", "1"), ("b", "1"), ("a", "2"))
    )
    assert one == again != other


WRONG = [
    f"ollama:http://u:{PW}@h/v1#m",
    f"openai:http://u:{PW}@h/v1",
    f"anthropic:https://h/v1?key={PW}#m",
    f"http://h/v1#m?key={PW}",
    f"http://u:{PW}@h/v1",
    f"http://u:a/{PW}@h/v1#m",
    f"http:/u:{PW}@h/v1#m",
    f"u:{PW}@h/v1#m",
    f"h/v1?key={PW}#m",
    f"htp://u:{PW}@h/v1?key={PW}#m",
    f"http://u:{PW}@h:port/v1#m",
]


@pytest.mark.parametrize("named", WRONG)
def test_invalid_address_is_rejected_without_its_secrets(named):
    """The error shows neither password nor query."""
    with pytest.raises(ConfigError) as caught:
        connect(named)
    assert PW not in str(caught.value)


@pytest.mark.parametrize(
    "value",
    [
        f"127.0.0.1:8181/{PW}",
        "h",
        f"u:{PW}@h:8080",
        f"socks5://u:{PW}@h:80",
        f"http://u:{PW}@h:0",
        "http://",
    ],
)
@pytest.mark.parametrize("name", ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY"])
def test_an_invalid_proxy_of_the_environment_is_named(monkeypatch, name, value):
    """With REDRAFT_PROXY=env, a model that would use it is refused when it is named; others are
    not.
    """
    monkeypatch.setenv("REDRAFT_PROXY", "env")
    monkeypatch.setenv(name, value)
    scheme = name.partition("_")[0].lower()
    with pytest.raises(
        ConfigError, match=rf"the proxy in {name} .* write {name}=http\(s\)://"
    ) as caught:
        connect(f"{scheme}://model.example/v1#m")
    assert PW not in str(caught.value)
    with pytest.raises(ConfigError, match=name):
        PassThrough(
            {"m": replace(SERVED["openai"], url=f"{scheme}://model.example/v1")}, dict(os.environ)
        )
    connect(f"{'http' if scheme == 'https' else 'https'}://model.example/v1#m")
    connect(f"{scheme}://127.0.0.1/v1#m")
    monkeypatch.setenv("NO_PROXY", "model.example")
    connect(f"{scheme}://model.example/v1#m")


async def never(writer):
    await asyncio.sleep(60)


PROXY_FAULTS = {  # what a proxy does when it is asked for a tunnel, and what is said
    "refuses": (
        fs.send_and_close(fs.error(404)),
        "no connection through the proxy {host}: it refused with status 404",
    ),
    "asks for a password": (
        fs.send_and_close(fs.error(407)),
        "{host}: it refused with status 407 .its user or password",
    ),
    "closes": (fs.send_and_close(b""), "the connection through the proxy {host} broke"),
    "is none": (
        fs.send_and_close(b"SSH-2.0\r\n\r\n"),
        "the response through the proxy {host} is not HTTP",
    ),
    "says nothing": (never, "no connection through the proxy {host} within"),
    "is not there": (None, "cannot be reached through the proxy {host}: "),
}


@pytest.mark.parametrize("switch", ["url", "env"])
@pytest.mark.parametrize("fault", PROXY_FAULTS)
async def test_errors_on_the_way_name_the_proxy(ask, monkeypatch, fault, switch):
    """Its host and port are named, its password is not, and no hint says to use the proxy that is
    used.
    """
    answer, words = PROXY_FAULTS[fault]
    async with fs.FaultServer() as proxy:
        proxy.says(answer)
        if answer is None:
            proxy.stop_listening()
        address = f"http://user:{PW}@{proxy.host}"
        monkeypatch.setenv("HTTPS_PROXY", address)
        model = Chat(
            "m",
            "https://model.example/v1",
            proxy=address if switch == "url" else "env",
            timeouts=Timeouts(connect=0.5),
        )
        with pytest.raises(ModelError, match=words.format(host=proxy.host)) as caught:
            await model.complete(ask())
    assert PW not in str(caught.value)
    assert "REDRAFT_PROXY" not in str(caught.value)


@pytest.mark.parametrize(
    "url, variable",
    [("https://m.invalid/v1", "HTTPS_PROXY"), ("http://m.invalid/v1", "http_proxy")],
)
async def test_a_proxy_that_is_not_used_is_named_if_a_host_is_out_of_reach(
    ask, closed_url, monkeypatch, url, variable
):
    """The error says how to use it; for a host on this machine, which no setting sends through a
    proxy, it does not.
    """
    monkeypatch.setenv(variable, f"http://u:{PW}@127.0.0.1:9")
    with pytest.raises(
        ModelUnavailableError,
        match=rf"\(the proxy in {variable} is used only with REDRAFT_PROXY=env\)",
    ) as caught:
        await connect(f"{url}#m").complete(ask())
    assert PW not in str(caught.value)
    assert f"(the proxy in {variable} is used only with REDRAFT_PROXY=env)" in str(
        await search_address(url)
    )
    for address, no_proxy in ((closed_url, ""), (url, "m.invalid")):
        monkeypatch.setenv("NO_PROXY", no_proxy)
        with pytest.raises(ModelUnavailableError) as caught:
            await connect(f"{address}#m").complete(ask())
        assert "proxy" not in str(caught.value)


@pytest.mark.parametrize("name", ["REDRAFT_MODEL", "OPENAI_BASE_URL"])
@pytest.mark.parametrize("end", ["", "#m"])
async def test_discovery_shows_no_secret(faults, name, end):
    """Neither the searched addresses nor the reports contain one, whatever the server answers."""
    for answer in (
        fs.models("m"),
        fs.error(401, f"bad {PW}"),
        fs.error(404, f"{'x' * 290} {PW}"),
        fs.http(f"{PW} {{".encode()),
    ):
        faults.says(answer)
        for url in (
            f"{faults.url}?key={PW}",
            f"{faults.url.replace('://', f'://u:{PW}@')}?sig={PW}&code={PW}",
        ):
            found = await find_model(
                {name: url + (end if name == "REDRAFT_MODEL" else "")}, servers=(), search_all=True
            )
            assert PW not in f"{found} {found!r}"


@pytest.mark.parametrize(
    "url, shown",
    [
        ("https://u:p@host:8443/v1/x?key=1#m", "https://host:8443/v1/x"),
        ("http://u:p@ss@host/v1", "http://host/v1"),
        ("http://u:a/b@host/v1", "http://..."),
        ("//u:p@host", "host"),
    ],
)
def test_shown_address(url, shown):
    """It consists of scheme, host, port and path."""
    assert redacted_url(url) == shown


def test_stored_model_name():
    """A trace names endpoint and model without the secrets."""
    assert (
        redacted_model_name("embedding:http://u:p@ss@host/v1?key=K#m")
        == "embedding:http://host/v1#m"
    )
    assert redacted_model_name("hf.co/someone/model:Q4@x") == "hf.co/someone/model:Q4@x"


@pytest.mark.parametrize(
    "host, warned",
    [
        ("models.example.com", True),
        ("8.8.8.8", True),
        ("127.0.0.1", False),
        ("[::1]", False),
        ("10.0.0.3", False),
    ]
    + [("192.168.1.2", False), ("ollama", False), ("gpu.local", False), ("localhost", False)],
)
def test_key_over_plain_http_gives_a_warning(host, warned):
    """The warning names the internet host; without a key, with TLS or for a local host there is
    none.
    """
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        Chat("m", f"http://{host}:8080/v1", key=KEY)
        Chat("m", f"http://{host}:8080/v1")
        Chat("m", f"https://{host}:8080/v1", key=KEY)
    assert [host in str(w.message) and KEY not in str(w.message) for w in seen] == [True] * warned


BAD_IMAGES = [
    "file:///etc/passwd",
    "ftp://h/x.png",
    "gopher://h",
    "javascript:alert(1)",
    "/etc/passwd",
    "pixel.png",
    "//h/x.png",
    "",
]


@each_row("url", BAD_IMAGES)
@each_row("form", ["object", "text", "video"])
def test_image_without_web_address_is_rejected(url, form):
    """The error comes where a task or row is made and names the field, and nothing is fetched."""
    part = {
        "object": {"type": "image_url", "image_url": {"url": url}},
        "text": {"type": "input_image", "image_url": url},
        "video": {"type": "video_url", "video_url": {"url": url}},
    }[form]
    messages = [{"role": "user", "content": [{"type": "text", "text": "see", "url": "x"}, part]}]
    with pytest.raises(ValueError, match=r"messages\[0\]\.content\[1\]\..*http\(s\)"):
        Task(messages)
    row = json.loads(json.dumps({"messages": messages}))
    with pytest.raises(ValueError, match=r"content\[1\]"):
        infer_columns([row], check_requirement=check_foreign_spec).task(row)


def test_web_and_inline_images_are_passed_on():
    """Both are sent unchanged."""
    for url in ("https://h/x.png", "HTTP://h/x.png", "data:image/png;base64,iVBORw0KGgo="):
        task = Task(
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]
        )
        assert message_text(task.messages[0]) == ""


@each_row(
    ("name", "value"),
    [
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20{key}"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "Authorization: Bearer {key}"),
        ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "a=b,x-honeycomb-team={key}"),
        ("OTEL_EXPORTER_OTLP_LOGS_HEADERS", "Bearer {key}"),
        ("OTEL_EXPORTER_OTLP_LOGS_HEADERS", "{key}"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "api-key: {key} x-tenant: acme"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "Authorization: Bearer {key} (prod)"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Basic {key}= x=y"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "{key} api-key"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "api-key%3D{key}%20prod"),
        ("OTEL_RESOURCE_ATTRIBUTES", "service.name=my-service,api.key {key},b"),
        ("OTEL_RESOURCE_ATTRIBUTES", "api.key={key}"),
        ("ANTHROPIC_CUSTOM_HEADERS", "X-One: a\nX-Api-Key: {key}"),
        ("REDRAFT_MODEL", "http://:{key}@127.0.0.1/v1#m"),
        ("REDRAFT_JUDGE", "ollama:http://u:{key}@127.0.0.1:9/v1#m"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "me:{key}@127.0.0.1:4318"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://me:{key}@[::1"),
        ("ALL_PROXY", "socks5://me:{key}@127.0.0.1:1, http://127.0.0.1:2"),
    ],
)
def test_keys_in_headers_and_addresses_of_the_environment(name, value):
    """Where a variable is malformed, its secret is still known."""
    for key in ("5f2d9c81e7a6XbQz", "5f2d9c81%2Be7a6XbQz"):
        mask = Mask(secrets_in_environment({name: value.format(key=key)}))
        assert mask(f"a {key} b {unquote(key)} c") == "a *** b *** c"


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=redraft,content-type=text/plain"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "," * 100_000),
        ("OTEL_EXPORTER_OTLP_HEADERS", " api-key = , Bearer ,:=,tenant acme prod"),
        (
            "OTEL_RESOURCE_ATTRIBUTES",
            "service.name=my-service-of-words,service.instance.id=5f2d9c81e7a6,session.mode=test, bare",
        ),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318/v1"),
        ("REDRAFT_MODEL", "ollama:llama3.2"),
        ("EDITOR", "vi" * 50_000 + "@"),
        ("PATH", ":" * 100_000 + "@"),
        ("MAIL", "me@example.com"),
    ],
)
def test_ordinary_values_are_no_secrets(name, value):
    """A word or an address is shown as it is."""
    assert set(secrets_in_environment({name: value})) == set()
