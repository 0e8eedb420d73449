"""The tools over stdin and stdout, in a process of their own, called by the client of the
protocol's own library.
"""

import asyncio
import json
import os
import signal
import subprocess

import anyio
import pytest
from chat_server import writer_and_judge

from .conftest import PROGRAM, stdio_client

GRADE = {"response": "One, two", "requirements": ["no_commas", "words:1-5"]}


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_tools_work_without_a_model(mode):
    """An agent lists the tools, grades by requirements and repairs a draft, in both forms of the
    protocol.
    """
    async with stdio_client("--model", "none", mode=mode) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {"refine", "grade", "compare", "validate_grader"}
        assert all(tool.description and tool.output_schema for tool in tools.values())
        grades = await client.call_tool("grade", GRADE)
        assert not grades.is_error
        assert grades.structured_content["broken"] == ["no_commas"]
        assert [each["score"] for each in grades.structured_content["feedback"]] == [0, 1]
        refined = await client.call_tool(
            "refine", {"draft": "One, two", "requirements": ["no_commas"]}
        )
        assert refined.structured_content["answer"] == refined.content[0].text == "One two"
        assert refined.structured_content["stop"] == "target"
        impossible = await client.call_tool("refine", {"prompt": "Say it"})
        assert impossible.is_error
        assert "there is no model" in impossible.content[0].text


@pytest.mark.slow
async def test_an_answer_is_refined_with_progress(serve):
    """The model writes and judges until the target is reached; the client hears how it goes on, in
    order, and of the last step.
    """
    server = serve(writer_and_judge(["Bad.", "Good."], [1, 5]))
    heard = []

    async def hear(progress, total, message):
        heard.append((progress, message))

    async with stdio_client("--model", server.model) as client:
        result = await client.call_tool(
            "refine", {"prompt": "Say it", "max_iterations": 2}, progress_callback=hear
        )
    found = result.structured_content
    assert found["answer"] == "Good."
    assert found["iterations"] == 1
    assert found["usage"]["calls"] == server.calls >= 4
    assert [each["origin"] for each in found["changes"]] == ["generate", "refine"]
    assert found["changes"][0]["actions"] == ["say more"]
    assert [number for number, _ in heard] == sorted({number for number, _ in heard})
    assert heard[-1][1] == f"judge: 1.00 It is so. · best so far {found['score']:.2f}", heard


@pytest.mark.slow
async def test_a_schema_is_kept(serve):
    """The answer is JSON that follows the schema of the call, and its value is in the result."""
    server = serve(writer_and_judge(['{"city": "Rome"}'], [5]))
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    async with stdio_client("--model", server.model) as client:
        result = await client.call_tool("refine", {"prompt": "Which?", "answer_schema": schema})
    assert result.structured_content["parsed"] == {"city": "Rome"}


async def test_cancellation_closes_the_connection_to_the_model(silent_model):
    """When the client cancels, the call to the model ends at once, and the server goes on."""
    async with stdio_client("--model", silent_model.model) as client:
        async with anyio.create_task_group() as group:
            group.start_soon(client.call_tool, "refine", {"prompt": "Say it"})
            assert await asyncio.to_thread(silent_model.arrived.wait, 60)
            group.cancel_scope.cancel()
        assert await asyncio.to_thread(silent_model.left.wait, 60)
        assert not (await client.call_tool("grade", GRADE)).is_error


def start(*args):
    """Start a server that a legacy client has greeted."""
    process = subprocess.Popen(
        [*PROGRAM, "mcp", *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    info = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    }
    write(process, id=1, method="initialize", params=info)
    greeting = json.loads(process.stdout.readline())
    assert greeting["result"]["serverInfo"]["name"] == "redraft"
    write(process, method="notifications/initialized")
    return process


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "last"),
    [(writer_and_judge(["Good."], [1]), "judge: 0.20"), (lambda messages, n: 401, "failed: ")],
    ids=["of a result", "of an error"],
)
def test_the_last_note_is_written_before_the_reply(serve, answer, last):
    """Whatever the speed of the work: the lines on stdout are in this order."""
    process = start("--model", serve(answer).model)
    arguments = {"prompt": "Say it", "max_iterations": 0}
    for number in range(2, 12):
        params = {
            "name": "refine",
            "arguments": arguments,
            "_meta": {"progressToken": f"t{number}"},
        }
        write(process, id=number, method="tools/call", params=params)
        notes = []
        while "id" not in (line := json.loads(process.stdout.readline())):
            notes.append(line["params"])
        assert line["id"] == number
        assert {note["progressToken"] for note in notes} == {f"t{number}"}
        assert notes[-1]["message"].startswith(last), notes
    process.stdin.close()
    assert process.wait(60) == 0
    process.stdout.close()
    process.stderr.close()


