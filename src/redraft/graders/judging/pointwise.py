"""The LLM judge: a model that reads task, answer and rubric in a fresh context, and says what to change.

It answers one JSON object: per criterion a short quoted evidence, what to change, and a whole number 0-5; and whether
it would stop here. The score is the weighted mean divided by 5. Naming evidence before the number follows the usual
reason-then-score order (G-Eval, arXiv:2303.16634). Untrusted text stands in an envelope (see `envelope`): a
mitigation, not a guarantee.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from ... import checks
from ...core.cancellation import run_in_thread_if_large
from ...core.records import Candidate, CriterionScore, Feedback, Task
from ...middleware.messages import IMAGES_OMITTED_NOTE
from ...protocols import JudgeClient, Model, Reply, Request
from ..computed.no_answer import find_no_answer_reason
from ..inputs import check_needs
from ..rubric import DEFAULT_RUBRIC, MAX_SCORE, TASK_FIELDS, Rubric, ScoredExample, as_rubric, overall_criterion, read_text_file
from ..rubric import Criterion as Asked
from . import json_reader as reading
from .prompt import CONTROL_NOTICE, DATA_NOTICE, data_notice, enclose, fresh_nonce
from .structured import ask_for_json
from .template import Template
from .transcript import ShownTexts, build_transcript, input_texts, total_chars, truncate_texts, user_message

T = TypeVar("T")

SYSTEM = "You judge answers, strictly and fairly, by what you are told to judge by."
SCORE_SCALE = "Scores: 0 absent or wrong, 1 poor, 2 weak, 3 acceptable, 4 good, 5 nothing to improve."
LEVELS_NOTE = "Where levels are described, give the score of the level that fits best; a score between two of them may fit, too."
CRITERIA = "Criteria:"
EXAMPLES = "Examples of how answers to other tasks are scored:"
JSON_ONLY = "Answer with one JSON object only:"
CRITERION_FORMAT = '{"evidence": "short quote", "change": "what to change, or empty", "score": 0-5}'
DONE_FORMAT = '"done": true only if nothing should change'
NO_ANSWER_ACTION = "Give an actual answer."
MAX_QUOTE_CHARS, MAX_CHANGE_CHARS = 100, 240  # characters
PLACEHOLDER_CHANGE = "what to change, or empty"  # small models give the form back
NO_CHANGE_TEXTS = {
    "",
    "-",
    "none",
    "n/a",
    "na",
    "null",
    "empty",
    "nothing",
    "no change",
    "no changes",
    "nothing to change",
    PLACEHOLDER_CHANGE,
}


@dataclass(frozen=True)
class Judge:
    """An LLM grader.

    `rubric`: a Rubric, a file that holds one, or a mapping of criterion to description. `template`: your own words instead
    (a text, or the Path of a file), with fields such as {query}, {response}, {context}, {reference} (all of them, and what
    braces mean: see `template`); without a rubric the judge then gives one overall score. `model`: what it asks
    (None: the `judge` of the call, or its `model`). Over `max_eval_chars` the middle of a text is left out, visibly, and the
    feedback says so. With `images` the judge is sent the images of the task, where its endpoint takes images; it is
    told when it does not see them. With `reads_tool_calls` candidates that call tools are graded and refined, too, and the judge is
    shown the calls as data; without it, and without another grader that reads them, they are handed on as they are. Raises
    ConfigError for a bad rubric or template.
    """

    rubric: Rubric | Mapping[str, Any] | str | Path = DEFAULT_RUBRIC
    name: str = "judge"
    template: str | Path | None = None
    model: Any = None
    temperature: float | None = 0.0
    max_tokens: int | None = 2048
    max_eval_chars: int = 32_768
    images: bool = True
    reads_tool_calls: bool = field(default=False, compare=False)

    prompt_texts: ClassVar[tuple[str, ...]] = (
        SYSTEM, CRITERIA, SCORE_SCALE, LEVELS_NOTE, EXAMPLES, JSON_ONLY, CRITERION_FORMAT, DONE_FORMAT, DATA_NOTICE, CONTROL_NOTICE, IMAGES_OMITTED_NOTE, NO_ANSWER_ACTION
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_judge_config(self.name, self)
        rubric = as_rubric(self.rubric)
        if not (self.template is None or isinstance(self.template, str | Path)):
            raise checks.invalid_argument("template", "text, the Path of a file or None", self.template)
        template = read_text_file(self.template, "template") if isinstance(self.template, Path) else self.template
        if template is not None:
            own = replace(rubric, name="template", criteria=overall_criterion()) if rubric == DEFAULT_RUBRIC else rubric
            rubric = replace(own, template=template)
        object.__setattr__(self, "rubric", rubric)
        object.__setattr__(self, "template", rubric.template)

    @property
    def criteria(self) -> tuple[Asked, ...]:
        return self._rubric.criteria

    @property
    def needs(self) -> tuple[str, ...]:
        """The fields of a task without which it cannot judge."""
        return self._rubric.needs

    @property
    def _rubric(self) -> Rubric:
        assert isinstance(self.rubric, Rubric)
        return self.rubric

    async def grade(self, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback:
        """Feedback on one candidate. A text that is no answer at all gets 0 without a call.

        Raises BadResponseError when the answer stays unreadable after one re-ask, ConfigError for a task that lacks what the
        rubric needs.
        """
        check_needs(self.name, self.needs, task)
        if not candidate.tool_calls and (why := await find_no_answer_reason(candidate.text, task)):
            return no_answer_feedback(why)
        examples = tuple(text for e in self._rubric.examples for text in (e.task, e.answer))
        texts = await run_in_thread_if_large(total_chars(task, candidate.display_text), self.input_texts, task, candidate)
        inquiry = JudgeRequest(texts, self.prompt, self.answer_schema(), self.parse_reply, examples)
        feedback, exhibit = await ask_judge(inquiry, task, self, ask)
        return exhibit.with_omission_note(feedback)

    def input_texts(self, task: Task, candidate: Candidate) -> dict[str, str]:
        """The untrusted texts that the judge sees, by name."""
        return input_texts(task, candidate, TASK_FIELDS if self.template is not None else self._rubric.task_fields)

    def prompt(self, texts: Mapping[str, str], nonce: str) -> str:
        """The user message: what to judge by, what is data, the data, how to answer."""
        enclosed = {name: enclose(name, text, nonce) for name, text in texts.items()}
        criteria = "\n".join([CRITERIA, *map(_describe_criterion, self.criteria)])
        levels = f"{SCORE_SCALE}\n{LEVELS_NOTE}" if any(c.levels for c in self.criteria) else SCORE_SCALE
        closing = f"{JSON_ONLY}\n{self.answer_format()}\n{levels}"
        examples = [_format_example(n, e, nonce) for n, e in enumerate(self._rubric.examples, 1)]
        told = [EXAMPLES, *examples] if examples else []
        if self._rubric.template is None:
            return "\n\n".join([criteria, data_notice(nonce), *told, *enclosed.values(), closing])
        return "\n\n".join([data_notice(nonce), *self._template_texts(enclosed, criteria), *told, closing])

    def _template_texts(self, texts: Mapping[str, str], criteria: str) -> list[str]:
        """The author's words, and the criteria after them where they have any that the words do not place."""
        template = Template(self._rubric.template or "")
        said = template.fill({**texts, "criteria": criteria})
        return [said] if self.criteria == overall_criterion() or "criteria" in template.fields else [said, criteria]

    def answer_format(self) -> str:
        """The shape of the answer, as the model is shown it: the first criterion in full, the others like it."""
        first, *others = [c.name for c in self.criteria]
        rows = ", ".join([f"{_json_string(first)}: {CRITERION_FORMAT}", *(f"{_json_string(name)}: {{...}}" for name in others)])
        return f'{{"criteria": {{{rows}}}, {DONE_FORMAT}}}'

    def answer_schema(self) -> dict[str, Any]:
        """The JSON schema of the answer. Texts are bounded: a model that rambles in one never reaches the number."""
        score = {"type": "integer", "enum": list(range(MAX_SCORE + 1))}
        line = object_schema(evidence=text_schema(MAX_QUOTE_CHARS), change=text_schema(MAX_CHANGE_CHARS), score=score)
        return object_schema(criteria=object_schema(**{c.name: line for c in self.criteria}), done={"type": "boolean"})

    def parse_reply(self, reply: Reply) -> Feedback:
        """The feedback in a reply. Raises Unreadable."""
        data = reading.read_object(reply.text)
        held = reading.object_at(data, "criteria")
        views = tuple(_parse_criterion(held, c) for c in self.criteria)
        if strangers := held.keys() - {c.name for c in self.criteria}:
            raise reading.UnreadableOutput(f"there is no criterion {min(strangers)[:60]!r}")
        reason = "; ".join(f"{v.name} {round(v.score * MAX_SCORE)}/{MAX_SCORE}" for v in views)
        return Feedback(weighted_mean(views), reason, open_actions(views), reading.bool_at(data, "done"), views)


