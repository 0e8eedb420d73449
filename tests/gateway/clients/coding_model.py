"""A scripted model that works as a coding agent's: it reads a file, edits it, runs a command, then
does two things at once, then says that it is done: in a draft first, better when it is told so.

It knows the tools of several agents by their names, and finds out from the conversation how far
the task is.
"""

import json

from .conversations import Call, Conversation, Refused, Said

PROMPT = "Replace old by new in notes.txt, then run the command. Say when it is done."
FILE, OLD, NEW = "notes.txt", "old", "new"
COMMAND = "echo ran >> ran.txt && cat notes.txt"
LOOK = f"cat {FILE}"
DRAFT = "The file was changed."
DONE = "The file notes.txt now says new, and the command ran without an error."
THINKING = "First I look at the file, then I change it."
PATCH = f"*** Begin Patch\n*** Update File: {FILE}\n@@\n-{OLD}\n+{NEW}\n*** End Patch\n"
SHELL_EDIT = f"sed -i s/{OLD}/{NEW}/ {FILE}"


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


def opencode_with_patches(folder):
    read, _, run, both = opencode(folder)
    return read, (("apply_patch", PATCH),), run, both


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


def codex_code_mode(folder):
    def run(command):
        code = f"const done = await tools.exec_command({json.dumps({'cmd': command})}); text(done);"
        return (("exec", code),)

    patch = (("exec", f"text(await tools.apply_patch({json.dumps(PATCH)}));"),)
    return run(LOOK), patch, run(COMMAND), (*run(LOOK), *run("cat ran.txt"))


AGENTS = (
    (("Read", "Edit", "Bash"), claude_code),
    (("read_file", "edit", "run_shell_command"), qwen_code),
    (("read", "edit", "bash"), opencode),
    (("read", "apply_patch", "bash"), opencode_with_patches),
    (("exec_command", "apply_patch"), codex_with_patches),
    (("exec_command",), codex),
    (("exec", "wait"), codex_code_mode),
    (("shell",), codex_shell),
)


def coding_turn(talk: Conversation, folder):
    """Return what the model says next about the task in `folder`, or None where the request is
    about something else.
    """
    # where a protocol has no namespaces, their names stand before those of the tools
    tools = {name.rpartition("__")[2]: tool for name, tool in talk.tools.items()}
    steps = next((steps for names, steps in AGENTS if tools.keys() >= {*names}), None)
    if steps is None or PROMPT not in talk.prompt:
        return None
    made = {call.id for call in talk.calls}
    for number, step in enumerate(steps(folder)):
        ids = [f"call_{number}_{place}" for place in range(len(step))]
        if not made.issuperset(ids):
            calls = tuple(
                Call(tools[name].name, _fitting(arguments, tools[name]), id)
                for id, (name, arguments) in zip(ids, step)
            )
            return Said("", calls, THINKING if talk.thinks else "")
    return Said(DONE if DRAFT in talk.answers + talk.prompt else DRAFT)


def _fitting(arguments, tool):
    """Return arguments in the tool's own form: a text as an object where it takes objects, and
    nothing that it does not know.
    """
    if tool.schema is None:
        return arguments
    known = [*(tool.schema.get("properties") or ())]
    if isinstance(arguments, str):
        if len(known) != 1:
            raise Refused(f"the tool {tool.name!r} should take one text, not {known}")
        return {known[0]: arguments}
    return {name: value for name, value in arguments.items() if name in known}
