"""Which column of a table holds what, and the task that a row makes.

`infer_columns` looks at the first rows of a table. Columns that the user names are used as they
are; others are recognised by their usual names if the values fit. Two columns that could have the
same role are an error, never a guess. A row that makes no task raises ValueError.

`SYNONYMS` is the one table of usual names, for batches and validations alike. A path such as
"output.text" or "scores.0.value" reaches into objects and lists. Rows are foreign: nothing in one
ever names a file. Requirements are checked by a function that the caller passes: this module does
not know them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import islice
from typing import Any

from ..base.checks import closest_names, format_value, is_blank
from ..errors import ConfigError, NoResponseError
from ..loop.task import Message, Task
from .row_values import (
    ANSWERING_ROLES,
    MISSING,
    RESPONSE_KEYS,
    as_list,
    has_value,
    id_at,
    is_id,
    is_python_chat,
    looks_like_list,
    looks_like_tests,
    messages_in,
    metadata_without,
    read_conversation,
    response_at,
    response_text,
    responses_at,
    split_specs,
    tests_at,
    text_at,
    tool_choice_at,
    tools_at,
    value_at,
    value_or_none,
    with_system,
)

PROMPT_NAMES = ("prompt", "instruction", "question", "query", "input", "user_input")
# used if there is none of PROMPT_NAMES
OTHER_PROMPT_NAMES = ("instruct_prompt", "question_content")
MESSAGES_NAMES = ("messages", "conversations", "conversation", "input")
RESPONSE_NAMES = ("response", "completion", "answer", "output")
OTHER_RESPONSE_NAMES = (
    "system_output",
    "candidate",
    "generation",
    "prediction",
    "actual_output",
)  # used if there is none of RESPONSE_NAMES
SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "id": ("id", "uid", "unique_id"),
    "prompt": PROMPT_NAMES,
    "messages": ("messages", "conversations", "conversation"),
    "response": (*RESPONSE_NAMES, *OTHER_RESPONSE_NAMES),
    "system": ("system", "system_prompt"),
    "reference": (
        "reference",
        "reference_answer",
        "reference_response",
        "ideal",
        "expected_output",
    ),
    "context": ("context", "document", "passage", "retrieved_contexts", "retrieval_context"),
    # also names of MBPP, HumanEval and APPS
    "tests": ("tests", "test_list", "test", "input_output"),
    "requirements": ("requirements",),
    "tools": ("tools",),
    "tool_choice": ("tool_choice",),
    "responses": ("responses", "outputs", "answers", "completions", "candidates", "generations"),
    "group": ("group", "subset", "category", "domain"),
    "ratings": (
        "ratings",
        "annotators",
        "annotations",
        "human_ratings",
        "human_scores",
        "human_labels",
        "labels",
    ),
    "ranking": ("ranking", "ranks", "places"),
    "order": ("order",),
    "chosen": ("chosen",),
    "rejected": ("rejected",),
}
# in many data sets the correct answers
GIVEN_LIST_NAMES = tuple(name for name in SYNONYMS["responses"] if name != "answers")
MAX_LISTED_COLUMNS = 60
MAX_LISTED_ROWS = 100  # rows whose columns are listed in error messages
OTHER_ROLES = (
    "id",
    "system",
    "reference",
    "context",
    "tests",
    "requirements",
    "tools",
    "tool_choice",
)


@dataclass(frozen=True, slots=True)
class TaskColumns:
    """The columns that make a task. None: recognise it by its usual names. "": there is no such
    column.
    """

    prompt: str | None = None
    messages: str | None = None
    response: str | None = None
    id: str | None = None
    system: str | None = None
    reference: str | None = None
    context: str | None = None
    tests: str | None = None
    requirements: str | None = None
    tools: str | None = None
    tool_choice: str | None = None
    responses: str | None = None


@dataclass(frozen=True)
class SampleColumns:
    """The columns of the first rows of a table. `named`: those that the user names for a role,
    which are guessed for no other.
    """

    rows: Sequence[Mapping[str, Any]]
    named: Collection[str] = ()

    def has(self, path: str) -> bool:
        """Return whether any row has this column or path."""
        return any(value_at(values, path) is not MISSING for values in self.rows)

    def may_guess(self, path: str) -> bool:
        """Return whether neither this column nor anything within it is named for a role."""
        return not any(f"{name}.".startswith(f"{path}.") for name in self.named)

    def matching(
        self, names: Sequence[str], fits: Callable[[Any], bool], outer: Sequence[str] = ()
    ) -> list[str]:
        """Return the names that may be guessed, also within the objects `outer`, under which a row
        holds a value that fits.
        """
        paths = filter(self.may_guess, [*names, *(f"{o}.{name}" for o in outer for name in names)])
        return [p for p in paths if any(fits(value_at(values, p)) for values in self.rows)]

    def empty_columns(self, names: Sequence[str]) -> list[str]:
        """Return the names that may be guessed under which rows hold null or a blank text and no
        other value.
        """
        values_by_name = {
            name: [value_at(values, name) for values in self.rows]
            for name in filter(self.may_guess, names)
        }
        return [
            n
            for n, values in values_by_name.items()
            if any(v is not MISSING for v in values) and not any(map(has_value, values))
        ]

    def tests_column(self) -> str | None:
        """Return the column of tests: "tests", whatever it holds, or another usual name if what it
        holds looks like tests.
        """
        named = self.matching(["tests"], _is_tests, ("input", "output"))
        return next(iter([*named, *self.matching(SYNONYMS["tests"], looks_like_tests)]), None)

    def require(self, label: str, name: str) -> None:
        """Raise ConfigError, with suggestions, unless the column exists. `label` is the user's
        option.
        """
        if self.has(name):
            return
        suggestions = closest_names(
            name,
            dict.fromkeys(str(key) for values in self.rows[:MAX_LISTED_ROWS] for key in values),
        )
        hint = f"did you mean {' or '.join(map(repr, suggestions))}? " if suggestions else ""
        raise ConfigError(
            f"{label}: there is no column {name!r}; {hint}there are {self.column_list()}"
        )

    def column_list(self) -> str:
        """Return the names of all columns as text, with the keys of objects one level down."""
        names: dict[str, None] = {}
        for values in islice(self.rows, MAX_LISTED_ROWS):
            for key, value in values.items():
                nested = isinstance(value, Mapping) and value
                names.update(
                    dict.fromkeys([f"{key}.{inner}" for inner in value] if nested else [str(key)])
                )
        more = (
            f" and {len(names) - MAX_LISTED_COLUMNS} more"
            if len(names) > MAX_LISTED_COLUMNS
            else ""
        )
        listed = ", ".join(repr(n[:80]) for n in islice(names, MAX_LISTED_COLUMNS))
        return listed + more or "none"


@dataclass(frozen=True)
class RowMapping:
    """How rows become tasks.

    `input_column`: its text follows the prompt (the `input` of an `instruction`).
    `check_requirement` raises ConfigError for a text that is not a requirement.
    """

    columns: TaskColumns
    check_requirement: Callable[[str], object]
    input_column: str | None = None

    @property
    def description(self) -> str:
        """The columns in words: 'prompt from "query", response from "response"'."""
        used = {f.name: getattr(self.columns, f.name) for f in fields(self.columns)}
        parts = [f'{role} from "{name}"' for role, name in used.items() if name]
        if self.input_column:
            parts[0] += f' and "{self.input_column}"'
        if self.columns.messages and not (self.columns.response or self.columns.responses):
            parts[0] += " (a last answer in it is the response)"
        return ", ".join(parts)

    def metadata_columns(self, columns: Iterable[str]) -> list[str]:
        """Return the columns without a role, which become metadata."""
        return [name for name in columns if name not in self._used_columns]

    def count_blank_responses(self, values: Mapping[str, Any]) -> int:
        """Return how many of the responses that a row gives are blank texts, which count as
        none.
        """
        given = value_at(values, self.columns.responses or self.columns.response or "")
        items = as_list(given) or [given] if self.columns.responses else [given]
        return sum(isinstance(item, str) and is_blank(item) for item in items)

    def task(self, values: Mapping[str, Any]) -> Task:
        """Return the task of a row; columns without a role become its metadata. Raises ValueError
        that names the column.
        """
        names = self.columns
        messages, last_answer = self._messages_and_answer(values)
        response = response_at(values, names.response) if names.response else None
        responses = responses_at(values, names.responses) if names.responses else ()
        if last_answer is not None and (
            response not in {None, last_answer} or not {*responses} <= {last_answer}
        ):
            column = names.response or names.responses
            raise ValueError(
                f"{names.messages or names.prompt!r} ends with an answer, and {column!r} holds "
                "another one"
            )
        if names.system:
            messages = with_system(messages, text_at(values, names.system), names.system)
        others = {role: read(values, name) for role, name, read in self._other_columns}
        return Task(
            messages,
            response if response is not None or responses else last_answer,
            responses=responses,
            metadata=metadata_without(values, self._used_columns),
            **others,
        )

    @cached_property
    def _other_columns(self) -> list[tuple[str, str, Callable[[Mapping[str, Any], str], Any]]]:
        """The roles that are a column of their own, with the column and the function that reads
        it.
        """
        readers: dict[str, Callable[[Mapping[str, Any], str], Any]] = {
            "reference": text_at,
            "context": text_at,
            "tests": tests_at,
            "requirements": self._requirements,
            "id": id_at,
            "tools": tools_at,
            "tool_choice": tool_choice_at,
        }
        return [
            (role, name, read)
            for role, read in readers.items()
            if (name := getattr(self.columns, role))
        ]

    def _messages_and_answer(
        self, values: Mapping[str, Any]
    ) -> tuple[str | list[Message], str | None]:
        """Return the prompt, or the messages without the answer at their end, and that answer."""
        name = self.columns.messages or self.columns.prompt
        assert name
        value = value_at(values, name)
        if value is MISSING:
            raise ValueError(f"{name!r} is missing{self._alternative_hint(values)}")
        if (
            self.columns.prompt
            and isinstance(value, str)
            and (stored := messages_in(value, name)) is not None
        ):
            value = stored
        if not (self.columns.prompt and isinstance(value, str)):
            return read_conversation(value, name, may_be_text=not self.columns.messages)
        if is_blank(value):
            raise ValueError(f"{name!r} is empty")
        added = text_at(values, self.input_column) if self.input_column else None
        return f"{value}\n\n{added}" if added else value, None

    def _requirements(self, values: Mapping[str, Any], name: str) -> tuple[str, ...]:
        """Return the requirements: a list, JSON of one, or a text with line ends or semicolons
        between them.
        """
        value = value_or_none(values, name)
        if isinstance(value, str):
            value = split_specs(value)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(spec, str) for spec in value):
            raise ValueError(
                f"{name!r} must be a text or a list of specs, got {format_value(value, 80)}"
            )
        try:
            for spec in value:
                self.check_requirement(spec)
        except ConfigError as error:
            raise ValueError(f"{name!r}: {error}") from error
        return tuple(value)

    def _alternative_hint(self, values: Mapping[str, Any]) -> str:
        """Return a hint at another column that could be the prompt, for a row of another shape."""
        sample, used = SampleColumns([values]), self._used_columns
        others = (
            *sample.matching(PROMPT_NAMES, _is_prompt, ("input",)),
            *sample.matching(MESSAGES_NAMES, is_messages, ("input",)),
        )
        unused = [n for n in others if n not in used]
        return (
            f"; {unused[0]!r} is there, but the table begins with rows of another shape"
            if unused
            else ""
        )

    @cached_property
    def _used_columns(self) -> frozenset[str]:
        named = (getattr(self.columns, f.name) for f in fields(self.columns))
        return frozenset(filter(None, (*named, self.input_column)))


def with_one_response(task: Task) -> Task:
    """Return the task with one response to grade, also from a list of one.

    Raises ConfigError if there are several, and NoResponseError if there is none; then it names a
    column that would hold it if it were text.
    """
    if len(task.responses) > 1:
        raise ConfigError(f"there are {len(task.responses)} responses, and one is graded")
    if task.responses:
        return replace(task, response=task.responses[0], responses=())
    if task.response is None:
        names = (*RESPONSE_NAMES, *GIVEN_LIST_NAMES)
        unusable = (
            (name, value)
            for name in names
            if has_value(value := value_at(task.metadata, name)) and value != []
        )
        problem = next(
            (f"{name!r} must be text, got {format_value(value, 80)}" for name, value in unusable),
            "it is missing or blank",
        )
        raise NoResponseError(f"there is no response to grade: {problem}")
    return task


def infer_columns(
    sample: Sequence[Mapping[str, Any]],
    columns: TaskColumns = TaskColumns(),
    *,
    check_requirement: Callable[[str], object],
) -> RowMapping:
    """Return how the rows of a table become tasks, from its first rows and the columns that the
    user names.

    Raises ConfigError for a named column that does not exist, for several columns that could be the
    prompt or the response, and if no column could be the prompt.
    """
    if not sample:
        raise ConfigError("there are no rows, so no column can be recognised")
    table = SampleColumns(
        sample,
        [name for f in fields(columns) if f.name != "id" and (name := getattr(columns, f.name))],
    )
    for f in fields(columns):
        if name := getattr(columns, f.name):
            table.require(f"--column {f.name}={name}", name)
    if columns.prompt and columns.messages:
        raise ConfigError(
            f"--column prompt={columns.prompt} and --column messages={columns.messages}: name "
            "only one of them"
        )
    prompt_columns, input_column = _find_prompt(table, columns)
    response, responses = _find_responses(
        table, columns, {prompt_columns.prompt, prompt_columns.messages, input_column}
    )
    others = {
        role: _find_other(table, role, getattr(columns, role))
        for role in OTHER_ROLES
        if role not in {"id", "tests"}
    }
    # also of a column that is named for a role
    others["id"] = _find_other(SampleColumns(sample), "id", columns.id)
    others["tests"] = columns.tests or None if columns.tests is not None else table.tests_column()
    if columns.tool_choice is None and not others["tools"]:
        others["tool_choice"] = None  # it has no meaning without tools
    return RowMapping(
        replace(prompt_columns, response=response, responses=responses, **others),
        check_requirement,
        input_column,
    )


def _find_prompt(table: SampleColumns, columns: TaskColumns) -> tuple[TaskColumns, str | None]:
    """Return the column of the prompt or the messages, and the column whose text follows it."""
    if columns.prompt or columns.messages:
        return TaskColumns(prompt=columns.prompt or None, messages=columns.messages or None), None
    options = "--column prompt=NAME or messages=NAME"
    chats = (
        [] if columns.messages == "" else table.matching(MESSAGES_NAMES, is_messages, ("input",))
    )
    texts = []
    if columns.prompt is None:
        texts = [n for n in table.matching(PROMPT_NAMES, _is_prompt, ("input",)) if n not in chats]
        others = (
            []
            if texts or chats
            else [table.matching([n], _is_text, ("input",)) for n in ("text", *OTHER_PROMPT_NAMES)]
        )
        texts = texts or next(filter(None, others), [])
    # one column may be both the prompt and, for example, the context
    if table.named and not (texts or chats):
        return _find_prompt(SampleColumns(table.rows), columns)
    if {"instruction", "input"} == set(texts) and not chats:
        return TaskColumns(prompt="instruction"), "input"
    candidates = [*texts, *chats]
    if len(candidates) > 1:
        candidates = table.matching(candidates, has_value) or candidates
    if len(candidates) == 1:
        return (
            TaskColumns(messages=candidates[0])
            if candidates[0] in chats
            else TaskColumns(prompt=candidates[0])
        ), None
    if not candidates and columns.prompt is None:
        unusable = table.matching(
            (*PROMPT_NAMES, *MESSAGES_NAMES), lambda v: has_value(v) and not isinstance(v, Mapping)
        )
        if unusable:
            value = next(
                v for values in table.rows if has_value(v := value_at(values, unusable[0]))
            )
            problem = (
                f"{unusable[0]!r} holds neither texts nor messages, but {format_value(value, 80)}"
            )
            raise ConfigError(f"{problem}; name another column by {options}")
    raise ConfigError(_ambiguous_message("prompt", candidates, options, table))


def _find_responses(
    table: SampleColumns, columns: TaskColumns, excluded: set[str | None]
) -> tuple[str | None, str | None]:
    """Return the column of the response, or of a list of responses. Raises ConfigError if
    there are both.
    """
    if columns.response and columns.responses:
        raise ConfigError(
            f"--column response={columns.response} and --column responses={columns.responses}: "
            "name only one of them"
        )
    if columns.responses:
        return None, columns.responses
    lists = (
        [] if columns.response or columns.responses == "" else _lists_of_responses(table, excluded)
    )
    response = _find_response(table, columns, {*excluded, *lists})
    if response and lists and not table.empty_columns([response]):
        raise ConfigError(
            _ambiguous_message(
                "response", [response, *lists], "--column response=NAME or responses=NAME", table
            )
        )
    if len(lists) > 1:
        raise ConfigError(
            _ambiguous_message("list of responses", lists, "--column responses=NAME", table)
        )
    return (None, lists[0]) if lists else (response, None)


def _lists_of_responses(table: SampleColumns, excluded: set[str | None]) -> list[str]:
    """Return the columns that hold several responses in a row: by their names, or a response column
    with lists.
    """
    named = table.matching(
        GIVEN_LIST_NAMES, lambda v: _is_response_list(v) or (looks_like_list(v) and not as_list(v))
    )
    several = table.matching(
        RESPONSE_NAMES,
        lambda v: (
            (not isinstance(v, str) or is_python_chat(v))
            and _is_response_list(v)
            and len(as_list(v)) > 1
        ),
    )
    return [name for name in (*named, *several) if name not in excluded and name != "answer"]


def _find_response(
    table: SampleColumns, columns: TaskColumns, excluded: set[str | None]
) -> str | None:
    if columns.response is not None:
        return columns.response or None
    inner = table.matching([f"output.{name}" for name in RESPONSE_KEYS], _is_response)
    outer = [
        n
        for n in table.matching(RESPONSE_NAMES, _is_response)
        if n not in excluded and not (inner and n == "output")
    ]
    candidates = (
        [*outer, *inner]
        or table.matching(OTHER_RESPONSE_NAMES, _is_response)
        or [n for n in table.empty_columns(RESPONSE_NAMES) if n not in excluded]
        or table.empty_columns(OTHER_RESPONSE_NAMES)
    )
    if len(candidates) > 1:
        raise ConfigError(
            _ambiguous_message("response", candidates, "--column response=NAME", table)
        )
    return candidates[0] if candidates else None


def _find_other(table: SampleColumns, role: str, explicit: str | None) -> str | None:
    if explicit is not None:
        return explicit or None
    fits = VALUE_CHECKS.get(role, _is_texts)
    found = table.matching(SYNONYMS[role], fits, ("input", "output"))
    return next(iter([*(n for n in found if table.matching([n], has_value)), *found]), None)


def _ambiguous_message(role: str, candidates: list[str], options: str, table: SampleColumns) -> str:
    if candidates:
        return (
            f"several columns could be the {role}: {', '.join(map(repr, candidates))}; state it "
            f"by {options}"
        )
    return (
        f"no column is known to be the {role}; state it by {options}. There are "
        f"{table.column_list()}"
    )


# --- which values fit a role
# ----------------------------------------------------------------------------


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_texts(value: Any) -> bool:
    return isinstance(value, str) or (
        isinstance(value, list) and bool(value) and all(isinstance(v, str) for v in value)
    )


def _is_tests(value: Any) -> bool:
    return isinstance(value, str | list | Mapping) and bool(value)


def _is_prompt(value: Any) -> bool:
    return isinstance(value, str) or is_messages(value)


def is_messages(value: Any) -> bool:
    """Return whether a value holds messages, as a list or in a text, also in one that cannot be
    read.
    """
    try:
        if isinstance(value, str) and messages_in(value, ""):
            return True
    except ValueError:
        return True
    messages = _list_of_objects(value)
    keys_of_a_message = ({"role", "content"}, {"role", "tool_calls"}, {"from", "value"})
    return bool(messages) and all(
        any(keys <= m.keys() for keys in keys_of_a_message) for m in messages
    )


def _is_tools(value: Any) -> bool:
    """Return whether a value holds tools in OpenAI's form, as a list or as JSON in a text."""
    tools = _list_of_objects(value)
    return bool(tools) and all("function" in tool for tool in tools)


def _list_of_objects(value: Any) -> list[Mapping[str, Any]]:
    """Return a list of objects, also from a text; [] for anything else."""
    items = as_list(value)
    return items if all(isinstance(item, Mapping) for item in items) else []


def _is_choice(value: Any) -> bool:
    return isinstance(value, str | Mapping) and bool(value)


def _is_response(value: Any) -> bool:
    try:
        return has_value(value) and isinstance(response_text(value, ""), str)
    except ValueError:
        return False


def _is_response_list(value: Any) -> bool:
    items = list(filter(has_value, as_list(value)))
    is_conversation = is_messages(items) and not all(_is_answer(item) for item in items)
    return bool(items) and all(map(_is_response, items)) and not is_conversation


def _is_answer(message: Mapping[str, Any]) -> bool:
    speaker = message.get("role", message.get("from"))
    return isinstance(speaker, str) and speaker in ANSWERING_ROLES


VALUE_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    "id": is_id,
    "system": _is_text,
    "tools": _is_tools,
    "tool_choice": _is_choice,
}
