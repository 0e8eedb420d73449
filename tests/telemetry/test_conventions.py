"""Every name that is emitted is one of the conventions' package, with its type and unit, or begins
with `redraft.`: over all that Redraft does, and however it ends.
"""

import asyncio
import importlib
import json
import pkgutil
from contextlib import suppress
from dataclasses import replace

import fault_server as fs
import pytest
from fault_server import FaultServer
from opentelemetry.semconv import schemas
from opentelemetry.semconv._incubating import attributes as attribute_modules
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics, http_metrics

import redraft
from gateway.running import PROMPT, config_for, http_client, running, wait_until_recorded
from redraft.errors import RedraftError
from redraft.models import Chat, ScriptedModel
from redraft.telemetry.attributes import SCHEMA_URL

from .conftest import CONTENT

OPENINFERENCE = "REDRAFT_OPENINFERENCE"
WORDS = ["words:2-9"]
NAMES = {
    value
    for module in pkgutil.iter_modules(attribute_modules.__path__)
    for name, value in vars(
        importlib.import_module(f"{attribute_modules.__name__}.{module.name}")
    ).items()
    if name.isupper() and isinstance(value, str)
}
# what the conventions' registry says of each; the package has the names alone
TYPES = {
    str: {
        "error.type",
        "gen_ai.agent.name",
        "gen_ai.evaluation.explanation",
        "gen_ai.evaluation.name",
        "gen_ai.evaluation.score.label",
        "gen_ai.input.messages",  # any; JSON on a span
        "gen_ai.operation.name",
        "gen_ai.output.messages",
        "gen_ai.output.type",
        "gen_ai.provider.name",
        "gen_ai.request.model",
        "gen_ai.response.id",
        "gen_ai.response.model",
        "gen_ai.token.type",
        "gen_ai.workflow.name",
        "http.request.method",
        "http.route",
        "server.address",
        "session.id",
        "url.path",
        "url.scheme",
        "user.id",
    },
    int: {
        "gen_ai.request.choice.count",
        "gen_ai.request.max_tokens",
        "gen_ai.request.seed",
        "gen_ai.usage.cache_creation.input_tokens",
        "gen_ai.usage.cache_read.input_tokens",
        "gen_ai.usage.input_tokens",
        "gen_ai.usage.output_tokens",
        "gen_ai.usage.reasoning.output_tokens",
        "http.response.status_code",
        "server.port",
    },
    float: {
        "gen_ai.evaluation.score.value",
        "gen_ai.request.frequency_penalty",
        "gen_ai.request.presence_penalty",
        "gen_ai.request.temperature",
        "gen_ai.request.top_k",
        "gen_ai.request.top_p",
        "gen_ai.response.time_to_first_chunk",
    },
    bool: {"gen_ai.request.stream"},
    tuple: {"gen_ai.response.finish_reasons"},
}
TYPE_OF = {name: kind for kind, names in TYPES.items() for name in names}
OPENINFERENCE_NAMES = {
    "openinference.span.kind",
    *(f"{side}.{what}" for side in ("input", "output") for what in ("value", "mime_type")),
}
EVENTS = {"gen_ai.evaluation.result", "gen_ai.client.inference.operation.details"}


class Instruments:
    """Takes the place of a meter: the conventions' package tells it what a metric is."""

    def __getattr__(self, kind):
        return lambda name, description="", unit="": (name, (kind, unit))


METRICS = dict(
    create(Instruments())
    for module in (gen_ai_metrics, http_metrics)
    for name, create in vars(module).items()
    if name.startswith("create_")
)


def wrong_attributes(attributes):
    """Return the attributes that the conventions do not have, or that have another type."""
    return {
        name: value
        for name, value in attributes.items()
        if not name.startswith("redraft.")
        and name not in OPENINFERENCE_NAMES
        and (name not in NAMES or type(value) is not TYPE_OF.get(name))
    }


def own_spans(memory):
    """Without those of libraries, such as that of MCP."""
    return [span for span in memory.spans if span.instrumentation_scope.name == "redraft"]


