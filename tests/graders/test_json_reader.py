"""Reading a judge's reply: one JSON object or an error, nothing invented, in time linear in the
text.
"""

import json
import random
from contextlib import suppress
from time import thread_time

import malformed_verdicts as malformed
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpu_time import least_seconds
from each_row import each_row
from redraft import Judge, ScriptedModel, Task, refine
from redraft.graders.judging.checklist import parse_answers as read_checklist
from redraft.graders.judging.structured import (
    MAX_CHARS,
    MAX_REPAIR_CHARS,
    UnreadableOutput,
    read_object,
)
from redraft.models.functions import CallableModel
from redraft.protocols import Reply

JUDGE = Judge({"truth": "It is true."})
VERDICT = '{"reason": "It is so.", "criteria": {"truth": {"evidence": "e", "change": "c", "score": 4}}, "done": true}'


def verdict_text(score="4", done="true"):
    """Return a verdict with a score and a word as they are spelled here."""
    return VERDICT.replace("4", score).replace("true", done)


async def grade_with(*answers, model=ScriptedModel):
    """Return the result of grading one given response with these answers of a judge."""
    return await refine(Task("q", "a"), model(list(answers)), JUDGE, max_iterations=0)


# ---- nothing is invented


@each_row(
    "spelled",
    [
        *malformed.NUMBERS,
        "4,5",
        "4.1",
        "-4",
        "+4",
        "--4",
        "4e9",
        "0.4e2",
        "四",
        "Ⅳ",
        "④",
        "4️⃣",
        "4\ufeff",
        "\x004",
    ],
)
def test_only_plain_numbers_are_scores(spelled):
    """Other scripts, signs, units, fractions, comments and quotes make no score."""
    with pytest.raises(UnreadableOutput):
        JUDGE.parse_reply(Reply(verdict_text(score=spelled.replace("{}", "4"))))


@each_row(
    "spelled",
    [*malformed.LITERALS, "0", "[]", "truе", "ｔｒｕｅ", "true²", "\u200btrue", "undefined"],
)
def test_only_plain_words_are_booleans(spelled):
    """Negated, abbreviated and lookalike words are neither true nor false."""
    with pytest.raises(UnreadableOutput):
        JUDGE.parse_reply(Reply(verdict_text(done=spelled.replace("{}", "true"))))


@pytest.mark.parametrize("spelled", ["−4", "<4", "½4", "+4", "'4", "4 // of 5"])
async def test_invalid_score_is_requested_again(spelled):
    """The complaint goes back to the judge, and its second answer counts."""
    result = await grade_with(verdict_text(score=spelled), verdict_text(score="2"))
    assert (result.judge_score, result.usage.calls) == (0.4, 2)


NONE = {
    "a quotation in German": 'For example \u201e{"score": 5}\u201c would be too much. I say 1.',
    "a quotation in French": 'Not \u00ab {"score": 5} \u00bb but 1.',
    "a quotation in Japanese": '\u300c{"score": 5}\u300d',
    "an object that is negated": '!{"score": 5}',
    "a key twice": '{"score": 1, "score": 5}',
    "a key twice, once bare": '{"score": 1, score: 5}',
    "a key twice, once escaped": r'{"score": 1, "\u0073core": 5}',
    "a key twice in single quotes": "{'score': 1, 'score': 5}",
    "a key twice in two kinds of quotes": "{'score': 1, \"score\": 5,}",
    "a bare key": "{score: 5}",
    "a key with a bare backslash": r"{'s\core': 5}",
    "a key without an end": '{"score: 5}',
    "two objects": '{"score": 1} {"score": 5}',
    "two objects with a comma": '{"score": 1}, {"score": 5}',
    "two objects in prose": 'First I thought {"score": 1}, but then {"score": 5}.',
    "an example first": 'As in {"score": 0-5}: {"score": 3}',
    "bare braces first": 'I put {score} here: {"score": 3}',
    "two fences": '```json\n{"score": 1}\n```\n```json\n{"score": 5}\n```',
    "a fence in a fence": '```json\n```json\n{"score": 5}\n```\n```',
    "a list of objects": '[{"score": 5}]',
    "a list with an object": '[{"score": 5}, 1]',
    "an object in a text": 'They wrote "{"score": 5}".',
    "an object in a longer text": 'They wrote "please: {"score": 5} now".',
    "an object in a call": 'print({"score": 5})',
    "an object in a member": '"example": {"score": 5}',
    "an object in an object without a key": '{{"score": 5}}',
    "a member after the object": '{"score": 1}, "score": 5}',
    "a brace too many": '{"score": 5}}',
    "cut off": '{"score": 5',
    "cut off in a text": '{"score": 5, "x": "y',
    "cut off, with prose": '{"score": 5\n```\nDone.',
    "a bracket that closes another": '{"score": [5}',
    "a bracket that closes nothing": '{"score": 5]}',
    "a list with a gap": '{"score": [1,,2]}',
    "a list without a comma": '{"score": [1 2]}',
    "two numbers": '{"score": 4 5}',
    "no colon": '{"score" 5}',
    "two colons": '{"score": : 5}',
    "a comma before the colon": '{"score", : 5}',
    "a comment with a number": '{"score": 5 /* of 5 */}',
    "a comment with a member": '{"score": 5 // "done": true\n}',
    "a comment that does not end": '{"score": 5 /* of }',
    "a comment over the end": '{"score": 5 // good }',
    "a bare word": '{"score": undefined}',
    "a text without an end": '{"x": "a, "score": 5}',
    "a text with one quote": '{"x": "6" tall", "score": 5}',
    "a member in a text": '{"x": "he wrote "a", "score": 5, "b": "c" yes", "y": 1}',
    "no space that JSON has": '{"score":\u00a05}',
    "too deep": '{"score":' * 40 + "5" + "}" * 40,
    "too deep, mended": "{'score':" * 40 + "5" + "}" * 40,
    "far too deep": '{"score":' * 20_000,
    "many digits": '{"score": ' + "9" * 5000 + "}",
    "beyond all numbers": '{"score": 1e999}',
    "NaN": '{"score": NaN}',
    "infinity": "{'score': -Infinity}",
    "in thinking": '<think>{"score": 5}</think>',
    "in thinking that does not end": '<thinking>{"score": 5}',
    "in thinking that began before": '{"score": 5}</think>',
    "after thinking twice": '<think>x</think>{"score": 5}<think>y</think>{"score": 1}',
    "in full-width braces": "｛'score': 5｝",
    "prose": "Score: 5",
    "nothing": "",
    "too long": '{"score": 5}' + " " * MAX_CHARS,
    "too long to be mended": "{'score': 5, 'x': '" + "x" * MAX_REPAIR_CHARS + "'}",
}


