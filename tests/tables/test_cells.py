"""Lists in cells of CSV, as JSON and as Python writes them: read exactly, or refused with a reason,
never taken for one answer.
"""

import csv
import io
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import redraft
from each_row import each_row
from redraft.errors import ConfigError
from redraft.requirements.spec import check_foreign_spec
from redraft.tables.cells import MAX_DEPTH, MAX_TOKENS, load_cell
from redraft.tables.columns import TaskColumns, infer_columns
from redraft.tables.readers import Row
from redraft.validation.labelled import read_cases
from redraft.validation.labelled_table import list_cell

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(st.lists(VALUES, max_size=5) | st.dictionaries(st.text(max_size=5), VALUES, max_size=3))
def test_what_python_writes_is_read_exactly(value):
    """And so is JSON of it; a tuple is a list."""
    assert load_cell(repr(value)) == load_cell(json.dumps(value)) == value
    if isinstance(value, list):
        assert load_cell(repr(tuple(value))) == value


REFUSED = {
    "['a' 'b', 'c']": "a comma is missing between two values",
    "('a' 'b')": "a comma is missing between two values",
    "['it''s']": "two values stand side by side without a comma",
    "['it's']": "two values stand side by side without a comma",
    "['a' ... 'b']": "numpy has left out values (...)",
    "['a', ...]": "numpy has left out values (...)",
    "['a', 1 + 2]": "it holds '+ 2]'",
    "[- - 1]": "it holds '- - 1]'",
    "[b'a']": "it holds 'b'",
    "[inf]": "it holds 'inf'",
    "[Timestamp('2026-01-01')]": "it holds 'Timestamp'",
    "[{'a', 'b'}]": "it holds a set",
    "[{1: 'a'}]": "an object whose keys are no different texts",
    "[{'a': 1, 'a': 2}]": "an object whose keys are no different texts",
    "['a', 'b'": "its end is missing",
    "['a', 'b": "a quotation mark is open",
    "['a']]": "']' follows it",
    "['a\nb']": "a quotation mark is open",
    r"['a\d']": "it holds a backslash that Python does not write",
    r"['\N{x}']": "it holds a backslash that Python does not write",
    "[f'{1}']": "it holds 'f'",
    "[array(['a'], shape=(1,))]": "array has an argument that is not known",
    "[array(['a'], ['b'])]": "array has an argument that is not known",
    "[__import__('os').system('x')]": "it holds '__import__'",
    "[" * 5000 + "]" * 5000: "deep",
    "['a'," * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1): f"more than {MAX_DEPTH} deep",
    "array(" * 5000: f"more than {MAX_DEPTH} deep",
    f"[{'1,' * MAX_TOKENS}'a']": "more than 50,000 parts",
    f"['{'a' * 1_000_001}']": "more than 1,000,000 characters",
    f"[{'9' * 5000}, 'a']": "digits",
    "[" + "a." * 400_000: "it holds 'a.a.",
    "[" + " " * 900_000 + "x": "it holds 'x'",
}


@each_row("text", REFUSED, ids=lambda text: text[:30])
def test_what_is_no_literal_is_refused(text):
    """The error says why; nothing is run, and nothing takes long."""
    with pytest.raises(ValueError, match="neither JSON|Expecting value") as caught:
        load_cell(text)
    assert REFUSED[text] in str(caught.value) or text.startswith("array(")


OBJECTS = [{"role": "user", "content": "It's?"}, {"role": "assistant", "content": 'a "b"\n'}]
WRITTEN_BY_NUMPY = [
    (["four, say", "five"], "['four, say' 'five']"),
    (["four", None], "['four' None]"),
    ([0.5, None, 1.0], "[0.5 nan 1. ]"),
    ([-1, 2], "[-1  2]"),
    ([[1, 2], [3, 4]], "[[1 2]\n [3 4]]"),
    ([True, False], "[ True False]"),
    (OBJECTS, str(OBJECTS).replace("}, {", "}\n {")),
    ([["a"], ["b", "c"]], "[list(['a']) list(['b', 'c'])]"),
    ([["a", "b"], ["c"]], "[array(['a', 'b'], dtype=object) array(['c'], dtype=object)]"),
    (
        {"text": ["x"], "at": [5]},
        "{'text': array(['x'], dtype=object), 'at': array([5], dtype=int32)}",
    ),
    (["a", "b"], "array(['a', 'b'], dtype='<U1')"),
    ([0.5, -3, "a", True], "[np.float64(0.5), np.int64(-3), np.str_('a'), np.True_]"),
    ([], "[]"),
]


