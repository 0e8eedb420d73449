"""Read the log-probabilities of tokens from the responses of OpenAI-compatible endpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..protocols import TokenLogprobs

MAX_TOP_TOKENS = 20  # alternatives of a token that are kept
MAX_TOKENS = 100_000  # tokens of an answer whose log-probabilities are read


def logprob_entries(choice: Mapping[str, Any]) -> list[Any]:
    """Return the entries for the tokens in a choice, as the endpoint sent them; an empty list if
    there are none.
    """
    logprobs = choice.get("logprobs")
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    return content if isinstance(content, list) else []


def read_logprobs(entries: list[Any]) -> tuple[TokenLogprobs, ...]:
    """Return the tokens with their log-probabilities; () if one is malformed: an answer without
    them is still an answer.
    """
    try:
        tokens = [_token_text(entry) for entry in entries[: MAX_TOKENS + 1]]
        if len(tokens) > MAX_TOKENS:
            return ()
        has_digit = [any(map(str.isdigit, token)) for token in tokens]
        kept = (
            here or before for here, before in zip(has_digit, [False, *has_digit], strict=False)
        )
        return tuple(
            TokenLogprobs(t, _top_tokens(e) if k else ())
            for t, e, k in zip(tokens, entries, kept, strict=True)
        )
    except (TypeError, ValueError, KeyError, AttributeError):
        return ()


def _token_text(entry: Mapping[str, Any]) -> str:
    """Return a token. Its bytes are preferred: a token may be a part of a character."""
    data, token = entry.get("bytes"), entry["token"]
    if not isinstance(token, str):
        raise TypeError(token)
    return bytes(data).decode("utf-8", "surrogateescape") if isinstance(data, list) else token


def _top_tokens(entry: Mapping[str, Any]) -> tuple[tuple[str, float], ...]:
    """Return the most likely tokens and the chosen one. Raises ValueError for what is no
    log-probability.
    """
    alternatives = [entry, *(entry.get("top_logprobs") or ())][: MAX_TOP_TOKENS + 1]
    return tuple({_token_text(one): _logprob(one["logprob"]) for one in alternatives}.items())


def _logprob(value: Any) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or math.isnan(value)
        or value > MAX_LOGPROB
    ):
        raise ValueError(value)
    return max(min(float(value), 0.0), MIN_LOGPROB)


MIN_LOGPROB, MAX_LOGPROB = -1e4, 1e-3  # (some endpoints send -inf, and 0 with a rounding error)
