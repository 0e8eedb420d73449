"""Answers that are JSON: of a type that pydantic validates, or that follow a JSON schema."""

from __future__ import annotations

import inspect
import json
import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, is_dataclass
from functools import cached_property, partial
from hashlib import sha256
from itertools import islice
from types import CodeType, FunctionType, MethodType, SimpleNamespace
from typing import Any, TypeVar, get_origin, get_type_hints

from ..base import checks
from ..base.descriptors import is_shortage
from ..base.error_text import error_text
from ..base.json_repair import double_backslashes, single_backslash
from ..base.own_code import fingerprint_name, is_own
from ..base.text import strip_control_sequences
from ..errors import ComputeLimitError, ConfigError, ValidatorError
from ..loop.prompts import SCHEMA_HEADING
from ..protocols import Edit
from ..requirements.data import JsonSchema, canonical_json, is_schema
from ..workers.pool import IN_PROCESS, run_sync
from .base import EXPECTED, AnswerForm, InvalidAnswer
from .json_text import (
    composed_json,
    is_json,
    json_in_texts,
    member_texts,
    plain_name,
    read_json,
    repaired_json,
    with_pieces,
    without_fence,
    wrapper_contents,
)
from .schemas import (
    endpoint_schema,
    prompt_schema,
    resolve_root,
    wrap_schema,
    wrapper_key,
    wrapper_names,
)

T = TypeVar("T")

MAX_ERRORS = 20  # errors of an answer that are listed
MAX_ERROR_CHARS = 300
MAX_VALUE_CHARS = 80  # characters of a wrong value in an error
# without these, any type is valid
TYPE_KEYWORDS = frozenset(("type", "anyOf", "oneOf", "allOf", "enum", "const", "$ref"))
MAX_MEMBERS = 10  # of an answer that is not valid, which are looked at for one that is
MAX_TEXTS = 1000  # of an answer that are read as JSON at once


