"""The candidate's side of the exchange: it loads the program and answers calls. It runs in the sandbox, beside hostile code.

Nothing here decides anything. It knows neither tests nor expected values, and what it answers is a claim that the other side
decodes and compares. It imports from the standard library alone, and no more than each program must wait for.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

new_module = type(sys)

SOLUTION = "solution"  # the module name of the program that is tested
FILE_NAME = "<solution>"
MAX_TRACE = 8  # lines of a traceback that are sent
MAX_MESSAGE = 2000  # characters of an exception's message


def main(values: ModuleType, channel: Any) -> None:
    """Answer messages until there are none; `values` is the module of that name."""
    program = LoadedProgram(values)
    while (message := channel.receive()) is not None:
        channel.send(program.answer(message))
    os._exit(0)  # neither threads nor `atexit` of the program


class LoadedProgram:
    """The program, and the objects of it that the other side knows by number."""

    def __init__(self, values: ModuleType) -> None:
        self.values = values
        self.module = new_module(SOLUTION)
        self.objects: dict[int, Any] = {}

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return what became of a message: a value or an error."""
        try:
            return self.dispatch(message)
        except BaseException as error:  # whatever the program raises, also SystemExit
            return {"error": describe_error(error)}

    def dispatch(self, message: dict[str, Any]) -> dict[str, Any]:
        match message:
            case {"load": code}:
                return self.load(code)
            case {"run": code, "stdin": stdin}:
                return self.run(code, stdin)
            case {"call": name, "args": args, "kwargs": kwargs}:
                return self.call(find(self.module, name), args, kwargs, back="back" in message)
            case {"method": name, "object": number, "args": args, "kwargs": kwargs}:
                return self.call(getattr(self.objects[number], name), args, kwargs, back=True)
            case {"attribute": name, "object": number}:
                return self.value(getattr(self.objects[number], name))
            case {"attribute": name}:
                return self.value(getattr(self.module, name))
        raise ValueError("unknown message")

    def load(self, code: str) -> dict[str, Any]:
        sys.modules[SOLUTION] = self.module
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
        decoder = self.values.Decoder(self.object_of)
        positional, named = decoder.decode(args), decoder.decode(kwargs)
        value = function(*positional, **named)
        if type(value).__name__ == "coroutine":
            import asyncio

            value = asyncio.run(value)
        return {**self.value(value), "arguments": self.encoded_arguments(positional)} if back else self.value(value)

    def encoded_arguments(self, positional: Any) -> Any:
        """Return the arguments after the call, which may have changed lists and dictionaries among them."""
        try:
            return self.values.Encoder(self.refer).encode(positional)
        except self.values.ValueCodecError:
            return None

    def value(self, value: Any) -> dict[str, Any]:
        try:
            return {"value": self.values.Encoder(self.refer).encode(value)}
        except self.values.ValueCodecError as error:
            return {"refused": str(error)[:MAX_MESSAGE]}

    def refer(self, value: Any) -> Any:
        """Return a number for an object of one of the program's classes, or for a function."""
        number = id(value)
        self.objects[number] = value  # kept alive: no other object gets the number
        return {"t": "object", "v": [number, type(value).__name__[:80]]}

    def object_of(self, content: Any) -> Any:
        return self.objects[content[0]]


def find(module: ModuleType, name: str) -> Any:
    """Return the function of a name, "Class.method" for a method of a new object; else a method of the class Solution."""
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
    sys.stdin = io.TextIOWrapper(open(0, "rb", closefd=False), encoding="utf-8", errors="surrogateescape")


def describe_error(error: BaseException) -> dict[str, Any]:
    """Return the type of an exception, its bases, its message and the lines of the program that led to it."""
    try:
        message = str(error)[:MAX_MESSAGE]
    except BaseException:  # a hostile __str__
        message = ""
    names = [kind.__name__ for kind in type(error).__mro__ if kind is not object]
    return {"types": [str(name)[:80] for name in names[:20]], "message": message, "trace": trace_of(error)}


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
