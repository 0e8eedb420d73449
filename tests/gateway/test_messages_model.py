"""Refined answers of a model that speaks Anthropic's protocol: what it is sent, what it answers, and
what goes wrong, over HTTP.
"""

import json
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest
from chat_server import verdict
from fault_server import http, silence
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from redraft.gateway.config import GatewayConfig, Profile, ServedModel
from redraft.gateway.keys import KeyLimits, KeyRing
from redraft.gateway.messages_model import ClientRequest, MessagesModel, turns_of
from redraft.gateway.passing import Upstream
from redraft.gateway.protocols.chat_messages import write_messages
from redraft.gateway.protocols.registry import CLIENTS, MODELS

from .running import http_client, running

SECRET = "sk-canary-4711-0815-abcdef"
USER = {"role": "user", "content": "Look it up, and say it well."}
CACHED = {"type": "ephemeral"}
TOOL = {"name": "look_up", "input_schema": {"type": "object"}, "cache_control": CACHED}
THOUGHT = {"type": "thinking", "thinking": "I look it up.", "signature": "c2lnbmVk"}
CALLS = [
    {"type": "tool_use", "id": "toolu_1", "name": "look_up", "input": {"q": "a"}},
    {"type": "tool_use", "id": "toolu_2", "name": "look_up", "input": {}},
]
USAGE = {
    "input_tokens": 10,
    "cache_read_input_tokens": 100,
    "cache_creation_input_tokens": 1000,
    "output_tokens": 5,
}


def message(*blocks, stop="end_turn", **fields):
    """Return the response of a model: texts are blocks, too."""
    content = [{"type": "text", "text": b} if isinstance(b, str) else b for b in blocks]
    return http(
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "claude",
            "content": content,
            "stop_reason": stop,
            "stop_sequence": None,
            "usage": USAGE,
            **fields,
        }
    )


def refusal_of_server(status, text="no", kind="invalid_request_error"):
    return http({"type": "error", "error": {"type": kind, "message": text}}, status)


def config_of(folder, faults, *, kind="anthropic", served={}, **profile):
    """Return the configuration of a gateway before one model, with a requirement that grades."""
    fields = {"graders": ["words:1-5"], "settings": {"max_iterations": 1, "retries": 0}, **profile}
    model = ServedModel("big", faults.url, "claude", kind, prices=(1.0, 2.0), **served)
    return GatewayConfig(folder, {"big": model}, {"fast": Profile("fast", "big", **fields)}, port=0)


async def ask(config, body, path="/messages", env={}, headers={}):
    """Return the reply to a request to the profile."""
    asked = {"model": "refine/fast", "max_tokens": 500, **body}
    async with running(config, env) as (url, _), http_client(url) as client:
        return await client.post(path, json=asked, headers=headers)


def sent(faults):
    """Return the bodies that the model received."""
    return [request.body for request in faults.requests]


HISTORY = [
    {"role": "user", "content": [{"type": "text", "text": "Find it.", "cache_control": CACHED}]},
    {"role": "assistant", "content": [THOUGHT, {"type": "text", "text": "Now."}, *CALLS]},
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "toolu_2", "content": "2", "is_error": True},
            {
                "type": "tool_result",
                "tool_use_id": "toolu_1",
                "content": [{"type": "text", "text": "1"}],
                "cache_control": CACHED,
            },
        ],
    },
]
CLIENT_FIELDS = {
    "system": [{"type": "text", "text": "Be good.", "cache_control": CACHED}],
    "tools": [TOOL],
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "max_tokens": 4000,
    "metadata": {"user_id": "user-4711"},
    "context_management": {"edits": []},
    "some_beta": {"on": True},
}


