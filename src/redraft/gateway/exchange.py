"""What the parts of the gateway pass to each other besides requests and replies (`neutral`):
answers, progress and errors, whatever the protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from ..base.text import shorten
from ..usage import Usage
from .neutral import Reply

# seconds that a client is asked to wait while this machine is short of descriptors or memory
SHORTAGE_RETRY_AFTER = 5.0
MAX_HEADER_CHARS = 300  # of a reason
MAX_RETRY_AFTER = 86_400.0  # seconds that a client is asked to wait: a model may ask for any time


class GatewayError(Exception):
    """A request that gets no answer. A protocol writes it in its client's form.

    `status` is the HTTP status in OpenAI's sense (a protocol may use another: Anthropic's 529
    for 503), `code` a word for programs, such as "invalid_request" or "budget_exhausted", `param`
    the field of the request at fault. `retry_after`: seconds. `label` is what metrics count it as: the code,
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
    """The answer that was chosen: the reply that a client gets, with the tokens of its own call,
    and how the refinement went. `total` is the usage of all calls; None in it is unknown.

    `reply.id` is the ID of the request. `score`: in [0, 1], None if ungraded. `broken`: the musts
    that the answer does not meet.
    """

    reply: Reply
    total: Usage = Usage()
    score: float | None = None
    iterations: int = 0
    stop: str = ""
    reason: str = ""
    broken: tuple[str, ...] = ()

    @property
    def outcome(self) -> dict[str, Any]:
        """What the refinement consumed and how it ended, as `usage.redraft` says it. What is
        unknown is null.
        """
        return {
            "trace_id": self.reply.id,
            "calls": self.total.calls,
            "input_tokens": self.total.input_tokens,
            "output_tokens": self.total.output_tokens,
            "cost": self.total.cost,
            "score": self.score,
            "iterations": self.iterations,
            "stop": self.stop or None,
            "reason": self.reason or None,
            "broken": list(self.broken),
        }

    @property
    def headers(self) -> dict[str, str]:
        """The headers of a reply that describe the refinement, besides its ID. What is unknown has
        none.
        """
        values = {
            "x-redraft-score": None if self.score is None else f"{self.score:.4f}",
            "x-redraft-iterations": str(self.iterations),
            "x-redraft-stop": self.stop or None,
            "x-redraft-reason": header_text(self.reason) or None,
            "x-redraft-cost": None if self.total.cost is None else f"{self.total.cost:.9f}",
        }
        return {name: value for name, value in values.items() if value is not None}


def header_text(text: str) -> str:
    """Return a text as the value of a header: in one line, in ASCII, and not too long."""
    return shorten(text, MAX_HEADER_CHARS).replace("…", "...").encode("ascii", "replace").decode()
