"""`--weight NAME=W`, on the command line and in files."""

import json

import pytest

from in_process import run_in_process


def redraft(*arguments):
    """Return the exit code, the report if it is asked for as JSON, and stderr."""
    done = run_in_process([*arguments])
    text = done.out if arguments[0] == "grade" else done.out.strip().rpartition("\n")[2]
    is_report = "--json" in arguments and done.returncode != 2
    return done.returncode, json.loads(text) if is_report else None, done.err


@pytest.fixture
def answer(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.md").write_text("one two")
    (tmp_path / "own.py").write_text("def half(text):\n    return 0.5\n")
    return ["grade", "q", "--response", "a.md", "--json"]


WEIGHTS = {
    "none": (["words:1-9", "words:3-"], [], 1 / 2),
    "one": (["words:1-9", "words:3-"], ["words:1-9=3"], 3 / 4),
    "both": (["words:1-9", "words:3-"], ["words:1-9=1", "words:3-=0.25"], 4 / 5),
    "code": (["words:1-9", "own.py:half"], ["half=3"], 2.5 / 4),
    "twice the same name": (["own.py:half", "own.py:half", "words:1-9"], ["half#2=2"], 2.5 / 4),
}


@pytest.mark.parametrize("case", WEIGHTS)
def test_weights_count_in_the_mean(answer, case):
    graders, weights, expected = WEIGHTS[case]
    options = [f"--grader={name}" for name in graders] + [f"--weight={each}" for each in weights]
    code, report, err = redraft(*answer, *options)
    assert code == 0, err
    assert report["score"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        ("wrds:1-9=2", "unknown grader 'wrds:1-9'; did you mean 'words:1-9'?"),
        ("words:1-9", "unknown grader 'words:1-9'"),
        ("words:1-9=0", "must be NAME=WEIGHT with a number above 0, such as words:1-9=2"),
        ("words:1-9=nan", "must be NAME=WEIGHT"),
        ("words:1-9=inf", "must be NAME=WEIGHT"),
        ("words:1-9=two", "must be NAME=WEIGHT"),
        ("=2", "unknown grader '=2'"),
    ],
)
def test_a_wrong_weight_says_what_is_allowed(answer, weight, message):
    code, _, err = redraft(*answer, "--grader", "words:1-9", "--weight", weight)
    assert code == 2 and message in " ".join(err.split()), err


def test_a_file_has_weights(answer, tmp_path):
    (tmp_path / "redraft.toml").write_text(
        'grader = ["words:1-9", "words:3-"]\nweight = ["words:1-9=3"]\n'
    )
    assert redraft(*answer)[1]["score"] == pytest.approx(3 / 4)


def test_a_trace_keeps_its_weights(answer, tmp_path):
    """It is continued with them."""
    options = ["--grader", "words:1-9", "--grader", "words:3-", "--weight", "words:1-9=3"]
    code, _, err = redraft(
        "run", "q", "--response", "a.md", "--model", "none", *options, "--trace", "t.json"
    )
    assert code in (0, 3), err
    _, report, err = redraft("run", "--resume", "t.json", "--json", "--model", "none")
    assert report["score"] == pytest.approx(3 / 4), err
