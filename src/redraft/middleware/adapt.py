"""Make requests in the form that a model accepts: the order of roles, system text, images,
parameters, the response format.

What an endpoint does not accept is learned from its refusals. A refused request is made again in
another form; if that helps, the session remembers the form, and the logger "redraft" reports it
once. Neighbouring messages of one role are always merged, because many chat templates refuse them.
If there is no other form, the error names what was refused.

`EndpointCapabilities` is what a session has learned: a `ModelCapabilities` for each model at its
endpoint (`Model.identity`). It is plain data, so that a batch can keep it in its journal and start
with it when it is resumed.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import islice
from typing import Any, Literal, TypeAlias

from ..base.jsontext import dumps
from ..base.log import log
from ..errors import ModelError
from ..protocols import FORMATS, Call, Format, Reply, Request
from ..usage import NO_USAGE, Usage
from .cache import cache_key
from .endpoint_errors import (
    MALFORMED_STATUSES,
    RequestPart,
    is_bad_answer,
    is_fatal,
    is_refusal,
    refused_parameter,
    refused_part,
    refuses_max_tokens,
    rejects_images,
)
from .messages import (
    Messages,
    fold_later_system,
    fold_system,
    has_images,
    merge_adjacent,
    start_with_user,
    without_images,
)

MIN_FAILURES = 3  # requests that must fail in a format that no refusal names, before it is given up
REPROBE_INTERVAL = 256  # requests after which a format that was given up is tried again
# schemas, and requests for each, that are remembered: there may be a schema for every row
MAX_SCHEMAS = 64

FormatVerdict: TypeAlias = Literal["refused", "doubtful", "ignored"]


# ---- what is known of a model


@dataclass
class FormatRecord:
    """What is known of one response format.

    Attributes:
        works: An answer in this format has been received.
        refused_schemas: Schemas that were refused by an error that names the format.
        fallback_requests: By schema, requests that were answered only in a less strict format. A
            success clears both for its schema; the oldest schemas are dropped after MAX_SCHEMAS.
    """

    works: bool = False
    refused_schemas: dict[str, None] = field(default_factory=dict)
    fallback_requests: dict[str, set[str]] = field(default_factory=dict)

    @property
    def has_failures(self) -> bool:
        """Whether a request has failed in this format."""
        return bool(self.refused_schemas or self.fallback_requests)

    def is_usable(self, schema: str) -> bool:
        """Whether to use this format for a schema. A format that has never worked is given up for
        all schemas.
        """
        if (
            schema in self.refused_schemas
            or len(self.fallback_requests.get(schema, ())) >= MIN_FAILURES
        ):
            return False
        return (
            self.works
            or len(self.refused_schemas) + sum(map(len, self.fallback_requests.values()))
            < MIN_FAILURES
        )

    def add_refusal(self, schema: str) -> None:
        """Record that a schema was refused."""
        self.refused_schemas[schema] = None
        _trim(self.refused_schemas)

    def add_fallbacks(self, schema: str, requests: Iterable[str]) -> None:
        """Record requests that were answered only in a less strict format."""
        known = self.fallback_requests.setdefault(schema, set())
        known.update(islice(requests, MAX_SCHEMAS - len(known)))
        _trim(self.fallback_requests)

    def clear(self, schema: str) -> bool:
        """Forget the failures of a schema. Return whether there were any."""
        had_failures = schema in self.refused_schemas or schema in self.fallback_requests
        self.refused_schemas.pop(schema, None)
        self.fallback_requests.pop(schema, None)
        return had_failures


class ModelCapabilities:
    """What one model is known to accept. `adaptations` are the keys in ADAPTATIONS of those that
    its requests need; `name` is used in the log.
    """

    def __init__(self, identity: str, on_change: Callable[[], object]) -> None:
        self.name = ""
        self.adaptations: list[str] = []
        self.formats: dict[Format, FormatRecord] = {}
        self._identity = identity
        self._on_change = on_change
        self._skip_count = 0
        self._unexplained_errors: Counter[str] = Counter()

    def add_adaptation(self, key: str) -> None:
        """Record and log that requests need an adaptation."""
        if key not in self.adaptations:
            self.adaptations.append(key)
            adaptation = ADAPTATIONS[key]
            log.log(
                logging.INFO if adaptation.lossless else logging.WARNING,
                "model %s %s",
                self.name,
                adaptation.log_message,
            )
            self._on_change()

    def formats_for(self, request: Request, formats: Sequence[Format]) -> Sequence[Format]:
        """Return the formats to try, strictest first; every REPROBE_INTERVAL requests, all of
        them.
        """
        if not any(record.has_failures for record in self.formats.values()):
            return formats
        schema = schema_key(request)
        usable: list[Format] = [
            format for format in formats[:-1] if self._record(format).is_usable(schema)
        ]
        if len(usable) < len(formats) - 1:
            self._skip_count += 1
            if self._skip_count % REPROBE_INTERVAL == 0:
                return formats
        return [*usable, formats[-1]]

    def is_proven(self, format: Format) -> bool:
        """Whether an answer in this format has been received."""
        return self._record(format).works

    def record_success(self, request: Request) -> None:
        """Record that the request was answered in its format."""
        record = self._record(request.format)
        self._unexplained_errors.clear()
        if record.works and not record.has_failures:
            return
        is_new, record.works = not record.works, True
        if record.clear(schema_key(request)) or is_new:
            self._on_change()

    def record_fallback(self, format: Format, request: Request, *, is_refused: bool) -> None:
        """Record that the request was answered only in a less strict format: because an error named
        this one (`is_refused`), so that it is not used with this schema again, or for an unknown
        reason.
        """
        schema, record = schema_key(request), self._record(format)
        was_usable = record.is_usable(schema)
        if is_refused:
            record.add_refusal(schema)
        else:
            record.add_fallbacks(schema, [self._key(request)])
        if was_usable and not record.is_usable(schema):
            log.warning(
                "model %s does not accept the response format %s; a less strict one is used",
                self.name,
                format,
            )
        self._on_change()

    def record_unexplained_error(self, request: Request) -> None:
        """Record that the request failed with an error of the server that names nothing. It counts
        in a format that has never worked.
        """
        if request.format != "text" and not self.is_proven(request.format):
            self._unexplained_errors[self._key(request)] += 1

    def should_compare_formats(self, request: Request) -> bool:
        """Whether the request has failed MIN_FAILURES times, so that formats are to be compared.
        True once per request.
        """
        errors = self._unexplained_errors
        if not errors or errors[key := self._key(request)] < MIN_FAILURES:
            return False
        del errors[key]
        return True

    def _record(self, format: Format) -> FormatRecord:
        if format not in self.formats:
            self.formats[format] = FormatRecord()
        return self.formats[format]

    def _key(self, request: Request) -> str:
        return cache_key(self._identity, request.with_format("text"))[:16]

    def as_data(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        formats = {
            format: {
                "works": record.works,
                "refused_schemas": list(record.refused_schemas),
                "fallback_requests": {
                    schema: sorted(keys) for schema, keys in record.fallback_requests.items()
                },
            }
            for format, record in self.formats.items()
        }
        return {"adaptations": self.adaptations, "formats": formats}

    def restore(self, data: Mapping[str, Any]) -> None:
        """Add what `as_data` returned earlier."""
        self.adaptations += [name for name in data["adaptations"] if name not in self.adaptations]
        for format, known in data["formats"].items():
            record = self._record(format)
            record.works |= known["works"]
            for schema in known["refused_schemas"]:
                record.add_refusal(schema)
            for schema, keys in known["fallback_requests"].items():
                record.add_fallbacks(schema, keys)


class EndpointCapabilities:
    """The capabilities of all models of a session. `on_change` is called when something is
    learned.
    """

    def __init__(self) -> None:
        self.on_change: Callable[[], object] | None = None
        self._models: dict[str, ModelCapabilities] = {}

    def for_model(self, identity: str, name: str = "") -> ModelCapabilities:
        """Return the capabilities of the model with this identity. `name` is used in the log."""
        # an identity may contain an address that is private
        known = self._model(sha256(identity.encode()).hexdigest()[:16])
        known.name = known.name or name
        return known

    def _model(self, key: str) -> ModelCapabilities:
        return self._models.setdefault(key, ModelCapabilities(key, self._notify_change))

    def as_data(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        return {key: known.as_data() for key, known in self._models.items()}

    def restore(self, data: Mapping[str, Any]) -> None:
        """Add what `as_data` returned earlier."""
        for key, known in data.items():
            self._model(key).restore(known)

    def _notify_change(self) -> None:
        if self.on_change:
            self.on_change()


def _trim(mapping: dict[str, Any]) -> None:
    while len(mapping) > MAX_SCHEMAS:
        del mapping[next(iter(mapping))]


def schema_key(request: Request) -> str:
    """Return a short hash of the request's schema."""
    return sha256(dumps(request.schema, sort_keys=True)).hexdigest()[:16]


