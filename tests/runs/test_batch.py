"""Batches: what happens to each row, whatever fails in between. The model is a function of its
messages; the files are real.
"""

import asyncio
import json
import re
import sqlite3
from collections import Counter
from contextlib import closing
from hashlib import sha256

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from redraft import Budget, Feedback, batch, batch_sync, must
from redraft.errors import (
    AuthenticationError,
    ConfigError,
    ContextLengthError,
    StoreError,
)
from redraft.protocols import Reply
from redraft.runs import BatchRun
from redraft.storage.journal import Journal
from redraft.usage import Usage

COLUMNS = [
    *(
        "best",
        "tool_calls",
        "initial_score",
        "best_score",
        "score_low",
        "score_high",
        "score_basis",
        "judge_score",
    ),
    *("iterations", "stop", "diagnosis", "calls", "tokens", "cost", "error", "broken", "note"),
]


class Writer:
    """Answers by a hash of the messages, so that the same words get the same answer; counts the
    calls.
    """

    name = identity = "writer"

    def __init__(self, fails=lambda text: None):
        self.asked, self.fails = [], fails

    async def complete(self, request):
        await asyncio.sleep(0)
        text = json.dumps([dict(m) for m in request.messages])
        self.asked.append((text, request.sample_index))
        if error := self.fails(text):
            raise error
        return Reply(
            sha256(f"{text}{request.sample_index}".encode()).hexdigest(),
            Usage(1, len(text), 64, cost=0.001),
        )


def digit(text):
    """A score from 0 to 0.9 that only a better text raises."""
    return Feedback(int(text[0], 16) / 16, "the first digit")


async def asking_grader(text, model):
    """A grader that calls a model, whose verdict is the first digit of the answer."""
    said = await model(f"Grade this: {text}")
    return int(said[0], 16) / 16