class JsonAnswer(AnswerForm[T]):
    """An answer that is one JSON value. It is read strictly: RFC 8259, no duplicate keys, no
    NaN.
    """

    is_json = True
    ignores_extra = False  # whether objects may have properties that are no part of the value

    @property
    @abstractmethod
    def json_schema(self) -> Mapping[str, Any]:
        """The JSON schema of the value."""

    @abstractmethod
    def _validate(self, text: str, value: Any) -> T:
        """Return the value of valid JSON. Raises InvalidAnswer."""

    @cached_property
    def wrapper_key(self) -> str | None:
        """The key of the object in which the model returns a value that is no object; None if the
        value is one.
        """
        return wrapper_key(self.json_schema, ignores_extra=self.ignores_extra)

    @property
    def demand(self) -> str:
        what = (
            f"one JSON value of the form {self.name}"
            if self.wrapper_key is None
            else f"a JSON object with {self.name}"
        )
        return f"the whole answer is {what}, by its schema; no other text"

    @property
    def instruction(self) -> str:
        schema = prompt_schema(wrap_schema(self.json_schema, self.wrapper_key))
        return f"{self.demand}{SCHEMA_HEADING}{schema}"

    @property
    def schema(self) -> Mapping[str, Any] | None:
        return wrap_schema(self.json_schema, self.wrapper_key)

    @property
    def spec(self) -> str:
        return f"answer {self.name}"

    def extract(self, text: str, *, given: bool = False) -> str:
        """Return the JSON without the code fence around it, and without the object in which the
        model had to wrap it.
        """
        bare = without_fence(text)
        try:
            value = read_json(bare)
        except ValueError:
            return text
        return bare if given else self._without_wrapper(bare, value)

    def _without_wrapper(self, text: str, value: Any) -> str:
        """Return the text of the value in the wrapper; the whole text if there is no wrapper."""
        if (
            self.wrapper_key is None
            or not isinstance(value, dict)
            or list(value) != [self.wrapper_key]
        ):
            return text
        return member_texts(text)[self.wrapper_key]

    @cached_property
    def _wrapper_names(self) -> frozenset[str]:
        return wrapper_names(self.json_schema, self.name)

    @cached_property
    def _may_be_list(self) -> bool:
        return self._is_valid("[]")

    def _wrapper_contents(self, text: str) -> Iterator[tuple[str, str]]:
        """Yield what is in wrappers around a JSON text, as `wrapper_contents` does; nothing where
        values of any type are valid.
        """
        if not TYPE_KEYWORDS.isdisjoint(self.json_schema):
            yield from wrapper_contents(text, self._wrapper_names, lists=not self._may_be_list)

    def read(self, text: str) -> T:
        """Return the value. Raises InvalidAnswer with the errors: each with a path, a message, and
        the value found.
        """
        text = text.strip()
        try:
            value = read_json(text)
        except ValueError as error:
            raise self._syntax_error(text, str(error)) from error
        if command := single_backslash(text):
            raise invalid_answer(
                [
                    single_line(
                        f"the backslash of {command} is not doubled: write \\{command} in JSON"
                    )
                ],
                1,
            )
        try:
            return self._validate(text, value)
        except InvalidAnswer as invalid:
            raise self._wrapper_error(text, value, invalid) from invalid.__cause__

    def _wrapper_error(self, text: str, value: Any, invalid: InvalidAnswer) -> InvalidAnswer:
        """Return the error of a text that is not valid; where the answer is in a wrapper, or lacks
        one, with that first.
        """
        inner = [(wrapper, self._error_of(each)) for wrapper, each in self._wrapper_contents(text)]
        wrapper, error = max(inner, key=lambda each: each[1].nearness, default=("", invalid))
        if error.nearness > invalid.nearness:
            message = single_line(f"the answer stands in {wrapper}: write it alone")
            return InvalidAnswer(
                (message, *error.errors), nearness=(invalid.nearness + error.nearness) / 2
            )
        wrong = []
        if isinstance(value, dict):
            parts = [(key, each) for key, each in member_texts(text).items() if each[0] in "{["][
                :MAX_MEMBERS
            ]
            if names := [
                checks.format_value(key, MAX_VALUE_CHARS)
                for key, each in parts
                if self._is_valid(each)
            ]:
                wrong = [
                    f"an answer stands under {' and under '.join(names)}: write one answer alone"
                ]
            elif self._is_valid(f"[{text}]"):
                wrong = [
                    "a list is wanted: write it in square brackets, also if it holds one value"
                ]
        elif isinstance(value, list) and len(value) > 1 and self._is_valid(json.dumps(value[0])):
            wrong = [f"it is a list of {len(value)}: write one answer, without a list around it"]
        return InvalidAnswer((*map(single_line, wrong), *invalid.errors), nearness=invalid.nearness)

    def _error_of(self, text: str) -> InvalidAnswer:
        """Return the error of a JSON text; if it is valid, one without errors, of nearness 1."""
        try:
            self._validate(text, read_json(text))
        except InvalidAnswer as error:
            return error
        except ValidatorError:  # of a text that nobody has written as the answer
            return InvalidAnswer(("it cannot be validated",))
        return InvalidAnswer((), nearness=1.0)

    def _is_valid(self, text: str) -> bool:
        return self._error_of(text).nearness == 1

    def _syntax_error(self, text: str, problem: str) -> InvalidAnswer:
        """Return the error of a text that is no JSON, with the errors of the values in it as far as
        they can be told.
        """
        message = single_line(f"it is not JSON: {problem}")
        if repaired := repaired_json(text):
            try:
                self.read(self._without_wrapper(repaired, read_json(repaired)))
            except InvalidAnswer as invalid:
                return InvalidAnswer((message, *invalid.errors), nearness=invalid.nearness / 2)
            except ValueError:
                pass
        return InvalidAnswer((message,))

    def repairs(self, text: str) -> Iterator[Edit]:
        """Yield the one value in the text, if its form is all that is wrong: its syntax, or a
        wrapper around it.
        """
        given = text.strip()
        doubled = double_backslashes(given)
        if is_clean := is_json(doubled):
            whole: str | None = doubled
        else:
            whole = repaired_json(text)
        if whole is None or not is_json(whole):
            return
        step, valid = next(
            (each for each in self._readings(whole) if self._is_valid(each[1])), ("", text)
        )
        if valid == text:
            return
        around = not is_clean and not (given.startswith(("{", "[")) and given.endswith(("}", "]")))
        syntax = (
            "removed the text around the JSON"
            if around
            else ""
            if is_clean
            else "repaired the JSON syntax"
        )
        notes = (syntax, "doubled single backslashes" if doubled != given else "", step)
        yield Edit(
            valid,
            " and ".join(filter(None, notes)) or "removed the text around the JSON",
            lossy=around,
        )

    def _readings(self, text: str) -> Iterator[tuple[str, str]]:
        """Yield the values that a JSON text may mean, each with the step that leads to it, or
        "".
        """
        yield "", self._without_wrapper(text, read_json(text))
        yield "", text
        for wrapper, content in self._wrapper_contents(text):
            yield f"took the answer out of {wrapper}", content
        yield "read JSON in texts", self._with_texts_read(text)

    def _with_texts_read(self, text: str) -> str:
        """Return a JSON text with objects and lists for the texts that hold them: of many for all,
        else where errors get fewer.
        """
        found = [*islice(json_in_texts(text), MAX_TEXTS)]
        if len(found) > MAX_MEMBERS:
            return with_pieces(text, found)
        nearness = self._error_of(text).nearness
        for piece in reversed(found):
            changed = with_pieces(text, [piece])
            if (nearer := self._error_of(changed).nearness) > nearness:
                text, nearness = changed, nearer
        return text


