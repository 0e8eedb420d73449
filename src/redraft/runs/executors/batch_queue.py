"""The requests for one model in a provider's batch API (`ModelQueue`), and the journal's log of
batches (`SubmissionLog`).

Only data structures: `provider_batch` decides when a batch is submitted, makes all calls, and waits
for the answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from uuid import uuid4

from ...errors import ModelTimeoutError
from ...models.http_client import REFUSED_USAGE
from ...models.openai_batches import (
    BatchClient,
    BatchItemResult,
    ProviderBatch,
    missing_answer_error,
)
from ...protocols import Request
from ...storage.journal import Journal

MAX_REQUESTS = 50_000  # in a batch, by the limits of providers
MAX_BYTES = 100_000_000
MAX_TRIES = 3  # batches that may end without an answer to the same request
# the error of a batch if an account has too many tokens in the provider's queue
OVER_LIMIT = "token_limit_exceeded"


@dataclass(frozen=True, slots=True)
class SubmittedBatch:
    """A batch in the journal. `model` is a hash of the model's identity; `batch` is the provider's
    ID, None until it is known.
    """

    id: str
    number: int
    model: str
    requests: int
    batch: str | None = None


class SubmissionLog:
    """The batches of a run whose answers may not all be in its journal yet. `token` identifies the
    run at the provider.
    """

    def __init__(self, journal: Journal, run: str) -> None:
        self._journal, self._run = journal, run
        info = journal.run(run)
        data = (info.metadata.get("provider_batches") if info else None) or {}
        self.token: str = data.get("token") or uuid4().hex
        self.count: int = data.get("count", 0)
        self.open: dict[str, SubmittedBatch] = {
            each["id"]: SubmittedBatch(**each) for each in data.get("open", ())
        }

    def begin(self, model: str, requests: int) -> SubmittedBatch:
        """Return a new batch with the next number."""
        self.count += 1
        return SubmittedBatch(uuid4().hex, self.count, model, requests)

    def metadata(self, submitted: SubmittedBatch) -> dict[str, str]:
        """Return the metadata that identifies a batch at the provider."""
        return {"redraft_run": self.token, "redraft_batch": submitted.id}

    async def save(self, submitted: SubmittedBatch) -> None:
        """Save a batch in the journal, and wait for the commit. Raises StoreError."""
        self.open[submitted.id] = submitted
        self._write()
        await self._journal.wait_for_commit()

    def drop(self, ids: Iterable[str]) -> None:
        """Remove batches whose answers were all written to the journal before this."""
        if removable := self.open.keys() & set(ids):
            self.open = {
                id: submitted for id, submitted in self.open.items() if id not in removable
            }
            self._write()

    def _write(self) -> None:
        batches = {
            "token": self.token,
            "count": self.count,
            "open": [*map(asdict, self.open.values())],
        }
        self._journal.update_run(self._run, provider_batches=batches)


@dataclass(eq=False, slots=True)
class QueuedRequest:
    """A request with the calls that wait for its answer. `tries`: how many batches have ended
    without an answer.
    """

    key: str
    line: bytes
    waiters: list[asyncio.Future[BatchItemResult]] = field(default_factory=list)
    tries: int = 0

    def answer(self, answer: BatchItemResult) -> None:
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(answer)

    def fail(self, message: str) -> None:
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_exception(
                    ModelTimeoutError(message, retryable=False, usage=REFUSED_USAGE)
                )


@dataclass
class ModelQueue:
    """The requests for one model: those to submit (`open`, `size` bytes), those `submitted`, and
    `unclaimed` answers.

    `recovered` are batches of an earlier process. Nothing new is submitted until their answers have
    arrived; an answer that no call waits for yet is unclaimed. A batch has at most `max_requests`
    requests.
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
        return not self.recovered and (
            len(self.open) >= self.max_requests or self.size >= MAX_BYTES
        )

    @property
    def can_submit(self) -> bool:
        """Whether a batch can be submitted now. Once the limit of the account was reached, only one
        at a time.
        """
        return (
            bool(self.open)
            and not self.recovered
            and not (self.max_requests < MAX_REQUESTS and self.submitted)
        )

    def request(self, key: str, request: Request) -> QueuedRequest:
        """Return the entry for a request; equal requests share one."""
        return (
            self.submitted.get(key)
            or self.open.get(key)
            or self.add(QueuedRequest(key, self.batches.request_line(key, request)))
        )

    def add(self, item: QueuedRequest) -> QueuedRequest:
        self.open[item.key] = item
        self.size += len(item.line)
        return item

    def take(self) -> list[QueuedRequest]:
        """Return the requests for the next batch, in order of arrival; drop those for which no call
        waits any more.
        """
        batch: list[QueuedRequest] = []
        size = 0
        for item in list(self.open.values()):
            if len(batch) >= self.max_requests or (batch and size + len(item.line) > MAX_BYTES):
                break
            self._remove(item)
            if item.waiters:
                batch.append(item)
                size += len(item.line)
        self.submitted |= {item.key: item for item in batch}
        return batch

    def _remove(self, item: QueuedRequest) -> None:
        del self.open[item.key]
        self.size -= len(item.line)

    def deliver(self, key: str, answer: BatchItemResult, *, keep: bool) -> None:
        """Give an answer to the calls that wait for it. `keep`: if there is none, keep it for a
        later call.
        """
        if item := self.submitted.pop(key, None):
            item.answer(answer)
        elif item := self.open.get(key):
            self._remove(item)
            item.answer(answer)
        elif keep:
            self.unclaimed[key] = answer

    def requeue_unanswered(self, items: Sequence[QueuedRequest], batch: ProviderBatch) -> None:
        """Queue the requests again that a batch has not answered, up to MAX_TRIES times."""
        over_limit = (
            batch.error is not None and batch.error.get("code") == OVER_LIMIT and len(items) > 1
        )
        if over_limit:
            self.max_requests = len(items) // 2
        for item in [item for item in items if self.submitted.get(item.key) is item]:
            del self.submitted[item.key]
            item.tries += not over_limit
            if item.tries < MAX_TRIES:
                self.add(item)
            else:
                why = f": {missing_answer_error(batch.error)}" if batch.error else ""
                item.fail(
                    f"{MAX_TRIES} batches ended without an answer, the last of them "
                    f"{batch.status}{why}"
                )
