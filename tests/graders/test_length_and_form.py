"""Graded length, and the form of replies with reasoning."""

import re
import sys
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import redraft
from each_row import each_row
from redraft import Candidate, ScriptedModel, Task, must
from redraft.errors import ConfigError
from redraft.graders import as_grader
from redraft.graders.computed.base import compute
from redraft.loop.serialize import record_from_json, record_to_json
from redraft.models.chat_replies import reply_from_message
from redraft.protocols import ToolCall
from redraft.usage import NO_USAGE


async def grade(spec, candidate):
    candidate = Candidate(0, candidate) if isinstance(candidate, str) else candidate
    return await as_grader(spec).grade(Task("q"), candidate, None)


# ---- length


@pytest.mark.parametrize(
    ("options", "count", "score"),
    [
        ("words=80-200", 80, 1),
        ("words=80-200", 200, 1),
        ("words=80-200", 300, 0.5),
        ("words=80-200", 400, 0),
        ("words=80-200", 4000, 0),
        ("words=80-200", 40, 0.5),
        ("words=80-200", 0, 0),
        ("words=80-200,falloff=0.5", 250, 0.5),
        ("words=80-200,falloff=2", 400, 0.5),
        ("words=100", 99, 0.99),
        ("words=<11", 15, 0.5),
        ("words=5-", 1000, 1),
        ("words=0", 1, 0),
        ("words=0", 0, 1),
    ],
)
async def test_length_falls_in_a_straight_line(options, count, score):
    """The score is 1 in the range; outside, it falls to 0 over `falloff` times the nearer end."""
    feedback = await grade(f"length:{options}", "word " * count)
    assert feedback.score == pytest.approx(score)
    assert f"{count} word" in feedback.reason
    assert bool(feedback.actions) is (score < 1)


@pytest.mark.slow
@given(low=st.integers(0, 40), width=st.integers(0, 40), falloff=st.floats(0.1, 5))
async def test_length_never_rises_outside_the_range(low, width, falloff):
    """Towards the range the score never falls, away from it it never rises."""
    spec = f"length:characters={low}-{max(low + width, 1)},falloff={falloff!r}"
    scores = [(await grade(spec, "x" * n)).score for n in range(0, 100, 3)]
    peak = scores.index(max(scores))
    assert scores[: peak + 1] == sorted(scores[: peak + 1])
    assert scores[peak:] == sorted(scores[peak:], reverse=True)


async def test_units_of_length():
    """Words and characters are those of the requirements; tokens are those of o200k_base."""
    text = " 汉字 hello world "
    for spec in ("length:words=4", "length:characters=14", "length:tokens=4"):
        assert (await grade(spec, text)).score == 1, spec
    assert (await grade("length:tokens=1-", "")).score == 0


async def test_missing_extra_for_tokens_is_named(monkeypatch):
    """The error gives the command that installs the extra."""
    from redraft.graders.computed import text_quality

    text_quality._encoding.cache_clear()
    monkeypatch.setitem(sys.modules, "bpe_openai", None)
    with pytest.raises(ConfigError, match=r"redraft\[tokens\]"):
        await grade("length:tokens=5", "x")


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("length", "a range of words, characters or tokens.*got none"),
        ("length:words=5,tokens=5", "got words and tokens"),
        ("length:words=9-3", "words: nothing lies between 9 and 3"),
        ("length:words=many", "'many' is not a range; allowed"),
        ("length:chars=5", "there are: words=TEXT, characters=TEXT"),
        ("length:words=5,falloff=0", "falloff must be a number > 0"),
        ("reasoning_format:think=a b", "the name of a tag"),
        ("reasoning_format:answer=<x>", "the name of a tag"),
        ("reasoning_format:think=", "think"),
        ("tool_call_recall:scope=last", "all or steps"),
        ("token_f1:tokens=bpe", "squad or words or whitespace"),
    ],
)
def test_invalid_options_are_rejected(spec, says):
    """The error comes when the grader is made, and says what is allowed."""
    with pytest.raises(ConfigError, match=says):
        as_grader(spec)


# ---- reasoning

