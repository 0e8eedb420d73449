"""Reading rows from files: every format gives the same rows with their places, and unreadable rows
are reported.
"""

import csv
import gzip
import io
import json
import sys
import tracemalloc
from time import thread_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redraft.errors import ConfigError
from redraft.tables import BadRow, iter_rows

PEOPLE = [{"name": "Ann", "says": 'a, "b"\nc'}, {"name": "Bö", "says": ""}]


def zstd(data):
    from backports.zstd import compress

    return compress(data)


def parquet(table):
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(table), sink, row_group_size=1)
    return sink.getvalue()


def duplicate_column():
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]), sink)
    return sink.getvalue()


def separated_values(delimiter):
    out = io.StringIO()
    writer = csv.DictWriter(out, ["name", "says"], delimiter=delimiter)
    writer.writeheader()
    writer.writerows(PEOPLE)
    return out.getvalue().encode()


LINES = "\n".join(map(json.dumps, PEOPLE)).encode()
WHOLE = json.dumps(PEOPLE, ensure_ascii=False, indent=1).encode()
FILES = {
    "t.jsonl": LINES,
    "t.NDJSON": b"\xef\xbb\xbf" + LINES.replace(b"\n", b"\r\n\r\n") + b"\n",
    "t.json": WHOLE,
    "object.json": b'{"version": 1, "rows": ' + WHOLE + b"}",
    "lines.json": LINES,
    "t.csv": b"\xef\xbb\xbf" + separated_values(","),
    "t.tsv": separated_values("\t"),
    "t.parquet": parquet(PEOPLE),
    "t.jsonl.gz": gzip.compress(LINES[:20]) + gzip.compress(LINES[20:]),
    "t.csv.gz": gzip.compress(separated_values(",")),
    "t.jsonl.zst": zstd(LINES[:20]) + zstd(LINES[20:]),
    "t.json.zst": zstd(WHOLE),
}


@pytest.mark.parametrize("name", FILES)
def test_every_format_gives_the_same_rows(tmp_path, name):
    """The file extension selects the format; byte order marks and empty lines are ignored."""
    path = tmp_path / name
    path.write_bytes(FILES[name])
    assert [dict(row.values) for row in iter_rows(path)] == PEOPLE


