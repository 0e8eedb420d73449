"""`redraft serve` as a process: how it starts, reads its configuration again, and ends."""

import asyncio
import contextlib
import json
import os
import platform
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest
from chat_server import ChatServer, writer_and_judge

from in_process import run_in_process
from redraft.gateway import server
from redraft.gateway.config import default_config
from redraft.gateway.keys import KeyRing

BODY = {"model": "refine/default", "messages": [{"role": "user", "content": "Say it well."}]}


@pytest.fixture
def upstream():
    server = ChatServer(writer_and_judge(["only"], [5]))
    yield server
    server.close()


@contextlib.contextmanager
def serve(*args, folder, start=True):
    """Run the command; yields the process, whose `url` is the address of the gateway if it
    starts.
    """
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "redraft",
            "serve",
            "--log-format",
            "json",
            "--port",
            "0",
            "--folder",
            str(folder),
            *args,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        if start:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            process.started = json.loads(line)
            process.url = process.started["url"]
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def ask(process, **changes):
    return httpx2.post(f"{process.url}/chat/completions", json={**BODY, **changes}, timeout=60)


def write_config(path, upstream, **profiles):
    """Write a configuration with one model and these profiles."""
    url, _, name = upstream.model.partition("#")
    lines = [f'[models.tiny]\nurl = "{url}"\nmodel = "{name}"']
    lines += [f'[profiles.{profile}]\nmodel = "tiny"\n{text}' for profile, text in profiles.items()]
    path.write_text("\n".join(lines))
    return path


def test_one_model(upstream, tmp_path):
    """With --model alone there is refine/default and pass/default; each request is a line of the
    access log without its text.
    """
    with serve("--model", upstream.model, folder=tmp_path) as process:
        assert (
            process.started["models"] == ["refine/default", "pass/default"]
            and process.started["needs_key"] is False
        )
        assert ask(process).json()["choices"][0]["message"]["content"] == "only"
        assert ask(process, model="pass/default").status_code == 200
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)
        assert process.returncode == 0
    lines = [json.loads(line) for line in log.splitlines()]
    assert [line["model"] for line in lines if "trace_id" in line] == [
        "refine/default",
        "pass/default",
    ]
    assert "Say it well" not in log and "only" not in log


@pytest.mark.slow
def test_a_log_that_nobody_reads(upstream, tmp_path):
    """Requests go on, and a counter says that lines were lost."""
    with serve("--model", upstream.model, folder=tmp_path) as process:
        process.stderr.close()
        assert ask(process).status_code == 200
        lost, metrics = "access_log_lost_lines_total 1.0", process.url.replace("/v1", "/metrics")
        deadline = time.monotonic() + 60
        while lost not in httpx2.get(metrics, timeout=60).text:
            assert time.monotonic() < deadline


@pytest.mark.slow
def test_found_model(upstream, tmp_path, monkeypatch):
    """Without --model it serves the model that is found."""
    monkeypatch.setenv("REDRAFT_MODEL", upstream.model)
    with serve(folder=tmp_path) as process:
        assert ask(process).status_code == 200


def test_sigterm_drains(upstream, tmp_path):
    """After SIGTERM the request at work is answered, others are refused, readiness is 503, and the
    exit code is 0.
    """
    arrived = upstream.hold(0)
    with serve("--model", upstream.model, folder=tmp_path) as process:
        answers = []

        async def run():
            async with httpx2.AsyncClient(base_url=process.url, timeout=60) as client:
                request = asyncio.create_task(client.post("/chat/completions", json=BODY))
                await asyncio.to_thread(arrived.wait, 60)
                process.send_signal(signal.SIGTERM)
                async with asyncio.timeout(60):
                    while (
                        await client.get(process.url.replace("/v1", "/readyz"))
                    ).status_code != 503:
                        pass
                answers.append((await client.post("/chat/completions", json=BODY)).status_code)
                upstream.release()
                answers.append((await request).status_code)

        asyncio.run(run())
        assert answers == [503, 200]
        assert process.wait(60) == 0
    with contextlib.closing(sqlite3.connect(tmp_path / "requests.db")) as database:
        assert database.execute("SELECT outcome FROM requests").fetchall() == [("answered",)]


