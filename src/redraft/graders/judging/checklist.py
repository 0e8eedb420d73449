"""A checklist: questions about an answer, written by people or generated from the task, that a
model answers yes, partial or no.

The model first says why, in prose. The score is the weighted mean of the answers (yes 1, partial
0.5, no 0). Generated questions are cached by task, so that all its candidates answer the same ones.
TICK (arXiv:2410.03608) found that judges with such checklists agree more with people.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, TypeAlias
from weakref import WeakKeyDictionary, WeakValueDictionary

from ...base import checks
from ...base.own_code import fingerprint_name
from ...base.threads import run_in_thread_if_large
from ...errors import ConfigError
from ...loop.records import Candidate, CriterionScore, Feedback
from ...loop.task import Task
from ...middleware.messages import IMAGES_OMITTED_NOTE
from ...protocols import JudgeClient, Reply, Request
from ..computed.no_answer import find_no_answer_reason
from ..rubric import TASK_FIELDS, check_keys, read_table, weight_of
from .pointwise import (
    MAX_CHANGE_CHARS,
    MAX_QUOTE_CHARS,
    NO_ANSWER_ACTION,
    no_answer_feedback,
    open_actions,
    requested_change,
    weighted_mean,
)
from .prompt import (
    CONTROL_NOTICE,
    DATA_NOTICE,
    ShownTexts,
    data_notice,
    input_texts,
    task_texts,
    total_chars,
    without_control_tokens,
)
from .structured import (
    JSON_ONLY,
    MAX_REASON_CHARS,
    REASON_FORMAT,
    SYSTEM,
    LlmJudge,
    UnreadableOutput,
    ask_judge,
    object_schema,
    read_object,
    reason_at,
    spell_keys,
    string_at,
    text_schema,
    texts_at,
    word_at,
)

ANSWER_SCORES = {"yes": 1.0, "partial": 0.5, "no": 0.0}
ANSWER_KEYS = ("evidence", "change", "answer")
MAX_QUESTIONS, MAX_QUESTION_CHARS = 40, 300
MAX_CACHED_TASKS = 1024
QUESTIONS_PROMPT = (
    "Write at most {n} questions that check an answer to this task. Each question asks for one "
    "thing, can be answered with yes or no by reading the answer, and is answered with yes if the "
    "answer is good. Begin with what the task asks for explicitly; then add what it implies. Do "
    "not answer the task, and do not ask the same thing twice."
)
QUESTIONS_FORMAT = '{"questions": ["Does the answer ...?"]}'
CHECKLIST_PROMPT = "Answer each question about the answer below."
ANSWER_FORMAT = (
    '"q1": {"evidence": "short quote", "change": "what to change, or empty", "answer": "yes, '
    'partial or no"}'
)
ANSWER_MEANINGS = (
    "yes: completely true; partial: true in part, or not everywhere; no: not true, or the answer "
    "does not show it."
)


@fingerprint_name("question")
@dataclass(frozen=True, slots=True)
class Question:
    """A question about an answer, and its weight (> 0)."""

    text: str
    weight: float = 1.0


Questions: TypeAlias = tuple[Question, ...]
QuestionsInput: TypeAlias = Sequence[str | tuple[str, float] | Question] | str | Path


class QuestionCache:
    """The questions generated so far, by task. Concurrent requests for the same questions wait for
    one generation.
    """

    def __init__(self, questions: Mapping[str, Questions] | None = None) -> None:
        self._questions = dict(questions or {})
        self._guard = threading.Lock()
        self._locks: WeakKeyDictionary[
            asyncio.AbstractEventLoop, WeakValueDictionary[str, asyncio.Lock]
        ] = WeakKeyDictionary()

    def __reduce__(self) -> tuple[type[QuestionCache], tuple[dict[str, Questions]]]:
        return QuestionCache, (dict(self._questions),)

    async def get_or_create(
        self, key: str, generate: Callable[[], Awaitable[Questions]]
    ) -> Questions:
        """Return the questions under `key`; generate them if there are none.

        Two event loops may both generate questions; those stored first are used.
        """
        with self._guard:
            locks = self._locks.setdefault(asyncio.get_running_loop(), WeakValueDictionary())
            # it exists as long as anything holds or awaits it
            lock = locks.setdefault(key, asyncio.Lock())
        async with lock:
            questions = self._questions.get(key)
            return questions if questions is not None else self._store(key, await generate())

    def _store(self, key: str, questions: Questions) -> Questions:
        with self._guard:
            while len(self._questions) >= MAX_CACHED_TASKS:
                del self._questions[next(iter(self._questions))]
            return self._questions.setdefault(key, questions)


@fingerprint_name("checklist")
@dataclass(frozen=True)
class Checklist(LlmJudge):
    """An LLM grader that answers questions with yes, partial or no, all in one call.

    `questions` are texts or (text, weight) pairs, or a file that holds `questions`. With None, the
    model generates at most `n` (1-40) from each task, with one more call per task. The grader
    caches the criteria of the last 1024 tasks; another process generates them again, unless the
    response cache holds them. `model`, `max_tokens`, `max_eval_chars`, `images` and `params` are as
    in `Judge`. Raises ConfigError.
    """

    questions: QuestionsInput | None = None
    n: int = 6
    name: str = "checklist"
    model: Any = None
    temperature: float | None = 0.0
    max_tokens: int | None = None
    max_eval_chars: int = 32_768
    images: bool = True
    params: Mapping[str, Any] | None = field(default=None, compare=False)
    _question_cache: QuestionCache = field(
        default_factory=QuestionCache, init=False, repr=False, compare=False
    )

    prompt_texts: ClassVar[tuple[str, ...]] = (
        SYSTEM,
        QUESTIONS_PROMPT,
        QUESTIONS_FORMAT,
        CHECKLIST_PROMPT,
        REASON_FORMAT,
        ANSWER_FORMAT,
        ANSWER_MEANINGS,
        JSON_ONLY,
        DATA_NOTICE,
        CONTROL_NOTICE,
        IMAGES_OMITTED_NOTE,
        NO_ANSWER_ACTION,
    )

    def __post_init__(self) -> None:
        self.check_settings()
        checks.whole_number("checklist: n", self.n, 1, MAX_QUESTIONS)
        if self.questions is not None:
            object.__setattr__(self, "questions", as_questions(self.questions))

    @property
    def setup_calls(self) -> int:
        """The number of calls that it makes once for each task."""
        return 1 if self.questions is None else 0

    async def grade(self, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback:
        """Return feedback on one candidate. A text that is no answer at all gets 0 without a call.

        Raises BadResponseError if a reply is unreadable twice.
        """
        if not candidate.tool_calls and (
            reason := await find_no_answer_reason(candidate.text, task)
        ):
            return no_answer_feedback(reason)
        questions = await self.questions_for(task, ask)

        def build() -> tuple[Request, ShownTexts]:
            texts = input_texts(task, candidate, TASK_FIELDS)
            prompt = partial(_checklist_prompt, questions)
            return self.build_request(task, texts, prompt, _answers_schema(len(questions)))

        size = total_chars(task, candidate.display_text)
        parse = partial(parse_answers, questions=questions)
        feedback, shown = await ask_judge(ask, size, build, parse)
        return shown.with_omission_note(feedback)

    async def questions_for(self, task: Task, ask: JudgeClient) -> Questions:
        """Return the questions given, or those generated from the task."""
        if self.questions is not None:
            return as_questions(self.questions)
        key = await run_in_thread_if_large(total_chars(task), _task_key, task)
        return await self._question_cache.get_or_create(
            key, lambda: self._generate_questions(task, ask)
        )

    async def _generate_questions(self, task: Task, ask: JudgeClient) -> Questions:
        def build() -> tuple[Request, ShownTexts]:
            texts, prompt = task_texts(task, TASK_FIELDS), partial(_question_prompt, self.n)
            return self.build_request(task, texts, prompt, _questions_schema(self.n))

        questions, _ = await ask_judge(
            ask, total_chars(task), build, partial(parse_questions, max_questions=self.n)
        )
        return questions


def as_questions(source: QuestionsInput) -> Questions:
    """Return questions from texts, (text, weight) pairs, or a file. Raises ConfigError."""
    if isinstance(source, str | Path):
        data, _ = read_table(source, "questions", _parse_lines, "checklist")
        check_keys(data, ("name", "about", "questions"), str(source))
        return _questions_from_rows(data.get("questions"), str(source))
    return _questions_from_rows(source, "checklist")


def _questions_from_rows(rows: Any, where: str) -> Questions:
    if not isinstance(rows, Sequence) or not 1 <= len(rows) <= MAX_QUESTIONS:
        raise ConfigError(
            f"{where}: `questions` must be a list of 1 to {MAX_QUESTIONS} questions, got "
            f"{checks.format_value(rows)}"
        )
    questions = tuple(_question_from_row(row, where) for row in rows)
    counts = Counter(q.text.casefold() for q in questions)
    if duplicates := [q.text for q in questions if counts[q.text.casefold()] > 1]:
        raise ConfigError(f"{where}: the question {duplicates[-1]!r} occurs twice")
    return questions


def _question_from_row(row: Any, where: str) -> Question:
    if isinstance(row, Mapping):
        check_keys(row, ("question", "weight"), where)
        row = row.get("question"), row.get("weight", 1.0)
    match row:
        case Question(text, weight) | [text, weight]:
            pass
        case _:
            text, weight = row, 1.0
    if not isinstance(text, str) or not text.strip() or len(text) > MAX_QUESTION_CHARS:
        raise ConfigError(
            f"{where}: a question is a text of 1 to {MAX_QUESTION_CHARS} characters, perhaps with "
            f"a weight, got {checks.format_value(row)}"
        )
    return Question(" ".join(text.split()), weight_of(weight, text, where))


def _parse_lines(text: str) -> Mapping[str, Any]:
    """Return one question for each line that is not a heading."""
    lines = [line.strip() for line in text.splitlines() if not line.lstrip().startswith("#")]
    return {"questions": [line.lstrip("-* ") for line in lines if line.lstrip("-* ")]}


def _task_key(task: Task) -> str:
    content = [task.messages, task.context, task.reference, task.tests]
    return sha256(json.dumps(content, sort_keys=True, default=repr).encode()).hexdigest()


# ---- prompts and replies


def _question_prompt(n: int, texts: Mapping[str, str], nonce: str) -> str:
    prompt, closing = QUESTIONS_PROMPT.replace("{n}", str(n)), f"{JSON_ONLY}\n{QUESTIONS_FORMAT}"
    return "\n\n".join([prompt, data_notice(nonce), *texts.values(), closing])


def _questions_schema(n: int) -> dict[str, Any]:
    return object_schema(
        questions={
            "type": "array",
            "items": text_schema(MAX_QUESTION_CHARS),
            "minItems": 1,
            "maxItems": n,
        }
    )


def parse_questions(reply: Reply, max_questions: int) -> Questions:
    """Return the different questions in a reply. Raises UnreadableOutput if one is too long, or
    there are none or too many.
    """
    rows = texts_at(spell_keys(read_object(reply.text), ("questions",)), "questions")
    if not 1 <= len(rows) <= max_questions:
        raise UnreadableOutput(f"'questions' must be a list of 1 to {max_questions} texts")
    if not all(len(q) <= MAX_QUESTION_CHARS for q in rows):
        raise UnreadableOutput(f"a question is a text of 1 to {MAX_QUESTION_CHARS} characters")
    texts = {text.casefold(): text for q in reversed(rows) if (text := " ".join(q.split()))}
    return tuple(map(Question, reversed(texts.values())))


def _checklist_prompt(questions: Questions, texts: Mapping[str, str], nonce: str) -> str:
    numbered = [f"q{n}: {without_control_tokens(q.text)}" for n, q in enumerate(questions, 1)]
    others = [f'"q{n}": {{...}}' for n in range(2, len(questions) + 1)]
    answers = ", ".join([REASON_FORMAT, ANSWER_FORMAT, *others])
    closing = f"{JSON_ONLY}\n{{{answers}}}\n{ANSWER_MEANINGS}"
    demands = "\n".join([CHECKLIST_PROMPT, *numbered])
    return "\n\n".join([demands, data_notice(nonce), *texts.values(), closing])


def _answers_schema(n: int) -> dict[str, Any]:
    answer = {"type": "string", "enum": list(ANSWER_SCORES)}
    line = object_schema(
        evidence=text_schema(MAX_QUOTE_CHARS), change=text_schema(MAX_CHANGE_CHARS), answer=answer
    )
    return object_schema(
        reason=text_schema(MAX_REASON_CHARS), **{f"q{k}": line for k in range(1, n + 1)}
    )


def parse_answers(reply: Reply, questions: Questions) -> Feedback:
    """Return the feedback in a reply. Raises UnreadableOutput unless it answers each question."""
    data = spell_keys(
        read_object(reply.text), ["reason", *(f"q{n}" for n in range(1, len(questions) + 1))]
    )
    scores = tuple(
        _parse_answer(data, f"q{n}", question) for n, question in enumerate(questions, 1)
    )
    done = all(score.score == ANSWER_SCORES["yes"] for score in scores)
    return Feedback(weighted_mean(scores), reason_at(data), open_actions(scores), done, scores)


def _parse_answer(data: Mapping[str, Any], key: str, question: Question) -> CriterionScore:
    row = data.get(key)
    row = spell_keys(row if isinstance(row, dict) else {"answer": row}, ANSWER_KEYS)
    answer = word_at({key: row.get("answer")}, key, list(ANSWER_SCORES))
    change = ""
    if answer != "yes":
        demand = f"Make the answer to this yes: {question.text}"
        change = requested_change(string_at(row, "change")) or demand
    return CriterionScore(
        question.text,
        ANSWER_SCORES[answer],
        string_at(row, "evidence")[:300],
        change,
        question.weight,
    )
