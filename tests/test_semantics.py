"""The exact behaviour of `refine`, row by row, with a scripted model and computed graders."""

import asyncio
import json
import re
import signal
import subprocess
import sys

import pytest

import redraft
from each_row import each_row
from fake_clock import pass_time
from redraft import (
    Budget,
    Feedback,
    Judge,
    ScriptedModel,
    Task,
    must,
    refine,
    refine_many,
    refine_sync,
    stream,
    with_weight,
)
from redraft.errors import (
    AuthenticationError,
    BudgetExhaustedError,
    ConfigError,
    GradingError,
    ModelError,
    RateLimitError,
    RedraftError,
)
from redraft.graders import Ranker
from redraft.loop.records import Outcome

RUBRIC = {"truth": "It is true."}


def by_table(**scores):
    """A grader that knows the score of each text."""

    def table(text):
        return scores[text]

    return table


def by_rule(score):
    """A grader that gives every text the same score and the same action."""

    def constant_grader(text):
        return Feedback(score, actions=["be better"])

    return constant_grader


def verdict(score, change="say more", done=False):
    """A judge's answer in the requested form."""
    return json.dumps(
        {
            "reason": "It is so.",
            "criteria": {"truth": {"evidence": "e", "change": change, "score": score}},
            "done": done,
        }
    )


async def run(answers, grader, **settings):
    model = ScriptedModel(answers)
    return await refine("q", model, grader, **settings), model


# ---- the loop


async def test_a_first_draft_at_the_target_ends_the_work():
    """It takes one call."""
    result, model = await run(["a"], by_table(a=0.9))
    assert (result.value, result.score, result.stop, model.calls) == ("a", 0.9, "target", 1)
    assert result.iterations == 0
    assert result.converged is True


async def test_a_target_missed_by_rounding_is_reached():
    """The mean of 0.85 and 0.95 is 0.9, whatever binary fractions make of it."""
    result, _ = await run(["a", "b"], [by_table(a=0.85, b=1.0), by_table(a=0.95, b=1.0)])
    assert (result.value, result.stop) == ("a", "target")


async def test_iterations_are_refinements():
    """The first draft is no iteration: two refinements make two iterations and three scores."""
    result, model = await run(["a", "b", "c"], by_table(a=0.1, b=0.3, c=0.95))
    assert result.iterations == 2
    assert result.score_history == [0.1, 0.3, 0.95]
    assert model.calls == 3


async def test_zero_iterations_draft_and_grade_only():
    """max_iterations=0 does not change the draft, nor does the editor."""
    result, model = await run(["a, b"], "no_commas", max_iterations=0)
    assert (result.value, result.score, result.stop, model.calls) == (
        "a, b",
        0.0,
        "max_iterations",
        1,
    )
    assert result.converged is False


async def test_a_given_response_is_candidate_zero_and_not_generated_again():
    """It is graded unchanged, and returned when no other is better."""
    model = ScriptedModel(["worse"])
    result = await refine(Task("q", "given"), model, by_table(given=0.5, worse=0.1), patience=1)
    assert (result.value, result.trace.candidates[0].by, model.calls) == ("given", "given", 1)


async def test_done_needs_all_graders_that_answer():
    """One grader that wants more continues the loop; one without feedback does not."""

    def satisfied_grader(text):
        return Feedback(0.5, done=True)

    def silent_grader(text):
        return 0.5

    def wants_more(text):
        return Feedback(0.5, done=False)

    result, model = await run(["a", "b"], [satisfied_grader, silent_grader])
    assert (result.stop, model.calls) == ("done", 1)
    result, model = await run(["a", "b"], [satisfied_grader, wants_more], max_iterations=1)
    assert (result.stop, model.calls) == ("max_iterations", 2)


async def test_patience_counts_refinements_without_improvement():
    """An oscillating score goes stale, too."""
    scores = by_table(a=0.5, b=0.2, c=0.5, d=0.9)
    result, model = await run(["a", "b", "c", "d"], scores, max_iterations=9)
    assert (result.stop, result.value, model.calls) == ("patience", "a", 3)
    assert result.converged is True


async def test_a_lift_of_exactly_min_delta_is_stale():
    """The comparison allows 1e-9, so that 0.1 + 0.2 does not decide."""
    result, _ = await run(["a", "b", "c"], by_table(a=0.1, b=0.3, c=0.8), patience=1, min_delta=0.2)
    assert (result.stop, result.value) == ("patience", "b")
    result, _ = await run(
        ["a", "b", "c"], by_table(a=0.1, b=0.31, c=0.95), patience=1, min_delta=0.2
    )
    assert (result.stop, result.value) == ("target", "c")


