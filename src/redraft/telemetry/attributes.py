"""What is said of a call, a step, a grade and a refinement: names and values, by the conventions
for generative AI.

Pure: this module does not know OpenTelemetry. The names are those of the conventions at SCHEMA_URL,
the newest that are released as a package; what they have no name for begins with `redraft.`. The
conventions for generative AI go on apart from it; their version 0.1.0 calls the name of a workflow
`gen_ai.agent.name`, so both are recorded. Tokens are `gen_ai.usage.*` on the span of a call only,
and `redraft.usage.*` on the spans around it, so that a sum over all spans counts each token once. A
value that is unknown has no attribute.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from ..base.jsontext import replace_lone_surrogates
from ..loop.records import (
    Candidate,
    Comparison,
    Failure,
    Feedback,
    Record,
    StopReason,
    ToolCall,
)
from ..loop.steps import Compare, Generate, Grade, Refine, Repair, Step
from ..loop.task import Message
from ..loop.trace import PanelGrader, Trace
from ..plans.quality.result_facts import find_error
from ..protocols import Reply, Request
from ..usage import Usage

Attributes = dict[str, str | bool | int | float | list[str] | list[int]]

SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"
EVALUATION_EVENT = "gen_ai.evaluation.result"
DETAILS_EVENT = "gen_ai.client.inference.operation.details"
FAILED_ATTEMPT_EVENT = "redraft.attempt.failed"
ERROR_TYPE = "error.type"
HTTP_STATUS = "http.response.status_code"
MAX_CHARS = 1_000  # of a name
MAX_CONTENT = 65_536  # characters of a message, and of all messages of a call together
MAX_MESSAGES = 200
TOKEN_BUCKETS = tuple(4**n for n in range(14))  # to 67 million
SECONDS_BUCKETS = tuple(0.01 * 2**n for n in range(14))  # to 82
REQUEST_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)

PROVIDER_HOSTS = {
    "openai.com": "openai",
    "anthropic.com": "anthropic",
    "openai.azure.com": "azure.ai.openai",
    "services.ai.azure.com": "azure.ai.inference",
    "models.inference.ai.azure.com": "azure.ai.inference",
    "generativelanguage.googleapis.com": "gcp.gemini",
    "aiplatform.googleapis.com": "gcp.vertex_ai",
    "amazonaws.com": "aws.bedrock",
    "cohere.com": "cohere",
    "cohere.ai": "cohere",
    "deepseek.com": "deepseek",
    "groq.com": "groq",
    "mistral.ai": "mistral_ai",
    "moonshot.ai": "moonshot_ai",
    "perplexity.ai": "perplexity",
    "x.ai": "x_ai",
}
# of names such as "anthropic:claude-sonnet-4-5", for clients that tell no address
PROVIDER_PREFIXES = {
    "openai": "openai",
    "openai-chat": "openai",
    "openai-responses": "openai",
    "azure": "azure.ai.openai",
    "anthropic": "anthropic",
    "bedrock": "aws.bedrock",
    "cohere": "cohere",
    "deepseek": "deepseek",
    "gemini": "gcp.gemini",
    "google": "gcp.gen_ai",
    "google-gla": "gcp.gemini",
    "google-vertex": "gcp.vertex_ai",
    "groq": "groq",
    "mistral": "mistral_ai",
    "moonshotai": "moonshot_ai",
    "grok": "x_ai",
    "xai": "x_ai",
}
OTHER_PROVIDER = "custom"  # a function, or a client that says neither its address nor its provider


class CallTarget(NamedTuple):
    """The model of a call: its name, its provider by the conventions, and the host and port of its
    server, if it has one.
    """

    model: str
    provider: str
    host: str | None = None
    port: int | None = None
    operation: str = "chat"

    @property
    def span_name(self) -> str:
        """The operation and the model."""
        return f"{self.operation} {clean(self.model)}"

    @property
    def attributes(self) -> Attributes:
        """What every signal about the call says."""
        values = {
            "gen_ai.operation.name": self.operation,
            "gen_ai.provider.name": self.provider,
            "gen_ai.request.model": clean(self.model),
            "server.address": self.host,
            "server.port": self.port,
        }
        return without_unknown(values)


def call_target(
    model: str, base_url: object = None, protocol: str = "openai", operation: str = "chat"
) -> CallTarget:
    """Return the target of calls to a model, given its name and the base URL of its server.

    At an address that is no known provider's, the provider is the one whose protocol is spoken, as
    the conventions want it.
    """
    try:
        parts = urlsplit(str(base_url or ""))
        host, port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        host, port = None, 0
    if host:
        suffixes = (
            known_host
            for known_host in PROVIDER_HOSTS
            if host == known_host or host.endswith(f".{known_host}")
        )
        suffix = max(suffixes, key=len, default="")
        return CallTarget(model, PROVIDER_HOSTS.get(suffix, protocol), clean(host), port, operation)
    return CallTarget(
        model,
        PROVIDER_PREFIXES.get(model.partition(":")[0].lower(), OTHER_PROVIDER),
        operation=operation,
    )


def clean(text: Any, limit: int = MAX_CHARS) -> str:
    """Return a text that every exporter can write: at most `limit` characters, without lone
    surrogates.
    """
    cut = str(text)[:limit]
    return cut if cut.isascii() else cut.encode("utf-8", "replace").decode()


def _name(text: str | None) -> str | None:
    """Return a name that every exporter can write; None if there is none."""
    return clean(text) if text else None


def without_unknown(values: Mapping[str, Any]) -> Attributes:
    """Return the values without those that are unknown."""
    return {name: value for name, value in values.items() if value is not None}


# ---- calls


def request_attributes(target: CallTarget, request: Request) -> Attributes:
    """Return what is known of a call before it is made. Its `params` may be a client's: what is no
    such value is left out.
    """
    own = {name: getattr(request, name) for name in ("temperature", "max_tokens", "seed")}
    fields = {**(request.params or {}), **without_unknown(own)}
    values = {name: _parameter(fields, *where) for name, where in PARAMETERS.items()} | {
        "gen_ai.output.type": None
        if request.format == "text" and request.schema is None
        else "json",
        "redraft.call.is_judgement": not request.is_generation,
    }
    return target.attributes | without_unknown(values)


def _parameter(fields: Mapping[str, Any], kind: type[float], *names: str) -> float | None:
    """Return the first of these fields with a value of this type that exporters can write."""
    types = (float, int) if kind is float else (kind,)
    values = (fields[name] for name in names if name in fields)
    return next((kind(v) for v in values if type(v) in types and abs(v) < 2**63), None)


PARAMETERS: Mapping[str, tuple[Any, ...]] = {
    "gen_ai.request.temperature": (float, "temperature"),
    "gen_ai.request.top_p": (float, "top_p"),
    "gen_ai.request.top_k": (float, "top_k"),
    "gen_ai.request.frequency_penalty": (float, "frequency_penalty"),
    "gen_ai.request.presence_penalty": (float, "presence_penalty"),
    "gen_ai.request.max_tokens": (int, "max_tokens", "max_completion_tokens", "max_output_tokens"),
    "gen_ai.request.seed": (int, "seed"),
    "gen_ai.request.choice.count": (int, "n"),
    "gen_ai.request.stream": (bool, "stream"),
}  # their types, and what the protocols call them


def reply_attributes(reply: Reply) -> Attributes:
    """Return what a reply adds: which model answered, why it stopped, and the tokens of all
    attempts that it took.
    """
    reason = reply.finish_reason
    values = {
        "gen_ai.response.id": _name(reply.response_id),
        "gen_ai.response.model": _name(reply.response_model),
        "gen_ai.response.finish_reasons": [clean(reason)] if reason else None,
        "gen_ai.usage.cache_read.input_tokens": reply.cached_tokens or None,
        "gen_ai.usage.cache_creation.input_tokens": reply.cache_written_tokens or None,
        "gen_ai.usage.reasoning.output_tokens": reply.reasoning_tokens or None,
    }
    return without_unknown(values) | token_attributes(reply.usage)


def token_attributes(usage: Usage) -> Attributes:
    """Return the tokens of one call, and its cost in USD."""
    values = {
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "redraft.usage.cost": usage.cost,
        "redraft.usage.retried_calls": usage.retried_calls or None,
    }
    return without_unknown(values)


def usage_attributes(usage: Usage) -> Attributes:
    """Return what the calls of a step, or of a refinement, took; nothing if there were none."""
    if not usage.calls and not usage.cached_calls:
        return {}
    values = {
        "redraft.usage.calls": usage.calls,
        "redraft.usage.cached_calls": usage.cached_calls or None,
        "redraft.usage.retried_calls": usage.retried_calls or None,
        "redraft.usage.input_tokens": usage.input_tokens,
        "redraft.usage.output_tokens": usage.output_tokens,
        "redraft.usage.cost": usage.cost,
    }
    return without_unknown(values)


# ---- steps and grades


def step_name(step: Step) -> str:
    """Return the name of a step's span: "generate", or "grade judge"."""
    return f"{step.role} {clean(step.grader)}" if isinstance(step, Grade | Compare) else step.role


