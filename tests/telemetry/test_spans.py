"""What is recorded of refinements, batches and calls, with the SDK's exporters in memory."""

import asyncio
import json
import subprocess
import sys
from contextlib import aclosing

import fault_server as fs
import pytest
from fault_server import FaultServer
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

import redraft
from redraft.errors import GradingError, ModelError, RateLimitError
from redraft.loop.records import Feedback
from redraft.models import Chat, ScriptedModel
from redraft.protocols import Reply
from redraft.session.options import Options
from redraft.session.refinement import prepare_refinement
from redraft.telemetry import active_recorder
from redraft.usage import Usage

from .conftest import CONTENT, configure

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
WORDS = ["words:3-9"]


def parent_of(span, spans):
    return next(
        (
            each.name
            for each in spans
            if span.parent and each.context.span_id == span.parent.span_id
        ),
        None,
    )


@pytest.fixture
async def faults():
    async with FaultServer() as server:
        yield server


def verdict(score, reason="because"):
    criteria = {"truth": {"evidence": "e", "change": "say more", "score": score}}
    return json.dumps({"reason": reason, "criteria": criteria, "done": False})


async def test_tree_of_a_refinement(memory):
    """One span a refinement, one a step, one a call, each in its parent."""
    await redraft.refine(
        "Say hi", ScriptedModel(["hi", "hello there my friend"]), WORDS, editor=False
    )
    spans = memory.spans
    assert [(span.name, parent_of(span, spans)) for span in spans] == [
        ("invoke_workflow refine", None),
        ("generate", "invoke_workflow refine"),
        ("chat scripted", "generate"),
        ("grade words:3-9", "invoke_workflow refine"),
        ("refine", "invoke_workflow refine"),
        ("chat scripted", "refine"),
        ("grade words:3-9", "invoke_workflow refine"),
    ]
    assert {span.status.status_code for span in spans} == {StatusCode.UNSET}
    assert len({span.context.trace_id for span in spans}) == 1
    root = spans[0].attributes
    assert (root["gen_ai.operation.name"], root["gen_ai.agent.name"]) == (
        "invoke_workflow",
        "refine",
    )
    assert (
        root["redraft.stop"],
        root["redraft.score"],
        root["redraft.candidates"],
        root["redraft.best"],
    ) == ("target", 1.0, 2, 1)
    assert root["redraft.usage.calls"] == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_call_of_a_server(memory, faults, stream):
    """A call says which model was asked at which address, what it answered, what that took, and for
    a stream when it began; its trace context is sent.
    """
    identity = {"id": "chatcmpl-7", "model": "tiny-2026-11-01"}
    usage = {"prompt_tokens": 7, "completion_tokens": 3}
    if stream:
        faults.says(
            fs.sse(
                identity | fs.chunk("a fine answer"),
                identity | fs.chunk(finish="stop"),
                {"choices": [], "usage": usage},
            )
        )
    else:
        faults.says(fs.http(fs.completion("a fine answer") | identity))
    model = Chat("tiny", faults.url, stream=stream)
    await redraft.refine("Say hi", model, WORDS, temperature=0.5, max_tokens=50, seed=9)
    span = memory.one("chat")
    assert span.name == "chat tiny" and span.kind is SpanKind.CLIENT
    got = dict(span.attributes)
    first = got.pop("gen_ai.response.time_to_first_chunk", None)
    assert (first is not None and 0 < first < 60) is stream
    assert len(memory.metrics.get("gen_ai.client.operation.time_to_first_chunk", ())) == stream
    assert got == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "tiny",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.max_tokens": 50,
        "gen_ai.request.seed": 9,
        "gen_ai.response.id": "chatcmpl-7",
        "gen_ai.response.model": "tiny-2026-11-01",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 3,
        "server.address": "127.0.0.1",
        "server.port": faults.port,
        "redraft.call.is_judgement": False,
    }
    context = span.context
    assert (
        faults.requests[0]
        .headers["traceparent"]
        .startswith(f"00-{context.trace_id:032x}-{context.span_id:016x}-0")
    )


