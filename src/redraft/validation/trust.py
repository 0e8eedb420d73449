"""The gate: what the cards say of a panel of graders, before anything is paid for on their word.

Requirements, our own graders that compute, and graders made of nothing else need no card: they measure what they say.
Where one has a card, that counts. A function of your own needs one, as any grader does: it may measure the wrong thing.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ..core.trace import PanelGrader
from ..errors import ConfigError
from ..graders import Cascade, FunctionGrader, Gate, Jury, Minimum, RequirementGrader, WeightedMean
from .card import CardStore, TrustStatus

VALIDATE_HINT = "measure it against labelled data with `redraft validate`"
OWN_CODE_HINT = (
    "code of your own is measured from Python, with redraft.validation.run.validate (docs/validation.md, 'From Python'); "
    "a demand that `redraft graders` lists, such as 'characters:<80', needs no card"
)
COMPOSITE_GRADERS = (Cascade, Gate, Jury, Minimum, WeightedMean)
COMPUTED_PACKAGE = "redraft.graders.computed."


class UntrustedGraderWarning(UserWarning):
    """A grader steers the work that nobody has found to be better than chance."""


def trust_statuses(
    panel: tuple[PanelGrader, ...], graders: Mapping[str, Any], fingerprint: Callable[[str], str], card_store: CardStore
) -> list[TrustStatus]:
    """What is known of each grader on a panel; `fingerprint` tells that of a seat."""
    return [_trust_status(seat.name, graders[seat.name], fingerprint, card_store) for seat in panel]


def _trust_status(panel_name: str, grader: Any, fingerprint: Callable[[str], str], card_store: CardStore) -> TrustStatus:
    found = replace(card_store.trust_status(grader.name, fingerprint(panel_name)), grader=panel_name)
    if found.status == "none" and is_deterministic(grader):
        return TrustStatus(panel_name, "computes", "it measures what it says")
    return (
        found
        if found.trusted or not _is_user_defined(grader)
        else replace(found, explanation=f"{found.explanation} ({OWN_CODE_HINT})")
    )


def is_deterministic(grader: Any) -> bool:
    """Whether it is a requirement, one of our graders that compute, or made of nothing else."""
    kind = type(grader)
    if kind in COMPOSITE_GRADERS:
        return all(map(is_deterministic, grader.parts))
    return kind is RequirementGrader or (kind.__module__.startswith(COMPUTED_PACKAGE) and bool(grader.free))


def _is_user_defined(grader: Any) -> bool:
    """Whether the user wrote it, or a part of it: no command knows it by a name."""
    foreign = isinstance(grader, FunctionGrader) or not type(grader).__module__.startswith("redraft.")
    return foreign or any(map(_is_user_defined, getattr(grader, "parts", ())))


def enforce_trust(panel: tuple[PanelGrader, ...], statuses: list[TrustStatus], require_validated: str) -> tuple[PanelGrader, ...]:
    """The panel with what is known of each grader. Warns of those not trusted; with "require" raises ConfigError."""
    doubtful = [s for s in statuses if not s.trusted]
    said = "; ".join(f"grader {s.grader!r} is not to be trusted: {s.explanation}" for s in doubtful)
    if doubtful and require_validated == "require":
        raise ConfigError(f"trust='require': {said}; {VALIDATE_HINT}")
    if doubtful:
        warnings.warn(f"{said}; {VALIDATE_HINT}", UntrustedGraderWarning, stacklevel=2)
    return tuple(replace(seat, card=s.to_data()) for seat, s in zip(panel, statuses, strict=True))
