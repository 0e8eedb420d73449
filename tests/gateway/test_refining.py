"""What becomes of a request to a profile: its settings, its turns with tools, its errors."""

from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each_row import each_row
from redraft import Budget, Candidate, Task, Trace, with_weight
from redraft.errors import ConfigError
from redraft.gateway.config import Profile
from redraft.gateway.exchange import Answer, GatewayError
from redraft.gateway.neutral import RequestOptions
from redraft.gateway.profile_models import ConnectedModels
from redraft.gateway.protocols.registry import CLIENTS
from redraft.gateway.refined_answers import own_candidate
from redraft.gateway.refining import ProfileRefiner, answer_request, is_side_request
from redraft.gateway.request_options import check_requirements, request_graders, request_settings
from redraft.loop.records import ToolCall
from redraft.loop.stopping import DEFAULT_ITERATIONS
from redraft.models import ScriptedModel
from redraft.plans.adaptive import Adaptive
from redraft.protocols import Reply
from redraft.usage import NO_USAGE, Usage

CHAT, MESSAGES, RESPONSES = CLIENTS["chat"], CLIENTS["messages"], CLIENTS["responses"]
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("look_up", "send")
]


def request_of(**fields):
    return CHAT.read_request(
        {"model": "refine/fast", "messages": [{"role": "user", "content": "Say it."}], **fields}
    )


def refiner_of(model, **changes):
    return ProfileRefiner(
        Profile("fast", model, **{"graders": ["words:1-5"], **changes}), ConnectedModels({}, {})
    )


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
    assert (
        answer.reply.text,
        answer.outcome["score"],
        answer.reply.finish,
        answer.outcome["iterations"],
    ) == (
        "one two",
        1.0,
        "stop",
        1,
    )
    assert (answer.total.calls, answer.reply.model, answer.reply.id) == (2, "refine/fast", "t1")


@pytest.mark.parametrize(
    ("texts", "broken"), [(["one two three", "three two one"], ("words:1-2",)), (["one two"], ())]
)
async def test_a_must_that_the_answer_breaks_is_named(texts, broken):
    """The best answer is returned all the same."""
    model = ScriptedModel(texts)
    answer = await answer_to(
        refiner_of(model, settings={"max_iterations": 1}), redraft={"requirements": ["words:1-2"]}
    )
    assert (answer.reply.text in texts, answer.outcome["broken"]) == (True, broken)


async def test_a_tool_call_is_returned_after_one_call():
    """Without graders that read tool calls, the first call of a tool is the answer."""
    model = ScriptedModel([calls_to("look_up")])
    answer = await answer_to(refiner_of(model, settings={"drafts": 3}), tools=TOOLS)
    assert (answer.reply.finish, answer.reply.calls[0].id, answer.outcome["score"]) == (
        "tool_calls",
        "id-look_up",
        None,
    )
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
    """With `candidates` and a grader that reads tool calls, the best of so many is chosen; none is
    rewritten.
    """
    model = ScriptedModel([calls_to("look_up"), calls_to("send"), calls_to("look_up")])
    answer = await answer_to(refiner_of(model, graders=[CallsSend()], candidates=3), tools=TOOLS)
    assert (
        answer.reply.calls[0].name,
        answer.outcome["score"],
        answer.outcome["iterations"],
        model.calls,
    ) == (
        "send",
        1.0,
        0,
        3,
    )


async def test_a_bad_tool_call_is_not_rewritten():
    """A single call with a low score is returned: to rewrite it would be another action."""
    model = ScriptedModel([calls_to("look_up")])
    answer = await answer_to(refiner_of(model, graders=[CallsSend()]), tools=TOOLS)
    assert (answer.reply.calls[0].name, answer.outcome["score"], model.calls) == ("look_up", 0.2, 1)


