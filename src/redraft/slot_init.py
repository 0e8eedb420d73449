"""Faster creation of the frozen dataclasses that every model call makes several of."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields
from typing import Any, TypeVar

T = TypeVar("T")


def init_by_slots(cls: type[T]) -> type[T]:
    """Let a frozen dataclass with slots set its fields by the slots themselves, in half the time.

    The `__init__` of the standard library calls `object.__setattr__`, which looks each field up by
    its name. No field is left out of `__init__` or is keyword-only.
    """
    all_fields: tuple[Field[Any], ...] = fields(cls)  # type: ignore[arg-type]
    assert all(f.init and not f.kw_only for f in all_fields)
    names, standard = [field.name for field in all_fields], cls.__init__
    defaults = dict(zip(reversed(names), reversed(standard.__defaults__ or ()), strict=False))
    values: dict[str, Any] = {f"set_{name}": vars(cls)[name].__set__ for name in names}
    values["__name__"] = cls.__module__  # what tells whose code raised an error
    lines = [f"def __init__(self, {', '.join(names)}):"]
    for field in all_fields:
        value = name = field.name
        if field.default_factory is not MISSING:
            values |= {f"make_{name}": field.default_factory, f"unset_{name}": defaults[name]}
            value = f"make_{name}() if {name} is unset_{name} else {name}"
        lines.append(f" set_{name}(self, {value})")
    if hasattr(cls, "__post_init__"):
        lines.append(" self.__post_init__()")
    exec("\n".join(lines), values)  # noqa: S102  (as `dataclasses` makes its own)
    init = values["__init__"]
    for attribute in ("__defaults__", "__annotations__", "__qualname__", "__module__"):
        setattr(init, attribute, getattr(standard, attribute))
    setattr(cls, "__init__", init)  # noqa: B010  (as an assignment to a method, which mypy refuses)
    return cls
