"""What grades given answers, and `redraft grade --as-rewards`: rewards of recorded rollouts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, groupby, islice
from math import isfinite
from typing import Any, NamedTuple

import click

from ..answers import as_answer_form
from ..base.jsontext import dumps
from ..base.sync import run_sync
from ..errors import ConfigError
from ..loop.task import Task
from ..models import connect
from ..requirements.spec import check_foreign_spec
from ..rewards import ResponseReward, RewardFunction, RewardSample, agreement_of
from ..session.panel import default_judge_note, graders_for_tasks, needs_judge
from ..settings import GradeSettings
from ..tables import BadRow, Row, infer_columns, iter_rows
from .exit_codes import FAILED, OK
from .options import OptionValues
from .output import notice, warning
from .request import (
    announce_sources,
    answer_of,
    canonical_requirements,
    check_judge_params,
    find_judge,
    graders_of,
    grading_settings,
    parse_model,
    report_unused_prices,
)

CHUNK_ROWS = 1_000  # that are graded together, of a file without steps
MAX_COMPARED = 1_000  # of the last, each of which is compared with each
RECORDED = ("reward", "score")  # columns with what the training run used
STEP = "step"


class FoundGraders(NamedTuple):
    """What the options name: the graders, the judge (False: none), the form of answers, and the
    settings.
    """

    graders: Any
    judge: Any
    form: Any
    settings: GradeSettings


async def find_graders(tasks: Sequence[Task], settings: OptionValues) -> FoundGraders:
    """Return what grades these tasks. A model is looked for only if a grader asks one. Raises
    ConfigError.
    """
    judge, form = parse_model(settings["judge"]), answer_of(settings)
    graders = graders_for_tasks(graders_of(settings), judge, as_answer_form(form), tasks)
    grading = grading_settings(settings)
    check_judge_params(graders)
    if needs_judge(graders):
        judge = await find_judge(settings["judge"], settings["model"]) or False
        report_unused_prices(grading.get("prices"), None, judge)
    else:
        judge = False
    announce_sources(judge)
    if graders is None:
        if not judge:
            raise ConfigError(
                "there is nothing to grade with: give --require SPEC, --grader NAME or a --model "
                "to judge"
            )
        notice(default_judge_note(connect(judge).name))
    return FoundGraders(graders, judge, form, grading)


class _Rollout(NamedTuple):
    """A row of a training run, and the reward that it was given then, None if that is unknown."""

    values: Mapping[str, Any]
    task: Task
    recorded: float | None


def reward_rows(file: str, settings: OptionValues) -> int:
    """Write the reward of each row as a line of JSON to stdout, and a summary to stderr; return the
    exit code. Raises ConfigError, and BudgetExhaustedError once what was graded is written.

    Rows with one prompt are a group for graders that rank, those of each step by themselves.
    """
    bad: list[BadRow] = []
    rollouts = _read_rollouts(iter_rows(file, bad.append), settings["require"])
    first = list(islice(rollouts, CHUNK_ROWS))
    found = run_sync(find_graders([each.task for each in first], settings))
    if found.form is not None:
        raise click.UsageError("--as-rewards has no --answer and no --schema")
    function = RewardFunction(found.graders, found.judge, groups=True, **found.settings)
    rewards: list[tuple[float | None, float | None]] = []
    shortage = None
    try:
        for chunk in _chunks(chain(first, rollouts)):
            graded = function.paid_rewards([RewardSample(each.task) for each in chunk])
            for rollout, reward in zip(chunk, graded, strict=True):
                click.echo(_line(rollout, reward))
                rewards.append((rollout.recorded, reward.value))
            if shortage := next((each.shortage for each in graded if each.shortage), None):
                break
    finally:
        function.close()
    for row in bad:
        warning(f"{row.location}: {row.message}")
    notice(_summary(rewards))
    if shortage:
        raise shortage
    return FAILED if bad or any(reward is None for _, reward in rewards) else OK


def _read_rollouts(rows: Iterable[Row], require: Sequence[str]) -> Iterator[_Rollout]:
    """Yield the rows; one with a blank answer is a task without a response. Raises ConfigError."""
    rows, added = iter(rows), canonical_requirements(require)
    first = list(islice(rows, CHUNK_ROWS))
    if not first:
        raise ConfigError("the file has no row that can be read")
    mapping = infer_columns([row.values for row in first], check_requirement=check_foreign_spec)
    for row in chain(first, rows):
        try:
            task = mapping.task(row.values)
        except ValueError as error:
            raise ConfigError(f"{row.location}: {error}") from error
        task = replace(task, requirements=tuple(dict.fromkeys([*task.requirements, *added])))
        yield _Rollout(row.values, task, _recorded_reward(row.values))


def _recorded_reward(values: Mapping[str, Any]) -> float | None:
    value: Any = next((values[name] for name in RECORDED if name in values), None)
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if isfinite(number) else None


def _chunks(rollouts: Iterable[_Rollout]) -> Iterator[list[_Rollout]]:
    """Yield the rollouts of each step, in which those of a prompt may stand anywhere. Of rows
    without a step, at least `CHUNK_ROWS` at once, to the last in a row with the same prompt.
    """
    for step, of_step in groupby(rollouts, lambda rollout: rollout.values.get(STEP)):
        chunk: list[_Rollout] = []
        for _, of_prompt in groupby(of_step, lambda rollout: rollout.task.messages):
            chunk += of_prompt
            if step is None and len(chunk) >= CHUNK_ROWS:
                yield chunk
                chunk = []
        if chunk:
            yield chunk


def _line(rollout: _Rollout, reward: ResponseReward) -> str:
    line = {"id": rollout.task.id, STEP: rollout.values.get(STEP)}
    known = {name: value for name, value in line.items() if value is not None}
    graded = {"reward": reward.value, "parts": dict(reward.parts), "reason": reward.reason}
    return dumps({**known, **graded}).decode()


def _summary(rewards: Sequence[tuple[float | None, float | None]]) -> str:
    """Return how many rewards there are, their mean, and how far the recorded ones agree."""
    known = [reward for _, reward in rewards if reward is not None]
    both = [
        (recorded, reward)
        for recorded, reward in rewards[-MAX_COMPARED:]
        if recorded is not None and reward is not None
    ]
    agreement = agreement_of(both)
    parts = [f"{len(rewards):,} rewards"]
    if known:
        parts.append(f"mean {sum(known) / len(known):.3f}")
    if len(known) < len(rewards):
        parts.append(f"{len(rewards) - len(known):,} unknown")
    if agreement:
        parts.append(
            f"they order {agreement.share:.0%} of pairs of answers as the recorded rewards do"
        )
    return " · ".join(parts)