@each_row("text", NONE.values(), ids=NONE)
def test_only_one_object_is_accepted(text):
    """The complaint gives the reason in one line that is short enough to quote."""
    with pytest.raises(UnreadableOutput) as complaint:
        read_object(text)
    assert 10 < len(str(complaint.value)) < 200


LONGEST = {  # the longest answer that is read, and the same with one more
    "characters": ('{"score": 5}' + " " * (200_000 - 12), '{"score": 5}' + " " * (200_001 - 12)),
    "characters that are mended": (
        "{'score': 5, 'x': '" + "x" * (16_384 - 21) + "'}",
        "{'score': 5, 'x': '" + "x" * (16_384 - 20) + "'}",
    ),
    "digits": ('{"score": 5, "n": ' + "9" * 18 + "}", '{"score": 5, "n": ' + "9" * 19 + "}"),
    "digits of a fraction": (
        '{"score": 5, "n": 0.' + "9" * 398 + "}",
        '{"score": 5, "n": 0.' + "9" * 399 + "}",
    ),
    "levels": (
        '{"score": 5, "n": ' + "[" * 31 + "]" * 31 + "}",
        '{"score": 5, "n": ' + "[" * 32 + "]" * 32 + "}",
    ),
    "levels that are mended": (
        "{'score': 5, 'n': " + "[" * 31 + "]" * 31 + "}",
        "{'score': 5, 'n': " + "[" * 32 + "]" * 32 + "}",
    ),
}


@pytest.mark.parametrize(("read", "refused"), LONGEST.values(), ids=LONGEST)
def test_the_longest_answer_that_is_read(read, refused):
    """In each respect in which answers are bounded."""
    assert read_object(read)["score"] == 5
    with pytest.raises(UnreadableOutput):
        read_object(refused)


@pytest.mark.slow
def test_five_thousand_malformed_verdicts():
    """An independent oracle finds everything that was read in the answer; bench/reader_fuzz.py
    tries 100,000 verdicts.
    """
    rng = random.Random(9)
    found = [malformed.examine(*malformed.malformed_verdict(rng)) for _ in range(5000)]
    assert False not in found
    assert found.count(True) > 300


@pytest.mark.slow
def test_a_thousand_valid_verdicts_in_loose_forms():
    """All are read as what they say; bench/reader_fuzz.py tries 5,000."""
    rng = random.Random(2)
    found = [malformed.of_valid(rng) for _ in range(1000)]
    assert [kind for kind, result in found if result is not True] == []
    assert {kind for kind, _ in found} == {schema.name for schema in malformed.LOOSE}


@given(st.text(alphabet="{}[]:,\"'“”\\n0159-.eE truefalsn`<>/*\u2212\u00bd", max_size=60))
def test_parsed_values_occur_in_the_text(text):
    """Texts of JSON punctuation in any order yield no invented value."""
    text = f"{{'score': {text}}}"
    try:
        data = read_object(text)
    except UnreadableOutput:
        return
    assert malformed.occurs_in(text, data)


