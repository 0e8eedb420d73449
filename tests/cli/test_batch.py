"""`redraft batch`: its options, output and messages; how rows are processed is tested in
tests/runs.
"""

import json
import re
import signal
import socket
import urllib.request

import pytest

from redraft.plans.adaptive import Adaptive

from .chat_server import is_judging, verdict

EVIL = "\x1b]0;owned\x07\x1b[2J\x1b[31mred\x1b[0m [bold]markup[/bold] \x9b5n\u202eback"


def answer(messages, n):
    """A poor first answer and a good second one, whatever the prompt."""
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


@pytest.fixture
def batch(redraft, serve):
    """Run `redraft batch in.jsonl -o out.jsonl` against a server, which is returned with the
    run.
    """

    def run(*more, answer=answer, n=6, server=None):
        if not (redraft.folder / "in.jsonl").exists():
            write_rows(redraft.folder, n)
        run.server = server or run.server or serve(answer)
        return redraft("batch", "in.jsonl", "-o", "out.jsonl", "--model", run.server.model, *more)

    run.server = None
    run.folder = redraft.folder
    return run


def test_every_row_gets_its_best_answer_and_nothing_is_paid_for_twice(batch):
    """Columns are kept and added, in the order of the input; the same command again makes no call
    and writes the same output.
    """
    done = batch()
    assert done.returncode == 0, done.err
    rows = read_rows(batch.folder / "out.jsonl")
    assert [row["id"] for row in rows] == [f"q{i}" for i in range(6)]
    assert [row["topic"] for row in rows] == [0, 1, 0, 1, 0, 1]
    assert {(row["best"], row["judge_score"], row["stop"]) for row in rows} == {
        ("a better one", 1.0, "done")
    }
    assert all(0.4 < row["initial_score"] < row["best_score"] < 1.0 for row in rows)
    assert "6 done" in done.err and "uplift +0." in done.err
    assert (batch.folder / "out.jsonl.journal").exists()
    before, calls = (batch.folder / "out.jsonl").read_bytes(), batch.server.calls
    again = batch()
    assert again.returncode == 0 and batch.server.calls == calls
    assert (batch.folder / "out.jsonl").read_bytes() == before


def test_given_answers_are_repaired_without_a_model(redraft):
    """With requirements alone no model is called, and the editor repairs what it can."""
    write_rows(redraft.folder, response="One, two,  three")
    done = redraft(
        "batch", "in.jsonl", "-o", "out.jsonl", "--model", "none", "--require", "no_commas"
    )
    assert done.returncode == 0, done.err
    rows = read_rows(redraft.folder / "out.jsonl")
    assert all(
        row["best_score"] == 1.0 and "," not in row["best"] and row["calls"] == 0 for row in rows
    )


def test_grade_mode_scores_given_answers_and_changes_none(redraft, serve):
    """--mode grade scores each given response once."""
    server = serve(answer)
    write_rows(redraft.folder, response="a better one")
    done = redraft(
        "batch", "in.jsonl", "-o", "out.jsonl", "--mode", "grade", "--judge", server.model
    )
    assert done.returncode == 0, done.err
    assert server.calls == 6
    assert {
        (row["best"], row["best_score"]) for row in read_rows(redraft.folder / "out.jsonl")
    } == {("a better one", 1.0)}


def test_best_mode_drafts_several_answers_and_refines_none(batch):
    """--mode best drafts N answers for each row and refines none."""
    several = lambda messages, n: verdict(n % 5) if is_judging(messages) else f"draft {n}"
    done = batch("--mode", "best", "-n", "3", n=2, answer=several)
    assert done.returncode == 0, done.err
    assert batch.server.calls == 2 * (3 + 3)
    assert {row["iterations"] for row in read_rows(batch.folder / "out.jsonl")} == {0}


def test_failed_and_unreadable_rows_are_reported_and_do_not_stop_the_run(batch):
    """Exit code 3; the errors are in the output or, with file and line, in the errors file."""
    (batch.folder / "in.jsonl").write_text(
        '{"prompt": "Say 1"}\n{"prompt": "refuse this"}\nnonsense\n{"prompt": "Say 4"}\n'
    )
    done = batch(
        answer=lambda messages, n: (
            (400, EVIL) if "refuse" in messages[-1]["content"] else answer(messages, n)
        )
    )
    assert done.returncode == 3, done.err
    rows = read_rows(batch.folder / "out.jsonl")
    assert [bool(row["error"]) for row in rows] == [False, True, False]
    assert "in.jsonl:3" in (batch.folder / "out.jsonl.errors.jsonl").read_text()
    assert "2 done, 1 failed, 1 unreadable" in done.err
    assert "1 row could not be read, listed in out.jsonl.errors.jsonl:" in done.err
    assert re.search(r"^redraft: in\.jsonl:3: \S", done.err, re.MULTILINE)


