"""Clients and models of other packages: those of openai, LangChain and pydantic-ai, against
llama.cpp and against faults.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from functools import cache
from typing import Any

import pytest

import redraft
import vendors
from redraft.errors import (
    AuthenticationError,
    BadResponseError,
    ConfigError,
    ContentFilterError,
    ContextLengthError,
    ModelError,
    ModelUnavailableError,
    RateLimitError,
)
from redraft.protocols import Request
from redraft.usage import Usage

from . import fault_server as fs

CANARY = "sk-canary-0123456789"
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {
        "name": "find",
        "description": "Find.",
        "parameters": {"type": "object", "properties": {"q": {"type": "string"}}},
    },
}


OPEN_CLIENTS = []


@pytest.fixture(autouse=True)
def close_clients():
    """Close the connections of synchronous clients at the end of each test, and not whenever they
    are collected.
    """
    yield
    while OPEN_CLIENTS:
        OPEN_CLIENTS.pop().close()


def given_clients(url, key, name):
    """Return what a user may hand in, by kind."""
    client, chain = (
        vendors.openai.OpenAI(base_url=url, api_key=key),
        vendors.ChatOpenAI(model=name, base_url=url, api_key=key),
    )
    OPEN_CLIENTS.extend([client, chain.root_client])
    return {
        "openai": (client, name),
        "openai async": (vendors.openai.AsyncOpenAI(base_url=url, api_key=key), name),
        "langchain": chain,
        "pydantic-ai": vendors.OpenAIChatModel(
            name, provider=vendors.OpenAIProvider(base_url=url, api_key=key)
        ),
    }


KINDS = ("openai", "openai async", "langchain", "pydantic-ai")


@pytest.mark.slow(but_each=4)
@pytest.mark.parametrize("kind", KINDS)
def test_a_client_writes_and_judges_in_many_event_loops(real, kind):
    """Usage is that of the server, and every `refine_sync` has an event loop of its own (warnings
    are errors here).
    """
    client = given_clients(real.url, real.key, real.name)[kind]

    async def asks(text, model):
        return float(
            bool(
                (
                    await model.complete(Request(({"role": "user", "content": "hello"},), 0.0, 10))
                ).text
            )
        )

    for _ in range(2):
        result = redraft.refine_sync(
            "hello", client, asks, client, max_tokens=20, temperature=0.0, timeout=60
        )
        assert (result.judge_score, result.usage.calls) == (1.0, 2)
        assert 2 <= result.usage.output_tokens <= 30


@pytest.mark.parametrize("kind", KINDS)
async def test_a_schema_is_enforced_and_parameters_are_sent(real, ask, kind):
    """The server holds the answer to the schema; the same seed gives the same answer."""
    model = redraft.connect(given_clients(real.url, real.key, real.name)[kind])
    reply = await model.complete(ask(max_tokens=200, schema=SCHEMA, format="json_schema"))
    assert isinstance(json.loads(reply.text)["ok"], bool)
    one, two = [await model.complete(ask(max_tokens=5, temperature=1.0, seed=5)) for _ in range(2)]
    assert one.text == two.text
    assert one.finish_reason == "length"


FAULTS = {
    "401": (fs.error(401, f"bad key {CANARY[:9]}"), AuthenticationError, False),
    "quota": (fs.error(429, "quota", code="insufficient_quota"), AuthenticationError, False),
    "404": (fs.error(404), ModelUnavailableError, False),
    "400": (fs.error(400, f"bad {CANARY}"), ModelError, False),
    "context": (fs.error(400, "no", code="context_length_exceeded"), ContextLengthError, False),
    "429": (fs.error(429, "slow", headers={"Retry-After": "7"}), RateLimitError, True),
    "500": (fs.error(500, CANARY), ModelUnavailableError, True),
    "reset": (fs.cut(b"", 0, reset=True), ModelUnavailableError, True),
    "web page": (
        fs.http(f"<html>{CANARY}</html>".encode(), 200, "text/html"),
        BadResponseError,
        True,
    ),
    "null": (fs.http(None), BadResponseError, True),
    "no choices": (fs.http({"id": "x", "object": "chat.completion"}), BadResponseError, True),
}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("kind", KINDS[:2])
@pytest.mark.slow(but_each=2)
async def test_faults_of_openai_clients_are_translated(faults, ask, kind, name):
    """Each has the class that it has for Redraft's own client, after one request, and shows no
    key.
    """
    does, error_class, retryable = FAULTS[name]
    model = redraft.connect(given_clients(faults.says(does).url, CANARY, "m")[kind])
    with pytest.raises(ModelError) as caught:
        await model.complete(ask())
    error = caught.value
    assert (type(error), error.retryable) == (error_class, retryable)
    assert error.retry_after == (7.0 if name == "429" else None)
    assert len(faults.requests) == 1
    assert CANARY not in f"{error!r}"
    assert error.__cause__ is error.__context__ is None


@pytest.mark.parametrize(
    "name", [name for name in FAULTS if name not in {"web page", "null", "no choices"}]
)
@pytest.mark.slow(but_each=2)
async def test_faults_of_langchain_models_are_translated(faults, ask, name):
    """LangChain's own retries are off, and the status and the headers are read from the exception
    of the vendor's package.
    """
    does, error_class, retryable = FAULTS[name]
    model = redraft.connect(given_clients(faults.says(does).url, CANARY, "m")["langchain"])
    with pytest.raises(ModelError) as caught:
        await model.complete(ask())
    error = caught.value
    assert (type(error), error.retryable) == (error_class, retryable)
    assert error.retry_after == (7.0 if name == "429" else None)
    assert len(faults.requests) == 1
    assert CANARY not in f"{error!r}"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_closed_port_costs_no_call(closed_url, kind):
    """The connection failed, so nothing was sent and nothing is unknown."""
    client = given_clients(closed_url, CANARY, "m")[kind]
    with pytest.raises(ModelUnavailableError) as caught:
        await redraft.refine("q", client, lambda text: 1.0, retries=0)
    assert caught.value.usage == Usage()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_silent_server_is_left_at_the_timeout(faults, kind):
    """The call ends within the timeout, also that of a synchronous client in its thread."""
    client = given_clients(faults.says(fs.silence).url, CANARY, "m")[kind]
    started = time.monotonic()
    with pytest.raises(ModelError, match="no answer"):
        await redraft.refine("q", client, lambda text: 1.0, retries=0, timeout=0.3)
    assert time.monotonic() - started < 30  # the server never answers


@pytest.mark.slow
def test_a_cancelled_call_of_a_synchronous_client_does_not_keep_the_program(closed_url):
    """The program ends although the client still waits in its thread."""
    program = """
