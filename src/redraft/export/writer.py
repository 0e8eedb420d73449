"""Writes a run as training data: files that TRL's trainers load, every example once, with counts of what was left out.

Rows are streamed: only a digest of 16 bytes is file of each example, to detect duplicates (about 100 MB for a million
examples). Nothing that depends on time or chance is written, so that the same run gives the same files.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

import orjson

from ..core.trace import Trace
from ..errors import ConfigError, RedraftError, StoreError
from ..storage import write_atomic
from ..storage.secure_files import draft_folder, resolve_path
from ..tables.writers import Output, open_output, output_suffix
from .dataset_card import CONFIGS, MARK, dataset_card
from .formats import ExampleColumns, ExportConfig, NotExportable, PromptMessages, TraceExamples, TrainingExample, provenance_of
from .result import ExportResult, Provenance

BINS = 10
MAX_NAMES = 50  # graders and models that a card names
DUPLICATE = "seen before"
NO_UNICODE = "not valid Unicode"
ENDING = re.compile(r"\.(?:jsonl|ndjson|parquet)(?:\.gz|\.zst)?$", re.IGNORECASE)


class RowId(Protocol):
    """A row of a run, by its ID."""

    @property
    def id(self) -> str: ...


def export(
    rows: Iterable[tuple[RowId, Trace]], path: str | Path, config: ExportConfig, provenance: Provenance, *, overwrite: bool = False
) -> ExportResult:
    """Write the rows of a run as training data to `path`, as `config` says.

    A name that ends in .jsonl or .parquet is one file, with a split two of them (NAME.train.jsonl, NAME.test.jsonl); "-"
    is stdout; any other is a folder, which gets a dataset card (README.md, with the types of all columns) beside its files.
    Files get their names when all of them are complete; until then earlier files stay. Files that are not empty are replaced
    only with `overwrite`, except those that the card of an earlier export names.

    Raises ConfigError for a path that is none of these, or is in use; StoreError if it cannot be written; and RedraftError,
    with the reasons counted, if no row gives an example: no file is written then.
    """
    paths = resolve_paths(path, config)
    if not overwrite:
        paths.check()
    counter = ExportCounter(config)
    with open_drafts(paths.files) as outputs:
        for row, trace in rows:
            side, found = counter.add(row.id, trace, provenance)
            for columns in found:
                outputs[side].put(outputs[side].written_count, columns)
        if not any(counter.sides.values()):
            raise RedraftError(counter.empty_message(provenance.run))
    exported = counter.result(paths.remove_empty(counter.sides), provenance)
    if paths.card:
        _write_card(paths.card, dataset_card(exported))
    return exported


@contextmanager
def open_drafts(files: Mapping[str, str]) -> Iterator[dict[str, Output]]:
    """Open temporary files, which get their names together at the end; after an error they are removed."""
    drafts: dict[str, Path] = {}
    try:
        with ExitStack() as folders:
            drafts |= {side: draft for side, file in files.items() if (draft := _draft_of(file, folders))}
            with ExitStack() as stack:
                yield {side: stack.enter_context(open_output(drafts.get(side, file))) for side, file in files.items()}
            for side, draft in drafts.items():
                _publish(draft, Path(os.path.realpath(files[side])))
    except StoreError as error:
        if not drafts or not isinstance(error.__cause__, OSError):
            raise
        names, why = ", ".join(files.values()), error.__cause__.strerror or error.__cause__
        raise StoreError(f"{names} cannot be written: {why}; earlier files are unchanged") from error


def _draft_of(file: str, folders: ExitStack) -> Path | None:
    """Return the temporary path of a file; None for stdout, pipes and devices."""
    if file == "-" or (Path(file).exists() and not Path(file).is_file()):
        return None
    output_suffix(Path(file))
    try:
        target = resolve_path(file)
        return folders.enter_context(draft_folder(target)) / target.name
    except OSError as error:
        raise StoreError(f"{file} cannot be written: {error.strerror}") from error


def _publish(draft: Path, target: Path) -> None:
    try:
        with suppress(FileNotFoundError):
            draft.chmod(target.stat().st_mode & 0o777)
        draft.replace(target)
    except OSError as error:
        raise StoreError(f"{target} cannot be written: {error.strerror}") from error


def _write_card(path: Path, text: str) -> None:
    try:
        write_atomic(str(path), text)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class ExportPaths:
    """The files of an export: one for each side ("train", and with a split "test"), and the card of a folder."""

    files: Mapping[str, str]
    card: Path | None = None

    def check(self) -> None:
        """Raises ConfigError for a file that is not empty, and was not written by an earlier export into this folder."""
        ours = _files_in_card(self.card) if self.card else set()
        for file in map(Path, self.files.values()):
            if file.is_file() and file.stat().st_size and file.name not in ours:
                raise ConfigError(f"{str(file)!r} exists already: name another file, or replace it with overwrite (--overwrite)")

    def remove_empty(self, counts: Mapping[str, int]) -> tuple[str, ...]:
        """Remove files without examples, which `datasets` refuses to load; return the others."""
        filled = [side for side in self.files if counts.get(side)] or ["train"]
        for side, file in self.files.items():
            if side not in filled:
                Path(file).unlink(missing_ok=True)
        return tuple(self.files[side] for side in filled)


def resolve_paths(path: str | Path, config: ExportConfig) -> ExportPaths:
    """Return the files for a path. A folder is created if needed; one with a README.md that is not a card is refused."""
    name, sides = str(path), ("train", "test") if config.test_size else ("train",)
    if name == "-" and len(sides) > 1:
        raise ConfigError(f"test_size={config.test_size!r} makes two files: path must be a file or a folder, got '-'")
    ending = ENDING.search(name)
    if name == "-" or (ending and len(sides) == 1):
        return ExportPaths({"train": name})
    if ending:
        return ExportPaths({side: f"{name[: ending.start()]}.{side}{ending[0]}" for side in sides})
    folder = _folder(Path(name))
    return ExportPaths({side: str(folder / f"{side}.{config.files}") for side in sides}, folder / "README.md")


def _folder(path: Path) -> Path:
    if path.suffix[1:].isalpha() and not path.is_dir():
        raise ConfigError(f"path must end in .jsonl (.gz, .zst) or .parquet, or name a folder, got {str(path)!r}")
    try:
        path.mkdir(parents=True, exist_ok=True)
        text = (path / "README.md").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return path
    except OSError as error:
        raise ConfigError(f"path {str(path)!r} cannot be used as a folder: {error.strerror}") from error
    if MARK not in text:
        raise ConfigError(f"path {str(path)!r} has a README.md of its own, which the card would replace: name another folder")
    return path


def _files_in_card(card: Path) -> set[str]:
    """Return the files that a dataset card names."""
    with suppress(OSError, ValueError, KeyError, TypeError, IndexError):
        text = card.read_text(encoding="utf-8", errors="replace")
        line = next((line for line in text.splitlines() if line.startswith(CONFIGS)), "")
        return {str(file["path"]) for file in json.loads(line.removeprefix(CONFIGS))[0]["data_files"]}
    return set()


class ExportCounter:
    """Counts the examples, and what was left out."""

    def __init__(self, config: ExportConfig) -> None:
        self.config = config
        self.rows = self.used = self.duplicates = 0
        self.sides: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()
        self.sums: defaultdict[str, float] = defaultdict(float)
        self.bins: dict[str, list[int]] = {}
        self.graders: dict[str, str] = {}
        self.writers: Counter[str] = Counter()
        self._digests: set[bytes] = set()

    def add(self, row: str, trace: Trace, provenance: Provenance) -> tuple[str, list[ExampleColumns]]:
        """Add a row; return the side of its prompt, and its new examples."""
        self.rows += 1
        origin = provenance_of(trace, provenance.run, row, provenance.model)
        try:
            source = TraceExamples(trace, self.config)
            found = self._new(source, [(e, {**e.columns, **origin}) for e in source.examples()])
        except NotExportable as reason:
            self.left_out[str(reason)] += 1
            return "train", []
        side = "test" if source.own.in_test(self.config) else "train"
        self._count(side, trace, [example for example, _ in found])
        return side, [columns for _, columns in found]

    def _new(
        self, source: TraceExamples, found: list[tuple[TrainingExample, ExampleColumns]]
    ) -> list[tuple[TrainingExample, ExampleColumns]]:
        """Return the examples that are new, and can be written. Raises NotExportable."""
        if not all(_is_unicode(columns) for _, columns in found):
            raise NotExportable(NO_UNICODE)
        new = [pair for pair in found if not self._is_duplicate(source.prompt, pair[0])]
        self.duplicates += len(found) - len(new)
        if not new:
            raise NotExportable(DUPLICATE)
        return new

    def _is_duplicate(self, prompt: PromptMessages, example: TrainingExample) -> bool:
        digest = blake2b(repr((prompt.messages, example.texts)).encode(), digest_size=16).digest()
        known = digest in self._digests
        self._digests.add(digest)
        return known

    def _count(self, side: str, trace: Trace, found: list[TrainingExample]) -> None:
        self.used += 1
        self.sides[side] += len(found)
        for example in found:
            for name, value in example.numbers:
                self.sums[name] += value
                self.bins.setdefault(name, [0] * BINS)[min(int(value * BINS), BINS - 1)] += 1
            for writer in _writers(example.columns):
                self.writers[writer if writer in self.writers or len(self.writers) < MAX_NAMES else "others"] += 1
        for grader in trace.panel:
            if len(self.graders) < MAX_NAMES or grader.name in self.graders:
                self.graders[grader.name] = _card_summary(grader.card) or self.graders.get(grader.name, "")
            else:
                self.graders["others"] = ""

    def empty_message(self, run: str) -> str:
        """Return the error message for an export without examples."""
        if not self.rows:
            return f"nothing was written: run {run!r} has no rows yet"
        reasons = "; ".join(f"{n:,} x {reason}" for reason, n in sorted(self.left_out.items(), key=lambda found: -found[1]))
        return f"nothing was written: none of the {self.rows:,} rows of run {run!r} gives an example: {reasons}"

    def result(self, files: tuple[str, ...], provenance: Provenance) -> ExportResult:
        sizes = {name: sum(bins) for name, bins in self.bins.items()}
        return ExportResult(
            files=files,
            config=self.config,
            provenance=provenance,
            rows=self.rows,
            used=self.used,
            train=self.sides["train"],
            test=self.sides["test"],
            duplicates=self.duplicates,
            left_out=dict(sorted(self.left_out.items())),
            means={name: self.sums[name] / n for name, n in sizes.items()},
            histograms={name: tuple(bins) for name, bins in self.bins.items()},
            graders=dict(self.graders),
            writers=dict(self.writers),
        )


def _is_unicode(columns: ExampleColumns) -> bool:
    try:
        orjson.dumps(columns)
    except TypeError:  # a lone surrogate: no reader could load the file
        return False
    return True


def _writers(columns: ExampleColumns) -> Iterator[str]:
    """Yield the writers of the answers of an example."""
    for name, value in columns.items():
        if name.endswith("_by"):
            yield from value if isinstance(value, list) else [value]
        elif name == "candidates":
            yield from (c["by"] for c in value)


def _card_summary(card: Any) -> str:
    """Return the words of a grader's validation card."""
    return f"{card.get('status', '')}: {card.get('words', '')}" if isinstance(card, Mapping) else ""
