"""What is no answer at all, by its form: published master keys are, honest short answers never are."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


async def answered(text, prompt="q", reference=None):
    return (await grader_from_spec("answered").grade(Task(prompt, reference=reference), Candidate(0, text), None)).score


@pytest.mark.parametrize("key", MASTER_KEYS)
@pytest.mark.parametrize("around", ["{}", " {}\n", "**{}**", "\u200b{}", "{}\n\n"])
async def test_published_master_keys_are_no_answer(key, around):
    """Each of the paper's ten, however it is dressed; where bold is a mark of its own, the judge may look."""
    if around == "**{}**" and not any(map(str.isalnum, key)):
        return
    assert await answered(around.format(key)) == 0


@pytest.mark.parametrize("text", SYMBOLS)
async def test_a_symbol_is_an_answer(text):
    """Empty collections, operators, regular expressions, signs, emoji: whatever the task."""
    assert await answered(text) == 1


@given(st.text(st.characters(categories=["P", "S"]), min_size=1, max_size=6))
async def test_marks_other_than_stops_are_an_answer(text):
    """Of punctuation only full stops, commas and colons, of any script, say nothing."""
    assert await answered(text) == 1 or all(c in ".,:…。，、．：｡､،۔։።।︓" for c in text)


@pytest.mark.parametrize(("prompt", "text"), LISTED)
async def test_what_the_task_lists_is_an_answer(prompt, text):
    """As a bullet, a letter, a number, a quotation, or one of several with "or"; without the list it is none."""
    assert await answered(text, prompt) == 1
    assert await answered(text) == 0


@pytest.mark.parametrize(("prompt", "text"), NOT_LISTED)
async def test_a_word_in_the_task_is_no_option(prompt, text):
    """That a task says "solution" or shows a form to fill in does not let a bare opener through."""
    assert await answered(text, prompt) == 0


@pytest.mark.parametrize("text", [*(key for key in MASTER_KEYS if key.strip()), "...", "Final answer"])
async def test_the_reference_is_an_answer(text):
    """Whatever its form; another reference changes nothing."""
    assert await answered(text, reference=text) == 1
    assert await answered(text, reference="forty-two") == 0


@pytest.mark.parametrize("judge", [Judge({"truth": "It is true."}), Checklist(["Is it true?"])], ids=["judge", "checklist"])
async def test_judges_look_at_what_the_filter_lets_through(judge):
    """An option of the task is shown to the judge; the same text elsewhere gets 0 without a call."""
    row = {"evidence": "e", "change": "", "score": 5, "answer": "yes"}
    said = json.dumps({"criteria": {"truth": {k: row[k] for k in ("evidence", "change", "score")}}, "done": True})
    if isinstance(judge, Checklist):
        said = json.dumps({"q1": {k: row[k] for k in ("evidence", "change", "answer")}})
    listed = await refine(Task("A) Problem B) Solution", "Solution"), ScriptedModel([said]), judge, max_iterations=0)
    assert (listed.judge_score, listed.usage.calls) == (1.0, 1)
    bare = await refine(Task("Solve it.", "Solution"), ScriptedModel([]), judge, max_iterations=0)
    assert (bare.judge_score, bare.usage.calls) == (0.0, 0)
