"""Graders made of graders: how votes decide, what is recorded, and how a failing part affects the
rest.
"""

import asyncio
import json
import re
from functools import partial
from itertools import repeat
from statistics import fmean, median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from each_row import each_row
from redraft import (
    BestOfN,
    Budget,
    Candidate,
    Feedback,
    Judge,
    ScriptedModel,
    Task,
    Trace,
    refine,
)
from redraft.errors import BadResponseError, ConfigError, GradingError
from redraft.graders import FunctionGrader, Ranker, router
from redraft.graders.composite import Cascade, Gate, Jury, Minimum, RankingJury, WeightedMean
from redraft.graders.fingerprint import grader_fingerprint
from redraft.loop.records import Comparison, Failure
from redraft.session.perform import StepClient
from redraft.usage import Usage

JUDGE = Judge({"truth": "It is true."})


def verdict(score, change="c", done=False):
    return json.dumps(
        {
            "reason": "It is so.",
            "criteria": {"truth": {"evidence": "e", "change": change, "score": score}},
            "done": done,
        }
    )


def says(feedback, name="f"):
    """A grader that always gives this answer, or raises it."""

    def function(text):
        if isinstance(feedback, Exception):
            raise feedback
        return feedback

    return FunctionGrader(function, name)


async def grade_answer(grader, *answers, **more):
    """Return what a grader says of one answer in a complete refinement."""
    model = ScriptedModel(list(answers)) if answers else False
    result = await refine(Task("q", "a"), model, grader, max_iterations=0, **more)
    return result.trace.feedback[0][0], result


def alone(grader, client=None):
    return asyncio.run(grader.grade(Task("q"), Candidate(0, "a"), client or StepClient(None)))


@pytest.mark.parametrize(
    ("how", "scores", "score"),
    [
        ("mean", [0.0, 0.5, 1.0, 1.0], 0.625),
        ("median", [0.0, 0.5, 1.0], 0.5),
        ("median", [0.0, 0.5, 0.75, 1.0], 0.625),
        ("trimmed", [0.0, 0.5, 0.75, 1.0], 0.625),
        ("trimmed", [0.0, 1.0], 0.5),
        ("majority", [0.5, 0.9, 0.1], 1.0),
        ("majority", [0.49, 0.9, 0.1], 0.0),
        ("majority", [0.6, 0.4], 0.5),
        ("majority", [0.7], 1.0),
    ],
)
def test_aggregation(how, scores, score):
    """Each way to aggregate has its exact meaning, and the votes are kept in order."""
    feedback = alone(Jury([says(s, f"g{n}") for n, s in enumerate(scores)], how))
    assert feedback.score == pytest.approx(score)
    assert [(vote.grader, vote.score) for vote in feedback.votes] == [
        (f"g{n}", s) for n, s in enumerate(scores)
    ]


async def test_jury_keeps_reasons_actions_and_spread():
    """Actions come once from each member below 1, `done` needs every vote, and the spread is that
    of the votes.
    """
    members = [
        says(Feedback(0.4, "weak", ("cut it", "cite"), False), "x"),
        says(Feedback(0.8, "fine", ("cite",), True), "y"),
        says(Feedback(1.0, "perfect", ("never mind",)), "z"),
    ]
    feedback, result = await grade_answer(Jury(members))
    assert feedback.score == pytest.approx(2.2 / 3)
    assert (feedback.actions, feedback.done) == (("cut it", "cite"), False)
    assert feedback.vote_sd == pytest.approx(0.3055, abs=1e-4)
    assert all(word in feedback.reason for word in ("x 0.40", "weak", "fine", "perfect"))
    assert Trace.from_json(result.trace.to_json()).records == result.trace.records


async def test_failing_member_keeps_the_other_votes():
    """Its Failure is among the votes after two tries, and its error text is no feedback."""
    calls = []

    def failing_grader(text):
        calls.append(text)
        raise RuntimeError("out of order")

    feedback, result = await grade_answer(
        Jury([says(0.4, "x"), failing_grader, says(0.6, "y")], "median")
    )
    assert feedback.score == pytest.approx(0.5)
    failure = feedback.votes[1]
    assert isinstance(failure, Failure)
    assert (failure.step_slot, len(calls)) == (("feedback", 0, "failing_grader", 0), 2)
    assert "out of order" in failure.message
    assert feedback.actions == ()
    assert Trace.from_json(result.trace.to_json()).records == result.trace.records


