"""Verdicts that can mean one thing only are read at the first ask; what would have to be guessed is
asked for again.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import redraft
from each_row import each_row
from redraft import Judge, ScriptedModel, Task
from redraft.errors import BadResponseError, GradingError
from redraft.graders import Pairwise, Ranker
from redraft.graders.judging import checklist, ranking
from redraft.graders.judging.checklist import Checklist
from redraft.graders.judging.structured import UnreadableOutput, read_object
from redraft.loop.records import Candidate
from redraft.protocols import Reply
from redraft.session.perform import ModelClient, StepClient

TASK = Task("Name two colours.")
ANSWER, OTHER = Candidate(0, "Red and blue."), Candidate(1, "Red.")
POINTWISE = Judge({"clarity": "It is clear.", "code_quality": "The code is good."})
OWN = Judge(
    template="Rate {response} as JSON.",
    scale=(1, 10),
    read={"score": "score", "reason": "why", "done": "done"},
)
DECIMAL = Judge(template="Rate {response} as JSON.", scale=(0.0, 1.0), read="verdict.score")
CHECKLIST = Checklist(["Is it short?", "Is it kind?"])
RANKER, PAIRWISE = Ranker(), Pairwise()
OWN_RANKER = Ranker(template="Order {responses}", read={"ranking": "order", "done": "done"})
OWN_PAIRWISE = Pairwise(
    template="{response_a} {response_b}", read={"winner": "winner", "reason": "why"}
)


async def verdict(grader, *replies):
    """Return what a grader reads from these replies, and the number of calls that it made."""
    model = ScriptedModel(list(replies))
    asked = StepClient(ModelClient(model.name, model.complete))
    if isinstance(grader, Pairwise):
        made = await grader.compare_pair(TASK, ANSWER, OTHER, asked)
    elif isinstance(grader, Ranker):
        made = await grader.compare(TASK, [ANSWER, OTHER], asked)
    else:
        made = await grader.grade(TASK, ANSWER, asked)
    return made, model.calls


def result(made):
    """Return the verdict itself: the scores, or the order with what ties."""
    if isinstance(made, redraft.loop.records.Comparison):
        return made.presentation_order.index(made.ranking[0]) if not made.ties else "tie"
    return tuple(c.score for c in made.criteria) or made.score


def rows(first="4", second='{"evidence": "e", "change": "c", "score": 2}', done="false"):
    return f'{{"reason": "It is so.", "criteria": {{"clarity": {first}, "code_quality": {second}}}, "done": {done}}}'


def row(score, **others):
    return json.dumps({"evidence": "e", "change": "c", **others}).replace(
        "}", f', "score": {score}}}'
    )


LONG = "x" * 9_000
# a judge, a reply with a long text, where it is found in what is made of it, and how many
# characters are kept
BOUNDS = [
    (POINTWISE, rows(row(4, evidence=LONG)), lambda made: made.criteria[0].evidence, 300),
    (POINTWISE, rows(row(4, change=LONG)), lambda made: made.actions[0], 960),
    (POINTWISE, rows().replace("It is so.", LONG), lambda made: made.reason, 2000),
    (OWN, json.dumps({"score": 4, "why": LONG}), lambda made: made.reason, 2000),
    (
        RANKER,
        json.dumps({"reason": LONG, "change": [], "ranking": [1, 2]}),
        lambda made: made.reason,
        2000,
    ),
    (
        PAIRWISE,
        json.dumps({"reason": LONG, "change": [], "winner": "tie"}),
        lambda made: made.reason,
        2000,
    ),
    (
        CHECKLIST,
        json.dumps({"q1": {"answer": "no", "evidence": LONG}, "q2": "yes"}),
        lambda made: made.criteria[0].evidence,
        300,
    ),
    (
        CHECKLIST,
        json.dumps({"q1": {"answer": "no", "change": LONG}, "q2": "yes"}),
        lambda made: made.actions[0],
        960,
    ),
    (
        CHECKLIST,
        json.dumps({"reason": LONG, "q1": "no", "q2": "yes"}),
        lambda made: made.reason,
        2000,
    ),
]


@pytest.mark.parametrize(("grader", "reply", "kept", "size"), BOUNDS)
async def test_texts_of_verdicts_are_bounded(grader, reply, kept, size):
    """Four times what is asked for of a reason and a change; three hundred characters of a
    quotation.
    """
    made, calls = await verdict(grader, reply)
    assert (kept(made), calls) == (LONG[:size], 1)


async def test_an_unreadable_answer_is_quoted_in_part():
    """Eight thousand characters of it, and sixty of a value."""
    model = ScriptedModel([f'{{"score": "{LONG}"}}', '{"score": 4}'])
    made = await OWN.grade(TASK, ANSWER, StepClient(ModelClient("m", model.complete)))
    *_, quoted, again = model.messages[1]
    assert (made.score, quoted["content"]) == (pytest.approx(1 / 3), f'{{"score": "{LONG}'[:8000])
    expected = f"""That cannot be read: 'score' must be a whole number from 1 to 10, got '{"x" * 56}.... Answer again, in the form asked for."""
    assert again["content"] == expected


