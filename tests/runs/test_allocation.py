"""The allocation of one budget over all rows: calls go to the rows with the highest expected gain,
and no more is spent than the budget.
"""

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
from redraft.loop.records import Candidate, Comparison, Outcome
from redraft.loop.steps import Compare
from redraft.loop.stopping import max_iterations, target
from redraft.loop.trace import PanelGrader, Trace
from redraft.models.pricing import FREE
from redraft.plans.adaptive import Adaptive
from redraft.plans.quality.priors import Priors
from redraft.plans.quality.simulate import (
    SimulatedTask,
    run_to_end,
    simulate_tasks,
    simulated_record,
)
from redraft.plans.self_refine import SelfRefine
from redraft.protocols import Reply
from redraft.runs import BatchRun, api
from redraft.runs.allocation import BudgetAllocator, DecisionLog, budget_unit, simulated_logs
from redraft.runs.online_priors import OnlinePriors
from redraft.storage.journal import Journal
from redraft.usage import Usage

from .killing import write_rows
from .test_provider_batch import provider
from .test_shards import LocalPool

__all__ = ["provider"]

ONE = Usage(1)
PLAN = Adaptive(
    SelfRefine(target(0.9) | max_iterations(8)), max_attempts=8, min_expected_gain=0.002
)


class Tasks:
    """Tasks of a simulated world, easy and hard ones in turn, with the calls that they cost."""

    def __init__(self, n, seed=1):
        dice = random.Random(seed)
        self.worlds = []
        for i in range(n):
            world = SimulatedTask(
                Priors(draft_mean=0.9 if i % 2 else 0.4, draft_mean_sd=0.03, step_sd=0.03), dice
            )
            self.worlds.append(world)
        self.calls = 0
        self.took = [0] * n

    async def work(self, i, plan):
        """Run a task to its end, yielding to the others after each step."""
        trace = Trace(Task("t"), (PanelGrader("judge"),))
        while not trace.outcome:
            for step in plan(trace):
                record = simulated_record(self.worlds[i], step)
                self.calls += record.usage.calls
                self.took[i] += record.usage.calls
                trace += record
                await asyncio.sleep(0)
        return trace

    def quality(self, i, trace):
        return self.worlds[i].qualities[trace.outcome.best]


def allocator_for(tasks, budget, rows):
    return BudgetAllocator(
        PLAN, "calls", lambda: budget - tasks.calls, lambda: {"calls": tasks.calls}, rows
    )


async def qualities_with_shared_budget(n, budget, width):
    """Run tasks with one budget, `width` of them at a time: their qualities, and the tasks."""
    tasks, places = Tasks(n), asyncio.Semaphore(width)
    allocator = allocator_for(tasks, budget, n)

    async def one(i):
        async with places:
            row = allocator.start_row()
            trace = await tasks.work(i, partial(row.next_steps, PLAN))
            row.finish(trace)
            return tasks.quality(i, trace)

    return await asyncio.gather(*map(one, range(n))), tasks


async def qualities_with_budget_each(n, each):
    """Run the same tasks with a fixed number of calls each, used as well as possible."""
    tasks = Tasks(n)
    plan = Adaptive(
        SelfRefine(max_iterations(8)), max_attempts=(each - 2) // 2, min_expected_gain=0.0
    )
    return [tasks.quality(i, await tasks.work(i, plan)) for i in range(n)], tasks


@pytest.mark.slow
@pytest.mark.parametrize("width", [1, 8, 120])
async def test_hard_rows_get_more_of_the_budget(width):
    """The budget is kept and nearly used, every row has an answer, hard rows get more calls, and
    the answers are better than with equal calls for each row.
    """
    n, each = 120, 4
    qualities, tasks = await qualities_with_shared_budget(n, n * each, width)
    assert 0.9 * n * each <= tasks.calls <= n * each
    assert min(tasks.took) >= 2
    assert mean(tasks.took[::2]) > 1.5 * mean(tasks.took[1::2])
    equal, others = await qualities_with_budget_each(n, each)
    assert others.calls >= tasks.calls
    assert mean(qualities) > mean(equal) + 0.005


