"""Runs tests of whole programs: a text goes to standard input, and what is printed is compared
here.
"""

from __future__ import annotations

from ..execution import Execution
from .calls import Checker, call_checker
from .compare import equal_output
from .report import TestReport, TestResult, make_report, show
from .session import Answer, CallFailure, CandidateSession
from .tests import StdioTest, Tests


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
        ok, error = _compare(test, printed, checker)
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


def _compare(test: StdioTest, printed: str, checker: Checker | None) -> tuple[bool, str]:
    if checker:
        return call_checker(checker, test.stdin, test.stdout, printed)
    return equal_output(test.stdout, printed, test.compare, test.tolerance), ""
