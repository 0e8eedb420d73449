"""A chat endpoint in a thread that answers as the test says, as one reply or as a stream, and
notices clients that leave.
"""

import asyncio
import json
import threading

from aiohttp import web

NEVER = object()  # an answer that does not come
USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


class ScriptedUpstream:
    """`answer(body)` gives the reply to a request: text, the fields of a message, (status, message,
    headers), or NEVER.

    `bodies`: the requests so far. `arrived` is set by each of them, `left` when a client leaves
    before its reply has ended.
    """

    def __init__(self, answer):
        self.answer = answer
        self.bodies = []
        self.arrived, self.left = threading.Event(), threading.Event()
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        assert self._started.wait(60)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}/v1"

    def reset(self, answer):
        self.answer = answer
        self.bodies.clear()
        self.arrived.clear()
        self.left.clear()

    def close(self):
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(10)

    async def _serve(self):
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application(client_max_size=2**25)
        self.add_routes(app.router)
        runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]
        self._started.set()
        await self._end.wait()
        await runner.cleanup()

    def add_routes(self, router):
        router.add_post("/v1/chat/completions", self._chat)

    async def _chat(self, request):
        body = await request.json()
        self.bodies.append(body)
        self.arrived.set()
        try:
            return await self._reply(request, body, self.answer(body))
        except (asyncio.CancelledError, ConnectionError):
            self.left.set()
            raise

    async def _reply(self, request, body, said):
        if said is NEVER and not body.get("stream"):
            await self._end.wait()
        if isinstance(said, tuple):
            return web.json_response(
                {"error": {"message": said[1]}}, status=said[0], headers=dict(*said[2:])
            )
        if body.get("stream"):
            return await self._stream(request, body, said)
        message = said if isinstance(said, dict) else {"content": said}
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": None, **message},
            "finish_reason": finish_of(said),
        }
        return web.json_response(
            {
                "id": "x",
                "object": "chat.completion",
                "created": 1,
                "model": body["model"],
                "choices": [choice],
                "usage": USAGE,
            }
        )

    async def _stream(self, request, body, said):
        reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await reply.prepare(request)
        shared = {
            "id": "x",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": body["model"],
        }
        for choices in deltas(said):
            await reply.write(
                b"data: " + json.dumps({**shared, "choices": choices}).encode() + b"\n\n"
            )
            if said is NEVER:
                await self._end.wait()
        if (body.get("stream_options") or {}).get("include_usage"):
            await reply.write(
                b"data: " + json.dumps({**shared, "choices": [], "usage": USAGE}).encode() + b"\n\n"
            )
        await reply.write(b"data: [DONE]\n\n")
        return reply


def finish_of(said):
    return "tool_calls" if isinstance(said, dict) and said.get("tool_calls") else "stop"


def deltas(said):
    """The choices of each chunk of a stream."""
    message = said if isinstance(said, dict) else {"content": "" if said is NEVER else said}
    text, calls = message.get("content") or "", message.get("tool_calls") or []
    pieces = [
        {"role": "assistant", "content": ""},
        *({"content": word + " "} for word in text.split(" ")[:-1]),
    ]
    pieces += [{"content": text.split(" ")[-1]}] if text else []
    pieces += [{"tool_calls": [{"index": n, **call}]} for n, call in enumerate(calls)]
    yield from ([{"index": 0, "delta": delta, "finish_reason": None}] for delta in pieces)
    yield [{"index": 0, "delta": {}, "finish_reason": finish_of(said)}]


def tool_call(name, call_id="call_1", **arguments):
    """Return the message of a model that calls a tool."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {
        "content": None,
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }
