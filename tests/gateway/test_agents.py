"""What agents are promised of refined answers: a loop goes on when a judge is down, a refusal arrives
as it is, an answer that was begun is continued, and hints never break a request.
"""

import json
import logging

import pytest
from chat_server import verdict
from fault_server import call, completion, good, http

from redraft import Feedback, Judge
from redraft.gateway.config import GatewayConfig, Profile, Retention, ServedModel
from redraft.gateway.ignored_fields import MAX_LOGGED, MAX_NAMES, IgnoredFields, ignored_header
from redraft.gateway.keys import KeyRing

from .running import http_client, running
from .test_messages_model import CALLS, THOUGHT, TOOL, USER, message, sent

PROMPT = "Say it well."
PATHS = {"chat": "/chat/completions", "responses": "/responses", "messages": "/messages"}
FUNCTION = {"name": "look_up", "parameters": {"type": "object"}}
TOOLS = {
    "chat": [{"type": "function", "function": FUNCTION}],
    "responses": [{"type": "function", **FUNCTION}],
    "messages": [TOOL],
}


def config_of(folder, url, kind="openai", *, judge_url=None, **profile):
    """Return a gateway before a model, with a judge of its own if `judge_url` is given."""
    models = {"big": ServedModel("big", url, "m", kind, prices=(1.0, 2.0))}
    fields = {"graders": ["words:1-5"], "settings": {"max_iterations": 1, "retries": 0}}
    if judge_url:
        models["judge"] = ServedModel("judge", judge_url, "j")
        fields |= {"judge": "judge", "graders": ["judge"]}
    return GatewayConfig(
        folder, models, {"fast": Profile("fast", "big", **{**fields, **profile})}, port=0
    )


def body_of(protocol, **fields):
    asked = (
        {"input": PROMPT}
        if protocol == "responses"
        else {"messages": [{**USER, "content": PROMPT}]}
    )
    limit = {"max_tokens": 500} if protocol == "messages" else {}
    return {"model": "refine/fast", **asked, **limit, **fields}


def said(protocol, kind, *, text="", calls=False):
    """Return the reply of a model of this kind: a text, or two calls of a tool."""
    if kind == "anthropic":
        return (
            message(THOUGHT, text or "I look.", *CALLS, stop="tool_use") if calls else message(text)
        )
    tool_calls = [call("look_up", '{"q": "a"}', "toolu_1"), call("look_up", "{}", "toolu_2")]
    return good("I look.", "tool_calls", tool_calls=tool_calls) if calls else good(text)


def calls_in(protocol, data):
    """Return the IDs of the calls in a reply."""
    if protocol == "chat":
        return [each["id"] for each in data["choices"][0]["message"]["tool_calls"]]
    if protocol == "responses":
        return [each["call_id"] for each in data["output"] if each["type"] == "function_call"]
    return [each["id"] for each in data["content"] if each["type"] == "tool_use"]


# ---- judges that are down


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("kind", ["openai", "anthropic"])
@pytest.mark.parametrize("protocol", PATHS)
async def test_a_judge_that_is_down_does_not_break_the_loop(
    faults, closed_url, tmp_path, protocol, kind
):
    """The draft is returned, and why it has no score, in the reply and in a header, without saying
    where the judge is; a stream says it at its end. A turn that calls tools is returned, too.
    """
    config = config_of(tmp_path, faults.url, kind, judge_url=closed_url)
    async with running(config) as (url, _), http_client(url) as client:
        faults.says(said(protocol, kind, text="the draft"))
        whole = await client.post(PATHS[protocol], json=body_of(protocol))
        outcome = whole.json()["usage"]["redraft"]
        assert (whole.status_code, outcome["score"]) == (200, None)
        assert "the draft" in whole.text and "cannot be reached" in outcome["reason"]
        assert "cannot be reached" in whole.headers["x-redraft-reason"]
        assert "127.0.0.1" not in f"{whole.text}{whole.headers}"
        streamed = await client.post(PATHS[protocol], json=body_of(protocol, stream=True))
        assert "the draft" in streamed.text and "cannot be reached" in streamed.text
        faults.says(said(protocol, kind, calls=True))
        turn = await client.post(
            PATHS[protocol], json=body_of(protocol, tools=TOOLS[protocol], stream=False)
        )
    assert calls_in(protocol, turn.json()) == ["toolu_1", "toolu_2"]


async def test_a_judge_that_fails_at_calls_of_tools(faults, closed_url, tmp_path):
    """Also where the calls are graded."""
    graders = [Judge(reads_tool_calls=True)]
    config = config_of(tmp_path, faults.url, judge_url=closed_url, graders=graders, candidates=2)
    faults.says(said("chat", "openai", calls=True))
    async with running(config) as (url, _), http_client(url) as client:
        turn = await client.post(PATHS["chat"], json=body_of("chat", tools=TOOLS["chat"]))
    assert calls_in("chat", turn.json()) == ["toolu_1", "toolu_2"]


