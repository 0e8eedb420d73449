"""Judges that compare answers: `Ranker` ranks all of them in one request, `Pairwise` compares two
at a time.

Judges favour positions (Zheng et al., arXiv:2306.05685). `Ranker` shows answers in an order derived
from their own content: the same for the same candidates and repeat, whatever order they are given
in. `Pairwise` asks in both orders; a verdict that changes with the order counts as a tie. More
answers than fit into one request are ranked by knockout.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from itertools import combinations, pairwise, permutations
from math import ceil
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, cast

from ...base import checks
from ...base.own_code import fingerprint_name
from ...base.threads import run_in_thread_if_large
from ...loop.records import Candidate, Comparison, Failure
from ...loop.task import Task
from ...middleware.messages import IMAGES_OMITTED_NOTE
from ...protocols import JudgeClient, Reply, Request
from ..base import all_actions, consensus, copeland, gather_or_cancel, unique_texts
from ..rubric import TASK_FIELDS, Rubric, as_rubric
from ..template import Kind, Paths, ReadInput, Template, parse_read
from .own_form import WINNERS, OwnReply, TemplateJudge, form_schema
from .pointwise import MAX_CHANGE_CHARS
from .prompt import (
    CONTROL_NOTICE,
    DATA_NOTICE,
    ShownTexts,
    build_transcript,
    data_notice,
    render_candidate,
    task_texts,
    total_chars,
)
from .structured import (
    MAX_REASON_CHARS,
    SYSTEM,
    UnreadableOutput,
    ask_judge,
    object_schema,
    plain_number,
    read_object,
    text_schema,
)

RANK_PROMPT = (
    "Rank these answers to the task from best to worst by how well each helps the person who asked."
)
CRITERIA_NOTE = "Use only these criteria:"
ORDER_NOTE = (
    "The order of the answers has no meaning. A longer answer is not better because of its length."
)
RANKING_FORMAT = (
    'Answer with one JSON object only: {"reason": "one to three sentences: why this order, '
    'without numbers of answers", "change": ["what would make the best answer better"], '
    '"ranking": [numbers of all answers, best first], "ties": [[numbers of equally good answers]] '
    'or [], "done": true only if nothing should change}'
)
SHARED_PATHS = (("reason", "reason"), ("actions", "change"), ("done", "done"))
RANKING_PATHS: Paths = (*SHARED_PATHS, ("ranking", "ranking"), ("ties", "ties"))
PAIR_PATHS: Paths = (*SHARED_PATHS, ("winner", "winner"))
MAX_CHANGES = 5
MAX_LISTED = 4  # answers whose orders a schema lists

CompareGroup: TypeAlias = Callable[[Sequence[Candidate]], Awaitable[Comparison]]


@fingerprint_name("ranker")
@dataclass(frozen=True)
class Ranker(TemplateJudge):
    """An LLM grader that ranks all answers so far, best first. Its reasons and changes guide the
    next draft.

    Args:
        name: Its name in the trace.
        instruction: The instruction at the beginning of its prompt.
        model: The model to ask. None means the `judge` of the call, else its `model`.
        temperature: Sampling temperature; None leaves it to the endpoint.
        max_tokens: Maximum length of its verdict and its reasoning together, in tokens. None sets
            no limit: the endpoint has its own, and a budget limits every call. A verdict that is
            cut off is asked for once more with four times the tokens.
        params: Further parameters of its calls, such as `{"reasoning_effort": "low"}`;
            `temperature` and `max_tokens` among them are those above. They win over the
            `judge_params` of the call.
        max_eval_chars: Maximum length of the texts it is shown, in characters. Each answer gets an
            equal share.
        rubric: The criteria by which it ranks, in any form that `Judge` takes; None leaves them to
            the model.
        max_group_size: How many answers it ranks in one call, at least 2. More are ranked in groups
            whose winners advance; the others tie by the round that they reached.
        images: Whether it is sent the images of the task.
        template: Your own prompt in place of instruction and criteria, as text or as the Path of a
            file, with `{responses}` for all answers (`Pairwise`: `{response_a}` and `{response_b}`)
            and the other fields of a `Judge`'s template.
        read: The keys of the JSON that your template asks for, if it states its own form of reply:
            the key of the ranking (a list of the answers' numbers, best first), or a mapping of
            "ranking", "ties", "reason", "actions" and "done" to keys, which may be dotted paths.
            `Pairwise` has "winner" instead, which is "first", "second" or "tie", "A" or "B", 1 or
            2. Then nothing is appended to the template.

    Raises:
        ConfigError: An argument is wrong.
    """

    name: str = "ranker"
    instruction: str = RANK_PROMPT
    model: Any = None
    temperature: float | None = 0.0
    max_tokens: int | None = None
    max_eval_chars: int = 32_768
    rubric: Rubric | Mapping[str, Any] | str | Path | None = None
    max_group_size: int = 8
    images: bool = True
    template: str | Path | None = None
    read: ReadInput | None = None
    params: Mapping[str, Any] | None = field(default=None, compare=False)

    template_kind: ClassVar[Kind] = "listwise"
    answer_format: ClassVar[str] = RANKING_FORMAT
    prompt_texts: ClassVar[tuple[str, ...]] = (
        SYSTEM,
        CRITERIA_NOTE,
        DATA_NOTICE,
        CONTROL_NOTICE,
        IMAGES_OMITTED_NOTE,
        ORDER_NOTE,
        RANKING_FORMAT,
    )

    def __post_init__(self) -> None:
        self.check_settings()
        checks.text(f"{self.name}: instruction", self.instruction)
        if self.rubric is not None:
            object.__setattr__(self, "rubric", as_rubric(self.rubric))
        checks.whole_number(f"{self.name}: max_group_size", self.max_group_size, 2)
        self._set_form()

    def _set_form(self) -> None:
        """Check and set the template and the reply form; without one of its own, the
        rubric's if it compares answers.
        """
        template, read, rubric = self._load_template(), self.read, self._rubric
        if (
            template is None
            and rubric
            and rubric.template
            and Template(rubric.template).kind == self.template_kind
        ):
            template, read = rubric.template, rubric.read
        object.__setattr__(self, "template", template)
        object.__setattr__(
            self, "read", None if read is None else parse_read(read, self.template_kind)
        )

    @property
    def _rubric(self) -> Rubric | None:
        return cast("Rubric | None", self.rubric)  # set by __post_init__

    @property
    def reads_tool_calls(self) -> bool:
        """Whether answers that call tools are compared, too: as the rubric says."""
        return self._rubric is not None and self._rubric.reads_tool_calls

    async def compare(
        self, task: Task, candidates: Sequence[Candidate], ask: JudgeClient
    ) -> Comparison:
        """Return the ranking of all candidates. Raises BadResponseError if a reply is unreadable
        twice.
        """
        shuffled = await shuffle_off_loop(task, candidates, ask.repeat)
        return await knockout(
            shuffled, self.max_group_size, self.max_group_size, partial(self._rank, task, ask=ask)
        )

    async def _rank(
        self, task: Task, candidates: Sequence[Candidate], ask: JudgeClient
    ) -> Comparison:
        n = len(candidates)
        answers = {f"answer-{k}": c for k, c in enumerate(candidates, 1)}
        schema = self._schema(ranking_schema(n), ranking=order_schema(n), ties=ties_schema(n))
        parse = partial(parse_ranking, form=self._form or RANKING_PATHS, candidates=candidates)
        return await self.ask_comparison(task, answers, ask, schema, parse)

    def _schema(self, default: Mapping[str, Any], **parts: Any) -> Mapping[str, Any]:
        """Return the JSON schema of a reply: in the template's own form, or else `default`."""
        if self._form and self._template:
            return form_schema(self._form, self._template.literal, **parts)
        return default

    async def ask_comparison(
        self,
        task: Task,
        answers: Mapping[str, Candidate],
        ask: JudgeClient,
        schema: Mapping[str, Any],
        parse: Callable[[Reply], Comparison],
    ) -> Comparison:
        """Ask the judge about these answers, in this order. `parse` reads a reply that follows the
        schema.

        Raises BadResponseError if the reply is unreadable twice, ConfigError for a task that lacks
        a field.
        """
        self.check_task(task)
        template = self._template
        fields = self._rubric.task_fields if self._rubric and not template else TASK_FIELDS

        def build() -> tuple[Request, ShownTexts]:
            texts = {
                **task_texts(task, fields),
                **(template.metadata_texts(task) if template else {}),
                **{name: render_candidate(c) for name, c in answers.items()},
            }
            limits = dict.fromkeys(answers, self.max_eval_chars // max(1, len(answers)))
            return self.build_request(task, texts, prompt, schema, limits=limits)

        def prompt(enclosed: Mapping[str, str], nonce: str) -> str:
            notice = data_notice(nonce)
            parts = [self.instruction, self._criteria_text, notice, *enclosed.values(), ORDER_NOTE]
            if template:
                shown = "\n\n".join(enclosed[name] for name in answers)
                parts = [notice, *self._filled_template(template, {**enclosed, "answers": shown})]
            return "\n\n".join(filter(None, [*parts, "" if self._form else self.answer_format]))

        size = total_chars(task, *(c.display_text for c in answers.values()))
        comparison, shown = await ask_judge(ask, size, build, parse)
        return shown.with_omission_note(
            comparison, {name: f"candidate {c.id}" for name, c in answers.items()}
        )

    @property
    def _criteria_text(self) -> str:
        if self._rubric is None:
            return ""
        lines = (
            f"- {c.name}{f' (weight {c.weight:g})' if c.weight != 1 else ''}: {c.description}"
            for c in self._rubric.criteria
        )
        return "\n".join([CRITERIA_NOTE, *lines])


def ranking_schema(n: int) -> dict[str, Any]:
    """Return the JSON schema of a ranking of `n` answers."""
    number = {"type": "integer", "enum": list(range(1, n + 1))}
    return comparison_schema(
        ranking={"type": "array", "items": number, "minItems": n, "maxItems": n},
        **({"ties": ties_schema(n)} if n > 1 else {}),
    )


def ties_schema(n: int) -> dict[str, Any]:
    """Return the JSON schema of the groups that tie among `n` answers."""
    number = {"type": "integer", "enum": list(range(1, n + 1))}
    tied = {"type": "array", "items": number, "minItems": min(2, n), "maxItems": n}
    return {"type": "array", "items": tied, "maxItems": n // 2}


def order_schema(n: int) -> dict[str, Any]:
    """Return the JSON schema of an order of `n` answers: all orders of few answers, so that no
    model names one twice.
    """
    if n <= MAX_LISTED:
        return {"enum": [list(order) for order in permutations(range(1, n + 1))]}
    return dict(ranking_schema(n)["properties"]["ranking"])


def comparison_schema(**verdict_properties: Any) -> dict[str, Any]:
    """Return the JSON schema of a comparison: reason and changes, then the verdict, then whether it
    would stop here.
    """
    changes = {"type": "array", "items": text_schema(MAX_CHANGE_CHARS), "maxItems": MAX_CHANGES}
    return object_schema(
        reason=text_schema(MAX_REASON_CHARS),
        change=changes,
        **verdict_properties,
        done={"type": "boolean"},
    )


def parse_ranking(reply: Reply, form: Paths, candidates: Sequence[Candidate]) -> Comparison:
    """Return the comparison in a reply, whose keys a form names. Raises UnreadableOutput
    unless each answer is ranked exactly once.
    """
    own = OwnReply(read_object(reply.text), form)
    ranking = _whole_numbers(own.value("ranking"))
    expected = list(range(1, len(candidates) + 1))
    if ranking is None or sorted(ranking) != expected:
        raise UnreadableOutput(f"{own.key('ranking')!r} must hold each of {expected} once")
    ids = [c.id for c in candidates]
    return Comparison(
        tuple(ids[n - 1] for n in ranking),
        own.reason,
        own.actions,
        own.done,
        ties=tuple(tuple(ids[n - 1] for n in group) for group in _parse_ties(own, ranking)),
        presentation_order=tuple(ids),
    )


def _parse_ties(own: OwnReply, ranking: Sequence[int]) -> list[list[int]]:
    """Return the different groups that tie, without groups of one. Raises UnreadableOutput."""
    groups = {tuple(sorted(map(ranking.index, group))) for group in _tied_numbers(own, ranking)}
    tied = sorted(group for group in groups if len(group) > 1)
    for places in tied:
        if places[-1] - places[0] >= len(places):
            raise UnreadableOutput(
                f"the answers that tie, {[ranking[p] for p in places]}, must be adjacent in "
                f"{own.key('ranking')!r}"
            )
    if any(one[-1] >= following[0] for one, following in pairwise(tied)):
        raise UnreadableOutput(f"{own.key('ties')!r} must hold no answer in two groups")
    return [[ranking[place] for place in places] for places in tied]


def _tied_numbers(own: OwnReply, ranking: Sequence[int]) -> Iterator[set[int]]:
    """Yield the numbers of each group that ties. Raises UnreadableOutput for other values."""
    groups = own.value("ties")
    groups = [] if groups is None else groups
    if not isinstance(groups, list) or not all(isinstance(group, list) for group in groups):
        raise UnreadableOutput(f"{own.key('ties')!r} must be a list of groups of numbers")
    for group in groups:
        numbers = _whole_numbers(group)
        if numbers is None or not set(numbers) <= set(ranking):
            raise UnreadableOutput(f"{own.key('ties')!r} must hold numbers of answers")
        yield set(numbers)


def _whole_numbers(values: Any) -> list[int] | None:
    """Return the whole numbers in a list; None for any other value."""
    numbers: list[Any] = [*map(plain_number, values)] if isinstance(values, list) else [None]
    return numbers if all(type(n) is int for n in numbers) else None


async def shuffle_off_loop(
    task: Task, candidates: Sequence[Candidate], repeat: int
) -> list[Candidate]:
    """Return `stable_shuffle(...)`, computed in a thread if the texts are long."""
    return await run_in_thread_if_large(
        total_chars(task, *(c.text for c in candidates)), stable_shuffle, task, candidates, repeat
    )


def stable_shuffle(task: Task, candidates: Iterable[Candidate], repeat: int) -> list[Candidate]:
    """Return the candidates in an order that depends only on the task, their ids and texts, and the
    repeat.
    """
    ordered = sorted(candidates, key=lambda c: c.id)
    content = json.dumps(
        [dict(build_transcript(task).texts), [[c.id, *c.content_key] for c in ordered], repeat]
    )
    seed = sha256(content.encode()).hexdigest()
    return sorted(ordered, key=lambda c: sha256(f"{seed}:{c.id}".encode()).digest())


async def knockout(
    candidates: Sequence[Candidate],
    max_finalists: int,
    group_size: int,
    compare: CompareGroup,
) -> Comparison:
    """Return one comparison of all. While more than `max_finalists` are left, only the winners of
    groups of `group_size` advance.

    The finalists are ranked by their comparison, the others tie by the round they reached. `votes`
    holds every comparison.
    """
    votes: list[Comparison | Failure] = []
    eliminated: list[tuple[int, ...]] = []
    while len(candidates) > max_finalists:
        winners, round_votes = await _group_winners(candidates, group_size, compare)
        eliminated.insert(0, tuple(sorted({c.id for c in candidates} - {c.id for c in winners})))
        votes += round_votes
        candidates = winners
    final = await compare(candidates)
    return _with_eliminated(final, eliminated, votes) if eliminated else final


async def _group_winners(
    candidates: Sequence[Candidate], group_size: int, compare: CompareGroup
) -> tuple[list[Candidate], list[Comparison | Failure]]:
    """Return the winner of each group, and all votes. If several tie for the first place in a
    group, the earliest wins.
    """
    count = ceil(len(candidates) / group_size)
    results = await gather_or_cancel(
        _compare_group(candidates[i::count], compare) for i in range(count)
    )
    winner_ids = {min(id for id, place in result.ranks.items() if place == 0) for result in results}
    votes = [
        vote for result in results if len(result.ranking) > 1 for vote in result.votes or (result,)
    ]
    return [c for c in candidates if c.id in winner_ids], votes


async def _compare_group(group: Sequence[Candidate], compare: CompareGroup) -> Comparison:
    """Return the comparison of a group; a group of one needs none."""
    return await compare(group) if len(group) > 1 else Comparison((group[0].id,))


def _with_eliminated(
    final: Comparison, eliminated: Sequence[tuple[int, ...]], votes: Sequence[Comparison | Failure]
) -> Comparison:
    """Return the comparison of the finalists with the groups that were eliminated, the last round
    first, behind them.
    """
    return replace(
        final,
        ranking=(*final.ranking, *(id for group in eliminated for id in group)),
        ties=(*final.ties, *(group for group in eliminated if len(group) > 1)),
        presentation_order=(),
        votes=(*votes, *(final.votes or (final,))),
    )


# ---- two at a time


COMPARE_PROMPT = (
    "Say which of these two answers to the task is more helpful to the person who asked."
)
PAIR_FORMAT = (
    'Answer with one JSON object only: {"reason": "one to three sentences: what decides it, '
    'without the words first and second", "change": ["what would make the better answer better"], '
    '"winner": "first", "second", or "tie" if neither is better, "done": true only if nothing '
    "should change}"
)
ORDER_CHANGED_NOTE = "the verdict changed with the order"
PAIR_SCHEMA = comparison_schema(winner={"type": "string", "enum": list(WINNERS)})


@fingerprint_name("pairwise")
@dataclass(frozen=True)
class Pairwise(Ranker):
    """Ranks candidates by comparing pairs, each in both orders; a verdict that changes with the
    order is a tie.

    It has the fields of `Ranker`; a template shows `{response_a}` and `{response_b}` (or
    `{answer_1}` and `{answer_2}`). Up to `max_group_size` candidates (>= 2) are all compared with
    each other and ranked by their wins; a tie counts half. Of more, pairs are compared and winners
    advance until at most `max_group_size` are left; the others tie by the round they reached.
    `votes` holds every verdict with its `presentation_order`. `done` is True if both verdicts of
    every pair with the best candidate say so. A pair takes two calls; n candidates that are all
    compared take n (n - 1).
    """

    name: str = "pairwise"
    instruction: str = COMPARE_PROMPT
    max_group_size: int = 4

    template_kind: ClassVar[Kind] = "pairwise"
    answer_format: ClassVar[str] = PAIR_FORMAT
    prompt_texts: ClassVar[tuple[str, ...]] = (
        SYSTEM,
        CRITERIA_NOTE,
        DATA_NOTICE,
        CONTROL_NOTICE,
        IMAGES_OMITTED_NOTE,
        ORDER_NOTE,
        PAIR_FORMAT,
        ORDER_CHANGED_NOTE,
    )

    async def compare(
        self, task: Task, candidates: Sequence[Candidate], ask: JudgeClient
    ) -> Comparison:
        """Return the ranking of all candidates; one alone needs no call. Raises BadResponseError if
        a reply is unreadable twice.
        """
        if len(candidates) < 2:
            return Comparison(tuple(c.id for c in candidates))
        shuffled = await shuffle_off_loop(task, candidates, ask.repeat)
        return await knockout(
            shuffled, self.max_group_size, 2, partial(self.round_robin, task, ask=ask)
        )

    async def round_robin(
        self, task: Task, group: Sequence[Candidate], ask: JudgeClient
    ) -> Comparison:
        """Compare each of two or more candidates with every other, in both orders."""
        orders = [
            order for one, other in combinations(group, 2) for order in ((one, other), (other, one))
        ]
        verdicts = await gather_or_cancel(self.compare_pair(task, *order, ask) for order in orders)
        return rank_by_wins(
            [merge_orders(*verdicts[i : i + 2]) for i in range(0, len(verdicts), 2)]
        )

    async def compare_pair(
        self, task: Task, first: Candidate, second: Candidate, ask: JudgeClient
    ) -> Comparison:
        """Ask about two candidates in one order. Raises BadResponseError if the reply is unreadable
        twice.
        """
        parse = partial(parse_pair_reply, form=self._form, first=first, second=second)
        answers = {"first": first, "second": second}
        return await self.ask_comparison(task, answers, ask, self._schema(PAIR_SCHEMA), parse)


def parse_pair_reply(
    reply: Reply, form: Paths | None, first: Candidate, second: Candidate
) -> Comparison:
    """Return the comparison of two answers in a reply: in a template's own form, or in
    Redraft's, which names the winner in fewer ways. Raises UnreadableOutput.
    """
    own = OwnReply(read_object(reply.text), form or PAIR_PATHS)
    winner = own.winner if form else own.word("winner", WINNERS)
    order = (first.id, second.id)
    return Comparison(
        order[::-1] if winner == "second" else order,
        own.reason,
        own.actions,
        own.done,
        ties=(order,) if winner == "tie" else (),
        presentation_order=order,
    )


def merge_orders(forward: Comparison, backward: Comparison) -> Comparison:
    """Return the verdict on a pair that was compared in both orders: what both say, or a tie."""
    reasons = unique_texts((forward.reason, backward.reason))
    both = replace(
        forward,
        actions=all_actions((forward, backward)),
        done=consensus((forward.done, backward.done)),
        presentation_order=(),
        votes=(forward, backward),
    )
    if forward.ranks == backward.ranks:
        return replace(both, reason="; ".join(reasons))
    pair = tuple(sorted(forward.ranking))
    return replace(
        both, ranking=pair, ties=(pair,), reason="; ".join([ORDER_CHANGED_NOTE, *reasons])
    )


def rank_by_wins(comparisons: Sequence[Comparison]) -> Comparison:
    """Return one ranking from the comparisons of all pairs. Reasons and changes come from the
    pairs that the best one won.
    """
    if len(comparisons) == 1:
        return comparisons[0]
    ranking, ties = copeland(comparisons)
    with_best = [c for c in comparisons if ranking[0] in c.ranking]
    decisive = [c for c in with_best if c.ranking[0] == ranking[0] and not c.ties] or with_best
    reasons = unique_texts(c.reason.removeprefix(f"{ORDER_CHANGED_NOTE}; ") for c in decisive)
    if changed := sum(c.consistent is False for c in comparisons):
        note = f"{ORDER_CHANGED_NOTE} in {changed} of {len(comparisons)} pairs"
        reasons = (note, *reasons)
    return Comparison(
        ranking,
        "; ".join(reasons),
        all_actions(decisive),
        consensus(c.done for c in with_best),
        ties=ties,
        votes=tuple(vote for c in comparisons for vote in c.votes),
    )
