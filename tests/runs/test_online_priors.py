"""What a run learns from its rows: it does not depend on their order of completion, delays no row
for long, and is saved.
"""

import asyncio
import json
import random
from contextlib import closing
from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redraft import Feedback, Result, Task
from redraft.loop.records import Candidate
from redraft.loop.trace import PanelGrader, Trace
from redraft.plans.quality.priors import Priors
from redraft.protocols import Reply
from redraft.runs import BatchRun, online_priors
from redraft.runs.online_priors import OnlinePriors, RefitSchedule
from redraft.session.options import Options
from redraft.storage.journal import Journal
from redraft.storage.priors_store import PriorsStore, StoredPriors
from redraft.usage import Usage
from sessions import make_session

from . import killing

N = 24


class Writer:
    """Answers by a hash of the messages, each call after a random number of turns of the event
    loop.
    """

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
        return Reply(
            sha256(f"{text}{request.sample_index}".encode()).hexdigest(),
            Usage(1, 10, 5, cost=0.001),
        )


async def digit_judge(text, model):
    """A score from the first digit of a model's answer, which is random."""
    said = await model(f"Grade this: {text}")
    return int(said[0], 16) / 16


@pytest.fixture(autouse=True)
def early(monkeypatch):
    """Refit the priors before rows 4 and 16, and save them after fewer rows, so that a small run
    does all of it.
    """
    monkeypatch.setattr(online_priors, "MIN_ROWS_TO_SAVE", 16)
    monkeypatch.setattr(online_priors, "LAST_DOUBLING", 4)
    monkeypatch.setattr(OnlinePriors, "first_refit", 4)
    monkeypatch.setattr(OnlinePriors, "max_wait", 30.0)


@pytest.fixture
def rows(tmp_path):
    return table(tmp_path / "rows.jsonl")


def table(path, n=N):
    path.write_text(
        "".join(json.dumps({"id": f"r{i}", "prompt": f"question {i}."}) + "\n" for i in range(n))
    )
    return path


def run_of(rows, output, model, **given):
    return BatchRun.from_arguments(
        rows,
        output,
        model,
        digit_judge,
        **{"max_in_flight": 6, "min_expected_gain": 0.02, "priors": "shipped", **given},
    )


def saved_refits(journal):
    with closing(Journal(journal, read_only=True)) as opened:
        return next(iter(opened.run("out-jsonl").metadata["online_priors"].values()))


CALM = []


async def undisturbed_run(folder):
    """Return the output of an undisturbed run and what it learned. It runs once, since it is always
    the same.
    """
    if not CALM:
        await run_of(table(folder / "rows.jsonl"), folder / "out.jsonl", Writer()).go()
        CALM[:] = (folder / "out.jsonl").read_bytes(), saved_refits(folder / "out.jsonl.journal")
    return CALM


@pytest.mark.slow
async def test_later_rows_use_priors_learned_from_earlier_ones(tmp_path, rows):
    """From each refit on the priors differ, and the run saves them."""
    report = await run_of(rows, tmp_path / "out.jsonl", Writer()).go()
    told = saved_refits(tmp_path / "out.jsonl.journal")
    assert report.rows.done == N
    assert Priors.from_dict(told["start"]) == Priors()
    assert [*told["refits"]] == ["4", "16"]
    assert [Priors.from_dict(p).tasks for p in told["refits"].values()] == [2, 8]


@pytest.mark.slow
@settings(max_examples=3, deadline=None)
@given(st.integers(1, 1000), st.integers(1, 12))
async def test_the_order_of_completion_does_not_change_the_output(tmp_path_factory, seed, width):
    """The output is the same, however the rows overtake each other."""
    folder, other = (tmp_path_factory.mktemp("run") for _ in range(2))
    wanted, learned = await undisturbed_run(folder)
    await run_of(
        table(other / "rows.jsonl"), other / "out.jsonl", Writer(seed), max_in_flight=width
    ).go()
    assert saved_refits(other / "out.jsonl.journal") == learned
    assert (other / "out.jsonl").read_bytes() == wanted


