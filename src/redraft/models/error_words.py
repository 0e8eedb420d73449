"""What an error of a server says in its codes and words, where the status does not.

A wrong key is a 400 at Gemini and xAI, an account without money a 429 at Zhipu and Moonshot, an
unknown model a 400 at DeepSeek and litellm, and a content filter has another code at each. The
words here are those of their documents and of public reports. An error may quote the request, so
that words show less than a code or a status: `ModelError.inferred` says that there were only words.
"""

from __future__ import annotations

import re
from itertools import chain
from typing import Literal, NamedTuple, TypeAlias

from ..errors import AuthenticationError

Fault: TypeAlias = Literal["filter", "length", "key", "money", "model"]
"""What is wrong: the content, the length of the prompt, the key, the money of the account, the name
of the model.
"""


class _Signs(NamedTuple):
    """The codes and the words for a fault, and the statuses with which the words count (200: the
    error is in an answer).
    """

    fault: Fault
    codes: frozenset[str]
    words: str
    statuses: frozenset[int]


def _signs(fault: Fault, codes: str, *words: str, statuses: frozenset[int]) -> _Signs:
    return _Signs(fault, frozenset(codes.split()), "|".join(words), statuses)


_REFUSED = frozenset({200, 400, 422})
_SIGNS: tuple[_Signs, ...] = (  # (the words are compiled only after an error)
    _signs(
        "filter",
        "content_filter content_policy_violation invalid_prompt data_inspection_failed "
        "datainspectionfailed moderation_blocked",
        r"data_?inspection_?failed|inappropriate content|content (filter|management|moderation)[^.]{0,20} policy|content violates",
        r"input was flagged|(blocked|flagged|rejected)\b[^.]{0,60}(content|moderation|polic|safety)|不安全或敏感",
        statuses=_REFUSED | {403},
    ),
    _signs(
        "length",
        "context_length_exceeded exceed_context_size_error string_above_max_length "
        "request_too_large",
        r"context (length|size|window|limit)|maximum context|prompt is too long|too many (input )?tokens|input is too long",
        r"(prompt|input|request)[^.]{0,60} exceed(s|ed)? [^.]{0,60}(tokens?|length)\b|range of input length",
        r"reduce the length of the (messages|prompt|input|conversation)|tokens\b[^.]{0,40} must be <=|must be at least 1, got -",
        statuses=_REFUSED | {413, 500},
    ),
    _signs(
        "key",
        "invalid_api_key api_key_invalid no_db_connection",
        r"(incorrect|invalid|wrong) api[ _-]?key|api[ _-]?key (is |was )?(not valid|invalid|incorrect|expired)|login fail",
        statuses=_REFUSED | {429},
    ),
    _signs(
        "money",
        "arrearage exceeded_current_quota_error",
        r"insufficient (account )?(balance|credit|fund)|(balance|credits?) (is|are) (too low|exhausted|used up)|余额不足",
        statuses=_REFUSED | {429},
    ),
    _signs(
        "model",
        "model_not_found model_not_available invalid_model dedicated_endpoint_not_running",
        r"no such model|\bmodel not (exist|found)|\bmodel\b[^\n]{0,80} (does not|doesn't) exist|\bmodel\b[^\n]{0,80} not found",
        r"\b(invalid|unknown) model\b(?! (answer|output|response))|not a valid model|模型不存在",
        statuses=_REFUSED,
    ),
    _signs(
        "length",
        "",
        # (OpenAI: more tokens than all of a minute or a day)
        r"request too large\b.{0,200}\blimit:? \d+, requested:? \d+",
        statuses=frozenset({429}),
    ),
)


def stated_fault(status: int, codes: set[str], text: str) -> Fault | None:
    """Return what codes and text of an error with this status say is wrong; None if they do not say
    it. A code counts first.
    """
    lower = {code.lower() for code in codes}
    by_code = (signs for signs in _SIGNS if lower & signs.codes)
    in_words = (
        signs
        for signs in _SIGNS
        if status in signs.statuses and re.search(signs.words, text, re.IGNORECASE)
    )
    found = next(chain(by_code, in_words), None)
    return found.fault if found else None


def is_out_of_credit(error: AuthenticationError) -> bool:
    """Whether the account has no money or no quota left; else its key is refused."""
    fault = stated_fault(error.status or 200, set(), str(error))
    return fault == "money" or (fault != "key" and error.status not in {None, 401, 403})