@settings(max_examples=4, deadline=None)
@given(st.floats(2.0, 9.0))
def test_a_larger_budget_lowers_the_price(each):
    """With too little for a draft and a grade each, no further step is worth its price."""
    tasks = Tasks(1)
    less, more = (allocator_for(tasks, 100 * calls, 100).price.price for calls in (each, each + 1))
    assert less >= more >= PLAN.min_expected_gain
    assert allocator_for(tasks, 150, 100).price.price == pytest.approx(1, rel=0.01)


def test_with_enough_budget_the_price_is_the_plans_own():
    """The plan's least expected gain for a call remains the price."""
    assert allocator_for(Tasks(1), 100_000, 100).price == (PLAN.min_expected_gain, "calls")


def test_the_price_is_in_the_unit_of_the_budget():
    """Once the cost of a call is known, from spending or from finished rows, the price is for one
    USD.
    """
    spent = {}
    allocator = BudgetAllocator(PLAN, "usd", lambda: 3.9, lambda: spent, 100)
    assert allocator.price.unit == "calls"
    spent |= {"calls": 10, "usd": 0.1}
    price, unit = allocator.price
    assert unit == "usd"
    calls = BudgetAllocator(PLAN, "calls", lambda: 400, dict, 100)
    assert price == pytest.approx(calls.price.price / 0.01, rel=0.02)


@pytest.mark.parametrize(
    ("budget", "unit"),
    [
        (None, None),
        (Budget(), None),
        (Budget(output_tokens=5), None),
        (Budget(calls=5), "calls"),
        (Budget(calls=5, usd=1), "usd"),
    ],
)
def test_usd_come_before_tokens_and_tokens_before_calls(budget, unit):
    """USD are no unit where calls are free."""
    assert budget_unit(budget) == unit
    assert budget_unit(budget, free=True) == ("calls" if unit == "usd" else unit)
    assert budget_unit(Budget(usd=1), free=True) is None


def trace_with_costs(amount):
    """A trace of one draft and one grade with these costs, step by step."""
    usage = Usage(1, 500, 500, cost=amount / 2, answer_tokens=1000, answer_cost=amount / 2)
    drafted = Trace(
        Task("t"),
        (PanelGrader("judge"),),
        (Candidate(0, "a", by="w", role="generate", usage=usage),),
    )
    return drafted + Feedback(0.4, "so so", ("say more",), grader="judge", usage=usage)


def test_the_first_decision_is_priced_in_the_unit_of_the_budget():
    """A price that was computed before the first call was paid for is replaced afterwards."""
    spent = {}
    allocator = BudgetAllocator(
        PLAN, "usd", lambda: 1.0 - spent.get("usd", 0.0), lambda: spent, 100
    )
    row = allocator.start_row()
    assert allocator.price_for(row).unit == "calls"
    spent |= {"calls": 2, "usd": 0.004}
    row.next_steps(PLAN, trace_with_costs(0.004))
    assert allocator.price_for(row).unit == "usd"
    assert (row.log.base, row.log.decisions[0].cost) == pytest.approx((0.004, 0.004))


def test_a_decision_in_another_unit_is_converted_to_the_budgets():
    """With cached answers nothing is spent and the cost of a call is unknown; the decisions are in
    USD all the same.
    """
    allocator = BudgetAllocator(PLAN, "usd", lambda: 1.0, dict, 100)
    row = allocator.start_row()
    assert allocator.price_for(row).unit == "calls"
    row.next_steps(PLAN, trace_with_costs(0.004))
    unit, base, decisions, comparison = row.log.as_data()
    assert (unit, base, decisions[0].cost, comparison) == (
        "usd",
        pytest.approx(0.004),
        pytest.approx(0.004),
        0.0,
    )


def test_a_usd_budget_does_not_limit_free_calls():
    """The price for a row is the plan's own, however many rows wait."""
    spent = {"calls": 500, "usd": 0.0}
    allocator = BudgetAllocator(PLAN, "usd", lambda: 5.0, lambda: spent, 200)
    assert allocator.price_for(allocator.start_row()) == (PLAN.min_expected_gain, "calls")


async def finish_rows(allocator, tasks, n):
    """Let rows of the allocator run to their end."""
    for i in range(n):
        row = allocator.start_row()
        row.finish(await tasks.work(i, partial(row.next_steps, PLAN)))