@pytest.mark.parametrize(
    ("answers", "now"),
    [
        ([3], True),
        ([10, 30], False),
        ([10, 30], True),
        pytest.param([5] * 8, False, marks=pytest.mark.slow),
        ([5] * 8, True),
    ],
)
async def test_an_interrupted_run_learns_the_same_priors(tmp_path, tmp_path_factory, answers, now):
    """Across a refit, too, priors are read from the journal or learned again from the same rows."""
    wanted, learned = await undisturbed_run(tmp_path_factory.mktemp("calm"))
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
    assert (report.stop, report.rows.done) == ("", N)
    assert saved_refits(tmp_path / "out.jsonl.journal") == learned
    assert (tmp_path / "out.jsonl").read_bytes() == wanted


async def test_a_hanging_row_delays_the_others_for_a_bounded_time(tmp_path, rows, monkeypatch):
    """The refit is skipped for the whole run, also after it resumes; a message says so, and the run
    saves it.
    """
    monkeypatch.setattr(OnlinePriors, "max_wait", 0.05)
    said = []
    model = Writer(hangs="question 1.")
    going = run_of(rows, tmp_path / "out.jsonl", model, say=said.append)
    work = asyncio.ensure_future(going.go())
    while going.progress.done < N - 1:
        await asyncio.sleep(0.01)
    going.stop(now=True)
    assert (await work).rows.done == N - 1
    assert saved_refits(tmp_path / "out.jsonl.journal")["refits"] == {"4": None, "16": None}
    assert any("priors were not refitted for rows from 4 on" in line for line in said)
    report = await run_of(rows, tmp_path / "out.jsonl", Writer()).go()
    assert (report.rows.done, report.stop) == (N, "")
    assert saved_refits(tmp_path / "out.jsonl.journal")["refits"] == {"4": None, "16": None}


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize(
    "given",
    [
        {"learn": False},
        {"priors": Priors(draft_mean=0.3)},
        {"noise_aware": False},
        {"mode": "best"},
    ],
    ids=["not asked for", "own priors", "plain plan", "another mode"],
)
async def test_a_run_without_learning_waits_for_no_row(tmp_path, rows, given):
    """It saves no refit, and no priors for other runs."""
    report = await run_of(rows, tmp_path / "out.jsonl", Writer(), **given).go()
    assert report.rows.done == N
    with closing(Journal(tmp_path / "out.jsonl.journal", read_only=True)) as opened:
        told = opened.run("out-jsonl").metadata.get("online_priors", {})
    assert all(one["refits"] == {} for one in told.values())
    assert list(PriorsStore.in_folder().entries()) == []


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("priors", [None, "shipped"])
async def test_a_run_that_was_not_asked_writes_nothing_to_the_folder_of_the_user(
    tmp_path, rows, priors
):
    """Its own rows learn all the same, and its journal can be learned from."""
    report = await run_of(rows, tmp_path / "out.jsonl", Writer(), priors=priors).go()
    assert [refit["from"] for refit in report.priors.refits] == [4, 16]
    assert (report.priors.offered_rows, report.priors.saved_tasks) == (0, 0)
    assert list(PriorsStore.in_folder().entries()) == []


