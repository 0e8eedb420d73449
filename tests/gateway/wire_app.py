"""A gateway's routes with a fixed answer instead of a refinement: what a client reads of the wires
alone.
"""

import json

import httpx2
from redraft.gateway.chat_wire import ChatWire
from redraft.gateway.responses_wire import ResponsesWire
from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from redraft.gateway.exchange import Answer, GatewayError, Progress
from redraft.loop.records import ToolCall
from redraft.usage import Usage, unknown_usage

TRACE_ID = "t1"
CREATED = 1_700_000_000
REFINEMENT = {
    "trace_id": TRACE_ID,
    "calls": 3,
    "input_tokens": 40,
    "output_tokens": None,
    "cost": None,
    "score": 0.8,
    "iterations": 1,
    "stop": "target",
    "reason": "good",
    "broken": ["words:9-"],
}
TEXT = '{"n": 5}' + " " * 600
CALLS = (ToolCall("add", '{"a": 1}'), ToolCall("find", '{"q": "x"}', "own"))


def answer(text=TEXT, calls=(), finish_reason=None, usage=Usage(1, 20, 3)):
    """Return an answer of a refinement with three calls."""
    reason = finish_reason or ("tool_calls" if calls else "stop")
    total = Usage(3, 40, None, cost=None)
    return Answer(
        "tiny", TRACE_ID, text, calls, reason, usage, total, 0.8, 1, "target", "good", ("words:9-",)
    )


UNKNOWN = unknown_usage()


def client_of(wire, failure=None, **changes):
    """Return an HTTP client of a server that answers with one wire: with tool calls if the request
    has tools.

    `failure`: the error that ends streams; `changes`: of the answer.
    """

    def events(request):
        stream = wire.stream(request, TRACE_ID, CREATED)
        yield stream.begin()
        yield stream.keep_alive()
        yield stream.progress(Progress("grade", 1, 0.5, "a reason\n\ndata: in two lines"))
        if failure:
            yield stream.fail(failure)
        else:
            yield from stream.finish(_answer_to(request, changes))

    async def post(request):
        try:
            asked = wire.parse(json.loads(await request.body()))
        except GatewayError as error:
            return JSONResponse(wire.error_body(error), wire.error_status(error))
        if asked.is_stream:
            return StreamingResponse(events(asked), media_type="text/event-stream")
        return JSONResponse(wire.answer_body(asked, _answer_to(asked, changes), CREATED))

    path = {"chat": "/v1/chat/completions", "responses": "/v1/responses"}[wire.name]
    app = Starlette(routes=[Route(path, post, methods=["POST"])])
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app))


def _answer_to(request, changes):
    return answer("", CALLS) if request.tools else answer(**changes)


CHAT, RESPONSES = ChatWire(), ResponsesWire()
