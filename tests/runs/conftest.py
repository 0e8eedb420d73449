"""Servers in their own processes, which end with the test."""

import asyncio
import secrets
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from redraft.runs.executors.ray import RayPool

from .killing import serving


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


@contextmanager
def one_ray():
    """Only one Ray at a time on this machine: two that start at once may choose the same port."""
    import fcntl  # not on Windows, which has no Ray here

    with Path(tempfile.gettempdir(), "redraft-tests-ray.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="module")
def cluster():
    """The address of a Ray as a run starts it; the runs of these tests are connected to it
    already.
    """
    with one_ray(), pytest.MonkeyPatch.context() as env, asyncio.Runner() as runner:
        env.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        own = RayPool()
        runner.run(own.__aenter__())
        import ray  # takes a second, and most test runs skip these tests

        yield ray.get_runtime_context().gcs_address
        runner.run(own.__aexit__(None, None, None))