def test_the_first_of_many_unreadable_rows_are_named(batch):
    """The message names three with their reasons, and counts the rest."""
    (batch.folder / "in.jsonl").write_text('{"prompt": "Say 1"}\n' + "nonsense\n" * 5)
    done = batch("--errors", "bad.jsonl")
    assert done.returncode == 3, done.err
    assert "5 rows could not be read, listed in bad.jsonl:" in done.err and "2 more" in done.err
    assert len(re.findall(r"^redraft: in\.jsonl:\d: ", done.err, re.MULTILINE)) == 3


def test_a_result_that_breaks_a_requirement_exits_with_3(redraft):
    """Exit code 3, so that a script can stop there."""
    write_rows(redraft.folder, 2, response="One, two")
    done = redraft(
        "batch", "in.jsonl", "-o", "out.jsonl", "--mode", "grade", "--require", "no_commas"
    )
    assert done.returncode == 3, done.err
    assert (
        redraft(
            "batch", "in.jsonl", "-o", "good.jsonl", "--model", "none", "--require", "no_commas"
        ).returncode
        == 0
    )


def test_dry_run_shows_calls_and_cost_and_does_nothing(batch):
    """--dry-run shows the columns, samples, calls and cost; it makes no call and writes no file."""
    write_rows(batch.folder, 6, prompt=f"Say it {EVIL}")
    done = batch("--dry-run", "--price", "tiny=1,2")
    assert done.returncode == 0, done.err
    assert "6 rows" in done.err and 'prompt from "prompt"' in done.err
    assert done.out.count("sample") == 3 and "markup" in done.out
    most = 6 * 2 * (1 + Adaptive.max_attempts)
    assert re.search(rf"calls\s+likely \d+ \(between 12 and {most}\)", done.out)
    assert re.search(r"cost\s+likely 0\.\d+ \(between 0\.\d+ and 0\.\d+\) USD", done.out)
    assert (
        "no column is known to be the response (response, completion, answer, output are)"
        in done.err
    )
    assert "--column response=NAME. There are 'id', 'prompt'" in done.err
    assert "\x1b" not in done.out and "\u202e" not in done.out
    as_json = json.loads(batch("--dry-run", "--json").out)
    assert len(as_json["samples"]) == 3 and as_json["cost"] is as_json["expected"]["cost"] is None
    assert as_json["calls"][0] < as_json["expected"]["calls"] < as_json["calls"][1]
    assert batch.server.calls == 0
    assert [p.name for p in batch.folder.iterdir()] == ["in.jsonl"]


def test_json_prints_progress_and_report_as_json_lines(batch):
    """With --json progress and the report go to stdout; with --log-format json alone all messages
    are JSON on stderr.
    """
    done = batch("--json", "--log-format", "json")
    told = events(done.out)
    assert len(told) == len(done.out.splitlines())
    assert {event["event"] for event in told[:-1]} == {"progress"}
    assert (told[-1]["event"], told[-1]["rows"]["done"], told[-1]["stop"]) == ("report", 6, "")
    assert (told[-2]["rows"]["done"], told[-2]["rows"]["total"]) == (6, 6)
    assert 0.4 < told[-2]["scores"]["initial"] < told[-2]["scores"]["best"] < 1.0
    assert {event["event"] for event in events(done.err)} == {"notice"}
    assert events(batch("--log-format", "json").err)[-1]["rows"]["reused"] == 6
    assert events(batch().err) == []


def test_output_dash_writes_rows_to_stdout(redraft, serve):
    """-o - writes the rows alone to stdout; without --journal nothing is saved, and a message says
    so.
    """
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


