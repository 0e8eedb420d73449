"""One price for a whole run: money goes to the rows where it buys most, and no more is spent than there is."""

import asyncio
import json
import random
from contextlib import closing
from dataclasses import replace
from functools import partial
from re import sub
from statistics import mean

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from redraft import Budget, Feedback, Task
from redraft.cli.commands.runs import runs
from redraft.protocols import Reply
from redraft.plans.adaptive import Adaptive
from redraft.plans.self_refine import SelfRefine
from redraft.quality.priors import Priors
from redraft.core.records import Candidate, Comparison, Outcome
from redraft.usage import Usage
from redraft.core.steps import Compare
from redraft.core.stopping import max_iterations, target
from redraft.core.trace import PanelGrader, Trace
from redraft.models.pricing import FREE
from redraft.runs import BatchRun
from redraft.runs import api
from redraft.runs.simulate import SimulatedTask, run_to_end, simulate_tasks
from redraft.runs.allocation import BudgetAllocator, DecisionLog, budget_unit, simulated_logs
from redraft.runs.online_priors import OnlinePriors
from redraft.storage.journal import Journal

from .killing import write_rows
from .test_shards import Here
from .test_provider_batch import provider

__all__ = ["provider"]

ONE = Usage(1)
PLAN = Adaptive(SelfRefine(target(0.9) | max_iterations(8)), max_attempts=8, min_expected_gain=0.002)


class Tasks:
    """Tasks of a world, easy ones and hard ones in turn; what they cost is counted."""

    def __init__(self, n, seed=1):
        dice = random.Random(seed)
        self.worlds = []
        for i in range(n):
            world = SimulatedTask(Priors(draft_mean=0.9 if i % 2 else 0.4, draft_mean_sd=0.03, step_sd=0.03), dice)
            self.worlds.append(world)
        self.calls = 0
        self.took = [0] * n

    async def work(self, i, plan):
        """A task to its end, giving way to the others after each step."""
        trace = Trace(Task("t"), (PanelGrader("judge"),))
        while not trace.outcome:
            for step in plan(trace):
                record = self.worlds[i].perform(step)
                self.calls += record.usage.calls
                self.took[i] += record.usage.calls
                trace += record
                await asyncio.sleep(0)
        return trace

    def quality(self, i, trace):
        return self.worlds[i].qualities[trace.outcome.best]


def market_of(tasks, budget, rows):
    return BudgetAllocator(PLAN, "calls", lambda: budget - tasks.calls, lambda: {"calls": tasks.calls}, rows)


async def shared(n, budget, width):
    """So many tasks with one purse, `width` of them at a time: their qualities, and the tasks."""
    tasks, places = Tasks(n), asyncio.Semaphore(width)
    market = market_of(tasks, budget, n)

    async def one(i):
        async with places:
            row = market.start_row()
            trace = await tasks.work(i, partial(row.next_steps, PLAN))
            row.finish(trace)
            return tasks.quality(i, trace)

    return await asyncio.gather(*map(one, range(n))), tasks


