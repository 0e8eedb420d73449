"""`redraft train`: fit a head or a reward model to labels of people, with a card on labels that
were held out.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.progress import Progress
from rich.table import Table

from ...base.sync import run_sync
from ...base.text import pluralize
from ...errors import ConfigError
from ...train import api
from ...train.grader import grader_folder, load_grader
from ...train.reward_training import (
    RewardTrainingConfig,
    RewardTrainingResult,
    train_reward_model,
)
from ...train.verl_recipe import write_verl_recipe
from ...validation.card_page import format_headline, measure_cells
from ...validation.cases import LabelKind
from ...validation.labelled import LabelledCases
from .. import options
from ..command_classes import ConfiguredCommand
from ..display import make_display, message_writer
from ..exit_codes import IMPERFECT, INTERRUPTED, OK
from ..options import OptionValues
from ..output import notice, print_json, warning
from ..progress import format_usage
from ..request import announce_sources, find_judge, judging_settings
from ..terminal import console, figure_table, text_line
from .validate import read_labelled

EPILOG = """\b
Examples:
  redraft train labels.jsonl --name support --grader helpfulness --grader readability
  redraft train pairs.jsonl --name support --grader judge --judge ollama:llama3.2 --embeddings ollama:nomic-embed-text
  redraft grade --response answer.md --grader trained:support --require-validated error
  redraft train pairs.jsonl --name support --base Qwen/Qwen3-0.6B --lora 16

\b
DATA is labelled as for `redraft validate`. Every answer is graded once by each --grader.
A head learns from their scores, and from those of their criteria, what people would say.
It is fitted to 70% of the labels; the validation card is about the other 30%.
With --base a reward model learns it instead, from pairs of answers to the same prompt.

