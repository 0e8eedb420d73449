"""`redraft grade FILE`: the answers in the rows of a file, such as the trajectories of agents."""

import json
from pathlib import Path

import pytest

from redraft.graders.rubric import DEFAULT_RUBRIC, gallery_rubric

TRAJECTORIES = Path(__file__).parents[1] / "graders" / "trajectories"


def verdict(name, score):
    return verdict_by(gallery_rubric(name), score)


def verdict_by(rubric, score):
    rows = {c.name: {"evidence": "e", "change": "c", "score": score} for c in rubric.criteria}
    return json.dumps({"reason": "Because.", "criteria": rows, "done": False})


def write_rows(folder, *names):
    rows = [json.loads((TRAJECTORIES / f"{name}.json").read_text()) for name in names]
    lines = [
        json.dumps({"id": name, "messages": r["messages"], "tools": r["tools"]})
        for name, r in zip(names, rows, strict=True)
    ]
    (folder / "rows.jsonl").write_text("\n".join(lines) + "\n")


def test_trajectories_in_a_file_are_graded(redraft, serve):
    """Each row has a line with its ID; the judge saw calls, results and tools."""
    server = serve(
        lambda messages, n: verdict(
            "tool_selection", 5 if "Bergen" in messages[-1]["content"] else 0
        )
    )
    write_rows(redraft.folder, "good_weather", "wrong_tool", "ends_with_calls")
    done = redraft("grade", "rows.jsonl", "--grader", "tool_selection", "--judge", server.model)
    assert done.returncode == 0, done.err
    scores = {words[0]: words[1] for line in done.out.splitlines() if (words := line.split())}
    assert (scores["good_weather"], scores["wrong_tool"], scores["ends_with_calls"]) == (
        "1.00",
        "0.00",
        "0.00",
    )
    asked = str(server.asked)
    assert (
        "[tool call: get_weather]" in asked
        and "heavy rain" in asked
        and "Current weather in a city" in asked
    )
    data = json.loads(
        redraft(
            "grade", "rows.jsonl", "--grader", "tool_selection", "--judge", server.model, "--json"
        ).out
    )
    assert [row["response"] for row in data] == ["good_weather", "wrong_tool", "ends_with_calls"]


