"""Equality with the reference, up to differences that an option allows."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any

from ...core.records import Candidate, Feedback, Task
from ...own_code import fingerprint_name
from ...protocols import JudgeClient
from .compute_limits import with_limit
from .views import binary_feedback, reference_of


@fingerprint_name("exact")
@with_limit
@dataclass(frozen=True)
class Exact:
    """1 if the answer equals the reference, else 0. `case`, `whitespace` and `punctuation` say what matters.

    Both are compared in Unicode's composed form (NFC). Where white space does not matter, its runs are one space and
    none is left at the ends. Reads `reference`; raises ConfigError without one.
    """

    case: bool = True
    whitespace: bool = False
    punctuation: bool = True
    name: str = "exact"

    model_free = True
    needs = ("reference",)

    async def grade(self, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback:
        """Return 1 or 0."""
        wanted = self._normalise(reference_of(task, self.name))
        if self._normalise(candidate.text) == wanted:
            return binary_feedback(ok=True, reason="the answer is the expected one", action="")
        return binary_feedback(
            ok=False, reason="the answer is not the expected one", action="Give the expected answer and nothing else."
        )

    def _normalise(self, text: str) -> str:
        text = compose_nfc(text)
        if not self.case:
            text = text.casefold()
        if not self.punctuation:
            text = "".join(c for c in text if not unicodedata.category(c).startswith("P"))
        return text if self.whitespace else " ".join(text.split())


def compose_nfc(text: str) -> str:
    """Return the composed form of Unicode (NFC) in linear time: `normalize` sorts a run of combining marks in quadratic time."""
    return text if text.isascii() else unicodedata.normalize("NFC", _long_mark_runs().sub(lambda run: _sort_marks(run[0]), text))


@cache
def _long_mark_runs() -> Any:
    import regex

    return regex.compile(r"\p{M}{32,}")


def _sort_marks(marks: str) -> str:
    """Return marks in canonical order, each decomposed."""
    stretches = groupby("".join(unicodedata.normalize("NFD", mark) for mark in marks), lambda mark: unicodedata.combining(mark) > 0)
    return "".join("".join(sorted(run, key=unicodedata.combining) if sortable else run) for sortable, run in stretches)
