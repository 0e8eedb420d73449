"""What a run does to the rows that stand in its output: none disappears unless that was asked
for.
"""

import json
import shutil

import pytest

from redraft import batch
from redraft.errors import ConfigError
from redraft.protocols import Reply
from redraft.runs import BatchRun
from redraft.tables.readers import iter_rows
from redraft.usage import Usage

FORMATS = ["out.jsonl", "out.ndjson", "out.jsonl.gz", "out.csv", "out.tsv", "out.parquet"]
ROWS = [{"prompt": f"question {n}"} for n in range(20)]
NUMBERED = [{"id": n, **row} for n, row in enumerate(ROWS)]
OTHERS = [{"id": n, "prompt": f"other {n}"} for n in range(3)]


class Writer:
    """A model that answers with the question, and counts its calls."""

    name = identity = "writer"

    def __init__(self):
        self.calls = 0

    async def complete(self, request):
        self.calls += 1
        return Reply(f"An answer to {request.messages[0]['content']}.", Usage(1, 10, 10))


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


class Folder:
    """A folder with data and the output of a run on them; `said` are the messages of the latest
    run.
    """

    def __init__(self, path, name, rows):
        self.path, self.output, self.model = path, path / name, Writer()
        self.source = write(path / "questions.jsonl", rows)
        self.said = []

    async def run(self, source=None, graders="words:1-9", **settings):
        """Run, and return the number of calls."""
        before, self.said = self.model.calls, []
        settings = {"max_iterations": 0, "say": self.said.append, **settings}
        await batch(source or self.source, self.output, self.model, graders, **settings)
        return self.model.calls - before

    @property
    def prompts(self):
        return [row.values["prompt"] for row in iter_rows(self.output)]


def filter_in_place(folder):
    write(folder.source, ROWS[::2])


def fewer_in_another_file(folder):
    return {"source": write(folder.path / "filtered.jsonl", ROWS[:3])}


def other_file(folder):
    return {
        "source": write(folder.path / "others.jsonl", [{"prompt": f"other {n}"} for n in range(3)])
    }


def other_file_of_as_many_rows(folder):
    return {
        "source": write(folder.path / "others.jsonl", [{"prompt": f"other {n}"} for n in range(20)])
    }


def other_rows_from_memory(folder):
    return {"source": [{"prompt": f"other {n}"} for n in range(30)]}


def other_grader_and_limit(folder):
    return {"graders": "words:1-3", "limit": 5}


OTHER_RUNS = {
    "a limit": (lambda folder: {"limit": 5}, 5),
    "another grader and a limit": (other_grader_and_limit, 5),
    "fewer rows under the same name": (filter_in_place, 10),
    "fewer rows in another file": (fewer_in_another_file, 3),
    "another file": (other_file, 0),
    "another file of as many rows": (other_file_of_as_many_rows, 0),
    "other rows from memory": (other_rows_from_memory, 0),
}


