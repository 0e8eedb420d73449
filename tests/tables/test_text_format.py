"""Encodings, line ends and separators are recognised by the beginning of a file, reported if they
are not usual, or named.
"""

import csv
import gzip
import io
import json
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from redraft.errors import ConfigError
from redraft.tables import iter_rows
from redraft.tables.sources import open_source
from redraft.tables.text_format import BEGINNING_BYTES, ENCODING, check_encoding

ROWS = [
    {
        "prompt": "Wie heißt Käse, auf Französisch?",
        "response": 'Fromage; "le fromage"',
        "score": "0,8",
    },
    {"prompt": "Zwei\nZeilen|mit\tTab", "response": "Ja – „so“", "score": "1"},
    {"prompt": "x", "response": "", "score": "0,25"},
]
READ_AS = {  # what is reported
    "utf-8": "",
    "utf-8-sig": "",
    "utf-16": "UTF-16",
    "utf-16-le": "UTF-16",
    "utf-16-be": "UTF-16",
    "utf-32": "UTF-32",
    "cp1252": "Windows-1252",
}
SEPARATORS = {",": "", ";": "semicolons", "\t": "tabs", "|": "bars"}


def written(rows, separator=",", end="\r\n"):
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), delimiter=separator, lineterminator=end)
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def rows_of(path, bad=None):
    return [dict(row.values) for row in iter_rows(path, None if bad is None else bad.append)]


@contextmanager
def encoding(name):
    token = ENCODING.set(check_encoding(name))
    yield
    ENCODING.reset(token)


def zstd(data):
    from backports.zstd import compress

    return compress(data)


@pytest.mark.parametrize(("suffix", "pack"), [("", bytes), (".gz", gzip.compress), (".zst", zstd)])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("separator", SEPARATORS)
@pytest.mark.parametrize("name", READ_AS)
def test_csv_is_read_as_it_was_written(tmp_path, caplog, name, separator, end, suffix, pack):
    """The rows are the same for every encoding and separator; what is not usual is reported once,
    with what to do.
    """
    path = tmp_path / f"t.csv{suffix}"
    path.write_bytes(pack(written(ROWS, separator, end).encode(name)))
    assert rows_of(path) == rows_of(path) == ROWS
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == bool(READ_AS[name] or SEPARATORS[separator])
    for message in messages:
        assert (
            f"{path} is read" in message,
            READ_AS[name] in message,
            SEPARATORS[separator] in message,
        ) == (True, True, True)
        assert ("--encoding" in message) == bool(READ_AS[name])
        assert ("sep=," in message) == bool(SEPARATORS[separator])


JSON_FILES = {
    "t.jsonl": "\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS),
    "t.json": json.dumps(ROWS, ensure_ascii=False, indent=1),
}


@pytest.mark.parametrize("file", JSON_FILES)
@pytest.mark.parametrize("name", READ_AS)
def test_json_is_read_as_it_was_written(tmp_path, caplog, name, file):
    """JSON should be UTF-8; some programs on Windows write it in the encoding of the system."""
    (tmp_path / file).write_bytes(JSON_FILES[file].encode(name))
    assert rows_of(tmp_path / file) == ROWS
    assert [record.getMessage().split(" (")[0] for record in caplog.records] == (
        [f"{tmp_path / file} is read as {READ_AS[name]}"] if READ_AS[name] else []
    )


def test_old_macintosh_files(tmp_path, caplog):
    """Excel for Mac writes "CSV (Macintosh)" in Mac Roman, with lines that end in CR."""
    (tmp_path / "t.csv").write_bytes("prompt;response\rKäse;gelb\rBrot;grün\r".encode("mac-roman"))
    assert [row["response"] for row in rows_of(tmp_path / "t.csv")] == ["gelb", "grün"]
    assert "as Mac Roman" in caplog.text and "lines that end in CR" in caplog.text


WESTERN = [
    "« Oui », dit-il. Voilà.", "créée à Paris", "“À bientôt” – l’été", "¿¡Qué!?", "Ärger über Öl, Übermut", "naïve café — £5",
    "Não há coração sem emoção, João.", "Smörgåsbord", "Þetta er íslenska", "€ 5", "30 °C, ½", "it’s",
]  # fmt: skip


@pytest.mark.parametrize("text", WESTERN)
def test_western_texts_are_recognised(tmp_path, text):
    """Even where a file holds one of them."""
    (tmp_path / "t.csv").write_bytes(f'prompt,id\n"{text}",1\n'.encode("cp1252"))
    assert rows_of(tmp_path / "t.csv") == [{"prompt": text, "id": "1"}]