@pytest.mark.parametrize(
    ("value", "text"), WRITTEN_BY_NUMPY, ids=[text for _, text in WRITTEN_BY_NUMPY]
)
def test_what_numpy_writes_is_read(value, text):
    """An array has spaces in place of commas; NaN is null."""
    assert load_cell(text) == value


@given(
    st.lists(st.lists(st.text(max_size=8), max_size=5), min_size=1, max_size=4),
    st.sampled_from(["list", "tuple", "array", "object"]),
)
@settings(deadline=None, max_examples=50)
def test_what_pandas_writes_is_read_back(lists, kind):
    """Lists, tuples, arrays, and objects that hold arrays, written by `to_csv`."""
    np, pd = pytest.importorskip("numpy"), pytest.importorskip("pandas")
    make = {
        "list": list,
        "tuple": tuple,
        "array": lambda texts: np.array([*texts, None], dtype=object)[:-1],
        "object": lambda texts: {
            "content": np.array([*texts, None], dtype=object)[:-1],
            "n": np.float64(0.5),
        },
    }[kind]
    out = io.StringIO()
    pd.DataFrame({"cell": [make(texts) for texts in lists]}).to_csv(out, index=False)
    cells = [row[0] for row in csv.reader(io.StringIO(out.getvalue(), newline=""))][1:]
    read = [load_cell(cell) for cell in cells]
    assert (read if kind != "object" else [each["content"] for each in read]) == lists


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
    assert task_of(
        {"prompt": "q", name: write([{"content": "a"}, {"content": "b"}])}
    ).responses == ("a", "b")


@pytest.mark.parametrize("write", [str, json.dumps])
def test_other_lists_in_cells(write):
    """Messages, tools, requirements and labels."""
    row = {"messages": write(MESSAGES), "requirements": write(["words:1-5", "no_commas"])}
    task = task_of({**row, "tools": write([{"type": "function", "function": {"name": "f"}}])})
    assert [message["content"] for message in task.messages] == ["It's?", None, "q"]
    assert task.requirements == ("words:1-5", "no_commas")
    assert task.tools[0]["function"]["name"] == "f"
    assert list_cell(Row("x.csv:1", {"ratings": write([1, None, 0.5])}), "ratings") == [
        1,
        None,
        0.5,
    ]


UNREADABLE = [
    "['a', 'b', ...]",
    '["a", "b"]]',
    "['a' 'b', 'c']",
    "('a', 'b', Timestamp('c'), 'd')",
    "{'a', 'b'}",
    "[None, x('b')]",
]
UNREADABLE += [
    "['a', 'b', 'c [1] and so o",
    "['a' 'b",
    '["a", "b"',
    "[{'content': 'a'}, {'content': 'b",
]


@pytest.mark.parametrize("cell", UNREADABLE)
def test_a_list_that_cannot_be_read_is_refused(cell, tmp_path):
    """The row is unreadable, and says why; it is never graded as one answer, and no new one is
    written.
    """
    with pytest.raises(ValueError, match="'responses' looks like a list of responses"):
        task_of({"prompt": "q", "responses": cell})
    (tmp_path / "rows.csv").write_text(
        f'prompt,responses\nq,"{cell.replace(chr(34), chr(34) * 2)}"\n'
    )
    files = {"journal": tmp_path / "j.journal", "errors": tmp_path / "e.jsonl"}
    with pytest.raises(ConfigError, match="the only row in .* looks like a list of responses"):
        redraft.batch_sync(
            tmp_path / "rows.csv", None, redraft.ScriptedModel(["new"]), "answered", **files
        )


LISTS_OF_RESPONSES = {
    "('four, say', 'five')": ("four, say", "five"),
    "['four, say' 'five']": ("four, say", "five"),
    "array(['four, say', 'five'], dtype=object)": ("four, say", "five"),
    "[None, 'five']": ("five",),
    "[nan, 'five']": ("five",),
    "['five']": ("five",),
    "[]": (),
    "[{'content': 'four, say', 'role': 'assistant'}\n {'content': 'five', 'role': 'assistant'}]": (
        "four, say",
        "five",
    ),
    "{'role': 'assistant', 'content': 'five'}": ("five",),
}