CALL = '<tool_call>{"name": "look", "arguments": {"q": 1}}</tool_call>'
TAGGED = "reasoning_format:answer=answer"
OWN = "reasoning_format:think=reasoning,answer=answer"
WITH_CALLS = "reasoning_format:answer=answer,tool_calls=true"
COMPLETE_CALLS = [
    '{"name": "look", "arguments": {}}',
    '{"name": "look", "parameters": {"q": 1}}',
    '{"name": "look", "arguments": "{}"}',
    '{"type": "function", "function": {"name": "look", "arguments": {"q": 1}}}',
]
INCOMPLETE_CALLS = [
    '{"name": "look"}',
    '{"arguments": {}}',
    '{"name": "look", "arguments": null}',
    '{"name": "look", "arguments": 7}',
    '{"name": "look", "arguments": [1]}',
    '{"name": "look", "arguments": ""}',
    '{"name": "look", "arguments": "1"}',
    '{"type": "function", "function": {"name": "look"}, "arguments": {}}',
    '["look"]',
]
REPLIES = [
    ("reasoning_format", "<think>two and two</think>4", 1),
    ("reasoning_format", "\n<think>\ntwo\n</think>\n\n4\n", 1),
    ("reasoning_format", "two and two\n</think>\n4", 1),
    ("reasoning_format", "4", 0),
    ("reasoning_format", "<think></think>4", 0),
    ("reasoning_format", "Well. <think>two</think>4", 0),
    ("reasoning_format", "<think>two</think>4<think>or five</think>", 0),
    ("reasoning_format", "<think>two</think>4</think>", 0),
    (TAGGED, "<think>two</think><answer>4</answer>", 1),
    (TAGGED, "<think>two</think>\n<answer>\n4\n</answer>\n", 1),
    (TAGGED, "<think>two</think>4", 0),
    (TAGGED, "<think>two</think><answer></answer>", 0),
    (TAGGED, "<think>two</think>So: <answer>4</answer>", 0),
    (TAGGED, "<think>two</think><answer>4</answer> I hope.", 0),
    (TAGGED, "<think>two</think><answer>4</answer><answer>5</answer>", 0),
    (TAGGED, "<think>two</think></answer>4<answer>", 0),
    (TAGGED, "<answer>4</answer>", 0),
    (OWN, "<reasoning>two</reasoning><answer>4</answer>", 1),
    (OWN, "<reasoning>two<answer>4</answer>", 0),
    (OWN, "<think>two</think><answer>4</answer>", 0),
    (WITH_CALLS, f"<think>two</think>{CALL}", 1),
    (WITH_CALLS, f"<think>two</think>{CALL}\n{CALL}", 1),
    (WITH_CALLS, "<think>two</think><answer>4</answer>", 1),
    (WITH_CALLS, f"<think>two</think>{CALL}<answer>4</answer>", 0),
    (WITH_CALLS, f"<think>two</think><tool_call>{CALL}</tool_call>", 0),
    (WITH_CALLS, "<think>two</think><tool_call>{'name': 1}</tool_call>", 0),
    (WITH_CALLS, "<think>two</think><tool_call>", 0),
    (TAGGED, f"<think>two</think>{CALL}", 0),
    *[
        (WITH_CALLS, f"<think>two</think><tool_call>{call}</tool_call>", 1)
        for call in COMPLETE_CALLS
    ],
    *[
        (WITH_CALLS, f"<think>two</think><tool_call>{call}</tool_call>", 0)
        for call in INCOMPLETE_CALLS
    ],
    *[
        (WITH_CALLS, f"<think>two</think>{CALL}<tool_call>{call}</tool_call>", 0)
        for call in INCOMPLETE_CALLS
    ],
]


@each_row(("spec", "reply", "score"), REPLIES)
async def test_form_of_a_given_text_and_of_a_model_reply(spec, reply, score):
    """The verdict is the same for a given text, which holds the tags, and for a reply, from which
    think blocks are taken.
    """
    feedback = await grade(spec, reply)
    assert feedback.score == score, feedback.reason
    try:
        read = reply_from_message({"content": reply}, "stop", NO_USAGE)
    except redraft.errors.BadResponseError:
        assert score == 0  # there is reasoning and no answer
        return
    candidate = Candidate(
        0, read.text, reasoning=read.reasoning, reasoning_form=read.reasoning_form
    )
    assert (await grade(spec, record_from_json(record_to_json(candidate)))).score == score


