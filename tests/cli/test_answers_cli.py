"""The form of the answer on the command line: --answer, --schema, and the column `parsed` of a
batch.
"""

import csv
import json
import sys

import pytest

from redraft.cli.consent import rebase_paths
from redraft.storage import read_trace

TYPES = """from pydantic import BaseModel


class Invoice(BaseModel):
    number: str
    total: float
"""
SCHEMA = {
    "type": "object",
    "properties": {"number": {"type": "string"}, "total": {"type": "number"}},
    "required": ["number", "total"],
}
GOOD, BAD = '{"number": "A7", "total": 2.5}', '{"number": "A7", "total": "two"}'
FENCE = f"Here:\n```json\n{GOOD}\n```"


def answering(*answers):
    """The n-th answer of a writer; the last one again from then on."""
    return lambda messages, n: answers[min(n, len(answers) - 1)]


@pytest.fixture
def folder(redraft, monkeypatch):
    # a command that runs in this process leaves its modules behind
    for name in ("forms", "beside"):
        monkeypatch.setitem(sys.modules, name, None)
        del sys.modules[name]
    (redraft.folder / "forms.py").write_text(TYPES)
    (redraft.folder / "schema.json").write_text(json.dumps(SCHEMA))
    return redraft.folder


@pytest.mark.parametrize(
    "option",
    [("--answer", "forms:Invoice"), ("--answer", "forms.py:Invoice"), ("--schema", "schema.json")],
)
def test_a_form_is_asked_for_and_refined(redraft, serve, folder, option):
    """The model gets the schema, is told the wrong field, and the valid answer is printed; --json
    has the value.
    """
    server = serve(answering(BAD, FENCE))
    given = ("run", "Read it", "--model", server.model, "--grader", "json", *option)
    done = redraft(*given, "--json")
    assert done.returncode == 0, done.err
    result = json.loads(done.out.splitlines()[-1])
    assert (result["parsed"], json.loads(result["answer"])) == (json.loads(GOOD), json.loads(GOOD))
    schema = server.bodies[0]["response_format"]["json_schema"]
    assert schema["schema"]["properties"]["total"]["type"] == "number" and schema["strict"] is (
        option[0] == "--answer"
    )
    assert "total: " in server.asked[1][-1]["content"]
    assert json.loads(redraft(*given).out) == json.loads(GOOD)


@pytest.mark.parametrize("answer", ["forms.py:Invoice", "forms:Invoice"])
@pytest.mark.parametrize("grader", ["forms.py:small", "beside.py:small"])
@pytest.mark.parametrize("grader_first", [True, False])
def test_a_grader_in_a_file_receives_the_object(
    redraft, serve, folder, answer, grader, grader_first
):
    """The class is the same one, whichever option loads its file first, and from whichever file the
    grader imports it.
    """
    small = (
        "\n\ndef small(answer: Invoice) -> float:\n    return 1.0 if answer.total < 3 else 0.0\n"
    )
    (folder / "forms.py").write_text(TYPES + small)
    (folder / "beside.py").write_text("from forms import Invoice" + small)
    options = [("--grader", grader), ("--answer", answer)]
    chosen = options if grader_first else options[::-1]
    done = redraft("run", "q", "--model", serve(answering(GOOD)).model, *chosen[0], *chosen[1])
    assert (done.returncode, "score 1.00" in done.err) == (0, True), done.err


def test_code_is_printed_without_its_fence(redraft, serve):
    """`--answer code:python` prints the code alone."""
    server = serve(answering("Sure:\n```python\nprint(1)\n```\nDone."))
    done = redraft(
        "run",
        "Write it",
        "--model",
        server.model,
        "--grader",
        "words:1-50",
        "--answer",
        "code:python",
    )
    assert (done.returncode, done.out) == (0, "print(1)\n"), done.err


def test_an_answer_that_stays_wrong_exits_with_3(redraft, serve, folder):
    """The best answer is printed, and stderr says what it breaks."""
    server = serve(answering(BAD))
    done = redraft(
        "run",
        "q",
        "--model",
        server.model,
        "--grader",
        "json",
        "--schema",
        "schema.json",
        "--max-iterations",
        "1",
    )
    assert (done.returncode, "still broken: answer" in done.err) == (3, True)


