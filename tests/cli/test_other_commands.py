"""`grade`, `show`, `models`, `graders`, `gate`, `--version`."""

import asyncio
import json
import re
import signal

import pytest
from fault_server import FaultServer, models

from redraft import __version__
from redraft.graders import entries
from redraft.requirements import KINDS

from .chat_server import verdict, writer_and_judge


def test_grade_says_what_is_broken_and_by_how_much(redraft):
    """Requirements are checked without a model: measured value, demand, exit code 3."""
    done = redraft(
        "grade",
        "--response",
        "-",
        "--require",
        "words:2-3",
        "--require",
        "contains:qubit",
        input="One two three",
    )
    assert done.returncode == 3
    assert "3 words" in done.out and "'qubit' occurs 0 times" in done.out
    assert "score 0.50 · broken: 1" in done.out and "calls 0" in done.out


def test_grade_with_a_judge_shows_what_to_change(redraft, serve):
    """It shows the judge's reason and advice; --json has them as data."""
    server = serve(lambda messages, n: verdict(3, change="name the river"))
    done = redraft(
        "grade", "Which river?", "--response", "-", "--model", server.model, input="The long one"
    )
    assert done.returncode == 0
    assert "→ name the river" in done.out and "0.60" in done.out
    assert "Which river?" in str(server.asked) and "The long one" in str(server.asked)
    data = json.loads(
        redraft("grade", "--response", "-", "--model", server.model, "--json", input="x").out
    )
    assert data["score"] == 0.6 and data["feedback"][0]["actions"][0] == "name the river"


def test_grade_without_a_grader_is_a_usage_error(redraft):
    """The exit code is 2."""
    assert redraft("grade", "--response", "-", "--model", "none", input="x").returncode == 2


def test_show_prints_answers_feedback_changes_and_usage(redraft, serve):
    """A saved trace is shown without a call."""
    server = serve(writer_and_judge(["The cat sat.", "The dog sat."], [2, 5]))
    redraft("run", "Say it", "--model", server.model, "--trace", "t.jsonl")
    done = redraft("show", "t.jsonl")
    assert done.returncode == 0 and server.calls == 4
    assert "The [-cat-]{+dog+} sat." in done.out
    assert (
        "score 0.40" in done.out and "score 1.00 (+0.60)" in done.out and "→ say more" in done.out
    )
    assert "stopped: the judge is satisfied" in done.out
    assert re.search(r"score 1\.00 \(\+0\.60\) · estimated 0\.\d\d", done.out)
    assert re.search(r"0\.\d\d -> 0\.\d\d \(the judge said 1\.00; ", done.out)
    data = json.loads(redraft("show", "t.jsonl", "--json").out)
    assert [c["score"] for c in data["candidates"]] == [0.4, 1.0]
    assert data["settings"]["model"] == server.model


def test_show_refuses_a_file_that_is_no_trace(redraft):
    """The error is one line."""
    (redraft.folder / "x.jsonl").write_text("{}\n")
    done = redraft("show", "x.jsonl")
    assert done.returncode == 1 and "Traceback" not in done.err and "x.jsonl" in done.err


def test_models_says_where_it_looked(redraft, serve):
    """It names every place, with what it found or what the place needs."""
    done = redraft("models", env={"REDRAFT_MODEL": "ollama:llama3.2"})
    assert done.returncode == 0
    for place in ("REDRAFT_MODEL", "Ollama", "LM Studio", "llama.cpp", "vLLM", "OPENAI_API_KEY"):
        assert place in done.out
    assert "Used unless --model says otherwise" in done.out
    data = json.loads(redraft("models", "--json", env={"REDRAFT_MODEL": "ollama:llama3.2"}).out)
    assert data["locations"][0]["available"] is False  # it was tried, and nothing answers there


