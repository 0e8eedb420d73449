"""Graders that are trained on labels of people, and used like any other.

`train` and `train_sync` have named graders grade labelled answers, fit a head to what they say, and
measure it on clusters that were held out: the card is part of the result. `head` says what a head
is, `fitting` fits it, `features` reads the answers, `grader` stores and grades. Nothing imports
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
else:
    __getattr__ = attribute_loader(
        __name__,
        {
            "Head": "head",
            "TrainedGrader": "grader",
            "TrainingResult": "api",
            "load_grader": "grader",
            "train": "api",
            "train_sync": "api",
        },
    )

__all__ = ["Head", "TrainedGrader", "TrainingResult", "load_grader", "train", "train_sync"]
