"""Typed answers: what a model breaks is repaired, refined or None, and never another object."""

import asyncio
import dataclasses
import enum
import functools
import json
import pickle
import re
import string
import time
from contextlib import suppress
from typing import Annotated, Literal

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic import (
    AliasChoices,
    BaseModel,
    Field,
    TypeAdapter,
    ValidationInfo,
    computed_field,
    create_model,
    field_serializer,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

import redraft
from each_row import each_row
from redraft.answers import (
    CodeAnswer,
    InvalidAnswer,
    SchemaAnswer,
    TypedAnswer,
    as_answer_form,
)
from redraft.answers.json_text import read_json, repaired_json
from redraft.base.json_repair import double_backslashes
from redraft.cli.user_code import canonical_schema
from redraft.errors import ConfigError, GradingError, ValidatorError
from redraft.grading import grade_many
from redraft.loop.prompts import SCHEMA_HEADING
from redraft.models.openai_chat import is_strict_schema
from redraft.protocols import Reply


class Item(BaseModel):
    name: str
    price: float = Field(description="in EUR")


class Invoice(BaseModel):
    number: str
    items: list[Item]
    total: float = Field(gt=0)


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class City(TypedDict):
    name: str
    people: int


class Loose(BaseModel, extra="allow"):
    answer: int = 0
    other: int = 0


class Settings(BaseModel):
    level: int = 0


class Own(BaseModel):
    own: dict[str, dict[str, int]] | None = None


class Unwrapping(Settings):
    @model_validator(mode="before")
    @classmethod
    def unwrap(cls, data: dict) -> dict:
        return data.get("Unwrapping", data)


class Partial(TypedDict, total=False):
    note: str


INVOICE = '{"number": "A7", "items": [{"name": "pen", "price": 2.0}], "total": 2.0}'


def refined(answers, grader=lambda text: 1.0, **settings):
    model = redraft.ScriptedModel(answers)
    return redraft.refine_sync("Extract.", model, grader, **settings), model


# ---- any type, broken in the ways of models

NAMES = [
    "name",
    "total",
    "line_items",
    "due_date",
    "note",
    "answer",
    "value",
    "type",
    "is_paid",
    "größe",
]
TEXTS = st.text(
    st.sampled_from(string.ascii_letters + string.digits + " .,:;'\"\\{}[]()äß漢\n\t`-"),
    max_size=12,
)
DOCUMENTED = st.sampled_from([None, "A field.", 'Say "so": {x}'])


def scalar_types():
    return st.sampled_from(
        [
            (str, TEXTS),
            (int, st.integers(-(10**9), 10**9)),
            (float, st.floats(-1e9, 1e9)),
            (bool, st.booleans()),
            (Literal["a", "b c", "d'e"], st.sampled_from(["a", "b c", "d'e"])),
            (enum.Enum("Colour", {"RED": "red", "BLUE": "blue"}), st.sampled_from(["red", "blue"])),
            (Annotated[int, Field(ge=0, le=9)], st.integers(0, 9)),
            (
                Annotated[str, Field(min_length=2, max_length=20)],
                st.text(string.ascii_letters, min_size=2, max_size=20),
            ),
        ]
    )


def types(depth=2):
    """Types with a strategy of their values as JSON."""
    if depth == 0:
        return scalar_types()
    inner = types(depth - 1)
    return st.one_of(
        scalar_types(),
        inner.map(lambda t: (list[t[0]], st.lists(t[1], max_size=3))),
        inner.map(lambda t: (dict[str, t[0]], st.dictionaries(TEXTS, t[1], max_size=3))),
        inner.map(lambda t: (t[0] | None, st.none() | t[1])),
        st.tuples(models(depth - 1), models(depth - 1)).map(
            lambda p: (p[0][0] | p[1][0], p[0][1] | p[1][1])
        ),
        models(depth - 1),
    )


@st.composite
def models(draw, depth=2):
    """A pydantic model, and a strategy of its values as JSON."""
    fields, values, optional = {}, {}, {}
    for name in draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True)):
        kind, value = draw(types(depth - 1) if depth else scalar_types())
        about = draw(DOCUMENTED)
        if draw(st.integers(0, 4)) == 0:
            fields[name] = (kind | None, Field(default=None, description=about))
            optional[name] = st.none() | value
        else:
            fields[name] = (kind, Field(description=about))
            values[name] = value
    config = {"extra": draw(st.sampled_from(["ignore", "forbid"]))}
    made = create_model(f"Model{draw(st.integers(0, 99))}", __config__=config, **fields)
    return made, st.fixed_dictionaries(values, optional=optional)


def python_style(value):
    """JSON as a model writes it that thinks of Python, but with JSON's words."""
    if isinstance(value, dict):
        return (
            "{" + ", ".join(f"{python_style(k)}: {python_style(v)}" for k, v in value.items()) + "}"
        )
    if isinstance(value, list):
        return "[" + ", ".join(map(python_style, value)) + "]"
    if isinstance(value, str):
        inner = json.dumps(value, ensure_ascii=False)[1:-1].replace('\\"', '"').replace("'", "\\'")
        return f"'{inner}'"
    return json.dumps(value)


def pairs_with_trailing_commas(value):
    if isinstance(value, dict):
        return (
            "{"
            + "".join(
                f"{json.dumps(k)}: {pairs_with_trailing_commas(v)}, " for k, v in value.items()
            )
            + "}"
        )
    if isinstance(value, list):
        return "[" + "".join(f"{pairs_with_trailing_commas(v)}, " for v in value) + "]"
    return json.dumps(value)


FORM_FAULTS = {  # faults that leave every value as it was
    "none": json.dumps,
    "trailing commas": pairs_with_trailing_commas,
    "single quotes": python_style,
    "fence": lambda v: f"```json\n{json.dumps(v, indent=1)}\n```",
    "fence and prose": lambda v: (
        f"Sure! Here it is:\n\n```json\n{json.dumps(v)}\n```\n\nAnything else?"
    ),
    "prose": lambda v: f"Here is the answer you asked for.\n{json.dumps(v)}\nI hope this helps!",
    "thinking": lambda v: f"<think>First {{the}} total.</think>\n{json.dumps(v)}",
    "several": lambda v: f"Here:\n```\n{python_style(v)}\n```",
}


@st.composite
def value_faults(draw, text):
    """A text whose values a model got wrong: cut off, NaN, duplicate keys, several objects, extra
    keys.
    """
    return draw(
        st.sampled_from(
            [
                text[: draw(st.integers(0, max(0, len(text) - 1)))],
                re.sub(r"\d+", "NaN", text, count=1),
                text.replace("{", '{"total": 1, "total": 2, ', 1),
                text.replace("{", '{"unexpected": [1], ', 1),
                f"{text}\n{text.replace('a', 'b')}\n",
                f"```json\n{text}\n```\nor\n```json\n{text.replace('1', '2')}\n```",
                text.replace('"', ""),
                text.replace(":", " =", 1),
                re.sub(r"(\d+)", r'"\1"', text, count=1),
                re.sub(r'"([^"]*)"', r"\1", text, count=1),
            ]
        )
    )


def values_in(text):
    """Return the JSON objects that begin at any brace of a text."""
    found = []
    for match in re.finditer("{", text):
        try:
            found.append(json.JSONDecoder().raw_decode(text, match.start())[0])
        except ValueError:
            continue
    return found


def wrapped(form, value):
    return {form.wrapper_key: value} if form.wrapper_key else value


@pytest.mark.parametrize(
    ("schema", "is_wrapped"),
    [
        ({"anyOf": [{"$ref": "#/anyOf/1"}, {"type": "string"}]}, True),
        ({"anyOf": [{"$ref": "#/anyOf/1"}, {"type": ["string", "object"]}]}, False),
        (
            {"$ref": "#/$defs/a~1b/anyOf/0", "$defs": {"a/b": {"anyOf": [{"type": "object"}]}}},
            False,
        ),
        (
            {
                "allOf": [{"$ref": "#/$defs/a"}],
                "$defs": {"a": {"type": "array", "items": {"$ref": "#"}}},
            },
            True,
        ),
    ],
)
def test_an_answer_is_wrapped_unless_it_may_be_any_object_wherever_a_reference_points(
    schema, is_wrapped
):
    """A reference may point to any place of the schema, also in a list."""
    assert bool(as_answer_form(schema).wrapper_key) == is_wrapped


ROUND_TRIPS = settings(max_examples=200, suppress_health_check=list(HealthCheck))
SOME = settings(max_examples=60, suppress_health_check=list(HealthCheck))


