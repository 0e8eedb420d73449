"""Column mapping: which column has which role, stated or recognised by name, and the task that a
row makes.
"""

import json
from functools import partial

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from each_row import each_row
from redraft import tables
from redraft.errors import ConfigError
from redraft.requirements.spec import check_foreign_spec
from redraft.tables import TaskColumns

infer_columns = partial(tables.infer_columns, check_requirement=check_foreign_spec)

HI = [{"role": "user", "content": "Hi"}]
YO = {"role": "assistant", "content": "Yo"}
SHAREGPT = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yo"}]
OPENJUDGE = [{"answer": {"role": "assistant", "content": "Yo", "label": {"x": 1}}}]

RECOGNISED = {
    "query": ({"query": "Hi", "response": "Yo"}, 'prompt from "query", response from "response"'),
    "completion": ({"prompt": "Hi", "completion": "Yo"}, 'prompt from "prompt", response from "completion"'),
    "IFEval": ({"key": 7, "prompt": "Hi", "response": "Yo"}, 'prompt from "prompt", response from "response"'),
    "question": ({"question": "Hi", "answer": "Yo"}, 'prompt from "question", response from "answer"'),
    "messages": ({"messages": [*HI, YO]}, 'messages from "messages" (a last answer in it is the response)'),
    "JSON": ({"messages": json.dumps([*HI, YO])}, 'messages from "messages" (a last answer in it is the response)'),
    "ShareGPT": ({"conversations": SHAREGPT}, 'messages from "conversations" (a last answer in it is the response)'),
    "TRL": ({"prompt": HI, "completion": [YO]}, 'prompt from "prompt", response from "completion"'),
    "Alpaca": ({"instruction": "Hi", "input": "", "output": "Yo", "text": "all"}, 'prompt from "instruction" and "input", response from "output"'),
    "OpenJudge": ({"unique_id": "u", "input": HI, "output": OPENJUDGE}, 'messages from "input", response from "output", id from "unique_id"'),
    "nested": ({"input": {"query": "Hi"}, "output": {"response": "Yo"}}, 'prompt from "input.query", response from "output.response"'),
    "nested text": ({"input": {"text": "Hi"}, "output": {"text": "Yo"}}, 'prompt from "input.text", response from "output.text"'),
    "flat": ({"input": "Hi", "output": "Yo"}, 'prompt from "input", response from "output"'),
    "a prediction": ({"prompt": "Hi", "prediction": "Yo"}, 'prompt from "prompt", response from "prediction"'),
    "a response beside a prediction": ({"prompt": "Hi", "response": "Yo", "prediction": "No"}, 'prompt from "prompt", response from "response"'),
    "BigCodeBench": ({"complete_prompt": "def f():", "instruct_prompt": "Hi", "response": "Yo"}, 'prompt from "instruct_prompt", response from "response"'),
    "LiveCodeBench": ({"question_content": "Hi", "output": "Yo"}, 'prompt from "question_content", response from "output"'),
    "a prompt beside other texts": ({"prompt": "Hi", "instruct_prompt": "no", "text": "no", "response": "Yo"}, 'prompt from "prompt", response from "response"'),
    "a text beside a question's content": ({"text": "Hi", "question_content": "no", "response": "Yo"}, 'prompt from "text", response from "response"'),
    "a number": ({"id": 3, "prompt": "Hi", "response": "Yo"}, 'prompt from "prompt", response from "response", id from "id"'),
}  # fmt: skip


@each_row(("values", "said"), RECOGNISED.values(), ids=RECOGNISED)
def test_usual_columns_are_recognised(values, said):
    """Each layout makes the same task and reports its columns."""
    shape = infer_columns([values])
    task = shape.task(values)
    assert shape.description == said
    assert ([dict(m) for m in task.messages], task.response) == (HI, "Yo")


