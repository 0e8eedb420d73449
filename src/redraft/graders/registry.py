"""Every grader that has a name: what it is, what it reads, whether it costs calls. Nothing is loaded until it is used.

The names come from four places: the rubric files in `gallery/`, the judges and the computed graders listed in code,
the kinds of requirements, and other packages' entry points in the group `redraft.graders`. Those take no name that stands
in one of the other places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal, TypeAlias

from .. import checks
from ..errors import ConfigError
from ..requirements import KINDS, parse
from .requirement import RequirementGrader

Mode: TypeAlias = Literal["pointwise", "pairwise", "listwise", "requirement", "code", "function"]
ENTRY_POINT_GROUP = "redraft.graders"


@dataclass(frozen=True, slots=True)
class GraderEntry:
    """A grader with a name, and what people must know to choose it.

    `make` makes the grader from what stands after the colon in "name:argument" ("" if nothing does); it raises
    ConfigError for an argument it cannot take. `reads` are the fields of the task that it looks at, `asks` says whether
    it costs model calls, `example` how it is written on a command line.
    """

    name: str
    mode: Mode
    about: str
    make: Callable[[str], Any]
    task_fields: tuple[str, ...] = ()
    calls_model: bool = False
    example: str = ""
    origin: str = "redraft"


def no_argument(name: str, make: Callable[[], Any]) -> Callable[[str], Any]:
    """A maker for graders that take no argument."""

    def make_grader(argument: str) -> Any:
        if argument:
            raise ConfigError(f"grader {name!r} takes nothing after a colon, got {argument!r}")
        return make()

    return make_grader


def entries() -> Iterator[GraderEntry]:
    """All of them: judges, computed graders, requirements, then those of other packages, which take no name of ours."""
    taken = set()
    for entry in _builtin_entries():
        taken.add(entry.name)
        yield entry
    yield from (_entry_point_entry(name, points) for name, points in entry_point_graders().items() if name not in taken)


def _builtin_entries() -> Iterator[GraderEntry]:
    from .computed import COMPUTED_GRADERS
    from .judges import JUDGES, gallery_entries

    yield from JUDGES
    yield from gallery_entries()
    yield from COMPUTED_GRADERS
    for name, kind in KINDS.items():
        yield GraderEntry(name, "requirement", kind.help, _requirement_factory(name), example=kind.example)


def find_entry(name: str, spec: str = "") -> GraderEntry:
    """The entry of a name, which stood in what was `given`. Raises ConfigError with the nearest names."""
    checks.text("the name of a grader", name)
    known: dict[str, GraderEntry] = {}
    for entry in entries():
        known.setdefault(entry.name, entry)
        if entry.name == name:
            return entry
    raise ConfigError(checks.unknown_name_message("grader", name, known, "redraft graders", full_value=spec))


def grader_from_spec(spec: str) -> Any:
    """The grader that "name" or "name:argument" means. Raises ConfigError."""
    name, _, argument = spec.partition(":")
    if name in KINDS:
        return RequirementGrader(parse(spec))
    return find_entry(name, spec).make(argument)


def entry_point_graders() -> dict[str, list[EntryPoint]]:
    """The entry points of other packages by name: of one name several, where more than one package offers it."""
    named: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=ENTRY_POINT_GROUP):
        named.setdefault(point.name, []).append(point)
    return named


def _entry_point_entry(name: str, points: list[EntryPoint]) -> GraderEntry:
    """What other packages offer under a name. Where they are several, none of them is taken: making it raises ConfigError."""
    origins = [f"{point.dist.name} {point.dist.version}" if point.dist else "another package" for point in points]
    if len(points) == 1:
        package = points[0].dist.name if points[0].dist else origins[0]
        return GraderEntry(
            name,
            "function",
            f"from {package}: {points[0].value}",
            _entry_point_factory(points[0], origins[0]),
            calls_model=True,
            origin=package,
        )
    offers = " and ".join(sorted(f"{origin} ({point.value})" for origin, point in zip(origins, points, strict=True)))
    return GraderEntry(
        name,
        "function",
        f"cannot be used: offered by {offers}",
        _ambiguous_factory(name, offers),
        calls_model=True,
        origin="several",
    )


def _ambiguous_factory(name: str, offers: str) -> Callable[[str], Any]:
    def refuse(_argument: str) -> Any:
        raise ConfigError(
            f"grader {name!r} is offered by {offers}, and which is meant cannot be told; "
            "uninstall one, or use its grader from Python"
        )

    return refuse


def _entry_point_factory(point: EntryPoint, package: str) -> Callable[[str], Any]:
    """Loads what a package offers when it is asked for: a grader, a function that grades, or a class of graders.

    A class is called with the argument if there is one, else with nothing; nothing else takes an argument.
    """

    def load(argument: str) -> Any:
        from .names import as_grader

        try:
            found = point.load()
            if isinstance(found, type):
                return as_grader(found(argument) if argument else found())
            grader = as_grader(found)
        except (Exception, SystemExit) as error:  # whatever another package does when it is imported
            why = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            raise ConfigError(f"grader {point.name!r} of {package} ({point.value}) cannot be loaded: {why}") from error
        return no_argument(point.name, lambda: grader)(argument)

    return load


def _requirement_factory(name: str) -> Callable[[str], Any]:
    return lambda argument: RequirementGrader(parse(f"{name}:{argument}" if argument else name))
