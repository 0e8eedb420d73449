"""What a call of the library leaves in memory once it has ended: no text and nothing that holds
one, also without a search for cycles of objects.
"""

import asyncio
from contextlib import aclosing, suppress

import pytest
from chat_server import is_judging, verdict
from fault_server import FaultServer, completion, error, http

from freed import no_collection, objects_in_cycles, objects_of
from redraft import Budget, grade, refine, refine_many, stream
from redraft.base.sync import uvloop_factory
from redraft.errors import BudgetExhaustedError, ConfigError, GradingError, ModelError
from redraft.loop.engine import Engine
from redraft.loop.trace import Trace
from redraft.models.http_client import HttpExchange
from redraft.result import Result
from redraft.session.models import Models
from redraft.session.refinement import Refinement
from redraft.session.reservations import Reservations
from redraft.session.session import Session

OF_CALLS = (Session, Models, Refinement, Reservations, Engine, Trace, Result, HttpExchange)
FAILURES = BudgetExhaustedError, ConfigError, GradingError, ModelError
SCHEMA = {"type": "object", "required": ["a"]}


def answer(request):
    """What the models say: each as its name says."""
    if request.body["model"] == "hangs":
        return b""
    if request.body["model"] == "fails":
        return error(500, "it failed")
    return http(
        completion(verdict(3) if is_judging(request.body["messages"]) else "It is well said.")
    )


class Endpoint:
    """The models of a server, and what is asked of it."""

    def __init__(self, server):
        self.server = server

    def __getattr__(self, name):
        return f"{self.server.url}#{name}"

    async def cancelled(self, work):
        """Cancel a coroutine once it has asked a model."""
        before, task = len(self.server.requests), asyncio.ensure_future(work)
        async with asyncio.timeout(60):
            while len(self.server.requests) == before and not task.done():
                await asyncio.sleep(0.001)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def streamed(traces, *, records=None):
    """Read a stream to its end, or until it has so many records."""
    async with aclosing(traces):
        async for trace in traces:
            if len(trace.records) == records:
                return


async def failing(text):
    raise ValueError("it failed")


def says(text):
    return lambda messages: text


def recorded(record):
    pass


KINDS = {
    "refine": lambda at: refine("Say it well.", at.good, max_iterations=2, patience=3),
    "refine with requirements": lambda at: refine(
        "Say it well.", at.good, graders=["words:3-9", "judge"]
    ),
    "refine with drafts": lambda at: refine("Say it well.", at.good, drafts=2, max_iterations=1),
    "refine in a form": lambda at: refine(
        "Say it well.", at.good, answer=SCHEMA, retries=0, max_iterations=1
    ),
    "refine with a budget": lambda at: refine("Say it well.", at.good, budget=Budget(calls=3)),
    "refine with a deadline": lambda at: refine("Say it well.", at.hangs, deadline=0.05, retries=0),
    "refine with time for a call": lambda at: refine(
        "Say it well.", at.hangs, timeout=0.05, retries=0
    ),
    "refine with several models": lambda at: refine(
        "Say it well.", [at.fails, at.good], retries=0, max_iterations=1
    ),
    "refine with callbacks": lambda at: refine(
        "Say it well.", at.good, on_record=recorded, max_iterations=1
    ),
    "refine with a cache": lambda at: refine("Say it well.", at.good, cache={}, max_iterations=1),
    "refine with a function": lambda at: refine(
        "Say it well.", says("fine"), graders=lambda text: 0.5
    ),
    "refine, the model fails": lambda at: refine("Say it well.", at.fails, retries=0),
    "refine, there is no model": lambda at: refine(
        "Say it well.", "http://127.0.0.1:1/v1#none", retries=0
    ),
    "refine, the judge fails": lambda at: refine(
        "Say it well.", at.good, judge=at.fails, retries=0
    ),
    "refine, a grader fails": lambda at: refine(
        "Say it well.", at.good, graders=failing, retries=0
    ),
    "refine, cancelled": lambda at: at.cancelled(refine("Say it well.", at.hangs)),
    "refine, the judge cancelled": lambda at: at.cancelled(
        refine(("Say it well.", "So."), at.good, judge=at.hangs)
    ),
    "stream": lambda at: streamed(stream("Say it well.", at.good, max_iterations=1)),
    "stream, the model fails": lambda at: streamed(stream("Say it well.", at.fails, retries=0)),
    "stream, closed early": lambda at: streamed(stream("Say it well.", at.good), records=2),
    "stream, cancelled": lambda at: at.cancelled(streamed(stream("Say it well.", at.hangs))),
    "refine_many": lambda at: refine_many(
        ["Say it well.", ("Say it.", "So.")], at.good, max_iterations=1
    ),
    "refine_many, the model fails": lambda at: refine_many(
        ["Say it well.", "Say it."], at.fails, retries=0
    ),
    "refine_many, cancelled": lambda at: at.cancelled(
        refine_many(["Say it well.", "Say it."], at.hangs)
    ),
    "grade": lambda at: grade(("Say it well.", "So it is."), judge=at.good),
    "grade, the judge fails": lambda at: grade(
        ("Say it well.", "So it is."), judge=at.fails, retries=0
    ),
    "grade, cancelled": lambda at: at.cancelled(
        grade(("Say it well.", "So it is."), judge=at.hangs)
    ),
    "wrong argument": lambda at: refine("Say it well.", at.good, graders=["words:many"]),
}
RAISE = {
    "refine with a deadline",
    "refine with time for a call",
    "refine, the model fails",
    "refine, there is no model",
    "refine, a grader fails",
    "grade, the judge fails",
    "wrong argument",
}
LOOPS = {"asyncio": None, "uvloop": uvloop_factory()}


@pytest.mark.parametrize("factory", LOOPS.values(), ids=LOOPS)
def test_a_call_leaves_no_text(factory):
    """However it ends."""

    async def run():
        left, failed = {}, set()
        async with FaultServer([answer]) as server:
            at = Endpoint(server)
            with no_collection():
                for name, call in KINDS.items():
                    for _ in range(2):
                        try:
                            await call(at)
                        except FAILURES:
                            failed.add(name)
                    await asyncio.sleep(0)
                    left |= {name: found} if (found := objects_of(*OF_CALLS)) else {}
                    objects_in_cycles()  # so that the next one is not blamed for them
        return left, failed

    with asyncio.Runner(loop_factory=factory) as runner:
        left, failed = runner.run(run())
    assert left == {}
    assert failed == RAISE