async def apart(n, each):
    """The same tasks with so many calls each, best use made of them."""
    tasks = Tasks(n)
    plan = Adaptive(SelfRefine(max_iterations(8)), max_attempts=(each - 2) // 2, min_expected_gain=0.0)
    return [tasks.quality(i, await tasks.work(i, plan)) for i in range(n)], tasks


@pytest.mark.parametrize("width", [1, 8, 120])
async def test_money_goes_to_hard_rows(width):
    """The budget is kept and nearly used, every row is answered, hard rows get more calls, and the answers are better than with
    as many calls for each row.
    """
    n, each = 120, 4
    qualities, tasks = await shared(n, n * each, width)
    assert 0.9 * n * each <= tasks.calls <= n * each
    assert min(tasks.took) >= 2
    assert mean(tasks.took[::2]) > 1.5 * mean(tasks.took[1::2])
    equal, others = await apart(n, each)
    assert others.calls >= tasks.calls
    assert mean(qualities) > mean(equal) + 0.005


@settings(max_examples=4, deadline=None)
@given(st.floats(2.0, 9.0))
def test_more_money_is_a_lower_price(each):
    """A market with more money asks no more; with too little for a draft and a grade each, nothing more is worth it."""
    tasks = Tasks(1)
    less, more = (market_of(tasks, 100 * calls, 100).price.price for calls in (each, each + 1))
    assert less >= more >= PLAN.min_expected_gain
    assert market_of(tasks, 150, 100).price.price == pytest.approx(1, rel=0.01)


def test_where_there_is_money_for_all_the_price_is_the_plans_own():
    """So much a call must gain whatever is left over."""
    assert market_of(Tasks(1), 100_000, 100).price == (PLAN.min_expected_gain, "calls")


def test_a_step_is_worth_its_price_in_the_unit_of_the_budget():
    """Once it is known what a call costs, by what was spent or by rows that ended, the price is for each USD."""
    spent = {}
    market = BudgetAllocator(PLAN, "usd", lambda: 3.9, lambda: spent, 100)
    assert market.price.unit == "calls"
    spent |= {"calls": 10, "usd": 0.1}
    price, unit = market.price
    assert unit == "usd"
    calls = BudgetAllocator(PLAN, "calls", lambda: 400, lambda: {}, 100)
    assert price == pytest.approx(calls.price.price / 0.01, rel=0.02)


@pytest.mark.parametrize(
    ("budget", "unit"),
    [(None, None), (Budget(), None), (Budget(output_tokens=5), None), (Budget(calls=5), "calls"), (Budget(calls=5, usd=1), "usd")],
)
def test_which_unit(budget, unit):
    """USD before tokens before calls; no USD where calls are free."""
    assert budget_unit(budget) == unit
    assert budget_unit(budget, free=True) == ("calls" if unit == "usd" else unit)
    assert budget_unit(Budget(usd=1), free=True) is None


def paying(amount):
    """A trace of one draft and one grade that cost so much together, as step by step it grows."""
    usage = Usage(1, 500, 500, cost=amount / 2, answer_tokens=1000, answer_cost=amount / 2)
    drafted = Trace(Task("t"), (PanelGrader("judge"),), (Candidate(0, "a", by="w", role="generate", usage=usage),))
    return drafted + Feedback(0.4, "so so", ("say more",), grader="judge", usage=usage)


def test_the_first_decision_is_priced_in_the_unit_of_the_budget():
    """A price that was asked for before the first call was paid holds only until then."""
    spent = {}
    market = BudgetAllocator(PLAN, "usd", lambda: 1.0 - spent.get("usd", 0.0), lambda: spent, 100)
    row = market.start_row()
    assert market.price_for(row).unit == "calls"
    spent |= {"calls": 2, "usd": 0.004}
    row.next_steps(PLAN, paying(0.004))
    assert market.price_for(row).unit == "usd"
    assert (row.log.base, row.log.decisions[0].cost) == pytest.approx((0.004, 0.004))


def test_a_decision_at_another_units_price_is_told_in_the_budgets():
    """Where the cache answers, nothing is spent and it is not known what a call costs; a ladder holds USD all the same."""
    market = BudgetAllocator(PLAN, "usd", lambda: 1.0, lambda: {}, 100)
    row = market.start_row()
    assert market.price_for(row).unit == "calls"
    row.next_steps(PLAN, paying(0.004))
    unit, base, rungs, duel = row.log.as_data()
    assert (unit, base, rungs[0].cost, duel) == ("usd", pytest.approx(0.004), pytest.approx(0.004), 0.0)


def test_where_calls_cost_nothing_usd_hold_nobody_up():
    """The price for a row is the plan's own, however many rows wait."""
    spent = {"calls": 500, "usd": 0.0}
    market = BudgetAllocator(PLAN, "usd", lambda: 5.0, lambda: spent, 200)
    assert market.price_for(market.start_row()) == (PLAN.min_expected_gain, "calls")


async def ladders(market, tasks, n):
    """The market, once so many rows have ended."""
    for i in range(n):
        row = market.start_row()
        row.finish(await tasks.work(i, partial(row.next_steps, PLAN)))


async def test_other_priors_begin_a_new_price():
    """What was decided under old ones is forgotten, also of rows that end only then; so the price is that of a new run."""
    tasks, priors = Tasks(40), Priors(draft_mean=0.7, noise_sd=0.05)
    market = market_of(tasks, 640, 160)
    late = market.start_row()
    await ladders(market, tasks, 39)
    market.set_priors(priors)
    late.finish(await tasks.work(39, partial(late.next_steps, PLAN)))
    fresh = BudgetAllocator(replace(PLAN, priors=priors), "calls", lambda: 640 - tasks.calls, lambda: {}, 120)
    assert market.estimate.base == fresh.estimate.base
    assert market.price == fresh.price
    assert market.price != BudgetAllocator(PLAN, "calls", lambda: 640 - tasks.calls, lambda: {}, 120).price


class Unasked(set):
    """Rows that nobody goes through."""

    def __iter__(self):
        raise AssertionError("all rows were gone through")


async def test_what_rows_are_owed_is_known_without_going_through_them():
    """It is summed up as they move, and the sum is right."""
    tasks = Tasks(64)
    market = market_of(tasks, 256, 64)
    rows = [market.start_row() for _ in range(32)]
    asked = market.price
    market.under_way = Unasked(market.under_way)
    assert {market.price_for(row) for row in rows} == {asked}
    market.under_way = {*rows}
    for i, row in enumerate(rows[:20]):
        row.finish(await tasks.work(i, partial(row.next_steps, PLAN)))
        assert market._reserved == pytest.approx(sum(row.reserved for row in market.under_way))


DUELS = (PanelGrader("judge"), PanelGrader("final", compares=True))


def test_made_up_tasks_end_with_a_duel_and_with_what_is_believed():
    """Where a grader compares, it does so in made-up tasks, too, for two calls; the end holds all that the plan says."""
    plan = Adaptive(SelfRefine(max_iterations(3)), min_expected_gain=0.005)
    ended = [run_to_end(trace, plan, world) for world, trace in simulate_tasks(Priors(), DUELS, with_response=False)]
    dueled = [t for t in ended if any(isinstance(r, Comparison) for r in t.records)]
    assert 0 < len(dueled) < len(ended)
    assert all(r.usage.calls == 2 for t in dueled for r in t.records if isinstance(r, Comparison))
    assert all(dict(t.outcome.estimates)[t.outcome.best] == t.outcome.score for t in ended)
    assert {log.comparison for log in simulated_logs(plan, DUELS, with_response=False)} == {0.0, 2.0}


def test_the_duel_is_the_end():
    """However low the price falls meanwhile; and what it took is no step of the ladder."""
    left = [100.0]
    market = BudgetAllocator(PLAN, "calls", lambda: left[0], lambda: {}, 20, DUELS)
    row = market.start_row()
    trace = next(trace for _, trace in simulate_tasks(Priors(), DUELS, with_response=False))
    texts = [Candidate(0, "a", by="w", role="generate", usage=ONE), Candidate(1, "b", 0, by="w", role="refine", usage=ONE)]
    for text in texts:
        trace = trace + text + Feedback(0.5, "so so", ("more",), candidate=text.id, grader="judge", usage=ONE)
    left[0] = 0.0
    (step,) = row.next_steps(PLAN, trace)
    assert isinstance(step, Compare)
    left[0] = 1e6
    market.set_priors(Priors(draft_mean=0.5))
    trace += Comparison((1, 0), grader="final", usage=Usage(2))
    (step,) = row.next_steps(PLAN, trace)
    row.finish(trace + step.outcome)
    assert (step.role, step.best) == ("stop", 1)
    assert (row.log.comparison, row.log.spent, len(row.log.decisions)) == (2.0, 4.0, 1)


def test_a_ladder_tells_what_each_decision_offered():
    """What a step took is put right once it is known; the same decision again is no other; it can be kept as JSON."""
    plan = Adaptive(min_expected_gain=0.0)
    market = market_of(Tasks(1), 100, 1)
    for world, trace in simulate_tasks(Priors(), [PanelGrader("judge")], with_response=False, tasks=3):
        row = market.start_row()
        ended = run_to_end(trace, partial(row.next_steps, plan), world)
        row.finish(ended)
        calls = sum(r.usage.calls for r in ended.records)
        assert row.log.base + sum(decision.cost for decision in row.log.decisions) == calls
        assert all(decision.rate > 0 for decision in row.log.decisions[:-1]) and row.log.decisions[-1].rate == 0
        again = market.start_row()
        again.resume(plan, ended)
        again.finish(ended)
        assert again.log.decisions == row.log.decisions
        assert DecisionLog.from_data(json.loads(json.dumps(row.log.as_data()))).decisions == row.log.decisions


def test_what_is_not_known_teaches_nothing():
    """A row whose cost is unknown is no decision, and no error."""
    market = BudgetAllocator(PLAN, "usd", lambda: 1.0, lambda: {}, 2)
    row = market.start_row()
    trace = Trace(
        Task("t"), (PanelGrader("judge"),), (Candidate(0, "a", usage=Usage(1, answer_cost=None)), Feedback(0.5, grader="judge"))
    )
    row.next_steps(PLAN, trace)
    row.finish(trace + Outcome(0, "gain"))
    market.start_row().finish(None)
    assert row.log.decisions == []
    assert market.price.price >= 0


def test_made_up_tasks_are_the_same_every_time():
    """They follow from the priors alone; a task that comes with a response begins with it."""
    one, two = ([w.level for w, _ in simulate_tasks(Priors(), [PanelGrader("judge")], with_response=True)] for _ in range(2))
    assert one == two
    world, trace = next(simulate_tasks(Priors(), [PanelGrader("judge")], with_response=True))
    assert trace.candidates[0].usage.calls == 0
    assert len(world.qualities) == 1


# --- runs


async def judged(text, model):
    """What the text is worth, as a judge sees it who asks a model."""
    said = await model(f"Grade this: {text}")
    return float(said)


class Writer:
    """Writes texts with a quality: of an easy task a good one, of a hard one one that gets better with each refinement."""

    name, identity, formats = "w", "w", ("text",)

    def __init__(self, cost=0.01):
        self.cost = cost
        self.calls, self.by_row, self.dice = 0, {}, random.Random(5)

    async def complete(self, request):
        await asyncio.sleep(0)
        self.calls += 1
        words = " ".join(str(m["content"]) for m in request.messages)
        usage = Usage(1, 500, 1000, cost=self.cost)
        if '"winner"' in words:
            verdict = {"reason": "so it is", "change": [], "winner": self.dice.choice(["first", "second"]), "done": False}
            return Reply(json.dumps(verdict), usage)
        if words.startswith("Grade this: "):
            quality = float(words.split("quality ")[1].split()[0])
            return Reply(f"{min(1.0, max(0.0, self.dice.gauss(quality, 0.08))):.3f}", usage)
        row = words.split()[1]
        n = self.by_row[row] = self.by_row.get(row, 0) + 1
        level = 0.85 if int(row) % 2 else 0.3 + 0.13 * n
        return Reply(f"row {row} quality {min(0.95, level):.3f} text {n}", usage)


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"id": f"r{n}", "prompt": f"row {n} please"}) + "\n" for n in range(40)))
    return path


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