@pytest.mark.parametrize(
    ("scores", "quorum", "answered"),
    [
        ([0.5, None, None], None, False),
        ([0.5, 0.5, None], None, True),
        ([0.5, None], None, False),
        ([0.5, None], 1, True),
        ([0.5, 0.5, None], 3, False),
    ],
)
def test_quorum_is_required(scores, quorum, answered):
    """More than half, or the given number, must vote; the error names the missing members and
    why.
    """
    members = [
        says(ValueError("no idea") if s is None else s, f"g{n}") for n, s in enumerate(scores)
    ]
    if answered:
        assert alone(Jury(members, quorum=quorum)).score == pytest.approx(0.5)
    else:
        with pytest.raises(GradingError, match=r"votes are valid(?s:.*)(g1|g2): .*no idea"):
            alone(Jury(members, quorum=quorum))


def test_vote_without_a_score_does_not_count():
    """An unknown score is neither 0 nor dropped from the record."""
    feedback = alone(
        Jury([says(0.2, "x"), says(Feedback(None, "cannot tell"), "y"), says(0.4, "z")])
    )
    assert feedback.score == pytest.approx(0.3)
    assert "y unknown" in feedback.reason


votes = st.lists(
    st.integers(0, 10).map(lambda n: n / 8 if n <= 8 else (None, "fails")[n - 9]),
    min_size=1,
    max_size=7,
)


@settings(max_examples=60, deadline=None)
@given(votes, st.sampled_from(["mean", "median", "majority", "trimmed"]))
def test_any_votes_give_their_score_or_an_error(given_votes, how):
    """The score is that of the votes that are known, and no vote is lost."""
    members = [
        says(ValueError("x") if v == "fails" else Feedback(v), f"g{n}")
        for n, v in enumerate(given_votes)
    ]
    known = [v for v in given_votes if isinstance(v, float)]
    if 2 * len(known) <= len(given_votes):
        with pytest.raises(GradingError):
            alone(Jury(members, how))
        return
    feedback = alone(Jury(members, how))
    assert [getattr(v, "score", "fails") for v in feedback.votes] == given_votes
    passes, inner = sum(vote >= 0.5 for vote in known), sorted(known)[1:-1]
    expected = {
        "mean": fmean(known),
        "median": median(known),
        "majority": 0.5 * ((2 * passes >= len(known)) + (2 * passes > len(known))),
        "trimmed": fmean(inner or known),
    }
    assert feedback.score == pytest.approx(expected[how])


async def test_repeats_of_one_judge_are_cached_separately():
    """Three repeats are three calls, and none when run again; the same holds for equal members."""
    memory = {}
    feedback, result = await grade_answer(
        Jury(JUDGE, repeats=3), verdict(1), verdict(2), verdict(3), cache=memory
    )
    assert feedback.score == pytest.approx(0.4)
    assert [(v.grader, v.repeat) for v in feedback.votes] == [
        ("judge", 0),
        ("judge", 1),
        ("judge", 2),
    ]
    assert result.usage.calls == 3
    again, result = await grade_answer(Jury([JUDGE, JUDGE, JUDGE]), verdict(5), cache=memory)
    assert (again.score, result.usage.calls, result.usage.cached_calls) == (feedback.score, 0, 3)
    assert [v.grader for v in again.votes] == ["judge", "judge#2", "judge#3"]


@pytest.mark.parametrize(
    ("members", "calls"),
    [
        ([JUDGE, Judge({"truth": "It is true."}, name="other")], 4),
        ([Jury(JUDGE, repeats=2), JUDGE], 6),
        ([Minimum([Jury(JUDGE, repeats=2)]), JUDGE], 6),
        ([Jury([JUDGE, JUDGE], repeats=3)], 12),
    ],
)
async def test_members_do_not_share_cached_answers(members, calls):
    """Members that differ only in name, or belong to a nested jury, each make their own call."""
    model = ScriptedModel(repeat(verdict(3)))
    result = await refine(
        Task("q", "a"), model, Jury(members, repeats=2), max_iterations=0, cache={}
    )
    assert (model.calls, result.usage.cached_calls) == (calls, 0)


