"""The runs in journals, and finding one by its name or its output."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from ..base.text import pluralize
from ..errors import ConfigError, StoreError
from ..storage.journal import Journal, RunInfo, is_file_of_run, run_name
from ..storage.shard_merge import shard_journals
from .options import FileName
from .output import notice, warning

if TYPE_CHECKING:
    from ..runs import BatchReport

SUFFIX = ".journal"


@dataclass(frozen=True)
class StoredRun:
    """A run, and the journal that contains it."""

    path: Path
    info: RunInfo

    def as_data(self) -> dict[str, Any]:
        """Return plain data: the journal, the run and its metadata, with the report in its present
        form.
        """
        data = {"journal": str(self.path), **asdict(self.info)}
        try:
            if report := self.report:
                data["metadata"]["report"] = report.as_data()
        except StoreError as error:
            warning(f"its report is shown as it is: {error}")
        return data

    @property
    def report(self) -> BatchReport | None:
        """The last report of the run; None if it has none yet. Raises StoreError."""
        from ..runs import BatchReport

        data = self.info.metadata.get("report")
        try:
            return BatchReport.from_data(data) if data else None
        except StoreError as error:
            raise StoreError(f"{self.path}: run {self.info.display_name!r}: {error}") from error

    def writes(self, name: str) -> bool:
        """Whether this is the output of the run: the file of that path, or the one beside the
        journal.
        """
        output = self.info.metadata.get("output")
        return output is not None and is_file_of_run(output, name, self.path)

    def check_output(self, path: str) -> None:
        """Raise ConfigError if the output is the journal itself, which is never overwritten."""
        if Path(path).exists() and Path(path).samefile(self.path):
            raise ConfigError(f"--output: {path} is the journal itself; name another file")


class RunName(FileName):
    """The name of a run, or a file: the shell completes both."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        names: dict[str, None] = {}
        for path in journal_paths(ctx.params.get("journal")):
            with suppress(StoreError), Journal(path, read_only=True) as journal:
                names |= dict.fromkeys(run.display_name for run in journal.runs())
        runs = (CompletionItem(name) for name in names if name.startswith(incomplete))
        return [*super().shell_complete(ctx, param, incomplete), *runs]


RUN = RunName()


def journal_paths(journal: str | None) -> list[Path]:
    """Return the journal that was named, or those of this folder."""
    return (
        [Path(journal)]
        if journal
        else sorted(path for path in Path().glob(f"*{SUFFIX}") if path.is_file())
    )


def read_runs(paths: list[Path], *, strict: bool = True) -> list[StoredRun]:
    """Return the runs in some journals, the latest last.

    A journal that cannot be read is reported in a warning; with `strict`, StoreError is raised.
    """
    runs: list[StoredRun] = []
    for path in paths:
        try:
            with Journal(path, read_only=True) as journal:
                runs += [StoredRun(path, info) for info in journal.runs()]
            say_what_is_not_merged(path)
        except StoreError as error:
            if strict:
                raise
            warning(str(error))
    return sorted(runs, key=lambda run: (run.info.updated_at, run.info.started_at))


def say_what_is_not_merged(path: Path) -> None:
    """Say that journals of workers are beside a journal, if there are any."""
    if shards := shard_journals(path):
        notice(
            f"{path}: {pluralize(len(shards), 'journal')} of workers beside it will be merged into "
            "it at the end of the run, or by its next start; their rows are not shown before"
        )


def find_run(name: str, journal: str | None) -> StoredRun:
    """Return the run of that name, that which writes the output at that path, or the only one of
    that journal.

    Raises ConfigError unless there is exactly one, StoreError for a journal that was named and
    cannot be read.
    """
    own = Path(name) if name.endswith(SUFFIX) else Path(f"{name}{SUFFIX}")
    is_journal = not journal and own.is_file()
    paths = [own] if is_journal else journal_paths(journal)
    runs = read_runs(paths, strict=bool(journal) or is_journal)
    # the path of an output means no run in another folder that has the name of its file
    is_path = Path(name).name != name and not (journal or is_journal)
    names = set() if is_path else {name, run_name(Path(name).name)}
    matches = [run for run in runs if run.info.name in names]
    matches = matches or [run for run in runs if run.writes(name)] or (runs if is_journal else [])
    if len(matches) != 1:
        raise _choice_error(name, matches, runs, paths)
    return matches[0]


def _choice_error(
    name: str, matches: list[StoredRun], runs: list[StoredRun], paths: list[Path]
) -> ConfigError:
    """Return the error of a name that means no run, or several."""
    if not matches:
        return ConfigError(f"there is no run {name!r}; {describe_runs(runs, paths)}")
    journals = [str(run.path) for run in matches]
    if len(set(journals)) == len(matches):
        return ConfigError(
            f"there are {len(matches)} runs {name!r}; give --journal: {', '.join(journals)}"
        )
    return ConfigError(
        f"{name!r} does not mean one run; {describe_runs(matches, paths)}: name one, with "
        f"--journal {journals[0]}"
    )


def describe_runs(runs: list[StoredRun], paths: list[Path]) -> str:
    """Name the runs that exist; if there are none, name the places that were searched."""
    if runs:
        return f"there are {', '.join(dict.fromkeys(repr(run.info.display_name) for run in runs))}"
    return (
        f"looked in {', '.join(map(str, paths))}"
        if paths
        else f"no *{SUFFIX} in this folder: give --journal FILE"
    )
