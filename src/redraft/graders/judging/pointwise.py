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
from ...core.cancellation import run_beside
from ...core.records import Candidate, Criterion, Feedback, Task
from ...middleware.messages import NOT_SHOWN
from ...protocols import Ask, Model, Reply, Request
from ..computed.no_answer import find_no_answer
from ..inputs import check_needs
from ..rubric import DEFAULT, READABLE, TOP, Example, Rubric, as_rubric, one_criterion, read_words
from ..rubric import Criterion as Asked
from . import json_reader as reading
from .prompt import CONTROL_NOTICE, DATA_NOTICE, enclose, fresh_nonce, notice
from .structured import ask_strictly
from .template import Template
from .transcript import Exhibit, exhibited, materials, size_of, transcript, user_message

T = TypeVar("T")

SYSTEM = "You judge answers, strictly and fairly, by what you are told to judge by."
LEVELS = "Scores: 0 absent or wrong, 1 poor, 2 weak, 3 acceptable, 4 good, 5 nothing to improve."
DESCRIBED = "Where levels are described, give the score of the level that fits best; a score between two of them may fit, too."
CRITERIA = "Criteria:"
EXAMPLES = "Examples of how answers to other tasks are scored:"
ANSWER = "Answer with one JSON object only:"
ROW = '{"evidence": "short quote", "change": "what to change, or empty", "score": 0-5}'
DONE = '"done": true only if nothing should change'
NO_ANSWER = "Give an actual answer."
LONGEST_QUOTE, LONGEST_CHANGE = 100, 240  # characters
ECHO = "what to change, or empty"  # small models give the form back
IDLE = {"", "-", "none", "n/a", "na", "null", "empty", "nothing", "no change", "no changes", "nothing to change", ECHO}


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

    rubric: Rubric | Mapping[str, Any] | str | Path = DEFAULT
    name: str = "judge"
    template: str | Path | None = None
    model: Any = None
    temperature: float | None = 0.0
    max_tokens: int | None = 2048
    max_eval_chars: int = 32_768
    images: bool = True
    reads_tool_calls: bool = field(default=False, compare=False)

    wording: ClassVar[tuple[str, ...]] = (
        SYSTEM, CRITERIA, LEVELS, DESCRIBED, EXAMPLES, ANSWER, ROW, DONE, DATA_NOTICE, CONTROL_NOTICE, NOT_SHOWN, NO_ANSWER
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_setting(self.name, self)
        rubric = as_rubric(self.rubric)
        if not (self.template is None or isinstance(self.template, str | Path)):
            raise checks.refused("template", "text, the Path of a file or None", self.template)
        template = read_words(self.template, "template") if isinstance(self.template, Path) else self.template
        if template is not None:
            own = replace(rubric, name="template", criteria=one_criterion()) if rubric == DEFAULT else rubric
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

    async def grade(self, task: Task, candidate: Candidate, ask: Ask) -> Feedback:
        """Feedback on one candidate. A text that is no answer at all gets 0 without a call.

        Raises BadResponseError when the answer stays unreadable after one re-ask, ConfigError for a task that lacks what the
        rubric needs.
        """
        check_needs(self.name, self.needs, task)
        if not candidate.tool_calls and (why := await find_no_answer(candidate.text, task)):
            return no_answer(why)
        examples = tuple(text for e in self._rubric.examples for text in (e.task, e.answer))
        texts = await run_beside(size_of(task, candidate.readable), self.materials, task, candidate)
        inquiry = Inquiry(texts, self.prompt, self.schema(), self.read, examples)
        feedback, exhibit = await put(inquiry, task, self, ask)
        return exhibit.noted(feedback)

    def materials(self, task: Task, candidate: Candidate) -> dict[str, str]:
        """The untrusted texts that the judge sees, by name."""
        return materials(task, candidate, READABLE if self.template is not None else self._rubric.reads)

    def prompt(self, texts: Mapping[str, str], nonce: str) -> str:
        """The user message: what to judge by, what is data, the data, how to answer."""
        enclosed = {name: enclose(name, text, nonce) for name, text in texts.items()}
        criteria = "\n".join([CRITERIA, *map(_described, self.criteria)])
        levels = f"{LEVELS}\n{DESCRIBED}" if any(c.levels for c in self.criteria) else LEVELS
        closing = f"{ANSWER}\n{self.form()}\n{levels}"
        examples = [_example(n, e, nonce) for n, e in enumerate(self._rubric.examples, 1)]
        told = [EXAMPLES, *examples] if examples else []
        if self._rubric.template is None:
            return "\n\n".join([criteria, notice(nonce), *told, *enclosed.values(), closing])
        return "\n\n".join([notice(nonce), *self._own(enclosed, criteria), *told, closing])

    def _own(self, enclosed: Mapping[str, str], criteria: str) -> list[str]:
        """The author's words, and the criteria after them where they have any that the words do not place."""
        template = Template(self._rubric.template or "")
        said = template.fill({**enclosed, "criteria": criteria})
        return [said] if self.criteria == one_criterion() or "criteria" in template.fields else [said, criteria]

    def form(self) -> str:
        """The shape of the answer, as the model is shown it: the first criterion in full, the others like it."""
        first, *others = [c.name for c in self.criteria]
        rows = ", ".join([f"{_quoted(first)}: {ROW}", *(f"{_quoted(name)}: {{...}}" for name in others)])
        return f'{{"criteria": {{{rows}}}, {DONE}}}'

    def schema(self) -> dict[str, Any]:
        """The JSON schema of the answer. Texts are bounded: a model that rambles in one never reaches the number."""
        score = {"type": "integer", "enum": list(range(TOP + 1))}
        line = an_object(evidence=text_up_to(LONGEST_QUOTE), change=text_up_to(LONGEST_CHANGE), score=score)
        return an_object(criteria=an_object(**{c.name: line for c in self.criteria}), done={"type": "boolean"})

    def read(self, reply: Reply) -> Feedback:
        """The feedback in a reply. Raises Unreadable."""
        data = reading.read_object(reply.text)
        held = reading.object_at(data, "criteria")
        views = tuple(_view(held, c) for c in self.criteria)
        if strangers := held.keys() - {c.name for c in self.criteria}:
            raise reading.Unreadable(f"there is no criterion {min(strangers)[:60]!r}")
        reason = "; ".join(f"{v.name} {round(v.score * TOP)}/{TOP}" for v in views)
        return Feedback(mean(views), reason, actions_of(views), reading.flag(data, "done"), views)


# ---- what all judges of one answer do alike


class Setting(Protocol):
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
class Inquiry(Generic[T]):
    """What a judge is asked about texts: `words` makes the prompt of them and a nonce, `read` an answer of the reply.

    `also` are further texts in the prompt that the nonce must not occur in.
    """

    texts: Mapping[str, str]
    words: Callable[[Mapping[str, str], str], str]
    schema: Mapping[str, Any]
    read: Callable[[Reply], T]
    also: tuple[str, ...] = ()


async def put(inquiry: Inquiry[T], task: Task, how: Setting, ask: Ask) -> tuple[T, Exhibit]:
    """The answer to an inquiry in a fresh context, and what was shown. Raises BadResponseError when it is unreadable twice."""
    request, exhibit = await run_beside(size_of(task, *inquiry.texts.values()), _request, inquiry, task, how)
    return await ask_strictly(ask, request, inquiry.read), exhibit


def _request(inquiry: Inquiry[T], task: Task, how: Setting) -> tuple[Request, Exhibit]:
    """The request that puts an inquiry, and what it shows."""
    exhibit = exhibited(inquiry.texts, how.max_eval_chars)
    nonce = fresh_nonce([*exhibit.texts.values(), *inquiry.also])
    said = user_message(inquiry.words(exhibit.texts, nonce), transcript(task).images, show=how.images)
    messages = ({"role": "system", "content": SYSTEM}, said)
    return Request(messages, how.temperature, how.max_tokens, schema=inquiry.schema, nonce=nonce), exhibit


def check_setting(name: str, how: Any) -> None:
    """Raises ConfigError for a name, a limit or a model that is none."""
    checks.text("name", name)
    at = f"grader {name!r}:"
    checks.whole_number(f"{at} max_eval_chars", how.max_eval_chars, 1)
    checks.whole_number(f"{at} max_tokens", how.max_tokens, 1, optional=True)
    checks.number(f"{at} temperature", how.temperature, optional=True)
    checks.flag(f"{at} images", getattr(how, "images", True))
    model = getattr(how, "model", None)
    if not (model is None or isinstance(model, str | Model) or callable(model)):
        raise checks.refused(f"{at} model", "a name, a Model, a function of messages or None", model)


def no_answer(why: str) -> Feedback:
    """The view of a text that is no answer."""
    return Feedback(0.0, why, (NO_ANSWER,), done=False)


def mean(views: tuple[Criterion, ...]) -> float:
    """The weighted mean of criteria, in [0, 1]."""
    return min(sum(v.score * v.weight for v in views) / sum(v.weight for v in views), 1.0)


def actions_of(views: tuple[Criterion, ...]) -> tuple[str, ...]:
    """What to change, for the criteria that are not fully met."""
    return tuple(dict.fromkeys(v.action for v in views if v.score < 1 and v.action))


def an_object(**properties: Any) -> dict[str, Any]:
    """The JSON schema of an object that has just these properties."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def text_up_to(most: int) -> dict[str, Any]:
    """The JSON schema of a text of at most `most` characters."""
    return {"type": "string", "maxLength": most}


def change_at(row: Mapping[str, Any], instead: str) -> str:
    """What a judge says is to be changed; `instead` where it says nothing."""
    said = reading.text(row, "change")[: 4 * LONGEST_CHANGE]
    return instead if said.casefold().rstrip(". ") in IDLE else said


def _view(held: Mapping[str, Any], asked: Asked) -> Criterion:
    row = reading.object_at(held, asked.name)
    score = reading.whole_number(row, "score", 0, TOP)
    change = change_at(row, asked.description and f"Make this hold: {asked.description}")
    evidence = reading.text(row, "evidence")[:300]
    return Criterion(asked.name, score / TOP, evidence, change if score < TOP else "", asked.weight)


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def _described(asked: Asked) -> str:
    return "\n".join([f"- {asked.name}: {asked.description}", *(f"  {level} = {text}" for level, text in asked.levels)])


def _example(n: int, example: Example, nonce: str) -> str:
    """An example: what was answered as data, then what it got and why."""
    task = f"Task: {example.task}\nAnswer: " if example.task else ""
    scores = ", ".join(f"{name} {score}" for name, score in example.scores)
    return "\n".join([enclose(f"example-{n}", f"{task}{example.answer}", nonce), f"Scores: {scores}. {example.why}".rstrip()])