async def test_the_same_text_again_is_not_graded_and_counts_as_stale():
    """A model that returns the parent's text costs no grade."""
    seen = []

    def grader(text):
        seen.append(text)
        return 0.5

    result, _ = await run(["a", "a", "a"], grader)
    assert (seen, result.stop, result.iterations) == (["a"], "patience", 2)


async def test_the_last_candidate_is_graded_and_the_best_returned():
    """A later answer with a lower score is never returned; the earliest of equals is."""
    result, _ = await run(["a", "b", "c"], by_table(a=0.4, b=0.6, c=0.6), max_iterations=2)
    assert (result.value, result.score_history) == ("b", [0.4, 0.6, 0.6])


async def test_the_parent_is_the_best_so_far():
    """After a lower score the next refinement starts from the best, not from the last."""
    result, _ = await run(
        ["a", "b", "c", "d"], by_table(a=0.4, b=0.6, c=0.1, d=0.2), max_iterations=3, patience=9
    )
    assert [c.parent for c in result.trace.candidates] == [None, 0, 1, 1]


async def test_a_must_comes_before_the_score():
    """A broken must loses whatever the mean, and reaches no target."""
    graders = [with_weight(by_table(a=1.0, b=0.1), 99), must(by_table(a=0.0, b=1.0))]
    result, _ = await run(["a", "b"], graders, max_iterations=1)
    assert (result.value, result.stop, result.broken_musts) == ("b", "max_iterations", [])


async def test_a_must_is_no_part_of_the_mean():
    """Kept musts do not raise a poor score to the target; with musts alone their mean is the
    score.
    """
    easy = [must("words:1-"), must("words:-9")]
    result, model = await run(["a", "b"], [*easy, by_table(a=0.2, b=0.4)], max_iterations=1)
    assert (result.score, model.calls, result.score_history) == (0.4, 2, [0.2, 0.4])
    result, _ = await run(["a"], [must("words:1"), must("words:2")], max_iterations=0)
    assert result.score == 0.5


async def test_meeting_more_hard_constraints_is_progress():
    """An answer that keeps one more precedes those that keep fewer, and resets patience."""
    scores = [
        must(by_table(a=0.0, b=1.0, c=0.0)),
        must(by_table(a=0.0, b=0.0, c=0.0)),
        by_table(a=0.5, b=0.4, c=0.6),
    ]
    result, _ = await run(["a", "b", "c"], scores, max_iterations=2, patience=2)
    assert (result.value, result.stop) == ("b", "max_iterations")


@pytest.mark.parametrize("prompt", ["", "  \n", [{"role": "user", "content": " "}]])
async def test_an_empty_prompt_is_refused_before_any_call(prompt):
    """The error is a ConfigError."""
    model = ScriptedModel(["a"])
    with pytest.raises(ConfigError, match="empty"):
        await refine(prompt, model, by_table(a=1.0))
    assert model.calls == 0


async def test_a_summary_says_why_work_was_interrupted():
    """For a failure, an exhausted budget or deadline the reason follows the word; a truncated
    answer is named, too.
    """
    from redraft.protocols import Reply

    result, _ = await run(
        [Reply("a", finish_reason="length"), AuthenticationError("key gone")], by_table(a=0.4)
    )
    assert "stopped: a model or a grader failed (key gone)" in result.summary()
    assert "cut off at the token limit" in result.summary()
    assert result.truncated is True


async def test_the_budget_ends_the_loop_with_the_best_so_far():
    """Two calls are a draft and one refinement; the third is not made."""
    result, model = await run(
        ["a", "b", "c"], by_table(a=0.1, b=0.3, c=0.9), budget=Budget(calls=2)
    )
    assert (result.value, result.stop, model.calls) == ("b", "budget", 2)
    assert result.converged is False


async def test_a_budget_that_allows_nothing_raises_before_the_call():
    """Without a grade there is no result, and the error has the usage."""
    model = ScriptedModel(["a"])
    with pytest.raises(BudgetExhaustedError) as caught:
        await refine("q", model, by_table(a=1.0), budget=Budget(calls=0))
    assert (model.calls, caught.value.result, caught.value.usage.calls) == (0, None, 0)


async def test_a_strict_budget_raises_and_carries_the_best():
    """strict_budget makes an error of what would be a result."""
    with pytest.raises(BudgetExhaustedError) as caught:
        await run(["a", "b"], by_table(a=0.4, b=0.5), budget=Budget(calls=1), strict_budget=True)
    assert caught.value.result.value == "a"
    assert caught.value.usage.calls == 1


