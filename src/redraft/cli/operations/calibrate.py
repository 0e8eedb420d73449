"""Learns priors from a stated number of calls on the tasks in a file, and shows what was found."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import click

from ...base.sync import run_sync
from ...base.text import pluralize
from ...loop.task import Task
from ...runs.config import columns_of
from ...runs.dataset import open_dataset
from ...runs.learning import LearnedPriors, calibrate
from ...settings import CalibrationSettings
from ...tables.readers import BadRow
from ...tables.sources import open_source
from ..errors import OK
from ..output import notice, warning
from ..request import (
    SharedArguments,
    load_graders,
    parameter_settings,
    parse_model,
    parse_prices,
)
from ..terminal import console, text_line

MAX_LISTED = 3  # unusable rows that are listed one by one


@dataclass(frozen=True, kw_only=True)
class CalibrateArguments(SharedArguments):
    """The arguments of `redraft priors calibrate`."""

    file: str
    calls: int
    save: bool
    column: tuple[str, ...] = ()


def run_command(values: Mapping[str, Any]) -> int:
    """Learn priors, show and perhaps save them, and return the exit code."""
    a = CalibrateArguments.from_values(values)
    settings = cast(
        "CalibrationSettings",
        {**a.settings, "prices": parse_prices(a.price), **parameter_settings(a)},
    )
    graders = load_graders(a.grader, a.rubric)
    tasks = read_tasks(a.file, dict(text.split("=", 1) for text in a.column))
    learned = run_sync(
        calibrate(
            tasks,
            parse_model(a.model),
            graders,
            parse_model(a.judge),
            calls=a.calls,
            say=notice,
            **settings,
        )
    )
    saved = learned.save() if a.save else None
    if a.as_json:
        click.echo(json.dumps({**learned.as_data(), "saved": bool(saved)}, indent=2))
    else:
        show(learned)
    if saved and saved.priors != learned.priors:
        warning(
            f"priors learned from {pluralize(saved.priors.tasks, 'task')} stay saved",
            "`redraft priors forget` deletes them",
        )
    elif saved:
        notice(
            f"saved for runs with learned priors: redraft priors show {saved.priors_key.key[:8]}"
        )
    elif not a.as_json:
        notice("nothing is saved; --save saves the priors for runs with learned priors")
    return OK


def read_tasks(file: str, columns: Mapping[str, str]) -> list[Task]:
    """Return the tasks in the rows of a file; warn of rows that cannot be used. Raises
    ConfigError.
    """
    bad: list[BadRow] = []
    with tempfile.TemporaryDirectory() as folder:
        dataset = open_dataset(
            open_source(file, spool=Path(folder)),
            columns_of({role.replace("-", "_"): name for role, name in columns.items()}),
            "rename",
            None,
        )
        summary = dataset.summarize()
        tasks = [row.task for row in dataset.rows(summary.duplicates, bad.append)]
    for row in bad[:MAX_LISTED]:
        warning(f"left out: {row.location}: {row.message}")
    if len(bad) > MAX_LISTED:
        warning(f"left out: {pluralize(len(bad) - MAX_LISTED, 'more row')}")
    return tasks


def show(learned: LearnedPriors) -> None:
    """Print what was found."""
    out = console(stderr=False)
    for line in learned.summary():
        out.print(text_line(line), soft_wrap=True)
