"""How long a server asks to wait, wherever it says it, and what everything that retries makes of
it.
"""

import asyncio
import json
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import redraft
from cpu_time import least_seconds
from each_row import each_row
from fake_clock import FakeClock
from redraft.errors import (
    AuthenticationError,
    BadResponseError,
    ModelError,
    ModelUnavailableError,
    RateLimitError,
)
from redraft.models import Chat
from redraft.models.server_errors import error_from_status, parse_error_body
from redraft.models.waits import is_used_up, stated_wait
from redraft.protocols import Reply
from sessions import make_session

from . import fault_server as fs

GOOGLE = "type.googleapis.com/google.rpc."


def google(*details, message="Quota exceeded.", listed=True):
    """Return an error as Gemini sends it: its OpenAI-compatible address puts it in a list."""
    error = {
        "error": {
            "code": 429,
            "status": "RESOURCE_EXHAUSTED",
            "message": message,
            "details": list(details),
        }
    }
    return [error] if listed else error


def retry_info(delay):
    return {"@type": f"{GOOGLE}RetryInfo", "retryDelay": delay}


def violation(**fields):
    return {"@type": f"{GOOGLE}QuotaFailure", "violations": [fields]}


def says(message, **fields):
    return {"error": {"message": message, **fields}}


def behind_router(message="", raw=None, **headers):
    """Return an error as OpenRouter passes one on."""
    return {
        "error": {"code": 429, "message": message, "metadata": {"headers": headers, "raw": raw}}
    }


GROQ = "Rate limit reached for model `llama` in organization `org` on tokens per minute (TPM): Limit 7000, Used 0, Requested 7781. "
AZURE = "Requests to the ChatCompletions Operation have exceeded the token rate limit of your current pricing tier. "
LONG_LIST = (
    "You exceeded your current quota, please check your plan. "
    + "* Quota exceeded for metric: x, limit: 250\n" * 20
)

BODIES = [  # an error body, and the seconds that it asks to wait
    (google(retry_info("4s"), message="Quota exceeded. Please retry in 4.2s."), 4.0),
    (google(retry_info("15s"), listed=False), 15.0),
    (google(retry_info("37.502s")), 37.502),
    (google(violation(quotaId="RequestsPerMinutePerProject", quotaValue="15"), retry_info("15s")), 15.0),
    (google(retry_info({"seconds": 9, "nanos": 5})), 9.0),
    (google(message=LONG_LIST + "Please retry in 43.1s."), 43.1),
    (behind_router("Provider returned error", json.dumps(google(retry_info("21s"), listed=False))), 21.0),
    (says('VertexAIException - {"error": {"details": [{"retryDelay": "19s"}]}}'), 19.0),
    (says("429 Resource exhausted. [violations { } , retry_delay {\n  seconds: 40\n}\n]"), 40.0),
    (says("Rate limit reached for m on tokens per min (TPM): Limit 10000, Used 9000. Please try again in 4.0s."), 4.0),
    (says("Rate limit reached. Please try again in 1m2.5s. Visit https://example.org/limits"), 62.5),
    (says("Rate limit reached. Please try again in 320ms."), 0.32),
    (says(GROQ + "Please try again in 6.681999999s. Visit https://example.org"), 6.681999999),
    (says(GROQ + "Please try again in 2h59m56s."), 10_796.0),
    (says(AZURE + "Please retry after 26 seconds.", code="429"), 26.0),
    (says(AZURE + "Please retry after 1 second. Contact us to go further."), 1.0),
    (says("Please try again after 1 seconds"), 1.0),
    (says("Too many requests. Please retry your request after about 12 seconds."), 12.0),
    (says("Rate limit of 10 per 60s exceeded for UserByModelByMinute. Please wait 51 seconds before retrying."), 51.0),
    (says("Slow down! Wait for 1 minute and 30 seconds."), 90.0),
    (says("Please wait, then try again in ~ 5 secs"), 5.0),
    (says("Your quota will reset after 12s."), 12.0),
    (says("The limit resets in: 35 seconds"), 35.0),
    (says("Limit resets in 1 hour. Please try again in 4s."), 4.0),
    (says("Too many requests. Retry-After: 17"), 17.0),
    (says(f"429 RESOURCE_EXHAUSTED. {google(retry_info('18s'))}"), 18.0),
    (google({"metadata": {"quotaResetDelay": "1h16m0.667s"}}), 4560.667),
    ({"error": {"type": "usage_limit_reached", "resets_in_seconds": 45}}, 45.0),
    ({"message": "Too many requests", "retry_after": 3.5}, 3.5),
    ({"detail": "busy", "retry_after_ms": 2500}, 2.5),
    ({"error": {"message": "busy", "retryAfter": "8"}}, 8.0),
    ({"error": "Model org/name is currently loading", "estimated_time": 15.0}, 15.0),
    ("Too many requests, please try again in 6 seconds.", 6.0),
    ([{"error": "x"}, {"error": {"retry_after": 2}}], 2.0),
    # nothing that can be read as a time
    (says("Rate limit reached, please try again later"), None),
    (says("Please try again in a few minutes"), None),
    (says("You may send 60 requests per 60 seconds. Please retry."), None),
    (says("Requests per minute: 20. Retry with fewer than 3 requests"), None),
    (says("timed out after waiting 300 seconds"), None),
    (says("exceeded the maximum wait of 120 s"), None),
    (says("please try again in -5s"), None),
    (says("please try again in 0s"), None),
    (says("please try again in NaNs, in 1e99s or in infinity seconds"), None),
    (says("please retry after 2026-11-29"), None),
    (says("try again in 5 megabytes"), None),
    (google(retry_info("-4s")), None),
    (google(retry_info("soon")), None),
    (google(retry_info(None)), None),
    (google(retry_info([])), None),
    (google(retry_info("1e99s")), None),
    ({"retry_after": 1e99}, None),
    ({"retry_after": True, "estimated_time": float("nan"), "retryDelay": float("inf")}, None),
    ({"retry_after": "9" * 5000}, None),
    ({"error": None}, None),
    (None, None),
    (7, None),
]  # fmt: skip


