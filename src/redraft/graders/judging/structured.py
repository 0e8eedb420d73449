"""Asking a judge for JSON: a fresh context, a schema, strict parsing, and one re-ask with the exact complaint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

from ... import checks
from ...core.cancellation import run_in_thread_if_large
from ...core.records import Task
from ...errors import BadResponseError
from ...protocols import JudgeClient, Model, Reply, Request
from .json_reader import UnreadableOutput
from .prompt import ShownTexts, build_transcript, fresh_nonce, total_chars, truncate_texts, user_message, without_control_tokens

T = TypeVar("T")

SYSTEM = "You judge answers, strictly and fairly, by what you are told to judge by."
JSON_ONLY = "Answer with one JSON object only:"
RE_ASK_PROMPT = "Answer again, in the form asked for."
RE_ASK_OFFSET = 1_000_000  # added to the sample index, so that a cache keeps a re-ask apart from repeated votes


class JudgeConfig(Protocol):
    """The settings that all judges share."""

    @property
    def temperature(self) -> float | None: ...
    @property
    def max_tokens(self) -> int | None: ...
    @property
    def max_eval_chars(self) -> int: ...
    @property
    def images(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class JudgeRequest(Generic[T]):
    """A question to a judge about texts.

    `build_prompt` makes the prompt from the texts and a nonce, `parse_reply` the result from the reply (or raises
    UnreadableOutput). `extra_texts` are further texts in the prompt that the nonce must not occur in. `limits` holds the
    largest number of characters of a text, by its name; for the others `max_eval_chars` applies.
    """

    texts: Mapping[str, str]
    build_prompt: Callable[[Mapping[str, str], str], str]
    schema: Mapping[str, Any]
    parse_reply: Callable[[Reply], T]
    extra_texts: tuple[str, ...] = ()
    limits: Mapping[str, int] = field(default_factory=dict)


async def ask_judge(question: JudgeRequest[T], task: Task, config: JudgeConfig, ask: JudgeClient) -> tuple[T, ShownTexts]:
    """Ask a question in a fresh context. Return the answer and what was shown.

    Raises BadResponseError if the reply is unreadable twice.
    """
    size = total_chars(task, *question.texts.values())
    request, shown = await run_in_thread_if_large(size, _build_request, question, task, config)
    return await ask_for_json(ask, request, question.parse_reply), shown


def _build_request(question: JudgeRequest[T], task: Task, config: JudgeConfig) -> tuple[Request, ShownTexts]:
    shown = truncate_texts(question.texts, config.max_eval_chars, question.limits)
    nonce = fresh_nonce([*shown.texts.values(), *question.extra_texts])
    prompt = user_message(question.build_prompt(shown.texts, nonce), build_transcript(task).images, show=config.images)
    messages = ({"role": "system", "content": SYSTEM}, prompt)
    return Request(messages, config.temperature, config.max_tokens, schema=question.schema, nonce=nonce), shown


async def ask_for_json(ask: JudgeClient, request: Request, parse: Callable[[Reply], T]) -> T:
    """Return what `parse` makes of the reply. Raises BadResponseError if that is unreadable twice.

    A truncated reply is never parsed, however complete it looks: the request is repeated with twice the tokens.
    """
    reply = await ask.complete(request)
    try:
        return _parse_complete(reply, parse)
    except UnreadableOutput as complaint:
        reply = await ask.complete(_re_ask_request(request, reply, str(complaint)))
    try:
        return _parse_complete(reply, parse)
    except UnreadableOutput as complaint:
        raise BadResponseError(f"the judge's answer cannot be read: {complaint}") from complaint


def _parse_complete(reply: Reply, parse: Callable[[Reply], T]) -> T:
    if reply.truncated:
        raise UnreadableOutput("the answer was cut off at the token limit")
    return parse(reply)


def _re_ask_request(request: Request, reply: Reply, complaint: str) -> Request:
    sample_index = request.sample_index + RE_ASK_OFFSET
    if reply.truncated:
        return replace(request, max_tokens=request.max_tokens and 2 * request.max_tokens, sample_index=sample_index)
    answer = {"role": "assistant", "content": without_control_tokens(reply.text[:8000]) or "(nothing)"}
    again = {"role": "user", "content": f"That cannot be read: {without_control_tokens(complaint)}. {RE_ASK_PROMPT}"}
    return replace(request, messages=(*request.messages, answer, again), sample_index=sample_index)


def check_judge_config(name: str, config: Any) -> None:
    """Raise ConfigError for a bad name, limit or model."""
    checks.text("name", name)
    at = f"grader {name!r}:"
    checks.whole_number(f"{at} max_eval_chars", config.max_eval_chars, 1)
    checks.whole_number(f"{at} max_tokens", config.max_tokens, 1, optional=True)
    checks.number(f"{at} temperature", config.temperature, optional=True)
    checks.flag(f"{at} images", config.images)
    if not (config.model is None or isinstance(config.model, str | Model) or callable(config.model)):
        raise checks.invalid_argument(f"{at} model", "a name, a Model, a function of messages or None", config.model)


def object_schema(**properties: Any) -> dict[str, Any]:
    """Return the JSON schema of an object that has exactly these properties."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def text_schema(max_chars: int) -> dict[str, Any]:
    """Return the JSON schema of a text of at most `max_chars` characters."""
    return {"type": "string", "maxLength": max_chars}
