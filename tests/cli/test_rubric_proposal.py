"""`redraft rubric DESCRIPTION`, and the listing of rubrics and of other libraries' names."""

import json
import tomllib

import pytest

LEVELS = {"0": "wrong", "3": "nearly", "5": "right"}
REPLY = json.dumps(
    {
        "about": "whether the reply helps",
        "criteria": [{"name": "kind", "description": "It is kind.", "weight": 1, "levels": LEVELS}],
    }
)


def test_a_description_becomes_a_rubric_to_edit(redraft, serve):
    """It goes to stdout or a file, names the model, and grades."""
    server = serve(lambda messages, n: REPLY)
    done = redraft("rubric", "Replies to complaints", "--model", server.model)
    assert done.returncode == 0, done.err
    assert '"Replies to complaints"' in done.out and "nobody has checked it" in done.out
    assert tomllib.loads(done.out)["criteria"][0]["levels"] == LEVELS
    done = redraft(
        "rubric", "-", "--model", server.model, "-o", "kind.toml", input="Replies\nto complaints"
    )
    assert (done.returncode, done.out) == (0, "") and "not checked" in done.err
    written = tomllib.loads((redraft.folder / "kind.toml").read_text())
    assert (written["name"], written["about"]) == ("kind", "whether the reply helps")
    long = redraft("rubric", "word " * 1_500, "--model", server.model)
    assert long.returncode == 0 and len(long.out.splitlines()[0]) < 500
    data = json.loads(redraft("rubric", "Replies", "--model", server.model, "--json").out)
    assert data["criteria"][0]["name"] == "kind" and "[[criteria]]" in data["rubric"]
    shown = redraft(
        "grade",
        "Complain",
        "--response",
        "-",
        "--rubric",
        "kind.toml",
        "--model",
        "none",
        input="Sorry.",
    )
    assert "kind.toml" not in shown.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "give a file with labelled answers, or a description"),
        (["rows.jsonl"], "there is no file 'rows.jsonl'"),
        (
            ["Letters", "--from", "here.jsonl"],
            "both 'Letters' and --from were given: leave out one",
        ),
        (
            ["Letters", "--start", "here.jsonl"],
            "--start needs labelled data, and 'Letters' is no file",
        ),
        (["Letters", "--judge", "openai:x"], "--judge needs labelled data"),
        (["Letters", "--model", "none"], "a model must propose the criteria"),
    ],
)
def test_a_wrong_source_is_a_usage_error(redraft, arguments, says):
    """The message says what is allowed."""
    (redraft.folder / "here.jsonl").write_text("{}\n")
    done = redraft("rubric", *arguments)
    assert done.returncode == 2 and says in done.err, done.err


def test_a_file_is_labelled_data(redraft):
    """As with --from, also without the option."""
    (redraft.folder / "rows.jsonl").write_text('{"prompt": "q", "response": "a", "score": 1}\n')
    for arguments in (["rows.jsonl"], ["--from", "rows.jsonl"]):
        done = redraft("rubric", *arguments, "--model", "none")
        assert done.returncode != 0 and "1 cases of kind pass" in done.err, done.err


def test_graders_shows_rubrics_in_each_mode_and_aliases(redraft):
    """A rubric in full under its prefix, and another library's name with the grader that it stands
    for.
    """
    shown = redraft("graders", "pairwise:clarity", env={"COLUMNS": "200"}).out
    assert shown.startswith("pairwise:clarity\n") and "wording" in shown and "redraft best" in shown
    assert "reads\tmessages\n" in shown
    shown = redraft("graders", "ToolSelectionGrader", env={"COLUMNS": "200"}).out
    assert (
        shown.startswith("tool_selection\nalias of\tToolSelectionGrader of OpenJudge\n")
        and "necessity" in shown
    )
    missing = redraft("graders", "TextToImageGrader")
    assert (
        missing.returncode == 2
        and "is not here, because" in missing.err
        and "did you mean" not in missing.err
    )


def test_graders_lists_each_rubric_once(redraft):
    """Not once for each mode."""
    names = [row["name"] for row in json.loads(redraft("graders", "--json").out)["graders"]]
    assert len(names) == len(set(names))
    assert "helpfulness" in names and not [
        name for name in names if name.startswith(("base_", "ranker:", "pairwise:"))
    ]
