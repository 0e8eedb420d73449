"""Tools of clients before models of another protocol: their names and their types."""

import json
from typing import Literal, get_args

import jsonschema
import pytest

import vendors
from each_row import each_row
from redraft.gateway.neutral import Call, Reply
from redraft.gateway.protocols.chat_requests import write_tool_choice
from redraft.gateway.protocols.client_tools import ANTHROPIC_TOOLS, OPENAI_TOOLS
from redraft.gateway.protocols.registry import CLIENTS, MODELS

from .protocol_app import both_sides, stream_of

USER = {"role": "user", "content": "hi"}
BODIES = {
    "chat": {"model": "pass/m", "messages": [USER]},
    "messages": {"model": "pass/m", "max_tokens": 9, "messages": [USER]},
    "responses": {"model": "pass/m", "input": "hi"},
}


# ---- long names

LONG = ["a" * 70 + end for end in ("", "b", "c")] + ["m" * 65, "short"]
TOOLS_OF = {
    "chat": lambda name: {"type": "function", "function": {"name": name}},
    "messages": lambda name: {"name": name, "input_schema": {"type": "object"}},
    "responses": lambda name: {"type": "function", "name": name},
}
CHOICES_OF = {
    "chat": lambda name: {"type": "function", "function": {"name": name}},
    "messages": lambda name: {"type": "tool", "name": name},
    "responses": lambda name: {"type": "function", "name": name},
}


def names_in(kind, body):
    """Return the names in a request to a model: of tools, of the choice, of calls."""
    if kind == "messages":
        calls = [
            block["name"]
            for message in body["messages"]
            for block in message["content"]
            if isinstance(block, dict) and block["type"] == "tool_use"
        ]
        return [each["name"] for each in body["tools"]], body["tool_choice"]["name"], calls
    functions = [each["function"]["name"] for each in body["tools"]]
    calls = [
        each["function"]["name"]
        for message in body["messages"]
        for each in message.get("tool_calls", ())
    ]
    return functions, body["tool_choice"]["function"]["name"], calls


def conversation_with(client, name):
    """Return the fields of a conversation with a call of this name."""
    match client:
        case "responses":
            call = {"type": "function_call", "call_id": "c", "name": name, "arguments": "{}"}
            output = {"type": "function_call_output", "call_id": "c", "output": "1"}
            return {"input": [{"role": "user", "content": "hi"}, call, output]}
        case "messages":
            call = {"type": "tool_use", "id": "c", "name": name, "input": {}}
            result = {"type": "tool_result", "tool_use_id": "c", "content": "1"}
            messages = [{"role": "assistant", "content": [call]}]
            messages += [{"role": "user", "content": [result]}]
        case "chat":
            call = {"id": "c", "type": "function", "function": {"name": name, "arguments": "{}"}}
            messages = [{"role": "assistant", "content": None, "tool_calls": [call]}]
            messages += [{"role": "tool", "tool_call_id": "c", "content": "1"}]
    return {"messages": [{"role": "user", "content": "hi"}, *messages]}


@pytest.mark.parametrize(
    ("client", "kind"),
    [("messages", "chat"), ("responses", "chat"), ("chat", "messages"), ("responses", "messages")],
)
@pytest.mark.parametrize("name", LONG)
def test_long_names_of_tools_come_back(client, kind, name):
    """Models get names of at most 64 characters, each its own and the same everywhere; the client
    gets its own names back, whole and in a stream.
    """
    tools = [TOOLS_OF[client](each) for each in LONG]
    body = {**BODIES[client], "tools": tools, "tool_choice": CHOICES_OF[client](name)}
    request = CLIENTS[client].read_request(body | conversation_with(client, name))
    sent = MODELS[kind].write_request(request, "m").body
    functions, chosen, called = names_in(kind, sent)
    assert len(set(functions)) == len(LONG)
    assert max(map(len, functions)) <= 64
    assert [chosen, *called] == [functions[LONG.index(name)]] * 2
    reply = Reply("x", "m", (Call("c1", chosen),), "tool_calls")
    whole = json.dumps(CLIENTS[client].write_reply(request, reply, 1))
    stream = stream_of(both_sides(client), request, reply).decode()
    for text in (whole, stream):
        assert f'"name":"{name}"' in text.replace('": "', '":"')
        assert chosen == name or chosen not in text


