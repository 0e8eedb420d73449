"""The plan that believes as far as it should: tables of what comes next, and what holds of every run."""

import asyncio
import pickle
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import World, chance, last, same

from redraft.quality.posterior import Posterior
from redraft.core.engine import advance, replay_from
from redraft.quality.lineage import observe
from redraft.plans.adaptive import Adaptive
from redraft.quality.lineage import comparison_winner
from redraft.plans.self_refine import SelfRefine
from redraft.quality.priors import Priors
from redraft.core.records import Candidate, Comparison, Failure, Feedback, StopReason, Task
from redraft.usage import NO_USAGE, Usage
from redraft.core.steps import Compare, Generate, Grade, Refine, Repair, Stop
from redraft.core.stopping import done, max_iterations, patience, target
from redraft.core.trace import PanelGrader, Trace
from redraft.errors import ConfigError

JUDGE, OTHER = PanelGrader("judge"), PanelGrader("other")
CHECK = PanelGrader("check", model_free=True)
FORM = PanelGrader("no_a", must=True, model_free=True, editable=True)
RANKER = PanelGrader("ranker", compares=True)

HELPS = Priors(draft_mean=0.5, gain=0.3, retention=0.8, draft_sd=0.02, draft_mean_sd=0.1)
HURTS = Priors(draft_mean=0.5, gain=-0.2, retention=0.8, step_sd=0.02, draft_sd=0.25)
DOUBTS = Priors(draft_mean=0.5, gain=-0.3, retention=0.7, step_sd=0.01, draft_sd=0.1, draft_mean_sd=0.3, noise_sd=0.3, bias_sd=0.0)
SETTLED = Priors(draft_mean=0.5, gain=0.0, retention=0.5, step_sd=0.0, gain_sd=0.0, draft_sd=0.0, draft_mean_sd=0.1)
BARE = SelfRefine(target(1.0) | max_iterations(9))


def draft(id, **more):
    return Candidate(id, f"text {id}", by="m", role="generate", **more)


def child(id, parent, text=None):
    return Candidate(id, text or f"text {id}", parent, by="m", role="refine")


def said(id, score, grader="judge", look=0, **more):
    return Feedback(score, candidate=id, grader=grader, repeat=look, **more)


def unsaid(id, grader, look, **more):
    return Failure(("feedback", id, grader, look), "grade", "ModelError", **more)


def unwritten(id, role="generate", **more):
    return Failure(("candidate", id), role, "ModelError", "no", **more)


def duel(*ids, **more):
    return Comparison(ids, grader="ranker", **more)


def trace(panel, *records, response=None):
    return Trace(Task("q", response), tuple(panel), records)


def brief(steps):
    """Steps in a form that a table can hold."""
    told = []
    for step in steps:
        match step:
            case Generate():
                told.append(f"draft {step.id}")
            case Refine():
                told.append(f"refine {step.parent} as {step.id}")
            case Repair():
                told.append(f"repair {step.parent.id} as {step.id}")
            case Grade():
                told.append(f"{step.grader} {step.candidate.id} look {step.repeat}")
            case Compare():
                told.append(f"{step.grader} {[c.id for c in step.candidates]}")
            case Stop():
                told.append(f"stop {step.best} {step.reason}")
    return told


TWO = [draft(0), said(0, 0.6), draft(1), said(1, 0.6)]
UNEVEN = [draft(0), said(0, 0.6), said(0, 0.6, "other"), draft(1), said(1, 0.6), said(1, 0.6, "other")]