@each_row(("body", "seconds"), BODIES, ids=lambda value: str(value)[:60])
def test_the_wait_in_a_body(body, seconds):
    """It counts for every status of a busy server, and not for the others."""
    for status in (429, 503, 529):
        assert stated_wait(status, {}, body) == (seconds and pytest.approx(seconds))
    assert stated_wait(500, {}, body) is None


def at(seconds):
    return time.time() + seconds


# headers, and the seconds that they ask to wait beside a body that asks for four (None: the body
# counts)
HEADERS = [
    ({"retry-after": "7"}, 7.0),
    ({"retry-after-ms": "1500", "retry-after": "7"}, 1.5),
    ({"retry-after": "-7"}, None),
    ({"retry-after": "soon"}, None),
    ({"retry-after": "nan"}, None),
    ({"retry-after": "0"}, None),
    ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "6m0s"}, None),
]


@pytest.mark.parametrize(("headers", "seconds"), HEADERS)
def test_a_header_comes_first(headers, seconds):
    """A valid Retry-After counts before the body, and the body before the time when a limit is
    whole again.
    """
    assert stated_wait(429, headers, says("try again in 4s")) == (seconds or 4.0)


def resets():
    """Return headers without Retry-After, and the seconds until their reset. Dates are those of
    now.
    """
    return [
        ({"x-ratelimit-reset-tokens": "7.66s"}, 7.66),
        ({"x-ratelimit-reset-requests": "250ms", "x-ratelimit-reset-tokens": "6m0s"}, 0.25),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-requests": "2m", "x-ratelimit-reset-tokens": "15s", "x-ratelimit-remaining-requests": "5"}, 15.0),
        ({"x-ratelimit-remaining-requests-day": "14", "x-ratelimit-reset-requests-day": "33011.38", "x-ratelimit-remaining-tokens-minute": "0", "x-ratelimit-reset-tokens-minute": "11.38"}, 11.38),
        ({"anthropic-ratelimit-input-tokens-remaining": "0", "anthropic-ratelimit-input-tokens-reset": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at(30)))}, 30.0),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": f"{at(40):.0f}"}, 40.0),
        ({"x-ratelimit-limit": "20", "x-ratelimit-remaining": "0", "x-ratelimit-reset": f"{1000 * at(25):.0f}"}, 25.0),
        ({"x-rate-limit-reset": f"{at(9):.3f}"}, 9.0),
        ({"ratelimit-reset": "20"}, 20.0),
        ({"x-ratelimit-remaining-requests": "7", "x-ratelimit-reset-requests": "6m0s"}, None),
        ({"x-ratelimit-reset": f"{at(-40):.0f}"}, None),
        ({"x-ratelimit-reset": "1e99", "x-ratelimit-reset-tokens": "-3"}, None),
        ({"x-ratelimit-reset": "9" * 30}, None),
        ({"x-ratelimit-reset": "9" * 5000, "x-ratelimit-reset-tokens": "nan"}, None),
        ({"x-ratelimit-limit-requests": "60"}, None),
    ]  # fmt: skip


