"""The names of fields, tools and parts of contents that choose where a request goes, or that cost more than its text.

They are of all protocols, and of the providers, routers and servers that may be behind a model. `request_costs` has the rules.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

ROUTING_FIELDS = frozenset(
    (
        *("models", "fallbacks", "fallback_models", "route", "provider", "providers", "preset", "model_list", "engine"),
        *("user_config", "deployment_id", "specific_deployment", "base_model", "context_window_fallback_dict"),
        *("custom_llm_provider", "lora_path", "adapter_id", "adapter_source"),
        *("api_base", "base_url", "api_version", "api_type", "headers", "extra_headers", "extra_query", "extra_body"),
        *("provider_specific_header", "kv_transfer_params", "bootstrap_host", "bootstrap_port", "data_sources"),
        *("api_key", "api_token", "organization", "litellm_credential_name", "azure_ad_token", "client_id", "client_secret"),
        *("tenant_id", "region_name", "vertex_project", "vertex_location", "vertex_credentials", "langfuse_host"),
        *("aws_access_key_id", "aws_secret_access_key", "aws_session_token", "aws_session_name", "aws_profile_name"),
        *("aws_role_name", "aws_web_identity_token", "aws_sts_endpoint", "aws_region_name", "aws_bedrock_runtime_endpoint"),
    )
)
"""Fields by which routers, proxies and servers let a client choose the model, the host or the credentials."""
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

The last three change how many tokens an image or a text has; of an answer in the background the gateway sees no usage.
"""
PRICED_PARTS = ("file_id", "item_reference", "input_audio")
"""Parts of a content that cost money without a known price: what the provider has stored, and audio, whose tokens cost more."""

CONVERSATIONS = ("messages", "input", "system", "instructions")
"""The fields that hold contents."""

CLIENT_TOOLS = frozenset(
    ("function", "custom", "local_shell", "apply_patch", "computer", "computer_use_preview", "tool_search", "shell", "namespace")
)
"""Types of tools that the client runs. Of the last three some forms are run by the provider (see `request_costs`)."""
GROUPED = frozenset(("function", "custom"))  # in a namespace
CLIENT_TOOLS_WITH_DATE = re.compile(r"(?:bash|text_editor|computer|memory|computer_toolset|browser_toolset)_\d{8}", re.ASCII)

TEXT_PARTS = frozenset(
    (
        *("text", "input_text", "output_text", "refusal", "summary_text", "reasoning_text", "thinking", "redacted_thinking"),
        *("message", "tool_use", "tool_result", "function_call", "function_call_output", "search_result"),
        *("custom_tool_call", "custom_tool_call_output", "local_shell_call", "local_shell_call_output", "shell_call"),
        *("shell_call_output", "apply_patch_call", "apply_patch_call_output", "computer_call", "computer_call_output"),
        *("server_tool_use", "web_search_tool_result", "web_search_result", "tool_reference"),
        *("tool_search_call", "tool_search_output", "mcp_list_tools", "additional_tools", "tool_addition", "tool_removal"),
    )
)
"""Types of items and parts whose whole content is in the request, but for the parts inside them."""
PLAIN_PARTS = ("text", "input_text", "output_text")
ENCRYPTED_PARTS = frozenset(("reasoning", "compaction"))
"""Types of items whose content is in the request in an encrypted form, or stored by the provider and named by its ID."""
TEXT_SOURCES = frozenset(("text", "content"))  # of a document
IMAGE_PARTS = frozenset(("image", "image_url", "input_image", "computer_screenshot"))
AUDIO_PARTS = frozenset(("input_audio", "audio_url"))
TOOL_LISTS = frozenset(("additional_tools", "tool_search_output", "tool_addition"))
"""Types of items that add tools to a conversation."""
