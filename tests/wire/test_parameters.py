"""What reaches a server of the parameters that a user gives, by whatever way."""

import json
import logging
from contextlib import suppress

import pytest

import redraft
import vendors
from redraft import BestOfN, Budget, Judge, grade, refine
from redraft.errors import ConfigError, GradingError, ModelError
from redraft.graders import Checklist, Pairwise, Ranker
from redraft.models import Chat, ScriptedModel, connect
from redraft.runs import batch
from redraft.session.options import Options
from redraft.session.session import Session

from . import fault_server as fs

VERDICT = json.dumps(
    {"reason": "r", "criteria": {"truth": {"evidence": "", "change": "", "score": 5}}, "done": True}
)
RUBRIC = {"truth": "It is true."}
LOW = {"reasoning_effort": "low"}
NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}
OWN = ("model", "messages", "response_format", "stream", "temperature")


def further(requests):
    """Return what each request sent besides the usual fields, without the seed and the temperature
    0 of judges.
    """
    return [
        {name: value for name, value in request.body.items() if name not in OWN}
        for request in requests
    ]


@pytest.fixture
async def server():
    """A server whose model writes "fine", and judges by the truth."""

    def answer(request):
        text = VERDICT if "response_format" in request.body else "fine"
        return fs.http(
            {**fs.completion(text), "model": "m", "object": "chat.completion", "created": 1}
        )

    async with fs.FaultServer([answer]) as started:
        yield started


WAYS = {  # how they are given -> what the writer sends, and the judge
    "to neither": ({}, {}, {}, {}),
    "to the model": ({"model_params": {"top_p": 0.5, **NO_THINKING}}, {}, {"top_p": 0.5, **NO_THINKING}, {"top_p": 0.5, **NO_THINKING}),
    "to the judge": ({"judge_params": {"max_tokens": 8192, "reasoning_effort": "low"}}, {}, {}, {"max_tokens": 8192, "reasoning_effort": "low"}),
    "to the grader": ({}, {"max_tokens": 99, "top_k": 1}, {}, {"max_tokens": 99, "top_k": 1}),
    "to all, nested": (
        {"model_params": {"a": {"x": 1, "y": 1, "z": 1}}, "judge_params": {"a": {"y": 2, "z": 2}}},
        {"a": {"z": 3}},
        {"a": {"x": 1, "y": 1, "z": 1}},
        {"a": {"x": 1, "y": 2, "z": 3}},
    ),
    "a limit for the answer": ({"model_params": {"max_tokens": 50}}, {}, {"max_tokens": 50}, {}),
    "taken back": ({"model_params": {"top_p": 0.5}, "judge_params": {"top_p": None}}, {}, {"top_p": 0.5}, {}),
}  # fmt: skip


@pytest.mark.parametrize(("settings", "of_grader", "written", "judged"), WAYS.values(), ids=WAYS)
async def test_the_nearest_parameter_is_sent(server, settings, of_grader, written, judged):
    """That of the grader, else that of the call, else that of the model that writes, which judges
    here.
    """
    judge = Judge(RUBRIC, params=of_grader or None)
    await refine("q", Chat("m", server.url), judge, max_iterations=0, **settings)
    assert further(server.requests) == [written, judged]


async def test_a_judge_of_its_own_has_none_of_the_writers_parameters(server):
    """`judge` is another model, with the parameters of the judge alone; so is the model that a
    grader names.
    """
    writer, judge = Chat("w", server.url), Chat("j", server.url)
    settings = {"max_iterations": 0, "model_params": {"top_p": 0.5}, "judge_params": {"top_k": 2}}
    await refine("q", writer, Judge(RUBRIC), judge=judge, **settings)
    await refine("q", writer, Judge(RUBRIC, model=judge, params={"top_k": 7}), **settings)
    assert further(server.requests) == [{"top_p": 0.5}, {"top_k": 2}, {"top_p": 0.5}, {"top_k": 7}]


async def test_what_a_model_needs_is_declared_once(server):
    """In every role, and beneath what a call gives."""
    model = connect(
        f"{server.url}#m", params={"enable_thinking": False, "temperature": 0.5, "top_p": 0.1}
    )
    await refine(
        "q", model, Judge(RUBRIC), max_iterations=0, model_params={"top_p": 0.9}, temperature=0.0
    )
    assert further(server.requests) == [{"enable_thinking": False, "top_p": 0.9}] * 2
    # given by the call; the judge's is a default
    assert [request.body["temperature"] for request in server.requests] == [0.0, 0.5]
    with pytest.raises(ConfigError, match="only the name of a model takes them"):
        connect(Chat("m", server.url), params={"top_p": 1})


