"""What an error of an endpoint means: is it down, busy, misconfigured, or did it refuse a part of
this request?

Servers have no common code for what they refuse: the status says that it is a refusal, their
message says of what. The words here come from OpenAI, Azure, Anthropic, Gemini, Mistral, Groq,
Together, DeepSeek, Bedrock, OpenRouter, vLLM, SGLang, llama.cpp (which passes on the errors of chat
templates), LM Studio and Ollama. An error that names nothing is no refusal here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

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
from ..protocols import Format, Request
from .messages import SYSTEM_ROLES, has_images, has_tools

BUSY_STATUSES = frozenset({429, 503, 529})


def is_outage(error: ModelError) -> bool:
    """Whether an error may mean that the endpoint is down: no connection, a timeout, 5xx, a
    response that is no answer.
    """
    if isinstance(error, ModelTimeoutError):
        return True
    if isinstance(error, BadResponseError):
        return error.malformed and error.retryable
    return (
        isinstance(error, ModelUnavailableError)
        and (error.retryable or (error.status or 0) >= 500)
        and not is_server_response(error)
    )


def is_server_response(error: ModelError) -> bool:
    """Whether the server itself answered with an error, so that it is up."""
    return error.status is not None and 400 <= error.status < 500 and error.status != 408


def is_busy(error: ModelError) -> bool:
    """Whether an error says that the endpoint receives too many calls."""
    return isinstance(error, RateLimitError | ModelTimeoutError) or error.status in BUSY_STATUSES


class EndpointDownError(ModelUnavailableError):
    """No request was sent, because the endpoint is out of service and another model can answer (see
    `failover`).
    """


def is_out_of_service(error: ModelError) -> bool:
    """Whether another model should answer: the endpoint is down, or still receives too many calls
    after all retries.

    A wrong key, a missing quota and an unknown model are faults of the settings, which another
    model would only hide.
    """
    if isinstance(error, AuthenticationError):
        return False
    return isinstance(error, EndpointDownError) or is_outage(error) or is_busy(error)


def is_fatal(error: ModelError) -> bool:
    """Whether every call would fail with this error: a wrong key, model name or address, no quota,
    broken TLS.
    """
    if isinstance(error, AuthenticationError):
        return True
    return (
        isinstance(error, ModelUnavailableError)
        and not error.retryable
        and (error.status or 0) < 500
    )


def may_be_refusal(error: ModelError) -> bool:
    """Whether a fatal error may concern this request only: filters and routers answer with 403 and
    404, and words may be quoted.
    """
    return (error.inferred or error.status in {403, 404}) and is_fatal(error)


def is_call_fault(error: ModelError, request: Request, formats: set[Format]) -> bool:
    """Whether what this request asks for may be the cause of an error. `formats` are those that
    have been answered.
    """
    if refused_part(error, request):
        return True
    if error.status in {500, 501} and request.format != "text" and request.format not in formats:
        return True
    return error.status in {404, 500, 501} and has_images(request.messages)


# ---- refusals

RequestPart: TypeAlias = Literal[
    "format",
    "images",
    "tools",
    "system",
    "turns",
    "temperature",
    "seed",
    "max_tokens",
    "max_completion_tokens",
    "stream_options",
    "logprobs",
    "enable_thinking",
]
PARAMETERS: tuple[RequestPart, ...] = (
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "seed",
    "stream_options",
)

REFUSAL_STATUSES = frozenset({400, 404, 415, 422, 500, 501})
# the request is not understood, even if the message does not say why
MALFORMED_STATUSES = frozenset({400, 422, 501})
MAX_ERROR_CHARS = 2000  # characters of a message that are searched


def _search(*patterns: str) -> Callable[[str], re.Match[str] | None]:
    """Return a search for any of the patterns. The first search compiles them: few runs meet an
    error that they describe.
    """
    pattern = "|".join(patterns)
    return lambda text: re.search(pattern, text, re.IGNORECASE)


_NEGATION = _search(
    r"\b(not|n't|cannot|never|no longer)\b[^.]{0,40}\b(support|permit|allow|enabl|availab|accept|take|valid|recogni|implement)",
    r"cannot both be|unsupported|unrecogni[sz]ed|unknown|unexpected|deprecated|extra (inputs|fields|keys)|extra_forbidden|invalid",
    r"must (be|contain)|type is unavailable",
    r"only .{0,40}(supported|allowed)|(fail(ed)?|unable) to (parse|convert|compile|initialize)|conversion failed",
)
_OUT_OF_RANGE = _search(
    r"too (large|small|high|low|big|long)|at (most|least)|less than|greater than|between|range|exceed|m(ax|in)imum"
)
_FORMAT = _search(
    r"response_?(format|schema|mime)|output_?(format|config|schema)|json.?(schema|object|mode)|\bschema\b|structured.?output",
    r"grammar|guided|xgrammar|outlines|requested parameters|containing? the word .?json",
)
_OVERLOAD = _search(
    r"out of memory|\boom\b|\btime(d|s)?[ -]?out|overload|temporar|try again|\bcapacity\b|\bbusy\b"
)
_BAD_ANSWER = _search(
    r"failed to generate|failed_generation|json_validate_failed|empty grammar stack|(not|n't) match the .{0,20}schema"
)
_LOGPROBS = _search(r"log_?prob(abilitie)?s?\b")
_IMAGES = _search(r"image|vision|multi-?modal|mmproj")
_TOOLS = _search(
    r"\btools?\b",
    r"\btool[ _-]?(use|calls?|calling|choice|parser)",
    r"\bfunctions?[ _-]?(calls?|calling|use)\b",
)
_REJECTS_TOOLS = _search(
    r"requires|no endpoints found|cannot be used|not? (been )?(trained|able|capable)|without tool"
)
_REJECTS_IMAGES = _search(
    r"(input|images?|vision) (is|are) (not supported|unsupported)|only supported by|support (for )?(image|vision)|at most 0 image",
    r"multi-?modal|mmproj",
)
_TURNS = _search(
    r"\balternat(e|ing|ion)|(successive|consecutive) (user|assistant|system|messages)|interleave|at the (very )?(beginning|start)",
    r"(conversation|first|messages?|history|turn)[^.]{0,60}must[^.]{0,20} (be|start|begin|come|use)[^.]{0,20} .?(user|system)",
    r"(must|should) (start|begin) with (a )?.?user|must (be|come) (the )?first",
)
_ROLES = _search(r"\b(roles?|user|assistant|system)\b")
_NOT_SUPPORTED = r"(not support|n't support|unsupported|invalid|unknown|unexpected)"
_IS_NOT_SUPPORTED = r"((\bnot|n't|cannot)\b[^.]{0,20}(support|allow|enabl|permit|accept|valid)|unsupported|unexpected|invalid)"
_SYSTEM = _search(
    rf"(system|developer)['\"`]?[ _]?(role|message|prompt|instruction)s?\b[^.]{{0,40}}{_IS_NOT_SUPPORTED}",
    rf"{_NOT_SUPPORTED}[^.]{{0,40}}['\"`](system|developer)['\"`]",
    rf"{_NOT_SUPPORTED}[^.]{{0,20}}(system|developer) (role|message|prompt|instruction)",
    r"only ['\"]?user\b[^.]{0,40}\b(supported|allowed|valid)|\brole\b[^.]{0,60}(should|must) be .{0,12}user",
    r"\b(in)?valid role|unknown role",
)


_NEEDS_NO_THINKING = _search(
    r"enable_thinking\W{0,3} (must|should|needs to|has to) be (set to )?\W?false"
)  # (DashScope, ModelScope)
_MAX_TOKENS = _search(
    r"max_?(completion_|new_|output_)?tokens|(completion|output) tokens|in the completion|context (length|window)"
)
_WINDOW = _search(r"context|input tokens|`inputs`|in the (completion|messages|prompt)")


def refused_part(error: ModelError, request: Request) -> RequestPart | None:
    """Return the part of the request that the error names as refused; None if it names none that
    the request has.
    """
    message = server_message(error)
    if _refuses_logprobs(error, message, request):
        return "logprobs"
    if not is_refusal(error):
        return None
    if _NEEDS_NO_THINKING(message) and "enable_thinking" not in (request.params or {}):
        return "enable_thinking"
    if parameter := _first_parameter(message, request):
        return parameter
    return next(
        (part for part, refuses in _REFUSALS.items() if refuses(error, message, request)), None
    )


def _refuses_logprobs(error: ModelError, message: str, request: Request) -> bool:
    """Whether an error says that the endpoint gives no log-probabilities, or fewer than were asked
    for; some say so with 403.
    """
    is_asked = request.top_logprobs and "logprobs" not in request.unsupported_parameters
    return bool(is_asked and (error.status == 403 or is_refusal(error)) and _LOGPROBS(message))


def _first_parameter(message: str, request: Request) -> RequestPart | None:
    """Return the parameter that the message refuses, of those that the request may have sent: the
    one that it names first.
    """
    if not _NEGATION(message) or _OUT_OF_RANGE(message):
        return None
    unset = {name for name in ("temperature", "seed") if getattr(request, name) is None}
    absent = unset | request.unsupported_parameters
    sent: list[RequestPart] = [name for name in PARAMETERS if name not in absent]
    words = re.findall(r"\w+", message)
    return next((name for word in words for name in sent if name == word), None)


def _refuses_tools(_: ModelError, message: str, request: Request) -> bool:
    is_named = has_tools(request) and _TOOLS(message)
    return bool(is_named and (_NEGATION(message) or _REJECTS_TOOLS(message)))


def _refuses_images(error: ModelError, message: str, request: Request) -> bool:
    is_named = has_images(request.messages) and _IMAGES(message)
    return bool(is_named and ((error.status or 500) < 500 or rejects_images(error)))


def _refuses_format(error: ModelError, message: str, request: Request) -> bool:
    """Whether a message names the response format; one of a 5xx counts only if it says what is
    wrong with the format.
    """
    if request.format == "text" or not _FORMAT(message) or _BAD_ANSWER(message):
        return False
    return (error.status or 500) < 500 or bool(_NEGATION(message) and not _OVERLOAD(message))


def _refuses_turns(_: ModelError, message: str, __: Request) -> bool:
    return bool(_TURNS(message) and _ROLES(message))


def _refuses_system(_: ModelError, message: str, request: Request) -> bool:
    has_system = any(each["role"] in SYSTEM_ROLES for each in request.messages)
    return has_system and bool(_SYSTEM(message))


_REFUSALS: dict[RequestPart, Callable[[ModelError, str, Request], bool]] = {
    "tools": _refuses_tools,
    "images": _refuses_images,
    "format": _refuses_format,
    "turns": _refuses_turns,
    "system": _refuses_system,
}
"""Whether an error refuses a part of a request; the first that it names counts."""


def is_refusal(error: ModelError) -> bool:
    """Whether an error may be caused by what the request contains, and not by the key, the rate or
    the time.
    """
    return error.status in REFUSAL_STATUSES and not isinstance(
        error, AuthenticationError | ContextLengthError | ContentFilterError
    )


def is_bad_answer(error: ModelError) -> bool:
    """Whether the endpoint accepted the format, but says that the model's answer does not follow
    it.
    """
    return is_refusal(error) and bool(_BAD_ANSWER(server_message(error)))


def rejects_images(error: ModelError) -> bool:
    """Whether an endpoint that answers without images refuses all images, not just this one, and is
    not in trouble.
    """
    message = server_message(error)
    return bool(_REJECTS_IMAGES(message)) or (not _IMAGES(message) and (error.status or 500) < 500)


def refused_parameter(error: ModelError, request: Request) -> str:
    """Return the further parameter of a request that a refusal names; "" if it names none."""
    if not request.params or not is_refusal(error):
        return ""
    message = server_message(error)
    inner = (
        name for value in request.params.values() if isinstance(value, Mapping) for name in value
    )
    return next(
        (
            name
            for name in (*request.params, *inner)
            if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", message)
        ),
        "",
    )


def refuses_max_tokens(error: ModelError) -> bool:
    """Whether an endpoint refuses the number of tokens that an answer may have, alone or with those
    of the prompt.
    """
    return error.status in {400, 422} and bool(_MAX_TOKENS(server_message(error)))


def stated_max_tokens(error: ModelError, refused: int) -> int | None:
    """Return the most tokens of an answer that a refusal of `refused` states; None if it states
    none, or those of the window.
    """
    message = server_message(error)
    if _WINDOW(message):
        return None
    numbers = [
        int(digits.replace(",", ""))
        for digits in re.findall(r"(?<![\w.,])\d[\d,]{0,9}\b(?!\.\d)", message)
    ]
    return max((number for number in numbers if 1 < number < refused), default=None)


def server_message(error: ModelError) -> str:
    """Return the server's own message, without the name of the model in front of it."""
    text = str(error)
    return (text.partition(f"status {error.status}")[2] or text)[:MAX_ERROR_CHARS]
