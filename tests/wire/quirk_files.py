"""The quirks of providers and servers as data: `quirks/*.toml`, what a file may say, and the server
that plays one.

Here are no expectations: `test_quirks` compares what comes out with the table [right] of a file.
"""

from __future__ import annotations

import gzip
import json
import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from redraft import errors

from . import fault_server as fs

FOLDER = Path(__file__).parent / "quirks"
TEXT = "A qubit is a quantum bit."
VERDICT = '{"reason": "It is so.", "criteria": {"truth": {"evidence": "e", "change": "c", "score": 4}}, "done": false}'
ANSWERS = {"writer": TEXT, "judge": VERDICT}
COUNTS = {"prompt_tokens": 20, "completion_tokens": 10, "total_tokens": 30}
MAX_REQUESTS = 500  # of one play
PIECE = 7  # characters of a text in one event of a stream


class QuirkError(ValueError):
    """A quirk file that is not in the form that CONTRIBUTING.md describes."""


@dataclass(frozen=True)
class Face:
    """One way to meet a quirk: the role of the model, whether it streams, and what asks it."""

    name: str
    role: str
    through: str
    streamed: bool = False

    @property
    def words(self) -> set[str]:
        """The words by which a file leaves faces out."""
        return {self.name, self.role, self.through, "streamed" if self.streamed else "whole"}


FACES = {
    face.name: face
    for face in (
        Face("refine", "writer", "refine"),
        Face("refine streamed", "writer", "refine", streamed=True),
        Face("batch", "writer", "batch"),
        Face("gateway", "writer", "gateway"),
        Face("gateway to a stream", "writer", "gateway"),
        Face("grade", "judge", "grade"),
        Face("grade streamed", "judge", "grade", streamed=True),
        Face("batch of grades", "judge", "batch"),
        Face("gateway's judge", "judge", "gateway"),
    )
}
WORDS = set().union(*(face.words for face in FACES.values()))


# ---- what a file says


@dataclass(frozen=True)
class QuirkReply:
    """A reply of the server. Of a whole answer it has one form, of a stream at most one; else it is
    cut into a stream.
    """

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    content_type: str = ""
    text: str | None = None
    message: dict[str, Any] | None = None
    choice: dict[str, Any] | None = None
    body: Any = None
    raw: str | None = None
    chunks: list[Any] | None = None
    events: str | None = None
    finish: str = "stop"
    usage: dict[str, Any] | None = None
    gzip: bool = False
    cut: bool = False
    when: str = ""
    unless: str = ""


@dataclass(frozen=True)
class Right:
    """What is right: an answer or an error, what it costs and what is said."""

    answer: str = TEXT
    score: float = 0.8
    error: str = ""
    says: list[str] = field(default_factory=list)
    calls: int = 1
    waits: list[float] = field(default_factory=list)
    finish: str = "stop"
    reasoning: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    logs: list[str] = field(default_factory=list)
    sends: list[str] = field(default_factory=list)
    omits: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Quirk:
    """A quirk file. `left_out` are words for the faces that cannot play it, for the reason in
    `why`.
    """

    name: str
    server: str
    situation: str
    source: str
    replies: tuple[QuirkReply, ...]
    right: dict[str, Right]
    params: dict[str, Any] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    why: str = ""

    def is_played(self, face: Face) -> bool:
        return not face.words & {*self.left_out}


def load_quirks(folder: Path = FOLDER) -> list[Quirk]:
    """Return the quirks of a folder. Raises QuirkError, which names the file and what is wrong with
    it.
    """
    return [load_quirk(path) for path in sorted(folder.glob("*.toml"))]


def load_quirk(path: Path) -> Quirk:
    try:
        return _quirk(path.stem, tomllib.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, KeyError) as error:
        raise QuirkError(f"{path.name}: {error}") from error


