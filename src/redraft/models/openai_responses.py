"""Reading what an OpenAI-compatible endpoint sent: an answer, a refusal, or something that is neither.

Nothing here touches the network: it turns parsed or unparsed bodies into a Reply or raises the ModelError they
deserve. The HTTP client and the in-process engine share it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from ..core.records import MAX_TOOL_CALLS, ToolCall, Usage
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
from ..jsontext import join_surrogate_pairs, loads, nesting_depth, reject_constant
from ..protocols import RateLimitStatus, Reply
from ..text import utf8_size
from .http_client import MAX_BODY_BYTES, REFUSED_USAGE, UNKNOWN_USAGE, too_large_error

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
MAX_EVENT_OVERHEAD = 1024
"""Bytes that an event may have around its text."""
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
        raise _bad_response(f"sent {_json_type_name(data)} where a chat completion was expected")
    choices = data.get("choices")
    if not isinstance(choices, list) or not choices:
        raise _missing_choices_error(data, choices)
    choice = choices[0]
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(message, dict):
        raise _bad_response(f"sent a choice without a message: {shorten(repr(choice), 100)}")
    return _reply_from_message(message, choice.get("finish_reason"), read_usage(data.get("usage")))


def _bad_response(message: str, *, retryable: bool = True, usage: Usage = UNKNOWN_USAGE) -> BadResponseError:
    return BadResponseError(message, retryable=retryable, usage=usage)


def _json_type_name(value: Any) -> str:
    kinds = {type(None): "null", list: "a list", dict: "an object", str: "a text", bool: "true or false"}
    return kinds.get(type(value), "a number")


def _missing_choices_error(data: Mapping[str, Any], choices: Any) -> ModelError:
    if data.get("error"):
        said = ErrorBody(data)
        return _bad_response(
            f"sent an error in place of an answer: {said.text}", retryable=said.status is None or said.status in TRANSIENT_STATUSES
        )
    if choices == []:
        return _bad_response("sent an answer with an empty list of choices")
    if "choices" in data:
        return _bad_response(f"sent {_json_type_name(choices)} as choices")
    return _bad_response(f"sent an object without choices, with {shorten(', '.join(map(str, data)), 100) or 'nothing'}")


def _reply_from_message(message: Mapping[str, Any], finish: Any, usage: Usage) -> Reply:
    """A Reply from a message, unless it is a refusal or empty."""
    text, thoughts = _split_content(message.get("content"), usage)
    text, inline = split_thinking(text)
    thought = [*thoughts, *(t for t in (_reasoning_text(message), inline) if t)]
    finish = finish if isinstance(finish, str) else None
    _check_refusal(message, finish, usage)
    calls = read_tool_calls(message, finish, usage)
    if not text.strip() and not calls:
        error = _empty_answer_error(finish, bool(thought), usage)
        error.empty = True
        raise error
    return Reply(text if text.strip() else "", usage, finish, "\n".join(thought) or None, tool_calls=calls)


def _reasoning_text(message: Mapping[str, Any]) -> str:
    said = (message.get(name) for name in ("reasoning_content", "reasoning"))
    return next((t for t in said if isinstance(t, str) and t), "")


def _split_content(content: Any, usage: Usage) -> tuple[str, list[str]]:
    """Text, and thoughts, of a content that is text, nothing, or a list of parts."""
    if content is None or isinstance(content, str):
        return content or "", []
    if not isinstance(content, list):
        raise _bad_response(f"sent {_json_type_name(content)} as the content of its message", usage=usage)
    texts: list[str] = []
    thoughts: list[str] = []
    for part in content:
        _sort_part(part, texts, thoughts, usage)
    return "".join(texts), thoughts


def _sort_part(part: Any, texts: list[str], thoughts: list[str], usage: Usage) -> None:
    if not isinstance(part, dict):
        raise _bad_response(f"sent a content with {_json_type_name(part)} in it", usage=usage)
    if part.get("type") == "thinking":
        thoughts.append(_split_content(part.get("thinking"), usage)[0])
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
        return _bad_response("used up its tokens on reasoning: no answer came (raise max_tokens)", usage=usage)
    what = "reasoning but no answer" if has_reasoning else "an empty answer"
    return _bad_response(f"sent {what} (finish_reason {finish!r})", usage=usage)


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
        raise _bad_response(f"sent {_json_type_name(given)} as tool calls", usage=usage)
    if len(given) > MAX_TOOL_CALLS:
        raise _bad_response(f"sent {len(given)} tool calls; at most {MAX_TOOL_CALLS} are read", usage=usage)
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
        raise _bad_response(
            f"sent a tool call of the type {shorten(repr(call['type']), 60)}; only functions can be called", usage=usage
        )
    if not isinstance(function, dict):
        raise _bad_response(f"sent a tool call without a function: {shorten(repr(call), 100)}", usage=usage)
    name, id = function.get("name"), call.get("id")
    if not isinstance(name, str) or not name.strip() or len(name) > MAX_NAME_CHARS:
        raise _bad_response(f"sent a tool call without the name of a function: {shorten(repr(name), 100)}", usage=usage)
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
                raise _bad_response(f"was cut off in {of} (raise max_tokens)", usage=usage) from None
            raise _bad_response(f"sent no JSON as {of}: {shorten(str(error), 100)}", usage=usage) from None
    else:
        value = {} if raw is None or isinstance(raw, str) else raw
    if not isinstance(value, dict):
        raise _bad_response(f"sent {_json_type_name(value)} as {of}; they must be an object", usage=usage)
    if nesting_depth(value) > MAX_ARGUMENT_DEPTH:
        raise _bad_response(f"nested {of} more than {MAX_ARGUMENT_DEPTH} deep", usage=usage)
    return raw if isinstance(raw, str) and raw.strip() else json.dumps(value, ensure_ascii=False)


def _derive_id(call: ToolCall, index: int) -> str:
    """The id of a call that came without one, or with that of another: the same for the same answer."""
    asked = json.dumps([index, call.name, call.arguments])
    return f"call_{sha256(asked.encode()).hexdigest()[:24]}"


class ToolCallAssembler:
    """Tool calls put together from the parts of a stream, in the order in which they began.

    A part belongs to the call of its `index`, without one to that of its `id`, else to the last. One with a name and an id that
    are not those of the call at its index begins another: some servers number every call 0. `add` returns the bytes of text in it.
    """

    def __init__(self) -> None:
        self._calls: list[dict[str, Any]] = []
        self._by_key: dict[Any, dict[str, Any]] = {}

    def add(self, part: Any) -> int:
        if not isinstance(part, dict):
            raise _bad_response(f"sent a stream with {_json_type_name(part)} as a tool call in it")
        function = part.get("function")
        if function is not None and not isinstance(function, dict):
            raise _bad_response(f"sent a stream with {_json_type_name(function)} as the function of a tool call")
        call, function = self._call(part, function or {}), function or {}
        call["type"] = call["type"] or part.get("type")
        if isinstance(name := function.get("name"), str):
            call["name"] = call["name"] or name
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            call["parts"].append(arguments)
        elif arguments is not None:
            if nesting_depth(arguments) > MAX_ARGUMENT_DEPTH:
                raise _bad_response(f"nested the arguments of a tool call more than {MAX_ARGUMENT_DEPTH} deep")
            call["whole"] = arguments
            arguments = json.dumps(arguments)
        return sum(utf8_size(text) for text in (name, arguments) if isinstance(text, str))

    def _call(self, part: Mapping[str, Any], function: Mapping[str, Any]) -> dict[str, Any]:
        """The call that a part belongs to; a new one where it begins one."""
        id = part.get("id") if isinstance(part.get("id"), str) else ""
        index = part.get("index") if type(part.get("index")) is int else None
        known = self._by_key.get(("index", index)) if index is not None else self._by_key.get(("id", id)) if id else None
        if known is None and index is None and not id and not (function.get("name") and self._is_last_complete):
            known = self._calls[-1] if self._calls else None
        if known is not None and id and known["id"] and id != known["id"] and function.get("name"):
            known = self._by_key.get(("id", id))
        if known is None:
            if len(self._calls) == MAX_TOOL_CALLS:
                raise _bad_response(f"sent more than {MAX_TOOL_CALLS} tool calls")
            known = {"id": "", "type": None, "name": "", "parts": [], "whole": None}
            self._calls.append(known)
        known["id"] = known["id"] or id
        if index is not None:
            self._by_key["index", index] = known
        if id:
            self._by_key["id", id] = known
        return known

    @property
    def _is_last_complete(self) -> bool:
        """Whether the last call has a name and arguments, so that another name begins another call."""
        return bool(self._calls and self._calls[-1]["name"] and (self._calls[-1]["parts"] or self._calls[-1]["whole"] is not None))

    def tool_calls(self) -> list[dict[str, Any]]:
        """The calls as a message holds them."""
        return [
            {
                "id": call["id"],
                "type": call["type"],
                "function": {"name": call["name"], "arguments": join_surrogate_pairs("".join(call["parts"])) or call["whole"]},
            }
            for call in self._calls
        ]


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
    after = _retry_delay(status, headers or {}) if retryable else None
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


def _retry_delay(status: int, headers: Mapping[str, str]) -> float | None:
    """Retry-After; without one, after a 429, the time at which what is used up comes back."""
    after = parse_retry_after(headers)
    if after is None and status == 429 and (pace := parse_rate_limits(headers)):
        return pace.wait or None
    return after


def parse_retry_after(headers: Mapping[str, str]) -> float | None:
    """How many seconds the server asks to wait; None when it does not say, or says nonsense."""
    if (ms := _seconds(headers.get("retry-after-ms"))) is not None:
        return ms / 1000
    given = headers.get("Retry-After")
    seconds = _seconds(given)
    return _seconds_until_http_date(given) if seconds is None and given else seconds


def _seconds(text: str | None) -> float | None:
    try:
        seconds = float(text or "")
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


def _seconds_until_http_date(date: str) -> float | None:
    from datetime import UTC, datetime
    from email.utils import parsedate_to_datetime

    try:
        then = parsedate_to_datetime(date)
    except (ValueError, OverflowError):
        return None
    seconds = (then.replace(tzinfo=then.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    return seconds if seconds >= 0 else None


# ---- rate limits

_RATE_LIMIT_HEADERS = (  # requests left, their reset, tokens left, their reset: OpenAI and most others, Anthropic, the IETF's draft
    tuple(f"x-ratelimit-{what}" for what in ("remaining-requests", "reset-requests", "remaining-tokens", "reset-tokens")),
    tuple(f"anthropic-ratelimit-{what}" for what in ("requests-remaining", "requests-reset", "tokens-remaining", "tokens-reset")),
    ("ratelimit-remaining", "ratelimit-reset", "", ""),
)
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|[dhms])")
_SECONDS_IN = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_rate_limits(headers: Mapping[str, str]) -> RateLimitStatus | None:
    """What the headers say of rate limits; None when they say nothing. Nonsense in one of them is not said."""
    for requests, requests_reset, tokens, tokens_reset in _RATE_LIMIT_HEADERS:
        if requests in headers or tokens in headers:
            return RateLimitStatus(
                _parse_count(headers.get(requests)),
                _parse_count(headers.get(tokens)),
                parse_duration(headers.get(requests_reset)),
                parse_duration(headers.get(tokens_reset)),
            )
    return None


def _parse_count(text: str | None) -> int | None:
    return int(text) if text and len(text) < 18 and text.isdecimal() else None


def parse_duration(text: str | None) -> float | None:
    """Seconds from "6m0s", "120ms", "1.5", or until an ISO 8601 date; None for anything else."""
    if not text or len(text) > 40:
        return None
    if (seconds := _seconds(text)) is not None:
        return seconds
    text = text.strip()
    parts = _DURATION.findall(text)
    if parts and "".join(map("".join, parts)) == text:
        return sum(float(number) * _SECONDS_IN[unit] for number, unit in parts)
    return _seconds_until_iso_date(text) if "T" in text else None


def _seconds_until_iso_date(date: str) -> float | None:
    from datetime import UTC, datetime

    try:
        then = datetime.fromisoformat(date)
    except ValueError:
        return None
    return max((then.replace(tzinfo=then.tzinfo or UTC) - datetime.now(UTC)).total_seconds(), 0.0)


# ---- answers in pieces


class StreamAssembler:
    """A streamed answer put together again. `add` takes one event's data and returns the new text in it."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._thoughts: list[str] = []
        self._refusal: list[str] = []
        self._calls = ToolCallAssembler()
        self._half_surrogate = ""
        self._finish: str | None = None
        self._usage: Any = None
        self._events = 0
        self._remaining_bytes = MAX_BODY_BYTES

    def add(self, event: Any) -> str:
        if not isinstance(event, dict):
            raise _bad_response(f"sent {_json_type_name(event)} in a stream")
        if event.get("error"):
            said = ErrorBody(event)
            raise _bad_response(f"broke off with an error: {said.text}", retryable=said.status in {None, *TRANSIENT_STATUSES})
        self._events += 1
        self._usage = event.get("usage") or self._usage
        choices = event.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        return self._add_choice(choice) if isinstance(choice, dict) else ""

    def _add_choice(self, choice: Mapping[str, Any]) -> str:
        if isinstance(choice.get("finish_reason"), str):
            self._finish = choice["finish_reason"]
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            return ""
        text, thoughts = _split_content(delta.get("content"), UNKNOWN_USAGE)
        text, self._half_surrogate = _split_half_surrogate(self._half_surrogate + text)
        thoughts.append(_reasoning_text(delta))
        refusal = _text(delta.get("refusal"))
        parts = _list(delta.get("tool_calls")) or [{"index": 0, "function": f} for f in [delta.get("function_call")] if f]
        self._remaining_bytes -= sum(map(utf8_size, (text, refusal, *thoughts))) + sum(map(self._calls.add, parts))
        if self._remaining_bytes < 0:
            raise too_large_error()
        self._text.append(text)
        self._thoughts += thoughts
        self._refusal.append(refusal)
        return text

    def reply(self) -> Reply:
        """The whole answer. Raises unless the stream said that it was whole."""
        if self._finish is None:
            what = "ended without a finish_reason" if self._events else "held nothing"
            raise _bad_response(f"sent a stream that {what}")
        message = {
            "content": "".join([*self._text, self._half_surrogate]),
            "reasoning_content": join_surrogate_pairs("".join(self._thoughts)),
            "refusal": "".join(self._refusal),
            "tool_calls": self._calls.tool_calls(),
        }
        return _reply_from_message(message, self._finish, read_usage(self._usage))


