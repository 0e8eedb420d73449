"""How answers end: a failed answer never passes for a whole one, whatever the server calls its end.
(What users see: `quirks/`.)
"""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import redraft
from each_row import each_row
from redraft.base.finish_reasons import ending_of
from redraft.errors import (
    BadResponseError,
    ContentFilterError,
    ContextLengthError,
    GradingError,
    ModelError,
    RateLimitError,
)
from redraft.middleware.messages import checked_reply
from redraft.models import Chat
from redraft.protocols import Reply
from redraft.usage import Usage

from . import fault_server as fs

HALF, WHOLE = "A qubit is li", "A qubit is a quantum bit."
COUNTED = Usage(1, 7, 3, cost=None)

WORDS = {  # as the documents and servers of these vendors spell them
    "stop": (
        "stop STOP FINISH_REASON_STOP end_turn stop_sequence pause_turn eos eos_token EosToken COMPLETE FINISH_REASON_COMPLETE"
        " completed endTurn StopReason.end_turn FINISH stop_before stopStringFound stop_sequence_reached end_of_message"
    ),
    "length": (
        "length max_tokens MAX_TOKENS MaxTokens maxTokens model_length max_output_tokens model_context_window_exceeded"
        " FINISH_REASON_MAX_TOKENS ERROR_LIMIT limit context maximum_tokens out_of_tokens maxPredictedTokensReached"
    ),
    "tool_calls": "tool_calls tool_use function_call TOOL_CALL tool-calls",
    "content_filter": (
        "content_filter content-filter SAFETY RECITATION BLOCKLIST PROHIBITED_CONTENT SPII LANGUAGE IMAGE_SAFETY refusal ERROR_TOXIC"
        " guardrail_intervened content_filtered sensitive blacklist FinishReason.SAFETY"
    ),
    "failed": (
        "error ERROR abort aborted cancelled insufficient_system_resource network_error MALFORMED_FUNCTION_CALL"
        " UNEXPECTED_TOOL_CALL OTHER load repetition USER_CANCEL timeout userStopped malformed_model_output"
    ),
}
STATES = [(word, ending) for ending, words in WORDS.items() for word in words.split()]
STATES += [
    ("content_filter: RECITATION", "content_filter"),
    ("function_call_filter: MALFORMED_FUNCTION_CALL", "failed"),
]
STATES += [
    ({"type": "stop", "matched": 151645}, "stop"),
    ({"type": "abort", "message": "the client left"}, "failed"),
]
STATES += [
    (nothing, None)
    for nothing in (None, "", " ", "null", "None", "FINISH_REASON_UNSPECIFIED", {}, {"type": None})
]
STATES += [
    (word, "unknown")
    for word in (
        "future_reason",
        7,
        True,
        [],
        "終",
        "!",
        "stop_reason",
        "NOT_FINISHED",
        {"type": "engine_dead"},
        "stop it",
    )
]


@each_row(("reason", "ending"), STATES, ids=str)
def test_each_word_says_how_the_answer_ended(reason, ending):
    """Case, separators, prefixes and details do not matter; what is not in the list is unknown."""
    assert ending_of(reason) == ending


@pytest.mark.slow
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=20),
        lambda each: st.lists(each) | st.dictionaries(st.text(max_size=5), each),
    )
)
@example("stop" * 1000)
def test_any_value_is_read(reason):
    """No value raises, and a long word is no known one."""
    assert ending_of(reason) in {None, "unknown", *WORDS}


# ---- whole replies and streams


def chunk_of(choice):
    return {"choices": [{"index": 0, "delta": {}, **choice}]}


def whole(finish="stop", text=HALF, **fields):
    """Return a reply; `fields` are those of its choice."""
    message = {"role": "assistant", "content": text}
    return fs.http(
        {
            "choices": [{"index": 0, "finish_reason": finish, "message": message, **fields}],
            "usage": fs.completion()["usage"],
        }
    )


def streamed(finish="stop", text=HALF, **fields):
    fields = {"delta" if name == "message" else name: value for name, value in fields.items()}
    return fs.send_and_close(fs.sse(fs.chunk(text), chunk_of({"finish_reason": finish, **fields})))


