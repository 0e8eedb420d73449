"""Runs test code in a sandbox of its own, and passes its calls on to the candidate in another.

Test code and expected values never reach the candidate, and its objects never reach the test code:
only values do. Tests that need more have no verdict here (`NotApartError`); beside the candidate
they have one, which it could forge.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ...answers.python_source import parse
from ..execution import SandboxedProcessError
from ..process import SandboxedProcess
from ..tiers import Sandbox
from .assertion_code import NAMES, TestCode, count_tests, read_test_code, unshared_state
from .calls import default_entry_point
from .report import (
    IN_PROCESS_METHOD,
    MAX_MESSAGE_CHARS,
    MAX_VALUE_CHARS,
    PROGRAM,
    TestReport,
    TestResult,
    make_report,
    show,
    show_call,
)
from .session import (
    LOADER,
    MAX_TIMEOUTS,
    Answer,
    CallFailure,
    CancelledTestsError,
    CandidateSession,
    ReturnValue,
    describe_end,
    imports_of_judges,
    runner_settings,
)
from .tests import Tests
from .values import Decoder, ValueCodecError

MAX_CALLS = 100_000  # of the candidate by one test code
MAX_SHOWN_CALLS = 3
# what a program raises that lacks the class of a value
NEEDS_CLASS = ("AttributeError", "KeyError", "TypeError")
OWN_FAULTS = (
    "NameError",
    "UnboundLocalError",
    "SyntaxError",
    "IndentationError",
    "TabError",
    "ImportError",
    "ModuleNotFoundError",
)
NOT_RUN = (False, "")
FORWARDED = ("call", "attribute", "solution", "await", "awaited", "args", "kwargs")  # of a request


@dataclass(frozen=True, slots=True)
class ObjectReference:
    """Stands here for an object of the candidate that is no value; one that is awaited has a
    number.
    """

    name: str
    number: int | None

    def __repr__(self) -> str:
        return f"<{self.name}>"


class BrokenTestsError(Exception):
    """The test code failed before it called the candidate: it says nothing about it."""


class NotApartError(Exception):
    """Apart from the candidate the test code says nothing about it. The message says why."""


def run_driver(session: CandidateSession, tests: Tests) -> TestReport:
    """Run test code apart from the candidate; a part of it that fails does not keep the others from
    running. Raises NotApartError if that gives no verdict.
    """
    with session:
        if failure := session.load():
            return make_report("driver", _all_fail(failure, tests), session.execution)
        return _run_code("driver", session, tests)


def _all_fail(failure: CallFailure, tests: Tests) -> Iterator[TestResult]:
    """Yield a result for each test of a program that does not start."""
    failed = TestResult(PROGRAM, ok=False, error=failure.error, traceback=failure.traceback)
    for test in tests.code:
        for _ in range(count_tests(test.source)):
            yield replace(failed, hidden=test.hidden)


def run_in_process(session: CandidateSession, tests: Tests) -> TestReport:
    """Run test code beside the candidate, which can forge the outcome there."""
    return _run_code(IN_PROCESS_METHOD, session, tests)


def _run_code(method: str, session: CandidateSession, tests: Tests) -> TestReport:
    results: list[TestResult] = []
    doubts: list[str] = []
    for test in sorted(tests.code, key=lambda test: test.hidden):
        code = read_test_code(test.source, tests.entry_point, session.sandbox.packages)
        code = replace(code, entry_point=code.entry_point or default_entry_point(session.code))
        relay = _Relay(session, code, in_process=method == IN_PROCESS_METHOD)
        try:
            found = relay.run()
        except BrokenTestsError as error:
            problem = f"the tests cannot be run: {error}"
            return TestReport(method, problem=problem, execution=session.execution)
        results += [replace(result, hidden=test.hidden) for result in found]
        if not test.hidden and not relay.in_process:
            tree = parse(test.source)
            doubts += [relay.doubt(result, tree) for result in found if not result.ok]
    if doubts and all(doubts):
        raise NotApartError(f"tests fail that {doubts[0]}")
    return make_report(method, results, session.execution)


@dataclass
class _PartLog:
    """What happened while a part of the test code ran: its calls, and what became of them."""

    calls: list[str] = field(default_factory=list)
    traceback: str = ""
    seconds: float = 0.0

    def add(self, call: str, answer: Answer) -> None:
        self.seconds += answer.seconds or 0.0
        if isinstance(answer, CallFailure):
            self.traceback = answer.traceback
            self.calls.append(f"{call} failed ({answer.error})")
        else:
            self.calls.append(f"{call} returned {show(answer.value)}")

    @property
    def text(self) -> str | None:
        return "; ".join(self.calls[-MAX_SHOWN_CALLS:]) or None


@dataclass
class _Relay:
    """Passes calls of one test code on to the candidate, and collects the outcomes of its parts."""

    session: CandidateSession
    code: TestCode
    in_process: bool
    outcomes: dict[int | str, tuple[bool | None, str]] = field(default_factory=dict)
    logs: dict[Any, _PartLog] = field(default_factory=dict)
    calls: int = 0
    # for each part, a class that the program got as another
    lost: dict[Any, tuple[str, bool]] = field(default_factory=dict)
    has_tasks: bool = False  # the program has tasks that run on while the tests do something else

    def run(self) -> list[TestResult]:
        """Return the outcome of each part. Raises BrokenTestsError."""
        functions = (name for name, _ in self.code.functions)
        self.outcomes = dict.fromkeys((*range(len(self.code.parts)), *functions), NOT_RUN)
        limits = self.session.limits
        if not self.in_process:  # it waits for the candidate
            limits = replace(limits, wall_seconds=30 + 2 * MAX_TIMEOUTS * limits.wall)
        sandbox = self.session.sandbox
        if self.code.uses_pytest:
            sandbox = Sandbox(sandbox.spec, packages=(*sandbox.packages, "pytest"))
        process = self.session.processes.start(
            partial(sandbox.start, LOADER, runner_settings("driver_runner"), limits)
        )
        try:
            problem = self._exchange(process)
        except SandboxedProcessError as error:
            problem = describe_end(error.execution, limits)
        except ValueError:
            problem = "a value is too large to be passed on"
        finally:
            execution = self.session.processes.end(process)
            self.session.execution = self.session.execution or execution
        if self.session.processes.cancelled:
            raise CancelledTestsError
        if not self.in_process and not self.calls:
            raise BrokenTestsError(problem or "they do not call the program")
        return self._results(problem)

    def _exchange(self, process: SandboxedProcess) -> str:
        """Answer the requests of the test code until it is done. Return why it failed outside of
        its parts, or "".
        """
        message = self._first_message()
        while True:
            request = process.request(message)
            if not isinstance(request, dict):
                return "it sent something else than an outcome"
            self._note(request)
            if broken := request.get("broken"):
                raise BrokenTestsError(str(broken)[:MAX_MESSAGE_CHARS])
            if "done" in request:
                return str(request.get("problem") or "")[:MAX_MESSAGE_CHARS]
            if self.in_process:
                return "it sent something else than an outcome"
            if unknown := request.get("unknown"):
                raise NotApartError(str(unknown)[:MAX_MESSAGE_CHARS])
            message = self._forward(request)

    def _first_message(self) -> dict[str, Any]:
        """Return what the test code is started with."""
        code = self.session.code
        program = {"code": code, "imports": imports_of_judges(code)} if self.in_process else {}
        return {**vars(self.code), "part_names": NAMES, **program}

    def doubt(self, result: TestResult, tree: ast.Module) -> str:
        """Return what may be the reason beside the program why a test fails, whose code is given;
        "" if it is the program for certain.
        """
        exception = result.error.partition(":")[0]
        if exception in OWN_FAULTS:
            return ""
        tasks = "has_tasks" if self.has_tasks else ""
        state = unshared_state(tree, self.session.code, result.call, exception, tasks)
        return state or self._lost_class(result.call, exception)

    def _lost_class(self, part: str, exception: str) -> str:
        """Return what a part passed that is another value for the program; "" for nothing. Data
        alone is missed with an error.
        """
        number = self.code.parts.index(part) if part in self.code.parts else part
        name, is_data = self.lost.get(number) or self.lost.get(None) or ("", True)
        is_missed = (
            not is_data
            or exception in NEEDS_CLASS
            or re.search(rf"\b{re.escape(name)}\b", self.session.code)
        )
        what = f"pass an object of the class {name!r}, which the program gets as a built-in value"
        return what if name and is_missed else ""

    def _note(self, request: Mapping[str, Any]) -> None:
        """Note the outcomes of parts; one that is planned has failed until it is known to have
        passed. None: it was skipped.
        """
        for name in _list(request.get("planned")):
            self.outcomes.setdefault(str(name), NOT_RUN)
        for entry in _list(request.get("finished")):
            match entry:
                case [int() | str() as number, (bool() | None) as ok, str() as error] if (
                    number in self.outcomes or isinstance(number, str)
                ):
                    self.outcomes[number] = ok, error[:MAX_MESSAGE_CHARS]
        part = _part_of(request)
        match request.get("lost"):
            case [str() as name, bool() as is_data] if not is_data or part not in self.lost:
                self.lost[part] = name, is_data

    def _forward(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Pass a request on to the candidate. Return the answer for the test code, which checks
        each value again.
        """
        self.calls += 1
        if self.calls > MAX_CALLS:
            raise BrokenTestsError(f"they make more than {MAX_CALLS:,} calls")
        message = {name: request[name] for name in FORWARDED if name in request}
        answer = self.session.ask({**message, "back": True}, Decoder(ObjectReference))
        self._log(request, answer)
        if isinstance(answer, CallFailure):
            return {
                "raise": list(answer.types),
                "message": answer.message if answer.types else answer.error,
                "arguments": answer.arguments,
            }
        return _checked_answer(answer.answer)

    def _log(self, request: Mapping[str, Any], answer: Answer) -> None:
        """Note what became of a request."""
        value, part = answer.value if isinstance(answer, ReturnValue) else None, _part_of(request)
        if isinstance(value, ObjectReference) and "args" not in request and part is None:
            self.calls -= 1  # it is imported, and nobody has asked about it yet
        if "await" in request and isinstance(answer, ReturnValue):
            self.has_tasks |= value is True
        else:
            self.logs.setdefault(part, _PartLog()).add(_shown_request(request), answer)

    def _results(self, problem: str) -> list[TestResult]:
        """Return the results of all parts but those that were skipped."""
        results = [
            self._result(number, error or problem, ok=ok)
            for number, (ok, error) in self.outcomes.items()
            if ok is not None
        ]
        if not results or (problem and all(result.error != problem for result in results)):
            results.append(
                TestResult("the rest of the tests", ok=False, error=problem or "no test ran")
            )
        return results

    def _result(self, number: int | str, error: str, *, ok: bool) -> TestResult:
        text = number if isinstance(number, str) else self.code.parts[number]
        log = self.logs.get(number, _PartLog())
        if ok:
            return TestResult(text, ok=True, seconds=log.seconds)
        return TestResult(
            text, False, None, log.text, error or "not run", log.traceback, log.seconds
        )


def _checked_answer(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a program sent with a value, for the test code, whatever it is: its class, what
    is in the containers that were passed, which of them it is, and which of them the program has.
    """
    same, kept = answer.get("same"), _list(answer.get("kept"))
    return {
        "value": answer["value"],
        "lost": str(answer.get("lost") or "")[:80],
        "contents": answer.get("contents"),
        "same": same if type(same) is int else None,
        "kept": [number for number in kept if type(number) is int],
    }


def _part_of(request: Mapping[str, Any]) -> int | str | None:
    part = request.get("part")
    return part if isinstance(part, int | str) else None


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _shown_request(request: Mapping[str, Any]) -> str:
    if "await" in request or "awaited" in request:
        return "await"
    name = str(request.get("call", request.get("attribute", "")))
    if "args" not in request:
        return f".{name}"
    try:
        decoder = Decoder(None, lambda number: decoder.containers[number])
        args = decoder.decode(request["args"])
        kwargs = decoder.decode(request.get("kwargs", {"t": "dict", "v": []}))
    except ValueCodecError:
        return f"{name}(...)"
    text = show_call(name, args, kwargs)
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[: MAX_VALUE_CHARS - 3]}..."
