"""Rubric induction from labelled data: which rubric wins, what the file holds, and what happens at
a limit.
"""

import asyncio
import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_clock import pass_time
from redraft import Budget, ScriptedModel, Task
from redraft.errors import BadResponseError, ModelUnavailableError
from redraft.graders import Criterion, Rubric
from redraft.graders.cards import Measure
from redraft.graders.judging.structured import UnreadableOutput
from redraft.graders.rubric import ScoredExample
from redraft.models.functions import CallableModel
from redraft.protocols import Reply
from redraft.session.options import Options
from redraft.validation.cases import CaseVerdicts, LabelledCase, Verdict
from redraft.validation.rubric_induction import (
    InducedRubric,
    RubricInduction,
    disagreements,
    parse_rubric,
    split_cases,
    to_toml,
)
from sessions import make_session

START = Rubric(
    "mine",
    (Criterion("start", "As it was."),),
    about="What it is for.",
    needs=("context",),
    uses=(),
)


def pairs(n=30):
    """Pairs of which the better answer says yes."""
    return [
        LabelledCase(
            f"p{i}",
            "pair",
            Task(f"question {i}", context="c"),
            (f"yes {i}", f"no {i}") if i % 2 else (f"no {i}", f"yes {i}"),
            ranks=(0, 1) if i % 2 else (1, 0),
        )
        for i in range(n)
    ]


def proposal(*names):
    return json.dumps(
        {"criteria": [{"name": name, "description": f"By {name}.", "weight": 1} for name in names]}
    )


def verdict_json(name, score):
    return json.dumps(
        {
            "reason": "It is so.",
            "criteria": {name: {"evidence": "e", "change": "c", "score": score}},
            "done": False,
        }
    )


class RubricJudge:
    """A judge that is right where the name of the rubric's only criterion lets it be, and else
    ties.
    """

    def __init__(self, **right):
        self.right, self.calls = right, 0

    def __call__(self, messages):
        self.calls += 1
        text = messages[-1]["content"]
        name = re.search(r"^- (\w+): ", text, re.MULTILINE)[1]
        answer = re.search(r"<answer-\w+>\n(\w+) (\d+)", text)
        return verdict_json(
            name,
            3 if int(answer[2]) not in self.right.get(name, ()) else 5 if answer[1] == "yes" else 1,
        )


def rows_of(part, n=30):
    return {int(case.id[1:]) for case in split_cases(pairs(n))[part]}


EVERY = set(range(30))


async def induce(writer, judge, rounds=4, start=START, **options):
    model = writer if isinstance(writer, ScriptedModel) else ScriptedModel(writer)
    run_session = make_session(
        Options(retries=0, cache={}, **options), model, None, CallableModel(judge, name="judging")
    )
    try:
        return await RubricInduction(run_session, pairs(), start, rounds).run()
    finally:
        await run_session.close()


async def test_rubric_that_is_better_on_held_out_rows_wins():
    """It is kept with both agreements; inputs and subject of the starting rubric stay."""
    found = await induce([proposal("right")], RubricJudge(right=EVERY), rounds=1)
    assert (
        found.improved,
        found.test_agreement.value,
        found.start_agreement.value,
        found.stop_reason,
    ) == (True, 1.0, 0.5, None)
    assert found.rubric == replace(START, criteria=(Criterion("right", "By right."),))


@pytest.mark.parametrize(("right", "start"), [(rows_of(1), set()), (rows_of(1), rows_of(2))])
async def test_rubric_that_is_better_only_in_training_loses(right, start):
    """If it is no better on held-out rows, the starting rubric is kept with its own agreement."""
    found = await induce([proposal("lucky")], RubricJudge(lucky=right, start=start), rounds=1)
    assert found.round_agreements[1].value == 1.0
    assert not found.improved
    assert found.rubric == START
    assert found.test_agreement == found.start_agreement
    assert "No proposal was better" in to_toml(found, "pairs.jsonl")


@pytest.mark.parametrize(
    "rubbish", ["hm", '{"criteria": [{"name": "a", "description": "b", "weight": [1]}]}']
)
async def test_unreadable_later_proposal_ends_the_search(rubbish):
    """The best rubric so far is measured and the problem reported; an unreadable first proposal is
    an error.
    """
    found = await induce(
        [proposal("half"), rubbish, rubbish], RubricJudge(half={n for n in EVERY if n % 3})
    )
    assert (found.improved, found.rubric.criteria[0].name, found.stop_reason) == (
        True,
        "half",
        None,
    )
    assert "no proposal 2" in found.note
    with pytest.raises(BadResponseError):
        await induce([rubbish, rubbish], RubricJudge())


