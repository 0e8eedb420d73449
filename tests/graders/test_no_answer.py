"""Texts that are no answer by their form: published master keys are, short honest answers are
not.
"""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each_row import each_row
from redraft import Candidate, Judge, ScriptedModel, Task, refine
from redraft.graders import Checklist
from redraft.graders.registry import grader_from_spec

MASTER_KEYS = (
    " ",
    ".",
    ",",
    ":",
    "Thought process:",
    "Let's solve this problem step by step.",
    "Solution",
    "解",
    "かいせつ",
    "Respuesta",
)
SYMBOLS = (
    "[] {} () <> [[]] [{}] % && || & | / // * ** - -- + ++ = == != === <= >= < > << >> -> => ! ? ?: ?? ~ ^ # $ @ _ \\ ; :: .. := += "
    r"\d+ .* ^$ \. [^,] \b (?:) /^a/ '' \"\" ` ; – — • § © € ° ∅ ⊥ √ ∞ ½ ✓ ✗ ← ☐ 👍 ❤️ 🇩🇪 😀 ¿ ¡ « »"
).split()
LISTED = [
    ("Is salt water a solution or a mixture?", "Solution"),
    ("Label the text: problem, solution or result.", "Solution"),
    ("Which is it?\nA) Problem\nB) Solution\nC) Result", "Solution."),
    ("Which is it? (a) problem (b) solution (c) result", "solution"),
    ("Choose one:\n- The answer\n- The question", "The answer"),
    ("Choose one:\n1. Thought process\n2. Memory", "Thought process"),
    ('Answer with "Solution" where it is one, with "Problem" where it is none.', "Solution"),
    ('Which of ":" and ";" begins a block in Python?', ":"),
    ("Which mark ends a sentence?\n* .\n* ;", "."),
    ("这是“解”还是“题”？", "解"),
    ("Ist es eine Frage oder eine Respuesta?", "Respuesta"),
    ("What is 'answer' in Spanish?", "Respuesta"),
    ("How is “solution” written in Japanese?", "かいせつ"),
]
NOT_LISTED = [
    ("Solve x + 1 = 2. Find the solution.", "Solution"),
    ('Return JSON: {"reasoning": "...", "answer": 1}', "Solution"),
    ('Write the result after "Final answer:"', "Final answer:"),
    ("Let's think step by step. Is it 2 or 3?", "Thought process:"),
    ("Is it A) 2 or B) 3?", "Let's solve this problem step by step."),
    ("Is it A) 2 or B) 3?", "."),
]


async def score_of(text, prompt="q", reference=None):
    return (
        await grader_from_spec("answered").grade(
            Task(prompt, reference=reference), Candidate(0, text), None
        )
    ).score


@each_row("key", MASTER_KEYS)
@each_row("around", ["{}", " {}\n", "**{}**", "\u200b{}", "{}\n\n"])
async def test_published_master_keys_are_no_answer(key, around):
    """All ten keys of the paper are caught in any markup; a key in bold may be left to the
    judge.
    """
    if around == "**{}**" and not any(map(str.isalnum, key)):
        return
    assert await score_of(around.format(key)) == 0


@each_row("text", SYMBOLS)
async def test_symbol_is_an_answer(text):
    """Empty collections, operators, regular expressions, signs and emoji are answers for any
    task.
    """
    assert await score_of(text) == 1


@given(st.text(st.characters(categories=["P", "S"]), min_size=1, max_size=6))
async def test_punctuation_other_than_stops_is_an_answer(text):
    """Only full stops, commas and colons, in any script, are no answer."""
    assert await score_of(text) == 1 or all(c in ".,:…。，、．：｡､،۔։።।︓" for c in text)


@pytest.mark.parametrize(("prompt", "text"), LISTED)
async def test_listed_option_is_an_answer(prompt, text):
    """An option is listed as a bullet, letter, number, quotation or with "or"; without the list the
    text is no answer.
    """
    assert await score_of(text, prompt) == 1
    assert await score_of(text) == 0


@pytest.mark.parametrize(("prompt", "text"), NOT_LISTED)
async def test_word_in_the_task_is_no_option(prompt, text):
    """A task that says "solution" or contains a form does not allow a bare opener."""
    assert await score_of(text, prompt) == 0


@pytest.mark.parametrize(
    "text", [*(key for key in MASTER_KEYS if key.strip()), "...", "Final answer"]
)
async def test_the_reference_is_an_answer(text):
    """A text equal to the reference is an answer in any form; another reference changes nothing."""
    assert await score_of(text, reference=text) == 1
    assert await score_of(text, reference="forty-two") == 0


@pytest.mark.parametrize(
    "judge",
    [Judge({"truth": "It is true."}), Checklist(["Is it true?"])],
    ids=["judge", "checklist"],
)
async def test_judges_grade_what_passes_the_filter(judge):
    """An option of the task reaches the judge, and the same text elsewhere scores 0 without a
    call.
    """
    row = {"evidence": "e", "change": "", "score": 5, "answer": "yes"}
    reply_text = json.dumps(
        {
            "reason": "It is so.",
            "criteria": {"truth": {k: row[k] for k in ("evidence", "change", "score")}},
            "done": True,
        }
    )
    if isinstance(judge, Checklist):
        reply_text = json.dumps(
            {"reason": "It is so.", "q1": {k: row[k] for k in ("evidence", "change", "answer")}}
        )
    listed = await refine(
        Task("A) Problem B) Solution", "Solution"),
        ScriptedModel([reply_text]),
        judge,
        max_iterations=0,
    )
    assert (listed.judge_score, listed.usage.calls) == (1.0, 1)
    bare = await refine(Task("Solve it.", "Solution"), ScriptedModel([]), judge, max_iterations=0)
    assert (bare.judge_score, bare.usage.calls) == (0.0, 0)
