"""The trace: a task and everything recorded about it so far; immutable, and extended only by `+`.

Everything else is a view computed from the records, keyed and sorted so that nothing depends on the
order in which they arrived. Plans and stop rules are functions of the trace.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Generic, Protocol, TypeVar

from ..errors import StoreError
from ..usage import NO_USAGE, Usage, sum_usage
from .records import Candidate, Comparison, Failure, Feedback, Outcome, Record, Slot
from .serialize import (
    SCHEMA,
    check_version,
    object_from_json,
    pack,
    record_from_json,
    record_to_json,
    task_from_json,
    unpack,
)
from .task import Task

T = TypeVar("T")

MAX_REASON_CHARS = 300
END_RECORDS = frozenset({Failure, Outcome})  # those that may no longer count in a new run
SCORE_TOLERANCE = 1e-9  # scores closer than this are equal


class cached_view(Generic[T]):  # noqa: N801  (a decorator, like property)
    """A property that is computed on first use and then stored. Unlike functools.cached_property
    before 3.12, it takes no lock.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self.compute, self.name, self.__doc__ = compute, compute.__name__, compute.__doc__

    def __get__(self, trace: object, owner: type | None = None) -> T:
        value = trace.__dict__[self.name] = self.compute(trace)
        return value


class HasSlot(Protocol):
    """A record or a step: something with a slot."""

    @property
    def slot(self) -> Slot: ...


