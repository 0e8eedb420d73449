"""The parameters of the measurement model. `fit` learns them from finished tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from ...base import checks
from ...base.own_code import fingerprint_name
from ...errors import ConfigError


@fingerprint_name("priors")
@dataclass(frozen=True, slots=True)
class Priors:
    """Initial expectations about a model and its graders, in points of the score.

    A refinement turns quality q into `gain + retention * q`. All values are in [0, 1], `gain` and
    `bias_drift` in [-1, 1].

    Args:
        draft_mean: Mean quality of first drafts.
        draft_mean_sd: Standard deviation of that mean between tasks.
        draft_sd: Standard deviation of drafts of one task.
        gain: What a refinement adds.
        gain_sd: Standard deviation of the gain between tasks.
        retention: Share of its quality that a text keeps when it is refined.
        step_sd: Standard deviation of refinements of one text.
        noise_sd: Standard deviation of the noise of one score by an LLM grader.
        bias_sd: Standard deviation of the lasting bias of an LLM grader for or against a text.
        bias_inheritance: Share of this bias that a refinement inherits.
        bias_drift: Bias that a refinement adds on average.
        tasks: Number of finished tasks that the values were learned from; 0 for the shipped values,
            which are in the middle of what recorded runs and published figures show.

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
        """Make priors from plain data; missing values are the shipped ones. Raises ConfigError for
        an unknown name or value.
        """
        known = [f.name for f in fields(cls)]
        if unknown := [name for name in data if name not in known]:
            raise ConfigError(
                f"priors: {checks.unknown_name_message('prior', str(unknown[0]), known)}"
            )
        return cls(**data)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
