"""Read what an OpenAI-compatible endpoint sends in one piece: replies, usage, tool calls, refusals and errors.

Nothing here touches the network. A body becomes a `Reply`, or the `ModelError` that describes it. The HTTP client and
the in-process engine share this module; streams are read in `sse`, rate-limit headers in `rate_limit_headers`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from ..core.records import MAX_TOOL_CALLS, ToolCall
from ..errors import (
    AuthenticationError,
    BadResponseError,
    ContentFilterError,
    ContextLengthError,
    ModelError,
    ModelTimeoutError,
    ModelUnavailableError,
    RateLimitError,
)
from ..jsontext import loads, nesting_depth, reject_constant
from ..protocols import Reply
from ..usage import Usage
from .http_client import REFUSED_USAGE, UNKNOWN_USAGE
from .rate_limit_headers import retry_delay

TRANSIENT_STATUSES = frozenset({408, 409, 425, 429, *range(500, 600)})
_OUT_OF_QUOTA_CODES = {"insufficient_quota", "billing_not_active", "billing_hard_limit_reached", "account_deactivated"}
_TOO_LONG_CODES = {"context_length_exceeded", "exceed_context_size_error", "string_above_max_length", "request_too_large"}
_TOO_LONG_WORDS = re.compile(
    r"context (length|size|window)|maximum context|prompt is too long|too many (input )?tokens|input is too long"
    r"|(prompt|input|request)[^.]{0,60} exceeds? [^.]{0,60}tokens",
    re.IGNORECASE,
)
_JINJA_PREFIX = "Jinja Exception: "
_ROW_AND_COLUMN = re.compile(r" at row \d+, column \d+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]+")


def shorten(text: str, limit: int = 300) -> str:
    """A foreign text on one line, without control characters, and not long."""
    line = " ".join(_CONTROL.sub(" ", text[: 4 * limit]).split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def parse_body(body: bytes, content_type: str = "") -> Any:
    """The JSON in a body. Raises BadResponseError naming what came instead."""
    try:
        return loads(body)
    except ValueError as error:
        raise BadResponseError(_not_json_message(body, content_type, str(error)), retryable=True, usage=UNKNOWN_USAGE) from None


def _is_html(body: bytes) -> bool:
    return body[:200].lstrip().lower().startswith((b"<!doctype", b"<html", b"<head", b"<?xml"))


def _not_json_message(body: bytes, content_type: str, error: str) -> str:
    if not body.strip():
        return "sent an empty body"
    if _is_html(body):
        return f"sent a web page where an answer was expected: {shorten(page_text(body))!r}"
    try:
        body.decode()
    except UnicodeDecodeError as bad:
        return f"sent text that is not UTF-8 (byte {bad.start})"
    kind = f" ({shorten(content_type, 60)})" if content_type and "json" not in content_type else ""
    return f"sent broken or cut off JSON{kind}: {shorten(error, 100)}"


_MARKUP = re.compile(r"<(script|style)\b(?:.*?</\1>|.*)|<[^<>]*>", re.DOTALL | re.IGNORECASE)  # (a script that never ends is all)


def page_text(body: bytes) -> str:
    """What a page says, tags taken out."""
    page = body[:4000].decode("utf-8", "replace")
    return _MARKUP.sub(" ", page)


def read_reply(data: Any) -> Reply:
    """The Reply in a chat completion. Raises for what is none."""
    if not isinstance(data, dict):
        raise bad_response(f"sent {json_type_name(data)} where a chat completion was expected")
    choices = data.get("choices")
    if not isinstance(choices, list) or not choices:
        raise _missing_choices_error(data, choices)
    choice = choices[0]
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(message, dict):
        raise bad_response(f"sent a choice without a message: {shorten(repr(choice), 100)}")
    return reply_from_message(message, choice.get("finish_reason"), read_usage(data.get("usage")))


def bad_response(message: str, *, retryable: bool = True, usage: Usage = UNKNOWN_USAGE) -> BadResponseError:
    return BadResponseError(message, retryable=retryable, usage=usage)


def json_type_name(value: Any) -> str:
    kinds = {type(None): "null", list: "a list", dict: "an object", str: "a text", bool: "true or false"}
    return kinds.get(type(value), "a number")


def _missing_choices_error(data: Mapping[str, Any], choices: Any) -> ModelError:
    if data.get("error"):
        said = ErrorBody(data)
        return bad_response(
            f"sent an error in place of an answer: {said.text}", retryable=said.status is None or said.status in TRANSIENT_STATUSES
        )
    if choices == []:
        return bad_response("sent an answer with an empty list of choices")
    if "choices" in data:
        return bad_response(f"sent {json_type_name(choices)} as choices")
    return bad_response(f"sent an object without choices, with {shorten(', '.join(map(str, data)), 100) or 'nothing'}")


def reply_from_message(message: Mapping[str, Any], finish: Any, usage: Usage) -> Reply:
    """A Reply from a message, unless it is a refusal or empty."""
    text, thoughts = split_content(message.get("content"), usage)
    text, inline = split_thinking(text)
    thought = [*thoughts, *(t for t in (reasoning_text(message), inline) if t)]
    finish = finish if isinstance(finish, str) else None
    _check_refusal(message, finish, usage)
    calls = read_tool_calls(message, finish, usage)
    if not text.strip() and not calls:
        error = _empty_answer_error(finish, bool(thought), usage)
        error.empty = True
        raise error
    return Reply(text if text.strip() else "", usage, finish, "\n".join(thought) or None, tool_calls=calls)


def reasoning_text(message: Mapping[str, Any]) -> str:
    said = (message.get(name) for name in ("reasoning_content", "reasoning"))
    return next((t for t in said if isinstance(t, str) and t), "")


def split_content(content: Any, usage: Usage) -> tuple[str, list[str]]:
    """Text, and thoughts, of a content that is text, nothing, or a list of parts."""
    if content is None or isinstance(content, str):
        return content or "", []
    if not isinstance(content, list):
        raise bad_response(f"sent {json_type_name(content)} as the content of its message", usage=usage)
    texts: list[str] = []
    thoughts: list[str] = []
    for part in content:
        _sort_part(part, texts, thoughts, usage)
    return "".join(texts), thoughts


def _sort_part(part: Any, texts: list[str], thoughts: list[str], usage: Usage) -> None:
    if not isinstance(part, dict):
        raise bad_response(f"sent a content with {json_type_name(part)} in it", usage=usage)
    if part.get("type") == "thinking":
        thoughts.append(split_content(part.get("thinking"), usage)[0])
    elif isinstance(part.get("text"), str):
        texts.append(part["text"])


def _check_refusal(message: Mapping[str, Any], finish: str | None, usage: Usage) -> None:
    refusal = message.get("refusal")
    if isinstance(refusal, str) and refusal.strip():
        raise ContentFilterError(f"refused: {shorten(refusal)}", usage=usage)
    if finish == "content_filter":
        raise ContentFilterError("the answer was withheld by a content filter (finish_reason content_filter)", usage=usage)


def _empty_answer_error(finish: str | None, has_reasoning: bool, usage: Usage) -> BadResponseError:  # noqa: FBT001
    if has_reasoning and finish == "length":
        return bad_response("used up its tokens on reasoning: no answer came (raise max_tokens)", usage=usage)
    what = "reasoning but no answer" if has_reasoning else "an empty answer"
    return bad_response(f"sent {what} (finish_reason {finish!r})", usage=usage)


def read_usage(usage: Any) -> Usage:
    """One call's usage. What is missing, negative or no whole number is unknown."""
    given = usage if isinstance(usage, dict) else {}
    return Usage(1, _count(given.get("prompt_tokens")), _count(given.get("completion_tokens")), cost=None)


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


