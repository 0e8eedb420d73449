"""Structured output of judges: ask for one JSON object, read it, and ask once more with the exact
complaint.

What can mean one thing only is read: a key in another case or in Markdown, a whole number in quotes
or with `.0`, and every instance of the schema that was sent. Nothing is guessed: numbers are never
extracted from prose, and a score has no default. Judge output is hostile input: size and depth are
bounded, and everything is parsed in time linear in its length.

Text that is not clean JSON is repaired in form only (see `redraft.base.json_repair`), where that is
certain.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

from ...base import checks
from ...base.json_repair import MAX_DEPTH, TOO_DEEP, JsonRepair, double_backslashes
from ...base.jsontext import nesting_depth, reject_constant, reject_duplicate_keys
from ...base.parameters import check_parameters
from ...base.threads import run_in_thread, run_in_thread_if_large
from ...errors import BadResponseError, ModelError
from ...loop.task import Task
from ...middleware.endpoint_errors import refuses_max_tokens, stated_max_tokens
from ...models.client_packages import is_model
from ...models.reasoning import split_reasoning
from ...protocols import JudgeClient, Reply, Request
from ..template import Scale
from .prompt import (
    ShownTexts,
    build_transcript,
    enclose,
    fresh_nonce,
    truncate_texts,
    user_message,
    without_control_tokens,
)

T = TypeVar("T")
KeyPath: TypeAlias = tuple[str, ...]
"""The place of a value in nested objects."""

SYSTEM = "You judge answers, strictly and fairly, by what you are told to judge by."
JSON_ONLY = "Answer with one JSON object only:"
REASON_PLACEHOLDER = (
    "one to three sentences about this answer: what decides its scores, also if they are high"
)
REASON_FORMAT = f'"reason": "{REASON_PLACEHOLDER}"'
MAX_REASON_CHARS = 500
NO_LIMITS: Mapping[str, int] = MappingProxyType({})
RE_ASK_PROMPT = "Answer again, in the form asked for."
MORE_ROOM = 4  # times the tokens, for a reply that was cut off
LEAST_ROOM = (
    512  # tokens: a reply of fewer was not cut off because it was long, and a verdict takes as many
)
FALLBACK_ROOM = 8192  # tokens that a model is taken to have used if its endpoint does not say
RE_ASK_OFFSET = (
    1_000_000  # added to the sample index, so that a cache keeps a re-ask apart from repeated votes
)


class LlmJudge:
    """What all LLM judges have in common: the settings of their calls, and what they send."""

    name: str
    model: Any
    temperature: float | None
    max_tokens: int | None
    max_eval_chars: int
    images: bool
    params: Mapping[str, Any] | None

    def check_settings(self) -> None:
        """Raise ConfigError for a bad name, limit or model. Parameters that are settings of its own
        become these.
        """
        checks.text("name", self.name)
        at = f"grader {self.name!r}:"
        checks.whole_number(f"{at} max_eval_chars", self.max_eval_chars, 1)
        checks.whole_number(f"{at} max_tokens", self.max_tokens, 1, optional=True)
        checks.number(f"{at} temperature", self.temperature, optional=True)
        checks.flag(f"{at} images", self.images)
        if self.params is not None:
            check_parameters(f"{at} params", self.params)
            rest = dict(self.params)
            for name in rest.keys() & {"temperature", "max_tokens"}:
                object.__setattr__(self, name, rest.pop(name))
            object.__setattr__(self, "params", rest or None)
        if not (self.model is None or is_model(self.model)):
            raise checks.invalid_argument(
                f"{at} model", "a name, a Model, a function of messages or None", self.model
            )

    def build_request(
        self,
        task: Task,
        texts: dict[str, str],
        build_prompt: Callable[[Mapping[str, str], str], str],
        schema: Mapping[str, Any],
        *,
        extra_texts: Iterable[str] = (),
        limits: Mapping[str, int] = NO_LIMITS,
        top_logprobs: int | None = None,
    ) -> tuple[Request, ShownTexts]:
        """Return the request that asks about named texts, and what of them it shows.

        `build_prompt` returns the prompt for the enclosed texts and a nonce. `extra_texts` are further texts
        in the prompt that must not contain the nonce. `limits` holds the maximum number of
        characters of a text, by its name; for the others `max_eval_chars` applies. `top_logprobs`
        asks for the log-probabilities of so many alternatives of each token.
        """
        shown = truncate_texts(texts, self.max_eval_chars, limits)
        nonce = fresh_nonce([*shown.texts.values(), *extra_texts])
        enclosed = {name: enclose(name, text, nonce) for name, text in shown.texts.items()}
        images = build_transcript(task).images
        prompt = user_message(build_prompt(enclosed, nonce), images, show=self.images)
        request = Request(
            ({"role": "system", "content": SYSTEM}, prompt),
            self.temperature,
            self.max_tokens,
            schema=schema,
            nonce=nonce,
            top_logprobs=top_logprobs,
            params=self.params,
        )
        return request, shown


async def ask_judge(
    ask: JudgeClient,
    size: int,
    build: Callable[[], tuple[Request, ShownTexts]],
    parse: Callable[[Reply], T],
    *,
    in_thread: bool = False,
) -> tuple[T, ShownTexts]:
    """Ask a question about texts of about `size` characters in a fresh context. Return the answer
    and what was shown.

    `build` returns the request, as `LlmJudge.build_request` does. `parse` returns the answer in a
    reply, or raises UnreadableOutput. Raises BadResponseError if the reply is unreadable twice.
    """
    request, shown = await run_in_thread_if_large(size, build)
    subject = "the judge's answer"
    return await ask_for_json(ask, request, parse, subject=subject, in_thread=in_thread), shown


async def ask_for_json(
    ask: JudgeClient,
    request: Request,
    parse: Callable[[Reply], T],
    *,
    subject: str,
    params: str = "judge_params",
    in_thread: bool = False,
) -> T:
    """Return the parsed reply. Raises BadResponseError if `parse` raises UnreadableOutput twice;
    `subject` is its first words.

    `params` names the setting by which the user can give the model more tokens, for the error of a
    reply that is cut off. `in_thread`: `parse` runs code of the user, which may take any time.

    A truncated reply is never parsed, however complete it looks: the request is repeated with
    MORE_ROOM times the tokens.
    """
    reply = await _reply_or_nothing(ask, request)
    try:
        return await _parse_whole(reply, parse, in_thread=in_thread)
    except UnreadableOutput as complaint:
        again = _re_ask_request(request, reply, str(complaint), getattr(ask, "max_tokens", None))
    reply = await (_reply_with_more_room(ask, again) if reply.truncated else ask.complete(again))
    try:
        return await _parse_whole(reply, parse, in_thread=in_thread)
    except UnreadableOutput as complaint:
        raise BadResponseError(
            f"{subject} cannot be read: {complaint}{_advice(request, again, reply, params)}"
        ) from complaint


def _advice(request: Request, again: Request, reply: Reply, params: str) -> str:
    """Return what to do about a second reply that was cut off, by what both requests allowed; ""
    for any other.
    """
    if not reply.truncated:
        return ""
    room = MORE_ROOM * (again.max_tokens or FALLBACK_ROOM)
    if request.max_tokens:
        return f" twice: give the grader a larger max_tokens, such as {room}, or let it reason less"
    option = f"--{params.replace('_', '-').removesuffix('s')} max_tokens={room}"
    return (
        f" twice: give it more by {params}={{'max_tokens':{room}}} ({option}), or let it reason "
        "less"
    )


async def _reply_with_more_room(ask: JudgeClient, request: Request) -> Reply:
    """Return the reply; if the server refuses that many tokens, with as many as it says it allows,
    else without a limit.
    """
    try:
        return await _reply_or_nothing(ask, request)
    except ModelError as error:
        if request.max_tokens is None or not refuses_max_tokens(error):
            raise
        return await _reply_or_nothing(
            ask, replace(request, max_tokens=stated_max_tokens(error, request.max_tokens))
        )


async def _reply_or_nothing(ask: JudgeClient, request: Request) -> Reply:
    """Return the reply; an empty one that is truncated if the token limit left nothing of it, as of
    one that reasons too long.
    """
    try:
        return await ask.complete(request)
    except BadResponseError as error:
        if not error.truncated:
            raise
        return Reply("", error.usage, "length")


async def _parse_whole(reply: Reply, parse: Callable[[Reply], T], *, in_thread: bool) -> T:
    """Return the parsed reply. Raises UnreadableOutput if it is truncated, or as `parse` does."""
    if reply.truncated:
        raise UnreadableOutput("the answer was cut off at the token limit")
    return await run_in_thread(parse, reply) if in_thread else parse(reply)


def _re_ask_request(request: Request, reply: Reply, complaint: str, limit: int | None) -> Request:
    """Return the second request; `limit` is the `max_tokens` of the first one if it set none
    itself.
    """
    sample_index = request.sample_index + RE_ASK_OFFSET
    if reply.truncated:
        room = (
            request.max_tokens
            or limit
            or max(reply.usage.output_tokens or FALLBACK_ROOM, LEAST_ROOM)
        )
        return replace(request, max_tokens=MORE_ROOM * room, sample_index=sample_index)
    answer = {
        "role": "assistant",
        "content": without_control_tokens(reply.text[:8000]) or "(nothing)",
    }
    again = {
        "role": "user",
        "content": f"That cannot be read: {without_control_tokens(complaint)}. {RE_ASK_PROMPT}",
    }
    return replace(request, messages=(*request.messages, answer, again), sample_index=sample_index)


def object_schema(**properties: Any) -> dict[str, Any]:
    """Return the JSON schema of an object that has exactly these properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def text_schema(max_chars: int) -> dict[str, Any]:
    """Return the JSON schema of a text of at most `max_chars` characters."""
    return {"type": "string", "maxLength": max_chars}


