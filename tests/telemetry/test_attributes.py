"""What is said of calls and content, as tables and properties."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redraft.telemetry.attributes import (
    MAX_CONTENT,
    answer_data,
    as_json,
    call_target,
    clean,
    message_data,
)


@pytest.mark.parametrize(
    ("name", "url", "expected"),
    [
        ("gpt-4o-mini", "https://api.openai.com/v1", ("openai", "api.openai.com", 443)),
        ("tiny", "http://127.0.0.1:8080/v1", ("openai", "127.0.0.1", 8080)),
        ("tiny", "http://[::1]:8080/v1", ("openai", "::1", 8080)),
        ("claude", "https://api.anthropic.com", ("anthropic", "api.anthropic.com", 443)),
        ("llama", "https://api.groq.com/openai/v1", ("groq", "api.groq.com", 443)),
        (
            "gpt",
            "https://mine.openai.azure.com/openai",
            ("azure.ai.openai", "mine.openai.azure.com", 443),
        ),
        (
            "gemini",
            "https://generativelanguage.googleapis.com/v1beta",
            ("gcp.gemini", "generativelanguage.googleapis.com", 443),
        ),
        ("x", "https://notgroq.com/v1", ("openai", "notgroq.com", 443)),
        ("anthropic:claude-sonnet-4-5", None, ("anthropic", None, None)),
        ("bedrock:nova", None, ("aws.bedrock", None, None)),
        ("my_function", None, ("custom", None, None)),
        ("x", "http://[broken", ("custom", None, None)),
        ("x", "http://host:99999/", ("custom", None, None)),
    ],
)
def test_target(name, url, expected):
    """The provider follows from the host, else from the name; an address without a name speaks
    OpenAI's protocol.
    """
    target = call_target(name, url)
    assert (
        target.provider,
        target.attributes.get("server.address"),
        target.attributes.get("server.port"),
    ) == expected


def test_address_has_no_secrets():
    """Of a URL, only the host and the port are recorded."""
    assert "SECRET" not in str(
        call_target("tiny", "https://user:SECRET@host:9/SECRET/v1?key=SECRET#SECRET").attributes
    )


@given(st.text(st.characters(codec=None, categories=None)), st.integers(0, 50))
def test_clean_text_can_be_exported(text, limit):
    """Any text becomes one that UTF-8 can encode, no longer than asked."""
    assert len(clean(text, limit).encode()) <= 4 * limit


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(st.characters(codec=None, categories=None), max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)
CONTENT = (
    st.text(max_size=50)
    | st.none()
    | st.lists(st.fixed_dictionaries({"type": JSON}, optional={"text": JSON}), max_size=3)
    | JSON
)
CALLS = (
    st.lists(st.fixed_dictionaries({"function": JSON}, optional={"id": JSON}), max_size=3) | JSON
)


@pytest.mark.slow
@given(
    st.lists(
        st.fixed_dictionaries(
            {"role": st.text(max_size=5), "content": CONTENT},
            optional={"tool_calls": CALLS, "tool_call_id": JSON},
        )
    )
)
def test_any_messages_can_be_exported(messages):
    """Whatever is in messages, they become JSON with roles and parts."""
    data = json.loads(as_json(message_data(messages)))
    assert all(set(each) == {"role", "parts"} for each in data)


@given(st.integers(1, 400), st.integers(0, 5000))
def test_content_is_bounded(count, size):
    """Long conversations are cut."""
    data = message_data([{"role": "user", "content": "\0" * size}] * count)
    assert sum(len(part["content"]) for each in data for part in each["parts"]) <= MAX_CONTENT


def test_answer_that_calls_tools():
    """An answer with tool calls and without text has them as parts."""
    from redraft.loop.records import ToolCall

    (answer,) = answer_data("", (ToolCall("search", '{"q": 1}', "c1"),), "tool_calls")
    assert answer["parts"] == [
        {"type": "tool_call", "id": "c1", "name": "search", "arguments": '{"q": 1}'}
    ]
    assert answer["finish_reason"] == "tool_calls"
