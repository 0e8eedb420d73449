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
from ..core.serialize import object_from_json, unpack
from ..errors import StoreError
from ..storage import LockedLineFile
from ..storage.secure_files import make_folder
from .cases import Verdict
from .harness import JudgedCase

SCHEMA = 1


class VerdictFile:
    """Opened for one grader and one set of data, by one process at a time. Raises StoreError when it holds other verdicts.

    With `afresh` those that are there are set aside, as "verdicts.before.jsonl".
    """

    def __init__(self, path: Path, header: dict[str, str], *, restart: bool = False) -> None:
        self.path, self.header = path, {"redraft_verdicts": SCHEMA, **header}
        self.judged_cases: dict[tuple[str, int], JudgedCase] = {}
        try:
            make_folder(path.parent)
            there = path.exists() and path.stat().st_size > 0
        except OSError as error:
            raise StoreError(f"verdicts {str(path)!r} cannot be kept: {error.strerror}") from error
        self._lines = LockedLineFile(path, "verdicts", resume=there)
        if there and restart:
            self._lines.close()
            path.replace(path.with_suffix(".before.jsonl"))
            self._lines = LockedLineFile(path, "verdicts")
        try:
            self._load() if there and not restart else self._lines.write([json.dumps(self.header)], "nothing is in it")
        except BaseException:
            self._lines.close()
            raise

    def _load(self) -> None:
        text = self.path.read_bytes().decode("utf-8", "replace")
        for n, line in enumerate(text.splitlines(), 1):
            try:
                data = object_from_json(line)
                judged = _parse_judged_case(data) if n > 1 else None
            except (StoreError, KeyError, TypeError, ValueError, AttributeError) as error:
                raise StoreError(f"{self._lines.name}, line {n}: not a line of verdicts: {error}") from error
            if judged:
                self.judged_cases[judged.case, judged.repeat] = judged
            elif data != self.header:
                raise StoreError(f"{self._lines.name} are of another grader or other data: {line[:200]}")

    def add(self, judged_case: JudgedCase) -> None:
        """Keep what a grader said. What the world kept it from saying is not kept, and will be asked again."""
        if not judged_case.outage:
            self.judged_cases[judged_case.case, judged_case.repeat] = judged_case
            self._lines.write(
                [json.dumps(asdict(judged_case))], f"{len(self.judged_cases)} answers are kept; the same command goes on"
            )

    def verdicts(self, cases: Iterable[str]) -> list[Verdict]:
        """All that is known of these cases."""
        wanted = set(cases)
        return [v for (case, _), judged in sorted(self.judged_cases.items()) if case in wanted for v in judged.verdicts]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()


def _parse_judged_case(data: Mapping[str, Any]) -> JudgedCase:
    """The line that `keep` wrote."""
    ends = data["ends"] and StopReason(data["ends"])
    verdicts = tuple(_parse_verdict(**v) for v in data["verdicts"])
    return JudgedCase(str(data["case"]), int(data["look"]), verdicts, unpack(Usage, data["usage"]), data["lost"], ends)


def _parse_verdict(*, scores: list[Any], presentation_order: list[int], ranks: list[int] | None, **fields: Any) -> Verdict:
    if not all(s is None or (type(s) in {int, float} and 0 <= s <= 1) for s in scores):
        raise ValueError(f"scores must be numbers in [0, 1] or null, got {scores!r}")
    return Verdict(
        scores=tuple(scores), presentation_order=tuple(presentation_order), ranks=None if ranks is None else tuple(ranks), **fields
    )
