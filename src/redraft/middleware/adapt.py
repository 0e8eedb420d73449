"""Ask a model in the way that it takes: the order of roles, system text, images, parameters, the response format.

What an endpoint does not take is learned from its refusals: the refused request is made once more in another way, and where
that helps the way is kept for the session (see `capabilities`) and told once by the logger "redraft". Neighbouring messages
of one role are always joined, since many chat templates refuse them. What has no other way fails with an error that names it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from ..errors import ModelError
from ..protocols import FORMATS, Call, Format, Reply, Request
from ..usage import NO_USAGE, Usage
from .capabilities import ModelCapabilities
from .messages import Messages, fold_later_system, fold_system, has_images, merge_adjacent, start_with_user, without_images
from .refusals import MALFORMED_STATUSES, RequestPart, is_bad_answer, is_refusal, refused_part, rejects_images

FormatVerdict: TypeAlias = Literal["refused", "doubtful", "ignored"]


@dataclass(frozen=True, slots=True)
class Adaptation:
    """Another way to make a request, and how people are told of it. `lossless`: nothing of the request is lost by it."""

    apply: Callable[[Request], Request]
    log_message: str
    lossless: bool = False


def _message_adaptation(change: Callable[[Messages], Messages], log_message: str, *, lossless: bool = False) -> Adaptation:
    return Adaptation(lambda request: replace(request, messages=change(request.messages)), log_message, lossless)


def _parameter_adaptation(parameter: str, log_message: str, *, lossless: bool = False) -> Adaptation:
    return Adaptation(
        lambda request: replace(request, unsupported_parameters=request.unsupported_parameters | {parameter}), log_message, lossless
    )


ADAPTATIONS: dict[str, Adaptation] = {
    "later_system": _message_adaptation(
        fold_later_system, "takes a system message at the beginning only; the text of others goes into user messages", lossless=True
    ),
    "opening_turn": _message_adaptation(
        start_with_user, "takes no conversation that an assistant begins; a user message is put before it", lossless=True
    ),
    "system": _message_adaptation(fold_system, "takes no system role; its text goes into the first user message", lossless=True),
    "images": _message_adaptation(without_images, "takes no images; judges are told that they do not see them"),
    "max_tokens": _parameter_adaptation(
        "max_tokens", "takes no max_tokens; the limit is sent as max_completion_tokens", lossless=True
    ),
    "max_completion_tokens": _parameter_adaptation(
        "max_completion_tokens", "takes no limit on the tokens of an answer; none is sent"
    ),
    "temperature": _parameter_adaptation("temperature", "takes no temperature; it samples as it does by default"),
    "seed": _parameter_adaptation("seed", "takes no seed; none is sent"),
    "stream_options": _parameter_adaptation(
        "stream_options", "takes no stream_options; what a stream consumed is not told", lossless=True
    ),
}
CANDIDATE_ADAPTATIONS: dict[RequestPart, tuple[str, ...]] = {"turns": ("later_system", "opening_turn", "system")}
"""The adaptations to try for what is refused; where nothing stands here, the one of the same name."""
NOT_ADAPTABLE: dict[RequestPart, str] = {
    "images": "the model takes no images, and the request cannot do without",
    "tools": "the endpoint refuses the tools or tool calls of this request; without them the answer would be another one",
    "turns": "the model does not take messages in this order",
    "system": "the model takes no system role",
}


def adapt(call: Call, capabilities: ModelCapabilities, formats: Sequence[Format] = FORMATS) -> Call:
    """Make requests as a model takes them. `known` is what is known of it; `formats` it can be asked in, strictest first.

    An answer's usage, and an error's, includes that of the calls that were refused on the way.
    """
    ask = fall_back_formats(call, capabilities, formats)

    async def call_adapted(request: Request) -> Reply:
        request = _apply_known_adaptations(request, capabilities)
        spent = NO_USAGE
        helped: list[tuple[str, ModelError]] = []
        while True:
            try:
                reply = await ask(request)
            except ModelError as error:
                spent += error.usage
                found = _next_adaptation(request, error)
                if found is None:
                    error.usage = spent.as_single_answer()
                    _explain_refusal(error, request)
                    raise
                request = ADAPTATIONS[found].apply(request)
                helped.append((found, error))
            else:
                for key, refusal in helped:
                    _record_adaptation(key, refusal, capabilities)
                return replace(reply, usage=(spent + reply.usage).as_single_answer()) if helped else reply

    return call_adapted


def fall_back_formats(call: Call, capabilities: ModelCapabilities, formats: Sequence[Format] = FORMATS) -> Call:
    """For a request with a schema, ask in the next format where one is refused, and in plain text where the answer is prose.

    A refusal that names the format holds for its schema from then on. Any other sign that the format is at fault holds for
    its own request, until several different requests have shown it. A server in trouble is left to retry.
    """

    async def call_with_fallback(request: Request) -> Reply:
        if request.schema is None or len(formats) == 1:
            return await call(request)
        if capabilities.should_compare_formats(request):
            return await _compare_formats(call, request, capabilities, formats)
        left = list(capabilities.formats_for(request, formats))
        spent, unnamed = NO_USAGE, None
        failed: dict[Format, FormatVerdict] = {}
        while True:
            attempt = replace(request, format=left.pop(0))
            try:
                reply = await call(attempt)
            except ModelError as error:
                spent += error.usage
                verdict = _format_verdict(error, attempt, capabilities)
                if verdict is None or not left:
                    told = unnamed if unnamed and verdict else error
                    told.usage = spent.as_single_answer()
                    raise told from told.__cause__
                unnamed = unnamed or (error if verdict == "doubtful" else None)
                failed[attempt.format] = verdict
            else:
                if not left or reply.truncated or _is_json(reply):
                    _record_formats(attempt, reply, failed, capabilities)
                    return replace(reply, usage=(spent + reply.usage).as_single_answer()) if failed else reply
                spent += _without_answer(reply.usage)
                failed[attempt.format] = "ignored"
                del left[:-1]

    return call_with_fallback


def _format_verdict(error: ModelError, request: Request, capabilities: ModelCapabilities) -> FormatVerdict | None:
    """What an error says of the format that was asked for. None: nothing, since it is for something else."""
    part = refused_part(error, request)
    if part == "format":
        return "doubtful" if error.status in {500, 501} and capabilities.is_proven(request.format) else "refused"
    if part is not None or not is_refusal(error):
        return None
    if is_bad_answer(error) or error.status in MALFORMED_STATUSES:
        return "doubtful"
    if error.status == 500 and request.format != "text" and not capabilities.is_proven(request.format):
        capabilities.record_unexplained_error(request)
    return None


async def _compare_formats(call: Call, request: Request, capabilities: ModelCapabilities, formats: Sequence[Format]) -> Reply:
    """Find out whether a failing server minds the format: it does when plain text is answered, and the format fails once more."""
    plain = await call(request)
    strict = replace(request, format=formats[0])
    try:
        reply = await call(strict)
    except ModelError as error:
        if error.status == 500 and _is_json(plain):
            for format in formats[:-1]:
                capabilities.record_fallback(format, request)
        return replace(plain, usage=(plain.usage + error.usage).as_single_answer())
    _record_formats(strict, reply, {}, capabilities)
    return replace(reply, usage=(_without_answer(plain.usage) + reply.usage).as_single_answer())


def _without_answer(usage: Usage) -> Usage:
    """What an answer took that is not the one that is given."""
    return replace(usage, answer_tokens=0, answer_cost=0.0)


def _record_formats(request: Request, reply: Reply, verdicts: dict[Format, FormatVerdict], capabilities: ModelCapabilities) -> None:
    """Remember what an answer shows of its own format, and of those that failed before it."""
    if request.format != "text" and _is_json(reply):
        capabilities.record_success(request)
    for format, verdict in verdicts.items():
        if verdict == "refused":
            capabilities.record_refusal(format, request)
        elif verdict == "doubtful" or (_is_json(reply) and not capabilities.is_proven(format)):
            capabilities.record_fallback(format, request)


def _is_json(reply: Reply) -> bool:
    """Whether a judge's answer may hold an object: anything else is prose."""
    return "{" in reply.text