@pytest.mark.slow
@ROUND_TRIPS
@given(st.data())
def test_a_form_fault_is_mended_and_never_changes_the_value(data):
    """With faults of form alone the parsed object equals the original, or there is none; most
    faults are mended.
    """
    kind, values = data.draw(types(2) | models(2))
    value = data.draw(values)
    try:
        original = (
            TypeAdapter(kind).validate_python(value)
            if kind is str
            else TypeAdapter(kind).validate_json(json.dumps(value))
        )
    except ValueError:
        return
    if kind is str:
        return
    form, fault = TypedAnswer(kind), data.draw(st.sampled_from(sorted(FORM_FAULTS)))
    text = FORM_FAULTS[fault](wrapped(form, value))
    result, _ = refined([text, "?"], answer=kind, max_iterations=1)
    assert result.parsed is None or result.parsed == original, (fault, text)
    if fault in ("none", "fence", "fence and prose", "prose", "thinking"):
        assert result.parsed == original, (fault, text)
    if result.parsed is not None:
        assert form.read(result.value) == original


@pytest.mark.slow
@SOME
@given(st.data())
def test_a_wrong_value_is_never_completed_or_converted(data):
    """What is parsed is what the text says literally, as JSON, to pydantic; cut-off answers and
    ambiguous ones are none.
    """
    kind, values = data.draw(models(2))
    value = data.draw(values)
    adapter = TypeAdapter(kind)
    broken = data.draw(value_faults(json.dumps(value)))
    result, _ = refined([broken or " - ", "?"], answer=kind, max_iterations=1)
    if result.parsed is not None:
        literal = read_json(result.value)
        assert result.parsed == adapter.validate_json(result.value)
        literal_texts = (broken, double_backslashes(broken))  # a fault may leave a single backslash
        assert any(literal in values_in(text.replace(", }", "}")) for text in literal_texts), (
            broken,
            result.value,
        )


@pytest.mark.slow
@SOME
@given(st.data())
def test_a_broken_answer_is_refined_to_the_original(data):
    """After any broken first answer, a valid second one is returned; nothing raises."""
    kind, values = data.draw(models(1))
    value = data.draw(values)
    original = TypeAdapter(kind).validate_json(json.dumps(value))
    broken = data.draw(value_faults(json.dumps(value)))
    result, model = refined([broken or "?", json.dumps(value)], answer=kind, max_iterations=1)
    assert result.parsed is not None
    assert model.calls == 1 or result.parsed == original
    assert json.dumps(result.to_dict()["parsed"])


@each_row(
    "text",
    [
        '{"number": "A7", "items": [], "total": 2.0',  # cut off
        '[{"number": "A7", "items": [], "total": 2.0}, {"numb',
        '{"number": "A7", "items": [], "total": 2.0} or {"number": "A7", "items": [], "total": 3.0}',
        '{"number": "A7", "number": "A8", "items": [], "total": 2.0}',
        '{"number": "A7", "items": [], "total": NaN}',
        '{"number": "A7", "items": [], "total": 1e999}',
        '{"number": "A\\x37", "items": [], "total": 2.0,}',
        'Call it with f({"number": "A7", "items": [], "total": 2.0})',
        "{'number': 'A'7', 'items': [], 'total': 2.0}",
        '{"number": "x" "y", "items": [], "total": 2.0}',
        '{"number": "A7", "items": [], "total": 2.0}}',
        "null",
        "",
        "The total is 2.",
        "[" * 100_000,
        '{"number":' * 5000,
    ],
)
def test_what_cannot_be_read_without_doubt_is_no_answer(text):
    """The text is refused, repaired to nothing, and nothing raises."""
    form = TypedAnswer(Invoice)
    with pytest.raises(InvalidAnswer):
        form.read(form.extract(text))
    assert list(form.repairs(form.extract(text))) == []


TOKENS = st.text(st.sampled_from("{}[]:,\"'\\ntu01.e-+ `“”a\n"), max_size=3)
SMALL = st.recursive(
    st.none() | st.booleans() | st.integers(0, 99) | st.sampled_from(["", "a", "n 1"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "t", "u1"]), inner, max_size=3)
    ),
    max_leaves=5,
)


SLIPS = [
    ("}", ",}"),
    ("]", ",]"),
    ('"', "'"),
    ('"', "“"),
    ("true", "True"),
    ("null", "None"),
    (": ", "`:"),
    ("1", "01."),
]


@given(
    SMALL,
    st.lists(st.sampled_from(SLIPS), max_size=2),
    st.integers(0, 30),
    st.sampled_from(["", "", "?"]) | TOKENS,
)
@example({"a": 1}, SLIPS[:1], 0, "")
@example({}, [], 1, "0")
@example([], [], 1, "“\n”")
def test_a_repair_keeps_every_token(value, slips, place, added):
    """Whatever is repaired is valid JSON with the scalars of the text in their order."""
    text = json.dumps(value)
    for right, wrong in slips:
        text = text.replace(right, wrong)
    text = text[:place] + added + text[place:]
    repaired = repaired_json(text)
    if repaired is not None:
        json.loads(repaired)
        words = lambda t: re.findall(r"[^\s{}\[\],:\"'“”`\\]+", t)
        # a line break in a string is escaped
        assert "".join(words(repaired.replace("\\n", "\n"))) in "".join(words(text))


# ---- the kinds of types


@each_row(
    ("answer", "text", "expected"),
    [
        (Invoice, INVOICE, Invoice(number="A7", items=[Item(name="pen", price=2)], total=2)),
        (Point, '{"x": 1}', Point(1)),
        (City, '{"name": "Rome", "people": 3}', {"name": "Rome", "people": 3}),
        (list[Item], '{"answer": [{"name": "pen", "price": 2}]}', [Item(name="pen", price=2)]),
        (list[Item], '[{"name": "pen", "price": 2}]', [Item(name="pen", price=2)]),
        (Item | Point, '{"answer": {"x": 1, "y": 2}}', Point(1, 2)),
        (int, '{"answer": 12}', 12),
        (int, "12", 12),
        (Literal["yes", "no"], '{"answer": "yes"}', "yes"),
        (dict[str, int], '{"answer": 3}', {"answer": 3}),
        (int | dict[str, int], '{"answer": 3}', {"answer": 3}),
        (int | dict[str, int], "3", 3),
        (dict | list, '{"answer": [1]}', {"answer": [1]}),
        (dict | list, "[1]", [1]),
        (Item | Loose, '{"answer": 3}', Loose(answer=3)),
        (Item | Settings, '{"answer": {"level": 3}}', Settings(level=3)),
        ({"required": ["answer"]}, '{"answer": 42}', {"answer": 42}),
        ({"type": ["object", "integer"]}, '{"answer": 42}', {"answer": 42}),
        ({"enum": [{"answer": 42}, 7]}, '{"answer": 42}', {"answer": 42}),
        ({"enum": [{"answer": 42}, 7]}, '{"value": 7}', 7),
        (
            {"anyOf": [{"$ref": "#/$defs/map"}, {"type": "null"}], "$defs": {"map": {}}},
            '{"answer": 42}',
            {"answer": 42},
        ),
        (
            {"anyOf": [{"type": "object", "properties": {"a": {}}}, {"type": "integer"}]},
            '{"answer": 42}',
            {"answer": 42},
        ),
        ({"type": ["integer", "null"]}, '{"answer": 42}', 42),
        ({"type": "array", "items": {"type": "integer"}}, '{"answer": [1, 2]}', [1, 2]),
        (
            {"type": "object", "properties": {"a": {"type": "integer"}}},
            '{"a": 1, "b": 2}',
            {"a": 1, "b": 2},
        ),
    ],
    ids=str,
)
def test_types_and_schemas(answer, text, expected):
    """Models, dataclasses, typed dictionaries, lists, unions, scalars and schemas are read."""
    result, _ = refined([text], answer=answer)
    assert result.parsed == expected
    assert result.to_dict()["parsed"] == json.loads(
        json.dumps(as_answer_form(answer).to_data(expected, result.value))
    )


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (5, "answer must be a type"),
        ("json", "answer must be a type"),
        ("code:", "code:python"),
        (str, "leave it out"),
        ({}, "a JSON schema"),
        ({"type": "nonsense"}, "answer: the schema is not valid"),
        ({"type": "object", "x": {1}}, "answer: the schema is not JSON"),
        (Invoice(number="1", items=[], total=1), "answer must be a type"),
    ],
    ids=repr,
)
def test_what_is_no_form_is_refused(answer, words):
    """The error names the argument, before any call."""
    model = redraft.ScriptedModel(["x"])
    with pytest.raises(ConfigError, match=re.escape(words)):
        redraft.refine_sync("q", model, "words:1", answer=answer)
    assert model.calls == 0