@pytest.mark.parametrize(
    ("message", "form"),
    [
        ({"content": "4"}, None),
        ({"content": "4", "reasoning_content": "two"}, "separate"),
        (
            {"content": [{"type": "thinking", "thinking": "two"}, {"type": "text", "text": "4"}]},
            "separate",
        ),
        ({"content": "4", "reasoning_content": " "}, None),
        ({"content": "<think>two</think>4"}, "block"),
        ({"content": "<think>\n\n</think>\n4"}, "empty"),
        ({"content": "two\n</think>4"}, "end_tag"),
        ({"content": "<think>two</think>4", "reasoning_content": "two"}, "other"),
        ({"content": "`<think>x</think>` is a tag"}, None),
    ],
)
async def test_how_a_reply_contains_its_reasoning(message, form):
    """The form is recorded when the reply is read; reasoning in a field of its own counts as a
    think block.
    """
    reply = reply_from_message(message, "stop", NO_USAGE)
    assert reply.reasoning_form == form
    candidate = Candidate(0, reply.text, reasoning=reply.reasoning, reasoning_form=form)
    assert (await grade("reasoning_format", candidate)).score == (
        form in {"separate", "block", "end_tag"}
    )


async def test_reasoning_without_a_recorded_form_was_separate():
    """Traces of other programs, and models of the user, tell only the reasoning."""
    assert (await grade("reasoning_format", Candidate(0, "4", reasoning="two"))).score == 1
    long = "4 " * 20_000  # graded in a worker
    assert (await grade("reasoning_format", Candidate(0, long, reasoning="two"))).score == 1
    assert (
        await grade("reasoning_format", Candidate(0, long, reasoning="two", reasoning_form="other"))
    ).score == 0


async def test_tool_calls_may_stand_in_place_of_the_answer():
    """Calls that the endpoint returns separately count like those in tags, without other text."""
    calls = (ToolCall("look"),)
    assert (await grade(WITH_CALLS, Candidate(0, "", reasoning="two", tool_calls=calls))).score == 1
    assert (
        await grade(WITH_CALLS, Candidate(0, "so", reasoning="two", tool_calls=calls))
    ).score == 0
    assert (await grade(TAGGED, Candidate(0, "", reasoning="two", tool_calls=calls))).score == 0
    assert as_grader(WITH_CALLS).reads_tool_calls
    assert not as_grader(TAGGED).reads_tool_calls


def test_form_leads_a_refinement():
    """The model is told what is wrong with the form, and a repaired answer keeps the form of its
    reply.
    """
    model = ScriptedModel(["four , I think", "<think>two and two</think>four , I think"])
    result = redraft.refine_sync(
        "Add.", model, [must("reasoning_format"), "no_commas"], max_iterations=1
    )
    assert (
        "write the reasoning between <think> and </think>, then the answer"
        in model.messages[1][-1]["content"]
    )
    refined = result.trace.candidates[-1]
    assert refined.reasoning_form == "block"
    assert result.trace.meets_musts(refined.id)


@given(
    text=st.lists(
        st.sampled_from(
            ["<think>", "</think>", "<answer>", "</answer>", "a", " ", "\n", "`", CALL]
        ),
        max_size=8,
    )
)
@settings(max_examples=4 * settings.default.max_examples, deadline=None)
async def test_any_sequence_of_tags_is_right_or_wrong(text):
    """The score is 1 exactly if the text has the form that a pattern states."""
    text = "".join(text)
    pattern = r"\s*(?:<think>)?(?P<think>[^<]+)</think>\s*<answer>(?P<answer>[^<]+|(?:[^<]|<tool.*?/tool_call>)+)</answer>\s*"
    match = re.fullmatch(pattern, text, re.DOTALL)
    simple = "tool" not in text
    score = (await grade(TAGGED, text)).score
    if simple:
        assert score == bool(match and match["think"].strip() and match["answer"].strip())
    assert score in {0, 1}


async def test_a_package_is_first_loaded_in_a_thread():
    """Loading one, such as the tokens' vocabulary, can take a second, in which the event loop would
    do nothing else.
    """

    def runs_in_main_thread():
        return threading.current_thread() is threading.main_thread()

    assert [await compute(1, runs_in_main_thread, package="of this test") for _ in range(2)] == [
        False,
        True,
    ]
    assert [await compute(size, runs_in_main_thread) for size in (1, 1_000_000)] == [True, False]
