"""Ask for JSON in the strictest way an endpoint understands: json_schema, then json_object, then plain text."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import replace

from ..contracts import FORMATS, Call, Format, Reply, Request
from ..core.errors import ContextLengthError, ModelError
from ..core.records import NOTHING, Usage

REFUSALS = {400, 422, 500, 501}  # what servers answer to a response_format they do not know
_known: dict[str, Format] = {}


def step_down(
    call: Call, identity: str, known: MutableMapping[str, Format] = _known, formats: tuple[Format, ...] = FORMATS
) -> Call:
    """For a request with a schema, take the next format when a server refuses one or answers in prose.

    What worked is remembered by `identity` (the endpoint and model), so that the detour is made once. A server that
    refuses every format raises what it said first. `formats` are those that the model can be asked in, strictest first.
    """

    async def asked(request: Request) -> Reply:
        if request.schema is None:
            return await call(request)
        spent, first = NOTHING, None
        for format in formats[formats.index(known.get(identity, formats[0])) :]:
            try:
                reply = await call(replace(request, format=format))
            except ModelError as error:
                spent, first = spent + error.usage, first or error
                if not _refused(error, known=identity in known):
                    error.usage = _retried(spent)
                    raise
                continue
            spent += reply.usage
            if format == formats[-1] or reply.truncated or "{" in reply.text:
                if not reply.truncated:
                    known[identity] = format
                return replace(reply, usage=_retried(spent))
        assert first is not None
        first.usage = _retried(spent)
        raise first

    return asked


def _refused(error: ModelError, *, known: bool) -> bool:
    """Whether it is the format that was refused: a 5xx for one that has worked is a server in trouble."""
    if isinstance(error, ContextLengthError) or error.status not in REFUSALS:
        return False
    return not (known and error.status >= 500)


def _retried(usage: Usage) -> Usage:
    return replace(usage, retried_calls=max(usage.calls - 1, 0))
