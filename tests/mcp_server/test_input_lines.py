"""The lines of stdin: whatever a client writes, each line is one text or one that is too long, and
nothing is held beyond the limit.
"""

import asyncio
import json
import os
import tracemalloc
from threading import Thread

import pytest

from each_row import each_row
from redraft.mcp_server import input_lines
from redraft.mcp_server.input_lines import OverlongLine, request_id


def lines_of(data):
    """What is read of some bytes that a client writes, and then closes its end."""

    async def read(descriptor):
        return [line async for line in input_lines.input_lines(descriptor)]

    descriptor, target = os.pipe()

    def write():
        left = memoryview(data)
        while left:
            left = left[os.write(target, left) :]
        os.close(target)

    writer = Thread(target=write)
    writer.start()
    try:
        return asyncio.run(read(descriptor))
    finally:
        writer.join()
        os.close(descriptor)


@pytest.mark.slow(but_each=4)
@pytest.mark.parametrize("ending", [b"", b"\n", b"\nlast", b"\nlast\n"])
@pytest.mark.parametrize("first", [b"", b"\n\n", b"first\n", b"f\xff\xfe\n"])
@pytest.mark.parametrize("excess", [-1, 0, 1, 2**16, 2**18])
def test_a_line_over_the_limit_is_one_item(monkeypatch, first, ending, excess):
    """It comes in the place of the line; the lines before and after it are whole, also the last one
    without an end.
    """
    monkeypatch.setattr(input_lines, "MAX_LINE", 2**17)
    line = b"x" * (2**17 + excess)
    expected = [each.decode(errors="replace") for each in first.split(b"\n")[:-1]]
    expected += [line.decode() if excess <= 0 else OverlongLine(None)]
    expected += ["last"] * (b"last" in ending)
    assert lines_of(first + line + ending) == expected


def test_a_line_without_end_is_not_held(monkeypatch):
    """Of a line that is too long only its ends are kept."""
    monkeypatch.setattr(input_lines, "MAX_LINE", 2**16)
    data = b"x" * 2**24 + b"\nlast\n"
    tracemalloc.start()
    try:
        assert lines_of(data) == [OverlongLine(None), "last"]
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


NO_JSON = ("007", "-01", "00", "-", '"a\tb"', '"a\x00"', '"\x1f"')
LONG = {"text": "x" * 2000, "id": 1, "more": [{"id": 2}], "quoted": ',"id":3}'}


@pytest.mark.slow(but_each=4)
@pytest.mark.parametrize("number", [0, 7, -1, 10**15, "a", "6f9619ff-8b86", "é"])
@pytest.mark.parametrize(
    "order",
    [
        ("jsonrpc", "id", "method", "params"),
        ("method", "params", "jsonrpc", "id"),
        ("id", "params"),
        ("params", "id", "jsonrpc"),
        ("method", "id", "params"),
    ],
)
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_the_request_of_a_long_line_is_known(monkeypatch, number, order, separators):
    """Its number is found at both ends, where clients write it, so that the client does not wait
    for an answer for ever.
    """
    monkeypatch.setattr(input_lines, "MAX_LINE", 1000)
    fields = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": LONG}
    line = json.dumps(
        {name: fields[name] for name in order}, separators=separators, ensure_ascii=False
    ).encode()
    assert request_id(line) == number
    assert lines_of(line) == [OverlongLine(number)]


@each_row(
    "line",
    [
        json.dumps({"method": "x", "params": LONG}),
        json.dumps({"params": {"id": 5, "a": {"b": "x" * 999}}}),
        json.dumps({"params": LONG, "method": ',"id":9}'}),
        '{"params":{"text":"' + "x" * 2000 + '","id":3}}',
        '[{"params":"' + "x" * 2000 + '","id":3}]',
        '{"params":"' + "x" * 2000 + ',"id":3',
        '{"id":1.5,"params":"' + "x" * 2000,
        '{"id":null,"params":"' + "x" * 2000,
        '{"id":"a\\"b","params":"' + "x" * 2000,
        '{"id":' + "9" * 2000,
        *(f'{{"id":{value},"params":"' + "x" * 2000 for value in NO_JSON),
        *(f'{{"params":"{"x" * 2000}","id":{value}}}' for value in NO_JSON),
        "[" * 2000,
        "",
    ],
)
def test_a_number_that_may_be_another_is_not_taken(line):
    """A number within the arguments, or in a text, is not that of the request: the error would end
    another call.
    """
    assert request_id(line.encode()) is None
