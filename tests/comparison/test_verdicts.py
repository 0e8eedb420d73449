"""The verdict and the gate follow from an interval: a table at each boundary, and what a report
says it needs.
"""

import json
from dataclasses import replace

import pytest

from each_row import each_row
from redraft.comparison.ci_reports import gate_passes
from redraft.comparison.report import (
    ComparisonReport,
    PeopleEstimate,
    format_interval,
    format_signed,
)
from redraft.errors import ConfigError
from redraft.validation.statistics import LabelEstimate, PairedDifference, WinRate


def difference(low, high, *, rows=100, value=None, ties=10, error=0.05):
    value = (low + high) / 2 if value is None else value
    interval = None if low is None else (low, high)
    return PairedDifference(
        value, interval, error, rows, rows, 0.5, 0.5 + value, 60, ties, rows - 60 - ties
    )


UNKNOWN = PairedDifference(0.1, None, None, 1, 1, 0.5, 0.6, 1, 0, 0)


def report(low=-0.5, high=0.5, **more):
    scores = UNKNOWN if low is None else difference(low, high)
    return ComparisonReport("A", "B", **{"difference": scores, **more})


def estimate(low, high, *, labels=20):
    return LabelEstimate((low + high) / 2, (low, high), 0.1, labels, 80, labels, 0.5)


def people(low, high, unit="score", **more):
    return PeopleEstimate(estimate(low, high), unit, estimate(low - 0.1, high + 0.1), **more)


def wins(low, high):
    return WinRate((low + high) / 2, (low, high), 40, 40, 0.0, 1.0)


