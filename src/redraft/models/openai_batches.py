"""The batch API of an OpenAI-compatible endpoint: files of requests that are answered within a day,
at a lower price.

One method is one HTTP request; `redraft.runs.executors.batch_queue` decides when to send it. `Chat`
writes requests and reads answers, so that a line of a batch means the same as a live call.
Protocol: https://platform.openai.com/docs/api-reference/batch.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, urlencode
from uuid import uuid4

import orjson

from ..base.jsontext import loads, object_in, text_in
from ..errors import BadResponseError, ModelError
from ..protocols import Reply, Request
from .chat_replies import parse_body, read_count
from .http_client import (
    MAX_BODY_BYTES,
    REFUSED_USAGE,
    RequestTarget,
    Timeouts,
    fetch,
    open_exchange,
)
from .openai_chat import Chat, dump_request
from .server_errors import ErrorBody, error_from_status
from .sse import LineSplitter
from .waits import parse_retry_after

ENDPOINT = "/v1/chat/completions"
COMPLETION_WINDOW = "24h"
TERMINAL_STATUSES = frozenset({"completed", "failed", "expired", "cancelled"})
STATUSES = TERMINAL_STATUSES | {"validating", "in_progress", "finalizing", "cancelling"}
# codes of requests that were never processed
NOT_PROCESSED_CODES = frozenset({"batch_expired", "batch_cancelled"})
REQUEST_TIMEOUTS, TRANSFER_TIMEOUTS = Timeouts(total=120.0), Timeouts(total=3600.0)
MAX_RESULT_BYTES = 4 * 2**30  # bytes that are read of one file of answers
MAX_LIST_PAGES = 50  # pages of 100 batches that are searched for one


@dataclass(frozen=True, slots=True)
class ProviderBatch:
    """A batch as its endpoint describes it.

    `files` are the IDs of the files with answers, `error` says why the whole batch failed, and
    `retry_after` is how many seconds the endpoint asks to wait before the next request.
    """

    id: str
    status: str
    answered_count: int = 0
    files: tuple[str, ...] = ()
    error: Mapping[str, Any] | None = None
    retry_after: float | None = None

    @property
    def is_ended(self) -> bool:
        return self.status in TERMINAL_STATUSES


@dataclass(frozen=True, slots=True)
class BatchItemResult:
    """The result of one request: an HTTP status with its body, or an error (None: unknown)."""

    status: int | None = None
    body: bytes = b""
    error: Mapping[str, Any] | None = None


class BatchClient:
    """The batch API at the endpoint of a chat model. Its methods raise ModelError, which names the
    model and the host.
    """

    def __init__(self, chat: Chat) -> None:
        self.chat = chat

    def request_line(self, key: str, request: Request) -> bytes:
        """Return a request as a line of a batch file. Raises ConfigError if it cannot be written as
        JSON.
        """
        body = self.chat.request_body(request)
        return (
            dump_request({"custom_id": key, "method": "POST", "url": ENDPOINT, "body": body})
            + b"\n"
        )

    def parse_reply(self, answer: BatchItemResult) -> Reply:
        """Return the reply in a result, exactly as for a live call."""
        try:
            if answer.status is None:
                raise missing_answer_error(answer.error)
            return self.chat.parse_response(answer.status, {}, answer.body)
        except ModelError as error:
            error.retry_after = None  # that time has passed
            raise self._with_context(error) from None

    async def upload(self, lines: Iterable[bytes]) -> str:
        """Upload a file with these lines, and return its ID."""
        boundary = uuid4().hex
        headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
        body = _multipart_body(boundary, lines)
        data = await self._request_json("POST", "/files", body, headers, timeouts=TRANSFER_TIMEOUTS)
        if not isinstance(id := data.get("id"), str):
            raise self._with_context(
                BadResponseError(
                    "took the file of a batch and gave it no id",
                    retryable=True,
                    usage=REFUSED_USAGE,
                )
            )
        return id

    async def create(self, file_id: str, metadata: Mapping[str, str]) -> ProviderBatch:
        """Create a batch of the requests in a file."""
        body = {
            "input_file_id": file_id,
            "endpoint": ENDPOINT,
            "completion_window": COMPLETION_WINDOW,
            "metadata": dict(metadata),
        }
        return self._parse_batch(await self._request_json("POST", "/batches", orjson.dumps(body)))

    async def retrieve(self, id: str) -> ProviderBatch:
        """Return the current state of a batch."""
        return self._parse_batch(await self._request_json("GET", f"/batches/{quote(id, safe='')}"))

    async def cancel(self, id: str) -> ProviderBatch:
        """Cancel a batch."""
        return self._parse_batch(
            await self._request_json("POST", f"/batches/{quote(id, safe='')}/cancel")
        )

    async def find_by_metadata(self, metadata: Mapping[str, str]) -> ProviderBatch | None:
        """Return the newest batch created with this metadata; None if there is none, or the
        endpoint lists no batches.
        """
        async with aclosing(self._iter_batches()) as batches:
            async for batch in batches:
                if metadata.items() <= (batch.get("metadata") or {}).items():
                    return self._parse_batch(batch)
        return None

    async def _iter_batches(self) -> AsyncGenerator[dict[str, Any], None]:
        after: dict[str, str] = {}
        for _ in range(MAX_LIST_PAGES):
            try:
                page = await self._request_json(
                    "GET", f"/batches?{urlencode({'limit': '100', **after})}"
                )
            except ModelError as error:
                if error.status not in {404, 405}:
                    raise
                return
            batches = [batch for batch in page.get("data") or () if isinstance(batch, dict)]
            for batch in batches:
                yield batch
            if not page.get("has_more") or not batches:
                return
            after = {"after": str(batches[-1].get("id"))}

    async def download_results(
        self, file_id: str
    ) -> AsyncGenerator[tuple[str, BatchItemResult], None]:
        """Yield the results in a file with their custom IDs. Invalid lines are skipped; their
        requests count as unanswered.
        """
        target = self._target(f"/files/{quote(file_id, safe='')}/content", TRANSFER_TIMEOUTS)
        try:
            async with open_exchange(target, stream=True) as (exchange, response):
                if response.status != 200:
                    raise self._error_from_response(*await exchange.read_rest(response))
                exchange.cap = MAX_RESULT_BYTES
                async with aclosing(exchange.iter_body(response)) as parts:
                    async for line in _split_lines(parts):
                        if result := parse_result_line(target.mask.mask_bytes(line)):
                            yield result
        except ModelError as error:
            raise self._with_context(error) from None

    async def _request_json(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        extra_headers: Mapping[str, str] | None = None,
        timeouts: Timeouts = REQUEST_TIMEOUTS,
    ) -> dict[str, Any]:
        """Send a request and return the JSON object in its response, with Retry-After as
        "retry_after".
        """
        target = self._target(path, timeouts)
        try:
            status, headers, content = await fetch(
                replace(target, headers={**target.headers, **(extra_headers or {})}), method, body
            )
            if not 200 <= status < 300:
                raise self._error_from_response(status, headers, content)
            data = parse_body(content, headers.get("content-type", ""))
            if not isinstance(data, dict):
                raise BadResponseError(
                    "sent something that does not describe a batch",
                    retryable=True,
                    usage=REFUSED_USAGE,
                )
            return {**data, "retry_after": parse_retry_after(headers)}
        except ModelError as error:
            raise self._with_context(error) from None

    def _error_from_response(
        self, status: int, headers: Mapping[str, str], body: bytes
    ) -> ModelError:
        error = self.chat.error_from_response(status, headers, body)
        if status in {404, 405}:
            error.reason = "does this endpoint have a batch API, /files and /batches?"
            error.args = (f"{error} ({error.reason})",)
        return error

    def _target(self, path: str, timeouts: Timeouts) -> RequestTarget:
        path, _, query = path.partition("?")
        return replace(self.chat.target_for(path, query), timeouts=timeouts)

    def _parse_batch(self, data: Mapping[str, Any]) -> ProviderBatch:
        id, status = text_in(data, "id"), text_in(data, "status")
        if not (id and status):
            raise self._with_context(
                BadResponseError(
                    "sent a batch without an id or a status", retryable=True, usage=REFUSED_USAGE
                )
            )
        files = (data.get("output_file_id"), data.get("error_file_id"))
        counts = object_in(data, "request_counts")
        done = [read_count(counts.get(name)) or 0 for name in ("completed", "failed")]
        return ProviderBatch(
            id,
            status,
            sum(done),
            tuple(f for f in files if isinstance(f, str)),
            _first_error(data),
            data.get("retry_after"),
        )

    def _with_context(self, error: ModelError) -> ModelError:
        """Add the model and the host to an error that does not name them yet."""
        return (
            error
            if str(error).startswith(f"{self.chat.name} at ")
            else self.chat.with_context(error)
        )


def missing_answer_error(details: Mapping[str, Any] | None) -> ModelError:
    """Return the error for a request without a response in a batch. It is retryable unless the
    batch says otherwise.
    """
    body = ErrorBody({"error": dict(details or {})})
    error = error_from_status(body.status or 503, body)
    error.args = (f"the batch holds no answer: {body.words}",)
    error.status = body.status
    return error


def parse_result_line(line: bytes) -> tuple[str, BatchItemResult] | None:
    """Return the custom ID and the result in a line of a batch's output; None if the line is
    invalid.
    """
    try:
        data = loads(line)
    except ValueError:
        return None
    if not isinstance(data, dict) or not isinstance(key := data.get("custom_id"), str):
        return None
    response, error = data.get("response"), data.get("error")
    if isinstance(response, dict) and isinstance(status := response.get("status_code"), int):
        body = response.get("body")
        text = body if isinstance(body, str) else json.dumps(body, separators=(",", ":"))
        return key, BatchItemResult(status, text.encode("utf-8", "replace"))
    if isinstance(error, dict) and error and error.get("code") not in NOT_PROCESSED_CODES:
        return key, BatchItemResult(error=error)
    return None


async def _split_lines(parts: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    lines = LineSplitter()
    async for part in parts:
        for line in lines.feed(part):
            yield line
        if lines.pending_bytes > MAX_BODY_BYTES:
            raise BadResponseError(
                f"sent a line of more than {MAX_BODY_BYTES // 2**20} MiB", usage=REFUSED_USAGE
            )
    yield lines.remainder()


def _multipart_body(boundary: str, lines: Iterable[bytes]) -> bytes:
    """Return the body of an upload (RFC 7578)."""
    head = (
        f"--{boundary}\r\nContent-Disposition: form-data; "
        f'name="purpose"\r\n\r\nbatch\r\n--{boundary}\r\n'
        'Content-Disposition: form-data; name="file"; filename="redraft.jsonl"\r\nContent-Type: '
        "application/jsonl\r\n\r\n"
    )
    return b"".join([head.encode(), *lines, f"\r\n--{boundary}--\r\n".encode()])


def _first_error(data: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the first error for which a batch failed as a whole."""
    errors = data.get("errors")
    items = errors.get("data") if isinstance(errors, dict) else errors
    first = items[0] if isinstance(items, list) and items else None
    return first if isinstance(first, dict) else {"message": str(first)} if first else None
