"""`train_reward_model`: a reward model from labels of people, by TRL's `RewardTrainer`.

Labels become pairs of a better and a worse answer to the same prompt. The clusters are split in
three: to train the model, to watch its loss and to calibrate its rewards, and to measure it. The
last part is held out as in `train`, and the card is about it alone. Checkpoints are kept until the
model is finished, so that the same call resumes an interrupted one; the configuration and the
losses stay beside the model. It needs `redraft[train,validate]`.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from itertools import permutations
from math import ceil
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from ..base import checks
from ..base.documents import read_small_text
from ..base.sync import async_to_sync
from ..errors import ConfigError, RedraftError
from ..graders.reward import scored_messages
from ..loop.records import Candidate
from ..loop.serialize import object_from_json, unpack
from ..loop.task import Message
from ..session.options import Options
from ..storage import write_atomic
from ..storage.secure_files import PathLock, make_folder
from ..usage import NO_USAGE
from ..validation.api import open_session
from ..validation.cases import LabelKind, LabelledCase
from ..validation.run import LabelledData, ValidationResult
from ..validation.statistics import check_dependencies, group_values
from .api import HELD_OUT, AnswerFeatures, head_targets, split_cases, split_labels, validate_head
from .grader import CONFIG, FILE, REWARD_SCHEMA, grader_folder, save_grader
from .head import Features
from .reward_model import (
    FOLDER,
    MAX_TOKENS,
    REWARD,
    RewardModel,
    TrainedRewardModel,
    folder_digest,
    load_model,
    read_config,
)

SCHEMA = 1
LOSSES, CHECKPOINTS = "losses.json", "checkpoints"
MAX_CONFIG = 1 << 20  # bytes
MAX_LOSSES = 16 << 20  # bytes
CALIBRATION = 0.2  # the share of the labels to fit that calibrate rewards instead
MAX_ANSWERS = 64  # to one prompt, of which pairs are made
LOGGED = ("step", "loss", "eval_loss", "accuracy", "eval_accuracy")
POINTS = 100  # on a curve of losses
LORA_RATE, FULL_RATE = 1e-4, 1e-5
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{{ eos_token }}"


@dataclass(frozen=True)
class RewardTrainingConfig:
    """How a reward model is trained.

    `base`: the name or the folder of the model that it starts from. `lora`: the rank of low-rank
    adapters (LoRA), which are merged into the model at the end; None: all weights are trained.
    `learning_rate`: None is 0.0001 with LoRA, else 0.00001. `batch_size`: the pairs of one step.
    `max_tokens`: of a conversation; longer ones are left out, and get no score. `max_pairs`: of one
    prompt. `checkpoints`: how often the training can be resumed from. Raises ConfigError.
    """

    base: str
    lora: int | None = None
    epochs: float = 1.0
    learning_rate: float | None = None
    batch_size: int = 8
    max_tokens: int = 2048
    max_pairs: int = 16
    checkpoints: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        checks.text("base", self.base)
        checks.whole_number("lora", self.lora, 1, 1024, optional=True)
        checks.positive("epochs", self.epochs, 1000)
        checks.positive("learning_rate", self.learning_rate, 1, optional=True)
        values = asdict(self)
        for name in ("batch_size", "max_tokens", "max_pairs", "checkpoints", "seed"):
            checks.whole_number(name, values[name], int(name != "seed"), MAX_TOKENS)

    @property
    def with_rate(self) -> RewardTrainingConfig:
        """The same with nothing left open."""
        rate = FULL_RATE if self.lora is None else LORA_RATE
        return replace(self, learning_rate=self.learning_rate or rate)

    @classmethod
    def from_file(cls, path: str | Path) -> RewardTrainingConfig:
        """Read the configuration beside a trained model. Raises ConfigError."""
        try:
            data = object_from_json(read_small_text(path, max_bytes=MAX_CONFIG))
            if (schema := data.get("redraft_training")) != SCHEMA:
                raise ValueError(f"it has schema {schema!r:.20}, and this release reads {SCHEMA}")
            found: RewardTrainingConfig = unpack(cls, data["config"])
        except (OSError, RedraftError, ValueError, KeyError) as error:
            message = f"{path} is not a configuration of a training: {error!s:.300}"
            raise ConfigError(message) from error
        return found


class Pair(NamedTuple):
    """Two conversations with the same prompt, of which people prefer the first."""

    chosen: tuple[Message, ...]
    rejected: tuple[Message, ...]


@dataclass(frozen=True)
class RewardTrainingResult:
    """A trained reward model, and how far it agrees with labels that were held out.

    Attributes:
        grader: The grader, which is stored and used as "trained:NAME".
        folder: The folder of the grader; the model is in `model` there.
        validation: Its validation on the held-out labels; its card is saved.
        pairs: How many pairs it was trained on.
        prompts: How many prompts these pairs are about.
        too_long: How many of the labelled answers are longer than it reads.
        losses: What the trainer logged: each step with its "loss", and "eval_loss" on the labels
            that calibrate.
        config: The configuration.
    """

    grader: TrainedRewardModel
    folder: Path
    validation: ValidationResult
    pairs: int
    prompts: int
    too_long: int
    losses: Sequence[Mapping[str, float]]
    config: RewardTrainingConfig

    @property
    def trusted(self) -> bool:
        """Whether the grader is better than chance, with 95% confidence."""
        return self.validation.trusted

    @property
    def served_grader(self) -> str:
        """The grader that gives the same scores by a server of the model; "" if there is none,
        since higher rewards are not better.
        """
        if self.grader.scale is None:
            return ""
        center, scale = self.grader.scale
        url = f"http://127.0.0.1:8000/classify#{self.folder / FOLDER}"
        return f"reward:{url},center={center:.6g},scale={scale:.6g}"

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain data that `json.dumps` accepts."""
        return {
            "grader": self.grader.name,
            "folder": str(self.folder),
            "served_grader": self.served_grader,
            "pairs": self.pairs,
            "prompts": self.prompts,
            "too_long": self.too_long,
            "losses": [dict(each) for each in self.losses],
            "config": asdict(self.config),
            "card": self.validation.to_dict(),
        }


