"""What is believed of a model and its graders before anything is seen. How finished work teaches it: `learning`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from .. import checks
from ..errors import ConfigError


@dataclass(frozen=True, slots=True)
class Priors:
    """What is believed of a model and its graders before anything is seen, in points of the score.

    `level`: the mean quality of drafts; `level_sd`: how it differs between tasks, `draft_sd`: between drafts of one task. A
    refinement turns a quality q into `gain + carry * q`; the gain differs by `gain_sd` between tasks, and by `step_sd`
    between refinements of one. `noise_sd` is that of one look of a grader that asks a model, `style_sd` its lasting bias for
    or against a text; a revision inherits the share `kinship` of it, and `drift` on top. `tasks` is how many finished tasks
    they were learned from; the shipped ones (0) are the middle of what recorded runs and published figures show.

    Raises ConfigError for what is no number, or out of range.
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
            value, least = getattr(self, f.name), -1 if f.name in {"gain", "drift"} else 0
            if f.name == "tasks":
                checks.whole_number("priors: tasks", value, 0)
            else:
                checks.number(f"priors: {f.name}", value, least, 1)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """From plain data; what is not given is as shipped. Raises ConfigError for what is unknown or out of range."""
        known = [f.name for f in fields(cls)]
        if unknown := [name for name in data if name not in known]:
            raise ConfigError(f"priors: {checks.unknown_name_message('figure', str(unknown[0]), known)}")
        return cls(**data)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
