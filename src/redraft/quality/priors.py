"""The parameters of the measurement model before any score is seen. `fit` learns them from finished tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from .. import checks
from ..errors import ConfigError
from ..own_code import fingerprint_name


@fingerprint_name("priors")
@dataclass(frozen=True, slots=True)
class Priors:
    """Initial expectations about a model and its graders, in points of the score (see `redraft.quality`).

    A refinement turns quality q into `gain + retention * q`.

    Args:
        draft_mean: Mean quality of first drafts.
        draft_mean_sd: How much it varies between tasks.
        draft_sd: How much drafts of one task vary.
        gain: What a refinement adds.
        gain_sd: How much the gain varies between tasks.
        retention: Share of its quality that a text keeps when it is refined.
        step_sd: How much refinements of one text vary.
        noise_sd: Noise of one score of an LLM grader.
        bias_sd: Lasting bias of an LLM grader for or against a text.
        bias_inheritance: Share of this bias that a refinement inherits.
        bias_drift: Bias that a refinement adds on average.
        tasks: Number of finished tasks that the values were learned from. The shipped values (0) are the middle of what recorded
            runs and published figures show.

    Raises:
        ConfigError: A value is not a number, or out of range.
    """

    draft_mean: float = 0.58
    draft_mean_sd: float = 0.15
    draft_sd: float = 0.11
    gain: float = 0.16
    gain_sd: float = 0.05
    retention: float = 0.8
    step_sd: float = 0.08
    noise_sd: float = 0.12
    bias_sd: float = 0.06
    bias_inheritance: float = 0.7
    bias_drift: float = 0.03
    tasks: int = 0

    def __post_init__(self) -> None:
        for f in fields(self):
            value, minimum = getattr(self, f.name), -1 if f.name in {"gain", "bias_drift"} else 0
            if f.name == "tasks":
                checks.whole_number("priors: tasks", value, 0)
            else:
                checks.number(f"priors: {f.name}", value, minimum, 1)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Make priors from plain data; missing values are the shipped ones. Raises ConfigError for an unknown name or value."""
        known = [f.name for f in fields(cls)]
        if unknown := [name for name in data if name not in known]:
            raise ConfigError(f"priors: {checks.unknown_name_message('prior', str(unknown[0]), known)}")
        return cls(**data)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
