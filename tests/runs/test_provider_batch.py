"""Runs by a provider's batch API: the same output, nothing asked live, and nothing sent twice whatever happens."""

import asyncio
import json
import re
import signal
import sys
from random import Random

import pytest

from redraft.middleware import Budget
from redraft.protocols import Request
from redraft.errors import ConfigError
from redraft.models import Chat
from redraft.models.openai_batches import BatchClient, parse_result_line
from redraft.models.scripted import ScriptedModel
from redraft.runs import EndpointLimits, BatchRun, batch_sync
from redraft.storage.journal import Journal

from .killing import ending, kill_at, serving, start, until, write_rows

WAVES = {"engine": "provider-batch", "poll": 0.02}
PLAIN = {"noise_aware": False}  # calls are told apart by their words, so drafts anew and further looks are left out
PROGRAM = """
import sys
from redraft import Budget, batch_sync
source, output, model, poll, calls = sys.argv[1:]
budget = Budget(calls=int(calls)) if int(calls) else None
report = batch_sync(source, output, model, engine="provider-batch", poll=float(poll), budget=budget, noise_aware=False)
sys.exit(report.message if report.end_reason else None)
"""


@pytest.fixture
def rows(tmp_path):
    return write_rows(tmp_path / "rows.jsonl", 24)


@pytest.fixture
def provider(serve):
    """Starts a provider's server with these options."""
    return lambda *options: serve(*options, script="batch_server.py")


@pytest.fixture
def waved(rows, tmp_path):
    """Runs the rows in waves against a model, and gives the report."""

    async def go(model, source=rows, **asked):
        return await BatchRun.of(source, tmp_path / "out.jsonl", model, **WAVES, **PLAIN, **asked).go()

    return go


def prompts(path, *texts):
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    return path


