"""A pairwise judge: a model that says which of two answers is better, asked in both orders.

Judges favour places; a verdict that changes with the order is no verdict but a tie (Zheng et al., arXiv:2306.05685).
Several answers are ranked by their wins over each other, after Copeland (1951).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, groupby
from typing import ClassVar

from ...core.records import Candidate, Comparison, Task
from ...protocols import Ask, Reply
from ..composite import agreed, together, unlike
from . import json_reader as reading
from .listwise import BY_CRITERIA, FAIR, Ranker, Verdict, changes, form_of, knockout, said_by, shuffle
from .pointwise import SYSTEM
from .prompt import CONTROL_NOTICE, DATA_NOTICE

WHICH = "Say which of these two answers to the task better serves whoever asked."
FORM = (
    'Answer with one JSON object only: {"reason": "what decides it, without saying which stood first", '
    '"change": ["what would make the better answer better"], "winner": "first", "second", or "tie" if neither is better, '
    '"done": true only if nothing should change}'
)
CHANGED = "the verdict changed with the order"
WINNERS = ("first", "second", "tie")
DUEL = form_of(winner={"type": "string", "enum": list(WINNERS)})


@dataclass(frozen=True)
class Pairwise(Ranker):
    """Ranks candidates by duels, each asked in both orders; one whose verdict changes with the order is a tie.

    The fields are those of `Ranker`. Up to `most` candidates (>= 2) all meet each other and are ranked by their wins, a
    tie counting half; of more, pairs meet and winners go on until so many are left, and the others tie by the round
    they reached. `votes` holds every verdict, with the order in which the two were `shown`. It is `done` where both
    verdicts of every duel of the best say so. Two calls a duel, n (n - 1) calls for n candidates that all meet.
    """

    name: str = "pairwise"
    instruction: str = WHICH
    most: int = 4

    wording: ClassVar[tuple[str, ...]] = (SYSTEM, BY_CRITERIA, DATA_NOTICE, CONTROL_NOTICE, FAIR, FORM, CHANGED)

    async def compare(self, task: Task, candidates: Sequence[Candidate], ask: Ask) -> Comparison:
        """The ranking of all candidates; of one alone, without asking. Raises BadResponseError as `duel` does."""
        if len(candidates) < 2:
            return Comparison(tuple(c.id for c in candidates))

        async def contest(group: Sequence[Candidate]) -> Comparison:
            return await self.meet(task, group, ask)

        return await knockout(await shuffle(task, candidates, ask.look), self.most, 2, contest)

    async def meet(self, task: Task, group: Sequence[Candidate], ask: Ask) -> Comparison:
        """Everyone against everyone else: two or more candidates."""
        pairs = list(combinations(group, 2))
        verdicts = await together(self.duel(task, *order, ask) for one, other in pairs for order in ((one, other), (other, one)))
        return by_wins([settled(*verdicts[i : i + 2]) for i in range(0, len(verdicts), 2)])

    async def duel(self, task: Task, first: Candidate, second: Candidate, ask: Ask) -> Comparison:
        """One asking about two candidates in one order. Raises BadResponseError when it stays unreadable after a re-ask."""
        answers = {"first": said_by(first), "second": said_by(second)}
        return await self.put(task, answers, ask, Verdict(FORM, DUEL, lambda reply: read_duel(reply, first, second)))


def read_duel(reply: Reply, first: Candidate, second: Candidate) -> Comparison:
    """The comparison in a reply about two answers. Raises Unreadable."""
    data = reading.read_object(reply.text)
    winner, shown = data.get("winner"), (first.id, second.id)
    if winner not in WINNERS:
        raise reading.Unreadable(f'\'winner\' must be "first", "second" or "tie", got {str(winner)[:60]!r}')
    return Comparison(
        shown[::-1] if winner == "second" else shown,
        reading.text(data, "reason"),
        changes(data),
        reading.flag(data, "done"),
        ties=(shown,) if winner == "tie" else (),
        shown=shown,
    )


def settled(there: Comparison, back: Comparison) -> Comparison:
    """What two verdicts on the same pair in both orders come to: what both say, or a tie."""
    reasons = unlike(r for r in (there.reason, back.reason) if r)
    both = replace(
        there,
        actions=unlike((*there.actions, *back.actions)),
        done=agreed((there.done, back.done)),
        shown=(),
        votes=(there, back),
    )
    if there.places == back.places:
        return replace(both, reason="; ".join(reasons))
    pair = tuple(sorted(there.ranking))
    return replace(both, ranking=pair, ties=(pair,), reason="; ".join([CHANGED, *reasons]))


def by_wins(duels: Sequence[Comparison]) -> Comparison:
    """One comparison from settled duels, all against all. Its reasons and changes are those of the duels the best won."""
    if len(duels) == 1:
        return duels[0]
    ranking, ties = copeland(duels)
    fought = [d for d in duels if ranking[0] in d.ranking]
    won = [d for d in fought if d.ranking[0] == ranking[0] and not d.ties]
    told = won or fought
    turned = sum(d.consistent is False for d in duels)
    notes = [f"{CHANGED} in {turned} of {len(duels)} duels"] if turned else []
    return Comparison(
        ranking,
        "; ".join([*notes, *unlike(d.reason.removeprefix(f"{CHANGED}; ") for d in told if d.reason)]),
        unlike(action for d in told for action in d.actions),
        agreed(d.done for d in fought),
        ties=ties,
        votes=tuple(vote for d in duels for vote in d.votes),
    )


def copeland(votes: Sequence[Comparison]) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """A ranking and its ties from comparisons: who beats whom in most of them gets a point, both get half for a tie.

    Equal points tie; those of a circle (a beats b beats c beats a) do.
    """
    places = [vote.places for vote in votes]
    ids = sorted({id for told in places for id in told})
    points = dict.fromkeys(ids, 0.0)
    for a, b in combinations(ids, 2):
        margin = sum(_sign(told[b] - told[a]) for told in places if a in told and b in told)
        points[a] += (1 + _sign(margin)) / 2
        points[b] += (1 - _sign(margin)) / 2
    return placed(points)


def placed(points: Mapping[int, float]) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """A ranking by points, the most first, and the groups that have equally many."""
    ranking = sorted(sorted(points), key=points.__getitem__, reverse=True)
    groups = [tuple(group) for _, group in groupby(ranking, key=points.__getitem__)]
    return tuple(ranking), tuple(group for group in groups if len(group) > 1)


def _sign(n: int) -> int:
    return (n > 0) - (n < 0)