@fingerprint_name("typed_answer")
@dataclass(frozen=True, eq=False)
class TypedAnswer(JsonAnswer[T]):
    """An answer of a type that pydantic validates: a model, a dataclass, a TypedDict,
    `list[Model]`, a union.

    Values are validated as `TypeAdapter.validate_json` does: lax unless the type is strict, so that
    "12" is accepted for an int. `context` is what validators find as `info.context`. Raises
    ConfigError for what is no such type, and if pydantic is not installed.
    """

    type: Any
    context: Mapping[str, Any] | None = None

    ignores_extra = True

    def __post_init__(self) -> None:
        if self.type is str:
            raise ConfigError(
                "answer: str is what `result.value` is without `answer`; leave it out"
            )
        if is_function(self.type):
            raise function_error(self.type)
        self.json_schema  # noqa: B018  (raises for what is no type)

    def __reduce__(self) -> Any:
        return TypedAnswer, (self.type, self.context)

    @cached_property
    def adapter(self) -> Any:
        """The TypeAdapter of the type."""
        try:
            from pydantic import TypeAdapter
        except ImportError as error:
            raise ConfigError(
                f"answer: types need pydantic: {checks.install_command('typed')}; a JSON schema as "
                "a dict does not"
            ) from error
        if isinstance(self.type, TypeAdapter):
            return self.type
        try:
            adapter = TypeAdapter(self.type)
        except Exception as error:  # a foreign class may raise anything
            problem = checks.invalid_argument("answer", EXPECTED, self.type)
            raise ConfigError(
                f"{problem}: {_schema_problem(error)}"
                if isinstance(self.type, type)
                else str(problem)
            ) from error
        if functions := _called_functions(adapter.core_schema):
            raise function_error(functions[0])
        return adapter

    @property
    def json_schema(self) -> Mapping[str, Any]:
        return self._resolved_schema

    @cached_property
    def _resolved_schema(self) -> Mapping[str, Any]:
        try:
            return resolve_root(self.adapter.json_schema())
        except ConfigError:
            raise
        except Exception as error:  # a foreign class may raise anything
            raise ConfigError(
                f"answer: {self.name} has no JSON schema: {error_text(error)[:300]}"
            ) from error

    @property
    def schema(self) -> Mapping[str, Any] | None:
        return endpoint_schema(wrap_schema(self.json_schema, self.wrapper_key))

    @property
    def name(self) -> str:
        if isinstance(self.type, type) and get_origin(self.type) is None:
            return self.type.__name__
        return re.sub(
            r"\b(?:\w+\.)+", "", str(_without_metadata(getattr(self.type, "_type", self.type)))
        )[:100]

    @property
    def fingerprint(self) -> str:
        return self._digest

    @cached_property
    def _digest(self) -> str:
        parts: list[Any] = [
            self.name,
            canonical_json(self.json_schema),
            *sorted(_sources(self.adapter.core_schema)),
        ]
        if self.context is not None:
            parts.append(
                json.dumps(dict(self.context), sort_keys=True, skipkeys=True, default=_stable_data)
            )
        return sha256(json.dumps(parts).encode()).hexdigest()[:16]

    def _validate(self, text: str, value: Any) -> T:
        from pydantic import ValidationError

        try:
            validated: T = self.adapter.validate_json(
                text.encode("utf-8", "surrogatepass"), context=self.context
            )
        except ValidationError as error:
            if (composed := composed_json(text)) != text:  # a Literal or an Enum compares texts
                return self._validate(composed, value)
            found = error.errors(include_url=False, include_context=False)
            raise invalid_answer(
                [_error_line(each) for each in found[:MAX_ERRORS]], len(found)
            ) from None
        except Exception as error:
            if is_shortage(error):
                raise
            hint = (
                "; info.context is None without answer_context="
                if self.context is None and "NoneType" in str(error)
                else ""
            )
            raise ValidatorError(
                f"a validator of {self.name} raised {error_text(error)}; that is a fault of the "
                f"code: for a wrong answer, validators raise a ValueError{hint}"
            ) from error
        if isinstance(value, dict) and len(value) == 1 and _says_nothing(validated):
            [(key, content)] = member_texts(text).items()
            inner = (
                self._validated_or_none(content) if plain_name(key) in self._wrapper_names else None
            )
            if inner is not None and not _says_nothing(inner):
                raise invalid_answer([single_line(f"no field is given, only {key!r}")], 1)
        return validated

    def _validated_or_none(self, text: str) -> T | None:
        try:
            return self._validate(text, read_json(text))
        except InvalidAnswer:
            return None

    def to_data(self, value: Any, text: str) -> Any:
        """Return the value as the type serializes it; the JSON of the answer if the type does not
        read the same value from that.

        A type need not read what it writes: a field may have an alias for validation only, or be
        left out.
        """
        for by_alias in (True, False):
            try:
                data = self.adapter.dump_python(value, mode="json", by_alias=by_alias)
                if self._validate(json.dumps(data), data) == value:
                    return data
            except Exception:  # noqa: BLE001, S112  (serializers and validators of the user)
                continue
        return read_json(text.strip())

    def accepts(self, annotation: Any) -> bool:
        """Return whether the annotation is the type, or a class that every value of the type is an
        instance of.
        """
        target = getattr(self.type, "_type", self.type)
        if annotation == target:
            return True
        cls = get_origin(target) or target
        base = get_origin(annotation) or annotation
        if not isinstance(base, type) or not isinstance(cls, type) or base is object:
            return False
        try:
            return issubclass(cls, base)
        except TypeError:  # a TypedDict, or a protocol that cannot be checked
            return False


