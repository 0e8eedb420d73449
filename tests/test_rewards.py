"""Graders as rewards: the reward of grades, rankings of groups, unknown rewards, budgets, and the
forms of TRL and verl, without these libraries; tests/trainers has them.
"""

import asyncio
import datetime
import inspect
import json
import logging
import multiprocessing
import pickle
import random

import pytest

from redraft import Budget, ScriptedModel, Task, must, rewards, with_weight
from redraft.errors import BudgetExhaustedError, ConfigError, GradingError
from redraft.rewards import RewardFunction
from redraft.rewards.agreement import WINDOW, AgreementTracker, agreement_of
from redraft.rewards.function import RewardSample, win_share

CRITERIA = ("instructions", "correctness", "completeness", "clarity")


def verdict(score):
    """Return a verdict of the judge, of 0 to 5."""
    criteria = {name: {"evidence": "", "change": "", "score": score} for name in CRITERIA}
    return json.dumps({"reason": "So.", "criteria": criteria, "done": False})


def ranking(*numbers, ties=()):
    return json.dumps(
        {"reason": "So.", "change": [], "ranking": numbers, "ties": ties, "done": False}
    )


def tenths(text):
    return len(text) / 10


async def tenths_async(text):
    return len(text) / 10


def without_x(text):
    return "x" not in text


def fails(text):
    raise ValueError("the text of a server")


def fails_on_b(text):
    if "b" in text:
        raise ValueError("broken")
    return 1.0


def trl_rewards(texts, graders, judge=None, prompts=None, given={}, **settings):
    """Return what TRL gets for these completions."""
    reward = rewards.trl(graders, judge, sync=True, **settings)
    return reward(prompts or ["Say it."] * len(texts), texts, **given)


@pytest.mark.parametrize(
    ("graders", "text", "expected"),
    [
        (tenths, "aaa", 0.3),
        (tenths_async, "aaa", 0.3),
        ("words:1-3", "one two", 1.0),
        ([tenths, with_weight(without_x, 3)], "aa", (0.2 + 3) / 4),
        ([tenths, must(without_x)], "aaa", 0.3),
        ([tenths, must(without_x)], "aax", 0.0),
        ([must(without_x)], "aax", 0.0),
        ([must(without_x), must("words:1-")], "x", 0.5),
        (fails, "aaa", None),
        ([tenths, fails], "aaa", None),
        ([tenths, must(fails)], "aaa", None),
        # a condition that is not met decides, whatever the others would say
        ([fails, must(without_x)], "x", 0.0),
    ],
)
def test_the_reward_is_the_weighted_mean_behind_the_musts(graders, text, expected):
    (reward,) = trl_rewards([text], graders)
    assert reward == (expected if expected is None else pytest.approx(expected))


@pytest.mark.parametrize("blank", [None, 0.0, -1.0])
def test_a_blank_completion_earns_what_was_chosen(blank):
    """No grader sees it, and the others are graded."""
    assert trl_rewards(["", "aa", " \n"], tenths, blank=blank) == [blank, 0.2, blank]
    assert trl_rewards([""], tenths, blank=blank) == [blank]


@pytest.mark.parametrize("seed", range(5))
def test_a_judge_that_fails_gives_no_number(seed, caplog):
    """A third of the verdicts cannot be read: exactly their rewards are unknown."""
    chance = random.Random(seed)
    fails_at = {text for text in map(str, range(30)) if chance.random() < 1 / 3}

    def answer(messages):
        asked = json.dumps(messages)
        return "no" if any(f"answer {n}." in asked for n in fails_at) else verdict(4)

    texts = [f"answer {n}." for n in range(30)]
    with caplog.at_level(logging.WARNING, "redraft.rewards"):
        found = trl_rewards(texts, "judge", ScriptedModel([answer] * 90), retries=0)
    assert found == [None if str(n) in fails_at else 0.8 for n in range(30)]
    assert f"{len(fails_at)} of 30 rewards are unknown: judge: BadResponseError" in caplog.text


def test_a_reason_has_no_foreign_text(caplog):
    reward = RewardFunction(fails)
    (found,) = reward.rewards_sync([RewardSample(Task("a", "b"))])
    assert (found.value, found.reason) == (None, "fails: GradingError")
    assert "server" not in caplog.text
    reward.close()


# ---- groups


