"""An evaluator of LlamaIndex."""

import pytest

from .answers import ANSWERS, QUICK, six_words

core = pytest.importorskip("llama_index.core.evaluation", reason="no llama-index-core")
pytestmark = pytest.mark.slow


async def test_an_unknown_score_is_an_invalid_result():
    """Through their runner of batches."""
    from redraft.adapters.llama_index import RedraftResponseEvaluator

    runner = core.BatchEvalRunner({"words": RedraftResponseEvaluator(six_words, **QUICK)})
    results = await runner.aevaluate_response_strs([*ANSWERS], [*ANSWERS.values()])
    rows = [(each.score, each.passing, each.invalid_result) for each in results["words"]]
    assert rows == [(1.0, True, False), (0.0, False, False), (None, None, True)] * 3
    assert results["words"][2].invalid_reason == "six_words: GradingError"


def test_contexts_and_reference_reach_the_graders():
    from redraft.adapters.llama_index import RedraftResponseEvaluator

    def reads(text, task):
        return task.context == "one\n\ntwo" and task.reference == "three"

    evaluator = RedraftResponseEvaluator(reads)
    result = evaluator.evaluate("q", "r", contexts=["one", "two"], reference="three")
    assert result.passing is True