@each_row("n", range(len(resets())))
@each_row("in_body", [False, True], ids=["headers", "body"])
def test_the_reset_of_a_limit(n, in_body):
    """Durations, numbers and dates; of those that are exhausted the last one, else the first. A
    router quotes headers in its body.
    """
    headers, seconds = resets()[n]
    asked = (
        stated_wait(429, {}, behind_router("no", **headers))
        if in_body
        else stated_wait(429, headers)
    )
    assert asked == (seconds and pytest.approx(seconds, abs=2.0))


# ---- quotas that are used up

DAY = {"x-ratelimit-remaining": "0", "x-ratelimit-reset": f"{1000 * (time.time() + 30_000):.0f}"}
FREE_MODELS = "Rate limit exceeded: free-models-per-day. Add 10 credits to unlock 1000 free model requests per day"
QUOTAS = [  # a body, and whether it says that the quota is used up
    (google(violation(quotaId="GenerateRequestsPerDayPerProject", quotaValue="0"), message="..., limit: 0"), True),
    (google(violation(quotaId="GenerateRequestsPerDayPerProjectPerModel-FreeTier", quotaValue="250"), retry_info("12s")), True),
    (google(violation(quotaId="GenerateRequestsPerMinutePerProject", quotaValue="0")), True),
    (google(violation(quotaId="GenerateRequestsPerMinutePerProject", quotaValue=0)), True),
    (google({"reason": "RATE_LIMIT_EXCEEDED", "metadata": {"quota_limit": "RequestsPerMinutePerRegion", "quota_limit_value": "0"}}), True),
    (google(message="Quota exceeded for metric: free_tier_requests, limit: 0"), True),
    (google(violation(quotaId="InputTokensPerModelPerMinute-FreeTier"), violation(quotaId="RequestsPerDayPerProject")), True),
    (says(f"429 RESOURCE_EXHAUSTED. {google(violation(quotaId='TokensPerMinute'), violation(quotaId='RequestsPerDay'))}"), True),
    (says(json.dumps(google(violation(quotaId="RequestsPerMinute", quotaValue="0"))), code=429, status="Too Many Requests"), True),
    (google(violation(quotaId="RequestsPerMinute", quotaValue="05")), False),
    (google(violation(quotaId="RequestsPerMinute", quotaValue=0.5)), False),
    (google(message="Quota exceeded for metric: x, limit: 0, model: gemini\nPlease retry in 43s."), True),
    (google(message="* Quota exceeded for metric: x, limit: 250\n* Quota exceeded for metric: y, limit: 0\n"), True),
    (says("Rate limit reached on tokens per min (TPM): Limit 0, Used 0, Requested 500."), True),
    (says("Rate limit reached for gpt-4. Limit: 0 / min. Current: 1 / min."), True),
    (behind_router(FREE_MODELS, **DAY), True),
    (behind_router(FREE_MODELS), True),
    (says("Rate limit reached for model `m` on tokens per day (TPD): Limit 100000, Used 99336. Please try again in 11m3.552s."), True),
    (says("on requests per day (RPD): Limit 200, Used 200, Requested 1. Please try again in 7m12s."), True),
    (says("Rate limit of 50 per 86400s exceeded for UserByModelByDay. Please wait 57301 seconds before retrying."), True),
    (says("You have exceeded your daily quota"), True),
    ({"message": "You are using a Trial key, which is limited to 1000 API calls / month."}, True),
    (says("You exceeded your current quota, please check your plan", code="insufficient_quota"), True),
    # a short wait, or the quota of a minute
    (says("Rate limit reached on tokens per day (TPD): Limit 100000. Please try again in 25.92s."), False),
    (google(violation(quotaId="GenerateRequestsPerMinutePerProject", quotaValue="15"), retry_info("15s"), message="You exceeded your current quota, limit: 15"), False),
    (behind_router("Rate limit exceeded: free-models-per-min. Add 10 credits to unlock 1000 free model requests per day"), False),
    ({"message": "You are using a Trial key, which is limited to 10 API calls / minute."}, False),
    (says("limit: 0.5 requests a second"), False),
    (says("rate limit: 0 left, please try again in 5s"), False),
    (says("limit: 0 remaining"), False),
    (says("limit: 05"), False),
    (says("Requests per minute limit: 20. Your daily limit is 5000."), False),
    (says("slow down: see https://example.org/plans/monthly/per-day"), False),
    ({"requests_per_day": 1000, "requests_per_minute": 20, "message": "slow down"}, False),
    (says("slow down"), False),
]  # fmt: skip


