"""The configuration of a run, checked before any data is read: `BatchConfig`."""

from __future__ import annotations

import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ..base import checks
from ..base.documents import open_regular
from ..errors import ConfigError
from ..graders.traits import report_hidden_tests
from ..plans import Plan
from ..plans.quality.priors import Priors
from ..plans.quality.result_facts import ResultFacts
from ..plans.self_refine import BestOfN
from ..session.options import Options
from ..settings import (
    CALLABLE,
    PYTHON_ONLY,
    BatchFields,
    EndpointLimits,
    ExecutionEngine,
    FilePath,
    Instance,
    Mode,
    OnDuplicate,
    OptionFields,
    Settings,
    check_settings,
    setting,
    settings_of,
)
from ..storage.journal import is_file_of_run, run_name
from ..storage.schema import Durability
from ..tables.columns import TaskColumns
from ..tables.writers import output_suffix
from .progress import BatchProgress
from .row_result import COLUMNS, HIDDEN, KEPT, PARSED, grader_columns

if TYPE_CHECKING:
    from ..session.panel import TaskPanel

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
STDOUT = "-"
JOURNAL = ".journal"  # suffix of the output's name for the journal
ERRORS = ".errors.jsonl"  # suffix of the output's name for the file of unusable rows
ONLY_IN_MODES: Mapping[str, tuple[Collection[Mode], str]] = {
    "plan": (["refine"], "has a plan of its own"),
    "refine_prompt": (["refine"], "refines nothing"),
    "draft_prompt": (["refine", "best"], "writes nothing"),
}
"""Settings of a refinement that not all modes have: which have them, and why others do not."""
PROCESSES_PER_CPU = 4
MAIN_IN_WORKER = "__redraft_worker_main__"  # the name of a script's module in a worker process


@dataclass(frozen=True, kw_only=True)
class BatchCallbacks:
    """Functions that `batch` calls while it runs."""

    on_progress: Callable[[BatchProgress], object] | None = setting(
        None,
        Instance("a function, or None", CALLABLE, may_be_class=True),
        "Called with the progress of the run, twice a second.",
        **PYTHON_ONLY,
    )
    say: Callable[[str], object] | None = setting(
        None,
        Instance("a function, or None", CALLABLE, may_be_class=True),
        "Called with a line of text when something happens to an endpoint.",
        **PYTHON_ONLY,
    )