import asyncio, socket, time, openai, redraft
server = socket.create_server(("127.0.0.1", 0))
client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.getsockname()[1]}/v1", api_key="k")
async def main():
    try:
        await asyncio.wait_for(redraft.refine("q", (client, "m"), "uppercase"), 0.3)
    except TimeoutError:
        print("ended")
asyncio.run(main())
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False
    )  # it waits 600 s
    assert (ended.stdout.strip(), ended.returncode) == ("ended", 0), ended.stderr


@pytest.mark.parametrize("kind", [KINDS[0], KINDS[2]])
async def test_tools_are_sent_and_tool_calls_are_read(faults, kind):
    """A task's tools reach the endpoint in OpenAI's form, and the calls come back with their
    IDs.
    """
    call = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"q": "x"}'}}
    answer = {
        "choices": [
            {
                "message": {"role": "assistant", "content": None, "tool_calls": [call]},
                "finish_reason": "tool_calls",
            }
        ]
    }
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    client = given_clients(
        faults.says(fs.http({"id": "x", "model": "m", **answer, "usage": usage})).url, CANARY, "m"
    )[kind]
    result = await redraft.refine(
        redraft.Task("q", tools=[TOOL]), client, lambda text: 1.0, retries=0
    )
    assert [(each.name, each.arguments, each.id) for each in result.tool_calls] == [
        ("find", '{"q": "x"}', "c1")
    ]
    sent = faults.requests[0].body
    assert sent["tools"][0]["function"]["name"] == "find"
    assert (result.usage.input_tokens, result.usage.output_tokens) == (3, 2)


# ---- what is recorded


def test_identities_have_no_key_and_tell_settings_apart():
    """They name class, endpoint, model and parameters, so that caches and resumed runs notice a
    change.
    """
    url = f"http://user:{CANARY}@127.0.0.1:9/v1"
    one = {
        kind: redraft.connect(client) for kind, client in given_clients(url, CANARY, "m").items()
    }
    again = {
        kind: redraft.connect(client)
        for kind, client in given_clients(url, "sk-other-0123456789", "m").items()
    }
    others = {
        kind: redraft.connect(client)
        for kind, client in given_clients("http://127.0.0.1:8/v1", CANARY, "m").items()
    }
    for kind, model in one.items():
        assert (
            CANARY not in f"{model.identity}{model.name}{model!r}{getattr(model, 'base_url', '')}"
        )
        assert model.identity == again[kind].identity != others[kind].identity
        assert "127.0.0.1:9" in model.identity
    chat = vendors.ChatOpenAI(model="m", base_url=url, api_key=CANARY, temperature=0.5)
    assert redraft.connect(chat).identity != one["langchain"].identity
    assert redraft.connect(chat.bind(stop=["x"])).identity != redraft.connect(chat).identity
    assert redraft.connect(one["openai"]) is one["openai"]


