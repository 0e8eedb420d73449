"""When a later start of a run takes the summary of its data from the journal, and when it checks
the rows again.
"""

import json
import os

import pytest

from redraft import batch
from redraft.errors import ConfigError
from redraft.runs import BatchRun
from redraft.runs.dataset import BatchDataset, open_dataset
from redraft.storage.journal import Journal
from redraft.tables.columns import TaskColumns
from redraft.tables.sources import open_source

ROWS = [{"id": f"r{i}", "prompt": f"question {i}", "response": "one two"} for i in range(5)]


@pytest.fixture
def passes(monkeypatch):
    """The data sets that were read and checked in a first pass."""
    read, summarize = [], BatchDataset.summarize
    monkeypatch.setattr(
        BatchDataset,
        "summarize",
        lambda dataset, *args: read.append(dataset) or summarize(dataset, *args),
    )
    return read


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


async def grade(source, tmp_path, **more):
    return await batch(source, tmp_path / "out.jsonl", False, "words:1-", mode="grade", **more)


async def test_unchanged_files_are_checked_once(tmp_path, passes):
    """The report and the output are the same, and unusable rows are listed again."""
    source = write(tmp_path / "in.jsonl", [*ROWS, {"id": "bad"}])
    first = await grade(source, tmp_path)
    before = (tmp_path / "out.jsonl").read_bytes()
    (tmp_path / "out.jsonl.errors.jsonl").unlink()
    again = await grade(source, tmp_path)
    assert len(passes) == 1
    assert (
        (again.rows.in_output, again.rows.reused, again.rows.bad)
        == (first.rows.in_output, 5, first.rows.bad)
        == (5, 5, 1)
    )
    assert (tmp_path / "out.jsonl").read_bytes() == before
    assert (tmp_path / "out.jsonl.errors.jsonl").exists()


async def test_a_changed_file_of_the_same_size_and_time_is_checked_again(tmp_path, passes):
    """The digest is that of the content."""
    source = write(tmp_path / "in.jsonl", ROWS)
    await grade(source, tmp_path)
    state = source.stat()
    write(source, [*ROWS[:4], {**ROWS[4], "id": "r3"}])
    os.utime(source, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert source.stat().st_size == state.st_size
    with pytest.raises(ConfigError, match="'r3' occurs twice"):
        await grade(source, tmp_path)
    assert len(passes) == 2


@pytest.mark.parametrize(
    "more",
    [{"limit": 3, "overwrite": True}, {"on_duplicate": "first"}, {"columns": {"response": "id"}}],
)
async def test_other_settings_for_the_same_files_are_checked_again(tmp_path, passes, more):
    """What the columns mean and how many rows are read decide the summary, too."""
    source = write(tmp_path / "in.jsonl", ROWS)
    await grade(source, tmp_path)
    await grade(source, tmp_path, **more)
    await grade(source, tmp_path, **more)
    assert len(passes) == 2


@pytest.mark.parametrize(
    "rows",
    [ROWS[:1] * 2, [{**row, "requirements": ["words:1-"]} for row in ROWS]],
    ids=["renamed", "required"],
)
async def test_duplicates_and_requirements_are_checked_each_time(tmp_path, passes, rows):
    """Duplicates need an index, and which requirements there are depends on what is installed."""
    source = write(tmp_path / "in.jsonl", rows)
    for _ in range(2):
        await grade(source, tmp_path, on_duplicate="rename")
    assert len(passes) == 2


async def test_data_that_are_not_only_files_are_checked_each_time(tmp_path, passes):
    """Rows in memory have no digest."""
    for _ in range(2):
        await grade(ROWS, tmp_path)
    assert len(passes) == 2


async def test_a_file_that_changes_while_it_is_checked_is_checked_again(tmp_path, monkeypatch):
    """Its digest may be that of other content than the summary."""
    source = write(tmp_path / "in.jsonl", ROWS)
    summarize = BatchDataset.summarize

    def change(dataset, *args):
        write(source, ROWS[:4])
        return summarize(dataset, *args)

    monkeypatch.setattr(BatchDataset, "summarize", change)
    await grade(source, tmp_path)
    with Journal(tmp_path / "out.jsonl.journal") as journal:
        assert journal.run("out-jsonl").metadata["dataset"] is None


def test_reading_a_table_tells_how_far_it_is(tmp_path):
    """Now and then, and at the end."""
    told, source = (
        [],
        write(tmp_path / "in.jsonl", [{"prompt": f"question {i}"} for i in range(300)]),
    )
    assert (
        open_dataset(open_source(source), TaskColumns(), "error", None).summarize(told.append).total
        == 300
    )
    assert told[-1] == 300 and told == sorted(told) and len(told) > 2


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize(
    "damage",
    [
        {"total": "5"},
        {"total": None},
        {"total": 0},
        {"total": -5},
        {"prompt_bytes": 10**400},
        {"more": 1},
        "text",
    ],
)
async def test_a_summary_of_another_form_is_not_used(tmp_path, passes, damage):
    """It may come from another version of Redraft."""
    source = write(tmp_path / "in.jsonl", ROWS)
    await grade(source, tmp_path)
    with Journal(tmp_path / "out.jsonl.journal") as journal:
        saved = journal.run("out-jsonl").metadata["dataset"]
        journal.update_run(
            "out-jsonl", dataset={**saved, **damage} if isinstance(damage, dict) else damage
        )
    await grade(source, tmp_path)
    assert len(passes) == 2


async def test_stopping_ends_the_digest(tmp_path, passes):
    """A large file is not read to its end first."""
    run = BatchRun.from_arguments(
        write(tmp_path / "in.jsonl", ROWS), tmp_path / "out.jsonl", False, "words:1-", mode="grade"
    )
    run.stop()
    report = await run.go()
    assert report.stop == "interrupted"
    assert not passes
    assert not (tmp_path / "out.jsonl").exists()
