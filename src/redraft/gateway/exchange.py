"""What the parts of the gateway pass to each other besides requests and replies (`neutral`):
answers, progress and errors, whatever the protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from ..usage import Usage

if TYPE_CHECKING:  # they import pydantic, which commands that only manage keys do not need
    from .neutral import Reply
    from .outcome import RefinementOutcome

# seconds that a client is asked to wait while this machine is short of descriptors or memory
SHORTAGE_RETRY_AFTER = 5.0
MAX_RETRY_AFTER = 86_400.0  # seconds that a client is asked to wait: a model may ask for any time


class GatewayError(Exception):
    """A request that gets no answer. A protocol writes it in its client's form.

    `status` is the HTTP status in OpenAI's sense (a protocol may use another: Anthropic's 529
    for 503), `code` a word for programs, such as "invalid_request" or "budget_exhausted", `param`
    the field of the request at fault. `retry_after`: seconds. `cause` is why the work failed, one
    of `errors.CAUSES`; "" if the gateway itself refuses the request. `upstream_status` is the
    status of the model's reply, if there was one. `should_retry` False tells the client's SDK not
    to send the request again, because that would run everything again. `detail` is the word by
    which Anthropic's SDK knows what it may send instead ("thread_unsupported_request").
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
        cause: str = "",
        upstream_status: int | None = None,
        detail: str = "",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.cause = cause
        self.upstream_status = upstream_status
        self.message = message
        self.param = param
        self.retry_after = retry_after
        self.should_retry = should_retry
        self.headers = dict(headers)
        self.detail = detail

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
            cause=self.cause,
            upstream_status=self.upstream_status,
            detail=self.detail,
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


def invalid_request(param: str, message: str, detail: str = "") -> GatewayError:
    """Return the error for a field of a request that is wrong, or that the gateway cannot
    honour.
    """
    return GatewayError(
        400, "invalid_request", message, param=param, detail=detail, cause="ConfigError"
    )


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
    """The answer that was chosen: the reply that a client gets, with the tokens of its own call;
    how the refinement went (`outcome`); and the usage of all calls, in which None is unknown.
    """

    reply: Reply
    outcome: RefinementOutcome
    total: Usage = Usage()
