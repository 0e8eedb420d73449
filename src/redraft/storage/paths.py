"""Where a user's own things are kept between runs: cards of graders, priors."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import StoreError


def data_dir() -> Path:
    """REDRAFT_HOME, or the folder for data that the system has for each user. Raises StoreError where there is neither."""
    if own := os.environ.get("REDRAFT_HOME"):
        return Path(own)
    base = os.environ.get("XDG_DATA_HOME") or os.environ.get("LOCALAPPDATA")
    try:
        return (Path(base) if base else Path.home() / ".local" / "share") / "redraft"
    except RuntimeError as error:
        raise StoreError(f"there is no folder for what is to be kept ({error}): name one in REDRAFT_HOME") from error
