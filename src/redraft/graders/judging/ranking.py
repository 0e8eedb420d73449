"""Judges that compare answers: `Ranker` ranks all of them in one request, `Pairwise` compares two
at a time.

Judges favour positions (Zheng et al., arXiv:2306.05685). `Ranker` shows answers in an order derived
from their own content: the same for the same candidates and repeat, whatever order they are given
in. `Pairwise` asks in both orders; a verdict that changes with the order counts as a tie. More
answers than fit into one request are ranked by knockout.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from itertools import combinations, permutations
from math import ceil
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, cast

from ...base import checks
from ...base.own_code import fingerprint_name
from ...base.threads import run_in_thread_if_large
from ...errors import ConfigError
from ...loop.records import Candidate, Comparison, Failure
from ...loop.task import Task
from ...middleware.messages import IMAGES_OMITTED_NOTE
from ...protocols import JudgeClient, Reply, Request
from ..base import (
    check_needs,
    consensus,
    copeland,
    gather_or_cancel,
    unique_texts,
)
from ..reply_form import Paths, ReadInput, parse_read
from ..rubric import TASK_FIELDS, Rubric, as_rubric, overall_criterion
from ..template import Kind, Template
from .own_form import WINNERS, OwnReply, form_schema
from .pointwise import MAX_CHANGE_CHARS, check_template_kind, load_template
from .prompt import (
    CONTROL_NOTICE,
    DATA_NOTICE,
    ShownTexts,
    build_transcript,
    data_notice,
    enclose,
    render_candidate,
    task_texts,
    total_chars,
)
from .structured import (
    MAX_REASON_CHARS,
    SYSTEM,
    LlmJudge,
    UnreadableOutput,
    ask_judge,
    bool_at,
    object_schema,
    plain_number,
    read_object,
    reason_at,
    spell_keys,
    text_schema,
    texts_at,
    word_at,
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
MAX_CHANGES = 5
MAX_LISTED = 4  # answers whose orders a schema lists

CompareGroup: TypeAlias = Callable[[Sequence[Candidate]], Awaitable[Comparison]]


@fingerprint_name("ranker")
@dataclass(frozen=True)
class Ranker(LlmJudge):
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
        """Check and set the template and the reply form; without one of its own, those of the
        rubric if it compares answers.
        """
        template = load_template(self.template)
        if template is not None:
            check_template_kind(template, self.template_kind, self.name)
        elif self.read is not None:
            raise ConfigError("read names the keys of a template's own reply form: give a template")
        elif (
            self._rubric
            and self._rubric.template
            and Template(self._rubric.template).kind == self.template_kind
        ):
            object.__setattr__(self, "read", self._rubric.read)
            template = self._rubric.template
        object.__setattr__(self, "template", template)
        if self.read is not None:
            object.__setattr__(self, "read", parse_read(self.read, self.template_kind))

    @property
    def _rubric(self) -> Rubric | None:
        return cast("Rubric | None", self.rubric)  # set by __post_init__

    @property
    def needs(self) -> tuple[str, ...]:
        """The fields that a task must have."""
        return self._rubric.needs if self._rubric else ()

    @property
    def reads_tool_calls(self) -> bool:
        """Whether answers that call tools are compared, too: as the rubric says."""
        return self._rubric is not None and self._rubric.reads_tool_calls

    @property
    def reads_metadata(self) -> bool:
        """Whether the template has fields of the task's metadata."""
        return self._template is not None and bool(self._template.metadata_fields)

    @property
    def _template(self) -> Template | None:
        return Template(self.template) if isinstance(self.template, str) else None

    @property
    def _form(self) -> Paths | None:
        return None if self.read is None else parse_read(self.read, self.template_kind)

    def check_task(self, task: Task) -> None:
        """Raise ConfigError for a task without the metadata that the template shows."""
        if self._template is not None:
            self._template.check_task(task)

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
        answers = {f"answer-{n}": c for n, c in enumerate(candidates, 1)}
        own = ComparisonFormat(
            RANKING_FORMAT,
            ranking_schema(len(candidates)),
            partial(parse_ranking, candidates=candidates),
        )
        if self._form and self._template:
            n = len(candidates)
            schema = form_schema(
                self._form, self._template.literal, ranking=order_schema(n), ties=ties_schema(n)
            )
            own = ComparisonFormat(
                "", schema, partial(parse_own_ranking, form=self._form, candidates=candidates)
            )
        return await self.ask_comparison(task, answers, ask, own)

    async def ask_comparison(
        self,
        task: Task,
        answers: Mapping[str, Candidate],
        ask: JudgeClient,
        answer_format: ComparisonFormat,
    ) -> Comparison:
        """Ask the judge about these answers, in this order.

        Raises BadResponseError if the reply is unreadable twice, ConfigError for a task that lacks
        a field.
        """
        check_needs(self.name, self.needs, task)
        self.check_task(task)
        fields = (
            self._rubric.task_fields if self._rubric and self._template is None else TASK_FIELDS
        )

        def build() -> tuple[Request, ShownTexts]:
            columns = self._template.metadata_texts(task) if self._template else {}
            texts = {
                **task_texts(task, fields),
                **columns,
                **{name: render_candidate(c) for name, c in answers.items()},
            }
            limits = dict.fromkeys(answers, self.max_eval_chars // max(1, len(answers)))
            return self.build_request(task, texts, prompt, answer_format.schema, limits=limits)

        def prompt(shown: Mapping[str, str], nonce: str) -> str:
            enclosed = {name: enclose(name, text, nonce) for name, text in shown.items()}
            if self._template is None:
                parts = [
                    self.instruction,
                    *self.criteria_texts(),
                    data_notice(nonce),
                    *enclosed.values(),
                    ORDER_NOTE,
                ]
            else:
                parts = [
                    data_notice(nonce),
                    *self._template_texts(self._template, enclosed, list(answers)),
                ]
            return "\n\n".join(filter(None, [*parts, answer_format.instructions]))

        size = total_chars(task, *(c.display_text for c in answers.values()))
        comparison, shown = await ask_judge(ask, size, build, answer_format.parse)
        return shown.with_omission_note(
            comparison, {name: f"candidate {c.id}" for name, c in answers.items()}
        )

    def _template_texts(
        self, template: Template, enclosed: Mapping[str, str], names: Sequence[str]
    ) -> list[str]:
        """Return the filled template and, unless it has a field for them, the criteria of the
        rubric.
        """
        criteria = "\n".join(self.criteria_texts())
        filled = template.fill(
            {
                **enclosed,
                "answers": "\n\n".join(enclosed[name] for name in names),
                "criteria": criteria,
            }
        )
        own_criteria = self._rubric is not None and self._rubric.criteria != overall_criterion()
        return (
            [filled, criteria] if own_criteria and "criteria" not in template.fields else [filled]
        )

    def criteria_texts(self) -> Iterable[str]:
        """Yield the criteria of the rubric in words, if there is one."""
        if self._rubric is not None:
            lines = (
                f"- {c.name}{f' (weight {c.weight:g})' if c.weight != 1 else ''}: {c.description}"
                for c in self._rubric.criteria
            )
            yield "\n".join([CRITERIA_NOTE, *lines])


@dataclass(frozen=True, slots=True)
class ComparisonFormat:
    """How a judge answers: in words, as a JSON schema, and what parses it (or raises
    UnreadableOutput).
    """

    instructions: str
    schema: Mapping[str, Any]
    parse: Callable[[Reply], Comparison]


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


def parse_ranking(reply: Reply, candidates: Sequence[Candidate]) -> Comparison:
    """Return the comparison in a reply. Raises UnreadableOutput unless each answer is ranked
    exactly once.
    """
    data = spell_keys(read_object(reply.text), ("reason", "change", "ranking", "ties", "done"))
    verdict = _rank_candidates(data.get("ranking"), data.get("ties"), candidates)
    return replace(
        verdict,
        reason=reason_at(data),
        actions=texts_at(data, "change"),
        done=bool_at(data, "done"),
    )


def parse_own_ranking(reply: Reply, form: Paths, candidates: Sequence[Candidate]) -> Comparison:
    """Return the comparison in a reply in a template's own form. Raises UnreadableOutput as
    `parse_ranking` does.
    """
    own = OwnReply(read_object(reply.text), form)
    verdict = _rank_candidates(
        own.value("ranking"), own.value("ties"), candidates, (own.key("ranking"), own.key("ties"))
    )
    return replace(verdict, reason=own.reason, actions=own.actions, done=own.done)


def _rank_candidates(
    ranking: Any,
    ties: Any,
    candidates: Sequence[Candidate],
    keys: tuple[str, str] = ("ranking", "ties"),
) -> Comparison:
    """Return the comparison from numbers of candidates, counted from 1. Raises UnreadableOutput,
    which names the keys.

    `ties` may be None.
    """
    expected = list(range(1, len(candidates) + 1))
    ranking = [plain_number(n) for n in ranking] if isinstance(ranking, list) else []
    if not all(type(n) is int for n in ranking) or sorted(ranking) != expected:
        raise UnreadableOutput(f"{keys[0]!r} must hold each of {expected} once")
    ids = {n: c.id for n, c in enumerate(candidates, 1)}
    return Comparison(
        tuple(ids[n] for n in ranking),
        ties=tuple(
            tuple(ids[n] for n in group)
            for group in _parse_ties([] if ties is None else ties, ranking, keys)
        ),
        presentation_order=tuple(c.id for c in candidates),
    )


def _parse_ties(groups: Any, ranking: Sequence[int], keys: tuple[str, str]) -> list[list[int]]:
    """Return the different groups that tie, without groups of one. Raises UnreadableOutput."""
    if not isinstance(groups, list) or not all(isinstance(group, list) for group in groups):
        raise UnreadableOutput(f"{keys[1]!r} must be a list of groups of numbers")
    numbers = [[plain_number(n) for n in group] for group in groups]
    if any(type(n) is not int or n not in ranking for group in numbers for n in group):
        raise UnreadableOutput(f"{keys[1]!r} must hold numbers of answers")
    places = {tuple(sorted({ranking.index(n) for n in group})) for group in numbers}
    tied = sorted(group for group in places if len(group) > 1)
    for group in tied:
        if group[-1] - group[0] >= len(group):
            raise UnreadableOutput(
                f"the answers that tie, {[ranking[p] for p in group]}, must be adjacent in "
                f"{keys[0]!r}"
            )
    if len({place for group in tied for place in group}) < sum(map(len, tied)):
        raise UnreadableOutput(f"{keys[1]!r} must hold no answer in two groups")
    return [[ranking[place] for place in group] for group in tied]


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

    The fields are those of `Ranker`; a template shows `{response_a}` and `{response_b}` (or
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
        own = ComparisonFormat(
            PAIR_FORMAT, PAIR_SCHEMA, partial(parse_pair_reply, first=first, second=second)
        )
        if self._form and self._template:
            schema = form_schema(self._form, self._template.literal)
            own = ComparisonFormat(
                "", schema, partial(parse_own_pair, form=self._form, first=first, second=second)
            )
        return await self.ask_comparison(task, {"first": first, "second": second}, ask, own)


def parse_pair_reply(reply: Reply, first: Candidate, second: Candidate) -> Comparison:
    """Return the comparison in a reply about two answers. Raises UnreadableOutput."""
    data = spell_keys(read_object(reply.text), ("reason", "change", "winner", "done"))
    verdict = _pair_comparison(word_at(data, "winner", WINNERS), first, second)
    return replace(
        verdict,
        reason=reason_at(data),
        actions=texts_at(data, "change"),
        done=bool_at(data, "done"),
    )


def parse_own_pair(reply: Reply, form: Paths, first: Candidate, second: Candidate) -> Comparison:
    """Return the comparison of two answers in a reply in a template's own form. Raises
    UnreadableOutput.
    """
    own = OwnReply(read_object(reply.text), form)
    return replace(
        _pair_comparison(own.winner, first, second),
        reason=own.reason,
        actions=own.actions,
        done=own.done,
    )


def _pair_comparison(winner: str, first: Candidate, second: Candidate) -> Comparison:
    order = (first.id, second.id)
    return Comparison(
        order[::-1] if winner == "second" else order,
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
    return replace(
        both, ranking=pair, ties=(pair,), reason="; ".join([ORDER_CHANGED_NOTE, *reasons])
    )


def rank_by_wins(comparisons: Sequence[Comparison]) -> Comparison:
    """Return one ranking from the comparisons of all pairs. Reasons and changes are those of the
    pairs that the best one won.
    """
    if len(comparisons) == 1:
        return comparisons[0]
    ranking, ties = copeland(comparisons)
    with_best = [c for c in comparisons if ranking[0] in c.ranking]
    decisive = [c for c in with_best if c.ranking[0] == ranking[0] and not c.ties] or with_best
    changed = sum(c.consistent is False for c in comparisons)
    notes = [f"{ORDER_CHANGED_NOTE} in {changed} of {len(comparisons)} pairs"] if changed else []
    return Comparison(
        ranking,
        "; ".join(
            [
                *notes,
                *unique_texts(
                    c.reason.removeprefix(f"{ORDER_CHANGED_NOTE}; ") for c in decisive if c.reason
                ),
            ]
        ),
        unique_texts(action for c in decisive for action in c.actions),
        consensus(c.done for c in with_best),
        ties=ties,
        votes=tuple(vote for c in comparisons for vote in c.votes),
    )
