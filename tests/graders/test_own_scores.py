"""What a grader of the user may return as a score: numbers of any type, and results as other
evaluators give them.
"""

import math
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import redraft
from each_row import each_row
from redraft.errors import GradingError
from redraft.graders import FunctionGrader, Minimum, Router
from redraft.graders.base import as_feedback

RESPONSE = ("q", "a")


class Tensor:
    """A tensor as PyTorch has it: `item()` of one without dimensions is a number of Python."""

    def __init__(self, value, ndim=0):
        self.value, self.ndim = value, ndim

    def item(self):
        return self.value

    def __float__(self):
        return float(self.value)


SCORES = [
    (0.5, 0.5),
    (1, 1.0),
    (True, 1.0),
    (False, 0.0),
    (np.True_, 1.0),
    (np.mean([1, 1, 0]) > 0.9, 0.0),
    (np.float16(0.5), 0.5),
    (np.float32(0.25), 0.25),
    (np.float64(0.75), 0.75),
    (np.longdouble("0.5"), 0.5),
    (np.int64(1), 1.0),
    (np.uint8(0), 0.0),
    (np.array(0.5), 0.5),
    (np.array(True), 1.0),
    (np.array(1, dtype=np.int32), 1.0),
    (Tensor(0.5), 0.5),
    (Tensor(True), 1.0),
    (Decimal("0.5"), 0.5),
    (Fraction(1, 4), 0.25),
    (0.1 * 3 / 0.3, 1.0),
    (1 + 1e-9, 1.0),
    (-1e-12, 0.0),
    (np.float32(1.0000001), 1.0),
    (1.0000009, 1.0),
    (Decimal("-0.0000001"), 0.0),
    (pd.Series([0.5]).mean(), 0.5),
]
NO_SCORES = [
    1.5, -0.5, 1.00001, -0.00001, 2, math.nan, math.inf, -math.inf, 10**400, np.float32(1.5), np.float64("nan"), np.int64(7),
    Decimal("NaN"), Decimal("sNaN"), Decimal("1.5"), Fraction(3, 2), Fraction(10**400), Tensor(math.nan), Tensor(2),
    1 + 0j, np.complex64(1), np.clongdouble(1), "0.5", "1", b"1", np.str_("0.5"), np.bytes_(b"1"), [0.5], {0.5}, np.array([0.5]), np.array([[1.0]]),
    np.zeros(3), Tensor(0.5, ndim=1), np.datetime64("2020-01-01"), np.timedelta64(0, "s"), timedelta(0), datetime(2020, 1, 1), pd.NA, pd.NaT,
    pd.Series([0.5]), object(), print, (0.5, 0.5), (0.5,), np.float64, Tensor("0.5"), Tensor(None, ndim=1),
]  # fmt: skip


@each_row(("value", "score"), SCORES)
def test_real_numbers_and_booleans_of_any_type_are_scores(value, score):
    """Alone, with a reason, in a mapping and as an attribute; what is outside by a rounding error
    is clipped.
    """
    for result in (
        value,
        {"score": value},
        (value, "why"),
        {"score": value, "comment": "why"},
        SimpleNamespace(score=value),
    ):
        feedback = as_feedback(result, "mine")
        assert feedback.score == pytest.approx(score, abs=1e-3)
        assert type(feedback.score) is float
        assert 0 <= feedback.score <= 1


@each_row("value", NO_SCORES, ids=lambda value: type(value).__name__)
def test_anything_else_is_an_error(value):
    """It names the grader, the value and what is allowed, wherever the value stands; it is never
    zero or one.
    """
    for result in (value, (value, "why"), {"score": value}, SimpleNamespace(score=value)):
        with pytest.raises((TypeError, ValueError), match=r"(?s)grader 'mine'.*\[0, 1\]"):
            as_feedback(result, "mine")