def test_a_schema_that_is_sent_is_strict():
    """The schema of a type is closed and requires every field; one of the user is sent as it is."""
    for kind in (Invoice, list[Item], Item | Point, Point, int):
        schema = TypedAnswer(kind).schema
        assert schema["type"] == "object" and is_strict_schema(schema), schema
    own = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert as_answer_form(own).schema == own and not is_strict_schema(own)


def test_the_prompt_holds_the_schema_with_its_descriptions_once():
    """The first prompt has it; a refinement has it only there, and names what is wrong."""
    result, model = refined(
        ['{"number": "A7", "items": [{"name": "pen", "price": "much"}], "total": -1}', INVOICE],
        answer=Invoice,
    )
    assert result.parsed.total == 2
    first, second = (json.dumps(messages) for messages in model.messages)
    assert (
        "in EUR" in first
        and first.count("exclusiveMinimum") == second.count("exclusiveMinimum") == 1
    )
    advice = model.messages[1][-1]["content"]
    assert "items[0].price: Input should be a valid number" in advice and "got 'much'" in advice
    assert "total: Input should be greater than 0, got -1" in advice


def test_errors_are_bounded_and_hold_no_control_characters():
    """A model cannot fill the next prompt, or write escape sequences into it."""
    text = json.dumps(
        {"number": 5, "items": [{"\x1b[31m": "\x1b[2J" * 500}] * 200, "total": "\x1b]0;x\x07"}
    )
    with pytest.raises(InvalidAnswer) as caught:
        TypedAnswer(Invoice).read(text)
    assert len(caught.value.errors) <= 21 and all(len(line) <= 300 for line in caught.value.errors)
    assert "\x1b" not in "".join(caught.value.errors)


def test_a_truncated_answer_is_not_valid():
    """An answer that was cut off at the token limit is none, however complete it looks."""
    result, _ = refined([Reply(INVOICE, finish_reason="length")], answer=Invoice, max_iterations=0)
    assert result.parsed is None and result.broken_musts == ["answer"]


# ---- graders


def grade_any(answer: BaseModel) -> float:
    return float(isinstance(answer, Invoice))


def grade_invoice(answer: Invoice) -> float:
    return float(sum(item.price for item in answer.items) == answer.total)


def grade_named(answer: "Invoice", task: redraft.Task) -> float:
    return float(isinstance(answer, Invoice) and isinstance(task, redraft.Task))


async def grade_async(answer: Invoice) -> float:
    return float(isinstance(answer, Invoice))


class GradeObject:
    def __call__(self, answer: Invoice) -> float:
        return float(isinstance(answer, Invoice))


def grade_text(text: str) -> float:
    return float(isinstance(text, str))


@pytest.mark.parametrize(
    "grader",
    [
        grade_any,
        grade_invoice,
        grade_named,
        grade_async,
        GradeObject(),
        grade_text,
        lambda text: isinstance(text, str),
    ],
)
def test_graders_of_the_type_receive_the_object(grader):
    """Functions annotated with the type, or a base of it, get the object, others the text; also
    inside other graders.
    """
    from redraft.graders import Minimum

    for each in (
        grader,
        redraft.must(grader),
        redraft.with_weight(grader, 2),
        Minimum([grader, "json"]),
    ):
        result, _ = refined([INVOICE], each, answer=Invoice)
        assert result.score == 1


def test_graders_of_the_type_never_see_an_invalid_object():
    """An invalid answer scores 0, the function is not called, and the trace says why; the next
    answer is graded.
    """
    seen = []

    def grader(answer: Invoice) -> float:
        seen.append(answer)
        return 1.0

    result, _ = refined(['{"number": 1}', INVOICE], grader, answer=Invoice)
    assert [type(each) for each in seen] == [Invoice] and result.score == 1
    assert "not valid as Invoice" in result.trace.feedback[0][1].reason


def model_whose_validator_raises(error):
    """Return a type whose validator accepts 1 and raises for other numbers."""

    class Odd(BaseModel):
        n: int

        @field_validator("n")
        @classmethod
        def look_up(cls, n: int) -> int:
            if n != 1:
                raise error
            return n

    return Odd


FAULTS = [
    KeyError(2),
    IndexError("no such index"),
    AttributeError("no name"),
    TypeError("wrong"),
    ZeroDivisionError("by 0"),
    RecursionError("too deep"),
    ConnectionError("no database"),
    NotImplementedError("later"),
    StopIteration(),
    LookupError("none"),
    RuntimeError("closed"),
]


@each_row("error", FAULTS, ids=lambda error: type(error).__name__)
@each_row("noise_aware", [False, True])
def test_a_fault_of_a_validator_ends_the_run(error, noise_aware):
    """No further answer is asked for. The error names the class, the validator, the kind of error
    and the line.
    """
    model, kind = redraft.ScriptedModel(['{"n": 2}'] * 9), model_whose_validator_raises(error)
    with pytest.raises(GradingError) as caught:
        redraft.refine_sync(
            "q", model, lambda text: 0.5, answer=kind, max_iterations=5, noise_aware=noise_aware
        )
    where = rf"a validator of Odd raised {type(error).__name__}.*\(in look_up, test_answers.py line \d+\); that is a fault of the code"
    assert re.search(where, str(caught.value)) and isinstance(
        caught.value.__cause__, ValidatorError
    )
    assert (model.calls, caught.value.result.value, caught.value.result.parsed) == (
        1,
        '{"n": 2}',
        None,
    )


def test_the_best_answer_before_a_fault_of_a_validator_is_kept():
    """The run ends there, has not converged, and says why."""
    kind = model_whose_validator_raises(KeyError("n"))
    result, model = refined(
        ['{"n": 1}', *['{"n": 2}'] * 5], lambda text: 0.5, answer=kind, max_iterations=5
    )
    assert (result.parsed.n, result.stop, result.converged, model.calls) == (
        1,
        "failed",
        False,
        2,
    )
    assert "a validator of Odd raised KeyError: 'n' (in look_up" in result.stop_note


@pytest.mark.parametrize(
    "error",
    [
        ValueError("only 1"),
        AssertionError("only 1"),
        PydanticCustomError("one", "only 1"),
        UnicodeError("only 1"),
    ],
    ids=repr,
)
def test_a_validation_error_is_of_the_answer(error):
    """The next prompt holds its words, and the run goes on."""
    result, model = refined(
        ['{"n": 2}', '{"n": 1}'], answer=model_whose_validator_raises(error), max_iterations=3
    )
    assert (result.parsed.n, model.calls, len(result.trace.failures)) == (1, 2, 0)
    assert "only 1, got 2" in model.messages[1][-1]["content"]


async def test_a_fault_of_a_validator_fails_one_row(tmp_path):
    """The other rows of a batch go on, and those of `grade_many` say whose fault it is."""
    kind, out = model_whose_validator_raises(KeyError("n")), tmp_path / "out.jsonl"
    rows = [{"prompt": f'{{"n": {n}}}'} for n in (1, 2)]
    await redraft.batch(
        rows, out, lambda messages: messages[0]["content"][:8], lambda text: 1.0, answer=kind
    )
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["parsed"] for row in rows] == [{"n": 1}, None]
    assert rows[0]["error"] is None and "a validator of Odd raised KeyError" in rows[1]["error"]
    report = await redraft.grade(("q", '{"n": 2}'), ["json"], answer=kind)
    assert "a validator of Odd raised KeyError" in next(iter(report.failures.values())).message


class Calls:
    def method(self, text: str) -> float:
        return 1.0


def grader(text: str) -> float:
    return 1.0


@pytest.mark.parametrize(
    "answer",
    [
        grader,
        lambda text: 1.0,
        Calls().method,
        Calls.method,
        functools.partial(grader),
        functools.lru_cache(grader),
        len,
        [].append,
        str.upper,
        list[grader],
        Annotated[grader, "x"],
        dict[str, list[grader]],
    ],
    ids=[
        "function",
        "lambda",
        "bound",
        "method",
        "partial",
        "cached",
        "built-in",
        "built-in method",
        "of a type",
        "list",
        "annotated",
        "dict",
    ],
)
def test_a_function_is_no_type(answer):
    """Pydantic would call it with the answer. It is refused with the place for functions, before
    any call.
    """
    model = redraft.ScriptedModel(['{"text": "x"}'])
    with pytest.raises(
        ConfigError,
        match=r"^answer: .* is a function and no type; .* belongs to graders \(--grader\)",
    ):
        redraft.refine_sync("q", model, answer=answer)
    assert model.calls == 0