S = TypeVar("S", bound=HasSlot)


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
    def data(self) -> tuple[dict[str, Any], ...]:
        """The graders as JSON objects."""
        return tuple([pack(grader) for grader in self])

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
    """

    task: Task
    panel: tuple[PanelGrader, ...] = ()
    records: tuple[Record, ...] = ()
    resumed_at: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.records, tuple) and len(self.records) < 2:
            self.__dict__.update(_views_at_start(self))

    def __add__(self, record: Record) -> Trace:
        extended, cached, kind = object.__new__(Trace), self.__dict__, record.__class__
        views = {name: cached[name] for name in UNAFFECTED_VIEWS[kind] if name in cached}
        views["records"] = (*self.records, record)
        object.__setattr__(extended, "__dict__", views)
        if kind is Failure:
            return extended
        if "records_by_slot" in cached:
            slot = record.slot
            views["records_by_slot"] = {**self.records_by_slot, slot: record}
            if "failures" in cached and slot not in self.failures:
                views["failures"] = self.failures
        if isinstance(record, Feedback):
            self._add_feedback(record, extended)
        elif isinstance(record, Candidate) and "candidates" in cached:
            self._add_candidate(record, extended)
        return extended

    def _add_candidate(self, candidate: Candidate, extended: Trace) -> None:
        """Extend the views by a candidate that is newer than all others; after any other one, they
        are computed anew.
        """
        if self.candidates and candidate.id <= self.candidates[-1].id:
            return
        cached, views, id = self.__dict__, extended.__dict__, candidate.id
        views["candidates"], views["by_id"] = (
            [*self.candidates, candidate],
            {**self.by_id, id: candidate},
        )
        if "iterations" in cached:
            views["iterations"] = self.iterations + (candidate.role == "refine")
        if extended._repeats_parent(candidate):
            return
        is_plain = candidate.role != "repair" and not candidate.tool_calls
        for name in (
            ("unchanged_ids", "replaced_ids", "tool_calling_candidate")
            if is_plain
            else ("unchanged_ids",)
        ):
            if name in cached:
                views[name] = cached[name]
        if "aggregates" in cached and id not in [
            r.candidate for r in self.records if type(r) is Feedback
        ]:
            views["feedback"] = {**self.feedback, id: ()}
            views["aggregates"] = {
                **self.aggregates,
                id: (float(not extended.graders.has_musts), None),
            }
            views["scores"] = {**self.scores, id: None}
            # it is none of them yet
            if "graded_candidates" in cached and self.scorers and not self.outcome:
                views["graded_candidates"] = self.graded_candidates
                if "best" in cached and self.graded_candidates:
                    views["best"] = self.best

    def _add_feedback(self, feedback: Feedback, extended: Trace) -> None:
        """Update the scores of the one candidate that a feedback concerns; if candidates share
        feedback, recompute all.
        """
        views, id = extended.__dict__, feedback.candidate
        if "says_done" in self.__dict__:
            views["says_done"] = self.says_done or bool(feedback.done)
        if feedback.grader in self.graders.may_call_model:
            # the usage of the feedback shows whether the grader calls a model
            views.pop("graders", None)
            return
        if "aggregates" not in self.__dict__ or self.unchanged_ids or id not in self.by_id:
            return
        if not self._keeps_critics(feedback, extended):
            return
        earlier = self.feedback[id]
        views["feedback"] = {**self.feedback, id: _in_order([*earlier, feedback])}
        aggregate, before = extended._aggregate(id), self.aggregates[id]
        if aggregate == before:  # other graders are missing
            views["aggregates"], views["scores"] = self.aggregates, self.scores
            return
        views["aggregates"], views["scores"] = (
            {**self.aggregates, id: aggregate},
            {**self.scores, id: aggregate[1]},
        )
        graded = self.__dict__.get("graded_candidates")
        is_new = before[1] is None and aggregate[1] is not None and not self.only_critics
        if is_new and graded is not None and (not graded or graded[-1].id < id):
            views["graded_candidates"] = [*graded, self.by_id[id]]

    def _keeps_critics(self, feedback: Feedback, extended: Trace) -> bool:
        """Copy the views on critics if a feedback changes none of them; return whether it does
        not.
        """
        cached, views, before = (
            self.__dict__,
            extended.__dict__,
            self._critic_status.get(feedback.grader),
        )
        status = _critic_status_after(feedback, before=before)
        if (
            (status is True) is not (before is True)
            or status is None
            or None in self._critic_status.values()
        ):
            return False
        for name in _CRITIC_VIEWS:
            if name in cached:
                views[name] = cached[name]
        if status is not before:
            views["_critic_status"] = {**self._critic_status, feedback.grader: status}
        return True

    def __reduce__(self) -> tuple[Any, ...]:
        return Trace, (self.task, self.panel, self.records, self.resumed_at, self.settings)

    def for_new_run(self) -> Trace:
        """Return the trace for a new run, in which failed and interrupted steps may be tried
        again.
        """
        if self.resumed_at == len(self.records):
            return self
        if not END_RECORDS.isdisjoint(map(type, self.records)):
            return Trace(self.task, self.panel, self.records, len(self.records), self.settings)
        trace = object.__new__(Trace)  # with the same views
        object.__setattr__(trace, "__dict__", {**self.__dict__, "resumed_at": len(self.records)})
        return trace

    def with_scores(self, scores: Mapping[int, float], best: Candidate | None = None) -> Trace:
        """Return the trace with these scores, by candidate id, in place of the graders'; stop rules
        can read it.

        Candidates without a score keep none. Rankings are ignored. `best`: the best by these
        scores, if it is known.
        """
        rescored, cached = object.__new__(Trace), vars(self)
        aggregates = {
            id: (passed, score if score is None else scores.get(id, score))
            for id, (passed, score) in self.aggregates.items()
        }
        vars(rescored).update(
            [(name, cached[name]) for name in _SCORE_FREE_FIELDS if name in cached]
        )
        vars(rescored).update(aggregates=aggregates, comparisons=[], failures=self.failures)
        if best is not None:
            vars(rescored)["best"] = best
        if (self.scorers or self.only_critics) and "graded_candidates" in cached:
            vars(rescored)["graded_candidates"] = cached["graded_candidates"]
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
        return (
            {f.step_slot: f for f in recent if f.step_slot not in self.records_by_slot}
            if recent
            else {}
        )

    @cached_view
    def outcome(self) -> Outcome | None:
        """How the run ended; None until then."""
        for i in range(len(self.records) - 1, -1, -1):
            record = self.records[i]
            if isinstance(record, Outcome):
                return None if i < self.resumed_at and record.reason.resumable else record
        return None

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
        return {c.id for c in self.candidates if c.parent is not None and self._repeats_parent(c)}

    def _repeats_parent(self, candidate: Candidate) -> bool:
        parent = None if candidate.parent is None else self.by_id.get(candidate.parent)
        return (
            parent is not None
            and parent.text == candidate.text
            and parent.content_key == candidate.content_key
        )

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
        own: dict[int, list[Feedback]] = {}
        for record in self.records:
            if isinstance(record, Feedback):
                own.setdefault(record.candidate, []).append(record)
        feedback: dict[int, tuple[Feedback, ...]] = {}
        for c in self.candidates:
            shared = (
                feedback.get(c.parent)
                if c.parent is not None and c.id in self.unchanged_ids
                else None
            )
            feedback[c.id] = _in_order(own.get(c.id, ())) if shared is None else shared
        return feedback

    def grader_score(self, candidate: int, grader: PanelGrader) -> float | None:
        """Return the mean of a grader's scores of a candidate; None while one of its repeats is
        missing or unknown.
        """
        return _mean_score(
            [f.score for f in self.feedback[candidate] if f.grader == grader.name], grader.repeats
        )

    def _aggregate(self, candidate: int) -> tuple[float, float | None]:
        """Return the share of musts that are met, and the weighted mean of the other scores (of the
        musts if there are no others).

        Critics do not count.
        """
        feedback, scorers, has_musts = (
            self.feedback[candidate],
            self.scorers,
            self.graders.has_musts,
        )
        if len(feedback) < len(scorers) and not (feedback and has_musts):
            return float(not has_musts), None
        given: dict[str, list[float | None]] = {}
        for f in feedback:
            given.setdefault(f.grader, []).append(f.score)
        scores = [_mean_score(given.get(grader.name, ()), grader.repeats) for grader in scorers]
        pairs, pass_rate = list(zip(scorers, scores, strict=True)), 1.0
        if has_musts:
            met = [score == 1 for grader, score in pairs if grader.must]
            pass_rate = sum(met) / len(met)
            pairs = [pair for pair in pairs if not pair[0].must] or pairs
        if not scores or None in scores or self.only_critics:
            return pass_rate, None
        return pass_rate, sum([g.weight * (score or 0.0) for g, score in pairs]) / sum(
            [g.weight for g, _ in pairs]
        )

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
                status[record.grader] = _critic_status_after(
                    record, before=status.get(record.grader)
                )
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
        return {c.id: self._aggregate(c.id) for c in self.candidates}

    @cached_view
    def scores(self) -> dict[int, float | None]:
        """The weighted mean score of every candidate, by id; None while a part is missing."""
        return {id: score for id, (_, score) in self.aggregates.items()}

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
        verdicts = [f.done for f in self.feedback[candidate] if f.done is not None]
        if self.comparisons:
            verdicts += [
                c.done
                for c in self.comparisons[-1:]
                if c.ranking[0] == candidate and c.done is not None
            ]
        return bool(verdicts) and all(verdicts)

    @cached_view
    def comparisons(self) -> list[Comparison]:
        """All comparisons, the one of most candidates last."""
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
        """Return those of these graded candidates that tie for best: only their age distinguishes
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

    @cached_view
    def problems_by_attempt(self) -> dict[int, tuple[tuple[Any, ...], list[str]]]:
        """A cache, which `core.prompts` fills: what it found wrong with refinements, by id, and the
        records that it read for that.

        All traces of a run share it, so that an attempt is read once and not for every later
        prompt.
        """
        return {}

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
                role = (
                    "grade"
                    if isinstance(r, Feedback)
                    else "compare"
                    if isinstance(r, Comparison)
                    else r.role
                )
                sums[role, r.by] += r.usage
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
            "panel": [dict(grader) for grader in self.panel.data]
            if isinstance(self.panel, Panel)
            else [pack(grader) for grader in self.panel],
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
            task_from_json(data.get("task", {})),
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


