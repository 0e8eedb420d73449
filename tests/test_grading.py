"""Graders in hand: `grade`, `grade_sync` and `grade_many` on samples of every form, and the
report.
"""

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

import pytest
import typing_extensions
from hypothesis import given
from hypothesis import strategies as st

import redraft
from each_row import each_row
from redraft import (
    Budget,
    CriterionScore,
    Feedback,
    Judge,
    ScriptedModel,
    Task,
    grade,
    grade_sync,
    must,
    with_weight,
)
from redraft.errors import (
    BudgetExhaustedError,
    ConfigError,
    GradingError,
    ModelTimeoutError,
)
from redraft.graders import Minimum
from redraft.grading import GradeReport, GradeSettings, grade_many
from redraft.settings import OptionFields, names_of

NAMES = ("instructions", "correctness", "completeness", "clarity")
VERDICT = json.dumps(
    {
        "reason": "It is short.",
        "criteria": {n: {"evidence": "", "change": "Say more.", "score": 3} for n in NAMES},
        "done": False,
    }
)


def fails(text):
    raise ValueError("broken grader")


def half(text):
    return 0.5, "half of it"


def unknown(text):
    return None


SAMPLES = [
    Task("Name a river.", "The Rhine."),
    ("Name a river.", "The Rhine."),
    ([{"role": "user", "content": "Name a river."}], "The Rhine."),
    {"prompt": "Name a river.", "response": "The Rhine."},
    {"query": "Name a river.", "answer": "The Rhine."},
    {"question": "Name a river.", "completion": "The Rhine."},
    {"input": "Name a river.", "output": "The Rhine."},
    {
        "messages": [
            {"role": "user", "content": "Name a river."},
            {"role": "assistant", "content": "The Rhine."},
        ]
    },
]


@pytest.mark.parametrize("sample", SAMPLES)
async def test_every_form_of_a_sample_is_the_same_task(sample):
    """A grader sees the prompt and the response."""
    report = await grade(
        sample, lambda text, task: (text, task.prompt) == ("The Rhine.", "Name a river.")
    )
    assert report.score == 1


async def test_other_keys_of_a_mapping_are_fields_and_metadata_of_the_task():
    """References and contexts have their usual names."""
    sample = {"query": "q", "response": "a", "reference": "b", "context": "c", "city": "Rome"}
    report = await grade(sample, unknown)
    task = report.trace.task
    assert (task.reference, task.context, task.metadata) == ("b", "c", {"city": "Rome"})


@each_row(
    ("sample", "words"),
    [
        ("text", "sample must be a Task with a response"),
        (("only one",), "sample must be a Task with a response"),
        (["Name a river.", "The Rhine."], "sample must be a Task with a response"),
        (("Name a river.", None), "sample must be a Task with a response"),
        (Task("Name a river."), "sample: there is no response to grade"),
        ({"prompt": "Name a river."}, "sample: there is no response to grade"),
        (
            Task("Name a river.", responses=["The Rhine.", "The Po."]),
            "sample: there are 2 responses, and one is graded; give a",
        ),
        (
            {"prompt": "Name a river.", "responses": ["The Rhine.", "The Po."]},
            "sample: there are 2 responses, and one is graded",
        ),
        (
            {"input": "Name a river.", "output": ["The Rhine.", "The Po."]},
            "sample: there are 2 responses, and one is graded",
        ),
        ({"prompt": "q", "response": {"n": 1}}, "to grade: 'response' must be text, got {'n': 1}"),
        ({"prompt": "q", "response": [1, 2]}, r"to grade: 'response' must be text, got \[1, 2\]"),
        ({"prompt": "q", "output": 7}, "to grade: 'output' must be text, got 7"),
        (
            {"prompt": "q", "responses": [{"n": 1}, {"n": 2}]},
            "to grade: 'responses' must be text, got",
        ),
        (
            {"prompt": 5, "response": "x"},
            "sample: 'prompt' holds neither texts nor messages, but 5; a mapping has",
        ),
        (
            {"messages": [{"a": 1}], "response": "x"},
            r"sample: 'messages' holds neither texts nor messages, but \[{'a': 1}\]",
        ),
        (
            {"city": "Rome"},
            r"sample: no key is known to be the prompt; a mapping has one key for the prompt \(prompt, .* got 'city'",
        ),
        (
            {"prompt": "a", "query": "b", "response": "c"},
            "sample: several keys could be the prompt: 'prompt', 'query'; a mapping",
        ),
        ({}, "sample: .* a mapping has one key .* got no key"),
        ({"prompt": "q", "response": "a", "requirements": ["words:0-x"]}, "sample: 'requirements'"),
        (("  ", "The Rhine."), "the prompt is empty"),
    ],
)
async def test_a_sample_that_is_none_is_an_error_before_any_call(sample, words):
    """The message names the argument."""
    with pytest.raises(ConfigError, match=words):
        await grade(sample, half)
    with pytest.raises(ConfigError, match=r"samples\[1\]"):
        await grade_many([SAMPLES[0], sample], half)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"graders": "ranker", "judge": ScriptedModel([])}, "'ranker' ranks several responses"),
        ({"graders": "judge", "judge": False}, "no judge is wanted, and grader 'judge' asks one"),
        ({"judge": False}, "nothing grades this task"),
        ({"graders": "exact"}, "needs a task with reference"),
        (
            {"graders": half, "patience": 1},
            "unknown argument 'patience'; there are answer_context, budget",
        ),
        ({"graders": half, "retries": -1}, "retries"),
        ({"graders": []}, "nothing grades this task"),
    ],
)
async def test_a_wrong_argument_is_an_error_before_any_call(arguments, words):
    """No grader runs."""
    with pytest.raises(ConfigError, match=words):
        await grade(SAMPLES[0], **arguments)


