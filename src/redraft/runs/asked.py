"""What a run was asked to do, checked before anything is read."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from io import BufferedReader
from pathlib import Path
from typing import Any, Self, get_args

from .. import checks
from ..errors import ConfigError
from ..options import Options
from ..plans import Plan
from ..plans.self_refine import BestOfN
from ..storage.schema import Durability
from ..storage.secure_files import open_regular
from ..tables.columns import TaskColumns
from ..tables.writers import output_suffix
from .entries import ON_DUPLICATE
from .rows import Came

MODES = ("refine", "grade", "best")
RETRY = ("failed", "truncated")
ENGINES = ("local", "ray", "provider-batch")
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
STDOUT = "-"
JOURNAL = ".journal"  # what is put to the output's name for the journal
ERRORS = ".errors.jsonl"  # what is put to the output's name for the file of rows that cannot be read
MOST_ROWS = 10**15
HERE_ONLY = ("on_record", "on_step", "cache")


@dataclass(frozen=True)
class Limits:
    """How fast an endpoint may be asked.

    `start` calls in flight to begin with, never fewer than `floor`; up to the run's `max_in_flight` as far as the endpoint
    takes them. `rpm` and `tpm` are its calls and tokens a minute, where it has such limits. `outage`: seconds without any
    answer after which the run ends.
    """

    start: int = 16
    floor: int = 1
    rpm: float | None = None
    tpm: float | None = None
    outage: float = 3600.0


@dataclass(frozen=True)
class Asked:
    """Everything but models and graders; see `batch`. Raises ConfigError."""

    source: Any
    output: str | None
    mode: str = "refine"
    n: int = 4
    columns: TaskColumns = field(default_factory=TaskColumns)
    on_duplicate: str = "error"
    journal: Path = Path()
    name: str = ""
    retry: Collection[str] = ()
    ordered: bool = True
    errors: str = ""
    durability: Durability = "normal"
    limits: Limits = field(default_factory=Limits)
    limit: int | None = None
    engine: str = "local"
    shards: int | None = None
    ray_address: str | None = None
    poll: float | None = None
    learn: bool = True
    spreadsheet_safe: bool = False
    options: Options = field(default_factory=Options)

    @classmethod
    def of(cls, source: Any, output: Any, journal: Any = None, name: str | None = None, errors: Any = None, **asked: Any) -> Self:
        """With the names that follow from the output's: its journal, its errors, and the run."""
        for what, given in (("output", output), ("journal", journal), ("errors", errors)):
            if not (given is None or isinstance(given, str | Path)) or "\0" in str(given):
                raise checks.invalid_argument(what, "the path of a file or None", given)
        checks.text("name", name, optional=True, allow_blank=True)
        if "columns" in asked:
            asked["columns"] = columns_of(asked["columns"])
        to = None if output is None else str(output)
        stem = "redraft" if to is None or to == STDOUT else to
        return cls(
            source,
            to,
            journal=Path(journal or f"{stem}{JOURNAL}"),
            name=name or named_after(Path(stem).name),
            errors=str(errors or f"{stem}{ERRORS}"),
            **{key: value for key, value in asked.items() if value is not None},
        )

    def __post_init__(self) -> None:
        _one_of("mode", self.mode, MODES)
        _one_of("on_duplicate", self.on_duplicate, ON_DUPLICATE)
        _one_of("engine", self.engine, ENGINES)
        self._check_ray()
        self._check_poll()
        if not isinstance(self.learn, bool):
            raise ConfigError(f"learn must be True or False, got {self.learn!r}")
        if not isinstance(self.retry, list | tuple | set | frozenset):
            raise checks.invalid_argument("retry", f"a list out of {', '.join(RETRY)}", self.retry)
        self._check_spreadsheet_safe()
        for kind in self.retry:
            _one_of("retry", kind, RETRY)
        if not NAME.fullmatch(self.name):
            raise ConfigError(f"name: a run is called by up to 64 letters, digits, - and _, got {self.name!r}")
        checks.whole_number("limit", self.limit, 1, MOST_ROWS, optional=True)
        checks.one_of("durability", self.durability, get_args(Durability))
        if not isinstance(self.limits, Limits):
            raise checks.invalid_argument("limits", "Limits, such as Limits(rpm=60)", self.limits)
        if self.output not in {None, STDOUT}:
            output_suffix(Path(str(self.output)))
        if self.options.store is not None:
            raise ConfigError("store: a batch keeps its own journal, leave it out")
        if self.options.plan is not None and self.mode != "refine":
            raise ConfigError(f"mode {self.mode!r} has a plan of its own: leave out plan")
        if self.options.final_check and self.mode != "refine":
            raise ConfigError(f"mode {self.mode!r} has no use for final_check: leave it out")

    def _check_ray(self) -> None:
        most, options = self.options.max_in_flight, self.options
        if self.engine != "ray":
            if self.shards is not None or self.ray_address is not None:
                raise ConfigError(f"shards and ray_address go with engine 'ray', got engine {self.engine!r}")
            return
        if self.shards is not None and not (type(self.shards) is int and 1 <= self.shards <= most):
            raise ConfigError(f"shards must be a whole number from 1 to max_in_flight, which is {most}, got {self.shards!r}")
        if given := [name for name in HERE_ONLY if getattr(options, name) is not None]:
            raise ConfigError(f"{given[0]} is not possible with engine 'ray': rows are worked on in other processes")

    def _check_poll(self) -> None:
        if self.poll is None:
            return
        if self.engine != "provider-batch":
            raise ConfigError(f"poll goes with engine 'provider-batch', got engine {self.engine!r}")
        if isinstance(self.poll, bool) or not isinstance(self.poll, int | float) or not 0 < self.poll <= 3600:
            raise ConfigError(f"poll must be a number of seconds > 0, at most 3600, got {self.poll!r}")

    def _check_spreadsheet_safe(self) -> None:
        if not isinstance(self.spreadsheet_safe, bool):
            raise ConfigError(f"spreadsheet_safe must be True or False, got {self.spreadsheet_safe!r}")
        if self.spreadsheet_safe and not str(self.output).lower().endswith((".csv", ".tsv")):
            raise ConfigError(f"spreadsheet_safe goes with an output that ends in .csv or .tsv, got {self.output!r}")

    def redoes(self, came: Came) -> bool:
        """Whether a row that has ended is to be done again."""
        return (came.status == "failed" and "failed" in self.retry) or (came.truncated and "truncated" in self.retry)

    def check_files(self, known: Mapping[str, Any] | None, sources: Collection[Path]) -> None:
        """Raises ConfigError for an output or errors file that holds what this run did not write. `known`: what it noted."""
        files = {"output": self.output, "errors": self.errors}
        for what, name in files.items():
            if name is None or name == STDOUT:
                continue
            if Path(name).resolve() in sources:
                raise ConfigError(f"{what} {name!r} is one of the files that are read: name another")
            if known and what == "output" and known.get("output") not in {None, name}:
                raise ConfigError(
                    f"journal {str(self.journal)!r} has a run {self.name!r} already, which writes {known['output']!r}: give this "
                    "one another name (--name)"
                )
            if what == "errors" and self.has_strange_errors:
                raise ConfigError(f"errors {name!r} is no file, or a link out of its folder: remove it, or name another (--errors)")
            if what == "errors" and lists_errors(Path(name)):
                continue
            if (known or {}).get(what) != name and Path(name).is_file() and Path(name).stat().st_size:
                raise ConfigError(
                    f"{what} {name!r} is there already, and journal {str(self.journal)!r} has no run {self.name!r} that wrote it: "
                    "name another file, or remove this one"
                )

    @property
    def has_strange_errors(self) -> bool:
        """Whether no file, or a link to another folder, stands where the errors file goes that nobody named."""
        return self.errors == f"{self.output}{ERRORS}" and _is_strange(Path(self.errors))

    def _check_journal(self) -> None:
        if str(self.journal) == f"{self.output}{JOURNAL}" and _is_strange(self.journal):
            raise ConfigError(
                f"journal {str(self.journal)!r} is no file, or a link out of its folder: remove it, or name another (--journal)"
            )

    def check_places(self) -> None:
        """Raises ConfigError for an output or a journal in a folder that is not there, or cannot be written."""
        for what, name in {"output": self.output, "journal": str(self.journal)}.items():
            if name in {None, STDOUT}:
                continue
            place = Path(str(name))
            folder = place.absolute().parent
            if place.is_dir():
                raise ConfigError(f"{what} {name!r} is a folder: name a file")
            if not folder.is_dir():
                raise ConfigError(f"{what} {name!r} cannot be written: there is no folder {str(folder)!r}")
            if not place.exists() and not os.access(folder, os.W_OK):
                raise ConfigError(f"{what} {name!r} cannot be written: folder {str(folder)!r} is not writable")
        self._check_journal()

    @property
    def plan(self) -> Plan | None:
        """The plan where it does not follow from the options."""
        return BestOfN(self.n, self.options.target_score) if self.mode == "best" else self.options.plan