@pytest.mark.parametrize(("body", "is_over"), QUOTAS, ids=map(str, range(len(QUOTAS))))
async def test_a_used_up_quota_is_an_error_at_once(faults, body, is_over):
    """It costs one call, as a used-up account does; the quota of a minute is waited for."""
    faults.says(fs.http(body, 429))
    with pytest.raises(ModelError) as caught:
        await redraft.refine("q", Chat("m", faults.url), "words:1-9", max_iterations=0, retries=0)
    assert type(caught.value) is (AuthenticationError if is_over else RateLimitError)
    assert (caught.value.status, caught.value.retryable) == (429, not is_over)
    if is_over:
        faults.requests.clear()
        with pytest.raises(AuthenticationError):
            await redraft.refine("q", Chat("m", faults.url), "words:1-9", max_iterations=0)
        assert len(faults.requests) == 1


async def test_a_used_up_quota_ends_a_batch(faults, tmp_path):
    """The calls in flight are the last ones, no row fails, and the run can be resumed."""
    faults.says(fs.http(behind_router(FREE_MODELS), 429))
    rows = [{"prompt": f"q{n}"} for n in range(40)]
    report = await redraft.batch(
        rows, tmp_path / "out.jsonl", Chat("m", faults.url), "words:1-50", max_iterations=0
    )
    assert (report.stop, report.rows.failed, report.rows.done) == ("fatal", 0, 0)
    assert "status 429" in report.stop_note and FREE_MODELS not in report.stop_note
    assert len(faults.requests) <= 16


# ---- hostile bodies

NEARLY = [
    "try again in ",
    "retry " * 4,
    "try again after about 1",
    "retry your own next request after",
    "1" * 30,
    "1m",
    "retry_delay {{{",
    "please wait for ",
    "limit: 0 ",
    "per ",
    "retryDelay\": \"",
    "{\"a\":",
    "[",
]  # fmt: skip


@pytest.mark.slow(but_each=4)
@pytest.mark.parametrize("piece", NEARLY)
def test_a_megabyte_of_nearly_matching_text_takes_no_time(piece):
    """Only its beginning is read."""
    body = piece * (2**20 // len(piece))

    def read():
        for data in (body, {"message": body}, {"error": [body] * 300}, json.dumps({"m": body})):
            wait = stated_wait(429, {"retry-after": body, "x-ratelimit-reset": body}, data)
            assert wait is None or 0 < wait < 1e9
            is_used_up(data, wait)

    assert least_seconds(read, 2.0) < 2.0


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30) | st.sampled_from(NEARLY),
    lambda each: st.lists(each, max_size=5) | st.dictionaries(st.sampled_from(["retryDelay", "error", "details", "x-ratelimit-reset", "code"]), each),
    max_leaves=20,
)  # fmt: skip
YEAR = 366 * 86_400


@pytest.mark.slow
@given(JSON, JSON, st.sampled_from([429, 503, 500]))
def test_any_body_gives_an_error_and_a_sane_wait(delay, message, status):
    """No value raises; a wait is positive and no longer than a year."""
    body = {"error": {"message": message, "details": [{"retryDelay": delay}]}}
    error = error_from_status(status, parse_error_body(redraft.base.jsontext.dumps(body)))
    assert error.status == status
    assert error.retry_after is None or 0 < error.retry_after <= YEAR