ERROR = {"code": 502, "message": "Provider returned error"}
# what the choice says, the class of the error, whether it is worth asking again, and words of the
# message
FAILURES = {
    "an error in the choice": ({"finish": "error", "error": ERROR}, BadResponseError, True, "status 502: Provider returned error"),
    "an error beside a good end": ({"error": ERROR}, BadResponseError, True, "status 502: Provider returned error"),
    "an error without an end": ({"finish": None, "error": {"message": "lost"}}, BadResponseError, True, "lost"),
    "an error in the message": ({"message": {"content": HALF, "error": ERROR}}, BadResponseError, True, "Provider returned error"),
    "an error of text": ({"error": "the worker died"}, BadResponseError, True, "the worker died"),
    "the words behind a router": (
        {"error": ERROR | {"metadata": {"raw": "CUDA error", "provider_name": "x"}}},
        BadResponseError,
        True,
        "Provider returned error (CUDA error)",
    ),
    "too many requests": ({"error": {"code": 429, "message": "slow down"}}, RateLimitError, True, "slow down"),
    "too long": ({"error": {"code": "context_length_exceeded", "message": "no"}}, ContextLengthError, False, "no"),
    "a filter": ({"error": {"code": "content_filter", "message": "policy"}}, ContentFilterError, False, "policy"),
    "a bad request": ({"error": {"code": 400, "message": "bad"}}, BadResponseError, False, "status 400: bad"),
    "a wrong end": ({"finish": "error"}, BadResponseError, True, "broke off its answer (finish_reason 'error')"),
    "an end with words": ({"finish": {"type": "abort", "message": "gone"}}, BadResponseError, True, "gone"),
    "a native end": ({"finish": None, "native_finish_reason": "MALFORMED_FUNCTION_CALL"}, BadResponseError, True, "MALFORMED"),
    "an unknown end": ({"finish": "future_reason"}, BadResponseError, True, "unknown reason, so it may not be whole (finish_reason 'future_reason')"),
    "filtered in other words": ({"finish": "SAFETY"}, ContentFilterError, False, "content filter"),
}  # fmt: skip


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("name", FAILURES)
async def test_a_failed_answer_is_an_error(faults, ask, name, is_stream):
    """It has the words and the status of the server, and what was counted."""
    fields, kind, retryable, words = FAILURES[name]
    faults.says((streamed if is_stream else whole)(**fields))
    with pytest.raises(ModelError) as caught:
        await Chat("m", faults.url, stream=is_stream).complete(ask())
    error = caught.value
    assert (type(error), error.retryable) == (kind, retryable)
    assert words in str(error)
    stated = fields.get("error")
    if isinstance(stated, dict) and isinstance(stated.get("code"), int):
        assert error.status == stated["code"]
    if not is_stream:
        assert error.usage == COUNTED


TOP_ERRORS = [
    {"error": ERROR},
    {"error": {"message": "x"}, "choices": fs.completion(HALF)["choices"]},
    {"object": "error", "message": "x", "code": 500},
    {"type": "error", "error": {"type": "overloaded_error", "message": "x"}},
]
HARMLESS = [
    {"error": None},
    {"error": {}},
    {"error": ""},
    {"error": {"code": 0, "message": ""}},
    {"error": False},
    {"type": "chat"},
]


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("fields", [*TOP_ERRORS, *HARMLESS], ids=str)
async def test_an_error_beside_the_choices(faults, ask, fields, is_stream):
    """An error that says something fails the answer, also beside choices; an empty one does not."""
    if is_stream:
        faults.says(fs.send_and_close(fs.sse(fs.chunk(WHOLE), fs.chunk(finish="stop"), fields)))
    else:
        faults.says(fs.http(fs.completion(WHOLE) | fields))
    call = Chat("m", faults.url, stream=is_stream).complete(ask())
    if fields in HARMLESS:
        assert (await call).text == WHOLE
    else:
        with pytest.raises(BadResponseError):
            await call


