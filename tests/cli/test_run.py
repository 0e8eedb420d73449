"""`redraft run`: its output and exit codes."""

import json
import re

import pytest

from redraft.storage import read_trace

from .chat_server import is_judging, verdict, writer_and_judge


def test_the_next_model_answers_when_the_first_is_down(redraft, serve):
    """Names of models are separated by commas; the summary and the trace say who wrote and why, and
    a run resumes.
    """
    down, up = serve(lambda messages, n: 503), serve(writer_and_judge(["fine"], [5]))
    models = f"{down.model.replace('#tiny', '#first')},{up.model}"
    command = ["run", "Say it", "--model", models, "--judge", up.model, "--trace", "t.jsonl"]
    done = redraft(*command)
    assert (done.returncode, done.out) == (0, "fine\n"), done.err
    assert "first did not answer: ModelUnavailableError (status 503)" in done.err
    trace = read_trace(redraft.folder / "t.jsonl")
    assert (trace.best.by, trace.settings["model"]) == ("tiny", models)
    calls = up.calls
    assert redraft("run", "--resume", "t.jsonl").out == "fine\n"
    assert up.calls == calls
    refused = redraft("run", "Say it", "--model", up.model, "--judge", models)
    assert refused.returncode == 2
    assert "judge: one model is expected here" in refused.err


def test_stdout_is_the_answer_alone(redraft, serve):
    """The best answer alone goes to stdout; the steps, the judge's reasons and the estimates go to
    stderr.
    """
    server = serve(writer_and_judge(["poor", "good"], [2, 5]))
    done = redraft("run", "Say it", "--model", server.model)
    assert (done.returncode, done.out) == (0, "good\n")
    line = r"0\.\d\d -> 0\.\d\d \(the judge said 1\.00; 95% between 0\.\d\d and \d\.\d\d\); stopped: the judge is satisfied"
    assert re.search(rf"^redraft: {line}$", done.err, re.MULTILINE), done.err
    assert "calls 4" in done.err


def test_the_prompt_comes_from_stdin(redraft, serve):
    """With `-` the prompt is the text on stdin."""
    server = serve(writer_and_judge(["fine"], [5]))
    assert (
        redraft(
            "run", "-", "--model", server.model, "--system", "Be brief", input="Was ist ein Fluß?"
        ).out
        == "fine\n"
    )
    assert server.asked[0] == [
        {"role": "system", "content": "Be brief"},
        {"role": "user", "content": "Was ist ein Fluß?"},
    ]


def test_a_response_is_repaired_without_any_model(redraft):
    """With a response and requirements the editor can do the work alone."""
    (redraft.folder / "draft.md").write_text("There is one. There are two. There are two.\n")
    done = redraft(
        "run",
        "Count",
        "--response",
        "draft.md",
        "--require",
        "no_duplicate_sentences",
        "--model",
        "none",
    )
    assert (done.returncode, done.out) == (0, "There is one. There are two.\n")


def test_exit_3_when_a_requirement_stays_broken(redraft):
    """The unmet requirement is named, and the best answer is printed."""
    done = redraft(
        "run",
        "Count",
        "--response",
        "-",
        "--require",
        "contains:qubit",
        "--model",
        "none",
        input="One.",
    )
    assert (done.returncode, done.out) == (3, "One.\n")
    assert "still broken: contains:qubit" in done.err


def test_exit_1_when_the_model_fails(redraft, serve):
    """A refused key is one line that says what to check, without a traceback."""
    done = redraft("run", "Say it", "--model", serve(lambda messages, n: 401).model)
    assert (done.returncode, done.out) == (1, "")
    assert done.err.splitlines()[-2].startswith("redraft: ")
    assert "401" in done.err and "redraft models" in done.err and "Traceback" not in done.err
    name = serve(lambda messages, n: 401).model.replace("#", "?key=sk-5f2d9c#")
    done = redraft("run", "Say it", "--model", name)
    assert (
        "or from an address: http://:KEY@HOST/v1#NAME" in done.err and "sk-5f2d9c" not in done.err
    )


def test_the_best_so_far_when_it_fails_later(redraft, serve):
    """A failed refinement ends the work, and the graded draft is printed with the reason; the exit
    code is about the draft.
    """
    server = serve(
        lambda messages, n: [lambda: "draft", lambda: verdict(2), lambda: 400][min(n, 2)]()
    )
    done = redraft("run", "Say it", "--model", server.model)
    assert (done.returncode, done.out) == (0, "draft\n")
    assert "stopped: a model or a grader failed (" in done.err


ENDS_WITH_AN_ERROR = {
    "key": (("run", "Say it"), lambda messages, n: 401),
    "drafts": (("run", "Say it", "--drafts", "3"), lambda messages, n: 400),
    "best": (("best", "Say it"), lambda messages, n: 400),
    "judge": (("run", "Say it"), lambda messages, n: 400 if is_judging(messages) else "draft"),
    "later": (
        ("run", "Say it"),
        lambda messages, n: [lambda: "draft", lambda: verdict(2), lambda: 400][min(n, 2)](),
    ),
}


