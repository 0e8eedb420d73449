"""What a client asked, read from a request of any of the three protocols, for a scripted model.

A model whose answers depend on a `Conversation` alone can stand behind every protocol. Reading is
as strict as the real servers are: `Refused` tells what they would answer with a 400.
"""

import base64
import hashlib
import json
from dataclasses import dataclass, field


class Refused(Exception):
    """A request that the real server would answer with a 400. `details` are for programs."""

    def __init__(self, message, **details):
        super().__init__(message)
        self.details = details


@dataclass(frozen=True)
class Call:
    """A call of a tool. `arguments`: a dict, or a text for a tool that takes text."""

    name: str
    arguments: dict | str
    id: str = ""


@dataclass(frozen=True)
class Said:
    """What the model says in one turn."""

    text: str = ""
    calls: tuple[Call, ...] = ()
    thinking: str = ""


@dataclass(frozen=True)
class Tool:
    """A tool that the client offers. `schema` of its arguments: None for one that takes text."""

    name: str
    schema: dict | None
    namespace: str | None = None


@dataclass
class Conversation:
    """A request without its protocol.

    `calls` and `results` (by the calls' ids) are of the whole conversation; `prompt` has the texts
    of system and user, `answers` those of the model; `schema`: of the answer; `forced`: the name of the tool that must be called.
    `thinks`: whether the client asked for the model's thoughts.
    """

    tools: dict[str, Tool] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    results: dict[str, str] = field(default_factory=dict)
    prompt: str = ""
    answers: str = ""
    schema: dict | None = None
    forced: str | None = None
    thinks: bool = False
    images: int = 0

    def check_results(self):
        """Raise Refused for a call without its result, or a result without its call."""
        called = [call.id for call in self.calls]
        if len(called) != len(set(called)):
            raise Refused(f"a call occurs twice: {called}")
        if missing := set(called) - self.results.keys():
            raise Refused(f"no result for the calls {sorted(missing)}")
        if unknown := self.results.keys() - set(called):
            raise Refused(f"results for unknown calls {sorted(unknown)}")


def signature_of(thinking):
    """Return the signature of a thought; a thought that was changed no longer fits it."""
    return base64.b64encode(hashlib.sha256(thinking.encode()).digest()).decode()


def text_of(content):
    """Return the texts of a message's content, which is a text, a list of parts, or None."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part["text"] for part in content if isinstance(part.get("text"), str))


def images_in(content):
    kinds = ("image", "image_url", "input_image")
    return 0 if isinstance(content, str) else sum(p.get("type") in kinds for p in content or ())


def read_chat(body):
    """Read a request for chat completions."""
    talk = Conversation()
    for tool in body.get("tools") or ():
        if tool["type"] not in ("function", "custom"):
            raise Refused(f"Invalid value: {tool['type']!r}. Supported: 'function' and 'custom'.")
        known = tool[tool["type"]]
        schema = known.get("parameters") or {} if tool["type"] == "function" else None
        talk.tools[known["name"]] = Tool(known["name"], schema)
    for message in body["messages"]:
        role, content = message["role"], message.get("content")
        if role == "tool":
            talk.results[message["tool_call_id"]] = text_of(content)
        elif role == "assistant":
            talk.calls += map(_chat_call, message.get("tool_calls") or ())
            talk.answers += text_of(content) + "\n"
        else:
            talk.prompt += text_of(content) + "\n"
            talk.images += images_in(content)
    form = body.get("response_format") or {}
    if form.get("type") == "json_schema":
        talk.schema = form["json_schema"].get("schema") or {}
    elif form.get("type") == "json_object":
        talk.schema = {"type": "object"}
    talk.forced = _forced(body.get("tool_choice"), talk)
    talk.check_results()
    return talk


def _chat_call(call):
    if call["type"] == "custom":
        return Call(call["custom"]["name"], call["custom"]["input"], call["id"])
    return Call(call["function"]["name"], json.loads(call["function"]["arguments"]), call["id"])


def _forced(choice, talk):
    if choice in ("required", "any") or (isinstance(choice, dict) and choice["type"] == "any"):
        return next(iter(talk.tools))
    if not isinstance(choice, dict) or choice["type"] in ("auto", "none", "allowed_tools"):
        return None
    named = choice.get(choice["type"])
    return named["name"] if isinstance(named, dict) else choice.get("name")


def read_messages(body):
    """Read a request for Anthropic's messages."""
    talk = Conversation(thinks=(body.get("thinking") or {}).get("type") in ("enabled", "adaptive"))
    _check_message_fields(body, talk)
    for tool in body.get("tools") or ():
        talk.tools[tool["name"]] = Tool(tool["name"], tool.get("input_schema") or {})
    talk.prompt = text_of(body.get("system")) + "\n"
    open_calls = set()
    for message in body["messages"]:
        open_calls = _read_message(talk, message, open_calls)
    if (body.get("thinking") or {}).get("type") == "enabled":
        _check_last_thought(body["messages"])
    form = (body.get("output_config") or {}).get("format") or body.get("output_format")
    talk.schema = form and form["schema"]
    talk.forced = _forced(body.get("tool_choice"), talk)
    talk.check_results()
    return talk