# ---- parse


MAX_CHARS = 200_000
MAX_REPAIR_CHARS = 16_384  # from the first brace; a longer answer must be clean JSON
MAX_DIGITS = 18
MAX_FLOAT_CHARS = 400
BRACE = re.compile(r"[{}]")
FENCE = re.compile(r"^[ \t]*(?:```+|~~~+)[ \t]*(\S?)", re.MULTILINE)
EMBEDDED_PREFIXES = ("[", "(", ",", "\\", *"\"'“‘„‚«‹「『", '":', "':", "”:")  # before and
# after an object that is part of something else
EMBEDDED_SUFFIXES = ("]", ")", "}", ",", ":", *"\"'”’“‘»›」』", *"，、；;–—")
NO_VERDICT = re.compile(
    r"\b(?:(?:for|an) (?:example|instance)|e\.g\.|such as|instead of|rather than|not|never)[\s,:`*]*(?:json\s+)?$",
    re.IGNORECASE,
)
REFUSAL = re.compile(
    r"""\b(?:I(?:['’](?:m|d|ll))?(?:\ (?:am|must|have|to|will|would|rather|decided|do|did|can|could|simply|therefore)){0,4}
    \ (?:refuse|decline|(?:cannot|can['’]t|won['’]t|don['’]t|didn['’]t|haven['’]t|not|unable)
    (?:\ (?:able|going|willing|prepared|actually|really|even))?(?:\ to)?(?:\ be)?
    \ (?:(?:grad|judg|rat|scor|evaluat)(?:e|ed|ing)|assess(?:ed|ing)?|fill|comply|assist|read|seen?|look(?:ed)?\ at)\b
    (?![^.!?\n]{0,60}\b(?:higher|lower|more|less|better|worse|above|below|any|such)\b))
    |[Nn]o\ (?:rating|grade|score|evaluation|verdict|judge?ment|assessment)\ (?:was|is|has\ been|can|could|will)\b
    |(?:nothing|impossible|not\ possible)\ to\ (?:grade|judge|rate|score|evaluate|assess)\b
    |(?:cannot|can['’]t|could\ not|was\ not|is\ not|not\ been)\ (?:be\ )?(?:graded|judged|rated|scored|evaluated|assessed)\b
    (?![^.!?\n]{0,60}\b(?:higher|lower|more|less|better|worse|above|below)\b)
    |(?:only|just|merely)\ an?\ (?:example|template|placeholder|illustration|sample)\b)""",
    re.VERBOSE,
)
SENTENCE_END = re.compile(r"[.!?](?:\s|$)")
AS_ASKED = re.compile(
    r"\b(?:in|im|to|per|with|following|matching) (?:[\w-]+ ){0,3}?(?:form|format|schema)\b|\bmy \w+\b.*",
    re.IGNORECASE,
)
NOT_MINE = re.compile(
    r"""\b(?:forms?|formats?|templates?|schema|examples?|samples?|placeholders?|illustration|expected\ (?!answer)|contain(?:s|ed)
    |includes|says|claims|quot(?:e[sd]?|ing|ation)|inject\w*|attempt\w*|manipulat\w*|previous\w*|earlier|answered|replied
    |wrote|if|suppos(?:e|ing)|assum(?:e|ing)|imagine|hypothetical\w*|pretend\w*|had\ been|would\ have|otherwise)\b""",
    re.VERBOSE | re.IGNORECASE,
)
"""In the lead-in of an object: it is a form, a quotation or a supposition."""
TAKEN_BACK = re.compile(
    r"""\b(?:disagree|manipulat\w*|inject\w*|template|placeholder|is\ an?\ (?:example|attempt)\b|no,?\ wait
    |on\ (?:second\ thought|reflection)|too\ (?:high|low|generous|harsh)|I['’]d\ (?:rather\ )?give
    |not\ (?:my|a)\ (?:verdict|rating|grade)|but\ it\ is\ wrong)""",
    re.VERBOSE | re.IGNORECASE,
)
"""In the text after an object: it is no verdict, or no longer one."""
SENTENCE_GOES_ON = re.compile(r"[ \t]*+(?:-[ \t]|[^\W\d_])")


