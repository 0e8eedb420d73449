"""Hostile rows: each row is processed or rejected with its place and a reason, and the other rows
continue.
"""

import gzip
import json
import math
import os
import subprocess
import sys
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redraft import batch_sync
from redraft.errors import ConfigError
from redraft.requirements import parse
from redraft.tables import iter_rows
from redraft.tables.columns import TaskColumns
from redraft.tables.sources import open_source


def nested_list(depth):
    value = "x"
    for _ in range(depth):
        value = [value]
    return value


class Unprintable:
    """An object whose repr raises."""

    def __repr__(self):
        raise RuntimeError("no")


LARGE = 10**5000
CHAT = [{"role": "user", "content": "Say it."}]
HOSTILE = {
    "null": None,
    "boolean": True,
    "number": 7,
    "many digits": LARGE,
    "NaN": math.nan,
    "infinity": math.inf,
    "empty": "",
    "half a pair": "\ud800",
    "NUL": "a\0b",
    "long": "x" * 2_000_000,
    "list": [],
    "lists as names": [{"from": ["x"], "value": {}}],
    "a role that is none": [{"role": ["user"], "content": 1}],
    "object": {},
    "keys that are no text": {1: {None: 2}},
    "as deep as may be": nested_list(190),
    "deep": nested_list(5000),
    "deep in a message": [{"role": "user", "content": nested_list(5000)}],
    "digits in a message": [{"role": "user", "content": [{"type": "text", "text": LARGE}]}],
    "deep in a text": "[" * 100_000,
    "digits in a text": "[" + "9" * 5000 + "]",
    "bytes": b"\xff",
    "date": date(2020, 1, 1),
    "span": timedelta(1),
    "decimal": Decimal("1e999999"),
    "not a decimal": Decimal("NaN"),
    "set": {1, "a"},
    "without a text": Unprintable(),
    "a schema's dialect that is a list": ['json_schema:{"$schema":["x"]}'],
    "a spec": 'json_schema:{"$schema":{}}',
}
FIELDS = (
    "prompt",
    "messages",
    "response",
    "id",
    "system",
    "reference",
    "context",
    "tests",
    "requirements",
    "metadata",
    "tools",
    "a.b",
)


def surround(field):
    """Return a good row, one row for each hostile value, and a good row."""
    base = {"prompt": "Say it.", "response": "It."}
    if field == "messages":
        base = {"messages": CHAT, "response": "It."}
    good = base | ({"requirements": "words:1-5"} if field == "requirements" else {})
    return [
        {**good, "id": "first"},
        *({**base, "id": name, field: value} for name, value in HOSTILE.items()),
        {**good, "id": "last"},
    ]


@pytest.mark.parametrize("given_as", [list, iter], ids=["list", "iterator"])
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.slow(but_each=12)
def test_hostile_row_stops_no_batch(tmp_path, field, given_as):
    """Every row has a result or appears in the errors file with its place and a reason."""
    table = surround(field)
    stated = {field: field} if field in TaskColumns.__dataclass_fields__ else {}
    output = tmp_path / "out.jsonl"
    report = batch_sync(
        given_as(table), output, False, "words:1-5", mode="grade", columns=TaskColumns(**stated)
    )
    bad = (
        [json.loads(line) for line in Path(f"{output}.errors.jsonl").read_text().splitlines()]
        if report.rows.bad
        else []
    )
    assert report.rows.done + report.rows.failed + report.rows.bad == len(table)
    assert len(bad) == report.rows.bad
    places = {row["location"] for row in bad}
    assert not places & {"row:1", f"row:{len(table)}"}
    assert all(len(row["message"]) > 10 for row in bad)
    assert all(
        (json.loads(line)["error"] or "ConfigError").startswith(("ConfigError", "NoResponseError"))
        for line in output.read_text().splitlines()
    )


def test_rejected_value_names_its_column():
    """The error also says which limit the value exceeds."""
    bad = []
    table = [{"a": 1, "b": {"c": LARGE}}, {"a": nested_list(300)}, {"a": Unprintable()}]
    assert list(open_source(table).rows(bad.append)) == []
    assert [row.message for row in bad] == [
        "'b': a whole number in it has more than 4300 digits",
        "'a': it is nested more than 200 deep",
        "'a': a Unprintable in it has no text: RuntimeError",
    ]


@pytest.mark.parametrize(
    ("item", "complaint"),
    [
        ('{"a": 1, "a": 2}', "'a' occurs twice"),
        (f'{{"a": {"9" * 5000}}}', "more than 4300 digits"),
        (f'{{"a": {"[" * 300}{"]" * 300}}}', "more than 200 deep"),
    ],
    ids=["twice", "digits", "deep"],
)
@pytest.mark.parametrize("name", ["t.json", "t.jsonl"])
def test_one_bad_object_stops_no_document(tmp_path, name, item, complaint):
    """It holds for a JSON document as for JSON Lines."""
    items = ['{"a": 0}', item, '{"a": 3}']
    (tmp_path / name).write_text(f"[{','.join(items)}]" if name == "t.json" else "\n".join(items))
    bad = []
    assert [row.values["a"] for row in iter_rows(tmp_path / name, bad.append)] == [0, 3]
    assert [(row.location, complaint in row.message) for row in bad] == [
        (f"{tmp_path / name}:2", True)
    ]


