"""Structured output of judges: ask for one JSON object, parse it strictly, and ask once more with the exact complaint.

Numbers are never extracted from prose, nothing is coerced, nothing gets a default. Judge output is hostile input: size and depth
are bounded, and everything is parsed in time linear in its length.

Text that is not clean JSON is read token by token and written as JSON again. This repairs form only: missing, doubled or trailing
commas; texts and keys in single or typographic quotes; line breaks, bare backslashes and pairs of quotes within a text. Numbers,
the words true, false and null, keys and brackets are copied unchanged or refused, and so are keys without quotes, comments, and
truncated objects.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

from ... import checks
from ...core.cancellation import run_in_thread_if_large
from ...core.task import Task
from ...errors import BadResponseError
from ...jsontext import nesting_depth, reject_constant, reject_duplicate_keys
from ...protocols import JudgeClient, Model, Reply, Request
from .prompt import ShownTexts, build_transcript, fresh_nonce, total_chars, truncate_texts, user_message, without_control_tokens

T = TypeVar("T")

SYSTEM = "You judge answers, strictly and fairly, by what you are told to judge by."
JSON_ONLY = "Answer with one JSON object only:"
RE_ASK_PROMPT = "Answer again, in the form asked for."
RE_ASK_OFFSET = 1_000_000  # added to the sample index, so that a cache keeps a re-ask apart from repeated votes


class JudgeConfig(Protocol):
    """The settings that all judges share."""

    @property
    def temperature(self) -> float | None: ...
    @property
    def max_tokens(self) -> int | None: ...
    @property
    def max_eval_chars(self) -> int: ...
    @property
    def images(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class JudgeRequest(Generic[T]):
    """A question to a judge about texts.

    `build_prompt` returns the prompt for the texts and a nonce, `parse_reply` the result in a reply (or raises UnreadableOutput).
    `extra_texts` are further texts in the prompt that must not contain the nonce. `limits` holds the maximum number of characters
    of a text, by its name; for the others `max_eval_chars` applies.
    """

    texts: Mapping[str, str]
    build_prompt: Callable[[Mapping[str, str], str], str]
    schema: Mapping[str, Any]
    parse_reply: Callable[[Reply], T]
    extra_texts: tuple[str, ...] = ()
    limits: Mapping[str, int] = field(default_factory=dict)


async def ask_judge(question: JudgeRequest[T], task: Task, config: JudgeConfig, ask: JudgeClient) -> tuple[T, ShownTexts]:
    """Ask a question in a fresh context. Return the answer and what was shown.

    Raises BadResponseError if the reply is unreadable twice.
    """
    size = total_chars(task, *question.texts.values())
    request, shown = await run_in_thread_if_large(size, _build_request, question, task, config)
    return await ask_for_json(ask, request, question.parse_reply), shown


def _build_request(question: JudgeRequest[T], task: Task, config: JudgeConfig) -> tuple[Request, ShownTexts]:
    shown = truncate_texts(question.texts, config.max_eval_chars, question.limits)
    nonce = fresh_nonce([*shown.texts.values(), *question.extra_texts])
    prompt = user_message(question.build_prompt(shown.texts, nonce), build_transcript(task).images, show=config.images)
    messages = ({"role": "system", "content": SYSTEM}, prompt)
    return Request(messages, config.temperature, config.max_tokens, schema=question.schema, nonce=nonce), shown


async def ask_for_json(ask: JudgeClient, request: Request, parse: Callable[[Reply], T]) -> T:
    """Return the parsed reply. Raises BadResponseError if `parse` raises UnreadableOutput twice.

    A truncated reply is never parsed, however complete it looks: the request is repeated with twice the tokens.
    """
    reply = await ask.complete(request)
    try:
        return _parse_complete(reply, parse)
    except UnreadableOutput as complaint:
        reply = await ask.complete(_re_ask_request(request, reply, str(complaint)))
    try:
        return _parse_complete(reply, parse)
    except UnreadableOutput as complaint:
        raise BadResponseError(f"the judge's answer cannot be read: {complaint}") from complaint


def _parse_complete(reply: Reply, parse: Callable[[Reply], T]) -> T:
    if reply.truncated:
        raise UnreadableOutput("the answer was cut off at the token limit")
    return parse(reply)


def _re_ask_request(request: Request, reply: Reply, complaint: str) -> Request:
    sample_index = request.sample_index + RE_ASK_OFFSET
    if reply.truncated:
        return replace(request, max_tokens=request.max_tokens and 2 * request.max_tokens, sample_index=sample_index)
    answer = {"role": "assistant", "content": without_control_tokens(reply.text[:8000]) or "(nothing)"}
    again = {"role": "user", "content": f"That cannot be read: {without_control_tokens(complaint)}. {RE_ASK_PROMPT}"}
    return replace(request, messages=(*request.messages, answer, again), sample_index=sample_index)


def check_judge_config(name: str, config: Any) -> None:
    """Raise ConfigError for a bad name, limit or model."""
    checks.text("name", name)
    at = f"grader {name!r}:"
    checks.whole_number(f"{at} max_eval_chars", config.max_eval_chars, 1)
    checks.whole_number(f"{at} max_tokens", config.max_tokens, 1, optional=True)
    checks.number(f"{at} temperature", config.temperature, optional=True)
    checks.flag(f"{at} images", config.images)
    if not (config.model is None or isinstance(config.model, str | Model) or callable(config.model)):
        raise checks.invalid_argument(f"{at} model", "a name, a Model, a function of messages or None", config.model)


def object_schema(**properties: Any) -> dict[str, Any]:
    """Return the JSON schema of an object that has exactly these properties."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def text_schema(max_chars: int) -> dict[str, Any]:
    """Return the JSON schema of a text of at most `max_chars` characters."""
    return {"type": "string", "maxLength": max_chars}


