"""Times two programs on the inputs of the same tests, in the same sandbox, one after the other,
several times.

The time is the CPU time of the program's process, which the kernel tells outside of the sandbox, so
that a program cannot change it and other programs on the machine hardly do; where it is not known
(Docker), it is the time by the clock. Each run is a new process, so nothing that a program cached
helps its next run. A run takes from loading the program to its last answer, without the start of
the sandbox; the exchange of a call takes about 0.05 milliseconds of it. Every answer is compared
with what the test expects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

from ..sandbox import Execution, Limits, Sandbox, SandboxedProcess, SandboxedProcessError
from ..threads import run_in_thread
from .calls import decoder_of, default_entry_point, judge
from .compare import equal_output
from .session import (
    LOADER,
    CallFailure,
    CancelledTestsError,
    Message,
    ProcessGroup,
    call_message,
    describe_end,
    load_message,
    read_answer,
    runner_settings,
)
from .tests import CallTest, StdioTest, Tests
from .values import Decoder, ValueCodecError

MIN_SECONDS = 1e-6  # below the resolution of any clock here; no time is 0


class ProgramFailedError(Exception):
    """A program did not pass a test, so its time means nothing. The message says what happened."""


@dataclass(frozen=True, slots=True)
class SpeedComparison:
    """The times of a program and of a reference, in seconds: one of each for each round, in the
    order of the rounds.

    `problem` says why there are none: that of the program, or, with `reference_failed`, that of the
    reference.
    """

    seconds: tuple[float, ...] = ()
    reference_seconds: tuple[float, ...] = ()
    problem: str = ""
    reference_failed: bool = False

    @property
    def ratio(self) -> float | None:
        """How many times as fast as the reference the program is: the median of the ratios of the
        rounds; None without times.
        """
        if not self.seconds:
            return None
        return median(
            theirs / own for own, theirs in zip(self.seconds, self.reference_seconds, strict=True)
        )


async def compare_speed(
    code: str,
    reference: str,
    tests: Tests,
    *,
    rounds: int = 5,
    sandbox: Sandbox | None = None,
    limits: Limits | None = None,
) -> SpeedComparison:
    """Time a program and a reference on the visible tests, which must be calls, or texts for
    standard input.

    The order changes from round to round, so that a machine that gets slower favours neither.
    Cancelling it kills the programs. Raises ValueError for other tests, and
    SandboxUnavailableError.
    """
    if tests.kind not in ("calls", "stdio") or not tests.visible:
        raise ValueError(
            "only visible tests with inputs can be timed: calls, or texts for standard input"
        )
    processes = ProcessGroup()
    timer = _Timer(sandbox or Sandbox(), limits or Limits(), processes)
    try:
        return await run_in_thread(_compare, code, reference, tests, rounds, timer)
    except asyncio.CancelledError:
        processes.cancel()
        raise


def _compare(
    code: str, reference: str, tests: Tests, rounds: int, timer: _Timer
) -> SpeedComparison:
    times: dict[str, list[float]] = {"program": [], "reference": []}
    programs = {"reference": reference, "program": code}
    for n in range(rounds):
        for who in sorted(programs, reverse=n % 2 == 0):
            try:
                times[who].append(timer.time(programs[who], tests))
            except ProgramFailedError as failure:
                return SpeedComparison(problem=str(failure), reference_failed=who == "reference")
    return SpeedComparison(tuple(times["program"]), tuple(times["reference"]))


class _Stopwatch:
    """Measures the CPU time of a process, or the time by the clock where that is unknown."""

    def __init__(self, process: SandboxedProcess) -> None:
        self._process = process
        self._cpu, self._clock = process.cpu_seconds(), perf_counter()

    def seconds(self, ended: Execution | None = None) -> float:
        """Return the seconds since the start; `ended` is the end of a process that ended by
        itself.
        """
        elapsed = perf_counter() - self._clock
        now = self._process.cpu_seconds()
        if ended:
            now = ended.cpu_seconds
        return elapsed if self._cpu is None or now is None else max(now - self._cpu, MIN_SECONDS)


@dataclass(frozen=True)
class _Timer:
    """Times one run of a program on all visible tests."""

    sandbox: Sandbox
    limits: Limits
    processes: ProcessGroup

    def time(self, code: str, tests: Tests) -> float:
        """Return the seconds that it takes. Raises ProgramFailedError if it does not pass each
        test.
        """
        if tests.kind == "calls":
            visible = [test for test in tests.calls if not test.hidden]
            return self._time_calls(code, visible, tests.entry_point or default_entry_point(code))
        return sum(self._time_run(code, test) for test in tests.runs if not test.hidden)

    def _time_calls(self, code: str, tests: Sequence[CallTest], entry_point: str) -> float:
        messages = _messages(code, tests, entry_point)
        process = self._start()
        try:
            watch = _Stopwatch(process)
            answers = [process.request(message) for message in messages]
            seconds = watch.seconds()
        except SandboxedProcessError as error:
            raise self._failure(error) from None
        except ValueError:
            raise ProgramFailedError("the code or an argument is too large to be sent") from None
        finally:
            self.processes.end(process)
        _check_load(answers[0], code)
        for number, (test, answer) in enumerate(zip(tests, answers[1:], strict=True), 1):
            result = judge(test, read_answer(answer, 0.0, code, decoder_of(test)))
            if not result.ok:
                raise ProgramFailedError(
                    _one_line(f"it fails test {number}{result.error and f': {result.error}'}")
                )
        return seconds

    def _time_run(self, code: str, test: StdioTest) -> float:
        process = self._start()
        watch = _Stopwatch(process)
        try:
            answer = process.request({"run": code, "stdin": test.stdin})
            seconds = watch.seconds()
            execution = process.wait()
        except SandboxedProcessError as error:
            execution, answer = error.execution, {"value": None}
            seconds = watch.seconds(execution)
            if execution.status != "exited" or execution.exit_code != 0:
                raise self._failure(error) from None
        except ValueError:
            raise ProgramFailedError("the code or the input is too large to be sent") from None
        finally:
            self.processes.end(process)
        _check_load(answer, code)
        if execution.truncated or not equal_output(
            test.stdout, execution.stdout, test.compare, test.tolerance
        ):
            raise ProgramFailedError(f"it fails the test with the input {test.stdin[:40]!r}")
        return seconds

    def _start(self) -> SandboxedProcess:
        """Start a process that is ready for the program: it has answered a message."""
        process = self.processes.start(
            partial(self.sandbox.start, LOADER, runner_settings("candidate"), self.limits)
        )
        try:
            process.request({"attribute": "__name__"})
        except SandboxedProcessError as error:
            self.processes.end(process)
            raise self._failure(error) from None
        return process

    def _failure(self, error: SandboxedProcessError) -> Exception:
        if self.processes.cancelled:
            return CancelledTestsError()
        return ProgramFailedError(describe_end(error.execution, self.limits))


def _messages(code: str, tests: Sequence[CallTest], entry_point: str) -> list[Message]:
    try:
        calls = [
            call_message(test.function or entry_point, test.args, test.kwargs) for test in tests
        ]
        return [load_message(code), *calls]
    except ValueCodecError as error:
        raise ProgramFailedError(f"the arguments cannot be sent: {error}") from None


def _check_load(answer: Any, code: str) -> None:
    """Raise ProgramFailedError if the program raised an exception when it was loaded, or run."""
    outcome = read_answer(answer, 0.0, code, Decoder())
    if isinstance(outcome, CallFailure):
        raise ProgramFailedError(_one_line(outcome.error))


def _one_line(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
