"""Requests adapted to what a model accepts: how refusals are recognised, what is tried instead, and
what is remembered.
"""

import json
import logging
from dataclasses import replace
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each_row import each_row
from redraft.errors import (
    AuthenticationError,
    ContextLengthError,
    ModelError,
    ModelUnavailableError,
)
from redraft.middleware import EndpointCapabilities
from redraft.middleware.adapt import MAX_SCHEMAS, MIN_FAILURES, REPROBE_INTERVAL, adapt
from redraft.middleware.endpoint_errors import refused_part
from redraft.middleware.messages import (
    fold_later_system,
    fold_system,
    merge_adjacent,
    start_with_user,
)
from redraft.models.openai_chat import request_body
from redraft.protocols import Reply, Request
from redraft.usage import Usage

ONE = Usage(1, 100, 10, cost=None)
REFUSED = Usage(1, 0, 0)
JSON, PROSE = Reply('{"a": 1}', ONE), Reply("I would say it is good.", ONE)


def message(role, content, **more):
    return {"role": role, "content": content, **more}


SYSTEM, USER, ASSISTANT = message("system", "S"), message("user", "U"), message("assistant", "A")
CHAT = Request((SYSTEM, USER), temperature=0.0, max_tokens=50, seed=7)
IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}


def judging_request(n=0, schema="object"):
    return Request((SYSTEM, message("user", f"judge {n}")), schema={"type": schema})


def refusal(words, status=400, kind=ModelError):
    return kind(f"m at host: status {status}: {words}", status=status, usage=REFUSED)


class Endpoint:
    """Answers by `answer(request)`, which returns a Reply or raises; `asked` has the requests."""

    def __init__(self, answer):
        self.answer, self.asked = answer, []

    async def __call__(self, request):
        self.asked.append(request)
        answer = self.answer(request)
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def requested_formats(self):
        return [request.format for request in self.asked]


def learned_limits():
    return EndpointCapabilities().for_model("endpoint#m", "m")


def refuse_formats(*refused, words="response_format is not supported"):
    return Endpoint(lambda request: refusal(words) if request.format in refused else JSON)


# ---- error messages of servers

ALTERNATE = "Conversation roles must alternate user/assistant/user/assistant/..."
WORDS = {
    "turns": [
        ALTERNATE,
        "After the optional system message, conversation roles must alternate user/assistant/user/assistant/...",
        "After the optional system message, conversation roles must alternate user and assistant roles except for tool calls and results.",
        "System message must be at the beginning.",
        "deepseek-reasoner does not support successive user or assistant messages (messages[1] and messages[2] in your input).",
        "The first message (except the system message) of deepseek-reasoner must be a user message, but an assistant message detected.",
        "A conversation must start with a user message. Try again with a conversation that starts with a user message.",
        "A conversation must alternate between user and assistant roles. Make sure the conversation alternates",
        "After the (optional) system message(s), user and assistant roles should be alternating.",
        'messages: roles must alternate between "user" and "assistant", but found multiple "user" roles in a row',
        'messages: first message must use the "user" role',
        "The system message must come first.",
    ],
    "system": [
        "System role not supported",
        "Only user and assistant roles are supported!",
        "Only user, assistant and tool roles are supported",
        "Unsupported value: 'messages[0].role' does not support 'system' with this model.",
        "Developer instruction is not enabled for models/gemma-3-27b-it",
        "body.messages.0.role: Input should be 'user' or 'assistant'",
        "System messages are not supported by this model",
        "This model does not support system prompts",
        "system_instruction is not supported by this model",
        "Please use a valid role: user, model.",
    ],
    "format": [
        "Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model.",
        "This response_format type is unavailable now",
        "'response_format.type' must be 'json_schema' or 'text'",
        'response_format type must be one of "text" or "json_object", but got: json_schema',
        "Json mode is not enabled for models/gemini-pro",
        "Failed to initialize samplers: failed to parse grammar",
        "The provided JSON schema contains features not supported by xgrammar.",
        "This model does not support response format `json_schema`.",
        "body.response_format: Extra inputs are not permitted",
        "'messages' must contain the word 'json' in some form, to use 'response_format' of type 'json_object'.",
    ],
    "images": [
        "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj",
        "At most 0 image(s) may be provided in one request.",
        "Invalid content type. image_url is only supported by certain models.",
    ],
    "max_tokens": [
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
    ],
    "temperature": [
        "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) value is supported.",
        "Unsupported parameter: 'temperature' is not supported with this model.",
        "`temperature` is deprecated for this model.",
    ],
    "seed": [
        "body.seed: Extra inputs are not permitted",
        "ollama does not support parameters: {'seed': 1}, for model=llama3:latest.",
        "Unrecognized request argument supplied: seed",
        "property 'seed' is unsupported",
    ],
    None: [
        "Internal Server Error",
        "max_tokens is too large: 99999. This model supports at most 4096 completion tokens",
        "temperature must be between 0 and 1",
        "The system is overloaded, please send your message again later",
        "out of memory",
        "no such model",
    ],
}
EVERYTHING = Request(
    (SYSTEM, message("user", [{"type": "text", "text": "U"}, IMAGE])),
    0.0,
    50,
    7,
    schema={"type": "object"},
    format="json_schema",
)


