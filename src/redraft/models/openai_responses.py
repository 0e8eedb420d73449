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

from ..core.records import MOST_TOOL_CALLS, ToolCall, Usage
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
from ..jsontext import depth, loads, refuse_constant, whole_pairs
from ..protocols import Pace, Reply
from ..text import utf8_size
from .http_client import CAP, PERHAPS_BILLED, REFUSED, too_large

TRANSIENT = frozenset({408, 409, 425, 429, *range(500, 600)})
_OUT_OF_QUOTA = {"insufficient_quota", "billing_not_active", "billing_hard_limit_reached", "account_deactivated"}
_TOO_LONG = {"context_length_exceeded", "exceed_context_size_error", "string_above_max_length", "request_too_large"}
_TOO_LONG_WORDS = re.compile(
    r"context (length|size|window)|maximum context|prompt is too long|too many (input )?tokens|input is too long"
    r"|(prompt|input|request)[^.]{0,60} exceeds? [^.]{0,60}tokens",
    re.IGNORECASE,
)
_RAISED = "Jinja Exception: "
_PLACE = re.compile(r" at row \d+, column \d+")
WRAPPING = 1024
"""Bytes that an event may have around its text."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]+")


def shorten(text: str, limit: int = 300) -> str:
    """A foreign text on one line, without control characters, and not long."""
    line = " ".join(_CONTROL.sub(" ", text[: 4 * limit]).split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def parsed(body: bytes, content_type: str = "") -> Any:
    """The JSON in a body. Raises BadResponseError naming what came instead."""
    try:
        return loads(body)
    except ValueError as error:
        raise BadResponseError(_no_json(body, content_type, str(error)), retryable=True, usage=PERHAPS_BILLED) from None


def _html(body: bytes) -> bool:
    return body[:200].lstrip().lower().startswith((b"<!doctype", b"<html", b"<head", b"<?xml"))


def _no_json(body: bytes, content_type: str, error: str) -> str:
    if not body.strip():
        return "sent an empty body"
    if _html(body):
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
        raise _bad(f"sent {_kind(data)} where a chat completion was expected")
    choices = data.get("choices")
    if not isinstance(choices, list) or not choices:
        raise _no_choices(data, choices)
    choice = choices[0]
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(message, dict):
        raise _bad(f"sent a choice without a message: {shorten(repr(choice), 100)}")
    return _judged(message, choice.get("finish_reason"), read_usage(data.get("usage")))


def _bad(what: str, *, retryable: bool = True, usage: Usage = PERHAPS_BILLED) -> BadResponseError:
    return BadResponseError(what, retryable=retryable, usage=usage)


def _kind(value: Any) -> str:
    kinds = {type(None): "null", list: "a list", dict: "an object", str: "a text", bool: "true or false"}
    return kinds.get(type(value), "a number")


def _no_choices(data: Mapping[str, Any], choices: Any) -> ModelError:
    if data.get("error"):
        said = Said(data)
        return _bad(f"sent an error in place of an answer: {said.text}", retryable=said.status is None or said.status in TRANSIENT)
    if choices == []:
        return _bad("sent an answer with an empty list of choices")
    if "choices" in data:
        return _bad(f"sent {_kind(choices)} as choices")
    return _bad(f"sent an object without choices, with {shorten(', '.join(map(str, data)), 100) or 'nothing'}")


def _judged(message: Mapping[str, Any], finish: Any, usage: Usage) -> Reply:
    """A Reply from a message, unless it is a refusal or empty."""
    text, thoughts = _content(message.get("content"), usage)
    text, inline = without_thoughts(text)
    thought = [*thoughts, *(t for t in (_thought(message), inline) if t)]
    finish = finish if isinstance(finish, str) else None
    _check_refusal(message, finish, usage)
    calls = read_tool_calls(message, finish, usage)
    if not text.strip() and not calls:
        error = _empty(finish, bool(thought), usage)
        error.empty = True
        raise error
    return Reply(text if text.strip() else "", usage, finish, "\n".join(thought) or None, tool_calls=calls)


def _thought(message: Mapping[str, Any]) -> str:
    said = (message.get(name) for name in ("reasoning_content", "reasoning"))
    return next((t for t in said if isinstance(t, str) and t), "")


def _content(content: Any, usage: Usage) -> tuple[str, list[str]]:
    """Text, and thoughts, of a content that is text, nothing, or a list of parts."""
    if content is None or isinstance(content, str):
        return content or "", []
    if not isinstance(content, list):
        raise _bad(f"sent {_kind(content)} as the content of its message", usage=usage)
    texts: list[str] = []
    thoughts: list[str] = []
    for part in content:
        _sort_part(part, texts, thoughts, usage)
    return "".join(texts), thoughts


def _sort_part(part: Any, texts: list[str], thoughts: list[str], usage: Usage) -> None:
    if not isinstance(part, dict):
        raise _bad(f"sent a content with {_kind(part)} in it", usage=usage)
    if part.get("type") == "thinking":
        thoughts.append(_content(part.get("thinking"), usage)[0])
    elif isinstance(part.get("text"), str):
        texts.append(part["text"])


def _check_refusal(message: Mapping[str, Any], finish: str | None, usage: Usage) -> None:
    refusal = message.get("refusal")
    if isinstance(refusal, str) and refusal.strip():
        raise ContentFilterError(f"refused: {shorten(refusal)}", usage=usage)
    if finish == "content_filter":
        raise ContentFilterError("the answer was withheld by a content filter (finish_reason content_filter)", usage=usage)


def _empty(finish: str | None, thought: bool, usage: Usage) -> BadResponseError:  # noqa: FBT001
    if thought and finish == "length":
        return _bad("used up its tokens on reasoning: no answer came (raise max_tokens)", usage=usage)
    what = "reasoning but no answer" if thought else "an empty answer"
    return _bad(f"sent {what} (finish_reason {finish!r})", usage=usage)


def read_usage(usage: Any) -> Usage:
    """One call's usage. What is missing, negative or no whole number is unknown."""
    given = usage if isinstance(usage, dict) else {}
    return Usage(1, _count(given.get("prompt_tokens")), _count(given.get("completion_tokens")), cost=None)


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


