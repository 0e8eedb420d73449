"""Names of models as litellm writes them, such as "ollama/llama3", and the names that they have
here. litellm is not imported.
"""

from __future__ import annotations

import re

from ..errors import ConfigError

PREFIX_BY_PROVIDER = {
    "anthropic": "anthropic",
    "azure": "azure",
    "bedrock": "bedrock",
    "cerebras": "cerebras",
    "cohere": "cohere",
    "cohere_chat": "cohere",
    "dashscope": "alibaba",
    "deepseek": "deepseek",
    "fireworks_ai": "fireworks",
    "gemini": "google",
    "github": "github",
    "groq": "groq",
    "heroku": "heroku",
    "hosted_vllm": "vllm",
    "huggingface": "huggingface",
    "llamafile": "llamacpp",
    "lm_studio": "lmstudio",
    "meta_llama": "meta",
    "mistral": "mistral",
    "moonshot": "moonshotai",
    "nebius": "nebius",
    "ollama": "ollama",
    "ollama_chat": "ollama",
    "openai": "openai",
    "openrouter": "openrouter",
    "ovhcloud": "ovhcloud",
    "sambanova": "sambanova",
    "together_ai": "together",
    "vercel_ai_gateway": "vercel",
    "vertex_ai": "google-cloud",
    "vllm": "vllm",
    "xai": "xai",
    "zai": "zai",
}
"""The prefix of a model here by its provider in litellm."""

BY_ADDRESS = frozenset(
    {
        "custom_openai",
        "openai_like",
        "deepinfra",
        "hyperbolic",
        "nvidia_nim",
        "novita",
        "perplexity",
        "litellm_proxy",
    }
)
"""Providers in litellm whose models have an address here, because they speak OpenAI's protocol, and
its own proxy.
"""

_BEDROCK_ROUTE = re.compile(r"(converse|converse_like|invoke)/")


def from_litellm(spec: str) -> str:
    """Return the name here of a model that is named as in litellm; any other name unchanged. Raises
    ConfigError.
    """
    provider, slash, name = spec.partition("/")
    name = name.strip()
    if not slash or not name or ":" in provider:
        return spec
    if provider in BY_ADDRESS:
        raise ConfigError(
            f"{provider} has no prefix here: give the address of its OpenAI-compatible endpoint, "
            f"https://HOST/v1#{name}"
        )
    if provider not in PREFIX_BY_PROVIDER:
        return spec
    if provider == "openai" and name.startswith("gpt-oss"):
        raise ConfigError(
            f"{spec!r} may be OpenAI's model {name!r} or open weights of that name: write "
            f"openai:{name}, or say where they are served, such as vllm:{spec} or "
            f"ollama:{name.replace('-oss-', '-oss:')}"
        )
    if provider == "vertex_ai" and not name.startswith("gemini"):
        raise ConfigError(
            f"{spec!r}: of the models on Vertex AI only Gemini is supported, such as "
            "google-cloud:gemini-2.5-flash"
        )
    if provider == "bedrock":
        name = _BEDROCK_ROUTE.sub("", name, count=1)
    return f"{PREFIX_BY_PROVIDER[provider]}:{name}"