# --- requirements
# ----------------------------------------------------------------------------

KEYWORDS = (
    "$schema $ref $id $anchor $dynamicRef $recursiveRef $defs $vocabulary type enum const pattern properties additionalProperties "
    "required items prefixItems contains minContains uniqueItems minimum multipleOf maxLength dependencies dependentRequired allOf "
    "anyOf not if then propertyNames unevaluatedItems unevaluatedProperties disallow extends divisibleBy"
).split()
DIALECTS = ["http://json-schema.org/draft-03/schema#", "http://json-schema.org/draft-07/schema#"]
LEAF = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["string", "#", "http://[", "(", "x", *DIALECTS])
)
SCHEMA = st.recursive(
    LEAF,
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(KEYWORDS), inner, max_size=3)
    ),
    max_leaves=8,
)


@pytest.mark.slow
@settings(deadline=None, max_examples=6 * settings.default.max_examples)
@given(st.dictionaries(st.sampled_from(KEYWORDS), SCHEMA, min_size=1, max_size=3))
def test_any_schema_is_a_requirement_or_a_config_error(schema):
    """A valid schema can be checked against any text."""
    try:
        requirement = parse(f"json_schema:{json.dumps(schema)}", files=False)
    except ConfigError:
        return
    for text in (
        '{"type": {"items": [1, 1.5]}}',
        "[1, 1, null]",
        '"x"',
        "1e400",
        "[" * 300 + "]" * 300,
    ):
        assert requirement.check(text).measurement
        assert list(requirement.repairs(text)) is not None


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize(
    "schema",
    [
        {
            "properties": {
                "a": {
                    "$schema": "http://json-schema.org/draft-07/schema#",
                    "pattern": "^(([a-z])+.)+[A-Z]$",
                }
            }
        },
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "pattern": "^(([a-z])+.)+[A-Z]$",
            "properties": {"a": {"$ref": "#"}},
        },
    ],
    ids=["another dialect inside", "the whole by reference"],
)
def test_every_part_of_a_schema_obeys_the_pattern_limit(schema):
    """A subschema that names a dialect has the same limit."""
    script = "import sys\nfrom redraft.requirements import parse\nprint(parse(sys.argv[1]).check(sys.argv[2]))"
    text = json.dumps({"a": "a" * 40})
    done = subprocess.run(
        [sys.executable, "-c", script, f"json_schema:{json.dumps(schema)}", text],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert "could not be checked within 0.5 s" in done.stderr or "ok=False" in done.stdout


# --- decompression bombs
# ----------------------------------------------------------------------------


def shared_text(path):
    """256 cells that hold the same text of 16 MiB."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    text = pa.DictionaryArray.from_arrays(pa.array([0] * 256, pa.int8()), pa.array(["a" * 2**24]))
    pq.write_table(pa.table({"prompt": text}), path, compression="zstd")


def shared_in_a_list(path):
    """One cell with a list of 256 references to a 16 MiB text."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    text = pa.DictionaryArray.from_arrays(pa.array([0] * 256, pa.int8()), pa.array(["a" * 2**24]))
    pq.write_table(
        pa.table({"prompt": pa.ListArray.from_arrays([0, 256], text)}), path, compression="zstd"
    )


def one_large_cell(path):
    """A text of 100 MiB between two good ones."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(
        pa.table({"prompt": ["a", "b" * 100 * 2**20, "c"]}),
        path,
        compression="zstd",
        use_dictionary=False,
    )


def many_nulls(path):
    """One cell with a list of 10 million nulls."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(
        pa.table(
            {"prompt": pa.ListArray.from_arrays([0, 10_000_000], pa.nulls(10_000_000, pa.int8()))}
        ),
        path,
    )


def endless_field(path):
    """A quoted field of 40 MB, on many lines."""
    path.write_bytes(gzip.compress(b'prompt,x\na,1\n"' + (b"b" * 1000 + b"\n") * 40_000, 1))


def endless_line(path):
    """A line of 100 MB between two good ones."""
    path.write_bytes(
        gzip.compress(b'{"prompt": "a"}\n"' + b"b" * 100_000_000 + b'\n{"prompt": "c"}\n', 1)
    )


def brackets_in_a_line(path):
    """A line of 30 MiB that parses to 10 million lists."""
    path.write_bytes(
        gzip.compress(
            b'{"prompt": "a"}\n{"prompt": [' + b"[]," * 10_000_000 + b'[]]}\n{"prompt": "c"}\n', 1
        )
    )


def brackets_in_a_document(path):
    """A document of 60 MB that parses to 20 million lists."""
    path.write_bytes(gzip.compress(b"[" + b"[]," * 20_000_000 + b"[]]", 1))