def test_messages_about_types_have_no_words_of_pydantic():
    """Neither the error of what is no type, nor the name of a type."""
    for answer in (5, Calls(), Calls, dict[str, Calls]):
        with pytest.raises(ConfigError, match="answer must be a type") as caught:
            as_answer_form(answer)
        assert not any(
            word in str(caught.value) for word in ("arbitrary_types", "__get_pydantic", "handler")
        ), caught.value
    assert as_answer_form(list[Annotated[str, Field(max_length=3)]]).name == "list[str]"
    assert as_answer_form(Annotated[Literal["a"], Field()] | None).name == "Optional[Literal['a']]"


DEFS = {"$defs": {"a": {"type": "string"}}}


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"$ref": "#/$defs/X"}, "$.$ref: there is no '#/$defs/X' in the schema"),
        (
            {**DEFS, "properties": {"x": {"anyOf": [{"$ref": "#/$defs/X"}]}}},
            "$.properties.x.anyOf[0].$ref: there is no '#/$defs/X'",
        ),
        (
            {**DEFS, "properties": {"x": {"$ref": "#/$defs/a/b"}}},
            "$.properties.x.$ref: there is no '#/$defs/a/b'",
        ),
        ({**DEFS, "items": {"$ref": "#anchor"}}, "$.items.$ref: there is no '#anchor'"),
        (
            {"properties": {"x": {"$ref": "#/type/0"}}, "type": "object"},
            "$.properties.x.$ref: there is no '#/type/0'",
        ),
        (
            {"items": {"$ref": "#/kept/x"}, "kept": {"x": {"not": {"$ref": "#/none"}}}},
            "$.kept.x.not.$ref: there is no '#/none'",
        ),
        ({"allOf": [{"$dynamicRef": "#x"}]}, "$.allOf[0].$dynamicRef: there is no '#x'"),
        (
            {"items": {"$ref": "https://example.org/a.json"}},
            "'https://example.org/a.json' is outside the schema",
        ),
        ({"$ref": "file:///etc/passwd"}, "'file:///etc/passwd' is outside the schema"),
        ({"$ref": "other.json#/$defs/a"}, "'other.json#/$defs/a' is outside the schema"),
        (
            {
                "$schema": "http://json-schema.org/draft-07/schema#",
                "items": {"$ref": "#/definitions/a"},
            },
            "no '#/definitions/a'",
        ),
    ],
    ids=str,
)
def test_a_reference_that_cannot_be_followed_is_refused(schema, words, tmp_path):
    """The error says which, where and why, before any call: of an answer, and of a requirement from
    a file or in place.
    """
    model = redraft.ScriptedModel(["x"])
    file = tmp_path / "schema.json"
    file.write_text(json.dumps({"type": "object", **schema}))
    for demand in (
        {"answer": schema},
        {"graders": f"json_schema:{json.dumps(schema)}"},
        {"graders": f"json_schema:{file}"},
    ):
        with pytest.raises(ConfigError, match=re.escape(words)):
            redraft.refine_sync("q", model, **demand)
    with pytest.raises(ConfigError, match=rf"--schema: .*{re.escape(words)}"):
        canonical_schema(str(file))
    assert model.calls == 0


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {"$ref": "#"}},
        {**DEFS, "items": {"$ref": "#/$defs/a"}},
        {
            "$id": "http://a.org/b",
            "items": {"$ref": "c"},
            "$defs": {"c": {"$id": "c", "type": "string"}},
        },
        {"items": {"$ref": "#x"}, "$defs": {"c": {"$anchor": "x"}}},
        {"properties": {"$ref": {"type": "string"}}},
        {"items": {"enum": [{"$ref": "#/$defs/X"}]}, "default": {"$ref": "#/$defs/X"}},
    ],
    ids=str,
)
def test_a_reference_within_the_schema_is_followed(schema):
    """Pointers, anchors and IDs are; what only looks like a reference is data."""
    assert as_answer_form({"type": ["array", "object"], **schema}).read("[]") == []


# ---- fields that change without being asked


def check_total(answer: Invoice) -> redraft.Feedback:
    return (
        redraft.Feedback(1.0)
        if answer.total == 3
        else redraft.Feedback(0.5, "The total is wrong.", ["Correct the total."])
    )


def test_a_field_that_changes_unasked_is_reported():
    """The next prompt and the result name it; the field that was to change is not named."""
    first = Invoice(number="A7", items=[Item(name="pen", price=2)], total=2)
    second = first.model_copy(update={"number": "B8", "total": 4})
    third = second.model_copy(update={"number": "B8", "total": 3})
    result, model = refined(
        [each.model_dump_json() for each in (first, second, third)], check_total, answer=Invoice
    )
    assert result.parsed == third
    assert (
        'changing a field that was right: number: was "A7", now "B8"'
        in model.messages[2][-1]["content"]
    )
    assert "total: was" not in model.messages[2][-1]["content"]
    assert result.changed_fields == ['number: was "A7", now "B8"']
    assert "changed without being asked: number" in result.summary()


@pytest.mark.parametrize(
    ("advice", "changes"),
    [
        ("Correct the total.", ["number", "items[0].name"]),
        ("Make it better.", []),
        ("The number and the items are wrong.", ["total"]),
    ],
)
def test_what_feedback_names_may_change(advice, changes):
    """Fields are challenged by name; feedback that names no field leaves all of them free."""
    first = Invoice(number="A7", items=[Item(name="pen", price=2)], total=2)
    second = Invoice(number="B8", items=[Item(name="cup", price=2)], total=3)

    def grader(answer: Invoice) -> redraft.Feedback:
        return redraft.Feedback(0.5, actions=[advice]) if answer == first else redraft.Feedback(1.0)

    result, _ = refined([first.model_dump_json(), second.model_dump_json()], grader, answer=Invoice)
    assert [change.partition(": was")[0] for change in result.changed_fields] == changes


WORDS = "The total is wrong."
NAMING_THE_TOTAL, NAMING_NOTHING = ["number", "items[0].name"], []  # fields that are reported
CRITERION = redraft.CriterionScore
FAULTS = {
    "reason": (redraft.Feedback(0.5, WORDS), NAMING_THE_TOTAL),
    "action": (redraft.Feedback(0.5, actions=[WORDS]), NAMING_THE_TOTAL),
    "action of a criterion": (
        redraft.Feedback(0.5, criteria=[CRITERION("sums", 0.5, action=WORDS)]),
        NAMING_THE_TOTAL,
    ),
    "evidence of a criterion": (
        redraft.Feedback(0.5, criteria=[CRITERION("sums", 0.5, WORDS)]),
        NAMING_THE_TOTAL,
    ),
    "two criteria": (
        redraft.Feedback(
            0.5,
            criteria=[
                CRITERION("sums", 0.5, WORDS),
                CRITERION("names", 0.5, action="Correct the number."),
            ],
        ),
        ["items[0].name"],
    ),
    "a criterion of an answer that is right": (
        redraft.Feedback(1.0, WORDS, criteria=[CRITERION("sums", 0.5, action="The items.")]),
        ["number", "total"],
    ),
    "a criterion that is met": (
        redraft.Feedback(0.5, "Not yet.", criteria=[CRITERION("sums", 1.0, WORDS, WORDS)]),
        NAMING_NOTHING,
    ),
    "name of a criterion": (
        redraft.Feedback(0.5, criteria=[CRITERION("the total", 0.5)]),
        NAMING_NOTHING,
    ),
    "an answer that is right": (redraft.Feedback(1.0, WORDS, [WORDS]), NAMING_NOTHING),
}


@pytest.mark.parametrize(("feedback", "changes"), FAULTS.values(), ids=FAULTS)
def test_fields_are_named_wherever_feedback_finds_fault(feedback, changes):
    """In its reason, its actions, and the evidence and the action of each criterion; not where all
    is right.
    """
    first = Invoice(number="A7", items=[Item(name="pen", price=2)], total=2)
    second = Invoice(number="B8", items=[Item(name="cup", price=2)], total=3)

    def grader(answer: Invoice) -> redraft.Feedback:
        return feedback if answer == first else redraft.Feedback(1.0)

    def asks_for_more(answer: Invoice) -> redraft.Feedback:
        return redraft.Feedback(0.5 if answer == first else 1.0)

    result, _ = refined(
        [first.model_dump_json(), second.model_dump_json()],
        [grader, asks_for_more],
        answer=Invoice,
    )
    assert [change.partition(": was")[0] for change in result.changed_fields] == changes


