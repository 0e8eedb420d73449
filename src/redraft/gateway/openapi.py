"""The OpenAPI document of the gateway: its routes, what each accepts and what it answers.

The schemas of fields come from the tables by which the wires check them, so the two agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any

from .. import __version__
from ..base.parameters import ROUTING_FIELDS
from ..settings import Flag, Keyword, Number, ValueKind, WholeNumber
from . import chat_wire, messages_to_chat, responses_wire
from .exchange import WireName
from .request_fields import (
    CHAT_FIELDS,
    DENIED_PARAMETERS,
    MAX_GRADERS,
    MAX_METADATA_PAIRS,
    MAX_NAME_CHARS,
    MAX_OTHER_PARAMETERS,
    MAX_REQUIREMENTS,
    MAX_RUBRIC_CHARS,
    MAX_SPEC_CHARS,
    OPTION_KINDS,
)

Schema = dict[str, Any]

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
            "`redraft` of a request chooses how its answer is refined.",
        },
        "security": [{}, {"bearer": []}, {"key": []}],
        "paths": _model_paths(models) | _other_paths(models),
        "components": {
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
            "schemas": _schemas(models),
        },
    }


def _model_paths(models: Sequence[str]) -> dict[str, Any]:
    """Return the paths that ask models."""
    return {
        "/v1/chat/completions": {
            "post": _model_operation(
                "createChatCompletion", "ChatRequest", "ChatCompletion", "chat"
            )
        },
        "/v1/responses": {
            "post": _model_operation("createResponse", "ResponseRequest", "Response", "responses")
        },
        "/v1/messages": {
            "post": _model_operation("createMessage", "MessageRequest", "Message", "messages")
        },
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


def _other_paths(models: Sequence[str]) -> dict[str, Any]:
    """Return the paths that read."""
    model_id = {
        "name": "id",
        "in": "path",
        "required": True,
        "schema": {"type": "string", "enum": list(models)} if models else TEXT,
    }
    return {
        "/v1/models": {
            "get": _read_operation(
                "listModels", "The models that the key may use", _reference("ModelList")
            )
        },
        "/v1/models/{id}": {
            "parameters": [model_id],
            "get": _read_operation("getModel", "A model", _reference("Model"), (*READ_ERRORS, 404)),
        },
        "/healthz": {"get": _read_operation("getHealth", "The process lives", _status("ok"))},
        "/readyz": {
            "get": {
                "operationId": "getReadiness",
                "summary": "Whether requests are taken. No model is asked",
                "responses": {
                    "200": _reply(
                        "Requests are taken",
                        _status("ready", store={"type": "string", "const": "failing"}),
                    ),
                    "503": _reply("The gateway shuts down", _status("draining")),
                    **_errors((421,), "chat"),
                },
            }
        },
        "/metrics": {
            "get": {
                "operationId": "getMetrics",
                "summary": "Figures for Prometheus",
                "responses": {
                    "200": {
                        "description": "Figures in Prometheus' text format",
                        "content": {"text/plain": {"schema": TEXT}},
                    },
                    **_errors(READ_ERRORS, "chat"),
                },
            }
        },
        "/openapi.json": {"get": _read_operation("getOpenAPI", "This document", OBJECT)},
    }


def _model_operation(name: str, request: str, reply: str, wire: WireName) -> dict[str, Any]:
    """Return an operation that asks a model. Its reply is a stream of events if the request says
    so.
    """
    content = {JSON_TYPE: {"schema": _reference(reply)}, STREAM_TYPE: {"schema": TEXT}}
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
    return {
        "operationId": name,
        "summary": "Answer a conversation",
        "parameters": [key],
        "requestBody": _body(request),
        "responses": {
            "200": {"description": "The answer", "headers": headers, "content": content},
            **{
                status: {**error, "headers": of_errors}
                for status, error in _errors(ERRORS, wire).items()
            },
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


def _errors(statuses: Iterable[int], wire: WireName) -> dict[str, Any]:
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
    return {"$ref": f"#/components/schemas/{name}"}


def _status(value: str, **more: Schema) -> Schema:
    return _object({"status": {"type": "string", "const": value}, **more}, "status")


def _object(properties: Mapping[str, Any], *required: str, closed: bool = False) -> Schema:
    schema: Schema = {"type": "object", "properties": dict(properties), "required": list(required)}
    return {**schema, "additionalProperties": False} if closed else schema


def _typed_object(
    kind: str, properties: Mapping[str, Any], *required: str, closed: bool = False
) -> Schema:
    """Return the schema of an object with a constant `type`."""
    return _object({"type": {"const": kind}, **properties}, "type", *required, closed=closed)


def _list(items: Schema, minimum: int = 0, maximum: int | None = None) -> Schema:
    schema: Schema = {"type": "array", "items": items, "minItems": minimum}
    return schema if maximum is None else {**schema, "maxItems": maximum}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def schema_of(kind: ValueKind) -> Schema:
    """Return the JSON schema of the values that a check allows."""
    if isinstance(kind, Flag):
        return {"type": "boolean"}
    if isinstance(kind, Keyword):
        return {"type": "string", "enum": list(kind.choices)}
    if isinstance(kind, WholeNumber):
        limits = {"minimum": kind.minimum, "maximum": kind.maximum}
        return {
            "type": "integer",
            **{name: value for name, value in limits.items() if value is not None},
        }
    if isinstance(kind, Number):
        bounds = {"minimum": kind.minimum, "maximum": kind.maximum}
        return {
            "type": "number",
            **{name: value for name, value in bounds.items() if isfinite(value)},
        }
    return TEXT


def _fields(kinds: Mapping[str, ValueKind]) -> dict[str, Schema]:
    return {name: _or_null(schema_of(kind)) for name, kind in kinds.items()}


def _refused_fields(table: Mapping[str, tuple[tuple[Any, ...], str]]) -> dict[str, Schema]:
    """Return fields that cannot be honoured: the values that ask for nothing are allowed."""
    return {
        name: {"enum": [None, *unused], "description": f"Refused: {why}"}
        for name, (unused, why) in table.items()
    }


def _model_name(models: Sequence[str]) -> Schema:
    return (
        {"type": "string", "enum": list(models)} if models else {"type": "string", "minLength": 1}
    )


def _schemas(models: Sequence[str]) -> dict[str, Schema]:
    model = _model_name(models)
    error = {"message": TEXT, "type": TEXT, "param": _or_null(TEXT), "code": _or_null(TEXT)}
    return {
        "Options": _options_schema(),
        "ChatRequest": _chat_request(model),
        "ResponseRequest": _response_request(model),
        **_message_requests(model),
        **_replies(),
        "Error": _object({"error": _object(error, *error)}, "error"),
        "MessageError": _typed_object(
            "error", {"error": _object({"type": TEXT, "message": TEXT}, "type", "message")}, "error"
        ),
    }


def _options_schema() -> Schema:
    properties = _fields(OPTION_KINDS) | {
        "rubric": _or_null({"type": "string", "minLength": 1, "maxLength": MAX_RUBRIC_CHARS}),
        "graders": _or_null({**_list(_grader_name(), 1, MAX_GRADERS), "uniqueItems": True}),
        "requirements": _or_null(
            _list({"type": "string", "maxLength": MAX_SPEC_CHARS}, 0, MAX_REQUIREMENTS)
        ),
    }
    return {
        **_object(properties, closed=True),
        "description": "How the answer is refined, within the maxima of the profile",
    }


def _grader_name() -> Schema:
    return {"type": "string", "pattern": r"\S", "maxLength": MAX_SPEC_CHARS}


def _shared_fields(model: Schema) -> dict[str, Schema]:
    metadata = {
        "type": "object",
        "additionalProperties": {"type": "string", "maxLength": 512},
        "maxProperties": MAX_METADATA_PAIRS,
    }
    return {
        "model": model,
        "temperature": _or_null({"type": "number", "minimum": 0, "maximum": 2}),
        "stream": _or_null({"type": "boolean"}),
        "store": _or_null({"type": "boolean"}),
        "metadata": _or_null(metadata),
        "redraft": _or_null(_reference("Options")),
    }


def _function_schema() -> dict[str, Schema]:
    return {
        "name": {"type": "string", "minLength": 1},
        "description": TEXT,
        "parameters": OBJECT,
        "strict": _or_null({"type": "boolean"}),
    }


def _format_fields() -> dict[str, Schema]:
    return {
        "name": TEXT,
        "description": _or_null(TEXT),
        "schema": OBJECT,
        "strict": _or_null({"type": "boolean"}),
    }


def _request(properties: Mapping[str, Any], *required: str) -> Schema:
    """Return the schema of a request, which may have other fields for the model, but not those that
    are another protocol's.
    """
    names = {"minLength": 1, "maxLength": MAX_NAME_CHARS}
    refused = _null_fields({*CHAT_FIELDS, *DENIED_PARAMETERS} - set(properties))
    return {
        **_object({**properties, **refused}, *required),
        "propertyNames": names,
        "maxProperties": MAX_OTHER_PARAMETERS,
    }


def _null_fields(names: Iterable[str]) -> dict[str, Schema]:
    """Return fields that may only be null."""
    return {name: {"type": "null"} for name in sorted(names)}


def _chat_request(model: Schema) -> Schema:
    tokens = _or_null({"type": "integer", "minimum": 1, "maximum": 2**31})
    stop = {"type": "string", "minLength": 1, "maxLength": MAX_NAME_CHARS}
    tool = _typed_object("function", {"function": _object(_function_schema(), "name")}, "function")
    form = _typed_object(
        "json_schema",
        {"json_schema": _object(_format_fields(), "name", closed=True)},
        "json_schema",
    )
    plain = _object({"type": {"enum": ["text", "json_object"]}}, "type")
    properties = {
        **_shared_fields(model),
        "messages": _list(_chat_message(), 1),
        "tools": _or_null(_list(tool, 0, chat_wire.MAX_TOOLS)),
        "tool_choice": {"description": "none, auto, required, or a function in `tools`"},
        "response_format": _or_null({"anyOf": [plain, form]}),
        "max_tokens": tokens,
        "max_completion_tokens": tokens,
        "seed": _or_null(
            {"type": "integer", "minimum": -chat_wire.MAX_SEED, "maximum": chat_wire.MAX_SEED}
        ),
        "stop": {"anyOf": [stop, _list(stop, 0, chat_wire.MAX_STOPS), {"type": "null"}]},
        "stream_options": {"description": "With `stream`: include_usage"},
        **_fields(chat_wire.PASSED),
        **{name: _or_null(OBJECT) for name in chat_wire.PASSED_OBJECTS},
        **_refused_fields(chat_wire.REFUSED),
    }
    return _request(properties, "model", "messages")


def _chat_message() -> Schema:
    part = _typed_object("text", {"text": TEXT}, "text")
    url = {"type": "string", "pattern": "^https?://"}
    image = _typed_object("image_url", {"image_url": _object({"url": url}, "url")}, "image_url")
    content = {"anyOf": [TEXT, _list({"anyOf": [part, image]}, 1)]}
    function = _object(
        {"name": {"type": "string", "minLength": 1}, "arguments": TEXT}, "name", "arguments"
    )
    call = _object(
        {"id": TEXT, "type": {"const": "function"}, "function": function}, "id", "type", "function"
    )
    asking = {"role": {"enum": ["system", "developer", "user"]}, "content": content}
    answering = {
        "role": {"const": "assistant"},
        "content": _or_null(content),
        "tool_calls": _list(call, 0),
    }
    result = {"role": {"const": "tool"}, "content": content, "tool_call_id": TEXT}
    return {
        "anyOf": [
            _object(asking, "role", "content", closed=True),
            _object(answering, "role", "content", closed=True),
            _object(result, "role", "content", "tool_call_id", closed=True),
        ]
    }


def _response_request(model: Schema) -> Schema:
    tool = _typed_object("function", _function_schema(), "name")
    form = _typed_object("json_schema", _format_fields(), "name", closed=True)
    plain = _object({"type": {"enum": ["text", "json_object"]}}, "type", closed=True)
    text = _object(
        {"format": _or_null({"anyOf": [plain, form]}), "verbosity": _or_null(TEXT)}, closed=True
    )
    properties = {
        **_shared_fields(model),
        "input": {"anyOf": [TEXT, _list(_input_item(), 1)]},
        "instructions": _or_null(TEXT),
        "tools": _or_null(_list(tool, 0, chat_wire.MAX_TOOLS)),
        "tool_choice": {"description": "none, auto, required, or a function in `tools`"},
        "text": _or_null(text),
        "max_output_tokens": _or_null({"type": "integer", "minimum": 1, "maximum": 2**31}),
        "max_tool_calls": _or_null({"type": "integer", "minimum": 1}),
        "reasoning": _or_null(_object({"effort": _or_null(TEXT)}, closed=True)),
        "include": _or_null(_list({"const": responses_wire.INCLUDABLE})),
        "stream_options": {
            "description": "With `stream`: include_obfuscation, which must be false"
        },
        **_fields(responses_wire.PASSED_FIELDS),
        "prompt_cache_options": _or_null(OBJECT),
        **_refused_fields(responses_wire.REFUSED),
    }
    return _request(properties, "model", "input")


def _input_item() -> Schema:
    part = _object(
        {"type": {"enum": list(responses_wire.TEXT_PARTS)}, "text": TEXT}, "type", "text"
    )
    message = {
        "type": {"const": "message"},
        "role": {"enum": ["user", "assistant", "system", "developer"]},
    }
    call = {
        "type": {"const": "function_call"},
        "call_id": TEXT,
        "name": {"type": "string", "minLength": 1},
        "arguments": TEXT,
    }
    output = {"type": {"const": "function_call_output"}, "call_id": TEXT, "output": TEXT}
    return {
        "anyOf": [
            _object(
                {**message, "content": {"anyOf": [TEXT, _list(part, 1)]}},
                "role",
                "content",
                closed=True,
            ),
            _object(call, "type", "call_id", "name", "arguments", closed=True),
            _object(output, "type", "call_id", "output", closed=True),
        ]
    }


def _message_requests(model: Schema) -> dict[str, Schema]:
    """Return the requests of Anthropic's protocol."""
    text = _typed_object("text", {"text": {"type": "string", "minLength": 1}}, "text")
    content = {"anyOf": [{"type": "string", "minLength": 1}, _list(text, 1)]}
    message = _object(
        {"role": {"enum": ["user", "assistant"]}, "content": content},
        "role",
        "content",
        closed=True,
    )
    name = {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,128}$"}
    parameters = _object({"type": {"const": "object"}}, "type")
    fields = {"name": name, "description": TEXT, "input_schema": parameters}
    tool = _object(fields, "name", "input_schema", closed=True)
    counted = {
        "model": model,
        "messages": _list(message, 1),
        "system": content,
        "tools": _list(tool),
    }
    properties = {
        **counted,
        "max_tokens": {"type": "integer", "minimum": 1, "maximum": 2**31},
        "temperature": {"type": "number", "minimum": 0, "maximum": 1},
        "top_p": {"type": "number", "minimum": 0, "maximum": 1},
        "stop_sequences": _list({"type": "string", "minLength": 1}, 0, chat_wire.MAX_STOPS),
        "tool_choice": {"description": "auto, any, none, or one of `tools`"},
        "stream": {"type": "boolean"},
        "redraft": _reference("Options"),
        **_refused_fields(messages_to_chat.REFUSED),
    }
    return {
        "MessageRequest": _request(properties, "model", "messages", "max_tokens"),
        "TokenCountRequest": _object(
            {**counted, **_null_fields(ROUTING_FIELDS)}, "model", "messages"
        ),
        "TokenCount": _object({"input_tokens": WHOLE}, "input_tokens"),
    }


def _replies() -> dict[str, Schema]:
    """Return the replies. Those that are passed on may have other fields, too."""
    chat = {
        "id": TEXT,
        "object": TEXT,
        "created": WHOLE,
        "model": TEXT,
        "choices": _list(OBJECT),
        "usage": _or_null(OBJECT),
    }
    response = {
        "id": TEXT,
        "object": {"const": "response"},
        "status": TEXT,
        "model": TEXT,
        "output": _list(OBJECT),
    }
    message = {
        "id": TEXT,
        "type": {"const": "message"},
        "role": {"const": "assistant"},
        "model": TEXT,
        "content": _list(OBJECT),
    }
    model = {"id": TEXT, "object": {"const": "model"}, "owned_by": TEXT}
    return {
        "ChatCompletion": _object(chat, "id", "object", "created", "model", "choices"),
        "Response": _object(response, "id", "object", "status", "model", "output"),
        "Message": _object(message, "id", "type", "role", "model", "content"),
        "Model": _object(model, "id", "object", "owned_by"),
        "ModelList": _object(
            {"object": {"const": "list"}, "data": _list(_reference("Model"))}, "object", "data"
        ),
    }