# ---- read at the first ask

SCORES = {
    "a text": '"4"',
    "a text with spaces": '" 4 "',
    "a text with .0": '"4.0"',
    "a float": "4.0",
    "a float with zeros": "4.000",
    "a float with an exponent": "4e0",
}
WORDS_OF_TRUTH = {
    "true": True, '"true"': True, '"True"': True, "True": True, "TRUE": True, '" true "': True,
    "false": False, '"false"': False, "False": False, "null": None, "None": None,
}  # fmt: skip
CRITERIA = {
    "flat": '{"clarity": 4, "code_quality": 2}',
    "flat, as texts": '{"clarity": "4", "code_quality": "2.0"}',
    "one flat, one not": f'{{"clarity": 4, "code_quality": {row(2)}}}',
    "a list with names": f"[{row(4, name='clarity')}, {row(2, name='code_quality')}]",
    "a list in another order": f"[{row(2, name='code_quality')}, {row(4, name='Clarity')}]",
    "a list with criteria": f"[{row(4, criterion='clarity')}, {row(2, criterion='code_quality')}]",
    "a list with other words for a name": f"[{row(4, Aspect='clarity')}, {row(2, criterion_name='code_quality')}]",
    "a list of objects with a key each": f'[{{"clarity": 4}}, {{"code_quality": {row(2)}}}]',
    "in another case": '{"Clarity": 4, "CODE_QUALITY": 2}',
    "in Markdown": '{"**clarity**": 4, "`code_quality`": 2}',
    "in Markdown, in another case": '{"**Clarity:**": 4, "*Code Quality*": 2}',
    "underlined": '{"_clarity_": 4, "__code_quality__": 2}',
    "with spaces and hyphens": '{" clarity ": 4, "code-quality": 2}',
    "one more": '{"clarity": 4, "code_quality": 2, "tone": 5}',
    "one more in a list": '[{"name": "tone", "score": 5}, {"name": "clarity", "score": 4}, {"name": "code_quality", "score": 2}]',
    "one more with a score elsewhere": '{"clarity": 4, "code_quality": 2, "tone": "good"}',
    "keys in another case": '{"clarity": {"Evidence": "e", "Change": "c", "Score": 4}, "code_quality": {"**score**": "2"}}',
    "scores alone": '{"clarity": {"score": 4}, "code_quality": {"score": 2}}',
    "lists of texts": '{"clarity": {"evidence": ["e", "f"], "change": ["c", "d"], "score": 4}, "code_quality": 2}',
    "nothing to change": '{"clarity": {"evidence": null, "change": null, "score": 4}, "code_quality": 2}',
    "other keys": '{"clarity": {"score": 4, "confidence": 0.3, "seen": None}, "code_quality": {"score": 2, "ok": True}}',
}
READ: dict[str, tuple[Any, str, Any]] = {
    **{
        f"pointwise: {name}": (POINTWISE, rows(row(score)), (0.8, 0.4))
        for name, score in SCORES.items()
    },
    **{f"flat: {name}": (POINTWISE, rows(score), (0.8, 0.4)) for name, score in SCORES.items()},
    **{
        f"criteria: {name}": (
            POINTWISE,
            f'{{"reason": "r", "criteria": {spelled}, "done": true}}',
            (0.8, 0.4),
        )
        for name, spelled in CRITERIA.items()
    },
    "criteria without an object of their own": (
        POINTWISE,
        '{"reason": "r", "Clarity": 4, "code_quality": 2}',
        (0.8, 0.4),
    ),
    "the other keys in another case": (
        POINTWISE,
        '{"Reason": "r", "Criteria": {"clarity": 4, "code_quality": 2}}',
        (0.8, 0.4),
    ),
    "pointwise without anything else": (
        POINTWISE,
        '{"criteria": {"clarity": 4, "code_quality": 2}}',
        (0.8, 0.4),
    ),
    "pointwise with an empty reason": (POINTWISE, rows().replace("It is so.", ""), (0.8, 0.4)),
    "pointwise with keys beyond": (
        POINTWISE,
        rows().replace("{", '{"overall": "good", "n": NaN, ', 1).replace("NaN", "1"),
        (0.8, 0.4),
    ),
    **{
        f"own form: {name}": (OWN, f'{{"why": "r", "score": {score}}}', 1 / 3)
        for name, score in SCORES.items()
    },
    "own form in another case": (OWN, '{"Why": "r", "SCORE": 4}', 1 / 3),
    "own form in Markdown": (OWN, '{"**why**": "r", "**score**": 4}', 1 / 3),
    "own form with an empty reason": (OWN, '{"why": "", "score": 4}', 1 / 3),
    "own form without a reason": (OWN, '{"score": 4}', 1 / 3),
    "own form with Python's words": (OWN, "{'score': 4, 'sure': True, 'other': None}", 1 / 3),
    "own form, a comment after a comma": (
        OWN,
        '{\n "score": 4, // mostly right\n "why": "clear"\n}',
        1 / 3,
    ),
    "own form, a comment at the end": (
        OWN,
        '{\n "why": "clear", \n "score": 4 // mostly right\n}',
        1 / 3,
    ),
    "own form, a comment after a text": (
        OWN,
        '{\n "score": 4,\n "why": "clear" // it\'s so\n}',
        1 / 3,
    ),
    "own form, a comment before a key": (OWN, '{\n // the score\n "score": 4\n}', 1 / 3),
    "own form, a comment in Python": (
        OWN,
        "{\n 'score': 4,  # mostly right\n 'why': 'clear'\n}",
        1 / 3,
    ),
    "own form, a comment in C": (
        OWN,
        '{"score": 4 /* mostly right */, "why": "clear" /* it is */}',
        1 / 3,
    ),
    "own form, several comments": (
        OWN,
        '{ // one\n // two\n "score": 4 // three\n, // four\n "why": "" }',
        1 / 3,
    ),
    "decimals: a number": (DECIMAL, '{"verdict": {"score": 0.25}}', 0.25),
    "decimals: a text": (DECIMAL, '{"verdict": {"score": "0.25"}}', 0.25),
    "decimals: a whole number": (DECIMAL, '{"verdict": {"score": 1}}', 1.0),
    "decimals: 1.0": (DECIMAL, '{"verdict": {"score": 1.0}}', 1.0),
    "decimals: many digits": (DECIMAL, f'{{"verdict": {{"score": 0.25{"0" * 80}}}}}', 0.25),
    "decimals in another case": (DECIMAL, '{"Verdict": {"Score": 0.25}}', 0.25),
    "checklist": (
        CHECKLIST,
        '{"reason": "r", "q1": {"answer": "yes"}, "q2": {"answer": "no"}}',
        (1.0, 0.0),
    ),
    "checklist in another case": (
        CHECKLIST,
        '{"Reason": "r", "Q1": {"Answer": "YES"}, "**q2**": {"answer": "**No**"}}',
        (1.0, 0.0),
    ),
    "checklist, flat": (CHECKLIST, '{"reason": "r", "q1": "yes", "q2": "Partial"}', (1.0, 0.5)),
    "checklist without a reason": (
        CHECKLIST,
        '{"q1": {"answer": "yes"}, "q2": {"answer": "no"}}',
        (1.0, 0.0),
    ),
    "checklist with an empty reason": (
        CHECKLIST,
        '{"reason": "", "q1": {"answer": "yes"}, "q2": "no"}',
        (1.0, 0.0),
    ),
    "checklist with one more": (
        CHECKLIST,
        '{"reason": "r", "q1": "yes", "q2": "no", "q3": "yes", "done": false}',
        (1.0, 0.0),
    ),
    "checklist with comments": (
        CHECKLIST,
        '{\n "q1": "yes", // it is\n "q2": "no" // not at all\n}',
        (1.0, 0.0),
    ),
    **{
        f"ranker: {spelled}": (
            RANKER,
            f'{{"reason": "r", "change": [], "ranking": {spelled}, "ties": [], "done": false}}',
            1,
        )
        for spelled in ("[2, 1]", '["2", "1"]', "[2.0, 1.0]", '["2.0", 1]')
    },
    "ranker in another case": (RANKER, '{"Reason": "r", "**ranking**": [2, 1]}', 1),
    "ranker without anything else": (RANKER, '{"ranking": [2, 1]}', 1),
    "ranker with an empty reason": (
        RANKER,
        '{"reason": "", "change": "say more", "ranking": [2, 1], "ties": null}',
        1,
    ),
    "ranker with a tie": (
        RANKER,
        '{"reason": "r", "ranking": [2, 1], "ties": [["1", 2.0]]}',
        "tie",
    ),
    "ranker with the same tie twice": (
        RANKER,
        '{"reason": "r", "ranking": [2, 1], "ties": [[1, 2], [2, 1]]}',
        "tie",
    ),
    "ranker with an answer that ties with itself": (
        RANKER,
        '{"reason": "r", "ranking": [2, 1], "ties": [[1, 1]]}',
        1,
    ),
    "ranker with other keys": (
        RANKER,
        '{"ranking": [2, 1], "scores": {"1": 2, "2": 4}, "sure": True}',
        1,
    ),
    "own ranking": (OWN_RANKER, '{"Order": ["2", 1.0], "done": "true"}', 1),
    **{
        f"pairwise: {spelled}": (
            PAIRWISE,
            f'{{"reason": "r", "change": [], "winner": {spelled}, "done": true}}',
            1,
        )
        for spelled in ('"second"', '"Second"', '" SECOND "', '"**second**"')
    },
    "pairwise in another case": (PAIRWISE, '{"Winner": "Tie"}', "tie"),
    "pairwise with an empty reason": (
        PAIRWISE,
        '{"reason": "", "change": "c", "winner": "first", "done": "false"}',
        0,
    ),
    **{
        f"own pair: {spelled}": (OWN_PAIRWISE, f'{{"why": "", "winner": {spelled}}}', 1)
        for spelled in ('"B"', '"**b**"', "2", "2.0", '"2"')
    },
}


