"""Ports for servers that tests start later, or start again."""

import socket
from contextlib import contextmanager


@contextmanager
def reserved_port():
    """A port of this machine that no program is given while the block runs.

    A server may listen there if it sets SO_REUSEADDR, as those of asyncio do.
    """
    with socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]