async def test_a_text_is_refined_without_tools():
    """While a text is refined the model cannot call tools; a call in spite of that costs the
    refinement, not the answer.
    """
    model = ScriptedModel(
        ["one two three four five six", calls_to("send"), calls_to("send"), calls_to("send")]
    )
    answer = await answer_to(refiner_of(model), tools=TOOLS)
    assert answer.reply.text == "one two three four five six" and answer.reply.finish == "stop"
    assert [request.tool_choice for request in model.requests][:2] == [None, "none"]


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "send"}}], ids=["any", "named"]
)
async def test_tool_choice_is_passed_on(choice):
    """A request that demands a call gets one, and the demand reaches the model."""
    model = ScriptedModel([calls_to("send")])
    answer = await answer_to(refiner_of(model), tools=TOOLS, tool_choice=choice)
    assert answer.reply.finish == "tool_calls" and model.requests[0].tool_choice == choice


async def test_nothing_is_refined():
    """With `refine = "none"` there is one call and no score, also for a model that is not in the
    configuration.
    """
    model = ScriptedModel(["one two three four five six"])
    answer = await answer_to(refiner_of(model, refine="none"))
    assert (answer.reply.text, answer.outcome["score"], model.calls, answer.outcome["stop"]) == (
        "one two three four five six",
        None,
        1,
        "done",
    )


async def test_images_stay_in_the_messages():
    """An image of the request is in the messages of the draft and of the refinement."""
    model = ScriptedModel(["one two three four five six", "one"])
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    content = [{"type": "text", "text": "What is it?"}, image]
    await answer_to(refiner_of(model), messages=[{"role": "user", "content": content}])
    assert all(image in messages[0]["content"] for messages in model.messages)


async def test_a_parameter_that_a_model_does_not_take_is_left_out():
    """A model that is no endpoint takes no further parameters; the request is answered, and says
    which it did not get.
    """
    model = ScriptedModel(["one two"])
    prepared = refiner_of(model).prepare(request_of(top_p=0.5, frequency_penalty=1), "t1")
    assert set(prepared.writer.ignored) == {"top_p", "frequency_penalty"}
    async with aclosing(answer_request(prepared)) as items:
        assert [item async for item in items][-1].reply.text == "one two"
    assert not model.requests[0].params


async def test_an_answer_without_a_grade_is_returned():
    """If the graders fail, the text is the answer, and its score is unknown."""

    def fail(text):
        raise RuntimeError("broken")

    answer = await answer_to(refiner_of(ScriptedModel(["text"] * 9), graders=[fail]))
    assert isinstance(answer, Answer) and (
        answer.reply.text,
        answer.outcome["score"],
        answer.outcome["stop"],
    ) == (
        "text",
        None,
        "failed",
    )
    assert "broken" in answer.outcome["reason"]


async def test_a_reply_that_is_cut_off():
    """An answer that the token limit ends says so."""
    answer = await answer_to(
        refiner_of(
            ScriptedModel([Reply("one two", finish_reason="length")], name="m"),
            settings={"max_iterations": 0},
        )
    )
    assert answer.reply.finish == "length"


@given(
    st.none() | st.floats(0, 1),
    st.none() | st.integers(0, 100),
    st.fixed_dictionaries(
        {}, optional={"target_score": st.floats(0, 1), "max_iterations": st.integers(0, 50)}
    ),
    st.fixed_dictionaries(
        {},
        optional={
            "target_score": st.floats(0, 1),
            "max_iterations": st.integers(0, 50),
            "deadline": st.floats(1, 99),
        },
    ),
)
def test_options_stay_within_the_maximum(target, iterations, maximum, settings):
    """Whatever a request chooses, it gets at most the profile's maximum, and no more iterations
    than the profile has without one.
    """
    profile = Profile("fast", "m", settings=settings, maximum=maximum)
    options = {
        name: value
        for name, value in (("target_score", target), ("max_iterations", iterations))
        if value is not None
    }
    chosen = request_settings(request_of(redraft=options), profile, 60.0)
    if target is not None:
        assert chosen["target_score"] == min(target, maximum.get("target_score", 1.0))
    if iterations is not None:
        assert chosen["max_iterations"] == min(
            iterations,
            maximum.get("max_iterations", settings.get("max_iterations", Adaptive.max_attempts)),
        )
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