@each_row(("grader", "reply", "expected"), READ.values(), ids=READ)
async def test_an_unambiguous_verdict_is_read_at_the_first_ask(grader, reply, expected):
    """Whatever the form of a number, a key or a word, if it can mean one thing only."""
    made, calls = await verdict(grader, reply)
    assert calls == 1
    assert (
        result(made) == pytest.approx(expected)
        if not isinstance(expected, str)
        else result(made) == expected
    )


@each_row("spelled", WORDS_OF_TRUTH)
@each_row(
    ("grader", "reply"),
    [
        (POINTWISE, rows(done="?")),
        (OWN, '{"why": "r", "score": 4, "done": ?}'),
        (RANKER, '{"ranking": [1, 2], "done": ?}'),
        (OWN_RANKER, '{"order": [1, 2], "done": ?}'),
        (PAIRWISE, '{"winner": "first", "done": ?}'),
    ],
    ids=["pointwise", "own form", "ranker", "own ranking", "pairwise"],
)
async def test_done_is_true_false_or_unknown(grader, reply, spelled):
    """As a word of JSON or Python, or as a text; null is as if it were missing."""
    made, calls = await verdict(grader, reply.replace("?", spelled))
    assert (made.done, calls) == (WORDS_OF_TRUTH[spelled], 1)


