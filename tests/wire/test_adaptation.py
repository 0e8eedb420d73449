"""Whole refinements at endpoints that do not take everything: the answer is the same, and what was refused is not asked again."""

import json
import logging

import pytest
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from redraft import Judge, Task, refine, refine_many
from redraft.errors import ModelError, ModelUnavailableError
from redraft.models import Chat
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


def shape(sent):
    """What of a request may be refused."""
    body = sent.body
    form = body.get("response_format", {}).get("type")
    return (
        [m["role"] for m in body["messages"]],
        form,
        sorted(body.keys() & {"max_tokens", "max_completion_tokens", "temperature", "seed"}),
    )


PERSONAS = {
    "no system role": ([fs.no_system], TALK, ["takes no system role; its text goes into the first user message"]),
    "turns that alternate": ([fs.alternation], TALK, ["takes a system message at the beginning only", "takes no system role"]),
    "turns that alternate after a system message": ([fs.late_alternation], TALK, ["takes a system message at the beginning only"]),
    "a conversation that an assistant begins": ([fs.alternation], OPENED, ["takes no conversation that an assistant begins"]),
    "no max_tokens": ([fs.renamed_limit], "Say it.", ["sent as max_completion_tokens"]),
    "no temperature": ([fs.default_temperature], "Say it.", ["takes no temperature"]),
    "no seed": ([fs.no_seed], "Say it.", ["takes no seed"]),
    "hardly anything": (
        [fs.no_seed, fs.renamed_limit, fs.default_temperature, fs.no_system, fs.alternation, fs.no_format()],
        TALK,
        ["takes no seed", "max_completion_tokens", "takes no temperature", "takes no system role", "json_schema", "json_object"],
    ),
    "no response_format": ([fs.no_format()], "Say it.", ["json_schema", "json_object"]),
    "no json_schema": (
        [fs.no_format("json_schema", status=500, words="response_format must be text or json_object")],
        "Say it.",
        ["json_schema"],
    ),
}


@pytest.mark.parametrize(("rules", "task", "told"), PERSONAS.values(), ids=PERSONAS)
async def test_an_endpoint_is_asked_as_it_takes_it(faults, caplog, rules, task, told):
    """Draft, judgement and refinement come through; each thing is refused a bounded number of times, told once, and then known."""
    faults.says(fs.taking(*rules))
    with caplog.at_level(logging.INFO, "redraft"):
        results = await refine_many([task] * 4, f"{faults.url}#m", JUDGE, max_iterations=1, retries=0, **PLAIN, **SAMPLING)
    assert [(result.error, result.score) for result in results] == [(None, 0.8)] * 4
    roles = [shape(sent)[0] for sent in faults.requests]
    assert all(a != b for listed in roles for a, b in zip(listed, listed[1:], strict=False))
    refused = [sent for sent in faults.requests if any(rule(sent.body) for rule in rules)]
    assert refused
    assert not any(any(rule(sent.body) for rule in rules) for sent in faults.requests[len(faults.requests) // 2 :])
    assert sum(result.usage.calls for result in results) == len(faults.requests)
    said = [record.getMessage() for record in caplog.records if record.name == "redraft"]
    assert len(said) == len(set(said)) >= len(told)
    for words in told:
        assert sum(words in line for line in said) == 1, said
    assert not any(word in line for line in said for word in ("brief", "One.", "sk-"))


@pytest.mark.parametrize("stream", [False, True])
async def test_no_two_neighbours_of_one_role_leave_the_client(faults, stream):
    """Messages of a task are joined, whatever the endpoint says; texts, parts and their order stay."""
    faults.says(fs.taking())
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
        {"role": "user", "content": [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}]},
        {"role": "assistant", "content": "A\n\nB"},
        {"role": "user", "content": "Three."},
    ]


async def test_images_that_a_writer_needs_are_refused_by_name(faults):
    """The error says what the model does not take; it is not asked again and again for it."""
    faults.says(fs.taking(fs.no_images))
    with pytest.raises(ModelError, match="takes no images, and the request cannot do without") as caught:
        await refine([{"role": "user", "content": [{"type": "text", "text": "What is it?"}, IMAGE]}], f"{faults.url}#m", JUDGE)
    assert caught.value.usage.calls == len(faults.requests) == 1


async def test_an_order_of_roles_that_cannot_be_made_is_refused_by_name(faults):
    """A template that refuses everything."""
    faults.says(fs.error(500, "Jinja Exception: Conversation roles must alternate", code=500))
    with pytest.raises(ModelError, match="does not take messages in this order"):
        await refine("Say it.", f"{faults.url}#m", JUDGE)
    assert len(faults.requests) == 1


@pytest.mark.parametrize("task", [TALK, OPENED], ids=["neighbours", "an assistant begins"])
@pytest.mark.parametrize("where", ["server", "process"])
async def test_a_model_with_a_strict_template_takes_any_task(request, where, task):
    """llama.cpp with Gemma's template, which refuses two messages of one role in a row, and an assistant who begins."""
    model = (
        request.getfixturevalue("strict_server") if where == "server" else f"local:{request.getfixturevalue('strict_gguf_file')}"
    )
    result = await refine(task, model, JUDGE, max_iterations=1, max_tokens=8, temperature=0.0)
    assert result.value
    assert 0 <= result.score <= 1