# ---- calls of tools

MAX_ARGUMENT_DEPTH = 100
"""Objects and lists inside each other that the arguments of a tool call may hold."""
MAX_NAME_CHARS = 256
"""Characters that the name and the id of a tool call may have."""


def read_tool_calls(message: Mapping[str, Any], finish: str | None, usage: Usage) -> tuple[ToolCall, ...]:
    """The tool calls in a message, in OpenAI's form, the earlier `function_call`, and what other servers make of it: arguments as
    an object, no id. Raises BadResponseError for what is no call.

    A call without an id of its own gets one that is made of what it asks for.
    """
    given, earlier = message.get("tool_calls"), message.get("function_call")
    if not given:
        given = [{"function": earlier}] if earlier else []
    if not isinstance(given, list):
        raise bad_response(f"sent {json_type_name(given)} as tool calls", usage=usage)
    if len(given) > MAX_TOOL_CALLS:
        raise bad_response(f"sent {len(given)} tool calls; at most {MAX_TOOL_CALLS} are read", usage=usage)
    calls: list[ToolCall] = []
    for each in given:
        call = _tool_call(each, finish, usage)
        taken = {other.id for other in calls}
        calls.append(
            call if call.id and call.id not in taken else ToolCall(call.name, call.arguments, _derive_id(call, len(calls)))
        )
    return tuple(calls)