@pytest.mark.parametrize("case", ENDS_WITH_AN_ERROR)
def test_the_error_that_ends_the_work_is_reported_once(redraft, serve, case):
    """Not also as a failed step."""
    command, answer = ENDS_WITH_AN_ERROR[case]
    done = redraft(*command, "--model", serve(answer).model)
    assert done.returncode == {"judge": 3, "later": 0}.get(case, 1)
    assert len(re.findall(r": status 40[01]:", done.err)) == 1, done.err


def test_a_failed_step_after_which_the_work_goes_on_is_reported(redraft, serve):
    """It has a line of its own before the next step."""
    server = serve(lambda messages, n: ["draft", *["no verdict"] * 4, verdict(5)][min(n, 5)])
    done = redraft("run", "Say it", "--model", server.model)
    assert done.returncode == 0, done.err
    assert re.search(
        r"judge grades 0 \.\.\.\nredraft: failed: grade: .*\nredraft: judge grades 0, repeat 2 \.\.\.\n",
        done.err,
    )


LIMITS = {"--deadline": "0", "--budget-calls": "0", "--budget-tokens": "1"}


@pytest.mark.parametrize("option", LIMITS)
def test_only_the_limit_that_ended_the_work_is_named(redraft, serve, option):
    """The hint says which one to raise."""
    server = serve(lambda messages, n: "draft")
    done = redraft("run", "Say it", "--model", server.model, option, LIMITS[option])
    assert done.returncode == 1, done.err
    assert done.err.splitlines()[-1].split() == [
        "raise",
        *(["the"] if option == "--deadline" else []),
        option,
    ]


@pytest.mark.parametrize(
    "command",
    [("run", "Say it"), ("best", "Say it", "-n", "2"), ("grade", "Say it", "--response", "text")],
)
def test_a_price_for_a_model_that_is_not_there_is_reported(redraft, serve, command):
    """The message names the models; a price for one of them prints nothing."""
    (redraft.folder / "text").write_text("yes")
    model = serve(writer_and_judge(["yes"], [5])).model
    done = redraft(*command, "--model", model, "--price", "tinny=1,2", "--price", "tiny=1,2")
    assert done.returncode == 0, done.err
    assert "--price tinny: no model in this run has that name; there is tiny" in done.err
    assert "--price tiny:" not in done.err


def test_debug_shows_the_traceback(redraft):
    """With --debug an error has its traceback."""
    assert "Traceback" in redraft("run", "x", "--model", "nonsense:x", "--debug").err


def test_exit_2_for_usage_errors(redraft):
    """The message comes at once, with what is allowed or an example."""
    for args, said in [
        (["run"], "for example: redraft run"),
        (["run", "x", "--target-score", "2"], "--target-score"),
        (["run", "x", "--model", "opnai:gpt"], "did you mean 'openai:gpt'"),
        (["run", "x", "--model", "none"], "--response FILE"),
        (["run", "x", "--require", "wrods:3", "--model", "none"], "did you mean 'words'"),
        (["run", "-", "--response", "-"], "stdin"),
        (["run", "x", "-o", "no/such/folder/file"], "--output"),
        (["rnu"], "unknown command 'rnu'"),
    ]:
        done = redraft(*args)
        assert (done.returncode, done.out) == (2, ""), args
        assert said in done.err and "Traceback" not in done.err, done.err


def test_output_file_is_replaced_atomically(redraft):
    """-o replaces the file with the exact answer and leaves no other file behind."""
    (redraft.folder / "answer.md").write_text("old")
    redraft(
        "run",
        "x",
        "--response",
        "-",
        "--require",
        "contains:One",
        "--model",
        "none",
        "-o",
        "answer.md",
        "--overwrite",
        input="One.",
    )
    assert {p.name: p.read_text() for p in redraft.folder.iterdir()} == {"answer.md": "One."}


