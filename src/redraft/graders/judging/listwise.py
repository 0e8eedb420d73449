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
from ...core.cancellation import run_beside
from ...core.records import Candidate, Comparison, Failure, Task
from ...protocols import Ask, Reply, Request
from ..composite import together
from ..inputs import check_needs
from ..rubric import READABLE, Rubric
from . import json_reader as reading
from .pointwise import LONGEST_CHANGE, SYSTEM, check_setting
from .prompt import CONTROL_NOTICE, DATA_NOTICE, cut_middle, enclose, fresh_nonce, notice
from .structured import ask_strictly
from .transcript import answer_of, answer_text, size_of, transcript, user_message

ASKED = "Rank these answers to the task from best to worst by how well each serves whoever asked."
BY_CRITERIA = "Go by these criteria alone:"
FAIR = "The order in which answers stand here is chance, and being long is no merit."
FORM = (
    'Answer with one JSON object only: {"reason": "why this order, calling no answer by its number", '
    '"change": ["what would make the best answer better"], "ranking": [numbers of all answers, best first], '
    '"ties": [[numbers of answers that are equally good]] or [], "done": true only if nothing should change}'
)
MOST_CHANGES = 5


@dataclass(frozen=True)
class Ranker:
    """Ranks candidates, best first; its reason and changes feed the next draft.

    `instruction` says what to do, `rubric` by which criteria. `model` is what it asks (None: the `judge` of the call,
    or its `model`). Up to `most` answers (>= 2) are ranked in one asking; more are ranked in groups, whose winners go
    on, and the others tie by the round they reached. Each answer gets an equal share of `max_eval_chars`. Raises
    ConfigError.
    """

    name: str = "ranker"
    instruction: str = ASKED
    model: Any = None
    temperature: float | None = 0.0
    max_tokens: int | None = 2048
    max_eval_chars: int = 32_768
    rubric: Rubric | None = None
    most: int = 8

    wording: ClassVar[tuple[str, ...]] = (SYSTEM, BY_CRITERIA, DATA_NOTICE, CONTROL_NOTICE, FAIR, FORM)

    def __post_init__(self) -> None:
        check_setting(self.name, self)
        checks.text(f"{self.name}: instruction", self.instruction)
        if self.rubric is not None and not isinstance(self.rubric, Rubric):
            raise checks.refused(f"{self.name}: rubric", "a Rubric or None", self.rubric)
        checks.whole_number(f"{self.name}: most", self.most, 2)

    async def compare(self, task: Task, candidates: Sequence[Candidate], ask: Ask) -> Comparison:
        """The ranking of all candidates. Raises BadResponseError when an answer stays unreadable after one re-ask."""
        field = await shuffle(task, candidates, ask.look)
        return await knockout(field, self.most, self.most, partial(self._rank, task, ask=ask))

    async def _rank(self, task: Task, shown: Sequence[Candidate], ask: Ask) -> Comparison:
        answers = {f"answer-{n}": said_by(c) for n, c in enumerate(shown, 1)}
        return await self.put(task, answers, ask, Verdict(FORM, schema(len(shown)), lambda reply: read(reply, shown)))

    async def put(self, task: Task, answers: Mapping[str, str], ask: Ask, verdict: Verdict) -> Comparison:
        """What the judge says of these answers; the reason says if something was left out. Raises BadResponseError."""
        size = size_of(task, *answers.values())
        request, left_out = await run_beside(size, self._request, task, answers, verdict)
        comparison = await ask_strictly(ask, request, verdict.read)
        return replace(comparison, reason=f"{comparison.reason}; {left_out} characters were left out") if left_out else comparison

    def _request(self, task: Task, answers: Mapping[str, str], verdict: Verdict) -> tuple[Request, int]:
        """What is asked, and how many characters it leaves out."""
        asked = transcript(task)
        share = self.max_eval_chars // max(1, len(answers))
        whole = {**asked.texts, **self.materials(task)}
        shown = {name: cut_middle(text, self.max_eval_chars) for name, text in whole.items()}
        shown |= {name: cut_middle(answer_text(text), share) for name, text in answers.items()}
        nonce = fresh_nonce(text for text, _ in shown.values())
        enclosed = [enclose(name, text, nonce) for name, (text, _) in shown.items()]
        prompt = "\n\n".join([self.instruction, *self.criteria(), notice(nonce), *enclosed, FAIR, verdict.form])
        messages = ({"role": "system", "content": SYSTEM}, user_message(prompt, asked.images))
        request = Request(messages, self.temperature, self.max_tokens, schema=verdict.schema, nonce=nonce)
        return request, sum(n for _, n in shown.values())

    def materials(self, task: Task) -> dict[str, str]:
        """What the task brings beside its messages, as far as the rubric reads it. Raises ConfigError for what it lacks."""
        check_needs(self.name, self.needs, task)
        held = {name: getattr(task, name) for name in (self.rubric.reads if self.rubric else READABLE)}
        return {name: text for name, text in held.items() if text}

    @property
    def needs(self) -> tuple[str, ...]:
        """The fields of a task without which it cannot compare."""
        return self.rubric.needs if self.rubric else ()

    def criteria(self) -> Iterable[str]:
        """The criteria of the rubric in words, where there is one."""
        if self.rubric is not None:
            yield "\n".join([BY_CRITERIA, *(f"- {c.name}{_weight(c.weight)}: {c.description}" for c in self.rubric.criteria)])


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a judge is to answer: in words, as a JSON schema, and what reads it (or raises Unreadable)."""

    form: str
    schema: Mapping[str, Any]
    read: Callable[[Reply], Comparison]


def _weight(weight: float) -> str:
    return "" if weight == 1 else f" (weight {weight:g})"


def schema(n: int) -> dict[str, Any]:
    """The JSON schema of a ranking of `n` answers."""
    number = {"type": "integer", "enum": list(range(1, n + 1))}
    tied = {"type": "array", "items": {"type": "array", "items": number, "minItems": 2, "maxItems": n}, "maxItems": n // 2}
    return form_of(
        ranking={"type": "array", "items": number, "minItems": n, "maxItems": n},
        **({"ties": tied} if n > 1 else {}),
    )


def form_of(**verdict: Any) -> dict[str, Any]:
    """The JSON schema of a comparison: reason and changes, then the verdict, then whether it would stop here."""
    words = {"type": "string", "maxLength": LONGEST_CHANGE}
    change = {"type": "array", "items": words, "maxItems": MOST_CHANGES}
    properties = {"reason": words, "change": change, **verdict, "done": {"type": "boolean"}}
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def read(reply: Reply, shown: Sequence[Candidate]) -> Comparison:
    """The comparison in a reply. Raises Unreadable unless each answer is ranked exactly once."""
    data = reading.read_object(reply.text)
    ranking, wanted = data.get("ranking"), list(range(1, len(shown) + 1))
    whole = isinstance(ranking, list) and all(type(n) is int for n in ranking)
    if not whole or not isinstance(ranking, list) or sorted(ranking) != wanted:
        raise reading.Unreadable(f"'ranking' must hold each of {wanted} once")
    ids = {n: c.id for n, c in enumerate(shown, 1)}
    return Comparison(
        tuple(ids[n] for n in ranking),
        reading.text(data, "reason"),
        changes(data),
        reading.flag(data, "done"),
        ties=tuple(tuple(ids[n] for n in group) for group in _ties(data.get("ties", []), ranking)),
        shown=tuple(c.id for c in shown),
    )


def changes(data: Mapping[str, Any]) -> tuple[str, ...]:
    """The texts under "change". Raises Unreadable."""
    change = data.get("change", [])
    if not isinstance(change, list) or not all(isinstance(c, str) for c in change):
        raise reading.Unreadable("'change' must be a list of texts")
    return tuple(c.strip() for c in change if c.strip())


def _ties(held: Any, ranking: Sequence[int]) -> list[list[int]]:
    """The groups that share a place; a group of one shares it with nobody. Raises Unreadable."""
    if not isinstance(held, list) or not all(isinstance(group, list) for group in held):
        raise reading.Unreadable("'ties' must be a list of groups of numbers")
    tied = [n for group in held for n in group]
    if len(tied) > len(ranking) or any(type(n) is not int or n not in ranking for n in tied) or len(set(tied)) < len(tied):
        raise reading.Unreadable("'ties' must hold numbers of answers, none of them twice")
    for group in held:
        places = [ranking.index(n) for n in group]
        if places and max(places) - min(places) >= len(group):
            raise reading.Unreadable(f"the answers that tie, {group}, must stand side by side in 'ranking'")
    return [group for group in held if len(group) > 1]


def said_by(candidate: Candidate) -> str:
    """The text of a candidate, and its tool calls where it has any."""
    return answer_of(candidate) if candidate.tool_calls else candidate.text


async def shuffle(task: Task, candidates: Sequence[Candidate], look: int) -> list[Candidate]:
    """`shuffled`, where no long text holds the event loop."""
    return await run_beside(size_of(task, *(c.text for c in candidates)), shuffled, task, candidates, look)


def shuffled(task: Task, candidates: Iterable[Candidate], look: int) -> list[Candidate]:
    """The candidates in an order that depends on nothing but the task, their ids and texts, and the look."""
    field = sorted(candidates, key=lambda c: c.id)
    content = json.dumps([dict(transcript(task).texts), [[c.id, *c.substance] for c in field], look])
    seed = sha256(content.encode()).hexdigest()
    return sorted(field, key=lambda c: sha256(f"{seed}:{c.id}".encode()).digest())


async def knockout(
    field: Sequence[Candidate], most: int, size: int, contest: Callable[[Sequence[Candidate]], Awaitable[Comparison]]
) -> Comparison:
    """One comparison of all. While more than `most` are left they meet in groups of up to `size`, and winners go on.

    Of those that tie for the first place in a group the earliest goes on. The finalists are ranked by their contest,
    the others tie by the round they reached. Every contest is kept in `votes`.
    """
    votes: list[Comparison | Failure] = []
    fallen: list[tuple[int, ...]] = []
    while len(field) > most:
        groups = ceil(len(field) / size)
        drawn = [field[i::groups] for i in range(groups)]
        rounds = await together(_met(group, contest) for group in drawn)
        winners = [_first(result) for result in rounds]
        fallen.insert(0, tuple(sorted(c.id for c in field if c.id not in winners)))
        votes += [vote for result in rounds if len(result.ranking) > 1 for vote in result.votes or (result,)]
        field = [c for c in field if c.id in winners]
    final = await contest(field)
    if not fallen:
        return final
    return replace(
        final,
        ranking=(*final.ranking, *(id for group in fallen for id in group)),
        ties=(*final.ties, *(group for group in fallen if len(group) > 1)),
        shown=(),
        votes=(*votes, *(final.votes or (final,))),
    )


async def _met(group: Sequence[Candidate], contest: Callable[[Sequence[Candidate]], Awaitable[Comparison]]) -> Comparison:
    """The contest of a group; who stands alone goes on without one."""
    return await contest(group) if len(group) > 1 else Comparison((group[0].id,))


def _first(comparison: Comparison) -> int:
    return min(id for id, place in comparison.places.items() if place == 0)
