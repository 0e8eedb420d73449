"""An evaluator of LangSmith."""

import uuid
from datetime import UTC, datetime

import pytest

from .answers import ANSWERS, QUICK, six_words


@pytest.mark.slow
def test_an_unknown_score_is_none():
    """As their own form of a run and an example gives it to the evaluator."""
    evaluation = pytest.importorskip("langsmith.evaluation", reason="no langsmith")
    from langsmith.schemas import Example, Run

    from redraft.adapters.langsmith import evaluator

    now = datetime.now(UTC)
    ours = evaluation.run_evaluator(evaluator(six_words, key="words", **QUICK))
    found = []
    for question, answer in ANSWERS.items():
        inputs = {"question": question}
        example = Example(id=uuid.uuid4(), inputs=inputs, outputs={}, dataset_id=uuid.uuid4())
        run = Run(
            id=uuid.uuid4(),
            name="target",
            start_time=now,
            run_type="chain",
            inputs=inputs,
            outputs={"answer": answer},
            trace_id=uuid.uuid4(),
            dotted_order="1",
        )
        found.append(ours.evaluate_run(run, example))
    assert [each.score for each in found] == [1.0, 0.0, None] * 3
    assert {each.key for each in found} == {"words"}
    assert found[1].comment == "six_words (0.00): 2 words; write six words"
    assert found[2].comment == "six_words: GradingError"


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        (
            {"a": "1", "b": "2"},
            {"answer": "x"},
            "prompt must be one of the fields 'a', 'b', got None",
        ),
        ({"a": "1"}, {}, r"answer must be one of the fields \(none\), got None"),
    ],
)
async def test_a_field_that_is_not_clear_is_named(inputs, outputs, message):
    from redraft.adapters.langsmith import evaluator
    from redraft.errors import ConfigError

    with pytest.raises(ConfigError, match=message):
        await evaluator(six_words)(inputs, outputs, {})