@pytest.mark.parametrize(
    ("grader", "reply"),
    [
        (POINTWISE, rows(done="?")),
        (OWN, '{"score": 4, "done": ?}'),
        (RANKER, '{"ranking": [1, 2], "done": ?}'),
    ],
    ids=["pointwise", "own form", "ranker"],
)
async def test_a_verdict_without_done_is_read(grader, reply):
    """Whether the judge would stop is then unknown."""
    made, calls = await verdict(grader, reply.replace(', "done": ?', ""))
    assert (made.done, calls) == (None, 1)


async def test_texts_and_actions_of_a_loose_form_are_kept():
    """A list of texts is one text, and a text is a list of one."""
    feedback, _ = await verdict(
        POINTWISE,
        rows('{"evidence": ["a", "b"], "change": ["Cut it.", "Sort it."], "score": "4"}', "5"),
    )
    assert (feedback.criteria[0].evidence, feedback.actions) == ("a; b", ("Cut it.; Sort it.",))
    comparison, _ = await verdict(RANKER, '{"ranking": [1, 2], "change": "Say more."}')
    assert comparison.actions == ("Say more.",)


async def test_a_flat_criterion_asks_for_what_it_is_about():
    """Its score comes without a change."""
    feedback, _ = await verdict(POINTWISE, '{"criteria": {"clarity": 4, "code_quality": 5}}')
    assert feedback.actions == ("Make this hold: It is clear.",)


def test_criteria_that_differ_in_case_alone_are_told_apart():
    """Their names are then read exactly as they are."""
    judge = Judge({"a": "It is so.", "A": "It is not so."})
    feedback = judge.parse_reply(Reply('{"criteria": {"A": 1, "a": 5}}'))
    assert {c.name: c.score for c in feedback.criteria} == {"a": 1.0, "A": 0.2}
    with pytest.raises(UnreadableOutput):
        judge.parse_reply(Reply('{"criteria": {"A": 1, "**a**": 5}}'))


# ---- keys beyond one's own form

BEYOND = {
    "none": ('{"why": "r", "score": 4}', {}),
    "some": (
        '{"why": "r", "score": 4, "tone": "dry", "n": [1, {"a": null}]}',
        {"tone": "dry", "n": [1, {"a": None}]},
    ),
    "Python's words": ("{'score': 4, 'sure': True, 'else': None}", {"sure": True, "else": None}),
    "keys in another case": ('{"Score": 4, "Tone": "dry"}', {"Tone": "dry"}),
    "long": (json.dumps({"score": 4, "log": "x" * 30_000}), {"log": "x" * 30_000}),
    "too long": (json.dumps({"score": 4, "log": "x" * 70_000}), {}),
    "too long as ASCII": (json.dumps({"score": 4, "log": "é" * 20_000}, ensure_ascii=False), {}),
    "halves of a character": (
        "{'score': 4, 'x': '\ud83d\ude00 \ud83d'}",
        {"x": "\U0001f600 \ud83d"},
    ),
}


@pytest.mark.parametrize(("reply", "metadata"), BEYOND.values(), ids=BEYOND)
async def test_keys_beyond_an_own_form_are_metadata(reply, metadata):
    """Of the length that the metadata of feedback may have."""
    feedback, calls = await verdict(OWN, reply)
    assert (dict(feedback.metadata), calls) == (metadata, 1)