@pytest.mark.parametrize(
    ("grader", "path", "reply", "operation"),
    [
        (
            "embedding:{}#m",
            "/embeddings",
            {"data": [{"index": i, "embedding": [1.0]} for i in range(2)]},
            "embeddings",
        ),
        ("reward:{}/classify#m", "/classify", {"data": [{"probs": [0.5]}]}, "classify"),
    ],
)
async def test_call_of_a_server_that_returns_numbers(
    memory, faults, grader, path, reply, operation
):
    """Its operation is no chat; it is a child of the grade, and says what it took."""
    faults.says(fs.http(reply | {"usage": {"prompt_tokens": 7}}))
    await redraft.grade(redraft.Task("q", "a", reference="b"), grader.format(faults.url))
    span = memory.one(operation)
    assert (span.name, span.attributes["gen_ai.operation.name"]) == (f"{operation} m", operation)
    assert (span.attributes["gen_ai.usage.input_tokens"], faults.requests[0].path) == (
        7,
        f"/v1{path}",
    )


@pytest.mark.parametrize(
    ("propagators", "is_sent"), [("tracecontext,baggage", True), ("none", False), ("b3", False)]
)
async def test_trace_context_is_sent_as_the_program_wants(
    memory, faults, monkeypatch, propagators, is_sent
):
    """OTEL_PROPAGATORS without `tracecontext` sends nothing to model servers and takes nothing from
    clients.
    """
    monkeypatch.setenv("OTEL_PROPAGATORS", propagators)
    faults.says(fs.good("a fine answer"))
    with active_recorder().remote_context({"traceparent": TRACEPARENT}):
        await redraft.refine("Say hi", Chat("tiny", faults.url), WORDS)
    assert ("traceparent" in faults.requests[0].headers) is is_sent
    assert (memory.one("invoke").parent is not None) is is_sent
    assert "baggage" not in faults.requests[0].headers


async def test_evaluation_event_per_grade(memory):
    """Each grade is an event under the call that wrote the answer, with the fingerprint of its
    grader and no explanation.
    """
    writer = ScriptedModel(
        [Reply("too short", response_id="r-1"), Reply("now it is long enough", response_id="r-2")]
    )
    judge = ScriptedModel(
        [verdict(2, "SECRETIVE reason"), verdict(5, "SECRETIVE reason")], name="judge-model"
    )
    graders = [redraft.must("words:3-9"), redraft.Judge({"truth": "It is true."})]
    options = Options.from_settings(
        {"editor": False, "target_score": 0.9, "noise_aware": False}, None
    )
    refinement = await prepare_refinement("Say hi", writer, graders, judge, options)
    result = await redraft.refine(
        "Say hi", writer, graders, judge, editor=False, target_score=0.9, noise_aware=False
    )
    chats = [
        span
        for span in memory.named("chat scripted")
        if not span.attributes["redraft.call.is_judgement"]
    ]
    events = memory.events
    assert {event.event_name for event in events} == {"gen_ai.evaluation.result"}
    by_candidate = {
        (e.attributes["redraft.candidate.id"], e.attributes["gen_ai.evaluation.name"]): e
        for e in events
    }
    assert len(by_candidate) == len(events) == len(memory.named("grade")) > 2
    for (candidate, grader), event in by_candidate.items():
        assert event.span_id == chats[candidate].context.span_id
        assert event.attributes["gen_ai.response.id"] == f"r-{candidate + 1}"
        assert event.attributes["redraft.grader.fingerprint"] == refinement.roles.fingerprint(
            grader
        )
        assert "gen_ai.evaluation.explanation" not in event.attributes
    musts = [
        (
            e.attributes["gen_ai.evaluation.score.value"],
            e.attributes["gen_ai.evaluation.score.label"],
        )
        for (_, g), e in by_candidate.items()
        if g == "words:3-9"
    ]
    assert (0.0, "fail") in musts and (1.0, "pass") in musts
    judged = [e.attributes for (_, g), e in by_candidate.items() if g != "words:3-9"]
    assert judged and all("gen_ai.evaluation.score.label" not in each for each in judged)
    assert judged[-1]["gen_ai.evaluation.score.value"] == pytest.approx(
        result.trace.feedback[1][-1].score
    )
    assert judged[-1]["redraft.grader.model"] == "judge-model"
    assert "SECRETIVE" not in memory.text


