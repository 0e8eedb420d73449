"""What decides how a grader grades, as one short hash: when it changes, what was measured of the grader is stale.

It covers the kind of grader, its settings and rubric, the words of its prompts (`wording`), the graders it is made of and
the models that answer. Of your own code it covers the source of functions and classes with all that they hold: defaults,
closures, bound arguments, attributes. It does not cover what a grader is called, nor what code reaches by a global name.

Only what is the same in every run of a program is told: no addresses, no order of a set. A client, a lock or a file cannot
be told so. It is left out where a grader of your own holds it, since the source of its class is told; where a function
holds it, what the function does is unknown, and the hash is new every time.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from copyreg import dispatch_table
from dataclasses import dataclass, field, fields, is_dataclass, replace
from operator import itemgetter
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, TypeAlias
from uuid import uuid4

from ..protocols import Model

OURS = "redraft"  # what its classes do is told by `wording` and their fields
DEEPEST = 40  # parts within parts
OF_A_CLASS = (FunctionType, bool, int, float, str, Mapping, list, tuple, set, frozenset)
CACHED = type(functools.cache(hash))
AGAIN = "itself"  # stands for what holds itself

IdentityOf: TypeAlias = Callable[[Any], str | None]
Named: TypeAlias = Iterable[tuple[str, Any]]


def fingerprint(grader: Any, identity_of: IdentityOf) -> str:
    """16 hex digits. `identity_of(model)` is the identity of a model that a grader names, of the judge for None."""
    try:
        return Telling(identity_of).of(grader)[:16]
    except Untold:
        return uuid4().hex[:16]


class Untold(Exception):
    """A value that cannot be told so that another run tells it alike."""


@dataclass(frozen=True)
class Telling:
    """A hash for every value, made of the hashes of its parts; `told` are those so far, with what they are of.

    `strict`: a function holds the value, so all of it counts. `unordered`: a set does, so that where a circle was
    entered is chance.
    """

    identity_of: IdentityOf
    strict: bool = False
    unordered: bool = False
    depth: int = 0
    told: dict[tuple[int, bool], tuple[Any, str | None]] = field(default_factory=dict)

    def of(self, value: Any) -> str:
        """The hash of a value. Raises Untold."""
        if value is None or isinstance(value, bool | int | float | str):
            return hashed([type(value).__name__, value])
        place = id(value), self.strict
        if place not in self.told:
            self.told[place] = value, AGAIN  # the value is kept, so that its id is not given to another
            self.told[place] = value, replace(self, depth=self.depth + 1).hash_of(value)
        said = self.told[place][1]
        if said is None or (said is AGAIN and self.unordered):
            raise Untold
        return said

    def hash_of(self, value: Any) -> str | None:
        """The hash of a value that is not told yet; None for what cannot be told."""
        try:
            return None if self.depth > DEEPEST else hashed(self._tell(value))
        except Untold:
            return None

    def _tell(self, value: Any) -> list[Any]:
        match value:
            case bytes() | bytearray():
                return ["bytes", value.hex()]
            case Mapping():
                return ["mapping", *sorted([self.of(k), self.of(v)] for k, v in value.items())]
            case list() | tuple():
                return ["list", *map(self.of, value)]
            case set() | frozenset():
                return ["set", *sorted(map(replace(self, unordered=True).of, value))]
            case type():
                return self._class(value)
            case ModuleType():
                return ["module", value.__name__]
        return self._tell_code(value)

    def _tell_code(self, value: Any) -> list[Any]:
        match value:
            case CodeType():
                return ["code", value.co_code.hex(), self.of(value.co_consts), self.of(value.co_names)]
            case FunctionType():
                return ["function", self._source(value.__code__), *self._all_of(_held_by(value))]
            case functools.partial():
                return ["partial", *self._all_of({"of": value.func, "args": value.args, "keywords": value.keywords})]
            case _ if isinstance(value, CACHED):
                return ["cached", self.of(value.__wrapped__)]
            case MethodType():
                return ["method", self.of(value.__func__), *self._instance(value.__self__, lenient=not self.strict)]
            case BuiltinFunctionType():
                return ["builtin", value.__qualname__, self.of(value.__self__)]
        return self._instance(value)

    def _source(self, code: CodeType) -> list[Any]:
        """The source, and where in it a lambda ends: two may share a line. Where there is no source, the code itself."""
        try:
            source = inspect.getsource(code)
        except (OSError, TypeError):
            return [self.of(code)]
        ends = ((line or 0, column or 0) for _, line, _, column in code.co_positions())
        return [source, max(ends)[1] if code.co_name == "<lambda>" else 0]

    def _all_of(self, held: Mapping[str, Any]) -> list[list[str]]:
        """What code holds."""
        return list(replace(self, strict=True).parts(held.items(), all_count=True))

    def parts(self, held: Named, *, all_count: bool) -> Iterator[list[str]]:
        """Each by its name. What cannot be told is left out or, where all count, something new every time."""
        for name, value in held:
            try:
                yield [name, self.of(value)]
            except Untold:
                if all_count:
                    yield [name, uuid4().hex]

    def _class(self, given: type) -> list[Any]:
        """The source of a class and of those it is made from, as far as they are foreign, and what their attributes hold."""
        foreign = [cls for cls in given.__mro__ if not _is_known(cls)]
        return [_kind(given), *([_class_source(cls), *self.parts(_of_class(cls), all_count=False)] for cls in foreign)]

    def _instance(self, value: Any, *, lenient: bool = False) -> list[Any]:
        kind = type(value)
        if _is_ours(kind) and isinstance(getattr(value, "spec", None), str):
            return [_kind(kind), value.spec]
        if isinstance(value, Model):
            return ["model", self.of(value.identity)]
        if _grades(value):
            model = self.identity_of(getattr(value, "model", None)) if _asks(value) else None
            return [*self._holder(value), self.of(getattr(value, "wording", "")), model]
        if lenient or (not self.strict and (is_dataclass(value) or _is_called(kind))):
            return self._holder(value)
        return [self.of(kind), *self._copied(value)]

    def _holder(self, value: Any) -> list[Any]:
        """A grader, or what stands for one: its class and its attributes."""
        return [self.of(type(value)), *self.parts(_attributes(value), all_count=_is_ours(type(value)))]

    def _copied(self, value: Any) -> list[Any]:
        """Any other object: what a copy would be made from."""
        way = _way_to_copy(value)
        if isinstance(way, str):
            return [way]
        make, args, state, items, pairs = (*way, None, None, None)[:5]
        held = dict(_attributes(value)) if _package(make) == "copyreg" else state
        return [_kind(make), *map(self.of, (args, held, list(items or ()), list(pairs or ())))]


def hashed(said: Any) -> str:
    """64 hex digits for plain data."""
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()


def _held_by(function: FunctionType) -> dict[str, Any]:
    defaults = [function.__defaults__, function.__kwdefaults__]
    return {"defaults": defaults, "attributes": vars(function), "closure": [*map(_content, function.__closure__ or ())]}


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None  # nothing yet


def _way_to_copy(value: Any) -> Any:
    """What the protocol of `copy` says. Raises Untold for what cannot be copied, such as locks and open files."""
    try:
        reduce = dispatch_table.get(type(value))
        return reduce(value) if reduce else value.__reduce_ex__(2)
    except Exception as error:  # foreign code says in its own way that it cannot
        raise Untold from error


def _attributes(value: Any) -> Named:
    """What an object holds by name, in its `__dict__` and its slots."""
    state: Any = object.__getstate__(value)
    held, slots = state if isinstance(state, tuple) else (state, None)
    apart = _apart(value)
    return [
        (name, part) for name, part in sorted({**(held or {}), **(slots or {})}.items(), key=itemgetter(0)) if name not in apart
    ]


def _apart(value: Any) -> set[str]:
    """The attributes that are computed, count for nothing, or are told elsewhere."""
    computed = {n for cls in type(value).__mro__ for n, held in vars(cls).items() if isinstance(held, functools.cached_property)}
    unequal = {f.name for f in fields(value) if not f.compare} if is_dataclass(value) else set()
    return computed | unequal | ({"name"} if _grades(value) else set()) | ({"model"} if _asks(value) else set())


def _grades(value: Any) -> bool:
    return hasattr(value, "grade") or hasattr(value, "compare")


def _asks(value: Any) -> bool:
    return _grades(value) and not getattr(value, "free", False)


def _is_called(kind: type) -> bool:
    """Whether its objects are called as functions are, by code whose source is told."""
    return not _is_known(kind) and isinstance(getattr(kind, "__call__", None), FunctionType)  # noqa: B004


def _of_class(cls: type) -> Named:
    """The functions and the plain data among the attributes of a class."""
    for name, held in sorted(vars(cls).items(), key=itemgetter(0)):
        told = _unwrapped(held)
        if isinstance(told, OF_A_CLASS) and (not name.startswith("__") or name == "__call__"):
            yield name, told


def _unwrapped(held: Any) -> Any:
    """The function in a property, a class method, a static method or a cache."""
    ways = (getattr(held, way, None) for way in ("fget", "__func__", "func", "__wrapped__"))
    return next((found for found in ways if isinstance(found, FunctionType)), held)


def _class_source(cls: type) -> str:
    try:
        return inspect.getsource(cls)
    except (OSError, TypeError):
        return ""


def _kind(made: Any) -> str:
    """What a class or a function is called; where it is foreign its source tells it, wherever it stands."""
    return f"{made.__module__}.{made.__qualname__}" if _is_known(made) else str(getattr(made, "__qualname__", ""))


def _is_known(made: Any) -> bool:
    return _is_ours(made) or _package(made) in sys.stdlib_module_names


def _is_ours(made: Any) -> bool:
    return _package(made) == OURS


def _package(made: Any) -> str:
    return str(getattr(made, "__module__", "")).partition(".")[0]
