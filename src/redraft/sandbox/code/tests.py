"""Tests of a program: their kinds, and reading them from text or JSON.

Nothing of a test is executed here. A test that is an input and an expected value is a *call* or a
*run*; only code that is neither stays code, and runs apart from the candidate (`driver`) or, if it
needs more than values and the user allows that, with it (`in_process`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Literal, TypeAlias

from ...answers.python_source import PARSER_ERRORS, parse
from ...base import checks
from ...base.jsontext import strict_loads
from ...errors import ConfigError
from ...loop.task import Task
from .assertion_code import names_of_candidate, read_test_code
from .asserts import NotSimpleError, checked_name, simple_asserts
from .compare import (
    FLOAT_TOLERANCE,
    OUTPUT_COMPARISONS,
    CallTest,
    OutputComparison,
    Tolerance,
    ValueComparer,
)

Kind: TypeAlias = Literal["calls", "driver", "stdio", "in_process"]
MAX_TESTS = 10_000
MAX_SOURCE_CHARS = 1_000_000
CALL_FIELDS = (
    "input",
    "output",
    "kwargs",
    "raises",
    "tolerance",
    "equal_nan",
    "function",
    "weight",
    "hidden",
    "name",
)
STDIO_FIELDS = ("stdin", "stdout", "compare", "tolerance", "weight", "hidden", "name")
# of APPS and TACO, and of CodeContests
PAIRED_FIELDS = (("inputs", "outputs"), ("input", "output"))
CONTEST_FIELDS = ("public_tests", "private_tests", "generated_tests")  # of CodeContests
WRAPPER_FIELDS = (
    "entry_point", "fn_name", "tests", "hidden", "test_list", "test_setup_code", "test_imports", *CONTEST_FIELDS,
    *(name for pair in PAIRED_FIELDS for name in pair),
)  # fmt: skip
IGNORED_FIELDS = frozenset(  # of rows of MBPP, APPS, HumanEval, LiveCodeBench and CodeContests
    (
        "task_id", "problem_id", "question_id", "id", "text", "prompt", "question", "code", "canonical_solution", "solutions",
        "challenge_test_list", "source_file", "difficulty", "url", "starter_code", "metadata", "testtype",
        "name", "description", "source", "incorrect_solutions", "time_limit", "memory_limit_bytes", "is_description_translated",
        "untranslated_description", "cf_contest_id", "cf_index", "cf_points", "cf_rating", "cf_tags", "input_file", "output_file",
    )
)  # fmt: skip
FORMS = (
    '[{"input": [args], "output": value}], [{"stdin": text, "stdout": text}], ["assert f(1) '
    '== 2"], {"entry_point": "f", "tests": [...]}, {"inputs": [...], "outputs": [...]}, or '
    "test code"
)


@dataclass(frozen=True, slots=True)
class StdioTest:
    """A run of the whole program: what it reads from standard input, and what it must print."""

    stdin: str
    stdout: str
    compare: OutputComparison = "tokens"
    tolerance: float = FLOAT_TOLERANCE
    weight: float = 1.0
    hidden: bool = False
    name: str = ""


@dataclass(frozen=True, slots=True)
class CodeTest:
    """Test code as a whole; the parts that count are found when it runs."""

    source: str
    hidden: bool = False


@dataclass(frozen=True)
class Tests:
    """The tests of a program, read by `parse_tests`.

    `kind` says how they are run: "calls" (values go in and out), "stdio" (texts go in and out),
    "driver" (test code runs in a sandbox of its own and calls the candidate by value) or
    "in_process" (test code needs more than values of the candidate and runs beside it, where the
    candidate could forge the verdict; `why` says what needs that).
    """

    __test__: ClassVar[bool] = False  # no test case of pytest

    kind: Kind
    entry_point: str | None
    calls: tuple[CallTest, ...] = ()
    runs: tuple[StdioTest, ...] = ()
    code: tuple[CodeTest, ...] = ()
    why: str = ""

    @property
    def items(self) -> tuple[CallTest | StdioTest | CodeTest, ...]:
        """All tests, in their order."""
        return self.calls or self.runs or self.code

    @property
    def visible(self) -> tuple[CallTest | StdioTest | CodeTest, ...]:
        """The tests that decide the score and may be shown."""
        return tuple(test for test in self.items if not test.hidden)

    @property
    def hidden(self) -> tuple[CallTest | StdioTest | CodeTest, ...]:
        """The tests whose outcome is only reported."""
        return tuple(test for test in self.items if test.hidden)

    @property
    def first_function(self) -> str | None:
        """The function that the tests call, or the first of several; None if they do not say."""
        return self.entry_point or next(
            (test.function for test in self.calls if test.function), None
        )

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of the program that the tests use, as far as they say."""
        used = {self.entry_point or "", *(test.function for test in self.calls)}
        for test in self.code:
            used |= names_of_candidate(parse(test.source), self.entry_point)
        return frozenset(name.partition(".")[0] for name in used if name)


