"""Batches: rows in, rows out, whatever happens in between. The model is a function of its messages; the files are real."""

import asyncio
import json
import re
from collections import Counter
from hashlib import sha256

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from redraft import Budget, Feedback, batch, batch_sync, must
from redraft.usage import Usage
from redraft.protocols import Reply
from redraft.errors import AuthenticationError, ConfigError, ContextLengthError, StoreError
from redraft.runs import BatchRun
from redraft.storage.journal import Journal

COLUMNS = [
    *("best", "tool_calls", "initial_score", "best_score", "score_low", "score_high", "observed"),
    *("iterations", "stop", "diagnosis", "calls", "tokens", "cost", "error", "broken"),
]


class Writer:
    """Answers by a hash of what it is sent, so that the same words get the same answer; counts what it is asked."""

    name = identity = "writer"

    def __init__(self, fails=lambda text: None):
        self.asked, self.fails = [], fails

    async def complete(self, request):
        await asyncio.sleep(0)
        text = json.dumps([dict(m) for m in request.messages])
        self.asked.append((text, request.sample_index))
        if error := self.fails(text):
            raise error
        return Reply(sha256(f"{text}{request.sample_index}".encode()).hexdigest(), Usage(1, len(text), 64, cost=0.001))


def digit(text):
    """A grade from 0 to 0.9 that only a better text lifts."""
    return Feedback(int(text[0], 16) / 16, "the first digit")


async def asking(text, model):
    """A grader that asks a model, whose verdict is the first digit of what it says."""
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
    return await batch(source, tmp_path / out, model, more.pop("graders", digit), **{"target_score": 0.9, **more})


async def test_rows_keep_their_columns_and_get_what_came_of_them(tmp_path):
    """The output has the input's rows in order, the best answer and what it took; the report adds up."""
    report = await run(tmp_path, Writer())
    rows = lines(tmp_path / "out.jsonl")
    assert [row["id"] for row in rows] == [f"r{i}" for i in range(12)]
    assert list(rows[0]) == ["id", "prompt", *COLUMNS]
    for row in rows:
        assert row["best_score"] == row["observed"] == int(row["best"][0], 16) / 16 >= row["initial_score"]
        assert row["score_low"] is row["score_high"] is None
        assert (row["diagnosis"] == "reached") is (row["stop"] == "target")
        assert row["calls"] == row["iterations"] + 1
        assert row["error"] is None
    assert (report.done, report.failed, report.end_reason, report.resumable) == (12, 0, "", False)
    assert report.usage.calls == sum(row["calls"] for row in rows)
    assert report.uplift == pytest.approx(sum(r["best_score"] - r["initial_score"] for r in rows) / 12)
    assert report.improved + report.unchanged + report.regressed == 12
    assert sum(step["calls"] for step in report.by_iteration) == report.usage.calls
    assert sum(report.stops.values()) == 12


async def test_rows_of_noisy_graders_are_told_by_what_is_believed(tmp_path):
    """First and best are set against each other as believed, so that a row that kept its first answer has gained nothing."""
    report = await run(tmp_path, Writer(), graders=asking, n=40, min_expected_gain=0.02)
    rows = lines(tmp_path / "out.jsonl")
    for row in rows:
        assert 0 <= row["score_low"] <= row["best_score"] <= row["score_high"] <= 1
        assert row["best_score"] >= row["initial_score"] or row["broken"]
        assert 0 <= row["observed"] < 1
    kept = [row for row in rows if row["iterations"] == 0 and row["calls"] == 2]
    assert kept
    assert all(row["best_score"] == row["initial_score"] for row in kept)
    assert report.uplift == pytest.approx(sum(r["best_score"] - r["initial_score"] for r in rows) / 40)
    assert report.mean_best == pytest.approx(sum(r["best_score"] for r in rows) / 40)
    assert dict(report.diagnoses) == Counter(sorted(r["diagnosis"] for r in rows if r["diagnosis"]))
    assert set(report.diagnoses) >= {"ceiling", "too few repeats"}
    assert report.improved + report.unsure + report.unchanged + report.regressed == 40
    assert report.improved and report.unsure
    assert any("too few grades to tell row by row" in line for line in report.summary())
    assert any(line.startswith("diagnosis: ") for line in report.summary())
    before = (tmp_path / "out.jsonl").read_bytes()
    await run(tmp_path, Writer(), graders=asking, n=40, min_expected_gain=0.02)
    assert (tmp_path / "out.jsonl").read_bytes() == before


