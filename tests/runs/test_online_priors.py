"""What a run learns from its rows while it goes on: never by chance, never waiting for long, and kept for runs that ask for it."""

import asyncio
import json
import random
from contextlib import closing
from dataclasses import replace
from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redraft import Result
from redraft.session import Session
from redraft.protocols import Reply
from redraft.quality.priors import Priors
from redraft.usage import Usage
from redraft.options import Options
from redraft.runs import BatchRun, online_priors
from redraft.runs.online_priors import OnlinePriors, RefitSchedule
from redraft.storage.journal import Journal
from redraft.storage.priors_store import StoredPriors, PriorsStore

from . import killing

N = 48


class Writer:
    """Answers by a hash of what it is sent, each call after some turns of the loop that `dice` throws."""

    name = identity = "writer"

    def __init__(self, seed=0, hangs=None):
        self.asked, self.dice, self.hangs = [], random.Random(seed), hangs

    async def complete(self, request):
        text = json.dumps([dict(m) for m in request.messages])
        if self.hangs and self.hangs in text:
            await asyncio.Event().wait()
        for _ in range(self.dice.randrange(12)):
            await asyncio.sleep(0)
        self.asked.append((text, request.sample_index))
        return Reply(sha256(f"{text}{request.sample_index}".encode()).hexdigest(), Usage(1, 10, 5, cost=0.001))


async def judged(text, model):
    """The first digit of what a model says: chance."""
    said = await model(f"Grade this: {text}")
    return int(said[0], 16) / 16


@pytest.fixture(autouse=True)
def early(monkeypatch):
    """Stages at 8 and 32."""
    monkeypatch.setattr(OnlinePriors, "first_refit", 8)
    monkeypatch.setattr(OnlinePriors, "max_wait", 30.0)


@pytest.fixture
def rows(tmp_path):
    return table(tmp_path / "rows.jsonl")


def table(path, n=N):
    path.write_text("".join(json.dumps({"id": f"r{i}", "prompt": f"question {i}."}) + "\n" for i in range(n)))
    return path


def run_of(rows, output, model, **given):
    return BatchRun.of(rows, output, model, judged, **{"max_in_flight": 6, "min_expected_gain": 0.02, "priors": "shipped", **given})


def noted(journal):
    with closing(Journal(journal, read_only=True)) as opened:
        return next(iter(opened.run("out-jsonl").metadata["online_priors"].values()))


CALM = []


async def calm(folder):
    """An undisturbed run: its output, and what it learned. It is made once: it is always the same."""
    if not CALM:
        await run_of(table(folder / "rows.jsonl"), folder / "out.jsonl", Writer()).go()
        CALM[:] = (folder / "out.jsonl").read_bytes(), noted(folder / "out.jsonl.journal")
    return CALM


async def test_later_rows_go_by_what_earlier_ones_taught(tmp_path, rows):
    """From each stage on something else is believed, and it is noted with the run."""
    report = await run_of(rows, tmp_path / "out.jsonl", Writer()).go()
    told = noted(tmp_path / "out.jsonl.journal")
    assert report.done == N
    assert Priors.from_dict(told["start"]) == Priors()
    assert [*told["refits"]] == ["8", "32"]
    assert [Priors.from_dict(p).tasks for p in told["refits"].values()] == [4, 16]


@settings(max_examples=3, deadline=None)
@given(st.integers(1, 1000), st.integers(1, 12))
async def test_who_ends_first_makes_no_difference(tmp_path_factory, seed, width):
    """However the rows overtake each other, the output is the same."""
    folder, other = (tmp_path_factory.mktemp("run") for _ in range(2))
    wanted, learned = await calm(folder)
    await run_of(table(other / "rows.jsonl"), other / "out.jsonl", Writer(seed), max_in_flight=width).go()
    assert noted(other / "out.jsonl.journal") == learned
    assert (other / "out.jsonl").read_bytes() == wanted


@pytest.mark.parametrize("answers", [[3], [20, 60], [10, 10, 10, 10, 10, 10, 10, 10]])
@pytest.mark.parametrize("now", [False, True])
async def test_an_interrupted_run_comes_to_the_same(tmp_path, tmp_path_factory, answers, now):
    """Also across a stage: what was learned is taken from the journal, or learned again from the same rows."""
    wanted, learned = await calm(tmp_path_factory.mktemp("calm"))
    rows = table(tmp_path / "rows.jsonl")
    for some in answers:
        model = Writer(some)
        going = run_of(rows, tmp_path / "out.jsonl", model)
        work = asyncio.ensure_future(going.go())
        while len(model.asked) < some and not work.done():
            await asyncio.sleep(0)
        going.stop(now=now)
        await work
    report = await run_of(rows, tmp_path / "out.jsonl", Writer(99)).go()
    assert (report.end_reason, report.done) == ("", N)
    assert noted(tmp_path / "out.jsonl.journal") == learned
    assert (tmp_path / "out.jsonl").read_bytes() == wanted


