"""Where rows come from: files, globs, folders, stdin, Hugging Face datasets, and what a program hands over.

A source can be read as often as one likes, and gives the same rows in the same order every time: what can be read only
once (stdin, pipes, iterators) is written to disk first. Nothing is held whole in memory, and what a row means is not
known here.
"""

from __future__ import annotations

import glob
import io
import json
import os
import re
import select
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from threading import Lock, Thread
from typing import IO, Any, TypeAlias
from weakref import finalize

from ..checks import read_error_message
from ..errors import ConfigError, StoreError
from ..small_files import read_small_text
from ..yamltext import check_yaml
from .dataframes import frame_rows
from .readers import (
    BAD_ROW_MARK,
    CHUNK_BYTES,
    MAX_SKIPPED_BYTES,
    ROWS_PER_BATCH,
    BadRow,
    OnError,
    Row,
    check_row,
    check_table_name,
    is_table,
    iter_rows,
    read_jsonl,
    reject_bad_rows,
)
from .reordering import close_quietly
from .values import json_line

RowReader: TypeAlias = Callable[[OnError], Iterator[Row]]

HUB_NAME = re.compile(r"[\w.-]{1,96}(/[\w.-]{1,96})?")
HUGGING_FACE = ("dataset_info.json", "dataset_dict.json")
INSTALL = "pip install 'redraft[datasets]'"
MIN_DATASETS_VERSION = 4  # the first version of `datasets` that runs no loading scripts
_READERS = (
    "arrow audiofolder cache conll csv eval fasta fastq generator genbank harbor hdf5 iceberg imagefolder json lance "
    "meshfolder mmcif niftifolder pandas parquet pdb pdffolder spark sql text tsfile videofolder vortex webdataset xml"
)
READERS = frozenset(_READERS.split())  # what the library takes for a reader of files, not for a dataset
REMOTE_URL = re.compile(r"://|::")  # a URL, or the library's way to chain them
HUB_PREFIX = "hf://datasets/"
POLL_INTERVAL = 0.1  # seconds between two looks at whether to stop
RUN_FILES = re.compile(r".*((\.journal|\.\d+-of-\d+)(-wal|-shm)?|\.lock|\.errors\.jsonl)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Source:
    """Rows that can be read again and again. `said` is what people call it: a file's name, "3 files", "stdin".

    `paths` are the files that are read, resolved; none for what is no file or can be read only once, and for datasets.
    """

    name: str
    read: RowReader
    paths: tuple[Path, ...] = ()

    def rows(self, on_error: OnError = None) -> Iterator[Row]:
        """The rows from the first on. Bad ones go to `on_error`; without it the first one raises ConfigError.

        StoreError where the disk has no room for what must be kept to be read again; Stopped where it was stopped meanwhile.
        """
        return self.read(on_error)


class ReadInterrupted(Exception):
    """Rows that can be read only once were not waited for to their end, as was wished."""


@dataclass(frozen=True, slots=True)
class _Spool:
    """Where rows are kept that can be read only once, and what is asked meanwhile: whether to stop."""

    folder: Path | None
    should_stop: Callable[[], bool] | None

    def replayable(self, chunks: Callable[[], Iterable[bytes]], name: str, *, with_bad_rows: bool = False) -> RowReader:
        """Reads what is kept on disk; it is put there when it is asked for first. `noted`: see `rows_in`."""
        kept = _DiskBuffer(chunks, name, str(self.folder or tempfile.gettempdir()), self.should_stop)

        def read(on_error: OnError) -> Iterator[Row]:
            kept.fill()
            with io.BufferedReader(_DiskBufferReader(kept), CHUNK_BYTES) as file:
                yield from read_jsonl(file, name, on_error, with_bad_rows=with_bad_rows)

        return read


def open_source(spec: Any, *, spool: Path | None = None, should_stop: Callable[[], bool] | None = None) -> Source:
    """The source that a spec means; nothing of it is read yet.

    A text or Path is a file (see `rows`), a glob (its files sorted), a folder (of table files, or one that the library
    `datasets` saved), a pipe or "-" for stdin (JSON Lines), or "hf:NAME[:SPLIT]", a dataset of the Hugging Face hub or a
    folder of one; a name for which there is no file is such a NAME, too. A list of these is read one after the other.
    Mappings are rows: a sequence of them is read in place, any other iterable once. Datasets of `datasets`, DataFrames and
    Arrow tables are read in place, too. A link that a glob or folder finds and that leads out of it is an error. What
    runs write beside their output (journals, locks, *.errors.jsonl) is left out of globs and folders.

    `spool` is the folder for what is kept on disk (None: the usual one for temporary files). While that is filled,
    `stopped` is asked several times a second, however silent stdin is: when it says so, `Source.rows` raises Stopped. A
    thread reads then. Raises ConfigError for what is not there.
    """
    return _source_of(spec, _Spool(spool, should_stop))


def _source_of(spec: Any, spool: _Spool) -> Source:
    if isinstance(spec, str | Path):
        return _source_from_name(spec, spool)
    if (dataset := _dataset_source(spec, spool)) is not None:
        return dataset
    if (frame := frame_rows(spec)) is not None:
        return Source(f"rows of a {type(spec).__name__}", lambda on_error: _iter_items(frame(), on_error))
    if isinstance(spec, Mapping) or not isinstance(spec, Iterable):
        raise ConfigError(f"rows come from a file, a dataset or an iterable of mappings, got {type(spec).__name__}")
    if isinstance(spec, Sequence):
        return _sequence_source(spec, spool)
    return Source("rows of an iterable", spool.replayable(partial(_encode_rows, iter(spec)), "row", with_bad_rows=True))


def _source_from_name(spec: str | Path, spool: _Spool) -> Source:
    name, path = str(spec), Path(spec)
    if name == "-":
        return Source("stdin", _require_rows(spool.replayable(_read_stdin, "stdin"), "stdin"))
    if name.startswith("hf:"):
        _check_ambiguous(name[3:])
        return _hub_source(name[3:], spool)
    if path.is_dir():
        return _folder_source(path, spool)
    if path.is_file():
        return _file_source([name], name)
    if path.exists():
        return Source(name, _require_rows(spool.replayable(partial(_read_pipe, name), name), name))
    if glob.has_magic(name):
        found = glob.glob(name, recursive=True)  # noqa: PTH207 (Path.glob takes no absolute pattern)
        return _file_source(
            _check_inside(_without_run_files([n for n in found if Path(n).is_file()], name), _fixed_part(name)), name
        )
    if HUB_NAME.fullmatch(name) and not is_table(name) and _is_installed():
        return _hub_source(name, spool)
    raise ConfigError(f"there is no file {name!r}{_hint(name)}")


def _hint(name: str) -> str:
    if "://" in name:
        return ": an address is not read from here; download it first, or pipe it: curl ... | redraft batch -"
    likely = HUB_NAME.fullmatch(name) and not is_table(name)
    return f"; if a Hugging Face dataset is meant: {INSTALL}" if likely else ""


def _file_source(names: list[str], spec: str) -> Source:
    if not names:
        raise ConfigError(f"there is no file {spec!r}")
    for name in names:
        check_table_name(name)
    said = names[0] if len(names) == 1 else f"{len(names)} files"
    return Source(said, partial(_chain_rows, [partial(iter_rows, n) for n in names]), tuple(Path(n).resolve() for n in names))


def _without_run_files(names: list[str], spec: str) -> list[str]:
    """Sorted, without what runs write beside their output."""
    others = sorted(n for n in names if not RUN_FILES.fullmatch(Path(n).name))
    if names and not others:
        raise ConfigError(f"{spec!r} finds nothing but files that runs keep for themselves; such a file must be named outright")
    return others


def _folder_source(path: Path, spool: _Spool) -> Source:
    if any((path / name).is_file() for name in HUGGING_FACE):
        return _hub_source(str(path), spool)
    tables = [str(p) for p in path.iterdir() if p.is_file() and p.name[0] not in "._" and is_table(p)]
    if not tables:
        raise ConfigError(
            f"folder {str(path)!r} holds no table; name its files by a glob, such as {str(path / '**' / '*.parquet')!r}"
        )
    return _file_source(_check_inside(_without_run_files(tables, str(path)), path), str(path))


def _fixed_part(pattern: str) -> Path:
    """The folder in which a pattern looks: its path as far as there is nothing to match in it."""
    parts = list(takewhile(lambda part: not glob.has_magic(part), Path(pattern).parts))
    return Path(*parts)


def _check_inside(names: list[str], folder: Path) -> list[str]:
    """The files that were found, none of them outside of the folder: a link in it is no choice of whoever named the folder."""
    top = folder.resolve()
    for name in names:
        target = Path(name).resolve()
        if not target.is_relative_to(top):
            raise ConfigError(
                f"{name!r} is a link to {str(target)!r}, outside of {str(folder)!r}; if it is meant, name it outright"
            )
    return names


def _sequence_source(items: Sequence[Any], spool: _Spool) -> Source:
    """Rows that are in memory already, or several sources."""
    if not items or not all(isinstance(item, str | Path) for item in items):
        return Source(f"{len(items)} rows", partial(_iter_items, items))
    if prompts := [item for item in items if isinstance(item, str) and not _may_be_source(item)]:
        raise ConfigError(
            f"a list of texts is read as a list of files, and {prompts[0][:80]!r} is none: give prompts as rows, "
            '[{"prompt": ...}, ...], or to `refine_many`'
        )
    sources = [_source_of(item, spool) for item in items]
    plain = all(Path(item).is_file() for item in items)
    said = f"{len(items)} files" if plain else ", ".join(s.name for s in sources)
    return Source(said, partial(_chain_rows, [s.read for s in sources]), tuple(path for s in sources for path in s.paths))


def _may_be_source(name: str) -> bool:
    """Whether a text in a list means a file, a folder, a glob, stdin or, said so by "hf:", a dataset."""
    if name == "-" or name.startswith("hf:"):
        return True
    with suppress(OSError, ValueError):
        if Path(name).exists():
            return True
    return not re.search(r"\s", name) and (is_table(name) or glob.has_magic(name) or "/" in name)


def _chain_rows(reads: Iterable[RowReader], on_error: OnError) -> Iterator[Row]:
    for read in reads:
        yield from read(on_error)


def _iter_items(items: Iterable[Any], on_error: OnError, name: str = "row") -> Iterator[Row]:
    return reject_bad_rows((_row_from_item(f"{name}:{n}", item) for n, item in enumerate(items, 1)), on_error)


def _row_from_item(location: str, item: Any) -> Row | BadRow:
    if not isinstance(item, Mapping):
        return BadRow(location, f"a row must be a mapping, got {type(item).__name__}")
    return check_row(Row(location, item))


# --- what can be read only once --------------------------------------------------------------------------------------------


def _read_stdin() -> Iterator[bytes]:
    return iter(partial(_read_available, sys.stdin.buffer), b"")


def _read_available(file: Any) -> bytes:
    """What comes next. It is waited for without the file's lock: at its end, Python dies of a thread that holds that of stdin."""
    with suppress(OSError):  # it is none that can be waited for
        select.select([file], [], [])
    data: bytes = file.read1(CHUNK_BYTES)
    return data


def _read_pipe(name: str) -> Iterator[bytes]:
    try:
        with Path(name).open("rb") as file:
            yield from iter(partial(file.read, CHUNK_BYTES), b"")
    except OSError as error:
        raise ConfigError(f"{name!r} cannot be read: {error.strerror}") from error


def _encode_rows(items: Iterator[Any]) -> Iterator[bytes]:
    return map(_encode_row, items)


def _encode_row(item: Any) -> bytes:
    """The line in which a row is kept; of one that cannot be used, the reason."""
    found = _row_from_item("", item)
    return BAD_ROW_MARK + json_line(found.message) if isinstance(found, BadRow) else json_line(item)


def _require_rows(reader: RowReader, name: str) -> RowReader:
    """The same rows. Where there are bad ones only, that is an error, which says what they should be."""

    def read_checked(on_error: OnError) -> Iterator[Row]:
        bad: list[BadRow] = []
        refuse = on_error and partial(_record_bad_row, on_error, bad)
        some = False
        for row in reader(refuse):
            some = True
            yield row
        if bad and not some:
            raise ConfigError(
                f"there is no row that can be read in {name}, which must be JSON Lines; {bad[0].location}: {bad[0].message}"
            )

    return read_checked


def _record_bad_row(on_error: Callable[[BadRow], None], bad: list[BadRow], row: BadRow) -> None:
    """Hand on a bad row, and remember the first."""
    bad[1:] = []
    bad.append(row)
    on_error(row)


def _run_in_thread(function: Callable[[], None], should_stop: Callable[[], bool]) -> None:
    """Do it, or raise Stopped; the thread is left behind then, and does not keep the process from its end."""
    done: Future[None] = Future()

    def run() -> None:
        try:
            function()
        except BaseException as error:  # noqa: BLE001 (it is raised where it is waited for)
            done.set_exception(error)
        else:
            done.set_result(None)

    Thread(target=copy_context().run, args=(run,), daemon=True).start()
    while not wait([done], POLL_INTERVAL).done:
        if should_stop():
            raise ReadInterrupted
    done.result()


class _DiskBuffer:
    """Bytes in a file without a name, which is gone when the process is. It is filled once."""

    def __init__(
        self, chunks: Callable[[], Iterable[bytes]], name: str, folder: str, should_stop: Callable[[], bool] | None
    ) -> None:
        self._chunks, self._name, self._folder, self._should_stop = chunks, name, folder, should_stop
        self._file: IO[bytes] | None = None
        self._is_complete = False
        self._lock = Lock()

    def fill(self) -> None:
        """Take in everything, where that has not been done. Raises Stopped."""
        with self._lock:
            if self._is_complete:
                return
            if self._file is not None:
                raise ConfigError(f"{self._name} could not be read to its end; it cannot be read again")
            self._file = file = self._guard_disk(partial(tempfile.TemporaryFile, dir=self._folder))
            finalize(self, close_quietly, file)
            if self._should_stop is None:
                self._fill_file(file)
            else:
                _run_in_thread(partial(self._fill_file, file), self._should_stop)
            self._is_complete = True

    def _fill_file(self, file: IO[bytes]) -> None:
        line = 0
        for piece in self._chunks():
            if self._should_stop and self._should_stop():
                raise ReadInterrupted
            line = len(piece) - 1 - end if (end := piece.rfind(b"\n")) >= 0 else line + len(piece)
            if line > MAX_SKIPPED_BYTES:
                raise ConfigError(
                    f"{self._name} has a line that does not end within {MAX_SKIPPED_BYTES >> 20:,} MiB; it must be JSON Lines"
                )
            self._guard_disk(partial(file.write, piece))
        self._guard_disk(file.flush)

    def read_at(self, offset: int, length: int) -> bytes:
        """At most so many bytes from a place on."""
        assert self._file is not None
        with self._lock:
            self._file.seek(offset)
            return self._file.read(length)

    def _guard_disk(self, function: Callable[[], Any]) -> Any:
        try:
            return function()
        except OSError as error:
            raise StoreError(f"{self._folder!r} cannot hold the rows of {self._name}: {error.strerror}") from error


class _DiskBufferReader(io.RawIOBase):
    """Reads what is kept from its start, at a place of its own."""

    def __init__(self, source: _DiskBuffer) -> None:
        self._source, self._position = source, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._source.read_at(self._position, len(buffer))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


# --- Hugging Face ----------------------------------------------------------------------------------------------------------


def _hub_source(name: str, spool: _Spool) -> Source:
    """A dataset by its name or its folder, with ":SPLIT" behind it where it has several."""
    folder, _, split = (name, "", "") if Path(name).is_dir() else name.partition(":")
    _check_name(folder)
    library = _load_library(name)
    try:
        found = _from_folder(library, Path(folder)) if Path(folder).is_dir() else _from_hub(library, folder)
    except ConfigError:
        raise
    except Exception as error:  # the library raises whatever its own libraries raise
        first = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise ConfigError(f"{folder!r} is no file here, and no dataset that can be loaded: {first}") from error
    source = _dataset_source(_split_of(found, folder, split), spool, folder)
    assert source is not None
    return source


def _check_ambiguous(name: str) -> None:
    """Raises ConfigError for a name of the hub that a folder here has, too: the library would take the folder."""
    for given in (name, name.partition(":")[0]):
        if HUB_NAME.fullmatch(given) and not given.startswith(".") and Path(given).is_dir():
            raise ConfigError(
                f"'hf:{name}' may be the folder {given!r} here or a dataset of the Hugging Face hub; "
                f"for the folder write 'hf:./{name}'"
            )


def _check_name(name: str) -> None:
    """Raises ConfigError for loading scripts, and for names that the library takes for one of its readers of files.

    A reader that is given no files reads those of the current folder.
    """
    path = Path(name)
    if name.endswith(".py") or (path / f"{path.resolve().name}.py").is_file():
        raise ConfigError(f"{name!r} has a loading script in Python, and no such script is run; name its data files")
    if name in READERS and not path.is_dir():
        raise ConfigError(f"{name!r} is a file format to the library `datasets`, not a dataset; name the files, or OWNER/{name}")


def _from_folder(library: Any, folder: Path) -> Any:
    """A dataset in a folder, of files in that folder alone, whatever is written in it."""
    if _is_saved_dataset(folder):
        _check_inside([str(path) for path in folder.rglob("*")], folder)
        _check_saved(folder)
        return library.load_from_disk(str(folder))
    for said in filter(REMOTE_URL.search, _configured_texts(folder)):
        raise _outside_error(folder, said)
    builder = library.load_dataset_builder(f"./{folder}" if not folder.is_absolute() else str(folder))
    inside = (folder.absolute(), folder.resolve())
    files = list(_data_files(builder))
    for file in files:
        if not any(Path(os.path.normpath(file)).is_relative_to(where) for where in inside):
            raise _outside_error(folder, file)
    _check_inside(files, folder)
    return _prepare_dataset(builder)


def _from_hub(library: Any, name: str) -> Any:
    """A dataset of the hub, of files on the hub alone."""
    builder = library.load_dataset_builder(name)
    for file in _data_files(builder):
        if not file.startswith(HUB_PREFIX):
            raise ConfigError(f"dataset {name!r} names a data file that is not on the hub, which is not read: {file!r}")
    return _prepare_dataset(builder)


def _prepare_dataset(builder: Any) -> Any:
    builder.download_and_prepare()
    return builder.as_dataset()


def _data_files(builder: Any) -> Iterator[str]:
    """The files that the library is going to read, whole paths or URLs."""
    for files in (builder.config.data_files or {}).values():
        yield from map(str, files)


def _configured_texts(folder: Path) -> Iterator[str]:
    """Every text in the settings that the library takes from a folder: where data files are is among them."""
    card, settings = folder / "README.md", folder / ".huggingface.yaml"
    yaml, cards = import_module("yaml"), import_module("huggingface_hub.repocard")
    _check_inside([str(path) for path in (card, settings)], folder)
    if card.is_file():
        if block := cards.REGEX_YAML_BLOCK.search(_read_text(card)):
            _check_card(yaml, block[2], card)
        yield from _iter_texts(cards.DatasetCard.load(card).data.to_dict().get("configs"))
    if settings.is_file():
        _check_card(yaml, text := _read_text(settings), settings)
        yield from _iter_texts(yaml.safe_load(text))


def _read_text(path: Path) -> str:
    try:
        return read_small_text(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{str(path)!r} cannot be read: {read_error_message(error)}") from error


def _check_card(yaml: Any, text: str, path: Path) -> None:
    try:
        check_yaml(yaml, text)
    except ValueError as error:
        raise ConfigError(f"{str(path)!r}: {error}") from error


def _iter_texts(settings: Any) -> Iterator[str]:
    """The texts in nested lists and mappings. What stands there by reference several times is looked at once."""
    seen, waiting = set(), [settings]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, list | dict) and id(value) not in seen:
            seen.add(id(value))
            waiting += value.values() if isinstance(value, dict) else value


def _check_saved(folder: Path) -> None:
    """Raises ConfigError where a saved dataset names files or splits that are not in its folder."""
    index = folder / "dataset_dict.json"
    splits = _stored_list(index, "splits") if index.is_file() else []
    names = list(splits)
    for part in (folder, *(folder / str(split) for split in splits if Path(str(split)).name == split)):
        names += [file.get("filename") for file in _stored_list(part / "state.json", "_data_files") if isinstance(file, dict)]
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:
            raise _outside_error(folder, name)


def _stored_list(path: Path, key: str) -> list[Any]:
    """A list in a file of a saved dataset; nothing where it is not there."""
    held = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    found = held.get(key) if isinstance(held, dict) else None
    return found if isinstance(found, list) else []


def _outside_error(folder: Path, file: object) -> ConfigError:
    return ConfigError(f"the dataset in folder {str(folder)!r} names data outside that folder, which is not read: {file!r}")


def _is_installed() -> bool:
    """Whether the library is there; a folder that happens to be called "datasets" is none."""
    found = find_spec("datasets")
    return found is not None and found.origin is not None


def _load_library(name: str) -> Any:
    if not _is_installed():
        raise ConfigError(f"{name!r} is a Hugging Face dataset: {INSTALL}")
    library = import_module("datasets")
    if int(library.__version__.partition(".")[0]) < MIN_DATASETS_VERSION:
        raise ConfigError(
            f"datasets {library.__version__} runs Python code that it finds in a dataset's folder; "
            f"version {MIN_DATASETS_VERSION} does not: {INSTALL}"
        )
    return library


def _is_saved_dataset(folder: Path) -> bool:
    return any((folder / name).is_file() for name in HUGGING_FACE)


def _split_of(dataset: Any, name: str, split: str) -> Any:
    """One split of a dataset; the only one need not be named."""
    if not isinstance(dataset, Mapping):
        if split and split != str(dataset.split):
            raise ConfigError(f"dataset {name!r} has no splits, so no {split!r}")
        return dataset
    if split in dataset:
        return dataset[split]
    if split or len(dataset) != 1:
        wrong = f"no split {split!r}; there are" if split else "several splits; choose one of"
        raise ConfigError(f"dataset {name!r} has {wrong} {', '.join(f'hf:{name}:{s}' for s in dataset)}")
    return next(iter(dataset.values()))


def _dataset_source(spec: Any, spool: _Spool, name: str = "") -> Source | None:
    """The source for an object of `datasets`: on disk already, or streamed (which is kept)."""
    library: Any = sys.modules.get("datasets")
    if not hasattr(library, "IterableDatasetDict"):  # not loaded, so it is none of theirs
        return None
    if isinstance(spec, library.DatasetDict | library.IterableDatasetDict):
        return _dataset_source(_split_of(spec, name or "given", ""), spool, name)
    if isinstance(spec, library.Dataset):
        said = _dataset_label(spec, name)
        return Source(f"dataset {said}", lambda on_error: _iter_items(_raw_rows(spec), on_error, said.replace(", split ", ":")))
    if isinstance(spec, library.IterableDataset):
        said = _dataset_label(spec, name)
        return Source(
            f"dataset {said}", spool.replayable(lambda: _encode_rows(iter(spec)), said.replace(", split ", ":"), with_bad_rows=True)
        )
    return None


def _raw_rows(table: Any) -> Iterator[Any]:
    """The rows as they are stored: pictures and sounds stay bytes or paths."""
    for batch in table.with_format("arrow").iter(batch_size=ROWS_PER_BATCH):
        yield from batch.to_pylist()


def _dataset_label(table: Any, name: str) -> str:
    """What a dataset is called, with its split."""
    named = name or getattr(table.info, "dataset_name", None) or "given"
    return f"{named}, split {table.split}" if table.split else str(named)
