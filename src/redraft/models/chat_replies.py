"""Read the answers of OpenAI's chat protocol: replies, usage, tool calls and log-probabilities.

Nothing here uses the network. A body becomes a `Reply`, or a `ModelError` that says why it is not
one. All clients of chat models share this module; `sse` reads streams, `server_errors` reads what a
server says is wrong.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from types import MappingProxyType
from typing import Any

from ..base.checks import is_blank
from ..base.finish_reasons import checked_finish, ending_of
from ..base.jsontext import list_in, loads, nesting_depth, object_in, reject_constant, text_in
from ..base.text import shorten
from ..errors import (
    BadResponseError,
    ContentFilterError,
    ModelError,
)
from ..loop.records import MAX_TOOL_CALLS, ToolCall
from ..protocols import Reply, TokenLogprobs
from ..usage import Usage
from .http_client import UNKNOWN_USAGE, malformed_response
from .reasoning import split_reasoning
from .server_errors import (
    ErrorBody,
    answer_error,
    page_text,
    stated_error,
)


def parse_body(body: bytes, content_type: str = "") -> Any:
    """Return the JSON in a body, which may have NaN and Infinity. Raises BadResponseError, which
    describes anything else.
    """
    try:
        return loads(body)
    except ValueError as error:
        if b"NaN" in body or b"Infinity" in body:  # (as log-probabilities)
            with suppress(ValueError, RecursionError):
                return json.loads(body)
        raise malformed_response(_not_json_message(body, content_type, str(error))) from None


def _not_json_message(body: bytes, content_type: str, error: str) -> str:
    if not body.strip():
        return "sent an empty body"
    if body[:200].lstrip().lower().startswith((b"<!doctype", b"<html", b"<head", b"<?xml")):
        return f"sent a web page instead of an answer: {shorten(page_text(body))!r}"
    try:
        body.decode()
    except UnicodeDecodeError as bad:
        return f"sent text that is not UTF-8 (byte {bad.start})"
    kind = f" ({shorten(content_type, 60)})" if content_type and "json" not in content_type else ""
    return f"sent broken or cut off JSON{kind}: {shorten(error, 100)}"


def read_reply(data: Any) -> Reply:
    """Return the Reply in a chat completion. Raises ModelError if it is none."""
    if not isinstance(data, dict):
        raise malformed_response(
            f"sent {json_type_name(data)} where a chat completion was expected"
        )
    choices, usage = data.get("choices"), read_usage(data.get("usage"))
    if error := stated_error(data):
        raise answer_error(
            "sent an error instead of an answer", error, usage if choices else UNKNOWN_USAGE
        )
    if not isinstance(choices, list) or not choices:
        raise _missing_choices_error(data, choices)
    choice = choices[0] if isinstance(choices[0], dict) else {}
    finish, message = read_finish(choice, usage), choice.get("message")
    if message is None and finish in {"length", "content_filter"}:
        message = {}
    if not isinstance(message, dict):
        raise malformed_response(
            f"sent a choice without a message: {shorten(repr(choices[0]), 100)}"
        )
    fields = answer_fields(data, data.get("usage"), logprob_entries(choice))
    return reply_from_message(message, finish, usage, fields)


def answer_fields(data: Mapping[str, Any], usage: Any, logprobs: list[Any]) -> dict[str, Any]:
    """Return what an answer says besides its message, as fields of a Reply: what the endpoint calls
    it and the model that gave it, its tokens from a cache and of reasoning, and log-probabilities.
    """
    return {
        "response_id": text_in(data, "id")[:MAX_NAME_CHARS],
        "response_model": text_in(data, "model")[:MAX_NAME_CHARS],
        **read_token_details(usage),
        "token_logprobs": read_logprobs(logprobs),
    }


def bad_response(message: str, *, usage: Usage) -> BadResponseError:
    """Return the error for an answer of a model that cannot be used."""
    return BadResponseError(message, retryable=True, usage=usage)


def json_type_name(value: object) -> str:
    return {
        type(None): "null",
        list: "a list",
        dict: "an object",
        str: "a text",
        bool: "true or false",
    }.get(type(value), "a number")


def read_finish(choice: Mapping[str, Any], usage: Usage = UNKNOWN_USAGE) -> str | None:
    """Return a choice's reason to finish, by OpenAI's names, whole or in a stream; None if it
    states none.

    Raises ModelError if the choice states an error, or did not end as a whole answer does.
    """
    if (
        error := stated_error(choice)
        or stated_error(choice.get("message"))
        or stated_error(choice.get("delta"))
    ):
        raise answer_error("broke off with an error", error, usage)
    reason = choice.get("finish_reason")
    return checked_finish(
        choice.get("native_finish_reason") if ending_of(reason) is None else reason, usage
    )


def _missing_choices_error(data: Mapping[str, Any], choices: Any) -> ModelError:
    if choices == []:
        return malformed_response("sent an answer with an empty list of choices")
    if "choices" in data:
        return malformed_response(f"sent {json_type_name(choices)} as choices")
    words = ErrorBody(data).text
    said = (
        f": {words}" if words else f", with {shorten(', '.join(map(str, data)), 100) or 'nothing'}"
    )
    return malformed_response(f"sent an object without choices{said}")


def reply_from_message(
    message: Mapping[str, Any],
    finish: Any,
    usage: Usage,
    fields: Mapping[str, Any] = MappingProxyType({}),
) -> Reply:
    """Return a Reply, with these further fields, from a message.

    Raises ContentFilterError for a refusal, BadResponseError for an empty answer.
    """
    content, reasoning = split_content(message.get("content"), usage)
    if field := reasoning_field(message):
        reasoning.append(message[field])
    text, thoughts, form = split_reasoning(content)
    if any(map(str.strip, reasoning)):
        form = "separate" if form is None else "other"
    if thoughts:
        reasoning.append(thoughts)
    finish = checked_finish(finish, usage)
    _check_refusal(text_in(message, "refusal"), finish, usage)
    tool_calls = read_tool_calls(message, finish, usage)
    if is_blank(text) and not tool_calls:
        # a server may take the answer for reasoning
        text, thoughts, form = split_reasoning(text_in(message, field))
        if form is None or is_blank(text):
            raise _empty_answer_error(finish, usage, field, has_reasoning=bool(reasoning))
        reasoning = [thoughts]
    return Reply(
        "" if is_blank(text) else text,
        usage,
        finish,
        "\n".join(reasoning) or None,
        tool_calls=tool_calls,
        reasoning_form=form,
        **fields,
    )


def _check_refusal(refusal: str, finish: str | None, usage: Usage) -> None:
    """Raise ContentFilterError for an answer that the model refused, or a filter withheld."""
    if refusal.strip():
        error = ContentFilterError(f"refused: {shorten(refusal)}", usage=usage)
        error.refusal = refusal
        raise error
    if finish == "content_filter":
        raise ContentFilterError(
            "the answer was withheld by a content filter (finish_reason content_filter)",
            usage=usage,
        )


REASONING_ADVICE = "turn its thinking off or lower it, or correct the server's reasoning parser"


def _empty_answer_error(
    finish: str | None, usage: Usage, field: str, *, has_reasoning: bool
) -> BadResponseError:
    if finish == "length":
        part = "on reasoning: no answer came" if has_reasoning else "before its answer began"
        return truncated_error(f"used up its tokens {part} (raise `max_tokens`)", usage)
    kind = "an empty answer"
    if has_reasoning:
        kind += (
            f": the model wrote only reasoning{f' ({field})' if field else ''}; {REASONING_ADVICE}"
        )
    return bad_response(f"sent {kind} (finish_reason {finish!r})", usage=usage).without_text()


def truncated_error(message: str, usage: Usage) -> BadResponseError:
    """Return the error for an answer of which the token limit left nothing that can be used; the
    same call would end so again.
    """
    error = BadResponseError(message, retryable=False, usage=usage)
    error.truncated = True
    return error


def reasoning_field(message: Mapping[str, Any]) -> str:
    """Return the name of the field of a message, or of a part of one, that has its reasoning; "" if
    there is none.
    """
    return next(
        (name for name in ("reasoning_content", "reasoning") if text_in(message, name)),
        "",
    )


def reasoning_text(message: Mapping[str, Any]) -> str:
    """Return the reasoning in a field of its own."""
    return text_in(message, reasoning_field(message))


def split_content(content: Any, usage: Usage) -> tuple[str, list[str]]:
    """Return the text and the reasoning in a content, which is a text, None or a list of parts."""
    if content is None or isinstance(content, str):
        return content or "", []
    if not isinstance(content, list):
        raise bad_response(
            f"sent {json_type_name(content)} as the content of its message", usage=usage
        )
    texts: list[str] = []
    reasoning: list[str] = []
    for part in content:
        if not isinstance(part, dict):
            raise bad_response(f"sent a content with {json_type_name(part)} in it", usage=usage)
        if (
            str(part.get("type")).startswith(("thinking", "reasoning"))
            or part.get("thought") is True
        ):
            inside = part.get("thinking") or part.get("reasoning") or part.get("text")
            reasoning += filter(None, [split_content(inside, usage)[0]])
        elif isinstance(part.get("text"), str):
            texts.append(part["text"])
    return "".join(texts), reasoning


def read_usage(usage: Any) -> Usage:
    """Return the usage of one call. A number that is missing, negative or no integer is unknown."""
    fields = usage if isinstance(usage, dict) else {}
    return Usage(
        1,
        read_count(fields.get("prompt_tokens")),
        read_count(fields.get("completion_tokens")),
        cost=None,
    )


TOKEN_DETAILS: Mapping[str, tuple[str, ...]] = {
    "cached_tokens": ("cached_tokens", "prompt_cache_hit_tokens", "cache_read_input_tokens"),
    "cache_written_tokens": (
        "cache_write_tokens",
        "cache_creation_tokens",
        "cache_creation_input_tokens",
    ),
    "reasoning_tokens": ("reasoning_tokens", "thinking_tokens"),
}
"""What servers call the tokens that a Reply counts apart."""


def read_token_details(usage: Any) -> dict[str, int]:
    """Return the tokens that the usage of a call in any protocol counts apart, by their names in a
    Reply. Those that it does not tell are left out.
    """
    fields = dict(usage) if isinstance(usage, dict) else {}
    for start in ("prompt", "input", "completion", "output"):
        fields |= object_in(fields, f"{start}_tokens_details")
    counts = {name: first_count(fields, *keys) for name, keys in TOKEN_DETAILS.items()}
    return {name: count for name, count in counts.items() if count is not None}


def first_count(fields: Mapping[str, Any], *names: str) -> int | None:
    """Return the first number of tokens that is stated; None if none is."""
    counts = (read_count(fields.get(name)) for name in names)
    return next((count for count in counts if count is not None), None)


def read_count(value: object) -> int | None:
    """Return a number of tokens or requests; None if it is missing, negative or no integer."""
    return value if type(value) is int and value >= 0 else None


# ---- tool calls

MAX_ARGUMENT_DEPTH = 100  # nesting of the arguments of a tool call
MAX_NAME_CHARS = 256  # characters of the name and of the ID of a tool call


def read_tool_calls(
    message: Mapping[str, Any], finish: str | None, usage: Usage
) -> tuple[ToolCall, ...]:
    """Return the tool calls in a message. Raises BadResponseError for invalid ones.

    Besides OpenAI's form, it reads the earlier `function_call`, arguments as an object, and calls
    without an ID, as other servers send them. A missing or repeated ID is replaced by a hash of the
    call, so that the same answer has the same IDs.
    """
    items = message.get("tool_calls")
    if not items:
        if not (function_call := message.get("function_call")):
            return ()
        items = [{"function": function_call}]
    if not isinstance(items, list):
        raise bad_response(f"sent {json_type_name(items)} as tool calls", usage=usage)
    if len(items) > MAX_TOOL_CALLS:
        raise bad_response(
            f"sent {len(items)} tool calls; at most {MAX_TOOL_CALLS} are read", usage=usage
        )
    calls: list[ToolCall] = []
    for index, item in enumerate(items):
        call = _tool_call(item, finish, usage)
        if not call.id or call.id in {other.id for other in calls}:
            digest = sha256(json.dumps([index, call.name, call.arguments]).encode()).hexdigest()
            call = ToolCall(call.name, call.arguments, f"call_{digest[:24]}")
        calls.append(call)
    return tuple(calls)


def _tool_call(call: Any, finish: str | None, usage: Usage) -> ToolCall:
    function = call.get("function") if isinstance(call, dict) else None
    if isinstance(call, dict) and call.get("type") not in {None, "", "function"}:
        raise bad_response(
            f"sent a tool call of the type {shorten(repr(call['type']), 60)}; only functions can "
            "be called",
            usage=usage,
        )
    if not isinstance(function, dict):
        raise bad_response(
            f"sent a tool call without a function: {shorten(repr(call), 100)}", usage=usage
        )
    name, id = function.get("name"), call.get("id")
    if not isinstance(name, str) or not name.strip() or len(name) > MAX_NAME_CHARS:
        raise bad_response(
            f"sent a tool call without the name of a function: {shorten(repr(name), 100)}",
            usage=usage,
        )
    arguments = _arguments(name, function.get("arguments"), finish, usage)
    return ToolCall(
        name, arguments, id if isinstance(id, str) and len(id) <= MAX_NAME_CHARS else ""
    )


def check_argument_depth(arguments: Any, of: str, usage: Usage) -> None:
    """Raise BadResponseError for arguments of a tool call, named `of`, that are nested too deep."""
    if nesting_depth(arguments) > MAX_ARGUMENT_DEPTH:
        raise bad_response(f"nested {of} more than {MAX_ARGUMENT_DEPTH} deep", usage=usage)


def _arguments(name: str, raw: Any, finish: str | None, usage: Usage) -> str:
    """Return the arguments as JSON text; valid JSON text is returned unchanged."""
    of = f"the arguments of the tool call {shorten(name, 60)!r}"
    if isinstance(raw, str) and raw.strip():
        try:
            value = json.loads(raw, parse_constant=reject_constant)
        except (ValueError, RecursionError) as error:
            if finish == "length":
                raise truncated_error(f"was cut off in {of} (raise `max_tokens`)", usage) from None
            raise bad_response(
                f"sent no JSON as {of}: {shorten(str(error), 100)}", usage=usage
            ) from None
    else:
        value = {} if raw is None or isinstance(raw, str) else raw
    if not isinstance(value, dict):
        raise bad_response(
            f"sent {json_type_name(value)} as {of}; they must be an object", usage=usage
        )
    check_argument_depth(value, of, usage)
    return raw if isinstance(raw, str) and raw.strip() else json.dumps(value, ensure_ascii=False)


# ---- log-probabilities

MAX_TOP_TOKENS = 20  # alternatives of a token that are kept
MAX_TOKENS = 100_000  # tokens of an answer whose log-probabilities are read


def logprob_entries(choice: Mapping[str, Any]) -> list[Any]:
    """Return the entries for the tokens in a choice, as the endpoint sent them; an empty list if
    there are none.
    """
    return list_in(object_in(choice, "logprobs"), "content")


def read_logprobs(entries: list[Any]) -> tuple[TokenLogprobs, ...]:
    """Return the tokens with their log-probabilities; () if one is malformed: an answer without
    them is still an answer.
    """
    try:
        tokens = [_token_text(entry) for entry in entries[: MAX_TOKENS + 1]]
        if len(tokens) > MAX_TOKENS:
            return ()
        has_digit = [any(map(str.isdigit, token)) for token in tokens]
        kept = (
            here or before for here, before in zip(has_digit, [False, *has_digit], strict=False)
        )
        return tuple(
            TokenLogprobs(t, _top_tokens(e) if k else ())
            for t, e, k in zip(tokens, entries, kept, strict=True)
        )
    except (TypeError, ValueError, KeyError, AttributeError):
        return ()


def _token_text(entry: Mapping[str, Any]) -> str:
    """Return a token. Its bytes are preferred: a token may be a part of a character."""
    data, token = entry.get("bytes"), entry["token"]
    if not isinstance(token, str):
        raise TypeError(token)
    return bytes(data).decode("utf-8", "surrogateescape") if isinstance(data, list) else token


def _top_tokens(entry: Mapping[str, Any]) -> tuple[tuple[str, float], ...]:
    """Return the most likely tokens and the chosen one. Raises ValueError for what is no
    log-probability.
    """
    return tuple(
        {
            _token_text(one): _logprob(one["logprob"])
            for one in [entry, *(entry.get("top_logprobs") or ())][: MAX_TOP_TOKENS + 1]
        }.items()
    )


def _logprob(value: Any) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or math.isnan(value)
        or value > MAX_LOGPROB
    ):
        raise ValueError(value)
    return max(min(float(value), 0.0), MIN_LOGPROB)


MIN_LOGPROB, MAX_LOGPROB = -1e4, 1e-3  # (some endpoints send -inf, and 0 with a rounding error)
