"""The training formats: examples made from one trace.

Pure: files, splits and other rows are not known here. A trace that gives no example raises `NotExportable` with the reason.
Only whole answers with a score count, each text once; a missing score is never guessed.
The columns are those that TRL's trainers read (its documentation, "Dataset formats and types"); all of ours begin with
`redraft_`, so that no trainer takes one for its own (a column `margin` would change what TRL's RewardTrainer learns).

Scores are those that graders gave, not the estimates of a noise-aware plan: each example can be checked against its feedback.
If graders are noisy, the answer with the best score has also been lucky: use a `min_margin` well above their noise.
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

ExampleColumns: TypeAlias = dict[str, Any]

FORMATS = ("preference", "unpaired", "prompt-completion", "messages", "stepwise", "trajectory")
PAIRS = ("best-first", "best-worst", "all")
STYLES = ("conversational", "standard")
FILES = ("jsonl", "parquet")
WITH_MARGIN = ("preference", "unpaired", "stepwise")
WITH_GOOD = ("unpaired", "prompt-completion", "messages")
TOLERANCE = 1e-9  # scores closer than this are equal

NO_ANSWER = "no answer"
CALLS_TOOLS = "the answers call tools"
NO_SCORE = "no answer has a score"
TRUNCATED = "the scored answers were cut off"
EMPTY = "the scored answers are empty"
BREAKS_MUST = "the best answer breaks a must"
ONE_ANSWER = "only one scored answer"
NO_BETTER = "no better answer"
SAME = "the same text"
MARGIN = "the margin is too small"
TOO_LOW = "the best score is too low"
NO_TEXT = "the prompt is more than text"
NO_QUESTION = "the prompt does not end with a user or a tool"
NOT_ONE_MESSAGE = "the prompt is more than one user message, which plain text cannot hold"


class NotExportable(Exception):
    """A row gives no example, for the reason in the message."""


@dataclass(frozen=True, slots=True)
class ExportConfig:
    """How a run is exported.

    `format` and its columns:

    - preference (prompt, chosen, rejected): chosen is the best answer, which keeps every must; rejected one that scored
      less by at least `min_margin`, and is not the same. `pairs` says which: "best-first" the first scored answer,
      "best-worst" the one that scored least, "all" a pair with each.
    - unpaired (prompt, completion, label): the answers of those pairs, the chosen one True, the others False. With `good`
      a score decides instead: every answer that scored at least so much and keeps its musts is True, every one that
      scored less than `good` - `min_margin` or breaks a must is False, and what lies between is left out.
    - prompt-completion (prompt, completion) and messages (messages): the best answer, where it keeps every must and
      scored at least `good`.
    - stepwise (prompt, completions, labels): all scored answers in the order they were made, each labelled with whether
      it is better than the answer it came from: more musts kept, or as many and a score higher by at least `min_margin`.
      One that came from no scored answer counts as better if it keeps every must and scored more than 0. These are steps of
      a refinement, not of a reasoning chain. Always plain text, as TRL reads it.
    - trajectory (prompt, candidates, best, stop): a format of Redraft. The whole refinement, unscored and cut-off answers
      included: each with its parent, score and feedback.

    If other graders give scores, an answer that breaks a must counts as 0: any other is better.

    `style`: "conversational" (lists of messages) or "standard" (text); a prompt of more than one user message is left
    out of the latter. `test_size` in [0, 1) is the share of prompts for the test file: it depends on the user's
    words and `salt` alone. `min_margin` and `good` are in [0, 1]. `files`: the type of the files in a folder. `with_demands`:
    whether the prompt ends with the hard constraints, as the model was given them; otherwise it is the user's own prompt.
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
        _check_share("test_size", self.test_size, 1 - TOLERANCE)
        self._check_use("min_margin", self.min_margin != 0, WITH_MARGIN)
        self._check_use("good", self.good is not None, WITH_GOOD)
        self._check_use("pairs", self.pairs != "best-first", ("preference", "unpaired"))
        self._check_use("style", self.style != "conversational", tuple(f for f in FORMATS if f != "messages"))

    def _check_use(self, name: str, given: bool, formats: tuple[str, ...]) -> None:  # noqa: FBT001
        if given and self.format not in formats:
            raise ConfigError(f"{name} is for {', '.join(formats)}; format {self.format!r} does not use {getattr(self, name)!r}")

    @property
    def standard(self) -> bool:
        """Whether prompts and answers are plain text."""
        return self.style == "standard" or self.format == "stepwise"


