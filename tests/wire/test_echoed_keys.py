"""Servers that echo the key they received, in every place, encoding and length: Redraft shows and
stores it nowhere.
"""

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

import vendors
from redraft.base.masking import MIN_FRAGMENT, Mask, MaskedStream
from redraft.errors import ModelError
from redraft.models import Chat, connect
from redraft.models.openai_batches import BatchClient
from redraft.models.pydantic_ai import ProviderModel
from redraft.models.scoring import ScoringModel

from . import fault_server as fs

KEY = "sk-canary-5f2d9c81e7a6XbQz"
ODD = "pa/ss+w&rd<5f2d>9c81=="  # what JSON, URLs and HTML write in another way


def fragments(secret):
    return {secret[i : i + MIN_FRAGMENT].lower() for i in range(len(secret) - MIN_FRAGMENT + 1)}


def assert_hidden(text, secret=KEY):
    """Assert that no fragment of the secret is in the text."""
    assert not [f for f in fragments(secret) if f in text.lower()], text


def stream_of(text, field="content", **end):
    """Return a stream with one event for each character."""
    return fs.send_and_close(
        fs.sse(
            *(fs.chunk(**({"text": c} if field == "content" else {field: c})) for c in text),
            fs.chunk("", "stop"),
            **end,
        )
    )


def tool_call_stream(arguments, name="search"):
    """Return a stream that calls a tool, with one event for each character of its arguments."""
    parts = [{"name": name, "arguments": ""}, *({"arguments": c} for c in arguments)]
    events = [
        fs.chunk(tool_calls=[{"index": 0, **({} if n else {"id": "a"}), "function": f}])
        for n, f in enumerate(parts)
    ]
    return fs.send_and_close(fs.sse(*events, fs.chunk(finish="tool_calls")))


PLACES = {
    "message": lambda k: fs.error(400, f"wrong key {k} given"),
    "message at the cut": lambda k: fs.error(400, f"{'x' * 289} {k}"),
    "param": lambda k: fs.error(400, "no", param=k, code=f"{k}_code", type=k),
    "code": lambda k: fs.error(429, "", code=k, type=k),
    "detail": lambda k: fs.http({"detail": [{"loc": ["header", k], "msg": k, "input": k}]}, 422),
    "not an error object": lambda k: fs.http([k, {k: k}], 500),
    "plain text": lambda k: fs.http(f"no: {k}".encode(), 401, "text/plain"),
    "page": lambda k: fs.http(
        f"<html><h1>{k}</h1>{'y' * 250} {k}</html>".encode(), 502, "text/html"
    ),
    "page as answer": lambda k: fs.http(
        f"<html>{'y ' * 145}{k}</html>".encode(), content_type="text/html"
    ),
    "headers": lambda k: fs.http(
        b"{}", 429, Retry_After=k, X_Request_Id=k, X_Ratelimit_Reset_Requests=k
    ),
    "content type": lambda k: fs.http(b"{", content_type=f"text/{k}"),
    "encoding": lambda k: fs.http(b"x", Content_Encoding=k),
    "redirect": lambda k: fs.http(b"", 307, Location=f"http://elsewhere/{k}?key={k}"),
    "status line": lambda k: f"HTTP/1.1 400 {k}\r\nContent-Length: 0\r\n\r\n".encode(),
    "no HTTP": lambda k: fs.send_and_close(f"{k} is no status line\r\n\r\n".encode()),
    "error with 200": lambda k: fs.http({"error": {"message": f"{'z' * 290} {k}", "code": k}}),
    "broken JSON": lambda k: fs.http(f'{{"choices": [{{"message": {{"content": "{k}'.encode()),
    "names": lambda k: fs.http({k: k, "object": k}),
    "choice": lambda k: fs.http({"choices": [{k: k}]}),
    "answer": lambda k: fs.good(f"the key is {k}, is it?"),
    "reasoning": lambda k: fs.good("fine", reasoning_content=f"they sent {k}"),
    "thoughts": lambda k: fs.good(f"<think>they sent {k}</think>fine"),
    "finish": lambda k: fs.good("fine", finish=k),
    "refusal": lambda k: fs.good(None, refusal=f"{'w' * 290} {k}"),
    "tool": lambda k: fs.good(
        None, tool_calls=[{"id": k, "type": "function", "function": {"name": k, "arguments": k}}]
    ),
    "model and usage": lambda k: fs.http(
        fs.completion() | {"id": k, "model": k, "created": 1, "usage": {"prompt_tokens": k}}
    ),
    "stream": stream_of,
    "stream of thoughts": lambda k: stream_of(k, "reasoning_content"),
    "stream of refusals": lambda k: stream_of(f"{'w' * 290} {k}", "refusal"),
    "stream of a tool's arguments": lambda k: tool_call_stream(f'{{"q": "{k}"}}'),
    "stream of a tool's name": lambda k: tool_call_stream("{}", k),
    "error in a stream": lambda k: fs.send_and_close(
        fs.sse(fs.chunk("a"), {"error": {"message": f"{'v' * 290} {k}"}})
    ),
    "event": lambda k: fs.send_and_close(fs.sse(f"event: {k}\ndata: {k}\n\n".encode())),
    "stream that ends": lambda k: fs.send_and_close(fs.sse(fs.chunk(f"so {k}"), done=False)),
}

