"""A model in a thread that speaks chat completions, responses and Anthropic's messages, whole and
as streams, and says in each what one function makes of the conversation.

It refuses what the real servers refuse: fields that they don't have, calls without results, a
thought that lost its signature. What it refused is in `refused`.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

from aiohttp import web

import vendors

from . import replies
from .conversations import Refused, Said, read_chat, read_messages, read_responses
from .scripted_upstream import NEVER, ScriptedUpstream

VECTOR = [0.1, 0.2, 0.3]


@dataclass(frozen=True)
class Protocol:
    """How a request of one protocol is read, and what is said is written."""

    read: Callable
    reply: Callable
    events: Callable


CHAT = Protocol(
    read_chat,
    replies.chat_reply,
    lambda said, body: replies.chat_events(
        said,
        body["model"],
        with_usage=bool((body.get("stream_options") or {}).get("include_usage")),
    ),
)
RESPONSES = Protocol(
    read_responses,
    replies.response_reply,
    lambda said, body: replies.response_events(said, body["model"]),
)
MESSAGES = Protocol(
    read_messages,
    replies.message_reply,
    lambda said, body: replies.message_events(said, body["model"]),
)


UNTYPED = ("stream", "temperature", "top_k", "top_p")  # what older models of Anthropic take


@cache
def known_fields(protocol, *, is_beta):
    """Return the fields of a request, as the SDK of the vendor declares them."""
    types, anthropic = vendors.openai.types, vendors.anthropic.types
    if protocol is CHAT:
        params = types.chat.completion_create_params.CompletionCreateParamsBase
        return {*params.__annotations__, "stream"}
    if protocol is RESPONSES:
        params = types.responses.response_create_params.ResponseCreateParamsBase
        return {*params.__annotations__, "stream", "client_metadata"}
    if is_beta:
        params = anthropic.beta.message_create_params.MessageCreateParamsBase
        return {*params.__annotations__, *UNTYPED, "output_format"} - {"betas"}
    return {*anthropic.message_create_params.MessageCreateParamsBase.__annotations__, *UNTYPED}


@dataclass(frozen=True)
class Received:
    """A request as it arrived."""

    path: str
    headers: dict
    body: dict


class ScriptedModel(ScriptedUpstream):
    """`answer(conversation)` gives what the model says: a `Said`, a text, or NEVER; or it raises
    `Refused` (status 400) or an exception of aiohttp (its status).

    `received`: the requests so far; `refused`: why some of them were.
    """

    def __init__(self, answer):
        self.received, self.refused = [], []
        super().__init__(answer)

    @property
    def root(self):
        return f"http://127.0.0.1:{self.port}"

    def reset(self, answer):
        super().reset(answer)
        self.received.clear()
        self.refused.clear()

    def add_routes(self, router):
        router.add_post("/v1/chat/completions", partial(self._answer, protocol=CHAT))
        router.add_post("/v1/responses", partial(self._answer, protocol=RESPONSES))
        router.add_post("/v1/messages", partial(self._answer, protocol=MESSAGES))
        router.add_post("/v1/messages/count_tokens", self._count)
        router.add_post("/v1/completions", self._complete)
        router.add_post("/v1/embeddings", self._embed)
        router.add_post("/v1/moderations", self._moderate)
        router.add_get("/v1/models", self._models)

    async def _body(self, request):
        body = await request.json()
        self.received.append(Received(request.path, dict(request.headers), body))
        return body

    async def _answer(self, request, protocol):
        body = await self._body(request)
        self.arrived.set()
        try:
            said = self._said(request, body, protocol)
        except Refused as error:
            self.refused.append(str(error))
            return web.json_response(_error(protocol, str(error), error.details), status=400)
        except web.HTTPException as error:
            return web.json_response(_error(protocol, error.text), status=error.status)
        try:
            if said is NEVER:
                await self._end.wait()
            if body.get("stream"):
                return await self._send_events(request, protocol.events(said, body))
            return web.json_response(protocol.reply(said, body["model"]))
        except (asyncio.CancelledError, ConnectionError):
            self.left.set()
            raise

    def _said(self, request, body, protocol):
        known = known_fields(protocol, is_beta="anthropic-beta" in request.headers)
        if unknown := body.keys() - known:
            raise Refused(f"unknown fields: {sorted(unknown)}")
        talk = protocol.read(body)
        said = self.answer(talk)
        return Said(said) if isinstance(said, str) else said

    async def _send_events(self, request, events):
        reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await reply.prepare(request)
        is_chat = False
        for name, data in events:
            is_chat = name is None
            line = "" if is_chat else f"event: {name}\n"
            await reply.write(f"{line}data: {json.dumps(data)}\n\n".encode())
        if is_chat:
            await reply.write(b"data: [DONE]\n\n")
        return reply

    async def _count(self, request):
        body = await self._body(request)
        return web.json_response({"input_tokens": len(json.dumps(body)) // 4})

    async def _complete(self, request):
        body = await self._body(request)
        choice = {"text": "A text.", "index": 0, "finish_reason": "stop", "logprobs": None}
        base = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": body["model"]}
        return web.json_response({**base, "choices": [choice], "usage": replies.chat_usage()})

    async def _embed(self, request):
        body = await self._body(request)
        texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
        data = [
            {"object": "embedding", "index": n, "embedding": VECTOR} for n, _ in enumerate(texts)
        ]
        usage = {"prompt_tokens": 3, "total_tokens": 3}
        return web.json_response(
            {"object": "list", "data": data, "model": body["model"], "usage": usage}
        )

    async def _moderate(self, request):
        body = await self._body(request)
        result = {"flagged": False, "categories": {}, "category_scores": {}}
        model = body.get("model", "moderation")
        return web.json_response({"id": "modr_1", "model": model, "results": [result]})

    async def _models(self, request):
        known = {"id": "scripted", "object": "model", "created": 1, "owned_by": "tests"}
        return web.json_response({"object": "list", "data": [known]})


def _error(protocol, message, details=None):
    if protocol is MESSAGES:
        error = {"type": "invalid_request_error", "message": message, "details": details}
        return {"type": "error", "error": error}
    return {"error": {"message": message, "type": "invalid_request_error", "code": None}}
