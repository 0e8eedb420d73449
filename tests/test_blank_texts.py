"""A blank text is none: a response, a reference, a context, an ID, a label. It is written where a
model is, and never wins.
"""

import csv
import io
import json

import pytest

from redraft import ScriptedModel, Task, batch_sync, grade_sync, refine_sync
from redraft.base.checks import is_blank
from redraft.base.sync import run_sync
from redraft.comparison import compare
from redraft.errors import ConfigError
from redraft.grading import grade_many
from redraft.protocols import Reply
from redraft.requirements.spec import check_foreign_spec
from redraft.tables.columns import infer_columns
from redraft.tables.readers import iter_rows
from redraft.tables.table_writers import ParquetWriter
from redraft.usage import Usage
from redraft.validation.labelled import read_cases

BLANKS = [
    "",
    " ",
    "\n\t\r\n",
    "\u00a0\u2003\u3000",
    "\ufeff",
    "\u200b\u2060",
    "\u2028\x85",
    "\u3164",
    "\x00",
    "\ufeff \n",
]
TEXTS = [".", "0", "null", "-", "\u00a0x", "\U0001f600", "\u0301"]
FORMATS = ["in.jsonl", "in.csv", "in.tsv", "in.parquet"]


def write(path, rows):
    """Write rows in the format of the name."""
    if path.suffix == ".parquet":
        writer = ParquetWriter(path)
        for row in rows:
            writer.write(writer.encode_row(row))
        writer.close()
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        text = io.StringIO(newline="")
        table = csv.DictWriter(
            text, list(rows[0]), delimiter="\t" if path.suffix == ".tsv" else ","
        )
        table.writeheader()
        table.writerows(rows)
        path.write_bytes(text.getvalue().encode())
    return path


def results(path):
    return [row.values for row in iter_rows(path)]


@pytest.mark.parametrize("blank", BLANKS)
def test_blank_texts_are_recognised(blank):
    """They have no visible character, whatever the characters are."""
    assert is_blank(blank)


@pytest.mark.parametrize("text", TEXTS)
def test_short_texts_are_not_blank(text):
    """Anything visible is a text."""
    assert not is_blank(text)


@pytest.mark.parametrize("blank", BLANKS)
def test_a_task_has_no_blank_text(blank):
    """The field is None, as if it had been left out; of several responses the others stay."""
    task = Task("q", blank, reference=blank, context=blank, tests=blank, id=blank)
    assert task == Task("q")
    assert Task("q", responses=[blank, "a", blank]) == Task("q", responses=["a"])
    assert Task("q", blank, responses=["a"]).given_responses == ("a",)


@pytest.mark.parametrize("blank", BLANKS)
def test_a_blank_cell_is_a_missing_value(blank):
    """Every role of a column reads it so."""
    roles = (
        "id",
        "system",
        "reference",
        "context",
        "tests",
        "requirements",
        "tools",
        "tool_choice",
        "response",
    )
    filled = {
        "id": "1",
        "system": "s",
        "reference": "r",
        "context": "c",
        "tests": "assert f(1)",
        "requirements": "words:1-9",
    }
    tools = [{"type": "function", "function": {"name": "f"}}]
    filled |= {"prompt": "q", "tools": tools, "tool_choice": "auto", "response": "a"}
    mapping = infer_columns([filled], check_requirement=check_foreign_spec)
    assert (
        mapping.task({**filled, **dict.fromkeys(roles, blank)})
        == mapping.task({**filled, **dict.fromkeys(roles)})
        == Task("q")
    )
    with pytest.raises(ValueError, match="'prompt' is empty"):
        mapping.task({**filled, "prompt": blank})
    chat = [{"role": "user", "content": "q"}, {"role": "assistant", "content": blank}]
    messages = infer_columns(
        [{"messages": chat, "answer": "a"}], check_requirement=check_foreign_spec
    )
    assert messages.task({"messages": chat, "answer": "a"}).given_responses == ("a",)
    assert messages.task({"messages": chat, "answer": blank}).given_responses == ()