def _split_half_surrogate(text: str) -> tuple[str, str]:
    """A piece of a text, and the half of a surrogate pair at its end: the other half may come with the next piece."""
    end = len(text) - ("\ud800" <= text[-1:] <= "\udbff")
    return join_surrogate_pairs(text[:end]), text[end:]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


class VisibleText:
    """The part of a streamed text that may be shown: a leading `<think>` block is held back."""

    def __init__(self) -> None:
        self._leading_space: list[str] = []
        self._buffer = ""
        self._in_thought = self._had_thought = self._is_visible = False

    def add(self, text: str) -> str:
        if self._is_visible:
            return text
        self._buffer += text
        while self._in_thought or self._buffer.lstrip().startswith(THINK_OPEN):
            if not self._skip_thought():
                return ""
        return self._try_start()

    def _skip_thought(self) -> bool:
        """Whether the thought ended. Of what stands in it only so much is held as may begin the tag that ends it."""
        held = self._buffer if self._in_thought else self._buffer.lstrip().removeprefix(THINK_OPEN)
        _, closed, rest = held.partition(THINK_CLOSE)
        self._had_thought, self._in_thought = True, not closed
        self._buffer = rest if closed else held[1 - len(THINK_CLOSE) :]
        return bool(closed)

    def _try_start(self) -> str:
        """What is held, once it is known to be no thought, with the white space before it unless that follows a thought."""
        start = self._buffer.lstrip()
        self._leading_space.append(self._buffer[: len(self._buffer) - len(start)])
        self._buffer = start
        if THINK_OPEN.startswith(start):
            return ""
        self._is_visible = True
        return self._buffered_text()

    def flush(self) -> str:
        """What was held back and is no thought after all."""
        return "" if self._is_visible or self._in_thought else self._buffered_text()

    def _buffered_text(self) -> str:
        return self._buffer if self._had_thought else "".join([*self._leading_space, self._buffer])


