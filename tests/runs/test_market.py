"""One price for a whole run: money goes to the rows where it buys most, and no more is spent than there is."""

import asyncio
import json
import random
from contextlib import closing
from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redraft import Budget, Feedback, Task
from redraft.contracts import Reply
from redraft.core.plans.adaptive import Adaptive
from redraft.core.plans.self_refine import SelfRefine
from redraft.core.priors import Priors
from redraft.core.records import Candidate, Outcome, Usage
from redraft.core.stopping import max_iterations, target
from redraft.core.trace import Seat, Trace
from redraft.runs import Run
from redraft.runs import run as doors
from redraft.runs.imagined import World, imagined, worked
from redraft.runs.market import Ladder, Market, Row, unit_of
from redraft.stores.journal import Journal

from .killing import write_rows
from .test_shards import Here
from .test_waves import provider

__all__ = ["provider"]

PLAN = Adaptive(SelfRefine(target(0.9) | max_iterations(8)), attempts=8, price=0.002)


class Tasks:
    """Tasks of a world, easy ones and hard ones in turn; what they cost is counted."""

    def __init__(self, n, seed=1):
        dice = random.Random(seed)
        self.worlds = []
        for i in range(n):
            world = World(Priors(level=0.9 if i % 2 else 0.4, level_sd=0.03, step_sd=0.03), dice)
            self.worlds.append(world)
        self.calls = 0
        self.took = [0] * n

    async def work(self, i, plan):
        """A task to its end, giving way to the others after each step."""
        trace = Trace(Task("t"), (Seat("judge"),))
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
    return Market(PLAN, "calls", lambda: budget - tasks.calls, lambda: {"calls": tasks.calls}, rows)


async def shared(n, budget, width):
    """So many tasks with one purse, `width` of them at a time: their qualities, and the tasks."""
    tasks, places = Tasks(n), asyncio.Semaphore(width)
    market = market_of(tasks, budget, n)

    async def one(i):
        async with places:
            row = market.begun()
            trace = await tasks.work(i, row.plan(PLAN))
            row.ended(trace)
            return tasks.quality(i, trace)

    return await asyncio.gather(*map(one, range(n))), tasks


