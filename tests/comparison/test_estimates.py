"""The figures of a comparison report against small models of them, and the properties that they
must have whatever the data.
"""

import random
from dataclasses import replace
from itertools import pairwise
from math import hypot, isfinite, sqrt
from statistics import fmean

import numpy as np
import pytest
from scipy import stats

from each_row import each_row
from redraft.comparison import compare_sync
from redraft.comparison.estimates import MIN_LABELS
from redraft.comparison.results import MAX_RESULTS, check_size
from redraft.errors import ConfigError
from redraft.validation import paired_difference, ppi_difference

N = 48


def rows_of(scores, same=(), side="a", docs=None, *, samples=1):
    """Rows of a run; the answers to the tasks in `same` are those of both runs, the others name
    their run.
    """
    return [
        {
            "id": str(k),
            "prompt": f"T{k}",
            "response": f"{'both' if k in same else side} {k} {s}",
            "score": score,
            "doc": docs[k] if docs else k,
        }
        for k, score in enumerate(scores)
        for s in range(samples)
    ]


class World:
    """Two runs of which a third has equal answers, whose scores a noisy judge gives, and what
    people say.
    """

    def __init__(self, seed=1, n=N, labelled=14, docs=None, samples=1):
        rng = random.Random(seed)
        self.n, self.docs = n, docs
        self.same = {k for k in range(n) if k % 3 == 0}
        a = [round(rng.uniform(0.2, 0.8), 3) for _ in range(n)]
        self.truth = [0.0 if k in self.same else round(rng.gauss(0.08, 0.15), 3) for k in range(n)]
        b = [
            round(min(1, max(0, x + t + rng.gauss(0, 0.05))), 3)
            for x, t in zip(a, self.truth, strict=True)
        ]
        self.a = rows_of(a, self.same, "a", docs, samples=samples)
        self.b = rows_of(b, self.same, "b", docs, samples=samples)
        self.judged = [y - x for x, y in zip(a, b, strict=True)]
        self.different = [k for k in range(n) if k not in self.same]
        # of the first documents
        self.labelled = sorted(rng.sample([k for k in self.different if k < 0.65 * n], labelled))

    def labels(self, unit, keys=None):
        """Labels in columns for A and B, of each answer, or of pairs."""
        keys = self.labelled if keys is None else keys
        if unit == "columns":
            return [
                {
                    "id": str(k),
                    "label_a": 0.5 - self.truth[k] / 2,
                    "label_b": 0.5 + self.truth[k] / 2,
                }
                for k in keys
            ]
        if unit == "answers":
            return [
                {
                    "prompt": f"T{k}",
                    "response": f"{side} {k} 0",
                    "label": 0.5 + sign * self.truth[k] / 2,
                }
                for k in keys
                for side, sign in (("a", -1), ("b", 1))
            ]
        return [
            {
                "prompt": f"T{k}",
                "response_a": f"a {k} 0",
                "response_b": f"b {k} 0",
                "label": "tie" if abs(self.truth[k]) < 0.03 else "b" if self.truth[k] > 0 else "a",
            }
            for k in keys
        ]

    def truth_in(self, unit):
        if unit != "pairs":
            return self.truth
        return [0.0 if abs(t) < 0.03 else 0.5 if t > 0 else -0.5 for t in self.truth]


