"""`calibrate` learns priors from a stated number of calls, says what they mean, and saves them only
when asked.
"""

import asyncio
import random
import threading
from time import monotonic, sleep

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import redraft
from redraft.errors import ConfigError, ModelError
from redraft.plans.quality.diagnosis import scores_to_show
from redraft.plans.quality.fit import PriorsFit, fit_with_errors, lift
from redraft.plans.quality.priors import Priors
from redraft.protocols import Reply
from redraft.runs.learning import LearnedPriors, LearnedValue, evenly_chosen
from redraft.storage.priors_store import PriorsKey, PriorsStore


async def judge(text, model):
    """The score that a model answers."""
    return redraft.Feedback(float(await model(f"How good is {text}?")), actions=("Say more.",))


class Bench:
    """A writer and a judge whose numbers are known: drafts of quality `level`, refinements that add
    `gain`, scores with `noise`.

    A text contains its quality. Calls whose prompt contains `failing` fail.
    """

    name = identity = "bench"

    def __init__(self, seed=0, level=0.5, gain=0.1, noise=0.05, failing="nothing"):
        self.dice, self.level, self.gain, self.noise, self.failing = (
            random.Random(seed),
            level,
            gain,
            noise,
            failing,
        )
        self.calls = 0

    async def complete(self, request):
        """Write, or grade if the prompt is that of the judge."""
        self.calls += 1
        prompt = request.messages[0]["content"]
        if self.failing in prompt:
            raise ModelError("out of service")
        is_grade = prompt.startswith("How good is ")
        return Reply(
            self.score(prompt[12:-1]) if is_grade else self.text(request.messages),
            redraft.Usage(1, 10, 5),
        )

    def text(self, messages):
        parent = next((m["content"] for m in messages if m["role"] == "assistant"), None)
        quality = self.level if parent is None else float(parent) + self.gain
        return f"{quality + self.dice.gauss(0, 0.02):.6f}"

    def score(self, text):
        return str(min(1.0, max(0.0, float(text) + self.dice.gauss(0, self.noise))))

    def calibrate(self, tasks=20, **given):
        prompts = [f"Task {n}." for n in range(tasks)]
        return redraft.calibrate_sync(prompts, self, judge, max_in_flight=1, retries=0, **given)


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(st.integers(5, 60), st.integers(1, 20))
def test_no_more_than_the_stated_calls_are_made(calls, tasks):
    """It states the tasks and the calls beforehand, and makes exactly those."""
    bench, said = Bench(), []
    learned = bench.calibrate(tasks, calls=calls, say=said.append)
    used = min(tasks, calls // 5)
    assert bench.calls == learned.usage.calls == 5 * used <= calls
    assert learned.tasks == learned.priors.tasks == used
    [line] = said
    assert f"{used:,} of {tasks:,} task" in line and f"at most {5 * used} calls" in line


@pytest.mark.parametrize(("gain", "verdict"), [(0.2, "helps"), (-0.2, "hurts"), (0.0, "unclear")])
def test_it_tells_whether_refining_helps(gain, verdict):
    """The estimates lie within three standard errors; the sentence says what the lift means."""
    bench = Bench(gain=gain)
    learned = bench.calibrate(calls=100)
    assert learned.noise.value == pytest.approx(bench.noise, abs=3 * learned.noise.error)
    assert abs(learned.level.value - bench.level) < 3 * learned.level.error
    assert learned.verdict == verdict
    assert (f"refining {verdict}" in learned.summary()[-1]) is (verdict != "unclear")
    assert learned.lift.used == pytest.approx(lift(learned.priors))
    assert learned.as_data()["refining"] == verdict


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("noise", [0.02, 0.25])
def test_it_learns_the_noise_and_says_how_many_scores_it_takes(noise):
    """More noise, more scores."""
    learned = Bench(noise=noise, level=0.5).calibrate(calls=200, tasks=40)
    assert learned.noise.value == pytest.approx(noise, abs=0.05)
    assert (
        f"about {scores_to_show(0.1, learned.noise.value)} scores of each show a difference of 0.1"
        in learned.summary()[1]
    )


def test_what_was_learned_as_lines_and_as_data():
    """To the digit; without a second score, without a drift, and without a key nothing is said of
    them.
    """
    values = {
        "noise": LearnedValue(0.25, 0.03125, 0.125, 0.25),
        "level": LearnedValue(0.5, 0.0625, 0.625, 0.53125),
        "lift": LearnedValue(-0.25, 0.0625, 0.125, -0.25),
    }
    key = PriorsKey("0123456789abcdef", "m", ("judge",), ("f",))
    drift = LearnedValue(0.125, 0.0625, 0.0, 0.0625)
    learned = LearnedPriors(
        Priors(), tasks=1, usage=redraft.Usage(1200, 3, 4, cost=0.5), key=key, drift=drift, **values
    )
    assert learned.summary() == [
        "learned from 1 task, 1,200 calls",
        "noise 0.25 +- 0.03 (shipped 0.12): about 49 scores of each show a difference of 0.1 between two texts",
        "level 0.50 +- 0.06 (used: 0.53, shipped 0.62): the mean quality of first drafts",
        "lift -0.25 +- 0.06 (shipped 0.12): what a refinement adds to a first draft; refining hurts",
        "drift 0.12 +- 0.06 (used: 0.06, shipped 0.00): what the judge adds to a refinement, by people's labels",
    ]
    assert learned.as_data() == {
        "priors": Priors().to_dict(),
        "noise": {"value": 0.25, "error": 0.03125, "shipped": 0.125, "used": 0.25},
        "level": {"value": 0.5, "error": 0.0625, "shipped": 0.625, "used": 0.53125},
        "lift": {"value": -0.25, "error": 0.0625, "shipped": 0.125, "used": -0.25},
        "drift": {"value": 0.125, "error": 0.0625, "shipped": 0.0, "used": 0.0625},
        "refining": "hurts",
        "tasks": 1,
        "calls": 1200,
        "tokens": 7,
        "cost": 0.5,
        "for": {
            "key": "0123456789abcdef",
            "model": "m",
            "graders": ["judge"],
            "fingerprints": ["f"],
        },
    }
    values["noise"] = LearnedValue(0.125, None, 0.125, 0.125)
    values["lift"] = LearnedValue(0.125, 0.0625, 0.125, 0.125)  # less than 1.96 errors
    nothing = LearnedPriors(Priors(), tasks=2, **values)
    assert nothing.summary() == [
        "learned from 2 tasks, 0 calls",
        "noise 0.12 (shipped 0.12): no text was scored twice, so nothing was learned",
        "level 0.50 +- 0.06 (used: 0.53, shipped 0.62): the mean quality of first drafts",
        "lift 0.12 +- 0.06 (shipped 0.12): what a refinement adds to a first draft; refining helps",
    ]
    assert (nothing.as_data()["for"], "drift" in nothing.as_data(), nothing.as_data()["calls"]) == (
        None,
        False,
        0,
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"calls": 4}, "calls must be at least 5"),
        ({"calls": 0}, "calls must be"),
        ({"tasks": 0}, "tasks: there is none"),
        ({"say": 3}, "say must be a function"),
        ({"max_iterations": 3}, "unknown argument 'max_iterations'"),
        ({"priors": Priors()}, "unknown argument 'priors'"),
    ],
)
def test_wrong_arguments_are_refused_before_any_call(given, words):
    """The error names the argument and what is allowed."""
    bench = Bench()
    with pytest.raises(ConfigError, match=words):
        bench.calibrate(**given)
    assert bench.calls == 0


