"""Fingerprints: one short hash of everything that decides how a grader grades. When it changes,
earlier measurements are stale.

A fingerprint covers the kind of grader, its settings and rubric, its prompts (`prompt_texts`), the
graders it is made of and the models that answer. Of user code it covers the source of functions and
classes and everything they hold: defaults, closures, bound arguments and attributes. It covers
neither the name of a grader nor what code reaches through a global name.

Classes and functions of Redraft enter under their stable names (`own_code.fingerprint_name`), never
by their source, their module or the name that the code uses: moving or renaming one changes no
fingerprint. The names and values of their settings count. `tests/golden/fingerprints.json` pins all
of them.

A fingerprint is the same in every run of a program: no address and no order of a set enters it. A
client, a lock or a file cannot be hashed that way. A user's grader that holds one is hashed without
it, since the source of its class is included. A function that holds one gets a different
fingerprint every time, since what it does is unknown.
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

from ..base.own_code import is_own, removed_settings, stable_name, top_level_package
from ..protocols import Model
from .traits import is_grader, traits_of

MAX_DEPTH = 40  # levels of nesting
CLASS_ATTRIBUTE_TYPES = (FunctionType, bool, int, float, str, Mapping, list, tuple, set, frozenset)
CACHED_FUNCTION_TYPE = type(functools.cache(hash))
EARLIER_MAX_TOKENS = 2048
"""The `max_tokens` that judges once had by default: what they said within it holds without it, and
so do their fingerprints.
"""
CYCLE_MARKER = "itself"  # replaces a value inside itself

IdentityOf: TypeAlias = Callable[[Any], str | None]
NamedValues: TypeAlias = Iterable[tuple[str, Any]]


def grader_fingerprint(
    grader: Any, identity_of: IdentityOf, *, no_limit: int | None = EARLIER_MAX_TOKENS
) -> str:
    """Return 16 hex digits for a grader, a plan or an editor.

    `identity_of(model)` returns the identity of a model that a grader names; for None, the
    judge's. `no_limit` stands for the `max_tokens` of a grader that sets none.
    """
    try:
        return Hasher(identity_of, no_limit=no_limit).digest(grader)[:16]
    except NotHashable:
        return uuid4().hex[:16]


class NotHashable(Exception):
    """The value cannot be hashed so that another run gets the same hash."""


@dataclass(frozen=True)
class Hasher:
    """Computes the hash of a value from the hashes of its parts. `digests` caches them, each with
    its value.

    `strict`: a function holds the value, so all of it counts. `in_set`: a set holds the value, and
    since sets have no order, the point at which a reference cycle is entered is random.
    """

    identity_of: IdentityOf
    no_limit: int | None = EARLIER_MAX_TOKENS
    strict: bool = False
    in_set: bool = False
    depth: int = 0
    digests: dict[tuple[int, bool], tuple[Any, str | None]] = field(default_factory=dict)

    def digest(self, value: Any) -> str:
        """Return the hash of a value. Raises NotHashable."""
        if value is None or isinstance(value, bool | int | float | str):
            return sha256_json([type(value).__name__, value])
        key = id(value), self.strict
        if key not in self.digests:
            # the cache keeps the value alive: no other object gets its id
            self.digests[key] = (value, CYCLE_MARKER)
            self.digests[key] = value, replace(self, depth=self.depth + 1).compute_digest(value)
        digest = self.digests[key][1]
        if digest is None or (digest is CYCLE_MARKER and self.in_set):
            raise NotHashable
        return digest

    def compute_digest(self, value: Any) -> str | None:
        """Return the hash of a value that is not in the cache; None if it has none."""
        try:
            return None if self.depth > MAX_DEPTH else sha256_json(self._components(value))
        except NotHashable:
            return None

    def _components(self, value: Any) -> list[Any]:
        match value:
            case bytes() | bytearray():
                return ["bytes", value.hex()]
            case Mapping():
                return [
                    "mapping",
                    *sorted([self.digest(k), self.digest(v)] for k, v in value.items()),
                ]
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
                return [
                    "code",
                    value.co_code.hex(),
                    self.digest(value.co_consts),
                    self.digest(value.co_names),
                ]
            case FunctionType():
                code = (
                    stable_name(value) if is_own(value) else self._source_components(value.__code__)
                )
                return ["function", code, *self._state_components(_function_state(value))]
            case functools.partial():
                return [
                    "partial",
                    *self._state_components(
                        {"of": value.func, "args": value.args, "keywords": value.keywords}
                    ),
                ]
            case _ if isinstance(value, CACHED_FUNCTION_TYPE):
                return ["cached", self.digest(value.__wrapped__)]
            case MethodType():
                return [
                    "method",
                    self.digest(value.__func__),
                    *self._instance_components(value.__self__, lenient=not self.strict),
                ]
            case BuiltinFunctionType():
                return ["builtin", value.__qualname__, self.digest(value.__self__)]
        return self._instance_components(value)

    def _source_components(self, code: CodeType) -> list[Any]:
        """Return the source and, as two lambdas may share a line, the column where a lambda ends.
        Without source, the bytecode.
        """
        try:
            source = inspect.getsource(code)
        except (OSError, TypeError):
            return [self.digest(code)]
        ends = ((line or 0, column or 0) for _, line, _, column in code.co_positions())
        return [source, max(ends)[1] if code.co_name == "<lambda>" else 0]

    def _state_components(self, state: Mapping[str, Any]) -> list[list[str]]:
        """Return the hashes of everything that a function holds."""
        return list(replace(self, strict=True).item_digests(state.items(), required=True))

    def item_digests(self, items: NamedValues, *, required: bool) -> Iterator[list[str]]:
        """Yield (name, hash) pairs. An item without a hash is left out or, if `required`, gets a
        random one.
        """
        for name, value in items:
            try:
                yield [name, self.digest(value)]
            except NotHashable:
                if required:
                    yield [name, uuid4().hex]

    def _class_components(self, target_class: type) -> list[Any]:
        """Return the name of a class and, for it and each base that users wrote, the source and
        what the attributes hold.
        """
        user_classes = [cls for cls in target_class.__mro__ if not _is_library_code(cls)]
        return [
            _qualified_name(target_class),
            *(
                [_class_source(cls), *self.item_digests(_class_attributes(cls), required=False)]
                for cls in user_classes
            ),
        ]

    def _instance_components(self, value: Any, *, lenient: bool = False) -> list[Any]:
        kind = type(value)
        # a requirement or a rubric
        if is_own(kind) and isinstance(getattr(value, "spec", None), str):
            return ["spec", value.spec]
        if isinstance(value, Model):
            return ["model", self.digest(value.identity)]
        if is_grader(value):
            return self._grader_components(value)
        if lenient or (not self.strict and (is_dataclass(value) or _has_call_method(kind))):
            return self._attribute_components(value)
        return [self.digest(kind), *self._copy_components(value)]

    def _grader_components(self, value: Any) -> list[Any]:
        """Return the hashes of a grader's attributes, of its prompts, and of the model that
        answers.
        """
        traits = traits_of(value)
        return [
            *self._attribute_components(value),
            self.digest("" if traits.prompt_texts is None else traits.prompt_texts),
            None if traits.model_free else self.identity_of(traits.model),
            *([self.digest(traits.params)] if traits.is_own and traits.params else ()),
        ]

    def _attribute_components(self, value: Any) -> list[Any]:
        """Return the hashes of an object's class and of its attributes."""
        attributes = _attributes(value)
        if is_own(type(value)) and _calls_model(value):
            attributes = [
                (name, self.no_limit if (name, held) == ("max_tokens", None) else held)
                for name, held in attributes
            ]
        return [
            self.digest(type(value)),
            *self.item_digests(attributes, required=is_own(type(value))),
        ]

    def _copy_components(self, value: Any) -> list[Any]:
        """Return the hashes of what the `copy` protocol would make a copy of the object from."""
        reduced = _reduce_value(value)
        if isinstance(reduced, str):
            return [reduced]
        make, args, state, items, pairs = (*reduced, None, None, None)[:5]
        attributes = dict(_attributes(value)) if top_level_package(make) == "copyreg" else state
        return [
            _qualified_name(make),
            *map(self.digest, (args, attributes, list(items or ()), list(pairs or ()))),
        ]


