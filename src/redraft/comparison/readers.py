"""Reads the results of a run: a journal or an output of `redraft batch`, a table, or a result file
of promptfoo or Inspect.

Files may be hostile: types are checked, nothing in them is run, documents, archives and the number
of rows are bounded. A score that is missing, or that belongs to a failed call, is None, whatever
number stands in the file. `FORMS` recognises a form of another program by the keys of a document;
the columns of any other table are recognised by their names.
"""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from io import SEEK_END, BufferedReader
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import Any, TypeAlias

from ..base import checks
from ..base.checks import format_value, install_command, read_error_message
from ..base.documents import open_regular
from ..base.jsontext import strict_loads
from ..errors import ConfigError, NoResponseError
from ..loop.task import Task
from ..loop.trace import Trace
from ..requirements.spec import check_foreign_spec
from ..runs import BatchReport
from ..storage.journal import Journal, RowInfo
from ..tables.columns import (
    RESPONSE_NAMES,
    SampleColumns,
    TaskColumns,
    infer_columns,
)
from ..tables.readers import (
    MAX_DOCUMENT_BYTES,
    MAX_DOCUMENT_MEMORY,
    MAX_LINE_BYTES,
    ZSTD,
    BadRow,
    Row,
)
from ..tables.row_values import MISSING, has_value, value_at
from ..tables.sources import open_source
from ..tables.text_format import ENCODING, open_text
from ..validation.cases import AmbiguousLabel, is_missing, score_reader
from . import results
from .results import ResultRow, RunResults, check_size, hash_task, task_key

SCORE_NAMES = ("best_score", "score", "reward", "rating")
# if they hold scores, and no correct answers
PASS_NAMES = ("passed", "pass", "is_correct", "correct", "resolved", "success")
ID_NAMES = (
    "id",
    "row_id",
    "uid",
    "unique_id",
    "pair_id",
    "question_id",
    "item_id",
    "task_id",
    "instance_id",
    "problem_idx",
    "doc_id",
)
ANSWER_NAMES = ("best", *RESPONSE_NAMES)
# those of an output of `redraft batch`
OWN_COLUMNS = {"best", "best_score", "initial_score", "stop"}
ROLES = ("id", "prompt", "messages", "response", "score")
MAX_SAMPLE_BYTES = 2 * MAX_LINE_BYTES  # bytes of one sample in an archive, unpacked
MAX_SAMPLES = 200_000
# of an archive: the list of its files, which takes ten times as much memory
MAX_DIRECTORY_BYTES = 64 * 2**20
MAX_ZIP_END = 2**16 + 100  # bytes in which the record is that ends a ZIP archive, with a comment
SAMPLE = 50  # rows from which columns are recognised
INSPECT_WORDS = {
    "C": 1.0,
    "I": 0.0,
    "P": 0.5,
    "N": 0.0,
    "yes": 1.0,
    "no": 0.0,
    "true": 1.0,
    "false": 0.0,
}
"""The values that Inspect's own metrics give to the words of its scorers; yes, no, true and false
in any case.
"""
INSPECT_FIELDS = (
    "id",
    "input",
    "target",
    "output",
    "scores",
    "score",
    "metadata",
    "error",
    "attachments",
)
ATTACHMENT = (
    "attachment://"  # before the key of a text that stands in the attachments of the sample
)
PROMPTFOO_ERROR = 2  # failureReason of a row whose call failed


@dataclass(frozen=True)
class ResultChoice:
    """What to take of a document: `part` is the run in it (of a provider), `score` the name of the
    score; "" is any.
    """

    name: str
    part: str = ""
    score: str = ""


