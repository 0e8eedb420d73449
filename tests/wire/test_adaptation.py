"""Complete refinements with restricted endpoints: the answer is the same, and a rejected parameter
is not sent again.
"""

import json
import logging

import pytest

import vendors
from redraft import Judge, Task, refine, refine_many
from redraft.errors import ModelError
from redraft.models import Chat, connect
from redraft.models.pydantic_ai import ProviderModel
from redraft.runs import batch
from redraft.storage.journal import Journal

from . import fault_server as fs

JUDGE = Judge({"truth": "It is true."})
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "One."},
    {"role": "user", "content": "Two."},
    {"role": "assistant", "content": "Yes?"},
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "Three."},
]
OPENED = [{"role": "assistant", "content": "Hello!"}, {"role": "user", "content": "Tell me."}]
PLAIN = {"max_in_flight": 1, "noise_aware": False}
SAMPLING = {"temperature": 0.0, "max_tokens": 50, "seed": 7}


def request_features(sent):
    """Return the parts of a request that an endpoint may reject."""
    body = sent.body
    form = body.get("response_format", {}).get("type")
    return (
        [m["role"] for m in body["messages"]],
        form,
        sorted(body.keys() & {"max_tokens", "max_completion_tokens", "temperature", "seed"}),
    )


PERSONAS = {
    "no system role": (
        [fs.no_system],
        TALK,
        ["accepts no system role; its text goes into the first user message"],
    ),
    "turns that alternate": (
        [fs.alternation],
        TALK,
        ["accepts a system message only at the beginning", "accepts no system role"],
    ),
    "turns that alternate after a system message": (
        [fs.late_alternation],
        TALK,
        ["accepts a system message only at the beginning"],
    ),
    "a conversation that an assistant begins": (
        [fs.alternation],
        OPENED,
        ["accepts no conversation that an assistant begins"],
    ),
    "no max_tokens": ([fs.renamed_limit], "Say it.", ["sent as max_completion_tokens"]),
    "no temperature": ([fs.default_temperature], "Say it.", ["accepts no temperature"]),
    "no seed": ([fs.no_seed], "Say it.", ["accepts no seed"]),
    "hardly anything": (
        [
            fs.no_seed,
            fs.renamed_limit,
            fs.default_temperature,
            fs.no_system,
            fs.alternation,
            fs.no_format(),
        ],
        TALK,
        [
            "accepts no seed",
            "max_completion_tokens",
            "accepts no temperature",
            "accepts no system role",
            "json_schema",
            "json_object",
        ],
    ),
    "no response_format": ([fs.no_format()], "Say it.", ["json_schema", "json_object"]),
    "no json_schema": (
        [
            fs.no_format(
                "json_schema", status=500, words="response_format must be text or json_object"
            )
        ],
        "Say it.",
        ["json_schema"],
    ),
}


@pytest.mark.parametrize(("rules", "task", "notes"), PERSONAS.values(), ids=PERSONAS)
async def test_requests_are_adapted_to_the_endpoint(faults, caplog, rules, task, notes):
    """The refinement succeeds, and each rejection happens a bounded number of times, is reported
    once and is remembered.
    """
    faults.says(fs.accepting(*rules))
    with caplog.at_level(logging.INFO, "redraft"):
        results = await refine_many(
            [task] * 4, f"{faults.url}#m", JUDGE, max_iterations=1, retries=0, **PLAIN, **SAMPLING
        )
    assert [(result.error, result.score) for result in results] == [(None, 0.8)] * 4
    roles = [request_features(sent)[0] for sent in faults.requests]
    assert all(a != b for listed in roles for a, b in zip(listed, listed[1:], strict=False))
    refused = [sent for sent in faults.requests if any(rule(sent.body) for rule in rules)]
    assert refused
    assert not any(
        any(rule(sent.body) for rule in rules)
        for sent in faults.requests[len(faults.requests) // 2 :]
    )
    assert sum(result.usage.calls for result in results) == len(faults.requests)
    messages_logged = [record.getMessage() for record in caplog.records if record.name == "redraft"]
    assert len(messages_logged) == len(set(messages_logged)) >= len(notes)
    for words in notes:
        assert sum(words in line for line in messages_logged) == 1, messages_logged
    assert not any(word in line for line in messages_logged for word in ("brief", "One.", "sk-"))


@pytest.mark.parametrize("stream", [False, True])
async def test_adjacent_messages_of_one_role_are_merged(faults, stream):
    """Texts, parts and their order stay, for any endpoint."""
    faults.says(fs.accepting())
    task = [
        {"role": "user", "content": "One."},
        {"role": "user", "content": [{"type": "text", "text": "Two."}]},
        {"role": "assistant", "content": "A"},
        {"role": "assistant", "content": "B"},
        {"role": "user", "content": "Three."},
    ]
    await refine(task, Chat("m", faults.url, stream=stream), "words:1-5", max_iterations=0)
    sent = faults.requests[0].body["messages"]
    assert sent == [
        {
            "role": "user",
            "content": [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}],
        },
        {"role": "assistant", "content": "A\n\nB"},
        {"role": "user", "content": "Three."},
    ]