def test_input_dash_reads_rows_from_stdin(redraft, serve):
    """- reads JSON Lines from stdin."""
    text = "".join(f"{json.dumps({'prompt': f'Say {i}'})}\n" for i in range(3))
    done = redraft("batch", "-", "-o", "out.jsonl", "--model", serve(answer).model, input=text)
    assert done.returncode == 0, done.err
    assert [row["prompt"] for row in read_rows(redraft.folder / "out.jsonl")] == [
        "Say 0",
        "Say 1",
        "Say 2",
    ]


def test_the_live_view_shows_progress_and_no_control_sequences_of_rows(redraft, serve):
    """A terminal shows rows, calls, cost, tokens and scores; control sequences in a row have no
    effect.
    """
    write_rows(redraft.folder, 80, id=EVIL)
    server = serve(lambda messages, n: (400, EVIL) if n == 0 else answer(messages, n))
    seen, _, code = redraft.in_terminal(
        "batch",
        "in.jsonl",
        "-o",
        "out.jsonl",
        "--model",
        server.model,
        "--price",
        "tiny=1,2",
        "--on-duplicate",
        "rename",
    )
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode())
    assert code == 3
    for shown in (
        "79 done",
        "1 failed",
        " in flight of ",
        "USD so far",
        " first → 0.",
        "iteration",
    ):
        assert shown in text, text
    for evil in ("\x1b]0;", "\x1b[2J", "\x1b[31mred", "\x9b", "\x07", "\u202e"):
        assert evil.encode() not in seen


ONE_AT_A_TIME = ("--max-in-flight", "1", "--initial-in-flight", "1")


def start_and_wait_for_call(redraft, serve, hold=4):
    """Start a run and wait for its call number `hold`."""
    write_rows(redraft.folder)
    server = serve(answer)
    arrived = server.hold(hold)
    process = redraft.start(
        "batch",
        "in.jsonl",
        "-o",
        "out.jsonl",
        "--model",
        server.model,
        *ONE_AT_A_TIME,
        "--log-format",
        "json",
    )
    assert arrived.wait(30)
    return process, server


