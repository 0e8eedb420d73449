"""A server of faults, for the tests of the gateway."""

import pytest
from fault_server import FaultServer


@pytest.fixture
async def faults():
    """A server that follows a script of faults."""
    async with FaultServer() as server:
        yield server
