"""The OpenAPI document of the gateway: its routes, what each accepts and what it answers.

The schemas of requests are those of the wire models, by which the protocols read them, so the two
agree; what the mark of a field says is its `x-redraft`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from .. import __version__
from ..base.jsontext import dumps_text
from ..base.parameters import ROUTING_FIELDS
from .endpoints import ENDPOINTS
from .guardrail import GUARDRAIL_PATH, GuardrailReply, GuardrailRequest
from .neutral import ProtocolName
from .outcome import RefinementOutcome
from .protocols.chat_fields import ChatBody
from .protocols.fields import WireModel
from .protocols.messages_fields import MessagesRequest
from .protocols.responses_requests import ResponsesRequest
from .request_fields import DENIED_PARAMETERS
from .rewards import REWARDS_PATH, VERIFY_PATH, RewardReply, RewardRequest, RewardRequestSample
from .stored_endpoints import ID_PATTERN, STORED_PATHS

Schema = dict[str, Any]

REQUESTS: Mapping[ProtocolName, type[WireModel]] = {
    "chat": ChatBody,
    "responses": ResponsesRequest,
    "messages": MessagesRequest,
}
SCHEMA_NAMES: Mapping[ProtocolName, tuple[str, str]] = {
    "chat": ("ChatRequest", "ChatCompletion"),
    "responses": ("ResponseRequest", "Response"),
    "messages": ("MessageRequest", "Message"),
}
"""The names of the schemas of requests and of replies."""
COMPONENTS = "#/components/schemas/"
TEXT: Schema = {"type": "string"}
WHOLE: Schema = {"type": "integer", "minimum": 0}
OBJECT: Schema = {"type": "object"}
JSON_TYPE, STREAM_TYPE = "application/json", "text/event-stream"
ERRORS: Mapping[int, str] = {
    400: "A field is wrong, or cannot be honoured; `param` names it",
    401: "The API key is missing or unknown",
    402: "The budget of the key is spent",
    403: "The key may not use this model, or the page may not use the gateway",
    404: "There is no such model",
    408: "The body of the request came too slowly",
    413: "The request is too large",
    421: "The Host header names another server",
    422: "The idempotency key belongs to another request",
    429: "Too many requests; see Retry-After",
    502: "A model cannot be used",
    503: "The gateway or a model is busy; see Retry-After",
    504: "A model did not answer in time",
}
READ_ERRORS = (401, 403, 421, 503)
HEADERS: Mapping[str, tuple[str, Schema]] = {
    "x-redraft-trace-id": ("The ID by which `redraft show` finds the request", TEXT),
    "x-redraft-score": ("The score of the answer, from 0 to 1", TEXT),
    "x-redraft-iterations": ("Number of refinements", TEXT),
    "x-redraft-stop": ("Why the refinement ended", TEXT),
    "x-redraft-cost": ("Cost of all calls in USD", TEXT),
    "x-redraft-reason": ("Why the answer has no score", TEXT),
    "x-redraft-ignored": ("Fields that were left out, because the model cannot take them", TEXT),
    "x-redraft-notice": (
        "Tools that were left out, because the provider runs them and the key has a limit in USD",
        TEXT,
    ),
}


def openapi_document(models: Sequence[str]) -> dict[str, Any]:
    """Return the document; `models` are the names that requests may use, such as "refine/fast"."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Redraft gateway",
            "version": __version__,
            "description": "Answers of models, refined (`refine/NAME`) or passed on "
            "(`pass/NAME`), in the protocols of OpenAI and Anthropic. The field "
            "`redraft` of a request chooses how its answer is refined. What a request to "
            "`refine/NAME` makes of a field is its `x-redraft`: `honoured` (with its "
            "`x-redraft-names` in the protocols that have it), `hint` (left out for models of "
            "another protocol) or `refused`; `pass/NAME` to a model of the same protocol takes "
            "every field.",
        },
        "security": [{}, {"bearer": []}, {"key": []}],
        "paths": _model_paths() | _passed_paths() | _other_paths(models),
        "components": {
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
            "schemas": _schemas(models),
        },
    }


# ---- paths


