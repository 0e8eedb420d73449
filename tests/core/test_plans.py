"""Plans as tables: records on the left, the steps that are due on the right."""

import pytest

from each_row import each_row
from redraft.errors import ConfigError
from redraft.loop.prompts import delimiter_for, refinement_messages
from redraft.loop.records import (
    Candidate,
    Comparison,
    CriterionScore,
    Failure,
    Feedback,
    StopReason,
)
from redraft.loop.steps import Compare, Generate, Grade, Refine, Repair, Stop
from redraft.loop.stopping import StopDecision, done, max_iterations, patience, target
from redraft.loop.task import Task
from redraft.loop.trace import PanelGrader, Trace
from redraft.plans.self_refine import BestOfN, SelfRefine

JUDGE = PanelGrader("judge")
DEMAND = PanelGrader("no_commas", must=True, model_free=True, editable=True)
RANKER = PanelGrader("ranker", compares=True)
RULE = target(0.9) | done() | patience(2) | max_iterations(3)


def draft(id, text=None):
    return Candidate(id, text or f"text {id}", by="m", role="generate")


def refinement(id, parent, text=None):
    return Candidate(id, text or f"text {id}", parent, by="m", role="refine")


def repair(id, parent, text=None):
    return Candidate(id, text or f"text {id}", parent, by="editor", role="repair")


def judge_score(id, score, **more):
    return Feedback(score, candidate=id, grader="judge", **more)


def check_score(id, score):
    return Feedback(score, candidate=id, grader="no_commas")


def trace(panel, *records, response=None):
    return Trace(Task("q", response), panel, records)


def describe(steps):
    """Return the steps as short texts for the tables."""
    words = []
    for step in steps:
        match step:
            case Generate():
                words.append(f"generate {step.id}")
            case Repair():
                words.append(f"repair {step.parent.id} as {step.id}")
            case Grade():
                words.append(
                    f"{step.grader} {step.candidate.id}"
                    + (f" look {step.repeat}" if step.repeat else "")
                )
            case Compare():
                words.append(f"{step.grader} {[c.id for c in step.candidates]}")
            case Refine():
                words.append(f"refine {step.parent} as {step.id}")
            case Stop():
                words.append(f"stop {step.best} {step.reason}")
    return words


@each_row(
    ("panel", "records", "steps"),
    [
        ([JUDGE], [], ["generate 0"]),
        ([JUDGE], [draft(0)], ["judge 0"]),
        ([JUDGE], [draft(0), judge_score(0, 0.95)], ["stop 0 target"]),
        ([JUDGE], [draft(0), judge_score(0, 0.5)], ["refine 0 as 1"]),
        ([JUDGE], [draft(0), judge_score(0, 0.5, done=True)], ["stop 0 done"]),
        ([JUDGE], [draft(0), judge_score(0, 0.5), refinement(1, 0)], ["judge 1"]),
        (
            [JUDGE],
            [draft(0), judge_score(0, 0.5), refinement(1, 0), judge_score(1, 0.4)],
            ["refine 0 as 2"],
        ),
        ([JUDGE], [draft(0), judge_score(0, 0.5), refinement(1, 0, "text 0")], ["refine 0 as 2"]),
        ([JUDGE], [draft(0), judge_score(0, None)], ["stop 0 failed"]),
        (
            [PanelGrader("judge", repeats=3)],
            [draft(0), judge_score(0, 0.5, repeat=1)],
            ["judge 0", "judge 0 look 2"],
        ),
        ([DEMAND, JUDGE], [draft(0)], ["no_commas 0"]),
        ([DEMAND, JUDGE], [draft(0), check_score(0, 1.0)], ["judge 0"]),
        ([DEMAND, JUDGE], [draft(0), check_score(0, 0.0)], ["repair 0 as 1"]),
        ([DEMAND, JUDGE], [draft(0), check_score(0, 0.0), repair(1, 0)], ["no_commas 1"]),
        (
            [DEMAND, JUDGE],
            [draft(0), check_score(0, 0.0), repair(1, 0), check_score(1, 1.0)],
            ["judge 1"],
        ),
        (
            [DEMAND, JUDGE],
            [draft(0), check_score(0, 0.0), repair(1, 0), check_score(1, 0.0)],
            ["repair 1 as 2"],
        ),
        ([DEMAND, JUDGE], [draft(0), check_score(0, 0.0), repair(1, 0, "text 0")], ["judge 0"]),
        (
            [DEMAND, JUDGE],
            [draft(0), check_score(0, 0.0), Failure(("candidate", 1), "repair", "OSError")],
            ["judge 0"],
        ),
        ([RANKER], [draft(0)], ["ranker [0]"]),
        ([RANKER], [draft(0), Comparison((0,), grader="ranker")], ["refine 0 as 1"]),
        (
            [RANKER],
            [draft(0), Comparison((0,), grader="ranker"), refinement(1, 0)],
            ["ranker [0, 1]"],
        ),
        ([JUDGE], [Failure(("candidate", 0), "generate", "ModelError")], ["stop None failed"]),
        (
            [JUDGE],
            [draft(0), Failure(("feedback", 0, "judge", 0), "grade", "ModelError")],
            ["stop 0 failed"],
        ),
        (
            [JUDGE],
            [draft(0), judge_score(0, 0.5), Failure(("candidate", 1), "refine", "ModelError")],
            ["stop 0 failed"],
        ),
        (
            [JUDGE],
            [
                draft(0),
                judge_score(0, 0.5),
                Failure(
                    ("candidate", 1),
                    "refine",
                    "BudgetExhaustedError",
                    stop_reason=StopReason.BUDGET,
                ),
            ],
            ["stop 0 budget"],
        ),
    ],
)
def test_self_refine(panel, records, steps):
    """Draft, check, repair, judge, rank, refine and stop each come when they are due."""
    assert describe(SelfRefine(RULE)(trace(tuple(panel), *records))) == steps


