"""Comparisons of runs, models and prompts: is B better than A, worse, or undecided, and how many
more rows would decide it.

`compare` reads the results of two runs, or runs two models or prompts on the same tasks, and
`leaderboard` those of several; `noise_floor` says how far a set-up differs from itself.
`read_results` reads result files of other programs, too. Importing this package loads nothing: each
name is loaded when it is first used.

- `api.py`: `compare`, `compare_sync`; `report.py`: the report and its verdicts; `estimates.py`:
  what is in it; `ci_reports.py`: the same for continuous integration.
- `readers.py`: results in files, also of other programs; `results.py`: how rows are paired;
  `labels.py`: labels of people.
- `variants.py`: runs models and prompts, or grades answers anew.
- `leaderboards.py`: several variants; `noise.py`: the noise of a set-up, and whether its judge has
  changed; `task_writer.py`: tasks that a model writes from a description.

The statistics are in `redraft.validation.statistics`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base.lazy_imports import attribute_loader

if TYPE_CHECKING:
    from .api import compare, compare_sync
    from .leaderboards import Leaderboard, LeaderboardEntry, leaderboard, leaderboard_sync
    from .noise import NoiseFloor, anchor_drift, anchor_drift_sync, noise_floor, noise_floor_sync
    from .readers import read_results
    from .report import ComparisonReport, PeopleEstimate
    from .results import ResultRow, RunResults
    from .task_writer import write_tasks, write_tasks_sync
else:
    __getattr__ = attribute_loader(
        __name__,
        {
            "ComparisonReport": "report",
            "Leaderboard": "leaderboards",
            "LeaderboardEntry": "leaderboards",
            "NoiseFloor": "noise",
            "PeopleEstimate": "report",
            "ResultRow": "results",
            "RunResults": "results",
            "anchor_drift": "noise",
            "anchor_drift_sync": "noise",
            "compare": "api",
            "compare_sync": "api",
            "leaderboard": "leaderboards",
            "leaderboard_sync": "leaderboards",
            "noise_floor": "noise",
            "noise_floor_sync": "noise",
            "read_results": "readers",
            "write_tasks": "task_writer",
            "write_tasks_sync": "task_writer",
        },
    )

__all__ = [
    "ComparisonReport",
    "Leaderboard",
    "LeaderboardEntry",
    "NoiseFloor",
    "PeopleEstimate",
    "ResultRow",
    "RunResults",
    "anchor_drift",
    "anchor_drift_sync",
    "compare",
    "compare_sync",
    "leaderboard",
    "leaderboard_sync",
    "noise_floor",
    "noise_floor_sync",
    "read_results",
    "write_tasks",
    "write_tasks_sync",
]
