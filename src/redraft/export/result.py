"""What an export has written, and where its examples come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from .formats import ExportConfig


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where examples come from: the run, the model that wrote them (None: unknown), and other facts for the dataset card."""

    run: str
    model: str | None = None
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExportResult:
    """The result of an export: what was written and what was left out.

    Every one of `rows` is in `used` or counted in `left_out` by reason. `train` and `test` are examples, of which a row
    may give several; `duplicates` were left out as examples. `means` and `histograms` (10 bins over [0, 1]) are of scores
    and margins by name. `graders` has the words of each one's validation card ("" if none was looked for), `writers` the
    number of answers by each model; both name at most 50, and sum up the rest as "others".
    """

    files: tuple[str, ...]
    config: ExportConfig
    provenance: Provenance
    rows: int
    used: int
    train: int
    test: int
    duplicates: int
    left_out: Mapping[str, int]
    means: Mapping[str, float]
    histograms: Mapping[str, tuple[int, ...]]
    graders: Mapping[str, str]
    writers: Mapping[str, int]

    def as_data(self) -> dict[str, Any]:
        return asdict(self)