def test_stdin_is_json_lines(monkeypatch):
    """A dash means stdin, and places say so."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(LINES)))
    assert [row.location for row in iter_rows("-")] == ["stdin:1", "stdin:2"]


@pytest.mark.parametrize(
    ("name", "data", "places"),
    [
        ("t.jsonl", b'{"a": 1}\n\n{"a": 2}', [1, 3]),
        ("t.csv", b'a,b\n1,"x\ny"\n\n2,z\n', [2, 5]),
        ("t.json", b'[\n\n{"a": 1},\n{"a": 2}]', [1, 2]),
        ("t.parquet", parquet([{"a": 1}, {"a": 2}]), [1, 2]),
    ],
)
def test_row_has_a_place(tmp_path, name, data, places):
    """The place is the line where the row begins; in documents and Parquet it is the number of the
    row.
    """
    path = tmp_path / name
    path.write_bytes(data)
    assert [row.location for row in iter_rows(path)] == [f"{path}:{n}" for n in places]


BAD = {
    "no JSON": ("t.jsonl", b'{"a": 1}\n{"a": \n{"a": 2}', 2, "not JSON"),
    "no object": ("t.jsonl", b'{"a": 1}\n[1]\n{"a": 2}', 2, "must be an object, got list"),
    "a key twice": ("t.jsonl", b'{"a": 1}\n{"a": 1, "a": 3}\n{"a": 2}', 2, "'a' occurs twice"),
    "no UTF-8": ("t.jsonl", b'{"a": 1}\n{"a": "\xe9\x81"}\n{"a": 2}', 2, "not UTF-8"),
    "much too deep": ("t.jsonl", b'{"a": 1}\n' + b"[" * 200_000 + b'\n{"a": 2}', 2, "not JSON"),
    "too deep": (
        "t.jsonl",
        b'{"a": 1}\n{"a": ' + b"[" * 210 + b"]" * 210 + b'}\n{"a": 2}',
        2,
        "more than 200 deep",
    ),
    "a number without end": (
        "t.jsonl",
        b'{"a": 1}\n{"a": ' + b"9" * 5000 + b'}\n{"a": 2}',
        2,
        "not JSON",
    ),
    "too few fields": ("t.csv", b"a,b\n1,x\n2\n2,x\n", 3, "1 fields, but 2 columns"),
    "too many fields": ("t.csv", b"a,b\n1,x\n2,3,4\n2,x\n", 3, "3 fields, but 2 columns"),
    "text after a quote": ("t.csv", b'a,b\n1,x\n"2"x,y\n2,x\n', 3, "not CSV"),
    "CSV that is no UTF-8": (
        "t.csv",
        b"a,b\n1,x\n\xe9\xe8\xe7,y\n2,x\n",
        3,
        "name its encoding by --encoding",
    ),
    "an item that is no object": (
        "t.json",
        b'[{"a": 1}, 7, {"a": 2}]',
        2,
        "must be an object, got int",
    ),
}


@pytest.mark.parametrize(("name", "data", "line", "complaint"), BAD.values(), ids=BAD)
def test_bad_row_is_reported_or_raises(tmp_path, name, data, line, complaint):
    """The report has place and reason, and the rows around it are read."""
    path = tmp_path / name
    path.write_bytes(data)
    bad: list[BadRow] = []
    assert [int(row.values["a"]) for row in iter_rows(path, bad.append)] == [1, 2]
    assert [b.location for b in bad] == [f"{path}:{line}"]
    assert complaint in bad[0].message
    with pytest.raises(ConfigError, match=f"{name}:{line}: .*{complaint}"):
        list(iter_rows(path))


def test_open_quote_is_reported_where_it_begins(tmp_path):
    """The text that it swallowed is not read as rows."""
    path = tmp_path / "t.csv"
    path.write_bytes(b'a,b\n1,x\n2,"y\n3,z\n')
    bad = []
    assert [row.values["a"] for row in iter_rows(path, bad.append)] == ["1"]
    assert bad == [BadRow(f"{path}:3", "not CSV: unexpected end of data")]


NO_FILES = {
    "nothing there": ("t.jsonl", None, "cannot be read: No such file"),
    "an unknown ending": (
        "t.xlsx",
        b"",
        "must end in .jsonl, .ndjson, .json, .csv, .tsv, .parquet",
    ),
    "packed Parquet": ("t.parquet.gz", b"", "all but .parquet"),
    "no gzip": ("t.jsonl.gz", LINES, "Not a gzipped file"),
    "gzip cut off": ("t.jsonl.gz", gzip.compress(LINES)[:-9], "cannot be read"),
    "gzip with rot": ("t.jsonl.gz", gzip.compress(LINES)[:30] + b"\0" * 40, "cannot be read"),
    "no Zstandard": ("t.jsonl.zst", LINES, "cannot be read"),
    "Zstandard cut off": ("t.jsonl.zst", zstd(LINES * 100)[:-9], "cannot be read"),
    "no Parquet": ("t.parquet", LINES, "cannot be read"),
    "Parquet cut off": ("t.parquet", parquet(PEOPLE)[:-9], "cannot be read"),
    "JSON cut off": ("t.json", WHOLE[:-2], "not JSON"),
    "no list": ("t.json", b'{"a": 1}', "it holds no list"),
    "a lone number": ("t.json", b"7", "it holds no list"),
    "two lists": ("t.json", b'{"train": [], "test": []}', "lists under 'train', 'test'"),
    "a column twice": ("t.csv", b"a,a\n1,2\n", "'a' is named twice"),
    "a column of Parquet twice": ("t.parquet", duplicate_column(), "'a' is named twice"),
    "a broken header": ("t.csv", b'"a"b,c\n1,2\n', "t.csv:1: not CSV"),
}


@pytest.mark.parametrize(("name", "data", "complaint"), NO_FILES.values(), ids=NO_FILES)
def test_unreadable_file_is_always_an_error(tmp_path, name, data, complaint):
    """A truncated table never passes for a whole one, even if bad rows are collected."""
    path = tmp_path / name
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(ConfigError, match=complaint):
        list(iter_rows(path, lambda bad: None))


def test_unknown_file_type_is_rejected(tmp_path):
    """The error comes before the first row is read."""
    with pytest.raises(ConfigError):
        iter_rows(tmp_path / "t.docx")


@pytest.mark.parametrize(
    ("name", "missing", "extra"),
    [
        ("t.parquet", ["pyarrow.parquet"], "parquet"),
        ("t.jsonl.zst", ["compression.zstd", "backports.zstd"], "zstd"),
    ],
)
def test_missing_library_is_named(tmp_path, monkeypatch, name, missing, extra):
    """The error says what to install."""
    (tmp_path / name).write_bytes(FILES[name])
    for module in missing:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf"pip install 'redraft\[{extra}\]'"):
        list(iter_rows(tmp_path / name))


@pytest.mark.parametrize("packed", [False, True])
def test_oversized_line_is_skipped(tmp_path, packed):
    """A line of 100 MB is reported and skipped, and the next line is read."""
    path = tmp_path / ("t.jsonl.gz" if packed else "t.jsonl")
    with gzip.open(path, "wb", compresslevel=1) if packed else path.open("wb") as file:
        for _ in range(100):
            file.write(b" " * 2**20)
        file.write(b'\n{"a": 2}\n')
    bad = []
    tracemalloc.start()
    assert [row.values for row in iter_rows(path, bad.append)] == [{"a": 2}]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert bad == [BadRow(f"{path}:1", "the line is longer than 32 MiB")]
    assert peak < 100 * 2**20


def test_rows_are_read_lazily(tmp_path):
    """The first row is available before the rest is read."""
    path = tmp_path / "t.jsonl"
    path.write_bytes(b'{"a": 1}\nbroken')
    found = iter_rows(path)
    assert next(found).values == {"a": 1}
    with pytest.raises(ConfigError):
        next(found)


def test_long_csv_field_is_read(tmp_path):
    """The csv module's limit of 131072 characters does not apply."""
    path = tmp_path / "t.csv"
    path.write_text(f'a\n"{"x" * 500_000}"\n')
    assert len(next(iter_rows(path)).values["a"]) == 500_000


