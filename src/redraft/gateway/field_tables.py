"""The names of fields, tools and parts of contents that cost more than the text of a request.

They are of all protocols, and of the providers, routers and servers that may be behind a model.
`request_costs` has the rules, and `redraft.base.parameters` the fields that choose where a request
goes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

PRICED_FIELDS: Mapping[str, tuple[Any, ...]] = {
    "service_tier": ("auto", "default", "standard", "standard_only", "on_demand", "flex"),
    "speed": ("standard",),
    "inference_geo": ("global",),
    "web_search_options": (),
    "search_parameters": ({"mode": "off"},),
    "enable_search": (False,),
    "plugins": ([],),
    "mcp_servers": ([],),
    "container": (),
    **dict.fromkeys(("previous_response_id", "conversation", "prompt"), ("",)),
    "thread": ({"type": "create"},),
    "prediction": (),
    "audio": (),
    "modalities": (["text"],),
    "background": (False,),
    "deferred": (False,),
    "context_management": ([],),
    **dict.fromkeys(("mm_processor_kwargs", "media_io_kwargs", "chat_template"), ({}, "")),
}
"""Fields that cost money besides the tokens of the text: the values that cost nothing more.

The last three change how many tokens an image or a text has; of an answer in the background the
gateway sees no usage.
"""
PRICED_PARTS = ("file_id", "item_reference", "input_audio")
"""Parts of a content that cost money without a known price: what the provider has stored, and
audio, whose tokens cost more.
"""

OUTPUT_LIMITS: Mapping[str, tuple[str, ...]] = {
    "chat": ("max_completion_tokens", "max_tokens"),
    "responses": ("max_output_tokens",),
    "messages": ("max_tokens",),
    "completions": ("max_tokens",),
    "compact": ("max_output_tokens",),
}
"""The fields of each protocol, and of other endpoints that write text, that limit the tokens of an
answer.
"""
OUTPUT_FIELDS = (
    *("max_completion_tokens", "max_tokens", "max_output_tokens"),
    # of servers that OpenAI's protocol is not enough for
    *("n_predict", "num_predict", "max_new_tokens", "min_tokens"),
)
"""All fields that change the tokens of an answer. Which of them a model obeys is not known, nor
what it makes of one below 1.
"""
ANSWER_COUNTS = ("n", "best_of")

CONVERSATIONS = ("messages", "input", "system", "instructions")
"""The fields that hold contents."""

COUNTED_NAMES = frozenset(
    (
        *PRICED_FIELDS,
        *OUTPUT_FIELDS,
        *ANSWER_COUNTS,
        *CONVERSATIONS,
        "tools",
        "tool_choice",
        "cache_control",
    )
)
"""The fields of a request whose cost depends on their names."""

CLIENT_TOOLS = frozenset(
    (
        *("function", "custom", "local_shell", "apply_patch", "computer", "computer_use_preview"),
        *("tool_search_tool_regex", "tool_search_tool_bm25", "tool_search", "shell", "namespace"),
    )
)
"""Types of tools that the client runs, or that cost tokens only. Of the last three some forms cost
more (see `request_costs`).
"""
GROUPED = frozenset(("function", "custom"))  # in a namespace
CLIENT_TOOLS_WITH_DATE = re.compile(
    r"(?:bash|text_editor|computer|memory|computer_toolset|browser_toolset|tool_search_tool_(?:regex|bm25))_\d{8}",
    re.ASCII,
)

WORDS = frozenset(
    (
        "text",
        "input_text",
        "output_text",
        "refusal",
        "summary_text",
        "reasoning_text",
        "thinking",
        "redacted_thinking",
    )
)
"""Types of parts that are a text and what is said about it (`WORD_FIELDS`)."""
WORD_FIELDS = frozenset(
    (
        *(
            "type",
            "text",
            "refusal",
            "thinking",
            "signature",
            "data",
            "id",
            "index",
            "status",
            "phase",
            "cache_control",
        ),
        *(
            "annotations",
            "citations",
            "logprobs",
            "prompt_cache_breakpoint",
            "extra_content",
            "thought_signature",
        ),
    )
)
TEXT_PARTS = WORDS | frozenset(
    (
        *(
            "message",
            "tool_use",
            "tool_result",
            "function_call",
            "function_call_output",
            "search_result",
        ),
        *(
            "custom_tool_call",
            "custom_tool_call_output",
            "local_shell_call",
            "local_shell_call_output",
            "shell_call",
        ),
        *(
            "shell_call_output",
            "apply_patch_call",
            "apply_patch_call_output",
            "computer_call",
            "computer_call_output",
        ),
        *("server_tool_use", "web_search_tool_result", "web_search_result", "tool_reference"),
        *(
            "tool_search_call",
            "tool_search_output",
            "mcp_list_tools",
            "additional_tools",
            "tool_addition",
            "tool_removal",
        ),
        *(
            "mcp_call",
            "mcp_approval_request",
            "mcp_approval_response",
            "logs",
            "mcp_tool_use",
            "mcp_tool_result",
        ),
        *(
            "web_fetch_tool_result",
            "web_fetch_result",
            "code_execution_tool_result",
            "code_execution_result",
        ),
        *(
            "bash_code_execution_tool_result",
            "bash_code_execution_result",
            "text_editor_code_execution_tool_result",
        ),
        *(
            f"text_editor_code_execution_{done}_result"
            for done in ("view", "create", "str_replace")
        ),
        *("tool_search_tool_result", "tool_search_tool_search_result"),
        *(
            f"{tool}_tool_result_error"
            for tool in ("web_search", "web_fetch", "code_execution", "tool_search")
        ),
        *(f"{tool}_code_execution_tool_result_error" for tool in ("bash", "text_editor")),
    )
)
"""Types of items and parts whose whole content is in the request, but for the parts inside them."""
PLAIN_PARTS = ("text", "input_text", "output_text")
STORED_PARTS: Mapping[str, str] = {
    **dict.fromkeys(("reasoning", "compaction"), "encrypted_content"),
    **dict.fromkeys(("web_search_call", "file_search_call"), "results"),
    "code_interpreter_call": "outputs",
}
"""Types of items that have their content in the field that stands here, or name by their ID what
the provider has stored.
"""
SHELL_OUTPUT = frozenset(("stdout", "stderr", "outcome"))
MEDIA_FIELDS = frozenset(
    (
        *(
            "image_url",
            "image",
            "images",
            "image_embeds",
            "image_pil",
            "audio_url",
            "input_audio",
            "audio",
            "audio_embeds",
        ),
        *("video_url", "video", "videos", "file", "file_url", "file_data"),
    )
)
"""Fields in which servers look for an image, a file or the like, also in a part of another type."""
PART_NAMES = MEDIA_FIELDS | frozenset(
    (
        *(
            "type",
            "role",
            "content",
            "output",
            "outputs",
            "source",
            "file_id",
            "cache_control",
            "tools",
            "tool",
        ),
        *("environment", "execution", "id", "url", "encrypted_content"),
    )
)
"""The fields of a part or a tool whose cost depends on their names."""
TEXT_SOURCES = frozenset(("text", "content"))  # of a document
IMAGE_PARTS = frozenset(("image", "image_url", "input_image", "computer_screenshot"))
NO_IMAGE_FIELDS = MEDIA_FIELDS - {"image", "image_url"}
AUDIO_PARTS = frozenset(("input_audio", "audio_url"))
TOOL_LISTS = frozenset(("additional_tools", "tool_search_output", "tool_addition"))
"""Types of items that add tools to a conversation."""


def is_usual(names: str) -> bool:
    """Whether names of fields are ASCII without capitals, as those of all protocols are."""
    return names.isascii() and names == names.lower()