async def test_the_same_call_again_asks_nothing(tmp_path):
    """What is finished is written again from the journal, byte for byte."""
    await run(tmp_path, Writer())
    before = (tmp_path / "out.jsonl").read_bytes()
    model = Writer()
    report = await run(tmp_path, model)
    assert (model.asked, report.reused, report.done, report.usage.calls) == ([], 12, 12, 0)
    assert (tmp_path / "out.jsonl").read_bytes() == before
    (tmp_path / "out.jsonl").unlink()
    await run(tmp_path, model)
    assert (tmp_path / "out.jsonl").read_bytes() == before


async def test_only_what_a_change_affects_is_redone(tmp_path):
    """A changed row asks for itself; a changed setting asks only for what was never asked."""
    first = Writer()
    await run(tmp_path, first, max_iterations=1)
    rows = lines(tmp_path / "in.jsonl")
    rows[3]["prompt"] = "another question"
    rows.insert(0, rows.pop())
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = Writer()
    report = await run(tmp_path, model, max_iterations=1)
    assert report.reused == 11
    assert all("another question" in text for text, _ in model.asked)
    assert [row["id"] for row in lines(tmp_path / "out.jsonl")] == [row["id"] for row in rows]
    again = Writer()
    report = await run(tmp_path, again, max_iterations=2)
    assert report.reused == 0
    assert not {*again.asked} & {*first.asked}
    assert report.usage.cached_calls >= 12


async def test_what_changed_can_be_told_before(tmp_path):
    """`prepare(explain=True)` names the rows and settings that changed, asks nothing and writes nothing."""
    await run(tmp_path, Writer(), max_iterations=1)
    table(tmp_path / "in.jsonl", 12, reference="the truth")
    before = (tmp_path / "out.jsonl.journal").read_bytes()
    model = Writer()
    told = await BatchRun.of(tmp_path / "in.jsonl", tmp_path / "out.jsonl", model, digit, max_iterations=2).prepare(explain=True)
    assert model.asked == []
    assert (tmp_path / "out.jsonl.journal").read_bytes() == before
    assert "12 rows changed" in told.changes[0]
    assert any("setting plan changed: 12 rows" in line for line in told.changes)
    assert any("the row's reference changed: 12 rows" in line for line in told.changes)


async def test_a_preview_of_a_new_run(tmp_path):
    """Rows, samples, and calls as a range that the run then keeps to."""
    source = table(tmp_path / "in.jsonl", 5)
    model = Writer()
    told = await BatchRun.of(source, tmp_path / "out.jsonl", model, digit, max_iterations=2).prepare()
    assert (told.rows, told.known, told.calls) == (5, 0, (5, 15))
    assert [m[0]["content"] for m in told.samples] == ["question 0", "question 1", "question 2"]
    assert list(tmp_path.iterdir()) == [source]
    report = await run(tmp_path, model, max_iterations=2)
    assert told.calls[0] <= report.usage.calls <= told.calls[1]