@given(
    st.from_regex(r"-?[0-9]{1,9}(\.[0-9]{1,3})?", fullmatch=True), st.sampled_from([429, 503, 500])
)
@example("0", 429)
@example(f"{YEAR}", 429)
@example(f"{YEAR}.001", 429)
@example("2.5", 500)
def test_a_stated_time_is_the_wait_unless_it_is_longer_than_a_year(seconds, status):
    """Neither is one that is not positive, nor that of a server that is not busy."""
    error = error_from_status(
        status, parse_error_body(redraft.base.jsontext.dumps(google(retry_info(f"{seconds}s"))))
    )
    is_stated = status != 500 and 0 < float(seconds) <= YEAR
    assert error.retry_after == (pytest.approx(float(seconds)) if is_stated else None)


# ---- what waits

BUSY = google(retry_info("15s"))
NOTHING_ELSE = dict(max_iterations=0, graders="words:1-9")


class Server:
    """A model whose server answers with these statuses and bodies, then "four"; `times` are those
    of the calls on the loop's clock.
    """

    def __init__(self, *replies, name="m"):
        self.replies, self.times, self.name, self.identity = list(replies), [], name, name

    async def complete(self, request):
        self.times.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0)
        if not self.replies:
            return Reply("four")
        status, body, *headers = self.replies.pop(0)
        raise error_from_status(status, parse_error_body(json.dumps(body).encode()), *headers)

    @property
    def waits(self):
        return [after - before for before, after in zip(self.times, self.times[1:], strict=False)]


def in_fake_time(work):
    """Run a coroutine function whose waits take no time."""
    with asyncio.Runner(loop_factory=FakeClock) as runner:
        return runner.run(work())


def test_refine_waits_as_long_as_the_body_says():
    """Three times fifteen seconds, and then the answer; with a minute each time, too."""
    for seconds in (4, 15, 60):
        server = Server(*[(429, google(retry_info(f"{seconds}s")))] * 3)
        result = in_fake_time(lambda server=server: redraft.refine("q", server, **NOTHING_ELSE))
        assert (result.value, result.usage.calls) == ("four", 4)
        assert all(seconds <= wait <= seconds + 3 for wait in server.waits)


@pytest.mark.parametrize(
    ("seconds", "deadline", "calls"),
    [
        (61, None, 1),
        (3600, None, 1),
        (61, 200, 2),
        (15, 14, 1),
        (15, 100, 2),
        (199, 200, 2),
        (201, 200, 1),
    ],
)
def test_a_wait_that_is_too_long_is_an_error_at_once(seconds, deadline, calls):
    """Too long is more than what the deadline leaves; without one, more than a minute. The error
    says what the server wants.
    """
    server = Server((429, google(retry_info(f"{seconds}s"))))

    async def work():
        result = await redraft.refine("q", server, deadline=deadline, **NOTHING_ELSE)
        assert result.value == "four"

    if calls == 2:
        in_fake_time(work)
        assert seconds <= server.waits[0] <= seconds + 1
        return
    with pytest.raises(RateLimitError, match="the endpoint asks to wait") as caught:
        in_fake_time(work)
    assert (caught.value.retry_after, len(server.times)) == (seconds, 1)


def test_other_calls_to_the_endpoint_wait_and_those_to_others_do_not():
    """A judge elsewhere is asked while the writer waits, and a wait that nobody waits for holds
    nobody.
    """
    writer, judge = Server((429, BUSY)), Server((429, google(retry_info("1h"))), name="judge")

    async def work():
        client = make_session(redraft.session.options.Options(max_in_flight=1), writer).models
        ask, other = client.client_for(writer).call, client.client_for(judge).call
        request = redraft.protocols.Request(({"role": "user", "content": "q"},))
        first = asyncio.ensure_future(ask(request))
        await asyncio.sleep(1)
        with pytest.raises(RateLimitError):
            await other(request)
        assert (await other(request)).text == "four"
        assert max(judge.times) < 2
        await asyncio.gather(first, ask(request))

    in_fake_time(work)
    assert len(writer.times) == 3
    assert min(writer.times[1:]) >= 15


def test_grade_waits_for_its_judge():
    """A grade costs the calls that were refused, too."""
    server = Server((503, {"error": "Model m is currently loading", "estimated_time": 20.0}))

    class Own:
        name = "own"

        async def grade(self, task, candidate, ask):
            return redraft.Feedback(0.5, await ask("How good is it?"))

    grade = in_fake_time(lambda: redraft.grade(("q", "a"), Own(), server))
    assert (grade.score, len(server.times)) == (0.5, 2)
    assert server.waits[0] >= 20