@each_row(("part", "words"), [(part, words) for part, listed in WORDS.items() for words in listed])
@each_row("status", [400, 422, 500])
def test_a_refusal_is_classified_by_the_part_it_names(part, words, status):
    """The messages and statuses are those of many kinds of servers."""
    assert refused_part(refusal(words, status), EVERYTHING) == part


def test_a_404_of_a_router_for_a_format_does_not_end_a_run():
    """OpenRouter answers with a 404, which would be fatal for an unknown model."""
    error = refusal(
        "No endpoints found that can handle the requested parameters.", 404, ModelUnavailableError
    )
    assert refused_part(error, schema_request()) == "format"
    assert refused_part(error, CHAT) is None


def schema_request():
    return replace(judging_request(), format="json_schema")


@pytest.mark.parametrize(
    "words",
    [
        "guided decoding worker died, restarting",
        "the system prompt service did not respond",
        "the grammar service timed out",
        "xgrammar failed to compile grammar: out of memory",
        "unable to parse response_format: the service is temporarily overloaded",
        "vision worker lost",
        "no alternate backend at the start of the request",
    ],
)
def test_a_500_that_only_mentions_a_part_is_no_refusal(words):
    """A 500 must say that the part is not supported."""
    assert refused_part(refusal(words, 500, ModelUnavailableError), EVERYTHING) is None


@pytest.mark.parametrize(
    "error",
    [
        refusal("seed not supported", 429),
        refusal("seed not supported", 503),
        refusal("seed not supported", 401, AuthenticationError),
    ],
)
def test_errors_of_keys_rates_and_sizes_are_no_refusal(error):
    """Statuses for other errors never refuse a part, whatever their message."""
    assert refused_part(error, EVERYTHING) is None


# ---- messages

ROLES = st.sampled_from(["system", "user", "assistant", "developer"])
CONTENTS = st.one_of(
    st.text(max_size=5),
    st.lists(st.sampled_from([IMAGE, {"type": "text", "text": "t"}]), max_size=3),
)
TALKS = st.lists(st.builds(message, ROLES, CONTENTS), max_size=8).map(tuple)


@given(TALKS)
def test_no_two_adjacent_messages_have_the_same_role(messages):
    """All texts and parts of the task's messages are kept in order, and a second pass changes
    nothing.
    """
    joined = merge_adjacent(messages)
    roles = [m["role"] for m in joined]
    assert all(a != b for a, b in zip(roles, roles[1:], strict=False))
    assert pieces(joined) == pieces(messages)
    assert merge_adjacent(joined) is joined


MESSAGES = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "assistant", "system", "tool"]),
        "content": st.sampled_from(["", "one", None])
        | st.lists(st.just({"type": "text", "text": "part"}), max_size=2),
    },
    optional={"name": st.sampled_from(["ann", "bob"]), "tool_calls": st.just([{"id": "1"}])},
)


@given(st.lists(MESSAGES, max_size=6))
def test_messages_joined_at_once(messages):
    """Are what they are joined one by one."""
    one_by_one = reduce(lambda joined, message: merge_adjacent((*joined, message)), messages, ())
    assert merge_adjacent(tuple(messages)) == one_by_one


def pieces(messages):
    """The images and the text, without blank lines between."""
    parts = [
        part
        for m in messages
        for part in (m["content"] if isinstance(m["content"], list) else [m["content"]])
    ]
    text = "".join(part if isinstance(part, str) else part.get("text", "") for part in parts)
    return "".join(text.split()), sum(part == IMAGE for part in parts)


def test_merged_messages_keep_the_names_of_speakers_in_the_text():
    """A name that both share stays a field."""
    both = merge_adjacent((message("user", "one", name="ann"), message("user", "two", name="bob")))
    assert both == (message("user", "ann: one\n\nbob: two"),)
    same = merge_adjacent((message("user", "one", name="ann"), message("user", "two", name="ann")))
    assert same == (message("user", "one\n\ntwo", name="ann"),)


def test_tool_calls_and_results_are_not_merged():
    """Each result belongs to one call."""
    call = message("assistant", None, tool_calls=[{"id": "1"}])
    talk = (
        USER,
        ASSISTANT,
        call,
        message("tool", "1", tool_call_id="1"),
        message("tool", "2", tool_call_id="2"),
    )
    assert merge_adjacent(talk) == talk


