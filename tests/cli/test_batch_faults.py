"""Batches whose rows, endpoints, files or arguments fail: what happens to them and which message
appears.
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from redraft import Budget, batch
from redraft.errors import ConfigError, StoreError
from redraft.runs import EndpointLimits

from .chat_server import is_judging, verdict


def table(path, prompts):
    path.write_text(
        "".join(
            json.dumps({"id": f"r{i}", "prompt": prompt}) + "\n" for i, prompt in enumerate(prompts)
        )
    )
    return path


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def is_probe(messages):
    return messages[-1]["content"] == "Hi"


def good(text):
    """A grader without a model that is satisfied with every answer."""
    return 1.0


class Server:
    """An endpoint that fails for prompts with "poison" in them, for all requests while it is
    `down`, and otherwise answers.
    """

    def __init__(self, fails=None, down_from=None, down=None):
        self.fails, self.down_from, self.down = fails, down_from, down

    def __call__(self, messages, n):
        if self.down_from is not None and n >= self.down_from:
            return self.down
        if "poison" in messages[-1]["content"]:
            return self.fails() if callable(self.fails) else self.fails
        return "fine"


async def run(folder, server, prompts, *, outage=30.0, timeout=60.0, start=4, **more):
    """Run a batch without judges; return its report, its rows, and the seconds it took."""
    began = time.monotonic()
    source = table(folder / "in.jsonl", prompts)
    limits = EndpointLimits(give_up_after=outage, initial_in_flight=start)
    report = await batch(
        source,
        folder / "out.jsonl",
        server.model,
        good,
        timeout=timeout,
        limits=limits,
        max_iterations=0,
        **more,
    )
    return report, read(folder / "out.jsonl"), time.monotonic() - began


@pytest.mark.slow
@pytest.mark.parametrize(
    ("good_rows", "poison"),
    [(20, 1), (20, 3), (0, 1), (0, 2), (5, 5)],
    ids=["last", "last three", "alone", "two alone", "many"],
)
async def test_unanswered_rows_fail_and_the_run_continues(tmp_path, serve, good_rows, poison):
    """It is not taken for an outage: the endpoint answers a probe, so the rows fail and the run
    ends normally.
    """
    server = serve(Server(fails=None))
    report, rows, seconds = await run(
        tmp_path,
        server,
        [f"say {i}" for i in range(good_rows)] + [f"poison {i}" for i in range(poison)],
        timeout=0.3,
    )
    assert (report.stop, report.rows.done, report.rows.failed) == ("", good_rows, poison)
    errors = [row["error"] for row in rows[good_rows:]]
    assert all(error.startswith("ModelTimeoutError: ") for error in errors)
    assert all("while the endpoint answered other calls" in error for error in errors)
    assert seconds < 60
    asked = [messages for messages in server.asked if "poison" in messages[-1]["content"]]
    assert len(asked) <= 10 * poison


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("status", [403, 404])
@pytest.mark.parametrize("good_rows", [0, 5])
async def test_a_forbidden_row_fails_alone(tmp_path, serve, status, good_rows):
    """The endpoint answers a probe with the same key and model, so only the row is at fault; the
    budget counts the probe.
    """
    server = serve(Server(fails=status))
    report, rows, _ = await run(
        tmp_path,
        server,
        ["poison", *(f"say {i}" for i in range(good_rows))],
        timeout=10.0,
        budget=Budget(calls=2 + good_rows),
    )
    assert (report.stop, report.rows.done, report.rows.failed, server.calls) == (
        "",
        good_rows,
        1,
        2 + good_rows,
    )
    assert f"status {status}" in rows[0]["error"]


QUOTED = [
    "ignore this: invalid api key",
    "my credit balance is too low",
    "write about a model that does not exist",
    "Invalid API key. Insufficient balance. Model not found.",
    "tokens per day (TPD): Limit 0, Used 0",
    "quotaId: PerDay, quotaValue: 0",
]


@pytest.mark.slow(but_each=4)
@pytest.mark.parametrize(
    ("status", "words"),
    [
        (status, words)
        for status in (400, 422, 429, 200)
        for words in QUOTED[: 4 if status == 429 else None]
    ],
)
async def test_a_row_whose_words_an_error_repeats_fails_alone(tmp_path, serve, status, words):
    """A validator quotes what it refuses; what a row says of keys, money and models concerns this
    row only.
    """
    message = f"1 validation error: {{'loc': ('messages', 0), 'input': 'poison: {words}'}}"
    body = {"error": {"message": message, "type": "invalid_request_error"}}
    fails = json.dumps(body).encode() if status == 200 else (status, message)
    server = serve(Server(fails=fails))
    report, rows, _ = await run(
        tmp_path, server, [f"poison: {words}", *(f"say {i}" for i in range(5))], retries=0
    )
    assert (report.stop, report.rows.done, report.rows.failed) == ("", 5, 1)
    assert words in rows[0]["error"]


async def test_an_output_that_another_program_empties_ends_the_run(tmp_path, serve):
    """The run does not write on behind a hole; the same command writes the output again."""
    emptied = []

    async def slow(text):
        out = tmp_path / "out.jsonl"
        if not emptied and out.stat().st_size:
            out.write_bytes(b"")
            emptied.append(text)
        await asyncio.sleep(0.1)
        return 1.0

    source, server = table(tmp_path / "in.jsonl", [f"say {i}" for i in range(30)]), serve(Server())
    more = {"limits": EndpointLimits(initial_in_flight=1), "max_iterations": 0, "max_in_flight": 1}
    report = await batch(source, tmp_path / "out.jsonl", server.model, slow, **more)
    assert emptied
    assert (report.stop, "out.jsonl" in report.stop_note) == ("disk", True)
    assert "\0" not in (tmp_path / "out.jsonl").read_text()
    await batch(source, tmp_path / "out.jsonl", server.model, slow, **more)
    assert len(read(tmp_path / "out.jsonl")) == 30


NO_ANSWERS = {
    "no choices": b'{"choices": []}',
    "page": b"<html>no</html>",
    "cut": b'{"choi',
    "null": b"null",
    "error": b'{"error": {"message": "try later"}}',
    "nothing": b"",
}
no_answers = pytest.mark.parametrize("fails", NO_ANSWERS.values(), ids=NO_ANSWERS)


@pytest.mark.parametrize("fails", [500, *NO_ANSWERS.values()], ids=["500", *NO_ANSWERS])
@pytest.mark.slow(but_each=3)
async def test_an_unreadable_body_is_retried_like_a_500(tmp_path, serve, fails):
    """Three retries make four calls of unknown usage; the next row is not affected."""
    server = serve(Server(fails=fails))
    report, rows, _ = await run(tmp_path, server, ["poison", "say 1"], retries=3)
    assert [row["best"] for row in rows] == [None, "fine"]
    assert sum("poison" in messages[-1]["content"] for messages in server.asked) == 4
    assert (report.rows.done, report.rows.failed, report.spending.calls) == (1, 1, 5)
    assert report.spending.tokens == (15 if fails == 500 else None)


@pytest.mark.slow(but_each=6)
@no_answers
async def test_an_endpoint_without_answers_is_down(tmp_path, serve, fails):
    """The run ends as after an outage, says so, and can be resumed; no row fails, and the progress
    counts the calls.
    """
    said, calls = [], []
    server = serve(Server(down_from=0, down=fails))
    more = {"say": said.append, "on_progress": lambda progress: calls.append(progress.calls)}
    report, rows, _ = await run(
        tmp_path, server, [f"say {i}" for i in range(30)], outage=1.5, **more
    )
    assert (report.stop, report.rows.done, report.rows.failed, report.resumable) == (
        "outage",
        0,
        0,
        True,
    )
    assert server.calls < 30
    assert report.spending.calls <= server.calls
    assert len([text for text in said if "down since" in text]) == 1
    assert 0 < calls[len(calls) // 2] <= server.calls
    server.answer.down_from = None
    report, rows, _ = await run(tmp_path, server, [f"say {i}" for i in range(30)])
    assert (report.stop, report.rows.done, len(rows)) == ("", 30, 30)


@pytest.mark.slow(but_each=6)
@no_answers
@pytest.mark.parametrize("good_rows", [0, 5])
async def test_rows_without_answers_fail_and_the_run_continues(tmp_path, serve, fails, good_rows):
    """Many in a row are not taken for an outage, because the endpoint answers a probe."""
    server = serve(Server(fails=fails))
    prompts = [f"say {i}" for i in range(good_rows)] + [f"poison {i}" for i in range(12)]
    report, rows, _ = await run(tmp_path, server, prompts, retries=1, outage=1.5)
    assert (report.stop, report.rows.done, report.rows.failed) == ("", good_rows, 12)
    assert all(row["error"].startswith("BadResponseError: ") for row in rows[good_rows:])
    assert server.calls <= good_rows + 12 * 4


async def test_a_temporarily_unreadable_body_fails_no_row(tmp_path, serve):
    """The endpoint sends three bad bodies, then an answer."""
    bodies = [b'{"choices": []}', b"<html>no</html>", b"null", "fine"]
    server = serve(Server(fails=lambda: bodies.pop(0)))
    report, rows, _ = await run(tmp_path, server, ["poison"])
    assert (report.rows.done, rows[0]["best"]) == (1, "fine")


@pytest.mark.slow
@pytest.mark.parametrize("down", [None, 503], ids=["silent", "503"])
@pytest.mark.parametrize("last", ["say", "poison"])
async def test_an_outage_at_the_end_leaves_the_remaining_rows_for_a_resumed_run(
    tmp_path, serve, down, last
):
    """No row fails: the run ends after `outage` seconds, and the same call resumes it."""
    server = serve(Server(fails=None, down_from=6, down=down))
    prompts = [
        *(f"say {i}" for i in range(6)),
        *(f"{last} and {i}" for i in range(8 if down else 2)),
    ]
    report, _, _ = await run(tmp_path, server, prompts, outage=1.5, timeout=0.3)
    assert (report.stop, report.rows.failed, report.resumable) == ("outage", 0, True)
    kept = report.rows.done
    assert kept <= 6
    server.answer.down_from, server.answer.fails = None, 400
    report, rows, _ = await run(tmp_path, server, prompts)
    assert (report.stop, report.rows.reused, len(rows)) == ("", kept, len(prompts))
    assert (report.rows.done, report.rows.failed) == (
        (len(rows), 0) if last == "say" else (6, len(rows) - 6)
    )


@pytest.mark.slow
async def test_a_run_waits_for_an_outage_and_only_bad_rows_fail(tmp_path, serve):
    """All rows wait while the endpoint is down; afterwards only those with the poisoned prompt
    fail.
    """
    server = serve(Server(fails=None, down_from=8, down=503))
    stay, back = server.answer, []

    def answer(messages, n):
        if n >= 8:
            back.append(time.monotonic() + 2)
        if back and time.monotonic() > back[0]:
            stay.down_from = None
        return stay(messages, n)

    server.answer = answer
    prompts = [f"{'poison' if i % 10 == 3 else 'say'} {i}" for i in range(30)]
    report, rows, _ = await run(tmp_path, server, prompts, timeout=0.3)
    assert report.stop == ""
    assert [row["id"] for row in rows if row["error"]] == ["r3", "r13", "r23"]


async def test_concurrency_falls_for_a_slow_endpoint_and_no_row_fails(tmp_path, serve):
    """Where half of the calls time out, fewer calls run at once until every row is answered."""

    def slow(messages, n):
        time.sleep(0.125)
        return "fine"

    report, _, _ = await run(
        tmp_path, serve(slow), [f"say {i}" for i in range(16)], timeout=1.0, start=16
    )
    assert (report.stop, report.rows.done, report.rows.failed) == ("", 16, 0)


async def test_an_outage_of_one_endpoint_of_two_leaves_rows_for_a_resumed_run(tmp_path, serve):
    """The other model's answers are saved, no row fails, and the run resumes when both are up."""
    writer, judge = serve(Server()), serve(lambda messages, n: 503)
    source = table(tmp_path / "in.jsonl", [f"say {i}" for i in range(12)])
    limits = EndpointLimits(give_up_after=1.0, initial_in_flight=8)
    given = (source, tmp_path / "out.jsonl", writer.model, None, judge.model)
    report = await batch(*given, limits=limits, max_iterations=0)
    assert (report.stop, report.rows.failed) == ("outage", 0)
    judge.answer = lambda messages, n: verdict(5)
    report = await batch(*given, limits=limits, max_iterations=0)
    assert (report.stop, report.rows.done, report.rows.failed, writer.calls) == ("", 12, 0, 12)


