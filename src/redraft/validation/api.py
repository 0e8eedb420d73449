"""`validate` and `validate_sync`: measure a grader against labelled data from Python, as `redraft
validate` does.
"""

from __future__ import annotations

from collections.abc import (
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import replace
from inspect import signature
from itertools import chain, islice
from pathlib import Path
from typing import Any, Unpack, cast

from ..base import checks
from ..base.sync import async_to_sync
from ..errors import ConfigError
from ..graders import FunctionGrader, WeightedMean
from ..graders.base import MAX_REPEATS, as_grader_spec
from ..graders.cards import CardStore
from ..session.models import Models
from ..session.options import Options
from ..session.panel import needs_judge
from ..session.refinement import resolve_model
from ..session.session import Session
from ..settings import Settings, ValidationSettings, check_names
from .attacks import Attack, read_attacks
from .cases import DIRECTION_OPTIONS, LabelKind, LabelledCase, is_lower_better
from .labelled import MAX_ROWS, LabelledCases, as_labelled_cases, read_cases
from .report import ReportConfig
from .run import (
    JudgedCase,
    LabelledData,
    LiveConfig,
    ValidationResult,
    validate_live,
)


async def validate(
    cases: Any,
    grader: Any,
    judge: Any = None,
    *,
    columns: Mapping[str, str] | None = None,
    kind: LabelKind | None = None,
    limit: int | None = None,
    repeats: int = 1,
    threshold: float = 0.5,
    scale: tuple[float, float] | None = None,
    lower_is_better: bool | None = None,
    attacks: str | Path | Iterable[str | Attack] = (),
    restart: bool = False,
    on_case: Callable[[JudgedCase], object] | None = None,
    **settings: Unpack[ValidationSettings],
) -> ValidationResult:
    """Have a grader judge labelled cases, and measure how far it agrees with the labels.

    Verdicts of graders that call a model are saved in the folder of cards as they arrive, so that
    the same call resumes an interrupted run, and no call is paid for twice. The card itself is
    saved by `save_card` of the result.

    Args:
        cases: Labelled rows: mappings, a DataFrame, the path of a file, or `LabelledCase`s.
            docs/validation.md lists the columns.
        grader: A name, the spec of a requirement, a function, a grader, or a list of these, whose
            weighted mean is measured.
        judge: The model that LLM graders ask, as in `refine`. None looks for one if the grader
            needs it; False means no model.
        columns: The columns by role, if their names do not say it, such as {"label":
            "human_score"}.
        kind: The kind of the labels; None recognises it.
        limit: How many rows to read; None means all.
        repeats: How often the grader judges each case, from 1 to 1000.
        threshold: The score from 0 to 1 from which a response passes.
        scale: The lowest and the highest number that people could give, to measure leniency. Labels
            of `redraft label` know it.
        lower_is_better: Whether lower labels are better, such as error rates or ranks; they are
            then mirrored on their scale. None: higher ones are, and a column such as "wer",
            "perplexity" or "toxicity" is an error that asks which it is.
        attacks: Texts that are added to worse responses to measure how often they change the
            verdict, or a file of them.
        restart: Whether to set saved verdicts aside and judge everything again.
        on_case: Called with each case that was judged.
        **settings: Any of `budget`, `deadline`, `timeout`, `retries`, `max_in_flight`, `cache`,
            `prices`, `sandbox`, `packages`, `trust_in_process` and `cards_dir` (the folder of
            cards), as in `refine`.

    Returns:
        The measures with their intervals, and whether the grader is better than chance.

    Raises:
        ConfigError: An argument is wrong, or no row can be understood. Raised before any call.
        GradingError: Nothing could be judged.
        StoreError: The verdicts cannot be saved.
    """
    check_names("validate", settings, ARGUMENTS)
    options = Options.from_settings(cast("Settings", settings))
    checks.whole_number("repeats", repeats, 1, MAX_REPEATS)
    checks.share("threshold", threshold)
    checks.flag("restart", restart)
    if not (on_case is None or callable(on_case)):
        raise checks.invalid_argument("on_case", "a function of a judged case, or None", on_case)
    labelled = labelled_cases(cases, columns or {}, kind, limit)
    labelled = in_direction(labelled, lower_is_better=lower_is_better, scale=scale)
    config = LiveConfig(repeats, _as_attacks(attacks), restart, on_case)
    async with await open_session(grader, judge, options) as session:
        data = labelled_data(labelled, threshold, scale)
        cards = CardStore.in_folder(options.cards_dir)
        result = await validate_live(data, session, cards, _without_stale_verdicts(config, session))
    skipped = tuple(f"{row.location}: {row.message}" for row in labelled.skipped_rows)
    return replace(result, skipped=skipped, column_notes=labelled.column_notes)


ARGUMENTS = tuple(name for name in signature(validate).parameters if name != "settings")


validate_sync = async_to_sync(validate)
"""Call `validate` without await. It also works where an event loop is running."""


def labelled_cases(
    cases: Any, columns: Mapping[str, str], kind: LabelKind | None, limit: int | None
) -> LabelledCases:
    """Return labelled cases: as they are, or read from rows. Raises ConfigError."""
    if isinstance(cases, LabelledCases):
        return cases
    checks.whole_number("limit", limit, 1, MAX_ROWS, optional=True)
    first, cases = _peek(cases)
    if not isinstance(first, LabelledCase):
        return read_cases(cases, columns, kind=kind, limit=limit)
    chosen = list(islice(cases, limit))
    if wrong := next((case for case in chosen if not isinstance(case, LabelledCase)), None):
        raise checks.invalid_argument("cases", "a list of LabelledCases, or of rows", wrong)
    return as_labelled_cases(chosen)


def in_direction(
    labelled: LabelledCases,
    *,
    lower_is_better: bool | None,
    scale: tuple[float, float] | None = None,
) -> LabelledCases:
    """Return cases whose higher labels are better, as `validate` takes them. Raises ConfigError if
    that is not known.
    """
    checks.flag("lower_is_better", lower_is_better, optional=True)
    _check_scale(scale)
    way = (
        DIRECTION_OPTIONS
        if labelled.kind == "score"
        else "by what values mean, such as label:1=fail, or by --higher-is-better"
    )
    is_lower = is_lower_better(labelled.label_name, stated=lower_is_better, way=way)
    return labelled.with_lower_better(scale) if is_lower else labelled


def _peek(cases: Any) -> tuple[Any, Any]:
    """Return the first of the cases, or None if that is not known, and all of them. Raises
    ConfigError for an empty list.
    """
    if isinstance(cases, str | bytes | Path | Mapping) or not isinstance(cases, Iterable):
        return None, cases
    items = iter(cases)
    for first in items:
        return first, chain([first], items) if items is cases else cases
    if isinstance(cases, Sequence | Iterator):
        raise ConfigError("cases: there is none to judge")
    return None, cases


def labelled_data(
    labelled: LabelledCases, threshold: float = 0.5, scale: tuple[float, float] | None = None
) -> LabelledData:
    """Return cases with how labels and scores are read. Raises ConfigError for a scale that is
    none.
    """
    _check_scale(scale)
    known = (float(scale[0]), float(scale[1])) if scale else labelled.label_scale
    config, skipped = (
        ReportConfig(threshold, known, benchmark=labelled.benchmark),
        len(labelled.skipped_rows),
    )
    about = (
        labelled.name,
        labelled.sha256,
        skipped,
        config,
        labelled.column_list,
        labelled.repeated_rows,
    )
    return LabelledData(labelled.cases, *about)


def _check_scale(scale: Any) -> None:
    if scale is not None and not (
        isinstance(scale, tuple | list)
        and len(scale) == 2
        and all(map(checks.is_number, scale))
        and scale[0] < scale[1]
    ):
        raise checks.invalid_argument(
            "scale", "the lowest and the highest label, such as (1, 5)", scale
        )


def _as_attacks(attacks: Any) -> list[Attack]:
    if isinstance(attacks, str | Path):
        return read_attacks(attacks)
    texts: list[Any] = list(attacks) if isinstance(attacks, Iterable) else [None]
    if not all(isinstance(attack, str | Attack) for attack in texts):
        raise checks.invalid_argument("attacks", "the path of a file, or a list of texts", attacks)
    return [attack if isinstance(attack, Attack) else Attack(attack) for attack in texts]


async def open_session(grader: Any, judge: Any, options: Options) -> Session:
    """Return a session with a single grader; without a `judge`, a model is looked for only if the
    grader calls one.
    """
    if grader is None or (isinstance(grader, list | tuple) and not grader):
        raise checks.invalid_argument(
            "grader", "a grader, such as 'helpfulness' or a function of a text", grader
        )
    if isinstance(grader, list | tuple):
        specs = list(map(as_grader_spec, grader))
        if any(spec.must for spec in specs):
            raise ConfigError(
                "grader: a hard constraint (must) is not part of a mean: validate it alone"
            )
        grader = (
            WeightedMean([(spec.grader, spec.weight) for spec in specs])
            if len(specs) != 1
            else specs[0]
        )
    if judge is None and not needs_judge(grader):
        judge = False
    return Session(options, Models(options, judge=await resolve_model(judge)), grader)


def _without_stale_verdicts(config: LiveConfig, session: Session) -> LiveConfig:
    """Return the configuration; functions that call no model are run again, since what they call
    may have changed.
    """
    panel, roles = session.resolve_panel(())
    grader = roles.traits[panel[0].name].grader
    return replace(
        config, restart=config.restart or (isinstance(grader, FunctionGrader) and grader.model_free)
    )