@fingerprint_name("schema_answer")
@dataclass(frozen=True, eq=False)
class SchemaAnswer(JsonAnswer[Any]):
    """An answer that follows a JSON schema. `read` returns plain data. Raises ConfigError for what
    is no schema.
    """

    given_schema: Mapping[str, Any]
    requirement: JsonSchema = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not is_schema(dict(self.given_schema)):
            raise checks.invalid_argument(
                "answer",
                "a JSON schema, with a keyword such as type or properties",
                self.given_schema,
            )
        try:
            text = canonical_json(dict(self.given_schema), finite=True)
            requirement = JsonSchema(text)
        except ConfigError as error:
            raise ConfigError(f"answer: {error}") from None
        except (ValueError, TypeError, RecursionError) as error:
            raise ConfigError(f"answer: the schema is not JSON: {error}") from None
        object.__setattr__(self, "given_schema", json.loads(text))
        object.__setattr__(self, "requirement", requirement)

    @property
    def name(self) -> str:
        title = self.given_schema.get("title")
        return single_line(title)[:100] if isinstance(title, str) and title.strip() else "JSON"

    @property
    def json_schema(self) -> Mapping[str, Any]:
        return resolve_root(self.given_schema)

    @property
    def fingerprint(self) -> str:
        return sha256(self.requirement.schema.encode()).hexdigest()[:16]

    def _validate(self, text: str, value: Any) -> Any:
        try:
            errors = self._find_errors(text, value)
        except (TimeoutError, ComputeLimitError):
            errors = ["the schema could not be checked in time"]
        if errors:
            raise invalid_answer([single_line(error) for error in errors], len(errors))
        return value

    def _find_errors(self, text: str, value: Any) -> list[str]:
        """Return the errors. What may take long is checked in a worker. Raises TimeoutError or
        ComputeLimitError.
        """
        if self.requirement.check_cost(text) <= IN_PROCESS:
            return self.requirement.find_errors(value, MAX_ERRORS)
        schema, failure = self.requirement.schema, "the schema could not be checked"
        errors: list[str] = run_sync(
            _schema_errors, schema, text, failure_text=failure, text_length=len(text)
        )
        return errors

    def to_data(self, value: Any, text: str) -> Any:
        return value

    def accepts(self, annotation: Any) -> bool:
        """Return whether the annotation describes plain data."""
        base = get_origin(annotation) or annotation
        return base in (
            {dict, Mapping}
            if self.json_schema.get("type") == "object"
            else {dict, Mapping, list, int, float, bool}
        )


