"""Requests that real clients sent, posted again: each gets a whole answer in its own protocol,
through `pass/` and `refine/`, before models of both kinds.

`python clients/record.py` writes the files in bodies/.
"""

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from .library_model import DRAFTS, FINALS, ClientsModel
from .scripted_model import CHAT, MESSAGES, RESPONSES
from .stand import ROUTES, stand
from .stream_readers import reply_of

FOLDER = "/home/ann/project"
REQUESTS = {
    file.stem: json.loads(file.read_text())
    for file in sorted((Path(__file__).parent / "bodies").glob("*.json"))
}
THREADS = [name for name, request in REQUESTS.items() if "thread" in request["body"]]
COUNTS = [name for name, request in REQUESTS.items() if request["path"].endswith("/count_tokens")]
TALKS = [name for name in REQUESTS if name not in (*THREADS, *COUNTS)]
PROTOCOLS = {
    "/v1/chat/completions": CHAT,
    "/v1/responses": RESPONSES,
    "/v1/messages": MESSAGES,
}
PRIVATE = ("installation_id", "device_id", "session_id", "user_id")
PRIVATE_HEADERS = ("x-codex", "x-claude", "session-id", "x-session")


@pytest.fixture(scope="module")
def place():
    with stand() as running:
        yield running


def post(place, request, model):
    """Return the status, the type and the text of the reply to a recorded request."""
    place.model.reset(ClientsModel(FOLDER))
    body = json.dumps({**request["body"], "model": model}).encode()
    headers = {**request["headers"], "Content-Type": "application/json"}
    sent = urllib.request.Request(place.gateway.root + request["path"], body, headers)
    try:
        with urllib.request.urlopen(sent, timeout=60) as reply:
            return reply.status, reply.headers["Content-Type"], reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read().decode()


def refined(text):
    """Return the better answer that follows a draft."""
    return dict(zip(DRAFTS, FINALS)).get(text, text)


@pytest.mark.slow(but_each=8)
@pytest.mark.parametrize("model", ROUTES.values())
@pytest.mark.parametrize("name", TALKS)
def test_a_recorded_request_is_answered(place, name, model):
    """The reply is well-formed, has the calls and the text that the model gave, refined where that
    was asked for; and the model of another vendor sees nothing of the client's metadata.
    """
    request = REQUESTS[name]
    protocol = PROTOCOLS[request["path"]]
    status, kind, text = post(place, request, model)
    assert status == 200, text
    assert kind.startswith(
        "text/event-stream" if request["body"].get("stream") else "application/json"
    )
    reply = reply_of(protocol, kind, text)
    said = ClientsModel(FOLDER)(protocol.read(request["body"]))
    assert [(call.name, call.arguments) for call in reply.calls] == [
        (call.name, call.arguments) for call in said.calls
    ]
    assert reply.text == (refined(said.text) if model.startswith("refine/") else said.text)
    if protocol is MESSAGES and model.endswith("claude"):
        assert reply.thinking == said.thinking
    assert place.model.refused == []
    check_nothing_leaks(request, place.model.received)


def check_nothing_leaks(request, received):
    """A server that speaks another protocol gets no metadata of the client, and no server gets the
    client's own headers.
    """
    for each in received:
        names = [name.lower() for name in each.headers]
        assert not [name for name in names if name.startswith(PRIVATE_HEADERS)]
        if each.path != request["path"]:
            rest = {k: v for k, v in each.body.items() if k not in ("messages", "tools", "system")}
            assert not [word for word in PRIVATE if word in json.dumps(rest)]


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("model", [m for m in ROUTES.values() if m.startswith("pass/")])
@pytest.mark.parametrize("name", COUNTS)
def test_tokens_are_counted(place, name, model):
    """A request to count tokens gets a number."""
    status, _, text = post(place, REQUESTS[name], model)
    assert status == 200, text
    assert json.loads(text)["input_tokens"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("model", ROUTES.values())
@pytest.mark.parametrize("name", THREADS)
def test_a_thread_is_refused_as_the_sdk_expects(place, name, model):
    """The SDK of Anthropic asks for a thread by itself. It sends everything again, without one, if
    it is told in this form that there are none.
    """
    status, _, text = post(place, REQUESTS[name], model)
    assert status == 400, text
    details = json.loads(text)["error"]["details"]
    assert details["error_code"] == "thread_unsupported_request"
