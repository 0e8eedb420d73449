"""The registry of graders with a name: what each is, what it reads, whether it makes model calls.

The names come from `catalog` (judges, rubric files in `gallery/`, computed graders), from the kinds
of requirements, and from other packages' entry points in the group `redraft.graders`. An entry
point never replaces one of Redraft's names. Listing the entries loads no grader. Names that are
none of these may come from other libraries (`aliases`).

A name may be foreign: someone chose it who may choose no file, no code and no host, such as a
client of a server, or an agent with a tool. Then it stands for a requirement without a file, a
judge by a rubric of the gallery, or a grader that only computes (`foreign_grader`). Whoever runs
the server chooses all others.

The argument of a judge has options, "RUBRIC,OPTION=VALUE,..." (`split_options`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import PurePath
from re import fullmatch
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ..base import checks
from ..errors import ConfigError
from ..protocols import Comparer, Grader, Requirement
from ..requirements import kinds, parse
from .base import FunctionGrader, RequirementGrader
from .rubric import aliased_rubric, is_gallery_rubric

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Mode: TypeAlias = Literal["pointwise", "pairwise", "listwise", "requirement", "code", "function"]
ENTRY_POINT_GROUP = "redraft.graders"
RUBRIC_JUDGES = frozenset({"judge", "ranker", "pairwise"})  # graders whose argument is a rubric
FILE_SUFFIXES = (".toml", ".json", ".yaml", ".yml", ".md", ".txt")  # of rubrics and questions
OWN = "redraft"  # the origin of Redraft's own graders
MAX_FOREIGN_SPEC = 2000  # characters
MAX_VOTERS = 9  # graders of a foreign jury
# what else may cost more is for whoever runs the program to choose
FOREIGN_OPTIONS = ("scoring", "criteria_mode")


@dataclass(frozen=True, slots=True)
class GraderEntry:
    """A grader with a name, and what a user needs to know to choose it.

    `make` returns the grader for the argument in "name:argument" ("" without one), or raises
    ConfigError. `task_fields` are the fields of the task that the grader reads, `calls_model` says
    whether it calls the judge's model, `calls_server` whether it calls a server of its own,
    `runs_programs` whether it runs the code of an answer, or a program that checks it, and
    `example` shows how it is written on the command line.
    """

    name: str
    mode: Mode
    about: str
    make: Callable[[str], Any]
    task_fields: tuple[str, ...] = ()
    calls_model: bool = False
    example: str = ""
    origin: str = OWN
    calls_server: bool = False
    runs_programs: bool = False

    @property
    def calls(self) -> str:
        """What it calls, in words; "" if it only computes."""
        return "a model" if self.calls_model else "a server" if self.calls_server else ""


def check_no_argument(name: str, argument: str) -> None:
    """Raise ConfigError for an argument of a grader that takes none."""
    if argument:
        raise ConfigError(f"grader {name!r} takes nothing after a colon, got {argument!r}")


def entries() -> Iterator[GraderEntry]:
    """Yield all entries: judges, computed graders, requirements, then those of other packages under
    names not yet in use.
    """
    builtin_names = set()
    for entry in _builtin_entries():
        builtin_names.add(entry.name)
        yield entry
    for name, points in entry_point_graders().items():
        if name not in builtin_names:
            yield _entry_point_entry(name, points)


def _builtin_entries() -> Iterator[GraderEntry]:
    # it imports this module; few runs look up a name
    yield from import_module(".catalog", __package__).catalog_entries()
    for name, kind in kinds().items():
        yield GraderEntry(
            name, "requirement", kind.help, _requirement_factory(name), example=kind.example
        )


REMOVED = {  # names that Redraft 0.2 had, and what to use instead
    **{f"{name}_on_topic": repr(name) for name in ("bleu", "chrf", "fuzzy", "rouge")},
    "speed": "'tests' with `cpu_seconds`, or a function of your own that measures the time",
}


def find_entry(name: str, spec: str = "") -> GraderEntry:
    """Return the entry with that name. Raises ConfigError with the nearest names; `spec` is the
    whole value to quote.
    """
    checks.text("the name of a grader", name)
    known: dict[str, GraderEntry] = {}
    for entry in entries():
        known.setdefault(entry.name, entry)
        if entry.name == name:
            return entry
    if name in REMOVED:
        raise ConfigError(f"the grader {name!r} was removed: use {REMOVED[name]}")
    raise ConfigError(
        checks.unknown_name_message("grader", name, known, "redraft graders", full_value=spec)
    )


def grader_from_spec(spec: str) -> Any:
    """Return the grader that "name" or "name:argument" stands for. Raises ConfigError."""
    if spec.partition(":")[0] in kinds():
        return RequirementGrader(parse(spec))
    entry, argument = resolve_spec(spec)
    return entry.make(argument)


def resolve_spec(spec: str) -> tuple[GraderEntry, str]:
    """Return the entry and the argument that "name" or "name:argument" stands for.

    The name may be another library's, and so may the rubric that a judge, a ranker or a comparer of
    pairs goes by.

    Raises ConfigError.
    """
    name, _, argument = spec.partition(":")
    if not any(entry.name == name for entry in entries()):
        from .aliases import aliased_spec  # a long table, and few names need it

        name, _, argument = (aliased_spec(name, argument) or spec).partition(":")
    if name in RUBRIC_JUDGES:
        argument = aliased_rubric(argument) or argument
    return find_entry(name, spec), argument


def as_grader(value: Any) -> Grader | Comparer:
    """Return the grader for a name, a requirement's spec, a requirement, a function, or a grader.
    Raises ConfigError.
    """
    if isinstance(value, str):
        grader: Grader | Comparer = grader_from_spec(value)
        return grader
    if isinstance(value, type):
        raise ConfigError(f"a grader is an instance: write {value.__name__}(...), not the class")
    if isinstance(value, Grader | Comparer):
        return value
    if isinstance(value, Requirement):
        return RequirementGrader(value)
    if callable(value):
        return FunctionGrader(value)
    raise ConfigError(
        "a grader is a name, a function, a requirement or has a `grade` method, got "
        f"{checks.format_value(value)}"
    )


def split_options(argument: str) -> tuple[str, list[str]]:
    """Return what is no option in the argument of a judge, and the options. The name of a file may
    hold an equals sign, a value has no comma.
    """
    parts = [part.strip() for part in argument.split(",")]
    options = [
        part
        for part in parts
        if fullmatch(r"[\w-]+(\.[\w-]+)*\s*=.*", part)
        and PurePath(part).suffix.lower() not in FILE_SUFFIXES
    ]
    return ",".join(part for part in parts if part not in options), options


def option_key(option: str) -> str:
    """Return the name of an option, "OPTION=VALUE"."""
    return option.partition("=")[0].strip()


# ---- foreign names


def foreign_grader(spec: str, task_fields: Collection[str] | None = None) -> Any:
    """Return the grader that a foreign spec names.

    Args:
        spec: "name" or "name:argument".
        task_fields: What the tasks have; a grader that computes from other fields is refused. None:
            any.

    Raises:
        ConfigError: There is no such grader, or it reads a file, runs a program or calls a server.
    """
    checks.text("a grader", spec)
    if len(spec) > MAX_FOREIGN_SPEC:
        raise _refusal(spec, f"has more than {MAX_FOREIGN_SPEC} characters")
    if spec.partition(":")[0] in kinds():
        return RequirementGrader(parse(spec, files=False))
    entry, argument = resolve_spec(spec)
    if why := _entry_refusal(entry):
        raise _refusal(spec, why)
    missing = set(() if task_fields is None else entry.task_fields) - set(task_fields or ())
    if missing and not entry.calls_model:  # a judge does without
        raise ConfigError(
            f"grader {checks.format_value(spec)} computes from the "
            f"{' and '.join(sorted(missing))}, which no task has here"
        )
    if entry.name == "jury":
        _check_voters(spec, argument, task_fields)
    elif entry.calls_model and (why := _argument_refusal(entry.name, argument)):
        raise _refusal(spec, why)
    return entry.make(argument)


def _check_voters(spec: str, argument: str, task_fields: Collection[str] | None) -> None:
    """Raise ConfigError for a jury with too many members, or with one that is refused."""
    voters = [part.strip() for part in argument.split(",") if part.strip()]
    if len(voters) > MAX_VOTERS:
        raise _refusal(spec, f"has more than {MAX_VOTERS} members")
    for voter in voters:
        foreign_grader(voter, task_fields)


def _refusal(spec: str, why: str) -> ConfigError:
    return ConfigError(f"grader {checks.format_value(spec)} {why}, which is not allowed here")


def _entry_refusal(entry: GraderEntry) -> str:
    """Return why a grader is refused whatever its argument; "" if it is not."""
    if entry.origin != OWN:
        return f"runs code of {entry.origin}"
    if entry.calls_server:
        return "calls a server of its own"
    return "runs programs" if entry.runs_programs else ""


def _argument_refusal(name: str, argument: str) -> str:
    """Return why the argument of a judge is refused: it names a file, or has parameters of the
    judge; "" if it is not.
    """
    named, options = split_options(argument)
    if chosen := [key for key in map(option_key, options) if key not in FOREIGN_OPTIONS]:
        return f"sets {checks.format_value(chosen[0])} of the judge"
    if name in {"checklist", "trained"} and named:
        return "would read a file"
    is_rubric = not named or is_gallery_rubric(named) or aliased_rubric(named)
    if name in RUBRIC_JUDGES and not is_rubric:
        return (
            f"names {checks.format_value(named)}, a file and no rubric of the gallery (see "
            "`redraft graders`)"
        )
    return ""


# ---- other packages


def entry_point_graders() -> dict[str, list[EntryPoint]]:
    """Return the entry points of other packages by name; several for a name that more than one
    package uses.
    """
    # 8 ms, and few runs use a grader of another package
    from importlib.metadata import entry_points

    points_by_name: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=ENTRY_POINT_GROUP):
        points_by_name.setdefault(point.name, []).append(point)
    return points_by_name


def _entry_point_entry(name: str, points: list[EntryPoint]) -> GraderEntry:
    """Return the entry for a name that other packages use. If several use it, making the grader
    raises ConfigError.
    """
    origins = [
        f"{point.dist.name} {point.dist.version}" if point.dist else "another package"
        for point in points
    ]
    if len(points) == 1:
        package = points[0].dist.name if points[0].dist else origins[0]
        about, make = (
            f"from {package}: {points[0].value}",
            _entry_point_factory(points[0], origins[0]),
        )
        return GraderEntry(name, "function", about, make, calls_model=True, origin=package)
    offers = " and ".join(
        sorted(f"{origin} ({point.value})" for origin, point in zip(origins, points, strict=True))
    )

    def refuse(_argument: str) -> Any:
        raise ConfigError(
            f"grader {name!r} is ambiguous: {offers} define it; uninstall one, or use its grader "
            "from Python"
        )

    return GraderEntry(
        name,
        "function",
        f"ambiguous: defined by {offers}",
        refuse,
        calls_model=True,
        origin="several",
    )


def _entry_point_factory(point: EntryPoint, package: str) -> Callable[[str], Any]:
    """Return a `make` that loads a package's grader, function or class of graders when it is
    called.

    A class is called with the argument, if there is one. Nothing else takes an argument.
    """

    def load(argument: str) -> Any:
        try:
            target = point.load()
            if isinstance(target, type):
                return as_grader(target(argument) if argument else target())
            grader = as_grader(target)
        except (Exception, SystemExit) as error:  # importing another package can raise anything
            reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            raise ConfigError(
                f"grader {point.name!r} of {package} ({point.value}) cannot be loaded: {reason}"
            ) from error
        check_no_argument(point.name, argument)
        return grader

    return load


def _requirement_factory(name: str) -> Callable[[str], Any]:
    return lambda argument: RequirementGrader(parse(f"{name}:{argument}" if argument else name))