@pytest.mark.slow(but_each=54)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("change", OTHER_RUNS)
async def test_a_run_that_leaves_out_rows_of_its_output_is_refused(tmp_path, change, name):
    """The error has the numbers; nothing is called or changed. With `overwrite` it runs, and the
    earlier command restores the rows.
    """
    prepare, left = OTHER_RUNS[change]
    folder = Folder(tmp_path, name, ROWS)
    assert await folder.run() == 20
    before = folder.output.read_bytes()
    other = prepare(folder) or {}
    calls = folder.model.calls
    with pytest.raises(ConfigError) as refused:
        await folder.run(**other)
    said = f"{name}' has 20 rows of {folder.source}; this run"
    assert said in str(refused.value), refused.value
    assert f"would leave {left or 'none of them'}. " in str(refused.value)
    assert "--overwrite" in str(refused.value)
    assert (folder.output.read_bytes(), folder.model.calls) == (before, calls)
    await folder.run(**other, overwrite=True)
    assert len(folder.prompts) != 20 or not {*folder.prompts} & {row["prompt"] for row in ROWS}
    assert any(f"this run leaves out {20 - left} rows" in message for message in folder.said)
    assert any("restores what it has written" in message for message in folder.said)
    write(folder.source, ROWS)
    assert await folder.run(overwrite=True) == 0
    assert folder.output.read_bytes() == before


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize("name", FORMATS)
async def test_other_rows_with_the_same_ids_are_other_rows(tmp_path, name):
    """Many data sets are numbered from 0: a row of another file is another row unless its task is
    the same.
    """
    folder = Folder(tmp_path, name, NUMBERED)
    await folder.run()
    before = folder.output.read_bytes()
    with pytest.raises(
        ConfigError, match=r"has 20 rows of .*; this run of .*others.jsonl would leave none of them"
    ):
        await folder.run(write(tmp_path / "others.jsonl", OTHERS))
    assert folder.output.read_bytes() == before
    copy = shutil.copy(folder.source, tmp_path / "copy.jsonl")
    assert await folder.run(copy) == 0
    assert folder.output.read_bytes() == before


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize("name", FORMATS)
async def test_long_numbers_are_different_ids(tmp_path, name):
    """IDs of 18 digits, which are equal as floating-point numbers, are those of different rows."""
    ids = range(1234567890123456780, 1234567890123456783)
    folder = Folder(tmp_path, name, [{"id": id, "prompt": f"question {id}"} for id in ids])
    await folder.run()
    before = folder.output.read_bytes()
    others = [{"id": id + 3, "prompt": f"question {id + 3}"} for id in ids]
    with pytest.raises(ConfigError, match="would leave none of them"):
        await folder.run(write(tmp_path / "others.jsonl", others))
    assert folder.output.read_bytes() == before


SAME_ROWS = {
    "the same command": (NUMBERED, NUMBERED, {}, 0),
    "rows added": (NUMBERED[:15], NUMBERED, {}, 5),
    "rows added before the others": (ROWS[5:], ROWS, {}, 5),
    "another order": (ROWS, ROWS[::-1], {}, 0),
    "rows without an ID": (ROWS, ROWS, {}, 0),
    "IDs in objects": (
        [{"meta": {"id": n}, **row} for n, row in enumerate(ROWS)],
        [{"meta": {"id": n}, **row} for n, row in enumerate(ROWS)],
        {"columns": {"id": "meta.id"}, "ordered": False},
        0,
    ),
    "IDs that are missing": ([{"id": None}, *NUMBERED[:2]], [{"id": None}, *NUMBERED[:2]], {}, 0),
    "IDs of several types": (
        [{"id": "a", "prompt": "a"}, *NUMBERED],
        [{"id": "a", "prompt": "a"}, *NUMBERED],
        {},
        0,
    ),
    "IDs that occur twice": (NUMBERED[:5] * 2, NUMBERED[:5] * 2, {"on_duplicate": "rename"}, 0),
    "equal rows": (ROWS[:5] * 2, [*ROWS[:5] * 2, ROWS[6]], {}, 1),
    "a column with the name of ours": (
        [{"best": 1, "id": n, **row} for n, row in enumerate(ROWS)],
        [{"best": 1, "id": n, **row} for n, row in enumerate(ROWS)],
        {"columns": {"id": ""}},
        0,
    ),
}


@pytest.mark.slow(but_each=36)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("rows", SAME_ROWS)
async def test_rows_of_an_earlier_run_are_known_again(tmp_path, rows, name):
    """A run that has all rows of its output asks nothing and replaces nothing, whatever IDs look
    like in the format.
    """
    first, second, settings, calls = SAME_ROWS[rows]
    folder = Folder(
        tmp_path, name, [row if "prompt" in row else {**row, "prompt": "no ID"} for row in first]
    )
    await folder.run(**settings)
    write(folder.source, [row if "prompt" in row else {**row, "prompt": "no ID"} for row in second])
    assert await folder.run(**settings) == calls
    assert not [message for message in folder.said if "this run" in message]
    assert len(folder.prompts) == len(second)
    assert await folder.run(**settings) == 0