# ---- adaptations


@dataclass(frozen=True, slots=True)
class Adaptation:
    """Another form of a request, and the words for the log. `lossless`: nothing of the request is
    lost.
    """

    apply: Callable[[Request], Request]
    log_message: str
    lossless: bool = False


def _message_adaptation(
    change: Callable[[Messages], Messages], log_message: str, *, lossless: bool = False
) -> Adaptation:
    return Adaptation(
        lambda request: replace(request, messages=change(request.messages)), log_message, lossless
    )


def _parameter_adaptation(
    parameter: str, log_message: str, *, lossless: bool = False
) -> Adaptation:
    return Adaptation(
        lambda request: replace(
            request, unsupported_parameters=request.unsupported_parameters | {parameter}
        ),
        log_message,
        lossless,
    )


ADAPTATIONS: dict[str, Adaptation] = {
    "later_system": _message_adaptation(
        fold_later_system,
        "accepts a system message only at the beginning; later ones go into user messages",
        lossless=True,
    ),
    "opening_turn": _message_adaptation(
        start_with_user,
        "accepts no conversation that an assistant begins; a user message is put before it",
        lossless=True,
    ),
    "system": _message_adaptation(
        fold_system,
        "accepts no system role; its text goes into the first user message",
        lossless=True,
    ),
    "images": _message_adaptation(
        without_images, "accepts no images; judges are told that they do not see them"
    ),
    "max_tokens": _parameter_adaptation(
        "max_tokens",
        "accepts no max_tokens; the limit is sent as max_completion_tokens",
        lossless=True,
    ),
    "max_completion_tokens": _parameter_adaptation(
        "max_completion_tokens", "accepts no limit on the tokens of an answer; none is sent"
    ),
    "temperature": _parameter_adaptation(
        "temperature", "accepts no temperature; its default is used"
    ),
    "seed": _parameter_adaptation("seed", "accepts no seed; none is sent"),
    "logprobs": _parameter_adaptation(
        "logprobs", "gives no log-probabilities; judges take scores as they are written"
    ),
    "stream_options": _parameter_adaptation(
        "stream_options",
        "accepts no stream_options; the usage of streams is unknown",
        lossless=True,
    ),
    "enable_thinking": Adaptation(
        lambda request: replace(
            request, params={"enable_thinking": False, **(request.params or {})}
        ),
        "thinks only in streams; enable_thinking=false is sent",
    ),
}
CANDIDATE_ADAPTATIONS: dict[RequestPart, tuple[str, ...]] = {
    "turns": ("later_system", "opening_turn", "system"),
    "format": (),
    "tools": (),
}
"""The adaptations to try, in order, for a part that was refused; a part that is not listed has the
adaptation of its name.
"""
NOT_ADAPTABLE: dict[RequestPart, str] = {
    "images": "the model accepts no images, and the request needs them",
    "tools": (
        "the endpoint refuses the tools or tool calls of this request, which cannot be left out"
    ),
    "turns": "the model does not accept messages in this order",
    "system": "the model accepts no system role",
}