@pytest.mark.slow
async def test_a_complete_run_saves_priors_for_later_runs(tmp_path, rows):
    """A run with priors="learned" begins with them; this run, resumed, keeps the priors it began
    with.
    """
    await run_of(rows, tmp_path / "out.jsonl", Writer(), priors="learned").go()
    ((_, kept),) = PriorsStore.in_folder().entries()
    assert kept.priors.tasks == N
    assert "run out.jsonl in " in kept.source
    with closing(Journal(tmp_path / "out.jsonl.journal", read_only=True)) as opened:
        assert opened.run("out-jsonl").metadata["priors_key"]["key"] == kept.priors_key.key
    again = await run_of(rows, tmp_path / "out.jsonl", Writer(), priors="learned").go()
    assert again.spending.calls == 0
    assert Priors.from_dict(saved_refits(tmp_path / "out.jsonl.journal")["start"]) == Priors()
    (tmp_path / "b").mkdir()
    report = await run_of(rows, tmp_path / "b" / "out.jsonl", Writer(), priors="learned").go()
    assert (
        Priors.from_dict(saved_refits(tmp_path / "b" / "out.jsonl.journal")["start"]) == kept.priors
    )
    assert (report.priors.initial, report.priors.initial_tasks) == (kept.priors.to_dict(), N)
    with closing(Journal(tmp_path / "b" / "out.jsonl.journal", read_only=True)) as opened:
        [first, *_, last] = [Result(trace).priors for _, trace in opened.traces("out-jsonl")]
    refits = saved_refits(tmp_path / "b" / "out.jsonl.journal")["refits"]
    assert (first, last) == (kept.priors.to_dict(), refits["16"])


@pytest.mark.slow
async def test_a_repeated_run_ignores_priors_learned_since(tmp_path, rows):
    """Later batches change no byte of its output and cause no call."""
    outputs, asked = [], []
    for name in ("monday", "tuesday"):
        (tmp_path / name).mkdir()
        model = Writer()
        report = await run_of(rows, tmp_path / name / "out.jsonl", model, priors=None).go()
        outputs.append((tmp_path / name / "out.jsonl").read_bytes())
        asked.append(sorted(model.asked))
        assert (report.priors.initial, report.priors.initial_tasks) == (None, 0)
        since = Priors(draft_mean=0.2, gain=0.4, noise_sd=0.3, tasks=10**6)
        PriorsStore.in_folder().save(StoredPriors.create(pair_of_all(), since, "since"))
    assert outputs[0] == outputs[1]
    assert asked[0] == asked[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("begun", "then"), [("learned", "learned"), ("learned", None), (None, None), (None, "shipped")]
)
async def test_a_resumed_run_keeps_the_priors_it_began_with(tmp_path, rows, begun, then):
    """Priors learned or forgotten in between have no effect, also where it asked for learned ones
    and there were none.
    """
    for kept in (None, Priors(draft_mean=0.2, tasks=10**6)):
        folder = tmp_path / str(kept and kept.tasks)
        folder.mkdir()
        pair = pair_of_all()
        if kept:
            PriorsStore.in_folder().save(StoredPriors.create(pair, kept, "a test"))
        model = Writer()
        going = run_of(rows, folder / "out.jsonl", model, priors=begun)
        work = asyncio.ensure_future(going.go())
        while len(model.asked) < 30 and not work.done():
            await asyncio.sleep(0)
        going.stop()
        assert (await work).stop == "interrupted"
        start = saved_refits(folder / "out.jsonl.journal")["start"]
        assert Priors.from_dict(start) == (kept if kept and begun == "learned" else Priors())
        PriorsStore.in_folder().save(
            StoredPriors.create(pair, Priors(draft_mean=0.9, tasks=10**6 + 1), "since")
        )
        assert (await run_of(rows, folder / "out.jsonl", Writer(), priors=then).go()).rows.done == N
        assert saved_refits(folder / "out.jsonl.journal")["start"] == start


@pytest.mark.slow
async def test_learned_priors_may_be_requested_when_resuming(tmp_path, rows):
    """Unfinished rows use them; a message says where there are none."""
    said = []
    model = Writer()
    going = run_of(rows, tmp_path / "out.jsonl", model, priors=None)
    work = asyncio.ensure_future(going.go())
    while len(model.asked) < 30 and not work.done():
        await asyncio.sleep(0)
    going.stop()
    await work
    kept = StoredPriors.create(pair_of_all(), Priors(draft_mean=0.2, tasks=10**6), "a test")
    PriorsStore.in_folder().save(kept)
    assert (
        await run_of(rows, tmp_path / "out.jsonl", Writer(), priors="learned", say=said.append).go()
    ).rows.done == N
    assert Priors.from_dict(saved_refits(tmp_path / "out.jsonl.journal")["start"]) == kept.priors
    assert not any("no priors are saved" in line for line in said)
    PriorsStore.in_folder().delete(PriorsStore.in_folder().path_for(kept.priors_key))
    await run_of(rows, tmp_path / "other.jsonl", Writer(), priors="learned", say=said.append).go()
    assert any("no priors are saved" in line for line in said)


