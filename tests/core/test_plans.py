"""Plans as tables: what is recorded on the left, what is lacking on the right."""

import pytest

from redraft.plans.self_refine import BestOfN, SelfRefine
from redraft.core.prompts import refinement_messages, delimiter_for
from redraft.core.records import Candidate, Comparison, CriterionScore, Failure, Feedback, StopReason, Task
from redraft.core.steps import Compare, Generate, Grade, Refine, Repair, Stop
from redraft.core.stopping import StopDecision, done, max_iterations, patience, target
from redraft.core.trace import PanelGrader, Trace
from redraft.errors import ConfigError

JUDGE = PanelGrader("judge")
DEMAND = PanelGrader("no_commas", must=True, model_free=True, editable=True)
RANKER = PanelGrader("ranker", compares=True)
RULE = target(0.9) | done() | patience(2) | max_iterations(3)


def draft(id, text=None):
    return Candidate(id, text or f"text {id}", by="m", role="generate")


def refined(id, parent, text=None):
    return Candidate(id, text or f"text {id}", parent, by="m", role="refine")


def repaired(id, parent, text=None):
    return Candidate(id, text or f"text {id}", parent, by="editor", role="repair")


def judged(id, score, **more):
    return Feedback(score, candidate=id, grader="judge", **more)


def checked(id, score):
    return Feedback(score, candidate=id, grader="no_commas")


def trace(panel, *records, response=None):
    return Trace(Task("q", response), panel, records)


def brief(steps):
    """Steps in a form that a table can hold."""
    told = []
    for step in steps:
        match step:
            case Generate():
                told.append(f"generate {step.id}")
            case Repair():
                told.append(f"repair {step.parent.id} as {step.id}")
            case Grade():
                told.append(f"{step.grader} {step.candidate.id}" + (f" look {step.repeat}" if step.repeat else ""))
            case Compare():
                told.append(f"{step.grader} {[c.id for c in step.candidates]}")
            case Refine():
                told.append(f"refine {step.parent} as {step.id}")
            case Stop():
                told.append(f"stop {step.best} {step.reason}")
    return told


@pytest.mark.parametrize(
    ("panel", "records", "steps"),
    [
        ([JUDGE], [], ["generate 0"]),
        ([JUDGE], [draft(0)], ["judge 0"]),
        ([JUDGE], [draft(0), judged(0, 0.95)], ["stop 0 target"]),
        ([JUDGE], [draft(0), judged(0, 0.5)], ["refine 0 as 1"]),
        ([JUDGE], [draft(0), judged(0, 0.5, done=True)], ["stop 0 done"]),
        ([JUDGE], [draft(0), judged(0, 0.5), refined(1, 0)], ["judge 1"]),
        ([JUDGE], [draft(0), judged(0, 0.5), refined(1, 0), judged(1, 0.4)], ["refine 0 as 2"]),
        ([JUDGE], [draft(0), judged(0, 0.5), refined(1, 0, "text 0")], ["refine 0 as 2"]),
        ([JUDGE], [draft(0), judged(0, None)], ["stop 0 failed"]),
        ([PanelGrader("judge", repeats=3)], [draft(0), judged(0, 0.5, repeat=1)], ["judge 0", "judge 0 look 2"]),
        ([DEMAND, JUDGE], [draft(0)], ["no_commas 0"]),
        ([DEMAND, JUDGE], [draft(0), checked(0, 1.0)], ["judge 0"]),
        ([DEMAND, JUDGE], [draft(0), checked(0, 0.0)], ["repair 0 as 1"]),
        ([DEMAND, JUDGE], [draft(0), checked(0, 0.0), repaired(1, 0)], ["no_commas 1"]),
        ([DEMAND, JUDGE], [draft(0), checked(0, 0.0), repaired(1, 0), checked(1, 1.0)], ["judge 1"]),
        ([DEMAND, JUDGE], [draft(0), checked(0, 0.0), repaired(1, 0), checked(1, 0.0)], ["repair 1 as 2"]),
        ([DEMAND, JUDGE], [draft(0), checked(0, 0.0), repaired(1, 0, "text 0")], ["judge 0"]),
        ([DEMAND, JUDGE], [draft(0), checked(0, 0.0), Failure(("candidate", 1), "repair", "OSError")], ["judge 0"]),
        ([RANKER], [draft(0)], ["ranker [0]"]),
        ([RANKER], [draft(0), Comparison((0,), grader="ranker")], ["refine 0 as 1"]),
        ([RANKER], [draft(0), Comparison((0,), grader="ranker"), refined(1, 0)], ["ranker [0, 1]"]),
        ([JUDGE], [Failure(("candidate", 0), "generate", "ModelError")], ["stop None failed"]),
        ([JUDGE], [draft(0), Failure(("feedback", 0, "judge", 0), "grade", "ModelError")], ["stop 0 failed"]),
        ([JUDGE], [draft(0), judged(0, 0.5), Failure(("candidate", 1), "refine", "ModelError")], ["stop 0 failed"]),
        (
            [JUDGE],
            [draft(0), judged(0, 0.5), Failure(("candidate", 1), "refine", "BudgetExhaustedError", stop_reason=StopReason.BUDGET)],
            ["stop 0 budget"],
        ),
    ],
)
def test_self_refine(panel, records, steps):
    """Draft, check, repair, judge, rank, refine, stop: each when it is due and not before."""
    assert brief(SelfRefine(RULE)(trace(tuple(panel), *records))) == steps