@pytest.mark.parametrize(
    ("records", "steps"),
    [
        ([draft(1)], ["generate 0", "generate 2", "no_commas 1"]),
        ([draft(1), check_score(1, 1.0)], ["generate 0", "generate 2", "judge 1"]),
        ([draft(1), check_score(1, 0.0)], ["generate 0", "generate 2"]),
        (
            [
                draft(0),
                draft(1),
                draft(2),
                check_score(0, 0.0),
                check_score(1, 0.0),
                check_score(2, 1.0),
            ],
            ["repair 0 as 3", "judge 2"],
        ),
    ],
)
def test_parallel_drafts(records, steps):
    """Finished drafts are graded at once; repairs wait for all drafts, so that their IDs do not
    depend on timing.
    """
    assert describe(SelfRefine(RULE, drafts=3)(trace((DEMAND, JUDGE), *records))) == steps


def test_given_response_is_judged_beside_its_repair():
    """Gains are measured against the given response."""
    given = trace((DEMAND, JUDGE), Candidate(0, "text 0"), check_score(0, 0.0), response="text 0")
    assert describe(SelfRefine(RULE)(given)) == ["repair 0 as 1", "judge 0"]


def test_without_repairs_no_grader_waits():
    """repairs=False leaves texts unchanged and starts all graders at once."""
    assert describe(SelfRefine(RULE, repairs=False)(trace((DEMAND, JUDGE), draft(0)))) == [
        "no_commas 0",
        "judge 0",
    ]


def test_best_of_n():
    """All drafts start at once, and the best is returned whether or not it is good."""
    plan = BestOfN(2)
    assert describe(plan(trace((JUDGE,)))) == ["generate 0", "generate 1"]
    graded = [draft(0), draft(1), judge_score(0, 0.3), judge_score(1, 0.4)]
    assert describe(plan(trace((JUDGE,), *graded))) == ["stop 1 max_iterations"]
    assert describe(BestOfN(2, target_score=0.4)(trace((JUDGE,), *graded))) == ["stop 1 target"]


@pytest.mark.parametrize(
    "make", [lambda: SelfRefine(drafts=0), lambda: BestOfN(0), lambda: BestOfN(2, target_score=2)]
)
def test_plans_reject_invalid_values(make):
    """The error comes at once and shows the value."""
    with pytest.raises(ConfigError, match="got"):
        make()


def test_plan_may_choose_the_parent():
    """A plan may refine another candidate than the best; here the latest."""
    plan = SelfRefine(RULE, select_parent=lambda t: t.candidates[-1])
    assert describe(
        plan(trace((JUDGE,), draft(0), judge_score(0, 0.5), refinement(1, 0), judge_score(1, 0.4)))
    ) == ["refine 1 as 2"]


def test_equal_stop_rules():
    """Stop rules with the same conditions are equal, and so are plans that contain them."""
    rule = target(0.9) | patience(2)
    assert rule == target(0.9) | patience(2) and hash(rule) == hash(target(0.9) | patience(2))
    assert SelfRefine(rule) == SelfRefine(target(0.9) | patience(2))
    assert rule not in (
        patience(2) | target(0.9),
        target(0.8) | patience(2),
        target(0.9),
        target(0.9) | patience(2, 0.05),
    )


def test_first_matching_stop_rule_decides():
    """In `target"""
    at_target = trace((JUDGE,), draft(0), judge_score(0, 0.95))
    assert (target(0.9) | max_iterations(0))(at_target).reason == "target"
    assert (max_iterations(0) | target(0.9))(at_target).reason == "max_iterations"
    assert (target(0.99) | max_iterations(1))(at_target) is None
    assert isinstance(target(0.9)(at_target), StopDecision)


def test_advice_is_deterministic():
    """The delimiters depend on the enclosed text and do not occur in it."""
    traces = trace((JUDGE,), draft(0), judge_score(0, 0.5, actions=("be brief",)))
    assert refinement_messages(traces, traces.best) == refinement_messages(traces, traces.best)
    text = "x"
    for _ in range(5):
        text += delimiter_for(text)
        assert delimiter_for(text) not in text


def test_advice_lists_unmet_criteria():
    """Advice groups actions by unmet criterion with its evidence, and adds the other actions."""
    criteria = (
        CriterionScore("truth", 0.4, "the moon is cheese", "say what it is made of"),
        CriterionScore("style", 1.0, "", "nothing"),
    )
    traces = trace(
        (JUDGE,),
        draft(0),
        judge_score(0, 0.5, actions=("say what it is made of", "add a title"), criteria=criteria),
    )
    words = refinement_messages(traces, traces.best)[-1]["content"]
    assert '- truth: say what it is made of (about: "the moon is cheese")' in words
    assert "- judge: add a title" in words
    assert "style" not in words


def test_advice_mentions_failed_revisions():
    """Advice repeats what a failed revision was asked to do, not its text, and names a copy as
    such.
    """
    traces = trace(
        (JUDGE,),
        draft(0),
        judge_score(0, 0.5, actions=("be brief",)),
        refinement(1, 0, "a worse text"),
        judge_score(1, 0.3, actions=("keep the year",)),
        refinement(2, 0, "text 0"),
    )
    words = refinement_messages(traces, traces.best)[-1]["content"]
    assert "keep the year" in words
    assert "returning the earlier answer as it was" in words
    assert "a worse text" not in words
