"""What a refinement teaches: examples to train on, made from one trace.

Pure: nothing is known here of files, splits or other rows. A trace that gives no example raises `LeftOut`, which says
why in words. Only answers with a score count, whole ones, each text once; what graders could not say is never guessed.
The columns are those that TRL's trainers read (its documentation, "Dataset formats and types"); all of ours begin with
`redraft_`, so that no trainer takes one for its own (a column `margin` would change what TRL's RewardTrainer learns).

Scores are those that graders gave, also where a plan believed otherwise: each example can be checked against the feedback
beside it. Where graders are noisy, the best by them has been lucky, too: a `min_margin` well above their noise keeps that out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from math import isfinite
from typing import Any, TypeAlias

from ..core.prompts import draft_messages
from ..core.records import Candidate, Feedback, Message, message_text
from ..core.trace import Trace
from ..errors import ConfigError

Columns: TypeAlias = dict[str, Any]

FORMATS = ("preference", "unpaired", "prompt-completion", "messages", "stepwise", "trajectory")
PAIRS = ("best-first", "best-worst", "all")
STYLES = ("conversational", "standard")
FILES = ("jsonl", "parquet")
WITH_MARGIN = ("preference", "unpaired", "stepwise")
WITH_GOOD = ("unpaired", "prompt-completion", "messages")
NEAR = 1e-9  # scores closer than this are the same

NO_ANSWER = "no answer"
CALLS_TOOLS = "the answers call tools"
NO_SCORE = "no answer has a score"
TRUNCATED = "the scored answers were cut off"
EMPTY = "the scored answers are empty"
BROKEN = "the best answer breaks a must"
ALONE = "only one scored answer"
NO_BETTER = "no better answer"
SAME = "the same text"
MARGIN = "the margin is too small"
TOO_LOW = "the best score is too low"
NO_TEXT = "the prompt is more than text"
NO_QUESTION = "the prompt does not end with a user or a tool"
SEVERAL = "the prompt is more than one user message, which plain text cannot hold"


class LeftOut(Exception):
    """A row gives no example; the message says why."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What to make of a run.

    `format` and its columns:

    - preference (prompt, chosen, rejected): chosen is the best answer, which keeps every must; rejected one that scored
      less by at least `min_margin`, and never the same. `pairs` says which: "best-first" the first scored answer,
      "best-worst" the one that scored least, "all" a pair with each.
    - unpaired (prompt, completion, label): the answers of those pairs, the chosen one True, the others False. With `good`
      a score decides instead: every answer that scored at least so much and keeps its musts is True, every one that
      scored less than `good` - `min_margin` or breaks a must is False, and what lies between is left out.
    - prompt-completion (prompt, completion) and messages (messages): the best answer, where it keeps every must and
      scored at least `good`.
    - stepwise (prompt, completions, labels): all scored answers in the order they were made, each labelled with whether
      it is better than the answer it came from: more musts kept, or as many and a score higher by at least `min_margin`.
      One that came from no scored answer is better than nothing where it keeps every must and scored more than 0. These
      are steps of a refinement, not of a line of thought. Always plain text, as TRL reads it.
    - trajectory (prompt, candidates, best, stop): ours. The whole refinement, unscored and cut-off answers included: each
      with its parent, score and feedback.

    Where other graders give scores, an answer that breaks a must counts as 0: it loses to any that does not.

    `style`: "conversational" (lists of messages) or "standard" (text); a prompt of more than one user message is left
    out of the latter. `test_size` in [0, 1) is the share of prompts for the test file: which side a prompt falls on
    depends on the user's words and `salt` alone. `min_margin` and `good` are in [0, 1]. `files`: what a folder is filled with.
    `with_demands`: whether the prompt ends with the hard constraints, as the writer was told them; without, it is the user's own.
    """

    format: str = "preference"
    pairs: str = "best-first"
    min_margin: float = 0.0
    good: float | None = None
    style: str = "conversational"
    test_size: float = 0.0
    salt: str = "redraft"
    files: str = "jsonl"
    with_demands: bool = False

    def __post_init__(self) -> None:
        for name, allowed in (("format", FORMATS), ("pairs", PAIRS), ("style", STYLES), ("files", FILES)):
            if (value := getattr(self, name)) not in allowed:
                raise ConfigError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")
        _check_share("min_margin", self.min_margin, 1.0)
        _check_share("good", 0.0 if self.good is None else self.good, 1.0)
        _check_share("test_size", self.test_size, 1 - NEAR)
        self._check_use("min_margin", self.min_margin != 0, WITH_MARGIN)
        self._check_use("good", self.good is not None, WITH_GOOD)
        self._check_use("pairs", self.pairs != "best-first", ("preference", "unpaired"))
        self._check_use("style", self.style != "conversational", tuple(f for f in FORMATS if f != "messages"))

    def _check_use(self, name: str, given: bool, formats: tuple[str, ...]) -> None:  # noqa: FBT001
        if given and self.format not in formats:
            raise ConfigError(f"{name} is for {', '.join(formats)}; format {self.format!r} has no use for {getattr(self, name)!r}")

    @property
    def standard(self) -> bool:
        """Whether prompts and answers are plain text."""
        return self.style == "standard" or self.format == "stepwise"


def _check_share(name: str, value: Any, most: float) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not isfinite(value) or not 0 <= value <= most:
        raise ConfigError(f"{name} must be a number in [0, 1{']' if most == 1 else ')'}, got {value!r}")


@dataclass(frozen=True, slots=True)
class Prompt:
    """The messages of a task as (role, text), and how a file holds them."""

    messages: tuple[tuple[str, str], ...]
    standard: bool

    @property
    def column(self) -> Any:
        return self.messages[0][1] if self.standard else [{"role": role, "content": text} for role, text in self.messages]

    def answer(self, text: str) -> Any:
        """An answer in the same style."""
        return text if self.standard else [{"role": "assistant", "content": text}]

    def in_test(self, recipe: Recipe) -> bool:
        """Whether it is for the test file. Its words decide, not the space between them, nor the run it stands in."""
        words = [(role, " ".join(text.split())) for role, text in self.messages]
        digest = sha256(repr((recipe.salt, words)).encode("utf-8", "surrogatepass")).digest()
        return int.from_bytes(digest[:8]) < recipe.test_size * 2**64


@dataclass(frozen=True, slots=True)
class Example:
    """One example: its columns, the texts it must be the only one to hold, and the numbers that a card shows of it."""

    columns: Columns
    texts: tuple[str, ...]
    numbers: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer with a score, and the share of musts that it keeps.

    Where other graders give scores, one that breaks a must counts as 0, whatever they say: it loses to any that does not.
    """

    candidate: Candidate
    score: float
    kept: float

    @property
    def text(self) -> str:
        return self.candidate.text

    @property
    def id(self) -> int:
        return self.candidate.id


