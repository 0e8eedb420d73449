"""Ask a model in the way that it takes: the order of roles, system text, images, parameters, the response format.

What an endpoint does not take is learned from its refusals: the refused request is made once more in another way, and where
that helps the way is kept for the session (see `capabilities`) and told once by the logger "redraft". Neighbouring messages
of one role are always joined, since many chat templates refuse them. What has no other way fails with an error that names it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from ..core.records import NOTHING, Usage
from ..errors import ModelError
from ..protocols import FORMATS, Call, Format, Reply, Request
from .capabilities import Capabilities
from .messages import Messages, begin_with_user, fold_later_system, fold_system, has_images, join_neighbours, without_images
from .refusals import MALFORMED, Part, is_bad_answer, is_refusal, refused_part, takes_no_images

Verdict: TypeAlias = Literal["refused", "doubtful", "ignored"]


@dataclass(frozen=True, slots=True)
class Adaptation:
    """Another way to make a request, and how people are told of it. `lossless`: nothing of the request is lost by it."""

    apply: Callable[[Request], Request]
    told: str
    lossless: bool = False


def _with_messages(change: Callable[[Messages], Messages], told: str, *, lossless: bool = False) -> Adaptation:
    return Adaptation(lambda request: replace(request, messages=change(request.messages)), told, lossless)


def _without(parameter: str, told: str, *, lossless: bool = False) -> Adaptation:
    return Adaptation(lambda request: replace(request, unsupported=request.unsupported | {parameter}), told, lossless)


ADAPTATIONS: dict[str, Adaptation] = {
    "later_system": _with_messages(
        fold_later_system, "takes a system message at the beginning only; the text of others goes into user messages", lossless=True
    ),
    "opening_turn": _with_messages(
        begin_with_user, "takes no conversation that an assistant begins; a user message is put before it", lossless=True
    ),
    "system": _with_messages(fold_system, "takes no system role; its text goes into the first user message", lossless=True),
    "images": _with_messages(without_images, "takes no images; judges are told that they do not see them"),
    "max_tokens": _without("max_tokens", "takes no max_tokens; the limit is sent as max_completion_tokens", lossless=True),
    "max_completion_tokens": _without("max_completion_tokens", "takes no limit on the tokens of an answer; none is sent"),
    "temperature": _without("temperature", "takes no temperature; it samples as it does by default"),
    "seed": _without("seed", "takes no seed; none is sent"),
    "stream_options": _without("stream_options", "takes no stream_options; what a stream consumed is not told", lossless=True),
}
OTHER_WAYS: dict[Part, tuple[str, ...]] = {"turns": ("later_system", "opening_turn", "system")}
"""The adaptations to try for what is refused; where nothing stands here, the one of the same name."""
NO_OTHER_WAY: dict[Part, str] = {
    "images": "the model takes no images, and the request cannot do without",
    "tools": "the endpoint refuses the tools or tool calls of this request; without them the answer would be another one",
    "turns": "the model does not take messages in this order",
    "system": "the model takes no system role",
}


def adapt(call: Call, known: Capabilities, formats: Sequence[Format] = FORMATS) -> Call:
    """Make requests as a model takes them. `known` is what is known of it; `formats` it can be asked in, strictest first.

    An answer's usage, and an error's, includes that of the calls that were refused on the way.
    """
    ask = fall_back_formats(call, known, formats)

    async def adapted(request: Request) -> Reply:
        request = _as_known(request, known)
        spent = NOTHING
        helped: list[tuple[str, ModelError]] = []
        while True:
            try:
                reply = await ask(request)
            except ModelError as error:
                spent += error.usage
                found = _other_way(request, error)
                if found is None:
                    error.usage = spent.of_one_answer()
                    _name_refused(error, request)
                    raise
                request = ADAPTATIONS[found].apply(request)
                helped.append((found, error))
            else:
                for key, refusal in helped:
                    _keep(key, refusal, known)
                return replace(reply, usage=(spent + reply.usage).of_one_answer()) if helped else reply

    return adapted


def fall_back_formats(call: Call, known: Capabilities, formats: Sequence[Format] = FORMATS) -> Call:
    """For a request with a schema, ask in the next format where one is refused, and in plain text where the answer is prose.

    A refusal that names the format holds for its schema from then on. Any other sign that the format is at fault holds for
    its own request, until several different requests have shown it. A server in trouble is left to retry.
    """

    async def asked(request: Request) -> Reply:
        if request.schema is None or len(formats) == 1:
            return await call(request)
        if known.had_trouble(request):
            return await _compare_formats(call, request, known, formats)
        left = list(known.formats_for(request, formats))
        spent, unnamed = NOTHING, None
        failed: dict[Format, Verdict] = {}
        while True:
            attempt = replace(request, format=left.pop(0))
            try:
                reply = await call(attempt)
            except ModelError as error:
                spent += error.usage
                verdict = _verdict(error, attempt, known)
                if verdict is None or not left:
                    told = unnamed if unnamed and verdict else error
                    told.usage = spent.of_one_answer()
                    raise told from told.__cause__
                unnamed = unnamed or (error if verdict == "doubtful" else None)
                failed[attempt.format] = verdict
            else:
                if not left or reply.truncated or _is_json(reply):
                    _learn(attempt, reply, failed, known)
                    return replace(reply, usage=(spent + reply.usage).of_one_answer()) if failed else reply
                spent += _without_answer(reply.usage)
                failed[attempt.format] = "ignored"
                del left[:-1]

    return asked


def _verdict(error: ModelError, request: Request, known: Capabilities) -> Verdict | None:
    """What an error says of the format that was asked for. None: nothing, since it is for something else."""
    part = refused_part(error, request)
    if part == "format":
        return "doubtful" if error.status in {500, 501} and known.is_proven(request.format) else "refused"
    if part is not None or not is_refusal(error):
        return None
    if is_bad_answer(error) or error.status in MALFORMED:
        return "doubtful"
    if error.status == 500 and request.format != "text" and not known.is_proven(request.format):
        known.note_trouble(request)
    return None


async def _compare_formats(call: Call, request: Request, known: Capabilities, formats: Sequence[Format]) -> Reply:
    """Find out whether a failing server minds the format: it does when plain text is answered, and the format fails once more."""
    plain = await call(request)
    strict = replace(request, format=formats[0])
    try:
        reply = await call(strict)
    except ModelError as error:
        if error.status == 500 and _is_json(plain):
            for format in formats[:-1]:
                known.note_doubt(format, request)
        return replace(plain, usage=(plain.usage + error.usage).of_one_answer())
    _learn(strict, reply, {}, known)
    return replace(reply, usage=(_without_answer(plain.usage) + reply.usage).of_one_answer())


def _without_answer(usage: Usage) -> Usage:
    """What an answer took that is not the one that is given."""
    return replace(usage, answer_tokens=0, answer_cost=0.0)


def _learn(request: Request, reply: Reply, failed: dict[Format, Verdict], known: Capabilities) -> None:
    """Remember what an answer shows of its own format, and of those that failed before it."""
    if request.format != "text" and _is_json(reply):
        known.note_success(request)
    for format, verdict in failed.items():
        if verdict == "refused":
            known.note_refusal(format, request)
        elif verdict == "doubtful" or (_is_json(reply) and not known.is_proven(format)):
            known.note_doubt(format, request)


def _is_json(reply: Reply) -> bool:
    """Whether a judge's answer may hold an object: anything else is prose."""
    return "{" in reply.text


