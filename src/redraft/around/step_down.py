"""Ask for JSON in the strictest way an endpoint understands: json_schema, then json_object, then plain text.

A judge's images go the same way: an endpoint that takes none is asked without them, and told that it does not see them.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import replace

from ..contracts import FORMATS, Call, Format, Reply, Request
from ..core.errors import ContextLengthError, ModelError
from ..core.records import NOTHING, Message, Usage

REFUSALS = {400, 422, 500, 501}  # what servers answer to a response_format they do not know
IMAGE_REFUSALS = REFUSALS | {404, 415}
NOT_SHOWN = "The images cannot be shown to you."
_NAMED = re.compile(r"image|vision|multi-?modal|mmproj", re.IGNORECASE)
_TAKES_NONE = re.compile(
    r"(input|images?|vision) (is|are) (not supported|unsupported)|only supported by|support (for )?(image|vision)|at most 0 image"
    r"|multi-?modal|mmproj",
    re.IGNORECASE,
)
_known: dict[str, Format] = {}
_blind: set[str] = set()


def step_down(
    call: Call,
    identity: str,
    known: MutableMapping[str, Format] = _known,
    formats: tuple[Format, ...] = FORMATS,
    blind: set[str] = _blind,
) -> Call:
    """For a request with a schema, take the next format when a server refuses one or answers in prose.

    What worked is remembered by `identity` (the endpoint and model), so that the detour is made once. A server that
    refuses every format raises what it said first. `formats` are those that the model can be asked in, strictest first.
    Images that a server refuses are left out, which the request then says; one that takes none at all is
    remembered in `blind`. A request without a schema is nobody's judgement and goes as it is.
    """

    async def by_format(request: Request) -> Reply:
        spent, first = NOTHING, None
        for format in formats[formats.index(known.get(identity, formats[0])) :]:
            try:
                reply = await call(replace(request, format=format))
            except ModelError as error:
                spent, first = spent + error.usage, first or error
                if not _refused(error, known=identity in known) or _about_images(error, request):
                    error.usage = _retried(spent)
                    raise
                continue
            if format == formats[-1] or reply.truncated or "{" in reply.text:
                if not reply.truncated:
                    known[identity] = format
                return replace(reply, usage=_retried(spent + reply.usage))
            spent += replace(reply.usage, answer_tokens=0, answer_cost=0.0)  # the answer it is not
        assert first is not None
        first.usage = _retried(spent)
        raise first

    async def asked(request: Request) -> Reply:
        if request.schema is None:
            return await call(request)
        if not has_images(request):
            return await by_format(request)
        if identity in blind:
            return await by_format(without_images(request))
        try:
            return await by_format(request)
        except ModelError as error:
            if not (_about_images(error, request) or _refused(error, known=identity in known)):
                raise
            reply = await _after(error, by_format, without_images(request))
            if _takes_none(error):
                blind.add(identity)
            return reply

    return asked


async def _after(error: ModelError, call: Callable[[Request], Awaitable[Reply]], request: Request) -> Reply:
    """A call whose usage includes that of an earlier one that failed. Both failing, the later error is the reason."""
    try:
        reply = await call(request)
    except ModelError as later:
        later.usage = _retried(error.usage + later.usage)
        raise
    return replace(reply, usage=_retried(error.usage + reply.usage))


def has_images(request: Request) -> bool:
    """Whether a message of the request holds an image part."""
    return any(_is_image(part) for message in request.messages for part in _parts(message))


def without_images(request: Request) -> Request:
    """The same request without its image parts; a message that held some says that they cannot be shown."""
    return replace(request, messages=tuple(map(_without_images, request.messages)))


def _without_images(message: Message) -> Message:
    parts = _parts(message)
    if not any(map(_is_image, parts)):
        return message
    texts = [str(part["text"]) for part in parts if isinstance(part, Mapping) and "text" in part]
    return {**message, "content": "\n\n".join([*texts, NOT_SHOWN])}


def _parts(message: Message) -> list[object]:
    content = message.get("content")
    return list(content) if isinstance(content, list | tuple) else []


def _is_image(part: object) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "image_url"


def _about_images(error: ModelError, request: Request) -> bool:
    """Whether a refusal says itself that it is for the images."""
    if not has_images(request) or isinstance(error, ContextLengthError):
        return False
    return error.status in IMAGE_REFUSALS and bool(_NAMED.search(_words(error)))


def _takes_none(error: ModelError) -> bool:
    """Whether an endpoint that answers without images would refuse any: not one that only minds this image, or is in trouble."""
    said = _words(error)
    return bool(_TAKES_NONE.search(said)) or (not _NAMED.search(said) and (error.status or 500) < 500)


def _words(error: ModelError) -> str:
    """What the server said, without the name of the model in front of it, which may name images too."""
    return str(error).rpartition("status ")[2]


def _refused(error: ModelError, *, known: bool) -> bool:
    """Whether it is the format that was refused: a 5xx for one that has worked is a server in trouble."""
    if isinstance(error, ContextLengthError) or error.status not in REFUSALS:
        return False
    return not (known and error.status >= 500)


def _retried(usage: Usage) -> Usage:
    return replace(usage, retried_calls=max(usage.calls - 1, 0))