def _tool_call(call: Any, finish: str | None, usage: Usage) -> ToolCall:
    function = call.get("function") if isinstance(call, dict) else None
    if isinstance(call, dict) and call.get("type") not in {None, "", "function"}:
        raise bad_response(
            f"sent a tool call of the type {shorten(repr(call['type']), 60)}; only functions can be called", usage=usage
        )
    if not isinstance(function, dict):
        raise bad_response(f"sent a tool call without a function: {shorten(repr(call), 100)}", usage=usage)
    name, id = function.get("name"), call.get("id")
    if not isinstance(name, str) or not name.strip() or len(name) > MAX_NAME_CHARS:
        raise bad_response(f"sent a tool call without the name of a function: {shorten(repr(name), 100)}", usage=usage)
    arguments = _arguments(name, function.get("arguments"), finish, usage)
    return ToolCall(name, arguments, id if isinstance(id, str) and len(id) <= MAX_NAME_CHARS else "")


def _arguments(name: str, raw: Any, finish: str | None, usage: Usage) -> str:
    """The arguments as JSON text; those that are such a text as it stands."""
    of = f"the arguments of the tool call {shorten(name, 60)!r}"
    if isinstance(raw, str) and raw.strip():
        try:
            value = json.loads(raw, parse_constant=reject_constant)
        except (ValueError, RecursionError) as error:
            if finish == "length":
                raise bad_response(f"was cut off in {of} (raise max_tokens)", usage=usage) from None
            raise bad_response(f"sent no JSON as {of}: {shorten(str(error), 100)}", usage=usage) from None
    else:
        value = {} if raw is None or isinstance(raw, str) else raw
    if not isinstance(value, dict):
        raise bad_response(f"sent {json_type_name(value)} as {of}; they must be an object", usage=usage)
    if nesting_depth(value) > MAX_ARGUMENT_DEPTH:
        raise bad_response(f"nested {of} more than {MAX_ARGUMENT_DEPTH} deep", usage=usage)
    return raw if isinstance(raw, str) and raw.strip() else json.dumps(value, ensure_ascii=False)


def _derive_id(call: ToolCall, index: int) -> str:
    """The id of a call that came without one, or with that of another: the same for the same answer."""
    asked = json.dumps([index, call.name, call.arguments])
    return f"call_{sha256(asked.encode()).hexdigest()[:24]}"


# ---- thinking aloud

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
_BLOCK = re.compile(f"{THINK_OPEN}(.*?){THINK_CLOSE}", re.DOTALL)
_ORPHAN = re.compile(r"^[ \t]*</think>\s*", re.MULTILINE)


def split_thinking(text: str) -> tuple[str, str]:
    """An answer without its `<think>` blocks, and what stood in them. A leading one that never ends is all there is.

    A template may open the block in the prompt: then the answer begins after a line that begins with `</think>`.
    Blocks quoted in code, or after a brace (in a text of a JSON object, say), are part of the answer.
    """
    if "think>" not in text:
        return text, ""
    if THINK_OPEN not in text and (orphan := _ORPHAN.search(text)):
        return text[orphan.end() :], text[: orphan.start()].strip()
    kept, thoughts = _split_think_blocks(text)
    rest = "".join(kept)
    if rest.lstrip().startswith(THINK_OPEN):
        thoughts.append(rest.lstrip().removeprefix(THINK_OPEN))
        rest = ""
    thought = "\n".join(t.strip() for t in thoughts)
    return (rest.lstrip() if thoughts else rest), thought


def _split_think_blocks(text: str) -> tuple[list[str], list[str]]:
    """What stands outside the closed blocks, and inside; in one pass, however many there are."""
    kept: list[str] = []
    thoughts: list[str] = []
    closed, close, rest = text.rpartition(THINK_CLOSE)  # (without an end, each beginning would look for one)
    quotation, pieces = _QuoteTracker(), _BLOCK.split(closed + close)
    for outside, inside in zip(pieces[::2], pieces[1::2], strict=False):
        kept.append(outside)
        if quotation.is_quoted_after(outside):
            kept.append(f"{THINK_OPEN}{inside}{THINK_CLOSE}")
        else:
            thoughts.append(inside)
    return [*kept, pieces[-1], rest], thoughts