@pytest.mark.parametrize("blank", ["", "  "])
def test_a_column_of_blanks_hides_no_other(blank):
    """Of several columns with usual names, those that hold something are meant."""
    row = {
        "prompt": blank,
        "question": "q",
        "answer": blank,
        "output": "a",
        "reference": blank,
        "ideal": "i",
    }
    mapping = infer_columns([row], check_requirement=check_foreign_spec)
    task = mapping.task(row)
    assert (task.prompt, task.response, task.reference) == ("q", "a", "i")
    later = infer_columns(
        [{"prompt": "q", "response": blank, "context": blank}], check_requirement=check_foreign_spec
    )
    assert later.task({"prompt": "q", "response": "a", "context": "c"}) == Task(
        "q", "a", context="c"
    )


@pytest.mark.slow(but_each=6)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("mode", ["refine", "grade", "best"])
@pytest.mark.parametrize("blank", ["", "  ", "\ufeff", "\u00a0"])
def test_a_blank_response_is_a_row_without_an_answer(tmp_path, name, mode, blank):
    """Without a model it fails under its name, counts in no mean, and the report has the number."""
    rows = [
        {"id": str(n), "prompt": "q", "response": text}
        for n, text in enumerate(["a, b", blank, "c", blank])
    ]
    report = batch_sync(
        write(tmp_path / name, rows),
        tmp_path / "out.jsonl",
        False,
        "no_commas",
        mode=mode,
        editor=False,
    )
    assert (report.rows.done, report.rows.failed, report.rows.blank) == (2, 2, 2)
    assert dict(report.rows.errors) == {"NoResponseError": 2}
    assert (report.scores.initial, report.scores.best) == (0.5, 0.5)
    written = results(tmp_path / "out.jsonl")
    assert [(row["best"], row["best_score"]) for row in written] == [
        ("a, b", 0.0),
        (None, None),
        ("c", 1.0),
        (None, None),
    ]
    assert "NoResponseError: there is no response" in written[1]["error"]
    assert "blank given responses, which count as none: 2" in report.summary()


@pytest.mark.parametrize("name", FORMATS)
def test_a_blank_response_is_written_where_a_model_is(tmp_path, name):
    """The other rows start with theirs."""
    rows = [
        {"id": str(n), "prompt": f"question {n}", "response": text}
        for n, text in enumerate(["a", "", "  "])
    ]
    model = ScriptedModel(["written"] * 2)
    report = batch_sync(write(tmp_path / name, rows), tmp_path / "out.jsonl", model, "no_commas")
    assert [row["best"] for row in results(tmp_path / "out.jsonl")] == ["a", "written", "written"]
    assert (report.rows.done, report.rows.failed, report.rows.blank, len(model.requests)) == (
        3,
        0,
        2,
        2,
    )