@dataclass(frozen=True)
class Lesson:
    """What examples are made from: a trace, the prompt that they show, the user's `own` prompt, and what is wanted."""

    trace: Trace
    recipe: Recipe
    prompt: Prompt = field(init=False)
    own: Prompt = field(init=False)

    def __post_init__(self) -> None:
        standard, own = self.recipe.standard, self.trace.task.messages
        shown = draft_messages(self.trace) if self.recipe.with_demands else own
        object.__setattr__(self, "own", prompt_of(own, standard=standard))
        object.__setattr__(self, "prompt", prompt_of(shown, standard=standard))

    def examples(self) -> list[Example]:
        """At least one example, or `LeftOut`."""
        return MAKERS[self.recipe.format](self)

    def answers(self) -> list[Answer]:
        """The whole answers with a score, oldest first; a copy of its parent is none of its own."""
        trace = self.trace
        found = [c for c in trace.candidates if c.id not in trace.unchanged_ids]
        if not found:
            raise LeftOut(NO_ANSWER)
        for reason, usable in USABLE:
            found = [c for c in found if usable(trace, c)]
            if not found:
                raise LeftOut(reason)
        gates = any(not seat.must for seat in trace.pointwise_graders)
        kept = {c.id: trace.must_pass_rate(c.id) for c in found}
        return [Answer(c, 0.0 if gates and kept[c.id] < 1 else trace.scores[c.id] or 0.0, kept[c.id]) for c in found]

    def best_of(self, answers: Sequence[Answer]) -> Answer:
        """The best of them; it keeps every must."""
        kept_id = self.trace.best.id if self.trace.best else None
        best = max(answers, key=lambda a: (a.kept, a.score, a.id == kept_id, -a.id))
        if best.kept < 1:
            raise LeftOut(BROKEN)
        return best

    def pairs(self) -> tuple[Answer, list[Answer]]:
        """The chosen answer, and those it is better than by the margin."""
        answers = self.answers()
        chosen = self.best_of(answers)
        if len(answers) < 2:
            raise LeftOut(ALONE)
        pool = POOLS[self.recipe.pairs](answers)
        verdicts = [(why_not(chosen, other, self.recipe.min_margin), other) for other in pool]
        rejected = [other for reason, other in verdicts if not reason]
        if not rejected:
            raise LeftOut(max((reason for reason, _ in verdicts), key=NEARNESS.index))
        return chosen, rejected


