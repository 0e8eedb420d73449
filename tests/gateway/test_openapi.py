"""The OpenAPI document: it is valid, and what it says is what the wires do."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from jsonschema import Draft202012Validator
from redraft.gateway.anthropic_wire import MessagesWire

from redraft.gateway import chat_wire, messages_to_chat, responses_wire
from redraft.gateway.exchange import GatewayError
from redraft.gateway.openapi import openapi_document

from .wire_app import CALLS, CHAT, CREATED, RESPONSES, UNKNOWN, answer

DOCUMENT = openapi_document(["refine/fast", "pass/small"])
MESSAGES = MessagesWire()
BEYOND_SCHEMAS = (
    "redraft.requirements",
    "redraft.rubric",
    "tools",
    "tool_choice",
    "stream_options",
    "max_tokens",
)
"""The fields that depend on others, or on names that a schema does not list."""
QUICK = settings(
    max_examples=10, deadline=None, suppress_health_check=list(HealthCheck), database=None
)


def validator(name):
    """Return the validator of a schema of the document."""
    return Draft202012Validator(
        {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    )


def references(value):
    if isinstance(value, dict):
        yield from ([value["$ref"]] if "$ref" in value else [])
        value = list(value.values())
    for inner in value if isinstance(value, list) else ():
        yield from references(inner)


def test_the_document_is_valid():
    """Each schema is one, each reference has its schema, and the document is JSON."""
    schemas = DOCUMENT["components"]["schemas"]
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)
    assert {
        reference.removeprefix("#/components/schemas/") for reference in references(DOCUMENT)
    } == set(schemas)
    assert json.loads(json.dumps(DOCUMENT, allow_nan=False)) == DOCUMENT


@pytest.mark.parametrize(
    "name, sent",
    [("ChatRequest", {"messages": [{"role": "user", "content": "a"}]})]
    + [
        ("ResponseRequest", {"input": "a"}),
        ("MessageRequest", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 9}),
    ],
)
def test_fields_that_no_request_may_have(name, sent):
    """The document refuses what the wires refuse: fields of another protocol, for the gateway, and
    graders that are no names.
    """
    check = validator(name)
    sent = {"model": "refine/fast", **sent}
    assert check.is_valid(sent)
    assert check.is_valid({**sent, "top_k": 3, "best_of": None, "redraft": {"graders": ["a", "b"]}})
    for wrong in (
        {"best_of": 3},
        {"api_key": "x"},
        {"redraft": {"graders": ["a", "a"]}},
        {"redraft": {"graders": [" "]}},
        {"redraft": {"rubric": ""}},
    ):
        assert not check.is_valid(sent | wrong), wrong
    if name != "ChatRequest":
        assert not check.is_valid(sent | {"n": 1})


@pytest.mark.parametrize(
    ("name", "wire"),
    [
        ("ChatRequest", chat_wire),
        ("ResponseRequest", responses_wire),
        ("MessageRequest", messages_to_chat),
    ],
)
def test_fields_that_a_wire_reads_are_allowed(name, wire):
    """No field that a protocol has is refused by the document, but for those that the wire refuses
    as well.
    """
    fields = DOCUMENT["components"]["schemas"][name]["properties"]
    assert [
        field for field in wire.KNOWN - set(wire.REFUSED) if fields.get(field) == {"type": "null"}
    ] == []


def test_each_model_is_listed():
    """A client finds the names that it may use; without any, a name is a text."""
    assert DOCUMENT["components"]["schemas"]["ChatRequest"]["properties"]["model"]["enum"] == [
        "refine/fast",
        "pass/small",
    ]
    assert (
        "enum"
        not in openapi_document([])["components"]["schemas"]["ChatRequest"]["properties"]["model"]
    )


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize(
    ("path", "wire"), [("chat/completions", CHAT), ("responses", RESPONSES), ("messages", MESSAGES)]
)
def test_requests_agree(path, wire):
    """What the document allows is accepted."""
    import schemathesis  # it takes long, and each process that runs tests reads this file

    operation = schemathesis.openapi.from_dict(DOCUMENT)[f"/v1/{path}"]["POST"]

    @QUICK
    @given(operation.as_strategy(generation_mode=schemathesis.GenerationMode.POSITIVE))
    def parse(case):
        try:
            wire.parse(case.body)
        except GatewayError as error:
            is_beyond = str(error.param).startswith(BEYOND_SCHEMAS) or "schema" in str(error.param)
            assert is_beyond, error.message

    parse()


@pytest.mark.parametrize(
    "changes", [{}, {"text": "", "calls": CALLS}, {"usage": UNKNOWN}, {"finish_reason": "length"}]
)
@pytest.mark.parametrize(
    ("wire", "name"), [(CHAT, "ChatCompletion"), (RESPONSES, "Response"), (MESSAGES, "Message")]
)
def test_replies_agree(wire, name, changes):
    """Replies and errors fit the schemas of the document."""
    body = (
        {"input": "hi"}
        if wire is RESPONSES
        else {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}
    )
    request = wire.parse({"model": "refine/fast", **body})
    validator(name).validate(wire.answer_body(request, answer(**changes), CREATED))
    validator("MessageError" if wire is MESSAGES else "Error").validate(
        wire.error_body(GatewayError(402, "budget_exhausted", "no money left"))
    )
