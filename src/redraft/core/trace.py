"""A task and everything recorded about it so far: append-only, immutable.

All else is a view computed from the records, keyed and sorted, so that nothing depends on the order in which they
arrived. Steps, plans and stop rules see the world only through this.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

from ..errors import StoreError
from .records import (
    NO_USAGE,
    Candidate,
    Comparison,
    Failure,
    Feedback,
    Outcome,
    Record,
    Slot,
    Task,
    Usage,
)
from .serialize import SCHEMA, check_version, object_from_json, pack, record_from_json, record_to_json, task_from_json, unpack

T = TypeVar("T")

SCORE_TOLERANCE = 1e-9  # scores closer than this are the same


class cached_view(Generic[T]):  # noqa: N801  (a decorator, like property)
    """Computed from the records when first asked for, then kept. Unlike functools' (before 3.12) it takes no lock."""

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self.compute, self.name, self.__doc__ = compute, compute.__name__, compute.__doc__

    def __get__(self, trace: object, owner: type | None = None) -> T:
        value = vars(trace)[self.name] = self.compute(trace)
        return value


class HasSlot(Protocol):
    """What names the slot it fills, or wants filled."""

    @property
    def slot(self) -> Slot: ...


S = TypeVar("S", bound=HasSlot)


@dataclass(frozen=True, slots=True)
class PanelGrader:
    """A grader's place on the panel: how much it weighs, and what a plan must know of it.

    `must`: a candidate that it does not score 1 loses to any that it does. `free`: it calls no model. `editable`: an
    editor can repair what it finds. `compares`: it ranks candidates instead of scoring one. `looks`: how often it is
    asked about each candidate; its score is their mean. `demand`: what a must demands, in words for the writer; "" where it
    has none. `card`: what is known of its trustworthiness, where it was asked. `may_ask`: it is handed a model that it need not
    call; once its grades show no call, it counts as free. `reads_tool_calls`: it grades candidates that call tools, too.
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


@dataclass(frozen=True)
class Trace:
    """A task, the panel of graders, and the records so far.

    Records before index `since` belong to an earlier run: its failures, and an outcome that cut the work short, no
    longer count, so that they are tried again; everything else does.
    """

    task: Task
    panel: tuple[PanelGrader, ...] = ()
    records: tuple[Record, ...] = ()
    resumed_at: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def __add__(self, record: Record) -> Trace:
        grown = Trace(self.task, self.panel, (*self.records, record), self.resumed_at, self.settings)
        known = vars(self)
        vars(grown).update({name: known[name] for name in UNAFFECTED_VIEWS[type(record)] if name in known})
        if "filled" in known and not isinstance(record, Failure):
            vars(grown)["filled"] = {**self.records_by_slot, record.slot: record}
        if isinstance(record, Feedback) and any(seat.may_call_model for seat in self.panel):
            vars(grown).pop("scoring", None)  # what a grader used shows whether it asks a model
        elif "_standing" in known and isinstance(record, Candidate | Feedback):
            self._update_views(grown, record)
        return grown

    def _update_views(self, updated: Trace, record: Candidate | Feedback) -> None:
        """Weigh anew only the candidate that a record touches. (Where candidates share their feedback, all are.)"""
        id = record.id if isinstance(record, Candidate) else record.candidate
        if self.unchanged_ids or updated.unchanged_ids or id not in updated.by_id:
            return
        views = self.feedback.get(id, ())
        if isinstance(record, Feedback):
            views = tuple(sorted((*views, record), key=_feedback_order))
            if not self._update_critics(updated, record):
                return
        elif any(isinstance(r, Feedback) and r.candidate == id for r in self.records):
            return  # its grades were there before it
        vars(updated)["feedback"] = {**self.feedback, id: views}
        vars(updated)["_standing"] = {**self._aggregates, id: updated._aggregate(id)}

    def _update_critics(self, updated: Trace, record: Feedback) -> bool:
        """Tell who is a critic, if that is as before."""
        before = self._critic_status.get(record.grader)
        steers = _critic_status_after(record, before=before)
        if (steers is True) is not (before is True):
            return False
        known = vars(self)
        vars(updated).update({name: known[name] for name in _CRITIC_VIEWS if name in known})
        if steers is not before:
            vars(updated)["_steering"] = {**self._critic_status, record.grader: steers}
        return True

    def __reduce__(self) -> tuple[Any, ...]:
        return Trace, (self.task, self.panel, self.records, self.resumed_at, self.settings)

    def for_new_run(self) -> Trace:
        """The same trace for a new run: what failed or was cut short may be tried again."""
        return replace(self, resumed_at=len(self.records))

    def with_scores(self, scores: Mapping[int, float]) -> Trace:
        """The same trace with these scores, by candidate, in the place of those that were given; rules read it as they read any.

        What was not graded stays so. Rankings do not count beside such scores.
        """
        seen = replace(self)
        standing = {id: (kept, score if score is None else scores.get(id, score)) for id, (kept, score) in self._aggregates.items()}
        vars(seen).update(
            {name: vars(self)[name] for name in (*_CANDIDATE_VIEWS, *_CRITIC_VIEWS, *_FEEDBACK_VIEWS) if name in vars(self)}
        )
        vars(seen).update(_standing=standing, comparisons=[])
        return seen

    @cached_view
    def with_estimates(self) -> Trace:
        """The same trace with what was believed when the work ended by belief; else itself."""
        return self.with_scores(dict(self.outcome.estimates)) if self.outcome and self.outcome.estimates else self

    def missing(self, steps: Iterable[S]) -> list[S]:
        """The steps nobody has carried out yet, nor failed at in this run."""
        return [step for step in steps if (slot := step.slot) not in self.records_by_slot and slot not in self.failures]

    @cached_view
    def records_by_slot(self) -> dict[Slot, Record]:
        """Every record that fills a slot, by slot. A failure fills none, nor does an outcome that no longer counts."""
        kept = (r for r in self.records if not isinstance(r, Failure | Outcome) or r is self.outcome)
        return {r.slot: r for r in kept}

    @cached_view
    def failures(self) -> dict[Slot, Failure]:
        """What failed in this run and is still missing, by the slot that stayed empty."""
        recent = (r for r in self.records[self.resumed_at :] if isinstance(r, Failure))
        return {f.step_slot: f for f in recent if f.step_slot not in self.records_by_slot}

    @cached_view
    def outcome(self) -> Outcome | None:
        """How the work ended, or None while it goes on."""
        for i in range(len(self.records) - 1, -1, -1):
            record = self.records[i]
            if isinstance(record, Outcome):
                return None if i < self.resumed_at and record.reason.resumable else record
        return None

    @cached_view
    def candidates(self) -> list[Candidate]:
        """All candidates, oldest first."""
        return sorted((r for r in self.records if isinstance(r, Candidate)), key=lambda c: c.id)

    @cached_view
    def by_id(self) -> dict[int, Candidate]:
        return {c.id: c for c in self.candidates}

    @cached_view
    def unchanged_ids(self) -> set[int]:
        """The candidates with the same text as their parent, and the same tool calls."""
        parents = ((c, self.by_id.get(c.parent)) for c in self.candidates if c.parent is not None)
        return {c.id for c, parent in parents if parent is not None and parent.content_key == c.content_key}

    @cached_view
    def tool_calling_candidate(self) -> Candidate | None:
        """The first candidate that calls tools, where no grader reads tool calls: it is the answer as it stands, ungraded."""
        if any(seat.reads_tool_calls for seat in self.panel):
            return None
        return next((c for c in self.candidates if c.tool_calls and c.role != "repair"), None)

    def is_unchanged(self, candidate: Candidate) -> bool:
        """Whether it is a copy of its parent: it is not graded again, its parent's feedback is its own."""
        return candidate.id in self.unchanged_ids

    @cached_view
    def feedback(self) -> dict[int, tuple[Feedback, ...]]:
        """What graders said of each candidate, sorted by grader and look."""
        views: defaultdict[int, list[Feedback]] = defaultdict(list)
        for record in self.records:
            if isinstance(record, Feedback):
                views[record.candidate].append(record)
        told: dict[int, tuple[Feedback, ...]] = {}
        for c in self.candidates:
            shared = told.get(c.parent) if c.parent is not None and c.id in self.unchanged_ids else None
            told[c.id] = tuple(sorted(views[c.id], key=_feedback_order)) if shared is None else shared
        return told

    def grader_score(self, candidate: int, grader: PanelGrader) -> float | None:
        """The mean of a grader's looks at a candidate; None while one is missing or unknown."""
        scores = [f.score for f in self.feedback[candidate] if f.grader == grader.name]
        known = [score for score in scores if score is not None]
        return sum(known) / len(known) if len(known) == len(scores) >= grader.repeats else None

    def _aggregate(self, candidate: int) -> tuple[float, float | None]:
        """The share of musts that are kept, and the weighted mean of the others (of the musts where there are no others).

        Critics are no part of it.
        """
        scores = [(seat, self.grader_score(candidate, seat)) for seat in self.scorers]
        musts = [score == 1 for seat, score in scores if seat.must]
        kept = sum(musts) / len(musts) if musts else 1.0
        if not scores or self.only_critics or any(score is None for _, score in scores):
            return kept, None
        counted = [(seat.weight, score or 0.0) for seat, score in scores if not seat.must or len(musts) == len(scores)]
        return kept, sum(weight * score for weight, score in counted) / sum(weight for weight, _ in counted)

    @cached_view
    def pointwise_graders(self) -> tuple[PanelGrader, ...]:
        """The graders that look at one candidate at a time (not those that rank): those that give scores, and critics.

        They are as free as their grades show them to be.
        """
        return tuple(
            replace(s, model_free=True) if s.may_call_model and self._calls_no_model(s) else s for s in self.panel if not s.compares
        )

    def _calls_no_model(self, grader: PanelGrader) -> bool:
        """Whether a grader has graded and called no model for it."""
        usages = [r.usage for r in self.records if isinstance(r, Feedback) and r.grader == grader.name]
        return bool(usages) and not any(usage.calls or usage.cached_calls for usage in usages)

    @cached_view
    def _critic_status(self) -> dict[str, bool | None]:
        """Of each grader that has said something: whether it steers and never scored; None while it only kept silent."""
        steering: dict[str, bool | None] = {}
        for record in self.records:
            if isinstance(record, Feedback):
                steering[record.grader] = _critic_status_after(record, before=steering.get(record.grader))
        return steering

    @cached_view
    def critics(self) -> frozenset[str]:
        """The graders that never score by design: so far they only said what to change, or whether to stop, or nothing where they
        had no more to say. No must is one.
        """
        return frozenset(s.name for s in self.pointwise_graders if not s.must and self._critic_status.get(s.name))

    @cached_view
    def scorers(self) -> tuple[PanelGrader, ...]:
        """The graders whose scores count: all that look at one candidate at a time but the critics."""
        return tuple(s for s in self.pointwise_graders if s.name not in self.critics)

    @cached_view
    def only_critics(self) -> bool:
        """Whether critics alone say how good an answer is: beside them there are musts at most."""
        return bool(self.critics) and all(s.must for s in self.scorers) and len(self.pointwise_graders) == len(self.panel)

    @cached_view
    def _aggregates(self) -> dict[int, tuple[float, float | None]]:
        return {c.id: self._aggregate(c.id) for c in self.candidates}

    @cached_view
    def scores(self) -> dict[int, float | None]:
        """The weighted mean score of every candidate, by id; None where a part is missing."""
        return {id: score for id, (_, score) in self._aggregates.items()}

    def meets_musts(self, candidate: int) -> bool:
        """Whether a candidate keeps every `must`."""
        return self.must_pass_rate(candidate) == 1

    def must_pass_rate(self, candidate: int) -> float:
        """The share of musts that a candidate keeps, in [0, 1]; 1 where there are none."""
        return self._aggregates[candidate][0]

    def nearness(self, candidate: int) -> float:
        """How near a candidate comes to keeping every must, in [0, 1]: the mean over them; 1 where all are kept."""
        musts = {seat.name for seat in self.scorers if seat.must}
        views = [f for f in self.feedback[candidate] if f.grader in musts]
        near = [(f.score or 0.0) if f.nearness is None else f.nearness for f in views]
        return sum(near) / len(near) if near else 1.0

    def is_done(self, candidate: int) -> bool:
        """Whether somebody says of a candidate that it is done, and nobody that it is not."""
        said = [f.done for f in self.feedback[candidate]]
        said += [c.done for c in self.comparisons[-1:] if c.ranking[0] == candidate]
        said = [word for word in said if word is not None]
        return bool(said) and all(said)

    @cached_view
    def comparisons(self) -> list[Comparison]:
        """All comparisons; the widest last."""
        found = (r for r in self.records if isinstance(r, Comparison))
        return sorted(found, key=lambda c: (len(c.ranking), max(c.ranking), c.grader, c.repeat))

    @cached_view
    def graded_candidates(self) -> list[Candidate]:
        """The candidates that have a score; or, where graders only rank, a place in the widest ranking.

        Where critics alone say how good an answer is: those of which one has spoken, and all musts.
        """
        if self.only_critics:
            return [c for c in self.candidates if self._is_critiqued(c.id)]
        if self.scorers:
            return [c for c in self.candidates if self.scores[c.id] is not None]
        return [self.by_id[i] for i in self.comparisons[-1].ranking] if self.comparisons else []

    def _is_critiqued(self, candidate: int) -> bool:
        """Whether a critic has spoken of a candidate, and every must has a score."""
        spoken = any(f.grader in self.critics for f in self.feedback[candidate])
        return spoken and all(self.grader_score(candidate, must) is not None for must in self.scorers)

    @cached_view
    def best(self) -> Candidate | None:
        """What to return: the most musts kept first, then the highest score, then what all graders that say so call done,
        then the earliest (the latest where there are only critics).

        Graders that only rank decide by their widest ranking, ties in it as above; where both are seated, it breaks ties
        of score. With nothing graded it is the last text at hand. Once the work has ended, it is what was kept.
        """
        if self.outcome and self.outcome.best in self.by_id:
            return self.by_id[self.outcome.best]
        if not self.graded_candidates:
            return self.candidates[-1] if self.candidates else None
        merits: list[Callable[[int], float | None]] = [self.must_pass_rate, self.scores.__getitem__]
        if self.comparisons:
            places = self.comparisons[-1].ranks
            merits.append(lambda c: -places.get(c, len(places)))
        merits.append(self.is_done)
        field = [c.id for c in self.graded_candidates]
        for merit in merits:
            field = _top_by(field, merit) if len(field) > 1 else field
        return self.by_id[max(field) if self.only_critics else min(field)]

    @property
    def score(self) -> float | None:
        """The score of the best candidate: what was believed of it where the work ended by that, else what was observed.

        None if it was never scored.
        """
        if self.outcome and self.outcome.score is not None:
            return self.outcome.score
        return self.judge_score

    @property
    def judge_score(self) -> float | None:
        """The score that the best candidate was given, in [0, 1]; None if it was never scored."""
        return self.scores[self.best.id] if self.best else None

    @property
    def converged(self) -> bool:
        """Whether the work ended because there was nothing better to expect, with every must kept."""
        end, best = self.outcome, self.best
        return end is not None and end.reason.converged and best is not None and self.meets_musts(best.id)

    @property
    def iterations(self) -> int:
        """How many refinements a model made. The first draft is none, nor is an editor's repair."""
        return sum(c.role == "refine" for c in self.candidates)

    @cached_view
    def replaced_ids(self) -> set[int]:
        """The candidates that an editor's repair has replaced."""
        return {c.parent for c in self.candidates if c.role == "repair" and c.parent is not None and not self.is_unchanged(c)}

    @cached_view
    def score_history(self) -> list[float | None]:
        """The scores of the candidates in order, without those that were replaced before they were fully graded."""
        idle = {c.id for c in self.candidates if c.role == "repair" and self.is_unchanged(c)}
        shown = [c.id for c in self.candidates if c.id not in idle]
        return [self.scores[id] for id in shown if not (self.scores[id] is None and id in self.replaced_ids)]

    @property
    def next_id(self) -> int:
        """The id of the candidate to come."""
        taken = [c.id for c in self.candidates[-1:]] + [
            f.step_slot[1] for f in self.failures.values() if f.step_slot[0] == "candidate"
        ]
        return max(taken, default=-1) + 1

    @property
    def usage(self) -> Usage:
        """What all recorded steps consumed, failed ones included."""
        return sum((r.usage for r in self.records), NO_USAGE)

    @property
    def usage_by(self) -> dict[tuple[str, str], Usage]:
        """Usage by (role, model); roles are generate, refine, grade and compare."""
        sums: defaultdict[tuple[str, str], Usage] = defaultdict(Usage)
        for role, by, usage in self._usage_entries():
            sums[role, by] += usage
        return dict(sums)

    def _usage_entries(self) -> Iterator[tuple[str, str, Usage]]:
        for r in self.records:
            if r.usage != NO_USAGE and not isinstance(r, Outcome):
                yield RECORD_ROLES.get(type(r)) or r.role, r.by, r.usage  # type: ignore[union-attr]

    @property
    def fatal_failure(self) -> Failure | None:
        """The failure for which the world would carry out no more in this run, if there is one.

        Used-up money or time ends the work; so does a refinement that failed: it would be asked for in the same words.
        """
        final = [f for f in self.failures.values() if f.stop_reason or f.role == "refine"]
        return min(final, key=lambda f: (f.stop_reason is None, str(f.stop_reason), str(f.step_slot)), default=None)

    def header(self) -> dict[str, Any]:
        """What stands before the records when a trace is written."""
        return {
            "redraft": SCHEMA,
            "task": pack(self.task),
            "panel": [pack(seat) for seat in self.panel],
            "settings": dict(self.settings),
        }

    @classmethod
    def from_header(cls, data: Mapping[str, Any]) -> Trace:
        """A trace without records. Raises StoreError for a foreign or unknown format."""
        check_version(data)
        panel, settings = data.get("panel", []), data.get("settings", {})
        if not isinstance(panel, list) or not all(isinstance(seat, Mapping) for seat in panel):
            raise StoreError(f"the panel must be a list of objects, got {panel!r:.80}")
        if not isinstance(settings, Mapping):
            raise StoreError(f"the settings must be an object, got {settings!r:.80}")
        return cls(task_from_json(data.get("task", {})), tuple(unpack(PanelGrader, seat) for seat in panel), settings=settings)

    def to_json(self) -> str:
        """The whole trace as one JSON document, the schema version inside."""
        records = ",".join(map(record_to_json, self.records))
        return f'{json.dumps(self.header())[:-1]}, "since": {self.resumed_at}, "records": [{records}]}}'

    @classmethod
    def from_json(cls, text: str) -> Trace:
        """The trace that `to_json` wrote. Raises StoreError for anything else, and for an unknown schema version."""
        data = object_from_json(text)
        trace = cls.from_header(data)
        records, since = data.get("records", []), data.get("since", 0)
        if not isinstance(records, list) or type(since) is not int:
            raise StoreError(f"records must be a list and since a whole number, got {records!r:.80} and {since!r:.80}")
        return replace(trace.with_records([record_from_json(json.dumps(r)) for r in records]), resumed_at=since)

    def with_records(self, records: Iterable[Record]) -> Trace:
        """The same with records that were read after it. Raises StoreError for a candidate made from one that is not before it."""
        grown = replace(self, records=(*self.records, *records))
        known: set[int] = set()
        for record in grown.records:
            if isinstance(record, Candidate):
                if record.parent is not None and record.parent not in known:
                    raise StoreError(f"candidate {record.id} was made from candidate {record.parent}, which is not before it")
                known.add(record.id)
        return grown


