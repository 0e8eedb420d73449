"""A scorer and a solver of Inspect."""

import json

import pytest

import redraft

from .answers import ANSWERS, FAILS, GOOD, QUICK, SHORT, six_words

inspect_ai = pytest.importorskip("inspect_ai", reason="no inspect-ai")
pytestmark = pytest.mark.slow


@pytest.fixture
def evaluate(tmp_path, monkeypatch):
    """Run a task with answers of a model, texts or outputs, and return its log."""
    from inspect_ai.dataset import Sample
    from inspect_ai.model import ModelAPI, ModelOutput, get_model

    async def count_words(api, text):
        return len(text.split())  # their own count downloads a vocabulary

    monkeypatch.setattr(ModelAPI, "count_text_tokens", count_words)

    def run(answers, samples=None, **task):
        outputs = [
            ModelOutput.from_content("mockllm", answer) if isinstance(answer, str) else answer
            for answer in answers
        ]
        model = get_model("mockllm/model", custom_outputs=outputs)
        samples = samples or [Sample(input=question, target="six words") for question in ANSWERS]
        [log] = inspect_ai.eval(
            inspect_ai.Task(samples, **task),
            model=model,
            log_dir=str(tmp_path),
            display="none",
            max_samples=1,
            max_connections=1,
        )
        assert log.status == "success", log.error
        return log

    return run


def test_the_scorer_leaves_unknown_scores_out_of_the_mean(evaluate):
    """Inspect calls them unscored; three of nine are, and the mean is that of the six others."""
    from redraft.adapters.inspect_ai import redraft_scorer

    log = evaluate(ANSWERS.values(), scorer=redraft_scorer(six_words, **QUICK))
    [results] = log.results.scores
    assert (results.scored_samples, results.unscored_samples) == (6, 3)
    assert results.metrics["mean"].value == 0.5
    scores = [sample.scores["redraft_scorer"] for sample in log.samples]
    assert [score.reason for score in scores] == [None, None, "grader_failed"] * 3
    assert scores[1].explanation == "six_words (0.00): 2 words; write six words"


def test_graders_read_the_reference_and_the_messages(evaluate):
    from inspect_ai.dataset import Sample
    from inspect_ai.solver import generate, system_message

    from redraft.adapters.inspect_ai import redraft_scorer

    seen = []

    def exact(text, task):
        seen.append(task)
        return text == task.reference

    sample = Sample(input="What is 6 x 7?", target="42")
    log = evaluate(
        ["42"],
        [sample],
        solver=[system_message("Be brief."), generate()],
        scorer=redraft_scorer(exact),
    )
    assert log.samples[0].scores["redraft_scorer"].value == 1
    roles = [(message["role"], message["content"]) for message in seen[0].messages]
    assert roles == [("system", "Be brief."), ("user", "What is 6 x 7?")]


def test_graders_read_tool_calls(evaluate):
    """In OpenAI's form, as graders of trajectories do."""
    from inspect_ai.dataset import Sample
    from inspect_ai.model import ModelOutput
    from inspect_ai.solver import generate, use_tools
    from inspect_ai.tool import tool

    from redraft.adapters.inspect_ai import redraft_scorer

    @tool
    def weather():
        async def execute(city: str):
            """Return the temperature in a city.

            Args:
                city: its name.
            """
            return "20"

        return execute

    seen = []

    def called_weather(text, task):
        seen.extend(task.messages)
        return True

    call = ModelOutput.for_tool_call("mockllm", "weather", {"city": "Oslo"})
    log = evaluate(
        [call, "20 degrees"],
        [Sample(input="Weather?")],
        solver=[use_tools(weather()), generate()],
        scorer=redraft_scorer(called_weather),
    )
    assert log.samples[0].scores["redraft_scorer"].value == 1
    _, asks, result = seen
    [made] = asks["tool_calls"]
    assert made["function"] == {"name": "weather", "arguments": '{"city": "Oslo"}'}
    assert (result["role"], result["tool_call_id"], result["content"]) == ("tool", made["id"], "20")


def test_the_solver_refines_with_the_evaluated_model(evaluate):
    """Its first answer is too short, its second one good; the score is that of the best."""
    from inspect_ai.dataset import Sample

    from redraft.adapters.inspect_ai import redraft_scorer, redraft_solver

    log = evaluate(
        [SHORT, GOOD],
        [Sample(input="Say hello.")],
        solver=redraft_solver(six_words, max_iterations=1),
        scorer=redraft_scorer(six_words),
    )
    [sample] = log.samples
    assert sample.output.completion == GOOD
    assert sample.metadata["redraft_score"] == 1.0
    assert sample.metadata["redraft_stop"] == "target"
    assert sample.scores["redraft_scorer"].value == 1.0


def test_the_solver_says_where_nothing_graded(evaluate):
    from inspect_ai.dataset import Sample

    from redraft.adapters.inspect_ai import redraft_solver

    verdict = json.dumps({"not": "a verdict"})
    log = evaluate(
        [FAILS, verdict, verdict, verdict],
        [Sample(input="Say hello.")],
        solver=redraft_solver(redraft.Judge(), max_iterations=0, **QUICK),
    )
    [sample] = log.samples
    assert sample.output.completion == FAILS
    assert sample.metadata["redraft_score"] is None
