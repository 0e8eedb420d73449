"""The order of answers, and those that a plan keeps."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import redraft
from redraft import (
    BestOfN,
    Budget,
    Candidate,
    Feedback,
    ScriptedModel,
    Task,
    batch_sync,
    must,
)
from redraft.errors import ConfigError
from redraft.loop.ranking import ranking, top_answers
from redraft.loop.records import Outcome
from redraft.loop.trace import PanelGrader, Trace
from redraft.plans import best_of, outcome_if_stopped

PANEL = (PanelGrader("score", model_free=True), PanelGrader("must", must=True, model_free=True))


def trace_of(rows):
    """Return a trace of drafts: (score or None, whether the must holds, done)."""
    trace = Trace(Task("q"), PANEL)
    for id, (score, holds, done) in enumerate(rows):
        trace += Candidate(id, f"text {id}", by="m", role="generate")
        trace += Feedback(float(holds), candidate=id, grader="must")
        if score is not None:
            trace += Feedback(score, candidate=id, grader="score", done=done)
    return trace


ROWS = st.lists(
    st.tuples(st.sampled_from([None, 0.0, 0.5, 0.5 + 1e-12, 1.0]), st.booleans(), st.booleans()),
    max_size=8,
)


@given(rows=ROWS)
@settings(max_examples=150, deadline=None)
def test_each_answer_is_the_best_of_those_after_it(rows):
    """Without the answers before it, every graded answer would be the best of the trace; ungraded
    ones come last.
    """
    trace = trace_of(rows)
    ranked = ranking(trace)
    assert sorted(row.candidate.id for row in ranked) == list(range(len(rows)))
    graded = [row for row in ranked if row.rank is not None]
    assert list(ranked[: len(graded)]) == graded
    assert {row.candidate.id for row in graded} == {
        id for id, (score, _, _) in enumerate(rows) if score is not None
    }
    left = [row.candidate.id for row in graded]
    for row in graded:
        keeps = [
            r for r in trace.records if getattr(r, "id", getattr(r, "candidate", None)) in left
        ]
        assert Trace(trace.task, PANEL, tuple(keeps)).best.id == row.candidate.id
        assert row.tied is (sum(other.rank == row.rank for other in graded) > 1)
        assert row.score == trace.scores[row.candidate.id]
        left.remove(row.candidate.id)


@given(rows=ROWS, copied=st.sets(st.integers(0, 7)), role=st.sampled_from(["repair", "refine"]))
@settings(max_examples=60, deadline=None)
def test_copies_change_no_rank(rows, copied, role):
    """A repair or a refinement that changed nothing is no answer of its own, and makes no tie."""
    trace = trace_of(rows)
    before = ranking(trace)
    for parent in sorted(copied & set(range(len(rows)))):
        trace += Candidate(trace.next_id, f"text {parent}", parent, by="m", role=role)
    assert ranking(trace) == before


@given(rows=ROWS, k=st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_the_best_k_are_graded_and_begin_with_the_best(rows, k):
    """Fewer are kept if fewer are graded."""
    trace = trace_of(rows)
    kept = top_answers(trace, k)
    assert len(kept) == min(k, len(trace.graded_candidates))
    assert not kept or kept[0].candidate == trace.best


@pytest.mark.parametrize(
    ("rows", "best"),
    [
        ([(0.5, True, None), (0.5, True, None)], 0),
        ([(0.5, True, None), (0.5, True, True)], 1),
        ([(0.5, True, False), (0.5, True, True), (0.5, True, True)], 1),
        ([(0.5, True, None), (0.4, True, True)], 0),
        ([(0.5, True, None), (0.9, False, True)], 0),
        ([(0.5, False, None), (0.5, True, None), (None, True, None)], 1),
    ],
)
def test_the_best_satisfies_musts_then_scores_then_is_done_then_is_the_earliest(rows, best):
    """Each criterion decides only where those before it do not."""
    assert trace_of(rows).best.id == best


def test_the_best_of_an_outcome_comes_first():
    """A plan may name another answer than the scores do."""
    trace = trace_of([(0.5, True, False), (1.0, True, False)]) + Outcome(0, redraft.StopReason.DONE)
    assert [(row.candidate.id, row.rank, row.tied) for row in ranking(trace)] == [
        (0, 1, False),
        (1, 2, False),
    ]


def test_result_has_the_answers_that_the_plan_keeps():
    """The outcome names them; without `keep`, it is the best one."""
    model = ScriptedModel(["a", "a b", "a b c"])
    result = redraft.refine_sync("q", model, "length:words=3", plan=best_of(3, keep=2))
    assert [answer.text for answer in result.top] == ["a b c", "a b"]
    assert [answer["score"] for answer in result.to_dict()["kept"]] == pytest.approx([1, 2 / 3])
    assert redraft.loop.trace.Trace.from_json(result.trace.to_json()).outcome.kept == (2, 1)
    single = redraft.refine_sync("q", ScriptedModel(["a b"]), "length:words=3")
    assert [answer.text for answer in single.top] == ["a b"]
    assert "kept" not in single.to_dict()


def test_of_a_draft_and_its_repair_one_is_kept():
    """The repaired form replaces its draft."""
    model = ScriptedModel(["One, two.", "Six."])
    result = redraft.refine_sync(
        "q", model, [must("no_commas"), "length:words=2"], plan=BestOfN(2, keep=2)
    )
    assert [answer.text for answer in result.top] == ["One two.", "Six."]


def test_a_broken_must_loses_to_a_kept_one():
    """As for the best answer, musts come before scores."""
    model = ScriptedModel(["a b c!", "a", "a b"])
    result = redraft.refine_sync(
        "q",
        model,
        [must("contains_none:!"), "length:words=3"],
        plan=BestOfN(3, keep=3, repairs=False),
    )
    assert [answer.text for answer in result.top] == ["a b", "a", "a b c!"]


def test_an_interrupted_run_keeps_what_is_graded():
    """The outcome of a run that is stopped from outside names the answers, too."""
    trace = trace_of([(0.5, True, False), (None, True, False), (1.0, True, False)])
    outcome = outcome_if_stopped(BestOfN(3, keep=3), trace, redraft.StopReason.CANCELLED, "stopped")
    assert (outcome.best, outcome.kept) == (2, (2, 0))
    result = redraft.refine_sync(
        "q", ScriptedModel(["a", "b"]), "words:3", plan=BestOfN(3, keep=3), budget=Budget(calls=2)
    )
    assert (result.stop, len(result.top)) == ("budget", 2)


def test_a_plan_of_your_own_may_say_what_is_kept():
    """A plan with the method decides; for a function, the best answer so far counts."""

    class Last:
        def __call__(self, trace):
            return ()

        def outcome_if_stopped(self, trace, reason, note):
            return Outcome(trace.candidates[-1].id, reason, note)

    trace = trace_of([(1.0, True, False), (0.5, True, False)])
    best = [
        outcome_if_stopped(plan, trace, redraft.StopReason.CANCELLED, "").best
        for plan in (Last(), lambda trace: ())
    ]
    assert best == [1, 0]


@pytest.mark.parametrize("keep", [0, 4, 1.5, True])
def test_keep_is_at_most_n(keep):
    """The error names the limits."""
    with pytest.raises(ConfigError, match="keep must be a whole number from 1 to 3"):
        BestOfN(3, keep=keep)


def test_batch_writes_the_kept_answers(tmp_path):
    """The column is there if several are kept, also for rows that fail; the same command makes no
    call again.
    """

    def run(model, **more):
        out = tmp_path / f"out{more.get('keep', 1)}.jsonl"
        batch_sync(
            [{"prompt": "x"}, {"prompt": "y"}],
            out,
            model,
            "length:words=2",
            mode="best",
            n=2,
            max_in_flight=1,
            **more,
        )
        return [json.loads(line) for line in out.read_text().splitlines()]

    rows = run(ScriptedModel(["a", "a b", "c d", "c"]), keep=2)
    assert [row["best"] for row in rows] == ["a b", "c d"]
    assert [[answer["text"] for answer in json.loads(row["kept"])] for row in rows] == [
        ["a b", "a"],
        ["c d", "c"],
    ]
    assert run(ScriptedModel([]), keep=2) == rows
    assert "kept" not in run(ScriptedModel(["a", "a b", "c d", "c"]))[0]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"keep": 2}, "keep needs mode 'best'"),
        ({"mode": "best", "n": 2, "keep": 3}, "from 1 to n, which is 2"),
        ({"keep": 0}, "keep"),
    ],
)
def test_invalid_keep_of_a_batch(tmp_path, settings, says):
    """The error comes before any data is read."""
    with pytest.raises(ConfigError, match=says):
        batch_sync(
            [{"prompt": "x"}], tmp_path / "o.jsonl", ScriptedModel([]), "words:1", **settings
        )
