"""The figures of the budget's allocation, from small logs of decisions and worked out by hand."""

import json
from math import exp

import pytest

from redraft import Budget, Feedback, Task
from redraft.loop.records import Candidate, Comparison, Failure, Outcome
from redraft.loop.stopping import max_iterations
from redraft.loop.trace import PanelGrader, Trace
from redraft.plans.adaptive import Adaptive
from redraft.plans.quality.priors import Priors
from redraft.plans.self_refine import SelfRefine
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


def allocate(
    left, rows, *finished, unit="calls", spent=None, panel=(PanelGrader("judge"),), plan=PLAN
):
    """An allocator for so many rows that has seen these finished rows."""
    allocator = BudgetAllocator(plan, unit, lambda: left, lambda: spent or {}, rows, panel)
    for each in finished:
        allocator.add_finished(DecisionLog.from_data(json.loads(json.dumps(each.as_data()))))
    return allocator


FOUR = (
    log(2.0, (0.5, 2.0), (0.2, 3.0), (0.0, 0.0)),
    log(2.0, (0.3, 2.0), (0.0, 0.0)),
    log(4.0, (0.1, 1.0), (0.0, 0.0)),
    log(3.0, (0.0, 0.0)),
)
# They have cost 7, 4, 5 and 3: 19 in all. The base of a row is (16 * 2 + 2 + 2 + 4 + 3) / 20 = 2.15


def test_the_price_follows_what_ended_rows_have_cost():
    """In shares of what is left: with 60 for 10 rows the four have cost 19 / 6 shares, .83 less
    than four; with 30 they have cost 2.33 more.
    """
    assert allocate(60.0, 10).price == (0.02, "calls")
    for left, excess in ((60.0, 19 / 6 - 4), (30.0, 19 / 3 - 4), (1000.0, 19 / 100 - 4)):
        assert allocate(left, 10, *FOUR).price.price == pytest.approx(0.02 * exp(0.1 * excess))
    # there is a highest one, and with nothing left it is that of the start
    assert allocate(1e-6, 10, *FOUR).price.price == pytest.approx(0.02 * exp(20))
    assert allocate(0.0, 10, *FOUR).price.price == 0.02


def test_a_row_pays_the_price_for_the_shares_that_it_will_have_spent():
    """At least the plan's own price. A row that has spent 2 and decided on 3 more has 5; another
    answer and its grade cost 2.15.
    """
    allocator = allocate(90.0, 10, *FOUR)
    row = allocator.start_row()
    price = 0.02 * exp(0.1 * (19 / 9 - 4))
    assert allocator.price_for(row) == (pytest.approx(price * 2.15 / 9), "calls")
    row.log.decisions, row.log.committed = [Decision(0.5, 3.0)], 5.0
    allocator.update(row)
    assert allocator.price_for(row) == (pytest.approx(price * 7.15 / 9), "calls")
    row.log.committed = 0.0
    allocator = allocate(9000.0, 10, *FOUR)
    assert allocator.price_for(allocator.start_row()) == (0.002, "calls")


def test_rows_with_two_drafts_need_a_comparison_in_any_case():
    """It belongs to what each row needs: two drafts, two grades, and two answers in both orders."""
    plan = Adaptive(
        SelfRefine(max_iterations(8), drafts=2), max_attempts=8, min_expected_gain=0.002
    )
    allocator = allocate(100.0, 10, panel=WITH_COMPARISON, plan=plan)
    assert allocator.commitment == pytest.approx(10 * (6.0 + 2.0))
    row = allocator.start_row()
    assert (row.need, allocator.commitment) == ((1, 1, 0.0), pytest.approx(80.0))


def test_stopped_rows_are_open_until_the_price_has_decided():
    """Three rows have cost 4, 2 and 6 and share 24 more with nobody: 12 each. The first two are
    offered .2 and .001 for a call; the third was compared, which is done once.
    """
    stopped = (
        log(2.0, (0.5, 2.0), (0.2, 3.0)),
        log(2.0, (0.001, 3.0)),
        log(2.0, (0.5, 2.0), (0.2, 3.0), comparison=2.0),
    )
    allocator = allocate(24.0, 0)
    for each in stopped:
        allocator.add_stopped(each)
    assert allocator.price == (0.02, "calls")
    assert [allocator.reopen(each) for each in stopped] == [True, False, False]
    assert allocator.waiting == 1
    # the other two have ended: 8 of them against a share of 24
    assert allocator.price.price == pytest.approx(0.02 * exp(0.1 * (8 / 24 - 2)))