def read_results(
    source: Any, *, score: str = "", columns: Mapping[str, str] | None = None, name: str = ""
) -> RunResults:
    """Return the results of a run.

    Args:
        source: A path, the report of a batch, rows as mappings, a DataFrame, or results that were
            read before. A path is an output or a journal of `redraft batch`, a table with a column
            of scores (JSONL, CSV, Parquet, ...), or a result file of promptfoo (.json) or Inspect
            (.json or .eval). "FILE#NAME" names one of several runs in a file: of a journal, or a
            provider of promptfoo.
        score: The column, metric, scorer or grader whose score is compared; "" for the usual or the
            only one.
        columns: The columns of a table by role, if their names do not say it: id, prompt, messages,
            response, score.
        name: What the run is called in reports; "" for the name of the file.

    Raises:
        ConfigError: The file cannot be read, no score is known, or there are several runs or scores
            and none is named.
    """
    named = dict(columns or {})
    for role in named:
        if role not in ROLES:
            raise ConfigError(checks.unknown_name_message("role", role, ROLES))
    if score:
        named["score"] = score
    if isinstance(source, RunResults):
        return replace(source, name=name or source.name)
    if isinstance(source, BatchReport):
        found = _read_journal(Path(source.journal), source.run, source.run)
    elif isinstance(source, str | Path):
        found = _read_path(str(source), named)
    else:
        rows, skipped = _all_rows(open_source(source).rows, "rows")
        found = _read_table(rows, skipped, named, "rows")
    check_size(found.rows, found.name)
    if not found.rows:
        raise _no_row(found.name, found.skipped)
    return replace(found, name=name or found.name)


def _read_path(source: str, named: Mapping[str, str]) -> RunResults:
    file, part = _split_part(source)
    path = Path(file)
    choice = ResultChoice(path.name, part, named.get("score", ""))
    if path.suffix == ".journal":
        return _read_journal(path, part, part or path.name)
    if path.suffix == ".eval":
        return _read_inspect({"samples": list(_archive_samples(path))}, choice)
    document = _read_document(path) if path.suffix == ".json" and path.is_file() else None
    if found := _read_foreign(document, choice):
        return found
    rows, skipped = _all_rows(open_source(file).rows, path.name)
    if found := _read_foreign({"results": [row.values for row in rows]}, choice):
        return replace(found, skipped=skipped)
    if part:
        raise ConfigError(f"{file!r} is a table, which holds one run: leave out {'#' + part!r}")
    return _read_table(rows, skipped, named, path.name)


def _split_part(source: str) -> tuple[str, str]:
    """Return the file and the name of the run in it, from "FILE#NAME"."""
    file, sign, part = source.partition("#")
    return (source, "") if not sign or Path(source).exists() else (file, part)


# ---- journals


def _read_journal(path: Path, run: str, name: str) -> RunResults:
    """Return the results of a run in a journal; of the only one, if none is named."""
    with Journal(path, create=False, read_only=True) as journal:
        runs = journal.runs()
        matches = [info for info in runs if not run or run in {info.name, info.display_name}]
        if len(matches) != 1:
            listed = ", ".join(repr(info.display_name) for info in runs) or "none"
            problem = f"has no run {run!r}" if run else "has several runs: name one as FILE#NAME"
            raise ConfigError(f"{str(path)!r} {problem}; there are {listed}")
        rows = [_journal_row(info, trace) for info, trace in journal.traces(matches[0].name)]
    return RunResults(name, "redraft", rows, "best_score")


def _journal_row(info: RowInfo, trace: Trace) -> ResultRow:
    facts, task = info.facts, trace.task
    columns = facts.columns if facts else {}
    text = _own_text(trace.best.text if trace.best else None, columns)
    return ResultRow(
        info.id,
        task_key(task),
        facts.score if facts else None,
        text,
        {**task.metadata, **columns},
        task,
    )


def _own_text(text: str | None, columns: Mapping[str, Any]) -> str | None:
    """Return the answer of a row of `redraft batch`: "" if the given one was blank, None if another
    error left none.
    """
    if not has_value(error := columns.get("error")):
        return text
    return (
        "" if str(error).startswith(NoResponseError.__name__) else text if has_value(text) else None
    )


# ---- documents