def test_system_text_moves_into_user_messages():
    """It goes into the next user message, later system text alone follows the first, and the first
    role is user.
    """
    late = (SYSTEM, USER, ASSISTANT, message("system", "L"), message("user", "V"))
    assert [m["content"] for m in fold_system(late)] == ["S\n\nU", "A", "L\n\nV"]
    assert [(m["role"], m["content"]) for m in fold_later_system(late)][-1] == ("user", "L\n\nV")
    assert fold_later_system(late)[0] is SYSTEM
    assert [m["role"] for m in start_with_user((ASSISTANT, USER))] == ["user", "assistant", "user"]
    assert [m["content"] for m in start_with_user((SYSTEM, ASSISTANT, USER))] == ["S", "A", "U"]
    assert start_with_user((SYSTEM, USER)) == (SYSTEM, USER)


# ---- adaptations


async def test_a_successful_adaptation_is_remembered_and_logged_once(caplog):
    """After one refused call the next request is adapted at once; the log has one line without
    content.
    """
    endpoint = Endpoint(
        lambda r: (
            refusal("System role not supported")
            if r.messages[0]["role"] == "system"
            else Reply("fine", ONE)
        )
    )
    ask = adapt(endpoint, learned_limits())
    with caplog.at_level(logging.INFO, "redraft"):
        reply = await ask(CHAT)
        await ask(CHAT)
    assert (reply.usage.calls, reply.usage.retried_calls) == (2, 1)
    assert [len(request.messages) for request in endpoint.asked] == [2, 1, 1]
    assert endpoint.asked[-1].messages == (message("user", "S\n\nU"),)
    assert [record.getMessage() for record in caplog.records] == [
        "model m accepts no system role; its text goes into the first user message"
    ]


async def test_several_refusals_in_a_row_are_all_adapted_to():
    """The model accepts neither max_tokens nor a temperature, a seed or a system role."""

    def answer(request):
        for name in ("max_tokens", "temperature", "seed"):
            if name not in request.unsupported_parameters:
                return refusal(f"Unsupported parameter: '{name}' is not supported with this model.")
        return (
            refusal("System role not supported")
            if request.messages[0]["role"] == "system"
            else Reply("fine", ONE)
        )

    endpoint, it = Endpoint(answer), learned_limits()
    ask = adapt(endpoint, it)
    assert (await ask(CHAT)).usage.calls == 5
    assert it.adaptations == ["max_tokens", "temperature", "seed", "system"]
    assert (await ask(CHAT)).usage.calls == 1


def unsupported(name):
    return f"Unsupported parameter: '{name}' is not supported with this model."


FIELDS = ("max_tokens", "max_completion_tokens", "temperature", "seed", "top_logprobs")
ALL_SENT = {"max_tokens", "temperature", "seed", "top_logprobs"}
# fields that the endpoint refuses, with its words; what is sent in turn; what is remembered
REFUSED_PARAMETERS = {
    "max_tokens": (
        {"max_tokens": unsupported("max_tokens")},
        [ALL_SENT - {"max_tokens"} | {"max_completion_tokens"}],
        ["max_tokens"],
    ),
    "any limit": (
        {name: unsupported(name) for name in ("max_tokens", "max_completion_tokens")},
        [ALL_SENT - {"max_tokens"} | {"max_completion_tokens"}, ALL_SENT - {"max_tokens"}],
        ["max_tokens", "max_completion_tokens"],
    ),
    "temperature": (
        {"temperature": unsupported("temperature")},
        [ALL_SENT - {"temperature"}],
        ["temperature"],
    ),
    "seed": ({"seed": unsupported("seed")}, [ALL_SENT - {"seed"}], ["seed"]),
    "logprobs": (
        {"top_logprobs": "logprobs are not available"},
        [ALL_SENT - {"top_logprobs"}],
        ["logprobs"],
    ),
    "seed and temperature": (
        {"seed": unsupported("seed"), "temperature": unsupported("temperature")},
        [ALL_SENT - {"seed"}, ALL_SENT - {"seed", "temperature"}],
        ["seed", "temperature"],
    ),
}


@pytest.mark.parametrize(
    ("refused", "sent", "remembered"), REFUSED_PARAMETERS.values(), ids=REFUSED_PARAMETERS
)
async def test_what_is_sent_after_a_parameter_was_refused(refused, sent, remembered):
    """The request without it at once, and so are all later ones of that model, also in another
    process; others are as before.
    """

    def answer(request):
        body = request_body("m", request)
        fields = {name for name in FIELDS if body.get(name) is not None}
        bodies.append(fields)
        return next(
            (refusal(words) for name, words in refused.items() if name in fields),
            Reply("fine", ONE),
        )

    bodies, session = [], EndpointCapabilities()
    for model in ("m", "m", "other"):
        await adapt(Endpoint(answer), session.for_model(model))(replace(CHAT, top_logprobs=5))
    assert bodies == [ALL_SENT, *sent, sent[-1], ALL_SENT, *sent]
    assert session.for_model("m").adaptations == remembered
    later = EndpointCapabilities()
    later.restore(json.loads(json.dumps(session.as_data())))
    bodies.clear()
    await adapt(Endpoint(answer), later.for_model("m"))(replace(CHAT, top_logprobs=5))
    assert bodies == [sent[-1]]


