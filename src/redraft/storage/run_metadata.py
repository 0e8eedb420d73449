"""The shape of what runs note about themselves, so that a journal which says something else is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict, get_type_hints

from ..core.type_checks import check_of

Priors = Mapping[str, Any]


class Schooling(TypedDict):
    start: Priors
    stages: Mapping[str, Priors | None]


class Wave(TypedDict):
    wave: str
    number: int
    model: str
    requests: int
    batch: str | None


class Waves(TypedDict, total=False):
    token: str
    count: int
    open: list[Wave]


class FormatNote(TypedDict):
    works: bool
    refused: list[str]
    doubts: Mapping[str, list[str]]


class ModelNote(TypedDict):
    adaptations: list[str]
    formats: Mapping[str, FormatNote]


class About(TypedDict, total=False):
    """What is read again of a run. It may note more, for people."""

    serial: int
    whole: int
    spent: Mapping[str, float]
    budget: Mapping[str, float] | None
    grown: bool
    gathered: list[str]
    leg: str
    output: str | None
    errors: str | None
    settings: Mapping[str, Mapping[str, str]]
    schooling: Mapping[str, Schooling]
    waves: Waves | None
    capabilities: Mapping[str, ModelNote]
    report: Mapping[str, Any] | None
    model: str | None


CHECKS = {name: check_of(kind) for name, kind in get_type_hints(About).items()}


def misfit(about: Mapping[str, Any]) -> str | None:
    """The first key of what a run noted whose value cannot be; None where all can."""
    return next((name for name, fits in CHECKS.items() if name in about and not fits(about[name])), None)