VERDICTS = {  # the verdict and the gate; the margin is 0.02
    "above 0": (report(0.001, 0.2), "better", "not worse"),
    "from 0": (report(0.0, 0.2), "undecided", "not worse"),
    "around 0, within the margin": (report(-0.02, 0.2), "undecided", "not worse"),
    "around 0, beyond the margin": (report(-0.0201, 0.2), "undecided", "undecided"),
    "up to 0": (report(-0.2, 0.0), "undecided", "undecided"),
    "below 0": (report(-0.2, -0.001), "worse", "worse"),
    "below 0, within the margin": (report(-0.015, -0.001), "worse", "not worse"),
    "another margin": (report(-0.15, -0.001, margin=0.15), "worse", "not worse"),
    "no margin": (report(-0.001, 0.2, margin=0.0), "undecided", "undecided"),
    "no interval": (report(None), "undecided", "undecided"),
    "labels overrule scores": (report(0.1, 0.2, people=people(-0.3, -0.1)), "worse", "worse"),
    "labels overrule a win rate": (
        report(0.1, 0.2, people=people(-0.3, -0.1), wins=wins(0.6, 0.8)),
        "worse",
        "worse",
    ),
    "labels without an interval": (
        report(
            0.1,
            0.2,
            people=replace(people(0.1, 0.3), estimate=replace(estimate(0.1, 0.3), interval=None)),
        ),
        "undecided",
        "undecided",
    ),
    "errors overrule scores": (
        report(-0.2, -0.1, errors=difference(0.01, 0.1), same_answers=True),
        "better",
        "not worse",
    ),
    "a win rate overrules scores": (
        report(-0.2, -0.1, wins=wins(0.51, 0.8)),
        "better",
        "not worse",
    ),
    "a win rate from one half": (report(0.1, 0.2, wins=wins(0.5, 0.8)), "undecided", "not worse"),
    "a win rate below one half": (report(0.1, 0.2, wins=wins(0.2, 0.49)), "worse", "worse"),
    "a win rate within the margin": (
        report(0.1, 0.2, wins=wins(0.4801, 0.6)),
        "undecided",
        "not worse",
    ),
    "at any time": (report(0.1, 0.2, anytime=(-0.05, 0.3)), "undecided", "undecided"),
    "at any time, above 0": (report(-0.1, 0.2, anytime=(0.01, 0.3)), "better", "not worse"),
    "more blank answers": (report(0.1, 0.2, blank_b=1), "undecided", "worse"),
    "as many blank answers": (report(0.1, 0.2, blank_a=1, blank_b=1), "better", "not worse"),
    "fewer blank answers": (report(0.1, 0.2, blank_a=2, blank_b=1), "better", "not worse"),
    "worse with more blank answers": (report(-0.2, -0.1, blank_b=1), "worse", "worse"),
    "only graders differ": (report(0.1, 0.2, same_answers=True), "undecided", "undecided"),
    "only graders differ, at any time": (
        report(0.1, 0.2, same_answers=True, anytime=(0.1, 0.2)),
        "undecided",
        "undecided",
    ),
    "nothing differs": (
        report(same_answers=True, difference=difference(-0.5, 0.5, ties=100)),
        "undecided",
        "not worse",
    ),
    "nothing differs, but B lacks rows": (
        report(same_answers=True, difference=difference(-0.5, 0.5, ties=100), only_a=1),
        "undecided",
        "undecided",
    ),
    "nothing differs, but B has no score": (
        report(same_answers=True, difference=difference(-0.5, 0.5, ties=100), unscored_b=1),
        "undecided",
        "undecided",
    ),
    "nothing differs, but A has no score": (
        report(same_answers=True, difference=difference(-0.5, 0.5, ties=100), unscored_a=1),
        "undecided",
        "undecided",
    ),
    "the worst case is within the margin": (
        report(0.1, 0.2, unscored_b=1, worst_case=difference(-0.02, 0.2, rows=101)),
        "better",
        "not worse",
    ),
    "the worst case is not": (
        report(0.1, 0.2, unscored_b=1, worst_case=difference(-0.021, 0.2, rows=101)),
        "better",
        "undecided",
    ),
    "the worst case has no interval": (
        report(0.1, 0.2, unscored_b=1, worst_case=UNKNOWN),
        "better",
        "undecided",
    ),
    "the worst case is no reason where the scores are undecided": (
        report(-0.05, 0.2, unscored_b=1, worst_case=difference(-0.3, 0.1, rows=101)),
        "undecided",
        "undecided",
    ),
    "the worst case does not make worse": (
        report(-0.01, 0.2, unscored_b=1, worst_case=difference(-0.3, -0.1, rows=101)),
        "undecided",
        "undecided",
    ),
    # of 100 rows 10 were lost: each counts as a loss of 1 point of labels, or of one half of a
    # preference
    "lost rows and labels": (
        report(
            people=people(0.2, 0.3),
            difference=difference(0.1, 0.2, rows=90),
            worst_case=difference(0.1, 0.2),
        ),
        "better",
        "not worse",  # 0.9 * 0.2 - 0.1 = 0.08
    ),
    "lost rows and labels that say little": (
        report(
            people=people(0.08, 0.3),
            difference=difference(0.1, 0.2, rows=90),
            worst_case=difference(0.1, 0.2),
        ),
        "better",
        "undecided",  # 0.9 * 0.08 - 0.1 = -0.028
    ),
    "lost rows and labels at the margin": (
        report(
            people=people(0.09, 0.3),
            difference=difference(0.1, 0.2, rows=90),
            worst_case=difference(0.1, 0.2),
        ),
        "better",
        "not worse",  # 0.9 * 0.09 - 0.1 = -0.019
    ),
    "lost rows and preferences": (
        report(
            people=people(0.04, 0.3, "preference"),
            difference=difference(0.1, 0.2, rows=90),
            worst_case=difference(0.1, 0.2),
        ),
        "better",
        "not worse",  # 0.9 * 0.04 - 0.05 = -0.014
    ),
    "lost rows and preferences that say little": (
        report(
            people=people(0.03, 0.3, "preference"),
            difference=difference(0.1, 0.2, rows=90),
            worst_case=difference(0.1, 0.2),
        ),
        "better",
        "undecided",  # 0.9 * 0.03 - 0.05 = -0.023
    ),
    "lost rows and a win rate": (
        report(
            wins=wins(0.54, 0.8),
            difference=difference(0.1, 0.2, rows=90),
            worst_case=difference(0.1, 0.2),
        ),
        "better",
        "not worse",
    ),
    "lost rows and a win rate that says little": (
        report(
            wins=wins(0.53, 0.8),
            difference=difference(0.1, 0.2, rows=90),
            worst_case=difference(0.1, 0.2),
        ),
        "better",
        "undecided",
    ),
    "lost rows and scores at any time": (
        report(
            anytime=(0.08, 0.3),
            difference=difference(0.1, 0.2, rows=90),
            worst_case=difference(0.1, 0.2),
        ),
        "better",
        "undecided",
    ),
}