def test_nothing_is_saved_unless_asked():
    """Saved priors are those with which a run with priors="learned" starts."""
    bench = Bench()
    learned = bench.calibrate(calls=50)
    assert list(PriorsStore.in_folder().entries()) == []
    assert learned.save().priors == learned.priors
    result = redraft.refine_sync("Write.", bench, judge, priors="learned")
    assert result.priors == learned.priors.to_dict()
    # those of more tasks stay
    assert bench.calibrate(calls=40, tasks=8).save().priors == learned.priors


def test_too_few_tasks_are_not_saved():
    """Seven tasks are not enough."""
    learned = Bench().calibrate(calls=35)
    with pytest.raises(ConfigError, match="at least 8"):
        learned.save()


def test_a_failed_task_is_left_out_and_a_failure_of_all_is_raised():
    """The others teach; without any the error is that of the first task."""
    assert Bench(failing="Task 3.").calibrate(tasks=8).tasks == 7
    with pytest.raises(ModelError, match="out of service"):
        Bench(failing="Task").calibrate()


def test_a_judge_that_repeats_its_grades_gets_no_second_look():
    """Its repeats show the noise; a task takes two texts with two grades each."""
    bench, said = Bench(), []
    learned = redraft.calibrate_sync(
        ["Task."] * 20, bench, redraft.with_weight(judge, 1, repeats=2), calls=12, say=said.append
    )
    assert "6 calls each" in said[0]
    assert (bench.calls, learned.tasks, learned.noise.error is None) == (12, 2, False)