async def test_a_report_has_the_feedback_of_each_grader_in_order():
    """Names are unique, requirements of the task come first, and the score is the weighted mean
    without musts.
    """
    task = Task("Name a river.", "The Rhine.", requirements=["words:1-5"])
    feedback = Feedback(
        0.5, "so so", ["Say more."], False, [CriterionScore("tone", 0.5)], metadata={"n": 1}
    )
    report = await grade(
        task, [half, half, with_weight(lambda _: feedback, 2), must("characters:-2")]
    )
    assert [f.grader for f in report.feedback] == [
        "words:1-5",
        "half",
        "half#2",
        "function",
        "characters:-2",
    ]
    given = report["function"]
    assert (given.score, given.reason, given.actions, given.done) == (
        0.5,
        "so so",
        ("Say more.",),
        False,
    )
    assert (given.criteria, given.metadata, given.weight) == (
        (CriterionScore("tone", 0.5),),
        {"n": 1},
        2,
    )
    assert (report.score, report.broken_musts, report.failures) == (0.5, ["characters:-2"], {})
    with pytest.raises(KeyError, match="did you mean 'half"):
        report["halff"]


async def test_requirements_alone_need_no_model(monkeypatch):
    """No model is looked for, neither for them nor for functions."""
    monkeypatch.setattr("redraft.grading.resolve_model", no_search)
    assert (await grade(Task("Name a river.", "The Rhine.", requirements=["words:1-5"]))).score == 1
    assert (
        await grade(SAMPLES[0], [half, "words:1-5", redraft.graders.Jury([half], name="own")])
    ).score == 2 / 3


async def no_search(model):
    assert model is False


async def test_a_judge_is_asked_once_and_its_calls_count():
    """Its reasons, actions and criteria are in the report, and so are its usage and its name."""
    judge = ScriptedModel([VERDICT], name="tiny")
    report = await grade(("Name a river.", "It"), judge=judge, prices={"tiny": (1, 1)})
    assert (
        report.score == 0.6
        and report["judge"].by == "tiny"
        and report["judge"].actions == ("Say more.",)
    )
    assert len(report["judge"].criteria) == 4
    assert report.usage.calls == report["judge"].usage.calls == 1


async def test_repeats_are_one_feedback_with_the_mean():
    """The repeats stay available."""
    scores = iter([0.2, 0.6])
    report = await grade(
        SAMPLES[0], with_weight(lambda _: Feedback(s := next(scores), f"{s}"), 1, repeats=2)
    )
    assert report["function"].score == pytest.approx(0.4)
    # two threads, either of which may begin
    assert sorted(report["function"].reason.split("; ")) == ["0.2", "0.6"]
    assert len(report["function"].repeats) == 2


async def test_a_grader_that_fails_hides_no_other():
    """Its failure is in the report, the score is unknown, and never 0."""
    report = await grade(SAMPLES[0], [fails, half])
    assert report.score is None and report["half"].score == 0.5 and report["fails"].score is None
    assert "broken grader (in fails, test_grading.py" in report.failures["fails"].message
    assert "failed: fails" in report.summary()


async def test_an_unknown_score_is_no_failure():
    """The score of the report is None."""
    report = await grade(SAMPLES[0], unknown)
    assert (report.score, report.failures) == (None, {})