@each_row(("spec", "is_allowed"), GRADERS.items())
def test_graders_of_a_request(spec, is_allowed):
    """A request may name the profile's own graders, judges, rubrics and requirements; no file, no
    code and no host.
    """
    profile = Profile("fast", "m", graders=["judge"])
    options = RequestOptions(graders=(spec,))
    if spec == "own:1":
        profile, options = (
            Profile("fast", "m", graders=("judge:own.toml",)),
            RequestOptions(graders=("judge:own.toml",)),
        )
    if is_allowed:
        assert len(request_graders(options, profile)) == 1
    else:
        with pytest.raises(GatewayError, match=r"redraft\.graders") as caught:
            request_graders(options, profile)
        assert caught.value.status == 400


def test_requirements_of_a_request():
    """A requirement that reads a file is refused; one with its text inline is not."""
    assert check_requirements(('json_schema:{"type": "object"}', "words:1-5")) == (
        'json_schema:{"type": "object"}',
        "words:1-5",
    )
    for spec in ("json_schema:/etc/passwd", "nonsense:1"):
        with pytest.raises(GatewayError, match=r"redraft\.requirements"):
            check_requirements((spec,))


def test_rubric_of_a_request():
    """A rubric is one of the gallery, or criteria in words; it is never the name of a file, nor a
    template.
    """
    profile = Profile("fast", "m", graders=["words:1-5"])
    by_name, in_words, path = (
        request_graders(RequestOptions(rubric=text), profile)[0]
        for text in ("helpfulness", "It is short.", "/etc/passwd")
    )
    assert by_name.rubric.name == "helpfulness"
    assert [criterion.description for criterion in in_words.rubric.criteria] == ["It is short."]
    assert [criterion.description for criterion in path.rubric.criteria] == ["/etc/passwd"]
    with pytest.raises(GatewayError, match=r"redraft\.rubric"):
        request_graders(RequestOptions(rubric=" "), profile)


TITLE, ASKED = "Generate a title", {"role": "user", "content": "x"}
RESULT = [calls_to("look_up").tool_calls[0].as_message_part()]


