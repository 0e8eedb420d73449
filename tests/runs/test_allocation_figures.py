"""The figures of the budget's allocation, from small logs of decisions and worked out by hand.

Simulated rows count as 16 rows in all. What a row is expected to cost further is the product-limit
estimate: after each decision, the rows that continue at a price among those that have got there,
and what their steps have cost.
"""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redraft import Budget, Feedback, Task
from redraft.loop.records import Candidate, Comparison, Failure, Outcome
from redraft.loop.stopping import max_iterations
from redraft.loop.trace import PanelGrader, Trace
from redraft.plans.adaptive import Adaptive
from redraft.plans.quality.priors import Priors
from redraft.plans.self_refine import SelfRefine
from redraft.runs import allocation
from redraft.runs.allocation import (
    BudgetAllocator,
    Decision,
    DecisionLog,
    amount_paid,
    budget_left,
    cost_of_answers,
)
from redraft.usage import Usage

PLAN = Adaptive(SelfRefine(max_iterations(8)), max_attempts=8, min_expected_gain=0.002)
WITH_COMPARISON = (PanelGrader("judge"), PanelGrader("final", compares=True))


def log(base, *decisions, unit="calls", comparison=0.0):
    """A finished row: its cost before the first decision, and the rate and the cost of each best
    offer.
    """
    return DecisionLog(unit, base, [*map(Decision._make, decisions)], comparison)


@pytest.fixture
def allocate(monkeypatch):
    """An allocator for so many rows that has seen these finished rows; `simulated`: what it
    simulates, in calls.
    """

    def new(
        left,
        rows,
        *finished,
        simulated=(log(2.0, (0.0, 0.0)),),
        unit="calls",
        spent=None,
        panel=(PanelGrader("judge"),),
        plan=PLAN,
    ):
        monkeypatch.setattr(allocation, "simulated_logs", lambda *_, **__: simulated)
        allocator = BudgetAllocator(plan, unit, lambda: left, lambda: spent or {}, rows, panel)
        for each in finished:
            allocator.add_finished(DecisionLog.from_data(json.loads(json.dumps(each.as_data()))))
        return allocator

    return new


FOUR = (
    log(2.0, (0.5, 2.0), (0.2, 3.0), (0.0, 0.0)),
    log(2.0, (0.3, 2.0), (0.0, 0.0)),
    log(4.0, (0.1, 1.0), (0.0, 0.0)),
    log(3.0, (0.0, 0.0)),
)
# The base of a row is (16 * 2 + 2 + 2 + 4 + 3) / 20 = 2.15. Of 20 rows two continue at a price of
# 0.25, for 2 each: 4 / 20 = 0.2 a row. At 0.15 one of these two continues for 3 more: (4 + 2 * 3 /
# 2) / 20 = 0.35. At 0.05 a third continues for 1, and of these three one for 3 more: (5 + 3 * 3 /
# 3) / 20 = 0.4.
# further cost of a row -> the rates at and below which it is too much
PRICES = [(0.0, 0.5), (0.1, 0.3), (0.2, 0.2), (0.35, 0.1)]


def is_just_above(price, rate):
    """Whether a price was found by halving: at most 1 % above the rate from which on it is
    affordable.
    """
    return rate <= price <= 1.01 * rate


@pytest.mark.parametrize(("further", "rate"), PRICES)
def test_the_price_is_the_lowest_that_all_rows_can_pay(allocate, further, rate):
    """With the slightest amount less it is the next rate; with enough for all offers it is the
    plan's own, with none at all 1.
    """
    need = 10 * (2.15 + further)
    assert is_just_above(allocate(need + 1e-9, 10, *FOUR).price.price, rate)
    higher = {0.0: 1.0, 0.1: 0.5, 0.2: 0.3, 0.35: 0.2}[further]
    assert is_just_above(allocate(need - 1e-9, 10, *FOUR).price.price, higher)
    assert allocate(25.5 + 1e-9, 10, *FOUR).price == (0.002, "calls")
    assert allocate(25.5 - 1e-9, 10, *FOUR).price.price > 0.1
    assert allocate(0.0, 10, *FOUR).price.price == pytest.approx(1.0)


