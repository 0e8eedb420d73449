"""Clients of models: they turn messages into text. Heavy libraries load on first use.

To add a provider:

- It speaks OpenAI's chat protocol: add its name and address to `LOCAL_SERVERS` in `model_names`;
  `openai_chat.Chat` is the client; `chat_replies`, `sse` and `server_errors` read what the endpoint
  sends.
- pydantic-ai has a client for it: add its prefix to `VENDORS` in `model_names`;
  `pydantic_ai.ProviderModel` is the client.
- Otherwise write a class with `name`, `identity` and `async complete(request) -> Reply`
  (`redraft.protocols.Model`) that raises `ModelError`s and does not retry, limit or cache:
  middleware does. Pass it to `refine` as `model`, or connect it to a prefix, in `PREFIXES` of
  `model_names` and `_model_from_name` of `registry`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base.lazy_imports import attribute_loader

if TYPE_CHECKING:
    from .discovery import DiscoveryResult, SearchLocation, find_model
    from .functions import CallableModel, ScriptedModel
    from .http_client import Timeouts
    from .openai_chat import Chat
    from .pricing import Price, price_of
    from .registry import connect
else:
    __getattr__ = attribute_loader(
        __name__,
        {
            "CallableModel": "functions",
            "Chat": "openai_chat",
            "DiscoveryResult": "discovery",
            "Price": "pricing",
            "ScriptedModel": "functions",
            "SearchLocation": "discovery",
            "Timeouts": "http_client",
            "connect": "registry",
            "find_model": "discovery",
            "price_of": "pricing",
        },
    )

__all__ = [
    "CallableModel",
    "Chat",
    "DiscoveryResult",
    "Price",
    "ScriptedModel",
    "SearchLocation",
    "Timeouts",
    "connect",
    "find_model",
    "price_of",
]
