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
from ...protocols import JudgeClient, Reply
from ..composite import consensus, gather_or_cancel, unique_texts
from . import json_reader as reading
from .listwise import (
    CRITERIA_NOTE,
    ORDER_NOTE,
    ComparisonFormat,
    Ranker,
    answer_content,
    comparison_schema,
    knockout,
    parse_changes,
    shuffle_off_loop,
)
from .pointwise import SYSTEM
from .prompt import CONTROL_NOTICE, DATA_NOTICE

COMPARE_PROMPT = "Say which of these two answers to the task better serves whoever asked."
ANSWER_FORMAT = (
    'Answer with one JSON object only: {"reason": "what decides it, without saying which stood first", '
    '"change": ["what would make the better answer better"], "winner": "first", "second", or "tie" if neither is better, '
    '"done": true only if nothing should change}'
)
ORDER_CHANGED_NOTE = "the verdict changed with the order"
WINNERS = ("first", "second", "tie")
ANSWER_SCHEMA = comparison_schema(winner={"type": "string", "enum": list(WINNERS)})


@dataclass(frozen=True)
class Pairwise(Ranker):
    """Ranks candidates by duels, each asked in both orders; one whose verdict changes with the order is a tie.

    The fields are those of `Ranker`. Up to `most` candidates (>= 2) all meet each other and are ranked by their wins, a
    tie counting half; of more, pairs meet and winners go on until so many are left, and the others tie by the round
    they reached. `votes` holds every verdict, with the order in which the two were `shown`. It is `done` where both
    verdicts of every duel of the best say so. Two calls a duel, n (n - 1) calls for n candidates that all meet.
    """

    name: str = "pairwise"
    instruction: str = COMPARE_PROMPT
    max_group_size: int = 4

    prompt_texts: ClassVar[tuple[str, ...]] = (
        SYSTEM,
        CRITERIA_NOTE,
        DATA_NOTICE,
        CONTROL_NOTICE,
        ORDER_NOTE,
        ANSWER_FORMAT,
        ORDER_CHANGED_NOTE,
    )

    async def compare(self, task: Task, candidates: Sequence[Candidate], ask: JudgeClient) -> Comparison:
        """The ranking of all candidates; of one alone, without asking. Raises BadResponseError as `duel` does."""
        if len(candidates) < 2:
            return Comparison(tuple(c.id for c in candidates))

        async def contest(group: Sequence[Candidate]) -> Comparison:
            return await self.round_robin(task, group, ask)

        return await knockout(await shuffle_off_loop(task, candidates, ask.repeat), self.max_group_size, 2, contest)

    async def round_robin(self, task: Task, group: Sequence[Candidate], ask: JudgeClient) -> Comparison:
        """Everyone against everyone else: two or more candidates."""
        pairs = list(combinations(group, 2))
        verdicts = await gather_or_cancel(
            self.compare_pair(task, *order, ask) for one, other in pairs for order in ((one, other), (other, one))
        )
        return rank_by_wins([merge_orders(*verdicts[i : i + 2]) for i in range(0, len(verdicts), 2)])

    async def compare_pair(self, task: Task, first: Candidate, second: Candidate, ask: JudgeClient) -> Comparison:
        """One asking about two candidates in one order. Raises BadResponseError when it stays unreadable after a re-ask."""
        answers = {"first": answer_content(first), "second": answer_content(second)}
        return await self.ask_comparison(
            task, answers, ask, ComparisonFormat(ANSWER_FORMAT, ANSWER_SCHEMA, lambda reply: parse_pair_reply(reply, first, second))
        )


def parse_pair_reply(reply: Reply, first: Candidate, second: Candidate) -> Comparison:
    """The comparison in a reply about two answers. Raises Unreadable."""
    data = reading.read_object(reply.text)
    winner, shown = data.get("winner"), (first.id, second.id)
    if winner not in WINNERS:
        raise reading.UnreadableOutput(f'\'winner\' must be "first", "second" or "tie", got {str(winner)[:60]!r}')
    return Comparison(
        shown[::-1] if winner == "second" else shown,
        reading.string_at(data, "reason"),
        parse_changes(data),
        reading.bool_at(data, "done"),
        ties=(shown,) if winner == "tie" else (),
        presentation_order=shown,
    )


def merge_orders(forward: Comparison, backward: Comparison) -> Comparison:
    """What two verdicts on the same pair in both orders come to: what both say, or a tie."""
    reasons = unique_texts(r for r in (forward.reason, backward.reason) if r)
    both = replace(
        forward,
        actions=unique_texts((*forward.actions, *backward.actions)),
        done=consensus((forward.done, backward.done)),
        presentation_order=(),
        votes=(forward, backward),
    )
    if forward.ranks == backward.ranks:
        return replace(both, reason="; ".join(reasons))
    pair = tuple(sorted(forward.ranking))
    return replace(both, ranking=pair, ties=(pair,), reason="; ".join([ORDER_CHANGED_NOTE, *reasons]))


def rank_by_wins(comparisons: Sequence[Comparison]) -> Comparison:
    """One comparison from settled duels, all against all. Its reasons and changes are those of the duels the best won."""
    if len(comparisons) == 1:
        return comparisons[0]
    ranking, ties = copeland(comparisons)
    fought = [d for d in comparisons if ranking[0] in d.ranking]
    won = [d for d in fought if d.ranking[0] == ranking[0] and not d.ties]
    told = won or fought
    turned = sum(d.consistent is False for d in comparisons)
    notes = [f"{ORDER_CHANGED_NOTE} in {turned} of {len(comparisons)} duels"] if turned else []
    return Comparison(
        ranking,
        "; ".join([*notes, *unique_texts(d.reason.removeprefix(f"{ORDER_CHANGED_NOTE}; ") for d in told if d.reason)]),
        unique_texts(action for d in told for action in d.actions),
        consensus(d.done for d in fought),
        ties=ties,
        votes=tuple(vote for d in comparisons for vote in d.votes),
    )


def copeland(votes: Sequence[Comparison]) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """A ranking and its ties from comparisons: who beats whom in most of them gets a point, both get half for a tie.

    Equal points tie; those of a circle (a beats b beats c beats a) do.
    """
    places = [vote.ranks for vote in votes]
    ids = sorted({id for told in places for id in told})
    points = dict.fromkeys(ids, 0.0)
    for a, b in combinations(ids, 2):
        margin = sum(_sign(told[b] - told[a]) for told in places if a in told and b in told)
        points[a] += (1 + _sign(margin)) / 2
        points[b] += (1 - _sign(margin)) / 2
    return ranking_from_points(points)


def ranking_from_points(points: Mapping[int, float]) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """A ranking by points, the most first, and the groups that have equally many."""
    ranking = sorted(sorted(points), key=points.__getitem__, reverse=True)
    groups = [tuple(group) for _, group in groupby(ranking, key=points.__getitem__)]
    return tuple(ranking), tuple(group for group in groups if len(group) > 1)


def _sign(n: int) -> int:
    return (n > 0) - (n < 0)