ENDLESS = {  # streams that break off, with or without their last event
    "no end": [fs.chunk(HALF)],
    "an empty end": [{"choices": [{"index": 0, "finish_reason": "", "delta": {"content": HALF}}]}],
    "an end of nothing": [
        {"choices": [{"index": 0, "finish_reason": "null", "delta": {"content": HALF}}]}
    ],
    "only a role": [fs.chunk(role="assistant")],
}


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("name", ENDLESS)
async def test_a_stream_without_its_end_is_an_error(faults, ask, name, is_done):
    """Some servers write an empty reason into each event: that is no end."""
    faults.says(fs.send_and_close(fs.sse(*ENDLESS[name], done=is_done)))
    with pytest.raises(BadResponseError, match="without a finish_reason") as caught:
        await Chat("m", faults.url, stream=True).complete(ask())
    assert caught.value.retryable


NOTHING = {  # replies that the limit cut off before anything was written
    "no message": {"index": 0, "finish_reason": "length"},
    "no content": {"index": 0, "finish_reason": "length", "message": {"role": "assistant"}},
    "null": {"index": 0, "finish_reason": "MAX_TOKENS", "message": None},
    "empty": {"index": 0, "finish_reason": "max_tokens", "message": {"content": ""}},
    "reasoning": {
        "index": 0,
        "finish_reason": "length",
        "message": {"content": "", "reasoning_content": "Let me think"},
    },
    "half a thought": {
        "index": 0,
        "finish_reason": "length",
        "message": {"content": "<think>Let me"},
    },
    "half a call": {
        "index": 0,
        "finish_reason": "length",
        "message": {"tool_calls": [fs.call("search", '{"q": "ra')]},
    },
}


@pytest.mark.parametrize("name", NOTHING)
async def test_nothing_before_the_limit_costs_one_call(faults, ask, name):
    """The error says what to raise, and the same request is not sent again."""
    faults.says(fs.http({"choices": [NOTHING[name]], "usage": fs.completion()["usage"]}))
    with pytest.raises(BadResponseError, match="raise `max_tokens`") as caught:
        await redraft.refine("q", Chat("m", faults.url), "words:1-50", max_iterations=0)
    assert len(faults.requests) == caught.value.usage.calls == 1
    with pytest.raises(BadResponseError) as caught:
        await Chat("m", faults.url).complete(ask())
    assert (caught.value.truncated, caught.value.usage) == (True, COUNTED)


async def test_cut_in_other_words_is_marked(faults, ask):
    """Every word for the token limit marks the answer as cut off."""
    for reason in ("model_length", "MAX_TOKENS", "max_tokens"):
        reply = await Chat("m", faults.says(fs.good(HALF, reason)).url).complete(ask())
        assert (reply.truncated, reply.finish_reason) == (True, "length")


VERDICT = '{"reason": "It is so.", "criteria": {"truth": {"evidence": "e", "change": "c", "score": 4}}, "done": false}'


async def test_a_judge_that_reasons_too_long_is_asked_with_more_room(faults):
    """Once, with four times the tokens; then the error says what to raise."""
    judge = redraft.Judge({"truth": "It is true."}, max_tokens=100)
    cut = fs.good("", "length", reasoning_content="Let me think")
    faults.says(cut, fs.good(VERDICT))
    assert (await redraft.grade(("q", "a"), judge, Chat("m", faults.url))).score == 0.8
    faults.says(cut)
    with pytest.raises((GradingError, ModelError), match="a larger max_tokens, such as 1600"):
        await redraft.grade(("q", "b"), judge, Chat("m", faults.url))
    assert [request.body["max_tokens"] for request in faults.requests] == [100, 400, 100, 400]


@pytest.mark.parametrize(
    ("reason", "result"),
    [("stop", "stop"), (None, None), ("MAX_TOKENS", "length"), ("error", BadResponseError), ("odd", BadResponseError), ("SAFETY", ContentFilterError)],
)  # fmt: skip
def test_models_of_the_user_end_in_the_same_words(ask, reason, result):
    """A reply of one's own client is read by the same list."""
    reply = Reply("text", COUNTED, reason)
    if isinstance(result, type):
        with pytest.raises(result):
            checked_reply("m", ask(), reply, may_offer_tools=True)
    else:
        assert checked_reply("m", ask(), reply, may_offer_tools=True).finish_reason == result
