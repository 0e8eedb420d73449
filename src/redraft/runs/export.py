"""A run as training data: files that TRL's trainers load, every example once, and what was left out counted by reason.

Rows stream through: what is held of each example is a digest of 16 bytes, to know it again (about 100 MB for a million of
them). Nothing with time or chance in it is written, so that the same run gives the same files.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

import orjson

from ..core.trace import Trace
from ..errors import ConfigError, RedraftError, StoreError
from ..storage import write_atomic
from ..storage.secure_files import draft_folder, resolve_path
from ..tables.writers import Output, open_output, output_suffix
from .card import CONFIGS, MARK, card_text
from .pairs import Columns, Example, LeftOut, Lesson, Prompt, Recipe, provenance_of

BINS = 10
MOST_NAMES = 50  # graders and models that a card names
DUPLICATE = "seen before"
NO_UNICODE = "not valid Unicode"
ENDING = re.compile(r"\.(?:jsonl|ndjson|parquet)(?:\.gz|\.zst)?$", re.IGNORECASE)


class Identified(Protocol):
    """A row of a run, by its id."""

    @property
    def id(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where the examples come from: the run, the model that wrote (None: unknown), and what else a card should say of it."""

    run: str
    model: str | None = None
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export wrote and what it left out.

    Every one of `rows` is in `used` or counted in `left_out` by reason. `train` and `test` are examples, of which a row
    may give several; `duplicates` were left out as examples. `means` and `histograms` (10 bins over [0, 1]) are of scores
    and margins by name. `graders` says of each what its validation card says ("" where none was looked for), `writers`
    who wrote how many answers of the examples; both name at most 50, and count the rest as "others".
    """

    files: tuple[str, ...]
    recipe: Recipe
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


def export(
    rows: Iterable[tuple[Identified, Trace]], path: str | Path, recipe: Recipe, provenance: Provenance, *, overwrite: bool = False
) -> Exported:
    """Write what the rows of a run teach to `path`, as `recipe` says.

    A name that ends in .jsonl or .parquet is one file, with a split two of them (NAME.train.jsonl, NAME.test.jsonl); "-"
    is stdout; any other is a folder, which gets a card (README.md, with the types of all columns) beside its files. Files
    get their names when all of them are whole; until then what was there stays. Files that hold something are replaced
    with `overwrite` only, but for those that the card of an earlier export names.

    Raises ConfigError for a path that can be none of these, or is taken; StoreError where nothing can be written; and
    RedraftError, which says why with counts, where no row gives an example: no file is written then.
    """
    places = places_of(path, recipe)
    if not overwrite:
        places.check()
    tally = Tally(recipe)
    with drafted(places.files) as outputs:
        for row, trace in rows:
            side, found = tally.take(row.id, trace, provenance)
            for columns in found:
                outputs[side].put(outputs[side].written_count, columns)
        if not any(tally.sides.values()):
            raise RedraftError(tally.nothing(provenance.run))
    exported = tally.exported(places.written(tally.sides), provenance)
    if places.card:
        _write_card(places.card, card_text(exported))
    return exported


@contextmanager
def drafted(files: Mapping[str, str]) -> Iterator[dict[str, Output]]:
    """Files to write into, which take their names together at the end; after an error nothing is left of them."""
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
        raise StoreError(f"{names} cannot be written: {why}; what was there before is as it was") from error


def _draft_of(file: str, folders: ExitStack) -> Path | None:
    """Where a file is written until it is whole; None for stdout, pipes and devices."""
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
class Places:
    """Where the examples go: a file for each side ("train", and with a split "test"), and the card of a folder."""

    files: Mapping[str, str]
    card: Path | None = None

    def check(self) -> None:
        """Raises ConfigError for a file that holds something which no earlier export into this folder has written."""
        ours = _named_by(self.card) if self.card else set()
        for file in map(Path, self.files.values()):
            if file.is_file() and file.stat().st_size and file.name not in ours:
                raise ConfigError(f"{str(file)!r} is there already: name another, or replace it with overwrite (--overwrite)")

    def written(self, counts: Mapping[str, int]) -> tuple[str, ...]:
        """The files that hold examples. An empty one beside others is taken away: `datasets` refuses to load it."""
        filled = [side for side in self.files if counts.get(side)] or ["train"]
        for side, file in self.files.items():
            if side not in filled:
                Path(file).unlink(missing_ok=True)
        return tuple(self.files[side] for side in filled)


def places_of(path: str | Path, recipe: Recipe) -> Places:
    """The files that a path stands for. A folder is made, and one whose README.md is not ours is refused."""
    name, sides = str(path), ("train", "test") if recipe.test_size else ("train",)
    if name == "-" and len(sides) > 1:
        raise ConfigError(f"test_size={recipe.test_size!r} makes two files: path must be a file or a folder, got '-'")
    ending = ENDING.search(name)
    if name == "-" or (ending and len(sides) == 1):
        return Places({"train": name})
    if ending:
        return Places({side: f"{name[: ending.start()]}.{side}{ending[0]}" for side in sides})
    folder = _folder(Path(name))
    return Places({side: str(folder / f"{side}.{recipe.files}") for side in sides}, folder / "README.md")


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
        raise ConfigError(f"path {str(path)!r} holds a README.md of its own, which the card would replace: name another folder")
    return path


def _named_by(card: Path) -> set[str]:
    """The files that a card of ours names."""
    with suppress(OSError, ValueError, KeyError, TypeError, IndexError):
        text = card.read_text(encoding="utf-8", errors="replace")
        line = next((line for line in text.splitlines() if line.startswith(CONFIGS)), "")
        return {str(held["path"]) for held in json.loads(line.removeprefix(CONFIGS))[0]["data_files"]}
    return set()


class Tally:
    """What was taken and what was left out so far."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.rows = self.used = self.duplicates = 0
        self.sides: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()
        self.sums: defaultdict[str, float] = defaultdict(float)
        self.bins: dict[str, list[int]] = {}
        self.graders: dict[str, str] = {}
        self.writers: Counter[str] = Counter()
        self._seen: set[bytes] = set()

    def take(self, row: str, trace: Trace, provenance: Provenance) -> tuple[str, list[Columns]]:
        """The side that a row's prompt falls on, and its new examples."""
        self.rows += 1
        origin = provenance_of(trace, provenance.run, row, provenance.model)
        try:
            lesson = Lesson(trace, self.recipe)
            found = self._new(lesson, [(e, {**e.columns, **origin}) for e in lesson.examples()])
        except LeftOut as reason:
            self.left_out[str(reason)] += 1
            return "train", []
        side = "test" if lesson.own.in_test(self.recipe) else "train"
        self._count(side, trace, [example for example, _ in found])
        return side, [columns for _, columns in found]

    def _new(self, lesson: Lesson, found: list[tuple[Example, Columns]]) -> list[tuple[Example, Columns]]:
        """Those that were not seen before, and can be written."""
        if not all(_is_unicode(columns) for _, columns in found):
            raise LeftOut(NO_UNICODE)
        new = [pair for pair in found if not self._known(lesson.prompt, pair[0])]
        self.duplicates += len(found) - len(new)
        if not new:
            raise LeftOut(DUPLICATE)
        return new

    def _known(self, prompt: Prompt, example: Example) -> bool:
        digest = blake2b(repr((prompt.messages, example.texts)).encode(), digest_size=16).digest()
        known = digest in self._seen
        self._seen.add(digest)
        return known

    def _count(self, side: str, trace: Trace, found: list[Example]) -> None:
        self.used += 1
        self.sides[side] += len(found)
        for example in found:
            for name, value in example.numbers:
                self.sums[name] += value
                self.bins.setdefault(name, [0] * BINS)[min(int(value * BINS), BINS - 1)] += 1
            for writer in _writers(example.columns):
                self.writers[writer if writer in self.writers or len(self.writers) < MOST_NAMES else "others"] += 1
        for seat in trace.panel:
            if len(self.graders) < MOST_NAMES or seat.name in self.graders:
                self.graders[seat.name] = _standing(seat.card) or self.graders.get(seat.name, "")
            else:
                self.graders["others"] = ""

    def nothing(self, run: str) -> str:
        """Why there is no example, in words."""
        if not self.rows:
            return f"nothing was written: run {run!r} has no rows yet"
        reasons = "; ".join(f"{n:,} x {reason}" for reason, n in sorted(self.left_out.items(), key=lambda found: -found[1]))
        return f"nothing was written: none of the {self.rows:,} rows of run {run!r} gives an example: {reasons}"

    def exported(self, files: tuple[str, ...], provenance: Provenance) -> Exported:
        sizes = {name: sum(bins) for name, bins in self.bins.items()}
        return Exported(
            files=files,
            recipe=self.recipe,
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


def _is_unicode(columns: Columns) -> bool:
    try:
        orjson.dumps(columns)
    except TypeError:  # a lone surrogate: no reader of such a file would get past it
        return False
    return True


def _writers(columns: Columns) -> Iterator[str]:
    """Who wrote the answers of an example."""
    for name, value in columns.items():
        if name.endswith("_by"):
            yield from value if isinstance(value, list) else [value]
        elif name == "candidates":
            yield from (c["by"] for c in value)


def _standing(card: Any) -> str:
    """What a grader's validation card says, in words."""
    return f"{card.get('status', '')}: {card.get('words', '')}" if isinstance(card, Mapping) else ""