# ---- files that disappear


class SlowWithSideEffect:
    """Answers slowly, and changes the files of the run at the sixth call, so that the change is
    noticed in time.

    Without a function `do` it answers at once.
    """

    def __init__(self, do):
        self.do = do

    def __call__(self, messages, n):
        if self.do:
            if n == 5:
                self.do()
            time.sleep(0.05 if n < 6 else 0.2)
        return f"fine {messages[-1]['content']}"


def remove(path):
    return path.unlink()


def replace(path):
    path.unlink()
    path.write_text("somebody else's\n")


def move(path):
    path.rename(path.with_name("elsewhere"))


FATES = {"deleted": remove, "replaced": replace, "moved": move}


@pytest.mark.parametrize("fate", FATES)
@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.journal", "out.jsonl.journal-wal"])
@pytest.mark.slow(but_each=9)
async def test_a_deleted_file_ends_the_run_and_loses_no_answer(tmp_path, serve, name, fate):
    """The error names it and what is left; the same call resumes with every answer that was paid
    for.
    """
    folder = tmp_path / "work"
    folder.mkdir()
    server = serve(SlowWithSideEffect(lambda: FATES[fate](folder / name)))
    prompts = [f"say {i}" for i in range(40)]
    report, _, _ = await check_loss(folder, server, prompts)
    assert (report.stop, report.journal_lost) == ("disk", False)
    assert repr(str(folder / name)) in report.stop_note, report.stop_note
    assert "the same command" in report.stop_note
    kept, asked = report.rows.done, server.calls
    assert 0 < kept < 40
    if name == "out.jsonl.journal":
        put_back(folder, name, fate, report.stop_note)
    elif (folder / name).exists():
        (folder / name).unlink()
    server.answer.do = None
    report, rows, _ = await run(folder, server, prompts, timeout=5)
    assert (report.stop, report.rows.done, len(rows)) == ("", 40, 40)
    assert report.rows.reused >= kept
    assert server.calls <= 40 + (asked - kept)