def pair_of_all():
    """The model and judge of all runs in this file."""
    return make_session(Options(), Writer(), digit_judge).knowledge.priors_key


@pytest.mark.slow
async def test_priors_of_fewer_rows_do_not_replace_those_of_more(tmp_path, rows):
    """Priors of more tasks are kept with a message; as many or more replace them."""
    more = await run_of(
        table(tmp_path / "more.jsonl", 32), tmp_path / "more-out.jsonl", Writer(), priors="learned"
    ).go()
    assert (
        "priors fitted to 32 rows are saved for runs with learned priors: redraft priors"
        in more.summary()
    )
    ((_, before),) = PriorsStore.in_folder().entries()
    less = await run_of(rows, tmp_path / "out.jsonl", Writer(), priors="learned").go()
    told = "priors fitted to 32 tasks stay saved for runs with learned priors, not those of 24 rows now: redraft priors"
    assert told in less.summary()
    assert [kept for _, kept in PriorsStore.in_folder().entries()] == [before]
    (tmp_path / "b").mkdir()
    await run_of(
        table(tmp_path / "as-many.jsonl", 32),
        tmp_path / "b" / "out.jsonl",
        Writer(),
        priors="learned",
    ).go()
    ((_, after),) = PriorsStore.in_folder().entries()
    assert (after.priors.tasks, "b/out" in after.source) == (32, True)


@pytest.mark.slow
async def test_a_run_without_learning_may_begin_with_learned_priors(tmp_path, rows):
    """A message names the priors it began with, and the saved ones stay."""
    await run_of(rows, tmp_path / "first.jsonl", Writer(), priors="learned").go()
    ((_, kept),) = PriorsStore.in_folder().entries()
    taught = await run_of(
        rows, tmp_path / "out.jsonl", Writer(), priors="learned", learn=False
    ).go()
    assert Priors.from_dict(saved_refits(tmp_path / "out.jsonl.journal")["start"]) == kept.priors
    assert "started with priors fitted to 24 tasks" in taught.summary()
    (tmp_path / "b").mkdir()
    shipped = await run_of(rows, tmp_path / "b" / "out.jsonl", Writer(), learn=False).go()
    assert Priors.from_dict(saved_refits(tmp_path / "b" / "out.jsonl.journal")["start"]) == Priors()
    assert not any("priors" in line for line in shipped.summary())
    assert [one for _, one in PriorsStore.in_folder().entries()] == [kept]


@pytest.mark.slow
async def test_the_report_says_from_which_row_each_priors_apply(tmp_path, rows):
    """The report says so in words and as data, and so do the saved data of the run."""
    report = await run_of(rows, tmp_path / "out.jsonl", Writer(), priors="learned").go()
    assert (
        "rows from 4 on use priors fitted to 2 earlier rows; rows from 16 on use priors fitted to 8 earlier rows"
        in report.summary()
    )
    with closing(Journal(tmp_path / "out.jsonl.journal", read_only=True)) as opened:
        told = opened.run("out-jsonl").metadata["report"]["priors"]
    assert told["refits"] == [{"from": 4, "rows": 2}, {"from": 16, "rows": 8}]
    assert (told["initial_tasks"], told["offered_rows"], told["saved_tasks"]) == (
        0,
        24,
        24,
    )