def train_reward_model(
    cases: Any,
    config: RewardTrainingConfig,
    *,
    name: str,
    held_out: float = HELD_OUT,
    columns: Mapping[str, str] | None = None,
    kind: LabelKind | None = None,
    limit: int | None = None,
    scale: tuple[float, float] | None = None,
    lower_is_better: bool | None = None,
    cards_dir: str | Path | None = None,
    on_pairs: Callable[[int, int], object] | None = None,
    on_step: Callable[[int, int, float], object] | None = None,
) -> RewardTrainingResult:
    """Train a reward model on labels of people, store it as "trained:NAME", and measure it on
    labels that were held out.

    Ctrl-C interrupts it, and the same call resumes it from its last checkpoint. If it is finished,
    the same call measures it again.

    Args:
        cases: Labelled rows, as in `train`, and so are all arguments that are not named here.
        config: How it is trained.
        name: See `cases`.
        held_out: See `cases`.
        columns: See `cases`.
        kind: See `cases`.
        limit: See `cases`.
        scale: See `cases`.
        lower_is_better: See `cases`.
        cards_dir: The folder of cards.
        on_pairs: Called before the training with the number of pairs, and of prompts.
        on_step: Called now and then with the step, the number of steps, and the loss.

    Returns:
        The grader with its card, which is saved.

    Raises:
        ConfigError: An argument is wrong, there are too few labels or no pairs, the extra is not
            installed, or the folder has a training with another configuration.
        StoreError: The model or its card cannot be saved.
    """
    checks.number("held_out", held_out, 0.1, 0.5)
    check_dependencies()
    from .fitting import fit_head  # it needs an extra

    folder, config = grader_folder(name), config.with_rate
    fit_cases, measured = split_labels(
        cases, held_out, columns, kind, limit, scale=scale, lower_is_better=lower_is_better
    )
    to_train, to_calibrate = split_cases(fit_cases, CALIBRATION)
    pairs, prompts = preference_pairs(to_train, config)
    if on_pairs:
        on_pairs(len(pairs), prompts)
    with checks.needs_extra("train", "a reward model is trained by TRL"):
        import trl  # pyright: ignore[reportMissingImports]  # noqa: F401
    make_folder(folder)
    with closing(PathLock(folder / CONFIG, f"the training in {folder}")):
        _start(folder, {"config": asdict(config), "labels": measured.sha256})
        if not (folder / FOLDER).exists():
            others, _ = preference_pairs(to_calibrate, config, required=False)
            with warnings.catch_warnings(action="ignore", category=FutureWarning):
                _fit(config, pairs, others, folder, on_step)
        digest = folder_digest(where := folder.resolve() / FOLDER)
        model = load_model(where, digest, config.max_tokens)
        features = _features([*to_calibrate, *measured.cases], model)
        known = head_targets(to_calibrate, features, [REWARD], measured.report_config.scale)
        head = fit_head(*known, [REWARD]).head
        grader = TrainedRewardModel(digest, model.max_tokens, head, f"trained:{name}", where)
        facts = {"reward_model": digest, "max_tokens": model.max_tokens}
        save_grader(folder, REWARD_SCHEMA, head=asdict(head), **facts)
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
    answers = sum(len(case.responses) for case in (*to_calibrate, *measured.cases))
    return RewardTrainingResult(
        grader,
        folder,
        _validate(grader, measured, features, Options(cards_dir=cards_dir)),
        len(pairs),
        prompts,
        answers - len(features),
        read_losses(folder),
        config,
    )