@pytest.mark.slow
def test_drain_ends(upstream, tmp_path):
    """A request that does not end within `drain-seconds` is cut off, and has an outcome."""
    arrived = upstream.hold(0)
    config = write_config(tmp_path / "gateway.toml", upstream, default="")
    config.write_text("[gateway]\ndrain-seconds = 0.3\n" + config.read_text())
    with serve("--config", str(config), folder=tmp_path) as process:
        with socket.create_connection(
            ("127.0.0.1", int(process.url.rpartition(":")[2].partition("/")[0]))
        ) as client:
            raw = json.dumps(BODY).encode()
            client.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n"
                % len(raw)
                + raw
            )
            assert arrived.wait(60)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
            assert b" 503 " in client.recv(100)
    with contextlib.closing(sqlite3.connect(tmp_path / "requests.db")) as database:
        assert database.execute("SELECT outcome, error FROM requests").fetchall() == [
            ("failed", "shutting_down")
        ]


@pytest.mark.slow
def test_sighup_reads_the_configuration_again(upstream, tmp_path):
    """SIGHUP makes a new profile available; a file with a mistake changes nothing, and the message
    says what is wrong.
    """
    config = write_config(tmp_path / "gateway.toml", upstream, default="")
    with serve("--config", str(config), "--no-access-log", folder=tmp_path) as process:
        assert ask(process, model="refine/careful").status_code == 404
        assert (
            "refine/default: the default judge grades"
            in json.loads(process.stderr.readline())["message"]
        )
        write_config(config, upstream, default="", careful="max-iterations = 5")
        process.send_signal(signal.SIGHUP)
        assert "read again" in json.loads(process.stderr.readline())["message"]
        assert ask(process, model="refine/careful").status_code == 200
        write_config(config, upstream, default="max-iteration = 5")
        process.send_signal(signal.SIGHUP)
        message = json.loads(process.stderr.readline())
        assert message["event"] == "warning" and "max-iteration" in message["message"]
        assert ask(process, model="refine/careful").status_code == 200


@pytest.mark.slow
def test_one_process_for_a_folder(upstream, tmp_path):
    """A second process with the same folder is refused and names the reason."""
    with (
        serve("--model", upstream.model, folder=tmp_path),
        serve("--model", upstream.model, folder=tmp_path, start=False) as second,
    ):
        output, error = second.communicate(timeout=60)
        assert second.returncode == 1 and not output
        assert str(tmp_path) in error and "held by process" in error


def test_a_public_address_without_a_key_is_refused(upstream, tmp_path):
    done = run_in_process(
        ["serve", "--model", upstream.model, "--host", "0.0.0.0", "--folder", str(tmp_path)]
    )
    assert done.returncode == 2 and "--insecure" in done.err and "redraft keys add" in done.err


@pytest.mark.slow
def test_a_public_address_with_a_key_or_for_everyone(upstream, tmp_path):
    """On all addresses it starts with a key, or with --insecure."""
    public = ("--model", upstream.model, "--host", "0.0.0.0")
    with serve(*public, "--insecure", folder=tmp_path) as process:
        assert ask(process).status_code == 200
    with KeyRing(tmp_path) as ring:
        _, secret = ring.add("app")
    with serve(*public, folder=tmp_path) as process:
        assert ask(process).status_code == 401
        headers = {"authorization": f"Bearer {secret}"}
        assert (
            httpx2.post(
                f"{process.url}/chat/completions", json=BODY, headers=headers, timeout=60
            ).status_code
            == 200
        )


MISTAKES = {
    "a port in use": (lambda port: ["--port", str(port)], 2, "--port chooses another"),
    "an unknown model": (lambda port: ["--model", "gpt-4o"], 2, "model"),
    "a model without its key": (
        lambda port: ["--model", "anthropic:claude"],
        2,
        "set the environment variable ANTHROPIC_API_KEY to the key of",
    ),
    "a model with a configuration": (
        lambda port: ["--config", __file__],
        2,
        "--model cannot be combined",
    ),
}