async def test_events_of_spans_without_a_logger_provider(memory, monkeypatch):
    """A program that configured only traces gets the evaluation as an event of the span of the
    grade.
    """
    configure(monkeypatch, memory.tracers)
    await redraft.refine("Say hi", ScriptedModel(["hello there my friend"]), WORDS)
    (event,) = memory.one("grade").events
    assert event.name == "gen_ai.evaluation.result"
    assert (
        event.attributes["gen_ai.evaluation.name"],
        event.attributes["gen_ai.evaluation.score.value"],
    ) == ("words:3-9", 1.0)


async def test_grader_that_fails(memory):
    """A grade that failed is an event with an error and without a score; the message of the error
    stays here.
    """

    def broken(text):
        raise ZeroDivisionError("SECRETIVE message")

    with pytest.raises(GradingError):
        await redraft.refine("Say hi", ScriptedModel(["hello there my friend"] * 9), [broken])
    grade = memory.named("grade")[0]
    assert grade.status.status_code is StatusCode.ERROR
    assert (
        grade.attributes["error.type"]
        == memory.events[0].attributes["error.type"]
        == "GradingError"
    )
    assert "gen_ai.evaluation.score.value" not in memory.events[0].attributes
    root = memory.one("invoke")
    assert (root.status.status_code, root.attributes["redraft.stop"]) == (
        StatusCode.ERROR,
        "failed",
    )
    assert "SECRETIVE" not in memory.text


async def test_call_that_fails(memory, faults):
    """A call that failed has the kind of its error and its status; neither the server's message nor
    the key is recorded.
    """
    faults.says(fs.error(401, "SECRETIVE message sk-canary-4711-abcdef"))
    with pytest.raises(ModelError):
        await redraft.refine("Say hi", Chat("tiny", faults.url, key="sk-canary-4711-abcdef"), WORDS)
    chat, step, root = memory.one("chat"), memory.one("generate"), memory.one("invoke")
    assert chat.attributes["error.type"] == step.attributes["error.type"] == "AuthenticationError"
    assert chat.status.description == step.status.description == "AuthenticationError (status 401)"
    assert {span.status.status_code for span in (chat, step, root)} == {StatusCode.ERROR}
    assert "SECRETIVE" not in memory.text and "canary" not in memory.text
    (point,) = memory.metrics["gen_ai.client.operation.duration"]
    assert point.attributes["error.type"] == "AuthenticationError" and point.count == 1
    assert "gen_ai.client.token.usage" not in memory.metrics


async def test_retries_are_one_call(memory):
    """A call with its retries is one span: the conventions say so, and the tokens of all attempts
    are its own.
    """
    refused = RateLimitError("later", retryable=True, retry_after=0.0, usage=Usage(calls=1))
    await redraft.refine(
        "Say hi", ScriptedModel([refused, "hello there my friend"]), WORDS, retries=2
    )
    assert memory.one("chat").attributes["redraft.usage.retried_calls"] == 1
    assert memory.one("chat").status.status_code is StatusCode.UNSET


async def test_answer_from_the_cache_is_no_call(memory):
    """What a cache answers has no span of a call, and its step says so."""
    cache, model = {}, ScriptedModel(["hello there my friend"])
    for _ in range(2):
        await redraft.refine("Say hi", model, WORDS, cache=cache)
    assert len(memory.named("chat")) == 1
    assert memory.named("generate")[1].attributes["redraft.usage.cached_calls"] == 1


@pytest.mark.parametrize("end", ["cancel", "close"])
async def test_interrupted_refinement_ends_its_spans(memory, end):
    """When a refinement is cancelled, or its stream is closed early, all its spans end, with an
    error where work was cut off.
    """
    asked, never = asyncio.Event(), asyncio.Event()

    async def slow(messages):
        if len(messages) > 1 or asked.is_set():
            await never.wait()
        asked.set()
        return "hi"

    async def run():
        async with aclosing(redraft.stream("Say hi", slow, WORDS, editor=False)) as traces:
            async for latest in traces:
                if end == "close" and latest.candidates:
                    break

    task = asyncio.create_task(run())
    if end == "cancel":
        await asyncio.wait_for(asked.wait(), 60)
        while not memory.named("grade"):
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        await task
    root = memory.one("invoke")
    assert (root.status.status_code, root.attributes["error.type"]) == (
        StatusCode.ERROR,
        "CancelledError",
    )
    assert root.attributes["redraft.stop"] == "cancelled"
    if end == "cancel":
        assert memory.one("refine").attributes["error.type"] == "CancelledError"
        assert trace.get_current_span() is trace.INVALID_SPAN