def step_attributes(step: Step, fingerprint: str | None) -> Attributes:
    """Return what is known of a step before it is performed; `fingerprint` is its
    grader's.
    """
    values: dict[str, Any] = {"redraft.step": step.role}
    match step:
        case Generate() | Refine() | Repair():
            values["redraft.candidate.id"] = step.id
        case Grade() | Compare():
            values |= {
                "redraft.grader.name": clean(step.grader),
                "redraft.grader.fingerprint": fingerprint,
                "redraft.grade.repeat": step.repeat,
            }
    match step:
        case Refine():
            values["redraft.candidate.parent"] = step.parent
        case Repair():
            values["redraft.candidate.parent"] = step.parent.id
        case Grade():
            values["redraft.candidate.id"] = step.candidate.id
    return without_unknown(values)


def record_attributes(record: Record) -> Attributes:
    """Return what the record of a step adds."""
    values: dict[str, Any] = dict(usage_attributes(record.usage))
    if isinstance(record, Candidate):
        values |= {
            "redraft.candidate.truncated": record.truncated or None,
            "redraft.candidate.tool_calls": len(record.tool_calls) or None,
        }
    elif isinstance(record, Feedback):
        values["gen_ai.evaluation.score.value"] = record.score
    elif isinstance(record, Comparison):
        values["redraft.comparison.ranking"] = list(record.ranking)
    elif isinstance(record, Failure):
        values[ERROR_TYPE] = clean(record.error)
    return without_unknown(values)


