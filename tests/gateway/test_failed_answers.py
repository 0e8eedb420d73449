"""What clients of the gateway see of an answer that failed: an error, or with `pass/` in the
model's own protocol the model's words.
"""

import json

import pytest
from fault_server import chunk, completion, good, http, send_and_close, sse

from redraft.gateway.stream_usage import StreamEnds

from .pass_app import app_of, served
from .pass_app import http_client as pass_client
from .running import config_for, http_client, running
from .test_complete_streams import PATHS, body_of

HALF, WHOLE = "A qubit is li", "A qubit is a quantum bit."
ERROR = {"code": 502, "message": "Provider returned error"}


def choice_of(finish, text=HALF, **fields):
    """Return the reply of a model whose choice has these fields."""
    whole = completion(text, finish)
    whole["choices"][0] |= fields
    return whole


FAILED = {
    "an error in the choice": ({"finish": "error", "error": ERROR}, "Provider returned error"),
    "a wrong end": ({"finish": "insufficient_system_resource"}, "insufficient_system_resource"),
    "an unknown end": ({"finish": "future_reason"}, "future_reason"),
}


def reply_of(fields, is_stream):
    if not is_stream:
        return http(choice_of(**fields))
    end = {
        "choices": [
            {
                "index": 0,
                "delta": {},
                "finish_reason": fields["finish"],
                "error": fields.get("error"),
            }
        ]
    }
    return send_and_close(sse(chunk(HALF), end))


async def ask(client, wire, model, is_stream):
    reply = await client.post(PATHS[wire], json=body_of(wire, model) | {"stream": is_stream})
    return reply.status_code, reply.text


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("wire", ["chat", "messages", "responses"])
@pytest.mark.parametrize("name", FAILED)
async def test_a_failed_answer_that_is_passed_on(faults, name, wire, is_stream):
    """In the model's own protocol it arrives as it is; another protocol has no word for it, so it
    is an error.
    """
    fields, words = FAILED[name]
    refusals = [http({"error": {"message": "no such path"}}, 404)] if wire == "responses" else []
    faults.says(*refusals, reply_of(fields, is_stream))
    client = pass_client(app_of(served(faults.url)))
    client.base_url = "http://gateway/v1"
    status, text = await ask(client, wire, "pass/m", is_stream)
    assert words in text
    if wire == "chat":
        assert (status, f'"finish_reason": "{fields["finish"]}"' in text) == (200, True)
    else:
        assert status == (200 if is_stream else 502)
        assert "upstream_error" in text or "api_error" in text
        assert not any(
            word in text
            for word in ("end_turn", "message_stop", "response.completed", '"completed"')
        )


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("wire", PATHS)
async def test_a_failed_answer_is_refined_no_further(faults, tmp_path, wire, is_stream):
    """The model is asked again, and the client gets the whole answer."""
    faults.says(http(choice_of("error", error=ERROR)), good(WHOLE))
    async with (
        running(config_for(tmp_path, faults.url, graders=["words:1-9"])) as (url, _),
        http_client(url) as client,
    ):
        status, text = await ask(client, wire, "refine/fast", is_stream)
    assert (status, len(faults.requests)) == (200, 2)
    assert WHOLE in text and HALF not in text.replace(WHOLE, "")


async def test_what_fails_for_good_is_an_error(faults, tmp_path):
    """The client is told what the provider said, and what to raise after a limit that left
    nothing.
    """
    async with (
        running(config_for(tmp_path, faults.url, graders=["words:1-9"])) as (url, _),
        http_client(url) as client,
    ):
        faults.says(http(choice_of("error", error=ERROR | {"code": 400})))
        status, text = await ask(client, "chat", "refine/fast", False)
        assert (status, len(faults.requests), "Provider returned error" in text) == (400, 1, True)
        faults.says(http({"choices": [{"index": 0, "finish_reason": "length"}]}))
        status, text = await ask(client, "chat", "refine/fast", False)
        assert (status, len(faults.requests), "raise `max_tokens`" in text) == (502, 2, True)


@pytest.mark.parametrize(
    ("reason", "converted"),
    [
        ("eos_token", "end_turn"),
        ("MAX_TOKENS", "max_tokens"),
        ({"type": "stop"}, "end_turn"),
        (None, "end_turn"),
        ("SAFETY", "refusal"),
    ],
)
async def test_other_words_for_an_end_are_converted(faults, reason, converted):
    """A client of another protocol reads the word of its own, and an answer without a text after
    the limit is one.
    """
    client = pass_client(app_of(served(faults.url)))
    client.base_url = "http://gateway/v1"
    faults.says(http(choice_of(reason)))
    assert (
        json.loads((await ask(client, "messages", "pass/m", False))[1])["stop_reason"] == converted
    )
    faults.says(http({"choices": [{"index": 0, "finish_reason": "length"}]}))
    body = json.loads((await ask(client, "messages", "pass/m", False))[1])
    assert (body["stop_reason"], body["content"]) == ("max_tokens", [])
    faults.says(
        http({"choices": [{"index": 0, "finish_reason": "content_filter", "message": None}]})
    )
    body = json.loads((await ask(client, "messages", "pass/m", False))[1])
    assert (body["stop_reason"], body["content"]) == ("refusal", [])


@pytest.mark.parametrize(
    ("end", "is_whole"),
    [
        ('"stop"', True),
        ('{"type": "stop"}', True),
        ("null", False),
        ('""', False),
        ('"null"', False),
    ],
)
def test_a_stream_without_done_needs_a_reason(end, is_whole):
    """Some servers write an empty reason into each event: that is no end."""
    ends = StreamEnds("chat")
    ends.add(b'data: {"choices": [{"finish_reason": %b, "delta": {}}]}\n\n' % end.encode())
    assert ends.is_whole is is_whole
