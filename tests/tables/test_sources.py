"""Sources: each gives the same rows on every read, and a missing source is reported at once."""

import gzip
import io
import json
import os
import re
import subprocess
import sys
import threading
import tracemalloc
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

import redraft
from redraft.errors import ConfigError, StoreError
from redraft.tables import Row
from redraft.tables.sources import open_source
from redraft.tables.spool import ReadInterrupted


def lines(*numbers):
    return "".join(json.dumps({"n": n}) + "\n" for n in numbers).encode()


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Give the datasets library a cache folder that is deleted with the test."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def numbers(source):
    return [row.values["n"] for row in source.rows()]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with two tables and two other files."""
    monkeypatch.chdir(tmp_path)
    inner = tmp_path / "data"
    inner.mkdir()
    (inner / "b.jsonl.gz").write_bytes(gzip.compress(lines(3, 4)))
    (inner / "a.jsonl").write_bytes(lines(1, 2))
    (inner / "README.md").write_text("read me")
    (inner / ".hidden.jsonl").write_bytes(lines(0))
    return inner


@pytest.mark.parametrize(
    ("spec", "expected_name"),
    [
        ("data", "2 files"),
        ("data/*.jsonl*", "2 files"),
        ("./**/[ab].*", "2 files"),
        (["data/a.jsonl", "data/b.jsonl.gz"], "2 files"),
        ([{"n": 1}, {"n": 2}, {"n": 3}, {"n": 4}], "4 rows"),
        (({"n": n} for n in range(1, 5)), "rows of an iterable"),
    ],
)
def test_rows_come_from_files_folders_globs_and_memory(folder, spec, expected_name):
    """Files are read in sorted order on every read; hidden and other files are ignored."""
    source = open_source(spec)
    assert source.name == expected_name
    assert numbers(source) == numbers(source) == [1, 2, 3, 4]


def test_file_source_is_named_by_its_path(folder):
    """A Path works like a str, and places name the file."""
    source = open_source(folder / "a.jsonl")
    assert source.name == str(folder / "a.jsonl")
    assert [row.location for row in source.rows()] == [
        f"{folder / 'a.jsonl'}:1",
        f"{folder / 'a.jsonl'}:2",
    ]


def test_list_of_sources_keeps_its_order(folder):
    """It also holds if one of the sources is no file."""
    source = open_source(["data/b.jsonl.gz", "data"])
    assert source.name == "data/b.jsonl.gz, 2 files"
    assert numbers(source) == [3, 4, 1, 2, 3, 4]


NOT_THERE = {
    "nothing": ("nothing.jsonl", "there is no file 'nothing.jsonl'$"),
    "a glob": ("data/*.parquet", "there is no file"),
    "no table": ("data/README.md", "must end in"),
    "one of several": (["data/a.jsonl", "data/c.jsonl"], "no file 'data/c.jsonl'"),
    "an empty folder": ("empty", "holds no table; select files by a glob"),
    "a number": (7, "got int"),
    "one mapping": ({"n": 1}, "got dict"),
}


@pytest.mark.parametrize(("spec", "complaint"), NOT_THERE.values(), ids=NOT_THERE)
def test_missing_source_is_reported(folder, spec, complaint):
    """The error comes before a row is read."""
    (folder.parent / "empty").mkdir()
    with pytest.raises(ConfigError, match=complaint):
        open_source(spec)


def test_run_files_are_no_input(folder):
    """A folder and a glob skip journals and the like; a file that is named is read."""
    ours = [
        "journal",
        "journal-wal",
        "journal-shm",
        "journal.lock",
        "errors.jsonl",
        "journal.1-of-8",
        "journal.1-of-8-wal",
    ]
    for ending in ours:
        (folder / f"a.jsonl.{ending}").write_bytes(lines(9))
    (folder / "c-00001-of-00002.jsonl").write_bytes(lines(5))
    assert numbers(open_source("data")) == numbers(open_source("data/[a-c]*")) == [1, 2, 3, 4, 5]
    assert numbers(open_source("data/a.jsonl.errors.jsonl")) == [9]
    assert numbers(open_source(["data/a.jsonl.errors.jsonl"])) == [9]
    with pytest.raises(ConfigError, match="only files that runs write for themselves"):
        open_source("data/*.errors.jsonl")


def test_source_lists_its_files(folder):
    """Links are resolved, and a source that is no file has none."""
    (folder.parent / "link.jsonl").symlink_to(folder / "a.jsonl")
    a, b = ((folder / name).resolve() for name in ("a.jsonl", "b.jsonl.gz"))
    assert open_source("link.jsonl").paths == (a,)
    assert open_source("data").paths == open_source("data/*.jsonl*").paths == (a, b)
    assert open_source(["data/b.jsonl.gz", "link.jsonl"]).paths == (b, a)
    for spec in ("-", iter([{"n": 1}]), [{"n": 1}]):
        assert open_source(spec).paths == ()


def test_stdin_can_be_read_again(monkeypatch, tmp_path):
    """Two concurrent readers do not disturb each other, and no file is left in the folder."""
    monkeypatch.setattr(
        sys, "stdin", io.TextIOWrapper(io.BytesIO(lines(*range(5000)) + b"broken\n"))
    )
    source = open_source("-", spool=tmp_path)
    first, second, bad = source.rows(), source.rows(), []
    pairs = [(next(first).values["n"], next(second).values["n"]) for _ in range(5000)]
    assert pairs == [(n, n) for n in range(5000)]
    assert [row.location for row in source.rows(bad.append)][-1] == "stdin:5000"
    assert [b.location for b in bad] == ["stdin:5001"]
    assert list(tmp_path.iterdir()) == []


def test_pipe_can_be_read_again(tmp_path):
    """A shell's process substitution itself can be read only once."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    source = open_source(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(lines(1, 2),))
    writer.start()
    assert numbers(source) == numbers(source) == [1, 2]
    writer.join()


