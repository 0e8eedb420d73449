"""`redraft best`: the best of several answers, drafted or given."""

import json
import re
import signal

import pytest

from .chat_server import is_judging, verdict

SHOWN = re.compile(
    r"<(?:answer-)?(\d+|first|second)-([0-9a-f]{8})>\n(.*?)\n</(?:answer-)?\1-\2>", re.DOTALL
)


def ranking(messages, tie=False):
    """The answer of a listwise judge that prefers long texts."""
    texts = [(int(n), text) for n, _, text in SHOWN.findall(messages[-1]["content"])]
    order = [n for n, text in sorted(texts, key=lambda row: -len(row[1]))]
    return json.dumps(
        {
            "reason": "more detail",
            "change": [],
            "ranking": order,
            "ties": [order] if tie else [],
            "done": False,
        }
    )


def drafting(*drafts, judge=ranking):
    """A server that drafts in order and judges by a function."""
    left = list(drafts)
    return lambda messages, n: judge(messages) if is_judging(messages) else left.pop(0)


@pytest.fixture
def answers(redraft):
    """Three files to choose from."""
    for name, text in {"a.md": "One.", "b.md": "One, two, three.", "c.md": "One, two."}.items():
        (redraft.folder / name).write_text(text + "\n")
    return ["--response", "a.md", "--response", "b.md", "--response", "c.md"]


def test_the_best_of_several_drafts_is_printed(redraft, serve):
    """N drafts and one ranking; the winner alone goes to stdout, the ranking to stderr."""
    server = serve(drafting("a", "aaa", "aa"))
    done = redraft("best", "Say it", "-n", 3, "--model", server.model, "--grader", "ranker")
    assert (done.returncode, done.out, server.calls) == (0, "aaa\n", 4)
    places = re.findall(r"^(\d+( tie)?|not graded)\tdraft", done.err, re.MULTILINE)
    assert [place for place, _ in places] == ["1", "2", "3"]
    assert "best of 3" in done.err and "more detail" in done.err and "calls 4" in done.err


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_prints_the_best_so_far(redraft, serve, ending):
    """Interrupted before the last grade, it prints the ranking of the others and the best of them;
    exit code 130.
    """
    scores = iter([2, 5, 3])
    server = serve(drafting("a", "b", "c", judge=lambda messages: verdict(next(scores))))
    arrived = server.hold(5)
    process = redraft.start("best", "Say it", "-n", 3, "--model", server.model)
    assert arrived.wait(30)
    told = b""
    while told.count(b"score") < 2:  # the grades of the other two have arrived
        told += process.stderr.readline()
    process.send_signal(ending)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130 and out in {b"a\n", b"b\n", b"c\n"}
    assert (
        b"best of" in err
        and b"calls 6 " in err
        and b"tokens unknown" in err
        and b"Traceback" not in err
    )


def test_four_drafts_and_the_judge_are_the_default(redraft, serve):
    """Each draft is graded by itself, and the one with the best score is returned."""
    scores = iter([2, 5, 3, 1])
    server = serve(drafting("a", "b", "c", "d", judge=lambda messages: verdict(next(scores))))
    done = redraft("best", "Say it", "--model", server.model)
    assert (done.returncode, server.calls) == (0, 8)
    assert "score 1.00" in done.err and "best of 4" in done.err


def test_the_best_of_given_files_is_printed(redraft, serve, answers):
    """No answer is drafted or changed; the ranking names the files."""
    server = serve(drafting())
    done = redraft("best", "Count", *answers, "--model", server.model, "--grader", "ranker")
    assert (done.returncode, done.out, server.calls) == (0, "One, two, three.\n", 1)
    assert re.findall(r"^(\d)\s+(\w\.md)", done.err, re.MULTILINE) == [
        ("1", "b.md"),
        ("2", "c.md"),
        ("3", "a.md"),
    ]
    assert "going on" not in done.err


def test_ties_are_marked(redraft, serve, answers):
    """The first of tied answers is returned, and the ranking marks the tie."""
    server = serve(drafting(judge=lambda messages: ranking(messages, tie=True)))
    done = redraft("best", "Count", *answers, "--model", server.model, "--grader", "ranker")
    assert done.out == "One.\n"
    assert done.err.count("1 tie") == 3
    assert "a tie with b.md, c.md: the earliest is kept" in done.err


def test_requirements_alone_need_no_model(redraft, answers):
    """No model is looked for; exit code 3 where the best answer breaks a requirement."""
    done = redraft("best", *answers, "--require", "contains:two", "--require", "words:3-")
    assert (done.returncode, done.out) == (0, "One, two, three.\n")
    assert "no model" not in done.err
    done = redraft("best", *answers, "--require", "contains:four")
    assert (
        done.returncode == 3
        and "still broken: contains:four" in done.err
        and done.err.count("1 tie") == 3
    )


def test_given_answers_are_never_repaired(redraft, answers):
    """A repaired text would be none of the given answers."""
    done = redraft("best", *answers, "--require", "no_commas", "--require", "contains:two")
    assert done.out in {"One.\n", "One, two, three.\n", "One, two.\n"} and done.returncode == 3


