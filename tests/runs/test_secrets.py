"""No file of a run contains an API key: journal, logs, outputs, errors."""

import sys

import pytest

from .killing import batch, ending, run_here, start, until, write_rows

KEY = "sk-canary-5f2d9c81e7a6"


@pytest.fixture
def rows(tmp_path):
    path = write_rows(tmp_path / "rows.jsonl", 30)
    path.write_text(path.read_text() + "no row at all\n")
    return path


def model_with_key(server):
    """The model's name with the key in it."""
    return server.model.replace("http://", f"http://:{KEY}@")


def written_files(folder, *ended):
    """The content of all written files by name."""
    said = {
        f"{i} {name}": getattr(e, name).encode()
        for i, e in enumerate(ended)
        for name in ("out", "err")
    }
    return said | {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def assert_key_absent(found):
    assert not [
        name
        for name, content in found.items()
        if KEY.encode() in content or KEY[3:].encode() in content
    ]


@pytest.mark.slow
def test_a_key_from_the_environment_is_not_written(tmp_path, rows, serve):
    """OPENAI_API_KEY is in no file of a successful run."""
    server = serve("--latency", 0.01)
    env = {
        "OPENAI_API_KEY": KEY,
        "OPENAI_BASE_URL": f"{server.url}/v1",
        "REDRAFT_MODEL": "openai:m",
    }
    ended = run_here(batch(rows, tmp_path / "out.jsonl", None), **env)
    assert ended.code == 3, ended.err
    found = written_files(tmp_path, ended)
    assert {"out.jsonl", "out.jsonl.journal", "out.jsonl.errors.jsonl"} <= found.keys()
    assert_key_absent(found)


@pytest.mark.parametrize(
    "kills", [(60,), pytest.param((30, 90), marks=pytest.mark.slow)], ids=["one", "two"]
)
def test_a_killed_run_leaves_no_key_of_a_url(tmp_path, rows, serve, kills):
    """No file left by kill -9 has it, nor any later message about the run; nor after a kill of the
    run that resumes it.
    """
    server, killed = serve("--latency", 0.05), []
    for number in kills:
        process = start(batch(rows, tmp_path / "out.jsonl", model_with_key(server), "--debug"))
        until(lambda: server.lines() > number, process)
        process.kill()
        killed.append(ending(process))
    assert (tmp_path / "out.jsonl.journal-wal").exists()
    shown = [
        run_here(
            [
                sys.executable,
                "-m",
                "redraft",
                "runs",
                *args,
                "--journal",
                str(tmp_path / "out.jsonl.journal"),
            ]
        )
        for args in (["list", "--json"], ["show", "out-jsonl"])
    ]
    assert all(each.code == 0 for each in shown), shown
    assert_key_absent(written_files(tmp_path, *killed, *shown))


@pytest.mark.slow(but_each=4)
@pytest.mark.parametrize("status, code", [(400, 3), (401, 1), (403, 1), (404, 1)])
def test_a_key_repeated_in_server_errors_is_redacted(tmp_path, rows, serve, status, code):
    """The server's message is saved without the key."""
    server = serve("--refuse", status)
    ended = run_here(batch(rows, tmp_path / "out.jsonl", model_with_key(server), "--json"))
    assert ended.code == code, ended.err
    assert "you came with" in ended.err + ended.out + (tmp_path / "out.jsonl").read_text()
    assert_key_absent(written_files(tmp_path, ended))


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("status, code", [(400, 3), (401, 1)])
def test_a_key_in_the_query_of_a_url_is_not_written(tmp_path, rows, serve, status, code):
    """Gateways and Azure take it there: it is sent with each request and saved nowhere."""
    server = serve("--refuse", status)
    url, _, name = server.model.partition("#")
    ended = run_here(batch(rows, tmp_path / "out.jsonl", f"{url}?code={KEY}#{name}", "--json"))
    assert ended.code == code, ended.err
    assert_key_absent(written_files(tmp_path, ended))


def test_a_trace_keeps_the_address_without_its_secrets(tmp_path, serve):
    """Messages about the run have no secrets either."""
    server = serve()
    url, _, name = server.model.partition("#")
    secret = f"{url.replace('://', f'://u:{KEY}@')}?sig={KEY}#{name}"
    trace = tmp_path / "run.json"
    command = [sys.executable, "-m", "redraft", "run", "Say hello."]
    first = run_here(
        [
            *command,
            "--model",
            secret,
            "--judge",
            secret,
            "--trace",
            str(trace),
            "--json",
            "--max-iterations",
            "0",
        ]
    )
    assert first.code == 0, first.err
    assert url.split("?")[0] in trace.read_text()
    assert_key_absent(written_files(tmp_path, first))


@pytest.mark.parametrize(
    "model",
    [
        "http://127.0.0.1:9/v1?key={key}",
        "ollama:http://u:{key}@127.0.0.1:9/v1#m",
        "http://127.0.0.1:9#m?key={key}",
    ],
)
def test_models_shows_no_key(tmp_path, model):
    """`redraft models` shows the places without their keys."""
    for name in ("REDRAFT_MODEL", "OPENAI_BASE_URL"):
        for more in ([], ["--json"]):
            ended = run_here(
                [sys.executable, "-m", "redraft", "models", *more], **{name: model.format(key=KEY)}
            )
            assert "127.0.0.1" in ended.out + ended.err, ended
            assert_key_absent(written_files(tmp_path, ended))
