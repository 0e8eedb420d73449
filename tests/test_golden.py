"""Golden files of the saved formats: they are read back equal, and do not change without a new
schema version.
"""

import json
import shutil
import sqlite3
import sys
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path

import pytest

from redraft.errors import StoreError
from redraft.graders.cards import SCHEMA as CARD_SCHEMA
from redraft.graders.cards import Card
from redraft.loop.records import (
    Artifact,
    Candidate,
    Comparison,
    CriterionScore,
    Failure,
    Feedback,
    Outcome,
    ToolCall,
    Usage,
)
from redraft.loop.serialize import SCHEMA
from redraft.loop.task import Task
from redraft.loop.trace import PanelGrader, Trace
from redraft.plans.quality.result_facts import ResultFacts
from redraft.storage.journal import Journal
from redraft.storage.priors_store import SCHEMA as PRIORS_SCHEMA
from redraft.storage.priors_store import StoredPriors
from redraft.storage.trace_file import read_trace

sys.path.insert(0, str(Path(__file__).parent / "golden"))
import write as golden


@pytest.mark.parametrize("file", golden.GOLDEN_FILES, ids=lambda file: file.name)
def test_a_format_changes_only_with_its_schema_version(file):
    """The data written now equal the golden file to the byte."""
    assert file.schema_of(file.path.read_text()) == file.schema, (
        "the schema version was raised: run python tests/golden/write.py"
    )
    assert file.write() == file.path.read_text(), f"{file.name} changes: raise its schema version"


def test_a_golden_trace_is_read_back_equal():
    """It is read from a trace file, and from the JSON document of the same trace."""
    expected = golden.example_trace()
    for trace in (read_trace(golden.HERE / "trace.jsonl"), Trace.from_json(expected.to_json())):
        assert (trace.task, trace.panel, trace.records) == (
            expected.task,
            expected.panel,
            expected.records,
        )
        assert (trace.settings, [g.card for g in trace.panel]) == (
            expected.settings,
            [g.card for g in expected.panel],
        )


def test_the_golden_trace_has_every_field():
    """A new or renamed field changes the golden file, so that the version is considered."""
    text = (golden.HERE / "trace.jsonl").read_text()
    kinds = (
        Task,
        PanelGrader,
        Usage,
        ToolCall,
        Artifact,
        Candidate,
        CriterionScore,
        Feedback,
        Comparison,
        Failure,
        Outcome,
    )
    names = {
        f"{kind.__name__}.{f.name}"
        for kind in kinds
        for f in fields(kind)
        if f'"{f.name}":' not in text
    }
    # it excludes `response`; tests/test_given_responses.py reads it back
    assert names == {"Task.responses"}


@pytest.mark.parametrize("found", [1, SCHEMA + 1, "2", None])
def test_other_versions_are_refused_with_both_numbers(found):
    """The error has the version found, the version supported, and what to do; a file without a
    version is no trace.
    """
    data = json.loads(golden.example_trace().to_json()) | {"redraft": found}
    with pytest.raises(StoreError) as error:
        Trace.from_json(json.dumps(data))
    assert f"this release reads schema {SCHEMA}" in str(error.value)
    assert (f"a trace of schema {found!r}" if found is not None else "no Redraft trace") in str(
        error.value
    )


EARLIER_RESULT = ResultFacts("done", "", more_columns={"score": 0.7})


# of schema 3, the last with spaces in its JSON
@pytest.mark.parametrize("file", ["journal.sql", "journal-3.sql", "journal-earlier.sql"])
def test_a_golden_journal_is_read_back_equal(tmp_path, file):
    """Its run, rows, traces and cached reply are loaded from the SQL of the golden file."""
    path, expected = tmp_path / "journal", golden.example_trace()
    golden.write_journal(tmp_path / "new")
    shutil.copy(tmp_path / "new", path)
    with closing(sqlite3.connect(path)) as database:
        for (table,) in database.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table'"
        ).fetchall():
            database.execute(f"DROP TABLE {table}")
        database.executescript((golden.HERE / file).read_text())
        database.execute(
            "UPDATE runs SET started_at = '2026-05-01T00:00:00+00:00', updated_at = started_at"
        )
        schema = golden.GOLDEN_FILES[1].schema_of((golden.HERE / file).read_text())
        database.execute(f"PRAGMA user_version = {schema}")
        database.commit()
    with Journal(path, read_only=True) as journal:
        rows = list(journal.traces("a run"))
        assert [(info.id, info.position, info.status) for info, _ in rows] == [
            ("row 1", 0, "done"),
            ("row \u00e9", 1, "open"),
        ]
        *records, end = expected.records
        if file != "journal.sql":  # of versions that could forecast what no judge graded
            expected_score = "no judge graded the answer; it was expected to score 0.70"
            end = replace(end, note=f"{end.note}; {expected_score}")
        assert rows[0][1].records == (*records, end)
        result = rows[0][0].facts
        assert result == (golden.example_result() if file == "journal.sql" else EARLIER_RESULT)
        assert rows[1][0].facts is None
        assert journal.run("a run").metadata["last_full_invocation"] == 1
        assert journal.response_cache["reply"].text == "It."


def test_a_golden_card_and_golden_priors_are_read_back_equal():
    """They are read from the golden files."""
    card = (golden.HERE / "card.json").read_text()
    assert Card.from_json(card, "card.json") == golden.example_card()
    priors = json.loads((golden.HERE / "priors.json").read_text())
    assert StoredPriors.from_data(priors) == golden.example_priors()


@pytest.mark.parametrize("found", [1, 99, None])
def test_cards_and_priors_of_other_versions_are_refused_with_both_numbers(found):
    """The error has the version found and the version supported."""
    card = json.loads(golden.example_card().to_json()) | {"redraft_card": found}
    with pytest.raises(
        StoreError, match=f"schema {found}, and this release reads schema {CARD_SCHEMA}"
    ):
        Card.from_json(json.dumps(card), "card.json")
    with pytest.raises(
        ValueError, match=f"schema {found}, and this release reads schema {PRIORS_SCHEMA}"
    ):
        StoredPriors.from_data(golden.example_priors().as_data() | {"redraft_priors": found})
