"""CSV of promptfoo: repeated columns of assertions, metadata, recorded answers; what is not read is
reported or refused by name.
"""

import pytest

from redraft.errors import ConfigError
from redraft.requirements.spec import check_foreign_spec
from redraft.tables import iter_rows
from redraft.tables.columns import infer_columns


def tasks_of(path, text, bad=None):
    path.write_text(text)
    rows = [row.values for row in iter_rows(path, bad and bad.append)]
    mapping = infer_columns(rows, check_requirement=check_foreign_spec)
    return [mapping.task(row) for row in rows]


CASES = {
    "a text": ("__expected", "Paris", "Paris", ["Paris"]),
    "equals": ("__expected", "equals: Paris", "Paris", ["equals: Paris"]),
    "two repeated": ("__expected,__expected", "Paris,contains:a", "Paris", ["Paris", "contains:a"]),
    "two numbered": (
        "__expected1,__expected2",
        "contains:a,equals:Paris",
        "Paris",
        ["contains:a", "equals:Paris"],
    ),
    "a blank one": ("__expected,__expected", "Paris,", "Paris", ["Paris"]),
    "none": ("__expected", '""', None, None),
    "two texts": ("__expected,__expected", "Paris,Lyon", None, ["Paris", "Lyon"]),
    "not equals": ("__expected", "not-equals:Lyon", None, ["not-equals:Lyon"]),
    "a threshold": ("__expected", "similar(0.8):Paris", None, ["similar(0.8):Paris"]),
    "code": (
        "__expected",
        "javascript: output.length < 9",
        None,
        ["javascript: output.length < 9"],
    ),
    "a file": ("__expected", "file://check.py", None, ["file://check.py"]),
    "a text with a colon": ("__expected", "answer: Paris", "answer: Paris", ["answer: Paris"]),
}


@pytest.mark.parametrize("kind", CASES)
def test_expected_texts_are_the_reference_and_other_assertions_are_reported(tmp_path, caplog, kind):
    """No assertion is lost: all are metadata; none of those that grade nothing goes unreported."""
    names, cells, reference, expected = CASES[kind]
    (task,) = tasks_of(tmp_path / "t.csv", f"question,{names}\nWhich town?,{cells}\n")
    assert (task.prompt, task.reference, task.metadata.get("expected")) == (
        "Which town?",
        reference,
        expected,
    )
    unread = [
        text
        for text in expected or []
        if text not in {"Paris", "Lyon", "equals: Paris", "equals:Paris", "answer: Paris"}
    ]
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == len(unread)
    assert all(
        "grades nothing" in message and str(tmp_path / "t.csv") in message for message in messages
    )


def test_other_columns(tmp_path):
    text = (
        "question,__metadata:topic,__metadata:tags[],__description,__providerOutput,__metric,__expected\n"
        'q,towns,"a,b\\,c",a test,Paris,accuracy,Paris\n'
    )
    (task,) = tasks_of(tmp_path / "t.csv", text)
    assert (task.prompt, task.response, task.reference) == ("q", "Paris", "Paris")
    assert task.metadata == {
        "topic": "towns", "tags": ["a", "b,c"], "__description": "a test", "__metric": "accuracy", "expected": ["Paris"],
    }  # fmt: skip


def test_what_changes_the_prompt_is_refused(tmp_path):
    """A blank one changes nothing."""
    (tmp_path / "t.csv").write_text(
        "question,__expected,__prefix,__suffix\nq,a,,\nr,b,Be brief: ,\n"
    )
    bad = []
    assert [row.values["question"] for row in iter_rows(tmp_path / "t.csv", bad.append)] == ["q"]
    assert "'__prefix' of promptfoo is not read" in bad[0].message


@pytest.mark.parametrize(
    "names",
    ["question,question,__expected", "question,__metadata:a,__metadata:a", "q,__expected,q"],
)
def test_no_other_column_may_be_repeated(tmp_path, names):
    (tmp_path / "t.csv").write_text(f"{names}\na,b,c\n")
    with pytest.raises(ConfigError, match="is named twice"):
        list(iter_rows(tmp_path / "t.csv"))


def test_results_of_several_runs_are_refused(tmp_path):
    """The columns of each provider have the same names; the error says what to do."""
    (tmp_path / "t.csv").write_text(
        "q,[a] p,Status,Score,[b] p,Status,Score\n1,x,PASS,1,y,FAIL,0\n"
    )
    with pytest.raises(
        ConfigError, match=r"'Status' is named twice; have promptfoo write its results as JSON"
    ):
        list(iter_rows(tmp_path / "t.csv"))