@each_row("name", VERDICTS)
def test_verdict_and_gate(name):
    """At each boundary and beside it; sentences, data and the exit of a gate say the same."""
    found, verdict, gate = VERDICTS[name]
    assert (found.verdict, found.gate) == (verdict, gate)
    assert gate_passes(found) == (gate == "not worse")
    assert gate_passes(found, "pass") == (gate != "worse")
    data = json.loads(json.dumps(found.as_data()))
    assert (data["verdict"], data["gate"]) == (verdict, gate)
    assert data["interval"] == (found.interval and list(found.interval))
    assert ("undecided" in found.headline()) == (verdict == "undecided")
    words = {"not worse": "passed: ", "worse": "failed: ", "undecided": "undecided"}
    assert found.gate_line().startswith(words[gate])
    hides = gate == "undecided" and found.worst_case is not None and found.interval[0] >= -0.02
    assert ("may hide a loss" in found.gate_line()) == hides
    if verdict != "undecided":
        assert found.rows_needed is None
    if gate != "undecided":
        assert found.gate_rows_needed is None


@pytest.mark.parametrize(
    ("found", "evidence", "value", "interval"),
    [
        (report(0.1, 0.3), "scores", 0.2, (0.1, 0.3)),
        (report(0.1, 0.3, anytime=(0.0, 0.4)), "scores at any time", 0.2, (0.0, 0.4)),
        (report(0.1, 0.3, anytime=(0.0, 0.4), wins=wins(0.4, 0.8)), "win rate", 0.1, (-0.1, 0.3)),
        (report(0.1, 0.3, wins=replace(wins(0.4, 0.8), interval=None)), "win rate", 0.1, None),
        (
            report(0.1, 0.3, errors=difference(0.2, 0.4), wins=wins(0.4, 0.8)),
            "errors",
            0.3,
            (0.2, 0.4),
        ),
        (
            report(0.1, 0.3, people=people(0.0, 0.1), errors=difference(0.2, 0.4)),
            "labels",
            0.05,
            (0.0, 0.1),
        ),
    ],
)
def test_what_a_verdict_follows_from(found, evidence, value, interval):
    """Labels of people first, then errors against them, then a win rate, then scores."""
    assert (found.evidence, found.value) == (evidence, pytest.approx(value))
    assert found.interval == (interval and pytest.approx(interval))


@pytest.mark.parametrize(
    ("found", "rows", "gate_rows"),
    [
        # half-width 0.5, value 0.125, 100 rows: (0.5 / 0.125)^2 of them; the margin of 1/8 makes
        # the target 0.25
        (report(-0.375, 0.625, margin=0.125), 1600, 400),
        # a loss is decided at 0, and the margin does not help
        (report(-0.625, 0.375, margin=0.125), 1600, 1600),
        (report(-0.5625, 0.4375, margin=0.25), 6400, 712),  # 3/16 from the margin
        (report(-0.5625, 0.4375, margin=0.0625), 6400, 6400),
        (report(-0.5, 0.5, margin=0.25), None, 400),
        (report(-0.375, 0.625, margin=0.0), 1600, 1600),
        # nothing varies
        (report(margin=0.125, difference=difference(-0.375, 0.625, error=0.0)), 400, 200),
        (report(0.01, 0.6), None, None),
        (report(None), None, None),
        (report(-0.375, 0.625, blank_b=1), None, None),
        (report(-0.375, 0.625, same_answers=True), None, None),
        (report(-0.375, 0.625, people=people(-0.375, 0.625)), None, None),  # labels would decide it
        (report(0.1, 0.3, wins=wins(0.25, 0.875), margin=0.125), 1000, 112),
        (report(errors=difference(-0.375, 0.625, rows=90), margin=0.125), 1440, 360),
        (
            report(anytime=(-0.125, 0.625), difference=difference(0.125, 0.375), margin=0.0625),
            225,
            144,
        ),
    ],
)
def test_how_many_rows_would_decide(found, rows, gate_rows):
    """As many as make the half-width the distance to the boundary; the sentence says how many
    more.
    """
    assert (found.rows_needed, found.gate_rows_needed) == (rows, gate_rows)
    base = found.errors.rows if found.errors else found.wins.pairs if found.wins else 100
    if rows:
        assert found.headline().endswith(
            f"; about {rows - base:,} more {'label' if found.errors else 'row'}"
            f"{'s' * (rows - base > 1)} would decide"
        )
    if gate_rows and gate_rows > base:
        assert found.gate_line().endswith(
            f"; about {gate_rows - base:,} more {'label' if found.errors else 'row'}"
            f"{'s' * (gate_rows - base > 1)} would decide"
        )


