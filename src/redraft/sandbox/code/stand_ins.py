"""What stands for the program where the test code runs: its module, its functions, and its objects.

Only values cross between the two sandboxes. A function is called by its name, with values. An
object that is no value stays where it is, and a `ProgramObject` says here that there is one. What
needs the object itself ends the tests without a score: an attribute or a call of it, `with`, its
text, another object beside it. A test fails that uses it as a value, and none passes that was given
one (`Part.check_objects`). So no object of the program takes the part of a value, and none is
judged by what only its class could say.

The object of `Solution()` is the exception: the program keeps it, and its methods are called with
values.

The file runs in a sandbox and imports from the standard library alone.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NoReturn, Protocol

from .values import named_tuple_class


class Exchange(Protocol):
    """What a stand-in needs of the exchange with the program."""

    asks_for_repr: bool  # whether the test code calls `repr`
    exceptions: dict[str, type[Exception]]  # classes that stand for those of the program

    def look_up(self, path: str, solution: int | None = None) -> Any:
        """Return what the program has under a dotted name. Raises NameError or AttributeError."""
        ...

    def call(
        self, name: str, request: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Send a call out with its arguments and return the value. Raises what the program
        raised.
        """
        ...

    def solution(self) -> ProgramSolution:
        """Return what stands for a new object of the class Solution."""
        ...

    def fail(self, problem: str) -> BaseException:
        """Let the test fail, whatever it makes of the error. Return the error to raise."""
        ...

    def give_up(self, reason: str) -> NoReturn:
        """End the tests: what they say of the program cannot be known apart from it."""
        ...


class ProgramFunction:
    """A function or class of the program, by its name; `request` is what asks for a call of it."""

    def __init__(self, driver: Exchange, name: str, request: dict[str, Any]) -> None:
        vars(self).update(_driver=driver, _request=request, __name__=name, __qualname__=name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.__name__ == "Solution" and not args and not kwargs:
            return self._driver.solution()
        return self._driver.call(self.__name__, self._request, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._driver.look_up(f"{self.__name__}.{name}")

    def __setattr__(self, name: str, value: Any) -> None:
        self._driver.give_up(f"they set {name} of {self.__name__}")

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ProgramFunction):
            return bool(self._request == other._request)
        self._driver.look_up(self.__name__)  # they expect a constant, and ask for it
        return False

    def __hash__(self) -> int:
        return hash(self.__name__)

    def _use_items(self, *_: Any) -> Any:
        self._driver.give_up(f"they use {self.__name__} as a collection")

    __getitem__ = __iter__ = __len__ = __contains__ = _use_items

    def __bool__(self) -> bool:
        return True


class ProgramSolution:
    """The object of a call `Solution()`, which the program keeps under a number."""

    def __init__(self, driver: Exchange, number: int) -> None:
        vars(self).update(_driver=driver, _number=number)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._driver.look_up(name, self._number)

    def __setattr__(self, name: str, value: Any) -> None:
        self._driver.give_up(f"they set {name} of an object of its class 'Solution'")


class ProgramModule(ModuleType):
    """The module that the test code imports the program from."""

    def __init__(self, driver: Exchange, name: str) -> None:
        super().__init__(name)
        self._driver = driver

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return self._driver.exceptions.get(name) or self._driver.look_up(name)
        except NameError as error:
            raise AttributeError(str(error)) from None

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_") and not isinstance(value, ModuleType):
            self._driver.give_up(f"they change {name} of the program")
        super().__setattr__(name, value)


class ProgramObject:
    """An object of the program that is no value, of which only the name of its class is here."""

    def __init__(self, driver: Exchange, kind: str, awaited: Callable[[], Any] | None) -> None:
        self._driver = driver
        self._kind = kind
        self._awaited = awaited

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in VALUE_METHODS:
            self._refuse(name)
        self._need(name)

    def __await__(self) -> Any:
        return self._awaited().__await__() if self._awaited else self._need("__await__")

    def __repr__(self) -> str:
        if self._driver.asks_for_repr:  # otherwise it stands in a message
            self._need("__repr__")
        return f"<{self._kind} object of the program>"

    def __format__(self, _: str) -> str:
        return repr(self)

    __hash__ = object.__hash__

    def _refuse(self, what: str) -> NoReturn:
        raise self._driver.fail(
            f"the program gave an object of its class {self._kind!r} where the tests use a "
            f"built-in value ({what})"
        )

    def _need(self, what: str) -> NoReturn:
        self._driver.give_up(f"they use {what} of an object of its class {self._kind!r}")


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


def named_tuple(driver: Exchange, name: str, fields: list[str]) -> Callable[[list[Any]], Any]:
    """Return what makes a named tuple of the program: its fields are there, and to read more of it
    ends the tests.
    """
    kind = named_tuple_class(name, fields)
    if kind is tuple:
        return tuple

    def missing(_: Any, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        driver.give_up(
            f"they read {attribute} of a named tuple ({name}), of which only the fields are passed"
        )

    with_fields = type(name, (kind,), {"__getattr__": missing, "__slots__": ()})
    return lambda items: with_fields(*items)


def exception_of_program(
    driver: Exchange, kinds: list[type[Exception]], message: str, args: list[Any] | None
) -> Exception:
    """Return an exception that belongs to all these classes, with the program's text and arguments;
    to read more of it ends the tests.
    """
    name = kinds[0].__name__

    def missing(_: Any, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        driver.give_up(f"they read {attribute} of its exception {name!r}")

    methods = {"__str__": lambda _: message, "__getattr__": missing}
    try:
        return make_exception(type(name, tuple(kinds), methods), message, args)
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
    """Return whether a name is that of a class, as it is usually written; `Solution` holds
    functions (LeetCode).
    """
    return name.lstrip("_")[:1].isupper() and name != "Solution"
