"""The LLM judge: a model that reads task, answer and rubric in a fresh context, and says what to
change.

It answers with one JSON object: the reason in prose; for each criterion a short quotation as
evidence, what to change, and a whole number 0-5; then whether nothing should change. The score is
the weighted mean divided by 5. Reason and evidence come before the numbers, as in G-Eval
(arXiv:2303.16634). A template may have its own scale and its own form of reply (`own_form`).
Untrusted text is put between delimiters (see `prompt`): a mitigation, not a guarantee.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias, cast

from ...base import checks
from ...base.own_code import fingerprint_name
from ...errors import ConfigError
from ...loop.records import Candidate, CriterionScore, Feedback
from ...loop.task import Task
from ...middleware.messages import IMAGES_OMITTED_NOTE
from ...protocols import JudgeClient, Reply, Request
from ..base import all_actions, consensus, gather_or_cancel
from ..computed.no_answer import find_no_answer_reason
from ..rubric import (
    DEFAULT_RUBRIC,
    OVERALL,
    TASK_FIELDS,
    Criterion,
    Rubric,
    ScoredExample,
    as_rubric,
    overall_criterion,
)
from ..template import (
    MAX_NUMBERS,
    Kind,
    Paths,
    ReadInput,
    Scale,
    check_scale,
    parse_read,
    parse_scale,
)
from .expectation import TOP_LOGPROBS, Expectation, expected_scores
from .own_form import OwnReply, TemplateJudge, TypedForm, form_schema, short_metadata
from .prompt import (
    CONTROL_NOTICE,
    DATA_NOTICE,
    ShownTexts,
    data_notice,
    enclose,
    input_texts,
    total_chars,
)
from .structured import (
    JSON_ONLY,
    MAX_REASON_CHARS,
    REASON_FORMAT,
    SYSTEM,
    KeyPath,
    UnreadableOutput,
    ask_judge,
    bool_at,
    misfit,
    object_schema,
    read_object,
    reason_at,
    score_at,
    spell_keys,
    string_at,
    text_schema,
)

Scoring: TypeAlias = Literal["written", "expectation"]
CriteriaMode: TypeAlias = Literal["together", "separate"]

SCORE_SCALE = (
    "Scores: 0 absent or wrong, 1 poor, 2 weak, 3 acceptable, 4 good, 5 nothing to improve."
)
OWN_SCALE = "Each score is {scale}: {low} is the worst, {high} the best."
LEVELS_NOTE = (
    "If levels are described, give the score of the level that fits best; a score between two "
    "levels is allowed."
)
CRITERIA = "Criteria:"
EXAMPLES = "Examples of how answers to other tasks are scored:"
CRITERION_FORMAT = (
    '{"evidence": "short quote", "change": "what to change, or empty", "score": {scale}}'
)
DONE_FORMAT = '"done": true only if nothing should change'
NO_ANSWER_ACTION = "Give an actual answer."
REPLY_KEYS, ROW_KEYS = ("reason", "criteria", "done"), ("evidence", "change", "score")
NAME_KEYS = ("name", "criterion", "criterion_name", "aspect", "dimension")
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
class Judge(TemplateJudge):
    """An LLM grader. It asks a model why, for a score for each criterion, a quotation as evidence,
    and what to change.

    Args:
        rubric: The criteria: a mapping of criterion to description, the name of a rubric in the
            gallery such as "helpfulness", a file that holds a rubric, or a `Rubric`. The default
            asks whether instructions are followed, and about correctness, completeness and clarity.
        name: Its name in the trace.
        template: Your own prompt, as text or as the Path of a file, with fields such as `{query}`,
            `{response}`, `{context}` and `{reference}`; any other `{field}` is taken from the
            task's metadata (a column of the data). Without a rubric the judge then gives one
            overall score.
        model: The model to ask, in any form that `refine` takes. None means the `judge` of the
            call, else its `model`.
        temperature: Sampling temperature; None leaves it to the endpoint.
        max_tokens: Maximum length of its verdict and its reasoning together, in tokens. None sets
            no limit: the endpoint has its own, and a budget limits every call. A verdict that is
            cut off is asked for once more with four times the tokens.
        params: Further parameters of its calls, such as `{"reasoning_effort": "low"}`;
            `temperature` and `max_tokens` among them are those above. They win over the
            `judge_params` of the call.
        max_eval_chars: Maximum length of each text that it is shown, in characters. The middle of a
            longer text is left out, visibly, and the feedback says so.
        images: Whether the images of the task are sent to it. If its endpoint accepts none, the
            prompt says that they are missing.
        reads_tool_calls: Whether answers that call tools are also graded and refined, with the
            calls shown as data. If no grader reads tool calls, such answers are returned unchanged.
            A rubric can turn this on.
        scale: The worst and the best score that it may write: `(1, 10)` for whole numbers, `(0.0,
            1.0)` for decimals. The score is mapped linearly to [0, 1]. None means 0-5 in whole
            numbers.
        read: The keys of the JSON that your template asks for, if it states its own form of reply:
            the key of the score, or a mapping of "score", "reason", "actions" and "done" to keys,
            which may be dotted paths; or a pydantic model with these fields, which validates the
            replies. Then nothing is appended to the template, and a schema of the form is sent to
            endpoints that take one. A form with a score needs `scale`, or bounds of the field. A
            form without one is a critic: it says what to change, or whether to stop, and gives no
            score.
        scoring: "written" takes the scores as written. "expectation" computes each as the mean over
            all scores of the scale, weighted by their token probabilities (G-Eval,
            arXiv:2303.16634); the scale must be of whole numbers. Where the endpoint gives no
            probabilities, the written score counts, and `reason` and `metadata` of the feedback say
            so.
        criteria_mode: "together" asks for all criteria in one call. "separate" asks for each in a
            call of its own, at the same time: scores in one reply influence those that follow
            (Stureborg et al., arXiv:2405.01724).

    Raises:
        ConfigError: The rubric, the template, its form or a limit is wrong.
    """

    rubric: Rubric | Mapping[str, Any] | str | Path = DEFAULT_RUBRIC
    name: str = "judge"
    template: str | Path | None = None
    model: Any = None
    temperature: float | None = 0.0
    max_tokens: int | None = None
    max_eval_chars: int = 32_768
    images: bool = True
    reads_tool_calls: bool = field(default=False, compare=False)
    scale: tuple[float, float] | None = None
    read: ReadInput | None = None
    scoring: Scoring = "written"
    criteria_mode: CriteriaMode = "together"
    params: Mapping[str, Any] | None = field(default=None, compare=False)

    template_kind: ClassVar[Kind] = "pointwise"
    prompt_texts: ClassVar[tuple[str, ...]] = (
        SYSTEM,
        CRITERIA,
        SCORE_SCALE,
        OWN_SCALE,
        LEVELS_NOTE,
        EXAMPLES,
        JSON_ONLY,
        REASON_FORMAT,
        CRITERION_FORMAT,
        DONE_FORMAT,
        DATA_NOTICE,
        CONTROL_NOTICE,
        IMAGES_OMITTED_NOTE,
        NO_ANSWER_ACTION,
    )

    def __post_init__(self) -> None:
        self.check_settings()
        checks.one_of("scoring", self.scoring, ("written", "expectation"))
        checks.one_of("criteria_mode", self.criteria_mode, ("together", "separate"))
        rubric = self._complete_rubric(as_rubric(self.rubric))
        settings = {
            "rubric": rubric,
            "template": rubric.template,
            "scale": rubric.scale,
            "read": TypedForm.of(self.read) or rubric.read,
            "reads_tool_calls": self.reads_tool_calls or rubric.reads_tool_calls,
        }
        for name, value in settings.items():
            object.__setattr__(self, name, value)
        has_criteria = rubric.template is None or rubric.criteria != overall_criterion()
        if self.criteria_mode == "separate" and not has_criteria:
            raise ConfigError(
                "criteria_mode='separate' needs a rubric with criteria: the template alone has "
                "one overall score"
            )
        if self.is_critic and (self.scoring, self.criteria_mode) != ("written", "together"):
            raise ConfigError(
                "read names no score: scoring='expectation' and criteria_mode='separate' need one"
            )
        if self.scoring == "expectation" and not self._scale.is_short:
            raise checks.invalid_argument(
                "scale",
                f"of at most {MAX_NUMBERS} whole numbers for scoring='expectation'",
                tuple(self._scale),
            )

    def _complete_rubric(self, rubric: Rubric) -> Rubric:
        """Return the rubric with the template, the scale and the reply form of this judge. Raises
        ConfigError.
        """
        template = self._load_template(rubric.template)
        if self.template is not None and rubric == DEFAULT_RUBRIC:
            rubric = replace(rubric, name="template", criteria=overall_criterion())
        rubric = replace(rubric, template=template)
        typed = TypedForm.of(self.read)
        if self.read is None:
            read = rubric.paths
        else:
            read = typed.paths if typed else parse_read(self.read, "pointwise")
        given_scale = rubric.scale if self.scale is None else self.scale
        scale = typed.scale if typed else None
        if given_scale is not None:
            scale = parse_scale(given_scale)
        if typed and typed.scale and scale != typed.scale:
            raise ConfigError(
                f"scale must be {tuple(typed.scale)}, the bounds of the score of {typed.name}, "
                f"got {given_scale!r}"
            )
        check_scale(scale, read)
        return replace(rubric, scale=scale, read=read)

    @property
    def criteria(self) -> tuple[Criterion, ...]:
        return self._rubric.criteria

    @property
    def score_step(self) -> float | None:
        """The distance between two neighbouring scores: the scale's, divided by the criteria.

        None if decimals occur, or if criteria have different weights: then the distances differ.
        """
        scale = self._scale
        if (
            self.is_critic
            or self.scoring == "expectation"
            or not scale.is_whole
            or len({c.weight for c in self.criteria}) > 1
        ):
            return None
        return 1 / ((scale.high - scale.low) * max(1, len(self.criteria)))

    @property
    def grade_calls(self) -> int:
        """The number of calls that it makes for each candidate."""
        return len(self.criteria) if self.criteria_mode == "separate" else 1

    @property
    def _rubric(self) -> Rubric:
        return cast("Rubric", self.rubric)  # set by __post_init__

    @property
    def _scale(self) -> Scale:
        return self._rubric.score_scale

    @property
    def is_critic(self) -> bool:
        """Whether it never scores: it has a reply form without a score."""
        return self._form is not None and "score" not in dict(self._form)

    async def grade(self, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback:
        """Return feedback on one candidate. A text that is no answer at all gets 0 without a call.

        Raises BadResponseError if the reply is unreadable twice, ConfigError for a task that lacks
        what the rubric needs.
        """
        self.check_task(task)
        if not candidate.tool_calls and (
            reason := await find_no_answer_reason(candidate.text, task)
        ):
            feedback = no_answer_feedback(reason)
            return replace(feedback, score=None) if self.is_critic else feedback
        if self.grade_calls == 1:
            return await self.grade_together(task, candidate, ask)
        votes = await gather_or_cancel(
            self.for_criterion(c).grade_together(task, candidate, ask) for c in self.criteria
        )
        return join_criteria(self.criteria, votes)

    async def grade_together(self, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback:
        """Return feedback by all criteria, asked for in one call."""
        feedback, shown = await ask_judge(
            ask,
            total_chars(task, candidate.display_text),
            partial(self._build_request, task, candidate),
            self.parse_reply,
            in_thread=self._typed_form is not None,
        )
        return shown.with_omission_note(feedback)

    def _build_request(self, task: Task, candidate: Candidate) -> tuple[Request, ShownTexts]:
        """Return the request for all criteria, and what it shows."""
        return self.build_request(
            task,
            self.input_texts(task, candidate),
            self.prompt,
            self.answer_schema(),
            extra_texts=[text for e in self._rubric.examples for text in (e.task, e.answer)],
            top_logprobs=TOP_LOGPROBS if self.scoring == "expectation" else None,
        )

    def for_criterion(self, criterion: Criterion) -> Judge:
        """Return the judge for one criterion alone, with the examples that are scored by it."""
        known = {criterion.name, OVERALL}
        scored = [
            replace(e, scores=tuple(pair for pair in e.scores if pair[0] in known))
            for e in self._rubric.examples
        ]
        rubric = replace(
            self._rubric, criteria=(criterion,), examples=tuple(e for e in scored if e.scores)
        )
        return replace(self, rubric=rubric, criteria_mode="together")

    def input_texts(self, task: Task, candidate: Candidate) -> dict[str, str]:
        """Return the untrusted texts that the judge sees, by name."""
        if self._template is None:
            return input_texts(task, candidate, self._rubric.task_fields)
        columns = self._template.metadata_texts(task)
        return {**input_texts(task, candidate, TASK_FIELDS), **columns}

    def prompt(self, texts: Mapping[str, str], nonce: str) -> str:
        """Return the user message: the criteria, what is data, the data between delimiters, and the
        format of the answer.
        """
        scored = enumerate(self._rubric.examples, 1)
        examples = [_format_example(n, example, nonce) for n, example in scored]
        if examples:
            examples = [EXAMPLES, *examples]
        if self._template is None:
            parts = [self._criteria_text, data_notice(nonce), *examples, *texts.values()]
        else:
            parts = [
                data_notice(nonce),
                *self._filled_template(self._template, texts),
                *examples,
            ]
        return "\n\n".join(parts if self._form else [*parts, self._closing])

    @property
    def _criteria_text(self) -> str:
        """The criteria of the rubric, with their descriptions."""
        return "\n".join([CRITERIA, *map(_describe_criterion, self.criteria)])

    @property
    def _closing(self) -> str:
        """The format of the answer and the meaning of the scores."""
        scale, meaning = self._scale, SCORE_SCALE
        if self.scale is not None:
            meaning = OWN_SCALE.format(scale=scale.description, low=scale.low, high=scale.high)
        levels = [LEVELS_NOTE] if any(c.levels for c in self.criteria) else []
        return "\n".join([JSON_ONLY, self.answer_format(), meaning, *levels])

    def answer_format(self) -> str:
        """Return the format of the answer as the model sees it: the first criterion in full, the
        others abbreviated.
        """
        first, *others = [c.name for c in self.criteria]
        low, high = self._scale
        score = f"{low}-{high}" if low >= 0 else "number"
        rows = [
            f"{_json_string(first)}: {CRITERION_FORMAT.replace('{scale}', score)}",
            *(f"{_json_string(name)}: {{...}}" for name in others),
        ]
        return f'{{{REASON_FORMAT}, "criteria": {{{", ".join(rows)}}}, {DONE_FORMAT}}}'

    def answer_schema(self) -> Mapping[str, Any]:
        """Return the JSON schema of the answer. Texts are bounded: a model that rambles never
        reaches the score.
        """
        score = score_schema(self._scale)
        if self._typed_form:
            return self._typed_form.schema(score)
        if self._form and self._template:
            return form_schema(self._form, self._template.literal, score=score)
        line = object_schema(
            evidence=text_schema(MAX_QUOTE_CHARS), change=text_schema(MAX_CHANGE_CHARS), score=score
        )
        criteria = object_schema(**{c.name: line for c in self.criteria})
        return object_schema(
            reason=text_schema(MAX_REASON_CHARS), criteria=criteria, done={"type": "boolean"}
        )

    def parse_reply(self, reply: Reply) -> Feedback:
        """Return the feedback in a reply. Raises UnreadableOutput."""
        return (
            self._parse_own_form(reply, self._form) if self._form else self._parse_criteria(reply)
        )

    def _parse_criteria(self, reply: Reply) -> Feedback:
        data = spell_keys(read_object(reply.text), REPLY_KEYS)
        rows = _criterion_rows(data, [c.name for c in self.criteria])
        scores = tuple(_parse_criterion(rows, c, self._scale) for c in self.criteria)
        reason, done = reason_at(data), bool_at(data, "done")
        expectation = self._expectation(
            reply, [("criteria", c.name, "score") for c in self.criteria]
        )
        if expectation and expectation.scores:
            scores = tuple(
                replace(s, score=self._scale.share(e))
                for s, e in zip(scores, expectation.scores, strict=True)
            )
        feedback = Feedback(weighted_mean(scores), reason, open_actions(scores), done, scores)
        return _with_expectation(feedback, expectation)

    def _parse_own_form(self, reply: Reply, form: Paths) -> Feedback:
        typed, scale = self._typed_form, self._scale
        own = OwnReply(typed.read(reply.text, scale) if typed else read_object(reply.text), form)
        score, expectation = None, None
        if not self.is_critic:
            score = own.score(scale)
            expectation = self._expectation(reply, [tuple(dict(form)["score"].split("."))])
        elif not typed:  # a model says itself what may be missing
            own.check_critique()
        if expectation and expectation.scores:
            (score,) = expectation.scores
        share = None if score is None else scale.share(score)
        feedback = Feedback(share, own.reason, own.actions, own.done, metadata=own.metadata)
        return _with_expectation(feedback, expectation)

    def _expectation(self, reply: Reply, paths: Sequence[KeyPath]) -> Expectation | None:
        """Return the expectation of the score at each path; None if scores count as written."""
        return None if self.scoring == "written" else expected_scores(reply, paths, self._scale)


def score_schema(scale: Scale) -> dict[str, Any]:
    """Return the JSON schema of a score."""
    if scale.is_short:
        return {"type": "integer", "enum": list(scale.numbers)}
    return {
        "type": "integer" if scale.is_whole else "number",
        "minimum": scale.low,
        "maximum": scale.high,
    }


def join_criteria(criteria: Sequence[Criterion], votes: Sequence[Feedback]) -> Feedback:
    """Return one feedback from those on each criterion alone. It is done if all are."""
    pairs = list(zip(criteria, votes, strict=True))
    scores = tuple(_criterion_score(c, vote) for c, vote in pairs)
    named = {c.name: dict(vote.metadata) for c, vote in pairs if vote.metadata}
    return Feedback(
        weighted_mean(scores),
        "\n".join(f"{c.name}: {vote.reason}" for c, vote in pairs if vote.reason),
        all_actions(votes),
        consensus(vote.done for vote in votes),
        scores,
        metadata=short_metadata({"criteria": named}) if named else {},
    )


def _criterion_score(criterion: Criterion, vote: Feedback) -> CriterionScore:
    """Return the score of one criterion; with a form of one's own, the score of the whole reply."""
    assert vote.score is not None
    return (
        vote.criteria[0]
        if vote.criteria
        else CriterionScore(criterion.name, vote.score, weight=criterion.weight)
    )