def test_a_score_that_is_missing_is_unknown():
    """None is unknown in each form."""
    no_mean = np.ma.masked_invalid([math.nan]).mean()
    for result in (
        None,
        {"score": None},
        {"key": "k", "score": None, "comment": "no idea"},
        SimpleNamespace(score=None),
    ):
        assert as_feedback(result, "mine").score is None
    for value in (np.ma.masked, no_mean, np.ma.array(1.0, mask=True)):
        for result in (value, (value, "why"), {"score": value}, SimpleNamespace(score=value)):
            assert as_feedback(result, "mine").score is None
    assert as_feedback(np.ma.array(1.0, mask=False), "mine").score == 1


@dataclass
class Result:
    name: str
    score: float | None
    metadata: dict = field(default_factory=dict)
    error: Exception | None = None


@dataclass
class Metric:
    score: float
    reason: str
    criteria: str = "Coherence"
    threshold: float = 0.5


class Dictionary(dict):
    """A mapping that is also an object."""

    @property
    def score(self):
        return 0.0


FOREIGN = [
    ({"key": "correctness", "score": True, "comment": "It is so."}, 1.0, "It is so."),
    ({"key": "conciseness", "score": 0.5, "comment": None, "metadata": None}, 0.5, ""),
    (
        {
            "key": "k",
            "score": np.float32(0.5),
            "comment": "why",
            "source_run_id": object(),
            "evaluator_info": {},
        },
        0.5,
        "why",
    ),
    ({"name": "Levenshtein", "score": 0.25, "metadata": {"n": 1}}, 0.25, ""),
    ({"pass": True, "score": 0.5, "reason": "long enough"}, 0.5, "long enough"),
    ({"score": 1, "label": "factual", "explanation": "It says so."}, 1.0, "It says so."),
    ({"score": 0.5, "reason": "first", "comment": "second"}, 0.5, "first"),
    (Result("Levenshtein", 0.25), 0.25, ""),
    (Metric(np.float64(0.75), "clear"), 0.75, "clear"),
    (SimpleNamespace(key="k", score=1, comment="why", value=None), 1.0, "why"),
    (Dictionary(score=1), 1.0, ""),
    (
        SimpleNamespace(
            name="Factuality",
            score=1,
            metadata={"rationale": "It says so.", "choice": "A"},
            error=None,
        ),
        1.0,
        "It says so.",
    ),
    (SimpleNamespace(score=0.5, reasoning="why"), 0.5, "why"),
    ({"score": 0.5, "reasoning": "why"}, 0.5, "why"),
    ({"score": 0.5, "comment": "why", "error": ""}, 0.5, "why"),
]


@pytest.mark.parametrize(("result", "score", "reason"), FOREIGN)
def test_results_of_other_evaluators_are_read(result, score, reason):
    """openevals, LangSmith, autoevals, promptfoo, Phoenix and DeepEval give a mapping or an object
    with a score.
    """
    feedback = as_feedback(result, "mine")
    assert (feedback.score, feedback.reason) == (score, reason)


@pytest.mark.slow
def test_results_of_langsmith_are_read():
    """Its own class is an object with `score` and `comment`."""
    evaluator = pytest.importorskip("langsmith.evaluation", reason="langsmith is not installed")
    feedback = as_feedback(evaluator.EvaluationResult(key="k", score=0.5, comment="why"), "mine")
    assert (feedback.score, feedback.reason) == (0.5, "why")


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ({"key": "k", "value": "good"}, "without a score"),
        ({"pass": True}, "without a score"),
        (
            {"key": "k", "score": 1.5, "comment": "c"},
            r"grader 'mine': a score must be a number in \[0, 1\], got 1.5",
        ),
        ({"key": "k", "score": "C"}, "got 'C'"),
        ({"key": "k", "score": 0.5, "comment": 3}, "reason cannot be 3"),
        ({"key": "k", "score": 0.5, "remark": "c"}, "'remark'; it may hold"),
        ({"results": [{"key": "k", "score": 1}]}, "'results'; it may hold"),
        ({"score": 0, "error": "no such model"}, "returned an error: 'no such model'"),
        (Result("x", 0, error=OSError("no such model")), "returned an error: OSError"),
        ({"score": 0, "error": {"code": 404}}, "returned an error: {'code': 404}"),
        ({"score": 0, "error": ["no such model"]}, "returned an error: "),
        (SimpleNamespace(value="C", explanation="right"), "must return a score"),
        (Result, "must return a score"),
        ([{"key": "k", "score": 1}], "must return a score"),
        (
            {"score": 0.5, "criteria": [{"name": "tone", "score": np.float32(2)}]},
            r"in \[0, 1\], got",
        ),
    ],
)
def test_results_without_a_usable_score_are_errors(result, words):
    """No score is made of a label, and that of an evaluator which failed is not zero."""
    with pytest.raises((TypeError, ValueError), match=words):
        as_feedback(result, "mine")