async def test_a_row_that_hangs_holds_nobody_up_for_long(tmp_path, rows, monkeypatch):
    """The stage is left out for the whole run, also for one that goes on with it; that is said and noted."""
    monkeypatch.setattr(OnlinePriors, "max_wait", 0.05)
    said = []
    model = Writer(hangs="question 2.")
    going = run_of(rows, tmp_path / "out.jsonl", model, say=said.append)
    work = asyncio.ensure_future(going.go())
    while going.progress.done < N - 1:
        await asyncio.sleep(0.01)
    going.stop(now=True)
    assert (await work).done == N - 1
    assert noted(tmp_path / "out.jsonl.journal")["refits"] == {"8": None, "32": None}
    assert any("priors were not refitted for rows from 8 on" in line for line in said)
    report = await run_of(rows, tmp_path / "out.jsonl", Writer()).go()
    assert (report.done, report.end_reason) == (N, "")
    assert noted(tmp_path / "out.jsonl.journal")["refits"] == {"8": None, "32": None}


@pytest.mark.parametrize(
    "given",
    [{"learn": False}, {"priors": Priors(draft_mean=0.3)}, {"noise_aware": False}, {"mode": "best"}],
    ids=["not asked for", "own priors", "plain plan", "another mode"],
)
async def test_where_nothing_is_learned(tmp_path, rows, given):
    """Nobody waits, no stage is noted, and nothing is kept for other runs."""
    report = await run_of(rows, tmp_path / "out.jsonl", Writer(), **given).go()
    assert report.done == N
    with closing(Journal(tmp_path / "out.jsonl.journal", read_only=True)) as opened:
        told = opened.run("out-jsonl").metadata.get("online_priors", {})
    assert all(one["refits"] == {} for one in told.values())
    assert list(PriorsStore.in_folder().entries()) == []


async def test_a_whole_run_teaches_those_that_ask_for_it(tmp_path, rows):
    """What it taught is kept, a run with priors="learned" begins with it; this one, taken up again, with what it began with."""
    await run_of(rows, tmp_path / "out.jsonl", Writer(), priors=None).go()
    ((_, kept),) = PriorsStore.in_folder().entries()
    assert kept.priors.tasks == N
    assert "out-jsonl" in kept.source
    with closing(Journal(tmp_path / "out.jsonl.journal", read_only=True)) as opened:
        assert opened.run("out-jsonl").metadata["pair"]["key"] == kept.priors_key.key
    again = await run_of(rows, tmp_path / "out.jsonl", Writer(), priors=None).go()
    assert again.usage.calls == 0
    assert Priors.from_dict(noted(tmp_path / "out.jsonl.journal")["start"]) == Priors()
    (tmp_path / "b").mkdir()
    report = await run_of(rows, tmp_path / "b" / "out.jsonl", Writer(), priors="learned").go()
    assert Priors.from_dict(noted(tmp_path / "b" / "out.jsonl.journal")["start"]) == kept.priors
    assert (report.priors, report.initial_prior_tasks) == (kept.priors.to_dict(), N)
    with closing(Journal(tmp_path / "b" / "out.jsonl.journal", read_only=True)) as opened:
        [first, *_, last] = [Result(trace).metadata["priors"] for _, trace in opened.traces("out-jsonl")]
    stages = noted(tmp_path / "b" / "out.jsonl.journal")["refits"]
    assert (first, last) == (kept.priors.to_dict(), stages["32"])


async def test_the_same_command_gives_the_same_on_another_day(tmp_path, rows):
    """What batches taught since changes no byte of it, and no call."""
    outputs, asked = [], []
    for name in ("monday", "tuesday"):
        (tmp_path / name).mkdir()
        model = Writer()
        report = await run_of(rows, tmp_path / name / "out.jsonl", model, priors=None).go()
        outputs.append((tmp_path / name / "out.jsonl").read_bytes())
        asked.append(sorted(model.asked))
        assert (report.priors, report.initial_prior_tasks) == (None, 0)
        ((_, kept),) = PriorsStore.in_folder().entries()
        PriorsStore.in_folder().save(replace(kept, priors=Priors(draft_mean=0.2, gain=0.4, noise_sd=0.3, tasks=10**6)))
    assert outputs[0] == outputs[1]
    assert asked[0] == asked[1]