CLIENTS = {
    "ours": lambda url, key: Chat("m", url, key=key),
    "ours, streaming": lambda url, key: Chat("m", url, key=key, stream=True),
    "ours, key in the URL": lambda url, key: Chat(
        "m", url.replace("://", f"://u:{quote(key, safe='')}@")
    ),
    "ours, key in the query": lambda url, key: Chat("m", f"{url}?sig={quote(key, safe='')}"),
    "ours, key in a header": lambda url, key: Chat("m", url, headers={"x-api-key": key}),
    "pydantic-ai": lambda url, key: ProviderModel(
        vendors.OpenAIChatModel("m", provider=vendors.OpenAIProvider(base_url=url, api_key=key))
    ),
}


async def outcome(awaitable):
    """Return all texts of a call: the answer's or the error's message, representation and
    traceback.
    """
    try:
        reply = await awaitable
    except ModelError as error:
        assert error.__cause__ is None
        assert error.__context__ is None
        return "\n".join(
            [str(error), repr(error), repr(vars(error)), *traceback.format_exception(error)]
        )
    return repr(reply)


@pytest.mark.slow(but_each=5)
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("place", PLACES)
async def test_echoed_key_is_masked(faults, ask, caplog, place, client):
    """The whole key, its beginning and its end are masked; `test_every_fragment_at_every_place`
    tries all lengths.
    """
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
    "JSON of Go": lambda k: (
        k.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
    ),
    "URL": lambda k: quote(k, safe=""),
    "base64": lambda k: base64.b64encode(k.encode()).decode(),
    "Basic": lambda k: base64.b64encode(f"user:{k}".encode()).decode(),
    "Basic of another user": lambda k: base64.urlsafe_b64encode(f"abc:{k}".encode()).decode(),
    "HTML": lambda k: k.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"),
}


@pytest.mark.parametrize("writing", WRITINGS)
@pytest.mark.parametrize("secret", [KEY, ODD])
async def test_encoded_key_is_masked(faults, ask, secret, writing):
    """Keys are masked as encoders and servers write them."""
    written = WRITINGS[writing](secret)
    model = Chat("m", faults.url, key=secret)
    for body in (f"you sent {written}", f"{'x' * 280} {written}"):
        faults.says(fs.http(body.encode(), 401, "text/plain"))
        shown_text = await outcome(model.complete(ask()))
        assert_hidden(shown_text, written)
        assert "status 401" in shown_text


@given(st.text(alphabet="ab 1-", max_size=20), st.integers(0, 300), st.data())
def test_every_fragment_at_every_place(around, pad, data):
    """A fragment of a key is masked between any texts, and nothing else is."""
    start = data.draw(st.integers(0, len(KEY) - MIN_FRAGMENT))
    end = data.draw(st.integers(start + MIN_FRAGMENT, len(KEY)))
    text = f"{'é' * pad}{around}·{KEY[start:end]}·{around}"
    assert Mask([KEY])(text) == f"{'é' * pad}{around}·***·{around}"
    assert Mask([KEY]).mask_bytes(text.encode()).decode() == Mask([KEY])(text)