@pytest.mark.parametrize(
    ("advice", "changes"),
    [
        ("Remplacez crème brûlée.", ['city: was "東京都", now "京都府"']),
        ("東京都は間違いです。", ['dish: was "crème brûlée", now "---"']),
        ("都市名を直してください。", []),
        ("", []),
    ],
)
def test_fields_in_any_script_are_found_in_feedback(advice, changes):
    """And shown as they are written, not as escapes."""
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string"}, "dish": {"type": "string"}},
    }
    first, second = (
        '{"city": "東京都", "dish": "crème brûlée"}',
        '{"city": "京都府", "dish": "---"}',
    )

    def grader(text: str) -> redraft.Feedback:
        return (
            redraft.Feedback(0.5, actions=[advice] if advice else [])
            if text == first
            else redraft.Feedback(1.0)
        )

    result, _ = refined([first, second], grader, answer=schema)
    assert result.changed_fields == changes


# ---- code


@each_row(
    ("text", "code"),
    [
        ("print(1)", "print(1)"),
        ("```python\nprint(1)\n```", "print(1)"),
        ("Sure!\n```py\nprint(1)\n```\nDone.", "print(1)"),
        ("~~~Python\nprint(1)\n~~~", "print(1)"),
        (
            "First:\n```bash\npip install a-very-long-package-name\n```\n```python\nprint(1)\n```",
            "print(1)",
        ),
        (
            "```python\ndef f():\n    return 1\n```\nUsage:\n```python\nf()\n```",
            "def f():\n    return 1",
        ),
        ("```python\nprint(1)\n```\nBetter:\n```python\nprint(2)\n```", "print(2)"),
        ("```python\nthis is not python at all\n```\n```python\nprint(2)\n```", "print(2)"),
        ("```\nprint(1)\n```", "print(1)"),
        ("1. Do this:\n   ```python\n   if x:\n       y()\n   ```", "if x:\n    y()"),
        ('```python\nDOC = """\n```\nx\n```\n"""\n```', 'DOC = """\n```\nx\n```\n"""'),
        ("```python\nprint(1)", "print(1)"),
        ("`print(1)`", "print(1)"),
        ("    x = 1\n    return x\n", "    x = 1\n    return x"),
        (
            "    if a > b:\n        return a\n    return b",
            "    if a > b:\n        return a\n    return b",
        ),
        (
            "if a > b:\n        return a\n    return b",
            "    if a > b:\n        return a\n    return b",
        ),
        ("    def f(x):\n        return x", "def f(x):\n    return x"),
        ("```python\n    x = 1\n    return x\n```", "    x = 1\n    return x"),
        ('x = """\n  a\n   \n"""', 'x = """\n  a\n   \n"""'),
        ("````python\nprint('```')\n````", "print('```')"),
    ],
)
def test_code_is_extracted(text, code):
    """The longest block of the language, or the whole text, is the answer: as value, as parsed, and
    for graders.
    """
    seen = []
    result, _ = refined([text], lambda text: seen.append(text) or 1.0, answer="code:python")
    assert (result.value, result.parsed, seen) == (code, code, [code])


def test_code_with_an_error_of_syntax_is_refined():
    """The line is named, and the prompt asks for code."""
    replies = ["Here you are: use a loop.", "def f(:\n  pass", "x = 1"]
    result, model = refined(replies, answer="code:python", max_iterations=2, editor=False)
    assert result.parsed == "x = 1"
    assert (
        "line 1" in model.messages[1][-1]["content"]
        and "code in one code block" in model.messages[0][-1]["content"]
    )
    assert refined(["nonsense ("], answer="code:python", max_iterations=0)[0].parsed is None
    assert refined(["fn main() {"], answer="code:rust")[0].parsed == "fn main() {"


@given(st.text(st.sampled_from("`~\n pythonx=1():\t'\""), max_size=80))
def test_extracting_code_never_fails(text):
    """Any text gives code that is in it."""
    code = CodeAnswer("python").extract(text)
    assert "".join(code.split()) in "".join(text.split())


# ---- requests, resuming, fingerprints


def test_a_schema_goes_to_models_that_take_one_and_steps_down():
    """An endpoint that refuses the format gets the next one; with tools there is no schema."""
    formats = []

    class Picky:
        name, identity, formats = "picky", "picky", ("json_schema", "json_object", "text")

        async def complete(self, request):
            formats.append((request.format, request.schema is not None))
            if request.format == "json_schema":
                raise redraft.errors.BadResponseError(
                    "status 400: response_format json_schema is not supported", status=400
                )
            return Reply(INVOICE)

    result = redraft.refine_sync("q", Picky(), "json", answer=Invoice)
    assert result.parsed.total == 2
    assert formats == [("json_schema", True), ("json_object", True)]


class Choice(BaseModel):
    colour: Literal["red", "blue"] = Field(description="the colour of the sky")
    sure: bool = True
    marks: list[Literal[1, 2]] = Field(max_length=2)


PATTERN = {
    "type": "object",
    "properties": {"a": {"type": "string", "pattern": "(?=x)y"}},
    "required": ["a"],
}


@pytest.mark.parametrize(
    "answer", [Choice, list[Choice], Choice | Literal["none"], Literal["a", "b"]], ids=str
)
def test_a_real_server_answers_in_the_schema(answer, plain_server):
    """A model of random weights, held to the schema by llama.cpp's server, gives a value of the
    type.
    """
    if answer == list[Choice]:
        answer = Annotated[list[Choice], Field(max_length=1)]
    result = redraft.refine_sync(
        "Which colour is the sky?",
        plain_server,
        [],
        answer=answer,
        max_iterations=0,
        max_tokens=500,
    )
    assert (
        result.parsed is not None
        and TypeAdapter(answer).validate_json(result.value) == result.parsed
    )
    assert result.usage.calls == 1 and result.score == 1


def test_a_real_server_that_refuses_a_schema_is_asked_without(plain_server):
    """The server cannot follow every pattern; the run goes on with a less strict format, and says
    what is wrong.
    """
    result = redraft.refine_sync(
        "q", plain_server, [], answer=PATTERN, max_iterations=0, max_tokens=30
    )
    assert (
        result.parsed is None
        and len(result.trace.candidates) >= 1
        and result.broken_musts == ["answer"]
    )


def test_tools_and_a_form_go_together():
    """A task with tools is asked without a schema, and an answer that calls tools is returned as
    ever.
    """
    from redraft.loop.records import ToolCall

    tool = {
        "type": "function",
        "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}},
    }
    model = redraft.ScriptedModel([Reply("", tool_calls=(ToolCall("look_up"),))])
    result = redraft.refine_sync(redraft.Task("q", tools=[tool]), model, "json", answer=Invoice)
    assert (
        result.stop == "tool_calls" and result.parsed is None and model.requests[0].schema is None
    )


def test_a_given_response_is_checked_and_repaired_for_free():
    """Without a model, the form of a given answer is repaired."""
    given = INVOICE.replace("2.0}", "2.0,}")
    result = redraft.refine_sync(redraft.Task("q", response=given), False, [], answer=Invoice)
    assert result.parsed.total == 2 and result.usage.calls == 0
    assert len(result.trace.best.note) < 200


def test_a_trace_continues_with_the_same_form_only():
    """With an equal type no call is made; another form, or none before, is an error that says what
    to do.
    """
    result, _ = refined([INVOICE], answer=Invoice)
    model = redraft.ScriptedModel([])
    again = redraft.refine_sync(
        redraft.Trace.from_json(result.trace.to_json()), model, lambda text: 1.0, answer=Invoice
    )
    assert again.parsed == result.parsed and model.calls == 0
    for answer in (Point, "code:python"):
        with pytest.raises(ConfigError, match="made with another form"):
            redraft.refine_sync(result.trace, model, "json", answer=answer)
    plain = redraft.refine_sync("q", redraft.ScriptedModel(["{}"]), "json")
    with pytest.raises(ConfigError, match="made with no form"):
        redraft.refine_sync(plain.trace, model, "json", answer=Point)


