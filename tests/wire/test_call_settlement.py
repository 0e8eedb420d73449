"""What a run reports and charges for what an endpoint says of its usage, at 2 and 8 USD per million
tokens, worked out by hand.
"""

import pytest

from redraft import Budget, Judge, refine
from redraft.errors import BudgetExhaustedError, ConfigError
from redraft.middleware.retry import retry
from redraft.models import Chat
from redraft.usage import Usage

from . import fault_server as fs

NO_LIMIT = None
AMPLE = Budget(tokens=10**6, usd=1.0)


def answer(prompt=100, completion=10, **details):
    """Return an answer with this usage; None leaves a number out."""
    numbers = {"prompt_tokens": prompt, "completion_tokens": completion}
    usage = {name: number for name, number in numbers.items() if number is not None} | details
    return fs.http(fs.completion("fine") | {"usage": usage})


def stream(*usages):
    return fs.sse(
        fs.chunk("fine"),
        fs.chunk(finish="stop"),
        *({"choices": [], "usage": usage} for usage in usages),
    )


USAGE = {"prompt_tokens": 100, "completion_tokens": 10}
BUSY = fs.error(503, "busy")
EMPTY = fs.good("", usage=(100, 3))
CUT = fs.http(b'{"choices": [{"mess')
# answers of the server, whether it streams: calls, retries, tokens read and written, tokens of the
# answer, USD
ANSWERS = {
    "an answer": ([answer()], False, (1, 0, 100, 10, 110, 0.00028)),
    "tokens from a cache are part of the prompt": (
        [answer(prompt_tokens_details={"cached_tokens": 80})],
        False,
        (1, 0, 100, 10, 110, 0.00028),
    ),
    "reasoning is part of the answer": (
        [answer(completion=60, completion_tokens_details={"reasoning_tokens": 50})],
        False,
        (1, 0, 100, 60, 160, 0.00068),
    ),
    "a total that is no sum": ([answer(total_tokens=999)], False, (1, 0, 100, 10, 110, 0.00028)),
    "no usage": ([fs.good("fine", usage=None)], False, (1, 0, None, None, None, None)),
    "no prompt": ([answer(prompt=None)], False, (1, 0, None, 10, None, None)),
    "no answer": ([answer(completion=None)], False, (1, 0, 100, None, None, None)),
    "a negative number": ([answer(prompt=-1)], False, (1, 0, None, 10, None, None)),
    "a stream": ([stream(USAGE)], True, (1, 0, 100, 10, 110, 0.00028)),
    "a stream with growing usage": (
        [stream(USAGE | {"completion_tokens": 3}, USAGE)],
        True,
        (1, 0, 100, 10, 110, 0.00028),
    ),
    "a stream without": ([stream()], True, (1, 0, None, None, None, None)),
    "after a refusal": ([BUSY, answer()], False, (2, 1, 100, 10, 110, 0.00028)),
    "after two": ([BUSY, BUSY, answer()], False, (3, 2, 100, 10, 110, 0.00028)),
    "after an empty answer": ([EMPTY, answer()], False, (2, 1, 200, 13, 110, 0.000504)),
    "after one that is cut off": ([CUT, answer()], False, (2, 1, None, None, 110, None)),
    "after a stream that breaks off": (
        [fs.send_and_close(stream(USAGE)[:150]), stream(USAGE)],
        True,
        (2, 1, None, None, 110, None),
    ),
}


@pytest.mark.parametrize("budget", [NO_LIMIT, AMPLE], ids=["no limit", "ample"])
async def test_the_usage_of_an_answer_is_reported_and_priced(faults, monkeypatch, budget):
    """All attempts count; what is not known is unknown, and so is a sum with it. A budget changes
    none of this.
    """
    monkeypatch.setitem(retry.__kwdefaults__, "jitter", lambda: 0.0)
    for name, (answers, streams, (calls, retried, read, written, tokens, usd)) in ANSWERS.items():
        faults.says(*answers)
        model = Chat("m", faults.url, stream=streams)
        given = {"prices": {"m": (2.0, 8.0)}, "max_iterations": 0, "budget": budget}
        result = await refine("q", model, lambda text: 0.5, **given)
        usage = result.usage
        assert (usage.calls, usage.retried_calls, usage.input_tokens, usage.output_tokens) == (
            calls,
            retried,
            read,
            written,
        ), name
        cost = usd if usd is None else pytest.approx(usd, rel=1e-12)
        assert (usage.cost, result.cost, usage.answer_tokens) == (cost, cost, tokens), name


