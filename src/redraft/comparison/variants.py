"""Runs what is compared: two models, prompts or settings on the same tasks; or grades the answers
of two finished runs.

Both runs are batches in one journal, so that a second comparison repeats no call, and a variant
that has not changed takes none.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, cycle, islice
from pathlib import Path
from statistics import fmean
from string import ascii_lowercase, ascii_uppercase
from time import monotonic
from typing import Any, cast

from ..answers import as_answer_form
from ..base.checks import format_value
from ..errors import (
    BudgetExhaustedError,
    ConfigError,
    GradingError,
    RedraftError,
)
from ..graders.judging.ranking import Pairwise, Ranker
from ..loop.serialize import pack
from ..loop.task import Task
from ..middleware import Budget
from ..models.traits import traits_of_model
from ..runs import BatchProgress, BatchReport, BatchSettings, batch
from ..runs.config import columns_of
from ..runs.dataset import open_dataset
from ..session.models import Models
from ..session.options import Options
from ..session.panel import graders_for_columns, needs_judge, resolve_graders
from ..session.session import Session
from ..settings import Settings, settings_for
from ..storage.journal import Journal, run_name
from ..tables.sources import open_source
from ..usage import NO_USAGE, Usage
from ..validation.cases import LabelledCase
from ..validation.run import GraderHarness, JudgedCase
from ..validation.statistics import WinRate, group_values, win_rate
from .readers import read_results
from .results import PairedResults, ResultPair, ResultRow, RunResults, check_scales, hash_task

DEFAULT_JOURNAL = "compare.journal"
NO_VERDICT = "the grader gave no verdict in both orders on any pair"
PROMPT_SUFFIXES = {".md", ".txt", ".toml", ".prompt"}  # of a name that is a file and no model
OWN_SETTINGS = ("output", "name", "errors", "graders", "judge", "journal", "mode", "engine")
"""Settings that a variant cannot have: they are those of the comparison, so that only the variants
differ.
"""
DRAFT_GRADING = {"graders": "answered", "judge": None}
"""Grades single answers that a comparer will compare with those of the other variant: by a grader
that asks nobody.
"""
DEFAULTS: BatchSettings = {"max_iterations": 0, "learn": False}
"""Settings of `batch` with another default: first answers are compared, and earlier rows do not
change later ones.
"""


@dataclass
class ComparisonRun:
    """The runs of a comparison, in one journal with one budget and one deadline."""

    journal: Path
    graders: Any
    judge: Any
    settings: BatchSettings
    usage: Usage = NO_USAGE
    # of B, by the key of the pair
    shares_of_wins: dict[str, float] = field(default_factory=dict, init=False)
    _began: float = field(default_factory=monotonic, init=False)
    _names: list[str] = field(default_factory=list, init=False)

    def check_judge(self, variants: Sequence[Any], tasks: Any, model: Any) -> None:
        """Set the judge of both variants. Raises ConfigError for a wrong variant, or if each would
        be judged by its own model.
        """
        own = [variant_settings(variant)[1] for variant in variants]
        if self.judge is not None or not needs_judge(self.graders):
            return
        if any("model" in each for each in own) and (
            self.graders is not None or self._default_judge_grades(tasks)
        ):
            raise ConfigError("judge: name one model that judges both, or each would judge itself")
        self.judge = None if self.graders is None else model

    def _default_judge_grades(self, tasks: Any) -> bool:
        """Whether neither the tasks nor the settings name something that grades."""
        settings = self.settings
        dataset = open_dataset(
            open_source(tasks), columns_of(settings.get("columns")), "error", settings.get("limit")
        )
        return (
            graders_for_columns(
                None, None, as_answer_form(settings.get("answer")), dataset.shape.columns
            )
            is None
        )

    async def results_of(self, variants: Sequence[Any], tasks: Any, model: Any) -> list[RunResults]:
        """Return the results of variants that answer the same tasks. What graded single answers
        says nothing if the grader compares answers.
        """
        rows = reread(tasks)
        self.check_judge(variants, rows, model)
        sides = [await self.run(variant, rows, model) for variant in variants]
        if ranks_answers(self.graders):
            sides = [
                replace(side, rows=[replace(row, score=None) for row in side.rows])
                for side in sides
            ]
        return self._without_server(with_own_names(sides, variants))

    def _without_server(self, sides: Sequence[RunResults]) -> list[RunResults]:
        """Return the runs of models of one server with the names of the models alone; a message
        names the server.
        """
        parts = [side.name.rpartition("#") for side in sides]
        server, models = parts[0][0], [model for _, _, model in parts]
        if "://" not in server or any(address != server for address, _, _ in parts):
            return list(sides)
        if say := self.settings.get("say"):
            say(f"models of {server}: {', '.join(models)}")
        return [replace(side, name=name) for side, name in zip(sides, models, strict=True)]

    async def results_in(
        self,
        sources: Sequence[Any],
        *,
        score: str,
        columns: Mapping[str, str] | None,
        labelled: bool,
    ) -> list[RunResults]:
        """Return the results of finished runs, graded anew if there are graders; with the tasks of
        their rows if those are needed, as for labels.
        """
        sides = [read_results(source, score=score, columns=columns) for source in sources]
        if self.graders is None:
            for a, b in combinations(sides, 2):
                check_scales(a, b)
        if labelled or self.graders is not None:
            sides = [results.with_tasks() for results in sides]
        sides = with_own_names(sides, sources)
        if self.graders is None or ranks_answers(self.graders):
            return sides
        return [
            await self.grade_anew(results, tag)
            for results, tag in zip(sides, ascii_lowercase, strict=False)
        ]

    async def run(self, variant: Any, tasks: Any, model: Any) -> RunResults:
        """Answer the tasks by a variant, and grade the answers. Raises RedraftError if the run
        ended early.
        """
        label, own = variant_settings(variant)
        settings: dict[str, Any] = {**DEFAULTS, **self.settings, **own}
        writer = settings.pop("model", model)
        one_answer = (
            settings["max_iterations"] == 0
            and settings.get("drafts", 1) == 1
            and "plan" not in settings
        )
        settings |= DRAFT_GRADING if one_answer and ranks_answers(self.graders) else self._grading
        report = await self._batch(label, f"{label}-{_content_hash(own)}", tasks, writer, settings)
        results = read_results(report, name=label)
        values = task_values(tasks, settings)
        return replace(
            results,
            rows=[
                replace(row, values={**row.values, **values.get(row.id or "", {})})
                for row in results.rows
            ],
        )

    async def grade_anew(self, results: RunResults, tag: str) -> RunResults:
        """Grade the answers of a run anew. Raises ConfigError for a run that does not tell its
        tasks and answers.
        """
        if not any(row.task and row.text is not None for row in results.rows):
            raise ConfigError(
                f"{results.name!r} does not tell its tasks and answers, so they cannot be graded"
            )
        rows = [
            _graded_row(n, row)
            for n, row in enumerate(results.rows)
            if row.task and row.text is not None
        ]
        settings: dict[str, Any] = {**self.settings, "columns": GRADED_COLUMNS, "mode": "grade"}
        report = await self._batch(
            results.name, f"{results.name}-{tag}", rows, None, settings | self._grading
        )
        graded = read_results(report, name=results.name)
        scores = {row.id: row.score for row in graded.rows}
        return replace(
            graded,
            form=results.form,
            rows=[replace(row, score=scores.get(str(n))) for n, row in enumerate(results.rows)],
            skipped=results.skipped,
        )

    @property
    def _grading(self) -> dict[str, Any]:
        return {"graders": self.graders, "judge": self.judge}

    async def _batch(
        self, label: str, name: str, source: Any, model: Any, settings: Mapping[str, Any]
    ) -> BatchReport:
        report = await batch(
            source,
            None,
            model,
            **cast(
                "BatchSettings",
                {
                    **settings,
                    "journal": self.journal,
                    "name": self._run_name(name),
                    **self._limits(),
                },
            ),
        )
        self.usage += report.spending.usage
        if report.stop or report.rows.unfinished or report.rows.not_started:
            _raise_early_end(report, label, self.usage)
        return report

    def _run_name(self, label: str) -> str:
        """Return a name for a run; of two runs with one label, the second gets a number."""
        name = run_name(label)[-56:].strip("-")
        self._names.append(name)
        return name if self._names.count(name) == 1 else f"{name}-{self._names.count(name)}"

    def _limits(self) -> dict[str, Any]:
        """Return what the runs so far have left of the budget and of the time."""
        limits: dict[str, Any] = {}
        if isinstance(budget := self.settings.get("budget"), Budget):
            limits["budget"] = budget_left(budget, self.usage)
        if (deadline := self.settings.get("deadline")) is not None:
            limits["deadline"] = max(0.0, deadline - (monotonic() - self._began))
        return limits

    async def win_rate(
        self, results: PairedResults, clusters: Sequence[Any] | None, level: float
    ) -> WinRate:
        """Have the grader compare each pair of answers in both orders, and return the win rate of
        B. Raises GradingError if no pair has a verdict in both orders.
        """
        shares = await self.judge_in_both_orders(results)
        if not shares:
            raise GradingError(NO_VERDICT, usage=self.usage)
        counted = [n for n, pair in enumerate(results.pairs) if pair.key in shares]
        of_pairs = None if clusters is None else [clusters[n] for n in counted]
        self.shares_of_wins = {key: fmean(both) for key, both in shares.items()}
        return win_rate(*zip(*shares.values(), strict=True), clusters=of_pairs, confidence=level)

    async def judge_in_both_orders(self, results: PairedResults) -> dict[str, tuple[float, float]]:
        """Return what B wins if it is shown second, and if it is shown first, by the key of the
        pair; pairs without a verdict in both orders are left out.

        Of repeats, the first of A meets the first of B, and so on; what B wins in a task is their
        mean. Pairs of the same text are ties and take no call.
        """
        answers = {n: _text_pairs(pair) for n, pair in enumerate(results.pairs) if _task_of(pair)}
        if not any(answers.values()):
            raise ConfigError(
                "these runs do not tell their tasks and answers, so no grader can compare them"
            )
        shares = await self._shares_of_verdicts(results.pairs, answers)
        return {
            results.pairs[n].key: (
                fmean(second for second, _ in shares[n]),
                fmean(first for _, first in shares[n]),
            )
            for n in answers
            if n in shares
        }

    async def _shares_of_verdicts(
        self, pairs: Sequence[ResultPair], answers: Mapping[int, Sequence[tuple[str, str]]]
    ) -> dict[int, list[tuple[float, float]]]:
        """Return how far B wins if it is shown second, and if it is shown first, for the answers of
        each pair that have a verdict in both orders, by the place of the pair.
        """
        found: list[tuple[int, tuple[float, float] | None]] = []
        cases: dict[str, tuple[int, LabelledCase]] = {}
        for n, (a, b) in ((n, both) for n, repeats in answers.items() for both in repeats):
            if a == b or pairs[n].same_answer:
                found.append((n, (0.5, 0.5)))
            else:
                id, task = f"{n}-{len(cases)}", cast("Task", _task_of(pairs[n]))
                cases[id] = n, LabelledCase(id, "pair", task, (a, b), ranks=(0, 0))
        verdicts = self._judge_pairs([case for _, case in cases.values()])
        found += [(cases[judged.case][0], _wins_of_b(judged)) async for judged in verdicts]
        return group_values((n, wins) for n, wins in found if wins is not None)

    async def _judge_pairs(self, cases: Sequence[LabelledCase]) -> AsyncGenerator[JudgedCase, None]:
        """Yield the verdicts on pairs of answers. Raises GradingError if the grader ends early."""
        settings = settings_for("validate", self.settings)
        progress = BatchProgress(total=len(cases), state="running")
        on_progress = self.settings.get("on_progress")
        with Journal(self.journal) as journal:
            options = Options.from_settings(
                cast("Settings", {"cache": journal.response_cache, **settings, **self._limits()})
            )
            async with Session(options, Models(options, judge=self.judge), self.graders) as session:
                async for judged in GraderHarness(session).judge(cases):
                    self.usage += judged.usage
                    if judged.stop_reason:
                        raise GradingError(
                            "the comparison of answers ended early: "
                            f"{judged.outage or judged.stop_reason}",
                            usage=self.usage,
                        )
                    progress.done += 1
                    if on_progress:
                        on_progress(progress)
                    yield judged


def variant_settings(variant: Any) -> tuple[str, dict[str, Any]]:
    """Return the label and the settings of a variant. Raises ConfigError.

    A variant is a model (a name or an object), the path of a prompt template, or a mapping of
    settings of `batch`, such as {"model": ..., "draft_prompt": ...}; "label" names it.
    """
    if isinstance(variant, Mapping):
        own = {str(name): value for name, value in variant.items()}
        if wrong := [name for name in own if name in OWN_SETTINGS]:
            raise ConfigError(
                f"a variant cannot have {wrong[0]!r}: give it to `compare`, so that it is the "
                "same for both"
            )
        label = (
            own.pop("label", None)
            or ", ".join(format_value(value, 40).strip("'\"") for value in own.values())
            or "default"
        )
        return str(label), own
    if isinstance(variant, Path | str) and Path(variant).is_file():
        return Path(variant).name, {"draft_prompt": Path(variant)}
    if isinstance(variant, Path) or (
        isinstance(variant, str) and Path(variant).suffix in PROMPT_SUFFIXES and ":" not in variant
    ):
        raise ConfigError(f"there is no file {format_value(str(variant))}")
    if variant is None or isinstance(variant, bool):
        raise ConfigError(
            "a variant is a model, the path of a prompt, or a mapping of settings, got "
            f"{format_value(variant)}"
        )
    return variant if isinstance(variant, str) else traits_of_model(variant).name, {
        "model": variant
    }


def _content_hash(own: Mapping[str, Any]) -> str:
    """Return a short hash of a variant, so that another version of a prompt is another run, with a
    budget of its own.
    """
    contents = {
        name: value.read_bytes().hex() if isinstance(value, Path) else value
        for name, value in own.items()
    }
    traits = traits_of_model(own.get("model"))
    contents["model"] = traits.identity or own.get("model")
    kept = {
        name: value
        for name, value in contents.items()
        if isinstance(value, str | int | float | bool)
    }
    params = {name: own[name] for name in ("model_params", "judge_params") if own.get(name)}
    return hash_task({**kept, **params, **({"params": traits.params} if traits.params else {})})[:8]


def ranks_answers(graders: Any) -> bool:
    """Return whether the graders compare answers. Raises ConfigError for a mixture, for several
    that do, and for a ranker.
    """
    if graders is None:
        return False
    members = resolve_graders((), graders, has_model=True)
    comparing = [(each.name, each.traits.grader) for each in members if each.traits.compares]
    if comparing and len(members) > 1:
        raise ConfigError(
            f"graders: {comparing[0][0]!r} compares answers; it must be the only grader"
        )
    for name, grader in comparing:
        if isinstance(grader, Ranker) and not isinstance(grader, Pairwise):
            pairwise = (
                name.replace("ranker", "pairwise", 1) if name.startswith("ranker") else "pairwise"
            )
            raise ConfigError(
                f"graders: {name!r} shows answers in one order, and two runs are compared in "
                f"both: use {pairwise!r}"
            )
    return bool(comparing)


GRADED_COLUMNS = {
    "id": "id",
    "messages": "messages",
    "response": "response",
    "context": "context",
    "reference": "reference",
}


def _graded_row(n: int, row: ResultRow) -> dict[str, Any]:
    """Return a row of a batch that grades an answer. IDs are the places in the run: those of the
    run may not be unique.
    """
    task = cast("Task", row.task)
    packed = pack(replace(task, response=None, responses=()))
    metadata = {name: value for name, value in task.metadata.items() if name not in GRADED_COLUMNS}
    return {
        **metadata,
        "id": str(n),
        "messages": packed["messages"],
        "response": row.text,
        "context": task.context,
        "reference": task.reference,
    }


def _task_of(pair: ResultPair) -> Task | None:
    return pair.a.task or pair.b.task


def _text_pairs(pair: ResultPair) -> list[tuple[str, str]]:
    """Return the answers of A and B side by side; the run with fewer repeats begins again."""
    sides = [
        [row.text for row in rows if row.text is not None] for rows in (pair.a_rows, pair.b_rows)
    ]
    if not all(sides):
        return []
    return list(islice(zip(*map(cycle, sides), strict=False), max(map(len, sides))))


def _wins_of_b(judged: JudgedCase) -> tuple[float, float] | None:
    """Return how far B wins if it is shown second, and if it is shown first; None without a verdict
    in both orders.

    A verdict without an order, of a comparer that only computes, counts in both.
    """
    shares: list[float] = []
    for order in ((0, 1), (1, 0)):
        ranks = [
            v.ranks
            for v in judged.verdicts
            if v.ranks is not None and tuple(v.presentation_order) in {(), order}
        ]
        if not ranks:
            return None
        shares.append(
            sum(1.0 if r[1] < r[0] else 0.5 if r[0] == r[1] else 0.0 for r in ranks) / len(ranks)
        )
    return shares[0], shares[1]


def budget_left(budget: Budget, used: Usage) -> Budget:
    """Return what the calls so far have left of a budget."""
    spent: dict[str, float] = {
        "calls": used.calls,
        "input_tokens": used.input_tokens or 0,
        "output_tokens": used.output_tokens or 0,
        "tokens": used.tokens or 0,
        "usd": used.cost or 0.0,
    }
    limits = {name: getattr(budget, name) for name in spent}
    left = {
        name: max(type(limit)(0), limit - spent[name])
        for name, limit in limits.items()
        if limit is not None
    }
    return replace(budget, **left)


def _raise_early_end(report: BatchReport, label: str, usage: Usage) -> None:
    """Raise the error of a run that ended early: half a run is no result to compare."""
    rows = report.rows
    reason = report.stop or ("budget" if rows.not_started or rows.unfinished else "interrupted")
    message = (
        f"the run of {label!r} ended early: {report.stop_note or reason}; the same call resumes it"
    )
    error: RedraftError = (
        BudgetExhaustedError(message, usage=usage)
        if reason in {"budget", "deadline"}
        else GradingError(message, usage=usage)
    )
    raise error


def task_values(tasks: Any, settings: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the columns of the tasks by the ID of the row; a journal does not keep those that have
    no role.
    """
    columns = columns_of(settings.get("columns"))
    dataset = open_dataset(
        open_source(tasks), columns, settings.get("on_duplicate", "error"), settings.get("limit")
    )
    duplicates = dataset.summarize().duplicates
    return {row.id: row.values for row in dataset.rows(duplicates, lambda _: None)}


def reread(tasks: Any) -> Any:
    """Return tasks that can be read twice: a list of what can be read only once. Raises ConfigError
    for stdin.
    """
    if tasks == "-":
        raise ConfigError(
            "tasks: stdin can be read only once, and both variants need them; name a file"
        )
    return (
        tasks
        if isinstance(tasks, str | Path | Sequence) or hasattr(tasks, "columns")
        else list(tasks)
    )


def with_own_names(sides: Sequence[RunResults], sources: Sequence[Any]) -> list[RunResults]:
    """Return the runs with different names: those of equally named files are their paths, or have
    a letter.
    """
    names = [side.name for side in sides]
    if len(set(names)) < len(names):
        paths = [str(source) for source in sources if isinstance(source, str | Path)]
        lettered = [f"{n} ({letter})" for n, letter in zip(names, ascii_uppercase, strict=False)]
        names = paths if len(set(paths)) == len(names) else lettered
    return [replace(side, name=name) for side, name in zip(sides, names, strict=True)]
