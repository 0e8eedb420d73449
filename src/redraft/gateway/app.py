"""The gateway as an ASGI application: its routes, and what all requests share.

| route | |
|---|---|
| POST /v1/chat/completions, /v1/responses, /v1/messages | requests to models, each in its protocol (`client_exchange`) |
| POST /v1/messages/count_tokens | how many tokens a request has |
| POST /v1/embeddings, /v1/moderations, /v1/completions and others | what `pass/NAME` serves besides (`endpoints`) |
| /v1/files, /v1/batches, /v1/messages/batches, /v1/responses/ID and paths below | what a client's own model stores (`stored_endpoints`) |
| POST /beta/litellm_basic_guardrail_api | the texts of answers that a LiteLLM proxy asks about (`guardrail`) |
| POST /v1/rewards, /verify | rewards of responses, for a training run (`rewards`) |
| GET /v1/models, /v1/models/{id} | the models that the key may use, in the form of OpenAI and of Anthropic at once |
| GET /healthz, /readyz | whether the process lives; whether it takes requests. Neither calls a model |
| GET /metrics, /openapi.json | figures for Prometheus; the routes as an OpenAPI document |
"""  # noqa: E501

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime
from time import time
from typing import Any, Self

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from .. import __version__
from ..base.jsontext import dumps
from ..base.threads import run_in_thread
from ..telemetry.environment import ExportWatch
from ..telemetry.requests import RequestSpans
from .access_log import log_request
from .admission import Admission
from .answer_memory import AnswerMemory
from .bodies import BodyParser
from .client_exchange import ClientExchange
from .config import GatewayConfig, ServedModel
from .conversations import Conversations
from .endpoints import ENDPOINTS, EndpointExchange
from .exchange import (
    SHORTAGE_RETRY_AFTER,
    GatewayError,
    invalid_request,
)
from .guard import Guard, error_reply, protocol_of, with_headers
from .guardrail import GUARDRAIL_PATH, GuardrailExchange
from .idempotency import RunsInFlight
from .ignored_fields import IgnoredFields
from .keys import KeyStore
from .local_servers import LocalServers
from .metrics import CONTENT_TYPE, GatewayMetrics
from .neutral import ProtocolName
from .protocols.registry import CLIENTS
from .request_costs import refuse_routing
from .request_store import RequestStore, retentions
from .request_table import RequestFacts
from .rewards import REWARDS_PATH, VERIFY_PATH, RewardExchange
from .routing import Routing
from .stored_endpoints import StoredExchange, find_stored_path, kind_of_client

MODEL_PATHS: Mapping[str, ProtocolName] = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
}
EXCHANGES: Mapping[str, tuple[type[ClientExchange], ProtocolName]] = {
    **{path: (ClientExchange, protocol) for path, protocol in MODEL_PATHS.items()},
    **{path: (EndpointExchange, endpoint.protocol) for path, endpoint in ENDPOINTS.items()},
    GUARDRAIL_PATH: (GuardrailExchange, "chat"),
    REWARDS_PATH: (RewardExchange, "chat"),
    VERIFY_PATH: (RewardExchange, "chat"),
}
"""What answers POST requests to a path, and the protocol of their errors."""
COUNT_PATH = "/v1/messages/count_tokens"
UNRECORDED_PATHS = ("/healthz", "/readyz", "/metrics")
REFUSAL_SECONDS = 5.0  # for a body that is not used
NO_ROOM = GatewayError(
    503,
    "overloaded",
    "the gateway is busy: this process has no room for more connections",
    retry_after=SHORTAGE_RETRY_AFTER,
)
OWN_HEADERS = {"x-redraft": __version__}  # by which `find_model` recognises a gateway