\b
After an interruption the same command resumes: no call is paid for twice, and a reward
model goes on from its last checkpoint. Exit codes:
0 better than chance, 1 failed, 2 usage, 3 not shown to be better than chance (the grader
is stored, and `--require-validated error` refuses it), 130 interrupted.
"""  # noqa: E501


@click.command(short_help="Fit a grader to labels of people.", cls=ConfiguredCommand, epilog=EPILOG)
@click.argument("data", type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--name",
    required=True,
    metavar="NAME",
    help="The grader is then used as trained:NAME; the path of a folder, such as ./support, "
    "stores it there.",
)
@options.setting(
    "--grader",
    multiple=True,
    type=options.GRADER,
    metavar="NAME",
    help="A grader that the head reads: a name that `redraft graders` lists, or a SPEC "
    "(repeatable).",
)
@click.option(
    "--embeddings",
    metavar="MODEL",
    help="A model of a /v1/embeddings endpoint that the head reads, too.",
)
@click.option(
    "--base",
    metavar="MODEL",
    help="Train a reward model, from the model of this name or in this folder; needs "
    "redraft[train].",
)
@click.option(
    "--lora",
    type=click.IntRange(1, 1024),
    metavar="RANK",
    help="Train low-rank adapters of the reward model. Default: all its weights.",
)
@click.option(
    "--training",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Train a reward model as this training.json says, which is beside each; --base and "
    "--lora take precedence.",
)
@click.option(
    "--recipe",
    type=click.Choice(["verl"]),
    help="Train nothing: write files with which verl trains the model --base on a cluster, "
    "with trained:NAME as its reward.",
)
@click.option(
    "--held-out",
    type=options.NumberRange(0.1, 0.5),
    default=0.3,
    show_default=True,
    metavar="SHARE",
    help="The share of the labels that the card is about.",
)
@options.setting(
    "--model", metavar="MODEL", help="The model that the graders call. Default: look for one."
)
@options.setting("--judge", metavar="MODEL", help="The same; takes precedence over --model.")
@options.params
@options.execution
@options.label_columns
@click.option(
    "--kind",
    type=click.Choice(["score", "pass", "pair", "ranking"]),
    help="Kind of the labels, if the data do not show it.",
)
@options.direction("labels")
@options.label_limit
@options.scale("Scale of the labels, such as 1-5. Default: from their lowest to their highest.")
@options.cards_dir
@options.judge_calls_in_flight
@options.budget
@options.timeout
@options.as_json
@options.debug
def train(
    *,
    data: str,
    name: str,
    grader: tuple[str, ...],
    embeddings: str | None,
    base: str | None,
    lora: int | None,
    training: str | None,
    recipe: str | None,
    held_out: float,
    columns: Mapping[str, str],
    kind: LabelKind | None,
    lower_is_better: bool | None,
    limit: int | None,
    scale: tuple[float, float] | None,
    as_json: bool,
    **settings: Any,
) -> int:
    """Fit a grader to the labels in DATA, so that its scores are what people would say, and
    measure it on labels that were held out.
    """
    how: dict[str, Any] = {
        "name": name,
        "held_out": held_out,
        "lower_is_better": lower_is_better,
        "scale": scale,
    }
    config = _reward_config(base, lora, training, recipe, grader or embeddings)
    labelled = read_labelled(data, columns, kind, limit)
    if recipe and config:
        notice(f"{_write_recipe(labelled, config.base, how)} written; sh run.sh there trains")
        return OK
    result: api.TrainingResult | RewardTrainingResult
    try:
        if config:
            result = _train_reward_model(labelled, config, how, settings["cards_dir"])
        else:
            how["embeddings"] = embeddings
            result = run_sync(_train(labelled, grader, how, {**settings, "grader": grader}))
    except KeyboardInterrupt:
        warning("interrupted; what is finished is saved", "run the same command to resume")
        return INTERRUPTED
    if as_json:
        print_json(result.to_dict())
    else:
        _show(result)
    return OK if result.trusted else IMPERFECT


def _reward_config(
    base: str | None, lora: int | None, training: str | None, recipe: str | None, of_head: object
) -> RewardTrainingConfig | None:
    """Return how a reward model is trained; None if none is. Raises ConfigError, also if a head is
    to read something.
    """
    if of_head and (training or base):
        raise ConfigError(
            "--grader and --embeddings are what a head reads; a reward model (--base) reads text"
        )
    if training:
        known = RewardTrainingConfig.from_file(training)
        return replace(known, base=base or known.base, lora=lora or known.lora)
    if base:
        return RewardTrainingConfig(base, lora)
    if lora or recipe:
        raise ConfigError("--lora and --recipe need --base MODEL, the model to train")
    return None


def _write_recipe(labelled: LabelledCases, base: str, how: Mapping[str, Any]) -> Path:
    given = {key: how[key] for key in ("held_out", "scale", "lower_is_better")}
    to_fit, measured = api.split_labels(labelled, **given)
    to_train, to_validate = ([case.task for case in part] for part in (to_fit, measured.cases))
    grader = load_grader(how["name"])
    folder = grader_folder(how["name"])
    name = f"trained:{folder.resolve()}" if "/" in how["name"] else grader.name
    return write_verl_recipe(folder, name, base, to_train, to_validate)


def _train_reward_model(
    labelled: LabelledCases, config: RewardTrainingConfig, how: Mapping[str, Any], cards: str | None
) -> RewardTrainingResult:
    bar = Progress(console=console(stderr=True))
    task = bar.add_task("training", total=None)
    display = make_display(bar.get_renderable, write=message_writer())

    def show_pairs(pairs: int, prompts: int) -> None:
        notice(f"{pluralize(pairs, 'pair')} of answers to {pluralize(prompts, 'prompt')}")

    def show_step(step: int, steps: int, loss: float) -> None:
        bar.update(task, completed=step, total=steps)
        facts = {"step": step, "of": steps, "loss": loss}
        display.show_progress(
            f"step {step:,} of {steps:,}, loss {loss:.3f}", "training", lambda: facts
        )

    with display:
        return train_reward_model(
            labelled, config, cards_dir=cards, on_pairs=show_pairs, on_step=show_step, **how
        )


async def _train(
    labelled: LabelledCases,
    graders: tuple[str, ...],
    how: Mapping[str, Any],
    settings: OptionValues,
) -> api.TrainingResult:
    model = await find_judge(settings["judge"], settings["model"])
    announce_sources(model)
    given: Any = {**how, **judging_settings(settings)}
    bar = Progress(console=console(stderr=True))
    task = bar.add_task("grading", total=None)
    display = make_display(bar.get_renderable, write=message_writer())

    def show(done: int, total: int) -> None:
        bar.update(task, completed=done, total=total)
        facts = {"graded": done, "of": total}
        display.show_progress(f"{done:,} of {total:,} answers graded", "graded", lambda: facts)

    with display:
        return await api.train(labelled, graders, model or False, on_answer=show, **given)


def _show(result: api.TrainingResult | RewardTrainingResult) -> None:
    """Print whether the grader may be trusted, what it is compared with, and how it is used."""
    out, card = console(stderr=False), result.validation.card
    if result.trusted:
        out.print(text_line("better than chance", "bold green"))
    else:
        out.print(text_line("not shown to be better than chance", "bold red"))
    out.print(text_line(f"{card.grader}: {format_headline(card.headline)}", "bold"))
    if isinstance(result, RewardTrainingResult):
        _show_model(result)
    else:
        _show_head(result)
    out.print(text_line(f"card: {result.validation.card_folder / 'card.md'}", "dim"))


def _show_head(result: api.TrainingResult) -> None:
    out = console(stderr=False)
    for reason, times in result.lost.items():
        warning(f"{pluralize(times, 'answer')} not graded: {reason}")
    for name in result.unused:
        warning(f"the head does not read {name}: it gives too few scores")
    out.print(_comparison(result))
    out.print(text_line(_advice(result)))
    out.print(text_line(f"graded once: {format_usage(result.usage)}"))
    notice(f"fitted to {result.fitted} labels: --grader {result.grader.name}")


def _show_model(result: RewardTrainingResult) -> None:
    out, last = console(stderr=False), dict[str, float]()
    for each in result.losses:
        last |= each
    loss = f"loss {last['loss']:.3f}" if "loss" in last else "loss unknown"
    others = f", {last['eval_loss']:.3f} on labels that calibrate" if "eval_loss" in last else ""
    out.print(text_line(f"{loss}{others}: `redraft view {result.grader.name}` shows the curves"))
    if result.too_long:
        warning(f"{pluralize(result.too_long, 'answer')} not graded: too long")
    if result.served_grader:
        model = shlex.quote(str(result.folder / "model"))
        out.print(text_line(f"served: vllm serve {model} --runner pooling"))
        out.print(text_line(f"        --grader {shlex.quote(result.served_grader)}"))
    notice(f"trained on {pluralize(result.pairs, 'pair')}: --grader {result.grader.name}")


def _comparison(result: api.TrainingResult) -> Table:
    """Return the trained grader and the best grader alone on the held-out labels, and the log loss
    of all.
    """
    card, best = result.validation.card, result.best_single
    measures = {api.HEAD: card.headline, best: result.single}
    headings = ("grader", card.headline.name, "95%", "n", "log loss")
    return figure_table(
        headings,
        (
            (
                card.grader if name == api.HEAD else name,
                *(measure_cells(measure)[1:4] if (measure := measures.get(name)) else ("",) * 3),
                f"{loss:.3f}",
            )
            for name, loss in result.losses.items()
        ),
        headings[1:],
    )


def _advice(result: api.TrainingResult) -> str:
    """Return whether the head is worth more than its best part alone, in words."""
    best, gain = result.best_single, result.gain
    if gain is None:
        return "no grader alone says anything about the labels"
    if gain.interval and gain.interval[0] > 0:
        low, high = gain.interval
        return (
            f"on other labels the head predicts better than {best} alone, calibrated: its log "
            f"loss is lower by {gain.value:.3f} ({low:.3f} to {high:.3f})"
        )
    return (
        f"not shown to predict better than {best} alone, calibrated: `redraft validate` "
        "calibrates it, and there is nothing to train"
    )