# ---- calls of tools

DEEPEST = 100
"""Objects and lists inside each other that the arguments of a tool call may hold."""
LONGEST_NAME = 256
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
        raise _bad(f"sent {_kind(given)} as tool calls", usage=usage)
    if len(given) > MOST_TOOL_CALLS:
        raise _bad(f"sent {len(given)} tool calls; at most {MOST_TOOL_CALLS} are read", usage=usage)
    calls: list[ToolCall] = []
    for each in given:
        call = _tool_call(each, finish, usage)
        taken = {other.id for other in calls}
        calls.append(call if call.id and call.id not in taken else ToolCall(call.name, call.arguments, _made_id(call, len(calls))))
    return tuple(calls)


def _tool_call(call: Any, finish: str | None, usage: Usage) -> ToolCall:
    function = call.get("function") if isinstance(call, dict) else None
    if isinstance(call, dict) and call.get("type") not in {None, "", "function"}:
        raise _bad(f"sent a tool call of the type {shorten(repr(call['type']), 60)}; only functions can be called", usage=usage)
    if not isinstance(function, dict):
        raise _bad(f"sent a tool call without a function: {shorten(repr(call), 100)}", usage=usage)
    name, id = function.get("name"), call.get("id")
    if not isinstance(name, str) or not name.strip() or len(name) > LONGEST_NAME:
        raise _bad(f"sent a tool call without the name of a function: {shorten(repr(name), 100)}", usage=usage)
    arguments = _arguments(name, function.get("arguments"), finish, usage)
    return ToolCall(name, arguments, id if isinstance(id, str) and len(id) <= LONGEST_NAME else "")


def _arguments(name: str, given: Any, finish: str | None, usage: Usage) -> str:
    """The arguments as JSON text; those that are such a text as it stands."""
    of = f"the arguments of the tool call {shorten(name, 60)!r}"
    if isinstance(given, str) and given.strip():
        try:
            value = json.loads(given, parse_constant=refuse_constant)
        except (ValueError, RecursionError) as error:
            if finish == "length":
                raise _bad(f"was cut off in {of} (raise max_tokens)", usage=usage) from None
            raise _bad(f"sent no JSON as {of}: {shorten(str(error), 100)}", usage=usage) from None
    else:
        value = {} if given is None or isinstance(given, str) else given
    if not isinstance(value, dict):
        raise _bad(f"sent {_kind(value)} as {of}; they must be an object", usage=usage)
    if depth(value) > DEEPEST:
        raise _bad(f"nested {of} more than {DEEPEST} deep", usage=usage)
    return given if isinstance(given, str) and given.strip() else json.dumps(value, ensure_ascii=False)


