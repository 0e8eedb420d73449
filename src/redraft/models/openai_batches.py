"""The batch API of an OpenAI-compatible endpoint: files of requests that it answers within a day, for less money.

One method is one HTTP call. It knows nothing of rows, waves or waiting: who asks again, and when, is decided elsewhere. What
is asked and how an answer is read is the business of `Chat`, so that a line of a batch means what a live call would.
Protocol: https://platform.openai.com/docs/api-reference/batch.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any
from urllib.parse import quote, urlencode
from uuid import uuid4

import orjson

from ..errors import BadResponseError, ConfigError, ModelError
from ..jsontext import loads, replace_lone_surrogates
from ..protocols import Reply, Request
from .http_client import MAX_BODY_BYTES, REFUSED_USAGE, HttpResponse, RequestTarget, Timeouts, fetch, open_exchange
from .openai_chat import Chat
from .openai_responses import ErrorBody, error_from_status, parse_body
from .rate_limit_headers import parse_retry_after
from .sse import LineSplitter

ENDPOINT = "/v1/chat/completions"
COMPLETION_WINDOW = "24h"
TERMINAL_STATUSES = frozenset({"completed", "failed", "expired", "cancelled"})
NOT_PROCESSED_CODES = frozenset({"batch_expired", "batch_cancelled"})  # codes of items that were never asked
REQUEST_TIMEOUTS, TRANSFER_TIMEOUTS = Timeouts(total=120.0), Timeouts(total=3600.0)
MAX_RESULT_BYTES = 4 * 2**30
"""The most bytes of answers that are read of one file."""
MAX_LIST_PAGES = 50
"""The most pages of batches, of a hundred each, that one is looked for in."""


@dataclass(frozen=True, slots=True)
class ProviderBatch:
    """A batch as its endpoint describes it. `files` hold what was answered; `why` says what was wrong with all of it.

    `wait`: how many seconds the endpoint wants to be left alone.
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
    """What came for one request: an HTTP status with its body, or without one what was wrong (None: nobody knows)."""

    status: int | None = None
    body: bytes = b""
    error: Mapping[str, Any] | None = None


class BatchClient:
    """The batch API beside a chat model. Every method raises ModelError, with the model and the host in its words."""

    def __init__(self, chat: Chat) -> None:
        self.chat = chat

    def request_line(self, key: str, request: Request) -> bytes:
        """A request as a line of the file. Raises ConfigError for what is no JSON."""
        body = self.chat.request_body(request)
        line = {"custom_id": key, "method": "POST", "url": ENDPOINT, "body": body}
        try:
            return orjson.dumps(line) + b"\n"
        except TypeError:
            pass
        try:
            return orjson.dumps(replace_lone_surrogates(line)) + b"\n"
        except TypeError as error:
            raise ConfigError(f"the request cannot be written as JSON: {error}") from None

    def parse_reply(self, answer: BatchItemResult) -> Reply:
        """The reply in an answer, exactly as if it had been asked live."""
        chat = self.chat
        try:
            if answer.status is None:
                raise missing_answer_error(answer.error)
            return chat.parse_response(answer.status, {}, answer.body)
        except ModelError as error:
            raise self._with_context(error) from None

    async def upload(self, lines: Iterable[bytes]) -> str:
        """The id of a file with these lines."""
        form = uuid4().hex
        kind = {"Content-Type": f"multipart/form-data; boundary={form}"}
        data = await self._request_json("POST", "/files", BytesIO(_multipart_body(form, lines)), kind, timeouts=TRANSFER_TIMEOUTS)
        if not isinstance(id := data.get("id"), str):
            raise self._with_context(
                BadResponseError("took the file of a batch and gave it no id", retryable=True, usage=REFUSED_USAGE)
            )
        return id

    async def create(self, file_id: str, metadata: Mapping[str, str]) -> ProviderBatch:
        """A batch of the requests in a file."""
        asked = {"input_file_id": file_id, "endpoint": ENDPOINT, "completion_window": COMPLETION_WINDOW, "metadata": dict(metadata)}
        return self._parse_batch(await self._request_json("POST", "/batches", orjson.dumps(asked)))

    async def retrieve(self, id: str) -> ProviderBatch:
        """How a batch stands."""
        return self._parse_batch(await self._request_json("GET", f"/batches/{quote(id, safe='')}"))

    async def cancel(self, id: str) -> ProviderBatch:
        """Ask for no more of it."""
        return self._parse_batch(await self._request_json("POST", f"/batches/{quote(id, safe='')}/cancel"))

    async def find_by_metadata(self, metadata: Mapping[str, str]) -> ProviderBatch | None:
        """The newest batch that was created with this metadata, if there is one and the endpoint lists them."""
        async with aclosing(self._iter_batches()) as batches:
            async for each in batches:
                if metadata.items() <= (each.get("metadata") or {}).items():
                    return self._parse_batch(each)
        return None

    async def _iter_batches(self) -> AsyncGenerator[dict[str, Any], None]:
        after: dict[str, str] = {}
        for _ in range(MAX_LIST_PAGES):
            try:
                page = await self._request_json("GET", f"/batches?{urlencode({'limit': '100', **after})}")
            except ModelError as error:
                if error.status not in {404, 405}:
                    raise
                return
            listed = [each for each in page.get("data") or () if isinstance(each, dict)]
            for each in listed:
                yield each
            if not page.get("has_more") or not listed:
                return
            after = {"after": str(listed[-1].get("id"))}

    async def download_results(self, file_id: str) -> AsyncGenerator[tuple[str, BatchItemResult], None]:
        """The answers in a file, by custom id. Lines that are none are left out: their requests were not answered."""
        route = self._target(f"/files/{quote(file_id, safe='')}/content", TRANSFER_TIMEOUTS)
        try:
            async with open_exchange(route, stream=True) as (under_way, response):
                under_way.cap = MAX_RESULT_BYTES
                async with aclosing(under_way.iter_body(response)) as parts:
                    if response.status != 200:
                        body = route.mask.mask_bytes(b"".join([part async for part in parts]))
                        raise self._error_from_response(response.status, response.headers, body)
                    async for line in _split_lines(parts):
                        if found := parse_result_line(route.mask.mask_bytes(line)):
                            yield found
        except ModelError as error:
            raise self._with_context(error) from None

    async def _request_json(
        self,
        method: str,
        path: str,
        body: bytes | BytesIO | None = None,
        extra_headers: Mapping[str, str] | None = None,
        **limits: Any,
    ) -> dict[str, Any]:
        """The object that a call gives, with what its headers say of waiting as "retry_after"."""
        route = self._target(path, **limits)
        try:
            status, headers, came = await fetch(replace(route, headers={**route.headers, **(extra_headers or {})}), method, body)
            return self._json_object((status, headers, came))
        except ModelError as error:
            raise self._with_context(error) from None

    def _json_object(self, response: HttpResponse) -> dict[str, Any]:
        status, headers, body = response
        if not 200 <= status < 300:
            raise self._error_from_response(status, headers, body)
        data = parse_body(body, headers.get("Content-Type", ""))
        if not isinstance(data, dict):
            raise BadResponseError("sent something that does not describe a batch", retryable=True, usage=REFUSED_USAGE)
        return {**data, "retry_after": parse_retry_after(headers)}

    def _error_from_response(self, status: int, headers: Mapping[str, str], body: bytes) -> ModelError:
        error = self.chat.error_from_response(status, headers, body)
        if status in {404, 405}:
            error.args = (f"{error} (has this endpoint a batch API, /files and /batches?)",)
        return error

    def _target(self, path: str, timeouts: Timeouts = REQUEST_TIMEOUTS) -> RequestTarget:
        below, _, query = path.partition("?")
        return replace(self.chat.target_for(below, query), timeouts=timeouts)

    def _parse_batch(self, data: Mapping[str, Any]) -> ProviderBatch:
        id, status = data.get("id"), data.get("status")
        if not isinstance(id, str) or not isinstance(status, str):
            raise self._with_context(
                BadResponseError("sent a batch without an id or a status", retryable=True, usage=REFUSED_USAGE)
            )
        files = (data.get("output_file_id"), data.get("error_file_id"))
        counts = data.get("request_counts")
        done = [_count(counts, name) for name in ("completed", "failed")] if isinstance(counts, dict) else []
        return ProviderBatch(
            id, status, sum(done), tuple(f for f in files if isinstance(f, str)), _first_error(data), data.get("retry_after")
        )

    def _with_context(self, error: ModelError) -> ModelError:
        """The error with the model and host in front, once."""
        return error if str(error).startswith(f"{self.chat.name} at ") else self.chat.with_context(error)


