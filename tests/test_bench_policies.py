"""The policy benchmark: its simulated worlds follow their file, and its figures are
reproducible.
"""

import json
import subprocess
import sys
import tomllib
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import correlation, fmean, pstdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import policies
from redraft.loop.steps import Grade
from redraft.plans.adaptive import Adaptive
from redraft.plans.quality.priors import Priors
from redraft.plans.self_refine import BestOfN, SelfRefine
from simulation import lessons
from simulation.beliefs import adaptive
from simulation.catalogue import (
    BEST,
    DEFAULTS,
    EARLIER,
    JUDGE,
    KIT,
    LESSONS,
    REFINE,
    charged,
    default_after,
    rivals,
)
from simulation.figures import Point, at_calls, at_quality, calls_ratio, lead, single_setting, swept
from simulation.games import play, play_near
from simulation.goals import goal
from simulation.indices import one_step_index
from simulation.lessons import teach
from simulation.players import run_plan, run_with_separate_budgets, run_with_shared_budget
from simulation.ranks import losses, overall_goals, rankings, world_standing
from simulation.report import headline
from simulation.results import TaskResult
from simulation.rivals import dspy, executionkit, openjudge, single
from simulation.stopping import beacon, index, pandora, standing, threshold
from simulation.worlds import BadWorldError, Episode, World, read

BENCH = Path(__file__).parent.parent / "bench"
WORLDS = BENCH / "worlds.toml"
SHARES = st.floats(0, 1)
SMALL = st.floats(0, 0.3)


@st.composite
def worlds(draw, **fixed):
    """Any world that a file may define."""
    up = draw(SHARES)
    low, high = sorted((draw(SHARES), draw(SHARES)))
    told = dict(
        draft_mean=draw(SHARES),
        task_sd=draw(SMALL),
        draft_sd=draw(SMALL),
        ceiling=draw(SHARES),
        ceiling_sd=draw(SMALL),
    )
    told |= dict(
        up=up,
        down=draw(st.floats(0, 1 - up)),
        gap_lo=low,
        gap_hi=high,
        drop=draw(SMALL),
        judge_sd=draw(SMALL),
    )
    told |= dict(
        style_sd=draw(SMALL),
        drift=draw(SMALL),
        leniency=draw(SMALL),
        quantum=draw(st.sampled_from([0.05, 0.1, 0.2, 0.25])),
    )
    return World("any", **(told | fixed))


def plain_world(**told):
    """A world without randomness except for the given values."""
    still = dict.fromkeys(
        (
            "task_sd",
            "draft_sd",
            "ceiling_sd",
            "up",
            "down",
            "drop",
            "judge_sd",
            "style_sd",
            "drift",
        ),
        0.0,
    )
    return World(
        "plain",
        **(still | dict(draft_mean=0.5, ceiling=0.9, gap_lo=0.5, gap_hi=0.5, quantum=0.1) | told),
    )


def bench(*args):
    """Run the script as a user would."""
    return subprocess.run(
        [sys.executable, BENCH / "policies.py", *map(str, args)],
        capture_output=True,
        text=True,
        timeout=300,
    )


def two_worlds(path):
    """A user's file with two worlds, one of which has graders that compute."""
    tables = tomllib.loads(WORLDS.read_text())
    kept = {"mine": tables["hostile"], "tests": tables["verifier"]}
    lines = [
        line
        for name, table in kept.items()
        for line in [f"[{name}]", *(f"{key} = {value}" for key, value in table.items())]
    ]
    path.write_text("\n".join(lines))
    return path


@settings(max_examples=40, deadline=None)
@given(worlds(), st.integers(0, 9))
def test_qualities_stay_below_the_ceiling_and_grades_are_scores_on_the_judges_scale(world, task):
    """No quality is outside [0, ceiling], and no score is outside [0, 1] or between the judge's
    steps.
    """
    episode = Episode(world, task)
    episode.draft(0)
    for id in range(1, 5):
        episode.refine(id, id - 1)
    for id, text in episode.texts.items():
        assert 0 <= text.quality <= episode.ceiling <= 1
        score = episode.grade(id)
        steps = score / world.quantum
        assert 0 <= score <= 1 and abs(steps - round(steps)) < 1e-6
    assert episode.calls == 10