async def test_an_unsuccessful_adaptation_is_not_remembered():
    """For an endpoint that always refuses each adaptation is tried once, the error counts every
    call, and nothing is remembered.
    """
    endpoint, it = Endpoint(lambda request: refusal(ALTERNATE)), learned_limits()
    with pytest.raises(
        ModelError, match="the model does not accept messages in this order"
    ) as caught:
        await adapt(endpoint, it)(CHAT)
    assert len(endpoint.asked) == caught.value.usage.calls == 2
    assert (it.adaptations, caught.value.retryable) == ([], False)


async def test_images_for_a_writer_without_vision_are_an_error():
    """An answer written without the image would be wrong, not only worse."""
    endpoint = Endpoint(
        lambda request: refusal("image input is not supported", 500, ModelUnavailableError)
    )
    with pytest.raises(ModelError, match="accepts no images, and the request needs them"):
        await adapt(endpoint, learned_limits())(Request((message("user", [IMAGE]),)))
    assert len(endpoint.asked) == 1


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("could not download the image", 400),
        ("unsupported image format", 422),
        ("vision worker lost", 500),
    ],
)
async def test_an_unreadable_image_is_not_taken_for_missing_vision(words, status):
    """The error has the server's message; after a server error a retry may help."""
    kind = ModelUnavailableError if status == 500 else ModelError
    error = refusal(words, status, kind)
    error.retryable = status == 500
    with pytest.raises(kind) as caught:
        await adapt(Endpoint(lambda request: error), learned_limits())(
            Request((message("user", [IMAGE]),))
        )
    assert str(caught.value).endswith(words)
    assert caught.value.retryable is (status == 500)


async def test_an_error_keeps_its_cause():
    """The exception of a callable is the cause of the error that is raised."""
    error = refusal("no")
    error.__cause__ = KeyError("why")
    with pytest.raises(ModelError) as caught:
        await adapt(Endpoint(lambda request: error), learned_limits())(CHAT)
    assert caught.value is error
    assert isinstance(caught.value.__cause__, KeyError)


# ---- formats


async def test_a_format_refused_by_name_is_not_sent_again():
    """After json_schema and json_object were refused, the next judgement is requested in plain text
    with one call.
    """
    endpoint = refuse_formats("json_schema", "json_object")
    ask = adapt(endpoint, learned_limits())
    assert (await ask(judging_request(1))).usage.calls == 3
    assert (await ask(judging_request(2))).usage.calls == 1
    assert endpoint.requested_formats == ["json_schema", "json_object", "text", "text"]


async def test_a_refused_schema_does_not_affect_other_schemas():
    """Where a format has worked, only the grader with the refused schema falls back."""
    bad = {"type": "array"}
    endpoint = Endpoint(
        lambda r: (
            refusal("Invalid schema for response_format")
            if r.schema == bad and r.format != "text"
            else JSON
        )
    )
    ask = adapt(endpoint, learned_limits())
    for request in (
        judging_request(1),
        judging_request(2, "array"),
        judging_request(3),
        judging_request(4, "array"),
    ):
        await ask(request)
    assert endpoint.requested_formats == [
        "json_schema",
        "json_schema",
        "json_object",
        "text",
        "json_schema",
        "text",
    ]


@pytest.mark.parametrize("status", [400, 422, 501])
async def test_a_refusal_without_a_reason_affects_its_request_alone(status):
    """Several different requests must be refused before a format is given up; repeating one adds no
    evidence.
    """
    endpoint = Endpoint(
        lambda request: refusal("Bad Request", status) if request.format == "json_schema" else JSON
    )
    ask = adapt(endpoint, learned_limits())
    for n in (1, 1, 2, 1, 3, 4):
        await ask(judging_request(n))
    assert endpoint.requested_formats == ["json_schema", "json_object"] * 5 + ["json_object"]


async def test_an_answer_in_prose_affects_its_request_alone():
    """That request is sent once more in plain text; the next text's request is unchanged."""
    endpoint = Endpoint(
        lambda request: PROSE if "judge 1" in request.messages[1]["content"] else JSON
    )
    ask = adapt(endpoint, learned_limits())
    first = await ask(judging_request(1))
    assert (first.text, first.usage.calls) == (PROSE.text, 2)
    for n in (2, 1, 1, 1, 3):
        await ask(judging_request(n))
    requested_formats = endpoint.requested_formats
    assert requested_formats == [
        "json_schema",
        "text",
        "json_schema",
        *["json_schema", "text"] * 3,
        "json_schema",
    ]