# ---- pairs


def preference_pairs(
    cases: Sequence[LabelledCase], config: RewardTrainingConfig, *, required: bool = True
) -> tuple[list[Pair], int]:
    """Return the pairs of answers to the same task with different labels or ranks, at most
    `config.max_pairs` a task by chance, and the number of tasks. Raises ConfigError if there are
    none and they are `required`.
    """
    answers = group_values(each for case in cases for each in _valued_answers(case))
    pairs, prompts, random = list[Pair](), 0, Random(config.seed)
    for found in answers.values():
        some = random.sample(found, min(len(found), MAX_ANSWERS))
        better = [Pair(a, b) for (x, a), (y, b) in permutations(some, 2) if x > y]
        pairs += random.sample(better, min(len(better), config.max_pairs))
        prompts += bool(better)
    if required and not pairs:
        raise ConfigError(
            f"no pairs: a reward model learns from answers to the same prompt with different "
            f"labels, and there are none among {len(cases)} labelled rows with {len(answers)} "
            "prompts; label several answers to each prompt, or train a head: --grader NAME"
        )
    return pairs, prompts


def _valued_answers(
    case: LabelledCase,
) -> Iterator[tuple[str, tuple[float, tuple[Message, ...]]]]:
    """Yield each answer of a case with its task and its value; higher is better."""
    task = case.task
    key = repr((task.messages, task.context, task.reference)) if case.ranks is None else case.id
    values = [case.label or 0.0] if case.ranks is None else [-float(rank) for rank in case.ranks]
    for n, (value, text) in enumerate(zip(values, case.responses, strict=True)):
        yield key, (value, scored_messages(task, Candidate(n, text)))


# ---- training


def _start(folder: Path, facts: Mapping[str, Any]) -> None:
    """Write the configuration, unless the folder has it. Raises ConfigError if it has another."""
    path, text = folder / CONFIG, json.dumps({"redraft_training": SCHEMA, **facts}, indent=1) + "\n"
    if not path.exists():
        if (folder / FILE).exists():
            raise ConfigError(f"{folder} has a trained grader of another kind: choose another name")
        write_atomic(path, text)
    elif read_small_text(path, max_bytes=MAX_CONFIG) != text:
        raise ConfigError(
            f"{folder} has a training with another configuration or other labels ({CONFIG}): give "
            "the same, choose another name, or remove the folder"
        )


