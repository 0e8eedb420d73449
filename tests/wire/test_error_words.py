"""What errors say in their words: the same fault in the words of many servers, and what only looks
like one.
"""

import pytest

from each_row import each_row
from redraft.errors import (
    AuthenticationError,
    ContextLengthError,
    ModelError,
    ModelTimeoutError,
    ModelUnavailableError,
    RateLimitError,
)
from redraft.models.server_errors import ErrorBody, error_from_status, stated_fault
from redraft.usage import Usage

SAID = {
    "filter": [
        "<400> InternalError.Algo.DataInspectionFailed: Input text data may contain inappropriate content.",
        "Output blocked by content filtering policy",
        "The response was filtered due to the prompt triggering Azure OpenAI's content management policy.",
        "Content violates usage guidelines.",
        'openai/gpt requires moderation on OpenAI. Your input was flagged for "violence".',
    ],
    "length": [
        "input length and `max_tokens` exceed context limit: 199759 + 8192 > 200000, decrease input length",
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 65537. Given: 79993 `inputs` tokens",
        "Please reduce the length of the messages or completion. Current length is 42328 while limit is 40000",
        "Invalid request: Your request exceeded model token limit: 8192",
        "Prompt length (5056) exceeds maximum sequence length (2048)",
        "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 30720]",
        "The input token count (2845475) exceeds the maximum number of tokens allowed (1048576).",
    ],
    "key": [
        "API key not valid. Please pass a valid API key.",
        "Incorrect API key provided: na***ys. You can obtain an API key from https://console.x.ai.",
        "login fail: Please carry the API secret key",
    ],
    "money": [
        "Your credit balance is too low to access the Anthropic API.",
        "Your account is suspended due to insufficient balance, please recharge your account",
        "余额不足或无可用资源包,请充值。",
    ],
    "model": [
        "Model Not Exist",
        "The model `gpt-9.5-turbo` does not exist or you do not have access to it.",
        "/chat/completions: Invalid model name passed in model=nothere.",
        "AiError: No such model @cf/meta/llama or task",
        "google/gemini-2.0:free is not a valid model ID",
        "Invalid model 'sonar-9'. Permitted models can be found in the documentation.",
        "model 'llama9' not found",
    ],
    None: [
        "",
        "max_tokens (10000) cannot exceed 8192. Please reduce the length of max output tokens generated.",
        "Requests with max_tokens > 4096 must have stream=true",
        "The model returned an invalid model response",
        "This model does not support response_format",
        "Invalid parameter: temperature must be between 0 and 2",
        "parameter.enable_thinking must be set to false for non-streaming calls",
        "Unknown parameter: 'content_filter_mode'",
        "The model is overloaded. Please try again later.",
        "The model `gpt-5` does not support the parameter seed",
    ],
}
CASES = [(words, fault) for fault, texts in SAID.items() for words in texts]


@each_row(("words", "fault"), CASES)
def test_words_say_what_is_wrong(words, fault):
    """In a 400, and in an answer with status 200; what a server that is down says of it counts for
    nothing.
    """
    assert stated_fault(400, set(), words) == stated_fault(200, {"400"}, words) == fault
    assert stated_fault(503, {"503"}, words) is None


@pytest.mark.parametrize(
    "limit",
    [
        "tokens per min (TPM): Limit 30000, Requested 31538",
        "tokens per day (TPD): Limit 9, Requested 12",
    ],
)
def test_a_request_that_exceeds_a_whole_limit_is_too_long(limit):
    """No wait helps, nor is the quota of others used up; without these words a 429 says that the
    endpoint is busy.
    """
    words = f"Request too large for m in organization org-1 on {limit}. The input or output tokens must be reduced."
    assert error_class(429, {"code": "rate_limit_exceeded", "message": words}) is ContextLengthError
    busy = f"Rate limit reached for m on {limit.replace('Limit', 'Limit 40000, Used')}. Please try again in 2s."
    assert error_class(429, {"message": busy}) is RateLimitError
    assert (
        error_class(429, {"message": "Too many tokens, please wait before trying again."})
        is RateLimitError
    )


def error_class(status, error):
    return type(error_from_status(status, ErrorBody({"error": error})))


def test_a_code_counts_before_the_words_of_a_quoted_request():
    """And what only words say is marked: they may be those of the request."""
    quoted = "1 validation error, input: 'my credit balance is too low, content violates usage guidelines'"
    by_words = error_from_status(
        400, ErrorBody({"error": {"message": quoted.partition(", content")[0]}})
    )
    by_code = error_from_status(
        400, ErrorBody({"error": {"message": quoted, "code": "invalid_api_key"}})
    )
    assert type(by_words) is type(by_code) is AuthenticationError
    assert (by_words.inferred, by_code.inferred) == (True, False)
    assert not error_from_status(401, ErrorBody({"error": {"message": quoted}})).inferred


KINDS = {  # of an error by its status alone, and whether its call may be made again
    **dict.fromkeys((400, 406, 411, 415, 418, 421, 422, 451, 499), (ModelError, False)),
    **dict.fromkeys((401, 402, 403), (AuthenticationError, False)),
    **dict.fromkeys((404, 405, 410), (ModelUnavailableError, False)),
    408: (ModelTimeoutError, True),
    413: (ContextLengthError, False),
    429: (RateLimitError, True),
    **dict.fromkeys(
        (409, 424, 425, 498, 500, 501, 502, 503, 504, 520, 529, 599), (ModelUnavailableError, True)
    ),
}


@each_row("status", KINDS)
def test_what_a_status_alone_means(status):
    """The kind of error, whether the call may be made again, and only then how long to wait."""
    error = error_from_status(status, ErrorBody({"error": {"message": "no"}}), {"retry-after": "7"})
    kind, retryable = KINDS[status]
    assert (type(error), error.retryable, error.retry_after) == (
        kind,
        retryable,
        7.0 if retryable else None,
    )
    assert (str(error), error.status, error.usage) == (
        f"status {status}: no",
        status,
        Usage(1, 0, 0, cost=0.0, answer_tokens=0, answer_cost=0.0),
    )


WORDED = {
    "filter": "content violates",
    "length": "prompt is too long",
    "key": "login fail",
    "money": "余额不足",
    "model": "模型不存在",
}
COUNT = {  # the statuses with which words count, of those that there are
    "filter": {200, 400, 403, 422},
    "length": {200, 400, 413, 422, 500},
    "key": {200, 400, 422, 429},
    "money": {200, 400, 422, 429},
    "model": {200, 400, 422},
}


@pytest.mark.parametrize("fault", WORDED)
def test_with_which_statuses_words_count(fault):
    """With others they are those of a quoted request, or of a server that is down."""
    statuses = {200, 300, 400, 401, 402, 403, 404, 408, 409, 413, 418, 422, 429, 500, 502, 503, 529}
    assert {status for status in statuses if stated_fault(status, set(), WORDED[fault])} == COUNT[
        fault
    ]
    assert {stated_fault(status, set(), WORDED[fault]) for status in COUNT[fault]} == {fault}


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("data_inspection_failed", "filter"),
        ("context_length_exceeded", "length"),
        ("API_KEY_INVALID", "key"),
        ("exceeded_current_quota_error", "money"),
        ("model_not_available", "model"),
        ("invalid_request_error", None),
    ],
)
def test_codes_count_with_any_status(code, fault):
    """And in any case of letters."""
    assert stated_fault(503, {code, "503"}, "words") == fault
