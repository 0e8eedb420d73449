"""Notices of a batch, one line each, for people and for programs."""

import json
import re

import pytest

from .chat_server import writer_and_judge


@pytest.fixture
def arguments(redraft, serve):
    """The arguments of a batch that takes settings from a file."""
    (redraft.folder / "in.jsonl").write_text('{"prompt": "p"}\n')
    (redraft.folder / "redraft.toml").write_text('target-score = 0.5\nrequire = ["words:1-9"]\n')
    return (
        "batch",
        "in.jsonl",
        "-o",
        "out.jsonl",
        "--model",
        serve(writer_and_judge(["fine"], [5])).model,
    )


def test_the_source_of_settings_is_a_notice(redraft, arguments):
    """In JSON it has the event of a notice, not of a warning."""
    done = redraft(*arguments, "--log-format", "json")
    assert done.returncode == 0, done.err
    (said,) = [
        event
        for event in map(json.loads, done.err.splitlines())
        if "settings from" in event.get("message", "")
    ]
    assert said["event"] == "notice"


def test_a_notice_has_a_line_of_its_own_in_the_live_view(redraft, arguments):
    """It begins on a cleared line, not behind the text of the view."""
    shown, _, code = redraft.in_terminal(*arguments)
    assert code == 0, shown
    before = shown.partition(b"redraft: settings from")[0]
    assert re.search(rb"(\x1b\[2K|\n)$", before), before[-200:]
    after = shown.partition(b"redraft: settings from")[2]
    assert re.match(rb"[^\x1b]*\r\n", after), after[:200]


# ---- waits before a call is repeated

WAIT = (429, "slow down", [("Retry-After", "1")])  # the shortest wait that is shown
WAITING = r"redraft: .*RateLimitError \(status 429\); retry 1 of \d+ in 1\.\d s"


def busy_at_first(answer, calls=1):
    """An endpoint that asks to wait at its first calls."""
    return lambda messages, n: WAIT if n < calls else answer(messages, n - calls)


@pytest.mark.parametrize(
    ("command", "calls"),
    [
        (("run", "Say it", "--max-iterations", "0"), 1),
        (("run", "Say it", "--max-iterations", "0", "--json"), 1),
        (("run", "Say it", "--max-iterations", "0", "--drafts", "3"), 3),
        (("best", "Say it", "-n", "2"), 2),
        (("grade", "Say it", "--response", "yes"), 1),
    ],
    ids=["run", "json", "together", "best", "grade"],
)
def test_a_call_that_waits_is_reported(redraft, serve, command, calls):
    """One line says which endpoint, why, and for how long; calls that wait together have one."""
    server = serve(busy_at_first(writer_and_judge(["yes"], [5]), calls))
    (redraft.folder / "yes").write_text("yes")
    done = redraft(*command, "--model", server.model)
    assert done.returncode == 0, done.err
    assert len(re.findall(WAITING, done.err)) == 1, done.err
    assert "slow down" not in done.err


def test_a_call_that_waits_is_reported_in_the_live_view(redraft, serve):
    """The line stands above the view."""
    server = serve(busy_at_first(writer_and_judge(["yes"], [5])))
    shown, _, code = redraft.in_terminal(
        "run", "Say it", "--max-iterations", "0", "--model", server.model
    )
    assert code == 0, shown
    text = " ".join(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode()).split())
    assert text.count("retry 1 of") == 1, text
    assert re.search(WAITING, text), text


def test_a_batch_reports_no_call_that_waits(redraft, serve):
    """Its progress shows its state."""
    server = serve(busy_at_first(writer_and_judge(["yes"], [5])))
    (redraft.folder / "in.jsonl").write_text('{"prompt": "p"}\n')
    done = redraft("batch", "in.jsonl", "-o", "out.jsonl", "--model", server.model)
    assert done.returncode == 0, done.err
    assert "retry 1 of" not in done.err
