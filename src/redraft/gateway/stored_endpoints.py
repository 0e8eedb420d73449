"""The endpoints of what a provider stores: files, batches and responses.

A provider lists what it has stored for all who use its key, and here one key of a provider serves
all clients. So these paths exist only for a client whose own model it is: [models.NAME] names the
client's key as its `owner`. What a batch costs is not seen here, so that key has no budget.

Requests and replies pass as they are. The models that the lines of a batch name are those of the
provider.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import cached_property

from starlette.datastructures import Headers

from ..base.jsontext import dumps, loads
from ..usage import NO_USAGE, unknown_usage
from .client_exchange import AdmittedRequest, ClientExchange
from .config import ModelKind, ServedModel
from .exchange import GatewayError, invalid_request
from .keys import Caller
from .passing import ForwardedReply
from .plain_passing import RawRequest, forward_raw
from .protocols.streams import bad_reply
from .request_store import RequestEnd
from .routing import PASS, Routing

MODEL_HEADER = "x-redraft-model"
MAX_QUERY_CHARS = 2000
MAX_JSON_BYTES = 4 * 2**20  # of a list of batches of messages
JSON_TYPE = "application/json"
ID_PATTERN = r"[A-Za-z0-9_-]{1,200}"
_RESULTS_PATH = re.compile(rf"/v1/messages/batches/{ID_PATTERN}/results")


@dataclass(frozen=True, slots=True)
class StoredPath:
    """A path of an endpoint, and its methods. `name`: what logs and metrics call it; `kind`: that
    of its models; None: by the headers of the client.
    """

    pattern: re.Pattern[str]
    methods: tuple[str, ...]
    name: str
    kind: ModelKind | None


def _path(path: str, methods: str, name: str, kind: ModelKind | None) -> StoredPath:
    return StoredPath(
        re.compile("/v1" + path.replace("{id}", ID_PATTERN)), tuple(methods.split()), name, kind
    )


STORED_PATHS = (
    _path("/files", "GET POST", "files", None),
    _path("/files/{id}", "GET DELETE", "files", None),
    _path("/files/{id}/content", "GET", "files", None),
    _path("/batches", "GET POST", "batches", "openai"),
    _path("/batches/{id}", "GET", "batches", "openai"),
    _path("/batches/{id}/cancel", "POST", "batches", "openai"),
    _path("/responses/{id}", "GET DELETE", "responses", "openai"),
    _path("/responses/{id}/input_items", "GET", "responses", "openai"),
    _path("/responses/{id}/cancel", "POST", "responses", "openai"),
    _path("/messages/batches", "GET POST", "batches", "anthropic"),
    _path("/messages/batches/{id}", "GET DELETE", "batches", "anthropic"),
    _path("/messages/batches/{id}/cancel", "POST", "batches", "anthropic"),
    _path("/messages/batches/{id}/results", "GET", "batches", "anthropic"),
)


def find_stored_path(path: str) -> StoredPath | None:
    """Return the endpoint at a path; None if there is none."""
    return next((each for each in STORED_PATHS if each.pattern.fullmatch(path)), None)


def kind_of_client(stored: StoredPath, headers: Mapping[str, str]) -> ModelKind:
    """Return the kind of the models that a request is for: both SDKs have /v1/files."""
    return stored.kind or ("anthropic" if "anthropic-version" in headers else "openai")


class StoredExchange(ClientExchange):
    """One request of a client to what its own model's provider stores, and the reply."""

    @cached_property
    def stored_path(self) -> StoredPath:
        """The endpoint that is asked."""
        stored = find_stored_path(self.scope["path"])
        assert stored
        return stored

    @property
    def label(self) -> str:
        return self.stored_path.name

    async def answer_raw(self) -> None:
        """Answer the request. Raises GatewayError as long as nothing is sent."""
        caller, gateway = self.caller, self.gateway
        assert caller
        headers = Headers(scope=self.scope)
        kind = kind_of_client(self.stored_path, headers)
        path, query = self.scope["path"], self.scope["query_string"].decode("latin-1")
        if len(query) > MAX_QUERY_CHARS:
            raise invalid_request("query", f"the query has more than {MAX_QUERY_CHARS} characters")
        model = find_own_model(self.routing, caller, kind, path, headers.get(MODEL_HEADER))
        self.model = PASS + model.name
        request = RawRequest(
            self.scope["method"],
            path.removeprefix("/v1"),
            query,
            self.raw or None,
            headers.get("content-type", "application/json"),
        )
        starts_batch = self.stored_path.name == "batches" and request.method == "POST"
        usage = unknown_usage() if starts_batch and not path.endswith("/cancel") else NO_USAGE
        async with gateway.admission.slot(caller.id):
            reservation = gateway.keys.reserve(caller, cost=None, calls=1)
            self.begin(self.model, self.routing.retention(model), is_stored=False)
            self.admitted = AdmittedRequest(self.trace_id)
            with self._settlement(reservation, lambda: usage) as work:
                upstream = self.routing.passing.upstream(model)
                try:
                    reply = await forward_raw(upstream, request, self.headers)
                except GatewayError:
                    usage = NO_USAGE
                    raise
                async with aclosing(reply):
                    await self._send_reply(reply)
                work.end = RequestEnd(200)

    async def _send_reply(self, reply: ForwardedReply) -> None:
        headers = [
            (name.encode(), value.encode("latin-1")) for name, value in reply.headers.items()
        ]
        if self.protocol.name == "messages" and reply.headers["content-type"].startswith(JSON_TYPE):
            await self._send_whole(200, headers, await _with_own_urls(reply))
            return
        await self._start(200, headers)
        async for part in reply:
            await self._send_part(part)
        await self._finish()

    async def fail(self, error: GatewayError) -> None:
        """Send an error. A file that breaks off stays without an end, which its reader notices."""
        if not self._is_started:
            await super().fail(error)