class UnreadableOutput(ValueError):
    """A judge's answer cannot be parsed; the message is the complaint that a re-ask quotes."""


def read_object(text: str) -> dict[str, Any]:
    """Return the one JSON object in a judge's answer. Thinking, prose and a code fence around it
    are ignored.

    Raises UnreadableOutput if there is none, if there are several, or if it is part of something
    else.
    """
    if len(text) > MAX_CHARS:
        raise UnreadableOutput(
            f"the answer is {len(text)} characters long; at most {MAX_CHARS} are read"
        )
    if text.startswith('"{') and text.endswith('}"'):  # the object as a JSON text
        with suppress(ValueError):
            text = json.loads(text)
    if text.startswith("{") and text.endswith("}"):
        whole, end = _parse_object_at(text, 0)
        if end == len(text):  # as most models answer
            return whole
    return find_object(without_thinking(text))


def find_object(text: str) -> dict[str, Any]:
    """Return the one JSON object in a judge's answer without its reasoning. Raises UnreadableOutput
    as `read_object` does.
    """
    data: dict[str, Any] | None = None
    at = 0
    while mark := BRACE.search(text, at):
        if data is not None or mark[0] == "}":
            raise UnreadableOutput(
                "there is another brace outside of the JSON object; write one object and nothing "
                "else"
            )
        data, end = _parse_object_at(text, mark.start())
        if mark.start() > at or end < len(text):
            _check_not_embedded(text[at : mark.start()], text[end:])
        at = end
    if data is None:
        raise UnreadableOutput("there is no JSON object in the answer")
    return data