async def test_new_priors_reset_the_price():
    """Decisions under the old priors are dropped, also of rows that end later, so the price is that
    of a new run.
    """
    tasks, priors = Tasks(40), Priors(draft_mean=0.7, noise_sd=0.05)
    allocator = allocator_for(tasks, 640, 160)
    late = allocator.start_row()
    await finish_rows(allocator, tasks, 39)
    allocator.set_priors(priors)
    late.finish(await tasks.work(39, partial(late.next_steps, PLAN)))
    fresh = BudgetAllocator(
        replace(PLAN, priors=priors), "calls", lambda: 640 - tasks.calls, dict, 120
    )
    assert allocator.estimate.base == fresh.estimate.base
    assert allocator.price == fresh.price
    assert (
        allocator.price
        != BudgetAllocator(PLAN, "calls", lambda: 640 - tasks.calls, dict, 120).price
    )


class RowsWithoutIteration(set):
    """Rows that must not be iterated."""

    def __iter__(self):
        raise AssertionError("all rows were gone through")


async def test_the_sum_owed_to_rows_needs_no_iteration():
    """The sum is updated as rows move, and is right."""
    tasks = Tasks(64)
    allocator = allocator_for(tasks, 256, 64)
    rows = [allocator.start_row() for _ in range(32)]
    asked = allocator.price
    allocator.under_way = RowsWithoutIteration(allocator.under_way)
    assert {allocator.price_for(row) for row in rows} == {asked}
    allocator.under_way = {*rows}
    for i, row in enumerate(rows[:20]):
        row.finish(await tasks.work(i, partial(row.next_steps, PLAN)))
        assert allocator._reserved == pytest.approx(
            sum(row.reserved for row in allocator.under_way)
        )


WITH_COMPARISON = (PanelGrader("judge"), PanelGrader("final", compares=True))


def test_simulated_tasks_end_with_a_comparison_and_the_posterior():
    """Where a grader compares, a simulated task has a comparison of two calls; its end has all that
    the plan reports.
    """
    plan = Adaptive(SelfRefine(max_iterations(3)), min_expected_gain=0.005, max_attempts=3)
    ended = [
        run_to_end(trace, plan, world)
        for world, trace in simulate_tasks(
            Priors(), WITH_COMPARISON, random.Random(0), with_response=False
        )
    ]
    compared = [t for t in ended if any(isinstance(r, Comparison) for r in t.records)]
    assert 0 < len(compared) < len(ended)
    assert all(r.usage.calls == 2 for t in compared for r in t.records if isinstance(r, Comparison))
    assert all(dict(t.outcome.estimates)[t.outcome.best] == t.outcome.score for t in ended)
    assert {
        log.comparison for log in simulated_logs(plan, WITH_COMPARISON, with_response=False)
    } == {0.0, 2.0}


def test_a_comparison_ends_a_task():
    """A task ends with it however low the price falls, and it is no decision of the task."""
    left = [100.0]
    allocator = BudgetAllocator(PLAN, "calls", lambda: left[0], dict, 20, WITH_COMPARISON)
    row = allocator.start_row()
    trace = next(
        trace
        for _, trace in simulate_tasks(
            Priors(), WITH_COMPARISON, random.Random(0), with_response=False
        )
    )
    texts = [
        Candidate(0, "a", by="w", role="generate", usage=ONE),
        Candidate(1, "b", 0, by="w", role="refine", usage=ONE),
    ]
    for text in texts:
        trace = (
            trace
            + text
            + Feedback(0.5, "so so", ("more",), candidate=text.id, grader="judge", usage=ONE)
        )
    left[0] = 0.0
    (step,) = row.next_steps(PLAN, trace)
    assert isinstance(step, Compare)
    left[0] = 1e6
    allocator.set_priors(Priors(draft_mean=0.5))
    trace += Comparison((1, 0), grader="final", usage=Usage(2))
    (step,) = row.next_steps(PLAN, trace)
    row.finish(trace + step)
    assert (step.role, step.best) == ("stop", 1)
    assert (row.log.comparison, row.log.spent, len(row.log.decisions)) == (2.0, 4.0, 1)