class _QuoteTracker:
    """Whether a place in a text is quoted: within a fence, within backticks on its line, or after the brace that may begin JSON."""

    def __init__(self) -> None:
        self._fences = self._ticks = 0
        self._braces = False

    def is_quoted_after(self, more: str) -> bool:
        if "`" in more or "\n" in more or "{" in more:
            self._advance(more)
        return self._braces or bool(self._fences % 2 or self._ticks % 2)

    def _advance(self, more: str) -> None:
        self._braces = self._braces or "{" in more
        self._fences += more.count("```")
        line = more.rpartition("\n")
        self._ticks = line[2].count("`") + (0 if line[1] else self._ticks)


# ---- bodies that say no


class ErrorBody:
    """What the server says in an error: its words, its codes, the parameter it names."""

    def __init__(self, data: Any) -> None:
        error = data.get("error", data) if isinstance(data, dict) else data
        if isinstance(error, list) and error:
            error = error[0]
        self._fields: Mapping[str, Any] = error if isinstance(error, dict) else {"message": error}
        detail = self._fields.get("detail")
        words = self._fields.get("message") or detail or self._fields.get("error") or ""
        self.text = shorten(_error_message(words))

    @property
    def status(self) -> int | None:
        code = self._fields.get("code")
        return int(str(code)) if str(code).isdecimal() else None

    @property
    def codes(self) -> set[str]:
        return {str(self._fields[k]) for k in ("code", "type") if self._fields.get(k)}

    @property
    def param(self) -> str | None:
        param = self._fields.get("param")
        return param if isinstance(param, str) else None


def _error_message(words: Any) -> str:
    """What a server complains of: the words a chat template raises without its source, the fields that a validator refuses."""
    if isinstance(words, Mapping):
        words = words.get("detail") or words.get("message") or str(words)
    if isinstance(words, list):
        return "; ".join(map(_field_error, words[:10]))
    text = str(words)
    return text.rpartition(_JINJA_PREFIX)[2] if _JINJA_PREFIX in text else _ROW_AND_COLUMN.split(text, 1)[0]


def _field_error(detail: Any) -> str:
    """One of a validator's complaints, without the value that it repeats."""
    if not isinstance(detail, Mapping) or "msg" not in detail:
        return str(detail)
    where = detail.get("loc")
    return f"{'.'.join(map(str, where))}: {detail['msg']}" if isinstance(where, list) else str(detail["msg"])


def parse_error_body(body: bytes) -> ErrorBody:
    """What a body with an error status says, whatever form it has."""
    try:
        return ErrorBody(loads(body))
    except ValueError:
        return ErrorBody(page_text(body))


def error_from_status(status: int, error_body: ErrorBody, headers: Mapping[str, str] | None = None) -> ModelError:
    """The typed error for an error status. Nothing was bought."""
    kind, retryable = _error_class(status, error_body)
    after = retry_delay(status, headers or {}) if retryable else None
    words = f": {error_body.text}" if error_body.text else ""
    if error_body.param and error_body.param not in error_body.text:
        words += f" (parameter {shorten(error_body.param, 60)!r}: {shorten(', '.join(sorted(error_body.codes)), 100)})"
    return kind(f"status {status}{words}", status=status, retry_after=after, retryable=retryable, usage=REFUSED_USAGE)


def _error_class(status: int, error_body: ErrorBody) -> tuple[type[ModelError], bool]:
    special = _special_error_class(status, error_body)
    if special is not None:
        return special, False
    match status:
        case 408:
            return ModelTimeoutError, True
        case 429:
            return RateLimitError, True
        case 409 | 425:
            return ModelUnavailableError, True
    return (ModelUnavailableError, True) if status >= 500 else (ModelError, False)


def _special_error_class(status: int, error_body: ErrorBody) -> type[ModelError] | None:
    """The kinds that are told apart by more than the status, or never get better by waiting."""
    if status in {401, 402, 403} or error_body.codes & _OUT_OF_QUOTA_CODES:
        return AuthenticationError
    if status in {404, 405, 410} or "model_not_found" in error_body.codes:
        return ModelUnavailableError
    if "content_filter" in error_body.codes:
        return ContentFilterError
    too_long = error_body.codes & _TOO_LONG_CODES or (status in {400, 413, 422, 500} and _TOO_LONG_WORDS.search(error_body.text))
    return ContextLengthError if too_long or status == 413 else None