def _check_share(name: str, value: Any, most: float) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not isfinite(value) or not 0 <= value <= most:
        raise ConfigError(f"{name} must be a number in [0, 1{']' if most == 1 else ')'}, got {value!r}")


@dataclass(frozen=True, slots=True)
class PromptMessages:
    """The messages of a task as (role, text), and their form in a file."""

    messages: tuple[tuple[str, str], ...]
    standard: bool

    @property
    def column(self) -> Any:
        return self.messages[0][1] if self.standard else [{"role": role, "content": text} for role, text in self.messages]

    def answer(self, text: str) -> Any:
        """Return an answer in the same style."""
        return text if self.standard else [{"role": "assistant", "content": text}]

    def in_test(self, config: ExportConfig) -> bool:
        """Return whether it is for the test file. Only its words decide, not its white space or its run."""
        words = [(role, " ".join(text.split())) for role, text in self.messages]
        digest = sha256(repr((config.salt, words)).encode("utf-8", "surrogatepass")).digest()
        return int.from_bytes(digest[:8]) < config.test_size * 2**64


@dataclass(frozen=True, slots=True)
class TrainingExample:
    """One example: its columns, the texts by which duplicates are found, and the numbers that the dataset card shows."""

    columns: ExampleColumns
    texts: tuple[str, ...]
    numbers: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class ScoredAnswer:
    """A whole answer with a score, and the share of musts that it keeps.

    If other graders give scores, the score of an answer that breaks a must is 0.
    """

    candidate: Candidate
    score: float
    must_pass_rate: float

    @property
    def text(self) -> str:
        return self.candidate.text

    @property
    def id(self) -> int:
        return self.candidate.id


@dataclass(frozen=True)
class TraceExamples:
    """The examples of a trace: with the `prompt` that they show, and the user's `own` prompt, which decides the split."""

    trace: Trace
    config: ExportConfig
    prompt: PromptMessages = field(init=False)
    own: PromptMessages = field(init=False)

    def __post_init__(self) -> None:
        standard, own = self.config.standard, self.trace.task.messages
        shown = draft_messages(self.trace) if self.config.with_demands else own
        object.__setattr__(self, "own", prompt_of(own, standard=standard))
        object.__setattr__(self, "prompt", prompt_of(shown, standard=standard))

    def examples(self) -> list[TrainingExample]:
        """Return at least one example. Raises NotExportable."""
        return MAKERS[self.config.format](self)

    def answers(self) -> list[ScoredAnswer]:
        """Return the whole answers with a score, oldest first, without copies of their parents. Raises NotExportable."""
        trace = self.trace
        found = [c for c in trace.candidates if c.id not in trace.unchanged_ids]
        if not found:
            raise NotExportable(NO_ANSWER)
        for reason, usable in FILTERS:
            found = [c for c in found if usable(trace, c)]
            if not found:
                raise NotExportable(reason)
        has_scorers = any(not grader.must for grader in trace.pointwise_graders)
        rates = {c.id: trace.must_pass_rate(c.id) for c in found}
        return [ScoredAnswer(c, 0.0 if has_scorers and rates[c.id] < 1 else trace.scores[c.id] or 0.0, rates[c.id]) for c in found]

    def best_of(self, answers: Sequence[ScoredAnswer]) -> ScoredAnswer:
        """Return the best of them. Raises NotExportable if it breaks a must."""
        best_id = self.trace.best.id if self.trace.best else None
        best = max(answers, key=lambda a: (a.must_pass_rate, a.score, a.id == best_id, -a.id))
        if best.must_pass_rate < 1:
            raise NotExportable(BREAKS_MUST)
        return best

    def pairs(self) -> tuple[ScoredAnswer, list[ScoredAnswer]]:
        """Return the chosen answer, and those that it exceeds by the margin. Raises NotExportable."""
        answers = self.answers()
        chosen = self.best_of(answers)
        if len(answers) < 2:
            raise NotExportable(ONE_ANSWER)
        pool = PAIR_CANDIDATES[self.config.pairs](answers)
        verdicts = [(rejection_reason(chosen, other, self.config.min_margin), other) for other in pool]
        rejected = [other for reason, other in verdicts if not reason]
        if not rejected:
            raise NotExportable(max((reason for reason, _ in verdicts), key=PAIR_REASONS.index))
        return chosen, rejected