CHECK = "def check(candidate):\n    assert candidate(1) == 2\n"
PAIRS = {"inputs": ["1"], "outputs": ["2"]}
TESTS = {
    "HumanEval": ({"prompt": "Hi", "test": CHECK, "entry_point": "f"}, "test"),
    "MBPP": (
        {"text": "Hi", "test_list": ["assert f(1) == 2"], "challenge_test_list": []},
        "test_list",
    ),
    "MBPP in a cell": (
        {"text": "Hi", "test_list": "['assert f(1) == 2', 'assert f(2) == 3']"},
        "test_list",
    ),
    "APPS": ({"question": "Hi", "input_output": json.dumps(PAIRS)}, "input_output"),
    "APPS as an object": ({"question": "Hi", "input_output": PAIRS}, "input_output"),
    "calls": ({"prompt": "Hi", "test": [{"input": [1], "output": 2}]}, "test"),
    "calls in a cell": ({"prompt": "Hi", "test": '[{"input": [1], "output": 2}]'}, "test"),
    "a test file": (
        {"prompt": "Hi", "test": "import unittest\nclass T(unittest.TestCase):\n    pass"},
        "test",
    ),
    "both": ({"prompt": "Hi", "tests": "anything", "test": CHECK}, "tests"),
    "a text": ({"prompt": "Hi", "test": "A test of patience. We assert that it works."}, None),
    "a split": ({"prompt": "Hi", "test": "train"}, None),
    "a flag": ({"prompt": "Hi", "test": True}, None),
    "a list": ({"prompt": "Hi", "test_list": ["blood", "urine"]}, None),
    "mixed": ({"prompt": "Hi", "test_list": ["assert f()", "urine"]}, None),
    "a message": ({"prompt": "Hi", "test": {"role": "user", "content": "x"}}, None),
    "JSON": ({"prompt": "Hi", "test": '{"input": 3}'}, None),
}


@each_row(("values", "column"), TESTS.values(), ids=TESTS)
def test_a_column_is_tests_if_it_holds_tests(values, column):
    """The names of published data sets are also names of other columns, which stay metadata; so
    does a column that is not wanted.
    """
    for columns, expected in ((TaskColumns(), column), (TaskColumns(tests=""), None)):
        shape = infer_columns([values], columns)
        task = shape.task(values)
        assert (shape.columns.tests, bool(task.tests)) == (expected, bool(expected))
        assert task.metadata.keys() == values.keys() - {"prompt", "text", "question", expected}


@pytest.mark.parametrize(
    "values",
    [{"text": "Hi"}, {"prompt": "Hi", "response": None}, {"messages": HI}, {"instruction": "Hi"}],
)
def test_row_without_a_response_is_a_task(values):
    """The response is then generated first."""
    task = infer_columns([values]).task(values)
    assert (task.prompt, task.response) == ("Hi", None)


def test_instruction_is_followed_by_its_input():
    """A blank line separates them if there is an input."""
    values = {"instruction": "Translate.", "input": "Hallo", "output": "Hello"}
    assert infer_columns([values]).task(values).prompt == "Translate.\n\nHallo"


def test_other_task_fields_are_recognised():
    """All other columns are metadata, without the values that were read out of an object."""
    values = {
        "id": 3,
        "input": {"question": "Hi", "context": ["A", "B"], "lang": "de"},
        "output": "Yo",
        "system": "Be kind.",
        "reference": "Hello",
        "tests": ["assert f(1)", "assert f(2)"],
        "requirements": ["words:1-5"],
        "kind": "x",
    }
    task = infer_columns([values]).task(values)
    assert task.messages[0] == {"role": "system", "content": "Be kind."}
    assert (task.id, task.reference, task.context) == ("3", "Hello", "A\n\nB")
    assert (task.tests, task.requirements) == ("assert f(1)\nassert f(2)", ("words:1-5",))
    assert task.metadata == {"input": {"lang": "de"}, "kind": "x"}


@pytest.mark.parametrize(
    ("row", "metadata"),
    [
        ({"metadata": {"domain": "math"}}, {"domain": "math"}),
        ({"metadata": {"domain": "math"}, "source": "mail"}, {"domain": "math", "source": "mail"}),
        ({"metadata": {"domain": "math", "x": 1}, "domain": "code"}, {"domain": "code", "x": 1}),
        ({"metadata": "a text"}, {"metadata": "a text"}),
        ({"metadata": {}}, {}),
    ],
)
def test_an_object_in_the_column_metadata_is_spread(row, metadata):
    """`task.metadata` has its keys; a column of equal name takes precedence."""
    values = {"prompt": "Hi", **row}
    assert infer_columns([values]).task(values).metadata == metadata


def test_stated_columns_are_used():
    """Any names work; a path reads from an object, and "" says that there is no such column."""
    values = {
        "prompt": "no",
        "a": {"b": "Hi"},
        "response": "no",
        "c": "Yo",
        "id": "no",
        "requirements": "our own words",
    }
    shape = infer_columns([values], TaskColumns(prompt="a.b", response="c", id="", requirements=""))
    task = shape.task(values)
    assert (task.prompt, task.response, task.id, task.requirements) == ("Hi", "Yo", None, ())
    assert shape.description == 'prompt from "a.b", response from "c"'


