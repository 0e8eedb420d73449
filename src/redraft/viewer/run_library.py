"""The runs that a viewer shows: those of journals, and single traces, each with its index.

A trace file is copied into a journal of one row in a temporary folder, so that pages know runs
only.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

from ..base.documents import open_regular
from ..base.jsontext import dumps_text
from ..errors import ConfigError, StoreError
from ..loop.serialize import record_to_json
from ..loop.trace import Trace
from ..plans.quality.result_facts import result_facts
from ..storage.journal import Journal, RunInfo, run_name
from ..storage.schema import wal_path
from ..storage.trace_file import read_trace
from .figures import run_figures
from .index import RunIndex

JOURNAL = ".journal"  # how the name of a journal ends
SCAN_SECONDS = 2.0  # between two looks into the folders
MAX_JOURNALS = 500
SQLITE_MARK = b"SQLite format 3\0"


@dataclass(frozen=True, slots=True)
class RunEntry:
    """A run: its key in addresses, its journal, what the journal says about it, and the path that a
    user knows it by.
    """

    key: str
    journal: Path
    info: RunInfo
    label: str

    def trace_code(self, id: str) -> str:
        """Return the Python expression whose value is the trace of a row."""
        path = os.path.abspath(self.label)  # noqa: PTH100  (Path.absolute keeps `..`)
        if self.label != str(self.journal):
            return f"read_trace({path!r})"
        return f"Journal({path!r}, read_only=True).trace({self.info.name!r}, {id!r})"


class IndexBuild:
    """The index of a run, and how far a thread has got with building it. `error`: why it cannot be
    built, if that is so.
    """

    def __init__(self, entry: RunEntry, folder: Path | None) -> None:
        self.index = RunIndex(entry.journal, entry.info.name, folder)
        self.done, self.total = 0, 0
        self.error: Exception | None = None
        self._is_stopped = False
        self._thread = threading.Thread(target=self._build, name="redraft-index", daemon=True)
        self._thread.start()

    @property
    def is_ready(self) -> bool:
        return not self._thread.is_alive()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the index is built; return whether it is."""
        self._thread.join(seconds)
        return self.is_ready

    def ready_index(self) -> RunIndex:
        """Return the index when it is built. Raises StoreError."""
        self.wait()
        if self.error:
            raise self.error
        return self.index

    def close(self) -> None:
        """Close the index; one that is being built is continued next time."""
        self._is_stopped = True
        self.wait()
        self.index.close()

    def _build(self) -> None:
        try:
            self.index.sync(self._progress)
            self.index.computed("figures", lambda: run_figures(self.index))
        except Exception as error:  # noqa: BLE001  (pages report it)
            self.error = error

    def _progress(self, done: int, total: int) -> None:
        self.done, self.total = done, total
        if self._is_stopped:
            raise StoreError("the index was closed while it was being built")


