"""Sources: whatever is named, the same rows as often as they are asked for; what is not there is said at once."""

import gzip
import io
import json
import os
import sys
import threading
import tracemalloc

import pytest

from redraft.datasets import Row, open_source
from redraft.errors import ConfigError, StoreError


def lines(*numbers):
    return "".join(json.dumps({"n": n}) + "\n" for n in numbers).encode()


def numbers(source):
    return [row.values["n"] for row in source.rows()]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two tables, and two files that are none."""
    monkeypatch.chdir(tmp_path)
    inner = tmp_path / "data"
    inner.mkdir()
    (inner / "b.jsonl.gz").write_bytes(gzip.compress(lines(3, 4)))
    (inner / "a.jsonl").write_bytes(lines(1, 2))
    (inner / "README.md").write_text("read me")
    (inner / ".hidden.jsonl").write_bytes(lines(0))
    return inner


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("data", "2 files"),
        ("data/*.jsonl*", "2 files"),
        ("./**/[ab].*", "2 files"),
        (["data/a.jsonl", "data/b.jsonl.gz"], "2 files"),
        ([{"n": 1}, {"n": 2}, {"n": 3}, {"n": 4}], "4 rows"),
        (({"n": n} for n in range(1, 5)), "rows of an iterable"),
    ],
)
def test_rows_come_from_files_folders_globs_and_memory(folder, spec, said):
    """Files in sorted order, all of them again when asked again; hidden files and texts are no tables."""
    source = open_source(spec)
    assert source.said == said
    assert numbers(source) == numbers(source) == [1, 2, 3, 4]


def test_a_file_is_called_by_its_name(folder):
    """A Path is as good as a text, and places name the file."""
    source = open_source(folder / "a.jsonl")
    assert source.said == str(folder / "a.jsonl")
    assert [row.place for row in source.rows()] == [f"{folder / 'a.jsonl'}:1", f"{folder / 'a.jsonl'}:2"]


def test_a_list_of_sources_keeps_their_order(folder):
    """Also where one of them is no file."""
    source = open_source(["data/b.jsonl.gz", "data"])
    assert source.said == "data/b.jsonl.gz, 2 files"
    assert numbers(source) == [3, 4, 1, 2, 3, 4]


NOT_THERE = {
    "nothing": ("nothing.jsonl", "there is no file 'nothing.jsonl'$"),
    "a glob": ("data/*.parquet", "there is no file"),
    "no table": ("data/README.md", "must end in"),
    "one of several": (["data/a.jsonl", "data/c.jsonl"], "no file 'data/c.jsonl'"),
    "an empty folder": ("empty", "holds no table; name its files by a glob"),
    "a number": (7, "got int"),
    "one mapping": ({"n": 1}, "got dict"),
}


@pytest.mark.parametrize(("spec", "complaint"), NOT_THERE.values(), ids=NOT_THERE)
def test_what_is_not_there_is_said_at_once(folder, spec, complaint):
    """Before a row is asked for."""
    (folder.parent / "empty").mkdir()
    with pytest.raises(ConfigError, match=complaint):
        open_source(spec)


def test_stdin_is_kept_and_read_again(monkeypatch, tmp_path):
    """Two readers at once do not disturb each other, and nothing is left in the folder."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines(*range(5000)) + b"broken\n")))
    source = open_source("-", spool=tmp_path)
    first, second, bad = source.rows(), source.rows(), []
    pairs = [(next(first).values["n"], next(second).values["n"]) for _ in range(5000)]
    assert pairs == [(n, n) for n in range(5000)]
    assert [row.place for row in source.rows(bad.append)][-1] == "stdin:5000"
    assert [b.place for b in bad] == ["stdin:5001"]
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_is_kept_and_read_again(tmp_path):
    """What a shell puts in place of a file can be read once only."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    source = open_source(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(lines(1, 2),))
    writer.start()
    assert numbers(source) == numbers(source) == [1, 2]
    writer.join()


def test_rows_of_an_iterator_are_what_json_makes_of_them():
    """Bad ones are handed over with their number."""
    bad = []
    source = open_source(iter([{"a": "\ud800", "b": 2**70}, 7, {"a": {1, 2}}]))
    assert [row.values for row in source.rows(bad.append)] == [{"a": "\ud800", "b": 2**70}, {"a": [1, 2]}]
    assert [(b.place, b.message) for b in bad] == [("row:2", "a row must be an object, got int")]


def test_rows_in_memory_are_handed_over_with_their_number():
    """So are those that are none."""
    bad = []
    assert list(open_source([{"a": 1}, None]).rows(bad.append)) == [Row("row:1", {"a": 1})]
    assert [b.place for b in bad] == ["row:2"]
    with pytest.raises(ConfigError, match="row:1: a row must be a mapping, got str"):
        list(open_source(["a.jsonl", {"a": 1}]).rows())


def test_an_iterator_that_breaks_is_not_taken_for_a_whole_one():
    """Its error comes through, and a second look is refused."""

    def broken():
        yield {"n": 1}
        raise RuntimeError("the line is dead")

    source = open_source(broken())
    with pytest.raises(RuntimeError, match="the line is dead"):
        list(source.rows())
    with pytest.raises(ConfigError, match="could not be read to its end"):
        list(source.rows())


def test_a_folder_that_takes_no_files_is_named(tmp_path):
    """It is the disk's fault, not the rows'."""
    source = open_source(iter([{"n": 1}]), spool=tmp_path / "gone")
    with pytest.raises(StoreError, match="gone' cannot hold the rows"):
        list(source.rows())


def test_an_iterator_costs_no_memory(tmp_path):
    """A hundred megabytes of rows go through; they lie on disk."""
    source = open_source(({"n": n, "text": "x" * 100_000} for n in range(1000)), spool=tmp_path)
    tracemalloc.start()
    assert sum(1 for _ in source.rows()) == 1000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 * 2**20


# --- Hugging Face ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def dataset():
    import datasets

    return datasets.Dataset.from_list([{"n": n, "chat": [{"role": "user", "content": "hi"}]} for n in range(3)])


def test_a_dataset_in_memory_is_read_in_place(dataset):
    """Nested columns are lists and objects."""
    source = open_source(dataset)
    assert source.said == "dataset given"
    assert [dict(row.values) for row in source.rows()] == [{"n": n, "chat": [{"role": "user", "content": "hi"}]} for n in range(3)]
    assert numbers(source) == [0, 1, 2]


def test_a_streamed_dataset_is_read_once(dataset):
    """It may come over a network; then it is kept."""
    source = open_source(dataset.to_iterable_dataset())
    assert numbers(source) == numbers(source) == [0, 1, 2]


def test_a_folder_that_the_library_saved_is_a_dataset(dataset, tmp_path):
    """With "hf:" in front or without."""
    folder = tmp_path / "saved"
    dataset.save_to_disk(folder)
    assert numbers(open_source(folder)) == numbers(open_source(f"hf:{folder}")) == [0, 1, 2]
    assert open_source(folder).said == f"dataset {folder}"


def test_of_several_splits_one_is_chosen(dataset, tmp_path):
    """None is taken by itself; the error says how they are written."""
    import datasets

    both = datasets.DatasetDict(train=dataset, test=dataset.select([2]))
    both.save_to_disk(tmp_path / "both")
    with pytest.raises(ConfigError, match=r"several splits; choose one of hf:.*both:train, hf:.*both:test"):
        open_source(tmp_path / "both")
    with pytest.raises(ConfigError, match=r"no split 'dev'; there are .*both:train"):
        open_source(f"hf:{tmp_path / 'both'}:dev")
    source = open_source(f"hf:{tmp_path / 'both'}:test")
    assert numbers(source) == [2]
    assert open_source(datasets.DatasetDict(train=dataset)).said == "dataset given"


def test_files_that_the_library_knows_how_to_read_are_a_dataset(folder, tmp_path, monkeypatch):
    """A folder as it stands on the hub: its splits are found by the names of the files."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (folder / "b.jsonl.gz").unlink()
    (folder / "a.jsonl").rename(folder / "validation.jsonl")
    source = open_source(f"hf:{folder}:validation")
    assert source.said == f"dataset {folder}, split validation"
    assert numbers(source) == [1, 2]