# ---- what all judges of one answer do alike


class JudgeConfig(Protocol):
    """How a judge asks."""

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
    """What a judge is asked about texts: `words` makes the prompt of them and a nonce, `read` an answer of the reply.

    `also` are further texts in the prompt that the nonce must not occur in.
    """

    texts: Mapping[str, str]
    build_prompt: Callable[[Mapping[str, str], str], str]
    schema: Mapping[str, Any]
    parse_reply: Callable[[Reply], T]
    extra_texts: tuple[str, ...] = ()


async def ask_judge(question: JudgeRequest[T], task: Task, config: JudgeConfig, ask: JudgeClient) -> tuple[T, ShownTexts]:
    """The answer to an inquiry in a fresh context, and what was shown. Raises BadResponseError when it is unreadable twice."""
    request, exhibit = await run_in_thread_if_large(
        total_chars(task, *question.texts.values()), _build_request, question, task, config
    )
    return await ask_for_json(ask, request, question.parse_reply), exhibit


def _build_request(question: JudgeRequest[T], task: Task, config: JudgeConfig) -> tuple[Request, ShownTexts]:
    """The request that puts an inquiry, and what it shows."""
    exhibit = truncate_texts(question.texts, config.max_eval_chars)
    nonce = fresh_nonce([*exhibit.texts.values(), *question.extra_texts])
    said = user_message(question.build_prompt(exhibit.texts, nonce), build_transcript(task).images, show=config.images)
    messages = ({"role": "system", "content": SYSTEM}, said)
    return Request(messages, config.temperature, config.max_tokens, schema=question.schema, nonce=nonce), exhibit


