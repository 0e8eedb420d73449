"""How each failure is told to a client: on every route, whole and streamed, in the form of the
protocol.
"""

import json

import pytest
from fault_server import error, http, send_and_close

from each_row import each_row
from redraft.errors import (
    AuthenticationError,
    BadResponseError,
    BudgetExhaustedError,
    ConfigError,
    ContentFilterError,
    ContextLengthError,
    GradingError,
    ModelError,
    ModelTimeoutError,
    ModelUnavailableError,
    RateLimitError,
    ShortageError,
    StoreError,
)
from redraft.gateway.exchange import GatewayError
from redraft.gateway.protocols.registry import CLIENTS
from redraft.gateway.refining import gateway_error
from redraft.gateway.upstream_errors import error_from_reply
from redraft.models.server_errors import parse_error_body

from .running import PROMPT, config_for, http_client, running

TYPES = {  # of an error by its status: in OpenAI's protocols, and in Anthropic's
    400: ("invalid_request_error", "invalid_request_error"),
    401: ("authentication_error", "authentication_error"),
    402: ("insufficient_quota", "billing_error"),
    403: ("permission_error", "permission_error"),
    404: ("invalid_request_error", "not_found_error"),
    405: ("invalid_request_error", "invalid_request_error"),
    409: ("invalid_request_error", "invalid_request_error"),
    413: ("invalid_request_error", "request_too_large"),
    421: ("invalid_request_error", "invalid_request_error"),
    422: ("invalid_request_error", "invalid_request_error"),
    429: ("rate_limit_error", "rate_limit_error"),
    499: ("invalid_request_error", "invalid_request_error"),
    500: ("server_error", "api_error"),
    502: ("server_error", "api_error"),
    503: ("server_error", "overloaded_error"),
    504: ("server_error", "timeout_error"),
}


@pytest.mark.parametrize("status", TYPES)
def test_the_form_of_an_error(status):
    """Each protocol has a type for each status; Anthropic's status of an overload is 529."""
    failure = GatewayError(status, "a_code", "a message", param="x")
    of_openai, of_anthropic = TYPES[status]
    fields = {"message": "a message", "param": "x", "code": "a_code"}
    for wire in (CLIENTS["chat"], CLIENTS["responses"]):
        assert (wire.error_status(failure), wire.error_body(failure)) == (
            status,
            {"error": {**fields, "type": of_openai}},
        )
    wire = CLIENTS["messages"]
    assert wire.error_body(failure) == {"type": "error", "error": {**fields, "type": of_anthropic}}
    assert wire.error_status(failure) == (529 if status == 503 else status)