@pytest.mark.slow(but_each=4)
@pytest.mark.parametrize(("args", "code", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes(upstream, tmp_path, args, code, message):
    """A wrong option is one clear line and exit code 2."""
    with socket.socket() as used:
        used.bind(("127.0.0.1", 0))
        used.listen()
        given = ["--model", upstream.model, "--port", "0", *args(used.getsockname()[1])]
        done = run_in_process(["serve", *given, "--folder", str(tmp_path)])
    assert done.returncode == code and message in done.err


@pytest.mark.slow
def test_long_headers_are_refused(upstream, tmp_path):
    """A request whose headers never end does not fill the memory."""
    with serve("--model", upstream.model, folder=tmp_path) as process:
        with socket.create_connection(
            ("127.0.0.1", int(process.url.rpartition(":")[2].partition("/")[0]))
        ) as client:
            client.settimeout(20)
            client.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-long: ")
            with contextlib.suppress(OSError):
                for _ in range(64):
                    client.sendall(b"a" * 65536)
            with contextlib.suppress(ConnectionResetError):
                assert b" 400 " in client.recv(100)
        assert httpx2.get(process.url.replace("/v1", "/healthz")).status_code == 200


FREEING = """
import json, re, sys, threading
from pathlib import Path
from redraft.gateway.server import return_free_memory

def resident():  # from the tables of pages: the counters that are quicker to read differ from them by megabytes on many cores
    found = dict(re.findall(r"^(Anonymous|Swap):\\s+(\\d+)", Path("/proc/self/smaps_rollup").read_text(), re.M))
    return (int(found["Anonymous"]) + int(found["Swap"])) * 1024

def use():
    kept = []
    for number in range(count):
        buffers = [bytes([number % 256]) * size for _ in range(4)]
        kept.append(buffers[3])
        del buffers
    found["kept"] = sum(each == bytes([number % 256]) * size for number, each in enumerate(kept))
    del kept[:-2]
    found["used"] = resident() - start
    return_free_memory()
    found["left"] = resident() - start
    found["kept"] += sum(each == bytes([(count - 2 + number) % 256]) * size for number, each in enumerate(kept))

size, count, in_thread = json.loads(sys.argv[1])
bytes(2**25)  # after which glibc takes buffers up to this size from its heaps
return_free_memory()
start, found = resident(), {}
if in_thread:
    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
else:
    use()
print(json.dumps(found))
"""
MIB = 2**20
# variables that replace the allocator, or tune it
ALLOCATORS = ("LD_PRELOAD", "MALLOC_", "GLIBC_TUNABLES", "PYTHONMALLOC")


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="needs glibc, which keeps free memory"
)
@pytest.mark.skipif(
    not Path("/proc/self/smaps_rollup").exists(),
    reason="needs Linux, which says what memory is used",
)
@pytest.mark.slow
@pytest.mark.parametrize("in_thread", [False, True], ids=["main thread", "thread"])
@pytest.mark.parametrize("size", [2000, 20_000, 200_000, 2_000_000, 8_000_000])
def test_free_memory_is_given_back(size, in_thread):
    """Buffers of any size, freed between others that are in use, in the heap of the program and in
    that of a thread.
    """
    count = 64 * MIB // size
    command = [sys.executable, "-c", FREEING, json.dumps([size, count, in_thread])]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(ALLOCATORS)
    }
    found = json.loads(
        subprocess.run(
            command, stdout=subprocess.PIPE, check=True, text=True, env=environment
        ).stdout
    )
    assert found["used"] > 40 * MIB
    assert found["left"] < 2 * size + 4 * MIB, found
    assert found["kept"] == count + 2


async def test_a_server_keeps_giving_memory_back(upstream, tmp_path, monkeypatch):
    """From its start to its end, and not once it has ended."""
    given, is_enough = [], asyncio.Event()

    def give():
        given.append(1)
        if len(given) == 3:
            loop.call_soon_threadsafe(is_enough.set)

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(server, "return_free_memory", give)
    monkeypatch.setattr(server, "MEMORY_SECONDS", 0.01)
    config = replace(default_config(upstream.model, {}), folder=tmp_path, port=0)
    gateway = server.GatewayServer(config, {})
    running = asyncio.create_task(gateway.serve())
    async with asyncio.timeout(60):
        await is_enough.wait()
        gateway.stop()
        await running
    assert all(task.cancelling() for task in asyncio.all_tasks() - {asyncio.current_task()})