def test_json_prints_every_step_and_the_result(redraft, serve):
    """Each line of --json is an object; the last is the result."""
    server = serve(writer_and_judge(["poor", "good"], [2, 5]))
    done = redraft("run", "Say it", "--model", server.model, "--json")
    events = [json.loads(line) for line in done.out.splitlines()]
    assert [e["event"] for e in events[:3]] == ["start", "step", "record"]
    assert {e["event"] for e in events[1:-1]} == {"step", "record"}
    result = events[-1]
    assert result["event"] == "result"
    assert (result["answer"], result["stop"], result["usage"]["calls"]) == ("good", "done", 4)
    assert 0.4 < result["score"] < 1.0
    assert result["cost"] is None and result["score_history"] == [0.4, 1.0]
    records = [e for e in events if e["event"] == "record"]
    assert [e["judge_score"] for e in records] == [None, 0.4, 0.4, 1.0, 1.0]
    assert (records[-1]["score"], records[-1]["judge_score"]) == (
        result["score"],
        result["judge_score"],
    )
    assert done.err.startswith("redraft: the default judge grades") and done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("tie", "said"),
    [(False, "pairwise puts [01] first"), (True, "pairwise cannot tell which of 0 and 1 is")],
)
def test_the_final_check_reports_its_verdict(redraft, serve, tie, said):
    """It says which of the two is first, or that the comparison was undecided."""

    answers = iter(["A cat sat.", "A dog sat."])

    def score_by_text(messages, n):
        text = messages[-1]["content"]
        if "winner" not in text:
            return verdict(3) if is_judging(messages) else next(answers)
        shown = "first" if text.index("A cat sat.") < text.index("A dog sat.") else "second"
        return json.dumps(
            {"reason": "r", "change": [], "winner": "tie" if tie else shown, "done": False}
        )

    server = serve(score_by_text)
    grading = ("--grader", "judge", "--grader", "pairwise")
    work = ("--drafts", "2", "--max-iterations", "0")
    done = redraft("run", "Say it", "--model", server.model, *grading, *work)
    assert done.returncode == 0 and "pairwise ranks 2 answers" in done.err, done.err
    assert re.search(said, done.err), done.err


def test_json_prints_errors_as_objects(redraft, serve):
    """A program that reads --json gets an error object and the exit code."""
    done = redraft("run", "Say it", "--model", serve(lambda messages, n: 401).model, "--json")
    assert done.returncode == 1
    assert json.loads(done.out.splitlines()[-1])["error"] == "AuthenticationError"


NO_CREDIT = {
    "a quota": (429, "Quota exceeded for metric: requests, limit: 0"),
    "money": (400, "Your credit balance is too low"),
    "money in a 200": b'{"error": {"message": "insufficient balance", "code": 1008}}',
}


@pytest.mark.parametrize("reply", NO_CREDIT.values(), ids=NO_CREDIT)
def test_a_used_up_quota_has_a_hint_of_its_own(redraft, serve, reply):
    """It is no fault of the key, which the hint for a refused key is about; the command ends after
    one call.
    """
    server = serve(lambda messages, n: reply)
    done = redraft("run", "Say it", "--model", server.model)
    assert done.returncode == 1 and "until the quota is renewed" in done.err, done.err
    assert "environment" not in done.err and server.calls == 1


def test_a_rubric_and_a_requirement_grade_together(redraft, serve):
    """The judge gets the rubric's criteria, and the requirement is a gate."""
    (redraft.folder / "rubric.toml").write_text('[criteria]\nwarmth = "It is kind."\n')
    server = serve(
        lambda messages, n: verdict(5, ["warmth"]) if is_judging(messages) else "Dear you"
    )
    done = redraft(
        "run",
        "Greet",
        "--model",
        server.model,
        "--rubric",
        "rubric.toml",
        "--require",
        "contains:Dear",
        "--json",
    )
    assert json.loads(done.out.splitlines()[0])["panel"] == ["contains:Dear", "rubric"]
    assert "warmth" in str(server.asked[1])


def test_the_budget_ends_the_work_with_the_best_so_far(redraft, serve):
    """When the budget has no room for another answer and its grade, the best is printed with the
    command that resumes.
    """
    server = serve(writer_and_judge(["a", "b", "c"], [1, 2, 3]))
    done = redraft(
        "run", "Say it", "--model", server.model, "--budget-calls", "3", "--trace", "t.jsonl"
    )
    assert (done.returncode, done.out, server.calls) == (0, "a\n", 2)
    assert (
        "stopped: the budget is used up (" in done.err
        and "redraft run --resume t.jsonl" in done.err
    )


@pytest.mark.slow
def test_a_closed_pipe_prints_no_traceback(redraft):
    """A reader that closes the pipe gets no traceback."""
    script = "import subprocess, sys; p = subprocess.Popen([sys.executable, '-m', 'redraft', 'graders'], stdout=-1); p.stdout.close(); sys.exit(p.wait())"
    import os
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, env=os.environ, timeout=60
    )
    assert done.stderr == b""
    assert done.returncode == 1


def test_the_trace_holds_no_secret(redraft, serve):
    """User, password and query of an address are not in the trace."""
    server = serve(writer_and_judge(["fine"], [5]))
    model = server.model.replace("://", "://:sesame@")
    assert redraft("run", "Say it", "--model", model, "--trace", "t.jsonl").returncode == 0
    assert "sesame" not in (redraft.folder / "t.jsonl").read_text()
    assert read_trace(redraft.folder / "t.jsonl").settings["model"] == server.model