def _mean_score(scores: Sequence[float | None], repeats: int) -> float | None:
    """Return the mean of a grader's scores of a candidate; None while one of its repeats is missing
    or unknown.
    """
    if len(scores) < repeats:
        return None
    known = [score for score in scores if score is not None]
    return sum(known) / len(known) if len(known) == len(scores) else None


def _critic_status_after(feedback: Feedback, *, before: bool | None) -> bool | None:
    """Return a grader's critic status (see `_critic_status`) after one more feedback."""
    if before is False or feedback.score is not None:
        return False
    return feedback.is_critique or before


def _in_order(feedback: Sequence[Feedback]) -> tuple[Feedback, ...]:
    """Return feedback sorted by grader and repeat."""
    return (
        tuple(feedback)
        if len(feedback) < 2
        else tuple(sorted(feedback, key=attrgetter("grader", "repeat")))
    )


def _views_at_start(trace: Trace) -> dict[str, Any]:
    """Return the views of a trace without records, or with one given answer, as a row to be graded
    has; none after another record.

    They are its own, since a user's plan may change a list that it is given.
    """
    views: dict[str, Any] = {
        "records_by_slot": {},
        "failures": {},
        "outcome": None,
        "candidates": [],
        "iterations": 0,
        "problems_by_attempt": {},
        "by_id": {},
        "unchanged_ids": set(),
        "tool_calling_candidate": None,
        "feedback": {},
        "_critic_status": {},
        "critics": frozenset(),
        "silent_graders": frozenset(),
        "says_done": False,
        "only_critics": False,
        "aggregates": {},
        "scores": {},
        "comparisons": [],
        "replaced_ids": set(),
        "graded_candidates": [],
    }
    if not trace.records:
        return views
    answer = trace.records[0]
    if not isinstance(answer, Candidate) or answer.role != "given" or answer.tool_calls:
        return {}
    id = answer.id
    views["records_by_slot"][answer.slot] = views["by_id"][id] = answer
    views["candidates"].append(answer)
    views["feedback"][id], views["scores"][id] = (), None
    views["aggregates"][id] = float(not trace.graders.has_musts), None
    return views