def test_figures_in_another_unit_or_of_no_decision_are_no_rows():
    """They come from a run with another budget, and from rows that have failed."""
    known = allocate(100.0, 10, *FOUR)
    more = (log(50.0, (0.9, 9.0), unit="usd"), log(None))
    found = allocate(100.0, 10, *more, *FOUR)
    assert (found.price, found.commitment) == (known.price, known.commitment)
    found.add_stopped(more[0])
    assert found.reopen(more[0])  # a row that is known in another unit is always reopened


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


def test_an_account_reserves_the_next_step_and_a_comparison():
    """Before its first decision what rows need on average; then its own step; a comparison as soon
    as there may be two answers.
    """
    allocator = allocate(1e6, 3, log(5.0, (0.0, 0.0), comparison=8.0), panel=WITH_COMPARISON)
    base = (16 * 3 + 5) / 17  # a draft and two grades are expected
    assert allocator.commitment == pytest.approx(3 * base)
    row = allocator.start_row()
    assert (allocator.waiting, row.need, row.log.unit) == (2, (1, 0, 0.0), "calls")
    trace = Trace(Task("t"), WITH_COMPARISON, (text(1), grade(20)))
    row.next_steps(FREE_PLAN, trace)
    step = row.log.decisions[0].cost
    assert step > 0 and row.need == (0, 1, pytest.approx(2 + step))
    assert allocator.commitment == pytest.approx(2 * base + 2 + step + 8)
    trace = trace + text(300, 0, 1) + grade(4000, 1) + Outcome(0, "gain")
    row.finish(trace)
    assert not allocator.under_way and row.log.as_data() == [
        "calls",
        2.0,
        [(pytest.approx(row.log.decisions[0].rate), 2.0), (0.0, 0.0)],
        0.0,
    ]
    base = (16 * 3 + 5 + 2) / 18
    # 4 calls were paid for
    assert allocator.commitment == pytest.approx(4 + 2 * base)
    allocator.start_row().finish(None)
    assert allocator.commitment == pytest.approx(4 + base)


@pytest.mark.parametrize("has_rivals", [False, True])
def test_another_answer_is_refused_to_a_row_where_other_rows_need_what_is_left(has_rivals):
    """It may take a row's cost once more, and a comparison of 8, which is reserved already if there
    are two answers.
    """
    base = (16 * 3 + 5) / 17
    for left, is_refused in ((2 * base + 8, False), (2 * base + 7.99, True)):
        finished = log(5.0, (0.0, 0.0), comparison=8.0)
        allocator = allocate(left, 1, finished, panel=WITH_COMPARISON)
        row = allocator.start_row()
        row.log.has_rivals = has_rivals
        allocator.update(row)
        assert (allocator.price_for(row) == (1.0, "calls")) is is_refused
        assert allocator.price_for(row, compared=True) == (1.0, "calls")


def test_a_free_step_costs_nothing_and_is_worth_any_price():
    """As with a local model in a budget of USD."""
    log = DecisionLog("usd")
    decided(log, Trace(Task("t"), (PanelGrader("judge"),)), text(0), grade(0))
    assert (log.base, log.decisions, log.committed) == (0.0, [(1e9, 0.0)], 0.0)


@pytest.mark.parametrize(
    ("spent", "price"),
    [
        ({}, 0.0),
        ({"calls": 10}, 0.0),
        ({"calls": 10, "usd": 0.5}, 0.025),
        ({"calls": 10, "usd": 0.0}, 0.0),
    ],
)
def test_the_plans_own_price_is_converted_to_the_unit_of_the_budget(spent, price):
    """Here 0.5 for a USD with a budget of calls. Until it is known what a call costs, nothing is
    lower than it.
    """
    plan = PLAN.with_price(0.5, "usd")
    allocator = allocate(1e6, 10, *FOUR, plan=plan, spent=spent)
    found = allocator.price_for(allocator.start_row())
    assert found == (pytest.approx(price, abs=1e-6), "calls")


@pytest.mark.parametrize(("more", "highest"), [({}, 2 / 21), ({"unknown": True}, 20.0)])
def test_a_call_costs_what_finished_rows_say_or_else_what_was_spent(more, highest):
    """One row cost 21 USD for two calls; of a row of unknown cost only what the whole run has spent
    is known: 0.5 USD for 10 calls.
    """
    allocator = allocate(1e6, 1, unit="usd", spent={"calls": 10, "usd": 0.5})
    trace = Trace(Task("t"), (PanelGrader("judge"),), (text(1, **more), grade(20)))
    allocator.start_row().finish(trace + Outcome(0, "gain"))
    # what is prohibitive: a call would have to gain the whole scale
    assert allocator.price_for(allocator.start_row(), compared=True).price == pytest.approx(highest)
