"""How long a call may take, what it may cost, and what is said when time is up: the same options for every command that asks."""

import json
import re
import socket

import pytest

from redraft.cli import program

from .chat_server import verdict

ASKING = ("run", "best", "grade", "batch", "validate", "rubric")


@pytest.fixture
def silent():
    """Where calls are taken and never answered."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/v1"


def test_every_command_that_asks_has_the_same_limits():
    """By the same names, with the same meaning."""
    names = ("timeout", "deadline", "price", "budget_usd", "budget_calls", "budget_tokens")
    for name in ASKING:
        params = {p.name: p for p in program.get_command(None, name).params}
        first = {p.name: p for p in program.get_command(None, "run").params}
        assert [params[n].to_info_dict() for n in names] == [first[n].to_info_dict() for n in names], name


def commands(folder, model):
    (folder / "a.md").write_text("An answer.")
    (folder / "in.jsonl").write_text('{"prompt": "Say it", "response": "It."}\n')
    asking = ("--model", model)
    return {
        "run": ("run", "Say it", *asking),
        "best": ("best", "Say it", *asking),
        "grade": ("grade", "Say it", "--response", "a.md", *asking),
        "batch": ("batch", "in.jsonl", "-o", "out.jsonl", *asking),
    }


@pytest.mark.parametrize("name", ["run", "best", "grade", "batch"])
def test_the_end_of_the_time_names_who_did_not_answer(redraft, silent, name):
    """The address and the model."""
    done = redraft(*commands(redraft.folder, f"{silent}#tiny")[name], "--deadline", "1")
    assert f"no answer from {silent} (model tiny) before the deadline of 1 s" in done.err
    assert done.returncode == 1


def test_a_call_ends_after_the_timeout(redraft, silent):
    """A try takes no longer, and it is said whose answer did not come."""
    done = redraft(*commands(redraft.folder, f"{silent}#tiny")["run"], "--timeout", "0.1", "--json")
    told = json.loads(done.out.splitlines()[-1])
    assert (told["event"], told["error"], told["status"]) == ("error", "ModelTimeoutError", None)
    assert told["message"] == f"no answer from {silent} (model tiny) within 0.1 s"


@pytest.mark.parametrize("name", ["run", "best", "grade"])
def test_a_price_makes_a_cost(redraft, serve, name):
    """USD for a million tokens, read and written; without it the cost is unknown."""
    server = serve(lambda messages, n: verdict(5) if len(messages) > 1 or "criteria" in str(messages) else "It.")
    asked = (*commands(redraft.folder, server.model)[name], "--json")
    for price, known in (((), False), (("--price", "tiny=1,2"), True)):
        done = redraft(*asked, *price)
        told = json.loads(done.out.splitlines()[-1] if name != "grade" else done.out)
        calls = told["usage"]["calls"]
        assert told["cost"] == (pytest.approx(calls * 20e-6) if known else None), done.err


def test_a_wait_that_was_asked_for_is_told(redraft, serve):
    """How long it is, and until when; in JSON as a number."""
    server = serve(lambda messages, n: (429, "too much", {"Retry-After": "7200"}))
    done = redraft("run", "Say it", "--model", server.model, "--json")
    assert re.search(r"try again in 2 h, at \d{4}-\d\d-\d\d \d\d:\d\d UTC", done.err)
    told = json.loads(done.out.splitlines()[-1])
    assert (told["error"], told["status"], told["retry_after"]) == ("RateLimitError", 429, 7200)
    assert server.calls == 1


def test_the_pause_of_a_batch_has_a_date_and_a_length(redraft, serve):
    """In the lines for people, and in the state that programs read."""
    answers = {0: (429, "too much", {"Retry-After": "86400"})}
    server = serve(lambda messages, n: answers.get(n, "It."))
    (redraft.folder / "in.jsonl").write_text('{"prompt": "Say it"}\n')
    done = redraft("batch", "in.jsonl", "-o", "b.jsonl", "--model", server.model, "--require", "words:1-5", "--deadline", "2")
    paused = r"paused until \d{4}-\d\d-\d\d \d\d:\d\d UTC \(for 1 d\)"
    assert re.search(rf"{paused}, as it asked: ", done.err), done.err
    assert re.search(rf'"state": "[^"]*{paused}"', done.err), done.err


def test_an_unknown_cost_is_said_to_be_unknown(redraft, serve):
    """At the end of a run, in its line, and wherever a batch is told of; never 0, never nothing."""
    server = serve(lambda messages, n: verdict(5) if "criteria" in str(messages) else "It.")
    asked = commands(redraft.folder, server.model)
    done = redraft(*asked["run"])
    assert "cost unknown" in done.err and "cost 0" not in done.err
    done = redraft(*asked["batch"])
    assert "cost unknown" in done.err
    told = redraft("runs", "show", "out-jsonl").out
    assert re.search(r"^ *cost +unknown *$", told, re.MULTILINE), told