async def test_what_the_client_sent_reaches_the_model(faults, tmp_path):
    """In drafts and in refinements: signed thinking, marks for the cache, results of tools in their
    order, its own fields and the betas that it asks for.
    """
    faults.says(message("one two three four five six"), message("one two"))
    reply = await ask(
        config_of(tmp_path, faults),
        {"messages": HISTORY, **CLIENT_FIELDS},
        headers={"anthropic-beta": "some-beta-2026-01-01"},
    )
    assert reply.json()["content"] == [{"type": "text", "text": "one two"}]
    draft, refinement = sent(faults)
    for body in (draft, refinement):
        assert body["messages"][:3] == HISTORY
        assert {name: body[name] for name in CLIENT_FIELDS} == CLIENT_FIELDS
        assert "redraft" not in body and body["model"] == "claude"
    assert draft.get("tool_choice") is None and refinement["tool_choice"] == {"type": "none"}
    assert [m["role"] for m in refinement["messages"][3:]] == ["assistant", "user"]
    assert all(
        request.headers["anthropic-beta"] == "some-beta-2026-01-01" for request in faults.requests
    )
    assert "x-redraft-ignored" not in reply.headers


async def test_a_demand_leaves_the_blocks_of_the_last_message(faults, tmp_path):
    """Where the core adds a paragraph to what the user asks, the rest is still what it was."""
    faults.says(message("one two"))
    block = {"type": "text", "text": "Say it.", "cache_control": CACHED}
    body = {"messages": [{"role": "user", "content": [block]}]}
    await ask(config_of(tmp_path, faults), body | {"redraft": {"requirements": ["words:1-3"]}})
    (asked,) = sent(faults)
    (said,) = asked["messages"]
    assert said["content"][0] == block and "3 words" in said["content"][1]["text"]


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_turn_that_calls_tools_goes_back_as_written(faults, tmp_path, is_stream):
    """Its thinking with the signature, its text, parallel calls in their order, and the tokens."""
    faults.says(message(THOUGHT, "I look.", *CALLS, stop="tool_use"))
    body = {"messages": [USER], **CLIENT_FIELDS, "stream": is_stream}
    reply = await ask(config_of(tmp_path, faults), body)
    assert len(faults.requests) == 1
    if is_stream:
        events = [json.loads(line[6:]) for line in reply.text.splitlines() if line[:6] == "data: "]
        blocks = [e["content_block"] for e in events if e["type"] == "content_block_start"]
        deltas = [e["delta"] for e in events if e["type"] == "content_block_delta"]
        assert [block["type"] for block in blocks] == ["thinking", "text", "tool_use", "tool_use"]
        assert [block["id"] for block in blocks[2:]] == ["toolu_1", "toolu_2"]
        assert {"type": "signature_delta", "signature": THOUGHT["signature"]} in deltas
        end = next(event for event in events if event["type"] == "message_delta")
        stop, usage = end["delta"]["stop_reason"], end["usage"]
    else:
        assert reply.json()["content"] == [THOUGHT, {"type": "text", "text": "I look."}, *CALLS]
        stop, usage = reply.json()["stop_reason"], reply.json()["usage"]
    assert stop == "tool_use" and {name: usage[name] for name in USAGE} == USAGE


async def test_the_best_of_several_calls_keeps_its_own_thinking(faults, tmp_path):
    """Each candidate has its own blocks, and the chosen one comes back with them."""
    thoughts = [{**THOUGHT, "signature": f"signed{n}"} for n in range(2)]
    calls = [{**CALLS[0], "id": f"toolu_{n}", "input": {"n": n}} for n in range(2)]
    answers = iter(zip(thoughts, calls, strict=True))
    faults.says(lambda _: message(*next(answers), stop="tool_use"))

    class Latest:
        name, model_free, reads_tool_calls = "latest", True, True

        async def grade(self, task, candidate, ask):
            from redraft import Feedback

            return Feedback(0.1 + 0.5 * json.loads(candidate.tool_calls[0].arguments)["n"], "n")

    config = config_of(tmp_path, faults, graders=[Latest()], candidates=2)
    reply = await ask(config, {"messages": [USER], **CLIENT_FIELDS})
    (thought, call) = reply.json()["content"]
    assert call["input"] == {"n": 1} and reply.json()["usage"]["redraft"]["score"] == 0.6
    assert thought["signature"] == f"signed{[c['id'] for c in calls].index(call['id'])}"


PROVIDER_TOOLS = [
    {"type": "web_search_20250305", "name": "web_search", "max_uses": 2},
    {"type": "computer_20251124", "name": "computer"},
]