NAMED = {
    "a reference whose name is an answer's": ({"question": "Hi", "answer": "x", "output": "Yo"}, {"reference": "answer"}),
    "a reference in an object": ({"question": "Hi", "output": {"answer": "x"}, "prediction": "Yo"}, {"reference": "output.answer"}),
    "a reference whose name is that of other answers": ({"prompt": "Hi", "prediction": "x", "candidate": "Yo"}, {"reference": "prediction"}),
    "a list of references": ({"prompt": "Hi", "outputs": ["x"], "response": "Yo"}, {"reference": "outputs"}),
    "a context whose name is a prompt's": ({"question": "Hi", "input": "x", "response": "Yo"}, {"context": "input"}),
    "a context that is the prompt": ({"question": "Hi", "response": "Yo"}, {"context": "question"}),
    "an answer whose name is a reference's": ({"prompt": "Hi", "ideal": "Yo"}, {"response": "ideal"}),
    "an answer beside a list": ({"prompt": "Hi", "a": "Yo", "outputs": ["x", "y"]}, {"response": "a"}),
    "a prompt beside messages": ({"a": "Hi", "messages": [{"role": "user", "content": "no"}], "response": "Yo"}, {"prompt": "a"}),
    "LangSmith": ({"inputs": {"q": "Hi"}, "outputs": {"a": "Yo"}}, {"prompt": "inputs.q", "response": "outputs.a"}),
}  # fmt: skip


@pytest.mark.parametrize(("values", "stated"), NAMED.values(), ids=NAMED)
def test_a_named_column_is_not_guessed_for_another_role(values, stated):
    columns = TaskColumns(**stated)
    shape = infer_columns([values], columns)
    task = shape.task(values)
    assert (task.prompt, task.response, task.responses) == ("Hi", "Yo", ())
    assert (task.reference, task.context) == (
        "x" if columns.reference else None,
        values.get(columns.context),
    )


UNCLEAR = {
    "two prompts": ({"prompt": "a", "query": "b"}, {}, "could be the prompt: 'prompt', 'query'; state it by --column prompt=NAME or messages=NAME"),
    "prompt and messages": ({"prompt": "a", "messages": HI}, {}, "'prompt', 'messages'"),
    "two responses": ({"prompt": "a", "response": "b", "answer": "c"}, {}, "'response', 'answer'; state it by --column response=NAME"),
    "two inside": ({"prompt": "a", "output": {"text": "b", "answer": "c"}}, {}, "'output.answer', 'output.text'"),
    "no prompt": ({"a": "b", "input": {"c": 1}}, {}, "no column is known to be the prompt; .* There are 'a', 'input.c'"),
    "not there": ({"prompt": "a"}, {"response": "answer"}, "--column response=answer: there is no column 'answer'; there are 'prompt'"),
    "another case": ({"prompt": "a", "Answer": "b"}, {"response": "answer"}, "there is no column 'answer'; did you mean 'Answer'. there are"),
    "two generations": ({"prompt": "a", "generation": "b", "prediction": "c"}, {}, "several columns could be the response: 'generation', 'prediction'"),
    "not inside": ({"prompt": "a", "o": {"x": 1}}, {"response": "o.text"}, "o.text: there is no column 'o.text'; there are 'prompt', 'o.x'"),
    "a description": ({"description": "b", "response": "c"}, {}, "no column is known to be the prompt"),
    "both": ({"a": "b", "c": HI}, {"prompt": "a", "messages": "c"}, "only one of them"),
}  # fmt: skip


@pytest.mark.parametrize(("values", "stated", "complaint"), UNCLEAR.values(), ids=UNCLEAR)
def test_ambiguous_columns_are_an_error(values, stated, complaint):
    """The error says what to state, and no column is guessed."""
    with pytest.raises(ConfigError, match=complaint):
        infer_columns([values], TaskColumns(**stated))


def test_empty_table_has_no_mapping():
    """An empty table gives no columns to recognise."""
    with pytest.raises(ConfigError, match="there are no rows"):
        infer_columns([])


GOOD = {
    "prompt": "Hi",
    "response": "Yo",
    "id": 1,
    "reference": "x",
    "requirements": "words:1-5",
    "system": "s",
}
BAD = {
    "an empty prompt": ({"prompt": " \n"}, "'prompt' is empty"),
    "a null prompt": ({"prompt": None}, "'prompt' is null"),
    "a number for a prompt": ({"prompt": 7}, "'prompt' must be text or a list of messages, got 7"),
    "a number for a response": ({"response": 7}, "'response' must be text, got 7"),
    "two responses": ({"response": ["a", "b"]}, "'response' holds 2 responses"),
    "an id that is none": ({"id": [1]}, "'id' must be a text or a number"),
    "a reference that is none": ({"reference": {"a": 1}}, "'reference' must be text"),
    "no kind of requirement": (
        {"requirements": "nonsense:1"},
        "'requirements': unknown requirement 'nonsense:1'",
    ),
    "requirements that are none": (
        {"requirements": [1]},
        "'requirements' must be a text or a list of specs",
    ),
    "a requirement that reads a file": (
        {"requirements": "json_schema:/etc/passwd"},
        "would read a file, which is not allowed",
    ),
    "two system messages": (
        {"prompt": [{"role": "system", "content": "t"}, *HI]},
        "'system' holds a system message, but",
    ),
    "no message": ({"prompt": [1]}, "a message is an object"),
    "a message without a role": ({"prompt": [{"content": "x"}]}, 'a message is {"role"'),
    "nobody known": ({"prompt": [{"from": "martian", "value": "x"}]}, "unknown speaker 'martian'"),
    "an answer to nothing": ({"prompt": [YO]}, "'prompt' holds no question"),
    "two different answers": (
        {"prompt": [*HI, YO], "response": "No"},
        "'prompt' ends with an answer, and 'response' holds another",
    ),
}


