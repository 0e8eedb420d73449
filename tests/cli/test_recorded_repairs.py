"""Traces and journals of an earlier release, in which programs were repaired by their tests: they
are read, shown, exported and resumed.
"""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from redraft import ScriptedModel, refine_sync
from redraft.storage.journal import Journal
from redraft.storage.trace_file import JsonlStore, read_trace

GOLDEN = Path(__file__).parents[1] / "golden"
TRACE = GOLDEN / "program-repair.jsonl"
RIGHT = "def moving_sum(n, w):\n    return [sum(n[i : i + w]) for i in range(len(n) - w + 1)]"
NOTE = "line 4: the end of the range became `(len(numbers) - width) + 1`"


@pytest.fixture
def journal(tmp_path):
    """The journal of a batch, made from the SQL that was recorded of it."""
    path = tmp_path / "out.jsonl.journal"
    with Journal(path):
        pass
    with closing(sqlite3.connect(path)) as database:
        tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        for (table,) in tables.fetchall():
            database.execute(f"DROP TABLE {table}")
        database.executescript((GOLDEN / "program-repair.sql").read_text())
    return path


def test_a_trace_is_read_with_its_repair():
    """The repaired program is the best answer, and its note is kept."""
    trace = read_trace(TRACE)
    assert [candidate.role for candidate in trace.candidates] == ["generate", "repair"]
    assert NOTE in trace.best.note
    assert trace.outcome.best == 1


def test_a_trace_and_a_journal_are_shown(redraft, journal, tmp_path):
    """The page has the repaired program, and `show` the note of the repair."""
    for source in (TRACE, journal):
        page = tmp_path / f"{source.name}.html"
        done = redraft("view", source, "--html", page)
        assert done.returncode == 0, done.err
        assert "from typing import List" in page.read_text()
    done = redraft("show", TRACE)
    assert "the end of the range became" in " ".join(done.out.split()), done.err


def test_a_journal_is_exported(redraft, journal, tmp_path):
    """The repaired program is preferred to the draft."""
    out = tmp_path / "pairs.jsonl"
    done = redraft("export", "out-jsonl", "--journal", journal, "-o", out)
    assert done.returncode == 0, done.err
    (pair,) = map(json.loads, out.read_text().splitlines())
    assert "range((len(numbers) - width) + 1)" in pair["chosen"][0]["content"]
    assert "range(len(numbers) - width)\n" in pair["rejected"][0]["content"]


@pytest.mark.usefixtures("sandbox")
@pytest.mark.parametrize(("records", "calls"), [(3, 2), (4, 1), (6, 1)])
def test_a_trace_is_resumed(tmp_path, records, calls):
    """After the repair no call is needed; before it the model corrects what was once repaired."""
    path = tmp_path / "trace.jsonl"
    lines = TRACE.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[: 1 + records]))
    with JsonlStore(path, resume=True) as store:
        result = refine_sync(
            read_trace(path),
            ScriptedModel([RIGHT]),
            "tests",
            answer="code:python",
            store=store,
        )
    assert (result.score, result.stop, result.usage.calls) == (1.0, "target", calls)
    assert read_trace(path).records == result.trace.records
