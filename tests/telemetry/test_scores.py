"""The scores of a run at the spans that show them: what the journal keeps, and what Phoenix, MLflow
and Langfuse are sent. `test_score_tools` asks the real ones.
"""

import asyncio
import json
import os
import subprocess
import sys

import pytest
from chat_server import ChatServer
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import redraft
from redraft.errors import ConfigError, RedraftError
from redraft.loop.serialize import record_to_json
from redraft.models import ScriptedModel
from redraft.storage.journal import Journal
from redraft.telemetry.scores import TOOLS, export_scores

from .conftest import configure
from .score_server import BASIC, SECRET, VARIABLES, ScoreServer, export
from .scored_run import GRADES, NO_SOURCES, SOURCES, make_run, stored_traces, tracer_provider


@pytest.fixture
def server():
    with ScoreServer() as running:
        yield running


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """The folder of a run, and its spans."""
    folder, exporter = tmp_path_factory.mktemp("scored"), InMemorySpanExporter()
    with pytest.MonkeyPatch.context() as patch:
        configure(patch, tracer_provider(exporter))
        asyncio.run(make_run(folder))
    return folder, exporter.get_finished_spans()


# ---- what the journal keeps


def test_a_grade_keeps_the_span_of_the_call_that_it_grades(run_folder):
    """Each grade names the trace of its row and the call that wrote the answer, the outcome the
    refinement; what is not sampled says so.
    """
    folder, spans = run_folder
    names = {
        f"{span.context.trace_id:032x}-{span.context.span_id:016x}": span.name for span in spans
    }
    kept = {
        (row, type(record).__name__, names.get(ids[3:-3], "no span"), ids[-1])
        for row, trace in stored_traces(folder).items()
        for record in trace.records
        if (ids := getattr(record, "traceparent", ""))
    }
    call, root = "chat Writer", "invoke_workflow refine"
    assert {each[:3] for each in kept} == {
        ("known", "Feedback", call),
        ("known", "Outcome", root),
        ("unknown", "Feedback", call),
        ("failed", "Feedback", call),
        ("failed", "Failure", call),
        ("unsampled", "Feedback", "no span"),
        ("unsampled", "Outcome", "no span"),
    }
    assert {(each[0] == "unsampled", int(each[3]) % 2) for each in kept} == {(True, 0), (False, 1)}


async def test_a_given_answer_has_no_call(memory):
    """Its grade keeps the span of the grade itself."""
    task = redraft.Task("q", "four words are here")
    result = await redraft.refine(task, False, "words:3-9")
    span, (_, feedback, *_) = memory.one("grade").context, result.trace.records
    assert feedback.traceparent[3:-3] == f"{span.trace_id:032x}-{span.span_id:016x}"


async def test_nothing_is_kept_without_opentelemetry(monkeypatch):
    """Records of a program that has no spans are as they were."""
    configure(monkeypatch)
    result = await redraft.refine("q", ScriptedModel(["four words are here"]), "words:3-9")
    assert "traceparent" not in result.trace.to_json()


# ---- what the tools are sent


def plain(tool, sent):
    """Return the score that a tool was sent: the name, the number or None, the text beside it, the
    reason, and what graded.
    """
    if tool == "phoenix":
        result, who = sent["result"], sent["annotator_kind"]
        return sent["name"], result["score"], result["label"], result["explanation"], who
    if tool == "mlflow":
        feedback, who = sent["feedback"], sent["source"]["source_type"].removesuffix("_JUDGE")
        text = feedback.get("error", {}).get("error_code")
        return sent["assessment_name"], feedback.get("value"), text, sent["rationale"], who
    number = sent["value"] if sent["dataType"] == "NUMERIC" else None
    text = sent["value"] if sent["dataType"] == "CATEGORICAL" else None
    who = "LLM" if "judge" in sent["metadata"] else "CODE"
    return sent["name"], number, text, sent["comment"], who