@given(st.lists(st.integers(1, 9), min_size=1), st.integers(0, len(KEY)))
def test_streamed_text_is_masked_as_a_whole(sizes, length):
    """Any division of a stream shows what the whole text shows."""
    text = f"before {KEY[:length]} between {KEY} after sk-cana"
    stream, shown, at = MaskedStream(Mask([KEY])), [], 0
    while at < len(text):
        size = sizes[len(shown) % len(sizes)]
        shown.append(stream.feed(text[at : at + size]))
        at += size
    assert "".join([*shown, stream.flush()]) == Mask([KEY])(text)


@pytest.mark.parametrize(
    "key",
    ["1234", "token", "ollama", "password", "development", "not-needed", "sk-no-key-required"],
)
async def test_ordinary_words_in_answers_are_unchanged(faults, ask, key):
    """A key that is short, a word or a placeholder is masked in errors at most."""
    text = "1234 tokens for ollama: a password for development is not-needed (sk-no-key-required)"
    model = Chat("m", faults.says(fs.good(text)).url, key=key)
    assert (await model.complete(ask())).text == text


@pytest.mark.parametrize(
    "key", ["password1234", "Development2", "completion1", "function7x", "my-secretkey-1"]
)
async def test_word_inside_a_key_is_not_masked(faults, ask, key):
    """A key of a word and a number is masked as a whole, without masking the word or a field of the
    answer.
    """
    text = "a password, a secretkey, the completion of a function, Development"
    model = Chat(
        "m", faults.says(fs.good(f"{text}: {key}", tool_calls=[fs.call("search")])).url, key=key
    )
    reply = await model.complete(ask())
    assert reply.text.startswith(text)
    assert key not in reply.text
    assert (reply.usage.output_tokens, reply.tool_calls[0].name) == (3, "search")


async def test_masked_body_stays_valid_json(faults, ask):
    """A fragment beside an escape or in a number does not break the body."""
    model = Chat("m", faults.says(fs.good("x\n12345678")).url, key="n12345678abc")
    assert (await model.complete(ask())).text == "x\n***"
    vectors = [
        {"index": 0, "embedding": [0.1234567891, 0.0]},
        {"index": 1, "embedding": [1.0, 0.0]},
    ]
    faults.says(fs.http({"data": vectors}))
    reply = await ScoringModel(model, "embeddings", "/embeddings").complete(ask())
    assert json.loads(reply.text)["score"] == 1.0


@pytest.mark.parametrize("stream", [False, True])
async def test_key_in_tool_arguments_is_masked(faults, ask, stream):
    """It may be whole or spread over many events, and the rest is valid JSON."""
    model, arguments = Chat("m", faults.url, key=KEY, stream=stream), json.dumps({"k": f"a {KEY}"})
    parts = [
        fs.chunk(tool_calls=[{"index": 0, "id": "c", "function": {"name": "f", "arguments": c}}])
        for c in arguments
    ]
    whole = fs.good(None, tool_calls=[fs.call("f", arguments)])
    faults.says(fs.send_and_close(fs.sse(*parts, fs.chunk("", "tool_calls"))) if stream else whole)
    assert (await model.complete(ask())).tool_calls[0].parsed_arguments == {"k": "a ***"}


async def test_key_escaped_by_dotnet_is_masked(faults, ask):
    r"""Its encoder writes a plus as \u002B between runs that are too short to be fragments."""
    key = "a1b2c+d3e4f+g5h6i+j7k8l"
    faults.says(fs.http(json.dumps(fs.completion(key)).replace("+", "\\u002B").encode()))
    assert (await Chat("m", faults.url, key=key).complete(ask())).text == "***"