# ---- parse


MAX_CHARS = 200_000
MAX_REPAIR_CHARS = 16_384  # from the first brace; a longer answer must be clean JSON
MAX_DEPTH = 32
MAX_DIGITS = 15
MAX_FLOAT_CHARS = 40
TOO_DEEP = f"the JSON is nested too deep; at most {MAX_DEPTH} is read"
THINK_TAG = r"(?:think(?:ing)?|thought|reasoning)>"
BRACE_OR_TAG = re.compile(rf"[{{}}]|</?{THINK_TAG}", re.IGNORECASE)
OPENING_TAG = re.compile(f"<{THINK_TAG}", re.IGNORECASE)
CLOSING_TAG = re.compile(f"</{THINK_TAG}", re.IGNORECASE)
FENCE = re.compile(r"^[ \t]*(?:```+|~~~+)[ \t]*(\S?)", re.MULTILINE)
EMBEDDED_PREFIXES = ("[", "(", ",", "\\", "!", *"\"'“‘„‚«‹「『", '":', "':", "”:")  # before and
EMBEDDED_SUFFIXES = ("]", ")", "}", ",", ":", *"\"'”’“‘»›」』")  # after an object that is part of something else


class UnreadableOutput(ValueError):
    """A judge's answer cannot be parsed; the message is the complaint that a re-ask quotes."""


def read_object(text: str) -> dict[str, Any]:
    """Return the one JSON object in a judge's answer. Thinking, prose and a code fence around it are ignored.

    Raises UnreadableOutput if there is none, if there are several, or if it is part of something else.
    """
    if len(text) > MAX_CHARS:
        raise UnreadableOutput(f"the answer is {len(text)} characters long; at most {MAX_CHARS} are read")
    data: dict[str, Any] | None = None
    at = 0
    while mark := BRACE_OR_TAG.search(text, at):
        if mark[0] in "{}":
            if data is not None or mark[0] == "}":
                raise UnreadableOutput("there is another brace outside of the JSON object; write one object and nothing else")
            data, end = _parse_object_at(text, mark.start())
            _check_not_embedded(text[at : mark.start()], text[end:])
            at = end
        elif mark[0].startswith("</"):
            if data is not None:
                raise UnreadableOutput("the JSON object is inside the thinking; write it after that")
            at = mark.end()
        else:
            closing = CLOSING_TAG.search(text, mark.end())
            at = closing.end() if closing else len(text)
    if data is None:
        raise UnreadableOutput("there is no JSON object in the answer")
    return data


def without_thinking(text: str) -> str:
    """Return the text after the last closing tag of a thought, and before the next opening tag."""
    return OPENING_TAG.split(CLOSING_TAG.split(text)[-1], 1)[0]


def _check_not_embedded(before: str, after: str) -> None:
    """Raise UnreadableOutput for an object within a quotation, a list, a call, or nested code blocks."""
    if before.rstrip().endswith(EMBEDDED_PREFIXES) or after.lstrip().startswith(EMBEDDED_SUFFIXES) or before.count('"') % 2:
        raise UnreadableOutput("the JSON object is part of something else; write one object and nothing else")
    fenced = False
    for fence in FENCE.finditer(before):
        if fenced and fence[1]:
            raise UnreadableOutput("there are code blocks inside each other; write one object and nothing else")
        fenced = not fenced


