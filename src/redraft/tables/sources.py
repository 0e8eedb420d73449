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

from ..checks import unreadable
from ..errors import ConfigError, StoreError
from ..small_files import read_small_text
from ..yamltext import check_yaml
from .dataframes import frame_rows
from .readers import BATCH, MOST_SKIPPED, NOTED, PIECE, BadRow, OnError, Row, accepted, check_kind, checked, is_table, rows, rows_in
from .reordering import close_quietly
from .values import line_of

Read: TypeAlias = Callable[[OnError], Iterator[Row]]

NAME = re.compile(r"[\w.-]{1,96}(/[\w.-]{1,96})?")
HUGGING_FACE = ("dataset_info.json", "dataset_dict.json")
INSTALL = "pip install 'redraft[datasets]'"
OLDEST = 4  # the first version of `datasets` that runs no loading scripts
_READERS = (
    "arrow audiofolder cache conll csv eval fasta fastq generator genbank harbor hdf5 iceberg imagefolder json lance "
    "meshfolder mmcif niftifolder pandas parquet pdb pdffolder spark sql text tsfile videofolder vortex webdataset xml"
)
READERS = frozenset(_READERS.split())  # what the library takes for a reader of files, not for a dataset
ELSEWHERE = re.compile(r"://|::")  # a URL, or the library's way to chain them
ON_HUB = "hf://datasets/"
LOOK = 0.1  # seconds between two looks at whether to stop
OF_RUNS = re.compile(r".*((\.journal|\.\d+-of-\d+)(-wal|-shm)?|\.lock|\.errors\.jsonl)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Source:
    """Rows that can be read again and again. `said` is what people call it: a file's name, "3 files", "stdin".

    `paths` are the files that are read, resolved; none for what is no file or can be read only once, and for datasets.
    """

    said: str
    read: Read
    paths: tuple[Path, ...] = ()

    def rows(self, on_error: OnError = None) -> Iterator[Row]:
        """The rows from the first on. Bad ones go to `on_error`; without it the first one raises ConfigError.

        StoreError where the disk has no room for what must be kept to be read again; Stopped where it was stopped meanwhile.
        """
        return self.read(on_error)


class Stopped(Exception):
    """Rows that can be read only once were not waited for to their end, as was wished."""


@dataclass(frozen=True, slots=True)
class _Spool:
    """Where rows are kept that can be read only once, and what is asked meanwhile: whether to stop."""

    folder: Path | None
    stopped: Callable[[], bool] | None

    def once(self, pieces: Callable[[], Iterable[bytes]], said: str, *, noted: bool = False) -> Read:
        """Reads what is kept on disk; it is put there when it is asked for first. `noted`: see `rows_in`."""
        kept = _Kept(pieces, said, str(self.folder or tempfile.gettempdir()), self.stopped)

        def read(on_error: OnError) -> Iterator[Row]:
            kept.fill()
            with io.BufferedReader(_Again(kept), PIECE) as file:
                yield from rows_in(file, said, on_error, noted=noted)

        return read


def open_source(spec: Any, *, spool: Path | None = None, stopped: Callable[[], bool] | None = None) -> Source:
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
    return _opened(spec, _Spool(spool, stopped))


def _opened(spec: Any, spool: _Spool) -> Source:
    if isinstance(spec, str | Path):
        return _named(spec, spool)
    if (dataset := _dataset_in(spec, spool)) is not None:
        return dataset
    if (frame := frame_rows(spec)) is not None:
        return Source(f"rows of a {type(spec).__name__}", lambda on_error: _given(frame(), on_error))
    if isinstance(spec, Mapping) or not isinstance(spec, Iterable):
        raise ConfigError(f"rows come from a file, a dataset or an iterable of mappings, got {type(spec).__name__}")
    if isinstance(spec, Sequence):
        return _sequence(spec, spool)
    return Source("rows of an iterable", spool.once(partial(_lines_of, iter(spec)), "row", noted=True))


def _named(spec: str | Path, spool: _Spool) -> Source:
    name, path = str(spec), Path(spec)
    if name == "-":
        return Source("stdin", _lines_only(spool.once(_stdin, "stdin"), "stdin"))
    if name.startswith("hf:"):
        _check_ambiguous(name[3:])
        return _hub(name[3:], spool)
    if path.is_dir():
        return _folder(path, spool)
    if path.is_file():
        return _files([name], name)
    if path.exists():
        return Source(name, _lines_only(spool.once(partial(_pipe, name), name), name))
    if glob.has_magic(name):
        found = glob.glob(name, recursive=True)  # noqa: PTH207 (Path.glob takes no absolute pattern)
        return _files(_inside(_without_ours([n for n in found if Path(n).is_file()], name), _fixed_part(name)), name)
    if NAME.fullmatch(name) and not is_table(name) and _installed():
        return _hub(name, spool)
    raise ConfigError(f"there is no file {name!r}{_hint(name)}")


def _hint(name: str) -> str:
    if "://" in name:
        return ": an address is not read from here; download it first, or pipe it: curl ... | redraft batch -"
    likely = NAME.fullmatch(name) and not is_table(name)
    return f"; if a Hugging Face dataset is meant: {INSTALL}" if likely else ""


def _files(names: list[str], spec: str) -> Source:
    if not names:
        raise ConfigError(f"there is no file {spec!r}")
    for name in names:
        check_kind(name)
    said = names[0] if len(names) == 1 else f"{len(names)} files"
    return Source(said, partial(_chained, [partial(rows, n) for n in names]), tuple(Path(n).resolve() for n in names))


def _without_ours(names: list[str], spec: str) -> list[str]:
    """Sorted, without what runs write beside their output."""
    others = sorted(n for n in names if not OF_RUNS.fullmatch(Path(n).name))
    if names and not others:
        raise ConfigError(f"{spec!r} finds nothing but files that runs keep for themselves; such a file must be named outright")
    return others


def _folder(path: Path, spool: _Spool) -> Source:
    if any((path / name).is_file() for name in HUGGING_FACE):
        return _hub(str(path), spool)
    tables = [str(p) for p in path.iterdir() if p.is_file() and p.name[0] not in "._" and is_table(p)]
    if not tables:
        raise ConfigError(
            f"folder {str(path)!r} holds no table; name its files by a glob, such as {str(path / '**' / '*.parquet')!r}"
        )
    return _files(_inside(_without_ours(tables, str(path)), path), str(path))


def _fixed_part(pattern: str) -> Path:
    """The folder in which a pattern looks: its path as far as there is nothing to match in it."""
    parts = list(takewhile(lambda part: not glob.has_magic(part), Path(pattern).parts))
    return Path(*parts)


def _inside(names: list[str], folder: Path) -> list[str]:
    """The files that were found, none of them outside of the folder: a link in it is no choice of whoever named the folder."""
    top = folder.resolve()
    for name in names:
        target = Path(name).resolve()
        if not target.is_relative_to(top):
            raise ConfigError(
                f"{name!r} is a link to {str(target)!r}, outside of {str(folder)!r}; if it is meant, name it outright"
            )
    return names


def _sequence(items: Sequence[Any], spool: _Spool) -> Source:
    """Rows that are in memory already, or several sources."""
    if not items or not all(isinstance(item, str | Path) for item in items):
        return Source(f"{len(items)} rows", partial(_given, items))
    if prompts := [item for item in items if isinstance(item, str) and not _may_be_source(item)]:
        raise ConfigError(
            f"a list of texts is read as a list of files, and {prompts[0][:80]!r} is none: give prompts as rows, "
            '[{"prompt": ...}, ...], or to `refine_many`'
        )
    sources = [_opened(item, spool) for item in items]
    plain = all(Path(item).is_file() for item in items)
    said = f"{len(items)} files" if plain else ", ".join(s.said for s in sources)
    return Source(said, partial(_chained, [s.read for s in sources]), tuple(path for s in sources for path in s.paths))


def _may_be_source(name: str) -> bool:
    """Whether a text in a list means a file, a folder, a glob, stdin or, said so by "hf:", a dataset."""
    if name == "-" or name.startswith("hf:"):
        return True
    with suppress(OSError, ValueError):
        if Path(name).exists():
            return True
    return not re.search(r"\s", name) and (is_table(name) or glob.has_magic(name) or "/" in name)


def _chained(reads: Iterable[Read], on_error: OnError) -> Iterator[Row]:
    for read in reads:
        yield from read(on_error)


def _given(items: Iterable[Any], on_error: OnError, said: str = "row") -> Iterator[Row]:
    return accepted((_row(f"{said}:{n}", item) for n, item in enumerate(items, 1)), on_error)


def _row(place: str, item: Any) -> Row | BadRow:
    if not isinstance(item, Mapping):
        return BadRow(place, f"a row must be a mapping, got {type(item).__name__}")
    return checked(Row(place, item))


# --- what can be read only once --------------------------------------------------------------------------------------------


def _stdin() -> Iterator[bytes]:
    return iter(partial(_next_of, sys.stdin.buffer), b"")


def _next_of(file: Any) -> bytes:
    """What comes next. It is waited for without the file's lock: at its end, Python dies of a thread that holds that of stdin."""
    with suppress(OSError):  # it is none that can be waited for
        select.select([file], [], [])
    data: bytes = file.read1(PIECE)
    return data


def _pipe(name: str) -> Iterator[bytes]:
    try:
        with Path(name).open("rb") as file:
            yield from iter(partial(file.read, PIECE), b"")
    except OSError as error:
        raise ConfigError(f"{name!r} cannot be read: {error.strerror}") from error


def _lines_of(items: Iterator[Any]) -> Iterator[bytes]:
    return map(_line_of, items)


def _line_of(item: Any) -> bytes:
    """The line in which a row is kept; of one that cannot be used, the reason."""
    found = _row("", item)
    return NOTED + line_of(found.message) if isinstance(found, BadRow) else line_of(item)


def _lines_only(read: Read, said: str) -> Read:
    """The same rows. Where there are bad ones only, that is an error, which says what they should be."""

    def told(on_error: OnError) -> Iterator[Row]:
        bad: list[BadRow] = []
        refuse = on_error and partial(_refused, on_error, bad)
        some = False
        for row in read(refuse):
            some = True
            yield row
        if bad and not some:
            raise ConfigError(
                f"there is no row that can be read in {said}, which must be JSON Lines; {bad[0].place}: {bad[0].message}"
            )

    return told


def _refused(on_error: Callable[[BadRow], None], bad: list[BadRow], row: BadRow) -> None:
    """Hand on a bad row, and remember the first."""
    bad[1:] = []
    bad.append(row)
    on_error(row)


def _in_a_thread(do: Callable[[], None], stopped: Callable[[], bool]) -> None:
    """Do it, or raise Stopped; the thread is left behind then, and does not keep the process from its end."""
    done: Future[None] = Future()

    def run() -> None:
        try:
            do()
        except BaseException as error:  # noqa: BLE001 (it is raised where it is waited for)
            done.set_exception(error)
        else:
            done.set_result(None)

    Thread(target=copy_context().run, args=(run,), daemon=True).start()
    while not wait([done], LOOK).done:
        if stopped():
            raise Stopped
    done.result()


class _Kept:
    """Bytes in a file without a name, which is gone when the process is. It is filled once."""

    def __init__(self, pieces: Callable[[], Iterable[bytes]], said: str, folder: str, stopped: Callable[[], bool] | None) -> None:
        self._pieces, self._said, self._folder, self._stopped = pieces, said, folder, stopped
        self._file: IO[bytes] | None = None
        self._whole = False
        self._lock = Lock()

    def fill(self) -> None:
        """Take in everything, where that has not been done. Raises Stopped."""
        with self._lock:
            if self._whole:
                return
            if self._file is not None:
                raise ConfigError(f"{self._said} could not be read to its end; it cannot be read again")
            self._file = file = self._disk(partial(tempfile.TemporaryFile, dir=self._folder))
            finalize(self, close_quietly, file)
            if self._stopped is None:
                self._take_in(file)
            else:
                _in_a_thread(partial(self._take_in, file), self._stopped)
            self._whole = True

    def _take_in(self, file: IO[bytes]) -> None:
        line = 0
        for piece in self._pieces():
            if self._stopped and self._stopped():
                raise Stopped
            line = len(piece) - 1 - end if (end := piece.rfind(b"\n")) >= 0 else line + len(piece)
            if line > MOST_SKIPPED:
                raise ConfigError(
                    f"{self._said} has a line that does not end within {MOST_SKIPPED >> 20:,} MiB; it must be JSON Lines"
                )
            self._disk(partial(file.write, piece))
        self._disk(file.flush)

    def part(self, place: int, length: int) -> bytes:
        """At most so many bytes from a place on."""
        assert self._file is not None
        with self._lock:
            self._file.seek(place)
            return self._file.read(length)

    def _disk(self, do: Callable[[], Any]) -> Any:
        try:
            return do()
        except OSError as error:
            raise StoreError(f"{self._folder!r} cannot hold the rows of {self._said}: {error.strerror}") from error


class _Again(io.RawIOBase):
    """Reads what is kept from its start, at a place of its own."""

    def __init__(self, kept: _Kept) -> None:
        self._kept, self._place = kept, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._kept.part(self._place, len(buffer))
        buffer[: len(data)] = data
        self._place += len(data)
        return len(data)


# --- Hugging Face ----------------------------------------------------------------------------------------------------------


def _hub(name: str, spool: _Spool) -> Source:
    """A dataset by its name or its folder, with ":SPLIT" behind it where it has several."""
    folder, _, split = (name, "", "") if Path(name).is_dir() else name.partition(":")
    _check_name(folder)
    library = _library(name)
    try:
        found = _from_folder(library, Path(folder)) if Path(folder).is_dir() else _from_hub(library, folder)
    except ConfigError:
        raise
    except Exception as error:  # the library raises whatever its own libraries raise
        first = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise ConfigError(f"{folder!r} is no file here, and no dataset that can be loaded: {first}") from error
    source = _dataset_in(_split_of(found, folder, split), spool, folder)
    assert source is not None
    return source


def _check_ambiguous(name: str) -> None:
    """Raises ConfigError for a name of the hub that a folder here has, too: the library would take the folder."""
    for given in (name, name.partition(":")[0]):
        if NAME.fullmatch(given) and not given.startswith(".") and Path(given).is_dir():
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
    if _saved(folder):
        _inside([str(path) for path in folder.rglob("*")], folder)
        _check_saved(folder)
        return library.load_from_disk(str(folder))
    for said in filter(ELSEWHERE.search, _configured(folder)):
        raise _outside(folder, said)
    builder = library.load_dataset_builder(f"./{folder}" if not folder.is_absolute() else str(folder))
    inside = (folder.absolute(), folder.resolve())
    files = list(_data_files(builder))
    for file in files:
        if not any(Path(os.path.normpath(file)).is_relative_to(where) for where in inside):
            raise _outside(folder, file)
    _inside(files, folder)
    return _prepared(builder)


def _from_hub(library: Any, name: str) -> Any:
    """A dataset of the hub, of files on the hub alone."""
    builder = library.load_dataset_builder(name)
    for file in _data_files(builder):
        if not file.startswith(ON_HUB):
            raise ConfigError(f"dataset {name!r} names a data file that is not on the hub, which is not read: {file!r}")
    return _prepared(builder)


def _prepared(builder: Any) -> Any:
    builder.download_and_prepare()
    return builder.as_dataset()


def _data_files(builder: Any) -> Iterator[str]:
    """The files that the library is going to read, whole paths or URLs."""
    for files in (builder.config.data_files or {}).values():
        yield from map(str, files)


def _configured(folder: Path) -> Iterator[str]:
    """Every text in the settings that the library takes from a folder: where data files are is among them."""
    card, settings = folder / "README.md", folder / ".huggingface.yaml"
    yaml, cards = import_module("yaml"), import_module("huggingface_hub.repocard")
    _inside([str(path) for path in (card, settings)], folder)
    if card.is_file():
        if block := cards.REGEX_YAML_BLOCK.search(_text_of(card)):
            _check_card(yaml, block[2], card)
        yield from _texts(cards.DatasetCard.load(card).data.to_dict().get("configs"))
    if settings.is_file():
        _check_card(yaml, text := _text_of(settings), settings)
        yield from _texts(yaml.safe_load(text))


def _text_of(path: Path) -> str:
    try:
        return read_small_text(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{str(path)!r} cannot be read: {unreadable(error)}") from error


def _check_card(yaml: Any, text: str, path: Path) -> None:
    try:
        check_yaml(yaml, text)
    except ValueError as error:
        raise ConfigError(f"{str(path)!r}: {error}") from error


def _texts(settings: Any) -> Iterator[str]:
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
    splits = _stored(index, "splits") if index.is_file() else []
    names = list(splits)
    for part in (folder, *(folder / str(split) for split in splits if Path(str(split)).name == split)):
        names += [file.get("filename") for file in _stored(part / "state.json", "_data_files") if isinstance(file, dict)]
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:
            raise _outside(folder, name)


def _stored(path: Path, key: str) -> list[Any]:
    """A list in a file of a saved dataset; nothing where it is not there."""
    held = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    found = held.get(key) if isinstance(held, dict) else None
    return found if isinstance(found, list) else []


def _outside(folder: Path, file: object) -> ConfigError:
    return ConfigError(f"the dataset in folder {str(folder)!r} names data outside that folder, which is not read: {file!r}")


def _installed() -> bool:
    """Whether the library is there; a folder that happens to be called "datasets" is none."""
    found = find_spec("datasets")
    return found is not None and found.origin is not None


def _library(name: str) -> Any:
    if not _installed():
        raise ConfigError(f"{name!r} is a Hugging Face dataset: {INSTALL}")
    library = import_module("datasets")
    if int(library.__version__.partition(".")[0]) < OLDEST:
        raise ConfigError(
            f"datasets {library.__version__} runs Python code that it finds in a dataset's folder; "
            f"version {OLDEST} does not: {INSTALL}"
        )
    return library


def _saved(folder: Path) -> bool:
    return any((folder / name).is_file() for name in HUGGING_FACE)


def _split_of(found: Any, name: str, split: str) -> Any:
    """One split of a dataset; the only one need not be named."""
    if not isinstance(found, Mapping):
        if split and split != str(found.split):
            raise ConfigError(f"dataset {name!r} has no splits, so no {split!r}")
        return found
    if split in found:
        return found[split]
    if split or len(found) != 1:
        wrong = f"no split {split!r}; there are" if split else "several splits; choose one of"
        raise ConfigError(f"dataset {name!r} has {wrong} {', '.join(f'hf:{name}:{s}' for s in found)}")
    return next(iter(found.values()))


def _dataset_in(spec: Any, spool: _Spool, name: str = "") -> Source | None:
    """The source for an object of `datasets`: on disk already, or streamed (which is kept)."""
    library: Any = sys.modules.get("datasets")
    if not hasattr(library, "IterableDatasetDict"):  # not loaded, so it is none of theirs
        return None
    if isinstance(spec, library.DatasetDict | library.IterableDatasetDict):
        return _dataset_in(_split_of(spec, name or "given", ""), spool, name)
    if isinstance(spec, library.Dataset):
        said = _called(spec, name)
        return Source(f"dataset {said}", lambda on_error: _given(_undecoded(spec), on_error, said.replace(", split ", ":")))
    if isinstance(spec, library.IterableDataset):
        said = _called(spec, name)
        return Source(f"dataset {said}", spool.once(lambda: _lines_of(iter(spec)), said.replace(", split ", ":"), noted=True))
    return None


def _undecoded(table: Any) -> Iterator[Any]:
    """The rows as they are stored: pictures and sounds stay bytes or paths."""
    for batch in table.with_format("arrow").iter(batch_size=BATCH):
        yield from batch.to_pylist()


def _called(table: Any, name: str) -> str:
    """What a dataset is called, with its split."""
    named = name or getattr(table.info, "dataset_name", None) or "given"
    return f"{named}, split {table.split}" if table.split else str(named)
