"""What stands for the objects of the candidate where the test code runs: its module, its functions
and classes, and its objects.

An object that cannot be passed by value is a `RemoteObject`, which forwards methods, and operators
between two objects of the candidate. With a value of the test code it is never equal, since no code
of the candidate may say whether an expected value is right; if the test code itself calls the
object's class by name, and the class compares, the outcome is unknown. For the same reason an
object cannot take the part of a built-in value, whose methods and conversions the tests trust: it
is asked for its length, items, truth or number, and for the methods of built-in types, only if the
test code calls its class by name. Its proxy has the special methods that its own class has, so that
`callable` and `isinstance(..., Iterable)` answer as they would in one process.

The file runs in a sandbox and imports from the standard library alone.
"""

from __future__ import annotations

import builtins
import collections.abc
import operator
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any, NoReturn, Protocol

from .values import named_tuple_class


class Exchange(Protocol):
    """What proxies need of the exchange with the candidate. What asks the candidate raises what it
    raised.
    """

    part: Any  # the test that runs; None outside of tests
    classes: set[str]  # of the candidate, that the test code has called by name
    exceptions: dict[str, type[Exception]]  # classes that stand for those of the candidate

    def ask(self, request: dict[str, Any]) -> Any:
        """Send a request out and return the answer."""
        ...

    def call(self, request: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Send a call out with its arguments and return the value."""
        ...

    def operate(self, name: str, *operands: Any) -> Any:
        """Let the candidate apply an operator of the module `operator`, or a built-in function, and
        return the value.
        """
        ...

    def attribute(self, number: int, name: str) -> Any:
        """Return an attribute of an object of the candidate."""
        ...

    def look_up(self, name: str) -> Any:
        """Return a constant of the candidate, or what stands for its function or class of that
        name, or for nothing.
        """
        ...

    def decode(self, data: Any) -> Any:
        """Return a value that was sent."""
        ...

    def decode_with_reference(self, answer: dict[str, Any]) -> Any:
        """Return the value of an answer; what also is an object of the candidate can be asked for
        its attributes.
        """
        ...

    async def result_of(self, remote: RemoteObject, *, ends: bool = False) -> Any:
        """Return what an object of the candidate gives that is awaited; with `ends`,
        StopAsyncIteration is raised here as well.
        """
        ...

    def remote_object(self, content: Any) -> Any:
        """Return the proxy of an object: `content` is its number, the name of its class, and its
        special methods.
        """
        ...

    def fail(self, problem: str) -> BaseException:
        """Let the test fail. Return the error to raise."""
        ...

    def give_up(self, reason: str) -> NoReturn:
        """End the tests: what they say of the candidate cannot be known."""
        ...


class CandidateFunction:
    """A function or class of the candidate, by its name."""

    def __init__(self, driver: Exchange, name: str, number: int | None = None) -> None:
        self._driver = driver
        self._number = number
        self.__name__ = self.__qualname__ = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._driver.call({"call": self.__name__}, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if is_class_name(self.__name__):
            self._driver.classes.add(self.__name__)
        path = f"{self.__name__}.{name}"
        return self._driver.decode_with_reference(
            self._driver.ask({"attribute": path, "reference": True})
        )

    def __eq__(self, other: object) -> bool:
        if not is_remote(other):
            self._driver.ask({"attribute": self.__name__})
        return isinstance(other, CandidateFunction) and self.__name__ == other.__name__

    def __deepcopy__(self, memo: Any) -> CandidateFunction:
        return self

    def __hash__(self) -> int:
        return hash(self.__name__)

    def is_callable(self) -> bool:
        """Return whether the candidate has a function or class of this name; outside of a test,
        nobody is asked.
        """
        if self._driver.part is None:
            return True
        found = self._driver.ask({"attribute": self.__name__})["value"]
        return isinstance(found, dict) and found["t"] == "object" and "__call__" in found["v"][2]


class CandidateCollection(CandidateFunction):
    """A class of the candidate that has items, such as an enumeration."""

    def __getitem__(self, key: Any) -> Any:
        return self._driver.operate("getitem", self, key)

    def __iter__(self) -> Any:
        return iter(self._driver.operate("iter", self))

    def __len__(self) -> int:
        return int(self._driver.operate("len", self))

    def __contains__(self, item: Any) -> bool:
        return bool(self._driver.operate("contains", self, item))

    def __bool__(self) -> bool:
        return True


class MissingName(CandidateFunction):
    """A name that the candidate does not define, or cannot: whoever uses it gets the error."""

    def ask(self, *_: Any) -> Any:
        self._driver.ask({"attribute": self.__name__})
        raise self._driver.fail(f"the program has no constant {self.__name__}")

    def __eq__(self, other: object) -> bool:
        return bool(self.ask())

    __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __len__ = __iter__ = __getitem__ = __contains__ = (
        ask
    )
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __mod__ = (
        __int__
    ) = __float__ = __index__ = ask

    def __bool__(self) -> bool:
        return True

    def __hash__(self) -> int:
        return hash(self.__name__)


class CandidateEnd(BaseException):
    """The candidate gave no value: its process ended, or it raised what ends a process. No `except
    Exception` catches it.
    """


class CandidateModule(ModuleType):
    """The module that the test code imports the candidate from."""

    def __init__(self, driver: Exchange, name: str) -> None:
        super().__init__(name)
        self._driver = driver

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        exceptions = self._driver.exceptions
        return exceptions[name] if name in exceptions else self._driver.look_up(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_") and not isinstance(value, ModuleType):
            self._driver.give_up(f"they change {name} of the program")
        super().__setattr__(name, value)


class RemoteObject:
    """An object of the candidate. Its methods and attributes are the candidate's; comparisons only
    with other objects of it.
    """

    _is_constructed = False  # the test code itself called its class

    def __init__(self, driver: Exchange, number: int, name: str) -> None:
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

    def __delattr__(self, name: str) -> None:
        forward(self, "__delattr__", name)

    def __eq__(self, other: object) -> Any:
        return compare(self, other, "eq")

    def __ne__(self, other: object) -> Any:
        return compare(self, other, "ne")

    def __deepcopy__(self, memo: Any) -> RemoteObject:
        return self

    def __hash__(self) -> int:
        if "__eq__" not in type(self).abilities:
            return hash(self._content[0])
        return hash(self._driver.operate("hash", self))

    def __bool__(self) -> bool:
        driver, (_, name) = self._driver, self._content
        if name not in driver.classes:
            return True
        if "__bool__" in type(self).abilities:
            return bool(forward(self, "__bool__") is True)
        return "__len__" not in type(self).abilities or bool(forward(self, "__len__"))

    abilities: tuple[str, ...] = ()


def refer(value: Any) -> Any:
    """Return what is sent in place of a proxy; None if the value is none, or has no object."""
    if isinstance(value, RemoteObject):
        _, number, name = parts_of(value)
        return {"t": "object", "v": [number, name, []]}
    if (
        isinstance(value, CandidateFunction)
        and (number := object.__getattribute__(value, "_number")) is not None
    ):
        return {"t": "object", "v": [number, value.__name__, []]}
    return None


def is_constructed(value: Any) -> bool:
    return not isinstance(value, RemoteObject) or bool(
        object.__getattribute__(value, "_is_constructed")
    )


def is_remote(value: Any) -> bool:
    return isinstance(value, RemoteObject | CandidateFunction) or hasattr(
        type(value), "refers_to_the_candidate"
    )


def parts_of(remote: RemoteObject) -> tuple[Exchange, int, str]:
    """Return the driver of a proxy, the number of its object, and the name of the object's
    class.
    """
    return object.__getattribute__(remote, "_driver"), *object.__getattribute__(remote, "_content")


def compare(remote: RemoteObject, other: Any, name: str) -> Any:
    """Compare two objects of the candidate by its code; with another value it has no say."""
    (driver, _, kind), abilities = parts_of(remote), type(remote).abilities
    if is_remote(other):
        theirs = type(other).abilities if isinstance(other, RemoteObject) else ("__eq__",)
        if not {"__eq__", "__ne__"} & {*abilities, *theirs}:
            return (remote is other) is (name == "eq")
        return driver.operate(name, remote, other)
    if {"__eq__", "__ne__"} & set(abilities) and kind in driver.classes and other is not None:
        driver.give_up(
            f"they compare an object of the program's class {kind!r} with a value of another class"
        )
    return name == "ne"


def operation(name: str, *, is_reflected: bool = False) -> Any:
    """Return an operator of a proxy. A value of the test code goes to the candidate only if the
    test code made the object.
    """

    def operate(remote: RemoteObject, *others: Any) -> Any:
        driver, _, kind = parts_of(remote)
        if not all(is_remote(other) for other in others):
            check_is_asked(remote, name)
            if name in ORDER or not is_constructed(remote):
                driver.give_up(
                    f"they pass a value to an operator ({name}) of an object of the program's "
                    f"class {kind!r}"
                )
        return driver.operate(
            name, *((*others[::-1], remote) if is_reflected else (remote, *others))
        )

    return operate


def value_object(driver: Exchange, value: Any, number: int, name: str, abilities: list[str]) -> Any:
    """Return a value that also is an object of a class of the candidate, derived from a built-in
    one.

    One that cannot be changed stays the value, with the attributes of the object. Of another one
    only the object is used.
    """
    base: Any = tuple if isinstance(value, tuple) else type(value)
    if base not in (int, float, str, tuple, frozenset, bytes):
        return driver.remote_object([number, name, abilities])
    reference = {"t": "object", "v": [number, name, []]}
    attributes = {
        "refers_to_the_candidate": reference,
        "__getattr__": lambda _, attribute: driver.attribute(number, attribute),
        "__str__": lambda _: driver.call({"method": "__str__", "object": number}, (), {}),
        "__repr__": lambda _: driver.call({"method": "__repr__", "object": number}, (), {}),
    }
    return type(name if name in driver.classes else base.__name__, (base,), attributes)(value)


def named_tuple(driver: Exchange, name: str, fields: list[str]) -> Callable[[list[Any]], Any]:
    """Return what makes a named tuple of the candidate: its fields are there, and to read more of
    it ends the tests.

    An object of the candidate does not take the part of a method of a built-in value.
    """
    kind = named_tuple_class(name, fields)

    def missing(_: Any, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        driver.give_up(
            f"they read {attribute} of a named tuple ({name}), of which only the fields are passed"
        )

    with_fields = (
        type(name, (kind,), {"__getattr__": missing, "__slots__": ()})
        if kind is not tuple
        else tuple
    )

    def make(items: list[Any]) -> Any:
        is_method = any(
            f in VALUE_METHODS and isinstance(item, RemoteObject)
            for f, item in zip(fields, items, strict=True)
        )
        return tuple(items) if is_method or with_fields is tuple else with_fields(*items)

    return make


def exception_of_candidate(
    driver: Exchange, kinds: list[type[Exception]], message: str, number: int
) -> Exception:
    """Return an exception that belongs to all these classes, and whose attributes are those of the
    candidate's.
    """
    methods = {
        "__str__": lambda _: message,
        "__getattr__": lambda _, name: driver.attribute(number, name),
        "args": property(lambda _: driver.attribute(number, "args")),
    }
    try:
        return make_exception(type(kinds[0].__name__, tuple(kinds), methods), message)
    except TypeError:  # these classes have no order
        return make_exception(kinds[0], message)


def make_exception(kind: type[Exception], message: str) -> Exception:
    """Return an exception of a class, with this text."""
    if kind is KeyError:  # its text is that of its argument, quoted
        kind = type("KeyError", (KeyError,), {"__str__": lambda _: message})
    try:
        return kind(message)
    except TypeError:  # UnicodeDecodeError and others need more
        error = kind.__new__(kind)
        error.args = (message,)
        return error


@cache
def proxy_class(abilities: tuple[str, ...], name: str = "RemoteObject") -> type[RemoteObject]:
    """Return the class of proxies for objects with these special methods, of these abstract
    classes.
    """
    methods: dict[str, Any] = {each: METHODS[each] for each in abilities if each in METHODS}
    hashing = {} if "__hash__" in abilities else {"__hash__": None}
    methods |= COROUTINE_METHODS if "Coroutine" in abilities else {}
    kind: type[RemoteObject] = type(
        name, (RemoteObject,), {**methods, **hashing, "abilities": abilities}
    )
    for ability in abilities:
        if not ability.startswith("__"):
            getattr(collections.abc, ability).register(kind)
    return kind


def forward(remote: RemoteObject, method: str, *args: Any, **kwargs: Any) -> Any:
    driver, number, _ = parts_of(remote)
    return driver.call({"method": method, "object": number}, args, kwargs)


VALUE_METHODS = {
    name
    for kind in (str, bytes, list, dict, set, int, float)
    for name in dir(kind)
    if not name.startswith("_")
}
CONVERSIONS = (
    "len", "getitem", "setitem", "delitem", "iter", "next", "int", "float", "index", "complex", "bytes", "abs", "round", "reversed",  # noqa: E501
    "contains",
)  # fmt: skip


def is_class_name(name: str) -> bool:
    """Return whether a name is that of a class, as it is usually written; `Solution` holds
    functions (LeetCode).
    """
    return name.lstrip("_")[:1].isupper() and name != "Solution"


def check_is_asked(remote: RemoteObject, method: str) -> None:
    """Fail the part if an object of another class than the test code knows is taken for a built-in
    value.
    """
    driver, _, name = parts_of(remote)
    if name not in driver.classes:
        raise driver.fail(
            f"the program gave an object of its class {name!r} where the tests use a built-in "
            f"value ({method})"
        )


def forwarding_method(method: str, *, is_conversion: bool) -> Any:
    def forwarding(self: RemoteObject, *args: Any, **kwargs: Any) -> Any:
        if is_conversion:
            check_is_asked(self, method)
        # not for it to suppress
        if method in ("__exit__", "__aexit__") and type(args[1]) in (AssertionError, CandidateEnd):
            raise parts_of(self)[0].fail(f"AssertionError: {args[1]}".removesuffix(": "))
        return forward(self, method, *args, **kwargs)

    return forwarding


def await_remote(remote: RemoteObject) -> Any:
    return parts_of(remote)[0].result_of(remote).__await__()


async def next_of_remote(remote: RemoteObject) -> Any:
    return await parts_of(remote)[0].result_of(forward(remote, "__anext__"), ends=True)


def coroutine_method(name: str) -> Any:
    """Return a method of a coroutine, which `asyncio` calls; a coroutine of this process waits for
    that of the candidate.
    """

    def call(remote: RemoteObject, *args: Any) -> Any:
        if "_coroutine" not in vars(remote):
            object.__setattr__(remote, "_coroutine", parts_of(remote)[0].result_of(remote))
        return getattr(vars(remote)["_coroutine"], name)(*args)

    return call


COROUTINE_METHODS = {
    **{name: coroutine_method(name) for name in ("send", "throw", "close")},
    # not asked for
    **dict.fromkeys(
        f"{kind}_{part}" for kind in ("cr", "gi") for part in ("frame", "code", "await", "running")
    ),
}


ORDER = ("lt", "le", "gt", "ge")
BINARY = (
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "matmul",
    "and",
    "or",
    "xor",
    "lshift",
    "rshift",
)


def operator_name(name: str) -> str:
    """Return the name in the module `operator`, where words of the language end with an
    underscore.
    """
    return name if hasattr(operator, name) else f"{name}_"


METHODS = {
    **{
        f"__{name}__": operation(operator_name(name))
        for name in (*ORDER, *BINARY, "neg", "pos", "invert")
    },
    **{f"__i{name}__": operation(f"i{name}") for name in BINARY},
    **{f"__r{name}__": operation(operator_name(name), is_reflected=True) for name in BINARY},
    **{f"__{name}__": forwarding_method(f"__{name}__", is_conversion=True) for name in CONVERSIONS},
    **{
        f"__{name}__": forwarding_method(f"__{name}__", is_conversion=False)
        for name in ("call", "enter", "exit", "aenter", "aexit", "aiter")
    },
    "__await__": await_remote,
    "__anext__": next_of_remote,
}
"""Special methods of proxies, of which each has those that the class of its object has.

Operators that take a value of the test code beside the object would tell the candidate what is
expected: see `operation`.
"""

for _method in ("__str__", "__repr__"):
    setattr(RemoteObject, _method, forwarding_method(_method, is_conversion=False))


def is_callable(value: Any, built_in: Any = builtins.callable) -> bool:
    """Return what `callable` does; of a name of the candidate it asks the candidate."""
    return value.is_callable() if isinstance(value, CandidateFunction) else bool(built_in(value))