async def apart(n, each):
    """The same tasks with so many calls each, best use made of them."""
    tasks = Tasks(n)
    plan = Adaptive(SelfRefine(max_iterations(8)), attempts=(each - 2) // 2, price=0.0)
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
    less, more = (market_of(tasks, 100 * calls, 100).price for calls in (each, each + 1))
    assert less >= more >= PLAN.price
    assert market_of(tasks, 150, 100).price == pytest.approx(1, rel=0.01)


def test_where_there_is_money_for_all_the_price_is_the_plans_own():
    """So much a call must gain whatever is left over."""
    assert market_of(Tasks(1), 100_000, 100).quote == (PLAN.price, "calls")


def test_a_step_is_worth_its_price_in_the_unit_of_the_budget():
    """Once it is known what a call costs, by what was spent or by rows that ended, the price is for each USD."""
    spent = {}
    market = Market(PLAN, "usd", lambda: 3.9, lambda: spent, 100)
    assert market.quote.unit == "calls"
    spent |= {"calls": 10, "usd": 0.1}
    market.moved()
    price, unit = market.quote
    assert unit == "usd"
    calls = Market(PLAN, "calls", lambda: 400, lambda: {}, 100)
    assert price == pytest.approx(calls.price / 0.01, rel=0.02)


@pytest.mark.parametrize(
    ("budget", "unit"),
    [(None, None), (Budget(), None), (Budget(output_tokens=5), None), (Budget(calls=5), "calls"), (Budget(calls=5, usd=1), "usd")],
)
def test_which_unit(budget, unit):
    """USD before tokens before calls."""
    assert unit_of(budget) == unit


def test_a_ladder_tells_what_each_decision_offered():
    """What a step took is put right once it is known; the same decision again is no other; it can be kept as JSON."""
    plan = Adaptive(price=0.0)
    market = market_of(Tasks(1), 100, 1)
    for world, trace in imagined(Priors(), [Seat("judge")], answered=False, tasks=3):
        row = market.begun()
        ended = worked(trace, row.plan(plan), world)
        row.ended(ended)
        calls = sum(r.usage.calls for r in ended.records)
        assert row.ladder.base + sum(rung.cost for rung in row.ladder.rungs) == calls
        assert all(rung.rate > 0 for rung in row.ladder.rungs[:-1]) and row.ladder.rungs[-1].rate == 0
        again = Row(market)
        again.resumed(ended, plan)
        again.ended(ended)
        assert again.ladder.rungs == row.ladder.rungs
        assert Ladder.of(json.loads(json.dumps(row.ladder.as_data("calls"))))[0].rungs == row.ladder.rungs


def test_what_is_not_known_teaches_nothing():
    """A row whose cost is unknown is no rung, and no error."""
    market = Market(PLAN, "usd", lambda: 1.0, lambda: {}, 2)
    row = market.begun()
    trace = Trace(Task("t"), (Seat("judge"),), (Candidate(0, "a", usage=Usage(1, answer_cost=None)), Feedback(0.5, grader="judge")))
    row.plan(PLAN)(trace)
    row.ended(trace + Outcome(0, "gain"))
    market.begun().ended(None)
    assert row.ladder.rungs == []
    assert market.price >= 0


def test_made_up_tasks_are_the_same_every_time():
    """They follow from the priors alone; a task that comes with a response begins with it."""
    one, two = ([w.level for w, _ in imagined(Priors(), [Seat("judge")], answered=True)] for _ in range(2))
    assert one == two
    world, trace = next(imagined(Priors(), [Seat("judge")], answered=True))
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

    def __init__(self):
        self.calls, self.by_row, self.dice = 0, {}, random.Random(5)

    async def complete(self, request):
        await asyncio.sleep(0)
        self.calls += 1
        words = " ".join(str(m["content"]) for m in request.messages)
        usage = Usage(1, 500, 1000, cost=0.01)
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
    given = {"max_iterations": 6, "patience": 6, "target_score": 0.97, "min_gain": 0.001, "max_in_flight": 8, **given}
    return await Run.of(rows, output, model, judged, **given).go()


@pytest.mark.parametrize("budget", [Budget(calls=160), Budget(usd=1.6), Budget(tokens=240_000)])
async def test_a_run_spends_its_budget_where_it_buys_most(tmp_path, rows, budget):
    """Hard rows get more of it, each row is graded, and the run ends as one that has enough."""
    model = Writer()
    report = await go(rows, tmp_path / "out.jsonl", model, budget=budget, prices={"w": (0, 10)})
    told = lines(tmp_path / "out.jsonl")
    assert (report.ended, report.done) == ("", 40)
    assert 120 <= model.calls <= 160
    assert all(row["best_score"] is not None and row["calls"] >= 2 for row in told)
    assert sum(row["calls"] for row in told[::2]) > 1.3 * sum(row["calls"] for row in told[1::2])


async def test_without_a_budget_the_price_is_the_same_for_all(tmp_path, rows):
    """No market is held, so that what a row comes to is its own affair."""
    going = Run.of(rows, tmp_path / "out.jsonl", Writer(), judged, min_gain=0.02)
    await going.go()
    assert going._engine.market is None


async def test_what_rows_taught_of_prices_outlives_the_process(tmp_path, rows):
    """A run that goes on reads the ladders of finished rows, keeps to the whole budget, and ends well."""
    model = Writer()
    given = {"budget": Budget(calls=160)}
    first = Run.of(
        rows,
        tmp_path / "out.jsonl",
        model,
        judged,
        max_iterations=6,
        patience=6,
        target_score=0.97,
        min_gain=0.001,
        max_in_flight=8,
        **given,
    )
    work = asyncio.ensure_future(first.go())
    while model.calls < 80 and not work.done():
        await asyncio.sleep(0)
    first.stop()
    report = await work
    assert (report.ended, 0 < report.done < 40) == ("interrupted", True)
    with closing(Journal(tmp_path / "out.jsonl.journal", read_only=True)) as journal:
        kept = [note.result["ladder"] for note, _ in journal.traces("out-jsonl") if note.status == "done"]
    assert all(unit == "calls" and base >= 2 for unit, base, _ in kept)
    report = await go(rows, tmp_path / "out.jsonl", model, **given)
    assert (report.ended, report.done) == ("", 40)
    assert 120 <= model.calls <= 160


async def test_shards_share_the_money(tmp_path, rows, monkeypatch):
    """Every part goes by what there is for each row that is left, whoever works on it, so that prices are alike where rows are."""
    monkeypatch.setattr(doors, "Cluster", Here)
    model = Writer()
    report = await go(rows, tmp_path / "out.jsonl", model, budget=Budget(calls=160), engine="ray", shards=3)
    told = lines(tmp_path / "out.jsonl")
    assert (report.ended, report.done) == ("", 40)
    assert 110 <= model.calls <= 160
    assert sum(row["calls"] for row in told[::2]) > 1.3 * sum(row["calls"] for row in told[1::2])


async def test_waves_share_the_price(tmp_path, provider):
    """Where all rows go on at the same time, too, each is graded and the budget is kept."""
    server, budget = provider(), Budget(calls=80)
    source = write_rows(tmp_path / "rows.jsonl", 24)
    going = Run.of(source, tmp_path / "out.jsonl", server.model, engine="provider-batch", poll=0.02, budget=budget, min_gain=0)
    report = await going.go()
    assert (report.ended, report.done) == ("", 24)
    assert 60 <= report.usage.calls <= 80
    assert all(row["best_score"] is not None for row in lines(tmp_path / "out.jsonl"))