def test_criteria_and_flags_of_numpy_are_read():
    """The parts of a mapping may have NumPy's types, too."""
    criteria = [
        {"name": "tone", "score": np.float32(0.5)},
        redraft.CriterionScore("length", np.int64(1)),
    ]
    feedback = as_feedback(
        {"score": np.True_, "done": np.False_, "criteria": criteria, "nearness": np.float64(0.5)},
        "mine",
    )
    assert (feedback.score, feedback.done, feedback.nearness) == (1.0, False, 0.5)
    assert [type(each.score) for each in feedback.criteria] == [float, float]


@pytest.mark.parametrize(
    "value", [np.float32(0.5), np.int64(1), Decimal("0.5"), np.array(0.5), 1.0000000000000002]
)
def test_feedback_has_numbers_of_any_type(value):
    """The record has a float of Python; True and False are no numbers there."""
    for score in (redraft.Feedback(value).score, redraft.CriterionScore("tone", value).score):
        assert type(score) is float
        assert 0.5 <= score <= 1
    with pytest.raises(ValueError, match=r"in \[0, 1\], got"):
        redraft.Feedback(np.True_)


def half(_text):
    return np.float32(0.5)


class Half:
    """A grader with a method that returns the same as a function may."""

    name = "half"
    model_free = True

    def __init__(self, result=np.float32(0.5)):
        self.result = result

    async def grade(self, task, candidate, ask):
        return self.result


@pytest.mark.parametrize(
    "grader",
    [
        half,
        lambda text: {"key": "k", "score": np.float64(0.5)},
        FunctionGrader(half, "mine"),
        redraft.with_weight(half, 2, repeats=2),
        Half(),
        Half({"score": Decimal("0.5"), "comment": "why"}),
        Minimum([half, lambda text: np.True_]),
        Minimum([Half(SimpleNamespace(score=0.5))]),
        Router({"x": half}, by=lambda task: "x"),
    ],
)
def test_every_place_reads_scores_alike(grader):
    """A function, a class, a part of a composite, and one with a weight."""
    assert redraft.grade_sync(RESPONSE, grader).score == 0.5


def test_a_condition_reads_booleans_of_numpy():
    """`must` asks for a score of 1, which numpy.True_ is."""
    for passes, score in ((np.True_, 1.0), (np.False_, 0.0)):
        report = redraft.grade_sync(RESPONSE, redraft.must(lambda text, passes=passes: passes))
        assert report.score == score


@pytest.mark.parametrize(
    "grader", [lambda text: np.float32(1.5), Half(1.5), Half("good"), Minimum([Half(math.nan)])]
)
def test_an_invalid_score_ends_with_an_error(grader):
    """The error names the value and what is allowed."""
    with pytest.raises(GradingError, match=r"\[0, 1\]") as caught:
        redraft.grade_sync(RESPONSE, grader)
    assert any(value in str(caught.value) for value in ("1.5", "good", "nan"))


@pytest.mark.slow
def test_numpy_is_not_loaded_for_it():
    """Numbers are known by what they do."""
    import subprocess
    import sys

    code = "import sys, redraft; redraft.grade_sync(('q', 'a'), lambda text: 1); print('numpy' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == "False"