def test_the_estimate_weighs_simulated_rows_as_sixteen(allocate):
    """Here in USD, at 0.02 a call: half of the simulated rows continue for 3 calls, which gain 0.4
    a call, or 20 a USD.
    """
    simulated = (log(2.0, (0.4, 3.0), (0.0, 0.0)), log(4.0, (0.0, 0.0)))
    finished = (
        log(0.5, (5.0, 0.25), (0.0, 0.0), unit="usd"),
        log(0.75, (30.0, 0.5), (0.0, 0.0), unit="usd"),
    )
    given = dict(simulated=simulated, unit="usd", spent={"calls": 100, "usd": 2.0})
    estimate = allocate(1e6, 4, *finished, **given).estimate
    assert estimate.base == pytest.approx((16 * 0.06 + 0.5 + 0.75) / 18)
    assert (estimate.highest, estimate.comparison) == (pytest.approx(50), 0.0)
    assert estimate.price == (pytest.approx(0.002 / 0.02), "usd")
    dear, both, all_three = 0.5 / 18, (0.5 + 8 * 0.06) / 18, (0.75 + 8 * 0.06) / 18
    for further, rate in ((dear, 20), (both, 5)):
        assert is_just_above(
            allocate(4 * (estimate.base + further) + 1e-9, 4, *finished, **given).price.price, rate
        )
    assert is_just_above(
        allocate(4 * (estimate.base + both) - 1e-9, 4, *finished, **given).price.price, 20
    )
    assert is_just_above(
        allocate(4 * (estimate.base + all_three) - 1e-9, 4, *finished, **given).price.price, 5
    )
    assert allocate(
        4 * (estimate.base + all_three) + 1e-9, 4, *finished, **given
    ).price.price == pytest.approx(0.1)


def test_a_comparison_is_expected_as_often_as_rows_have_ended_with_one(allocate):
    """Among rows with two answers: of 16 simulated ones half, of three finished ones one, so 9 of
    19; at the mean price, once a row.
    """
    simulated = (log(2.0, (0.4, 3.0), (0.0, 0.0), comparison=2.0), log(2.0, (0.4, 3.0), (0.0, 0.0)))
    finished = (
        log(2.0, (0.5, 2.0), (0.0, 0.0), comparison=4.0),
        log(2.0, (0.5, 2.0), (0.0, 0.0)),
        log(2.0, (0.5, 2.0), (0.3, 1.0)),
        log(2.0, (0.0, 0.0)),
    )
    given = dict(simulated=simulated, panel=WITH_COMPARISON)
    estimate = allocate(1e6, 10, *finished, **given).estimate
    assert (estimate.base, estimate.comparison) == (2.0, 4.0)
    # two answers in both orders, as long as nothing is known
    assert allocate(1e6, 10, **given).estimate.comparison == 2.0
    once = 3 * 4.0 * 9 / 19  # the rows that continue, by what is added to each of them
    high, all_but_last = (6 + once) / 20, (6 + 16 * 3 + 19 * 4.0 * 9 / 19) / 20
    assert is_just_above(allocate(10 * (2 + high) + 1e-9, 10, *finished, **given).price.price, 0.4)
    assert is_just_above(allocate(10 * (2 + high) - 1e-9, 10, *finished, **given).price.price, 0.5)
    assert is_just_above(
        allocate(10 * (2 + all_but_last) + 1e-9, 10, *finished, **given).price.price, 0.3
    )
    assert is_just_above(
        allocate(10 * (2 + all_but_last) - 1e-9, 10, *finished, **given).price.price, 0.4
    )


