"""Test code in a sandbox of its own: the candidate is elsewhere, and each call of it goes out by value and comes back by value.

What stands for the candidate here are proxies. An exception that the candidate raised is raised here as the built-in class of the
same name; an object that cannot be passed by value is a `RemoteObject`, which forwards methods but no comparison: `==` with it is
identity, so that no code of the candidate takes part in a verdict. For the same reason an object cannot take the part of a built-in
value, whose methods and conversions the tests trust: it is asked for its length, items or number, and for the methods of built-in
types, only if the test code itself calls its class by name.

The file runs in a sandbox and imports from the standard library alone.
"""

from __future__ import annotations

import builtins
import os
import sys
import unittest
from pathlib import Path
from types import ModuleType
from typing import Any, Self

SKIPPED = "it was skipped after a call of the program"
NOT_RAISED = ("StopIteration", "StopAsyncIteration", "GeneratorExit")
"""Exceptions that end a loop of the test code in silence; they arrive as RuntimeError."""


def main(values: ModuleType, channel: Any) -> None:
    """Run test code; each answer asks for a call of the candidate, and the last one says that it is done."""
    message = channel.receive()
    if message is not None:
        driver = Driver(channel, values)
        problem = driver.run(message)
        channel.send({"done": True, **driver.take_outcomes(), "problem": problem})
        channel.receive()
    os._exit(0)


class CandidateFailure(Exception):
    """The candidate raised an exception that is no built-in one."""


class CandidateEnd(BaseException):
    """The candidate gave no value: its process ended, or it raised what ends a process. No `except Exception` catches it."""