async def test_a_row_that_fails_stops_no_other(tmp_path):
    """Its error stands in its row; `retry` redoes it and nothing else."""

    def too_long(text):
        return ContextLengthError("too long") if "question 4" in text else None

    report = await run(tmp_path, Writer(too_long))
    rows = lines(tmp_path / "out.jsonl")
    assert (report.done, report.failed, report.errors) == (11, 1, {"ContextLengthError": 1})
    assert (rows[4]["best"], rows[4]["stop"], rows[4]["error"]) == (None, "failed", "ContextLengthError: too long")
    model = Writer()
    assert (await run(tmp_path, model)).usage.calls == 0
    report = await run(tmp_path, model, retry=["failed"])
    assert (report.reused, report.done, report.failed) == (11, 12, 0)
    assert all("question 4" in text for text, _ in model.asked)


async def test_a_wrong_key_ends_the_run_at_once(tmp_path):
    """Not a million errors: few calls, no row marked as failed, and the same call goes on with the right key."""
    wrong = Writer(lambda text: AuthenticationError("the key is wrong", status=401))
    report = await run(tmp_path, wrong, n=200)
    assert (report.end_reason, report.failed, report.resumable) == ("fatal", 0, True)
    assert "the key is wrong" in report.message
    assert len(wrong.asked) <= 16
    report = await run(tmp_path, Writer())
    assert (report.done, report.end_reason) == (200, "")


async def test_the_budget_is_the_whole_runs(tmp_path):
    """At the end of money what is graded is written and the rest is marked; a larger budget goes on, never above it."""
    model = Writer()
    report = await run(tmp_path, model, budget=Budget(calls=10), max_in_flight=2)
    rows = lines(tmp_path / "out.jsonl")
    assert (report.end_reason, len(rows), len(model.asked)) == ("budget", 12, 10)
    assert {row["stop"] for row in rows} >= {"not_started"}
    assert all((row["best"] is None) == (row["stop"] == "not_started") or row["stop"] == "budget" for row in rows)
    assert report.not_started + report.unfinished + report.done == 12
    before = (tmp_path / "out.jsonl").read_bytes()
    assert (await run(tmp_path, model, budget=Budget(calls=10), max_in_flight=2)).end_reason == "budget"
    assert len(model.asked) == 10
    assert (tmp_path / "out.jsonl").read_bytes() == before
    report = await run(tmp_path, model, budget=Budget(calls=200))
    assert (report.done, report.end_reason) == (12, "")
    assert len(model.asked) == len(set(model.asked))


@pytest.mark.parametrize("budget", [Budget(calls=1), Budget(tokens=80)])
async def test_a_budget_too_small_for_any_row_is_why_the_run_ended(tmp_path, budget):
    """Nothing was begun: the report says so and why, not only the rows."""
    report = await run(tmp_path, Writer(), graders=asking, budget=budget)
    assert (report.end_reason, report.not_started, report.usage.calls) == ("budget", 12, 0)
    assert "is too small: 0 spent, the next step, with the grades of its text, may take" in report.message


async def test_identical_rows_are_paid_for_once(tmp_path):
    """Also when asked at the same moment; the rows look alike whoever paid, the report tells what was paid."""
    source = tmp_path / "in.jsonl"
    source.write_text('{"prompt": "the same"}\n' * 8)
    model = Writer()
    report = await run(tmp_path, model)
    rows = lines(tmp_path / "out.jsonl")
    assert len(model.asked) == len(set(model.asked)) == report.usage.calls
    assert report.usage.cached_calls == 7 * report.usage.calls
    assert len({row["id"] for row in rows}) == 8
    assert len({json.dumps({k: row[k] for k in COLUMNS}) for row in rows}) == 1
    assert rows[0]["cost"] == pytest.approx(0.001 * rows[0]["calls"])
    assert report.cache_savings == pytest.approx(7 * report.usage.cost)


async def test_ids_that_come_twice(tmp_path):
    """An error that names both rows, before anything is asked; or as it was chosen."""
    source = tmp_path / "in.jsonl"
    source.write_text('{"id": 1, "prompt": "a"}\n{"id": 2, "prompt": "b"}\n{"id": 1, "prompt": "c"}\n')
    model = Writer()
    with pytest.raises(ConfigError, match=r"'1' occurs twice: .*in.jsonl:1 and .*in.jsonl:3"):
        await run(tmp_path, model)
    assert model.asked == []
    for choice, prompts in {"first": "ab", "last": "bc", "rename": "abc"}.items():
        await run(tmp_path, Writer(), out=f"{choice}.jsonl", on_duplicate=choice)
        assert [row["prompt"] for row in lines(tmp_path / f"{choice}.jsonl")] == [*prompts]


