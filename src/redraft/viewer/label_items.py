"""What can be judged: the answers of a run, of two runs, or of the rows of a file, each with what
its label is expected to teach.

The texts of an item are read when it is shown, so that a large run can be labelled at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import log2, sqrt
from pathlib import Path
from statistics import NormalDist, stdev

from ..base.log import log
from ..base.text import pluralize
from ..errors import ConfigError
from ..loop.records import Candidate
from ..loop.task import Message, message_text
from ..loop.trace import Trace
from ..tables.readers import BadRow, Row, iter_rows
from ..tables.row_values import text_at
from ..validation.label_file import AnnotationKind, LabelItem
from ..validation.labelled_table import (
    CASE_ID_NAMES,
    PAIR_COLUMNS,
    LabelledTable,
    cell,
    chat_cell,
    response_cell,
    to_text,
)
from .index import RunIndex
from .run_library import RunEntry, RunLibrary

SCORE_SD = 0.1  # assumed standard deviation of the noise of a mean score
PASS_SCORE = 0.5
MAX_FILE_ROWS = 200_000


@dataclass(frozen=True)
class LabelSource:
    """Items to judge: their IDs, the expected information of a label of each (in bits), and a
    function that reads one.

    The function returns None for an item with nothing to judge, such as two equal answers.
    """

    name: str
    information: Mapping[str, float]
    read: Callable[[str], LabelItem | None]


def pair_information(differences: Sequence[float]) -> float:
    """Return the expected information of a preference, in bits, from each grader's difference of
    the two scores.

    It is the entropy of the preference under the belief that the true difference is normal, with
    the graders' mean as mean, and their spread and the noise of scores as standard deviation: 1 for
    a tie, or where nothing is known.
    """
    if not differences:
        return 1.0
    return _entropy(
        NormalDist().cdf(
            sum(differences) / len(differences) / _quality_sd(differences, sqrt(2) * SCORE_SD)
        )
    )


def single_information(scores: Sequence[float], *, passes: bool) -> float:
    """Return the expected information of a label of one answer, in bits, from the score of each
    grader.

    With `passes` it is the entropy of passing; else that of a normal belief, seen with the noise of
    one score.
    """
    if not scores:
        return 1.0
    mean, sd = sum(scores) / len(scores), _quality_sd(scores, SCORE_SD)
    return (
        _entropy(NormalDist().cdf((mean - PASS_SCORE) / sd))
        if passes
        else log2(1 + (sd / SCORE_SD) ** 2) / 2
    )


def _quality_sd(values: Sequence[float], noise: float) -> float:
    return sqrt(noise**2 + (stdev(values) ** 2 if len(values) > 1 else 0.0))


def _entropy(p: float) -> float:
    return 0.0 if p <= 0 or p >= 1 else -p * log2(p) - (1 - p) * log2(1 - p)


# ---- runs


def run_source(library: RunLibrary, entry: RunEntry, kind: AnnotationKind) -> LabelSource:
    """Return the items of a run: the first and the best answer of each row whose best is another,
    or each best answer.
    """
    index = library.build(entry).ready_index()
    scores = _grader_scores(index)
    is_pair = kind == "pair"
    condition = "rewritten" if is_pair else "best IS NOT NULL OR status != 'failed'"
    numbers = {
        id: number
        for number, id in index.read(f"SELECT number, id FROM rows WHERE {condition}")  # noqa: S608  (ours)
    }
    information = {}
    for id, number in numbers.items():
        parts = scores[number]
        if is_pair:
            information[id] = pair_information(
                [best - first for _, first, best in parts if first is not None and best is not None]
            )
        else:
            information[id] = single_information(
                [best for _, _, best in parts if best is not None], passes=kind == "pass"
            )

    def read(id: str) -> LabelItem | None:
        trace = index.trace(numbers[id])
        if trace is None or trace.best is None:
            return None
        chosen = (trace.candidates[0], trace.best) if is_pair else (trace.best,)
        return _item(
            id, trace, chosen, ("first answer", "best answer") if is_pair else ("best answer",)
        )

    return LabelSource(entry.info.display_name, information, read)


def two_runs_source(
    libraries: tuple[RunLibrary, RunLibrary], entries: tuple[RunEntry, RunEntry]
) -> LabelSource:
    """Return the best answers of the rows that two runs have in common, as pairs."""
    names = tuple(entry.info.display_name for entry in entries)
    indexes = [
        library.build(entry).ready_index()
        for library, entry in zip(libraries, entries, strict=True)
    ]
    numbers: list[dict[str, int]] = []
    rows: list[dict[str, dict[str, float]]] = []
    for index in indexes:
        scores = _grader_scores(index)
        numbers.append(
            {
                id: number
                for number, id in index.read("SELECT number, id FROM rows WHERE best IS NOT NULL")
            }
        )
        rows.append(
            {
                id: {name: best for name, _, best in scores[number] if best is not None}
                for id, number in numbers[-1].items()
            }
        )
    differences = {
        id: [rows[1][id][name] - a for name, a in rows[0][id].items() if name in rows[1][id]]
        for id in rows[0]
        if id in rows[1]
    }
    information = {id: pair_information(each) for id, each in differences.items()}

    def read(id: str) -> LabelItem | None:
        traces = [index.trace(known[id]) for index, known in zip(indexes, numbers, strict=True)]
        chosen = [trace.best for trace in traces if trace and trace.best]
        return _item(id, traces[0], chosen, names) if len(chosen) == len(traces) else None

    return LabelSource("two runs", information, read)


def _grader_scores(
    index: RunIndex,
) -> defaultdict[int, list[tuple[str, float | None, float | None]]]:
    """Return the name of each grader and what it says of the first and the best answer, by the
    number of the row.
    """
    scores: defaultdict[int, list[tuple[str, float | None, float | None]]] = defaultdict(list)
    for number, name, first, best in index.read(
        "SELECT number, name, first, best FROM scores WHERE kind = 'grader'"
    ):
        scores[number].append((name, first, best))
    return scores


def _item(
    id: str, trace: Trace | None, candidates: Sequence[Candidate], origins: tuple[str, ...]
) -> LabelItem | None:
    """Return an item; the order of two responses is that of a hash, so that it says nothing about
    where they come from.
    """
    texts = tuple(candidate.display_text for candidate in candidates)
    if trace is None or (len(texts) == 2 and texts[0] == texts[1]):
        return None
    if len(texts) == 2 and sha256(f"order {id}".encode("utf-8", "surrogatepass")).digest()[0] % 2:
        texts, origins = texts[::-1], origins[::-1]
    return LabelItem(
        id,
        conversation(trace.task.messages),
        texts,
        trace.task.context,
        trace.task.reference,
        origins,
    )


def conversation(messages: Sequence[Message]) -> str:
    """Return chat messages as one text: a single user message as it is, several with their
    roles.
    """
    if len(messages) == 1:
        return message_text({**messages[0], "content": messages[0].get("content") or ""})
    texts = (
        (m.get("role", ""), message_text({**m, "content": m.get("content") or ""}))
        for m in messages
    )
    return "\n\n".join(f"[{role}]\n{text}" for role, text in texts)


# ---- files


def file_source(path: Path, kind: AnnotationKind, columns: Mapping[str, str] = {}) -> LabelSource:
    """Return the items in the rows of a file; `columns` maps roles to columns, as in `read_cases`.

    Nothing is known of what their labels teach, so all count the same. Raises ConfigError if no row
    can be judged.
    """
    skipped: list[BadRow] = []
    rows = [
        row for row, _ in zip(iter_rows(path, skipped.append), range(MAX_FILE_ROWS), strict=False)
    ]
    table = LabelledTable(columns, rows)
    names = _response_columns(table, kind)
    prompt, context, reference, id_column = (
        table.find("prompt"), table.find("context"), table.find("reference"), table.find("id", CASE_ID_NAMES),  # noqa: E501
    )  # fmt: skip
    items: dict[str, LabelItem] = {}
    for row in rows:
        try:
            id = to_text(cell(row, id_column)) if id_column else row.location.rpartition("/")[2]
            texts = tuple(response_cell(row, name) for name in names)
            items.setdefault(
                id,
                LabelItem(
                    id,
                    _prompt(row, prompt),
                    texts,
                    text_at(row.values, context),
                    text_at(row.values, reference),
                    names,
                ),
            )
        except ValueError as error:
            skipped.append(BadRow(row.location, str(error)))
    items = {
        id: item for id, item in items.items() if len(set(item.responses)) == len(item.responses)
    }
    why = "; ".join(f"{bad.location}: {bad.message}" for bad in skipped[:3])
    if not items:
        raise ConfigError(f"{str(path)!r} has no row to judge{f' ({why})' if why else ''}")
    if skipped:
        log.warning("%s: %s cannot be judged: %s", path, pluralize(len(skipped), "row"), why)
    return LabelSource(path.name, dict.fromkeys(items, 1.0), items.get)


def _prompt(row: Row, name: str | None) -> str:
    value = chat_cell(row, name)
    return (
        conversation(value) if isinstance(value, list) else "" if value is None else to_text(value)
    )


def _response_columns(table: LabelledTable, kind: AnnotationKind) -> tuple[str, ...]:
    """Return the column of the response, or of both. Raises ConfigError if there is none."""
    if kind != "pair":
        if (name := table.find("response")) is None:
            raise ConfigError("no column holds a response: name it with -c response=COLUMN")
        return (name,)
    named = [table.find(role, ()) for role in ("response_a", "response_b")]
    if named[0] and named[1]:
        return (named[0], named[1])
    found = next((pair for pair in PAIR_COLUMNS if all(map(table.sample.has, pair))), None)
    if found is None:
        raise ConfigError(
            "no columns hold two responses: name them with -c response_a=COLUMN -c "
            "response_b=COLUMN, or use --kind pass"
        )
    return found


# ---- what comes next


class LabelQueue:
    """The order in which an annotator is shown items.

    About `random_share` of all items are kept apart: those whose hash is low. They are shown in the
    order of their hashes, the same for every annotator, so that their labels are a random sample of
    all items and annotators can be compared. The others are shown by expected information, first
    those that nobody has judged. Of an annotator's labels `random_share` are of the first kind.
    """

    def __init__(self, source: LabelSource, random_share: float = 0.25, seed: int = 0) -> None:
        self.random_share = random_share
        places = {
            id: int.from_bytes(sha256(f"{seed} {id}".encode("utf-8", "surrogatepass")).digest()[:8])
            / 2**64
            for id in source.information
        }
        by_hash = sorted(places, key=places.__getitem__)
        self.random = [id for id in by_hash if places[id] < random_share]
        chosen = (id for id in by_hash if places[id] >= random_share)
        self.chosen = sorted(chosen, key=lambda item: -source.information[item])
        self._random_ids = frozenset(self.random)

    def is_random(self, id: str) -> bool:
        """Whether an item belongs to the random share."""
        return id in self._random_ids

    def following(self, done: Iterable[str], by_others: Iterable[str]) -> Iterator[str]:
        """Yield the items that an annotator has not judged, the next one first.

        `done`: the items that the annotator has judged; `by_others`: those that another one has.
        """
        own, others = set(done), set(by_others)
        left = [id for id in self.chosen if id not in own]
        random = [id for id in self.random if id not in own]
        chosen = [id for id in left if id not in others] + [id for id in left if id in others]
        count, total, next_random, next_chosen = len(own & self._random_ids), len(own), 0, 0
        while next_random < len(random) or next_chosen < len(chosen):
            is_due = count + next_random < self.random_share * (
                total + next_random + next_chosen + 1
            )
            if next_random < len(random) and (is_due or next_chosen == len(chosen)):
                next_random += 1
                yield random[next_random - 1]
            else:
                next_chosen += 1
                yield chosen[next_chosen - 1]
