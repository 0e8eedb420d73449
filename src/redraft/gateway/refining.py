"""The work behind `refine/NAME`: a request becomes a refinement, its records become progress, its
best candidate the answer.

What a turn of a conversation gets depends on what the model does with it:

- A turn that calls tools is returned as it is. With `candidates` > 1 and graders that read tool
  calls, it is the best of so many. A call is never rewritten.
- A turn of text is refined. While it is, the tools are still described to the model, and it cannot
  call them.
- With `tool_choice` "required" or a function, the turn must call tools; with "none" it is text.
- Requests with one of the profile's `pass_through` texts in a message of the system, or that are
  one, and all requests if `refine` is "none", are answered once.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ..base.error_text import error_text
from ..base.text import utf8_size
from ..errors import (
    AuthenticationError,
    BudgetExhaustedError,
    ConfigError,
    ContentFilterError,
    ContextLengthError,
    GradingError,
    ModelError,
    ModelTimeoutError,
    ModelUnavailableError,
    RateLimitError,
    RedraftError,
    ShortageError,
)
from ..loop.records import Candidate, Feedback, Outcome, Record, StopReason
from ..loop.steps import Compare, Generate, Grade, Step, Stop
from ..loop.task import Message, Task, message_text
from ..loop.trace import Trace
from ..middleware.messages import SYSTEM_ROLES
from ..models.server_errors import is_out_of_credit
from ..plans import Plan
from ..plans.quality.result_facts import broken_musts
from ..plans.self_refine import full_note
from ..protocols import Store
from ..result import parsed_answer
from ..session.models import Models
from ..session.panel import graders_of_run
from ..session.perform import ModelClient
from ..session.refinement import (
    Refinement,
    RefinementRun,
    make_refinement,
)
from ..session.reservations import grader_calls
from ..session.session import Session
from ..settings import PlanSettings, settings_of
from ..usage import NO_USAGE, Usage
from .config import GatewayLimits, Profile, ServedModel
from .exchange import (
    SHORTAGE_RETRY_AFTER,
    Answer,
    ChatRequest,
    GatewayError,
    Progress,
    invalid_request,
)
from .profile_models import ConnectedModels, WriterModel
from .request_options import (
    check_requirements,
    make_options,
    request_graders,
    request_settings,
)


class TraceLog:
    """Keeps the latest trace of a request, and passes it on to `store`. What was spent is known
    even if it is cancelled.

    `hold` is called with the size of each new text in bytes; it raises GatewayError if there is no
    memory for it.
    """

    def __init__(self) -> None:
        self.trace: Trace | None = None
        self.store: Store | None = None
        self.hold: Callable[[int], None] | None = None
        self._candidates = 0

    def append(self, trace: Trace) -> None:
        """Store the records of a trace that are not stored yet."""
        self.trace = trace
        if self.store:
            self.store.append(trace)
        new, self._candidates = trace.candidates[self._candidates :], len(trace.candidates)
        if new and self.hold:
            self.hold(
                sum(
                    utf8_size(candidate.text) + utf8_size(candidate.reasoning or "")
                    for candidate in new
                )
            )

    @property
    def usage(self) -> Usage:
        """The usage of all calls so far."""
        return self.trace.usage if self.trace else NO_USAGE


@dataclass(frozen=True)
class PreparedRequest:
    """A request that was checked and can be answered: its refinement has not begun."""

    request: ChatRequest
    profile: Profile
    refinement: Refinement
    log: TraceLog
    trace_id: str

    @property
    def max_calls(self) -> int:
        """The number of calls after which it ends, as far as that is known beforehand: without
        retries and repeated questions.
        """
        options = self.refinement.session.options
        if options.budget and options.budget.calls is not None:
            return int(options.budget.calls)
        if options.plan is unrefined_plan:
            return 1
        texts = max(options.drafts, options.width or 1) + options.max_iterations * (
            options.width or 1
        )
        return texts * (1 + len(self.grading_calls))

    @cached_property
    def grading_calls(self) -> tuple[tuple[ModelClient, int | None], ...]:
        """The client of each call that grades one text, and the most tokens of its answer; None
        without a limit.
        """
        trace, session = self.refinement.trace, self.refinement.session
        if session.options.plan is unrefined_plan:
            return ()
        panel, roles = session.resolve_panel(
            trace.task.requirements, has_tests=bool(trace.task.tests)
        )
        return tuple(
            (
                client,
                0 if caller.model_free else caller.max_tokens or client.max_tokens,
            )
            for member in panel
            for client, caller in grader_calls(
                roles.traits[member.name],
                trace.task,
                roles.judges.get(member.name),
                roles,
                first_for_task=True,
            )
            for _ in range(member.repeats)
            if client
        )

    @property
    def max_cost(self) -> float | None:
        """The cost in USD after which it ends; None without such a limit."""
        budget = self.refinement.session.options.budget
        return budget.usd if budget else None


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
        probe = ChatRequest(
            "chat", f"refine/{profile.name}", {}, ({"role": "user", "content": "?"},)
        )
        try:
            prepared = self.prepare(probe, "probe")
        except GatewayError as error:
            raise ConfigError(f"profiles.{profile.name}: {error.message}") from None
        if self.profile.refine != "none":
            self.default_judge_note = prepared.refinement.session.default_judge_note

    def prepare(self, request: ChatRequest, trace_id: str) -> PreparedRequest:
        """Return a checked request, whose time begins to run. Raises GatewayError 400 for what
        cannot be honoured.
        """
        refines, log = self.is_refined(request), TraceLog()
        if refines and is_begun(request.messages[-1]):
            message = (
                "messages must not end with the assistant's turn: a refined answer cannot "
                "continue it; a model pass/NAME may"
            )
            raise invalid_request("messages", message)
        settings = {**self._settings(request, refines=refines), "store": log}
        options = make_options(
            settings, None if request.schema is None else (request.schema or {"type": "object"})
        )
        drafts = max(options.drafts, options.width or 1)
        connected, judge = self.models.model(self.profile.model), self.profile.judge
        writer = WriterModel(connected, request.parameters, drafts)
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
            refinement = self._refinement(request, session)
        except ConfigError as error:
            raise GatewayError(
                400,
                "invalid_request",
                str(error),
                param=_parameter_of(str(error)),
                should_retry=False,
            ) from None
        return PreparedRequest(request, self.profile, refinement, log, trace_id)

    def is_refined(self, request: ChatRequest) -> bool:
        """Whether the text of an answer is refined."""
        return self.profile.refine != "none" and not is_side_request(
            request, self.profile.pass_through
        )

    def _settings(self, request: ChatRequest, *, refines: bool) -> dict[str, Any]:
        settings = request_settings(request, self.profile, self.limits.deadline)
        settings["prices"] = {**(settings.get("prices") or {}), **self._prices} or None
        if not refines:
            plan = settings_of(PlanSettings)  # which means nothing for an answer as it is
            kept = {name: value for name, value in settings.items() if name not in plan}
            return {**kept, "plan": unrefined_plan}
        if request.tools:
            every = settings.get("drafts", 1) if self.profile.refine == "all" else 1
            settings |= {"drafts": max(self.profile.candidates, every), "width": None}
        return settings

    def _refinement(self, request: ChatRequest, session: Session) -> Refinement:
        """Return the refinement of a request. Raises ConfigError."""
        requirements = check_requirements(request.options.requirements)
        task = Task(
            request.messages,
            tools=request.tools,
            tool_choice=request.tool_choice,
            requirements=requirements,
        )
        options = session.options
        refinement = make_refinement(task, session, options.deadline_at, model_searched=False)
        if not request.tools:
            return refinement
        next_steps = tool_turn_plan(refinement.next_steps, options.drafts)
        return replace(refinement, next_steps=next_steps)


def is_begun(message: Message) -> bool:
    """Whether a message is a text of the assistant, which the model would continue."""
    return message["role"] == "assistant" and not message.get("tool_calls")


def is_side_request(request: ChatRequest, texts: Sequence[str]) -> bool:
    """Whether one of the texts is in a message of the system, or is the whole last message of the
    user.

    Part of a user's message may be data, and so are results of tools: they switch nothing off.
    """
    if not texts:
        return False
    system = [message_text(m) for m in request.messages if m["role"] in SYSTEM_ROLES]
    last = next((m for m in reversed(request.messages) if m["role"] == "user"), None)
    whole = "" if last is None or has_other_parts(last) else message_text(last).strip()
    return any(
        text.strip() == whole or any(text in message for message in system) for text in texts
    )


def has_other_parts(message: Message) -> bool:
    """Whether a message has parts that are no text, such as images."""
    content = message["content"]
    return not isinstance(content, str) and any("text" not in part for part in content or ())


def forwarded_body(request: ChatRequest, model: ServedModel) -> dict[str, Any]:
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
        raise gateway_error(error, has_text=bool(trace.candidates)) from error
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


def answer_of(prepared: PreparedRequest, trace: Trace) -> Answer:
    """Return the answer in a finished trace. Raises RedraftError if there is none, GatewayError if
    it breaks the schema.

    An answer that could not be graded is returned without a score.
    """
    best = trace.best
    if best is None:
        prepared.refinement.result_or_raise(trace)
        raise ModelError("no answer could be obtained")
    finish_reason = "tool_calls" if best.tool_calls else "length" if best.truncated else "stop"
    if prepared.refinement.answer is not None and finish_reason == "stop":
        _check_schema(prepared.refinement, trace)
    notes = [trace.stop_note, best.note if best.role in {"generate", "refine"} else ""]
    return Answer(
        model=prepared.request.model,
        trace_id=prepared.trace_id,
        text=best.text,
        tool_calls=best.tool_calls,
        finish_reason=finish_reason,
        usage=own_usage(trace, best),
        total=trace.usage,
        score=trace.score,
        iterations=trace.iterations,
        stop=str(trace.outcome.reason) if trace.outcome else "",
        reason="; ".join(filter(None, notes)),
        broken=tuple(broken_musts(trace)),
    )


def own_usage(trace: Trace, candidate: Candidate) -> Usage:
    """Return the usage of the call that wrote a candidate, or the text that the editor repaired."""
    while (
        candidate.role == "repair" and candidate.parent is not None and candidate.usage == NO_USAGE
    ):
        candidate = trace.by_id[candidate.parent]
    return candidate.usage


def _check_schema(refinement: Refinement, trace: Trace) -> None:
    """Raise GatewayError unless the best answer follows the schema of the request."""
    form, best = refinement.answer, trace.best
    if form is None or best is None or parsed_answer(trace, form) is not None:
        return
    try:
        form.read(best.text)
    except ValueError as error:
        message = f"no answer follows the schema of the request: {error_text(error)[:500]}"
        raise GatewayError(502, "schema_not_met", message, should_retry=False) from None


# ---- errors


def gateway_error(error: RedraftError, *, has_text: bool = False) -> GatewayError:
    """Return what a client is told of an error. `has_text`: texts were paid for, and asking again
    would pay for them again.
    """
    cause = (
        error.__cause__
        if isinstance(error, GradingError) and isinstance(error.__cause__, ModelError)
        else error
    )
    wait = getattr(cause, "retry_after", None)
    if isinstance(cause, ShortageError):
        wait = SHORTAGE_RETRY_AFTER
    status, code, text = _status_of(cause)
    may_retry = status in {429, 503} and not has_text
    return GatewayError(
        status,
        code,
        f"{text}: {error}" if text else str(error),
        retry_after=wait,
        should_retry=None if may_retry else False,
    )


def _status_of(error: BaseException) -> tuple[int, str, str]:
    """Return the status, the code and the beginning of the message for an error."""
    for kind, applies, answer in _ANSWERS:
        if isinstance(error, kind) and applies(error):
            return answer
    match error:
        case ModelError(status=(400 | 413 | 422) as status):
            return status, "upstream_refused", "the model behind the gateway refused the request"
    return 502, "upstream_error", ""


def _always(_error: object) -> bool:
    return True


_ANSWERS: tuple[tuple[type[Exception], Callable[[Any], bool], tuple[int, str, str]], ...] = (
    (ConfigError, _always, (400, "invalid_request", "")),
    (
        AuthenticationError,
        is_out_of_credit,
        (
            502,
            "upstream_quota",
            "the account of the gateway at its model has no quota or credit left",
        ),
    ),
    (
        AuthenticationError,
        _always,
        (
            502,
            "upstream_authentication",
            "the model behind the gateway refused the gateway's own key",
        ),
    ),
    (ShortageError, _always, (503, "overloaded", "the gateway is busy")),
    (
        RateLimitError,
        _always,
        (429, "upstream_rate_limit", "the model behind the gateway receives too many requests"),
    ),
    (ContextLengthError, _always, (400, "context_length_exceeded", "")),
    (ContentFilterError, _always, (400, "content_filter", "")),
    (
        ModelTimeoutError,
        _always,
        (504, "upstream_timeout", "the model behind the gateway did not answer in time"),
    ),
    (
        ModelError,
        lambda error: 300 <= (error.status or 0) < 400,
        (
            502,
            "upstream_redirect",
            "the model behind the gateway redirects, which is not followed",
        ),
    ),
    (
        ModelUnavailableError,
        lambda error: error.status in {503, 529},
        (503, "upstream_overloaded", "the model behind the gateway is overloaded"),
    ),
    (
        ModelUnavailableError,
        lambda error: (error.status or 0) >= 500,
        (502, "upstream_error", "the model behind the gateway failed"),
    ),
    (
        ModelUnavailableError,
        _always,
        (502, "upstream_unavailable", "the model behind the gateway is not available"),
    ),
    (
        BudgetExhaustedError,
        lambda error: error.limit == "deadline",
        (504, "deadline_exceeded", ""),
    ),
    (
        BudgetExhaustedError,
        _always,
        (
            402,
            "budget_exhausted",
            "the budget of a request to this profile is used up before there is an answer",
        ),
    ),
)
"""What a client gets for an error: the first row with its class whose condition it meets."""


def _parameter_of(message: str) -> str | None:
    """Return the field of a request that a message about a setting begins with."""
    word = message.partition(":")[0].partition(" ")[0]
    return {"answer": "response_format", "task": "messages"}.get(
        word, word if word.isidentifier() else None
    )
