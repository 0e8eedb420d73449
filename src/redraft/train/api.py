"""`train` and `train_sync`: fit a grader to labels of people, and measure it on others.

Every labelled answer is graded once, by all graders. Whole clusters are held out before anything is
fitted: the card is about them alone, and no caller can leave it out. Replies of models are kept
beside the grader until it is finished, so that the same call resumes an interrupted one.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from inspect import signature
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack, cast

from ..base import checks
from ..base.sync import async_to_sync
from ..errors import ConfigError, GradingError
from ..graders.base import gather_or_cancel
from ..graders.cards import MIN_ROWS, CardStore, Measure
from ..graders.traits import check_environments
from ..loop.records import Candidate, Failure, Feedback, Record, StopReason
from ..loop.steps import Grade
from ..session.options import Options
from ..session.panel import needs_judge
from ..session.perform import make_performer
from ..session.refinement import resolve_model
from ..session.session import Session
from ..settings import Settings, ValidationSettings, check_names
from ..storage import Journal
from ..storage.secure_files import make_folder
from ..usage import NO_USAGE, Usage
from ..validation.api import in_direction, labelled_cases, labelled_data, open_session
from ..validation.cases import LabelKind, LabelledCase, Verdict
from ..validation.report import cluster_of
from ..validation.run import GraderHarness, LabelledData, ValidationResult, validate_recorded
from ..validation.statistics import (
    PairedDifference,
    check_dependencies,
    group_values,
    paired_difference,
)
from .features import CRITERION, FeatureReader, features_of, graders_of
from .grader import CONFIG, HEAD_SCHEMA, TrainedGrader, grader_folder, save_grader
from .head import Features, Head, HeadScore

if TYPE_CHECKING:
    from .fitting import FittedHead, Target

HELD_OUT = 0.3
MIN_KNOWN = 0.9  # a feature is used if so large a share of the answers has it
MAX_LOST = 0.5  # the share of answers without features from which nothing is fitted
MAX_REASON_CHARS = 300
REPLIES = "replies.db"  # of models, until the grader is finished
HEAD = "head"
LIVE = "live"  # the source of a card


@dataclass(frozen=True)
class TrainingResult:
    """A trained grader, and how far it agrees with labels that were held out.

    Attributes:
        grader: The grader, which is stored and used as "trained:NAME".
        folder: The folder of the grader.
        validation: Its validation on the held-out labels; its card is saved.
        losses: The mean log loss of each grader alone, calibrated, and of the head ("head"), in
            cross-validation on the labels that are not held out; lower is better.
        single: What decides about trust, of `best_single` alone, calibrated, on the held-out
            labels; None if no grader alone can be calibrated.
        gain: By how much the loss of the head is lower than that of `best_single`, with an
            interval; None if no grader alone can be calibrated.
        fitted: How many rows the head was fitted to.
        unused: The graders that the head does not read, since they give no score for more than a
            tenth of the answers.
        lost: The answers that could not be graded, by reason.
        usage: The usage of all calls.
    """

    grader: TrainedGrader
    folder: Path
    validation: ValidationResult
    losses: Mapping[str, float]
    single: Measure | None
    gain: PairedDifference | None
    fitted: int
    unused: tuple[str, ...]
    lost: Mapping[str, int]
    usage: Usage

    @property
    def trusted(self) -> bool:
        """Whether the grader is better than chance, with 95% confidence."""
        return self.validation.trusted

    @property
    def best_single(self) -> str:
        """The grader that predicts labels best alone; "" if none can."""
        return _best_single(self.losses)

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain data that `json.dumps` accepts."""
        return {
            "grader": self.grader.name,
            "folder": str(self.folder),
            "fitted": self.fitted,
            "unused": list(self.unused),
            "lost": dict(self.lost),
            "losses": dict(self.losses),
            "best_single": self.best_single,
            "single": self.single and asdict(self.single),
            "gain": self.gain and asdict(self.gain),
            "usage": asdict(self.usage),
            "card": self.validation.to_dict(),
        }


