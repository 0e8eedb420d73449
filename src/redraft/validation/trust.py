"""The gate: what the cards say of a panel of graders, before anything is paid for on their word.

Requirements, our own graders that compute, and graders made of nothing else need no card: they measure what they say.
Where one has a card, that counts. A function of your own needs one, as any grader does: it may measure the wrong thing.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ..core.trace import Seat
from ..errors import ConfigError
from ..graders import Cascade, FunctionGrader, Gate, Jury, Minimum, RequirementGrader, Weighted
from .card import Shelf, Standing

HOW_TO = "measure it against labelled data with `redraft validate`"
FROM_PYTHON = (
    "code of your own is measured from Python, with redraft.validation.run.validate (docs/validation.md, 'From Python'); "
    "a demand that `redraft graders` lists, such as 'characters:<80', needs no card"
)
MADE_OF = (Cascade, Gate, Jury, Minimum, Weighted)
COMPUTED = "redraft.graders.computed."


class UntrustedGraderWarning(UserWarning):
    """A grader steers the work that nobody has found to be better than chance."""


def standings(
    panel: tuple[Seat, ...], graders: Mapping[str, Any], fingerprint: Callable[[str], str], shelf: Shelf
) -> list[Standing]:
    """What is known of each grader on a panel; `fingerprint` tells that of a seat."""
    return [_standing(seat.grader, graders[seat.grader], fingerprint, shelf) for seat in panel]


def _standing(seat: str, grader: Any, fingerprint: Callable[[str], str], shelf: Shelf) -> Standing:
    found = replace(shelf.standing(grader.name, fingerprint(seat)), grader=seat)
    if found.status == "none" and computes(grader):
        return Standing(seat, "computes", "it measures what it says")
    return found if found.trusted or not _is_own(grader) else replace(found, words=f"{found.words} ({FROM_PYTHON})")


def computes(grader: Any) -> bool:
    """Whether it is a requirement, one of our graders that compute, or made of nothing else."""
    kind = type(grader)
    if kind in MADE_OF:
        return all(map(computes, grader.parts))
    return kind is RequirementGrader or (kind.__module__.startswith(COMPUTED) and bool(grader.free))


def _is_own(grader: Any) -> bool:
    """Whether the user wrote it, or a part of it: no command knows it by a name."""
    foreign = isinstance(grader, FunctionGrader) or not type(grader).__module__.startswith("redraft.")
    return foreign or any(map(_is_own, getattr(grader, "parts", ())))


def gate(panel: tuple[Seat, ...], found: list[Standing], trust: str) -> tuple[Seat, ...]:
    """The panel with what is known of each grader. Warns of those not trusted; with "require" raises ConfigError."""
    doubtful = [s for s in found if not s.trusted]
    said = "; ".join(f"grader {s.grader!r} is not to be trusted: {s.words}" for s in doubtful)
    if doubtful and trust == "require":
        raise ConfigError(f"trust='require': {said}; {HOW_TO}")
    if doubtful:
        warnings.warn(f"{said}; {HOW_TO}", UntrustedGraderWarning, stacklevel=2)
    return tuple(replace(seat, card=s.as_data()) for seat, s in zip(panel, found, strict=True))
