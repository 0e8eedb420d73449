"""What an error of a server means: its status, its codes and its words, as a `ModelError`.

A wrong key is a 400 at Gemini and xAI, an account without money a 429 at Zhipu and Moonshot, an
unknown model a 400 at DeepSeek and litellm, and a content filter has another code at each. The
words here come from their documents and from public reports. An error may quote the request, so
that words show less than a code or a status: `ModelError.inferred` says that there were only words.
`waits` reads how long a server asks to wait.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import chain
from typing import Any, Literal, NamedTuple, TypeAlias

from ..base.jsontext import loads, object_in, text_in
from ..base.text import shorten
from ..errors import (
    NOTHING_LEFT,
    AuthenticationError,
    ContentFilterError,
    ContextLengthError,
    ModelError,
    ModelTimeoutError,
    ModelUnavailableError,
    RateLimitError,
)
from ..usage import Usage
from .http_client import REFUSED_USAGE, UNKNOWN_USAGE, malformed_response
from .waits import is_used_up, stated_wait

_BUSY_CODES = {"rate_limit_exceeded": 429, "rate_limit_error": 429, "overloaded_error": 529}
_OUT_OF_QUOTA_CODES = {
    "insufficient_quota",
    "billing_not_active",
    "billing_hard_limit_reached",
    "billing_error",
    "account_deactivated",
}

_JINJA_PREFIX = "Jinja Exception: "
_ROW_AND_COLUMN = re.compile(r" at row \d+, column \d+")
_MARKUP = r"<(script|style)\b(?:.*?</\1>|.*)|<[^<>]*>"  # (unclosed scripts, too)


def page_text(body: bytes) -> str:
    """Return the text of a web page, without its tags."""
    page = body[:4000].decode("utf-8", "replace")
    return re.sub(_MARKUP, " ", page, flags=re.DOTALL | re.IGNORECASE)


def stated_error(part: Any) -> Any:
    """Return the error that a part of an answer (the body, a choice, a message, an event) states,
    or None.
    """
    if not isinstance(part, Mapping):
        return None
    error = (
        part.get("error")
        or (part if "error" in (part.get("object"), part.get("type")) else None)
        or _minimax_error(part)
    )
    is_error = any(error.values()) if isinstance(error, Mapping) else error
    return error if is_error else None


def _minimax_error(part: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the error in the field that MiniMax adds to each answer; 0 is its code for success."""
    state = object_in(part, "base_resp")
    if state.get("status_code"):
        return {"code": state["status_code"], "message": state.get("status_msg")}
    return None


_ERRORS_IN_ANSWERS = {RateLimitError, AuthenticationError, ContentFilterError, ContextLengthError}


def answer_error(message: str, error: Any, usage: Usage = UNKNOWN_USAGE) -> ModelError:
    """Return the error for an answer with status 200 that states an error, with the server's words
    and its status.
    """
    body = ErrorBody({"error": error})
    wait = stated_wait(body.status or 502, {}, error)
    kind, is_retryable = _error_class(body.status or 200, body, wait)
    status = f"status {body.status}: " if body.status else ""
    text = f"{message}: {status}{body.words}"
    asked = wait if is_retryable else None
    if kind in _ERRORS_IN_ANSWERS or (kind is ModelUnavailableError and not is_retryable):
        stated = kind(
            text, status=body.status, retry_after=asked, retryable=is_retryable, usage=usage
        )
        return _with_cause(stated, body, body.status or 200)
    failure = malformed_response(text, retryable=is_retryable)
    failure.status, failure.retry_after, failure.usage = body.status, asked, usage
    return failure


def parse_error_body(body: bytes) -> ErrorBody:
    """Return the error in a body of any form."""
    try:
        return ErrorBody(loads(body))
    except ValueError:
        return ErrorBody(page_text(body))


def error_from_status(
    status: int, error_body: ErrorBody, headers: Mapping[str, str] | None = None
) -> ModelError:
    """Return the typed error for an error status, with the usage of a refused call."""
    wait = stated_wait(status, headers or {}, error_body.data)
    kind, retryable = _error_class(status, error_body, wait)
    text = f": {error_body.text}" if error_body.text else ""
    if error_body.param and error_body.param not in error_body.text:
        text += (
            f" (parameter {shorten(error_body.param, 60)!r}: "
            f"{shorten(', '.join(sorted(error_body.codes)), 100)})"
        )
    refused = kind(
        f"status {status}{text}",
        status=status,
        retry_after=wait if retryable else None,
        retryable=retryable,
        usage=REFUSED_USAGE,
    )
    return _with_cause(refused, error_body, status)