def test_decisions_record_the_expected_gain_and_cost_of_each_step():
    """The cost is corrected once it is known, a repeated decision counts once, and the record can
    be saved as JSON.
    """
    plan = Adaptive(SelfRefine(max_iterations(3)), min_expected_gain=0.0)
    allocator = allocator_for(Tasks(1), 100, 1)
    for world, trace in simulate_tasks(
        Priors(), [PanelGrader("judge")], random.Random(0), with_response=False, tasks=3
    ):
        row = allocator.start_row()
        ended = run_to_end(trace, partial(row.next_steps, plan), world)
        row.finish(ended)
        calls = sum(r.usage.calls for r in ended.records)
        assert row.log.base + sum(decision.cost for decision in row.log.decisions) == calls
        assert (
            all(decision.rate > 0 for decision in row.log.decisions[:-1])
            and row.log.decisions[-1].rate == 0
        )
        again = allocator.start_row()
        again.resume(plan, ended)
        again.finish(ended)
        assert again.log.decisions == row.log.decisions
        assert (
            DecisionLog.from_data(json.loads(json.dumps(row.log.as_data()))).decisions
            == row.log.decisions
        )


def test_a_row_of_unknown_cost_is_no_decision():
    """Nor is it an error."""
    allocator = BudgetAllocator(PLAN, "usd", lambda: 1.0, dict, 2)
    row = allocator.start_row()
    trace = Trace(
        Task("t"),
        (PanelGrader("judge"),),
        (Candidate(0, "a", usage=Usage(1, answer_cost=None)), Feedback(0.5, grader="judge")),
    )
    row.next_steps(PLAN, trace)
    row.finish(trace + Outcome(0, "gain"))
    allocator.start_row().finish(None)
    assert (row.log.base, row.log.decisions) == (None, [])
    # that of a new run: the cost of a call is unknown
    assert allocator.price == (PLAN.min_expected_gain, "calls")
    assert (allocator.waiting, allocator.under_way, allocator.commitment) == (0, set(), 0.0)


def test_simulated_tasks_are_reproducible():
    """They follow from the priors alone; a task with a response begins with it."""
    one, two = (
        [
            w.level
            for w, _ in simulate_tasks(
                Priors(), [PanelGrader("judge")], random.Random(0), with_response=True
            )
        ]
        for _ in range(2)
    )
    assert one == two
    world, trace = next(
        simulate_tasks(Priors(), [PanelGrader("judge")], random.Random(0), with_response=True)
    )
    assert trace.candidates[0].usage.calls == 0
    assert len(world.qualities) == 1


# --- runs


async def quality_judge(text, model):
    """The quality of a text as judged by a model call."""
    said = await model(f"Grade this: {text}")
    return float(said)


class Writer:
    """Writes good texts for an easy task, and texts for a hard one that improve with each
    refinement.
    """

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
            verdict = {
                "reason": "so it is",
                "change": [],
                "winner": self.dice.choice(["first", "second"]),
                "done": False,
            }
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
    path.write_text(
        "".join(json.dumps({"id": f"r{n}", "prompt": f"row {n} please"}) + "\n" for n in range(40))
    )
    return path


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


async def go(rows, output, model, **given):
    given = {
        "max_iterations": 6,
        "patience": 6,
        "target_score": 0.97,
        "min_expected_gain": 0.001,
        "max_in_flight": 8,
        **given,
    }
    return await BatchRun.from_arguments(rows, output, model, quality_judge, **given).go()


@pytest.mark.slow
@pytest.mark.parametrize("budget", [Budget(calls=160), Budget(usd=1.6), Budget(tokens=240_000)])
async def test_a_run_spends_more_of_its_budget_on_hard_rows(tmp_path, rows, budget):
    """Each row is graded, and the run ends as finished."""
    model = Writer()
    report = await go(rows, tmp_path / "out.jsonl", model, budget=budget, prices={"w": (0, 10)})
    told = lines(tmp_path / "out.jsonl")
    assert (report.stop, report.rows.done) == ("", 40)
    assert 120 <= model.calls <= 160
    assert all(row["best_score"] is not None and row["calls"] >= 2 for row in told)
    assert sum(row["calls"] for row in told[::2]) > 1.3 * sum(row["calls"] for row in told[1::2])


