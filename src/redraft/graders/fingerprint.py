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

OWN_PACKAGE = "redraft"  # what its classes do is told by `wording` and their fields
MAX_DEPTH = 40  # parts within parts
CLASS_ATTRIBUTE_TYPES = (FunctionType, bool, int, float, str, Mapping, list, tuple, set, frozenset)
CACHED_FUNCTION_TYPE = type(functools.cache(hash))
CYCLE_MARKER = "itself"  # stands for what holds itself

IdentityOf: TypeAlias = Callable[[Any], str | None]
NamedValues: TypeAlias = Iterable[tuple[str, Any]]


def grader_fingerprint(grader: Any, identity_of: IdentityOf) -> str:
    """16 hex digits. `identity_of(model)` is the identity of a model that a grader names, of the judge for None."""
    try:
        return Hasher(identity_of).digest(grader)[:16]
    except NotHashable:
        return uuid4().hex[:16]


class NotHashable(Exception):
    """A value that cannot be told so that another run tells it alike."""


@dataclass(frozen=True)
class Hasher:
    """A hash for every value, made of the hashes of its parts; `told` are those so far, with what they are of.

    `strict`: a function holds the value, so all of it counts. `unordered`: a set does, so that where a circle was
    entered is chance.
    """

    identity_of: IdentityOf
    strict: bool = False
    in_set: bool = False
    depth: int = 0
    digests: dict[tuple[int, bool], tuple[Any, str | None]] = field(default_factory=dict)

    def digest(self, value: Any) -> str:
        """The hash of a value. Raises Untold."""
        if value is None or isinstance(value, bool | int | float | str):
            return sha256_json([type(value).__name__, value])
        place = id(value), self.strict
        if place not in self.digests:
            self.digests[place] = value, CYCLE_MARKER  # the value is kept, so that its id is not given to another
            self.digests[place] = value, replace(self, depth=self.depth + 1).compute_digest(value)
        said = self.digests[place][1]
        if said is None or (said is CYCLE_MARKER and self.in_set):
            raise NotHashable
        return said

    def compute_digest(self, value: Any) -> str | None:
        """The hash of a value that is not told yet; None for what cannot be told."""
        try:
            return None if self.depth > MAX_DEPTH else sha256_json(self._components(value))
        except NotHashable:
            return None

    def _components(self, value: Any) -> list[Any]:
        match value:
            case bytes() | bytearray():
                return ["bytes", value.hex()]
            case Mapping():
                return ["mapping", *sorted([self.digest(k), self.digest(v)] for k, v in value.items())]
            case list() | tuple():
                return ["list", *map(self.digest, value)]
            case set() | frozenset():
                return ["set", *sorted(map(replace(self, in_set=True).digest, value))]
            case type():
                return self._class_components(value)
            case ModuleType():
                return ["module", value.__name__]
        return self._code_components(value)

    def _code_components(self, value: Any) -> list[Any]:
        match value:
            case CodeType():
                return ["code", value.co_code.hex(), self.digest(value.co_consts), self.digest(value.co_names)]
            case FunctionType():
                return ["function", self._source_components(value.__code__), *self._state_components(_function_state(value))]
            case functools.partial():
                return ["partial", *self._state_components({"of": value.func, "args": value.args, "keywords": value.keywords})]
            case _ if isinstance(value, CACHED_FUNCTION_TYPE):
                return ["cached", self.digest(value.__wrapped__)]
            case MethodType():
                return ["method", self.digest(value.__func__), *self._instance_components(value.__self__, lenient=not self.strict)]
            case BuiltinFunctionType():
                return ["builtin", value.__qualname__, self.digest(value.__self__)]
        return self._instance_components(value)

    def _source_components(self, code: CodeType) -> list[Any]:
        """The source, and where in it a lambda ends: two may share a line. Where there is no source, the code itself."""
        try:
            source = inspect.getsource(code)
        except (OSError, TypeError):
            return [self.digest(code)]
        ends = ((line or 0, column or 0) for _, line, _, column in code.co_positions())
        return [source, max(ends)[1] if code.co_name == "<lambda>" else 0]

    def _state_components(self, state: Mapping[str, Any]) -> list[list[str]]:
        """What code holds."""
        return list(replace(self, strict=True).item_digests(state.items(), required=True))

    def item_digests(self, items: NamedValues, *, required: bool) -> Iterator[list[str]]:
        """Each by its name. What cannot be told is left out or, where all count, something new every time."""
        for name, value in items:
            try:
                yield [name, self.digest(value)]
            except NotHashable:
                if required:
                    yield [name, uuid4().hex]

    def _class_components(self, target_class: type) -> list[Any]:
        """The source of a class and of those it is made from, as far as they are foreign, and what their attributes hold."""
        foreign = [cls for cls in target_class.__mro__ if not _is_library_code(cls)]
        return [
            _qualified_name(target_class),
            *([_class_source(cls), *self.item_digests(_class_attributes(cls), required=False)] for cls in foreign),
        ]

    def _instance_components(self, value: Any, *, lenient: bool = False) -> list[Any]:
        kind = type(value)
        if _is_own(kind) and isinstance(getattr(value, "spec", None), str):
            return [_qualified_name(kind), value.spec]
        if isinstance(value, Model):
            return ["model", self.digest(value.identity)]
        if _is_grader(value):
            model = self.identity_of(getattr(value, "model", None)) if _calls_model(value) else None
            return [*self._attribute_components(value), self.digest(getattr(value, "prompt_texts", "")), model]
        if lenient or (not self.strict and (is_dataclass(value) or _has_call_method(kind))):
            return self._attribute_components(value)
        return [self.digest(kind), *self._copy_components(value)]

    def _attribute_components(self, value: Any) -> list[Any]:
        """A grader, or what stands for one: its class and its attributes."""
        return [self.digest(type(value)), *self.item_digests(_attributes(value), required=_is_own(type(value)))]

    def _copy_components(self, value: Any) -> list[Any]:
        """Any other object: what a copy would be made from."""
        way = _reduce_value(value)
        if isinstance(way, str):
            return [way]
        make, args, state, items, pairs = (*way, None, None, None)[:5]
        held = dict(_attributes(value)) if _top_level_package(make) == "copyreg" else state
        return [_qualified_name(make), *map(self.digest, (args, held, list(items or ()), list(pairs or ())))]