@settings(max_examples=20, deadline=None)
@given(worlds(), st.integers(0, 9))
def test_the_effect_of_a_step_depends_on_the_step_alone(world, task):
    """Two policies with the same task get the same draft and the same refinement of it, whatever
    they did before.
    """
    one, other = Episode(world, task), Episode(world, task)
    one.draft(0)
    other.draft(5)
    other.draft(0)
    other.grade(5)
    one.refine(1, 0)
    other.refine(1, 0)
    assert one.texts[0] == other.texts[0]
    assert one.texts[1] == other.texts[1]


def test_two_worlds_share_no_luck():
    """Worlds that differ in their names alone have unrelated drafts, refinements and grades."""
    ones, others = [], []
    for name, found in (("one", ones), ("another", others)):
        world = replace(plain_world(draft_sd=0.1, judge_sd=0.1, quantum=0.001), name=name)
        for task in range(400):
            episode = Episode(world, 0, task)
            episode.draft(0)
            episode.refine(1, 0)
            found.append((episode.texts[0].quality, episode.texts[1].quality, episode.grade(0)))
    for one, other in zip(zip(*ones, strict=True), zip(*others, strict=True), strict=True):
        assert abs(correlation(one, other)) < 0.2  # four standard errors


@settings(max_examples=20, deadline=None)
@given(worlds(up=1.0, down=0.0), st.integers(0, 9))
def test_with_up_at_one_a_refinement_closes_the_promised_share_of_the_gap(world, task):
    """A refinement raises the quality by gap_lo to gap_hi of its distance to the ceiling."""
    episode = Episode(world, task)
    episode.draft(0)
    episode.refine(1, 0)
    gap, closed = (
        episode.ceiling - episode.texts[0].quality,
        episode.texts[1].quality - episode.texts[0].quality,
    )
    assert world.gap_lo * gap - 1e-9 <= closed <= world.gap_hi * gap + 1e-9


@settings(max_examples=20, deadline=None)
@given(worlds(up=0.0, down=1.0), st.integers(0, 9))
def test_with_down_at_one_a_refinement_never_helps_and_a_hint_never_harms(world, task):
    """A refinement lowers the quality; a draft with advice is not lowered."""
    episode = Episode(world, task)
    episode.draft(0)
    episode.refine(1, 0)
    assert episode.texts[1].quality <= episode.texts[0].quality
    again = Episode(world, task)
    again.draft(0, hinted=True)
    assert again.texts[0].quality >= episode.texts[0].quality - 0.05  # or stays, give or take


def test_the_chances_of_a_refinement_are_those_of_the_file():
    """Over many tasks it helps, harms or does nearly nothing as often as the world says, and vague
    advice helps less.
    """
    world = plain_world(up=0.4, down=0.2, drop=0.3)
    for up, share in ((1.0, 0.4), (0.7, 0.28)):
        moves = []
        for task in range(2000):
            episode = Episode(world, task)
            episode.draft(0)
            episode.refine(1, 0, up)
            moves.append(episode.texts[1].quality - episode.texts[0].quality)
        assert fmean(move > 0.1 for move in moves) == pytest.approx(share, abs=0.03)
        # exp(-.05 / .3) of the drops
        assert fmean(move < -0.05 for move in moves) == pytest.approx(0.2 * 0.85, abs=0.03)


def test_the_judge_has_the_noise_of_the_file_and_is_reproducible():
    """Repeats of a grade differ by judge_sd; the same repeat has the same grade."""
    episode = Episode(plain_world(judge_sd=0.1, quantum=0.001), 0)
    episode.draft(0)
    looks = [episode.grade(0, look) for look in range(2000)]
    assert fmean(looks) == pytest.approx(0.5, abs=0.01)
    assert pstdev(looks) == pytest.approx(0.1, abs=0.01)
    assert episode.grade(0, 7) == looks[7]


def test_a_lenient_judge_scores_later_revisions_higher():
    """The first revision gets its score, the next ones and a second grade of the draft get the
    bonus of the world.
    """
    episode = Episode(plain_world(leniency=0.05, quantum=0.05), 0)
    episode.draft(0)
    for id in (1, 2):
        episode.refine(id, 0)
    before, first, second, after = (
        episode.grade(0),
        episode.grade(1),
        episode.grade(2),
        episode.grade(0, 1),
    )
    assert before == pytest.approx(0.5)
    assert after - before == pytest.approx(0.1)
    assert first <= second