async def test_the_deadline_ends_the_loop_with_the_best_so_far(monkeypatch):
    """A hanging model is cancelled when the time is over."""

    async def model(messages):
        if len(messages) > 1:
            pass_time(monkeypatch, 1000)
            await asyncio.Event().wait()
        return "a"

    result = await refine("q", model, by_table(a=0.4), deadline=1000)
    assert (result.value, result.stop) == ("a", "deadline")
    assert result.usage.input_tokens is None


async def test_a_deadline_with_nothing_graded_raises():
    """The error has only the usage."""

    async def model(messages):
        await asyncio.Event().wait()

    with pytest.raises(BudgetExhaustedError) as caught:
        await refine("q", model, by_table(a=0.4), deadline=0.05)
    assert caught.value.limit == "deadline"


async def test_a_model_that_fails_later_ends_with_the_best_so_far():
    """The loop ends as failed with the draft and the error."""
    result, _ = await run(["a", AuthenticationError("key gone")], by_table(a=0.4))
    assert (result.value, result.stop) == ("a", "failed")
    assert "key gone" in result.stop_note


async def test_a_model_that_fails_at_once_raises_its_error():
    """Without any answer the model's own error is raised."""
    with pytest.raises(AuthenticationError, match="no such key") as caught:
        await run([AuthenticationError("no such key")], by_table(a=0.4))
    assert caught.value.result is None


async def test_retries_are_counted_as_calls_and_separately():
    """A call that was refused once is two calls, one of them a retry."""
    result, model = await run([RateLimitError("slow down"), "a"], by_table(a=1.0))
    assert (model.calls, result.usage.calls, result.usage.retried_calls) == (2, 2, 1)


async def test_parallel_drafts_start_the_loop():
    """Three drafts are graded, and the best of them is refined."""
    result, model = await run(["a", "b", "c", "d"], by_table(a=0.1, b=0.5, c=0.3, d=0.95), drafts=3)
    assert model.calls == 4
    refined = next(c for c in result.trace.candidates if c.text == "d")
    assert result.trace.by_id[refined.parent].text == "b"


@pytest.mark.parametrize("n", [0, 1, 3])
async def test_one_llm_judge_takes_at_most_two_calls_an_iteration(n):
    """The limit is 2 x (1 + max_iterations) calls with a judge, and half of them with computed
    graders.
    """
    answers = [x for i in range(n + 1) for x in (f"text {i}", verdict(2))]
    result, model = await run(answers, Judge(RUBRIC), max_iterations=n, patience=9)
    assert model.calls == result.usage.calls == 2 * (1 + n)
    result, model = await run(
        [f"text {i}" for i in range(n + 1)], lambda text: 0.1, max_iterations=n, patience=9
    )
    assert model.calls == 1 + n


async def test_repairs_do_not_raise_the_number_of_calls():
    """A draft that the editor repaired is judged once, after the repair."""
    model = ScriptedModel(["one, two", verdict(2), "three, four", verdict(5, done=True)])
    result = await refine(
        Task("q", requirements=["no_commas"]), model, Judge(RUBRIC), max_iterations=1
    )
    assert (model.calls, result.stop) == (4, "done")
    assert "," not in result.value
    assert result.iterations == 1


@each_row(
    ("settings", "says"),
    [
        ({"target_score": 1.5}, "target_score"),
        ({"target_score": float("nan")}, "target_score"),
        ({"max_iterations": -1}, "max_iterations"),
        ({"patience": 0}, "patience"),
        ({"min_delta": -0.1}, "min_delta"),
        ({"min_delta": float("nan")}, "min_delta"),
        ({"drafts": 0}, "drafts"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"deadline": -1}, "deadline"),
        ({"retries": -1}, "retries"),
        ({"max_in_flight": 0}, "max_in_flight"),
        ({"noise_aware": []}, "noise_aware must be True, False or None, got []"),
        ({"noise_aware": 1}, "noise_aware must be"),
        ({"tie_break": "no"}, "tie_break is no longer a setting: leave it out"),
        ({"budget": 3}, "Budget(calls=10)"),
        (
            {"cost_unit": "usd", "model": "http://127.0.0.1:9/v1#x"},
            "cost_unit: 'usd' cannot be weighed, the price",
        ),
        ({"plan": "plan"}, "plan"),
        ({"max_iteration": 3}, "did you mean 'max_iterations'"),
        ({"graders": "helpfulnes:x"}, "helpfulnes"),
        ({"graders": "juge"}, "did you mean 'judge'"),
        ({"graders": []}, "nothing grades this task"),
        ({"graders": Judge}, "instance"),
        ({"graders": lambda: 1}, "must take (text)"),
        ({"graders": lambda text, *, model: 1}, "must take (text)"),
        ({"model": "opnai:gpt-4o"}, "openai"),
        ({"budget": Budget(usd=1), "model": "http://127.0.0.1:9/v1#x"}, "price"),
    ],
)
async def test_invalid_arguments_are_refused_before_any_call(settings, says):
    """The error has the argument, the value and what is allowed."""
    model = ScriptedModel(["a"])
    with pytest.raises(ConfigError) as caught:
        await refine("q", **{"model": model, "graders": by_table(a=1.0), **settings})
    assert says in str(caught.value)
    assert model.calls == 0