def _with_expectation(feedback: Feedback, expectation: Expectation | None) -> Feedback:
    """Return the feedback with a record of how its score was computed; if not as asked for, the
    reason says so, too.
    """
    if expectation is None:
        return feedback
    reason = feedback.reason
    if not expectation.scores:
        note = f"the score is as written, not an expectation: {expectation.problem}"
        reason = "; ".join(filter(None, [reason, note]))
    metadata = {**feedback.metadata, **expectation.as_metadata()}
    return replace(feedback, reason=reason, metadata=metadata)


# ---- shared by judges of single answers


def no_answer_feedback(reason: str) -> Feedback:
    """Return the feedback on a text that is no answer."""
    return Feedback(0.0, reason, (NO_ANSWER_ACTION,), done=False)


def weighted_mean(scores: tuple[CriterionScore, ...]) -> float:
    """Return the weighted mean of criteria, in [0, 1]."""
    return min(sum([s.score * s.weight for s in scores]) / sum([s.weight for s in scores]), 1.0)


def open_actions(scores: tuple[CriterionScore, ...]) -> tuple[str, ...]:
    """Return what to change, for the criteria that are not fully met."""
    return tuple(dict.fromkeys([s.action for s in scores if s.score < 1 and s.action]))


def requested_change(text: str) -> str:
    """Return the change that a judge asks for in a text; "" if it asks for none."""
    change = text.strip()[: 4 * MAX_CHANGE_CHARS]
    return "" if change.casefold().rstrip(". ") in NO_CHANGE_TEXTS else change