@pytest.mark.parametrize("some", [30, 10**6], ids=["cut short", "whole"])
@pytest.mark.slow
async def test_a_resumed_run_may_change_to_shipped_priors(tmp_path, rows, some):
    """A run that began with learned priors uses shipped ones for the remaining rows; finished rows
    stay.
    """
    await run_of(rows, tmp_path / "first.jsonl", Writer(), priors="learned").go()
    ((_, kept),) = PriorsStore.in_folder().entries()
    model = Writer()
    going = run_of(rows, tmp_path / "out.jsonl", model, priors="learned")
    work = asyncio.ensure_future(going.go())
    while len(model.asked) < some and not work.done():
        await asyncio.sleep(0)
    going.stop()
    done = (await work).rows.done
    assert Priors.from_dict(saved_refits(tmp_path / "out.jsonl.journal")["start"]) == kept.priors
    report = await run_of(rows, tmp_path / "out.jsonl", Writer()).go()
    assert report.rows.done == N
    assert report.rows.reused >= done > 0
    assert Priors.from_dict(saved_refits(tmp_path / "out.jsonl.journal")["start"]) == Priors()
    learned = [*saved_refits(tmp_path / "out.jsonl.journal")["refits"]]
    assert learned == ([] if done == N else ["4", "16"])


@pytest.mark.slow
async def test_an_interrupted_or_small_run_saves_no_priors(tmp_path, rows):
    """Finished rows of an interrupted run may be the easy ones, and few rows say little."""
    await run_of(
        table(tmp_path / "few.jsonl", online_priors.MIN_ROWS_TO_SAVE - 1),
        tmp_path / "few-out.jsonl",
        Writer(),
        priors="learned",
    ).go()
    going = run_of(rows, tmp_path / "out.jsonl", Writer(), priors="learned")
    work = asyncio.ensure_future(going.go())
    while going.progress.done < online_priors.MIN_ROWS_TO_SAVE + 2:
        await asyncio.sleep(0)
    going.stop()
    await work
    assert list(PriorsStore.in_folder().entries()) == []


