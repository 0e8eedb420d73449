"""Tools on the command line: read from a file, and calls shown for people and programs."""

import json

from .chat_server import is_judging, verdict

SEARCH = {
    "type": "function",
    "function": {"name": "search", "parameters": {"type": "object", "properties": {"q": {}}}},
}
HOSTILE = "\x1b[2J\x07rain\u202e"


def calling(query="rain", **message):
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "search", "arguments": json.dumps({"q": query}, ensure_ascii=False)},
    }
    return {"content": None, "tool_calls": [call], **message}


def tools_in(folder, tools=(SEARCH,)):
    (folder / "tools.json").write_text(json.dumps(tools))
    return "tools.json"


def test_a_tool_call_is_printed_and_saved(redraft, serve, tmp_path):
    """It is on stdout, in the output file, in the trace and in `show`; the judge is not called and
    gets no tools.
    """
    server = serve(lambda messages, n: calling())
    given = ("--model", server.model, "--tools", tools_in(tmp_path))
    done = redraft("run", "Will it rain?", *given, "--trace", "t.jsonl")
    assert (done.returncode, done.out) == (0, '[tool call: search] {"q": "rain"}\n')
    assert "stopped: the answer calls tools (the model calls search)" in done.err
    assert server.calls == 1
    assert server.bodies[0]["tools"] == [SEARCH]
    assert redraft("run", "Will it rain?", *given, "-o", "out.md").returncode == 0
    assert (tmp_path / "out.md").read_text() == '[tool call: search] {"q": "rain"}'
    shown = redraft("show", "t.jsonl")
    assert '[tool call: search] {"q": "rain"}' in shown.out
    assert (
        json.loads(redraft("show", "t.jsonl", "--json").out)["tool_calls"][0]["function"]["name"]
        == "search"
    )
    assert redraft("run", "--resume", "t.jsonl").out == done.out


def test_json_has_the_calls(redraft, serve, tmp_path):
    """Tool calls have the form of OpenAI's messages."""
    server = serve(lambda messages, n: calling())
    done = redraft(
        "run", "Will it rain?", "--model", server.model, "--tools", tools_in(tmp_path), "--json"
    )
    result = json.loads(done.out.splitlines()[-1])
    assert (result["value"], result["stop"], result["tool_calls"]) == (
        "",
        "tool_calls",
        calling()["tool_calls"],
    )


def test_a_grader_can_grade_tool_calls(redraft, serve, tmp_path):
    """With a computed grader they are graded and refined; the judge beside it gets no tools."""
    server = serve(
        lambda messages, n: verdict(4) if is_judging(messages) else calling("rain" if n else "snow")
    )
    expected = tmp_path / "expected.json"
    expected.write_text(json.dumps([{"name": "search", "arguments": {"q": "rain"}}]))
    given = (
        "--model",
        server.model,
        "--tools",
        tools_in(tmp_path),
        "--reference",
        expected,
        *redraft.plan(noise_aware=False),
    )
    done = redraft(
        "run",
        "Will it rain?",
        *given,
        "--grader",
        "tool_calls",
        "--grader",
        "judge",
        "--target-score",
        "1",
    )
    assert done.returncode == 0, done.err
    assert done.out == '[tool call: search] {"q": "rain"}\n'
    assert [("tools" in body) is not is_judging(body["messages"]) for body in server.bodies] == [
        True
    ] * server.calls


def test_control_sequences_of_tool_calls_have_no_effect(redraft, serve, tmp_path):
    """They are removed where people read."""
    server = serve(lambda messages, n: calling(HOSTILE))
    given = ("--model", server.model, "--tools", tools_in(tmp_path), "--trace", "t.jsonl")
    seen, _, code = redraft.in_terminal("run", "Will it rain?", *given)
    assert code == 0
    shown, _, _ = redraft.in_terminal("show", "t.jsonl")
    for text in (seen, shown):
        assert b"tool call: search" in text
        assert b"\x1b[2J\x07" not in text
        assert "\u202e".encode() not in text


def test_invalid_tool_files_are_named(redraft, serve, tmp_path):
    """A usage error says which file and what it should contain; no call is made."""
    server = serve(lambda messages, n: "x")
    (tmp_path / "broken.json").write_text("[")
    for file, words in (
        (tools_in(tmp_path, "search"), "must be a list"),
        ("broken.json", "Expecting value"),
        ("none.json", "none.json"),
    ):
        done = redraft("run", "x", "--model", server.model, "--tools", file)
        assert (done.returncode, server.calls) == (2, 0)
        assert file in done.err and words in done.err