@dataclass(frozen=True, kw_only=True)
class BatchConfig(BatchFields):
    """The settings of a run without its models and graders, with every default filled in. Raises
    ConfigError.

    They are declared in `redraft.settings`.
    """

    source: Any
    output: str | None
    columns: TaskColumns = field(default_factory=TaskColumns)
    journal: Path = Path()
    name: str = ""
    errors: str = ""
    limits: EndpointLimits = field(default_factory=EndpointLimits)
    options: Options = field(default_factory=Options)

    @classmethod
    def from_settings(cls, source: Any, output: Any, *, options: Options, **settings: Any) -> Self:
        """Create the configuration from the arguments of `batch`; None is replaced by the default.

        The default names of the journal, the errors file and the run are derived from the name of
        the output.
        """
        paths = {
            "output": output,
            "journal": settings.pop("journal", None),
            "errors": settings.pop("errors", None),
        }
        for what, path in paths.items():
            FilePath().check(what, path, optional=True)
        name = settings.pop("name", None)
        settings, notice = with_present_names(settings)
        if notice:
            warnings.warn(notice, FutureWarning, stacklevel=4)
        if "columns" in settings:
            settings["columns"] = columns_of(settings["columns"])
        destination = None if output is None else str(output)
        stem = "redraft" if destination is None or destination == STDOUT else destination
        return cls(
            source=source,
            output=destination,
            journal=Path(paths["journal"] or f"{stem}{JOURNAL}"),
            name=name or run_name(Path(stem).name),
            errors=str(paths["errors"] or f"{stem}{ERRORS}"),
            options=options,
            **{name: value for name, value in settings.items() if value is not None},
        )

    def __post_init__(self) -> None:
        check_settings(BatchFields, self)
        if not isinstance(self.limits, EndpointLimits):
            raise checks.invalid_argument(
                "limits", "EndpointLimits, such as EndpointLimits(rpm=60)", self.limits
            )
        if not NAME.fullmatch(self.name):
            raise ConfigError(f"name must be up to 64 letters, digits, - and _, got {self.name!r}")
        if self.output not in {None, STDOUT}:
            output_suffix(Path(str(self.output)))
        self._check_engine()
        if self.spreadsheet_safe and not str(self.output).lower().endswith((".csv", ".tsv")):
            raise ConfigError(
                f"spreadsheet_safe needs an output that ends in .csv or .tsv, got {self.output!r}"
            )
        if self.options.store is not None:
            raise ConfigError("store: a batch has its own journal; leave out store")
        if self.keep > 1 and self.mode != "best":
            raise ConfigError(f"keep needs mode 'best', got mode {self.mode!r}")
        if self.keep > self.n:
            raise ConfigError(
                f"keep must be a whole number from 1 to n, which is {self.n}, got {self.keep!r}"
            )
        for name, (modes, reason) in ONLY_IN_MODES.items():
            if getattr(self.options, name) not in (None, False) and self.mode not in modes:
                raise ConfigError(f"mode {self.mode!r} {reason}: leave out {name}")

    def _check_engine(self) -> None:
        """Raise ConfigError for a setting that does not fit the engine."""
        for name, info in settings_of(BatchFields).items():
            if info.engine not in {None, self.engine} and getattr(self, name) is not None:
                raise ConfigError(
                    f"{name} needs engine {info.engine!r}, got engine {self.engine!r}"
                )
        if self.pilot is not None and self.engine != "local":
            raise ConfigError(f"pilot needs engine 'local', got engine {self.engine!r}")
        if self.pilot is not None and self.ray:
            raise ConfigError("pilot is not possible with ray: leave out one of them")
        if self.has_workers:
            self._check_workers()

    def _check_workers(self) -> None:
        """Raise ConfigError for a setting that does not fit rows in other processes."""
        if self.ray is not None and checks.is_blank(self.ray):
            raise ConfigError(
                f"ray must be auto, local or HOST:PORT, got {checks.format_value(self.ray)}"
            )
        if self.engine != "local":
            name = "ray" if self.ray else "workers"
            raise ConfigError(f"{name} needs engine 'local', got engine {self.engine!r}")
        local = [n for n, info in settings_of(OptionFields).items() if not info.in_other_processes]
        if given := [name for name in local if getattr(self.options, name) is not None]:
            cause = "ray" if self.ray else f"workers={self.workers}"
            raise ConfigError(
                f"{given[0]} is not possible with {cause}: rows are processed in other processes"
            )
        if not self.ray:
            self._check_processes(self.workers or 1)

    @property
    def has_workers(self) -> bool:
        """Whether rows are processed in other processes than this one."""
        return self.ray is not None or (self.workers or 1) > 1

    def _check_processes(self, workers: int) -> None:
        """Raise ConfigError if a run cannot have several processes here, or not that many."""
        most = PROCESSES_PER_CPU * (os.cpu_count() or 1)
        if workers > most:
            raise ConfigError(
                f"workers must be a whole number from 1 to {most} on this machine, got {workers}"
            )
        if MAIN_IN_WORKER in sys.modules:
            raise ConfigError(
                "workers: each process runs this script again to find its functions, so put the "
                "call under "
                '`if __name__ == "__main__":`'
            )
        if os.name == "nt":
            raise ConfigError("several workers are not possible on Windows without ray")

    def redoes(self, result: ResultFacts) -> bool:
        """Return whether `retry` asks for a finished row to be redone."""
        return (result.status == "failed" and "failed" in self.retry) or (
            result.truncated and "truncated" in self.retry
        )

    def check_files(self, known: Mapping[str, Any] | None, sources: Collection[Path]) -> None:
        """Raise ConfigError for an output or errors file that this run did not write. `known`: the
        metadata of the run.
        """
        for what, name in (("output", self.output), ("errors", self.errors)):
            if name is None or name == STDOUT:
                continue
            if any(_is_same_file(source, name) for source in sources):
                raise ConfigError(f"{what} {name!r} is one of the input files: name another")
            earlier = (known or {}).get(what)
            is_own = earlier is not None and is_file_of_run(earlier, name, self.journal)
            if what == "output":
                self._check_output(name, earlier, is_own=is_own)
            else:
                self._check_errors(name, is_own=is_own)

    def _check_output(self, name: str, earlier: str | None, *, is_own: bool) -> None:
        if earlier is not None and not is_own:
            raise ConfigError(
                f"journal {str(self.journal)!r} already has a run {self.name!r}, which writes "
                f"{earlier!r}: give this run another name (--name)"
            )
        if not (is_own or self.overwrite):
            self._check_is_new("output", name, "replace it with overwrite (--overwrite)")

    def _check_errors(self, name: str, *, is_own: bool) -> None:
        if self.has_unsafe_errors_path:
            raise ConfigError(
                f"errors {name!r} is not a file, or a link out of its folder: remove it, or "
                "name another (--errors)"
            )
        if not (is_own or lists_errors(Path(name))):
            self._check_is_new("errors", name, "remove this one")

    def _check_is_new(self, what: str, name: str, advice: str) -> None:
        """Raise ConfigError for a file that exists and is not empty."""
        if Path(name).is_file() and Path(name).stat().st_size:
            raise ConfigError(
                f"{what} {name!r} already exists, and journal {str(self.journal)!r} has no "
                f"run {self.name!r} that wrote it: name another file, or {advice}"
            )

    @property
    def has_unsafe_errors_path(self) -> bool:
        """Whether the default errors file exists as something else than a file, or links to another
        folder.
        """
        return self.errors == f"{self.output}{ERRORS}" and _is_unsafe(Path(self.errors))

    def check_folders(self) -> None:
        """Raise ConfigError for a file of the run in a folder that does not exist or is not
        writable.
        """
        for what, name in {
            "output": self.output,
            "journal": str(self.journal),
            "errors": self.errors,
        }.items():
            if name in {None, "", STDOUT}:
                continue
            path = Path(str(name))
            folder = path.absolute().parent
            if path.is_dir():
                raise ConfigError(f"{what} {name!r} is a folder: name a file")
            if not folder.is_dir():
                raise ConfigError(
                    f"{what} {name!r} cannot be written: there is no folder {str(folder)!r}"
                )
            if not path.exists() and not os.access(folder, os.W_OK):
                raise ConfigError(
                    f"{what} {name!r} cannot be written: folder {str(folder)!r} is not writable"
                )
        if str(self.journal) == f"{self.output}{JOURNAL}" and _is_unsafe(self.journal):
            raise ConfigError(
                f"journal {str(self.journal)!r} is not a file, or a link out of its folder: "
                "remove it, or name another (--journal)"
            )

    @property
    def learns_online(self) -> bool:
        """Whether later rows start with priors learned from earlier ones, if the plan has
        priors.
        """
        return (
            self.learn
            and self.engine != "provider-batch"
            and self.plan is None
            and not isinstance(self.options.priors, Priors)
        )

    @property
    def plan(self) -> Plan | None:
        """The plan of mode "best", or the caller's own; None for the plan that the options
        describe.
        """
        if self.mode != "best":
            return self.options.plan
        return BestOfN(
            self.n,
            self.options.target_score,
            draft_prompt=self.options.prompts.draft,
            keep=self.keep,
        )

    def result_columns(self, common: TaskPanel) -> Mapping[str, type]:
        """Return the columns that the run adds to each row, with their types; `common` is the panel
        of its session.

        With a form of answer there is also `parsed`, a JSON value beside `best`; with `keep` the
        answers that are kept; in mode "grade" the score and the reason of each grader that all rows
        share; if one of the graders runs tests, the results of the hidden ones.
        """
        best, *others = COLUMNS
        answer = self.options.answer
        parsed = {} if answer is None else {PARSED: dict if answer.is_json else str}
        kept = {KEPT: str} if self.keep > 1 else {}
        hidden = (
            dict.fromkeys(HIDDEN, int) if report_hidden_tests(common.roles.traits.values()) else {}
        )
        pairs = grader_columns(common.panel).values() if self.mode == "grade" else ()
        grades = {
            name: kind for pair in pairs for name, kind in zip(pair, (float, str), strict=True)
        }
        return {
            best: COLUMNS[best],
            **parsed,
            **{name: COLUMNS[name] for name in others},
            **kept,
            **hidden,
            **grades,
        }


