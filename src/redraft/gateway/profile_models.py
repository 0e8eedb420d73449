"""The models behind the profiles: connected once for a process, and shared by all requests with
what is known of their endpoints.

`WriterModel` is what one request sees of the model that writes: with the fields of that request,
and without tools once the first drafts are written. Judges use the connected model itself, so that
nothing of a client reaches them but the texts that they judge.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..base.jsontext import text_in
from ..base.log import log
from ..base.parameters import merge_parameters
from ..errors import BadResponseError, ConfigError, ContentFilterError, ModelError
from ..loop.task import Message
from ..middleware import EndpointCapabilities
from ..middleware.endpoint_errors import is_refusal
from ..middleware.endpoint_limiter import EndpointLimiter, limit_endpoint
from ..models import connect
from ..models.http_client import Timeouts
from ..models.openai_chat import Chat
from ..models.registry import connect_endpoint
from ..models.traits import traits_of_model
from ..protocols import Call, Model
from ..protocols import Reply as ModelReply
from ..protocols import Request as ModelRequest
from .config import ServedModel
from .exchange import GatewayError
from .field_tables import OUTPUT_FIELDS
from .messages_model import (
    MAX_PAUSES,
    REFUSALS,
    ClientRequest,
    MessagesModel,
    neutral_reply,
)
from .neutral import Media, Other, Part, Reply, Request, Text, Tokens, Tool, Turn
from .passing import Upstream
from .protocols.chat_messages import messages_for_model, write_messages
from .protocols.chat_requests import write_parameters, write_tool_choice, write_tools
from .protocols.registry import MODELS
from .request_costs import is_run_by_client

gateway_log = log.getChild("gateway")
FIRST_CALLS, MAX_CALLS = 64, 1024  # calls in flight at an endpoint: at first, and at most


class ConnectedModels:
    """The models of a gateway by the names that profiles use: those of the configuration, and those
    that `connect` takes.

    `capabilities` is what is known of each model; `limit_calls` holds calls back while their
    endpoint is full or asks for it. An endpoint that is out of service is not waited for: the
    request fails at once, and its client may ask again.
    """

    def __init__(self, served: Mapping[str, ServedModel], env: Mapping[str, str]) -> None:
        self.capabilities = EndpointCapabilities()
        self._served, self._env = served, env
        self._models: dict[str, Model] = {}
        self._limiters: dict[str, EndpointLimiter] = {}
        self._hosts: set[str] = set()

    def model(self, name: str) -> Model:
        """Return the model of this name; it is connected when it is first asked for. Raises
        ConfigError.
        """
        if name not in self._models:
            served = self._served.get(name)
            model = connect_served(served, self._env) if served else connect(name, env=self._env)
            if served:
                model.params = served.params  # type: ignore[attr-defined]
            # the model last: large requests are prepared in threads
            self._hosts.add(traits_of_model(model).host)
            self._models[name] = model
        return self._models[name]

    def prices(self, *names: str) -> dict[str, tuple[float, float]]:
        """Return the prices that the configuration gives for these models, by their names at their
        endpoints.

        Those of all others follow, for the graders that name a model of their own: of two models of
        one name the higher one.
        """
        known = {
            self.model(name).name: self._served[name].prices
            for name in names
            if name in self._served
        }
        others = sorted(
            (each.prices, each.model)
            for each in self._served.values()
            if each.prices and each.model not in known
        )
        given = {**{model: prices for prices, model in others}, **known}
        return {model: prices for model, prices in given.items() if prices}

    @property
    def hosts(self) -> frozenset[str]:
        """The hosts of the models that are connected, with their ports."""
        return frozenset(self._hosts) - {""}

    def limit_calls(self, call: Call, model: Model, *, has_fallback: bool = False) -> Call:
        """Return the call of a model, limited by the limiter that all calls to its endpoint
        share.
        """
        traits = traits_of_model(model)
        limiter = self._limiters.get(traits.address)
        if limiter is None:
            made = EndpointLimiter(
                traits.host,
                initial=FIRST_CALLS,
                maximum=MAX_CALLS,
                notify=gateway_log.warning,
                raises_outages=True,
            )
            # in one step: large requests are prepared in threads
            limiter = self._limiters.setdefault(traits.address, made)
        return limit_endpoint(call, limiter)


def connect_served(served: ServedModel, env: Mapping[str, str]) -> Model:
    """Return the model of a table [models.NAME]. Raises ConfigError if its key is missing."""
    key = env.get(served.key_env, "").strip() if served.key_env else ""
    if served.key_env and not key:
        raise ConfigError(
            f"set the environment variable {served.key_env} to the key of {served.model!r} "
            f"(pass/{served.name})"
        )
    if served.kind == "anthropic":
        return MessagesModel(Upstream(served, env))
    timeouts = Timeouts(total=served.timeout, idle=served.timeout)
    return connect_endpoint(served.model, served.url, env, key=key or None, timeouts=timeouts)


class WriterModel:
    """The model that writes for one request: with the fields of that request, and with tools in the
    first `drafts` answers only. After them a text is refined, and a call of a tool would replace
    it.

    An answer that the client began (`prefill`) is continued by the model; its text begins with what
    the client wrote.

    - `messages`: the conversation as the core gets it, without what the client began.
    - `parameters`: those of the request in the form of chat completions. `ignored`: its fields that
      the model does not get.
    - `replies`: the replies as the model gave them, by the IDs of their candidates; `refusal`: the
      last one in which it refused to answer.

    Raises GatewayError 400 for what changes the answer and the model cannot be told.
    """

    def __init__(
        self, model: Model, request: Request, drafts: int, headers: Mapping[str, str] = {}
    ) -> None:
        self.identity, self.name = model.identity, model.name
        self.replies: dict[int, Reply] = {}
        self.refusal: Reply | None = None
        self._model, self._drafts, self._request = model, drafts, request
        self._begun = request.turns[-1:] if begins_answer(request) else ()
        self.prefill = self._begun[0].text if self._begun else ""
        asked = replace(request, turns=request.turns[:-1]) if self._begun else request
        self.messages = self._messages_of(asked)
        self.parameters, self.ignored = _parameters_of(request, model)
        self._client = ClientRequest(asked, self.messages, self._begun, headers)

    def _messages_of(self, request: Request) -> tuple[Message, ...]:
        """Return the messages for the core."""
        if isinstance(self._model, MessagesModel):
            return tuple(_sayable_message(turn, request) for turn in request.turns)
        return messages_for_model(request)

    @property
    def _is_same_protocol(self) -> bool:
        return self._request.protocol == "messages" and isinstance(self._model, MessagesModel)

    @property
    def max_pauses(self) -> int:
        """How often the model may pause in one answer, each time for another request: only if its
        provider runs tools.
        """
        request = self._request
        has_tools = bool(request.body.get("mcp_servers")) or any(
            tool.kind == "provider" and not is_run_by_client(tool.raw or {}, request.protocol)
            for tool in request.tools
        )
        return MAX_PAUSES if self._is_same_protocol and has_tools else 0

    @property
    def core_tools(self) -> tuple[Mapping[str, Any], ...]:
        """The tools that the core knows: also those that the model's provider knows by their type,
        if the model gets them.
        """
        request = self._request
        if self._is_same_protocol:
            request = replace(request, tools=tuple(map(_as_function, request.tools)))
        return write_tools(request)

    @property
    def core_tool_choice(self) -> str | Mapping[str, Any] | None:
        """Whether the core is told that a tool must be called; the model is told it in any case."""
        try:
            return write_tool_choice(self._request)
        except GatewayError:
            if self._is_same_protocol:
                return "required"
            raise

    def __getattr__(self, name: str) -> Any:
        """Return an optional attribute of a model, such as its `formats` or `base_url`."""
        return getattr(self._model, name)

    async def complete(self, asked: ModelRequest) -> ModelReply:
        """Send a request and return the reply. Raises ModelError."""
        is_refinement = bool(self._request.tools) and asked.sample_index >= self._drafts
        if is_refinement:
            asked = replace(asked, tool_choice="none")
        reply = await self._answer_in_form(asked)
        if is_refinement:
            reply = _without_tool_calls(reply, self.name)
        return replace(reply, text=self.whole_text(reply.text)) if self._begun else reply

    def whole_text(self, text: str) -> str:
        """Return a text of the model with what the client began. Models of OpenAI's protocol may
        repeat that.
        """
        is_repeated = text.startswith(self.prefill) and not isinstance(self._model, MessagesModel)
        return text if is_repeated else self.prefill + text

    async def _answer_in_form(self, asked: ModelRequest) -> ModelReply:
        """Return the answer to a request. With tools the core asks for no form of the answer, so
        that the model is told here of the schema of the client, unless it takes none beside tools.
        """
        schema = self._request.schema
        if not asked.tools or schema is None or not schema.schema:
            return await self._answer(asked)
        try:
            return await self._answer(replace(asked, schema=schema.schema, format="json_schema"))
        except ModelError as error:
            if not is_refusal(error):
                raise
            spent = error.usage
        return (await self._answer(asked)).after(spent)

    async def _answer(self, asked: ModelRequest) -> ModelReply:
        """Return the reply of the model, and keep it as it is."""
        if isinstance(self._model, MessagesModel):
            answered = await self._model.answer(asked, self._client)
            self._keep(asked, answered.reply)
            return self._model.core_reply(answered)
        params = merge_parameters(asked.params or {}, self.parameters)
        messages = (*asked.messages, *write_messages(replace(self._request, turns=self._begun)))
        try:
            reply = await self._model.complete(replace(asked, messages=messages, params=params))
        except ContentFilterError as error:
            if error.refusal:
                parts = (Text(error.refusal, is_refusal=True),)
                tokens = Tokens(error.usage.input_tokens, error.usage.output_tokens)
                self._keep(asked, Reply("", self.name, parts, "refusal", tokens))
            raise
        self._keep(asked, neutral_reply(reply))
        return reply

    def _keep(self, asked: ModelRequest, reply: Reply) -> None:
        if reply.finish in REFUSALS:
            self.refusal = reply
        else:
            self.replies[asked.sample_index] = reply


def is_begun(turn: Turn) -> bool:
    """Whether a turn is a text of the assistant, which the model would continue."""
    return turn.role == "assistant" and not turn.calls


def begins_answer(request: Request) -> bool:
    """Whether the client began the answer, which only Anthropic's protocol has."""
    return request.protocol == "messages" and is_begun(request.turns[-1])