def adapt(call: Call, capabilities: ModelCapabilities, formats: Sequence[Format] = FORMATS) -> Call:
    """Make requests in the form that a model accepts, and learn from refusals.

    `capabilities` is what is known of the model, `formats` are the response formats to try,
    strictest first. The usage of a reply or an error includes the requests that were
    refused before.
    """
    call = fall_back_formats(call, capabilities, formats)

    async def call_adapted(request: Request) -> Reply:
        request = _with_known_adaptations(request, capabilities)
        spent = NO_USAGE
        applied: list[tuple[str, ModelError]] = []
        while True:
            try:
                reply = await call(request)
            except ModelError as error:
                spent += error.usage
                key = _next_adaptation(request, error)
                if key is None:
                    error.usage = spent.as_single_answer()
                    _explain(error, request)
                    raise
                request = ADAPTATIONS[key].apply(request)
                applied.append((key, error))
            else:
                for key, refusal in applied:
                    # else the endpoint may accept other images
                    if key != "images" or rejects_images(refusal):
                        capabilities.add_adaptation(key)
                return reply.after(spent)

    return call_adapted


def _explain(error: ModelError, request: Request) -> None:
    """Add to an error what was refused: a part for which there is no other form, or a parameter
    that the user gives.
    """
    part = refused_part(error, request)
    if part in NOT_ADAPTABLE and (part != "images" or rejects_images(error)):
        error.args = (f"{error} ({NOT_ADAPTABLE[part]})",)
        error.retryable = False
    elif name := refused_parameter(error, request):
        given = (
            "by `model_params`"
            if request.is_generation
            else "by `judge_params`, or with the grader"
        )
        error.args = (
            f"{error} ({name!r} is a parameter that is given {given}, or declared for the model)",
        )


def _with_known_adaptations(request: Request, capabilities: ModelCapabilities) -> Request:
    merged = merge_adjacent(request.messages)
    if merged is not request.messages:
        request = replace(request, messages=merged)
    for key in capabilities.adaptations:
        if key != "images" or request.is_judgement:
            request = ADAPTATIONS[key].apply(request)
    return request