@pytest.mark.parametrize("hostile", [1, 5, 50])
async def test_prose_without_a_format_is_no_evidence_against_the_format(hostile):
    """This holds however many hostile drafts come first: where plain text gives no object either,
    the format is not the cause.
    """
    endpoint = Endpoint(
        lambda request: JSON if "judge 999" in request.messages[1]["content"] else PROSE
    )
    ask = adapt(endpoint, learned_limits())
    for n in range(hostile):
        await ask(judging_request(n))
    await ask(judging_request(999))
    assert endpoint.requested_formats[-1] == "json_schema"


async def test_a_format_that_often_gives_prose_is_given_up():
    """An endpoint that answers a response_format in prose, and plain requests with objects, is
    recognised after several requests.
    """
    endpoint = Endpoint(lambda request: JSON if request.format == "text" else PROSE)
    it = learned_limits()
    ask = adapt(endpoint, it)
    replies = [await ask(judging_request(n)) for n in range(2 * MIN_FAILURES + 2)]
    assert {reply.text for reply in replies} == {JSON.text}
    assert endpoint.requested_formats[-1] == "text"
    assert replies[-1].usage.calls == 1
    assert endpoint.requested_formats[: 2 * MIN_FAILURES] == ["json_schema", "text"] * MIN_FAILURES


async def test_a_400_about_invalid_json_of_the_model_is_no_refusal():
    """Groq reports it so: that one text is judged in plain text, the next by schema."""
    words = "Failed to generate JSON. Please adjust your prompt. See 'failed_generation' for more details."
    endpoint = Endpoint(
        lambda r: (
            refusal(words) if "judge 1" in r.messages[1]["content"] and r.format != "text" else JSON
        )
    )
    ask = adapt(endpoint, learned_limits())
    for n in (1, 2, 3):
        await ask(judging_request(n))
    assert endpoint.requested_formats == [
        "json_schema",
        "json_object",
        "text",
        "json_schema",
        "json_schema",
    ]


@pytest.mark.parametrize("status", [500, 502, 503, 504, 529])
async def test_a_server_error_is_left_to_retry(status):
    """One call is made, the error is raised unchanged, and the next request is the same."""
    answers = [refusal("Internal Server Error", status, ModelUnavailableError), JSON, JSON]
    endpoint = Endpoint(lambda request: answers.pop(0))
    ask = adapt(endpoint, learned_limits())
    with pytest.raises(ModelUnavailableError):
        await ask(judging_request(1))
    await ask(judging_request(1))
    await ask(judging_request(2))
    assert endpoint.requested_formats == ["json_schema"] * 3


async def test_a_repeated_500_for_an_untested_format_is_probed_without_it():
    """For a server that answers each response_format with a bare 500 a repeated request is finally
    sent in plain text.
    """
    endpoint = Endpoint(
        lambda r: (
            JSON
            if r.format == "text"
            else refusal("Internal Server Error", 500, ModelUnavailableError)
        )
    )
    ask = adapt(endpoint, learned_limits())
    for n in range(MIN_FAILURES):
        for _ in range(MIN_FAILURES):
            with pytest.raises(ModelUnavailableError):
                await ask(judging_request(n))
        assert (await ask(judging_request(n))).text == JSON.text
    endpoint.asked.clear()
    await ask(judging_request(99))
    assert endpoint.requested_formats == ["text"]


async def test_an_outage_at_the_start_is_no_refusal():
    """Every request fails many times before the first answer; afterwards all are judged by
    schema.
    """
    down = True
    endpoint = Endpoint(
        lambda request: (
            refusal("Internal Server Error", 500, ModelUnavailableError) if down else JSON
        )
    )
    ask = adapt(endpoint, learned_limits())
    for n in list(range(5)) * MIN_FAILURES:
        with pytest.raises(ModelUnavailableError):
            await ask(judging_request(n))
    down = False
    endpoint.asked.clear()
    for n in range(10):
        await ask(judging_request(n))
    assert endpoint.requested_formats == [*["text"], *["json_schema"] * 10]


NAMED, UNNAMED = refusal("response_format is not supported"), refusal("Bad Request")
DOWN = refusal("Internal Server Error", 500, ModelUnavailableError)
LETTERS = {"json_schema": "S", "json_object": "O", "text": "T"}


async def attempts(answer, requests, *, models=("m",), capabilities=None):
    """The formats in which each request is sent, as letters: of S a schema, of O an object, of T
    text.

    `requests` are texts such as "a1": the schema, and what is judged. `answer` tells what the
    endpoint answers to a letter and such a text: None for a verdict, or an error or a reply. The
    models take turns. "!" stands for an error that is raised.
    """
    session = capabilities or EndpointCapabilities()
    sent, now = [], [""]

    def answer_one(request):
        sent[-1] += LETTERS[request.format]
        return answer(LETTERS[request.format], now[0]) or JSON

    for n, text in enumerate(requests):
        sent.append("")
        now[0] = text
        model = session.for_model(models[n % len(models)])
        try:
            await adapt(Endpoint(answer_one), model)(judging_request(int(text[1:]), text[0]))
        except ModelUnavailableError:
            sent[-1] += "!"
    return sent


