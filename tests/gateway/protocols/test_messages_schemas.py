"""JSON schemas in the form that Anthropic's output format takes: what it says, and that it says
nothing else than the schema of the client.
"""

import jsonschema
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from each_row import each_row
from redraft.gateway.protocols.messages_schemas import output_schema

TEXT, NUMBER = {"type": "string"}, {"type": "integer"}


def closed(properties, **fields):
    return {
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        **fields,
    }


SAID = [
    (TEXT, TEXT),
    ({"$schema": "s", "type": "integer", "default": 1, "examples": [1]}, NUMBER),
    ({"type": "string", "format": "date"}, {"type": "string", "format": "date"}),
    (
        {"type": "string", "format": "color", "description": "A color."},
        {"type": "string", "description": 'A color.\n(format: "color")'},
    ),
    (
        {"type": "integer", "minimum": 1, "maximum": 9},
        {"type": "integer", "description": "(minimum: 1)\n(maximum: 9)"},
    ),
    ({"enum": ["a", None], "type": ["string", "null"]}, {"enum": ["a", None]}),
    ({"const": 1}, {"const": 1}),
    ({"type": "array", "items": NUMBER, "minItems": 1}, None),
    (
        {"type": "array", "items": NUMBER, "minItems": 2},
        {"type": "array", "items": NUMBER, "description": "(minItems: 2)"},
    ),
    ({"type": ["string", "null"]}, {"anyOf": [TEXT, {"type": "null"}]}),
    ({"oneOf": [TEXT, NUMBER]}, {"anyOf": [TEXT, NUMBER]}),
    ({"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": NUMBER}}, "one"),
    (closed({"n": NUMBER}, required=["n"], title="T"), None),
    ({"type": "object", "properties": {"n": NUMBER}}, closed({"n": NUMBER})),
    ({"properties": {"n": NUMBER}, "additionalProperties": True}, closed({"n": NUMBER})),
    (closed({}), None),
    (
        closed({"a": {"$ref": "#/$defs/a"}}, **{"$defs": {"a": {"$ref": "#/$defs/b"}, "b": TEXT}}),
        None,
    ),
]


@each_row(("schema", "expected"), SAID)
def test_what_the_output_format_says(schema, expected):
    """Objects are closed, alternatives are `anyOf`, and what cannot be enforced is described."""
    if expected == "one":
        expected = {"anyOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": NUMBER}}
    assert output_schema(schema) == (schema if expected is None else expected)


UNSAID = [
    {},
    {"type": "object"},
    {"type": "object", "additionalProperties": TEXT},
    {"type": "object", "properties": {"n": {}}},
    {"type": "object", "properties": {"n": True}},
    {"type": "object", "properties": {"n": NUMBER}, "patternProperties": {"x": TEXT}},
    {"type": "object", "properties": {"n": NUMBER}, "required": ["m"]},
    {"allOf": [closed({"n": NUMBER}), closed({"m": NUMBER})]},
    {"$ref": "#"},
    {"$ref": "#/$defs/other", "$defs": {"a": TEXT}},
    {"$ref": "https://x.example/schema"},
    {"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}}},
    {
        "$ref": "#/$defs/a",
        "$defs": {
            "a": closed({"b": {"$ref": "#/$defs/b"}}),
            "b": closed({"a": {"$ref": "#/$defs/a"}}),
        },
    },
    {"type": "file"},
    {"type": 5},
    {"not": TEXT},
]


@each_row("schema", UNSAID)
def test_what_the_output_format_cannot_say(schema):
    """Objects of any properties, and schemas that refer to themselves, have no form there."""
    assert output_schema(schema) is None


SCHEMAS = st.recursive(
    st.sampled_from(
        [
            TEXT,
            NUMBER,
            {"type": "null"},
            {"type": ["string", "integer"]},
            {"enum": ["a", 1]},
            {"type": "string", "maxLength": 1},
            {"type": "integer", "minimum": 0},
            {"$ref": "#/$defs/a"},
        ]
    ),
    lambda inner: (
        st.fixed_dictionaries({"type": st.just("array"), "items": inner})
        | st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=2)})
        | st.fixed_dictionaries(
            {
                "type": st.just("object"),
                "properties": st.dictionaries(st.sampled_from("ab"), inner, min_size=1),
            },
            optional={"required": st.just([]), "additionalProperties": st.booleans()},
        )
    ),
    max_leaves=4,
)
VALUES = st.recursive(
    st.none() | st.integers(-2, 2) | st.sampled_from(["", "a", "abc"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=2)
    ),
    max_leaves=4,
)


@given(SCHEMAS, VALUES)
def test_answers_of_the_written_schema_follow_the_client_s(schema, value):
    """An answer that follows what is sent follows the schema of the client, if that has no limits
    that can only be described.
    """
    definitions = {"$defs": {"a": closed({"a": TEXT})}}
    written = output_schema(schema | definitions)
    assert written is not None
    assume("(m" not in str(written))  # (minimum, maxLength)
    if jsonschema.Draft202012Validator(written).is_valid(value):
        assert jsonschema.Draft202012Validator(schema | definitions).is_valid(value)


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("type", "properties", "items", "anyOf", "allOf", "$ref", "$defs", "enum"),
                    *("required", "additionalProperties", "format", "minItems", "description"),
                ]
            )
            | st.text(max_size=5),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["type", "properties", "$defs", "anyOf", "items"]), ANY))
def test_any_schema(schema):
    """Whatever a client sends as a schema is written or not, without an error."""
    assert output_schema(schema) is None or isinstance(output_schema(schema), dict)


@pytest.mark.parametrize("words", [["string", "integer"], ["object", "array"], ["string"] * 5])
def test_nested_alternatives(words):
    """Time and size do not grow faster than the schema of the client."""
    schema = {"type": "string"}
    for _ in range(30):
        schema = {
            "type": words,
            "anyOf": [schema],
            "items": {"type": words},
            "properties": {"a": {"type": words}},
        }
    written = output_schema(schema)
    assert written is None or len(str(written)) < 50 * len(str(schema))