async def train(
    cases: Any,
    graders: Sequence[str],
    judge: Any = None,
    *,
    name: str,
    embeddings: str | None = None,
    held_out: float = HELD_OUT,
    columns: Mapping[str, str] | None = None,
    kind: LabelKind | None = None,
    limit: int | None = None,
    scale: tuple[float, float] | None = None,
    lower_is_better: bool | None = None,
    on_answer: Callable[[int, int], object] | None = None,
    **settings: Unpack[ValidationSettings],
) -> TrainingResult:
    """Fit a grader to labels of people, store it as "trained:NAME", and measure it on labels that
    were held out.

    Args:
        cases: Labelled rows, as in `validate`.
        graders: Names or SPECs of graders that score one answer. Their scores, and those of their
            criteria, are what the head reads.
        judge: The model that LLM graders ask, as in `validate`. The card is about this one.
        name: The name of the grader, or the path of its folder.
        embeddings: A model of a /v1/embeddings endpoint whose vectors the head reads, too, such as
            "openai:text-embedding-3-small".
        held_out: The share of the labels that are held out, from 0.1 to 0.5; whole clusters are.
        columns: As in `validate`, and so are `kind`, `limit`, `scale` and `lower_is_better`.
        kind: See `columns`.
        limit: See `columns`.
        scale: See `columns`. None: the range of the labels.
        lower_is_better: See `columns`.
        on_answer: Called after each graded answer with how many are graded, and of how many.
        **settings: As in `validate`.

    Returns:
        The grader with its card, which is saved.

    Raises:
        ConfigError: An argument is wrong, or there are too few labels. Raised before any call.
        GradingError: More than half of the answers could not be graded, or nothing that the graders
            say differs between them.
        BudgetExhaustedError: The budget ran out; the same call goes on with the replies so far.
        StoreError: The grader or its card cannot be saved.
    """
    check_names("validate", settings, ARGUMENTS)
    options = Options.from_settings(cast("Settings", settings))
    checks.number("held_out", held_out, 0.1, 0.5)
    check_dependencies()
    folder, specs = grader_folder(name), tuple(graders)
    if (folder / CONFIG).exists():
        raise ConfigError(f"{folder} has a reward model: choose another name, or remove the folder")
    fit_cases, measured = split_labels(
        cases, held_out, columns, kind, limit, scale=scale, lower_is_better=lower_is_better
    )
    reader = FeatureReader(graders_of(specs, embeddings))
    judge = (await resolve_model(judge) or False) if needs_judge(reader) else False
    async with await open_session(reader, judge, options) as session:
        session.resolve_panel(())  # what is wrong is an error before anything is stored
    with _stored_replies(folder, options) as with_replies:
        async with await open_session(reader, judge, with_replies) as session:
            answers = await _read_answers([*fit_cases, *measured.cases], session, on_answer)
    names = _known_features(answers.features.values())
    complete = [case for case in fit_cases if _case_features(case, answers.features, names)]
    heads = _fit_heads(complete, answers.features, names, measured.report_config.scale)
    losses = {each: fitted.loss for each, fitted in heads.items()}
    grader = TrainedGrader(reader.graders, heads[HEAD].head, f"trained:{name}")
    parts = {"graders": list(specs), "embeddings": embeddings}
    save_grader(folder, HEAD_SCHEMA, head=asdict(grader.head), **parts)
    async with await open_session(grader, judge, options) as session:
        result = validate_head(measured, session, answers.features, answers.usage)
    result.save_card()
    (folder / REPLIES).unlink(missing_ok=True)
    return TrainingResult(
        grader,
        folder,
        result,
        losses,
        *_best_alone(measured, answers.features, heads, result.card_store),
        fitted=len(complete),
        unused=tuple(sorted(answers.grader_names - set(names))),
        lost=answers.lost,
        usage=answers.usage,
    )


ARGUMENTS = tuple(name for name in signature(train).parameters if name != "settings")


train_sync = async_to_sync(train)
"""Call `train` without await. It also works where an event loop is running."""


def split_labels(
    cases: Any,
    held_out: float,
    columns: Mapping[str, str] | None = None,
    kind: LabelKind | None = None,
    limit: int | None = None,
    *,
    scale: tuple[float, float] | None,
    lower_is_better: bool | None,
) -> tuple[list[LabelledCase], LabelledData]:
    """Return the labelled cases to fit a grader to, and those that are held out, as `split_cases`
    does; `train` says what the arguments are. Raises ConfigError.
    """
    labelled = in_direction(
        labelled_cases(cases, columns or {}, kind, limit),
        lower_is_better=lower_is_better,
        scale=scale,
    )
    known_scale = scale or labelled.label_scale or labelled.scale
    _check_labels(labelled.cases, known_scale or (0.0, 1.0))
    data = labelled_data(labelled, scale=known_scale)
    fit_cases, held_out_cases = split_cases(data.cases, held_out)
    return fit_cases, replace(
        data,
        cases=held_out_cases,
        name=f"{data.name} (held out)",
        sha256=sha256(f"{data.sha256} {held_out}".encode()).hexdigest(),
    )


