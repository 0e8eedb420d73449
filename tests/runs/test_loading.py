"""What other libraries load: the outputs of batches and the exports of runs whose first failure
comes late.

A reader that takes the types of columns from its first block, as `datasets` does, finds only nulls
there.
"""

import json
from types import SimpleNamespace

import pytest

import redraft
from redraft.loop.records import Candidate, Feedback, Outcome, StopReason
from redraft.loop.task import Task
from redraft.loop.trace import PanelGrader, Trace
from redraft.tables.export.formats import FORMATS, ExportConfig, Provenance
from redraft.tables.export.writer import export

BLOCK = 4096  # bytes; much less than the rows of a test
COUNT = 60
LAST = COUNT - 1


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Call `datasets.load_dataset` without the network and with a cache of its own."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    datasets = pytest.importorskip("datasets", reason="no datasets")
    datasets.disable_progress_bars()
    return lambda *args, **options: datasets.load_dataset(
        *args, cache_dir=str(tmp_path / "cache"), split="train", **options
    )


def rows(**last):
    return [
        {"id": n, "prompt": f"Question {n}", "response": "Some words."}
        | (last if n == LAST else {})
        for n in range(COUNT)
    ]


def with_column(value):
    return [row | {"extra": value if row["id"] == LAST else None} for row in rows()]


def breaks_down(text):
    raise ValueError("no more")


CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}],
}
# the rows, the settings, and a column that is null in all rows but the last, with what it says
# there
LATE = {
    "a row without a response": (rows(response=""), {}, "error", "NoResponseError"),
    "a broken requirement": (rows(response="Too " * 30), {}, "broken", "words"),
    "a grader that fails": (rows(), {"graders": [lambda text, task: breaks_down(text) if task.id == str(LAST) else 1.0]}, "error", "no more"),
    "an object": (with_column({"a": {"b": 1}}), {}, "extra", "1"),
    "a list of objects": (with_column([{"a": 1}]), {}, "extra", "1"),
    "a text": (with_column("late"), {}, "extra", "late"),
    "a number": (with_column(1.5), {}, "extra", "1.5"),
    "a truth value": (with_column(True), {}, "extra", "True"),
    "an empty object": (with_column({}), {}, "extra", "{}"),
    "a call of a tool": (rows(response=json.dumps(CALL)), {"graders": ["words:0-9"]}, "prompt", "Question"),
    "grades of one grader": (rows(response=""), {"mode": "grade"}, "error", "NoResponseError"),
    "an answer that is not valid": (rows(response='"x"'), {"answer": {"type": "object"}}, "error", ""),
}  # fmt: skip


def run_batch(tmp_path, name, given, settings):
    settings = {"graders": [redraft.must("words:1-9")]} | settings
    redraft.batch_sync(given, tmp_path / name, False, **settings)
    return tmp_path / name


@pytest.mark.slow(but_each=12)
@pytest.mark.parametrize("case", LATE)
def test_a_batch_in_parquet_is_loaded_with_its_last_row(tmp_path, load, case):
    """Parquet has the types of all rows, also of columns that are null until then."""
    given, settings, column, words = LATE[case]
    loaded = load("parquet", data_files=str(run_batch(tmp_path, "out.parquet", given, settings)))
    assert (len(loaded), loaded[LAST]["id"]) == (COUNT, LAST)
    assert words in str(loaded[LAST][column])


@pytest.mark.slow(but_each=6)
@pytest.mark.parametrize("case", LATE)
def test_json_lines_that_are_there_already_are_read_in_one_block(tmp_path, case):
    """As the guide says: the types are then those of all rows."""
    Dataset = pytest.importorskip("datasets", reason="no datasets").Dataset
    from pyarrow.json import ReadOptions, read_json

    given, settings, column, words = LATE[case]
    path = run_batch(tmp_path, "out.jsonl", given, settings)
    loaded = Dataset(read_json(path, ReadOptions(block_size=path.stat().st_size)))
    assert (len(loaded), loaded[LAST]["id"]) == (COUNT, LAST)
    assert words in str(loaded[LAST][column])


def trace(*answers, **outcome):
    """The trace of a refinement with these scores; a score of None is an answer that nothing
    graded.
    """
    grown = Trace(Task(f"Question {outcome.pop('n')}"), (PanelGrader("judge"),))
    for i, score in enumerate(answers):
        grown += Candidate(
            i,
            f"answer {i}",
            parent=i - 1 if i else None,
            by="m",
            role="refine",
            truncated=score is None,
        )
        if score is not None:
            grown += Feedback(
                score, "so so", ("be brief",) if i else (), candidate=i, grader="judge"
            )
    return grown + Outcome(0 if answers else None, outcome.get("reason", StopReason.PATIENCE))


def late_failure(format):
    """Rows of a run, of which the last is the first whose refinement failed, and the one before the
    first with several answers.
    """
    usual = (0.1,) if format == "trajectory" else (0.1, 0.9)
    traces = [trace(*usual, n=n) for n in range(COUNT)]
    return [*traces, trace(0.1, None, 0.9, None, n=COUNT, reason=StopReason.FAILED)]


@pytest.mark.slow(but_each=5)
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", ["data", "data in parquet", "out.parquet"])
def test_an_export_is_loaded_with_its_last_row(tmp_path, load, format, name):
    """A folder has the types in its card, and Parquet in the file."""
    path = tmp_path / name.split()[0]
    numbered = [
        (SimpleNamespace(id=f"row {n}"), each) for n, each in enumerate(late_failure(format))
    ]
    done = export(
        numbered,
        path,
        ExportConfig(format, files="parquet" if "in" in name else "jsonl"),
        Provenance("r"),
    )
    options = {"chunksize": BLOCK} if name == "data" else {}
    loaded = (
        load("parquet", data_files=str(path))
        if name == "out.parquet"
        else load(str(path), **options)
    )
    assert len(loaded) == done.train > COUNT - 1