def test_models_that_cannot_be_described_are_never_taken_for_each_other():
    """A model with an iterator or a function in it has an identity of its own."""
    models = [
        *(vendors.GenericFakeChatModel(messages=iter(["a"])) for _ in range(2)),
        *(vendors.FunctionModel(lambda messages, info: None) for _ in range(2)),
    ]
    assert len({redraft.connect(model).identity for model in models}) == 4


def test_azure_clients_have_their_endpoint_and_version():
    """The deployment is the name of the model."""
    options = {"azure_endpoint": "https://res.openai.azure.com", "api_key": CANARY}
    one, other = (
        redraft.connect((vendors.openai.AzureOpenAI(api_version=v, **options), "gpt-4o"))
        for v in ("2024-10-21", "2025-01-01")
    )
    assert one.identity != other.identity
    assert "res.openai.azure.com" in one.identity
    assert CANARY not in one.identity


async def test_azure_clients_call_the_deployment(faults, ask):
    """The client chooses the path; Redraft sends the body."""
    client = vendors.openai.AsyncAzureOpenAI(
        azure_endpoint=f"http://{faults.host}", api_key=CANARY, api_version="2024-10-21"
    )
    faults.says(fs.http({"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]}))
    reply = await redraft.connect(client, model="dep").complete(ask(max_tokens=5))
    assert (reply.text, reply.usage.output_tokens) == ("hi", None)
    assert (
        faults.requests[0].path == "/openai/deployments/dep/chat/completions?api-version=2024-10-21"
    )


def test_a_client_without_the_name_of_a_model_is_an_error():
    """The error says how to name one."""
    for given in (
        vendors.openai.OpenAI(api_key=CANARY),
        vendors.openai.AsyncOpenAI(api_key=CANARY),
    ):
        with pytest.raises(ConfigError, match=r"model=\(client, 'gpt-4o-mini'\)"):
            redraft.connect(given)


# ---- LangChain and pydantic-ai without a network


@cache
def scripted_class():
    class Scripted(vendors.BaseChatModel):
        """A chat model of LangChain that gives one message, or raises."""

        message: Any = None
        temperature: float | None = None
        seen: list = []

        @property
        def _llm_type(self):
            return "scripted"

        def _generate(self, messages, stop=None, run_manager=None, **kwargs):
            self.seen.append((messages, self.temperature, kwargs))
            if self.message is None:
                raise RuntimeError("broken")
            return vendors.ChatResult(generations=[vendors.ChatGeneration(message=self.message)])

    return Scripted


def langchain_model(content="fine", **fields):
    """Return the model for a message of LangChain, and the requests to it."""
    seen = []
    return redraft.connect(
        scripted_class()(message=vendors.AIMessage(content=content, **fields), seen=seen)
    ), seen


async def test_messages_of_langchain(ask):
    """Roles, tool calls and tool results become LangChain's messages, and the temperature is set on
    a copy.
    """
    model, _ = langchain_model()
    call = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": "{}"}}
    messages = (
        {"role": "system", "content": "brief"},
        {"role": "user", "content": "hello \ud800"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "found"},
    )
    given = model._model
    await model.complete(Request(messages, temperature=0.5))
    ((sent, temperature, _),) = given.seen
    assert [(m.type, m.content) for m in sent] == [
        ("system", "brief"),
        ("human", "hello \ufffd"),
        ("ai", ""),
        ("tool", "found"),
    ]
    assert (sent[2].tool_calls[0]["name"], sent[3].tool_call_id) == ("find", "c1")
    assert (temperature, given.temperature) == (0.5, None)


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"finish_reason": "length"}, "length"),
        ({"stop_reason": "max_tokens"}, "length"),
        ({"stop_reason": "end_turn"}, "stop"),
        ({"finish_reason": "MAX_TOKENS"}, "length"),
        ({"done_reason": "stop"}, "stop"),
        ({"stopReason": "tool_use"}, "tool_calls"),
        ({}, None),
    ],
)
async def test_finish_reasons_of_vendors(ask, metadata, expected):
    """They have OpenAI's names; a missing one is unknown."""
    model, _ = langchain_model(response_metadata=metadata)
    assert (await model.complete(ask())).finish_reason == expected


