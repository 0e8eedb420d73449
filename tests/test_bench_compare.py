"""bench/compare.py measures labelled sets and the gate, and says by its exit code whether the goals
are met.
"""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "bench" / "compare.py"


@pytest.mark.slow
def test_a_labelled_set_and_the_gate_are_measured(tmp_path):
    """A good judge saves labels, its own interval does not contain the truth, and the gate raises
    no false alarm.
    """
    rng = random.Random(0)
    folder = tmp_path / "unieval_meta"
    folder.mkdir()
    rows = []
    for n in range(300):
        quality = rng.uniform(1, 5)
        scores = {"fun": 0.5 + quality / 10 + rng.gauss(0, 0.02)}
        rows.append(
            {
                "id": str(n),
                "source": f"s{n // 2}",
                "scores": {"fun": quality},
                "predict_scores": scores,
            }
        )
    (folder / "talk.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    figures = tmp_path / "figures.json"
    command = [
        sys.executable,
        BENCH,
        tmp_path,
        "--resamples",
        "40",
        "--worlds",
        "40",
        "--jobs",
        "1",
        "--json",
        figures,
    ]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(figures.read_text())
    assert {each["labels"] for each in found["sets"]} == {50, 100}
    assert all(each["saved"] > 0.5 and each["judge_coverage"] < 0.1 for each in found["sets"])
    assert all(each["worse"] == 1 for each in found["gate"] if each["effect"] == -0.1)
