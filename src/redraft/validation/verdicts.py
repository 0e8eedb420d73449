"""The verdicts of one validation on disk, as they arrive: what was paid for is not asked again.

JSON lines: first what they are verdicts of (the grader's fingerprint, the labelled data), then a line for each case
and look. A last line that was cut off is dropped; a file about something else is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, Self

from ..core.errors import StoreError
from ..core.records import StopReason, Usage
from .cases import Verdict
from .judging import Judged

SCHEMA = 1


class VerdictFile:
    """Opened for one grader and one set of data. Raises StoreError when it holds verdicts of others."""

    def __init__(self, path: Path, about: dict[str, str], *, afresh: bool = False) -> None:
        self.path, self.about = path, {"redraft_verdicts": SCHEMA, **about}
        self.known: dict[tuple[str, int], Judged] = {}
        self._open = self._begin(afresh=afresh)

    def _begin(self, *, afresh: bool) -> IO[str]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if not afresh and self.path.exists() and (kept := self._read()):
                self.path.write_text(kept, encoding="utf-8")
                return self.path.open("a", encoding="utf-8")
            opened = self.path.open("w", encoding="utf-8")
        except OSError as error:
            raise StoreError(f"verdicts {self.path} cannot be kept: {error}") from error
        opened.write(json.dumps(self.about) + "\n")
        return opened

    def _read(self) -> str:
        """The whole lines of the file, once their verdicts are known."""
        lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
        whole = [line for line in lines if line.endswith("\n")]
        if whole and json.loads(whole[0]) != self.about:
            raise StoreError(f"{self.path} holds verdicts of another grader or other data: {whole[0].strip()[:200]}")
        for line in whole[1:]:
            judged = _judged(json.loads(line))
            self.known[judged.case, judged.look] = judged
        return "".join(whole)

    def keep(self, judged: Judged) -> None:
        """Keep what a grader said. What the world kept it from saying is not kept, and will be asked again."""
        if judged.lost:
            return
        self.known[judged.case, judged.look] = judged
        try:
            self._open.write(json.dumps(asdict(judged)) + "\n")
            self._open.flush()
        except OSError as error:
            raise StoreError(f"verdicts {self.path} cannot be written: {error}") from error

    def verdicts(self, cases: Iterable[str]) -> list[Verdict]:
        """All that is known of these cases."""
        wanted = set(cases)
        return [v for (case, _), judged in sorted(self.known.items()) if case in wanted for v in judged.verdicts]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()


def _judged(data: dict[str, Any]) -> Judged:
    """The line that `keep` wrote. Raises StoreError for anything else."""
    try:
        verdicts = tuple(
            Verdict(**{**v, "scores": tuple(v["scores"]), "shown": tuple(v["shown"]), "places": v["places"] and tuple(v["places"])})
            for v in data["verdicts"]
        )
        ends = data["ends"] and StopReason(data["ends"])
        return Judged(data["case"], data["look"], verdicts, Usage(**data["usage"]), data["lost"], ends)
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"not a line of verdicts: {error} (in {str(data)[:200]})") from error