def test_the_fingerprint_covers_schema_and_validators():
    """It changes with a field and with the code of a validator, and is equal for an equal type,
    also after pickling.
    """

    def make(limit):
        namespace = {}
        exec(f"def check(cls, n):\n    assert n < {limit}\n    return n", namespace)
        return create_model(
            "M", n=(int, ...), __validators__={"v": field_validator("n")(namespace["check"])}
        )

    digests = [
        TypedAnswer(kind).fingerprint
        for kind in (make(5), make(5), make(6), create_model("M", n=(int, ...)), Point)
    ]
    assert digests[0] == digests[1] and len(set(digests)) == 4
    for form in (TypedAnswer(Invoice), SchemaAnswer({"type": "array"}), CodeAnswer("python")):
        assert pickle.loads(pickle.dumps(form)).fingerprint == form.fingerprint


def test_many_tasks_and_streams_take_a_form():
    """The other entry points take it, too."""

    async def main():
        model = redraft.ScriptedModel([INVOICE, INVOICE, INVOICE])
        results = await redraft.refine_many(["a", "b"], model, "json", answer=Invoice)
        traces = [trace async for trace in redraft.stream("c", model, "json", answer=Invoice)]
        return results, traces

    results, traces = asyncio.run(main())
    assert [result.parsed.total for result in results] == [2, 2] and traces[-1].score == 1


def test_without_a_form_nothing_is_parsed():
    """`parsed` is None, and `to_dict` has no such key."""
    result, _ = refined([INVOICE])
    assert result.parsed is None and "parsed" not in result.to_dict()


def test_without_pydantic_the_error_names_the_extra(monkeypatch):
    """A schema works without it."""
    import sys

    monkeypatch.setitem(sys.modules, "pydantic", None)
    with pytest.raises(ConfigError, match=re.escape("pip install 'redraft[typed]'")):
        redraft.refine_sync("q", redraft.ScriptedModel([]), "json", answer=Point)
    assert refined(['{"a": 1}'], answer={"type": "object"})[0].parsed == {"a": 1}


# ---- time

HOSTILE_TEXTS = {
    "spaces in a fence": "```\n" + " " * 150_000 + "x```y",
    "an open fence, and spaces": "```json\n{" + " " * 150_000 + "x",
    "only tildes": "~" * 150_000,
    "only backticks": "`" * 150_000,
    "lines of tildes": ("~" * 5_000 + "\n") * 30,
    "spaces before a backtick": "```python" + " " * 150_000 + "`",
    "fences in a line": "```\n{" + "\n ``` x" * 20_000,
    "many fences": "```\n{\n" * 20_000,
    "long code in many blocks": "".join(
        f"```python\n{'x = [1, 2, 3]' + chr(10)}{'y = 1' + chr(10) * 100_000}```\n"
        for _ in range(40)
    ),
    "texts of code that hold fences": "```python\nx = '''\n"
    + ("y = [1, 2, 3]\n" * 300 + "```\n```python\n'''\n") * 50,
    "quotes that do not end": '{"a": "' + '"x' * 70_000,
    "backslashes": '{"a": "' + "\\" * 150_000,
}


@pytest.mark.slow(but_each=6)
@pytest.mark.parametrize("text", HOSTILE_TEXTS.values(), ids=HOSTILE_TEXTS)
@pytest.mark.parametrize(
    "form",
    [SchemaAnswer({"type": "object"}), TypedAnswer(list[int]), CodeAnswer("python")],
    ids=lambda f: f.name,
)
def test_no_text_takes_long(form, text):
    """What a model writes is extracted, read and repaired in time in proportion to its length."""
    started = time.process_time()
    with suppress(InvalidAnswer):
        form.read(form.extract(text))
    list(form.repairs(text))
    assert time.process_time() - started < 5


DOUBLING = {f"s{n}": {"allOf": [{"$ref": f"#/$defs/s{n + 1}"}] * 2} for n in range(25)} | {
    "s25": {"type": "integer"}
}
TREE = {
    "t": {
        "type": "object",
        "properties": {"c": {"anyOf": [{"$ref": "#/$defs/t"}] * 2}},
        "additionalProperties": False,
    }
}
TIMELY_SCHEMAS = [
    ({"$defs": DOUBLING, "$ref": "#/$defs/s0"}, "1"),
    ({"$defs": TREE, "$ref": "#/$defs/t"}, '{"c":' * 20 + '{"x":1}' + "}" * 20),
    ({"items": {"pattern": "^(a|aa)+$"}}, json.dumps(["a" * 5000 + "!"])),
]


@pytest.mark.slow
@pytest.mark.parametrize(("schema", "text"), TIMELY_SCHEMAS)
def test_a_schema_that_takes_too_long_is_not_met(schema, text):
    """A schema with exponential costs has a time limit, and an answer that was not checked in time
    is not valid.
    """
    with pytest.raises(InvalidAnswer, match="could not be checked in time"):
        as_answer_form(schema).read(text)


def test_a_recursive_schema_of_ordinary_answers_is_checked():
    """The limit changes no verdict: a tree is valid, and its errors name their paths."""
    form = as_answer_form({"$defs": TREE, "$ref": "#/$defs/t"})
    assert form.read('{"c": {"c": {}}}') == {"c": {"c": {}}}
    with pytest.raises(InvalidAnswer, match=r"\$\.c: "):
        form.read('{"c": {"x": 1}}')


def test_a_slow_validator_does_not_stop_other_work():
    """A validator of the user runs beside the event loop, for the form and for graders of the
    type.
    """

    class Slow(BaseModel):
        n: int

        @field_validator("n")
        @classmethod
        def wait(cls, n):
            time.sleep(0.4)
            return n

    def grader(answer: Slow):
        return 1.0

    async def longest_pause():
        work = asyncio.ensure_future(
            redraft.refine("x", redraft.ScriptedModel(['{"n": 1}']), grader, answer=Slow)
        )
        pauses = []
        while not work.done():
            started = time.monotonic()
            await asyncio.sleep(0.01)
            pauses.append(time.monotonic() - started)
        assert (await work).score == 1
        return max(pauses)

    assert asyncio.run(longest_pause()) < 0.3


@pytest.mark.slow
@pytest.mark.parametrize("answer", [TypeAdapter(dict[str, list[str]]), {"type": "object"}])
@pytest.mark.parametrize("requirements", [[], ["words:1-20000"]])
def test_the_form_of_a_long_answer_is_repaired(answer, requirements):
    """Texts that requirements check in a worker have their form repaired all the same."""
    value = {"words": ["word"] * 4000}
    model = redraft.ScriptedModel([json.dumps(value)[:-1] + ",}"])
    task = redraft.Task("List words.", requirements=requirements)
    result = redraft.refine_sync(task, model, lambda text: 1.0, answer=answer, max_iterations=1)
    assert result.parsed == value and result.usage.calls == 1 and not result.trace.failures


class Aliased(BaseModel):
    """A field that is read under another name than it is written under."""

    total: int = Field(validation_alias="Total")


class OptionalAlias(BaseModel):
    """The same, with a default, so that a wrong name would silently mean the default."""

    total: int = Field(0, validation_alias=AliasChoices("sum", "Total"))


class BothAliases(BaseModel):
    total: int = Field(validation_alias="Total", serialization_alias="TOTAL")


class Excluded(BaseModel):
    total: int = Field(alias="Total", exclude=True)


class Computed(BaseModel, extra="forbid"):
    total: int = Field(alias="Total")

    @computed_field
    def double(self) -> int:
        return 2 * self.total


class WrittenAsText(BaseModel):
    total: int = Field(alias="Total")

    @field_serializer("total")
    def write(self, total: int) -> str:
        return f"{total} euros"


class Incremented(BaseModel):
    """A validator that gives another value when what it returned is read again."""

    total: int = Field(alias="Total")

    @field_validator("total")
    @classmethod
    def increment(cls, total: int) -> int:
        return total + 1


@pytest.mark.parametrize(
    "answer", [Aliased, OptionalAlias, BothAliases, Excluded, Computed, WrittenAsText, Incremented]
)
def test_the_parsed_data_is_read_as_the_same_value(answer, tmp_path):
    """In `to_dict` and in batches, whatever names and serializers a type has."""
    result, _ = refined(['{"Total": 3}'], answer=answer)
    data = result.to_dict()["parsed"]
    assert answer.model_validate_json(json.dumps(data)) == result.parsed
    out = tmp_path / "out.jsonl"
    redraft.batch_sync(
        [{"prompt": "q"}],
        out,
        redraft.ScriptedModel(['{"Total": 3}']),
        lambda text: 1.0,
        answer=answer,
    )
    parsed = json.loads(out.read_text())["parsed"]
    assert (json.loads(parsed) if isinstance(parsed, str) else parsed) == data


