"""What becomes of a request to a profile: its settings, its turns with tools, its errors."""

from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redraft.core.records import ToolCall
from redraft.errors import (
    AuthenticationError,
    BadResponseError,
    BudgetExhaustedError,
    ConfigError,
    ContentFilterError,
    ContextLengthError,
    GradingError,
    ModelTimeoutError,
    ModelUnavailableError,
    RateLimitError,
)
from redraft.gateway.chat_wire import ChatWire
from redraft.gateway.config import Profile
from redraft.gateway.exchange import Answer, GatewayError, RequestOptions
from redraft.gateway.profile_models import ConnectedModels
from redraft.gateway.refining import ProfileRefiner, answer_request, contains_any, gateway_error
from redraft.gateway.request_options import check_requirements, request_graders, request_settings
from redraft.models import ScriptedModel
from redraft.protocols import Reply

TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("look_up", "send")]


def request_of(**fields):
    return ChatWire().parse({"model": "refine/fast", "messages": [{"role": "user", "content": "Say it."}], **fields})


def refiner_of(model, **changes):
    return ProfileRefiner(Profile("fast", model, **{"graders": ["words:1-5"], **changes}), ConnectedModels({}, {}))


async def answer_to(refiner, **fields):
    """Return the answer to a request."""
    async with aclosing(answer_request(refiner.prepare(request_of(**fields), "t1"))) as items:
        return [item async for item in items][-1]


def calls_to(name):
    return Reply("", tool_calls=(ToolCall(name, "{}", f"id-{name}"),))


async def test_text_is_refined():
    """A text that breaks a requirement is refined, and the better one is the answer."""
    model = ScriptedModel(["one two three four five six seven", "one two"])
    answer = await answer_to(refiner_of(model))
    assert (answer.text, answer.score, answer.finish_reason, answer.iterations) == ("one two", 1.0, "stop", 1)
    assert (answer.total.calls, answer.model, answer.trace_id) == (2, "refine/fast", "t1")


async def test_a_tool_call_is_returned_after_one_call():
    """Without graders that read tool calls, the first call of a tool is the answer."""
    model = ScriptedModel([calls_to("look_up")])
    answer = await answer_to(refiner_of(model, settings={"drafts": 3}), tools=TOOLS)
    assert (answer.finish_reason, answer.tool_calls[0].id, answer.score) == ("tool_calls", "id-look_up", None)
    assert model.calls == 1 and len(model.requests[0].tools) == 2


class CallsSend:
    """Scores a call of `send` 1, another 0.2."""

    name = "calls_send"
    model_free = True
    reads_tool_calls = True

    async def grade(self, task, candidate, ask):
        from redraft import Feedback

        names = [call.name for call in candidate.tool_calls]
        return Feedback(1.0 if names == ["send"] else 0.2, "as it is")


async def test_the_best_of_several_tool_calls():
    """With `candidates` and a grader that reads tool calls, the best of so many is chosen; none is rewritten."""
    model = ScriptedModel([calls_to("look_up"), calls_to("send"), calls_to("look_up")])
    answer = await answer_to(refiner_of(model, graders=[CallsSend()], candidates=3), tools=TOOLS)
    assert (answer.tool_calls[0].name, answer.score, answer.iterations, model.calls) == ("send", 1.0, 0, 3)


async def test_a_bad_tool_call_is_not_rewritten():
    """A single call with a low score is returned: to rewrite it would be another action."""
    model = ScriptedModel([calls_to("look_up")])
    answer = await answer_to(refiner_of(model, graders=[CallsSend()]), tools=TOOLS)
    assert (answer.tool_calls[0].name, answer.score, model.calls) == ("look_up", 0.2, 1)


async def test_a_text_is_refined_without_tools():
    """While a text is refined the model cannot call tools; a call in spite of that costs the refinement, not the answer."""
    model = ScriptedModel(["one two three four five six", calls_to("send"), calls_to("send"), calls_to("send")])
    answer = await answer_to(refiner_of(model), tools=TOOLS)
    assert answer.text == "one two three four five six" and answer.finish_reason == "stop"
    assert [request.tool_choice for request in model.requests][:2] == [None, "none"]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "send"}}], ids=["any", "named"])
