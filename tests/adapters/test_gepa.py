"""An evaluator of GEPA's `optimize_anything`."""

import pytest

from redraft.errors import ConfigError, GradingError

from .answers import ANSWERS, FAILS, GOOD, QUICK, SHORT, SHORT_FEEDBACK, six_words

anything = pytest.importorskip("gepa.optimize_anything", reason="no gepa")
pytestmark = pytest.mark.slow


def optimize(evaluate, seed, proposals=(GOOD,), calls=20, **more):
    """Optimize with a model that writes the proposals, and return the result and its prompts."""
    prompts, left = [], [*proposals]

    def model(prompt):
        prompts.append(str(prompt))
        return f"```\n{left.pop(0) if left else GOOD}\n```"

    config = anything.GEPAConfig(
        engine=anything.EngineConfig(max_metric_calls=calls, display_progress_bar=False),
        reflection=anything.ReflectionConfig(reflection_lm=model),
    )
    result = anything.optimize_anything(
        seed_candidate=seed, evaluator=evaluate, objective="Write.", config=config, **more
    )
    return result, prompts


def test_a_text_is_optimized_by_its_feedback():
    from redraft.adapters.gepa import evaluator

    result, prompts = optimize(evaluator(six_words, prompt="Say hello.", **QUICK), SHORT)
    assert result.best_candidate == GOOD
    assert result.val_aggregate_scores[result.best_idx] == 1.0
    assert SHORT_FEEDBACK in prompts[0]


def test_a_prompt_is_optimized_over_a_data_set(caplog):
    """The examples' texts come from a program; unknown scores count as the value named."""
    from redraft.adapters.gepa import evaluator

    evaluate = evaluator(
        six_words,
        prompt="Answer the question.",
        run=lambda candidate, example: ANSWERS[example],
        unknown=0.5,
        **QUICK,
    )
    result, _ = optimize(evaluate, "Answer.", calls=9, dataset=[*ANSWERS])
    assert result.val_aggregate_scores[0] == pytest.approx((3 + 3 * 0.5) / 9)
    assert "counts as 0.5" in caplog.text


def test_an_unknown_score_ends_the_optimization():
    from redraft.adapters.gepa import evaluator

    with pytest.raises(GradingError, match="the score is unknown: six_words: GradingError"):
        optimize(evaluator(six_words, prompt="Say hello.", **QUICK), FAILS)
    with pytest.raises(ConfigError, match="unknown must be the finite number"):
        evaluator(six_words, prompt="Say hello.", unknown=float("nan"))