@pytest.mark.parametrize("tool", TOOLS)
async def test_scores_of_a_run(tool, run_folder, server):
    """Each grade is sent to the span of the call with its reason, an unknown one without a number;
    the row's own score has its interval; the row that was not sampled is named.
    """
    folder, _ = run_folder
    exported = await export(folder, tool, server.url)
    assert (exported.scores, dict(exported.left_out)) == (
        GRADES,
        {"the trace was not sampled": ["unsampled"]},
    )
    sent = {plain(tool, each) for each in server.posted}
    assert sent >= {
        ("words:5-9", 0.0, None, "3 words", "CODE"),
        ("words:5-9", 1.0, None, "7 words", "CODE"),
        ("sources", 0.75, None, SOURCES, "CODE"),
        ("sources", None, "unknown", NO_SOURCES, "CODE"),
        ("judge", 0.8, None, "It is short.", "LLM"),
        ("judge", None, "ModelError", "the judge is not there", "LLM"),
    }
    (own,) = [each for each in server.posted if plain(tool, each)[0] == "redraft"]
    outcome = stored_traces(folder)["known"].outcome
    interval = own["metadata"]["interval"]
    interval = json.loads(interval) if isinstance(interval, str) else interval
    assert interval == [*outcome.interval]
    assert plain(tool, own)[1] == outcome.score
    span = own.get("span_id") or own["observationId"]
    assert span == outcome.traceparent.split("-")[2]
    assert own["metadata"]["row"] == "known" and own["metadata"]["run"] == "out.jsonl"
    key = f"Basic {BASIC}" if tool == "langfuse" else f"Bearer {SECRET}"
    assert {each["Authorization"] for each in server.headers} == {key}


@pytest.mark.parametrize("tool", TOOLS)
async def test_a_second_export_doubles_nothing(tool, run_folder, server):
    """It sends the same IDs (with the same times), or nothing to a tool that has no IDs."""
    folder, _ = run_folder
    await export(folder, tool, server.url)
    first, server.posted = server.posted, []
    exported = await export(folder, tool, server.url)
    assert exported.scores == GRADES
    assert len(first) == GRADES

    def identities(sent):
        return sorted(
            (each.get("identifier") or each["id"], each.get("timestamp")) for each in sent
        )

    if tool == "mlflow":
        assert server.posted == []
    else:
        assert identities(first) == identities(server.posted)
        assert len(set(identities(first))) == GRADES


@pytest.mark.parametrize("tool", TOOLS)
async def test_spans_that_a_tool_does_not_have(tool, run_folder, server):
    """Their rows are named; the others are written."""
    server.statuses = [404]
    exported = await export(run_folder[0], tool, server.url)
    (rows,) = [rows for reason, rows in exported.left_out.items() if "no such span" in reason]
    assert len(rows) == 1 and 0 < exported.scores < GRADES


@pytest.mark.parametrize("tool", TOOLS)
async def test_a_server_that_asks_to_wait(tool, run_folder, server):
    """It is asked again, some times."""
    server.statuses = [429] * 5
    assert (await export(run_folder[0], tool, server.url)).scores == GRADES
    server.statuses = [429] * 100
    with pytest.raises(RedraftError, match="status 429"):
        await export(run_folder[0], tool, server.url)


@pytest.mark.parametrize("tool", TOOLS)
async def test_a_server_that_refuses(tool, run_folder, server):
    """The error names the host and the status, and no key, although the server repeats it."""
    server.statuses = [401] * 20
    with pytest.raises(RedraftError, match="status 401") as refused:
        await export(run_folder[0], tool, server.url)
    text = str(refused.value)
    assert server.url.removeprefix("http://") in text
    assert SECRET not in text and BASIC not in text and "***" in text


async def test_scores_that_langfuse_rejects(run_folder, server, monkeypatch):
    """An answer that takes a part of a list is an error."""
    answer = {"accepted": 0, "rejected": 1, "errors": [{"message": "no such config"}]}
    monkeypatch.setattr(server, "take", lambda *_: answer)
    with pytest.raises(RedraftError, match="no such config"):
        await export(run_folder[0], "langfuse", server.url)