def test_every_policy_pays_for_its_calls():
    """Calls are those of each tool's own loop; where nothing helps, all policies run to their
    end.
    """
    world = plain_world()
    assert single(Episode(world, 0)).calls == 1
    # a draft and three refinements that change nothing, each graded
    assert executionkit(Episode(world, 0)).calls == 8
    assert openjudge(Episode(world, 0)).calls == 7
    assert dspy(3, Episode(world, 0)).calls == 8
    assert [played.calls for played in run_plan(BestOfN(4), [Episode(world, 0)])] == [8]
    assert [played.calls for played in run_plan(SelfRefine(), [Episode(world, 0)])] == [6]


def test_only_the_adaptive_plan_reports_another_score_than_it_observed():
    """With a judge that always says .9 the plain rules report .9, and the adaptive plan does
    not.
    """
    episodes = lambda: [
        Episode(plain_world(draft_mean=0.9, judge_sd=1e-9), task) for task in range(3)
    ]
    assert all(
        played.score == 0.9 and played.reached for played in run_plan(SelfRefine(), episodes())
    )
    assert all(played.score < 0.9 for played in run_plan(Adaptive(), episodes()))


def test_the_adaptive_plan_reports_the_score_of_a_computing_judge():
    """It stops at the target with the observed score."""
    (played,) = run_plan(Adaptive(), [Episode(plain_world(draft_mean=0.9), 0)])
    assert played.calls == 2
    assert played.score == pytest.approx(0.9, abs=1e-6)


def test_policies_are_compared_at_equal_calls_and_at_equal_quality():
    """Between two settings of a policy, some tasks have one and some the other."""
    calls, qualities = ((2, 0.5), (6, 0.6), (10, 0.65)), (0.0, 0.02, -0.02)
    points = [
        Point(i, tuple(TaskResult(q + d, c, None, reached=False) for d in qualities))
        for i, (c, q) in enumerate(calls)
    ]
    rival = single_setting(
        Point(0, tuple(TaskResult(0.55 + d, 8, None, reached=False) for d in qualities))
    )
    assert at_calls(points, 4).share == 0.5
    assert at_quality(points, 0.55).share == pytest.approx(0.5)
    assert at_quality(points, 0.7) is None
    gained, ratio = lead(points, rival), calls_ratio(points, rival)
    assert gained.value == pytest.approx(0.625 - 0.55)
    # paired: the tasks differ, the policies do not
    assert gained.error == pytest.approx(0, abs=1e-9)
    assert ratio.value == pytest.approx(4 / 8)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("up = 1.5", "world 'bad': up must be a number in [0, 1], got 1.5"),
        ('drop = "much"', "world 'bad': drop must be a number in [0, 1], got 'much'"),
        ("judge_sd = nan", "world 'bad': judge_sd must be a number in [0, 1], got nan"),
        ("quantum = 0", "world 'bad': quantum must be a number in (0, 1], got 0"),
        ("down = 0.9", "world 'bad': up + down must be at most 1"),
        ("gap_lo = 0.9", "world 'bad': gap_lo must be at most 0.55, got 0.9"),
        ("sway = 0.1", "world 'bad': unknown key 'sway'; there are draft_mean"),
        ("saturates_at = 0", "world 'bad': saturates_at must be a number in (0, 1], got 0"),
        ("binary_at = -0.5", "world 'bad': binary_at must be a number in [0, 1], got -0.5"),
        ("judge_sd_bad = true", "world 'bad': judge_sd_bad must be a number in [0, 1], got True"),
        (
            "silent = 0.7\nsilent_bad = 0.4",
            "world 'bad': silent + silent_bad must be at most 1, got 1.1",
        ),
        (
            "easy = 0.6\nimpossible = 0.6",
            "world 'bad': easy + impossible must be at most 1, got 1.2",
        ),
        ("up", "bad.toml: "),
    ],
)
def test_an_invalid_world_is_named(tmp_path, line, told):
    """The error names the world, the key and what is allowed."""
    good = tomllib.loads(WORLDS.read_text())["writing"] | {line.partition(" ")[0]: None}
    path = tmp_path / "bad.toml"
    path.write_text(
        "\n".join(
            [
                "[bad]",
                *(f"{key} = {value}" for key, value in good.items() if value is not None),
                line,
            ]
        )
    )
    with pytest.raises(BadWorldError) as refused:
        read(path)
    assert told in str(refused.value)