@pytest.mark.parametrize("task", [[], [{"role": "user"}], 7, ["text"], None])
async def test_an_invalid_task_is_refused(task):
    """Only a prompt, messages, a Task or a Trace is no ConfigError."""
    with pytest.raises(ConfigError):
        await refine(task, ScriptedModel(["a"]), by_table(a=1.0))


# ---- scores


@pytest.mark.parametrize(
    "score", [float("nan"), float("inf"), 1.2, -0.1, "0.9", [1], {"score": "1"}, {"scores": 1}]
)
async def test_an_invalid_score_is_an_error(score):
    """The grader is tried again, then the failure is recorded; with no other grader it is a
    GradingError.
    """
    with pytest.raises(GradingError) as caught:
        await run(["a"], lambda text: score)
    assert caught.value.result.value == "a"
    assert caught.value.result.score is None


async def test_a_grader_that_fails_is_tried_again():
    """A temporary failure costs only a second attempt."""
    tries = []

    def flaky(text):
        tries.append(text)
        if len(tries) == 1:
            raise OSError("hiccup")
        return 1.0

    result, _ = await run(["a"], flaky)
    assert (result.score, len(tries)) == (1.0, 2)


async def test_an_ungraded_answer_loses_and_its_error_is_not_in_the_prompt():
    """A failing grade makes the score unknown."""

    def fragile(text):
        if text == "b":
            raise RuntimeError("secret trouble")
        return Feedback(0.4, actions=("be brief",))

    model = ScriptedModel(["a", "b", "c"])
    result = await refine("q", model, fragile, max_iterations=2)
    assert (result.value, result.score_history) == ("a", [0.4, None, 0.4])
    assert "secret trouble" not in json.dumps(model.messages)


async def test_several_graders_make_a_weighted_mean():
    """A missing part makes the whole mean unknown."""
    result, _ = await run(
        ["a"], [with_weight(by_table(a=1.0), 3), by_table(a=0.0)], max_iterations=0
    )
    assert result.score == 0.75
    with pytest.raises(GradingError):
        await run(["a"], [by_table(a=1.0), lambda text: None], max_iterations=0)


def text_only(text):
    return 0.5


def with_task(text, task):
    return float(task.reference == text)


async def with_model(text, model):
    return float(await model(f"Rate: {text}"))


async def returns_pair(text):
    return 0.25, "too short"


def returns_bool(text):
    return True


@pytest.mark.parametrize(
    ("grader", "score"),
    [
        (text_only, 0.5),
        (with_task, 1.0),
        (with_model, 0.75),
        (returns_pair, 0.25),
        (returns_bool, 1.0),
    ],
)
async def test_a_plain_function_is_a_grader(grader, score):
    """It takes (text), (text, task) or (text, model), sync or async, and returns a float, a bool,
    Feedback or (float, reason).
    """
    model = ScriptedModel(["a", "0.75"])
    result = await refine(Task("q", reference="a"), model, grader, max_iterations=0)
    assert result.judge_score == score


# ---- the prompt of the refiner


async def test_the_refiners_prompt_has_the_changes_and_no_score():
    """It has the original messages, the parent as the assistant's turn, the open actions, and
    nothing else.
    """
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Explain."}]
    model = ScriptedModel(["first", verdict(2, "name the year"), "second", verdict(5)])
    await refine(messages, model, Judge(RUBRIC))
    sent = model.messages[2]
    assert sent[:2] == messages
    assert sent[2] == {"role": "assistant", "content": "first"}
    assert [m["role"] for m in sent[3:]] == ["user"]
    assert "truth: name the year" in sent[3]["content"]
    assert "0.4" not in sent[3]["content"]
    assert "2/5" not in sent[3]["content"]


