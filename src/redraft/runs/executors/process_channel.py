"""How the process of a run and its worker processes send each other messages over a socket:
pickled, each after its length.

Only processes of one run are connected in this way. Functions and classes are sent by their names.
A worker imports their module; the script of the user and files of graders, which cannot be
imported, are run again there (`CodePickler`).
"""

from __future__ import annotations

import pickle
import sys
from asyncio import IncompleteReadError, StreamReader
from collections.abc import Iterator
from contextlib import suppress
from functools import reduce
from importlib import import_module
from io import BytesIO
from pathlib import Path
from socket import socket
from struct import Struct
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

from ..config import MAIN_IN_WORKER
from .shard_protocol import ShardStatus

LENGTH = Struct(">Q")
MAIN = "__main__"


class WorkerEnd(NamedTuple):
    """From a worker that has ended its work: the final status."""

    status: ShardStatus


def frame(data: bytes) -> bytes:
    """Return the bytes of a message after their length."""
    return LENGTH.pack(len(data)) + data


def encode(message: object) -> bytes:
    """Return a message of our own as bytes."""
    return frame(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))


async def receive(reader: StreamReader) -> Any:
    """Return the next message; None if the other process has ended."""
    try:
        (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        return pickle.loads(await reader.readexactly(length))  # noqa: S301  (from a worker of this run)
    except (IncompleteReadError, ConnectionError):
        return None


def messages(connection: socket) -> Iterator[bytes]:
    """Yield the messages that arrive, not decoded, until the other process has ended."""
    # it has ended before it read everything
    with connection.makefile("rb") as file, suppress(ConnectionError):
        while len(head := file.read(LENGTH.size)) == LENGTH.size:
            (length,) = LENGTH.unpack(head)
            if len(data := file.read(length)) < length:
                return
            yield data


# --- code of the user


def dumps_code(value: object) -> bytes:
    """Return a value with functions and objects of the user, pickled. Raises what pickling them
    raises.
    """
    buffer = BytesIO()
    CodePickler(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


class CodePickler(pickle.Pickler):
    """Pickles a function or class of a module that cannot be imported by the path of its file and
    its name there.
    """

    def reducer_override(self, obj: Any) -> Any:
        """Return how a worker finds a function or a class; NotImplemented if it can import it."""
        if (
            not isinstance(obj, (type, FunctionType))
            or (module := sys.modules.get(obj.__module__)) is None
        ):
            return NotImplemented
        if obj.__name__ == "<lambda>":
            raise pickle.PicklingError("a lambda has no name; use def")
        imported_as = module.__spec__.name if module.__spec__ else None
        if imported_as == module.__name__ or not _is_at(module, obj):
            return NotImplemented
        if imported_as:  # the module of `python -m`
            return _named_in_module, (imported_as, obj.__qualname__)
        path = Path(getattr(module, "__file__", None) or "").resolve()
        if not path.is_file():  # it is "<stdin>" for a script from standard input
            raise pickle.PicklingError(f"{obj.__qualname__} is defined in no file")
        return _named_in_file, (module.__name__, str(path), obj.__qualname__)


def _is_at(module: ModuleType, target: Any) -> bool:
    """Return whether a module has an object under its name."""
    try:
        return reduce(getattr, target.__qualname__.split("."), module) is target
    except AttributeError:
        return False


def _named_in_module(module: str, qualname: str) -> Any:
    return reduce(getattr, qualname.split("."), import_module(module))


def _named_in_file(name: str, path: str, qualname: str) -> Any:
    """Return what a file defines under a name, after running the file unless that was done."""
    name = MAIN_IN_WORKER if name == MAIN else name
    module = sys.modules.get(name) or _run_file(name, Path(path))
    return reduce(getattr, qualname.split("."), module)


def _run_file(name: str, path: Path) -> ModuleType:
    """Return a new module with the definitions of a file, which may import the files beside it."""
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))
    try:
        exec(compile(path.read_bytes(), str(path), "exec"), vars(module))  # noqa: S102  (the user's own code)
    finally:
        sys.path.remove(str(path.parent))
    return module
