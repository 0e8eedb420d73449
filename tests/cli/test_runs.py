"""`redraft runs`: list, show, export and forget the runs in journals."""

import json
import shutil
import time

import pytest

ROWS = [{"id": f"r{i}", "prompt": "Say it", "response": f"One, two, {i}"} for i in range(3)]


@pytest.fixture
def journal(redraft):
    """A folder with a run in a journal: out.jsonl in out.jsonl.journal."""
    (redraft.folder / "in.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    batch(redraft, "out.jsonl")
    return redraft


def batch(redraft, output, *more):
    done = redraft(
        "batch", "in.jsonl", "-o", output, "--model", "none", "--require", "no_commas", *more
    )
    assert done.returncode == 0, done.err
    return done


def test_runs_are_listed(journal):
    """`redraft runs` alone lists the runs of all journals in the folder, also as JSON."""
    batch(journal, "other.jsonl")
    told = journal("runs")
    assert told.returncode == 0, told.err
    assert "out.jsonl" in told.out and "other.jsonl" in told.out and ".journal" not in told.out
    as_json = json.loads(journal("runs", "--json").out)
    assert sorted(run["name"] for run in as_json) == ["other-jsonl", "out-jsonl"]
    assert as_json[0]["counts"] == {"open": 0, "done": 3, "failed": 0}
    assert [
        run["name"]
        for run in json.loads(
            journal("runs", "list", "--journal", "other.jsonl.journal", "--json").out
        )
    ] == ["other-jsonl"]


def test_an_empty_folder_says_where_it_looked(redraft):
    """No journal is no error, and none is made."""
    told = redraft("runs")
    assert told.returncode == 0 and "--journal" in told.err
    assert json.loads(redraft("runs", "--json").out) == []
    assert not list(redraft.folder.iterdir())


def test_a_run_and_a_row_are_shown(journal):
    """A run has its counts and settings; a row is shown as `redraft show` shows a trace."""
    told = journal("runs", "show", "out.jsonl")
    assert told.returncode == 0, told.err
    assert "3 done" in told.out and "in.jsonl" in told.out
    assert json.loads(journal("runs", "show", "out.jsonl", "--json").out)["name"] == "out-jsonl"
    row = journal("runs", "show", "out.jsonl", "r1")
    assert "One, two, 1" in row.out and "no_commas" in row.out
    assert json.loads(journal("runs", "show", "out.jsonl", "r1", "--json").out)["score"] == 1.0


def test_unknown_runs_and_rows_are_usage_errors(journal):
    """The message lists the existing ones."""
    none = journal("runs", "show", "none")
    assert none.returncode == 2 and "'out.jsonl'" in none.err
    row = journal("runs", "show", "out.jsonl", "r9")
    assert row.returncode == 2 and "no row 'r9'" in row.err


def test_a_name_in_two_journals_is_ambiguous(journal):
    """The error names both, and --journal chooses one."""
    batch(journal, "b.jsonl", "--name", "out-jsonl")
    assert journal("runs", "show", "out-jsonl").returncode == 2
    # its journal is beside the output of that name
    assert journal("runs", "show", "out.jsonl").returncode == 0
    batch(journal, "a.jsonl", "--name", "twice")
    batch(journal, "c.jsonl", "--name", "twice")
    told = journal("runs", "show", "twice")
    assert told.returncode == 2 and "a.jsonl.journal" in told.err and "c.jsonl.journal" in told.err
    assert journal("runs", "show", "twice", "--journal", "a.jsonl.journal").returncode == 0


def test_an_output_in_another_folder_names_its_run(journal):
    """The path of an output selects the journal beside it."""
    (journal.folder / "elsewhere").mkdir()
    told = journal("runs", "show", "../out.jsonl", cwd=journal.folder / "elsewhere")
    assert told.returncode == 0 and "3 done" in told.out


def test_a_run_with_a_name_of_its_own_is_found_by_its_output(journal):
    """The output, the journal and the name mean the same run; with several runs in a journal, each
    is found by its own output.
    """
    batch(journal, "named.jsonl", "--name", "mine")
    for name in ("named.jsonl", "named.jsonl.journal", "mine"):
        told = journal("runs", "show", name, "--json")
        assert told.returncode == 0, told.err
        assert json.loads(told.out)["name"] == "mine"
    batch(journal, "second.jsonl", "--name", "other", "--journal", "named.jsonl.journal")
    for name, run in (("named.jsonl", "mine"), ("other", "other"), ("second.jsonl", "other")):
        assert json.loads(journal("runs", "show", name, "--json").out)["name"] == run
    several = journal("runs", "show", "named.jsonl.journal")
    assert several.returncode == 2 and "'mine', 'other'" in several.err
    (journal.folder / "broken.jsonl.journal").write_bytes(b"not a journal")
    broken = journal("runs", "show", "broken.jsonl")
    assert broken.returncode == 2 and "broken.jsonl.journal" in broken.err
    assert "there is no run" not in broken.err


def test_traces_are_exported_as_json_lines(journal):
    """Each line is a row in input order that `redraft show` can read; stdout works as well."""
    told = journal("runs", "export", "out.jsonl", "-o", "traces.jsonl")
    assert told.returncode == 0, told.err
    rows = [json.loads(line) for line in (journal.folder / "traces.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows] == ["r0", "r1", "r2"]
    (journal.folder / "one.json").write_text(json.dumps(rows[1]["trace"]))
    assert "One, two, 1" in journal("show", "one.json").out
    assert (
        journal("runs", "export", "out.jsonl", "-o", "-").out
        == (journal.folder / "traces.jsonl").read_text()
    )


def test_forget_needs_confirmation(journal):
    """Without a terminal --yes is needed; other runs, outputs and the journal stay."""
    batch(journal, "other.jsonl", "--journal", "out.jsonl.journal")
    unsure = journal("runs", "prune", "out.jsonl")
    assert unsure.returncode == 2 and "--yes" in unsure.err and "3 rows" in unsure.err
    assert "no run is that old" in journal("runs", "prune", "--older-than", "1", "--yes").err
    assert journal("runs", "prune", "out.jsonl", "--yes").returncode == 0
    assert [run["name"] for run in json.loads(journal("runs", "--json").out)] == ["other-jsonl"]
    assert (journal.folder / "out.jsonl").exists()
    assert journal("runs", "prune", "--older-than", "0", "--yes").returncode == 0
    assert json.loads(journal("runs", "--json").out) == []


@pytest.mark.parametrize(
    "args",
    [("prune",), ("prune", "out.jsonl", "--older-than", "3"), ("show",), ("export", "out.jsonl")],
)
def test_an_incomplete_command_is_a_usage_error(journal, args):
    """Exit code 2, and no file changes."""
    assert journal("runs", *args).returncode == 2


def test_a_foreign_file_is_reported_and_not_changed(journal):
    """Beside valid journals it is a line on stderr; named, it is the error."""
    foreign = journal.folder / "bad.journal"
    foreign.write_bytes(b"not a journal at all")
    told = journal("runs")
    assert told.returncode == 0 and "out.jsonl" in told.out and "bad.journal" in told.err
    assert journal("runs", "--journal", "bad.journal").returncode == 2
    assert foreign.read_bytes() == b"not a journal at all"


def test_a_damaged_journal_is_recovered_as_json_lines(journal):
    """Readable runs, rows, records and calls are written; an existing file is not overwritten."""
    told = journal("runs", "salvage", "out.jsonl.journal", "-o", "saved.jsonl")
    assert told.returncode == 0, told.err
    assert "saved.jsonl: 1 run, 3 rows, " in told.err
    assert [json.loads(line) for line in (journal.folder / "saved.jsonl").read_text().splitlines()]
    again = ("runs", "salvage", "out.jsonl.journal", "-o", "saved.jsonl")
    assert journal(*again).returncode == 2
    assert journal(*again, "--overwrite").returncode == 0
    assert (
        journal(
            "runs", "salvage", "out.jsonl.journal", "-o", "out.jsonl.journal", "--overwrite"
        ).returncode
        == 2
    )
    assert journal("runs", "show", "out.jsonl").returncode == 0


def test_an_export_does_not_overwrite_a_file(journal):
    """A nonempty file is refused with the option that allows it; the journal itself is always
    refused.
    """
    before = (journal.folder / "in.jsonl").read_bytes()
    for command in (("export",), ("runs", "export")):
        refused = journal(*command, "out.jsonl", "-o", "in.jsonl")
        assert (
            refused.returncode == 2 and "in.jsonl" in refused.err and "--overwrite" in refused.err
        ), refused.err
        assert (journal.folder / "in.jsonl").read_bytes() == before
        shutil.copy(journal.folder / "in.jsonl", journal.folder / "copy.jsonl")
        allowed = journal(*command, "out.jsonl", "-o", "copy.jsonl", "--overwrite")
        assert allowed.returncode == 0, allowed.err
        assert (journal.folder / "copy.jsonl").read_bytes() != before
    itself = journal("runs", "export", "out.jsonl", "-o", "out.jsonl.journal", "--overwrite")
    assert itself.returncode == 2 and "journal itself" in itself.err
    assert journal("runs", "show", "out.jsonl").returncode == 0


def test_what_killed_workers_have_left_is_named_and_deleted(journal):
    """Their journals beside that of the run are not shown, which is said, and go with the run."""
    own = journal.folder / "out.jsonl.journal"
    shard = own.with_name(f"{own.name}.1-of-2")
    shutil.copy(own, shard)
    for command in (("runs",), ("runs", "salvage", own, "-o", "saved.jsonl")):
        assert "1 journal of workers beside it will be merged" in journal(*command).err
    (journal.folder / "saved.jsonl").unlink()
    told = journal("runs", "prune", "out.jsonl", "--yes")
    assert told.returncode == 0, told.err
    assert not shard.exists()
    assert "workers" not in journal("runs").err
    assert [
        file.name for file in journal.folder.glob("*journal*") if b"Say it" in file.read_bytes()
    ] == []


def test_a_named_run_and_older_than_exclude_each_other(journal):
    """The error gives the reason."""
    told = journal("runs", "prune", "out.jsonl", "--older-than", "1", "--yes")
    assert told.returncode == 2 and "exclude each other" in told.err


@pytest.mark.slow
def test_what_killed_processes_spent_is_shown(redraft, serve):
    """Each of two kills leaves what its process had spent, also in a run with few rows and without
    a budget.
    """
    (redraft.folder / "in.jsonl").write_text(
        "".join(json.dumps({"prompt": f"say {n}"}) + "\n" for n in range(12))
    )
    server = serve(lambda messages, n: "one word")
    command = (
        "batch",
        "in.jsonl",
        "-o",
        "out.jsonl",
        "--model",
        server.model,
        "--require",
        "words:1-9",
        "--max-in-flight",
        1,
    )

    def spent():
        shown = redraft("runs", "show", "out.jsonl", "--json")
        return (
            json.loads(shown.out)["metadata"].get("spent", {}).get("calls", 0)
            if shown.returncode == 0
            else 0
        )

    for calls in (5, 10):  # the last of them is held, and counts: it may be paid for
        arrived = server.hold(calls - 1)
        with redraft.start(*command) as process:
            assert arrived.wait(60)
            end = time.monotonic() + 60
            while spent() < calls and time.monotonic() < end:
                time.sleep(0.05)
            process.kill()
        assert spent() == server.calls == calls
        server.release()
    assert redraft(*command).returncode == 0
    assert spent() == server.calls == 14
