"""The measures of a grader, against small tables worked out by hand."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redraft import Task
from redraft.validation.cases import LabelledCase, Verdict
from redraft.validation.report import ReportConfig, verdict_ranks, preferred_response, build_report
from redraft.validation.report import CaseVerdicts

TASK = Task("q")
A, B, TIE = (0, 1), (1, 0), (0, 0)


def pair(id, places, group="", responses=("aa", "b"), ratings=()):
    return LabelledCase(id, "pair", TASK, responses, ranks=places, group=group, ratings=ratings)


def both_orders(id, first, second):
    """What was said with the first response shown first, and with the second shown first."""
    return [Verdict(id, ranks=first, presentation_order=(0, 1)), Verdict(id, ranks=second, presentation_order=(1, 0))]


def named(found):
    return {x.name: x for x in found.measures}


def test_a_pair_is_decided_over_both_orders_and_a_change_of_mind_is_a_tie():
    """Right 1, tie half, wrong and unreadable nothing; accuracy counts only what is exactly right."""
    cases = [pair("right", A), pair("wrong", A), pair("swayed", A), pair("unreadable", A), pair("people tie", TIE)]
    verdicts = [
        *both_orders("right", A, A),
        *both_orders("wrong", B, B),
        *both_orders("swayed", A, B),
        Verdict("unreadable", reason="no verdict in it"),
        Verdict("unreadable", reason="no verdict in it"),
        *both_orders("people tie", TIE, TIE),
    ]
    found = build_report(cases, verdicts)
    by = named(found)
    assert found.headline.value == pytest.approx(1.5 / 4)
    assert found.headline.n == 4
    assert not found.headline.beats_chance
    assert by["accuracy"].value == pytest.approx(2 / 5)
    assert by["unreadable"].value == pytest.approx(2 / 10)
    assert by["ties"].value == pytest.approx(2 / 5)
    assert by["order consistency"].value == pytest.approx(3 / 4)
    assert by["first place"].value == pytest.approx(4 / 6)
    assert found.parse_errors == {"no verdict in it": 2}
    assert found.confusion["first"] == {"first": 1, "second": 1, "tie": 1, "unreadable": 1}


def test_an_order_that_changes_the_verdict_makes_a_tie_as_in_the_loop():
    """First in one order and tie in the other is no preference; looks vote."""
    cases = [pair("x", A)]
    once = build_report(cases, both_orders("x", A, TIE))
    assert once.confusion["first"] == {"first": 0, "tie": 1}
    looks = [*both_orders("x", A, TIE), *(replace(v, repeat=1) for v in both_orders("x", A, A))]
    assert build_report(cases, looks).confusion["first"] == {"first": 1}


def test_a_few_lucky_rows_prove_nothing():
    """Four of four is what a coin gives once in sixteen."""
    cases = [pair(f"c{i}", A) for i in range(4)]
    found = build_report(cases, [v for c in cases for v in both_orders(c.id, A, A)])
    assert found.headline.low > 0.5
    assert not found.headline.beats_chance


def test_unreadable_is_never_right_not_even_where_people_tie():
    """A grader that says nothing is right about nothing."""
    found = build_report([pair("x", TIE)], [Verdict("x", reason="?")])
    assert named(found)["accuracy"].value == 0
    assert found.headline.value is None


def test_one_order_always_preferred_is_no_better_than_chance():
    """The judge that always takes what it sees first ties everywhere: preference 0.5, first place 1."""
    cases = [pair(f"c{i}", A if i % 2 else B) for i in range(60)]
    found = build_report(cases, [v for c in cases for v in both_orders(c.id, A, B)])
    assert found.headline.value == 0.5
    assert not found.headline.beats_chance
    assert named(found)["first place"].value == 1
    assert named(found)["order consistency"].value == 0


def test_scores_of_two_make_a_preference():
    """Higher is better; equal scores tie; a missing one says nothing."""
    assert verdict_ranks(Verdict("x", (0.2, 0.8))) == B
    assert verdict_ranks(Verdict("x", (0.5, 0.5))) == TIE
    assert verdict_ranks(Verdict("x", (0.5, None))) is None


def test_length_is_no_merit_and_its_share_is_shown():
    """A grader that always takes the longer response is seen to."""
    cases = [pair(f"c{i}", A if i % 2 else B, responses=("a" * (50 + i), "b" * 10)) for i in range(40)]
    by = named(build_report(cases, [v for c in cases for v in both_orders(c.id, A, A)]))
    assert by["longer preferred"].value == 1
    assert "people: 0.50" in by["longer preferred"].about


def test_groups_are_reported_apart():
    """Each with its own interval, in the order of their names; a single group is no group."""
    cases = [pair("a1", A, "a"), pair("a2", A, "a"), pair("b1", A, "b")]
    found = build_report(cases, [*both_orders("a1", A, A), *both_orders("a2", B, B), *both_orders("b1", A, A)])
    assert [(g.name, g.value, g.n) for g in found.groups] == [("a", 0.5, 2), ("b", 1.0, 1)]
    assert build_report(cases[:2], both_orders("a1", A, A)).groups == ()


def passing(id, label, group=""):
    return LabelledCase(id, "pass", TASK, ("text",), label=label, group=group)


def test_pass_and_fail():
    """Balanced accuracy is the mean over both classes; scores count as probabilities; what it lets pass is leniency."""
    labels = [1, 1, 1, 1, 0, 0]
    scores = [0.9, 0.8, 0.7, 0.2, 0.6, None]
    cases = [passing(f"c{i}", label) for i, label in enumerate(labels)]
    verdicts = [Verdict(f"c{i}", (s,), reason="" if s is not None else "?") for i, s in enumerate(scores)]
    by = named(found := build_report(cases, verdicts))
    assert found.headline.value == pytest.approx((3 / 4 + 0) / 2)
    assert by["accuracy"].value == pytest.approx(3 / 6)
    assert by["accuracy"].chance == pytest.approx(4 / 6)
    assert by["leniency"].value == pytest.approx(1 / 2)
    rates = {x.name: x for x in found.class_rates}
    assert rates["pass"].precision == pytest.approx(3 / 4)
    assert rates["fail"].recall == 0
    assert by["Brier"].value == pytest.approx((0.01 + 0.04 + 0.09 + 0.64 + 0.36) / 5)
    assert by["unreadable"].value == pytest.approx(1 / 6)


def test_always_passing_is_chance_however_rare_a_fail():
    """97 % accuracy on 97 % passes proves nothing."""
    cases = [passing(f"c{i}", int(i % 33 > 0)) for i in range(330)]
    found = build_report(cases, [Verdict(c.id, (1.0,)) for c in cases])
    assert named(found)["accuracy"].value > 0.96
    assert found.headline.value == 0.5
    assert not found.headline.beats_chance


def test_a_class_nobody_showed_is_unknown():
    """With passes alone it cannot be told whether fails are recognised."""
    cases = [passing(f"c{i}", 1) for i in range(30)]
    assert build_report(cases, [Verdict(c.id, (1.0,)) for c in cases]).headline.value is None


def scored(id, label, text="t", ratings=()):
    return LabelledCase(id, "score", TASK, (text,), label=label, ratings=ratings)


def test_scores_correlate_with_people():
    """A monotone grader has rank correlation 1, a constant one an unknown one; looks are averaged and their noise is measured."""
    cases = [scored(f"c{i}", i % 10, "x" * (i * 7 % 13 + 1)) for i in range(40)]
    verdicts = [Verdict(c.id, (c.label / 10 + d,), repeat=n) for c in cases for n, d in enumerate((0.0, 0.1))]
    found = build_report(cases, verdicts)
    assert found.headline.value == pytest.approx(1)
    assert found.headline.beats_chance
    assert named(found)["noise sigma"].value == pytest.approx(0.1 / 2**0.5)
    constant = build_report(cases, [Verdict(c.id, (0.5,)) for c in cases])
    assert constant.headline.value is None
    assert not constant.headline.beats_chance


def test_most_rows_unreadable_proves_nothing():
    """A grader that speaks only when it is sure is not trusted for the rest."""
    cases = [scored(f"c{i}", i % 10) for i in range(60)]
    verdicts = [Verdict(c.id, (c.label / 10,)) if i < 20 else Verdict(c.id, reason="?") for i, c in enumerate(cases)]
    found = build_report(cases, verdicts)
    assert found.headline.value == pytest.approx(1)
    assert not found.headline.beats_chance


def test_leniency_needs_the_scale():
    """People who gave only 4 and 5 of 5 were lenient themselves; without a scale it is unknown."""
    cases = [scored(f"c{i}", 4 + i % 2) for i in range(40)]
    verdicts = [Verdict(c.id, ((c.label - 1) / 4,)) for c in cases]
    assert named(build_report(cases, verdicts))["leniency"].value is None
    assert named(build_report(cases, verdicts, ReportConfig(scale=(1, 5))))["leniency"].value == pytest.approx(0)


def test_few_rows_prove_nothing():
    """Below ten rows a correlation has no interval, so no grader is trusted by it."""
    cases = [scored(f"c{i}", i) for i in range(6)]
    found = build_report(cases, [Verdict(c.id, (c.label / 10,)) for c in cases])
    assert found.headline.value == pytest.approx(1)
    assert found.headline.low is None
    assert not found.headline.beats_chance


def test_people_among_themselves():
    """Krippendorff's alpha of the raters stands beside what the grader reached."""
    cases = [scored(f"c{i}", i % 5, ratings=(i % 5, i % 5)) for i in range(20)]
    by = named(build_report(cases, [Verdict(c.id, (0.1,)) for c in cases]))
    assert by["raters' alpha (ordinal)"].value == pytest.approx(1)