@pytest.mark.parametrize("text", ["", "up = 1", "[a]\nup = 0.5", '["<b>"]', "\xff", "[a"])
def test_a_file_without_worlds_is_refused(tmp_path, text):
    """The file is empty, has something else, half a world, an invalid name, no text, or no TOML."""
    path = tmp_path / "none.toml"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(BadWorldError):
        read(path)


def test_the_shipped_worlds_can_be_read():
    """There are twenty-two; in two the judge computes, in two refining hurts, and in five the
    judge's scores are off by their nature.
    """
    shipped = read(WORLDS)
    assert len(shipped) == 22
    assert [world.name for world in shipped if world.free] == ["verifier", "tests"]
    assert [world.name for world in shipped if world.hurts] == ["hostile", "poison"]
    assert [world.name for world in shipped if not world.unbiased] == [
        "lenient",
        "binary",
        "saturating",
        "few-verdicts",
        "gullible",
    ]


KINDS = [
    (dict(binary_at=0.5, judge_sd=0.3, quantum=0.3), lambda scores: set(scores) == {0.0, 1.0}),
    (dict(saturates_at=0.5), lambda scores: set(scores) == {1.0}),
    (dict(saturates_at=0.8, quantum=0.005), lambda scores: set(scores) == {0.625}),
    (dict(silent=1.0), lambda scores: set(scores) == {None}),
    (
        dict(silent=0.3),
        lambda scores: fmean(score is None for score in scores) == pytest.approx(0.3, abs=0.04),
    ),
    (
        dict(silent_bad=0.6),
        lambda scores: fmean(score is None for score in scores) == pytest.approx(0.3, abs=0.04),
    ),
    (
        dict(judge_sd=0.0, judge_sd_bad=0.2, quantum=0.001),
        lambda scores: pstdev(scores) == pytest.approx(0.1, abs=0.01),
    ),
    (
        dict(judge_sd=0.1, judge_sd_bad=0.1, quantum=0.001),
        lambda scores: pstdev(scores) == pytest.approx(0.1, abs=0.01),
    ),
    (
        dict(judge_sd=0.05, judge_tails=0.25, quantum=0.001),
        # 3/4 at 1, 1/4 at 3: variance times 3
        lambda scores: pstdev(scores) == pytest.approx(0.05 * 3**0.5, abs=0.01),
    ),
]


@pytest.mark.parametrize(("keys", "holds"), KINDS, ids=[" ".join(keys) for keys, _ in KINDS])
def test_each_kind_of_judge_grades_a_text_of_quality_a_half_as_its_keys_say(keys, holds):
    """Yes or no, content early, silent, silent about bad texts, less sure about bad texts, and
    sometimes far off.
    """
    episode = Episode(plain_world(**keys), 0)
    episode.draft(0)
    assert holds([episode.grade(0, repeat) for repeat in range(2000)])


def test_easy_and_impossible_tasks_have_their_own_levels():
    """A share of the tasks begins near easy_at, and a share stays at impossible_at, however often
    it is refined.
    """
    episodes = [
        Episode(plain_world(easy=0.3, impossible=0.2, up=1.0), task) for task in range(1000)
    ]
    for episode in episodes:
        episode.draft(0)
        episode.refine(1, 0)
    drafts, refined = (
        [round(episode.texts[id].quality, 2) for episode in episodes] for id in (0, 1)
    )
    assert drafts.count(0.95) / 1000 == pytest.approx(0.3, abs=0.04)
    assert drafts.count(0.2) / 1000 == refined.count(0.2) / 1000 == pytest.approx(0.2, abs=0.04)
    assert set(refined) == {0.95, 0.7, 0.2}


def test_qualities_come_in_steps_where_tests_are_counted():
    """Drafts and refinements pass a whole number of the ten tests."""
    episode = Episode(plain_world(draft_sd=0.2, drop=0.2, up=0.5, down=0.5, quality_step=0.1), 3)
    for id in range(20):
        episode.draft(id)
        episode.refine(100 + id, id)
    passed = [10 * text.quality for text in episode.texts.values()]
    assert all(abs(n - round(n)) < 1e-6 for n in passed) and len(set(passed)) > 3