def parse_tests(
    tests: str | Sequence[Any] | Mapping[str, Any], entry_point: str | None = None
) -> Tests:
    """Read tests. `entry_point` is the name of the function to test, if the tests do not say.

    Accepted, as text or as JSON: `[{"input": [args], "output": value}]` with the optional fields
    `kwargs`, `raises`, `tolerance`, `equal_nan`, `function`, `weight`, `hidden`, `name`;
    `[{"stdin": text, "stdout": text, "compare": "tokens"}]`; a list of asserts, also with code
    before them (`{"test_list": [...], "test_setup_code": code, "test_imports": [...]}`, MBPP);
    `{"entry_point": name, "tests": ..., "hidden": ...}`, "test" alone as well (HumanEval);
    `{"inputs": [...], "outputs": [...], "fn_name": ...}` (APPS, TACO); `{"input": [text, ...],
    "output": [text, ...]}`, also as `public_tests`, `private_tests` and `generated_tests`, which
    all count (CodeContests); test code with `def check(candidate)` (HumanEval) or asserts; a file
    for pytest or unittest. The name of a method is `Solution.name` or `Solution().name`.

    Raises ConfigError for anything else, naming what is wrong and where.
    """
    return _Reader(_without_call(entry_point)).read(_structure(tests))


@lru_cache(maxsize=256)
def cached_tests(tests: str, entry_point: str | None) -> Tests:
    """Do the same as `parse_tests` for a text that was read before, without reading it again."""
    return parse_tests(tests, entry_point)


def task_tests(task: Task, entry_point: str | None = None) -> Tests:
    """Return the tests of a task; its metadata may name the function to test. Raises
    ConfigError.
    """
    name = entry_point or task.metadata.get("entry_point")
    return cached_tests(task.tests or "", name if isinstance(name, str) else None)


def _without_call(name: str | None) -> str | None:
    """Return the name of a method of a new object, `Solution().f`, as `Solution.f`; any other name
    as it is.
    """
    return name.replace("().", ".") if name else name


def _structure(tests: object) -> Any:
    """Return tests as a list, a mapping, or the text of test code."""
    if not isinstance(tests, str):
        return tests
    text = tests.strip()
    if not text:
        raise ConfigError("tests are blank: give tests, or leave the field out")
    if len(text) > MAX_SOURCE_CHARS:
        raise ConfigError(
            f"tests have {len(text):,} characters, and at most {MAX_SOURCE_CHARS:,} are read"
        )
    if text[0] not in "[{":
        return text
    try:
        return strict_loads(text)
    except ValueError as error:
        return _python_list(text, error)


def _python_list(text: str, error: ValueError) -> Any:
    """Return a list or dictionary in Python's notation, as some data sets have it."""
    try:
        return ast.literal_eval(text)
    except (*PARSER_ERRORS, TypeError):
        raise ConfigError(f"tests begin like JSON and are not JSON ({str(error)[:200]})") from None