async def test_revision_sees_only_the_misses():
    """Rows that the judge got right are not shown, and without misses no revision is requested."""
    right = {n for n in EVERY if n % 5}
    model = ScriptedModel([proposal("half"), proposal("other")])
    await induce(model, RubricJudge(half=right), rounds=2)
    shown = {int(n) for n in re.findall(r"question (\d+)", model.messages[1][0]["content"])}
    assert shown == rows_of(0) - right
    model = ScriptedModel([proposal("right")])
    assert (await induce(model, RubricJudge(right=EVERY))).improved
    assert model.calls == 1


async def test_exhausted_budget_keeps_the_best_rubric():
    """It was chosen on whole rows; its held-out agreement is unknown."""
    choosing = len(rows_of(1)) * 2
    found = await induce(
        [proposal("right")],
        RubricJudge(right=EVERY),
        budget=Budget(calls=2 * choosing + 1),
        max_in_flight=1,
    )
    assert (found.stop_reason, found.improved, found.rubric.criteria[0].name) == (
        "budget",
        True,
        "right",
    )
    assert (
        found.selection_agreement.value,
        found.round_agreements[0].value,
        found.test_agreement.value,
    ) == (1.0, 0.5, None)
    text = to_toml(found, "pairs.jsonl")
    assert "ended early: budget" in text
    assert "unknown" in text


@pytest.mark.parametrize("calls", [1, 10, 18, 20])
async def test_exhausted_budget_before_a_choice_keeps_the_start(calls):
    """A proposal that was judged on some rows only is not chosen."""
    found = await induce(
        [proposal("right")], RubricJudge(right=EVERY), budget=Budget(calls=calls), max_in_flight=1
    )
    assert (found.stop_reason, found.improved, found.rubric) == ("budget", False, START)


async def test_one_deadline_bounds_all_stages():
    """Each stage fits the deadline but together they do not, so the starting rubric is kept."""

    async def slow(messages):
        await asyncio.sleep(0.02)
        return RubricJudge(right=EVERY)(messages)

    found = await induce([proposal("right")], slow, deadline=0.6, max_in_flight=1)
    assert (found.stop_reason, found.improved, found.rubric) == ("deadline", False, START)


@pytest.mark.parametrize("before", [(), (proposal("half"),)])
async def test_deadline_bounds_the_proposing_model(monkeypatch, before):
    """A proposal that never arrives ends the search with the best rubric so far."""

    async def hanging(messages):
        pass_time(monkeypatch, 1000)
        await asyncio.Event().wait()

    found = await induce(
        [*before, hanging], RubricJudge(half={n for n in EVERY if n % 3}), deadline=1000
    )
    assert (found.stop_reason, found.improved, found.round_agreements[0].value) == (
        "deadline",
        bool(before),
        0.5,
    )


async def test_judge_outage_keeps_the_best_rubric():
    """Failed calls are no misses; the search has failed and keeps the rubric that it had chosen."""
    judge = RubricJudge(right=EVERY)

    def leaving(messages):
        if judge.calls == 2 * 2 * len(rows_of(1)):
            raise ModelUnavailableError("gone")
        return judge(messages)

    found = await induce([proposal("right")], leaving, rounds=1)
    assert (found.stop_reason, found.improved, found.selection_agreement.value) == (
        "failed",
        True,
        1.0,
    )
    assert "gone" in found.note


def scored_cases(*rows):
    return [
        CaseVerdicts(
            LabelledCase(f"s{i}", "score", Task("q"), ("a",), label=label),
            (Verdict(f"s{i}", (score,)),),
        )
        for i, (label, score) in enumerate(rows)
    ]


def ids(cases):
    return [case.id for case in cases]


@pytest.mark.parametrize(
    "unit", [lambda x: x, lambda x: 1 + 9 * x, lambda x: 1000 * x - 500, lambda x: x / 100]
)
def test_misses_do_not_depend_on_the_human_scale(unit):
    """Two rows in the wrong order are misses on any scale."""
    rows = scored_cases(
        *(
            (unit(label), score)
            for label, score in [(0, 0.0), (0.25, 0.2), (0.5, 1.0), (0.75, 0.6), (1, 0.4)]
        )
    )
    assert ids(disagreements(rows)) == ["s2", "s4"]


