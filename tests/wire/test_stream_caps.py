"""Streams are bounded like bodies, however they are divided, compressed or padded, and are read in
linear time.
"""

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redraft.errors import BadResponseError
from redraft.models import Chat
from redraft.models.reasoning import VisibleText
from redraft.models.sse import SSEParser, StreamAssembler
from redraft.usage import Usage

from . import fault_server as fs

MIB = 2**20
END = fs.chunk(finish="stop")
HEAD, _, _ = fs.sse(done=False).partition(b"\r\n\r\n")


def events(*chunks):
    return b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks)


def gzip_stream(raw):
    """Return a gzip stream that is sent in small pieces of many events each."""
    return HEAD + b"\r\nContent-Encoding: gzip\r\n\r\n" + gzip.compress(raw, 1)


TOO_LARGE = {
    "text in events": lambda: fs.sse(*[fs.chunk("x" * 8000)] * 2600, END),
    "text that is not ASCII": lambda: fs.sse(*[fs.chunk("字" * 1000)] * 2900, END),
    "thoughts": lambda: fs.sse(
        *[fs.chunk(reasoning_content="x" * 8000)] * 2600, fs.chunk("fine"), END
    ),
    "thoughts in the text": lambda: fs.sse(
        fs.chunk("<think>"), *[fs.chunk("x" * 8000)] * 2600, fs.chunk("</think>fine"), END
    ),
    "a refusal": lambda: fs.sse(*[fs.chunk(refusal="x" * 8000)] * 2600, END),
    "one event": lambda: fs.sse(fs.chunk("x" * 20 * MIB), END),
    "a line that does not end": lambda: fs.sse(b"data: " + b"x" * 20 * MIB, done=False),
    "a field nobody knows": lambda: fs.sse(
        b"id: " + b"x" * 20 * MIB + b"\n\n", fs.chunk("fine"), END
    ),
    "an event of many lines": lambda: fs.sse(b"data: 1\n" * (20 * MIB // 8) + b"\n", done=False),
    "comments": lambda: fs.sse(b": keep alive\n\n" * (20 * MIB // 14), fs.chunk("fine"), END),
    "wrapping without text": lambda: fs.sse(
        *[fs.chunk("", junk="x" * 8000)] * 2600, fs.chunk("fine"), END
    ),
    "gzip of one text": lambda: gzip_stream(events(fs.chunk("x" * 60 * MIB), END)),
    "gzip of events": lambda: gzip_stream(events(*[fs.chunk("x" * 8000)] * 2600, END)),
    "gzip of comments": lambda: gzip_stream(b":\n" * 20 * MIB),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TOO_LARGE)
async def test_stream_of_more_than_8_mib_is_rejected(faults, ask, name):
    """The call may have been billed and is not repeated."""
    faults.says(fs.send_and_close(TOO_LARGE[name]()))
    with pytest.raises(BadResponseError, match="larger than 8 MiB") as caught:
        await Chat("m", faults.url, stream=True).complete(ask())
    assert not caught.value.retryable
    assert caught.value.usage == Usage(1, None, None, cost=None)


@pytest.mark.slow
async def test_long_answer_in_small_events_is_read(faults, ask):
    """Thirty thousand tokens in events of 400 bytes exceed 8 MiB on the wire and are an ordinary
    answer.
    """
    token = {**fs.chunk("word "), "id": "x" * 150, "system_fingerprint": "y" * 150}
    raw = fs.sse(*[token] * 30_000, END)
    assert len(raw) > 10 * MIB
    faults.says(fs.send_and_close(raw))
    assert len((await Chat("m", faults.url, stream=True).complete(ask())).text) == 5 * 30_000


PIECES = st.lists(st.text("<think>/ \nab", max_size=6), max_size=12)
SPOKEN = {
    "fine": "fine",
    " fine": " fine",
    "<think>hm</think>\n fine": "fine",
    "  <think>a</think> <think>b</think>fine": "fine",
    "<think>never ends": "",
    "<thi": "<thi",
    " \n<thin": " \n<thin",
    "<think>a</think> <thi": "<thi",
    "<b>fine</b>": "<b>fine</b>",
    "<think>a</think><b>": "<b>",
    "   ": "   ",
}


def shown_text(pieces):
    visible = VisibleText()
    return "".join([*map(visible.add, pieces), visible.flush()])


@pytest.mark.parametrize("text", SPOKEN)
def test_leading_thinking_is_not_shown(text):
    """It may arrive in one piece or letter by letter."""
    assert shown_text([text]) == shown_text(text) == SPOKEN[text]


@given(PIECES)
def test_division_of_a_text_does_not_matter(pieces):
    """Any division shows the same text."""
    assert shown_text(pieces) == shown_text(["".join(pieces)]) == shown_text("".join(pieces))


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_streams_are_read_in_linear_time():
    """It holds for a long line in small parts, long thinking by letters and leading white space."""
    found = SSEParser()
    line = b"data: " + b"x" * (7 * MIB) + b"\n\n"
    assert [e for i in range(0, len(line), 64) for e in found.feed(line[i : i + 64])] == [
        ("", line[6:-2])
    ]
    visible = VisibleText()
    assert not any(map(visible.add, ["<think>", *["x"] * MIB]))
    visible = VisibleText()
    assert not any(map(visible.add, [" "] * MIB))
    pieces = StreamAssembler()
    for _ in range(MIB // 8):
        pieces.add(fs.chunk("x"))
    pieces.add(END)
    assert len(pieces.reply().text) == MIB // 8
