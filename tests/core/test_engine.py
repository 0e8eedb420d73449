"""The engine: a run that is cut, reordered or replayed gives the same trace and repeats no call."""

import asyncio
import pickle
import random
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import World, last, replay_from, same

import redraft
from redraft.loop.engine import advance
from redraft.loop.prompts import refinement_messages, tried_lines
from redraft.loop.records import (
    Candidate,
    Comparison,
    Failure,
    Feedback,
    Outcome,
    StopReason,
    ToolCall,
)
from redraft.loop.steps import Generate, Grade, Refine, Stop
from redraft.loop.stopping import done, max_iterations, patience, target
from redraft.loop.task import Task
from redraft.loop.trace import PanelGrader, Trace, cached_view
from redraft.plans import plan_from_generator
from redraft.plans.adaptive import Adaptive
from redraft.plans.base import returns_rounds
from redraft.plans.self_refine import BestOfN, SelfRefine
from redraft.usage import Usage

JUDGES = (PanelGrader("tone"), PanelGrader("facts", weight=2.0))
RULE = target(0.93) | done() | patience(3) | max_iterations(5)
PANELS = {
    "judges": JUDGES,
    "looks": (PanelGrader("tone", repeats=3), PanelGrader("facts")),
    "requirement": (PanelGrader("no_a", must=True, model_free=True, editable=True), *JUDGES),
    "ranker": (PanelGrader("ranker", compares=True),),
    "both": (PanelGrader("facts"), PanelGrader("ranker", compares=True)),
}
PLANS = {"refine": SelfRefine(RULE), "drafts": SelfRefine(RULE, drafts=3), "best of": BestOfN(3)}

runs = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 10_000),
        "panel": st.sampled_from(sorted(PANELS)),
        "plan": st.sampled_from(sorted(PLANS)),
        "fails": st.sampled_from([0.0, 0.0, 0.15, 0.5]),
        "given": st.booleans(),
    }
)


def begin(run):
    task = Task("explain", "a given answer" if run["given"] else None)
    trace = Trace(task, PANELS[run["panel"]])
    return trace + Candidate(0, task.response) if run["given"] else trace


def carry_out(trace, run, world):
    return asyncio.run(last(advance(trace, PLANS[run["plan"]], world)))


@settings(max_examples=2 * settings.default.max_examples, deadline=None)
@given(run=runs, cut=st.floats(0, 1))
def test_every_prefix_resumes_to_the_same_trace(run, cut):
    """A run that is cut anywhere, pickled and resumed ends the same; only failures are tried
    again.
    """
    full = carry_out(begin(run), run, World(run["seed"], run["fails"]))
    assert full.outcome
    n = max(1, int(cut * len(full.records)))
    prefix = pickle.loads(pickle.dumps(Trace(full.task, full.panel, full.records[:n])))
    world = World(run["seed"], run["fails"])
    resumed = carry_out(prefix, run, world) or prefix
    assert same(resumed, full)
    assert resumed.outcome == full.outcome
    recorded = {r.slot for r in prefix.records if not isinstance(r, Failure)}
    assert not recorded & set(world.asked)


@settings(max_examples=60, deadline=None)
@given(run=runs)
def test_arrival_order_does_not_matter(run):
    """Two runs whose records arrive in different orders hold the same records."""
    one, other = (carry_out(begin(run), run, World(run["seed"], run["fails"])) for _ in range(2))
    assert same(one, other)
    assert [c.id for c in one.candidates] == [c.id for c in other.candidates]


@settings(max_examples=60, deadline=None)
@given(run=runs)
def test_rounds_change_no_step(run):
    """A plan that is asked after each record, also in the middle of a round, leads to the same
    trace.
    """
    by_rounds = advance(
        begin(run), PLANS[run["plan"]], World(run["seed"], run["fails"]), by_rounds=True
    )
    assert same(
        asyncio.run(last(by_rounds)), carry_out(begin(run), run, World(run["seed"], run["fails"]))
    )