def test_rows_of_an_iterator_are_converted_to_json():
    """Rows that cannot be converted are reported with their number."""
    bad = []
    source = open_source(iter([{"a": "\ud800", "b": 2**70}, 7, {"a": {1, 2}}]))
    assert [row.values for row in source.rows(bad.append)] == [
        {"a": "\ud800", "b": 2**70},
        {"a": [1, 2]},
    ]
    assert [(b.location, b.message) for b in bad] == [("row:2", "a row must be a mapping, got int")]


def test_rows_in_memory_have_numbers():
    """Invalid rows have one, too."""
    bad = []
    assert list(open_source([{"a": 1}, None]).rows(bad.append)) == [Row("row:1", {"a": 1})]
    assert [b.location for b in bad] == ["row:2"]
    with pytest.raises(ConfigError, match="row:1: a row must be a mapping, got str"):
        list(open_source(["a.jsonl", {"a": 1}]).rows())


def test_failing_iterator_is_an_error():
    """Its exception propagates, and a second read is rejected."""

    def failing_rows():
        yield {"n": 1}
        raise RuntimeError("the line is dead")

    source = open_source(failing_rows())
    with pytest.raises(RuntimeError, match="the line is dead"):
        list(source.rows())
    with pytest.raises(ConfigError, match="could not be read to its end"):
        list(source.rows())


def test_unwritable_folder_is_named(tmp_path):
    """The error blames the disk and not the rows."""
    source = open_source(iter([{"n": 1}]), spool=tmp_path / "gone")
    with pytest.raises(StoreError, match="gone' cannot hold the rows"):
        list(source.rows())


def test_iterator_uses_little_memory(tmp_path):
    """A hundred megabytes of rows are spooled to disk."""
    source = open_source(({"n": n, "text": "x" * 100_000} for n in range(1000)), spool=tmp_path)
    tracemalloc.start()
    assert sum(1 for _ in source.rows()) == 1000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 * 2**20


@pytest.mark.parametrize("piped", ["a,b\n1,2\n", "7\n"])
@pytest.mark.parametrize("through", ["stdin", "pipe"])
def test_pipe_must_hold_json_lines(monkeypatch, tmp_path, piped, through):
    """If no row is readable, the error gives the first complaint."""
    if through == "stdin":
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(piped.encode())))
        source = open_source("-")
    else:
        os.mkfifo(tmp_path / "pipe")
        source = open_source(tmp_path / "pipe")
        threading.Thread(target=(tmp_path / "pipe").write_text, args=(piped,)).start()
    bad = []
    with pytest.raises(
        ConfigError,
        match=r"no row of .* can be read, which must be JSON Lines; .*:1: (not JSON|a row must)",
    ):
        list(source.rows(bad.append))
    assert len(bad) == piped.count("\n")


# --- stopping
# ----------------------------------------------------------------------------


def endless():
    while True:
        yield {"n": 1}


def silent():
    yield {"n": 1}
    threading.Event().wait()


