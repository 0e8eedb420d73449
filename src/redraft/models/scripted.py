"""A model that says what it is told to say: for tests, examples and demonstrations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .. import checks
from ..errors import ModelError
from ..protocols import Reply, Request
from ..usage import Usage
from .functions import as_reply, call_function
from .pricing import FREE

FREE_CALL = Usage(calls=1)


class ScriptedModel:
    """A model for tests and examples: it gives prepared answers in order, at no cost.

    When the answers run out it raises a ModelError.

    Args:
        answers: The answers: texts, `Reply` objects, functions `(messages) -> text`, or exceptions, which it raises.
        name: The name under which it is recorded.

    Attributes:
        calls: Number of calls so far.
        messages: The messages of each call.
        requests: The request of each call, with temperature, tools and so on.
    """

    price = FREE
    takes_probes = False  # an answer is for a request that somebody makes

    def __init__(self, answers: Iterable[Any], name: str = "scripted") -> None:
        checks.text("name", name)
        if not isinstance(answers, Iterable) or isinstance(answers, type):
            raise checks.invalid_argument("answers", "texts, Replies, functions or exceptions in a list", answers)
        self.name = name
        self.identity = f"scripted:{name}"
        self.calls = 0
        self.messages: list[list[dict[str, Any]]] = []
        self.requests: list[Request] = []
        self._answer_count = 0
        self._answers = iter([answers] if isinstance(answers, str) else answers)

    def __repr__(self) -> str:
        return f"ScriptedModel({self.name!r}, {self.calls} calls so far)"

    async def complete(self, request: Request) -> Reply:
        sent = [dict(m) for m in request.messages]
        self.messages.append(sent)
        self.requests.append(request)
        self.calls += 1
        for answer in self._answers:
            self._answer_count += 1
            return await self._resolve_answer(answer, sent)
        raise ModelError(f"{self.name} has no answer left: it had {self._answer_count}, this is call {self.calls}", usage=FREE_CALL)

    async def _resolve_answer(self, answer: Any, messages: list[dict[str, Any]]) -> Reply:
        if isinstance(answer, BaseException) or (isinstance(answer, type) and issubclass(answer, BaseException)):
            raise _with_call_usage(answer if isinstance(answer, BaseException) else answer())
        return as_reply(await call_function(answer, messages) if callable(answer) else answer, self.name, FREE_CALL)


def _with_call_usage(error: BaseException) -> BaseException:
    if isinstance(error, ModelError) and error.usage == Usage():
        error.usage = FREE_CALL
    return error