def test_pictures_stay_bytes(tmp_path):
    """They are not decoded for a table of texts."""
    import datasets
    import pyarrow as pa

    stored = datasets.Image().pa_type
    pictures = pa.table({"picture": pa.array([{"bytes": b"GIF89a", "path": None}], stored)})
    table = datasets.Dataset(pictures, datasets.DatasetInfo(features=datasets.Features({"picture": datasets.Image()})))
    assert next(open_source(table).rows()).values["picture"] == {"bytes": b"GIF89a", "path": None}


def test_a_dataset_that_cannot_be_loaded_is_said_in_a_line(tmp_path, dataset):
    """Whatever the library raises."""
    (tmp_path / "state.json").write_text("{")
    (tmp_path / "dataset_info.json").write_text("{")
    with pytest.raises(ConfigError, match="no dataset that can be loaded") as error:
        open_source(tmp_path)
    assert "\n" not in str(error.value)


def test_without_the_library_the_extra_is_named(monkeypatch, tmp_path):
    """For a dataset that is asked for, and as a hint where it may be meant."""
    monkeypatch.setitem(sys.modules, "datasets", None)
    (tmp_path / "dataset_info.json").write_text("{}")
    for spec in ("hf:imdb", "imdb", "org/name", tmp_path):
        with pytest.raises(ConfigError, match=r"pip install 'redraft\[datasets\]'"):
            open_source(spec)
