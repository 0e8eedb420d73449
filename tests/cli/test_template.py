"""--template: a prompt of the user's own in a file, with its scale and its reply form, and what is
wrong with such a file.
"""

import json

import pytest

PROMPT = "Rate {response} for {query}."
FORM = 'scale = [1, 10]\nread = {score = "score", reason = "why"}\n'
LABELLED = [{"prompt": "Say a", "response": "a", "score": score} for score in (0, 1, 1)]

COMMANDS = {
    "grade": ["grade", "Say a", "--response", "a.txt"],
    "run": ["run", "Say a", "--response", "a.txt", "--max-iterations", "0"],
    "best": ["best", "Say a", "--response", "a.txt", "--response", "a.txt"],
    "batch": ["batch", "rows.jsonl", "--mode", "grade", "-o", "out.jsonl"],
    "validate": ["validate", "rows.jsonl"],
}


@pytest.fixture
def folder(redraft):
    (redraft.folder / "a.txt").write_text("a")
    (redraft.folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in LABELLED))
    return redraft.folder


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_that_grades_takes_a_template(redraft, serve, folder, command):
    """The judge is asked by it, with the task and the answer in their places, and nothing is
    appended.
    """
    server = serve(lambda messages, n: '{"why": "It is short.", "score": 4}')
    (folder / "mine.toml").write_text(f"template = '{PROMPT}'\n{FORM}")
    done = redraft(*COMMANDS[command], "--template", "mine.toml", "--model", server.model)
    assert done.returncode in (0, 3), done.err
    prompt = server.asked[0][-1]["content"].partition("\n\n")[2]
    assert prompt.startswith("Rate <answer-") and "\nSay a\n" in prompt and prompt.endswith(">.")


def test_the_score_is_read_on_the_scale_of_the_template(redraft, serve, folder):
    """4 on a scale from 1 to 10 is a third; a score off the scale is asked for again, and is then a
    failure.
    """
    (folder / "mine.toml").write_text(f"template = '{PROMPT}'\n{FORM}")
    server = serve(
        lambda messages, n: json.dumps({"why": "It is short.", "score": 4 if n == 0 else 11})
    )
    graded = [*COMMANDS["grade"], "--template", "mine.toml", "--model", server.model]
    (feedback,) = json.loads(redraft(*graded, "--json").out)["feedback"]
    assert (feedback["grader"], feedback["score"], feedback["reason"]) == (
        "mine",
        pytest.approx(1 / 3),
        "It is short.",
    )
    failed = redraft(*graded)
    assert (
        failed.returncode == 1
        and "'score' must be a whole number from 1 to 10, got 11" in failed.out + failed.err
    )
    assert server.calls == 3


def test_a_text_file_is_the_template_itself(redraft, serve, folder):
    """The form of the built-in judge is appended."""
    row = {"evidence": "a", "change": "", "score": 5}
    server = serve(
        lambda messages, n: json.dumps(
            {"reason": "Good.", "criteria": {"overall": row}, "done": True}
        )
    )
    (folder / "mine.txt").write_text(PROMPT)
    done = redraft(*COMMANDS["grade"], "--template", "mine.txt", "--model", server.model)
    assert done.returncode == 0 and "Good." in done.out, done.err
    assert "Scores: 0 absent or wrong" in server.asked[0][-1]["content"]


CRITIC = "template = '{response} for {query}'\nread = {actions = 'todo', done = 'final'}\n"


@pytest.mark.parametrize(
    ("arguments", "config"),
    [
        (["--template", "critic.toml"], ""),
        (["--grader", "judge:critic.toml"], ""),
        ([], 'template = "critic.toml"\n'),
    ],
)
def test_a_form_without_a_score_is_a_critic(redraft, serve, folder, arguments, config):
    """It steers and stops a run, by option, by name and by configuration; its score is unknown, and
    its schema is sent.
    """
    (folder / "critic.toml").write_text(CRITIC)
    (folder / "redraft.toml").write_text(config)

    def answer(messages, n):
        if messages[0]["role"] != "system":
            return f"text {n}"
        return json.dumps(
            {"todo": ["Name the year."], "final": "text 2" in messages[-1]["content"]}
        )

    server = serve(answer)
    done = redraft("run", "When?", "--model", server.model, *arguments, "--json")
    assert done.returncode == 0, done.err
    result = json.loads(done.out.splitlines()[-1])
    assert (result["answer"], result["score"], result["stop"]) == ("text 2", None, "done")
    (schema,) = {
        json.dumps(body["response_format"]["json_schema"]["schema"])
        for body in server.bodies
        if "response_format" in body
    }
    assert list(json.loads(schema)["properties"]) == ["todo", "final"]


FAULTS = {
    "missing.txt": (None, "'missing.txt' does not exist"),
    "field.txt": (
        "Rate {response} for {audience}.",
        "the template has the field {audience}, and the task has no such metadata",
    ),
    "answer.txt": ("Rate this for {query}.", "the template must show the answer"),
    "read.toml": (
        f"template = '{PROMPT}'\nread = 'score'\n",
        "read.toml: rubric: read needs a scale",
    ),
    "scale.toml": (
        f"template = '{PROMPT}'\nscale = [10, 1]\nread = 'score'\n",
        "scale.toml: rubric: scale",
    ),
    "criteria.toml": (
        "criteria = {truth = 'It is true.'}\n",
        "'criteria.toml': there is no template in it",
    ),
    "broken.toml": ("template = '", "broken.toml"),
}
ROW_FAULT_CODES = {"batch": 3, "validate": 1}  # the exit codes if all rows fail


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", FAULTS)
def test_a_faulty_template_is_an_error_before_any_call(redraft, serve, folder, command, name):
    """The message names the file or the field; a row of data without the field fails alone."""
    text, says = FAULTS[name]
    if text is not None:
        (folder / name).write_text(text)
    server = serve(lambda messages, n: 500)
    done = redraft(*COMMANDS[command], "--template", name, "--model", server.model)
    assert done.returncode == (ROW_FAULT_CODES.get(command, 2) if name == "field.txt" else 2), (
        done.err
    )
    assert says in done.out + done.err
    assert server.calls == 0