def test_keys_beside_a_path_are_metadata():
    """What the paths name is left out, however deep; two parts may have the same path."""
    judge = Judge(
        template="{response}",
        scale=(1, 10),
        read={"score": "verdict.score", "reason": "verdict.why", "actions": "verdict.why"},
    )
    feedback = judge.parse_reply(
        Reply('{"id": 7, "Verdict": {"why": "r", "note": "n", "score": "4"}}')
    )
    assert (feedback.reason, feedback.actions) == ("r", ("r",))
    assert feedback.metadata == {"id": 7, "Verdict": {"note": "n"}} or feedback.metadata == {
        "id": 7,
        "verdict": {"note": "n"},
    }
    assert judge.parse_reply(Reply('{"verdict": {"why": "r", "score": 4}}')).metadata == {}


async def test_metadata_of_all_criteria_are_left_out_if_they_are_too_long():
    """With a call for each criterion, those of all replies are together."""
    judge = Judge(
        {"a": "x", "b": "y", "c": "z"},
        template="{response}",
        scale=(1, 10),
        read="score",
        criteria_mode="separate",
    )
    for length, names in ((100, {"a", "b", "c"}), (30_000, set())):
        feedback, calls = await verdict(judge, *[json.dumps({"score": 4, "log": "x" * length})] * 3)
        assert (set(feedback.metadata.get("criteria", {})), calls) == (names, 3)


def test_metadata_stand_beside_the_record_of_an_expectation():
    """The record of how the score was computed has its own keys."""
    judge = Judge(template="{response}", scale=(1, 10), read="score", scoring="expectation")
    feedback = judge.parse_reply(Reply('{"score": 4, "scoring": "mine", "tone": "dry"}'))
    assert feedback.metadata["tone"] == "dry"
    assert feedback.metadata["scoring"] == "written"


# ---- asked for again

NO_SCORES = [
    '"8/10"', '"4/5"', '"3-4"', '"N/A"', '"NaN"', "NaN", "Infinity", "-Infinity", '"Infinity"', "9.2e124", '"9.2e124"', "1e999", '"four"', '"about 4"', '"4 (good)"',
    '"4, maybe 3"', '"4,0"', '"+4"', '"04"', '".4"', '"4."', '"４"', '"٤"', '"½"', '"0x4"', '"4e0"', '"1_0"', '""', '"  "', "null", "true", "True", '"true"', "[4]", '{"value": 4}',
    "4.5", '"4.5"', "-1", '"-1"', "11", '"11"', "4 // or 3\n", "4 /* of 10 */", "/*3*/ 4", "4/5", "3-4", "4 # 3\n", '4 // "score": 2\n', "+4", "four",
    "9" * 30, f'"{"9" * 30}"',
]  # fmt: skip
VERDICT, OWN_VERDICT = rows(row(4)), '{"why": "r", "score": 4}'
PROSE = {
    "a denial": "The form was {}, but I refuse to grade.",
    "a denial without a comma": "The form was {} but I refuse to grade.",
    "a denial in German": "Die Form war {} aber ich bewerte das nicht.",
    "a denial in Chinese": "表格是{}，但我拒绝评分。",
    "a denial with a dash": "The form was {} – I do not grade this.",
    "a denial before": "I refuse to grade this. The form was:\n```json\n{}\n```",
    "a denial after": "The form was:\n```json\n{}\n```\nI cannot grade this answer.",
    "a denial after, typographic": "The form was:\n\n{}\n\nI can’t rate such a text.",
    "inability": "I'm unable to evaluate this answer. Else I had written:\n{}",
    "a short denial": "{}\nI decline.",
    "a denial on the line": "{} I won't score this.",
    "a decision": "The form is below, but I have decided not to grade it.\n{}",
    "a wish": "{}\nThat is the form; I'd rather not be judging this.",
    "an example": "For example: {}",
    "an example in a block": "For example:\n```json\n{}\n```",
    "such as": "You want something such as {}",
    "not this": "It is not {}",
    "instead": "I wrote prose instead of {}",
    "two": "{} {}",
    "two, which differ": '{} {"why": "r", "score": 5, "criteria": {}}',
    "in a list": "[{}]",
    "in quotes": 'You said "{}".',
    "in thoughts": "<think>{}</think> I do not know.",
}


def refused():
    """Yield each reply that is asked for again, with its grader, under a name."""
    for score in NO_SCORES:
        yield f"pointwise: {score[:20]}", POINTWISE, rows(row(score))
        yield f"flat: {score[:20]}", POINTWISE, rows(score)
        yield f"own form: {score[:20]}", OWN, f'{{"why": "r", "score": {score}}}'
    for name, around in PROSE.items():
        yield f"pointwise: {name}", POINTWISE, around.replace("{}", VERDICT)
        yield f"own form: {name}", OWN, around.replace("{}", OWN_VERDICT)
        yield (
            f"checklist: {name}",
            CHECKLIST,
            around.replace(
                "{}", '{"reason": "r", "q1": {"answer": "yes"}, "q2": {"answer": "no"}}'
            ),
        )
        yield (
            f"ranker: {name}",
            RANKER,
            around.replace("{}", '{"reason": "r", "change": [], "ranking": [1, 2], "done": true}'),
        )
        yield (
            f"pairwise: {name}",
            PAIRWISE,
            around.replace("{}", '{"reason": "r", "change": [], "winner": "first", "done": true}'),
        )
    for name, (grader, reply) in REFUSED.items():
        yield name, grader, reply


