"""The LLM judge: a model that reads task, answer and rubric in a fresh context, and says what to change.

It answers with one JSON object: for each criterion a short quotation as evidence, what to change, and a whole number 0-5; then
whether nothing should change. The score is the weighted mean divided by 5. Evidence comes before the number, as in G-Eval
(arXiv:2303.16634). Untrusted text is put between delimiters (see `prompt`): a mitigation, not a guarantee.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from ... import checks
from ...core.cancellation import run_in_thread_if_large
from ...core.records import Candidate, CriterionScore, Feedback
from ...core.task import Task
from ...middleware.messages import IMAGES_OMITTED_NOTE
from ...own_code import fingerprint_name
from ...protocols import JudgeClient, Reply
from ..base import check_needs
from ..computed.no_answer import find_no_answer_reason
from ..rubric import (
    DEFAULT_RUBRIC,
    MAX_SCORE,
    TASK_FIELDS,
    Criterion,
    Rubric,
    ScoredExample,
    Template,
    as_rubric,
    overall_criterion,
    read_text_file,
)
from .prompt import CONTROL_NOTICE, DATA_NOTICE, data_notice, enclose, input_texts, total_chars
from .structured import (
    JSON_ONLY,
    SYSTEM,
    JudgeRequest,
    UnreadableOutput,
    ask_judge,
    bool_at,
    check_judge_config,
    int_at,
    object_at,
    object_schema,
    read_object,
    string_at,
    text_schema,
)

SCORE_SCALE = "Scores: 0 absent or wrong, 1 poor, 2 weak, 3 acceptable, 4 good, 5 nothing to improve."
LEVELS_NOTE = "Where levels are described, give the score of the level that fits best; a score between two of them may fit, too."
CRITERIA = "Criteria:"
EXAMPLES = "Examples of how answers to other tasks are scored:"
CRITERION_FORMAT = '{"evidence": "short quote", "change": "what to change, or empty", "score": 0-5}'
DONE_FORMAT = '"done": true only if nothing should change'
NO_ANSWER_ACTION = "Give an actual answer."
MAX_QUOTE_CHARS, MAX_CHANGE_CHARS = 100, 240
PLACEHOLDER_CHANGE = "what to change, or empty"  # small models copy the format
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


@fingerprint_name("judge")
@dataclass(frozen=True)
class Judge:
    """An LLM grader. It asks a model for a score from 0 to 5 for each criterion, a quotation as evidence, and what to change.

    Args:
        rubric: The criteria: a mapping of criterion to description, a file that holds a rubric, or a `Rubric`. The default asks
            whether instructions are followed, and about correctness, completeness and clarity.
        name: Its name in the trace.
        template: Your own prompt, as text or as the Path of a file, with fields such as `{query}`, `{response}`,
            `{context}` and `{reference}`. Without a rubric the judge then gives one overall score.
        model: The model to ask, in any form that `refine` takes. None means the `judge` of the call, else its `model`.
        temperature: Sampling temperature; None leaves it to the endpoint.
        max_tokens: Maximum length of its verdict, in tokens; None means no limit.
        max_eval_chars: Maximum length of each text that it is shown, in characters. The middle of a longer text is left out,
            visibly, and the feedback says so.
        images: Whether the images of the task are sent to it. If its endpoint accepts none, the prompt says that they are missing.
        reads_tool_calls: Whether answers that call tools are also graded and refined, with the calls shown as data. If no
            grader reads tool calls, such answers are returned unchanged.

    Raises:
        ConfigError: The rubric, the template or a limit is wrong.
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
        SYSTEM,
        CRITERIA,
        SCORE_SCALE,
        LEVELS_NOTE,
        EXAMPLES,
        JSON_ONLY,
        CRITERION_FORMAT,
        DONE_FORMAT,
        DATA_NOTICE,
        CONTROL_NOTICE,
        IMAGES_OMITTED_NOTE,
        NO_ANSWER_ACTION,
    )

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
    def criteria(self) -> tuple[Criterion, ...]:
        return self._rubric.criteria

    @property
    def needs(self) -> tuple[str, ...]:
        """The fields that a task must have."""
        return self._rubric.needs

    @property
    def _rubric(self) -> Rubric:
        assert isinstance(self.rubric, Rubric)
        return self.rubric

    async def grade(self, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback:
        """Return feedback on one candidate. A text that is no answer at all gets 0 without a call.

        Raises BadResponseError if the reply is unreadable twice, ConfigError for a task that lacks what the rubric needs.
        """
        check_needs(self.name, self.needs, task)
        if not candidate.tool_calls and (reason := await find_no_answer_reason(candidate.text, task)):
            return no_answer_feedback(reason)
        examples = tuple(text for e in self._rubric.examples for text in (e.task, e.answer))
        texts = await run_in_thread_if_large(total_chars(task, candidate.display_text), self.input_texts, task, candidate)
        question = JudgeRequest(texts, self.prompt, self.answer_schema(), self.parse_reply, examples)
        feedback, shown = await ask_judge(question, task, self, ask)
        return shown.with_omission_note(feedback)

    def input_texts(self, task: Task, candidate: Candidate) -> dict[str, str]:
        """Return the untrusted texts that the judge sees, by name."""
        return input_texts(task, candidate, TASK_FIELDS if self.template is not None else self._rubric.task_fields)

    def prompt(self, texts: Mapping[str, str], nonce: str) -> str:
        """Return the user message: the criteria, what is data, the data, and the format of the answer."""
        enclosed = {name: enclose(name, text, nonce) for name, text in texts.items()}
        criteria = "\n".join([CRITERIA, *map(_describe_criterion, self.criteria)])
        levels = f"{SCORE_SCALE}\n{LEVELS_NOTE}" if any(c.levels for c in self.criteria) else SCORE_SCALE
        closing = f"{JSON_ONLY}\n{self.answer_format()}\n{levels}"
        examples = [_format_example(n, e, nonce) for n, e in enumerate(self._rubric.examples, 1)]
        examples = [EXAMPLES, *examples] if examples else []
        if self._rubric.template is None:
            return "\n\n".join([criteria, data_notice(nonce), *examples, *enclosed.values(), closing])
        return "\n\n".join([data_notice(nonce), *self._template_texts(enclosed, criteria), *examples, closing])

    def _template_texts(self, texts: Mapping[str, str], criteria: str) -> list[str]:
        """Return the filled template and, unless it has a field for them, the criteria of the rubric."""
        template = Template(self._rubric.template or "")
        filled = template.fill({**texts, "criteria": criteria})
        return [filled] if self.criteria == overall_criterion() or "criteria" in template.fields else [filled, criteria]

    def answer_format(self) -> str:
        """Return the format of the answer as the model sees it: the first criterion in full, the others abbreviated."""
        first, *others = [c.name for c in self.criteria]
        rows = ", ".join([f"{_json_string(first)}: {CRITERION_FORMAT}", *(f"{_json_string(name)}: {{...}}" for name in others)])
        return f'{{"criteria": {{{rows}}}, {DONE_FORMAT}}}'

    def answer_schema(self) -> dict[str, Any]:
        """Return the JSON schema of the answer. Texts are bounded: a model that rambles never reaches the score."""
        score = {"type": "integer", "enum": list(range(MAX_SCORE + 1))}
        line = object_schema(evidence=text_schema(MAX_QUOTE_CHARS), change=text_schema(MAX_CHANGE_CHARS), score=score)
        return object_schema(criteria=object_schema(**{c.name: line for c in self.criteria}), done={"type": "boolean"})

    def parse_reply(self, reply: Reply) -> Feedback:
        """Return the feedback in a reply. Raises UnreadableOutput."""
        data = read_object(reply.text)
        rows = object_at(data, "criteria")
        scores = tuple(_parse_criterion(rows, c) for c in self.criteria)
        if unknown := rows.keys() - {c.name for c in self.criteria}:
            raise UnreadableOutput(f"there is no criterion {min(unknown)[:60]!r}")
        reason = "; ".join(f"{s.name} {round(s.score * MAX_SCORE)}/{MAX_SCORE}" for s in scores)
        return Feedback(weighted_mean(scores), reason, open_actions(scores), bool_at(data, "done"), scores)


# ---- shared by judges of single answers


def no_answer_feedback(reason: str) -> Feedback:
    """Return the feedback on a text that is no answer."""
    return Feedback(0.0, reason, (NO_ANSWER_ACTION,), done=False)


def weighted_mean(scores: tuple[CriterionScore, ...]) -> float:
    """Return the weighted mean of criteria, in [0, 1]."""
    return min(sum(s.score * s.weight for s in scores) / sum(s.weight for s in scores), 1.0)


def open_actions(scores: tuple[CriterionScore, ...]) -> tuple[str, ...]:
    """Return what to change, for the criteria that are not fully met."""
    return tuple(dict.fromkeys(s.action for s in scores if s.score < 1 and s.action))


def change_text(row: Mapping[str, Any], default: str) -> str:
    """Return the change that a judge asks for, or `default` if it asks for none."""
    change = string_at(row, "change")[: 4 * MAX_CHANGE_CHARS]
    return default if change.casefold().rstrip(". ") in NO_CHANGE_TEXTS else change


def _parse_criterion(data: Mapping[str, Any], criterion: Criterion) -> CriterionScore:
    row = object_at(data, criterion.name)
    score = int_at(row, "score", 0, MAX_SCORE)
    change = change_text(row, criterion.description and f"Make this hold: {criterion.description}")
    evidence = string_at(row, "evidence")[:300]
    return CriterionScore(criterion.name, score / MAX_SCORE, evidence, change if score < MAX_SCORE else "", criterion.weight)


def _json_string(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def _describe_criterion(criterion: Criterion) -> str:
    return "\n".join([f"- {criterion.name}: {criterion.description}", *(f"  {level} = {text}" for level, text in criterion.levels)])


def _format_example(n: int, example: ScoredExample, nonce: str) -> str:
    """Return a scored example: the answer as data, then its scores and the reason."""
    task = f"Task: {example.task}\nAnswer: " if example.task else ""
    scores = ", ".join(f"{name} {score}" for name, score in example.scores)
    answer = enclose(f"example-{n}", f"{task}{example.answer}", nonce)
    return "\n".join([answer, f"Scores: {scores}. {example.reason}".rstrip()])
