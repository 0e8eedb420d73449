"""The OpenAPI document: it is valid, and what it says is what the protocols do."""

import json
import re
from contextlib import nullcontext

import pytest
from hypothesis import HealthCheck, given, settings
from jsonschema import Draft202012Validator

from redraft.base.jsontext import dumps
from redraft.gateway.app import COUNT_PATH, MODEL_PATHS
from redraft.gateway.endpoints import ENDPOINTS
from redraft.gateway.exchange import GatewayError
from redraft.gateway.guardrail import GUARDRAIL_PATH
from redraft.gateway.neutral import Call, Reply, Text, Tokens
from redraft.gateway.openapi import REQUESTS, SCHEMA_NAMES, openapi_document
from redraft.gateway.outcome import outcome_of
from redraft.gateway.protocols.fields import PARAMETERS, Hint, Parameter, RefusedField
from redraft.gateway.protocols.registry import CLIENTS
from redraft.gateway.rewards import REWARDS_PATH, VERIFY_PATH
from redraft.gateway.stored_endpoints import STORED_PATHS, find_stored_path
from redraft.loop.records import Candidate
from redraft.loop.task import Task
from redraft.loop.trace import Trace

DOCUMENT = openapi_document(["refine/fast", "pass/small"])
SCHEMAS = DOCUMENT["components"]["schemas"]
PATHS = {
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
}
SENT = {
    "chat": {"messages": [{"role": "user", "content": "a"}]},
    "responses": {"input": "a"},
    "messages": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 9},
}
BEYOND_SCHEMAS = re.compile(
    r"redraft\.(requirements|rubric|graders)|tools.*|tool_choice.*|max_tokens|.*schema.*"
    r"|messages|input|.*(url|call_id|content|output)(\[\d+\])?|input\[\d+\]\.(role|type|content)"
)
"""The fields that depend on others, on names that a schema does not list, or on what a URL is."""
CREATED = 1_700_000_000
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


@pytest.mark.slow
def test_the_document_is_valid():
    """Each schema is one, each reference has its schema, and the document is JSON."""
    schemas = DOCUMENT["components"]["schemas"]
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)
    assert {
        reference.removeprefix("#/components/schemas/") for reference in references(DOCUMENT)
    } == set(schemas)
    assert json.loads(json.dumps(DOCUMENT, allow_nan=False)) == DOCUMENT


@pytest.mark.parametrize("protocol", CLIENTS)
def test_fields_that_no_request_may_have(protocol):
    """The document refuses what the protocols refuse: what chooses the route, what a refined answer
    cannot have, and options out of range. Fields that it does not name are allowed.
    """
    check, sent = validator(SCHEMA_NAMES[protocol][0]), {"model": "refine/fast", **SENT[protocol]}
    assert check.is_valid(sent)
    assert check.is_valid({**sent, "best_of": 3, "redraft": {"graders": ["a", "b"]}})
    for wrong in (
        {"api_key": "x"},
        {"redraft": {"graders": []}},
        {"redraft": {"target_score": 2}},
        {"redraft": {"max_iterations": 0.5}},
        {"model": 3},
    ):
        assert not check.is_valid(sent | wrong), wrong


@pytest.mark.parametrize("protocol", CLIENTS)
def test_marks_of_fields(protocol):
    """Each marked field says what is made of it, and a refused one allows the values that ask for
    nothing, and those alone. The reader agrees on these.
    """
    request, reader = SCHEMA_NAMES[protocol][0], CLIENTS[protocol]
    check, sent = validator(request), {"model": "refine/fast", **SENT[protocol]}
    for name, field in REQUESTS[protocol].model_fields.items():
        found = SCHEMAS[request]["properties"][name]
        if "RoutingField" in found.get("$ref", ""):
            continue
        for mark in field.metadata:
            match mark:
                case RefusedField():
                    assert found["x-redraft"] == "refused" and mark.why in found["description"]
                    assert not check.is_valid({**sent, name: "?"})
                    with pytest.raises(GatewayError) as refusal:
                        reader.read_request({**sent, name: "?"})
                    assert str(refusal.value.param).startswith(name)
                    for value in mark.unused:
                        assert check.is_valid({**sent, name: value}), (name, value)
                        assert reader.read_request({**sent, name: value})
                case Hint() if not any(isinstance(each, RefusedField) for each in field.metadata):
                    assert found["x-redraft"] == "hint"
                case Parameter():
                    assert found["x-redraft"] == "honoured"
                    assert found["x-redraft-names"] == PARAMETERS[mark.name]