def table(path, n, **more):
    rows = [{"id": f"r{i}", "prompt": f"question {i}", **more} for i in range(n)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


async def run(tmp_path, model, *, out="out.jsonl", n=12, **more):
    source = tmp_path / "in.jsonl"
    if not source.exists():
        table(source, n)
    return await batch(
        source, tmp_path / out, model, more.pop("graders", digit), **{"target_score": 0.9, **more}
    )


async def test_a_call_begins_when_the_records_of_earlier_calls_are_on_disk(tmp_path):
    """Each call of a row finds its header and one record for each call before it in the journal's
    file.
    """
    on_disk = []

    class Watching(Writer):
        async def complete(self, request):
            with closing(sqlite3.connect(tmp_path / "out.jsonl.journal")) as db:
                on_disk.extend(db.execute("SELECT count(*) FROM lines").fetchone())
            return await super().complete(request)

    await run(
        tmp_path,
        Watching(),
        n=1,
        graders=asking_grader,
        target_score=1.0,
        max_iterations=2,
        patience=3,
        noise_aware=False,
    )
    assert on_disk[1:] == [2, 3, 4, 5, 6]


async def test_rows_keep_their_columns_and_get_their_results(tmp_path):
    """The output has the input's rows in order with the best answer and its usage; the report adds
    up.
    """
    report = await run(tmp_path, Writer())
    rows = lines(tmp_path / "out.jsonl")
    assert [row["id"] for row in rows] == [f"r{i}" for i in range(12)]
    assert list(rows[0]) == ["id", "prompt", *COLUMNS]
    for row in rows:
        assert (
            row["best_score"]
            == row["judge_score"]
            == int(row["best"][0], 16) / 16
            >= row["initial_score"]
        )
        assert row["score_low"] is row["score_high"] is None
        assert (row["diagnosis"] == "reached") is (row["stop"] == "target")
        assert row["calls"] == row["iterations"] + 1
        assert row["error"] is None
    assert (report.rows.done, report.rows.failed, report.stop, report.resumable) == (
        12,
        0,
        "",
        False,
    )
    assert report.spending.calls == sum(row["calls"] for row in rows)
    assert report.scores.uplift == pytest.approx(
        sum(r["best_score"] - r["initial_score"] for r in rows) / 12
    )
    assert report.rows.improved + report.rows.unchanged + report.rows.regressed == 12
    assert sum(step.calls for step in report.scores.by_iteration) == report.spending.calls
    assert sum(report.rows.stops.values()) == 12


async def test_rows_of_noisy_graders_report_estimated_scores(tmp_path):
    """First and best scores are estimates, so that a row whose first answer is kept has gained
    nothing.
    """
    report = await run(tmp_path, Writer(), graders=asking_grader, n=40, min_expected_gain=0.02)
    rows = lines(tmp_path / "out.jsonl")
    for row in rows:
        assert 0 <= row["score_low"] <= row["best_score"] <= row["score_high"] <= 1
        assert row["best_score"] >= row["initial_score"] or row["broken"]
        assert 0 <= row["judge_score"] < 1
    kept = [row for row in rows if row["iterations"] == 0 and row["calls"] == 2]
    assert kept
    assert all(row["best_score"] == row["initial_score"] for row in kept)
    assert report.scores.uplift == pytest.approx(
        sum(r["best_score"] - r["initial_score"] for r in rows) / 40
    )
    assert report.scores.best == pytest.approx(sum(r["best_score"] for r in rows) / 40)
    assert dict(report.rows.diagnoses) == Counter(
        sorted(r["diagnosis"] for r in rows if r["diagnosis"])
    )
    assert set(report.rows.diagnoses) >= {"ceiling", "too few repeats"}
    assert (
        report.rows.improved + report.rows.unsure + report.rows.unchanged + report.rows.regressed
        == 40
    )
    assert report.rows.improved and report.rows.unsure
    assert any("too few grades to tell" in line for line in report.summary())
    assert any(line.startswith("diagnosis: ") for line in report.summary())
    before = (tmp_path / "out.jsonl").read_bytes()
    await run(tmp_path, Writer(), graders=asking_grader, n=40, min_expected_gain=0.02)
    assert (tmp_path / "out.jsonl").read_bytes() == before


async def test_the_same_run_again_makes_no_call(tmp_path):
    """The output is written again from the journal, byte for byte."""
    await run(tmp_path, Writer())
    before = (tmp_path / "out.jsonl").read_bytes()
    model = Writer()
    report = await run(tmp_path, model)
    assert (model.asked, report.rows.reused, report.rows.done, report.spending.calls) == (
        [],
        12,
        12,
        0,
    )
    assert (tmp_path / "out.jsonl").read_bytes() == before
    (tmp_path / "out.jsonl").unlink()
    await run(tmp_path, model)
    assert (tmp_path / "out.jsonl").read_bytes() == before


async def test_only_rows_that_a_change_affects_are_redone(tmp_path):
    """A changed row is redone; a changed setting makes only calls that are not cached."""
    first = Writer()
    await run(tmp_path, first, max_iterations=1)
    rows = lines(tmp_path / "in.jsonl")
    rows[3]["prompt"] = "another question"
    rows.insert(0, rows.pop())
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = Writer()
    report = await run(tmp_path, model, max_iterations=1)
    assert report.rows.reused == 11
    assert all("another question" in text for text, _ in model.asked)
    assert [row["id"] for row in lines(tmp_path / "out.jsonl")] == [row["id"] for row in rows]
    again = Writer()
    report = await run(tmp_path, again, max_iterations=2)
    assert report.rows.reused == 0
    assert not {*again.asked} & {*first.asked}
    assert report.spending.cached_calls >= 12


async def test_explain_reports_changes_before_a_run(tmp_path):
    """`prepare(explain=True)` names the changed rows and settings, makes no call and writes no
    file.
    """
    await run(tmp_path, Writer(), max_iterations=1)
    table(tmp_path / "in.jsonl", 12, reference="the truth")
    before = (tmp_path / "out.jsonl.journal").read_bytes()
    model = Writer()
    told = await BatchRun.from_arguments(
        tmp_path / "in.jsonl", tmp_path / "out.jsonl", model, digit, max_iterations=2
    ).prepare(explain=True)
    assert model.asked == []
    assert (tmp_path / "out.jsonl.journal").read_bytes() == before
    assert "12 rows changed" in told.changes[0]
    assert any("setting plan changed: 12 rows" in line for line in told.changes)
    assert any("the row's reference changed: 12 rows" in line for line in told.changes)


async def test_a_preview_of_rows_that_cannot_be_used_writes_nothing(tmp_path):
    """The error names the first of them; the file of errors is of the run."""
    source = tmp_path / "in.jsonl"
    source.write_text('{"prompt": ""}\n{"prompt": 1.5\n')
    preview = BatchRun.from_arguments(source, tmp_path / "out.jsonl", Writer(), digit)
    with pytest.raises(ConfigError):
        await preview.prepare()
    assert list(tmp_path.iterdir()) == [source]


async def test_a_preview_shows_rows_samples_and_a_range_of_calls(tmp_path):
    """The run then stays within the range."""
    source = table(tmp_path / "in.jsonl", 5)
    model = Writer()
    told = await BatchRun.from_arguments(
        source, tmp_path / "out.jsonl", model, digit, max_iterations=2
    ).prepare()
    assert (told.rows, told.known, told.calls) == (5, 0, (5, 15))
    assert [m[0]["content"] for m in told.samples] == ["question 0", "question 1", "question 2"]
    assert list(tmp_path.iterdir()) == [source]
    report = await run(tmp_path, model, max_iterations=2)
    assert told.calls[0] <= report.spending.calls <= told.calls[1]


async def test_a_failed_row_does_not_stop_the_others(tmp_path):
    """Its error is in its row; `retry` redoes it alone."""

    def raise_too_long(text):
        return ContextLengthError("too long") if "question 4" in text else None

    report = await run(tmp_path, Writer(raise_too_long))
    rows = lines(tmp_path / "out.jsonl")
    assert (report.rows.done, report.rows.failed, report.rows.errors) == (
        11,
        1,
        {"ContextLengthError": 1},
    )
    assert (rows[4]["best"], rows[4]["stop"], rows[4]["error"]) == (
        None,
        "failed",
        "ContextLengthError: too long",
    )
    model = Writer()
    assert (await run(tmp_path, model)).spending.calls == 0
    report = await run(tmp_path, model, retry=["failed"])
    assert (report.rows.reused, report.rows.done, report.rows.failed) == (11, 12, 0)
    assert all("question 4" in text for text, _ in model.asked)


async def test_a_wrong_key_ends_the_run_at_once(tmp_path):
    """Few calls are made, no row is marked as failed, and the same call resumes with the right
    key.
    """
    wrong = Writer(lambda text: AuthenticationError("the key is wrong", status=401))
    report = await run(tmp_path, wrong, n=200)
    assert (report.stop, report.rows.failed, report.resumable) == ("fatal", 0, True)
    assert report.stop_note.startswith("AuthenticationError (status 401): ")
    assert "the key is wrong" in lines(tmp_path / "out.jsonl")[0]["error"]
    assert len(wrong.asked) <= 16
    report = await run(tmp_path, Writer())
    assert (report.rows.done, report.stop) == (200, "")


async def test_the_budget_covers_the_whole_run(tmp_path):
    """At its end graded answers are written and the other rows marked; a larger budget resumes, and
    is never exceeded.
    """
    model = Writer()
    report = await run(tmp_path, model, budget=Budget(calls=10), max_in_flight=2)
    rows = lines(tmp_path / "out.jsonl")
    assert (report.stop, len(rows), len(model.asked)) == ("budget", 12, 10)
    assert {row["stop"] for row in rows} >= {"not_started"}
    assert all(
        (row["best"] is None) == (row["stop"] == "not_started") or row["stop"] == "budget"
        for row in rows
    )
    assert report.rows.not_started + report.rows.unfinished + report.rows.done == 12
    before = (tmp_path / "out.jsonl").read_bytes()
    assert (await run(tmp_path, model, budget=Budget(calls=10), max_in_flight=2)).stop == "budget"
    assert len(model.asked) == 10
    assert (tmp_path / "out.jsonl").read_bytes() == before
    report = await run(tmp_path, model, budget=Budget(calls=200))
    assert (report.rows.done, report.stop) == (12, "")
    assert len(model.asked) == len(set(model.asked))


@pytest.mark.parametrize("budget", [Budget(calls=1), Budget(tokens=80)])
async def test_a_budget_too_small_for_any_row_is_reported(tmp_path, budget):
    """No row starts, and the report says why."""
    report = await run(tmp_path, Writer(), graders=asking_grader, budget=budget)
    assert (report.stop, report.rows.not_started, report.spending.calls) == ("budget", 12, 0)
    assert (
        "is too small: 0 spent, the next step, with the grades of its text, may take"
        in report.stop_note
    )


async def test_identical_rows_are_paid_for_once(tmp_path):
    """This holds also for calls at the same moment; the rows look alike, and the report has what
    was paid.
    """
    source = tmp_path / "in.jsonl"
    source.write_text('{"prompt": "the same"}\n' * 8)
    model = Writer()
    report = await run(tmp_path, model)
    rows = lines(tmp_path / "out.jsonl")
    assert len(model.asked) == len(set(model.asked)) == report.spending.calls
    assert report.spending.cached_calls == 7 * report.spending.calls
    assert len({row["id"] for row in rows}) == 8
    assert len({json.dumps({k: row[k] for k in COLUMNS}) for row in rows}) == 1
    assert rows[0]["cost"] == pytest.approx(0.001 * rows[0]["calls"])
    assert report.spending.cache_savings == pytest.approx(7 * report.spending.cost)


async def test_duplicate_ids_are_refused_or_handled_as_configured(tmp_path):
    """The error names both rows before any call."""
    source = tmp_path / "in.jsonl"
    source.write_text(
        '{"id": 1, "prompt": "a"}\n{"id": 2, "prompt": "b"}\n{"id": 1, "prompt": "c"}\n'
    )
    model = Writer()
    with pytest.raises(ConfigError, match=r"'1' occurs twice: .*in.jsonl:1 and .*in.jsonl:3"):
        await run(tmp_path, model)
    assert model.asked == []
    for choice, prompts in {"first": "ab", "last": "bc", "rename": "abc"}.items():
        await run(tmp_path, Writer(), out=f"{choice}.jsonl", on_duplicate=choice)
        assert [row["prompt"] for row in lines(tmp_path / f"{choice}.jsonl")] == [*prompts]


async def test_unreadable_rows_go_to_the_errors_file(tmp_path):
    """They have file and line, and the run continues."""
    source = tmp_path / "in.jsonl"
    source.write_text('{"prompt": "a"}\nnot json\n{"prompt": ""}\n{"prompt": "b"}\n')
    report = await run(tmp_path, Writer())
    assert (report.rows.done, report.rows.bad) == (2, 2)
    told = lines(tmp_path / "out.jsonl.errors.jsonl")
    assert [t["location"].rpartition(":")[2] for t in told] == ["2", "3"]


@pytest.mark.parametrize(
    ("lose", "words"),
    [
        (lambda output: output.rename(output.with_name("moved")), "; move it back, and the same"),
        (lambda output: output.unlink(), ": everything is in the journal, and the same"),
    ],
    ids=["moved", "deleted"],
)
async def test_a_lost_output_ends_the_run_with_advice(tmp_path, lose, words):
    """What to do depends on whether the output still exists; nothing is paid twice."""
    output = tmp_path / "out.jsonl"

    class Losing(Writer):
        async def complete(self, request):
            if len(self.asked) == 5:
                lose(output)
            return await super().complete(request)

    report = await run(tmp_path, Losing(), max_in_flight=1)
    assert report.stop == "disk"
    assert report.stop_note.endswith(f"{words} command resumes")
    if (moved := tmp_path / "moved").exists():
        moved.rename(output)
    model = Writer()
    again = await run(tmp_path, model, max_in_flight=1)
    assert again.rows.done == len(lines(output)) == 12
    assert (again.rows.reused, again.spending.calls) == (report.rows.done, len(model.asked))


async def test_a_name_that_is_no_text_is_refused(tmp_path):
    """Before any call; the message names the argument and the value."""
    for name in (5, b"name", ["a"]):
        model = Writer()
        with pytest.raises(ConfigError, match=rf"name .*{re.escape(repr(name))}"):
            await run(tmp_path, model, name=name)
        assert model.asked == []


async def test_a_file_of_another_program_is_not_overwritten(tmp_path):
    """This includes the input itself."""
    source = table(tmp_path / "in.jsonl", 3)
    before = source.read_bytes()
    model = Writer()
    with pytest.raises(ConfigError, match="is one of the input files: name another"):
        await batch(source, source, model, digit)
    with pytest.raises(ConfigError, match="is one of the input files: name another"):
        await batch(source, tmp_path / "out.jsonl", model, digit, errors=source)
    # as IN.JSONL is on a disk that does not distinguish upper and lower case
    (tmp_path / "same.jsonl").hardlink_to(source)
    with pytest.raises(ConfigError, match="is one of the input files: name another"):
        await batch(source, tmp_path / "same.jsonl", model, digit, overwrite=True)
    other = table(tmp_path / "other.jsonl", 3)
    with pytest.raises(ConfigError, match="already exists"):
        await batch(source, other, model, digit)
    await batch(
        source, tmp_path / "out.jsonl", model, digit, journal=tmp_path / "all.journal", name="one"
    )
    with pytest.raises(ConfigError, match="another name"):
        await batch(
            source,
            tmp_path / "else.jsonl",
            model,
            digit,
            journal=tmp_path / "all.journal",
            name="one",
        )
    assert source.read_bytes() == before == other.read_bytes()


async def test_grade_mode_and_best_mode_do_not_refine(tmp_path):
    """`grade` scores the given responses; `best` keeps the best of n drafts."""
    source = tmp_path / "in.jsonl"
    source.write_text('{"prompt": "a", "response": "f00"}\n{"prompt": "b", "response": "000"}\n')
    model = Writer()
    await run(tmp_path, model, out="graded.jsonl", mode="grade")
    assert [(row["best"], row["best_score"]) for row in lines(tmp_path / "graded.jsonl")] == [
        ("f00", 15 / 16),
        ("000", 0),
    ]
    assert model.asked == []
    source.write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    await batch(source, tmp_path / "best.jsonl", model, digit, mode="best", n=3, target_score=1)
    assert [row["calls"] for row in lines(tmp_path / "best.jsonl")] == [3, 3]


async def test_requirements_are_repaired_without_a_model(tmp_path):
    """The editor repairs responses to the requirements in the data, without network."""
    source = tmp_path / "in.jsonl"
    rows = [
        {"prompt": "p", "response": "Hello, world.", "requirements": ["no_commas"]},
        {"prompt": "q", "response": "fine"},
    ]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    await batch(source, tmp_path / "out.jsonl", False, "lowercase")
    assert [row["best"] for row in lines(tmp_path / "out.jsonl")] == ["hello world.", "fine"]


class StopAfter:
    """Stops a run after a number of answers."""

    def __init__(self, run, answers, *, now):
        self.run, self.left, self.now = run, answers, now

    def __call__(self, text):
        self.left -= 1
        if self.left == 0:
            self.run.stop(now=self.now)


@pytest.mark.slow
@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.tuples(st.integers(1, 25), st.booleans()), max_size=4))
async def test_an_interrupted_run_writes_the_output_of_an_undisturbed_one(
    tmp_path_factory, interruptions
):
    """However often it is interrupted, only calls in flight are repeated."""
    tmp_path = tmp_path_factory.mktemp("run")
    await run(tmp_path, Writer(), out="calm.jsonl", n=10)
    asked = []
    for answers, now in interruptions:
        model = Writer()
        going = BatchRun.from_arguments(
            tmp_path / "in.jsonl",
            tmp_path / "out.jsonl",
            model,
            digit,
            target_score=0.9,
            max_in_flight=3,
        )
        model.fails = StopAfter(going, answers, now=now)
        report = await going.go()
        assert report.stop in {"interrupted", ""}
        asked.append(model.asked)
    model = Writer()
    report = await run(tmp_path, model)
    asked.append(model.asked)
    assert (report.stop, report.rows.done) == ("", 10)
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "calm.jsonl").read_bytes()
    everything = [call for calls in asked for call in calls]
    lost = sum(3 for _, now in interruptions if now)
    assert len(everything) - len(set(everything)) <= lost


