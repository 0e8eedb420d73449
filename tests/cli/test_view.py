"""`redraft view` and `redraft label`: what they find, what they write, and what they say when they
cannot.
"""

import json
import re
import urllib.request

import pytest

from redraft.cli.commands.label import _amount

ROWS = [{"id": f"r{i}", "prompt": "Say it", "response": f"One, two, {i}"} for i in range(3)]


@pytest.fixture
def run(redraft):
    """A folder with a run in a journal, and a trace."""
    (redraft.folder / "in.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    for name in ("out.jsonl", "other.jsonl"):
        done = redraft("batch", "in.jsonl", "-o", name, "--model", "none", "--require", "no_commas")
        assert done.returncode == 0, done.err
    (redraft.folder / "given.txt").write_text("One, two")
    done = redraft(
        "run",
        "Say it",
        "--response",
        "given.txt",
        "--model",
        "none",
        "--require",
        "no_commas",
        "--trace",
        "proof.jsonl",
        "-o",
        "a.txt",
    )
    assert done.returncode == 0, done.err
    return redraft


@pytest.mark.slow(but_each=5)
@pytest.mark.parametrize(
    ("source", "rows"),
    [
        (["out.jsonl"], 3),
        (["out-jsonl"], 3),
        (["out.jsonl.journal"], 3),
        (["proof.jsonl"], 1),
        (["--journal", "out.jsonl.journal"], 3),
    ],
)
def test_a_run_is_named_in_any_way(run, source, rows):
    """By its output, its name or its journal; a trace is a run of one row."""
    done = run("view", *source, "--html", "page.html")
    assert done.returncode == 0, done.err
    page = (run.folder / "page.html").read_text()
    assert page.count('<details class="row"') == rows
    assert "no_commas" in page


@pytest.mark.slow
def test_a_page_replaces_nothing_unasked(run):
    """Another file of that name is kept, unless --overwrite is given; several runs are no page."""
    assert run("view", "out.jsonl", "--html", "page.html").returncode == 0
    again = run("view", "out.jsonl", "--html", "page.html")
    assert again.returncode == 2
    assert "--html: page.html already exists" in again.err
    assert run("view", "out.jsonl", "--html", "page.html", "--overwrite").returncode == 0
    several = run("view", "--html", "all.html")
    assert several.returncode == 2
    assert "name it; there are" in several.err and "'out.jsonl'" in several.err


@pytest.mark.slow(but_each=6)
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["view", "missing.jsonl"], "there is no run 'missing.jsonl'"),
        (["view", "in.jsonl"], "is not a trace"),
        (["label", "missing"], "there is no run 'missing'"),
        (["label", "in.jsonl"], "no columns hold two responses"),
        (["label", "in.jsonl", "out.jsonl"], "two runs can be compared"),
        (["label", "out.jsonl", "out-jsonl"], "'out.jsonl' and 'out-jsonl' are the same run"),
        (
            ["label", "out.jsonl", "other.jsonl", "--kind", "pass"],
            "with two runs, pairs are judged",
        ),
        (["label", "out.jsonl", "--kind", "score", "--scale", "5-1"], "a scale is LOW-HIGH"),
        (["label", "out.jsonl", "--rubric", "no_such_rubric"], "no_such_rubric"),
        (["label", "out.jsonl", "--export", "x.json"], "cannot be read"),
        (
            ["label", "out.jsonl", "--import", "in.jsonl", "--format", "argilla"],
            "no labels in the format argilla",
        ),
        (["label", "in.jsonl", "-c", "response"], "OURS=THEIRS"),
    ],
)
def test_mistakes_are_explained(run, arguments, said):
    """The message says what is missing; nothing is served."""
    done = run(*arguments)
    assert done.returncode in {1, 2}
    assert said in done.err


def test_pages_are_served(run):
    """The address is on stdout; the page has the run, and a wrong secret has nothing."""
    process = run.start("view", "out.jsonl", "--no-browser")
    try:
        url = process.stdout.readline().decode().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32}/", url)
        with urllib.request.urlopen(url) as reply:
            assert "out.jsonl" in reply.read().decode()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(url[:-2])
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()
        process.stderr.close()


@pytest.mark.parametrize(
    ("items", "count", "said"),
    [
        (1, None, "1 item"),
        (35, None, "35 items"),
        (35, 10, "35 items, of which each annotator labels 10"),
        (8, 10, "8 items"),
    ],
)
def test_the_message_says_how_many_labels_are_wanted(items, count, said):
    """All items, or the number that is given, for each annotator."""
    assert _amount(items, count) == said


def test_labels_are_exported_and_imported(run):
    """What another tool has judged becomes labels, which `redraft validate` reads."""
    rows = [
        {
            "id": str(n),
            "prompt": "q",
            "response_a": "one, two",
            "response_b": "one two",
            "ratings": ["second", "second"],
            "raters": ["ann", "bob"],
        }
        for n in range(12)
    ]
    (run.folder / "judged.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    done = run("label", "pairs", "--import", "judged.jsonl")
    assert done.returncode == 0, done.err
    assert "24 labels added" in done.err
    for format in ("jsonl", "label-studio", "argilla"):
        assert (
            run("label", "pairs", "--export", f"{format}.json", "--format", format).returncode == 0
        )
        again = run("label", f"again-{format}", "--import", f"{format}.json", "--format", format)
        assert "24 labels added" in again.err, again.err
    done = run(
        "validate", "pairs.labels.jsonl", "--grader", "no_commas", "--cards-dir", "cards", "--json"
    )
    assert done.returncode in {0, 3}, done.err
    assert "pair" in done.out