def _criterion_rows(data: Mapping[str, Any], names: Sequence[str]) -> Mapping[str, Any]:
    """Return what a reply says of each criterion, by name. Raises UnreadableOutput if it says two
    things of one.

    The rows may be in an object, in a list of named objects or of objects with one key each, or
    beside the reason.
    """
    beside = spell_keys({key: value for key, value in data.items() if key not in REPLY_KEYS}, names)
    if "criteria" not in data:
        return beside
    rows = data["criteria"]
    if isinstance(rows, list):
        rows = _named_rows(rows)
    if not isinstance(rows, dict):
        raise misfit(data, "criteria", "an object")
    if twice := beside.keys() & set(names):
        raise UnreadableOutput(f"{min(twice)!r} is there twice, in 'criteria' and beside it")
    return spell_keys(rows, names)


def _named_rows(rows: Sequence[Any]) -> dict[str, Any]:
    """Return the objects of a list by their names. Raises UnreadableOutput for one without a name,
    and for two of one name.
    """
    named: dict[str, Any] = {}
    for row in rows:
        spelled = spell_keys(row, NAME_KEYS) if isinstance(row, dict) else {}
        name = next((spelled[key] for key in NAME_KEYS if isinstance(spelled.get(key), str)), None)
        value = row
        if name is None and len(spelled) == 1:
            ((name, value),) = row.items()
        if name is None or name in named:
            raise UnreadableOutput(
                "'criteria' must be an object, or a list of objects with different names"
            )
        named[name] = value
    return named


