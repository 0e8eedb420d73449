"""Test code in a sandbox of its own: the program is elsewhere, and each call of it goes out by
value and comes back by value.

Only values cross; `stand_ins` has what stands for the program here. What the tests cannot do with
values ends them without a score (`give_up`). An exception that the program raised is raised here as
the built-in class of the same name. Constants of the program are values; those that can be changed
are read again after each call.

Lists and other containers among the arguments get what the program put into them, if the test code
checks that.

The file runs in a sandbox and imports from the standard library alone.
"""

from __future__ import annotations

import builtins
import collections
import copy
import os
import re
import sys
import unittest
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import CoroutineType, ModuleType
from typing import Any, NoReturn, Self

from .stand_ins import (
    ProgramEnd,
    ProgramFunction,
    ProgramModule,
    ProgramObject,
    ProgramSolution,
    exception_of_program,
    is_class_name,
    make_exception,
    named_tuple,
)
from .values import (
    CARRIED,
    Decoder,
    Encoder,
    ValueClassError,
    ValueCodecError,
    make_array,
)

# of `inspect.CO_COROUTINE` and `inspect.CO_ASYNC_GENERATOR`
COROUTINE, ASYNC_GENERATOR = (0x80, 0x200)
ALLOW_TOP_LEVEL_AWAIT = 0x2000  # of `ast.PyCF_ALLOW_TOP_LEVEL_AWAIT`
MAX_KEPT = 50  # values that are compared before each call
SKIPPED = "it was skipped after a call of the program"
NOT_RAISED = ("StopIteration", "StopAsyncIteration", "GeneratorExit")
"""Exceptions that end a loop of the test code in silence; they arrive as RuntimeError."""


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


class ArgumentEncoder(Encoder):
    """Encodes arguments, and keeps the class of one that the program gets as another, and whether
    that is only data.

    Raises ValueClassError for mocks, which belong to many classes.
    """

    lost: tuple[str, bool] | None = None

    def _encode(self, value: Any, depth: int) -> Any:
        kind = type(value)
        is_deque = kind is collections.deque
        if kind.__module__ not in CARRIED and not (is_deque and value.maxlen is None):
            if kind.__module__ == "unittest.mock":
                raise ValueClassError(
                    f"an object of the class {kind.__name__!r} cannot be passed by value"
                )
            is_data = any(
                base.__module__ in ("collections", "enum") for base in kind.__mro__
            ) or hasattr(kind, "_fields")
            if self.lost is None or self.lost[1]:
                self.lost = kind.__name__[:80], is_data and not is_deque
        return super()._encode(value, depth)


class ProgramFailure(Exception):
    """The program raised an exception that is no built-in one."""