def check(memory):
    """Everything that was recorded is in the conventions, or Redraft's own."""
    spans = own_spans(memory)
    assert spans
    for span in spans:
        assert wrong_attributes(span.attributes) == {}, span.name
        assert span.instrumentation_scope.schema_url == SCHEMA_URL
        for event in span.events:
            assert event.name in EVENTS or event.name.startswith("redraft."), event.name
            assert wrong_attributes(event.attributes) == {}
    for log in memory.logs.get_finished_logs():
        assert log.log_record.event_name in EVENTS
        messages = {"gen_ai.input.messages", "gen_ai.output.messages"}  # structured in an event
        named = {n: v for n, v in log.log_record.attributes.items() if n not in messages}
        assert wrong_attributes(named) == {}
        assert log.instrumentation_scope.schema_url == SCHEMA_URL
    data = memory.reader.get_metrics_data()
    for resource in data.resource_metrics if data else ():
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                if not metric.name.startswith("redraft."):
                    assert METRICS[metric.name] == ("create_histogram", metric.unit)
                    assert {p.explicit_bounds for p in metric.data.data_points} != set()
                for point in metric.data.data_points:
                    assert wrong_attributes(point.attributes) == {}, metric.name


def test_the_version_is_that_of_the_package():
    """The names are those of the newest conventions in the package; then TYPES is to be read
    again.
    """
    newest = [value for name, value in vars(schemas.Schemas).items() if name.startswith("V")][-1]
    assert newest.value == SCHEMA_URL
    assert {name for names in TYPES.values() for name in names} <= NAMES


@pytest.fixture
async def faults():
    async with FaultServer() as server:
        yield server


@pytest.fixture(params=["plain", "content"])
def recorded(memory, monkeypatch, request):
    """What is recorded without any setting, and with all of them."""
    if request.param == "content":
        monkeypatch.setenv(CONTENT, "span_and_event")
        monkeypatch.setenv(OPENINFERENCE, "true")
    return memory


ENDS = {
    "success": lambda: fs.good("a fine answer", usage=(7, 3)),
    "failure": lambda: fs.error(401, "no"),
    "cancel": lambda: fs.silence,
}


async def refine(faults, folder):
    options = {
        "temperature": 1,
        "max_tokens": 9,
        "seed": 1,
        "model_params": {"top_p": 0.5, "top_k": 3},
    }
    await redraft.refine("Say hi", Chat("tiny", faults.url), WORDS, **options)


async def batch(faults, folder):
    rows = [{"id": "a", "prompt": "Say hi"}]
    await redraft.batch(rows, str(folder / "out.jsonl"), Chat("tiny", faults.url), WORDS)


async def grade(faults, folder):
    judge = redraft.Judge({"truth": "It is true."})
    await redraft.grade(redraft.Task("q", "a"), judge, Chat("tiny", faults.url))


async def mcp(faults, folder):
    from mcp import Client

    from redraft.mcp_server.server import make_server
    from redraft.mcp_server.workbench import Workbench

    bench = Workbench(("one",), connect=lambda name: Chat("tiny", faults.url))
    async with Client(make_server(bench)) as client:
        await client.call_tool("refine", {"prompt": "Say hi", "requirements": WORDS})


def request(model, path="/chat/completions", **body):
    async def ask(faults, folder):
        config = config_for(folder, f"{faults.url}#tiny", graders=WORDS)
        async with running(config) as (url, _), http_client(url) as client:
            headers = {"baggage": "session.id=s-1,user.id=u-1,other=o"}
            await client.post(path, json={"model": model, **body}, headers=headers)

    return ask