async def test_without_any_feedback_there_is_an_error():
    """It is of the class that says why, with the trace."""
    with pytest.raises(GradingError, match="broken grader") as caught:
        await grade(SAMPLES[0], fails)
    assert caught.value.result.trace.failures
    with pytest.raises(BudgetExhaustedError):
        await grade(SAMPLES[0], judge=ScriptedModel([VERDICT]), budget=Budget(calls=0))


async def test_a_failed_call_is_retried_and_its_usage_counts():
    """A report that has a failure counts what the failed attempts used."""
    judge = ScriptedModel([ModelTimeoutError("slow"), VERDICT])
    assert (await grade(SAMPLES[0], judge=judge, retries=1)).usage.calls == 2
    report = await grade(SAMPLES[0], [half, Judge()], ScriptedModel(["nonsense"] * 9))
    assert report["judge"].failure and report["judge"].usage.calls == report.usage.calls > 0


async def test_many_samples_keep_their_order_and_share_a_budget():
    """A sample that fails does not stop the others; its report has the error."""

    async def by_length(text):
        await asyncio.sleep(0.01 / len(text))
        return fails(text) if text == "bad" else len(text) / 100

    texts = ["a" * n for n in range(1, 20)] + ["bad"]
    reports = await grade_many([("q", text) for text in texts], by_length)
    assert [report.score for report in reports] == [*(n / 100 for n in range(1, 20)), None]
    assert isinstance(reports[-1].error, GradingError) and reports[0].error is None
    reports = await grade_many(
        [("q", "a"), ("q", "b"), ("q", "c")],
        judge=ScriptedModel([VERDICT] * 3),
        budget=Budget(calls=2),
    )
    assert sorted(r.score is None for r in reports) == [False, False, True]
    assert await grade_many([], half) == []


@pytest.mark.parametrize("samples", ["text", {"prompt": "q", "response": "a"}, Task("q", "a"), 3])
async def test_many_samples_are_a_list(samples):
    """A single sample is an error, not a list of its parts."""
    with pytest.raises(ConfigError, match="samples must be a list"):
        await grade_many(samples, half)


FEEDBACK = st.builds(
    Feedback,
    st.none() | st.floats(0, 1),
    st.text(max_size=20),
    st.lists(st.text(max_size=9), max_size=2),
    st.none() | st.booleans(),
    st.lists(st.builds(CriterionScore, st.text(max_size=5), st.floats(0, 1)), max_size=2),
    metadata=st.dictionaries(
        st.text(max_size=5), st.none() | st.integers(-9, 9) | st.text(max_size=5), max_size=2
    ),
)


@given(st.lists(FEEDBACK | st.just(None), min_size=1, max_size=4))
def test_a_report_is_plain_data_and_invents_no_score(feedback):
    """Whatever graders return or raise, the report is JSON, and its score is their mean or
    unknown.
    """

    def grader(given):
        def returns(text):
            return given if given is not None else fails(text)

        return returns

    try:
        report = grade_sync(SAMPLES[0], [grader(each) for each in feedback])
    except GradingError:
        assert all(each is None for each in feedback)
        return
    data = json.loads(json.dumps(report.to_dict()))
    assert [f["score"] for f in data["feedback"]] == [each and each.score for each in feedback]
    assert [bool(f["failure"]) for f in data["feedback"]] == [each is None for each in feedback]
    scored = [
        each.score
        for each in feedback
        if each is not None and not (each.is_critique or each.is_empty)
    ]
    if None in feedback or None in scored or not scored:
        assert report.score is None
    else:
        assert report.score == pytest.approx(sum(scored) / len(scored))


def test_a_report_prints_without_control_sequences():
    """Reasons are text of models."""
    report = grade_sync(SAMPLES[0], lambda _: (0.5, "\x1b[31m<b>red</b>"))
    assert repr(report) == "GradeReport(score=0.50, {function: 0.50})"
    assert "\x1b" not in str(report.__rich__()) and "<b>" not in report._repr_html_()
    assert re.search(r"function: 0\.50 .*red", str(report.__rich__()))


def test_the_settings_of_grade_are_those_that_grading_has():
    """Each is a setting of `refine`, and the typed dictionary lists them."""
    assert (
        set(names_of(OptionFields, used_by="grade"))
        == set(GradeSettings.__annotations__)
        <= {f.name for f in fields(OptionFields)}
    )
    assert isinstance(
        grade_sync(SAMPLES[0], half, on_record=lambda record: None, deadline=60, cache={}),
        GradeReport,
    )


@dataclass
class Offer:
    price: int


