"""Why a model's answer ended: the words of providers and servers, and what each says about the
answer.

Here is the one list of them. A word that is not in it does not say that the answer is whole.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from ..errors import BadResponseError
from ..usage import Usage

Ending: TypeAlias = Literal["stop", "length", "tool_calls", "content_filter", "failed", "unknown"]

_WORDS: Mapping[Ending, str] = {
    "stop": (
        "stop stopped stop_sequence stop_string stop_token stop_word stop_trigger stop_criteria "
        "eos eos_token eos_found eog_token stop_string_found stop_sequence_reached stop_before "
        "end end_turn end_of_turn end_of_text end_of_message end_token complete completed finish "
        "finished done normal success succeeded pause_turn"
    ),
    "length": (
        "length limit max_token max_tokens max_length max_new_tokens max_output_tokens "
        "max_completion_tokens max_tokens_exceeded model_length token_limit error_limit "
        "context_length context_length_exceeded context_window_exceeded "
        "model_context_window_exceeded context context_length_reached maximum_tokens "
        "max_predicted_tokens_reached out_of_tokens truncated"
    ),
    "tool_calls": "tool_call tool_calls tool_use function_call function_calls",
    "content_filter": (
        "content_filter content_filtered safety image_safety recitation image_recitation "
        "blocklist blocked prohibited_content image_prohibited_content spii language blacklist "
        "guardrail_intervened refusal refused error_toxic sensitive moderation model_armor"
    ),
    "failed": (
        "error errored failed failure abort aborted cancel canceled cancelled user_cancel "
        "interrupted incomplete terminated disconnected timeout timed_out overloaded "
        "rate_limit_exceeded insufficient_system_resource network_error server_error "
        "internal_error engine_error malformed_response malformed_function_call "
        "function_call_filter unexpected_tool_call too_many_tool_calls missing_thought_signature "
        "repetition no_image image_other other load unload model_unloaded user_stopped "
        "malformed_model_output malformed_tool_use"
    ),
}
_UNSTATED = "null none unspecified unknown"  # and servers that have not ended yet write these, too
_NOT_LETTERS = re.compile(r"[^a-z]+")
_ENDINGS: dict[str, Ending | None] = {
    **{word.replace("_", ""): ending for ending, words in _WORDS.items() for word in words.split()},
    **dict.fromkeys(["", *_UNSTATED.split()]),
}


def ending_of(reason: Any) -> Ending | None:
    """Return what a reason to finish says; None for one that says nothing.

    Case, separators, a prefix as in "FINISH_REASON_STOP" and details after a colon do not matter. A
    reason may also be an object with a `type`.
    """
    if isinstance(reason, Mapping):
        reason = reason.get("type")
    if reason is None:
        return None
    word = (
        _NOT_LETTERS.sub("", str(reason).partition(":")[0].lower()[:100])
        .removeprefix("finishreason")
        .removeprefix("stopreason")
    )
    return _ENDINGS.get(word, "unknown") if word or not str(reason).strip() else "unknown"


def checked_finish(reason: Any, usage: Usage) -> str | None:
    """Return OpenAI's word for a reason to finish; None if nothing is stated.

    Raises BadResponseError for one that says that the answer failed, or that is not known: the
    answer may not be whole.
    """
    ending = ending_of(reason)
    if ending not in {"failed", "unknown"}:
        return ending
    what = (
        "broke off its answer"
        if ending == "failed"
        else "ended its answer for an unknown reason, so it may not be whole"
    )
    failure = BadResponseError(
        f"{what} (finish_reason {repr(reason)[:200]})", retryable=True, usage=usage
    )
    failure.malformed, failure.has_unknown_end = ending == "failed", ending == "unknown"
    raise failure
