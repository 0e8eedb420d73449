"""`compare` and `compare_sync`: whether B is better than A."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack, cast

from ..base import checks
from ..base.sync import async_to_sync
from ..errors import ConfigError
from ..plans.quality.calibration import check_confidence
from ..runs import BatchSettings
from ..session.options import Options
from ..settings import BATCH_DEFAULTS, Settings
from ..validation.cases import is_lower_better
from ..validation.statistics import check_dependencies
from .estimates import ComparisonSettings, PairedScores, build_report
from .labels import read_labels
from .readers import read_results
from .report import ComparisonReport
from .results import RunResults, check_scales, pair_results, with_shares_of_wins
from .variants import (
    DEFAULT_JOURNAL,
    OWN_SETTINGS,
    ComparisonRun,
    ranks_answers,
    reread,
)


async def compare(
    a: Any,
    b: Any,
    tasks: Any = None,
    *,
    labels: Any = None,
    model: Any = None,
    graders: Any = None,
    judge: Any = None,
    score: str = "",
    lower_is_better: bool | None = None,
    result_columns: Mapping[str, str] | None = None,
    label_columns: Mapping[str, str] | None = None,
    label_scale: tuple[float, float] | None = None,
    cluster: str | None = None,
    slices: Sequence[str] = (),
    margin: float | None = None,
    level: float = 0.95,
    anytime: bool = False,
    **settings: Unpack[BatchSettings],
) -> ComparisonReport:
    """Return whether B is better than A, worse, or undecided: paired, with an interval.

    Args:
        a: The results of a run, usually the present state: a file (see `read_results`), the report
            of a batch, or rows. With `tasks`: a model, the path of a prompt template, or a mapping
            of settings of `batch`, such as {"model": "openai:gpt-4o-mini", "temperature": 0}.
        b: The same for what may replace it.
        tasks: A data set, as in `batch`. Both variants answer its tasks, and the same graders grade
            the answers.
        labels: Labels of people on some of the answers: a file, several files, or rows (see the
            guide). The verdict is then about what people say, whatever the bias of the graders. The
            labelled rows must be a random sample; of the files of `redraft label`, those that were
            drawn at random count.
        model: The model that answers, for variants that name none.
        graders: As in `refine`. Without `tasks`, the answers of both runs are graded anew by these.
            A grader that compares answers, such as "pairwise", sees each pair in both orders and
            gives the win rate.
        judge: The model that graders ask. One model judges both runs.
        score: The name of the score in result files; "" for the usual or the only one.
        lower_is_better: Whether lower scores of the result files are better, such as error rates.
            None: higher ones are, and a name such as "wer", "perplexity" or "latency" is an error
            that asks which it is.
        result_columns: The columns of tables of results by role, if their names do not say it: id,
            prompt, messages, response.
        label_columns: The columns of the labels by role, as in `redraft.validation.validate`.
        label_scale: The lowest and the highest label, such as (1, 5); None: that of `redraft
            label`, or from 0 to 1.
        cluster: A column of what several rows have in common, such as their document; they do not
            count as independent. Default: rows of equal tasks (prompt, context and reference) are
            one cluster, whatever their IDs. "id" counts each ID.
        slices: Columns, such as a topic, whose values are compared one by one, with intervals that
            hold for all values of all of these columns at once.
        margin: The loss that does not matter, in the unit of what the verdict is about: scores,
            labels from 0 to 1, or the share of wins. Default: 0.02, but none for scores that are
            not from 0 to 1.
        level: The confidence of the intervals.
        anytime: Whether the verdict shall hold although it is looked at after every row. Rows must
            be in random order.
        **settings: The settings of `batch`, for `tasks` and `graders`. `max_iterations` is 0 by
            default, so that first answers are compared. `journal` (default: compare.journal) keeps
            every call, so that a second comparison repeats none. The budget and the deadline are
            those of the whole comparison. `on_progress` is called with the progress of one batch
            after the other, of A and of B, then with that of the pairs that a grader compares.

    Raises:
        ConfigError: An argument or a file is wrong, or the runs have no row in common.
        GradingError: A run ended early, or nothing could be graded.
        BudgetExhaustedError: The budget or the time ran out; the same call resumes.
    """
    options = ComparisonSettings(cluster, _column_names(slices), margin, level, anytime)
    checks.flag("lower_is_better", lower_is_better, optional=True)
    if lower_is_better is not None and (tasks is not None or graders is not None):
        raise ConfigError(
            "lower_is_better has no effect on scores of graders: higher is better; it is about "
            "scores in result files"
        )
    _check(options, settings, tasks=tasks, graders=graders, judge=judge, model=model)
    run = ComparisonRun(
        Path(settings.get("journal") or DEFAULT_JOURNAL), graders, judge, _batch_settings(settings)
    )
    ranks = ranks_answers(graders)
    if tasks is not None:
        sides = await _run_variants(run, (a, b), reread(tasks), model, ranks=ranks)
    else:
        sides = [read_results(source, score=score, columns=result_columns) for source in (a, b)]
        if graders is None:
            is_lower = _is_lower_better(sides, stated=lower_is_better)
            options = replace(options, lower_is_better=is_lower)
        if labels is not None or graders is not None:
            sides = [results.with_tasks() for results in sides]
        sides = _with_own_names(sides, (a, b))
        if graders is not None and not ranks:
            sides = [await run.grade_anew(side, tag) for side, tag in zip(sides, "ab", strict=True)]
    paired = pair_results(*_with_own_names(sides, (a, b)), scored=not ranks)
    wins = None
    if ranks:
        wins = await run.win_rate(paired, PairedScores(paired.pairs, options).clusters, level)
        paired = with_shares_of_wins(paired, run.shares_of_wins)
    found = None
    if labels is not None:
        found = read_labels(labels, paired.pairs, columns=label_columns, scale=label_scale)
    return build_report(paired, options, labels=found, wins=wins, usage=run.usage)


compare_sync = async_to_sync(compare)
"""Call `compare` without await. It also works where an event loop is running."""


async def _run_variants(
    run: ComparisonRun, variants: Sequence[Any], tasks: Any, model: Any, *, ranks: bool
) -> list[RunResults]:
    """Have both variants answer the tasks, one after the other.

    If a grader compares the answers (`ranks`), what graded single answers says nothing.
    """
    run.check_judge(variants, tasks, model)
    sides = [await run.run(variant, tasks, model) for variant in variants]
    return [side.without_scores() for side in sides] if ranks else sides


def _check(
    options: ComparisonSettings,
    settings: BatchSettings,
    *,
    tasks: Any,
    graders: Any,
    judge: Any,
    model: Any,
) -> None:
    """Raise ConfigError for arguments that are wrong, before any file is read."""
    check_dependencies()
    check_confidence(options.level, "level")
    checks.number("margin", options.margin, optional=True)
    checks.flag("anytime", options.anytime)
    checks.text("cluster", options.clusters, optional=True)
    for name in settings:
        if name in OWN_SETTINGS and name != "journal":
            raise ConfigError(f"{name} is no argument of a comparison")
    if tasks is None and graders is None:
        given = {
            "judge": judge,
            "model": model,
            **{name: value for name, value in settings.items() if name != "journal"},
        }
        if unused := [name for name, value in given.items() if value is not None]:
            raise ConfigError(
                f"{unused[0]} has no effect on finished runs: give tasks to run, or graders to "
                "grade the answers anew"
            )
    elif tasks is None and model is not None:
        raise ConfigError(
            "model has no effect without tasks: the answers of finished runs are graded"
        )
    if options.anytime and ranks_answers(graders):
        raise ConfigError(
            "anytime: a win rate has no interval that is valid at any time; compare scores"
        )


def _batch_settings(settings: BatchSettings) -> BatchSettings:
    """Return the settings of a batch without the journal. Raises ConfigError for an invalid
    setting.
    """
    given = {name: value for name, value in settings.items() if name != "journal"}
    names = Options.__dataclass_fields__
    Options.from_settings(
        cast(
            "Settings", {**BATCH_DEFAULTS, **{name: given[name] for name in given if name in names}}
        )
    )
    return cast("BatchSettings", given)


def _is_lower_better(sides: Sequence[RunResults], *, stated: bool | None) -> bool:
    """Return whether lower scores of both runs are better. Raises ConfigError if that is not known,
    or their scales differ.
    """
    check_scales(*sides)
    names = ["" if side.is_own_grade else side.score_name for side in sides]
    lower = [is_lower_better(name, stated=stated) for name in names]
    return any(lower)


def _column_names(slices: Any) -> tuple[str, ...]:
    names = (slices,) if isinstance(slices, str) else tuple(slices)
    for name in names:
        checks.text("slices", name)
    return names


def _with_own_names(sides: Sequence[RunResults], sources: Sequence[Any]) -> list[RunResults]:
    """Return the runs with different names: those of equally named files are their paths, or A and
    B.
    """
    first, second = sides
    if first.name != second.name:
        return [first, second]
    paths = [str(source) for source in sources if isinstance(source, str | Path)]
    names = paths if len(set(paths)) == 2 else [f"{first.name} (A)", f"{second.name} (B)"]
    return [replace(side, name=name) for side, name in zip(sides, names, strict=True)]