async def test_ids_made_for_duplicates_are_unique(tmp_path):
    """This holds where a row has such an id already, and where ids cannot be encoded as UTF-8."""
    source = tmp_path / "in.jsonl"
    ids = ["a", "a", "a#2", "a", "\ud800", "\ud800"]
    source.write_text(
        "".join(
            json.dumps({"id": id, "prompt": f"question {n}"}) + "\n" for n, id in enumerate(ids)
        )
    )
    model = Writer()
    calm = Writer()
    for _ in range(2):
        await run(tmp_path, model, on_duplicate="rename")
    with Journal(tmp_path / "out.jsonl.journal", read_only=True) as journal:
        assert len({note.id for note, _ in journal.traces("out-jsonl")}) == 6
    assert [json.loads(text)[0]["content"] for text, look in model.asked if look == 0] == [
        f"question {n}" for n in range(6)
    ]
    await run(tmp_path, calm, out="first.jsonl", on_duplicate="first")
    assert [row["id"] for row in lines(tmp_path / "first.jsonl")] == ["a", "a#2", "\ud800"]


async def test_rows_without_an_id_get_one(tmp_path):
    """The id is in the column where the other rows have theirs."""
    (tmp_path / "in.jsonl").write_text(
        '{"id": 1, "prompt": "a"}\n{"id": null, "prompt": "b"}\n{"prompt": "c"}\n'
    )
    await run(tmp_path, Writer())
    ids = [row["id"] for row in lines(tmp_path / "out.jsonl")]
    assert ids[0] == 1
    assert all(isinstance(id, str) and len(id) == 16 for id in ids[1:])