async def test_tools_that_only_the_provider_knows(faults, tmp_path):
    """A model of the same protocol gets them and may call them; one of another gets the rest, and
    the reply names them.
    """
    call = {"type": "tool_use", "id": "toolu_1", "name": "computer", "input": {"action": "key"}}
    faults.says(message(call, stop="tool_use"))
    body = {"messages": [USER], "tools": [*PROVIDER_TOOLS, TOOL]}
    reply = await ask(config_of(tmp_path / "a", faults), body)
    assert reply.json()["content"] == [call] and sent(faults)[0]["tools"] == body["tools"]
    faults.says(
        http({"choices": [{"index": 0, "finish_reason": "stop", "message": {"content": "one"}}]})
    )
    faults.requests.clear()
    reply = await ask(config_of(tmp_path / "b", faults, kind="openai"), body)
    assert [tool["function"]["name"] for tool in sent(faults)[0]["tools"]] == ["look_up"]
    ignored = reply.headers["x-redraft-ignored"]
    assert "tools[0] (web_search)" in ignored and "tools[1] (computer)" in ignored
    forced = body | {"tool_choice": {"type": "tool", "name": "computer"}}
    assert (await ask(config_of(tmp_path / "c", faults, kind="openai"), forced)).status_code == 400


# ---- schemas

SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
NO_FORMAT = refusal_of_server(400, "output_config.format: Extra inputs are not permitted")
ASKED = {
    "/chat/completions": {"messages": [USER], "response_format": FORM},
    "/responses": {
        "input": "n?",
        "text": {"format": {"type": "json_schema", "name": "answer", "schema": SCHEMA}},
    },
    "/messages": {
        "messages": [USER],
        "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
    },
}


def text_of(path, data):
    if path == "/chat/completions":
        return data["choices"][0]["message"]["content"]
    blocks = data["content"] if path == "/messages" else data["output"][-1]["content"]
    return blocks[-1]["text"]


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("path", ASKED)
async def test_a_schema_reaches_the_model_in_its_own_form(faults, tmp_path, path):
    """Whatever the protocol of the client; a server that knows no such format is made to call a
    tool, and one that knows no such tool is told in words.
    """
    answer = '{"n": 5}'
    config = config_of(tmp_path, faults, graders=["answered"], settings={"max_iterations": 0})
    faults.says(message(answer))
    body = ASKED[path]
    assert text_of(path, (await ask(config, body, path)).json()) == answer
    (said,) = sent(faults)
    assert said["output_config"]["format"]["schema"]["required"] == ["n"] and "tools" not in said

    faults.requests.clear()

    def called(request):
        tool = request.body["tools"][-1]["name"]
        return message(
            {"type": "tool_use", "id": "toolu_1", "name": tool, "input": {"n": 5}}, stop="tool_use"
        )

    faults.says(NO_FORMAT, called)
    reply = await ask(replace(config, folder=tmp_path / "2"), body, path)
    assert json.loads(text_of(path, reply.json())) == {"n": 5}
    assert sent(faults)[1]["tool_choice"]["type"] == "tool"
    assert sent(faults)[1]["tools"][0]["input_schema"]["required"] == ["n"]

    faults.requests.clear()
    faults.says(NO_FORMAT, refusal_of_server(400, "tools are not supported"), message(answer))
    reply = await ask(replace(config, folder=tmp_path / "3"), body, path)
    assert text_of(path, reply.json()) == answer and "tools" not in sent(faults)[2]