@pytest.mark.parametrize("option", [("--answer", "forms:Invoice"), ("--schema", "schema.json")])
def test_a_trace_is_resumed_with_its_form(redraft, serve, folder, option):
    """The trace names the form, so that no option is needed and no call is made again; another form
    is refused.
    """
    server = serve(answering(GOOD))
    given = ("run", "q", "--model", server.model, "--grader", "json", *option, "--trace", "t.jsonl")
    assert redraft(*given).returncode == 0
    (folder / "schema.json").unlink()
    calls = server.calls
    again = redraft("run", "--resume", "t.jsonl")
    assert (again.returncode, json.loads(again.out), server.calls) == (
        0,
        json.loads(GOOD),
        calls,
    ), again.err
    assert read_trace(folder / "t.jsonl").settings["answer_form"].startswith("json:")
    if option[0] == "--answer":
        (folder / "other.py").write_text(TYPES.replace("total: float", "sum: float"))
        other = redraft("run", "--resume", "t.jsonl", "--answer", "other:Invoice")
        assert other.returncode == 2 and "made with another form of answer" in other.err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--answer", "nothing"), "--answer is code:LANGUAGE"),
        (("--answer", "no_such_module:A"), "cannot be loaded"),
        (("--answer", "forms:Missing"), "unknown name in forms 'Missing'"),
        (("--answer", "missing.py:A"), "there is no file 'missing.py'"),
        (
            ("--answer", "forms.py:BaseModel.nothing"),
            "unknown name in forms.py 'BaseModel.nothing'",
        ),
        (("--answer", "code:"), "code:python"),
        (("--schema", "missing.json"), "cannot be read"),
        (("--schema", "forms.py"), "not readable JSON"),
        (("--schema", "schema.json", "--answer", "code:python"), "leave out one of them"),
    ],
    ids=" ".join,
)
def test_mistakes_are_named_before_any_call(redraft, serve, folder, options, words):
    """The exit code is 2, and no call is made."""
    server = serve(answering(GOOD))
    done = redraft("run", "q", "--model", server.model, *options)
    assert (done.returncode, words in done.err, server.calls) == (2, True, 0), done.err


@pytest.mark.parametrize("option", [("--answer", "forms.py:Invoice"), ("--schema", "schema.json")])
def test_the_best_of_given_answers_has_the_form(redraft, folder, option):
    """What is extracted from the answers is compared, and no model is called."""
    (folder / "bad.md").write_text(BAD)
    (folder / "good.md").write_text(FENCE.partition("\n")[2])
    done = redraft(
        "best",
        "--response",
        "bad.md",
        "--response",
        "good.md",
        "--model",
        "none",
        "--json",
        *option,
    )
    assert done.returncode == 0, done.err
    result = json.loads(done.out.splitlines()[-1])
    assert (result["parsed"], result["answer"]) == (json.loads(GOOD), GOOD)


@pytest.mark.parametrize("place", ["shop.py", "shop_module"])
def test_a_grader_for_the_type_comes_from_the_same_code(redraft, serve, folder, place):
    """It receives the object, and its code may import what stands beside it."""
    (folder / "limits.py").write_text("LIMIT = 3\n")
    grader = "def small(invoice: Invoice):\n    return float(invoice.total < LIMIT)\n"
    (folder / f"{place.removesuffix('.py')}.py").write_text(
        f"from limits import LIMIT\n{TYPES}\n\n{grader}"
    )
    server = serve(answering(GOOD))
    given = (
        "--answer",
        f"{place}:Invoice",
        "--grader",
        f"{place}:small",
        "--max-iterations",
        "0",
        "--json",
    )
    done = redraft("run", "Read it", "--model", server.model, *given)
    assert done.returncode == 0, done.err
    assert json.loads(done.out.splitlines()[-1])["score"] == 1.0


def test_types_in_a_file_of_settings_are_relative_to_it():
    """Like the graders there; a module has no folder."""
    assert rebase_paths("answer", "forms.py:Invoice", "sub") == "sub/forms.py:Invoice"
    assert rebase_paths("answer", "length.py:Invoice", "sub") == "sub/length.py:Invoice"
    assert rebase_paths("answer", "forms:Invoice", "sub") == "forms:Invoice"


@pytest.mark.slow(but_each=4)
@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_a_batch_has_a_column_parsed(redraft, serve, folder, suffix):
    """It stands beside `best`; the same command makes no call, and another schema redoes the
    rows.
    """
    server = serve(
        lambda messages, n: {"Read 0": GOOD, "Read 1": BAD}.get(
            messages[0]["content"].splitlines()[0], FENCE
        )
    )
    (folder / "in.jsonl").write_text(
        "".join(f'{{"id": "{n}", "prompt": "Read {n}"}}\n' for n in range(3))
    )
    given = ("--model", server.model, "--grader", "json", "--max-iterations", "1", "--schema")
    done = redraft("batch", "in.jsonl", "-o", f"out.{suffix}", *given, "schema.json")
    rows = read_rows(folder / f"out.{suffix}")
    assert done.returncode == 3 and list(rows[0])[:4] == ["id", "prompt", "best", "parsed"], (
        done.err
    )
    assert [row["parsed"] for row in rows].count(json.loads(GOOD)) == 2
    assert sorted(row["broken"] or "" for row in rows) == ["", "", "answer"]
    calls = server.calls
    assert (
        redraft("batch", "in.jsonl", "-o", f"out.{suffix}", *given, "schema.json").returncode == 3
    )
    assert server.calls == calls
    (folder / "schema.json").write_text(json.dumps({**SCHEMA, "required": ["number"]}))
    explained = redraft(
        "batch", "in.jsonl", "-o", f"out.{suffix}", *given, "schema.json", "--explain"
    )
    assert "setting grader answer changed: 3 rows" in explained.err + explained.out


def read_rows(path):
    """The rows of a table, with `parsed` as a value."""
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    if path.suffix == ".csv":
        rows = list(csv.DictReader(path.read_text().splitlines()))
    else:
        import pyarrow.parquet

        table = pyarrow.parquet.read_table(path)
        assert str(table.schema.field("parsed").type) == "string"
        rows = table.to_pylist()
    return [{**row, "parsed": json.loads(row["parsed"]) if row["parsed"] else None} for row in rows]
