"""Sources of rows: files, globs, folders, stdin, Hugging Face datasets, and tables in memory.

A source can be read any number of times and yields the same rows in the same order: input that can
be read only once (stdin, pipes, iterators) is first written to disk. No source is read into memory
as a whole.
"""

from __future__ import annotations

import glob
import io
import os
import re
import select
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeAlias

from ..base import checks
from ..base.checks import read_error_message
from ..base.documents import check_yaml, read_small_text
from ..base.jsontext import strict_loads
from ..errors import ConfigError
from .readers import (
    BAD_ROW_MARK,
    CHUNK_BYTES,
    ROWS_PER_BATCH,
    BadRow,
    OnError,
    Row,
    check_row,
    check_table_name,
    frame_rows,
    is_table,
    iter_rows,
    read_jsonl,
    reject_bad_rows,
)
from .spool import ReplaySpool, SpoolReader, json_line
from .text_format import ENCODING, UTF8

RowReader: TypeAlias = Callable[[OnError], Iterator[Row]]

HUB_NAME = re.compile(r"[\w.-]{1,96}(/[\w.-]{1,96})?")
SAVED_DATASET_FILES = ("dataset_info.json", "dataset_dict.json")
INSTALL = checks.install_command("datasets")
MIN_DATASETS_VERSION = 4  # the first version of `datasets` that runs no loading scripts
_FILE_FORMATS = (
    "arrow audiofolder cache conll csv eval fasta fastq generator genbank harbor hdf5 iceberg "
    "imagefolder json lance meshfolder mmcif niftifolder pandas parquet pdb pdffolder spark sql "
    "text tsfile videofolder vortex webdataset xml"
)
# names that the library takes for file formats, not for datasets
FILE_FORMATS = frozenset(_FILE_FORMATS.split())
REMOTE_URL = re.compile(r"://|::")  # a URL, or the library's way to chain them
HUB_PREFIX = "hf://datasets/"
RUN_FILES = re.compile(
    r".*((\.journal|\.\d+-of-\d+)(-wal|-shm)?|\.lock|\.errors\.jsonl)", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Source:
    """Rows that can be read any number of times. `name` is for people: the name of a file, "3
    files", "stdin".

    `paths` are the resolved files; empty for datasets, tables in memory, and input that can be read
    only once. `is_files`: all rows are in these files.
    """

    name: str
    read: RowReader
    paths: tuple[Path, ...] = ()
    is_files: bool = False

    def rows(self, on_error: OnError = None) -> Iterator[Row]:
        """Yield the rows. Bad rows go to `on_error`; without it the first one raises ConfigError.

        Raises StoreError if input that can be read only once does not fit on the disk, and
        ReadInterrupted.
        """
        return self.read(on_error)


@dataclass(frozen=True, slots=True)
class _Spool:
    """The folder for input that can be read only once, and a function that returns whether to stop
    reading it.
    """

    folder: Path | None
    should_stop: Callable[[], bool] | None

    def replayable(
        self, chunks: Callable[[], Iterable[bytes]], name: str, *, with_bad_rows: bool = False
    ) -> RowReader:
        """Return a reader of input that is written to disk on first use. `with_bad_rows`: see
        `read_jsonl`.
        """
        stored = ReplaySpool(
            chunks, name, str(self.folder or tempfile.gettempdir()), self.should_stop
        )

        encoding, identity = UTF8 if with_bad_rows else ENCODING.get(), object()

        def read(on_error: OnError) -> Iterator[Row]:
            stored.fill()
            with io.BufferedReader(SpoolReader(stored), CHUNK_BYTES) as file:
                yield from read_jsonl(
                    file,
                    name,
                    on_error,
                    encoding=encoding,
                    identity=identity,
                    with_bad_rows=with_bad_rows,
                )

        return read


def open_source(
    spec: Any, *, spool: Path | None = None, should_stop: Callable[[], bool] | None = None
) -> Source:
    """Return the source for a spec, without reading rows. Raises ConfigError if there is none.

    A text or Path is a file (see `iter_rows`), a glob (its files are sorted), a folder (of table
    files, or one saved by the library `datasets`), a pipe or "-" for stdin (JSON Lines), or
    "hf:NAME[:SPLIT]" for a dataset of the Hugging Face hub or a folder of one; "hf:" may be omitted
    if there is no such file. A list of these is read in order. Mappings are rows: a sequence of
    them is read in place, any other iterable once. Datasets of `datasets`, DataFrames and Arrow
    tables are read in place. A link in a glob or folder that leads out of it is an error. Globs and
    folders leave out files that runs write beside their output (journals, locks, *.errors.jsonl).

    `spool` is the folder for input that can be read only once (None: the usual one for temporary
    files). While that input is read, `should_stop` is called several times a second, even if stdin
    is silent; if it returns True, `Source.rows` raises ReadInterrupted.
    """
    return _source_of(spec, _Spool(spool, should_stop))


def _source_of(spec: Any, spool: _Spool) -> Source:
    if isinstance(spec, str | Path):
        return _source_from_name(spec, spool)
    if (dataset := _dataset_source(spec, spool)) is not None:
        return dataset
    if (frame := frame_rows(spec)) is not None:
        return Source(
            f"rows of a {type(spec).__name__}", lambda on_error: _iter_items(frame(), on_error)
        )
    if isinstance(spec, Mapping) or not isinstance(spec, Iterable):
        raise ConfigError(
            f"rows must be a file, a dataset or an iterable of mappings, got {type(spec).__name__}"
        )
    if isinstance(spec, Sequence):
        return _sequence_source(spec, spool)
    return Source(
        "rows of an iterable",
        spool.replayable(partial(map, _encode_row, iter(spec)), "row", with_bad_rows=True),
    )


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
        matches = glob.glob(name, recursive=True)  # noqa: PTH207 (Path.glob takes no absolute pattern)
        return _file_source(
            _check_inside(
                _without_run_files([n for n in matches if Path(n).is_file()], name),
                _fixed_part(name),
            ),
            name,
        )
    if HUB_NAME.fullmatch(name) and not is_table(name) and _is_installed():
        return _hub_source(name, spool)
    raise ConfigError(f"there is no file {name!r}{_hint(name)}")


def _hint(name: str) -> str:
    if "://" in name:
        return ": a URL is not read; download it first, or pipe it: curl ... | redraft batch -"
    likely = HUB_NAME.fullmatch(name) and not is_table(name)
    return f"; if you mean a Hugging Face dataset: {INSTALL}" if likely else ""


def _file_source(names: list[str], spec: str) -> Source:
    if not names:
        raise ConfigError(f"there is no file {spec!r}")
    for name in names:
        check_table_name(name)
    label = names[0] if len(names) == 1 else f"{len(names)} files"
    reads = [partial(iter_rows, name, encoding=ENCODING.get()) for name in names]
    read = reads[0] if len(reads) == 1 else partial(_chain_rows, reads)
    return Source(label, read, tuple(Path(n).resolve() for n in names), is_files=True)


def _without_run_files(names: list[str], spec: str) -> list[str]:
    """Return the names sorted, without files that runs write beside their output."""
    tables = sorted(n for n in names if not RUN_FILES.fullmatch(Path(n).name))
    if names and not tables:
        raise ConfigError(
            f"{spec!r} matches only files that runs write for themselves; to read one, give its "
            "own name"
        )
    return tables


def _folder_source(path: Path, spool: _Spool) -> Source:
    if _is_saved_dataset(path):
        return _hub_source(str(path), spool)
    tables = [
        str(p) for p in path.iterdir() if p.is_file() and p.name[0] not in "._" and is_table(p)
    ]
    if not tables:
        raise ConfigError(
            f"folder {str(path)!r} holds no table; select files by a glob, such as "
            f"{str(path / '**' / '*.parquet')!r}"
        )
    return _file_source(_check_inside(_without_run_files(tables, str(path)), path), str(path))


def _fixed_part(pattern: str) -> Path:
    """Return the part of a pattern before its first wildcard."""
    parts = list(takewhile(lambda part: not glob.has_magic(part), Path(pattern).parts))
    return Path(*parts)


def _check_inside(names: list[str], folder: Path) -> list[str]:
    """Return the files. Raises ConfigError for a link that leads out of the folder: the user did
    not choose its target.
    """
    root = folder.resolve()
    for name in names:
        target = Path(name).resolve()
        if not target.is_relative_to(root):
            raise ConfigError(
                f"{name!r} is a link to {str(target)!r}, outside of {str(folder)!r}; to read it, "
                "give its own name"
            )
    return names


def _sequence_source(items: Sequence[Any], spool: _Spool) -> Source:
    """Return the source of rows in memory, or of several sources in order."""
    if not items or not all(isinstance(item, str | Path) for item in items):
        return Source(f"{len(items)} rows", partial(_iter_items, items))
    if prompts := [item for item in items if isinstance(item, str) and not _may_be_source(item)]:
        raise ConfigError(
            f"a list of texts is read as a list of files, and {prompts[0][:80]!r} is not a file: "
            "give prompts as rows, "
            '[{"prompt": ...}, ...], or to `refine_many`'
        )
    sources = [_source_of(item, spool) for item in items]
    plain = all(Path(item).is_file() for item in items)
    label = f"{len(items)} files" if plain else ", ".join(s.name for s in sources)
    paths = tuple(path for s in sources for path in s.paths)
    return Source(
        label,
        partial(_chain_rows, [s.read for s in sources]),
        paths,
        is_files=all(s.is_files for s in sources),
    )


def _may_be_source(name: str) -> bool:
    """Return whether a text in a list names a file, a folder, a glob, stdin or, with "hf:", a
    dataset.
    """
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
    return reject_bad_rows(
        (_row_from_item(f"{name}:{n}", item) for n, item in enumerate(items, 1)), on_error
    )


def _row_from_item(location: str, item: Any) -> Row | BadRow:
    if not isinstance(item, Mapping):
        return BadRow(location, f"a row must be a mapping, got {type(item).__name__}")
    return check_row(Row(location, item))


# --- input that can be read only once
# ----------------------------------------------------------------------------


def _read_stdin() -> Iterator[bytes]:
    return iter(partial(_read_available, sys.stdin.buffer), b"")


def _read_available(file: Any) -> bytes:
    """Read what is available. Wait without the lock of the file: Python crashes at exit if a thread
    holds the lock of stdin.
    """
    with suppress(OSError):  # `select` does not support it
        select.select([file], [], [])
    data: bytes = file.read1(CHUNK_BYTES)
    return data


def _read_pipe(name: str) -> Iterator[bytes]:
    try:
        with Path(name).open("rb") as file:
            yield from iter(partial(file.read, CHUNK_BYTES), b"")
    except OSError as error:
        raise ConfigError(f"{name!r} cannot be read: {error.strerror}") from error


def _encode_row(item: Any) -> bytes:
    """Return the line that stores a row or, for a bad row, the reason."""
    row = _row_from_item("", item)
    return BAD_ROW_MARK + json_line(row.message) if isinstance(row, BadRow) else json_line(item)


def _require_rows(reader: RowReader, name: str) -> RowReader:
    """Return a reader of the same rows that raises ConfigError if all of them are bad."""

    def read_checked(on_error: OnError) -> Iterator[Row]:
        first_bad: BadRow | None = None
        any_good = False

        def report(row: BadRow) -> None:
            nonlocal first_bad
            first_bad = first_bad or row
            if on_error:
                on_error(row)

        for row in reader(on_error and report):
            any_good = True
            yield row
        if first_bad and not any_good:
            raise ConfigError(
                f"no row of {name} can be read, which must be JSON Lines; {first_bad.location}: "
                f"{first_bad.message}"
            )

    return read_checked


# --- Hugging Face
# ----------------------------------------------------------------------------


def _hub_source(name: str, spool: _Spool) -> Source:
    """Return the source of a dataset by its name or folder, followed by ":SPLIT" if it has several
    splits.
    """
    folder, _, split = (name, "", "") if Path(name).is_dir() else name.partition(":")
    _check_name(folder)
    library = _load_library(name)
    try:
        dataset = (
            _from_folder(library, Path(folder))
            if Path(folder).is_dir()
            else _from_hub(library, folder)
        )
    except ConfigError:
        raise
    except Exception as error:  # its dependencies raise any error
        first = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise ConfigError(
            f"{folder!r} is neither a local file nor a dataset that can be loaded: {first}"
        ) from error
    source = _dataset_source(_split_of(dataset, folder, split), spool, folder)
    assert source is not None
    return source


def _check_ambiguous(name: str) -> None:
    """Raise ConfigError for a name of the hub that is also a local folder: the library would take
    the folder.
    """
    for given in (name, name.partition(":")[0]):
        if HUB_NAME.fullmatch(given) and not given.startswith(".") and Path(given).is_dir():
            raise ConfigError(
                f"'hf:{name}' may be the local folder {given!r} or a dataset of the Hugging Face "
                f"hub; for the folder write 'hf:./{name}'"
            )


def _check_name(name: str) -> None:
    """Raise ConfigError for loading scripts, and for names that the library takes for file formats.

    Given a format without files, it reads the files of the current folder.
    """
    path = Path(name)
    if name.endswith(".py") or (path / f"{path.resolve().name}.py").is_file():
        raise ConfigError(
            f"{name!r} has a loading script in Python, which is not run; name its data files"
        )
    if name in FILE_FORMATS and not path.is_dir():
        raise ConfigError(
            f"{name!r} is a file format to the library `datasets`, not a dataset; name the files, "
            f"or OWNER/{name}"
        )


def _from_folder(library: Any, folder: Path) -> Any:
    """Load a dataset from a folder. Raises ConfigError if it names files outside the folder."""
    if _is_saved_dataset(folder):
        _check_inside([str(path) for path in folder.rglob("*")], folder)
        _check_saved(folder)
        return library.load_from_disk(str(folder))
    for url in filter(REMOTE_URL.search, _configured_texts(folder)):
        raise _outside_error(folder, url)
    builder = library.load_dataset_builder(
        f"./{folder}" if not folder.is_absolute() else str(folder)
    )
    inside = (folder.absolute(), folder.resolve())
    files = list(_data_files(builder))
    for file in files:
        if not any(Path(os.path.normpath(file)).is_relative_to(where) for where in inside):
            raise _outside_error(folder, file)
    _check_inside(files, folder)
    return _prepare_dataset(builder)


def _from_hub(library: Any, name: str) -> Any:
    """Load a dataset from the hub. Raises ConfigError if it names files elsewhere."""
    builder = library.load_dataset_builder(name)
    for file in _data_files(builder):
        if not file.startswith(HUB_PREFIX):
            raise ConfigError(
                f"dataset {name!r} names a data file that is not on the hub, which is not read: "
                f"{file!r}"
            )
    return _prepare_dataset(builder)


def _prepare_dataset(builder: Any) -> Any:
    builder.download_and_prepare()
    return builder.as_dataset()


def _data_files(builder: Any) -> Iterator[str]:
    """Yield the files that the library will read, as absolute paths or URLs."""
    for files in (builder.config.data_files or {}).values():
        yield from map(str, files)


def _configured_texts(folder: Path) -> Iterator[str]:
    """Yield every text in the settings that the library reads from a folder; some of them locate
    data files.
    """
    card, config_file = folder / "README.md", folder / ".huggingface.yaml"
    yaml, cards = import_module("yaml"), import_module("huggingface_hub.repocard")
    _check_inside([str(path) for path in (card, config_file)], folder)
    if card.is_file():
        if block := cards.REGEX_YAML_BLOCK.search(_read_text(card)):
            _check_card(yaml, block[2], card)
        yield from _iter_texts(cards.DatasetCard.load(card).data.to_dict().get("configs"))
    if config_file.is_file():
        _check_card(yaml, text := _read_text(config_file), config_file)
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
    """Yield the texts in nested lists and mappings; visit shared objects once."""
    seen, waiting = set(), [settings]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, list | dict) and id(value) not in seen:
            seen.add(id(value))
            waiting += value.values() if isinstance(value, dict) else value


