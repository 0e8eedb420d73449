"""One request by three IDs, from the access log over the trace to the row: the gateway's own, that
of the trace of OpenTelemetry, and what the client calls it.
"""

import io
import json
import logging
import shutil
import sqlite3
from contextlib import closing, redirect_stdout
from pathlib import Path

import pytest
from fault_server import error, good, http

from redraft.cli import main
from redraft.errors import StoreError
from redraft.gateway.access_log import access_log
from redraft.gateway.config import Retention
from redraft.gateway.keys import KeyRing
from redraft.gateway.request_store import RequestEnd, RequestStore, find_stored_requests
from redraft.gateway.request_table import (
    MAX_REQUEST_ID,
    MIGRATIONS,
    SCHEMA,
    clean_request_id,
    find_requests,
)
from telemetry.conftest import memory  # noqa: F401  (a fixture)

from .running import PROMPT, config_for, http_client, running, wait_until_recorded

TRACE = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE}-b7ad6b7169203331-01"
GOLDEN = Path(__file__).parents[1] / "golden/release-0.2/gateway/requests.db"
CHAT = {"messages": PROMPT, "max_tokens": 9}
REQUESTS = {
    "refine": ("/chat/completions", {"model": "refine/fast", **CHAT}, 200),
    "pass": ("/chat/completions", {"model": "pass/tiny", **CHAT}, 200),
    "embeddings": ("/embeddings", {"model": "pass/tiny", "input": "a"}, 200),
    "stream": ("/chat/completions", {"model": "refine/fast", "stream": True, **CHAT}, 200),
    "unknown model": ("/chat/completions", {"model": "pass/none", **CHAT}, 404),
    "no JSON": ("/chat/completions", None, 400),
}


@pytest.fixture
def lines(monkeypatch):
    """The lines of the access log, as data."""
    found = []
    handler = logging.Handler()
    handler.emit = lambda record: found.append(json.loads(record.getMessage()))
    access_log.addHandler(handler)
    monkeypatch.setattr(access_log, "propagate", False)
    monkeypatch.setattr(access_log, "level", logging.INFO)
    access_log.manager._clear_cache()
    yield found
    access_log.removeHandler(handler)
    access_log.manager._clear_cache()


async def ask(tmp_path, faults, *requests):
    """Send requests, each a path, a body and headers, and return the replies."""
    config = config_for(
        tmp_path, f"{faults.url}#tiny", graders=["words:1-9"], retention=Retention("full")
    )
    async with running(config) as (url, gateway), http_client(url) as client:
        replies = []
        for path, body, headers in requests:
            content = b"{" if body is None else json.dumps(body).encode()
            replies.append(await client.post(path, content=content, headers=headers))
        await wait_until_recorded(gateway)
    return replies


def shown(tmp_path, id, *options):
    """What `redraft show` writes of an ID."""
    with redirect_stdout(io.StringIO()) as out:
        assert main(["show", id, "--folder", str(tmp_path), *options]) == 0
    return out.getvalue()


@pytest.mark.parametrize("name", REQUESTS)
async def test_a_line_has_all_three(faults, tmp_path, lines, name):
    """Also the line of a request that is refused. Without OpenTelemetry the trace is the
    client's.
    """
    path, body, status = REQUESTS[name]
    embedded = {"data": [], "usage": {"prompt_tokens": 1, "total_tokens": 1}}
    faults.says(http(embedded) if path == "/embeddings" else good("a fine answer"))
    headers = {"x-request-id": "order-7", "traceparent": TRACEPARENT}
    [reply] = await ask(tmp_path, faults, (path, body, headers))
    assert reply.status_code == status
    [line] = lines
    own = reply.headers.get("x-redraft-trace-id", line["trace_id"])
    assert (line["trace_id"], line["otel_trace_id"], line["client_request_id"]) == (
        own,
        TRACE,
        "order-7",
    )
    if status == 200:
        ids = (own, TRACE, "order-7")
        found = [json.loads(shown(tmp_path, id, "--json"))["request"] for id in ids]
        assert [each["trace_id"] for each in found] == [own] * 3
        assert (found[0]["otel_trace_id"], found[0]["client_request_id"]) == (TRACE, "order-7")
    for request in faults.requests:
        assert {"traceparent", "x-request-id"}.isdisjoint(request.headers)


async def test_the_trace_is_that_of_the_span(faults, tmp_path, lines, memory):  # noqa: F811
    """With OpenTelemetry the line names the trace that the backend has, of a client that continues
    its own and of one that does not.
    """
    faults.says(good("a fine answer"))
    path, body, _ = REQUESTS["pass"]
    await ask(tmp_path, faults, (path, body, {"traceparent": TRACEPARENT}), (path, body, {}))
    spans = [f"{span.context.trace_id:032x}" for span in memory.named("POST")]
    assert [line["otel_trace_id"] for line in lines] == spans
    assert spans[0] == TRACE != spans[1]