def _has_score(trace: Trace, candidate: Candidate) -> bool:
    return trace.scores[candidate.id] is not None


def _is_whole(_: Trace, candidate: Candidate) -> bool:
    return not candidate.truncated


def _has_text(_: Trace, candidate: Candidate) -> bool:
    return bool(candidate.text.strip())


def _is_text_alone(_: Trace, candidate: Candidate) -> bool:
    return not candidate.tool_calls


FILTERS = ((CALLS_TOOLS, _is_text_alone), (NO_SCORE, _has_score), (TRUNCATED, _is_whole), (EMPTY, _has_text))
PAIR_CANDIDATES: Mapping[str, Callable[[list[ScoredAnswer]], list[ScoredAnswer]]] = {
    "best-first": lambda answers: answers[:1],
    "best-worst": lambda answers: [min(answers, key=lambda a: (a.score, a.id))],
    "all": lambda answers: answers,
}
PAIR_REASONS = [NO_BETTER, SAME, MARGIN]  # to being a pair


def rejection_reason(chosen: ScoredAnswer, other: ScoredAnswer, min_margin: float) -> str:
    """Return why two answers make no pair; "" if they make one."""
    margin = chosen.score - other.score
    if chosen.id == other.id or margin < TOLERANCE:
        return NO_BETTER
    if chosen.text.strip() == other.text.strip():
        return SAME
    return MARGIN if margin < min_margin - TOLERANCE else ""


def prompt_of(task_messages: Iterable[Message], *, standard: bool) -> PromptMessages:
    """Return messages as text. Raises NotExportable for content that text cannot represent."""
    messages = tuple((str(m["role"]), _words(m)) for m in task_messages)
    if messages[-1][0] not in {"user", "tool"}:
        raise NotExportable(NO_QUESTION)
    if standard and [role for role, _ in messages] != ["user"]:
        raise NotExportable(NOT_ONE_MESSAGE)
    return PromptMessages(messages, standard)


NON_TEXT = ("tool_calls", "function_call", "images", "audio")


def _words(message: Message) -> str:
    content = message["content"]
    parts = content if isinstance(content, list | tuple) else [{"text": content}]
    if any(message.get(key) for key in NON_TEXT) or not all(map(_is_text, parts)):
        raise NotExportable(NO_TEXT)
    return message_text(message)


def _is_text(part: Any) -> bool:
    return isinstance(part, Mapping) and isinstance(part.get("text"), str)


def preference_examples(source: TraceExamples) -> list[TrainingExample]:
    chosen, rejected = source.pairs()
    return [_pair(source.prompt, chosen, other) for other in rejected]


def _pair(prompt: PromptMessages, chosen: ScoredAnswer, rejected: ScoredAnswer) -> TrainingExample:
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
    return TrainingExample(columns, tuple(sorted((chosen.text.strip(), rejected.text.strip()))), numbers)