def test_the_keys_of_new_kinds_change_nothing_where_they_are_omitted():
    """A world is the same with every optional key at its default, to the last digit."""
    world = read(WORLDS)[1]
    told = dict(
        vague=0.7,
        quality_step=0.0,
        binary_at=0.0,
        saturates_at=1.0,
        judge_tails=0.0,
        draft_tails=0.0,
        silent=0.0,
    )
    other = World(**{name: getattr(world, name) for name in World.__slots__} | told)
    plays = [play(each, partial(run_plan, Adaptive()), 0, 5) for each in (world, other)]
    assert plays[0] == plays[1]


# ---- budgets, rounds and lessons


@settings(max_examples=25, deadline=None)
@given(worlds(silent=0.3), st.integers(1, 12), st.integers(0, 9))
def test_no_budget_is_exceeded_and_no_text_is_left_ungraded(world, calls, task):
    """In a budget of one task at most so many calls are made, and every text that was paid for has
    been shown to the judge.
    """
    for plan in (adaptive(0.0, Priors()), BestOfN(4), SelfRefine()):
        (played,) = run_with_separate_budgets(plan, calls, [Episode(world, task)])
        assert played.calls <= calls
        assert not played.ungraded
        assert played.rounds <= played.calls


def test_a_shared_budget_holds_for_all_tasks_together():
    """Some tasks take more calls than others, and all together at most the budget."""
    played = run_with_shared_budget(
        adaptive(0.0, Priors()), 5, [Episode(read(WORLDS)[1], 0, k) for k in range(12)]
    )
    assert sum(result.calls for result in played) <= 60
    assert len({result.calls for result in played}) > 1


def test_steps_that_are_asked_for_at_once_take_one_round():
    """Four drafts and their four grades take two rounds; refinements and their grades wait for one
    another.
    """
    world = plain_world(judge_sd=0.1, draft_sd=0.1)
    assert [r.rounds for r in run_plan(BestOfN(4), [Episode(world, 0)])] == [2]
    assert [r.rounds for r in run_plan(SelfRefine(), [Episode(world, 0)])] == [
        r.calls for r in run_plan(SelfRefine(), [Episode(world, 0)])
    ]
    assert executionkit(Episode(world, 0)).rounds == executionkit(Episode(world, 0)).calls
    one = beacon(9.0, Episode(world, 0))
    assert (one.calls, one.rounds) == (6, 2)


@pytest.mark.slow
def test_a_lesson_is_that_of_the_package_and_is_the_same_again(tmp_path, monkeypatch):
    """Priors are learned from so many rows, the user's own folder is not touched, and equal lessons
    teach the same.
    """
    monkeypatch.setenv("REDRAFT_HOME", str(tmp_path))
    world = read(WORLDS)[1]
    lesson = teach(world, 32, 0)
    assert lesson.priors.tasks == 32
    assert lesson.priors != Priors()
    assert lesson == teach(world, 32, 0) != teach(world, 32, 1)
    assert 0 <= lesson.tuition < 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_second_looks_of_a_lesson_are_its_tuition(monkeypatch):
    """If learning asks for a second grade of every row, that is one more call a row, divided among
    256.
    """

    def ask_twice(policy, row, plan, trace):
        def decide(trace):
            grades = [
                Grade("judge", trace.task, draft, n)
                for draft in trace.candidates[:1]
                for n in range(2)
            ]
            return trace.missing(grades) or plan(trace)

        return decide

    world = plain_world(judge_sd=1e-9, up=1.0, ceiling=0.95, draft_mean=0.95)
    plain = teach(world, 40, 0)
    monkeypatch.setattr(lessons.OnlinePriors, "plan_for", ask_twice)
    taught = teach(world, 40, 0)
    calls = fmean(
        played.calls
        for played in run_plan(lessons.default_plan(world), lessons.lesson_episodes(world, 40, 0))
    )
    assert plain[1:] == (0.0, 0.0)
    assert taught.tuition * 256 / 40 == pytest.approx(1, abs=0.5)
    assert taught.extra == pytest.approx(taught.tuition * 256 / (40 * calls))


def test_tuition_is_added_to_the_calls_of_every_task():
    """The calls of a policy that was taught include its share of the lesson."""
    policies = {"best": {2: partial(run_plan, BestOfN(2))}}
    (played,) = charged(policies, 0.25)["best"][2]([Episode(plain_world(), 0)])
    assert played.calls == 4.25


# ---- stopping rules


