"""LiteLLM's generic guardrail endpoint: Redraft as the guardrail of a LiteLLM proxy that repairs
what it finds.

LiteLLM sends the texts of a model's answer (POST, `input_type: response`). Each is graded by a
profile. A text that the graders accept stays; another one is refined, and LiteLLM gets the better
text, or is told to block the answer if that still breaks a must. Images and calls of tools are left
alone.

The conversation that a text answers comes in an earlier request (`input_type: request`, mode
pre_call), which is remembered for some minutes by the ID of LiteLLM's call. Without it the text is
graded by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..base.jsontext import dumps
from ..base.log import log
from ..base.threads import run_in_thread_if_large
from ..loop.records import StopReason
from ..loop.steps import Compare, Grade, Step, Stop
from ..loop.task import Message, Task, message_text
from ..loop.trace import Trace
from ..middleware.messages import SYSTEM_ROLES
from ..plans import Plan
from ..session.refinement import make_refinement
from .client_exchange import JSON, AdmittedRequest, ClientExchange, new_trace_id
from .exchange import Answer, GatewayError, invalid_request
from .keys import Caller
from .prepared_requests import PreparedRequest
from .refining import ProfileRefiner
from .request_table import RequestFacts
from .routing import REFINE, Routing

GUARDRAIL_PATH = "/beta/litellm_basic_guardrail_api"
MAX_TEXTS = 64
ROLES = frozenset({*SYSTEM_ROLES, "user", "assistant"})
UNKNOWN_CONVERSATION: tuple[Message, ...] = (
    {"role": "user", "content": "(The request that this text answers is not known.)"},
)
JUDGE_ERRORS = frozenset(
    {"deadline_exceeded", "context_length_exceeded", "content_filter", "schema_not_met"}
)
"""Codes of errors that a model behind the gateway causes, besides those that begin with
"upstream_".
"""
gateway_log = log.getChild("gateway")
Form = TypeVar("Form", bound=BaseModel)


class GuardrailSettings(BaseModel):
    """What the operator of LiteLLM chooses (`additional_provider_specific_params`).

    - `profile`: the profile that grades; None: the only one, or the one that is called "default".
    - `broken`: what happens to a text that breaks a must and cannot be repaired.
    - `error`: what happens to a text that cannot be graded, because a judge is down.
    - `requests`: "block" grades the last text of each request, too, and blocks one that breaks a
      must.
    """

    model_config = ConfigDict(extra="ignore", strict=True)

    profile: str | None = None
    broken: Literal["block", "pass"] = "block"
    error: Literal["block", "pass"] = "pass"
    requests: Literal["block", "pass"] = "pass"


class GuardrailRequest(BaseModel):
    """A request of LiteLLM. What it says about the client and its key is not read."""

    model_config = ConfigDict(extra="ignore", strict=True)

    input_type: Literal["request", "response"]
    texts: Annotated[list[str], Field(max_length=MAX_TEXTS)] | None = None
    structured_messages: list[Any] | None = None
    litellm_call_id: str | None = None
    additional_provider_specific_params: GuardrailSettings | None = None

    @property
    def settings(self) -> GuardrailSettings:
        return self.additional_provider_specific_params or GuardrailSettings()


class GuardrailReply(BaseModel):
    """What LiteLLM is told: `texts` replace those that it sent, one by one."""

    action: Literal["NONE", "BLOCKED", "GUARDRAIL_INTERVENED"] = "NONE"
    blocked_reason: str | None = None
    texts: list[str] | None = None


@dataclass(frozen=True, slots=True)
class TextVerdict:
    """What becomes of a text: `text`, or `blocked`: why it may not be shown."""

    text: str
    blocked: str = ""


class GuardrailExchange(ClientExchange):
    """One request of LiteLLM, and the reply."""

    @property
    def label(self) -> str:
        return "guardrail"

    @cached_property
    def _facts(self) -> list[RequestFacts]:
        """Those of each text."""
        return []

    async def answer(self, body: Mapping[str, Any]) -> None:
        """Answer a request with this body. Raises GatewayError as long as nothing is sent."""
        assert self.caller
        request = read_body(GuardrailRequest, body)
        target = find_profile(self.routing, self.caller, request.settings.profile)
        self.model = REFINE + target.profile.name
        conversations, call_id = self.gateway.conversations, request.litellm_call_id
        if request.input_type == "request":
            messages = conversation_of(request.structured_messages or ())
            if call_id and messages:
                conversations.remember(self.caller.id, call_id, messages)
            reply = await self._check_request(target, request)
        else:
            messages = conversations.find(self.caller.id, call_id or "")
            reply = await self._check_response(target, request, messages)
        content = dumps(reply.model_dump(exclude_none=True))
        await self._send_whole(200, [(b"content-type", JSON)], content)

    async def _check_request(
        self, target: ProfileRefiner, request: GuardrailRequest
    ) -> GuardrailReply:
        """Return whether a request may go to its model."""
        texts = [text for text in request.texts or () if text.strip()]
        if request.settings.requests == "pass" or not texts:
            return GuardrailReply()
        verdict = await self._verdict(target, request.settings, texts[-1], (), is_refined=False)
        return (
            GuardrailReply(action="BLOCKED", blocked_reason=verdict.blocked)
            if verdict.blocked
            else GuardrailReply()
        )

    async def _check_response(
        self, target: ProfileRefiner, request: GuardrailRequest, messages: tuple[Message, ...]
    ) -> GuardrailReply:
        """Return the texts of an answer, refined where they have to be."""
        texts = list(request.texts or ())
        for n, text in enumerate(texts):
            if not text.strip():
                continue
            verdict = await self._verdict(target, request.settings, text, messages)
            if verdict.blocked:
                return GuardrailReply(action="BLOCKED", blocked_reason=verdict.blocked)
            texts[n] = verdict.text
        if texts == (request.texts or []):
            return GuardrailReply()
        return GuardrailReply(action="GUARDRAIL_INTERVENED", texts=texts)

    async def _verdict(
        self,
        target: ProfileRefiner,
        settings: GuardrailSettings,
        text: str,
        messages: tuple[Message, ...],
        *,
        is_refined: bool = True,
    ) -> TextVerdict:
        """Grade a text, refine it if it needs that, and record this as a request of its own."""
        if self._facts:
            self.trace_id = new_trace_id()
        size = len(text) + sum(map(len, map(message_text, messages)))
        prepared = await run_in_thread_if_large(size, self._prepare, target, text, messages)
        if not is_refined:
            made = prepared.refinement
            made = replace(made, next_steps=grade_only(made.next_steps))
            prepared = replace(prepared, refinement=made)
        problem, answer = "", None
        try:
            async with aclosing(self._refined_items(target, prepared)) as items:
                async for item in items:
                    if isinstance(item, AdmittedRequest):
                        self.admitted = item
                    answer = item if isinstance(item, Answer) else answer
        except GatewayError as error:
            if not (error.code.startswith("upstream_") or error.code in JUDGE_ERRORS):
                raise
            problem = error.message
        finally:
            self._add_facts()
        if answer is None or answer.outcome["score"] is None:
            problem = problem or (answer.outcome["reason"] if answer else "") or "there is no grade"
            gateway_log.warning("request %s: a text was not graded: %s", self.trace_id, problem)
            return TextVerdict(
                text, "the answer could not be checked" if settings.error == "block" else ""
            )
        if (broken := answer.outcome["broken"]) and settings.broken == "block":
            return TextVerdict(text, f"the text does not meet: {', '.join(broken)}")
        return TextVerdict(answer.reply.text)

    def _prepare(
        self, target: ProfileRefiner, text: str, messages: Sequence[Message]
    ) -> PreparedRequest:
        """Return the refinement that begins with a text as its first candidate."""
        body = {"model": self.model, "messages": list(messages or UNKNOWN_CONVERSATION)}
        prepared = target.prepare(self.protocol.read_request(body), self.trace_id)
        made = prepared.refinement
        task = Task(made.trace.task.messages, text, requirements=made.trace.task.requirements)
        refinement = make_refinement(
            task, made.session, made.session.options.deadline_at, model_searched=False
        )
        return replace(prepared, refinement=refinement)

    def _add_facts(self) -> None:
        """Add the facts of a text to those of the request, which is answered whatever they are."""
        if self.facts is None:
            return
        self._facts.append(self.facts)
        sums = {
            name: _sum_of([getattr(each, name) for each in self._facts])
            for name in ("calls", "input_tokens", "output_tokens", "cost", "milliseconds")
        }
        self.facts = replace(self.facts, status=200, **sums)


def grade_only(plan: Plan) -> Plan:
    """Return a plan that grades what is there, and writes nothing."""

    def decide(trace: Trace) -> Sequence[Step]:
        steps = plan(trace)
        kept = [step for step in steps if isinstance(step, Grade | Compare | Stop)]
        if kept or not steps:
            return kept
        return [Stop(trace.best.id if trace.best else None, StopReason.DONE, "graded only")]

    return decide


def _sum_of(values: Sequence[Any]) -> Any:
    """Return the sum of figures; None if one is unknown."""
    return None if None in values else sum(values)


def read_body(form: type[Form], body: Mapping[str, Any], prefix: str = "") -> Form:
    """Read a request. Raises GatewayError 400 that names the field at fault, without the prefix."""
    try:
        return form.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        path = ".".join(map(str, first["loc"])).removeprefix(prefix)
        raise invalid_request(path, f"{path}: {first['msg']}") from None


def find_profile(routing: Routing, caller: Caller, name: str | None) -> ProfileRefiner:
    """Return the profile of this name, or the default. Raises GatewayError 400, 403 or 404."""
    if name is None:
        usable = [each for each in routing.refiners if caller.may_use(REFINE + each)]
        name = usable[0] if len(usable) == 1 else "default"
        if name not in usable:
            raise invalid_request(
                "additional_provider_specific_params.profile",
                "additional_provider_specific_params.profile must name one of the profiles "
                f"{', '.join(usable) or '(there are none)'}",
            )
    target = routing.find(REFINE + name.removeprefix(REFINE), caller)
    assert isinstance(target, ProfileRefiner)
    return target


def conversation_of(messages: Sequence[Any]) -> tuple[Message, ...]:
    """Return the texts of a conversation as messages, up to the last of the user; () if there is
    none.
    """
    texts: list[Message] = []
    for message in messages:
        if isinstance(message, Mapping) and message.get("role") in ROLES:
            text = text_of(message.get("content"))
            if text.strip():
                texts.append({"role": message["role"], "content": text})
    while texts and texts[-1]["role"] != "user":
        texts.pop()
    return tuple(texts)


def text_of(content: Any, separator: str = "\n\n") -> str:
    """Return the text of a message's content: itself, or the texts of its parts, joined."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else ()
    found = (part.get("text") for part in parts if isinstance(part, Mapping))
    return separator.join(text for text in found if isinstance(text, str))