@pytest.mark.parametrize("kind", ["enabled", "adaptive", "disabled", "between_tools"])
@pytest.mark.parametrize("budget", [{}, {"budget_tokens": None}, {"budget_tokens": 2048}])
def test_thinking_that_is_enabled_has_a_budget(kind, budget):
    """The document says so, too."""
    thinking = {"type": kind, **budget}
    sent = {"model": "pass/small", "max_tokens": 9, "messages": [{"role": "user", "content": "a"}]}
    is_right = kind != "enabled" or thinking.get("budget_tokens") is not None
    check = validator(SCHEMA_NAMES["messages"][0])
    assert check.is_valid({**sent, "thinking": thinking}) is is_right
    with nullcontext() if is_right else pytest.raises(GatewayError, match="budget_tokens"):
        assert CLIENTS["messages"].read_request({**sent, "thinking": thinking})


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


@pytest.mark.slow
@pytest.mark.parametrize("protocol", CLIENTS)
def test_requests_agree(protocol):
    """What the document allows is accepted."""
    import schemathesis  # it takes long, and each process that runs tests reads this file

    operation = schemathesis.openapi.from_dict(DOCUMENT)[PATHS[protocol]]["POST"]

    @QUICK
    @given(operation.as_strategy(generation_mode=schemathesis.GenerationMode.POSITIVE))
    def read(case):
        for message in case.body.get("messages", ()):  # only some may have none
            if message.get("content") is None:
                message["content"] = "a"
        try:
            CLIENTS[protocol].read_request(case.body)
        except GatewayError as error:
            assert BEYOND_SCHEMAS.fullmatch(str(error.param)), (error.param, error.message)

    read()


OUTCOME = outcome_of(Trace(Task("q")) + Candidate(0, "a"), "req-1")
REPLIES = {
    "text": Reply("r", "m", (Text("hi"),), tokens=Tokens(3, 2)),
    "calls": Reply("r", "m", (Call("c", "add", '{"a": 1}'),), "tool_calls"),
    "nothing known": Reply("r", "m", (Text(""),), "length"),
    "a refusal": Reply("r", "m", (Text("no", is_refusal=True),), "refusal", Tokens(3, 2)),
}


@pytest.mark.parametrize("reply", REPLIES)
@pytest.mark.parametrize("protocol", CLIENTS)
def test_replies_agree(protocol, reply):
    """Replies and errors fit the schemas of the document."""
    writer = CLIENTS[protocol]
    request = writer.read_request({"model": "refine/fast", **SENT[protocol]})
    for outcome in (None, OUTCOME):
        body = json.loads(dumps(writer.write_reply(request, REPLIES[reply], CREATED, outcome)))
        validator(SCHEMA_NAMES[protocol][1]).validate(body)
        assert body.get("redraft") == (outcome and json.loads(dumps(outcome)))
    validator("MessageError" if protocol == "messages" else "Error").validate(
        writer.error_body(GatewayError(402, "budget_exhausted", "no money left"))
    )


def test_every_route_is_described():
    """Each path that the gateway serves is in the document, with its methods."""
    described = {
        path: {method.upper() for method in methods if method != "parameters"}
        for path, methods in DOCUMENT["paths"].items()
    }
    asked = {*MODEL_PATHS, *ENDPOINTS, COUNT_PATH, GUARDRAIL_PATH, REWARDS_PATH, VERIFY_PATH}
    assert all(described[path] == {"POST"} for path in asked)
    stored = {
        path: find_stored_path(path.replace("{id}", "x")) for path in described.keys() - asked
    }
    assert {*filter(None, stored.values())} == {*STORED_PATHS}
    assert all(described[path] == {*each.methods} for path, each in stored.items() if each)