# ---- refusals

REFUSAL = "I can't help with that."
REFUSED = {
    "openai": lambda: good(None, "stop", refusal=REFUSAL),
    "anthropic": lambda: message(REFUSAL, stop="refusal"),
}


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("protocol", PATHS)
@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_refusal_arrives_as_it_is(faults, tmp_path, protocol, kind, is_stream):
    """If there is no other answer: with status 200, in the form of the client, and with what it
    cost.
    """
    faults.says(REFUSED[kind]())
    async with (
        running(config_of(tmp_path, faults.url, kind)) as (url, gateway),
        http_client(url) as client,
    ):
        reply = await client.post(PATHS[protocol], json=body_of(protocol, stream=is_stream))
        await gateway.admission.wait_until_idle()
    assert (reply.status_code, len(faults.requests)) == (200, 1)
    assert REFUSAL in reply.text
    if is_stream:
        word = {"chat": '"refusal":"', "responses": "response.refusal.delta"}.get(
            protocol, '"stop_reason":"refusal"'
        )
        assert word in reply.text
        return
    data = reply.json()
    assert data["usage"]["redraft"]["score"] is None and data["usage"]["redraft"]["calls"] == 1
    match protocol:
        case "chat":
            assert data["choices"][0]["message"]["refusal"] == REFUSAL
        case "responses":
            assert data["output"][-1]["content"] == [{"type": "refusal", "refusal": REFUSAL}]
        case _:
            assert data["stop_reason"] == "refusal" and data["content"][0]["text"] == REFUSAL


@pytest.mark.parametrize("kind", REFUSED)
async def test_a_refusal_is_a_failed_call_where_there_is_an_answer(faults, tmp_path, kind):
    """Another draft, or the one that was to be refined, is returned."""
    long = "one two three four five six seven"
    config = config_of(tmp_path, faults.url, kind)
    faults.says(said("chat", kind, text=long), REFUSED[kind]())
    async with running(config) as (url, _), http_client(url) as client:
        reply = await client.post(PATHS["chat"], json=body_of("chat"))
    assert reply.json()["choices"][0]["message"]["content"] == long


# ---- an answer that the client began


class Whole:
    """Scores a text that is the whole one 1, and notes each text that it graded."""

    name, model_free = "whole", True

    def __init__(self, text):
        self.text, self.texts = text, []

    async def grade(self, task, candidate, ask):
        self.texts.append(candidate.text)
        return Feedback(1.0 if candidate.text == self.text else 0.2, "as it is")


BEGUN = [USER, {"role": "assistant", "content": "The answer is"}]


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("kind", "first"),
    [("anthropic", " one."), ("openai", " one."), ("openai", "The answer is one.")],
)
async def test_what_the_client_began_is_continued(faults, tmp_path, kind, first, is_stream):
    """Graders see the whole text, drafts and refinements continue it, and the client gets what
    follows; also from a model that repeats it.
    """
    whole = Whole("The answer is two.")
    faults.says(said("", kind, text=first), said("", kind, text=" two."))
    body = {"model": "refine/fast", "max_tokens": 500, "messages": BEGUN, "stream": is_stream}
    async with (
        running(config_of(tmp_path, faults.url, kind, graders=[whole])) as (url, _),
        http_client(url) as client,
    ):
        reply = await client.post("/messages", json=body)
    assert whole.texts == ["The answer is one.", "The answer is two."]
    assert all(each["messages"][-1] == BEGUN[-1] for each in sent(faults))
    assert (
        len(sent(faults)[1]["messages"]) == 4
    )  # the question, the draft, the advice, the beginning
    if is_stream:
        events = [json.loads(line[6:]) for line in reply.text.splitlines() if line[:6] == "data: "]
        deltas = [e["delta"] for e in events if e["type"] == "content_block_delta"]
        assert "".join(delta["text"] for delta in deltas) == " two."
    else:
        assert reply.json()["content"] == [{"type": "text", "text": " two."}]


@pytest.mark.parametrize(("protocol", "field"), [("chat", "messages"), ("responses", "input")])
async def test_other_protocols_cannot_have_it_refined(faults, tmp_path, protocol, field):
    """The error names the field, and what takes it."""
    async with (
        running(config_of(tmp_path, faults.url)) as (url, _),
        http_client(url) as client,
    ):
        body = {"model": "refine/fast", field: BEGUN}
        error = (await client.post(PATHS[protocol], json=body)).json()["error"]
    assert (error["param"], faults.requests) == (field, [])
    assert "pass/NAME" in error["message"] and "/v1/messages" in error["message"]