async def test_a_row_waits(faults, tmp_path):
    """A batch makes its call again when the body says so."""
    faults.says(fs.error(429, "Please try again in 320ms."), fs.good("fine"))
    out = tmp_path / "out.jsonl"
    await redraft.batch(
        [{"prompt": "q"}], out, Chat("m", faults.url), "words:1-50", max_iterations=0
    )
    assert json.loads(out.read_text())["best"] == "fine"
    assert len(faults.requests) == 2


def test_the_limiter_of_a_batch_waits_too():
    """The endpoint pauses, and no call fails; a wait of hours is waited for there."""
    for seconds in (15, 7200):
        server = Server(*[(429, google(retry_info(f"{seconds}s")))] * 2)

        async def work(server=server):
            from redraft.middleware import EndpointLimiter, limit_endpoint
            from redraft.middleware.retry import retry
            from redraft.middleware.timeout import MAX_WAIT

            clock = asyncio.get_running_loop().time
            call = limit_endpoint(server.complete, EndpointLimiter("m", clock=clock))
            request = redraft.protocols.Request(({"role": "user", "content": "q"},))
            return await retry(call, max_wait=MAX_WAIT)(request)

        assert in_fake_time(work).text == "four"
        assert all(seconds <= wait <= seconds + 3 for wait in server.waits)


def test_a_row_does_not_wait_beyond_its_deadline():
    """In a batch, whose endpoint would wait for hours, the error comes at once."""
    from redraft.middleware import EndpointLimiter, limit_endpoint
    from redraft.middleware.timeout import enforce_deadline

    server = Server((429, google(retry_info("2h"))))

    async def work():
        call = limit_endpoint(
            server.complete, EndpointLimiter("m", clock=asyncio.get_running_loop().time)
        )
        request = redraft.protocols.Request(({"role": "user", "content": "q"},))
        await enforce_deadline(call, time.monotonic() + 600)(request)

    with pytest.raises(RateLimitError):
        in_fake_time(work)


@pytest.mark.parametrize("form", ["status", "event", "choice", "body"])
async def test_the_wait_of_a_stream(faults, ask, form):
    """Before it by the status, in an event, in a choice, and in a body with status 200."""
    error = {"code": 429, "message": "slow down, try again in 15s"}
    stream = {
        "status": fs.http({"error": error}, 429),
        "event": fs.send_and_close(fs.sse(fs.chunk("fo"), {"error": error})),
        "choice": fs.send_and_close(
            fs.sse(
                {"choices": [{"index": 0, "delta": {}, "error": error, "finish_reason": "error"}]}
            )
        ),
        "body": fs.http({"error": error}),
    }
    faults.says(stream[form])
    with pytest.raises(RateLimitError) as caught:
        await Chat("m", faults.url, stream=True).complete(ask())
    assert (caught.value.status, caught.value.retry_after) == (429, 15.0)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("rate_limit_exceeded", RateLimitError),
        ("rate_limit_error", RateLimitError),
        ("overloaded_error", BadResponseError),
    ],
)
async def test_a_busy_server_may_say_so_in_a_word(faults, ask, code, kind):
    """An event of a stream has no status: its code or its type says it."""
    faults.says(
        fs.send_and_close(
            fs.sse(fs.chunk("fo"), {"error": {"type": code, "message": "try again in 15s"}})
        )
    )
    with pytest.raises(kind) as caught:
        await Chat("m", faults.url, stream=True).complete(ask())
    assert caught.value.retry_after == 15.0


async def test_a_model_that_loads_is_waited_for(faults, ask):
    """Hugging Face estimates the time, beside the error."""
    faults.says(fs.http({"error": "Model m is currently loading", "estimated_time": 20.5}, 503))
    with pytest.raises(ModelUnavailableError, match="currently loading") as caught:
        await Chat("m", faults.url).complete(ask())
    assert caught.value.retry_after == 20.5


def test_the_wait_is_announced(caplog):
    """The log says which endpoint, and for how long, as for a Retry-After."""
    caplog.set_level("INFO", "redraft.retry")
    in_fake_time(lambda: redraft.refine("q", Server((429, BUSY)), **NOTHING_ELSE))
    (record,) = [record for record in caplog.records if record.name == "redraft.retry"]
    assert 15 <= record.wait <= 15.5
    assert "retry 1 of 3 in 15." in record.getMessage()