async def go(rows, output, model, **given):
    given = {"max_iterations": 6, "patience": 6, "target_score": 0.97, "min_expected_gain": 0.001, "max_in_flight": 8, **given}
    return await BatchRun.of(rows, output, model, judged, **given).go()


@pytest.mark.parametrize("budget", [Budget(calls=160), Budget(usd=1.6), Budget(tokens=240_000)])
async def test_a_run_spends_its_budget_where_it_buys_most(tmp_path, rows, budget):
    """Hard rows get more of it, each row is graded, and the run ends as one that has enough."""
    model = Writer()
    report = await go(rows, tmp_path / "out.jsonl", model, budget=budget, prices={"w": (0, 10)})
    told = lines(tmp_path / "out.jsonl")
    assert (report.end_reason, report.done) == ("", 40)
    assert 120 <= model.calls <= 160
    assert all(row["best_score"] is not None and row["calls"] >= 2 for row in told)
    assert sum(row["calls"] for row in told[::2]) > 1.3 * sum(row["calls"] for row in told[1::2])


@pytest.mark.parametrize("width", [4, 64])
@pytest.mark.parametrize("budget", [Budget(calls=120), Budget(calls=240), Budget(usd=2.4)])
async def test_money_for_a_final_check_is_put_aside(tmp_path, rows, budget, width):
    """Every row is begun, and ends by itself, although duels come last."""
    model = Writer()
    given = {"tie_break": True, "max_in_flight": width, "prices": {"w": (0, 10)}}
    report = await go(rows, tmp_path / "out.jsonl", model, budget=budget, **given)
    stops = {row["stop"] for row in lines(tmp_path / "out.jsonl")}
    assert (report.end_reason, report.done) == ("", 40)
    assert not stops & {"not_started", "budget"}
    most = budget.calls or 240
    assert 0.8 * most <= model.calls <= most