def check_judge_config(name: str, config: Any) -> None:
    """Raises ConfigError for a name, a limit or a model that is none."""
    checks.text("name", name)
    at = f"grader {name!r}:"
    checks.whole_number(f"{at} max_eval_chars", config.max_eval_chars, 1)
    checks.whole_number(f"{at} max_tokens", config.max_tokens, 1, optional=True)
    checks.number(f"{at} temperature", config.temperature, optional=True)
    checks.flag(f"{at} images", getattr(config, "images", True))
    model = getattr(config, "model", None)
    if not (model is None or isinstance(model, str | Model) or callable(model)):
        raise checks.invalid_argument(f"{at} model", "a name, a Model, a function of messages or None", model)


def no_answer_feedback(reason: str) -> Feedback:
    """The view of a text that is no answer."""
    return Feedback(0.0, reason, (NO_ANSWER_ACTION,), done=False)


def weighted_mean(views: tuple[CriterionScore, ...]) -> float:
    """The weighted mean of criteria, in [0, 1]."""
    return min(sum(v.score * v.weight for v in views) / sum(v.weight for v in views), 1.0)


def open_actions(views: tuple[CriterionScore, ...]) -> tuple[str, ...]:
    """What to change, for the criteria that are not fully met."""
    return tuple(dict.fromkeys(v.action for v in views if v.score < 1 and v.action))


def object_schema(**properties: Any) -> dict[str, Any]:
    """The JSON schema of an object that has just these properties."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def text_schema(max_chars: int) -> dict[str, Any]:
    """The JSON schema of a text of at most `most` characters."""
    return {"type": "string", "maxLength": max_chars}


def change_text(row: Mapping[str, Any], default: str) -> str:
    """What a judge says is to be changed; `instead` where it says nothing."""
    said = reading.string_at(row, "change")[: 4 * MAX_CHANGE_CHARS]
    return default if said.casefold().rstrip(". ") in NO_CHANGE_TEXTS else said


def _parse_criterion(data: Mapping[str, Any], criterion: Asked) -> CriterionScore:
    row = reading.object_at(data, criterion.name)
    score = reading.int_at(row, "score", 0, MAX_SCORE)
    change = change_text(row, criterion.description and f"Make this hold: {criterion.description}")
    evidence = reading.string_at(row, "evidence")[:300]
    return CriterionScore(criterion.name, score / MAX_SCORE, evidence, change if score < MAX_SCORE else "", criterion.weight)


def _json_string(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def _describe_criterion(criterion: Asked) -> str:
    return "\n".join([f"- {criterion.name}: {criterion.description}", *(f"  {level} = {text}" for level, text in criterion.levels)])


def _format_example(n: int, example: ScoredExample, nonce: str) -> str:
    """An example: what was answered as data, then what it got and why."""
    task = f"Task: {example.task}\nAnswer: " if example.task else ""
    scores = ", ".join(f"{name} {score}" for name, score in example.scores)
    return "\n".join([enclose(f"example-{n}", f"{task}{example.answer}", nonce), f"Scores: {scores}. {example.reason}".rstrip()])
