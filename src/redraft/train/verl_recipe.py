"""A recipe for verl: files that train a model on a cluster, with a trained grader as its reward."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from ..errors import ConfigError
from ..loop.task import Task
from ..storage import write_atomic
from ..storage.secure_files import make_folder

REWARDS = '''\
"""The reward of a response is its score by {grader}. verl has no unknown reward: an unknown one
is an error here; `unknown=0.0` gives it a number. `judge="openai:..."` names the judge of a head.
"""

from redraft import rewards

compute_score = rewards.verl({grader!r})
'''
CONFIG = """\
# GRPO with verl 0.9; what is not named here is verl's default. sh run.sh KEY=VALUE changes more.
hydra:
  searchpath: [pkg://verl.trainer.config]
defaults: [ppo_trainer, _self_]
algorithm:
  adv_estimator: grpo
data:
  train_files: {train}
  val_files: {validation}
  train_batch_size: {batch}
  max_prompt_length: 2048
  max_response_length: 1024
actor_rollout_ref:
  model:
    path: {base}
  actor:
    use_kl_loss: true
    ppo_mini_batch_size: {batch}
    ppo_micro_batch_size_per_gpu: 1
  ref:
    log_prob_micro_batch_size_per_gpu: 1
  rollout:
    name: vllm
    n: 8
    log_prob_micro_batch_size_per_gpu: 1
reward:
  num_workers: 1
  custom_reward_function:
    path: {rewards}
    name: compute_score
trainer:
  logger: [console]
  project_name: redraft
  experiment_name: {name}
  nnodes: 1
  n_gpus_per_node: 8
"""
SCRIPT = """\
#!/bin/sh
cd "$(dirname "$0")" && exec python -m verl.trainer.main_ppo --config-path "$PWD" --config-name config "$@"
"""  # noqa: E501
MAX_BATCH = 256


def write_verl_recipe(
    folder: Path, grader: str, base: str, to_train: Iterable[Task], to_validate: Iterable[Task]
) -> Path:
    """Write a configuration, a script that runs it, the reward and the prompts into the folder
    `verl` in that of a grader, and return it. Raises ConfigError if it is there already.
    """
    folder = folder.resolve() / "verl"
    if folder.exists():
        raise ConfigError(f"{folder} is there already: remove it, and it is written again")
    rows = [*map(_row, to_train)]
    where = {
        name: json.dumps(str(folder / file))  # which is YAML, too
        for name, file in (
            *(("train", "train.jsonl"), ("validation", "validation.jsonl")),
            ("rewards", "rewards.py"),
        )
    }
    values = {"base": json.dumps(base), "name": json.dumps(folder.parent.name), **where}
    files = {
        "config.yaml": CONFIG.format(batch=min(len(rows), MAX_BATCH), **values),
        "rewards.py": REWARDS.format(grader=grader),
        "run.sh": SCRIPT,
        "train.jsonl": "".join(rows),
        "validation.jsonl": "".join(map(_row, to_validate)),
    }
    make_folder(folder)
    for name, text in files.items():
        write_atomic(folder / name, text)
    return folder


def _row(task: Task) -> str:
    """Return a prompt as verl reads it, with what the reward reads."""
    messages = [*map(dict, task.messages)]
    row = {
        "data_source": "redraft",
        "prompt": messages,
        "reward_model": {"style": "rule", "ground_truth": task.reference or ""},
        "extra_info": {"prompt": messages},
    }
    return json.dumps(row) + "\n"
