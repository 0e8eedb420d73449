"""A server that answers with a fixed reply in the protocol of its client: what clients read of what
a protocol writes.
"""

import json
from dataclasses import fields
from types import SimpleNamespace

import httpx2
from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from redraft.gateway.exchange import GatewayError, Progress
from redraft.gateway.neutral import Begin, events_of
from redraft.gateway.protocols.registry import CLIENTS, MODELS

CREATED = 1_700_000_000
OUTCOME = {"trace_id": "t1", "calls": 3, "score": 0.8, "cost": None, "broken": ["words:9-"]}


def both_sides(name):
    """Return what a protocol offers on the side of clients and on the side of models."""
    sides = [protocols[name] for protocols in (CLIENTS, MODELS) if name in protocols]
    return SimpleNamespace(
        **{field.name: getattr(side, field.name) for side in sides for field in fields(side)}
    )


def stream_of(protocol, request, reply, outcome=None):
    """Return the whole stream of a reply."""
    writer = protocol.stream_writer(request, CREATED)
    events = (Begin(reply.id, reply.model), *events_of(reply, outcome))
    return b"".join(map(writer.write, events))


def client_of(protocol, path, reply, failure=None):
    """Return an HTTP client of a server that answers every request with a reply, or with what a
    function of the request returns. `failure`: the error that ends streams.
    """

    def events(request, reply):
        writer = protocol.stream_writer(request, CREATED)
        yield writer.write(Begin(reply.id, reply.model))
        yield writer.keep_alive()
        yield writer.progress(Progress("grade", 1, 0.5, "a reason\n\ndata: in two lines"))
        if failure:
            yield writer.fail(failure)
        else:
            yield from map(writer.write, events_of(reply, OUTCOME))

    async def post(http_request):
        try:
            request = protocol.read_request(json.loads(await http_request.body()))
        except GatewayError as error:
            return JSONResponse(protocol.error_body(error), protocol.error_status(error))
        answer = reply(request) if callable(reply) else reply
        if request.is_stream:
            return StreamingResponse(events(request, answer), media_type="text/event-stream")
        return JSONResponse(protocol.write_reply(request, answer, CREATED, OUTCOME))

    app = Starlette(routes=[Route(path, post, methods=["POST"])])
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app))
