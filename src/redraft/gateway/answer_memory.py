"""How many bytes of answers all requests at work hold together: `AnswerMemory`."""

from __future__ import annotations

from .exchange import GatewayError

RETRY_SECONDS = 2.0


class AnswerMemory:
    """Counts the bytes of answers. A request whose answer does not fit beside those of others is refused (503)."""

    def __init__(self, limit: int) -> None:
        self.limit, self.held = limit, 0

    def hold(self, size: int) -> None:
        """Count bytes of an answer. Raises GatewayError 503 if there is no room for them beside others."""
        if self.held and self.held + size > self.limit:
            message = "the gateway is busy: the answers that clients have not read yet leave no memory for another"
            raise GatewayError(503, "overloaded", message, retry_after=RETRY_SECONDS)
        self.held += size

    def free(self, size: int) -> None:
        """Count bytes less."""
        self.held -= size