def _parse_object_at(text: str, start: int) -> tuple[dict[str, Any], int]:
    """Return the object whose brace is at `start`, and its end. Raises UnreadableOutput."""
    try:
        data, end = STRICT_DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        if len(text) - start > MAX_REPAIR_CHARS:
            raise UnreadableOutput(f"the answer is not JSON: {error.msg}") from error
        return _repair_object(text, start)
    except RecursionError as error:
        raise UnreadableOutput(TOO_DEEP) from error
    except ValueError as error:
        raise UnreadableOutput(str(error)) from error
    if text.count("{", start, end) + text.count("[", start, end) > MAX_DEPTH and nesting_depth(data) > MAX_DEPTH:
        raise UnreadableOutput(TOO_DEEP)
    return data, end


def _repair_object(text: str, start: int) -> tuple[dict[str, Any], int]:
    rewrite = JsonRepair(text, start)
    end = rewrite.rewrite()
    try:
        return LENIENT_DECODER.decode("".join(rewrite.output)), end
    except json.JSONDecodeError as error:
        raise UnreadableOutput(f"the answer is not JSON: {error.msg}") from error
    except ValueError as error:
        raise UnreadableOutput(str(error)) from error


def _parse_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits is not a score")
    return int(digits)


def _parse_float(digits: str) -> float:
    if len(digits) > MAX_FLOAT_CHARS or not math.isfinite(float(digits)):
        raise ValueError(f"{digits[:20]!r} is not a plain number")
    return float(digits)


STRICT_DECODER, LENIENT_DECODER = (
    json.JSONDecoder(
        strict=strict,
        object_pairs_hook=reject_duplicate_keys,
        parse_constant=reject_constant,
        parse_int=_parse_int,
        parse_float=_parse_float,
    )
    for strict in (True, False)
)


# ---- repair

SPACE = r"[ \t\n\r]*+"
NUMBER = r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?"
TOKEN = re.compile(rf"""{SPACE}((?:{NUMBER}|true|false|null)(?=[ \t\n\r,}}\]]|\Z)|[{{}}\[\]:,"'“‘])""")
QUOTES = {'"': '"', "'": "'", "“": "”", "‘": "’"}
KEY_PATTERNS = {
    '"': re.compile(r'(?:[^"\\\x00-\x1f]++|\\.)*(?=")'),
    **{opening: re.compile(rf"[^{closing}\\\x00-\x1f]*+(?={closing})") for opening, closing in list(QUOTES.items())[1:]},
}
STRING_PATTERNS = {opening: re.compile(rf"(?:[^{closing}\\]++|\\.)*", re.DOTALL) for opening, closing in QUOTES.items()}
# What follows the quote that ends a text in an object and in a list: the closing bracket, or the next key or value.
STRING_END = {
    "{": re.compile(rf"""[ \t\n\r,]*+(?:\}}|["'“‘][^"'“”‘’\\\n]*+["'”’]{SPACE}:)"""),
    "[": re.compile(r"""[ \t\n\r,]*+\]|[ \t\n\r,]++["'“‘{[]"""),
}
COLON = re.compile(f"{SPACE}:")
ESCAPE_OR_QUOTE = re.compile(r"""\\(?:u[0-9a-fA-F]{4}|["\\/bfnrt'])|[\\"]""")