def test_a_group_is_ranked_in_one_call():
    """Each prompt is a group; equal completions share a place, and a part is the share of the
    others that are worse.
    """
    judge = ScriptedModel([lambda messages: ranking(1, 2, 3)] * 2)
    prompts = ["one"] * 4 + ["two"] * 3
    found = trl_rewards(["a", "b", "c", "a", "d", "e", "f"], "ranker", judge, prompts)
    assert judge.calls == 2
    assert found[0] == found[3]
    assert sorted({*found[:4]}) == sorted(found[4:]) == [0.0, 0.5, 1.0]


def test_rankings_and_scores_are_weighted_together():
    judge = ScriptedModel([ranking(1, 2)])
    ranked = trl_rewards(["aa", "bbbb"], ["ranker", tenths], judge)
    assert sorted([ranked[0] - 0.1, ranked[1] - 0.2]) == pytest.approx([0.0, 0.5])


def test_a_ranking_that_failed_or_has_one_answer_is_unknown():
    assert trl_rewards(["a", "b"], "ranker", ScriptedModel(["no"] * 9)) == [None, None]
    assert trl_rewards(["a", "a"], "ranker", ScriptedModel([])) == [None, None]


@pytest.mark.parametrize(
    ("ranks", "shares"),
    [
        ([{0: 0, 1: 1, 2: 2}], [1, 0.5, 0]),
        ([{0: 0, 1: 0, 2: 2}], [0.75, 0.75, 0]),
        ([{0: 0, 1: 0}], [0.5, 0.5]),
        ([{0: 0, 1: 1}, {0: 1, 1: 0}], [0.5, 0.5]),
        ([{0: 0}], [None]),
        ([], [None]),
    ],
)
def test_the_share_of_wins(ranks, shares):
    rankings = [type("Ranking", (), {"ranks": each}) for each in ranks]
    assert [win_share(rankings, n) for n in range(len(shares))] == shares


# ---- what a training run shares


def test_calls_share_cache_and_budget():
    """Nothing is paid for twice, and a budget that is used up is an error, no row of unknowns."""
    judge, cache = ScriptedModel([verdict(5)] * 9), {}
    reward = rewards.trl("judge", judge, sync=True, cache=cache, budget=Budget(calls=2), retries=0)
    assert reward(["q"], ["a"]) == reward(["q"], ["a"]) == [1.0]
    assert (judge.calls, len(cache)) == (1, 1)
    assert reward(["q"], ["b"]) == [1.0]
    with pytest.raises(BudgetExhaustedError, match=r"the budget of the rewards .* \(calls\)"):
        reward(["q"], ["c"])


def test_an_unvalidated_judge_is_refused(tmp_path):
    reward = rewards.trl(
        "judge", ScriptedModel([]), sync=True, require_validated="error", cards_dir=tmp_path
    )
    for _ in range(2):
        with pytest.raises(ConfigError, match="valid"):
            reward(["q"], ["a"])


async def test_loops_and_threads_share_a_session():
    """Where a loop runs, in a thread without one, and in another loop."""
    running = 0
    most = 0

    async def slow(text):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return 0.5

    reward = RewardFunction(slow, max_in_flight=2)
    samples = [RewardSample(Task("q", f"{n}")) for n in range(8)]
    found = await asyncio.gather(
        reward.rewards(samples),
        asyncio.to_thread(reward.rewards_sync, samples),
        asyncio.to_thread(lambda: asyncio.run(reward.rewards(samples))),
    )
    assert {each.value for rewards_ in found for each in rewards_} == {0.5}
    assert most <= 2
    reward.close()
    assert (await reward.rewards(samples[:1]))[0].value == 0.5  # it opens again
    reward.close()


def score_in_child(reward, results):
    results.put(reward("data", "abc", "72", {"prompt": "q"}))


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_that_are_forked_or_spawned_reward(method):
    """Also when the parent has rewarded before."""
    reward = rewards.verl(tenths, sync=True)
    assert reward("data", "abc", "72", {"prompt": "q"}) == {"score": 0.3, "unknown": 0.0}
    context = multiprocessing.get_context(method)
    results = context.SimpleQueue()
    child = context.Process(target=score_in_child, args=(reward, results))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert results.get() == {"score": 0.3, "unknown": 0.0}


# ---- agreement


def test_falling_agreement_is_a_warning(caplog):
    """At first the judge orders as the checks do, then at random: one warning, that names both."""
    chance, tracker = random.Random(1), AgreementTracker()
    for n in range(3 * WINDOW):
        value = chance.random()
        judged = value if n < WINDOW else chance.random()
        tracker.add({"judge": judged}, {"exact": float(value > 0.5), "label": None})
    found = tracker.latest()
    assert 0.3 < found["judge", "exact"] < 0.7
    assert [*found] == [("judge", "exact")]
    assert "judge orders answers as exact does" in caplog.text
    assert len(caplog.records) == 1