@pytest.mark.parametrize(
    ("panel", "prior", "records", "steps"),
    [
        ([JUDGE], HELPS, [], ["draft 0"]),
        ([JUDGE], HELPS, [draft(0)], ["judge 0 look 0"]),
        ([JUDGE, OTHER], HELPS, [draft(0), said(0, 0.5)], ["other 0 look 0"]),
        ([JUDGE], HELPS, [draft(0), said(0, 0.5)], ["refine 0 as 1"]),
        ([JUDGE], HURTS, [draft(0), said(0, 0.5)], ["draft 1"]),
        ([JUDGE], SETTLED, [draft(0), said(0, 0.5)], ["stop 0 gain"]),
        ([JUDGE], HELPS, [draft(0), said(0, 0.5), child(1, 0)], ["judge 1 look 0"]),
        ([JUDGE], HURTS, [draft(0), said(0, 0.3), draft(1), said(1, 0.4)], ["draft 2"]),
        ([JUDGE], HURTS, [draft(0), said(0, 0.3), draft(1), said(1, 1.0)], ["stop 1 gain"]),
        ([JUDGE], DOUBTS, [*TWO, draft(2), said(2, 0.0)], ["judge 0 look 1"]),
        ([JUDGE], DOUBTS, [*TWO, said(0, 0.6, look=1)], ["judge 1 look 1"]),
        ([JUDGE], DOUBTS, [*TWO, said(0, 0.1, look=1), said(0, 0.1, look=2)], ["stop 1 gain"]),
        ([JUDGE], HELPS, [draft(0), said(0, None)], ["draft 1"]),
        ([JUDGE], HELPS, [draft(0), said(0, None), draft(1)], ["judge 1 look 0"]),
        ([JUDGE], HELPS, [draft(0), said(0, None), draft(1), said(1, None)], ["stop 1 failed"]),
        ([JUDGE], HELPS, [unwritten(0)], ["stop None failed"]),
        ([JUDGE], HELPS, [draft(0), unsaid(0, "judge", 0)], ["stop 0 failed"]),
        ([JUDGE], HELPS, [draft(0), said(0, 0.5), unwritten(1, "refine")], ["stop 0 failed"]),
        ([JUDGE], HURTS, [draft(0), said(0, 0.5), unwritten(1)], ["draft 2"]),
        (
            [JUDGE],
            HURTS,
            [draft(0), said(0, 0.5), unwritten(1), unwritten(2), unwritten(3), unwritten(4)],
            ["stop 0 max_iterations"],
        ),
        ([JUDGE], HELPS, [draft(0), said(0, 0.5), child(1, 0), unsaid(1, "judge", 0)], ["refine 0 as 2"]),
        ([JUDGE, OTHER], DOUBTS, [*UNEVEN, said(0, 0.5, look=1)], ["other 0 look 1"]),
        ([JUDGE, OTHER], DOUBTS, [*UNEVEN, said(0, 0.5, "other", 1)], ["judge 0 look 1"]),
        ([JUDGE, OTHER], DOUBTS, [*UNEVEN, unsaid(0, "other", 1)], ["judge 0 look 1"]),
        ([CHECK], HELPS, [draft(0), said(0, 1.0, "check")], ["stop 0 target"]),
        ([RANKER], HELPS, [draft(0)], ["ranker [0]"]),
        ([FORM, JUDGE], HELPS, [draft(0), said(0, 0.0, "no_a")], ["repair 0 as 1"]),
    ],
)
def test_what_comes_next(panel, prior, records, steps):
    """What is due first; then what is worth most for its cost; and the end where nothing is."""
    assert brief(Adaptive(BARE, 0.005, max_attempts=4, priors=prior)(trace(panel, *records))) == steps


def test_after_a_failed_look_the_others_go_on_and_it_is_not_asked_for_again():
    """Once all of a round have answered or failed, something else comes next."""
    records = [*UNEVEN, unsaid(0, "other", 1), said(0, 0.6, look=1)]
    step, *_ = Adaptive(BARE, 0.0, max_attempts=9, priors=DOUBTS)(trace([JUDGE, OTHER], *records))
    assert step.slot not in {("feedback", 0, "other", 1), ("feedback", 0, "other", 2)}


def test_a_copy_is_not_looked_at():
    """Its parent's looks are its own."""
    records = [*UNEVEN, child(2, 0, "text 0"), said(0, 0.5, look=1), said(0, 0.5, "other", 1)]
    steps = Adaptive(BARE, 0.0, max_attempts=9, priors=DOUBTS)(trace([JUDGE, OTHER], *records))
    assert not any(isinstance(step, Grade) and step.candidate.id == 2 for step in steps)


