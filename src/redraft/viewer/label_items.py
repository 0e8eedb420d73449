"""What can be judged: the answers of a run, of two runs, or of the rows of a file, each with what
its label is expected to teach.

The texts of an item are read when it is shown, so that a large run can be labelled at once.
"""

from __future__ import annotations

from collections import defaultdict, deque
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

    The function returns None for an item with nothing to judge. `identical` is the number of pairs
    that are no items, because both answers are the same: nobody can prefer one, so each is a tie.
    """

    name: str
    information: Mapping[str, float]
    read: Callable[[str], LabelItem | None]
    identical: int = 0


def identical_pairs(count: int) -> str:
    """Say that pairs of identical answers are left out."""
    one = count == 1
    return (
        f"{pluralize(count, 'pair')} {'is' if one else 'are'} identical and "
        f"{'was' if one else 'were'} left out"
    )


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
    first, best = _grader_scores(index, "first"), _grader_scores(index, "best")
    condition = "rewritten" if kind == "pair" else "best IS NOT NULL OR status != 'failed'"
    numbers = dict(index.read(f"SELECT id, number FROM rows WHERE {condition}"))  # noqa: S608  (ours)
    information = {
        id: pair_information(_differences(first[number], best[number]))
        if kind == "pair"
        else single_information([*best[number].values()], passes=kind == "pass")
        for id, number in numbers.items()
    }

    def read(id: str) -> LabelItem | None:
        trace = index.trace(numbers[id])
        if trace is None or trace.best is None:
            return None
        if kind != "pair":
            return _item(id, trace, [("best answer", trace.best)])
        first_and_best = [("first answer", trace.candidates[0]), ("best answer", trace.best)]
        return _item(id, trace, first_and_best)

    return LabelSource(entry.info.display_name, information, read)


def two_runs_source(
    libraries: tuple[RunLibrary, RunLibrary], entries: tuple[RunEntry, RunEntry]
) -> LabelSource:
    """Return the best answers of the rows that two runs have in common, as pairs, without those
    that are identical.
    """
    indexes = [
        library.build(entry).ready_index()
        for library, entry in zip(libraries, entries, strict=True)
    ]
    a, b = map(_best_answers, indexes)
    of_a, of_b = (_grader_scores(index, "best") for index in indexes)
    both = [id for id in a if id in b]
    numbers = {id: (a[id][0], b[id][0]) for id in both if a[id][1] != b[id][1]}
    information = {
        id: pair_information(_differences(of_a[in_a], of_b[in_b]))
        for id, (in_a, in_b) in numbers.items()
    }

    def read(id: str) -> LabelItem | None:
        traces = [index.trace(n) for index, n in zip(indexes, numbers[id], strict=True)]
        names = (entry.info.display_name for entry in entries)
        chosen = [(name, trace.best) for name, trace in zip(names, traces, strict=True) if trace]
        answers = [(name, best) for name, best in chosen if best]
        return _item(id, traces[0], answers) if traces[0] and len(answers) == 2 else None

    return LabelSource("two runs", information, read, len(both) - len(numbers))


def _best_answers(index: RunIndex) -> dict[str, tuple[int, str]]:
    """Return the number of each row with a scored answer, and the hash of that answer, by ID."""
    found = index.read("SELECT id, number, answer FROM rows WHERE best IS NOT NULL")
    return {id: (number, answer) for id, number, answer in found}


def _grader_scores(index: RunIndex, answer: str) -> defaultdict[int, dict[str, float]]:
    """Return what each grader says of the "first" or the "best" answer, by the number of the
    row.
    """
    scores: defaultdict[int, dict[str, float]] = defaultdict(dict)
    sql = (
        f"SELECT number, name, {answer} FROM scores WHERE kind = 'grader' AND {answer} IS NOT NULL"  # noqa: S608  (a column of ours)
    )
    for number, name, score in index.read(sql):
        scores[number][name] = score
    return scores


def _differences(a: Mapping[str, float], b: Mapping[str, float]) -> list[float]:
    """Return by how much each grader of both scores B above A."""
    return [b[name] - score for name, score in a.items() if name in b]


def _item(id: str, trace: Trace, answers: Iterable[tuple[str, Candidate]]) -> LabelItem | None:
    """Return an item of one or two answers and where each comes from; None for two that are the
    same. The order of two is that of a hash, so that it says nothing about where they come from.
    """
    shown = [(origin, candidate.display_text) for origin, candidate in answers]
    if sha256(f"order {id}".encode("utf-8", "surrogatepass")).digest()[0] % 2:
        shown.reverse()
    origins, texts = zip(*shown, strict=True)
    task = trace.task
    prompt = conversation(task.messages)
    item = LabelItem(id, prompt, texts, task.context, task.reference, origins)
    return item if _is_choice(item) else None


def _is_choice(item: LabelItem) -> bool:
    """Whether an item is a single answer, or two that differ."""
    return len(set(item.responses)) == len(item.responses)


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
    found = _row_items(rows, LabelledTable(columns, rows), kind, skipped)
    items = {id: item for id, item in found.items() if _is_choice(item)}
    identical = len(found) - len(items)
    reasons = [f"{bad.location}: {bad.message}" for bad in skipped[:3]]
    if not items:
        why = "; ".join([*reasons, identical_pairs(identical)] if identical else reasons)
        raise ConfigError(f"{str(path)!r} has no row to judge{f' ({why})' if why else ''}")
    if skipped:
        rows_skipped = pluralize(len(skipped), "row")
        log.warning("%s: %s cannot be judged: %s", path, rows_skipped, "; ".join(reasons))
    return LabelSource(path.name, dict.fromkeys(items, 1.0), items.get, identical)


def _row_items(
    rows: Iterable[Row], table: LabelledTable, kind: AnnotationKind, skipped: list[BadRow]
) -> dict[str, LabelItem]:
    """Return the items of rows by their IDs; rows that cannot be read are added to `skipped`."""
    names, id_column = _response_columns(table, kind), table.find("id", CASE_ID_NAMES)
    prompt, context, reference = map(table.find, ("prompt", "context", "reference"))
    items: dict[str, LabelItem] = {}
    for row in rows:
        try:
            id = to_text(cell(row, id_column)) if id_column else row.location.rpartition("/")[2]
            texts = tuple(response_cell(row, name) for name in names)
            more = (text_at(row.values, context), text_at(row.values, reference))
            items.setdefault(id, LabelItem(id, _prompt(row, prompt), texts, *more, names))
        except ValueError as error:
            skipped.append(BadRow(row.location, str(error)))
    return items


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
        random = deque(id for id in self.random if id not in own)
        left = (id for id in self.chosen if id not in own)
        chosen = deque(sorted(left, key=others.__contains__))
        seen, seen_random = len(own), len(own & self._random_ids)
        while random or chosen:
            is_due = seen_random < self.random_share * (seen + 1)
            from_random = bool(random) and (is_due or not chosen)
            yield (random if from_random else chosen).popleft()
            seen, seen_random = seen + 1, seen_random + from_random