CHAT = {"messages": PROMPT, "temperature": 0, "n": 1, "max_completion_tokens": 5}
FACES = {
    "refine": refine,
    "batch": batch,
    "grade": grade,
    "MCP": mcp,
    "refined request": request("refine/fast", messages=PROMPT),
    "passed request": request("pass/tiny", **CHAT),
    "passed stream": request("pass/tiny", **CHAT, stream=True, frequency_penalty=1),
    "passed embeddings": request("pass/tiny", "/embeddings", input="x"),
    "passed moderations": request("pass/tiny", "/moderations", input="x"),
    "passed completions": request("pass/tiny", "/completions", prompt="x", stream=True),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("face", FACES)
async def test_names_are_in_the_conventions(recorded, faults, tmp_path, face, end):
    """Attributes, events and metrics of every face, also where the work fails or is cancelled."""
    faults.says(ENDS[end]())
    work = asyncio.create_task(FACES[face](faults, tmp_path))
    if end == "cancel":
        while not (faults.requests or work.done()):
            await asyncio.sleep(0.001)
        work.cancel()
    with suppress(RedraftError, asyncio.CancelledError, ExceptionGroup):
        await work
    async with asyncio.timeout(60):
        while not memory_is_complete(recorded):
            await asyncio.sleep(0.001)
    check(recorded)


def memory_is_complete(memory):
    """Whether the outermost span has ended: a gateway ends after its client."""
    spans = own_spans(memory)
    ids = {span.context.span_id for span in spans}
    return any(not span.parent or span.parent.span_id not in ids for span in spans)


async def test_workflow_has_its_name(memory, tmp_path):
    """A refinement and a batch are workflows, by the names of both conventions."""
    rows = [{"prompt": "Say hi"}]
    await redraft.batch(rows, str(tmp_path / "out.jsonl"), ScriptedModel(["hello there"]), WORDS)
    assert {
        name: (
            span.attributes["gen_ai.operation.name"],
            span.attributes["gen_ai.workflow.name"],
            span.attributes["gen_ai.agent.name"],
        )
        for name in ("batch", "refine")
        for span in memory.named(f"invoke_workflow {name}")
    } == {name: ("invoke_workflow", name, name) for name in ("batch", "refine")}


# ---- what is recorded where


@pytest.mark.parametrize(
    ("variable", "value"), [(CONTENT, "yes"), (CONTENT, "1"), (OPENINFERENCE, "phoenix")]
)
async def test_wrong_settings_are_refused(memory, monkeypatch, variable, value):
    """The error names the variable, its value and what is allowed; a program that records nothing
    is not concerned.
    """
    from .conftest import configure

    monkeypatch.setenv(variable, value)
    with pytest.raises(
        redraft.errors.ConfigError, match=f"{variable} must be one of true.*{value}"
    ):
        await redraft.refine("Say hi", ScriptedModel(["hello there"]), WORDS)
    configure(monkeypatch)
    await redraft.refine("Say hi", ScriptedModel(["hello there"]), WORDS)


def kinds(memory):
    return {span.name: span.attributes.get("openinference.span.kind") for span in memory.spans}


async def test_openinference_kinds(memory, monkeypatch, faults, tmp_path):
    """Requests, refinements, steps and calls have the kinds of OpenInference if one setting asks
    for them, without any content.
    """
    faults.says(fs.good("a fine answer"))
    for setting in ("false", "true"):
        memory.exporter.clear()
        monkeypatch.setenv(OPENINFERENCE, setting)
        await FACES["refined request"](faults, tmp_path / setting)
        expected = {
            "POST /v1/chat/completions": "CHAIN",
            "invoke_workflow refine": "CHAIN",
            "generate": "CHAIN",
            "chat tiny": "LLM",
            "grade words:2-9": "EVALUATOR",
        }
        assert kinds(memory) == (expected if setting == "true" else dict.fromkeys(expected))
    assert "a fine answer" not in memory.text


async def test_openinference_values(memory, monkeypatch, faults, tmp_path):
    """Where content is recorded, each span has what went in and what came out, as a text or JSON,
    without secrets.
    """
    monkeypatch.setenv(OPENINFERENCE, "true")
    monkeypatch.setenv(CONTENT, "true")
    monkeypatch.setenv("SOME_API_KEY", "sk-live-abcdefghijklmnop1234567890")
    faults.says(fs.good("a fine answer sk-live-abcdefghijklmnop1234567890"))
    await FACES["refined request"](faults, tmp_path)
    values = {
        span.name: tuple(
            (span.attributes[f"{side}.value"], span.attributes[f"{side}.mime_type"])
            for side in ("input", "output")
        )
        for span in memory.spans
    }
    json_of_prompt, text = "Say it well.", "a fine answer"
    for name in ("POST /v1/chat/completions", "invoke_workflow refine", "chat tiny"):
        (given, given_type), (came, came_type) = values[name]
        assert (given_type, came_type) == ("application/json",) * 2
        assert json.loads(given)[-1]["parts"][-1]["content"] == json_of_prompt
        assert json.loads(came)[0]["parts"][0]["content"].startswith(text)
    assert values["generate"][1][0].startswith(text) and values["generate"][1][1] == "text/plain"
    (graded, _), (verdict, _) = values["grade words:2-9"]
    assert graded.startswith(text) and json.loads(verdict)["score"] == 1.0
    assert "sk-live" not in memory.text


@pytest.mark.parametrize(
    ("baggage", "expected"),
    [
        ("session.id=s-1,user.id=u%201", ("s-1", "u 1")),
        ("user.id=u", (None, "u")),
        ("session.id=" + "x" * 1000, ("x" * 200, None)),
        ("", (None, None)),
        ("session.id", (None, None)),
    ],
)
async def test_session_and_user_of_a_request(memory, faults, tmp_path, baggage, expected):
    """The IDs in a client's baggage are on every span of the request, bounded, and are not sent
    on.
    """
    faults.says(fs.good("a fine answer"))
    config = config_for(tmp_path, f"{faults.url}#tiny", graders=WORDS)
    async with running(config) as (url, _), http_client(url) as client:
        for model in ("refine/fast", "pass/tiny"):
            body = {"model": model, "messages": PROMPT}
            await client.post("/chat/completions", json=body, headers={"baggage": baggage})
    assert len(memory.spans) == 7
    for span in memory.spans:
        assert tuple(map(span.attributes.get, ("session.id", "user.id"))) == expected, span.name
    assert not any("baggage" in request.headers for request in faults.requests)


async def test_session_and_user_of_a_program(memory, tmp_path):
    """Python sets them as baggage, or in the context as OpenInference does; rows of a batch have
    them, too.
    """
    from opentelemetry import baggage, context

    named = baggage.set_baggage("user.id", "u", context.set_value("session.id", "s"))
    token = context.attach(named)
    try:
        rows = [{"prompt": "Say hi"}]
        await redraft.batch(
            rows, str(tmp_path / "out.jsonl"), ScriptedModel(["hello there"]), WORDS
        )
    finally:
        context.detach(token)
    assert len(memory.spans) == 5
    for span in memory.spans:
        assert (span.attributes["session.id"], span.attributes["user.id"]) == ("s", "u"), span.name


# ---- requests that are passed on

TOOL_CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "search", "arguments": '{"q": 1}'},
}
DETAILS = {
    "prompt_tokens": 70,
    "completion_tokens": 30,
    "prompt_tokens_details": {"cached_tokens": 20},
    "completion_tokens_details": {"reasoning_tokens": 10},
}
CHAT_ID = {"id": "chatcmpl-7", "model": "tiny-2026"}
CLAUDE = {"id": "msg_7", "type": "message", "role": "assistant", "model": "claude-2026"}
CLAUDE_USAGE = {"input_tokens": 5, "cache_read_input_tokens": 20, "cache_creation_input_tokens": 45}
RESPONSE = {
    "id": "resp_7",
    "object": "response",
    "model": "tiny-2026",
    "status": "completed",
    "output": [
        {
            "type": "message",
            "id": "m1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "a fine answer", "annotations": []}],
        }
    ],
    "usage": {
        "input_tokens": 70,
        "output_tokens": 30,
        "input_tokens_details": {"cached_tokens": 20},
        "output_tokens_details": {"reasoning_tokens": 10},
    },
}
CHUNKS = (
    CHAT_ID | fs.chunk("a fine "),
    CHAT_ID | fs.chunk("answer", tool_calls=[{"index": 0, **TOOL_CALL}]),
    CHAT_ID | fs.chunk(finish="tool_calls"),
    {**CHAT_ID, "choices": [], "usage": DETAILS},
)
CLAUDE_EVENTS = (
    {"type": "message_start", "message": {**CLAUDE, "content": [], "usage": CLAUDE_USAGE}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "text_delta", "text": "a fine answer"},
    },
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 30}},
    {"type": "message_stop"},
)
CALLED = fs.completion("a fine answer", "tool_calls", tool_calls=[TOOL_CALL])
REPLIES = {  # the path, the reply of the model, and what is not the same for all
    "chat": ("/chat/completions", fs.http(CALLED | CHAT_ID | {"usage": DETAILS})),
    "chat stream": ("/chat/completions", fs.send_and_close(fs.sse(*CHUNKS))),
    "responses": ("/responses", fs.http(RESPONSE)),
    "responses stream": (
        "/responses",
        fs.send_and_close(
            fs.sse(
                {"type": "response.created", "response": {**RESPONSE, "output": []}},
                {"type": "response.completed", "response": RESPONSE},
                done=False,
            )
        ),
    ),
    "messages": (
        "/messages",
        fs.http(
            {
                **CLAUDE,
                "content": [{"type": "text", "text": "a fine answer"}],
                "stop_reason": "end_turn",
                "usage": {**CLAUDE_USAGE, "output_tokens": 30},
            }
        ),
    ),
    "messages stream": ("/messages", fs.send_and_close(fs.sse(*CLAUDE_EVENTS, done=False))),
}


