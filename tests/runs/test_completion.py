"""When a complete run is found complete without its rows being read, and when they are read
again.
"""

import asyncio
import json
import os
import threading
from dataclasses import replace

import pytest

from redraft import Budget, batch
from redraft.runs import BatchRun, completion
from redraft.runs.dataset import BatchDataset
from redraft.storage.journal import Journal

ROWS = [{"id": f"r{i}", "prompt": f"question {i}", "response": "one " * (i + 1)} for i in range(5)]


@pytest.fixture
def readings(monkeypatch):
    """The data sets whose rows were read to be worked on."""
    read, rows = [], BatchDataset.rows
    monkeypatch.setattr(
        BatchDataset, "rows", lambda dataset, *args: read.append(dataset) or rows(dataset, *args)
    )
    return read


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


async def grade(source, output, **more):
    return await batch(source, output, False, "words:3-", **{"mode": "grade", **more})


def metadata_of(output):
    with Journal(output.with_name(f"{output.name}.journal"), read_only=True) as journal:
        return journal.metadata(output.name.replace(".", "-"))


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("name", ["out.jsonl", "out.csv", "out.parquet", "out.jsonl.gz"])
async def test_the_rows_of_a_complete_run_are_not_read_again(tmp_path, readings, name):
    """The output stays the same, and the report is that of a start that reads them."""
    source, output = write(tmp_path / "in.jsonl", ROWS), tmp_path / name
    await grade(source, output)
    written = output.read_bytes()
    known = await grade(source, output)
    assert len(readings) == 1
    assert output.read_bytes() == written
    with Journal(tmp_path / f"{name}.journal") as journal:
        journal.update_run(name.replace(".", "-"), completion=None)
    read = await grade(source, output)
    assert len(readings) == 2
    assert output.read_bytes() == written
    assert known == replace(read, seconds=known.seconds)
    assert known.rows.reused == 5
    assert metadata_of(output)["completion"]


async def test_a_run_without_an_output_is_found_complete(tmp_path, readings):
    """Its rows are in the journal."""
    source = write(tmp_path / "in.jsonl", ROWS)
    for _ in range(2):
        report = await grade(source, None, journal=tmp_path / "run.journal")
    assert (len(readings), report.rows.reused) == (1, 5)


async def test_an_output_that_is_a_pipe_is_written_each_time(tmp_path, readings):
    """It cannot be read to find out whether it is complete."""
    source, pipe = write(tmp_path / "in.jsonl", ROWS), tmp_path / "pipe"
    os.mkfifo(pipe)
    for n in (1, 2):
        reader = asyncio.create_task(asyncio.to_thread(pipe.read_bytes))
        await grade(source, pipe)
        assert (len((await reader).splitlines()), len(readings)) == (5, n)