def evaluation_attributes(
    step: Grade, record: Record, panel_grader: PanelGrader | None, fingerprint: str | None
) -> Attributes:
    """Return the evaluation event of a grade, without its explanation.

    The label is "pass" or "fail" for a `must`, and for a grader that scores 0 or 1; other scores
    have none.
    """
    values: dict[str, Any] = {
        "gen_ai.evaluation.name": clean(step.grader),
        "redraft.candidate.id": step.candidate.id,
        "redraft.grade.repeat": step.repeat,
        "redraft.grader.fingerprint": fingerprint,
        "redraft.grader.must": panel_grader.must if panel_grader else None,
    }
    if isinstance(record, Feedback):
        values |= {
            "gen_ai.evaluation.score.value": record.score,
            "gen_ai.evaluation.score.label": grade_label(record, panel_grader),
            "redraft.grader.model": _name(record.by),
        }
    elif isinstance(record, Failure):
        values[ERROR_TYPE] = clean(record.error)
    return without_unknown(values)


def grade_label(feedback: Feedback, panel_grader: PanelGrader | None) -> str | None:
    """Return "pass" or "fail" for a score that means no more than that."""
    is_binary = panel_grader is not None and (panel_grader.must or panel_grader.score_step == 1)
    if feedback.score is None or not is_binary:
        return None
    return "pass" if feedback.score == 1 else "fail"


# ---- refinements


def workflow_attributes(name: str) -> Attributes:
    """Return what names a loop that code decides, not a model."""
    return {
        "gen_ai.operation.name": "invoke_workflow",
        "gen_ai.workflow.name": name,
        "gen_ai.agent.name": name,
    }


def refinement_attributes(
    trace: Trace, writer: str | None, run: str | None = None, row: str | None = None
) -> Attributes:
    """Return what is known of a refinement when it starts; `run` and `row` name the row of a
    batch.
    """
    values = {
        **workflow_attributes("refine"),
        "gen_ai.request.model": _name(writer),
        "redraft.resumed_records": len(trace.records) or None,
        "redraft.run.name": _name(run),
        "redraft.row.id": _name(row),
    }
    return without_unknown(values)


def outcome_attributes(trace: Trace) -> Attributes:
    """Return how a refinement ended."""
    outcome, best = trace.outcome, trace.best
    values = {
        "redraft.stop": str(outcome.reason) if outcome else None,
        "redraft.score": trace.score,
        "redraft.iterations": trace.iterations,
        "redraft.candidates": len(trace.candidates),
        "redraft.best": best.id if best else None,
    }
    return without_unknown(values) | usage_attributes(trace.usage)


