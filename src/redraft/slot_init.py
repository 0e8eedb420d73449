"""Faster creation of the frozen dataclasses that every model call makes several of."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields
from typing import Any, TypeVar

T = TypeVar("T")


def init_by_slots(cls: type[T]) -> type[T]:
    """Let a frozen dataclass with slots set its fields by the slots themselves, in half the time.

    The `__init__` of the standard library calls `object.__setattr__`, which looks each field up by its name. No field
    has a default factory, is left out of `__init__` or is keyword-only.
    """
    all_fields: tuple[Field[Any], ...] = fields(cls)  # type: ignore[arg-type]
    assert all(f.default_factory is MISSING and f.init and not f.kw_only for f in all_fields)
    names = [field.name for field in all_fields]
    setters: dict[str, Any] = {f"set_{name}": vars(cls)[name].__set__ for name in names}
    lines = [f"def __init__(self, {', '.join(names)}):", *(f" set_{name}(self, {name})" for name in names)]
    if hasattr(cls, "__post_init__"):
        lines.append(" self.__post_init__()")
    exec("\n".join(lines), setters)  # noqa: S102  (as `dataclasses` makes its own)
    init, standard = setters["__init__"], cls.__init__
    for attribute in ("__defaults__", "__annotations__", "__qualname__", "__module__"):
        setattr(init, attribute, getattr(standard, attribute))
    setattr(cls, "__init__", init)  # noqa: B010  (as an assignment to a method, which mypy refuses)
    return cls