def _quirk(name: str, data: dict[str, Any]) -> Quirk:
    for key in ("server", "situation", "source"):
        if not isinstance(data.get(key), str) or not data[key].strip():
            raise QuirkError(f"{key} is missing")
    if urlsplit(data["source"]).scheme != "https":
        raise QuirkError(f"source must be an https address, got {data['source']!r}")
    right = data.get("right", {})
    roles = {role: right.pop(role, {}) for role in ANSWERS}
    left_out = data.get("left_out", [])
    if unknown := {*left_out} - WORDS:
        raise QuirkError(
            f"left_out has unknown words {sorted(unknown)}; the words are {sorted(WORDS)}"
        )
    if bool(left_out) != bool(data.get("why")):
        raise QuirkError("left_out and why go together")
    if all(face.words & {*left_out} for face in FACES.values()):
        raise QuirkError("left_out leaves no face")
    replies = tuple(_reply(each) for each in data.get("replies", []))
    if not replies:
        raise QuirkError("replies is missing")
    known = {"server", "situation", "source", "replies", "right", "params", "left_out", "why"}
    if unknown := data.keys() - known:
        raise QuirkError(f"unknown keys {sorted(unknown)}; the keys are {sorted(known)}")
    rights = {role: _right(right | more) for role, more in roles.items()}
    texts = (data["server"], data["situation"], data["source"])
    return Quirk(
        name, *texts, replies, rights, data.get("params", {}), tuple(left_out), data.get("why", "")
    )


def _reply(data: dict[str, Any]) -> QuirkReply:
    reply = _record(QuirkReply, "replies", data)
    whole = [name for name in ("text", "message", "choice", "body", "raw") if name in data]
    stream = [name for name in ("chunks", "events") if name in data]
    if len(whole) > 1 or len(stream) > 1 or not whole + stream:
        raise QuirkError(
            f"a reply has one of text, message, choice, body, raw and at most one of chunks, events; got {whole + stream}"
        )
    return reply


def _right(data: dict[str, Any]) -> Right:
    right = _record(Right, "right", data)
    if right.error and ("answer" in data or "score" in data):
        raise QuirkError("right has an error and an answer")
    if right.error and not hasattr(errors, right.error):
        raise QuirkError(f"no error is called {right.error!r}")
    if right.says and not right.error:
        raise QuirkError("right.says is about the error; what is logged goes into right.logs")
    return right


def _record(kind: type, place: str, data: dict[str, Any]) -> Any:
    if unknown := data.keys() - {each.name for each in fields(kind)}:
        raise QuirkError(
            f"unknown keys {sorted(unknown)} in {place}; the keys are {sorted(each.name for each in fields(kind))}"
        )
    return kind(**data)


# ---- the server that plays them