@pytest.mark.parametrize(("begun", "then"), [("learned", "learned"), ("learned", None), (None, None), (None, "shipped")])
async def test_a_run_that_goes_on_keeps_the_priors_it_began_with(tmp_path, rows, begun, then):
    """Whatever was learned, or forgotten, while it rested; also where it asked for learned ones and there were none."""
    for kept in (None, Priors(draft_mean=0.2, tasks=10**6)):
        folder = tmp_path / str(kept and kept.tasks)
        folder.mkdir()
        pair = pair_of_all()
        if kept:
            PriorsStore.in_folder().save(StoredPriors.create(pair, kept, "a test"))
        model = Writer()
        going = run_of(rows, folder / "out.jsonl", model, priors=begun)
        work = asyncio.ensure_future(going.go())
        while len(model.asked) < 60 and not work.done():
            await asyncio.sleep(0)
        going.stop()
        assert (await work).end_reason == "interrupted"
        start = noted(folder / "out.jsonl.journal")["start"]
        assert Priors.from_dict(start) == (kept if kept and begun == "learned" else Priors())
        PriorsStore.in_folder().save(StoredPriors.create(pair, Priors(draft_mean=0.9, tasks=10**6 + 1), "since"))
        assert (await run_of(rows, folder / "out.jsonl", Writer(), priors=then).go()).done == N
        assert noted(folder / "out.jsonl.journal")["start"] == start


async def test_learned_priors_may_be_asked_for_later(tmp_path, rows):
    """Rows that have not ended go by them; that there are none is said."""
    said = []
    model = Writer()
    going = run_of(rows, tmp_path / "out.jsonl", model, priors=None)
    work = asyncio.ensure_future(going.go())
    while len(model.asked) < 60 and not work.done():
        await asyncio.sleep(0)
    going.stop()
    await work
    kept = StoredPriors.create(pair_of_all(), Priors(draft_mean=0.2, tasks=10**6), "a test")
    PriorsStore.in_folder().save(kept)
    assert (await run_of(rows, tmp_path / "out.jsonl", Writer(), priors="learned", say=said.append).go()).done == N
    assert Priors.from_dict(noted(tmp_path / "out.jsonl.journal")["start"]) == kept.priors
    assert not any("nothing was learned" in line for line in said)
    PriorsStore.in_folder().delete(PriorsStore.in_folder().path_for(kept.priors_key))
    await run_of(rows, tmp_path / "other.jsonl", Writer(), priors="learned", say=said.append).go()
    assert any("nothing was learned" in line for line in said)


def pair_of_all():
    """The pair that all runs here are of."""
    return Session(Options(), Writer(), judged).priors_key


async def test_fewer_rows_do_not_replace_what_more_taught(tmp_path, rows):
    """What more tasks taught is kept, and that is said; as many or more replace it."""
    more = await run_of(table(tmp_path / "more.jsonl", 64), tmp_path / "more-out.jsonl", Writer(), priors=None).go()
    assert "priors fitted to 64 rows are saved for --priors learned: redraft priors" in more.summary()
    ((_, before),) = PriorsStore.in_folder().entries()
    less = await run_of(rows, tmp_path / "out.jsonl", Writer(), priors=None).go()
    told = "priors fitted to 64 tasks stay saved for --priors learned, not those of 48 rows now: redraft priors"
    assert told in less.summary()
    assert [kept for _, kept in PriorsStore.in_folder().entries()] == [before]
    (tmp_path / "b").mkdir()
    await run_of(table(tmp_path / "as-many.jsonl", 64), tmp_path / "b" / "out.jsonl", Writer(), priors=None).go()
    ((_, after),) = PriorsStore.in_folder().entries()
    assert (after.priors.tasks, "b/out" in after.source) == (64, True)


async def test_who_learns_nothing_may_begin_with_what_was_taught_all_the_same(tmp_path, rows):
    """Where it asks for that; what it began with is said, and what is kept stays."""
    await run_of(rows, tmp_path / "first.jsonl", Writer(), priors=None).go()
    ((_, kept),) = PriorsStore.in_folder().entries()
    taught = await run_of(rows, tmp_path / "out.jsonl", Writer(), priors="learned", learn=False).go()
    assert Priors.from_dict(noted(tmp_path / "out.jsonl.journal")["start"]) == kept.priors
    assert "started with priors fitted to 48 tasks" in taught.summary()
    (tmp_path / "b").mkdir()
    shipped = await run_of(rows, tmp_path / "b" / "out.jsonl", Writer(), learn=False).go()
    assert Priors.from_dict(noted(tmp_path / "b" / "out.jsonl.journal")["start"]) == Priors()
    assert not any("priors" in line for line in shipped.summary())
    assert [one for _, one in PriorsStore.in_folder().entries()] == [kept]


