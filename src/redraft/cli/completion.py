"""Shell completion: click computes what to propose; this module prints click's script for a shell,
or installs it where the shell reads it.

Bash and zsh read a line that is added once to the user's own start file and names the script, which
is in the data folder. Fish reads the script itself from its folder of completions. What a user has
written in one of these files stays as it is.

What is proposed comes from the options themselves (`options.FileName` proposes files), and from
the table of commands, which imports none of them.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

import click
from click.shell_completion import get_completion_class

from ..base.checks import read_error_message
from ..errors import StoreError
from ..storage.secure_files import data_dir
from .output import notice

SHELLS = ("bash", "zsh", "fish")
AUTO = "auto"  # the shell that $SHELL names
VARIABLE = "_REDRAFT_COMPLETE"  # by which the scripts ask for proposals; click derives it
SOURCE_SCRIPT = {  # lines of a start file; zsh defines `compdef` only after `compinit`
    "bash": "[ -f {script} ] && . {script}  # completion of redraft",
    "zsh": "[ -f {script} ] && {{ (( $+functions[compdef] )) || {{ autoload -Uz compinit && compinit }}; "  # noqa: E501
    ". {script} }}  # completion of redraft",
}


def install(shell: str) -> None:
    """Install completion for a shell and say what was written. Raises StoreError, and UsageError if
    $SHELL names no shell that is supported.
    """
    shell = _named_shell(shell)
    text = f"{completion_script(shell)}\n"
    if shell == "fish":
        script = start_file = _config_folder() / "fish" / "completions" / "redraft.fish"
        changed = _append_once(script, text)
    else:
        script, start_file = _script_path(shell), _start_file(shell)
        changed = _replace(script, text)
        line = SOURCE_SCRIPT[shell].format(script=shlex.quote(str(script)))
        changed |= _append_once(start_file, f"{line}\n")
    files = " and ".join(dict.fromkeys(map(str, (script, start_file))))
    notice(
        f"completion for {shell} {'written to' if changed else 'is already in'} {files}; it works "
        f"in each new shell: `exec {shell}` starts one here"
    )


def show(shell: str) -> None:
    """Print the script of a shell. Raises UsageError as `install`."""
    click.echo(completion_script(_named_shell(shell)))


def completion_script(shell: str) -> str:
    """Return the script with which a shell completes commands of redraft."""
    completion = get_completion_class(shell)
    assert completion is not None
    script: Any = completion.source_template % {
        "complete_func": "_redraft_completion",
        "complete_var": VARIABLE,
        "prog_name": "redraft",
    }
    return str(script).strip()


def _script_path(shell: str) -> Path:
    return (data_dir() / f"completion.{shell}").absolute()


def _start_file(shell: str) -> Path:
    folder = os.environ.get("ZDOTDIR") if shell == "zsh" else None
    return Path(folder or os.path.expanduser("~"), f".{shell}rc")  # noqa: PTH111  (expanduser of os.path never raises)


def _config_folder() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config"))  # noqa: PTH111


def _replace(path: Path, text: str) -> bool:
    """Write a file of ours; return whether that changed it."""
    try:
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _write_error(path, error) from error
    return True


def _append_once(path: Path, text: str) -> bool:
    """Append a text to a file of the user unless it is there; return whether that changed it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab+") as file:
            file.seek(0)
            before = file.read()
            if text.encode() in before:
                return False
            line_end = b"" if before.endswith(b"\n") or not before else b"\n"
            file.write(line_end + text.encode())
    except OSError as error:
        raise _write_error(path, error) from error
    return True


def _write_error(path: Path, error: Exception) -> StoreError:
    return StoreError(
        f"completion cannot be installed: {path}: {read_error_message(error)}; "
        "`redraft --show-completion` prints the script for a file of your choice"
    )


def _named_shell(shell: str) -> str:
    """Return the shell, or the one that $SHELL names for "auto". Raises UsageError for another."""
    if shell != AUTO:
        return shell
    login_shell = os.environ.get("SHELL", "")
    if (name := Path(login_shell).name) in SHELLS:
        return name
    found = f"$SHELL is {login_shell!r}" if login_shell else "$SHELL is not set"
    raise click.UsageError(f"{found}: name the shell, one of {', '.join(SHELLS)}")