async def test_the_refiners_prompt_lists_unsuccessful_attempts():
    """It has their open actions, not their texts or the full history."""

    def grader(text):
        raise_on_record = {
            "draft": ("add a title",),
            "attempt": ("the title is wrong",),
            "third": (),
        }
        return Feedback(
            {"draft": 0.5, "attempt": 0.3, "third": 0.95}[text], actions=raise_on_record[text]
        )

    model = ScriptedModel(["draft", "attempt", "third"])
    await refine("q", model, grader)
    *_, parent, sent = (message["content"] for message in model.messages[2])
    assert parent == "draft"
    assert "add a title" in sent
    assert "the title is wrong" in sent
    assert "attempt" not in sent


async def test_a_met_criterion_is_not_mentioned():
    """The prompt has unmet criteria alone."""
    rubric = {"truth": "It is true.", "style": "It is plain."}
    mixed = {
        "reason": "It is so.",
        "criteria": {
            "truth": {"evidence": "", "change": "keep it up", "score": 5},
            "style": {"evidence": "", "change": "shorter words", "score": 1},
        },
        "done": False,
    }
    model = ScriptedModel(["a", json.dumps(mixed), "b", json.dumps(mixed)])
    await refine("q", model, Judge(rubric), max_iterations=1)
    sent = model.messages[2][-1]["content"]
    assert "shorter words" in sent
    assert "keep it up" not in sent


async def test_requirements_state_demand_and_measure():
    """The prompt has the measured number and the requested one."""
    model = ScriptedModel(["one two three", "a b c d e"])
    await refine(Task("q", requirements=["words:5"]), model, [], max_iterations=1)
    sent = model.messages[1][-1]["content"]
    assert "3 words" in sent
    assert "5" in sent


async def test_the_same_demand_twice_counts_once():
    """A requirement of the task that is also a grader is one must; the same function twice is two
    graders.
    """
    result, _ = await run(["a"], ["words:1", "words:1"], max_iterations=0)
    assert [s.name for s in result.trace.panel] == ["words:1"]
    result = await refine(Task("q", "a", requirements=["words:1"]), False, ["words:1"])
    assert [(s.name, s.must) for s in result.trace.panel] == [("words:1", True)]
    result, _ = await run(["a"], [lambda text: 0.2, lambda text: 0.4], max_iterations=0)
    assert result.score == pytest.approx(0.3)


async def test_the_prompt_has_only_what_the_editor_could_not_repair():
    """After the editor's repairs the refiner is to add the missing word and keep the rest."""
    model = ScriptedModel(["well, fine", "well qubit"])
    result = await refine(Task("q", requirements=["no_commas", "contains:qubit"]), model, [])
    sent = model.messages[1][-1]["content"]
    assert "contains:qubit: 'qubit' occurs 0 times; contains 'qubit'" in sent
    assert [line for line in sent.splitlines() if "comma" in line] == ["- still holds: no commas"]
    assert result.stop == "target"


# ---- stream, refine_sync, refine_many


async def test_stream_yields_the_trace_after_every_record():
    """Each trace is one record longer; the last has an outcome."""
    sizes = []
    async for trace in stream("q", ScriptedModel(["a", "b"]), by_table(a=0.1, b=0.95)):
        sizes.append(len(trace.records))
    assert sizes == [1, 2, 3, 4, 5]
    assert trace.outcome.reason == "target"


def test_refine_sync_works_without_a_loop():
    """No await is needed."""
    assert refine_sync("q", ScriptedModel(["a"]), by_table(a=1.0)).value == "a"


async def test_refine_sync_works_inside_a_running_loop():
    """The result is the same."""
    assert refine_sync("q", ScriptedModel(["a"]), by_table(a=1.0)).value == "a"


async def test_refine_many_keeps_order_and_isolates_failures():
    """A failed row has its error; the others have their answers."""

    async def model(messages):
        if "bad" in messages[0]["content"]:
            raise ModelError("refused")
        return messages[0]["content"].upper()

    results = await refine_many(["one", "bad", "three"], model, lambda text: 1.0)
    assert [r.value for r in results] == ["ONE", "", "THREE"]
    assert isinstance(results[1].error, RedraftError)
    assert results[0].error is None


async def test_refine_many_has_one_limit_and_one_budget():
    """There are never more than two calls in flight, nor more than five in all."""
    inside = most = 0

    async def model(messages):
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0.001)
        inside -= 1
        return "a"

    results = await refine_many(
        [f"q{i}" for i in range(12)],
        model,
        lambda text: 1.0,
        max_in_flight=2,
        budget=Budget(calls=5),
    )
    assert most == 2
    assert sum(r.usage.calls for r in results) == 5
    assert sum(isinstance(r.error, BudgetExhaustedError) for r in results) == 7


async def test_refine_many_refuses_an_invalid_task_before_any_call():
    """One invalid row among many is reported at once."""
    model = ScriptedModel(["a", "b"])
    with pytest.raises(ConfigError):
        await refine_many(["one", 7], model, lambda text: 1.0)
    assert model.calls == 0