def _model_paths() -> dict[str, Any]:
    """Return the paths of conversations."""
    return {
        "/v1/chat/completions": {"post": _model_operation("createChatCompletion", "chat")},
        "/v1/responses": {"post": _model_operation("createResponse", "responses")},
        "/v1/messages": {"post": _model_operation("createMessage", "messages")},
        "/v1/messages/count_tokens": {
            "post": {
                "operationId": "countTokens",
                "summary": "Count the tokens of a request",
                "requestBody": _body("TokenCountRequest"),
                "responses": {
                    "200": _reply("The number of tokens", _reference("TokenCount")),
                    **_errors(ERRORS, "messages"),
                },
            }
        },
    }


def _passed_paths() -> dict[str, Any]:
    """Return the paths that no refinement answers in a protocol for conversations."""
    reply = _reply("The reply of the model's server", {})
    verdict = _reply("What becomes of the texts", _reference("GuardrailReply"))
    guard = {
        "operationId": "checkTexts",
        "summary": "The guardrail of a LiteLLM proxy",
        "requestBody": _body("GuardrailRequest"),
        "responses": {"200": verdict, **_errors(ERRORS, "chat")},
    }
    rewards = _object({"rewards": {"type": "array", "items": _reference("RewardReply")}}, "rewards")
    asked = {"anyOf": [_reference("RewardRequest"), _reference("RewardRequestSample")]}
    told = {"anyOf": [_reference("RewardReply"), rewards]}
    reward = {
        "operationId": "reward",
        "summary": "The reward of a response, or of many in `samples`",
        "requestBody": {"required": True, "content": {JSON_TYPE: {"schema": asked}}},
        "responses": {"200": _reply("The reward", told), **_errors(ERRORS, "chat")},
    }
    verify = {
        "operationId": "verify",
        "summary": "The reward of a response, in the form of NeMo Gym",
        "requestBody": {"required": True, "content": {JSON_TYPE: {"schema": {"type": "object"}}}},
        "responses": {
            "200": _reply(
                "The request with its reward", _object({"reward": {"type": "number"}}, "reward")
            ),
            **_errors(ERRORS, "chat"),
        },
    }
    paths: dict[str, dict[str, Any]] = {
        GUARDRAIL_PATH: {"post": guard},
        REWARDS_PATH: {"post": reward},
        VERIFY_PATH: {"post": verify},
    }
    for endpoint in ENDPOINTS.values():
        paths[endpoint.path] = {
            "post": {
                "operationId": f"pass_{endpoint.name}",
                "summary": f"{endpoint.name}: passed on to a model `pass/NAME`",
                "requestBody": _body("PassedRequest"),
                "responses": {"200": reply, **_errors(ERRORS, endpoint.protocol)},
            }
        }
    for stored in STORED_PATHS:
        path = stored.pattern.pattern.replace(ID_PATTERN, "{id}")
        protocol: ProtocolName = "messages" if stored.kind == "anthropic" else "chat"
        item = paths.setdefault(path, {})
        if "{id}" in path:
            item["parameters"] = [_path_parameter({"type": "string", "pattern": f"^{ID_PATTERN}$"})]
        for method in stored.methods:
            item[method.lower()] = {
                "operationId": f"{method.lower()}{path.replace('/', '_')}",
                "summary": f"{stored.name} at the provider of a client's own model",
                "responses": {"200": reply, **_errors(ERRORS, protocol)},
            }
    return paths


def _other_paths(models: Sequence[str]) -> dict[str, Any]:
    """Return the paths that read."""
    ready = _status(
        "ready",
        store={"type": "string", "const": "failing"},
        telemetry={
            "type": "object",
            "description": "Why signals of OpenTelemetry cannot be sent, by signal",
            "additionalProperties": TEXT,
        },
    )
    figures = {"description": "Figures for Prometheus", "content": {"text/plain": {"schema": TEXT}}}
    return {
        "/v1/models": {
            "get": _read_operation(
                "listModels", "The models that the key may use", _reference("ModelList")
            )
        },
        "/v1/models/{id}": {
            "parameters": [_path_parameter(_model_name(models))],
            "get": _read_operation("getModel", "A model", _reference("Model"), (*READ_ERRORS, 404)),
        },
        "/healthz": {"get": _read_operation("getHealth", "The process lives", _status("ok"))},
        "/readyz": {
            "get": {
                "operationId": "getReadiness",
                "summary": "Whether requests are taken. No model is asked",
                "responses": {
                    "200": _reply("Requests are taken", ready),
                    "503": _reply("The gateway shuts down", _status("draining")),
                    **_errors((421,), "chat"),
                },
            }
        },
        "/metrics": {
            "get": {
                "operationId": "getMetrics",
                "summary": figures["description"],
                "responses": {"200": figures, **_errors(READ_ERRORS, "chat")},
            }
        },
        "/openapi.json": {"get": _read_operation("getOpenAPI", "This document", OBJECT)},
    }


