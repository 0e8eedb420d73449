"""What decides how a grader grades, as one short hash: when it changes, what was measured of the grader is stale.

It covers the kind of grader, its settings and rubric, the words of its prompts (`wording`), the graders it is made of,
the source of a function or a class of your own, and the models that answer. It does not cover what a grader is called.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

NO_MATTER = {"name", "model"}
OURS = "redraft."  # what these do is told by `wording` and their fields


def fingerprint(grader: Any, identity_of: Callable[[Any], str | None]) -> str:
    """16 hex digits. `identity_of(model)` is the identity of a model that a grader names, of the judge for None."""
    said = json.dumps(_described(grader, identity_of), sort_keys=True, default=repr)
    return hashlib.sha256(said.encode("utf-8", "backslashreplace")).hexdigest()[:16]


def _described(value: Any, identity_of: Callable[[Any], str | None]) -> Any:
    def inner(part: Any) -> Any:
        return _described(part, identity_of)

    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(k): inner(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [inner(v) for v in value]
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(getattr(value, "spec", None), str):
        return [kind, value.spec]
    said: dict[str, Any] = {"kind": kind, "wording": inner(getattr(value, "wording", ""))}
    if is_dataclass(value):
        said |= {f.name: inner(getattr(value, f.name)) for f in fields(value) if f.name not in NO_MATTER and f.repr}
    elif callable(value):
        said |= {"function": _source(value)}
    elif hasattr(value, "__dict__"):
        said |= {name: inner(held) for name, held in vars(value).items() if name not in NO_MATTER and _is_plain(held)}
    if not kind.startswith(OURS) and not inspect.isroutine(value):
        said["class"] = _source(type(value))
    if (hasattr(value, "grade") or hasattr(value, "compare")) and not getattr(value, "free", False):
        said["model"] = identity_of(getattr(value, "model", None))
    return said


def _is_plain(value: Any) -> bool:
    """Whether it is data, and no client, lock or other machinery that is new in every process."""
    if isinstance(value, Mapping):
        return all(map(_is_plain, value.values()))
    return (
        all(map(_is_plain, value))
        if isinstance(value, list | tuple)
        else value is None or isinstance(value, bool | int | float | str)
    )


def _source(function: Callable[..., Any]) -> str:
    named = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__qualname__)}"
    try:
        return f"{named}\n{inspect.getsource(function)}"
    except (OSError, TypeError):
        return named
