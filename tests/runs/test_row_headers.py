"""The header of a row in the journal, whose part after the task is encoded once for many rows."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from redraft import Task
from redraft.loop.trace import PanelGrader, Trace
from redraft.runs.row_key import short_hash
from redraft.runs.runner import RowHeaders

PANELS = (), (PanelGrader("words"), PanelGrader("jüdge", 0.5, must=True))
SETTINGS = (
    {},
    {"noise": 1},
    {"noise": float("nan")},
    {"text": "\ud800"},
    {"number": 10**30},
    {"calibration": {"points": [1, 2]}},
)
TASKS = (
    Task("q", response="a"),
    Task("é\ud800"),
    Task("q", metadata={"kept": "in the output"}),
    Task("q", tests=["assert f() == 10"]),
)


@pytest.mark.parametrize("task", TASKS)
def test_a_header_is_that_of_the_trace(task):
    """One object makes the headers of rows that differ in all parts, in any order."""
    headers = RowHeaders()
    for panel in (*PANELS, *PANELS):
        for settings in SETTINGS:
            trace = Trace(task, panel, settings=settings)
            expected = replace(trace, task=replace(task, metadata={})).header()
            if "calibration" in settings:
                expected["settings"] = {"calibration": short_hash(settings["calibration"])}
            assert json.dumps(json.loads(headers.header(trace))) == json.dumps(expected)
