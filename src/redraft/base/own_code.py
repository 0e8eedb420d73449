"""Which classes and functions belong to Redraft, and their stable names in fingerprints.

A fingerprint must not change when a class is renamed or moved, so it does not contain the names
that the code uses. Everything that can be part of a fingerprint gets a permanent name with
`fingerprint_name`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

PACKAGE = "redraft"
T = TypeVar("T")


def fingerprint_name(name: str) -> Callable[[T], T]:
    """Return a decorator that sets the name of a class or function in fingerprints. Never change
    such a name.
    """

    def set_name(target: T) -> T:
        setattr(target, "__fingerprint_name__", name)  # noqa: B010  (neither a class nor a function declares it)
        return target

    return set_name


def stable_name(target: Any) -> str:
    """Return the fingerprint name of a class or function of ours; without one, its qualified name
    without the module.
    """
    named = vars(target).get("__fingerprint_name__")  # a class does not inherit it
    return named if isinstance(named, str) else str(target.__qualname__)


def removed_settings(target: type) -> Mapping[str, object]:
    """Return the settings that a class of ours had once, with the defaults that they had: its
    `removed_settings`.

    They stay in its fingerprint, so that what was measured before they went stays valid.
    """
    removed: Mapping[str, object] = (
        vars(target).get("removed_settings", {}) if is_own(target) else {}
    )
    return removed


def top_level_package(target: Any) -> str:
    """Return the name of the package that a class or function is defined in."""
    return str(getattr(target, "__module__", "")).partition(".")[0]


def is_own(target: Any) -> bool:
    """Return whether Redraft defines this class or function."""
    return top_level_package(target) == PACKAGE
