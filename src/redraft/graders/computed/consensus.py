"""The answer that most answers agree on, without a model: self-consistency (arXiv:2203.11171)."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ...answers import AnswerForm, InvalidAnswer
from ...base.jsontext import dumps
from ...base.own_code import fingerprint_name
from ...base.threads import run_in_thread
from ...loop.records import Candidate, Comparison
from ...loop.task import Task
from ...protocols import JudgeClient


@fingerprint_name("consensus")
@dataclass(frozen=True)
class Consensus:
    """A grader that ranks answers by how many are equal to each. Its reason says how many agree on
    the first; answers on which as many agree tie.

    If the run has a form of answer, the values are compared that the form reads, and an answer that
    is not of the form agrees with none. Else the texts are compared, without regard to case and
    white space, and the tool calls.
    """

    name: str = "consensus"

    model_free = True
    reads_metadata = False
    reads_tool_calls = True

    async def compare(
        self, task: Task, candidates: Sequence[Candidate], ask: JudgeClient
    ) -> Comparison:
        """Return the ranking. What validators of the user raise is a failure of the comparison."""
        form: AnswerForm[Any] | None = getattr(ask, "answer", None)
        groups = await run_in_thread(agreeing_groups, candidates, form)
        by_size: defaultdict[int, list[int]] = defaultdict(list)
        for group in sorted(groups, key=len, reverse=True):
            by_size[len(group)] += group
        most, total = max(by_size), len(candidates)
        return Comparison(
            tuple(id for ids in by_size.values() for id in ids),
            f"{most} of {total} answers agree ({most / total:.0%})",
            ties=tuple(tuple(ids) for ids in by_size.values() if len(ids) > 1),
        )


def agreeing_groups(
    candidates: Iterable[Candidate], form: AnswerForm[Any] | None
) -> list[list[int]]:
    """Return the IDs of the answers in groups that agree, in the order of their first answers."""
    groups: dict[object, list[int]] = {}
    for candidate in candidates:
        groups.setdefault(_value(candidate, form), []).append(candidate.id)
    return list(groups.values())


def _value(candidate: Candidate, form: AnswerForm[Any] | None) -> object:
    """Return what is compared of an answer: something that only an equal answer has."""
    calls = tuple((call.name, call.arguments) for call in candidate.tool_calls)
    if form is None or calls:
        return " ".join(candidate.text.casefold().split()), calls
    try:
        value = form.to_data(form.read(candidate.text), candidate.text)
    except InvalidAnswer:
        return candidate.id
    return dumps(json.loads(dumps(value), parse_float=_number), sort_keys=True)


def _number(text: str) -> float:
    """Return a number as an int if it is whole, since 1 and 1.0 are equal."""
    number = float(text)
    return int(number) if number.is_integer() else number