def test_a_new_draft_is_made_only_where_it_may_be():
    """Not of a given response, and not where the same words would come again."""
    plan, first = Adaptive(BARE, 0.0, priors=HURTS), [draft(0), said(0, 0.5)]
    assert brief(plan(trace([JUDGE], *first))) == ["draft 1"]
    assert brief(replace(plan, allow_new_drafts=False)(trace([JUDGE], *first))) == ["refine 0 as 1"]
    given = trace([JUDGE], Candidate(0, "given"), said(0, 0.5), response="given")
    assert brief(plan(given)) == ["refine 0 as 1"]


def test_the_end_says_what_was_to_be_expected():
    """The reason in words: the price, and what each kind of step would have gained."""
    (stop,) = Adaptive(BARE, 0.05, priors=SETTLED)(trace([JUDGE], draft(0), said(0, 0.5)))
    assert stop.reason == "gain"
    assert stop.note.startswith("no step gains 0.05 a call: a refinement 0.0")
    assert "a new draft 0.0" in stop.note


@pytest.mark.parametrize(("unit", "words"), [("calls", "a call"), ("tokens", "for 1,000 tokens"), ("usd", "for a USD")])
def test_what_steps_gain_is_told_in_the_unit_of_the_price(unit, words):
    """Each rate is less than the price that it fell short of, as it is shown, too."""
    price = 0.05 if unit == "calls" else 0.5
    paid = priced(tokens=1000, usd=1.0)
    (stop,) = Adaptive(BARE, price, unit, priors=SETTLED)(trace([JUDGE], draft(0, usage=paid), said(0, 0.5, usage=paid)))
    head, told = stop.note.split(": ")
    assert head == f"no step gains {price:g} {words}"
    assert all(0 <= float(one.rsplit(" ", 1)[1]) < price and "-" not in one for one in told.split(", "))


def test_a_higher_price_ends_sooner():
    """What is worth a call at one price is not at another."""
    first = trace([JUDGE], draft(0), said(0, 0.5))
    reasons = [Adaptive(BARE, price, priors=HELPS)(first)[0].role for price in (0.0, 0.01, 0.05, 0.5)]
    assert reasons == sorted(reasons) == ["refine", "refine", "refine", "stop"]


# ---- rules see what is believed


@pytest.mark.parametrize(
    ("noise", "step"),
    [(0.0, "stop 0 target"), (0.02, "stop 0 target"), (0.3, "refine 0 as 1")],
)
def test_the_target_is_looked_at_on_what_is_believed(noise, step):
    """One high score of a noisy judge does not reach it."""
    prior = replace(HELPS, noise_sd=noise, bias_sd=0.0, draft_mean_sd=0.3)
    plan = Adaptive(SelfRefine(target(0.9) | max_iterations(9)), 0.0, priors=prior)
    assert brief(plan(trace([JUDGE], draft(0), said(0, 0.93)))) == [step]


def test_done_ends_the_work():
    """Where the graders want no more changes of the best."""
    plan = Adaptive(SelfRefine(target(1.0) | done()), 0.0, priors=HELPS)
    assert brief(plan(trace([JUDGE], draft(0), said(0, 0.5, done=True)))) == ["stop 0 done"]
    assert brief(plan(trace([JUDGE], draft(0), said(0, 0.5, done=False)))) == ["refine 0 as 1"]


def test_patience_ends_the_work():
    """Refinements that lift nothing, as far as can be believed."""
    plan = Adaptive(SelfRefine(patience(2)), 0.0, max_attempts=9, allow_new_drafts=False, priors=HURTS)
    worse = [draft(0), said(0, 0.7), child(1, 0), said(1, 0.2)]
    assert plan(trace([JUDGE], *worse))[0].role != "stop"
    assert brief(plan(trace([JUDGE], *worse, child(2, 0), said(2, 0.1)))) == ["stop 0 patience"]


