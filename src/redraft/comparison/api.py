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
from ..validation.statistics import WinRate, check_dependencies
from .estimates import ComparisonSettings, PairedScores, build_report
from .labels import read_labels
from .report import ComparisonReport
from .results import PairedResults, RunResults, pair_results, with_shares_of_wins
from .variants import (
    DEFAULT_JOURNAL,
    OWN_SETTINGS,
    ComparisonRun,
    ranks_answers,
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
    run = open_comparison(
        options,
        settings,
        tasks=tasks,
        graders=graders,
        judge=judge,
        model=model,
        lower_is_better=lower_is_better,
    )
    if tasks is not None:
        sides = await run.results_of((a, b), tasks, model)
    else:
        sides = await run.results_in(
            (a, b), score=score, columns=result_columns, labelled=labels is not None
        )
        if graders is None:
            options = replace(options, lower_is_better=is_any_lower(sides, stated=lower_is_better))
    paired, wins = await paired_runs(run, sides, options)
    found = None
    if labels is not None:
        found = read_labels(labels, paired.pairs, columns=label_columns, scale=label_scale)
    return build_report(paired, options, labels=found, wins=wins, usage=run.usage)


compare_sync = async_to_sync(compare)
"""Call `compare` without await. It also works where an event loop is running."""


async def paired_runs(
    run: ComparisonRun, sides: Sequence[RunResults], options: ComparisonSettings
) -> tuple[PairedResults, WinRate | None]:
    """Return two runs row by row; if the grader compares answers, with the shares of wins as
    scores, and the win rate.
    """
    ranks = ranks_answers(run.graders)
    paired = pair_results(sides[0], sides[1], scored=not ranks)
    if not ranks:
        return paired, None
    clusters = PairedScores(paired.pairs, options).clusters
    wins = await run.win_rate(paired, clusters, options.level)
    return with_shares_of_wins(paired, run.shares_of_wins), wins


def open_comparison(
    options: ComparisonSettings,
    settings: BatchSettings,
    *,
    tasks: Any,
    graders: Any,
    judge: Any,
    model: Any,
    lower_is_better: bool | None,
) -> ComparisonRun:
    """Return what runs the variants and grades their answers. Raises ConfigError for arguments that
    are wrong, before any file is read.
    """
    check_dependencies()
    checks.flag("lower_is_better", lower_is_better, optional=True)
    if lower_is_better is not None and (tasks is not None or graders is not None):
        raise ConfigError(
            "lower_is_better has no effect on scores of graders: higher is better; it is about "
            "scores in result files"
        )
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
    if ranks_answers(graders) and options.anytime:
        raise ConfigError(
            "anytime: a win rate has no interval that is valid at any time; compare scores"
        )
    journal = Path(settings.get("journal") or DEFAULT_JOURNAL)
    return ComparisonRun(journal, graders, judge, _batch_settings(settings))


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


def _column_names(slices: Any) -> tuple[str, ...]:
    names = (slices,) if isinstance(slices, str) else tuple(slices)
    for name in names:
        checks.text("slices", name)
    return names


def is_any_lower(sides: Sequence[RunResults], *, stated: bool | None) -> bool:
    """Return whether lower scores are better in one of the runs. Raises ConfigError for a name that
    leaves it open.
    """
    names = ["" if side.is_own_grade else side.score_name for side in sides]
    directions = [is_lower_better(name, stated=stated) for name in names]
    return any(directions)