async def pass_on(faults, folder, path, **body):
    """Pass a request on to a model that speaks the protocol of the path."""
    config = config_for(folder, f"{faults.url}#tiny", graders=WORDS)
    kind = "anthropic" if path == "/messages" else "openai"
    config = replace(config, models={"tiny": replace(config.models["tiny"], kind=kind)})
    asked = {"input": "Say it well."} if path == "/responses" else {"messages": PROMPT}
    limit = {"max_output_tokens" if path == "/responses" else "max_tokens": 500}
    async with running(config) as (url, gateway), http_client(url) as client:
        reply = await client.post(path, json={"model": "pass/tiny", **asked, **limit, **body})
        await wait_until_recorded(gateway)
    return reply


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("content", ["false", "true"])
@pytest.mark.parametrize("name", REPLIES)
async def test_a_passed_call_is_described_like_any_other(
    memory, monkeypatch, faults, tmp_path, name, content
):
    """In every protocol, whole and as a stream: its parameters, its reply with all its tokens, the
    time to the first chunk of a stream, and what was said if content is recorded.
    """
    monkeypatch.setenv(CONTENT, content)
    path, answer = REPLIES[name]
    faults.says(answer)
    is_stream = name.endswith("stream")
    reply = await pass_on(faults, tmp_path, path, stream=is_stream, temperature=0.5)
    assert reply.status_code == 200, reply.text
    got = dict(memory.one("chat tiny").attributes)
    is_claude = path == "/messages"
    said = {n: got.pop(n, None) for n in ("gen_ai.input.messages", "gen_ai.output.messages")}
    first = got.pop("gen_ai.response.time_to_first_chunk", None)
    assert (first is not None and 0 < first < 60) is is_stream
    assert got == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "anthropic" if is_claude else "openai",
        "gen_ai.request.model": "tiny",
        "gen_ai.request.max_tokens": 500,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.stream": is_stream,
        "gen_ai.response.id": {"/messages": "msg_7", "/responses": "resp_7"}.get(
            path, "chatcmpl-7"
        ),
        "gen_ai.response.model": "claude-2026" if is_claude else "tiny-2026",
        "gen_ai.response.finish_reasons": (
            {"/messages": "end_turn", "/responses": "completed"}.get(path, "tool_calls"),
        ),
        "gen_ai.usage.input_tokens": 70,
        "gen_ai.usage.output_tokens": 30,
        "gen_ai.usage.cache_read.input_tokens": 20,
        **(
            {"gen_ai.usage.cache_creation.input_tokens": 45}
            if is_claude
            else {"gen_ai.usage.reasoning.output_tokens": 10}
        ),
        "redraft.usage.cost": got["redraft.usage.cost"],
        "redraft.call.is_judgement": False,
        "server.address": "127.0.0.1",
        "server.port": faults.port,
    }
    assert len(memory.metrics["gen_ai.client.operation.time_to_first_chunk"]) == is_stream
    if content == "true":
        (asked,), (answered,) = (json.loads(said[each]) for each in said)
        assert asked["parts"] == [{"type": "text", "content": "Say it well."}]
        assert answered["parts"][0] == {"type": "text", "content": "a fine answer"}
        called = [{"type": "tool_call", "id": "c1", "name": "search", "arguments": '{"q": 1}'}]
        assert answered["parts"][1:] == (called if path == "/chat/completions" else [])
    else:
        assert set(said.values()) == {None} and "fine answer" not in memory.text