@pytest.mark.parametrize("attempts", range(4))
def test_attempts_bound_what_is_written(attempts):
    """Refinements and new drafts together; the note says how many."""
    records = [draft(0), said(0, 0.5)]
    plan = Adaptive(BARE, 0.0, max_attempts=attempts, priors=HELPS)
    for i in range(1, attempts + 1):
        assert brief(plan(trace([JUDGE], *records)))[0].startswith("refine")
        records += [child(i, 0), said(i, 0.5 + i / 20)]
    for look in range(1, 3 if attempts else 1):  # and no calls are left for looks either
        assert plan(trace([JUDGE], *records))[0].role == "stop", look
    (stop,) = plan(trace([JUDGE], *records))
    assert (stop.reason, stop.note) == ("max_iterations", f"{attempts} attempt{'s' * (attempts != 1)} made")


# ---- what is kept

LUCKY = [draft(0), said(0, 0.9), draft(1), *(said(1, 0.85, look=n) for n in range(6))]
LOUD = replace(DOUBTS, draft_mean=0.4, draft_mean_sd=0.05)


@pytest.mark.parametrize("reason", [StopReason.BUDGET, StopReason.DEADLINE])
def test_where_money_or_time_is_up_the_best_by_belief_is_kept(reason):
    """A score that was looked at often beats a slightly higher one that was looked at once."""
    cut = trace([JUDGE], *LUCKY, unwritten(2, "generate", stop_reason=reason))
    (stop,) = Adaptive(BARE, priors=LOUD)(cut)
    assert (cut.best.id, stop.best, stop.reason) == (0, 1, reason)
    low, high = stop.interval
    assert 0 <= low < stop.score < high <= 1
    assert stop.score < 0.85


def test_work_that_is_cut_short_keeps_the_best_by_belief():
    """As if it had ended there by itself."""
    outcome = Adaptive(BARE, priors=LOUD).outcome_if_stopped(trace([JUDGE], *LUCKY), StopReason.CANCELLED, "interrupted")
    assert (outcome.best, outcome.reason, outcome.note) == (1, "cancelled", "interrupted")
    ended = trace([JUDGE], *LUCKY, outcome)
    assert (ended.best.id, ended.judge_score) == (1, pytest.approx(0.85))
    assert ended.score == outcome.score < 0.85


def test_work_that_is_cut_short_before_any_grade_claims_nothing():
    """What nobody graded has no score."""
    outcome = Adaptive().outcome_if_stopped(trace([JUDGE], draft(0)), StopReason.CANCELLED, "")
    assert (outcome.best, outcome.score, outcome.interval) == (0, None, None)
    assert Adaptive().outcome_if_stopped(trace([JUDGE]), StopReason.CANCELLED, "").best is None


def test_a_must_that_is_kept_comes_before_what_is_believed():
    """A broken demand loses, however good the text."""
    records = [draft(0), said(0, 0.0, "no_a"), said(0, 1.0), draft(1), said(1, 1.0, "no_a"), said(1, 0.2)]
    plan = Adaptive(SelfRefine(max_iterations(0), repairs=False), priors=HELPS)
    assert brief(plan(trace([FORM, JUDGE], *records))) == ["stop 1 max_iterations"]


# ---- what things cost


def priced(*, tokens=None, usd=None):
    return Usage(1, answer_tokens=tokens, answer_cost=usd)


@pytest.mark.parametrize(
    ("unit", "writing", "judging", "role"),
    [
        ("tokens", priced(), priced(tokens=10), "stop"),
        ("tokens", priced(tokens=10), priced(), "stop"),
        ("tokens", priced(tokens=500), priced(tokens=500), "refine"),
        ("tokens", priced(tokens=500_000), priced(tokens=500), "stop"),
        ("usd", priced(), priced(usd=0.01), "stop"),
        ("usd", priced(usd=0.01), priced(usd=0.01), "refine"),
        ("usd", priced(usd=100.0), priced(usd=0.01), "stop"),
        ("usd", priced(usd=0.0), priced(usd=0.0), "refine"),
    ],
)
def test_gain_is_weighed_against_what_steps_have_cost(unit, writing, judging, role):
    """What costs much, or nobody knows how much, is not worth it; what is free always is."""
    seen = trace([JUDGE], draft(0, usage=writing), said(0, 0.5, usage=judging))
    (step,) = Adaptive(BARE, 0.01, unit, priors=HELPS)(seen)
    assert step.role == role


