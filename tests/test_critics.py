"""Critics are graders that never score: they steer and stop, and the mean does not miss them."""

import itertools
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import redraft
from each_row import each_row
from redraft import Feedback, Judge, ScriptedModel, must, refine
from redraft.errors import GradingError
from redraft.loop.records import Candidate, Comparison
from redraft.loop.steps import Grade, Refine
from redraft.loop.task import Task
from redraft.loop.trace import PanelGrader, Trace
from redraft.plans.adaptive import Adaptive
from redraft.plans.quality.lineage import llm_graders

TEXTS = ["a", "b", "c", "d", "e"]


def critic_satisfied_with(*liked):
    """A critic that calls some texts done and wants changes in the others."""

    def critic(text):
        return (
            Feedback(done=True) if text in liked else Feedback(actions=("be bolder",), done=False)
        )

    return critic


def advising_critic(text):
    return Feedback(actions=("be bolder",))


async def asking(text, model):
    await model("What do you think?")
    return Feedback(done=False, actions=("be bolder",))


def scoring_grader(**scores):
    def scorer(text):
        return scores.get(text, 0.6)

    return scorer


def critic_silent_about(*liked):
    """A critic without feedback for some texts that wants changes in the others."""

    def critic(text):
        return Feedback(actions=[] if text in liked else ["be bolder"])

    return critic


@pytest.mark.parametrize(
    ("graders", "value", "score", "stop", "converged"),
    [
        ([critic_satisfied_with("c")], "c", None, "done", True),
        ([critic_satisfied_with()], "d", None, "max_iterations", False),
        ([advising_critic], "d", None, "max_iterations", False),
        ([critic_satisfied_with("a"), advising_critic], "a", None, "done", True),
        ([critic_satisfied_with("c"), critic_satisfied_with("a", "c")], "c", None, "done", True),
        ([critic_satisfied_with(), scoring_grader()], "a", 0.6, "patience", True),
        ([critic_satisfied_with(), scoring_grader(b=0.95)], "b", 0.95, "target", True),
        ([critic_satisfied_with("b"), scoring_grader()], "b", 0.6, "done", True),
        ([critic_satisfied_with("b"), scoring_grader(a=0.7)], "a", 0.7, "patience", True),
        ([critic_silent_about("b"), scoring_grader(b=0.7)], "b", 0.7, "patience", True),
        ([critic_silent_about("b", "c"), scoring_grader(c=0.95)], "c", 0.95, "target", True),
        ([critic_silent_about("b", "c", "d")], "d", None, "max_iterations", False),
        ([critic_satisfied_with("c"), must("words:1")], "c", None, "done", True),
        ([critic_satisfied_with("a"), must("words:2")], "c", None, "patience", False),
        (
            [critic_satisfied_with("a"), must("words:2"), scoring_grader()],
            "a",
            0.6,
            "patience",
            False,
        ),
    ],
)
async def test_critics_steer_and_stop(graders, value, score, stop, converged):
    """Alone, the latest text that they call done is best, otherwise the latest; beside scorers they
    do not change the mean.
    """
    result = await refine("q", ScriptedModel(TEXTS), graders)
    assert (result.value, result.judge_score, str(result.stop), result.converged) == (
        value,
        score,
        stop,
        converged,
    )


async def test_the_prompt_has_the_wishes_of_critics_that_are_not_done():
    """Their wishes are listed like any other."""
    model = ScriptedModel(TEXTS)
    await refine("q", model, [critic_satisfied_with("b")])
    assert "be bolder" in model.messages[1][-1]["content"]


async def test_of_equal_scores_the_text_called_done_is_best():
    """It precedes the earliest; a higher score or a kept must precedes it."""
    drafts = {"drafts": 3, "max_iterations": 0}
    same = await refine(
        "q", ScriptedModel(TEXTS), [critic_satisfied_with("b"), scoring_grader()], **drafts
    )
    assert same.value == "b"
    higher = await refine(
        "q", ScriptedModel(TEXTS), [critic_satisfied_with("b"), scoring_grader(c=0.7)], **drafts
    )
    assert higher.value == "c"
    bits = [
        critic_satisfied_with("b"),
        scoring_grader(a=0.7, b=0.6),
        scoring_grader(a=0.6, b=0.7),
        scoring_grader(a=0.1, b=0.1),
    ]
    assert (await refine("q", ScriptedModel(TEXTS), bits, **drafts | {"drafts": 2})).value == "b"
    gated = [critic_satisfied_with("b"), scoring_grader(), must(lambda text: text == "a")]
    assert (await refine("q", ScriptedModel(TEXTS), gated, **drafts)).value == "a"


async def test_a_copied_text_under_critics_counts_as_stale():
    """Patience ends work without change."""
    result = await refine(
        "q", ScriptedModel(["a", "a", "a", "b"]), [critic_satisfied_with()], max_iterations=9
    )
    assert (result.value, str(result.stop), result.iterations) == ("a", "patience", 2)