TEXTS = st.dictionaries(
    st.text(max_size=8), st.none() | st.booleans() | st.integers() | st.text(max_size=8), min_size=1
)


def test_adjacent_brackets_are_not_nested(tmp_path):
    """Only nested brackets count as depth."""
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps({"a": [[]] * 1000}))
    assert next(iter_rows(path)).values == {"a": [[]] * 1000}


@given(st.lists(TEXTS))
def test_json_lines_round_trip(tmp_path_factory, table):
    """Lone surrogates, NUL and line separators round trip."""
    path = tmp_path_factory.getbasetemp() / "property.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in table))
    assert [row.values for row in iter_rows(path)] == table


@settings(deadline=None)  # the first file of Parquet starts a worker
@given(
    st.binary(max_size=200),
    st.sampled_from([".jsonl", ".json", ".csv", ".tsv", ".parquet", ".jsonl.gz", ".csv.zst"]),
)
def test_any_bytes_are_rows_bad_rows_or_an_error(tmp_path_factory, data, ending):
    """Any bytes give rows, bad rows or a Redraft error."""
    path = tmp_path_factory.getbasetemp() / f"any{ending}"
    path.write_bytes(data)
    try:
        list(iter_rows(path, lambda bad: None))
    except ConfigError as error:
        assert path.name in str(error)


@pytest.mark.parametrize("name", ["t.jsonl", "t.csv"])
def test_duplicate_among_many_columns(tmp_path, name):
    """Finding it takes time linear in the number of columns."""
    columns = [f"c{n}" for n in range(60_000)] + ["c59999"]
    content = (
        ",".join(columns)
        if name == "t.csv"
        else "{" + ", ".join(f'"{column}": 1' for column in columns) + "}"
    )
    (tmp_path / name).write_text(content + "\n")
    start = thread_time()
    with pytest.raises(ConfigError, match="'c59999'.* twice"):
        list(iter_rows(tmp_path / name))
    assert thread_time() - start < 5
