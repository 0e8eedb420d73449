"""The answer that a client gets of a refinement.

A turn that calls tools, and a text that was not changed since, is what the model wrote, part by
part: thinking keeps its signature, and what only the protocol of the model has goes back to a
client that speaks it.
"""

from __future__ import annotations

from dataclasses import replace

from ..base.error_text import error_text
from ..errors import ModelError
from ..loop.records import Candidate
from ..loop.trace import Trace
from ..result import parsed_answer
from ..session.refinement import Refinement
from ..usage import NO_USAGE
from .exchange import Answer, GatewayError
from .neutral import Call, FinishReason, Part, Reply, Request, Text, Thinking, Tokens
from .outcome import outcome_of
from .prepared_requests import PreparedRequest
from .profile_models import WriterModel


def answer_of(prepared: PreparedRequest, trace: Trace) -> Answer:
    """Return the answer in a finished trace. Raises RedraftError if there is none, GatewayError if
    it breaks the schema.

    An answer that could not be graded is returned without a score.
    """
    best = trace.best
    if best is None:
        prepared.refinement.result_or_raise(trace)
        raise ModelError("no answer could be obtained")
    if not (best.tool_calls or best.truncated):
        _check_schema(prepared.refinement, trace)
    return _answer(prepared, trace, _reply_of(prepared, trace, best))


def refusal_of(prepared: PreparedRequest, trace: Trace, refusal: Reply) -> Answer:
    """Return the answer to a request that the model refused: its reply as it gave it, with its
    texts as one refusal.
    """
    texts = [part for part in refusal.parts if isinstance(part, Text)]
    said = "".join(part.text for part in texts if not part.is_refusal)
    why = "".join(part.text for part in texts if part.is_refusal)
    others = (part for part in refusal.parts if not isinstance(part, Text))
    parts = (*others, Text("\n\n".join(filter(None, (said, why))), is_refusal=True))
    id, model = prepared.trace_id, prepared.request.model
    return _answer(prepared, trace, replace(refusal, id=id, model=model, parts=parts))


def _answer(prepared: PreparedRequest, trace: Trace, reply: Reply) -> Answer:
    return Answer(reply, outcome_of(trace, prepared.trace_id, prepared.hosts), trace.usage)


def _reply_of(prepared: PreparedRequest, trace: Trace, best: Candidate) -> Reply:
    """Return the reply with the best candidate."""
    request, writer, written = prepared.request, prepared.writer, own_candidate(trace, best)
    usage, parts, stop_sequence = written.usage, _parts_of(best, writer), None
    tokens = Tokens(usage.input_tokens, usage.output_tokens)
    if own := writer.replies.get(written.id):
        tokens = own.tokens
        if _is_as_written(best, own, writer):
            parts, stop_sequence = own.parts, own.stop_sequence
        else:
            parts = (*(part for part in own.parts if isinstance(part, Thinking)), *parts)
    if not (best.tool_calls or _shows_thinking(request)):
        parts = tuple(part for part in parts if not isinstance(part, Thinking))
    id, finish = prepared.trace_id, _finish_of(best)
    return Reply(id, request.model, parts, finish, tokens, stop_sequence)


def _finish_of(best: Candidate) -> FinishReason:
    if best.tool_calls:
        return "tool_calls"
    return "length" if best.truncated else "stop"


def _parts_of(best: Candidate, writer: WriterModel) -> tuple[Part, ...]:
    text = best.text.removeprefix(writer.prefill)
    calls = (Call(call.id, call.name, call.arguments) for call in best.tool_calls)
    return (*((Text(text),) if text else ()), *calls)


def _is_as_written(best: Candidate, own: Reply, writer: WriterModel) -> bool:
    """Whether a candidate is still what the model wrote: nothing was repaired, extracted or left
    out.
    """
    if best.tool_calls or own.calls:
        return bool(best.tool_calls)
    return best.text.removeprefix(writer.prefill) == own.text


def _shows_thinking(request: Request) -> bool:
    """Whether thinking goes with a text: in responses it is an item of its own, in messages a block
    that the client asked for.
    """
    asked = request.thinking
    is_asked = asked is not None and asked.mode != "disabled" and asked.is_shown
    return is_asked or request.protocol == "responses"


def own_candidate(trace: Trace, candidate: Candidate) -> Candidate:
    """Return the candidate that a call wrote: itself, or the one that the editor repaired."""
    while (
        candidate.role == "repair" and candidate.parent is not None and candidate.usage == NO_USAGE
    ):
        candidate = trace.by_id[candidate.parent]
    return candidate


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
