"""A listwise judge: a model that ranks all answers so far and says what the best still lacks.

Judges favour positions (Zheng et al., arXiv:2306.05685), so answers are shown in an order derived from their own content: the
same for the same candidates and repeat, whatever the order in which they came. More answers than fit into one request are
ranked by knockout. Nothing here knows plans or traces.
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
from ...middleware.messages import IMAGES_OMITTED_NOTE
from ...own_code import fingerprint_name
from ...protocols import JudgeClient, Reply
from ..inputs import check_needs
from ..rubric import TASK_FIELDS, Rubric
from ..votes import gather_or_cancel
from . import json_reader as reader
from .pointwise import MAX_CHANGE_CHARS
from .prompt import CONTROL_NOTICE, DATA_NOTICE, build_transcript, data_notice, enclose, render_candidate, task_texts, total_chars
from .structured import SYSTEM, JudgeRequest, ask_judge, check_judge_config, object_schema, text_schema

RANK_PROMPT = "Rank these answers to the task from best to worst by how well each serves whoever asked."
CRITERIA_NOTE = "Go by these criteria alone:"
ORDER_NOTE = "The order in which answers stand here is chance, and being long is no merit."
ANSWER_FORMAT = (
    'Answer with one JSON object only: {"reason": "why this order, calling no answer by its number", '
    '"change": ["what would make the best answer better"], "ranking": [numbers of all answers, best first], '
    '"ties": [[numbers of answers that are equally good]] or [], "done": true only if nothing should change}'
)
MAX_CHANGES = 5


@fingerprint_name("ranker")
@dataclass(frozen=True)
class Ranker:
    """An LLM grader that ranks all answers so far, best first. Its reasons and changes guide the next draft.

    Args:
        name: Its name in the trace.
        instruction: What it is told to do.
        model: The model to ask. None means the `judge` of the call, else its `model`.
        temperature: Sampling temperature; None leaves it to the endpoint.
        max_tokens: Maximum length of its verdict, in tokens; None means no limit.
        max_eval_chars: Maximum length of the texts it is shown, in characters. Each answer gets an equal share.
        rubric: The criteria by which it ranks; None leaves them to the model.
        max_group_size: How many answers it ranks in one call, at least 2. More are ranked in groups whose winners go on; the
            others tie by the round that they reached.
        images: Whether it is sent the images of the task.

    Raises:
        ConfigError: An argument is wrong.
    """

    name: str = "ranker"
    instruction: str = RANK_PROMPT
    model: Any = None
    temperature: float | None = 0.0
    max_tokens: int | None = 2048
    max_eval_chars: int = 32_768
    rubric: Rubric | None = None
    max_group_size: int = 8
    images: bool = True

    prompt_texts: ClassVar[tuple[str, ...]] = (
        SYSTEM,
        CRITERIA_NOTE,
        DATA_NOTICE,
        CONTROL_NOTICE,
        IMAGES_OMITTED_NOTE,
        ORDER_NOTE,
        ANSWER_FORMAT,
    )

    def __post_init__(self) -> None:
        check_judge_config(self.name, self)
        checks.text(f"{self.name}: instruction", self.instruction)
        if self.rubric is not None and not isinstance(self.rubric, Rubric):
            raise checks.invalid_argument(f"{self.name}: rubric", "a Rubric or None", self.rubric)
        checks.whole_number(f"{self.name}: max_group_size", self.max_group_size, 2)

    @property
    def needs(self) -> tuple[str, ...]:
        """The fields that a task must have."""
        return self.rubric.needs if self.rubric else ()

    async def compare(self, task: Task, candidates: Sequence[Candidate], ask: JudgeClient) -> Comparison:
        """Return the ranking of all candidates. Raises BadResponseError if a reply is unreadable twice."""
        shuffled = await shuffle_off_loop(task, candidates, ask.repeat)
        return await knockout(shuffled, self.max_group_size, self.max_group_size, partial(self._rank, task, ask=ask))

    async def _rank(self, task: Task, candidates: Sequence[Candidate], ask: JudgeClient) -> Comparison:
        answers = {f"answer-{n}": c for n, c in enumerate(candidates, 1)}
        parse = partial(parse_ranking, candidates=candidates)
        return await self.ask_comparison(
            task, answers, ask, ComparisonFormat(ANSWER_FORMAT, ranking_schema(len(candidates)), parse)
        )

    async def ask_comparison(
        self, task: Task, answers: Mapping[str, Candidate], ask: JudgeClient, answer_format: ComparisonFormat
    ) -> Comparison:
        """Ask the judge about these answers, in this order.

        Raises BadResponseError if the reply is unreadable twice, ConfigError for a task that lacks a field.
        """
        check_needs(self.name, self.needs, task)
        fields = self.rubric.task_fields if self.rubric else TASK_FIELDS

        def texts() -> dict[str, str]:
            return {**task_texts(task, fields), **{name: render_candidate(c) for name, c in answers.items()}}

        def prompt(shown: Mapping[str, str], nonce: str) -> str:
            enclosed = [enclose(name, text, nonce) for name, text in shown.items()]
            return "\n\n".join(
                [self.instruction, *self.criteria_texts(), data_notice(nonce), *enclosed, ORDER_NOTE, answer_format.instructions]
            )

        size = total_chars(task, *(c.display_text for c in answers.values()))
        limits = dict.fromkeys(answers, self.max_eval_chars // max(1, len(answers)))
        every = await run_in_thread_if_large(size, texts)
        question = JudgeRequest(every, prompt, answer_format.schema, answer_format.parse, limits=limits)
        comparison, shown = await ask_judge(question, task, self, ask)
        return shown.with_omission_note(comparison, {name: f"candidate {c.id}" for name, c in answers.items()})

    def criteria_texts(self) -> Iterable[str]:
        """Yield the criteria of the rubric in words, if there is one."""
        if self.rubric is not None:
            lines = (
                f"- {c.name}{f' (weight {c.weight:g})' if c.weight != 1 else ''}: {c.description}" for c in self.rubric.criteria
            )
            yield "\n".join([CRITERIA_NOTE, *lines])


@dataclass(frozen=True, slots=True)
class ComparisonFormat:
    """How a judge answers: in words, as a JSON schema, and what parses it (or raises UnreadableOutput)."""

    instructions: str
    schema: Mapping[str, Any]
    parse: Callable[[Reply], Comparison]


def ranking_schema(n: int) -> dict[str, Any]:
    """Return the JSON schema of a ranking of `n` answers."""
    number = {"type": "integer", "enum": list(range(1, n + 1))}
    tied = {"type": "array", "items": {"type": "array", "items": number, "minItems": 2, "maxItems": n}, "maxItems": n // 2}
    return comparison_schema(
        ranking={"type": "array", "items": number, "minItems": n, "maxItems": n},
        **({"ties": tied} if n > 1 else {}),
    )


def comparison_schema(**verdict_properties: Any) -> dict[str, Any]:
    """Return the JSON schema of a comparison: reason and changes, then the verdict, then whether it would stop here."""
    text = text_schema(MAX_CHANGE_CHARS)
    changes = {"type": "array", "items": text, "maxItems": MAX_CHANGES}
    return object_schema(reason=text, change=changes, **verdict_properties, done={"type": "boolean"})


def parse_ranking(reply: Reply, candidates: Sequence[Candidate]) -> Comparison:
    """Return the comparison in a reply. Raises UnreadableOutput unless each answer is ranked exactly once."""
    data = reader.read_object(reply.text)
    ranking, expected = data.get("ranking"), list(range(1, len(candidates) + 1))
    if not isinstance(ranking, list) or not all(type(n) is int for n in ranking) or sorted(ranking) != expected:
        raise reader.UnreadableOutput(f"'ranking' must hold each of {expected} once")
    ids = {n: c.id for n, c in enumerate(candidates, 1)}
    return Comparison(
        tuple(ids[n] for n in ranking),
        reader.string_at(data, "reason"),
        parse_changes(data),
        reader.bool_at(data, "done"),
        ties=tuple(tuple(ids[n] for n in group) for group in _parse_ties(data.get("ties", []), ranking)),
        presentation_order=tuple(c.id for c in candidates),
    )


def parse_changes(data: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the texts under "change". Raises UnreadableOutput."""
    change = data.get("change", [])
    if not isinstance(change, list) or not all(isinstance(c, str) for c in change):
        raise reader.UnreadableOutput("'change' must be a list of texts")
    return tuple(c.strip() for c in change if c.strip())