def _schema_errors(schema: str, text: str) -> list[str]:
    try:
        return JsonSchema(schema).find_errors(read_json(text), MAX_ERRORS)
    except TimeoutError as error:
        raise ComputeLimitError(
            "the patterns of the schema could not be checked in time"
        ) from error


def _stable_data(value: Any) -> Any:
    """Return what stands for a value that JSON lacks in a fingerprint, in every run: of a set its
    items, else the class.
    """
    if isinstance(value, set | frozenset):
        return sorted(
            str(each if isinstance(each, str | int | float) else _stable_data(each))
            for each in value
        )
    return type(value).__qualname__


def invalid_answer(errors: list[str], count: int) -> InvalidAnswer:
    """Return the error for these errors, of which there are `count`; the fewer there are, the
    nearer the answer comes.
    """
    left = [f"{count - len(errors)} more errors"] if count > len(errors) else []
    return InvalidAnswer((*errors, *left), count, nearness=1 / (1 + count))


def _says_nothing(value: Any) -> bool:
    """Whether a validated value is a model of which no field was given, or an empty dictionary."""
    return value == {} if isinstance(value, dict) else not getattr(value, "model_fields_set", True)


def single_line(text: str) -> str:
    """Return text from a model on one line, shortened, without control characters."""
    flat = " ".join(strip_control_sequences(text).split())
    return flat if len(flat) <= MAX_ERROR_CHARS else f"{flat[: MAX_ERROR_CHARS - 3]}..."