class LineSplitter:
    """Lines cut out of bytes as they come."""

    def __init__(self) -> None:
        self._tail: list[bytes] = []
        self.pending_bytes = 0  # bytes of the line that is not whole yet

    def feed(self, part: bytes) -> list[bytes]:
        """The lines that are whole now."""
        *lines, tail = part.split(b"\n")
        if lines:
            lines[0] = b"".join([*self._tail, lines[0]])
            self._tail, self.pending_bytes = [], 0
        self._tail.append(tail)
        self.pending_bytes += len(tail)
        return lines

    def remainder(self) -> bytes:
        """The last line, which nothing ended."""
        return b"".join(self._tail)


class SSEParser:
    """Server-sent events cut out of the bytes as they come: (name, data) each.

    Raises BadResponseError for an event of more than `CAP` bytes, and for a stream in which so much stands that is no event.
    """

    def __init__(self) -> None:
        self._lines = LineSplitter()
        self._remaining_bytes = MAX_BODY_BYTES
        self._name = ""
        self._data: list[bytes] = []

    def feed(self, part: bytes) -> list[tuple[str, bytes]]:
        found = [event for line in self._lines.feed(part) if (event := self._line(line.rstrip(b"\r")))]
        self._remaining_bytes = min(self._remaining_bytes - len(part) + MAX_EVENT_OVERHEAD * len(found), MAX_BODY_BYTES)
        if self._remaining_bytes < 0:
            raise too_large_error()
        return found

    def finish(self) -> list[tuple[str, bytes]]:
        """What stands in a last event that no blank line ended."""
        return self.feed(b"\n\n")

    def _line(self, line: bytes) -> tuple[str, bytes] | None:
        if not line:
            return self._dispatch()
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data.append(value.removeprefix(b" "))
        elif field == b"event":
            self._name = value.strip().decode("utf-8", "replace")
        elif field == b"error":
            self._name = "error"
            self._data.append(value)
        return None

    def _dispatch(self) -> tuple[str, bytes] | None:
        event = (self._name, b"\n".join(self._data)) if self._data else None
        self._name, self._data = "", []
        return event