class RunLibrary(AbstractContextManager["RunLibrary"]):
    """The runs in these journals, folders and trace files; journals that appear in a folder later
    are found, too.

    Raises ConfigError for a path that is none of them, StoreError for a file that cannot be read.
    `cache`: the folder of the indexes (default: the user's cache). Any thread may use it.
    """

    def __init__(self, paths: Iterable[Path], cache: Path | None = None) -> None:
        self._cache = cache
        self._lock = threading.RLock()
        self._builds: dict[str, IndexBuild] = {}
        self._entries: dict[str, RunEntry] = {}
        self._scanned_at = -SCAN_SECONDS
        self._scans: dict[Path, JournalScan] = {}
        self.problems: list[str] = []
        self._copies = TemporaryDirectory(prefix="redraft-view-")
        self._folders: list[Path] = []
        self._journals: list[tuple[Path, str]] = []
        try:
            for path in paths:
                self._add(path)
        except BaseException:
            self.close()
            raise

    def _add(self, path: Path) -> None:
        if path.is_dir():
            self._folders.append(path)
        elif path.name.endswith(JOURNAL) or is_sqlite_file(path):
            self._journals.append((path, str(path)))
        elif (beside := path.with_name(f"{path.name}{JOURNAL}")).is_file():
            self._journals.append((beside, str(beside)))
        elif path.is_file():
            copy = Path(self._copies.name) / f"{len(self._journals)}{JOURNAL}"
            copy_trace(read_trace(path), path, copy)
            self._journals.append((copy, str(path)))
        else:
            raise ConfigError(f"{str(path)!r} is no journal, folder or trace")

    def close(self) -> None:
        """Close all indexes, and remove the copies of traces."""
        for build in self._builds.values():
            build.close()
        self._copies.cleanup()

    def __exit__(self, *_: object) -> None:
        self.close()

    def entries(self) -> list[RunEntry]:
        """Return all runs, the latest first. Journals that cannot be read are left out, and are in
        `problems`.
        """
        with self._lock:
            if monotonic() - self._scanned_at >= SCAN_SECONDS:
                self._entries = {entry.key: entry for entry in self._scan()}
                self._scanned_at = monotonic()
            return sorted(
                self._entries.values(),
                key=lambda e: (e.info.updated_at, e.info.started_at, e.info.name),
                reverse=True,
            )

    def _scan(self) -> list[RunEntry]:
        in_folders = [
            (path, str(path))
            for folder in self._folders
            for path in sorted(folder.glob(f"*{JOURNAL}"))
            if path.is_file()
        ]
        paths = [*self._journals, *in_folders][:MAX_JOURNALS]
        self._scans = {
            path: scan_journal(path, label, self._scans.get(path)) for path, label in paths
        }
        self.problems = [scan.problem for scan in self._scans.values() if scan.problem]
        return [entry for scan in self._scans.values() for entry in scan.entries]

    def entry(self, key: str) -> RunEntry | None:
        """Return the run with this key; None if there is none."""
        self.entries()
        return self._entries.get(key)

    def build(self, entry: RunEntry) -> IndexBuild:
        """Return the index of a run, whose building starts with the first call. Raises
        StoreError.
        """
        with self._lock:
            build = self._builds.get(entry.key)
            if build and build.is_ready and (build.error or not build.index.is_current):
                self._builds.pop(entry.key).close()
                build = None
            if build is None:
                copies = Path(self._copies.name)
                folder = copies / "index" if entry.journal.parent == copies else self._cache
                build = self._builds[entry.key] = IndexBuild(entry, folder)
            return build


@dataclass(frozen=True, slots=True)
class JournalScan:
    """The runs in a journal as of a state of its files, or why they cannot be read."""

    state: object
    entries: tuple[RunEntry, ...] = ()
    problem: str = ""


def scan_journal(path: Path, label: str, known: JournalScan | None) -> JournalScan:
    """Return the runs in a journal; `known`: what was found before, which holds while the files are
    the same.
    """
    state = _file_state(path)
    if known and known.state == state:
        return known
    try:
        with Journal(path, read_only=True) as journal:
            return JournalScan(
                state,
                tuple(
                    RunEntry(_key(path, info.name), path, info, label) for info in journal.runs()
                ),
            )
    except StoreError as error:
        return JournalScan(state, problem=str(error))


def is_sqlite_file(path: Path) -> bool:
    """Whether a file begins as one of SQLite, as journals of any name do."""
    with suppress(OSError), open_regular(path) as file:
        return file.read(len(SQLITE_MARK)) == SQLITE_MARK
    return False


def _file_state(path: Path) -> object:
    """Return what changes whenever a journal is written: times and sizes of its file and of its
    write-ahead log.
    """
    states = []
    for file in (path, wal_path(path)):
        with suppress(OSError):
            status = file.stat()
            states.append((status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino))
    return states


def _key(path: Path, run: str) -> str:
    with suppress(OSError):
        path = path.resolve()
    return sha256(f"{path}\n{run}".encode("utf-8", "surrogatepass")).hexdigest()[:12]


def copy_trace(trace: Trace, source: Path, target: Path) -> None:
    """Write a journal with one run that has this trace as its only row."""
    run, id = run_name(source.name), trace.task.id or source.name
    with Journal(target) as journal:
        journal.update_run(run, invocation=1, last_full_invocation=1, output=source.name)
        journal.begin_row(run, id, 0, "", {}, dumps_text(trace.header()))
        journal.append_records(run, id, 0, [record_to_json(record) for record in trace.records])
        result = result_facts(trace)
        journal.finish_row(run, id, result.status, result.to_data())