def _with_cause(error: ModelError, body: ErrorBody, status: int) -> ModelError:
    """Note whether only the text of a body says what is wrong, and whether it is the quota or the
    credit.
    """
    error.inferred = body.is_inferred(status)
    if isinstance(error, AuthenticationError) and is_out_of_credit(error):
        error.reason = NOTHING_LEFT
    return error


def _error_class(
    status: int, error_body: ErrorBody, wait: float | None
) -> tuple[type[ModelError], bool]:
    """Return the class of an error, and whether its call may be retried."""
    fault = error_body.fault(status)
    if fault == "filter":
        return ContentFilterError, False
    if fault == "length" or status == 413:
        return ContextLengthError, False
    if status in {401, 403} or fault == "key" or error_body.is_used_up(status, wait):
        return AuthenticationError, False
    if status in {404, 405, 410} or fault == "model":
        return ModelUnavailableError, False
    if status in _RETRYABLE:
        return _RETRYABLE[status], True
    return (
        (ModelError, False)
        if 400 <= status < 500
        else (ModelUnavailableError, not 300 <= status < 400)
    )


# 424: TGI failed while it generated; 498: Groq has no capacity
_RETRYABLE: Mapping[int, type[ModelError]] = {
    408: ModelTimeoutError,
    429: RateLimitError,
    **dict.fromkeys((409, 424, 425, 498), ModelUnavailableError),
}


# OpenAI and most others; TGI; Databricks
_CODE_FIELDS = ("code", "type", "error_type", "error_code")


_WORD = re.compile(r"[a-z_]{1,64}")


class ErrorBody:
    """An error object of a server: its message, its codes, and the parameter that it names."""

    def __init__(self, data: Any) -> None:
        self.data = data
        self._fields: Mapping[str, Any] = _error_fields(data)
        detail = self._fields.get("detail")
        text = _error_message(self._fields.get("message") or detail or "")
        self.text = shorten(f"{text}{_cause_of(self._fields)}")

    @property
    def status(self) -> int | None:
        """The HTTP status that it states, as a number or by a word for a busy server."""
        code = str(self._fields.get("code"))
        if len(code) == 3 and code.isdecimal():
            return int(code)
        return next((status for word, status in _BUSY_CODES.items() if word in self.codes), None)

    @property
    def codes(self) -> set[str]:
        return {str(self._fields[k]) for k in _CODE_FIELDS if self._fields.get(k)}

    @property
    def detail(self) -> str:
        """The word of Anthropic's servers for what the client may send instead; "" without one."""
        details = self._fields.get("details")
        word = details.get("error_code") if isinstance(details, Mapping) else None
        return word if isinstance(word, str) and _WORD.fullmatch(word) else ""

    @property
    def words(self) -> str:
        """What it says in words, or else in codes."""
        return self.text or ", ".join(sorted(self.codes)) or "it does not say why"

    def fault(self, status: int) -> Fault | None:
        """Return what its codes and its text say is wrong."""
        return stated_fault(status, self.codes, self.text)

    def is_inferred(self, status: int) -> bool:
        """Whether only its text says so, which may quote the request."""
        return self.fault(status) != stated_fault(status, self.codes, "")

    def is_used_up(self, status: int, wait: float | None) -> bool:
        """Whether the account has no money, or its quota is zero or used up for a day; `wait`: see
        `stated_wait`.
        """
        if status == 402 or self.codes & _OUT_OF_QUOTA_CODES or self.fault(status) == "money":
            return True
        return status == 429 and is_used_up(self.data, wait)

    @property
    def param(self) -> str | None:
        return text_in(self._fields, "param") or None


def _error_fields(data: Any) -> Mapping[str, Any]:
    """Return the fields of the error in a body; a text is its message. An error may be the first of
    a list (Gemini, Cloudflare).
    """
    for _ in range(4):
        if isinstance(data, list) and data:
            data = data[0]
        elif isinstance(data, Mapping):
            inner = data.get("error") or data.get("errors")
            if isinstance(inner, str):
                return {"message": inner, **data}
            if not isinstance(inner, Mapping | list) or not inner:
                return data
            data = inner
        else:
            break
    return data if isinstance(data, Mapping) else {"message": data}


def _cause_of(fields: Mapping[str, Any]) -> str:
    """Return the words of the provider behind a router, which OpenRouter puts beside its own
    message.
    """
    raw = text_in(object_in(fields, "metadata"), "raw")
    return f" ({shorten(raw, 200)})" if raw.strip() else ""