REFUSED: dict[str, tuple[Any, str]] = {
    "two scores under two spellings": (POINTWISE, '{"criteria": {"clarity": 4, "Clarity": 2, "code_quality": 2}}'),
    "two scores in Markdown": (POINTWISE, '{"criteria": {"clarity": 4, "**clarity**": 2, "code_quality": 2}}'),
    "two scores, one with a sign": (POINTWISE, '{"criteria": {"clarity": 4, "clarity(": 2, "code_quality": 2}}'),
    "two scores, one with what cannot be seen": (POINTWISE, '{"criteria": {"clarity": 4, "clar\u200bity": 2, "code_quality": 2}}'),
    "two scores in a list": (POINTWISE, '{"criteria": [{"clarity": 4}, {"name": "clarity", "score": 2}, {"code_quality": 2}]}'),
    "two scores in a list, spelled differently": (POINTWISE, '{"criteria": [{"clarity": 4}, {"Clarity": 2}, {"code_quality": 2}]}'),
    "two scores in two places": (POINTWISE, '{"criteria": {"clarity": 4, "code_quality": 2}, "clarity": 1}'),
    "two scores in one row": (POINTWISE, rows('{"score": 4, "Score": 2}')),
    "a key twice": (POINTWISE, rows('{"score": 4, "score": 2}')),
    "a name twice in a row": (POINTWISE, '{"criteria": [{"name": "clarity", "Name": "code_quality", "score": 4}]}'),
    "a criterion that is missing": (POINTWISE, '{"criteria": {"clarity": 4}}'),
    "a criterion that is missing, with another": (POINTWISE, '{"criteria": {"clarity": 4, "tone": 2}}'),
    "a list of numbers": (POINTWISE, '{"criteria": [4, 2]}'),
    "a list without names": (POINTWISE, '{"criteria": [{"score": 4}, {"score": 2}]}'),
    "no criteria": (POINTWISE, '{"reason": "r", "criteria": null, "done": true}'),
    "criteria in prose": (POINTWISE, '{"reason": "r", "criteria": "clarity 4, code_quality 2"}'),
    "a score in the reason": (POINTWISE, '{"reason": "clarity: 4, code quality: 2"}'),
    "done in prose": (POINTWISE, rows(done='"not yet"')),
    "done as a number": (POINTWISE, rows(done="1")),
    "evidence that is a number": (POINTWISE, rows('{"evidence": 4, "score": 4}')),
    "own form: two spellings": (OWN, '{"score": 8, "Score": 3}'),
    "own form: a key in pieces": (OWN, '{"score": 8, "do-ne": true}'),
    "own form: a reason that is no text": (OWN, '{"score": 8, "why": 3}'),
    "own form: another key": (OWN, '{"why": "r", "rating": 8}'),
    "decimals: a comma": (DECIMAL, '{"verdict": {"score": "0,25"}}'),
    "decimals: a percentage": (DECIMAL, '{"verdict": {"score": "25%"}}'),
    "decimals: off the scale": (DECIMAL, '{"verdict": {"score": "1.01"}}'),
    "decimals: a flat verdict": (DECIMAL, '{"verdict": 0.25}'),
    "checklist: a question is missing": (CHECKLIST, '{"reason": "r", "q1": "yes"}'),
    "checklist: two answers": (CHECKLIST, '{"q1": "yes", "Q1": "no", "q2": "yes"}'),
    "checklist: an answer in prose": (CHECKLIST, '{"q1": "yes, mostly", "q2": "yes"}'),
    "checklist: not applicable": (CHECKLIST, '{"q1": "N/A", "q2": "yes"}'),
    "checklist: a number": (CHECKLIST, '{"q1": 1, "q2": "yes"}'),
    "ranker: an answer twice": (RANKER, '{"ranking": [1, 1]}'),
    "ranker: an answer is missing": (RANKER, '{"ranking": ["2"]}'),
    "ranker: a text": (RANKER, '{"ranking": "2, 1"}'),
    "ranker: prose": (RANKER, '{"ranking": ["2 is best", "1"]}'),
    "ranker: booleans": (RANKER, '{"ranking": [true, 2]}'),
    "ranker: two rankings": (RANKER, '{"ranking": [1, 2], "Ranking": [2, 1]}'),
    "ranker: ties that are numbers": (RANKER, '{"ranking": [1, 2], "ties": [1]}'),
    "pairwise: both": (PAIRWISE, '{"winner": "first or second"}'),
    "pairwise: a number": (PAIRWISE, '{"winner": 1}'),
    "pairwise: two winners": (PAIRWISE, '{"winner": "first", "Winner": "second"}'),
    "pairwise: a long s": (PAIRWISE, '{"winner": "firſt"}'),
    "own pair: a boolean": (OWN_PAIRWISE, '{"winner": true}'),
}  # fmt: skip
AGAIN = {name: (grader, reply) for name, grader, reply in refused()}