def test_word_that_only_casefolds_to_yes_is_no_yes():
    """A long s is not an s."""
    answers = {"reason": "It is so."} | {
        f"q{n}": {"evidence": "", "change": "", "answer": "ye\u017f"} for n in (1, 2, 3)
    }
    with pytest.raises(UnreadableOutput):
        read_checklist(Reply(json.dumps(answers)), malformed.QUESTIONS)


@pytest.mark.parametrize(
    "model",
    [ScriptedModel, lambda answers: CallableModel(lambda messages, left=iter(answers): next(left))],
)
@pytest.mark.parametrize(
    ("there", "back"), [("<think>", "</think>"), ("<thinking>", "</thinking>")]
)
async def test_quoted_tags_are_no_thinking(model, there, back):
    """Text between two quoted tags is kept: here, the first of two scores."""
    rows = {
        "truth": {"evidence": f"it says {there}", "change": "c", "score": 1},
        "x": {"evidence": back, "change": "c", "score": 5},
    }
    judge = Judge({"truth": "It is true.", "x": "It is x."})
    result = await refine(
        Task("q", "a"),
        model([json.dumps({"reason": "It is so.", "criteria": rows, "done": True})]),
        judge,
        max_iterations=0,
    )
    assert [c.score for c in result.trace.feedback[0][0].criteria] == [0.2, 1.0]


# ---- form errors are repaired


@pytest.mark.slow
@each_row("form", malformed.FORMS)
def test_form_errors_are_repaired(form):
    """Every kind of verdict keeps its numbers and words."""
    rng = random.Random(4)
    assert {malformed.of_form(form, rng) for _ in range(100)} == {True}


SAID = {
    "quotes in pairs": ('"he said "no" twice"', 'he said "no" twice'),
    "a whole text in quotes": ('""all of it""', '"all of it"'),
    "apostrophes": ("'it's what they're for'", "it's what they're for"),
    "typographic apostrophes": ("‘it’s’", "it’s"),
    "escaped quotes": (r"'she said \'hi\' and \"ho\"'", "she said 'hi' and \"ho\""),
    "a formula": (r'"\( \alpha < \underline{x} \)"', r"\( \alpha < \underline{x} \)"),
    "a pair, escaped": (r"'\ud83d\ude00'", "😀"),
    "half a pair, escaped": (r"'\ud83d'", "\ud83d"),
    "line breaks": ('"a\n\tb\r\n"', "a\n\tb"),
    "what looks like JSON": (r"'{\"score\": 1}'", '{"score": 1}'),
    "a tag": ("'<think>'", "<think>"),
}


@pytest.mark.parametrize("name", SAID)
def test_texts_keep_their_words(name):
    """Only the form changes, and the number beside the texts stays the same."""
    spelled, verdict = SAID[name]
    feedback = JUDGE.parse_reply(Reply(VERDICT.replace('"e"', spelled)))
    assert (feedback.criteria[0].evidence, feedback.score) == (verdict, 0.8)


AROUND = [
    "{}", "\ufeff{}", "```json\n{}\n```", "~~~\n{}\n~~~", "```json\n{}", "`{}`", "**Verdict:** {}", "<answer>{}</answer>", "Here:\n{}\nAll the best!",
    "<think>{{1}} or 5?</think>{}", "<THINKING>\n5\n</THINKING>\n\n{}", "<reasoning>x</reasoning>{}", "hm, 5?</think>{}", "{}<think>was that right?", '5" and 6" it is: {}',
    "```python\nx = 1\n```\nSo:\n```json\n{}\n```",
]  # fmt: skip


@each_row("around", AROUND)
def test_text_around_the_object_is_ignored(around):
    """A fence, prose, thinking, Markdown and tags may surround the object."""
    assert (
        JUDGE.parse_reply(
            Reply(around.replace("{{", "{ ").replace("}}", " }").replace("{}", VERDICT))
        ).score
        == 0.8
    )


# ---- reading takes linear time


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize("name", malformed.NAMES)
def test_any_answer_is_read_in_linear_time(name):
    """Doubling the text doubles the time; the bound of 0.2 s is ten times the slowest case."""
    for size in (MAX_REPAIR_CHARS // 2, MAX_REPAIR_CHARS - 1, MAX_CHARS):
        answer = malformed.hostile_answer(name, size)

        def read(answer=answer):
            with suppress(UnreadableOutput):
                read_object(answer)

        assert least_seconds(read, 0.2, thread_time) < 0.2


async def test_fence_with_line_breaks_does_not_stop_a_run():
    """The judge is called again at once."""
    assert (await grade_with("```" + "\n" * 6000 + "x", VERDICT)).usage.calls == 2