async def test_repeats_of_a_jury_are_cached_separately():
    """Two repeats of a jury of two are four calls."""
    from redraft import with_weight

    model = ScriptedModel([verdict(s) for s in (1, 2, 3, 4)])
    result = await refine(
        Task("q", "a"),
        model,
        with_weight(Jury(JUDGE, repeats=2), 1, repeats=2),
        max_iterations=0,
        cache={},
    )
    assert (model.calls, result.judge_score) == (4, pytest.approx(0.5))


async def test_members_use_the_models_they_name():
    """The record names every model that answered and holds their total usage."""
    one, other = ScriptedModel([verdict(1)], name="one"), ScriptedModel([verdict(3)], name="other")
    jury = Jury([Judge({"truth": "t"}, model=one), Judge({"truth": "t"}, model=other)])
    feedback, _result = await grade_answer(jury)
    assert feedback.score == pytest.approx(0.4)
    assert (set(feedback.by.split(", ")), feedback.usage.calls) == ({"one", "other"}, 2)


async def test_member_without_a_model_is_an_error_before_any_call():
    """The error is the same as for a single grader."""
    with pytest.raises(ConfigError, match="judge"):
        await grade_answer(Jury([says(0.5), JUDGE]))


async def test_exhausted_budget_is_no_vote():
    """It ends the run and does not count as a failure of a member."""
    jury, model = Jury([says(1.0, "x"), says(1.0, "y"), JUDGE]), ScriptedModel([verdict(5)])
    result = await refine(Task("q", "a"), model, jury, max_iterations=0, budget=Budget(calls=0))
    assert (result.score, str(result.stop), result.trace.feedback) == (None, "budget", {0: ()})


async def test_cancellation_cancels_every_member():
    """No call keeps running in the background."""
    ended, begun = [], asyncio.Event()

    async def slow(text):
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            ended.append(text)

    work = asyncio.ensure_future(
        Jury([slow, slow, slow]).grade(Task("q"), Candidate(0, "a"), StepClient(None))
    )
    await begun.wait()
    await asyncio.sleep(0)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert len(ended) == 3


async def test_members_run_concurrently():
    """Each member waits until all have started."""
    gate = asyncio.Barrier(3)

    async def meeting(text):
        await gate.wait()
        return 0.5

    feedback, _ = await grade_answer(Jury(meeting, repeats=3))
    assert feedback.score == 0.5


@each_row(
    ("make", "names"),
    [
        (lambda: Jury([]), "at least one"),
        (lambda: Jury("nonesuch"), "nonesuch"),
        (lambda: Jury([Ranker()]), "RankingJury"),
        (lambda: Jury(["words:3"], aggregation="vote"), "aggregation"),
        (lambda: Jury(["words:3"], quorum=2), "quorum"),
        (lambda: Jury(["words:3"], quorum=0), "quorum"),
        (lambda: Jury(["words:3"], repeats=0), "repeats"),
        (lambda: Jury(["words:3"], repeats=True), "repeats"),
        (lambda: Jury(["words:3"], pass_threshold=0), "pass_threshold"),
        (lambda: RankingJury([JUDGE]), "Jury"),
        (lambda: RankingJury([Ranker()], quorum=2), "quorum"),
        (lambda: Cascade("words:3", Ranker()), "RankingJury"),
        (lambda: Cascade("words:3", "judge", reject_below=0), "reject_below"),
        (lambda: Gate("words:3", "judge", threshold=float("nan")), "threshold"),
        (lambda: Gate("nonesuch", "judge"), "nonesuch"),
        (lambda: WeightedMean({}), "weighted"),
        (lambda: WeightedMean([JUDGE]), "pairs"),
        (lambda: WeightedMean({"words:3": 0}), "weight"),
        (lambda: WeightedMean({"words:3": float("inf")}), "weight"),
        (lambda: Minimum([]), "at least one"),
    ],
)
def test_invalid_arguments_are_rejected(make, names):
    """The error comes at once and names what is wrong."""
    with pytest.raises(ConfigError, match=names):
        make()