async def test_a_critic_that_asks_a_model_is_no_source_of_noise():
    """Beside a noisy scorer the plan repeats that one alone; the critic is called once for each
    text.
    """

    async def noisy(text, model):
        return 0.3 + 0.1 * int(await model(f"Rate {text}"))

    counter = itertools.count()

    async def judge(messages):
        return str(next(counter) % 5)

    result = await refine(
        "q",
        ScriptedModel([f"text {i}" for i in range(9)]),
        [asking, noisy],
        judge,
        max_iterations=5,
        min_expected_gain=0,
    )
    assert [seat.name for seat, _ in llm_graders(result.trace.scorers)] == ["noisy"]
    views = [f for views in result.trace.feedback.values() for f in views if f.grader == "asking"]
    assert len(views) == len(result.trace.candidates)
    assert result.score_interval is not None
    assert str((await refine("q", ScriptedModel(TEXTS), asking, judge)).stop) == "max_iterations"


async def test_a_grader_that_sometimes_scores_is_no_critic():
    """A text without its score has no mean and loses to graded ones."""

    def moody(text):
        return Feedback(actions=("hm",)) if text in "ac" else 0.5

    result = await refine("q", ScriptedModel(TEXTS), [moody, scoring_grader()], max_iterations=2)
    assert (result.value, result.score_history) == ("b", [None, 0.55, None])
    with pytest.raises(
        GradingError, match="no answer was graded by all graders: function#2: its score is None"
    ):
        await refine(
            "q",
            ScriptedModel(["a", "c"]),
            [lambda text: 0.5, moody, lambda text: None],
            max_iterations=1,
        )


EMPTY, CHANGE = Feedback(), Feedback(actions=("be bolder",))


def in_turn(*said):
    """A grader that says these things, the last one for ever."""
    left = list(said)
    return lambda text: left.pop(0) if len(left) > 1 else left[0]


@each_row("order", [1, -1])
@each_row(
    ("critic", "silent"),
    [
        ([EMPTY], True),
        ([EMPTY, CHANGE, EMPTY], False),
        ([CHANGE, EMPTY], False),
        ([Feedback(actions=[]), Feedback(done=False)], False),
    ],
)
@each_row("settings", [{}, {"noise_aware": False}, {"noise_aware": True}, {"drafts": 2}])
async def test_empty_feedback_of_one_grader_does_not_end_the_work(critic, silent, order, settings):
    """The other's scores count, whoever comes first; the summary names a grader that said nothing
    at all.
    """
    graders = [scoring_grader(a=0.5, b=0.7), in_turn(*critic)][::order]
    result = await refine("q", ScriptedModel(TEXTS), graders, max_iterations=1, **settings)
    assert (result.value, result.judge_score, str(result.stop) != "failed") == ("b", 0.7, True)
    assert ("said nothing: " in result.summary()) is silent
    assert None not in result.score_history


@pytest.mark.parametrize(
    "graders",
    [
        [lambda text: EMPTY],
        [lambda text: EMPTY, lambda text: EMPTY],
        [lambda text: EMPTY, must(lambda text: 1.0)],
        [lambda text: 0.5, must(lambda text: EMPTY)],
        [lambda text: 0.5, lambda text: None],
        [lambda text: 0.5, lambda text: Feedback(reason="I cannot tell.")],
    ],
)
async def test_a_missing_score_is_not_replaced(graders):
    """If all say nothing, if a must does, or if a score is unknown, the weights are not divided
    among the others.
    """
    with pytest.raises(GradingError, match="its score is None"):
        await refine("q", ScriptedModel(TEXTS), graders, max_iterations=1)


async def test_empty_feedback_and_a_critique_are_graded_by_the_critique():
    """Without scores, the critic decides."""
    result = await refine(
        "q",
        ScriptedModel(TEXTS),
        [lambda text: EMPTY, critic_satisfied_with("b")],
        max_iterations=3,
    )
    assert (result.value, str(result.stop), result.score) == ("b", "done", None)


@pytest.mark.parametrize(
    "grader",
    [must(lambda text: Feedback(actions=["x"])), must(lambda text: None), lambda text: None],
)
async def test_the_grader_that_left_a_text_without_a_score_is_named(grader):
    """A must is no critic, even if it says what to change."""
    with pytest.raises(GradingError, match="function: its score is None"):
        await refine("q", ScriptedModel(TEXTS), grader)


async def test_a_batch_finishes_rows_with_critics_alone(tmp_path):
    """Rows are done, without a score."""
    rows = [{"prompt": "p"}, {"prompt": "q"}]
    report = await redraft.batch(
        rows, tmp_path / "out.jsonl", lambda m: str(len(m)), [critic_satisfied_with("3")]
    )
    out = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(row["best"], row["best_score"], row["stop"], row["error"]) for row in out] == [
        ("3", None, "done", None)
    ] * 2
    assert (report.rows.done, report.rows.failed, report.scores.uplift) == (2, 0, None)


