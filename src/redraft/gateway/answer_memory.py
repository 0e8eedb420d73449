"""How many bytes of answers all requests at work hold together: `AnswerMemory`."""

from __future__ import annotations

from collections import Counter

from .exchange import GatewayError

RETRY_SECONDS = 2.0
BUSY = "the gateway is busy: the answers that clients have not read yet leave no memory for another"


class AnswerMemory:
    """Counts the bytes of answers. A request whose answer does not fit beside those of others is
    refused (503).

    A key that holds something may not go on to hold more than is left free then, so that no key
    takes the room of all others: alone it gets half of the limit. Requests without a key have the
    whole limit.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.held = limit, 0
        self._held_by: Counter[str] = Counter()

    def check(self, key_id: str, *, is_held: bool = True) -> None:
        """Raise GatewayError 503 if there is no room for a byte of an answer that will be held,
        before anything is paid for it.
        """
        if is_held and not self._has_room(key_id, 1):
            raise GatewayError(503, "overloaded", BUSY, retry_after=RETRY_SECONDS)

    def hold(self, key_id: str, size: int) -> None:
        """Count bytes of an answer, which is paid for. Raises GatewayError 503, not to be retried,
        if there is no room for them.
        """
        if not self._has_room(key_id, size):
            raise GatewayError(
                503,
                "overloaded",
                BUSY,
                retry_after=RETRY_SECONDS,
                should_retry=False,
                cause="ShortageError",
            )
        self.held += size
        self._held_by[key_id] += size

    def free(self, key_id: str, size: int) -> None:
        """Count bytes less."""
        self.held -= size
        self._held_by[key_id] -= size
        if not self._held_by[key_id]:
            del self._held_by[key_id]

    def _has_room(self, key_id: str, size: int) -> bool:
        free, own = self.limit - self.held - size, self._held_by[key_id]
        return not self.held or (free >= 0 and (not own or not key_id or own + size <= free))