def _check_saved(folder: Path) -> None:
    """Raise ConfigError if a saved dataset names files or splits outside its folder."""
    index = folder / "dataset_dict.json"
    splits = _stored_list(index, "splits") if index.is_file() else []
    names = list(splits)
    for folder_of_split in (
        folder,
        *(folder / str(split) for split in splits if Path(str(split)).name == split),
    ):
        names += [
            file.get("filename")
            for file in _stored_list(folder_of_split / "state.json", "_data_files")
            if isinstance(file, dict)
        ]
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:
            raise _outside_error(folder, name)


def _stored_list(path: Path, key: str) -> list[Any]:
    """Return a list in a file of a saved dataset; [] if there is none."""
    data = strict_loads(_read_text(path)) if path.is_file() else {}
    items = data.get(key) if isinstance(data, dict) else None
    return items if isinstance(items, list) else []


def _outside_error(folder: Path, file: object) -> ConfigError:
    return ConfigError(
        f"the dataset in folder {str(folder)!r} names data outside that folder, which is not "
        f"read: {file!r}"
    )


def _is_installed() -> bool:
    """Return whether the library is installed; a folder named "datasets" does not count."""
    spec = find_spec("datasets")
    return spec is not None and spec.origin is not None


def _load_library(name: str) -> Any:
    if not _is_installed():
        raise ConfigError(f"{name!r} is a Hugging Face dataset: {INSTALL}")
    library = import_module("datasets")
    if int(library.__version__.partition(".")[0]) < MIN_DATASETS_VERSION:
        raise ConfigError(
            f"datasets {library.__version__} runs Python code from the folder of a dataset; "
            f"version {MIN_DATASETS_VERSION} does not: {INSTALL}"
        )
    return library