def _has_score(trace: Trace, candidate: Candidate) -> bool:
    return trace.scores[candidate.id] is not None


def _is_whole(_: Trace, candidate: Candidate) -> bool:
    return not candidate.truncated


def _says_something(_: Trace, candidate: Candidate) -> bool:
    return bool(candidate.text.strip())


def _is_text_alone(_: Trace, candidate: Candidate) -> bool:
    return not candidate.tool_calls


USABLE = ((CALLS_TOOLS, _is_text_alone), (NO_SCORE, _has_score), (TRUNCATED, _is_whole), (EMPTY, _says_something))
POOLS: Mapping[str, Callable[[list[Answer]], list[Answer]]] = {
    "best-first": lambda answers: answers[:1],
    "best-worst": lambda answers: [min(answers, key=lambda a: (a.score, a.id))],
    "all": lambda answers: answers,
}
NEARNESS = [NO_BETTER, SAME, MARGIN]  # to being a pair


def why_not(chosen: Answer, other: Answer, min_margin: float) -> str:
    """Why they make no pair; "" when they do."""
    margin = chosen.score - other.score
    if chosen.id == other.id or margin < NEAR:
        return NO_BETTER
    if chosen.text.strip() == other.text.strip():
        return SAME
    return MARGIN if margin < min_margin - NEAR else ""


def prompt_of(asked: Iterable[Message], *, standard: bool) -> Prompt:
    """Messages as text. Raises LeftOut for what training on text would falsify."""
    messages = tuple((str(m["role"]), _words(m)) for m in asked)
    if messages[-1][0] not in {"user", "tool"}:
        raise LeftOut(NO_QUESTION)
    if standard and [role for role, _ in messages] != ["user"]:
        raise LeftOut(SEVERAL)
    return Prompt(messages, standard)


BEYOND_TEXT = ("tool_calls", "function_call", "images", "audio")


def _words(message: Message) -> str:
    content = message["content"]
    parts = content if isinstance(content, list | tuple) else [{"text": content}]
    if any(message.get(key) for key in BEYOND_TEXT) or not all(map(_is_text, parts)):
        raise LeftOut(NO_TEXT)
    return message_text(message)


def _is_text(part: Any) -> bool:
    return isinstance(part, Mapping) and isinstance(part.get("text"), str)


def preference(lesson: Lesson) -> list[Example]:
    chosen, rejected = lesson.pairs()
    return [_pair(lesson.prompt, chosen, other) for other in rejected]


