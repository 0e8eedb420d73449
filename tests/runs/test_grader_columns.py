"""Batches in mode "grade": the score and the reason of every grader beside the mean."""

import csv
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redraft import batch_sync
from redraft.loop.trace import PanelGrader
from redraft.runs.row_result import COLUMNS, grader_columns

ROWS = [
    {"id": str(n), "prompt": "q", "response": text}
    for n, text in enumerate(["fine", "bad", "ok then"])
]


CALLS = []  # no closure of the grader: what a closure holds is part of the fingerprint


def tone(text):
    CALLS.append(text)
    return 0.5, f"tone of {text}"


def strict(text):
    if text == "bad":
        raise ValueError("no")
    return 1.0


def read(path):
    if path.suffix == ".csv":
        return list(csv.DictReader(path.read_text().splitlines()))
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        return pq.read_table(path).to_pylist()
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_responses_are_graded_as_they_are(tmp_path):
    """The built-in editor, which could repair one for nothing, does not; nor do settings of a
    refinement that are given.
    """
    rows = [
        {"id": "0", "prompt": "q", "response": "hello"},
        {"id": "1", "prompt": "q", "response": "HI"},
    ]
    for settings in ({}, {"editor": True, "max_iterations": 5}):
        report = batch_sync(
            rows, tmp_path / f"{len(settings)}.jsonl", None, "uppercase", mode="grade", **settings
        )
        found = [
            (row["best"], row["best_score"], row["iterations"])
            for row in read(tmp_path / f"{len(settings)}.jsonl")
        ]
        assert (found, report.rows.improved) == ([("hello", 0.0, 0), ("HI", 1.0, 0)], 0)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".csv"])
def test_every_row_has_the_columns_of_every_grader(tmp_path, suffix):
    """An unknown score is null, or empty in CSV; the second run makes no call and writes the
    same.
    """
    CALLS.clear()
    output = tmp_path / f"out{suffix}"
    graders = [tone, tone, strict, "words:1-2"]
    empty = "" if suffix == ".csv" else None
    for _ in range(2):
        batch_sync(ROWS, output, False, graders, False, mode="grade")
        rows = read(output)
        assert len({tuple(row) for row in rows}) == 1
        assert [row["tone_reason"] for row in rows] == [
            "tone of fine",
            "tone of bad",
            "tone of ok then",
        ]
        assert [row["strict_score"] in (1, "1.0") for row in rows] == [True, False, True]
        assert rows[1]["strict_score"] == rows[1]["best_score"] == rows[1]["strict_reason"] == empty
        assert {row["tone_2_score"] for row in rows} <= {0.5, "0.5"}
        assert [float(row["words_1_2_score"]) for row in rows] == [1, 1, 1]
        assert "strict" in rows[1]["error"]
    assert len(CALLS) == 2 * len(ROWS)


def test_of_several_responses_the_best_one_has_the_columns(tmp_path):
    """The scores are those of the text in the column best."""
    rows = [
        {"prompt": "q", "responses": texts}
        for texts in (["too many words", "fine"], ["fine", "too many words"])
    ]
    batch_sync(rows, tmp_path / "out.jsonl", False, ["words:1-2", strict], False, mode="grade")
    for row in read(tmp_path / "out.jsonl"):
        assert (row["best"], row["best_score"], row["words_1_2_score"], row["strict_score"]) == (
            "fine",
            1,
            1,
            1,
        )


def test_other_modes_have_no_such_columns(tmp_path):
    """Their last answer is not the first."""
    batch_sync(ROWS, tmp_path / "out.jsonl", False, tone)
    assert set(read(tmp_path / "out.jsonl")[0]) == {*ROWS[0], *COLUMNS}


def test_a_column_of_the_input_is_kept(tmp_path):
    """The grader's column gets the prefix that other result columns get."""
    rows = [{**row, "tone_score": "mine"} for row in ROWS]
    batch_sync(rows, tmp_path / "out.jsonl", False, tone, False, mode="grade")
    row = read(tmp_path / "out.jsonl")[0]
    assert (row["tone_score"], row["redraft_tone_score"], row["tone_reason"]) == (
        "mine",
        0.5,
        "tone of fine",
    )


def test_requirements_of_rows_have_no_columns(tmp_path):
    """They differ from row to row; those that are broken are named."""
    rows = [{**ROWS[0], "requirements": "words:2-3"}, {**ROWS[1], "requirements": ""}]
    batch_sync(
        rows,
        tmp_path / "out.jsonl",
        False,
        tone,
        False,
        mode="grade",
        columns={"requirements": "requirements"},
    )
    first, second = read(tmp_path / "out.jsonl")
    assert (
        first.keys() == second.keys()
        and first["broken"] == "words:2-3"
        and first["tone_score"] == 0.5
    )


def test_a_grader_named_judge_has_the_column_judge_score():
    """The mean of all graders is best_score; names of other result columns get a prefix."""
    columns = grader_columns(
        [PanelGrader("judge"), PanelGrader("best"), PanelGrader("rank", compares=True)]
    )
    assert columns == {
        "judge": ("judge_score", "judge_reason"),
        "best": ("grader_best_score", "grader_best_reason"),
    }


@given(
    st.lists(
        st.text(min_size=1, max_size=12)
        | st.sampled_from(["a b", "a_b", "a:b", "best", "initial", "é"]),
        max_size=8,
        unique=True,
    )
)
def test_columns_are_distinct_and_safe(names):
    """Whatever graders are called."""
    columns = [
        name
        for pair in grader_columns([PanelGrader(name) for name in names]).values()
        for name in pair
    ]
    assert len(set(columns)) == len(columns) == 2 * len(names)
    assert not set(columns) & (COLUMNS.keys() - {"judge_score"})
    assert all(re.fullmatch(r"\w{1,100}", name, re.ASCII) for name in columns)