@pytest.mark.parametrize("iterable", [endless, silent])
def test_iterator_can_be_stopped(iterable):
    """It can be endless or silent, and it does not count as complete afterwards."""
    looks = iter([False] * 5)
    source = open_source(iterable(), should_stop=lambda: next(looks, True))
    with pytest.raises(ReadInterrupted):
        next(source.rows())
    with pytest.raises(ConfigError, match="could not be read to its end"):
        next(source.rows())


def test_pipe_without_a_writer_can_be_stopped(tmp_path):
    """It also holds for a pipe in a list of sources."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ReadInterrupted):
        next(open_source([tmp_path / "pipe"], should_stop=lambda: True).rows())


def test_silent_stdin_can_be_stopped(tmp_path):
    """The process ends, and no file is left in the folder."""
    script = """
import sys
from redraft.tables.sources import open_source
from redraft.tables.spool import ReadInterrupted

looks = iter([False] * 3)
try:
    next(open_source("-", spool=sys.argv[1], should_stop=lambda: next(looks, True)).rows())
except ReadInterrupted:
    print("stopped")
"""
    reading, writing = os.pipe()
    os.write(writing, lines(1))
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path],
        stdin=reading,
        capture_output=True,
        text=True,
        timeout=30,
    )
    os.close(reading)
    os.close(writing)
    assert (done.returncode, done.stdout, done.stderr) == (0, "stopped\n", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [TimeoutError("too slow"), ConfigError("wrong")])
def test_stoppable_reading_gives_the_same_rows_and_errors(error):
    """A thread does the reading."""

    def failing_rows():
        yield {"n": 1}
        raise error

    assert numbers(open_source(({"n": n} for n in range(3)), should_stop=lambda: False)) == [
        0,
        1,
        2,
    ]
    with pytest.raises(type(error), match=str(error)):
        list(open_source(failing_rows(), should_stop=lambda: False).rows())


# --- DataFrames and the like
# ----------------------------------------------------------------------------


class FakePolarsFrame:
    """The interface of a polars DataFrame, which iterates over its columns."""

    def __init__(self, table):
        self._table = table

    def __iter__(self):
        return iter(zip(*(row.values() for row in self._table), strict=True))

    def iter_rows(self, *, named=False):
        return iter(self._table if named else [tuple(row.values()) for row in self._table])


def from_library(kind, table):
    import pandas
    import pyarrow as pa
    from pyarrow.dataset import dataset

    makers = {
        "pandas": pandas.DataFrame,
        "polars": FakePolarsFrame,
        "Arrow": pa.Table.from_pylist,
        "several batches": lambda rows: pa.concat_tables(
            [pa.Table.from_pylist(rows[:2]), pa.Table.from_pylist(rows[2:])]
        ),
        "Arrow dataset": lambda rows: dataset(pa.Table.from_pylist(rows)),
    }
    return makers[kind](table)


@pytest.mark.parametrize("kind", ["pandas", "polars", "Arrow", "several batches", "Arrow dataset"])
def test_frame_is_read_row_by_row(kind):
    """It can be read repeatedly, gives Python numbers, and may have more rows than one chunk."""
    table = [{"prompt": f"Hi {n}", "n": n, "chat": [{"role": "user"}]} for n in range(600)]
    source = open_source(from_library(kind, table))
    assert source.name.startswith("rows of a ")
    assert [row.values for row in source.rows()] == [row.values for row in source.rows()] == table
    assert {type(row.values["n"]) for row in source.rows()} == {int}
    assert next(source.rows()).location == "row:1"


def test_missing_value_of_a_dataframe_is_none():
    """Every kind of missing value is None; arrays are lists, dates stay, and column names are
    strings.
    """
    import numpy
    import pandas

    nothing = [None, float("nan"), pandas.NA, pandas.NaT]
    frame = pandas.DataFrame(
        {
            "a": nothing,
            "b": [1.5, *nothing[:2], 2],
            3: pandas.Timestamp(2020, 1, 2),
            "d": [numpy.ones(2)] * 4,
        }
    )
    day = pandas.Timestamp(2020, 1, 2)
    assert [row.values for row in open_source(frame).rows()] == [
        {"a": None, "b": b, "3": day, "d": [1.0, 1.0]} for b in (1.5, None, None, 2.0)
    ]


def test_duplicate_column_of_a_dataframe_is_rejected():
    """Otherwise one of them would be lost."""
    import pandas

    with pytest.raises(ConfigError, match="the column 'a' is named twice"):
        open_source(pandas.DataFrame([[1, 2]], columns=["a", "a"]))


@pytest.mark.slow
def test_dataframe_uses_little_memory():
    """Its rows are not all converted at once."""
    import pandas

    source = open_source(pandas.DataFrame({"n": range(30_000)}))
    tracemalloc.start()
    assert sum(1 for _ in source.rows()) == 30_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * 2**20


# --- Hugging Face
# ----------------------------------------------------------------------------


@pytest.fixture
def dataset():
    import datasets

    return datasets.Dataset.from_list(
        [{"n": n, "chat": [{"role": "user", "content": "hi"}]} for n in range(3)]
    )


def test_dataset_in_memory_is_read_in_place(dataset):
    """Nested columns are lists and objects."""
    source = open_source(dataset)
    assert source.name == "dataset given"
    assert [dict(row.values) for row in source.rows()] == [
        {"n": n, "chat": [{"role": "user", "content": "hi"}]} for n in range(3)
    ]
    assert numbers(source) == [0, 1, 2]


def test_streaming_dataset_is_read_once(dataset):
    """It may come over a network, so its rows are spooled."""
    source = open_source(dataset.to_iterable_dataset())
    assert numbers(source) == numbers(source) == [0, 1, 2]


def test_saved_dataset_folder_is_a_dataset(dataset, tmp_path):
    """The prefix "hf:" is optional."""
    folder = tmp_path / "saved"
    dataset.save_to_disk(folder)
    assert numbers(open_source(folder)) == numbers(open_source(f"hf:{folder}")) == [0, 1, 2]
    assert open_source(folder).name == f"dataset {folder}"


def test_one_of_several_splits_must_be_chosen(dataset, tmp_path):
    """There is no default, and the error shows how to name a split."""
    import datasets

    both = datasets.DatasetDict(train=dataset, test=dataset.select([2]))
    both.save_to_disk(tmp_path / "both")
    with pytest.raises(
        ConfigError, match=r"several splits; choose one of hf:.*both:train, hf:.*both:test"
    ):
        open_source(tmp_path / "both")
    with pytest.raises(ConfigError, match=r"no split 'dev'; there are .*both:train"):
        open_source(f"hf:{tmp_path / 'both'}:dev")
    source = open_source(f"hf:{tmp_path / 'both'}:test")
    assert numbers(source) == [2]
    assert open_source(datasets.DatasetDict(train=dataset)).name == "dataset given"


def test_folder_of_data_files_is_a_dataset(folder, tmp_path, monkeypatch):
    """A folder laid out as on the hub has the splits that its file names give."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (folder / "b.jsonl.gz").unlink()
    (folder / "a.jsonl").rename(folder / "validation.jsonl")
    source = open_source(f"hf:{folder}:validation")
    assert source.name == f"dataset {folder}, split validation"
    assert numbers(source) == [1, 2]


