"""Graders as rewards of a training run: `trl`, `verl`, `verifiers_judge` and `openenv` return what
these libraries take, and `RewardFunction` is what all of them call.

A reward is a score from 0 to 1, or None: unknown. A judge that fails gives no number: the library
is told that the reward is unknown where it has a way to say so (TRL), else there is an error, or
the value that you name as `unknown`.

`compute_score` and `compute_score_sync` are for verl's
`custom_reward_function.path=pkg://redraft.rewards`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base.lazy_imports import attribute_loader

if TYPE_CHECKING:
    from .agreement import Agreement, AgreementTracker, agreement_of
    from .function import ResponseReward, RewardFunction, RewardSample, reward_of
    from .libraries import compute_score, compute_score_sync, openenv, trl, verifiers_judge, verl
else:
    __getattr__ = attribute_loader(
        __name__,
        {
            "Agreement": "agreement",
            "AgreementTracker": "agreement",
            "ResponseReward": "function",
            "RewardFunction": "function",
            "RewardSample": "function",
            "agreement_of": "agreement",
            "compute_score": "libraries",
            "compute_score_sync": "libraries",
            "openenv": "libraries",
            "reward_of": "function",
            "trl": "libraries",
            "verifiers_judge": "libraries",
            "verl": "libraries",
        },
    )

__all__ = [
    "Agreement",
    "AgreementTracker",
    "ResponseReward",
    "RewardFunction",
    "RewardSample",
    "agreement_of",
    "compute_score",
    "compute_score_sync",
    "openenv",
    "reward_of",
    "trl",
    "verifiers_judge",
    "verl",
]
