"""The trace: a task and everything recorded about it so far; immutable, and extended only by `+`.

Everything else is a view computed from the records, keyed and sorted so that nothing depends on the
order in which they arrived. Plans and stop rules are functions of the trace.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Any, Generic, TypeVar

from ..errors import StoreError
from ..usage import NO_USAGE, Usage, sum_usage
from .records import (
    Candidate,
    Comparison,
    Failure,
    Feedback,
    Outcome,
    Record,
    Slot,
    StopReason,
)
from .serialize import (
    SCHEMA,
    check_version,
    object_from_json,
    pack,
    record_from_json,
    record_to_json,
    unpack,
)
from .steps import Step
from .task import Task

T = TypeVar("T")
S = TypeVar("S", bound=Step)

MAX_REASON_CHARS = 300
END_RECORDS = frozenset({Failure, Outcome})  # those that may no longer count in a new run
SCORE_TOLERANCE = 1e-9  # scores closer than this are equal


# the views that depend on scores
SCORE_VIEWS = frozenset(
    {
        "_trace_by_estimates",
        "aggregates",
        "best",
        "comparisons",
        "graded_candidates",
        "score_history",
        "scores",
    }
)


class cached_view(Generic[T]):  # noqa: N801  (a decorator, like property)
    """A property that is computed on first use and then stored. Unlike functools.cached_property
    before 3.12, it takes no lock.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self.compute, self.name, self.__doc__ = compute, compute.__name__, compute.__doc__

    def __get__(self, trace: object, owner: type | None = None) -> T:
        value = trace.__dict__[self.name] = self.compute(trace)
        return value


@dataclass(frozen=True, slots=True)
class PanelGrader:
    """A grader on the panel: its weight, and what a plan must know about it.

    - `must`: a candidate that it does not score 1 loses to every candidate that it scores 1.
    - `model_free`: it calls no model. `may_call_model`: it is given a model that it need not call;
      if its feedback shows no call, it counts as model-free.
    - `editable`: an editor can repair the problems that it finds.
    - `compares`: it ranks candidates instead of scoring one.
    - `repeats`: how often it grades each candidate; its score is the mean.
    - `demand`: what a must demands, in words for the writer; "" if it has none.
    - `card`: what its validation card says, if the setting `require_validated` is on.
    - `reads_tool_calls`: it also grades candidates that call tools.
    - `score_step`: the distance between neighbouring scores that it can give, 1 for 0 or 1; None if
      that is unknown.
    """

    name: str
    weight: float = 1.0
    must: bool = False
    model_free: bool = False
    editable: bool = False
    compares: bool = False
    repeats: int = 1
    demand: str = ""
    card: Mapping[str, Any] | None = field(default=None, compare=False)
    may_call_model: bool = False
    reads_tool_calls: bool = False
    score_step: float | None = None


class Panel(tuple[PanelGrader, ...]):  # noqa: SLOT001  (its views are stored in it)
    """The graders of a task, by what they do. Tasks of a session share it, so that each view is
    computed once.
    """

    @cached_view
    def pointwise(self) -> tuple[PanelGrader, ...]:
        """The graders that grade one candidate at a time, scorers and critics."""
        return tuple([grader for grader in self if not grader.compares])

    @cached_view
    def model_free(self) -> tuple[PanelGrader, ...]:
        """The pointwise graders that call no model."""
        return tuple([grader for grader in self.pointwise if grader.model_free])

    @cached_view
    def judges(self) -> tuple[PanelGrader, ...]:
        """The pointwise graders that call a model."""
        return tuple([grader for grader in self.pointwise if not grader.model_free])

    @cached_view
    def editable(self) -> tuple[PanelGrader, ...]:
        """The pointwise graders whose problems an editor can repair."""
        return tuple([grader for grader in self.pointwise if grader.editable])

    @cached_view
    def rankers(self) -> tuple[PanelGrader, ...]:
        """The graders that rank candidates."""
        return tuple([grader for grader in self if grader.compares])

    @cached_view
    def has_musts(self) -> bool:
        """Whether one of the pointwise graders is a must."""
        return any(grader.must for grader in self.pointwise)

    @cached_view
    def may_call_model(self) -> frozenset[str]:
        """The names of the graders of which only their feedback shows whether they call a model."""
        return frozenset([grader.name for grader in self if grader.may_call_model])