def test_json_prints_ranking_and_result_last(redraft, serve, answers):
    """Each line is an object; the ranking and the result are the last two."""
    server = serve(drafting())
    done = redraft(
        "best",
        "Count",
        *answers,
        "--model",
        server.model,
        "--grader",
        "ranker",
        "--json",
        "-o",
        "best.md",
    )
    rows = [json.loads(row) for row in done.out.splitlines()]
    assert [row["event"] for row in rows[-2:]] == ["ranking", "result"]
    assert [(a["rank"], a["tie"], a["response"]) for a in rows[-2]["answers"]] == [
        (1, False, "b.md"),
        (2, False, "c.md"),
        (3, False, "a.md"),
    ]
    assert rows[-1]["answer"] == (redraft.folder / "best.md").read_text() == "One, two, three.\n"


def test_several_answers_are_kept(redraft, serve, answers):
    """They are printed best first, with a line between them; in JSON, the result lists them."""
    server = serve(drafting())
    done = redraft(
        "best",
        "Count",
        *answers,
        "--keep",
        2,
        "--model",
        server.model,
        "--grader",
        "ranker",
        "-o",
        "best.md",
    )
    assert (done.returncode, done.out) == (0, "")
    assert (redraft.folder / "best.md").read_text() == "One, two, three.\n\n---\n\nOne, two."
    done = redraft(
        "best",
        "Count",
        *answers,
        "--keep",
        2,
        "--model",
        server.model,
        "--grader",
        "ranker",
        "--json",
    )
    result = json.loads(done.out.splitlines()[-1])
    assert [(answer["rank"], answer["text"]) for answer in result["kept"]] == [
        (1, "One, two, three.\n"),
        (2, "One, two.\n"),
    ]
    done = redraft("best", *answers, "--keep", 2, "--require", "contains:two")
    assert (done.returncode, done.out) == (0, "One, two, three.\n\n---\n\nOne, two.\n")


def test_one_answer_may_come_from_stdin(redraft, answers):
    """The prompt cannot come from there as well."""
    done = redraft("best", *answers, "--response", "-", "--require", "contains:four", input="four")
    assert (done.returncode, done.out) == (0, "four\n")
    assert (
        redraft("best", "-", *answers, "--response", "-", "--require", "contains:four").returncode
        == 2
    )


def test_an_unreadable_judge_chooses_no_answer(redraft, serve, answers):
    """Given answers are not printed as if one had won; drafts that were paid for are printed."""
    done = redraft(
        "best",
        "Count",
        *answers,
        "--model",
        serve(drafting(judge=lambda m: "hm")).model,
        "--grader",
        "ranker",
    )
    assert (
        (done.returncode, done.out) == (1, "")
        and "Traceback" not in done.err
        and "cannot be read" in done.err
    )
    done = redraft(
        "best",
        "Count",
        "-n",
        2,
        "--model",
        serve(drafting("x", "x", judge=lambda m: "hm")).model,
        "--grader",
        "ranker",
    )
    assert (done.returncode, done.out) == (3, "x\n")


def test_a_budget_pays_for_drafts_with_their_grades(redraft, serve):
    """Of four calls two are drafts, and both drafts are graded."""
    server = serve(drafting("a", "b", "c", judge=lambda messages: verdict(3)))
    done = redraft("best", "Say it", "-n", 3, "--model", server.model, "--budget-calls", 4)
    assert server.calls == 4 and done.returncode == 0
    assert "budget" in done.err and "not graded" not in done.err


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "a prompt is missing"),
        (["q", "-n", "0"], "-n"),
        (["q", "-n", "2", "--response", "a.md", "--response", "b.md"], "leave out one"),
        (["q", "--response", "a.md"], "at least twice"),
        (["q", "--response", "a.md", "--response", "nowhere.md"], "nowhere.md"),
        (["q", "--model", "none"], "--model none"),
        (
            [
                "q",
                "--grader",
                "nonesuch",
                "--model",
                "none",
                "--response",
                "a.md",
                "--response",
                "b.md",
            ],
            "nonesuch",
        ),
        (
            [
                "q",
                "--grader",
                "ranker",
                "--model",
                "none",
                "--response",
                "a.md",
                "--response",
                "b.md",
            ],
            "asks a model",
        ),
        (["q", "-o", "nowhere/x.md"], "nowhere"),
        (["q", "-n", "2", "--keep", "3"], "--keep 3 is more than the 2 answers"),
        (
            ["q", "--keep", "3", "--response", "a.md", "--response", "b.md"],
            "--keep 3 is more than the 2 answers",
        ),
    ],
)
def test_invalid_arguments_are_usage_errors(redraft, answers, args, says):
    """Exit code 2, with a line that says what is wrong."""
    done = redraft("best", *args)
    assert (
        done.returncode == 2 and says in done.err and "Traceback" not in done.err and done.out == ""
    )


def test_a_terminal_shows_the_ranking_and_no_control_sequences(redraft, serve, answers):
    """The ranking is drawn, and control sequences from files have no effect."""
    (redraft.folder / "c.md").write_text("\x1b[31mred, and the longest of them all\x1b[0m")
    server = serve(drafting())
    seen, piped, code = redraft.in_terminal(
        "best", "Count", *answers, "--model", server.model, "--grader", "ranker", stdout_too=False
    )
    assert code == 0 and piped.startswith(b"\x1b[31mred")
    assert b"c.md" in seen and b"\x1b[31mred" not in seen
