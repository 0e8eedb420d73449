"""Graders from code that the command line names: `path/to/graders.py:NAME` and
`package.module:NAME` (see `user_code`).

NAME is a function, a grader, or a class that is called without arguments. `find_code` decides both
what is loaded and what needs consent: nothing is loaded that consent does not cover.
"""

from __future__ import annotations

from typing import Any

from ..errors import ConfigError
from ..graders import as_grader, entries
from ..graders.base import as_grader_spec
from .user_code import CodeName, load_code, parse_code_name, run_code


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