def _top_by(ids: Iterable[int], merit: Callable[[int], float | None]) -> list[int]:
    """Those of which a merit is highest."""
    worth = {id: merit(id) or 0.0 for id in ids}
    top = max(worth.values()) - SCORE_TOLERANCE
    return [id for id, value in worth.items() if value >= top]


def _critic_status_after(feedback: Feedback, *, before: bool | None) -> bool | None:
    """Whether a grader steers and never scores, after one more view of it; None while it only kept silent."""
    if before is False or feedback.score is not None:
        return False
    return feedback.is_critique or before


def _feedback_order(feedback: Feedback) -> tuple[str, int]:
    return feedback.grader, feedback.repeat


# The views that a record of each kind leaves as they are: they are handed on, so that planning stays cheap.
_CANDIDATE_VIEWS = ("candidates", "by_id", "copies", "replaced", "handed_on")
_CRITIC_VIEWS = ("_steering", "critics", "scorers", "only_critics")
_FEEDBACK_VIEWS = ("filled", "scoring", "outcome", "comparisons", "feedback")
_GRADE_VIEWS = ("feedback", "_standing", "scores")
UNAFFECTED_VIEWS: dict[type, tuple[str, ...]] = {
    Candidate: ("scoring", "outcome", "comparisons", *_CRITIC_VIEWS),
    Feedback: ("scoring", "outcome", "comparisons", *_CANDIDATE_VIEWS),
    Comparison: ("scoring", "outcome", *_CANDIDATE_VIEWS, *_CRITIC_VIEWS, *_GRADE_VIEWS),
    Failure: ("scoring", "outcome", "comparisons", "filled", *_CANDIDATE_VIEWS, *_CRITIC_VIEWS, *_GRADE_VIEWS),
    Outcome: ("scoring", "comparisons", *_CANDIDATE_VIEWS, *_CRITIC_VIEWS, *_GRADE_VIEWS),
}
RECORD_ROLES: dict[type, str] = {Feedback: "grade", Comparison: "compare"}
