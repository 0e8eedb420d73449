"""The work behind `refine/NAME`: a request becomes a refinement, its records become progress, its
best candidate the answer.

What a turn of a conversation gets depends on what the model does with it:

- A turn that calls tools is returned as the model wrote it, with its thinking. With `candidates` >
  1 and graders that read tool calls, it is the best of so many. A call is never rewritten.
- A turn of text is refined. While it is, the tools are still described to the model, and it cannot
  call them.
- With `tool_choice` "required" or a function, the turn must call tools; with "none" it is text.
- An answer that a client of messages began is continued: graders see the whole text, and the client
  gets what follows its own.
- What grades may fail: the answer is returned without a score, and says why. A refusal of the model
  is a failed call, and the answer where there is no other.
- Requests with one of the profile's `pass_through` texts in a message of the system, or that are
  one, and all requests if `refine` is "none", are answered once.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import ConfigError, RedraftError
from ..loop.records import Candidate, Feedback, Outcome, Record, StopReason
from ..loop.steps import Compare, Generate, Grade, Step, Stop
from ..loop.task import Task
from ..loop.trace import Trace
from ..plans import Plan
from ..plans.self_refine import full_note
from ..session.models import Models
from ..session.panel import graders_of_run
from ..session.refinement import Refinement, RefinementRun, make_refinement
from ..session.session import Session
from ..settings import PlanSettings, settings_of
from .config import GatewayLimits, Profile, ServedModel
from .exchange import Answer, GatewayError, Progress, invalid_request
from .neutral import Request, Text, Turn
from .prepared_requests import PreparedRequest, TraceLog
from .profile_models import ConnectedModels, WriterModel, begins_answer, is_begun
from .refined_answers import answer_of, refusal_of
from .request_options import (
    check_requirements,
    make_options,
    request_graders,
    request_settings,
)
from .upstream_errors import gateway_error


@dataclass
class ProfileRefiner:
    """Prepares the requests to one profile. Its models are connected when it is made: raises
    ConfigError if one cannot be.
    """

    profile: Profile
    models: ConnectedModels
    limits: GatewayLimits = GatewayLimits()
    # "" if the profile names what grades, or nothing is graded
    default_judge_note: str = field(default="", init=False)
    _prices: Mapping[str, tuple[float, float]] = field(init=False)

    def __post_init__(self) -> None:
        profile = self.profile
        names = [profile.model, *([profile.judge] if profile.judge else [])]
        for name in names:
            self.models.model(name)
        self._prices = self.models.prices(*names)  # also of the models that its graders name
        turns = (Turn("user", (Text("?"),)),)
        probe = Request("chat", f"refine/{profile.name}", {}, turns)
        try:
            prepared = self.prepare(probe, "probe")
        except GatewayError as error:
            raise ConfigError(f"profiles.{profile.name}: {error.message}") from None
        if self.profile.refine != "none":
            self.default_judge_note = prepared.refinement.session.default_judge_note

    def prepare(
        self, request: Request, trace_id: str, headers: Mapping[str, str] = {}
    ) -> PreparedRequest:
        """Return a checked request, whose time begins to run; `headers`: those of the client.

        Raises GatewayError 400 for what cannot be honoured.
        """
        refines, log = self.is_refined(request), TraceLog()
        if refines and is_begun(request.turns[-1]) and request.protocol != "messages":
            name = "input" if request.protocol == "responses" else "messages"
            message = (
                f"{name} must not end with the assistant's turn: a refined answer cannot continue "
                "it in this protocol; a model pass/NAME, or a request to /v1/messages, may"
            )
            raise invalid_request(name, message)
        settings = {**self._settings(request, refines=refines), "store": log}
        schema = request.schema and (request.schema.schema or {"type": "object"})
        options = make_options(settings, schema)
        drafts = options.drafts
        connected, judge = self.models.model(self.profile.model), self.profile.judge
        writer = WriterModel(connected, request, drafts, headers)
        log.replies = writer.replies
        try:
            named, requirements = (
                request_graders(request.options, self.profile),
                bool(request.options.requirements),
            )
            graders = graders_of_run(named, judge, options.answer, requirements=requirements)
            models = Models(
                options,
                writer,
                self.models.model(judge) if judge else connected,
                self.models.limit_calls,
                capabilities=self.models.capabilities,
            )
            session = Session(options, models, graders)
            refinement = self._refinement(request, writer, session)
        except ConfigError as error:
            raise GatewayError(
                400,
                "invalid_request",
                str(error),
                param=_parameter_of(str(error)),
                should_retry=False,
            ) from None
        hosts = self.models.hosts
        return PreparedRequest(
            request, self.profile, refinement, writer, log, trace_id, hosts, refines
        )

    def is_refined(self, request: Request) -> bool:
        """Whether the text of an answer is refined."""
        return self.profile.refine != "none" and not is_side_request(
            request, self.profile.pass_through
        )

    def _settings(self, request: Request, *, refines: bool) -> dict[str, Any]:
        settings = request_settings(request, self.profile, self.limits.deadline)
        settings["prices"] = {**(settings.get("prices") or {}), **self._prices} or None
        if not refines:
            plan = settings_of(PlanSettings)  # which means nothing for an answer as it is
            kept = {name: value for name, value in settings.items() if name not in plan}
            return {**kept, "plan": unrefined_plan}
        if request.tools:
            every = settings.get("drafts", 1) if self.profile.refine == "all" else 1
            settings |= {"drafts": max(self.profile.candidates, every)}
        if begins_answer(request):
            settings["editor"] = False  # it may change what the client began
        return settings

    def _refinement(self, request: Request, writer: WriterModel, session: Session) -> Refinement:
        """Return the refinement of a request. Raises ConfigError."""
        requirements, tools = check_requirements(request.options.requirements), writer.core_tools
        choice = writer.core_tool_choice
        task = Task(writer.messages, tools=tools, tool_choice=choice, requirements=requirements)
        options = session.options
        refinement = make_refinement(task, session, options.deadline_at, model_searched=False)
        if not tools:
            return refinement
        next_steps = tool_turn_plan(refinement.next_steps, options.drafts)
        return replace(refinement, next_steps=next_steps)


def is_side_request(request: Request, texts: Sequence[str]) -> bool:
    """Whether one of the texts is in a message of the system, or is the whole last message of the
    user.

    Part of a user's message may be data, and so are results of tools: they switch nothing off.
    """
    if not texts:
        return False
    system = [turn.text for turn in request.turns if turn.role == "system"]
    last = next((turn for turn in reversed(request.turns) if turn.role == "user"), None)
    has_text_alone = last is not None and all(isinstance(part, Text) for part in last.parts)
    whole = last.text.strip() if last is not None and has_text_alone else ""
    return any(
        text.strip() == whole or any(text in message for message in system) for text in texts
    )


def forwarded_body(request: Request, model: ServedModel) -> dict[str, Any]:
    """Return the body of a request that is passed on to a model, without what is meant for the
    gateway.
    """
    return {
        **{name: value for name, value in request.body.items() if name != "redraft"},
        "model": model.model,
    }


# ---- plans


def unrefined_plan(trace: Trace) -> Sequence[Step]:
    """Return the steps of an answer that is neither graded nor refined."""
    if trace.candidates:
        reason = StopReason.TOOL_CALLS if trace.candidates[-1].tool_calls else StopReason.DONE
        return [Stop(trace.candidates[-1].id, reason, "not refined")]
    return [Generate(0, trace.task.messages)]


def tool_turn_plan(plan: Plan, drafts: int) -> Plan:
    """Return a plan that ends once the first drafts are graded if one of them calls tools: the best
    is chosen, none rewritten.
    """

    def decide(trace: Trace) -> Sequence[Step]:
        steps = plan(trace)
        if (
            not any(candidate.tool_calls for candidate in trace.candidates)
            or trace.tool_calling_candidate is not None
        ):
            return steps
        needed = [
            s
            for s in steps
            if isinstance(s, Grade | Compare) or (isinstance(s, Generate) and s.id < drafts)
        ]
        if needed or any(isinstance(step, Stop) for step in steps):
            return needed or steps
        note = full_note(trace, "a turn that calls tools is not rewritten")
        return [Stop(trace.best.id if trace.best else None, StopReason.DONE, note)]

    return decide


# ---- work


async def answer_request(prepared: PreparedRequest) -> AsyncGenerator[Progress | Answer, None]:
    """Run the refinement of a request; yield its progress, and the answer last. Raises GatewayError
    if there is none.

    Closing it cancels the calls in flight.
    """
    refinement = prepared.refinement
    trace, reported = refinement.trace, len(refinement.trace.records)
    try:
        async with aclosing(RefinementRun(refinement).traces()) as traces:
            async for trace in traces:
                for progress in progress_of(trace, trace.records[reported:]):
                    yield progress
                reported = len(trace.records)
        answer = answer_of(prepared, trace)
    except RedraftError as error:
        refusal = prepared.writer.refusal
        if trace.candidates or refusal is None:
            has_text = bool(trace.candidates)
            raise gateway_error(error, prepared.hosts, has_text=has_text) from error
        answer = refusal_of(prepared, trace, refusal)
    yield answer


def progress_of(trace: Trace, records: Sequence[Record]) -> Iterator[Progress]:
    """Yield the progress that new records of a trace mean."""
    for record in records:
        match record:
            case Candidate():
                yield Progress("candidate", trace.iterations, None, record.role)
            case Feedback():
                yield Progress("grade", trace.iterations, record.score, record.reason)
            case Outcome():
                yield Progress("stop", trace.iterations, trace.score, record.reason)


def _parameter_of(message: str) -> str | None:
    """Return the field of a request that a message about a setting begins with."""
    word = message.partition(":")[0].partition(" ")[0]
    return {"answer": "response_format", "task": "messages"}.get(
        word, word if word.isidentifier() else None
    )
