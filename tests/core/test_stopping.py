"""Every rule to stop, in exact counts: tables of traces, and a small model of patience."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each_row import each_row
from redraft.errors import ConfigError
from redraft.loop import stopping
from redraft.loop.records import Candidate, Comparison, Feedback, StopReason, ToolCall
from redraft.loop.stopping import (
    StopDecision,
    done,
    max_iterations,
    patience,
    repairs_only,
    target,
    tool_calls,
)
from redraft.loop.task import Task
from redraft.loop.trace import PanelGrader, Trace

JUDGE = PanelGrader("judge")
MUST, SECOND_MUST = (
    PanelGrader("must", must=True, model_free=True),
    PanelGrader("form", must=True, model_free=True),
)
RANKER = PanelGrader("ranker", compares=True)
CRITIC = PanelGrader("critic")
EDITED = PanelGrader("commas", must=True, model_free=True, editable=True)


def draft(id=0, text=None):
    return Candidate(id, text or f"text {id}", role="generate")


def refined(id, parent=None, text=None, role="refine"):
    return Candidate(id, text or f"text {id}", id - 1 if parent is None else parent, role=role)


def said(id, score=None, grader="judge", **more):
    return Feedback(score, candidate=id, grader=grader, **more)


def trace_of(panel, *records):
    return Trace(Task("q"), tuple(panel), records)


def scored(*scores, panel=(JUDGE,)):
    """A draft and its refinements in a chain, each scored by the judge; None: not graded."""
    records = []
    for id, score in enumerate(scores):
        records.append(refined(id) if id else draft())
        records += [said(id, score)] if score is not None else []
    return trace_of(panel, *records)


def musts(*rows):
    """A draft and refinements with the scores of two musts and of the judge; a fraction of a must
    is how near it is.
    """
    records = []
    for id, (first, second, score) in enumerate(rows):
        records.append(refined(id) if id else draft())
        for name, value in (("must", first), ("form", second)):
            records.append(said(id, float(value == 1), name, nearness=float(value)))
        records.append(said(id, score))
    return trace_of((MUST, SECOND_MUST, JUDGE), *records)


def ranked(count, order, *, roles="refine"):
    """A draft and refinements of which a ranker says the order, best first."""
    records = [refined(id, role=roles) if id else draft() for id in range(count)]
    return trace_of((RANKER,), *records, Comparison(tuple(order), grader="ranker"))


def critiqued(*graded):
    """A draft and refinements; a critic said something of those that are true."""
    records = [refined(id) if id else draft() for id in range(len(graded))]
    return trace_of(
        (CRITIC,),
        *records,
        *(said(id, None, "critic", actions=("more",)) for id, each in enumerate(graded) if each),
    )


def copies(*scores):
    """Refinements that change nothing after a draft."""
    records = [draft(text="same"), said(0, scores[0])]
    for id, score in enumerate(scores[1:], 1):
        records += [refined(id, text="same"), *([said(id, score)] if score is not None else [])]
    return trace_of((JUDGE,), *records)


STALE = {  # the number of the latest refinements in a row that brought nothing, with a gain of 0.01
    "no refinement": (scored(0.5), 0),
    "nothing graded": (scored(None), 0),
    "one that gains": (scored(0.5, 0.6), 0),
    "one that gains as much as the least": (scored(0.5, 0.51), 1),
    "one that gains a little more": (scored(0.5, 0.5101), 0),
    "one that loses": (scored(0.5, 0.4), 1),
    "a gain, then none": (scored(0.5, 0.6, 0.6), 1),
    "a loss, then the gain of it": (scored(0.5, 0.4, 0.5), 2),
    "small gains do not add up to one of the best": (scored(0.5, 0.509, 0.518), 2),
    "but those over the best do": (scored(0.5, 0.509, 0.52), 0),
    "a refinement without a grade counts": (scored(0.5, 0.6, None), 1),
    "two of them": (scored(0.5, None, None), 2),
    "a first grade is progress": (scored(None, 0.4), 0),
    "copies are no progress": (copies(0.5, None, None), 2),
    "one more must": (musts((0, 0, 0.9), (1, 0, 0.1)), 0),
    "a must less": (musts((1, 0, 0.9), (0, 0, 0.9)), 1),
    "another must": (musts((1, 0, 0.9), (0, 1, 0.9)), 1),
    "nearer to a must": (musts((0, 0, 0.9), (0.1, 0, 0.1)), 0),
    "a little nearer, less than a gain": (musts((0, 0, 0.9), (0.004, 0, 0.1)), 0),
    "as near": (musts((0.1, 0, 0.1), (0.1, 0, 0.9)), 1),
    "less near": (musts((0.1, 0, 0.9), (0, 0, 0.9)), 1),
    "a score is no progress while a must is broken": (
        musts((0.5, 1, 0.1), (0.5, 1, 0.9), (0.5, 1, 1.0)),
        2,
    ),
    "all musts met, with a lower score": (musts((0, 1, 0.9), (1, 1, 0.1)), 0),
    "all musts met, then a score": (musts((1, 1, 0.5), (1, 1, 0.6)), 0),
    "all musts met, then none": (musts((1, 1, 0.5), (1, 1, 0.505), (0, 1, 1.0)), 2),
    "ranked, the draft is best": (ranked(4, (0, 1, 2, 3)), 3),
    "ranked, a refinement is best": (ranked(4, (1, 0, 2, 3)), 2),
    "ranked, the last is best": (ranked(4, (3, 1, 0, 2)), 0),
    "ranked, not all": (ranked(5, (2, 0)), 2),
    "ranked drafts are no refinements": (ranked(3, (0, 1, 2), roles="repair"), 0),
    "only ranked, and not yet": (trace_of((RANKER,), draft(), refined(1), refined(2)), 0),
    "critics: every critiqued text is progress": (critiqued(True, True, True), 0),
    "critics: one that none has seen is not": (critiqued(True, True, False), 1),
    "repairs are no refinements": (
        trace_of((JUDGE,), draft(), said(0, 0.5), refined(1, role="repair"), said(1, 0.4)),
        0,
    ),
    "a repair that gains resets": (
        trace_of(
            (JUDGE,),
            draft(),
            said(0, 0.5),
            refined(1),
            said(1, 0.4),
            refined(2, role="repair"),
            said(2, 0.8),
        ),
        0,
    ),
}


@each_row("name", STALE)
def test_patience_counts_refinements_without_progress(name):
    """It stops with exactly so many, and with no fewer; the note says how many there were."""
    trace, count = STALE[name]
    assert stopping.count_stale_refinements(trace, 0.01) == count
    assert patience(count + 1)(trace) is None
    if count:
        decision = patience(count)(trace)
        assert decision.reason is StopReason.PATIENCE
        assert decision.note.startswith(f"{count} refinement{'s' if count > 1 else ''} in a row")


def test_what_patience_says():
    """A broken must is a demand; else the gain is named."""
    assert (
        patience(1)(musts((0, 0, 0.9), (0, 0, 0.9))).note
        == "1 refinement in a row neither met one more demand nor came nearer to it"
    )
    assert (
        patience(2, 0.25)(scored(0.5, 0.7, 0.75)).note
        == "2 refinements in a row brought no gain over 0.25"
    )
    assert patience(2, 0.24)(scored(0.5, 0.7, 0.95)) is None


@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=8),
    st.sampled_from([0.0, 0.01, 0.05, 0.1, 0.5]),
)
def test_patience_is_the_distance_to_the_last_gain(scores, least):
    """With one judge: how many refinements came after the last that exceeded the best before it by
    more than the least gain.
    """
    best, count = scores[0], 0
    for score in scores[1:]:
        count = 0 if score > best + 20 * least + 1e-6 else count + 1
        best = max(best, score)
    assert (
        stopping.count_stale_refinements(scored(*(score / 20 for score in scores)), least) == count
    )


CALLING = Candidate(
    0, "", role="generate", tool_calls=(ToolCall("search"), ToolCall("sum"), ToolCall("search"))
)
RULES = {  # a rule, a trace, and the reason and the note of the decision; None: go on
    "target reached exactly": (
        target(0.8),
        scored(0.5, 0.8),
        (StopReason.TARGET, "the best scores 0.80, the target is 0.8"),
    ),
    "target reached but for rounding": (
        target(0.3),
        scored(0.1 + 0.2 - 1e-12),
        (StopReason.TARGET, "the best scores 0.30, the target is 0.3"),
    ),
    "target missed": (target(0.8), scored(0.7999), None),
    "target, nothing graded": (target(0.0), scored(None), None),
    "target 0": (
        target(0),
        scored(0.0),
        (StopReason.TARGET, "the best scores 0.00, the target is 0"),
    ),
    "target with a broken must": (target(0.5), musts((0, 1, 0.9)), None),
    "target with all musts": (
        target(0.5),
        musts((1, 1, 0.9)),
        (StopReason.TARGET, "the best scores 0.90, the target is 0.5"),
    ),
    "target of a ranking": (target(0.0), ranked(2, (0, 1)), None),
    "done": (
        done(),
        trace_of((JUDGE,), draft(), said(0, 0.2, done=True)),
        (StopReason.DONE, "the graders want no more changes"),
    ),
    "not done": (done(), trace_of((JUDGE,), draft(), said(0, 0.9, done=False)), None),
    "not said whether done": (done(), scored(0.9), None),
    "done, but one grader is not": (
        done(),
        trace_of(
            (JUDGE, CRITIC), draft(), said(0, 0.9, done=True), said(0, 0.9, "critic", done=False)
        ),
        None,
    ),
    "done with a broken must": (
        done(),
        trace_of((MUST, JUDGE), draft(), said(0, 0.0, "must"), said(0, 0.9, done=True)),
        None,
    ),
    "the other one is done": (
        done(),
        trace_of((JUDGE,), draft(), said(0, 0.2, done=True), refined(1), said(1, 0.9)),
        None,
    ),
    "no candidate is done": (done(), trace_of((JUDGE,)), None),
    "tools are called": (
        tool_calls(),
        trace_of((JUDGE,), CALLING),
        (StopReason.TOOL_CALLS, "the model calls search, sum"),
    ),
    "no tools are called": (tool_calls(), scored(0.5), None),
    "the most refinements": (
        max_iterations(2),
        scored(0.1, 0.2, 0.3),
        (StopReason.MAX_ITERATIONS, "2 refinements made"),
    ),
    "one refinement": (
        max_iterations(1),
        scored(0.1, 0.2),
        (StopReason.MAX_ITERATIONS, "1 refinement made"),
    ),
    "none": (
        max_iterations(0),
        scored(0.1),
        (StopReason.MAX_ITERATIONS, "no refinement by a model was asked for"),
    ),
    "one less than the most": (max_iterations(3), scored(0.1, 0.2, 0.3), None),
    "repairs are not counted": (
        max_iterations(1),
        trace_of((JUDGE,), draft(), refined(1, role="repair")),
        None,
    ),
    "repairs": (
        repairs_only(),
        trace_of((EDITED,), draft()),
        (StopReason.MAX_ITERATIONS, "all automatic repairs are done; the rest needs a model"),
    ),
    "no repairs": (
        repairs_only(),
        scored(0.5),
        (StopReason.MAX_ITERATIONS, "there are no automatic repairs; the rest needs a model"),
    ),
}


@each_row("name", RULES)
def test_what_a_rule_decides(name):
    """Each rule, at the boundary and beside it."""
    rule, trace, due = RULES[name]
    assert rule(trace) == (due and StopDecision(*due))


def test_the_first_of_several_rules_wins():
    """In the order in which they are written."""
    trace = trace_of((JUDGE,), draft(), said(0, 0.9, done=True), refined(1), said(1, 0.9))
    rules = {"target": target(0.5), "patience": patience(1), "max_iterations": max_iterations(1)}
    for first, one in rules.items():
        for second, other in rules.items():
            assert (one | other)(trace) == one(trace)
            assert (target(0.95) | other | one)(trace) == other(trace)
            assert ((one | other) == (other | one)) == (first == second)


@pytest.mark.parametrize(
    ("rule", "score"),
    [
        (max_iterations(3), None),
        (target(0.7), 0.7),
        (target(0.7) | target(0.4) | done(), 0.4),
        (patience(2) | target(0.9), 0.9),
    ],
)
def test_the_lowest_target_of_a_rule(rule, score):
    """None without one."""
    assert rule.target_score == score


def test_rules_are_equal_if_their_conditions_are():
    """With equal arguments, in equal order; then their hashes are equal, too."""
    for make in (
        lambda: target(0.5),
        lambda: patience(2),
        lambda: patience(2, 0.5),
        done,
        tool_calls,
        repairs_only,
        lambda: max_iterations(2),
    ):
        assert make() == make() and hash(make()) == hash(make())
        assert make() | done() == make() | done()
    rules = [
        target(0.5),
        target(0.6),
        patience(2),
        patience(3),
        patience(2, 0.5),
        done(),
        tool_calls(),
        repairs_only(),
        max_iterations(2),
    ]
    assert all(one != other for n, one in enumerate(rules) for other in rules[:n])
    assert target(0.5) != 0.5


@pytest.mark.parametrize(
    ("make", "good", "bad"),
    [
        (target, [0, 0.5, 1], [-0.001, 1.001, None, "x", True, float("nan")]),
        (patience, [1, 2], [0, -1, 1.5, None, True]),
        (lambda least: patience(1, least), [0, 0.5, 2], [-0.001, None, float("nan")]),
        (max_iterations, [0, 5], [-1, 0.5, None, True]),
    ],
)
def test_arguments_of_rules(make, good, bad):
    """The ends of their ranges are values."""
    for value in good:
        assert make(value)
    for value in bad:
        with pytest.raises(ConfigError):
            make(value)


def test_every_rule_is_in_the_table():
    """A new rule needs rows of its own."""
    own = {
        name
        for name, value in vars(stopping).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == stopping.__name__
    }
    tested = {"target", "done", "patience", "tool_calls", "repairs_only", "max_iterations"}
    assert own == {*tested, "StopDecision", "StopRule", "count_stale_refinements"}
    conditions = {
        getattr(each, "func", each).__name__
        for rule, *_ in RULES.values()
        for each in rule.conditions
    }
    assert {f"_{name}" for name in tested} == {*conditions, "_patience"}


def test_what_a_must_costs_is_not_the_score():
    """A trace that breaks a must is not ended by the score of a text that meets more of them."""
    trace = musts((0, 1, 0.9), (1, 1, 0.4))
    assert target(0.5)(trace) is None
    assert target(0.4)(trace).note == "the best scores 0.40, the target is 0.4"
