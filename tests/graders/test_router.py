"""A router lets the grader grade that suits the task."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import redraft
from redraft import Budget, Judge, ScriptedModel, Task
from redraft.errors import ConfigError
from redraft.graders import Jury, Rubric, router
from redraft.graders.fingerprint import grader_fingerprint

VERDICT = '{"reason": "It is so.", "criteria": {"a": {"evidence": "", "score": 5, "change": ""}}, "done": false}'


def judge(name="prose"):
    return Judge(Rubric.from_data({"criteria": {"a": "It is good."}}, "r", "r"), name)


def by_domain(**more):
    return router({"math": "numeric", "prose": judge()}, by="metadata.domain", **more)


def task(domain=None, **fields):
    return Task("q", metadata={"domain": domain} if domain is not None else {}, **fields)


def refine(task, grader, answers=("4",), replies=(VERDICT,), **more):
    model, judge_model = (
        ScriptedModel(list(answers), name="m"),
        ScriptedModel(list(replies), name="j"),
    )
    return redraft.refine_sync(
        task, model, grader, judge=judge_model, max_iterations=0, **more
    ), judge_model


def test_the_task_chooses_the_grader():
    """Only the chosen grader grades; its feedback names it as the only vote."""
    result, model = refine(task("math", reference="4"), by_domain())
    assert (result.score, model.calls) == (1, 0)
    feedback = result.trace.feedback[0][0]
    assert (feedback.grader, feedback.votes[0].grader) == ("router", "numeric")
    result, model = refine(task("prose"), by_domain())
    assert (result.judge_score, model.calls) == (1, 1)
    assert result.trace.feedback[0][0].by == "j"


def test_needs_are_those_of_the_chosen_grader():
    """A task needs only what its own grader reads; the error comes before any call."""
    refine(task("prose"), by_domain())  # needs no reference
    model = ScriptedModel(["4"])
    with pytest.raises(ConfigError, match="'numeric' needs a task with reference"):
        redraft.refine_sync(task("math"), model, by_domain(), judge=ScriptedModel([]))
    assert model.calls == 0


@pytest.mark.parametrize(
    ("by", "domain", "says"),
    [
        (
            "metadata.domain",
            None,
            "the task has no metadata.domain; there are 'math', 'prose', and no default",
        ),
        ("metadata.domain", "code", "there is no grader for 'code'"),
        ("metadata.domain", ["math"], r"there is no grader for \['math'\]"),
        ("metadata.a.b", "math", "the task has no metadata.a.b"),
        (lambda task: task.metadata["kind"], "math", "by: .*KeyError"),
        (lambda task: None, "math", "there is no grader for None"),
    ],
)
def test_a_task_without_a_grader_is_an_error_before_any_call(by, domain, says):
    """The error names the value and the keys; with a default, there is none, unless the function
    itself fails.
    """
    graders = {"math": "numeric", "prose": "words:1"}
    model = ScriptedModel(["4"])
    with pytest.raises(ConfigError, match=says):
        redraft.refine_sync(task(domain), model, router(graders, by=by))
    assert model.calls == 0
    if "KeyError" not in says:
        result = redraft.refine_sync(task(domain), model, router(graders, by=by, default="words:1"))
        assert result.score == 1


@given(st.sampled_from([(3, "3"), (True, "true"), ("3", "3"), (2.5, "2.5"), (False, "false")]))
def test_numbers_and_bools_are_keys_as_in_json(pair):
    """Metadata from data files hold numbers, which match keys by their JSON text."""
    value, key = pair
    grader = router({key: "words:1", "other": "words:2"}, by="metadata.level.x")
    chosen = grader.parts_for(Task("q", metadata={"level": {"x": value}}))
    assert [part.name for part in chosen] == ["words:1"]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: router({}, by="metadata.x"), "graders must be graders by key"),
        (lambda: router({3: "words:1"}, by="metadata.x"), "graders must be graders by key"),
        (lambda: router(lambda task: "words:1", by="metadata.x"), "graders must be graders by key"),
        (lambda: router({"a": "wrds:1"}, by="metadata.x"), "wrds"),
        (
            lambda: router({"a": "ranker"}, by="metadata.x"),
            "router: a: 'ranker' only ranks answers",
        ),
        (
            lambda: router({"a": "words:1"}, by="domain"),
            'by must be a path such as "metadata.domain", or a function of a task',
        ),
        (lambda: router({"a": "words:1"}, by="metadata."), "by must be a path"),
        (lambda: router({"a": "words:1"}, by=3), "by must be a path"),
        (lambda: router({"a": "words:1"}, by="metadata.x", default="wrds:1"), "wrds"),
    ],
)
def test_invalid_arguments_are_rejected(make, says):
    """The error comes when the router is made."""
    with pytest.raises(ConfigError, match=says):
        make()


@pytest.mark.parametrize(
    ("graders", "model_free", "may_call"),
    [
        ({"a": "words:1", "b": "numeric"}, True, False),
        ({"a": "words:1", "b": "judge"}, False, True),
        ({"a": "clarity", "b": "judge"}, False, False),
        ({"a": "clarity", "b": lambda text, model: 1.0}, False, True),
    ],
)
def test_whether_a_router_calls_a_model(graders, model_free, may_call):
    """It is model-free if all its graders are; if some are, only the usage shows."""
    grader = router(graders, by="metadata.x")
    assert (grader.model_free, grader.may_call_model) == (model_free, may_call)


def test_a_budget_reserves_the_calls_of_the_chosen_grader():
    """One call of one judge fits the budget, whatever the other graders would need."""
    grader = router(
        {"a": judge("x"), "b": Jury([judge("y"), judge("z"), judge("w")])}, by="metadata.domain"
    )
    result, model = refine(task("a"), grader, budget=Budget(calls=2))
    assert (result.judge_score, model.calls) == (1, 1)
    with pytest.raises(redraft.errors.BudgetExhaustedError):
        refine(task("b"), grader, replies=[VERDICT] * 3, budget=Budget(calls=2))


def test_fingerprint_covers_graders_keys_and_the_function():
    """Whatever changes which grader grades, or how, changes the fingerprint; the name does not."""

    def first(task):
        return "a"

    def second(task):
        return "b"

    variants = [
        router({"a": "words:1", "b": "words:2"}, by="metadata.x"),
        router({"a": "words:2", "b": "words:1"}, by="metadata.x"),
        router({"a": "words:1", "c": "words:2"}, by="metadata.x"),
        router({"a": "words:1", "b": "words:2"}, by="metadata.y"),
        router({"a": "words:1", "b": "words:2"}, by="metadata.x", default="words:3"),
        router({"a": "words:1", "b": "words:2"}, by=first),
        router({"a": "words:1", "b": "words:2"}, by=second),
    ]
    prints = [grader_fingerprint(grader, str) for grader in variants]
    assert len(set(prints)) == len(prints)
    assert (
        grader_fingerprint(
            router({"a": "words:1", "b": "words:2"}, by="metadata.x", name="other"), str
        )
        == prints[0]
    )


async def test_batch_rows_choose_their_graders(tmp_path):
    """A column that has no role is metadata; a row without a grader fails alone, and its resume
    makes no call again.
    """
    rows = [
        {"prompt": "2 + 2?", "domain": "math", "reference": "4"},
        {"prompt": "Say hi.", "domain": "prose"},
        {"prompt": "Sing.", "domain": "song"},
    ]
    out = tmp_path / "out.jsonl"
    grader = router({"math": "numeric", "prose": "words:1"}, by="metadata.domain")
    report = await redraft.batch(rows, out, ScriptedModel(["4", "4"]), grader, max_iterations=0)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["best_score"] for line in lines] == [1, 1, None]
    assert "no grader for 'song'" in lines[2]["error"]
    assert report.rows.in_output == 3
