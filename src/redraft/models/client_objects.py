"""What `connect` takes as a model, and which of these are clients or models of other packages that
a user has already.

They are recognised by the module of their class, so that no package is imported that was not handed
in. `client_errors` says what their errors mean.
"""

from __future__ import annotations

from typing import Any

from ..protocols import Model


def is_model(model: Any) -> bool:
    """Whether `connect` takes an object: it may raise ConfigError for one of these, but not for
    another.
    """
    return (
        isinstance(model, str | Model)
        or callable(model)
        or is_client_with_name(model)
        or is_client_object(model)
    )


def is_client_with_name(model: Any) -> bool:
    """Whether a model is given as a pair of a client and the name of one of its models."""
    return isinstance(model, tuple) and len(model) == 2 and is_openai_client(model[0])


def is_client_object(value: Any) -> bool:
    """Whether an object is a client or a model of another package that `connect` takes."""
    return is_openai_client(value) or is_pydantic_ai_model(value) or is_langchain_object(value)


def is_pydantic_ai_model(value: Any) -> bool:
    """Whether an object is a model of pydantic-ai."""
    return _derives_from(value, "pydantic_ai.models", "Model")


def is_langchain_object(value: Any) -> bool:
    """Whether an object is a chat model of LangChain, or another object that LangChain can call."""
    return _derives_from(value, "langchain_core.", "Runnable")


def is_openai_client(client: Any) -> bool:
    """Whether an object is a client of the openai package, such as `OpenAI()` or
    `AsyncAzureOpenAI()`.
    """
    return _derives_from(client, "openai", "OpenAI") or _derives_from(
        client, "openai", "AsyncOpenAI"
    )


def is_langchain_chat_model(model: Any) -> bool:
    """Whether an object is a chat model of LangChain."""
    return _derives_from(model, "langchain_core.language_models", "BaseChatModel")


def is_openai_compatible(model: Any) -> bool:
    """Whether a chat model of LangChain sends its parameters to an OpenAI-compatible endpoint,
    response formats included.
    """
    return _derives_from(model, "langchain_openai", "BaseChatOpenAI")


def _derives_from(value: Any, module: str, name: str) -> bool:
    return any(
        kind.__name__ == name and kind.__module__.startswith(module) for kind in type(value).__mro__
    )
