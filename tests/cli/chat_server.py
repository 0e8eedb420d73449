"""A small OpenAI-compatible chat server on this machine, which gives the answers of the test and
counts the requests.
"""

import asyncio
import json
import threading

from aiohttp import web


class ChatServer:
    """`answer(messages, n)` gives the n-th reply: text, the fields of a message (and
    `finish_reason`), a status, a status with a message or an error of fields, bytes (a body), or
    None for no reply at all.

    `hold(n)` keeps call n waiting.
    """

    def __init__(self, answer):
        self.answer = answer
        self.asked = []
        self.bodies = []
        self.arrived = {}
        self._held = {}
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        assert self._started.wait(60)

    @property
    def calls(self):
        return len(self.asked)

    @property
    def model(self):
        return f"http://127.0.0.1:{self.port}/v1#tiny"

    def hold(self, n):
        """Keep the n-th call waiting; the event returned is set when it has arrived."""
        self.arrived[n] = threading.Event()
        self._held[n] = asyncio.Event()
        return self.arrived[n]

    def release(self):
        """Release all calls that are on hold, and hold no more."""
        held, self._held = self._held, {}
        for gate in held.values():
            self._loop.call_soon_threadsafe(gate.set)

    def forget(self):
        """Release all calls that are on hold, and count from 0 again."""
        self.release()
        self.asked, self.bodies, self.arrived = [], [], {}

    def close(self):
        self.release()
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(10)

    async def _serve(self):
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._chat)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]
        self._started.set()
        await self._end.wait()
        await runner.cleanup()

    async def _chat(self, request):
        body = await request.json()
        n = len(self.asked)
        self.asked.append(body["messages"])
        self.bodies.append(body)
        if n in self.arrived:
            self.arrived[n].set()
        if gate := self._held.get(n):
            await gate.wait()
        said = self.answer(body["messages"], n)
        if said is None:
            await self._end.wait()
        if isinstance(said, bytes):
            return web.Response(
                body=said, content_type="text/html" if said.startswith(b"<") else "application/json"
            )
        if isinstance(said, int):
            said = said, f"no, {said}"
        if isinstance(said, tuple):
            error = {"message": said[1]} if isinstance(said[1], str) else said[1]
            return web.json_response({"error": error}, status=said[0], headers=dict(*said[2:]))
        message = {
            "finish_reason": "stop",
            **(said if isinstance(said, dict) else {"content": said}),
        }
        finish = message.pop("finish_reason")
        choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        return web.json_response(
            {"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage}
        )


def verdict(
    score, criteria=("instructions", "correctness", "completeness", "clarity"), change="say more"
):
    """The default judge's answer with one score for every criterion; it asks for a change unless
    the score is 5.
    """
    rows = {
        name: {"evidence": "", "change": change if score < 5 else "", "score": score}
        for name in criteria
    }
    return json.dumps({"reason": "It is so.", "criteria": rows, "done": score == 5})


def is_judging(messages):
    return messages[0]["role"] == "system" and "judge" in messages[0]["content"]


def writer_and_judge(drafts, scores):
    """Answers the writer with the drafts in order and the judge with the scores in order; the last
    of each is repeated.
    """
    drafts, scores = list(drafts), list(scores)

    def answer(messages, n):
        if is_judging(messages):
            return verdict(scores.pop(0) if len(scores) > 1 else scores[0])
        return drafts.pop(0) if len(drafts) > 1 else drafts[0]

    return answer