def test_rankings():
    """Kendall's tau-b within each row; a shared first place counts in part; reversed is -1."""
    cases = [LabelledCase(f"c{i}", "ranking", TASK, ("a", "b", "c"), ranks=(0, 1, 2)) for i in range(12)]
    exact = build_report(cases, [Verdict(c.id, ranks=(0, 1, 2)) for c in cases])
    assert exact.headline.value == pytest.approx(1)
    assert named(exact)["best first"].value == 1
    assert build_report(cases, [Verdict(c.id, ranks=(2, 1, 0)) for c in cases]).headline.value == pytest.approx(-1)
    lazy = build_report(cases, [Verdict(c.id, ranks=(0, 1, 2) if i < 3 else (0, 0, 0)) for i, c in enumerate(cases)])
    assert lazy.headline.value == pytest.approx(3 / 12)
    tied = build_report(cases, [Verdict(c.id, ranks=(0, 0, 2)) for c in cases])
    assert named(tied)["best first"].value == 0.5


@given(st.lists(st.sampled_from([A, B, TIE, None]), max_size=6))
def test_swapping_the_responses_swaps_the_preference(told):
    """No verdict depends on which response stands first in the file."""
    verdicts = [Verdict("x", ranks=places, reason="" if places else "?") for places in told]
    swapped = [Verdict("x", ranks=places and places[::-1], reason=v.reason) for places, v in zip(told, verdicts)]
    flipped = {"first": "second", "second": "first"}
    said = preferred_response(CaseVerdicts(pair("x", A), tuple(verdicts)))
    assert preferred_response(CaseVerdicts(pair("x", B), tuple(swapped))) == flipped.get(said, said)