def without_thinking(text: str) -> str:
    """Return a judge's answer without its reasoning; some judges are asked to write it between tags
    of this name.
    """
    return split_reasoning(text, "reasoning").answer


def _check_not_embedded(before: str, after: str) -> None:
    """Raise UnreadableOutput for an object within a quotation, a sentence, a list, a call, or
    nested code blocks.

    Also for one that is introduced as a form, a quotation or a supposition, for one that is taken
    back, and for one beside a refusal to judge, in English. In doubt the judge is asked again.
    """
    continues = SENTENCE_GOES_ON.match(after)
    complaints = {
        "the JSON object is part of something else": _is_enclosed(before, after),
        "the JSON object is part of a sentence": NO_VERDICT.search(before[-80:])
        or (continues and not continues[0][-1].isupper()),
        "the JSON object may not be your verdict": TAKEN_BACK.search(after)
        or _is_introduced_as_another(before),
        "there is a refusal beside the JSON object": REFUSAL.search(before)
        or REFUSAL.search(after),
        "there are code blocks inside each other": any(
            # every second fence closes a block, and closing fences have no language
            fence[1]
            for fence in islice(FENCE.finditer(before), 1, None, 2)
        ),
    }
    for complaint, applies in complaints.items():
        if applies:
            raise UnreadableOutput(f"{complaint}; write one object and nothing else")


