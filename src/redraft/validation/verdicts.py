"""The verdicts of one validation on disk, as they arrive: what was paid for is not asked again.

JSON lines: first what they are verdicts of (the grader's fingerprint, the labelled data), then a line for each case
and look. A last line that was cut off is dropped; a file about something else is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from ..core.records import StopReason, Usage
from ..core.serialize import loads, unpack
from ..errors import StoreError
from ..storage import LockedLines
from ..storage.secure_files import make_folder
from .cases import Verdict
from .harness import Judged

SCHEMA = 1


class VerdictFile:
    """Opened for one grader and one set of data, by one process at a time. Raises StoreError when it holds other verdicts.

    With `afresh` those that are there are set aside, as "verdicts.before.jsonl".
    """

    def __init__(self, path: Path, about: dict[str, str], *, afresh: bool = False) -> None:
        self.path, self.about = path, {"redraft_verdicts": SCHEMA, **about}
        self.known: dict[tuple[str, int], Judged] = {}
        try:
            make_folder(path.parent)
            there = path.exists() and path.stat().st_size > 0
        except OSError as error:
            raise StoreError(f"verdicts {str(path)!r} cannot be kept: {error.strerror}") from error
        self._lines = LockedLines(path, "verdicts", resume=there)
        if there and afresh:
            self._lines.close()
            path.replace(path.with_suffix(".before.jsonl"))
            self._lines = LockedLines(path, "verdicts")
        try:
            self._read() if there and not afresh else self._lines.write([json.dumps(self.about)], "nothing is in it")
        except BaseException:
            self._lines.close()
            raise

    def _read(self) -> None:
        text = self.path.read_bytes().decode("utf-8", "replace")
        for n, line in enumerate(text.splitlines(), 1):
            try:
                data = loads(line)
                judged = _judged(data) if n > 1 else None
            except (StoreError, KeyError, TypeError, ValueError, AttributeError) as error:
                raise StoreError(f"{self._lines.name}, line {n}: not a line of verdicts: {error}") from error
            if judged:
                self.known[judged.case, judged.look] = judged
            elif data != self.about:
                raise StoreError(f"{self._lines.name} are of another grader or other data: {line[:200]}")

    def keep(self, judged: Judged) -> None:
        """Keep what a grader said. What the world kept it from saying is not kept, and will be asked again."""
        if not judged.lost:
            self.known[judged.case, judged.look] = judged
            self._lines.write([json.dumps(asdict(judged))], f"{len(self.known)} answers are kept; the same command goes on")

    def verdicts(self, cases: Iterable[str]) -> list[Verdict]:
        """All that is known of these cases."""
        wanted = set(cases)
        return [v for (case, _), judged in sorted(self.known.items()) if case in wanted for v in judged.verdicts]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()


def _judged(data: Mapping[str, Any]) -> Judged:
    """The line that `keep` wrote."""
    ends = data["ends"] and StopReason(data["ends"])
    verdicts = tuple(_verdict(**v) for v in data["verdicts"])
    return Judged(str(data["case"]), int(data["look"]), verdicts, unpack(Usage, data["usage"]), data["lost"], ends)


def _verdict(*, scores: list[Any], shown: list[int], places: list[int] | None, **others: Any) -> Verdict:
    if not all(s is None or (type(s) in {int, float} and 0 <= s <= 1) for s in scores):
        raise ValueError(f"scores must be numbers in [0, 1] or null, got {scores!r}")
    return Verdict(scores=tuple(scores), shown=tuple(shown), places=None if places is None else tuple(places), **others)