def sha256_json(data: Any) -> str:
    """64 hex digits for plain data."""
    return hashlib.sha256(json.dumps(data).encode()).hexdigest()


def _function_state(function: FunctionType) -> dict[str, Any]:
    defaults = [function.__defaults__, function.__kwdefaults__]
    return {"defaults": defaults, "attributes": vars(function), "closure": [*map(_cell_contents, function.__closure__ or ())]}


def _cell_contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None  # nothing yet


def _reduce_value(value: Any) -> Any:
    """What the protocol of `copy` says. Raises Untold for what cannot be copied, such as locks and open files."""
    try:
        reduce = dispatch_table.get(type(value))
        return reduce(value) if reduce else value.__reduce_ex__(2)
    except Exception as error:  # foreign code says in its own way that it cannot
        raise NotHashable from error


def _attributes(value: Any) -> NamedValues:
    """What an object holds by name, in its `__dict__` and its slots."""
    state: Any = object.__getstate__(value)
    held, slots = state if isinstance(state, tuple) else (state, None)
    apart = _excluded_attributes(value)
    return [
        (name, part) for name, part in sorted({**(held or {}), **(slots or {})}.items(), key=itemgetter(0)) if name not in apart
    ]


def _excluded_attributes(value: Any) -> set[str]:
    """The attributes that are computed, count for nothing, or are told elsewhere."""
    computed = {n for cls in type(value).__mro__ for n, held in vars(cls).items() if isinstance(held, functools.cached_property)}
    unequal = {f.name for f in fields(value) if not f.compare} if is_dataclass(value) else set()
    return computed | unequal | ({"name"} if _is_grader(value) else set()) | ({"model"} if _calls_model(value) else set())


def _is_grader(value: Any) -> bool:
    return hasattr(value, "grade") or hasattr(value, "compare")


def _calls_model(value: Any) -> bool:
    return _is_grader(value) and not getattr(value, "model_free", False)


def _has_call_method(kind: type) -> bool:
    """Whether its objects are called as functions are, by code whose source is told."""
    return not _is_library_code(kind) and isinstance(getattr(kind, "__call__", None), FunctionType)  # noqa: B004


def _class_attributes(cls: type) -> NamedValues:
    """The functions and the plain data among the attributes of a class."""
    for name, held in sorted(vars(cls).items(), key=itemgetter(0)):
        told = _unwrap_function(held)
        if isinstance(told, CLASS_ATTRIBUTE_TYPES) and (not name.startswith("__") or name == "__call__"):
            yield name, told


def _unwrap_function(attribute: Any) -> Any:
    """The function in a property, a class method, a static method or a cache."""
    ways = (getattr(attribute, way, None) for way in ("fget", "__func__", "func", "__wrapped__"))
    return next((found for found in ways if isinstance(found, FunctionType)), attribute)


def _class_source(cls: type) -> str:
    try:
        return inspect.getsource(cls)
    except (OSError, TypeError):
        return ""


def _qualified_name(obj: Any) -> str:
    """What a class or a function is called; where it is foreign its source tells it, wherever it stands."""
    return f"{obj.__module__}.{obj.__qualname__}" if _is_library_code(obj) else str(getattr(obj, "__qualname__", ""))


def _is_library_code(obj: Any) -> bool:
    return _is_own(obj) or _top_level_package(obj) in sys.stdlib_module_names


def _is_own(obj: Any) -> bool:
    return _top_level_package(obj) == OWN_PACKAGE


def _top_level_package(obj: Any) -> str:
    return str(getattr(obj, "__module__", "")).partition(".")[0]