@pytest.mark.slow(but_each=5)
@pytest.mark.parametrize("seed", range(20))
def test_steady_agreement_is_no_warning(seed, caplog):
    """Noise that stays the same is none, however often it is looked at."""
    chance, tracker = random.Random(seed), AgreementTracker()
    for value in (chance.random() for _ in range(400)):
        tracker.add({"judge": value + chance.gauss(0, 0.3)}, {"exact": float(value > 0.5)})
    assert not caplog.records


def test_agreement_is_known_of_enough_answers():
    assert agreement_of([(n, n) for n in range(29)]) is None
    assert agreement_of([(n, 0.5) for n in range(90)]) is None
    assert agreement_of([(n, n) for n in range(30)]).share == 1
    assert agreement_of([(n, -n) for n in range(30)]).share == 0


def test_agreement_is_read_while_scores_are_added():
    """By another thread, such as verl's, which goes through what it got."""
    tracker = AgreementTracker()
    for n in range(30):
        tracker.add({"judge": n}, {"exact": n})
    found = tracker.latest()
    read = iter(found)
    for n in range(30):
        tracker.add({"judge": n}, {"label": -n})
    assert [*read] == [*found] == [("judge", "exact")]
    assert tracker.latest() == {("judge", "exact"): 1, ("judge", "label"): 0}


def test_trl_logs_agreement_with_labels_and_unknown_shares():
    logged, extra = [], {}
    reward = rewards.trl(
        [tenths, "judge"],
        ScriptedModel([verdict(n % 6) for n in range(40)]),
        sync=True,
        name="quality",
        label="stars",
    )
    texts = [f"{n:02}" + "a" * (n % 8) for n in range(40)]
    stars = [n % 6 / 5 if n < 35 else None for n in range(40)]
    given = {"stars": stars, "log_metric": lambda *metric: logged.append(metric)}
    given["log_extra"] = extra.__setitem__
    found = reward(["q"] * 40, texts, **given)
    metrics = dict(logged)
    assert metrics["quality/unknown"] == 0 and None not in found
    assert 0 <= metrics["quality/agreement/judge/tenths"] <= 1
    assert metrics["quality/agreement/judge/label"] > 0
    assert sorted(extra) == ["quality/judge", "quality/tenths"]
    assert {len(values) for values in extra.values()} == {40}
    assert reward.__name__ == "quality"


# ---- TRL


def test_a_conversation_is_read_to_its_last_message():
    """The last message of the assistant is graded; those before it are part of the task."""
    seen = []

    def look(text, task):
        seen.append((text, task))
        return 1.0

    prompt = [{"role": "user", "content": "What is 2 + 2?"}]
    call = {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}
    tool = {"role": "tool", "content": "4", "tool_call_id": "1"}
    last = {"role": "assistant", "content": [{"type": "text", "text": "It is 4."}]}
    found = trl_rewards([[call, tool, last], [call, tool], []], look, prompts=[prompt] * 3)
    assert found == [1.0, 0.0, 0.0]
    ((text, task),) = seen
    assert text == "It is 4."
    assert [m["role"] for m in task.messages] == ["user", "assistant", "tool"]


def test_columns_fill_the_task():
    """Those that TRL adds are none; a reference that is no text is JSON."""
    seen = []

    def look(text, task):
        seen.append(task)
        return 1.0

    given = {"solution": [{"x": 1}, None], "topic": ["a", "b"], "trainer_state": object()}
    trl_rewards(["a", "b"], look, columns={"reference": "solution"}, given=given)
    assert {task.reference for task in seen} == {'{"x": 1}', None}
    assert {task.metadata["topic"] for task in seen} == {"a", "b"}
    assert all([*task.metadata] == ["topic"] for task in seen)


@pytest.mark.parametrize(
    ("arguments", "given", "message"),
    [
        ({"columns": {"answer": "a"}}, {}, "columns: 'answer' is none of reference"),
        ({"columns": {"reference": "gold"}}, {}, "the data set has no column 'gold'"),
        ({"label": "stars"}, {}, "label: the data set has no column 'stars'"),
        ({"label": "stars"}, {"stars": ["good"]}, "label: 'stars' must have numbers and None"),
        ({"max_inflight": 3}, {}, "max_in_flight"),
        ({"graders": "wrods:1-3"}, {}, "words"),
        ({"blank": float("nan")}, {}, "blank must be a finite number or None, got nan"),
        ({"blank": "zero"}, {}, "blank must be a finite number or None, got 'zero'"),
    ],
)
def test_mistakes_name_the_argument(arguments, given, message):
    with pytest.raises(ConfigError, match=message):
        trl_rewards(["a"], arguments.pop("graders", tenths), given=given, **arguments)