DOCS = [k // 4 for k in range(N)]  # documents of four tasks
UNEQUAL_DOCS = [
    doc for doc, size in enumerate((6, 1, 3, 8, 2, 4, 5, 3, 6, 2, 4, 4)) for _ in range(size)
]
UNITS = ["columns", "answers", "pairs"]


def compared(world, unit="columns", *, labels=None, **options):
    labels = world.labels(unit) if labels is None else labels
    return compare_sync(
        world.a, world.b, labels=labels, cluster="doc" if world.docs else None, **options
    )


def by_hand(world, unit, level=0.95):
    """What people would say of all pairs: an estimate over pairs of different answers, times the
    share of these.

    Pairs without a label in a document with labels are left out.
    """
    docs = world.docs or list(range(world.n))
    truth, judged = world.truth_in(unit), world.judged
    if unit == "pairs":
        judged = [float(np.sign(d)) / 2 for d in judged]
    with_labels = {docs[k] for k in world.labelled}
    others = [k for k in world.different if docs[k] not in with_labels]
    columns = [
        [(0.0, -d) for d in (truth[k] for k in world.labelled)],
        [(0.0, -judged[k]) for k in world.labelled],
    ]
    clusters = [docs[k] for k in world.labelled]
    more = [(0.0, -judged[k]) for k in others]
    of_clusters = {"clusters": clusters, "confidence": level}
    if others:
        estimate = ppi_difference(
            *columns, more, unlabelled_clusters=[docs[k] for k in others], **of_clusters
        )
    else:
        estimate = ppi_difference(*columns, **of_clusters)
    alone = ppi_difference(*columns, **of_clusters)
    share = paired_difference(
        [0.0] * world.n,
        [float(k not in world.same) for k in range(world.n)],
        clusters=docs,
        confidence=level,
    )
    return estimate, alone, share, len(others)


def of_all(estimate, share):
    """The product of an estimate and the share of different answers: to first order, the variances
    add up.
    """
    value, half = estimate.value * share.value, (share.interval[1] - share.interval[0]) / 2
    low, high = (
        hypot(share.value * (end - estimate.value), estimate.value * half)
        for end in estimate.interval
    )
    error = sqrt(
        (share.value * estimate.standard_error) ** 2 + (estimate.value * share.standard_error) ** 2
    )
    return value, error, value - low, value + high


@pytest.mark.parametrize(
    "docs", [None, DOCS, UNEQUAL_DOCS], ids=["rows", "documents", "unequal documents"]
)
@pytest.mark.parametrize("unit", UNITS)
def test_what_people_would_say_of_all_pairs(unit, docs):
    """The estimate and its interval are those of the labelled pairs, the scores of other documents,
    and the share that differs.
    """
    world = World(docs=docs)
    people = compared(world, unit, level=0.9).people
    estimate, alone, share, others = by_hand(world, unit, 0.9)
    for found, due in ((people.estimate, estimate), (people.labels_only, alone)):
        assert (found.value, found.standard_error, *found.interval) == pytest.approx(
            of_all(due, share), abs=1e-12
        )
        assert (found.labels, found.clusters) == (
            14,
            len({(docs or range(N))[k] for k in world.labelled}),
        )
    assert (people.estimate.unlabelled, people.labels_only.unlabelled) == (others, 0)
    assert (people.unit, people.same_answers) == ("preference" if unit == "pairs" else "score", 16)
    assert people.estimate.interval[0] < people.estimate.value < people.estimate.interval[1]
    if docs is UNEQUAL_DOCS and unit != "pairs":  # the labels alone have the narrower interval
        assert people.estimate.judge_weight == 0
    else:  # else the scores of the judge would be no part of it
        assert people.estimate.judge_weight > 0.2


@pytest.mark.parametrize("docs", [None, DOCS], ids=["rows", "documents"])
def test_the_standard_error_of_labels_alone_is_that_of_clusters(docs):
    """Without equal answers, it is the sample's standard error over the sums of documents, as numpy
    computes it.
    """
    world = World(docs=docs)
    world.same, world.different = set(), list(range(N))
    for row in world.b:
        row["response"] = f"b {row['id']} 0"
    for row in world.a:
        row["response"] = f"a {row['id']} 0"
    world.labelled = list(range(0, N, 2))  # two rows of each document
    people = compared(world).people
    truth = np.array([world.truth[k] for k in world.labelled])
    groups = truth.reshape(-1, 2).mean(1) if docs else truth
    assert people.labels_only.value == pytest.approx(truth.mean())
    assert people.labels_only.standard_error == pytest.approx(
        groups.std(ddof=1) / sqrt(len(groups))
    )
    half = stats.t.ppf(0.975, len(groups) - 1) * people.labels_only.standard_error
    low, high = people.labels_only.interval
    assert low <= truth.mean() - half + 1e-12 and high >= truth.mean() + half - 1e-12
    assert people.estimate.unlabelled == (0 if docs else N // 2)


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("docs", [None, DOCS], ids=["rows", "documents"])
@pytest.mark.parametrize("mistaken", [False, True])
@pytest.mark.parametrize("unit", ["columns", "answers"])
def test_labels_of_equal_answers_change_nothing(unit, mistaken, docs):
    """Their difference is 0, and they are counted as such already, even if a label says something
    else.
    """
    world = World(docs=docs)
    more = [
        {"id": str(k), "label_a": 0.2, "label_b": 0.9 if mistaken else 0.2}
        if unit == "columns"
        else {"prompt": f"T{k}", "response": f"both {k} 0", "label": 0.9}
        for k in world.same
    ]
    plain, with_more = (
        compared(world, unit),
        compared(world, unit, labels=[*world.labels(unit), *more]),
    )
    assert with_more.people == plain.people
    assert (with_more.gate, with_more.verdict, with_more.interval) == (
        plain.gate,
        plain.verdict,
        plain.interval,
    )


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("label", ["tie", "a", "b"])
@pytest.mark.parametrize("samples", [1, 2])
def test_preferences_of_equal_answers_change_nothing(label, samples):
    """Nor do preferences, also with several samples of a task."""
    world = World(samples=samples)
    more = [
        {
            "prompt": f"T{k}",
            "response_a": f"both {k} 0",
            "response_b": f"both {k} 0",
            "label": label,
        }
        for k in world.same
    ]
    plain, with_more = (
        compared(world, "pairs"),
        compared(world, "pairs", labels=[*world.labels("pairs"), *more]),
    )
    assert with_more.people == plain.people


@pytest.mark.parametrize("unit", ["columns", "answers"])
@pytest.mark.parametrize("count", [0, MIN_LABELS - 1, MIN_LABELS])
def test_labels_of_equal_answers_do_not_make_up_for_others(unit, count):
    """Five pairs of different answers need a label, however many equal ones have one."""
    world = World()
    more = [
        {"id": str(k), "label_a": 0.2, "label_b": 0.2}
        if unit == "columns"
        else {"prompt": f"T{k}", "response": f"both {k} 0", "label": 1}
        for k in world.same
    ]
    labels = [*world.labels(unit, world.labelled[:count]), *more]
    if count == MIN_LABELS:
        assert compared(world, unit, labels=labels).people.estimate.labels == MIN_LABELS
    else:
        with pytest.raises(
            ConfigError,
            match=f"{count} rows have different answers and labels of people, and at least 5 are needed$",
        ):
            compared(world, unit, labels=labels)


@pytest.mark.parametrize("docs", [None, DOCS], ids=["rows", "documents"])
@pytest.mark.parametrize("unit", UNITS)
def test_the_two_sides_change_places(unit, docs):
    """B against A is the opposite of A against B: each figure changes its sign, and each interval
    its ends.
    """
    world = World(docs=docs)
    swapped = {
        "columns": lambda row: {**row, "label_a": row["label_b"], "label_b": row["label_a"]},
        "answers": lambda row: row,
        "pairs": lambda row: row,
    }[unit]
    options = {"cluster": "doc" if docs else None, "slices": "doc" if docs else (), "anytime": True}
    one = compare_sync(world.a, world.b, labels=world.labels(unit), **options)
    other = compare_sync(
        world.b, world.a, labels=[swapped(row) for row in world.labels(unit)], **options
    )

    def opposite(found, due):
        assert found.value == pytest.approx(-due.value, abs=1e-12)
        assert found.interval == pytest.approx((-due.interval[1], -due.interval[0]), abs=1e-12)

    opposite(other.difference, one.difference)
    opposite(other.people.estimate, one.people.estimate)
    opposite(other.people.labels_only, one.people.labels_only)
    assert other.anytime == pytest.approx((-one.anytime[1], -one.anytime[0]))
    assert (other.difference.mean_a, other.difference.wins) == (
        one.difference.mean_b,
        one.difference.losses,
    )
    assert other.people.needed == one.people.needed
    for name, due in one.slices.get("doc", {}).items():
        if due.interval:
            opposite(other.slices["doc"][name], due)


@pytest.mark.parametrize("unit", UNITS)
def test_order_and_names_do_not_matter(unit):
    """Rows and labels in another order, and documents of other names, give the same figures."""
    world = World(docs=DOCS)
    plain = compared(world, unit)
    rng = random.Random(4)
    labels = rng.sample(world.labels(unit), len(world.labels(unit)))
    shuffled = [rng.sample(rows, len(rows)) for rows in (world.a, world.b)]
    renamed = [[{**row, "doc": f"document {-row['doc']}"} for row in rows] for rows in shuffled]
    found = compare_sync(*renamed, labels=labels, cluster="doc")
    for one, other in (
        (found.people.estimate, plain.people.estimate),
        (found.difference, plain.difference),
    ):
        assert (one.value, one.standard_error, *one.interval) == pytest.approx(
            (other.value, other.standard_error, *other.interval)
        )
        assert one.clusters == other.clusters
    assert (found.people.needed, found.people.gate_needed) == (
        plain.people.needed,
        plain.people.gate_needed,
    )


@pytest.mark.parametrize("unit", ["columns", "answers"])
def test_rows_twice_in_their_documents_are_no_more_evidence(unit):
    """The same rows under other IDs in the same documents change no figure; in documents of their
    own, they narrow the intervals.
    """
    world = World(docs=DOCS)
    plain = compared(world, unit)

    def again(rows, doc):
        more = [
            {
                **row,
                "id": f"{row['id']} again",
                "prompt": f"{row['prompt']} again",
                "doc": doc(row["doc"]),
            }
            for row in rows
        ]
        return [*rows, *more]

    labels = world.labels(unit)
    labels += [
        {
            **row,
            (
                "id" if unit == "columns" else "prompt"
            ): f"{row[('id' if unit == 'columns' else 'prompt')]} again",
        }
        for row in labels
    ]
    same, other = (
        compare_sync(again(world.a, doc), again(world.b, doc), labels=labels, cluster="doc")
        for doc in (lambda doc: doc, lambda doc: f"{doc} again")
    )
    for before, once, twice in (
        (plain.difference, same.difference, other.difference),
        (plain.people.labels_only, same.people.labels_only, other.people.labels_only),
        (plain.people.estimate, same.people.estimate, other.people.estimate),
    ):
        assert (once.clusters, twice.clusters) == (before.clusters, 2 * before.clusters)
        assert (once.value, twice.value) == pytest.approx((before.value, before.value), abs=5e-3)
        assert once.standard_error == pytest.approx(before.standard_error, rel=1e-3)
        assert once.interval == pytest.approx(before.interval, abs=2e-3)
        widths = [interval[1] - interval[0] for interval in (before.interval, twice.interval)]
        assert 0 < widths[1] < 0.9 * widths[0]


def test_unlabelled_rows_of_a_document_with_labels_are_left_out():
    """Their scores change nothing in what people say; those of other documents do."""
    world = World(docs=[k // 8 for k in range(N)])
    world.labelled = [k for k in world.labelled if world.docs[k] < 4]
    with_labels = {world.docs[k] for k in world.labelled}
    plain = compared(world).people

    def estimate(chosen):
        b = [
            {**row, "score": row["score"] * 0.5} if chosen(int(row["id"])) else row
            for row in world.b
        ]
        return compare_sync(
            world.a, b, labels=world.labels("columns"), cluster="doc"
        ).people.estimate

    unlabelled = set(range(N)) - set(world.labelled)
    assert estimate(lambda k: k in unlabelled and world.docs[k] in with_labels) == plain.estimate
    assert (
        estimate(lambda k: k in unlabelled and world.docs[k] not in with_labels).value
        != plain.estimate.value
    )
    assert plain.estimate.unlabelled == sum(
        1 for k in world.different if world.docs[k] not in with_labels
    )


def test_labels_of_one_document_have_no_interval():
    """They say nothing of other documents; the estimate is still that of all pairs, with 0 for
    those of equal answers.
    """
    world = World(docs=[k // 24 for k in range(N)])
    world.labelled = [k for k in world.different if k < 24]
    report = compared(world)
    truth = fmean(world.truth[k] for k in world.labelled)
    assert (
        report.people.estimate.interval,
        report.people.labels_only.interval,
        report.interval,
    ) == (None, None, None)
    assert report.people.labels_only.value == pytest.approx(truth * len(world.different) / N)
    assert (report.verdict, report.gate, report.people.needed) == ("undecided", "undecided", None)


def labels_by_search(target, sd, correlation, rows, level):
    """The smallest number of labels, of at least two, with which the half-width is no larger than
    the target.
    """
    z = stats.norm.ppf(0.5 + level / 2)
    return next(
        n
        for n in range(2, 10**6)
        if z * sd * sqrt((1 - correlation**2 * rows / (n + rows)) / n) <= target * (1 + 1e-12)
    )


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(
    ("shift", "margin"), [(0.0, 0.05), (0.0, None), (-0.02, 0.1), (0.02, 0.001)]
)
def test_how_many_labels_would_decide(unit, shift, margin):
    """By the formula of PPI++ with the spread of the labels, their correlation with the scores, and
    the share that differs.
    """
    world = World(seed=5)
    world.truth = [0.0 if k in world.same else t - 0.08 + shift for k, t in enumerate(world.truth)]
    report = compared(world, unit, margin=margin)
    estimate, alone, share, _ = by_hand(world, unit)
    truth, judged = world.truth_in(unit), world.judged
    if unit == "pairs":
        judged = [float(np.sign(d)) / 2 for d in judged]
    correlation = np.corrcoef(
        [truth[k] for k in world.labelled], [judged[k] for k in world.labelled]
    )[0, 1]
    sd = alone.standard_error * sqrt(14)
    for found, loss in (
        (report.people.needed, 0.0),
        (report.people.gate_needed, margin or (0.0 if margin == 0 else 0.02)),
    ):
        of_different = loss / share.value
        low, high = estimate.interval
        target = max(estimate.value + of_different, -estimate.value)
        due = labels_by_search(target, sd, correlation, len(world.different), 0.95)
        if low > -of_different or high < 0 or due <= 14:
            assert found is None
        else:
            assert found == due


# ---- intervals of scores


def binary(n, seed, share):
    rng = random.Random(seed)
    return [float(rng.random() < share) for _ in range(n)]


def test_slices_share_the_error():
    """Two columns with k values each: each interval has the confidence 1 - 0.05 / (2 k), over the
    rows of its slice.
    """
    a, b = binary(60, 1, 0.5), binary(60, 2, 0.7)
    topics = [None if k % 5 == 4 else f"t{k % 5 // 2}" for k in range(60)]
    sides = [
        [{"id": k, "score": s, "topic": topics[k], "kind": k % 3} for k, s in enumerate(scores)]
        for scores in (a, b)
    ]
    report = compare_sync(*sides, slices=["topic", "kind"])
    for column, values in (
        ("topic", ["" if topic is None else topic for topic in topics]),
        ("kind", [str(k % 3) for k in range(60)]),
    ):
        assert list(report.slices[column]) == list(dict.fromkeys(values))
        for name, found in report.slices[column].items():
            rows = [k for k, value in enumerate(values) if value == name]
            due = paired_difference(
                [a[k] for k in rows], [b[k] for k in rows], confidence=1 - 0.05 / 2 / 3
            )
            assert found == replace(
                due, interval=pytest.approx((max(-1, due.interval[0]), min(1, due.interval[1])))
            )


def test_a_long_value_of_a_slice_is_cut():
    """At eighty characters; values that differ after them are one slice."""
    sides = [
        [{"id": k, "score": (k + s) % 3 / 2, "topic": "x" * 80 + str(k)} for k in range(9)]
        for s in (0, 1)
    ]
    assert list(compare_sync(*sides, slices="topic").slices["topic"]) == ["x" * 80]


@pytest.mark.parametrize(
    ("low", "high", "mirrored"), [(0.0, 1.0, 1.0), (0.0, 3.0, 0.0), (-1.0, 1.0, 0.0)]
)
def test_where_lower_scores_are_better(low, high, mirrored):
    """The difference is A - B; the means are those of the scores as they are, on a scale from 0 to
    1 and on any other.
    """
    rng = random.Random(3)
    a, b = ([rng.uniform(low, high) for _ in range(30)] for _ in "ab")
    sides = [[{"id": k, "score": s} for k, s in enumerate(scores)] for scores in (a, b)]
    plain, found = compare_sync(*sides), compare_sync(*sides, lower_is_better=True)
    assert found.difference.value == pytest.approx(fmean(a) - fmean(b))
    assert (found.difference.mean_a, found.difference.mean_b) == pytest.approx((fmean(a), fmean(b)))
    assert found.difference.interval == pytest.approx(
        (-plain.difference.interval[1], -plain.difference.interval[0])
    )
    assert (found.difference.wins, found.difference.losses) == (
        plain.difference.losses,
        plain.difference.wins,
    )
    if mirrored:
        assert found.difference.interval[0] >= -1


# scores of A and B (None: no score; "no row": B lacks it), whether lower is better, and what the
# lost rows count as
LOST = {
    "shares": ([0.2, 0.6, 0.9, 0.4], [0.3, 0.7, None, "no row"], False, 0.0),
    "shares where lower is better": ([0.2, 0.6, 0.9, 0.4], [0.3, 0.7, None, "no row"], True, 1.0),
    "shares with a 1": ([0.2, 1.0, 0.9, 0.4], [0.3, 0.7, None, "no row"], False, 0.0),
    "shares with a 0 where lower is better": (
        [0.2, 0.0, 0.9, 0.4],
        [0.3, 0.7, None, "no row"],
        True,
        1.0,
    ),
    "another scale": ([2.0, 6.0, 9.0, 4.0], [3.0, 7.0, None, "no row"], False, 2.0),
    "another scale where lower is better": (
        [2.0, 6.0, 9.0, 4.0],
        [3.0, 7.0, None, "no row"],
        True,
        9.0,
    ),
    "a row without a score in A is none": (
        [0.2, 0.6, None, 0.4],
        [0.3, 0.7, None, 0.5],
        False,
        None,
    ),
    "a row only in B is none": ([0.2, 0.6, "no row", 0.4], [0.3, 0.7, 0.1, 0.5], False, None),
    "nothing is lost": ([0.2, 0.6], [0.3, 0.7], False, None),
}


@pytest.mark.parametrize("name", LOST)
def test_the_worst_case(name):
    """Answers that B lost count as the worst score: 0, or the lowest of both runs."""
    a, b, lower, worst = LOST[name]
    sides = [
        [{"id": k, "score": s} for k, s in enumerate(scores) if s != "no row"] for scores in (a, b)
    ]
    report = compare_sync(*sides, lower_is_better=lower)
    if worst is None:
        assert report.worst_case is None
        return
    pairs = [(x, worst if y is None or y == "no row" else y) for x, y in zip(a, b, strict=True)]
    assert report.worst_case.rows == 4
    assert report.worst_case.mean_b == pytest.approx(fmean(y for _, y in pairs))
    assert report.worst_case.value == pytest.approx(
        (-1 if lower else 1) * fmean(y - x for x, y in pairs)
    )


# ---- errors of graders against labels


def test_errors_against_labels():
    """Both runs have the same answers: the mean of |A - label| - |B - label| with its standard
    error.
    """
    rng = random.Random(8)
    truth = [rng.random() for _ in range(40)]
    a, b = ([min(1, max(0, t + rng.gauss(0, sd))) for t in truth] for sd in (0.3, 0.1))
    sides = [
        [
            {"id": k, "prompt": f"T{k}", "response": f"x{k}", "score": s}
            for k, s in enumerate(scores)
        ]
        for scores in (a, b)
    ]
    labels = [
        {"prompt": f"T{k}", "response": f"x{k}", "label": t} for k, t in enumerate(truth) if k % 4
    ]
    report = compare_sync(*sides, labels=labels)
    gains = [abs(a[k] - truth[k]) - abs(b[k] - truth[k]) for k in range(40) if k % 4]
    due = paired_difference([0.0] * 30, gains)
    assert (report.evidence, report.people, report.errors.rows) == ("errors", None, 30)
    assert report.errors.value == report.value == pytest.approx(fmean(gains))
    assert (report.errors.standard_error, *report.errors.interval) == pytest.approx(
        (np.std(gains, ddof=1) / sqrt(30), *due.interval)
    )
    assert report.errors.mean_a == pytest.approx(
        -fmean(abs(a[k] - truth[k]) for k in range(40) if k % 4)
    )
    few = compare_sync(*sides, labels=labels[:MIN_LABELS])
    assert few.errors.rows == MIN_LABELS
    with pytest.raises(
        ConfigError, match="4 rows have labels of people, and at least 5 are needed$"
    ):
        compare_sync(*sides, labels=labels[: MIN_LABELS - 1])


def test_errors_of_samples_weigh_their_texts_by_how_often_they_occur():
    """Of three samples with two texts, the error of the text that occurs twice counts twice; a text
    without a label does not.
    """
    texts = ("x", "x", "y", "z")
    scores = {"a": (0.2, 0.6, 0.9, 0.0), "b": (0.4, 0.4, 0.7, 1.0)}
    label = {"x": 0.5, "y": 0.6}
    sides = [
        [
            {"id": k, "prompt": f"T{k}", "response": f"{text}{k}", "score": s}
            for k in range(6)
            for text, s in zip(texts, each, strict=True)
        ]
        for each in scores.values()
    ]
    labels = [
        {"prompt": f"T{k}", "response": f"{text}{k}", "label": value}
        for k in range(6)
        for text, value in label.items()
    ]
    report = compare_sync(*sides, labels=labels)
    errors = [(2 * abs((s[0] + s[1]) / 2 - 0.5) + abs(s[2] - 0.6)) / 3 for s in scores.values()]
    assert (report.errors.mean_a, report.errors.mean_b) == pytest.approx((-errors[0], -errors[1]))
    # a label of all samples of a row
    by_row = [{"id": k, "label_a": 0.6, "label_b": 0.1} for k in range(6)]
    found = compare_sync(*sides, labels=by_row).errors
    assert (found.mean_a, found.mean_b) == pytest.approx(
        (-abs(fmean(scores["a"]) - 0.6), -abs(fmean(scores["b"]) - 0.6))
    )


# ---- degenerate tables


def finite(report):
    """Every number of a report is a number, and every interval has its ends in order around the
    value.
    """
    found = [
        report.difference,
        report.errors,
        report.worst_case,
        *(each for column in report.slices.values() for each in column.values()),
    ]
    if report.people:
        found += [report.people.estimate, report.people.labels_only]
    for each in filter(None, found):
        assert isfinite(each.value)
        assert each.standard_error is None or (
            isfinite(each.standard_error) and each.standard_error >= 0
        )
        if each.interval is not None:
            assert all(map(isfinite, each.interval))
            assert each.interval[0] <= each.value + 1e-12 and each.value <= each.interval[1] + 1e-12
    if report.anytime:
        assert report.anytime[0] <= report.anytime[1]
    assert report.summary() and report.headline() and report.gate_line() and report.as_data()


@pytest.mark.slow
@each_row("n", range(7))
@each_row("kind", ["equal", "same change", "different", "one task", "ends"])
@each_row("labelled", [False, True])
def test_tables_of_a_few_rows(n, kind, labelled):
    """A figure or an error of the configuration: never another exception, nor NaN."""
    a = [
        {
            "equal": 0.5,
            "same change": 0.5,
            "different": k % 3 / 4,
            "one task": k % 3 / 4,
            "ends": float(k % 2),
        }[kind]
        for k in range(n)
    ]
    change = {"equal": 0.0, "same change": 0.25, "ends": 0.0}.get(kind)
    b = [x + (k % 4 / 8 if change is None else change) for k, x in enumerate(a)]
    sides = [
        [
            {
                "id": k,
                "prompt": "T" if kind == "one task" else f"T{k}",
                "response": f"{side}{k}",
                "score": s,
                "c": k % 2,
                "topic": "x",
            }
            for k, s in enumerate(scores)
        ]
        for side, scores in (("a", a), ("b", b))
    ]
    labels = [{"id": k, "label_a": a[k], "label_b": b[k]} for k in range(n)] if labelled else None
    for cluster in (None, "c", "id"):
        try:
            report = compare_sync(
                *sides, labels=labels, cluster=cluster, slices="topic", anytime=True
            )
        except ConfigError as error:
            assert n == 0 or (labelled and n < MIN_LABELS), error
            continue
        assert n and report.difference.rows == n
        assert (report.difference.interval is None) == (report.difference.clusters == 1)
        assert (
            report.difference.interval is None
            or -1 <= report.difference.interval[0] <= report.difference.interval[1] <= 1
        )
        finite(report)


def test_wider_confidence_gives_wider_intervals():
    """For the difference, for people, and for what holds at any look."""
    world = World()
    reports = [compared(world, level=level, anytime=True) for level in (0.5, 0.9, 0.95, 0.999)]
    for one, other in pairwise(reports):
        for narrow, wide in (
            (one.difference.interval, other.difference.interval),
            (one.people.estimate.interval, other.people.estimate.interval),
            (one.anytime, other.anytime),
        ):
            assert wide[0] < narrow[0] < narrow[1] < wide[1]


@pytest.mark.parametrize("unit", UNITS)
def test_an_interval_stays_on_its_scale(unit):
    """Few labels that agree give a wide interval, and it ends where the scale of the labels
    does.
    """
    world = World(n=12, labelled=3)
    world.same = set()
    for side, rows in (("a", world.a), ("b", world.b)):
        for row in rows:
            row["response"] = f"{side} {row['id']} 0"
    world.truth = [1.0 if k % 4 else 0.9 for k in range(12)]
    people = compared(world, unit, labels=world.labels(unit, range(6))).people
    limit = 0.5 if unit == "pairs" else 1.0
    assert people.labels_only.interval[1] == limit
    assert people.estimate.interval[1] <= limit


def test_the_largest_run():
    """As many rows as a run may have, and one more."""
    check_size(range(MAX_RESULTS), "a")
    with pytest.raises(ConfigError, match="'a' has more than 1,000,000 rows"):
        check_size(range(MAX_RESULTS + 1), "a")