def test_what_is_not_known_is_said():
    """Where no price is known, the end says so."""
    (stop,) = Adaptive(BARE, 0.01, "usd", priors=HELPS)(trace([JUDGE], draft(0, usage=priced()), said(0, 0.5, usage=priced())))
    assert stop.note == "the cost of a step in usd is unknown, so no step is worth it"


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_expected_gain": -1},
        {"min_expected_gain": float("nan")},
        {"min_expected_gain": True},
        {"cost_unit": "hours"},
        {"max_attempts": -1},
        {"max_attempts": 1.5},
        {"max_attempts": True},
    ],
)
def test_values_that_cannot_be_are_refused(wrong):
    """At once, with the name and the value."""
    with pytest.raises(ConfigError, match=f"{next(iter(wrong))} must be .* got"):
        Adaptive(**wrong)


# ---- the final duel

PAIR = [draft(0), said(0, 0.6), draft(1), said(1, 0.62)]
FAR = [draft(0), said(0, 0.1), draft(1), said(1, 0.9)]
NO = Priors(noise_sd=0.1, gain=-0.5, gain_sd=0.0, step_sd=0.0, draft_sd=0.1)


@pytest.mark.parametrize(
    ("panel", "records", "steps"),
    [
        ([JUDGE, RANKER], PAIR, ["ranker [0, 1]"]),
        ([JUDGE, replace(RANKER, repeats=2)], PAIR, ["ranker [0, 1]", "ranker [0, 1]"]),
        ([JUDGE], PAIR, ["stop 1 max_iterations"]),
        ([JUDGE, RANKER], FAR, ["stop 1 max_iterations"]),
        ([JUDGE, RANKER], [*PAIR, duel(0, 1)], ["stop 0 max_iterations"]),
        ([JUDGE, RANKER], [*PAIR, duel(1, 0)], ["stop 1 max_iterations"]),
        ([JUDGE, RANKER], [*PAIR, duel(0, 1, ties=((0, 1),))], ["stop 1 max_iterations"]),
        ([JUDGE, RANKER], [*PAIR, duel(0, 1, votes=(duel(0, 1), duel(1, 0)))], ["stop 1 max_iterations"]),
        ([JUDGE, RANKER], [*PAIR, duel(0, 1, votes=(duel(0, 1), duel(0, 1)))], ["stop 0 max_iterations"]),
        ([JUDGE, RANKER], [*PAIR, Failure(("comparison", (0, 1), "ranker", 0), "compare", "X")], ["stop 1 max_iterations"]),
        ([JUDGE, RANKER], [*PAIR, unwritten(2, "refine", stop_reason=StopReason.BUDGET)], ["stop 1 budget"]),
    ],
)
def test_graders_that_compare_are_asked_last(panel, records, steps):
    """About the two best, where it is not clear which is better; they decide, unless they contradict themselves."""
    plan = Adaptive(SelfRefine(max_iterations(9), drafts=2), 0.0, max_attempts=0, priors=NO)
    assert brief(plan(trace(panel, *records))) == steps


@pytest.mark.parametrize(
    ("score", "duels", "steps"),
    [
        (0.6, [], ["ranker [0, 1]"]),
        (0.6, [duel(0, 1)], ["stop 0 target"]),
        (0.73, [], ["stop 1 target"]),
        (0.73, [duel(0, 1)], ["stop 1 target"]),
    ],
)
def test_a_duel_takes_back_no_target(score, duels, steps):
    """Where only one of the two reaches it, that one is the answer."""
    plan = Adaptive(SelfRefine(target(score), drafts=2), priors=NO)
    high = [draft(0), said(0, 0.72), draft(1), said(1, 0.82)]
    assert brief(plan(trace([JUDGE, RANKER], *high, *duels))) == steps