def write(process, **message):
    process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
    process.stdin.flush()


@pytest.mark.slow
@pytest.mark.parametrize("end", ["eof", signal.SIGINT, signal.SIGTERM])
def test_the_end_cancels_what_is_not_finished(silent_model, end):
    """When stdin closes, or a signal comes, the model's connection is closed, and the process ends
    with 0 and without a word.
    """
    process = start("--model", silent_model.model)
    write(
        process,
        id=2,
        method="tools/call",
        params={"name": "refine", "arguments": {"prompt": "Say it"}},
    )
    assert silent_model.arrived.wait(60)
    process.stdin.close() if end == "eof" else os.kill(process.pid, end)
    assert process.wait(60) == 0
    assert silent_model.left.wait(60)
    assert process.stderr.read() == b""
    for line in process.stdout.read().splitlines():
        assert json.loads(line)["id"] == 2
    process.stdin.close() if end != "eof" else None
    process.stdout.close()
    process.stderr.close()


MIB = 2**20
NEST = b"[" * 100_000 + b"]" * 100_000
# what is written (or a function that makes it: each process that runs tests reads this file), and
# the errors that answer it
JUNK = {
    "broken": (b"{\n", [(None, -32700)]),
    "empty": (b"\n \r\n\t\n", []),
    "not UTF-8": (b'"\xff\\ud800"\n', [(None, -32700)]),
    "not UTF-8, and JSON": (b'"\xff"\n', [(None, -32600)]),
    "deep": (NEST + b"\n", [(None, -32700)]),
    "deep arguments": (
        b'{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"grade","arguments":'
        + NEST
        + b"}}\n",
        [(5, -32700)],
    ),
    "a number": (b"42\n", [(None, -32600)]),
    "an array": (b'[{"jsonrpc":"2.0","id":5,"method":"ping"}]\n', [(None, -32600)]),
    "no method": (b'{"jsonrpc":"2.0","id":"five"}\n', [("five", -32600)]),
    "no version": (b'{"id":5,"method":"ping"}\n', [(5, -32600)]),
    "too long": (lambda: b"x" * 17 * MIB + b"\n", [(None, -32600)]),
    "too long, and a request": (
        lambda: (
            b'{"method":"ping","params":{"a":"'
            + b"x" * 40 * MIB
            + b'"},"jsonrpc":"2.0","id":5}\n'
            + b"y" * 17 * MIB
            + b"\n{\n"
        ),
        [(5, -32600), (None, -32600), (None, -32700)],
    ),
    "too long, and the id is no JSON": (
        lambda: b"".join(
            b'{"id":' + value + b',"params":"' + b"x" * 17 * MIB + b"\n"
            for value in (b"007", b"-01", b'"a\tb"')
        ),
        [(None, -32600)] * 3,
    ),
    "deep, and the id is no JSON": (b'{"id":-00,"params":' + NEST + b"}\n", [(None, -32700)]),
}


@pytest.mark.slow
def test_a_line_that_is_no_message_is_answered_and_ends_nothing():
    """Each such line gets an error with the number of its request, if that is known, and the next
    message is answered.
    """
    process = start("--model", "none")
    for number, (name, (junk, errors)) in enumerate(JUNK.items(), 100):
        process.stdin.write(junk() if callable(junk) else junk)
        write(process, id=number, method="ping")
        replies = []
        while (reply := json.loads(process.stdout.readline()))["id"] != number:
            replies.append(reply)
        assert [(reply["id"], reply["error"]["code"]) for reply in replies] == errors, name
        assert reply["result"] == {}
    write(process, id=7, method="tools/list")
    assert len(json.loads(process.stdout.readline())["result"]["tools"]) == 4
    process.stdin.close()
    assert process.wait(60) == 0
    assert process.stderr.read() == b""
    process.stdout.close()
    process.stderr.close()


@pytest.mark.slow
async def test_the_tools_work_with_a_real_model(plain_server):
    """A llama.cpp server with random weights writes; requirements grade, and what it cannot meet is
    in the result.
    """
    call = {
        "prompt": "Say it",
        "requirements": ["words:1-400", "contains:xylophone"],
        "max_iterations": 1,
    }
    async with stdio_client("--model", plain_server, "--deadline", "60") as client:
        found = (await client.call_tool("refine", call)).structured_content
    assert found["answer"]
    assert found["usage"]["calls"] >= 2
    assert found["broken"] == ["contains:xylophone"] or found["score"] == 1
