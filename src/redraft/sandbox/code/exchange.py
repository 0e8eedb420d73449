"""The exchange between test code and a program in another sandbox, and what stands for the program
here: its module, its functions, and its objects.

Only values cross between the two sandboxes. A function is called by its name, with values. An
object that is no value stays where it is, and a `ProgramObject` says here that there is one. What
needs the object itself ends the tests without a score (`give_up`): an attribute or a call of it,
`with`, its text, another object beside it. A test fails that uses it as a value, and none passes
that was given one. So no object of the program takes the part of a value, and none is judged by
what only its class could say. The object of `Solution()` is the exception: the program keeps it,
and its methods are called with values.

An exception that the program raised is raised here as the built-in class of the same name.
Constants of the program are values; those that can be changed are read again after each call.
Lists and other containers among the arguments get what the program put into them, if the test code
checks that.

The file runs in a sandbox and imports from the standard library alone.
"""

from __future__ import annotations

import builtins
import collections
import copy
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from types import ModuleType
from typing import Any, NoReturn

from .values import (
    CARRIED,
    Decoder,
    Encoder,
    ValueClassError,
    ValueCodecError,
    make_array,
    named_tuple_class,
)

MAX_KEPT = 50  # values that are compared before each call
NOT_RAISED = ("StopIteration", "StopAsyncIteration", "GeneratorExit")
"""Exceptions that end a loop of the test code in silence; they arrive as RuntimeError."""
CONTAINERS = (list, dict, set, bytearray, collections.deque)


class Part:
    """A part of the test code that counts as one test, or what is outside of all parts, and what
    happened while it ran.

    - `reached`: whether an assertion was evaluated; `asked`: whether the program was asked.
    - `failure`: why it fails, whatever the test code makes of it.
    - `given`: the class of an object of the program that came; `lost`: the class of a value that
      came as a built-in one.
    """

    reached = asked = False
    failure = given = lost = ""

    def __init__(self, number: int | str | None) -> None:
        self.number = number


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


class Exchange:
    """Asks the program for what the test code does with it. `part` is the one that runs."""

    def __init__(self, channel: Any) -> None:
        self.channel = channel
        self.part = self.outside = Part(None)
        self.finished: list[list[Any]] = []
        self.planned: list[str] = []  # the names of tests that are only known here
        self.exceptions: dict[str, type[Exception]] = {}
        self.compares_arguments = False
        self.asks_for_repr = False
        self.solutions = 0  # objects of the class Solution that the program keeps
        # containers of the program's module, each with a copy, by what asks for them
        self.variables: dict[tuple[str, int | None], tuple[Any, Any]] = {}
        # the containers that were passed, by the number of the coroutine that has them
        self.arguments: dict[int, list[Any]] = {}
        # values that the program still has, each with a copy
        self.kept: list[tuple[Any, Any]] = []
        self.awaited: list[int] = []  # the numbers of what is awaited and does not yet run

    def take_outcomes(self) -> dict[str, Any]:
        """Return what the other side does not know yet: outcomes, and the names of the tests that
        are to come.
        """
        outcomes = {"finished": self.finished, "planned": self.planned}
        self.finished, self.planned = [], []
        return outcomes

    def ask(self, request: dict[str, Any]) -> Any:
        """Send a request of the test code out and return the answer. Raises what the program
        raised.
        """
        self.part.asked = True
        self.channel.send({**request, "part": self.part.number, **self.take_outcomes()})
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
        if isinstance(value, CONTAINERS):
            self.variables[name] = value, copy.deepcopy(value)
        return value

    def keep(self, passed: list[Any], values: list[object]) -> None:
        """Remember values that the program still has, too, and forget the others that were passed:
        what the test code changes in them now, it does not see.
        """
        kept = [value for value in values if isinstance(value, CONTAINERS)]
        asked = {id(value) for value in (*passed, *kept)}
        self.kept = [pair for pair in self.kept if id(pair[0]) not in asked]
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

        self.awaited.append(number)
        try:
            await asyncio.sleep(0)  # until all that is awaited now is known
        finally:  # what is cancelled here has begun, too
            if number in self.awaited:
                numbers, self.awaited = self.awaited, []
                self.ask({"await": numbers})
        answer = self.ask({"awaited": number})
        value = self.decode(answer["value"])
        return self.update_arguments(value, answer, self.arguments.pop(number, []))

    async def items_of(self, number: int) -> Any:
        """Yield the items of an async generator of the program, which runs to its end first."""
        for item in await self.result_of(number):
            yield item

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
        self.keep(encoder.containers, [numbered[n] for n in answer["kept"] if n in numbered])
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
        self.part.lost = self.part.lost or answer["lost"]

    def refuse(self, value: object) -> None:
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
        self.part.given = self.part.given or kind
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


