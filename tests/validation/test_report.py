"""The measures of a grader against small tables computed by hand."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redraft import Task
from redraft.validation.cases import (
    CaseVerdicts,
    LabelledCase,
    Verdict,
    preferred_response,
    verdict_ranks,
)
from redraft.validation.report import ReportConfig, build_report

TASK = Task("q")
A, B, TIE = (0, 1), (1, 0), (0, 0)


def pair(id, places, group="", responses=("aa", "b"), ratings=()):
    return LabelledCase(id, "pair", TASK, responses, ranks=places, group=group, ratings=ratings)


def both_orders(id, first, second):
    """Verdicts with the first response shown first, and with the second shown first."""
    return [
        Verdict(id, ranks=first, presentation_order=(0, 1)),
        Verdict(id, ranks=second, presentation_order=(1, 0)),
    ]


def measures_by_name(grader_report):
    return {x.name: x for x in grader_report.measures}


def test_pair_needs_both_orders():
    """Right counts 1, a tie one half, wrong and unreadable 0; a verdict that changes with the order
    is a tie.
    """
    cases = [
        pair("right", A),
        pair("wrong", A),
        pair("swayed", A),
        pair("unreadable", A),
        pair("people tie", TIE),
    ]
    verdicts = [
        *both_orders("right", A, A),
        *both_orders("wrong", B, B),
        *both_orders("swayed", A, B),
        Verdict("unreadable", reason="no verdict in it"),
        Verdict("unreadable", reason="no verdict in it"),
        *both_orders("people tie", TIE, TIE),
    ]
    grader_report = build_report(cases, verdicts)
    by = measures_by_name(grader_report)
    assert grader_report.headline.value == pytest.approx(1.5 / 4)
    assert grader_report.headline.n == 4
    assert not grader_report.headline.beats_chance
    assert by["accuracy"].value == pytest.approx(2 / 5)
    assert by["unreadable"].value == pytest.approx(2 / 10)
    assert by["ties"].value == pytest.approx(2 / 5)
    assert by["order consistency"].value == pytest.approx(3 / 4)
    assert by["first place"].value == pytest.approx(4 / 6)
    assert grader_report.parse_errors == {"no verdict in it": 2}
    assert grader_report.confusion["first"] == {"first": 1, "second": 1, "tie": 1, "unreadable": 1}


def test_order_dependence_is_a_tie():
    """First in one order and tie in the other is no preference; repeats vote."""
    cases = [pair("x", A)]
    once = build_report(cases, both_orders("x", A, TIE))
    assert once.confusion["first"] == {"first": 0, "tie": 1}
    repeats = [*both_orders("x", A, TIE), *(replace(v, repeat=1) for v in both_orders("x", A, A))]
    assert build_report(cases, repeats).confusion["first"] == {"first": 1}


def test_few_lucky_rows_prove_nothing():
    """A coin gets four of four once in sixteen."""
    cases = [pair(f"c{i}", A) for i in range(4)]
    grader_report = build_report(cases, [v for c in cases for v in both_orders(c.id, A, A)])
    assert grader_report.headline.low > 0.5
    assert not grader_report.headline.beats_chance


def test_unreadable_verdict_is_never_right():
    """It is wrong even where people tie."""
    grader_report = build_report([pair("x", TIE)], [Verdict("x", reason="?")])
    assert measures_by_name(grader_report)["accuracy"].value == 0
    assert grader_report.headline.value is None


def test_fixed_position_is_no_better_than_chance():
    """A judge that always takes the first response ties everywhere: preference 0.5, position bias
    1.
    """
    cases = [pair(f"c{i}", A if i % 2 else B) for i in range(60)]
    grader_report = build_report(cases, [v for c in cases for v in both_orders(c.id, A, B)])
    assert grader_report.headline.value == 0.5
    assert not grader_report.headline.beats_chance
    assert measures_by_name(grader_report)["first place"].value == 1
    assert measures_by_name(grader_report)["order consistency"].value == 0


def test_two_scores_make_a_preference():
    """Higher is better, equal scores tie, and a missing score is unreadable."""
    assert verdict_ranks(Verdict("x", (0.2, 0.8))) == B
    assert verdict_ranks(Verdict("x", (0.5, 0.5))) == TIE
    assert verdict_ranks(Verdict("x", (0.5, None))) is None


def test_length_bias_is_measured():
    """The report shows that a grader always takes the longer response."""
    cases = [
        pair(f"c{i}", A if i % 2 else B, responses=("a" * (50 + i), "b" * 10)) for i in range(40)
    ]
    by = measures_by_name(build_report(cases, [v for c in cases for v in both_orders(c.id, A, A)]))
    assert by["longer preferred"].value == 1
    assert "people: 0.50" in by["longer preferred"].about


def test_groups_are_reported_separately():
    """Each has its own interval, in order of name; a single group is not listed."""
    cases = [pair("a1", A, "a"), pair("a2", A, "a"), pair("b1", A, "b")]
    grader_report = build_report(
        cases, [*both_orders("a1", A, A), *both_orders("a2", B, B), *both_orders("b1", A, A)]
    )
    assert [(g.name, g.value, g.n) for g in grader_report.groups] == [("a", 0.5, 2), ("b", 1.0, 1)]
    assert build_report(cases[:2], both_orders("a1", A, A)).groups == ()


def passing(id, label, group=""):
    return LabelledCase(id, "pass", TASK, ("text",), label=label, group=group)


def test_pass_and_fail():
    """Balanced accuracy averages both classes, scores count as probabilities, and leniency is the
    share that passes wrongly.
    """
    labels = [1, 1, 1, 1, 0, 0]
    scores = [0.9, 0.8, 0.7, 0.2, 0.6, None]
    cases = [passing(f"c{i}", label) for i, label in enumerate(labels)]
    verdicts = [
        Verdict(f"c{i}", (s,), reason="" if s is not None else "?") for i, s in enumerate(scores)
    ]
    by = measures_by_name(grader_report := build_report(cases, verdicts))
    assert grader_report.headline.value == pytest.approx((3 / 4 + 0) / 2)
    assert by["accuracy"].value == pytest.approx(3 / 6)
    assert by["accuracy"].chance == pytest.approx(4 / 6)
    assert by["leniency"].value == pytest.approx(1 / 2)
    rates = {x.name: x for x in grader_report.class_rates}
    assert rates["pass"].precision == pytest.approx(3 / 4)
    assert rates["fail"].recall == 0
    assert by["Brier"].value == pytest.approx((0.01 + 0.04 + 0.09 + 0.64 + 0.36) / 5)
    assert by["unreadable"].value == pytest.approx(1 / 6)


def test_always_passing_is_chance():
    """97 % accuracy on 97 % passes proves nothing."""
    cases = [passing(f"c{i}", int(i % 33 > 0)) for i in range(330)]
    grader_report = build_report(cases, [Verdict(c.id, (1.0,)) for c in cases])
    assert measures_by_name(grader_report)["accuracy"].value > 0.96
    assert grader_report.headline.value == 0.5
    assert not grader_report.headline.beats_chance


def test_missing_class_is_unknown():
    """From passes alone the recognition of fails is unknown."""
    cases = [passing(f"c{i}", 1) for i in range(30)]
    assert build_report(cases, [Verdict(c.id, (1.0,)) for c in cases]).headline.value is None


def scored_case(id, label, text="t", ratings=()):
    return LabelledCase(id, "score", TASK, (text,), label=label, ratings=ratings)


def test_scores_correlate_with_human_scores():
    """A monotone grader has rank correlation 1 and a constant one None; repeats are averaged and
    give the noise.
    """
    cases = [scored_case(f"c{i}", i % 10, "x" * (i * 7 % 13 + 1)) for i in range(40)]
    verdicts = [
        Verdict(c.id, (c.label / 10 + d,), repeat=n)
        for c in cases
        for n, d in enumerate((0.0, 0.1))
    ]
    grader_report = build_report(cases, verdicts)
    assert grader_report.headline.value == pytest.approx(1)
    assert grader_report.headline.beats_chance
    assert measures_by_name(grader_report)["noise sigma"].value == pytest.approx(0.1 / 2**0.5)
    constant = build_report(cases, [Verdict(c.id, (0.5,)) for c in cases])
    assert constant.headline.value is None
    assert not constant.headline.beats_chance


def test_mostly_unreadable_grader_is_not_trusted():
    """A grader that answers only the easy rows is not trusted on the rest."""
    cases = [scored_case(f"c{i}", i % 10) for i in range(60)]
    verdicts = [
        Verdict(c.id, (c.label / 10,)) if i < 20 else Verdict(c.id, reason="?")
        for i, c in enumerate(cases)
    ]
    grader_report = build_report(cases, verdicts)
    assert grader_report.headline.value == pytest.approx(1)
    assert not grader_report.headline.beats_chance


@pytest.mark.slow
def test_leniency_needs_the_scale():
    """Human scores of 4 and 5 may be lenient themselves, so leniency is unknown without the
    scale.
    """
    cases = [scored_case(f"c{i}", 4 + i % 2) for i in range(40)]
    verdicts = [Verdict(c.id, ((c.label - 1) / 4,)) for c in cases]
    assert measures_by_name(build_report(cases, verdicts))["leniency"].value is None
    assert measures_by_name(build_report(cases, verdicts, ReportConfig(scale=(1, 5))))[
        "leniency"
    ].value == pytest.approx(0)


def test_few_rows_prove_nothing():
    """Below ten rows a correlation has no interval, so it makes no grader trusted."""
    cases = [scored_case(f"c{i}", i) for i in range(6)]
    grader_report = build_report(cases, [Verdict(c.id, (c.label / 10,)) for c in cases])
    assert grader_report.headline.value == pytest.approx(1)
    assert grader_report.headline.low is None
    assert not grader_report.headline.beats_chance


def test_human_agreement():
    """Krippendorff's alpha of the raters is reported beside the grader's agreement."""
    cases = [scored_case(f"c{i}", i % 5, ratings=(i % 5, i % 5)) for i in range(20)]
    by = measures_by_name(build_report(cases, [Verdict(c.id, (0.1,)) for c in cases]))
    assert by["raters' alpha (ordinal)"].value == pytest.approx(1)


def test_rankings():
    """Kendall's tau-b applies within each row; a shared first rank counts in part, and a reversed
    order is -1.
    """
    cases = [
        LabelledCase(f"c{i}", "ranking", TASK, ("a", "b", "c"), ranks=(0, 1, 2)) for i in range(12)
    ]
    exact = build_report(cases, [Verdict(c.id, ranks=(0, 1, 2)) for c in cases])
    assert exact.headline.value == pytest.approx(1)
    assert measures_by_name(exact)["best first"].value == 1
    assert build_report(
        cases, [Verdict(c.id, ranks=(2, 1, 0)) for c in cases]
    ).headline.value == pytest.approx(-1)
    lazy = build_report(
        cases, [Verdict(c.id, ranks=(0, 1, 2) if i < 3 else (0, 0, 0)) for i, c in enumerate(cases)]
    )
    assert lazy.headline.value == pytest.approx(3 / 12)
    tied = build_report(cases, [Verdict(c.id, ranks=(0, 0, 2)) for c in cases])
    assert measures_by_name(tied)["best first"].value == 0.5


@given(st.lists(st.sampled_from([A, B, TIE, None]), max_size=6))
def test_swapping_the_responses_swaps_the_preference(rankings):
    """No verdict depends on which response comes first in the file."""
    verdicts = [Verdict("x", ranks=places, reason="" if places else "?") for places in rankings]
    swapped = [
        Verdict("x", ranks=places and places[::-1], reason=v.reason)
        for places, v in zip(rankings, verdicts)
    ]
    flipped = {"first": "second", "second": "first"}
    preference = preferred_response(CaseVerdicts(pair("x", A), tuple(verdicts)))
    assert preferred_response(CaseVerdicts(pair("x", B), tuple(swapped))) == flipped.get(
        preference, preference
    )


def test_repeats_of_a_pair_in_one_order_are_compared():
    """Of three verdicts in the first order and two in the second only the second agree; a single
    verdict has no repeat.
    """
    shown = [((0, 1), A), ((0, 1), A), ((0, 1), B), ((1, 0), A), ((1, 0), A)]
    verdicts = [
        Verdict("x", ranks=places, presentation_order=order, repeat=n)
        for n, (order, places) in enumerate(shown)
    ]
    found = measures_by_name(
        build_report([pair("x", A), pair("y", A)], [*verdicts, *both_orders("y", A, A)])
    )
    assert (found["self-consistency"].value, found["self-consistency"].n) == (0.5, 2)
    assert "self-consistency" not in measures_by_name(
        build_report([pair("y", A)], both_orders("y", A, A))
    )


def test_measures_name_what_chance_gives():
    """0 for correlations, kappa and alpha, the larger class for accuracy, and the share of places
    for the rest.
    """
    cases = [passing(f"c{i}", int(i < 3)) for i in range(4)]
    found = build_report(cases, [Verdict(c.id, (0.6,)) for c in cases]).measures
    assert {x.name: x.chance for x in found if x.chance is not None} == {
        "accuracy": 0.75,
        "balanced accuracy": 0.5,
        "Cohen's kappa": 0.0,
    }
    found = build_report([pair("x", A)], both_orders("x", A, A)).measures
    assert {x.name: x.chance for x in found if x.chance is not None} == {
        "preference": 0.5,
        "Cohen's kappa": 0.0,
        "first place": 0.5,
    }
    cases = [scored_case(f"c{i}", i / 4) for i in range(4)]
    found = build_report(cases, [Verdict(c.id, (c.label,)) for c in cases]).measures
    names = ("Pearson", "Spearman", "Kendall tau-b", "alpha (ordinal)", "alpha (interval)")
    assert {x.name: x.chance for x in found if x.chance is not None} == dict.fromkeys(names, 0.0)
    places = LabelledCase("c", "ranking", TASK, ("a", "b", "c", "d"), ranks=(0, 1, 2, 3))
    found = build_report([places], [Verdict("c", ranks=(0, 1, 2, 3))]).measures
    assert {x.name: x.chance for x in found if x.chance is not None} == {
        "Kendall tau-b": 0.0,
        "best first": 0.25,
    }
