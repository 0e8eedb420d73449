"""A gateway of pass-through alone, without keys and limits: the routes that clients of each
protocol call.
"""

import json
from contextlib import aclosing

import httpx2
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from redraft.gateway.config import ServedModel
from redraft.gateway.exchange import GatewayError
from redraft.gateway.ignored_fields import ignored_header
from redraft.gateway.passing import PassThrough
from redraft.gateway.protocols.registry import CLIENTS

CHAT, MESSAGES, RESPONSES = CLIENTS["chat"], CLIENTS["messages"], CLIENTS["responses"]


def served(url, kind="openai", **fields):
    return ServedModel("m", url, fields.pop("model", "tiny"), kind, **fields)


def pass_through(model, **env):
    return PassThrough({model.name: model}, env)


def app_of(model, **env):
    """Return the application that passes every request on to one model. `app.state.replies` are the
    replies so far.
    """
    passing = pass_through(model, **env)

    def route(path, wire):
        async def post(request):
            try:
                reply = await passing.forward(
                    model, wire.name, json.loads(await request.body()), headers=request.headers
                )
            except GatewayError as error:
                headers = {"x-should-retry": "false"} if error.should_retry is False else {}
                return JSONResponse(wire.error_body(error), wire.error_status(error), headers)
            app.state.replies.append(reply)
            headers = reply.headers | ignored_header(reply.ignored)
            if reply.is_stream:
                return StreamingResponse(stream(reply), headers=headers)
            return Response(b"".join([part async for part in reply]), headers=headers)

        return Route(path, post, methods=["POST"])

    async def stream(reply):
        async with aclosing(reply):
            async for part in reply:
                yield part

    async def count(request):
        return JSONResponse(await passing.count_tokens(model, json.loads(await request.body())))

    routes = [
        route("/v1/chat/completions", CHAT),
        route("/v1/messages", MESSAGES),
        route("/v1/responses", RESPONSES),
    ]
    app = Starlette(routes=[*routes, Route("/v1/messages/count_tokens", count, methods=["POST"])])
    app.state.replies, app.state.passing = [], passing
    return app


def http_client(app):
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app))