def missing_answer_error(details: Mapping[str, Any] | None) -> ModelError:
    """The error for a request that the batch gave no response for, by what it said instead: worth another try, mostly."""
    said = ErrorBody({"error": dict(details or {})})
    error = error_from_status(said.status or 503, said)
    error.args = (f"the batch holds no answer: {said.text or ', '.join(sorted(said.codes)) or 'it does not say why'}",)
    error.status = said.status
    return error


def parse_result_line(line: bytes) -> tuple[str, BatchItemResult] | None:
    """The custom id and the answer in a line of a batch's output; None for what is none."""
    try:
        data = loads(line)
    except ValueError:
        return None
    if not isinstance(data, dict) or not isinstance(key := data.get("custom_id"), str):
        return None
    response, why = data.get("response"), data.get("error")
    if isinstance(response, dict) and isinstance(status := response.get("status_code"), int):
        body = response.get("body")
        said = body if isinstance(body, str) else json.dumps(body, separators=(",", ":"))
        return key, BatchItemResult(status, said.encode("utf-8", "replace"))
    if isinstance(why, dict) and why and why.get("code") not in NOT_PROCESSED_CODES:
        return key, BatchItemResult(error=why)
    return None


async def _split_lines(parts: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    lines = LineSplitter()
    async for part in parts:
        for line in lines.feed(part):
            yield line
        if lines.pending_bytes > MAX_BODY_BYTES:
            raise BadResponseError(f"sent a line of more than {MAX_BODY_BYTES // 2**20} MiB", usage=REFUSED_USAGE)
    yield lines.remainder()


def _multipart_body(boundary: str, lines: Iterable[bytes]) -> bytes:
    """The body that uploads a file for batches (RFC 7578)."""
    head = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--{boundary}\r\n'
        'Content-Disposition: form-data; name="file"; filename="redraft.jsonl"\r\nContent-Type: application/jsonl\r\n\r\n'
    )
    return b"".join([head.encode(), *lines, f"\r\n--{boundary}--\r\n".encode()])


def _first_error(data: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The first of the errors for which a batch was not begun."""
    errors = data.get("errors")
    listed = errors.get("data") if isinstance(errors, dict) else errors
    first = listed[0] if isinstance(listed, list) and listed else None
    return first if isinstance(first, dict) else {"message": str(first)} if first else None


def _count(counts: Mapping[str, Any], name: str) -> int:
    value = counts.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0