@pytest.mark.parametrize(
    ("path", "body", "operation"),
    [
        ("/embeddings", {"input": "x"}, "embeddings"),
        ("/moderations", {"input": "x"}, "moderations"),
        ("/completions", {"prompt": "x"}, "text_completion"),
    ],
)
async def test_operation_of_a_passed_request(memory, faults, tmp_path, path, body, operation):
    """A request for anything but a conversation is no chat."""
    usage = {"prompt_tokens": 7, "prompt_tokens_details": {"cached_tokens": 2}}
    lists = {"data": [], "results": [], "choices": [{"text": "y", "finish_reason": "stop"}]}
    faults.says(fs.http({**CHAT_ID, **lists, "usage": usage}))
    await request("pass/tiny", path, **body)(faults, tmp_path)
    span = memory.one(operation)
    assert span.attributes["gen_ai.operation.name"] == operation
    assert span.attributes["gen_ai.response.model"] == "tiny-2026"
    assert span.attributes["gen_ai.usage.cache_read.input_tokens"] == 2


@pytest.mark.parametrize("value", ["0.5", True, float("1e300"), 2**70, None, [], {}])
async def test_parameters_of_a_client_that_are_none(memory, faults, tmp_path, value):
    """What is no such value is left out; the span is recorded all the same."""
    faults.says(fs.good("fine"))
    names = ("temperature", "top_p", "seed", "n", "max_tokens")
    await request("pass/tiny", messages=PROMPT, **dict.fromkeys(names, value))(faults, tmp_path)
    assert not [n for n in memory.one("chat tiny").attributes if n.startswith("gen_ai.request.")][
        1:
    ]