SCRIPT = """
from pathlib import Path
Path({mark!r}).write_text("it ran")
import datasets
class Evil(datasets.GeneratorBasedBuilder):
    def _info(self): return datasets.DatasetInfo(features=datasets.Features(dict(n=datasets.Value("int64"))))
    def _split_generators(self, downloads): return [datasets.SplitGenerator(name="train")]
    def _generate_examples(self): yield 0, dict(n=1)
"""


@pytest.fixture
def folder_with_script(tmp_path, monkeypatch):
    """A folder with a loading script in it and in a subfolder, and the file that a script leaves
    when it runs.
    """
    mark = tmp_path / "ran"
    here = tmp_path / "here"
    (here / "evil").mkdir(parents=True)
    (here / "own" / "evil").mkdir(parents=True)
    for place in ("evil.py", "evil/evil.py", "own/evil/evil.py"):
        (here / place).write_text(SCRIPT.format(mark=str(mark)))
    (here / "evil" / "a.jsonl").write_text('{"n": 5}\n')
    monkeypatch.chdir(here)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return mark


EVIL = (
    "hf:evil",
    "hf:./evil",
    "hf:evil/",
    "hf:evil.py",
    "hf:./evil.py",
    "hf:evil/evil.py",
    "hf:own/evil",
    "hf:./own/evil",
    "own/evil",
)


@pytest.mark.parametrize("spec", [*EVIL, "evil.py", "hf:evil:train", "hf:./evil:train"])
def test_no_loading_script_is_run(folder_with_script, spec):
    """It holds for a folder, a file and a name that may be on the hub."""
    with pytest.raises(ConfigError):
        list(open_source(spec).rows())
    assert not folder_with_script.exists()