def written(path):
    return [json.loads(line) for line in (path / "out.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """The bytes that the local engine writes for the rows, and how many calls it makes."""
    folder = tmp_path_factory.mktemp("local")
    return at_home(folder, **PLAIN)


def at_home(folder, **asked):
    with serving("logging_server.py", "--latency", 0.001) as server:
        report = batch_sync(write_rows(folder / "rows.jsonl", 24), folder / "out.jsonl", server.model, **asked)
    assert not report.end_reason and not report.failed, report
    return (folder / "out.jsonl").read_bytes(), report.usage.calls


def command(source, output, model, poll=0.02, calls=0):
    return [sys.executable, "-c", PROGRAM, str(source), str(output), model, str(poll), str(calls)]


@pytest.mark.parametrize("asked", [PLAIN, {}], ids=["plain", "adaptive"])
async def test_it_writes_what_the_local_engine_writes(tmp_path_factory, tmp_path, rows, provider, asked):
    """Byte for byte; every call once, in few batches, none of them live; and it says where it stands."""
    wanted, calls = await asyncio.to_thread(at_home, tmp_path_factory.mktemp("home"), **asked)
    server, states = provider("--latency", 0.1), set()
    asked = BatchRun.of(rows, tmp_path / "out.jsonl", server.model, **WAVES, **asked)
    going = asyncio.ensure_future(asked.go())
    while not going.done():
        states.add(asked.progress.state)
        await asyncio.sleep(0.01)
    report, counts = going.result(), server.counts()
    assert (tmp_path / "out.jsonl").read_bytes() == wanted
    assert report.usage.calls == counts["requests"] == calls
    assert "live" not in counts and counts["batches"] < 10
    assert any(re.fullmatch(r"batch 1: 24 requests, batch_1 in progress \(0 done\)", state) for state in states), states


@pytest.mark.slow
async def test_killed_again_and_again_it_sends_nothing_twice(tmp_path, rows, local, provider):
    """kill -9 between sending and answering, and wherever else: the batches that are out are found and come to the same bytes.
    A budget that just suffices still does: money for what waits is not lost with the process.
    """
    wanted, calls = local
    server, dice = provider("--latency", 0.15), Random(5)
    moments = [1, 30, 60]  # lines of the log: just sent, being read, in a later wave
    again = command(rows, tmp_path / "out.jsonl", server.model, calls=calls)
    last, kills = kill_at(moments, again, server.lines, dice)
    counts = server.counts()
    assert last.code == 0, last.err
    assert len(kills) >= 2
    assert (counts["again"], counts["requests"], counts.get("live")) == (0, calls, None)
    assert (tmp_path / "out.jsonl").read_bytes() == wanted


@pytest.mark.parametrize(
    "options", [("--deaf", 2), ("--broken", 2), ("--busy", 3)], ids=["no answer to a create", "broken downloads", "busy"]
)
async def test_a_provider_in_trouble(tmp_path, rows, local, provider, waved, options):
    """Whatever the connection does, a batch is made once, and an answer taken once."""
    wanted, calls = local
    server = provider(*options)
    report = await waved(server.model)
    assert not report.end_reason and (tmp_path / "out.jsonl").read_bytes() == wanted
    assert (server.counts()["again"], server.counts()["requests"]) == (0, calls)


async def test_items_that_fail(tmp_path, provider, waved):
    """What a line of the output says means what it means live: tried again, or the end of this row only."""
    texts = ["all is well", "[429 once]", "[lost once]", "[filter]", "[400]", "[cut] short"]
    server = provider()
    report = await waved(server.model, prompts(tmp_path / "troubled.jsonl", *texts), max_iterations=0)
    rows = written(tmp_path)
    assert (report.done, report.failed, report.end_reason) == (4, 2, "")
    assert [row["stop"] == "failed" for row in rows] == [False, False, False, True, True, False]
    assert "ContentFilterError" in rows[3]["error"] and "status 400" in rows[4]["error"]
    assert rows[5]["best"] == "half an ans"
    assert server.counts()["again"] == 2 and report.usage.retried_calls == 2


@pytest.mark.parametrize("options, again", [(("--expire", 2), 24), (("--fail", 2), 48)], ids=["expired", "failed"])
async def test_what_a_batch_did_not_answer_is_asked_again(tmp_path, local, provider, waved, options, again):
    """In the next wave; the output is the same, and what was not answered is not counted as paid."""
    server = provider(*options)
    report = await waved(server.model)
    assert (tmp_path / "out.jsonl").read_bytes() == local[0]
    assert (server.counts()["again"], report.usage.calls) == (again, local[1])


async def test_what_no_batch_answers_fails_by_name(tmp_path, rows, provider, waved):
    """After three batches a row ends, with what the provider said; the run goes on."""
    server = provider("--fail", 3)
    report = await waved(server.model, limit=5)
    assert (report.failed, report.end_reason) == (5, "")
    assert all("3 batches ended without an answer" in row["error"] and "not today" in row["error"] for row in written(tmp_path))
    assert server.counts()["requests"] == 15


async def test_waves_shrink_to_what_an_account_may_have(tmp_path, rows, local, provider, waved):
    """Where a batch is refused for its size, smaller ones go out, one after another."""
    wanted, calls = local
    server, said = provider("--most", 7), []
    report = await waved(server.model, say=said.append)
    assert (tmp_path / "out.jsonl").read_bytes() == wanted and report.usage.calls == calls
    assert any("at most 6 requests a batch" in words for words in said), said


async def test_a_request_that_is_too_much_by_itself_fails(tmp_path, provider, waved):
    """It is not asked for ever."""
    report = await waved(provider("--most", 0).model, prompts(tmp_path / "one.jsonl", "too much", "as well"))
    assert report.failed == 2 and "too much" in written(tmp_path)[0]["error"]


async def test_a_batch_that_somebody_cancelled_is_asked_again(tmp_path, rows, local, provider):
    """What it would have answered goes out in the next wave."""
    server = provider("--first", 60)
    asked = BatchRun.of(rows, tmp_path / "out.jsonl", server.model, **WAVES, **PLAIN)
    going = asyncio.ensure_future(asked.go())
    while "in progress" not in asked.progress.state and not going.done():
        await asyncio.sleep(0.01)
    assert (await BatchClient(Chat("m", f"{server.url}/v1")).cancel("batch_1")).is_ended
    assert not (await going).end_reason
    assert (tmp_path / "out.jsonl").read_bytes() == local[0] and server.counts()["again"] == 24


@pytest.mark.parametrize("options, texts", [(("--refuse", 401), ["one", "two"]), ((), ["one", "[401]"])], ids=["all", "one item"])
async def test_a_wrong_key_ends_the_run(tmp_path, provider, waved, options, texts):
    """At once, with the reason; whether the whole API or an item says it."""
    report = await waved(provider(*options).model, prompts(tmp_path / "some.jsonl", *texts))
    assert report.end_reason == "fatal" and "401" in report.message and report.resumable


async def test_no_batch_api_is_said(waved, serve):
    """An endpoint that has none ends the run with words that say so."""
    report = await waved(serve("--refuse", 404).model)
    assert report.end_reason == "fatal" and "has this endpoint a batch API" in report.message


async def test_an_endpoint_that_stays_away_ends_the_run(waved):
    """After `outage` seconds."""
    report = await waved("http://127.0.0.1:9/v1#m", limits=EndpointLimits(give_up_after=0.2))
    assert report.end_reason == "outage" and "cannot be reached" in report.message


async def test_schemas_are_stepped_down(waved, provider):
    """An endpoint that refuses JSON schemas is asked in the next format, in the next wave."""
    report = await waved(provider("--no-schema").model, limit=4, max_iterations=0)
    assert set(report.errors) <= {"BadResponseError", "GradingError"} and not report.end_reason


async def test_a_judge_elsewhere_has_waves_of_its_own(tmp_path, rows, local, provider, waved):
    """Drafts go to the one, verdicts to the other."""
    writer, judge = provider(), provider()
    report = await waved(writer.model, judge=judge.model, max_iterations=0)
    assert report.done == 24
    assert [s.counts()["requests"] for s in (writer, judge)] == [24, 24]
    assert [s.counts()["batches"] for s in (writer, judge)] == [1, 1]


async def test_a_model_without_a_batch_api_is_refused(waved):
    """Before anything is asked, and by name."""
    with pytest.raises(ConfigError, match="provider-batch.*got 'scripted'"):
        await waved(ScriptedModel(["a"]))
    with pytest.raises(ConfigError, match="provider-batch.*got 'scripted'"):
        await BatchRun.of([{"prompt": "p"}], None, ScriptedModel(["a"]), engine="provider-batch").prepare()


@pytest.mark.parametrize("poll", [0, -1, True, "1"])
def test_poll_is_checked(poll):
    """It is a number of seconds."""
    with pytest.raises(ConfigError, match="poll"):
        BatchRun.of([{"prompt": "p"}], None, "openai:m", engine="provider-batch", poll=poll)
    with pytest.raises(ConfigError, match="provider-batch"):
        BatchRun.of([{"prompt": "p"}], None, "openai:m", poll=1.0)


async def test_a_budget_smaller_than_a_wave(tmp_path, provider, waved):
    """Rows that wait for money hold up nobody: what there is money for goes out, the rest is not started."""
    server = provider()
    report = await asyncio.wait_for(waved(server.model, budget=Budget(calls=10)), 60)
    assert report.end_reason == "budget" and report.usage.calls == server.counts()["requests"] == 10


async def test_the_same_prompt_twice_is_asked_once(tmp_path, provider, waved):
    """The second row waits for the answer to the first, which holds up no wave."""
    server = provider()
    report = await asyncio.wait_for(waved(server.model, prompts(tmp_path / "same.jsonl", *["the same"] * 5)), 60)
    assert report.done == 5 and server.counts()["again"] == 0


@pytest.mark.parametrize("ends", ["stopped", "stopped, and its batch not noted", "deadline"])
async def test_cut_short_it_leaves_the_batch_to_the_next_time(tmp_path, rows, local, provider, ends):
    """Stopped or out of time it ends at once, and the same command takes the answers, within the same budget. A batch that
    was made when the process died before it could write down its id is found by its metadata.
    """
    wanted, calls = local
    server, said, output = provider("--first", 5 if ends == "deadline" else 3), [], tmp_path / "out.jsonl"
    given = {**WAVES, **PLAIN, "say": said.append}
    given |= {"deadline": 3} if ends == "deadline" else {"budget": Budget(calls=calls)}
    asked = BatchRun.of(rows, output, server.model, **given)
    going = asyncio.ensure_future(asked.go())
    while "in progress" not in asked.progress.state and not going.done():
        await asyncio.sleep(0.01)
    if ends != "deadline":
        asked.stop()
    report = await asyncio.wait_for(going, 60)
    assert report.end_reason == ("deadline" if ends == "deadline" else "interrupted")
    assert any("batch_1 continues at the provider" in words for words in said), said
    if ends.endswith("not noted"):
        forget_batch(output)
    assert not (await BatchRun.of(rows, output, server.model, **{**given, "deadline": None}).go()).end_reason
    assert (server.counts()["again"], server.counts()["requests"]) == (0, calls)
    if ends != "deadline":  # (what was cut off by the clock counts as a call of its row)
        assert output.read_bytes() == wanted


def forget_batch(output):
    """As if the process had been killed between making a batch and noting it."""
    with Journal(f"{output}.journal") as journal:
        waves = journal.run("out-jsonl").metadata["provider_batches"]
        assert len(waves["open"]) == 1
        journal.update_run("out-jsonl", provider_batches={**waves, "open": [{**waves["open"][0], "batch": None}]})


def test_interrupted_from_the_keyboard(tmp_path, rows, provider):
    """Ctrl-C does not wait for a day."""
    server = provider("--latency", 3600)
    process = start(command(rows, tmp_path / "out.jsonl", server.model))
    until(lambda: server.lines() >= 24, process)
    process.send_signal(signal.SIGINT)
    ending(process, within=100)


@pytest.mark.parametrize(
    "line, found",
    [
        (b'{"custom_id": "k", "response": {"status_code": 200, "body": {"a": 1}}, "error": null}', (200, b'{"a":1}')),
        (b'{"custom_id": "k", "response": {"status_code": 500, "body": "down"}}', (500, b"down")),
        (b'{"custom_id": "k", "response": null, "error": {"code": "server_error"}}', (None, b"")),
        (b'{"custom_id": "k", "response": null, "error": {"code": "batch_expired"}}', None),
        (b'{"custom_id": 7, "response": {"status_code": 200, "body": {}}}', None),
        (b'{"custom_id": "k", "response": {"status_code": "200"}}', None),
        (b'{"custom_id": "k", "response": {"status_code": 200, "body": {"a": "\\ud83d"}}}', (200, b'{"a":"\\ud83d"}')),
        (b'{"custom_id": "k", "response": {"status_code": 200, "body": "\\ud83d"}}', (200, b"?")),
        (b"[1]", None),
        (b"\xff", None),
        (b"", None),
    ],
)
def test_lines_of_an_output(line, found):
    """An answer, or nothing: a line that is none leaves its request unanswered."""
    read = parse_result_line(line)
    assert (read and (read[1].status, read[1].body)) == found


def test_the_key_is_in_no_line(tmp_path):
    """The file that is uploaded holds what a live call would have as its body."""
    chat = Chat("m", "http://:sk-canary@h/v1", extra_body={"top_p": 0.5})
    line = json.loads(
        BatchClient(chat).request_line("k", Request(({"role": "user", "content": "half a pair: \ud800"},), max_tokens=5))
    )
    assert line["body"] == {
        "model": "m",
        "messages": [{"role": "user", "content": "half a pair: \ufffd"}],
        "max_tokens": 5,
        "top_p": 0.5,
    }
    assert (line["custom_id"], line["url"]) == ("k", "/v1/chat/completions")