@pytest.mark.parametrize(
    "settings",
    [{}, {"draft_prompt": "Q: {prompt}"}, {"refine_prompt": "Improve: {response}"}],
    ids=str,
)
@pytest.mark.parametrize(
    "replies",
    [['{"name": "pen", "price": 2}', '{"name": "ink", "price": 3}'], ["no JSON at all"] * 2],
)
def test_a_schema_is_said_once(settings, replies):
    """No request holds it twice; a refinement by a template repeats it only to a model whose answer
    does not follow it.
    """
    _, model = refined(
        replies,
        lambda text: redraft.Feedback(0.1, actions=["More."]),
        answer=Item,
        max_iterations=1,
        **settings,
    )
    counts = [
        str(request.messages).count(json.dumps(SCHEMA_HEADING)[1:-1]) for request in model.requests
    ]
    own_and_valid = "refine_prompt" in settings and replies[0].startswith("{")
    assert counts == [1, 0 if own_and_valid else 1]


# ---- functions that expect the object and get the text


def takes_attribute(answer):
    return float(answer.total == 2)


async def takes_attribute_later(answer):
    return float(answer.total == 2)


def takes_item(answer):
    return float(answer["total"] == 2)


def sets_item(answer):
    answer["total"] = 2
    return 1.0


INVOICE_SCHEMA = {"title": "Bill", "type": "object", "required": ["total"]}


@pytest.mark.parametrize(
    "grader",
    [
        lambda answer: answer.total == 2,
        takes_attribute,
        takes_attribute_later,
        takes_item,
        sets_item,
    ],
)
@pytest.mark.parametrize(
    ("answer", "annotation"),
    [
        (Invoice, "Invoice"),
        (INVOICE_SCHEMA, "dict"),
        (list[Invoice] | Invoice, "list[Invoice] | Invoice"),
    ],
)
async def test_a_function_that_takes_the_text_for_the_object_is_told_what_to_do(
    grader, answer, annotation
):
    """The failure says that the first parameter must be annotated."""
    report = await redraft.grade(("q", INVOICE), ["json", grader], answer=answer)
    [failure] = report.failures.values()
    assert (
        f"only a function whose first parameter is annotated, as in `def grade(answer: {annotation})`"
        in failure.message
    )


@pytest.mark.parametrize(
    ("answer", "grader"),
    [
        (None, takes_attribute),
        ("code:python", takes_attribute),
        (Invoice, lambda text: len(None)),
        (Invoice, lambda text: [].total),
    ],
)
async def test_other_errors_have_no_such_hint(answer, grader):
    """Without a form, for code, and where another value lacks the attribute."""
    report = await redraft.grade(("q", INVOICE), ["json", grader], answer=answer)
    [failure] = report.failures.values()
    assert "annotated" not in failure.message


def takes_invoice_and_fails(answer: Invoice):
    return "text".total


async def test_an_annotated_function_has_no_such_hint():
    """It was given the object."""
    report = await redraft.grade(("q", INVOICE), [takes_invoice_and_fails], answer=Invoice)
    [failure] = report.failures.values()
    assert "'str' object has no attribute" in failure.message and "annotated" not in failure.message


# ---- wrappers


class Order(BaseModel):
    a: int
    b: list[str]


class Strict(Order, extra="forbid"):
    c: int = 0


class Node(BaseModel):
    name: str
    children: "list[Node]"


ORDER, OTHER = '{"a": 1, "b": ["x"]}', '{"a": 2, "b": []}'
ORDER_SCHEMA = {
    "title": "Order",
    "type": "object",
    "required": ["a", "b"],
    "properties": {"a": {"type": "integer"}},
}
WRAPPERS = {
    "the name of the class": '{"Order": %s}',
    "the name in lower case": '{"order": %s}',
    "a common name": '{"result": %s}',
    "another common name": '{"data": %s}',
    "an answer": '{"answer": %s}',
    "values in a schema": '{"properties": %s}',
    "values in a schema with its type": '{"type": "object", "properties": %s}',
    "a list of one": "[%s]",
    "a call": '{"name": "Order", "arguments": %s}',
    "a call in tags": '<tool_call>{"name": "Order", "parameters": %s}</tool_call>',
    "a list in an object": '{"items": [%s]}',
    "an object in a list": '[{"Order": %s}]',
    "bad syntax": "Sure: {'order': %s,}",
    "a fence": '```json\n{"Order": %s}\n```',
}


@pytest.mark.slow
@each_row("form", [*WRAPPERS.values(), None], ids=[*WRAPPERS, "a text"])
@each_row("answer", [Order, Strict, ORDER_SCHEMA, Order | Point, Order | None], ids=str)
def test_a_wrapper_is_taken_off_without_a_call(form, answer):
    """Where the whole is not valid and what is in it is. No digit changes, and the note names the
    wrapper.
    """
    given = form % ORDER.replace("1", "1e0") if form else json.dumps(ORDER.replace("1", "1e0"))
    if answer in (Strict,):
        given = given.replace("Order", "Strict").replace("order", "strict")
    result, model = refined([given], answer=answer, max_iterations=1)
    assert (result.value.replace(" ", ""), model.calls) == (
        ORDER.replace("1", "1e0").replace(" ", ""),
        1,
    )
    assert (
        "took the answer out of" in (result.trace.best.note or "")
        or as_answer_form(answer).wrapper_key == "answer"
    )


@pytest.mark.parametrize(
    ("answer", "given", "value"),
    [
        (list[Order], f'{{"orders": [{ORDER}]}}', [Order(a=1, b=["x"])]),
        (list[Order], f'{{"items": [{ORDER}, {OTHER}]}}', [Order(a=1, b=["x"]), Order(a=2, b=[])]),
        (list[Order], json.dumps(f"[{ORDER}]"), [Order(a=1, b=["x"])]),
        (list[int], '{"values": [1, 2]}', [1, 2]),
        (dict[str, int], '{"result": {"x": 1}}', {"x": 1}),
        (int, '{"value": 5}', 5),
        (Literal["yes", "no"], '{"response": "no"}', "no"),
        (City, '{"City": {"name": "Rome", "people": 3}}', {"name": "Rome", "people": 3}),
        (Settings, '{"Settings": {"level": 3}}', Settings(level=3)),
        (Settings, '{"settings": {"level": 0}}', Settings(level=0)),
        (Settings, '{"result": {"level": 3}}', Settings(level=3)),
        (Partial, '{"Partial": {"note": "x"}}', {"note": "x"}),
    ],
    ids=str,
)
def test_other_values_in_wrappers(answer, given, value):
    """Lists, numbers, words and dictionaries."""
    result, model = refined([given], answer=answer, max_iterations=1)
    assert (result.parsed, model.calls) == (value, 1)


class Shop(BaseModel):
    order: Order
    tags: list[str] = []
    note: str = ""


class Mixed(BaseModel):
    tags: list[str]
    note: str | list[int]


@pytest.mark.parametrize(
    ("answer", "given", "value"),
    [
        (Shop, {"order": ORDER}, {"order": {"a": 1, "b": ["x"]}}),
        (
            Shop,
            {"order": ORDER, "tags": '["y"]', "note": "[1]"},
            {"order": {"a": 1, "b": ["x"]}, "tags": ["y"], "note": "[1]"},
        ),
        (
            Shop,
            {"order": {"a": 1, "b": '["x"]'}, "note": ORDER},
            {"order": {"a": 1, "b": ["x"]}, "note": ORDER},
        ),
        (list[Order], [ORDER, json.loads(OTHER)], [json.loads(ORDER), json.loads(OTHER)]),
        (Mixed, {"tags": '["y"]', "note": "[1]"}, {"tags": ["y"], "note": "[1]"}),
        (list[Order], [ORDER] * 30, [json.loads(ORDER)] * 30),
        (Node, {"name": "x", "children": "[]"}, {"name": "x", "children": []}),
        (
            ORDER_SCHEMA | {"properties": {"b": {"type": "array"}}},
            {"a": 1, "b": '["x"]'},
            {"a": 1, "b": ["x"]},
        ),
    ],
    ids=str,
)
def test_json_in_a_text_within_an_answer_is_read(answer, given, value):
    """Where a list or an object is wanted, without a call; what may be a text stays one."""
    result, model = refined([json.dumps(given)], answer=answer, max_iterations=1)
    assert (json.loads(result.value), model.calls) == (value, 1)
    assert result.trace.best.note.startswith("read JSON in texts")