class Driver:
    """Runs test code and records the outcome of each of its parts."""

    part: Any = None  # the one that runs; None outside of all

    def __init__(self, channel: Any) -> None:
        self.channel = channel
        self.finished: list[list[Any]] = []
        self.planned: list[str] = []  # the names of tests that are only known here
        self.exceptions: dict[str, type[Exception]] = {}
        self.program: ModuleType | None = None  # only if it runs beside the tests
        self.compares_arguments = False
        self.asks_for_repr = False
        self.given = self.lost = ""  # as in `Part`, for what came outside of all parts
        self.solutions = 0  # objects of the class Solution that the program keeps
        # containers of the program's module, each with a copy, by what asks for them
        self.variables: dict[tuple[str, int | None], tuple[Any, Any]] = {}
        # the containers that were passed, by the number of the coroutine that has them
        self.arguments: dict[int, list[Any]] = {}
        # values that the program still has, each with a copy
        self.kept: list[tuple[Any, Any]] = []
        # numbers of what the program awaits, each with the future that waits for it here
        self.awaited: list[tuple[int, Any]] = []
        self.loop: Any = None  # in which they are awaited

    def take_outcomes(self) -> dict[str, Any]:
        """Return what the other side does not know yet: outcomes, and the names of the tests that
        are to come.
        """
        outcomes = {"finished": self.finished, "planned": self.planned}
        self.finished, self.planned = [], []
        return outcomes

    # ---- the parts of the test code

    def run(self, message: dict[str, Any]) -> str:
        """Run the test code. Return why it failed outside of its parts; "" if it did not."""
        try:
            self.bind(message)
            if message["uses_pytest"]:
                self.define_all(message, builtins.__dict__)
                return self.run_pytest(message["tests"])
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
        self.asks_for_repr = "repr(" in message["tests"]
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
        namespace[names["part"]] = lambda number, asserts: Part(self, number, asserts=asserts)
        namespace[names["reached"]] = self.note_assertion
        self.define_all(message, namespace)
        if message["entry_point"]:
            namespace[names["candidate"]] = self.entry_point(message["entry_point"])
        complete(
            eval(compile(message["tests"], "<tests>", "exec", ALLOW_TOP_LEVEL_AWAIT), namespace)  # noqa: S307
        )
        if message["check"]:
            complete(namespace[message["check"]](namespace[names["candidate"]]))
        for name, asserts in message["functions"]:
            with Part(self, name, asserts=asserts):
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
        if self.part is not None:
            self.part.reached = True
            if never:
                self.part.failure = self.part.failure or "the line `assert False` was reached"
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

    # ---- calls

    def ask(self, request: dict[str, Any]) -> Any:
        """Send a request of the test code out and return the answer. Raises what the program
        raised.
        """
        if self.part is not None:
            self.part.asked = True
        part = self.part.number if self.part is not None else None
        self.channel.send({**request, "part": part, **self.take_outcomes()})
        answer = self.channel.receive()
        if answer is None:
            os._exit(1)
        if "raise" in answer:
            error = self.exception(answer["raise"], answer["message"], answer.get("arguments"))
            raise self.fail(str(error)) if isinstance(error, ProgramEnd) else error
        return answer

    def fail(self, problem: str) -> ProgramEnd:
        """Return the error to raise for a part that has failed, whatever the test code makes of the
        error.
        """
        if self.part is not None:
            self.part.failure = self.part.failure or problem
        return ProgramEnd(problem)

    def look_up(self, path: str, solution: int | None = None) -> Any:
        """Return a constant of the program, or what stands for its function or class of that
        name, also of an object of the class Solution, by its number.
        """
        request: dict[str, Any] = {"attribute": path}
        request |= {} if solution is None else {"solution": solution}
        answer = self.ask(request)
        match answer["value"]:
            case {"t": "object", "v": [_, None, True]}:
                return ProgramFunction(self, path, request)
            case {"t": "object", "v": ["module", None, _]} if path in sys.stdlib_module_names:
                return __import__(path)  # what the program imported, and the tests did not
        self.note_loss(answer)
        return self.variable((path, solution), self.decode(answer["value"]))

    def solution(self) -> ProgramSolution:
        """Return what stands for a new object of the class Solution."""
        self.solutions += 1
        return ProgramSolution(self, self.solutions)

    def variable(self, name: tuple[str, int | None], value: Any) -> Any:
        """Return a constant; a container is the same one as before, with its content now."""
        known = self.variables.get(name)
        if known and type(known[0]) is type(value):
            update(known[0], value)
            value = known[0]
        if isinstance(value, list | dict | set | bytearray | collections.deque):
            self.variables[name] = value, copy.deepcopy(value)
        return value

    def keep(self, values: list[Any]) -> None:
        """Remember values that the program still has, too: what the test code changes in them
        now, it does not see.
        """
        kept = [
            value
            for value in values
            if isinstance(value, list | dict | set | bytearray | collections.deque)
        ]
        self.kept = [pair for pair in self.kept if all(pair[0] is not value for value in kept)]
        with suppress(RecursionError):  # of one that contains itself
            self.kept = [*self.kept, *((value, snapshot(value)) for value in kept)][-MAX_KEPT:]

    def check_variables(self) -> None:
        if any(differ(value, before) for value, before in self.kept):
            self.give_up(
                "they change a value that the program got or gave in an earlier call, and still "
                "has: it has a copy"
            )
        for (name, _), (value, before) in self.variables.items():
            if differ(value, before):
                self.give_up(f"they change {name} of the program")

    def read_variables(self) -> None:
        for name, solution in list(self.variables):
            self.look_up(name, solution)

    def give_up(self, reason: str) -> NoReturn:
        """End the tests: what they say of the program cannot be known apart from it."""
        self.end({"unknown": reason})

    def end(self, message: dict[str, str]) -> NoReturn:
        """End the process with a message that is no outcome."""
        self.channel.send(message)
        os._exit(1)

    async def result_of(self, number: int) -> Any:
        """Return what a coroutine of the program returns.

        What is awaited at the same time here also runs at the same time there.
        """
        import asyncio

        loop = asyncio.get_running_loop()
        if self.loop is not loop:
            self.loop, self.awaited = loop, []
        if not self.awaited:
            loop.call_soon(self.await_all)
        self.awaited.append((number, loop.create_future()))
        await self.awaited[-1][1]
        answer = self.ask({"awaited": number})
        value = self.decode(answer["value"])
        return self.update_arguments(value, answer, self.arguments.pop(number, []))

    async def items_of(self, number: int) -> Any:
        """Yield the items of an async generator of the program, which runs to its end first."""
        for item in await self.result_of(number):
            yield item

    def await_all(self) -> None:
        """Let the program run what is awaited."""
        awaited, self.awaited = self.awaited, []
        error: BaseException | None = None
        try:
            self.ask({"await": [number for number, _ in awaited]})
        except (Exception, ProgramEnd) as raised:
            error = raised
        for _, future in awaited:
            if not future.done():
                future.set_exception(error) if error else future.set_result(None)

    def call(
        self, name: str, request: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Send a call out with its arguments and return the value. Raises what the program
        raised.
        """
        self.check_variables()
        encoder = ArgumentEncoder(self.refuse, share=True)
        answer = self.ask({**request, **self.encode_arguments(encoder, args, kwargs)})
        self.check_class(name, answer)
        value = self.decode(answer["value"])
        match answer["value"]:
            case {"t": "object", "v": ["coroutine", int() as number, _]}:
                self.arguments[number] = encoder.containers
        self.read_variables()
        value = self.update_arguments(value, answer, encoder.containers)
        numbered = {**dict(enumerate(encoder.containers)), -1: value}
        self.kept = [
            pair for pair in self.kept if all(pair[0] is not each for each in encoder.containers)
        ]
        self.keep([numbered[n] for n in answer["kept"] if n in numbered])
        return value

    def check_class(self, name: str, answer: dict[str, Any]) -> None:
        """End the tests if they call a class to have an object of it. Note a class that the value
        has lost.
        """
        kind, function, is_value = answer["lost"], name.rpartition(".")[2], True
        match answer["value"]:
            case {"t": "object", "v": [str() as kind, number, _]}:
                is_value = number is not None
        if kind and (kind == function or (not is_value and is_class_name(function))):
            self.give_up(f"they make an object of its class {kind!r}")
        if is_value:
            self.note_loss(answer)

    def note_loss(self, answer: dict[str, Any]) -> None:
        """Note the class of an object that came as a built-in value."""
        part = self.part if self.part is not None else self
        part.lost = part.lost or answer["lost"]

    def refuse(self, value: Any) -> Any:
        """Refuse an argument that is of the program; of anything else it has no say."""
        if isinstance(value, ProgramObject | ProgramFunction | ProgramSolution):
            self.give_up("they pass an object of the program to it, which is no value")

    def encode_arguments(
        self, encoder: ArgumentEncoder, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the arguments as they are sent. The part fails if a size is too large; an unknown
        class ends the tests.
        """
        try:
            values = {"args": encoder.encode(list(args)), "kwargs": encoder.encode(kwargs)}
            return {**values, "lost": encoder.lost} if encoder.lost else values
        except ValueClassError as error:
            self.give_up(f"they pass an object that the program cannot get by value ({error})")
        except ValueCodecError as error:  # which the test code may expect of the program
            raise self.fail(f"the arguments cannot be sent: {error}") from None

    def update_arguments(self, value: Any, answer: dict[str, Any], containers: list[Any]) -> Any:
        """Put into the arguments what the call put there, if that is checked. Return the value, or
        the argument that it is.
        """
        is_checked = value is None or self.compares_arguments
        if answer["contents"] is None:
            if is_checked:
                raise self.fail("what the call put into its arguments cannot be passed by value")
            return value
        contents = self.decode(answer["contents"], containers)
        same = answer["same"] if answer["same"] in range(len(containers)) else None
        if is_checked:
            for before, now in zip(containers, contents, strict=False):
                update(before, now)
        elif same is not None and differ(containers[same], value):
            return value
        return value if same is None else containers[same]

    def decode(self, data: Any, containers: Any = ()) -> Any:
        decoder = Decoder(
            self.object_of_program, containers.__getitem__, make_array, partial(named_tuple, self)
        )
        try:
            return decoder.decode(data)
        except ValueCodecError as error:
            raise self.fail(f"the value cannot be compared: {error}") from None

    def object_of_program(self, kind: str, number: int | None) -> Any:
        """Return what stands for an object that is no value; what is awaited has a number."""
        match kind, number:
            case "coroutine", int():
                return self.result_of(number)
            case "async_generator", int():
                return self.items_of(number)
        part = self.part if self.part is not None else self
        part.given = part.given or kind
        awaited = None if number is None else partial(self.result_of, number)
        return ProgramObject(self, kind, awaited)

    def exception(self, types: list[str], message: str, arguments: Any) -> BaseException:
        """Return what stands for an exception that the program raised."""
        text = ": ".join(filter(None, [*types[:1], message]))
        if "Exception" not in types:
            return ProgramEnd(text)
        if ending := {*types}.intersection(NOT_RAISED):
            return RuntimeError(f"{min(ending)} raised by the program")
        kinds = [kind for name in types if (kind := self.class_of_exception(name))]
        if not kinds:
            return ProgramFailure(text)
        args = self.decode(arguments) if isinstance(arguments, list) else None
        if types[0] in self.exceptions or not hasattr(builtins, types[0]):
            return exception_of_program(self, kinds, message, args)
        return make_exception(kinds[0], message, args)

    def class_of_exception(self, name: str) -> type[Exception] | None:
        """Return the class that is raised here for one of the program's."""
        kind = self.exceptions.get(name) or getattr(builtins, name, None)
        if isinstance(kind, type) and issubclass(kind, Exception) and kind is not Exception:
            return kind
        return None


def complete(value: Any) -> None:
    """Run a coroutine of the test code to its end."""
    if type(value) is CoroutineType:
        import asyncio

        asyncio.run(value)


def differ(before: Any, now: Any) -> bool:
    """Return whether two values of built-in types, or arrays, are different; True if that cannot be
    said.
    """
    try:
        if hasattr(before, "dtype") or hasattr(now, "dtype"):
            return bool(before.tolist() != now.tolist())
        return bool(before != now)
    except (ValueError, TypeError, ArithmeticError, RecursionError, AttributeError):
        return True


def snapshot(value: Any) -> Any:
    """Return a copy of a container and of those in it; what else is in it stays the same object."""
    if isinstance(value, list):
        return [snapshot(item) for item in value]
    if isinstance(value, dict):
        return {key: snapshot(item) for key, item in value.items()}
    return copy.copy(value) if isinstance(value, set | bytearray | collections.deque) else value


def update(before: Any, now: Any) -> None:
    """Let a list, dictionary, set or array have the content that it has after a call."""
    if not differ(before, now):
        return
    if isinstance(before, list | bytearray):
        before[:] = now
    elif isinstance(before, dict | set):
        before.clear()
        before.update(now)
    elif hasattr(before, "dtype"):
        before[...] = now
    elif hasattr(before, "appendleft"):
        before.clear()
        before.extend(now)


class Part:
    """A part of the test code that counts as one test: it passes if nothing is raised and, with
    `asserts`, one was reached.
    """

    def __init__(self, driver: Driver, number: Any, *, asserts: bool) -> None:
        self.driver = driver
        self.number = number
        self.asserts = asserts
        self.reached = False
        self.asked = False
        self.failure = ""  # whatever the test code makes of it
        self.given = ""  # the class of an object of the program that came
        self.lost = ""  # the class of a value that came as a built-in one

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
        """Record the outcome. A part that is skipped counts only if the program had a say in it.

        What has an object of the program instead of a value cannot have passed.
        """
        self.check_objects(problem)
        if skipped and not problem:
            problem = SKIPPED if self.asked else ""
            self.driver.finished.append([self.number, False if self.asked else None, problem])
        else:
            self.driver.finished.append([self.number, not problem, problem])

    def check_objects(self, problem: str) -> None:
        """End the tests if an object of the program may be why this one passes or fails."""
        given, lost = self.given or self.driver.given, self.lost or self.driver.lost
        if given and not problem:
            self.driver.give_up(f"a test gets an object of its class {given!r}, which is no value")
        if lost and problem.startswith("AttributeError"):
            self.driver.give_up(f"a test gets an object of the class {lost!r} as a built-in value")


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
        self.driver.part = Part(self.driver, self.name_of(nodeid), asserts=False)

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
        part, self.driver.part = self.driver.part, None
        part.finish(
            part.failure or self.failures.get(nodeid, ""), skipped=nodeid not in self.passed
        )


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