# --- ranking juries


def ranker(*order, name="r"):
    """A comparer that always gives this ranking, or raises."""

    class FixedRanking:
        async def compare(self, task, candidates, ask):
            if not order:
                raise BadResponseError("mumbles")
            return Comparison(order, f"{name} says so", (name,))

    FixedRanking.name = name
    FixedRanking.model_free = True
    return FixedRanking()


@pytest.mark.parametrize(
    ("orders", "ranking", "ties"),
    [
        ([(0, 1, 2), (0, 2, 1), (2, 0, 1)], (0, 2, 1), ()),
        ([(0, 1, 2), (1, 2, 0), (2, 0, 1)], (0, 1, 2), ((0, 1, 2),)),
        ([(2, 1, 0), ()], None, None),
        ([(2, 1, 0), (2, 1, 0), ()], (2, 1, 0), ()),
    ],
)
async def test_ranking_jury_ranks_by_wins(orders, ranking, ties):
    """Pairwise majorities decide and a cycle ties; a failed member is recorded, and half of them
    failing breaks the quorum.
    """
    council = RankingJury([ranker(*order, name=f"r{n}") for n, order in enumerate(orders)])
    trace = Trace(Task("q"), records=tuple(Candidate(id, "abc"[id]) for id in range(3)))
    if ranking is None:
        with pytest.raises(GradingError, match="mumbles"):
            await refine(trace, False, council, plan=BestOfN(3))
        return
    result = await refine(trace, False, council, plan=BestOfN(3))
    [comparison] = result.trace.comparisons
    assert (comparison.ranking, comparison.ties, len(comparison.votes)) == (
        ranking,
        ties,
        len(orders),
    )
    assert Trace.from_json(result.trace.to_json()).records == result.trace.records


async def test_ranking_jury_calls_each_repeat():
    """Repeats of one ranker see different orders and share no answer."""

    def tie(messages):
        return json.dumps(
            {
                "reason": "It is so.",
                "change": [],
                "ranking": [1, 2, 3],
                "ties": [[1, 2, 3]],
                "done": True,
            }
        )

    model = ScriptedModel(repeat(tie))
    trace = Trace(Task("q"), records=tuple(Candidate(id, "abc"[id]) for id in range(3)))
    result = await refine(
        trace, model, RankingJury(Ranker(), repeats=5), plan=BestOfN(3), cache={}, editor=False
    )
    [comparison] = result.trace.comparisons
    assert (model.calls, comparison.ties, comparison.done) == (5, ((0, 1, 2),), True)
    assert len({vote.presentation_order for vote in comparison.votes}) > 1
    assert comparison.consistent is True


# --- cascades, gates and weighted means


@pytest.mark.parametrize(
    ("first", "then", "score", "decided", "asked"),
    [
        (0.1, 0.9, 0.1, "cheap", False),
        (0.3, 0.9, 0.9, "dear", True),
        (1.0, 0.2, 0.2, "dear", True),
        (None, 0.8, 0.8, "dear", True),
        (ValueError("broken"), 0.7, 0.7, "dear", True),
    ],
)
def test_cascade_trusts_the_cheap_grader_only_to_reject(first, then, score, decided, asked):
    """The expensive grader decides if the cheap one passes, is unsure or fails, and the reason says
    which decided.
    """
    cheap = says(first if isinstance(first, Exception) else Feedback(first, "why"), "cheap")
    feedback = alone(Cascade(cheap, says(then, "dear")))
    assert feedback.score == score
    assert feedback.reason.startswith(f"{decided} decided")
    assert len(feedback.votes) == 1 + asked


@pytest.mark.parametrize(
    ("gate", "at", "score", "asked"),
    [
        (1.0, 1.0, 0.7, True),
        (0.9, 1.0, 0.0, False),
        (0.5, 0.5, 0.7, True),
        (None, 0.5, None, False),
    ],
)
def test_gate_stops_what_does_not_pass(gate, at, score, asked):
    """A failed gate scores 0 with its own actions and skips the other grader; an unknown one stays
    unknown.
    """
    feedback = alone(
        Gate(says(Feedback(gate, "too long", ("cut it",)), "short"), says(0.7, "dear"), at)
    )
    assert (feedback.score, len(feedback.votes)) == (score, 1 + asked)
    if not asked:
        assert feedback.actions == ("cut it",)
        assert "short" in feedback.reason
        assert feedback.done is False


