"""Servers that echo the key they were sent: in every place, in every encoding, cut to every length. It is kept nowhere."""

from __future__ import annotations

import base64
import json
import logging
import traceback
import tracemalloc
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from redraft.errors import ModelError
from redraft.graders.computed.embedding import Embedder
from redraft.masking import MIN_FRAGMENT, Mask, MaskedStream
from redraft.models import Chat, connect
from redraft.models.openai_batches import BatchClient
from redraft.models.pydantic_ai import ProviderModel

from . import fault_server as fs

KEY = "sk-canary-5f2d9c81e7a6XbQz"
ODD = "pa/ss+w&rd<5f2d>9c81=="  # what JSON, URLs and HTML write in another way


def fragments(secret):
    return {secret[i : i + MIN_FRAGMENT].lower() for i in range(len(secret) - MIN_FRAGMENT + 1)}


def assert_hidden(text, secret=KEY):
    """No fragment of the secret stands in the text."""
    assert not [f for f in fragments(secret) if f in text.lower()], text


def chunked(text, field="content", **end):
    """A stream with an event for each character."""
    return fs.closing(
        fs.sse(*(fs.chunk(**({"text": c} if field == "content" else {field: c})) for c in text), fs.chunk("", "stop"), **end)
    )


def called_in_parts(arguments, name="search"):
    """A stream that calls a tool, with an event for each character of its arguments."""
    parts = [{"name": name, "arguments": ""}, *({"arguments": c} for c in arguments)]
    events = [fs.chunk(tool_calls=[{"index": 0, **({} if n else {"id": "a"}), "function": f}]) for n, f in enumerate(parts)]
    return fs.closing(fs.sse(*events, fs.chunk(finish="tool_calls")))


PLACES = {
    "message": lambda k: fs.error(400, f"wrong key {k} given"),
    "message at the cut": lambda k: fs.error(400, f"{'x' * 289} {k}"),
    "param": lambda k: fs.error(400, "no", param=k, code=f"{k}_code", type=k),
    "code": lambda k: fs.error(429, "", code=k, type=k),
    "detail": lambda k: fs.http({"detail": [{"loc": ["header", k], "msg": k, "input": k}]}, 422),
    "not an error object": lambda k: fs.http([k, {k: k}], 500),
    "plain text": lambda k: fs.http(f"no: {k}".encode(), 401, "text/plain"),
    "page": lambda k: fs.http(f"<html><h1>{k}</h1>{'y' * 250} {k}</html>".encode(), 502, "text/html"),
    "page as answer": lambda k: fs.http(f"<html>{'y ' * 145}{k}</html>".encode(), content_type="text/html"),
    "headers": lambda k: fs.http(b"{}", 429, Retry_After=k, X_Request_Id=k, X_Ratelimit_Reset_Requests=k),
    "content type": lambda k: fs.http(b"{", content_type=f"text/{k}"),
    "encoding": lambda k: fs.http(b"x", Content_Encoding=k),
    "redirect": lambda k: fs.http(b"", 307, Location=f"http://elsewhere/{k}?key={k}"),
    "status line": lambda k: f"HTTP/1.1 400 {k}\r\nContent-Length: 0\r\n\r\n".encode(),
    "no HTTP": lambda k: fs.closing(f"{k} is no status line\r\n\r\n".encode()),
    "error with 200": lambda k: fs.http({"error": {"message": f"{'z' * 290} {k}", "code": k}}),
    "broken JSON": lambda k: fs.http(f'{{"choices": [{{"message": {{"content": "{k}'.encode()),
    "names": lambda k: fs.http({k: k, "object": k}),
    "choice": lambda k: fs.http({"choices": [{k: k}]}),
    "answer": lambda k: fs.good(f"the key is {k}, is it?"),
    "reasoning": lambda k: fs.good("fine", reasoning_content=f"they sent {k}"),
    "thoughts": lambda k: fs.good(f"<think>they sent {k}</think>fine"),
    "finish": lambda k: fs.good("fine", finish=k),
    "refusal": lambda k: fs.good(None, refusal=f"{'w' * 290} {k}"),
    "tool": lambda k: fs.good(None, tool_calls=[{"id": k, "type": "function", "function": {"name": k, "arguments": k}}]),
    "model and usage": lambda k: fs.http(fs.completion() | {"id": k, "model": k, "created": 1, "usage": {"prompt_tokens": k}}),
    "stream": chunked,
    "stream of thoughts": lambda k: chunked(k, "reasoning_content"),
    "stream of refusals": lambda k: chunked(f"{'w' * 290} {k}", "refusal"),
    "stream of a tool's arguments": lambda k: called_in_parts(f'{{"q": "{k}"}}'),
    "stream of a tool's name": lambda k: called_in_parts("{}", k),
    "error in a stream": lambda k: fs.closing(fs.sse(fs.chunk("a"), {"error": {"message": f"{'v' * 290} {k}"}})),
    "event": lambda k: fs.closing(fs.sse(f"event: {k}\ndata: {k}\n\n".encode())),
    "stream that ends": lambda k: fs.closing(fs.sse(fs.chunk(f"so {k}"), done=False)),
}