class Driver:
    """Runs test code and records the outcome of each of its parts."""

    def __init__(self, channel: Any, values: ModuleType) -> None:
        self.channel = channel
        self.values = values
        self.finished: list[list[Any]] = []
        self.planned: list[str] = []  # the names of tests that are only known here
        self.exceptions: dict[str, type[Exception]] = {}
        self.candidate: ModuleType | None = None  # only if it runs beside the tests
        self.compares_arguments = False
        self.classes: set[str] = set()  # of the candidate, that the test code has called by name

    def take_outcomes(self) -> dict[str, Any]:
        """Return what the other side does not know yet: outcomes, and the names of the tests that are to come."""
        outcomes = {"finished": self.finished, "planned": self.planned}
        self.finished, self.planned = [], []
        return outcomes

    # ---- the parts of the test code

    def run(self, message: dict[str, Any]) -> str:
        """Run the test code. Return why it failed outside of its parts; "" if it did not."""
        try:
            self.bind(message)
            if message["uses_pytest"]:
                return self.run_pytest(message["tests"])
            module = ModuleType("tests")
            sys.modules["tests"] = module
            self.run_code(message, vars(module))
            self.run_unittest(vars(module))
        except BaseException as error:
            return describe(error)
        return ""

    def bind(self, message: dict[str, Any]) -> None:
        """Make the modules that stand for the candidate: proxies or, if its code is given, itself."""
        self.compares_arguments = message["compares_arguments"]
        for name in message["exceptions"]:
            self.exceptions[name] = type(name, (Exception,), {})
        if "code" in message:
            candidate = self.candidate = ModuleType("solution")
            sys.modules["solution"] = candidate
            exec(compile(message["code"], "<solution>", "exec"), vars(candidate))
        for name in message["modules"]:
            sys.modules[name] = self.candidate or CandidateModule(self, name)

    def run_code(self, message: dict[str, Any], namespace: dict[str, Any]) -> None:
        names = message["part_names"]
        namespace[names["part"]] = lambda number, asserts: Part(self, number, asserts=asserts)
        namespace[names["reached"]] = self.note_assertion
        for name in (*message["candidate_names"], *message["exceptions"]):
            self.define(namespace, name, name)
        if message["entry_point"]:
            self.define(namespace, names["candidate"], message["entry_point"])
        exec(compile(message["tests"], "<tests>", "exec"), namespace)
        if message["check"]:
            namespace[message["check"]](namespace[names["candidate"]])
        for name, asserts in message["functions"]:
            with Part(self, name, asserts=asserts):
                namespace[name]()

    def define(self, namespace: dict[str, Any], name: str, of_candidate: str) -> None:
        """Let a name in the test code stand for something of the candidate."""
        if self.candidate is None:
            namespace[name] = self.exceptions.get(name) or CandidateFunction(self, of_candidate)
        elif hasattr(self.candidate, of_candidate):
            namespace[name] = getattr(self.candidate, of_candidate)

    def run_pytest(self, source: str) -> str:
        """Let pytest run the test code. Return why it could not."""
        import pytest

        plugin = PytestPlugin(self)
        plugins: list[Any] = [plugin]
        path = Path.cwd() / "test_of_the_candidate.py"
        try:
            path.write_text(source, "utf-8")  # a file, so that messages of pytest show the values in assertions
        except OSError:  # nothing can be written in this sandbox
            path = Path(pytest.__file__).with_name("py.typed")
            plugins.append(MemoryPlugin(path, source))
        folder = str(path.parent)
        options = ["-q", "--capture=no", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", folder, "--confcutdir", folder]
        pytest.main([*options, str(path)], plugins=plugins)
        return plugin.problem

    part: Any = None

    def note_assertion(self, value: Any, never: bool) -> Any:  # noqa: FBT001  (called by rewritten code)
        """Note that an assertion was evaluated; one that must `never` be reached fails even if the test code catches its error."""
        if self.part is not None:
            self.part.reached = True
            if never:
                self.part.failure = self.part.failure or "the line `assert False` was reached"
        return value

    def run_unittest(self, namespace: dict[str, Any]) -> None:
        kinds = [value for value in namespace.values() if isinstance(value, type) and issubclass(value, unittest.TestCase)]
        loader = unittest.TestLoader()
        suites = [loader.loadTestsFromTestCase(kind) for kind in kinds if kind.__module__ == "tests"]
        self.planned += [PartResult.name_of(test) for suite in suites for test in suite]
        for suite in suites:
            suite.run(PartResult(self))

    # ---- calls

    def ask(self, request: dict[str, Any]) -> Any:
        """Send a request of the test code out and return the value. Raises what the candidate raised."""
        if self.part is not None:
            self.part.asked = True
        part = self.part.number if self.part is not None else None
        self.channel.send({**request, "part": part, **self.take_outcomes()})
        answer = self.channel.receive()
        if answer is None:
            os._exit(1)
        if "raise" in answer:
            error = self.exception(answer["raise"], answer["message"])
            raise self.fail(str(error)) if isinstance(error, CandidateEnd) else error
        return answer

    def fail(self, problem: str) -> CandidateEnd:
        """Return the error to raise for a part that has failed, whatever the test code makes of the error."""
        if self.part is not None:
            self.part.failure = self.part.failure or problem
        return CandidateEnd(problem)

    def call(self, request: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        encoder = self.values.Encoder(refer)
        try:
            values = {"args": encoder.encode(list(args)), "kwargs": encoder.encode(kwargs)}
        except self.values.ValueCodecError as error:  # a ValueError, which the test code may expect of the candidate
            raise self.fail(f"the arguments cannot be sent: {error}") from None
        if is_class_name(called := request.get("call", "").partition(".")[0]):
            self.classes.add(called)
        answer = self.ask({**request, **values})
        value = self.decode(answer["value"])
        if answer.get("arguments") is not None and (value is None or self.compares_arguments):
            update_arguments(args, self.decode(answer["arguments"]))
        return value

    def decode(self, data: Any) -> Any:
        try:
            return self.values.Decoder(lambda content: RemoteObject(self, *content)).decode(data)
        except self.values.ValueCodecError as error:
            raise self.fail(f"the value cannot be compared: {error}") from None

    def exception(self, types: list[str], message: str) -> BaseException:
        if "Exception" not in types:
            return CandidateEnd(": ".join(filter(None, [*types[:1], message])))
        for name in types:
            kind = self.exceptions.get(name) or getattr(builtins, name, None)
            if name in NOT_RAISED:
                return RuntimeError(f"{name} raised by the candidate")
            if isinstance(kind, type) and issubclass(kind, Exception) and kind is not Exception:
                return make_exception(kind, message)
        return CandidateFailure(": ".join(filter(None, [*types[:1], message])))


def make_exception(kind: type[Exception], message: str) -> Exception:
    try:
        return kind(message)
    except TypeError:  # UnicodeDecodeError and others need more
        error = kind.__new__(kind)
        error.args = (message,)
        return error


def refer(value: Any) -> Any:
    if isinstance(value, RemoteObject):
        number, name = object.__getattribute__(value, "_content")
        return {"t": "object", "v": [number, name]}
    return None


def update_arguments(args: tuple[Any, ...], after: Any) -> None:
    """Make lists, dictionaries and sets among the arguments what they are after the call.

    That is done for a function that returns nothing, and in test code that compares arguments.
    """
    for before, now in zip(args, after, strict=False):
        if type(before) is not type(now):
            continue
        if isinstance(before, list | bytearray):
            before[:] = now
        elif isinstance(before, dict | set):
            before.clear()
            before.update(now)


class Part:
    """A part of the test code that counts as one test: it passes if nothing is raised and, with `asserts`, one was reached."""

    def __init__(self, driver: Driver, number: Any, *, asserts: bool) -> None:
        self.driver = driver
        self.number = number
        self.asserts = asserts
        self.reached = False
        self.asked = False
        self.failure = ""  # whatever the test code makes of it

    def __enter__(self) -> Self:
        self.driver.part = self
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        self.driver.part = None
        problem = self.failure or (describe(error) if error is not None else "")
        if not problem and self.asserts and not self.reached:
            problem = "no assertion was reached"
        self.finish(problem)
        return True

    def finish(self, problem: str, *, skipped: bool = False) -> None:
        """Record the outcome. A part that is skipped counts only if the program had a say in it."""
        if skipped and not problem:
            problem = SKIPPED if self.asked else ""
            self.driver.finished.append([self.number, False if self.asked else None, problem])
        else:
            self.driver.finished.append([self.number, not problem, problem])


class PartResult(unittest.TestResult):
    """Records each test method of unittest as a part."""

    def __init__(self, driver: Driver) -> None:
        super().__init__()
        self.driver = driver
        self.problem = ""
        self.skipped_test = False

    @staticmethod
    def name_of(test: Any) -> str:
        return str(test.id()).removeprefix("tests.")

    def startTest(self, test: Any) -> None:
        super().startTest(test)
        self.problem, self.skipped_test = "", False
        self.driver.part = Part(self.driver, self.name_of(test), asserts=False)

    def stopTest(self, test: Any) -> None:
        super().stopTest(test)
        part, self.driver.part = self.driver.part, None
        part.finish(part.failure or self.problem, skipped=self.skipped_test)

    def addFailure(self, test: Any, err: Any) -> None:
        self.problem = self.problem or describe(err[1])

    addError = addFailure

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            self.problem = self.problem or describe(err[1])

    def addSkip(self, test: Any, reason: str) -> None:
        self.skipped_test = True

    def addExpectedFailure(self, test: Any, err: Any) -> None:
        self.skipped_test = True

    def addUnexpectedSuccess(self, test: Any) -> None:
        self.problem = "it was expected to fail"


class PytestPlugin:
    """Records each test of pytest as a part."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.problem = ""
        self.failures: dict[str, str] = {}
        self.passed: set[str] = set()

    @staticmethod
    def name_of(nodeid: str) -> str:
        return nodeid.partition("::")[2]

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.problem = self.problem or last_line(report.longrepr)

    def pytest_collection_finish(self, session: Any) -> None:
        self.driver.planned += [self.name_of(item.nodeid) for item in session.items]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.driver.part = Part(self.driver, self.name_of(nodeid), asserts=False)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failures.setdefault(report.nodeid, last_line(report.longrepr))
        elif report.when == "call" and report.passed:
            self.passed.add(report.nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        part, self.driver.part = self.driver.part, None
        part.finish(part.failure or self.failures.get(nodeid, ""), skipped=nodeid not in self.passed)


class MemoryPlugin:
    """Lets pytest collect test code from memory in place of a file."""

    def __init__(self, path: Path, source: str) -> None:
        self.path = path
        self.source = source

    def pytest_collect_file(self, file_path: Path, parent: Any) -> Any:
        import pytest

        source = self.source

        class TestsInMemory(pytest.Module):
            def _getobj(self) -> ModuleType:
                module = ModuleType("tests")
                exec(compile(source, "<tests>", "exec"), vars(module))
                return module

        return TestsInMemory.from_parent(parent, path=file_path) if file_path == self.path else None


def last_line(report: Any) -> str:
    """Return the line of a report of pytest that says what is wrong."""
    crash = getattr(report, "reprcrash", None)
    text = str(getattr(crash, "message", None) or report).strip()
    lines = text.splitlines() if crash else text.splitlines()[-1:]
    return " ".join(" ".join(lines).split())[:2000]


def describe(error: BaseException) -> str:
    try:
        message = " ".join(str(error)[:2000].split())
    except Exception:
        message = ""
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


# ---- what stands for the candidate


class CandidateFunction:
    """A function or class of the candidate, by its name."""

    def __init__(self, driver: Driver, name: str) -> None:
        self._driver = driver
        self.__name__ = self.__qualname__ = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._driver.call({"call": self.__name__}, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return CandidateFunction(self._driver, f"{self.__name__}.{name}")


class CandidateModule(ModuleType):
    """The module that the test code imports the candidate from."""

    def __init__(self, driver: Driver, name: str) -> None:
        super().__init__(name)
        self._driver = driver

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        exceptions = self._driver.exceptions
        return exceptions[name] if name in exceptions else CandidateFunction(self._driver, name)


class RemoteObject:
    """An object of the candidate. Its methods and attributes are the candidate's; comparisons are not."""

    def __init__(self, driver: Driver, number: int, name: str) -> None:
        self._driver = driver
        self._content = (number, name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        answer = self._driver.ask({"attribute": name, "object": self._content[0]})
        value = self._driver.decode(answer["value"])
        if name in VALUE_METHODS and isinstance(value, RemoteObject):
            check_is_asked(self, name)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("_driver", "_content"):
            object.__setattr__(self, name, value)
        else:
            forward(self, "__setattr__", name, value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemoteObject) and self._content[0] == other._content[0]

    def __hash__(self) -> int:
        return hash(self._content[0])

    def __bool__(self) -> bool:
        return True


def forward(remote: RemoteObject, method: str, *args: Any, **kwargs: Any) -> Any:
    driver, content = object.__getattribute__(remote, "_driver"), object.__getattribute__(remote, "_content")
    return driver.call({"method": method, "object": content[0]}, args, kwargs)


VALUE_METHODS = {name for kind in (str, bytes, list, dict, set, int, float) for name in dir(kind) if not name.startswith("_")}
CONVERSIONS = ("len", "getitem", "setitem", "delitem", "iter", "next", "int", "float")


def is_class_name(name: str) -> bool:
    """Return whether a name is that of a class, as it is usually written; `Solution` holds functions (LeetCode)."""
    return name.lstrip("_")[:1].isupper() and name != "Solution"


def check_is_asked(remote: RemoteObject, method: str) -> None:
    """Fail the part if an object of another class than the test code knows is taken for a built-in value."""
    driver, (_, name) = object.__getattribute__(remote, "_driver"), object.__getattribute__(remote, "_content")
    if name not in driver.classes:
        raise driver.fail(f"the program gave an object of its class {name!r} where the tests use a built-in value ({method})")


def _forwarding(method: str, *, is_conversion: bool) -> Any:
    def forwarding(self: RemoteObject, *args: Any, **kwargs: Any) -> Any:
        if is_conversion:
            check_is_asked(self, method)
        return forward(self, method, *args, **kwargs)

    return forwarding


# no operator that takes a second operand: it would tell the candidate what is expected
for _method in (*CONVERSIONS, "call", "str", "repr", "enter", "exit"):
    setattr(RemoteObject, f"__{_method}__", _forwarding(f"__{_method}__", is_conversion=_method in CONVERSIONS))