@pytest.mark.parametrize("price", [None, FREE], ids=["it turns out", "it is known"])
async def test_a_free_model_is_not_held_back_by_a_budget_in_usd(tmp_path, rows, price):
    """About as many calls are made as without one; and of two limits the one that counts makes the price."""
    plain, free, both = (Writer(0.0) for _ in range(3))
    for model in (plain, free, both):
        model.price = price
    given = {"max_in_flight": 1, "priors": "shipped", "prices": None if price else {"w": (0, 10)}}
    await go(rows, tmp_path / "plain.jsonl", plain, **given)
    await go(rows, tmp_path / "free.jsonl", free, budget=Budget(usd=0.5), **given)
    assert free.calls > 0.9 * plain.calls > 160
    if price:
        report = await go(rows, tmp_path / "both.jsonl", both, budget=Budget(usd=0.5, calls=160), **given)
        assert (report.end_reason, report.done) == ("", 40)
        assert 120 <= both.calls <= 160


class Alike(Writer):
    """Writes texts that are all alike."""

    async def complete(self, request):
        reply = await super().complete(request)
        return replace(
            reply, text=sub(r"quality [0-9.]+", f"quality {min(1.0, max(0.0, self.dice.gauss(0.5, 0.1))):.3f}", reply.text)
        )