@pytest.mark.parametrize(
    ("needed", "same", "words"),
    [
        (None, 0, ""),
        (20, 0, ""),
        (21, 0, "; about 1 more label would decide"),
        (90, 10, "; about 70 more labels would decide"),
        (91, 10, "; about 71 more labels would decide, and there are too few rows for them"),
    ],
)
def test_how_many_labels_would_decide(needed, same, words):
    """Those that are there are subtracted, and rows with equal answers are of no use."""
    found = report(people=people(-0.5, 0.5, needed=needed, gate_needed=needed, same_answers=same))
    assert found.headline() == f"undecided whether B is better than A{words}"
    assert found.gate_line() == f"undecided whether B is worse than A by more than 0.02{words}"


def test_a_gate_needs_a_margin():
    """Without one there is a verdict, and no gate."""
    found = report(0.1, 0.2, margin=None)
    assert found.verdict == "better" and "gate" not in found.as_data()
    for ask in (lambda: found.gate, found.gate_line, lambda: found.gate_rows_needed):
        with pytest.raises(ConfigError, match="margin: the scores are not from 0 to 1"):
            ask()


def test_the_lines_of_a_report():
    """Every figure and everything that is left out, in words."""
    found = report(
        0.1,
        0.3,
        people=people(-0.1, 0.3, same_answers=1),
        wins=replace(wins(0.4, 0.8), consistency=0.75, position_bias=-0.125),
        errors=replace(difference(-0.1, 0.2), mean_a=-0.25, mean_b=-0.2),
        anytime=(0.05, 0.4),
        only_a=1,
        only_b=2,
        unscored_a=3,
        unscored_b=4,
        blank_a=2,
        blank_b=1,
        repeats=1234,
        equal_tasks=5,
        worst_case=difference(-0.3, 0.1),
        unused_labels={"of other answers": 6},
        skipped=("x", "y"),
    )
    assert found.summary() == [
        "undecided whether B is better than A",
        "score: 0.500 to 0.700, +0.200 (+0.100 to +0.300) over 100 rows; 60 higher, 10 equal, 30 lower",
        "valid at any look: (+0.050 to +0.400)",
        (
            "people: +0.100 (-0.100 to +0.300) from 20 labels and 80 scores, and 0 for 1 row with equal answers; "
            "labels alone (-0.200 to +0.400)"
        ),
        "error against people: 0.250 to 0.200, smaller by +0.050 (-0.100 to +0.200) over 100 labels",
        "win rate of B: 0.600 (+0.400 to +0.800) over 40 pairs in both orders; the same verdict in both 75%, bias to the first -0.125",
        "left out: 1 only in A, 2 only in B, 3 without a score in A, 4 without a score in B, 2 unreadable, 6 labels of other answers",
        "B has 1 blank answer, A has 2; a blank answer has no score",
        "if B loses those without a score, and those that it lacks: -0.100 (-0.300 to +0.100)",
        "1,234 repeats were averaged with their rows",
        "5 rows with the task of an earlier row: equal tasks are one cluster, unless another column of clusters is named",
    ]
    assert (
        "score (lower is better): 0.500 to 0.700, better by +0.200"
        in report(0.1, 0.3, lower_is_better=True).summary()[1]
    )
    assert "60 better, 10 equal, 30 worse" in report(0.1, 0.3, lower_is_better=True).summary()[1]
    assert len(report(0.1, 0.3).summary()) == 2
    assert (format_signed(0.0), format_signed(-0.1239), format_interval(None)) == (
        "+0.000",
        "-0.124",
        "(no interval)",
    )


def test_the_defaults_of_a_report():
    """What a report holds if nothing else is said."""
    plain = report(0.1, 0.3)
    assert (plain.margin, plain.level, plain.lower_is_better, plain.same_answers) == (
        0.02,
        0.95,
        False,
        False,
    )
    counts = (
        "only_a",
        "only_b",
        "unscored_a",
        "unscored_b",
        "blank_a",
        "blank_b",
        "repeats",
        "equal_tasks",
    )
    assert [getattr(plain, name) for name in counts] == [0] * 8
    assert (people(0, 1).same_answers, people(0, 1).needed, people(0, 1).gate_needed) == (
        0,
        None,
        None,
    )


def test_every_figure_of_a_report_is_in_a_table():
    """A new one needs rows of its own above."""
    public = {name for name in vars(ComparisonReport) if not name.startswith("_")} - set(
        ComparisonReport.__dataclass_fields__
    )
    asked = {"evidence", "interval", "value", "verdict", "gate", "rows_needed", "gate_rows_needed"}
    assert public == asked | {"summary", "headline", "gate_line", "as_data"}
