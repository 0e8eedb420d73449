"""`RewardFunction`: graders as a reward, for as long as a training run takes.

All calls in a process share one `GradingSession`: its budget, cache, limit on calls in flight and
what it learned of endpoints. It lives in an event loop of its own, in a daemon thread, so a reward
can be asked for from any thread, with an event loop or without. Another process, forked or spawned,
opens a session of its own at its first call: each process has the whole budget then.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from math import isfinite
from numbers import Real
from threading import Thread
from typing import Any, TypeGuard, TypeVar, Unpack

from ..errors import BudgetExhaustedError, ConfigError, error_name
from ..grading import GradeSettings, GradingSession
from ..loop.records import Comparison, StopReason
from ..loop.task import Task
from ..loop.trace import PanelGrader, Trace
from ..settings import check_names
from .agreement import AgreementTracker, count, log

T = TypeVar("T")
LABEL = "label"  # what agreement calls a label of people


@dataclass(frozen=True, slots=True)
class ResponseReward:
    """The reward of one response.

    Attributes:
        value: From 0 to 1; None if it is unknown.
        parts: The score of each grader, None where it is unknown. The part of a grader that ranks
            is the share of the other responses of the group that it puts below this one; ties count
            half.
        reason: Why the value is unknown, without texts of prompts, responses or servers; "" if it
            is known.
        asks_model: Names of the graders that asked a model.
        shortage: The budget that was used up, if that is why the value is unknown.
    """

    value: float | None
    parts: Mapping[str, float | None] = field(default_factory=dict)
    reason: str = ""
    asks_model: frozenset[str] = frozenset()
    shortage: BudgetExhaustedError | None = None


@dataclass(frozen=True, slots=True)
class RewardSample:
    """A response to be rewarded. `label`: the score of a person, of which a higher one is better;
    None: none.
    """

    task: Task
    label: float | None = None


class RewardFunction:
    """Graders as a reward.

    The reward is the weighted mean of the graders' scores, 0 if a condition (`must`) is not met,
    and None, unknown, if a part is missing. With conditions only, it is their mean.

    Args:
        graders: As in `redraft.grade`; with `groups` also graders that rank (`"ranker"`), which get
            all responses of a group in one call.
        judge: The model that LLM graders ask, as in `redraft.grade`.
        blank: The reward of a blank response, which no grader sees; None: unknown.
        groups: Whether samples that differ only in their response (and metadata) are a group, which
            is ranked together. Without it no grader may rank.
        **settings: As in `redraft.grade`. `budget`, `cache` and `max_in_flight` hold for all calls
            in a process together, `deadline` for each call.

    Raises:
        ConfigError: A setting does not exist, or `blank` is no finite number. What else is wrong
            is reported by the first call.
    """

    def __init__(
        self,
        graders: Any = None,
        judge: Any = None,
        *,
        blank: float | None = 0.0,
        groups: bool = False,
        **settings: Unpack[GradeSettings],
    ) -> None:
        check_names("grade", settings, ("graders", "judge", "blank", "groups"))
        if blank is not None and not is_finite_number(blank):
            raise ConfigError(f"blank must be a finite number or None, got {blank!r:.80}")
        self.agreement = AgreementTracker()
        self._blank, self._groups = blank, groups
        self._session = (graders, judge, settings)
        self._workers: dict[int, _SessionThread] = {}  # by process

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_workers": {}}

    async def rewards(self, samples: Sequence[RewardSample]) -> list[ResponseReward]:
        """Return the reward of each sample, in their order.

        Raises ConfigError, and BudgetExhaustedError if the budget left no reward for a sample.
        """
        return _affordable(await asyncio.wrap_future(self._submit(samples)))

    def rewards_sync(self, samples: Sequence[RewardSample]) -> list[ResponseReward]:
        """Do the same without await; not for a coroutine, whose event loop it would block."""
        return _affordable(self.paid_rewards(samples))

    def paid_rewards(self, samples: Sequence[RewardSample]) -> list[ResponseReward]:
        """Do the same, but return also what was graded before the budget ran out: the other rewards
        are unknown and have a `shortage`.
        """
        return self._submit(samples).result()

    def close(self) -> None:
        """Close the models of this process that were connected. A later call opens a session anew,
        with the whole budget.
        """
        if worker := self._workers.pop(os.getpid(), None):
            worker.close()

    def _submit(self, samples: Sequence[RewardSample]) -> Future[list[ResponseReward]]:
        worker = self._workers.get(os.getpid())
        if worker is None:
            new = _SessionThread(*self._session)
            worker = self._workers.setdefault(os.getpid(), new)  # atomic, unlike a lock in a fork
            new.start() if worker is new else new.loop.close()
        return worker.submit(self._rewards(worker, samples))

    async def _rewards(
        self, worker: _SessionThread, samples: Sequence[RewardSample]
    ) -> list[ResponseReward]:
        session = await worker.session()
        tasks = [each.task for each in samples if each.task.given_responses]
        graded = iter(await self._grade(session, tasks))
        blank = ResponseReward(self._blank, {}, "blank response" if self._blank is None else "")
        found = [next(graded) if each.task.given_responses else blank for each in samples]
        for sample, reward in zip(samples, found, strict=True):
            self._follow(reward, sample.label)
        report_unknown(found)
        return found

    async def _grade(self, session: GradingSession, tasks: Sequence[Task]) -> list[ResponseReward]:
        if not (self._groups and any(grader.compares for grader in session.panel)):
            reports = await session.grade_many(tasks)
            return [reward_of(each.trace, 0, each.error) for each in reports]
        groups: dict[str, list[Task]] = {}
        for task in tasks:
            groups.setdefault(group_key(task), []).append(task)
        ranked = await asyncio.gather(*(_rank(session, each) for each in groups.values()))
        by_text = dict(zip(groups, ranked, strict=True))
        return [by_text[group_key(task)][task.given_responses[0]] for task in tasks]

    def _follow(self, reward: ResponseReward, label: float | None) -> None:
        judges = {name: reward.parts[name] for name in reward.asks_model if name in reward.parts}
        others = {name: part for name, part in reward.parts.items() if name not in judges}
        self.agreement.add(judges, {**others, LABEL: label})


class _SessionThread:
    """The event loop of a reward function in one process, and its session."""

    def __init__(self, graders: Any, judge: Any, settings: GradeSettings) -> None:
        self.loop = asyncio.new_event_loop()
        self._arguments = (graders, judge, settings)
        self._opening: asyncio.Task[GradingSession] | None = None
        self._thread = Thread(target=self.loop.run_forever, name="redraft-rewards", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    async def session(self) -> GradingSession:
        """Return the session, which the first call opens. Raises ConfigError, in each call."""
        if self._opening is None:
            graders, judge, settings = self._arguments
            opened = GradingSession.open(graders, judge, **settings)
            self._opening = asyncio.ensure_future(opened)
        return await asyncio.shield(self._opening)

    def close(self) -> None:
        self.submit(self._close_session()).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    async def _close_session(self) -> None:
        if self._opening:
            await asyncio.wait([self._opening])
            if not self._opening.exception():
                await self._opening.result().close()


def is_finite_number(value: object) -> TypeGuard[float]:
    """Whether a value is a number, also of NumPy, that is not a bool, infinite or NaN."""
    return isinstance(value, Real) and not isinstance(value, bool) and isfinite(value)


# ---- rewards of graded responses


def group_key(task: Task) -> str:
    """Return what tasks of a group have in common."""
    parts = (task.messages, task.reference, task.context, task.tests, task.requirements)
    return repr(parts)


def group_of(tasks: Sequence[Task]) -> Task:
    """Return one task with the responses of all; all else is of the first."""
    first = tasks[0]
    return Task(
        first.messages,
        responses=[text for task in tasks for text in task.given_responses],
        reference=first.reference,
        context=first.context,
        tests=first.tests,
        requirements=first.requirements,
        metadata=first.metadata,
    )


async def _rank(session: GradingSession, tasks: Sequence[Task]) -> dict[str, ResponseReward]:
    """Return the rewards of a group by response."""
    group = group_of(tasks)
    if len(group.responses) == 1:
        return {
            group.responses[0]: ResponseReward(None, reason="no other response to rank it with")
        }
    trace = await session.grade_group(group)
    return {each.text: reward_of(trace, each.id) for each in trace.candidates}


def reward_of(trace: Trace, candidate: int, error: Exception | None = None) -> ResponseReward:
    """Return the reward of a graded candidate."""
    counted = (*trace.scorers, *trace.graders.rankers)
    parts = {g.name: _part(trace, candidate, g) for g in counted}
    musts = [parts[g.name] for g in counted if g.must]
    only_musts = len(musts) == len(parts)
    weighted = [(g.weight, parts[g.name]) for g in counted if only_musts or not g.must]
    value: float | None = None
    if not only_musts and any(part is not None and part < 1 for part in musts):
        value = 0.0
    elif parts and None not in parts.values():
        total = sum(weight for weight, _ in weighted)
        value = sum(weight * (part or 0.0) for weight, part in weighted) / total
    models = frozenset(g.name for g in trace.graders if not g.model_free)
    if value is not None:
        return ResponseReward(value, parts, asks_model=models)
    return ResponseReward(None, parts, _reason(trace, parts, error), models, _shortage(trace))


def _part(trace: Trace, candidate: int, grader: PanelGrader) -> float | None:
    if grader.compares:
        rankings = [each for each in trace.comparisons if each.grader == grader.name]
        return win_share(rankings, candidate) if len(rankings) >= grader.repeats else None
    return trace.grader_score(candidate, grader) if candidate in trace.feedback else None


def win_share(rankings: Sequence[Comparison], candidate: int) -> float | None:
    """Return the share of the other candidates that rankings put below one, from 0 to 1, ties
    counted half: the mean over the rankings. None if it was not compared with another.
    """
    shares: list[float] = []
    for ranks in (each.ranks for each in rankings):
        own, others = ranks.get(candidate), [rank for id, rank in ranks.items() if id != candidate]
        if own is None or not others:
            return None
        wins = sum(1.0 if own < rank else 0.5 if own == rank else 0.0 for rank in others)
        shares.append(wins / len(others))
    return sum(shares) / len(shares) if shares else None


def _shortage(trace: Trace) -> BudgetExhaustedError | None:
    """Return what the budget did not allow, if it ran out."""
    for failure in trace.failures.values():
        if failure.stop_reason is StopReason.BUDGET:
            return BudgetExhaustedError(
                f"the budget of the rewards is used up ({failure.limit}): give a larger one, or "
                "end the training run",
                limit=failure.limit,
                usage=trace.usage,
            )
    return None


def _affordable(rewards: list[ResponseReward]) -> list[ResponseReward]:
    """Return the rewards. Raises BudgetExhaustedError if one lacks what the budget did not
    allow.
    """
    for reward in rewards:
        if reward.shortage:
            raise reward.shortage
    return rewards


def _reason(trace: Trace, parts: Mapping[str, float | None], error: Exception | None) -> str:
    """Return why a reward is unknown: names of graders and kinds of errors, no foreign text."""
    failed = {str(slot[2]): each.error for slot, each in trace.failures.items() if len(slot) > 2}
    unknown = [name for name, part in parts.items() if part is None]
    reasons = [f"{name}: {failed.get(name, 'no score')}" for name in unknown]
    return "; ".join(reasons) or (error_name(error) if error else "nothing graded it")


def report_unknown(rewards: Sequence[ResponseReward]) -> None:
    """Log how many rewards are unknown and why, and count them in OpenTelemetry
    (`redraft.rewards.unknown`).
    """
    unknown = Counter(reward.reason for reward in rewards if reward.value is None)
    if unknown:
        reasons = ", ".join(f"{reason} ({n})" for reason, n in unknown.most_common(5))
        log.warning("%d of %d rewards are unknown: %s", unknown.total(), len(rewards), reasons)
    for reason, n in unknown.items():
        count("redraft.rewards.unknown", n, {"reason": reason[:100]})
