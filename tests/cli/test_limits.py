"""Limits of time and cost: the same options for every command that calls a model, and the messages
when a limit ends the work.
"""

import json
import re
import socket

import pytest

from redraft.cli import program

from .chat_server import verdict

ASKING = ("run", "best", "grade", "batch", "validate", "rubric")


@pytest.fixture
def base_url_without_answers():
    """An address where calls are accepted and never answered."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/v1"


def test_every_command_that_calls_a_model_has_the_same_limits():
    """Options have the same names and the same meaning."""
    names = ("timeout", "deadline", "price", "budget_usd", "budget_calls", "budget_tokens")
    for name in ASKING:
        params = {p.name: p for p in program.get_command(None, name).params}
        first = {p.name: p for p in program.get_command(None, "run").params}
        assert [params[n].to_info_dict() for n in names] == [
            first[n].to_info_dict() for n in names
        ], name


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
@pytest.mark.slow(but_each=2)
def test_an_expired_deadline_names_the_endpoint_that_did_not_answer(
    redraft, base_url_without_answers, name
):
    """The message has the address and the model."""
    done = redraft(
        *commands(redraft.folder, f"{base_url_without_answers}#tiny")[name], "--deadline", "1"
    )
    assert (
        f"no answer from {base_url_without_answers} (model tiny) before the deadline of 1 s"
        in done.err
    )
    assert done.returncode == 1


def test_a_call_ends_after_the_timeout(redraft, base_url_without_answers):
    """No attempt takes longer, and the message names the endpoint."""
    done = redraft(
        *commands(redraft.folder, f"{base_url_without_answers}#tiny")["run"],
        "--timeout",
        "0.1",
        "--json",
    )
    told = json.loads(done.out.splitlines()[-1])
    assert (told["event"], told["error"], told["status"]) == ("error", "ModelTimeoutError", None)
    assert told["message"] == f"no answer from {base_url_without_answers} (model tiny) within 0.1 s"


@pytest.mark.parametrize("name", ["run", "best", "grade"])
def test_a_price_gives_a_cost(redraft, serve, name):
    """The price is in USD for a million input and output tokens; without it the cost is unknown."""
    server = serve(
        lambda messages, n: (
            verdict(5) if len(messages) > 1 or "criteria" in str(messages) else "It."
        )
    )
    asked = (*commands(redraft.folder, server.model)[name], "--json")
    for price, known in (((), False), (("--price", "tiny=1,2"), True)):
        done = redraft(*asked, *price)
        told = json.loads(done.out.splitlines()[-1] if name != "grade" else done.out)
        calls = told["usage"]["calls"]
        assert told["cost"] == (pytest.approx(calls * 20e-6) if known else None), done.err


def test_a_wait_for_retry_after_is_reported(redraft, serve):
    """The message says how long and until when; in JSON it is a number."""
    server = serve(lambda messages, n: (429, "too much", {"Retry-After": "7200"}))
    done = redraft("run", "Say it", "--model", server.model, "--json")
    assert re.search(r"try again in 2 h, at \d{4}-\d\d-\d\d \d\d:\d\d UTC", done.err)
    told = json.loads(done.out.splitlines()[-1])
    assert (told["error"], told["status"], told["retry_after"]) == ("RateLimitError", 429, 7200)
    assert server.calls == 1


def test_the_pause_of_a_batch_has_a_date_and_a_length(redraft, serve):
    """The message is the first: no progress is reported before a row has ended."""
    server = serve(lambda messages, n: (429, "too much", {"Retry-After": "86400"}))
    (redraft.folder / "in.jsonl").write_text('{"prompt": "Say it"}\n')
    done = redraft(
        "batch",
        "in.jsonl",
        "-o",
        "b.jsonl",
        "--model",
        server.model,
        "--require",
        "words:1-5",
        "--deadline",
        "2",
    )
    second = done.err.splitlines()[1]
    assert re.search(
        r"paused until \d{4}-\d\d-\d\d \d\d:\d\d UTC \(for 1 d\), as it asked: ", second
    ), done.err


@pytest.mark.parametrize("options", [(), ("--log-format", "json")])
@pytest.mark.parametrize(
    "refusal", [(429, "Please try again in 1.1s."), (429, "too much", {"Retry-After": "1"})]
)
def test_a_short_pause_of_a_batch_is_reported_once(redraft, serve, refusal, options):
    """In a pipe as a line; in JSON as a notice, and as the state in the progress. What the server
    wrote is not repeated.
    """
    server = serve(lambda messages, n: refusal if n == 0 else "Fine.")
    (redraft.folder / "in.jsonl").write_text('{"prompt": "Say it"}\n' * 2)
    named = ("--model", server.model, "--require", "words:1-5", "--max-iterations", "0")
    done = redraft("batch", "in.jsonl", "-o", "b.jsonl", *named, *options)
    lines = done.err.splitlines()
    told = (
        [event for event in map(json.loads, lines) if "paused until" in event.get("message", "")]
        if options
        else lines
    )
    assert done.returncode == 0, done.err
    (notice,) = [str(each) for each in told if "paused until" in str(each)]
    assert re.search(
        r"127\.0\.0\.1:\d+: paused until [^(]+ UTC \(for [\d.]+ s\), as it asked: RateLimitError \(status 429\)",
        notice,
    )
    assert "too much" not in done.err and "try again" not in done.err
    if options:
        assert any(
            event["event"] == "progress" and "paused until" in event["state"]
            for event in map(json.loads, lines)
        ), lines


def test_an_unknown_cost_is_reported_as_unknown(redraft, serve):
    """Neither the end of a run nor the list of runs shows 0 or leaves it out."""
    server = serve(lambda messages, n: verdict(5) if "criteria" in str(messages) else "It.")
    asked = commands(redraft.folder, server.model)
    done = redraft(*asked["run"])
    assert "cost unknown" in done.err and "cost 0" not in done.err
    done = redraft(*asked["batch"])
    assert "cost unknown" in done.err
    told = redraft("runs", "show", "out-jsonl").out
    assert re.search(r"^cost\tunknown$", told, re.MULTILINE), told
