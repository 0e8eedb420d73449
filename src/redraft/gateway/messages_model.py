"""A model that speaks Anthropic's protocol, as the core of Redraft asks it.

The core speaks chat completions. Its requests are read into the neutral form and written in the
model's protocol, and so are the replies on their way back. A request that writes for a client has
the turns, tools and fields of that client again, wherever the core left them as they were: what
only this protocol can say, such as signed thinking and marks for the cache, reaches the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field, replace
from typing import Any

from ..base.jsontext import dumps, object_in
from ..base.masking import answer_mask, without_cause
from ..base.parameters import merge_parameters
from ..base.text import shorten
from ..base.threads import run_in_thread_if_large
from ..errors import BadResponseError, ContentFilterError, ModelError
from ..loop.records import ToolCall
from ..loop.task import Message, message_text
from ..middleware.messages import merge_adjacent
from ..models.chat_replies import (
    MAX_NAME_CHARS,
    bad_response,
    json_type_name,
    parse_body,
    read_tool_calls,
    truncated_error,
)
from ..models.endpoint_url import path_hint, redirect_error
from ..models.http_client import RequestTarget, fetch, malformed_response
from ..models.openai_chat import dump_request
from ..models.server_errors import (
    answer_error,
    error_from_status,
    parse_error_body,
    stated_error,
)
from ..protocols import FORMATS, Format
from ..protocols import Reply as ModelReply
from ..protocols import Request as ModelRequest
from ..usage import Usage, add_optional, current_entry
from .exchange import GatewayError
from .neutral import (
    AnswerSchema,
    Call,
    FinishReason,
    Json,
    Other,
    Part,
    Reply,
    Request,
    Text,
    Thinking,
    Tokens,
    ToolChoice,
    Turn,
)
from .passing import PATHS, Upstream
from .protocols.chat_messages import read_messages
from .protocols.fields import PARAMETERS
from .protocols.messages_requests import with_forced_tool
from .protocols.registry import MODELS
from .stream_usage import cache_surcharge

MAX_PAUSES = 4  # of one answer, after each of which the model goes on
NEUTRAL_NAMES = {names["chat"]: name for name, names in PARAMETERS.items() if "chat" in names}
REFUSALS = frozenset({"refusal", "content_filter"})  # reasons to finish without an answer
PROTOCOL = MODELS["messages"]


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """The request of a client for which a model writes: its `messages` as the core got them, one
    for each turn; the turn of the assistant that the model is to continue, which `request` is
    without; and the headers that may be passed on.
    """

    request: Request
    messages: tuple[Message, ...]
    begun: tuple[Turn, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PricedReply:
    """A reply, and the usage of its call: with its cost if it `has_surcharge` for what was written
    into a cache, which the price of the tokens does not cover.
    """

    reply: Reply
    usage: Usage
    has_surcharge: bool


class MessagesModel:
    """A model that speaks Anthropic's protocol. A schema is asked for in its own form; where it
    takes none, as the arguments of a tool (the format "json_object"), and else in words.
    """

    formats: tuple[Format, ...] = FORMATS
    provider = "anthropic"
    tools: tuple[Mapping[str, Any], ...] = ()
    tool_choice = None
    params: Mapping[str, Any] | None = None

    def __init__(self, upstream: Upstream) -> None:
        self.name = upstream.model.model
        self.base_url, self.host = upstream.base_url, upstream.host
        self.identity = f"anthropic:{self.base_url}#{self.name}"
        self.timeouts = upstream.timeouts
        self._upstream = upstream

    async def complete(self, request: ModelRequest) -> ModelReply:
        """Send a request of the core and return the reply. Raises ModelError."""
        return self.core_reply(await self.answer(request))

    async def answer(self, asked: ModelRequest, client: ClientRequest | None = None) -> PricedReply:
        """Send a request of the core, which may be for a client, and return the reply, which may be
        a refusal. Raises ModelError.
        """
        target = self._upstream.target(PATHS["messages"], client.headers if client else {})
        target = replace(target, mask=answer_mask(self._upstream.secrets))
        with self._named_errors():
            size = sum(map(len, map(message_text, asked.messages)))
            body = await run_in_thread_if_large(size, self.request_body, asked, client)
            answered = await self._whole_answer(target, body, MAX_PAUSES)
            if answered.has_surcharge:
                return answered
            return replace(answered, usage=answered.usage.with_cost(None))  # which the core knows

    async def _whole_answer(
        self, target: RequestTarget, body: Mapping[str, Any], pauses: int
    ) -> PricedReply:
        """Send a request, and again with what the model wrote where it pauses, up to so many times.
        Return all of its answer.
        """
        response = await fetch(target, "POST", dump_request(body), entry=current_entry())
        data, first = await run_in_thread_if_large(
            len(response[2]), self._priced_reply, target, *response
        )
        if data.get("stop_reason") != "pause_turn" or not pauses:
            return first
        written = {"role": "assistant", "content": data["content"]}
        body = {**body, "messages": [*body["messages"], written]}
        if container := object_in(data, "container"):
            body["container"] = container.get("id")
        try:
            rest = await self._whole_answer(target, body, pauses - 1)
        except ModelError as error:
            error.usage = first.usage + error.usage
            raise
        return PricedReply(
            _whole_reply(first.reply, rest.reply),
            first.usage + rest.usage,
            first.has_surcharge or rest.has_surcharge,
        )

    def _priced_reply(
        self, target: RequestTarget, status: int, headers: Mapping[str, str], content: bytes
    ) -> tuple[Json, PricedReply]:
        """Return the JSON of a message, and what it says. Raises ModelError if it is none."""
        data = _read(target, status, headers, content)
        usage = self._upstream.usage(data.get("usage"))
        has_surcharge = cache_surcharge(data.get("usage")) != 0
        return data, PricedReply(_neutral_reply(data, usage), usage, has_surcharge)

    def core_reply(self, answered: PricedReply) -> ModelReply:
        """Return a reply as the core reads it. Raises ModelError for a refusal, and for a reply of
        which the limit of tokens left nothing.
        """
        with self._named_errors():
            return _core_reply(answered.reply, answered.usage)

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Say in errors of the block which model failed."""
        try:
            yield
        except ModelError as error:
            error.args = (self._upstream.mask(f"{self.name} at {self.host}: {error}"),)
            raise without_cause(error) from None

    def request_body(self, asked: ModelRequest, client: ClientRequest | None) -> dict[str, Any]:
        """Return the body of a request of the core. Raises ModelError for what cannot be said."""
        given = {name: value for name, value in (asked.params or {}).items() if value is not None}
        own = {name: value for name, value in given.items() if name not in NEUTRAL_NAMES}
        try:
            request = _neutral_request(asked, client, _neutral_parameters(asked, given))
            written = PROTOCOL.write_request(request, self.name).body
        except GatewayError as error:
            raise ModelError(error.message, status=error.status) from None
        body = merge_parameters(own, written)
        if asked.schema is None or asked.format != "json_object":
            return body
        return with_forced_tool(body, asked.schema) or body


