"""The form of a result: what is written is read back equal, what 0.2 wrote is read exactly, and
nothing else is.
"""

import json
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest

from redraft.errors import StoreError
from redraft.plans.quality.result_facts import OPTIONAL, ResultFacts

sys.path.insert(0, str(Path(__file__).parents[1] / "golden"))
import write as golden

EARLIER = json.loads((golden.HERE / "results-1.json").read_text())
FACTS = golden.example_result()


def read_again(facts):
    return ResultFacts.from_data(json.loads(json.dumps(facts.to_data())))


def test_what_is_written_is_read_back_equal():
    """Every field, and none; a field without a value is not written."""
    empty = ResultFacts("open", "not_started")
    assert (read_again(FACTS), read_again(empty)) == (FACTS, empty)
    assert [f.name for f in fields(ResultFacts) if f.name not in FACTS.to_data()] == []
    assert empty.to_data() == {"redraft_result": 2, "status": "open", "stop": "not_started"}


@pytest.mark.parametrize("earlier", EARLIER, ids=lambda each: each["what"])
def test_what_earlier_releases_wrote_is_read_exactly(earlier):
    """The columns, the figures and the decisions are those that the journal holds; written again,
    they stay.
    """
    data = earlier["result"]
    facts = ResultFacts.from_data({**data, "status": earlier["status"]})
    forecast = data["columns"].pop("forecast", None)  # once a fact, and now the last column
    more = [] if forecast is None else [("forecast", forecast)]
    assert list(facts.columns.items()) == [*data["columns"].items(), *more]
    assert facts.status == earlier["status"]
    assert read_again(facts) == facts
    assert [list(each) for each in facts.by_iteration] == data["score_by_iteration"]
    for name in ("improved", "worse", "unsure", "truncated", "error_kind", "decisions"):
        if name in data:
            assert getattr(facts, name) == data[name], name


@pytest.mark.parametrize(
    "facts", [FACTS, ResultFacts("open", "not_started"), replace(FACTS, has_form=False)]
)
def test_the_whole_form_has_every_field(facts):
    """By its name, and with its value; only what the class names may be left out."""
    data, names = json.loads(json.dumps(facts.as_data())), {f.name for f in fields(ResultFacts)}
    assert names - data.keys() - {"has_form"} <= {*OPTIONAL, "parsed"}
    assert data.keys() - names == {"schema"}
    assert ("parsed" in data) is facts.has_form and data["schema"] == 2
    packed = json.loads(json.dumps(facts.to_data()))
    for name in data.keys() & packed.keys() - {"tool_calls"}:
        assert data[name] == packed[name], name
    assert data["tool_calls"] == [call.as_message_part() for call in facts.tool_calls]


def test_the_columns_of_a_batch_have_the_names_of_the_form():
    """But for these; a list or an object is a text there, and what is "" or empty is null."""
    data, columns = FACTS.as_data(), dict(FACTS.columns)
    others = {"best": data["answer"], "best_score": data["score"]}
    others |= dict(zip(("score_low", "score_high"), data["interval"], strict=True))
    assert {name: columns.pop(name) for name in others} == others
    assert columns.pop("broken") == "; ".join(data["broken"])
    for name in ("kept", "tool_calls"):
        assert json.loads(columns.pop(name)) == json.loads(json.dumps(data[name]))
    for name in FACTS.more_columns:
        assert columns.pop(name) == data["more_columns"][name]
    assert columns == {name: data[name] for name in columns}


def test_a_row_of_an_early_release_may_lack_columns():
    """Those are unknown."""
    facts = ResultFacts.from_data({"columns": {"best": "It.", "stop": "target"}, "status": "done"})
    assert facts == ResultFacts("done", "target", answer="It.")


BAD = {
    "a number of calls": {"calls": 7.5},
    "a negative cost": {"cost": -5},
    "a huge cost": {"cost": 1e300},
    "an infinite cost": {"cost": float("inf")},
    "no number": {"tokens": "many"},
    "a score above 1": {"initial_score": 1.5},
    "a score that is no number": {"judge_score": float("nan")},
    "an answer that is no text": {"answer": ["It."]},
    "a stop that is no text": {"stop": None},
    "half an interval": {"interval": [0.5, None]},
    "a list of three": {"interval": [0.1, 0.2, 0.3]},
    "a short iteration": {"by_iteration": [[2]]},
    "an iteration with a negative cost": {"by_iteration": [[0.5, 1, -1]]},
    "an iteration with a huge score": {"by_iteration": [[7, 1, 1]]},
    "an iteration that is none": {"by_iteration": [5]},
    "a flag": {"improved": 1},
    "a must that is no text": {"broken": [5]},
    "a tool call without a name": {"tool_calls": [{"arguments": "{}"}]},
    "an unknown field": {"of_a_later_release": 1},
}
BAD_COLUMNS = {
    "a number of calls": {"calls": 7.5},
    "a score above 1": {"best_score": 1.5},
    "an answer that is no text": {"best": []},
    "half an interval": {"score_low": 0.5},
    "tool calls that are no JSON": {"tool_calls": "["},
    "tool calls of another form": {"tool_calls": "[5]"},
    "kept answers that are no list": {"kept": "7"},
}


@pytest.mark.parametrize("what", BAD)
def test_a_value_that_no_result_has_is_refused(what):
    """With the name of the field, or of what it counts."""
    with pytest.raises(StoreError, match=rf"{next(iter(BAD[what]))}|score|amount|tool|Tool"):
        ResultFacts.from_data({**FACTS.to_data(), **BAD[what]})


@pytest.mark.parametrize("what", BAD_COLUMNS)
def test_a_column_that_no_release_wrote_is_refused(what):
    """In the first form, too."""
    good = EARLIER[1]
    columns = {**good["result"]["columns"], "score_high": None, "score_low": None}
    assert ResultFacts.from_data({**good["result"], "columns": columns, "status": "done"})
    with pytest.raises(StoreError):
        ResultFacts.from_data(
            {**good["result"], "columns": columns | BAD_COLUMNS[what], "status": "done"}
        )


@pytest.mark.parametrize("columns", [None, [], 5, "text"])
def test_data_that_are_no_result_are_refused(columns):
    """Whatever they are instead."""
    with pytest.raises(StoreError):
        ResultFacts.from_data({"columns": columns, "status": "done"})
    with pytest.raises(StoreError, match="no result"):
        ResultFacts.from_data({"status": "done"})


def test_another_version_is_refused_with_both_numbers():
    """And with what to do."""
    data = replace(FACTS).to_data() | {"redraft_result": 3}
    with pytest.raises(StoreError, match="schema 3; this release reads schemas 1 and 2: use the"):
        ResultFacts.from_data(data)


def test_the_forecast_of_an_earlier_version_is_a_column():
    """It is no fact any more, and shown as it was."""
    data = ResultFacts("done", "budget", more_columns={"brief_score": 0.5}).to_data()
    facts = ResultFacts.from_data({**data, "forecast": 0.7})
    assert facts.more_columns == {"forecast": 0.7, "brief_score": 0.5}
    assert facts.columns["forecast"] == 0.7 and read_again(facts) == facts
