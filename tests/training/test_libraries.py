"""Rewards in the real TRL, verl, verifiers and OpenEnv, each in an environment of its own.

`pip install trl` and Redraft there, and TRL_PYTHON names its Python; `pip install --no-deps verl`,
with torch, tensordict, ray, hydra-core, codetiming, torchdata, pylatexenc and cachetools:
VERL_PYTHON; `pip install verifiers openenv-core`: VERIFIERS_PYTHON.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
OWN_REWARDS = """
from redraft import rewards

def fails(text):
    raise ValueError("broken")

reward = rewards.verl("words:1-1")
unknown_reward = rewards.verl(fails, unknown=-0.5)
failing_reward = rewards.verl(fails, sync=True)
"""


def run(variable, script, *arguments):
    """Run a script with the Python that a variable names; returns the JSON in its last line."""
    python = os.environ.get(variable) or pytest.skip(f"no {variable}")
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(
        [python, HERE / script, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def test_ten_steps_of_grpo(tmp_path):
    """Each third verdict of the judge cannot be read: those rewards are None for TRL, which trains
    with the others, and logs how many there are.
    """
    found, _ = run("TRL_PYTHON", "grpo.py", tmp_path)
    batches, steps = found["batches"], [step for step in found["steps"] if "loss" in step]
    assert len(steps) == len(batches) == 10
    assert {len(batch) for batch in batches} == {4}
    rewards = [reward for batch in batches for reward in batch]
    assert 10 <= rewards.count(None) <= 14
    assert all(reward is None or 0 <= reward <= 1 for reward in rewards)
    for step, batch in zip(steps, batches, strict=True):
        known = [reward for reward in batch if reward is not None]
        assert step["quality/unknown"] == batch.count(None) / 4
        assert step["rewards/quality/mean"] == pytest.approx(sum(known) / len(known), abs=1e-5)


def test_verl_loads_and_calls_compute_score(tmp_path):
    """By path and name, from the package and from a file, async and not, in its reward manager."""
    (tmp_path / "own_rewards.py").write_text(OWN_REWARDS)
    found, said = run("VERL_PYTHON", "verl_loader.py", tmp_path / "own_rewards.py")
    *scores, error = found
    assert [each["reward_score"] for each in scores] == [1, 1, 0, -0.5]
    assert [each["reward_extra_info"]["unknown"] for each in scores] == [0, 0, 0, 1]
    assert error == "GradingError"
    assert "an unknown reward becomes -0.5" in said


def test_verifiers_and_openenv():
    """What fails is no number: an error of the rollout, or what was named."""
    found, _ = run("VERIFIERS_PYTHON", "environments.py")
    assert found == {
        "verifiers": {"quality": 2.0},
        "blank": {"quality": 0.0},
        "failed": ["TaskError", {"quality": None}],
        "openenv": 0.5,
        "named": 0.25,
        "error": "GradingError",
    }