NO_QUOTA = "no quota or credit is left at the model behind the gateway: "
REFUSED_KEY = "the model behind the gateway refused the gateway's own key: "
REFUSED = "the model behind the gateway refused the request: "
FAILED = "the model behind the gateway failed: "
OVERLOADED = "the model behind the gateway is overloaded: "
UNAVAILABLE = "the model behind the gateway is not available: "
REDIRECTS = "the model behind the gateway redirects, which is not followed: "
TOO_MANY = "the model behind the gateway receives too many requests: "
TOO_LATE = "the model behind the gateway did not answer in time: "
NO_BUDGET = "the budget of a request to this profile is used up before there is an answer: "
# of a refinement; the status, the code, the beginning of the message, the wait, and whether to try
# again
FAILURES = [
    (ConfigError("x"), 400, "invalid_request", "", None, False),
    (
        AuthenticationError("x", status=401),
        502,
        "upstream_authentication",
        REFUSED_KEY,
        None,
        False,
    ),
    (
        AuthenticationError("x", status=403),
        502,
        "upstream_authentication",
        REFUSED_KEY,
        None,
        False,
    ),
    (AuthenticationError("x"), 502, "upstream_authentication", REFUSED_KEY, None, False),
    (AuthenticationError("x", status=402), 502, "upstream_quota", NO_QUOTA, None, False),
    (AuthenticationError("x", status=429), 502, "upstream_quota", NO_QUOTA, None, False),
    (RateLimitError("x", status=429), 429, "upstream_rate_limit", TOO_MANY, None, None),
    (RateLimitError("x", status=429, retry_after=3), 429, "upstream_rate_limit", TOO_MANY, 3, None),
    (ContextLengthError("x", status=400), 400, "context_length_exceeded", "", None, False),
    (ContextLengthError("x", status=413), 400, "context_length_exceeded", "", None, False),
    (ContentFilterError("x"), 400, "content_filter", "", None, False),
    (ModelTimeoutError("x", retry_after=2), 504, "upstream_timeout", TOO_LATE, 2, False),
    (
        ModelUnavailableError("x", status=503, retry_after=2),
        503,
        "upstream_overloaded",
        OVERLOADED,
        2,
        None,
    ),
    (ModelUnavailableError("x", status=529), 503, "upstream_overloaded", OVERLOADED, None, None),
    (ModelUnavailableError("x", status=500), 502, "upstream_error", FAILED, None, False),
    (ModelUnavailableError("x", status=502), 502, "upstream_error", FAILED, None, False),
    (ModelUnavailableError("x", status=504), 504, "upstream_timeout", TOO_LATE, None, False),
    (ModelUnavailableError("x", status=404), 502, "upstream_unavailable", UNAVAILABLE, None, False),
    (ModelUnavailableError("x", status=499), 502, "upstream_unavailable", UNAVAILABLE, None, False),
    (ModelUnavailableError("x"), 502, "upstream_unavailable", UNAVAILABLE, None, False),
    (ModelUnavailableError("x", status=301), 502, "upstream_redirect", REDIRECTS, None, False),
    (ModelError("x", status=300), 502, "upstream_redirect", REDIRECTS, None, False),
    (ModelError("x", status=399), 502, "upstream_redirect", REDIRECTS, None, False),
    (
        ShortageError("x", status=503, retry_after=9),
        503,
        "overloaded",
        "the gateway is busy: ",
        5.0,
        None,
    ),
    (BudgetExhaustedError("x", limit="deadline"), 504, "deadline_exceeded", "", None, False),
    (BudgetExhaustedError("x", limit="usd"), 402, "budget_exhausted", NO_BUDGET, None, False),
    (BudgetExhaustedError("x", limit="calls"), 402, "budget_exhausted", NO_BUDGET, None, False),
    (ModelError("x", status=400), 400, "upstream_refused", REFUSED, None, False),
    (ModelError("x", status=413), 413, "upstream_refused", REFUSED, None, False),
    (ModelError("x", status=422), 422, "upstream_refused", REFUSED, None, False),
    (BadResponseError("x", status=422), 422, "upstream_refused", REFUSED, None, False),
    (ModelError("x", status=418), 502, "upstream_error", "", None, False),
    (ModelError("x"), 502, "upstream_error", "", None, False),
    (BadResponseError("x"), 502, "upstream_error", "", None, False),
    (BadResponseError("x", status=200), 502, "upstream_error", "", None, False),
    (GradingError("x"), 502, "upstream_error", "", None, False),
    (StoreError("x"), 502, "upstream_error", "", None, False),
]


@each_row(
    "row", FAILURES, ids=lambda row: f"{type(row[0]).__name__} {getattr(row[0], 'status', '')}"
)
def test_what_a_client_is_told_of_a_failed_refinement(row):
    """Also where the failure is that of a grader; what was paid for is never asked for again by the
    client's SDK.
    """
    failure, status, code, words, wait, should_retry = row
    seen = gateway_error(failure)
    told = (seen.status, seen.code, seen.message, seen.retry_after, seen.should_retry)
    assert told == (status, code, f"{words}x", wait, should_retry)
    assert gateway_error(failure, has_text=True).should_retry is False
    if isinstance(failure, ModelError):
        graded = GradingError("y")
        graded.__cause__ = failure
        seen = gateway_error(graded)
        assert (seen.status, seen.code, seen.message, seen.retry_after) == (
            status,
            code,
            f"{words}y",
            wait,
        )