def _error_message(message: Any) -> str:
    """Return the message of an error: that of a chat template without its source, those of a
    validator by field.
    """
    if isinstance(message, Mapping):
        message = message.get("detail") or message.get("message") or str(message)
    if isinstance(message, list):
        return "; ".join(map(_field_error, message[:10]))
    text = str(message)
    return (
        text.rpartition(_JINJA_PREFIX)[2]
        if _JINJA_PREFIX in text
        else _ROW_AND_COLUMN.split(text, 1)[0]
    )


def _field_error(detail: Any) -> str:
    """Return one error of a validator, without the value that it repeats."""
    if not isinstance(detail, Mapping) or "msg" not in detail:
        return str(detail)
    location = detail.get("loc")
    return (
        f"{'.'.join(map(str, location))}: {detail['msg']}"
        if isinstance(location, list)
        else str(detail["msg"])
    )


# ---- codes and words

Fault: TypeAlias = Literal["filter", "length", "key", "money", "model"]
"""What is wrong: the content, the length of the prompt, the key, the money of the account, the name
of the model.
"""


class _Signs(NamedTuple):
    """The codes and the words for a fault, and the statuses with which the words count (200: the
    error is in an answer).
    """

    fault: Fault
    codes: frozenset[str]
    words: str
    statuses: frozenset[int]


def _signs(fault: Fault, codes: str, *words: str, statuses: frozenset[int]) -> _Signs:
    return _Signs(fault, frozenset(codes.split()), "|".join(words), statuses)


_REFUSED = frozenset({200, 400, 422})
_SIGNS: tuple[_Signs, ...] = (  # (the words are compiled only after an error)
    _signs(
        "filter",
        "content_filter content_policy_violation invalid_prompt data_inspection_failed "
        "datainspectionfailed moderation_blocked",
        r"data_?inspection_?failed|inappropriate content|content (filter|management|moderation)[^.]{0,20} policy|content violates",
        r"input was flagged|(blocked|flagged|rejected)\b[^.]{0,60}(content|moderation|polic|safety)|不安全或敏感",
        statuses=_REFUSED | {403},
    ),
    _signs(
        "length",
        "context_length_exceeded exceed_context_size_error string_above_max_length "
        "request_too_large",
        r"context (length|size|window|limit)|maximum context|prompt is too long|too many (input )?tokens|input is too long",
        r"(prompt|input|request)[^.]{0,60} exceed(s|ed)? [^.]{0,60}(tokens?|length)\b|range of input length",
        r"reduce the length of the (messages|prompt|input|conversation)|tokens\b[^.]{0,40} must be <=|must be at least 1, got -",
        statuses=_REFUSED | {413, 500},
    ),
    _signs(
        "key",
        "invalid_api_key api_key_invalid no_db_connection",
        r"(incorrect|invalid|wrong) api[ _-]?key|api[ _-]?key (is |was )?(not valid|invalid|incorrect|expired)|login fail",
        statuses=_REFUSED | {429},
    ),
    _signs(
        "money",
        "arrearage exceeded_current_quota_error",
        r"insufficient (account )?(balance|credit|fund)|(balance|credits?) (is|are) (too low|exhausted|used up)|余额不足",
        statuses=_REFUSED | {429},
    ),
    _signs(
        "model",
        "model_not_found model_not_available invalid_model dedicated_endpoint_not_running",
        r"no such model|\bmodel not (exist|found)|\bmodel\b[^\n]{0,80} (does not|doesn't) exist|\bmodel\b[^\n]{0,80} not found",
        r"\b(invalid|unknown) model\b(?! (answer|output|response))|not a valid model|模型不存在",
        statuses=_REFUSED,
    ),
    _signs(
        "length",
        "",
        # (OpenAI: more tokens than all of a minute or a day)
        r"request too large\b.{0,200}\blimit:? \d+, requested:? \d+",
        statuses=frozenset({429}),
    ),
)


def stated_fault(status: int, codes: set[str], text: str) -> Fault | None:
    """Return what codes and text of an error with this status say is wrong; None if they do not say
    it. A code counts first.
    """
    lower = {code.lower() for code in codes}
    by_code = (signs for signs in _SIGNS if lower & signs.codes)
    in_words = (
        signs
        for signs in _SIGNS
        if status in signs.statuses and re.search(signs.words, text, re.IGNORECASE)
    )
    found = next(chain(by_code, in_words), None)
    return found.fault if found else None


def is_out_of_credit(error: AuthenticationError) -> bool:
    """Whether the account has no money or no quota left; else its key is refused."""
    fault = stated_fault(error.status or 200, set(), str(error))
    return fault == "money" or (fault != "key" and error.status not in {None, 401, 403})