def user(*parts):
    """Return a user's message with these parts: texts, and an image for None."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    return {
        "role": "user",
        "content": [image if part is None else {"type": "text", "text": part} for part in parts],
    }


SIDE_REQUESTS = {
    "in a system message": ([{"role": "system", "content": f"Hello. {TITLE} now."}, ASKED], True),
    "in a part of a system message": ([{**user("Hello.", f"{TITLE} now."), "role": "system"}, ASKED], True),
    "in a developer's message": ([{"role": "developer", "content": f"{TITLE} now."}, ASKED], True),
    "the last message": ([{"role": "user", "content": TITLE}], True),
    "the last message, with blanks around it": ([{"role": "user", "content": f" {TITLE}\n"}], True),
    "the only part of the last message": ([user(TITLE)], True),
    "before results of tools": (
        [{"role": "user", "content": TITLE}, {"role": "assistant", "content": None, "tool_calls": RESULT},
         {"role": "tool", "tool_call_id": "id-look_up", "content": "42"}], True),
    "in the last message": ([{"role": "user", "content": f"{TITLE} for it"}], False),
    "in quoted data": ([{"role": "user", "content": f"Sum up:\n\n{TITLE}\n"}], False),
    "one of several parts": ([user("Sum up:", TITLE)], False),
    "a part beside an image": ([user(TITLE, None)], False),
    "an earlier message of the user": ([{"role": "user", "content": TITLE}, {"role": "assistant", "content": "y"}, ASKED], False),
    "a message of the assistant": ([{"role": "assistant", "content": TITLE}, ASKED], False),
    "a result of a tool": (
        [ASKED, {"role": "assistant", "content": None, "tool_calls": RESULT},
         {"role": "tool", "tool_call_id": "id-look_up", "content": TITLE}], False),
    "in other letters": ([{"role": "user", "content": TITLE.upper()}], False),
}  # fmt: skip


@pytest.mark.parametrize(("messages", "passes"), SIDE_REQUESTS.values(), ids=SIDE_REQUESTS)
def test_side_requests(messages, passes):
    """A text counts in a message of the system, and if it is the whole last message of the user:
    data switches nothing off.
    """
    request = request_of(messages=messages)
    assert is_side_request(request, (TITLE,)) is passes
    assert not is_side_request(request, ())


def wires():
    """Yield each protocol, with a request whose instructions are a text and one whose message
    quotes it.
    """
    yield (
        CHAT,
        {"messages": [{"role": "system", "content": TITLE}, ASKED]},
        {"messages": [{"role": "user", "content": f"{TITLE}!"}]},
    )
    yield RESPONSES, {"instructions": TITLE, "input": "x"}, {"input": f"{TITLE}!"}
    yield (
        RESPONSES,
        {"input": [{"role": "developer", "content": TITLE}, ASKED]},
        {"input": [{"role": "user", "content": f"{TITLE}!"}]},
    )
    given = {"max_tokens": 9, "messages": [ASKED]}
    result = (
        [{"type": "tool_use", "id": "t1", "name": "f", "input": {}}],
        [{"type": "tool_result", "tool_use_id": "t1", "content": TITLE}],
    )
    turns = [
        ASKED,
        {"role": "assistant", "content": result[0]},
        {"role": "user", "content": result[1]},
    ]
    yield MESSAGES, {**given, "system": TITLE}, {**given, "messages": turns}
    yield (
        MESSAGES,
        {**given, "system": [{"type": "text", "text": TITLE}]},
        {**given, "messages": turns},
    )


@pytest.mark.parametrize(
    ("wire", "system", "data"), [*wires()], ids=lambda value: getattr(value, "name", "")
)
def test_side_requests_of_every_protocol(wire, system, data):
    """`system` of Anthropic, `instructions` and developers' messages are messages of the system;
    results of tools are data.
    """
    parsed = [wire.read_request({"model": "refine/fast", **body}) for body in (system, data)]
    assert [is_side_request(request, (TITLE,)) for request in parsed] == [True, False]


# ---- graders that a request cannot leave out

REQUIRED = {
    "no option": ({}, ["helpfulness"]),
    "graders": ({"graders": ["answered"]}, ["answered"]),
    "graders, one of them required": (
        {"graders": ["answered", "words:1-5", "judge"]},
        ["answered"],
    ),
    "a rubric": ({"rubric": "It is short."}, ["judge:rubric"]),
    "both": ({"graders": ["answered"], "rubric": "conciseness"}, ["answered", "judge:conciseness"]),
    "requirements": ({"requirements": ["words:1-9"]}, ["helpfulness"]),
}


@pytest.mark.parametrize(("options", "own"), REQUIRED.values(), ids=REQUIRED)
def test_required_graders_grade_whatever_a_request_names(options, own):
    """What a request names is added to them; their requirements are conditions, and all else
    together weighs no more than they.
    """
    refiner = refiner_of(
        ScriptedModel([]),
        graders=["helpfulness"],
        required_graders=("words:1-5", "judge"),
        judge=ScriptedModel([]),
    )
    panel = refiner.prepare(request_of(redraft=options), "t1").refinement.trace.panel
    named = [each.name for each in panel if each.name not in options.get("requirements", ())]
    assert named == ["words:1-5", "judge", *own]
    assert [each.name for each in panel if each.must] == [
        *options.get("requirements", ()),
        "words:1-5",
    ]
    weights = {each.name: each.weight for each in panel if not each.must}
    assert sum(weights[name] for name in own) <= weights["judge"] == 1.0


async def test_a_request_does_not_outweigh_required_graders():
    """Whatever it adds, an answer that breaks a required requirement is refined and loses; less
    work than the profile's is not done.
    """
    model = ScriptedModel(["one two three four five six seven", "one two"])
    refiner = refiner_of(model, graders=None, required_graders=("words:1-5",))
    options = {
        "graders": ["words:1-99", "words:1-98", "words:1-97"],
        "target_score": 0.0,
        "max_iterations": 0,
    }
    answer = await answer_to(refiner, redraft=options)
    assert (answer.reply.text, answer.outcome["iterations"], model.calls) == ("one two", 1, 2)


def test_a_request_to_required_graders_asks_for_no_less():
    """It may choose more work than the profile's, up to the maximum, and not less."""
    chosen = [("target_score", 0.95, 0.2, 0.8), ("target_score", 0.95, 0.9, 0.9), ("target_score", 0.95, 1.0, 0.95),
              ("max_iterations", 4, 0, 2), ("max_iterations", 4, 3, 3), ("max_iterations", 4, 9, 4)]  # fmt: skip
    for name, most, asked, gets in chosen:
        settings = {"target_score": 0.8, "max_iterations": 2}
        profile = Profile(
            "fast", "m", settings=settings, maximum={name: most}, required_graders=("judge",)
        )
        assert request_settings(request_of(redraft={name: asked}), profile, 60.0)[name] == gets