def _check_message_fields(body, talk):
    if "max_tokens" not in body:
        raise Refused("max_tokens: Field required")
    if body.get("thread"):  # the SDK sends the request again without it
        unsupported = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
        raise Refused("this server holds no threads", **unsupported)
    if not talk.thinks:
        return
    if (body.get("tool_choice") or {}).get("type") in ("any", "tool"):
        raise Refused("Thinking may not be enabled when tool_choice forces tool use.")
    if body.get("temperature", 1) != 1:
        raise Refused("`temperature` may only be set to 1 when thinking is enabled.")
    if body["thinking"].get("budget_tokens", 0) >= body["max_tokens"]:
        raise Refused("`max_tokens` must be greater than `thinking.budget_tokens`.")


def _check_last_thought(messages):
    """A model that must think wants its thought back before the call whose result it is given."""
    last, before = messages[-1], messages[-2:-1]
    has_results = isinstance(last["content"], list) and any(
        block["type"] == "tool_result" for block in last["content"]
    )
    if has_results and before and before[0]["content"][0]["type"] != "thinking":
        raise Refused("Expected `thinking` or `redacted_thinking`, but found `tool_use`.")


def _read_message(talk, message, open_calls):
    """Read one message; return the ids of the calls that the next one must have results for."""
    content = message["content"]
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if message["role"] == "assistant":
        for block in content:
            if block["type"] == "thinking" and block.get("signature") != signature_of(
                block["thinking"]
            ):
                raise Refused("Invalid `signature` in `thinking` block")
        calls = [Call(b["name"], b["input"], b["id"]) for b in content if b["type"] == "tool_use"]
        talk.calls += calls
        talk.answers += text_of([block for block in content if block["type"] == "text"]) + "\n"
        return {call.id for call in calls}
    results = [block for block in content if block["type"] == "tool_result"]
    if missing := open_calls - {block["tool_use_id"] for block in results}:
        raise Refused(f"tool_use ids were found without tool_result blocks after: {missing}")
    talk.results |= {each["tool_use_id"]: text_of(each.get("content")) for each in results}
    talk.prompt += text_of([block for block in content if block["type"] == "text"]) + "\n"
    talk.images += images_in(content)
    return set()


def read_responses(body):
    """Read a request for responses."""
    talk = Conversation(prompt=(body.get("instructions") or "") + "\n")
    for tool in _flat(body.get("tools") or ()):
        talk.tools[tool.name] = tool
    asked = body.get("input") or []
    items = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
    for item in items:
        _read_item(talk, item)
    form = (body.get("text") or {}).get("format") or {}
    if form.get("type") == "json_schema":
        talk.schema = form["schema"]
    elif form.get("type") == "json_object":
        talk.schema = {"type": "object"}
    talk.forced = _forced(body.get("tool_choice"), talk)
    talk.check_results()
    return talk


def _flat(tools, namespace=None):
    for tool in tools:
        if tool["type"] == "function":
            yield Tool(tool["name"], tool.get("parameters") or {}, namespace)
        elif tool["type"] == "custom":
            yield Tool(tool["name"], None, namespace)
        elif tool["type"] == "namespace":
            yield from _flat(tool["tools"], tool["name"])


def _read_item(talk, item):
    kind = item.get("type", "message")
    if kind == "message" and item["role"] == "assistant":
        talk.answers += text_of(item["content"]) + "\n"
    elif kind == "additional_tools":
        talk.tools |= {tool.name: tool for tool in _flat(item["tools"])}
    elif kind == "message":
        talk.prompt += text_of(item["content"]) + "\n"
        talk.images += images_in(item["content"])
    elif kind == "function_call":
        talk.calls.append(Call(item["name"], json.loads(item["arguments"]), item["call_id"]))
    elif kind == "custom_tool_call":
        talk.calls.append(Call(item["name"], item["input"], item["call_id"]))
    elif kind in ("function_call_output", "custom_tool_call_output"):
        talk.results[item["call_id"]] = text_of(item["output"])