async def test_rows_that_cannot_be_read_go_to_the_errors_file(tmp_path):
    """With file and line; they stop nothing."""
    source = tmp_path / "in.jsonl"
    source.write_text('{"prompt": "a"}\nnot json\n{"prompt": ""}\n{"prompt": "b"}\n')
    report = await run(tmp_path, Writer())
    assert (report.done, report.bad) == (2, 2)
    told = lines(tmp_path / "out.jsonl.errors.jsonl")
    assert [t["place"].rpartition(":")[2] for t in told] == ["2", "3"]


async def test_a_file_that_it_did_not_write_is_left_alone(tmp_path):
    """Be it the input itself."""
    source = table(tmp_path / "in.jsonl", 3)
    before = source.read_bytes()
    model = Writer()
    with pytest.raises(ConfigError, match="is one of the input files: name another"):
        await batch(source, source, model, digit)
    with pytest.raises(ConfigError, match="is one of the input files: name another"):
        await batch(source, tmp_path / "out.jsonl", model, digit, errors=source)
    other = table(tmp_path / "other.jsonl", 3)
    with pytest.raises(ConfigError, match="already exists"):
        await batch(source, other, model, digit)
    await batch(source, tmp_path / "out.jsonl", model, digit, journal=tmp_path / "all.journal", name="one")
    with pytest.raises(ConfigError, match="another name"):
        await batch(source, tmp_path / "else.jsonl", model, digit, journal=tmp_path / "all.journal", name="one")
    assert source.read_bytes() == before == other.read_bytes()


async def test_grade_only_and_best_of(tmp_path):
    """`grade` looks at responses as they are; `best` keeps the best of n drafts."""
    source = tmp_path / "in.jsonl"
    source.write_text('{"prompt": "a", "response": "f00"}\n{"prompt": "b", "response": "000"}\n')
    model = Writer()
    await run(tmp_path, model, out="graded.jsonl", mode="grade")
    assert [(row["best"], row["best_score"]) for row in lines(tmp_path / "graded.jsonl")] == [("f00", 15 / 16), ("000", 0)]
    assert model.asked == []
    source.write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    await batch(source, tmp_path / "best.jsonl", model, digit, mode="best", n=3, target_score=1)
    assert [row["calls"] for row in lines(tmp_path / "best.jsonl")] == [3, 3]


async def test_forms_are_repaired_without_a_model(tmp_path):
    """No model, no network: the editor repairs responses to the requirements in the data."""
    source = tmp_path / "in.jsonl"
    rows = [{"prompt": "p", "response": "Hello, world.", "requirements": ["no_commas"]}, {"prompt": "q", "response": "fine"}]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    await batch(source, tmp_path / "out.jsonl", False, "lowercase")
    assert [row["best"] for row in lines(tmp_path / "out.jsonl")] == ["hello world.", "fine"]


class Impatient:
    """Stops a run once so many answers have come."""

    def __init__(self, run, answers, *, now):
        self.run, self.left, self.now = run, answers, now

    def __call__(self, text):
        self.left -= 1
        if self.left == 0:
            self.run.stop(now=self.now)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(1, 25), st.booleans()), max_size=4))
