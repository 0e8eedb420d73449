"""Backslashes that a model did not double in JSON: they are doubled, whoever reads it, and nothing
else is changed.
"""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

import redraft
from each_row import each_row
from redraft.answers import InvalidAnswer, as_answer_form
from redraft.base.json_repair import double_backslashes, single_backslash
from redraft.graders.judging.structured import read_object
from redraft.requirements import parse

ROOT = Path(__file__).parents[1]

MEANT = [  # what a model wrote in a text of JSON is what it means
    r"x = \frac{1}{2} + \beta",
    r"5 \times 2 \neq \rho",
    r"\alpha",
    r"\(x\) and \[y\]",
    r"\forall x \in \mathbb{R}: \bar{x} \leq \flat",
    r"\theta, \tau, \tanh x, \tilde{a}, \triangle ABC",
    r"\text{if } x > 0, \textbf{bold}, \tfrac12",
    r"\nabla \cdot E = \rho / \varepsilon_0",
    r"\nabla f",
    r"a \neq b",
    r"x \ne 0",
    r"x \to 0",
    r"x \to \infty",
    r"\rho",
    r"\right) \rangle \rightarrow \rfloor \rceil",
    r"\nu",
    r"\tau",
    r"$\nu$ and $a \to b$",
    r"E = h\nu = \hbar\omega",
    r"A^{\top} B^\top",
    r"J_\nu(x)",
    r"x \not= y, z \notin A",
    r"\newline and \noindent and \newcommand{\x}{y}",
    r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}",
    r"\begin{cases} \\[2pt] a \\ \end{cases}",
    r"\usepackage{amsmath} \underline{a} \upsilon",
    r"^\d+\.\w{2}$",
    r"\bword\b",
    r"\1 and \g<name>",
    r"C:\Users",
    r"C:\Users\new\temp\readme.txt",
    r"C:\Program Files\nodejs\bin",
    r"C:\boot\foo",
    r"Copy it to C:\Users\temp\new today, or to D:\data\reports.",
    "It is in C:\\Users\\ann.\nthen open (C:\\Users\\bob\\notes)\nNow restart.",
    "Q:\nfind \\beta\nA:\nx\\in B",
    r"\alpha \tan x",
    r"\tau is the time constant",
    r"p \lor \neg q",
    "\\lambda = 1.\nThen \\mu follows.",
]
UNCHANGED = [  # texts as a program writes them to JSON
    "line one\nline two",
    "to be or\nnot to be",
    "a\nto b\nnew line\nnumber\nunder\nnice\nnever",
    "a\tthe\tto\ttext\ttable\ttime\ttan\tau lait",
    "a\r\nright\r\nreal\r\nroot",
    "x = 1\neq = 2\nmid = (a + b) // 2\ni = 0\nu = 3\ne = 4",
    "if x:\n\text = path\n\top := 3\n\tan := 1\n\tag = 2\n\title = 'x'",
    "pane\ne vino\ni gatti",
    "It exists\nexists\nless\nsubset of\nparallel",
    "It costs $5\ne poi $6",
    "$$\nu = 3\n$$",
    "\x0c\nnext page",
    "back\x08",
    r"\frac{1}{2} \nu \times \theta",
    r"C:\Users\new\temp",
    r"^\d+\b\t\n$",
    r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}",
    '"quoted" and / and \\',
    "ünder\nüber\tä",
    "b_\ni % b_\nf",
    "A:\nthe answer\tB:\tthe other",
    "",
]
# one character in other languages
REFUSED = [r"A\x37", r"\u{1F600}", r"\U0001F600", r"\033[0m", "a\\\nb", r"\x0A"]


def written(text):
    """A text in an object of JSON, its backslashes as they are, and its line breaks escaped."""
    return '{"text": "%s"}' % text.replace("\n", r"\n")


class Formula(BaseModel):
    text: str


SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


@each_row("text", MEANT)
def test_what_a_model_means_is_read(text):
    """Commands of LaTeX, regular expressions and paths; line breaks stay line breaks. A second time
    changes nothing.
    """
    doubled = double_backslashes(written(text))
    assert json.loads(doubled) == {"text": text}
    assert double_backslashes(doubled) == doubled
    assert single_backslash(written(text)).startswith("\\") and not single_backslash(doubled)


