"""The trust check: what the validation cards say about a panel of graders, before a run spends anything.

Requirements, Redraft's graders that ask no model, and graders made of nothing else need no card; if there is one, it counts. A
function of the user needs a card, as any grader does: it may measure the wrong thing.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ..core.trace import PanelGrader
from ..errors import ConfigError
from ..graders import Cascade, FunctionGrader, Gate, Jury, Minimum, WeightedMean
from ..own_code import is_own
from .card import CardStore, TrustStatus

VALIDATE_HINT = "measure it against labelled data with `redraft validate`"
OWN_CODE_HINT = (
    "code of your own is measured from Python, with redraft.validation.run.validate (docs/validation.md, 'From Python'); "
    "a demand that `redraft graders` lists, such as 'characters:<80', needs no card"
)
COMPOSITE_GRADERS = (Cascade, Gate, Jury, Minimum, WeightedMean)


class UntrustedGraderWarning(UserWarning):
    """An unvalidated grader is in use."""


def trust_statuses(
    panel: tuple[PanelGrader, ...], graders: Mapping[str, Any], fingerprint: Callable[[str], str], card_store: CardStore
) -> list[TrustStatus]:
    """Return what is known of each grader on a panel; `fingerprint` returns that of a grader by its name on the panel."""
    return [_trust_status(member.name, graders[member.name], fingerprint, card_store) for member in panel]


def _trust_status(panel_name: str, grader: Any, fingerprint: Callable[[str], str], card_store: CardStore) -> TrustStatus:
    status = replace(card_store.trust_status(grader.name, fingerprint(panel_name)), grader=panel_name)
    if status.status == "none" and is_deterministic(grader):
        return TrustStatus(panel_name, "deterministic", "needs no validation card")
    if status.trusted or not _is_user_defined(grader):
        return status
    return replace(status, explanation=f"{status.explanation} ({OWN_CODE_HINT})")


def is_deterministic(grader: Any) -> bool:
    """Return whether it is a requirement, one of Redraft's graders that ask no model, or made of nothing else."""
    if type(grader) in COMPOSITE_GRADERS:
        return all(map(is_deterministic, grader.parts))
    return is_own(type(grader)) and not isinstance(grader, FunctionGrader) and bool(getattr(grader, "model_free", False))


def _is_user_defined(grader: Any) -> bool:
    """Return whether the user wrote the grader or a part of it: it has no name that a command would take."""
    own = is_own(type(grader)) and not isinstance(grader, FunctionGrader)
    return not own or any(map(_is_user_defined, getattr(grader, "parts", ())))


def enforce_trust(panel: tuple[PanelGrader, ...], statuses: list[TrustStatus], require_validated: str) -> tuple[PanelGrader, ...]:
    """Return the panel with what is known of each grader. Warn of those not trusted; with "error" raise ConfigError."""
    doubtful = [s for s in statuses if not s.trusted]
    message = "; ".join(f"grader {s.grader!r} is not trusted: {s.explanation}" for s in doubtful)
    if doubtful and require_validated == "error":
        raise ConfigError(f"require_validated='error': {message}; {VALIDATE_HINT}")
    if doubtful:
        warnings.warn(f"{message}; {VALIDATE_HINT}", UntrustedGraderWarning, stacklevel=2)
    return tuple(replace(member, card=s.to_data()) for member, s in zip(panel, statuses, strict=True))
