"""The candidate's side of the exchange: it loads the program and answers calls. It runs in the
sandbox, beside hostile code.

Nothing here decides anything. It knows neither tests nor expected values, and what it answers is a
claim that the other side decodes and compares. It imports from the standard library alone, and no
more than each program must wait for.
"""

from __future__ import annotations

import os
import sys

from .values import (
    CARRIED,
    MAX_ITERATOR_ITEMS,
    Decoder,
    Encoder,
    ValueCodecError,
    make_array,
    named_tuple_maker,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

new_module = type(sys)

SOLUTION = "solution"  # the module name of the program that is tested
FILE_NAME = "<solution>"
OWN_REFERENCES = (
    2  # to a value that nothing but its variable refers to, as `sys.getrefcount` counts
)
MAX_TRACE = 8  # lines of a traceback that are sent
MAX_MESSAGE = 2000  # characters of an exception's message


def main(channel: Any) -> None:
    """Answer messages until there are none."""
    program = LoadedProgram()
    while (message := channel.receive()) is not None:
        channel.send(program.answer(message))
    os._exit(0)  # neither threads nor `atexit` of the program


class LoadedProgram:
    """The program, and what of it the other side knows by number."""

    def __init__(self) -> None:
        self.module = new_module(SOLUTION)
        self.solutions: dict[int, Any] = {}  # objects of the class Solution
        self.awaitables: dict[int, Any] = {}
        # the containers that were passed, by the number of the coroutine that has them
        self.arguments: dict[int, list[Any]] = {}
        self.tasks: dict[int, Any] = {}  # of asyncio, by the numbers of what is awaited
        self.runner: Any = None  # of asyncio: one event loop for all that is awaited

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return what became of a message: a value or an error."""
        try:
            return self.dispatch(message)
        except ValueCodecError as error:
            return {"refused": str(error)[:MAX_MESSAGE]}
        except BaseException as error:  # whatever the program raises, also SystemExit
            described = describe_error(error)
            if "back" in message:
                described["arguments"] = arguments_of(error)
            return {"error": described}

    def dispatch(self, message: dict[str, Any]) -> dict[str, Any]:
        match message:
            case {"load": code, "imports": imports}:
                return self.load(code, imports)
            case {"run": code, "stdin": stdin}:
                return self.run(code, stdin)
            case {"call": name, "args": args, "kwargs": kwargs}:
                function = find(self.module, name)
                return self.call(function, args, kwargs, back="back" in message)
            case {"attribute": path, "args": args, "kwargs": kwargs}:
                function = self.attribute(path, message.get("solution"))
                return self.call(function, args, kwargs, back=True)
            case {"attribute": path}:
                value = self.attribute(path, message.get("solution"))
                encoded = Encoder(self.refer).encode(value)
                return {"value": encoded, "lost": lost_class(value)}
            case {"await": numbers}:
                return self.wait_for(numbers)
            case {"awaited": number}:
                value = self.tasks.pop(number).result()
                return self.returned_value(value, self.arguments.pop(number, []))
        raise ValueError("unknown message")

    def attribute(self, path: str, solution: int | None) -> Any:
        """Return what the program has under a dotted name, or an object of its class Solution."""
        first, _, rest = path.partition(".")
        if solution is None:
            target = find(self.module, first)
        else:
            if solution not in self.solutions:
                self.solutions[solution] = find(self.module, "Solution")()
            target = getattr(self.solutions[solution], first)
        for name in rest.split(".") if rest else ():
            target = getattr(target, name)
        return target

    def load(self, code: str, imports: str) -> dict[str, Any]:
        """Run the program, after imports that are no part of it."""
        sys.modules[SOLUTION] = self.module
        exec(imports, vars(self.module))
        exec(compile(code, FILE_NAME, "exec", dont_inherit=True), vars(self.module))
        return {"value": None}

    def run(self, code: str, stdin: str) -> dict[str, Any]:
        """Run the program as a script that reads `stdin`."""
        feed_stdin(stdin.encode("utf-8", "surrogatepass"))
        self.module.__name__ = "__main__"
        sys.modules["__main__"] = self.module
        try:
            exec(compile(code, FILE_NAME, "exec", dont_inherit=True), vars(self.module))
        except SystemExit as error:
            if error.code not in (None, 0):
                raise
        finally:
            sys.stdout.flush()
        return {"value": None}

    def call(self, function: Any, args: Any, kwargs: Any, *, back: bool) -> dict[str, Any]:
        """Call a function and return its value; `back`: also what is in the containers that were
        passed, for test code.
        """
        decoder: Decoder = Decoder(
            None, lambda number: decoder.containers[number], make_array, named_tuple_maker
        )
        positional, named = decoder.decode(args), decoder.decode(kwargs)
        counts = [sys.getrefcount(each) for each in decoder.containers]
        value = function(*positional, **named)
        if not back:
            return {"value": Encoder(self.refer).encode(completed_value(value))}
        if type(value).__name__ == "coroutine":
            self.arguments[id(value)] = decoder.containers
        answer = self.returned_value(value, decoder.containers)
        now = [sys.getrefcount(each) for each in decoder.containers]
        kept = [n for n in range(len(now)) if now[n] > counts[n] and n != answer["same"]]
        is_kept = answer["same"] is None and sys.getrefcount(value) > OWN_REFERENCES
        return {**answer, "kept": [*kept, -1] if is_kept else kept}

    def returned_value(self, value: Any, containers: list[Any]) -> dict[str, Any]:
        """Return a value with the class that it loses, what is now in the containers that were
        passed, and which of them it is.
        """
        same = next((n for n, container in enumerate(containers) if container is value), None)
        return {
            "value": Encoder(self.refer).encode(value),
            "lost": lost_class(value),
            "contents": self.contents(containers),
            "same": same,
        }

    def wait_for(self, numbers: list[int]) -> dict[str, Any]:
        """Run what is awaited to its end, all of it at the same time. Return whether the program
        has other tasks that go on.
        """
        import asyncio

        async def wait() -> bool:
            for number in numbers:
                value = self.awaitables.pop(number)
                awaited = items_of(value) if type(value).__name__ == "async_generator" else value
                self.tasks[number] = asyncio.ensure_future(awaited)
            await asyncio.wait([self.tasks[number] for number in numbers])
            return len(asyncio.all_tasks()) > 1

        self.runner = self.runner or asyncio.Runner()
        return {"value": self.runner.run(wait())}

    def contents(self, containers: Any) -> Any:
        """Return what is after the call in the lists and the like that were passed: the program may
        have changed them.
        """
        try:
            return Encoder(self.refer).encode_contents(containers)
        except ValueCodecError:
            return None

    def refer(self, value: Any) -> Any:
        """Return that there is an object which cannot be passed by value: the name of its class, a
        number if it is awaited, and whether it can be called.
        """
        kind, number = type(value), None
        if hasattr(kind, "__await__") or kind.__name__ == "async_generator":
            number = id(value)
            self.awaitables[number] = value  # kept alive: no other object gets the number
        return {"t": "object", "v": [kind.__name__[:80], number, callable(value)]}


def lost_class(value: Any) -> str:
    """Return the name of the class of a value that arrives as one of another class; "" for none."""
    kind = type(value)
    is_carried = kind.__module__ in CARRIED or kind.__name__ == "deque" or hasattr(kind, "_fields")
    return "" if is_carried else str(kind.__name__)[:80]


def completed_value(value: Any) -> Any:
    """Return what a coroutine returns, or the list of what an asynchronous generator yields; other
    values as they are.
    """
    if type(value).__name__ not in ("coroutine", "async_generator"):
        return value
    import asyncio

    return asyncio.run(value if type(value).__name__ == "coroutine" else items_of(value))


async def items_of(generator: Any) -> list[Any]:
    """Return what an asynchronous generator yields. Raises ValueCodecError if that is too much."""
    found = []
    async for item in generator:
        found.append(item)
        if len(found) > MAX_ITERATOR_ITEMS:
            raise ValueCodecError(f"an iterator yields more than {MAX_ITERATOR_ITEMS:,} values")
    return found


def find(module: ModuleType, name: str) -> Any:
    """Return the function of a name, "Class.method" for a method of a new object; else a method of
    the class Solution.
    """
    first, _, rest = name.partition(".")
    if not hasattr(module, first):
        solution = getattr(module, "Solution", None)
        if isinstance(solution, type) and hasattr(solution, name):
            return getattr(solution(), name)
        raise NameError(f"name {name!r} is not defined")
    target = getattr(module, first)
    return getattr(target() if isinstance(target, type) else target, rest) if rest else target


def feed_stdin(data: bytes) -> None:
    """Let file descriptor 0 and `sys.stdin` read `data`."""
    import io
    import threading

    readable, writable = os.pipe()

    def write() -> None:
        with open(writable, "wb") as pipe:
            try:
                pipe.write(data)
            except OSError:  # the program did not read all
                pass

    os.dup2(readable, 0)
    os.close(readable)
    threading.Thread(target=write, daemon=True).start()
    sys.stdin = io.TextIOWrapper(
        open(0, "rb", closefd=False), encoding="utf-8", errors="surrogateescape"
    )


def describe_error(error: BaseException) -> dict[str, Any]:
    """Return the type of an exception, its bases, its message and the lines of the program that led
    to it.
    """
    try:
        message = str(error)[:MAX_MESSAGE]
    except BaseException:  # a hostile __str__
        message = ""
    names = [kind.__name__ for kind in type(error).__mro__ if kind is not object]
    return {
        "types": [str(name)[:80] for name in names[:20]],
        "message": message,
        "trace": trace_of(error),
    }


def arguments_of(error: BaseException) -> Any:
    """Return the arguments of an exception; None if they cannot be passed by value."""
    try:
        return Encoder().encode(list(error.args))
    except BaseException:  # a hostile property
        return None


def trace_of(error: BaseException) -> list[list[Any]]:
    """Return [line, function] of the program's frames, the innermost last."""
    if isinstance(error, SyntaxError) and error.filename == FILE_NAME:
        return [[error.lineno or 0, ""]]
    lines = []
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if code.co_filename == FILE_NAME:
            lines.append([traceback.tb_lineno, str(code.co_name)[:80]])
            if len(lines) > 2 * MAX_TRACE:
                del lines[MAX_TRACE]
        traceback = traceback.tb_next
    return lines
