"""Test code in a sandbox of its own: the program is elsewhere, and each call of it goes out by
value and comes back by value (`exchange`).

Each part of the test code that counts as one test has an outcome of its own. What the tests cannot
do with values ends them without a score (`give_up`).

The file runs in a sandbox and imports from the standard library alone.
"""

from __future__ import annotations

import builtins
import os
import re
import sys
import unittest
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import CoroutineType, ModuleType
from typing import Any

from .exchange import Exchange, Part, ProgramFunction, ProgramModule

# of `inspect.CO_COROUTINE` and `inspect.CO_ASYNC_GENERATOR`
COROUTINE, ASYNC_GENERATOR = (0x80, 0x200)
ALLOW_TOP_LEVEL_AWAIT = 0x2000  # of `ast.PyCF_ALLOW_TOP_LEVEL_AWAIT`
SKIPPED = "it was skipped after a call of the program"


def main(channel: Any) -> None:
    """Run test code; each answer asks for a call of the program, and the last one says that it is
    done.
    """
    message = channel.receive()
    if message is not None:
        driver = Driver(channel)
        problem = driver.run(message)
        channel.send({"done": True, **driver.take_outcomes(), "problem": problem})
        channel.receive()
    os._exit(0)


class Driver(Exchange):
    """Runs test code and records the outcome of each of its parts."""

    program: ModuleType | None = None  # only if it runs beside the tests

    # ---- outcomes

    @contextmanager
    def run_part(self, number: int | str, asserts: bool) -> Iterator[None]:  # noqa: FBT001  (called by test code)
        """Run a part of the test code: it passes if nothing is raised and, with `asserts`, an
        assertion was reached.
        """
        self.part, problem = Part(number), ""
        try:
            yield
        except BaseException as error:
            problem = describe(error)
        missing = asserts and not self.part.reached
        self.finish(problem or ("no assertion was reached" if missing else ""))

    def finish(self, problem: str, *, skipped: bool = False) -> None:
        """Record the outcome of the part that runs. One that is skipped counts only if the program
        had a say in it.

        What has an object of the program instead of a value cannot have passed.
        """
        part, self.part = self.part, self.outside
        problem = part.failure or problem
        self.check_objects(part, problem)
        ok: bool | None = not problem
        if skipped and not problem:
            ok, problem = (False, SKIPPED) if part.asked else (None, "")
        self.finished.append([part.number, ok, problem])

    def check_objects(self, part: Part, problem: str) -> None:
        """End the tests if an object of the program may be why this one passes or fails."""
        given, lost = part.given or self.outside.given, part.lost or self.outside.lost
        if given and not problem:
            self.give_up(f"a test gets an object of its class {given!r}, which is no value")
        if lost and problem.startswith("AttributeError"):
            self.give_up(f"a test gets an object of the class {lost!r} as a built-in value")

    # ---- the parts of the test code

    def run(self, message: dict[str, Any]) -> str:
        """Run the test code. Return why it failed outside of its parts; "" if it did not."""
        try:
            self.bind(message)
            if message["uses_pytest"]:
                self.define_all(message, builtins.__dict__)
                return self.run_pytest(message["source"])
            module = ModuleType("tests")
            sys.modules["tests"] = module
            self.run_code(message, vars(module))
            self.run_unittest(vars(module))
        except BaseException as error:
            return describe(error)
        return ""

    def bind(self, message: dict[str, Any]) -> None:
        """Make the modules that stand for the program or, if its code is given, are the program."""
        self.compares_arguments = message["compares_arguments"]
        self.asks_for_repr = "repr(" in message["source"]
        if "code" in message:
            program = self.program = ModuleType("solution")
            sys.modules["solution"] = program
            exec(message["imports"], vars(program))
            exec(compile(message["code"], "<solution>", "exec"), vars(program))
        else:
            for name in message["exceptions"]:
                self.exceptions[name] = type(name, (Exception,), {})
        for name in message["modules"]:
            sys.modules[name] = self.program or ProgramModule(self, name)

    def run_code(self, message: dict[str, Any], namespace: dict[str, Any]) -> None:
        names = message["part_names"]
        namespace[names["part"]] = self.run_part
        namespace[names["reached"]] = self.note_assertion
        self.define_all(message, namespace)
        if message["entry_point"]:
            namespace[names["candidate"]] = self.entry_point(message["entry_point"])
        complete(
            eval(compile(message["source"], "<tests>", "exec", ALLOW_TOP_LEVEL_AWAIT), namespace)  # noqa: S307
        )
        if message["check"]:
            complete(namespace[message["check"]](namespace[names["candidate"]]))
        for name, asserts in message["functions"]:
            with self.run_part(name, asserts):
                complete(namespace[name]())

    def define_all(self, message: dict[str, Any], namespace: dict[str, Any]) -> None:
        """Let names of the program stand for what it has; one that it lacks stays undefined."""
        for name in (*message["candidate_names"], *message["exceptions"]):
            with suppress(NameError, AttributeError):
                namespace[name] = self.exceptions.get(name) or (
                    getattr(self.program, name) if self.program else self.look_up(name)
                )

    def entry_point(self, name: str) -> Any:
        """Return the function that is tested; "Class.method" is a method of a new object."""
        if self.program is None:
            return ProgramFunction(self, name, {"call": name})
        first, _, method = name.partition(".")
        if not method and not hasattr(self.program, first):
            first, method = "Solution", name
        target = getattr(self.program, first)
        return getattr(target(), method) if method else target

    def run_pytest(self, source: str) -> str:
        """Let pytest run the test code. Return why it could not."""
        import pytest

        plugin = PytestPlugin(self)
        plugins: list[Any] = [plugin, asyncio_fixtures()]
        path = Path.cwd() / "test_of_the_candidate.py"
        try:
            # a file, so that messages of pytest show the values in assertions
            path.write_text(source, "utf-8")
        except OSError:  # nothing can be written in this sandbox
            path = Path(pytest.__file__).with_name("py.typed")
            plugins.append(MemoryPlugin(path, source))
        folder = str(path.parent)
        options = [
            "-q",
            "--capture=no",
            "-p",
            "no:cacheprovider",
            "-c",
            "/dev/null",
            "--rootdir",
            folder,
            "--confcutdir",
            folder,
        ]
        pytest.main([*options, str(path)], plugins=plugins)
        return plugin.problem

    def note_assertion(self, value: Any, *, never: bool = False) -> Any:
        """Note that an assertion was evaluated; one that must `never` be reached fails even if the
        test code catches its error.
        """
        self.part.reached = True
        if never:
            self.fail("the line `assert False` was reached")
        return value

    def run_unittest(self, namespace: dict[str, Any]) -> None:
        kinds = [
            value
            for value in namespace.values()
            if isinstance(value, type) and issubclass(value, unittest.TestCase)
        ]
        loader = unittest.TestLoader()
        suites = [
            loader.loadTestsFromTestCase(kind) for kind in kinds if kind.__module__ == "tests"
        ]
        self.planned += [PartResult.name_of(test) for suite in suites for test in suite]
        for suite in suites:
            suite.run(PartResult(self))