def unpaired_examples(source: TraceExamples) -> list[TrainingExample]:
    labels = _by_threshold(source, source.config.good) if source.config.good is not None else _by_pairs(*source.pairs())
    return [_labelled_example(source.prompt, answer, label) for answer, label in labels]


def _by_pairs(chosen: ScoredAnswer, rejected: list[ScoredAnswer]) -> list[tuple[ScoredAnswer, bool]]:
    return [(chosen, True), *((other, False) for other in rejected)]


def _by_threshold(source: TraceExamples, good: float) -> list[tuple[ScoredAnswer, bool]]:
    poor = good - source.config.min_margin
    answers = source.answers()
    found = [
        (a, a.must_pass_rate == 1 and a.score >= good) for a in answers if a.score >= good or a.score < poor or a.must_pass_rate < 1
    ]
    if not found:
        raise NotExportable(MARGIN)
    return found


def _labelled_example(prompt: PromptMessages, answer: ScoredAnswer, label: bool) -> TrainingExample:  # noqa: FBT001
    columns = {"prompt": prompt.column, "completion": prompt.answer(answer.text), "label": label, **_score_columns(answer)}
    return TrainingExample(columns, (answer.text.strip(),), (("good" if label else "bad", answer.score),))


def _score_columns(answer: ScoredAnswer) -> ExampleColumns:
    return {"redraft_by": answer.candidate.by, "redraft_score": answer.score}


def _good(source: TraceExamples) -> ScoredAnswer:
    best = source.best_of(source.answers())
    if best.score < (source.config.good or 0.0):
        raise NotExportable(TOO_LOW)
    return best


def completion_examples(source: TraceExamples) -> list[TrainingExample]:
    best, prompt = _good(source), source.prompt
    columns = {"prompt": prompt.column, "completion": prompt.answer(best.text), **_score_columns(best)}
    return [TrainingExample(columns, (best.text.strip(),), (("best", best.score),))]


def message_examples(source: TraceExamples) -> list[TrainingExample]:
    best, prompt = _good(source), source.prompt
    columns = {"messages": [*prompt.column, *prompt.answer(best.text)], **_score_columns(best)}
    return [TrainingExample(columns, (best.text.strip(),), (("best", best.score),))]


def stepwise_examples(source: TraceExamples) -> list[TrainingExample]:
    answers = source.answers()
    if len(answers) < 2:
        raise NotExportable(ONE_ANSWER)
    scored = {a.id: a for a in answers}
    columns = {
        "prompt": source.prompt.column,
        "completions": [a.text for a in answers],
        "labels": [_is_step(a, _scored_ancestor(source.trace, a, scored), source.config.min_margin) for a in answers],
        "redraft_by": [a.candidate.by for a in answers],
        "redraft_scores": [a.score for a in answers],
    }
    numbers = (("first", answers[0].score), ("highest", max(a.score for a in answers)))
    return [TrainingExample(columns, tuple(a.text for a in answers), numbers)]


def _scored_ancestor(trace: Trace, answer: ScoredAnswer, scored: Mapping[int, ScoredAnswer]) -> ScoredAnswer | None:
    """Return the nearest scored answer among its ancestors."""
    parent = answer.candidate.parent
    while parent is not None and parent not in scored:
        older = trace.by_id.get(parent)
        parent = older.parent if older and older.parent != parent else None
    return None if parent is None else scored[parent]


def _is_step(answer: ScoredAnswer, parent: ScoredAnswer | None, min_margin: float) -> bool:
    if parent is None:
        return answer.must_pass_rate == 1 and answer.score > 0
    if answer.must_pass_rate != parent.must_pass_rate:
        return answer.must_pass_rate > parent.must_pass_rate
    return answer.score - parent.score >= max(TOLERANCE, min_margin - TOLERANCE)