@dataclass(frozen=True)
class Trace:
    """A task, its graders, and the records so far. It never changes: `trace + record` is a new
    trace.

    Attributes:
        task: What is to be answered.
        panel: The graders, with their weights.
        records: All records, oldest first.
        resumed_at: Number of records that an earlier run made. Failures among them no longer count,
            nor does an outcome that cut the work short.
        settings: The settings that were given, as plain data.
        given_scores: Scores in place of the graders' (see `with_scores`).
    """

    task: Task
    panel: tuple[PanelGrader, ...] = ()
    records: tuple[Record, ...] = ()
    resumed_at: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict, compare=False)
    given_scores: Mapping[int, float] | None = field(default=None, compare=False)

    def __add__(self, record: Record) -> Trace:
        return Trace(
            self.task,
            self.panel,
            (*self.records, record),
            self.resumed_at,
            self.settings,
            self.given_scores,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}  # without views

    def for_new_run(self) -> Trace:
        """Return the trace for a new run, in which failed and interrupted steps may be tried
        again.
        """
        return replace(self, resumed_at=len(self.records))

    def with_scores(self, scores: Mapping[int, float]) -> Trace:
        """Return the trace with these scores, by candidate id, in place of the graders'; stop rules
        can read it.

        Candidates without a score keep none. Rankings are ignored.
        """
        rescored = replace(self, given_scores=scores)
        kept = vars(self).keys() - vars(rescored).keys() - SCORE_VIEWS
        vars(rescored).update({name: vars(self)[name] for name in kept})
        return rescored

    @property
    def with_estimates(self) -> Trace:
        """The trace with the estimated qualities of its outcome as scores; itself if the outcome
        has none.

        It never stores itself: in such a cycle it would stay in memory until the garbage collector
        runs.
        """
        return self._trace_by_estimates if self.outcome and self.outcome.estimates else self

    @cached_view
    def _trace_by_estimates(self) -> Trace:
        return self.with_scores(dict(self.outcome.estimates)) if self.outcome else self

    def missing(self, steps: Iterable[S]) -> list[S]:
        """Return the steps that are neither recorded nor failed in this run."""
        recorded, failed = self.records_by_slot, self.failures
        return [
            step for step in steps if (slot := step.slot) not in recorded and slot not in failed
        ]

    @cached_view
    def records_by_slot(self) -> dict[Slot, Record]:
        """The records by slot, without failures and outcomes that no longer count."""
        return {
            r.slot: r for r in self.records if r.__class__ not in END_RECORDS or r is self.outcome
        }

    @property
    def unscored_reasons(self) -> dict[str, str]:
        """Why graders gave no score and no critique, by their names; "" without a reason."""
        unscored = [
            f
            for each in self.feedback.values()
            for f in each
            if f.score is None and not f.is_critique
        ]
        return {
            f.grader: "".join(filter(str.isprintable, " ".join(f.reason.split())))[
                :MAX_REASON_CHARS
            ]
            for f in unscored
        }

    @cached_view
    def failures(self) -> dict[Slot, Failure]:
        """The failures of this run by the slot that is still empty."""
        recent = [r for r in self.records[self.resumed_at :] if isinstance(r, Failure)]
        return {f.step_slot: f for f in recent if f.step_slot not in self.records_by_slot}

    @cached_view
    def outcome(self) -> Outcome | None:
        """How the run ended; None until then."""
        ends = [(n, r) for n, r in enumerate(self.records) if isinstance(r, Outcome)]
        n, last = ends[-1] if ends else (0, None)
        return None if last and last.reason.resumable and n < self.resumed_at else last

    @property
    def stop(self) -> StopReason:
        """Why the run ended; while it has no outcome, it was cut short."""
        return self.outcome.reason if self.outcome else StopReason.CANCELLED

    @property
    def stop_note(self) -> str:
        """The same in words; "" if nothing is to be said."""
        return self.outcome.note if self.outcome else ""

    @cached_view
    def candidates(self) -> list[Candidate]:
        """All candidates, oldest first."""
        return sorted([r for r in self.records if isinstance(r, Candidate)], key=lambda c: c.id)

    @cached_view
    def by_id(self) -> dict[int, Candidate]:
        return {c.id: c for c in self.candidates}

    @cached_view
    def unchanged_ids(self) -> set[int]:
        """The ids of candidates with the same content as their parent (see
        `Candidate.content_key`).
        """
        parents = [(c, self.by_id.get(c.parent)) for c in self.candidates if c.parent is not None]
        return {c.id for c, parent in parents if parent and parent.content_key == c.content_key}

    @cached_view
    def tool_calling_candidate(self) -> Candidate | None:
        """The first candidate that calls tools, if no grader reads tool calls; it is returned
        ungraded.
        """
        callers = [c for c in self.candidates if c.tool_calls and c.role != "repair"]
        return (
            callers[0]
            if callers and not any(grader.reads_tool_calls for grader in self.panel)
            else None
        )

    def is_unchanged(self, candidate: Candidate) -> bool:
        """Whether a candidate is a copy of its parent; it is not graded again and shares its
        parent's feedback.
        """
        return candidate.id in self.unchanged_ids

    @cached_view
    def feedback(self) -> dict[int, tuple[Feedback, ...]]:
        """The feedback on each candidate, by id, sorted by grader and repeat."""
        all_feedback = [r for r in self.records if isinstance(r, Feedback)]
        own: defaultdict[int, list[Feedback]] = defaultdict(list)
        for each in sorted(all_feedback, key=attrgetter("grader", "repeat")):
            own[each.candidate].append(each)
        feedback: dict[int, tuple[Feedback, ...]] = {}
        unchanged = self.unchanged_ids
        for c in self.candidates:
            shared = feedback.get(c.parent) if c.parent is not None and c.id in unchanged else None
            feedback[c.id] = tuple(own[c.id]) if shared is None else shared
        return feedback

    def grader_score(self, candidate: int, grader: PanelGrader) -> float | None:
        """Return the mean of a grader's scores of a candidate; None while one of its repeats is
        missing or unknown.
        """
        scores = [f.score for f in self.feedback[candidate] if f.grader == grader.name]
        known = [score for score in scores if score is not None]
        if len(scores) < grader.repeats or len(known) < len(scores):
            return None
        return sum(known) / len(known)

    def _aggregate(self, candidate: int) -> tuple[float, float | None]:
        """Return the share of musts that are met, and the weighted mean of the other scores (of the
        musts if there are no others).

        Critics do not count.
        """
        scores = [(grader, self.grader_score(candidate, grader)) for grader in self.scorers]
        met = [score == 1 for grader, score in scores if grader.must]
        pass_rate = sum(met) / len(met) if met else 1.0
        if not scores or self.only_critics or any(score is None for _, score in scores):
            return pass_rate, None
        judged = [(g.weight, score or 0.0) for g, score in scores if not g.must]
        judged = judged or [(g.weight, score or 0.0) for g, score in scores]
        total_weight = sum([weight for weight, _ in judged])
        return pass_rate, sum([weight * score for weight, score in judged]) / total_weight

    @cached_view
    def graders(self) -> Panel:
        """The panel, by what its graders do. A grader that may call a model is model-free if its
        feedback shows no call.
        """
        panel = self.panel if isinstance(self.panel, Panel) else Panel(self.panel)
        if not panel.may_call_model:
            return panel
        return Panel(
            [
                replace(g, model_free=True) if g.may_call_model and self._calls_no_model(g) else g
                for g in panel
            ]
        )

    @property
    def pointwise_graders(self) -> tuple[PanelGrader, ...]:
        """The graders that grade one candidate at a time, scorers and critics, but not those that
        rank.
        """
        return self.graders.pointwise

    def _calls_no_model(self, grader: PanelGrader) -> bool:
        """Whether a grader has given feedback and called no model for it."""
        usages = [
            r.usage for r in self.records if isinstance(r, Feedback) and r.grader == grader.name
        ]
        return bool(usages) and not any(usage.calls or usage.cached_calls for usage in usages)

    @cached_view
    def _critic_status(self) -> dict[str, bool | None]:
        """By grader: whether it only critiques and never scored; None while its feedback says
        nothing.
        """
        status: dict[str, bool | None] = {}
        for record in self.records:
            if isinstance(record, Feedback):
                before = status.get(record.grader)
                is_scorer = before is False or record.score is not None
                status[record.grader] = False if is_scorer else record.is_critique or before
        return status

    @cached_view
    def critics(self) -> frozenset[str]:
        """The graders that give no scores: so far they only said what to change or whether to stop.
        A must is never a critic.

        A grader that has said nothing at all (see `silent_graders`) is one, too, once another
        grader that is no must has.
        """
        status = self._critic_status
        if True not in status.values() and None not in status.values():
            return frozenset()
        return (
            frozenset(s.name for s in self.pointwise_graders if not s.must and status.get(s.name))
            | self.silent_graders
        )

    @cached_view
    def silent_graders(self) -> frozenset[str]:
        """The graders whose feedback is all empty, while another one that is no must gave a score,
        an action or `done`.

        They do not count: what the others say stands. Feedback with a reason, and no score, is not
        empty: a score is missing.
        """
        names = [s.name for s in self.pointwise_graders if not s.must]
        unheard = {name for name in names if self._critic_status.get(name, False) is None}
        if not unheard or not any(
            name in self._critic_status and name not in unheard for name in names
        ):
            return frozenset()
        return frozenset(
            unheard - {r.grader for r in self.records if isinstance(r, Feedback) and not r.is_empty}
        )

    @cached_view
    def scorers(self) -> tuple[PanelGrader, ...]:
        """The pointwise graders whose scores count: all but the critics."""
        return (
            tuple(s for s in self.pointwise_graders if s.name not in self.critics)
            if self.critics
            else self.pointwise_graders
        )

    @cached_view
    def only_critics(self) -> bool:
        """Whether only critics judge quality; the other graders, if any, are musts."""
        return (
            bool(self.critics)
            and all(s.must for s in self.scorers)
            and len(self.pointwise_graders) == len(self.panel)
        )

    @cached_view
    def aggregates(self) -> dict[int, tuple[float, float | None]]:
        """The share of musts that every candidate meets, and its score, by id."""
        given, by_graders = self.given_scores, self._aggregates_by_graders
        if given is None:
            return by_graders
        return {
            id: (passed, score if score is None else given.get(id, score))
            for id, (passed, score) in by_graders.items()
        }

    @cached_view
    def _aggregates_by_graders(self) -> dict[int, tuple[float, float | None]]:
        return {c.id: self._aggregate(c.id) for c in self.candidates}

    @cached_view
    def scores(self) -> dict[int, float | None]:
        """The weighted mean score of every candidate, by id; None while a part is missing."""
        return {id: score for id, (_, score) in self.aggregates.items()}

    def has_score(self, candidate: int) -> bool:
        """Whether a candidate has a score: no part of it is missing."""
        return self._aggregate(candidate)[1] is not None

    def meets_musts(self, candidate: int) -> bool:
        """Whether a candidate meets every must."""
        return self.must_pass_rate(candidate) == 1

    def must_pass_rate(self, candidate: int) -> float:
        """Return the share of musts that a candidate meets, in [0, 1]; 1 if there are none."""
        return self.aggregates[candidate][0]

    def nearness(self, candidate: int) -> float:
        """Return how near a candidate comes to meeting every must, in [0, 1]: the mean over the
        musts.
        """
        musts = {grader.name for grader in self.scorers if grader.must}
        feedback = [f for f in self.feedback[candidate] if f.grader in musts]
        nearness = [(f.score or 0.0) if f.nearness is None else f.nearness for f in feedback]
        return sum(nearness) / len(nearness) if nearness else 1.0

    def is_done(self, candidate: int) -> bool:
        """Whether at least one grader says that a candidate is done, and none says that it is
        not.
        """
        verdicts = [f.done for f in self.feedback[candidate]]
        verdicts += [c.done for c in self.comparisons[-1:] if c.ranking[0] == candidate]
        known = [verdict for verdict in verdicts if verdict is not None]
        return bool(known) and all(known)

    @cached_view
    def comparisons(self) -> list[Comparison]:
        """All comparisons, the one of most candidates last; none if scores are given in place of
        the graders'.
        """
        if self.given_scores is not None:
            return []
        comparisons = [r for r in self.records if isinstance(r, Comparison)]
        return sorted(
            comparisons, key=lambda c: (len(c.ranking), max(c.ranking), c.grader, c.repeat)
        )

    def rankings_of(self, candidate: int) -> list[Comparison]:
        """Return the widest comparison of each grader that ranks a candidate."""
        return [
            *{(c.grader, c.repeat): c for c in self.comparisons if candidate in c.ranking}.values()
        ]

    @cached_view
    def graded_candidates(self) -> list[Candidate]:
        """The candidates that have a score or, if graders only rank, a place in the widest ranking.

        If critics alone judge quality: those with a critique and with all musts graded.
        """
        if self.only_critics:
            return [c for c in self.candidates if self._is_critiqued(c.id)]
        if self.scorers:
            return [c for c in self.candidates if self.scores[c.id] is not None]
        return [self.by_id[i] for i in self.comparisons[-1].ranking] if self.comparisons else []

    def _is_critiqued(self, candidate: int) -> bool:
        """Whether a critic gave feedback on a candidate, and every must has a score."""
        has_critique = any(f.grader in self.critics for f in self.feedback[candidate])
        return has_critique and all(
            self.grader_score(candidate, must) is not None for must in self.scorers
        )

    @cached_view
    def best(self) -> Candidate | None:
        """The candidate to return; once the run has ended, the one that its outcome names.

        Criteria, in order: the most musts met, the highest score, the best rank in the widest
        comparison, done according to the graders, the earliest (the latest if there are only
        critics). If nothing is graded: the most musts met, then the most other checks without a
        model, then a given response, then the latest.
        """
        if self.outcome and self.outcome.best in self.by_id:
            return self.by_id[self.outcome.best]
        if not self.graded_candidates:
            originals = [c for c in self.candidates if c.id not in self.unchanged_ids]
            return max(originals, key=self._ungraded_merit, default=None)
        if len(self.graded_candidates) == 1:
            return self.graded_candidates[0]
        contenders = self.top_candidates([c.id for c in self.graded_candidates])
        return self.by_id[max(contenders) if self.only_critics else min(contenders)]

    def _ungraded_merit(self, candidate: Candidate) -> tuple[float, int, bool, int]:
        """Return what ungraded candidates are compared by (see `best`)."""
        met = sum(
            self.grader_score(candidate.id, grader) == 1 for grader in self.graders.model_free
        )
        return self.must_pass_rate(candidate.id), met, candidate.role == "given", candidate.id

    def top_candidates(self, ids: Sequence[int]) -> list[int]:
        """Return which of these graded candidates tie for best: only their age distinguishes
        them (see `best`).
        """
        contenders, scores = list(ids), self.scores
        if self.graders.has_musts:
            contenders = _top_by(contenders, [self.must_pass_rate(id) for id in contenders])
        contenders = _top_by(contenders, [scores[id] or 0.0 for id in contenders])
        if self.comparisons:
            ranks = self.comparisons[-1].ranks
            contenders = _top_by(contenders, [-ranks.get(id, len(ranks)) for id in contenders])
        if len(contenders) > 1 and (self.says_done or self.comparisons):
            contenders = _top_by(contenders, [self.is_done(id) for id in contenders])
        return contenders

    @cached_view
    def says_done(self) -> bool:
        """Whether any feedback says that a candidate is done."""
        return any(r.done for r in self.records if isinstance(r, Feedback))

    @property
    def score(self) -> float | None:
        """The score of the best candidate: the estimate of the outcome if it has one, else the
        graders' score.

        None if the candidate was never scored.
        """
        if self.outcome and self.outcome.score is not None:
            return self.outcome.score
        return self.judge_score

    @property
    def judge_score(self) -> float | None:
        """The graders' score of the best candidate, in [0, 1]; None if it was never scored."""
        return self.scores[self.best.id] if self.best else None

    @property
    def converged(self) -> bool:
        """Whether the run ended because no improvement was to be expected, with every must met."""
        end, best = self.outcome, self.best
        return (
            end is not None
            and end.reason.converged
            and best is not None
            and self.meets_musts(best.id)
        )

    @cached_view
    def iterations(self) -> int:
        """The number of refinements by a model; drafts and an editor's repairs do not count."""
        return len([c for c in self.candidates if c.role == "refine"])

    @cached_view
    def replaced_ids(self) -> set[int]:
        """The ids of candidates that an editor's repair has replaced."""
        return {
            c.parent
            for c in self.candidates
            if c.role == "repair" and c.parent is not None and not self.is_unchanged(c)
        }

    @cached_view
    def score_history(self) -> list[float | None]:
        """The scores of `scored_candidates`."""
        return [self.scores[c.id] for c in self.scored_candidates]

    @property
    def scored_candidates(self) -> list[Candidate]:
        """The candidates in order, without candidates that were replaced before they were fully
        graded.
        """
        changed = [c for c in self.candidates if not (c.role == "repair" and self.is_unchanged(c))]
        return [c for c in changed if not (self.scores[c.id] is None and c.id in self.replaced_ids)]

    @property
    def next_id(self) -> int:
        """The id of the next candidate."""
        newest = self.candidates[-1].id if self.candidates else -1
        failed: list[int] = [slot[1] for slot in self.failures if slot[0] == "candidate"]
        return max([newest, *failed]) + 1

    @property
    def usage(self) -> Usage:
        """The usage of all recorded steps, failed ones included."""
        return sum_usage(self.records)

    @property
    def usage_by(self) -> dict[tuple[str, str], Usage]:
        """Usage by (role, model); roles are generate, refine, grade and compare."""
        sums: defaultdict[tuple[str, str], Usage] = defaultdict(Usage)
        for r in self.records:
            if r.usage != NO_USAGE and not isinstance(r, Outcome):
                sums[r.role, r.by] += r.usage
        return dict(sums)

    @property
    def fatal_failure(self) -> Failure | None:
        """The failure that ends this run, if there is one: an exhausted budget or deadline, or a
        failed refinement.

        A refinement is not repeated, because it would send the same prompt.
        """
        if not self.failures:
            return None
        fatal = [f for f in self.failures.values() if f.stop_reason or f.role == "refine"]
        return min(
            fatal,
            key=lambda f: (f.stop_reason is None, str(f.stop_reason), str(f.step_slot)),
            default=None,
        )

    def header(self) -> dict[str, Any]:
        """Return the header that precedes the records in a trace file."""
        return {
            "redraft": SCHEMA,
            "task": pack(self.task),
            "panel": [pack(grader) for grader in self.panel],
            "settings": dict(self.settings),
        }

    @classmethod
    def from_header(cls, data: Mapping[str, Any]) -> Trace:
        """Make a trace without records from a header. Raises StoreError for another format or
        schema version.
        """
        check_version(data)
        panel, settings = data.get("panel", []), data.get("settings", {})
        if not isinstance(panel, list) or not all(isinstance(grader, Mapping) for grader in panel):
            raise StoreError(f"the panel must be a list of objects, got {panel!r:.80}")
        if not isinstance(settings, Mapping):
            raise StoreError(f"the settings must be an object, got {settings!r:.80}")
        return cls(
            unpack(Task, data.get("task", {})),
            tuple(unpack(PanelGrader, grader) for grader in panel),
            settings=settings,
        )

    def to_json(self) -> str:
        """Return the trace as one JSON document with its schema version."""
        records = ",".join(map(record_to_json, self.records))
        return (
            f'{json.dumps(self.header())[:-1]}, "resumed_at": {self.resumed_at}, "records": '
            f"[{records}]}}"
        )

    @classmethod
    def from_json(cls, text: str) -> Trace:
        """Read what `to_json` wrote. Raises StoreError for anything else, and for another schema
        version.
        """
        data = object_from_json(text)
        trace = cls.from_header(data)
        records, resumed_at = data.get("records", []), data.get("resumed_at", 0)
        if not isinstance(records, list) or type(resumed_at) is not int:
            raise StoreError(
                f"records must be a list and resumed_at a whole number, got {records!r:.80} and "
                f"{resumed_at!r:.80}"
            )
        return replace(
            trace.with_records([record_from_json(json.dumps(r)) for r in records]),
            resumed_at=resumed_at,
        )

    def with_records(self, records: Iterable[Record]) -> Trace:
        """Append records that were read. Raises StoreError for a candidate whose parent does not
        precede it.
        """
        extended = replace(self, records=(*self.records, *records))
        earlier: set[int] = set()
        for record in extended.records:
            if isinstance(record, Candidate):
                if record.parent is not None and record.parent not in earlier:
                    raise StoreError(
                        f"candidate {record.id} was made from candidate {record.parent}, which is "
                        "not before it"
                    )
                earlier.add(record.id)
        return extended


def _top_by(ids: list[int], merits: Sequence[float]) -> list[int]:
    """Return the ids whose merit is highest, up to SCORE_TOLERANCE."""
    if len(ids) < 2:
        return ids
    threshold = max(merits) - SCORE_TOLERANCE
    return [id for id, merit in zip(ids, merits, strict=True) if merit >= threshold]