@pytest.mark.slow
@pytest.mark.parametrize("told", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_waits_for_calls_in_flight(redraft, serve, told):
    """After one Ctrl-C or SIGTERM the call in flight is finished and saved, a message says how to
    resume, and the same command resumes.
    """
    process, server = start_and_wait_for_call(redraft, serve)
    process.send_signal(told)
    assert b"Ctrl-C again" in read_until(process.stderr, b"Ctrl-C again")
    server.release()
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130 and err.count(b"the same command resumes the run") == 1
    told = events(err.decode())
    assert len(told) == len(err.splitlines())
    assert [event["message"] for event in told if event["event"] == "error"] == ["interrupted"]
    assert (told[-1]["event"], told[-1]["state"]) == ("report", "interrupted")
    last = [event for event in told if event["event"] == "progress"][-1]
    assert last["state"] == "interrupted" and last["rows"]["unfinished"] >= 1
    assert (last["rows_per_s"] or 0) < 20, "a row that was cut short is none that ended"
    assert server.calls == 5
    done = redraft("batch", "in.jsonl", "-o", "out.jsonl", "--model", server.model)
    assert done.returncode == 0, done.err
    assert server.calls == 6 * 4 and len(read_rows(redraft.folder / "out.jsonl")) == 6


@pytest.mark.slow
def test_ctrl_c_twice_ends_the_run_at_once(redraft, serve):
    """The call in flight is abandoned; the same command resumes the run."""
    process, server = start_and_wait_for_call(redraft, serve)
    process.send_signal(signal.SIGINT)
    read_until(process.stderr, b"Ctrl-C again")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130 and b"the same command resumes" in err
    assert b"paid: %d calls, tokens unknown" % server.calls in err
    server.release()
    done = redraft("batch", "in.jsonl", "-o", "out.jsonl", "--model", server.model)
    assert done.returncode == 0, done.err
    assert server.calls == 6 * 4 + 1


def read_until(stream, text):
    """Read a stream up to a line that contains the text."""
    seen = b""
    while text not in seen:
        line = stream.readline()
        assert line, seen
        seen += line
    return seen


def test_metrics_serves_prometheus_figures(redraft, serve):
    """--metrics 0 prints an address, which serves the figures of the run."""
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
    where = re.search(rb"http://127\.0\.0\.1:\d+/metrics", read_until(process.stderr, b"/metrics"))[
        0
    ].decode()
    assert arrived.wait(30)
    figures = urllib.request.urlopen(where).read().decode()
    server.release()
    process.communicate(timeout=30)
    assert process.returncode == 0
    for line in ("redraft_rows 6.0", "redraft_calls_in_flight 1.0"):
        assert line in figures.splitlines(), figures
    for line in (
        r"redraft_rows_done_total [1-4]\.0",
        r"redraft_mean_first_score 0\.\d+",
    ):  # two calls a row, of which 8 are answered
        assert re.search(f"^{line}$", figures, re.MULTILINE), figures
    assert "redraft_cost" not in figures


def test_a_port_in_use_is_reported_before_any_call(batch):
    """The message names the port and what to do."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = batch("--metrics", str(port))
    assert done.returncode == 2 and f"127.0.0.1:{port}" in done.err and "another port" in done.err
    assert batch.server.calls == 0


@pytest.mark.slow
def test_an_exhausted_usd_budget_ends_the_run_and_a_larger_one_resumes_it(batch):
    """A budget in USD holds for a model with a given price; exit code 1, and the same command
    resumes with a larger budget.
    """
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


def test_an_expired_deadline_says_once_how_to_resume(batch):
    """A message says once how to resume the run."""
    done = batch("--deadline", "0")
    assert done.returncode == 1, done.err
    assert (
        "ended early: deadline" in done.err
        and "--deadline" in done.err
        and done.err.count("resumes") == 1
    )


def test_a_price_for_an_unknown_model_is_reported(batch):
    """The message names the models of the run; a price for one of them prints nothing."""
    done = batch("--price", "tinny=1,2", "--price", "tiny=1,2", "--dry-run")
    assert "--price tinny: no model in this run has that name; there is tiny" in done.err
    assert "--price tiny:" not in done.err


def test_a_run_waits_for_an_endpoint_that_is_down_until_give_up_after(redraft, closed_url):
    """The message says since when it is down; after --give-up-after seconds the run ends with exit
    code 1 and can be resumed.
    """
    write_rows(redraft.folder)
    done = redraft(
        "batch",
        "in.jsonl",
        "-o",
        "out.jsonl",
        "--model",
        f"{closed_url}#tiny",
        "--give-up-after",
        "0.5",
    )
    assert done.returncode == 1
    assert (
        "down since" in done.err
        and "ended early: outage" in done.err
        and "the same command resumes" in done.err
    )


def test_a_trace_keeps_the_price_of_its_model(redraft, serve):
    """Other commands have --price, too, and a resumed trace uses the same price."""
    server = serve(answer)
    args = (
        "run",
        "Say it",
        "--model",
        server.model,
        "--budget-usd",
        "1",
        "--price",
        "tiny=1,2",
        "--trace",
        "t.jsonl",
    )
    done = redraft(*args, "--max-iterations", "0")
    assert done.returncode == 0, done.err
    again = redraft("run", "--resume", "t.jsonl", "--max-iterations", "1")
    assert again.returncode == 0 and "cost 0.00008 USD" in again.err


def test_a_wrong_key_stops_the_run_with_one_error(batch):
    """One line and exit code 1, not one error for each row."""
    done = batch(answer=lambda messages, n: (401, "bad key"), n=200)
    assert done.returncode == 1
    assert (
        "AuthenticationError" in done.err
        and "status 401" in done.err
        and "bad key" not in done.err
        and "the same command resumes" in done.err
    )
    assert batch.server.calls <= 16


def test_a_used_up_quota_has_a_hint_of_its_own(batch):
    """The words of the endpoint are in the output; stderr says in ours that it is not the key."""
    done = batch(
        answer=lambda messages, n: (429, "Quota exceeded for metric: requests, limit: 0"), n=20
    )
    assert (
        done.returncode == 1
        and "no quota or credit is left" in done.err
        and "until the quota is renewed" in done.err
    ), done.err
    assert "environment" not in done.err and "metric" not in done.err
    assert "limit: 0" in read_rows(batch.folder / "out.jsonl")[0]["error"]


def test_explain_names_the_changed_settings_and_only_affected_rows_are_redone(batch):
    """--explain names the changes and does nothing; the next run redoes only the rows that they
    affect.
    """
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


def test_retry_failed_redoes_failed_rows_alone(batch):
    """The same command leaves a failed row alone; --retry failed redoes it and no other."""
    refused = ["Say 3"]
    done = batch(
        answer=lambda messages, n: (
            (400, "no") if messages[0]["content"] in refused else answer(messages, n)
        )
    )
    refused.clear()
    calls = batch.server.calls
    assert (done.returncode, batch().returncode, batch.server.calls) == (3, 3, calls)
    assert batch("--retry", "failed").returncode == 0
    assert batch.server.calls == calls + 4


def test_former_options_still_work(redraft):
    """One warning says what to write now."""
    (redraft.folder / "in.jsonl").write_text('{"prompt": "Say it.", "response": "Well, yes."}\n')
    preview = "batch in.jsonl --dry-run --model none --require no_commas".split()
    done = redraft.inside([*preview, "--engine", "ray", "--shards", "2"])
    assert done.returncode == 0, done.err
    said = "--engine ray, --shards 2 is now --ray local, --workers 2"
    assert done.err.count("is now") == 1 and said in done.err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("in.jsonl",), "-o OUT"),
        ((), "IN"),
        (("in.jsonl", "-o", "out.jsonl", "-n", "3"), "--mode best"),
        (("in.jsonl", "-o", "out.jsonl", "--ray", "auto", "--pilot", "3"), "pilot"),
        (("in.jsonl", "-o", "out.jsonl", "--poll", "3"), "--engine provider-batch"),
        (("in.jsonl", "-o", "nowhere/out.jsonl"), "cannot be written"),
        (("in.jsonl", "-o", "out.jsonl", "--price", "tiny"), "MODEL=IN,OUT"),
        (("in.jsonl", "-o", "out.jsonl", "--price", "tiny=1,nan"), "MODEL=IN,OUT"),
        (("in.jsonl", "-o", "out.jsonl", "--column", "prompt=what"), "topic"),
        (("none.jsonl", "-o", "out.jsonl"), "none.jsonl"),
        (("in.jsonl", "-o", "out.xlsx"), "out.xlsx"),
    ],
)
def test_usage_errors_are_reported_before_any_call(redraft, args, said):
    """Exit code 2, one line, and no output file."""
    write_rows(redraft.folder)
    done = redraft("batch", *args, "--model", "none", "--require", "words:1-9")
    assert done.returncode == 2 and said in done.err, done.err
    assert {p.suffix for p in redraft.folder.iterdir()} <= {".jsonl", ".journal"}
    assert not (redraft.folder / "out.jsonl").exists()


def test_redraft_toml_can_set_columns(redraft, serve):
    """redraft.toml accepts `column`, as it accepts the rate limits."""
    (redraft.folder / "redraft.toml").write_text(
        'column = ["prompt=what"]\nmax-in-flight = 2\nrpm = 6000\n'
    )
    (redraft.folder / "in.csv").write_text("what,prompt\nSay 1,no\nSay 2,no\n")
    server = serve(answer)
    done = redraft("batch", "in.csv", "-o", "out.jsonl", "--model", server.model)
    assert done.returncode == 0, done.err
    assert {m[0]["content"] for m in server.asked if not is_judging(m)} == {"Say 1", "Say 2"}


@pytest.mark.slow
def test_rows_of_the_output_are_replaced_only_if_asked_for(redraft):
    """Exit code 2 with the numbers and the option; other settings for the same rows are announced
    on one line.
    """
    (redraft.folder / "in.jsonl").write_text(
        "".join(f'{{"prompt": "{n}", "response": "a, b"}}\n' for n in range(20))
    )
    command = ("batch", "in.jsonl", "-o", "out.jsonl", "--model", "none", "--require", "no_commas")
    assert redraft(*command).returncode == 0
    before = (redraft.folder / "out.jsonl").read_bytes()
    refused = redraft(*command, "--limit", "5")
    assert refused.returncode == 2
    assert (
        "out.jsonl' has 20 rows of in.jsonl; this run would leave 5" in refused.err
        and "--overwrite" in refused.err
    )
    assert (redraft.folder / "out.jsonl").read_bytes() == before
    redone = redraft(*command, "--require", "words:1-9")
    assert (
        redone.returncode == 0
        and redone.err.count("in 'out.jsonl' this run replaces 20 results, because") == 1
    )
    assert redraft(*command, "--limit", "5", "--overwrite").returncode == 0
    assert len(read_rows(redraft.folder / "out.jsonl")) == 5
    assert redraft(*command, "--overwrite").returncode == 0
    assert (redraft.folder / "out.jsonl").read_bytes() == before