@pytest.mark.parametrize(
    ("duels", "winner"),
    [
        ([], None),
        ([duel(0, 1)], 0),
        ([duel(1, 0)], 1),
        ([duel(0, 1), duel(1, 0, repeat=1)], None),
        ([duel(0, 1), duel(1, 0, repeat=1), duel(1, 0, repeat=2)], 1),
        ([duel(1, 0, ties=((0, 1),))], None),
        ([duel(0, 1, votes=(duel(0, 1), duel(1, 0)))], None),
        ([duel(2, 0)], None),
    ],
)
def test_who_is_preferred(duels, winner):
    """By most of those that compared just these two, whatever the order they were shown in."""
    seen = trace([JUDGE, RANKER], draft(0), draft(1), draft(2), *duels)
    assert comparison_winner(seen, [seen.by_id[0], seen.by_id[1]]) == winner
    assert comparison_winner(seen, [seen.by_id[1], seen.by_id[0]]) == winner


# ---- whole runs


class Noisy(World):
    """A world of few different scores, of refinements that sometimes change nothing, and of ends that are kept whole."""

    def answer(self, step):
        return step.outcome if isinstance(step, Stop) else super().answer(step)

    def text(self, id):
        same = chance(self.seed, "same", id).random() < 0.15
        return "never mind" if same else super().text(id)

    def score(self, step):
        return super().score(step) if step.grader == "no_a" else round(super().score(step), 1)


PANELS = {
    "judge": (JUDGE,),
    "two": (JUDGE, PanelGrader("other", weight=2.0)),
    "looks": (PanelGrader("judge", repeats=2), OTHER),
    "form": (FORM, JUDGE),
    "mixed": (CHECK, JUDGE),
    "free": (CHECK,),
    "duel": (JUDGE, RANKER),
}
RULES = target(0.9) | done() | patience(4)
runs = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 10_000),
        "panel": st.sampled_from(sorted(PANELS)),
        "prior": st.sampled_from([Priors(), HELPS, HURTS, DOUBTS]),
        "drafts": st.sampled_from([1, 1, 2, 3]),
        "attempts": st.integers(0, 6),
        "price": st.sampled_from([0.0, 0.003, 0.01]),
        "fails": st.just(0.0),
        "given": st.sampled_from([False, False, True]),
    }
)
failing = runs.flatmap(lambda run: st.sampled_from([0.1, 0.3, 0.6, 1.0]).map(lambda share: {**run, "fails": share}))


def plan_of(run):
    rules = SelfRefine(RULES | max_iterations(run["attempts"]), run["drafts"])
    return Adaptive(rules, run["price"], max_attempts=run["attempts"], priors=run["prior"])


def begin(run):
    start = trace(PANELS[run["panel"]], response="a given answer" if run["given"] else None)
    return start + Candidate(0, "a given answer") if run["given"] else start


def carry_out(start, run, world):
    return asyncio.run(last(advance(start, plan_of(run), world)))


def bought(world, panel):
    """The model calls that a world was asked for, without duels."""
    paid = {seat.name for seat in panel if not seat.model_free}
    repairs = {c for c in world.repaired}
    return sum(
        slot[2] in paid if slot[0] == "feedback" else slot[0] == "candidate" and slot[1] not in repairs for slot in world.asked
    )


class Counting(Noisy):
    """Remembers which candidates an editor made."""

    def __init__(self, *given, **more):
        super().__init__(*given, **more)
        self.repaired = set()

    def answer(self, step):
        if isinstance(step, Repair):
            self.repaired.add(step.id)
        return super().answer(step)


def world_of(run):
    return Counting(run["seed"], run["fails"])


@settings(max_examples=150, deadline=None)
@given(st.one_of(runs, failing))
def test_calls_are_bounded(run):
    """(1 + looks) x (drafts + attempts), whatever happens: with one judge and one draft, 2 x (1 + max_iterations)."""
    world, panel = world_of(run), PANELS[run["panel"]]
    carry_out(begin(run), run, world)
    looks = sum(seat.repeats for seat in panel if not seat.model_free and not seat.compares)
    first = 1 if run["given"] else run["drafts"]
    assert bought(world, panel) <= (1 + looks) * (first + run["attempts"])


