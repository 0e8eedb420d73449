"""An evaluator of pydantic-evals."""

import pytest

from .answers import ANSWERS, GOOD_FEEDBACK, QUICK, six_words

evals = pytest.importorskip("pydantic_evals", reason="no pydantic-evals")
pytestmark = pytest.mark.slow


def test_unknown_scores_are_failures_and_part_of_no_average():
    from redraft.adapters.pydantic_evals import RedraftEvaluator

    dataset = evals.Dataset(
        name="questions",
        cases=[evals.Case(name=question, inputs=question) for question in ANSWERS],
        evaluators=[RedraftEvaluator(six_words, name="words", settings=QUICK)],
    )
    report = dataset.evaluate_sync(ANSWERS.__getitem__, progress=False)
    known = [case for case in report.cases if not case.evaluator_failures]
    unknown = [case for case in report.cases if case.evaluator_failures]
    assert (len(known), len(unknown)) == (6, 3)
    assert {case.scores["words"].value for case in known} == {0.0, 1.0}
    assert {case.scores["words"].reason for case in known} >= {GOOD_FEEDBACK}
    assert report.averages().scores == {"words": 0.5}
    for case in unknown:
        assert not case.scores
        assert case.evaluator_failures[0].error_type == "GradingError"
        assert "the score is unknown" in case.evaluator_failures[0].error_message


def test_the_expected_output_is_the_reference():
    """Also where inputs and outputs are objects."""
    from redraft.adapters.pydantic_evals import RedraftEvaluator

    case = evals.Case(inputs={"city": "Oslo"}, expected_output={"degrees": 20})
    dataset = evals.Dataset(name="d", cases=[case], evaluators=[RedraftEvaluator("exact")])
    report = dataset.evaluate_sync(lambda inputs: {"degrees": 20}, progress=False)
    assert report.cases[0].scores["redraft"].value == 1.0