@pytest.mark.parametrize(("zeta", "expected"), [(0.5, 0.249), (1.0, 0.131), (2.0, 0.039)])
def test_beacons_index_has_published_values(zeta, expected):
    """For a flat prior, at most 16 draws and 8 made, as the authors' table has it; never below that
    of one more draw.
    """
    assert index(8, zeta, 16) == pytest.approx(expected, abs=0.002)
    assert index(8, zeta, 16) > one_step_index(8, zeta)
    assert index(15, zeta, 16) == pytest.approx(one_step_index(15, zeta), abs=0.003)


def test_beacons_one_step_index_is_the_expected_improvement():
    """By integration: df 8, two scales above the mean, .0264 (with the normal distribution function
    it would be .061).
    """
    assert one_step_index(9, 2.0) == pytest.approx(0.0264, abs=1e-4)


def test_the_standing_of_the_best_score_by_hand():
    """Of .4, .5 and .9: mean .6, sum of squares .14, scale sqrt(4/3 * .14 / 2) = .3055, and .9 is
    .982 scales above the mean.
    """
    assert standing([0.4, 0.5, 0.9]) == pytest.approx((0.982, 0.3055), abs=1e-3)
    assert standing([0.5, 0.5, 0.5]) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("scores", "kappa", "expected"),
    [
        (
            [0.4, 0.5, 0.9],
            0.5,
            2.683,
            # excess .4 over the median; .4 * (1 + .5 * sqrt(ln 20)) = .746; .5 + .746 ln(.373 / .02)
        ),
        # .8 / .0506 = 15.8 bounds the mean of one excess: .5 + 15.8 ln(7.9 / .02)
        ([0.4, 0.5, 0.9], None, 94.5),
        ([0.5, 0.5, 0.5], 0.5, 0.5),  # nothing is above the median
    ],
)
def test_pandoras_threshold_by_hand(scores, kappa, expected):
    """The median plus the bound on the mean excess times the logarithm of its half over the
    cost.
    """
    assert threshold(scores, 0.02, kappa) == pytest.approx(expected, rel=1e-2)


def test_stopping_rules_draw_three_texts_if_they_are_dear_and_all_if_they_are_free():
    """A text with its grade takes two calls; without a readable grade a rule never stops early, and
    reports no score.
    """
    world = plain_world(draft_sd=0.1, judge_sd=0.05, quantum=0.001)
    for rule in (beacon, lambda cost, episode: pandora(cost, 0.5, episode)):
        assert rule(5.0, Episode(world, 0)).calls == 6
        assert rule(1e-9, Episode(world, 0)).calls == 32
        mute = rule(5.0, Episode(plain_world(silent=1.0), 0))
        assert (mute.calls, mute.score, mute.reached) == (32, None, False)


def test_a_rival_that_gets_no_grade_returns_an_answer_without_a_score():
    """No rival fails because of a judge that cannot be read."""
    world = plain_world(silent=1.0)
    for rival in (executionkit, openjudge, partial(dspy, 2)):
        played = rival(Episode(world, 0))
        assert (played.quality, played.score, played.reached) == (
            pytest.approx(0.5, abs=0.05),
            None,
            False,
        )


def test_a_bare_score_helps_a_rival_as_much_as_advice_if_the_world_says_so():
    """With refinements that always help after advice, a bare score helps in `vague` of them, or in
    all.
    """

    def gains(bare):
        return fmean(
            executionkit(Episode(plain_world(up=1.0), k), iterations=1, bare=bare).quality > 0.6
            for k in range(500)
        )

    assert gains(None) == pytest.approx(0.7, abs=0.06)
    assert gains(1.0) == 1.0


# ---- figures


@pytest.mark.parametrize(
    ("quality", "reached", "recalled", "false_claim", "false"),
    [
        (0.95, True, 1.0, 0.0, 0.0),
        (0.95, False, 0.0, None, 0.0),
        (0.7, True, None, 1.0, 1.0),
        (0.7, False, None, None, 0.0),
        (0.9, True, 1.0, 0.0, 0.0),
    ],
)
def test_claims_are_counted_among_claims_and_recall_among_targets_reached(
    quality, reached, recalled, false_claim, false
):
    """A claim without a target is false; a target without a claim is not recalled; anything else
    does not count.
    """
    played = TaskResult(quality, 2, 0.9, reached=reached)
    assert (played.recalled, played.false_claim, played.false) == (recalled, false_claim, false)