class Gateway:
    """What all requests to one gateway share. An asynchronous context manager; `app` is the
    application.

    Raises ConfigError for a profile that cannot be served, StoreError if another process uses the
    folder.
    """

    def __init__(
        self,
        config: GatewayConfig,
        env: Mapping[str, str],
        telemetry: ExportWatch | None = None,
    ) -> None:
        self._env, self._local, self._telemetry = env, LocalServers(), telemetry
        self.routing = Routing(*self._local.start(config, env))
        self.is_draining = False
        self.runs: RunsInFlight[Any] = RunsInFlight()
        self.bodies = BodyParser()
        self.conversations = Conversations()
        self.ignored = IgnoredFields()
        self._exchanges: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Self:
        config = self.config
        async with AsyncExitStack() as opening:
            self.admission = Admission(config.limits)
            self.answers = AnswerMemory(config.limits.max_answers)
            self.metrics = GatewayMetrics(self.routing.names, lambda: self.admission.waiting)
            if self._telemetry:
                self._telemetry.on_dropped = self.metrics.telemetry_dropped
            self.keys = KeyStore(config.folder / "gateway.db", require_keys=config.require_keys)
            opening.callback(self.keys.close)
            self.store = RequestStore(
                config.folder, retentions(config), self.metrics.store_errors.inc
            )
            opening.callback(self.store.close)
            maintenance = asyncio.create_task(self.store.maintain())
            opening.callback(maintenance.cancel)
            await self.routing.__aenter__()
            opening.push_async_callback(lambda: self.routing.aclose())  # noqa: PLW0108  (the one in force by then)
            opening.push_async_callback(self.runs.cancel_all)
            self.guard = Guard(
                self._route,
                config,
                keys=self.keys,
                local_key_paths=("/metrics", "/openapi.json"),
            )
            self._pages = self._page_app()
            self._resources = opening.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._resources.aclose()
        await run_in_thread(self._local.close)

    @property
    def config(self) -> GatewayConfig:
        """The configuration that is in force."""
        return self.routing.config

    @property
    def app(self) -> ASGIApp:
        """The application, behind its checks of hosts, origins and bodies; each request to a model
        is a span of OpenTelemetry.
        """
        routes = (*EXCHANGES, COUNT_PATH, "/v1/models")
        return RequestSpans(self.guard, routes, UNRECORDED_PATHS)

    async def reload(self, config: GatewayConfig) -> None:
        """Use another configuration for the requests to come. Its host, port and folder stay as
        they were. Raises ConfigError.
        """
        config, env = await run_in_thread(self._local.start, config, self._env)
        routing = await Routing(config, env).__aenter__()
        before, self.routing = self.routing, routing
        self.admission.resize(config.limits)
        self.answers.limit = config.limits.max_answers
        self.guard.configure(config)
        self.store.retentions = retentions(config)
        self.metrics.use_models(routing.names)
        await before.aclose()

    def drain(self) -> None:
        """Take no further requests; those at work go on."""
        self.is_draining = True
        self.admission.drain()

    async def cut_off(self) -> None:
        """Cancel the requests at work; their clients are told so. Wait until they have ended."""
        for task in self._exchanges:
            task.cancel()
        if self._exchanges:
            await asyncio.wait(self._exchanges)

    async def refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request for whose connection this process has no room: whether the gateway
        lives, or that it is busy.
        """
        send_last = with_headers(send, {"connection": "close"})
        if scope["path"] in UNRECORDED_PATHS:
            await self.app(scope, receive, send_last)
            return
        with suppress(TimeoutError):
            # a body that is not read would break the connection before the reply
            async with asyncio.timeout(REFUSAL_SECONDS):
                while (await receive()).get("more_body"):
                    pass
        self.metrics.request_started()
        reply = error_reply(scope["path"], NO_ROOM)
        wire, status = protocol_of(scope["path"]), reply.status_code
        facts = RequestFacts("", time(), wire=wire, status=status, error=NO_ROOM.code, calls=0)
        self.finish(facts, scope["method"], scope["path"], {})
        await reply(scope, receive, send_last)

    def finish(
        self,
        facts: RequestFacts,
        method: str,
        path: str,
        content: Mapping[str, str],
        notice: str = "",
    ) -> None:
        """Count and log a request that ended."""
        self.metrics.request_finished(facts)
        log_request(facts, method, path, content, notice)

    # ---- routes

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        send = with_headers(send, OWN_HEADERS)
        methods, exchange = self._exchange(scope, receive, send)
        if exchange is None:
            await self._pages(scope, receive, send)
        elif scope["method"] in methods:
            task = asyncio.current_task()
            assert task
            self._exchanges.add(task)
            try:
                await exchange.serve()
            finally:
                self._exchanges.discard(task)
        else:
            wrong = HTTPException(405, headers={"Allow": ", ".join(methods)})
            reply = await _wrong_method(Request(scope), wrong)
            await reply(scope, receive, send)

    def _exchange(
        self, scope: Scope, receive: Receive, send: Send
    ) -> tuple[tuple[str, ...], ClientExchange | None]:
        """Return the methods of a path, and what answers a request to it; None: a page does."""
        path, asgi = scope["path"], (scope, receive, send)
        if found := EXCHANGES.get(path):
            exchange, name = found
            return ("POST",), exchange(self, CLIENTS[name], *asgi)
        if stored := find_stored_path(path):
            kind = kind_of_client(stored, Headers(scope=scope))
            protocol = CLIENTS["messages" if kind == "anthropic" else protocol_of(path)]
            return stored.methods, StoredExchange(self, protocol, *asgi)
        return (), None

    def _page_app(self) -> ASGIApp:
        routes = [
            Route("/v1/models", self._list_models),
            Route("/v1/models/{id:path}", self._show_model),
            Route(COUNT_PATH, self._count_tokens, methods=["POST"]),
            Route("/healthz", self._show_health),
            Route("/readyz", self._show_readiness),
            Route("/metrics", self._show_metrics),
            Route("/openapi.json", self._show_openapi),
        ]
        handlers: Any = {GatewayError: _refusal_reply, 404: _not_found, 405: _wrong_method}
        return Starlette(routes=routes, exception_handlers=handlers)

    async def _list_models(self, request: Request) -> Response:
        caller = self.keys.authenticate(request.headers)
        models = [
            model_data(name) for name in self.routing.names if self.routing.may_use(name, caller)
        ]
        ends = (
            {"first_id": models[0]["id"], "last_id": models[-1]["id"]}
            if models
            else {"first_id": None, "last_id": None}
        )
        return _json({"object": "list", "data": models, "has_more": False, **ends})

    async def _show_model(self, request: Request) -> Response:
        name = request.path_params["id"]
        self.routing.find(name, self.keys.authenticate(request.headers))
        return _json(model_data(name))

    async def _count_tokens(self, request: Request) -> Response:
        caller = self.keys.authenticate(request.headers)
        self.keys.count_request(caller)
        raw = await request.body()
        body, routing = await self.bodies.parse(raw), self.routing
        target = routing.find(body.get("model"), caller)
        refuse_routing(body)
        model = target if isinstance(target, ServedModel) else routing.model_of(target.profile)
        if model is None:
            raise invalid_request(
                "model",
                f"the tokens of {body['model']!r} cannot be counted: its model is not in [models]",
            )
        routing.acquire()
        try:
            async with self.admission.slot(caller.id):
                counts = await routing.passing.count_tokens(
                    model,
                    {name: value for name, value in body.items() if name != "redraft"},
                    headers=request.headers,
                    size=len(raw),
                )
        finally:
            await routing.release()
        return _json(counts)

    async def _show_health(self, request: Request) -> Response:
        return _json({"status": "ok"})

    async def _show_readiness(self, request: Request) -> Response:
        if self.is_draining:
            return _json({"status": "draining"}, 503)
        problems = {
            "store": "failing" if self.store.problem else None,
            "telemetry": dict(self._telemetry.failing) if self._telemetry else None,
        }
        return _json({"status": "ready", **{name: each for name, each in problems.items() if each}})

    async def _show_metrics(self, request: Request) -> Response:
        return Response(self.metrics.text(), media_type=CONTENT_TYPE)

    async def _show_openapi(self, request: Request) -> Response:
        from .openapi import openapi_document  # a long document that few ask for

        return _json(openapi_document(self.routing.names))


STARTED_AT = int(time())


def model_data(name: str) -> dict[str, Any]:
    """Return a model as the clients of OpenAI and those of Anthropic read it."""
    return {
        "id": name,
        "object": "model",
        "created": STARTED_AT,
        "owned_by": "redraft",
        "type": "model",
        "display_name": name,
        "created_at": datetime.fromtimestamp(STARTED_AT, UTC).isoformat().replace("+00:00", "Z"),
    }


def _json(data: Any, status: int = 200) -> Response:
    return Response(dumps(data), status, media_type="application/json")


async def _refusal_reply(request: Request, error: Exception) -> Response:
    assert isinstance(error, GatewayError)
    return error_reply(request.url.path, error)


async def _not_found(request: Request, error: Exception) -> Response:
    path = request.url.path
    message = f"there is nothing at {path[:200]!r}; {_path_hint(path)}"
    return error_reply(path, GatewayError(404, "not_found", message))


def _path_hint(path: str) -> str:
    """Return where to look instead: with a wrong base URL, the path ends as one of the routes
    does.
    """
    for known in (*MODEL_PATHS, "/v1/models"):
        if path.endswith(known.removeprefix("/v1")):
            return (
                f"{known} exists: a base URL ends with /v1 for clients of OpenAI, and without it "
                "for those of Anthropic"
            )
    return "/openapi.json describes the routes"


async def _wrong_method(request: Request, error: Exception) -> Response:
    path, headers = request.url.path, getattr(error, "headers", None) or {}
    message = f"{request.method[:20]} is not allowed for {path[:200]!r}"
    return error_reply(path, GatewayError(405, "method_not_allowed", message, headers=headers))
