"""Parquet, read in a worker process: a small file may decompress to any size.

The memory of the worker is limited. It returns a part of limited size through a temporary file. If
many rows at a time take too much memory, fewer are read, and dictionary-encoded texts are decoded
only once their size is known. A part is requested by its first row, so any worker can answer; one
that has just read the preceding rows continues from there.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import lru_cache, partial
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from typing import Any

from ..base.checks import needs_extra
from ..base.jsontext import first_duplicate
from ..errors import ComputeLimitError, ConfigError, StoreError
from ..workers.pool import run_sync

# rows at a time, whether texts stay dictionary-encoded; tried in order
READ_MODES = ((2048, False), (64, True), (1, True))
# bytes that the first mode may add to the worker's memory; the others get the worker's limit
FIRST_MODE_MEMORY = 512 * 2**20
PART_BYTES = 8 * 2**20  # bytes of a part, decoded
MAX_ROW_BYTES = 64 * 2**20  # bytes of a row, decoded
VALUE_BYTES = 16  # bytes of a value in a list, in addition to what Arrow counts
BUFFER_BYTES = 2**20  # bytes of the file that are read at a time
PART_CPU_SECONDS = 60.0


def read_batches(name: str) -> Iterator[tuple[int, Any]]:
    """Yield the number of the first row, from 1, and an Arrow record batch, or None for a single
    row that is too large.

    Raises ConfigError for a file that cannot be read, StoreError if the temporary file cannot be
    written.
    """
    with needs_extra("parquet", f"{name!r} is Parquet"):
        import_module("pyarrow.parquet")  # the worker needs it
        ipc = import_module("pyarrow.ipc")
    first, modes = 0, list(READ_MODES)
    with _exchange_file(name) as file:
        while rows := _request_part(name, first, modes, file.name)["rows"]:
            file.seek(0)
            stream = ipc.open_stream(file.read())
            for fits in rows:
                yield first + 1, stream.read_next_batch() if fits else None
                first += fits or 1


@contextmanager
def _exchange_file(name: str) -> Iterator[Any]:
    """Create the temporary file through which a worker returns what it has read."""
    try:
        with tempfile.NamedTemporaryFile(prefix="redraft-") as file:
            yield file
    except OSError as error:
        raise StoreError(
            f"{tempfile.gettempdir()!r} cannot hold what is read of {name!r}: {error.strerror}"
        ) from error


def _request_part(name: str, first: int, modes: list[tuple[int, bool]], output_path: str) -> Any:
    """Return the answer of a worker. A mode that exceeds the limits is removed from `modes`."""
    try:
        path, size = str(Path(name).resolve()), Path(name).stat().st_size
    except OSError as error:
        raise ConfigError(f"{name!r} cannot be read: {error.strerror}") from error
    failure = f"{name!r} cannot be read: row {first + 1} could not be unpacked"
    while True:
        try:
            return run_sync(
                read_part,
                path,
                first,
                *modes[0],
                output_path,
                failure_text=failure,
                text_length=size,
                seconds=PART_CPU_SECONDS,
            )
        except ComputeLimitError as error:
            if len(modes) == 1:
                reason = str(error).rpartition(" (")[0]
                raise ConfigError(f"{reason}; the file has {size:,} bytes") from error
            modes.pop(0)


# --- in the worker
# ----------------------------------------------------------------------------


def prepare() -> None:
    """Import the libraries before the first job, so that no job spends its time on it."""
    arrow = import_module("pyarrow")
    import_module("pyarrow.parquet")
    import_module("pyarrow.compute")
    # other pools reserve more than the limit allows
    arrow.set_memory_pool(arrow.system_memory_pool())


def read_part(
    path: str,
    first: int,
    most_rows: int,
    keep_dictionaries: bool,  # noqa: FBT001  (jobs have positional arguments only)
    output_path: str,
) -> dict[str, Any]:
    """Write the rows from `first` on, as many as fit into a part, to a file as an Arrow stream.

    `rows` of the result holds the number of rows of each batch; 0 is a row that is too large and
    not in the stream. An empty list is the end of the file.
    """
    arrow = import_module("pyarrow")
    try:
        with _memory_limit() if (most_rows, keep_dictionaries) == READ_MODES[0] else nullcontext():
            stat = Path(path).stat()
            return {
                "rows": _cached_reader(
                    path, most_rows, keep_dictionaries, stat.st_mtime_ns, stat.st_size
                ).write_part(first, output_path)
            }
    except MemoryError as error:  # Arrow raises a subclass
        _cached_reader.cache_clear()
        raise MemoryError from error
    except (OSError, ValueError, arrow.ArrowException) as error:
        _cached_reader.cache_clear()
        raise ConfigError(f"{path!r} cannot be read: {error}") from error


@contextmanager
def _memory_limit() -> Iterator[None]:
    """Limit the memory of this process to FIRST_MODE_MEMORY more than now, if the system supports
    it.
    """
    try:
        import resource

        soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_AS)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(
            resource.RLIMIT_AS,
            (
                used + FIRST_MODE_MEMORY
                if soft_limit < 0
                else min(soft_limit, used + FIRST_MODE_MEMORY),
                hard_limit,
            ),
        )
    except (ImportError, OSError, ValueError):
        yield
        return
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft_limit, hard_limit))


@lru_cache(maxsize=2)
def _cached_reader(
    path: str,
    most_rows: int,
    keep_dictionaries: bool,  # noqa: FBT001
    mtime_ns: int,
    size: int,
) -> _PartReader:
    return _PartReader(path, most_rows, keep_dictionaries=keep_dictionaries)


class _PartReader:
    """An open Parquet file and the position in it."""

    def __init__(self, path: str, most_rows: int, *, keep_dictionaries: bool) -> None:
        self._arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
        with parquet.ParquetFile(path, pre_buffer=False) as file:
            schema, metadata = file.schema_arrow, file.metadata
        if (duplicate := first_duplicate(schema.names)) is not None:
            raise ConfigError(f"{path}: the column {duplicate!r} is named twice")
        texts = (
            [field.name for field in schema if self._is_text(field.type)]
            if keep_dictionaries
            else []
        )
        self._file = parquet.ParquetFile(
            path, buffer_size=BUFFER_BYTES, pre_buffer=False, read_dictionary=texts
        )
        self._starts = list(
            accumulate(
                (metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)), initial=0
            )
        )
        self._most_rows = most_rows
        self._start_at(0)

    def _start_at(self, group: int) -> None:
        """Continue at the first row of a row group."""
        groups = list(range(group, len(self._starts) - 1))
        self._batches = (
            self._file.iter_batches(self._most_rows, row_groups=groups, use_threads=False)
            if groups
            else iter(())
        )
        self._next = self._starts[group]
        self._pieces: list[Any] = []

    def write_part(self, first: int, output_path: str) -> list[int]:
        """Write a part and return its `rows` (see `read_part`)."""
        group = max(n for n, start in enumerate(self._starts) if start <= first)
        if first < self._next or self._starts[group] > self._next:
            self._start_at(group)
        rows: list[int] = []
        size = read = 0
        with self._arrow.OSFile(output_path, "wb") as file:
            stream: Any = None
            while (
                size < PART_BYTES
                and read < self._most_rows
                and (batch := self._next_piece(first + read))
            ):
                read += batch.num_rows
                decoded = self._decode_batch(batch)
                rows.append(0 if decoded is None else batch.num_rows)
                if decoded is None:
                    continue
                stream = stream or self._arrow.ipc.new_stream(file, decoded.schema)
                stream.write_batch(decoded)
                size += decoded.nbytes
            stream = stream or self._arrow.ipc.new_stream(file, self._arrow.schema([]))
            stream.close()
        return rows

    def _next_piece(self, first: int) -> Any:
        """Return the next rows, from `first` on: a single row, or no more than fit into a part.
        None at the end.
        """
        while batch := self._pieces.pop(0) if self._pieces else next(self._batches, None):
            if (
                overlap := min(first - self._next, batch.num_rows)
            ) > 0:  # another worker has read them
                batch, self._next = batch.slice(overlap), self._next + overlap
            while batch.num_rows > 1 and self._batch_bytes(batch) > PART_BYTES:
                half = batch.num_rows // 2
                self._pieces.insert(0, batch.slice(half))
                batch = batch.slice(0, half)
            self._next += batch.num_rows
            if batch.num_rows:
                return batch
        return None

    def _decode_batch(self, batch: Any) -> Any:
        """Return the rows without dictionaries; None for a row that is too large."""
        if self._batch_bytes(batch) > MAX_ROW_BYTES:
            return None
        columns = [self._decode_column(column) for column in batch.columns]
        decoded = self._arrow.RecordBatch.from_arrays(columns, names=batch.schema.names)
        return decoded if self._batch_bytes(decoded) <= MAX_ROW_BYTES else None

    def _decode_column(self, column: Any) -> Any:
        plain_type = _type_without_dictionaries(self._arrow, column.type)
        return column if column.type == plain_type else column.cast(plain_type)

    def _batch_bytes(self, batch: Any) -> int:
        """Return about how many bytes the rows have when they are decoded."""
        return sum(map(self._column_bytes, batch.columns))

    def _column_bytes(self, column: Any) -> int:
        types, compute = self._arrow.types, import_module("pyarrow.compute")
        if types.is_dictionary(column.type) and self._is_text(column.type.value_type):
            lengths = compute.binary_length(column.dictionary).take(column.indices)
            return compute.sum(compute.cast(lengths, "int64")).as_py() or 0
        return int(column.nbytes) + VALUE_BYTES * _count_list_values(types, column)

    def _is_text(self, type_: Any) -> bool:
        types = self._arrow.types
        return any(
            check(type_)
            for check in (
                types.is_string,
                types.is_large_string,
                types.is_binary,
                types.is_large_binary,
            )
        )


def _count_list_values(types: Any, column: Any) -> int:
    """Count the values in lists, at all levels."""
    if types.is_struct(column.type):
        return sum(_count_list_values(types, inner) for inner in column.flatten())
    if (
        types.is_list(column.type)
        or types.is_large_list(column.type)
        or types.is_fixed_size_list(column.type)
    ):
        inner = column.flatten()
        return len(inner) + _count_list_values(types, inner)
    if types.is_map(column.type):
        return (
            2 * len(column.items)
            + _count_list_values(types, column.keys)
            + _count_list_values(types, column.items)
        )
    return 0


def _type_without_dictionaries(arrow: Any, type_: Any) -> Any:
    """Return the type without dictionaries."""
    types = arrow.types
    plain: Callable[[Any], Any] = partial(_type_without_dictionaries, arrow)
    if types.is_dictionary(type_):
        return plain(type_.value_type)
    if types.is_map(type_):
        return arrow.map_(plain(type_.key_type), plain(type_.item_type))
    if types.is_struct(type_):
        return arrow.struct([field.with_type(plain(field.type)) for field in type_])
    if types.is_list(type_):
        return arrow.list_(type_.value_field.with_type(plain(type_.value_type)))
    if types.is_large_list(type_):
        return arrow.large_list(type_.value_field.with_type(plain(type_.value_type)))
    return type_