# what the endpoint answers to a format and a request; requests; the formats in which each is sent
FORMAT_SEQUENCES = {
    "refused by name: the schema is not sent again": (
        lambda f, r: NAMED if f == "S" else None, "a1 a1 a2 a3", "SO O O O"),
    "refused by name for three schemas: for no schema": (
        lambda f, r: NAMED if f == "S" else None, "a1 b1 c1 d1 e1 a2", "SO SO SO O O O"),
    "refused by name for two schemas: for these": (
        lambda f, r: NAMED if f == "S" and r[0] in "ab" else None, "a1 b1 c1 a2 b2 c2 d1", "SO SO S O O S S"),
    "refused by name after it has worked: for each schema alone": (
        lambda f, r: NAMED if f == "S" and r[0] != "a" else None, "a1 b1 c1 d1 e1 b2 a2", "S SO SO SO SO O S"),
    "two formats refused by name": (
        lambda f, r: NAMED if f != "T" else None, "a1 a2 b1 c1 d1", "SOT T SOT SOT T"),
    "the second format is refused by name, and the first without a reason": (
        lambda f, r: {"S": UNNAMED, "O": NAMED}.get(f), "a1 a2 a3 a4", "SOT ST ST T"),
    "refused without a reason: after three requests, not after three tries of one": (
        lambda f, r: UNNAMED if f == "S" else None, "a1 a1 a1 a1 a2 a2 a3 a1 a4 b1", "SO SO SO SO SO SO SO O O O"),
    "refused without a reason for three schemas: for no schema": (
        lambda f, r: UNNAMED if f == "S" else None, "a1 b1 c1 d1", "SO SO SO O"),
    "refused by name, and without a reason: three in all": (
        lambda f, r: {"a": NAMED}.get(r[0], UNNAMED) if f == "S" else None, "a1 b1 b2 b3 c1", "SO SO SO O O"),
    "refused without a reason after it has worked: for a schema alone": (
        lambda f, r: UNNAMED if f == "S" and r[0] == "b" else None, "a1 b1 b2 b3 b4 c1 a2", "S SO SO SO O S S"),
    "a verdict forgets what was refused of its schema": (
        lambda f, r: UNNAMED if f == "S" and r[1:] != "9" else None, "a1 a2 a9 a3 a4 a1 a5 a9", "SO SO S SO SO SO O O"),
    "a verdict does not forget what was refused of another schema": (
        lambda f, r: UNNAMED if f == "S" and r[0] == "b" else None, "b1 b2 a1 b3 b4 a2", "SO SO S SO O S"),
    "prose three times where text holds an object": (
        lambda f, r: PROSE if f == "S" else None, "a1 a1 a2 a3 a4 b1", "ST ST ST ST O O"),
    "prose for both formats": (
        lambda f, r: PROSE if f != "T" else None, "a1 a2 a3 a4 a5 a6 a7", "ST ST ST OT OT OT T"),
    "prose for all formats says nothing of them": (
        lambda f, r: PROSE, "a1 a2 a3 a4 a5", "ST ST ST ST ST"),
    "prose after a verdict says nothing of the format": (
        lambda f, r: PROSE if f == "S" and r != "a1" else None, "a1 a2 a3 a4 a5", "S ST ST ST ST"),
    "refused by name with 500 after it has worked: for its request": (
        lambda f, r: refusal("json_schema is not supported", 500) if f == "S" and r != "a1" else None,
        "a1 a2 a2 a3 a4 a5", "S SO SO SO SO O"),
    "refused by name with 500 at first": (
        lambda f, r: refusal("json_schema is not supported", 500) if f == "S" else None, "a1 a2", "SO O"),
    "a bare 500 for the schema: plain text is tried after three": (
        lambda f, r: DOWN if f == "S" else None, "a1 a1 a2 a1 a2 a1 a2 a2", "S! S! S! S! S! TS S! TS"),
    "a bare 500 for the schema of three requests: no schema is sent": (
        lambda f, r: DOWN if f == "S" else None, "a1 a1 a1 a1 a2 a2 a2 a2 a3 a3 a3 a3 a4", "S! S! S! TS S! S! S! TS S! S! S! TS T"),
    "a bare 500 whatever the format": (
        lambda f, r: DOWN, "a1 a1 a1 a1 a1", "S! S! S! T! S!"),
    "a bare 500 after a verdict is no sign": (
        lambda f, r: DOWN if r == "a1" else None, "a2 a1 a1 a1 a1 a1", "S S! S! S! S! S!"),
    "a verdict in any format ends the suspicion": (
        lambda f, r: (DOWN if r[0] == "a" else NAMED) if f == "S" else None, "a1 a1 b1 a1 a1 a1 a1", "S! S! SO S! S! S! TS"),
    "a reply that is cut off is no prose": (
        lambda f, r: Reply("It", ONE, "length") if f == "S" else None, "a1 a2 a3 a4", "S S S S"),
}  # fmt: skip