def _check_labels(cases: Iterable[LabelledCase], scale: tuple[float, float]) -> None:
    """Raise ConfigError for labels that nothing can be learned from, or that are off their
    scale.
    """
    labels = {case.label for case in cases if case.label is not None}
    if len(labels) == 1:
        raise ConfigError(f"all labels are {next(iter(labels)):g}: there is nothing to learn")
    low, high = scale
    if wrong := [label for label in labels if not low <= label <= high]:
        raise ConfigError(
            f"scale: {low:g} to {high:g} has no place for the label {wrong[0]:g}; name the lowest "
            "and the highest label that people could give"
        )


def split_cases(
    cases: Sequence[LabelledCase], held_out: float
) -> tuple[list[LabelledCase], list[LabelledCase]]:
    """Return the cases to fit, and about that share of them to measure; whole clusters are drawn.
    Raises ConfigError if there are too few of either.
    """
    by_cluster = group_values((cluster_of(case), case) for case in cases)
    names = list(by_cluster)
    random.Random(0).shuffle(names)
    to_fit, to_measure = list[LabelledCase](), list[LabelledCase]()
    for n, name in enumerate(names):
        is_enough = len(to_measure) >= held_out * len(cases) and n >= MIN_ROWS
        (to_fit if is_enough else to_measure).extend(by_cluster[name])
    if (left := len({cluster_of(case) for case in to_fit})) < MIN_ROWS:
        raise ConfigError(
            f"labels of {2 * MIN_ROWS} tasks are the fewest, {MIN_ROWS} to fit a grader and "
            f"{MIN_ROWS} to measure it; there are {len(names)}, of which {left} are left to fit"
        )
    return to_fit, to_measure


# ---- what the graders say


AnswerFeatures: TypeAlias = Mapping[tuple[str, int], Features]
"""The features of each graded answer, by its case and its number there."""


@dataclass
class _Answers:
    """What the graders said of the labelled answers, and of how many they said nothing, by
    reason.
    """

    features: dict[tuple[str, int], Features] = field(default_factory=dict)
    lost: Counter[str] = field(default_factory=Counter)
    usage: Usage = NO_USAGE

    @property
    def grader_names(self) -> set[str]:
        """The names of the graders that were asked."""
        return {
            name for each in self.features.values() for name in each.values if CRITERION not in name
        }

    def add(self, key: tuple[str, int], record: Record) -> None:
        """Add what a step left. Raises BudgetExhaustedError once the budget or the time is used
        up.
        """
        self.usage += record.usage
        if isinstance(record, Feedback):
            self.features[key] = features_of(
                vote for vote in record.votes if isinstance(vote, Feedback)
            )
        elif isinstance(record, Failure):
            if record.stop_reason in {StopReason.BUDGET, StopReason.DEADLINE}:
                raise record.as_error(f"{record.message}; the same command goes on from here")
            self.lost[record.message[:MAX_REASON_CHARS]] += 1


@contextmanager
def _stored_replies(folder: Path, options: Options) -> Iterator[Options]:
    """Return the options with a cache of replies in the folder, unless they have a cache."""
    if options.cache is not None:
        yield options
        return
    make_folder(folder)
    with Journal(folder / REPLIES) as journal:
        yield replace(options, cache=journal.response_cache)


async def _read_answers(
    cases: Sequence[LabelledCase], session: Session, on_answer: Callable[[int, int], object] | None
) -> _Answers:
    """Have all answers graded. Raises GradingError if most of them cannot be."""
    harness, answers = GraderHarness(session), _Answers()
    check_environments(harness.roles.traits.values())
    seconds = session.options.deadline
    perform = make_performer(harness.roles, None if seconds is None else monotonic() + seconds)
    keys = [(case, n) for case in cases for n in range(len(case.responses))]
    slots = asyncio.Semaphore(session.options.max_in_flight)

    async def grade(case: LabelledCase, n: int) -> None:
        async with slots:
            step = Grade(harness.panel_grader.name, case.task, Candidate(n, case.responses[n]))
            answers.add((case.id, n), await perform(step))
            if on_answer:
                on_answer(len(answers.features) + answers.lost.total(), len(keys))

    await gather_or_cancel(grade(*key) for key in keys)
    if answers.lost.total() > MAX_LOST * len(keys):
        reason, times = answers.lost.most_common(1)[0]
        raise GradingError(
            f"{answers.lost.total()} of {len(keys)} answers could not be graded; {times} x: "
            f"{reason}",
            usage=answers.usage,
        )
    return answers