def _pair(prompt: Prompt, chosen: Answer, rejected: Answer) -> Example:
    margin = round(chosen.score - rejected.score, 9)
    columns = {
        "prompt": prompt.column,
        "chosen": prompt.answer(chosen.text),
        "rejected": prompt.answer(rejected.text),
        "redraft_chosen_by": chosen.candidate.by,
        "redraft_rejected_by": rejected.candidate.by,
        "redraft_score_chosen": chosen.score,
        "redraft_score_rejected": rejected.score,
        "redraft_margin": margin,
    }
    numbers = (("chosen", chosen.score), ("rejected", rejected.score), ("margin", margin))
    return Example(columns, tuple(sorted((chosen.text.strip(), rejected.text.strip()))), numbers)


def unpaired(lesson: Lesson) -> list[Example]:
    judged = _judged(lesson, lesson.recipe.good) if lesson.recipe.good is not None else _unpaired(*lesson.pairs())
    return [_labelled(lesson.prompt, answer, label) for answer, label in judged]


def _unpaired(chosen: Answer, rejected: list[Answer]) -> list[tuple[Answer, bool]]:
    return [(chosen, True), *((other, False) for other in rejected)]


def _judged(lesson: Lesson, good: float) -> list[tuple[Answer, bool]]:
    poor = good - lesson.recipe.min_margin
    answers = lesson.answers()
    found = [(a, a.kept == 1 and a.score >= good) for a in answers if a.score >= good or a.score < poor or a.kept < 1]
    if not found:
        raise LeftOut(MARGIN)
    return found


def _labelled(prompt: Prompt, answer: Answer, label: bool) -> Example:  # noqa: FBT001
    columns = {"prompt": prompt.column, "completion": prompt.answer(answer.text), "label": label, **_scored(answer)}
    return Example(columns, (answer.text.strip(),), (("good" if label else "bad", answer.score),))


def _scored(answer: Answer) -> Columns:
    return {"redraft_by": answer.candidate.by, "redraft_score": answer.score}


def _good(lesson: Lesson) -> Answer:
    best = lesson.best_of(lesson.answers())
    if best.score < (lesson.recipe.good or 0.0):
        raise LeftOut(TOO_LOW)
    return best


def completion(lesson: Lesson) -> list[Example]:
    best, prompt = _good(lesson), lesson.prompt
    columns = {"prompt": prompt.column, "completion": prompt.answer(best.text), **_scored(best)}
    return [Example(columns, (best.text.strip(),), (("best", best.score),))]


def messages(lesson: Lesson) -> list[Example]:
    best, prompt = _good(lesson), lesson.prompt
    columns = {"messages": [*prompt.column, *prompt.answer(best.text)], **_scored(best)}
    return [Example(columns, (best.text.strip(),), (("best", best.score),))]


def stepwise(lesson: Lesson) -> list[Example]:
    answers = lesson.answers()
    if len(answers) < 2:
        raise LeftOut(ALONE)
    scored = {a.id: a for a in answers}
    columns = {
        "prompt": lesson.prompt.column,
        "completions": [a.text for a in answers],
        "labels": [_is_step(a, _came_from(lesson.trace, a, scored), lesson.recipe.min_margin) for a in answers],
        "redraft_by": [a.candidate.by for a in answers],
        "redraft_scores": [a.score for a in answers],
    }
    numbers = (("first", answers[0].score), ("highest", max(a.score for a in answers)))
    return [Example(columns, tuple(a.text for a in answers), numbers)]


def _came_from(trace: Trace, answer: Answer, scored: Mapping[int, Answer]) -> Answer | None:
    """The nearest scored answer among its ancestors."""
    parent = answer.candidate.parent
    while parent is not None and parent not in scored:
        older = trace.by_id.get(parent)
        parent = older.parent if older and older.parent != parent else None
    return None if parent is None else scored[parent]


def _is_step(answer: Answer, parent: Answer | None, min_margin: float) -> bool:
    if parent is None:
        return answer.kept == 1 and answer.score > 0
    if answer.kept != parent.kept:
        return answer.kept > parent.kept
    return answer.score - parent.score >= max(NEAR, min_margin - NEAR)