def with_present_names(
    settings: Mapping[str, Any], write: Callable[[str, Any], str] = "{}={!r}".format
) -> tuple[dict[str, Any], str]:
    """Return settings of a batch with their present names, and a line that says which were given by
    former ones; "" if none was. `write` spells a name with its value. Raises ConfigError for a
    setting that was given twice.
    """
    settings, former, present = dict(settings), dict[str, Any](), dict[str, Any]()
    if settings.get("engine") == "ray":
        former["engine"], settings["engine"] = "ray", "local"
        if settings.get("ray_address") is None:
            present["ray"] = settings.get("ray") or "local"
    for name, info in settings_of(BatchFields).items():
        value = settings.pop(name, None) if info.present_name else None
        if value is None or (name == "processes" and value == 1):  # the former default
            continue
        given = present.get(info.present_name, settings.get(info.present_name))
        if given is not None:
            raise ConfigError(
                f"{write(name, value)} is a former name of {info.present_name}, which is given, "
                "too: leave it out"
            )
        former[name], present[info.present_name] = value, value
    told = [", ".join(write(*item) for item in names.items()) for names in (former, present)]
    return settings | present, " is now ".join(filter(None, told)) if former else ""


def columns_of(given: Any) -> TaskColumns:
    """Return `columns` as `TaskColumns`; it may be one, or a mapping of roles to column names.
    Raises ConfigError.
    """
    if given is None or isinstance(given, TaskColumns):
        return given or TaskColumns()
    problem = (
        'columns must be a mapping of our names to the input\'s, such as {"prompt": "question"}'
    )
    if not isinstance(given, Mapping):
        raise ConfigError(f"{problem}, got {checks.format_value(given)}")
    roles = [f.name for f in fields(TaskColumns)]
    for role, name in given.items():
        if role not in roles:
            is_reversed = isinstance(name, str) and name in roles
            why = (
                "the directions are reversed"
                if is_reversed
                else checks.unknown_name_message("name", str(role), roles)
            )
            raise ConfigError(f"{problem}, got {checks.format_value(given)}: {why}")
        checks.text(f"columns: {role}", name, optional=True, allow_blank=True)
    return TaskColumns(**given)