async def test_many_at_once_keep_apart(memory):
    """Refinements that run at the same time never take each other's spans as parents."""

    async def answer(messages):
        await asyncio.sleep(0.001 * (len(messages[-1]["content"]) % 5))
        return "four words of it"

    tasks = [f"Question {'x' * n}" for n in range(30)]
    await redraft.refine_many(tasks, answer, WORDS, max_in_flight=10)
    spans = memory.spans
    by_id = {span.context.span_id: span for span in spans}
    roots = memory.named("invoke")
    assert len(roots) == len({root.context.trace_id for root in roots}) == 30
    for span in spans:
        if span.parent:
            assert by_id[span.parent.span_id].context.trace_id == span.context.trace_id
            assert (
                by_id[span.parent.span_id].start_time
                <= span.start_time
                <= span.end_time
                <= by_id[span.parent.span_id].end_time
            )
    assert sorted(span.name for span in spans) == sorted(
        ["invoke_workflow refine", "generate", "chat answer", "grade words:3-9"] * 30
    )


async def test_span_of_the_program_is_the_parent(memory):
    """A refinement belongs to the span that is current where it is started, in a thread of its own
    as well.
    """
    tracer = trace.get_tracer("program")
    with tracer.start_as_current_span("request") as request:
        await redraft.refine("Say hi", ScriptedModel(["hello there my friend"]), WORDS)
        redraft.refine_sync("Say hi", ScriptedModel(["hello there my friend"]), WORDS)
    assert [span.parent.span_id for span in memory.named("invoke")] == [
        request.get_span_context().span_id
    ] * 2


async def test_span_of_another_service_is_the_parent(memory):
    """The span that a request names becomes the parent of what is recorded meanwhile."""
    with active_recorder().remote_context({"traceparent": TRACEPARENT}):
        await redraft.refine("Say hi", ScriptedModel(["hello there my friend"]), WORDS)
    root = memory.one("invoke")
    assert (f"{root.context.trace_id:032x}", f"{root.parent.span_id:016x}") == tuple(
        TRACEPARENT.split("-")[1:3]
    )