def test_plan_is_not_asked_in_the_middle_of_a_round():
    """Of four grades that arrive one by one, the plan is asked again after the last; after a
    failure, it is asked at once.
    """

    def times_asked(failing):
        asked = []

        def plan(trace):
            asked.append(len(trace.records))
            return SelfRefine(max_iterations(0))(trace)

        async def perform(step):
            for _ in range(3 * int(getattr(step, "grader", "0"))):
                await asyncio.sleep(0)
            if step.slot == ("feedback", 0, failing, 0):
                return Failure(step.slot, step.role, "ModelError", "no")
            return World(5, jitter=False).answer(step)

        asyncio.run(
            last(
                advance(
                    Trace(Task("x"), tuple(map(PanelGrader, "1234"))), plan, perform, by_rounds=True
                )
            )
        )
        return asked

    assert times_asked("none") == [0, 1, 5]
    assert times_asked("2") == [0, 1, 3, 5]


class Subclass(SelfRefine):
    pass


@pytest.mark.parametrize(
    ("plan", "relied_on"),
    [
        (SelfRefine(), True),
        (BestOfN(3), True),
        (Adaptive(), True),
        (Subclass(), False),
        (Adaptive(base_plan=Subclass()), False),
        (lambda trace: SelfRefine()(trace), False),
        (SelfRefine().__call__, False),
    ],
)
def test_only_rounds_of_our_own_plans_are_relied_on(plan, relied_on):
    assert returns_rounds(plan) is relied_on


async def test_a_users_plan_that_passes_on_our_steps_is_asked_after_each_grade():
    """It stops at the first bad score, without waiting for the grade of a slow judge."""
    finished = []

    def plan(trace):
        if any(f.score == 0 for c in trace.candidates for f in trace.feedback[c.id]):
            return [Stop(0, StopReason.DONE)]
        return SelfRefine()(trace)

    async def slow(text):
        await asyncio.sleep(2)
        finished.append(text)
        return 0.9

    result = await redraft.refine(
        Task("q", "a"), model=False, graders=[lambda text: 0.0, slow], plan=plan
    )
    assert (result.value, result.score, result.stop) == ("a", None, StopReason.DONE)
    assert not finished


def test_records_that_end_together_are_added_in_the_order_of_the_plan():
    """Whichever step ends first in one turn of the event loop."""

    async def order(turns):
        done, waiting = asyncio.Event(), []

        async def perform(step):
            for _ in range(turns[step.grader]):
                await asyncio.sleep(0)
            waiting.append(step)
            if len(waiting) == len(turns):
                asyncio.get_running_loop().call_soon(done.set)
            await done.wait()
            return Feedback(0.5, candidate=0, grader=step.grader)

        start = Trace(Task("x"), tuple(map(PanelGrader, "abcd"))) + Candidate(0, "z")
        trace = await last(
            advance(start, lambda t: [Grade(n, t.task, t.candidates[0]) for n in "abcd"], perform)
        )
        return "".join(r.grader for r in trace.records if isinstance(r, Feedback))

    for turns in permutations(range(4)):
        assert asyncio.run(order(dict(zip("abcd", turns, strict=True)))) == "abcd"


@settings(max_examples=60, deadline=None)
@given(run=runs)
def test_each_slot_is_performed_once(run):
    """A run performs each slot once, including slots that failed."""
    world = World(run["seed"], run["fails"])
    carry_out(begin(run), run, world)
    assert len(world.asked) == len(set(world.asked))


@settings(max_examples=40, deadline=None)
@given(run=runs)
def test_trace_resumes_from_json(run):
    """A trace that was written as JSON resumes where it ended."""
    full = carry_out(begin(run), run, World(run["seed"], run["fails"]))
    assert Trace.from_json(full.to_json()) == full