async def test_however_often_it_is_interrupted(tmp_path_factory, interruptions):
    """The output is that of an undisturbed run, and nothing is asked twice but what was in flight."""
    tmp_path = tmp_path_factory.mktemp("run")
    await run(tmp_path, Writer(), out="calm.jsonl", n=10)
    asked = []
    for answers, now in interruptions:
        model = Writer()
        going = BatchRun.of(tmp_path / "in.jsonl", tmp_path / "out.jsonl", model, digit, target_score=0.9, max_in_flight=3)
        model.fails = Impatient(going, answers, now=now)
        report = await going.go()
        assert report.end_reason in {"interrupted", ""}
        asked.append(model.asked)
    model = Writer()
    report = await run(tmp_path, model)
    asked.append(model.asked)
    assert (report.end_reason, report.done) == ("", 10)
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "calm.jsonl").read_bytes()
    everything = [call for calls in asked for call in calls]
    lost = sum(3 for _, now in interruptions if now)
    assert len(everything) - len(set(everything)) <= lost


async def test_ids_made_up_for_twins_are_nobody_elses(tmp_path):
    """Also where somebody is called so already, and where ids cannot be written as UTF-8."""
    source = tmp_path / "in.jsonl"
    ids = ["a", "a", "a#2", "a", "\ud800", "\ud800"]
    source.write_text("".join(json.dumps({"id": id, "prompt": f"question {n}"}) + "\n" for n, id in enumerate(ids)))
    model = Writer()
    calm = Writer()
    for _ in range(2):
        await run(tmp_path, model, on_duplicate="rename")
    with Journal(tmp_path / "out.jsonl.journal", read_only=True) as journal:
        assert len({note.id for note, _ in journal.traces("out-jsonl")}) == 6
    assert [json.loads(text)[0]["content"] for text, look in model.asked if look == 0] == [f"question {n}" for n in range(6)]
    await run(tmp_path, calm, out="first.jsonl", on_duplicate="first")
    assert [row["id"] for row in lines(tmp_path / "first.jsonl")] == ["a", "a#2", "\ud800"]


async def test_rows_without_an_id_among_others_get_one(tmp_path):
    """In the column where the others have theirs."""
    (tmp_path / "in.jsonl").write_text('{"id": 1, "prompt": "a"}\n{"id": null, "prompt": "b"}\n{"prompt": "c"}\n')
    await run(tmp_path, Writer())
    ids = [row["id"] for row in lines(tmp_path / "out.jsonl")]
    assert ids[0] == 1
    assert all(isinstance(id, str) and len(id) == 16 for id in ids[1:])


async def test_a_budget_is_no_judge(tmp_path):
    """Cut short by money again and again, and given more, a run comes to what an undisturbed one does."""
    calm = tmp_path / "calm.jsonl"
    given = {"graders": [asking], "n": 8, "noise_aware": False}  # (which the price of a call, and so the budget, does not steer)
    await run(tmp_path, Writer(), out="calm.jsonl", judge=None, **given)
    for calls in (3, 9, 10, 17, 25, 40, 500):
        report = await run(tmp_path, Writer(), budget=Budget(calls=calls), max_in_flight=3, **given)
    assert report.end_reason == ""
    assert (tmp_path / "out.jsonl").read_bytes() == calm.read_bytes()


