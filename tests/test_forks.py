"""A program that forks: the child inherits nothing of its parent that would hang it or that both
would use.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from textwrap import dedent
from threading import Thread

import pytest

from redraft import ScriptedModel, Task, refine, refine_sync
from redraft.base.jsontext import dumps_text
from redraft.errors import StoreError
from redraft.graders.judging.prompt import fresh_nonce
from redraft.loop.trace import Trace
from redraft.models import connect
from redraft.protocols import Request
from redraft.storage import Journal, JsonlStore, read_trace

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no os.fork"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]
HEADER = dumps_text(Trace(Task("q")).header())


def in_child(work, seconds=120):
    """Return the result of a function in a forked child, as JSON; an error's name and message; None
    where it hangs.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(seconds)
        try:
            said = work()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writer, json.dumps(said).encode())
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as answer:
        said = answer.read()
    os.waitpid(child, 0)
    return json.loads(said) if said else None


def test_processes_never_share_nonces():
    """A judge's data stand between delimiters that no one could have seen before."""
    fresh_nonce([])
    children = [in_child(lambda: [fresh_nonce([]) for _ in range(20)]) for _ in range(3)]
    drawn = [nonce for nonces in children for nonce in nonces] + [
        fresh_nonce([]) for _ in range(20)
    ]
    assert len(set(drawn)) == 80


def test_a_journal_works_only_in_the_process_that_opened_it(tmp_path):
    """A child is refused at once, waits for no thread of its parent, and releases no lock."""
    path = tmp_path / "a.journal"

    def error_of(use):
        try:
            use()
        except StoreError as error:
            return str(error)
        return "done"

    with Journal(path) as journal:
        journal.update_run("r", model="m")
        journal.begin_row("r", "1", 0, "k", {"task": "t"}, HEADER)
        uses = {
            "write": lambda: journal.begin_row("r", "2", 1, "k", {}, HEADER),
            "read": lambda: journal.run("r"),
            "flush": journal.flush,
            "wait": lambda: asyncio.run(journal.wait_for_commit()),
            "close": journal.close,
        }
        said = in_child(lambda: {name: error_of(use) for name, use in uses.items()})
        assert said.pop("close") == "done"
        assert set(said.values()) == {
            f"journal {str(path)!r} was opened by process {os.getpid()}; a forked process must open a journal of its own"
        }
        with pytest.raises(StoreError, match="held by"):
            Journal(path)
        journal.finish_row("r", "1", "done", {"best": "b"})
    with Journal(path) as journal:
        assert [note.status for note in journal.rows_by_id("r", ["1", "2"]).values()] == ["done"]


def test_an_output_is_written_once_by_the_process_that_opened_it(tmp_path):
    """The text buffered at the fork is in the file once, however the child ends, and the child does
    not remove the file.
    """
    code = """
        import os, sys
        from redraft.storage.secure_files import AtomicFile, draft_folder
        from pathlib import Path

        draft = AtomicFile("out.bin")
        draft.file.write(b"one ")
        with draft_folder(Path("several")) as folder:
            child = os.fork()
            if not child:
                try:
                    sys.exit("as any program may")
                finally:
                    draft.abort()
            os.waitpid(child, 0)
            assert folder.is_dir()
        draft.file.write(b"two")
        draft.commit()
        """
    subprocess.run([sys.executable, "-c", dedent(code)], cwd=tmp_path, timeout=60, check=True)
    assert (tmp_path / "out.bin").read_bytes() == b"one two"
    assert [file.name for file in tmp_path.iterdir()] == ["out.bin"]


def test_a_forked_child_does_not_keep_a_trace_locked(tmp_path):
    """The child may run on, and its writes to the parent's trace are refused."""
    trace = Trace(Task("q"))
    with JsonlStore(tmp_path / "t.jsonl") as store:
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            os.close(writer)
            os.read(reader, 1)
            os._exit(0)
        os.close(reader)
        assert "is not open in this process" in in_child(lambda: store.append(trace))
        store.append(trace)
    with JsonlStore(tmp_path / "t.jsonl", resume=True):
        pass
    os.close(writer)
    os.waitpid(child, 0)
    assert read_trace(tmp_path / "t.jsonl").task == Task("q")


