"""Code of the user that the command line names: `path/to/file.py:NAME` and `package.module:NAME`.
It is a grader (`--grader`: a function, a grader, or a class that is called without arguments), or
the type of the answer (`--answer`).

A file is run once, whichever options name it, so that a grader and the type of the answer from one
file belong together; it may import the files beside it. A module is an installed one, or one in the
current folder. Naming code runs it, so a name may come from the command line, or from a settings
file or a trace with the consent of the user (see `consent`), and never from data. `find_code`
decides both what is loaded as a grader and what needs consent: nothing is loaded that consent does
not cover.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

import click

from ..answers.forms import CODE_PREFIX
from ..base import checks
from ..base.error_text import error_text
from ..errors import ConfigError
from ..graders import as_grader, entries
from ..graders.base import as_grader_spec
from ..requirements.data import JsonSchema

MODULE_PREFIX = "user_file_"
FORM = "--answer is code:LANGUAGE, or MODULE:CLASS or FILE.py:CLASS"
T = TypeVar("T")


class CodeName(NamedTuple):
    """The file or module that holds the code, and the dotted name in it."""

    place: str
    name: str

    @property
    def is_file(self) -> bool:
        """Whether the place is a file, not a module."""
        return self.place.endswith(".py")

    @property
    def module_exists(self) -> bool:
        """Whether the package of the module is installed or in the current folder. Nothing is
        imported.
        """
        package = self.place.partition(".")[0]
        try:
            is_here = Path(f"{package}.py").is_file() or Path(package, "__init__.py").is_file()
            return is_here or package in sys.modules or find_spec(package) is not None
        except (ImportError, OSError, ValueError):
            return False

    def beside(self, folder: str) -> str:
        """Return the text of the name, with a relative file taken from a folder."""
        is_relative = self.is_file and not self.place.startswith("~")
        return f"{Path(folder, self.place) if is_relative else self.place}:{self.name}"


def parse_code_name(text: str) -> CodeName | None:
    """Return the code that a text names; None if it has not the form FILE.py:NAME or MODULE:NAME.
    Nothing is loaded.
    """
    place, colon, name = text.strip().rpartition(":")
    code = CodeName(place, name)
    if (
        not colon
        or "://" in text
        or not _is_dotted_name(name)
        or not (code.is_file or _is_dotted_name(place))
    ):
        return None
    return code


def _is_dotted_name(text: str) -> bool:
    return all(part.isidentifier() for part in text.split("."))


def load_code(code: CodeName, what: str) -> Any:
    """Return the object that a name stands for. Raises ConfigError that begins with `what`, such as
    "grader 'a.py:f'".
    """
    module = (
        _load_file(Path(code.place).expanduser(), code.place, what)
        if code.is_file
        else _load_module(code.place, what)
    )
    try:
        return reduce(getattr, code.name.split("."), module)
    except AttributeError:
        names = [
            n
            for n, v in vars(module).items()
            if not n.startswith("_") and getattr(v, "__module__", "") == module.__name__
        ]
        raise ConfigError(
            f"{what}: {checks.unknown_name_message(f'name in {code.place}', code.name, names)}"
        ) from None


def run_code(code: Callable[[], T], what: str) -> T:
    """Run code of the user. Raises ConfigError with the line for whatever it raises."""
    try:
        return code()
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{what} cannot be loaded: {error_text(error)}") from error


def _load_file(path: Path, shown: str, what: str) -> ModuleType:
    """Return the module in a file, run once; other files can import it by its own name, unless
    another module has that.

    Its bytecode cache is neither read nor written: only the file itself counts.
    """
    try:
        is_file = path.is_file()
    except OSError as error:  # such as a name that is too long, or a folder that cannot be entered
        raise ConfigError(
            f"{what:.200} cannot be loaded: {checks.read_error_message(error)}"
        ) from None
    if not is_file:
        raise ConfigError(f"{what}: there is no file {shown!r}")
    path = path.resolve()
    for name in (path.stem, _unique_name(path)):
        if name in sys.modules and _is_from(getattr(sys.modules[name], "__file__", None), path):
            return sys.modules[name]
    name = path.stem if _is_free(path.stem, path) else _unique_name(path)
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module  # dataclasses and pydantic look the module of a class up
    try:
        with _on_path(path.parent, 0):
            run_code(
                lambda: exec(compile(path.read_bytes(), str(path), "exec"), vars(module)),  # noqa: S102  (the user's own code)
                what,
            )
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _is_free(name: str, path: Path) -> bool:
    """Return whether no other module has, or could be imported by, the name of this file."""
    if not name.isidentifier() or name in sys.modules:
        return False
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        return False
    return spec is None or _is_from(spec.origin, path)


def _is_from(origin: str | None, path: Path) -> bool:
    return origin is not None and Path(origin).resolve() == path


def _unique_name(path: Path) -> str:
    stem = "".join(c if c.isalnum() else "_" for c in path.stem)
    return f"{MODULE_PREFIX}{sha256(str(path).encode()).hexdigest()[:8]}_{stem}"


def _load_module(name: str, what: str) -> ModuleType:
    """Import a module. Those in the current folder replace no installed ones."""
    with _on_path(Path.cwd(), len(sys.path)):
        return run_code(lambda: import_module(name), what)


@contextmanager
def _on_path(folder: Path, place: int) -> Iterator[None]:
    """Let imports find the modules in a folder."""
    sys.path.insert(place, str(folder))
    try:
        yield
    finally:
        if str(folder) in sys.path:
            sys.path.remove(str(folder))


def find_code(spec: str) -> CodeName | None:
    """Return the code that a grader's spec names; None for any other spec. It loads and imports
    nothing.

    Names of graders and requirements take precedence. A module that does not exist is no code, but
    may be a mistyped name.
    """
    code = parse_code_name(spec)
    if code is None or any(entry.name == spec.partition(":")[0].strip() for entry in entries()):
        return None
    return code if code.is_file or code.module_exists else None


def load_grader(spec: str) -> Any:
    """Return the grader that a spec names by code; any other spec unchanged. Raises ConfigError."""
    what = f"grader {spec!r}"
    if spec.strip().endswith(".py"):
        raise ConfigError(
            f"{what}: name a function or class in the file: --grader {spec.strip()}:NAME"
        )
    if (code := find_code(spec)) is None:
        _check_module(spec)
        return spec
    target = load_code(code, what)
    grader = run_code(target, what) if isinstance(target, type) else target
    try:
        as_grader(as_grader_spec(grader).grader)
    except ConfigError as error:
        raise ConfigError(f"{what}: {error}") from None
    return grader


def _check_module(spec: str) -> None:
    """Raise ConfigError for a name of no grader that may name code: it says that the module is
    missing.
    """
    code = parse_code_name(spec)
    if code is None or code.is_file or code.module_exists:
        return
    try:
        as_grader(as_grader_spec(spec).grader)
    except ConfigError as error:
        if str(error).startswith("unknown grader") and "did you mean" not in str(error):
            raise ConfigError(
                f"there is no module {code.place!r} for --grader {spec}; {error}"
            ) from None


def load_answer(answer: str | None, schema: str | None) -> Any:
    """Return the argument `answer` of `refine` that the two options stand for. Raises ConfigError
    or UsageError.
    """
    if answer and schema:
        raise click.UsageError(
            "--answer and --schema both choose the form of the answer: leave out one of them"
        )
    if schema:
        return json.loads(canonical_schema(schema))
    if answer is None or answer.startswith(CODE_PREFIX):
        return answer
    if (code := parse_code_name(answer)) is None:
        raise ConfigError(f"{FORM}, got {answer!r}")
    return load_code(code, f"--answer {answer}")


def canonical_schema(schema: str) -> str:
    """Return the schema in a file, or the given one if it is JSON already, as canonical JSON.
    Raises ConfigError.
    """
    try:
        return JsonSchema.parse(schema.strip()).schema
    except ConfigError as error:
        raise ConfigError(f"--schema: {error}") from None
