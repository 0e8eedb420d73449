"""Runs: a whole data set refined into one output, losing nothing and paying for nothing twice."""

from __future__ import annotations

from .asked import Limits
from .preview import Preview
from .progress import Progress
from .report import Report
from .run import Batch, Run, batch, batch_sync

__all__ = ["Batch", "Limits", "Preview", "Progress", "Report", "Run", "batch", "batch_sync"]
