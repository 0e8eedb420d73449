"""Graders that are trained on labels of people, and used like any other.

`train` and `train_sync` have named graders grade labelled answers, fit a head to what they say, and
measure it on clusters that were held out: the card is part of the result. `head` says what a head
is, `fitting` fits it, `features` reads the answers, `grader` stores and grades.

`train_reward_model` trains a model that reads text instead (`reward_training`), which
`reward_model` loads; the head calibrates its rewards. `verl_recipe` writes files with which verl
trains another model, with a trained grader as the reward.

Nothing imports
this package until it is used, and importing it loads nothing: each name is loaded when it is first
used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base.lazy_imports import attribute_loader

if TYPE_CHECKING:
    from .api import TrainingResult, train, train_sync
    from .grader import TrainedGrader, load_grader
    from .head import Head
    from .reward_model import TrainedRewardModel
    from .reward_training import RewardTrainingConfig, RewardTrainingResult, train_reward_model
else:
    __getattr__ = attribute_loader(
        __name__,
        {
            "Head": "head",
            "RewardTrainingConfig": "reward_training",
            "RewardTrainingResult": "reward_training",
            "TrainedGrader": "grader",
            "TrainedRewardModel": "reward_model",
            "TrainingResult": "api",
            "load_grader": "grader",
            "train": "api",
            "train_reward_model": "reward_training",
            "train_sync": "api",
        },
    )

__all__ = [
    "Head",
    "RewardTrainingConfig",
    "RewardTrainingResult",
    "TrainedGrader",
    "TrainedRewardModel",
    "TrainingResult",
    "load_grader",
    "train",
    "train_reward_model",
    "train_sync",
]