def _next_adaptation(request: Request, error: ModelError) -> str | None:
    """Return the adaptation that may help; None if there is none, or the error is no refusal.

    Images are left out for judges only: a text that is written without seeing them would be wrong.
    """
    part = refused_part(error, request)
    is_malformed = error.status in MALFORMED_STATUSES and is_refusal(error)
    if part is None and is_malformed and has_images(request.messages):
        part = "images"
    if part is None or (part == "images" and not request.is_judgement):
        return None
    keys = CANDIDATE_ADAPTATIONS.get(part, (part,))
    return next((key for key in keys if ADAPTATIONS[key].apply(request) != request), None)


# ---- response formats


def fall_back_formats(
    call: Call, capabilities: ModelCapabilities, formats: Sequence[Format] = FORMATS
) -> Call:
    """For a request with a schema, try the next format if one is refused, and plain text if the
    answer is prose.

    A refusal that names the format counts for all later requests with its schema. Any other sign
    that the format is the cause counts for its own request, until MIN_FAILURES requests have shown
    it. Server errors that may pass are left to `retry`.
    """

    async def call_in_formats(request: Request) -> Reply:
        if not request.schema:
            return await call(request)
        if capabilities.should_compare_formats(request):
            return await _compare_formats(call, request, capabilities, formats)
        remaining = list(capabilities.formats_for(request, formats))
        spent, first_unnamed = NO_USAGE, None
        verdicts: dict[Format, FormatVerdict] = {}
        while True:
            attempt = request.with_format(remaining.pop(0))
            try:
                reply = await call(attempt)
            except ModelError as error:
                spent += error.usage
                verdict = _format_verdict(error, attempt, capabilities)
                if verdict is None or not remaining:
                    final = first_unnamed if first_unnamed and verdict else error
                    final.usage = spent.as_single_answer()
                    try:
                        raise final from final.__cause__
                    finally:
                        del final, first_unnamed  # which keep this frame
                first_unnamed = first_unnamed or (error if verdict == "doubtful" else None)
                verdicts[attempt.format] = verdict
            else:
                if not remaining or reply.truncated or _may_hold_object(reply):
                    _record_formats(attempt, reply, verdicts, capabilities)
                    return reply.after(spent)
                spent += _without_answer(reply.usage)
                verdicts[attempt.format] = "ignored"
                del remaining[:-1]

    return call_in_formats if len(formats) > 1 else call


def _format_verdict(
    error: ModelError, request: Request, capabilities: ModelCapabilities
) -> FormatVerdict | None:
    """Return what an error says about the request's format; None if something else caused it."""
    part = refused_part(error, request)
    if part == "format":
        is_doubtful = error.status in {500, 501} and capabilities.is_proven(request.format)
        return "doubtful" if is_doubtful else "refused"
    if part is not None or is_fatal(error) or refuses_max_tokens(error):
        return None
    return _unnamed_verdict(error, request, capabilities) if is_refusal(error) else None


def _unnamed_verdict(
    error: ModelError, request: Request, capabilities: ModelCapabilities
) -> FormatVerdict | None:
    """Return what a refusal that names nothing says about the request's format."""
    if is_bad_answer(error) or error.status in MALFORMED_STATUSES:
        return "doubtful"
    if error.status == 500:
        capabilities.record_unexplained_error(request)
    return None


async def _compare_formats(
    call: Call, request: Request, capabilities: ModelCapabilities, formats: Sequence[Format]
) -> Reply:
    """Find out whether the format makes a server fail: it does if plain text is answered and the
    format fails once more.
    """
    plain = await call(request)
    strict = request.with_format(formats[0])
    try:
        reply = await call(strict)
    except ModelError as error:
        if error.status == 500 and _may_hold_object(plain):
            for format in formats[:-1]:
                capabilities.record_fallback(format, request, is_refused=False)
        return plain.after(error.usage)
    _record_formats(strict, reply, {}, capabilities)
    return reply.after(_without_answer(plain.usage))


def _record_formats(
    request: Request,
    reply: Reply,
    verdicts: dict[Format, FormatVerdict],
    capabilities: ModelCapabilities,
) -> None:
    """Record what a reply shows about its own format and about those that failed before it."""
    if request.format != "text" and _may_hold_object(reply):
        capabilities.record_success(request)
    for format, verdict in verdicts.items():
        is_ignored = verdict == "ignored"
        if not is_ignored or (_may_hold_object(reply) and not capabilities.is_proven(format)):
            capabilities.record_fallback(format, request, is_refused=verdict == "refused")


def _may_hold_object(reply: Reply) -> bool:
    """Whether a reply may contain a JSON object; if not, it is prose."""
    return "{" in reply.text


def _without_answer(usage: Usage) -> Usage:
    """Return the usage of a reply that is not the one returned in the end."""
    return replace(usage, answer_tokens=0, answer_cost=0.0)
