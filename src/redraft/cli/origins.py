"""Where a command took its settings from, said once, with where its models are asked."""

from __future__ import annotations

import os
from typing import Any

import click

from . import notices
from .config import used_layers

TRACE = "redraft.trace"  # of a context's `meta`: the trace that settings were taken from


def announce(*models: Any) -> None:
    """Say from which files settings were taken, if from any, and where these models are asked; None is no model."""
    ctx = click.get_current_context()
    files = [layer.where for layer, _ in reversed(used_layers(ctx))]
    if trace := ctx.meta.get(TRACE):
        files.append(trace)
    if files:
        places = " and ".join(dict.fromkeys(place_of(model) for model in models if model))
        notices.notice(f"settings from {' and '.join(files)}; {f'model at {places}' if places else 'no model'}")


def place_of(model: Any) -> str:
    """Where a model is asked: an address without user info and query, a provider, or this machine."""
    from ..models.endpoint_url import redacted_url
    from ..models.registry import LOCAL_SERVERS, openai_url, server_url

    if not isinstance(model, str):
        address = getattr(model, "base_url", None)
        return redacted_url(str(address)) if address else str(getattr(model, "name", model))
    prefix = model.strip().partition(":")[0]
    if "//" in model:
        return redacted_url(model.strip().partition("#")[0])
    if prefix in LOCAL_SERVERS:
        return redacted_url(server_url(prefix, os.environ))
    if prefix == "openai":
        return redacted_url(openai_url(os.environ))
    return "this machine" if prefix == "local" else prefix
