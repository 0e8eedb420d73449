"""Runs: a whole data set refined into one output, without losing an answer or paying for one twice."""

from __future__ import annotations

from ..settings import EndpointLimits
from .api import BatchRun, batch, batch_sync
from .config import BatchSettings
from .preview import BatchPreview
from .progress import BatchProgress
from .report import BatchReport

__all__ = ["BatchPreview", "BatchProgress", "BatchReport", "BatchRun", "BatchSettings", "EndpointLimits", "batch", "batch_sync"]
