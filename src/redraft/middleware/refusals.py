"""What of a request an endpoint says that it does not take, read from its error.

Servers have no common code for this: the status says that it is a refusal, their words say of what. The words here are
those of OpenAI, Azure, Anthropic, Gemini, Mistral, Groq, Together, DeepSeek, Bedrock, OpenRouter, vLLM, SGLang, llama.cpp
(which hands on what a chat template raises), LM Studio and Ollama. An error that names nothing is no refusal here.
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

from ..errors import AuthenticationError, ContentFilterError, ContextLengthError, ModelError
from ..protocols import Request
from .messages import SYSTEM_ROLES, TOOL_ROLES, has_images

RequestPart: TypeAlias = Literal[
    "format", "images", "tools", "system", "turns", "temperature", "seed", "max_tokens", "max_completion_tokens", "stream_options"
]
PARAMETERS: tuple[RequestPart, ...] = ("max_tokens", "max_completion_tokens", "temperature", "seed", "stream_options")

REFUSAL_STATUSES = frozenset({400, 404, 415, 422, 500, 501})
MAX_ERROR_CHARS = 2000  # characters of an error that are looked at
MALFORMED_STATUSES = frozenset({400, 422, 501})
"""Statuses that say that a request is not understood, whether or not the words say what of it."""


def _pattern(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


_NEGATION = _pattern(
    r"\b(not|n't|cannot|never|no longer)\b[^.]{0,40}\b(support|permit|allow|enabl|availab|accept|take|valid|recogni|implement)",
    r"unsupported|unrecogni[sz]ed|unknown|unexpected|deprecated|extra (inputs|fields|keys)|extra_forbidden|invalid",
    r"must (be|contain)|type is unavailable",
    r"only .{0,40}(supported|allowed)|(fail(ed)?|unable) to (parse|convert|compile|initialize)|conversion failed",
)
_OUT_OF_RANGE = _pattern(
    r"too (large|small|high|low|big|long)|at (most|least)|less than|greater than|between|range|exceed|m(ax|in)imum"
)
_FORMAT = _pattern(
    r"response_?(format|schema|mime)|output_?(format|config|schema)|json.?(schema|object|mode)|\bschema\b|structured.?output",
    r"grammar|guided|xgrammar|outlines|requested parameters|containing? the word .?json",
)
_OVERLOAD = _pattern(r"out of memory|\boom\b|\btime(d|s)?[ -]?out|overload|temporar|try again|\bcapacity\b|\bbusy\b")
_BAD_ANSWER = _pattern(
    r"failed to generate|failed_generation|json_validate_failed|empty grammar stack|(not|n't) match the .{0,20}schema"
)
_IMAGES = _pattern(r"image|vision|multi-?modal|mmproj")
_TOOLS = _pattern(r"\btools?\b", r"\btool[ _-]?(use|calls?|calling|choice|parser)", r"\bfunctions?[ _-]?(calls?|calling|use)\b")
_REJECTS_TOOLS = _pattern(r"requires|no endpoints found|cannot be used|not? (been )?(trained|able|capable)|without tool")
_REJECTS_IMAGES = _pattern(
    r"(input|images?|vision) (is|are) (not supported|unsupported)|only supported by|support (for )?(image|vision)|at most 0 image",
    r"multi-?modal|mmproj",
)
_TURNS = _pattern(
    r"\balternat(e|ing|ion)|(successive|consecutive) (user|assistant|system|messages)|interleave|at the (very )?(beginning|start)",
    r"(conversation|first|messages?|history|turn)[^.]{0,60}must[^.]{0,20} (be|start|begin|come|use)[^.]{0,20} .?(user|system)",
    r"(must|should) (start|begin) with (a )?.?user|must (be|come) (the )?first",
)
_ROLES = _pattern(r"\b(roles?|user|assistant|system)\b")
_NOT_SUPPORTED = r"(not support|n't support|unsupported|invalid|unknown|unexpected)"
_IS_NOT_SUPPORTED = r"((\bnot|n't|cannot)\b[^.]{0,20}(support|allow|enabl|permit|accept|valid)|unsupported|unexpected|invalid)"
_SYSTEM = _pattern(
    rf"(system|developer)['\"`]?[ _]?(role|message|prompt|instruction)s?\b[^.]{{0,40}}{_IS_NOT_SUPPORTED}",
    rf"{_NOT_SUPPORTED}[^.]{{0,40}}['\"`](system|developer)['\"`]",
    rf"{_NOT_SUPPORTED}[^.]{{0,20}}(system|developer) (role|message|prompt|instruction)",
    r"only ['\"]?user\b[^.]{0,40}\b(supported|allowed|valid)|\brole\b[^.]{0,60}(should|must) be .{0,12}user",
    r"\b(in)?valid role|unknown role",
)


def refused_part(error: ModelError, request: Request) -> RequestPart | None:
    """What of the request an error names as not taken; None where it names nothing that the request has."""
    if not is_refusal(error):
        return None
    said = server_message(error)
    if _NEGATION.search(said) and not _OUT_OF_RANGE.search(said) and (parameter := _named_parameter(said, request)):
        return parameter
    if has_tools(request) and _TOOLS.search(said) and (_NEGATION.search(said) or _REJECTS_TOOLS.search(said)):
        return "tools"
    if has_images(request.messages) and _IMAGES.search(said) and ((error.status or 500) < 500 or rejects_images(error)):
        return "images"
    if _names_format(error, said, request):
        return "format"
    if _TURNS.search(said) and _ROLES.search(said):
        return "turns"
    if _SYSTEM.search(said) and any(message["role"] in SYSTEM_ROLES for message in request.messages):
        return "system"
    return None


def has_tools(request: Request) -> bool:
    """Whether a request offers tools, or its conversation holds calls of tools and their results."""
    told = (
        message["role"] in TOOL_ROLES or message.get("tool_calls") or message.get("function_call") for message in request.messages
    )
    return bool(request.tools) or any(told)


def is_refusal(error: ModelError) -> bool:
    """Whether an error may be for what a request asks for, and not for who asks, how much, or when."""
    return error.status in REFUSAL_STATUSES and not isinstance(error, AuthenticationError | ContextLengthError | ContentFilterError)


def is_bad_answer(error: ModelError) -> bool:
    """Whether an endpoint that took the format says that what the model wrote does not follow it."""
    return is_refusal(error) and bool(_BAD_ANSWER.search(server_message(error)))


def rejects_images(error: ModelError) -> bool:
    """Whether an endpoint that answers without images would refuse any: not one that only minds this image, or is in trouble."""
    said = server_message(error)
    return bool(_REJECTS_IMAGES.search(said)) or (not _IMAGES.search(said) and (error.status or 500) < 500)


def server_message(error: ModelError) -> str:
    """What the server said, without the name of the model in front of it."""
    said = str(error)
    return (said.partition(f"status {error.status}")[2] or said)[:MAX_ERROR_CHARS]


def _named_parameter(message: str, request: Request) -> RequestPart | None:
    """The parameter that is named first, of those that the request may have sent."""
    absent = {name for name in ("temperature", "seed") if getattr(request, name) is None} | request.unsupported_parameters
    sent: list[RequestPart] = [name for name in PARAMETERS if name not in absent]
    found: list[tuple[int, RequestPart]] = [(match.start(), name) for name in sent if (match := re.search(rf"\b{name}\b", message))]
    return min(found)[1] if found else None


def _names_format(error: ModelError, message: str, request: Request) -> bool:
    """A server in trouble may name a format, too: of 5xx only those count that say what is wrong with it."""
    if request.format == "text" or not _FORMAT.search(message) or _BAD_ANSWER.search(message):
        return False
    return (error.status or 500) < 500 or bool(_NEGATION.search(message) and not _OVERLOAD.search(message))