async def check_loss(folder, server, prompts):
    source = table(folder / "in.jsonl", prompts)
    limits = EndpointLimits(initial_in_flight=2)
    report = await batch(
        source,
        folder / "out.jsonl",
        server.model,
        good,
        limits=limits,
        max_in_flight=2,
        max_iterations=0,
    )
    return report, None, None


def put_back(folder, name, fate, message):
    """Do what the message asks for before the same call resumes."""
    place = folder / name
    if fate == "deleted":
        assert "it was written again" in message
        assert place.stat().st_mode & 0o777 == 0o600
    elif fate == "replaced":
        assert place.read_text() == "somebody else's\n"
        (folder / f"{name}.saved").rename(place)
    else:
        assert repr(str(folder / "elsewhere")) in message
        (folder / "elsewhere").rename(place)


async def test_a_failing_journal_ends_the_run_and_fails_no_row(tmp_path, serve):
    """An error of the journal ends the run wherever it arises, also while looking for a cached
    answer.
    """

    def raise_full_disk(text):
        raise StoreError("journal 'kept' is damaged")

    source = table(tmp_path / "in.jsonl", [f"say {i}" for i in range(8)])
    report = await batch(
        source, tmp_path / "out.jsonl", serve(Server()).model, raise_full_disk, max_iterations=1
    )
    assert (report.stop, report.rows.failed, report.resumable) == ("disk", 0, True)
    assert "'kept' is damaged" in report.stop_note


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("output", ["out.jsonl", "out.csv"])
async def test_a_folder_that_is_deleted_or_renamed_ends_the_run(tmp_path, serve, output):
    """The error names the output's folder; the journal, elsewhere, has every answer."""
    folder, journal = tmp_path / "work", tmp_path / "j.journal"
    folder.mkdir()
    server = serve(SlowWithSideEffect(lambda: shutil.rmtree(folder)))
    source = table(tmp_path / "in.jsonl", [f"say {i}" for i in range(40)])
    more = {
        "limits": EndpointLimits(initial_in_flight=2),
        "max_in_flight": 2,
        "max_iterations": 0,
        "journal": journal,
    }
    report = await batch(source, folder / output, server.model, good, **more)
    assert report.stop == "disk"
    assert repr(str(folder)) in report.stop_note
    folder.mkdir()
    server.answer.do = None
    again = await batch(source, folder / output, server.model, good, **more)
    assert (again.stop, again.rows.done) == ("", 40)
    assert again.rows.reused >= report.rows.done > 0