def _is_enclosed(before: str, after: str) -> bool:
    """Whether an object stands within a quotation, a list or a call, or after a "!" that negates
    it.
    """
    lead = before.rstrip()
    is_negated = lead.endswith("!") and (lead == before or not lead[-2:-1].isalnum())
    return (
        is_negated
        or lead.endswith(EMBEDDED_PREFIXES)
        or after.lstrip().startswith(EMBEDDED_SUFFIXES)
        or before.count('"') % 2 == 1
    )


def _is_introduced_as_another(before: str) -> bool:
    """Whether the last words before an object, which end no sentence, name a form, a quotation or a
    supposition.
    """
    lines = [line for line in before[-2000:].splitlines() if line.strip() and not FENCE.match(line)]
    lead = SENTENCE_END.split(lines[-1].rstrip())[-1] if lines else ""
    return NOT_MINE.search(AS_ASKED.sub("", lead)) is not None


def _parse_object_at(text: str, start: int) -> tuple[dict[str, Any], int]:
    """Return the object whose brace is at `start`, and its end. Raises UnreadableOutput."""
    try:
        data, end = STRICT_DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        if len(text) - start > MAX_REPAIR_CHARS:
            raise UnreadableOutput(f"the answer is not JSON: {error.msg}") from error
        return _repair_object(text, start)
    except RecursionError as error:
        raise UnreadableOutput(TOO_DEEP) from error
    except ValueError as error:
        raise UnreadableOutput(str(error)) from error
    if (
        text.count("{", start, end) + text.count("[", start, end) > MAX_DEPTH
        and nesting_depth(data) > MAX_DEPTH
    ):
        raise UnreadableOutput(TOO_DEEP)
    if (
        text.find("\\", start, end) >= 0
        and (doubled := double_backslashes(text[start:end])) != text[start:end]
    ):
        data = STRICT_DECODER.decode(doubled)
    return data, end


def _repair_object(text: str, start: int) -> tuple[dict[str, Any], int]:
    repair = JsonRepair(text, start)
    try:
        end = repair.rewrite()
        return LENIENT_DECODER.decode("".join(repair.output)), end
    except json.JSONDecodeError as error:
        raise UnreadableOutput(f"the answer is not JSON: {error.msg}") from error
    except ValueError as error:
        raise UnreadableOutput(str(error)) from error


def _parse_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits is not a score")
    return int(digits)


def _parse_float(digits: str) -> float:
    if len(digits) > MAX_FLOAT_CHARS or not math.isfinite(float(digits)):
        raise ValueError(f"{digits[:20]!r} is not a plain number")
    return float(digits)


STRICT_DECODER, LENIENT_DECODER = (
    json.JSONDecoder(
        strict=strict,
        object_pairs_hook=reject_duplicate_keys,
        parse_constant=reject_constant,
        parse_int=_parse_int,
        parse_float=_parse_float,
    )
    for strict in (True, False)
)


# ---- values


SEPARATORS = re.compile(r"[\s_-]+")
PLAIN_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?")


def plain_word(text: str) -> str:
    """Return a key or a word in lower case, without Markdown around it, and with spaces for hyphens
    and underscores.
    """
    word = text.strip(" \t\r\n*`:")
    if word.startswith("_") and word.endswith("_"):
        word = word.strip("_")
    return SEPARATORS.sub(
        " ", word
    ).lower()  # (casefold would read the long s of "ye\u017f" as an s)


