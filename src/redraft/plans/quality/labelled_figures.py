"""What people's labels say about the parameters of the model: the noise of a judge, and how much
kinder it is to refinements.

Scores alone cannot tell such kindness (`bias_drift`) from a gain. Labels of an answer and of its
refinement can.
"""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from typing import NamedTuple

from ...loop.trace import PanelGrader
from .calibration import Calibration
from .likelihood import COARSE_STEP
from .priors import Priors

SHIPPED_DRIFT = Priors().bias_drift
KNOWN_NOISE_DRIFT = (
    0.02  # the assumed `bias_drift` once the noise is known: the shipped one is more cautious
)
DRIFT_ERROR = (
    0.02  # standard error of the assumed `bias_drift`, which scores cannot tell from a gain
)


class LabelledFigures(NamedTuple):
    """The noise and the drift of a judge by people's labels, with their standard errors; None for
    what the labels do not show.
    """

    noise_sd: float | None = None
    noise_error: float | None = None
    drift: float | None = None
    drift_error: float | None = None

    def applied_to(self, priors: Priors) -> Priors:
        """Return priors with this noise and this drift.

        Scores show only the sum of gain and drift, so for learned priors another drift changes the
        gain by as much.
        """
        noise = priors.noise_sd if self.noise_sd is None else min(1.0, self.noise_sd)
        drift = priors.bias_drift if self.drift is None else min(1.0, max(-1.0, self.drift))
        if self.drift is None and self.noise_sd is not None and drift == SHIPPED_DRIFT:
            drift = KNOWN_NOISE_DRIFT
        gain = priors.gain - (drift - priors.bias_drift if priors.tasks else 0.0)
        return replace(priors, noise_sd=noise, bias_drift=drift, gain=min(1.0, max(-1.0, gain)))


UNLABELLED = LabelledFigures()


def labelled_figures(
    calibration: Calibration | None,
    judge: PanelGrader | None = None,
    noise: tuple[float, int] | None = None,
) -> LabelledFigures:
    """Return what a calibration says about the noise and the drift of its judge.

    Scores on a coarse scale do not show how noisy the impressions behind them are. The drift moves
    from the assumed one only as far as it exceeds its standard error. `noise` is the standard
    deviation of repeated scores in a validation, and how many answers had them; it counts if the
    calibration does not show the noise.
    """
    is_coarse = (
        judge is not None and judge.score_step is not None and judge.score_step >= COARSE_STEP
    )
    figures = UNLABELLED
    if noise and not is_coarse:
        figures = LabelledFigures(noise[0], noise[0] / sqrt(2 * noise[1]))
    if calibration is None:
        return figures
    if calibration.noise_sd and calibration.repeats > 1 and not is_coarse:
        degrees = calibration.labels * (calibration.repeats - 1)
        figures = figures._replace(
            noise_sd=calibration.noise_sd, noise_error=calibration.noise_sd / sqrt(2 * degrees)
        )
    if calibration.drift is not None and calibration.drift_se is not None:
        move, error = calibration.drift - KNOWN_NOISE_DRIFT, calibration.drift_se
        shrunk = shrunk_move(move, error)
        figures = figures._replace(
            drift=KNOWN_NOISE_DRIFT + shrunk,
            drift_error=error if shrunk else min(error, DRIFT_ERROR),
        )
    return figures


def shrunk_move(move: float, error: float) -> float:
    """Return a move reduced by its error, 0 if it is not larger (positive-part James-Stein; Efron &
    Morris 1973).
    """
    return move * (1 - (error / move) ** 2) if abs(move) > error else 0.0
