"""The terminal view, and that no model or server can send control sequences to it."""

import re

import pytest

from .chat_server import verdict, writer_and_judge

EVIL = "\x1b]0;owned\x07\x1b[2J\x1b[31mred\x1b[0m [bold]markup[/bold] \x9b5n\u202eback"


@pytest.mark.slow
def test_the_live_view_shows_answers_scores_and_usage(redraft, serve):
    """Answers appear with their scores, and calls, tokens and cost below, as in a process of its
    own.
    """
    server = serve(writer_and_judge(["poor", "good"], [2, 5]))
    seen, piped, code = redraft.in_terminal(
        "run", "Say it", "--model", server.model, stdout_too=False, inside=False
    )
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode())
    assert (code, piped) == (0, b"good\n")
    for shown in (
        "draft by tiny",
        "refined 0 by tiny",
        "0.40",
        "1.00",
        "calls 4",
        "tokens 60",
        "cost unknown",
    ):
        assert shown in text


def test_control_sequences_of_a_model_have_no_effect(redraft, serve):
    """Escape sequences, control characters and markup in answers, reasons and advice are shown as
    text.
    """
    server = serve(lambda messages, n: verdict(2, change=EVIL) if n % 2 else f"{EVIL} {n}")
    seen, _, _ = redraft.in_terminal(
        "run", "Say it", "--model", server.model, "--max-iterations", "1", "--trace", "t.jsonl"
    )
    told, _, _ = redraft.in_terminal("show", "t.jsonl")
    for screen in (seen, told):
        assert b"[bold]markup[/bold]" in screen
        for evil in ("\x1b]0;", "\x1b[2J", "\x1b[31mred", "\x9b", "\x07", "\u202e"):
            assert evil.encode() not in screen


def test_control_sequences_in_server_errors_have_no_effect(redraft, serve):
    """Error messages are escaped, also in the traceback of --debug."""
    first = serve(lambda messages, n: (400, EVIL))
    later = serve(lambda messages, n: ["draft", verdict(2), (400, EVIL)][min(n, 2)])
    for args, expected in [(("--model", first.model, "--debug"), 1), (("--model", later.model), 0)]:
        seen, _, code = redraft.in_terminal("run", "Say it", *args)
        assert code == expected and b"markup" in seen
        for evil in ("\x1b]0;", "\x1b[2J", "\x1b[31mred", "\x9b", "\x07", "\u202e"):
            assert evil.encode() not in seen


def test_a_pipe_gets_the_answer_unchanged(redraft, serve):
    """A pipe gets each character of the answer."""
    server = serve(writer_and_judge([EVIL], [5]))
    assert redraft("run", "Say it", "--model", server.model).out == f"{EVIL}\n"
