"""The requests for one model that go out in batches: those that wait, those that were submitted, and the journal's log of them.

Nothing here waits or calls anything; when a batch is submitted, and how its answers come back, is decided by `provider_batch`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from uuid import uuid4

from ...errors import ModelTimeoutError
from ...models.http_client import REFUSED_USAGE
from ...models.openai_batches import BatchClient, BatchItemResult, ProviderBatch, missing_answer_error
from ...protocols import Request
from ...storage.journal import Journal

MAX_REQUESTS = 50_000  # the most that providers take in a batch
MAX_BYTES = 100_000_000
MAX_TRIES = 3  # batches that may end without an answer to a request
OVER_LIMIT = "token_limit_exceeded"  # what a batch fails with when more tokens wait than an account may have


@dataclass(frozen=True, slots=True)
class SubmittedBatch:
    """A batch as the journal knows it. `model` is a hash of the model's identity; `batch` None: it may not have been created."""

    id: str
    number: int
    model: str
    requests: int
    batch: str | None = None


class SubmissionLog:
    """The batches of a run whose answers may not all be in its journal yet. `token` marks the run's batches at the provider."""

    def __init__(self, journal: Journal, run: str) -> None:
        self._journal, self._run = journal, run
        note = journal.run(run)
        about = (note.metadata.get("provider_batches") if note else None) or {}
        self.token: str = about.get("token") or uuid4().hex
        self.count: int = about.get("count", 0)
        self.open: dict[str, SubmittedBatch] = {each["id"]: SubmittedBatch(**each) for each in about.get("open", ())}

    def begin(self, model: str, requests: int) -> SubmittedBatch:
        """Return a batch that is about to be submitted."""
        self.count += 1
        return SubmittedBatch(uuid4().hex, self.count, model, requests)

    def metadata(self, submitted: SubmittedBatch) -> dict[str, str]:
        """Return the metadata by which a batch can be found at the provider."""
        return {"redraft_run": self.token, "redraft_batch": submitted.id}

    async def save(self, submitted: SubmittedBatch) -> None:
        """Save a batch. Raises StoreError."""
        self.open[submitted.id] = submitted
        self._write()
        await self._journal.wait_for_commit()

    def drop(self, ids: Iterable[str]) -> None:
        """Forget batches: all their answers are in the journal, or will be there before this."""
        if done := self.open.keys() & set(ids):
            self.open = {id: submitted for id, submitted in self.open.items() if id not in done}
            self._write()

    def _write(self) -> None:
        batches = {"token": self.token, "count": self.count, "open": [*map(asdict, self.open.values())]}
        self._journal.update_run(self._run, provider_batches=batches)


@dataclass(eq=False, slots=True)
class QueuedRequest:
    """A request, the calls that wait for its answer, and how many batches ended without one."""

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
class ModelQueue:
    """The requests for one model: those that wait (`open`), those `submitted`, and answers that no call waits for yet.

    `recovered` are batches of an earlier process; until their answers have come nothing new is submitted. A batch has at most
    `max_requests`.
    """

    batches: BatchClient
    model: str
    recovered: list[SubmittedBatch]
    max_requests: int = MAX_REQUESTS
    open: dict[str, QueuedRequest] = field(default_factory=dict)
    submitted: dict[str, QueuedRequest] = field(default_factory=dict)
    unclaimed: dict[str, BatchItemResult] = field(default_factory=dict)
    size: int = 0
    recovering: bool = False

    @property
    def is_full(self) -> bool:
        return not self.recovered and (len(self.open) >= self.max_requests or self.size >= MAX_BYTES)

    @property
    def can_submit(self) -> bool:
        """Whether a batch can be submitted now: after the account's limit was reached, one at a time."""
        return bool(self.open) and not self.recovered and not (self.max_requests < MAX_REQUESTS and self.submitted)

    def request(self, key: str, request: Request) -> QueuedRequest:
        """Return the entry for a request; the same for the same request."""
        known = self.submitted.get(key) or self.open.get(key)
        return known or self.add(QueuedRequest(key, self.batches.request_line(key, request)))

    def add(self, item: QueuedRequest) -> QueuedRequest:
        self.open[item.key] = item
        self.size += len(item.line)
        return item

    def take(self) -> list[QueuedRequest]:
        """Return the next batch in order of arrival: as much as fits, without requests that no call waits for any more."""
        batch: list[QueuedRequest] = []
        size = 0
        for item in list(self.open.values()):
            if len(batch) >= self.max_requests or (batch and size + len(item.line) > MAX_BYTES):
                break
            self._close(item)
            if item.waiting:
                batch.append(item)
                size += len(item.line)
        self.submitted |= {item.key: item for item in batch}
        return batch

    def _close(self, item: QueuedRequest) -> None:
        del self.open[item.key]
        self.size -= len(item.line)

    def deliver(self, key: str, answer: BatchItemResult, *, keep: bool) -> None:
        """Hand an answer to the calls that wait. `keep`: keep it if there is none yet."""
        if item := self.submitted.pop(key, None):
            item.answer(answer)
        elif item := self.open.get(key):
            self._close(item)
            item.answer(answer)
        elif keep:
            self.unclaimed[key] = answer

    def requeue_unanswered(self, items: Sequence[QueuedRequest], batch: ProviderBatch) -> None:
        """A batch has ended: queue what it did not answer again, up to MAX_TRIES times."""
        over_limit = batch.error is not None and batch.error.get("code") == OVER_LIMIT and len(items) > 1
        if over_limit:
            self.max_requests = len(items) // 2
        for item in [item for item in items if self.submitted.get(item.key) is item]:
            del self.submitted[item.key]
            item.tries += not over_limit
            if item.tries < MAX_TRIES:
                self.add(item)
            else:
                item.fail(f"{MAX_TRIES} batches ended without an answer, the last of them {batch.status}{error_suffix(batch)}")


def error_suffix(batch: ProviderBatch) -> str:
    """Return ": " and the error of a batch; "" if it has none."""
    return f": {missing_answer_error(batch.error)}" if batch.error else ""
