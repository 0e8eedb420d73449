"""A pairwise judge: a model that says which of two answers is better, asked in both orders.

Judges favour positions; a verdict that changes with the order counts as a tie (Zheng et al., arXiv:2306.05685). Several answers
are ranked by their wins over each other, after Copeland (1951).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import ClassVar

from ...core.records import Candidate, Comparison, Task
from ...middleware.messages import IMAGES_OMITTED_NOTE
from ...own_code import fingerprint_name
from ...protocols import JudgeClient, Reply
from ..votes import consensus, copeland, gather_or_cancel, unique_texts
from . import json_reader as reader
from .listwise import (
    CRITERIA_NOTE,
    ORDER_NOTE,
    ComparisonFormat,
    Ranker,
    comparison_schema,
    knockout,
    parse_changes,
    shuffle_off_loop,
)
from .prompt import CONTROL_NOTICE, DATA_NOTICE
from .structured import SYSTEM

COMPARE_PROMPT = "Say which of these two answers to the task better serves whoever asked."
ANSWER_FORMAT = (
    'Answer with one JSON object only: {"reason": "what decides it, without saying which stood first", '
    '"change": ["what would make the better answer better"], "winner": "first", "second", or "tie" if neither is better, '
    '"done": true only if nothing should change}'
)
ORDER_CHANGED_NOTE = "the verdict changed with the order"
WINNERS = ("first", "second", "tie")
ANSWER_SCHEMA = comparison_schema(winner={"type": "string", "enum": list(WINNERS)})


@fingerprint_name("pairwise")
@dataclass(frozen=True)
class Pairwise(Ranker):
    """Ranks candidates by comparing pairs, each in both orders; a verdict that changes with the order is a tie.

    The fields are those of `Ranker`. Up to `max_group_size` candidates (>= 2) are all compared with each other and ranked by
    their wins, a tie counting half. Of more, pairs are compared and winners advance until so many are left, and the others tie
    by the round they reached. `votes` holds every verdict with its `presentation_order`. `done` is True if both verdicts of
    every pair with the best candidate say so. A pair takes two calls; n candidates that are all compared take n (n - 1).
    """

    name: str = "pairwise"
    instruction: str = COMPARE_PROMPT
    max_group_size: int = 4

    prompt_texts: ClassVar[tuple[str, ...]] = (
        SYSTEM,
        CRITERIA_NOTE,
        DATA_NOTICE,
        CONTROL_NOTICE,
        IMAGES_OMITTED_NOTE,
        ORDER_NOTE,
        ANSWER_FORMAT,
        ORDER_CHANGED_NOTE,
    )

    async def compare(self, task: Task, candidates: Sequence[Candidate], ask: JudgeClient) -> Comparison:
        """Return the ranking of all candidates; one alone needs no call. Raises BadResponseError if a reply is unreadable twice."""
        if len(candidates) < 2:
            return Comparison(tuple(c.id for c in candidates))
        shuffled = await shuffle_off_loop(task, candidates, ask.repeat)
        return await knockout(shuffled, self.max_group_size, 2, partial(self.round_robin, task, ask=ask))

    async def round_robin(self, task: Task, group: Sequence[Candidate], ask: JudgeClient) -> Comparison:
        """Compare each of two or more candidates with every other, in both orders."""
        orders = [order for one, other in combinations(group, 2) for order in ((one, other), (other, one))]
        verdicts = await gather_or_cancel(self.compare_pair(task, *order, ask) for order in orders)
        return rank_by_wins([merge_orders(*verdicts[i : i + 2]) for i in range(0, len(verdicts), 2)])

    async def compare_pair(self, task: Task, first: Candidate, second: Candidate, ask: JudgeClient) -> Comparison:
        """Ask about two candidates in one order. Raises BadResponseError if the reply is unreadable twice."""
        answer_format = ComparisonFormat(ANSWER_FORMAT, ANSWER_SCHEMA, partial(parse_pair_reply, first=first, second=second))
        return await self.ask_comparison(task, {"first": first, "second": second}, ask, answer_format)


def parse_pair_reply(reply: Reply, first: Candidate, second: Candidate) -> Comparison:
    """Return the comparison in a reply about two answers. Raises UnreadableOutput."""
    data = reader.read_object(reply.text)
    winner, order = data.get("winner"), (first.id, second.id)
    if winner not in WINNERS:
        raise reader.UnreadableOutput(f'\'winner\' must be "first", "second" or "tie", got {str(winner)[:60]!r}')
    return Comparison(
        order[::-1] if winner == "second" else order,
        reader.string_at(data, "reason"),
        parse_changes(data),
        reader.bool_at(data, "done"),
        ties=(order,) if winner == "tie" else (),
        presentation_order=order,
    )


def merge_orders(forward: Comparison, backward: Comparison) -> Comparison:
    """Return the verdict on a pair that was compared in both orders: what both say, or a tie."""
    reasons = unique_texts(reason for reason in (forward.reason, backward.reason) if reason)
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
    """Return one ranking from the comparisons of all pairs. Reasons and changes are those of the pairs that the best one won."""
    if len(comparisons) == 1:
        return comparisons[0]
    ranking, ties = copeland(comparisons)
    with_best = [c for c in comparisons if ranking[0] in c.ranking]
    decisive = [c for c in with_best if c.ranking[0] == ranking[0] and not c.ties] or with_best
    changed = sum(c.consistent is False for c in comparisons)
    notes = [f"{ORDER_CHANGED_NOTE} in {changed} of {len(comparisons)} pairs"] if changed else []
    return Comparison(
        ranking,
        "; ".join([*notes, *unique_texts(c.reason.removeprefix(f"{ORDER_CHANGED_NOTE}; ") for c in decisive if c.reason)]),
        unique_texts(action for c in decisive for action in c.actions),
        consensus(c.done for c in with_best),
        ties=ties,
        votes=tuple(vote for c in comparisons for vote in c.votes),
    )
