"""Reads the results of a run: a journal or an output of `redraft batch`, a table, or a result file
of another program.

Files may be hostile: documents, archives and the number of rows are bounded.
"""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from io import SEEK_END, BufferedReader
from pathlib import Path
from typing import Any

from ..base import checks
from ..base.checks import format_value, install_command, read_error_message
from ..base.documents import open_regular
from ..base.jsontext import strict_loads
from ..errors import ConfigError
from ..loop.task import Task
from ..loop.trace import Trace
from ..requirements.spec import check_foreign_spec
from ..runs import BatchReport
from ..storage.journal import Journal, RowInfo
from ..tables.columns import (
    RESPONSE_NAMES,
    NoResponseError,
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
from .foreign_results import (
    FORMS,
    ResultChoice,
    inspect_fields,
    read_inspect,
)
from .results import ResultRow, RunResults, check_size, task_key

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
        results = _read_journal(Path(source.journal), source.run, source.run)
    elif isinstance(source, str | Path):
        results = _read_path(str(source), named)
    else:
        results = _read_rows(_Rows.of(open_source(source).rows, "rows"), named, "rows")
    check_size(results.rows, results.name)
    if not results.rows:
        raise _no_row(results.name, results.skipped)
    return replace(results, name=name or results.name)


def _read_path(source: str, named: Mapping[str, str]) -> RunResults:
    file, part = _split_part(source)
    path = Path(file)
    choice = ResultChoice(path.name, part, named.get("score", ""))
    if path.suffix == ".journal":
        return _read_journal(path, part, part or path.name)
    if path.suffix == ".eval":
        samples = read_inspect({"eval": {}, "samples": list(_archive_samples(path))}, choice)
        return RunResults(path.name, "inspect", samples.rows, samples.score_name)
    if path.suffix == ".json" and path.is_file():
        results = _read_foreign(_read_document(path), choice)
        if results is not None:
            return results
    rows = _Rows.of(open_source(file).rows, path.name)
    results = _read_foreign({"results": [row.values for row in rows.good]}, choice)
    if results is not None:
        return replace(results, skipped=rows.skipped)
    if part:
        raise ConfigError(f"{file!r} is a table, which holds one run: leave out {'#' + part!r}")
    return _read_rows(rows, named, path.name)


def _read_foreign(document: Any, choice: ResultChoice) -> RunResults | None:
    """Return the results in a document of another program; None if it has no known form."""
    for form in FORMS:
        if form.matches(document):
            found = form.read(document, choice)
            return RunResults(choice.name, form.name, found.rows, found.score_name)
    return None


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


# ---- documents and archives


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
                yield inspect_fields(_archive_sample(path, archive, info))
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


# ---- tables


class _Rows:
    """The rows of a table, and the reasons why others could not be read."""

    def __init__(self, good: Sequence[Row], skipped: tuple[str, ...]) -> None:
        self.good, self.skipped = good, skipped

    @classmethod
    def of(cls, read: Callable[[Callable[[BadRow], None]], Iterator[Row]], name: str) -> _Rows:
        bad: list[str] = []
        good: list[Row] = []
        for row in read(lambda each: bad.append(f"{each.location}: {each.message}")):
            good.append(row)
            if len(good) % 100_000 == 0:
                check_size(good, name)
        return cls(good, tuple(bad))


def _read_rows(rows: _Rows, named: Mapping[str, str], name: str) -> RunResults:
    """Return the results in a table: an output of `redraft batch`, or any other with a column of
    scores.
    """
    if not rows.good:
        raise _no_row(name, rows.skipped)
    sample = SampleColumns([row.values for row in rows.good[:SAMPLE]])
    for role, column in named.items():
        sample.require(f"{role}={column!r}", column)
    score = named.get("score") or next(
        (column for column in SCORE_NAMES if sample.has(column)), None
    )
    score = score or next(
        (
            column
            for column in PASS_NAMES
            if sample.has(column) and _holds_scores(sample.rows, column)
        ),
        None,
    )
    if score is None:
        raise ConfigError(
            f"{name!r}: no column is known to be the score; name it. There are "
            f"{sample.column_list()}"
        )
    id = named.get("id") or next((column for column in ID_NAMES if sample.has(column)), None)
    response = named.get("response") or next(
        (column for column in ANSWER_NAMES if sample.has(column)), None
    )
    is_own = all(sample.has(column) for column in OWN_COLUMNS)
    results, skipped = [], list(rows.skipped)
    read_score = score_reader(
        value for row in rows.good if (value := value_at(row.values, score)) is not MISSING
    )
    for row in rows.good:
        try:
            results.append(_table_row(row.values, score, read_score, id, response, is_own=is_own))
        except AmbiguousLabel as error:
            skipped.append(f"{row.location}: {score!r}: {error}")
    read_task = _task_reader(rows.good[:SAMPLE], named, is_own=is_own)
    return RunResults(
        name, "redraft" if is_own else "table", results, score, tuple(skipped), read_task
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
    sample: Sequence[Row], named: Mapping[str, str], *, is_own: bool
) -> Callable[[Mapping[str, Any]], Task | None] | None:
    """Return a function that reads the task of a row; None if no column is known to be the prompt.

    In an output of `redraft batch` (`is_own`), the first response of a row is no part of the task.
    """
    columns = TaskColumns(named.get("prompt"), named.get("messages"), named.get("response"))
    try:
        mapping = infer_columns(
            [row.values for row in sample], columns, check_requirement=check_foreign_spec
        )
    except ConfigError:
        return None

    def read(values: Mapping[str, Any]) -> Task | None:
        try:
            task = mapping.task(values)
        except ValueError:
            return None
        return replace(task, response=None, responses=()) if is_own else task

    return read