def _parse_criterion(rows: Mapping[str, Any], criterion: Criterion, scale: Scale) -> CriterionScore:
    """Return the score of a criterion, from an object or from a number alone. Raises
    UnreadableOutput.
    """
    row = rows.get(criterion.name)
    details = spell_keys(row, ROW_KEYS) if isinstance(row, dict) else {}
    place = (details, "score") if isinstance(row, dict) else (rows, criterion.name)
    score = score_at(*place, scale)
    change, evidence = string_at(details, "change"), string_at(details, "evidence")
    action = ""
    if score != scale.high:
        action = requested_change(change) or (
            criterion.description and f"Make this hold: {criterion.description}"
        )
    return CriterionScore(
        criterion.name, scale.share(score), evidence[:300], action, criterion.weight
    )


def _json_string(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def _describe_criterion(criterion: Criterion) -> str:
    return "\n".join(
        [
            f"- {criterion.name}: {criterion.description}",
            *(f"  {level} = {text}" for level, text in criterion.levels),
        ]
    )


def _format_example(n: int, example: ScoredExample, nonce: str) -> str:
    """Return a scored example: the answer as data, then its scores and the reason."""
    task = f"Task: {example.task}\nAnswer: " if example.task else ""
    scores = ", ".join(f"{name} {score}" for name, score in example.scores)
    answer = enclose(f"example-{n}", f"{task}{example.answer}", nonce)
    return "\n".join([answer, f"Scores: {scores}. {example.reason}".rstrip()])