@each_row(("changed", "complaint"), BAD.values(), ids=BAD)
def test_invalid_row_names_the_column(changed, complaint):
    """The error concerns one row and is no ConfigError."""
    shape = infer_columns([GOOD])
    assert shape.task(GOOD).requirements == ("words:1-5",)
    with pytest.raises(ValueError, match=complaint.replace("(", r"\(")) as error:
        shape.task({**GOOD, **changed})
    assert not isinstance(error.value, ConfigError)


@pytest.mark.parametrize(
    "other", [{"question": "Hi"}, {"messages": HI}, {"input": {"query": "Hi"}}]
)
def test_row_with_other_columns_is_reported(other):
    """The error lists the row's columns when files with different columns are read as one table."""
    name = "input.query" if "input" in other else next(iter(other))
    with pytest.raises(
        ValueError,
        match=rf"'prompt' is missing; '{name}' is there, but the table begins with rows of another shape",
    ):
        infer_columns([GOOD]).task({**other, "response": "Yo"})
    with pytest.raises(ValueError, match="'prompt' is missing$"):
        infer_columns([GOOD]).task({"response": "Yo"})


def test_null_response_is_no_response():
    """A response that first appears in a later row still counts."""
    shape = infer_columns([{"prompt": "Hi", "response": None}])
    assert shape.task({"prompt": "Hi", "response": None}).response is None
    assert shape.task({"prompt": "Hi"}).response is None
    assert shape.task({"prompt": "Hi", "response": "Ho"}).response == "Ho"


@pytest.mark.parametrize("id", [None, ""])
def test_row_without_an_id(id):
    """The ID is derived later from the content."""
    assert infer_columns([GOOD]).task({**GOOD, "id": id}).id is None


@pytest.mark.parametrize(
    ("written", "specs"),
    [
        ("words:1-5; no_commas\nno_commas;;", ["words:1-5", "no_commas", "no_commas"]),
        ('contains:"a; b"; words:1-5', ['contains:"a; b"', "words:1-5"]),
        ('["words:1-5", "contains:a;b"]', ["words:1-5", "contains:a;b"]),
        (["contains:a;b"], ["contains:a;b"]),
        (None, []),
        ("", []),
    ],
)
def test_requirements_are_a_list_or_a_text(written, specs):
    """Line ends and semicolons separate requirements, except within quotes."""
    assert list(infer_columns([GOOD]).task({**GOOD, "requirements": written}).requirements) == specs


def test_requirements_are_parsed_in_linear_time():
    """A hostile text of open quotes is rejected as fast as any."""
    with pytest.raises(ValueError, match="requirements"):
        infer_columns([GOOD]).task({**GOOD, "requirements": '\\"' * 1_000_000})


def test_messages_are_kept_completely():
    """Images and tool calls stay, and null parts that tables add are dropped."""
    parts = [
        {"type": "text", "text": "Look"},
        {"type": "image_url", "image_url": {"url": "data:,"}},
    ]
    values = {"messages": [{"role": "user", "content": parts, "name": None}]}
    assert [dict(m) for m in infer_columns([values]).task(values).messages] == [
        {"role": "user", "content": parts}
    ]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "from", "value", "a"]), inner)
    ),
    max_leaves=8,
)


@example({"prompt": [{"role": None}], "response": [{"role": [], "content": None}]})
@given(
    st.dictionaries(st.sampled_from([*GOOD, "messages", "input", "output", "text", "query"]), JSON)
)
def test_any_row_is_a_task_or_a_value_error(values):
    """It holds for a row with its own mapping and with the mapping of another row, whatever its
    columns are.
    """
    try:
        infer_columns([values]).task(values)
    except ValueError:
        pass
    for row in (values, {**GOOD, **values}):
        try:
            task = infer_columns([GOOD]).task(row)
        except ConfigError:
            raise
        except ValueError:
            assert values or not row
        else:
            assert task.messages and (task.response is None or task.response.strip())