@pytest.mark.parametrize(
    ("interval", "covered"),
    [(None, None), ((0.4, 0.6), 1.0), ((0.5, 0.6), 1.0), ((0.51, 0.6), 0.0)],
)
def test_an_interval_covers_the_true_quality_or_does_not(interval, covered):
    """Without an interval it is unknown."""
    assert TaskResult(0.5, 2, 0.5, reached=False, interval=interval).covered == covered


def points_of(*pairs):
    """Points of a policy by (calls, quality), three tasks each."""
    return [
        Point(n, tuple(TaskResult(q + d, c, None, reached=False) for d in (-0.01, 0.0, 0.01)))
        for n, (c, q) in enumerate(pairs)
    ]


def test_a_swept_rival_is_at_the_best_setting_of_its_knob():
    """Settings that cost more and are no better do not count."""
    assert [
        p.setting for p in swept(points_of((1, 0.5), (3, 0.4), (5, 0.6), (7, 0.55), (9, 0.7)))
    ] == [0, 2, 4]


def test_a_rival_that_is_better_at_our_calls_is_named():
    """The headline has our rank among the defaults, and every rival that beats us at our calls by
    more than its error.
    """
    same = points_of((6, 0.6))
    policies = dict.fromkeys(rivals(), same) | {
        "refine, default": points_of((6, 0.62)),
        "OpenJudge LLMRefinement": points_of((5, 0.7)),
    }
    for name in policies:
        policies[name][0] = Point(DEFAULTS.get(name, 0), policies[name][0].plays)
    line = headline(policies)
    assert (line["rank"], line["of"]) == (2, 6)
    assert set(line["lost_to"]) == set(line["ahead"]) == {"OpenJudge LLMRefinement"}


def defaults_with(**qualities):
    """The defaults of a world: each with its quality at six calls, .5 if none is given; what was
    learned is like `refine`.
    """
    qualities = {NAMES[name]: quality for name, quality in qualities.items()}
    ours = qualities.get(REFINE, 0.5)
    qualities = {default_after(name): ours for name in LESSONS} | qualities
    return {
        name: [Point(DEFAULTS.get(name, 0), points_of((6, qualities.get(name, 0.5)))[0].plays)]
        for name in (*DEFAULTS, *map(default_after, LESSONS))
    }


NAMES = {"refine": REFINE, "earlier": EARLIER, "openjudge": JUDGE, "kit": KIT, "best": BEST}


@pytest.mark.parametrize(
    ("qualities", "rank", "below"),
    [
        (dict(refine=0.7), 1, 0.0),
        (dict(refine=0.5), 1, 0.0),  # nobody is better
        (dict(refine=0.6, kit=0.7), 2, 0.1),
        (dict(refine=0.4, kit=0.7), 6, 0.3),
    ],
)
def test_a_default_is_ranked_by_those_that_are_better(qualities, rank, below):
    """The distance to the first is paired by task; tasks that differ alike add no error to it."""
    place = world_standing(defaults_with(**qualities), REFINE)
    assert (place.rank, len(place.ahead)) == (rank, rank - 1)
    assert place.below == (pytest.approx(below), pytest.approx(0.0))
    assert place.is_first is (rank == 1)


def test_defaults_are_compared_over_worlds_by_differences_in_each():
    """Over worlds whose levels differ much, a constant lead has no error, and a lead of .1 and .3
    one of .1.
    """
    points = {
        "easy": defaults_with(refine=0.9, best=0.8, kit=0.7),
        "hard": defaults_with(refine=0.5, best=0.4, kit=0.2),
    }
    found = rankings(points)
    assert next(iter(found)) in {REFINE, *map(default_after, LESSONS)}
    assert found[BEST].above == (pytest.approx(-0.1), pytest.approx(0.0))
    assert found[KIT].above == (pytest.approx(-0.25), pytest.approx(0.05))
    assert (found[REFINE].first, found[REFINE].lowest) == (2, 1)
    assert losses(points) == {}


def test_the_goals_for_all_worlds_can_fail():
    """They are met by a default that is first and .02 above the earlier one, and missed by one that
    is fourth and as good as the earlier one.
    """
    good = {"one": defaults_with(refine=0.7, earlier=0.68)}
    bad = {"one": defaults_with(refine=0.4, earlier=0.4)}
    assert all(goal["met"] for goal in overall_goals(good))
    missed = [goal["goal"] for goal in overall_goals(bad) if not goal["met"]]
    assert len(missed) == 9 and not any("calls above" in what for what in missed)
    assert list(losses(bad)) == ["one"]