def _as_known(request: Request, known: Capabilities) -> Request:
    """The request as it goes out first."""
    joined = join_neighbours(request.messages)
    if joined is not request.messages:
        request = replace(request, messages=joined)
    for key in known.adaptations:
        if key != "images" or request.schema is not None:
            request = ADAPTATIONS[key].apply(request)
    return request


def _other_way(request: Request, error: ModelError) -> str | None:
    """The adaptation that may help; None where there is none, or the error is no refusal.

    Only a judge is asked without images: a text written blind would be a wrong answer, not a worse one.
    """
    part = refused_part(error, request)
    if part is None and error.status in MALFORMED and is_refusal(error) and has_images(request.messages):
        part = "images"
    if part is None or (part == "images" and request.schema is None):
        return None
    ways = OTHER_WAYS.get(part, (part,))
    return next((key for key in ways if key in ADAPTATIONS and ADAPTATIONS[key].apply(request) != request), None)


def _keep(key: str, error: ModelError, known: Capabilities) -> None:
    """Make requests so from now on. An image that is refused says nothing about others, unless the words do."""
    if key != "images" or takes_no_images(error):
        known.keep(key, ADAPTATIONS[key].told, lossless=ADAPTATIONS[key].lossless)


def _name_refused(error: ModelError, request: Request) -> None:
    """Have the error of a request that cannot be made in another way name what was refused: no retry helps."""
    part = refused_part(error, request)
    if part in NO_OTHER_WAY and (part != "images" or takes_no_images(error)):
        error.args = (f"{error} ({NO_OTHER_WAY[part]})",)
        error.retryable = False