def _apply_known_adaptations(request: Request, capabilities: ModelCapabilities) -> Request:
    """The request as it goes out first."""
    joined = merge_adjacent(request.messages)
    if joined is not request.messages:
        request = replace(request, messages=joined)
    for key in capabilities.adaptations:
        if key != "images" or request.schema is not None:
            request = ADAPTATIONS[key].apply(request)
    return request


def _next_adaptation(request: Request, error: ModelError) -> str | None:
    """The adaptation that may help; None where there is none, or the error is no refusal.

    Only a judge is asked without images: a text written blind would be a wrong answer, not a worse one.
    """
    part = refused_part(error, request)
    if part is None and error.status in MALFORMED_STATUSES and is_refusal(error) and has_images(request.messages):
        part = "images"
    if part is None or (part == "images" and request.schema is None):
        return None
    ways = CANDIDATE_ADAPTATIONS.get(part, (part,))
    return next((key for key in ways if key in ADAPTATIONS and ADAPTATIONS[key].apply(request) != request), None)


def _record_adaptation(key: str, error: ModelError, capabilities: ModelCapabilities) -> None:
    """Make requests so from now on. An image that is refused says nothing about others, unless the words do."""
    if key != "images" or rejects_images(error):
        capabilities.add_adaptation(key, ADAPTATIONS[key].log_message, lossless=ADAPTATIONS[key].lossless)


def _explain_refusal(error: ModelError, request: Request) -> None:
    """Have the error of a request that cannot be made in another way name what was refused: no retry helps."""
    part = refused_part(error, request)
    if part in NOT_ADAPTABLE and (part != "images" or rejects_images(error)):
        error.args = (f"{error} ({NOT_ADAPTABLE[part]})",)
        error.retryable = False