def _parse_ties(groups: Any, ranking: Sequence[int]) -> list[list[int]]:
    """Return the groups that tie, without groups of one. Raises UnreadableOutput."""
    if not isinstance(groups, list) or not all(isinstance(group, list) for group in groups):
        raise reader.UnreadableOutput("'ties' must be a list of groups of numbers")
    tied = [n for group in groups for n in group]
    if len(tied) > len(ranking) or any(type(n) is not int or n not in ranking for n in tied) or len(set(tied)) < len(tied):
        raise reader.UnreadableOutput("'ties' must hold numbers of answers, none of them twice")
    for group in groups:
        places = [ranking.index(n) for n in group]
        if places and max(places) - min(places) >= len(group):
            raise reader.UnreadableOutput(f"the answers that tie, {group}, must stand side by side in 'ranking'")
    return [group for group in groups if len(group) > 1]


async def shuffle_off_loop(task: Task, candidates: Sequence[Candidate], repeat: int) -> list[Candidate]:
    """Return `stable_shuffle(...)`, computed in a thread if the texts are long."""
    return await run_in_thread_if_large(total_chars(task, *(c.text for c in candidates)), stable_shuffle, task, candidates, repeat)


def stable_shuffle(task: Task, candidates: Iterable[Candidate], repeat: int) -> list[Candidate]:
    """Return the candidates in an order that depends only on the task, their ids and texts, and the repeat."""
    ordered = sorted(candidates, key=lambda c: c.id)
    content = json.dumps([dict(build_transcript(task).texts), [[c.id, *c.content_key] for c in ordered], repeat])
    seed = sha256(content.encode()).hexdigest()
    return sorted(ordered, key=lambda c: sha256(f"{seed}:{c.id}".encode()).digest())


