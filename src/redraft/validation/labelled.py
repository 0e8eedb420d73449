"""Labelled rows of any shape as cases.

The user names columns, or they are recognised by their usual names and reported. A row that cannot
be understood is left out, with its location and the reason; nothing is guessed. `cases` knows what
a label means, `recorded` reads outputs of other judges.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias, get_args

from ..base import checks
from ..base.jsontext import dumps
from ..errors import ConfigError
from ..loop.serialize import pack
from ..loop.task import Message, Task
from ..tables.columns import OTHER_PROMPT_NAMES, PROMPT_NAMES
from ..tables.readers import BadRow, Row, iter_rows
from ..tables.row_values import read_message, tests_at, tests_metadata, text_at
from ..tables.sources import Source, open_source
from .benchmarks import Benchmark, benchmark_case, find_benchmark
from .cases import AmbiguousLabel, LabelKind, LabelledCase, is_missing, with_clusters
from .label_file import Sample, is_label_file, read_labels
from .labelled_table import (
    CASE_ID_NAMES,
    INPUT_ROLES,
    LABEL_ROLES,
    LabelledTable,
    LabelSchema,
    cell,
    chat_cell,
    filter_rows,
    infer_schema,
    list_cell,
    to_text,
    without_repeats,
)

MAX_ROWS = 10**15


@dataclass(frozen=True, slots=True)
class LabelledCases:
    """The labelled cases in some rows.

    `scale`: the lowest and the highest number that people gave (kind score), else None.
    `skipped_rows`: the rows that cannot be understood, with the reasons. `column_notes`: the role
    of each column, in words. `ignored_filters`: the columns of "where:COLUMN" that the rows do not
    have. `column_list`: all columns, as text. `name`: the name of the file, or of the kind of rows.
    `sha256`: a hash of the rows and of how they were read. `benchmark`: the name of the benchmark
    whose shape the rows have, or "". `label_scale`: the lowest and the highest number that people
    could give, if the rows are labels of `redraft label`. `repeated_rows`: how many rows were equal
    to another one, and do not count. `label_name`: the column of the labels, or "" if there is
    none, or if what its values mean was stated. `not_random`: the IDs of cases that are not a
    sample of all rows (see `random`).
    """

    cases: tuple[LabelledCase, ...]
    kind: LabelKind
    scale: tuple[float, float] | None
    skipped_rows: tuple[BadRow, ...]
    column_notes: tuple[str, ...]
    ignored_filters: tuple[str, ...] = ()
    column_list: str = ""
    name: str = "rows"
    sha256: str = ""
    benchmark: str = ""
    label_scale: tuple[float, float] | None = None
    repeated_rows: int = 0
    label_name: str = ""
    not_random: frozenset[str] = frozenset()

    @property
    def random(self) -> tuple[LabelledCase, ...]:
        """The cases that may count in an estimate of all rows.

        Labels of `redraft label` say which rows were drawn at random. The others were chosen
        because their labels teach most, so that they are not like all rows. Labels of any other
        origin are taken to be of a random sample.
        """
        return tuple(case for case in self.cases if case.id not in self.not_random)

    def with_lower_better(self, scale: tuple[float, float] | None = None) -> LabelledCases:
        """Return the cases with labels mirrored on their scale, so that higher is better; `scale`
        is that of the labels, if known.

        Raises ConfigError unless the labels are numbers.
        """
        ends = scale or self.label_scale or self.scale
        if self.kind != "score" or ends is None:
            raise ConfigError(
                "lower_is_better is about labels of kind score, and these are of kind "
                f"{self.kind}: say what a value means, such as label:1=fail"
            )
        cases = tuple(
            replace(
                case,
                label=sum(ends) - (case.label or 0.0),
                ratings=tuple(
                    None if rating is None else sum(ends) - rating for rating in case.ratings
                ),
            )
            for case in self.cases
        )
        return replace(self, cases=cases, scale=_label_range(self.kind, cases))


def read_cases(
    rows: Any,
    columns: Mapping[str, str] = {},
    *,
    kind: LabelKind | None = None,
    limit: int | None = None,
) -> LabelledCases:
    """Read the first `limit` labelled rows: of a file, in any format of `tables.iter_rows`, or of
    what `tables.open_source` takes.

    `columns` maps roles to columns: prompt, messages, context, reference, tests, id, group, parent
    (the ID of the row that this one refines), cluster (what several rows have in common); response,
    or response_a and response_b, or chosen and rejected, or responses; label, ratings (one for each
    rater), ranking (the rank of each response, from 1, equal for ties) or order (the numbers of the
    responses, best first). "scores.overall" reaches into objects, "r1,r2,r3" joins columns to a
    list (ratings, responses). Ratings that are as many numbers as there are responses are a score
    of each. "label:VALUE" gives the meaning of a value of the label: first, second, tie; pass,
    fail; a number. "where:COLUMN" keeps the rows with that value. Other roles are recognised by the
    usual names of columns, unless "" says that no column has the role; a named column goes before
    what is recognised.

    `kind` is inferred from the columns and the labels unless given. Several ratings become one
    label: the mean of scores, else the most frequent rating. The order of chosen and rejected
    responses depends on their texts only. Unless `columns` names a role, the shapes of published
    benchmarks are recognised (see `benchmarks`). Identical rows count once, and rows with the same
    ID or task are one cluster. Raises ConfigError for a column that does not exist, if several
    columns could be the label, and if no row can be understood.
    """
    if kind is not None and kind not in get_args(LabelKind):
        raise ConfigError(f"kind={kind!r}: there are {', '.join(get_args(LabelKind))}")
    checks.whole_number("limit", limit, 1, MAX_ROWS, optional=True)
    checks.mapping("columns", columns, '{"prompt": "question"}', optional=False)
    return cases_of_source(labelled_source(rows), columns, kind=kind, limit=limit)


def cases_of_source(
    source: Source,
    columns: Mapping[str, str],
    *,
    kind: LabelKind | None = None,
    limit: int | None = None,
    keep_undecided: bool = False,
) -> LabelledCases:
    """Return what `read_cases` returns. With `keep_undecided`, rows without a most frequent rating
    are ties, else left out.
    """
    read, skipped, ignored = filter_rows(source.rows, columns, limit)
    chosen = without_repeats(read)
    table = LabelledTable(columns, chosen)
    if not chosen:
        raise ConfigError(
            f"{source.name!r} holds no row{' that fits' if columns else ''}{_first_errors(skipped)}"
        )
    form = _recognise(table, kind, keep_undecided=keep_undecided)
    read_rows = list(_read_all_cases(form.read_case, chosen, skipped))
    if not read_rows:
        raise ConfigError(
            f"{source.name!r}: none of its rows can be understood{_first_errors(skipped)}"
        )
    cases: Sequence[LabelledCase] = [case for _, case in read_rows]
    if "cluster" not in table.assigned:
        cases = with_clusters(cases, [case.cluster for case in cases])
    return LabelledCases(
        tuple(cases),
        form.kind,
        _label_range(form.kind, cases),
        tuple(skipped),
        tuple(form.notes(len(cases))),
        tuple(ignored),
        table.sample.column_list(),
        Path(source.name).name,
        _digest(source.paths, {**columns, **form.identity}, cases),
        form.benchmark,
        label_scale=_label_scale(chosen) if form.kind == "score" else None,
        repeated_rows=len(read) - len(chosen),
        label_name="" if table.label_meanings() else table.assigned.get("label", ""),
        not_random=frozenset() if "where:sample" in columns else _not_random(read_rows),
    )


def as_labelled_cases(
    cases: Iterable[LabelledCase], skipped: Sequence[BadRow] = ()
) -> LabelledCases:
    """Return cases that were made in Python; equal ones count once. Raises ConfigError if there are
    none, or of several kinds.
    """
    given, by_id = list(cases), dict[str, LabelledCase]()
    for case in given:
        if by_id.setdefault(case.id, case) != case:
            raise ConfigError(
                f"cases: the ID {checks.format_value(case.id, 80)} is that of two different cases"
            )
    known = tuple(by_id.values())
    if len(kinds := {case.kind for case in known}) != 1:
        raise ConfigError(
            f"cases: all labels must be of one kind, got {', '.join(sorted(kinds)) or 'no case'}"
        )
    digest, repeated = _digest((), {}, known), len(given) - len(known)
    if not any(case.cluster for case in known):
        known = with_clusters(known)
    return LabelledCases(
        known,
        known[0].kind,
        _label_range(known[0].kind, known),
        tuple(skipped),
        (),
        sha256=digest,
        repeated_rows=repeated,
    )


def random_cases(files: Sequence[LabelledCases]) -> list[tuple[LabelledCase, ...]]:
    """Return the cases of each file that may count in an estimate of all rows. Raises ConfigError
    if there is none.
    """
    random = [file.random for file in files]
    if not any(random):
        labelled = sum(len(file.cases) for file in files)
        raise ConfigError(
            f"labels: none of the {labelled} labelled rows was drawn at random; if they are a "
            "random sample of all rows, say so: label column where:sample=imported"
        )
    return random


def labelled_source(rows: Any) -> Source:
    """Return the source of rows; a single file is read as it is named, and a file of labels as one
    row for each item.
    """
    if isinstance(rows, Source):
        return rows
    if isinstance(rows, str | Path) and is_label_file(path := Path(rows)):
        found = read_labels(path).rows()
        labelled = [Row(f"{rows}:{n}", values) for n, values in enumerate(found, 1)]
        return Source(str(rows), lambda _: iter(labelled), (path,))
    if isinstance(rows, str | Path) and Path(rows).is_file():
        return Source(str(rows), lambda on_error: iter_rows(rows, on_error), (Path(rows),))
    return open_source(rows)


def _digest(
    paths: Sequence[Path], columns: Mapping[str, str], cases: Iterable[LabelledCase]
) -> str:
    """Return a hash of the columns and of the content of the files; of the cases if the rows are in
    no file.
    """
    digest = sha256(json.dumps(sorted(columns.items())).encode())
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    if not paths:
        for case in cases:
            digest.update(dumps({**pack(replace(case, cluster="")), "task": pack(case.task)}))
    return digest.hexdigest()


@dataclass(frozen=True)
class _RowForm:
    """A form of labelled rows: how a row becomes a case, and what is reported about `n` cases.

    `identity` goes into the digest of the cases; `benchmark` is the name of one, or "".
    """

    kind: LabelKind
    read_case: Callable[[Row], LabelledCase]
    notes: Callable[[int], Iterable[str]]
    identity: Mapping[str, str]
    benchmark: str = ""


def _recognise(table: LabelledTable, kind: LabelKind | None, *, keep_undecided: bool) -> _RowForm:
    """Return the form of rows: the shape of a benchmark, unless the user names a role, else that
    of their columns. Raises ConfigError.
    """
    named_roles = [role for role in table.explicit if not role.startswith("where:")]
    benchmark = None if named_roles else find_benchmark([row.values for row in table.rows], kind)
    if benchmark:
        return _benchmark_form(benchmark)
    schema = infer_schema(table, kind, keep_undecided=keep_undecided)
    return _RowForm(
        schema.kind,
        _case_reader(table, schema),
        lambda n: _column_notes(table, schema, n),
        {"kind": str(kind)},
    )


def _benchmark_form(benchmark: Benchmark) -> _RowForm:
    def notes(n: int) -> Iterable[str]:
        return (
            f"{benchmark.name} ({benchmark.source}): {n} cases of kind {benchmark.kind}",
            f"score: {benchmark.about}",
            "the order in which a grader sees the responses depends on their texts only",
        )

    return _RowForm(
        benchmark.kind,
        lambda row: benchmark_case(benchmark, row.values, Path(row.location).name),
        notes,
        {"benchmark": benchmark.name},
        benchmark.name,
    )


KIND_DESCRIPTIONS: dict[LabelKind, str] = {
    "score": "a number for a response",
    "pass": "a response passes or fails",
    "pair": "which of two responses is better",
    "ranking": "the order of several responses",
}


def _first_errors(bad_rows: Sequence[BadRow]) -> str:
    errors = "; ".join(f"{bad.location}: {bad.message}" for bad in bad_rows[:3])
    return f" ({errors}{'; ...' if len(bad_rows) > 3 else ''})" if errors else ""


PromptReader: TypeAlias = Callable[[Row], str | list[Message]]


def _prompt_reader(table: LabelledTable) -> PromptReader:
    """Return the function that reads the prompt. Without a column for it the prompt is empty: some
    graders need none.
    """
    used = set(table.assigned.values())
    if messages := table.find("messages"):
        return lambda row: [read_message(message, messages) for message in list_cell(row, messages)]
    prompt = table.find(
        "prompt", [name for name in (*PROMPT_NAMES, *OTHER_PROMPT_NAMES) if name not in used]
    )
    if prompt is None:
        chosen = table.assigned.get("chosen")
        return lambda row: (
            chat[:-1] if isinstance(chat := chat_cell(row, chosen), list) and len(chat) > 1 else ""
        )
    if (
        prompt == "instruction"
        and "prompt" not in table.explicit
        and table.sample.has("input")
        and "input" not in used
    ):
        table.assigned["prompt"] = "instruction, then input"
        return lambda row: "\n\n".join(
            filter(None, (text_at(row.values, "instruction"), text_at(row.values, "input")))
        )
    return lambda row: _read_prompt(row, prompt)


def _read_prompt(row: Row, name: str) -> str | list[Message]:
    value = chat_cell(row, name)
    if value is None:
        raise AmbiguousLabel(f"the task is empty in {name!r}")
    return (
        [read_message(message, name) for message in value]
        if isinstance(value, list)
        else text_at(row.values, name) or ""
    )


def _id_readers(table: LabelledTable) -> tuple[Callable[[Row], str], str | None]:
    """Return the function that reads the ID of a row, and the column of its cluster.

    The ID is in its column, if every row has a different one, else it is file and line. An ID that
    is not unique is a cluster.
    """
    name, cluster = table.find("id", CASE_ID_NAMES), table.find("cluster", ())
    if name and "id" not in table.explicit:
        ids = {to_text(cell(row, name)) for row in table.rows if not is_missing(cell(row, name))}
        if len(ids) < len(table.rows):
            del table.assigned["id"]
            name, cluster = None, cluster or name

    def read_id(row: Row) -> str:
        if name is None:
            return Path(row.location).name
        if is_missing(value := cell(row, name)):
            raise AmbiguousLabel(f"the id is missing in {name!r}")
        return to_text(value)

    return read_id, cluster


def _case_reader(table: LabelledTable, schema: LabelSchema) -> Callable[[Row], LabelledCase]:
    """Return the function that makes a case of a row. It raises ValueError for a row that cannot be
    understood.
    """
    read_prompt = _prompt_reader(table)
    read_id, cluster_name = _id_readers(table)
    context, reference, tests_name = (
        table.find("context"),
        table.find("reference"),
        table.find_tests(),
    )
    marks = (table.find("group"), table.find("parent", ("parent",)), cluster_name)

    def read(row: Row) -> LabelledCase:
        id = read_id(row)
        given, gold = text_at(row.values, context), text_at(row.values, reference)
        tests = tests_at(row.values, tests_name)
        task = Task(
            read_prompt(row),
            id=id,
            context=given or None,
            reference=gold or None,
            tests=tests,
            metadata=tests_metadata(row.values) if tests else {},
        )
        judged = schema.read(row)
        group, parent, cluster = (
            "" if (value := cell(row, name)) is None else to_text(value) for name in marks
        )
        case = LabelledCase(
            id,
            schema.kind,
            task,
            judged.responses,
            judged.label,
            judged.ranks,
            judged.ratings,
            group,
            parent=parent,
            cluster=cluster,
        )
        return _shuffle_pair(case) if schema.shuffle else case

    return read


def _shuffle_pair(case: LabelledCase) -> LabelledCase:
    """Swap the two responses of about every second case, by a hash of its texts, so that their
    order says nothing.
    """
    texts = "\0".join((case.task.prompt, *sorted(case.responses))).encode("utf-8", "surrogatepass")
    swap = sha256(texts).digest()[0] % 2 == (case.responses[0] < case.responses[1])
    return (
        replace(case, responses=case.responses[::-1], ranks=(case.ranks or ())[::-1])
        if swap
        else case
    )


def _read_all_cases(
    read_case: Callable[[Row], LabelledCase], rows: Sequence[Row], bad_rows: list[BadRow]
) -> Iterator[tuple[Row, LabelledCase]]:
    """Yield the rows that can be understood, with their cases; add the others to `bad_rows`."""
    seen: dict[str, str] = {}
    for row in rows:
        try:
            case = read_case(row)
            if case.id in seen:
                raise AmbiguousLabel(
                    f"the ID {checks.format_value(case.id, 80)} is also that of {seen[case.id]}"
                )
        except ValueError as error:
            bad_rows.append(BadRow(row.location, str(error)))
            continue
        seen[case.id] = row.location
        yield row, case


def _not_random(read_rows: Iterable[tuple[Row, LabelledCase]]) -> frozenset[str]:
    """Return the IDs of cases that were not drawn at random: those of `redraft label` say it."""
    samples = {
        case.id: row.values["sample"] if is_label_row(row.values) else "" for row, case in read_rows
    }
    if not any(samples.values()):
        return frozenset()
    return frozenset(id for id, sample in samples.items() if sample != "random")


def is_label_row(values: Mapping[str, Any]) -> bool:
    """Whether a row is one of labels that `redraft label` collected."""
    return values.get("sample") in get_args(Sample) and isinstance(values.get("ratings"), list)


def _label_scale(rows: Sequence[Row]) -> tuple[float, float] | None:
    """Return the scale that labels of `redraft label` name; None for other rows, or if they name
    several.
    """
    scales = [row.values.get("scale") if is_label_row(row.values) else None for row in rows]
    first = scales[0]
    if not (
        isinstance(first, list)
        and len(first) == 2
        and all(map(checks.is_number, first))
        and first[0] < first[1]
    ):
        return None
    return (float(first[0]), float(first[1])) if all(scale == first for scale in scales) else None


def _label_range(kind: LabelKind, cases: Sequence[LabelledCase]) -> tuple[float, float] | None:
    if kind != "score":
        return None
    values = [value for case in cases for value in (case.label, *case.ratings) if value is not None]
    return min(values), max(values)


def _column_notes(table: LabelledTable, schema: LabelSchema, n: int) -> list[str]:
    """Return in words the kind of `n` cases, the role of each column and the meaning of each value
    of the label.
    """
    notes = [f"{n} cases of kind {schema.kind}: {KIND_DESCRIPTIONS[schema.kind]}"]
    notes += [
        f"{role}: column {table.assigned[role]!r}"
        for role in (*INPUT_ROLES, *LABEL_ROLES)
        if role in table.assigned
    ]
    if not {"prompt", "messages", "chosen"} & table.assigned.keys():
        notes.append("no column holds the task: it is empty")
    if "id" not in table.assigned:
        notes.append("id: file and line")
    if schema.shuffle:
        notes.append(
            "the chosen response is the better one; which of the two comes first depends on their "
            "texts only"
        )
    counts = schema.label_counts.most_common(12)
    notes += [
        f"label {checks.format_value(value, 80)}: {meaning} ({count} rows)"
        for (value, meaning), count in counts
    ]
    if "label" not in table.assigned and "ratings" in table.assigned:
        notes.append(
            f"the label is the {'mean of the ratings' if schema.kind == 'score' else 'most frequent rating'}"  # noqa: E501
        )
    return [*notes, *_sample_notes(table)]


SAMPLE_WORDS: Mapping[str, str] = {
    "random": "drawn at random",
    "chosen": "chosen because their labels teach most",
    "imported": "from elsewhere",
}


def _sample_notes(table: LabelledTable) -> Iterator[str]:
    """Yield how rows of `redraft label` were chosen, if not all were drawn at random: their
    agreement is not that of all rows.
    """
    counts = Counter(row.values["sample"] for row in table.rows if is_label_row(row.values))
    if counts.keys() - {"random"}:
        listed = ", ".join(
            f"{counts[name]} {words}" for name, words in SAMPLE_WORDS.items() if counts[name]
        )
        hint = (
            "; where:sample=random keeps those that represent all rows" if counts["random"] else ""
        )
        yield f"rows: {listed}{hint}"
