"""A listwise judge: a model that ranks all answers so far and says what the best still lacks.

Judges favour places (Zheng et al., arXiv:2306.05685), so answers are shown in an order drawn from their own content:
the same for the same candidates and look, whatever the order in which they came. What is too long for one asking is
ranked by knockout. Nothing here knows of plans or traces.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from math import ceil
from typing import Any, ClassVar

from ... import checks
from ...core.cancellation import run_in_thread_if_large
from ...core.records import Candidate, Comparison, Failure, Task
from ...protocols import JudgeClient, Reply, Request
from ..composite import gather_or_cancel
from ..inputs import check_needs
from ..rubric import TASK_FIELDS, Rubric
from . import json_reader as reading
from .pointwise import MAX_CHANGE_CHARS, SYSTEM, check_judge_config
from .prompt import CONTROL_NOTICE, DATA_NOTICE, data_notice, enclose, fresh_nonce, truncate_middle
from .structured import ask_for_json
from .transcript import build_transcript, render_answer, render_candidate, total_chars, user_message

RANK_PROMPT = "Rank these answers to the task from best to worst by how well each serves whoever asked."
CRITERIA_NOTE = "Go by these criteria alone:"
ORDER_NOTE = "The order in which answers stand here is chance, and being long is no merit."
ANSWER_FORMAT = (
    'Answer with one JSON object only: {"reason": "why this order, calling no answer by its number", '
    '"change": ["what would make the best answer better"], "ranking": [numbers of all answers, best first], '
    '"ties": [[numbers of answers that are equally good]] or [], "done": true only if nothing should change}'
)
MAX_CHANGES = 5


@dataclass(frozen=True)
class Ranker:
    """Ranks candidates, best first; its reason and changes feed the next draft.

    `instruction` says what to do, `rubric` by which criteria. `model` is what it asks (None: the `judge` of the call,
    or its `model`). Up to `most` answers (>= 2) are ranked in one asking; more are ranked in groups, whose winners go
    on, and the others tie by the round they reached. Each answer gets an equal share of `max_eval_chars`. Raises
    ConfigError.
    """

    name: str = "ranker"
    instruction: str = RANK_PROMPT
    model: Any = None
    temperature: float | None = 0.0
    max_tokens: int | None = 2048
    max_eval_chars: int = 32_768
    rubric: Rubric | None = None
    max_group_size: int = 8

    prompt_texts: ClassVar[tuple[str, ...]] = (SYSTEM, CRITERIA_NOTE, DATA_NOTICE, CONTROL_NOTICE, ORDER_NOTE, ANSWER_FORMAT)

    def __post_init__(self) -> None:
        check_judge_config(self.name, self)
        checks.text(f"{self.name}: instruction", self.instruction)
        if self.rubric is not None and not isinstance(self.rubric, Rubric):
            raise checks.invalid_argument(f"{self.name}: rubric", "a Rubric or None", self.rubric)
        checks.whole_number(f"{self.name}: most", self.max_group_size, 2)

    async def compare(self, task: Task, candidates: Sequence[Candidate], ask: JudgeClient) -> Comparison:
        """The ranking of all candidates. Raises BadResponseError when an answer stays unreadable after one re-ask."""
        field = await shuffle_off_loop(task, candidates, ask.repeat)
        return await knockout(field, self.max_group_size, self.max_group_size, partial(self._rank, task, ask=ask))

    async def _rank(self, task: Task, candidates: Sequence[Candidate], ask: JudgeClient) -> Comparison:
        answers = {f"answer-{n}": answer_content(c) for n, c in enumerate(candidates, 1)}
        return await self.ask_comparison(
            task,
            answers,
            ask,
            ComparisonFormat(ANSWER_FORMAT, ranking_schema(len(candidates)), lambda reply: parse_ranking(reply, candidates)),
        )

    async def ask_comparison(
        self, task: Task, answers: Mapping[str, str], ask: JudgeClient, answer_format: ComparisonFormat
    ) -> Comparison:
        """What the judge says of these answers; the reason says if something was left out. Raises BadResponseError."""
        size = total_chars(task, *answers.values())
        request, left_out = await run_in_thread_if_large(size, self._build_request, task, answers, answer_format)
        comparison = await ask_for_json(ask, request, answer_format.parse)
        return replace(comparison, reason=f"{comparison.reason}; {left_out} characters were left out") if left_out else comparison

    def _build_request(self, task: Task, answers: Mapping[str, str], answer_format: ComparisonFormat) -> tuple[Request, int]:
        """What is asked, and how many characters it leaves out."""
        asked = build_transcript(task)
        share = self.max_eval_chars // max(1, len(answers))
        whole = {**asked.texts, **self.input_texts(task)}
        shown = {name: truncate_middle(text, self.max_eval_chars) for name, text in whole.items()}
        shown |= {name: truncate_middle(render_answer(text), share) for name, text in answers.items()}
        nonce = fresh_nonce(text for text, _ in shown.values())
        enclosed = [enclose(name, text, nonce) for name, (text, _) in shown.items()]
        prompt = "\n\n".join(
            [self.instruction, *self.criteria_texts(), data_notice(nonce), *enclosed, ORDER_NOTE, answer_format.instructions]
        )
        messages = ({"role": "system", "content": SYSTEM}, user_message(prompt, asked.images))
        request = Request(messages, self.temperature, self.max_tokens, schema=answer_format.schema, nonce=nonce)
        return request, sum(n for _, n in shown.values())

    def input_texts(self, task: Task) -> dict[str, str]:
        """What the task brings beside its messages, as far as the rubric reads it. Raises ConfigError for what it lacks."""
        check_needs(self.name, self.needs, task)
        held = {name: getattr(task, name) for name in (self.rubric.task_fields if self.rubric else TASK_FIELDS)}
        return {name: text for name, text in held.items() if text}

    @property
    def needs(self) -> tuple[str, ...]:
        """The fields of a task without which it cannot compare."""
        return self.rubric.needs if self.rubric else ()

    def criteria_texts(self) -> Iterable[str]:
        """The criteria of the rubric in words, where there is one."""
        if self.rubric is not None:
            yield "\n".join(
                [CRITERIA_NOTE, *(f"- {c.name}{_weight_note(c.weight)}: {c.description}" for c in self.rubric.criteria)]
            )


@dataclass(frozen=True, slots=True)
class ComparisonFormat:
    """How a judge is to answer: in words, as a JSON schema, and what reads it (or raises Unreadable)."""

    instructions: str
    schema: Mapping[str, Any]
    parse: Callable[[Reply], Comparison]


def _weight_note(weight: float) -> str:
    return "" if weight == 1 else f" (weight {weight:g})"


def ranking_schema(n: int) -> dict[str, Any]:
    """The JSON schema of a ranking of `n` answers."""
    number = {"type": "integer", "enum": list(range(1, n + 1))}
    tied = {"type": "array", "items": {"type": "array", "items": number, "minItems": 2, "maxItems": n}, "maxItems": n // 2}
    return comparison_schema(
        ranking={"type": "array", "items": number, "minItems": n, "maxItems": n},
        **({"ties": tied} if n > 1 else {}),
    )


def comparison_schema(**verdict_properties: Any) -> dict[str, Any]:
    """The JSON schema of a comparison: reason and changes, then the verdict, then whether it would stop here."""
    words = {"type": "string", "maxLength": MAX_CHANGE_CHARS}
    change = {"type": "array", "items": words, "maxItems": MAX_CHANGES}
    properties = {"reason": words, "change": change, **verdict_properties, "done": {"type": "boolean"}}
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def parse_ranking(reply: Reply, candidates: Sequence[Candidate]) -> Comparison:
    """The comparison in a reply. Raises Unreadable unless each answer is ranked exactly once."""
    data = reading.read_object(reply.text)
    ranking, wanted = data.get("ranking"), list(range(1, len(candidates) + 1))
    whole = isinstance(ranking, list) and all(type(n) is int for n in ranking)
    if not whole or not isinstance(ranking, list) or sorted(ranking) != wanted:
        raise reading.UnreadableOutput(f"'ranking' must hold each of {wanted} once")
    ids = {n: c.id for n, c in enumerate(candidates, 1)}
    return Comparison(
        tuple(ids[n] for n in ranking),
        reading.string_at(data, "reason"),
        parse_changes(data),
        reading.bool_at(data, "done"),
        ties=tuple(tuple(ids[n] for n in group) for group in _parse_ties(data.get("ties", []), ranking)),
        presentation_order=tuple(c.id for c in candidates),
    )


def parse_changes(data: Mapping[str, Any]) -> tuple[str, ...]:
    """The texts under "change". Raises Unreadable."""
    change = data.get("change", [])
    if not isinstance(change, list) or not all(isinstance(c, str) for c in change):
        raise reading.UnreadableOutput("'change' must be a list of texts")
    return tuple(c.strip() for c in change if c.strip())


def _parse_ties(groups: Any, ranking: Sequence[int]) -> list[list[int]]:
    """The groups that share a place; a group of one shares it with nobody. Raises Unreadable."""
    if not isinstance(groups, list) or not all(isinstance(group, list) for group in groups):
        raise reading.UnreadableOutput("'ties' must be a list of groups of numbers")
    tied = [n for group in groups for n in group]
    if len(tied) > len(ranking) or any(type(n) is not int or n not in ranking for n in tied) or len(set(tied)) < len(tied):
        raise reading.UnreadableOutput("'ties' must hold numbers of answers, none of them twice")
    for group in groups:
        places = [ranking.index(n) for n in group]
        if places and max(places) - min(places) >= len(group):
            raise reading.UnreadableOutput(f"the answers that tie, {group}, must stand side by side in 'ranking'")
    return [group for group in groups if len(group) > 1]


def answer_content(candidate: Candidate) -> str:
    """The text of a candidate, and its tool calls where it has any."""
    return render_candidate(candidate) if candidate.tool_calls else candidate.text


async def shuffle_off_loop(task: Task, candidates: Sequence[Candidate], repeat: int) -> list[Candidate]:
    """`shuffled`, where no long text holds the event loop."""
    return await run_in_thread_if_large(total_chars(task, *(c.text for c in candidates)), stable_shuffle, task, candidates, repeat)


def stable_shuffle(task: Task, candidates: Iterable[Candidate], repeat: int) -> list[Candidate]:
    """The candidates in an order that depends on nothing but the task, their ids and texts, and the look."""
    field = sorted(candidates, key=lambda c: c.id)
    content = json.dumps([dict(build_transcript(task).texts), [[c.id, *c.content_key] for c in field], repeat])
    seed = sha256(content.encode()).hexdigest()
    return sorted(field, key=lambda c: sha256(f"{seed}:{c.id}".encode()).digest())


async def knockout(
    candidates: Sequence[Candidate],
    max_finalists: int,
    group_size: int,
    compare: Callable[[Sequence[Candidate]], Awaitable[Comparison]],
) -> Comparison:
    """One comparison of all. While more than `most` are left they meet in groups of up to `size`, and winners go on.

    Of those that tie for the first place in a group the earliest goes on. The finalists are ranked by their contest,
    the others tie by the round they reached. Every contest is kept in `votes`.
    """
    votes: list[Comparison | Failure] = []
    fallen: list[tuple[int, ...]] = []
    while len(candidates) > max_finalists:
        groups = ceil(len(candidates) / group_size)
        drawn = [candidates[i::groups] for i in range(groups)]
        rounds = await gather_or_cancel(_compare_group(group, compare) for group in drawn)
        winners = [_winner_id(result) for result in rounds]
        fallen.insert(0, tuple(sorted(c.id for c in candidates if c.id not in winners)))
        votes += [vote for result in rounds if len(result.ranking) > 1 for vote in result.votes or (result,)]
        candidates = [c for c in candidates if c.id in winners]
    final = await compare(candidates)
    if not fallen:
        return final
    return replace(
        final,
        ranking=(*final.ranking, *(id for group in fallen for id in group)),
        ties=(*final.ties, *(group for group in fallen if len(group) > 1)),
        presentation_order=(),
        votes=(*votes, *(final.votes or (final,))),
    )


async def _compare_group(group: Sequence[Candidate], compare: Callable[[Sequence[Candidate]], Awaitable[Comparison]]) -> Comparison:
    """The contest of a group; who stands alone goes on without one."""
    return await compare(group) if len(group) > 1 else Comparison((group[0].id,))


def _winner_id(comparison: Comparison) -> int:
    return min(id for id, place in comparison.ranks.items() if place == 0)