@pytest.mark.parametrize("kind", ["pipe", "link"])
@pytest.mark.parametrize(
    "rows", ['{"prompt": "a", "response": "b"}\n', '{"prompt": "a", "response": "b"}\nno\n', "no\n"]
)
def test_a_pipe_or_link_at_a_default_path_is_not_written_to(redraft, kind, rows):
    """Writing to a pipe would block, and a link would put the data into another folder."""
    (redraft.folder / "in.jsonl").write_text(rows)
    (redraft.folder / "elsewhere").mkdir()
    errors = redraft.folder / "out.jsonl.errors.jsonl"
    os.mkfifo(errors) if kind == "pipe" else errors.symlink_to("elsewhere/profile")
    done = redraft(
        "batch", "in.jsonl", "-o", "out.jsonl", "--model", "none", "--require", "words:1-9"
    )
    assert done.returncode == 2 and not list((redraft.folder / "elsewhere").iterdir())
    assert errors.name in done.err or rows == "no\n"


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_a_default_journal_is_not_written_through_a_link(redraft, kind):
    """The error names what is at its path, and nothing is written through it."""
    (redraft.folder / "in.jsonl").write_text('{"prompt": "a", "response": "b"}\n')
    (redraft.folder / "elsewhere").mkdir()
    journal = redraft.folder / "out.jsonl.journal"
    os.mkfifo(journal) if kind == "pipe" else journal.symlink_to("elsewhere/profile")
    done = redraft(
        "batch", "in.jsonl", "-o", "out.jsonl", "--model", "none", "--require", "words:1-9"
    )
    assert done.returncode == 2 and journal.name in done.err
    assert not list((redraft.folder / "elsewhere").iterdir())


