"""The training formats: `TraceExamples` makes examples from one trace, as `ExportConfig` says.

These functions are pure: files and splits are in `writer`. Only answers that were not cut off and
have a score are used, each text once. A trace without an example raises `NotExportable` with the
reason. The columns are those that TRL's trainers read (see "Dataset formats and types" in its
documentation). All other columns begin with `redraft_`, so that no trainer reads them: a column
`margin`, for example, would change what TRL's RewardTrainer learns.

Scores come from the graders; they are not the estimates of a noise-aware plan, so that each example
agrees with its feedback. If graders are noisy, the highest score is biased upwards; set
`min_margin` well above their noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import Any, TypeAlias

from ...base import checks
from ...base.jsontext import dumps, strict_loads
from ...errors import ConfigError
from ...loop.prompts import draft_messages
from ...loop.records import Candidate, StopReason
from ...loop.task import Message, message_text
from ...loop.trace import Trace

ExampleColumns: TypeAlias = dict[str, Any]

FORMATS = ("preference", "unpaired", "prompt-completion", "messages", "stepwise", "trajectory")
PAIRS = ("best-first", "best-worst", "all")
STYLES = ("conversational", "standard", "openai")
FILES = ("jsonl", "parquet")
WITH_MARGIN = ("preference", "unpaired", "stepwise")
WITH_GOOD = ("unpaired", "prompt-completion", "messages")
WITH_TOOLS = ("preference", "unpaired", "prompt-completion", "messages")
OF_OPENAI = ("preference", "messages")
TOLERANCE = 1e-9  # scores closer than this are equal

NO_ANSWER = "no answer"
CALLS_TOOLS = "the answers call tools"
NO_OBJECT = "the arguments of a tool call are no JSON object"
NO_SCORE = "no answer has a score"
TRUNCATED = "the scored answers were cut off"
EMPTY = "the scored answers are empty"
BREAKS_MUST = "the best answer breaks a must"
ONE_ANSWER = "only one scored answer"
NO_BETTER = "no better answer"
SAME = "the same text"
MARGIN = "the margin is too small"
TOO_LOW = "the best score is too low"
BEST_TRUNCATED = "the best answer was cut off"
ROW_FAILED = "the row failed"
NO_TEXT = "the prompt is more than text"
NO_QUESTION = "the prompt does not end with a user or a tool"
NOT_ONE_MESSAGE = "the prompt is more than one user message, which plain text cannot hold"


class NotExportable(Exception):
    """A row gives no example, for the reason in the message."""


@dataclass(frozen=True, slots=True)
class ExportConfig:
    """How a run is exported. Raises ConfigError.

    The formats and their columns:

    - preference (prompt, chosen, rejected): `chosen` is the best answer, which satisfies every
      must. `rejected` is another one whose score is lower by at least `min_margin`: with the pairs
      "best-first" the first scored answer, with "best-worst" the one with the lowest score; "all"
      gives a pair with each.
    - unpaired (prompt, completion, label): the answers of those pairs, the chosen one labelled
      True, the others False. With `good`, the label depends on the score instead: True for at least
      `good` if every must is satisfied; False for less than `good` - `min_margin` or a violated
      must; answers in between are left out.
    - prompt-completion (prompt, completion) and messages (messages): the best answer, if it
      satisfies every must and its score is at least `good`. A row that failed, or whose best answer
      was cut off, gives none: the answer that takes its place would be learned as the best. In the
      other formats its complete answers with a score are still compared with each other.
    - stepwise (prompt, completions, labels): all scored answers in their order, each labelled with
      whether it is better than the answer it was made from: more musts satisfied, or as many and a
      score higher by at least `min_margin`. An answer without a scored predecessor is labelled True
      if it satisfies every must and scores more than 0. These are steps of a refinement, not of a
      chain of reasoning. Always plain text, as TRL reads it.
    - trajectory (prompt, candidates, best, stop): a format of Redraft. The whole refinement,
      including answers that were cut off or have no score, each with its parent, score and
      feedback.

    The score of an answer that violates a must counts as 0, unless all graders are musts.

    Attributes:
        format: One of the formats above.
        pairs: "best-first", "best-worst" or "all"; for the formats preference and unpaired.
        min_margin: The least difference between two scores, in [0, 1].
        good: The least score of a good answer, in [0, 1]; None: no limit.
        style: "conversational" (lists of messages), "standard" (plain text, without prompts of
            more than one user message) or "openai" (the files that OpenAI's fine-tuning takes, for
            the formats messages and preference; they have no columns of Redraft).
        test_size: The share of prompts for the test file, in [0, 1). The split depends only on the
            words of the prompt and `salt`.
        salt: Changes the split.
        files: The type of the files in a folder, "jsonl" or "parquet".
        with_requirements: Whether the prompt ends with the requirements, as the model received
            them.
        tool_calls: Whether prompts and answers may call tools. Messages then have `tool_calls` and
            `tool_call_id`, and a column `tools` has the task's tools, as JSON (of the style
            "openai": as a list). Only JSON Lines can hold the arguments, which have many types.
    """

    format: str = "preference"
    pairs: str = "best-first"
    min_margin: float = 0.0
    good: float | None = None
    style: str = "conversational"
    test_size: float = 0.0
    salt: str = "redraft"
    files: str = "jsonl"
    with_requirements: bool = False
    tool_calls: bool = False

    def __post_init__(self) -> None:
        for name, allowed in (
            ("format", FORMATS),
            ("pairs", PAIRS),
            ("style", STYLES),
            ("files", FILES),
        ):
            checks.one_of(name, getattr(self, name), allowed)
        checks.number("min_margin", self.min_margin, 0, 1)
        checks.number("good", self.good, 0, 1, optional=True)
        checks.number("test_size", self.test_size, 0, 1)
        if self.test_size == 1:
            raise checks.invalid_argument("test_size", "a number in [0, 1)", self.test_size)
        self._check_use("min_margin", self.min_margin != 0, WITH_MARGIN)
        self._check_use("good", self.good is not None, WITH_GOOD)
        self._check_use("pairs", self.pairs != "best-first", ("preference", "unpaired"))
        self._check_use(
            "style", self.style == "standard", tuple(f for f in FORMATS if f != "messages")
        )
        self._check_use("style", self.style == "openai", OF_OPENAI)
        self._check_use("tool_calls", self.tool_calls, WITH_TOOLS)
        if self.tool_calls and self.standard:
            raise ConfigError("tool_calls needs messages: leave out style 'standard'")
        self.check_file(f".{self.files}")

    def _check_use(self, name: str, given: bool, formats: tuple[str, ...]) -> None:  # noqa: FBT001
        if given and self.format not in formats:
            raise ConfigError(
                f"{name} is for {', '.join(formats)}; format {self.format!r} does not use "
                f"{getattr(self, name)!r}"
            )

    def check_file(self, name: str) -> None:
        """Raise ConfigError for the name of a Parquet file if that cannot hold the examples."""
        if ".parquet" in name.lower() and (self.tool_calls or self.style == "openai"):
            setting = "tool_calls" if self.tool_calls else f"style {self.style!r}"
            raise ConfigError(f"{setting} needs JSON Lines (.jsonl), got {name!r}")

    @property
    def standard(self) -> bool:
        """Whether prompts and answers are plain text."""
        return self.style == "standard" or self.format == "stepwise"


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where examples come from: the run, the model that wrote the answers (None: unknown), and more
    facts for the dataset card.
    """

    run: str
    model: str | None = None
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExportResult:
    """What an export has written, and what it has left out.

    Attributes:
        files: The paths of the files.
        config: The settings of the export.
        provenance: Where the examples come from.
        rows: The number of rows of the run.
        used: The number of rows with an example.
        train: The number of examples in the train file.
        test: The number of examples in the test file.
        duplicates: The number of examples that were left out because an earlier one is the same.
        left_out: The number of rows without an example, by reason.
        means: The means of the scores and margins, by name.
        histograms: Their counts in 10 bins over [0, 1], by name.
        graders: What the validation card of each grader says ("" if there is none). At most 50 are
            named; the others are "others".
        writers: The number of answers by each model, in the same way.
    """

    files: tuple[str, ...]
    config: ExportConfig
    provenance: Provenance
    rows: int
    used: int
    train: int
    test: int
    duplicates: int
    left_out: Mapping[str, int]
    means: Mapping[str, float]
    histograms: Mapping[str, tuple[int, ...]]
    graders: Mapping[str, str]
    writers: Mapping[str, int]

    def as_data(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class PromptMessages:
    """The messages of a prompt as (role, text), and what they have besides: tool calls, and the IDs
    of those that they answer.
    """

    messages: tuple[tuple[str, str], ...]
    config: ExportConfig
    more: tuple[ExampleColumns, ...] = ()

    @property
    def column(self) -> Any:
        if self.config.standard:
            return self.messages[0][1]
        return [
            {"role": role, "content": text, **more}
            for (role, text), more in zip(self.messages, self.more, strict=True)
        ]

    def answer(self, answer: ScoredAnswer) -> Any:
        """Return an answer in the style of the prompt. Raises NotExportable."""
        if self.config.standard:
            return answer.text
        calls = [call.as_message_part() for call in answer.candidate.tool_calls]
        more = _calls_of({"tool_calls": calls}, self.config)
        return [{"role": "assistant", "content": answer.text, **more}]

    def in_test(self, config: ExportConfig) -> bool:
        """Return whether the prompt belongs in the test file: by a hash of its words, regardless of
        white space.
        """
        words = [(role, " ".join(text.split())) for role, text in self.messages]
        digest = sha256(repr((config.salt, words)).encode("utf-8", "surrogatepass")).digest()
        return int.from_bytes(digest[:8]) < config.test_size * 2**64


@dataclass(frozen=True, slots=True)
class TrainingExample:
    """One example: its columns, the texts that identify duplicates, and the numbers for the dataset
    card.
    """

    columns: ExampleColumns
    texts: tuple[str, ...]
    numbers: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class ScoredAnswer:
    """A complete answer with a score, and the share of musts that it satisfies.

    The score is 0 if it violates a must, unless all graders are musts.
    """

    candidate: Candidate
    score: float
    must_pass_rate: float

    @property
    def text(self) -> str:
        return self.candidate.text

    @property
    def key(self) -> str:
        """What an equal answer has, too: its text and its tool calls."""
        return self.candidate.display_text.strip()

    @property
    def id(self) -> int:
        return self.candidate.id


@dataclass(frozen=True)
class TraceExamples:
    """The examples of a trace. `prompt` is the prompt in the examples, `own` the user's own prompt,
    which decides the split.
    """

    trace: Trace
    config: ExportConfig
    prompt: PromptMessages = field(init=False)
    own: PromptMessages = field(init=False)

    def __post_init__(self) -> None:
        own = self.trace.task.messages
        shown = draft_messages(self.trace) if self.config.with_requirements else own
        object.__setattr__(self, "own", prompt_of(own, self.config))
        object.__setattr__(self, "prompt", prompt_of(shown, self.config))

    def examples(self) -> list[TrainingExample]:
        """Return at least one example. Raises NotExportable."""
        examples = MAKERS[self.config.format](self)
        if self.config.tool_calls:
            tools = [dict(tool) for tool in self.trace.task.tools]
            for example in examples:
                example.columns["tools"] = (
                    tools if self.config.style == "openai" else dumps(tools).decode()
                )
        return examples

    def answers(self) -> list[ScoredAnswer]:
        """Return the complete answers with a score, oldest first, without copies of their parents.
        Raises NotExportable.
        """
        trace = self.trace
        candidates = [c for c in trace.candidates if c.id not in trace.unchanged_ids]
        if not candidates:
            raise NotExportable(NO_ANSWER)
        for reason, is_usable in FILTERS:
            candidates = [c for c in candidates if is_usable(self, c)]
            if not candidates:
                raise NotExportable(reason)
        only_musts = all(grader.must for grader in trace.pointwise_graders)
        answers = []
        for c in candidates:
            rate = trace.must_pass_rate(c.id)
            score = (trace.scores[c.id] or 0.0) if only_musts or rate == 1 else 0.0
            answers.append(ScoredAnswer(c, score, rate))
        return answers

    def best_of(self, answers: Sequence[ScoredAnswer]) -> ScoredAnswer:
        """Return the best answer. Raises NotExportable if it violates a must."""
        best_id = self.trace.best.id if self.trace.best else None
        best = max(answers, key=lambda a: (a.must_pass_rate, a.score, a.id == best_id, -a.id))
        if best.must_pass_rate < 1:
            raise NotExportable(BREAKS_MUST)
        return best

    def pairs(self) -> tuple[ScoredAnswer, list[ScoredAnswer]]:
        """Return the chosen answer, and the rejected ones. Raises NotExportable."""
        answers = self.answers()
        chosen = self.best_of(answers)
        if len(answers) < 2:
            raise NotExportable(ONE_ANSWER)
        others = OTHER_ANSWERS[self.config.pairs](answers)
        obstacles = [obstacle_to_pair(chosen, other, self.config.min_margin) for other in others]
        rejected = [
            other for obstacle, other in zip(obstacles, others, strict=True) if not obstacle
        ]
        if not rejected:
            raise NotExportable(max(obstacles, key=PAIR_OBSTACLES.index))
        return chosen, rejected


FILTERS: Sequence[tuple[str, Callable[[TraceExamples, Candidate], bool]]] = (
    (CALLS_TOOLS, lambda source, candidate: source.config.tool_calls or not candidate.tool_calls),
    (NO_SCORE, lambda source, candidate: source.trace.scores[candidate.id] is not None),
    (TRUNCATED, lambda _, candidate: not candidate.truncated),
    (EMPTY, lambda _, candidate: bool(candidate.display_text.strip())),
)
OTHER_ANSWERS: Mapping[str, Callable[[list[ScoredAnswer]], list[ScoredAnswer]]] = {
    "best-first": lambda answers: answers[:1],
    "best-worst": lambda answers: [min(answers, key=lambda a: (a.score, a.id))],
    "all": lambda answers: answers,
}
PAIR_OBSTACLES = [NO_BETTER, SAME, MARGIN]  # the later, the closer the two are to a pair


def obstacle_to_pair(chosen: ScoredAnswer, other: ScoredAnswer, min_margin: float) -> str:
    """Return why two answers do not make a pair; "" if they do."""
    margin = chosen.score - other.score
    if chosen.id == other.id or margin < TOLERANCE:
        return NO_BETTER
    if chosen.key == other.key:
        return SAME
    return MARGIN if margin < min_margin - TOLERANCE else ""


def prompt_of(task_messages: Sequence[Message], config: ExportConfig) -> PromptMessages:
    """Return the messages of a prompt as text. Raises NotExportable for a prompt that the style
    cannot represent.
    """
    messages = tuple((str(m["role"]), _text_of(m, config)) for m in task_messages)
    if messages[-1][0] not in {"user", "tool"}:
        raise NotExportable(NO_QUESTION)
    if config.standard and [role for role, _ in messages] != ["user"]:
        raise NotExportable(NOT_ONE_MESSAGE)
    return PromptMessages(messages, config, tuple(_calls_of(m, config) for m in task_messages))


NON_TEXT = ("function_call", "images", "audio")


def _text_of(message: Message, config: ExportConfig) -> str:
    content, calls = message["content"], message.get("tool_calls")
    if calls and config.tool_calls and content is None:
        return ""
    parts = content if isinstance(content, list | tuple) else [{"text": content}]
    is_more = any(message.get(key) for key in NON_TEXT) or (calls and not config.tool_calls)
    if is_more or not all(map(_is_text, parts)):
        raise NotExportable(NO_TEXT)
    return message_text(message)


def _calls_of(message: Message, config: ExportConfig) -> ExampleColumns:
    """Return what a message has besides its text: the tool calls, with arguments as text for
    OpenAI, or as an object for chat templates; and the call that it answers. Raises NotExportable.
    """
    if not config.tool_calls:
        return {}
    names = [name for name in ("tool_call_id", "name") if message.get(name)]
    more: ExampleColumns = {name: message[name] for name in names}
    for call in message.get("tool_calls") or ():
        function = call["function"]
        try:
            arguments = strict_loads(function["arguments"])
        except ValueError:
            arguments = None
        if not isinstance(arguments, dict):
            raise NotExportable(NO_OBJECT)
        written = function["arguments"] if config.style == "openai" else arguments
        form = {"name": function["name"], "arguments": written}
        more.setdefault("tool_calls", []).append(
            {"id": call.get("id", ""), "type": "function", "function": form}
        )
    return more


def _is_text(part: Any) -> bool:
    return isinstance(part, Mapping) and isinstance(part.get("text"), str)


def preference_examples(source: TraceExamples) -> list[TrainingExample]:
    chosen, all_rejected = source.pairs()
    examples = []
    for rejected in all_rejected:
        margin = round(chosen.score - rejected.score, 9)
        columns = {
            "prompt": source.prompt.column,
            "chosen": source.prompt.answer(chosen),
            "rejected": source.prompt.answer(rejected),
            "redraft_chosen_by": chosen.candidate.by,
            "redraft_rejected_by": rejected.candidate.by,
            "redraft_score_chosen": chosen.score,
            "redraft_score_rejected": rejected.score,
            "redraft_margin": margin,
        }
        numbers = (("chosen", chosen.score), ("rejected", rejected.score), ("margin", margin))
        examples.append(
            TrainingExample(columns, tuple(sorted((chosen.key, rejected.key))), numbers)
        )
    return examples


def unpaired_examples(source: TraceExamples) -> list[TrainingExample]:
    if source.config.good is None:
        chosen, rejected = source.pairs()
        labels = [(chosen, True), *((other, False) for other in rejected)]
    else:
        labels = _labels_by_score(source.answers(), source.config.good, source.config.min_margin)
    examples = []
    for answer, label in labels:
        columns = {
            "prompt": source.prompt.column,
            "completion": source.prompt.answer(answer),
            "label": label,
        }
        numbers = (("good" if label else "bad", answer.score),)
        examples.append(
            TrainingExample({**columns, **_score_columns(answer)}, (answer.key,), numbers)
        )
    return examples


def _labels_by_score(
    answers: list[ScoredAnswer], good: float, min_margin: float
) -> list[tuple[ScoredAnswer, bool]]:
    """Return the answers that are clearly good (True) or bad (False). Raises NotExportable if there
    are none.
    """
    labels = []
    for answer in answers:
        violates_must = answer.must_pass_rate < 1
        if violates_must or answer.score >= good or answer.score < good - min_margin:
            labels.append((answer, not violates_must and answer.score >= good))
    if not labels:
        raise NotExportable(MARGIN)
    return labels


def _score_columns(answer: ScoredAnswer) -> ExampleColumns:
    return {"redraft_by": answer.candidate.by, "redraft_score": answer.score}


def _good_answer(source: TraceExamples) -> ScoredAnswer:
    """Return the best answer. Raises NotExportable if it is not good enough or was cut off, or if
    its row failed.
    """
    best, trace = source.best_of(source.answers()), source.trace
    if trace.outcome and trace.outcome.reason is StopReason.FAILED:
        raise NotExportable(ROW_FAILED)
    if trace.best and trace.best.truncated:  # another one is not what the run has found
        raise NotExportable(BEST_TRUNCATED)
    if best.score < (source.config.good or 0.0):
        raise NotExportable(TOO_LOW)
    return best


def completion_examples(source: TraceExamples) -> list[TrainingExample]:
    best, prompt = _good_answer(source), source.prompt
    columns = {
        "prompt": prompt.column,
        "completion": prompt.answer(best),
        **_score_columns(best),
    }
    return [TrainingExample(columns, (best.key,), (("best", best.score),))]


def message_examples(source: TraceExamples) -> list[TrainingExample]:
    best, prompt = _good_answer(source), source.prompt
    columns = {"messages": [*prompt.column, *prompt.answer(best)], **_score_columns(best)}
    return [TrainingExample(columns, (best.key,), (("best", best.score),))]


def stepwise_examples(source: TraceExamples) -> list[TrainingExample]:
    answers = source.answers()
    if len(answers) < 2:
        raise NotExportable(ONE_ANSWER)
    scored = {a.id: a for a in answers}
    columns = {
        "prompt": source.prompt.column,
        "completions": [a.text for a in answers],
        "labels": [
            _is_better(a, _scored_ancestor(source.trace, a, scored), source.config.min_margin)
            for a in answers
        ],
        "redraft_by": [a.candidate.by for a in answers],
        "redraft_scores": [a.score for a in answers],
    }
    numbers = (("first", answers[0].score), ("highest", max(a.score for a in answers)))
    return [TrainingExample(columns, tuple(a.text for a in answers), numbers)]


def _scored_ancestor(
    trace: Trace, answer: ScoredAnswer, scored: Mapping[int, ScoredAnswer]
) -> ScoredAnswer | None:
    """Return the nearest ancestor of an answer that has a score."""
    parent = answer.candidate.parent
    while parent is not None and parent not in scored:
        older = trace.by_id.get(parent)
        parent = older.parent if older and older.parent != parent else None
    return None if parent is None else scored[parent]


def _is_better(answer: ScoredAnswer, parent: ScoredAnswer | None, min_margin: float) -> bool:
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
    return [
        TrainingExample(
            columns, texts, tuple((name, score) for name, score in ends if score is not None)
        )
    ]


def _candidate_columns(trace: Trace, candidate: Candidate) -> ExampleColumns:
    return {
        "id": candidate.id,
        "parent": candidate.parent,
        "by": candidate.by,
        "role": candidate.role,
        "text": candidate.display_text,
        "truncated": candidate.truncated,
        "score": trace.scores[candidate.id],
        "must_pass_rate": trace.must_pass_rate(candidate.id),
        "feedback": [
            {
                "grader": feedback.grader,
                "repeat": feedback.repeat,
                "score": feedback.score,
                "reason": feedback.reason,
                "actions": list(map(str, feedback.actions)),
                "done": feedback.done,
            }
            for feedback in trace.feedback[candidate.id]
        ],
    }


MAKERS: Mapping[str, Callable[[TraceExamples], list[TrainingExample]]] = {
    "preference": preference_examples,
    "unpaired": unpaired_examples,
    "prompt-completion": completion_examples,
    "messages": message_examples,
    "stepwise": stepwise_examples,
    "trajectory": trajectory_examples,
}

# The types of the columns, as Hugging Face `datasets` names them: [type] for a list, {field: type}
# for an object.
_MESSAGES = [{"role": "string", "content": "string"}]
_FEEDBACK = {
    "grader": "string",
    "repeat": "int64",
    "score": "float64",
    "reason": "string",
    "actions": ["string"],
    "done": "bool",
}
_CANDIDATE = {
    "id": "int64",
    "parent": "int64",
    "by": "string",
    "role": "string",
    "text": "string",
    "truncated": "bool",
    "score": "float64",
    "must_pass_rate": "float64",
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
        **dict.fromkeys(
            ("redraft_score_chosen", "redraft_score_rejected", "redraft_margin"), "float64"
        ),
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
    "trajectory": {
        "prompt": _MESSAGES,
        "candidates": [_CANDIDATE],
        "best": "int64",
        "stop": "string",
    },
}
_PROVENANCE = {
    "redraft_run": "string",
    "redraft_row": "string",
    "redraft_model": "string",
    "redraft_graders": ["string"],
}


def types_of(config: ExportConfig) -> dict[str, Any]:
    """Return the type of every column of a file, provenance included; none for OpenAI's files."""
    if config.style == "openai":
        return {}
    messages: Any = "string" if config.standard else ["json"] if config.tool_calls else _MESSAGES
    plain = {
        name: messages if kind is _MESSAGES else kind
        for name, kind in _TYPES[config.format].items()
    }
    tools = {"tools": "string"} if config.tool_calls else {}
    return {**plain, **tools, **_PROVENANCE}


def provenance_of(trace: Trace, run: str, row: str, model: str | None) -> ExampleColumns:
    """Return the columns with the origin of an example."""
    graders = [grader.name for grader in trace.panel]
    return {
        "redraft_run": run,
        "redraft_row": row,
        "redraft_model": model,
        "redraft_graders": graders,
    }


def openai_columns(columns: ExampleColumns) -> ExampleColumns:
    """Return an example in the form of OpenAI's fine-tuning, supervised or by preference."""
    tools = {"tools": columns["tools"]} if columns.get("tools") else {}
    if "messages" in columns:
        return {"messages": columns["messages"], **tools}
    return {
        "input": {"messages": columns["prompt"], **tools},
        "preferred_output": columns["chosen"],
        "non_preferred_output": columns["rejected"],
    }
