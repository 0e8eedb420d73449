"""A metric of DSPy, and the feedback metric of its optimizer GEPA."""

import pytest

from redraft.errors import ConfigError

from .answers import ANSWERS, GOOD, GOOD_FEEDBACK, QUICK, SHORT_FEEDBACK, six_words

dspy = pytest.importorskip("dspy", reason="no dspy")
pytestmark = pytest.mark.slow

EXAMPLES = [dspy.Example(question=question).with_inputs("question") for question in ANSWERS]


class Answers(dspy.Module):
    """A program that answers from the table, with its reasoning first."""

    def forward(self, question):
        return dspy.Prediction(reasoning="I know it.", answer=ANSWERS[question])


class WithModel(dspy.Module):
    def __init__(self):
        self.ask = dspy.Predict("question -> answer")

    def forward(self, question):
        return self.ask(question=question)


def table_model():
    """A model that answers from the table, and proposes one instruction."""

    class TableModel(dspy.BaseLM):
        def __init__(self):
            super().__init__(model="table", cache=False)
            self.prompts = []

        def forward(self, prompt=None, messages=None, **kwargs):
            from types import SimpleNamespace

            text = prompt or messages[-1]["content"]
            self.prompts.append(text)
            answer = next(
                (a for q, a in ANSWERS.items() if q in text and "<inputs" not in text), ""
            )
            said = f"[[ ## answer ## ]]\n{answer}\n\n[[ ## completed ## ]]"
            if messages is None or "assistant" in text.lower():
                said = "```\nAnswer in six words.\n```"
            message = SimpleNamespace(content=said, tool_calls=None)
            return SimpleNamespace(
                choices=[SimpleNamespace(message=message, finish_reason="stop")],
                usage={},
                model="table",
            )

    return TableModel()


def test_evaluate_counts_unknown_scores_as_the_user_said(caplog):
    """The mean holds 3 x 1, 3 x 0, and 3 x the value named."""
    from redraft.adapters.dspy import metric

    evaluate = dspy.Evaluate(
        devset=EXAMPLES, metric=metric(six_words, unknown=0.25, **QUICK), num_threads=2
    )
    done = evaluate(Answers())
    assert done.score == pytest.approx(100 * (3 + 3 * 0.25) / 9, abs=0.01)
    assert [score for _, _, score in done.results] == [1.0, 0.0, 0.25] * 3
    assert caplog.text.count("counts as 0.25") == 3
    assert "names a server" not in caplog.text


def test_the_reference_is_the_example_s_field(caplog):
    from redraft.adapters.dspy import metric

    example = dspy.Example(question="Who?", answer=GOOD).with_inputs("question")
    score = metric("exact", unknown=-1, **QUICK)
    assert score(example, dspy.Prediction(answer=GOOD)) == 1
    assert score(example, dspy.Prediction(answer="Nobody.")) == 0
    assert score(example, dspy.Prediction(answer=" ")) == -1
    with pytest.raises(ConfigError, match="answer must be one of the fields 'answer', got 'text'"):
        metric("exact", unknown=0, answer="text")(example, dspy.Prediction(answer=GOOD))


def test_a_value_for_unknown_scores_must_be_named():
    from redraft.adapters.dspy import feedback_metric, metric

    for make in (metric, feedback_metric):
        with pytest.raises(TypeError, match="unknown"):
            make(six_words)


def test_the_feedback_metric_says_what_to_change():
    from redraft.adapters.dspy import feedback_metric

    score = feedback_metric(six_words, unknown=0.5, **QUICK)
    rows = [score(each, Answers()(**each.inputs()), None, "ask", None) for each in EXAMPLES[:3]]
    assert [row.score for row in rows] == [1.0, 0.0, 0.5]
    assert [row.feedback for row in rows] == [GOOD_FEEDBACK, SHORT_FEEDBACK, ""]
    assert [row.interval for row in rows] == [None] * 3


def test_gepa_is_told_what_to_change():
    """The prompt of its reflection has the feedback; the run ends with a candidate."""
    from redraft.adapters.dspy import feedback_metric

    model = table_model()
    with dspy.context(lm=model):
        optimizer = dspy.GEPA(
            metric=feedback_metric(six_words, unknown=0.5, **QUICK),
            max_metric_calls=30,
            reflection_lm=model,
            reflection_minibatch_size=3,
            num_threads=1,
        )
        program = optimizer.compile(WithModel(), trainset=EXAMPLES, valset=EXAMPLES)
    assert isinstance(program, WithModel)
    assert any("2 words; write six words" in prompt for prompt in model.prompts)
