"""Every name that is emitted is one of the conventions' package, with its type and unit, or begins
with `redraft.`: over all that Redraft does, and however it ends.
"""

import asyncio
import importlib
import json
import pkgutil
from contextlib import suppress

import fault_server as fs
import pytest
from fault_server import FaultServer
from opentelemetry.semconv import schemas
from opentelemetry.semconv._incubating import attributes as attribute_modules
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics, http_metrics

import redraft
from gateway.running import PROMPT, config_for, http_client, running
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
    assert SCHEMA_URL == newest.value
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