def trajectory(lesson: Lesson) -> list[Example]:
    trace = lesson.trace
    if not trace.candidates:
        raise LeftOut(NO_ANSWER)
    columns = {
        "prompt": lesson.prompt.column,
        "candidates": [_told(trace, c) for c in trace.candidates],
        "best": trace.best.id if trace.best else None,
        "stop": str(trace.outcome.reason) if trace.outcome else None,
    }
    ends = (("first", trace.scores[trace.candidates[0].id]), ("best", trace.judge_score))
    texts = tuple(c.text for c in trace.candidates)
    return [Example(columns, texts, tuple((name, score) for name, score in ends if score is not None))]


def _told(trace: Trace, candidate: Candidate) -> Columns:
    c = candidate
    return {
        "id": c.id,
        "parent": c.parent,
        "by": c.by,
        "role": c.role,
        "text": c.display_text,
        "truncated": c.truncated,
        "score": trace.scores[c.id],
        "musts_kept": trace.must_pass_rate(c.id),
        "feedback": [_view(f) for f in trace.feedback[c.id]],
    }


def _view(feedback: Feedback) -> Columns:
    f = feedback
    return {
        "grader": f.grader,
        "look": f.repeat,
        "score": f.score,
        "reason": f.reason,
        "actions": list(map(str, f.actions)),
        "done": f.done,
    }


MAKERS: Mapping[str, Callable[[Lesson], list[Example]]] = {
    "preference": preference,
    "unpaired": unpaired,
    "prompt-completion": completion,
    "messages": messages,
    "stepwise": stepwise,
    "trajectory": trajectory,
}

# What the columns hold, in the type names of Hugging Face `datasets`; a list of one type, an object by its fields.
_TALK = [{"role": "string", "content": "string"}]
_VIEW = {"grader": "string", "look": "int64", "score": "float64", "reason": "string", "actions": ["string"], "done": "bool"}
_TOLD = {
    "id": "int64",
    "parent": "int64",
    "by": "string",
    "role": "string",
    "text": "string",
    "truncated": "bool",
    "score": "float64",
    "musts_kept": "float64",
    "feedback": [_VIEW],
}
_SCORED = {"redraft_by": "string", "redraft_score": "float64"}
_TYPES: Mapping[str, Mapping[str, Any]] = {
    "preference": {
        "prompt": _TALK,
        "chosen": _TALK,
        "rejected": _TALK,
        "redraft_chosen_by": "string",
        "redraft_rejected_by": "string",
        **dict.fromkeys(("redraft_score_chosen", "redraft_score_rejected", "redraft_margin"), "float64"),
    },
    "unpaired": {"prompt": _TALK, "completion": _TALK, "label": "bool", **_SCORED},
    "prompt-completion": {"prompt": _TALK, "completion": _TALK, **_SCORED},
    "messages": {"messages": _TALK, **_SCORED},
    "stepwise": {
        "prompt": _TALK,
        "completions": ["string"],
        "labels": ["bool"],
        "redraft_by": ["string"],
        "redraft_scores": ["float64"],
    },
    "trajectory": {"prompt": _TALK, "candidates": [_TOLD], "best": "int64", "stop": "string"},
}
_PROVENANCE = {"redraft_run": "string", "redraft_row": "string", "redraft_model": "string", "redraft_graders": ["string"]}


def types_of(recipe: Recipe) -> dict[str, Any]:
    """What every column of a file holds, provenance included."""
    plain = {name: "string" if recipe.standard and kind is _TALK else kind for name, kind in _TYPES[recipe.format].items()}
    return {**plain, **_PROVENANCE}


def provenance_of(trace: Trace, run: str, row: str, model: str | None) -> Columns:
    """Where an example comes from."""
    graders: Iterable[str] = (seat.name for seat in trace.panel)
    return {"redraft_run": run, "redraft_row": row, "redraft_model": model, "redraft_graders": list(graders)}