@pytest.mark.parametrize(
    ("least", "most", "met"),
    [(0.5, None, True), (0.6, None, False), (None, 0.5, True), (None, 0.4, False)],
)
def test_goals_are_met_at_their_limit(least, most, met):
    """A goal of at least or at most its value is met."""
    figure = single_setting(points_of((6, 0.5))[0]).summary()["quality"]
    assert goal("quality", plain_world(), figure, least=least, most=most)["met"] is met


@pytest.mark.slow
def test_the_prices_near_a_number_of_calls_are_those_of_the_whole_sweep():
    """Bisection finds the two prices between which the calls lie."""
    world = read(WORLDS)[0]
    players = {
        price: partial(run_plan, adaptive(price, Priors()))
        for price in (1.0, 0.05, 0.02, 0.01, 0.003)
    }
    whole = [Point(price, play(world, player, 0, 20)) for price, player in players.items()]
    near = [Point(price, plays) for price, plays in play_near(world, players, 7, 0, 20)]
    assert at_calls(near, 7).summary() == at_calls(whole, 7).summary()
    assert near[0].calls <= 7 <= near[1].calls


@pytest.mark.slow
def test_an_invalid_worlds_file_is_a_usage_error(tmp_path):
    """Exit code 2, and no task is simulated."""
    (tmp_path / "bad.toml").write_text("[bad]\nup = 2")
    result = bench(tmp_path / "bad.toml")
    assert result.returncode == 2
    assert "world 'bad'" in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--worlds", "writing,moon"], "there is no world 'moon'; there are writing, noisy"),
        (["--calls", "0"], "must be whole numbers from 1 to 50"),
        (["--docs", "docs", "--calls", "7"], "--docs needs all policies"),
        (
            ["--policies", "magic"],
            "no policy matches 'magic'; there are single draft; executionkit",
        ),
    ],
)
def test_a_part_that_does_not_exist_is_a_usage_error(args, told, capsys):
    """The message names what there is; exit code 2."""
    with pytest.raises(SystemExit) as ended:
        policies.arguments(args)
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


@pytest.mark.slow
def test_a_part_of_the_benchmark_prints_a_line_for_each_policy_at_these_calls(tmp_path):
    """Each is at the setting of its knob for at most so many calls; the same seed gives the same
    figures.
    """
    args = [
        "--worlds",
        "poison",
        "--policies",
        "best of N",
        "--policies",
        "OpenJudge*",
        "--calls",
        "6",
        "--tasks",
        4,
    ]
    run = bench(*args, "--json", tmp_path / "0.json")
    assert run.returncode == 0, run.stderr
    found = json.loads((tmp_path / "0.json").read_text())["worlds"]["poison"]["at 6 calls"]
    assert set(found) == {"best of N, at its best", "OpenJudge LLMRefinement, at its best"}
    assert "best of N, at its best" in run.stdout
    poison = next(world for world in read(WORLDS) if world.name == "poison")
    again = Point(3, play(poison, partial(run_plan, BestOfN(3)), 0, 4))
    assert found["best of N, at its best"]["quality"]["value"] >= again.quality - 1e-9


@pytest.mark.slow
def test_a_whole_run_has_the_users_worlds_in_tables_docs_and_json(tmp_path):
    """All tables, the goals, the page between its marks, and the picture."""
    path, docs = two_worlds(tmp_path / "mine.toml"), tmp_path / "docs"
    run = bench(path, "--tasks", 2, "--seed", 4, "--json", tmp_path / "0.json", "--docs", docs)
    assert run.returncode == 0, run.stderr
    found = json.loads((tmp_path / "0.json").read_text())
    assert set(found["worlds"]) == {"mine", "tests"}
    assert found["worlds"]["mine"]["as_they_come"]["single draft"]["calls"] == {
        "value": 1.0,
        "error": 0.0,
    }
    assert found["goals"] and "we lose here to" in run.stdout and "goals met" in run.stdout
    page = (docs / "adaptive.md").read_text()
    assert page.startswith("<!-- policies -->\n") and page.rstrip().endswith("<!-- /policies -->")
    assert page.count("<!-- policies -->") == 1
    assert "| mine | " in page
    assert "mine: Adaptive, shipped priors from" in (docs / "frontier.svg").read_text()
