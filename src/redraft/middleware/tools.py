"""Who is offered tools: the model that writes, and nobody else. An answer may call tools only where tools were offered.

Pure wrappers around a model's call: they look at nothing but the request and its answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..errors import BadResponseError
from ..protocols import Call, Reply, Request


def offer_own_tools(call: Call, tools: tuple[Mapping[str, Any], ...], choice: str | Mapping[str, Any] | None) -> Call:
    """Offer the tools in a model's own parameters to requests that write, unless the task has tools of its own."""

    async def call_with_tools(request: Request) -> Reply:
        if request.is_generation and not request.tools:
            request = replace(request, tools=tools, tool_choice=choice)
        return await call(request)

    return call_with_tools if tools else call


def drop_unrequested_tool_calls(call: Call, model_label: str, *, may_offer_tools: bool) -> Call:
    """Leave tool calls out of answers to requests that offer no tools. Raises BadResponseError where nothing else is left.

    `decides`: the model is a foreign one, which may offer tools to requests that write without our knowing.
    """

    async def call_checked(request: Request) -> Reply:
        reply = await call(request)
        if not reply.tool_calls or request.tools or (may_offer_tools and request.is_generation):
            return reply
        if reply.text.strip():
            return replace(reply, tool_calls=())
        names = ", ".join(dict.fromkeys(made.name[:60] for made in reply.tool_calls[:5]))
        raise BadResponseError(f"{model_label} asked for a tool in place of an answer: {names}", retryable=True, usage=reply.usage)

    return call_checked
