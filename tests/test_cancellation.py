"""Cancellation follows asyncio, and what was sent is counted: work is cut short at random moments against a real server."""

import pytest

from cancelling import Point, Server, points


@pytest.fixture(scope="module")
def server():
    server = Server()
    yield server
    server.close()


@pytest.mark.parametrize(("way", "seed"), points(25))
def test_what_is_cut_short_is_raised_kept_and_counted(server, tmp_path, way, seed):
    """Nothing is swallowed, nothing left behind, every call is counted, and what was kept goes on."""
    assert Point(way, seed, server, tmp_path).run() == []
