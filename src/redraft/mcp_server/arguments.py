"""What each tool takes. The descriptions are for the model that calls the tool, which sees nothing
else.

A call names no file, no code and no host: texts are given inline, graders by name, models from the
list that the operator allows. Every size is bounded.

Some clients send values in another form than the schemas say that can mean one thing only: lists,
objects, numbers and booleans as text that holds their JSON, null for what may be left out, whole
numbers as 3.0. `read_arguments` reads these where no text is wanted.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ..base.jsontext import BYTES_PER_VALUE, strict_loads

MAX_CHARS = 400_000  # of one text
MAX_ANSWERS = 16  # that are compared
MAX_EXAMPLES = 500
MAX_MESSAGES = 200
MAX_SPECS = 50
MAX_CRITERIA = 20
MAX_REFINEMENTS = 20
MAX_TEXT_VALUES = 1_000_000  # in all arguments that are JSON in a text

Text: TypeAlias = Annotated[str, Field(max_length=MAX_CHARS)]
Spec: TypeAlias = Annotated[str, Field(min_length=1, max_length=2000)]


class ToolInput(BaseModel):
    """Refuses unknown fields, and values of another type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ChatTurn(ToolInput):
    """A message of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: Text


class GradedBy(ToolInput):
    """By what answers are graded."""

    requirements: list[Spec] = Field(
        default=[],
        max_length=MAX_SPECS,
        description='Checks that every answer must pass, without a model, such as "words:80-200", '
        '"bullets:3", "no_commas", "contains:TEXT", "json". They can also be repaired without '
        "a model.",
    )
    graders: list[Spec] = Field(
        default=[],
        max_length=MAX_SPECS,
        description='Graders by name, such as "helpfulness", "code_quality", "checklist", '
        '"readability:max_grade=8". Default: '
        "none beside requirements or a schema, else a model as judge. No files, code or URLs.",
    )
    rubric: dict[Annotated[str, Field(min_length=1, max_length=100)], Spec] = Field(
        default={},
        max_length=MAX_CRITERIA,
        description='Criteria of your own for a model as judge: {"name": "what to look at"}.',
    )
    reference: Text = Field(
        default="", description="A known good answer, for graders that compare with one."
    )
    context: Text = Field(default="", description="Material that the answer must rest on.")


class ModelChoice(ToolInput):
    """Which model a call uses."""

    model: Spec | None = Field(
        default=None,
        description="The model to use; only those that are listed here. Default: the first.",
    )


class QuestionInput(ToolInput):
    """What is to be answered."""

    prompt: Text = Field(default="", description="What was, or is to be, answered.")
    messages: list[ChatTurn] = Field(
        default=[],
        max_length=MAX_MESSAGES,
        description="A conversation instead of `prompt`; its last message is from the user.",
    )

    @model_validator(mode="after")
    def _check_one_form(self) -> QuestionInput:
        if self.prompt and self.messages:
            raise ValueError("give `prompt` or `messages`, not both")
        return self


class RefineInput(ModelChoice, GradedBy, QuestionInput):
    """The arguments of `refine`."""

    draft: Text = Field(
        default="", description="An answer to start from. Without it, a model writes one."
    )
    target_score: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Stop when an answer scores at least this much. Default: 0.9.",
    )
    max_iterations: int | None = Field(
        default=None,
        ge=0,
        le=MAX_REFINEMENTS,
        description="Largest number of rewrites. Default: the plan's own.",
    )
    answer_schema: dict[str, Any] | None = Field(
        default=None,
        description=(
            "A JSON schema that the answer must follow; the answer is then JSON. It refers to "
            "nothing outside."
        ),
    )

    @model_validator(mode="after")
    def _check_task(self) -> RefineInput:
        if not self.prompt.strip() and not self.messages and not self.draft.strip():
            raise ValueError("give `prompt` (or `messages`), or a `draft` to improve")
        return self


class GradeInput(ModelChoice, GradedBy, QuestionInput):
    """The arguments of `grade`."""

    response: Text = Field(description="The answer to grade. It is not changed.")


class CompareInput(ModelChoice, GradedBy, QuestionInput):
    """The arguments of `compare`."""

    answers: list[Text] = Field(
        min_length=2, max_length=MAX_ANSWERS, description="The answers to compare."
    )


class LabelledExample(ToolInput):
    """An answer with the label of a person, or two answers and which one is better."""

    prompt: Text = ""
    response: Text | None = Field(default=None, description="The answer, with `label`.")
    label: bool | Annotated[float, Field(allow_inf_nan=False)] | None = Field(
        default=None,
        description=(
            "What a person says: true or false (acceptable or not), or a number (higher is better)."
        ),
    )
    response_a: Text | None = Field(
        default=None, description="The first of two answers, with `better`."
    )
    response_b: Text | None = Field(default=None, description="The second of two answers.")
    better: Literal["a", "b", "tie"] | None = Field(
        default=None, description="Which of the two a person prefers."
    )
    reference: Text = ""
    context: Text = ""

    @property
    def is_pair(self) -> bool:
        return self.response_a is not None

    @model_validator(mode="after")
    def _check_form(self) -> LabelledExample:
        single = (self.response is not None, self.label is not None)
        pair = (self.response_a is not None, self.response_b is not None, self.better is not None)
        if not (all(single) and not any(pair)) and not (all(pair) and not any(single)):
            raise ValueError(
                "an example has `response` and `label`, or `response_a`, `response_b` and `better`"
            )
        return self


class ValidateInput(ModelChoice):
    """The arguments of `validate_grader`."""

    grader: Spec | None = Field(
        default=None,
        description='The grader to measure, by name, such as "helpfulness" or "words:80-200".',
    )
    rubric: dict[Annotated[str, Field(min_length=1, max_length=100)], Spec] = Field(
        default={},
        max_length=MAX_CRITERIA,
        description="Criteria of your own instead of `grader`, for a model as judge.",
    )
    examples: list[LabelledExample] = Field(
        min_length=2,
        max_length=MAX_EXAMPLES,
        description=(
            "Examples with labels of people, all of one kind. With fewer than 10, nothing is "
            "shown; 50 or more are better."
        ),
    )
    threshold: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="Scores from here on count as a pass, for labels true and false.",
    )

    @model_validator(mode="after")
    def _check_one_grader(self) -> ValidateInput:
        if bool(self.grader) == bool(self.rubric):
            raise ValueError("give `grader` or `rubric`, one of them")
        if len({(each.is_pair, type(each.label) is bool) for each in self.examples}) > 1:
            raise ValueError(
                "all examples have labels of one kind: true and false, numbers, or which of two "
                "is better"
            )
        return self


Input = TypeVar("Input", bound=ToolInput)


def read_arguments(kind: type[Input], arguments: Mapping[str, Any]) -> Input:
    """Return the checked arguments of a call. Raises ValidationError."""
    return kind.model_validate(_ArgumentReader().read(dict(arguments), _input_schema(kind)))


class _ArgumentReader:
    """Reads values as their schemas mean them. What it cannot read stays as it is."""

    def __init__(self) -> None:
        self._left = MAX_TEXT_VALUES

    def read(self, value: Any, schema: Mapping[str, Any]) -> Any:
        types = {option.get("type") for option in schema.get("anyOf", [schema])} - {None}
        if isinstance(value, str) and types and "string" not in types:
            value = self._read_text(value)
        if isinstance(value, float) and types == {"integer"} and value.is_integer():
            return int(value)
        if isinstance(value, list) and "items" in schema:
            return [self.read(each, schema["items"]) for each in value]
        if not (isinstance(value, dict) and "properties" in schema):
            return value
        fields, required = schema["properties"], schema.get("required", ())
        values = {name: self.read(each, fields.get(name, {})) for name, each in value.items()}
        return {
            name: each
            for name, each in values.items()
            if each is not None or name in required or name not in fields
        }

    def _read_text(self, text: str) -> Any:
        """Return the value of a text of JSON; any other text, and a text in JSON, as it is."""
        size = sum(map(text.count, "[{,"))
        if size > self._left:
            return text
        self._left -= size
        try:
            value = strict_loads(text.strip(), MAX_TEXT_VALUES * BYTES_PER_VALUE)
        except ValueError:
            return text
        return text if isinstance(value, str) else value


@cache
def _input_schema(kind: type[BaseModel]) -> dict[str, Any]:
    schema = kind.model_json_schema()
    plain: dict[str, Any] = _plain(schema, schema.get("$defs", {}))
    return plain


def tool_schema(arguments: type[BaseModel], models: tuple[str, ...]) -> dict[str, Any]:
    """Return the JSON schema of a tool's arguments in a plain form: no references, titles, or null
    for what may be left out.

    `models` are the names that `model` may have; with fewer than two it is left out.
    """
    schema = {
        name: value for name, value in _input_schema(arguments).items() if name != "description"
    }
    properties = {
        name: value
        for name, value in schema["properties"].items()
        if name != "model" or len(models) > 1
    }
    if "model" in properties:
        properties["model"] = {**properties["model"], "enum": list(models)}
    return {**schema, "properties": properties}


def _plain(node: Any, definitions: Mapping[str, Any]) -> Any:
    """Return a part of a schema in the plain form."""
    if isinstance(node, list):
        return [_plain(each, definitions) for each in node]
    if not isinstance(node, Mapping):
        return node
    if "$ref" in node:
        target = {
            key: value
            for key, value in definitions[node["$ref"].rpartition("/")[2]].items()
            if key != "description"
        }
        return _plain(
            {**target, **{key: value for key, value in node.items() if key != "$ref"}}, definitions
        )
    options = [option for option in node.get("anyOf", ()) if option != {"type": "null"}]
    if options:
        rest = {key: value for key, value in node.items() if key not in {"anyOf", "default"}}
        node = {**rest, **options[0]} if len(options) == 1 else {**rest, "anyOf": options}
    named = {key: value for key, value in node.items() if key not in {"title", "$defs"}}
    if isinstance(properties := named.get("properties"), Mapping):
        named["properties"] = {
            name: _plain(value, definitions) for name, value in properties.items()
        }
    return {
        key: value if key in {"properties", "default", "enum"} else _plain(value, definitions)
        for key, value in named.items()
    }