@pytest.mark.parametrize("model", ["refine/fast", "pass/big"])
async def test_an_input_without_a_message(faults, tmp_path, model):
    """Items that are no turn of a conversation are no request for an answer."""
    body = {"model": model, "input": [{"type": "reasoning", "id": "r1", "summary": []}]}
    config = config_of(tmp_path, faults.url, "anthropic")
    async with running(config) as (url, _), http_client(url) as client:
        reply = await client.post("/responses", json=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "input")


@pytest.mark.parametrize("protocol", ["chat", "responses"])
async def test_any_json_object_of_a_model_of_another_protocol(faults, tmp_path, protocol):
    """It is told in words, because Anthropic's protocol has no form for it, and the answer is the
    object alone.
    """
    form = {
        "chat": {"response_format": {"type": "json_object"}},
        "responses": {"text": {"format": {"type": "json_object"}}},
    }[protocol]
    faults.says(message('Here: {"n": 5}'))
    config = config_of(tmp_path, faults.url, "anthropic", graders=["answered"])
    async with running(config) as (url, _), http_client(url) as client:
        reply = await client.post(PATHS[protocol], json=body_of(protocol, **form))
    assert reply.status_code == 200 and json.dumps('{"n": 5}') in reply.text
    assert "JSON" in json.dumps(sent(faults)[0])


# ---- hints

HINTS = {
    "chat": {
        "metadata": {"path": "/home/ann"},
        "user": "ann",
        "prompt_cache_key": "k",
        "verbosity": "low",
        "future_field": {"x": 1},
    },
    "responses": {
        "client_metadata": {"installation": "4711"},
        "include": ["reasoning.encrypted_content"],
        "reasoning": {"effort": "low", "summary": "auto"},
        "store": False,
        "prompt_cache_key": "k",
        "user": "ann",
    },
    "messages": {
        "context_management": {"edits": []},
        "metadata": {"user_id": "ann"},
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "low"},
        "future_field": {"x": 1},
    },
}
PRIVATE = ("ann", "4711", "future_field", "context_management", "metadata")
OTHER_KIND = {"chat": "anthropic", "responses": "anthropic", "messages": "openai"}


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("model", ["refine/fast", "pass/big"])
@pytest.mark.parametrize("protocol", HINTS)
async def test_hints_are_left_out_and_listed(faults, tmp_path, caplog, protocol, model):
    """A model of another protocol gets no field that its protocol does not have, and nothing of who
    the user is; the reply lists them, and the log has each once for a key.
    """
    kind = OTHER_KIND[protocol]
    with KeyRing(tmp_path) as ring:
        _, secret = ring.add("agent")
    config = config_of(tmp_path, faults.url, kind)
    faults.says(said(protocol, kind, text="one two"))
    headers = {"authorization": f"Bearer {secret}"}
    body = body_of(protocol, **HINTS[protocol]) | {"model": model}
    with caplog.at_level(logging.INFO, "redraft.gateway"):
        async with running(config) as (url, _), http_client(url, headers=headers) as client:
            replies = [await client.post(PATHS[protocol], json=body) for _ in range(2)]
    for reply in replies:
        assert reply.status_code == 200 and "one two" in reply.text
        ignored = reply.headers["x-redraft-ignored"].split(", ")
        assert len(ignored) == len(set(ignored)) and set(ignored) & set(HINTS[protocol])
    assert all(
        not any(word.encode() in request.raw for word in PRIVATE) for request in faults.requests
    )
    logged = [r.message for r in caplog.records if "is left out" in r.message]
    assert len(logged) == len(set(logged)) == len(ignored)
    assert all("agent" in line and secret not in line for line in logged)


@pytest.mark.parametrize("protocol", ["chat", "messages"])
async def test_a_model_of_the_same_protocol_gets_the_hints(faults, tmp_path, protocol):
    """Through `pass/` unchanged, and through `refine/`, but for the labels of completions that
    OpenAI stores, which are named.
    """
    kind = {"chat": "openai", "messages": "anthropic"}[protocol]
    faults.says(said(protocol, kind, text="one two"))
    async with (
        running(config_of(tmp_path, faults.url, kind)) as (url, _),
        http_client(url) as client,
    ):
        for model in ("pass/big", "refine/fast"):
            body = body_of(protocol, **HINTS[protocol]) | {"model": model}
            reply = await client.post(PATHS[protocol], json=body)
            is_dropped = (protocol, model) == ("chat", "refine/fast")
            assert reply.headers.get("x-redraft-ignored") == ("metadata" if is_dropped else None)
            expected = {
                n: v for n, v in HINTS[protocol].items() if n != "metadata" or model[0] == "p"
            }
            got = {name: sent(faults)[-1].get(name) for name in expected}
            assert got == expected