async def test_gate_saves_the_judge_call():
    """A requirement spec before an LLM judge saves its call for an answer that breaks it."""
    feedback, result = await grade_answer(Gate("words:5-", "judge"), verdict(5))
    assert (feedback.score, result.usage.calls) == (0.0, 0)


def test_weights_are_not_renormalised():
    """Each part of a weighted mean is a criterion; one missing score makes it unknown, and one
    failure fails it.
    """
    x, y = says(Feedback(0.5, "so so", ("better",)), "x"), says(1.0, "y")
    feedback = alone(WeightedMean([(x, 3), (y, 1)]))
    assert feedback.score == pytest.approx(0.625)
    assert [(c.name, c.score, c.weight, c.action) for c in feedback.criteria] == [
        ("x", 0.5, 3.0, "better"),
        ("y", 1.0, 1.0, ""),
    ]
    assert feedback.actions == ("better",)
    assert alone(WeightedMean({x: 3, says(None, "z"): 1})).score is None
    with pytest.raises(GradingError, match="z: ValueError: no"):
        alone(WeightedMean({x: 3, says(ValueError("no"), "z"): 1}))


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0.001, 1000)), min_size=1, max_size=6))
def test_combined_score_lies_between_its_parts(rows):
    """The mean lies between the lowest and the highest score, and the minimum is the lowest."""
    graders = [says(score, f"g{n}") for n, (score, _) in enumerate(rows)]
    scores = [score for score, _ in rows]
    mean = alone(WeightedMean([(g, weight) for g, (_, weight) in zip(graders, rows)])).score
    assert min(scores) - 1e-9 <= mean <= max(scores) + 1e-9
    assert alone(Minimum(graders)).score == min(scores)


def test_minimum_is_unknown_if_a_part_is():
    """An unknown part may be the lowest."""
    assert alone(Minimum([says(0.2, "x"), says(None, "y")])).score is None


async def test_parts_with_the_same_name_get_unique_names():
    """Two judges are two criteria."""
    feedback, _ = await grade_answer(Minimum([JUDGE, JUDGE]), verdict(2), verdict(4))
    assert sorted(c.name for c in feedback.criteria) == ["judge", "judge#2"]


@pytest.mark.parametrize(
    "make",
    [
        lambda f: Jury([f]),
        lambda f: Cascade(f, f),
        lambda f: Gate(f, f),
        lambda f: WeightedMean({f: 1}),
        lambda f: Minimum([f]),
    ],
)
async def test_combination_of_computed_graders_calls_no_model(make):
    """With a judge in it, it calls one; its fingerprint comes from its parts."""
    feedback, result = await grade_answer(make(len_is_one))
    assert (feedback.score, result.usage.calls) == (1.0, 0)
    assert make(len_is_one).model_free is True
    assert make("judge").model_free is False
    assert grader_fingerprint(make(len_is_one), str) != grader_fingerprint(make(len_is_two), str)
    assert grader_fingerprint(make("judge"), lambda model: "one") != grader_fingerprint(
        make("judge"), lambda model: "other"
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda f: Jury([f, f]),
        lambda f: Cascade(f, f),
        lambda f: Gate(f, f, 0.1),
        lambda f: Minimum([f, f]),
    ],
)
async def test_usage_of_parts_is_counted_once(make):
    """Usage that a function reports for calls of its own enters the total once."""
    spending = says(Feedback(0.5, usage=Usage(calls=3, cost=0.5)), "elsewhere")
    _, result = await grade_answer(make(spending))
    assert (result.usage.calls, result.cost) == (6, 1.0)


# --- the whole feedback, by what the parts say


WHY = Feedback(0.25, "weak", ("cut", "cite"), False)
ALSO = Feedback(0.5, "weak", ("cite", "end"), True)
FINE = Feedback(1.0, "fine", ("never mind",), True)
CRITIC = Feedback(None, "hm", ("cut",))


