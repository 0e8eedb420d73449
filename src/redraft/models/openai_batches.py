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
from ..jsontext import loads
from ..protocols import Reply, Request
from .http_client import CAP, REFUSED, Route, Timeouts, Whole, exchange, fetch
from .openai_chat import Chat, mended
from .openai_responses import Lines, Said, parsed, refused, retry_after

ENDPOINT = "/v1/chat/completions"
WINDOW = "24h"
ENDED = frozenset({"completed", "failed", "expired", "cancelled"})
UNANSWERED = frozenset({"batch_expired", "batch_cancelled"})  # codes of items that were never asked
SHORT, LONG = Timeouts(total=120.0), Timeouts(total=3600.0)
MOST = 4 * 2**30
"""The most bytes of answers that are read of one file."""
PAGES = 50
"""The most pages of batches, of a hundred each, that one is looked for in."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch as its endpoint describes it. `files` hold what was answered; `why` says what was wrong with all of it.

    `wait`: how many seconds the endpoint wants to be left alone.
    """

    id: str
    status: str
    answered: int = 0
    files: tuple[str, ...] = ()
    why: Mapping[str, Any] | None = None
    wait: float | None = None

    @property
    def ended(self) -> bool:
        return self.status in ENDED


@dataclass(frozen=True, slots=True)
class Answer:
    """What came for one request: an HTTP status with its body, or without one what was wrong (None: nobody knows)."""

    status: int | None = None
    body: bytes = b""
    why: Mapping[str, Any] | None = None


class Batches:
    """The batch API beside a chat model. Every method raises ModelError, with the model and the host in its words."""

    def __init__(self, chat: Chat) -> None:
        self.chat = chat

    def line(self, key: str, request: Request) -> bytes:
        """A request as a line of the file. Raises ConfigError for what is no JSON."""
        body = self.chat.body(request)
        line = {"custom_id": key, "method": "POST", "url": ENDPOINT, "body": body}
        try:
            return orjson.dumps(line) + b"\n"
        except TypeError:
            pass
        try:
            return orjson.dumps(mended(line)) + b"\n"
        except TypeError as error:
            raise ConfigError(f"the request cannot be written as JSON: {error}") from None

    def read(self, answer: Answer) -> Reply:
        """The reply in an answer, exactly as if it had been asked live."""
        chat = self.chat
        try:
            if answer.status is None:
                raise unanswered(answer.why)
            return chat.read(answer.status, {}, answer.body)
        except ModelError as error:
            raise self._told(error) from None

    async def upload(self, lines: Iterable[bytes]) -> str:
        """The id of a file with these lines."""
        form = uuid4().hex
        kind = {"Content-Type": f"multipart/form-data; boundary={form}"}
        data = await self._json("POST", "/files", BytesIO(_form(form, lines)), kind, timeouts=LONG)
        if not isinstance(id := data.get("id"), str):
            raise self._told(BadResponseError("took the file of a batch and gave it no id", retryable=True, usage=REFUSED))
        return id

    async def create(self, file: str, metadata: Mapping[str, str]) -> Batch:
        """A batch of the requests in a file."""
        asked = {"input_file_id": file, "endpoint": ENDPOINT, "completion_window": WINDOW, "metadata": dict(metadata)}
        return self._batch(await self._json("POST", "/batches", orjson.dumps(asked)))

    async def look(self, id: str) -> Batch:
        """How a batch stands."""
        return self._batch(await self._json("GET", f"/batches/{quote(id, safe='')}"))

    async def cancel(self, id: str) -> Batch:
        """Ask for no more of it."""
        return self._batch(await self._json("POST", f"/batches/{quote(id, safe='')}/cancel"))

    async def find(self, metadata: Mapping[str, str]) -> Batch | None:
        """The newest batch that was created with this metadata, if there is one and the endpoint lists them."""
        async with aclosing(self._listed()) as batches:
            async for each in batches:
                if metadata.items() <= (each.get("metadata") or {}).items():
                    return self._batch(each)
        return None

    async def _listed(self) -> AsyncGenerator[dict[str, Any], None]:
        after: dict[str, str] = {}
        for _ in range(PAGES):
            try:
                page = await self._json("GET", f"/batches?{urlencode({'limit': '100', **after})}")
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

    async def answers(self, file: str) -> AsyncGenerator[tuple[str, Answer], None]:
        """The answers in a file, by custom id. Lines that are none are left out: their requests were not answered."""
        route = self._route(f"/files/{quote(file, safe='')}/content", LONG)
        try:
            async with exchange(route, stream=True) as (under_way, response):
                under_way.cap = MOST
                async with aclosing(under_way.parts(response)) as parts:
                    if response.status != 200:
                        body = route.mask.raw(b"".join([part async for part in parts]))
                        raise self._refused(response.status, response.headers, body)
                    async for line in _lines(parts):
                        if found := read_line(route.mask.raw(line)):
                            yield found
        except ModelError as error:
            raise self._told(error) from None

    async def _json(
        self, method: str, path: str, body: bytes | BytesIO | None = None, kind: Mapping[str, str] | None = None, **limits: Any
    ) -> dict[str, Any]:
        """The object that a call gives, with what its headers say of waiting as "retry_after"."""
        route = self._route(path, **limits)
        try:
            status, headers, came = await fetch(replace(route, headers={**route.headers, **(kind or {})}), method, body)
            return self._object((status, headers, came))
        except ModelError as error:
            raise self._told(error) from None

    def _object(self, came: Whole) -> dict[str, Any]:
        status, headers, body = came
        if not 200 <= status < 300:
            raise self._refused(status, headers, body)
        data = parsed(body, headers.get("Content-Type", ""))
        if not isinstance(data, dict):
            raise BadResponseError("sent something that describes no batch", retryable=True, usage=REFUSED)
        return {**data, "retry_after": retry_after(headers)}

    def _refused(self, status: int, headers: Mapping[str, str], body: bytes) -> ModelError:
        error = self.chat.refusal(status, headers, body)
        if status in {404, 405}:
            error.args = (f"{error} (has this endpoint a batch API, /files and /batches?)",)
        return error

    def _route(self, path: str, timeouts: Timeouts = SHORT) -> Route:
        below, _, query = path.partition("?")
        return replace(self.chat.route_to(below, query), timeouts=timeouts)

    def _batch(self, data: Mapping[str, Any]) -> Batch:
        id, status = data.get("id"), data.get("status")
        if not isinstance(id, str) or not isinstance(status, str):
            raise self._told(BadResponseError("sent a batch without an id or a status", retryable=True, usage=REFUSED))
        files = (data.get("output_file_id"), data.get("error_file_id"))
        counts = data.get("request_counts")
        done = [_count(counts, name) for name in ("completed", "failed")] if isinstance(counts, dict) else []
        return Batch(id, status, sum(done), tuple(f for f in files if isinstance(f, str)), _why(data), data.get("retry_after"))

    def _told(self, error: ModelError) -> ModelError:
        """The error with the model and host in front, once."""
        return error if str(error).startswith(f"{self.chat.name} at ") else self.chat.told(error)