def _made_id(call: ToolCall, place: int) -> str:
    """The id of a call that came without one, or with that of another: the same for the same answer."""
    asked = json.dumps([place, call.name, call.arguments])
    return f"call_{sha256(asked.encode()).hexdigest()[:24]}"


class CallPieces:
    """Tool calls put together from the parts of a stream, in the order in which they began.

    A part belongs to the call of its `index`, without one to that of its `id`, else to the last. One with a name and an id that
    are not those of the call at its index begins another: some servers number every call 0. `add` returns the bytes of text in it.
    """

    def __init__(self) -> None:
        self._calls: list[dict[str, Any]] = []
        self._at: dict[Any, dict[str, Any]] = {}

    def add(self, part: Any) -> int:
        if not isinstance(part, dict):
            raise _bad(f"sent a stream with {_kind(part)} as a tool call in it")
        function = part.get("function")
        if function is not None and not isinstance(function, dict):
            raise _bad(f"sent a stream with {_kind(function)} as the function of a tool call")
        call, function = self._call(part, function or {}), function or {}
        call["type"] = call["type"] or part.get("type")
        if isinstance(name := function.get("name"), str):
            call["name"] = call["name"] or name
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            call["parts"].append(arguments)
        elif arguments is not None:
            if depth(arguments) > DEEPEST:
                raise _bad(f"nested the arguments of a tool call more than {DEEPEST} deep")
            call["whole"] = arguments
            arguments = json.dumps(arguments)
        return sum(utf8_size(text) for text in (name, arguments) if isinstance(text, str))

    def _call(self, part: Mapping[str, Any], function: Mapping[str, Any]) -> dict[str, Any]:
        """The call that a part belongs to; a new one where it begins one."""
        id = part.get("id") if isinstance(part.get("id"), str) else ""
        index = part.get("index") if type(part.get("index")) is int else None
        known = self._at.get(("index", index)) if index is not None else self._at.get(("id", id)) if id else None
        if known is None and index is None and not id and not (function.get("name") and self._ended):
            known = self._calls[-1] if self._calls else None
        if known is not None and id and known["id"] and id != known["id"] and function.get("name"):
            known = self._at.get(("id", id))
        if known is None:
            if len(self._calls) == MOST_TOOL_CALLS:
                raise _bad(f"sent more than {MOST_TOOL_CALLS} tool calls")
            known = {"id": "", "type": None, "name": "", "parts": [], "whole": None}
            self._calls.append(known)
        known["id"] = known["id"] or id
        if index is not None:
            self._at["index", index] = known
        if id:
            self._at["id", id] = known
        return known

    @property
    def _ended(self) -> bool:
        """Whether the last call has a name and arguments, so that another name begins another call."""
        return bool(self._calls and self._calls[-1]["name"] and (self._calls[-1]["parts"] or self._calls[-1]["whole"] is not None))

    def whole(self) -> list[dict[str, Any]]:
        """The calls as a message holds them."""
        return [
            {
                "id": call["id"],
                "type": call["type"],
                "function": {"name": call["name"], "arguments": whole_pairs("".join(call["parts"])) or call["whole"]},
            }
            for call in self._calls
        ]


# ---- thinking aloud

OPEN, CLOSE = "<think>", "</think>"
_BLOCK = re.compile(f"{OPEN}(.*?){CLOSE}", re.DOTALL)
_ORPHAN = re.compile(r"^[ \t]*</think>\s*", re.MULTILINE)