async def test_one_row_too_dear_is_not_everybodys_end(tmp_path):
    """What the whole budget could not pay is that row's own trouble."""
    rows = [{"id": n, "prompt": "x" * (400_000 if n == 1 else 10)} for n in range(4)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = await run(tmp_path, Writer(), budget=Budget(tokens=50_000))
    assert [row["stop"] for row in lines(tmp_path / "out.jsonl")][1] == "not_started"
    assert (report.done, report.end_reason) == (3, "")


async def test_an_end_after_the_end_of_money_is_an_end(tmp_path):
    """A run whose budget is used up ends when it is told to, whatever its last calls wait for."""

    class Silent(Writer):
        async def complete(self, request):
            if "question 0" in json.dumps(request.messages):
                await asyncio.Event().wait()
            return await super().complete(request)

    source = tmp_path / "in.jsonl"
    rows = [{"id": n, "prompt": f"question {n}" + "x" * (10_500 if n == 5 else 0)} for n in range(9)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    going = BatchRun.of(
        source, tmp_path / "out.jsonl", Silent(), digit, target_score=1, budget=Budget(tokens=5000), max_in_flight=4
    )
    work = asyncio.ensure_future(going.go())
    while going.progress.state != "stopping":
        await asyncio.sleep(0)
    going.stop(now=True)
    report = await asyncio.wait_for(work, 60)
    assert report.end_reason == "interrupted"


@pytest.mark.parametrize("limit", ["output_tokens", "tokens", "usd"])
@pytest.mark.parametrize("stops", [(), (5, 9)])
async def test_a_budget_is_kept_over_interruptions(tmp_path, limit, stops):
    """64 in flight whose answers are as long as they may be: never more than the limit, and the journal knows of it all."""
    served = dict.fromkeys(["output_tokens", "tokens", "usd"], 0)

    class Long(Writer):
        async def complete(self, request):
            text = json.dumps(request.messages[-1]["content"])
            self.asked.append(text)
            written, read = min(3000, request.max_tokens or 3000), len(text) // 4
            for name, amount in zip(served, (written, read + written, 1e-6 * read + 1e-5 * written), strict=True):
                served[name] += amount
            await asyncio.sleep(0.001)
            self.fails(text)
            return Reply(f"{len(self.asked)} long", Usage(1, read, written, cost=None), "length")

    model, most = Long(), {"output_tokens": 40_000, "tokens": 40_000, "usd": 0.4}[limit]
    source, given = table(tmp_path / "in.jsonl", 80), {"prices": {"writer": (1.0, 10.0)}, "target_score": 1, "max_in_flight": 64}
    for stop in (*stops, None):
        going = BatchRun.of(source, tmp_path / "out.jsonl", model, digit, budget=Budget(**{limit: most}), **given)
        model.fails = Impatient(going, stop, now=True) if stop else lambda text: None
        report = await asyncio.wait_for(going.go(), 60)
    assert report.end_reason == "budget"
    assert most / 4 < served[limit] <= most
    with Journal(tmp_path / "out.jsonl.journal", read_only=True) as journal:
        assert journal.run("out-jsonl").metadata["spent"][limit] >= served[limit] * (1 - 1e-9)


async def test_an_endpoint_that_ignores_max_tokens_stands_in_the_report(tmp_path):
    """What was spent of what, and why."""

    class Deaf(Writer):
        async def complete(self, request):
            return Reply("long", Usage(1, 10, 3000, cost=None))

    report = await run(tmp_path, Deaf(), budget=Budget(output_tokens=4000), max_in_flight=1)
    assert "spent 6000 of 4000 output tokens" in report.excess
    assert report.excess in report.summary()


async def test_what_was_never_sent_is_not_paid_for(tmp_path):
    """Calls that waited when a run was interrupted are no part of what its budget was spent on."""
    model = Writer()
    source = table(tmp_path / "in.jsonl", 40)
    for stop in (5, 9):
        going = BatchRun.of(source, tmp_path / "out.jsonl", model, digit, budget=Budget(calls=100), max_in_flight=2, target_score=1)
        model.fails = Impatient(going, stop, now=False)
        await going.go()
        with Journal(tmp_path / "out.jsonl.journal", read_only=True) as journal:
            assert journal.run("out-jsonl").metadata["spent"]["calls"] == len(model.asked)


async def test_what_arrived_before_the_end_is_kept(tmp_path):
    """Of several drafts in flight all that came, also those that a cache would not keep."""

    class Curt(Writer):
        async def complete(self, request):
            reply = await super().complete(request)
            if len(self.asked) == 3:
                going.stop()
            return Reply(reply.text, reply.usage, finish_reason="length")

    model = Curt()
    going = BatchRun.of(table(tmp_path / "in.jsonl", 1), tmp_path / "out.jsonl", model, digit, drafts=3, max_iterations=0)
    await going.go()
    again = Curt()
    await batch(tmp_path / "in.jsonl", tmp_path / "out.jsonl", again, digit, drafts=3, max_iterations=0)
    assert (len(model.asked), again.asked) == (3, [])


async def test_the_errors_file_is_of_this_run(tmp_path):
    """Once the input is mended there is none."""
    source = tmp_path / "in.jsonl"
    source.write_text('{"prompt": "a"}\nnot json\n')
    await run(tmp_path, Writer())
    assert (tmp_path / "out.jsonl.errors.jsonl").exists()
    source.write_text('{"prompt": "a"}\n')
    await run(tmp_path, Writer())
    assert not (tmp_path / "out.jsonl.errors.jsonl").exists()


async def test_a_broken_must_is_told(tmp_path):
    """By name in its row, and counted in the report."""
    source = tmp_path / "in.jsonl"
    source.write_text('{"prompt": "p", "response": "one two"}\n')
    report = await batch(source, tmp_path / "out.jsonl", False, [must("contains:qubit"), "words:1-5"])
    (row,) = lines(tmp_path / "out.jsonl")
    assert (row["best_score"], row["broken"], report.broken) == (1.0, "contains:qubit", 1)


async def test_a_journal_of_somebody_else_is_left_alone(tmp_path):
    """And the error says what it is."""
    (tmp_path / "out.jsonl.journal").write_text("my diary, not yours" * 100)
    model = Writer()
    with pytest.raises(StoreError, match="out.jsonl.journal"):
        await run(tmp_path, model)
    assert model.asked == []
    assert (tmp_path / "out.jsonl.journal").read_text() == "my diary, not yours" * 100


async def test_the_journal_tells_the_whole_story(tmp_path):
    """Every record of every row is there, and the run with its report."""
    report = await run(tmp_path, Writer())
    with Journal(tmp_path / "out.jsonl.journal", read_only=True) as journal:
        (note,) = journal.runs()
        assert note.counts["done"] == 12
        assert note.metadata["report"]["uplift"] == report.uplift
        traces = [trace for _, trace in journal.traces(note.name)]
    assert [t.task.id for t in traces] == [f"r{i}" for i in range(12)]
    assert sum(t.usage.calls for t in traces) == report.usage.calls
    assert all(t.outcome and t.best for t in traces)


def test_without_await(tmp_path):
    """`batch_sync` is the same door; with no output everything is in the journal."""
    source = table(tmp_path / "in.jsonl", 3)
    report = batch_sync(source, None, Writer(), digit, journal=tmp_path / "j", target_score=1)
    assert (report.done, report.output) == (3, None)
    with Journal(tmp_path / "j", read_only=True) as journal:
        assert len(list(journal.traces(report.run))) == 3


async def test_a_grader_that_breaks_breaks_its_row_only(tmp_path):
    """Nothing that a row holds, or a function does with it, ends the run."""

    def brittle(text, task):
        if "2" in task.prompt:
            raise RuntimeError("no 2")
        return 1.0

    report = await run(tmp_path, Writer(), graders=brittle, n=4)
    rows = lines(tmp_path / "out.jsonl")
    assert [row["stop"] for row in rows] == ["target", "target", "failed", "target"]
    assert re.fullmatch(r"RuntimeError: grader brittle: no 2 \(in brittle, test_batch.py line \d+\)", rows[2]["error"])
    assert rows[2]["best"] and rows[2]["best_score"] is None
    assert report.failed == 1


def test_the_report_says_what_the_errors_were(tmp_path):
    """One of each kind, in words: a count of `ModelError` alone tells nobody what to do."""

    def broken(messages):
        raise ValueError("the tape is torn")

    report = batch_sync([{"prompt": "a"}, {"prompt": "b"}], None, broken, lambda text: 0.5, journal=tmp_path / "j")
    assert report.errors == {"ModelError": 2}
    assert "the tape is torn" in report.reasons["ModelError"]
    assert "ModelError, for example: broken raised ValueError: the tape is torn" in "\n".join(report.summary())
