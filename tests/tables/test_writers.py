"""Writing tables: rows arrive in any order, and the output is ordered, complete and readable after
any interruption.
"""

import csv
import io
import json
import resource
import sys
import tracemalloc
from contextlib import contextmanager
from datetime import UTC, date, datetime, time
from decimal import Decimal
from random import Random
from uuid import UUID

import numpy
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from redraft.errors import ConfigError, StoreError
from redraft.tables import iter_rows, spool
from redraft.tables import table_writers as tables
from redraft.tables.writers import merge_columns, open_output, result_column_names

PEOPLE = [{"name": "Ann", "says": 'a, "b"\r\nc', "n": 1}, {"name": "Bö", "says": "", "n": 2}]
LOSSLESS = ["t.jsonl", "t.NDJSON", "t.jsonl.gz", "t.jsonl.zst", "t.parquet"]
TABLES = [*LOSSLESS, "t.csv", "t.tsv"]


def put(path, table, order=None, *, whole=True, **options):
    output = open_output(path, **options)
    for n in order if order is not None else range(len(table)):
        output.put(n, table[n])
    output.close(complete=whole)
    return path


def read_rows(path):
    return [dict(row.values) for row in iter_rows(path)]


@pytest.mark.parametrize("name", TABLES)
def test_written_rows_are_read_again(tmp_path, name):
    """The file extension selects the format, and no other file is left in the folder."""
    table = PEOPLE if name in LOSSLESS else [{**row, "n": str(row["n"])} for row in PEOPLE]
    assert read_rows(put(tmp_path / name, PEOPLE)) == table
    assert [p.name for p in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", TABLES)
def test_empty_table_is_valid(tmp_path, name):
    """It can be read and has no rows."""
    assert read_rows(put(tmp_path / name, [])) == []


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz", "t.jsonl.zst", "t.csv", "t.parquet"])
def test_the_same_rows_give_the_same_bytes(tmp_path, name):
    """The order in which rows arrive does not matter."""
    table = [{"n": n, "text": "x" * (n % 7)} for n in range(50)]
    first = put(tmp_path / f"a{name}", table).read_bytes()
    order = list(range(50))
    Random(1).shuffle(order)
    assert put(tmp_path / f"b{name}", table, order).read_bytes() == first


@given(st.permutations(range(12)), st.integers(0, 12))
def test_rows_are_written_in_order(tmp_path_factory, order, stop):
    """Rows after a gap wait; an interrupted run publishes written and waiting rows in order."""
    path = tmp_path_factory.getbasetemp() / "order.jsonl"
    output = open_output(path)
    for count, n in enumerate(order[:stop], 1):
        output.put(n, {"n": n})
        there = set(order[:count])
        whole = next(n for n in range(13) if n not in there)
        assert (output.written_count, output.pending_count) == (whole, count - whole)
    output.close(complete=False)
    assert [row["n"] for row in read_rows(path)] == sorted(order[:stop])


def test_unordered_rows_are_written_at_once(tmp_path):
    """No row waits."""
    path = put(tmp_path / "t.jsonl", [{"n": n} for n in range(5)], [3, 1, 4, 0, 2], ordered=False)
    assert [row["n"] for row in read_rows(path)] == [3, 1, 4, 0, 2]


def test_duplicate_or_missing_row_is_an_error(tmp_path):
    """Either is a bug of Redraft that must be visible."""
    output = open_output(tmp_path / "t.jsonl")
    output.put(0, {})
    output.put(2, {})
    for n in (0, 2):
        with pytest.raises(ValueError, match=f"row {n} was already put"):
            output.put(n, {})
    with pytest.raises(ValueError, match="row 1 is missing, and 1 rows after it wait"):
        output.close()
    output.close(complete=False)


@pytest.mark.slow
def test_waiting_rows_use_little_memory(tmp_path):
    """Forty thousand rows wait for the first one."""
    output = open_output(tmp_path / "t.jsonl", spool=tmp_path)
    tracemalloc.start()
    for n in range(1, 40_000):
        output.put(n, {"n": n, "text": "x" * 300})
    assert output.pending_count == 39_999
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    output.put(0, {"n": 0})
    assert (output.written_count, output.pending_count) == (40_000, 0)
    output.close()
    assert peak < 4 * 2**20
    assert [row.values["n"] for row in iter_rows(tmp_path / "t.jsonl")] == list(range(40_000))


def test_any_arrival_order(tmp_path):
    """Rows of any length may arrive far apart and in bursts."""
    random, order = Random(7), list(range(20_000))
    for start in range(0, 20_000, 5000):
        part = order[start : start + 5000]
        random.shuffle(part)
        order[start : start + 5000] = part
    table = [{"n": n, "text": "y" * random.randrange(100)} for n in range(20_000)]
    assert read_rows(put(tmp_path / "t.jsonl", table, order)) == table


def test_space_of_delivered_rows_is_reused(tmp_path, monkeypatch):
    """The spool uses about as much disk space as the waiting rows."""
    monkeypatch.setattr("redraft.tables.spool.COMPACT_BYTES", 10_000)
    monkeypatch.setattr("redraft.tables.spool.TRIM_PLACES", 16)
    waiting = spool.OutOfOrderBuffer()
    for n in range(1, 5000):
        waiting.put(n, b"%d %s\n" % (n, b"x" * (n % 50)), 1)
        if n > 20:
            assert waiting.pop(n - 20) == b"%d %s\n" % (n - 20, b"x" * ((n - 20) % 50))
    assert list(waiting.numbers()) == list(range(4980, 5000))
    assert waiting._file_bytes < 20_000


# --- resuming
# ----------------------------------------------------------------------------


def test_file_cut_anywhere_is_completed(tmp_path):
    """Writing again after a kill gives the same bytes."""
    table = [{"n": n, "text": "ä\n" * n} for n in range(6)]
    path = put(tmp_path / "t.jsonl", table)
    whole = path.read_bytes()
    for end in range(len(whole) + 1):
        path.write_bytes(whole[:end])
        put(path, table, resume=True)
        assert path.read_bytes() == whole


def test_finished_rows_stay_during_a_resume(tmp_path):
    """The old rows are readable all the time, and only rows that differ are replaced."""
    path = put(tmp_path / "t.jsonl", [{"n": n} for n in range(5)])
    output = open_output(path, resume=True)
    output.put(0, {"n": 0})
    assert len(read_rows(path)) == 5
    output.put(1, {"n": 1})
    output.put(2, {"n": "another"})
    output.put(3, {"n": 3})
    output.close()
    assert [row["n"] for row in read_rows(path)] == [0, 1, "another", 3]


def test_file_ends_with_the_last_row(tmp_path):
    """No row of a longer earlier run is left."""
    path = put(tmp_path / "t.jsonl", [{"n": n} for n in range(5)])
    assert len(read_rows(put(path, [{"n": 0}, {"n": 1}], resume=True))) == 2
    assert read_rows(put(path, [{"n": 7}])) == [{"n": 7}]


@pytest.mark.parametrize("waits", [[], [7], [5, 6, 9]])
def test_interrupted_resume_keeps_a_finished_output(tmp_path, waits):
    """The file stays whole if the run stops before a difference; a torn line is removed."""
    path = put(tmp_path / "t.jsonl", [{"n": n} for n in range(10)])
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"n": 1')
    put(path, [{"n": n} for n in range(10)], [0, 1, 2, *waits], whole=False, resume=True)
    assert path.read_bytes() == whole


def test_interrupted_output_keeps_the_longer_rows(tmp_path):
    """The waiting rows are published if they are more than the rows in the file."""
    table = [{"n": n} for n in range(10)]
    path = put(tmp_path / "t.jsonl", table[:3])
    put(path, table, [0, 5, 6, 7], whole=False, resume=True)
    assert read_rows(path) == [{"n": n} for n in (0, 5, 6, 7)]


def test_no_old_row_after_a_difference(tmp_path):
    """It also holds if the run is interrupted."""
    path = put(tmp_path / "t.jsonl", [{"n": n} for n in range(10)])
    put(path, [{"n": 0}, {"n": "another"}], whole=False, resume=True)
    assert read_rows(path) == [{"n": 0}, {"n": "another"}]


def test_slow_rows_are_flushed(tmp_path, monkeypatch):
    """A row that arrives half a second after the last flush is visible at once."""
    monkeypatch.setattr(
        "redraft.tables.writers.monotonic", iter([0.0, 0.4, 0.6, 0.6, 0.7]).__next__
    )
    output = open_output(tmp_path / "t.jsonl")
    seen = []
    for n in range(3):
        output.put(n, {"n": n})
        seen.append(len(read_rows(tmp_path / "t.jsonl")))
    assert seen == [0, 2, 2]
    monkeypatch.undo()
    output.close()


@pytest.mark.parametrize("name", ["t.jsonl.gz", "t.csv", "t.parquet"])
def test_other_formats_are_published_on_close(tmp_path, name):
    """Until then the old file stays, and an interrupted run is published, too."""
    path = put(tmp_path / name, [{"n": "old"}])
    path.chmod(0o640)
    output = open_output(path, resume=True)
    output.put(0, {"n": "new"})
    output.put(2, {"n": "later"})
    assert read_rows(path) == [{"n": "old"}]
    output.close(complete=False)
    output.close()
    assert read_rows(path) == [{"n": "new"}, {"n": "later"}]
    assert path.stat().st_mode & 0o777 == 0o640


def test_error_publishes_the_rows_so_far(tmp_path):
    """The context manager closes the output as incomplete."""
    with pytest.raises(RuntimeError), open_output(tmp_path / "t.csv") as output:
        output.put(0, {"n": 1})
        output.put(2, {"n": 3})
        raise RuntimeError
    assert read_rows(tmp_path / "t.csv") == [{"n": "1"}, {"n": "3"}]


# --- full disks and invalid outputs
# ----------------------------------------------------------------------------


@contextmanager
def file_size_limit(size):
    """Limit the size of any file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("name", TABLES)
def test_full_disk_is_reported(tmp_path, name):
    """The file stays readable, temporary files are removed, and every later row is rejected."""
    random, path = Random(3), tmp_path / name
    output = open_output(path)
    with (
        file_size_limit(3_000_000),
        pytest.raises(
            StoreError,
            match=rf"{name}' cannot be written: .*; (the last row written|nothing was written)",
        ) as error,
    ):
        for n in range(4000):
            output.put(n, {"n": n, "text": random.randbytes(1000).hex()})
        output.close()
    with pytest.raises(StoreError):
        output.put(4000, {})
    output.close()
    if path.exists():
        last = len(read_rows(path))
        assert last > 1000
        assert f"the last row written is row {last}" in str(error.value)
    assert [p.name for p in tmp_path.iterdir()] == ([name] if path.exists() else [])


def test_full_disk_for_waiting_rows_is_reported(tmp_path):
    """The spool may be on another disk."""
    output = open_output(tmp_path / "t.jsonl", spool=tmp_path)
    with (
        file_size_limit(1_000_000),
        pytest.raises(
            StoreError, match="t.jsonl' cannot be written: .*; nothing was written to it"
        ),
    ):
        for n in range(1, 4000):
            output.put(n, {"text": "x" * 1000})


def test_run_resumes_after_a_full_disk(tmp_path):
    """The rows that were safe stay."""
    table = [{"n": n, "text": "x" * 1000} for n in range(3000)]
    path = tmp_path / "t.jsonl"
    with file_size_limit(2_000_000), pytest.raises(StoreError):
        put(path, table)
    assert read_rows(put(path, table, resume=True)) == table


NOWHERE = {
    "an unknown ending": (
        "t.xlsx",
        ConfigError,
        "must end in .jsonl, .ndjson, .jsonl.gz, .jsonl.zst, .parquet, .csv, .tsv",
    ),
    "packed CSV": ("t.csv.gz", ConfigError, "must end in"),
    "no folder": ("gone/t.jsonl", StoreError, "cannot be written: No such file"),
    "no folder for a draft": ("gone/t.parquet", StoreError, "cannot be written: No such file"),
    "a folder": ("t.jsonl", StoreError, "cannot be written: Is a directory"),
}


@pytest.mark.parametrize(("name", "kind", "complaint"), NOWHERE.values(), ids=NOWHERE)
def test_invalid_output_is_rejected(tmp_path, name, kind, complaint):
    """The error comes before anything is paid for."""
    if complaint.endswith("directory"):
        (tmp_path / name).mkdir()
    with pytest.raises(kind, match=complaint):
        open_output(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "missing", "extra"),
    [
        ("t.parquet", ["pyarrow.parquet"], "parquet"),
        ("t.jsonl.zst", ["compression.zstd", "backports.zstd"], "zstd"),
    ],
)
def test_missing_library_is_named(tmp_path, monkeypatch, name, missing, extra):
    """The error says what to install, and no temporary file is left."""
    for module in missing:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf"pip install 'redraft\[{extra}\]'"):
        open_output(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", [None, "-"])
def test_stdout_gets_json_lines(monkeypatch, path):
    """Each row is written at once for a reader behind a pipe, and stdout stays open."""
    out = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out))
    output = open_output(path)
    output.put(0, {"a": "ö"})
    assert out.getvalue() == '{"a":"ö"}\n'.encode()
    output.close()
    sys.stdout.write("and on")


def test_device_gets_json_lines():
    """The device is not read for existing rows."""
    with pytest.raises(
        StoreError,
        match="'/dev/full' cannot be written: No space left on device; nothing was written to it",
    ):
        put("/dev/full", PEOPLE, resume=True)


# --- values
# ----------------------------------------------------------------------------

TEXT = st.text(st.characters(exclude_categories=()), max_size=6)
VALUE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
TABLE = st.lists(st.dictionaries(TEXT, VALUE, max_size=4), max_size=6)


@given(TABLE)
def test_any_json_row_round_trips(tmp_path_factory, table):
    """Lone surrogates, NUL and numbers of any size round trip."""
    # surrogates that make a pair are one character from here on
    table = json.loads(json.dumps(table))
    first, second = (
        tmp_path_factory.getbasetemp() / name
        for name in ("property-in.jsonl", "property-out.jsonl")
    )
    first.write_text("".join(json.dumps(row) + "\n" for row in table))
    put(second, [row.values for row in iter_rows(first)])
    assert read_rows(second) == table
    assert second.read_bytes().count(b"\n") == len(table)


ODD = {
    "moment": (datetime(2020, 1, 2, 3, 4, tzinfo=UTC), "2020-01-02T03:04:00+00:00"),
    "day": (date(2020, 1, 2), "2020-01-02"),
    "time": (time(3, 4), "03:04:00"),
    "decimal": (Decimal("1.50"), "1.50"),
    "bytes": (b"\x00\xff", "AP8="),
    "scalar": (numpy.float32(0.5), 0.5),
    "array": (numpy.array([[1, 2]]), [[1, 2]]),
    "when": (numpy.datetime64("2020-01-02"), "2020-01-02"),
    "nan": (float("nan"), None),
    "endless": (numpy.float64("inf"), None),
    "uuid": (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    "set": ({"b", "a"}, ["a", "b"]),
    "tuple": ((1, (b"a",)), [1, ["YQ=="]]),
    "key": ({1: {None: date(2020, 1, 2)}}, {"1": {"None": "2020-01-02"}}),
    "surrogate": ([date(2020, 1, 2), "\ud800"], ["2020-01-02", "\ud800"]),
    "large": ([2**64, numpy.int64(1)], [2**64, 1]),
}


@pytest.mark.parametrize(("value", "written"), ODD.values(), ids=ODD)
def test_other_types_are_written_as_json(tmp_path, value, written):
    """It also holds inside lists and objects."""
    table = [{"a": value, "b": [{"c": value}]}]
    assert read_rows(put(tmp_path / "t.jsonl", table)) == [{"a": written, "b": [{"c": written}]}]


WRITTEN = ("t.csv", "t.tsv")
CELL = st.text(st.characters(exclude_categories=["Cs"])) | st.text(
    st.sampled_from("=+-@'\"\ufeff\0\r\n\t ,;\xa0＝a1"), max_size=5
)
CELLS = st.integers(1, 3).flatmap(
    lambda n: st.tuples(
        st.lists(CELL, min_size=n, max_size=n, unique=True),
        st.lists(st.lists(CELL, min_size=n, max_size=n)),
    )
)


@given(CELLS, st.sampled_from(WRITTEN), st.booleans())
def test_any_text_round_trips_through_csv(tmp_path_factory, cells, name, safe):
    """It holds for cells and column names, with and without spreadsheet safety."""
    columns, lines = cells
    table = [dict(zip(columns, line, strict=True)) for line in lines]
    assert (
        read_rows(
            put(tmp_path_factory.getbasetemp() / f"exact-{name}", table, spreadsheet_safe=safe)
        )
        == table
    )


@pytest.mark.parametrize("names", [["m"], ["m", "a"], ["a", "m"], ["a", "'m"]])
@pytest.mark.parametrize("safe", [False, True], ids=["exact", "safe"])
def test_column_named_like_the_safety_mark(tmp_path, names, safe):
    """The mark is the last of several columns; a column with its name is never alone."""
    names = [name.replace("m", "redraft_spreadsheet_safe") for name in names]
    table = [dict.fromkeys(names, "'=1")]
    assert read_rows(put(tmp_path / "t.csv", table, spreadsheet_safe=safe)) == table


FORMULAS = ["=1+1", "+1", "-a", "-1+1", "@x", "＝1", "＋1", "－1", "＠x", "﹦1", "−1"]
BEFORE = [
    "",
    " ",
    "\n",
    "\r",
    "\t",
    "\xa0",
    "\0",
    "\u3000",
    "\ufeff",
    "\u200b",
    "\x1b",
    "'",
    '"',
    " \0\n",
]


@pytest.mark.parametrize("name", WRITTEN)
def test_safe_csv_contains_no_formula(tmp_path, name):
    """Texts that a spreadsheet would evaluate get an apostrophe; numbers and negative numbers
    stay.
    """
    texts = [before + formula for before in BEFORE for formula in FORMULAS]
    harmless = ["x=1", "-1", "-1.5", -1, None, True, {"a": [1]}, "", "\ud800"]
    path = put(
        tmp_path / name, [{"=a": value} for value in (*texts, *harmless)], spreadsheet_safe=True
    )
    mark = "," if name == "t.csv" else "\t"
    with path.open(encoding="utf-8", newline="") as file:
        (head, *cells) = csv.reader(file, delimiter=mark)
    assert head == ["'=a", "redraft_spreadsheet_safe"]
    assert [cell for cell, _ in cells] == [
        *(f"'{text}" for text in texts),
        *("x=1", "-1", "-1.5", "-1", "", "true", '{"a":[1]}', "", r"\ud800"),
    ]


def test_foreign_csv_is_read_unchanged(tmp_path):
    """An apostrophe before a formula stays unless the file has the mark."""
    (tmp_path / "t.csv").write_text("id,prompt\n=2,a\n'=2,b\n-1,c\n'-1,d\n")
    assert [row["id"] for row in read_rows(tmp_path / "t.csv")] == ["=2", "'=2", "-1", "'-1"]


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_any_column_name(tmp_path, name):
    """A name without UTF-8 form is escaped, and its values are kept."""
    assert read_rows(put(tmp_path / name, [{"\ud800": "a", "\ud801": "b", "x\ny": "c"}])) == [  # noqa: F601
        {r"\ud800": "a", r"\ud801": "b", "x\ny": "c"}
    ]


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_columns_may_appear_late(tmp_path, name, monkeypatch):
    """The table has all columns in the order of appearance."""
    monkeypatch.setattr(spool, "ROWS_PER_GROUP", 2)
    path = put(tmp_path / name, [{"a": "1"}, {"b": "2", "a": "3"}, {"c": "4"}])
    empty = None if name == "t.parquet" else ""
    assert read_rows(path) == [
        {"a": "1", "b": empty, "c": empty},
        {"a": "3", "b": "2", "c": empty},
        {"a": empty, "b": empty, "c": "4"},
    ]


WIDENED = {
    "null, then text": ([None, None, "a"], [None, None, "a"]),
    "null, then an object": ([None, None, {"x": [1]}], [None, None, {"x": [1]}]),
    "whole, then broken numbers": ([1, 2, 2.5], [1.0, 2.0, 2.5]),
    "an object that grows": (
        [{"x": 1}, None, {"y": "b"}],
        [{"x": 1, "y": None}, None, {"x": None, "y": "b"}],
    ),
    "a list that was empty": ([[], [], ["a"]], [[], [], ["a"]]),
    "days": (
        [date(2020, 1, 2), None, date(2021, 1, 2)],
        [date(2020, 1, 2), None, date(2021, 1, 2)],
    ),
    "moments": ([None, None, datetime(2020, 1, 2, 3)], [None, None, datetime(2020, 1, 2, 3)]),
    "decimals": ([Decimal("1.5"), None, Decimal(2)], [Decimal("1.5"), None, Decimal(2)]),
    "bytes": ([b"\xff", None, b""], [b"\xff", None, b""]),
    "a lone surrogate": (["a", "b", "\ud800"], ["a", "b", r"\ud800"]),
    "nothing": ([None, None, None], [None, None, None]),
}
MIXED = {
    "numbers and texts": ([1, 2, "a"], ["1", "2", '"a"']),
    "texts and numbers": (["a", 1, None], ['"a"', "1", None]),
    "numbers and flags": ([1, None, True], ["1", None, "true"]),
    "texts and bytes": (["a", None, b"a"], ['"a"', None, '"YQ=="']),
    "days and moments": (
        [date(2020, 1, 2), None, datetime(2020, 1, 2, 3)],
        ['"2020-01-02"', None, '"2020-01-02T03:00:00"'],
    ),
    "objects and lists": ([{"x": 1}, None, [1]], ['{"x":1}', None, "[1]"]),
    "objects that disagree": ([{"x": 1}, None, {"x": "a"}], ['{"x":1}', None, '{"x":"a"}']),
    "empty objects": ([{}, None, {}], ["{}", None, "{}"]),
    "numbers too large": ([1, 2**70, None], ["1", str(2**70), None]),
    "numbers too large for broken ones": ([2**60 + 1, None, 0.5], [str(2**60 + 1), None, "0.5"]),
}


@pytest.mark.parametrize(("values", "stored"), WIDENED.values(), ids=WIDENED)
@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0]])
def test_parquet_type_holds_all_values(tmp_path, monkeypatch, values, stored, order):
    """The type may depend on a later row group or on rows that waited."""
    monkeypatch.setattr(spool, "ROWS_PER_GROUP", 2)
    notes = []
    path = put(tmp_path / "t.parquet", [{"a": v} for v in values], order, notify=notes.append)
    assert [row["a"] for row in read_rows(path)] == stored
    assert notes == []


@pytest.mark.parametrize(("values", "stored"), MIXED.values(), ids=MIXED)
def test_mixed_column_becomes_json(tmp_path, monkeypatch, values, stored):
    """One warning says so, and the other columns keep their type."""
    monkeypatch.setattr(spool, "ROWS_PER_GROUP", 2)
    notes = []
    path = put(tmp_path / "t.parquet", [{"a": v, "n": 1} for v in values], notify=notes.append)
    assert [row["a"] for row in read_rows(path)] == stored
    assert [row["n"] for row in read_rows(path)] == [1, 1, 1]
    assert notes == ["column 'a' holds values of several types: it is written as JSON"]


STATED = {
    "nothing": ([None, None], "double", [None, None]),
    "whole numbers": ([1, None], "double", [1.0, None]),
    "broken numbers": ([0.5, None], "double", [0.5, None]),
    "texts": (["a", None], "string", ["a", None]),
    "several types": ([1, "a"], "string", ["1", '"a"']),
}


@pytest.mark.parametrize(("values", "type_", "stored"), STATED.values(), ids=STATED)
def test_parquet_column_type_can_be_given(tmp_path, values, type_, stored):
    """A column of nulls then has the same schema in every run; values that do not fit win."""
    import pyarrow.parquet as pq

    types = {"a": float, "error": str, "calls": int, "not there": str}
    path = put(
        tmp_path / "t.parquet",
        [{"a": v, "error": None, "calls": None} for v in values],
        types=types,
    )
    assert [str(t) for t in pq.read_schema(path).types] == [type_, "string", "int64"]
    assert [row["a"] for row in read_rows(path)] == stored


@pytest.mark.parametrize("name", TABLES)
def test_given_types_are_ignored_by_other_formats(tmp_path, name):
    """Other formats accept the types without using them."""
    assert len(read_rows(put(tmp_path / name, PEOPLE, types={"n": int}))) == 2


@pytest.mark.slow
@given(TABLE, st.sampled_from(["p.parquet", "p.csv", "p.tsv"]))
def test_any_rows_of_json_make_a_table(tmp_path_factory, table, name):
    """The table has as many rows as were written."""
    columns = {key for row in table for key in row}
    assume(columns and len({tables.cell_text(key) for key in columns}) == len(columns))
    assert len(read_rows(put(tmp_path_factory.getbasetemp() / name, table))) == len(table)


# --- names
# ----------------------------------------------------------------------------


def test_result_columns_do_not_overwrite_input():
    """The input keeps its columns, even if it is the output of an earlier run."""
    result = {"best": "new", "stop": "done"}
    assert merge_columns({"a": 1}, result) == {"a": 1, "best": "new", "stop": "done"}
    assert merge_columns({"best": "mine"}, result) == {
        "best": "mine",
        "redraft_best": "new",
        "stop": "done",
    }
    again = {"best": "mine", "redraft_best": "old", "stop": None}
    assert merge_columns(again, result) == {
        **again,
        "redraft_redraft_best": "new",
        "redraft_stop": "done",
    }


def test_column_names_are_the_same_for_all_rows():
    """They also hold for rows without the column."""
    names = result_column_names(["best", "stop"], ["id", "best"])
    assert names == {"best": "redraft_best", "stop": "stop"}
    assert merge_columns({"id": 1}, {"best": "b"}, names) == {"id": 1, "redraft_best": "b"}
    assert merge_columns({"redraft_best": 1}, {"best": "b"}, names) == {
        "redraft_best": 1,
        "redraft_redraft_best": "b",
    }
