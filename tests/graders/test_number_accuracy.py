"""Shares of numbers and of tokens, against slow implementations that follow the definitions word by
word.
"""

from fractions import Fraction
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from each_row import each_row
from redraft import Candidate, Task
from redraft.errors import ConfigError
from redraft.graders.computed.number_accuracy import longest_common_subsequence, maximum_matching
from redraft.graders.registry import grader_from_spec


async def grade(spec, text, reference):
    task, grader = Task("q", reference=reference), grader_from_spec(spec)
    if hasattr(grader, "check_task"):
        grader.check_task(task)
    return await grader.grade(task, Candidate(0, text), None)


@each_row(
    ("options", "text", "reference", "score"),
    [
        ("", "It sold 25.5 and 30.2.", "25.5 and 30.0", 1 / 2),
        ("", "25.5, then 30", "The temperatures are 25.5 and 30.0 degrees", 1),
        ("", "30 and 25.5", "25.5 and 30", 1 / 2),
        ("order=false", "30 and 25.5", "25.5 and 30", 1),
        ("", "In 2 steps: 25.5 and 30", "25.5 and 30", 1),
        ("extra=false", "In 2 steps: 25.5 and 30", "25.5 and 30", 2 / 3),
        ("extra=false", "25.5", "25.5 and 30", 1 / 2),
        ("", "5 and 5", "5", 1),
        ("order=false", "5", "5 and 5", 1 / 2),
        ("", "$1,234.50 in all, 15% more", "1234.5 and 15 %", 1),
        ("", "0.15, 15 and 15%", "15%, 15% and 0.15", 1),
        ("relative=0.01", "101 and 198", "100 and 200", 1),
        ("absolute=0.5,relative=0", "100.4 and 200.6", "100 and 200", 1 / 2),
        ("", "none", "7", 0),
        ("", "", "7", 0),
        ("", "٧ and −３", "7 and -3", 1),
        ("", "1e999 and 2 x 10^3", "10e998; 2000", 1),
        ("order=false", "1, 2, 3, 4, 5, 6, 7, 8, 9", "7", 1),
    ],
)
async def test_share_of_numbers(options, text, reference, score):
    """Numbers count in any notation; only those of the reference that are missing or wrong cost
    something.
    """
    feedback = await grade(f"number_accuracy:{options}", text, reference)
    assert feedback.score == pytest.approx(score)
    assert bool(feedback.actions) is (score < 1)


@pytest.mark.parametrize("reference", ["none at all", "1 " * 1001], ids=["none", "too many"])
async def test_reference_needs_numbers(reference):
    """A reference with too few or too many numbers is an error of the task."""
    with pytest.raises(ConfigError, match="1 to 1000 numbers"):
        await grade("number_accuracy", "1", reference)


async def test_no_number_of_the_reference_is_shown():
    """Reasons and actions do not reveal what is right."""
    feedback = await grade("number_accuracy", "5 and 6", "987654 and 6")
    assert "987654" not in f"{feedback.reason} {feedback.actions}"
    assert "1 of 2 numbers are right" in feedback.reason


def slow_subsequence(a, b, equal):
    best = {}
    for i in range(len(a) - 1, -1, -1):
        for j in range(len(b) - 1, -1, -1):
            taken = best.get((i + 1, j + 1), 0) + 1 if equal(a[i], b[j]) else 0
            best[i, j] = max(taken, best.get((i + 1, j), 0), best.get((i, j + 1), 0))
    return best.get((0, 0), 0)


def slow_matching(a, b, equal):
    a, b = (a, b) if len(a) <= len(b) else (b, a)
    return max(
        sum(equal(x, y) or equal(y, x) for x, y in zip(a, order, strict=False))
        for order in permutations(b, len(a))
    )


ITEMS = st.lists(st.tuples(st.integers(0, 6), st.booleans()), max_size=6)


def close(x, y):
    return abs(x[0] - y[0]) <= 1 or (x[1] != y[1] and x[0] == 2 * y[0])


@given(a=ITEMS, b=ITEMS)
@settings(max_examples=3 * settings.default.max_examples, deadline=None)
def test_bit_masks_find_the_longest_subsequence_and_the_most_pairs(a, b):
    """Equality with a tolerance is not transitive, and an item may equal several others."""
    symmetric = lambda x, y: close(x, y) or close(y, x)
    masks = [sum(1 << n for n, y in enumerate(b) if symmetric(x, y)) for x in a]
    assert longest_common_subsequence(masks) == slow_subsequence(a, b, symmetric)
    assert maximum_matching(masks) == slow_matching(a, b, symmetric)


