"""`redraft train`: exit codes, what it prints, and what uses the grader afterwards."""

import json
import random

import pytest

RNG = random.Random(3)


def rows(*, noise=False, n=60):
    """Short answers are what people like."""
    found = []
    for task in range(n):
        words = task % 12 + 1
        good = RNG.random() < 0.5 if noise else words < 7
        found.append({"prompt": f"Task {task}", "response": "word " * words, "label": bool(good)})
    return found


@pytest.fixture
def labels(redraft):
    """Files of labels: those that a grader can learn, and others."""
    for name, noise in (("labels", False), ("noise", True)):
        text = "".join(json.dumps(row) + "\n" for row in rows(noise=noise))
        (redraft.folder / f"{name}.jsonl").write_text(text)
    return redraft


GRADERS = ("--grader", "length:words=1-4", "--grader", "readability", "--judge", "none")


def train(redraft, data, *more):
    return redraft("train", data, "--name", "./short", "--cards-dir", "cards", *GRADERS, *more)


def test_a_grader_is_trained_shown_and_used(labels):
    """It prints the measure with those of its graders, and grades with `--require-validated`."""
    done = train(labels, "labels.jsonl")
    assert done.returncode == 0, done.stderr
    assert "better than chance" in done.stdout.decode()
    lines = [line.split("\t")[0] for line in done.stdout.decode().splitlines()]
    assert lines[3:5] == ["trained:./short", "length:words=1-4"]
    assert "length:words=1-4 alone, calibrated" in done.stdout.decode()
    assert "--grader trained:./short" in done.stderr.decode()
    (labels.folder / "answer.md").write_text("word word word")
    graded = labels(
        *(
            "grade",
            "--response",
            "answer.md",
            "--grader",
            "trained:./short",
            "--cards-dir",
            "cards",
        ),
        *("--require-validated", "error", "--json"),
    )
    assert graded.returncode == 0, graded.stderr
    assert json.loads(graded.stdout)["score"] > 0.6


def test_a_grader_of_noise_is_refused(labels):
    """Exit code 3, and what requires validated graders refuses it."""
    done = train(labels, "noise.jsonl", "--json")
    assert done.returncode == 3, done.stderr
    data = json.loads(done.stdout)
    assert data["card"]["trusted"] is False and data["fitted"] == 42
    (labels.folder / "answer.md").write_text("word word word")
    refused = labels(
        *(
            "grade",
            "--response",
            "answer.md",
            "--grader",
            "trained:./short",
            "--cards-dir",
            "cards",
        ),
        *("--require-validated", "error"),
    )
    assert refused.returncode == 2
    assert "no better than chance" in refused.stderr.decode()
    scored = [{**row, "score": 0.5} for row in rows(n=12)]
    (labels.folder / "run.jsonl").write_text("".join(json.dumps(row) + "\n" for row in scored))
    gated = labels(
        *("gate", "--aa", "run.jsonl", "--grader", "trained:./short", "--judge", "none"),
        *("--cards-dir", "cards", "--require-validated", "error"),
    )
    assert gated.returncode == 2
    assert "no better than chance" in gated.stderr.decode()


def test_what_is_missing_is_named(labels):
    """No grader, too few labels, and a function of the user, which cannot be stored."""
    without = labels("train", "labels.jsonl", "--name", "a", "--judge", "none")
    assert without.returncode == 2 and "name what a head can learn from" in without.stderr.decode()
    few = train(labels, "labels.jsonl", "--limit", "12")
    assert few.returncode == 2 and "labels of 20 tasks are the fewest" in few.stderr.decode()
    (labels.folder / "mine.py").write_text("def grade(text): return 1.0\n")
    own = labels("train", "labels.jsonl", "--name", "a", "--grader", "mine.py:grade")
    assert own.returncode == 2 and "mine.py:grade" in own.stderr.decode()