# ---- verl


def test_verl_gets_a_score_and_whether_it_is_unknown():
    """By names, as verl calls it; it finds the function async, or not."""
    call = {"data_source": "gsm8k", "solution_str": "abc", "ground_truth": "72"}
    call["extra_info"] = {"question": "q", "num_turns": None}
    reward = pickle.loads(pickle.dumps(rewards.verl(tenths)))
    assert inspect.iscoroutinefunction(reward)
    assert asyncio.run(reward(**call)) == {"score": 0.3, "unknown": 0.0}
    assert rewards.verl(tenths, sync=True)(**call) == {"score": 0.3, "unknown": 0.0}


def test_an_unknown_reward_of_verl_is_an_error_or_what_was_named(caplog):
    call = ("gsm8k", "abc", "72", {"question": "q"})
    with pytest.raises(GradingError, match=r"the reward is unknown \(fails: GradingError\)"):
        rewards.verl(fails, sync=True)(*call)
    assert rewards.verl(fails, sync=True, unknown=-1)(*call) == {"score": -1.0, "unknown": 1.0}
    assert "an unknown reward becomes -1: fails: GradingError" in caplog.text
    for wrong in ("zero", None, True, float("nan")):
        with pytest.raises(ConfigError, match='unknown must be "error" or a number'):
            rewards.verl(fails, unknown=wrong)


def test_verl_by_path_and_name():
    """Its `reward_kwargs` are the arguments; the function for the same arguments is made once."""
    given = {"graders": ["words:1-3"], "unknown": 0.5, "budget": {"calls": 3}}
    call = {"data_source": "d", "solution_str": "a b", "ground_truth": 4, **given}
    call |= {"extra_info": {"prompt": [{"role": "user", "content": "q"}]}}
    expected = {"score": 1.0, "unknown": 0.0}
    assert rewards.compute_score_sync(**call, reward_router_address="host") == expected
    assert asyncio.run(rewards.compute_score(**call)) == expected
    for wrong, message in (
        ({"graders": tenths}, "reward_kwargs are text, numbers, lists and mappings, got a func"),
        ({"budget": {"dollars": 3}}, "reward_kwargs: .* argument 'dollars'"),
        ({"budget": 0}, "reward_kwargs: .* must be a mapping, not int"),
        ({"sync": True}, "reward_kwargs: .* argument 'sync'"),
    ):
        with pytest.raises(ConfigError, match=message):
            rewards.compute_score_sync(**{**call, **wrong})


def test_no_error_has_a_key():
    """A judge that someone writes as a mapping, with its key, is a mistake that is named."""
    call = {"data_source": "d", "solution_str": "a", "ground_truth": None}
    given = {"graders": "judge", "judge": {"model": "openai:tiny", "api_key": "sk-secret"}}
    with pytest.raises(ConfigError, match=r"judge: .* got \['api_key', 'model'\]") as raised:
        rewards.compute_score_sync(**call, extra_info={"prompt": "q"}, **given)
    assert "sk-secret" not in str(raised.value)


def test_verl_reads_columns_of_numpy():
    """As data sets in Parquet have them, one within another."""
    numpy = pytest.importorskip("numpy")
    seen = []

    def look(text, task):
        seen.append(task)
        return 1.0

    messages = numpy.array([{"role": "user", "content": "q"}], dtype=object)
    extra = {"prompt": messages, "requirements": numpy.array(["words:1-", "words:1-9"])}
    extra |= {"tests": numpy.array(["assert True"]), "stars": numpy.float32("nan")}
    truth = {"target": numpy.array(["a", "b"]), "at": datetime.date(2026, 1, 2)}
    reward = rewards.verl(look, sync=True, label_key="stars")
    assert reward("d", "a", truth, extra) == {"score": 1.0, "unknown": 0.0}
    (task,) = seen
    assert task.reference == '{"target": ["a", "b"], "at": "2026-01-02"}'
    assert [message["content"] for message in task.messages] == ["q"]
    assert len(task.requirements) == 2


def test_verl_without_a_prompt_says_where_to_put_it():
    with pytest.raises(ConfigError, match=r"extra_info has no 'prompt' or .* its keys are 'index'"):
        rewards.verl(tenths, sync=True)("d", "a", "b", {"index": 3})
    with pytest.raises(ConfigError, match=r"'ranker' ranks several responses"):
        rewards.verl("ranker", ScriptedModel([]), sync=True)("d", "a", "b", {"prompt": "q"})
