"""Batches: a data set is refined row by row into one output, and every step is saved in a journal.

- `api.py`: `batch`, `batch_sync`, and `BatchRun`, which opens everything and starts a job;
  `config.py`: the settings.
- `job.py`: the job, from the first row to the report, and the executor for rows in this process;
  `executors/`: shards on Ray, and the batch APIs of providers.
- `scheduler.py`: which row starts when, and how a run ends, also on Ctrl-C.
- `runner.py`: what happens to one row, what is written to the journal and when, and how a row
  resumes after a crash.
- `budget_policy.py`, `allocation.py`: one budget for all rows; `online_priors.py`: priors fitted to
  earlier rows; `learning.py`: `calibrate`, priors from a stated number of calls.
- `dataset.py`, `row_key.py`, `row_result.py`, `files.py`: the rows, when they are redone, their
  results, and the files of a run.
- `endpoints.py`: limits on calls; `progress.py`, `report.py`, `preview.py`: figures during, after
  and before a run; `sample_prompts.py`: the prompts in a preview; `pilot.py`, `forecast.py`: a
  sample first, and what the other rows will take.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base.lazy_imports import attribute_loader
from ..settings import EndpointLimits

if TYPE_CHECKING:
    from .api import BatchRun, batch, batch_sync
    from .config import BatchSettings
    from .forecast import ForecastRange, RunForecast
    from .learning import LearnedPriors, LearnedValue, calibrate, calibrate_sync
    from .preview import BatchPreview
    from .progress import BatchProgress
    from .report import (
        BatchReport,
        ErrorExample,
        IterationReport,
        RunPriors,
        RunRows,
        RunScores,
        RunSpending,
    )
else:
    __getattr__ = attribute_loader(
        __name__,
        {
            "BatchPreview": "preview",
            "BatchProgress": "progress",
            "BatchReport": "report",
            "BatchRun": "api",
            "BatchSettings": "config",
            "ErrorExample": "report",
            "ForecastRange": "forecast",
            "IterationReport": "report",
            "LearnedPriors": "learning",
            "LearnedValue": "learning",
            "RunForecast": "forecast",
            "RunPriors": "report",
            "RunRows": "report",
            "RunScores": "report",
            "RunSpending": "report",
            "batch": "api",
            "batch_sync": "api",
            "calibrate": "learning",
            "calibrate_sync": "learning",
        },
    )

__all__ = [
    "BatchPreview",
    "BatchProgress",
    "BatchReport",
    "BatchRun",
    "BatchSettings",
    "EndpointLimits",
    "ErrorExample",
    "ForecastRange",
    "IterationReport",
    "LearnedPriors",
    "LearnedValue",
    "RunForecast",
    "RunPriors",
    "RunRows",
    "RunScores",
    "RunSpending",
    "batch",
    "batch_sync",
    "calibrate",
    "calibrate_sync",
]