def random_record(chance, trace):
    """Return any record that can follow a trace."""
    ids, name = (
        [c.id for c in trace.candidates],
        chance.choice([grader.name for grader in trace.panel]),
    )
    kind = (
        chance.choice(
            ["candidate", "feedback", "feedback", "feedback", "comparison", "failure", "outcome"]
        )
        if ids
        else "candidate"
    )
    if kind == "candidate":
        id, parent = max([-1, *ids]) + chance.choice([1, 1, 1, 2]), chance.choice([None, *ids])
        id = chance.choice([n for n in range(id + 1) if n not in ids]) if parent is None else id
        calls = (ToolCall("search"),) * (chance.random() < 0.1)
        return Candidate(
            id,
            chance.choice("aabcdefgh"),
            parent,
            role=chance.choice(["generate", "refine", "repair"]),
            tool_calls=calls,
        )
    if kind == "comparison":
        return Comparison(tuple(chance.sample(ids, len(ids))), grader=name)
    if kind == "failure":
        slot = chance.choice([("candidate", max(ids) + 1), ("feedback", ids[0], name, 0)])
        return Failure(slot, "refine" if slot[0] == "candidate" else "grade", "Error", "failed")
    if kind == "outcome":
        return Outcome(chance.choice(ids), chance.choice(list(StopReason)))
    says = chance.choice(
        [
            {"score": 0.0},
            {"score": 0.5},
            {"score": 1.0},
            {"done": True},
            {"actions": ("x",)},
            {"reason": "?"},
            {},
        ]
    )
    usage = Usage(calls=chance.randrange(2))
    return Feedback(
        candidate=chance.choice([*ids, max(ids) + 1]),
        grader=name,
        repeat=chance.randrange(2),
        usage=usage,
        **says,
    )


@settings(max_examples=settings.default.max_examples, deadline=None)
@given(seed=st.integers(0, 2**32), panel=st.sampled_from([*PANELS, "optional"]))
def test_views_do_not_depend_on_which_were_read(seed, panel):
    """With the graders' scores and with others in their place, whatever was read before, and also
    after another record.
    """
    chance = random.Random(seed)
    views = [name for name, view in vars(Trace).items() if isinstance(view, cached_view)]
    optional = (
        PanelGrader("tone", may_call_model=True),
        PanelGrader("facts", must=True, reads_tool_calls=True),
    )
    trace = Trace(Task("explain"), PANELS.get(panel, optional))
    for _ in range(15):
        trace += random_record(chance, Trace(trace.task, trace.panel, trace.records))
        for name in chance.sample(views, chance.randrange(6)):
            getattr(trace, name)
        scores = {c.id: chance.random() for c in trace.candidates}
        fresh = Trace(trace.task, trace.panel, trace.records, given_scores=scores)
        rescored = trace.with_scores(scores)
        for name in chance.sample(views, 3):
            assert getattr(rescored, name) == getattr(fresh, name), name
        end = Outcome(None, StopReason.TARGET)
        assert (rescored + end).scores == (fresh + end).scores
        rescored = rescored.with_scores({})
        assert rescored.scores == trace.scores


@settings(max_examples=2 * settings.default.max_examples, deadline=None)
@given(seed=st.integers(0, 2**32), panel=st.sampled_from([*PANELS]))
def test_what_was_tried_does_not_depend_on_earlier_prompts(seed, panel):
    """A trace that was extended after prompts were made, also in two ways, gives the prompts of one
    built from all its records.
    """
    chance = random.Random(seed)
    trace = other = Trace(Task("explain"), PANELS[panel])
    for _ in range(15):
        if chance.random() < 0.2:
            trace, other = other, trace
        elif chance.random() < 0.1:
            other = trace
        trace += random_record(chance, Trace(trace.task, trace.panel, trace.records))
        fresh = Trace(trace.task, trace.panel, trace.records)
        for c in trace.candidates:
            assert tried_lines(trace, c) == tried_lines(fresh, c)


def test_replay_performs_no_step():
    """A complete trace replays without performing a step."""
    plan = SelfRefine(RULE, drafts=2)
    full = asyncio.run(last(advance(Trace(Task("x"), JUDGES), plan, World(1))))

    async def perform_nothing(step):
        raise AssertionError(step)

    assert same(
        asyncio.run(
            last(advance(Trace(Task("x"), JUDGES), plan, replay_from(full, perform_nothing)))
        ),
        full,
    )


