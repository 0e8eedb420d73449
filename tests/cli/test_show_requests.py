"""`redraft show ID`: a request that a gateway answered, whether its texts were kept or not."""

import asyncio
import json
import re
from dataclasses import dataclass

import pytest

from redraft import ScriptedModel, refine
from redraft.gateway.config import Retention
from redraft.gateway.request_store import RequestEnd, RequestStore
from redraft.usage import Usage

ID = "req-0f8fad5bd9cb469fa1654c7f1a2b3c4d"


@dataclass(frozen=True)
class Owner:
    id: str = "k1"
    name: str = "ali\x1b[2Jce"


async def answer(store, trace_id, level):
    recorder = store.begin(trace_id, Owner(), "refine/fast", "chat", Retention(level))
    await refine(
        "Say it",
        ScriptedModel(["The cat sat.", "The dog sat."]),
        {"The cat sat.": 0.4, "The dog sat.": 1.0}.get,
        store=recorder,
    )
    recorder.finish(
        RequestEnd(200, usage=Usage(calls=4, input_tokens=1200, output_tokens=None, cost=None))
    )


@pytest.fixture
def folder(tmp_path):
    """The folder of a gateway that answered two requests and has one in progress."""
    store = RequestStore(tmp_path / "home" / "gateway")
    asyncio.run(answer(store, ID, "full"))
    asyncio.run(answer(store, "less", "metadata"))
    store.begin("now", Owner(), "pass/m", "messages", Retention("metadata"))
    asyncio.run(store.wait_for_commit())
    yield store.folder
    store.close()


def test_full_request(redraft, folder):
    """The facts, then the trace as of a file, beside the running gateway."""
    done = redraft("show", ID, "--folder", folder)
    assert done.returncode == 0, done.err
    assert f"request {ID}" in done.out and "refine/fast" in done.out and "answered 200" in done.out
    assert "4 calls, 1,200 tokens in, unknown tokens out" in done.out
    assert "The [-cat-]{+dog+} sat." in done.out and "\x1b[2J" not in done.out
    data = json.loads(redraft("show", ID, "--folder", folder, "--json").out)
    facts = data["request"]
    assert (facts["schema"], facts["trace_id"], facts["outcome"]) == (2, ID, "answered")
    shared = ("score", "iterations", "stop")
    assert [facts[name] for name in shared] == [data[name] for name in shared]
    assert facts["usage"] == {
        "calls": 4,
        "input_tokens": 1200,
        "output_tokens": None,
        "cost": None,
    }
    assert [candidate["text"] for candidate in data["candidates"]] == [
        "The cat sat.",
        "The dog sat.",
    ]


def test_request_of_which_only_the_facts_were_kept(redraft, folder):
    """It says that there are no texts."""
    done = redraft("show", "less", "--folder", folder)
    assert done.returncode == 0
    assert (
        "score" in done.out and "1.00" in done.out and "cost" in done.out and "unknown" in done.out
    )
    assert "its texts were not kept" in done.out and "cat" not in done.out
    assert set(json.loads(redraft("show", "less", "--folder", folder, "--json").out)) == {"request"}


def test_request_that_was_passed_on(redraft, folder, tmp_path):
    """Its facts and its bodies: nothing was refined or graded. One without an answer has no bodies,
    though it keeps texts.
    """
    store = RequestStore(tmp_path / "passed")
    recorder = store.begin("passed", Owner(), "pass/m", "chat", Retention("full"))
    usage = Usage(calls=1, input_tokens=7, output_tokens=3, cost=None)
    recorder.record_exchange(b'{"asked": "\x1b[2J"}', b'{"said": "fine"}', usage)
    recorder.finish(RequestEnd(200, usage=usage))
    store.begin("failed", Owner(), "pass/m", "chat", Retention("full")).finish(
        RequestEnd(502, "upstream_error")
    )
    store.close()
    shown = redraft("show", "passed", "--folder", store.folder).out
    assert (
        '{"asked": "' in shown
        and '{"said": "fine"}' in shown
        and "1 call, 7 tokens in, 3 tokens out" in shown
    )
    assert not re.search(r"satisfied|stopped|unknown tokens|tokens unknown|score|\x1b", shown), (
        shown
    )
    data = json.loads(redraft("show", "passed", "--folder", store.folder, "--json").out)
    assert (data["converged"], data["stop"]) == (False, "max_iterations")
    assert data["usage"]["input_tokens"] == data["request"]["usage"]["input_tokens"] == 7
    shown = redraft("show", "failed", "--folder", store.folder).out
    assert "no trace: there is no answer" in shown and "not kept" not in shown


def test_request_in_progress(redraft, folder):
    """It has no outcome yet."""
    assert "in progress" in redraft("show", "now", "--folder", folder).out


def test_default_folder_is_that_of_a_gateway(redraft, folder):
    """Without --folder it is the one in the user's data."""
    done = redraft("show", ID, env={"REDRAFT_HOME": str(folder.parent)})
    assert done.returncode == 0 and "The [-cat-]{+dog+} sat." in done.out


def test_folder_of_a_configuration(redraft, folder):
    """As the gateway itself finds it; both options are one too many."""
    config = folder.parent / "gateway.toml"
    config.write_text('[gateway]\nfolder = "gateway"\n[models.m]\nurl = "http://127.0.0.1:9/v1"\n')
    assert "answered 200" in redraft("show", ID, "--config", config).out
    done = redraft("show", ID, "--config", config, "--folder", folder)
    assert done.returncode == 2 and "--folder and --config" in done.err


def test_unknown_ids_are_errors_that_name_the_folder(redraft, folder, tmp_path):
    """With and without --folder; nothing is created."""
    done = redraft("show", "nobody", "--folder", folder)
    assert (
        done.returncode == 2 and "has no request 'nobody'" in done.err and str(folder) in done.err
    )
    done = redraft("show", "nobody", env={"REDRAFT_HOME": str(tmp_path / "empty")})
    assert done.returncode == 2 and "no file 'nobody'" in done.err and "--folder" in done.err
    assert not (tmp_path / "empty" / "gateway").exists()


def test_damaged_folder_is_an_error(redraft, tmp_path):
    """Not a traceback."""
    (tmp_path / "requests.db").write_bytes(b"not a database" * 100)
    done = redraft("show", "x", "--folder", tmp_path)
    assert done.returncode == 1 and "requests.db" in done.err and "Traceback" not in done.err


def test_other_commands_read_the_journal_of_a_running_gateway(redraft, folder):
    """Each model that clients name is a run with an ordinary result."""
    journal = folder / "gateway.journal"
    assert "refine/fast" in redraft("runs", "--journal", journal).out
    done = redraft("view", journal, "--html", "page.html", env={"REDRAFT_HOME": str(folder.parent)})
    assert done.returncode == 0, done.err
    page = (redraft.folder / "page.html").read_text()
    assert ID in page and "dog" in page