def _model_operation(name: str, protocol: ProtocolName) -> dict[str, Any]:
    """Return an operation that asks a model. Its reply is a stream of events if the request says
    so.
    """
    request, reply = SCHEMA_NAMES[protocol]
    headers = {
        header: {"description": text, "schema": schema}
        for header, (text, schema) in HEADERS.items()
    }
    of_errors = {name: headers[name] for name in ("x-redraft-trace-id", "x-redraft-notice")}
    key = {
        "name": "Idempotency-Key",
        "in": "header",
        "schema": {"type": "string", "pattern": "^[!-~]{1,255}$"},
    }
    answer = _reply("The answer", _reference(reply))
    answer["content"][STREAM_TYPE] = {"schema": TEXT}
    errors = _errors(ERRORS, protocol).items()
    return {
        "operationId": name,
        "summary": "Answer a conversation",
        "parameters": [key],
        "requestBody": _body(request),
        "responses": {
            "200": {**answer, "headers": headers},
            **{status: {**error, "headers": of_errors} for status, error in errors},
        },
    }


def _read_operation(
    name: str, description: str, schema: Schema, errors: Iterable[int] = READ_ERRORS
) -> dict[str, Any]:
    return {
        "operationId": name,
        "summary": description,
        "responses": {"200": _reply(description, schema), **_errors(errors, "chat")},
    }


def _errors(statuses: Iterable[int], wire: ProtocolName) -> dict[str, Any]:
    """Return the replies to what is refused; Anthropic's status for 503 is 529."""
    schema = _reference("MessageError" if wire == "messages" else "Error")
    shown = {
        529 if wire == "messages" and status == 503 else status: ERRORS[status]
        for status in statuses
    }
    return {str(status): _reply(description, schema) for status, description in shown.items()}


def _body(name: str) -> dict[str, Any]:
    return {"required": True, "content": {JSON_TYPE: {"schema": _reference(name)}}}


def _reply(description: str, schema: Schema) -> dict[str, Any]:
    return {"description": description, "content": {JSON_TYPE: {"schema": schema}}}


def _reference(name: str) -> Schema:
    return {"$ref": COMPONENTS + name}


def _path_parameter(schema: Schema) -> dict[str, Any]:
    return {"name": "id", "in": "path", "required": True, "schema": schema}


def _status(value: str, **more: Schema) -> Schema:
    return _object({"status": {"type": "string", "const": value}, **more}, "status")


def _object(properties: Mapping[str, Any], *required: str) -> Schema:
    return {"type": "object", "properties": dict(properties), "required": list(required)}


# ---- schemas


def _schemas(models: Sequence[str]) -> dict[str, Schema]:
    schemas = _replies()
    for protocol, kind in REQUESTS.items():
        request, definitions = wire_schema(kind, protocol)
        request["properties"] |= {
            "model": _model_name(models),
            **dict.fromkeys(sorted(ROUTING_FIELDS), _reference("RoutingField")),
        }
        schemas |= definitions | {SCHEMA_NAMES[protocol][0]: request}
    rewards = (RewardRequest, RewardRequestSample, RewardReply)
    for model in (GuardrailRequest, GuardrailReply, *rewards):
        schema, definitions = wire_schema(model, "guardrail")
        schemas |= definitions | {model.__name__: schema}
    counted = schemas["MessageRequest"]
    why = DENIED_PARAMETERS["base_url"]
    return {
        **schemas,
        "RoutingField": {"type": "null", "description": f"RefusedField, by `pass/NAME` too: {why}"},
        "TokenCountRequest": {**counted, "required": ["model", "messages"]},
        "PassedRequest": _object({"model": _model_name(models)}, "model"),
    }


def _model_name(models: Sequence[str]) -> Schema:
    return {"type": "string", "enum": list(models)} if models else {**TEXT, "minLength": 1}


class SchemaGenerator(GenerateJsonSchema):
    """Makes schemas whose fields have no titles."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Return False: a title would repeat the name."""
        return False