def _fit(
    config: RewardTrainingConfig,
    pairs: Sequence[Pair],
    others: Sequence[Pair],
    folder: Path,
    on_step: Callable[[int, int, float], object] | None,
) -> None:
    """Train the model and write it into its folder; resume from the last checkpoint, if any.

    Raises ConfigError if the base cannot be loaded, or if all pairs are too long.
    """
    import datasets
    import peft  # pyright: ignore[reportMissingImports]
    import torch  # pyright: ignore[reportMissingImports]
    import transformers  # pyright: ignore[reportMissingImports]
    import trl  # pyright: ignore[reportMissingImports]
    from huggingface_hub import constants

    # TRL reports its use to the hub otherwise
    constants.HF_HUB_DISABLE_TELEMETRY = True
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    transformers.set_seed(config.seed)  # of the head, which the base has not
    on_gpu = torch.cuda.is_available()
    small = on_gpu and config.lora is not None
    model, tokenizer = _load_base(config.base, torch.bfloat16 if small else torch.float32)
    reader = RewardModel(model, tokenizer, config.max_tokens)

    def dataset(pairs: Sequence[Pair]) -> Any:
        rows = ([*map(reader.token_ids, pair)] for pair in pairs)
        known = [dict(chosen_ids=a, rejected_ids=b) for a, b in rows if a and b]
        return datasets.Dataset.from_list(known) if known else None

    if (to_train := dataset(pairs)) is None:
        raise ConfigError(
            f"max_tokens: all {len(pairs)} pairs are longer than {reader.max_tokens} tokens"
        )
    steps = ceil(len(to_train) / config.batch_size * config.epochs)
    often, to_watch = max(1, steps // config.checkpoints), dataset(others)
    adapters = config.lora and peft.LoraConfig(
        task_type="SEQ_CLS",
        r=config.lora,
        lora_alpha=2 * config.lora,
        target_modules="all-linear",
    )

    class LossRecorder(transformers.TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            data = {"redraft_losses": SCHEMA, "steps": state.log_history}
            write_atomic(folder / LOSSES, json.dumps(data) + "\n")
            if on_step and "loss" in (last := state.log_history[-1]):
                on_step(state.global_step, state.max_steps, last["loss"])

    trainer = trl.RewardTrainer(
        model,
        args=trl.RewardConfig(
            output_dir=str(folder / CHECKPOINTS),
            num_train_epochs=config.epochs,
            learning_rate=config.learning_rate,
            per_device_train_batch_size=config.batch_size,
            per_device_eval_batch_size=config.batch_size,
            max_length=None,
            seed=config.seed,
            bf16=on_gpu,
            use_cpu=not on_gpu,
            activation_checkpointing=on_gpu,
            logging_steps=max(1, steps // POINTS),
            save_steps=often,
            save_total_limit=2,
            eval_strategy="steps" if to_watch else "no",
            eval_steps=often,
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=to_train,
        eval_dataset=to_watch,
        processing_class=tokenizer,
        peft_config=adapters,
        callbacks=[LossRecorder()],
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train(resume_from_checkpoint=_last_checkpoint(folder / CHECKPOINTS))
    trained = trainer.model.merge_and_unload() if adapters else trainer.model
    draft = folder / f"{FOLDER}.part"
    shutil.rmtree(draft, ignore_errors=True)
    trained.save_pretrained(draft)
    tokenizer.save_pretrained(draft)
    draft.rename(folder / FOLDER)


def _load_base(base: str, dtype: Any) -> tuple[Any, Any]:
    """Return a model with one output and its tokenizer, with a chat template and a token for
    padding. Raises ConfigError.
    """
    from transformers import AutoModelForSequenceClassification, AutoTokenizer  # pyright: ignore[reportMissingImports]

    is_folder = Path(base).expanduser().is_dir()
    where = Path(base).expanduser() if is_folder else base
    if isinstance(where, Path):
        read_config(where)
    safe: dict[str, Any] = {"trust_remote_code": False, "local_files_only": is_folder}
    try:
        tokenizer = AutoTokenizer.from_pretrained(where, **safe)
        model = AutoModelForSequenceClassification.from_pretrained(
            where, **safe, num_labels=1, use_safetensors=True, dtype=dtype
        )
    except (OSError, ValueError, ImportError, RuntimeError) as error:
        raise ConfigError(f"base: {base!r} cannot be loaded: {error!s:.500}") from error
    tokenizer.chat_template = tokenizer.chat_template or TEMPLATE
    # not the token that ends a conversation: servers read the reward from that
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.bos_token or tokenizer.eos_token
    tokenizer.padding_side = "right"
    if tokenizer.pad_token is None:
        raise ConfigError(f"base: {base!r} has no token for padding, and none that can be one")
    return model, tokenizer


def _last_checkpoint(folder: Path) -> str | None:
    """Return the last whole checkpoint, and remove later ones: a process was killed that wrote
    them.
    """
    found = folder.glob("checkpoint-*")
    for path in sorted(found, key=lambda each: int(each.name.rpartition("-")[2]), reverse=True):
        with suppress(OSError, RedraftError, ValueError):  # the state is written last
            state = read_small_text(path / "trainer_state.json", max_bytes=MAX_LOSSES)
            if object_from_json(state):
                return str(path)
        shutil.rmtree(path, ignore_errors=True)
    return None


def read_losses(folder: Path) -> Sequence[Mapping[str, float]]:
    """Return what the trainer logged, each with its "step". Raises ConfigError if there is none."""
    try:
        steps = object_from_json(read_small_text(folder / LOSSES, max_bytes=MAX_LOSSES))["steps"]
        return [
            {key: value for key in LOGGED if checks.is_number(value := each.get(key))}
            for each in steps
            if checks.is_number(each["step"])
        ]
    except (OSError, RedraftError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{folder} has no losses of a training: {error!s:.200}") from error


# ---- calibration and card


def _features(cases: Sequence[LabelledCase], model: RewardModel) -> AnswerFeatures:
    """Return the reward of each answer, as the feature that the head reads, but for those that are
    too long.
    """
    tokens = {
        (case.id, n): ids
        for case in cases
        for n, text in enumerate(case.responses)
        if (ids := model.token_ids(scored_messages(case.task, Candidate(n, text))))
    }
    rewards = model.rewards([*tokens.values()])
    return {key: Features({REWARD: raw}) for key, raw in zip(tokens, rewards, strict=True)}


@async_to_sync
async def _validate(
    grader: TrainedRewardModel, data: LabelledData, features: AnswerFeatures, options: Options
) -> ValidationResult:
    """Return the validation of the grader, whose card is saved."""
    async with await open_session(grader, False, options) as session:
        measured = validate_head(data, session, features, NO_USAGE)
    measured.save_card()
    return measured