def outcome_error(trace: Trace) -> str | None:
    """Return the kind of error that a refinement ended with; None if it ended as its plan wanted,
    or at a limit.
    """
    reason = trace.outcome.reason if trace.outcome else None
    if reason is StopReason.FAILED and (failure := find_error(trace)):
        return failure.error
    return "CancelledError" if reason is StopReason.CANCELLED else None


# ---- requests to a server


HTTP_METHODS = frozenset(
    {"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "QUERY"}
)


def http_attributes(method: str, path: str, scheme: str, *, is_route: bool) -> Attributes:
    """Return what is known of a request to a server before it is answered."""
    values = {
        "http.request.method": method if method in HTTP_METHODS else "_OTHER",
        "url.scheme": scheme,
        "url.path": clean(path, 200),
        "http.route": path if is_route else None,
    }
    return without_unknown(values)


# ---- what OpenInference calls it

OPENINFERENCE_KINDS = {
    "chat": "LLM",
    "text_completion": "LLM",
    "embeddings": "EMBEDDING",
    "rerank": "RERANKER",
    "tei_rerank": "RERANKER",
    "grade": "EVALUATOR",
    "compare": "EVALUATOR",
}  # of a call by its operation, and of a step; all else is a CHAIN


def openinference_kind(attributes: Mapping[str, Any]) -> str:
    """Return the kind of a span with these attributes."""
    work = attributes.get("redraft.step") or attributes.get("gen_ai.operation.name")
    return OPENINFERENCE_KINDS.get(str(work), "CHAIN")


def step_content(step: Step, record: Record) -> tuple[Any, Any]:
    """Return what a step was about and what came of it: texts, or what becomes JSON; None for what
    there is not.
    """
    about: Any = None
    match step:
        case Repair(parent=candidate) | Grade(candidate=candidate):
            about = candidate.text
        case Generate() | Refine():
            about = message_data(step.messages) or None
    match record:
        case Candidate():
            return about, record.text
        case Feedback() | Comparison():
            return about, {"score": getattr(record, "score", None), "reason": record.reason}
    return about, None


# ---- content


def message_data(messages: Iterable[Message], limit: int = MAX_CONTENT) -> list[dict[str, Any]]:
    """Return chat messages in the form of the conventions, cut to `limit` characters in all. Images
    are named, not copied.
    """
    shown: list[dict[str, Any]] = []
    for message in messages:
        if limit <= 0 or len(shown) >= MAX_MESSAGES:
            break
        parts = [
            *_content_parts(message.get("content"), limit),
            *_call_parts(message.get("tool_calls"), limit),
        ]
        if message.get("role") == "tool":
            parts = [
                {
                    "type": "tool_call_response",
                    "id": clean(message.get("tool_call_id", "")),
                    "response": p,
                }
                for p in parts[:1]
            ]
        shown.append({"role": clean(message["role"]), "parts": parts})
        limit -= len(json.dumps(parts, default=str))
    return shown


def _content_parts(content: Any, limit: int) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "content": clean(content, limit)}]
    parts = (
        [part for part in content if isinstance(part, Mapping)]
        if isinstance(content, list | tuple)
        else []
    )
    return [
        {"type": "text", "content": clean(part["text"], limit)}
        if "text" in part
        else {"type": clean(part.get("type", "other"), 40)}
        for part in parts[:MAX_MESSAGES]
    ]


def _call_parts(calls: Any, limit: int) -> list[dict[str, Any]]:
    functions = [
        (call.get("id", ""), call["function"])
        for call in (calls if isinstance(calls, list | tuple) else ())
        if isinstance(call, Mapping) and isinstance(call.get("function"), Mapping)
    ]
    return [
        {
            "type": "tool_call",
            "id": clean(id),
            "name": clean(function.get("name", "")),
            "arguments": clean(function.get("arguments"), limit),
        }
        for id, function in functions[:MAX_MESSAGES]
    ]


def answer_data(
    text: str, tool_calls: Iterable[ToolCall] = (), finish_reason: str | None = None
) -> list[dict[str, Any]]:
    """Return an answer in the form of the conventions."""
    message = {
        "role": "assistant",
        "content": text or None,
        "tool_calls": [call.as_message_part() for call in tool_calls],
    }
    return [
        {**each, "finish_reason": clean(finish_reason or "unknown")}
        for each in message_data([message])
    ]


def as_json(value: Any) -> str:
    """Return content as the JSON text that the attribute of a span holds."""
    return json.dumps(replace_lone_surrogates(value))
