"""Runs tests whose outcome is compared here: calls (values go in, values come back), and whole
programs (a text goes to standard input, and what is printed is compared).
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from ...answers.python_source import PARSER_ERRORS, FunctionNode, parse
from ..execution import Execution
from .compare import CallTest, equal_output
from .report import (
    PROGRAM,
    TestReport,
    TestResult,
    make_report,
    show,
    show_call,
)
from .session import Answer, CallFailure, CandidateSession
from .tests import StdioTest, Tests
from .values import Decoder, ValueCodecError, nested_lists

Checker: TypeAlias = Callable[[Any, Any, Any], bool]
"""`(input, expected, got) -> bool`: a comparison of the author's. It runs outside of the sandbox,
on built-in values.
"""


def run_calls(
    session: CandidateSession, tests: Tests, checker: Checker | None = None
) -> TestReport:
    """Run the visible tests, then the hidden ones, in one process, which starts anew if it ends."""
    ordered = sorted(tests.calls, key=lambda test: test.hidden)
    entry_point = tests.entry_point or default_entry_point(session.code)
    with session:
        results = [
            _run_call(session, replace(test, function=test.function or entry_point), checker)
            for test in ordered
        ]
    return make_report("calls", results, session.execution)


def default_entry_point(code: str) -> str:
    """Return the name of the function that a program is for; "" if there is none.

    It is the last function that the program defines at its top level, a public one if there is one,
    else the last lambda that has a name there, else the only public method of the class Solution.
    """
    try:
        body = parse(code).body
    except PARSER_ERRORS:
        return ""
    functions = _function_names(body)
    names = (
        [*functions, *_public(functions)]
        or list(_names_of_lambdas(body))
        or _methods_of_solution(body)
    )
    return names[-1] if names else ""


def _function_names(body: Iterable[ast.stmt]) -> list[str]:
    return [node.name for node in body if isinstance(node, FunctionNode)]


def _public(names: Iterable[str]) -> list[str]:
    return [name for name in names if not name.startswith("_")]


def _names_of_lambdas(body: Iterable[ast.stmt]) -> Iterator[str]:
    for node in body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Lambda()):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.Lambda()):
                yield name


def _methods_of_solution(body: Iterable[ast.stmt]) -> list[str]:
    """Return the public method of the class Solution in a list; an empty one if there is none, or
    there are several.
    """
    classes = (node for node in body if isinstance(node, ast.ClassDef) and node.name == "Solution")
    methods = [name for kind in classes for name in _public(_function_names(kind.body))]
    return methods if len(methods) == 1 else []


def _run_call(session: CandidateSession, test: CallTest, checker: Checker | None) -> TestResult:
    answer = _answer_of(session, test, checker)
    if session.load_failure or not test.function:  # no call was made
        assert isinstance(answer, CallFailure)
        failed = TestResult(
            PROGRAM,
            ok=False,
            error=answer.error,
            traceback=answer.traceback,
            seconds=answer.seconds,
        )
        return replace(failed, weight=test.weight, hidden=test.hidden)
    shown = show_call(test.function, test.args, test.kwargs)
    return replace(
        judge(test, answer, checker),
        call=shown,
        weight=test.weight,
        hidden=test.hidden,
        name=test.name,
    )


def _answer_of(session: CandidateSession, test: CallTest, checker: Checker | None) -> Answer:
    if not test.function:
        return session.load() or CallFailure("there is no function to call: name it (entry_point)")
    # Arrays of NumPy become lists where a list is what can be expected: beside JSON, and for a
    # checker. In an assertion, `==` with an array is no truth value, so it fails as it does in
    # plain Python, with a reason.
    takes_lists = checker or test.comparer.json
    decoder = Decoder() if takes_lists else Decoder(array=_refuse_array)
    return session.call(test.function, test.args, test.kwargs, decoder)


def _refuse_array(kind: str, shape: list[int] | None, items: list[Any]) -> Any:
    if shape:
        raise ValueCodecError(
            "it is an array of NumPy (numpy.ndarray), which == compares item by item: return a "
            "list (.tolist())"
        )
    return nested_lists(kind, shape, items)


def judge(test: CallTest, answer: Answer, checker: Checker | None = None) -> TestResult:
    """Return whether the answer is what the test expects."""
    expected = f"{test.raises} is raised" if test.raises else _shown_expectation(test)
    if isinstance(answer, CallFailure):
        raised = test.raises is not None and test.raises in _classes_of(answer.types)
        return TestResult(
            "",
            raised,
            expected,
            None,
            "" if raised else answer.error,
            answer.traceback,
            answer.seconds,
        )
    ok, error = (False, "") if test.raises else _compare(test, answer.value, checker)
    return TestResult("", ok, expected, show(answer.value), error, seconds=answer.seconds)


def _classes_of(types: Sequence[str]) -> Iterator[str]:
    """Yield the names of the classes that an exception counts as: its own, and the first built-in
    one with the bases of that.

    An exception that claims to be several built-in ones would be whichever is expected.
    """
    for name in types:
        yield name
        kind = getattr(builtins, name, None)
        if isinstance(kind, type) and issubclass(kind, BaseException):
            yield from (base.__name__ for base in kind.__mro__)
            return


def _compare(test: CallTest, value: object, checker: Checker | None) -> tuple[bool, str]:
    """Return whether a value is right, and what went wrong while comparing it."""
    if checker:
        args, kwargs = list(test.args), dict(test.kwargs)
        test_input = {"args": args, "kwargs": kwargs} if kwargs else args
        return call_checker(checker, test_input, test.expected, value)
    try:
        return test.accepts(value), ""
    except (ArithmeticError, TypeError, ValueError) as error:  # a signalling NaN
        return False, f"the value cannot be compared: {type(error).__name__}"


def call_checker(
    checker: Checker, test_input: object, expected: object, got: object
) -> tuple[bool, str]:
    """Return whether the author's comparison returns True, and what it raised: it may not have
    expected such a value.
    """
    try:
        return checker(test_input, expected, got) is True, ""
    except Exception as error:  # noqa: BLE001  (code of the task's author)
        return False, f"the checker raised {type(error).__name__}"


def _shown_expectation(test: CallTest) -> str:
    match test.comparison:
        case "true":
            return "a true value"
        case "false":
            return "a false value"
        case "not_equal":
            return f"anything but {show(test.expected)}"
    tolerance = test.comparer.tolerance
    if tolerance and (allowed := max(tolerance.relative, tolerance.absolute)):
        return f"{show(test.expected)} (within {allowed:g})"
    return show(test.expected)


# ---- whole programs


def run_stdio(
    session: CandidateSession, tests: Tests, checker: Checker | None = None
) -> TestReport:
    """Run the program once for each test, in a process of its own: the visible tests, then the
    hidden ones.
    """
    ordered = sorted(tests.runs, key=lambda test: test.hidden)
    with session:
        results = [_run_test(session, test, checker) for test in ordered]
    return make_report("stdio", results, session.execution)


def _run_test(session: CandidateSession, test: StdioTest, checker: Checker | None) -> TestResult:
    answer, execution = session.run(test.stdin)
    printed = execution.stdout if execution else ""
    ok, error = False, _error_of(answer, execution)
    if not error:
        ok, error = _compare_output(test, printed, checker)
    return TestResult(
        f"the input {show(test.stdin)}",
        ok,
        expected=show(test.stdout),
        got=show(printed) if execution else None,
        error=error,
        traceback=answer.traceback if isinstance(answer, CallFailure) else "",
        seconds=answer.seconds,
        weight=test.weight,
        hidden=test.hidden,
        name=test.name,
    )


def _error_of(answer: Answer, execution: Execution | None) -> str:
    """Return why the output does not count; "" if it does. A program may end its process if its
    exit code is 0.
    """
    if execution and execution.truncated:
        return "it printed too much"
    if isinstance(answer, CallFailure) and not (
        answer.ended and execution and execution.exit_code == 0 and execution.status == "exited"
    ):
        return answer.error
    return ""


def _compare_output(test: StdioTest, printed: str, checker: Checker | None) -> tuple[bool, str]:
    if checker:
        return call_checker(checker, test.stdin, test.stdout, printed)
    return equal_output(test.stdout, printed, test.compare, test.tolerance), ""