CLIENTS = {
    "ours": lambda url, key: Chat("m", url, key=key),
    "ours, streaming": lambda url, key: Chat("m", url, key=key, stream=True),
    "ours, key in the URL": lambda url, key: Chat("m", url.replace("://", f"://u:{quote(key, safe='')}@")),
    "ours, key in the query": lambda url, key: Chat("m", f"{url}?sig={quote(key, safe='')}"),
    "ours, key in a header": lambda url, key: Chat("m", url, headers={"x-api-key": key}),
    "pydantic-ai": lambda url, key: ProviderModel(OpenAIChatModel("m", provider=OpenAIProvider(base_url=url, api_key=key))),
}


async def outcome(awaitable):
    """Everything that is said of a call: the answer's or the error's words, representation and traceback."""
    try:
        reply = await awaitable
    except ModelError as error:
        assert error.__cause__ is None
        assert error.__context__ is None
        return "\n".join([str(error), repr(error), repr(vars(error)), *traceback.format_exception(error)])
    return repr(reply)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("place", PLACES)
async def test_an_echoed_key_is_in_no_answer_and_no_error(faults, ask, caplog, place, client):
    """Whole, its beginning, and its end. (All lengths: `test_every_fragment_at_every_place`.)"""
    caplog.set_level(logging.DEBUG)
    model = CLIENTS[client](faults.url, KEY)
    for echoed in (KEY, KEY[:MIN_FRAGMENT], KEY[:-3], KEY[3:]):
        faults.says(PLACES[place](echoed))
        assert_hidden(await outcome(model.complete(ask())))
    assert_hidden(repr(model))
    assert_hidden("\n".join(map(logging.Formatter().format, caplog.records)))


WRITINGS = {
    "as it is": lambda k: k,
    "capitals": str.upper,
    "JSON": lambda k: json.dumps(k)[1:-1],
    "JSON of PHP": lambda k: json.dumps(k)[1:-1].replace("/", "\\/"),
    "JSON of Go": lambda k: k.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"),
    "URL": lambda k: quote(k, safe=""),
    "base64": lambda k: base64.b64encode(k.encode()).decode(),
    "Basic": lambda k: base64.b64encode(f"user:{k}".encode()).decode(),
    "Basic of another user": lambda k: base64.urlsafe_b64encode(f"abc:{k}".encode()).decode(),
    "HTML": lambda k: k.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"),
}


@pytest.mark.parametrize("writing", WRITINGS)
@pytest.mark.parametrize("secret", [KEY, ODD])
async def test_a_key_in_another_writing(faults, ask, secret, writing):
    """As encoders and servers write keys."""
    written = WRITINGS[writing](secret)
    model = Chat("m", faults.url, key=secret)
    for body in (f"you sent {written}", f"{'x' * 280} {written}"):
        faults.says(fs.http(body.encode(), 401, "text/plain"))
        said = await outcome(model.complete(ask()))
        assert_hidden(said, written)
        assert "status 401" in said