async def test_rejected_images_of_a_writer_are_an_error(faults):
    """The error says what the model does not accept, and the request is not repeated."""
    faults.says(fs.accepting(fs.no_images))
    with pytest.raises(ModelError, match="accepts no images, and the request needs them") as caught:
        await refine(
            [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, IMAGE]}],
            f"{faults.url}#m",
            JUDGE,
        )
    assert caught.value.usage.calls == len(faults.requests) == 1


async def test_impossible_role_order_is_an_error(faults):
    """A template that rejects every order gives an error that says so."""
    faults.says(fs.error(500, "Jinja Exception: Conversation roles must alternate", code=500))
    with pytest.raises(ModelError, match="does not accept messages in this order"):
        await refine("Say it.", f"{faults.url}#m", JUDGE)
    assert len(faults.requests) == 1


@pytest.mark.parametrize(
    ("where", "task"),
    [
        ("server", TALK),
        ("server", OPENED),
        ("process", TALK),
        pytest.param("process", OPENED, marks=pytest.mark.slow),
    ],
    ids=[
        "server-neighbours",
        "server-an assistant begins",
        "process-neighbours",
        "process-an assistant begins",
    ],
)
async def test_strict_template_accepts_any_task(request, where, task):
    """llama.cpp with Gemma's template rejects adjacent messages of one role and a leading assistant
    message.
    """
    if where == "server":
        model = request.getfixturevalue("strict_server")
    else:  # one thread: several would wait for each other by spinning
        model = connect(f"local:{request.getfixturevalue('strict_gguf_file')}", threads=1)
    result = await refine(task, model, JUDGE, max_iterations=1, max_tokens=8, temperature=0.0)
    assert result.value
    assert 0 <= result.score <= 1


