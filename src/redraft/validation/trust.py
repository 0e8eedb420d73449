"""The gate: what the cards say of a panel of graders, before anything is paid for on their word.

A grader that asks no model needs no card: it measures what it says. Where it has one, that counts.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ..core.errors import ConfigError
from ..core.trace import Seat
from .cards import Shelf, Standing

HOW_TO = "measure it against labelled data with `redraft validate`"


class UntrustedGraderWarning(UserWarning):
    """A grader steers the work that nobody has found to be better than chance."""


def standings(
    panel: tuple[Seat, ...], graders: Mapping[str, Any], fingerprint: Callable[[str], str], shelf: Shelf
) -> list[Standing]:
    """What is known of each grader on a panel; `fingerprint` tells that of a seat."""
    found = []
    for seat in panel:
        standing = shelf.standing(graders[seat.grader].name, fingerprint(seat.grader))
        if seat.free and standing.status == "none":
            standing = Standing(seat.grader, "computes", "it asks no model")
        found.append(replace(standing, grader=seat.grader))
    return found


def gate(panel: tuple[Seat, ...], found: list[Standing], trust: str) -> tuple[Seat, ...]:
    """The panel with what is known of each grader. Warns of those not trusted; with "require" raises ConfigError."""
    doubtful = [s for s in found if not s.trusted]
    said = "; ".join(f"grader {s.grader!r} is not to be trusted: {s.words}" for s in doubtful)
    if doubtful and trust == "require":
        raise ConfigError(f"trust='require': {said}; {HOW_TO}")
    if doubtful:
        warnings.warn(f"{said}; {HOW_TO}", UntrustedGraderWarning, stacklevel=2)
    return tuple(replace(seat, card=s.as_data()) for seat, s in zip(panel, found, strict=True))
