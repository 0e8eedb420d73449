"""verl's own loader and reward manager with a `compute_score` of Redraft. Run by test_libraries.py
with the Python of verl. Writes JSON.
"""

import asyncio
import inspect
import json
import sys

import numpy as np
import torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from verl import DataProto
from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager
from verl.trainer.ppo.reward import get_custom_reward_fn

from redraft.errors import GradingError


class Letters:
    """A tokenizer whose tokens are letters."""

    def decode(self, ids, skip_special_tokens):
        return "".join(chr(int(each)) for each in ids)


def row(text):
    letters = torch.tensor([[ord(each) for each in text]])
    batch = TensorDict(
        {"responses": letters, "attention_mask": torch.ones_like(letters)}, batch_size=1
    )
    columns = {
        "data_source": "gsm8k",
        "reward_model": {"ground_truth": "72"},
        "extra_info": {"question": "How many?"},
    }
    others = {name: np.array([value], dtype=object) for name, value in columns.items()}
    return DataProto(batch=batch, non_tensor_batch=others)


def loaded(path, name, given):
    function = {"path": path, "name": name, "reward_kwargs": given}
    config = OmegaConf.create({"reward": {"custom_reward_function": function}})
    return get_custom_reward_fn(config)


async def score(function, text):
    manager = NaiveRewardManager(OmegaConf.create({}), Letters(), function)
    manager.loop = asyncio.get_running_loop()
    assert manager.is_async_reward_score == inspect.iscoroutinefunction(function)
    return await manager.run_single(row(text))


async def main(own_file):
    """Score a text by each path and name."""
    given = {"graders": ["words:1-3"]}
    functions = [
        loaded("pkg://redraft.rewards", "compute_score", given),
        loaded("pkg://redraft.rewards", "compute_score_sync", given),
        loaded(own_file, "reward", {}),
        loaded(own_file, "unknown_reward", {}),
    ]
    found = [await score(function, "one two") for function in functions]
    try:
        await score(loaded(own_file, "failing_reward", {}), "one two")
    except GradingError as error:
        found.append(type(error).__name__)
    print(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
