"""The benchmark of trained graders, on rows of which the right result is known."""

import importlib
import json
import random
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parent.parent / "bench"
ROWS = 200


@pytest.fixture
def figures(monkeypatch, tmp_path):
    """The script's figures for a folder."""

    def run(*options):
        monkeypatch.syspath_prepend(str(BENCH))
        output = tmp_path / "figures.json"
        arguments = ["train.py", str(tmp_path), "--splits", "2", "--json", str(output), *options]
        monkeypatch.setattr(sys, "argv", arguments)
        importlib.import_module("train").main()
        return json.loads(output.read_text())

    return run


def write_rows(folder, rows):
    folder.mkdir()
    (folder / "sfhot.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.slow
def test_a_head_of_two_judges_with_half_of_the_truth_each(figures, tmp_path):
    """People rate the mean of what two judges say: the head is right where one judge, calibrated,
    is half right; a judge that is off by a constant gains from calibration alone.
    """
    rng, rows = random.Random(1), []
    for n in range(ROWS):
        first, second = rng.random(), rng.random()
        rows.append(
            {
                "source": f"source {n}",
                "system_output": "An answer of five words.",
                "predict_scores": {"first": 0.5 + first / 2, "second": 0.5 + second / 2},
                "scores": {"overall": first + second},
            }
        )
    write_rows(tmp_path / "unieval_meta", rows)
    [found] = figures("--labels", "100", "--only", "sfhot")
    assert (found["set"], found["labels"]) == ("sfhot overall", 100)
    assert found["head"] < 0.05 < 0.1 < found["calibrated"] < found["single"]
    assert found["better in"] == 1 and found["abstains"] < 0.05


@pytest.mark.slow
def test_a_head_over_noise_is_not_better(figures, tmp_path):
    """A judge knows the truth, and another nothing."""
    rng, rows = random.Random(2), []
    for n in range(ROWS):
        truth = rng.random()
        rows.append(
            {
                "source": f"source {n}",
                "system_output": "An answer of five words.",
                "predict_scores": {"knows": truth, "guesses": rng.random()},
                "scores": {"overall": truth},
            }
        )
    write_rows(tmp_path / "unieval_meta", rows)
    [found] = figures("--labels", "100", "--only", "sfhot")
    assert found["best"] == "knows"
    assert found["head"] == pytest.approx(found["calibrated"], abs=0.02)


def test_too_few_labels_are_left_out(figures, tmp_path):
    """A split without enough rows to hold out gives no figure."""
    row = {
        "source": "s",
        "system_output": "Text.",
        "predict_scores": {"judge": 0.5},
        "scores": {"overall": 1},
    }
    rows = [{**row, "source": str(n), "scores": {"overall": n}} for n in range(60)]
    write_rows(tmp_path / "unieval_meta", rows)
    assert figures("--labels", "50", "--only", "sfhot") == []
