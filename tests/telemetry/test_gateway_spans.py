"""What the gateway records: the span of a request, and below it its refinement or the call that is
passed on.
"""

import pytest
from chat_server import ChatServer, writer_and_judge

from gateway.running import PROMPT, config_for, http_client, running

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("model", "name"), [("refine/fast", "invoke_workflow refine"), ("pass/tiny", "chat tiny")]
)
async def test_spans_of_a_request(memory, tmp_path, model, name, stream):
    """The client's trace has the request, with the ID under which it is stored, and what was done
    for it, also for a stream.
    """
    server = ChatServer(writer_and_judge(["only"], [5]))
    try:
        async with (
            running(config_for(tmp_path, server.model)) as (url, _),
            http_client(url) as client,
        ):
            body = {"model": model, "messages": PROMPT, "stream": stream and model != "pass/tiny"}
            reply = await client.post(
                "/chat/completions", json=body, headers={"traceparent": TRACEPARENT}
            )
    finally:
        server.close()
    request, work = memory.one("POST /v1/chat/completions"), memory.one(name)
    assert (
        f"{request.context.trace_id:032x}"
        == TRACEPARENT.split("-")[1]
        == f"{work.context.trace_id:032x}"
    )
    assert work.parent.span_id == request.context.span_id
    assert request.attributes["redraft.trace_id"] == reply.headers["x-redraft-trace-id"]