def _error_line(error: Mapping[str, Any]) -> str:
    """Return one of pydantic's errors: the path, the message, and the value found."""
    path = "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" for part in error["loc"]
    ).removeprefix(".")
    found = (
        ""
        if error["type"] == "missing"
        else f", got {checks.format_value(error['input'], MAX_VALUE_CHARS)}"
    )
    message = f"{error['msg']}{found}"
    return single_line(f"{path}: {message}" if path else message)


def is_function(value: Any) -> bool:
    """Return whether a value is a function or a method, also a partial or a wrapped one."""
    is_wrapper = isinstance(value, partial | staticmethod | classmethod) or hasattr(
        value, "__wrapped__"
    )
    return inspect.isroutine(value) or (is_wrapper and not isinstance(value, type))


def function_error(function: Any) -> ConfigError:
    """Return the error of a function in the place of a type. Pydantic would call it with the answer
    of the model.
    """
    name = getattr(function, "__qualname__", None) or checks.format_value(function, 60)
    return ConfigError(
        f"answer: {name} is a function and no type; a function that grades belongs to graders "
        "(--grader)"
    )


def _schema_problem(error: Exception) -> str:
    """Return the first sentence of pydantic's error: the others are about its own settings."""
    text = (
        str(error).partition("\n\nFor further")[0].partition(". Set `")[0].partition(". If you")[0]
    )
    return single_line(text)


def _without_metadata(annotation: Any) -> Any:
    """Return a type without what `Annotated` adds to it, at any depth."""
    holder = SimpleNamespace(__annotations__={"type": annotation})
    try:
        return get_type_hints(holder)["type"] if "Annotated[" in str(annotation) else annotation
    except Exception:  # noqa: BLE001  (names in quotes that are defined elsewhere)
        return annotation


def _called_functions(core_schema: Any) -> list[Any]:
    """Return the functions that a core schema of pydantic calls with values: functions in the place
    of types.
    """
    calls = (
        node
        for node in _nodes(core_schema)
        if isinstance(node, Mapping) and node.get("type") == "call"
    )
    return [
        node["function"]
        for node in calls
        if "function" in node and not isinstance(node["function"], type)
    ]


# methods of a model that validate without being listed as validators
SOURCE_METHODS = ("__init__", "model_post_init")
DATACLASS_METHODS = ("__post_init__",)


def _sources(core_schema: Any) -> set[str]:
    """Return the source of the user's validators in a core schema of pydantic: they decide what is
    valid, too.
    """
    functions = (
        node
        for node in _nodes(core_schema)
        if isinstance(node, FunctionType | MethodType) and not _is_library(node)
    )
    return {_source(getattr(function, "__func__", function)) for function in functions}


def _nodes(core_schema: Any) -> Iterator[Any]:
    """Yield each value in a core schema of pydantic, and the methods of its classes that
    validate.
    """
    seen: set[int] = set()
    pending = [core_schema]
    while pending:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        yield value
        if isinstance(value, Mapping):
            pending += value.values()
        elif isinstance(value, list | tuple):
            pending += value
        elif isinstance(value, type) and not _is_library(value):
            pending += [
                vars(value)[name]
                for name in SOURCE_METHODS
                if name in vars(value) and not is_dataclass(value)
            ]
            pending += [vars(value)[name] for name in DATACLASS_METHODS if name in vars(value)]


def _is_library(target: Any) -> bool:
    module = str(getattr(target, "__module__", ""))
    return is_own(target) or module.partition(".")[0] in {
        "builtins",
        "pydantic",
        "pydantic_core",
        "typing",
        "enum",
        "datetime",
    }


def _source(target: Any) -> str:
    """Return the source of a function; without one, its bytecode."""
    try:
        return inspect.getsource(target)
    except (OSError, TypeError):
        code: CodeType = target.__code__
        constants = [constant for constant in code.co_consts if not isinstance(constant, CodeType)]
        return f"{code.co_code.hex()} {code.co_names} {constants}"
