"""Where the rows of a run go beside its journal: a file for unusable ones, and stand-ins for what a run does without."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from io import BufferedWriter, TextIOWrapper
from typing import IO, Any

from ..errors import StoreError
from ..storage.secure_files import PUBLIC, open_following_links
from ..tables.readers import BadRow


class NullOutput:
    """The output of a run that has none."""

    pending_count = 0
    is_in_place = False

    def put(self, n: int, values: Mapping[str, Any]) -> None:
        """Do nothing: the result is in the journal."""

    def close(self, *, complete: bool) -> None:
        """Do nothing."""


@dataclass
class RejectsFile:
    """The file of unusable rows, created with the first of them; path "": there is none."""

    path: str
    _file: IO[str] | None = None

    def put(self, bad: BadRow) -> None:
        """Write a row and the reason. Raises StoreError."""
        if not self.path:
            return
        try:
            if self._file is None:
                file = open_following_links(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PUBLIC)
                self._file = TextIOWrapper(BufferedWriter(file), "utf-8", line_buffering=True)
            self._file.write(json.dumps({"place": bad.location, "message": bad.message}) + "\n")
        except OSError as error:
            raise StoreError(f"errors file {self.path!r} cannot be written: {error.strerror}") from error

    @property
    def is_empty(self) -> bool:
        """Whether nothing was written."""
        return self._file is None

    def close(self) -> None:
        """Close the file."""
        if self._file:
            self._file.close()
