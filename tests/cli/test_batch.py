"""`redraft batch`: what people type, see and get; what becomes of rows is tested in tests/runs."""

import json
import re
import signal
import socket
import urllib.request

import pytest

from .chat_server import is_judging, verdict

EVIL = "\x1b]0;owned\x07\x1b[2J\x1b[31mred\x1b[0m [bold]markup[/bold] \x9b5n\u202eback"


def answer(messages, n):
    """A first answer that is poor, a second that is good, whatever is asked."""
    if is_judging(messages):
        return verdict(5 if "better" in messages[-1]["content"] else 2)
    return "a better one" if len(messages) > 1 else "a poor one"


def write_rows(folder, n=6, name="in.jsonl", **more):
    rows = [{"id": f"q{i}", "prompt": f"Say {i}", "topic": i % 2, **more} for i in range(n)]
    (folder / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return rows


def read_rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def events(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def messages(text):
    return [event.get("message", "") for event in events(text)]


@pytest.fixture
def batch(redraft, serve):
    """Runs `redraft batch in.jsonl -o out.jsonl` against a server, which it hands over."""

    def run(*more, answer=answer, n=6, server=None):
        if not (redraft.folder / "in.jsonl").exists():
            write_rows(redraft.folder, n)
        run.server = server or run.server or serve(answer)
        return redraft("batch", "in.jsonl", "-o", "out.jsonl", "--model", run.server.model, *more)

    run.server = None
    run.folder = redraft.folder
    return run


def test_every_row_gets_its_best_answer_and_nothing_is_paid_for_twice(batch):
    """Columns are kept and added, in the order of the input; the same command again asks nothing and writes the same."""
    done = batch()
    assert done.returncode == 0, done.err
    rows = read_rows(batch.folder / "out.jsonl")
    assert [row["id"] for row in rows] == [f"q{i}" for i in range(6)]
    assert [row["topic"] for row in rows] == [0, 1, 0, 1, 0, 1]
    assert {(row["best"], row["observed"], row["stop"]) for row in rows} == {("a better one", 1.0, "done")}
    assert all(0.4 < row["initial_score"] < row["best_score"] < 1.0 for row in rows)
    assert "6 done" in done.err and "uplift +0." in done.err
    assert (batch.folder / "out.jsonl.journal").exists()
    before, calls = (batch.folder / "out.jsonl").read_bytes(), batch.server.calls
    again = batch()
    assert again.returncode == 0 and batch.server.calls == calls
    assert (batch.folder / "out.jsonl").read_bytes() == before


def test_given_answers_are_repaired_without_a_model(redraft):
    """With requirements alone nobody is asked, and what form allows is repaired."""
    write_rows(redraft.folder, response="One, two,  three")
    done = redraft("batch", "in.jsonl", "-o", "out.jsonl", "--model", "none", "--require", "no_commas")
    assert done.returncode == 0, done.err
    rows = read_rows(redraft.folder / "out.jsonl")
    assert all(row["best_score"] == 1.0 and "," not in row["best"] and row["calls"] == 0 for row in rows)


def test_only_grading_changes_nothing(redraft, serve):
    """--mode grade scores what is given, once a row."""
    server = serve(answer)
    write_rows(redraft.folder, response="a better one")
    done = redraft("batch", "in.jsonl", "-o", "out.jsonl", "--mode", "grade", "--judge", server.model)
    assert done.returncode == 0, done.err
    assert server.calls == 6
    assert {(row["best"], row["best_score"]) for row in read_rows(redraft.folder / "out.jsonl")} == {("a better one", 1.0)}


def test_best_of_several(batch):
    """--mode best drafts N answers a row and refines none."""
    several = lambda messages, n: verdict(n % 5) if is_judging(messages) else f"draft {n}"
    done = batch("--mode", "best", "-n", "3", n=2, answer=several)
    assert done.returncode == 0, done.err
    assert batch.server.calls == 2 * (3 + 3)
    assert {row["iterations"] for row in read_rows(batch.folder / "out.jsonl")} == {0}


def test_rows_that_fail_or_cannot_be_read_are_told_apart_and_stop_nothing(batch):
    """Exit code 3; the errors are in the output or, with file and line, in the errors file."""
    (batch.folder / "in.jsonl").write_text('{"prompt": "Say 1"}\n{"prompt": "refuse this"}\nnonsense\n{"prompt": "Say 4"}\n')
    done = batch(answer=lambda messages, n: (400, EVIL) if "refuse" in messages[-1]["content"] else answer(messages, n))
    assert done.returncode == 3, done.err
    rows = read_rows(batch.folder / "out.jsonl")
    assert [bool(row["error"]) for row in rows] == [False, True, False]
    assert "in.jsonl:3" in (batch.folder / "out.jsonl.errors.jsonl").read_text()
    assert "2 done, 1 failed, 1 unreadable" in done.err
    assert "1 row could not be read, listed in out.jsonl.errors.jsonl:" in done.err
    assert any(re.match(r"in\.jsonl:3: \S", message) for message in messages(done.err))


def test_of_many_unreadable_rows_the_first_are_named(batch):
    """Three with their reasons, and how many more there are."""
    (batch.folder / "in.jsonl").write_text('{"prompt": "Say 1"}\n' + "nonsense\n" * 5)
    done = batch("--errors", "bad.jsonl")
    assert done.returncode == 3, done.err
    assert "5 rows could not be read, listed in bad.jsonl:" in done.err and "2 more" in done.err
    assert sum(bool(re.match(r"in\.jsonl:\d: ", message)) for message in messages(done.err)) == 3


def test_a_result_that_breaks_a_requirement_is_no_success(redraft):
    """Exit code 3, so that no script goes on with it."""
    write_rows(redraft.folder, 2, response="One, two")
    done = redraft("batch", "in.jsonl", "-o", "out.jsonl", "--mode", "grade", "--require", "no_commas")
    assert done.returncode == 3, done.err
    assert redraft("batch", "in.jsonl", "-o", "good.jsonl", "--model", "none", "--require", "no_commas").returncode == 0


def test_a_rehearsal_shows_what_would_be_done_and_does_nothing(batch):
    """--dry-run: the shape, samples, calls and cost; nothing asked, nothing written."""
    write_rows(batch.folder, 6, prompt=f"Say it {EVIL}")
    done = batch("--dry-run", "--price", "tiny=1,2")
    assert done.returncode == 0, done.err
    assert "6 rows" in done.err and any('prompt from "prompt"' in message for message in messages(done.err))
    assert done.out.count("sample") == 3 and "markup" in done.out
    assert re.search(r"calls +likely \d+ \(between 12 and 48\)", done.out)
    assert re.search(r"cost +likely 0\.\d+ \(between 0\.\d+ and 0\.\d+\) USD", done.out)
    assert "no column is known to be the response (response, completion, answer, output are)" in done.err
    assert "--column response=NAME. There are 'id', 'prompt'" in done.err
    assert "\x1b" not in done.out and "\u202e" not in done.out
    as_json = json.loads(batch("--dry-run", "--json").out)
    assert len(as_json["samples"]) == 3 and as_json["cost"] is as_json["expected"]["cost"] is None
    assert as_json["calls"][0] < as_json["expected"]["calls"] < as_json["calls"][1]
    assert batch.server.calls == 0
    assert [p.name for p in batch.folder.iterdir()] == ["in.jsonl"]


def test_programs_get_json_lines(batch):
    """With --json progress and the report go to stdout; without it progress is JSON on stderr all the same."""
    done = batch("--json")
    told = events(done.out)
    assert len(told) == len(done.out.splitlines())
    assert {event["event"] for event in told[:-1]} == {"progress"}
    assert (told[-1]["event"], told[-1]["done"], told[-1]["end_reason"]) == ("report", 6, "")
    assert (told[-2]["done"], told[-2]["total"]) == (6, 6)
    assert 0.4 < told[-2]["mean_first"] < told[-2]["mean_best"] < 1.0
    assert {event["event"] for event in events(done.err)} == {"notice"}
    assert events(batch().err)[-1]["reused"] == 6


def test_rows_to_stdout(redraft, serve):
    """-o - writes the rows alone to stdout; without a journal that is named nothing is kept, which is said."""
    write_rows(redraft.folder, 3)
    ours = ("batch", "in.jsonl", "-o", "-", "--model", serve(answer).model, "--json")
    alone = redraft(*ours)
    assert alone.returncode == 0 and "--journal FILE keeps one" in alone.err
    assert [json.loads(line)["id"] for line in alone.out.splitlines()] == ["q0", "q1", "q2"]
    assert [p.name for p in redraft.folder.iterdir()] == ["in.jsonl"]
    done = redraft(*ours, "--journal", "j.journal")
    assert done.returncode == 0, done.err
    assert [json.loads(line)["id"] for line in done.out.splitlines()] == ["q0", "q1", "q2"]
    assert events(done.err)[-1]["event"] == "report"


def test_rows_from_stdin(redraft, serve):
    """- reads JSON Lines from stdin."""
    text = "".join(f"{json.dumps({'prompt': f'Say {i}'})}\n" for i in range(3))
    done = redraft("batch", "-", "-o", "out.jsonl", "--model", serve(answer).model, input=text)
    assert done.returncode == 0, done.err
    assert [row["prompt"] for row in read_rows(redraft.folder / "out.jsonl")] == ["Say 0", "Say 1", "Say 2"]


def test_the_live_view(redraft, serve):
    """In a terminal: rows, calls, cost, tokens and scores, redrawn; and nothing that a row holds can drive it."""
    write_rows(redraft.folder, 80, id=EVIL)
    server = serve(lambda messages, n: (400, EVIL) if n == 0 else answer(messages, n))
    seen, _, code = redraft.in_terminal(
        "batch", "in.jsonl", "-o", "out.jsonl", "--model", server.model, "--price", "tiny=1,2", "--on-duplicate", "rename"
    )
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode())
    assert code == 3
    for shown in ("79 done", "1 failed", " in flight of ", "USD so far", " first → 0.", "iteration"):
        assert shown in text, text
    for evil in ("\x1b]0;", "\x1b[2J", "\x1b[31mred", "\x9b", "\x07", "\u202e"):
        assert evil.encode() not in seen


def started(redraft, serve, hold=4):
    """A run that waits for its call number `hold`."""
    write_rows(redraft.folder)
    server = serve(answer)
    arrived = server.hold(hold)
    process = redraft.start(
        "batch", "in.jsonl", "-o", "out.jsonl", "--model", server.model, "--max-in-flight", "1", "--initial-in-flight", "1"
    )
    assert arrived.wait(30)
    return process, server


@pytest.mark.parametrize("told", [signal.SIGINT, signal.SIGTERM])
def test_told_to_end_it_finishes_what_is_in_flight(redraft, serve, told):
    """Ctrl-C once, or SIGTERM: the call under way is waited for and kept, how to go on is said, and the same command does."""
    process, server = started(redraft, serve)
    process.send_signal(told)
    assert b"Ctrl-C again" in until(process.stderr, b"Ctrl-C again")
    server.release()
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130 and err.count(b"the same command resumes the run") == 1
    told = events(err.decode())
    assert len(told) == len(err.splitlines())
    assert [event["message"] for event in told if event["event"] == "error"] == ["interrupted"]
    assert (told[-1]["event"], told[-1]["state"]) == ("report", "interrupted")
    last = [event for event in told if event["event"] == "progress"][-1]
    assert last["state"] == "interrupted" and last["unfinished"] >= 1
    assert (last["rows_per_s"] or 0) < 20, "a row that was cut short is none that ended"
    assert server.calls == 5
    done = redraft("batch", "in.jsonl", "-o", "out.jsonl", "--model", server.model)
    assert done.returncode == 0, done.err
    assert server.calls == 6 * 4 and len(read_rows(redraft.folder / "out.jsonl")) == 6


def test_ctrl_c_twice_ends_at_once(redraft, serve):
    """The call under way is given up; the run goes on with the same command all the same."""
    process, server = started(redraft, serve)
    process.send_signal(signal.SIGINT)
    until(process.stderr, b"Ctrl-C again")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130 and b"the same command resumes" in err
    assert b"paid: %d calls, tokens unknown" % server.calls in err
    server.release()
    done = redraft("batch", "in.jsonl", "-o", "out.jsonl", "--model", server.model)
    assert done.returncode == 0, done.err
    assert server.calls == 6 * 4 + 1


def until(stream, text):
    """What comes out of a stream up to a line with the text."""
    seen = b""
    while text not in seen:
        line = stream.readline()
        assert line, seen
        seen += line
    return seen


def test_numbers_for_prometheus(redraft, serve):
    """--metrics 0 says where; what can be fetched there is what is known of the run."""
    write_rows(redraft.folder)
    server = serve(answer)
    arrived = server.hold(9)
    process = redraft.start(
        "batch",
        "in.jsonl",
        "-o",
        "out.jsonl",
        "--model",
        server.model,
        "--metrics",
        "0",
        "--max-in-flight",
        "1",
        "--initial-in-flight",
        "1",
    )
    where = re.search(rb"http://127\.0\.0\.1:\d+/metrics", until(process.stderr, b"/metrics"))[0].decode()
    assert arrived.wait(30)
    told = urllib.request.urlopen(where).read().decode()  # noqa: S310
    server.release()
    process.communicate(timeout=30)
    assert process.returncode == 0
    for line in ("redraft_rows_done_total 2.0", "redraft_rows 6.0", "redraft_calls_in_flight 1.0"):
        assert line in told.splitlines(), told
    assert re.search(r"^redraft_mean_first_score 0\.\d+$", told, re.MULTILINE), told
    assert "redraft_cost" not in told


def test_a_port_that_is_taken_is_said_before_anything_is_asked(batch):
    """It names the port and what to do."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = batch("--metrics", str(port))
    assert done.returncode == 2 and f"127.0.0.1:{port}" in done.err and "another port" in done.err
    assert batch.server.calls == 0


def test_the_end_of_the_money(batch):
    """A budget in USD is kept for a model whose price is given; exit code 1, and the same command goes on with more."""
    unknown = batch("--budget-usd", "0.5", n=40)
    assert unknown.returncode == 2 and "price" in unknown.err
    done = batch("--budget-calls", "10", "--price", "tiny=1,2")
    assert done.returncode == 1, done.err
    assert "with a larger --budget-calls the same command resumes" in done.err
    assert done.err.count("resumes") == 1
    assert batch.server.calls <= 10
    rows = read_rows(batch.folder / "out.jsonl")
    assert len(rows) == 40 and {row["stop"] for row in rows} <= {"budget", "gain", "not_started"}
    assert all(row["best_score"] is not None for row in rows if row["best"])
    assert batch("--price", "tiny=1,2").returncode == 0
    assert {row["stop"] for row in read_rows(batch.folder / "out.jsonl")} == {"done"}


def test_the_end_of_the_time(batch):
    """It is said how the run goes on, once."""
    done = batch("--deadline", "0")
    assert done.returncode == 1, done.err
    assert "ended early: deadline" in done.err and "--deadline" in done.err and done.err.count("resumes") == 1


def test_a_price_for_nobody_is_told(batch):
    """A name that no model of the run has, with those that there are; the right one is taken without a word."""
    done = batch("--price", "tinny=1,2", "--price", "tiny=1,2", "--dry-run")
    assert "--price tinny: no model in this run has that name; there is tiny" in done.err
    assert "--price tiny:" not in done.err


def test_an_endpoint_that_is_down_is_waited_for_and_then_given_up(redraft):
    """It is said since when; after --give-up-after seconds the run ends, exit code 1, and can be gone on with."""
    write_rows(redraft.folder)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    done = redraft("batch", "in.jsonl", "-o", "out.jsonl", "--model", f"http://127.0.0.1:{port}/v1#tiny", "--give-up-after", "0.5")
    assert done.returncode == 1
    assert "down since" in done.err and "ended early: outage" in done.err and "the same command resumes" in done.err


def test_a_price_is_kept_with_a_trace(redraft, serve):
    """--price is there for other commands, too, and when work goes on."""
    server = serve(answer)
    args = ("run", "Say it", "--model", server.model, "--budget-usd", "1", "--price", "tiny=1,2", "--trace", "t.jsonl")
    done = redraft(*args, "--max-iterations", "0")
    assert done.returncode == 0, done.err
    again = redraft("run", "--resume", "t.jsonl", "--max-iterations", "1")
    assert again.returncode == 0 and "cost 0.0001 USD" in again.err


def test_a_wrong_key_stops_at_once(batch):
    """One clear line, exit code 1; not one error a row."""
    done = batch(answer=lambda messages, n: (401, "bad key"), n=200)
    assert done.returncode == 1
    assert "bad key" in done.err and "the same command resumes" in done.err
    assert batch.server.calls <= 16


def test_what_changed_is_explained_and_redone(batch):
    """--explain names the parts that changed and does nothing; then only rows that they decide are done again."""
    batch()
    calls, before = batch.server.calls, {p.name: p.read_bytes() for p in batch.folder.iterdir()}
    done = batch("--explain")
    assert "6 rows finished" in done.err and "no model was called" in done.out
    told = batch("--explain", "--max-iterations", "0")
    assert told.returncode == 0 and "setting plan changed: 6 rows are redone" in told.err
    assert {p.name: p.read_bytes() for p in batch.folder.iterdir()} == before
    assert batch("--max-iterations", "0").returncode == 0
    assert batch.server.calls == calls
    assert {row["best"] for row in read_rows(batch.folder / "out.jsonl")} == {"a poor one"}


def test_failed_rows_are_done_again_when_asked_for(batch):
    """The same command leaves a failed row alone; --retry failed does it again, and only it."""
    refused = ["Say 3"]
    done = batch(answer=lambda messages, n: (400, "no") if messages[0]["content"] in refused else answer(messages, n))
    refused.clear()
    calls = batch.server.calls
    assert (done.returncode, batch().returncode, batch.server.calls) == (3, 3, calls)
    assert batch("--retry", "failed").returncode == 0
    assert batch.server.calls == calls + 4


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("in.jsonl",), "-o OUT"),
        ((), "IN"),
        (("in.jsonl", "-o", "out.jsonl", "-n", "3"), "--mode best"),
        (("in.jsonl", "-o", "out.jsonl", "--shards", "3"), "--engine ray"),
        (("in.jsonl", "-o", "out.jsonl", "--poll", "3"), "--engine provider-batch"),
        (("in.jsonl", "-o", "nowhere/out.jsonl"), "cannot be written"),
        (("in.jsonl", "-o", "out.jsonl", "--price", "tiny"), "MODEL=IN,OUT"),
        (("in.jsonl", "-o", "out.jsonl", "--price", "tiny=1,nan"), "MODEL=IN,OUT"),
        (("in.jsonl", "-o", "out.jsonl", "--column", "prompt=what"), "topic"),
        (("none.jsonl", "-o", "out.jsonl"), "none.jsonl"),
        (("in.jsonl", "-o", "out.xlsx"), "out.xlsx"),
    ],
)
def test_mistakes_are_told_before_anything_is_asked(redraft, args, said):
    """Exit code 2, one clear line, and no output."""
    write_rows(redraft.folder)
    done = redraft("batch", *args, "--model", "none", "--require", "words:1-9")
    assert done.returncode == 2 and said in done.err, done.err
    assert {p.suffix for p in redraft.folder.iterdir()} <= {".jsonl", ".journal"}
    assert not (redraft.folder / "out.jsonl").exists()


def test_columns_come_from_a_file_of_settings_too(redraft, serve):
    """column is a key of redraft.toml, as the pace is."""
    (redraft.folder / "redraft.toml").write_text('column = ["prompt=what"]\nmax-in-flight = 2\nrpm = 6000\n')
    (redraft.folder / "in.csv").write_text("what,prompt\nSay 1,no\nSay 2,no\n")
    server = serve(answer)
    done = redraft("batch", "in.csv", "-o", "out.jsonl", "--model", server.model)
    assert done.returncode == 0, done.err
    assert {m[0]["content"] for m in server.asked if not is_judging(m)} == {"Say 1", "Say 2"}
