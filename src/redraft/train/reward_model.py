"""A reward model that was trained on labels, in a folder: how it is checked, loaded and used.

It is a model of transformers for sequence classification with one output. Its folder holds data and
no code: only JSON, text and safetensors are read, and nothing in it is run or downloaded. PyTorch
and transformers (`redraft[train]`) load when an answer is graded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import file_digest, sha256
from pathlib import Path
from threading import Lock
from typing import Any

from ..base import checks
from ..base.documents import open_regular, read_small_text
from ..base.error_text import error_text
from ..base.jsontext import strict_loads
from ..base.own_code import fingerprint_name
from ..base.threads import run_in_thread
from ..errors import ConfigError, GradingError
from ..graders.reward import scored_messages
from ..loop.records import Candidate, Feedback
from ..loop.task import Message, Task
from ..protocols import JudgeClient
from .head import Features, Head

FOLDER = "model"  # in the folder of the grader
REWARD = "reward"  # the feature that the head reads
SUFFIXES = {".json", ".jinja", ".model", ".safetensors", ".txt"}
MAX_JSON = 64 << 20  # bytes: a tokenizer of 250,000 tokens takes 34 MB
MAX_FILES = 2_000
MAX_TOKENS = 1 << 20
BATCH = 8  # conversations at once
CODE = ("auto_map", "attn_implementation", "_attn_implementation", "quantization_config")
_loading = Lock()


class RewardModel:
    """A reward model and its tokenizer, in memory. One thread at a time uses it.

    It reads conversations of `max_tokens`, or of as many as it has positions for.
    """

    def __init__(self, model: Any, tokenizer: Any, max_tokens: int) -> None:
        self._model, self._tokenizer, self._lock = model, tokenizer, Lock()
        positions = model.config.get_text_config().to_dict().get("max_position_embeddings")
        self.max_tokens: int = min(max_tokens, positions or max_tokens)

    def token_ids(self, messages: Iterable[Message]) -> list[int] | None:
        """Return the tokens of a conversation by the chat template; None if there are too many.
        Raises GradingError for messages that the template refuses.
        """
        try:
            text = self._tokenizer.apply_chat_template([*map(dict, messages)], tokenize=False)
            ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        except Exception as error:  # (a template may raise anything)
            raise GradingError(f"its chat template fails: {error_text(error)}") from error
        return ids if 0 < len(ids) <= self.max_tokens else None

    def rewards(self, conversations: Sequence[Sequence[int]]) -> list[float]:
        """Return the reward of each conversation, which is given as tokens."""
        import torch  # pyright: ignore[reportMissingImports]

        found: dict[int, float] = {}
        order = sorted(range(len(conversations)), key=lambda n: len(conversations[n]))
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            ids = {"input_ids": [conversations[n] for n in batch]}
            with self._lock, torch.inference_mode():
                padded = self._tokenizer.pad(ids, return_tensors="pt").to(self._model.device)
                logits = self._model(**padded).logits
            found |= zip(batch, logits[:, 0].float().tolist(), strict=True)
        return [found[n] for n in range(len(conversations))]


def read_config(folder: Path) -> Mapping[str, Any]:
    """Return the config.json of a model. Raises ConfigError if it is none, or names code or other
    files.
    """
    try:
        config = strict_loads(read_small_text(folder / "config.json", max_bytes=MAX_JSON))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder} is not a model: config.json: {error!s:.200}") from error
    if not isinstance(config, dict) or (folder / "adapter_config.json").exists():
        raise ConfigError(f"{folder} is not a whole model: merge an adapter with its base first")
    if named := [key for key in CODE if config.get(key)]:
        raise ConfigError(f"{folder}/config.json has {named[0]!r}, which Redraft does not follow")
    return config


def folder_digest(folder: Path) -> str:
    """Return the SHA-256 of a model's files with their names. Raises ConfigError for a file that is
    not data, and for JSON that is none.
    """
    read_config(folder)
    total, path = sha256(), folder
    try:
        if len(paths := sorted(folder.iterdir())) > MAX_FILES:
            raise ValueError(f"there are more than {MAX_FILES:,} files")
        for path in paths:
            if path.suffix not in SUFFIXES:
                raise ValueError(f"a model has files of {', '.join(sorted(SUFFIXES))} alone")
            if path.suffix == ".json":
                strict_loads(read_small_text(path, max_bytes=MAX_JSON))
            with open_regular(path) as file:
                total.update(f"{path.name} {file_digest(file, sha256).hexdigest()}\n".encode())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is not a file of a model: {error!s:.200}") from error
    return total.hexdigest()


def load_model(folder: Path, digest: str, max_tokens: int) -> RewardModel:
    """Return the model in a folder, which is loaded once. Raises ConfigError if the extra is not
    installed, if the files are not those of the digest, or if they are no model.
    """
    with _loading:
        return _load(folder, digest, max_tokens)


@lru_cache(maxsize=2)
def _load(folder: Path, digest: str, max_tokens: int) -> RewardModel:
    with checks.needs_extra("train", "a trained reward model needs PyTorch and transformers"):
        import torch  # pyright: ignore[reportMissingImports]
        from transformers import AutoModelForSequenceClassification, AutoTokenizer  # pyright: ignore[reportMissingImports]
    if folder_digest(folder) != digest:
        raise ConfigError(f"{folder}: the files of the model have changed since it was trained")
    safe: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, **safe)
        model, report = AutoModelForSequenceClassification.from_pretrained(
            folder, **safe, use_safetensors=True, dtype="auto", output_loading_info=True
        )
    except Exception as error:  # (what the libraries raise for damaged files is anything)
        raise ConfigError(f"{folder} cannot be loaded: {error_text(error)}") from error
    if report["missing_keys"] or model.config.num_labels != 1:
        raise ConfigError(f"{folder} is not a whole reward model: weights are missing")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return RewardModel(model.eval().to(device), tokenizer, max_tokens)


@fingerprint_name("trained_reward_model")
@dataclass(frozen=True)
class TrainedRewardModel:
    """A grader whose score a head computes from the reward that a model gives to the conversation.

    `digest` is that of the files of the model, `folder` where they are. A conversation of more than
    `max_tokens` has no score. `Feedback.metadata` has the 95% "interval" of the score, and the
    "raw" reward. Raises ConfigError for values that cannot be.
    """

    digest: str
    max_tokens: int
    head: Head
    name: str
    folder: Path = field(compare=False)

    model_free = True
    prompt_texts = ()
    needs_card = True

    def __post_init__(self) -> None:
        checks.text("reward_model", self.digest)
        checks.whole_number("max_tokens", self.max_tokens, 1, MAX_TOKENS)
        if self.head.names != (REWARD,) or self.head.vector_length:
            raise ConfigError("the head of a reward model reads the reward and nothing else")

    @property
    def scale(self) -> tuple[float, float] | None:
        """The `center` and `scale` with which the grader "reward:URL#MODEL" gives the same scores;
        None if higher rewards are not better.
        """
        (weight,), (mean,), (spread,) = self.head.weights, self.head.center, self.head.spread
        if weight <= 0:
            return None
        return mean - self.head.intercept * spread / weight, spread / weight

    async def grade(self, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback:
        """Return the score, or None with the reason. Raises ConfigError if the model cannot be
        loaded, GradingError if it gives no number.
        """
        if not candidate.text.strip():
            return Feedback(0.0, "the answer is empty")
        raw = await run_in_thread(self._reward, scored_messages(task, candidate))
        if raw is None:
            return Feedback(None, f"it reads {self.max_tokens:,} tokens, and these are more")
        score = self.head.score(Features({REWARD: raw}))
        if isinstance(score, str):
            reason = f"unlike the labelled answers: {score}"
            return Feedback(None, reason, metadata={"raw": raw})
        return Feedback(
            score.value,
            f"{score.value:.2f} ({score.low:.2f} to {score.high:.2f}) by labels; reward {raw:.4g}",
            metadata={"interval": [score.low, score.high], "raw": raw},
        )

    def _reward(self, messages: Iterable[Message]) -> float | None:
        model = load_model(self.folder, self.digest, self.max_tokens)
        ids = model.token_ids(messages)
        raw = model.rewards([ids])[0] if ids else None
        if raw is not None and not checks.is_number(raw):
            raise GradingError(f"the reward model gives {raw}, which is no number")
        return raw