@pytest.mark.parametrize("kind", ["anthropic", "openai"])
async def test_a_schema_beside_tools(faults, tmp_path, kind):
    """The model is told both; where it takes no schema beside tools, it is asked without."""
    answer = '{"n": 5}'
    choice = {"index": 0, "finish_reason": "stop", "message": {"content": answer}}
    good = message(answer) if kind == "anthropic" else http({"choices": [choice]})
    config = config_of(
        tmp_path, faults, kind=kind, graders=["answered"], settings={"max_iterations": 0}
    )
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    body = {**ASKED["/chat/completions"], "tools": [tool]}
    faults.says(good)
    assert (await ask(config, body, "/chat/completions")).status_code == 200
    told = sent(faults)[0]
    form = told["output_config"]["format"] if kind == "anthropic" else told["response_format"]
    assert form["type"] == "json_schema" and len(told["tools"]) == 1
    faults.requests.clear()
    faults.says(refusal_of_server(400, "a schema cannot be used with tools"), good)
    reply = await ask(replace(config, folder=tmp_path / "2"), body, "/chat/completions")
    assert text_of("/chat/completions", reply.json()) == answer
    assert not {"output_config", "response_format"} & set(sent(faults)[1])


# ---- judges


async def test_a_judge_of_this_protocol_gets_nothing_of_the_client(faults, tmp_path):
    """It is asked for JSON, without the fields, tools and betas of the request that it judges."""

    def answer(request):
        is_judged = "output_config" in request.body
        return message(verdict(5) if is_judged else "one two")

    faults.says(answer)
    config = config_of(tmp_path, faults, graders=["judge"], settings={"max_iterations": 0})
    reply = await ask(
        config, {"messages": HISTORY, **CLIENT_FIELDS}, headers={"anthropic-beta": "x-2026"}
    )
    assert reply.json()["usage"]["redraft"]["score"] > 0.8
    judging = next(r for r in faults.requests if "output_config" in r.body)
    body = judging.body
    assert not {"thinking", "metadata", "context_management", "some_beta", "tools"} & set(body)
    assert b"user-4711" not in judging.raw and "anthropic-beta" not in judging.headers


# ---- errors, keys, costs