@given(st.text(alphabet="ab 1-", max_size=20), st.integers(0, 300), st.data())
def test_every_fragment_at_every_place(around, pad, data):
    """Whatever stands before and after a fragment of a key, it is masked, and nothing else is."""
    start = data.draw(st.integers(0, len(KEY) - MIN_FRAGMENT))
    end = data.draw(st.integers(start + MIN_FRAGMENT, len(KEY)))
    text = f"{'é' * pad}{around}·{KEY[start:end]}·{around}"
    assert Mask([KEY])(text) == f"{'é' * pad}{around}·***·{around}"
    assert Mask([KEY]).mask_bytes(text.encode()).decode() == Mask([KEY])(text)


@given(st.lists(st.integers(1, 9), min_size=1), st.integers(0, len(KEY)))
def test_a_text_in_parts_is_masked_as_a_whole(sizes, length):
    """However a stream is cut, it shows what the whole text shows."""
    text = f"before {KEY[:length]} between {KEY} after sk-cana"
    stream, shown, at = MaskedStream(Mask([KEY])), [], 0
    while at < len(text):
        size = sizes[len(shown) % len(sizes)]
        shown.append(stream.feed(text[at : at + size]))
        at += size
    assert "".join([*shown, stream.flush()]) == Mask([KEY])(text)


@pytest.mark.parametrize("key", ["1234", "token", "ollama", "password", "development", "not-needed", "sk-no-key-required"])
async def test_an_answer_that_holds_a_word_is_not_changed(faults, ask, key):
    """A key that is short, a word or a placeholder is masked in errors at most."""
    text = "1234 tokens for ollama: a password for development is not-needed (sk-no-key-required)"
    model = Chat("m", faults.says(fs.good(text)).url, key=key)
    assert (await model.complete(ask())).text == text


@pytest.mark.parametrize("key", ["password1234", "Development2", "completion1", "function7x", "my-secretkey-1"])
async def test_a_word_in_a_key_is_left_in_answers(faults, ask, key):
    """A key that is a word with a number hides itself: not the word, and no field of the answer."""
    text = "a password, a secretkey, the completion of a function, Development"
    model = Chat("m", faults.says(fs.good(f"{text}: {key}", tool_calls=[fs.call("search")])).url, key=key)
    reply = await model.complete(ask())
    assert reply.text.startswith(text)
    assert key not in reply.text
    assert (reply.usage.output_tokens, reply.tool_calls[0].name) == (3, "search")


async def test_what_is_masked_stays_json(faults, ask):
    """A fragment beside an escape or in a number does not break the body around it."""
    model = Chat("m", faults.says(fs.good("x\n12345678")).url, key="n12345678abc")
    assert (await model.complete(ask())).text == "x\n***"
    faults.says(fs.http({"data": [{"index": 0, "embedding": [0.1234567891, 1.0]}]}))
    assert await Embedder(model).embed(["x"]) == [[0.1234567891, 1.0]]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_key_in_the_arguments_of_a_tool(faults, ask, stream):
    """Whole or spread over many events; what is left is JSON."""
    model, arguments = Chat("m", faults.url, key=KEY, stream=stream), json.dumps({"k": f"a {KEY}"})
    parts = [fs.chunk(tool_calls=[{"index": 0, "id": "c", "function": {"name": "f", "arguments": c}}]) for c in arguments]
    whole = fs.good(None, tool_calls=[fs.call("f", arguments)])
    faults.says(fs.closing(fs.sse(*parts, fs.chunk("", "tool_calls"))) if stream else whole)
    assert (await model.complete(ask())).tool_calls[0].parsed_arguments == {"k": "a ***"}


async def test_a_key_that_dotnet_escapes(faults, ask):
    """Its encoder writes a plus as \\u002B, between runs that are too short to be fragments."""
    key = "a1b2c+d3e4f+g5h6i+j7k8l"
    faults.says(fs.http(json.dumps(fs.completion(key)).replace("+", "\\u002B").encode()))
    assert (await Chat("m", faults.url, key=key).complete(ask())).text == "***"