@pytest.mark.parametrize(
    ("records", "steps"),
    [
        ([draft(1)], ["generate 0", "generate 2", "no_commas 1"]),
        ([draft(1), checked(1, 1.0)], ["generate 0", "generate 2", "judge 1"]),
        ([draft(1), checked(1, 0.0)], ["generate 0", "generate 2"]),
        ([draft(0), draft(1), draft(2), checked(0, 0.0), checked(1, 0.0), checked(2, 1.0)], ["repair 0 as 3", "judge 2"]),
    ],
)
def test_parallel_drafts(records, steps):
    """What is in is graded at once; repairs wait for all drafts, so that their ids do not depend on who came first."""
    assert brief(SelfRefine(RULE, drafts=3)(trace((DEMAND, JUDGE), *records))) == steps


def test_a_given_response_is_judged_in_full_beside_its_repair():
    """Gains are measured against what was given."""
    given = trace((DEMAND, JUDGE), Candidate(0, "text 0"), checked(0, 0.0), response="text 0")
    assert brief(SelfRefine(RULE)(given)) == ["repair 0 as 1", "judge 0"]


def test_without_repairs_nothing_waits_for_a_check():
    """repairs=False leaves texts as they are and asks everybody at once."""
    assert brief(SelfRefine(RULE, repairs=False)(trace((DEMAND, JUDGE), draft(0)))) == ["no_commas 0", "judge 0"]


def test_best_of_n():
    """All drafts at once; the best is kept, whether or not it is good."""
    plan = BestOfN(2)
    assert brief(plan(trace((JUDGE,)))) == ["generate 0", "generate 1"]
    graded = [draft(0), draft(1), judged(0, 0.3), judged(1, 0.4)]
    assert brief(plan(trace((JUDGE,), *graded))) == ["stop 1 max_iterations"]
    assert brief(BestOfN(2, target_score=0.4)(trace((JUDGE,), *graded))) == ["stop 1 target"]


@pytest.mark.parametrize("make", [lambda: SelfRefine(drafts=0), lambda: BestOfN(0), lambda: BestOfN(2, target_score=2)])
def test_plans_refuse_what_cannot_be(make):
    """At once, with the value."""
    with pytest.raises(ConfigError, match="got"):
        make()


def test_another_parent_may_be_chosen():
    """The parent of a refinement is the plan's choice: here the latest."""
    plan = SelfRefine(RULE, select_parent=lambda t: t.candidates[-1])
    assert brief(plan(trace((JUDGE,), draft(0), judged(0, 0.5), refined(1, 0), judged(1, 0.4)))) == ["refine 1 as 2"]


def test_rules_join_and_the_first_to_speak_decides():
    """`target | max_iterations`, in that order."""
    at_target = trace((JUDGE,), draft(0), judged(0, 0.95))
    assert (target(0.9) | max_iterations(0))(at_target).reason == "target"
    assert (max_iterations(0) | target(0.9))(at_target).reason == "max_iterations"
    assert (target(0.99) | max_iterations(1))(at_target) is None
    assert isinstance(target(0.9)(at_target), StopDecision)


def test_advice_is_the_same_for_the_same_trace():
    """Pure: the delimiters come from the text they enclose and do not occur in it."""
    grown = trace((JUDGE,), draft(0), judged(0, 0.5, actions=("be brief",)))
    assert refinement_messages(grown, grown.best) == refinement_messages(grown, grown.best)
    text = "x"
    for _ in range(5):
        text += delimiter_for(text)
        assert delimiter_for(text) not in text


def test_advice_groups_by_criterion_and_leaves_out_what_is_met():
    """The unmet criteria with their evidence; loose actions beside them."""
    criteria = (
        CriterionScore("truth", 0.4, "the moon is cheese", "say what it is made of"),
        CriterionScore("style", 1.0, "", "nothing"),
    )
    grown = trace((JUDGE,), draft(0), judged(0, 0.5, actions=("say what it is made of", "add a title"), criteria=criteria))
    told = refinement_messages(grown, grown.best)[-1]["content"]
    assert '- truth: say what it is made of (about: "the moon is cheese")' in told
    assert "- judge: add a title" in told
    assert "style" not in told


def test_advice_tells_of_revisions_that_did_not_help():
    """What they were told then, not their text; a mere copy is named as such."""
    grown = trace(
        (JUDGE,),
        draft(0),
        judged(0, 0.5, actions=("be brief",)),
        refined(1, 0, "a worse text"),
        judged(1, 0.3, actions=("keep the year",)),
        refined(2, 0, "text 0"),
    )
    told = refinement_messages(grown, grown.best)[-1]["content"]
    assert "keep the year" in told
    assert "returning the earlier answer as it was" in told
    assert "a worse text" not in told