@each_row("text", UNCHANGED, ids=range(len(UNCHANGED)))
@each_row("ascii_only", [False, True])
def test_what_is_escaped_is_left_as_it_is(text, ascii_only):
    """Line breaks and tabs before any word, and backslashes that are doubled."""
    clean = json.dumps({"text": text}, ensure_ascii=ascii_only)
    assert double_backslashes(clean) == clean and single_backslash(clean) == ""


@pytest.mark.parametrize("text", REFUSED)
def test_an_escape_of_another_language_is_refused(text):
    """It would have to be guessed whether the character or its spelling is meant."""
    form = as_answer_form(SCHEMA)
    with pytest.raises(InvalidAnswer, match="it is not JSON"):
        form.read('{"text": "%s"}' % text)
    assert [*form.repairs('{"text": "%s"}' % text)] == []


def test_the_texts_of_this_repository_are_left_as_they_are():
    """Code and prose, as a program writes them to JSON."""
    files = [
        file
        for folder in ("docs", "src", "examples", "bench")
        for file in (ROOT / folder).rglob("*")
        if file.suffix in {".md", ".py"}
    ]
    assert len(files) > 300
    assert [
        file.name for file in files if single_backslash(json.dumps(file.read_text("utf-8")))
    ] == []


@given(st.text(st.sampled_from('\\bfnrtuexo{}^_$ "/\n\t\b\fäN0'), max_size=30))
def test_what_is_doubled_stays_readable(text):
    """Any text: what was JSON stays JSON, a second time changes nothing, and only backslashes are
    added.
    """
    clean = json.dumps(text)
    doubled = double_backslashes(clean)
    json.loads(doubled)
    assert double_backslashes(doubled) == doubled and doubled.replace("\\", "") == clean.replace(
        "\\", ""
    )


@each_row("answer", [Formula, SCHEMA, list[Formula], Formula | None], ids=str)
@each_row("around", ["%s", "```json\n%s\n```", "Here it is:\n%s", "```\n%s\n```\nDone: \\(x\\)."])
@each_row("text", MEANT[:4])
def test_an_answer_is_repaired_without_a_call(answer, around, text):
    """In every form of answer; the note says so, and the run continues without a call."""
    given = '{"answer": [%s]}' % written(text) if answer == list[Formula] else written(text)
    model = redraft.ScriptedModel([around % given])
    result = redraft.refine_sync("q", model, answer=answer, max_iterations=1)
    value = result.parsed[0] if answer == list[Formula] else result.parsed
    assert (value["text"] if answer == SCHEMA else value.text) == text and model.calls == 1
    assert "doubled single backslashes" in result.trace.best.note
    again = redraft.refine_sync(
        redraft.Trace.from_json(result.trace.to_json()), redraft.ScriptedModel([]), answer=answer
    )
    assert again.parsed == result.parsed


@pytest.mark.parametrize("answer", [Formula, SCHEMA], ids=str)
def test_without_the_editor_the_fault_is_named(answer):
    """The writer is told which backslash, and how to write it."""
    model = redraft.ScriptedModel([written(MEANT[0]), r'{"text": "\\frac{1}{2}"}'])
    result = redraft.refine_sync("q", model, answer=answer, editor=False, max_iterations=1)
    assert json.loads(result.value) == {"text": r"\frac{1}{2}"}
    assert (
        r"the backslash of \frac is not doubled: write \\frac in JSON"
        in model.messages[1][-1]["content"]
    )


@each_row("spec", ["json", 'json_schema:{"type":"object"}'])
@each_row("around", ["%s", "```json\n%s\n```", "Here it is:\n%s\nDone.", "%s,"])
@each_row("text", MEANT[:6])
def test_a_requirement_is_repaired_without_a_call(spec, around, text):
    """The text that a program reads from the answer is the one that is meant."""
    requirement = parse(spec)
    given = around % written(text)
    assert not requirement.check(given).ok
    result = redraft.refine_sync(redraft.Task("q", response=given, requirements=[spec]), False)
    assert result.score == 1 and text in json.dumps(
        json.loads(result.value.strip("`json\n"))
    ).replace("\\\\", "\\")


@each_row("text", MEANT)
@each_row(
    "form",
    [
        '{"score": 3, "reason": "%s"}',
        '```json\n{"reason": "%s", "score": 3,}\n```',
        "{'score': 3, 'reason': '%s'}",
    ],
)
def test_the_reason_of_a_judge_is_read(text, form):
    """In clean JSON and in JSON that is repaired."""
    assert read_object(form % text.replace("\n", r"\n")) == {"score": 3, "reason": text}
