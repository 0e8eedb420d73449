"""A recipe of Redraft, read by verl. Run by test_reward_training.py with the Python of verl. Writes
JSON.
"""

import asyncio
import json
import sys

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from tiny_base import answer  # the folder of this script is on the path
from verl.trainer.ppo.reward import get_custom_reward_fn
from verl.utils.dataset.rl_dataset import RLHFDataset


class Tokenizer:
    """A tokenizer whose tokens are characters, which verl asks how long a prompt is."""

    def apply_chat_template(self, messages, **settings):
        return [*map(ord, "".join(each["content"] for each in messages))]


def main(folder):
    """Compose the configuration, read the prompts, and score two answers."""
    with initialize_config_dir(folder, version_base=None):
        config = compose("config")
    OmegaConf.resolve(config)
    function = get_custom_reward_fn(config)
    prompts = RLHFDataset(config.data.train_files, Tokenizer(), config.data, None)
    row = prompts.dataframe[0]

    async def score(good):
        info = row["extra_info"]
        truth = row["reward_model"]["ground_truth"]
        found = await function(row["data_source"], answer(good), truth, info)
        return found["score"]

    async def scores():
        return [await score(good) for good in (2, 8)]

    facts = {
        "estimator": config.algorithm.adv_estimator,
        "base": config.actor_rollout_ref.model.path,
        "prompts": len(prompts),
        "prompt": row["prompt"][0]["content"],
        "scores": asyncio.run(scores()),
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main(sys.argv[1])