@pytest.mark.parametrize("tool", TOOLS)
async def test_a_server_that_is_no_such_tool(tool, run_folder, server, closed_url):
    """A page in place of an answer is an error that names the host, and a closed port as well."""
    server.page = b"<html>"
    for url in (server.url, closed_url):
        with pytest.raises(RedraftError, match="127.0.0.1"):
            await export(run_folder[0], tool, url)


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("value", ["", "sqlite:///secret.db", "127.0.0.1:6006"])
def test_an_address_that_is_no_url(tool, value):
    """The error names the variable, and not the value, which may hold a password."""
    variable = TOOLS[tool].url_variables[0]
    with pytest.raises(ConfigError, match=variable) as refused:
        TOOLS[tool].server({variable: value})
    assert not value or value not in str(refused.value)


@pytest.mark.parametrize(
    "traceparent", ["", "00-" + "0" * 50, f"00-{'a' * 32}-{'b' * 16}-0g", f"00-{'../' * 11}-x-01"]
)
async def test_a_journal_of_a_stranger(traceparent, tmp_path, server):
    """A `traceparent` that is none makes no request."""
    trace = redraft.Trace(redraft.Task("q", "a")) + redraft.Feedback(
        1.0, grader="g", traceparent=traceparent
    )
    with Journal(tmp_path / "j.journal") as journal:
        journal.update_run("run")
        journal.begin_row("run", "row", 0, "", {}, json.dumps(trace.header()))
        journal.append_records("run", "row", 0, [record_to_json(each) for each in trace.records])
    with Journal(tmp_path / "j.journal", read_only=True) as journal:
        environ = {"PHOENIX_ENDPOINT": server.url}
        exported = await export_scores(TOOLS["phoenix"], environ, journal, journal.runs()[0])
    assert dict(exported.left_out) == {"no trace was recorded": ["row"]}
    assert server.headers == []


# ---- at the end of a batch


ROWS = "".join(f'{{"prompt": "Question {n}"}}\n' for n in range(3))


@pytest.fixture
def scored_batch(tmp_path, receiver, server):
    """Run a batch of three rows whose scores go to a tool; return how it ended, the server of the
    model, and the IDs of the spans that the collector got.
    """
    (tmp_path / "rows.jsonl").write_text(ROWS)

    def run(tool, *args, **environ):
        chat = ChatServer(lambda messages, n: "hello there my friend")
        clean = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
        tools = {name: value.format(server.url) for name, value in VARIABLES[tool].items()}
        sent = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url}
        command = ["batch", "rows.jsonl", "-o", "out.jsonl", "--scores-to", tool]
        done = subprocess.run(
            [sys.executable, "-m", "redraft", *command, "--model", chat.model]
            + ["--grader", "words:3-9", *args],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=clean | tools | sent | environ,
            timeout=60,
        )
        chat.close()
        return done, chat, {span.span_id.hex() for span in receiver.spans}

    return run


@pytest.mark.slow
@pytest.mark.parametrize("tool", TOOLS)
def test_a_batch_writes_its_scores(tool, scored_batch, server):
    """Once its spans are sent; a tool that does not show them at once is asked again."""
    server.statuses = [404]
    done, _, spans = scored_batch(tool, "--json")
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    (event,) = [each for each in events if each["event"] == "scores"]
    assert (event["scores"], event["left_out"]) == (6, {})
    assert len(server.posted) == 6
    assert {each.get("span_id") or each["observationId"] for each in server.posted} <= spans


@pytest.mark.slow
def test_a_tool_that_refuses_the_scores_fails_no_batch(scored_batch, server):
    """The rows are there, and what writes the scores later is said."""
    server.statuses = [401] * 20
    done, _, _ = scored_batch("phoenix")
    assert done.returncode == 0
    assert "the scores were not written" in done.stderr and "status 401" in done.stderr
    assert "redraft export out.jsonl --format phoenix" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, "OTEL_EXPORTER_OTLP_ENDPOINT"),
        ({"PHOENIX_ENDPOINT": ""}, "PHOENIX_ENDPOINT"),
    ],
)
def test_scores_that_could_have_no_place_are_refused_first(environ, said, scored_batch):
    """No call is made."""
    done, chat, _ = scored_batch("phoenix", **environ)
    assert done.returncode == 2 and said in done.stderr
    assert chat.asked == []
