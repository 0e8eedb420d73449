"""What the parts of the gateway pass to each other: requests, answers, progress and errors,
whatever the protocol.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Literal, Protocol, TypeAlias

from ..loop.records import ToolCall
from ..loop.task import Message
from ..usage import Usage
from .neutral import RequestOptions

WireName: TypeAlias = Literal["chat", "responses", "messages"]
# seconds that a client is asked to wait while this machine is short of descriptors or memory
SHORTAGE_RETRY_AFTER = 5.0
MAX_RETRY_AFTER = 86_400.0  # seconds that a client is asked to wait: a model may ask for any time


class GatewayError(Exception):
    """A request that gets no answer. A wire writes it in its client's form.

    `status` is the HTTP status in OpenAI's sense (a wire may use another: Anthropic's 529 for 503),
    `code` a word for programs, such as "invalid_request" or "budget_exhausted", `param` the field
    of the request at fault. `retry_after`: seconds. `label` is what metrics count it as: the code,
    unless that is a model's own. `should_retry` False tells the client's SDK not to send the
    request again, because that would run everything again.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after: float | None = None,
        should_retry: bool | None = None,
        headers: Mapping[str, str] = {},
        label: str = "",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.label = label or code
        self.message = message
        self.param = param
        self.retry_after = retry_after
        self.should_retry = should_retry
        self.headers = dict(headers)

    def copy(self) -> GatewayError:
        """Return the error without its traceback, to be kept, or raised again: a traceback keeps
        all that its frames hold.
        """
        return GatewayError(
            self.status,
            self.code,
            self.message,
            param=self.param,
            retry_after=self.retry_after,
            should_retry=self.should_retry,
            headers=self.headers,
            label=self.label,
        )

    @property
    def reply_headers(self) -> dict[str, str]:
        """The headers of a reply that describes the error, besides those of its body."""
        headers = dict(self.headers)
        if self.retry_after is not None:
            headers["retry-after"] = str(max(1, ceil(min(self.retry_after, MAX_RETRY_AFTER))))
        if self.should_retry is not None:
            headers["x-should-retry"] = "true" if self.should_retry else "false"
        return headers


def invalid_request(param: str, message: str) -> GatewayError:
    """Return the error for a field of a request that is wrong, or that the gateway cannot
    honour.
    """
    return GatewayError(400, "invalid_request", message, param=param)


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request of a client, whichever protocol it speaks, in the terms of OpenAI's chat protocol.

    - `model`: as the client wrote it, such as "refine/fast"; `body`: the whole request as received.
    - `messages`, `tools`, `tool_choice`: in OpenAI's chat form (system messages first, `tool`
      messages for results of tools).
    - `schema`: the JSON schema that the answer must follow; {} for any JSON object; None for text.
    - `parameters`: other parameters for the model in OpenAI's chat form, such as `top_p` or `stop`.
    - `is_stream`, `include_usage`: whether the client reads a stream, and wants the usage in it.
    - `is_stored`: False if the client asks that nothing of the request be kept (`store: false`).
    """

    wire: WireName
    model: str
    body: Mapping[str, Any]
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    tool_choice: str | Mapping[str, Any] | None = None
    schema: Mapping[str, Any] | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    is_stream: bool = False
    include_usage: bool = False
    is_stored: bool = True
    options: RequestOptions = RequestOptions()


@dataclass(frozen=True, slots=True)
class Progress:
    """A step of the work: `kind` is "candidate", "grade" or "stop"; `score` in [0, 1], None if
    unknown.
    """

    kind: str
    iteration: int
    score: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer that was chosen. `usage` is that of its own call, `total` that of all calls; None
    in them is unknown.

    `finish_reason` is OpenAI's: "stop", "length", "tool_calls" or "content_filter". `score`: in [0,
    1], None if ungraded. `broken`: the musts that the answer does not meet.
    """

    model: str
    trace_id: str
    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str = "stop"
    usage: Usage = Usage()
    total: Usage = Usage()
    score: float | None = None
    iterations: int = 0
    stop: str = ""
    reason: str = ""
    broken: tuple[str, ...] = ()

    @property
    def headers(self) -> dict[str, str]:
        """The headers of a reply that describe the refinement, besides its ID. What is unknown has
        none.
        """
        values = {
            "x-redraft-score": None if self.score is None else f"{self.score:.4f}",
            "x-redraft-iterations": str(self.iterations),
            "x-redraft-stop": self.stop or None,
            "x-redraft-cost": None if self.total.cost is None else f"{self.total.cost:.9f}",
        }
        return {name: value for name, value in values.items() if value is not None}


class AnswerStream(Protocol):
    """Writes one answer as server-sent events. Each method returns whole events; the text is sent
    once it is chosen.
    """

    def begin(self) -> bytes:
        """Return the first events: the role, or the start of the message."""
        ...

    def keep_alive(self) -> bytes:
        """Return what clients ignore: a comment, or the protocol's own ping."""
        ...

    def progress(self, progress: Progress) -> bytes:
        """Return a step of the work: a comment, or a typed event if the request asks for
        `events`.
        """
        ...

    def finish(self, answer: Answer) -> Iterator[bytes]:
        """Return the content of the answer and everything after it."""
        ...

    def fail(self, error: GatewayError) -> bytes:
        """Return the error after which the stream ends."""
        ...


class Wire(Protocol):
    """A protocol that clients speak. Its module is pure: no network, no clock."""

    name: WireName

    def parse(self, body: Mapping[str, Any]) -> ChatRequest:
        """Read a request. Raises GatewayError 400 naming the field for anything that is wrong or
        cannot be honoured.
        """
        ...

    def answer_body(self, request: ChatRequest, answer: Answer, created: int) -> dict[str, Any]:
        """Return the reply to a request that reads no stream. `created`: Unix time in seconds."""
        ...

    def error_status(self, error: GatewayError) -> int:
        """Return the HTTP status of an error."""
        ...

    def error_body(self, error: GatewayError) -> dict[str, Any]:
        """Return the reply that describes an error."""
        ...

    def stream(self, request: ChatRequest, trace_id: str, created: int) -> AnswerStream:
        """Return what writes the answer to a request that reads a stream."""
        ...
