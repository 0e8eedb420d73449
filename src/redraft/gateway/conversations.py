"""The conversations that a guardrail has seen, by the calls of its client: `Conversations`."""

from __future__ import annotations

from time import monotonic

from ..base.text import utf8_size
from ..loop.task import Message, message_text

CONVERSATION_SECONDS = 600.0  # for which a conversation is remembered
MAX_CONVERSATIONS = 1000
MAX_CONVERSATION_BYTES = 32 * 2**20  # of all together


class Conversations:
    """The conversations of the calls that LiteLLM makes, the latest MAX_CONVERSATIONS, up to
    MAX_CONVERSATION_BYTES.
    """

    def __init__(self) -> None:
        self._calls: dict[tuple[str, str], tuple[float, int, tuple[Message, ...]]] = {}
        self._bytes = 0

    def remember(self, key_id: str, call_id: str, messages: tuple[Message, ...]) -> None:
        """Keep a conversation of a client in place of the oldest ones."""
        self._forget(key_id, call_id)
        size = sum(utf8_size(message_text(message)) for message in messages)
        self._calls[key_id, call_id] = monotonic(), size, messages
        self._bytes += size
        oldest_allowed = monotonic() - CONVERSATION_SECONDS
        while self._calls:
            first, (at, _, _) = next(iter(self._calls.items()))
            if (
                len(self._calls) <= MAX_CONVERSATIONS
                and self._bytes <= MAX_CONVERSATION_BYTES
                and at >= oldest_allowed
            ):
                break
            self._forget(*first)

    def find(self, key_id: str, call_id: str) -> tuple[Message, ...]:
        """Return a conversation; () if it is not known."""
        at, _, messages = self._calls.get((key_id, call_id), (0.0, 0, ()))
        return messages if at >= monotonic() - CONVERSATION_SECONDS else ()

    def _forget(self, key_id: str, call_id: str) -> None:
        if found := self._calls.pop((key_id, call_id), None):
            self._bytes -= found[1]