def without_thoughts(text: str) -> tuple[str, str]:
    """An answer without its `<think>` blocks, and what stood in them. A leading one that never ends is all there is.

    A template may open the block in the prompt: then the answer begins after a line that begins with `</think>`.
    Blocks quoted in code, or after a brace (in a text of a JSON object, say), are part of the answer.
    """
    if "think>" not in text:
        return text, ""
    if OPEN not in text and (orphan := _ORPHAN.search(text)):
        return text[orphan.end() :], text[: orphan.start()].strip()
    kept, thoughts = _apart(text)
    rest = "".join(kept)
    if rest.lstrip().startswith(OPEN):
        thoughts.append(rest.lstrip().removeprefix(OPEN))
        rest = ""
    thought = "\n".join(t.strip() for t in thoughts)
    return (rest.lstrip() if thoughts else rest), thought


def _apart(text: str) -> tuple[list[str], list[str]]:
    """What stands outside the closed blocks, and inside; in one pass, however many there are."""
    kept: list[str] = []
    thoughts: list[str] = []
    closed, close, rest = text.rpartition(CLOSE)  # (without an end, each beginning would look for one)
    quotation, pieces = _Quotation(), _BLOCK.split(closed + close)
    for outside, inside in zip(pieces[::2], pieces[1::2], strict=False):
        kept.append(outside)
        if quotation.after(outside):
            kept.append(f"{OPEN}{inside}{CLOSE}")
        else:
            thoughts.append(inside)
    return [*kept, pieces[-1], rest], thoughts


class _Quotation:
    """Whether a place in a text is quoted: within a fence, within backticks on its line, or after the brace that may begin JSON."""

    def __init__(self) -> None:
        self._fences = self._ticks = 0
        self._braces = False

    def after(self, more: str) -> bool:
        if "`" in more or "\n" in more or "{" in more:
            self._go_on(more)
        return self._braces or bool(self._fences % 2 or self._ticks % 2)

    def _go_on(self, more: str) -> None:
        self._braces = self._braces or "{" in more
        self._fences += more.count("```")
        line = more.rpartition("\n")
        self._ticks = line[2].count("`") + (0 if line[1] else self._ticks)


# ---- bodies that say no


class Said:
    """What the server says in an error: its words, its codes, the parameter it names."""

    def __init__(self, data: Any) -> None:
        error = data.get("error", data) if isinstance(data, dict) else data
        if isinstance(error, list) and error:
            error = error[0]
        self._fields: Mapping[str, Any] = error if isinstance(error, dict) else {"message": error}
        detail = self._fields.get("detail")
        words = self._fields.get("message") or detail or self._fields.get("error") or ""
        self.text = shorten(_complaint(words))

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


def _complaint(words: Any) -> str:
    """What a server complains of: the words a chat template raises without its source, the fields that a validator refuses."""
    if isinstance(words, Mapping):
        words = words.get("detail") or words.get("message") or str(words)
    if isinstance(words, list):
        return "; ".join(map(_field_complaint, words[:10]))
    text = str(words)
    return text.rpartition(_RAISED)[2] if _RAISED in text else _PLACE.split(text, 1)[0]


def _field_complaint(found: Any) -> str:
    """One of a validator's complaints, without the value that it repeats."""
    if not isinstance(found, Mapping) or "msg" not in found:
        return str(found)
    where = found.get("loc")
    return f"{'.'.join(map(str, where))}: {found['msg']}" if isinstance(where, list) else str(found["msg"])


def read_refusal(body: bytes) -> Said:
    """What a body with an error status says, whatever form it has."""
    try:
        return Said(loads(body))
    except ValueError:
        return Said(page_text(body))


def refused(status: int, said: Said, headers: Mapping[str, str] | None = None) -> ModelError:
    """The typed error for an error status. Nothing was bought."""
    kind, retryable = _class_of(status, said)
    after = _asked_to_wait(status, headers or {}) if retryable else None
    words = f": {said.text}" if said.text else ""
    if said.param and said.param not in said.text:
        words += f" (parameter {shorten(said.param, 60)!r}: {shorten(', '.join(sorted(said.codes)), 100)})"
    return kind(f"status {status}{words}", status=status, retry_after=after, retryable=retryable, usage=REFUSED)


def _class_of(status: int, said: Said) -> tuple[type[ModelError], bool]:
    special = _special(status, said)
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