def sha256_json(data: Any) -> str:
    """Return 64 hex digits for plain data."""
    return hashlib.sha256(json.dumps(data).encode()).hexdigest()


def _function_state(function: FunctionType) -> dict[str, Any]:
    defaults = [function.__defaults__, function.__kwdefaults__]
    return {
        "defaults": defaults,
        "attributes": vars(function),
        "closure": [*map(_cell_contents, function.__closure__ or ())],
    }


def _cell_contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None  # an empty cell


def _reduce_value(value: Any) -> Any:
    """Return what the `copy` protocol returns. Raises NotHashable for objects that cannot be
    copied: locks, open files.
    """
    try:
        reduce = dispatch_table.get(type(value))
        return reduce(value) if reduce else value.__reduce_ex__(2)
    except Exception as error:  # classes refuse in different ways
        raise NotHashable from error


def _attributes(value: Any) -> NamedValues:
    """Return the attributes of an object, from its `__dict__` and its slots, and the settings that
    its class had once, sorted by name.
    """
    state: Any = object.__getstate__(value)
    own_dict, slots = state if isinstance(state, tuple) else (state, None)
    attributes = {**removed_settings(type(value)), **(own_dict or {}), **(slots or {})}
    excluded = _excluded_attributes(value)
    return [(name, attributes[name]) for name in sorted(attributes) if name not in excluded]


