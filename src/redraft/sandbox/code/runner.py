"""`run_tests`: a program and its tests in, a report out. The verdict is made outside of the sandbox
in which the program runs.
"""

from __future__ import annotations

import ast
import asyncio
import os
import re
from dataclasses import replace
from functools import cache, partial

from ...answers.python_source import PARSER_ERRORS, defined_names, parse
from ...base.threads import LastingThreadPool
from ..execution import Limits
from ..tiers import Sandbox
from .calls import Checker, run_calls, run_stdio
from .driver import NotApartError, run_driver, run_in_process
from .exchange import is_class_name
from .report import (
    IN_PROCESS_METHOD,
    PROGRAM,
    TestReport,
    TestResult,
    make_report,
)
from .session import SOLUTION_CLASS, CandidateSession
from .tests import Tests

NOTHING_TO_WRITE_TO = (
    re.compile(  # of the errors of a program, those of a relative path or one for temporary files
        r"PermissionError: \[Errno (?:1|13)\] [\w ]+: '(?:(?!/)|/(?:var/)?tmp/)"
        r"|No usable temporary directory|unable to open database file"
    )
)
NOT_DEFINED = re.compile(r"NameError: name '(\w+)' is not defined")
NODES = frozenset(("ListNode", "TreeNode"))  # classes that the judges of LeetCode's tasks provide
NEEDS_ONE_PROCESS = "the tests need more of the program than values"
HOW_TO_TRUST = (
    "so they would run beside it, where it could forge their outcome; trust_in_process=True "
    "(--trust-in-process) allows that"
)
NO_FOLDER = (
    "the sandbox (landlock) has no folder to write to, and the program or its tests need one: "
    "install bubblewrap, or choose sandbox='docker:IMAGE' or 'unsafe'"
)


def run_tests(
    code: str,
    tests: Tests,
    *,
    sandbox: Sandbox | None = None,
    limits: Limits | None = None,
    trust_in_process: bool = False,
    checker: Checker | None = None,
) -> TestReport:
    """Run the tests of a Python program in a sandbox and return the report. It blocks; `arun_tests`
    does not.

    - `sandbox`: the tier, and packages that the program may import; None: the best tier that there
      is.
    - `limits`: of each process of the program; None: `Limits()`. After two processes that ran out
      of time the other tests fail.
    - `trust_in_process`: run tests that need more than values of the program beside it, where it
      could forge their verdict. Without it their report has no score, and says why.
    - `checker`: `(input, expected, got) -> bool`, called outside of the sandbox instead of the
      comparison.

    Raises SandboxUnavailableError if there is no sandbox.
    """
    session = CandidateSession(code, sandbox or Sandbox(), limits or Limits())
    return _run(session, tests, checker, trust_in_process=trust_in_process)


async def arun_tests(
    code: str,
    tests: Tests,
    *,
    sandbox: Sandbox | None = None,
    limits: Limits | None = None,
    trust_in_process: bool = False,
    checker: Checker | None = None,
) -> TestReport:
    """Run tests like `run_tests`, in a thread. Cancelling it kills the program."""
    session = CandidateSession(code, sandbox or Sandbox(), limits or Limits())
    run = partial(_run, session, tests, checker, trust_in_process=trust_in_process)
    try:
        return await asyncio.wrap_future(_executor().submit(run))
    except asyncio.CancelledError:
        session.processes.cancel()
        raise


@cache
def _executor() -> LastingThreadPool:
    """Return the threads that wait for programs: as many as there are cores."""
    return LastingThreadPool(os.cpu_count() or 1, "redraft-tests")


if hasattr(os, "register_at_fork"):
    # the threads of the parent are not there
    os.register_at_fork(after_in_child=_executor.cache_clear)


def _run(
    session: CandidateSession, tests: Tests, checker: Checker | None, *, trust_in_process: bool
) -> TestReport:
    session.sandbox.tier  # noqa: B018  (raises if there is no sandbox)
    report = _report(session, tests, checker, trust_in_process=trust_in_process)
    if report.tier == "landlock" and any(
        NOTHING_TO_WRITE_TO.search(result.error) for result in report.failures
    ):
        return TestReport(report.method, problem=NO_FOLDER, execution=report.execution)
    missing = {
        match[1] for result in report.failures if (match := NOT_DEFINED.search(result.error))
    }
    if missing and (provided := sorted(missing & classes_of_judges(session.code, tests))):
        problem = (
            f"the program uses the class {provided[0]}, which a judge provides: define it in the "
            "program"
        )
        return TestReport(report.method, problem=problem, execution=report.execution)
    hidden_alone = not tests.visible and report.score is None and not report.problem
    return (
        replace(report, problem="all tests are hidden, so nothing decides")
        if hidden_alone
        else report
    )


def _report(
    session: CandidateSession, tests: Tests, checker: Checker | None, *, trust_in_process: bool
) -> TestReport:
    if is_empty(session.code):
        return _all_fail(tests, "there is no code")
    why = tests.why
    match tests.kind:
        case "calls":
            return run_calls(session, tests, checker)
        case "stdio":
            return run_stdio(session, tests, checker)
        case "driver":
            try:
                return run_driver(session, tests)
            except NotApartError as error:
                why = str(error)
    if trust_in_process:
        return run_in_process(session, tests)
    problem = f"{NEEDS_ONE_PROCESS} ({why}), {HOW_TO_TRUST}"
    return TestReport(IN_PROCESS_METHOD, problem=problem, execution=session.execution)


def classes_of_judges(code: str, tests: Tests) -> set[str]:
    """Return the names that a program reads and does not define, and that a judge of LeetCode's
    tasks would define.

    Those are its nodes, and what is in the annotations of a class Solution. A class that the tests
    of a function use is asked for.
    """
    try:
        nodes = list(ast.walk(parse(code)))
    except PARSER_ERRORS:
        return set()
    read = {node.id for node in nodes if isinstance(node, ast.Name)} - defined_names(code)
    if not SOLUTION_CLASS.search(code):
        return (read & NODES) - tests.names
    annotations = (
        getattr(node, "annotation", None) or getattr(node, "returns", None) for node in nodes
    )
    named = {
        inner.id
        for each in annotations
        if each
        for inner in ast.walk(each)
        if isinstance(inner, ast.Name)
    }
    return {name for name in read & (NODES | {"Node"} | named) if is_class_name(name)}


def is_empty(code: str) -> bool:
    """Return whether a program has no statement that does anything."""
    try:
        body = parse(code).body
    except PARSER_ERRORS:
        return not code.strip()
    return all(
        isinstance(node, ast.Pass)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for node in body
    )


def _all_fail(tests: Tests, error: str) -> TestReport:
    """Return the report of a program that was not even started."""
    failures = (
        TestResult(
            PROGRAM, ok=False, error=error, weight=getattr(test, "weight", 1.0), hidden=test.hidden
        )
        for test in tests.items
    )
    return make_report(tests.kind, failures, None)