async def test_models_through_providers_are_adapted_too(faults):
    """The same layer is around every model: here pydantic-ai's client of a server that takes hardly anything."""
    rules = [fs.no_seed, fs.default_temperature, fs.no_system, fs.alternation, fs.no_format()]
    provider = OpenAIProvider(base_url=faults.says(fs.taking(*rules)).url, api_key="sk-canary")
    model = ProviderModel(OpenAIChatModel("m", provider=provider))
    results = await refine_many([TALK] * 3, model, JUDGE, max_iterations=1, retries=0, **PLAIN, **SAMPLING)
    assert [(result.error, result.score) for result in results] == [(None, 0.8)] * 3
    assert not any(any(rule(sent.body) for rule in rules) for sent in faults.requests[len(faults.requests) // 2 :])


# ---- the format: not supported, a bad answer, a server in trouble


def formats(faults):
    """How judges asked, in order."""
    return [shape(sent)[1] for sent in faults.requests if "one JSON object" in json.dumps(sent.body["messages"])]


async def graded(faults, *texts, **settings):
    tasks = [Task("Say it.", text) for text in texts]
    return await refine_many(tasks, f"{faults.url}#m", JUDGE, max_iterations=0, **PLAIN, **settings)


@pytest.mark.parametrize("first", ["HOSTILE", "honest"])
async def test_a_hostile_draft_does_not_change_what_the_next_is_asked(faults, first):
    """Its judge answers in prose, whatever it is asked; before or after others were judged, they are asked by schema."""
    faults.says(fs.taking(judge=lambda body: "No." if "HOSTILE" in json.dumps(body) else VERDICT))
    await graded(faults, first, "HOSTILE 2", "HOSTILE 3", "HOSTILE 4", "HOSTILE 5")
    faults.requests.clear()
    results = await graded(faults, *(f"HOSTILE {n}" for n in range(6)), "honest")
    assert [result.score for result in results] == [None] * 6 + [0.8]
    assert formats(faults)[-1] == "json_schema"


VERDICT = json.dumps({"criteria": {"truth": {"evidence": "", "change": "c", "score": 4}}, "done": False})


@pytest.mark.parametrize(("status", "times"), [(500, 1), (500, 2), (502, 2), (503, 1), (429, 2)])
async def test_a_transient_error_is_retried_in_the_same_format(faults, status, times):
    """And all that comes after is asked as before."""
    faults.says(*[fs.error(status, "Internal Server Error")] * times, fs.taking())
    results = await graded(faults, "one", "two", "three")
    assert [result.score for result in results] == [0.8] * 3
    assert formats(faults) == ["json_schema"] * (times + 3)


@pytest.mark.parametrize("worked", [False, True])
async def test_a_lasting_500_costs_what_retry_allows(faults, worked):
    """Four calls, not four in each format; also where the format has worked before."""
    faults.says(*[fs.taking()] * worked, fs.error(500, "Internal Server Error"))
    *_, last = await graded(faults, *["one"] * worked, "two")
    assert isinstance(last.error.__cause__, ModelUnavailableError) and last.score is None
    assert len(faults.requests) == 4 + worked


async def test_an_endpoint_that_ignores_formats_and_is_confused_by_them_is_asked_in_words(faults):
    """It takes a response_format and answers prose, and objects without one: every judgement comes, soon in one call."""
    faults.says(fs.taking(judge=lambda body: "Well." if "response_format" in body else VERDICT))
    results = await graded(faults, *map(str, range(7)))
    assert [result.score for result in results] == [0.8] * 7
    assert [result.usage.calls for result in results] == [*[2] * 6, 1]
    assert formats(faults)[-1] is None


# ---- a batch goes on in the same way


async def test_a_resumed_batch_asks_as_the_one_before_it(faults, tmp_path):
    """What a killed run has learned stands in its journal: nothing that was refused is asked for again."""
    faults.says(fs.taking(fs.no_format(), fs.no_seed, fs.no_system))
    rows = [{"id": str(n), "prompt": [{"role": "system", "content": "S"}, {"role": "user", "content": f"{n}"}]} for n in range(6)]
    settings = {"journal": tmp_path / "j", "name": "r", "max_iterations": 1, **PLAIN, **SAMPLING}
    await batch(rows, None, f"{faults.url}#m", JUDGE, limit=3, **settings)
    learned = len(faults.requests)
    with Journal(tmp_path / "j") as journal:
        assert journal.run("r").metadata["capabilities"]
    report = await batch(rows, None, f"{faults.url}#m", JUDGE, **settings)
    assert report.done == 6
    later = [shape(sent) for sent in faults.requests[learned:]]
    assert later
    assert all("system" not in roles and form is None and "seed" not in sampling for roles, form, sampling in later)


async def test_what_is_learned_stays_in_its_session(faults):
    """Another refinement in the same process finds out by itself: nothing is hidden in the module."""
    faults.says(fs.taking(fs.no_format()))
    await graded(faults, "one")
    faults.says(fs.taking())
    faults.requests.clear()
    await graded(faults, "one")
    assert formats(faults) == ["json_schema"]