async def test_cancelling_refine_many_keeps_finished_results():
    """Finished rows are in `.results`, the others say that they were cancelled."""
    done = asyncio.Event()

    async def model(messages):
        if messages[0]["content"] == "slow":
            await asyncio.Event().wait()
        return "a"

    def raise_on_record(record):
        if isinstance(record, Outcome):
            done.set()

    working = asyncio.ensure_future(
        refine_many(["fast", "slow"], model, lambda text: 1.0, on_record=raise_on_record)
    )
    await done.wait()
    working.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await working
    fast, slow = caught.value.results
    assert (fast.value, fast.stop) == ("a", "target")
    assert (slow.value, slow.stop, slow.score) == ("", "cancelled", None)
    assert (slow.usage.calls, slow.usage.tokens) == (1, None)


async def test_refine_many_counts_the_calls_of_a_failed_row():
    """A row whose only draft failed has no answer, but its usage."""

    async def model(messages):
        raise ModelError("refused")

    (failed,) = await refine_many(["bad"], model, lambda text: 1.0)
    assert isinstance(failed.error, ModelError)
    assert (failed.usage.calls, failed.usage.tokens) == (1, None)


@pytest.mark.parametrize("inside", ["", "loop", "run"])
@pytest.mark.parametrize("ignored", [False, True])
@pytest.mark.parametrize("model", ["async", "sync"])
@pytest.mark.slow
def test_ctrl_c_raises_with_the_best_so_far(inside, ignored, model):
    """It may come during a call, with or without a running loop, and with SIGINT ignored at the
    start.
    """
    start = lambda: signal.signal(
        signal.SIGINT, signal.SIG_IGN if ignored else signal.default_int_handler
    )
    program = [sys.executable, "-c", INTERRUPTED, inside, model]
    with subprocess.Popen(
        program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=start
    ) as done:
        assert done.stdout.readline() == "refining\n"
        done.send_signal(signal.SIGINT)
        out = done.stdout.readline()
        done.kill()  # a function that blocks its thread keeps the interpreter from ending
        assert (out, done.stderr.read()) == (
            "KeyboardInterrupt: a cancelled 2 None, no context\n",
            "",
        )


INTERRUPTED = """
import asyncio, sys, time, redraft

async def later(messages):
    if len(messages) > 1:
        print("refining", flush=True)
        await asyncio.Event().wait()
    return "a"

def blocking(messages):
    if len(messages) > 1:
        print("refining", flush=True)
        time.sleep(60)
    return "a"

def work():
    try:
        redraft.refine_sync("q", later if sys.argv[2] == "async" else blocking, lambda text: 0.4)
    except KeyboardInterrupt as interrupt:
        result = interrupt.result
        seen = "no context" if interrupt.__suppress_context__ or not interrupt.__context__ else repr(interrupt.__context__)
        print(f"KeyboardInterrupt: {result.value} {result.stop} {result.usage.calls} {result.usage.tokens}, {seen}", flush=True)

async def inside():
    work()

if sys.argv[1] == "run":
    asyncio.run(inside())
elif sys.argv[1] == "loop":
    asyncio.new_event_loop().run_until_complete(inside())
else:
    work()
"""


@pytest.mark.parametrize("inside", [False, True])
def test_errors_of_refine_sync_have_no_context(inside):
    """An error is not shown as raised while another one was handled."""

    def fails():
        with pytest.raises(ModelError) as caught:
            refine_sync("q", ScriptedModel([ModelError("refused")]), lambda text: 1.0)
        assert caught.value.__context__ is None
        with pytest.raises(ConfigError) as caught:
            refine_sync("q", ScriptedModel(["a"]), lambda text: 1.0, patience=0)
        assert caught.value.__context__ is None

    async def in_a_loop():
        fails()

    asyncio.run(in_a_loop()) if inside else fails()


async def test_a_cancellation_carries_the_best_so_far():
    """It is on the CancelledError; under asyncio.timeout that is the context of the TimeoutError
    (its cause from Python 3.11.3 on).
    """

    async def model(messages):
        if len(messages) > 1:
            limit.reschedule(asyncio.get_running_loop().time())
            await asyncio.Event().wait()
        return "a"

    with pytest.raises(TimeoutError) as caught:
        async with asyncio.timeout(60) as limit:
            await refine("q", model, lambda text: 0.4)
    result = caught.value.__context__.result
    assert (result.value, result.stop, result.converged) == ("a", "cancelled", False)
    assert (result.usage.calls, result.usage.tokens, result.cost) == (2, None, None)