def test_long_names_of_groups_come_back():
    """The names in a namespace count with it."""
    group = {"type": "namespace", "name": "g" * 60, "tools": [TOOLS_OF["responses"]("wait" * 3)]}
    request = CLIENTS["responses"].read_request(BODIES["responses"] | {"tools": [group]})
    (tool,) = MODELS["chat"].write_request(request, "m").body["tools"]
    name = tool["function"]["name"]
    assert len(name) == 64
    reply = Reply("x", "m", (Call("c1", name),), "tool_calls")
    (item,) = CLIENTS["responses"].write_reply(request, reply, 1)["output"]
    assert (item["namespace"], item["name"]) == (group["name"], "wait" * 3)


@pytest.mark.parametrize("client", ["chat", "messages"])
def test_models_of_the_same_protocol_get_the_names_of_the_client(client):
    """Nothing is shortened for a model that speaks the protocol of the client."""
    tools = [TOOLS_OF[client](each) for each in LONG]
    fields = {"tools": tools, "tool_choice": CHOICES_OF[client](LONG[0])}
    request = CLIENTS[client].read_request(
        {**BODIES[client], **fields, **conversation_with(client, LONG[0])}
    )
    body = MODELS[client].write_request(request, "m").body
    assert names_in(client, body) == (LONG, LONG[0], [LONG[0]])
    assert client == "messages" or write_tool_choice(request) == CHOICES_OF["chat"](LONG[0])


# ---- types of tools


def tool_fields(kind, tool):
    """Return the name and the schema of a written tool."""
    if kind == "messages":
        return tool["name"], tool["input_schema"]
    return tool["function"]["name"], tool["function"]["parameters"]


def replied(kind, name, arguments):
    """Return what a model answers that calls a tool."""
    if kind == "messages":
        call = {"type": "tool_use", "id": "c1", "name": name, "input": arguments}
        return {"id": "x", "content": [call], "stop_reason": "tool_use"}
    function = {"name": name, "arguments": json.dumps(arguments)}
    message = {
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": function}],
    }
    return {"id": "x", "choices": [{"message": message, "finish_reason": "tool_calls"}]}


def commands(command):
    """Return the arguments of an input of the SDK's types for the tool "memory"."""
    types = vendors.anthropic.types.beta.beta_memory_tool_20250818_command
    kind = next(
        each
        for each in get_args(get_args(types.BetaMemoryTool20250818Command)[0])
        if each.model_fields["command"].annotation == Literal[command]
    )
    return set(kind.model_fields)