class JsonRepair:
    """Rewrites one object, token by token, as clean JSON in `output`."""

    def __init__(self, text: str, start: int) -> None:
        self.output: list[str] = []
        self._text, self._position = text, start
        self._open_brackets: list[str] = []
        self._last_token = ""  # an opening bracket, ":", "," (not written yet), or "value"

    def rewrite(self) -> int:
        """Rewrite the whole object and return its end. Raises UnreadableOutput."""
        while True:
            token = TOKEN.match(self._text, self._position)
            if token is None:
                raise self._unexpected_token()
            self._position = token.end()
            self._consume(token[1])
            if not self._open_brackets:
                return self._position

    def _consume(self, piece: str) -> None:
        if piece == ",":
            self._comma()
        elif piece == ":":
            self._colon()
        elif piece in "}]":
            self._close(piece)
        elif piece in "{[":
            self._start(piece)
        elif piece in QUOTES:
            is_key = self._open_brackets[-1] == "{" and self._last_token != ":"
            self._write(self._key(piece) if is_key else self._string(piece))
        elif self._last_token == "value":
            raise UnreadableOutput(f"there is no comma before {piece[:20]!r}")
        else:
            self._write(piece)

    def _write(self, piece: str) -> None:
        """Write a value, a key or an opening bracket, and the comma before it even if it was missing."""
        if self._last_token in {",", "value"}:
            self.output.append(",")
        self.output.append(piece)
        self._last_token = "value"

    def _start(self, bracket: str) -> None:
        self._write(bracket)
        self._open_brackets.append(bracket)
        self._last_token = bracket
        if len(self._open_brackets) > MAX_DEPTH:
            raise UnreadableOutput(TOO_DEEP)

    def _comma(self) -> None:
        doubled = self._open_brackets[-1] == "{" and self._last_token in {"{", ","}
        if self._last_token != "value" and not doubled:
            raise UnreadableOutput("there is a comma in place of a value")
        self._last_token = self._last_token if doubled else ","

    def _colon(self) -> None:
        if self._last_token != "value":
            raise UnreadableOutput("there is a colon in place of a key or a value")
        self.output.append(":")
        self._last_token = ":"

    def _close(self, bracket: str) -> None:
        if self._open_brackets.pop() + bracket not in {"{}", "[]"}:
            raise UnreadableOutput(f"{bracket!r} closes what it did not open")
        self.output.append(bracket)
        self._last_token = "value"

    def _key(self, quote: str) -> str:
        key = KEY_PATTERNS[quote].match(self._text, self._position)
        if key is None:
            raise UnreadableOutput("a key is not written plainly in quotes")
        self._position = key.end() + 1
        return f'"{key[0]}"' if quote == '"' else json.dumps(key[0])

    def _string(self, quote: str) -> str:
        """Return a text. Quotes within it that are not escaped must come in pairs, else its end is ambiguous."""
        start = end = self._position
        within = 0
        end_pattern = STRING_END[self._open_brackets[-1]]
        while not end_pattern.match(self._text, (end := self._quote_after(quote, end)) + 1):
            if COLON.match(self._text, end + 1):
                raise UnreadableOutput("a text does not end before the next key")
            within += not self._is_apostrophe(end)
            end += 1
        if within % 2:
            raise UnreadableOutput("a quote within a text is not escaped")
        self._position = end + 1
        return f'"{ESCAPE_OR_QUOTE.sub(_escape, self._text[start:end])}"'

    def _quote_after(self, quote: str, at: int) -> int:
        """Return the position of the next quote that may end a text."""
        content = STRING_PATTERNS[quote].match(self._text, at)
        if content is None or self._text[content.end() : content.end() + 1] != QUOTES[quote]:
            raise UnreadableOutput("the JSON is cut off")
        return content.end()

    def _is_apostrophe(self, at: int) -> bool:
        around = self._text[at - 1 : at + 2]
        return around[1] in "'’" and around[::2].isalnum()

    def _unexpected_token(self) -> UnreadableOutput:
        rest = self._text[self._position :].lstrip(" \t\n\r")
        if not rest:
            return UnreadableOutput("the JSON is cut off")
        odd = re.split(r"[,}\]\n]", rest[:20])[0] or rest[:1]
        if self._last_token == ":" or self._open_brackets[-1] == "[":
            return UnreadableOutput(f"{odd!r} is not a plain number, text, true, false or null")
        return UnreadableOutput(f"there is {odd!r} in place of a key in quotes, a comma or a bracket")


def _escape(match: re.Match[str]) -> str:
    """Return an escape unchanged, and a bare quote or backslash escaped."""
    if match[0] == "\\'":
        return "'"
    return match[0] if len(match[0]) > 1 else f"\\{match[0]}"


# ---- values


def int_at(data: Mapping[str, Any], key: str, low: int, high: int) -> int:
    """Return the whole number in [low, high] under `key`. Raises UnreadableOutput for anything else: bools, texts, 4.5."""
    value = _required_value(data, key)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise UnreadableOutput(f"{key!r} must be a whole number from {low} to {high}, got {_abbreviate(value)}")
    return value


def string_at(data: Mapping[str, Any], key: str) -> str:
    """Return the text under `key`; "" if it is missing or null."""
    value = data.get(key)
    if value is not None and not isinstance(value, str):
        raise UnreadableOutput(f"{key!r} must be text, got {_abbreviate(value)}")
    return (value or "").strip()


def bool_at(data: Mapping[str, Any], key: str) -> bool:
    """Return the boolean under `key`."""
    value = _required_value(data, key)
    if not isinstance(value, bool):
        raise UnreadableOutput(f"{key!r} must be true or false, got {_abbreviate(value)}")
    return value


def object_at(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the object under `key`."""
    value = _required_value(data, key)
    if not isinstance(value, dict):
        raise UnreadableOutput(f"{key!r} must be an object, got {_abbreviate(value)}")
    return value


def _required_value(data: Mapping[str, Any], key: str) -> Any:
    if key not in data:
        raise UnreadableOutput(f"{key!r} is missing")
    return data[key]


def _abbreviate(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."
