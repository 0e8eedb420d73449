"""The judge's side of the exchange: it sends calls to a candidate in a sandbox and checks what
comes back.

An answer of the candidate is a claim about a value and nothing else. What ends without a
well-formed answer is a named failure.
"""

from __future__ import annotations

import marshal
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from time import monotonic
from typing import Any, Self, TypeAlias

from ...answers.python_source import undefined_names
from ..execution import Execution, Limits, SandboxedProcessError
from ..process import SandboxedProcess
from ..tiers import Sandbox
from .report import MAX_MESSAGE_CHARS, MAX_TRACE_LINES
from .values import Decoder, ValueCodecError, encode

MAX_TIMEOUTS = 2  # processes that may use up their time; the tests after that are not run
MAX_CRASHES = 10  # processes that may end in another way
LOADER = Path(__file__).with_name("loader.py")
# by the modules that start in a sandbox
IMPORTED = {"candidate": ("values",), "driver_runner": ("values", "exchange")}
TIMEOUTS = ("cpu", "wall")
SOLUTION_CLASS = re.compile(r"^class Solution\b", re.MULTILINE)
JUDGE_MODULES = (  # in the order of LiveCodeBench, whose imports those of LeetCodeDataset are among
    "string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics", "itertools", "functools",  # noqa: E501
    "operator", "io", "sys", "json", "builtins", "typing",
)  # fmt: skip
JUDGE_IMPORTS = "\n".join(
    [
        *(f"from {name} import *" for name in JUDGE_MODULES),
        f"import {', '.join(JUDGE_MODULES[:-2])}",
    ]
)

Message: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ReturnValue:
    """The program returned a value. `answer` is what it sent."""

    value: Any
    seconds: float
    answer: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CallFailure:
    """There is no value: `error` says why.

    `types` are the names of the exception's class and its bases, if one was raised, and `arguments`
    what it was raised with, as it was sent; `ended`: the process ended instead of answering.
    """

    error: str
    seconds: float | None = None
    types: tuple[str, ...] = ()
    message: str = ""
    traceback: str = ""
    ended: bool = False
    arguments: Any = None


Answer: TypeAlias = ReturnValue | CallFailure


class ProcessGroup:
    """The sandboxed processes of one report. `cancel`, from any thread, kills them and lets no
    other start.
    """

    def __init__(self) -> None:
        self._processes: set[SandboxedProcess] = set()  # each use of it is a single operation
        self.cancelled = False

    def start(self, start: Callable[[], SandboxedProcess]) -> SandboxedProcess:
        """Start a process. Raises CancelledTestsError after `cancel`."""
        if self.cancelled:
            raise CancelledTestsError
        process = start()
        self._processes.add(process)
        if self.cancelled:
            self.end(process)
            raise CancelledTestsError
        return process

    def end(self, process: SandboxedProcess) -> Execution:
        """Kill a process and return how it ended."""
        process.kill()
        self._processes.discard(process)
        return process.wait()

    def cancel(self) -> None:
        self.cancelled = True
        for process in list(self._processes):
            process.kill()


class CancelledTestsError(Exception):
    """The tests were cancelled."""


@cache
def runner_settings(main: str) -> Mapping[str, Any]:
    """Return the settings of `loader.py` that start a module of this package in a sandbox, after
    the modules that it imports.
    """
    return {"modules": {name: _packed_module(name) for name in (*IMPORTED[main], main)}}


def _packed_module(name: str) -> dict[str, str]:
    source = LOADER.with_name(f"{name}.py").read_text("utf-8")
    code = marshal.dumps(compile(source, f"<{name}>", "exec", dont_inherit=True))
    return {"source": source, "code": code.hex(), "magic": MAGIC_NUMBER.hex()}