async def test_from_which_row_on_is_gone_by_what(tmp_path, rows):
    """The report says so in words and as data, and so does what is kept of the run."""
    report = await run_of(rows, tmp_path / "out.jsonl", Writer()).go()
    assert (
        "rows from 8 on use priors fitted to 4 earlier rows; rows from 32 on use priors fitted to 16 earlier rows"
        in report.summary()
    )
    with closing(Journal(tmp_path / "out.jsonl.journal", read_only=True)) as opened:
        told = opened.run("out-jsonl").metadata["report"]
    assert told["prior_refits"] == [{"from": 8, "rows": 4}, {"from": 32, "rows": 16}]
    assert (told["initial_prior_tasks"], told["prior_rows"], told["saved_prior_tasks"]) == (0, 48, 48)


@pytest.mark.parametrize("some", [60, 10**6], ids=["cut short", "whole"])
async def test_shipped_priors_count_in_a_run_that_goes_on(tmp_path, rows, some):
    """It began with what an earlier run had taught; from now on it does as if not, and what was finished stays."""
    await run_of(rows, tmp_path / "first.jsonl", Writer(), priors=None).go()
    ((_, kept),) = PriorsStore.in_folder().entries()
    model = Writer()
    going = run_of(rows, tmp_path / "out.jsonl", model, priors="learned")
    work = asyncio.ensure_future(going.go())
    while len(model.asked) < some and not work.done():
        await asyncio.sleep(0)
    going.stop()
    done = (await work).done
    assert Priors.from_dict(noted(tmp_path / "out.jsonl.journal")["start"]) == kept.priors
    report = await run_of(rows, tmp_path / "out.jsonl", Writer()).go()
    assert report.done == N
    assert report.reused >= done > 0
    assert Priors.from_dict(noted(tmp_path / "out.jsonl.journal")["start"]) == Priors()
    learned = [*noted(tmp_path / "out.jsonl.journal")["refits"]]
    assert learned == ([] if done == N else ["8", "32"])


async def test_a_run_that_was_cut_short_or_is_small_teaches_nobody(tmp_path, rows):
    """Its rows may be those that are easy; and few rows tell little."""
    await run_of(
        table(tmp_path / "few.jsonl", online_priors.MIN_ROWS_TO_SAVE - 1), tmp_path / "few-out.jsonl", Writer(), priors=None
    ).go()
    going = run_of(rows, tmp_path / "out.jsonl", Writer(), priors=None)
    work = asyncio.ensure_future(going.go())
    while going.progress.done < online_priors.MIN_ROWS_TO_SAVE + 2:
        await asyncio.sleep(0)
    going.stop()
    await work
    assert list(PriorsStore.in_folder().entries()) == []


@given(st.integers(0, 4), st.integers(1, 20))
def test_pupils_are_evenly_chosen(nth, first):
    """As many as there may be, all from before half of the stage's place, in order; and it is known of each whether it ended."""
    school, n = RefitSchedule(Priors(), first=first), first * 4**nth
    for i in range(n):
        school.row_seen(i, f"r{i}", finished=False)
    stage = school.due_refit(n)
    places = [int(id[1:]) for id in school.training_rows(stage)]
    half = stage // 2
    assert stage == n
    assert places == sorted(set(places)) and len(places) == len(set(places))
    assert all(place < half for place in places)
    assert len(places) >= min(half, online_priors.MAX_TRAINING_ROWS // 2)
    assert len(places) <= online_priors.MAX_TRAINING_ROWS
    assert school.is_ready(stage) is (not places)
    for place in range(half):
        school.row_finished(place)
    assert school.is_ready(stage)
    assert school.priors(n) == Priors()
    school.refits[stage] = Priors(draft_mean=0.25)
    assert school.priors(n).draft_mean == 0.25
    again = RefitSchedule.from_note(Priors(), json.loads(json.dumps(school.as_data())), first=first)
    assert again.priors(n) == school.priors(n) and again.due_refit(n) is None


def test_the_command_line_can_do_without(tmp_path, rows, serve):
    """With --no-learn nothing is kept for other runs; without it, it is."""
    server = serve("--latency", 0.001)
    command = [part for part in killing.batch(rows, tmp_path / "out.jsonl", server.model) if part not in {"--priors", "shipped"}]
    assert killing.run_here([*command, "--no-learn"]).code == 0
    assert list(PriorsStore.in_folder().entries()) == []
    command = [part for part in killing.batch(rows, tmp_path / "b.jsonl", server.model) if part not in {"--priors", "shipped"}]
    assert killing.run_here(command).code == 0
    assert len(list(PriorsStore.in_folder().entries())) == 1


async def test_a_shelf_that_cannot_be_written_spoils_no_run(tmp_path, rows, monkeypatch):
    """It is said, and the run has ended well."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("REDRAFT_HOME", str(tmp_path / "file"))
    said = []
    report = await run_of(rows, tmp_path / "out.jsonl", Writer(), say=said.append).go()
    assert (report.end_reason, report.done) == ("", N)
    assert any("could not be saved" in line for line in said)