def test_blank_candidates_are_none(tmp_path):
    """A blank or null text among several responses is left out, and counted if it is a text."""
    rows = [
        {"prompt": "q", "responses": texts}
        for texts in (["a, b", "", "c"], ["  ", None], [None, "d"])
    ]
    report = batch_sync(
        write(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl", False, "no_commas", mode="grade"
    )
    written = results(tmp_path / "out.jsonl")
    assert (report.rows.blank, report.rows.failed, dict(report.rows.errors)) == (
        2,
        1,
        {"NoResponseError": 1},
    )
    assert [row["best"] for row in written] == ["c", None, "d"]


@pytest.mark.parametrize("blank", BLANKS)
def test_refine_writes_what_is_blank_and_grade_refuses_it(blank):
    """In Python a blank response is none, too."""
    model = ScriptedModel(["written"])
    result = refine_sync(Task("q", blank), model, "no_commas")
    assert (result.value, result.score, len(model.requests)) == ("written", 1.0, 1)
    for sample in (Task("q", blank), ("q", blank), {"prompt": "q", "response": blank}):
        with pytest.raises(ConfigError, match="there is no response to grade"):
            grade_sync(sample, "no_commas")
        with pytest.raises(ConfigError, match=r"samples\[0\]: there is no response to grade"):
            run_sync(grade_many([sample], "no_commas"))
    with pytest.raises(ConfigError, match="the prompt is empty"):
        refine_sync(blank, model, "no_commas")


class SilentModel:
    """A model of the user's own whose first answers are blank."""

    name = identity = "silent"

    def __init__(self, *texts):
        self.texts = list(texts)

    async def complete(self, request):
        return Reply(self.texts.pop(0), Usage(1, 1, 0))


@pytest.mark.parametrize("blank", BLANKS)
def test_a_blank_answer_of_a_model_is_a_failure(tmp_path, blank):
    """It is asked again once, whatever kind of model it is, and never graded."""
    assert refine_sync("q", SilentModel(blank, "text"), "no_commas").value == "text"
    failed = batch_sync(
        [{"prompt": "q"}],
        None,
        SilentModel(blank, blank, blank),
        "no_commas",
        journal=tmp_path / "j",
    )
    assert (failed.rows.failed, dict(failed.rows.errors)) == (1, {"BadResponseError": 1})


@pytest.mark.parametrize("name", ["in.jsonl", "in.csv"])
@pytest.mark.parametrize("blank", ["", " ", "\ufeff"])
def test_labelled_rows_with_blanks_are_left_out_and_counted(tmp_path, name, blank):
    """A blank response, prompt or label is a missing value, as null is."""
    row = {"prompt": "q", "response": "a", "label": "1"}
    rows = [
        row,
        {**row, "response": blank},
        {**row, "prompt": blank},
        {**row, "label": blank},
        {**row, "response": "b"},
    ]
    cases = read_cases(write(tmp_path / name, rows))
    assert (len(cases.cases), len(cases.skipped_rows)) == (2, 3)
    pair = {"prompt": "q", "response_a": "a", "response_b": "b", "winner": "a"}
    pairs = read_cases(write(tmp_path / name, [pair, {**pair, "response_b": blank}]))
    assert (len(pairs.cases), len(pairs.skipped_rows)) == (1, 1)
    several = {"prompt": "q", "responses": ["a", "b"], "ranking": [1, 2]}
    ranked = read_cases(
        write(tmp_path / "ranked.jsonl", [several, {**several, "responses": ["a", blank]}])
    )
    assert (len(ranked.cases), len(ranked.skipped_rows)) == (1, 1)


def side(answers, scores):
    return [
        {"id": n, "response": text, "score": score}
        for n, (text, score) in enumerate(zip(answers, scores, strict=True))
    ]


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("blank", ["", "  ", "\ufeff"])
def test_b_never_wins_by_silence(tmp_path, name, blank):
    """Blank answers have no score, are counted on each side, and with more of them B does not pass,
    however high its scores.
    """
    n = 60
    answers = [f"answer {k}" for k in range(n)]
    a = write(tmp_path / f"a{name}", side(answers, [0.5] * n))
    silent = write(
        tmp_path / f"b{name}",
        side(
            [blank] * 5 + [f"better {k}" for k in range(5, n)],
            [1.0] * 5 + [0.6 + k % 3 / 10 for k in range(5, n)],
        ),
    )
    report = run_sync(compare(a, silent))
    assert (report.blank_a, report.blank_b, report.difference.rows, report.unscored_b) == (
        0,
        5,
        n - 5,
        5,
    )
    assert (report.verdict, report.gate) == ("undecided", "worse")
    assert "5 blank answers" in report.headline() and "5 blank answers" in report.gate_line()
    assert any("a blank answer has no score" in line for line in report.summary())
    reverse = run_sync(compare(silent, a))
    assert (reverse.blank_a, reverse.blank_b) == (5, 0)
    assert reverse.verdict == "worse"
    both = run_sync(compare(silent, silent))
    assert (both.blank_a, both.blank_b, both.difference.rows) == (5, 5, n - 5)


def test_null_with_a_score_is_silence_and_a_failed_row_is_none(tmp_path):
    """A row of a batch that failed for another reason has no score, and is counted as such."""
    texts = ["a", None, "b", None]
    a = side(["a", "x", "b", "y"], [1.0] * 4)
    assert run_sync(compare(a, side(texts, [1.0, 1.0, 0.5, None]))).blank_b == 1
    own = {"best": "", "best_score": None, "initial_score": None, "stop": "failed"}
    rows = [
        {
            **row,
            "best": row["response"],
            "best_score": row["score"],
            "initial_score": 1,
            "stop": "target",
        }
        for row in a
    ]
    failed = [
        *rows[:2],
        {"id": 2, **own, "error": "ModelTimeoutError: x"},
        {"id": 3, **own, "error": "NoResponseError: x"},
    ]
    report = run_sync(compare(rows, failed))
    assert (report.blank_b, report.unscored_b) == (1, 2)
    calls = side(["", "", "", ""], [1.0, 1.0, 0.5, 1.0])
    assert (
        run_sync(compare([{**row, "tool_calls": "[]"} for row in calls], calls)).difference.rows
        == 4
    )