def test_misses_of_labels():
    """The largest errors come first, and a row without a score is no miss."""
    rows = [
        replace(row, case=replace(row.case, kind="pass"))
        for row in scored_cases((1, 0.0), (1, 1.0), (0, 0.4), (1, None))
    ]
    assert ids(disagreements(rows)) == ["s0", "s2"]
    assert disagreements([]) == []


PARTS = [
    "\n",
    "\r",
    "\r\n",
    '"',
    "'",
    '"""',
    "'''",
    "\\",
    "\\u",
    "\x00",
    "\x7f",
    "\x85",
    "\u2028",
    "# ",
    "\n[[criteria]]\n",
    " ",
]
HOSTILE = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.lists(
    st.sampled_from(PARTS), max_size=8
).map("".join)
SAID = HOSTILE.map(str.strip)
NAMED = HOSTILE.filter(str.strip)


@st.composite
def rubrics(draw):
    """Draw any rubric that can be read from a file."""
    names = draw(st.lists(NAMED, min_size=1, max_size=4, unique=True))
    levels = st.dictionaries(st.integers(0, 5), SAID.filter(bool)).map(
        lambda content: tuple(sorted(content.items()))
    )
    weights = st.floats(0, 1e300, exclude_min=True)
    criteria = tuple(Criterion(name, draw(HOSTILE), draw(weights), draw(levels)) for name in names)
    scores = st.dictionaries(
        st.sampled_from([*names, "overall"]), st.integers(0, 5), min_size=1
    ).map(lambda content: tuple(content.items()))
    examples = draw(st.lists(st.builds(ScoredExample, NAMED, scores, SAID, SAID), max_size=3))
    fields = st.lists(st.sampled_from(["context", "reference", "tests"]), unique=True).map(tuple)
    template = draw(
        st.none()
        | SAID.map(
            lambda text: re.sub("[{}]", "", f"Judge this: {text}") + "\n{response} {criteria}"
        )
    )
    return Rubric(
        draw(SAID.filter(bool)),
        criteria,
        draw(SAID),
        draw(fields),
        draw(fields),
        tuple(examples),
        template,
    )


def rubric_toml(rubric, data="data.jsonl", **more):
    some = Measure("preference", 0.5, 0.2, 0.8, 9)
    return to_toml(InducedRubric(rubric, some, some, some, (some,), True, **more), data)


@pytest.mark.slow
@given(rubrics(), HOSTILE)
def test_rubric_file_round_trips(tmp_path_factory, rubric, data):
    """The rubric that is read is equal, whatever it and the names of the data contain."""
    path = tmp_path_factory.mktemp("r") / "rubric.toml"
    path.write_bytes(rubric_toml(rubric, data).encode())
    assert Rubric.load(path) == rubric


def test_lone_surrogates_are_escaped(tmp_path):
    """Two names that differ in a lone surrogate stay different, and everything else is
    unchanged.
    """
    path = tmp_path / "rubric.toml"
    rubric = Rubric(
        "r\udc80", tuple(Criterion(f"n{lone}", f'"""\n{lone}') for lone in "\ud800\udfff")
    )
    path.write_bytes(rubric_toml(rubric, "\ud800.jsonl").encode())
    found = Rubric.load(path)
    assert [c.name for c in found.criteria] == [r"n\ud800", r"n\udfff"]
    assert found.criteria[0].description == '"""\n\\ud800'


def test_multiline_text_stays_multiline():
    """A template is written as a person would write it."""
    text = Rubric(
        "r", (Criterion("a", "b"),), template="Judge:\n{response}\nby:\n{criteria}"
    ).to_toml()
    assert "\n{response}\nby:\n" in text


@pytest.mark.parametrize("weight", ["[1]", "{}", "true", '"1"', "4", "1.5", "null"])
def test_invalid_weight_is_rejected(weight):
    """It holds for anything that a model may write."""
    with pytest.raises(UnreadableOutput, match="weight"):
        parse_rubric(
            Reply(f'{{"criteria": [{{"name": "a", "description": "b", "weight": {weight}}}]}}'),
            START,
        )