def wire_schema(kind: type[BaseModel], prefix: str) -> tuple[Schema, dict[str, Schema]]:
    """Return the schema of a request, and those of its parts by their names with a prefix."""
    template = f"{COMPONENTS}{prefix}.{{model}}"
    schema = kind.model_json_schema(ref_template=template, schema_generator=SchemaGenerator)
    parts = {f"{prefix}.{name}": part for name, part in schema.pop("$defs", {}).items()}
    request = _valid(schema, parts)
    valid = {name: _valid(part, parts) for name, part in parts.items()}
    text = dumps_text([request, valid])
    used = {name: part for name, part in valid.items() if f'"{COMPONENTS}{name}"' in text}
    return request, used


def _valid(node: Any, parts: Mapping[str, Schema]) -> Any:
    """Return a part of a schema of pydantic as JSON schemas say the same: limits by their names
    there, and alternatives that exclude each other.
    """
    if isinstance(node, list):
        return [_valid(each, parts) for each in node]
    if not isinstance(node, dict):
        return node
    names = {"ge": "minimum", "le": "maximum", "oneOf": "anyOf"}
    node = {name: value for name, value in node.items() if name != "discriminator"}
    if "oneOf" in node:
        node["oneOf"] = _told_apart(node["oneOf"], parts)
    return {names.get(name, name): _valid(value, parts) for name, value in node.items()}


def _told_apart(options: Sequence[Schema], parts: Mapping[str, Schema]) -> list[Schema]:
    """Return alternatives, of which the one for all other types excludes the types of its
    siblings; one whose types are all taken is left out.
    """
    known: set[str] = set()
    found = []
    for option in options:
        types = _types(option, parts)
        if not types:
            of_others = _object({"type": {"enum": sorted(known)}}, "type")
            found.append({"allOf": [option], "not": of_others})
        elif types - known:
            found.append(option)
        known |= types
    return found


def _types(schema: Schema, parts: Mapping[str, Schema]) -> set[str]:
    """Return the types, or the roles, that an object of a schema may have; none if any."""
    if "oneOf" in schema:
        return set().union(*(_types(option, parts) for option in schema["oneOf"]))
    properties = parts[schema["$ref"].removeprefix(COMPONENTS)]["properties"]
    kind = properties.get("type") or properties["role"]
    kinds = [kind, *kind.get("anyOf", ())]
    return {each["const"] for each in kinds if "const" in each}.union(
        *(each.get("enum", ()) for each in kinds)
    )


def _replies() -> dict[str, Schema]:
    """Return the replies. Those that are passed on may have other fields, too."""
    outcome = TypeAdapter(RefinementOutcome).json_schema(
        ref_template=COMPONENTS + "{model}", schema_generator=SchemaGenerator
    )
    redraft = {"redraft": _reference("RefinementOutcome")}
    texts = {"type": "array", "items": OBJECT}
    nullable = {"anyOf": [TEXT, {"type": "null"}]}
    chat = {"id": TEXT, "object": TEXT, "created": WHOLE, "model": TEXT, "choices": texts}
    response = {
        "id": TEXT,
        "object": {"const": "response"},
        "status": TEXT,
        "model": TEXT,
        "output": texts,
    }
    message = {
        "id": TEXT,
        "type": {"const": "message"},
        "role": {"const": "assistant"},
        "model": TEXT,
        "content": texts,
    }
    model = {"id": TEXT, "object": {"const": "model"}, "owned_by": TEXT}
    models = {"object": {"const": "list"}, "data": {"type": "array", "items": _reference("Model")}}
    error = {"message": TEXT, "type": TEXT, "param": nullable, "code": nullable}
    of_message = _object({"type": TEXT, "message": TEXT}, "type", "message")
    return {
        **outcome.pop("$defs"),
        "RefinementOutcome": outcome,
        "ChatCompletion": _object({**chat, **redraft}, *chat),
        "Response": _object({**response, **redraft}, *response),
        "Message": _object({**message, **redraft}, *message),
        "TokenCount": _object({"input_tokens": WHOLE}, "input_tokens"),
        "Model": _object(model, *model),
        "ModelList": _object(models, *models),
        "Error": _object({"error": _object(error, *error)}, "error"),
        "MessageError": _object({"type": {"const": "error"}, "error": of_message}, "type", "error"),
    }