async def test_a_cancellation_without_a_grade_carries_the_usage():
    """Sent calls are counted."""
    begun = asyncio.Event()

    async def model(messages):
        begun.set()
        await asyncio.Event().wait()

    working = asyncio.ensure_future(refine("q", model, lambda text: 0.4))
    await begun.wait()
    working.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await working
    result = caught.value.result
    assert (result.value, result.score, result.usage.calls, result.usage.tokens) == (
        "",
        None,
        1,
        None,
    )
    (said,) = result.failures
    assert said.startswith(
        "generate: CancelledError: cancelled before it ended (in model, test_semantics.py line "
    )


async def test_a_cancellation_is_raised_once():
    """After asyncio.timeout the task continues and is no longer being cancelled."""

    async def model(messages):
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await refine("q", model, lambda text: 0.4)
    assert asyncio.current_task().cancelling() == 0
    assert (await refine("q", ScriptedModel(["a"]), lambda text: 1.0)).value == "a"


async def test_a_cancellation_inside_a_model_or_a_grader_is_their_failure():
    """The refinement is not cancelled where something that they await was."""

    async def cancelled_model(*_):
        raise asyncio.CancelledError

    with pytest.raises(ModelError, match="CancelledError"):
        await refine("q", cancelled_model, lambda text: 1.0)
    with pytest.raises(GradingError, match="CancelledError"):
        await refine("q", ScriptedModel(["a"]), cancelled_model)


async def test_unfinished_calls_of_a_failed_grader_are_cancelled():
    """Of two calls at once one fails: the other is cancelled and counted before the step ends."""
    left = []

    async def judge(messages):
        if messages[0]["content"] == "fail":
            raise ModelError("refused")
        try:
            await asyncio.Event().wait()
        finally:
            left.append("ended")

    async def impatient(text, llm):
        await asyncio.gather(llm("hang"), llm("fail"))

    result = await refine("q", ScriptedModel(["a"]), impatient, judge=judge)
    assert left == ["ended"]
    assert (result.score, result.usage.calls, result.usage.tokens) == (None, 3, None)


async def test_a_call_with_an_unknown_exception_counts_as_sent():
    """A user's model that raises another exception has been called."""

    class RaisingModel:
        name = identity = "odd"

        async def complete(self, request):
            raise ZeroDivisionError

    with pytest.raises(ModelError) as caught:
        await refine("q", RaisingModel(), lambda text: 1.0)
    assert (caught.value.usage.calls, caught.value.usage.tokens) == (1, None)


async def test_a_trace_resumes_where_it_ended():
    """Recorded calls are not repeated; a finished trace is unchanged."""
    scores = by_table(a=0.1, b=0.3, c=0.5, d=0.95)
    full = await refine("q", ScriptedModel(["a", "b", "c"]), scores, max_iterations=2)
    cut = redraft.Trace(full.trace.task, full.trace.panel, full.trace.records[:3])
    model = ScriptedModel(["c"])
    resumed = await refine(cut, model, scores, max_iterations=2)
    assert (resumed.value, model.calls) == ("c", 1)
    again = await refine(full.trace, ScriptedModel([]), scores, max_iterations=2)
    assert again.trace.records == full.trace.records
    further = await refine(full.trace, ScriptedModel(["d"]), scores, max_iterations=3)
    assert (further.value, further.stop) == ("d", "target")


async def test_a_larger_budget_resumes_a_trace():
    """A trace that ended with its budget continues."""
    scores = by_table(a=0.1, b=0.95)
    poor = await refine("q", ScriptedModel(["a"]), scores, budget=Budget(calls=1))
    rich = await refine(poor.trace, ScriptedModel(["b"]), scores)
    assert (poor.stop, rich.stop, rich.value) == ("budget", "target", "b")


async def test_a_listwise_judge_drives_the_loop():
    """It ranks all answers so far; its reason and changes are in the next prompt; the first of the
    last ranking is returned.
    """

    def ranking_judge(texts, change, done=False):
        def answer(messages):
            shown = {
                text: int(n)
                for n, text in re.findall(r"<answer-(\d+)-\w+>\n(.*)\n", messages[-1]["content"])
            }
            return json.dumps(
                {
                    "reason": "because",
                    "change": [change],
                    "ranking": [shown[text] for text in texts],
                    "done": done,
                }
            )

        return answer

    model = ScriptedModel(
        [
            "a",
            ranking_judge("a", "be bolder"),
            "b",
            ranking_judge("ba", "be clearer"),
            "c",
            ranking_judge("bac", "", done=True),
        ]
    )
    result = await refine("q", model, Ranker())
    assert (result.value, result.score, result.stop) == ("b", None, "done")
    assert "be bolder" in model.messages[2][-1]["content"]
    assert "be clearer" in model.messages[4][-1]["content"]