def test_source_never_trusts_remote_code():
    """The source nowhere passes trust_remote_code, but as False."""
    package = Path(redraft.__file__).parent
    texts = {path: path.read_text("utf-8") for path in package.rglob("*.py")}
    trusting = re.compile(r"trust_remote_code(?!\": False\b)")
    assert [path for path, text in texts.items() if trusting.search(text)] == []


OLD = """
__version__ = "3.6.0"
class IterableDatasetDict(dict): pass
DatasetDict = Dataset = IterableDataset = IterableDatasetDict
def load_dataset(path, **kwargs): exec(open("evil.py").read())
load_dataset_builder = load_from_disk = load_dataset
"""


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("spec", ["hf:owner/name", "hf:./plain", "owner/name"])
def test_library_that_runs_scripts_is_rejected(folder_with_script, spec):
    """The minimum version of an extra does not bind a separately installed library."""
    Path("old").mkdir()
    Path("old/datasets.py").write_text(OLD)
    Path("plain").mkdir()
    code = f"import sys; sys.path.insert(0, 'old'); from redraft.tables.sources import open_source; list(open_source({spec!r}).rows())"
    ended = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert (
        "datasets 3.6.0 runs Python code from the folder of a dataset; version 4 does not"
        in ended.stderr
    )
    assert not folder_with_script.exists()


@pytest.mark.parametrize("spec", ["hf:twice", "hf:twice:train", "hf:owner/twice"])
def test_ambiguous_hub_name_is_rejected(tmp_path, monkeypatch, spec):
    """The library would take the local folder; the message says how to name each."""
    for folder in ("twice", "owner/twice"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.jsonl").write_text('{"n": 5}\n')
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ConfigError,
        match=r"local folder '(owner/)?twice' or a dataset of the Hugging Face hub; .* 'hf:\./",
    ):
        open_source(spec)
    assert numbers(open_source("hf:./twice")) == [5]


@pytest.mark.parametrize("format", ["json", "text", "pandas", "csv", "parquet", "webdataset"])
def test_format_name_is_no_dataset(tmp_path, monkeypatch, format):
    """The library would read the files of the current folder, pickles included."""
    (tmp_path / "private.jsonl").write_text('{"n": 5}\n')
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=f"'{format}' is a file format"):
        open_source(f"hf:{format}")


def test_every_reader_of_the_library_is_known():
    """A new reader would read files of the current folder under the name of a dataset."""
    from datasets.packaged_modules import _PACKAGED_DATASETS_MODULES

    from redraft.tables.sources import FILE_FORMATS

    assert set(_PACKAGED_DATASETS_MODULES) <= FILE_FORMATS


CARD = "---\nconfigs:\n- config_name: default\n  data_files: {}\n---\n"


@pytest.mark.parametrize("settings", ["README.md", ".huggingface.yaml"])
@pytest.mark.parametrize(
    "elsewhere", ["url", "escaped", "archive", "absolute", "parent", "listed", "folder"]
)
def test_folder_reads_only_its_own_files(tmp_path, plain_files, settings, elsewhere):
    """Its settings may name a host or other files, and neither is requested or read."""
    url, asked = plain_files
    (tmp_path / "private.jsonl").write_text('{"secret": 1}\n')
    folder = tmp_path / "dataset"
    folder.mkdir()
    (folder / "a.jsonl").write_text('{"n": 5}\n')
    named = {
        "url": f'"{url}/a.jsonl"',
        "escaped": '"' + f"{url}/a.jsonl".replace(":", "\\x3a") + '"',
        "archive": f'"zip://*::{url}/a.zip"',
        "absolute": str(tmp_path / "private.jsonl"),
        "parent": "../private.jsonl",
        "listed": f"[{{split: train, path: [a.jsonl, {tmp_path / 'private.jsonl'}]}}]",
        "folder": "private.jsonl\n  data_dir: ..",
    }[elsewhere]
    card = CARD.format(named)
    (folder / settings).write_text(card if settings == "README.md" else card.strip("-\n"))
    with pytest.raises(
        ConfigError,
        match="cannot|nor a dataset" if elsewhere == "folder" else "names data outside that folder",
    ):
        open_source(f"hf:{folder}")
    assert asked == []