@dataclass
class CandidateSession:
    """A program in a sandbox. It is started when first called, and started again if it ended: the
    other tests still count.
    """

    code: str
    sandbox: Sandbox
    limits: Limits
    processes: ProcessGroup = field(default_factory=ProcessGroup)
    execution: Execution | None = (
        None  # of the first process that ended by itself, else of the last
    )
    load_failure: CallFailure | None = None
    timeouts: int = 0
    crashes: int = 0
    reading_seconds: float = 0.0  # that reading its values took here
    _process: SandboxedProcess | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        execution = self._end()
        self.execution = self.execution or execution

    def call(
        self,
        function: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        decoder: Decoder | None = None,
    ) -> Answer:
        """Call a function with values."""
        try:
            values = {"args": encode(list(args)), "kwargs": encode(dict(kwargs))}
            return self.ask({"call": function, **values}, decoder)
        except ValueCodecError as error:
            return CallFailure(f"the arguments cannot be sent: {error}")

    def ask(self, message: Message, decoder: Decoder | None = None) -> Answer:
        """Send a message to the loaded program and return the checked answer."""
        if self.load_failure:
            return self.load_failure
        if problem := self._stop_reason():
            return CallFailure(problem)
        return self.load() or self._exchange(message, decoder or Decoder())

    def load(self) -> CallFailure | None:
        """Start the program if it does not run. Return why it does not start; None if it does."""
        if not self.load_failure and not self._process:
            message = {"load": self.code, "imports": imports_of_judges(self.code)}
            answer = self._exchange(message, Decoder())
            if isinstance(answer, CallFailure):
                self._end()
                # it raised before any call
                self.load_failure = replace(answer, types=(), seconds=None)
        return self.load_failure

    def run(self, stdin: str) -> tuple[Answer, Execution | None]:
        """Run the program as a script in a process of its own. Return how its code ended, and its
        output; None: it did not run.
        """
        if problem := self._stop_reason():
            return CallFailure(problem), None
        answer = self._exchange({"run": self.code, "stdin": stdin}, Decoder())
        self.execution = self._end() or self.execution
        return answer, self.execution

    def _exchange(self, message: Message, decoder: Decoder) -> Answer:
        """Return the checked answer of the process. If the process ends instead, it is counted and
        forgotten.
        """
        started = monotonic()
        try:
            if not self._process:
                self._process = self.processes.start(self._start)
            answer = self._process.request(message)
        except SandboxedProcessError as error:
            return self._count_end(error.execution, monotonic() - started)
        except ValueError as error:  # larger than a message may be
            return CallFailure(f"the call cannot be sent: {error}")
        answered = monotonic()
        try:
            return read_answer(answer, answered - started, self.code, decoder)
        finally:
            self.reading_seconds += monotonic() - answered

    def _start(self) -> SandboxedProcess:
        return self.sandbox.start(LOADER, runner_settings("candidate"), self.limits)

    def _stop_reason(self) -> str:
        if self.timeouts >= MAX_TIMEOUTS:
            return "not run: the tests before it used up the time"
        if self.reading_seconds > self.limits.cpu_seconds:
            return "not run: the values before it took too long to read"
        return (
            f"not run: the program ended {self.crashes} times"
            if self.crashes >= MAX_CRASHES
            else ""
        )

    def _count_end(self, execution: Execution, seconds: float) -> CallFailure:
        self._end()
        if self.processes.cancelled:
            raise CancelledTestsError
        self.execution = execution
        if execution.status in TIMEOUTS:
            self.timeouts += 1
        elif execution.exit_code != 0:
            self.crashes += 1
        return CallFailure(describe_end(execution, self.limits), seconds, ended=True)

    def _end(self) -> Execution | None:
        process, self._process = self._process, None
        return self.processes.end(process) if process else None


def imports_of_judges(code: str) -> str:
    """Return what the judges of LeetCode's tasks import before a program: one with a class Solution
    that misses names.
    """
    return JUDGE_IMPORTS if SOLUTION_CLASS.search(code) and undefined_names(code) else ""


# ---- what comes back


def describe_end(execution: Execution, limits: Limits) -> str:
    """Return why there is no answer."""
    how = f" by signal {execution.signal}" if execution.signal else ""
    return {
        "cpu": f"out of time: more than {limits.cpu_seconds:g} seconds of CPU time",
        "wall": f"out of time after {execution.wall_seconds:.1f} seconds",
        "memory": f"out of memory: more than {limits.memory_bytes // 2**20:,} MiB",
        "output": "it printed too much and was stopped",
        "threads": f"more than {limits.threads} threads",
        "protocol": "it sent garbage, or more than fits, instead of an answer",
        "exited": (
            f"the process exited by itself (exit code {execution.exit_code}) before it answered"
        ),
    }.get(execution.status, f"the process was ended{how} before it answered")


def read_answer(answer: Any, seconds: float, code: str, decoder: Decoder) -> Answer:
    """Return the answer of a process as a value or a failure. Whatever it is, nothing is raised."""
    match answer:
        case {"error": dict() as error}:
            return _read_error(error, seconds, code)
        case {"refused": str() as reason}:
            return CallFailure(
                f"the value cannot be compared: {reason[:MAX_MESSAGE_CHARS]}", seconds
            )
        case {"value": value}:
            try:
                return ReturnValue(decoder.decode(value), seconds, answer)
            except (ValueCodecError, RecursionError) as problem:
                return CallFailure(f"the value cannot be compared: {problem}", seconds)
    return CallFailure("it sent something else than an answer", seconds)


def _read_error(error: Mapping[str, Any], seconds: float, code: str) -> CallFailure:
    types = error.get("types")
    names = tuple(str(name)[:80] for name in types[:20]) if isinstance(types, list) else ()
    message = str(error.get("message") or "")
    kind = names[0] if names else "an exception"
    shown = " ".join(message[: 2 * MAX_MESSAGE_CHARS].split())[:MAX_MESSAGE_CHARS]
    traceback = _read_trace(error.get("trace"), code)
    shown = f"{kind}: {shown}" if shown else kind
    return CallFailure(shown, seconds, names, message, traceback, arguments=error.get("arguments"))


def _read_trace(trace: object, code: str) -> str:
    """Return the lines of the program that led to an exception, as numbers and source; the source
    is ours, not theirs.
    """
    lines = code.splitlines()
    shown = []
    for entry in trace if isinstance(trace, list) else ():
        match entry:
            case [int() as number, str() as function] if 0 < number <= len(lines):
                place = f"line {number}" + (
                    f", in {function[:80]}" if function.isidentifier() else ""
                )
                shown.append(f"{place}: {lines[number - 1].strip()[:160]}")
    if len(shown) > MAX_TRACE_LINES:
        shown[MAX_TRACE_LINES // 2 : -(MAX_TRACE_LINES // 2)] = ["..."]
    return "\n".join(shown)