def _is_unsafe(path: Path) -> bool:
    """Return whether a path exists as something else than a file, or links to another folder."""
    target = path.resolve()
    return (target.exists() and not target.is_file()) or target.parent != path.parent.resolve()


def _is_same_file(path: Path, other: str) -> bool:
    """Return whether two paths lead to one file; not if one leads to none, or to one that this
    process may not see.
    """
    try:
        return path.samefile(other)
    except OSError:
        return False


def lists_errors(path: Path) -> bool:
    """Return whether a file is a list of unusable rows, as a run writes it."""
    try:
        with BufferedReader(open_regular(path)) as file:
            first = json.loads(file.readline(2**20))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(first, dict) and first.keys() == {"location", "message"}


# The rest of this file is written by scripts/docs.py from `BatchFields` and `BatchCallbacks`.


class BatchSettings(Settings, total=False):
    """The keyword arguments of `batch` and `batch_sync`: these, and those of `refine`."""

    mode: Mode
    n: int
    keep: int
    limit: int | None
    pilot: int | None
    retry: Collection[str]
    on_duplicate: OnDuplicate
    columns: TaskColumns | Mapping[str, str] | None
    overwrite: bool
    spreadsheet_safe: bool
    ordered: bool
    errors: str | Path | None
    journal: str | Path | None
    name: str | None
    durability: Durability
    workers: int | None
    ray: str | None
    engine: ExecutionEngine
    processes: int | None
    shards: int | None
    ray_address: str | None
    poll: float | None
    learn: bool
    calibrate: bool
    limits: EndpointLimits | None
    on_progress: Callable[[BatchProgress], object] | None
    say: Callable[[str], object] | None