@pytest.mark.parametrize("file_name", ["state.json", "dataset_dict.json"])
def test_saved_dataset_reads_only_its_folder(tmp_path, dataset, file_name):
    """Its index may name other folders of the user."""
    import datasets

    dataset.save_to_disk(tmp_path / "private")
    datasets.DatasetDict(train=dataset).save_to_disk(tmp_path / "given")
    if file_name == "state.json":
        state = tmp_path / "given" / "train" / file_name
        state.write_text(state.read_text().replace('"filename": "', '"filename": "../../private/'))
    else:
        (tmp_path / "given" / file_name).write_text('{"splits": ["../private"]}')
    with pytest.raises(ConfigError, match=r"names data outside that folder.*\.\./private"):
        open_source(tmp_path / "given")


@pytest.mark.parametrize("kind", ["file", "saved"])
def test_links_out_of_a_dataset_are_not_followed(tmp_path, dataset, kind):
    """The target may be a table of the user or the cache of another dataset."""
    given = tmp_path / "given"
    dataset.save_to_disk(tmp_path / "private")
    if kind == "saved":
        dataset.save_to_disk(given)
        table = next(given.glob("*.arrow"))
        table.unlink()
        table.symlink_to(tmp_path / "private" / table.name)
    else:
        given.mkdir()
        (tmp_path / "private.jsonl").write_text('{"secret": 1}\n')
        (given / "train.jsonl").symlink_to("../private.jsonl")
    with pytest.raises(ConfigError, match="outside"):
        open_source(f"hf:{given}")


@pytest.mark.parametrize("name", ["README.md", ".huggingface.yaml"])
def test_dataset_card_with_exponential_aliases_is_rejected(tmp_path, name):
    """Expanding the YAML aliases would take hours."""
    doubled = "a0: &a0 {x: 1}\n" + "".join(
        f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 40)
    )
    (tmp_path / name).write_text(f"---\n{doubled}---\n" if name == "README.md" else doubled)
    (tmp_path / "train.jsonl").write_text('{"n": 5}\n')
    with pytest.raises(ConfigError, match=f"{name}.*aliases"):
        open_source(f"hf:{tmp_path}")


@pytest.fixture
def plain_files():
    """A server that gives a row for any path; yields its address and the requested paths."""
    asked = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", "9")
            self.end_headers()
            self.wfile.write(b'{"n": 1}\n')

        do_HEAD = do_GET

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    server.server_close()


def test_images_stay_bytes(tmp_path):
    """Images are not decoded for a table of texts."""
    import datasets
    import pyarrow as pa

    stored = datasets.Image().pa_type
    pictures = pa.table({"picture": pa.array([{"bytes": b"GIF89a", "path": None}], stored)})
    table = datasets.Dataset(
        pictures, datasets.DatasetInfo(features=datasets.Features({"picture": datasets.Image()}))
    )
    assert next(open_source(table).rows()).values["picture"] == {"bytes": b"GIF89a", "path": None}


def test_loading_error_is_one_line(tmp_path, dataset):
    """It holds for whatever the library raises."""
    (tmp_path / "state.json").write_text("{")
    (tmp_path / "dataset_info.json").write_text("{")
    with pytest.raises(ConfigError, match="nor a dataset that can be loaded") as error:
        open_source(tmp_path)
    assert "\n" not in str(error.value)


def test_missing_datasets_library_names_the_extra(monkeypatch, tmp_path):
    """It is an error for a dataset and a hint where a dataset may be meant."""
    monkeypatch.setitem(sys.modules, "datasets", None)
    (tmp_path / "dataset_info.json").write_text("{}")
    for spec in ("hf:imdb", "imdb", "org/name", tmp_path):
        with pytest.raises(ConfigError, match=r"pip install 'redraft\[datasets\]'"):
            open_source(spec)


@pytest.mark.parametrize("saved", [False, True], ids=["of files", "saved"])
def test_dataset_links_cannot_leave_its_folder(tmp_path, monkeypatch, saved):
    """The author of a folder cannot choose which files of the user are read."""
    datasets = pytest.importorskip("datasets", reason="no datasets")
    monkeypatch.chdir(tmp_path)
    given, private = tmp_path / "given", tmp_path / "private"
    dataset = datasets.Dataset.from_list([{"prompt": "secret"}])
    for folder in (given, private):
        folder.mkdir()
        dataset.save_to_disk(folder) if saved else dataset.to_parquet(folder / "a.parquet")
    data = next(given.glob("*.arrow" if saved else "a.parquet"))
    assert [row.values["prompt"] for row in open_source("hf:./given").rows()] == ["secret"]
    data.unlink()
    data.symlink_to(next(private.glob(data.name)))
    with pytest.raises(ConfigError, match="is a link to .*private"):
        open_source("hf:./given")