def _read_document(path: Path) -> Any:
    """Return the value of a JSON file; None for JSON Lines. Raises ConfigError."""
    try:
        with BufferedReader(open_regular(path)) as file:
            data = open_text(file, ENCODING.get())[0].read(MAX_DOCUMENT_BYTES + 1)
        if len(data) > MAX_DOCUMENT_BYTES:
            raise ConfigError(f"{str(path)!r} is larger than {MAX_DOCUMENT_BYTES >> 20} MiB")
        return strict_loads(data.decode("utf-8-sig"), MAX_DOCUMENT_MEMORY)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            return None
        raise ConfigError(
            f"{str(path)!r} is not JSON: {error.msg} in line {error.lineno}"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{str(path)!r} cannot be read: {read_error_message(error)}") from error
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{str(path)!r} is not JSON that can be read: {error}") from error


# ---- tables


def _all_rows(
    read: Callable[[Callable[[BadRow], None]], Iterator[Row]], name: str
) -> tuple[Sequence[Row], tuple[str, ...]]:
    """Return the rows of a table, and the reasons why others could not be read. Raises ConfigError
    for more rows than can be compared.
    """
    bad: list[str] = []
    rows = read(lambda each: bad.append(f"{each.location}: {each.message}"))
    good = list(islice(rows, results.MAX_RESULTS + 1))
    check_size(good, name)
    return good, tuple(bad)


def _read_table(
    rows: Sequence[Row], skipped: tuple[str, ...], named: Mapping[str, str], name: str
) -> RunResults:
    """Return the results in a table: an output of `redraft batch`, or any other with a column of
    scores.
    """
    if not rows:
        raise _no_row(name, skipped)
    sample = SampleColumns([row.values for row in rows[:SAMPLE]])
    for role, column in named.items():
        sample.require(f"{role}={column!r}", column)

    def find(role: str, names: Sequence[str]) -> str | None:
        return named.get(role) or next(filter(sample.has, names), None)

    pass_names = [column for column in PASS_NAMES if _holds_scores(sample.rows, column)]
    score = find("score", (*SCORE_NAMES, *pass_names))
    if score is None:
        raise ConfigError(
            f"{name!r}: no column is known to be the score; name it. There are "
            f"{sample.column_list()}"
        )
    id, response = find("id", ID_NAMES), find("response", ANSWER_NAMES)
    is_own = all(map(sample.has, OWN_COLUMNS))
    read_score = score_reader(
        value for row in rows if (value := value_at(row.values, score)) is not MISSING
    )
    found, unreadable = [], []
    for row in rows:
        try:
            found.append(_table_row(row.values, score, read_score, id, response, is_own=is_own))
        except AmbiguousLabel as error:
            unreadable.append(f"{row.location}: {score!r}: {error}")
    return RunResults(
        name,
        "redraft" if is_own else "table",
        found,
        score,
        (*skipped, *unreadable),
        _task_reader(sample.rows, named, is_own=is_own),
    )


def _no_row(name: str, skipped: Sequence[str]) -> ConfigError:
    return ConfigError(
        f"{name!r}: no row can be read: {skipped[0]}" if skipped else f"{name!r} has no row"
    )


def _holds_scores(rows: Sequence[Mapping[str, Any]], column: str) -> bool:
    """Return whether a column holds scores from 0 to 1 and nothing else."""
    values = [
        value
        for row in rows
        if (value := value_at(row, column)) is not MISSING and not is_missing(value)
    ]
    try:
        return bool(values) and all(0 <= score <= 1 for score in map(score_reader(values), values))
    except AmbiguousLabel:
        return False


def _table_row(
    values: Mapping[str, Any],
    score: str,
    read_score: Callable[[Any], float],
    id: str | None,
    response: str | None,
    *,
    is_own: bool,
) -> ResultRow:
    value = value_at(values, score)
    number = None if value is MISSING or is_missing(value) else read_score(value)
    given = MISSING if id is None else value_at(values, id)
    text = MISSING if response is None else value_at(values, response)
    known_id = None if given is MISSING or is_missing(given) else str(given)
    if text is None and number is not None:
        text = ""  # null, with a score
    known_text = text if isinstance(text, str) else None
    return ResultRow(
        known_id, "", number, _own_text(known_text, values) if is_own else known_text, values
    )


def _task_reader(
    sample: Sequence[Mapping[str, Any]], named: Mapping[str, str], *, is_own: bool
) -> Callable[[Mapping[str, Any]], Task | None] | None:
    """Return a function that reads the task of a row; None if no column is known to be the prompt.

    In an output of `redraft batch` (`is_own`), the first response of a row is no part of the task.
    """
    columns = TaskColumns(named.get("prompt"), named.get("messages"), named.get("response"))
    try:
        mapping = infer_columns(sample, columns, check_requirement=check_foreign_spec)
    except ConfigError:
        return None

    def read(values: Mapping[str, Any]) -> Task | None:
        try:
            task = mapping.task(values)
        except ValueError:
            return None
        return replace(task, response=None, responses=()) if is_own else task

    return read


# ---- result files of other programs


def _read_foreign(document: Any, choice: ResultChoice) -> RunResults | None:
    """Return the results in a document of another program; None if it has no known form."""
    read = next((read for fits, read in FORMS if fits(document)), None)
    return read(document, choice) if read else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _number_or_none(value: Any) -> float | None:
    """Return a finite number, 1 or 0 for true and false; None for anything else."""
    if isinstance(value, bool):
        return float(value)
    try:
        return float(value) if isinstance(value, int | float) and isfinite(value) else None
    except OverflowError:
        return None


def _text(value: Any) -> str | None:
    """Return a text: as it is, or that of the parts of a message; anything else as None."""
    if isinstance(value, list):
        parts = [part.get("text") for part in value if isinstance(part, Mapping)]
        texts = [part for part in parts if isinstance(part, str)] or [
            part for part in value if isinstance(part, str)
        ]
        return "".join(texts) if texts else None
    return value if isinstance(value, str) else None


def _only_one(
    choice: ResultChoice, what: str, wanted: str, chosen: Sequence[str], known: Collection[str]
) -> str:
    """Return the only one of the chosen names of scores or of runs. Raises ConfigError if there is
    none or several; `known` are all names, `wanted` the one that is chosen, or "".
    """
    if len(chosen) == 1:
        return chosen[0]
    listed = ", ".join(format_value(each, 120) for each in islice(chosen or known, 20))
    if wanted and not chosen:
        problem = f"no {what} {format_value(wanted, 80)}; there are {listed or 'none'}"
    elif not known:
        problem = f"no {what}"
    elif what == "score":
        problem = f"several scores: {listed}; name one"
    else:
        problem = f"several runs: name one as FILE#NAME; there are {listed}"
    raise ConfigError(f"{choice.name!r} has {problem}")


# ---- promptfoo


def _is_promptfoo(document: Any) -> bool:
    """Return whether a document is the output of `promptfoo eval`."""
    rows = _promptfoo_rows(document)
    return bool(rows) and all("testIdx" in row or "testCase" in row for row in rows[:20])


def _promptfoo_rows(document: Any) -> list[Mapping[str, Any]]:
    inner = document.get("results") if isinstance(document, Mapping) else None
    if isinstance(inner, Mapping):
        inner = inner.get("results")
    return [row for row in inner if isinstance(row, Mapping)] if isinstance(inner, list) else []


def _read_promptfoo(document: Any, choice: ResultChoice) -> RunResults:
    """Return the rows of one provider and prompt: `part` is the provider, the label of the prompt,
    or both with "|" between.
    """
    by_part: dict[str, list[ResultRow]] = {}
    for row in _promptfoo_rows(document):
        by_part.setdefault(_promptfoo_part(row), []).append(_promptfoo_row(row, choice))
    chosen = [part for part in by_part if choice.part in {"", part, *part.split("|")}]
    part = _only_one(choice, "provider|prompt", choice.part, chosen, by_part)
    return RunResults(choice.name, "promptfoo", by_part[part], choice.score or "score")


def _promptfoo_part(row: Mapping[str, Any]) -> str:
    provider, prompt = row.get("provider"), row.get("prompt")
    name = (
        provider.get("label") or provider.get("id") if isinstance(provider, Mapping) else provider
    )
    label = prompt.get("label") if isinstance(prompt, Mapping) else None
    index = row.get("promptIdx")
    return f"{name or 'provider'}|{label if isinstance(label, str) and len(label) < 80 else index if index is not None else 0}"  # noqa: E501


def _promptfoo_row(row: Mapping[str, Any], choice: ResultChoice) -> ResultRow:
    case, response, graded = (
        _mapping(row.get(key)) for key in ("testCase", "response", "gradingResult")
    )
    variables = _mapping(row.get("vars")) or _mapping(case.get("vars"))
    score = (
        _mapping(row.get("namedScores")).get(choice.score)
        if choice.score
        else row.get("score", graded.get("score"))
    )
    if score is None and not choice.score:
        score = graded.get("pass", row.get("success"))
    failed = row.get("failureReason") == PROMPTFOO_ERROR or (
        bool(row.get("error")) and response.get("output") is None
    )
    index = row.get("testIdx")
    key = hash_task(variables) if variables else hash_task(["test", index, case.get("description")])
    metadata = {
        **_mapping(case.get("metadata")),
        **{f"vars.{name}": value for name, value in variables.items()},
    }
    return ResultRow(
        None,
        key,
        None if failed else _number_or_none(score),
        _text(response.get("output")),
        metadata,
    )


# ---- Inspect


def _is_inspect(document: Any) -> bool:
    """Return whether a document is a log of Inspect (.json), or the samples of one."""
    return (
        isinstance(document, Mapping)
        and isinstance(document.get("eval"), Mapping)
        and isinstance(document.get("samples"), list)
    )


def _read_inspect(document: Any, choice: ResultChoice) -> RunResults:
    """Return the samples; several epochs of a sample are repeats. `score` is a scorer, or
    "SCORER.KEY".
    """
    samples = [sample for sample in document["samples"] if isinstance(sample, Mapping)]
    names = dict.fromkeys(name for sample in samples for name in _inspect_scores(sample))
    chosen = [name for name in names if choice.score in {"", name}]
    score = _only_one(choice, "score", choice.score, chosen, names)
    rows = [_inspect_row(sample, score) for sample in samples]
    return RunResults(choice.name, "inspect", rows, score)


def _inspect_fields(sample: Any) -> dict[str, Any]:
    """Return the fields of a sample that are read: without its messages and events, which take most
    of the memory.
    """
    return (
        {name: sample[name] for name in INSPECT_FIELDS if name in sample}
        if isinstance(sample, Mapping)
        else {}
    )


def _inspect_scores(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of all scorers; those of a scorer with several values as "SCORER.KEY"."""
    values: dict[str, Any] = {}
    scores = sample.get("scores") or ({"score": sample["score"]} if sample.get("score") else {})
    for name, score in _mapping(scores).items():
        value = score.get("value") if isinstance(score, Mapping) else score
        inner = value.items() if isinstance(value, Mapping) else [("", value)]
        values |= {f"{name}.{key}" if key else name: each for key, each in inner}
    return values


def _inspect_row(sample: Mapping[str, Any], score: str) -> ResultRow:
    value = _inspect_scores(sample).get(score)
    number = _word_value(value) if isinstance(value, str) else _number_or_none(value)
    attachments = _mapping(sample.get("attachments"))
    output = _mapping(_with_attachments(sample.get("output"), attachments))
    choices = output.get("choices")
    message = (
        _mapping(_mapping(choices[0]).get("message"))
        if isinstance(choices, list) and choices
        else {}
    )
    text = (
        output.get("completion")
        if isinstance(output.get("completion"), str)
        else _text(message.get("content"))
    )
    id = sample.get("id")
    question = _with_attachments(sample.get("input"), attachments)
    metadata = dict(_mapping(sample.get("metadata")))
    task = hash_task([question, sample.get("target")]) if question else ""
    return ResultRow(
        None if id is None else str(id),
        task,
        None if sample.get("error") else number,
        text,
        metadata,
        _task(question),
    )


def _with_attachments(value: Any, attachments: Mapping[str, Any]) -> Any:
    """Return a value with the texts that it refers to; None if one of them is not there."""
    try:
        return _resolve(value, attachments)
    except LookupError:
        return None


def _resolve(value: Any, attachments: Mapping[str, Any]) -> Any:
    if isinstance(value, str):
        return (
            attachments[value.removeprefix(ATTACHMENT)] if value.startswith(ATTACHMENT) else value
        )
    if isinstance(value, Mapping):
        return {name: _resolve(inner, attachments) for name, inner in value.items()}
    return [_resolve(inner, attachments) for inner in value] if isinstance(value, list) else value


def _word_value(word: str) -> float | None:
    """Return the value of a word, or of a number that is written as a text."""
    known = INSPECT_WORDS.get(word if len(word) == 1 else word.lower())
    try:
        return _number_or_none(float(word)) if known is None and len(word) < 40 else known
    except ValueError:
        return None


def _task(question: Any) -> Task | None:
    """Return the task of a text, or of messages; None for anything else."""
    try:
        return Task(question) if isinstance(question, str | list) and question else None
    except (ValueError, TypeError, AttributeError, KeyError):
        return None


def _archive_samples(path: Path) -> Iterator[dict[str, Any]]:
    """Yield what is read of the samples in a log of Inspect (.eval), a ZIP archive with one JSON
    file for each.
    """
    zipfile = _zip_library()
    try:
        with BufferedReader(open_regular(path)) as file, _open_archive(path, file) as archive:
            members = [info for info in archive.infolist() if _is_sample(info.filename)]
            total = sum(info.file_size for info in members)
            if len(members) > MAX_SAMPLES or total > MAX_DOCUMENT_BYTES:
                raise ConfigError(
                    f"{str(path)!r} holds {len(members):,} samples of {total >> 20:,} MiB, which "
                    "is too much"
                )
            for info in members:
                yield _inspect_fields(_archive_sample(path, archive, info))
    except NotImplementedError as error:
        raise ConfigError(
            f"{str(path)!r} needs Zstandard: {install_command('zstd')}, or convert the log to .json"
        ) from error
    except (
        OSError,
        EOFError,
        RuntimeError,
        zlib.error,
        zipfile.BadZipFile,
        *_zstd_errors(),
    ) as error:
        raise ConfigError(
            f"{str(path)!r} is not a log of Inspect that can be read: {read_error_message(error)}"
        ) from error


def _open_archive(path: Path, file: Any) -> Any:
    """Return an open ZIP archive. Raises ConfigError for one whose directory would take too much
    memory.
    """
    file.seek(max(0, file.seek(0, SEEK_END) - MAX_ZIP_END))
    if _directory_bytes(file.read(MAX_ZIP_END)) > MAX_DIRECTORY_BYTES:
        raise ConfigError(f"{str(path)!r} holds more files than a log of Inspect can have")
    file.seek(0)
    return _zip_library().ZipFile(file)


def _directory_bytes(end: bytes) -> int:
    """Return the size of the directory of a ZIP archive, from the records at its end; 0 if there
    are none.
    """
    mark = b"PK\5\6"
    place = (
        len(end) - 22 if end[-22:].startswith(mark) and end.endswith(b"\0\0") else end.rfind(mark)
    )
    if place < 0:
        return 0
    # of a large archive, another record before it has the size
    if end[max(0, place - 20) :].startswith(b"PK\6\7"):
        return int.from_bytes(end[max(0, place - 36) : max(0, place - 28)], "little")
    return int.from_bytes(end[place + 12 : place + 16], "little")


def _zstd_errors() -> tuple[type[Exception], ...]:
    return tuple(library.ZstdError for name in ZSTD if (library := sys.modules.get(name)))


def _zip_library() -> Any:
    """Return the module for ZIP archives; if it is installed, the one that also reads those with
    Zstandard.
    """
    with suppress(ImportError):
        return import_module("backports.zstd.zipfile")
    return import_module("zipfile")


def _is_sample(name: str) -> bool:
    folder, _, file = name.partition("/")
    return (
        folder == "samples"
        and file.endswith(".json")
        and (file.count("/") == 0 or file.endswith("/sample.json"))
    )


def _archive_sample(path: Path, archive: Any, info: Any) -> Any:
    with archive.open(info) as member:
        # the size in the directory of a hostile archive may be wrong
        data = member.read(MAX_SAMPLE_BYTES + 1)
    if len(data) > MAX_SAMPLE_BYTES:
        raise ConfigError(
            f"{str(path)!r}: sample {format_value(info.filename, 80)} is larger than "
            f"{MAX_SAMPLE_BYTES >> 20} MiB"
        )
    try:
        return strict_loads(data.decode())
    except ValueError as error:
        raise ConfigError(
            f"{str(path)!r}: sample {format_value(info.filename, 80)} is not JSON: {error}"
        ) from error


Fits: TypeAlias = Callable[[Any], bool]
FORMS: Sequence[tuple[Fits, Callable[[Any, ResultChoice], RunResults]]] = (
    (_is_promptfoo, _read_promptfoo),
    (_is_inspect, _read_inspect),
)
"""Forms of result files of other programs: whether a document has it, and what reads it."""