ERRORS = [  # what the model answers, the status for a client of chat completions, and the code
    (refusal_of_server(400, "prompt is too long: 300000 tokens > 200000"), 400, "context_length_exceeded"),
    (refusal_of_server(400, "max_tokens: must be at least 1"), 400, "upstream_refused"),
    (refusal_of_server(401, kind="authentication_error"), 502, "upstream_authentication"),
    (refusal_of_server(400, "Your credit balance is too low"), 502, "upstream_quota"),
    (refusal_of_server(429, kind="rate_limit_error"), 429, "upstream_rate_limit"),
    (refusal_of_server(529, kind="overloaded_error"), 503, "upstream_overloaded"),
    (refusal_of_server(500, kind="api_error"), 502, "upstream_error"),
    (http(b"<html>hi</html>", content_type="text/html"), 502, "upstream_error"),
    (http([1]), 502, "upstream_error"),
    (http({"type": "message", "content": "x"}), 502, "upstream_error"),
    (http({"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}), 502, "upstream_error"),
    (message(stop="max_tokens"), 502, "upstream_error"),
    (http(b"", 302, Location="/v2"), 502, "upstream_redirect"),
]  # fmt: skip


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize(("answer", "status", "code"), ERRORS)
async def test_errors_of_the_model(faults, tmp_path, answer, status, code):
    """A client gets the error that a model of OpenAI's protocol would give, and no address."""
    faults.says(answer)
    reply = await ask(config_of(tmp_path, faults), {"messages": [USER]}, "/chat/completions")
    assert (reply.status_code, reply.json()["error"]["code"]) == (status, code)
    assert str(faults.port) not in reply.text and "127.0.0.1" not in reply.text


PAUSED = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
PLACES = [  # what the model answers where a message might say where it is
    message(""),
    message(PAUSED, stop="pause_turn"),
    http(b"", 302, Location="http://inside.example:99/v2"),
    refusal_of_server(404, "no such model"),
    b"not HTTP\r\n\r\n",
]


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize("answer", PLACES)
@pytest.mark.parametrize("is_judge", [False, True])
async def test_no_message_says_where_a_model_is(faults, tmp_path, answer, is_judge):
    """Neither an error nor the reason for a missing score, in the body and in the headers."""

    def answered(request):
        return message("one two") if is_judge and "output_config" not in request.body else answer

    faults.says(answered)
    config = config_of(tmp_path, faults, graders=["judge"])
    reply = await ask(config, {"messages": [USER]})
    assert reply.status_code == 200 if is_judge else reply.status_code >= 400
    told = f"{reply.text} {reply.headers.get('x-redraft-reason')}"
    assert not [place for place in ("127.0.0.1", str(faults.port), "inside") if place in told]


async def test_a_deadline_does_not_say_where_the_judge_is(faults, tmp_path):
    """The draft is returned with the reason, which names the judge alone."""
    faults.says(message("one two"), silence)
    config = config_of(tmp_path, faults, graders=["judge"], settings={"deadline": 1.0})
    reply = await ask(config, {"messages": [USER]})
    told = reply.json()["usage"]["redraft"]["reason"]
    assert "no answer from claude before the deadline" in told and "127.0.0.1" not in reply.text


@pytest.mark.parametrize(
    ("calls", "message_part"),
    [
        ([{**CALLS[0], "id": f"toolu_{n}"} for n in range(129)], "129 tool calls"),
        ([{**CALLS[0], "name": "n" * 257}], "without the name"),
        ([{**CALLS[0], "name": " "}], "without the name"),
        (
            [{**CALLS[0], "input": json.loads('{"a":' * 101 + "1" + "}" * 101)}],
            "more than 100 deep",
        ),
    ],
)
async def test_calls_beyond_the_limits_are_an_error(faults, tmp_path, calls, message_part):
    """They are those of models of every protocol; the tokens of the answer are paid."""
    faults.says(message(*calls, stop="tool_use"))
    reply = await ask(config_of(tmp_path, faults), {"messages": [USER], "tools": [TOOL]})
    assert reply.status_code == 502 and message_part in reply.json()["error"]["message"]
    with closing(sqlite3.connect(tmp_path / "requests.db")) as database:
        assert database.execute("SELECT output_tokens FROM requests").fetchall() == [(5,)]


async def test_each_call_has_an_id_of_its_own(faults, tmp_path):
    """Results refer to them, so that missing, repeated and endless ones are replaced."""
    given = ["toolu_1", "toolu_1", "", "i" * 257]
    faults.says(message(*({**CALLS[0], "id": id} for id in given), stop="tool_use"))
    reply = await ask(config_of(tmp_path, faults), {"messages": [USER], "tools": [TOOL]})
    ids = [block["id"] for block in reply.json()["content"]]
    assert ids[0] == "toolu_1" and len(set(ids)) == 4 and all(0 < len(id) <= 256 for id in ids)


LONG = "e" * 2000


@pytest.mark.parametrize(
    "block",
    [
        {"type": "text", "text": LONG},
        {"type": "thinking", "thinking": "", "signature": LONG},
        {"type": "redacted_thinking", "data": LONG},
        {**CALLS[0], "input": {"q": LONG}},
        {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": [LONG]},
    ],
    ids=lambda block: block["type"],
)
async def test_all_parts_of_answers_count_as_memory(faults, tmp_path, block):
    """Where two answers do not fit, the second is refused, whatever is so long in it."""
    faults.says(message(block, "one two three four five six"))
    config = config_of(tmp_path, faults, settings={"drafts": 2, "max_iterations": 0}, candidates=2)
    config = replace(config, limits=replace(config.limits, max_answers=3000))
    reply = await ask(config, {"messages": [USER], "tools": [TOOL]})
    assert reply.status_code == 529 and "no memory" in reply.text


async def test_the_key_is_in_no_answer_and_no_error(faults, tmp_path):
    """A server that echoes it, as it is or escaped, is masked."""
    escaped = "".join(f"\\u{ord(c):04x}" for c in SECRET)
    body = message(f"one {SECRET}").partition(b"\r\n\r\n")[2].decode()
    config = config_of(tmp_path, faults, served={"key_env": "KEY"}, graders=["words:1-9"])
    for n, said in enumerate((body, body.replace(SECRET, escaped))):
        faults.says(http(said.encode()))
        config = replace(config, folder=tmp_path / str(n))
        reply = await ask(config, {"messages": [USER]}, env={"KEY": SECRET})
        assert SECRET not in reply.text and reply.json()["content"][0]["text"].startswith("one ")
        assert faults.requests[-1].headers["x-api-key"] == SECRET
    faults.says(refusal_of_server(400, f"bad key {SECRET}"))
    config = replace(config, folder=tmp_path / "error")
    reply = await ask(config, {"messages": [USER]}, env={"KEY": SECRET})
    assert reply.status_code >= 400 and SECRET not in reply.text


async def test_what_is_written_into_the_cache_is_charged(faults, tmp_path):
    """Its surcharge is part of the cost that the key pays, the reply says and the store has, also
    where the judge's prompt is written.
    """
    faults.says(lambda asked: message(verdict(5) if "output_config" in asked.body else "one two"))
    with KeyRing(tmp_path) as ring:
        key, secret = ring.add("app", KeyLimits(usd_per_day=1.0))
    config = config_of(tmp_path, faults, graders=["judge"], settings={"max_iterations": 0})
    body = {
        "messages": [
            {**USER, "content": [{"type": "text", "text": "Say.", "cache_control": CACHED}]}
        ]
    }
    reply = await ask(config, body, headers={"authorization": f"Bearer {secret}"})
    cost = 2 * (1110 * 1.0 + 5 * 2.0 + 0.25 * 1000 * 1.0) / 1e6
    outcome = reply.json()["usage"]["redraft"]
    assert outcome["usage"]["cost"] == outcome["cost"] == pytest.approx(cost)
    with closing(sqlite3.connect(tmp_path / "requests.db")) as database:
        assert database.execute("SELECT cost FROM requests").fetchall() == [(pytest.approx(cost),)]
    with KeyRing(tmp_path) as ring:
        assert ring.spending("day", key).spent == pytest.approx(cost * 1e9)


async def test_an_answer_without_a_limit_is_reserved_as_it_is_asked_for(faults, tmp_path):
    """The protocol needs a limit, so that the gateway states one: the model may use all of it."""
    reserved = []

    def answer(request):
        with KeyRing(tmp_path) as ring:
            reserved.append(ring.spending("day", key).reserved / 1e9)
        return message("one two")

    faults.says(answer)
    with KeyRing(tmp_path) as ring:
        key, secret = ring.add("app", KeyLimits(usd_per_day=1.0))
    config = config_of(tmp_path, faults, settings={"max_iterations": 0})
    headers = {"authorization": f"Bearer {secret}"}
    for model in ("refine/fast", "pass/big"):
        asked = {"model": model, "messages": [USER], "max_tokens": None}
        await ask(config, asked, "/chat/completions", headers=headers)
        assert reserved[-1] >= sent(faults)[-1]["max_tokens"] * 2.0 / 1e6
    assert len(reserved) == 2


# ---- every conversation

TEXTS = st.sampled_from(["hi", "Say it.", "x\n\ny", "<b>"])
MARKS = st.sampled_from([{}, {"cache_control": CACHED}])
BLOCKS = st.builds(lambda text, mark: {"type": "text", "text": text, **mark}, TEXTS, MARKS)


@st.composite
def conversations(draw):
    """The messages of a client: texts and blocks, and rounds of calls with their results."""
    messages = [{"role": "user", "content": draw(TEXTS | st.lists(BLOCKS, min_size=1, max_size=2))}]
    for turn in range(draw(st.integers(0, 3))):
        calls = [
            {"type": "tool_use", "id": f"toolu_{turn}_{n}", "name": "look_up", "input": {}}
            for n in range(draw(st.integers(0, 2)))
        ]
        thought = [{**THOUGHT, "signature": f"s{turn}"}] if draw(st.booleans()) else []
        said = [*thought, draw(BLOCKS), *calls]
        messages.append({"role": "assistant", "content": said})
        results = [
            {
                "type": "tool_result",
                "tool_use_id": call["id"],
                "content": draw(TEXTS),
                **draw(MARKS),
            }
            for call in draw(st.permutations(calls))
        ]
        more = draw(st.lists(BLOCKS, min_size=0 if calls else 1, max_size=2))
        messages.append({"role": "user", "content": [*results, *more]})
    return messages


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(conversations(), st.sampled_from([None, "Be good.", [{"type": "text", "text": "Be good."}]]))
def test_no_turn_is_lost_doubled_or_moved(messages, system):
    """What the core leaves as it is, the model gets as the client wrote it, also where the core
    joins neighbours.
    """
    body = {"model": "refine/fast", "max_tokens": 9, "messages": messages, "tools": [TOOL]}
    body |= {"system": system} if system else {}
    request = CLIENTS["messages"].read_request(body)
    core = write_messages(request)
    turns = turns_of(core, ClientRequest(request, core))
    assert turns == request.turns
    written = MODELS["messages"].write_request(replace(request, turns=turns), "m").body
    assert written == body | {"model": "m"}


def test_its_identity_has_no_key():
    """What caches and logs know it by does not show the key in its address."""
    model = MessagesModel(
        Upstream(ServedModel("big", f"http://:{SECRET}@127.0.0.1:9/v1", "claude", "anthropic"), {})
    )
    assert SECRET not in f"{model.identity}{model.base_url}{model.host}"


# ---- turns that the provider pauses

FOUND = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
CITED = {
    "type": "text",
    "text": "three four",
    "citations": [{"type": "web_search_result_location"}],
}
SEARCH_TOOL = {"type": "web_search_20250305", "name": "web_search"}


async def test_a_paused_turn_goes_on(faults, tmp_path):
    """The model gets what it wrote, with its container, until it has ended. The client gets all of
    it, and pays for each request.
    """
    faults.says(
        message(PAUSED, stop="pause_turn", container={"id": "c1", "expires_at": "2026-01-01"}),
        message(FOUND, stop="pause_turn"),
        message("one two"),
    )
    body = {"messages": [USER], "tools": [SEARCH_TOOL], "system": "Be good."}
    reply = await ask(config_of(tmp_path, faults), body)
    text = {"type": "text", "text": "one two"}
    assert reply.json()["content"] == [PAUSED, FOUND, text]
    assert reply.json()["stop_reason"] == "end_turn"
    first, second, third = sent(faults)
    assert "container" not in first and second["container"] == third["container"] == "c1"
    assert second["messages"] == [*first["messages"], {"role": "assistant", "content": [PAUSED]}]
    assert third["messages"] == [
        *second["messages"],
        {"role": "assistant", "content": [FOUND]},
    ]
    assert all(
        {**each, "messages": 0, "container": 0} == {**first, "messages": 0, "container": 0}
        for each in (second, third)
    )
    usage = reply.json()["usage"]
    assert usage["output_tokens"] == 3 * USAGE["output_tokens"]
    assert usage["redraft"]["calls"] == 3


async def test_a_turn_that_never_ends_is_an_error(faults, tmp_path):
    """It is asked for a few times, all of which are counted."""
    faults.says(message(PAUSED, stop="pause_turn"))
    reply = await ask(config_of(tmp_path, faults), {"messages": [USER], "tools": [SEARCH_TOOL]})
    assert reply.status_code == 502 and "paused 4 times" in reply.json()["error"]["message"]
    assert len(faults.requests) == 5
    with closing(sqlite3.connect(tmp_path / "requests.db")) as database:
        assert database.execute("SELECT calls, output_tokens FROM requests").fetchall() == [
            (5, 5 * USAGE["output_tokens"])
        ]


async def test_what_a_paused_turn_cost_is_counted_if_it_fails(faults, tmp_path):
    """The tokens of the first part are known."""
    faults.says(message(PAUSED, stop="pause_turn"), refusal_of_server(400))
    reply = await ask(config_of(tmp_path, faults), {"messages": [USER], "tools": [SEARCH_TOOL]})
    assert reply.status_code == 400
    with closing(sqlite3.connect(tmp_path / "requests.db")) as database:
        assert database.execute("SELECT output_tokens FROM requests").fetchall() == [
            (USAGE["output_tokens"],)
        ]


@pytest.mark.parametrize("tool", [SEARCH_TOOL, {"name": "add", "input_schema": {}}])
async def test_what_a_paused_turn_may_cost_is_reserved(faults, tmp_path, tool):
    """A key pays for each request, so that each is reserved; an answer pauses only for tools of the
    provider.
    """
    reserved = []

    def answer(request):
        with KeyRing(tmp_path) as ring:
            reserved.append(ring.spending("day", key))
        return message("one two") if len(reserved) == count else message(PAUSED, stop="pause_turn")

    faults.says(answer)
    count = 5 if tool is SEARCH_TOOL else 1
    with KeyRing(tmp_path) as ring:
        key, secret = ring.add("app", KeyLimits(usd_per_day=1.0, calls_per_day=100))
    served = {"tool_prices": {"web_search": 0.01}}
    config = config_of(tmp_path, faults, served=served, settings={"max_iterations": 0})
    body = {"messages": [USER], "tools": [tool]}
    reply = await ask(config, body, headers={"authorization": f"Bearer {secret}"})
    assert reply.status_code == 200 and len(reserved) == count
    with KeyRing(tmp_path) as ring:
        used = ring.spending("day", key)
    assert {each.reserved_calls for each in reserved} == {count} == {used.calls}
    assert 0 < used.spent <= reserved[0].reserved


# ---- what goes back with a text


async def test_citations_are_kept_in_a_stream(faults, tmp_path):
    """A stream has the blocks of the whole reply: each with its own citations."""
    faults.says(message("one two ", CITED, "."))
    config = config_of(tmp_path, faults)
    whole = await ask(config, {"messages": [USER]})
    assert whole.json()["content"][1] == CITED
    stream = await ask(config, {"messages": [USER], "stream": True})
    events = [json.loads(line[6:]) for line in stream.text.splitlines() if line[:6] == "data: "]
    blocks = {}
    for event in events:
        match event:
            case {"type": "content_block_start", "index": n, "content_block": block}:
                blocks[n] = block
            case {"type": "content_block_delta", "index": n, "delta": {"text": text}}:
                blocks[n]["text"] += text
            case {"type": "content_block_delta", "index": n, "delta": {"citation": citation}}:
                blocks[n].setdefault("citations", []).append(citation)
    assert [*blocks.values()] == whole.json()["content"]
    chat = await ask(config, {"messages": [USER], "stream": True}, "/chat/completions")
    deltas = [json.loads(line[6:]) for line in chat.text.splitlines() if line[:7] == "data: {"]
    texts = [each["choices"][0]["delta"].get("content") for each in deltas if each["choices"]]
    assert [text for text in texts[1:] if text is not None] == ["one two ", "three four", "."]


@pytest.mark.parametrize("is_stream", [False, True])
async def test_thinking_goes_with_a_text_in_responses(faults, tmp_path, is_stream):
    """It is an item of its own there, as it is in front of pass/NAME, with what proves it."""
    faults.says(message(THOUGHT, "one two"))
    body = {"model": "refine/fast", "input": "hi", "stream": is_stream}
    async with running(config_of(tmp_path, faults)) as (url, _), http_client(url) as client:
        reply = await client.post("/responses", json=body)
    if is_stream:
        events = [json.loads(line[6:]) for line in reply.text.splitlines() if line[:7] == "data: {"]
        response = events[-1]["response"]
    else:
        response = reply.json()
    thought, said = response["output"]
    assert thought["summary"] == [{"type": "summary_text", "text": THOUGHT["thinking"]}]
    assert thought["encrypted_content"] == f"signature:{THOUGHT['signature']}"
    assert said["content"][0]["text"] == "one two"


@pytest.mark.parametrize("path", ["/chat/completions", "/responses", "/messages"])
@pytest.mark.parametrize("is_stream", [False, True])
async def test_why_a_model_refused_is_said_apart(faults, tmp_path, path, is_stream):
    """A blank line stands between what it wrote and why it refused."""
    details = {"type": "refusal", "explanation": "It is unsafe."}
    faults.says(message("I can't ", "help.", stop="refusal", stop_details=details))
    body = {"input": "hi"} if path == "/responses" else {"messages": [USER]}
    reply = await ask(config_of(tmp_path, faults), {**body, "stream": is_stream}, path)
    assert reply.status_code == 200
    assert "I can't help.\\n\\nIt is unsafe." in reply.text
