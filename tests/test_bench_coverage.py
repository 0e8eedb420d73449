"""bench/coverage.py reads the shapes of labelled sets, and refuses a judge whose calibration is of
no use.
"""

import json
import random
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

SPEC = spec_from_file_location(
    "coverage_bench", Path(__file__).parents[1] / "bench" / "coverage.py"
)
bench = module_from_spec(SPEC)
sys.modules[SPEC.name] = bench
SPEC.loader.exec_module(bench)


def write(path, rows):
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_sets(folder):
    """A set of ratings with a lenient judge, and pairs with the unbounded scores of a reward
    model.
    """
    rng = random.Random(0)
    quality = [rng.uniform(1, 5) for _ in range(160)]
    rows = [
        {
            "id": str(i),
            "source": f"s{i // 2}",
            "scores": {"fun": q},
            "predict_scores": {"fun": 0.5 + q / 10 + rng.gauss(0, 0.02)},
        }
        for i, q in enumerate(quality)
    ]
    write(folder / "unieval_meta" / "talk.jsonl", rows)
    labels = [rng.choice(["A>B", "B>A"]) for _ in range(90)]
    write(
        folder / "judgebench" / "pairs.jsonl",
        [{"pair_id": f"p{i}", "label": label} for i, label in enumerate(labels)],
    )
    outputs = [
        {
            "pair_id": f"p{i}",
            "judge": "rm",
            "judge_model": "rm",
            "order": "AB",
            "decision": "A>B",
            "scores": [rng.gauss(side, 2) for side in ((3, -3) if label == "A>B" else (-3, 3))],
        }
        for i, label in enumerate(labels)
    ]
    write(folder / "judgebench" / "judge_outputs.jsonl", outputs)
    write(folder / "attacks" / "attacks.jsonl", [{"text": "x"}])


def test_sets_are_read_split_and_measured(tmp_path, capsys, monkeypatch):
    """Whole clusters are held out, every set is measured or said to be left out, and the figures
    are written.
    """
    write_sets(tmp_path)
    sets = list(bench.labelled_sets(tmp_path))
    assert {each.name: len(each.rows) for each in sets} == {"talk fun": 160, "judgebench rm": 180}
    fit, held_out = bench.split_rows(sets[0].rows, 99, random.Random(1))
    assert len(fit) == 99
    assert not {row.cluster for row in fit} & {row.cluster for row in held_out}
    monkeypatch.setattr(
        sys,
        "argv",
        ["coverage.py", str(tmp_path), "--splits", "4", "--json", str(tmp_path / "out.json")],
    )
    assert bench.main() == 0
    printed = capsys.readouterr().out
    assert "left out: attacks: no labels" in printed
    assert "2 of 2 sets cover" in printed
    talk = next(
        row for row in json.loads((tmp_path / "out.json").read_text()) if row["name"] == "talk fun"
    )
    assert talk["calibrated"] < talk["judge"]
    assert 0.9 <= talk["coverage"] <= 1


@pytest.mark.parametrize(
    ("coverage", "calibrated", "met"), [(0.95, 0.2, True), (0.89, 0.2, False), (0.95, 0.3, False)]
)
def test_a_set_misses_the_goal(coverage, calibrated, met):
    """Too low a coverage and an error that is not below the judge's are both misses."""
    row = bench.CoverageRow("x", 200, coverage, 0.5, 0.9, 0.0, 0.1, calibrated, 0.3, 0.3, 0.3)
    assert (row.covers and row.better_than_judge) == met