@pytest.mark.slow(but_each=6)
@pytest.mark.parametrize("name", FORMATS)
async def test_the_same_rows_with_other_settings_are_redone_with_a_word(tmp_path, name):
    """One line says how many results are replaced, and the earlier command restores them without a
    call.
    """
    folder = Folder(tmp_path, name, NUMBERED)
    await folder.run()
    before = folder.output.read_bytes()
    await folder.run(graders="words:1-3")
    (said,) = [message for message in folder.said if "this run" in message]
    assert "this run replaces 20 results, because settings or rows have changed" in said
    assert "the earlier command restores what it has written without a new call" in said
    assert folder.output.read_bytes() != before
    assert await folder.run() == 0
    assert folder.output.read_bytes() == before
    edited = [{**NUMBERED[0], "prompt": "edited"}, *NUMBERED[1:]]
    write(folder.source, edited)
    assert await folder.run() == 1
    assert [message for message in folder.said if "this run replaces 1 result, " in message]


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize("name", FORMATS)
async def test_a_pilot_leaves_the_output_alone(tmp_path, name):
    """It is not refused, whatever it runs on."""
    folder = Folder(tmp_path, name, ROWS)
    await folder.run()
    before = folder.output.read_bytes()
    await folder.run(graders="words:1-3", pilot=5)
    await folder.run(**other_file(folder), pilot=2)
    assert folder.output.read_bytes() == before
    assert await folder.run() == 0
    assert folder.output.read_bytes() == before


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize("name", FORMATS)
async def test_an_output_without_its_journal_and_a_journal_without_its_output(tmp_path, name):
    """An output that was moved is replaced only if asked for; a missing one is written again, and
    another run may use its name.
    """
    folder = Folder(tmp_path, name, ROWS)
    await folder.run()
    before = folder.output.read_bytes()
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    folder.output = folder.output.rename(moved / name)
    with pytest.raises(ConfigError, match=r"already exists, .*--overwrite"):
        await folder.run()
    assert folder.output.read_bytes() == before
    folder.output = tmp_path / name
    assert await folder.run() == 0
    assert folder.output.read_bytes() == before
    folder.output.unlink()
    assert await folder.run(**other_file(folder)) == 3
    folder.output.unlink()
    shutil.copy(moved / name, folder.output)
    with pytest.raises(ConfigError, match="would leave none of them"):
        await folder.run(**other_file(folder))


async def test_rows_that_are_saved_nowhere_else_are_counted(tmp_path):
    """A file that was put in the place of the output is not in the journal."""
    folder = Folder(tmp_path, "out.jsonl", ROWS)
    await folder.run()
    write(
        folder.output,
        [
            *map(json.loads, folder.output.read_text().splitlines()),
            {"id": "x", "prompt": "mine"},
            {"some": "row"},
        ],
    )
    with pytest.raises(
        ConfigError, match=r"has 22 rows of .* would leave 20, and 2 are saved nowhere else"
    ):
        await folder.run()
    folder.output.write_text("a letter\nof two lines\nand more\n")
    with pytest.raises(
        ConfigError, match=r"would leave none of them, and 2 are saved nowhere else"
    ):
        await folder.run()
    await folder.run(overwrite=True)
    (said,) = [message for message in folder.said if "this run" in message]
    assert (
        said == f"in {str(folder.output)!r} this run leaves out 2 rows; saved nowhere else: 2 rows"
    )


@pytest.mark.parametrize("name", ["out.jsonl.gz", "out.parquet"])
async def test_a_file_that_cannot_be_read_is_replaced_only_if_asked_for(tmp_path, name):
    """It is no output that a run has written."""
    folder = Folder(tmp_path, name, ROWS)
    await folder.run()
    before = folder.output.read_bytes()
    folder.output.write_bytes(b"something else")
    with pytest.raises(ConfigError, match="saved nowhere else"):
        await folder.run()
    assert await folder.run(overwrite=True) == 0
    assert folder.output.read_bytes() == before


async def test_a_torn_last_line_is_no_row(tmp_path):
    """A run that was killed while it wrote resumes without a question."""
    folder = Folder(tmp_path, "out.jsonl", ROWS)
    await folder.run()
    before = folder.output.read_bytes()
    folder.output.write_bytes(before[: len(before) // 2])
    assert await folder.run() == 0
    assert folder.output.read_bytes() == before


async def test_a_preview_says_what_the_run_would_say(tmp_path):
    """It makes no call and is not refused."""
    folder = Folder(tmp_path, "out.jsonl", ROWS)
    await folder.run()
    run = BatchRun.from_arguments(
        folder.source, folder.output, folder.model, "words:1-9", max_iterations=0, limit=5
    )
    preview = await run.prepare()
    assert "has 20 rows" in preview.summary[-1] and "would leave 5" in preview.summary[-1]