def _sayable_message(turn: Turn, request: Request) -> Message:
    """Return a turn as a chat message; what those cannot say is named in its place, because the
    model gets the turn itself.
    """
    try:
        return write_messages(replace(request, turns=(turn,)))[0]
    except GatewayError:
        parts = tuple(part if isinstance(part, Text) else _note(part) for part in turn.parts)
        return write_messages(replace(request, turns=(replace(turn, parts=parts, raw=None),)))[0]


def _note(part: Part) -> Text:
    kind = part.kind if isinstance(part, Media | Other) else "other"
    return Text(f"[a part of the type {kind}]")


def _as_function(tool: Tool) -> Tool:
    """Return a tool that only the model's provider knows as a function of unknown arguments."""
    if tool.kind != "provider":
        return tool
    return Tool("function", text_in(tool.raw or {}, "name") or tool.name, schema={"type": "object"})


def _parameters_of(request: Request, model: Model) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the parameters of a request in the form of chat completions, and the names of its
    fields that the model does not get.
    """
    if isinstance(model, MessagesModel):  # which gets the request itself
        written = MODELS["messages"].write_request(request, model.name)
        limits = {n: v for n, v in written.body.items() if n in OUTPUT_FIELDS and n != "max_tokens"}
        return limits, written.ignored
    parameters, ignored = write_parameters(request)
    if isinstance(model, Chat):
        return parameters, ignored
    taken = traits_of_model(model).parameters
    kept = {name: value for name, value in parameters.items() if name in taken}
    return kept, (*ignored, *(name for name in parameters if name not in taken))


def _without_tool_calls(reply: ModelReply, name: str) -> ModelReply:
    """Return the text of a reply alone. Raises BadResponseError if it only calls tools."""
    if reply.tool_calls and not reply.text.strip():
        raise BadResponseError(
            f"{name} called a tool instead of improving its text", usage=reply.usage
        )
    return replace(reply, tool_calls=())
