"""Interrupted work: by Ctrl-C, by kill -9, by a budget; and how it resumes."""

import os
import signal

import pytest

from redraft.storage import read_trace

from .chat_server import is_judging, writer_and_judge


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_prints_the_best_so_far_and_keeps_the_trace(redraft, serve, ending):
    """Interrupted or terminated during a refinement: exit code 130, the graded draft on stdout, and
    a trace that can be resumed.
    """
    server = serve(writer_and_judge(["draft", "better"], [2, 5]))
    arrived = server.hold(2)
    process = redraft.start("run", "Say it", "--model", server.model, "--trace", "t.jsonl")
    assert arrived.wait(30)
    process.send_signal(ending)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, b"draft\n")
    assert b"redraft run --resume t.jsonl" in err and b"Traceback" not in err
    server.release()
    assert read_trace(redraft.folder / "t.jsonl").outcome.reason == "cancelled"

    before = server.calls
    done = redraft("run", "--resume", "t.jsonl")
    assert (done.returncode, done.out) == (0, "better\n")
    assert [is_judging(m) for m in server.asked[before:]] == [False, True]


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_before_the_first_grade_prints_the_draft(redraft, serve, ending):
    """The draft that was paid for is printed and saved in the trace."""
    server = serve(writer_and_judge(["draft"], [5]))
    arrived = server.hold(1)
    process = redraft.start("run", "Say it", "--model", server.model, "--trace", "t.jsonl")
    assert arrived.wait(30)
    process.send_signal(ending)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, b"draft\n")
    assert b"Traceback" not in err
    server.release()
    assert redraft("run", "--resume", "t.jsonl").out == "draft\n"
    assert sum(not is_judging(m) for m in server.asked) == 1


def test_kill_9_loses_no_record(redraft, serve):
    """The trace can be read after kill -9, also of a run that resumes, and each run makes only the
    calls that are missing.
    """
    server = serve(writer_and_judge(["draft", "better", "best"], [2, 3, 3, 5]))
    starts = [
        (
            (
                "run",
                "Say it",
                "--model",
                server.model,
                "--trace",
                "t.jsonl",
                "--max-iterations",
                "5",
            ),
            3,
            ["draft", "better"],
        ),
        (("run", "--resume", "t.jsonl"), 6, ["draft", "better", "best"]),
    ]
    for command, call, texts in starts:
        arrived = server.hold(call)
        process = redraft.start(*command)
        assert arrived.wait(60)
        process.kill()
        process.communicate(timeout=30)
        server.release()
        kept = read_trace(redraft.folder / "t.jsonl")
        assert ([c.text for c in kept.candidates], kept.outcome) == (texts, None)

    done = redraft("run", "--resume", "t.jsonl")
    assert (done.returncode, done.out) == (0, "best\n")
    # a draft and a refinement with their grades, of which the second was in flight at a kill; so
    # was that of the third text
    assert [is_judging(m) for m in server.asked] == [
        False,
        True,
        False,
        True,
        True,
        False,
        True,
        True,
    ]
    trace = read_trace(redraft.folder / "t.jsonl")
    assert (trace.outcome.reason, trace.usage.calls) == ("done", 6)


def test_a_trace_with_a_torn_last_line_can_be_resumed(redraft, serve):
    """The call of the torn record is made again, and the file is whole afterwards."""
    server = serve(writer_and_judge(["draft"], [5]))
    redraft("run", "Say it", "--model", server.model, "--trace", "t.jsonl")
    path = redraft.folder / "t.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]) + lines[2][:20])
    assert redraft("run", "--resume", "t.jsonl").out == "draft\n"
    assert server.calls == 3
    assert len(read_trace(path).records) == 3


def test_resume_takes_settings_from_the_trace_and_options_override_them(redraft, serve):
    """Model, requirements, rubric and limits are those of the trace, unless an option changes
    them.
    """
    (redraft.folder / "rubric.toml").write_text('[criteria]\nwarmth = "It is kind."\n')
    from .chat_server import verdict

    server = serve(
        lambda messages, n: verdict(2, ["warmth"]) if is_judging(messages) else f"Dear {n}"
    )
    run = (
        "run",
        "Greet",
        "--model",
        server.model,
        "--rubric",
        "rubric.toml",
        "--require",
        "contains:Dear",
    )
    redraft(*run, "--max-iterations", "0", "--trace", "t.jsonl")
    assert server.calls == 2
    (redraft.folder / "rubric.toml").unlink()
    redraft("run", "--resume", "t.jsonl")
    assert server.calls == 2
    done = redraft("run", "--resume", "t.jsonl", "--max-iterations", "1")
    assert (done.returncode, server.calls) == (0, 4)
    assert "warmth" in str(server.asked[-1])