def test_rows_with_two_drafts_need_a_comparison_in_any_case(allocate):
    """It belongs to what each row needs, and a row that continues needs no other."""
    plan = Adaptive(
        SelfRefine(max_iterations(8), drafts=2), max_attempts=8, min_expected_gain=0.002
    )
    simulated = (log(4.0, (0.0, 0.0), comparison=2.0), log(4.0, (0.0, 0.0)))
    finished = (log(4.0, (0.5, 2.0), (0.0, 0.0), comparison=2.0), *[log(4.0, (0.0, 0.0))] * 3)
    given = dict(simulated=simulated, panel=WITH_COMPARISON, plan=plan)
    # one answer of each row was compared in half of 16 rows, and in one of four
    need = 4.0 + 2.0 * 9 / 20
    assert is_just_above(allocate(10 * need + 1e-9, 10, *finished, **given).price.price, 0.5)
    assert allocate(10 * need - 1e-9, 10, *finished, **given).price.price == pytest.approx(1.0)
    assert allocate(10 * (need + 2 / 20) + 1e-9, 10, *finished, **given).price == (0.002, "calls")
    allocator = allocate(100.0, 10, *finished, **given)
    # no row must find that it cannot be compared
    assert allocator.commitment == pytest.approx(10 * (4.0 + 2.0))
    row = allocator.start_row()
    assert (row.reserved, allocator.commitment) == (pytest.approx(6.0), pytest.approx(60.0))


def test_a_larger_budget_pays_for_the_offers_of_stopped_rows(allocate):
    """Of three rows that the price stopped, each needs its last offer and what follows; a row that
    was compared is not reopened.
    """
    stopped = (
        log(2.0, (0.5, 2.0), (0.2, 3.0)),
        log(2.0, (0.2, 3.0)),
        log(2.0, (0.5, 2.0), (0.2, 3.0), comparison=2.0),
    )
    simulated = (log(2.0, (0.0, 0.0)), log(2.0, (0.9, 5.0), (0.9, 7.0), (0.0, 0.0)))

    def with_stopped(left):
        allocator = allocate(left, 0, simulated=simulated)
        for each in stopped:
            allocator.add_finished(each)
            allocator.add_stopped(each)
        return allocator

    # At a price up to 0.2, after two decisions 8 of 8 rows stop: 3 + 0. After one, 8 + 2 of 10
    # continue, for 8 * 7 + 2 * 3: 3 + 6.2. One of these 10 has ended with a comparison: 2 / 10 for
    # each.
    need = (3 + 0 + 0.2) + (3 + 6.2 + 0.2)
    assert is_just_above(with_stopped(need - 1e-9).price.price, 0.2)
    allocator = with_stopped(need + 1e-9)
    assert allocator.price == (0.002, "calls")
    assert [allocator.reopen(each) for each in stopped] == [True, True, False]
    assert allocator.waiting == 2
    dear = with_stopped(need - 1e-9)
    assert [dear.reopen(each) for each in stopped] == [False] * 3
    assert dear.waiting == 0


def test_a_row_that_is_reopened_is_no_finished_one(allocate):
    """Its offer is worth exactly the plan's own price; what it will have cost in the end is not
    known any more.
    """
    stopped, other = log(8.0, (0.002, 3.0)), log(2.0, (0.0019, 3.0))
    allocator = allocate(1e6, 0, stopped, other)
    for each in (stopped, other):
        allocator.add_stopped(each)
    assert allocator.estimate.base == pytest.approx((16 * 2 + 8 + 2) / 18)
    assert [allocator.reopen(each) for each in (stopped, other)] == [True, False]
    allocator.add_stopped(other)
    assert allocator.estimate.base == pytest.approx((16 * 2 + 2) / 17)