async def test_tool_choice_is_passed_on(choice):
    """A request that demands a call gets one, and the demand reaches the model."""
    model = ScriptedModel([calls_to("send")])
    answer = await answer_to(refiner_of(model), tools=TOOLS, tool_choice=choice)
    assert answer.finish_reason == "tool_calls" and model.requests[0].tool_choice == choice


async def test_nothing_is_refined():
    """With `refine = "none"` there is one call and no score, also for a model that is not in the configuration."""
    model = ScriptedModel(["one two three four five six"])
    answer = await answer_to(refiner_of(model, refine="none"))
    assert (answer.text, answer.score, model.calls, answer.stop) == ("one two three four five six", None, 1, "done")


async def test_images_stay_in_the_messages():
    """An image of the request is in the messages of the draft and of the refinement."""
    model = ScriptedModel(["one two three four five six", "one"])
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    content = [{"type": "text", "text": "What is it?"}, image]
    await answer_to(refiner_of(model), messages=[{"role": "user", "content": content}])
    assert all(image in messages[0]["content"] for messages in model.messages)


async def test_a_parameter_that_cannot_be_passed_on_is_refused():
    """A model that is no endpoint takes no further parameters; the error names the first of them."""
    with pytest.raises(GatewayError, match="'top_p' cannot be passed on") as caught:
        refiner_of(ScriptedModel([])).prepare(request_of(top_p=0.5), "t1")
    assert (caught.value.status, caught.value.param) == (400, "top_p")


async def test_an_answer_without_a_grade_is_returned():
    """If the graders fail, the text is the answer, and its score is unknown."""

    def fail(text):
        raise RuntimeError("broken")

    answer = await answer_to(refiner_of(ScriptedModel(["text"] * 9), graders=[fail]))
    assert isinstance(answer, Answer) and (answer.text, answer.score, answer.stop) == ("text", None, "failed")
    assert "broken" in answer.reason


async def test_a_reply_that_is_cut_off():
    """An answer that the token limit ends says so."""
    answer = await answer_to(
        refiner_of(ScriptedModel([Reply("one two", finish_reason="length")], name="m"), settings={"max_iterations": 0})
    )
    assert answer.finish_reason == "length"


@given(
    st.none() | st.floats(0, 1),
    st.none() | st.integers(0, 100),
    st.fixed_dictionaries({}, optional={"target_score": st.floats(0, 1), "max_iterations": st.integers(0, 50)}),
    st.fixed_dictionaries(
        {}, optional={"target_score": st.floats(0, 1), "max_iterations": st.integers(0, 50), "deadline": st.floats(1, 99)}
    ),
)
def test_options_stay_within_the_maximum(target, iterations, maximum, settings):
    """Whatever a request chooses, it gets at most the profile's maximum, and no more iterations than the profile has without one."""
    profile = Profile("fast", "m", settings=settings, maximum=maximum)
    options = {name: value for name, value in (("target_score", target), ("max_iterations", iterations)) if value is not None}
    chosen = request_settings(request_of(redraft=options), profile, 60.0)
    if target is not None:
        assert chosen["target_score"] == min(target, maximum.get("target_score", 1.0))
    if iterations is not None:
        assert chosen["max_iterations"] == min(iterations, maximum.get("max_iterations", settings.get("max_iterations", 3)))
    assert chosen["deadline"] == min(60.0, settings.get("deadline", 60.0))


GRADERS = {
    "judge": True,
    "judge:helpfulness": True,
    "helpfulness": True,
    "words:80-200": True,
    "length:words=80-200": True,
    "answered": True,
    "own:1": True,
    "judge:/etc/passwd": False,
    "judge:rubric.toml": False,
    "judge:reads_tool_calls=true": False,
    "ranker:../x.toml": False,
    "checklist:questions.txt": False,
    "jury:helpfulness,/etc/passwd": False,
    "tests": False,
    "speed": False,
    "types": False,
    "embedding:openai:text-embedding-3-small": False,
    "reward:http://127.0.0.1/classify#m": False,
    "moderation:openai:omni": False,
    "json_schema:/etc/passwd": False,
    "./grader.py:grade": False,
    "os:system": False,
    "": False,
}