async def test_rows_before_and_after_a_stage_get_alike(tmp_path, monkeypatch):
    """What later rows believe is something else; what they may spend is not."""
    monkeypatch.setattr(OnlinePriors, "first_refit", 128)
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps({"id": f"r{n}", "prompt": f"row {n} please"}) + "\n" for n in range(384)))
    report = await go(source, tmp_path / "out.jsonl", Alike(), budget=Budget(calls=1152), priors="shipped")
    told = [row["calls"] for row in lines(tmp_path / "out.jsonl")]
    assert (report.end_reason, report.done) == ("", 384)
    parts = [mean(told[i : i + 128]) for i in range(0, 384, 128)]
    assert max(parts) - min(parts) < 0.9
    assert 1100 <= sum(told) <= 1152


async def test_without_a_budget_the_price_is_the_same_for_all(tmp_path, rows):
    """No market is held, so that what a row comes to is its own affair."""
    going = BatchRun.of(rows, tmp_path / "out.jsonl", Writer(), judged, min_expected_gain=0.02)
    await going.go()
    assert going._job.budget.allocator is None


async def test_what_rows_taught_of_prices_outlives_the_process(tmp_path, rows):
    """A run that goes on reads the ladders of finished rows, keeps to the whole budget, and ends well."""
    model = Writer()
    given = {"budget": Budget(calls=160)}
    first = BatchRun.of(
        rows,
        tmp_path / "out.jsonl",
        model,
        judged,
        max_iterations=6,
        patience=6,
        target_score=0.97,
        min_expected_gain=0.001,
        max_in_flight=8,
        **given,
    )
    work = asyncio.ensure_future(first.go())
    while model.calls < 80 and not work.done():
        await asyncio.sleep(0)
    first.stop()
    report = await work
    assert (report.end_reason, 0 < report.done < 40) == ("interrupted", True)
    with closing(Journal(tmp_path / "out.jsonl.journal", read_only=True)) as journal:
        kept = [note.result["decisions"] for note, _ in journal.traces("out-jsonl") if note.status == "done"]
    assert all(unit == "calls" and base >= 2 for unit, base, *_ in kept)
    report = await go(rows, tmp_path / "out.jsonl", model, **given)
    assert (report.end_reason, report.done) == ("", 40)
    assert 120 <= model.calls <= 160


@pytest.mark.parametrize("more", [Budget(calls=300), None], ids=["more", "no limit"])
async def test_more_money_goes_on_where_the_price_had_ended_rows(tmp_path, rows, more):
    """Hard rows are taken up again, as far as it is worth it; then, and with the same budget at once, nothing more is asked."""
    model, output = Writer(), tmp_path / "out.jsonl"
    report = await go(rows, output, model, budget=Budget(calls=100), learn=False)
    before, first = lines(output), model.calls
    assert (report.end_reason, report.done, first <= 100) == ("", 40, True)
    assert (await go(rows, output, model, budget=Budget(calls=100), learn=False)).usage.calls == 0
    report = await go(rows, output, model, budget=more, learn=False)
    after, second = lines(output), model.calls
    assert (report.end_reason, report.done) == ("", 40)
    assert second > first + 60
    assert second <= (more.calls if more else 40 * 14)
    assert mean(row["best_score"] for row in after[::2]) > mean(row["best_score"] for row in before[::2]) + 0.02
    again = await go(rows, output, model, budget=more, learn=False)
    assert (again.usage.calls, again.reused, lines(output)) == (0, 40, after)


async def test_more_money_reaches_rows_everywhere(tmp_path, rows):
    """It is shared out as if there had been as much from the start: rows that come first are not first served."""
    model, output = Writer(), tmp_path / "out.jsonl"
    await go(rows, output, model, budget=Budget(calls=100), learn=False)
    await go(rows, output, model, budget=Budget(calls=180), learn=False)
    took = [row["calls"] for row in lines(output)]
    assert 150 <= model.calls <= 180
    assert sum(took[20::2]) > 0.6 * sum(took[:20:2])


