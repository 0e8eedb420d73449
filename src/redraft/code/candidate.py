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
    ABILITIES,
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
    """The program, and the objects of it that the other side knows by number."""

    def __init__(self) -> None:
        self.module = new_module(SOLUTION)
        self.objects: dict[int, Any] = {}
        self.arguments: dict[
            int, list[Any]
        ] = {}  # the containers that were passed, by the number of the coroutine that has them
        self.tasks: dict[
            int, Any
        ] = {}  # of asyncio, by the numbers of the objects that are awaited
        self.runner: Any = None  # of asyncio: one event loop for all that is awaited

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return what became of a message: a value or an error."""
        try:
            return self.dispatch(message)
        except BaseException as error:  # whatever the program raises, also SystemExit
            described = describe_error(error)
            if "back" in message:
                self.objects[id(error)] = error
                described["object"] = id(error)
            return {"error": described}

    def dispatch(self, message: dict[str, Any]) -> dict[str, Any]:
        match message:
            case {"load": code, "imports": imports}:
                return self.load(code, imports)
            case {"run": code, "stdin": stdin}:
                return self.run(code, stdin)
            case {"call": name, "args": args, "kwargs": kwargs}:
                return self.call(
                    find(self.module, name),
                    args,
                    kwargs,
                    back="back" in message,
                    reference="reference" in message,
                )
            case {"operator": name, "args": args}:
                return self.call(operator_of(name), args, {"t": "dict", "v": []}, back=True)
            case {"method": name, "object": number, "args": args, "kwargs": kwargs}:
                return self.call(getattr(self.objects[number], name), args, kwargs, back=True)
            case {"await": numbers}:
                return self.wait_for(numbers)
            case {"awaited": number}:
                containers = self.arguments.pop(number, [])
                return self.returned_value(
                    self.tasks.pop(number).result(), containers, reference=True
                )
            case {"attribute": name, "object": number}:
                return self.value(getattr(self.objects[number], name))
            case {"attribute": path}:
                target: Any = self.module
                for name in path.split("."):
                    target = getattr(target, name)
                return (
                    self.value_with_reference(target)
                    if "reference" in message
                    else self.value(target)
                )
        raise ValueError("unknown message")

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

    def call(
        self, function: Any, args: Any, kwargs: Any, *, back: bool, reference: bool = False
    ) -> dict[str, Any]:
        """Call a function and return its value; `back`: also what is in the containers that were
        passed, for test code.
        """
        decoder: Decoder = Decoder(
            self.object_of, lambda number: decoder.containers[number], make_array, named_tuple_maker
        )
        positional, named = decoder.decode(args), decoder.decode(kwargs)
        counts = [sys.getrefcount(each) for each in decoder.containers]
        value = function(*positional, **named)
        if not back:
            return self.value(completed_value(value))
        if type(value).__name__ == "coroutine":
            self.arguments[id(value)] = decoder.containers
        answer = self.returned_value(value, decoder.containers, reference=reference)
        now = [sys.getrefcount(each) for each in decoder.containers]
        kept = [n for n in range(len(now)) if now[n] > counts[n] and n != answer["same"]]
        is_kept = answer["same"] is None and sys.getrefcount(value) > OWN_REFERENCES
        return {**answer, "kept": [*kept, -1] if is_kept else kept}

    def returned_value(
        self, value: Any, containers: list[Any], *, reference: bool
    ) -> dict[str, Any]:
        """Return a value, with what is now in the containers that were passed, and which of them it
        is.
        """
        same = next((n for n, container in enumerate(containers) if container is value), None)
        answer = self.value_with_reference(value) if reference else self.value(value)
        return {**answer, "contents": self.contents(containers), "same": same}

    def wait_for(self, numbers: list[int]) -> dict[str, Any]:
        """Run what is awaited to its end, all of it at the same time. Return whether the program
        has other tasks that go on.
        """
        import asyncio

        async def wait() -> bool:
            self.tasks |= {
                number: asyncio.ensure_future(self.objects[number]) for number in numbers
            }
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

    def value(self, value: Any) -> dict[str, Any]:
        try:
            return {"value": Encoder(self.refer).encode(value)}
        except ValueCodecError as error:
            return {"refused": str(error)[:MAX_MESSAGE]}

    def value_with_reference(self, value: Any) -> dict[str, Any]:
        """Return a value; with it a reference if it is of a class of the program that is derived
        from a built-in one.

        If that class has operators of its own, there is only the reference.
        """
        kinds = [kind for kind in type(value).__mro__ if kind.__module__ == SOLUTION]
        if not kinds:
            return self.value(value)
        reference = self.refer(value)
        if any(name in vars(kind) for kind in kinds for name in ABILITIES if name != "__hash__"):
            return {"value": reference}
        answer = self.value(value)
        return answer if answer.get("value") == reference else {**answer, "reference": reference}

    def refer(self, value: Any) -> Any:
        """Return a number for an object of one of the program's classes, or for a function."""
        number = id(value)
        self.objects[number] = value  # kept alive: no other object gets the number
        return {"t": "object", "v": [number, type(value).__name__[:80], abilities_of(value)]}

    def object_of(self, content: Any) -> Any:
        return self.objects[content[0]]


def abilities_of(value: Any) -> list[str]:
    """Return which special methods the class of an object has, and to which abstract classes the
    object belongs.
    """
    import _collections_abc as abstract

    methods: dict[str, Any] = {"__hash__": object.__hash__}
    for kind in type(value).__mro__[-2::-1]:  # without `object`
        methods.update({name: vars(kind)[name] for name in ABILITIES if name in vars(kind)})
    classes = (name for name in ABILITIES if not name.startswith("__"))
    belongs = [name for name in classes if isinstance(value, getattr(abstract, name))]
    return [
        *(name for name, method in methods.items() if name.startswith("__") and method is not None),
        *belongs,
    ]


def operator_of(name: str) -> Any:
    """Return the function of the operator; built-in functions count."""
    import _operator
    import builtins

    return getattr(builtins, name) if name in ("hash", "len", "iter") else getattr(_operator, name)


def completed_value(value: Any) -> Any:
    """Return what a coroutine returns, or the list of what an asynchronous generator yields; other
    values as they are.
    """
    if type(value).__name__ not in ("coroutine", "async_generator"):
        return value
    import asyncio

    async def items() -> list[Any]:
        found = []
        async for item in value:
            found.append(item)
            if len(found) > MAX_ITERATOR_ITEMS:
                raise ValueCodecError(f"an iterator yields more than {MAX_ITERATOR_ITEMS:,} values")
        return found

    return asyncio.run(value if type(value).__name__ == "coroutine" else items())


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