def test_a_deleted_output_exits_with_1(redraft, serve):
    """The message names the file, and the last line has the correct state."""
    table(redraft.folder / "in.jsonl", [f"say {i}" for i in range(40)])
    server = serve(SlowWithSideEffect(lambda: (redraft.folder / "out.jsonl").unlink()))
    done = redraft(
        "batch",
        "in.jsonl",
        "-o",
        "out.jsonl",
        "--model",
        server.model,
        "--max-iterations",
        "0",
        "--max-in-flight",
        "2",
        "--grader",
        "helpfulness",
        "--judge",
        server.model,
        "--retry",
        "failed",
        "--log-format",
        "json",
    )
    assert done.returncode == 1, done.err
    told = [json.loads(line) for line in done.err.splitlines()]
    assert any(
        "output 'out.jsonl' was deleted" in event.get("message", "")
        for event in told
        if event["event"] == "error"
    )
    assert (told[-1]["event"], told[-1]["state"]) == ("report", "disk")


@pytest.mark.parametrize("most", [20_000, 200_000])
@pytest.mark.slow
def test_a_full_disk_ends_the_run_and_is_named(tmp_path, serve, most):
    """Whether the output or the journal has no room: exit code 1, the path, and the same command
    resumes.
    """
    table(tmp_path / "in.jsonl", [f"say {i} {'x' * 2000}" for i in range(60)])
    server = serve(lambda messages, n: verdict(5) if is_judging(messages) else "y" * 2000)
    command = [
        sys.executable,
        "-m",
        "redraft",
        "batch",
        "in.jsonl",
        "-o",
        "out.jsonl",
        "--model",
        server.model,
    ]
    command += ["--max-iterations", "0", "--require", "words:1-9000", "--log-format", "json"]
    limited = f"import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, ({most}, {most})); sys.argv = {command[2:]!r}; runpy.run_module('redraft', run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", limited],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1, done.stderr[-2000:]
    told = [json.loads(line) for line in done.stderr.splitlines()]
    errors = [event["message"] for event in told if event["event"] == "error"]
    assert len(errors) == 1 and "out.jsonl" in errors[0]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(read(tmp_path / "out.jsonl")) == 60