def _is_saved_dataset(folder: Path) -> bool:
    return any((folder / name).is_file() for name in SAVED_DATASET_FILES)


def _split_of(dataset: Any, name: str, split: str) -> Any:
    """Return a split of a dataset; a single one need not be named."""
    if not isinstance(dataset, Mapping):
        if split and split != str(dataset.split):
            raise ConfigError(f"dataset {name!r} has no splits, so no {split!r}")
        return dataset
    if split in dataset:
        return dataset[split]
    if split or len(dataset) != 1:
        problem = f"no split {split!r}; there are" if split else "several splits; choose one of"
        raise ConfigError(
            f"dataset {name!r} has {problem} {', '.join(f'hf:{name}:{s}' for s in dataset)}"
        )
    return next(iter(dataset.values()))


def _dataset_source(spec: Any, spool: _Spool, name: str = "") -> Source | None:
    """Return the source for an object of `datasets`, which is on disk or streamed; None for
    anything else.
    """
    library: Any = sys.modules.get("datasets")
    # it is not imported, so `spec` is none of its objects
    if not hasattr(library, "IterableDatasetDict"):
        return None
    if isinstance(spec, library.DatasetDict | library.IterableDatasetDict):
        return _dataset_source(_split_of(spec, name or "given", ""), spool, name)
    if not isinstance(spec, library.Dataset | library.IterableDataset):
        return None
    label = _dataset_label(spec, name)
    row_name = label.replace(", split ", ":")
    if isinstance(spec, library.Dataset):
        return Source(
            f"dataset {label}", lambda on_error: _iter_items(_raw_rows(spec), on_error, row_name)
        )
    return Source(
        f"dataset {label}",
        spool.replayable(lambda: map(_encode_row, spec), row_name, with_bad_rows=True),
    )


def _raw_rows(table: Any) -> Iterator[Any]:
    """Yield the rows as they are stored: images and sounds stay bytes or paths."""
    for batch in table.with_format("arrow").iter(batch_size=ROWS_PER_BATCH):
        yield from batch.to_pylist()


def _dataset_label(table: Any, name: str) -> str:
    """Return the name of a dataset, with its split."""
    label = name or getattr(table.info, "dataset_name", None) or "given"
    return f"{label}, split {table.split}" if table.split else str(label)