@pytest.mark.parametrize(
    "traceparent",
    ["", "garbage", TRACEPARENT.upper(), f"ff-{TRACE}-b7ad6b7169203331-01"]
    + [f"00-{'0' * 32}-b7ad6b7169203331-01", TRACEPARENT + "\n", "0" * 60_000],
    ids=repr,
)
async def test_a_traceparent_that_is_none_is_unknown(faults, tmp_path, lines, traceparent):
    """It is null, and the request is answered."""
    faults.says(good("a fine answer"))
    path, body, _ = REQUESTS["pass"]
    headers = {"traceparent": traceparent.encode().strip()}
    [reply] = await ask(tmp_path, faults, (path, body, headers))
    expected = TRACE if traceparent.endswith("\n") else None
    assert (reply.status_code, lines[0]["otel_trace_id"]) == (200, expected)


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("order-7", "order-7"),
        ("Root=1-67891233-abcdef012345678912345678", "Root=1-67891233-abcdef012345678912345678"),
        ("a#1/b:c.d@e+f==", "a#1/b:c.d@e+f=="),
        (" a b\t", "ab"),
        ("\x1b[2Jred\x9b", "[2Jred"),
        ("\u202eabc\u2028", "abc"),
        ("é\xa0", None),
        ("", None),
        ("x" * 100_000, "x" * MAX_REQUEST_ID),
        ("\xff" * 100_000 + "x", None),
    ],
    ids=range(10),
)
def test_what_a_client_calls_its_request_is_cleaned(sent, kept):
    """Only visible ASCII is kept, and only so much; `redraft show` cleans what it looks for in the
    same way.
    """
    assert clean_request_id(sent) == kept


async def test_a_client_id_need_not_be_unique(faults, tmp_path, lines):
    """Several requests of several keys are listed, the latest first, with their keys; a text that
    is another request's own ID finds that one alone.
    """
    with KeyRing(tmp_path) as ring:
        keys = {name: ring.add(name)[1] for name in ("anna", "ben")}
    faults.says(good("a fine answer"), error(500), good("a fine answer"))
    path, body, _ = REQUESTS["pass"]
    asked = [
        (path, body, {"x-api-key": keys[name], "x-request-id": "order-7"})
        for name in ("anna", "anna", "ben")
    ]
    replies = await ask(tmp_path, faults, *asked)
    ids = [reply.headers["x-redraft-trace-id"] for reply in replies]
    [thief] = await ask(
        tmp_path, faults, (path, body, {"x-api-key": keys["ben"], "x-request-id": ids[0]})
    )
    table = shown(tmp_path, "order-7").splitlines()
    assert [line.split()[0] for line in table[1:]] == ids[::-1]
    assert ["anna" in line for line in table[1:]] == [False, True, True]
    listed = json.loads(shown(tmp_path, "order-7", "--json"))["requests"]
    assert [each["key_name"] for each in listed] == ["ben", "anna", "anna"]
    assert [each["status"] for each in listed] == [200, 502, 200]
    assert json.loads(shown(tmp_path, ids[0], "--json"))["request"]["key_name"] == "anna"
    assert thief.headers["x-redraft-trace-id"] in shown(
        tmp_path, thief.headers["x-redraft-trace-id"]
    )


class Anyone:
    id, name = "k1", "alice"


def test_many_requests_of_one_client_id(tmp_path):
    """The latest hundred are found, through an index."""
    store = RequestStore(tmp_path)
    for n in range(150):
        recorder = store.begin(
            f"t{n}", Anyone, "pass/m", "chat", Retention(), client_request_id="same"
        )
        recorder.finish(RequestEnd(200))
    store.close()
    found = [each.facts.trace_id for each in find_stored_requests(tmp_path, "same")]
    assert found == [f"t{n}" for n in range(149, 49, -1)]
    with closing(sqlite3.connect(tmp_path / "requests.db")) as connection:
        where = "trace_id = ?1 OR otel_trace_id = ?1 OR client_request_id = ?1"
        plan = connection.execute(f"EXPLAIN QUERY PLAN SELECT * FROM requests WHERE {where}", "x")
        assert not any("SCAN" in step for *_, step in plan)


@pytest.mark.parametrize("schema", range(1, SCHEMA))
def test_a_table_of_an_earlier_release(tmp_path, schema):
    """It is read as it is, and continued by the next gateway, with what it has."""
    path = Path(shutil.copy(GOLDEN, tmp_path))
    path.chmod(0o600)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("".join(MIGRATIONS[: schema - 1]))
        connection.execute(f"PRAGMA user_version = {schema}")
    before = find_requests(path, "request-0", 1)
    assert (before[0].status, before[0].otel_trace_id) == (200, None)
    assert find_requests(path, "same", 1) == []
    store = RequestStore(tmp_path)
    store.begin(
        "new", Anyone, "pass/m", "chat", Retention(), client_request_id="same", otel_trace_id=TRACE
    ).finish(RequestEnd(502, "upstream_error", "ModelError"))
    store.close()
    assert find_requests(path, "new", 1)[0].cause == "ModelError"
    assert [find_requests(path, id, 1)[0].trace_id for id in ("same", TRACE)] == ["new"] * 2
    assert find_requests(path, "request-0", 1) == before
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA,)
        columns = [row[1] for row in connection.execute("PRAGMA table_info(requests)")]
    RequestStore(tmp_path / "new").close()
    with closing(sqlite3.connect(tmp_path / "new" / "requests.db")) as connection:
        assert [row[1] for row in connection.execute("PRAGMA table_info(requests)")] == columns


def test_a_table_of_a_later_release_is_refused(tmp_path):
    """It stays as it is."""
    RequestStore(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / "requests.db")) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    with pytest.raises(StoreError, match="not a table of requests that this release reads"):
        RequestStore(tmp_path)