def _read(
    target: RequestTarget, status: int, headers: Mapping[str, str], content: bytes
) -> dict[str, Any]:
    """Return the JSON of a message. Raises ModelError if it is none."""
    if not 200 <= status < 300:
        raise _status_error(target, status, headers, content)
    data = parse_body(content, headers.get("content-type", ""))
    plain = dumps(data) if target.mask else b""  # a secret may have been escaped
    if (masked := target.mask.mask_bytes(plain)) != plain:
        data = parse_body(masked)
    if not isinstance(data, dict):
        raise malformed_response(f"sent {json_type_name(data)} where a message was expected")
    if error := stated_error(data):
        raise answer_error("sent an error instead of an answer", error)
    return data


def _neutral_reply(data: Mapping[str, Any], usage: Usage) -> Reply:
    try:
        reply = PROTOCOL.read_reply(data)
    except GatewayError as error:
        raise bad_response(error.message.removeprefix("the model "), usage=usage) from None
    return _with_checked_calls(reply, usage)


def _whole_reply(first: Reply, rest: Reply) -> Reply:
    """Return an answer after whose first part the model paused."""
    counts = zip(astuple(first.tokens), astuple(rest.tokens), strict=True)
    tokens = Tokens(*(add_optional(*pair) for pair in counts))
    return replace(rest, parts=(*first.parts, *rest.parts), tokens=tokens)


