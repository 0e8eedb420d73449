"""`redraft mcp`: what it says about its arguments."""

import sys

import pytest


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--port", "1"], "--port goes with --http"),
        (["--insecure"], "--insecure goes with --http"),
        (["--folder", "keys"], "--folder goes with --http"),
        (["--allow-model", "openai:gpt-4o"], "--allow-model goes with --model"),
        (["--model", "nonsense:x"], "nonsense"),
        (["--model", "none", "--allow-grader", "missing.py:f"], "missing.py"),
        (["--model", "none", "--allow-grader", "no_such_grader"], "no_such_grader"),
        (
            ["--http", "--host", "no.such.host.invalid", "--insecure", "--model", "none"],
            "is no address of this machine",
        ),
        (["--http", "--host", "0.0.0.0", "--model", "none"], "no API key is needed: add one"),
        (["--max-calls", "0"], "--max-calls"),
    ],
)
def test_a_mistake_is_found_at_the_start(redraft, arguments, says):
    """It ends with 2 and one line that says what is wrong; nothing is written to stdout, which is
    for the protocol.
    """
    done = redraft("mcp", *arguments)
    assert done.returncode == 2
    assert says in done.err
    assert done.stdout == b""


def test_a_missing_extra_is_named(redraft, monkeypatch):
    """The error says what to install."""
    monkeypatch.setitem(sys.modules, "mcp", None)
    done = redraft("mcp", "--model", "none")
    assert done.returncode == 2
    assert "redraft mcp needs mcp: pip install 'redraft[mcp]'" in done.err
