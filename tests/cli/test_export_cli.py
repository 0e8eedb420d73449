"""`redraft export`: training data from a run; its content is tested in tests/runs."""

import json
import re

import pytest

ROWS = [{"id": f"r{i}", "prompt": f"Say {i}", "response": f"One, two, {i}"} for i in range(8)]


@pytest.fixture
def folder_with_run(redraft):
    """A folder with a run of repairs: each answer lost its commas."""
    (redraft.folder / "in.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    done = redraft(
        "batch", "in.jsonl", "-o", "out.jsonl", "--model", "none", "--require", "no_commas"
    )
    assert done.returncode == 0, done.err
    return redraft


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_pairs_are_exported_with_their_source(folder_with_run):
    """Each repaired answer is paired with the given one, with its source, and the counts are
    printed.
    """
    done = folder_with_run("export", "out.jsonl", "-o", "pairs.jsonl", "--min-margin", "0.5")
    assert done.returncode == 0, done.err
    rows = lines(folder_with_run.folder / "pairs.jsonl")
    assert len(rows) == 8
    assert rows[0]["prompt"] == [{"role": "user", "content": "Say 0"}]
    assert "," in rows[0]["rejected"][0]["content"] and "," not in rows[0]["chosen"][0]["content"]
    assert "8 examples from 8 rows of 8" in done.err and "written: pairs.jsonl" in done.err


def test_a_split_export_writes_both_splits_and_a_card(folder_with_run):
    """Both splits and a card are written; --json reports the same."""
    done = folder_with_run(
        "export", "out-jsonl", "-o", "set", "--format", "messages", "--test-size", "0.5", "--json"
    )
    assert done.returncode == 0, done.err
    told = json.loads(done.out)
    assert told["train"] + told["test"] == 8 and told["test"]
    assert {p.name for p in (folder_with_run.folder / "set").iterdir()} == {
        "train.jsonl",
        "test.jsonl",
        "README.md",
    }
    assert len(lines(folder_with_run.folder / "set" / "test.jsonl")) == told["test"]


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize(
    "form", ["preference", "unpaired", "prompt-completion", "messages", "stepwise", "trajectory"]
)
def test_every_format_is_written_to_stdout(folder_with_run, form):
    """stdout holds the rows alone."""
    done = folder_with_run("export", "out.jsonl", "-o", "-", "--format", form)
    assert done.returncode == 0, done.err
    assert len([json.loads(line) for line in done.out.splitlines()]) >= 8


def test_rows_removed_from_the_input_are_left_out(folder_with_run):
    """After a run over fewer rows they are neither exported nor counted; when they come back they
    are.
    """

    def run_and_export(rows):
        (folder_with_run.folder / "in.jsonl").write_text(
            "".join(f"{json.dumps(row)}\n" for row in rows)
        )
        command = (
            "batch",
            "in.jsonl",
            "-o",
            "out.jsonl",
            "--model",
            "none",
            "--require",
            "no_commas",
            "--overwrite",
        )
        assert folder_with_run(*command).returncode == 0
        folder_with_run("export", "out.jsonl", "-o", "pairs.jsonl", "--overwrite")
        traces = folder_with_run("runs", "export", "out.jsonl", "-o", "-").out.splitlines()
        (run,) = json.loads(folder_with_run("runs", "--json").out)
        return (
            len(lines(folder_with_run.folder / "pairs.jsonl")),
            len(traces),
            run["counts"]["done"],
        )

    assert run_and_export(ROWS[:3]) == (3, 3, 3)
    assert run_and_export(ROWS[:5]) == (5, 5, 5)
    changed = [row | {"prompt": "Say it again"} for row in ROWS[:4]]
    assert run_and_export(changed) == (4, 4, 4)


def test_a_card_names_the_input(folder_with_run):
    """The card names the input of the run."""
    folder_with_run("export", "out.jsonl", "-o", "set")
    assert "in.jsonl" in (folder_with_run.folder / "set" / "README.md").read_text()