@each_row(("grader", "reply"), AGAIN.values(), ids=AGAIN)
async def test_what_would_have_to_be_guessed_is_asked_for_again(grader, reply):
    """Once, with the complaint; then it is an error."""
    model = ScriptedModel([reply] * 3)
    with pytest.raises(BadResponseError, match="cannot be read"):
        await verdict(grader, reply, reply, reply)
    assert model.calls == 0


DOUBTFUL = [
    "Ich kann das nicht bewerten. Das Format wäre:\n{}",
    "Die Form war: {} Ich bewerte das aber nicht.",
    "Je ne peux pas noter cette réponse. Exemple de format :\n{}",
    "{}\n\nThis is only a template; no rating was made.",
    "An example of the form: ```json\n{}\n```",
    "Expected output:\n{}",
    "The expected format is: {} There is nothing to rate here.",
    "The answer under review contains this JSON:\n{}\nThat is an attempt to manipulate me.",
    "The answer under review contains this JSON:\n{}",
    "The previous judge answered: {} I disagree with it.",
    "The previous judge answered:\n{}",
    "{}\nNo, wait. That was too high; I'd give 2.",
    "{}\nOn reflection it deserves less.",
    "If the answer had been correct: {} But it is wrong.",
    "If the answer had been correct: {}",
    "Suppose the answer were good: {}",
    "I did not actually read the answer. {}",
    "There is nothing to rate here.\n{}",
    "No grade was given.\n{}",
    "# Template\n\n{}",
    "{}\nI hope this helps, but I did not rate it.",
]
HONEST = [
    "I cannot find a mistake.\n{}",
    "Here is my verdict in the form that you asked for:\n```json\n{}\n```\nI hope that it helps!",
    "My verdict is {}.",
    "{}. The answer is good.",
    "{} Hope this helps!",
    "I don't think that it is complete:\n{}",
    "The answer refuses to grade itself; see below.\n\n{}",
    "My verdict on the third example:\n{}",
    "**Grade**\n\n{}\n\n*I can't rate it higher, since it is short.*",
    "I judged it by the criteria, and not by its length.\n{}",
    "Here is my evaluation: {}",
    "Sure! {}",
    "Sure! Here is the JSON:\n```json\n{}\n```",
    "Here is the evaluation in the requested JSON format:\n\n{}",
    "Based on the expected answer, here is the verdict:\n{}",
    "The answer contains every fact, and no example is missing. I see no fault.\n\n{}",
    "The answer gives an example. It is short.\n{}",
    "The answer wrongly says that if x, then y. So it loses a point.\n\n{}",
    "I can't find any fault in this.\n{}",
    "I cannot see any problem.\n{}",
    "I did not find an error. {}",
    "That said, here is the verdict: {}",
    "Let me think step by step. First, it is clear. Then, it is short.\n\n**Verdict:**\n{}",
    "{}\n\nLet me know if you need more.",
    "{}\nI hope this helps!",
    "```json\n{}\n```\nI hope that it is useful. Let me know if you have questions.",
    "{}\nThank you!",
    "<answer>{}</answer>",
    "Hier ist meine Bewertung:\n{}",
    "Hier ist die Bewertung im gewünschten Format:\n{}\nIch hoffe, das hilft!",
    "Die Antwort ist nicht falsch, daher bewerte ich sie so:\n{}",
    "Ich kann die Antwort nicht höher bewerten.\n{}",
    "Voici mon évaluation :\n{}",
    "Je ne trouve pas d'erreur.\n{}\nN'hésitez pas à me contacter.",
    "Aquí está mi evaluación:\n{}\nEspero que ayude.",
    "Aqui está a avaliação:\n{}",
    "Ecco la valutazione:\n{}",
    "Вот моя оценка:\n{}",
    "Я не могу найти ошибок.\n{}",
    "以下是我的评分：\n{}\n希望对您有帮助！",
    "我没有发现错误。\n{}",
    "以下が評価です：\n{}\n以上です。",
    "間違いは見つかりません。\n{}",
]


@each_row("around", DOUBTFUL)
def test_a_verdict_that_may_not_be_the_judges_own_is_asked_for_again(around):
    """A form, a quotation, a supposition, a refusal in any language, or a word that takes it
    back.
    """
    with pytest.raises(UnreadableOutput, match="write one object and nothing else"):
        read_object(around.replace("{}", OWN_VERDICT))


@each_row("around", HONEST)
def test_prose_that_is_no_denial_may_surround_a_verdict(around):
    """A refusal is one in the first person; what is said of the answer is none."""
    assert read_object(around.replace("{}", OWN_VERDICT)) == {"why": "r", "score": 4}


# ---- every instance of a schema is read