async def test_usage_is_reported_by_role_and_model():
    """Each role and each model has its own usage."""
    model, judge = ScriptedModel(["a"], name="writer"), ScriptedModel([verdict(5)], name="critic")
    result = await refine("q", model, Judge(RUBRIC), judge)
    assert set(result.trace.usage_by) == {("generate", "writer"), ("grade", "critic")}


async def test_every_record_is_stored_and_then_reported():
    """on_record gets each record after the store."""
    stored, raise_on_record = [], []

    class Store:
        def append(self, trace):
            stored.append(len(trace.records))

    await refine(
        "q",
        ScriptedModel(["a"]),
        by_table(a=1.0),
        store=Store(),
        on_record=lambda r: raise_on_record.append((type(r).__name__, stored[-1])),
    )
    assert raise_on_record == [("Candidate", 1), ("Feedback", 2), ("Outcome", 3)]


async def test_the_editor_alone_repairs_without_a_model():
    """It repairs what it can and reports the rest, without any usage."""
    result = await refine(
        Task("q", "well, fine", requirements=["no_commas", "contains:qubit"]), False
    )
    assert "," not in result.value
    assert result.broken_musts == ["contains:qubit"]
    assert (result.usage.calls, result.cost) == (0, 0)


async def test_without_a_model_a_prompt_is_an_error():
    """The error says where a model was looked for and what the editor can do."""
    with pytest.raises(ConfigError, match="^model=False: .* or give the task a `response`"):
        await refine("q", False, ["words:5-"])
    with pytest.raises(ConfigError, match="never invents") as caught:
        await refine("q", None, ["words:5-"])
    assert "REDRAFT_MODEL" in str(caught.value)


async def test_an_unknown_price_gives_an_unknown_cost():
    """A model without a known price costs None, never 0."""
    result = await refine("q", lambda messages: "a", lambda text: 1.0)
    assert result.cost is None
    assert "cost unknown" in result.summary()


async def test_given_prices_make_a_cost_and_a_budget_in_usd():
    """Without a price the cost stays unknown."""
    from redraft.protocols import Reply
    from redraft.usage import Usage

    model = ScriptedModel([Reply("a", Usage(1, 1000, 100, cost=None))], name="mine")
    result = await refine(
        "q", model, lambda text: 1.0, prices={"mine": (1.0, 10.0)}, budget=Budget(usd=1)
    )
    assert result.cost == pytest.approx(0.002)


async def test_a_truncated_answer_is_marked():
    """The candidate has finish_reason length."""
    from redraft.protocols import Reply

    result, _ = await run([Reply("a", finish_reason="length", reasoning="hm")], by_table(a=1.0))
    assert result.trace.best.truncated
    assert result.trace.best.reasoning == "hm"
    assert result.value == "a"


async def test_a_result_is_shown_without_markup_and_control_sequences():
    """HTML is escaped, control sequences are removed."""
    from io import StringIO

    from rich.console import Console

    result, _ = await run(["<b>\x1b[31mred"], lambda text: 1.0)
    out = StringIO()
    Console(file=out, force_terminal=False).print(result)
    assert "\x1b" not in out.getvalue()
    assert "<b>" not in result._repr_html_()
    assert "stop='target'" in repr(result)


@pytest.mark.parametrize("noise_aware", [False, None])
async def test_no_two_refinements_have_the_same_prompt(noise_aware):
    """The prompt has the number of similar failures: a model that repeats itself would otherwise do
    so for ever.
    """
    asked = []

    async def model(messages):
        asked.append(json.dumps(messages))
        return f"answer {len(asked)}"

    await refine("q", model, by_rule(0.4), max_iterations=6, patience=6, noise_aware=noise_aware)
    assert len(asked) == len(set(asked)) == 7


async def test_a_score_higher_by_rounding_is_no_better():
    """Where the same mean was summed in another order the prompt says that the attempt did not
    help.
    """
    asked = []

    async def model(messages):
        asked.append(messages[-1]["content"])
        return "abc"[len(asked) - 1]

    scores = {"a": (0.3, 0.2, 0.1), "b": (0.1, 0.2, 0.3), "c": (0.1, 0.1, 0.1)}
    graders = [lambda text, n=n: Feedback(scores[text][n], actions=["x"]) for n in range(3)]
    assert sum(scores["a"]) < sum(scores["b"])
    result = await refine("q", model, graders, max_iterations=2)
    assert result.value == "a"
    assert "already tried" in asked[2]
