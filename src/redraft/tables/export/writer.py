"""Writes a run as training data: files that TRL's trainers load, without duplicates, with counts of
what was left out.

Rows are streamed. Of each example only a digest of 16 bytes stays in memory, to detect duplicates
(about 100 MB for a million examples). The files do not depend on time or chance, so the same run
always gives the same files.
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
from typing import Protocol

import orjson

from ...errors import ConfigError, RedraftError, StoreError
from ...loop.trace import Trace
from ...storage import write_atomic
from ...storage.secure_files import draft_folder, resolve_path, set_mode, write_error
from ..writers import Output, open_output, output_suffix
from .dataset_card import CONFIGS, MARK, dataset_card
from .formats import (
    ExampleColumns,
    ExportConfig,
    ExportResult,
    NotExportable,
    PromptMessages,
    Provenance,
    TraceExamples,
    TrainingExample,
    openai_columns,
    provenance_of,
)

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
    rows: Iterable[tuple[RowId, Trace]],
    path: str | Path,
    config: ExportConfig,
    provenance: Provenance,
    *,
    overwrite: bool = False,
) -> ExportResult:
    """Write the rows of a run as training data.

    Files are written under temporary names, and replace earlier files together when all are
    complete.

    Args:
        rows: The rows with their traces.
        path: A name that ends in .jsonl or .parquet for one file, or with a split for two
            (NAME.train.jsonl, NAME.test.jsonl); "-" for stdout; any other name for a folder, which
            also gets a dataset card (README.md).
        config: The format, and what to leave out.
        provenance: Where the rows come from.
        overwrite: Replace files that are not empty. Without it, only those are replaced that the
            dataset card of an earlier export names.

    Returns:
        What was written, and what was left out.

    Raises:
        ConfigError: The path is none of these, or is in use.
        StoreError: A file cannot be written.
        RedraftError: No row gives an example; the message counts the reasons. No file is written.
    """
    paths = resolve_paths(path, config)
    if not overwrite:
        paths.check()
    counter = ExportCounter(config)
    with open_drafts(paths.files) as outputs:
        for row, trace in rows:
            side, examples = counter.add(row.id, trace, provenance)
            for columns in examples:
                outputs[side].put(outputs[side].written_count, columns)
        if not any(counter.splits.values()):
            raise RedraftError(counter.empty_message(provenance.run))
    exported = counter.result(paths.remove_empty(counter.splits), provenance)
    if paths.card:
        try:
            write_atomic(str(paths.card), dataset_card(exported))
        except OSError as error:
            raise StoreError(f"{paths.card} cannot be written: {error.strerror}") from error
    return exported


@contextmanager
def open_drafts(files: Mapping[str, str]) -> Iterator[dict[str, Output]]:
    """Open temporary files, which replace `files` together at the end. After an error they are
    removed.
    """
    drafts: dict[str, Path] = {}
    try:
        with ExitStack() as folders:
            drafts |= {
                side: draft for side, file in files.items() if (draft := _draft_path(file, folders))
            }
            with ExitStack() as stack:
                yield {
                    side: stack.enter_context(open_output(drafts.get(side, file)))
                    for side, file in files.items()
                }
            for side, draft in drafts.items():
                _publish(draft, Path(os.path.realpath(files[side])))
    except StoreError as error:
        if not drafts or not isinstance(error.__cause__, OSError):
            raise
        names, why = ", ".join(files.values()), error.__cause__.strerror or error.__cause__
        raise StoreError(
            f"{names} cannot be written: {why}; earlier files are unchanged"
        ) from error


def _draft_path(file: str, folders: ExitStack) -> Path | None:
    """Return the temporary path of a file; None for stdout, pipes and devices."""
    if file == "-" or (Path(file).exists() and not Path(file).is_file()):
        return None
    output_suffix(Path(file))
    try:
        target = resolve_path(file)
        return folders.enter_context(draft_folder(target)) / target.name
    except OSError as error:
        raise write_error(file, error) from error


def _publish(draft: Path, target: Path) -> None:
    try:
        with suppress(FileNotFoundError):
            set_mode(draft, target.stat().st_mode & 0o777)
        draft.replace(target)
    except OSError as error:
        raise StoreError(f"{target} cannot be written: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class ExportPaths:
    """The paths of an export: a file for each split ("train", "test"), and the dataset card of a
    folder.
    """

    files: Mapping[str, str]
    card: Path | None = None

    def check(self) -> None:
        """Raise ConfigError for a file that is not empty, unless an earlier export has written it
        into this folder.
        """
        replaceable = _files_in_card(self.card) if self.card else set()
        for file in map(Path, self.files.values()):
            if file.is_file() and file.stat().st_size and file.name not in replaceable:
                raise ConfigError(
                    f"{str(file)!r} exists already: name another file, or replace it with "
                    "overwrite (--overwrite)"
                )

    def remove_empty(self, counts: Mapping[str, int]) -> tuple[str, ...]:
        """Remove files without examples, which `datasets` refuses to load; return the others."""
        with_examples = [split for split in self.files if counts.get(split)] or ["train"]
        for split, file in self.files.items():
            if split not in with_examples:
                Path(file).unlink(missing_ok=True)
        return tuple(self.files[split] for split in with_examples)


def resolve_paths(path: str | Path, config: ExportConfig) -> ExportPaths:
    """Return the paths of an export to `path`. A folder is created if needed.

    Raises ConfigError for a folder with a README.md that is not a dataset card of Redraft.
    """
    name, splits = str(path), ("train", "test") if config.test_size else ("train",)
    if name == "-" and len(splits) > 1:
        raise ConfigError(
            f"test_size={config.test_size!r} makes two files: path must be a file or a folder, "
            "got '-'"
        )
    ending = ENDING.search(name)
    config.check_file(name if ending else "")
    if name == "-" or (ending and len(splits) == 1):
        return ExportPaths({"train": name})
    if ending:
        return ExportPaths(
            {split: f"{name[: ending.start()]}.{split}{ending[0]}" for split in splits}
        )
    folder = _folder(Path(name))
    return ExportPaths(
        {split: str(folder / f"{split}.{config.files}") for split in splits}, folder / "README.md"
    )


def _folder(path: Path) -> Path:
    if path.suffix[1:].isalpha() and not path.is_dir():
        raise ConfigError(
            f"path must end in .jsonl (.gz, .zst) or .parquet, or name a folder, got {str(path)!r}"
        )
    try:
        path.mkdir(parents=True, exist_ok=True)
        text = (path / "README.md").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return path
    except OSError as error:
        raise ConfigError(
            f"path {str(path)!r} cannot be used as a folder: {error.strerror}"
        ) from error
    if MARK not in text:
        raise ConfigError(
            f"path {str(path)!r} has a README.md of its own, which the card would replace: name "
            "another folder"
        )
    return path


def _files_in_card(card: Path) -> set[str]:
    """Return the names of the files in a dataset card."""
    with suppress(OSError, ValueError, KeyError, TypeError, IndexError):
        text = card.read_text(encoding="utf-8", errors="replace")
        line = next((line for line in text.splitlines() if line.startswith(CONFIGS)), "")
        return {
            str(file["path"]) for file in json.loads(line.removeprefix(CONFIGS))[0]["data_files"]
        }
    return set()


class ExportCounter:
    """Makes the examples of each row, and counts them and what is left out."""

    def __init__(self, config: ExportConfig) -> None:
        self.config = config
        self.rows = self.used = self.duplicates = 0
        self.splits: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()
        self.sums: defaultdict[str, float] = defaultdict(float)
        self.bins: dict[str, list[int]] = {}
        self.graders: dict[str, str] = {}
        self.writers: Counter[str] = Counter()
        self._digests: set[bytes] = set()

    def add(
        self, row: str, trace: Trace, provenance: Provenance
    ) -> tuple[str, list[ExampleColumns]]:
        """Add a row; return the split to which it belongs, and its examples without duplicates."""
        self.rows += 1
        origin = provenance_of(trace, provenance.run, row, provenance.model)
        try:
            source = TraceExamples(trace, self.config)
            of_openai = self.config.style == "openai"
            examples = [
                (e, openai_columns(e.columns) if of_openai else {**e.columns, **origin})
                for e in source.examples()
            ]
            if not all(_is_unicode(columns) for _, columns in examples):
                raise NotExportable(NO_UNICODE)
            new = [
                (example, columns)
                for example, columns in examples
                if not self._is_duplicate(source.prompt, example)
            ]
            self.duplicates += len(examples) - len(new)
            if not new:
                raise NotExportable(DUPLICATE)
        except NotExportable as reason:
            self.left_out[str(reason)] += 1
            return "train", []
        split = "test" if source.own.in_test(self.config) else "train"
        self._count(split, trace, [example for example, _ in new])
        return split, [columns for _, columns in new]

    def _is_duplicate(self, prompt: PromptMessages, example: TrainingExample) -> bool:
        """Return whether an equal example was added before; remember this one."""
        digest = blake2b(repr((prompt.messages, example.texts)).encode(), digest_size=16).digest()
        is_known = digest in self._digests
        self._digests.add(digest)
        return is_known

    def _count(self, split: str, trace: Trace, examples: list[TrainingExample]) -> None:
        self.used += 1
        self.splits[split] += len(examples)
        for example in examples:
            for name, value in example.numbers:
                self.sums[name] += value
                self.bins.setdefault(name, [0] * BINS)[min(int(value * BINS), BINS - 1)] += 1
            for writer in _writers(example.columns):
                self.writers[
                    writer if writer in self.writers or len(self.writers) < MAX_NAMES else "others"
                ] += 1
        for grader in trace.panel:
            if len(self.graders) < MAX_NAMES or grader.name in self.graders:
                card = (
                    f"{grader.card.get('status', '')}: {grader.card.get('words', '')}"
                    if isinstance(grader.card, Mapping)
                    else ""
                )
                self.graders[grader.name] = card or self.graders.get(grader.name, "")
            else:
                self.graders["others"] = ""

    def empty_message(self, run: str) -> str:
        """Return the error message for an export without examples."""
        if not self.rows:
            return f"nothing was written: run {run!r} has no rows yet"
        reasons = "; ".join(
            f"{n:,} x {reason}"
            for reason, n in sorted(self.left_out.items(), key=lambda item: -item[1])
        )
        return (
            f"nothing was written: none of the {self.rows:,} rows of run {run!r} gives an "
            f"example: {reasons}"
        )

    def result(self, files: tuple[str, ...], provenance: Provenance) -> ExportResult:
        """Return the result of the export."""
        sizes = {name: sum(bins) for name, bins in self.bins.items()}
        return ExportResult(
            files=files,
            config=self.config,
            provenance=provenance,
            rows=self.rows,
            used=self.used,
            train=self.splits["train"],
            test=self.splits["test"],
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
    """Yield the writer of each answer in an example."""
    for name, value in columns.items():
        if name.endswith("_by"):
            yield from value if isinstance(value, list) else [value]
        elif name == "candidates":
            yield from (c["by"] for c in value)
