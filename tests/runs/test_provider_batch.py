"""Runs by a provider's batch API: the same output, no live call, and no request submitted twice."""

import asyncio
import json
import re
import signal
import sys
from random import Random
from types import SimpleNamespace

import pytest

from redraft.cli import main
from redraft.errors import ConfigError
from redraft.middleware import Budget
from redraft.models import Chat
from redraft.models.functions import ScriptedModel
from redraft.models.openai_batches import BatchClient, parse_result_line
from redraft.protocols import Request
from redraft.runs import BatchRun, EndpointLimits, batch_sync
from redraft.runs.executors.batch_queue import ModelQueue
from redraft.runs.executors.provider_batch import BatchedModel
from redraft.storage.journal import Journal

from .killing import ending, kill_at, serving, start, until, write_rows

WAVES = {"engine": "provider-batch", "poll": 0.02}
# calls are identified by their words, so this leaves out repeated drafts and grades
PLAIN = {"noise_aware": False}
PROGRAM = """
import sys
from redraft import Budget, batch_sync
source, output, model, poll, calls, limit = sys.argv[1:]
budget, limit = Budget(calls=int(calls)) if int(calls) else None, int(limit) or None
given = dict(engine="provider-batch", poll=float(poll), budget=budget, limit=limit, noise_aware=False)
report = batch_sync(source, output, model, **given)
sys.exit(report.stop_note if report.stop else None)
"""


@pytest.fixture
def rows(tmp_path):
    return write_rows(tmp_path / "rows.jsonl", 24)


@pytest.fixture
def provider(serve):
    """Start a provider's server with these options."""
    return lambda *options: serve(*options, script="batch_server.py")


@pytest.fixture
def run_by_provider_batch(rows, tmp_path):
    """Run the rows through the provider's batch API and return the report."""

    async def go(model, source=rows, **asked):
        return await BatchRun.from_arguments(
            source, tmp_path / "out.jsonl", model, **WAVES, **PLAIN, **asked
        ).go()

    return go


def prompts(path, *texts):
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    return path