BOMBS = {
    "shared.parquet": (shared_text, 3, "[]"),
    "list.parquet": (shared_in_a_list, 3, "could not be unpacked"),
    "cell.parquet": (one_large_cell, 3, "cell.parquet:2: the row is larger than 64 MiB"),
    "nulls.parquet": (many_nulls, 3, "nulls.parquet:1: the row is larger than 64 MiB"),
    "field.csv.gz": (endless_field, 9, "field.csv.gz:3: not CSV"),
    "line.jsonl.gz": (endless_line, 9, "line.jsonl.gz:2: the line is longer than 32 MiB"),
    "brackets.jsonl.gz": (
        brackets_in_a_line,
        9,
        "brackets.jsonl.gz:2: not JSON: it holds more values",
    ),
    "brackets.json.gz": (brackets_in_a_document, 9, "holds more values in one document"),
}
READ = """
import re, sys
from pathlib import Path
from itertools import islice
from redraft.tables import iter_rows
from redraft.errors import ConfigError

if __name__ == "__main__":
    bad = []
    try:
        for _ in islice(iter_rows(sys.argv[1], bad.append), int(sys.argv[2])): pass
    except ConfigError as error:
        bad.append(error)
    print(int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) >> 10)
    print([str(b) for b in bad][:3])
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc")
@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.slow
def test_small_file_uses_little_memory(tmp_path, name):
    """An oversized value is reported with file and place, and the rows before and after it are
    read.
    """
    write, most_rows, said = BOMBS[name]
    write(tmp_path / name)
    assert (tmp_path / name).stat().st_size < 3_000_000
    script = tmp_path / "read.py"
    script.write_text(READ)
    command = [sys.executable, script, tmp_path / name, str(most_rows)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    peak, bad = done.stdout.splitlines()
    assert int(peak) < 500  # MiB
    assert said in bad.replace("', message='", ": ")


def test_unrepresentable_values_are_bad_rows(tmp_path):
    """Dates after the year 9999 and invalid UTF-8 are bad rows, and the rows beside them are
    read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    days = pa.array([0, 2**31 - 1, 1], pa.int32()).view(pa.date32())
    texts = pa.Array.from_buffers(pa.string(), 3, pa.array([b"a", b"b", b"\xff"]).buffers())
    pq.write_table(
        pa.table({"day": days, "text": texts, "n": [1, 2, 3]}),
        tmp_path / "t.parquet",
        store_schema=False,
    )
    bad = []
    assert [row.values["n"] for row in iter_rows(tmp_path / "t.parquet", bad.append)] == [1]
    assert [row.location for row in bad] == [f"{tmp_path / 't.parquet'}:{n}" for n in (2, 3)]


def test_parquet_row_groups_are_read_in_order(tmp_path, monkeypatch):
    """All rows come in order for any row groups, also with a second reader at the same time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table(
        {
            "n": list(range(10_000)),
            "text": ["x" * (n % 997) for n in range(10_000)],
            "more": [[n, None] for n in range(10_000)],
        }
    )
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=3001)
    one, other = iter_rows(tmp_path / "t.parquet"), iter_rows(tmp_path / "t.parquet")
    found = []
    for n, row in enumerate(one):
        found.append(row.values)
        if n % 3 == 0:
            next(other)
    assert found == table.to_pylist()
    assert len(list(other)) == 10_000 - 3334


# --- other files in a folder
# ----------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["data", "data/*.jsonl", "data/**/*.jsonl"])
def test_link_out_of_a_folder_is_rejected(tmp_path, monkeypatch, spec):
    """A link that stays inside is followed, and so is one that is named directly."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret").write_text('{"prompt": "p"}\n')
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_text('{"prompt": "a"}\n')
    (tmp_path / "data" / "b.jsonl").symlink_to("a.jsonl")
    assert len(list(open_source(spec).rows())) == 2
    (tmp_path / "data" / "c.jsonl").symlink_to("../secret")
    with pytest.raises(
        ConfigError,
        match=r"'data/c.jsonl' is a link to '.*secret', outside of 'data'; to read it, give its own name",
    ):
        open_source(spec)
    assert len(list(open_source("data/c.jsonl").rows())) == 1


def test_special_files_in_a_folder_are_ignored(tmp_path):
    """Pipes, devices and folders with the names of tables are left out."""
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "zero.jsonl").symlink_to("/dev/zero")
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "a.jsonl").write_text('{"prompt": "a"}\n')
    for spec in (tmp_path, f"{tmp_path}/*.jsonl"):
        assert len(list(open_source(spec).rows())) == 1


def test_endless_device_is_not_read(monkeypatch, tmp_path):
    """An endless device has no lines."""
    monkeypatch.setattr("redraft.tables.spool.MAX_SKIPPED_BYTES", 2**24)
    with pytest.raises(
        ConfigError, match="'?/dev/zero'? has a line that does not end within 16 MiB"
    ):
        list(open_source("/dev/zero", spool=tmp_path).rows(lambda bad: None))
