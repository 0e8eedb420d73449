"""A scripted model that works as a coding agent's: it reads a file, edits it, runs a command, then
does two things at once, then says that it is done.

It knows the tools of several agents by their names, and finds out from the conversation how far
the task is.
"""

from collections.abc import Callable
from dataclasses import dataclass

from .conversations import Call, Conversation, Refused, Said
from .instances import instance_of

PROMPT = "Replace old by new in notes.txt, then run the command. Say when it is done."
FILE, OLD, NEW = "notes.txt", "old", "new"
COMMAND = "echo ran >> ran.txt && cat notes.txt"
LOOK = f"cat {FILE}"
DONE = "The file notes.txt now says new, and the command ran without an error."
OTHER = "A short answer of the scripted model to a question besides the task."
THINKING = "First I look at the file, then I change it."
PATCH = f"*** Begin Patch\n*** Update File: {FILE}\n@@\n-{OLD}\n+{NEW}\n*** End Patch\n"
SHELL_EDIT = f"sed -i s/{OLD}/{NEW}/ {FILE}"


@dataclass(frozen=True)
class Agent:
    """The tools of an agent, by what the task needs. `edit`, `run` and `look` make the arguments of
    the call; a path is absolute where the agent wants that.
    """

    tools: tuple[str, ...]
    steps: Callable


def claude_code(folder):
    path = f"{folder}/{FILE}"
    edit = {"file_path": path, "old_string": OLD, "new_string": NEW}
    return (
        (("Read", {"file_path": path}),),
        (("Edit", edit),),
        (("Bash", {"command": COMMAND, "description": "Run the command"}),),
        (("Read", {"file_path": path}), ("Bash", {"command": LOOK, "description": "Look"})),
    )


def qwen_code(folder):
    path = f"{folder}/{FILE}"
    edit = {"file_path": path, "old_string": OLD, "new_string": NEW}
    shell = {"is_background": False, "description": "Run a command"}
    return (
        (("read_file", {"file_path": path}),),
        (("edit", edit),),
        (("run_shell_command", {"command": COMMAND, **shell}),),
        (("read_file", {"file_path": path}), ("run_shell_command", {"command": LOOK, **shell})),
    )


def opencode(folder):
    path = f"{folder}/{FILE}"
    edit = {"filePath": path, "oldString": OLD, "newString": NEW}
    return (
        (("read", {"filePath": path}),),
        (("edit", edit),),
        (("bash", {"command": COMMAND, "description": "Run the command"}),),
        (("read", {"filePath": path}), ("bash", {"command": LOOK, "description": "Look"})),
    )


def codex_with_patches(folder):
    return (
        (("exec_command", {"cmd": LOOK}),),
        (("apply_patch", PATCH),),
        (("exec_command", {"cmd": COMMAND}),),
        (("exec_command", {"cmd": LOOK}), ("exec_command", {"cmd": "cat ran.txt"})),
    )


def codex(folder):
    return (
        (("exec_command", {"cmd": SHELL_EDIT}),),
        (("exec_command", {"cmd": COMMAND}),),
        (("exec_command", {"cmd": LOOK}), ("exec_command", {"cmd": "cat ran.txt"})),
    )


def codex_shell(folder):
    def run(command):
        return ("shell", {"command": ["bash", "-lc", command]})

    return (run(SHELL_EDIT),), (run(COMMAND),), (run(LOOK), run("cat ran.txt"))


AGENTS = (
    Agent(("Read", "Edit", "Bash"), claude_code),
    Agent(("read_file", "edit", "run_shell_command"), qwen_code),
    Agent(("read", "edit", "bash"), opencode),
    Agent(("exec_command", "apply_patch"), codex_with_patches),
    Agent(("exec_command",), codex),
    Agent(("shell",), codex_shell),
)


@dataclass(frozen=True)
class CodingModel:
    """Works on the task in `folder`; it answers everything else with a text or an instance of the
    schema that was asked for.
    """

    folder: str

    def __call__(self, talk: Conversation):
        if talk.schema is not None:
            return Said(instance_of(talk.schema))
        agent = next((each for each in AGENTS if talk.tools.keys() >= {*each.tools}), None)
        if agent is None or PROMPT not in talk.prompt:
            return Said(OTHER)
        steps = agent.steps(self.folder)
        done = {call.id.rpartition("_")[0] for call in talk.calls}
        for number, step in enumerate(steps):
            if f"call_{number}" in done:
                continue
            calls = tuple(
                Call(name, _fitting(arguments, talk.tools[name]), f"call_{number}_{place}")
                for place, (name, arguments) in enumerate(step)
            )
            return Said("", calls, THINKING if talk.thinks else "")
        return Said(DONE)


def _fitting(arguments, tool):
    """Return a text as an object with one text, where the tool takes objects."""
    if isinstance(arguments, str) and tool.schema is not None:
        names = list(tool.schema.get("properties") or ())
        if len(names) != 1:
            raise Refused(f"the tool {tool.name!r} should take one text, not {names}")
        return {names[0]: arguments}
    if isinstance(arguments, dict) and tool.schema is not None:
        known = tool.schema.get("properties") or {}
        return {name: value for name, value in arguments.items() if name in known}
    return arguments
