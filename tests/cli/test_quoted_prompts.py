"""Commands over many rows write no prompt on stderr: an endpoint may repeat it in its errors, and
stderr often goes to a log.
"""

import json

import pytest

from .chat_server import is_judging, verdict

SECRET = "THE-PATIENT-4711"


def tool(asked):
    return {"name": asked, "arguments": asked}


ERRORS = {  # what an endpoint answers, with what it was asked in it
    "400": lambda asked: (400, f"bad request: {asked}"),
    "401": lambda asked: (401, f"who asks {asked}"),
    "403": lambda asked: (403, f"not allowed: {asked}"),
    "404": lambda asked: (404, f"no model for {asked}"),
    "413": lambda asked: (413, f"too large: {asked}"),
    "422": lambda asked: (422, f"invalid: {asked}"),
    "429": lambda asked: (429, f"insufficient_quota: {asked}"),
    "500": lambda asked: (500, f"failed on {asked}"),
    "503": lambda asked: (503, f"failed on {asked}"),
    "filter": lambda asked: (400, f"content_filter: The response was filtered: {asked}"),
    "length": lambda asked: (400, f"This model's maximum context length is 10 tokens: {asked}"),
    "an error with 200": lambda asked: json.dumps({"error": {"message": f"no: {asked}"}}).encode(),
    "broken JSON": lambda asked: f'{{"choices": [{{"message": {{"content": "{asked}'.encode(),
    "no choices": lambda asked: json.dumps({"choices": [], asked: asked}).encode(),
    "a page": lambda asked: f"<html><title>{asked}</title>{asked}</html>".encode(),
    "a refusal": lambda asked: {"content": None, "refusal": f"not {asked}"},
    "a redirect": lambda asked: (
        302,
        "no",
        {"Location": f"https://example.com/{asked.split()[0]}/x"},
    ),
    "a role": lambda asked: {"role": asked[:20], "content": "Hello"},
    "no answer": lambda asked: {"content": "", "reasoning_content": asked},
    "a code": lambda asked: (400, {"message": "no", "type": asked, "code": asked, "param": asked}),
    "a body of another form": lambda asked: (500, [asked, {asked: asked}]),
    "an unusual status": lambda asked: (418, f"status 418: sent an answer, {asked}"),
    "a reason to end": lambda asked: {"content": "", "finish_reason": asked},
    "a tool": lambda asked: {
        "content": None,
        "tool_calls": [{"id": asked, "type": "function", "function": tool(asked)}],
    },
}
QUICK = ("--give-up-after", "0.5", "--deadline", "4")
# calls that are made again
REPEATED = ("429", "500", "503", "an error with 200", "broken JSON", "no choices", "a page")
COMMANDS = {  # the commands, and which side of the endpoint fails in each
    "batch": (
        ["batch", "rows.jsonl", "-o", "out.jsonl", "--max-iterations", "1", *QUICK],
        "writer",
    ),
    "batch, judged": (
        ["batch", "rows.jsonl", "-o", "out.jsonl", "--max-iterations", "1", "--json", *QUICK],
        "judge",
    ),
    "batch of drafts": (
        ["batch", "rows.jsonl", "-o", "out.jsonl", "--mode", "best", "-n", "2", "--debug", *QUICK],
        "writer",
    ),
    "batch of grades": (
        ["batch", "answers.jsonl", "-o", "out.jsonl", "--mode", "grade", *QUICK],
        "judge",
    ),
    "batch on stdout": (
        ["batch", "rows.jsonl", "-o", "-", "--json", "--journal", "a.journal", *QUICK],
        "writer",
    ),
    "batch, the next model": (["batch", "rows.jsonl", "-o", "out.jsonl", *QUICK], "writer"),
    "batch, processes": (
        ["batch", "rows.jsonl", "-o", "out.jsonl", "--workers", "2", *QUICK],
        "writer",
    ),
    "batch, a deadline": (
        [
            "batch",
            "rows.jsonl",
            "-o",
            "out.jsonl",
            "--mode",
            "best",
            "-n",
            "2",
            "--deadline",
            "0.5",
        ],
        "judge",
    ),
    "grade": (["grade", "answers.jsonl"], "judge"),
    "validate": (["validate", "answers.jsonl", "--kind", "pass", "--cards-dir", "cards"], "judge"),
}
FAST = {("400", command) for command in COMMANDS if "processes" not in command} | {
    ("401", "batch"),
    ("401", "batch, processes"),
    ("500", "batch"),
}


def write_rows(folder):
    """Rows with a secret in each text; one of them is no row, and one has no prompt."""
    rows = [
        {
            "id": f"row{n}",
            "prompt": f"What ails {SECRET}, {n}?",
            "response": f"A cold has {SECRET}",
            "label": n % 2,
        }
        for n in range(6)
    ]
    (folder / "rows.jsonl").write_text(
        "".join(f"{json.dumps({k: r[k] for k in ('id', 'prompt')})}\n" for r in rows)
    )
    (folder / "answers.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with (folder / "rows.jsonl").open("a") as file:
        file.write(
            f'{{"id": "{SECRET}", "prompt": \n{{"id": ["{SECRET}"], "note": "{SECRET}"}}\n"{SECRET}"\n'
        )


CASES = [
    pytest.param(
        kind,
        command,
        form,
        marks=()
        if (kind, command) in FAST and ("processes" not in command or form == "text")
        else pytest.mark.slow,
    )
    for kind in ERRORS
    for command in COMMANDS
    for form in ("text", "json")
    if kind not in REPEATED or (command in ("batch", "batch, judged") and form == "text")
]


@pytest.mark.parametrize(("kind", "command", "form"), CASES)
def test_no_prompt_is_on_stderr(redraft, serve, command, form, kind):
    """The kind of each error and a row are named, and the endpoint's text is in the output
    alone.
    """
    arguments, failing = COMMANDS[command]

    def answer(messages, n):
        asked = f"{SECRET} {messages[-1]['content'][:60]}"
        if messages[-1]["content"] == "Hi":
            return "Hello"
        if is_judging(messages) == (failing == "judge"):
            return ERRORS[kind](asked)
        return verdict(3) if is_judging(messages) else f"It ails {SECRET}"

    server = serve(answer)
    model = (
        f"{server.model},{server.model.replace('tiny', 'next')}"
        if "next model" in command
        else server.model
    )
    write_rows(redraft.folder)
    done = redraft(
        *arguments, "--model", model, *(["--log-format", "json"] if form == "json" else [])
    )
    assert done.returncode in (1, 2, 3), done.err
    assert SECRET not in done.err
    assert "Traceback" not in done.err