def instances(schema):
    """Return a strategy of the instances of a JSON schema, of the keywords that a judge's schemas
    have.
    """
    if "enum" in schema:
        values = st.sampled_from(schema["enum"])
        return values | values.map(float) if schema["type"] == "integer" else values
    match schema["type"]:
        case "object":
            assert (
                set(schema["required"]) == set(schema["properties"])
                and not schema["additionalProperties"]
            )
            return st.fixed_dictionaries(
                {name: instances(inner) for name, inner in schema["properties"].items()}
            )
        case "array":
            return st.lists(
                instances(schema["items"]),
                min_size=schema.get("minItems", 0),
                max_size=schema.get("maxItems", 5),
            )
        case "string":
            # before a letter these are single backslashes
            readable = st.characters(codec="utf-8", exclude_characters="\b\f")
            texts = st.text(readable, max_size=min(schema["maxLength"], 20))
            return texts | st.sampled_from(
                ["", "x" * schema["maxLength"], " \n", "{", '"', "null", "what to change, or empty"]
            )
        case "boolean":
            return st.booleans()
        case "integer":
            return st.integers(schema["minimum"], schema["maximum"])
        case "number":
            return st.floats(schema["minimum"], schema["maximum"])
    raise AssertionError(schema)


@dataclass(frozen=True)
class Form:
    """A reply form: the schema that is sent, and what reads the reply."""

    schema: Any
    read: Callable[[Reply], Any]
    agrees: Callable[[Any, Any], bool] = lambda made, data: True


def judge_form(*args, **settings):
    judge = Judge(*args, **settings)
    scale = judge.rubric.score_scale

    def agrees(made, data):
        rows = {c.name: c.score for c in made.criteria}
        written = {
            name: (row["score"] - scale.low) / (scale.high - scale.low)
            for name, row in data["criteria"].items()
        }
        return (
            all(math.isclose(rows[name], share, abs_tol=1e-12) for name, share in written.items())
            and made.done is data["done"]
        )

    return Form(judge.answer_schema(), judge.parse_reply, agrees)


def ranked(n):
    candidates = [Candidate(i, f"answer {i}") for i in range(n)]
    return Form(
        ranking.ranking_schema(n),
        lambda reply: ranking.parse_ranking(reply, ranking.RANKING_PATHS, candidates),
        lambda made, data: (
            [i + 1 for i in made.ranking] == data["ranking"] and made.done is data["done"]
        ),
    )


FORMS = {
    "judge": judge_form(),
    "judge with odd names": judge_form(
        {
            "reason": "x",
            "done": "y",
            "criteria": "z",
            "score": "w",
            "A": "u",
            "a": "v",
            "**b**": "t",
        }
    ),
    "judge on 1 to 10": judge_form({"a": "x"}, scale=(1, 10)),
    "judge on -2 to 2": judge_form({"a": "x"}, scale=(-2, 2)),
    "judge on 0 to 1000": judge_form({"a": "x"}, scale=(0, 1000)),
    "judge in decimals": judge_form({"a": "x", "b": "y"}, scale=(0.0, 1.0)),
    "checklist": Form(
        checklist._answers_schema(2),
        lambda reply: checklist.parse_answers(reply, CHECKLIST.questions),
        lambda made, data: (
            [c.score for c in made.criteria]
            == [{"yes": 1.0, "partial": 0.5, "no": 0.0}[data[q]["answer"]] for q in ("q1", "q2")]
        ),
    ),
    "pair": Form(
        ranking.PAIR_SCHEMA,
        lambda reply: ranking.parse_pair_reply(reply, None, ANSWER, OTHER),
        lambda made, data: (
            result(made) == {"first": 0, "second": 1, "tie": "tie"}[data["winner"]]
            and made.done is data["done"]
        ),
    ),
    **{f"ranking of {n}": ranked(n) for n in (1, 2, 3, 5)},
    "generated questions": Form(
        checklist._questions_schema(3), lambda reply: checklist.parse_questions(reply, 3)
    ),
}


def consistent(data, draw):
    """Make a ranking one of all answers, its ties groups of neighbours, and a question one with
    words: a schema cannot say so.
    """
    if "questions" in data:
        data["questions"][0] = f"{data['questions'][0][:-1]}?"
    if "ranking" not in data:
        return data
    data["ranking"] = draw(st.permutations(range(1, len(data["ranking"]) + 1)))
    if data.get("ties"):
        at = draw(st.integers(0, len(data["ranking"]) - 1))
        data["ties"] = [data["ranking"][at : at + draw(st.integers(1, 3))]]
    return data


@pytest.mark.slow(but_each=18)
@pytest.mark.parametrize("name", FORMS)
@given(data=st.data(), ascii_only=st.booleans(), indent=st.sampled_from([None, 1]))
def test_every_instance_of_a_schema_is_read(name, data, ascii_only, indent):
    """No parser is stricter than the schema that is sent."""
    form = FORMS[name]
    value = consistent(data.draw(instances(form.schema)), data.draw)
    made = form.read(Reply(json.dumps(value, ensure_ascii=ascii_only, indent=indent)))
    assert form.agrees(made, value)


async def test_an_unreadable_verdict_names_what_is_allowed():
    """`grade` says what the judge wrote, and what belongs there."""
    bad = '{"criteria": {"clarity": "8/10", "code_quality": 2}}'
    with pytest.raises(
        GradingError, match=r"'clarity' must be a whole number from 0 to 5, got '8/10'"
    ):
        await redraft.grade(("q", "a"), POINTWISE, ScriptedModel([bad, bad]))
