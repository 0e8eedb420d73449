"""Finds the runs of `redraft batch` in journals."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import ConfigError, StoreError
from ..runs.config import run_name
from ..storage.journal import Journal, RunInfo
from . import output

SUFFIX = ".journal"


@dataclass(frozen=True)
class StoredRun:
    """A run, and the journal that contains it."""

    path: Path
    note: RunInfo

    def as_data(self) -> dict[str, Any]:
        return {"journal": str(self.path), **asdict(self.note)}

    def check_output(self, path: str) -> None:
        """Raises ConfigError for an output that is the journal itself, whatever may be overwritten."""
        if Path(path).exists() and Path(path).samefile(self.path):
            raise ConfigError(f"--output: {path} is the journal itself; name another file")


def journal_paths(journal: str | None) -> list[Path]:
    """Return the journal that was named, or those of this folder."""
    return [Path(journal)] if journal else sorted(path for path in Path().glob(f"*{SUFFIX}") if path.is_file())


def read_runs(paths: list[Path], *, strict: bool = True) -> list[StoredRun]:
    """Return the runs in some journals, the latest last.

    A journal that cannot be read is reported in a warning; with `strict`, StoreError is raised.
    """
    runs: list[StoredRun] = []
    for path in paths:
        try:
            with Journal(path, read_only=True) as journal:
                runs += [StoredRun(path, note) for note in journal.runs()]
        except StoreError as error:
            if strict:
                raise
            output.warning(str(error))
    return sorted(runs, key=lambda run: (run.note.updated_at, run.note.started_at))


def find_run(name: str, journal: str | None) -> StoredRun:
    """Return the run of that name, or of the output at that path. Raises ConfigError unless there is exactly one."""
    beside = Path(f"{name}{SUFFIX}")
    paths = [beside] if not journal and beside.is_file() else journal_paths(journal)
    runs = read_runs(paths, strict=bool(journal))
    matches = [run for run in runs if run.note.name in {name, run_name(Path(name).name)}]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise ConfigError(f"there are {len(matches)} runs {name!r}; give --journal: {', '.join(str(run.path) for run in matches)}")
    raise ConfigError(f"there is no run {name!r}; {describe_runs(runs, paths)}")


def describe_runs(runs: list[StoredRun], paths: list[Path]) -> str:
    """Name the runs that exist; if there are none, name the places that were searched."""
    if runs:
        return f"there are {', '.join(dict.fromkeys(repr(run.note.name) for run in runs))}"
    return f"looked in {', '.join(map(str, paths))}" if paths else f"no *{SUFFIX} in this folder: give --journal FILE"