def test_resume_keeps_the_options_of_a_grader(redraft, serve):
    """A grader keeps the options it was given; a requirement keeps the content of its file."""
    server = serve(writer_and_judge(["[1, 2]", '["a"]'], [5]))
    (redraft.folder / "wanted.txt").write_text('["A"]')
    (redraft.folder / "schema.json").write_text('{"type": "array", "maxItems": 1}')
    graders = (
        "--grader",
        "exact:case=false",
        "--grader",
        "exact",
        "--grader",
        "json_schema:schema.json",
    )
    run = ("run", "Say it", "--model", server.model, *graders, "--reference", "wanted.txt")
    redraft(*run, "--max-iterations", "0", "--trace", "t.jsonl")
    (redraft.folder / "schema.json").unlink()
    done = redraft("run", "--resume", "t.jsonl", "--max-iterations", "1")
    assert done.out == '["a"]\n', done.err
    kept = read_trace(redraft.folder / "t.jsonl")
    scores = {f.grader.partition(":{")[0]: f.score for f in kept.feedback[kept.best.id]}
    assert scores == {"exact:case=false": 1, "exact": 0, "json_schema": 1}


def test_a_trace_keeps_no_password_of_a_grader(redraft, serve):
    """Addresses in a grader's name lose user, password and query, as a model's do."""
    server = serve(writer_and_judge(["fine"], [5]))
    address = server.model.replace("://", "://user:hunter22@").replace("#", "?key=hunter22#")
    (redraft.folder / "wanted.txt").write_text("fine")
    run = (
        "run",
        "Say it",
        "--model",
        server.model,
        "--grader",
        f"embedding:{address}",
        "--reference",
        "wanted.txt",
    )
    redraft(*run, "--trace", "t.jsonl")
    assert "hunter22" not in (redraft.folder / "t.jsonl").read_text()


def test_a_later_configuration_file_adds_no_grader_to_a_trace(redraft, serve):
    """A resumed trace keeps its own graders."""
    server = serve(writer_and_judge(["fine"], [5]))
    redraft("run", "Say it", "--model", server.model, "--trace", "t.jsonl")
    (redraft.folder / "redraft.toml").write_text(
        'grader = ["ranker"]\ntarget-score = 1.0\nmodel = "ollama:other"\n'
    )
    assert redraft("run", "--resume", "t.jsonl").out == "fine\n"
    assert server.calls == 2


def test_a_budget_covers_the_whole_trace(redraft, serve):
    """Resuming does not reset the budget; a higher one allows more calls."""
    server = serve(writer_and_judge(["a", "b"], [1]))
    redraft("run", "Say it", "--model", server.model, "--budget-calls", "3", "--trace", "t.jsonl")
    redraft("run", "--resume", "t.jsonl")
    assert server.calls == 2
    redraft("run", "--resume", "t.jsonl", "--budget-calls", "4")
    assert server.calls == 4


def test_a_finished_trace_is_shown_without_a_call(redraft, serve):
    """Resuming a finished trace prints its answer."""
    server = serve(writer_and_judge(["fine"], [5]))
    redraft("run", "Say it", "--model", server.model, "--trace", "t.jsonl")
    assert redraft("run", "--resume", "t.jsonl").out == "fine\n"
    assert server.calls == 2


def test_resume_refuses_another_task_and_trace_refuses_to_overwrite(redraft):
    """Neither mixes two runs in one file."""
    common = (
        "run",
        "x",
        "--response",
        "-",
        "--require",
        "contains:One",
        "--model",
        "none",
        "--trace",
        "t.jsonl",
    )
    assert redraft(*common, input="One").returncode == 0
    kept = (redraft.folder / "t.jsonl").read_bytes()
    again = redraft(*common, input="One")
    assert again.returncode == 2 and "--resume" in again.err
    other = redraft("run", "y", "--resume", "t.jsonl")
    assert other.returncode == 2 and "PROMPT" in other.err
    assert (redraft.folder / "t.jsonl").read_bytes() == kept


def test_a_run_that_cannot_start_leaves_no_trace(redraft):
    """A trace file is made with its first record."""
    redraft("run", "x", "--model", "none", "--trace", "t.jsonl")
    assert not (redraft.folder / "t.jsonl").exists()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
def test_sigterm_while_the_answer_is_printed_exits_with_130(redraft, serve):
    """With an unread pipe at stdout the program ends with a message, not by the signal."""
    os.mkfifo(redraft.folder / "answer")
    server = serve(writer_and_judge(["Dear all."], [5]))
    process = redraft.start("run", "Say it", "--model", server.model, "-o", "answer")
    said = b""
    while b"calls 2" not in said:
        said += os.read(process.stderr.fileno(), 65536)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=30)
    assert (process.returncode, said.count(b"interrupted")) == (130, 1), said
