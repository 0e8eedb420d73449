"""Reasoning in replies is in no answer, whole or streamed, of any model. (How servers send it:
`quirks/`.)
"""

import json
from contextlib import aclosing

import pytest
from fault_server import chunk, completion, good, http, send_and_close, sse

import redraft
from redraft.errors import BadResponseError
from redraft.models import CallableModel, Chat

HM, FOUR = "One word is wanted. Four.", "four"
CONTENTS = {
    "harmony": f"<|channel|>analysis<|message|>{HM}<|end|><|start|>assistant<|channel|>final<|message|>{FOUR}<|return|>",
    "harmony without markers": f"analysis{HM}assistantfinal{FOUR}",
    "Gemma": f"<|channel>thought\n{HM}<channel|>{FOUR}",
    "tags": f"<thinking>\n{HM}\n</thinking>\n\n{FOUR}",
    "Seed": f"<seed:think>{HM}</seed:think>{FOUR}",
    "Mistral": f"[THINK]{HM}[/THINK]{FOUR}",
    "begun in the prompt": f"{HM}</think>\n\n{FOUR}",
    "with a token at the end": f"<think>{HM}</think>{FOUR}<|im_end|>",
}
FIELDS = {  # messages whose reasoning is in a place of its own
    "reasoning_content": {"content": FOUR, "reasoning_content": HM},
    "reasoning": {"content": FOUR, "reasoning": HM},
    "a part of the type thinking": {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": HM}]}, {"type": "text", "text": FOUR}]},
    "a part of the type reasoning": {"content": [{"type": "reasoning", "text": HM}, {"type": "text", "text": FOUR}]},
    "a part of the type reasoning_text": {"content": [{"type": "reasoning_text", "text": HM}, {"type": "text", "text": FOUR}]},
    "a part that is a thought": {"content": [{"type": "text", "text": HM, "thought": True}, {"type": "text", "text": FOUR}]},
    "no content, an end tag in the reasoning": {"content": "", "reasoning_content": f"{HM}</think>\n\n{FOUR}"},
    "no content, harmony in the reasoning": {"content": None, "reasoning": CONTENTS["harmony"]},
    "no content, a whole block in the reasoning": {"content": "", "reasoning_content": f"<think>{HM}</think>{FOUR}"},
}  # fmt: skip
MESSAGES = {**{name: {"content": content} for name, content in CONTENTS.items()}, **FIELDS}


def pieces(message):
    """Return the chunks of a stream in which a message arrives in small parts."""
    for name, value in message.items():
        if isinstance(value, str):
            yield from (chunk(**{name: value[n : n + 5]}) for n in range(0, len(value), 5))
        elif value is not None:
            yield from (chunk(**{name: [part]}) for part in value)


def reply_of(message, is_stream, finish="stop"):
    if is_stream:
        return send_and_close(sse(*pieces(message), chunk(finish=finish)))
    whole = completion(finish=finish)
    whole["choices"][0]["message"] = {"role": "assistant"} | message
    return http(whole)


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("name", MESSAGES)
async def test_the_reply_has_the_answer_alone(faults, ask, name, is_stream):
    """And the reasoning in a field of its own, for every form."""
    faults.says(reply_of(MESSAGES[name], is_stream))
    reply = await Chat("m", faults.url, stream=is_stream).complete(ask())
    assert (reply.text, reply.reasoning) == (FOUR, HM)
    assert reply.reasoning_form is not None


@pytest.mark.parametrize("name", MESSAGES)
async def test_a_stream_ends_with_the_answer(faults, ask, name):
    """The parts are those of the answer; reasoning that the prompt began is known as such only when
    its end arrives.
    """
    faults.says(reply_of(MESSAGES[name], True))
    async with aclosing(Chat("m", faults.url).stream(ask())) as stream:
        *parts, reply = [part async for part in stream]
    assert "".join(parts).endswith(FOUR)
    if name != "begun in the prompt":
        assert "".join(parts) == FOUR
    assert reply.text == FOUR


EMPTY = {
    "reasoning_content": {"content": "", "reasoning_content": HM},
    "reasoning": {"content": None, "reasoning": HM},
}


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("name", EMPTY)
async def test_the_field_that_has_all_the_text_is_named(faults, ask, name, is_stream):
    """Reasoning is never taken for the answer."""
    faults.says(reply_of(EMPTY[name], is_stream))
    with pytest.raises(
        BadResponseError,
        match=rf"sent an empty answer: the model wrote only reasoning \({name}\); turn its thinking off",
    ):
        await Chat("m", faults.url, stream=is_stream).complete(ask())


VERDICT = '{"reason": "It is so.", "criteria": {"truth": {"evidence": "e", "change": "c", "score": 4}}, "done": false}'


@pytest.mark.parametrize("name", FIELDS)
async def test_a_verdict_after_reasoning_is_read(faults, name):
    """At the first ask; a verdict within the reasoning is none."""
    message = json.loads(
        json.dumps(MESSAGES[name]).replace(
            FOUR, json.dumps(VERDICT)[1:-1].replace("\\", "\\\\").replace('\\\\"', '\\"')
        )
    )
    judge = redraft.Judge({"truth": "It is true."})
    report = await redraft.grade(
        ("q", "a"), judge, Chat("m", faults.says(reply_of(message, False)).url)
    )
    assert (report.score, len(faults.requests)) == (0.8, 1)


@pytest.mark.parametrize("name", CONTENTS)
async def test_functions_are_models_too(ask, name):
    """What a function returns is read like a reply."""
    reply = await CallableModel(lambda messages: CONTENTS[name]).complete(ask())
    assert (reply.text, reply.reasoning) == (FOUR, HM)


ABOUT = "The tag <think> begins reasoning, and `</think>` ends it. Stop at <|im_end|>."


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
async def test_an_answer_about_marks_is_whole(faults, ask, is_stream):
    """Also after reasoning, and in parts."""
    faults.says(reply_of({"content": f"<think>hm</think>{ABOUT}"}, is_stream))
    reply = await Chat("m", faults.url, stream=is_stream).complete(ask())
    assert (reply.text, reply.reasoning) == (ABOUT, "hm")


async def test_reasoning_hides_no_key(faults, ask):
    """A key that is spread around a block is masked in the joined answer, and so is one in the
    reasoning.
    """
    key = "sk-canary-4711-0815"
    faults.says(
        good(f"Key {key[:9]}<thinking></thinking>{key[9:]}"), good(f"[THINK]{key}[/THINK]four")
    )
    model = Chat("m", faults.url, key=key)
    for _ in range(2):
        reply = await model.complete(ask())
        assert key not in f"{reply.text} {reply.reasoning}"
