"""Rewards in the real TRL, verl, verifiers and OpenEnv: ten steps of training, the page's program,
and what becomes of unknown rewards.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TRAINING = ROOT / "examples" / "training"
OWN_REWARDS = """
from redraft import rewards

def fails(text):
    raise ValueError("broken")

reward = rewards.verl("words:1-1")
unknown_reward = rewards.verl(fails, unknown=-0.5)
failing_reward = rewards.verl(fails, sync=True)
"""
PROGRAM = re.compile(r'^```python title="train.py"\n(.*?)^```', re.DOTALL | re.MULTILINE)


def run(package, script, *arguments, folder=None):
    """Run a program that needs a package; return its stdout and stderr."""
    if not importlib.util.find_spec(package):
        pytest.skip(f"no {package}")
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(
        [sys.executable, script, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout, done.stderr


@pytest.fixture
def grpo():
    """The module examples/training/grpo.py."""
    pytest.importorskip("trl", reason="no trl")
    spec = importlib.util.spec_from_file_location("grpo", TRAINING / "grpo.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_ten_steps_of_grpo(grpo, tmp_path, monkeypatch):
    """Each third call of the judge fails: those rewards are None for TRL, which trains with the
    others, and logs how many there are.
    """
    batches, trl_rewards = [], grpo.rewards.trl

    def recorded(*graders, **settings):
        reward = trl_rewards(*graders, **settings)

        async def quality(*given, **columns):
            batches.append(await reward(*given, **columns))
            return batches[-1]

        return quality

    monkeypatch.setattr(grpo.rewards, "trl", recorded)
    steps = grpo.main(tmp_path)
    assert len(steps) == len(batches) == 10
    assert {len(batch) for batch in batches} == {4}
    found = [reward for batch in batches for reward in batch]
    assert 10 <= found.count(None) <= 14
    assert all(reward is None or 0 <= reward <= 1 for reward in found)
    for step, batch in zip(steps, batches, strict=True):
        known = [reward for reward in batch if reward is not None]
        assert step["quality/unknown"] == batch.count(None) / 4
        assert step["rewards/quality/mean"] == pytest.approx(sum(known) / len(known), abs=1e-5)


def test_the_program_of_the_page_trains(grpo, tmp_path):
    """Ten steps, with a tiny model and a judge of this test instead of those that it names."""
    (code,) = PROGRAM.findall((ROOT / "docs" / "how-to" / "rewards.md").read_text())
    for part in grpo.tiny_model():
        part.save_pretrained(tmp_path / "tiny")
    for old, new in (
        ('"Qwen/Qwen3-0.6B"', '"tiny"'),
        ('"openai:gpt-4o-mini"', "judge"),
        ('output_dir="out"', 'output_dir="out", max_steps=10, use_cpu=True, save_strategy="no"'),
    ):
        assert code.count(old) == 1
        code = code.replace(old, new)
    texts = [{"prompt": f"w{n} w{n + 1}", "summary": "w1 w2"} for n in range(8)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in texts))
    (tmp_path / "train.py").write_text(
        f"import sys; sys.path.append({str(TRAINING)!r})\n"
        f"import grpo; judge = grpo.scripted_judge()\n{code}\nprint(trainer.state.global_step)\n"
    )
    said, _ = run("trl", "train.py", folder=tmp_path)
    assert said.splitlines()[-1] == "10"
    assert "'redraft/unknown': " in said


def test_verl_loads_and_calls_compute_score(tmp_path):
    """By path and name, from the package and from a file, async and not, in its reward manager."""
    (tmp_path / "own_rewards.py").write_text(OWN_REWARDS)
    found, said = run("verl", HERE / "verl_loader.py", tmp_path / "own_rewards.py")
    *scores, error = json.loads(found.splitlines()[-1])
    assert [each["reward_score"] for each in scores] == [1, 1, 0, -0.5]
    assert [each["reward_extra_info"]["unknown"] for each in scores] == [0, 0, 0, 1]
    assert error == "GradingError"
    assert "an unknown reward becomes -0.5" in said


def test_verifiers_and_openenv():
    """What fails is no number: an error of the rollout, or what was named."""
    pytest.importorskip("openenv", reason="no openenv-core")
    found, _ = run("verifiers", HERE / "environments.py")
    assert json.loads(found.splitlines()[-1]) == {
        "verifiers": {"quality": 2.0},
        "blank": {"quality": 0.0},
        "failed": ["TaskError", {"quality": None}],
        "openenv": 0.5,
        "named": 0.25,
        "error": "GradingError",
    }