@pytest.mark.parametrize(
    ("budget", "width"),
    [(Budget(calls=120), 4), (Budget(calls=240), 64), (Budget(usd=2.4), 4)]
    + [
        pytest.param(*case, marks=pytest.mark.slow)
        for case in ((Budget(calls=120), 64), (Budget(calls=240), 4), (Budget(usd=2.4), 64))
    ],
)
async def test_budget_is_reserved_for_the_final_check(tmp_path, rows, budget, width):
    """Every row starts and finishes, although comparisons come last."""
    model = Writer()
    given = {"max_in_flight": width, "prices": {"w": (0, 10)}}
    report = await go(rows, tmp_path / "out.jsonl", model, budget=budget, **given)
    stops = {row["stop"] for row in lines(tmp_path / "out.jsonl")}
    assert (report.stop, report.rows.done) == ("", 40)
    assert not stops & {"not_started", "budget"}
    most = budget.calls or 240
    assert 0.8 * most <= model.calls <= most


@pytest.mark.slow
@pytest.mark.parametrize("price", [None, FREE], ids=["it turns out", "it is known"])
async def test_a_usd_budget_does_not_limit_a_free_model(tmp_path, rows, price):
    """About as many calls are made as without one; of two limits the effective one sets the
    price.
    """
    plain, free, both = (Writer(0.0) for _ in range(3))
    for model in (plain, free, both):
        model.price = price
    given = {"max_in_flight": 1, "priors": "shipped", "prices": None if price else {"w": (0, 10)}}
    await go(rows, tmp_path / "plain.jsonl", plain, **given)
    await go(rows, tmp_path / "free.jsonl", free, budget=Budget(usd=0.5), **given)
    assert free.calls > 0.9 * plain.calls > 160
    if price:
        report = await go(
            rows, tmp_path / "both.jsonl", both, budget=Budget(usd=0.5, calls=160), **given
        )
        assert (report.stop, report.rows.done) == ("", 40)
        assert 120 <= both.calls <= 160


class EqualQualityWriter(Writer):
    """Writes texts of equal quality."""

    async def complete(self, request):
        reply = await super().complete(request)
        return replace(
            reply,
            text=sub(
                r"quality [0-9.]+",
                f"quality {min(1.0, max(0.0, self.dice.gauss(0.5, 0.1))):.3f}",
                reply.text,
            ),
        )


@pytest.mark.slow
async def test_rows_before_and_after_a_refit_get_equal_shares(tmp_path, monkeypatch):
    """Later rows have other priors, but the same share of the budget."""
    monkeypatch.setattr(OnlinePriors, "first_refit", 128)
    source = tmp_path / "rows.jsonl"
    source.write_text(
        "".join(json.dumps({"id": f"r{n}", "prompt": f"row {n} please"}) + "\n" for n in range(384))
    )
    report = await go(
        source,
        tmp_path / "out.jsonl",
        EqualQualityWriter(),
        budget=Budget(calls=1152),
        priors="shipped",
    )
    told = [row["calls"] for row in lines(tmp_path / "out.jsonl")]
    assert (report.stop, report.rows.done) == ("", 384)
    parts = [mean(told[i : i + 128]) for i in range(0, 384, 128)]
    assert max(parts) - min(parts) < 0.9
    assert 1100 <= sum(told) <= 1152


async def test_without_a_budget_the_price_is_constant(tmp_path, rows):
    """There is no allocator, so that rows do not affect each other."""
    going = BatchRun.from_arguments(
        rows, tmp_path / "out.jsonl", Writer(), quality_judge, min_expected_gain=0.02
    )
    await going.go()
    assert going._job.budget.allocator is None


