"""Export of a run as training data."""

from .formats import ExportConfig, ExportResult, Provenance
from .writer import export

__all__ = ["ExportConfig", "ExportResult", "Provenance", "export"]