@given(st.integers(0, 4), st.integers(1, 20))
def test_rows_to_learn_from_are_evenly_chosen(nth, first):
    """There are as many as allowed, all from the first half before the refit, in order; each is
    known as finished or not.
    """
    schedule, n = RefitSchedule(Priors(), first=first), first
    for _ in range(nth):
        n *= 2 if n < online_priors.LAST_DOUBLING else 4
    for i in range(n):
        schedule.row_seen(i, f"r{i}", finished=False)
    refit = schedule.due_refit(n)
    places = [int(id[1:]) for id in schedule.training_rows(refit)]
    half = refit // 2
    assert refit == n
    assert places == sorted(set(places)) and len(places) == len(set(places))
    assert all(place < half for place in places)
    assert len(places) >= min(half, online_priors.MAX_TRAINING_ROWS // 2)
    assert len(places) <= online_priors.MAX_TRAINING_ROWS
    assert schedule.is_ready(refit) is (not places)
    for place in range(half):
        schedule.row_finished(place)
    assert schedule.is_ready(refit)
    assert schedule.priors(n) == Priors()
    schedule.refits[refit] = Priors(draft_mean=0.25)
    assert schedule.priors(n).draft_mean == 0.25
    again = RefitSchedule.from_data(
        Priors(), json.loads(json.dumps(schedule.as_data())), first=first
    )
    assert again.priors(n) == schedule.priors(n) and again.due_refit(n) is None


@pytest.mark.slow
def test_only_learned_priors_are_saved_by_a_command(tmp_path, rows, serve):
    """With learned priors a batch saves what it learned, unless --no-learn says otherwise;
    without it, it saves nothing.
    """
    server = serve("--latency", 0.001)

    def run(name, *more, plan=None):
        command = killing.batch(rows, tmp_path / name, server.model, *more, plan=plan)
        assert killing.run_here(command).code == 0
        return len(list(PriorsStore.in_folder().entries()))

    assert run("a.jsonl") == 0
    assert run("b.jsonl", "--no-learn", plan="learned") == 0
    assert run("c.jsonl", plan="learned") == 1


@pytest.mark.slow
async def test_an_unwritable_priors_folder_fails_no_run(tmp_path, rows, monkeypatch):
    """A message says so, and the run ends as finished."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("REDRAFT_HOME", str(tmp_path / "file"))
    said = []
    report = await run_of(
        rows, tmp_path / "out.jsonl", Writer(), say=said.append, priors="learned"
    ).go()
    assert (report.stop, report.rows.done) == ("", N)
    assert any("could not be saved" in line for line in said)


# ---- second looks


class Reader:
    """Counts how often each text was graded, and grades by a hash that differs from grade to
    grade.
    """

    name = identity = "reader"

    def __init__(self):
        self.asked = []

    async def complete(self, request):
        text = json.dumps([dict(m) for m in request.messages])
        self.asked.append(text)
        return Reply(
            sha256(f"{text}{request.sample_index}".encode()).hexdigest(),
            Usage(1, 10, 5, cost=0.001),
        )


def looked_at(journal):
    """Return the numbers of the rows whose first answer was graded twice before any other."""
    with closing(Journal(journal, read_only=True)) as opened:
        traces = {row.position: trace for row, trace in opened.traces("out-jsonl")}
    grades = {
        n: [r.candidate for r in trace.records if isinstance(r, Feedback)]
        for n, trace in traces.items()
    }
    return sorted(n for n, graded in grades.items() if graded[:2] == [0, 0])


@pytest.fixture
def calibrated(monkeypatch):
    """Second looks at every fourth of the first 16 rows, and refits from row 8 on."""
    monkeypatch.setattr(online_priors, "CALIBRATION_ROWS", 16)
    monkeypatch.setattr(OnlinePriors, "first_calibrated_refit", 8)


async def test_every_fourth_of_the_first_rows_gets_a_second_look(tmp_path, rows, calibrated):
    """They are announced, counted and paid for, and the noise is learned from them."""
    said = []
    run = run_of(
        rows, tmp_path / "out.jsonl", Writer(), judge=Reader(), say=said.append, max_iterations=0
    )
    expected = (await run.prepare()).calls
    report = await run.go()
    assert looked_at(tmp_path / "out.jsonl.journal") == [0, 4, 8, 12]
    assert any("calibrating: 4 second looks among the first 16 rows" in line for line in said)
    assert report.priors.second_looks == 4
    assert report.spending.calls == 2 * N + 4
    assert expected == (2 * N + 4, 2 * N + 4)
    assert (
        f"4 first answers were graded twice, to learn how noisy the judge is ({4 / (2 * N + 4):.1%} of the calls)"
        in report.summary()
    )
    told = saved_refits(tmp_path / "out.jsonl.journal")["refits"]
    assert [*told] == ["8", "32"][:1] and told["8"]["noise_sd"] != Priors().noise_sd
    said.clear()
    await run_of(
        rows, tmp_path / "out.jsonl", Writer(), judge=Reader(), say=said.append, max_iterations=0
    ).go()
    assert not any("calibrating" in line for line in said)


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize(
    "given",
    [
        {"calibrate": False},
        {"learn": False},
        {"priors": Priors(noise_sd=0.2)},
        {"noise_aware": False},
        {"limit": 15},
    ],
    ids=["not wanted", "no learning", "given priors", "plain plan", "too few rows"],
)
async def test_no_second_look_where_nothing_would_be_learned(tmp_path, rows, calibrated, given):
    """Nothing is announced, and no call is made for it."""
    said = []
    run = run_of(
        rows,
        tmp_path / "out.jsonl",
        Writer(),
        judge=Reader(),
        say=said.append,
        **{"max_iterations": 0, **given},
    )
    report = await run.go()
    assert not any("calibrating" in line for line in said)
    assert (report.priors.second_looks, report.spending.calls) == (0, 2 * report.rows.in_output)


RULE, MUST = PanelGrader("rule", model_free=True), PanelGrader("must", must=True)
J, K, THRICE = PanelGrader("j"), PanelGrader("k"), PanelGrader("thrice", repeats=3)


@pytest.mark.parametrize(
    ("panel", "tasks", "rows", "looks"),
    [
        ([J], 0, 64, range(0, 64, 4)),
        ([J, K, RULE], 63, 1000, range(0, 64, 4)),
        ([J], 0, 63, range(0)),
        ([J], 64, 1000, range(0)),
        ([J, THRICE], 0, 1000, range(0)),
        ([RULE], 0, 1000, range(0)),
        ([RULE, MUST], 0, 1000, range(0)),  # a must has no share in the score
        ([J, PanelGrader("must", must=True, repeats=3)], 0, 1000, range(0, 64, 4)),
    ],
)
def test_which_rows_get_a_second_look(panel, tasks, rows, looks):
    """Every fourth of the first 64, if judges grade once, and fewer than 64 tasks are known."""
    assert online_priors.second_look_rows(panel, Priors(tasks=tasks), rows) == looks


@pytest.mark.parametrize(
    ("grades", "looks"),
    [
        ([], 0),
        ([(0, "j")], 0),
        ([(0, "j"), (0, "j")], 1),
        ([(0, "j"), (0, "j"), (0, "j")], 1),
        ([(0, "j"), (1, "j"), (1, "j")], 0),
        ([(0, "j"), (0, "j"), (0, "k"), (0, "k")], 2),
        ([(0, "j"), (0, "k"), (0, "k"), (1, "j")], 1),
        ([(0, "thrice")] * 3, 0),
        ([(0, "thrice")] * 4, 1),
        ([(0, "rule")] * 2 + [(0, "must")] * 2, 0),
    ],
)
def test_how_many_second_looks_a_row_has_had(grades, looks):
    """The judges of its score that graded the first answer more often than they grade every
    answer.
    """
    texts = (Candidate(0, "a"), Candidate(1, "b", 0, role="refine"))
    feedback = [
        Feedback(0.5, candidate=id, grader=name, repeat=n) for n, (id, name) in enumerate(grades)
    ]
    trace = Trace(Task("t"), (J, K, THRICE, RULE, MUST), (*texts, *feedback))
    assert online_priors.second_looks_in(trace) == looks


@pytest.mark.parametrize("some", [6, 14, 40])
@pytest.mark.slow
async def test_an_interrupted_run_resumes_its_second_looks(tmp_path, rows, calibrated, some):
    """The same rows get one each, the output is that of an undisturbed run, and a finished run
    makes no call.
    """
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for folder in (whole, cut):
        folder.mkdir()
    await run_of(rows, whole / "out.jsonl", Writer()).go()
    model = Writer(some)
    going = run_of(rows, cut / "out.jsonl", model)
    work = asyncio.ensure_future(going.go())
    while len(model.asked) < some and not work.done():
        await asyncio.sleep(0)
    going.stop(now=True)
    await work
    await run_of(rows, cut / "out.jsonl", Writer(5)).go()
    assert (cut / "out.jsonl").read_bytes() == (whole / "out.jsonl").read_bytes()
    assert looked_at(cut / "out.jsonl.journal") == [0, 4, 8, 12]
    assert saved_refits(cut / "out.jsonl.journal") == saved_refits(whole / "out.jsonl.journal")
    again = await run_of(rows, cut / "out.jsonl", Writer()).go()
    assert (again.spending.calls, again.priors.second_looks) == (0, 0)


@pytest.mark.parametrize("rows", [64, 5000, 70_000])
def test_rows_with_second_looks_are_always_learned_from(rows):
    """However many rows there are, they teach the noise."""
    looks = range(0, 64, 4)
    schedule = RefitSchedule(Priors(), first=32, second_looks=looks)
    for n in range(rows):
        schedule.row_seen(n, f"r{n}", finished=True)
    assert {f"r{n}" for n in looks} <= set(schedule.training_rows())
    assert len(schedule.training_rows()) <= online_priors.MAX_TRAINING_ROWS + len(looks)