def output_bytes(path):
    return [json.loads(line) for line in (path / "out.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """The bytes that a local run writes for the rows, and its number of calls."""
    folder = tmp_path_factory.mktemp("local")
    return local_run(folder, **PLAIN)


def local_run(folder, **asked):
    with serving("logging_server.py", "--latency", 0.001) as server:
        report = batch_sync(
            write_rows(folder / "rows.jsonl", 24), folder / "out.jsonl", server.model, **asked
        )
    assert not report.stop and not report.rows.failed, report
    return (folder / "out.jsonl").read_bytes(), report.spending.calls


def command(source, output, model, poll=0.02, calls=0, limit=0):
    return [
        sys.executable,
        "-c",
        PROGRAM,
        str(source),
        str(output),
        model,
        str(poll),
        str(calls),
        str(limit),
    ]


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("asked", [PLAIN, {"max_iterations": 3}], ids=["plain", "adaptive"])
async def test_the_output_equals_that_of_a_local_run(
    tmp_path_factory, tmp_path, rows, provider, asked
):
    """Each call is submitted once, in few batches, none live; the progress shows their state."""
    wanted, calls = await asyncio.to_thread(local_run, tmp_path_factory.mktemp("home"), **asked)
    server, states = provider("--latency", 0.1), set()
    asked = BatchRun.from_arguments(rows, tmp_path / "out.jsonl", server.model, **WAVES, **asked)
    going = asyncio.ensure_future(asked.go())
    while not going.done():
        states.add(asked.progress.state)
        await asyncio.sleep(0.01)
    report, counts = going.result(), server.counts()
    assert (tmp_path / "out.jsonl").read_bytes() == wanted
    assert report.spending.calls == counts["requests"] == calls
    assert "live" not in counts and counts["batches"] < 10
    assert any(
        re.fullmatch(r"batch 1: 24 requests, batch_1 in progress \(0 done\)", state)
        for state in states
    ), states


@pytest.mark.slow
async def test_the_code_of_answers_is_run_as_in_a_local_run(
    tmp_path_factory, tmp_path, provider, run_by_provider_batch, sandbox
):
    """Tests run on this machine between the batches, and their verdicts ask for the next drafts."""
    rows = [
        {
            "prompt": f"Write f(n), which adds 1. [code] {n}",
            "tests": [{"input": [n], "output": n + 1}],
        }
        for n in range(6)
    ]
    asked = dict(PLAIN, answer="code:python", editor=False, graders=["tests"])
    folder = tmp_path_factory.mktemp("home")
    with serving("logging_server.py", "--latency", 0.001) as server:
        local = await asyncio.to_thread(
            batch_sync, rows, folder / "out.jsonl", server.model, **asked
        )
    server = provider()
    report = await BatchRun.from_arguments(
        rows, tmp_path / "out.jsonl", server.model, **WAVES, **asked
    ).go()
    assert (tmp_path / "out.jsonl").read_bytes() == (folder / "out.jsonl").read_bytes()
    scores = [(row["initial_score"], row["best_score"]) for row in output_bytes(tmp_path)]
    assert {0, 1} >= {best for _, best in scores} and 1 in {best for _, best in scores}
    assert report.rows.failed == local.rows.failed == 0 and any(
        first < best for first, best in scores
    )
    assert "live" not in server.counts()


def test_a_batched_model_is_known_as_its_chat_model():
    """Its price, its cache and its spans depend on what it says of itself."""
    tool = {"type": "function", "function": {"name": "search"}}
    chat = Chat(
        "m", "http://127.0.0.1:9/v1", extra_body={"tools": [tool], "tool_choice": "required"}
    )
    batched = BatchedModel(chat, chat.complete)
    for name in ("name", "identity", "base_url", "tools", "tool_choice"):
        assert getattr(batched, name) == getattr(chat, name) not in (None, "", ()), name


@pytest.mark.slow
async def test_a_killed_run_submits_no_request_twice(tmp_path, rows, local, provider):
    """After kill -9 at any moment the submitted batches are found, and the output is the same. A
    budget that just suffices still does: the process loses no reservation.
    """
    wanted, calls = local
    server, dice = provider("--latency", 0.15), Random(5)
    moments = [1, 30, 60]  # lines of the log: just submitted, being read, in a later batch
    again = command(rows, tmp_path / "out.jsonl", server.model, calls=calls)
    last, kills = kill_at(moments, again, server.lines, dice)
    counts = server.counts()
    assert last.code == 0, last.err
    assert len(kills) >= 2
    assert (counts["again"], counts["requests"], counts.get("live")) == (0, calls, None)
    assert (tmp_path / "out.jsonl").read_bytes() == wanted


def open_batches(output):
    """The batches of a run that the journal of a killed process has as not yet used up."""
    with Journal(f"{output}.journal", read_only=True) as journal:
        return [
            batch["batch"]
            for batch in journal.run("out-jsonl").metadata["provider_batches"]["open"]
        ]


@pytest.mark.slow
@pytest.mark.parametrize("kills", [1, 2])
async def test_answers_that_no_row_has_used_survive_a_second_process(
    tmp_path, rows, local, provider, kills
):
    """It works on a few of the rows, takes their answers from the first one's batch, and ends, or
    is killed after it has submitted a batch of its own. The third process submits none of the
    requests of either again.
    """
    wanted, calls = local
    server, output = provider("--first", 0.3, "--latency", 0.4), tmp_path / "out.jsonl"
    killed = start(command(rows, output, server.model))
    until(lambda: server.lines() >= 24, killed)
    killed.kill()
    ending(killed)
    killed = start(command(rows, output, server.model, limit=8))
    until(lambda: server.counts().get("requests", 0) >= 32, killed)
    if kills == 2:
        killed.kill()
    assert ending(killed).code == (-signal.SIGKILL if kills == 2 else 0)
    assert open_batches(output)[0] == "batch_1"
    report = await BatchRun.from_arguments(rows, output, server.model, **WAVES, **PLAIN).go()
    assert (report.stop, server.counts()["again"], server.counts()["requests"]) == (
        "",
        0,
        calls,
    )
    assert output.read_bytes() == wanted and open_batches(output) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [("--deaf", 2), ("--broken", 2), ("--busy", 3)],
    ids=["no answer to a create", "broken downloads", "busy"],
)
async def test_provider_faults_repeat_no_batch_and_no_answer(
    tmp_path, rows, local, provider, run_by_provider_batch, options
):
    """Whatever happens to the connection, a batch is created once and an answer read once."""
    wanted, calls = local
    server = provider(*options)
    report = await run_by_provider_batch(server.model)
    assert not report.stop and (tmp_path / "out.jsonl").read_bytes() == wanted
    assert (server.counts()["again"], server.counts()["requests"]) == (0, calls)


async def test_failed_items_are_handled_like_failed_calls(
    tmp_path, provider, run_by_provider_batch
):
    """The error of an item is retried or ends its row alone, as it would live."""
    texts = ["all is well", "[429 once]", "[lost once]", "[filter]", "[400]", "[cut] short"]
    server = provider()
    report = await run_by_provider_batch(
        server.model, prompts(tmp_path / "troubled.jsonl", *texts), max_iterations=0
    )
    rows = output_bytes(tmp_path)
    assert (report.rows.done, report.rows.failed, report.stop) == (4, 2, "")
    assert [row["stop"] == "failed" for row in rows] == [False, False, False, True, True, False]
    assert "ContentFilterError" in rows[3]["error"] and "status 400" in rows[4]["error"]
    assert rows[5]["best"] == "half an ans"
    assert server.counts()["again"] == 2 and report.spending.retried_calls == 2


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--expire", "--fail"])
async def test_items_without_an_answer_are_submitted_again(
    tmp_path, local, provider, run_by_provider_batch, option
):
    """They are in the next batch; the output is the same, and they do not count as paid."""
    server = provider(option, 2)
    report = await run_by_provider_batch(server.model)
    assert (tmp_path / "out.jsonl").read_bytes() == local[0]
    counts = server.counts()
    assert counts["again"] == counts["unanswered"] > 0
    assert report.spending.calls == local[1]


async def test_an_item_without_an_answer_in_three_batches_fails_its_row(
    tmp_path, rows, provider, run_by_provider_batch
):
    """The row has the provider's message, and the run continues."""
    server = provider("--fail", 3)
    report = await run_by_provider_batch(server.model, limit=5)
    assert (report.rows.failed, report.stop) == (5, "")
    assert all(
        "3 batches ended without an answer" in row["error"] and "not today" in row["error"]
        for row in output_bytes(tmp_path)
    )
    assert server.counts()["requests"] == 15


@pytest.mark.slow
async def test_batches_shrink_to_the_limit_of_the_account(
    tmp_path, rows, local, provider, run_by_provider_batch
):
    """Where a batch is refused for its size, smaller ones follow one after another."""
    wanted, calls = local
    server, said = provider("--most", 7), []
    report = await run_by_provider_batch(server.model, say=said.append)
    assert (tmp_path / "out.jsonl").read_bytes() == wanted and report.spending.calls == calls
    assert any("at most 6 requests a batch" in words for words in said), said


async def test_a_request_larger_than_the_limit_fails(tmp_path, provider, run_by_provider_batch):
    """It is not submitted for ever."""
    report = await run_by_provider_batch(
        provider("--most", 0).model, prompts(tmp_path / "one.jsonl", "too much", "as well")
    )
    assert report.rows.failed == 2 and "too much" in output_bytes(tmp_path)[0]["error"]


@pytest.mark.slow
async def test_the_items_of_a_cancelled_batch_are_submitted_again(tmp_path, rows, local, provider):
    """The next batch has the items without an answer."""
    server = provider("--first", 60)
    asked = BatchRun.from_arguments(rows, tmp_path / "out.jsonl", server.model, **WAVES, **PLAIN)
    going = asyncio.ensure_future(asked.go())
    while "in progress" not in asked.progress.state and not going.done():
        await asyncio.sleep(0.01)
    assert (await BatchClient(Chat("m", f"{server.url}/v1")).cancel("batch_1")).is_ended
    assert not (await going).stop
    assert (tmp_path / "out.jsonl").read_bytes() == local[0] and server.counts()["again"] == 24


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize(
    "options, texts",
    [(("--refuse", 401), ["one", "two"]), ((), ["one", "[401]"])],
    ids=["all", "one item"],
)
async def test_a_wrong_key_ends_the_run(tmp_path, provider, run_by_provider_batch, options, texts):
    """The run ends at once with the reason, whether the API or an item refuses the key."""
    report = await run_by_provider_batch(
        provider(*options).model, prompts(tmp_path / "some.jsonl", *texts)
    )
    assert report.stop == "fatal" and "401" in report.stop_note and report.resumable


async def test_an_item_whose_words_an_error_repeats_fails_alone(
    tmp_path, provider, run_by_provider_batch
):
    """What a prompt says of keys, money and models stops no run."""
    texts = [
        "[quoted] invalid api key",
        "one",
        "[quoted] insufficient balance",
        "[quoted] no such model",
    ]
    report = await run_by_provider_batch(provider().model, prompts(tmp_path / "some.jsonl", *texts))
    assert (report.stop, report.rows.done, report.rows.failed) == ("", 1, 3)


async def test_an_endpoint_without_a_batch_api_ends_the_run(run_by_provider_batch, serve):
    """The message says that it has none."""
    report = await run_by_provider_batch(serve("--refuse", 404).model)
    assert report.stop == "fatal" and "does this endpoint have a batch API" in report.stop_note


async def test_an_outage_of_the_provider_ends_the_run(run_by_provider_batch):
    """It ends after `outage` seconds."""
    report = await run_by_provider_batch(
        "http://127.0.0.1:9/v1#m", limits=EndpointLimits(give_up_after=0.2)
    )
    assert report.stop == "outage" and "cannot be reached" in report.stop_note


TEXTS_OF_PROVIDER = (
    "not today",
    "too much",
    "slow down",
    "it is lost",
    "too late",
    "no answer for you",
)


@pytest.mark.slow(but_each=8)
@pytest.mark.parametrize(
    ("options", "texts"),
    [
        *(
            (option, ["one", "two"])
            for option in (
                ("--fail", 3),
                ("--most", 1),
                ("--most", 0),
                ("--busy", 3),
                ("--expire", 1),
            )
        ),
        (("--refuse", 401), ["one"]),
        ((), ["[429 once]", "[lost once]", "[filter]", "[400]"]),
        ((), ["[401]", "one"]),
    ],
)
def test_no_text_of_the_provider_is_on_stderr(tmp_path, provider, capfd, options, texts):
    """It may repeat a prompt. The output has it."""
    source = str(prompts(tmp_path / "rows.jsonl", *texts))
    command = [
        "batch",
        source,
        "-o",
        str(tmp_path / "out.jsonl"),
        "--model",
        provider(*options).model,
        "--mode",
        "best",
        "-n",
        "1",
    ]
    status = main(
        [
            *command,
            "--grader",
            "words:1-",
            "--engine",
            "provider-batch",
            "--poll",
            "0.02",
            "--log-format",
            "json",
        ]
    )
    said, output = capfd.readouterr().err, (tmp_path / "out.jsonl").read_text()
    assert [text for text in TEXTS_OF_PROVIDER if text in said] == [], said
    assert status == 0 or any(text in output for text in TEXTS_OF_PROVIDER), output


async def test_refused_schemas_fall_back_to_another_format(run_by_provider_batch, provider):
    """The next batch uses the next format."""
    report = await run_by_provider_batch(provider("--no-schema").model, limit=4, max_iterations=0)
    assert set(report.rows.errors) <= {"BadResponseError", "GradingError"} and not report.stop


async def test_each_endpoint_has_batches_of_its_own(
    tmp_path, rows, local, provider, run_by_provider_batch
):
    """Drafts go to one, verdicts to the other."""
    writer, judge = provider(), provider()
    report = await run_by_provider_batch(writer.model, judge=judge.model, max_iterations=0)
    assert report.rows.done == 24
    assert [s.counts()["requests"] for s in (writer, judge)] == [24, 24]
    assert [s.counts()["batches"] for s in (writer, judge)] == [1, 1]


async def test_a_model_without_a_batch_api_is_refused(run_by_provider_batch):
    """The error names it before any call."""
    with pytest.raises(ConfigError, match="provider-batch.*got 'scripted'"):
        await run_by_provider_batch(ScriptedModel(["a"]))
    with pytest.raises(ConfigError, match="provider-batch.*got 'scripted'"):
        await BatchRun.from_arguments(
            [{"prompt": "p"}], None, ScriptedModel(["a"]), engine="provider-batch"
        ).prepare()


@pytest.mark.parametrize("poll", [0, -1, True, "1"])
def test_poll_is_checked(poll):
    """It must be a number of seconds."""
    with pytest.raises(ConfigError, match="poll"):
        BatchRun.from_arguments(
            [{"prompt": "p"}], None, "openai:m", engine="provider-batch", poll=poll
        )
    with pytest.raises(ConfigError, match="provider-batch"):
        BatchRun.from_arguments([{"prompt": "p"}], None, "openai:m", poll=1.0)


async def test_a_budget_smaller_than_a_batch_limits_its_size(
    tmp_path, provider, run_by_provider_batch
):
    """Rows that wait for budget delay no other: the batch has what the budget allows, and the rest
    does not start.
    """
    server = provider()
    report = await asyncio.wait_for(
        run_by_provider_batch(server.model, budget=Budget(calls=10)), 60
    )
    assert report.stop == "budget" and report.spending.calls == server.counts()["requests"] == 10


def test_equal_requests_are_one_line_of_a_batch():
    """While it waits, and once it is submitted."""
    queue = ModelQueue(SimpleNamespace(request_line=lambda key, request: b"a line"), "m", [])
    item = queue.request("key", None)
    item.waiters.append(None)
    assert (queue.request("key", None) is item, queue.size) == (True, len(b"a line"))
    assert (queue.take(), queue.size) == ([item], 0)
    assert queue.request("key", None) is item and not queue.open


async def test_the_same_prompt_is_submitted_once(tmp_path, provider, run_by_provider_batch):
    """The second row waits for the answer to the first and delays no batch."""
    server = provider()
    report = await asyncio.wait_for(
        run_by_provider_batch(server.model, prompts(tmp_path / "same.jsonl", *["the same"] * 5)), 60
    )
    assert report.rows.done == 5 and server.counts()["again"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["stopped", "stopped, and its batch not noted", "deadline"])
async def test_a_stopped_run_leaves_its_batch_to_the_resumed_one(
    tmp_path, rows, local, provider, ends
):
    """Stopped or past its deadline it ends at once, and the same command reads the answers within
    the same budget. A batch whose id was not saved is found by its metadata.
    """
    wanted, calls = local
    server, said, output = (
        provider("--first", 5 if ends == "deadline" else 3),
        [],
        tmp_path / "out.jsonl",
    )
    given = {**WAVES, **PLAIN, "say": said.append}
    given |= {"deadline": 3} if ends == "deadline" else {"budget": Budget(calls=calls)}
    asked = BatchRun.from_arguments(rows, output, server.model, **given)
    going = asyncio.ensure_future(asked.go())
    while "in progress" not in asked.progress.state and not going.done():
        await asyncio.sleep(0.01)
    if ends != "deadline":
        asked.stop()
    report = await asyncio.wait_for(going, 60)
    assert report.stop == ("deadline" if ends == "deadline" else "interrupted")
    assert any("batch_1 continues at the provider" in words for words in said), said
    if ends.endswith("not noted"):
        forget_batch(output)
    assert not (
        await BatchRun.from_arguments(
            rows, output, server.model, **{**given, "deadline": None}
        ).go()
    ).stop
    assert (server.counts()["again"], server.counts()["requests"]) == (0, calls)
    if ends != "deadline":  # (a call that the deadline cancelled counts for its row)
        assert output.read_bytes() == wanted


def forget_batch(output):
    """Change the journal as if the process had been killed between creating a batch and saving its
    id.
    """
    with Journal(f"{output}.journal") as journal:
        waves = journal.run("out-jsonl").metadata["provider_batches"]
        assert len(waves["open"]) == 1
        journal.update_run(
            "out-jsonl", provider_batches={**waves, "open": [{**waves["open"][0], "batch": None}]}
        )


@pytest.mark.slow
def test_ctrl_c_does_not_wait_for_a_batch(tmp_path, rows, provider):
    """A batch may take a day."""
    server = provider("--latency", 3600)
    process = start(command(rows, tmp_path / "out.jsonl", server.model))
    until(lambda: server.lines() >= 24, process)
    process.send_signal(signal.SIGINT)
    ending(process, within=100)


@pytest.mark.parametrize(
    "line, found",
    [
        (
            b'{"custom_id": "k", "response": {"status_code": 200, "body": {"a": 1}}, "error": null}',
            (200, b'{"a":1}'),
        ),
        (b'{"custom_id": "k", "response": {"status_code": 500, "body": "down"}}', (500, b"down")),
        (b'{"custom_id": "k", "response": null, "error": {"code": "server_error"}}', (None, b"")),
        (b'{"custom_id": "k", "response": null, "error": {"code": "batch_expired"}}', None),
        (b'{"custom_id": 7, "response": {"status_code": 200, "body": {}}}', None),
        (b'{"custom_id": "k", "response": {"status_code": "200"}}', None),
        (
            b'{"custom_id": "k", "response": {"status_code": 200, "body": {"a": "\\ud83d"}}}',
            (200, b'{"a":"\\ud83d"}'),
        ),
        (b'{"custom_id": "k", "response": {"status_code": 200, "body": "\\ud83d"}}', (200, b"?")),
        (b"[1]", None),
        (b"\xff", None),
        (b"", None),
    ],
)
def test_invalid_output_lines_leave_their_request_unanswered(line, found):
    """Each line gives an answer or none."""
    read = parse_result_line(line)
    assert (read and (read[1].status, read[1].body)) == found


def test_uploaded_lines_hold_the_body_without_the_key(tmp_path):
    """An uploaded line has the body of a live call."""
    chat = Chat("m", "http://:sk-canary@h/v1", extra_body={"top_p": 0.5})
    line = json.loads(
        BatchClient(chat).request_line(
            "k", Request(({"role": "user", "content": "half a pair: \ud800"},), max_tokens=5)
        )
    )
    assert line["body"] == {
        "model": "m",
        "messages": [{"role": "user", "content": "half a pair: \ufffd"}],
        "max_tokens": 5,
        "top_p": 0.5,
    }
    assert (line["custom_id"], line["url"]) == ("k", "/v1/chat/completions")