@pytest.mark.slow
async def test_a_budget_raised_in_steps_gives_the_same_result(tmp_path):
    """A run that stops at its budget again and again ends like an undisturbed one."""
    calm = tmp_path / "calm.jsonl"
    given = {
        "graders": [asking_grader],
        "n": 8,
        "noise_aware": False,
    }  # (which the price of a call, and so the budget, does not steer)
    await run(tmp_path, Writer(), out="calm.jsonl", judge=None, **given)
    for calls in (3, 9, 10, 17, 25, 40, 500):
        report = await run(tmp_path, Writer(), budget=Budget(calls=calls), max_in_flight=3, **given)
    assert report.stop == ""
    assert (tmp_path / "out.jsonl").read_bytes() == calm.read_bytes()


async def test_one_row_too_expensive_for_the_budget_fails_alone(tmp_path):
    """A row that the whole budget could not pay for does not end the run."""
    rows = [{"id": n, "prompt": "x" * (400_000 if n == 1 else 10)} for n in range(4)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = await run(tmp_path, Writer(), budget=Budget(tokens=50_000))
    assert [row["stop"] for row in lines(tmp_path / "out.jsonl")][1] == "not_started"
    assert (report.rows.done, report.stop) == (3, "")


async def test_a_stop_after_the_end_of_the_budget_ends_the_run(tmp_path):
    """The run ends although its last calls never return."""

    class SilentModel(Writer):
        async def complete(self, request):
            if "question 0" in json.dumps(request.messages):
                await asyncio.Event().wait()
            return await super().complete(request)

    source = tmp_path / "in.jsonl"
    rows = [{"id": n, "prompt": f"question {n}" + "x" * (4_700 if n == 5 else 0)} for n in range(9)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    going = BatchRun.from_arguments(
        source,
        tmp_path / "out.jsonl",
        SilentModel(),
        digit,
        target_score=1,
        budget=Budget(tokens=5500),
        max_in_flight=4,
    )
    work = asyncio.ensure_future(going.go())
    while going.progress.state != "stopping":
        await asyncio.sleep(0)
    going.stop(now=True)
    report = await asyncio.wait_for(work, 60)
    assert report.stop == "interrupted"


@pytest.mark.parametrize("opening", [False, True])
async def test_a_run_that_is_stopped_before_its_first_row_has_a_report(tmp_path, opening):
    """It may be stopped before the data are read, or while the journal and the models open."""
    source, model = table(tmp_path / "in.jsonl", 3), Writer()

    def stop(_=None):
        going.stop()

    going = BatchRun.from_arguments(
        source, tmp_path / "out.jsonl", model, digit, say=stop if opening else None
    )
    if not opening:
        stop()
    report = await asyncio.wait_for(going.go(), 60)
    assert (report.stop, report.rows.done, model.asked) == ("interrupted", 0, [])


@pytest.mark.slow(but_each=6)
@pytest.mark.parametrize("limit", ["output_tokens", "tokens", "usd"])
@pytest.mark.parametrize("stops", [(), (5, 9)])
async def test_a_budget_is_kept_over_interruptions(tmp_path, limit, stops):
    """With 64 long answers in flight the limit is never exceeded, and the journal has all of the
    usage.
    """
    served = dict.fromkeys(["output_tokens", "tokens", "usd"], 0)

    class LongAnswerModel(Writer):
        async def complete(self, request):
            text = json.dumps(request.messages[-1]["content"])
            self.asked.append(text)
            written, read = min(3000, request.max_tokens or 3000), len(text) // 4
            for name, amount in zip(
                served, (written, read + written, 1e-6 * read + 1e-5 * written), strict=True
            ):
                served[name] += amount
            await asyncio.sleep(0.001)
            self.fails(text)
            return Reply(f"{len(self.asked)} long", Usage(1, read, written, cost=None), "length")

    model, most = LongAnswerModel(), {"output_tokens": 40_000, "tokens": 40_000, "usd": 0.4}[limit]
    source, given = (
        table(tmp_path / "in.jsonl", 80),
        {"prices": {"writer": (1.0, 10.0)}, "target_score": 1, "max_in_flight": 64},
    )
    for stop in (*stops, None):
        going = BatchRun.from_arguments(
            source, tmp_path / "out.jsonl", model, digit, budget=Budget(**{limit: most}), **given
        )
        model.fails = StopAfter(going, stop, now=True) if stop else lambda text: None
        report = await asyncio.wait_for(going.go(), 60)
    assert report.stop == "budget"
    assert most / 4 < served[limit] <= most
    with Journal(tmp_path / "out.jsonl.journal", read_only=True) as journal:
        assert journal.run("out-jsonl").metadata["spent"][limit] >= served[limit] * (1 - 1e-9)


async def test_the_report_names_an_endpoint_that_ignores_max_tokens(tmp_path):
    """It has what was spent, the limit, and the reason."""

    class IgnoresMaxTokens(Writer):
        async def complete(self, request):
            return Reply("long", Usage(1, 10, 3000, cost=None))

    report = await run(
        tmp_path, IgnoresMaxTokens(), budget=Budget(output_tokens=4000), max_in_flight=1
    )
    assert "spent 6000 of 4000 output tokens" in report.spending.excess
    assert report.spending.excess in report.summary()


async def test_calls_that_were_never_sent_cost_nothing(tmp_path):
    """Calls that were queued when a run was interrupted do not count against its budget."""
    model = Writer()
    source = table(tmp_path / "in.jsonl", 40)
    for stop in (5, 9):
        going = BatchRun.from_arguments(
            source,
            tmp_path / "out.jsonl",
            model,
            digit,
            budget=Budget(calls=100),
            max_in_flight=2,
            target_score=1,
        )
        model.fails = StopAfter(going, stop, now=False)
        await going.go()
        with Journal(tmp_path / "out.jsonl.journal", read_only=True) as journal:
            assert journal.run("out-jsonl").metadata["spent"]["calls"] == len(model.asked)


async def test_answers_that_arrived_before_an_interruption_are_saved(tmp_path):
    """All arrived drafts are saved, also those that a cache would not save."""

    class ShortAnswerModel(Writer):
        async def complete(self, request):
            reply = await super().complete(request)
            if len(self.asked) == 3:
                going.stop()
            return Reply(reply.text, reply.usage, finish_reason="length")

    model = ShortAnswerModel()
    going = BatchRun.from_arguments(
        table(tmp_path / "in.jsonl", 1),
        tmp_path / "out.jsonl",
        model,
        digit,
        drafts=3,
        max_iterations=0,
    )
    await going.go()
    again = ShortAnswerModel()
    await batch(
        tmp_path / "in.jsonl", tmp_path / "out.jsonl", again, digit, drafts=3, max_iterations=0
    )
    assert (len(model.asked), again.asked) == (3, [])


async def test_a_run_without_errors_removes_the_errors_file(tmp_path):
    """After the input was corrected there is no errors file."""
    source = tmp_path / "in.jsonl"
    source.write_text('{"prompt": "a"}\nnot json\n')
    await run(tmp_path, Writer())
    assert (tmp_path / "out.jsonl.errors.jsonl").exists()
    source.write_text('{"prompt": "a"}\n')
    await run(tmp_path, Writer())
    assert not (tmp_path / "out.jsonl.errors.jsonl").exists()


async def test_a_broken_must_is_reported(tmp_path):
    """Its name is in the row, and the report counts it."""
    source = tmp_path / "in.jsonl"
    source.write_text('{"prompt": "p", "response": "one two"}\n')
    report = await batch(
        source, tmp_path / "out.jsonl", False, [must("contains:qubit"), "words:1-5"]
    )
    (row,) = lines(tmp_path / "out.jsonl")
    assert (row["best_score"], row["broken"], report.rows.broken) == (1.0, "contains:qubit", 1)


async def test_a_foreign_journal_file_is_not_changed(tmp_path):
    """The error says what the file is."""
    (tmp_path / "out.jsonl.journal").write_text("my diary, not yours" * 100)
    model = Writer()
    with pytest.raises(StoreError, match="out.jsonl.journal"):
        await run(tmp_path, model)
    assert model.asked == []
    assert (tmp_path / "out.jsonl.journal").read_text() == "my diary, not yours" * 100


async def test_the_journal_has_every_record_and_the_report(tmp_path):
    """It has every record of every row, and the run with its report."""
    report = await run(tmp_path, Writer())
    with Journal(tmp_path / "out.jsonl.journal", read_only=True) as journal:
        (note,) = journal.runs()
        assert note.counts["done"] == 12
        assert note.metadata["report"]["scores"]["uplift"] == report.scores.uplift
        traces = [trace for _, trace in journal.traces(note.name)]
    assert [t.task.id for t in traces] == [f"r{i}" for i in range(12)]
    assert sum(t.usage.calls for t in traces) == report.spending.calls
    assert all(t.outcome and t.best for t in traces)


def test_batch_sync_needs_no_await(tmp_path):
    """`batch_sync` does the same as `batch`; without an output the results are in the journal."""
    source = table(tmp_path / "in.jsonl", 3)
    report = batch_sync(source, None, Writer(), digit, journal=tmp_path / "j", target_score=1)
    assert (report.rows.done, report.output) == (3, None)
    with Journal(tmp_path / "j", read_only=True) as journal:
        assert len(list(journal.traces(report.run))) == 3


async def test_a_grader_that_raises_fails_its_row_alone(tmp_path):
    """Neither the content of a row nor an exception of a function ends the run."""

    def brittle(text, task):
        if "2" in task.prompt:
            raise RuntimeError("no 2")
        return 1.0

    report = await run(tmp_path, Writer(), graders=brittle, n=4)
    rows = lines(tmp_path / "out.jsonl")
    assert [row["stop"] for row in rows] == ["target", "target", "failed", "target"]
    assert re.fullmatch(
        r"GradingError: grader brittle: RuntimeError: no 2 \(in brittle, test_batch.py line \d+\)",
        rows[2]["error"],
    )
    assert rows[2]["best"] and rows[2]["best_score"] is None
    assert report.rows.failed == 1


def test_the_report_shows_one_error_of_each_kind(tmp_path):
    """A count of `ModelError` alone would not help."""

    def broken(messages):
        raise ValueError("the tape is torn")

    report = batch_sync(
        [{"prompt": "a"}, {"prompt": "b"}], None, broken, lambda text: 0.5, journal=tmp_path / "j"
    )
    assert report.rows.errors == {"ModelError": 2}
    assert "the tape is torn" in report.rows.error_examples["ModelError"].message
    assert "ModelError, for example: broken raised ValueError: the tape is torn" in "\n".join(
        report.summary()
    )