@pytest.mark.parametrize("tags", ["x, y", "['x']", '["x"', '{"x": 1}', "x", '"[]"'])
def test_other_texts_within_an_answer_are_left(tags):
    """Only JSON that is valid there is read."""
    given = json.dumps({"order": json.loads(ORDER), "tags": tags})
    assert [*as_answer_form(Shop).repairs(given)] == []


@each_row(
    ("answer", "given", "says"),
    [
        (
            Order,
            f"[{ORDER}, {OTHER}]",
            "it is a list of 2: write one answer, without a list around it",
        ),
        (Order, f"[{ORDER}, {ORDER}]", "it is a list of 2"),
        (
            Order,
            f'{{"first": {ORDER}, "second": {OTHER}}}',
            "an answer stands under 'first' and under 'second': write one answer alone",
        ),
        (
            Order,
            f'{{"Order": {ORDER}, "note": "done"}}',
            "an answer stands under 'Order': write one answer alone",
        ),
        (Order, f'{{"error": {ORDER}}}', "an answer stands under 'error'"),
        (
            Order,
            f'{{"name": "delete", "arguments": {ORDER}}}',
            "an answer stands under 'arguments'",
        ),
        (
            Order,
            '{"Order": {"a": 1}}',
            "the answer stands in an object under 'Order': write it alone",
        ),
        (Order, '{"Order": {"a": 1}}', "b: Field required"),
        (Order, "[]", "Input should be an object"),
        (Order, '{"Order": null}', "Input should be an object, got None"),
        (Order, '"no JSON"', "Input should be an object"),
        (list[Order], ORDER, "a list is wanted: write it in square brackets"),
        (list[str], '{"errors": ["none found"]}', "an answer stands under 'errors'"),
        (int, '{"count": 5}', "Input should be a valid integer"),
        (int, "[5]", "the answer stands in a list of one"),
        (Node, '{"children": [{"name": "x", "children": []}]}', "name: Field required"),
        ({"items": {"type": "integer"}}, '["x"]', "$[0]: 'x' is not of type 'integer'"),
        (
            {"type": ["array", "object"], "items": {"type": "integer"}},
            '[{"a": 1}]',
            "is not of type 'integer'",
        ),
    ],
    ids=str,
)
def test_a_wrapper_is_named_to_the_writer(answer, given, says):
    """What may mean more than one thing is left as it is; the next prompt says what is wrong with
    it.
    """
    model = redraft.ScriptedModel([given, "?"])
    redraft.refine_sync("q", model, answer=answer, max_iterations=1, editor=False)
    assert says in model.messages[1][-1]["content"]
    if answer is not int or given != "[5]":
        assert list(as_answer_form(answer).repairs(given)) == []


@pytest.mark.parametrize(
    ("answer", "given"),
    [
        (Loose, '{"Loose": {"answer": 3}}'),
        (Settings, '{"Settings": {}}'),
        (Settings, '{"Settings": null}'),
        (Settings, '{"Settings": {"depth": 3}}'),
        (Settings, '{"Settings": {"level": "high"}}'),
        (Settings, '{"Settings": {"level": 3}, "note": "x"}'),
        (Settings, '{"other": {"level": 3}}'),
        (Settings, "{}"),
        (Own, '{"own": {"own": {}}}'),
        (Unwrapping, '{"Unwrapping": {"level": 3}}'),
        (Partial, "{}"),
        (dict[str, dict[str, int]], '{"result": {"x": 1}}'),
        (list[list[int]], "[[1]]"),
        (str | int, '"{\\"a\\": 1}"'),
        ({"type": "object"}, '{"data": {}}'),
    ],
    ids=str,
)
def test_what_is_valid_with_a_wrapper_keeps_it(answer, given):
    """The whole is the answer."""
    result, model = refined([given], answer=answer, max_iterations=1)
    assert (result.value, model.calls) == (given, 1) and result.parsed is not None


# ---- the context of validators


class Quote(BaseModel):
    quote: str

    @field_validator("quote")
    @classmethod
    def is_in_source(cls, quote: str, info: ValidationInfo) -> str:
        if quote not in info.context["source"]:
            raise ValueError("not in the source")
        return quote


SOURCE = {"source": "Rome has seven hills.", "words": {"seven", "hills"}}
GOOD, WRONG = '{"quote": "seven hills"}', '{"quote": "six hills"}'


async def test_validators_find_the_context(tmp_path):
    """In every entry point, for the form, for graders of the type, and for `parsed`."""

    def is_quote(answer: Quote) -> bool:
        return isinstance(answer, Quote)

    given = {"answer": Quote, "answer_context": SOURCE}
    model = redraft.ScriptedModel([WRONG, GOOD])
    result = await redraft.refine("q", model, is_quote, **given)
    assert (result.parsed.quote, model.calls) == ("seven hills", 2)
    assert (
        "quote: Value error, not in the source, got 'six hills'" in model.messages[1][-1]["content"]
    )
    results = await redraft.refine_many(
        ["a", "b"], redraft.ScriptedModel([GOOD] * 2), is_quote, **given
    )
    assert [each.parsed.quote for each in results] == ["seven hills"] * 2
    assert [
        trace
        async for trace in redraft.stream("q", redraft.ScriptedModel([GOOD]), is_quote, **given)
    ][-1].score == 1
    out = tmp_path / "out.jsonl"
    await redraft.batch([{"prompt": "q"}], out, redraft.ScriptedModel([GOOD]), is_quote, **given)
    assert json.loads(out.read_text())["parsed"] == {"quote": "seven hills"}
    report = await redraft.grade(("q", GOOD), is_quote, **given)
    assert report["answer"].score == report["is_quote"].score == 1
    assert (await grade_many([("q", WRONG)], is_quote, **given))[0]["answer"].score == 0


def test_the_context_is_in_the_fingerprint():
    """A trace is continued with an equal one, without a call; another is an error, as another form
    is.
    """
    result, _ = refined([GOOD], answer=Quote, answer_context=SOURCE)
    trace = redraft.Trace.from_json(result.trace.to_json())
    equal = {"words": {"hills", "seven"}, "source": SOURCE["source"]}
    again = redraft.refine_sync(
        trace, redraft.ScriptedModel([]), lambda text: 1.0, answer=Quote, answer_context=equal
    )
    assert again.parsed == result.parsed
    for other in (
        None,
        {**SOURCE, "source": "seven hills"},
        {**SOURCE, "words": set()},
        {"source": SOURCE["source"]},
    ):
        with pytest.raises(ConfigError, match="made with another form of answer"):
            redraft.refine_sync(
                trace, redraft.ScriptedModel([]), "json", answer=Quote, answer_context=other
            )
    form = as_answer_form(Quote, SOURCE)
    assert (
        pickle.loads(pickle.dumps(form)).fingerprint
        == form.fingerprint
        != as_answer_form(Quote).fingerprint
    )
    assert (
        as_answer_form(Quote, {"client": object()}).fingerprint
        == as_answer_form(Quote, {"client": object()}).fingerprint
    )


@pytest.mark.parametrize(
    ("answer", "context", "words"),
    [
        (None, SOURCE, "answer_context is for the validators of an `answer` that is a type"),
        ({"type": "object"}, SOURCE, "answer_context is for the validators"),
        ("code:python", SOURCE, "answer_context is for the validators"),
        (Quote, "Rome", "answer_context must be a mapping"),
        (Quote, 5, "answer_context must be a mapping"),
    ],
)
def test_a_context_without_validators_is_refused(answer, context, words):
    """Before any call."""
    model = redraft.ScriptedModel([GOOD])
    with pytest.raises(ConfigError, match=re.escape(words)):
        redraft.refine_sync("q", model, "json", answer=answer, answer_context=context)
    assert model.calls == 0


def test_a_missing_context_is_said():
    """A validator that needs one has a fault without it."""
    with pytest.raises(
        GradingError,
        match=r"TypeError: .* line \d+\).*; info.context is None without answer_context=",
    ):
        refined([GOOD], answer=Quote)


def test_a_run_goes_on_once_the_fault_is_mended():
    """The answer that could not be validated is validated again, without a call."""
    faults = [KeyError("n")]

    class Odd(BaseModel):
        n: int

        @field_validator("n")
        @classmethod
        def look_up(cls, n: int) -> int:
            if faults:
                raise faults[0]
            return n

    with pytest.raises(GradingError) as caught:
        refined(['{"n": 2}'], answer=Odd)
    trace = redraft.Trace.from_json(caught.value.result.trace.to_json())
    faults.clear()
    result = redraft.refine_sync(trace, redraft.ScriptedModel([]), lambda text: 1.0, answer=Odd)
    assert (result.parsed.n, result.stop) == (2, "target")