@pytest.mark.parametrize(
    "header", ["", "00-zz-11-01", "x" * 10_000, "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "\ud800"]
)
async def test_broken_trace_context_is_ignored(memory, header):
    """A header that names no span changes nothing."""
    with active_recorder().remote_context({"traceparent": header}):
        await redraft.refine("Say hi", ScriptedModel(["hello there my friend"]), WORDS)
    assert memory.one("invoke").parent is None


async def test_grader_that_refines(memory):
    """A refinement inside a grader is a part of that grade."""

    async def nested(text):
        await redraft.refine(
            "Say more", ScriptedModel(["hello there my friend"], name="inner"), WORDS
        )
        return 1.0

    await redraft.refine("Say hi", ScriptedModel(["hello there my friend"], name="outer"), [nested])
    outer, inner = memory.named("invoke")
    assert parent_of(inner, memory.spans) == "grade nested" and outer.parent is None


# ---- content

SECRETS = (
    "PROMPT-4711",
    "CONTEXT-4711",
    "ANSWER-4711",
    "REASON-4711",
    "SYSTEM-4711",
    "REFERENCE-4711",
    "EXCEPTION-4711",
)


async def refine_secrets():
    def graded(text):
        return Feedback(0.5, "REASON-4711")

    def broken(text):
        raise ValueError("EXCEPTION-4711 ANSWER-4711")

    messages = [
        {"role": "system", "content": "SYSTEM-4711"},
        {"role": "user", "content": "PROMPT-4711 sk-live-abcdefghijklmnop1234567890"},
    ]
    task = redraft.Task(messages, context="CONTEXT-4711", reference="REFERENCE-4711")
    writer = ScriptedModel(["ANSWER-4711", "ANSWER-4711 again", ModelError("EXCEPTION-4711")])
    with pytest.raises(GradingError):
        await redraft.refine(task, writer, [graded, broken], editor=False, max_iterations=1)


async def test_no_content_is_recorded(memory):
    """Prompts, answers, reasons and messages of errors stay out of spans, events and metrics."""
    await refine_secrets()
    assert [secret for secret in SECRETS if secret in memory.text] == []
    assert "sk-live" not in memory.text
    assert "chat scripted" in memory.text


@pytest.mark.parametrize(
    ("value", "on_spans", "in_events"),
    [
        ("true", True, False),
        ("SPAN_ONLY", True, False),
        ("EVENT_ONLY", False, True),
        ("span_and_event", True, True),
        ("false", False, False),
        ("NO_CONTENT", False, False),
    ],
)
async def test_content_where_the_program_wants_it(memory, monkeypatch, value, on_spans, in_events):
    """The usual variable puts content on spans, in events, or both; keys of the environment are
    masked there too.
    """
    monkeypatch.setenv(CONTENT, value)
    monkeypatch.setenv("SOME_API_KEY", "sk-live-abcdefghijklmnop1234567890")
    await refine_secrets()
    spans = "\n".join(span.to_json() for span in memory.named("chat") + memory.named("invoke"))
    details = [
        each
        for each in memory.events
        if each.event_name == "gen_ai.client.inference.operation.details"
    ]
    assert ("PROMPT-4711" in spans, "ANSWER-4711" in spans, "SYSTEM-4711" in spans) == (
        on_spans,
    ) * 3
    assert bool(details) is in_events
    if in_events:
        assert (
            details[0].attributes["gen_ai.input.messages"][0]["parts"][0]["content"]
            == "SYSTEM-4711"
        )
    assert ("REASON-4711" in memory.text) is (on_spans or in_events)
    assert "sk-live-abcdefghijklmnop1234567890" not in memory.text


async def test_messages_by_the_conventions(memory, monkeypatch):
    """Messages have the form of the conventions' schema; images are named and not copied; the
    length is bounded.
    """
    monkeypatch.setenv(CONTENT, "true")
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 1000}}
    call = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "look \ud800"}, picture]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "x" * 200_000},
    ]
    await redraft.refine(messages, ScriptedModel(["hello there my friend"]), WORDS)
    recorded = json.loads(memory.one("chat").attributes["gen_ai.input.messages"])
    assert recorded[0]["parts"] == [{"type": "text", "content": "look ?"}, {"type": "image_url"}]
    assert recorded[1]["parts"] == [
        {"type": "tool_call", "id": "c1", "name": "search", "arguments": "{}"}
    ]
    assert recorded[2]["parts"][0]["type"] == "tool_call_response"
    assert len(json.dumps(recorded)) < 70_000
    (answer,) = json.loads(memory.one("chat").attributes["gen_ai.output.messages"])
    assert answer == {
        "role": "assistant",
        "parts": [{"type": "text", "content": "hello there my friend"}],
        "finish_reason": "stop",
    }


# ---- metrics


async def test_metrics(memory, faults):
    """The durations and the tokens of calls, by model and kind of token, in the conventions'
    buckets.
    """
    faults.says(fs.good("a fine answer", usage=(70, 3)))
    await redraft.refine("Say hi", Chat("tiny", faults.url), WORDS)
    (seconds,) = memory.metrics["gen_ai.client.operation.duration"]
    assert (
        seconds.count == 1 and 0 < seconds.sum < 10 and seconds.explicit_bounds[:2] == (0.01, 0.02)
    )
    points = {
        point.attributes["gen_ai.token.type"]: point
        for point in memory.metrics["gen_ai.client.token.usage"]
    }
    assert {kind: point.sum for kind, point in points.items()} == {"input": 70, "output": 3}
    assert points["input"].explicit_bounds[:3] == (1, 4, 16)
    assert dict(points["input"].attributes) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "tiny",
        "gen_ai.token.type": "input",
        "server.address": "127.0.0.1",
        "server.port": faults.port,
    }
    assert dict(seconds.attributes) == {
        name: value for name, value in points["input"].attributes.items() if "token" not in name
    }