@dataclass
class Play:
    """One quirk before one face: which replies were sent, and the requests with the time of
    each.
    """

    quirk: Quirk
    role: str
    clock: Any
    requests: list[dict[str, Any]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    turns: int = 0

    def answer(self, body: dict[str, Any]) -> bytes:
        """Record a request and return the response to it; after very many a wrong key ends what
        would go on for ever.
        """
        self.requests.append(body)
        self.times.append(self.clock.now)
        if len(self.requests) > MAX_REQUESTS:
            return fs.error(401, f"more than {MAX_REQUESTS} requests")
        return response(self._next_reply(body), body, ANSWERS[self.role])

    @property
    def waits(self) -> list[float]:
        return [after - before for before, after in zip(self.times, self.times[1:], strict=False)]

    def _next_reply(self, body: dict[str, Any]) -> QuirkReply:
        replies = self.quirk.replies
        for reply in replies:
            if (reply.when or reply.unless) and _holds(reply, body):
                return reply
        in_turn = [reply for reply in replies if not (reply.when or reply.unless)]
        reply = in_turn[min(self.turns, len(in_turn) - 1)]
        self.turns += 1
        return reply


def _holds(reply: QuirkReply, body: dict[str, Any]) -> bool:
    return (not reply.when or has_field(body, reply.when)) and not (
        reply.unless and has_field(body, reply.unless)
    )


def has_field(value: Any, path: str) -> bool:
    """Whether a request has a field: "a.b" or "a.b=text"; of a list, any item counts."""
    path, equals, wanted = path.partition("=")
    found = [value]
    for name in path.split("."):
        found = [item for each in found for item in (each if isinstance(each, list) else [each])]
        found = [each[name] for each in found if isinstance(each, dict) and name in each]
    return any(str(each) == wanted for each in found) if equals else bool(found)


def response(reply: QuirkReply, request: dict[str, Any], answer: str) -> bytes:
    """Return the bytes of a response."""
    streams = request.get("stream") is True
    content_type, body = "application/json", b""
    if reply.events is not None and streams:
        content_type, body = "text/event-stream", _in_text(reply.events, answer).encode()
    elif reply.chunks is not None and streams:
        content_type, body = "text/event-stream", _events(_filled(reply.chunks, answer))
    elif reply.raw is not None:
        body = _in_text(reply.raw, answer).encode()
    elif reply.body is not None:
        body = json.dumps(_filled(reply.body, answer)).encode()
    elif reply.text is None and reply.message is None and reply.choice is None:
        raise AssertionError(
            "the quirk has only a stream, and the request asks for a whole answer: leave out 'whole'"
        )
    elif streams and reply.status == 200:
        content_type, body = (
            "text/event-stream",
            _events(_cut(_choice(reply, answer), _usage(reply), request)),
        )
    else:
        body = json.dumps(
            _envelope("chat.completion", [_choice(reply, answer)]) | {"usage": _usage(reply)}
        ).encode()
    headers = {name: str(value) for name, value in reply.headers.items()}
    if reply.gzip:
        body, headers["Content-Encoding"] = gzip.compress(body), "gzip"
    raw = fs.http(body, reply.status, reply.content_type or content_type, **headers)
    return raw[: -max(len(body) // 2, 1)] if reply.cut else raw


def _choice(reply: QuirkReply, answer: str) -> dict[str, Any]:
    if reply.choice is not None:
        return {"index": 0} | _filled(reply.choice, answer)
    message = (
        _filled(reply.message, answer)
        if reply.message is not None
        else {"content": reply.text.replace("{answer}", answer)}
    )
    return {"index": 0, "message": {"role": "assistant"} | message, "finish_reason": reply.finish}


def _usage(reply: QuirkReply) -> dict[str, Any]:
    return COUNTS if reply.usage is None else reply.usage


def _envelope(kind: str, choices: list[Any]) -> dict[str, Any]:
    return {"id": "x", "object": kind, "created": 1, "model": "m", "choices": choices}


def _cut(
    choice: dict[str, Any], usage: dict[str, Any], request: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return the chunks of a stream in which a choice arrives in small parts."""
    message = choice.pop("message", None) or {}
    deltas = [{"role": message.pop("role", "assistant"), "content": ""}]
    for name, value in message.items():
        if isinstance(value, str):
            deltas += ({name: value[n : n + PIECE]} for n in range(0, len(value), PIECE))
        elif name == "tool_calls":
            deltas.append({name: [{"index": n} | each for n, each in enumerate(value)]})
        else:
            deltas += (
                ({name: [part]} for part in value) if isinstance(value, list) else [{name: value}]
            )
    chunks = [
        _envelope("chat.completion.chunk", [{"index": 0, "delta": each, "finish_reason": None}])
        for each in deltas
    ]
    chunks.append(_envelope("chat.completion.chunk", [{**choice, "delta": {}}]))
    if (request.get("stream_options") or {}).get("include_usage"):
        chunks.append(_envelope("chat.completion.chunk", []) | {"usage": usage})
    return chunks


def _events(chunks: list[Any]) -> bytes:
    return (
        b"".join(b"data: %b\n\n" % json.dumps(each).encode() for each in chunks)
        + b"data: [DONE]\n\n"
    )


def _filled(value: Any, answer: str) -> Any:
    """Return a value with the answer in place of "{answer}" in all its texts."""
    if isinstance(value, str):
        return value.replace("{answer}", answer)
    if isinstance(value, list):
        return [_filled(each, answer) for each in value]
    return (
        {name: _filled(each, answer) for name, each in value.items()}
        if isinstance(value, dict)
        else value
    )


def _in_text(text: str, answer: str) -> str:
    """Return JSON or events as text with the answer, escaped as within a JSON text, in place of
    "{answer}".
    """
    return text.replace("{answer}", json.dumps(answer)[1:-1])
