"""Tools that a vendor defines by a type, and that the client runs. Models of another protocol call
them as functions with the arguments that the vendor documents.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..neutral import Json, Tool

_TEXT, _NUMBER = {"type": "string"}, {"type": "integer"}
_TEXTS, _RANGE = {"type": "array", "items": _TEXT}, {"type": "array", "items": _NUMBER}


def _schema(required: str, **properties: Json) -> Json:
    """Return the schema of arguments; `required`: their names, separated by spaces."""
    return {"type": "object", "properties": properties, "required": required.split()}


def _commands(*names: str) -> Json:
    return {**_TEXT, "enum": [*names]}


OPENAI_TOOLS: Mapping[str, Tool] = {
    "local_shell": Tool(
        "function",
        "local_shell",
        "Runs a program on the user's machine. `command` is the program and its arguments.",
        _schema(
            "command",
            command=_TEXTS,
            env={"type": "object", "additionalProperties": _TEXT},
            timeout_ms=_NUMBER,
            user=_TEXT,
            working_directory=_TEXT,
        ),
    ),
    "shell": Tool(
        "function",
        "shell",
        "Runs shell commands on the user's machine. `max_output_length`: how many characters of "
        "the output are returned.",
        _schema("commands", commands=_TEXTS, timeout_ms=_NUMBER, max_output_length=_NUMBER),
    ),
    "apply_patch": Tool(
        "function",
        "apply_patch",
        "Changes one file, whose path is relative to the workspace. `diff` has the lines of the "
        "file: those that begin with `+` are added, with `-` removed, with a space kept; `@@` and "
        "a line of the file say where the next change is. To create a file, all lines begin with "
        "`+`. To delete one, there is no diff.",
        _schema(
            "type path",
            type=_commands("create_file", "update_file", "delete_file"),
            path=_TEXT,
            diff=_TEXT,
        ),
    ),
}
"""The tools of responses, by their types."""

_EDITOR = (
    "Views and changes text files. `view` shows a file (`view_range`: its first and last line, "
    "from 1, -1 for the end) or a folder; `create` writes `file_text`; `str_replace` puts "
    "`new_str` in place of `old_str`, which the file must have once; `insert` puts a text after "
    "the line `insert_line`, 0 for the beginning"
)
_FILE: Mapping[str, Json] = {
    "path": _TEXT,
    "view_range": _RANGE,
    "file_text": _TEXT,
    "old_str": _TEXT,
    "new_str": _TEXT,
    "insert_line": _NUMBER,
}
ANTHROPIC_TOOLS: Mapping[str, Tool] = {
    "bash": Tool(
        "function",
        "bash",
        "Runs a command in a bash session that stays open, or restarts the session.",
        _schema("", command=_TEXT, restart={"type": "boolean"}),
    ),
    "str_replace_based_edit_tool": Tool(
        "function",
        "str_replace_based_edit_tool",
        f"{_EDITOR}: `insert_text`.",
        _schema(
            "command path",
            command=_commands("view", "create", "str_replace", "insert"),
            **_FILE,
            insert_text=_TEXT,
        ),
    ),
    "str_replace_editor": Tool(
        "function",
        "str_replace_editor",
        f"{_EDITOR}: `new_str`; `undo_edit` takes back the last change of the file.",
        _schema(
            "command path",
            command=_commands("view", "create", "str_replace", "insert", "undo_edit"),
            **_FILE,
        ),
    ),
    "memory": Tool(
        "function",
        "memory",
        "Files under /memories, which stay between conversations: look there first, and write down "
        f"what will be needed. {_EDITOR}: `insert_text`; `delete` removes a file or a folder; "
        "`rename` moves `old_path` to `new_path`.",
        _schema(
            "command",
            command=_commands("view", "create", "str_replace", "insert", "delete", "rename"),
            **_FILE,
            insert_text=_TEXT,
            old_path=_TEXT,
            new_path=_TEXT,
        ),
    ),
}
"""The tools of messages, by their names."""
_ANTHROPIC_TYPES = re.compile(r"(?:bash|text_editor|memory)_\d{8}", re.ASCII)


def anthropic_tool(kind: str, name: str | None) -> Tool | None:
    """Return the tool of a type and a name; None for one that the client does not run, or of which
    models of other protocols cannot be told.
    """
    return ANTHROPIC_TOOLS.get(name or "") if _ANTHROPIC_TYPES.fullmatch(kind) else None


def openai_call(kind: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return what the item of a call says besides its ID, given the type of the tool."""
    match kind:
        case "local_shell":
            return {"action": {"command": [], "env": {}, **arguments, "type": "exec"}}
        case "shell":
            return {"action": {"commands": [], **arguments}}
        case "apply_patch":
            return {"operation": arguments}
    return {"execution": "client", "arguments": arguments}  # a search for tools
