"""Lists in cells of CSV, as JSON and as Python writes them: read exactly, or refused with a reason, never taken for one answer."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import redraft
from redraft.errors import ConfigError
from redraft.requirements.spec import check_foreign_spec
from redraft.tables.cells import MAX_DEPTH, MAX_TOKENS, load_cell
from redraft.tables.columns import infer_columns
from redraft.validation.labelled_table import list_cell
from redraft.tables.readers import Row

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)


@given(st.lists(VALUES, max_size=5) | st.dictionaries(st.text(max_size=5), VALUES, max_size=3))
def test_what_python_writes_is_read_exactly(value):
    """And so is JSON of it; a tuple is a list."""
    assert load_cell(repr(value)) == load_cell(json.dumps(value)) == value
    if isinstance(value, list):
        assert load_cell(repr(tuple(value))) == value


REFUSED = {
    "['a' 'b']": "without a comma, as numpy writes arrays",
    "['a'\n 'b']": "without a comma, as numpy writes arrays",
    "[nan, 1]": "it holds 'nan'",
    "[array(['a'])]": "it holds 'array'",
    "['a', ...]": "it holds '...'",
    "['a', 1 + 2]": "it holds '+'",
    "[- - 1]": "it holds '-'",
    "[b'a']": "it holds \"b'a'\"",
    "[{'a', 'b'}]": "it holds a set",
    "[{1: 'a'}]": "it holds a dict",
    "['a', 'b'": "EOF in multi-line statement",
    "['it's']": "unterminated string",
    "[f'{1}']": "it holds \"f'",
    "[__import__('os').system('x')]": "it holds '__import__'",
    "[" * 5000 + "]" * 5000: "deep",
    "['a'," * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1): f"more than {MAX_DEPTH} deep",
    f"[{'1,' * MAX_TOKENS}'a']": "more than 50,000 parts",
    f"['{'a' * 1_000_001}']": "more than 1,000,000 characters",
    f"[{'9' * 5000}, 'a']": "digits",
}


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:30])
def test_what_is_no_literal_is_refused(text):
    """The error says why; nothing is run, and nothing takes long."""
    with pytest.raises(ValueError, match="neither JSON") as caught:
        load_cell(text)
    assert REFUSED[text] in str(caught.value) or "unterminated" in REFUSED[text]


def task_of(row, **columns):
    return infer_columns([row], check_requirement=check_foreign_spec).task(row)


ANSWERS = ["four, say", "five", 'it\'s "six"\n[7]']
MESSAGES = [
    {"role": "user", "content": "It's?"},
    {"role": "assistant", "content": None, "tool_calls": None},
    {"role": "user", "content": "q"},
]


@pytest.mark.parametrize("write", [str, json.dumps])
@pytest.mark.parametrize("name", ["responses", "outputs", "completions", "candidates"])
def test_responses_in_a_cell_are_several(write, name):
    """Each is one answer, also those with commas, quotes and brackets."""
    assert task_of({"prompt": "q", name: write(ANSWERS)}).responses == tuple(ANSWERS)
    assert task_of({"prompt": "q", name: write([{"content": "a"}, {"content": "b"}])}).responses == ("a", "b")


@pytest.mark.parametrize("write", [str, json.dumps])
def test_other_lists_in_cells(write):
    """Messages, tools, requirements and labels."""
    row = {"messages": write(MESSAGES), "requirements": write(["words:1-5", "no_commas"])}
    task = task_of({**row, "tools": write([{"type": "function", "function": {"name": "f"}}])})
    assert [message["content"] for message in task.messages] == ["It's?", None, "q"]
    assert task.requirements == ("words:1-5", "no_commas")
    assert task.tools[0]["function"]["name"] == "f"
    assert list_cell(Row("x.csv:1", {"ratings": write([1, None, 0.5])}), "ratings") == [1, None, 0.5]


@pytest.mark.parametrize("cell", ["['a' 'b']", "['a', 'b', ...]", '["a", "b"', "['a', nan, 'b']"])
def test_a_list_that_cannot_be_read_is_refused(cell, tmp_path):
    """The row is unreadable, and says why; it is never graded as one answer, and no new one is written."""
    if not cell.endswith("]"):
        cell += "]]"
    with pytest.raises(ValueError, match="'responses' looks like a list of responses"):
        task_of({"prompt": "q", "responses": cell})
    (tmp_path / "rows.csv").write_text(f'prompt,responses\nq,"{cell.replace(chr(34), chr(34) * 2)}"\n')
    files = {"journal": tmp_path / "j.journal", "errors": tmp_path / "e.jsonl"}
    with pytest.raises(ConfigError, match="the only row in .* looks like a list of responses"):
        redraft.batch_sync(tmp_path / "rows.csv", None, redraft.ScriptedModel(["new"]), "answered", **files)


@pytest.mark.parametrize("text", ["[1] says so.", "[Verse] la la [end]", "Take ['a', 'b'].", "[x]"])
def test_a_text_with_brackets_is_a_text(text):
    """Also in a column that is named as one of responses."""
    from redraft.tables.columns import TaskColumns

    row = {"prompt": "q", "responses": text}
    columns = infer_columns([row], TaskColumns(responses="responses"), check_requirement=check_foreign_spec)
    assert columns.task(row).responses == (text,)


def test_an_answer_that_is_a_list_stays_one_answer():
    """In a column of single responses, a list as Python writes it is a text."""
    assert task_of({"prompt": "List two.", "response": "['a', 'b']"}).response == "['a', 'b']"


def test_a_file_as_pandas_writes_it(tmp_path):
    """The best of the responses is returned, and none of them is written anew."""
    (tmp_path / "rows.csv").write_text("prompt,responses\nName a number.,\"['four, say', 'five']\"\n")
    report = redraft.batch_sync(
        tmp_path / "rows.csv", tmp_path / "o.jsonl", False, "no_commas", journal=tmp_path / "j.journal", editor=False
    )
    assert json.loads((tmp_path / "o.jsonl").read_text())["best"] == "five"
    assert report.done == 1
