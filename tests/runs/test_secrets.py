"""A key is in no byte of what a run leaves behind: journal, logs, outputs, errors."""

import sys

import pytest

from .killing import batch, ending, run_here, start, until, write_rows

KEY = "sk-canary-5f2d9c81e7a6"


@pytest.fixture
def rows(tmp_path):
    path = write_rows(tmp_path / "rows.jsonl", 30)
    path.write_text(path.read_text() + "no row at all\n")
    return path


def keyed(server):
    """The model's name with the key in it."""
    return server.model.replace("http://", f"http://:{KEY}@")


def everywhere(folder, *ended):
    """All that was written, by file name."""
    said = {f"{i} {name}": getattr(e, name).encode() for i, e in enumerate(ended) for name in ("out", "err")}
    return said | {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def assert_nowhere(found):
    assert not [name for name, content in found.items() if KEY.encode() in content or KEY[3:].encode() in content]


def test_a_key_from_the_environment(tmp_path, rows, serve):
    """The key of OPENAI_API_KEY, in a run that goes well."""
    server = serve("--latency", 0.01)
    env = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": f"{server.url}/v1", "REDRAFT_MODEL": "openai:m"}
    ended = run_here(batch(rows, tmp_path / "out.jsonl", None), **env)
    assert ended.code == 3, ended.err
    found = everywhere(tmp_path, ended)
    assert {"out.jsonl", "out.jsonl.journal", "out.jsonl.errors.jsonl"} <= found.keys()
    assert_nowhere(found)


def test_a_key_in_the_url_of_a_run_that_is_killed(tmp_path, rows, serve):
    """Also not in what kill -9 leaves lying about, nor in what is said of the run afterwards."""
    server = serve("--latency", 0.05)
    process = start(batch(rows, tmp_path / "out.jsonl", keyed(server), "--debug"))
    until(lambda: server.lines() > 60, process)
    process.kill()
    killed = ending(process)
    assert (tmp_path / "out.jsonl.journal-wal").exists()
    shown = [
        run_here([sys.executable, "-m", "redraft", "runs", *args, "--journal", str(tmp_path / "out.jsonl.journal")])
        for args in (["list", "--json"], ["show", "out-jsonl"])
    ]
    assert all(each.code == 0 for each in shown), shown
    assert_nowhere(everywhere(tmp_path, killed, *shown))


@pytest.mark.parametrize("status, code", [(400, 3), (401, 1), (403, 1), (404, 1)])
def test_a_server_that_repeats_the_key_in_its_errors(tmp_path, rows, serve, status, code):
    """What a server says is kept for people to read, without the key in it."""
    server = serve("--refuse", status)
    ended = run_here(batch(rows, tmp_path / "out.jsonl", keyed(server), "--json"))
    assert ended.code == code, ended.err
    assert "you came with" in ended.err + ended.out + (tmp_path / "out.jsonl").read_text()
    assert_nowhere(everywhere(tmp_path, ended))


@pytest.mark.parametrize("status, code", [(400, 3), (401, 1)])
def test_a_key_in_the_query_of_a_url(tmp_path, rows, serve, status, code):
    """As gateways and Azure want it: sent with every request, and kept nowhere."""
    server = serve("--refuse", status)
    url, _, name = server.model.partition("#")
    ended = run_here(batch(rows, tmp_path / "out.jsonl", f"{url}?code={KEY}#{name}", "--json"))
    assert ended.code == code, ended.err
    assert_nowhere(everywhere(tmp_path, ended))


def test_a_trace_keeps_the_address_without_its_secrets(tmp_path, serve):
    """And so does everything that is said of the run."""
    server = serve()
    url, _, name = server.model.partition("#")
    secret = f"{url.replace('://', f'://u:{KEY}@')}?sig={KEY}#{name}"
    trace = tmp_path / "run.json"
    command = [sys.executable, "-m", "redraft", "run", "Say hello."]
    first = run_here([*command, "--model", secret, "--judge", secret, "--trace", str(trace), "--json", "--max-iterations", "0"])
    assert first.code == 0, first.err
    assert url.split("?")[0] in trace.read_text()
    assert_nowhere(everywhere(tmp_path, first))


@pytest.mark.parametrize(
    "model", ["http://127.0.0.1:9/v1?key={key}", "ollama:http://u:{key}@127.0.0.1:9/v1#m", "http://127.0.0.1:9#m?key={key}"]
)
def test_what_is_looked_for_shows_no_key(tmp_path, model):
    """`redraft models` shows where, and not with what."""
    for name in ("REDRAFT_MODEL", "OPENAI_BASE_URL"):
        for more in ([], ["--json"]):
            ended = run_here([sys.executable, "-m", "redraft", "models", *more], **{name: model.format(key=KEY)})
            assert_nowhere(everywhere(tmp_path, ended))