# ---- messages


UNUSABLE = {
    "Cyrillic": (
        "in.csv",
        "prompt,id\nпривет,a\nмир,b\n".encode("cp1251"),
        ["2 x", "in.csv:2", "not UTF-8", "--encoding"],
        2,
    ),
    "Cyrillic document": (
        "in.json",
        '[\n{"prompt": "привет"}]'.encode("cp1251"),
        ["in.json:2", "not UTF-8", "--encoding"],
        0,
    ),
    "numbers": (
        "in.jsonl",
        b'{"prompt": 5}\n',
        ["'prompt' holds neither texts nor messages", "--column prompt=NAME"],
        0,
    ),
    "empty": ("in.csv", b"", ["there is no row", "it is empty"], 0),
    "requirement": (
        "in.jsonl",
        b'{"prompt": "p", "requirements": ["wrods:1-9"]}\n' * 3,
        ["3 x", "in.jsonl:1", "wrods:1-9", "words"],
        3,
    ),
    "no JSON": ("in.jsonl", b"{nope\n" * 4, ["4 x", "in.jsonl:1", "not JSON"], 4),
    "one": (
        "in.jsonl",
        b'{"prompt": ""}\n',
        ["the only row", "in.jsonl:1", "'prompt' is empty"],
        1,
    ),
}


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("kind", UNUSABLE)
def test_a_file_without_usable_rows_is_reported_with_reasons(redraft, kind):
    """The error comes before a model is looked for, with counts and a place; the errors file lists
    each row, and no other file is written.
    """
    name, data, words, bad = UNUSABLE[kind]
    (redraft.folder / name).write_bytes(data)
    for _ in range(2):
        done = redraft("batch", name, "-o", "out.jsonl", "--log-format", "json")
        assert done.returncode == 2, done.err
        told = [json.loads(line) for line in done.err.splitlines()]
        (error,) = [event["message"] for event in told if event["event"] == "error"]
        assert all(word in error for word in words), error
        assert "no model" not in done.err
        errors = redraft.folder / "out.jsonl.errors.jsonl"
        assert len(read(errors) if errors.exists() else []) == bad
        assert {p.name for p in redraft.folder.iterdir()} <= {name, errors.name}
    good = {".csv": "prompt,response\np,r\n", ".json": '[{"prompt": "p", "response": "r"}]'}
    (redraft.folder / name).write_text(
        good.get(Path(name).suffix, '{"prompt": "p", "response": "r"}\n')
    )
    done = redraft("batch", name, "-o", "out.jsonl", "--model", "none", "--require", "words:1-9")
    assert done.returncode == 0, done.err
    assert not (redraft.folder / "out.jsonl.errors.jsonl").exists()


LINES = {
    "done": (["-o", "out.jsonl"], 0),
    "unknown option": (["-o", "out.jsonl", "--nope"], 2),
    "no output": ([], 2),
    "bad value": (["-o", "out.jsonl", "--limit", "x"], 2),
    "unknown grader": (["-o", "out.jsonl", "--grader", "halpfulness"], 2),
    "unknown column": (["-o", "out.jsonl", "--column", "prompt=what"], 2),
    "no such folder": (["-o", "no/out.jsonl"], 2),
    "no such journal folder": (["-o", "out.jsonl", "--journal", "no/j"], 2),
    "dry run": (["-o", "out.jsonl", "--dry-run"], 0),
    "debug": (["-o", "out.jsonl", "--model", "nope:x", "--debug"], 2),
}


@pytest.mark.parametrize("kind", LINES)
def test_every_line_of_stderr_is_a_json_object_if_asked_for(redraft, kind):
    """Each has an event, and an error has its message; an invalid run leaves no file."""
    table(redraft.folder / "in.jsonl", ["p"])
    args, code = LINES[kind]
    model = [] if "--model" in args else ["--model", "none"]
    (redraft.folder / "in.jsonl").write_text('{"prompt": "p", "response": "r"}\n')
    done = redraft(
        "batch", "in.jsonl", *args, *model, "--require", "words:1-9", "--log-format=json"
    )
    assert done.returncode == code, done.err
    told = [json.loads(line) for line in done.err.splitlines()]
    assert told
    assert {event["event"] for event in told} <= {
        "progress",
        "notice",
        "warning",
        "error",
        "report",
        "traceback",
    }
    assert all(
        event["message"] for event in told if event["event"] in {"notice", "warning", "error"}
    )
    if code:
        assert told[-1]["event"] == "error"
        assert [p.name for p in redraft.folder.iterdir()] == ["in.jsonl"]


