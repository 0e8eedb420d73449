"""Comparisons of runs, models and prompts: is B better than A, worse, or undecided, and how many
more rows would decide it.

`compare` reads the results of two runs, or runs two models or prompts on the same tasks;
`read_results` reads result files of other programs, too. Importing this package loads nothing: each
name is loaded when it is first used.

- `api.py`: `compare`, `compare_sync`; `report.py`: the report and its verdicts; `estimates.py`:
  what is in it; `ci_reports.py`: the same for continuous integration.
- `readers.py`: results in files, also of other programs; `results.py`: how rows are paired;
  `labels.py`: labels of people.
- `variants.py`: runs models and prompts, or grades answers anew.

The statistics are in `redraft.validation.statistics`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base.lazy_imports import attribute_loader

if TYPE_CHECKING:
    from .api import compare, compare_sync
    from .readers import read_results
    from .report import ComparisonReport, PeopleEstimate
    from .results import ResultRow, RunResults
else:
    __getattr__ = attribute_loader(
        __name__,
        {
            "ComparisonReport": "report",
            "PeopleEstimate": "report",
            "ResultRow": "results",
            "RunResults": "results",
            "compare": "api",
            "compare_sync": "api",
            "read_results": "readers",
        },
    )

__all__ = [
    "ComparisonReport",
    "PeopleEstimate",
    "ResultRow",
    "RunResults",
    "compare",
    "compare_sync",
    "read_results",
]