def unanswered(why: Mapping[str, Any] | None) -> ModelError:
    """The error for a request that the batch gave no response for, by what it said instead: worth another try, mostly."""
    said = Said({"error": dict(why or {})})
    error = refused(said.status or 503, said)
    error.args = (f"the batch holds no answer: {said.text or ', '.join(sorted(said.codes)) or 'it does not say why'}",)
    error.status = said.status
    return error


def read_line(line: bytes) -> tuple[str, Answer] | None:
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
        return key, Answer(status, said.encode("utf-8", "replace"))
    if isinstance(why, dict) and why and why.get("code") not in UNANSWERED:
        return key, Answer(why=why)
    return None


async def _lines(parts: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    lines = Lines()
    async for part in parts:
        for line in lines.feed(part):
            yield line
        if lines.waiting > CAP:
            raise BadResponseError(f"sent a line of more than {CAP // 2**20} MiB", usage=REFUSED)
    yield lines.rest()


def _form(boundary: str, lines: Iterable[bytes]) -> bytes:
    """The body that uploads a file for batches (RFC 7578)."""
    head = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--{boundary}\r\n'
        'Content-Disposition: form-data; name="file"; filename="redraft.jsonl"\r\nContent-Type: application/jsonl\r\n\r\n'
    )
    return b"".join([head.encode(), *lines, f"\r\n--{boundary}--\r\n".encode()])


def _why(data: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The first of the errors for which a batch was not begun."""
    errors = data.get("errors")
    listed = errors.get("data") if isinstance(errors, dict) else errors
    first = listed[0] if isinstance(listed, list) and listed else None
    return first if isinstance(first, dict) else {"message": str(first)} if first else None


def _count(counts: Mapping[str, Any], name: str) -> int:
    value = counts.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0