@dataclass(frozen=True)
class _Reader:
    """Reads tests with the settings of the mapping around them."""

    entry_point: str | None = None
    hidden: bool = False
    as_code: bool = False  # asserts stay code

    def read(self, tests: Any) -> Tests:
        if isinstance(tests, str):
            return self._code(tests)
        if isinstance(tests, Mapping):
            return self._mapping(tests)
        if isinstance(tests, Sequence) and not isinstance(tests, bytes):
            return self._list(tests)
        raise checks.invalid_argument("tests", FORMS, tests)

    # ---- JSON

    def _mapping(self, tests: Mapping[str, Any]) -> Tests:
        if "test" in tests and "tests" not in tests:  # HumanEval
            tests = {"tests" if key == "test" else key: value for key, value in tests.items()}
        name = _text_field(tests, "entry_point", "tests") or _text_field(tests, "fn_name", "tests")
        reader = replace(self, entry_point=_without_call(name) or self.entry_point)
        if pairs := reader.pairs_in(tests):
            _check_wrapper(tests)
            by_call = name is not None or not _are_lines(pairs[0])
            return reader.read_pairs(*pairs, by_call=by_call)
        if contests := [_structure(tests[each]) for each in CONTEST_FIELDS if tests.get(each)]:
            _check_wrapper(tests)
            return _join([reader.read_contest(part) for part in contests if not _is_empty(part)])
        return reader.read_wrapper(tests)

    def read_wrapper(self, tests: Mapping[str, Any]) -> Tests:
        """Read a mapping with a list of tests, or a single test."""
        if "test_list" in tests:  # MBPP
            _check_wrapper(tests)
            return self.read("\n".join([*_set_up_of(tests), *_texts(tests["test_list"])]))
        if "input" in tests or "stdin" in tests:
            return self.read([tests])
        if "tests" not in tests and "hidden" not in tests:
            raise checks.invalid_argument("tests", FORMS, tests)
        _check_wrapper(tests)
        return self.read_parts(*(_structure(tests.get(name)) for name in ("tests", "hidden")))

    def pairs_in(self, tests: Mapping[str, Any]) -> tuple[Any, Any] | None:
        """Return the inputs and the outputs of a mapping that holds several tests in this way."""
        for names in PAIRED_FIELDS:
            inputs, outputs = (_list_in(tests.get(name)) for name in names)
            if all(name in tests for name in names) and (
                names[0] == "inputs" or self.holds_pairs(tests, inputs, outputs)
            ):
                return inputs, outputs
        return None

    def read_contest(self, tests: Any) -> Tests:
        """Read a part of the tests of CodeContests, whose inputs and outputs are as many."""
        if isinstance(tests, Mapping):
            pair = [_list_in(tests.get(name)) for name in ("input", "output")]
            if any(isinstance(each, list | tuple) for each in pair):
                _checked_pairs(*pair)
        return self.read(tests)

    def holds_pairs(self, tests: Mapping[str, Any], inputs: Any, outputs: Any) -> bool:
        """Return whether a mapping with "input" and "output" holds several tests: of a function
        that it names, or of a program.
        """
        if tests.get("fn_name") is not None:
            return True
        # the arguments of one call
        if self.entry_point is not None or tests.get("function") is not None:
            return False
        if not _are_texts(inputs) or not _are_texts(outputs):
            return False
        # refused if unequal
        return len(inputs) == len(outputs) or any("\n" in text for text in (*inputs, *outputs))

    def read_parts(self, visible: Any, hidden: Any) -> Tests:
        """Read visible and hidden tests. If some of them stay code, all do."""
        readers = [(self, visible), (replace(self, hidden=True), hidden)]
        parts = [reader.read(tests) for reader, tests in readers if tests]
        if {part.kind for part in parts} == {"calls", "driver"} and not self.as_code:
            return replace(self, as_code=True).read_parts(visible, hidden)
        return _join(parts)

    def read_pairs(self, inputs: Any, outputs: Any, *, by_call: bool) -> Tests:
        """Read the inputs and outputs of APPS."""
        pairs = _checked_pairs(inputs, outputs)
        if by_call:
            rows = [{"input": given, "output": output} for given, output in pairs]
            # JSON, a line for each argument
            texts = all(isinstance(each, str) for pair in pairs for each in pair)
            tests = self.read(
                [{**row, "testtype": "functional"} for row in rows] if texts else rows
            )
            return replace(tests, calls=tuple(_with_unwrapped(test) for test in tests.calls))
        return self.read(
            [{"stdin": _join_lines(given), "stdout": _join_lines(out)} for given, out in pairs]
        )

    def _list(self, tests: Sequence[Any]) -> Tests:
        if not tests or len(tests) > MAX_TESTS:
            raise ConfigError(
                f"tests must be a list of 1 to {MAX_TESTS:,} tests, got {len(tests):,}"
            )
        if all(isinstance(test, str) for test in tests):
            return self._code("\n".join(tests))
        rows = [_as_test(test, f"tests[{n}]") for n, test in enumerate(tests)]
        if len({"stdin" in row for row in rows}) > 1:
            raise ConfigError('tests must either all have "stdin" or all have "input"')
        if "stdin" in rows[0]:
            runs = tuple(self._run(row, f"tests[{n}]") for n, row in enumerate(rows))
            return Tests("stdio", self.entry_point, runs=runs)
        return Tests(
            "calls",
            self.entry_point,
            tuple(self._call(row, f"tests[{n}]") for n, row in enumerate(rows)),
        )

    def _call(self, row: Mapping[str, Any], where: str) -> CallTest:
        _check_fields(row, CALL_FIELDS, where)
        args, kwargs = row.get("input", []), row.get("kwargs", {})
        if not isinstance(args, list | tuple):
            raise checks.invalid_argument(
                f"{where}.input", "the list of arguments, such as [3, [1, 2]]", args
            )
        checks.mapping(f"{where}.kwargs", kwargs, '{"key": 1}', optional=False)
        raises = _text_field(row, "raises", where)
        if ("output" in row) == (raises is not None):
            raise ConfigError(
                f'{where} needs either "output", the expected value, or "raises", the name of an '
                "exception"
            )
        tolerance = row.get("tolerance")
        checks.number(f"{where}.tolerance", tolerance, 0, optional=True)
        checks.flag(f"{where}.equal_nan", row.get("equal_nan", False))
        return CallTest(
            _text_field(row, "function", where) or "",
            tuple(args),
            kwargs,
            row.get("output"),
            comparer=ValueComparer(
                None if tolerance is None else Tolerance(tolerance, tolerance),
                row.get("equal_nan", False),
                json=True,
            ),
            raises=raises,
            **self._common(row, where),
        )

    def _run(self, row: Mapping[str, Any], where: str) -> StdioTest:
        _check_fields(row, STDIO_FIELDS, where)
        for name in ("stdin", "stdout"):
            checks.text(f"{where}.{name}", row.get(name), allow_blank=True)
        compare = row.get("compare", "tokens")
        checks.one_of(f"{where}.compare", compare, OUTPUT_COMPARISONS)
        tolerance = row.get("tolerance", FLOAT_TOLERANCE)
        checks.number(f"{where}.tolerance", tolerance, 0)
        return StdioTest(
            row["stdin"], row["stdout"], compare, tolerance, **self._common(row, where)
        )

    def _common(self, row: Mapping[str, Any], where: str) -> dict[str, Any]:
        weight, hidden = row.get("weight", 1.0), row.get("hidden", False)
        checks.positive(f"{where}.weight", weight)
        checks.flag(f"{where}.hidden", hidden)
        return {
            "weight": float(weight),
            "hidden": hidden or self.hidden,
            "name": _text_field(row, "name", where) or "",
        }

    # ---- code

    def _code(self, source: str) -> Tests:
        try:
            return self._parsed_code(source, parse(source))
        except (RecursionError, MemoryError):
            raise ConfigError("tests: the test code is nested too deeply") from None
        except (SyntaxError, ValueError) as error:
            if isinstance(error, ConfigError):
                raise
            line = getattr(error, "lineno", None)
            where = f"line {line}: " if line else ""
            raise ConfigError(
                f"tests are neither JSON nor Python code ({where}{str(error)[:200]})"
            ) from None

    def _parsed_code(self, source: str, tree: ast.Module) -> Tests:
        name = self.entry_point or checked_name(tree)
        if not self.as_code:
            with suppress(NotSimpleError):
                asserts = simple_asserts(tree, name)
                if len(asserts) > MAX_TESTS:
                    raise ConfigError(
                        f"tests must be at most {MAX_TESTS:,} tests, got {len(asserts):,}"
                    )
                return Tests(
                    "calls", name, tuple(replace(each, hidden=self.hidden) for each in asserts)
                )
        needs = read_test_code(source, name).needs
        return Tests(
            "in_process" if needs else "driver",
            name,
            code=(CodeTest(source, self.hidden),),
            why=needs,
        )