@pytest.mark.parametrize("field", ["api_key", "password", "client_secret"])
@pytest.mark.parametrize("client", ["ours", "vendor"])
async def test_a_key_among_the_parameters(faults, ask, client, field):
    """A key in `extra_body` is in no identity, answer or error."""
    extra = {"extra_body": {"upstream": [{field: KEY}]}}
    vendor = OpenAIChatModel("m", provider=OpenAIProvider(base_url=faults.url, api_key="k"))
    model = Chat("m", faults.url, **extra) if client == "ours" else ProviderModel(vendor, settings=extra)
    assert_hidden(model.identity)
    for says in (fs.error(400, KEY), fs.http(fs.completion(f"it is {KEY}") | {"model": "m", "created": 1})):
        faults.says(says)
        assert_hidden(await outcome(model.complete(ask())))


async def test_a_short_key_at_the_cut_of_an_error(faults, ask):
    """An error is masked before it is cut, also of keys that answers may hold."""
    faults.says(fs.error(400, f"{'x' * 290} hunterhunt"))
    assert "hunterh" not in await outcome(Chat("m", faults.url, key="hunterhunt").complete(ask()))


def test_a_long_echo_takes_little_memory():
    """A body that is nothing but the key becomes one place to mask, not millions."""
    mask, body = Mask([KEY]), KEY.encode() * 5_000
    tracemalloc.start()
    try:
        assert mask.mask_bytes(body) == b"***"
        assert tracemalloc.get_traced_memory()[1] < 5 * 2**20
    finally:
        tracemalloc.stop()


async def test_what_is_public_of_a_key_is_shown():
    """The beginning that all keys of a vendor have says which kind of key it was."""
    mask = Mask(["sk-proj-5f2d9c81e7a6", "sk-ant-api03-AbCd1234efgh"])
    assert mask("a sk-proj- key, or sk-ant-api03-?") == "a sk-proj- key, or sk-ant-api03-?"
    assert "5f2d" not in mask("sk-proj-5f2d")


async def test_a_stream_that_is_shown_as_it_comes(faults, ask):
    """A key that is spread over many events is masked before any part of it is shown."""
    model = Chat("m", faults.says(chunked(f"a {KEY} b")).url, key=KEY)
    *shown, reply = [piece async for piece in model.stream(ask())]
    assert "".join(shown) == reply.text == "a *** b"


@pytest.mark.parametrize("call", ["models", "look", "answers", "embed", "upload"])
async def test_the_other_calls_of_an_endpoint(faults, call):
    """Lists of models, batches, their files, and embeddings go through the same mask."""
    chat = Chat("m", faults.url, key=KEY)
    batches = BatchClient(chat)

    async def answers():
        return [found async for found in batches.download_results("file")]

    calls = {
        "models": chat.list_models,
        "look": lambda: batches.retrieve("b"),
        "answers": answers,
        "embed": lambda: Embedder(chat).embed(["x"]),
        "upload": lambda: batches.upload([b"{}\n"]),
    }
    line = json.dumps({"custom_id": "1", "response": {"status_code": 200, "body": fs.completion(f"see {KEY}")}})
    for says in (
        fs.error(401, f"{'x' * 290} {KEY}"),
        fs.models(KEY, "fine"),
        fs.http({"id": f"b-{KEY}", "status": KEY, "errors": {"data": [{"message": KEY}]}}),
        fs.http(line.encode()),
        fs.http(f'{{"data": ["{KEY}'.encode()),
    ):
        faults.says(says)
        assert_hidden(await outcome(calls[call]()))


async def test_a_connection_that_breaks_leaves_no_request_behind(ask):
    """What the HTTP client raises holds the request, and that holds the key: our error is raised from nothing."""
    for model in (client("http://127.0.0.1:9/v1", KEY) for client in CLIENTS.values()):
        said = await outcome(model.complete(ask()))
        assert "ModelUnavailableError" in said
        assert_hidden(said)


async def test_a_function_that_shows_a_key_of_the_environment(ask, monkeypatch):
    """What code of the user's raises is masked by what the environment says is a key."""
    monkeypatch.setenv("SOME_VENDOR_API_KEY", KEY)

    def broken(messages):
        raise RuntimeError(f"401: key {KEY} is wrong")

    with pytest.raises(ModelError) as caught:
        await connect(broken).complete(ask())
    assert_hidden(str(caught.value))