NUMBERS = st.lists(st.tuples(st.integers(-300, 300), st.booleans()), min_size=1, max_size=5)


def written(numbers):
    return "; ".join(
        f"{value / 100}%" if percent else str(value / 100) for value, percent in numbers
    )


def equal_numbers(actual, expected):
    (a, a_percent), (e, e_percent) = actual, expected  # in hundredths: of one, or of a percent
    if a_percent == e_percent:
        return a == e
    share, bare = (a, e) if a_percent else (e, a)
    return Fraction(share, 100) == bare or share == bare


@pytest.mark.slow
@given(actual=NUMBERS, expected=NUMBERS, order=st.booleans(), extra=st.booleans())
@settings(max_examples=3 * settings.default.max_examples, deadline=None)
async def test_share_equals_its_definition(actual, expected, order, extra):
    """50% equals 50%, 0.5 and 50; the rest follows from the longest subsequence or the best
    pairing.
    """
    feedback = await grade(
        f"number_accuracy:order={order},extra={extra},absolute=0,relative=0".lower(),
        written(actual),
        written(expected),
    )
    flipped = lambda e, a: equal_numbers(a, e)
    if order:
        right = slow_subsequence(expected, actual, flipped)
    else:
        masks = [sum(1 << n for n, a in enumerate(actual) if flipped(e, a)) for e in expected]
        right = max(
            sum(1 for mask, n in zip(masks, places, strict=True) if n is not None and mask >> n & 1)
            for places in permutations(
                [*range(len(actual)), *[None] * len(expected)], len(expected)
            )
        )
    assert feedback.score == pytest.approx(
        right / (len(expected) if extra else max(len(expected), len(actual)))
    )


# ---- token F1


@pytest.mark.parametrize(
    ("spec", "text", "reference", "score"),
    [  # "squad": the values of evaluate-v1.1.py, worked through by hand
        ("token_f1", "The Denver Broncos!", "Denver Broncos", 1),
        ("token_f1", "It was Denver", "Denver Broncos", 2 / 5),
        ("token_f1", "a cat sat on the mat", "the cat sat", 2 * 2 / (4 + 2)),
        ("token_f1", "Paris", "Rome", 0),
        ("token_f1", "cat cat cat", "cat", 1 / 2),
        ("token_f1", "U.S.A.", "usa", 1),
        ("token_f1", "well-known", "wellknown", 1),
        ("token_f1", "The", "a", 1),
        ("token_f1", "", "a cat", 0),
        ("token_f1", "北京大学", "北京", 0),
        ("token_f1:tokens=words", "北京大学", "北京", 2 / 3),
        ("token_f1:tokens=words", "The cat.", "cat", 2 / 3),
        ("token_f1:tokens=words", "ΣΟΦΙΑ", "σοφια", 1),
        ("token_f1:tokens=whitespace", "Cat cat", "cat", 2 / 3),
        ("token_f1:tokens=whitespace", "cat.", "cat", 0),
    ],
)
async def test_token_f1(spec, text, reference, score):
    """Tokens are those of SQuAD's script, of any script's words, or what white space separates."""
    assert (await grade(spec, text, reference)).score == pytest.approx(score)


def slow_f1(actual, expected):
    left, hits = list(expected), 0
    for token in actual:
        if token in left:
            left.remove(token)
            hits += 1
    precision, recall = hits / len(actual), hits / len(expected)
    return 2 * precision * recall / (precision + recall) if hits else 0


TOKENS = st.lists(st.sampled_from(["Cat", "cat", "dog", "sat.", "7", "é"]), min_size=1, max_size=8)


@given(actual=TOKENS, expected=TOKENS)
@settings(max_examples=2 * settings.default.max_examples, deadline=None)
async def test_token_f1_equals_its_definition(actual, expected):
    """It is the harmonic mean of precision and recall, and the same in both directions."""
    forward, backward = [
        (await grade("token_f1:tokens=whitespace", " ".join(a), " ".join(b))).score
        for a, b in ((actual, expected), (expected, actual))
    ]
    assert forward == pytest.approx(slow_f1(actual, expected)) == backward