async def test_an_unknown_price_is_an_unknown_cost_and_no_budget_in_usd(faults):
    """A server on this machine has no price: nothing is reported as free, and a limit in USD is
    refused before any call.
    """
    model = Chat("m", faults.says(answer()).url)
    result = await refine("q", model, lambda text: 0.5, max_iterations=0)
    assert (result.cost, result.usage.answer_cost, result.usage.tokens) == (None, None, 110)
    with pytest.raises(ConfigError, match=r"the price of 'm' is unknown"):
        await refine("q", model, lambda text: 0.5, budget=Budget(usd=1.0))
    with pytest.raises(ConfigError, match=r"the price of 'm' is unknown"):
        await refine("q", model, lambda text: 0.5, cost_unit="usd", prices={"other": (1.0, 1.0)})
    assert len(faults.requests) == 1
    free = await refine(
        "q",
        model,
        lambda text: 0.5,
        max_iterations=0,
        prices={"m": (0.0, 0.0)},
        budget=Budget(usd=0.0),
    )
    assert free.cost == 0.0


async def test_samples_and_verdicts_are_priced_each_by_its_model(faults):
    """Three drafts of one model and three verdicts of another, each with its own usage and
    price.
    """
    judge = '{"reason": "It is so.", "criteria": {"truth": {"evidence": "", "change": "c", "score": 4}}, "done": false}'

    def reply(request):
        judges = request.body["model"] == "judge"
        return fs.http(
            fs.completion(judge if judges else "fine", usage=(200, 30) if judges else (100, 10))
        )

    faults.says(reply)
    given = {
        "judge": Chat("judge", faults.url),
        "drafts": 3,
        "max_iterations": 0,
        "noise_aware": False,
    }
    prices = {"m": (2.0, 8.0), "judge": (1.0, 4.0)}
    result = await refine(
        "q", Chat("m", faults.url), Judge({"truth": "Is it true?"}), prices=prices, **given
    )
    assert [request.body["model"] for request in faults.requests] == ["m"] * 3 + ["judge"] * 3
    assert result.usage == Usage(
        6,
        900,
        120,
        cost=pytest.approx(3 * 0.00028 + 3 * 0.00032),
        answer_tokens=1020,
        answer_cost=pytest.approx(0.0018),
    )


SENT = {  # limits: max_tokens of the request to the server
    "no limit on answers": ({"calls": 5, "input_tokens": 500}, None),
    "tokens": ({"tokens": 3000}, 1382),  # half of (3000 - 97) / 1.05
    "output tokens": ({"output_tokens": 3000}, 1428),
    "USD": ({"usd": 0.03}, 1774),  # half of (0.03 - 97 * 0.000002) / (1.05 * 0.000008)
}


async def test_the_server_gets_the_max_tokens_that_the_budget_has(faults):
    """To the token."""
    faults.says(answer())
    for name, (limits, most) in SENT.items():
        model = Chat("m", faults.url)
        await refine(
            "q",
            model,
            lambda text: 0.5,
            budget=Budget(**limits),
            max_iterations=0,
            prices={"m": (2.0, 8.0)},
        )
        assert faults.requests[-1].body.get("max_tokens") == most, name
    with pytest.raises(BudgetExhaustedError):
        await refine(
            "q",
            Chat("m", faults.url),
            lambda text: 0.5,
            budget=Budget(input_tokens=96),
            max_iterations=0,
        )
    assert len(faults.requests) == len(SENT)
