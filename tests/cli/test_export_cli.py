"""`redraft export`: training data from a run; what is in it is tested in tests/runs."""

import json
import re

import pytest

ROWS = [{"id": f"r{i}", "prompt": f"Say {i}", "response": f"One, two, {i}"} for i in range(8)]


@pytest.fixture
def ran(redraft):
    """A folder with a run of repairs: each answer lost its commas."""
    (redraft.folder / "in.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    done = redraft("batch", "in.jsonl", "-o", "out.jsonl", "--model", "none", "--require", "no_commas")
    assert done.returncode == 0, done.err
    return redraft


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_pairs_of_a_run(ran):
    """The repaired answer against the given one, with where they come from; the numbers are told."""
    done = ran("export", "out.jsonl", "-o", "pairs.jsonl", "--min-margin", "0.5")
    assert done.returncode == 0, done.err
    rows = lines(ran.folder / "pairs.jsonl")
    assert len(rows) == 8
    assert rows[0]["prompt"] == [{"role": "user", "content": "Say 0"}]
    assert "," in rows[0]["rejected"][0]["content"] and "," not in rows[0]["chosen"][0]["content"]
    assert "8 examples from 8 rows of 8" in done.err and "written: pairs.jsonl" in done.err


def test_a_split_into_a_folder_with_a_card(ran):
    """Both sides and a card; the same for programs with --json."""
    done = ran("export", "out-jsonl", "-o", "set", "--format", "messages", "--test-size", "0.5", "--json")
    assert done.returncode == 0, done.err
    told = json.loads(done.out)
    assert told["train"] + told["test"] == 8 and told["test"]
    assert {p.name for p in (ran.folder / "set").iterdir()} == {"train.jsonl", "test.jsonl", "README.md"}
    assert len(lines(ran.folder / "set" / "test.jsonl")) == told["test"]


@pytest.mark.parametrize("form", ["preference", "unpaired", "prompt-completion", "messages", "stepwise", "trajectory"])
def test_every_format_comes_out(ran, form):
    """To stdout, rows alone."""
    done = ran("export", "out.jsonl", "-o", "-", "--format", form)
    assert done.returncode == 0, done.err
    assert len([json.loads(line) for line in done.out.splitlines()]) >= 8


def test_rows_that_left_the_input_are_left_out(ran):
    """After a run over fewer rows they are in no export and no count; when they come back they count again."""

    def again(rows):
        (ran.folder / "in.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        assert ran("batch", "in.jsonl", "-o", "out.jsonl", "--model", "none", "--require", "no_commas").returncode == 0
        ran("export", "out.jsonl", "-o", "pairs.jsonl", "--overwrite")
        traces = ran("runs", "export", "out.jsonl", "-o", "-").out.splitlines()
        (run,) = json.loads(ran("runs", "--json").out)
        return len(lines(ran.folder / "pairs.jsonl")), len(traces), run["counts"]["done"]

    assert again(ROWS[:3]) == (3, 3, 3)
    assert again(ROWS[:5]) == (5, 5, 5)
    changed = [row | {"prompt": "Say it again"} for row in ROWS[:4]]
    assert again(changed) == (4, 4, 4)


def test_a_card_says_what_was_read(ran):
    """The input of the run stands in the card."""
    ran("export", "out.jsonl", "-o", "set")
    assert "in.jsonl" in (ran.folder / "set" / "README.md").read_text()


def test_what_was_left_out_is_counted(ran):
    """By reason, and never in silence: three answers had no commas to begin with, so there is nothing worse to set against them."""
    rows = [*ROWS[:5], *({**row, "response": "One and two"} for row in ROWS[5:])]
    (ran.folder / "some.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    ran("batch", "some.jsonl", "-o", "mixed.jsonl", "--model", "none", "--require", "no_commas")
    done = ran("export", "mixed.jsonl", "-o", "pairs.jsonl")
    assert done.returncode == 0
    assert "5 examples from 5 rows of 8" in done.err
    assert re.search(r"only one scored answer +3$", done.err, re.MULTILINE), done.err


@pytest.mark.parametrize("output", ["pairs.jsonl", "folder", "-"])
def test_an_export_without_an_example_is_an_error_that_says_why(ran, output):
    """Exit code 1, the reasons with counts, and no file: an empty one cannot be loaded."""
    before = {p.name for p in ran.folder.rglob("*") if p.is_file()}
    (ran.folder / "some.jsonl").write_text("".join(f'{{"prompt": "p{i}", "response": "fine {i}"}}\n' for i in range(3)))
    ran("batch", "some.jsonl", "-o", "fine.jsonl", "--model", "none", "--require", "no_commas")
    done = ran("export", "fine.jsonl", "-o", output)
    assert (done.returncode, done.out) == (1, "")
    assert "none of the 3 rows of run 'fine-jsonl' gives an example: 3 x only one scored answer" in done.err
    assert {p.name for p in ran.folder.rglob("*") if p.is_file()} - before == {"some.jsonl", "fine.jsonl", "fine.jsonl.journal"}


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("none", "-o", "x.jsonl"), "'out-jsonl'"),
        (("out.jsonl",), "--output"),
        (("out.jsonl", "-o", "x.csv"), "x.csv"),
        (("out.jsonl", "-o", "-", "--test-size", "0.5"), "two files"),
        (("out.jsonl", "-o", "-", "--json"), "stdout"),
        (("out.jsonl", "-o", "x.jsonl", "--format", "messages", "--min-margin", "0.5"), "min_margin"),
    ],
)
def test_mistakes_are_usage_errors(ran, args, said):
    """Exit code 2, a clear line, and no file."""
    before = {p.name for p in ran.folder.iterdir()}
    done = ran("export", *args)
    assert done.returncode == 2 and said in done.err, done.err
    assert {p.name for p in ran.folder.iterdir()} == before
