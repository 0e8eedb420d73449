"""Servers in their own processes, which end with the test."""

import asyncio
import secrets
from contextlib import ExitStack

import pytest

from redraft.runs.executors.ray import RayPool

from .killing import serving

TOKEN = secrets.token_hex(32)  # one for all modules: Ray reads it once in a process


@pytest.fixture
def serve(tmp_path):
    """Start servers: `serve(*options)` the logging one, `serve(*options, script="chaos_server.py")`
    the other.
    """
    with ExitStack() as stack:
        count = iter(range(100))

        def start(*options, script="logging_server.py", port=None):
            return stack.enter_context(
                serving(script, *options, log=tmp_path / f"log-{next(count)}", port=port)
            )

        yield start


@pytest.fixture(scope="module")
def cluster():
    """The address of a Ray as a run starts it; the runs of these tests are connected to it
    already.
    """
    with pytest.MonkeyPatch.context() as env, asyncio.Runner() as runner:
        env.setenv("RAY_AUTH_TOKEN", TOKEN)
        own = RayPool()
        runner.run(own.__aenter__())
        import ray  # takes a second, and most test runs skip these tests

        yield ray.get_runtime_context().gcs_address
        runner.run(own.__aexit__(None, None, None))