# fields of a profile; the texts that are written at most, and the calls that grade each
MOST_CALLS = [
    ({"judge": None, "settings": {"max_iterations": 2}}, 3, 0),
    ({"graders": ["judge"], "settings": {"max_iterations": 2}}, 3, 1),
    ({"graders": ["judge"], "settings": {"max_iterations": 0, "drafts": 3}}, 3, 1),
    ({"graders": ["judge"], "settings": {"max_iterations": 2, "drafts": 2}}, 4, 1),
    ({"graders": ["judge"]}, 1 + Adaptive.max_attempts, 1),
    ({"graders": ["words:1-5"], "judge": False}, 1 + DEFAULT_ITERATIONS, 0),
    # a checklist is written, too
    ({"graders": ["judge", "checklist", "words:1-5"], "settings": {"max_iterations": 1}}, 2, 3),
    ({"graders": ["jury"], "settings": {"max_iterations": 0}}, 1, 3),
    (
        {"graders": ["judge"], "required_graders": ("clarity",), "settings": {"max_iterations": 0}},
        1,
        2,
    ),
    ({"graders": [with_weight("judge", 1.0, repeats=3)], "settings": {"max_iterations": 0}}, 1, 3),
    ({"graders": None, "refine": "none"}, 1, 0),
]


@pytest.mark.parametrize(("fields", "texts", "grades"), MOST_CALLS)
def test_how_many_calls_a_request_may_need(fields, texts, grades):
    """For the budget of a key: each text is written, and graded by each call; a budget of the
    profile is a limit of its own.
    """
    fields = {"judge": ScriptedModel([]), **fields}
    prepared = refiner_of(ScriptedModel([]), **fields).prepare(request_of(), "t")
    assert (prepared.max_calls, len(prepared.grading_calls)) == (texts * (1 + grades), grades)
    settings = {**fields.get("settings", {}), "budget": Budget(calls=7)}
    assert (
        refiner_of(ScriptedModel([]), **{**fields, "settings": settings})
        .prepare(request_of(), "t")
        .max_calls
        == 7
    )


def test_the_usage_of_an_answer_is_that_of_the_call_that_wrote_it():
    """Also if the editor repaired it, once or again, which takes no call."""
    written, paid = Usage(1, 50, 5), Usage(1, 60, 6)
    records = (
        Candidate(0, "a", role="generate", usage=written),
        Candidate(1, "b", 0, role="repair"),
        Candidate(2, "c", 1, role="repair"),
        Candidate(3, "d", 2, role="repair", usage=paid),
        Candidate(4, "e", 3, role="refine"),
        Candidate(5, "f", role="repair"),
    )
    trace = Trace(Task("q"), records=records)
    assert [own_candidate(trace, each).usage for each in records] == [
        written,
        written,
        written,
        paid,
        NO_USAGE,
        NO_USAGE,
    ]


@pytest.mark.parametrize(
    "mistake", [{"graders": ["wordz:1"]}, {"settings": {"max_iterations": -1}}, {"model": "gpt-4o"}]
)
def test_a_profile_that_cannot_be_served(mistake):
    """A mistake in a profile is an error at the start, which names it."""
    fields = {"model": ScriptedModel([]), "graders": ["judge"], **mistake}
    with pytest.raises(ConfigError):
        ProfileRefiner(Profile("fast", **fields), ConnectedModels({}, {}))
