"""Errors of replies in a template's own form name the user's keys, never Redraft's."""

import itertools
import json

import pytest

from each_row import each_row
from redraft import Judge
from redraft.graders.judging import ranking
from redraft.graders.judging.structured import UnreadableOutput
from redraft.graders.template import FORM_PARTS
from redraft.loop.records import Candidate
from redraft.protocols import Reply

TEXTS = [Candidate(0, "x"), Candidate(1, "y"), Candidate(2, "z")]
GOOD = {
    "score": 5,
    "winner": "first",
    "ranking": [1, 2, 3],
    "ties": [],
    "reason": "why",
    "actions": [],
    "done": True,
}
WRONG = {
    "score": [None, "5/10", 11, True, 2.5],
    "winner": [None, "third", 3, ["first"]],
    "ranking": [None, "1", [1, 2], [1, 1, 2], [0, 1, 2], {"a": 1}],
    "ties": ["1", [1], [[1, 4]], [[1, 2], [2, 3]], [[1, 3]], {"a": 1}],
    "reason": [5, {"a": 1}],
    "actions": [5, [5], {"a": 1}],
    "done": ["yes", 1],
}
CASES = [
    (kind, part, value)
    for kind, parts in FORM_PARTS.items()
    for part in parts
    for value in WRONG[part]
]


def parse(kind, text, form):
    if kind == "pointwise":
        return Judge(template="{response}", scale=(1, 10), read=form).parse_reply(Reply(text))
    if kind == "pairwise":
        return ranking.parse_pair_reply(Reply(text), tuple(form.items()), *TEXTS[:2])
    return ranking.parse_ranking(Reply(text), tuple(form.items()), TEXTS)


@each_row(("kind", "part", "value"), CASES, ids=lambda value: str(value)[:20])
def test_an_error_names_the_key_of_the_template(kind, part, value):
    """Whatever is wrong with it, and whatever the key."""
    form = {each: f"my_{n}.key" for n, each in enumerate(FORM_PARTS[kind])}
    reply = {
        f"my_{n}": {"key": value if each == part else GOOD[each]}
        for n, each in enumerate(FORM_PARTS[kind])
    }
    parse(
        kind,
        json.dumps({f"my_{n}": {"key": GOOD[each]} for n, each in enumerate(FORM_PARTS[kind])}),
        form,
    )
    with pytest.raises(UnreadableOutput) as caught:
        parse(kind, json.dumps(reply), form)
    assert "my_" in str(caught.value)
    assert not any(
        f"'{other}'" in str(caught.value)
        for other in itertools.chain.from_iterable(FORM_PARTS.values())
    )