OPENAI_CALLS = [
    (
        {"type": "local_shell"},
        {"command": ["ls", "-a"], "env": {"A": "b"}, "working_directory": "/tmp"},
        "LocalShellCall",
        {
            "action": {"type": "exec", "command": ["ls", "-a"], "env": {"A": "b"}}
            | {"working_directory": "/tmp"}
        },
        {"type": "local_shell_call_output", "id": "c1", "output": "a.txt"},
        "a.txt",
    ),
    (
        {"type": "shell"},
        {"commands": ["ls"], "timeout_ms": 5},
        "ResponseFunctionShellToolCall",
        {"action": {"commands": ["ls"], "timeout_ms": 5}},
        {
            "type": "shell_call_output",
            "call_id": "c1",
            "output": [{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
        },
        '[{"stdout":"a","stderr":"","outcome":{"type":"exit","exit_code":0}}]',
    ),
    (
        {"type": "shell", "environment": {"type": "local"}},
        {"commands": []},
        "ResponseFunctionShellToolCall",
        {"action": {"commands": []}},
        {"type": "shell_call_output", "call_id": "c1", "output": []},
        "[]",
    ),
    (
        {"type": "apply_patch"},
        {"type": "update_file", "path": "a.txt", "diff": "-a\n+b"},
        "ResponseApplyPatchToolCall",
        {"operation": {"type": "update_file", "path": "a.txt", "diff": "-a\n+b"}},
        {"type": "apply_patch_call_output", "call_id": "c1", "status": "failed"},
        "failed",
    ),
]


@each_row(
    ("kind", "tool", "arguments", "item_type", "fields", "output", "text"),
    [(kind, *row) for kind in MODELS for row in OPENAI_CALLS],
)
def test_tools_that_openai_defines(kind, tool, arguments, item_type, fields, output, text):
    """They are functions for other models; a call comes back as the item that the SDK knows, whole
    and in a stream, and is the same call in the next turn, with its result.
    """
    body = {**BODIES["responses"], "tools": [tool], "tool_choice": {"type": tool["type"]}}
    request = CLIENTS["responses"].read_request(body)
    written = MODELS[kind].write_request(request, "m")
    name, schema = tool_fields(kind, written.body["tools"][0])
    jsonschema.validate(arguments, schema)
    assert (name, written.ignored) == (tool["type"], ())
    reply = MODELS[kind].read_reply(replied(kind, name, arguments))
    (item,) = CLIENTS["responses"].write_reply(request, reply, 1)["output"]
    expected = {"type": f"{name}_call", "call_id": "c1", "status": "completed", **fields}
    assert item == {"id": "c1", **expected}
    getattr(vendors, item_type).model_validate(item, strict=True)
    assert json.dumps(item).replace(" ", "") in (
        stream_of(both_sides("responses"), request, reply).decode().replace(" ", "")
    )
    again = CLIENTS["responses"].read_request({**body, "input": [item, output]})
    call, result = again.turns
    assert call.calls[0].id == result.call_id == "c1"
    assert json.loads(call.calls[0].arguments) == arguments
    assert result.text == text
    assert result.is_error is (text == "failed")


@each_row(
    "tool",
    [
        {"type": "shell", "environment": {"type": "container_auto"}},
        {"type": "shell", "environment": {"type": "container_reference", "container_id": "c"}},
        {"type": "computer"},
        {"type": "web_search"},
    ],
)
def test_tools_that_openai_runs_are_left_out(tool):
    """What runs at the provider, or what other models were not trained on, is named."""
    request = CLIENTS["responses"].read_request({**BODIES["responses"], "tools": [tool]})
    for kind in MODELS:
        written = MODELS[kind].write_request(request, "m")
        assert "tools" not in written.body
        assert written.ignored == (f"tools[0] ({tool['type']})",)


def test_a_model_is_told_of_the_skills_of_a_shell():
    """They belong to the tool."""
    skill = {"name": "pdf", "description": "Reads PDF files.", "path": "/skills/pdf"}
    tool = {"type": "shell", "environment": {"type": "local", "skills": [skill]}}
    request = CLIENTS["responses"].read_request({**BODIES["responses"], "tools": [tool]})
    (written,) = MODELS["chat"].write_request(request, "m").body["tools"]
    assert json.dumps(skill).replace(" ", "") in (
        written["function"]["description"].replace(" ", "")
    )


def test_arguments_that_a_model_made_up_do_not_break_an_item():
    """A client finds the fields that its SDK promises, as far as they have a default."""
    tools = [{"type": kind} for kind in ("local_shell", "shell", "apply_patch")]
    request = CLIENTS["responses"].read_request({**BODIES["responses"], "tools": tools})
    reply = Reply("x", "m", tuple(Call(f"c{n}", t["type"], "[]") for n, t in enumerate(tools)))
    output = CLIENTS["responses"].write_reply(request, reply, 1)["output"]
    assert [item.get("action", item.get("operation")) for item in output] == [
        {"type": "exec", "command": [], "env": {}},
        {"commands": []},
        {},
    ]


EDITOR = {"command": "insert", "path": "/a", "insert_line": 0}
ANTHROPIC_CALLS = [
    ({"type": "bash_20250124", "name": "bash"}, {"command": "ls"}),
    ({"type": "bash_20241022", "name": "bash"}, {"restart": True}),
    (
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
        {**EDITOR, "insert_text": "x"},
    ),
    (
        {"type": "text_editor_20250429", "name": "str_replace_based_edit_tool"},
        {"command": "view", "path": "/a", "view_range": [1, -1]},
    ),
    ({"type": "text_editor_20250124", "name": "str_replace_editor"}, {**EDITOR, "new_str": "x"}),
    (
        {"type": "text_editor_20241022", "name": "str_replace_editor"},
        {"command": "undo_edit", "path": "/a"},
    ),
    (
        {"type": "memory_20250818", "name": "memory"},
        {"command": "rename", "old_path": "/memories/a", "new_path": "/memories/b"},
    ),
]


@each_row(("tool", "arguments"), ANTHROPIC_CALLS)
def test_tools_that_anthropic_defines(tool, arguments):
    """They are functions for other models, and calls come back under their names."""
    choice = {"type": "tool", "name": tool["name"]}
    body = {**BODIES["messages"], "tools": [tool], "tool_choice": choice}
    request = CLIENTS["messages"].read_request(body)
    written = MODELS["chat"].write_request(request, "m")
    name, schema = tool_fields("chat", written.body["tools"][0])
    jsonschema.validate(arguments, schema)
    assert (name, written.ignored) == (tool["name"], ())
    reply = MODELS["chat"].read_reply(replied("chat", name, arguments))
    (block,) = CLIENTS["messages"].write_reply(request, reply, 1)["content"]
    assert block == {"type": "tool_use", "id": "c1", "name": tool["name"], "input": arguments}
    assert MODELS["messages"].write_request(request, "m").body["tools"] == [tool]


@each_row(
    "tool",
    [
        {"type": "computer_20251124", "name": "computer"},
        {"type": "web_search_20250305", "name": "bash"},
        {"type": "bash_20250124", "name": "other"},
        {"type": "memory_2025", "name": "memory"},
        {"type": "bash_20250124\n", "name": "bash"},
    ],
)
def test_tools_that_are_unknown_are_left_out(tool):
    """A type that is not known, or not under its name, has no arguments that could be told."""
    request = CLIENTS["messages"].read_request({**BODIES["messages"], "tools": [tool]})
    written = MODELS["chat"].write_request(request, "m")
    assert ("tools" in written.body, len(written.ignored)) == (False, 1)


@pytest.mark.slow(but_each=6)
@pytest.mark.parametrize("command", ["view", "create", "str_replace", "insert", "delete", "rename"])
def test_the_arguments_of_memory_are_those_of_the_sdk(command):
    """Each command of the tool, with each of its arguments."""
    properties = ANTHROPIC_TOOLS["memory"].schema["properties"]
    assert command in properties["command"]["enum"]
    assert commands(command) <= set(properties)


@each_row("kind", [*OPENAI_TOOLS])
def test_the_arguments_are_those_of_the_sdk(kind):
    """No argument that the SDK knows is missing, and none is made up."""
    action = {
        "local_shell": vendors.LocalShellCallAction,
        "shell": vendors.ResponseFunctionShellToolCall.model_fields["action"].annotation,
        "apply_patch": vendors.OperationUpdateFile,
    }[kind]
    own = {"type"} if kind == "local_shell" else set()
    assert {*OPENAI_TOOLS[kind].schema["properties"], *own} == set(action.model_fields)
