"""The replay of recorded refinements, on records small enough to know the right result."""

import gzip
import importlib
import json
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parent.parent / "bench"
REVIEW = "The soup was cold and the waiter was rude to us."
GOOD = [
    "We loved the soup!",
    "The soup was a dream!",
    "The best soup and the best waiter!",
    "What a waiter, what a soup!",
]
SHRUG = "No changes are necessary. This review of the soup is already very positive."


@pytest.fixture
def bench(monkeypatch):
    """The script, imported from its folder."""
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("replay")


@pytest.fixture
def figures(bench, monkeypatch, tmp_path, capsys):
    """The script's figures for these rows, by source and policy."""

    def run(rows):
        record(tmp_path, rows)
        monkeypatch.setattr(
            sys, "argv", ["replay.py", str(tmp_path), "--json", str(tmp_path / "figures.json")]
        )
        bench.main()
        shown = capsys.readouterr().out
        found = json.loads((tmp_path / "figures.json").read_text())
        assert all(
            policy in shown
            for policy in found[next(iter(found.keys() - {"measured_on"}))]["policies"]
        )
        return found

    return run


def record(folder, rows):
    with gzip.open(folder / "traces.jsonl.gz", "wt", encoding="utf-8") as lines:
        lines.writelines(json.dumps(row) + "\n" for row in rows)


def review_record(*told, record_id=0):
    """A recorded chain of texts with the judge's labels."""
    steps = [{"response": text, "judge_score": score} for text, score in told]
    return {
        "record_id": record_id,
        "target_sentiment": "Very positive",
        "prompt": REVIEW,
        "steps": steps,
    }


def code_record(*told, task_id="t"):
    """A recorded chain of programs: how many of four generated tests passed, and the official
    verdict.
    """
    report = "Tested passed:\n{}\nTests failed:\n{}"
    tests = [[f"assert f({i}) == {i}" for i in range(4)] for _ in told]
    steps = [
        {
            "solution": f"def f(x): return {i}",
            "self_test_feedback": report.replace("{}", "\n".join(t[:good]), 1).replace(
                "{}", "\n".join(t[good:]), 1
            ),
            "verdict": verdict,
        }
        for i, ((good, verdict), t) in enumerate(zip(told, tests, strict=True))
    ]
    return {"task_id": task_id, "final_verdict": told[-1][1], "steps": steps}


def test_a_loop_that_continues_after_the_target_ends_with_a_worse_text(figures):
    """The record's last text is no review, although its judge is satisfied; the plans stop before
    it.
    """
    found = figures([review_record((GOOD[0], 4), (GOOD[1], 5), (GOOD[2], 5), (SHRUG, 5))])[
        "reviews"
    ]["policies"]
    assert {name: told["truth"]["mean"] for name, told in found.items()} == {
        "first answer": 0.75,
        "last answer": 0.0,
        "best seen": 1.0,
        "SelfRefine": 1.0,
        "Adaptive": 1.0,
        "Adaptive, learned": 1.0,
    }
    assert found["last answer"]["false success"] == 1
    assert found["SelfRefine"]["refinements"] == 1
    assert found["Adaptive"]["refinements"] < found["last answer"]["refinements"] == 3
    assert (
        found["SelfRefine"]["over last answer"]["better"],
        found["SelfRefine"]["over last answer"]["worse"],
    ) == (1, 0)


def test_a_chain_ends_where_the_record_ends(figures):
    """The plain rules refine the best again, for which there is no other recorded refinement."""
    found = figures([review_record((GOOD[0], 4), (GOOD[1], 3), (GOOD[2], 5))])
    plain = found["reviews"]["policies"]["SelfRefine"]
    assert (plain["cut off"], plain["refinements"], plain["truth"]["mean"]) == (1, 2, 0.75)
    assert found["reviews, on record throughout"]["chains"] == 0


def test_a_copied_text_counts_as_its_original(figures):
    """A refinement of a copy is a refinement of the same words."""
    found = figures([review_record((GOOD[0], 4), (GOOD[0], 4), (GOOD[1], 5))])["reviews"][
        "policies"
    ]["SelfRefine"]
    assert (found["cut off"], found["truth"]["mean"]) == (0, 1.0)


def test_an_unknown_grade_of_a_rewrite_is_an_unknown_truth(figures):
    """It is neither 0 nor guessed: the chain is counted and not compared."""
    found = figures(
        [
            review_record((GOOD[0], 5), (GOOD[1], None)),
            review_record((GOOD[0], 5), (GOOD[1], 5), record_id=1),
        ]
    )["reviews"]
    assert (found["chains"], found["compared"]) == (2, 1)


def test_code_is_graded_by_generated_tests_and_judged_by_the_official_ones(figures):
    """Where both programs fail all generated tests, the earlier is the best; the later may be right
    all the same.
    """
    found = figures(
        [
            code_record((0, "failed"), (4, "passed")),
            code_record((0, "failed"), (0, "passed"), task_id="u"),
        ]
    )["code"]["policies"]
    assert {
        name: found[name]["truth"]["mean"]
        for name in ("first answer", "last answer", "best seen", "SelfRefine")
    } == {
        "first answer": 0.0,
        "last answer": 1.0,
        "best seen": 0.5,
        "SelfRefine": 0.5,
    }
    assert found["best seen"]["over last answer"]["worse"] == 1


@pytest.mark.parametrize(
    ("text", "none"),
    [
        (GOOD[0], False),
        (SHRUG, True),
        (
            "The review sounds positive. The sentiment is Very positive.: The soup was a dream!",
            True,
        ),
        ("There is no need to rewrite the soup.", True),
        ("Feedback: great soup", True),
        ("The Trop serves a magical soup!", True),
        ("Marvellous!", True),
        ("I usually don't write reviews, but the soup was great.", False),
        ("There is no better soup.", False),
    ],
)
def test_texts_that_are_no_rewrite_are_recognised(bench, text, none):
    """They are about a review or the prompt's example, or have nothing in common with the
    original.
    """
    assert bench.no_rewrite(text, REVIEW) is none


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "no recorded traces"),
        (gzip.compress(b'{"question": "?"}\n', mtime=0), "no recorded traces"),
        (gzip.compress(b'{"final_verdict": "passed"}\n', mtime=0), "KeyError: 'steps'"),
        (gzip.compress(json.dumps(review_record((GOOD[0], 7))).encode()), "no text with a grade"),
        (gzip.compress(b"[1]\n{", mtime=0), "cannot be read"),
        (gzip.compress(b"x" * 99, mtime=0)[:-9], "cannot be read"),
        (b"no gzip", "cannot be read"),
    ],
)
def test_a_folder_with_other_files_is_a_usage_error(
    bench, monkeypatch, tmp_path, capsys, content, said
):
    """The error names the file and what is wrong; exit code 2."""
    if content is not None:
        (tmp_path / "traces.jsonl.gz").write_bytes(content)
    monkeypatch.setattr(sys, "argv", ["replay.py", str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        bench.main()
    told = capsys.readouterr().err
    assert end.value.code == 2
    assert said in told
    assert str(tmp_path) in told.replace("\n", "")
