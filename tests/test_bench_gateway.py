"""bench/gateway.py measures the gateway beside its model, and refuses goals that are not met."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "bench"


@pytest.mark.slow
def test_the_gateway_is_measured(tmp_path):
    """Each figure is there and plausible, and the exit code says whether every goal is met."""
    figures = tmp_path / "figures.json"
    sizes = ["-n", "20", "--in-flight", "4", "--rounds", "1", "--streams", "20", "--waves", "2"]
    command = [sys.executable, BENCH / "gateway.py", *sizes, "--json", figures]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert figures.exists(), done.stderr
    found = json.loads(figures.read_text())
    assert 0 < found["one"]["redraft pass/"]["median"] < 1000
    assert found["load"]["redraft pass/"]["per_s"] > 1
    assert found["streams"]["redraft pass/"]["errors"] == 0
    assert found["streams"]["redraft pass/"]["streams"] == 40
    assert done.returncode == int(any(goal["met"] is False for goal in found["goals"]))


@pytest.mark.slow
def test_another_checkout_is_compared(tmp_path):
    """Each kind of request has a figure of each pair; the exit code says whether a median is above
    the limit.
    """
    figures = tmp_path / "figures.json"
    sizes = ["-n", "40", "--in-flight", "4", "--pairs", "2"]
    command = [
        sys.executable,
        BENCH / "gateway.py",
        "--before",
        BENCH.parent,
        *sizes,
        "--json",
        figures,
    ]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert figures.exists(), done.stderr
    found = json.loads(figures.read_text())
    assert [
        len(each["now"]) for each in (found["pass/"], found["pass/, stream"], found["refine/"])
    ] == [2, 2, 2]
    assert done.returncode == int(any(goal["met"] is False for goal in found["goals"]))


def test_a_median_ratio_above_the_limit_is_a_miss(gateway_bench):
    """One pair that was disturbed changes nothing; a median does."""
    same = {"before": [1.0] * 5, "now": [1.0, 1.04, 1.05, 2.0, 1.0]}
    more = {"before": [1.0] * 5, "now": [1.06, 1.07, 1.08, 1.0, 1.0]}
    assert [met for _, met in gateway_bench.compared_goals({"pass/": same, "refine/": more})] == [
        True,
        False,
    ]


@pytest.fixture
def gateway_bench(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    spec = importlib.util.spec_from_file_location("bench_of_the_gateway", BENCH / "gateway.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("ours", "theirs", "errors", "mb", "met"),
    [
        (0.8, 8.0, 0, [50, 80, 81], [True, True, True, True]),
        (1.2, 8.0, 0, [50, 80, 81], [False, True, True, True]),
        (0.8, 2.0, 0, [50, 80, 81], [True, False, True, True]),
        (0.8, 8.0, 1, [50, 80, 81], [True, True, False, True]),
        (0.8, 8.0, 0, [50, 80, 120], [True, True, True, False]),
        (0.8, None, 0, None, [True, None, True]),
    ],
)
def test_goals_can_be_missed(gateway_bench, ours, theirs, errors, mb, met):
    """Each goal depends on its own figure; without litellm, or /proc, it is unknown."""
    one = {"upstream": {"median": 10.0}, "redraft pass/": {"median": ours}}
    one |= {} if theirs is None else {"litellm proxy": {"median": theirs}}
    held = {"streams": 500, "errors": errors, "mb": mb}
    fine = {"streams": 500, "errors": 0, "mb": [50, 80, 81]}
    for streams, expected in (
        ({"redraft pass/": held, "redraft refine/": fine}, [*met, True, True]),
        ({"redraft pass/": fine, "redraft refine/": held}, [*met[:2], True, True, *met[2:]]),
    ):
        found = gateway_bench.goals({"one": one, "streams": streams})
        assert [each for _, each in found] == expected
