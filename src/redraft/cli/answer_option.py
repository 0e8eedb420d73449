"""The form of the answer from the command line: `--answer module:Class`, `--answer code:python` and
`--schema FILE`.

A type is code of the user (see `user_code`). It is loaded only when a command uses it.
"""

from __future__ import annotations

import json
from typing import Any

import click

from ..answers.forms import CODE_PREFIX
from ..errors import ConfigError
from ..requirements.data import JsonSchema
from .user_code import load_code, parse_code_name

FORM = "--answer is code:LANGUAGE, or MODULE:CLASS or FILE.py:CLASS"


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