def test_signals_to_a_child_do_not_reach_its_parent():
    """Ctrl-C in a child forked while its parent refines interrupts the child alone."""

    def interrupt():
        try:
            os.kill(os.getpid(), signal.SIGINT)
            signal.sigtimedwait([], 0.1)
        except KeyboardInterrupt:
            return ["interrupted", signal.set_wakeup_fd(-1)]
        return ["went on", signal.set_wakeup_fd(-1)]

    said = []

    async def grade(text):
        said.append(in_child(interrupt))
        return 1.0

    # an event loop that runs already: the work goes to a thread, and Ctrl-C is waited for here
    async def outer():
        return refine_sync("q", ScriptedModel(["a"]), graders=grade)

    assert refine_sync("q", ScriptedModel(["a"]), graders=grade).value == "a"
    loop = asyncio.new_event_loop()  # without a handler of its own, which asyncio.run has
    assert loop.run_until_complete(outer()).value == "a"
    loop.close()
    assert said == [["interrupted", -1]] * 2


@pytest.fixture
def server():
    """A model server, with the connections of each model's calls."""
    connections = {}

    class AnswerHandler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            connections.setdefault(asked["model"], set()).add(self.client_address[1])
            choice = {
                "index": 0,
                "message": {"role": "assistant", "content": asked["model"]},
                "finish_reason": "stop",
            }
            body = json.dumps(
                {"choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}
            ).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    running = ThreadingHTTPServer(("127.0.0.1", 0), AnswerHandler)
    running.daemon_threads = True
    Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{running.server_port}/v1", connections
    running.shutdown()
    running.server_close()


async def test_a_child_has_connections_of_its_own(server):
    """Forked with a connection open, it opens another, and its parent's remains usable."""
    url, connections = server

    def grade(text):
        said.append(in_child(lambda: refine_sync("q", f"{url}#child", graders=["words:1"]).value))
        return 0.5

    said = []
    result = await refine("q", f"{url}#parent", graders=grade, max_iterations=1)
    again = await refine("q", f"{url}#parent", graders=["words:1"])
    assert (result.value, again.value, set(said)) == ("parent", "parent", {"child"})
    assert connections["child"].isdisjoint(connections["parent"])


async def test_a_child_loads_a_local_model_of_its_own(gguf_file):
    """The threads of the parent's engine do not exist in the child."""
    pytest.importorskip("xllamacpp", reason="no xllamacpp")
    model = connect(f"local:{gguf_file}", context=512, threads=1)
    request = Request([{"role": "user", "content": "Hello"}], max_tokens=4, temperature=0.0)

    async def answer():
        return (await model.complete(request)).text

    before = await answer()
    child = await asyncio.to_thread(in_child, lambda: asyncio.run(answer()), 60)
    assert child == before == await answer()
    await model.aclose()


@pytest.mark.slow
def test_a_grader_under_the_command_line_may_end_processes_that_it_forked(tmp_path):
    """Signals that end the children of a pool reach neither the run nor its event loop."""
    (tmp_path / "pooled.py").write_text(
        dedent("""
        import multiprocessing

        def double(n):
            return 2 * n

        def grade(text):
            with multiprocessing.get_context("fork").Pool(2) as pool:  # terminates its processes at the end
                return sum(pool.map(double, [len(text) % 2, 0])) / 2
        """)
    )
    rows = [{"id": str(n), "prompt": "q", "response": "abc"} for n in range(40)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [
        sys.executable,
        "-m",
        "redraft",
        "batch",
        "in.jsonl",
        "-o",
        "out.jsonl",
        "--mode",
        "grade",
    ]
    command += ["--grader", "pooled.py:grade"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert [
        json.loads(line)["best_score"] for line in (tmp_path / "out.jsonl").read_text().splitlines()
    ] == [1.0] * 40


@pytest.mark.slow
def test_a_child_may_be_ended_as_soon_as_it_is_forked():
    """A signal that arrives before the child has reset its handlers is not lost, and does not reach
    the event loop of its parent.
    """
    code = """
        import asyncio, os, signal, time
        from threading import Thread
        from redraft.base.sync import reset_in_children

        exits, received = [], []

        def fork():
            for _ in range(100):
                child = os.fork()
                if not child:
                    time.sleep(60)
                    os._exit(0)
                os.kill(child, signal.SIGTERM)
                exits.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

        def reset():
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

        async def main():
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, received.append, "for a child")
            with reset_in_children(reset):
                await asyncio.gather(*[asyncio.to_thread(fork) for _ in range(4)])
                os.kill(os.getpid(), signal.SIGTERM)
                while not received:
                    await asyncio.sleep(0.01)
                assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())

        asyncio.run(main())
        print(set(exits), len(exits), len(received))
        """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", dedent(code)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "{-15} 400 1\n", done.stderr