async def test_every_judging_grader_sends_its_parameters(server):
    """A checklist, a ranker and a comparer as well as a judge; no limit unless one is given."""
    two = BestOfN(2)
    given = {"max_tokens": 700, "reasoning_effort": "low"}
    for sent, params in (({}, None), (given, given)):
        for grader in (
            Checklist(["Is it true?"], params=params),
            Ranker(params=params),
            Pairwise(params=params),
        ):
            server.requests.clear()
            with suppress(GradingError, ModelError):  # (its verdict has another form)
                await refine(
                    "q",
                    Chat("m", server.url),
                    grader,
                    plan=two if isinstance(grader, Ranker) else None,
                    retries=0,
                )
            judged = [
                body
                for body, request in zip(further(server.requests), server.requests, strict=True)
                if "response_format" in request.body
            ]
            assert judged and all(body == sent for body in judged), grader


async def test_a_grader_of_the_user_asks_with_the_parameters_of_the_judge(server):
    """They belong to the model that it asks."""

    class Mine:
        name = "mine"

        async def grade(self, task, candidate, ask):
            await ask("How good is it?")
            return redraft.Feedback(1.0)

    await refine(
        "q",
        Chat("m", server.url),
        Mine(),
        max_iterations=0,
        judge_params={"top_k": 3, "max_tokens": 5},
    )
    assert further(server.requests) == [{}, {"top_k": 3, "max_tokens": 5}]


async def test_a_changed_parameter_is_another_call(server):
    """A cache and the fingerprint of a grader tell parameters apart; what is sent twice is one
    call, however it was given.
    """
    model, store = Chat("m", server.url), {}
    ways = [
        {},
        {"model_params": {"top_p": 0.1}},
        {"model_params": {"top_p": 0.2}},
        {"judge_params": {"top_p": 0.2}},
    ]
    for expected, settings in zip((2, 4, 6, 6), ways, strict=True):
        for _ in range(2):
            await refine("q", model, Judge(RUBRIC), max_iterations=0, cache=store, **settings)
        assert len(server.requests) == expected
    prints = [
        fingerprint(model, Judge(RUBRIC, params=params), **settings)
        for settings in ways
        for params in (None, {"top_p": 0.2})
    ]
    assert len(set(prints[:6])) == 6 and prints[4:6] == prints[6:]


def fingerprint(model, judge, **settings):
    """Return the fingerprint of a judge in a session with these settings."""
    session = Session(Options(**settings), model, [judge])
    return session.fingerprint(session.resolve_panel(())[1], "judge")


async def test_rows_are_done_again_if_a_parameter_changes(server, tmp_path):
    """And only then."""
    rows, out, model = [{"prompt": "a"}], tmp_path / "o.jsonl", Chat("m", server.url)
    calls = []
    for params in ({"top_p": 0.1}, {"top_p": 0.1}, {"top_p": 0.2}):
        await batch(
            rows,
            out,
            model,
            graders=Judge(RUBRIC),
            max_iterations=0,
            learn=False,
            calibrate=False,
            model_params=params,
        )
        calls.append(len(server.requests))
    assert calls == [2, 2, 4]


# ---- cut off


CUT = fs.completion("", "length", usage=(7, 2048), reasoning_content="Let me think")
LONG = fs.completion(VERDICT.replace("5", "3").replace("true}", "false}"), usage=(7, 9000))
# the judge's limit, and what a server says to the second request -> the limits that were sent
ROOMS = {
    "no limit": (None, None, [None, 8192]),
    "a limit of its own": (500, None, [500, 2000]),
    "a smaller maximum": (None, "max_tokens is too large: 8192. This model supports at most 4096 completion tokens", [None, 8192, 4096]),
    "a window": (None, "This model's maximum context length is 4096 tokens. However, you requested 9000 tokens", [None, 8192, None]),
}  # fmt: skip


