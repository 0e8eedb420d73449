"""A short soak of bench/gateway.py: mixed load with faults leaves nothing behind, and `kill -9`
loses nothing that was recorded.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench" / "gateway.py"


@pytest.mark.slow
def test_a_short_soak(tmp_path):
    """Every goal of the soak is met, and each kind of load took place."""
    figures = tmp_path / "figures.json"
    command = [sys.executable, BENCH, "--soak", "20", "--json", figures]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert figures.exists(), done.stderr
    found = json.loads(figures.read_text())
    assert [goal for goal in found["goals"] if not goal["met"]] == [], found["unexpected"]
    assert done.returncode == 0
    assert {"answered", "failed", "cancelled", "interrupted"} == set(found["requests"]["outcomes"])
    assert found["upstream"]["faults"] > 0
    assert found["upstream"]["left"] > 0
    assert found["billing"]["answers"] > 0