async def test_no_server_makes_series(memory, faults):
    """Each answer names another model, and is one of the same two histograms."""
    faults.says(
        *(fs.http({**fs.completion("Hi you all"), "model": f"tiny-{n}"}) for n in range(20))
    )
    for _ in range(20):
        await redraft.refine("Say hi", Chat("tiny", faults.url), WORDS)
    assert len(memory.metrics["gen_ai.client.operation.duration"]) == 1
    assert len(memory.metrics["gen_ai.client.token.usage"]) == 2


async def test_unknown_tokens_are_not_counted(memory):
    """Tokens that no one told are not 0: there is no point for them."""

    async def answer(messages):
        return "hello there my friend"

    await redraft.refine("Say hi", answer, WORDS)
    assert "gen_ai.client.token.usage" not in memory.metrics
    assert "gen_ai.usage.input_tokens" not in memory.one("chat").attributes
    assert "redraft.usage.input_tokens" not in memory.one("invoke").attributes


# ---- batches


async def test_rows_of_a_batch_are_traces_of_their_own(memory, tmp_path):
    """A row is a trace, linked to the span of the run; both name the run."""
    rows = [{"id": f"row-{n}", "prompt": f"Question {n}"} for n in range(3)]
    await redraft.batch(
        rows, str(tmp_path / "out.jsonl"), lambda messages: "hello there my friend", WORDS
    )
    run, roots = memory.one("invoke_workflow batch"), memory.named("invoke_workflow refine")
    assert [root.parent for root in roots] == [None] * 3
    assert len({span.context.trace_id for span in (run, *roots)}) == 4
    assert {link.context.span_id for root in roots for link in root.links} == {run.context.span_id}
    assert {root.attributes["redraft.row.id"] for root in roots} == {"row-0", "row-1", "row-2"}
    assert {span.attributes["redraft.run.name"] for span in (run, *roots)} == {
        run.attributes["redraft.run.name"]
    }
    assert len({event.trace_id for event in memory.events}) == 3


# ---- nothing is configured


@pytest.mark.slow
def test_nothing_is_imported_without_it():
    """A program that does not use OpenTelemetry does not load it, and `import redraft` loads
    nothing of it.
    """
    code = (
        "import sys, redraft\n"
        "assert 'redraft.telemetry' not in sys.modules\n"
        "from redraft.models import ScriptedModel\n"
        "redraft.refine_sync('Say hi', ScriptedModel(['hello there my friend']), ['words:3-9'])\n"
        "assert 'redraft.telemetry.recorder' not in sys.modules\n"
        "print(sorted(name for name in sys.modules if 'opentelemetry' in name))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "[]\n"


async def test_nothing_is_recorded_by_the_api_alone(monkeypatch, faults):
    """The API without an SDK records nothing and adds nothing to requests."""
    configure(monkeypatch)
    faults.says(fs.good("a fine answer"))
    await redraft.refine("Say hi", Chat("tiny", faults.url), WORDS)
    assert "traceparent" not in faults.requests[0].headers


async def test_traces_that_are_not_sampled(memory, monkeypatch):
    """A sampler that drops a trace drops the spans of its steps and calls; the metrics count
    all.
    """
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", TracerProvider(sampler=ALWAYS_OFF))
    await redraft.refine("Say hi", ScriptedModel(["hello there my friend"]), WORDS)
    assert memory.spans == []
    assert memory.metrics["gen_ai.client.operation.duration"][0].count == 1


async def test_program_that_configures_it_later(memory, monkeypatch):
    """OpenTelemetry is used from the moment at which the program configures it, and no longer than
    that.
    """
    for providers, count in (((), 0), ((memory.tracers,), 1), ((), 1), ((memory.tracers,), 2)):
        configure(monkeypatch, *providers)
        await redraft.refine("Say hi", ScriptedModel(["hello there my friend"]), WORDS)
        assert len(memory.named("invoke")) == count
