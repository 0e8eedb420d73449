"""Run the `redraft` command inside the test process as it would run in a process of its own.

Starting an interpreter and importing the libraries takes ten times as long as most commands, so a
command runs here unless its test is about a process. It gets its own file descriptors 0, 1 and 2,
environment, folder, contextvars, warning filters and log handlers; its changes to them are undone.
"""

import logging
import os
import pty
import select
import sys
import traceback
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from contextvars import Context
from dataclasses import dataclass, field
from io import BufferedReader, BufferedWriter, FileIO, TextIOWrapper
from pathlib import Path
from subprocess import CalledProcessError
from tempfile import TemporaryFile
from threading import Thread
from types import ModuleType

# what an interpreter reads when it starts: such an environment needs a process
READ_AT_START = ("PYTHON", "LANG", "LC_")


@dataclass
class CommandResult:
    """The result of a command: the attributes of a CompletedProcess, and `out` and `err` as
    text.
    """

    args: list
    returncode: int
    stdout: bytes
    stderr: bytes
    out: str = field(init=False)
    err: str = field(init=False)

    def __post_init__(self):
        self.out, self.err = self.stdout.decode(), self.stderr.decode()

    def check_returncode(self):
        if self.returncode:
            raise CalledProcessError(self.returncode, self.args, self.stdout, self.stderr)


def run_in_process(args, *, input=b"", cwd=None, env=None):
    """Run `redraft ARGS`; `env` is added to the environment."""
    from redraft.cli import main

    return run_as_program(main, ["redraft", *args], input=input, cwd=cwd, env=env)


def run_code(code, *, cwd=None, env=None):
    """Run what `python -c CODE` would run, in its own module `__main__`."""
    return run_as_program(
        lambda: _as_main(compile(code, "<string>", "exec")), ["-c"], cwd=cwd, env=env
    )


def run_script(path, *args, cwd=None, env=None):
    """Run `python PATH ARGS`, in its own module `__main__`."""
    code = compile(Path(path).read_text(), str(path), "exec")
    return run_as_program(
        lambda: _as_main(code, __file__=str(path)), [str(path), *args], cwd=cwd, env=env
    )


def _as_main(code, **names):
    before, module = sys.modules["__main__"], ModuleType("__main__")
    vars(module).update(names)
    sys.modules["__main__"] = module
    try:
        exec(code, vars(module))
    finally:
        sys.modules["__main__"] = before


def run_as_program(function, argv, *, input=b"", cwd=None, env=None):
    """Call `function()` as the interpreter calls a program: its return value or exception becomes
    an exit code.
    """
    with TemporaryFile() as out, TemporaryFile() as err:
        code = _exit_code_of(function, argv, out, err, input=input, cwd=cwd, env=env)
        out.seek(0)
        err.seek(0)
        return CommandResult(argv, code, out.read(), err.read())


def run_in_terminal(args, *, stdout_too=True, cwd=None, env=None):
    """Run `redraft ARGS` with stderr, and stdout if `stdout_too`, in a terminal; return all that
    the terminal gets, what a stdout that is none gets, and the exit code.
    """
    from redraft.cli import main

    ours, theirs = pty.openpty()
    with ThreadPoolExecutor(1) as pool, FileIO(ours) as screen, TemporaryFile() as piped:
        seen = pool.submit(read_to_end, screen)
        with FileIO(theirs, "r+") as terminal:
            out = terminal if stdout_too else piped
            code = _exit_code_of(main, ["redraft", *args], out, terminal, cwd=cwd, env=env)
        piped.seek(0)
        return seen.result(), piped.read(), code


def read_to_end(terminal):
    """Return what is written to a terminal until its other end is closed."""
    seen = b""
    while select.select([terminal], [], [], 60)[0]:
        try:
            data = os.read(terminal.fileno(), 65536)
        except OSError:  # the other end is closed
            break
        if not data:
            break
        seen += data
    return seen


def _exit_code_of(function, argv, out, err, *, input=b"", cwd=None, env=None):
    with ExitStack() as stack:
        for context in (
            _streams(input, out, err),
            _environment(env),
            _folder(cwd),
            _filters(),
            _logging(),
            _argv(argv),
        ):
            stack.enter_context(context)
        return Context().run(_exit_code, function)


def _exit_code(function):
    try:
        sys.exit(function())
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        return 1
    if code is None or isinstance(code, int):
        return (code or 0) & 0xFF
    print(code, file=sys.stderr)
    return 1


@contextmanager
def _streams(input, out, err):
    """Replace file descriptors 0, 1 and 2, which child processes inherit, and the files of `sys` on
    top of them.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(n) for n in range(3)]
    files = sys.stdin, sys.stdout, sys.stderr
    reader, writer = os.pipe()
    os.dup2(reader, 0)
    os.close(reader)
    os.dup2(out.fileno(), 1)
    os.dup2(err.fileno(), 2)
    feeder = Thread(target=_feed, args=(writer, input), daemon=True)
    feeder.start()
    sys.stdin = TextIOWrapper(BufferedReader(FileIO(0, "r", closefd=False)), "utf-8")
    sys.stdout = TextIOWrapper(
        BufferedWriter(FileIO(1, "w", closefd=False)), "utf-8", line_buffering=os.isatty(1)
    )
    sys.stderr = TextIOWrapper(
        BufferedWriter(FileIO(2, "w", closefd=False)),
        "utf-8",
        "backslashreplace",
        line_buffering=True,
    )
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        sys.stdin, sys.stdout, sys.stderr = files
        for n, descriptor in enumerate(kept):
            os.dup2(descriptor, n)
            os.close(descriptor)
        feeder.join(10)


def _feed(writer, data):
    with FileIO(writer, "w") as pipe:
        try:
            while data:
                data = data[pipe.write(data) :]
        except BrokenPipeError:  # the command has read what it wants
            pass


@contextmanager
def _environment(added):
    before = dict(os.environ)
    os.environ.update(added or {})
    try:
        yield
    finally:
        for name in os.environ.keys() - before:
            del os.environ[name]
        os.environ.update(before)


@contextmanager
def _folder(path):
    before = os.getcwd()
    os.chdir(path or before)
    try:
        yield
    finally:
        os.chdir(before)


@contextmanager
def _filters():
    """Set the warning filters with which Python starts."""
    with warnings.catch_warnings():
        warnings.resetwarnings()
        for ignored in (
            ResourceWarning,
            ImportWarning,
            PendingDeprecationWarning,
            DeprecationWarning,
        ):
            warnings.simplefilter("ignore", ignored)
        warnings.filterwarnings("default", category=DeprecationWarning, module="__main__")
        warnings.showwarning = warnings._showwarning_orig
        yield


@contextmanager
def _logging():
    """Set the root logger without pytest's handlers: records from WARNING on without a handler go
    to stderr.
    """
    root = logging.getLogger()
    names = ["redraft", *logging.root.manager.loggerDict]
    before = [
        (logger, logger.level, logger.propagate, logger.handlers[:])
        for logger in (root, *map(logging.getLogger, names))
    ]
    disabled = root.manager.disable
    root.handlers[:] = []
    root.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for logger, level, propagate, handlers in before:
            logger.setLevel(level)
            logger.propagate = propagate
            logger.handlers[:] = handlers
        logging.disable(disabled)


@contextmanager
def _argv(argv):
    before, sys.argv = sys.argv, list(map(str, argv))
    try:
        yield
    finally:
        sys.argv = before
