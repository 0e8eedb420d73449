"""Whether code passes the task's tests, which run in a sandbox."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ...answers.code import CodeAnswer
from ...answers.python_program import ProgramTests, complete_program
from ...base import checks
from ...base.own_code import fingerprint_name
from ...base.threads import run_in_thread
from ...errors import ConfigError
from ...graders.base import check_needs
from ...loop.records import Candidate, Feedback
from ...loop.task import Task
from ...protocols import JudgeClient
from ..code import TestReport, TestResult, Tests, arun_tests
from ..code.report import PROGRAM
from ..code.tests import task_tests
from ..execution import Limits
from ..tiers import Sandbox

MAX_ACTIONS = 5  # failing tests that are described
MIN_MEMORY_MB = 64  # the minimum of `Limits`
PYTHON = CodeAnswer("python")


@fingerprint_name("tests")
@dataclass(frozen=True)
class CodeTests:
    """The share of the task's tests that the code passes, by weight; it runs in a sandbox, and the
    verdict is made outside.

    The tests are in `task.tests`, in any form that `redraft.sandbox.code.parse_tests` reads.
    `hidden` tests do not count: how many pass is in the metadata. The function to test is the one
    that the tests name, else `entry_point`, else `task.metadata["entry_point"]`, else the last one
    in the code. A completion follows `task.metadata["code_prefix"]` or, if that makes a program,
    the prompt.

    - `sandbox`: "auto", "bubblewrap", "landlock", "docker:IMAGE" or "unsafe" (see
      `redraft.sandbox.Sandbox`); `packages`: what the code may import besides the standard library.
    - `cpu_seconds`, `memory_mb`: limits of each process of the code.
    - `trust_in_process`: run tests that need more than values of the code beside it, where it
      could forge their outcome; the method in the metadata is "in_process: forgeable" then. Without
      it such tests give no score.
    - `show_expected`: whether the feedback tells the expected values.
    - `checker`: `(input, expected, got) -> bool`, called instead of the comparison, outside of the
      sandbox.

    The score is None if the tests could not be judged; the reason says why. Reads `tests` and
    `metadata`.
    """

    sandbox: str = "auto"
    packages: tuple[str, ...] = ()
    trust_in_process: bool = False
    cpu_seconds: float = 10.0
    memory_mb: int = 512
    show_expected: bool = True
    checker: Callable[[Any, Any, Any], bool] | None = None
    entry_point: str | None = None
    name: str = "tests"

    model_free = True
    guards_repairs = True
    removed_settings: ClassVar[Mapping[str, object]] = {"repair_runs": 200, "repair_seconds": 20.0}
    reports_hidden_tests = True
    needs = ("tests",)
    reads_metadata = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "packages", tuple(self.packages))
        checks.whole_number("memory_mb", self.memory_mb, MIN_MEMORY_MB)
        checks.text("entry_point", self.entry_point, optional=True)
        self._sandbox()
        self._limits()
        checks.flag("trust_in_process", self.trust_in_process)
        checks.flag("show_expected", self.show_expected)
        if self.checker is not None and not callable(self.checker):
            raise checks.invalid_argument(
                "checker", "a function (input, expected, got) -> bool, or None", self.checker
            )

    def check_task(self, task: Task) -> None:
        """Raise ConfigError for tests that cannot be read."""
        self._tests(task)

    def check_environment(self) -> None:
        """Raise SandboxUnavailableError if no sandbox works here."""
        self._sandbox().tier  # noqa: B018  (raises)

    def _tests(self, task: Task) -> Tests:
        try:
            return task_tests(task, self.entry_point)
        except ConfigError as error:
            raise ConfigError(f"grader {self.name!r}: {error}") from None

    def _sandbox(self) -> Sandbox:
        return Sandbox(self.sandbox, packages=self.packages)

    def _limits(self) -> Limits:
        return Limits(cpu_seconds=self.cpu_seconds, memory_bytes=self.memory_mb * 2**20)

    async def grade(self, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback:
        """Return a score from 0 to 1, or None."""
        check_needs(self.name, self.needs, task)
        tests = self._tests(task)
        program = await run_in_thread(program_of, candidate.text, task, tests)
        report = await arun_tests(
            program,
            tests,
            sandbox=self._sandbox(),
            limits=self._limits(),
            trust_in_process=self.trust_in_process,
            checker=self.checker,
        )
        return self.feedback(report)

    def feedback(self, report: TestReport) -> Feedback:
        """Return the feedback for a report: what failed, with what it is called, what was expected
        and what came.
        """
        metadata = _metadata(report)
        if report.score is None:
            return Feedback(None, report.problem, metadata=metadata)
        reason = f"{report.passed} of {len(report.results)} tests pass"
        if report.ok:
            return Feedback(1.0, reason, metadata=metadata)
        verb = "prints" if report.method == "stdio" else "returns"
        failures = _different_failures(report.failures)
        actions = tuple(
            dict.fromkeys(self._action(result, verb, others) for result, others in failures)
        )
        if len(actions) > MAX_ACTIONS:
            actions = (
                *actions[:MAX_ACTIONS],
                f"Correct the others that fail, too: {len(report.failures)} tests in all.",
            )
        return Feedback(report.score, reason, actions, done=False, metadata=metadata)

    def _action(self, result: TestResult, verb: str, others: int) -> str:
        """Return what is wrong in one test, on one line. `others`: how many other tests fail in the
        same way.
        """
        got = f"it {verb} {result.got}" if result.got is not None else "it fails"
        parts = [f"{result.shown_name}: {result.error or got}"]
        if result.error and result.got and result.expected is None:
            parts.append(result.got)
        if self.show_expected and result.expected is not None:
            parts.append(f"expected {result.expected}")
        text = ", ".join(parts)
        line = result.traceback.rpartition("\n")[2]
        text = f"{text} ({line})" if line else text
        same = f"; {others} other {'test fails' if others == 1 else 'tests fail'} in the same way"
        return _one_line(f"{text}{same}" if others and result.call != PROGRAM else text)


def _different_failures(failures: Iterable[TestResult]) -> Iterator[tuple[TestResult, int]]:
    """Yield the failures, of those with the same error in the same line only the first, with the
    number of the others.
    """
    groups: dict[object, list[TestResult]] = {}
    for result in failures:
        line = result.traceback.rpartition("\n")[2]
        groups.setdefault((result.error, line) if result.error and line else id(result), []).append(
            result
        )
    for first, *others in groups.values():
        yield first, len(others)


def program_of(answer: str, task: Task, tests: ProgramTests | None = None) -> str:
    """Return the program in an answer: its Python code, after the beginning that the task gives, if
    it is a completion.
    """
    code = replace(PYTHON, tests=tests).extract(answer)
    prefix = task.metadata.get("code_prefix")
    prefix = prefix if isinstance(prefix, str) else task.prompt
    return complete_program(code, prefix, tests.first_function if tests else None)


def _metadata(report: TestReport) -> dict[str, Any]:
    execution = report.execution
    return {
        "method": report.method,
        "sandbox": report.tier,
        "passed": report.passed,
        "total": len(report.results),
        "hidden_passed": report.hidden_passed,
        "hidden_total": report.hidden_total,
        "seconds": sum(
            result.seconds or 0.0 for result in (*report.results, *report.hidden_results)
        ),
        "memory_bytes": execution.memory_bytes if execution else None,
    }


def _one_line(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