def combined(make, given):
    """What a composite says of parts that are feedback, a score without a reason, or fail: all that
    there is, or the error.
    """
    parts = [
        ValueError("no")
        if each == "fails"
        else each
        if isinstance(each, Feedback)
        else Feedback(each)
        for each in given
    ]
    try:
        made = alone(make(*map(says, parts, "xyz")))
    except GradingError as error:
        return re.sub(r" \(in function, .*?\)", "", str(error))
    scores = [getattr(vote, "score", "fails") for vote in made.votes]
    assert scores == [getattr(part, "score", "fails") for part in parts][: len(scores)]
    failures = [vote for vote in made.votes if isinstance(vote, Failure)]
    assert [vote.step_slot for vote in failures] == [
        ("feedback", 0, "xyz"[n], 0) for n, each in enumerate(scores) if each == "fails"
    ]
    assert all((vote.role, vote.error) == ("grade", "GradingError") for vote in failures)
    return (
        made.score,
        made.reason,
        made.actions,
        made.done,
        *((c.name, c.score, c.action, c.weight) for c in made.criteria),
    )


def jury(*parts, **settings):
    return Jury(list(parts), **settings)


def minimum(*parts):
    return Minimum(list(parts))


def mean(first, *rest):
    return WeightedMean([(first, 3), *((part, 1) for part in rest)])


NO_X = "x: ValueError: no"