@pytest.mark.slow
async def test_a_resumed_run_reads_the_decisions_of_finished_rows(tmp_path, rows):
    """It keeps to the whole budget, and ends well."""
    model = Writer()
    given = {"budget": Budget(calls=160)}
    first = BatchRun.from_arguments(
        rows,
        tmp_path / "out.jsonl",
        model,
        quality_judge,
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
    assert (report.stop, 0 < report.rows.done < 40) == ("interrupted", True)
    with closing(Journal(tmp_path / "out.jsonl.journal", read_only=True)) as journal:
        kept = [
            note.facts.decisions for note, _ in journal.traces("out-jsonl") if note.status == "done"
        ]
    assert all(unit == "calls" and base >= 2 for unit, base, *_ in kept)
    report = await go(rows, tmp_path / "out.jsonl", model, **given)
    assert (report.stop, report.rows.done) == ("", 40)
    assert 120 <= model.calls <= 160


@pytest.mark.slow
@pytest.mark.parametrize("more", [Budget(calls=300), None], ids=["more", "no limit"])
async def test_a_larger_budget_resumes_rows_that_ended_by_the_price(tmp_path, rows, more):
    """Hard rows resume while it is worth the price; repeated with the same budget the run makes no
    call.
    """
    model, output = Writer(), tmp_path / "out.jsonl"
    report = await go(rows, output, model, budget=Budget(calls=100), learn=False)
    before, first = lines(output), model.calls
    assert (report.stop, report.rows.done, first <= 100) == ("", 40, True)
    assert (
        await go(rows, output, model, budget=Budget(calls=100), learn=False)
    ).spending.calls == 0
    report = await go(rows, output, model, budget=more, learn=False)
    after, second = lines(output), model.calls
    assert (report.stop, report.rows.done) == ("", 40)
    assert second > first + 60
    assert second <= (more.calls if more else 40 * 14)
    assert (
        mean(row["best_score"] for row in after[::2])
        > mean(row["best_score"] for row in before[::2]) + 0.02
    )
    again = await go(rows, output, model, budget=more, learn=False)
    assert (again.spending.calls, again.rows.reused, lines(output)) == (0, 40, after)


@pytest.mark.slow
async def test_a_larger_budget_reaches_all_rows(tmp_path, rows):
    """It is allocated as if the budget had been as large from the start: early rows get no
    preference.
    """
    model, output = Writer(), tmp_path / "out.jsonl"
    await go(rows, output, model, budget=Budget(calls=100), learn=False)
    await go(rows, output, model, budget=Budget(calls=180), learn=False)
    took = [row["calls"] for row in lines(output)]
    assert 150 <= model.calls <= 180
    assert sum(took[20::2]) > 0.6 * sum(took[:20:2])


@pytest.mark.slow
@pytest.mark.parametrize("now", [False, True])
async def test_a_run_resumed_with_a_larger_budget_may_be_interrupted(tmp_path, rows, now):
    """Rows that were not reconsidered yet are reconsidered by the next run, and nothing paid for is
    lost.
    """
    model, output, given = (
        Writer(),
        tmp_path / "out.jsonl",
        {"budget": Budget(calls=300), "learn": False},
    )
    await go(rows, output, model, budget=Budget(calls=100), learn=False)
    first = model.calls
    settings = {
        "max_iterations": 6,
        "patience": 6,
        "target_score": 0.97,
        "min_expected_gain": 0.001,
        "max_in_flight": 8,
    }
    going = BatchRun.from_arguments(rows, output, model, quality_judge, **settings, **given)
    work = asyncio.ensure_future(going.go())
    while model.calls < first + 20 and not work.done():
        await asyncio.sleep(0)
    going.stop(now=now)
    assert (await work).stop == "interrupted"
    report = await go(rows, output, model, **given)
    assert (report.stop, report.rows.done) == ("", 40)
    assert first + 60 < model.calls <= 300
    with closing(Journal(tmp_path / "out.jsonl.journal", read_only=True)) as journal:
        told = {note.id: note.facts.calls for note, trace in journal.traces("out-jsonl")}
        kept = {
            note.id: sum(r.usage.calls for r in trace.records)
            for note, trace in journal.traces("out-jsonl")
        }
    assert told == kept
    assert (await go(rows, output, model, **given)).spending.calls == 0


class HeldWriter(Writer):
    """Writes until it is held; then its calls never return."""

    is_held, waiting = False, 0

    async def complete(self, request):
        if self.is_held:
            self.waiting += 1
            await asyncio.Event().wait()
        return await super().complete(request)


async def test_a_row_that_a_larger_budget_continues_is_open_with_its_old_result(tmp_path):
    """So a run that is killed in the meantime has the old result, and continues the row."""
    rows, output, model = tmp_path / "rows.jsonl", tmp_path / "out.jsonl", HeldWriter()
    rows.write_text(
        "".join(json.dumps({"id": f"r{n}", "prompt": f"row {n} please"}) + "\n" for n in range(6))
    )
    await go(rows, output, model, budget=Budget(calls=15), learn=False)
    best = {row["id"]: row["best"] for row in lines(output)}
    stopped = {row["id"] for row in lines(output) if row["stop"] == "gain"}
    model.is_held = True
    settings = {
        "max_iterations": 6,
        "patience": 6,
        "target_score": 0.97,
        "min_expected_gain": 0.001,
        "max_in_flight": 2,
    }
    going = BatchRun.from_arguments(
        rows, output, model, quality_judge, budget=Budget(calls=100), learn=False, **settings
    )
    work = asyncio.ensure_future(going.go())
    while model.waiting < 2 and not work.done():
        await asyncio.sleep(0)
    under_way = set()
    while len(under_way) < 2 and not work.done():  # a moment later both are committed
        await asyncio.sleep(0)
        with closing(Journal(tmp_path / "out.jsonl.journal", read_only=True)) as journal:
            found = journal.rows_by_id("out-jsonl", sorted(best))
        assert {id: info.facts.answer for id, info in found.items()} == best
        under_way = {id for id, info in found.items() if info.status == "open"}
    assert under_way <= stopped and len(under_way) == 2
    going.stop(now=True)
    await work
    assert {row["id"]: row["best"] for row in lines(output)}.items() <= best.items()


@pytest.mark.slow
async def test_shards_resume_with_a_larger_budget(tmp_path, rows, monkeypatch):
    """Rows that ended by the price are dispatched again."""
    monkeypatch.setattr(api, "RayPool", LocalPool)
    model, output, given = Writer(), tmp_path / "out.jsonl", {"ray": "local", "workers": 2}
    await go(rows, output, model, budget=Budget(calls=100), **given)
    first = model.calls
    report = await go(rows, output, model, budget=Budget(calls=300), **given)
    assert (report.stop, report.rows.done) == ("", 40)
    assert first + 60 < model.calls <= 300
    assert (await go(rows, output, model, budget=Budget(calls=300), **given)).spending.calls == 0


@pytest.mark.slow
async def test_the_price_is_in_the_progress_and_the_report(tmp_path, rows):
    """They have the price and the number of rows that it ended; without a budget they have
    neither.
    """
    seen = []
    told = await go(
        rows,
        tmp_path / "out.jsonl",
        Writer(),
        budget=Budget(calls=100),
        on_progress=lambda p: seen.append(p.as_data()),
    )
    (line,) = (line for line in told.summary() if line.startswith("price"))
    assert (
        f" a call; {told.rows.stops['gain']} rows ended because nothing more was worth its price"
        in line
    )
    assert told.as_data()["spending"]["price"] == seen[-1]["spending"]["price"] > 0.001
    assert told.as_data()["spending"]["price_unit"] == "calls"
    shown = CliRunner().invoke(runs, ["show", str(tmp_path / "out.jsonl")])
    assert line in " ".join(shown.output.split())
    free = await go(rows, tmp_path / "free.jsonl", Writer())
    assert free.spending.price is None
    assert not any("price" in line for line in free.summary())


@pytest.mark.slow
async def test_shards_share_the_budget(tmp_path, rows, monkeypatch):
    """Each shard uses what is left for each remaining row of the run, so that prices are equal
    where rows are.

    Each row is graded. Whether the last ones end by the price or by the quota depends on the time
    at which quotas are exchanged.
    """
    monkeypatch.setattr(api, "RayPool", LocalPool)
    model = Writer()
    report = await go(
        rows, tmp_path / "out.jsonl", model, budget=Budget(calls=160), ray="local", workers=3
    )
    told = lines(tmp_path / "out.jsonl")
    assert report.stop in ("", "budget") and all(row["best_score"] is not None for row in told)
    assert 110 <= model.calls <= 160
    assert sum(row["calls"] for row in told[::2]) > 1.3 * sum(row["calls"] for row in told[1::2])


@pytest.mark.slow
async def test_provider_batches_share_the_price(tmp_path, provider):
    """Where all rows advance at the same time, each is graded and the budget is kept."""
    server, budget = provider(), Budget(calls=80)
    source = write_rows(tmp_path / "rows.jsonl", 24)
    going = BatchRun.from_arguments(
        source,
        tmp_path / "out.jsonl",
        server.model,
        engine="provider-batch",
        poll=0.02,
        budget=budget,
        min_expected_gain=0,
    )
    report = await going.go()
    assert (report.stop, report.rows.done) == ("", 24)
    assert 60 <= report.spending.calls <= 80
    assert all(row["best_score"] is not None for row in lines(tmp_path / "out.jsonl"))