def _with_checked_calls(reply: Reply, usage: Usage) -> Reply:
    """Return a reply whose calls of tools are within the limits of the core, each with an ID of its
    own. Raises BadResponseError.
    """
    calls = [
        {"id": call.id, "function": {"name": call.name, "arguments": call.arguments}}
        for call in reply.calls
    ]
    ids = iter([call.id for call in read_tool_calls({"tool_calls": calls}, reply.finish, usage)])
    parts = (
        replace(part, id=next(ids)) if isinstance(part, Call) else part for part in reply.parts
    )
    return replace(reply, parts=tuple(parts))


def _status_error(
    target: RequestTarget, status: int, headers: Mapping[str, str], content: bytes
) -> ModelError:
    if status < 400:
        return redirect_error(status, headers.get("location", ""))
    error = error_from_status(status, parse_error_body(content), headers)
    if status in {404, 405}:
        error.args = (f"{error}{path_hint(target.url)}",)
    return error


# ---- requests


def _neutral_parameters(asked: ModelRequest, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a request of the core by their neutral names."""
    named = {NEUTRAL_NAMES[name]: value for name, value in given.items() if name in NEUTRAL_NAMES}
    if isinstance(stop := named.get("stop"), str):
        named["stop"] = [stop]
    if asked.temperature is not None:
        named["temperature"] = asked.temperature
    return {
        name: value for name, value in named.items() if name not in asked.unsupported_parameters
    }


def _neutral_request(
    asked: ModelRequest, client: ClientRequest | None, parameters: Mapping[str, Any]
) -> Request:
    """Return a request of the core in the neutral form, with what the client said where it writes
    for one.
    """
    if client is None:
        turns = read_messages(asked.messages)
        request = Request("chat", "", {}, turns, parameters=parameters)
    else:
        turns = (*turns_of(asked.messages, client), *client.begun)
        request = replace(client.request, turns=turns, is_stream=False)
        request = replace(request, parameters={**request.parameters, **parameters})
    is_asked = asked.schema is not None and asked.format == "json_schema"
    schema = AnswerSchema(asked.schema or {}) if is_asked else None
    request = replace(request, max_tokens=asked.max_tokens, schema=schema)
    if asked.tool_choice == "none" and request.tools:
        request = replace(request, tool_choice=ToolChoice("none"))
    return request


def turns_of(messages: tuple[Message, ...], client: ClientRequest) -> tuple[Turn, ...]:
    """Return messages of the core as turns: those of the client where they are its messages, alone
    or joined with their neighbours, or the last one of the user with a paragraph at its end.
    """
    runs = [(merge_adjacent(joined)[0], turns) for joined, turns in _runs(client)]
    known: dict[bytes, list[tuple[Turn, ...]]] = {}
    for message, of_client in runs:
        known.setdefault(dumps(message, sort_keys=True), []).append(of_client)
    last = next((run for run in reversed(runs) if run[0]["role"] == "user"), None)
    turns: list[Turn] = []
    for message in messages:
        same = known.get(dumps(message, sort_keys=True))
        if same:
            turns += same.pop(0)
        elif last and (added := _added_parts(last[0], message)):
            turns += [*last[1], Turn("user", added)]
        else:
            turns += map(_without_raw, read_messages([message]))
    return tuple(turns)


def _added_parts(before: Message, after: Message) -> tuple[Text, ...]:
    """Return the texts that the core added to the end of a message of the user; () if it did
    something else.
    """
    match before["content"], after["content"]:
        case str(old), str(new) if after["role"] == "user" and new.startswith(f"{old}\n\n"):
            return (Text(new[len(old) + 2 :]),)
        case list(old), list(new) if after["role"] == "user" and new[: len(old)] == old:
            added = new[len(old) :]
            if all(part.get("type") == "text" for part in added):
                return tuple(Text(part["text"]) for part in added)
    return ()


def _runs(client: ClientRequest) -> Iterator[tuple[tuple[Message, ...], tuple[Turn, ...]]]:
    """Yield the messages that the core joins, with their turns, and those alone that it may have
    left so.
    """
    messages, turns, start = client.messages, client.request.turns, 0
    for end in range(1, len(messages) + 1):
        is_last = end == len(messages) or len(merge_adjacent(messages[end - 1 : end + 1])) > 1
        if end - start > 1 or not is_last:
            yield (messages[end - 1],), (turns[end - 1],)
        if is_last:
            yield messages[start:end], turns[start:end]
            start = end


def _without_raw(turn: Turn) -> Turn:
    """Return a turn that the core wrote: its JSON is of no protocol that the client speaks."""
    parts = (replace(part, raw=None) for part in turn.parts if not isinstance(part, Other))
    return replace(turn, parts=tuple(parts), raw=None)


# ---- replies


def _core_reply(reply: Reply, usage: Usage) -> ModelReply:
    _check_answer(reply, usage)
    thoughts = "\n".join(
        part.text for part in reply.parts if isinstance(part, Thinking) and part.text
    )
    return ModelReply(
        reply.text,
        usage,
        reply.finish,
        thoughts or None,
        tool_calls=tuple(ToolCall(call.name, call.arguments, call.id) for call in reply.calls),
        reasoning_form="separate" if thoughts else None,
        response_id=reply.id[:MAX_NAME_CHARS],
        response_model=reply.model[:MAX_NAME_CHARS],
        cached_tokens=reply.tokens.cached or 0,
        cache_written_tokens=reply.tokens.cache_written or 0,
        reasoning_tokens=reply.tokens.reasoning or 0,
    )


def _check_answer(reply: Reply, usage: Usage) -> None:
    if reply.finish in REFUSALS:
        raise ContentFilterError(f"refused: {shorten(reply.text)}".rstrip(": "), usage=usage)
    if reply.finish == "length" and not (reply.text.strip() or reply.calls):
        raise truncated_error("used up its tokens before its answer (raise `max_tokens`)", usage)
    is_cut = reply.finish == "tool_calls" and not reply.calls
    if is_cut and any(isinstance(part, Other) for part in reply.parts):
        message = f"paused {MAX_PAUSES} times while its provider ran tools: only pass/NAME goes on"
        raise BadResponseError(message, usage=usage)


def neutral_reply(reply: ModelReply) -> Reply:
    """Return a reply of another model in the neutral form."""
    usage = reply.usage
    ending: FinishReason = "tool_calls" if reply.tool_calls else "stop"
    parts: list[Part] = [Thinking(reply.reasoning)] if reply.reasoning else []
    parts += [Text(reply.text)] if reply.text else []
    parts += [Call(call.id, call.name, call.arguments) for call in reply.tool_calls]
    tokens = Tokens(
        usage.input_tokens,
        usage.output_tokens,
        cached=reply.cached_tokens or None,
        cache_written=reply.cache_written_tokens or None,
        reasoning=reply.reasoning_tokens or None,
    )
    return Reply(reply.response_id, reply.response_model, tuple(parts), ending, tokens)
