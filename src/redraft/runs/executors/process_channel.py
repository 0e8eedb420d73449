"""What the process of a run and its workers send each other over a socket: pickled messages, each
after its length.

Only processes of one run are connected in this way. Functions and classes are sent by their names.
A worker imports their module; the script of the user and files of graders, which cannot be
imported, are run again there (`CodePickler`).
"""

from __future__ import annotations

import pickle
import sys
from asyncio import IncompleteReadError, StreamReader
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from io import BytesIO
from pathlib import Path
from socket import socket
from struct import Struct
from types import FunctionType, ModuleType
from typing import Any

from ...plans.quality.priors import Priors
from ...storage.transaction import TransactionData
from ..config import MAIN_IN_WORKER
from ..dataset import PendingRow
from ..row_result import RowResult
from .shard_protocol import Amounts, Quota, ShardStatus, StopOrder

LENGTH = Struct(">Q")
MAIN = "__main__"


@dataclass(frozen=True, slots=True)
class QuotaMessage:
    """To a worker: its quota, perhaps an order, and pauses: until when (by `monotonic`) endpoints
    have asked for no call.

    It answers with a ShardStatus.
    """

    quota: Quota
    order: StopOrder | None
    pauses: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class EarlierWork:
    """To a worker at its start: what its earlier processes have spent and reserved, and how many
    rows they have finished.
    """

    spent: Amounts
    finished: int


@dataclass(frozen=True, slots=True)
class AssignedChunk:
    """To a worker: rows with what the journal has of them, and the refits of the priors so far.
    Without rows: there are no more.
    """

    rows: Sequence[PendingRow]
    refits: Mapping[int, Priors | None]


@dataclass(frozen=True, slots=True)
class RowRequest:
    """From a worker: it can start more rows."""


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """From a worker: writes to the journal. It waits for `CommitAnswer`."""

    changes: TransactionData


@dataclass(frozen=True, slots=True)
class CommitAnswer:
    """To a worker: its writes are committed; or they are not, because of an error."""

    error: str = ""


@dataclass(frozen=True, slots=True)
class FinishedRows:
    """From a worker: the numbers of rows that have ended, with their results, which the journal
    has.
    """

    results: Sequence[tuple[int, RowResult]]


@dataclass(frozen=True, slots=True)
class WorkerEnd:
    """From a worker: its final status, and the number of its grades for second looks."""

    status: ShardStatus
    second_looks: int


def encode(message: object) -> bytes:
    """Return a message as bytes."""
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(data)) + data


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


def encode_code(message: object) -> bytes:
    """Return a message with functions and objects of the user as bytes. Raises what pickling them
    raises.
    """
    buffer = BytesIO()
    CodePickler(buffer, pickle.HIGHEST_PROTOCOL).dump(message)
    return LENGTH.pack(buffer.tell()) + buffer.getvalue()


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