@each_row(("answer", "requests", "expected"), FORMAT_SEQUENCES.values(), ids=FORMAT_SEQUENCES)
async def test_in_which_formats_requests_are_sent(answer, requests, expected):
    """For each way in which an endpoint does not accept a format: when it is given up, for what,
    and what is tried instead.
    """
    assert await attempts(answer, requests.split()) == expected.split()
    assert await attempts(
        answer, [each for each in requests.split() for _ in "mn"], models=("m", "n")
    ) == [each for each in expected.split() for _ in "mn"]


@pytest.mark.parametrize(
    ("error", "needed"), [(NAMED, 1), (UNNAMED, MIN_FAILURES), (PROSE, MIN_FAILURES)]
)
async def test_after_how_many_requests_a_format_is_tried_again(error, needed):
    """The 256th request that does without it is made in all formats: a refusal changes nothing, a
    verdict restores the format.
    """
    able, session = False, EndpointCapabilities()

    def answer(letter, text):
        return error if letter == "S" and not able else None

    sent = await attempts(
        answer, [f"a{n}" for n in range(needed + 2 * REPROBE_INTERVAL)], capabilities=session
    )
    tried = [n + 1 for n, each in enumerate(sent) if "S" in each]
    assert tried == [
        *range(1, needed + 1),
        needed + REPROBE_INTERVAL,
        needed + 2 * REPROBE_INTERVAL,
    ]
    able = True
    sent = await attempts(
        answer, [f"a{n}" for n in range(REPROBE_INTERVAL + 2)], capabilities=session
    )
    assert sent == [*["O"] * (REPROBE_INTERVAL - 1), "S", "S", "S"]


async def test_what_a_journal_is_told_of():
    """Every change, at once, also that a verdict forgets what was refused; and not that all is as
    it was.
    """
    session, told, changes = EndpointCapabilities(), [], []
    session.on_change = lambda: told.append(json.dumps(session.as_data()))

    def answer(letter, text):
        return UNNAMED if letter == "S" and text != "a9" else None

    for text in ("a9", "a9", "a1", "a1", "a9", "a9"):
        told.clear()
        await attempts(answer, [text], capabilities=session)
        changes.append(len(told))
        assert not told or told[-1] == json.dumps(session.as_data())
    assert [bool(n) for n in changes] == [True, False, True, True, True, False]


async def test_an_outage_that_ends_while_formats_are_compared():
    """The verdict is that by the schema, which is used from then on; the one in plain text is
    counted, and is no answer.
    """
    plain = Reply('{"a": 2}', ONE)
    answers = [DOWN, DOWN, DOWN, plain, JSON, JSON]
    endpoint = Endpoint(lambda request: answers.pop(0))
    ask = adapt(endpoint, learned_limits())
    for _ in range(3):
        with pytest.raises(ModelUnavailableError):
            await ask(judging_request(1))
    reply = await ask(judging_request(1))
    assert (
        reply.text,
        reply.usage.calls,
        reply.usage.output_tokens,
        reply.usage.answer_tokens,
    ) == (
        JSON.text,
        2,
        20,
        ONE.answer_tokens,
    )
    await ask(judging_request(2))
    assert endpoint.requested_formats == ["json_schema"] * 3 + [
        "text",
        "json_schema",
        "json_schema",
    ]


async def test_only_the_latest_schemas_are_remembered():
    """Of 65 refused schemas the first is asked for again."""
    schemas = [chr(n) for n in range(0x100, 0x100 + MAX_SCHEMAS + 1)]
    session, worked = EndpointCapabilities(), ["!1"]

    def answer(letter, text):
        return NAMED if letter == "S" and text[0] != "!" else None

    assert await attempts(
        answer, [*worked, *(f"{each}1" for each in schemas)], capabilities=session
    ) == [
        "S",
        *["SO"] * len(schemas),
    ]
    assert await attempts(answer, [f"{schemas[n]}2" for n in (1, -1, 0)], capabilities=session) == [
        "O",
        "O",
        "SO",
    ]