# ---- what stands for the program


class StandIn:
    """Has no special attributes; `__read__` says what the others are."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.__read__(name)

    def __read__(self, name: str) -> Any:
        raise AttributeError(name)


class ProgramFunction(StandIn):
    """A function or class of the program, by its name; `request` is what asks for a call of it."""

    def __init__(self, exchange: Exchange, name: str, request: dict[str, Any]) -> None:
        vars(self).update(_exchange=exchange, _request=request, __name__=name, __qualname__=name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.__name__ == "Solution" and not args and not kwargs:
            return self._exchange.solution()
        return self._exchange.call(self.__name__, self._request, args, kwargs)

    def __read__(self, name: str) -> Any:
        return self._exchange.look_up(f"{self.__name__}.{name}")

    def __setattr__(self, name: str, value: Any) -> None:
        self._exchange.give_up(f"they set {name} of {self.__name__}")

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ProgramFunction):
            return bool(self._request == other._request)
        self._exchange.look_up(self.__name__)  # they expect a constant, and ask for it
        return False

    def __hash__(self) -> int:
        return hash(self.__name__)

    def _use_items(self, *_: Any) -> Any:
        self._exchange.give_up(f"they use {self.__name__} as a collection")

    __getitem__ = __iter__ = __len__ = __contains__ = _use_items

    def __bool__(self) -> bool:
        return True


class ProgramSolution(StandIn):
    """The object of a call `Solution()`, which the program keeps under a number."""

    def __init__(self, exchange: Exchange, number: int) -> None:
        vars(self).update(_exchange=exchange, _number=number)

    def __read__(self, name: str) -> Any:
        return self._exchange.look_up(name, self._number)

    def __setattr__(self, name: str, value: Any) -> None:
        self._exchange.give_up(f"they set {name} of an object of its class 'Solution'")


class ProgramModule(StandIn, ModuleType):
    """The module that the test code imports the program from."""

    def __init__(self, exchange: Exchange, name: str) -> None:
        super().__init__(name)
        self._exchange = exchange

    def __read__(self, name: str) -> Any:
        try:
            return self._exchange.exceptions.get(name) or self._exchange.look_up(name)
        except NameError as error:
            raise AttributeError(str(error)) from None

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_") and not isinstance(value, ModuleType):
            self._exchange.give_up(f"they change {name} of the program")
        super().__setattr__(name, value)


class ProgramObject(StandIn):
    """An object of the program that is no value, of which only the name of its class is here."""

    def __init__(self, exchange: Exchange, kind: str, awaited: Callable[[], Any] | None) -> None:
        self._exchange = exchange
        self._kind = kind
        self._awaited = awaited

    def __read__(self, name: str) -> Any:
        if name in VALUE_METHODS:
            self._refuse(name)
        self._need(name)

    def __await__(self) -> Any:
        return self._awaited().__await__() if self._awaited else self._need("__await__")

    def __repr__(self) -> str:
        if self._exchange.asks_for_repr:  # otherwise it stands in a message
            self._need("__repr__")
        return f"<{self._kind} object of the program>"

    def __format__(self, _: str) -> str:
        return repr(self)

    __hash__ = object.__hash__

    def _refuse(self, what: str) -> NoReturn:
        raise self._exchange.fail(
            f"the program gave an object of its class {self._kind!r} where the tests use a "
            f"built-in value ({what})"
        )

    def _need(self, what: str) -> NoReturn:
        self._exchange.give_up(f"they use {what} of an object of its class {self._kind!r}")


def _operation(name: str) -> Any:
    """Return an operator that has no say between an object and a value, as none is defined; of two
    objects only the program knows.
    """

    def operate(self: Any, other: Any) -> Any:
        if isinstance(other, ProgramObject):
            self._need(name)
        return NotImplemented

    return operate


OPERATIONS = (
    "__eq__", "__lt__", "__le__", "__gt__", "__ge__", "__add__", "__sub__", "__mul__", "__truediv__", "__floordiv__",
    "__mod__", "__pow__", "__matmul__", "__and__", "__or__", "__xor__",
)  # fmt: skip
CONVERSIONS = (  # what the tests do with a value
    "__len__", "__iter__", "__next__", "__reversed__", "__getitem__", "__contains__", "__int__", "__float__",
    "__complex__", "__index__", "__bytes__", "__abs__", "__round__", "__neg__",
)  # fmt: skip
USES = ("__call__", "__enter__", "__exit__", "__aenter__", "__aexit__", "__aiter__", "__str__")
for _name in OPERATIONS:
    setattr(ProgramObject, _name, _operation(_name))
for _name in CONVERSIONS:
    setattr(ProgramObject, _name, lambda self, *_, _name=_name: self._refuse(_name))
for _name in USES:
    setattr(ProgramObject, _name, lambda self, *_, _name=_name: self._need(_name))

VALUE_METHODS = {
    name
    for kind in (str, bytes, list, dict, set, int, float, collections.deque)
    for name in dir(kind)
    if not name.startswith("_")
}


class ProgramEnd(BaseException):
    """The program gave no value: its process ended, or it raised what ends a process. No `except
    Exception` catches it.
    """


def named_tuple(exchange: Exchange, name: str, fields: list[str]) -> Callable[[list[Any]], Any]:
    """Return what makes a named tuple of the program: its fields are there, and to read more of it
    ends the tests.
    """
    kind = named_tuple_class(name, fields)
    if kind is tuple:
        return tuple

    def missing(_: Any, attribute: str) -> Any:
        exchange.give_up(
            f"they read {attribute} of a named tuple ({name}), of which only the fields are passed"
        )

    with_fields = type(name, (kind, StandIn), {"__read__": missing, "__slots__": ()})
    return lambda items: with_fields(*items)


def exception_of_program(
    exchange: Exchange, kinds: list[type[Exception]], message: str, args: list[Any] | None
) -> Exception:
    """Return an exception that belongs to all these classes, with the program's text and arguments;
    to read more of it ends the tests.
    """
    name = kinds[0].__name__

    def missing(_: Any, attribute: str) -> Any:
        exchange.give_up(f"they read {attribute} of its exception {name!r}")

    methods = {"__str__": lambda _: message, "__read__": missing}
    try:
        return make_exception(type(name, (*kinds, StandIn), methods), message, args)
    except TypeError:  # these classes have no order
        return make_exception(kinds[0], message, args)


def make_exception(kind: type[Exception], message: str, args: list[Any] | None) -> Exception:
    """Return an exception of a class, with these arguments (None: its text) and this text."""
    named = type(kind.__name__, (kind,), {"__str__": lambda _: message})
    error = _construct(kind, [message] if args is None else args)
    return error if str(error) == message else _construct(named, error.args)


def _construct(kind: type[Exception], args: Sequence[Any]) -> Exception:
    try:
        return kind(*args)
    except Exception:  # UnicodeDecodeError and others need what was not passed
        error = kind.__new__(kind)
        error.args = tuple(args)
        return error


def is_class_name(name: str) -> bool:
    """Return whether a name is a class's, as it is usually written; `Solution` holds
    functions (LeetCode).
    """
    return name.lstrip("_")[:1].isupper() and name != "Solution"