def test_draft_is_graded_while_others_are_written():
    """The first draft is graded before a slow draft arrives."""

    async def scenario():
        slow, order = asyncio.Event(), []

        async def perform(step):
            order.append(step.slot)
            if step.slot == ("candidate", 1):
                await slow.wait()
            if step.slot == ("feedback", 0, "facts", 0):
                # the slow draft only ever comes after the fast one's grade was asked for
                slow.set()
            return World(5).answer(step)

        await asyncio.wait_for(
            last(
                advance(Trace(Task("x"), JUDGES), SelfRefine(max_iterations(0), drafts=2), perform)
            ),
            5,
        )
        return order

    order = asyncio.run(scenario())
    assert order.index(("feedback", 0, "facts", 0)) < order.index(("feedback", 1, "facts", 0))


def test_closing_the_iterator_cancels_running_steps():
    """No step keeps running after the iterator is closed."""

    async def scenario():
        cancelled = []

        async def perform(step):
            if step.slot == ("candidate", 1):
                try:
                    await asyncio.Event().wait()
                finally:
                    cancelled.append(step.slot)
            return World(5).answer(step)

        growing = advance(Trace(Task("x"), JUDGES), SelfRefine(RULE, drafts=2), perform)
        async for _ in growing:
            break
        await growing.aclose()
        return cancelled

    assert asyncio.run(scenario()) == [("candidate", 1)]


def test_plan_that_repeats_itself_ends():
    """Steps that completed or failed are not performed again."""

    async def perform(step):
        perform.calls += 1
        return (
            World(1).answer(step)
            if step.slot == ("candidate", 0)
            else Failure(step.slot, "generate", "ModelError")
        )

    perform.calls = 0
    stubborn = lambda trace: [Generate(0, trace.task.messages), Generate(1, trace.task.messages)]
    trace = asyncio.run(asyncio.wait_for(last(advance(Trace(Task("q")), stubborn, perform)), 5))
    assert perform.calls == 2
    assert len(trace.candidates) == 1


def refinement_generator(graders, stop, drafts):
    def run_plan(task):
        trace = Trace(task, tuple(PanelGrader(g) for g in graders))
        for record in (yield [Generate(i, task.messages) for i in range(drafts)]):
            trace += record
        while True:
            for record in (
                yield trace.missing(Grade(g, task, c) for c in trace.candidates for g in graders)
            ):
                trace += record
            if ending := stop(trace):
                yield [Stop(trace.best.id, *ending)]
                return
            for record in (
                yield [Refine(trace.next_id, refinement_messages(trace, trace.best), trace.best.id)]
            ):
                trace += record

    return run_plan


def test_generator_plan_equals_rules():
    """A generator written like SelfRefine gives the same trace, also from every prefix."""
    for seed in range(12):
        drafts = 1 + seed % 3
        run_plan = plan_from_generator(refinement_generator(("tone", "facts"), RULE, drafts))
        start = Trace(Task("q"), (PanelGrader("tone"), PanelGrader("facts")))
        by_rules = asyncio.run(last(advance(start, SelfRefine(RULE, drafts), World(seed))))
        by_generator = asyncio.run(last(advance(start, run_plan, World(seed))))
        assert same(by_rules, by_generator)
        for n in range(0, len(by_generator.records) - 1, 3):
            prefix = Trace(start.task, start.panel, by_generator.records[:n])
            assert same(asyncio.run(last(advance(prefix, run_plan, World(seed)))), by_generator)


def test_generator_may_end_without_stop():
    """A generator that returns has no more steps, and the trace has no outcome."""

    def run_plan(task):
        yield [Generate(0, task.messages)]

    trace = asyncio.run(last(advance(Trace(Task("q")), plan_from_generator(run_plan), World(1))))
    assert len(trace.candidates) == 1
    assert trace.outcome is None


def test_generator_receives_failures():
    """A generator plan sees what failed and continues with the rest."""

    def run_plan(task):
        first, second = yield [Generate(0, task.messages), Generate(1, task.messages)]
        candidates = [r for r in (first, second) if not isinstance(r, Failure)]
        yield [Stop(candidates[0].id, StopReason.DONE)]

    async def perform(step):
        world = World(1)
        return (
            Failure(step.slot, "generate", "ModelError")
            if step.slot == ("candidate", 0)
            else world.answer(step)
        )

    trace = asyncio.run(last(advance(Trace(Task("q")), plan_from_generator(run_plan), perform)))
    assert trace.outcome == Outcome(1, StopReason.DONE)