OTHERS = {
    "cp949": "네",
    "gbk": "是",
    "cp932": "はい",
    "iso8859_5": "да",
    "cp1251": "Как дела сегодня? В порядке, спасибо.",
    "koi8-r": "Как дела сегодня? В порядке, спасибо.",
    "cp1253": "Τι κάνεις σήμερα; Είμαι καλά.",
    "cp1255": "מה שלומך היום",
    "cp1256": "كيف حالك اليوم",
    "gb18030": "今天天气怎么样？很好。",
    "shift_jis": "今日の天気はどうですか。",
    "euc-kr": "오늘 날씨는 어때요?",
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_not_recognised_is_refused_and_can_be_named(tmp_path, name):
    """No text is read in a wrong alphabet: the line is bad, and says what to do. With the name of
    its encoding it is read.
    """
    (tmp_path / "t.csv").write_bytes(f'id,prompt\n1,plain\n2,"{OTHERS[name]}"\n'.encode(name))
    bad = []
    assert rows_of(tmp_path / "t.csv", bad) == [{"id": "1", "prompt": "plain"}]
    assert bad[0].location.endswith("t.csv:3")
    assert (
        "name its encoding by --encoding (cp1251, cp1252, gb18030, shift_jis ...)" in bad[0].message
    )  # (none of them as the answer)
    with encoding(name):
        read = open_source(tmp_path / "t.csv")
    assert [row.values["prompt"] for row in read.rows()] == ["plain", OTHERS[name]]


@pytest.mark.parametrize(
    "name", ["hex", "rot13", "nothing", "", "a" * 10_000, "x\0y", "undefined", "idna"]
)
def test_what_is_no_encoding_of_texts_is_refused(name):
    with pytest.raises(
        ValueError, match="is not known; allowed are those of Python, such as utf-8"
    ):
        check_encoding(name)


def test_utf8_with_damaged_lines_stays_utf8(tmp_path):
    """A few bad bytes among good ones do not make it Windows-1252."""
    lines = ["prompt,id", *(f"süß {n},{n}" for n in range(5))]
    (tmp_path / "t.csv").write_bytes("\n".join(lines).encode() + b"\ns\xfc\xdf,5\nend,6\n")
    bad = []
    assert [row["id"] for row in rows_of(tmp_path / "t.csv", bad)] == ["0", "1", "2", "3", "4", "6"]
    assert [each.location[-7:] for each in bad] == ["t.csv:7"]


@pytest.mark.parametrize("file", ["t.csv", "t.jsonl"])
def test_a_byte_behind_the_beginning_makes_its_line_bad(tmp_path, file):
    """Only the beginning decides the encoding; the error names the line and the option."""
    line = b"x" * 999 if file == "t.csv" else b'{"a": "' + b"x" * 980 + b'"}'
    many = BEGINNING_BYTES // 900
    (tmp_path / file).write_bytes(
        b"a\n" * (file == "t.csv")
        + (line + b"\n") * many
        + line.replace(b"xx", b"x\xe9", 1)
        + b"\n"
        + line
    )
    bad = []
    assert len(rows_of(tmp_path / file, bad)) == many + 1
    assert bad[0].location.endswith(f"{file}:{many + 1 + (file == 't.csv')}")
    assert "not UTF-8" in bad[0].message and "--encoding" in bad[0].message


def test_utf16_is_streamed_and_what_it_cannot_hold_is_a_bad_line(tmp_path):
    """Half of a pair, and half of a unit at the end. A file that is cut off is read up to there."""
    start = "prompt,id\n" + "".join(f"süß {n},{n}\n" for n in range(60_000))
    path = tmp_path / "t.csv"
    path.write_bytes(
        start.encode("utf-16") + b"\x00\xd8" + ",bad\nend,6\nx".encode("utf-16-le") + b"\x01"
    )
    rows = iter_rows(path)
    assert next(rows).values == {"prompt": "süß 0", "id": "0"}
    bad = []
    assert rows_of(path, bad)[-1] == {"prompt": "end", "id": "6"}
    assert [each.location.rpartition(":")[2] for each in bad] == ["60002", "60004"]
    assert all("not UTF-16" in each.message and "--encoding" in each.message for each in bad)


BY_SEPARATOR = {
    "comma, one column": ("prompt\nfree; text\nother | text\n", ["prompt"]),
    "a semicolon in the only name": (
        'Question; or task\nWhat is it\n"Why, though"\n',
        ["Question; or task"],
    ),
    "commas, semicolons in texts": ("id,text\n1,a; b\n2,c; d; e\n", ["id", "text"]),
    "commas, as many semicolons": ("id,a;b\n1,c;d\n2,e;f\n", ["id", "a;b"]),
    "commas, quoted bars": ('id,text\n1,"a|b|c"\n2,"d|e|f"\n', ["id", "text"]),
    "semicolons, decimal commas": ("id;score\n1;0,8\n2;0,7\n", ["id", "score"]),
    "semicolons, commas in texts": ("id;text\n1;a, b\n2;c, d, e\n", ["id", "text"]),
    "semicolons, quotes over lines": ('id;text\n1;"a\n;b"\n2;"c ""d"", e"\n', ["id", "text"]),
    "semicolons, a ragged row": ("id;text\n1;a\n2;b\n3\n4;c\n", ["id", "text"]),
    "semicolons, the index of pandas": (";prompt\n0;a\n1;b\n", ["", "prompt"]),
    "semicolons, only names": ("id;text\n", ["id", "text"]),
    "tabs": ("id\ttext\n1\ta, b; c\n2\td\n", ["id", "text"]),
    "bars": ("id|text\n1|a, b; c\n2|d\n", ["id", "text"]),
    "bars, spaces": ("id | text\n1 | a\n2 | d\n", ["id ", " text"]),
    "sep=;": ("sep=;\r\nid;text\r\n1;a\r\n", ["id", "text"]),
    '"sep=;"': ('"sep=;"\nid;text\n1;a\n', ["id", "text"]),
    "SEP=tab": ("SEP=\t\nid\ttext\n1\ta\n", ["id", "text"]),
    "sep=, overrides": ("sep=,\na;b\n1;2\n", ["a;b"]),
    "sep=# names any": ("sep=#\na#b\n1#2\n", ["a", "b"]),
    "a bare semicolon": (";\n;\n;\n", [";"]),
}


@pytest.mark.parametrize("kind", BY_SEPARATOR)
def test_separator(tmp_path, kind):
    """The separator is that by which the first records have as many fields as there are names; a
    doubt goes to the usual one.
    """
    text, names = BY_SEPARATOR[kind]
    (tmp_path / "t.csv").write_text(text, newline="")
    rows, bad = open_source(tmp_path / "t.csv"), []
    found = list(rows.rows(bad.append))
    assert [list(row.values) for row in found[:1]] in ([names], [])
    assert len(bad) == (kind == "semicolons, a ragged row")
    assert all(each.location.endswith(":4") for each in bad)
    if kind.startswith(("sep", "SEP", '"sep')):
        assert found[0].location.endswith("t.csv:3")


# pandas writes CR without quotation marks
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=6)