@pytest.mark.parametrize("field", ["api_key", "password", "client_secret"])
@pytest.mark.parametrize("client", ["ours", "vendor"])
async def test_key_in_parameters_is_masked(faults, ask, client, field):
    """A key in `extra_body` is in no identity, answer or error."""
    extra = {"extra_body": {"upstream": [{field: KEY}]}}
    vendor = vendors.OpenAIChatModel(
        "m", provider=vendors.OpenAIProvider(base_url=faults.url, api_key="k")
    )
    model = (
        Chat("m", faults.url, **extra)
        if client == "ours"
        else ProviderModel(vendor, settings=extra)
    )
    assert_hidden(model.identity)
    for says in (
        fs.error(400, KEY),
        fs.http(fs.completion(f"it is {KEY}") | {"model": "m", "created": 1}),
    ):
        faults.says(says)
        assert_hidden(await outcome(model.complete(ask())))


async def test_key_at_the_end_of_a_truncated_error_is_masked(faults, ask):
    """An error is masked before it is truncated, also for keys that answers may contain."""
    faults.says(fs.error(400, f"{'x' * 290} hunterhunt"))
    assert "hunterh" not in await outcome(Chat("m", faults.url, key="hunterhunt").complete(ask()))


@pytest.mark.slow
def test_long_echo_uses_little_memory():
    """A body of nothing but keys becomes one masked span, not millions."""
    mask, body = Mask([KEY]), KEY.encode() * 5_000
    tracemalloc.start()
    try:
        assert mask.mask_bytes(body) == b"***"
        assert tracemalloc.get_traced_memory()[1] < 5 * 2**20
    finally:
        tracemalloc.stop()


async def test_public_prefix_of_a_key_is_shown():
    """The prefix common to all keys of a vendor says which kind of key it was."""
    mask = Mask(["sk-proj-5f2d9c81e7a6", "sk-ant-api03-AbCd1234efgh"])
    assert mask("a sk-proj- key, or sk-ant-api03-?") == "a sk-proj- key, or sk-ant-api03-?"
    assert "5f2d" not in mask("sk-proj-5f2d")


async def test_displayed_stream_is_masked(faults, ask):
    """A key spread over many events is masked before any part of it is shown."""
    model = Chat("m", faults.says(stream_of(f"a {KEY} b")).url, key=KEY)
    *shown, reply = [piece async for piece in model.stream(ask())]
    assert "".join(shown) == reply.text == "a *** b"


@pytest.mark.parametrize("call", ["models", "look", "answers", "embed", "upload"])
async def test_other_calls_are_masked(faults, ask, call):
    """Model lists, batches, batch files and embeddings are masked in the same way."""
    chat = Chat("m", faults.url, key=KEY)
    batches = BatchClient(chat)

    async def answers():
        return [found async for found in batches.download_results("file")]

    calls = {
        "models": chat.list_models,
        "look": lambda: batches.retrieve("b"),
        "answers": answers,
        "embed": lambda: ScoringModel(chat, "embeddings", "/embeddings").complete(ask()),
        "upload": lambda: batches.upload([b"{}\n"]),
    }
    line = json.dumps(
        {"custom_id": "1", "response": {"status_code": 200, "body": fs.completion(f"see {KEY}")}}
    )
    for says in (
        fs.error(401, f"{'x' * 290} {KEY}"),
        fs.models(KEY, "fine"),
        fs.http({"id": f"b-{KEY}", "status": KEY, "errors": {"data": [{"message": KEY}]}}),
        fs.http(line.encode()),
        fs.http(f'{{"data": ["{KEY}'.encode()),
    ):
        faults.says(says)
        assert_hidden(await outcome(calls[call]()))


async def test_connection_error_has_no_cause(ask):
    """The HTTP client's exception holds the request with the key, so the error is raised without
    it.
    """
    for model in (client("http://127.0.0.1:9/v1", KEY) for client in CLIENTS.values()):
        shown_text = await outcome(model.complete(ask()))
        assert "ModelUnavailableError" in shown_text
        assert_hidden(shown_text)


async def test_environment_keys_are_masked_in_user_errors(ask, monkeypatch):
    """Exceptions of user code are masked for the keys in the environment."""
    monkeypatch.setenv("SOME_VENDOR_API_KEY", KEY)

    def failing_model(messages):
        raise RuntimeError(f"401: key {KEY} is wrong")

    with pytest.raises(ModelError) as caught:
        await connect(failing_model).complete(ask())
    assert_hidden(str(caught.value))