def trajectory_examples(source: TraceExamples) -> list[TrainingExample]:
    trace = source.trace
    if not trace.candidates:
        raise NotExportable(NO_ANSWER)
    columns = {
        "prompt": source.prompt.column,
        "candidates": [_candidate_columns(trace, c) for c in trace.candidates],
        "best": trace.best.id if trace.best else None,
        "stop": str(trace.outcome.reason) if trace.outcome else None,
    }
    ends = (("first", trace.scores[trace.candidates[0].id]), ("best", trace.judge_score))
    texts = tuple(c.text for c in trace.candidates)
    return [TrainingExample(columns, texts, tuple((name, score) for name, score in ends if score is not None))]


def _candidate_columns(trace: Trace, candidate: Candidate) -> ExampleColumns:
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
        "feedback": [_feedback_columns(f) for f in trace.feedback[c.id]],
    }


def _feedback_columns(feedback: Feedback) -> ExampleColumns:
    f = feedback
    return {
        "grader": f.grader,
        "repeat": f.repeat,
        "score": f.score,
        "reason": f.reason,
        "actions": list(map(str, f.actions)),
        "done": f.done,
    }


MAKERS: Mapping[str, Callable[[TraceExamples], list[TrainingExample]]] = {
    "preference": preference_examples,
    "unpaired": unpaired_examples,
    "prompt-completion": completion_examples,
    "messages": message_examples,
    "stepwise": stepwise_examples,
    "trajectory": trajectory_examples,
}

# The types of the columns, in the names of Hugging Face `datasets`; a list of one type, an object by its fields.
_MESSAGES = [{"role": "string", "content": "string"}]
_FEEDBACK = {"grader": "string", "repeat": "int64", "score": "float64", "reason": "string", "actions": ["string"], "done": "bool"}
_CANDIDATE = {
    "id": "int64",
    "parent": "int64",
    "by": "string",
    "role": "string",
    "text": "string",
    "truncated": "bool",
    "score": "float64",
    "musts_kept": "float64",
    "feedback": [_FEEDBACK],
}
_SCORE = {"redraft_by": "string", "redraft_score": "float64"}
_TYPES: Mapping[str, Mapping[str, Any]] = {
    "preference": {
        "prompt": _MESSAGES,
        "chosen": _MESSAGES,
        "rejected": _MESSAGES,
        "redraft_chosen_by": "string",
        "redraft_rejected_by": "string",
        **dict.fromkeys(("redraft_score_chosen", "redraft_score_rejected", "redraft_margin"), "float64"),
    },
    "unpaired": {"prompt": _MESSAGES, "completion": _MESSAGES, "label": "bool", **_SCORE},
    "prompt-completion": {"prompt": _MESSAGES, "completion": _MESSAGES, **_SCORE},
    "messages": {"messages": _MESSAGES, **_SCORE},
    "stepwise": {
        "prompt": _MESSAGES,
        "completions": ["string"],
        "labels": ["bool"],
        "redraft_by": ["string"],
        "redraft_scores": ["float64"],
    },
    "trajectory": {"prompt": _MESSAGES, "candidates": [_CANDIDATE], "best": "int64", "stop": "string"},
}
_PROVENANCE = {"redraft_run": "string", "redraft_row": "string", "redraft_model": "string", "redraft_graders": ["string"]}


def types_of(config: ExportConfig) -> dict[str, Any]:
    """Return the type of every column of a file, provenance included."""
    plain = {name: "string" if config.standard and kind is _MESSAGES else kind for name, kind in _TYPES[config.format].items()}
    return {**plain, **_PROVENANCE}


def provenance_of(trace: Trace, run: str, row: str, model: str | None) -> ExampleColumns:
    """Return the columns that say where an example comes from."""
    graders: Iterable[str] = (grader.name for grader in trace.panel)
    return {"redraft_run": run, "redraft_row": row, "redraft_model": model, "redraft_graders": list(graders)}