def _special(status: int, said: Said) -> type[ModelError] | None:
    """The kinds that are told apart by more than the status, or never get better by waiting."""
    if status in {401, 402, 403} or said.codes & _OUT_OF_QUOTA:
        return AuthenticationError
    if status in {404, 405, 410} or "model_not_found" in said.codes:
        return ModelUnavailableError
    if "content_filter" in said.codes:
        return ContentFilterError
    too_long = said.codes & _TOO_LONG or (status in {400, 413, 422, 500} and _TOO_LONG_WORDS.search(said.text))
    return ContextLengthError if too_long or status == 413 else None


def _asked_to_wait(status: int, headers: Mapping[str, str]) -> float | None:
    """Retry-After; without one, after a 429, the time at which what is used up comes back."""
    after = retry_after(headers)
    if after is None and status == 429 and (pace := read_pace(headers)):
        return pace.wait or None
    return after


def retry_after(headers: Mapping[str, str]) -> float | None:
    """How many seconds the server asks to wait; None when it does not say, or says nonsense."""
    if (ms := _seconds(headers.get("retry-after-ms"))) is not None:
        return ms / 1000
    given = headers.get("Retry-After")
    seconds = _seconds(given)
    return _until(given) if seconds is None and given else seconds


def _seconds(text: str | None) -> float | None:
    try:
        seconds = float(text or "")
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