def columns_of(given: Any) -> TaskColumns:
    """The columns that were stated: as `Columns`, or as a mapping of our names to the input's. Raises ConfigError."""
    if given is None or isinstance(given, TaskColumns):
        return given or TaskColumns()
    like = 'columns must be a mapping of our names to the input\'s, such as {"prompt": "question"}'
    if not isinstance(given, Mapping):
        raise ConfigError(f"{like}, got {checks.format_value(given)}")
    roles = [f.name for f in fields(TaskColumns)]
    for role, name in given.items():
        if role not in roles:
            turned = isinstance(name, str) and name in roles
            why = "the directions are reversed" if turned else checks.unknown_name_message("name", str(role), roles)
            raise ConfigError(f"{like}, got {checks.format_value(given)}: {why}")
        checks.text(f"columns: {role}", name, optional=True, allow_blank=True)
    return TaskColumns(**given)


def _one_of(name: str, value: Any, allowed: Collection[str]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")


def _is_strange(path: Path) -> bool:
    """Whether what stands at a path is no file, or a link to another folder."""
    target = path.resolve()
    return (target.exists() and not target.is_file()) or target.parent != path.parent.resolve()


def lists_errors(path: Path) -> bool:
    """Whether a file is a list of rows that could not be used, as a run writes it."""
    try:
        with BufferedReader(open_regular(path)) as file:
            first = json.loads(file.readline(2**20))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(first, dict) and first.keys() == {"place", "message"}


def named_after(file: str) -> str:
    """A run's name from that of a file."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", file).strip("-")[:64] or "run"