def test_rows_left_out_are_counted_by_reason(folder_with_run):
    """Three answers had no commas, so that no worse text can make a pair with them."""
    rows = [*ROWS[:5], *({**row, "response": "One and two"} for row in ROWS[5:])]
    (folder_with_run.folder / "some.jsonl").write_text(
        "".join(f"{json.dumps(row)}\n" for row in rows)
    )
    folder_with_run(
        "batch", "some.jsonl", "-o", "mixed.jsonl", "--model", "none", "--require", "no_commas"
    )
    done = folder_with_run("export", "mixed.jsonl", "-o", "pairs.jsonl")
    assert done.returncode == 0
    assert "5 examples from 5 rows of 8" in done.err
    assert re.search(r"only one scored answer\t3$", done.err, re.MULTILINE), done.err


@pytest.mark.parametrize("output", ["pairs.jsonl", "folder", "-"])
def test_an_export_without_an_example_is_an_error_that_says_why(folder_with_run, output):
    """Exit code 1, the reasons with counts, and no file, since an empty one cannot be loaded."""
    before = {p.name for p in folder_with_run.folder.rglob("*") if p.is_file()}
    (folder_with_run.folder / "some.jsonl").write_text(
        "".join(f'{{"prompt": "p{i}", "response": "fine {i}"}}\n' for i in range(3))
    )
    folder_with_run(
        "batch", "some.jsonl", "-o", "fine.jsonl", "--model", "none", "--require", "no_commas"
    )
    done = folder_with_run("export", "fine.jsonl", "-o", output)
    assert (done.returncode, done.out) == (1, "")
    assert (
        "none of the 3 rows of run 'fine.jsonl' gives an example: 3 x only one scored answer"
        in done.err
    )
    assert {p.name for p in folder_with_run.folder.rglob("*") if p.is_file()} - before == {
        "some.jsonl",
        "fine.jsonl",
        "fine.jsonl.journal",
    }


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("none", "-o", "x.jsonl"), "'out.jsonl'"),
        (("out.jsonl",), "--output"),
        (("out.jsonl", "-o", "x.csv"), "x.csv"),
        (("out.jsonl", "-o", "-", "--test-size", "0.5"), "two files"),
        (("out.jsonl", "-o", "-", "--json"), "stdout"),
        (
            ("out.jsonl", "-o", "x.jsonl", "--format", "messages", "--min-margin", "0.5"),
            "min_margin",
        ),
    ],
)
def test_mistakes_are_usage_errors(folder_with_run, args, said):
    """Exit code 2, a clear line, and no file."""
    before = {p.name for p in folder_with_run.folder.iterdir()}
    done = folder_with_run("export", *args)
    assert done.returncode == 2 and said in done.err, done.err
    assert {p.name for p in folder_with_run.folder.iterdir()} == before


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["phoenix", "mlflow", "langfuse"])
def test_scores_of_a_run_without_spans(folder_with_run, tool):
    """Scores go to a server and not to a file; the rows that have no span are counted, and some of
    them named.
    """
    done = folder_with_run("export", "out.jsonl", "--format", tool)
    assert done.returncode == 2 and "is not set" in done.err
    for given in (["-o", "scores"], ["--overwrite"], ["--good", "0.5"], ["--test-size", "0.1"]):
        done = folder_with_run("export", "out.jsonl", *given, "--format", tool)
        assert done.returncode == 2 and f"{tool} writes scores to spans" in done.err
    done = folder_with_run("export", "out.jsonl", "--format", "messages")
    assert done.returncode == 2 and "--output (-o) must name the file" in done.err
    names = ["PHOENIX_ENDPOINT", "MLFLOW_TRACKING_URI", "LANGFUSE_BASE_URL"]
    servers = dict.fromkeys(names, "http://127.0.0.1:1")
    done = folder_with_run("export", "out.jsonl", "--format", tool, "--json", env=servers)
    assert done.returncode == 1
    assert json.loads(done.out) == {
        "scores": 0,
        "left_out": {"no trace was recorded": [f"r{n}" for n in range(8)]},
    }
    assert "left out: 8 rows (r0, r1, r2, r3, r4, ...): no trace was recorded" in done.err
    assert "nothing was written" in done.err