@each_row(
    ("make", "given", "expected"),
    [
        # no reasons, one, the same twice, all
        (jury, (0.4, 1.0), (0.7, "mean of 2: x 0.40, y 1.00", (), None)),
        (jury, (0.4, WHY), (0.325, "mean of 2: x 0.40, y 0.25; weak", ("cut", "cite"), False)),
        (
            jury,
            (WHY, ALSO),
            (0.375, "mean of 2: x 0.25, y 0.50; weak", ("cut", "cite", "end"), False),
        ),
        (
            jury,
            (WHY, FINE),
            (0.625, "mean of 2: x 0.25, y 1.00; weak; fine", ("cut", "cite"), False),
        ),
        (jury, (FINE, 1.0), (1.0, "mean of 2: x 1.00, y 1.00; fine", (), True)),
        # votes without a score, that fail, and of critics
        (
            jury,
            (WHY, ALSO, Feedback(None, "cannot tell")),
            (
                0.375,
                "mean of 2: x 0.25, y 0.50, z unknown; weak; cannot tell",
                ("cut", "cite", "end"),
                False,
            ),
        ),
        (jury, (1.0, 1.0, None), (1.0, "mean of 2: x 1.00, y 1.00, z unknown", (), None)),
        (jury, ("fails", 1.0, 1.0), (1.0, "mean of 2: x failed, y 1.00, z 1.00", (), None)),
        (jury, (CRITIC, 1.0), (1.0, "mean of 1: x unknown, y 1.00; hm", ("cut",), None)),
        (jury, (CRITIC, CRITIC), (None, "mean of 0: x unknown, y unknown; hm", ("cut",), None)),
        (
            partial(jury, aggregation="median"),
            (0.4, 1.0, WHY),
            (0.4, "median of 3: x 0.40, y 1.00, z 0.25; weak", ("cut", "cite"), False),
        ),
        (jury, (1.0, None), "jury: 1 of 2 votes are valid, it needs 2: y: no score"),
        (
            jury,
            ("fails", "fails", 1.0),
            f"jury: 1 of 3 votes are valid, it needs 2: {NO_X}; y: ValueError: no",
        ),
        (
            partial(jury, quorum=3),
            (1.0, 1.0, None),
            "jury: 2 of 3 votes are valid, it needs 3: z: no score",
        ),
        # a cascade
        (Cascade, (WHY, 1.0), (0.25, "x decided: weak", ("cut", "cite"), False)),
        (Cascade, (Feedback(0.1), 1.0), (0.1, "x decided", (), None)),
        (Cascade, (0.4, 1.0), (1.0, "y decided, after x 0.40", (), None)),
        (Cascade, (0.4, FINE), (1.0, "y decided, after x 0.40: fine", ("never mind",), True)),
        (Cascade, (None, FINE), (1.0, "y decided, after x unknown: fine", ("never mind",), True)),
        (Cascade, ("fails", 0.4), (0.4, "y decided, after x failed", (), None)),
        (Cascade, (1.0, None), (None, "y decided, after x 1.00", (), None)),
        (Cascade, ("fails", "fails"), "y: ValueError: no"),
        # a gate
        (Gate, (FINE, 0.4), (0.4, "", (), None)),
        (Gate, (1.0, WHY), (0.25, "weak", ("cut", "cite"), False)),
        (Gate, (ALSO, 1.0), (0.0, "stopped by x 0.50: weak", ("cite", "end"), False)),
        (Gate, (0.4, 1.0), (0.0, "stopped by x 0.40", (), False)),
        (Gate, (None, 1.0), (None, "stopped by x unknown", (), False)),
        (Gate, (1.0, None), (None, "", (), None)),
        (Gate, ("fails", 1.0), NO_X),
        # a mean and a minimum: an action of each criterion below 1, else its reason
        (
            mean,
            (0.4, 1.0),
            (0.55, "x 0.40; y 1.00", (), None, ("x", 0.4, "", 3.0), ("y", 1.0, "", 1.0)),
        ),
        (
            mean,
            (WHY, Feedback(0.5, "dull")),
            (
                0.3125,
                "x 0.25; y 0.50",
                ("cut; cite", "dull"),
                False,
                ("x", 0.25, "cut; cite", 3.0),
                ("y", 0.5, "dull", 1.0),
            ),
        ),
        (mean, (FINE, None), (None, "x 1.00; y unknown", (), True, ("x", 1.0, "", 3.0))),
        (mean, (None, None), (None, "x unknown; y unknown", (), None)),
        (mean, ("fails", 1.0), NO_X),
        (
            minimum,
            (0.4, 1.0),
            (0.4, "x 0.40; y 1.00", (), None, ("x", 0.4, "", 1.0), ("y", 1.0, "", 1.0)),
        ),
        (
            minimum,
            (WHY, WHY),
            (
                0.25,
                "x 0.25; y 0.25",
                ("cut; cite",),
                False,
                ("x", 0.25, "cut; cite", 1.0),
                ("y", 0.25, "cut; cite", 1.0),
            ),
        ),
        (
            minimum,
            (None, WHY),
            (None, "x unknown; y 0.25", ("cut; cite",), False, ("y", 0.25, "cut; cite", 1.0)),
        ),
        (minimum, (CRITIC, 1.0), (None, "x unknown; y 1.00", (), None, ("y", 1.0, "", 1.0))),
        (minimum, (1.0, "fails"), "y: ValueError: no"),
        # a router: what the part says
        (
            lambda part: router({"a": part}, by=lambda task: "a"),
            (WHY,),
            (0.25, "weak", ("cut", "cite"), False),
        ),
        (lambda part: router({"a": part}, by=lambda task: "a"), (0.4,), (0.4, "", (), None)),
    ],
)
def test_composites_say_exactly_what_follows_from_their_parts(make, given, expected):
    """Reasons, actions, `done` and criteria with no reason, one, equal ones and all; with unknown
    scores and failures.
    """
    made = combined(make, given)
    assert made == (
        expected if isinstance(expected, str) else (pytest.approx(expected[0]), *expected[1:])
    )


@pytest.mark.parametrize(
    ("votes", "expected"),
    [
        ([("", (), None), ("", (), None)], ("", (), None)),
        ([("", (), None), ("longer", ("cut",), True)], ("longer", ("cut",), True)),
        (
            [("same", ("cut",), True), ("same", ("cut", "cite"), False)],
            ("same", ("cut", "cite"), False),
        ),
        ([("one", (), True), ("two", ("cite",), None)], ("one; two", ("cite",), True)),
    ],
)
def test_ranking_juries_join_the_reasons_of_their_votes(votes, expected):
    """Each once, and none for a vote without one."""
    made = RankingJury([ranker(0, 1, name=f"r{n}") for n in range(2)]).aggregate_votes(
        [Comparison((0, 1), *vote) for vote in votes]
    )
    assert (made.reason, made.actions, made.done, made.ranking, made.ties) == (
        *expected,
        (0, 1),
        (),
    )


def len_is_one(text):
    return len(text) == 1


def len_is_two(text):
    return len(text) == 2