def test_what_is_restored_is_bounded():
    """64 schemas that were refused, 64 that fell back, and 64 requests of one of these."""
    keys = [f"{n:016x}" for n in range(100)]
    known = {
        "works": True,
        "refused_schemas": keys,
        "fallback_requests": {"one": keys, **dict.fromkeys(keys[:62], ["x"])},
    }
    session = EndpointCapabilities()
    session.restore({"m": {"adaptations": ["seed"], "formats": {"json_schema": known}}})
    restored = session.as_data()["m"]["formats"]["json_schema"]
    assert restored == {
        "works": True,
        "refused_schemas": keys[36:],
        "fallback_requests": restored["fallback_requests"],
    }
    assert {
        schema: len(requests) for schema, requests in restored["fallback_requests"].items()
    } == {
        "one": 64,
        **dict.fromkeys(keys[:62], 1),
    }
    session.restore(
        {
            "m": {
                "adaptations": ["seed", "system"],
                "formats": {"json_schema": {**known, "works": False}},
            }
        }
    )
    more = {
        "works": False,
        "refused_schemas": [],
        "fallback_requests": {"two": ["y"], "three": ["z"]},
    }
    session.restore({"m": {"adaptations": [], "formats": {"json_schema": more}}})
    restored = session.as_data()["m"]
    assert (restored["adaptations"], restored["formats"]["json_schema"]["works"]) == (
        ["seed", "system"],
        True,
    )
    assert list(restored["formats"]["json_schema"]["fallback_requests"]) == [
        *keys[:62],
        "two",
        "three",
    ]


@pytest.mark.parametrize(
    "error",
    [
        refusal("no key", 401, AuthenticationError),
        refusal("the response_format exceeds the context", 400, ContextLengthError),
        refusal("no such model", 404, ModelUnavailableError),
    ],
)
async def test_other_errors_are_raised_unchanged(error):
    """They are about a key, the length of a prompt, or an unknown model."""
    endpoint = Endpoint(lambda request: error)
    with pytest.raises(ModelError):
        await adapt(endpoint, learned_limits())(judging_request())
    assert endpoint.requested_formats == ["json_schema"]


async def test_the_first_error_is_raised_when_no_format_helps():
    """It says most about the server, and counts all calls; nothing is remembered."""
    errors = [refusal(f"no {n}") for n in range(3)]
    left, it = list(errors), learned_limits()
    with pytest.raises(ModelError) as caught:
        await adapt(Endpoint(lambda request: left.pop(0)), it)(judging_request())
    assert caught.value is errors[0]
    assert caught.value.usage.calls == 3
    assert not any(
        record.refused_schemas or record.fallback_requests for record in it.formats.values()
    )


# ---- limits that are saved


async def test_learned_limits_are_restored_in_another_process():
    """The saved data restore every decision: what is refused, and what is only suspected."""
    endpoint = Endpoint(
        lambda r: (
            refusal("System role not supported")
            if r.messages[0]["role"] == "system"
            else refusal("Bad Request")
            if r.format == "json_schema"
            else JSON
        )
    )
    first = EndpointCapabilities()
    for n in range(MIN_FAILURES - 1):
        await adapt(endpoint, first.for_model("endpoint#m"))(judging_request(n))
    second = EndpointCapabilities()
    second.restore(first.as_data())
    assert second.as_data() == first.as_data()
    endpoint.asked.clear()
    await adapt(endpoint, second.for_model("endpoint#m"))(judging_request(MIN_FAILURES - 1))
    await adapt(endpoint, second.for_model("endpoint#m"))(judging_request(MIN_FAILURES))
    assert [(len(r.messages), r.format) for r in endpoint.asked] == [
        (1, "json_schema"),
        (1, "json_object"),
        (1, "json_object"),
    ]


async def test_a_schema_for_every_row_does_not_fill_the_journal():
    """The remembered schemas and requests are bounded, and decisions remain possible."""
    endpoint = Endpoint(
        lambda r: (
            refusal("Invalid schema for response_format") if r.schema["type"] != "object" else JSON
        )
    )
    session = EndpointCapabilities()
    ask = adapt(
        Endpoint(lambda r: JSON if r.format == "text" else endpoint.answer(r)),
        session.for_model("m"),
    )
    await ask(judging_request())
    for n in range(300):
        await ask(judging_request(n, f"type {n}"))
    assert len(str(session.as_data())) < 10_000
    await ask(judging_request(1))
    assert session.for_model("m").is_proven("json_schema")


async def test_each_model_has_its_own_limits_and_each_change_is_reported_once():
    """A refusal of one model does not affect another, and the callback gets each change once."""
    changes = []
    session = EndpointCapabilities()
    session.on_change = lambda: changes.append(session.as_data())
    endpoint = refuse_formats("json_schema")
    await adapt(endpoint, session.for_model("endpoint#a"))(judging_request())
    told = len(changes)
    await adapt(endpoint, session.for_model("endpoint#a"))(judging_request())
    assert len(changes) == told > 0
    await adapt(endpoint, session.for_model("endpoint#b"))(judging_request())
    assert endpoint.requested_formats == [
        "json_schema",
        "json_object",
        "json_object",
        "json_schema",
        "json_object",
    ]
    assert "endpoint" not in str(session.as_data())