@given(st.lists(st.integers(), max_size=30), st.integers(0, 40))
def test_tasks_are_evenly_chosen(tasks, most):
    """In order, without repeats of a position, and all of them if there is room."""
    numbered = list(enumerate(tasks))
    chosen = evenly_chosen(numbered, most)
    assert len(chosen) == min(most, len(tasks))
    assert chosen == sorted(set(chosen), key=lambda task: task[0])


def test_what_was_not_learned_is_said():
    """Nothing is claimed without an error."""
    learned = LearnedPriors.from_fit(PriorsFit(Priors()), 0)
    assert learned.verdict == "unclear"
    assert "nothing was learned" in learned.summary()[1]
    assert LearnedValue(0.5, None, 0.5, 0.5).sign == 0


async def test_the_fit_does_not_block_the_event_loop(monkeypatch):
    """Other tasks of a service go on while priors are fitted to many tasks."""
    ticks = 0

    def slow_fit(*given):
        deadline = monotonic() + 5
        while ticks < 10 and monotonic() < deadline:
            sleep(0.01)
        return fit_with_errors(*given)

    async def tick():
        nonlocal ticks
        while True:
            await asyncio.sleep(0.001)
            ticks += fitting.is_set()

    fitting = threading.Event()
    monkeypatch.setattr(
        "redraft.runs.learning.fit_with_errors", lambda *given: (fitting.set(), slow_fit(*given))[1]
    )
    ticking = asyncio.create_task(tick())
    learned = await redraft.calibrate(["Task 1."], Bench(), judge, calls=5)
    ticking.cancel()
    assert learned.tasks == 1
    assert ticks >= 10


def test_computed_scores_have_no_noise_to_learn():
    """It is said to which runs such priors apply."""
    learned = redraft.calibrate_sync(
        ["Task."] * 20,
        Bench(),
        lambda text: redraft.Feedback(float(text), actions=("More.",)),
        calls=20,
    )
    assert learned.is_exact and "noise_aware=True" in learned.summary()[1]


def test_what_was_measured_stands_beside_what_is_used():
    """Priors move only part of the way: a real lift is shown, not the shipped one."""
    learned = Bench(gain=0.1, noise=0.1).calibrate(calls=100)
    assert abs(learned.lift.value - 0.1) < 3 * learned.lift.error
    assert learned.lift.shipped <= learned.lift.used <= learned.lift.value
    assert str(learned.lift).startswith(f"{learned.lift.value:.2f} +- ") and "used: " in str(
        learned.lift
    )