@pytest.mark.parametrize("face", ["refine/fast", "pass/tiny"])
async def test_content_of_a_call_that_fails(memory, monkeypatch, faults, tmp_path, face):
    """What was asked is on its span where content is recorded."""
    monkeypatch.setenv(CONTENT, "true")
    faults.says(fs.error(400, "no"))
    await request(face, messages=PROMPT)(faults, tmp_path)
    call = memory.one("chat tiny")
    assert "Say it well." in call.attributes["gen_ai.input.messages"]
    assert "gen_ai.output.messages" not in call.attributes and call.attributes["error.type"]


async def test_tokens_of_a_refinement_that_are_counted_apart(memory, faults):
    """A call of a refinement says which tokens came from a cache and which are reasoning; DeepSeek
    counts what was no hit, too, which is none.
    """
    usages = (DETAILS, {"prompt_cache_hit_tokens": 20, "prompt_cache_miss_tokens": 50})
    for usage in usages:
        memory.exporter.clear()
        faults.says(fs.http(fs.completion("a fine answer") | {"usage": usage}))
        await redraft.refine("Say hi", Chat("tiny", faults.url), WORDS)
        attributes = memory.one("chat").attributes
        assert attributes["gen_ai.usage.cache_read.input_tokens"] == 20
        reasoning = attributes.get("gen_ai.usage.reasoning.output_tokens")
        assert reasoning == (10 if usage is DETAILS else None)


# ---- requests to the gateway


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", ["refine/fast", "pass/tiny"])
async def test_a_client_that_went_away_has_a_status(memory, faults, tmp_path, model, stream):
    """Its request has the status 499, in its span and in the metric, as in the access log."""
    faults.says(fs.silence)
    config = config_for(tmp_path, f"{faults.url}#tiny", graders=WORDS)
    async with running(config) as (url, _), http_client(url) as client:
        body = {"model": model, "messages": PROMPT, "stream": stream}
        asking = asyncio.create_task(client.post("/chat/completions", json=body))
        while not faults.requests:
            await asyncio.sleep(0.001)
        asking.cancel()
        async with asyncio.timeout(60):
            while not memory.named("POST"):
                await asyncio.sleep(0.001)
    span = memory.one("POST")
    assert span.attributes["http.response.status_code"] == 499
    assert "error.type" not in span.attributes
    (point,) = memory.metrics["http.server.request.duration"]
    assert dict(point.attributes) == {
        "http.request.method": "POST",
        "url.scheme": "http",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 499,
    }


async def test_durations_of_requests(memory, faults, tmp_path):
    """Each request is measured by route and status; paths that do not exist make no series."""
    faults.says(fs.error(401, "no"))
    config = config_for(tmp_path, f"{faults.url}#tiny", graders=WORDS)
    async with running(config) as (url, _), http_client(url) as client:
        await client.post("/chat/completions", json={"model": "pass/tiny", "messages": PROMPT})
        for n in range(3):
            await client.get(f"/none-{n}")
    points = {
        (each.attributes.get("http.route"), each.attributes["http.response.status_code"]): each
        for each in memory.metrics["http.server.request.duration"]
    }
    assert {key: point.count for key, point in points.items()} == {
        ("/v1/chat/completions", 502): 1,
        (None, 404): 3,
    }
    failed = points["/v1/chat/completions", 502]
    assert failed.attributes["error.type"] == "502" and failed.sum > 0
    assert failed.explicit_bounds[:3] == (0.005, 0.01, 0.025)