def test_names_of_fields_are_bounded_and_plain():
    """Whatever a client calls them, the header is short ASCII without line breaks; a field is in it
    once.
    """
    names = ["a", "a", "é\r\nx: 1", "b,c", "n" * 10_000, *(f"f{n}" for n in range(1000))]
    (value,) = ignored_header(names).values()
    assert value.isascii() and value.isprintable() and len(value) < 6000
    assert value.split(", ")[:3] == ["a", "???x: 1", "b?c"] and value.endswith(", ...")
    assert ignored_header([]) == {}


def test_what_is_remembered_of_logged_fields_is_bounded(caplog):
    """Each field of a key is logged once, as long as it is remembered."""
    fields = IgnoredFields()
    with caplog.at_level(logging.INFO, "redraft.gateway"):
        for n in range(MAX_LOGGED + 10):
            fields.log("app", "refine/fast", [f"f{n}", f"f{n}"])
        fields.log("app", "refine/fast", [f"f{MAX_LOGGED}"])
        fields.log("other", "refine/fast", [f"f{MAX_LOGGED}"])
    assert len(caplog.records) == MAX_LOGGED + 11 and len(fields._logged) == MAX_LOGGED


@pytest.mark.slow
def test_a_request_logs_few_fields(caplog):
    """However many it has: as many as its header shows."""
    fields = IgnoredFields()
    with caplog.at_level(logging.INFO, "redraft.gateway"):
        for n in range(3):
            fields.log("app", "refine/fast", [f"f{m}" for m in range(100_000 * n)])
    assert len(caplog.records) == MAX_NAMES + 1


@pytest.mark.parametrize("protocol", PATHS)
async def test_nothing_is_stored_that_a_client_asks_not_to_store(faults, tmp_path, protocol):
    """`store: false` is a field of two protocols, and means the same in all, however it is sent."""
    faults.says(good("a secret answer"))
    async with (
        running(config_of(tmp_path, faults.url, retention=Retention("full"))) as (url, _),
        http_client(url) as client,
    ):
        reply = await client.post(PATHS[protocol], json=body_of(protocol, store=False))
        assert "a secret answer" in reply.text
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.is_file())
    assert b"secret" not in written and PROMPT.encode() not in written


# ---- details of usage


async def test_details_of_the_tokens_survive(faults, tmp_path):
    """Cached and reasoning tokens of the answer's own call, in the words of each protocol."""
    whole = completion("one two")
    whole["usage"] |= {
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    faults.says(http(whole))
    config = config_of(tmp_path, faults.url)
    async with running(config) as (url, _), http_client(url) as client:
        usages = {
            protocol: (await client.post(path, json=body_of(protocol))).json()["usage"]
            for protocol, path in PATHS.items()
        }
    assert usages["chat"]["prompt_tokens_details"]["cached_tokens"] == 4
    assert usages["chat"]["completion_tokens_details"]["reasoning_tokens"] == 2
    assert usages["responses"]["input_tokens_details"]["cached_tokens"] == 4
    assert usages["responses"]["output_tokens_details"]["reasoning_tokens"] == 2
    assert (usages["messages"]["input_tokens"], usages["messages"]["cache_read_input_tokens"]) == (
        3,
        4,
    )


async def test_reasoning_goes_back_with_calls_of_tools(faults, tmp_path):
    """A model that wants its reasoning back in a loop with tools gets it from its client; a text
    goes without.
    """
    tool_calls = [call("look_up", "{}", "c1")]
    config = config_of(tmp_path, faults.url)
    async with running(config) as (url, _), http_client(url) as client:
        faults.says(good(None, "tool_calls", tool_calls=tool_calls, reasoning_content="hm"))
        turn = await client.post(PATHS["chat"], json=body_of("chat", tools=TOOLS["chat"]))
        assert turn.json()["choices"][0]["message"]["reasoning_content"] == "hm"
        faults.says(good("one two", reasoning_content="hm"))
        text = await client.post(PATHS["chat"], json=body_of("chat"))
        assert "reasoning_content" not in text.json()["choices"][0]["message"]


async def test_a_judge_answers_where_there_is_one(faults, tmp_path):
    """(The tests above take one away.)"""
    faults.says(lambda request: good(verdict(5) if b"judge" in request.raw else "one two"))
    config = config_of(tmp_path, faults.url, judge_url=faults.url)
    async with running(config) as (url, _), http_client(url) as client:
        reply = await client.post(PATHS["chat"], json=body_of("chat"))
    assert reply.json()["usage"]["redraft"]["score"] > 0.8
    assert "x-redraft-reason" not in reply.headers