@pytest.mark.parametrize("now", [False, True])
async def test_going_on_with_more_money_may_be_interrupted(tmp_path, rows, now):
    """Rows that were not looked at yet are looked at by the next going, with the same budget; nothing that is paid is lost."""
    model, output, given = Writer(), tmp_path / "out.jsonl", {"budget": Budget(calls=300), "learn": False}
    await go(rows, output, model, budget=Budget(calls=100), learn=False)
    first = model.calls
    settings = {"max_iterations": 6, "patience": 6, "target_score": 0.97, "min_expected_gain": 0.001, "max_in_flight": 8}
    going = BatchRun.of(rows, output, model, judged, **settings, **given)
    work = asyncio.ensure_future(going.go())
    while model.calls < first + 20 and not work.done():
        await asyncio.sleep(0)
    going.stop(now=now)
    assert (await work).end_reason == "interrupted"
    report = await go(rows, output, model, **given)
    assert (report.end_reason, report.done) == ("", 40)
    assert first + 60 < model.calls <= 300
    with closing(Journal(tmp_path / "out.jsonl.journal", read_only=True)) as journal:
        told = {note.id: note.result["columns"]["calls"] for note, trace in journal.traces("out-jsonl")}
        kept = {note.id: sum(r.usage.calls for r in trace.records) for note, trace in journal.traces("out-jsonl")}
    assert told == kept
    assert (await go(rows, output, model, **given)).usage.calls == 0


async def test_shards_go_on_with_more_money(tmp_path, rows, monkeypatch):
    """Rows that the price had ended are handed over again."""
    monkeypatch.setattr(api, "RayPool", Here)
    model, output, given = Writer(), tmp_path / "out.jsonl", {"engine": "ray", "shards": 2}
    await go(rows, output, model, budget=Budget(calls=100), **given)
    first = model.calls
    report = await go(rows, output, model, budget=Budget(calls=300), **given)
    assert (report.end_reason, report.done) == ("", 40)
    assert first + 60 < model.calls <= 300
    assert (await go(rows, output, model, budget=Budget(calls=300), **given)).usage.calls == 0


async def test_the_purse_is_told(tmp_path, rows):
    """The price stands in the progress and in the report, with the rows that it ended; where there is none, nothing is said."""
    seen = []
    told = await go(
        rows, tmp_path / "out.jsonl", Writer(), budget=Budget(calls=100), on_progress=lambda p: seen.append(p.as_data())
    )
    (line,) = (line for line in told.summary() if line.startswith("price"))
    assert f" a call; {told.stops['gain']} rows ended because nothing more was worth its price" in line
    assert told.as_data()["price"] == seen[-1]["price"] > 0.001
    assert told.as_data()["price_unit"] == "calls"
    shown = CliRunner().invoke(runs, ["show", str(tmp_path / "out.jsonl")])
    assert line in " ".join(shown.output.split())
    free = await go(rows, tmp_path / "free.jsonl", Writer())
    assert free.price is None
    assert not any("price" in line for line in free.summary())


async def test_shards_share_the_money(tmp_path, rows, monkeypatch):
    """Every part goes by what there is for each row that is left, whoever works on it, so that prices are alike where rows are."""
    monkeypatch.setattr(api, "RayPool", Here)
    model = Writer()
    report = await go(rows, tmp_path / "out.jsonl", model, budget=Budget(calls=160), engine="ray", shards=3)
    told = lines(tmp_path / "out.jsonl")
    assert (report.end_reason, report.done) == ("", 40)
    assert 110 <= model.calls <= 160
    assert sum(row["calls"] for row in told[::2]) > 1.3 * sum(row["calls"] for row in told[1::2])


async def test_waves_share_the_price(tmp_path, provider):
    """Where all rows go on at the same time, too, each is graded and the budget is kept."""
    server, budget = provider(), Budget(calls=80)
    source = write_rows(tmp_path / "rows.jsonl", 24)
    going = BatchRun.of(
        source, tmp_path / "out.jsonl", server.model, engine="provider-batch", poll=0.02, budget=budget, min_expected_gain=0
    )
    report = await going.go()
    assert (report.end_reason, report.done) == ("", 24)
    assert 60 <= report.usage.calls <= 80
    assert all(row["best_score"] is not None for row in lines(tmp_path / "out.jsonl"))
