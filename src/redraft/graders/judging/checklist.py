"""A checklist: yes, partial or no to questions about an answer, given by people or drawn from the task by the model.

The score is the weighted share of what is met (yes 1, partial 0.5, no 0). Questions drawn from a task are kept, so that all
its candidates answer the same ones: TICK (arXiv:2410.03608) found that such checklists make judges agree more with people.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, TypeAlias
from weakref import WeakKeyDictionary, WeakValueDictionary

from ... import checks
from ...core.cancellation import run_beside
from ...core.records import Candidate, Criterion, Feedback, Task
from ...errors import ConfigError
from ...middleware.messages import NOT_SHOWN
from ...protocols import Ask, Reply
from ..computed.no_answer import find_no_answer
from ..rubric import READABLE, only, read_table, weight_of
from . import json_reader as reading
from .pointwise import (
    ANSWER,
    LONGEST_CHANGE,
    LONGEST_QUOTE,
    NO_ANSWER,
    SYSTEM,
    Inquiry,
    actions_of,
    an_object,
    change_at,
    check_setting,
    mean,
    no_answer,
    put,
    text_up_to,
)
from .prompt import CONTROL_NOTICE, DATA_NOTICE, enclose, notice, without_control_tokens
from .transcript import materials, size_of, transcript

WORTH = {"yes": 1.0, "partial": 0.5, "no": 0.0}
MOST_QUESTIONS, LONGEST_QUESTION = 40, 300  # characters
MOST_KEPT = 1024  # tasks whose drawn questions are kept
DRAW = (
    "Write down at most {n} questions by which an answer to this task can be checked. Each can be answered with yes or no by "
    "reading the answer, asks for one thing only, and yes is what a good answer gets. Begin with what the task demands "
    "in so many words; then what it takes for granted. Do not answer the task, and ask nothing twice."
)
DRAW_FORM = '{"questions": ["Does the answer ...?"]}'
CHECK = "Answer each question about the answer below."
ROW = '"q1": {"evidence": "short quote", "change": "what to change, or empty", "answer": "yes, partial or no"}'
MEANING = "yes: fully so; partial: in part, or not throughout; no: not so, or it cannot be seen in the answer."


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of an answer, and how much it weighs (> 0)."""

    text: str
    weight: float = 1.0


Questions: TypeAlias = tuple[Question, ...]
Given: TypeAlias = Sequence[str | tuple[str, float] | Question] | str | Path


class Drawn:
    """The questions drawn so far, by task. Those who ask for the same ones at the same moment wait for one drawing."""

    def __init__(self, kept: Mapping[str, Questions] | None = None) -> None:
        self._kept = dict(kept or {})
        self._guard = threading.Lock()
        self._waits: WeakKeyDictionary[asyncio.AbstractEventLoop, WeakValueDictionary[str, asyncio.Lock]] = WeakKeyDictionary()

    def __reduce__(self) -> tuple[type[Drawn], tuple[dict[str, Questions]]]:
        return Drawn, (dict(self._kept),)

    async def of(self, key: str, draw: Callable[[], Awaitable[Questions]]) -> Questions:
        """The questions under `key`; where there are none, what `draw` draws.

        Two event loops may both draw; what came first is kept.
        """
        async with self._lock(key):
            known = self._kept.get(key)
            return known if known is not None else self._keep(key, await draw())

    def _lock(self, key: str) -> asyncio.Lock:
        """One lock a task and event loop, for as long as somebody holds or awaits it."""
        with self._guard:
            return self._waits.setdefault(asyncio.get_running_loop(), WeakValueDictionary()).setdefault(key, asyncio.Lock())

    def _keep(self, key: str, drawn: Questions) -> Questions:
        with self._guard:
            while len(self._kept) >= MOST_KEPT:
                del self._kept[next(iter(self._kept))]
            return self._kept.setdefault(key, drawn)


