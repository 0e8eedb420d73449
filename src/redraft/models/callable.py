"""Any function from messages to text, as a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import isawaitable, iscoroutinefunction
from typing import Any
from uuid import uuid4

from .. import checks
from ..contracts import Reply, Request
from ..core.errors import BadResponseError, ModelError
from ..core.records import Usage
from ..core.tasks import run_in_thread
from ..error_text import error_text
from .reading import without_thoughts
from .wire import PERHAPS_BILLED


class CallableModel:
    """A function `(messages) -> text`, async or not (then it runs in a thread); it may also return a Reply.

    What it consumes is unknown. Give it a `name` to have its answers found again in a cache by later runs.
    """

    def __init__(self, fn: Callable[[list[dict[str, Any]]], Any], name: str | None = None) -> None:
        if not callable(fn):
            raise checks.refused("fn", "a function (messages) -> text", fn)
        checks.text("name", name, optional=True, empty=True)
        own = getattr(fn, "__name__", type(fn).__name__)
        self.name = name or ("callable" if own == "<lambda>" else own)
        self.identity = f"callable:{name}" if name else f"callable:{self.name}:{uuid4().hex}"
        self._fn = fn

    def __repr__(self) -> str:
        return f"CallableModel({self.name!r})"

    async def complete(self, request: Request) -> Reply:
        try:
            said = await called(self._fn, [dict(m) for m in request.messages])
        except ModelError:
            raise
        except Exception as error:  # whatever a foreign function raises is a model that failed
            raise ModelError(f"{self.name} raised {error_text(error)}", usage=PERHAPS_BILLED) from error
        return as_reply(said, self.name, PERHAPS_BILLED)


async def called(fn: Callable[..., Any], messages: Sequence[Mapping[str, Any]]) -> Any:
    """What a function, async or not, makes of the messages."""
    if iscoroutinefunction(fn) or iscoroutinefunction(getattr(fn, "__call__", None)):  # noqa: B004
        return await fn(messages)
    said = await run_in_thread(fn, messages)
    return await said if isawaitable(said) else said


def as_reply(said: Any, name: str, usage: Usage) -> Reply:
    """A Reply as it is, or one from a text. Raises BadResponseError for anything else, and for nothing."""
    if isinstance(said, Reply):
        return said
    if not isinstance(said, str):
        raise BadResponseError(f"{name} returned {type(said).__name__}, expected text: {said!r:.100}", usage=usage)
    text, thought = without_thoughts(said)
    if not text.strip():
        raise BadResponseError(f"{name} returned an empty answer", retryable=True, usage=usage)
    return Reply(text, usage, reasoning=thought or None)
