"""The folder of the user's own data: validation cards and priors."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import StoreError


def data_dir() -> Path:
    """Return REDRAFT_HOME, or the system's data folder for the user. Raises StoreError if there is neither."""
    if own := os.environ.get("REDRAFT_HOME"):
        return Path(own)
    base = os.environ.get("XDG_DATA_HOME") or os.environ.get("LOCALAPPDATA")
    try:
        return (Path(base) if base else Path.home() / ".local" / "share") / "redraft"
    except RuntimeError as error:
        raise StoreError(f"the user has no data folder ({error}): name one in REDRAFT_HOME") from error