@settings(max_examples=8, deadline=None)
@given(st.floats(0.5, 9.0), st.floats(0.01, 9.0), st.floats(0.5, 20.0), st.floats(0.5, 20.0))
def test_many_equal_rows_give_their_own_costs(base, cost, simulated_base, simulated_cost):
    """Of a thousand the latest 384 count, against 16 simulated ones: the figures are theirs but for
    a twenty-fifth.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            allocation,
            "simulated_logs",
            lambda *_, **__: [log(simulated_base, (0.9, simulated_cost), (0.0, 0.0))] * 4,
        )
        finished = [log(99.0, (0.9, 99.0))] * 616 + [log(base, (0.5, cost), (0.0, 0.0))] * 384
        need = 20 * (
            (16 * simulated_base + 384 * base) / 400 + (16 * simulated_cost + 384 * cost) / 400
        )
        for factor, price in ((1 + 1e-9, 0.002), (1 - 1e-9, 0.5)):
            allocator = BudgetAllocator(PLAN, "calls", lambda: need * factor, dict, 20)
            for each in finished:
                allocator.add_finished(each)
            assert price <= allocator.price.price <= 1.01 * price
            assert allocator.estimate.base == pytest.approx(
                (16 * simulated_base + 384 * base) / 400
            )
            assert allocator.commitment == pytest.approx(20 * allocator.estimate.base)


def test_figures_in_another_unit_or_of_no_decision_are_no_rows(allocate):
    """They come from a run with another budget, and from rows that have failed."""
    known = allocate(100.0, 10, *FOUR).estimate
    more = (log(50.0, (0.9, 9.0), unit="usd"), log(None))
    assert allocate(100.0, 10, *more, *FOUR).estimate == known


# ---- what a row has cost


def usage(n, *, retries=0, cached=False, unknown=False):
    """n tokens and n USD for an answer; each of its retries 100 more."""
    paid = 0 if cached else 1 + retries
    cost = None if unknown else 0.0 if cached else n + 100.0 * retries
    tokens = None if unknown else 0 if cached else 1000 * (n + 100 * retries)
    return Usage(
        paid,
        tokens,
        0,
        int(cached),
        retries,
        cost,
        None if unknown else 1000 * n,
        None if unknown else float(n),
    )


def text(n, parent=None, id=0, **how):
    return Candidate(
        id, f"text {id}", parent, by="w", role="refine" if id else "generate", usage=usage(n, **how)
    )


def grade(n, candidate=0, score=0.5, **how):
    return Feedback(
        score, "so so", ("more",), candidate=candidate, grader="judge", usage=usage(n, **how)
    )


LOST = Failure(
    ("feedback", 0, "judge", 0),
    "grade",
    "ModelTimeoutError",
    "late",
    usage=Usage(1, None, None, cost=None),
)
FAILED = Failure(("feedback", 0, "judge", 0), "grade", "ModelError", "no", usage=usage(7))


@pytest.mark.parametrize(
    ("records", "answers", "paid"),
    [
        ([], (0, 0, 0), (0, 0, 0)),
        ([text(1), grade(20)], (2, 21, 21), (2, 21, 21)),
        ([text(1, retries=2), grade(20, cached=True)], (2, 21, 21), (3, 201, 201)),
        ([text(1), FAILED, grade(20)], (2, 21, 21), (3, 28, 28)),
        ([text(1), LOST, grade(20, unknown=True)], (2, None, None), (3, 1, 1)),
        ([text(1), grade(20), Outcome(0, "gain")], (2, 21, 21), (2, 21, 21)),
    ],
)
def test_costs_of_answers_and_what_was_paid(records, answers, paid):
    """Answers cost the same from the cache; retries and failures are paid for; what is unknown is
    no 0 of answers.
    """
    units = ("calls", "tokens", "usd")
    assert tuple(cost_of_answers(records, unit) for unit in units) == answers
    assert tuple(amount_paid(records, unit) for unit in units) == paid


def test_what_is_left_of_a_budget():
    """Less the reserve, in thousands of tokens, and never less than nothing."""
    spent = {"calls": 3.0, "tokens": 4000.0, "usd": 0.5}
    assert budget_left(Budget(calls=10), spent, "calls") == 7
    assert budget_left(Budget(calls=10), spent, "calls", 2) == 5
    assert budget_left(Budget(tokens=10_000), spent, "tokens", 1000) == 5
    assert budget_left(Budget(usd=2), spent, "usd", 0.25) == 1.25
    assert budget_left(Budget(usd=0.6), spent, "usd", 0.25) == 0
    assert budget_left(Budget(calls=10), spent, "usd") == 0  # nothing limits USD


def decided(log, trace, *records):
    """Extend a trace, and let the log record what a plan that always goes on decides."""
    for record in records:
        trace += record
    log.next_steps(FREE_PLAN, trace)
    return trace


FREE_PLAN = Adaptive(SelfRefine(max_iterations(2)), min_expected_gain=0.0, priors=Priors(gain=0.2))


@pytest.mark.parametrize(("unit", "scale"), [("calls", None), ("tokens", 1), ("usd", 1)])
def test_a_log_has_the_cost_of_each_step(unit, scale):
    """Until a step is done its cost is what it is expected to be; then it is what its answers have
    cost. Comparisons are apart.
    """
    log, start = DecisionLog(unit), Trace(Task("t"), (PanelGrader("judge"),))
    cost = lambda *digits: len(digits) if scale is None else sum(digits)
    trace = decided(log, start, text(1, retries=1))
    assert (log.base, log.decisions, log.committed, log.has_rivals) == (None, [], 0.0, False)
    trace = decided(log, trace, FAILED, grade(20, cached=True))
    assert (log.base, log.spent, len(log.decisions)) == (cost(1, 20), cost(1, 20), 1)
    offer = log.decisions[0]
    assert offer.rate > 0 and log.committed == pytest.approx(log.spent + offer.cost)
    assert log.has_rivals
    again = decided(log, trace)
    assert again is trace and log.decisions == [offer]  # decided once more, nothing has changed
    trace = decided(log, trace, text(300, 0, 1), grade(4000, 1))
    assert (log.decisions[0], len(log.decisions)) == ((offer.rate, cost(300, 4000)), 2)
    assert log.spent == cost(1, 20, 300, 4000)
    trace = decided(log, trace, text(50_000, 1, 2), grade(600_000, 2, 0.6))
    compared = Comparison((2, 1), grader="final", usage=usage(7, retries=1))
    trace += compared
    log.finish(trace)
    assert [decision.cost for decision in log.decisions] == [
        cost(300, 4000),
        cost(50_000, 600_000),
        0.0,
    ]
    assert log.decisions[-1].rate == 0.0
    assert log.comparison == (2 if scale is None else 107)
    assert (log.spent, log.committed) == (cost(1, 20, 300, 4000, 50_000, 600_000),) * 2
    assert log.last_offer is None  # it is compared once
    assert DecisionLog.from_data(json.loads(json.dumps(log.as_data()))).as_data() == log.as_data()


def test_a_log_does_not_guess_an_unknown_cost():
    """A decision before it stands as it was."""
    log = DecisionLog("usd")
    trace = decided(log, Trace(Task("t"), (PanelGrader("judge"),)), text(1), grade(20))
    before = log.as_data()
    decided(log, trace, text(300, 0, 1, unknown=True), grade(4000, 1))
    assert log.as_data() == before


def test_an_account_reserves_the_next_step_and_a_comparison(allocate):
    """Before its first decision what rows need on average; then its own step; a comparison as soon
    as there may be two answers.
    """
    allocator = allocate(
        1e6,
        3,
        log(5.0, (0.0, 0.0), comparison=8.0),
        simulated=(log(2.0, (0.0, 0.0)),),
        panel=WITH_COMPARISON,
    )
    base = (16 * 2 + 5) / 17
    assert allocator.commitment == pytest.approx(3 * base)
    row = allocator.start_row()
    assert (allocator.waiting, row.reserved, row.log.unit) == (2, pytest.approx(base), "calls")
    trace = Trace(Task("t"), WITH_COMPARISON, (text(1), grade(20)))
    row.next_steps(FREE_PLAN, trace)
    step = row.log.decisions[0].cost
    assert step > 0 and row.reserved == pytest.approx(2 + step + 8)
    assert allocator.commitment == pytest.approx(2 * base + 2 + step + 8)
    trace = trace + text(300, 0, 1) + grade(4000, 1) + Outcome(0, "gain")
    row.finish(trace)
    assert not allocator.under_way and row.log.as_data() == [
        "calls",
        2.0,
        [(pytest.approx(row.log.decisions[0].rate), 2.0), (0.0, 0.0)],
        0.0,
    ]
    assert allocator.estimate.base == pytest.approx((16 * 2 + 5 + 2) / 18)
    # 4 calls were paid for
    assert allocator.commitment == pytest.approx(4 + 2 * allocator.estimate.base)
    allocator.start_row().finish(None)
    assert allocator.commitment == pytest.approx(4 + allocator.estimate.base)


@pytest.mark.parametrize("has_rivals", [False, True])
def test_another_answer_is_refused_to_a_row_where_other_rows_need_what_is_left(
    allocate, has_rivals
):
    """It may take a row's cost once more, and a comparison of 8, which is reserved already if there
    are two answers.
    """
    base = (16 * 2 + 5) / 17
    for left, price in ((2 * base + 8, 0.002), (2 * base + 7.99, 1.0)):
        finished, simulated = log(5.0, (0.0, 0.0), comparison=8.0), log(2.0, (0.0, 0.0))
        allocator = allocate(left, 1, finished, simulated=(simulated,), panel=WITH_COMPARISON)
        row = allocator.start_row()
        row.log.has_rivals = has_rivals
        allocator.update(row)
        assert allocator.price_for(row) == (price, "calls")
        assert allocator.price_for(row, compared=True) == (1.0, "calls")


def test_a_free_step_costs_nothing_and_is_worth_any_price():
    """As with a local model in a budget of USD."""
    log = DecisionLog("usd")
    decided(log, Trace(Task("t"), (PanelGrader("judge"),)), text(0), grade(0))
    assert (log.base, log.decisions, log.committed) == (0.0, [(1e9, 0.0)], 0.0)
    assert log.lowest_rate == 1e9


@pytest.mark.parametrize(
    ("spent", "price"),
    [
        ({}, 0.0),
        ({"calls": 10}, 0.0),
        ({"calls": 10, "usd": 0.5}, 0.025),
        ({"calls": 10, "usd": 0.0}, 0.0),
    ],
)
def test_the_plans_own_price_is_converted_to_the_unit_of_the_budget(allocate, spent, price):
    """Here 0.5 for a USD with a budget of calls. Until it is known what a call costs, nothing is
    lower than it.
    """
    plan = PLAN.with_price(0.5, "usd")
    assert allocate(1e6, 10, *FOUR, plan=plan, spent=spent).price == (pytest.approx(price), "calls")


@pytest.mark.parametrize(("more", "highest"), [({}, 2 / 21), ({"unknown": True}, 20.0)])
def test_a_call_costs_what_finished_rows_say_or_else_what_was_spent(allocate, more, highest):
    """One row cost 21 USD for two calls; of a row of unknown cost only what the whole run has spent
    is known: 0.5 USD for 10 calls.
    """
    allocator = allocate(1e6, 1, unit="usd", spent={"calls": 10, "usd": 0.5})
    trace = Trace(Task("t"), (PanelGrader("judge"),), (text(1, **more), grade(20)))
    allocator.start_row().finish(trace + Outcome(0, "gain"))
    allocator.start_row()
    assert allocator.estimate.highest == pytest.approx(highest)