@pytest.mark.parametrize(("limit", "refusal", "sent"), ROOMS.values(), ids=ROOMS)
async def test_a_verdict_that_is_cut_is_asked_for_with_more_room(server, limit, refusal, sent):
    """Four times what it used, or as much as the server says that it allows."""
    refused = [fs.error(400, refusal)] if refusal else []
    server.says(fs.http(CUT), *refused, fs.good(VERDICT))
    report = await grade(("q", "a"), Judge(RUBRIC, max_tokens=limit), Chat("m", server.url))
    assert report.score == 1.0
    assert [request.body.get("max_tokens") for request in server.requests] == sent


# the parameters of the judge, and the tokens that the server says that it used -> the limits that
# were sent
USES = {
    "the server does not say": ({}, None, [None, 32768]),
    "nothing, by its count": ({}, 0, [None, 32768]),
    "few, without the reasoning": ({}, 3, [None, 2048]),
    "a limit": ({"max_tokens": 2000}, 2000, [2000, 8000]),
    "a limit, and the server does not say": ({"max_tokens": 2000}, None, [2000, 8000]),
    "a limit, and few without the reasoning": ({"max_tokens": 2000}, 3, [2000, 8000]),
}


@pytest.mark.parametrize(("params", "used", "sent"), USES.values(), ids=USES)
@pytest.mark.parametrize("way", ["judge_params", "declared"])
async def test_more_room_is_more_than_the_first_request_had(server, params, used, sent, way):
    """Whatever the server counts; a limit of the judge or of the model is known."""
    usage = (
        {}
        if used is None
        else {"prompt_tokens": 7, "completion_tokens": used, "total_tokens": 7 + used}
    )
    server.says(fs.http({**CUT, "usage": usage}), fs.good(VERDICT))
    model = (
        connect(f"{server.url}#m", params=params) if way == "declared" else Chat("m", server.url)
    )
    assert (
        await grade(
            ("q", "a"), Judge(RUBRIC), model, judge_params=None if way == "declared" else params
        )
    ).score == 1.0
    assert [request.body.get("max_tokens") for request in server.requests] == sent


async def test_more_room_stays_within_the_budget(server):
    """The second request has no more tokens than are left."""
    server.says(fs.http(CUT), fs.good(VERDICT))
    await grade(("q", "a"), Judge(RUBRIC), Chat("m", server.url), budget=Budget(output_tokens=5000))
    assert [
        request.body["max_tokens"] <= room
        for request, room in zip(server.requests, (5000, 2952), strict=True)
    ] == [True, True]


async def test_a_budget_learns_how_long_a_judge_reasons(server):
    """A judge that reasons for long is cut once, not at every answer."""

    def answer(request):
        if "response_format" not in request.body:
            return fs.good(f"fine {len(server.requests)}")
        limit = request.body["max_tokens"]
        return fs.http(
            {**CUT, "usage": {"prompt_tokens": 7, "completion_tokens": limit}}
            if limit < 9000
            else LONG
        )

    server.says(answer)
    await refine(
        "q",
        Chat("m", server.url),
        Judge(RUBRIC),
        max_iterations=1,
        drafts=1,
        budget=Budget(tokens=10_000_000),
    )
    limits = [
        request.body["max_tokens"]
        for request in server.requests
        if "response_format" in request.body
    ]
    assert limits[:2] == [8192, 32768] and len(limits) > 2 and min(limits[2:]) > 9000


async def test_a_verdict_that_is_cut_twice_says_what_to_do(server):
    """How to give it more, in Python and on the command line; a grader with its own limit is told
    to raise that.
    """
    server.says(fs.http(CUT))
    with pytest.raises(
        GradingError,
        match=r"judge_params=\{'max_tokens':32768\} \(--judge-param max_tokens=32768\)",
    ):
        await grade(("q", "a"), Judge(RUBRIC), Chat("m", server.url))
    with pytest.raises(GradingError, match="give the grader a larger max_tokens, such as 1600"):
        await grade(("q", "a"), Judge(RUBRIC, max_tokens=100), Chat("m", server.url))


# ---- refused


def thinks_in_streams(body):
    if body.get("enable_thinking") is not False:
        return fs.error(
            400,
            "parameter.enable_thinking must be set to false for non-streaming calls",
            code="invalid_parameter_error",
        )
    return None