def _until(date: str) -> float | None:
    from datetime import UTC, datetime
    from email.utils import parsedate_to_datetime

    try:
        then = parsedate_to_datetime(date)
    except (ValueError, OverflowError):
        return None
    seconds = (then.replace(tzinfo=then.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    return seconds if seconds >= 0 else None


# ---- rate limits

_PACES = (  # requests left, their reset, tokens left, their reset: OpenAI and most others, Anthropic, the IETF's draft
    tuple(f"x-ratelimit-{what}" for what in ("remaining-requests", "reset-requests", "remaining-tokens", "reset-tokens")),
    tuple(f"anthropic-ratelimit-{what}" for what in ("requests-remaining", "requests-reset", "tokens-remaining", "tokens-reset")),
    ("ratelimit-remaining", "ratelimit-reset", "", ""),
)
_SPAN = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|[dhms])")
_SECONDS_IN = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def read_pace(headers: Mapping[str, str]) -> Pace | None:
    """What the headers say of rate limits; None when they say nothing. Nonsense in one of them is not said."""
    for requests, requests_reset, tokens, tokens_reset in _PACES:
        if requests in headers or tokens in headers:
            return Pace(
                _left(headers.get(requests)),
                _left(headers.get(tokens)),
                read_span(headers.get(requests_reset)),
                read_span(headers.get(tokens_reset)),
            )
    return None


def _left(text: str | None) -> int | None:
    return int(text) if text and len(text) < 18 and text.isdecimal() else None


def read_span(text: str | None) -> float | None:
    """Seconds from "6m0s", "120ms", "1.5", or until an ISO 8601 date; None for anything else."""
    if not text or len(text) > 40:
        return None
    if (seconds := _seconds(text)) is not None:
        return seconds
    text = text.strip()
    parts = _SPAN.findall(text)
    if parts and "".join(map("".join, parts)) == text:
        return sum(float(number) * _SECONDS_IN[unit] for number, unit in parts)
    return _until_iso(text) if "T" in text else None


def _until_iso(date: str) -> float | None:
    from datetime import UTC, datetime

    try:
        then = datetime.fromisoformat(date)
    except ValueError:
        return None
    return max((then.replace(tzinfo=then.tzinfo or UTC) - datetime.now(UTC)).total_seconds(), 0.0)


# ---- answers in pieces


class Pieces:
    """A streamed answer put together again. `add` takes one event's data and returns the new text in it."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._thoughts: list[str] = []
        self._refusal: list[str] = []
        self._calls = CallPieces()
        self._half = ""
        self._finish: str | None = None
        self._usage: Any = None
        self._events = 0
        self._room = CAP

    def add(self, event: Any) -> str:
        if not isinstance(event, dict):
            raise _bad(f"sent {_kind(event)} in a stream")
        if event.get("error"):
            said = Said(event)
            raise _bad(f"broke off with an error: {said.text}", retryable=said.status in {None, *TRANSIENT})
        self._events += 1
        self._usage = event.get("usage") or self._usage
        choices = event.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        return self._take(choice) if isinstance(choice, dict) else ""

    def _take(self, choice: Mapping[str, Any]) -> str:
        if isinstance(choice.get("finish_reason"), str):
            self._finish = choice["finish_reason"]
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            return ""
        text, thoughts = _content(delta.get("content"), PERHAPS_BILLED)
        text, self._half = _apart_from_half(self._half + text)
        thoughts.append(_thought(delta))
        refusal = _text(delta.get("refusal"))
        parts = _list(delta.get("tool_calls")) or [{"index": 0, "function": f} for f in [delta.get("function_call")] if f]
        self._room -= sum(map(utf8_size, (text, refusal, *thoughts))) + sum(map(self._calls.add, parts))
        if self._room < 0:
            raise too_large()
        self._text.append(text)
        self._thoughts += thoughts
        self._refusal.append(refusal)
        return text

    def reply(self) -> Reply:
        """The whole answer. Raises unless the stream said that it was whole."""
        if self._finish is None:
            what = "ended without a finish_reason" if self._events else "held nothing"
            raise _bad(f"sent a stream that {what}")
        message = {
            "content": "".join([*self._text, self._half]),
            "reasoning_content": whole_pairs("".join(self._thoughts)),
            "refusal": "".join(self._refusal),
            "tool_calls": self._calls.whole(),
        }
        return _judged(message, self._finish, read_usage(self._usage))


def _apart_from_half(text: str) -> tuple[str, str]:
    """A piece of a text, and the half of a surrogate pair at its end: the other half may come with the next piece."""
    end = len(text) - ("\ud800" <= text[-1:] <= "\udbff")
    return whole_pairs(text[:end]), text[end:]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


class Spoken:
    """The part of a streamed text that may be shown: a leading `<think>` block is held back."""

    def __init__(self) -> None:
        self._space: list[str] = []
        self._held = ""
        self._inside = self._thought = self._open = False

    def add(self, text: str) -> str:
        if self._open:
            return text
        self._held += text
        while self._inside or self._held.lstrip().startswith(OPEN):
            if not self._skip_thought():
                return ""
        return self._start()

    def _skip_thought(self) -> bool:
        """Whether the thought ended. Of what stands in it only so much is held as may begin the tag that ends it."""
        held = self._held if self._inside else self._held.lstrip().removeprefix(OPEN)
        _, closed, rest = held.partition(CLOSE)
        self._thought, self._inside = True, not closed
        self._held = rest if closed else held[1 - len(CLOSE) :]
        return bool(closed)

    def _start(self) -> str:
        """What is held, once it is known to be no thought, with the white space before it unless that follows a thought."""
        start = self._held.lstrip()
        self._space.append(self._held[: len(self._held) - len(start)])
        self._held = start
        if OPEN.startswith(start):
            return ""
        self._open = True
        return self._whole()

    def rest(self) -> str:
        """What was held back and is no thought after all."""
        return "" if self._open or self._inside else self._whole()

    def _whole(self) -> str:
        return self._held if self._thought else "".join([*self._space, self._held])


class Lines:
    """Lines cut out of bytes as they come."""

    def __init__(self) -> None:
        self._tail: list[bytes] = []
        self.waiting = 0  # bytes of the line that is not whole yet

    def feed(self, part: bytes) -> list[bytes]:
        """The lines that are whole now."""
        *lines, tail = part.split(b"\n")
        if lines:
            lines[0] = b"".join([*self._tail, lines[0]])
            self._tail, self.waiting = [], 0
        self._tail.append(tail)
        self.waiting += len(tail)
        return lines

    def rest(self) -> bytes:
        """The last line, which nothing ended."""
        return b"".join(self._tail)


class Events:
    """Server-sent events cut out of the bytes as they come: (name, data) each.

    Raises BadResponseError for an event of more than `CAP` bytes, and for a stream in which so much stands that is no event.
    """

    def __init__(self) -> None:
        self._lines = Lines()
        self._room = CAP
        self._name = ""
        self._data: list[bytes] = []

    def feed(self, part: bytes) -> list[tuple[str, bytes]]:
        found = [event for line in self._lines.feed(part) if (event := self._line(line.rstrip(b"\r")))]
        self._room = min(self._room - len(part) + WRAPPING * len(found), CAP)
        if self._room < 0:
            raise too_large()
        return found

    def end(self) -> list[tuple[str, bytes]]:
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