class OfferDict(typing_extensions.TypedDict):
    price: int


def reads_offer(answer: Offer) -> float:
    return float(answer.price < 100)


def reads_dict(answer: dict) -> float:
    return float(answer["price"] < 100)


def reads_typed_dict(answer: OfferDict) -> float:
    return float(answer["price"] < 100)


def reads_list(answer: list[Offer]) -> float:
    return float(answer[0].price < 100)


FORMS = [
    (reads_offer, Offer, '{"price": 90}'),
    (reads_typed_dict, OfferDict, '{"price": 90}'),
    (reads_list, list[Offer], '[{"price": 90}]'),
    (reads_dict, {"type": "object", "required": ["price"]}, '{"price": 90}'),
]


@pytest.mark.parametrize(("grader", "form", "text"), FORMS)
def test_a_form_of_the_answer_gives_functions_the_object(grader, form, text):
    """The form is a condition beside the graders; for an invalid answer, the function is not
    called.
    """
    report = redraft.grade_sync(("q", text), grader, answer=form)
    assert (report.score, report.broken_musts, [f.score for f in report.feedback]) == (
        1.0,
        [],
        [1.0, 1.0],
    )
    report = redraft.grade_sync(("q", "nothing"), grader, answer=form)
    assert (report.score, report.broken_musts) == (0.0, ["answer"])


@pytest.mark.parametrize(("grader", "form", "text"), FORMS)
@pytest.mark.parametrize(
    "wrap", [lambda grader: grader, must, lambda grader: Minimum(["words:1-", grader])]
)
def test_a_function_of_objects_without_their_form_is_an_error_before_any_call(
    grader, form, text, wrap
):
    """It would receive a text that it cannot read."""
    writer = redraft.ScriptedModel([text])
    for other in (None, "code:python", int):
        with pytest.raises(ConfigError, match=f"'{grader.__name__}' takes .*answer="):
            redraft.refine_sync("q", writer, wrap(grader), answer=other)
        with pytest.raises(ConfigError, match=f"'{grader.__name__}' takes .*answer="):
            redraft.grade_sync(("q", text), wrap(grader), answer=other)
    assert writer.calls == 0


class Word(str):
    __slots__ = ()


@pytest.mark.parametrize(
    "annotation",
    [str, Any, object, str | None, Word, Sequence, Annotated[str, "text"], Literal["a"], "Unknown"],
)
def test_an_annotation_that_may_be_a_text_is_accepted(annotation):
    """Only a class that no text is an instance of says that a function takes objects."""

    def grader(answer):
        return isinstance(answer, str)

    grader.__annotations__["answer"] = annotation
    assert redraft.grade_sync(("q", "a"), grader).score == 1


def test_several_responses_in_one_sample_are_an_error_that_names_grade_many():
    """Nothing is chosen silently."""
    for sample in (Task("q", responses=["a", "b"]), {"prompt": "q", "responses": ["a", "b"]}):
        with pytest.raises(ConfigError, match="sample: there are 2 responses.*grade_many"):
            redraft.grade_sync(sample, "words:1")


def test_a_grade_as_data_has_the_names_and_values_of_a_result():
    """What both have is called the same, and means the same."""
    answer, graders = "One, two", [must("no_commas"), lambda text: 0.25]
    grade = json.loads(json.dumps(grade_sync(("q", answer), graders).to_dict()))
    task = Task("q", response=answer)
    given = redraft.refine_sync(task, False, graders, max_iterations=0, editor=False)
    result = json.loads(json.dumps(given.to_dict()))
    assert grade.keys() - {"feedback"} <= result.keys()
    same = ("schema", "score", "broken", "calls", "tokens", "cost", "error", "error_kind")
    assert {name: grade[name] for name in same} == {name: result[name] for name in same}
    assert (grade["broken"], grade["schema"]) == (["no_commas"], 2)


async def test_the_interval_is_that_of_a_judge_s_score():
    """It holds the score, and more scores make it narrower; a score that only computes has none."""
    widths = []
    for repeats in (1, 3, 9):
        judge = ScriptedModel([VERDICT] * repeats)
        report = await grade(SAMPLES[0], with_weight(Judge(), 1, repeats=repeats), judge)
        low, high = report.score_interval
        assert 0 <= low < report.score < high <= 1
        widths.append(high - low)
    assert widths == sorted(widths, reverse=True) and len({*widths}) == 3
    assert (await grade(SAMPLES[0], "words:1-9")).score_interval is None
    assert (await grade(SAMPLES[0], ["words:1-9", fails])).score_interval is None