async def test_provider_models_are_adapted(faults):
    """The same layer wraps pydantic-ai's client, here with a very restricted server."""
    rules = [fs.no_seed, fs.default_temperature, fs.no_system, fs.alternation, fs.no_format()]
    provider = vendors.OpenAIProvider(
        base_url=faults.says(fs.accepting(*rules)).url, api_key="sk-canary"
    )
    model = ProviderModel(vendors.OpenAIChatModel("m", provider=provider))
    results = await refine_many(
        [TALK] * 3, model, JUDGE, max_iterations=1, retries=0, **PLAIN, **SAMPLING
    )
    assert [(result.error, result.score) for result in results] == [(None, 0.8)] * 3
    assert not any(
        any(rule(sent.body) for rule in rules)
        for sent in faults.requests[len(faults.requests) // 2 :]
    )


# ---- the response format: unsupported, bad answers, server errors


def formats(faults):
    """Return the formats of the judge's requests in order."""
    return [
        request_features(sent)[1]
        for sent in faults.requests
        if "one JSON object" in json.dumps(sent.body["messages"])
    ]


async def grade_texts(faults, *texts, **settings):
    tasks = [Task("Say it.", text) for text in texts]
    return await refine_many(tasks, f"{faults.url}#m", JUDGE, max_iterations=0, **PLAIN, **settings)


@pytest.mark.parametrize("first", ["HOSTILE", "honest"])
async def test_hostile_draft_does_not_change_the_format(faults, first):
    """A draft whose judge answers in prose leaves the schema format for drafts judged before and
    after it.
    """
    faults.says(
        fs.accepting(judge=lambda body: "No." if "HOSTILE" in json.dumps(body) else VERDICT)
    )
    await grade_texts(faults, first, "HOSTILE 2", "HOSTILE 3", "HOSTILE 4", "HOSTILE 5")
    faults.requests.clear()
    results = await grade_texts(faults, *(f"HOSTILE {n}" for n in range(6)), "honest")
    assert [result.score for result in results] == [None] * 6 + [0.8]
    assert formats(faults)[-1] == "json_schema"


VERDICT = json.dumps(
    {
        "reason": "It is so.",
        "criteria": {"truth": {"evidence": "", "change": "c", "score": 4}},
        "done": False,
    }
)


@pytest.mark.parametrize(("status", "times"), [(500, 1), (500, 2), (502, 2), (503, 1), (429, 2)])
async def test_a_transient_error_is_retried_in_the_same_format(faults, status, times):
    """Later requests use the same format as before."""
    faults.says(*[fs.error(status, "Internal Server Error")] * times, fs.accepting())
    results = await grade_texts(faults, "one", "two", "three")
    assert [result.score for result in results] == [0.8] * 3
    assert formats(faults) == ["json_schema"] * (times + 3)


@pytest.mark.parametrize("worked", [False, True])
async def test_permanent_500_is_limited_by_retry(faults, worked):
    """It costs four calls in total and not four in each format, also if the format worked
    before.
    """
    faults.says(*[fs.accepting()] * worked, fs.error(500, "Internal Server Error"))
    *_, last = await grade_texts(faults, *["one"] * worked, "two")
    assert last.score is None and {failure.error for failure in last.trace.failures.values()} == {
        "ModelUnavailableError"
    }
    assert len(faults.requests) == 4 + worked


async def test_endpoint_that_ignores_formats_is_prompted_in_words(faults):
    """It answers prose to a response_format and objects without one; soon every verdict takes one
    call.
    """
    faults.says(fs.accepting(judge=lambda body: "Well." if "response_format" in body else VERDICT))
    results = await grade_texts(faults, *map(str, range(7)))
    assert [result.score for result in results] == [0.8] * 7
    assert [result.usage.calls for result in results] == [*[2] * 6, 1]
    assert formats(faults)[-1] is None


# ---- resumed batches


async def test_resumed_batch_remembers_rejections(faults, tmp_path):
    """The journal of a killed run holds them, so no rejected parameter is sent again."""
    faults.says(fs.accepting(fs.no_format(), fs.no_seed, fs.no_system))
    rows = [
        {
            "id": str(n),
            "prompt": [{"role": "system", "content": "S"}, {"role": "user", "content": f"{n}"}],
        }
        for n in range(6)
    ]
    settings = {"journal": tmp_path / "j", "name": "r", "max_iterations": 1, **PLAIN, **SAMPLING}
    await batch(rows, None, f"{faults.url}#m", JUDGE, limit=3, **settings)
    learned = len(faults.requests)
    with Journal(tmp_path / "j") as journal:
        assert journal.run("r").metadata["capabilities"]
    report = await batch(rows, None, f"{faults.url}#m", JUDGE, **settings)
    assert report.rows.done == 6
    later = [request_features(sent) for sent in faults.requests[learned:]]
    assert later
    assert all(
        "system" not in roles and form is None and "seed" not in sampling
        for roles, form, sampling in later
    )


async def test_capabilities_belong_to_one_session(faults):
    """Another refinement in the same process learns by itself, because no module state is
    shared.
    """
    faults.says(fs.accepting(fs.no_format()))
    await grade_texts(faults, "one")
    faults.says(fs.accepting())
    faults.requests.clear()
    await grade_texts(faults, "one")
    assert formats(faults) == ["json_schema"]