def test_a_batch_grades_trajectories(redraft, serve):
    """With a column for the score."""
    server = serve(lambda messages, n: verdict("goal_completion", 4))
    write_rows(redraft.folder, "good_weather", "goal_missed")
    done = redraft(
        "batch",
        "rows.jsonl",
        "--mode",
        "grade",
        "--grader",
        "goal_completion",
        "--judge",
        server.model,
        "-o",
        "out.jsonl",
    )
    assert done.returncode == 0, done.err
    rows = [json.loads(line) for line in (redraft.folder / "out.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows] == ["good_weather", "goal_missed"]


@pytest.mark.parametrize(
    "command",
    [
        ("grade", "rows.jsonl", "--grader", "helpfulness"),
        ("batch", "rows.jsonl", "--mode", "grade", "--grader", "helpfulness", "-o", "out.jsonl"),
        ("validate", "rows.jsonl", "--grader", "helpfulness", "--cards-dir", "cards"),
    ],
    ids=lambda command: command[0],
)
def test_the_first_of_several_models_judges(redraft, serve, command):
    """As for `redraft run`: only the model that writes can be several."""
    server = serve(lambda messages, n: verdict("helpfulness", 4))
    rows = [{"prompt": "q", "response": f"a{n}", "label": n % 2} for n in range(4)]
    (redraft.folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    done = redraft(*command, "--model", f"{server.model},http://127.0.0.1:9/v1#nobody")
    assert server.calls == len(rows) and "one model is expected" not in done.err, done.err


def test_a_row_that_nothing_grades_fails_beside_others(redraft, serve):
    """The requirements of one row are what the table names: no judge is asked about the others."""
    server = serve(lambda messages, n: verdict_by(DEFAULT_RUBRIC, 4))
    rows = [
        {"prompt": "q", "response": "a", "requirements": ["words:1-5"]},
        {"prompt": "q", "response": "b"},
    ]
    (redraft.folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    done = redraft("grade", "rows.jsonl", "--model", server.model, "--json")
    reports = json.loads(done.out)
    assert (done.returncode, server.calls, [report["score"] for report in reports]) == (
        1,
        0,
        [1.0, None],
    ), done.err
    assert "nothing grades this task" in reports[1]["error"]
    done = redraft("grade", "rows.jsonl", "--model", server.model)
    assert done.returncode == 1 and "row 2: nothing grades this task" in done.out
    done = redraft("grade", "rows.jsonl", "--judge", server.model, "--json")
    assert [report["score"] for report in json.loads(done.out)] == [0.8, 0.8], done.err


@pytest.mark.parametrize(
    ("text", "arguments", "says"),
    [
        (None, ["Write a poem"], "give --response FILE, or the name of a file with rows"),
        (None, [], "give --response FILE, or the name of a file with rows"),
        (None, ["rows.jsonl"], "rows.jsonl"),
        ('{"prompt": "q"}\n', ["rows.jsonl"], "rows.jsonl:1: there is no response to grade"),
        (
            '{"prompt": "q", "response": {"n": 1}}\n',
            ["rows.jsonl"],
            "rows.jsonl:1: there is no response to grade: 'response' must be",
        ),
        (
            '{"prompt": "q", "responses": ["a", "b"]}\n',
            ["rows.jsonl"],
            "rows.jsonl:1: there are 2 responses, and one is graded",
        ),
        (
            '{"input": "q", "output": ["a", "b"]}\n',
            ["rows.jsonl"],
            "rows.jsonl:1: there are 2 responses, and one is graded",
        ),
        (
            '{"prompt": 5, "response": "a"}\n',
            ["rows.jsonl"],
            "'prompt' holds neither texts nor messages, but 5",
        ),
        (
            '{"prompt": "q", "response": "a"}\n',
            ["rows.jsonl", "--grader", "tool_selection"],
            "needs a task with a trajectory",
        ),
        (
            '{"prompt": "q", "response": "a"}\n' * 201,
            ["rows.jsonl"],
            "more than 200 rows: redraft batch rows.jsonl --mode grade",
        ),
    ],
)
def test_rows_that_cannot_be_graded_are_errors(redraft, serve, text, arguments, says):
    """The message says what to give, and no call is made."""
    server = serve(lambda messages, n: "")
    if text:
        (redraft.folder / "rows.jsonl").write_text(text)
    done = redraft("grade", *arguments, "--judge", server.model)
    assert done.returncode in (1, 2) and says in done.err, done.err
    assert server.calls == 0


def test_requirements_grade_rows_without_a_model(redraft):
    """Those of --require and those of the row."""
    (redraft.folder / "rows.jsonl").write_text(
        '{"prompt": "q", "response": "one two", "requirements": ["no_commas"]}\n'
    )
    done = redraft("grade", "rows.jsonl", "--require", "words:3-")
    assert done.returncode == 3
    assert "words:3-" in done.out and "no_commas" in done.out and "calls 0" in done.out


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"prompt": "q", "response": {"n": 1}}', "'response' must be text"),
        ('{"prompt": "q", "response": ["a", "b"]}', "there are 2 responses, and one is graded"),
        ('{"prompt": "q"}', "there is no response to grade"),
        ('{"response": "one"}', "'prompt' is missing"),
        ('{"prompt": "q", "response": "one", "requirements": ["words:x"]}', "words:x"),
        ('{"prompt": "q", "resp', "rows.jsonl:2"),
    ],
)
def test_a_row_that_cannot_be_graded_does_not_stop_the_others(redraft, line, says):
    """It is named with its line, and the exit code is 1."""
    (redraft.folder / "rows.jsonl").write_text(
        f'{{"prompt": "q", "response": "one"}}\n{line}\n{{"prompt": "q", "response": "two"}}\n'
    )
    done = redraft("grade", "rows.jsonl", "--require", "words:1", "--json")
    assert done.returncode == 1 and "rows.jsonl:2" in done.err and says in done.err, done.err
    assert [(each["response"], each["score"]) for each in json.loads(done.out)] == [
        ("row 1", 1.0),
        ("row 3", 1.0),
    ]


def test_a_list_of_one_response_is_that_response(redraft):
    """Under every name of a list."""
    for row in (
        {"responses": ["one"]},
        {"outputs": ["one"]},
        {"output": ["one"]},
        {"response": ["one"]},
    ):
        (redraft.folder / "rows.jsonl").write_text(json.dumps({"prompt": "q", **row}))
        assert redraft("grade", "rows.jsonl", "--require", "words:1").returncode == 0


@pytest.mark.parametrize(
    ("grader", "says"),
    [
        ("no_such_module:grader", "there is no module 'no_such_module'"),
        ("no_such_package.module:Class", "there is no module 'no_such_package.module'"),
        ("contans:hi", "did you mean 'contains'"),
    ],
)
def test_a_grader_of_a_missing_module_is_named_so(redraft, grader, says):
    """A mistyped name of a grader is not."""
    (redraft.folder / "text.txt").write_text("hi")
    done = redraft("grade", "--response", "text.txt", "--grader", grader, "--model", "none")
    assert (
        done.returncode == 2 and says in done.err and ("module" in done.err) == ("module" in says)
    ), done.err


ROWS = {
    "rows.jsonl": '{"prompt": "a", "response": "x", "reference": "x"}\n\n{"prompt": "b", "response": "y"}\n',
    "rows.csv": "question,response,reference\na,x,x\nb,y,\n",
    "one.jsonl": '\n\n{"prompt": "a", "response": "x"}\n',
}


@pytest.mark.parametrize("file", ROWS)
def test_a_row_that_lacks_what_a_grader_needs_is_named_by_its_line(redraft, file):
    """And the column that is empty there."""
    (redraft.folder / file).write_text(ROWS[file])
    done = redraft("grade", file, "--grader", "exact")
    assert done.returncode == 2
    empty = "" if file == "one.jsonl" else " (column 'reference' empty)"
    assert f"{file}:3{empty}: grader 'exact' needs a task with reference" in done.err
    assert "samples[" not in done.err