@pytest.mark.parametrize("cell", LISTS_OF_RESPONSES)
def test_forms_of_lists_of_responses(cell):
    assert task_of({"prompt": "q", "responses": cell}).responses == LISTS_OF_RESPONSES[cell]


CHATS = [
    str(MESSAGES),
    str(MESSAGES).replace("}, {", "}\n {"),
    json.dumps(MESSAGES),
    f"array({MESSAGES}, dtype=object)",
]


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("name", ["messages", "conversation", "prompt", "input"])
def test_messages_in_a_cell(name, chat):
    """Also in a column of prompts."""
    assert [message["content"] for message in task_of({name: chat}).messages] == [
        "It's?",
        None,
        "q",
    ]


@pytest.mark.parametrize("name", ["messages", "prompt"])
def test_messages_that_cannot_be_read_are_refused(name):
    """They are never sent as text."""
    with pytest.raises(
        ValueError,
        match=f"'{name}' (looks like|must be a list of) messages.*numpy has left out values",
    ):
        task_of({name: "[{'role': 'user', 'content': 'q'} ... {'role': 'user', 'content': 'r'}]"})


TEXTS = [
    "[INST] hello [/INST]",
    "[1] says so.",
    "[Verse] la la [end]",
    "Take ['a', 'b'].",
    "[x]",
    "(a) one (b) two",
    '("Hi," she said.)',
    "{x} + {y}",
    "[x for x in 'ab']",
    '["a", "b"] is a list of two.',
    "['a",
    '["Stop!"',
    '{"role": "assistant", "content": null, "tool_calls": []}',
    '{"role": "user", "name": "a"}',
    "[]()",
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_with_brackets_is_a_text(text):
    """In columns of texts, and also in one that is named as one of responses."""
    columns = infer_columns(
        [{"prompt": "q", "responses": text}],
        TaskColumns(responses="responses"),
        check_requirement=check_foreign_spec,
    )
    assert columns.task({"prompt": "q", "responses": text}).responses == (text,)
    task = task_of({"prompt": text, "response": text, "reference": text, "context": text})
    assert (task.prompt, task.response, task.reference, task.context) == (text,) * 4


LISTS_THAT_ARE_TEXTS = [
    "[1, 2, 3]", "[1, 2, 3] sort this", "['a', 'b']", '["a", "b"]', "['a' 'b']", "['a']", "('a', 'b')", "{'a', 'b'}", "[]", "[None]",
    "[[1, 2], [3, 4]]", "array(['a', 'b'])", '[{"text": "x"}, {"text": "y"}]', "[{'text': 'x'}, {'text': 'y'}]", '[{"answer": "x"}]',
    "['a', 'b', 'c", '[{"name": "x", "', "{'a': 1}", '{"content": "x"}', "[('a', 1)]", "['a'] + ['b']",
    '[{"role": "user", "content": "hi"}] Make this ShareGPT.', "[{'role': 'user', 'content': 'hi'}] – what is it?",
    "{'role': 'user', 'content': 'hi'} is a message", '[{"from": "human", "value": "hi"}]\n\nSummarise this "chat.',
]  # fmt: skip
MESSAGES_IN_JSON = [
    '[{"role": "assistant", "content": "x"}]',
    '[{"role": "user", "content": "it is cut o',
    '[{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]',
]


@pytest.mark.parametrize("text", [*LISTS_THAT_ARE_TEXTS, *MESSAGES_IN_JSON])
def test_no_text_of_a_single_answer_is_changed(text, tmp_path):
    """An answer may be a list, and so may a question and what belongs to it; batches and
    validations agree.
    """
    others = {"response": text, "reference": text, "context": text, "system": text}
    task = task_of({"prompt": "q", **others})
    assert (task.response, task.reference, task.context, task.messages[0]["content"]) == (text,) * 4
    for name in ("output", "answer", "completion"):
        assert task_of({"prompt": "q", name: text}).response == text
    with (tmp_path / "t.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["prompt", *others, "label"], ["q", *others.values(), "1"]])
    (case,) = read_cases(tmp_path / "t.csv").cases
    assert (case.responses, case.task.reference, case.task.context) == ((text,), text, text)
    if text not in MESSAGES_IN_JSON:
        assert task_of({"prompt": text}).prompt == text
        assert task_of({"instruction": "Explain.", "input": text}).prompt == f"Explain.\n\n{text}"
        with (tmp_path / "t.csv").open("w", newline="") as file:
            csv.writer(file).writerows([["prompt", "chosen", "rejected"], [text, text, f"{text}."]])
        (case,) = read_cases(tmp_path / "t.csv").cases
        assert (case.task.prompt, sorted(case.responses)) == (text, sorted([text, f"{text}."]))


def test_messages_are_read_from_a_column_of_single_answers():
    """As Python and numpy write them; a list of them is a list of answers."""
    assert (
        task_of({"prompt": "q", "response": "[{'role': 'assistant', 'content': 'a'}]"}).response
        == "a"
    )
    answers = [{"answer": {"role": "assistant", "content": text}} for text in "ab"]
    assert task_of({"prompt": "q", "output": str(answers)}).responses == ("a", "b")


def test_other_columns_that_hold_lists_and_objects():
    """Asserts are tests, and an object is metadata."""
    task = task_of(
        {
            "prompt": "q",
            "metadata": "{'n': array([1, 2])}",
            "tests": "['assert f(1) == 2'\n 'assert f(2) == 3']",
        }
    )
    assert (task.metadata, task.tests) == ({"n": [1, 2]}, "assert f(1) == 2\nassert f(2) == 3")
    code = "import numpy as np\nassert f() == np.array([1])"
    assert task_of({"prompt": "q", "tests": code}).tests == code
    apps = task_of(
        {
            "prompt": "q",
            "tests": "{'inputs': array(['1'], dtype=object), 'outputs': array(['2'], dtype=object)}",
        }
    )
    assert json.loads(apps.tests) == {"inputs": ["1"], "outputs": ["2"]}


@pytest.mark.parametrize("write", [str, json.dumps, lambda value: str(value).replace(",", " ")])
def test_labels_in_lists(write, tmp_path):
    """Ratings in the column of the label, and chats as the chosen and the rejected answer."""
    table = tmp_path / "t.csv"
    with table.open("w", newline="") as file:
        csv.writer(file).writerows(
            [
                ["prompt", "response", "label"],
                ["q", "a", write([1, 4, 4])],
                ["q", "b", write([2, 3, 1])],
            ]
        )
    assert [case.ratings for case in read_cases(table).cases] == [(1, 4, 4), (2, 3, 1)]
    chats = [
        [{"role": "user", "content": "q"}, {"role": "assistant", "content": text}]
        for text in ("good", "bad")
    ]
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([["chosen", "rejected"], [str(chat) for chat in chats]])
    (case,) = read_cases(table).cases
    assert sorted(case.responses) == ["bad", "good"]
    assert case.task.prompt == "q"
    with table.open("w", newline="") as file:
        csv.writer(file).writerows(
            [["chosen", "rejected"], [str(chats[0]).replace("}]", "} ...]"), str(chats[1])]]
        )
    with pytest.raises(
        ConfigError, match="'chosen' looks like messages.*numpy has left out values"
    ):
        read_cases(table)


def test_a_file_as_pandas_writes_it(tmp_path):
    """The best of the responses is returned, and none of them is written anew."""
    (tmp_path / "rows.csv").write_text(
        "prompt,responses\nName a number.,\"['four, say', 'five']\"\n"
    )
    report = redraft.batch_sync(
        tmp_path / "rows.csv",
        tmp_path / "o.jsonl",
        False,
        "no_commas",
        journal=tmp_path / "j.journal",
        editor=False,
    )
    assert json.loads((tmp_path / "o.jsonl").read_text())["best"] == "five"
    assert report.rows.done == 1


def test_labelled_answers_in_a_cell(tmp_path):
    """Rows in the shape of RM-Gallery's `DataSample`, in CSV."""
    output = [
        {"answer": {"role": "assistant", "content": text, "label": {"preference": preference}}}
        for text, preference in (("good", "chosen"), ("bad", "rejected"))
    ]
    with (tmp_path / "t.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [["input", "output"], [str([{"role": "user", "content": "q"}]), str(output)]]
        )
    (case,) = read_cases(tmp_path / "t.csv", columns={}).cases
    assert (sorted(case.responses), case.kind) == (["bad", "good"], "pair")
    assert case.responses[case.ranks.index(0)] == "good"