ROUTES = {"chat": "/chat/completions", "responses": "/responses", "messages": "/messages"}
BODIES = {
    "chat": {"messages": PROMPT},
    "responses": {"input": "Say it well.", "store": False},
    "messages": {"messages": PROMPT, "max_tokens": 9},
}
# of a model; status and code of a request that is passed on, and of one that is refined; the wait
# in seconds
FAULTS = {
    "400": (error(400), (400, "invalid_request"), (400, "upstream_refused"), None),
    "400 with a code": (
        error(400, code="a_code"),
        (400, "a_code"),
        (400, "upstream_refused"),
        None,
    ),
    "401": (error(401), (502, "upstream_authentication"), (502, "upstream_authentication"), None),
    "402": (error(402), (502, "upstream_quota"), (502, "upstream_quota"), None),
    "404": (error(404), (404, "not_found"), (502, "upstream_unavailable"), None),
    "413": (error(413), (413, "request_too_large"), (400, "context_length_exceeded"), None),
    "418": (error(418), (400, "invalid_request"), (502, "upstream_error"), None),
    "422": (error(422), (422, "unprocessable_request"), (422, "upstream_refused"), None),
    "too long": (
        error(413, "maximum context length is 10 tokens"),
        (413, "request_too_large"),
        (400, "context_length_exceeded"),
        None,
    ),
    "filtered": (
        error(403, "Content violates usage guidelines."),
        (400, "content_filter"),
        (400, "content_filter"),
        None,
    ),
    "302": (
        http(b"", 302, Location="/v2"),
        (502, "upstream_redirect"),
        (502, "upstream_redirect"),
        None,
    ),
    "408": (error(408), (504, "upstream_timeout"), (504, "upstream_timeout"), None),
    "429": (
        error(429, headers={"Retry-After": "70"}),
        (429, "upstream_rate_limit"),
        (429, "upstream_rate_limit"),
        "70",
    ),
    "500": (error(500), (502, "upstream_error"), (502, "upstream_error"), None),
    "503": (
        error(503, headers={"Retry-After": "70"}),
        (503, "upstream_overloaded"),
        (503, "upstream_overloaded"),
        "70",
    ),
    "no JSON": (http(b"<html>"), (502, "upstream_error"), (502, "upstream_error"), None),
    "breaks off": (
        send_and_close(b"HTTP/1.1 2"),
        (502, "upstream_unavailable"),
        (502, "upstream_unavailable"),
        None,
    ),
}


def told(reply):
    """What a client is told: status, type and code of the error, and how long to wait."""
    text, status = reply.text, reply.status_code
    if status == 200:  # a stream that has begun
        events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        failure = events[-1]["error"]
        assert "[DONE]" not in text
        return "stream", failure["type"], failure["code"], None
    failure = reply.json()["error"]
    return status, failure["type"], failure["code"], reply.headers.get("retry-after")


@pytest.mark.slow(but_each=6)
@pytest.mark.parametrize("fault", FAULTS)
async def test_what_a_client_is_told_on_every_route(faults, tmp_path, fault):
    """A client's own mistakes keep their status; each protocol has its type, and no stream ends as
    if it were whole.
    """
    answer, passed, refined, wait = FAULTS[fault]
    faults.says(answer)
    config = config_for(tmp_path, faults.url, graders=["words:1-9"], settings={"retries": 0})
    async with running(config) as (url, _), http_client(url) as client:
        for model, (status, code) in (("pass/tiny", passed), ("refine/fast", refined)):
            for wire, path in ROUTES.items():
                for is_stream in (False, True):
                    body = {"model": model, "stream": is_stream, **BODIES[wire]}
                    seen = told(await client.post(path, json=body))
                    kind = TYPES[status][wire == "messages"]
                    shown = 529 if (wire, status) == ("messages", 503) else status
                    expected = (shown, kind, code, wait)
                    if is_stream and model == "refine/fast":
                        expected = ("stream", kind, code, None)
                    assert seen == expected, (model, wire, is_stream)


# of a reply of a model, with a wait of 7 seconds; the status, the code, the wait, whether to try
# again
STATUSES = {
    **dict.fromkeys((300, 301, 308, 399), (502, "upstream_redirect", None, None)),
    400: (400, "invalid_request", None, None),
    **dict.fromkeys((401, 403), (502, "upstream_authentication", None, False)),
    402: (502, "upstream_quota", None, False),
    404: (404, "not_found", None, None),
    **dict.fromkeys((408, 504), (504, "upstream_timeout", 7, None)),
    413: (413, "request_too_large", None, None),
    **dict.fromkeys((405, 406, 410, 418, 451, 499), (400, "invalid_request", None, None)),
    422: (422, "unprocessable_request", None, None),
    **dict.fromkeys((409, 424, 425, 498, 503, 529), (503, "upstream_overloaded", 7, None)),
    429: (429, "upstream_rate_limit", 7, None),
    **dict.fromkeys((500, 501, 502, 520, 599), (502, "upstream_error", 7, None)),
}


@each_row("status", STATUSES)
def test_what_the_status_of_a_model_becomes(status):
    """A client's own mistakes keep their status, whatever the words; no other 4xx looks as if it
    were about the client's key.
    """
    failure = error_from_reply(
        "tiny",
        status,
        parse_error_body(b'{"error": {"message": "the words"}}'),
        {"retry-after": "7"},
    )
    assert (failure.status, failure.code, failure.retry_after, failure.should_retry) == STATUSES[
        status
    ]
    assert "the words" in failure.message or status < 400 or status in {401, 403}
    assert "the model 'tiny'" in failure.message or status in {400, 404, 413, 422}