@dataclass(frozen=True)
class Checklist:
    """An LLM grader that answers questions with yes, partial or no, all in one call.

    `questions`: texts, or (text, weight); a file that holds `questions`; None: the model draws at most `n` (1-40) from each
    task, in one call more, once: they are kept for the last 1024 tasks, as long as this object lives. Another process
    draws anew, unless a cache remembers what was answered. `model`, `max_eval_chars` and `images` are as in `Judge`.
    Raises ConfigError.
    """

    questions: Given | None = None
    n: int = 6
    name: str = "checklist"
    model: Any = None
    temperature: float | None = 0.0
    max_tokens: int | None = 2048
    max_eval_chars: int = 32_768
    images: bool = True
    _drawn: Drawn = field(default_factory=Drawn, init=False, repr=False, compare=False)

    wording: ClassVar[tuple[str, ...]] = (
        SYSTEM, DRAW, DRAW_FORM, CHECK, ROW, MEANING, ANSWER, DATA_NOTICE, CONTROL_NOTICE, NOT_SHOWN, NO_ANSWER
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_setting(self.name, self)
        checks.whole_number("checklist: n", self.n, 1, MOST_QUESTIONS)
        if self.questions is not None:
            object.__setattr__(self, "questions", as_questions(self.questions))

    @property
    def calls_once(self) -> int:
        """The calls that it makes once for a task."""
        return 1 if self.questions is None else 0

    async def grade(self, task: Task, candidate: Candidate, ask: Ask) -> Feedback:
        """Feedback on one candidate. A text that is no answer at all gets 0 without a call.

        Raises BadResponseError when an answer stays unreadable after one re-ask.
        """
        if not candidate.tool_calls and (why := await find_no_answer(candidate.text, task)):
            return no_answer(why)
        questions = await self.questions_for(task, ask)
        texts = await run_beside(size_of(task, candidate.readable), materials, task, candidate, READABLE)
        inquiry = Inquiry(texts, partial(_check, questions), _answers(len(questions)), partial(read, questions=questions))
        feedback, exhibit = await put(inquiry, task, self, ask)
        return exhibit.noted(feedback)

    async def questions_for(self, task: Task, ask: Ask) -> Questions:
        """The questions given, or those drawn from the task; drawn now if they never were."""
        if self.questions is not None:
            return as_questions(self.questions)
        key = await run_beside(size_of(task), _key, task)
        return await self._drawn.of(key, lambda: self._draw(task, ask))

    async def _draw(self, task: Task, ask: Ask) -> Questions:
        given = {name: getattr(task, name) for name in READABLE}
        told = await run_beside(size_of(task), transcript, task)
        texts = {**told.texts, **{name: text for name, text in given.items() if text}}
        inquiry = Inquiry(texts, partial(_wish, self.n), _drawing(self.n), partial(read_drawn, most=self.n))
        drawn, _ = await put(inquiry, task, self, ask)
        return drawn


def as_questions(given: Given) -> Questions:
    """Questions from texts, (text, weight) pairs, or a file. Raises ConfigError."""
    if isinstance(given, str | Path):
        data, _ = read_table(given, "questions", _lines, "checklist")
        return _listed(_questions_in(data, str(given)), str(given))
    return _listed(given, "checklist")


def _questions_in(data: Mapping[str, Any], where: str) -> Any:
    only(data, ("name", "about", "questions"), where)
    return data.get("questions")


def _listed(rows: Any, where: str) -> Questions:
    if not isinstance(rows, Sequence) or not 1 <= len(rows) <= MOST_QUESTIONS:
        raise ConfigError(f"{where}: `questions` must be a list of 1 to {MOST_QUESTIONS} questions, got {rows!r}")
    questions = tuple(_question(row, where) for row in rows)
    if twice := _repeated([q.text for q in questions]):
        raise ConfigError(f"{where}: the question {twice!r} stands there twice")
    return questions


def _question(row: Any, where: str) -> Question:
    if isinstance(row, Mapping):
        only(row, ("question", "weight"), where)
        row = row.get("question"), row.get("weight", 1.0)
    match row:
        case Question(text, weight) | [text, weight]:
            pass
        case text:
            weight = 1.0
    if not isinstance(text, str) or not text.strip() or len(text) > LONGEST_QUESTION:
        raise ConfigError(
            f"{where}: a question is a text of 1 to {LONGEST_QUESTION} characters, perhaps with a weight, got {row!r}"
        )
    return Question(" ".join(text.split()), weight_of(weight, text, where))


def _repeated(texts: Sequence[str]) -> str | None:
    """The first text that stands there twice, whatever its case."""
    seen: set[str] = set()
    for text in texts:
        if text.casefold() in seen:
            return text
        seen.add(text.casefold())
    return None


def _lines(text: str) -> Mapping[str, Any]:
    """Each line is a question; headings are none."""
    lines = [line.strip() for line in text.splitlines() if not line.lstrip().startswith("#")]
    return {"questions": [line.lstrip("-* ") for line in lines if line.lstrip("-* ")]}


def _key(task: Task) -> str:
    asked = [task.messages, task.context, task.reference, task.tests]
    return sha256(json.dumps(asked, sort_keys=True, default=repr).encode()).hexdigest()


# ---- what the model is asked, and what it answers


def _wish(n: int, texts: Mapping[str, str], nonce: str) -> str:
    shown = (enclose(name, text, nonce) for name, text in texts.items())
    return "\n\n".join([DRAW.replace("{n}", str(n)), notice(nonce), *shown, f"{ANSWER}\n{DRAW_FORM}"])


def _drawing(n: int) -> dict[str, Any]:
    return an_object(questions={"type": "array", "items": text_up_to(LONGEST_QUESTION), "minItems": 1, "maxItems": n})


def read_drawn(reply: Reply, most: int) -> Questions:
    """The questions in a reply. Raises Unreadable unless they are 1 to `most`, different and not overlong."""
    held = reading.read_object(reply.text).get("questions")
    if not isinstance(held, list) or not 1 <= len(held) <= most:
        raise reading.Unreadable(f"'questions' must be a list of 1 to {most} texts")
    if not all(isinstance(q, str) and q.strip() and len(q) <= LONGEST_QUESTION for q in held):
        raise reading.Unreadable(f"a question is a text of 1 to {LONGEST_QUESTION} characters")
    questions = tuple(Question(" ".join(q.split())) for q in held)
    if twice := _repeated([q.text for q in questions]):
        raise reading.Unreadable(f"the question {twice!r} stands there twice")
    return questions


def _check(questions: Questions, texts: Mapping[str, str], nonce: str) -> str:
    listed = "\n".join([CHECK, *(f"q{n}: {without_control_tokens(q.text)}" for n, q in enumerate(questions, 1))])
    shown = (enclose(name, text, nonce) for name, text in texts.items())
    form = ", ".join([ROW, *(f'"q{n}": {{...}}' for n in range(2, len(questions) + 1))])
    return "\n\n".join([listed, notice(nonce), *shown, f"{ANSWER}\n{{{form}}}\n{MEANING}"])


def _answers(n: int) -> dict[str, Any]:
    answer = {"type": "string", "enum": list(WORTH)}
    line = an_object(evidence=text_up_to(LONGEST_QUOTE), change=text_up_to(LONGEST_CHANGE), answer=answer)
    return an_object(**{f"q{k}": line for k in range(1, n + 1)})


def read(reply: Reply, questions: Questions) -> Feedback:
    """The feedback in a reply. Raises Unreadable unless each question is answered with yes, partial or no."""
    data = reading.read_object(reply.text)
    views = tuple(_view(data, f"q{n}", q) for n, q in enumerate(questions, 1))
    if strangers := data.keys() - {f"q{n}" for n in range(1, len(questions) + 1)}:
        raise reading.Unreadable(f"there is no question {min(strangers)[:60]!r}")
    score = mean(views)
    met, partly = sum(v.score == 1 for v in views), sum(v.score == WORTH["partial"] for v in views)
    reason = f"{met} of {len(views)} yes" + (f", {partly} in part" if partly else "")
    return Feedback(score, reason, actions_of(views), met == len(views), views)


def _view(data: Mapping[str, Any], key: str, asked: Question) -> Criterion:
    row = reading.object_at(data, key)
    said = reading.text(row, "answer").lower()  # (casefold makes "yes" of a long s, too)
    if said not in WORTH:
        raise reading.Unreadable(f"the answer to {key!r} must be yes, partial or no, got {said[:60]!r}")
    change = "" if said == "yes" else change_at(row, f"Make the answer to this yes: {asked.text}")
    return Criterion(asked.text, WORTH[said], reading.text(row, "evidence")[:300], change, asked.weight)