@pytest.mark.parametrize(
    "settings", [{}, {"noise_aware": False}, {"drafts": 2}, {"noise_aware": False, "drafts": 2}]
)
async def test_a_sometimes_unreadable_judge_does_not_end_the_work(settings):
    """The first draft may be unreadable as well; with no readable verdict at all the latest text
    has no score.
    """

    def reads(*texts):
        def judge(messages):
            seen = re.search(r"<answer-\w+>\n(.*?)\n</answer", messages[1]["content"])[1]
            criteria = {"truth": {"evidence": "", "change": "more", "score": 3}}
            return (
                json.dumps({"reason": "It is so.", "criteria": criteria, "done": False})
                if seen in texts
                else "I like it."
            )

        return judge

    grader = Judge({"truth": "It is true."})
    for unread in (["a"], ["b"], ["a", "b"] if "drafts" in settings else ["c"]):
        judge = reads(*(text for text in TEXTS if text not in unread))
        result = await refine("q", ScriptedModel(TEXTS), grader, judge, **settings)
        assert str(result.stop) != "failed"
        assert result.value not in unread
    result = await refine("q", ScriptedModel(TEXTS), grader, reads(), **settings)
    assert (result.score, str(result.stop), result.value) == (
        None,
        "failed",
        result.trace.candidates[-1].text,
    )


# ---- plans by the trace alone

SEATS = (
    PanelGrader("critic", model_free=True),
    PanelGrader("judge"),
    PanelGrader("must", must=True, model_free=True),
    PanelGrader("other", model_free=True),
)
views = st.sampled_from(
    [
        Feedback(),
        Feedback(done=True),
        Feedback(done=False),
        Feedback(actions=("x",)),
        Feedback(0.5),
        Feedback(0.5, done=True),
        Feedback(1.0),
    ]
)


@given(
    st.lists(st.tuples(*[st.one_of(st.none(), views)] * len(SEATS)), min_size=1, max_size=4),
    st.integers(1, 4),
    st.randoms(),
)
def test_the_order_of_records_does_not_decide_who_is_a_critic(said, seats, dice):
    """A trace built record by record in any order equals one read at once, and so does its plan."""
    records = []
    for id, row in enumerate(said):
        records.append(
            Candidate(id, f"text {id}", id - 1 if id else None, role="refine" if id else "generate")
        )
        for seat, view in zip(SEATS[:seats], row, strict=False):
            if view is not None:
                records.append(
                    Feedback(
                        view.score, "", view.actions, view.done, candidate=id, grader=seat.name
                    )
                )
    whole = Trace(Task("q"), SEATS[:seats], tuple(records))
    dice.shuffle(records)
    grown = Trace(Task("q"), SEATS[:seats])
    for record in records:
        grown += record
        fresh = Trace(grown.task, grown.panel, grown.records)
        for name in ("critics", "scorers", "only_critics", "scores", "graded_candidates", "best"):
            assert getattr(grown, name) == getattr(fresh, name), name
    assert (grown.critics, grown.scores, grown.best) == (whole.critics, whole.scores, whole.best)
    assert Adaptive()(grown) == Adaptive()(whole)


def test_every_critic_is_heard_before_the_next_step():
    """The mean does not wait for a critic of a later text, but the plan does."""
    said = [Feedback(actions=("x",), grader="critic"), Feedback(0.4, grader="judge")]
    later = [Candidate(1, "b", 0, role="refine"), Feedback(0.5, candidate=1, grader="judge")]
    trace = Trace(Task("q"), SEATS[:2], (Candidate(0, "a", role="generate"), *said, *later))
    assert trace.scores == {0: 0.4, 1: 0.5}
    (step,) = Adaptive()(trace)
    assert isinstance(step, Grade)
    assert step.slot == ("feedback", 1, "critic", 0)
    heard = trace + Feedback(actions=("y",), candidate=1, grader="critic")
    assert not any(isinstance(step, Grade) for step in Adaptive()(heard))


def test_rankings_decide_where_the_others_are_critics():
    """Rankings say more about quality than critics."""
    seats = (PanelGrader("critic", model_free=True), PanelGrader("ranker", compares=True))
    drafts = [Candidate(i, f"text {i}", role="generate") for i in range(3)]
    wishes = [Feedback(actions=("x",), candidate=i, grader="critic") for i in range(3)]
    trace = Trace(Task("q"), seats, (*drafts, *wishes, Comparison((1, 2, 0), grader="ranker")))
    assert trace.best.id == 1
    (step,) = Adaptive()(trace)
    assert isinstance(step, Refine)


def test_feedback_may_leave_out_its_score():
    """Only feedback that steers makes a critic."""
    assert Feedback().score is None
    assert [
        f.is_critique
        for f in (
            Feedback(),
            Feedback(done=True),
            Feedback(actions=("x",)),
            Feedback(0.5, done=True),
        )
    ] == [
        False,
        True,
        True,
        False,
    ]
