"""`redraft demo`: real work on its files, without the network until the result is shown."""

import os
import shutil
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "demo"

SPY = """
import socket, sys
def refuse(self, address, *rest):
    print(f"CONNECT {address}", flush=True)
    raise OSError("no network here")
socket.socket.connect = socket.socket.connect_ex = refuse
def lost(host, *rest, **more):
    print(f"RESOLVE {host}", flush=True)
    raise OSError("no names here")
socket.getaddrinfo = lost
"""


def test_the_demo_needs_no_network_and_looks_for_a_model_last(redraft):
    """With every connection refused the demo shows all its work; only then it looks for a model, on
    this machine alone.
    """
    spy = redraft.folder / "spy"
    spy.mkdir()
    (spy / "sitecustomize.py").write_text(SPY)
    done = redraft("demo", EXAMPLES, env={"PYTHONPATH": str(spy)})
    assert done.returncode == 0, done.err
    work, _, after = done.out.partition("Summary")
    assert "CONNECT" not in work and "RESOLVE" not in work
    looked = [line for line in after.splitlines() if line.startswith(("CONNECT", "RESOLVE"))]
    assert looked and all("127.0.0.1" in line for line in looked)
    assert "No model was found" in after
    assert "calls 0 · tokens 0 · cost 0 USD" in after
    assert "redraft run 'Explain" in after and "--require 'contains:restore test'" in after


@pytest.mark.slow
def test_the_demo_shows_each_step_and_the_unmet_requirement(redraft):
    """It shows scores, edits, lossy edits, changes, and the requirement that only a model can
    meet.
    """
    done = redraft("demo", EXAMPLES)
    assert (
        "score 0.00" in done.out and "score 0.80 (+0.20)" in done.out and "score 1.00" in done.out
    )
    assert "lossy dropped 1 repeated sentence" in done.out
    assert "[-•-]{+-+}" in done.out
    assert "Not met: contains 'restore test' (measured: 'restore test' occurs 0 times)" in done.out
    assert "the editor never invents" in " ".join(done.out.split())


def test_edited_case_files_change_the_output(redraft):
    """Results are computed from the case files."""
    mine = redraft.folder / "mine"
    shutil.copytree(EXAMPLES, mine)
    for path in mine.glob("[23]-*"):
        path.unlink()
    draft = mine / "1-explainer.md"
    draft.write_text(draft.read_text() + "\nOnce a month we do a restore test.\n")
    done = redraft("demo", "mine")
    assert "Not met" not in done.out
    assert "All requirements are met" in done.out
    assert "Your turn: edit the files in mine" in done.out


def test_repairs_keep_urls_code_and_japanese_text(redraft):
    """The repaired Japanese note is a part of the original, with its address and command."""
    (redraft.folder / "a.md").write_text((EXAMPLES / "3-japanese.md").read_text())
    require = ["paragraphs:-2", "characters:-260", "no_duplicate_sentences"]
    specs = [arg for spec in require for arg in ("--require", spec)]
    done = redraft("run", "x", "--response", "a.md", "--model", "none", *specs)
    assert done.returncode == 0
    assert "https://docs.example.jp/setup" in done.out and "`make demo`" in done.out
    assert all(
        sentence in (EXAMPLES / "3-japanese.md").read_text()
        for sentence in done.out.strip().split("。")
    )


def test_a_bad_case_names_its_file(redraft):
    """A mistake in a case is a usage error that names the place."""
    (redraft.folder / "case.toml").write_text(
        'title = "x"\nprompt = "y"\nresponse = 3\nrequire = ["words:3"]\n'
    )
    done = redraft("demo", ".")
    assert done.returncode == 2 and "case.toml: response must be a text" in done.err


@pytest.mark.parametrize(
    "text", ["a = " + "[" * 100_000, f"{'a.' * 300_000}a = 1", f"title = 0x{'f' * 9_000}", None]
)
def test_a_hostile_case_names_its_file(redraft, text):
    """The cases have endless nesting, keys or numbers, or are a pipe without a writer."""
    path = redraft.folder / "case.toml"
    if text is None:
        os.mkfifo(path)
    else:
        path.write_text(text)
    done = redraft("demo", ".")
    assert done.returncode == 2 and "case.toml" in done.err and done.err.count("\n") == 1


def test_a_folder_without_cases_is_a_usage_error(redraft):
    """The error says what a case is."""
    assert "redraft demo --help" in redraft("demo", ".").err