async def test_models_lists_those_of_an_address(redraft):
    """It asks that server alone, and shows all names without the key; they can be used with --model
    as they are shown.
    """
    names = [f"m{n}" for n in range(20)]
    async with FaultServer().says(models(*names)) as server:
        address = server.url.replace("://", "://:secret-5f2d@")
        for named in (address, f"{address.removesuffix('/v1')}", f"{address}#m1"):
            done = await asyncio.to_thread(redraft, "models", named, env={"COLUMNS": "200"})
            assert done.returncode == 0
            assert all(re.search(rf"\b{name}\b", done.out) for name in names)
            assert f"Name one with --model: {server.url}#m0" in done.out
            assert "Ollama" not in done.out and "secret" not in done.out
        assert {request.headers["authorization"] for request in server.requests} == {
            "Bearer secret-5f2d"
        }
        done = await asyncio.to_thread(redraft, "models", "--json", address)
        (location,) = json.loads(done.out)["locations"]
        assert (location["where"], location["models"], location["available"]) == (
            server.url,
            names,
            True,
        )


def test_models_says_why_an_address_has_none(redraft):
    """The exit code is 1."""
    done = redraft("models", "http://127.0.0.1:9", env={"COLUMNS": "200"})
    assert done.returncode == 1
    for words in ("http://127.0.0.1:9/v1", "cannot be reached", "is that the address?"):
        assert words in done.out


def test_graders_lists_every_kind_with_an_example(redraft):
    """Every kind of grader is listed."""
    data = json.loads(redraft("graders", "--json").out)
    assert [row["name"] for row in data["graders"]] == [
        e.name for e in entries() if e.mode != "requirement"
    ]
    assert [(row["name"], row["example"]) for row in data["requirements"]] == [
        (k, v.example) for k, v in KINDS.items()
    ]
    shown = redraft("graders").out
    assert all(kind in shown for kind in KINDS)


def test_a_pipe_gets_every_grader_whole_on_one_line(redraft):
    """The name comes first, columns are a tab apart, and no line is cut, so that grep and cut find
    it.
    """
    shown = redraft("graders", env={"COLUMNS": "40"}).out
    lines = {row.split()[0]: row for row in shown.splitlines() if row}
    for e in entries():
        assert e.about in lines[e.name]
    assert "\x1b" not in shown and not re.search(r"\S  ", shown) and "\u2026" not in shown
    assert not any(row.endswith(" ") for row in shown.splitlines())


def test_a_terminal_gets_one_line_for_each_grader(redraft):
    """A description that does not fit is cut with an ellipsis; names are not."""
    seen, _, code = redraft.in_terminal("graders")
    rows = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode()).splitlines()
    assert code == 0
    assert max(map(len, rows)) <= 100
    for e in entries():
        (row,) = [row for row in rows if row.split()[:1] == [e.name]]
        assert e.about in row or (e.about[:20] in row and "\u2026" in row)


def test_version_is_printed(redraft):
    """--version prints the version of Redraft."""
    assert redraft("--version").out == f"redraft {__version__}\n"


@pytest.mark.slow
def test_an_interrupted_grade_prints_no_grade(redraft, serve):
    """After Ctrl-C during the judge's call the exit code is 130."""
    server = serve(lambda messages, n: verdict(5))
    arrived = server.hold(0)
    (redraft.folder / "answer.md").write_text("It is so.")
    process = redraft.start("grade", "Say it", "--response", "answer.md", "--model", server.model)
    assert arrived.wait(30)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (
        (process.returncode, out) == (130, b"")
        and b"interrupted" in err
        and b"Traceback" not in err
    )


def test_the_report_of_the_gate_has_the_calls_for_anchors(redraft, serve):
    """Beside those of the comparison, and alone."""
    server = serve(writer_and_judge([], [4] * 99))
    rows = [{"id": n, "prompt": f"p{n}", "response": f"r{n}", "score": 0.5} for n in range(4)]
    (redraft.folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = (
        "gate",
        "a.jsonl",
        "a.jsonl",
        "--grader",
        "judge",
        "--judge",
        server.model,
        "--json",
    )
    without = json.loads(redraft(*arguments).out)
    done = json.loads(redraft(*arguments, "--anchors", "a.jsonl").out)
    assert (without["anchors"], done["anchors"]["usage"]["calls"]) == (None, 4)
    assert server.calls == without["usage"]["calls"] + 4
    assert done["usage"]["calls"] == 4  # the comparison took its grades from its journal