async def test_a_model_that_thinks_in_streams_only_is_asked_not_to_think(server, caplog):
    """Once it has said so, in every role, with a warning; a user who wants it to think reads why it
    cannot.
    """
    server.says(
        lambda request: (
            thinks_in_streams(request.body)
            or fs.good(VERDICT if "response_format" in request.body else "fine")
        )
    )
    with caplog.at_level(logging.WARNING, "redraft"):
        await refine("q", Chat("m", server.url), Judge(RUBRIC), max_iterations=0)
    assert further(server.requests) == [{}, *[{"enable_thinking": False}] * 2]
    assert "thinks only in streams; enable_thinking=false is sent" in caplog.text
    with pytest.raises(
        ModelError, match="'enable_thinking' is a parameter that is given by `model_params`"
    ):
        await refine(
            "q", Chat("m", server.url), "words:1-9", model_params={"enable_thinking": True}
        )


@pytest.mark.parametrize(
    ("params", "message", "named"),
    [
        (
            {"reasoning_effort": "low"},
            "Unrecognized request argument supplied: reasoning_effort",
            "reasoning_effort",
        ),
        (NO_THINKING, "extra_forbidden: body.chat_template_kwargs", "chat_template_kwargs"),
        (NO_THINKING, "unknown key enable_thinking", "enable_thinking"),
        ({"top_k": 1}, "no such luck", None),
        ({"p": 1}, "top_p must be at most 1", None),
    ],
)
async def test_a_parameter_that_is_refused_is_named(server, params, message, named):
    """With the way by which it was given; an error that names none is left as it is."""
    server.says(fs.error(400, message))
    with pytest.raises(ModelError, match=message) as caught:
        await refine("q", Chat("m", server.url), "words:1-9", model_params=params)
    assert (
        f"{named!r} is a parameter that is given by `model_params`" in str(caught.value)
    ) is bool(named)


CLIENTS = {
    "Chat": lambda url: Chat("m", url, extra_body={"chat_template_kwargs": {"a": 1}, "top_p": 0.1}),
    "a client of openai": lambda url: (vendors.openai.AsyncOpenAI(api_key="k", base_url=url), "m"),
    "a synchronous one": lambda url: (vendors.openai.OpenAI(api_key="k", base_url=url), "m"),
    "LangChain": lambda url: vendors.ChatOpenAI(
        model="m", base_url=url, api_key="k", extra_body={"chat_template_kwargs": {"a": 1}}
    ),
    "pydantic-ai": lambda url: vendors.OpenAIChatModel(
        "m", provider=vendors.OpenAIProvider(base_url=url, api_key="k")
    ),
}


@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
async def test_every_client_sends_parameters(server, client):
    """Known names as its own settings, others as they are; the client's own parameters are beneath
    them.
    """
    settings = {"model_params": {"top_p": 0.5, "top_k": 3, **NO_THINKING}, "judge_params": LOW}
    await refine("q", client(server.url), Judge(RUBRIC), max_iterations=0, **settings)
    for body, further in zip(further_of(server), ({}, LOW), strict=True):
        body.get("chat_template_kwargs", {}).pop("a", None)
        assert body == {"top_p": 0.5, "top_k": 3, **NO_THINKING, **further}


def further_of(server):
    """Return what the server was sent besides the usual fields and what a client adds by itself."""
    return [
        {k: v for k, v in body.items() if k not in {"n", "tools", "max_completion_tokens"}}
        for body in further(server.requests)
    ]


async def test_a_vendor_that_ignores_other_parameters_is_named():
    """Rather than that they are lost without a word."""

    class Closed(vendors.TestModel):
        unsupported_settings = frozenset({"extra_body", "top_k"})

    model = Closed(custom_output_text="HELLO")
    assert (await refine("q", model, "uppercase", model_params={"top_p": 0.5})).value == "HELLO"
    with pytest.raises(
        (ConfigError, redraft.errors.RedraftError),
        match="'top_k' cannot be passed on to test:test, which takes stop, top_p",
    ):
        await refine("q", model, "uppercase", model_params={"top_k": 5})


async def test_a_function_takes_no_parameters():
    """They would be lost without a word."""
    with pytest.raises(
        (ConfigError, redraft.errors.RedraftError), match="'top_p' cannot be passed on to shout"
    ):
        await refine("q", shout, "uppercase", model_params={"top_p": 0.5})
    model = ScriptedModel(["A"])
    await refine("q", model, "uppercase", model_params={"top_p": 0.5})
    assert model.requests[0].params == {"top_p": 0.5}


def shout(messages):
    return "A"
