"""Names of models: "openai:NAME", "ollama:NAME", "http://host/v1#NAME", "local:FILE", and
"ollama/NAME" as in litellm, which is not imported. `registry` connects them.
"""

from __future__ import annotations

import re

from ..base import checks
from ..errors import ConfigError
from .endpoint_url import (
    redacted_model_name,
    redacted_url,
)

LOCAL_SERVERS = {
    "ollama": "http://127.0.0.1:11434",
    "lmstudio": "http://127.0.0.1:1234",
    "llamacpp": "http://127.0.0.1:8080",
    "vllm": "http://127.0.0.1:8000",
}

VENDORS = (
    "alibaba",
    "anthropic",
    "azure",
    "bedrock",
    "cerebras",
    "cohere",
    "deepseek",
    "fireworks",
    "gateway/anthropic",
    "gateway/bedrock",
    "gateway/google",
    "gateway/groq",
    "gateway/openai",
    "gemini",
    "github",
    "google",
    "google-cloud",
    "google-gla",
    "google-vertex",
    "grok",
    "groq",
    "heroku",
    "huggingface",
    "meta",
    "mistral",
    "moonshotai",
    "nebius",
    "openai-responses",
    "openrouter",
    "ovhcloud",
    "sambanova",
    "together",
    "vercel",
    "xai",
    "zai",
)

_SEPARATOR = re.compile(r",\s*(?=[\w.-]+[:/])")
PREFIXES = (
    "openai:",
    *(f"{name}:" for name in LOCAL_SERVERS),
    "local:",
    "http://",
    "https://",
    *(f"{v}:" for v in VENDORS),
)


def canonical_name(spec: str) -> str:
    """Return a name with a prefix of this module for one that is written as in litellm; any other
    name unchanged.
    """
    spec = spec.strip()
    return spec if spec.startswith(PREFIXES) else from_litellm(spec)


def split_names(text: str) -> list[str]:
    """Return the names in a text such as "openai:gpt-4o, ollama:llama3.2". A comma separates if a
    prefix follows it.
    """
    return [name.strip() for name in _SEPARATOR.split(text.strip())]


# ---- names as litellm writes them

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


# ---- unknown names

EXAMPLES = "openai:gpt-4o-mini, ollama:llama3.2, http://127.0.0.1:8080/v1#NAME or local:FILE.gguf"
VENDOR_BY_NAME_PREFIX = {  # the vendors of models whose names begin so
    "gpt": "openai",
    "chatgpt-": "openai",
    "o1": "openai",
    "o3": "openai",
    "o4": "openai",
    "claude": "anthropic",
    "gemini": "google",
    "grok": "xai",
    "mistral": "mistral",
    "deepseek": "deepseek",
    "command": "cohere",
    "llama": "ollama",
    "qwen": "ollama",
    "gemma": "ollama",
    "phi": "ollama",
}

_HOST = r"(localhost|[\w.-]+:[0-9]{2,5}|\[[0-9a-fA-F:]+\](:[0-9]{1,5})?|[\w-]+(\.[\w-]+)*\.(com|org|net|io|ai))(/.*)?"  # noqa: E501
_BROKEN_URL = re.compile(r"h\w{1,3}p(?P<safe>s?)(:|;|/)+(?P<rest>[^/].*)", re.IGNORECASE)


def unknown_model_message(spec: str) -> str:
    """Return the message for an unknown name: the name that was probably meant, and the known
    prefixes.
    """
    if not spec:
        return f"the name of a model is empty, got ''; examples are {EXAMPLES}"
    shown = redacted_url(spec) or spec
    suggestion = _suggested_name(shown)
    _, _, name = redacted_model_name(f"://{spec}").partition("#")
    if name and "@" not in name:  # (a part before an @ may be a password)
        suggestion = suggestion.replace("#NAME", f"#{name}")
    hint = f"did you mean {suggestion!r}? " if suggestion else ""
    prefix, colon, _ = shown.partition(":")
    fault = "does not begin with a known prefix"
    if f"{prefix}:" in PREFIXES:
        fault = (
            "names no model after the colon" if colon else "is a prefix without the name of a model"
        )
    if shown.endswith(".gguf"):
        fault = "is a file, which needs the prefix local:"
    return (
        f"the model {shown!r} {fault}{'; ' + hint if hint else '. '}Examples are {EXAMPLES}; the "
        f"prefixes are {', '.join(PREFIXES[:7])} and those of {len(VENDORS)} vendors, such as "
        "anthropic: (`redraft models` lists models)"
    )


def _suggested_name(spec: str) -> str:
    """Return the name that was probably meant; "" if none is similar."""
    prefix, colon, name = spec.partition(":")
    if spec.startswith("#") or prefix.lower() == "none":  # (as in `--model none`)
        return ""
    if spec.endswith(".gguf"):
        return f"local:{name.strip() if prefix.lower() == 'local' else spec}"
    if f"{prefix}:" in PREFIXES:
        return f"{prefix}:NAME"
    if address := _suggested_address(spec):
        return address
    if not colon and "/" in spec:
        prefix, _, name = spec.partition("/")
    elif vendor := _vendor_of(spec) or ("" if colon else "ollama"):
        # (names in Ollama have a tag after a colon)
        is_whole = not colon or vendor == "ollama"
        return f"{vendor}:{spec if is_whole else name.strip() or 'NAME'}"
    known = _nearest_prefix(prefix)
    return f"{known}{name.lstrip('/').strip() or 'NAME'}" if known else ""


def _suggested_address(spec: str) -> str:
    """Return the address that a broken or incomplete one was probably meant to be; "" for what is
    none.
    """
    if broken := _BROKEN_URL.fullmatch(spec):
        return f"http{broken['safe'].lower()}://{_with_model_placeholder(broken['rest'])}"
    if not re.fullmatch(_HOST, spec):
        return ""
    scheme = "http" if ":" in spec or spec.startswith("localhost") else "https"
    return f"{scheme}://{_with_model_placeholder(spec)}"


def _vendor_of(name: str) -> str:
    """Return the vendor of a model, judged by its name; "" if it is unknown."""
    return next(
        (
            vendor
            for start, vendor in VENDOR_BY_NAME_PREFIX.items()
            if name.casefold().startswith(start)
        ),
        "",
    )


def _nearest_prefix(word: str) -> str:
    """Return the known prefix that is most similar to a word; "" if none is."""
    closest = checks.closest_names(
        word.strip(), [prefix.rstrip(":") for prefix in PREFIXES if "//" not in prefix], 1
    )
    return f"{closest[0]}:" if closest else ""


def _with_model_placeholder(address: str) -> str:
    """Complete an address without a scheme with a path and a placeholder for the name of a
    model.
    """
    host, _, path = address.partition("/")
    return f"{host}/{path.rstrip('/') or 'v1'}#NAME"