# ---- heads


def _known_features(answers: Iterable[Features]) -> list[str]:
    """Return the names of the features that most answers have."""
    known = Counter(
        name for each in answers for name, value in each.values.items() if value is not None
    )
    most = max(known.values(), default=0)
    return [name for name, count in known.items() if count >= MIN_KNOWN * most]


def _case_features(
    case: LabelledCase, features: AnswerFeatures, names: Iterable[str]
) -> list[Features] | None:
    """Return the features of all answers of a case; None if some are unknown."""
    found = [features.get((case.id, n)) for n in range(len(case.responses))]
    complete = [f for f in found if f and None not in map(f.values.get, names)]
    return complete if len(complete) == len(found) else None


def _fit_heads(
    cases: Sequence[LabelledCase],
    features: AnswerFeatures,
    names: Sequence[str],
    scale: tuple[float, float] | None,
) -> dict[str, FittedHead]:
    """Return the head, as HEAD, and for each grader alone the head that calibrates it."""
    from .fitting import fit_head  # it needs an extra

    answers, targets = head_targets(cases, features, names, scale)
    heads = {HEAD: fit_head(answers, targets, names)}
    for name in names:
        alone = [Features({name: answer.values[name]}) for answer in answers]
        if CRITERION not in name and len({answer.values[name] for answer in alone}) > 1:
            heads[name] = fit_head(alone, targets, [name])
    return heads


def _best_single(losses: Mapping[str, float]) -> str:
    """Return the name with the lowest loss, of graders alone; "" if there is none."""
    return min((name for name in losses if name != HEAD), key=losses.__getitem__, default="")


def head_targets(
    cases: Sequence[LabelledCase],
    features: AnswerFeatures,
    names: Sequence[str],
    scale: tuple[float, float] | None,
) -> tuple[list[Features], list[Target]]:
    """Return the answers of the cases that have all of these features, and what people say of
    them. `scale` is that of the labels, for kind score.
    """
    from .fitting import Target, ranked_targets  # it needs an extra

    low, high = scale or (0.0, 1.0)
    answers, targets = list[Features](), list[Target]()
    for case in cases:
        first, cluster = len(answers), cluster_of(case)
        answers += _case_features(case, features, names) or ()
        if case.ranks is not None:
            targets += ranked_targets(first, case.ranks, cluster)
        else:
            label = case.label or 0.0
            part = label if case.kind == "pass" else (label - low) / (high - low)
            targets.append(Target(first, None, part, cluster))
    return answers, targets


# ---- the card


def validate_head(
    data: LabelledData, session: Session, features: AnswerFeatures, usage: Usage
) -> ValidationResult:
    """Return the validation of the trained grader of a session, from features that are known.
    `usage` is what these took.
    """
    harness = GraderHarness(session)
    grader, store = harness.traits.grader, CardStore.in_folder(session.options.cards_dir)
    result = _measure(data, features, grader.head, store, grader.name)
    fingerprint, parts = harness.roles.identify(harness.panel_grader.name)
    card = replace(
        result.card,
        fingerprint=fingerprint,
        parts=parts,
        model=harness.model,
        usage=asdict(usage),
    )
    return replace(result, card=card)


def _measure(
    data: LabelledData, features: AnswerFeatures, head: Head, store: CardStore, grader: str
) -> ValidationResult:
    """Return the validation of what a head says, from features that are known."""

    def verdict(case: LabelledCase) -> Verdict:
        found = _case_features(case, features, ())
        if found is None:
            return Verdict(case.id, reason="it could not be graded")
        scores = [head.score(each) for each in found]
        if problem := next((each for each in scores if isinstance(each, str)), None):
            return Verdict(case.id, reason=problem)
        return Verdict(case.id, tuple(each.value for each in scores if isinstance(each, HeadScore)))

    verdicts = list(map(verdict, data.cases))
    return validate_recorded(data, verdicts, store, grader=grader, output_format=LIVE)


def _best_alone(
    data: LabelledData, features: AnswerFeatures, heads: Mapping[str, FittedHead], store: CardStore
) -> tuple[Measure | None, PairedDifference | None]:
    """Return what decides about trust, of the best grader alone, and by how much the loss of the
    head is lower.
    """
    best = _best_single({name: fitted.loss for name, fitted in heads.items()})
    if not best:
        return None, None
    head, single = heads[HEAD], heads[best]
    measured = _measure(data, features, single.head, store, best)
    gain = paired_difference(head.losses, single.losses, clusters=head.clusters)
    return measured.headline, gain
