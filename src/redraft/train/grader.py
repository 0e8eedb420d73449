"""Trained graders on disk, and as graders.

A folder has one grader: `grader.json`, with the head and the names of the graders that it reads, or
the digest of the reward model that it reads, which is beside it (see `reward_model`). A model that
judges is not part of it: it is named wherever the grader is used, as for every judge, and the card
is about the one that judged when the grader was trained.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base import checks
from ..base.documents import read_small_text
from ..base.own_code import fingerprint_name
from ..errors import ConfigError, RedraftError, StoreError
from ..graders.base import all_actions
from ..graders.composite import Composite, format_vote, grade_parts, total_usage
from ..loop.records import Candidate, CriterionScore, Feedback
from ..loop.serialize import object_from_json
from ..loop.task import Task
from ..protocols import JudgeClient
from ..storage import write_atomic
from ..storage.secure_files import data_dir, make_folder
from .features import features_of, graders_of, without_vectors
from .head import Head
from .reward_model import FOLDER as MODEL
from .reward_model import TrainedRewardModel

HEAD_SCHEMA, REWARD_SCHEMA = 1, 2  # a head over graders, or over a reward model
FILE, CONFIG = "grader.json", "training.json"  # the second is that of a reward model
MAX_FILE = 64 << 20  # bytes: 40 samples of the weights of an embedding of 4,096 numbers are 4 MB
NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}")


@fingerprint_name("trained")
@dataclass(frozen=True)
class TrainedGrader(Composite):
    """A grader whose score a head computes from the scores of other graders.

    `Feedback.metadata["interval"]` is the 95% interval of the score. The score is None, and the
    reason says why, for an answer outside what the labelled answers had.
    """

    graders: tuple[object, ...]
    head: Head
    name: str

    needs_card = True

    @property
    def parts(self) -> tuple[object, ...]:
        return self.graders

    async def grade(self, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback:
        """Return the score by the head, with what the graders say as criteria and actions. Raises
        what a grader raises.
        """
        votes = await grade_parts(self.part_traits, task, candidate, ask)
        said = "; ".join(format_vote(vote) for vote in votes if vote.score is not None)
        score = self.head.score(features_of(votes))
        votes, usage = list(without_vectors(votes)), total_usage(votes)
        if isinstance(score, str):
            reason = f"unlike the labelled answers: {score}"
            return Feedback(None, reason, usage=usage, votes=tuple(votes))
        return Feedback(
            score.value,
            f"{score.value:.2f} ({score.low:.2f} to {score.high:.2f}) by labels, from: {said}",
            all_actions(vote for vote in votes if vote.score is None or vote.score < 1),
            criteria=tuple(
                CriterionScore(vote.grader, vote.score) for vote in votes if vote.score is not None
            ),
            metadata={"interval": [score.low, score.high]},
            usage=usage,
            votes=tuple(votes),
        )


def grader_folder(name: str) -> Path:
    """Return the folder of a trained grader: NAME in the user's data folder, or a path. Raises
    ConfigError for what is neither.
    """
    if "/" in name or "\\" in name:
        return Path(name).expanduser()
    if not NAME.fullmatch(name):
        raise ConfigError(
            "grader 'trained' needs the NAME that `redraft train` was given, or the path of a "
            f"folder, such as trained:support or trained:./support, got {checks.format_value(name)}"
        )
    return data_dir() / "trained" / name


def save_grader(folder: Path, schema: int, **parts: Any) -> None:
    """Write a grader into its folder, which `load_grader` reads. Raises StoreError."""
    try:
        make_folder(folder)
        write_atomic(folder / FILE, json.dumps({"redraft_trained": schema, **parts}) + "\n")
    except OSError as error:
        raise StoreError(f"{folder / FILE} cannot be written: {error.strerror}") from error


def load_grader(name: str) -> TrainedGrader | TrainedRewardModel:
    """Return the grader "trained:NAME". Raises ConfigError if there is none, or if one of its
    graders cannot be made.
    """
    folder, full_name = grader_folder(name), f"trained:{name}"
    path = folder / FILE
    try:
        data = object_from_json(read_small_text(path, max_bytes=MAX_FILE))
        if (schema := data.get("redraft_trained")) not in {HEAD_SCHEMA, REWARD_SCHEMA}:
            raise ValueError(f"it has schema {schema!r:.20}, and this release reads 1 and 2")
        head = Head.from_data(data["head"])
        if schema == REWARD_SCHEMA:
            model = data["reward_model"], data["max_tokens"]
            return TrainedRewardModel(*model, head, full_name, folder.resolve() / MODEL)
        graders = graders_of(data["graders"], data["embeddings"])
    except FileNotFoundError:
        raise ConfigError(
            f"there is no trained grader {name!r}: `redraft train DATA --name {name}` makes one"
        ) from None
    except (OSError, RedraftError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{path} is not a trained grader: {error!s:.300}") from error
    return TrainedGrader(graders, head, full_name)
