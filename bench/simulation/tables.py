"""The tables of a part of the benchmark: one for each world, with a line for each policy."""

from __future__ import annotations

from .catalogue import (
    APIECE,
    APIECE_PRICED,
    BELIEFS,
    DEFAULTS,
    FOREIGN,
    RELEARNED,
    TOGETHER,
)
from .figures import at_calls, single_setting, swept

COLUMNS = [
    "calls",
    "rounds",
    "quality",
    "p10",
    "reported - true",
    "|reported - true|",
    "covered",
    "at target",
    "recall",
    "claims false",
    "tasks false",
    "failed",
]


def at_each(policies, calls):
    """Yield a line (name, mix) for every policy at this number of calls a task.

    A budget is that budget. A policy with prices is interpolated between two of them, and a rival
    between the best settings of its own knob; a policy that cannot make so many calls or so few is
    shown at its nearest setting. Policies without settings are left out.
    """
    for name, points in policies.items():
        if name.endswith((APIECE, APIECE_PRICED, TOGETHER)):
            yield from ((name, single_setting(point)) for point in points if point.setting == calls)
        elif name in (*BELIEFS, FOREIGN, RELEARNED):
            yield name, at_calls(points, calls)
        elif len(points) > 1:
            yield f"{name}, at its best", at_calls(swept(points), calls)


def as_they_come(policies):
    """Yield a line (name, mix) for every setting of every policy."""
    for name, points in policies.items():
        for point in points:
            is_default = DEFAULTS.get(name) == point.setting
            setting = (
                ""
                if len(points) == 1
                else f" [{show_setting(point.setting)}{', default' * is_default}]"
            )
            yield f"{name}{setting}", single_setting(point)


def show_setting(setting):
    return " ".join(map(str, setting)) if isinstance(setting, tuple) else f"{setting:g}"


def cells(row):
    """Return the cells of a line."""
    return [
        f"{row['calls'].value:.1f}",
        f"{row['rounds'].value:.1f}",
        str(row["quality"]),
        str(row["p10"]),
        row["reported_minus_latent"].signed,
        brief(row["reporting_error"]),
        percent(row["coverage"]),
        percent(row["truly_reached"]),
        *claims(row),
        percent(row["failed"]),
    ]


def claims(row):
    """Return the recall, the share of claims that are false, and the share of tasks with a false
    claim.
    """
    if row["reported_minus_latent"].value is None:
        return ["-", "-", "-"]
    return [percent(row[field]) for field in ("recall", "false_claims", "false_convergence")]


def percent(figure):
    return "-" if figure.value is None else f"{figure.value:.1%}"


def brief(figure):
    return "-" if figure.value is None else f"{figure.value:.3f}"