@pytest.mark.parametrize(("spec", "is_allowed"), GRADERS.items())
def test_graders_of_a_request(spec, is_allowed):
    """A request may name the profile's own graders, judges, rubrics and requirements; no file, no code and no host."""
    profile = Profile("fast", "m", graders=["judge"])
    options = RequestOptions(graders=(spec,))
    if spec == "own:1":
        profile, options = Profile("fast", "m", graders=("judge:own.toml",)), RequestOptions(graders=("judge:own.toml",))
    if is_allowed:
        assert len(request_graders(options, profile)) == 1
    else:
        with pytest.raises(GatewayError, match=r"redraft\.graders") as caught:
            request_graders(options, profile)
        assert caught.value.status == 400


def test_requirements_of_a_request():
    """A requirement that reads a file is refused; one with its text inline is not."""
    assert check_requirements(('json_schema:{"type": "object"}', "words:1-5")) == ('json_schema:{"type": "object"}', "words:1-5")
    for spec in ("json_schema:/etc/passwd", "nonsense:1"):
        with pytest.raises(GatewayError, match=r"redraft\.requirements"):
            check_requirements((spec,))


def test_rubric_of_a_request():
    """A rubric is one of the gallery, or criteria in words; it is never the name of a file, nor a template."""
    profile = Profile("fast", "m", graders=["words:1-5"])
    by_name, in_words, path = (
        request_graders(RequestOptions(rubric=text), profile)[0] for text in ("helpfulness", "It is short.", "/etc/passwd")
    )
    assert by_name.rubric.name == "helpfulness"
    assert [criterion.description for criterion in in_words.rubric.criteria] == ["It is short."]
    assert [criterion.description for criterion in path.rubric.criteria] == ["/etc/passwd"]
    with pytest.raises(GatewayError, match=r"redraft\.rubric"):
        request_graders(RequestOptions(rubric=" "), profile)


SIDE_REQUESTS = [
    (("Generate a title",), [{"role": "user", "content": "Generate a title for it"}], True),
    (("Generate a title",), [{"role": "system", "content": "Generate a title"}, {"role": "user", "content": "x"}], True),
    (("Generate a title",), [{"role": "user", "content": "Generate a title"}, {"role": "user", "content": "x"}], False),
    (("Generate a title",), [{"role": "assistant", "content": "Generate a title"}, {"role": "user", "content": "x"}], False),
    ((), [{"role": "user", "content": "Generate a title"}], False),
]


@pytest.mark.parametrize(("texts", "messages", "passes"), SIDE_REQUESTS)
def test_side_requests(texts, messages, passes):
    """A text counts in a system message and in the last message of the user, and nowhere else."""
    assert contains_any(request_of(messages=messages), texts) is passes


ERRORS = [
    (ConfigError("x"), 400, False),
    (AuthenticationError("x", status=401), 502, False),
    (RateLimitError("x", status=429, retry_after=3), 429, None),
    (ContextLengthError("x"), 400, False),
    (ContentFilterError("x"), 400, False),
    (ModelTimeoutError("x"), 504, False),
    (ModelUnavailableError("x", status=503, retry_after=2), 503, None),
    (ModelUnavailableError("x", status=404), 502, False),
    (BudgetExhaustedError("x", limit="deadline"), 504, False),
    (BudgetExhaustedError("x", limit="usd"), 402, False),
    (BadResponseError("x"), 502, False),
    (GradingError("x"), 502, False),
]


@pytest.mark.parametrize(
    ("error", "status", "should_retry"), ERRORS, ids=lambda value: getattr(value, "__class__", type(value)).__name__
)
def test_errors(error, status, should_retry):
    """Each error has its status, and what was paid for is never asked for again by the client's SDK."""
    seen = gateway_error(error)
    assert (seen.status, seen.should_retry, seen.retry_after) == (status, should_retry, getattr(error, "retry_after", None))
    assert gateway_error(error, has_text=True).should_retry is False


@pytest.mark.parametrize("mistake", [{"graders": ["wordz:1"]}, {"settings": {"max_iterations": -1}}, {"model": "gpt-4o"}])
def test_a_profile_that_cannot_be_served(mistake):
    """A mistake in a profile is an error at the start, which names it."""
    fields = {"model": ScriptedModel([]), "graders": ["judge"], **mistake}
    with pytest.raises(ConfigError):
        ProfileRefiner(Profile("fast", **fields), ConnectedModels({}, {}))
