"""What is asked of a model in waves: the requests that wait, those that were sent, and what the journal knows of that.

Nothing here waits or talks to anybody; when a wave goes out, and how its answers come back, is the business of `waves`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from uuid import uuid4

from ..errors import ModelTimeoutError
from ..models.http_client import REFUSED_USAGE
from ..models.openai_batches import BatchClient, BatchItemResult, ProviderBatch, missing_answer_error
from ..protocols import Request
from ..storage.journal import Journal

REQUESTS = 50_000  # the most that providers take in a batch
BYTES = 100_000_000
TRIES = 3  # batches that may end without an answer to a request
TOO_MUCH = "token_limit_exceeded"  # what a batch fails with when more tokens wait than an account may have


@dataclass(frozen=True, slots=True)
class Sent:
    """A wave as the journal knows it. `model` is a hash of the model's identity; `batch` None: it may not have been made."""

    wave: str
    number: int
    model: str
    requests: int
    batch: str | None = None


class Ledger:
    """The waves of a run whose answers may not all be in its journal yet. `token` tells the run's batches from all others."""

    def __init__(self, journal: Journal, run: str) -> None:
        self._journal, self._run = journal, run
        note = journal.run(run)
        about = (note.metadata.get("waves") if note else None) or {}
        self.token: str = about.get("token") or uuid4().hex
        self.count: int = about.get("count", 0)
        self.open: dict[str, Sent] = {each["wave"]: Sent(**each) for each in about.get("open", ())}

    def begin(self, model: str, requests: int) -> Sent:
        """A wave that is about to be sent."""
        self.count += 1
        return Sent(uuid4().hex, self.count, model, requests)

    def metadata(self, sent: Sent) -> dict[str, str]:
        """By what its batch can be found at the provider's."""
        return {"redraft_run": self.token, "redraft_wave": sent.wave}

    async def put(self, sent: Sent) -> None:
        """Note a wave, for good. Raises StoreError."""
        self.open[sent.wave] = sent
        self._write()
        await self._journal.wait_for_commit()

    def drop(self, waves: Iterable[str]) -> None:
        """Forget waves: all that they brought is in the journal, or on its way there before this."""
        if gone := self.open.keys() & set(waves):
            self.open = {wave: sent for wave, sent in self.open.items() if wave not in gone}
            self._write()

    def _write(self) -> None:
        self._journal.update_run(
            self._run, waves={"token": self.token, "count": self.count, "open": [*map(asdict, self.open.values())]}
        )


@dataclass(eq=False, slots=True)
class Item:
    """A request in a wave, whoever waits for its answer, and how many batches ended without one."""

    key: str
    line: bytes
    waiting: list[asyncio.Future[BatchItemResult]] = field(default_factory=list)
    tries: int = 0

    def answer(self, answer: BatchItemResult) -> None:
        for waiter in self.waiting:
            if not waiter.done():
                waiter.set_result(answer)

    def fail(self, why: str) -> None:
        for waiter in self.waiting:
            if not waiter.done():
                waiter.set_exception(ModelTimeoutError(why, retryable=False, usage=REFUSED_USAGE))


@dataclass
class Lane:
    """What is asked of one model: requests that wait to be sent (`open`), those `sent`, and answers nobody has asked for yet.

    `left` are waves of an earlier process; until their answers have come nothing new is sent. `most` requests a wave.
    """

    batches: BatchClient
    model: str
    left: list[Sent]
    most: int = REQUESTS
    open: dict[str, Item] = field(default_factory=dict)
    sent: dict[str, Item] = field(default_factory=dict)
    early: dict[str, BatchItemResult] = field(default_factory=dict)
    size: int = 0
    recovering: bool = False

    @property
    def full(self) -> bool:
        return not self.left and (len(self.open) >= self.most or self.size >= BYTES)

    @property
    def free(self) -> bool:
        """Whether there is something to send that may be sent now: where an account's limit was met, one wave at a time."""
        return bool(self.open) and not self.left and not (self.most < REQUESTS and self.sent)

    def item(self, key: str, request: Request) -> Item:
        """The item for a request; made where nobody has asked the same."""
        known = self.sent.get(key) or self.open.get(key)
        return known or self.add(Item(key, self.batches.request_line(key, request)))

    def add(self, item: Item) -> Item:
        self.open[item.key] = item
        self.size += len(item.line)
        return item

    def take(self) -> list[Item]:
        """What goes out next, first come first: as much as fits, and nothing that nobody waits for any more."""
        taken: list[Item] = []
        size = 0
        for item in list(self.open.values()):
            if len(taken) >= self.most or (taken and size + len(item.line) > BYTES):
                break
            self._close(item)
            if item.waiting:
                taken.append(item)
                size += len(item.line)
        self.sent |= {item.key: item for item in taken}
        return taken

    def _close(self, item: Item) -> None:
        del self.open[item.key]
        self.size -= len(item.line)

    def deliver(self, key: str, answer: BatchItemResult, *, early: bool) -> None:
        """Hand an answer to whoever waits. `early`: somebody will come who has not asked yet."""
        if item := self.sent.pop(key, None):
            item.answer(answer)
        elif item := self.open.get(key):
            self._close(item)
            item.answer(answer)
        elif early:
            self.early[key] = answer

    def missed(self, items: Sequence[Item], batch: ProviderBatch) -> None:
        """Their batch has ended: what it did not answer is asked again, up to a point."""
        too_much = batch.error is not None and batch.error.get("code") == TOO_MUCH and len(items) > 1
        if too_much:
            self.most = len(items) // 2
        for item in [item for item in items if self.sent.get(item.key) is item]:
            del self.sent[item.key]
            item.tries += not too_much
            if item.tries < TRIES:
                self.add(item)
            else:
                item.fail(f"{TRIES} batches ended without an answer, the last of them {batch.status}{because(batch)}")


def because(batch: ProviderBatch) -> str:
    return f": {missing_answer_error(batch.error)}" if batch.error else ""