def find_own_model(
    routing: Routing, caller: Caller, kind: ModelKind, path: str, named: str | None
) -> ServedModel:
    """Return the model of a request: the one that it names, else the only one that belongs to its
    client. Raises GatewayError 400, 403 or 404.
    """
    own = [
        model
        for model in routing.config.models.values()
        if model.owner == caller.name and model.kind == kind and caller.may_use(PASS + model.name)
    ]
    if named is not None:
        own = [model for model in own if PASS + model.name == named]
    if not own:
        raise _no_own_model_error(caller, kind, path, named)
    if len(own) > 1:
        names = ", ".join(PASS + model.name for model in own)
        raise invalid_request(
            MODEL_HEADER,
            f"several models belong to the key {caller.name!r}: send the header "
            f"{MODEL_HEADER} with one of {names}",
        )
    if caller.limits.has_budget:
        message = (
            f"{path[:100]} is not for keys with a budget, because the gateway sees no cost of what "
            f"a provider stores and runs later: the key {caller.name!r} has one"
        )
        raise GatewayError(403, "key_has_budget", message, should_retry=False)
    return own[0]


def _no_own_model_error(
    caller: Caller, kind: ModelKind, path: str, named: str | None
) -> GatewayError:
    which = repr(named[:100]) if named else f"a model of kind {kind!r}"
    reason = "a provider lists the data of all who use its key"
    setting = f"owner = {caller.name!r} in the table [models.NAME] of {which}"
    message = (
        f"{path[:100]} is there only for a client with a model of its own, since {reason}, and the "
        f"key {caller.name!r} has none: the operator may set {setting}"
    )
    return GatewayError(403 if named else 404, "no_own_model", message, should_retry=False)


async def _with_own_urls(reply: ForwardedReply) -> bytes:
    """Return JSON of Anthropic with the addresses of results on this gateway, as paths: the SDK
    asks for them with the client's key.

    Raises GatewayError 502 for what is no such JSON.
    """
    content = bytearray()
    async for part in reply:
        content += part
        if len(content) > MAX_JSON_BYTES:
            raise bad_reply("sent a list that is too long")
    try:
        data = loads(bytes(content))
    except ValueError:
        raise bad_reply("sent something else than JSON") from None
    listed = data.get("data") if isinstance(data, dict) else None
    for each in (data, *(listed if isinstance(listed, list) else ())):
        if isinstance(each, dict) and isinstance(url := each.get("results_url"), str):
            path = _RESULTS_PATH.search(url)
            each["results_url"] = path[0] if path else None
    return dumps(data)