@settings(max_examples=150, deadline=None)
@given(st.one_of(runs, failing))
def test_every_run_ends_and_asks_for_nothing_twice(run):
    """Whatever fails; and what is kept was graded, where anything was."""
    world = world_of(run)
    ended = carry_out(begin(run), run, world)
    assert len(world.asked) == len(set(world.asked))
    assert ended.outcome
    if ended.graded_candidates:
        assert ended.scores[ended.best.id] is not None
        low, high = ended.outcome.interval
        assert 0 <= low <= ended.score <= high <= 1
        assert all(ended.must_pass_rate(c.id) <= ended.must_pass_rate(ended.best.id) for c in ended.graded_candidates)
    if not run["fails"]:
        assert all(ended.scores[c.id] is not None for c in ended.candidates if c.id not in ended.replaced_ids)


@settings(max_examples=120, deadline=None)
@given(run=runs, cut=st.floats(0, 1))
def test_any_prefix_goes_on_to_the_same_end_and_buys_nothing_twice(run, cut):
    """Cut anywhere, pickled and resumed, a run ends with the same answer, believed to be as good."""
    full = carry_out(begin(run), run, world_of(run))
    n = max(1, int(cut * len(full.records)))
    prefix = pickle.loads(pickle.dumps(Trace(full.task, full.panel, full.records[:n])))
    world = world_of(run)
    resumed = carry_out(prefix, run, world) or prefix
    assert same(resumed, full)
    assert resumed.outcome == full.outcome
    assert not {r.slot for r in prefix.records} & set(world.asked)


@settings(max_examples=80, deadline=None)
@given(st.one_of(runs, failing))
def test_arrival_order_decides_nothing(run):
    """Two runs whose records arrive in different orders hold the same records, failures too."""
    one, other = (carry_out(begin(run), run, world_of(run)) for _ in range(2))
    assert same(one, other)
    assert one.outcome == other.outcome


@settings(max_examples=60, deadline=None)
@given(run=runs, cut=st.floats(0, 1), seed=st.integers(0, 99))
def test_the_plan_is_a_function_of_what_is_recorded(run, cut, seed):
    """The same records in any order ask for the same steps."""
    full = carry_out(begin(run), run, world_of(run))
    kept = full.records[: max(1, int(cut * (len(full.records) - 1)))]
    mixed = random.Random(seed).sample(kept, len(kept))
    assert plan_of(run)(Trace(full.task, full.panel, tuple(mixed))) == plan_of(run)(Trace(full.task, full.panel, kept))


@settings(max_examples=60, deadline=None)
@given(runs)
def test_graders_that_compute_are_taken_at_their_word(run):
    """The answer is the one that the plain rules would keep, with the score that was observed."""
    run = {**run, "panel": "free"}
    ended = carry_out(begin(run), run, world_of(run))
    observed = Trace(ended.task, ended.panel, ended.records[:-1])
    assert ended.best == observed.best
    assert ended.score == pytest.approx(ended.judge_score, abs=1e-6)


def test_a_replay_needs_no_world():
    """A full trace can be played again without asking anybody."""
    run = {"seed": 4, "panel": "two", "prior": HELPS, "drafts": 2, "attempts": 4, "price": 0.0, "fails": 0.0, "given": False}
    full = carry_out(begin(run), run, world_of(run))

    async def ending(step):
        assert isinstance(step, Stop)
        return step.outcome

    assert same(carry_out(begin(run), run, replay_from(full, ending)), full)


def test_a_belief_is_what_the_plan_reports():
    """The score of the end is the mean that is believed of what is kept."""
    run = {"seed": 7, "panel": "judge", "prior": DOUBTS, "drafts": 3, "attempts": 3, "price": 0.0, "fails": 0.0, "given": False}
    ended = carry_out(begin(run), run, world_of(run))
    belief = Posterior(observe(ended), DOUBTS)
    assert ended.score == belief.means[ended.best.id] == max(belief.means.values())