def _join(parts: Sequence[Tests]) -> Tests:
    """Return visible and hidden tests as one. Raises ConfigError if they are of different kinds."""
    if not parts:
        raise ConfigError("tests are empty: give at least one")
    first = parts[0]
    for part in parts[1:]:
        if first.kind != part.kind:
            raise ConfigError(
                f"the tests are of the kind {first.kind!r} and the hidden ones of the kind "
                f"{part.kind!r}"
            )
        first = Tests(
            first.kind,
            first.entry_point or part.entry_point,
            first.calls + part.calls,
            first.runs + part.runs,
            first.code + part.code,
            first.why or part.why,
        )
    return first


def _as_test(row: object, where: str) -> Mapping[str, Any]:
    """Return a test in our fields. Two texts are what a program reads and prints; LiveCodeBench
    says which of the two it means.
    """
    if not isinstance(row, Mapping):
        raise checks.invalid_argument("tests", FORMS, row)
    rest = {key: value for key, value in row.items() if key not in ("input", "output", "testtype")}
    if row.get("testtype") == "functional":
        return {**rest, **_values_of(row, where)}
    if isinstance(row.get("input"), str) and isinstance(row.get("output"), str):
        return {**rest, "stdin": row["input"], "stdout": row["output"]}
    return row


def _values_of(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return input and output of a call of LiveCodeBench, which are JSON: each argument is a
    line.
    """
    try:
        given = [
            strict_loads(line) for line in str(row.get("input", "")).splitlines() if line.strip()
        ]
        return {"input": given, "output": strict_loads(str(row.get("output")))}
    except ValueError as error:
        raise ConfigError(f"{where}: input and output must be JSON ({str(error)[:200]})") from None


def _checked_pairs(inputs: Any, outputs: Any) -> list[tuple[Any, Any]]:
    both = isinstance(inputs, list | tuple) and isinstance(outputs, list | tuple)
    if not both or len(inputs) != len(outputs):
        got = f"{_amount(inputs, 'input')} and {_amount(outputs, 'output')}"
        raise ConfigError(f"tests: inputs and outputs must be lists of the same length, got {got}")
    return list(zip(inputs, outputs, strict=True))


def _amount(values: object, name: str) -> str:
    return (
        f"{len(values):,} {name}{'s' * (len(values) != 1)}"
        if isinstance(values, list | tuple)
        else type(values).__name__
    )


def _with_unwrapped(test: CallTest) -> CallTest:
    """Return the test with the only item of a list as an alternative: many rows of the data set
    have values in such lists.
    """
    wrapped = isinstance(test.expected, list) and len(test.expected) == 1
    return replace(test, alternatives=(test.expected[0],)) if wrapped else test


def _are_lines(inputs: object) -> bool:
    """Return whether inputs are texts, or lists of lines; other ones are arguments of a
    function.
    """
    return not isinstance(inputs, list | tuple) or all(
        isinstance(each, str) or _are_texts(each) for each in inputs
    )


def _are_texts(values: object) -> bool:
    return isinstance(values, list | tuple) and all(isinstance(each, str) for each in values)


def _is_empty(tests: object) -> bool:
    """Return whether a part of the tests of CodeContests has none."""
    return isinstance(tests, Mapping) and not any(tests.values())


def _join_lines(value: object) -> Any:
    return "\n".join(map(str, value)) if isinstance(value, list | tuple) else value


def _set_up_of(tests: Mapping[str, Any]) -> Iterator[str]:
    """Yield the code that comes before the asserts of MBPP: lines with imports, and code."""
    lines = _list_in(tests.get("test_imports"))
    yield from _texts(lines, "test_imports") if lines else ()
    yield _text_field(tests, "test_setup_code", "tests") or ""


def _list_in(value: object) -> Any:
    """Return a list that stands in a text, as in a CSV file; anything else as it is."""
    return _structure(value) if isinstance(value, str) and value.lstrip().startswith("[") else value


def _texts(values: object, name: str = "test_list") -> Iterable[str]:
    values = _list_in(values)
    if (
        not isinstance(values, list | tuple)
        or not values
        or not all(isinstance(value, str) for value in values)
    ):
        raise checks.invalid_argument(
            f"tests.{name}", 'a list of texts such as ["assert f(1) == 2"]', values
        )
    return values


def _check_fields(row: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    unknown = [str(key) for key in row if key not in known]
    if unknown:
        raise ConfigError(f"{where}: {checks.unknown_name_message('field', unknown[0], known)}")


def _check_wrapper(tests: Mapping[str, Any]) -> None:
    """Raise ConfigError for a key around tests that is neither ours nor one of a data set."""
    _check_fields(
        {key: value for key, value in tests.items() if key not in IGNORED_FIELDS},
        WRAPPER_FIELDS,
        "tests",
    )


def _text_field(row: Mapping[str, Any], name: str, where: str) -> str | None:
    value = row.get(name)
    checks.text(f"{where}.{name}", value, optional=True)
    return value