# What a record of each kind leaves unchanged: fields and views. `+` copies them to the new trace,
# so that planning stays fast.
_CANDIDATE_VIEWS = (
    "iterations",
    "candidates",
    "by_id",
    "unchanged_ids",
    "replaced_ids",
    "tool_calling_candidate",
)
_CRITIC_VIEWS = ("_critic_status", "silent_graders", "critics", "scorers", "only_critics")
_FEEDBACK_VIEWS = ("records_by_slot", "graders", "outcome", "comparisons", "feedback")
_GRADE_VIEWS = ("feedback", "aggregates", "scores")
_RECORDED_VIEWS = ("graders", "says_done", *_CANDIDATE_VIEWS, *_CRITIC_VIEWS, *_GRADE_VIEWS)
_FIELDS = ("task", "panel", "resumed_at", "settings", "problems_by_attempt")
_SCORE_FREE_FIELDS = (
    "records",
    "says_done",
    *_FIELDS,
    *_CANDIDATE_VIEWS,
    *_CRITIC_VIEWS,
    *_FEEDBACK_VIEWS,
)
UNAFFECTED_VIEWS: dict[type, tuple[str, ...]] = {
    Candidate: (*_FIELDS, "graders", "outcome", "comparisons", "says_done", *_CRITIC_VIEWS),
    Feedback: (*_FIELDS, "graders", "outcome", "comparisons", *_CANDIDATE_VIEWS),
    Comparison: (*_FIELDS, "outcome", *_RECORDED_VIEWS),
    Failure: (
        *_FIELDS,
        "outcome",
        "comparisons",
        "records_by_slot",
        "graded_candidates",
        "score_history",
        *_RECORDED_VIEWS,
    ),
    Outcome: (*_FIELDS, "comparisons", "graded_candidates", "score_history", *_RECORDED_VIEWS),
}