async def change_a_row(source, output):
    """Change a row so that the size and the time of the file stay the same."""
    state = source.stat()
    write(source, [*ROWS[:4], {**ROWS[4], "response": ROWS[4]["response"].replace("one", "two")}])
    os.utime(source, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert source.stat().st_size == state.st_size


async def change_the_output(source, output):
    """Change a letter of the output."""
    output.write_bytes(output.read_bytes().replace(b"question 3", b"question 4"))


async def delete_the_output(source, output):
    """Delete the output."""
    output.unlink()


async def delete_a_row_of_the_journal(source, output):
    """Delete a finished row."""
    with Journal(f"{output}.journal") as journal:
        journal.erase("out-jsonl", ["r3"])


def keep_other_figures(change):
    """Return a change of the figures that were kept to others, as another version may have kept."""

    async def keep(source, output):
        with Journal(f"{output}.journal") as journal:
            journal.update_run(
                "out-jsonl", completion=change(dict(metadata_of(output)["completion"]))
            )

    return keep


@pytest.mark.slow(but_each=6)
@pytest.mark.parametrize(
    "change",
    [
        change_a_row,
        change_the_output,
        delete_the_output,
        delete_a_row_of_the_journal,
        keep_other_figures(lambda kept: kept | {"digest": "other"}),
        keep_other_figures(lambda kept: kept | {"report": kept["report"] | {"schema": 9}}),
        keep_other_figures(lambda kept: kept | {"report": kept["report"] | {"scores": [1.0]}}),
        keep_other_figures(lambda kept: kept | {"report": kept["report"] | {"rows": {"done": 5}}}),
        keep_other_figures(lambda kept: {"digest": kept["digest"]}),
        keep_other_figures(lambda kept: {"something": 1}),
    ],
)
async def test_rows_are_read_after_a_change(tmp_path, readings, change):
    """The output is then that of a new run."""
    source, output = write(tmp_path / "in.jsonl", ROWS), tmp_path / "out.jsonl"
    await grade(source, output)
    await change(source, output)
    report = await grade(source, output)
    assert len(readings) > 1
    await grade(source, tmp_path / "new.jsonl")
    assert output.read_bytes() == (tmp_path / "new.jsonl").read_bytes()
    assert (report.rows.done, report.rows.failed) == (5, 0)


@pytest.mark.parametrize(
    "more",
    [
        {"retry": ["failed"]},
        {"budget": Budget(calls=9)},
        {"limit": 3, "overwrite": True},
        {"temperature": 0.5},
        {"ordered": False},
    ],
)
async def test_rows_are_read_with_settings_that_may_concern_them(tmp_path, readings, more):
    """Others than those of the complete run may change rows or their order."""
    source, output = write(tmp_path / "in.jsonl", ROWS), tmp_path / "out.jsonl"
    await grade(source, output)
    await grade(source, output, **more)
    assert len(readings) > 1


async def test_rows_are_read_after_a_start_that_was_stopped(tmp_path, readings):
    """A start with other data deletes what was kept before it changes rows."""
    source, output = write(tmp_path / "in.jsonl", ROWS), tmp_path / "out.jsonl"
    await grade(source, output)
    write(source, ROWS[1:])

    def stop(message):
        if "leaves out" in message:  # then everything is open
            run.stop()

    run = BatchRun.from_arguments(
        source, output, False, "words:3-", mode="grade", say=stop, overwrite=True
    )
    assert (await run.go()).stop == "interrupted"
    write(source, ROWS)
    readings.clear()
    assert (await grade(source, output)).rows.reused == 5
    assert readings


async def test_unusable_rows_are_listed_each_time(tmp_path, readings):
    """Their file is written again."""
    source, output = write(tmp_path / "in.jsonl", [*ROWS, {"id": "bad"}]), tmp_path / "out.jsonl"
    for _ in range(2):
        await grade(source, output)
        assert (tmp_path / "out.jsonl.errors.jsonl").exists()
    assert len(readings) == 2


async def test_an_interrupted_look_at_a_complete_run_leaves_its_output(tmp_path, monkeypatch):
    """A start that is cancelled before it has read a row replaces nothing."""
    source, output = write(tmp_path / "in.jsonl", ROWS), tmp_path / "out.csv"
    await grade(source, output)
    written, looks, release = output.read_bytes(), threading.Event(), threading.Event()
    digest = completion.completion_digest

    def slow(*args):
        looks.set()
        release.wait(60)
        return digest(*args)

    monkeypatch.setattr("redraft.runs.job.completion_digest", slow)
    going = asyncio.create_task(grade(source, output))
    await asyncio.to_thread(looks.wait, 60)
    going.cancel()
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await going
    assert output.read_bytes() == written


async def test_failed_rows_are_part_of_a_complete_run(tmp_path, readings):
    """They are not tried again without `retry`, and the report names them as before."""

    def grader(text):
        if "one one one" not in text:
            raise ValueError("too short")
        return 1.0

    source, output = write(tmp_path / "in.jsonl", ROWS), tmp_path / "out.jsonl"
    first = await batch(source, output, False, grader, mode="grade")
    again = await batch(source, output, False, grader, mode="grade")
    assert len(readings) == 1
    assert (
        (again.rows.done, again.rows.failed, again.rows.errors)
        == (first.rows.done, first.rows.failed, first.rows.errors)
        == (3, 2, first.rows.errors)
    )
    await batch(source, output, False, grader, mode="grade", retry=["failed"])
    assert len(readings) == 2