async def knockout(
    candidates: Sequence[Candidate],
    max_finalists: int,
    group_size: int,
    compare: Callable[[Sequence[Candidate]], Awaitable[Comparison]],
) -> Comparison:
    """Return one comparison of all. While more than `max_finalists` are left, groups of up to `group_size` send their winners on.

    If several tie for the first place in a group, the earliest advances. The finalists are ranked by their comparison, the
    others tie by the round they reached. Every comparison is kept in `votes`.
    """
    votes: list[Comparison | Failure] = []
    eliminated: list[tuple[int, ...]] = []
    while len(candidates) > max_finalists:
        count = ceil(len(candidates) / group_size)
        results = await gather_or_cancel(_compare_group(candidates[i::count], compare) for i in range(count))
        winners = [min(id for id, place in result.ranks.items() if place == 0) for result in results]
        eliminated.insert(0, tuple(sorted(c.id for c in candidates if c.id not in winners)))
        votes += [vote for result in results if len(result.ranking) > 1 for vote in result.votes or (result,)]
        candidates = [c for c in candidates if c.id in winners]
    final = await compare(candidates)
    if not eliminated:
        return final
    return replace(
        final,
        ranking=(*final.ranking, *(id for group in eliminated for id in group)),
        ties=(*final.ties, *(group for group in eliminated if len(group) > 1)),
        presentation_order=(),
        votes=(*votes, *(final.votes or (final,))),
    )


async def _compare_group(group: Sequence[Candidate], compare: Callable[[Sequence[Candidate]], Awaitable[Comparison]]) -> Comparison:
    """Return the comparison of a group; a group of one needs none."""
    return await compare(group) if len(group) > 1 else Comparison((group[0].id,))