def test_a_wrong_key_is_reported_first_and_rows_count_as_not_tried(redraft, serve):
    """The reason comes once, before the figures; rows without a call were not tried."""
    table(redraft.folder / "in.jsonl", [f"say {i}" for i in range(30)])
    server = serve(lambda messages, n: (401, "bad key"))
    done = redraft(
        "batch", "in.jsonl", "-o", "out.jsonl", "--model", server.model, "--log-format", "json"
    )
    assert done.returncode == 1
    told = [json.loads(line) for line in done.err.splitlines()]
    reasons = [
        i
        for i, event in enumerate(told)
        if "status 401" in event.get("message", "") and event["event"] == "error"
    ]
    assert len(reasons) == 1 < len(told) - 1 or reasons == [len(told) - 2]
    report = told[-1]
    assert (report["event"], report["state"], report["rows"]["unfinished"]) == (
        "report",
        "fatal",
        0,
    )
    assert report["rows"]["not_started"] + report["rows"]["remaining"] == 30
    assert report["summary"][0] == "rows 0 done, 30 not tried"
    assert "cancelled" not in done.err


def test_a_finished_run_says_so(redraft):
    """The second time it does nothing and says how to run again."""
    (redraft.folder / "in.jsonl").write_text('{"prompt": "p", "response": "r"}\n')
    args = ("batch", "in.jsonl", "-o", "out.jsonl", "--model", "none", "--require", "words:1-9")
    assert "finished before" not in redraft(*args).err
    again = redraft(*args)
    assert again.returncode == 0
    assert (
        "all rows were finished before, so nothing was done; another output starts a new run"
        in again.err
    )


async def test_a_list_of_prompts_is_refused(tmp_path):
    """Strings in a list are file names, and no dataset is looked for by them."""
    began = time.monotonic()
    with pytest.raises(ConfigError, match=r"prompts as rows.*\"prompt\""):
        await batch(["a prompt", "another"], tmp_path / "out.jsonl", False, good)
    with pytest.raises(ConfigError, match="prompts as rows"):
        await batch(["hello"], tmp_path / "out.jsonl", False, good)
    assert time.monotonic() - began < 30  # (looking for a dataset would take many retries)
    assert not list(tmp_path.iterdir())


def test_a_token_budget_is_refused_for_a_trace_of_unknown_usage(redraft, serve):
    """Where the endpoint reported no usage, the amount spent is unknown, not zero."""

    def silent(messages, n):
        content = verdict(3) if is_judging(messages) else "fine"
        return json.dumps(
            {"choices": [{"message": {"content": content}, "finish_reason": "stop"}]}
        ).encode()

    first = redraft(
        "run",
        "Say it",
        "--model",
        serve(silent).model,
        "--max-iterations",
        "0",
        "--trace",
        "t.jsonl",
    )
    assert first.returncode == 0, first.err
    done = redraft("run", "--resume", "t.jsonl", "--max-iterations", "1", "--budget-tokens", "1000")
    assert done.returncode == 2
    assert "--budget-tokens 1000: the trace's spending so far is unknown" in done.err


def test_an_interval_stays_within_the_range_of_scores(redraft):
    """With two rows lifted from 0 to 1 and one unchanged, the mean difference is at most 1."""
    rows = [{"prompt": f"p{i}", "response": "One, two" if i else "one"} for i in range(4)]
    (redraft.folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = redraft(
        "batch",
        "in.jsonl",
        "-o",
        "out.jsonl",
        "--model",
        "none",
        "--require",
        "no_commas",
        "--json",
    )
    low, high = json.loads(done.out.splitlines()[-1])["scores"]["uplift_interval"]
    assert -1 <= low <= 0.75 <= high <= 1