def _excluded_attributes(value: Any) -> set[str]:
    """Return the names of attributes that are cached, are no part of equality, or enter the
    fingerprint elsewhere.
    """
    attributes = (item for cls in type(value).__mro__ for item in vars(cls).items())
    cached = {
        name for name, attribute in attributes if isinstance(attribute, functools.cached_property)
    }
    unequal = {f.name for f in fields(value) if not f.compare} if is_dataclass(value) else set()
    return (
        cached
        | unequal
        | ({"name"} if is_grader(value) else set())
        | ({"model"} if _calls_model(value) else set())
    )


def _calls_model(value: Any) -> bool:
    return is_grader(value) and not traits_of(value).model_free


def _has_call_method(kind: type) -> bool:
    """Return whether instances are callable by code whose source is hashed."""
    return not _is_library_code(kind) and isinstance(getattr(kind, "__call__", None), FunctionType)  # noqa: B004


def _class_attributes(cls: type) -> NamedValues:
    """Yield the functions and the plain data among the attributes of a class."""
    for name, attribute in sorted(vars(cls).items(), key=itemgetter(0)):
        value = _unwrap_function(attribute)
        if isinstance(value, CLASS_ATTRIBUTE_TYPES) and (
            not name.startswith("__") or name == "__call__"
        ):
            yield name, value


def _unwrap_function(attribute: Any) -> Any:
    """Return the function in a property, class method, static method or cache; any other attribute
    as it is.
    """
    inner = (getattr(attribute, name, None) for name in ("fget", "__func__", "func", "__wrapped__"))
    return next((function for function in inner if isinstance(function, FunctionType)), attribute)


def _class_source(cls: type) -> str:
    try:
        return inspect.getsource(cls)
    except (OSError, TypeError):
        return ""


def _qualified_name(target: Any) -> str:
    """Return the name of a class or function. The name of user code has no module: its source
    identifies it.
    """
    if is_own(target):
        return f"redraft:{stable_name(target)}"
    qualname = str(getattr(target, "__qualname__", ""))
    return f"{target.__module__}.{qualname}" if _is_library_code(target) else qualname


def _is_library_code(target: Any) -> bool:
    """Return whether a class or function belongs to Redraft or the standard library: its source is
    not hashed.
    """
    return is_own(target) or top_level_package(target) in sys.stdlib_module_names