def plain_number(value: Any) -> Any:
    """Return the number for a text that holds a plain one alone, a whole one for a float such as
    4.0; any other value unchanged.
    """
    if (
        value.__class__ is str
        and len(value) <= MAX_FLOAT_CHARS
        and PLAIN_NUMBER.fullmatch(text := value.strip())
    ):
        value = float(text)
    return int(value) if value.__class__ is float and value.is_integer() else value


def spell_keys(data: Mapping[str, Any], names: Collection[str]) -> Mapping[str, Any]:
    """Return an object in which each key that differs from one of `names` as a `plain_word` does is
    that name.

    Raises UnreadableOutput if two keys are the same name, and for a key that differs from a name in
    other signs, such as "score(". If names differ in signs or case alone, keys must be spelled
    exactly.
    """
    if data.keys() <= set(names):
        return data
    known = {letters(name): name for name in names}
    if len(known) < len(names):
        return data
    spelled: dict[str, Any] = {}
    for key, value in data.items():
        name = known.get(letters(key), key)
        if name in spelled:
            raise UnreadableOutput(f"{name!r} is there twice, spelled differently")
        if name != key and plain_word(name) != plain_word(key):
            raise UnreadableOutput(f"the key {key[:60]!r} is not clearly {name!r}")
        spelled[name] = value
    return spelled


def letters(text: str) -> str:
    """Return the letters and digits of a text in lower case."""
    return "".join(filter(str.isalnum, text.lower()))


def string_at(data: Mapping[str, Any], key: str) -> str:
    """Return the text under `key`, or the texts in the list under it as one; "" if it is missing or
    null.
    """
    value = data.get(key, "")
    if value.__class__ is str:
        return value.strip()
    if isinstance(value, list) and all(isinstance(text, str) for text in value):
        return "; ".join(texts_at(data, key))
    if value is not None:
        raise UnreadableOutput(f"{key!r} must be text, got {_abbreviate(value)}")
    return ""


def reason_at(data: Mapping[str, Any], key: str = "reason") -> str:
    """Return the reason under `key`; "" if it is missing or copies the words of the form."""
    reason = string_at(data, key)[: 4 * MAX_REASON_CHARS]
    return "" if reason == REASON_PLACEHOLDER else reason


def texts_at(data: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """Return the texts in the list under `key`, or the text under it, without blank ones; () if it
    is missing or null.
    """
    value = data.get(key)
    texts = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise UnreadableOutput(f"{key!r} must be a list of texts, got {_abbreviate(value)}")
    return tuple(text.strip() for text in texts if text.strip())


def score_at(data: Mapping[str, Any], key: str, scale: Scale) -> float:
    """Return the `plain_number` on the scale under `key`. Raises UnreadableOutput for anything
    else: bools, 11 of 1 to 10.
    """
    number = plain_number(data.get(key))
    if not scale.holds(number):
        raise misfit(data, key, scale.description)
    return float(number)


def bool_at(data: Mapping[str, Any], key: str) -> bool | None:
    """Return the boolean under `key`, which may be a text; None if it is missing or null."""
    value = data.get(key)
    if isinstance(value, str):
        value = {"true": True, "false": False}.get(plain_word(value), value)
    if not (value is None or isinstance(value, bool)):
        raise misfit(data, key, "true or false")
    return value


def word_at(data: Mapping[str, Any], key: str, words: Sequence[str]) -> str:
    """Return the text under `key` as a `plain_word`, which is one of `words`."""
    value = data.get(key)
    word = plain_word(value) if isinstance(value, str) else ""
    if word not in words:
        raise misfit(data, key, " or ".join([", ".join(words[:-1]), words[-1]]))
    return word


def object_at(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the object under `key`."""
    value = data.get(key)
    if not isinstance(value, dict):
        raise misfit(data, key, "an object")
    return value


def misfit(data: Mapping[str, Any], key: str, expected: str) -> UnreadableOutput:
    """Return the complaint about the value under `key`, or that there is none."""
    return UnreadableOutput(
        f"{key!r} must be {expected}, got {_abbreviate(data[key])}"
        if key in data
        else f"{key!r} is missing"
    )


def _abbreviate(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."