def complete(value: Any) -> None:
    """Run a coroutine of the test code to its end."""
    if type(value) is CoroutineType:
        import asyncio

        asyncio.run(value)


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
        self.driver.part = Part(self.name_of(test))

    def stopTest(self, test: Any) -> None:
        super().stopTest(test)
        self.driver.finish(self.problem, skipped=self.skipped_test)

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
        self.runner: Any = None  # of asyncio

    @staticmethod
    def name_of(nodeid: str) -> str:
        return nodeid.partition("::")[2]

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.problem = self.problem or last_line(report.longrepr)

    def pytest_collection_finish(self, session: Any) -> None:
        self.driver.planned += [self.name_of(item.nodeid) for item in session.items]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.driver.part = Part(self.name_of(nodeid))

    def run_async(self, coroutine: Any) -> Any:
        """Run a coroutine of the test code to its end, in the event loop of all tests and
        fixtures.
        """
        import asyncio

        self.runner = self.runner or asyncio.Runner()
        return self.runner.run(coroutine)

    def pytest_pyfunc_call(self, pyfuncitem: Any) -> bool | None:
        """Run an async test function, however it is marked."""
        function = pyfuncitem.obj
        if not has_flag(function, COROUTINE):
            return None
        names = function.__code__.co_varnames[: function.__code__.co_argcount]
        self.run_async(
            function(
                **{name: pyfuncitem.funcargs[name] for name in names if name in pyfuncitem.funcargs}
            )
        )
        return True

    def pytest_fixture_setup(self, fixturedef: Any) -> None:
        """Let a fixture that is async be an ordinary one."""
        function = fixturedef.func

        def yield_value(**values: Any) -> Any:
            generator = function(**values)
            yield self.run_async(next_of(generator))
            self.run_async(next_of(generator))

        if has_flag(function, COROUTINE):
            fixturedef.func = lambda **values: self.run_async(function(**values))
        elif has_flag(function, ASYNC_GENERATOR):
            fixturedef.func = yield_value

    def pytest_runtest_logreport(self, report: Any) -> None:
        if (
            report.when == "setup"
            and report.failed
            and (problem := missing_fixture(report.longrepr))
        ):
            self.driver.end({"broken": problem})
        if report.failed:
            self.failures.setdefault(report.nodeid, last_line(report.longrepr))
        elif report.when == "call" and report.passed:
            self.passed.add(report.nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.driver.finish(self.failures.get(nodeid, ""), skipped=nodeid not in self.passed)


def has_flag(function: Any, flag: int) -> bool:
    """Return whether the code of a function has a flag (see `inspect`)."""
    return bool(getattr(getattr(function, "__code__", None), "co_flags", 0) & flag)


async def next_of(generator: Any) -> Any:
    """Return the next item of an async generator; None if there is none."""
    return await anext(generator, None)


def asyncio_fixtures() -> object:
    """Return a plugin of pytest with the fixtures of its plugins for asyncio; `import
    pytest_asyncio` works, too.
    """
    import asyncio

    import pytest

    class Fixtures:
        @pytest.fixture
        def event_loop(self) -> Any:
            loop = asyncio.new_event_loop()
            yield loop
            loop.close()

        @pytest.fixture
        def anyio_backend(self) -> str:
            return "asyncio"

    def fixture(*args: Any, loop_scope: Any = None, **options: Any) -> Any:
        return pytest.fixture(*args, **options)

    try:
        import pytest_asyncio  # noqa: F401
    except ImportError:
        sys.modules["pytest_asyncio"] = ModuleType("pytest_asyncio")
        sys.modules["pytest_asyncio"].fixture = fixture  # type: ignore[attr-defined]
    return Fixtures()


def missing_fixture(report: Any) -> str:
    """Return that a fixture which a test needs is not there, if a report says so; else ""."""
    found = re.search(r"fixture '(\w+)' not found", str(report))
    return f"they need a fixture that there is not: {found[1]}" if found else ""


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