@given(
    st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=6), st.sampled_from(sorted(SEPARATORS))
)
@settings(
    deadline=None, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_pandas_tables_are_read_back(tmp_path, cells, separator):
    """Whatever the texts hold: the names of the columns, which hold no separator, decide."""
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame([(f"q{a}", f"r{b}") for a, b in cells], columns=["prompt", "response"])
    frame.to_csv(tmp_path / "t.csv", index=False, sep=separator)
    assert [tuple(row.values()) for row in rows_of(tmp_path / "t.csv")] == list(
        frame.itertuples(index=False, name=None)
    )


UNREADABLE = {
    "a ragged row": (b"a,b\n1,2\n3\n4,5\n", "t.csv:3: there are 1 fields, but 2 columns"),
    "an open quote": (b'a,b\n1,2\n3,"x\n4,5\n', "t.csv:3: not CSV: unexpected end of data"),
    "a huge cell": (
        b"a,b\n1,2\n" + b"x" * (33 * 2**20) + b",3\n",
        "t.csv:3: not CSV: the line is longer than 32 MiB",
    ),
    "a binary file": (
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0",
        "t.csv:1: not CSV: the line is not UTF-8",
    ),
    "a column twice": (b"a;b;a\n1;2;3\n", "t.csv:1: the column 'a' is named twice"),
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_what_cannot_be_read_is_named_with_its_line(tmp_path, kind):
    data, complaint = UNREADABLE[kind]
    (tmp_path / "t.csv").write_bytes(data)
    with pytest.raises(ConfigError, match=complaint):
        list(iter_rows(tmp_path / "t.csv"))


def test_nul_is_a_character(tmp_path):
    """A cell of UTF-8 may hold it, as outputs of Redraft do; it does not make a file UTF-16."""
    (tmp_path / "t.csv").write_bytes(b"a,b\n\0,x\0\n\0\0,\0y\n")
    assert rows_of(tmp_path / "t.csv") == [{"a": "\0", "b": "x\0"}, {"a": "\0\0", "b": "\0y"}]


def test_columns_of_a_spreadsheet_without_name_and_value_are_left_out(tmp_path):
    """A value under such a column is not lost."""
    (tmp_path / "t.csv").write_text("prompt,,\na,,\nb,,x\n")
    bad = []
    assert rows_of(tmp_path / "t.csv", bad) == [{"prompt": "a"}]
    assert (bad[0].location[-7:], "without a name" in bad[0].message) == ("t.csv:3", True)