async def test_answers_of_langchain(ask):
    """Text, reasoning and usage are read from every form; unknown usage is None."""
    parts = [{"type": "thinking", "thinking": "hm"}, "fi", {"type": "text", "text": "ne"}]
    counts = {"input_tokens": 7, "output_tokens": 3, "total_tokens": 10}
    reply = await langchain_model(parts, usage_metadata=counts)[0].complete(ask())
    assert (reply.text, reply.reasoning, reply.usage) == ("fine", "hm", Usage(1, 7, 3, cost=None))
    assert (await langchain_model()[0].complete(ask())).usage == Usage(1, None, None, cost=None)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "code_interpreter_output", "text": "LOG"},
        {"type": "search_result", "text": "found"},
        {"type": "image", "text": "a caption"},
        {"type": "reasoning", "reasoning": {"summary": []}},
    ],
    ids=lambda part: part["type"],
)
async def test_other_parts_of_langchain_are_no_text_of_the_answer(ask, part):
    reply = await langchain_model([part, {"type": "text", "text": "fine"}])[0].complete(ask())
    assert (reply.text, reply.reasoning) == ("fine", None)


@pytest.mark.parametrize(
    ("content", "fields", "kind"),
    [
        ("", {}, BadResponseError),
        ("half", {"response_metadata": {"finish_reason": "SAFETY"}}, ContentFilterError),
        ("", {"additional_kwargs": {"refusal": "no"}}, ContentFilterError),
        (
            "",
            {"invalid_tool_calls": [{"name": "f", "args": "{q", "id": "1", "error": ""}]},
            BadResponseError,
        ),
    ],
)
async def test_invalid_answers_of_langchain_are_errors(ask, content, fields, kind):
    """Empty answers, refusals and tool calls that are no JSON are errors."""
    with pytest.raises(kind):
        await langchain_model(content, **fields)[0].complete(ask())


async def test_errors_of_a_chat_model_are_failures_of_the_model(ask):
    """An exception of a model of your own is a ModelError, and a task with tools that it does not
    take a ConfigError.
    """
    with pytest.raises(ModelError, match="RuntimeError: broken"):
        await redraft.connect(scripted_class()()).complete(ask())
    with pytest.raises(ConfigError, match="does not support them"):
        await redraft.connect(scripted_class()()).complete(ask(tools=(TOOL,)))


def test_other_objects_of_langchain_are_refused():
    """A chain is no chat model; retries are removed, and a list replaces fallbacks."""
    chat = vendors.FakeListChatModel(responses=["one", "three"])
    for wrong in (vendors.RunnableLambda(str), chat | str, chat.with_fallbacks([chat])):
        with pytest.raises(ConfigError, match="a model can be a chat model"):
            redraft.connect(wrong)
    assert redraft.refine_sync("q", chat.with_retry(), "contains:three").value == "three"


def test_models_of_pydantic_ai():
    """Its test models are models, too."""
    result = redraft.refine_sync(
        "q", vendors.TestModel(custom_output_text="three"), "contains:three"
    )
    assert (result.value, result.trace.best.by) == ("three", "test:test")


def test_lists_mix_names_and_clients(closed_url):
    """Each alternative has any form that `connect` takes."""
    first = (vendors.openai.AsyncOpenAI(base_url=closed_url, api_key=CANARY), "m")
    result = redraft.refine_sync(
        "q", [first, vendors.FakeListChatModel(responses=["three"])], "contains:three", retries=0
    )
    assert result.trace.best.by == "FakeListChatModel"
    assert result.trace.best.note.startswith(
        "m did not answer: ModelUnavailableError: m at 127.0.0.1:"
    )
    assert "cannot be reached" in result.trace.best.note


def test_nothing_is_imported_that_was_not_handed_in():
    """Connecting a name or a function loads no package of another client."""
    program = "import sys, redraft; redraft.connect('ollama:a'); redraft.connect(print); print(sorted(set(sys.modules) & set(sys.argv)))"
    packages = ["openai", "langchain_core", "pydantic_ai", "litellm"]
    ended = subprocess.run(
        [sys.executable, "-c", program, *packages], capture_output=True, text=True, check=True
    )
    assert ended.stdout.strip() == "[]"


def test_cancelling_reaches_an_asynchronous_client():
    """`asyncio.timeout` ends a call at once."""

    async def slow(messages, info):
        await asyncio.Event().wait()

    async def run():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await redraft.connect(vendors.FunctionModel(slow)).complete(
                    Request(({"role": "user", "content": "q"},))
                )

    asyncio.run(run())
