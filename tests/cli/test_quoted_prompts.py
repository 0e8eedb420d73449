"""Commands over many rows write no prompt on stderr: an endpoint may repeat it in its errors, and stderr often goes to a log."""

import json

import pytest

from redraft.cli.operations.batch_view import without_upstream_text

from .chat_server import is_judging, verdict

SECRET = "THE-PATIENT-4711"
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
    "a redirect": lambda asked: (302, "no", {"Location": f"https://example.com/{asked.split()[0]}/x"}),
    "a role": lambda asked: {"role": asked[:20], "content": "Hello"},
    "no answer": lambda asked: {"content": "", "reasoning_content": asked},
}
QUICK = ("--give-up-after", "0.5", "--deadline", "4")
REPEATED = ("429", "500", "503", "an error with 200", "broken JSON", "no choices", "a page")  # calls that are made again
COMMANDS = {  # the commands, and which side of the endpoint fails in each
    "batch": (["batch", "rows.jsonl", "-o", "out.jsonl", "--max-iterations", "1", *QUICK], "writer"),
    "batch, judged": (["batch", "rows.jsonl", "-o", "out.jsonl", "--max-iterations", "1", "--json", *QUICK], "judge"),
    "batch of drafts": (["batch", "rows.jsonl", "-o", "out.jsonl", "--mode", "best", "-n", "2", "--debug", *QUICK], "writer"),
    "batch of grades": (["batch", "answers.jsonl", "-o", "out.jsonl", "--mode", "grade", *QUICK], "judge"),
    "batch on stdout": (["batch", "rows.jsonl", "-o", "-", "--json", "--journal", "a.journal", *QUICK], "writer"),
    "grade": (["grade", "answers.jsonl"], "judge"),
    "validate": (["validate", "answers.jsonl", "--kind", "pass", "--cards-dir", "cards"], "judge"),
}
FAST = {"400", "401"}


def write_rows(folder):
    """Rows with a secret in each text; one of them is no row, and one has no prompt."""
    rows = [
        {"id": f"row{n}", "prompt": f"What ails {SECRET}, {n}?", "response": f"A cold has {SECRET}", "label": n % 2}
        for n in range(6)
    ]
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps({k: r[k] for k in ('id', 'prompt')})}\n" for r in rows))
    (folder / "answers.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with (folder / "rows.jsonl").open("a") as file:
        file.write(f'{{"id": "{SECRET}", "prompt": \n{{"id": ["{SECRET}"], "note": "{SECRET}"}}\n"{SECRET}"\n')


CASES = [
    pytest.param(kind, command, form, marks=() if kind in FAST or (kind, command) == ("500", "batch") else pytest.mark.slow)
    for kind in ERRORS
    for command in COMMANDS
    for form in ("text", "json")
    if kind not in REPEATED or (command in ("batch", "batch, judged") and form == "text")
]


@pytest.mark.parametrize(("kind", "command", "form"), CASES)
def test_no_prompt_is_on_stderr(redraft, serve, command, form, kind):
    """The kind of each error and a row are named, and the endpoint's text is in the output alone."""
    arguments, failing = COMMANDS[command]

    def answer(messages, n):
        asked = f"{SECRET} {messages[-1]['content'][:60]}"
        if messages[-1]["content"] == "Hi":
            return "Hello"
        if is_judging(messages) == (failing == "judge"):
            return ERRORS[kind](asked)
        return verdict(3) if is_judging(messages) else f"It ails {SECRET}"

    server = serve(answer)
    write_rows(redraft.folder)
    done = redraft(*arguments, "--model", server.model, *(["--log-format", "json"] if form == "json" else []))
    assert done.returncode in (1, 2, 3), done.err
    assert SECRET not in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("m: status 302 redirects to https://h/{s}: redirects are not followed", "m: status 302 redirects"),
        ("m: status 502 {s}", "m: status 502"),
        ("m: status 400, {s}", "m: status 400"),
        (
            "down since 12:01: m: status 503: {s}; probing it until it answers",
            "down since 12:01: m: status 503; probing it until it answers",
        ),
        ("m: sent a message with role '{s}'", "m: sent a message"),
        ("m: sent a choice without a message: {s}", "m: sent a choice without a message"),
        ("m: sent an answer {s}", "m: sent an answer"),
        ("m: sent a web page instead of an answer: '{s}'", "m: sent a web page instead of an answer"),
        ("m: sent no text (finish_reason '{s}')", "m: sent no text"),
        ("m: broke off with an error: {s}", "m: broke off with an error"),
        ("m called a tool instead of answering: {s}", "m called a tool instead of answering"),
        ("m: the response through the proxy h:1 is not HTTP: {s}", "m: the response through the proxy h:1 is not HTTP"),
        ("m returned int, expected text: {s}", "m returned int, expected text"),
        ("m: cannot be reached: connection refused", "m: cannot be reached: connection refused"),
        ("rows.jsonl cannot be read: no such file", "rows.jsonl cannot be read: no such file"),
    ],
)
def test_what_a_message_quotes_of_an_endpoint_is_left_out(message, shown):
    """What was wrong stays, whatever separates it from the text of the endpoint."""
    assert without_upstream_text(message.format(s=f"{SECRET}\nof: (mine)")) == shown
