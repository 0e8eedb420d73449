"""What a call reserves and what it settles, to the token: every figure is worked out by hand.

A prompt is reserved at a token for each byte of ASCII and 1.25 for each other byte and for what an
assistant wrote, 16 for each message and 16 more, 64 for a default system message until the endpoint
has reported a prompt, and what an image has at most; an answer at 1.05 tokens for each of
`max_tokens`.
"""

import asyncio
from contextlib import suppress
from copy import copy
from dataclasses import replace
from math import ceil

import pytest

from redraft import Budget, Task, grade, refine
from redraft.base.money import usd_amount
from redraft.errors import (
    BudgetExhaustedError,
    ConfigError,
    ModelError,
    ModelUnavailableError,
    RateLimitError,
)
from redraft.graders import Jury
from redraft.loop.steps import Generate, Grade, Stop
from redraft.middleware import BudgetTracker, EndpointCapabilities
from redraft.middleware.adapt import MIN_FAILURES, adapt
from redraft.middleware.budget import RESERVATION
from redraft.middleware.call_costs import CostEstimator, rough_tokens
from redraft.middleware.metering import meter, with_cost
from redraft.middleware.retry import retry
from redraft.models.pricing import Price
from redraft.protocols import Reply, Request
from redraft.usage import CallLedger, Usage, current_entry, unknown_usage

PRICE = Price(2.0, 8.0)  # USD per million tokens
HELLO = ({"role": "user", "content": "hello"},)
LARGE = {"tokens": 10**6}
SCHEMA = {"type": "object"}
IMAGE = {"type": "image_url", "image_url": {"url": "https://images.example/a.png"}}
NAMES = ("calls", "input_tokens", "output_tokens", "tokens", "usd")


def prompt(text, role="user", **more):
    return {"role": role, "content": text, **more}


def with_images(count):
    return (prompt([{"type": "text", "text": "hello"}, *[IMAGE] * count]),)


class Meter:
    """The calls of one model under a budget: what each reserved, the `max_tokens` that it was sent
    with, and its end.

    `answers` are replies' usages, or errors to raise, in turn; the last one again and again.
    """

    def __init__(self, budget, *answers, price=PRICE, model="", writes_text=True):
        self.tracker, self.answers = BudgetTracker(Budget(**budget)), list(answers)
        self.reserved, self.sent = [], []
        estimator = CostEstimator(price, model, writes_text=writes_text)
        self.call = meter(with_cost(self.answer, price), self.tracker, price, estimator)

    async def answer(self, request):
        self.reserved.append(dict(self.tracker.reserved))
        self.sent.append(request.max_tokens)
        await asyncio.sleep(0)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        if callable(answer):
            return await answer()
        return Reply("text", answer)

    @staticmethod
    def says(text):
        """Return a function that answers with a text, of 100 tokens read and 10 written."""

        async def reply():
            return Reply(text, Usage(1, 100, 10, cost=None))

        return reply

    async def ask(self, messages=HELLO, **fields):
        """Return the reply, or the error of the call; nothing stays reserved."""
        try:
            return await self.call(Request(messages, **fields))
        except (
            ModelError,
            ConfigError,
            BudgetExhaustedError,
            ValueError,
            asyncio.CancelledError,
        ) as error:
            return error
        finally:
            assert all(abs(amount) < 1e-9 for amount in self.tracker.reserved.values())


def amounts(read, written, price=PRICE, calls=1):
    """Return the amounts of a call with so many tokens."""
    usd = (read * price.input + written * price.output) / 1e6
    return pytest.approx(
        dict(zip(NAMES, (calls, read, written, read + written, usd), strict=True)), abs=1e-12
    )


# ---- what is reserved

TOOL = {"type": "function", "function": {"name": "add"}}  # 49 bytes of JSON
CALLS = [{"id": "1", "function": {"name": "add", "arguments": "{}"}}]  # 61 bytes of JSON
PROMPTS = {
    "empty": ((prompt(""),), {}, 96),
    "short": (HELLO, {}, 101),
    "long": ((prompt("x" * 100_000),), {}, 100_096),
    "characters of two bytes": ((prompt("é" * 10),), {}, 25 + 96),
    "of three": ((prompt("漢字"),), {}, 8 + 96),  # 7.5
    "of four": ((prompt("😀"),), {}, 5 + 96),
    "of every length": ((prompt("aé漢😀"),), {}, 13 + 96),  # 1 + 11.25
    "a lone surrogate": ((prompt("\ud800"),), {}, 4 + 96),  # 3.75
    "several messages": (
        (prompt("x" * 10, "system"), prompt("x" * 20), prompt("x" * 8, "assistant")),
        {},
        10 + 20 + 10 + 64 + 64,
    ),
    "what an assistant wrote": ((prompt("é" * 4, "assistant"),), {}, 10 + 96),
    # with a line feed
    "parts of a text": (
        (prompt([{"type": "text", "text": "he"}, {"type": "text", "text": "llo"}]),),
        {},
        102,
    ),
    "the schema of a judge": (HELLO, {"schema": SCHEMA}, 101 + 18),
    "the schema of an answer": (HELLO, {"schema": SCHEMA, "is_generation": True}, 101 + 18),
    "a schema in Chinese": (HELLO, {"schema": {"漢": "字"}}, 101 + 14),
    "tools": (HELLO, {"tools": (TOOL, TOOL)}, 101 + 102),
    "tools in Chinese": (HELLO, {"tools": ({"漢": 1},)}, 101 + 13),  # 9 + 3.75
    "tools that are no JSON": (HELLO, {"tools": ({"name": {1}},)}, 101 + 17),
    "calls of tools": ((prompt("hello", "assistant", tool_calls=CALLS),), {}, 7 + 61 + 96),
    "a call of a function": (
        (prompt("", "assistant", function_call={"name": "add"}),),
        {},
        15 + 96,
    ),
    "the result of a tool": ((prompt("hello", "tool", tool_call_id="1"),), {}, 101),
    "an image": (with_images(1), {}, 101 + 16_384),
    "two images": (with_images(2), {}, 101 + 2 * 16_384),
    "an image that is no object": ((prompt([b"image"]),), {}, 96 + 16_384),
}


async def test_a_prompt_is_reserved_by_all_that_is_sent():
    """Texts by their bytes, each message, schemas, tools and images."""
    for name, (messages, fields, tokens) in PROMPTS.items():
        model = Meter(LARGE, Usage(1, 1, 1))
        await model.ask(messages, max_tokens=50, **fields)
        assert model.reserved == [amounts(tokens, 52.5)], name


async def test_each_schema_is_reserved_by_its_own_size():
    """Whichever was sent before."""
    model, long = Meter(LARGE, unknown_usage()), {"type": "object", "title": "x" * 50}
    for schema in (SCHEMA, long, long, SCHEMA, None, long):
        await model.ask(max_tokens=50, schema=schema)
    assert [each["input_tokens"] - 101 for each in model.reserved] == [18, 81, 81, 18, 0, 81]


def test_a_rate_limit_on_tokens_counts_a_third_of_the_characters_and_the_maximum():
    """That of the request before a budget lowered it; 1024 without one."""
    asked = Request((prompt("é" * 300), prompt("x" * 30)), max_tokens=50)
    assert rough_tokens(asked) == 110 + 1 + 50
    assert rough_tokens(replace(asked, max_tokens=None)) == 110 + 1 + 1024
    assert rough_tokens(replace(asked, max_tokens=9, original=asked)) == 161


@pytest.mark.parametrize(
    ("model", "tokens"),
    [
        ("", 16_384),
        ("gpt-4o", 1_445),
        ("gpt-4o-2024-08-06", 1_445),
        ("openai/GPT-4o", 1_445),
        ("ft:gpt-4o:acme", 1_445),
        ("gpt-4o-mini", 48_169),
        ("gpt-4.1", 1_445),
        ("gpt-4.1-mini", 2_489),
        ("gpt-4.1-nano", 3_779),
        ("claude-sonnet-4-5", 4_784),
        ("my-gpt-4o", 16_384),
    ],
)
async def test_an_image_is_reserved_at_the_most_for_its_model(model, tokens):
    """The longest name that the model's begins with decides."""
    metered = Meter(LARGE, Usage(1, 1, 1), model=model)
    await metered.ask(with_images(1), max_tokens=50)
    assert metered.reserved == [amounts(101 + tokens, 52.5)]


# limits, fields of the request: max_tokens that is sent (None: none; "refused"), tokens reserved
# for the answer
ANSWERS = {
    "a maximum": ({"tokens": 10**6}, {"max_tokens": 50}, 50, 52.5),
    "a maximum that no limit needs": ({"calls": 9}, {"max_tokens": 50}, 50, 52.5),
    "no maximum and no limit on answers": (
        {"calls": 9, "input_tokens": 999},
        {},
        None,
        1.05 * 1024,
    ),
    "no maximum of a judge, and no limit on answers": (
        {"calls": 9},
        {"schema": SCHEMA},
        None,
        1.05 * 512,
    ),
    "no maximum": ({"output_tokens": 10**6}, {}, 8192, 1.05 * 8192),
    "no maximum, half of the rest": ({"output_tokens": 10_000}, {}, 4761, 1.05 * 4761),  # of 9,523
    # of (3000 - 101) / 1.05
    "half of the rest after the prompt": ({"tokens": 3000}, {}, 1380, 1449),
    "half of the rest in USD": ({"usd": 0.03}, {}, 1773, 1.05 * 1773),  # of 3,547
    "the least limit": ({"output_tokens": 9000, "tokens": 3000, "calls": 1}, {}, 1380, 1449),
    # half of the rest is 952
    "as much as is expected": ({"output_tokens": 2000}, {}, 1024, 1.05 * 1024),
    "as much as is expected of a judge": (
        {"output_tokens": 1000},
        {"schema": SCHEMA},
        512,
        1.05 * 512,
    ),
    "an answer with a schema is no judge's": (
        {"output_tokens": 2000},
        {"schema": SCHEMA, "is_generation": True},
        1024,
        1075.2,
    ),
    "a maximum below what is expected": ({"output_tokens": 2000}, {"max_tokens": 900}, 900, 945),
    "a maximum above what is left": (
        {"output_tokens": 1000},
        {"max_tokens": 8000},
        952,
        1.05 * 952,
    ),
    "less than is expected": ({"output_tokens": 500}, {}, 476, 1.05 * 476),
    "the least": ({"output_tokens": 68}, {}, 64, 67.2),
    "less than the least": ({"output_tokens": 67}, {}, "refused", 0),
    "another least": ({"output_tokens": 315, "min_tokens": 300}, {}, 300, 315),
    "less than another least": ({"output_tokens": 314, "min_tokens": 300}, {}, "refused", 0),
    "a maximum below the least": ({"output_tokens": 53}, {"max_tokens": 50}, 50, 52.5),
    "less than a maximum below the least": (
        {"output_tokens": 52},
        {"max_tokens": 50},
        "refused",
        0,
    ),
    "the least of a judge": ({"output_tokens": 269}, {"schema": SCHEMA}, 256, 1.05 * 256),
    "less than the least of a judge": ({"output_tokens": 268}, {"schema": SCHEMA}, "refused", 0),
    "a judge's own maximum": (
        {"output_tokens": 105},
        {"schema": SCHEMA, "max_tokens": 100},
        100,
        105,
    ),
    "less than a judge's own maximum": (
        {"output_tokens": 104},
        {"schema": SCHEMA, "max_tokens": 100},
        "refused",
        0,
    ),
    "exactly the prompt": ({"input_tokens": 101}, {"max_tokens": 50}, 50, 52.5),
    "less than the prompt": ({"input_tokens": 100}, {"max_tokens": 50}, "refused", 0),
    "exactly the prompt and the answer": ({"tokens": 206}, {"max_tokens": 100}, 100, 105),
    "the least and the prompt": ({"tokens": 169}, {"max_tokens": 100}, 64, 67.2),
    "less than the least and the prompt": ({"tokens": 168}, {"max_tokens": 100}, "refused", 0),
    "exactly the price": ({"usd": 0.000622}, {"max_tokens": 50}, 50, 52.5),
    "less than the price": ({"usd": 0.000621}, {"max_tokens": 50}, "refused", 0),
    "a call": ({"calls": 1}, {"max_tokens": 50}, 50, 52.5),
    "no call": ({"calls": 0}, {"max_tokens": 50}, "refused", 0),
}


async def test_an_answer_is_reserved_by_its_maximum_and_what_is_left():
    """The request gets the `max_tokens` that fits; nothing is sent if that is too little."""
    for name, (budget, fields, sent, written) in ANSWERS.items():
        model = Meter(budget, Usage(1, 1, 1))
        end = await model.ask(**fields)
        assert isinstance(end, BudgetExhaustedError) == (sent == "refused"), (name, end)
        assert model.sent == ([] if sent == "refused" else [sent]), name
        read = 119 if "schema" in fields else 101
        assert model.reserved == [amounts(read, written)] * len(model.sent), name


async def test_a_model_that_writes_no_text_has_one_token():
    """One that returns numbers, whatever is asked for."""
    model = Meter(LARGE, Usage(1, 1, 0), writes_text=False)
    await model.ask(max_tokens=500)
    assert model.reserved == [amounts(101, 1.05)]


async def test_an_unknown_price_reserves_no_money_and_costs_nothing_known():
    """Unknown is not zero: the cost of the reply is None. A price of 0 is a cost of 0."""
    for price, cost in ((None, None), (Price(0, 0), 0.0)):
        model = Meter(LARGE, Usage(1, 100, 10, cost=None), price=price)
        reply = await model.ask(max_tokens=50)
        assert model.reserved == [amounts(101, 52.5, Price(0, 0))]
        assert (reply.usage.cost, model.tracker.spent["usd"]) == (cost, 0.0)


async def test_samples_at_once_share_what_is_left():
    """Each takes half, a third, a quarter of it, but what is expected at least; further ones wait
    for what the first do not use.
    """
    model = Meter({"output_tokens": 10_000}, Usage(1, 10, 30))
    await asyncio.gather(*(model.call(Request(HELLO, sample_index=n)) for n in range(5)))
    first, second, third = 4761, 1587, 1024  # of 9,523; of 4,762; a quarter of 3,175 is less
    fourth = 1024  # of 2,151; after that 1,122 are left, which are enough
    assert model.sent[:5] == [first, second, third, fourth, 1024]
    held = [1.05 * sum(model.sent[: n + 1]) for n in range(5)]
    assert [each["output_tokens"] for each in model.reserved] == pytest.approx(held)
    assert model.tracker.spent["output_tokens"] == 150


# ---- what an endpoint reports changes what is reserved

NO_REPORT = unknown_usage()
A, B, C = ("x" * size for size in (100, 1000, 4000))


def report(text, tokens, written=10, **fields):
    return (prompt(text),) if isinstance(text, str) else text, tokens, written, fields


def reserved_after(text, tokens, written=52.5, **fields):
    return (prompt(text),) if isinstance(text, str) else text, fields, tokens, written


LEARNED = {  # reports of prompts, with tokens read and written: what is reserved then
    "no usage": ([report(A, None, None)], reserved_after(A, 196)),
    "a usage of 0": ([report(A, 0, 0)], reserved_after(A, 196)),
    "twice the ratio": ([report(B, 300)], reserved_after(B, 600 + 32)),
    "of a shorter text": ([report(B, 300)], reserved_after(A, 60 + 32)),
    "of a longer text": ([report(B, 300)], reserved_after(C, 2400 + 32)),
    "the highest ratio": (
        [report(B, 300), report(B, 400), report(B, 200)],
        reserved_after(B, 800 + 32),
    ),
    "at most a token for a byte": ([report(B, 700)], reserved_after(B, 1000 + 32)),
    "seven reports": ([report(B, 300)] * 7, reserved_after(B, 600 + 32)),
    "eight reports": ([report(B, 300)] * 8, reserved_after(B, 375 + 32)),
    "a short prompt says nothing of a long one": ([report(A, 30)], reserved_after(B, 1000 + 32)),
    "but of one twice as long": ([report(A, 30)], reserved_after("x" * 200, 120 + 32)),
    "and no more": ([report(A, 30)], reserved_after("x" * 201, 201 + 32)),
    "one of 200 bytes of every one": ([report("x" * 200, 60)], reserved_after(C, 2400 + 32)),
    "one of 199 bytes does not": ([report("x" * 199, 60)], reserved_after(C, 4000 + 32)),
    "a longer report counts for shorter texts": (
        [report(A, 40), report(B, 200)],
        reserved_after(A, 80 + 32),
    ),
    "a shorter one does not for longer texts": (
        [report(A, 40), report(B, 200)],
        reserved_after(B, 400 + 32),
    ),
    "another kind of text": ([report(B, 300)], reserved_after("漢" * 100, 375 + 32)),
    "that kind": ([report("漢" * 100, 90)], reserved_after("漢" * 100, 180 + 32)),
    "two bytes": ([report("é" * 150, 90)], reserved_after("é" * 150, 180 + 32)),
    "four bytes": ([report("😀" * 100, 120)], reserved_after("😀" * 100, 240 + 32)),
    "a little of another kind": (
        [report("x" * 321 + "é" * 40, 80)],
        reserved_after("x" * 401, 160 + 32),
    ),
    "a fifth of it: a bound for the rest": (
        [report("x" * 320 + "é" * 40, 80)],
        reserved_after("x" * 400, 200 + 32),
    ),
    "too much of it: a bound for both": (
        [report("x" * 300 + "é" * 50, 120)],
        reserved_after("x" * 300, 240 + 32),
    ),
    "and the other": ([report("x" * 300 + "é" * 50, 20)], reserved_after("é" * 50, 40 + 32)),
    "no bound for a kind that is known": (
        [report("é" * 150, 60), report("x" * 300 + "é" * 50, 120)],
        reserved_after("é" * 50, 40 + 32),
    ),
    "less than a fifth says nothing": (
        [report("x" * 161 + "é" * 20 + "漢" * 13, 40)],
        reserved_after("é" * 20, 50 + 32),
    ),
    "what an assistant wrote": (
        [report((prompt(B, "assistant"),), 300)],
        reserved_after((prompt(B, "assistant"),), 600 + 32),
    ),
    "answers say nothing": (
        [report(B, None, 300)],
        reserved_after((prompt(B, "assistant"),), 1250 + 96),
    ),
    # 368 more than expected, for 2 messages
    "a long template": ([report(A, 500)], reserved_after(A, 100 + 2 * 200)),
    "in longer conversations": (
        [report(A, 500)],
        reserved_after((prompt(A), prompt(A)), 200 + 3 * 200),
    ),
    "an uneven template": ([report(A, 499)], reserved_after(A, 100 + 2 * 200)),
    # 50 more: 1.5, and 25 for each message
    "more than a token for a byte": ([report(A, 182)], reserved_after(A, 150 + 2 * 41)),
    # 1.5 is more than 1.25
    "and for others": ([report(A, 182)], reserved_after("漢" * 100, 450 + 2 * 41)),
    # 50 more than 100, 18 and 32
    "and beside a schema": ([report(A, 200, schema=SCHEMA)], reserved_after(A, 150 + 2 * 41)),
    "a token for a byte and the template": ([report(A, 132)], reserved_after(A, 132)),
    "one more": ([report(A, 133)], reserved_after(A, 101 + 2 * 17)),
    "one that counts nothing for a template": ([report(A, 100)], reserved_after(A, 132)),
    # 10.8
    "the schema is text": (
        [report(B, 300, schema=SCHEMA)],
        reserved_after(B, 600 + 11 + 32, schema=SCHEMA),
    ),
    # 118 and 32 are expected
    "and part of a prompt": ([report(A, 150, schema=SCHEMA)], reserved_after(A, 132)),
    "an image": ([report(with_images(1), 1000)], reserved_after(with_images(1), 5 + 32 + 2048)),
    "a larger image": (
        [report(with_images(1), 3000)],
        reserved_after(with_images(1), 5 + 32 + 6000),
    ),
    "the largest image": (
        [report(with_images(1), 9000)],
        reserved_after(with_images(1), 5 + 32 + 16_384),
    ),
    "a larger one than documented": (
        [report(with_images(1), 20_000)],
        reserved_after(with_images(1), 5 + 32 + 20_000),
    ),
    "a smaller one after that": (
        [report(with_images(1), 3000), report(with_images(1), 500)],
        reserved_after(with_images(1), 5 + 32 + 6000),
    ),
    "images share a prompt": (
        [report(with_images(2), 6000)],
        reserved_after(with_images(3), 5 + 32 + 3 * 6000),
    ),
    "and say nothing of texts": ([report(with_images(1), 3000)], reserved_after(A, 132)),
    "an overrun": ([report(A, 30, 52)], reserved_after(A, 60 + 32, 52)),  # 1.04 for each
    "the largest overrun": ([report(A, 30, 62)], reserved_after(A, 60 + 32, 62)),
    "none of an endpoint that ignores it": ([report(A, 30, 63)], reserved_after(A, 60 + 32, 52.5)),
    "no overrun": ([report(A, 30, 50)], reserved_after(A, 60 + 32, 50)),
    "an answer that was not cut": ([report(A, 30, 49)], reserved_after(A, 60 + 32, 52.5)),
    "an overrun is not forgotten": (
        [report(A, 30, 52), report(A, 30, 51)],
        reserved_after(A, 60 + 32, 52),
    ),
    "nor that there is none": (
        [report(A, 30, 50), report(A, 30, 49)],
        reserved_after(A, 60 + 32, 50),
    ),
}


async def test_reports_change_what_is_reserved():
    """The estimate follows what the endpoint has counted for texts of the same kind, with a
    margin.
    """
    for name, (reports, (messages, fields, read, written)) in LEARNED.items():
        model = Meter(
            LARGE,
            *(Usage(1, tokens, answer, cost=None) for _, tokens, answer, _ in reports),
            NO_REPORT,
        )
        for each, *_, own in reports:
            await model.ask(each, max_tokens=50, **own)
        await model.ask(messages, max_tokens=50, **fields)
        assert model.reserved[-1] == amounts(read, written), name


# tokens of answers so far, of texts and of judges: what a text and a judge are expected to have,
# and have at most
LENGTHS = {
    "none": ([], [], (1024, 8192), (512, 8192)),
    "short": ([100], [], (256, 8192), (512, 8192)),
    "half more": ([1001], [], (1501, 8192), (512, 8192)),
    "the longest": ([2000, 1000], [], (3000, 8192), (512, 8192)),
    "of a judge": ([], [300], (1024, 8192), (450, 8192)),
    "of a judge, short": ([], [80], (1024, 8192), (256, 8192)),
    "twice the longest": ([5000], [], (7500, 10_000), (512, 8192)),
    "of both": ([5000], [6000], (7500, 10_000), (9000, 12_000)),
}


async def test_long_answers_change_what_is_expected_and_what_is_allowed():
    """Half more than the longest is expected, and twice as much allowed where nothing else limits
    it; texts and judges apart.
    """
    for name, (texts, verdicts, *ends) in LENGTHS.items():
        for budget, sent in (
            ({"calls": 99}, [None, None]),
            ({"output_tokens": 10**6}, [most for _, most in ends]),
        ):
            usages = [Usage(1, None, tokens, cost=None) for tokens in (*texts, *verdicts)]
            model = Meter(budget, *usages, NO_REPORT)
            for schema in [None] * len(texts) + [SCHEMA] * len(verdicts):
                await model.ask(schema=schema)
            for schema in (None, SCHEMA):
                await model.ask(schema=schema)
            assert model.sent[-2:] == sent, name
            tokens = [1.05 * each[sent != [None, None]] for each in ends]
            assert [each["output_tokens"] for each in model.reserved[-2:]] == pytest.approx(
                tokens
            ), name


async def test_a_judge_is_not_asked_with_less_than_its_longest_verdict():
    """After a verdict of 300 tokens, 299 are too few; a text may still have 64, and one's own
    maximum is enough.
    """
    for room, least, ends in (
        (314, {}, [False]),
        (316, {}, [True]),
        (314, {"max_tokens": 290}, [True]),
        (304, {"max_tokens": 290}, [False]),
    ):
        model = Meter({"output_tokens": 300 + room}, Usage(1, None, 300, cost=None), NO_REPORT)
        await model.ask(schema=SCHEMA)
        end = await model.ask(schema=SCHEMA, **least)
        assert [isinstance(end, Reply)] == ends, (room, least)


async def test_the_usage_of_several_calls_teaches_nothing():
    """Nobody knows which of them read how much."""
    for usage in (Usage(3, 30, 900, cost=None), Usage(0, 30, 900, cost=None, cached_calls=1)):
        model = Meter({"calls": 99}, usage, NO_REPORT)
        for _ in range(2):
            await model.ask((prompt(A),))
        assert model.reserved == [amounts(196, 1.05 * 1024)] * 2


# ---- what is settled

RESERVED = (101, 52.5)  # of a greeting with a maximum of 50 tokens
# usage, or error: calls, tokens read and written, USD, of the budget; cost in the report
SETTLED = {
    "less than reserved": (Usage(1, 100, 10, cost=None), (1, 100, 10, 110, 0.00028), 0.00028),
    "all": (Usage(1, 101, 52, cost=None), (1, 101, 52, 153, 0.000618), 0.000618),
    "more than reserved": (Usage(1, 300, 90, cost=None), (1, 300, 90, 390, 0.00132), 0.00132),
    "nothing written": (Usage(1, 100, 0, cost=None), (1, 100, 0, 100, 0.0002), 0.0002),
    "unknown": (unknown_usage(), (1, 101, 52.5, 153.5, 0.000622), None),
    "an unknown answer": (Usage(1, 100, None, cost=None), (1, 100, 52.5, 153.5, 0.000622), None),
    "an unknown prompt": (Usage(1, None, 10, cost=None), (1, 101, 10, 153.5, 0.000622), None),
    "a cost of its own": (Usage(1, 100, 10, cost=0.5), (1, 100, 10, 110, 0.5), 0.5),
    "a cost of its own without tokens": (
        Usage(1, None, None, cost=0.5),
        (1, 101, 52.5, 153.5, 0.5),
        0.5,
    ),
    "free": (Usage(1, 100, 10, cost=0.0), (1, 100, 10, 110, 0.0), 0.0),
    "from a cache": (Usage(0, 0, 0, cached_calls=1), (0, 0, 0, 0, 0.0), 0.0),
    "several calls": (Usage(3, 100, 10, cost=None), (3, 100, 10, 110, 0.00028), 0.00028),
    "refused": (RateLimitError("no", usage=Usage(calls=1)), (1, 0, 0, 0, 0.0), 0.0),
    "failed with a usage": (
        ModelError("no", usage=Usage(1, 100, 10, cost=None)),
        (1, 100, 10, 110, 0.00028),
        0.00028,
    ),
    "failed without": (
        ModelError("no", usage=unknown_usage()),
        (1, 101, 52.5, 153.5, 0.000622),
        None,
    ),
    "failed, and nobody knows of a call": (ModelError("no"), (1, 101, 52.5, 153.5, 0.000622), None),
    # which is found before anything is sent
    "a mistake": (ConfigError("no"), (0, 0, 0, 0, 0.0), 0.0),
    "a fault": (ValueError("no"), (1, 101, 52.5, 153.5, 0.000622), None),  # of the model's code
    "cancelled": (asyncio.CancelledError(), (1, 101, 52.5, 153.5, 0.000622), None),
}


@pytest.mark.parametrize(
    ("limits", "answer"), [({"tokens": 10**6, "usd": 1.0}, 52.5), ({"calls": 9}, 52.5), ({}, 50)]
)
async def test_a_call_is_settled_with_what_it_used(limits, answer):
    """The budget has what is known, and what was reserved where it is not; the report has None
    there. Without a limit, an answer is expected to have its maximum.
    """
    for name, (usage, spent, cost) in SETTLED.items():
        model = Meter(limits, usage)
        with CallLedger() as ledger:
            end = await model.ask(max_tokens=50)
        calls, read, written, tokens, usd = spent
        if written == 52.5:
            written = answer
        if tokens == 153.5:
            tokens = 101 + answer
        if usd == 0.000622:
            usd = 0.000202 + answer * 8e-6
        spent = pytest.approx(
            dict(zip(NAMES, (calls, read, written, tokens, usd), strict=True)), abs=1e-12
        )
        assert model.tracker.spent == spent, name
        assert ledger.total_usage.cost == (cost if cost is None else pytest.approx(cost)), name
        if isinstance(end, Reply):
            assert (end.usage.cost, end.usage.answer_cost) == (
                ledger.total_usage.cost,
                ledger.total_usage.cost,
            ), name


def sending(requests, ends="cancelled"):
    """Return a call that counts so many requests that it sends before it ends."""

    async def answer():
        entry = current_entry()
        entry.start_counting()
        for _ in range(requests):
            entry.count_request()
        if ends == "cancelled":
            raise asyncio.CancelledError
        if ends == "is a mistake":
            raise ConfigError("no")
        if ends == "fails":
            raise ModelError("no", usage=Usage(calls=1))
        return Reply("text", Usage(1, 100, 10, cost=None))

    return answer


SENT = {  # requests, end: calls, tokens read and written
    "cancelled before it is sent": (0, "cancelled", (0, 0, 0)),
    "a mistake that is found before": (0, "is a mistake", (0, 0, 0)),
    "and one that is found then": (1, "is a mistake", (1, *RESERVED)),
    "cancelled then": (1, "cancelled", (1, *RESERVED)),
    "cancelled while it is sent again": (2, "cancelled", (2, *RESERVED)),
    "answered": (1, "answers", (1, 100, 10)),
    "sent again and answered": (2, "answers", (2, *RESERVED)),
    "refused": (1, "fails", (1, 0, 0)),
    "sent again and refused": (3, "fails", (3, *RESERVED)),
}


@pytest.mark.parametrize(("limits", "answer"), [(LARGE, 52.5), ({}, 50)])
async def test_what_was_sent_counts_however_the_call_ends(limits, answer):
    """Every request is a call; what an unanswered one used is unknown, so what was reserved
    counts.
    """
    for name, (requests, ends, (calls, read, written)) in SENT.items():
        model = Meter(limits, sending(requests, ends))
        await model.ask(max_tokens=50)
        assert model.tracker.spent == amounts(
            read, answer if written == 52.5 else written, calls=calls
        ), name


# ---- several attempts


def too_large():
    return ModelError("max_tokens is too large", status=400, usage=Usage(calls=1))


# limits, fields, how often max_tokens is refused: what is sent, calls and tokens that are spent,
# calls of the end
REFUSED = {
    "once": (LARGE, {}, 1, [8192, 4096], (2, 100, 10), 2),
    "three times": (LARGE, {}, 3, [8192, 4096, 2048, 1024], (4, 100, 10), 4),
    "down to the least": ({"output_tokens": 600}, {}, 9, [571, 285], (2, 0, 0), 2),
    "exactly twice the least": ({"output_tokens": 538}, {}, 9, [512, 256], (2, 0, 0), 2),
    "less than that": ({"output_tokens": 537}, {}, 9, [511], (1, 0, 0), 1),
    "one's own": (LARGE, {"max_tokens": 5000}, 9, [5000], (1, 0, 0), 1),
    "without a limit on answers": ({"calls": 9}, {}, 9, [None], (1, 0, 0), 1),
    "and no call is left": ({"calls": 1, "output_tokens": 10**6}, {}, 9, [8192], (1, 0, 0), 1),
}


async def test_a_maximum_that_is_refused_is_halved_and_each_attempt_is_settled():
    """Every attempt is reserved and settled by itself; its calls are those of the reply, or of the
    error.
    """
    for name, (budget, fields, refusals, sent, (calls, read, written), total) in REFUSED.items():
        model = Meter(budget, *(too_large() for _ in range(refusals)), Usage(1, 100, 10, cost=None))
        end = await model.ask(**fields)
        assert model.sent == sent, name
        reserved = [1.05 * (most or 1024) for most in sent]
        assert [each["output_tokens"] for each in model.reserved] == pytest.approx(reserved), name
        assert model.tracker.spent == amounts(read, written, calls=calls), name
        assert (end.usage.calls, end.usage.retried_calls) == (
            total,
            total - 1 if total > 1 else 0,
        ), name
        if isinstance(end, Reply):
            assert (end.usage.answer_tokens, end.usage.cost) == (110, pytest.approx(0.00028)), name
            await model.ask()
            assert model.sent[-1] == sent[-1], name  # it is remembered


async def test_a_maximum_that_nothing_was_written_with_is_not_remembered():
    """After a refusal the next attempt failed for another reason: a later call asks for as much as
    before.
    """
    model = Meter(
        LARGE, too_large(), RateLimitError("no", usage=Usage(calls=1)), Usage(1, 100, 10, cost=None)
    )
    for _ in range(2):
        await model.ask()
    assert model.sent == [8192, 4096, 8192]


async def test_an_accepted_maximum_says_nothing_of_higher_ones():
    """Only after a refusal is there a highest one."""
    model = Meter({"output_tokens": 2200}, Usage(1, 100, 10, cost=None))
    await model.ask()
    model.tracker.set_budget(Budget(**LARGE))
    await model.ask()
    assert model.sent == [1047, 8192]


async def test_an_attempt_inside_is_reserved_again():
    """What repeats a request within the call settles the attempt before, so that no budget is
    exceeded.
    """

    async def answer():
        ledger = model.ledger
        again = ledger.reserve_again
        current_entry().settle(Usage(1, 20, 0, cost=0.25))
        request = await again(Usage(1, 20, 0, cost=0.25))
        model.sent.append(request.max_tokens)
        model.reserved.append(dict(model.tracker.reserved))
        assert model.tracker.spent == {
            "calls": 1,
            "input_tokens": 20,
            "output_tokens": 0,
            "tokens": 20,
            "usd": 0.25,
        }
        return Reply("text", Usage(1, 100, 10, cost=None))

    for calls, sent in ((2, [50, 50]), (1, [50])):
        model = Meter({"calls": calls, "tokens": 10**6}, answer)
        with CallLedger() as model.ledger:
            end = await model.ask(max_tokens=50)
        assert (model.sent, model.ledger.reserve_again) == (sent, None)
        assert end.usage.calls == calls
        assert model.tracker.spent["calls"] == calls
        if calls == 2:
            assert (end.usage.input_tokens, end.usage.retried_calls, end.usage.answer_tokens) == (
                120,
                1,
                110,
            )
            assert model.reserved[1] == amounts(37, 52.5)  # no longer with 64


async def fails():
    raise RateLimitError("no", usage=Usage(1, 20, 0, cost=None))


async def is_lost():
    raise ModelError("lost", retryable=True, usage=unknown_usage())


# answers: calls, tokens read and written of the budget; calls, cost and tokens of the answer in the
# report
RETRIED = {
    "no retry": ((Usage(1, 100, 10, cost=None),), (1, 100, 10), (1, 0.00028, 110)),
    "a refusal": (
        (RateLimitError("no", usage=Usage(calls=1)), Usage(1, 100, 10, cost=None)),
        (2, 100, 10),
        (2, 0.00028, 110),
    ),
    "a failure that costs": (
        (fails, Usage(1, 100, 10, cost=None)),
        (2, 120, 10),
        (2, 0.00032, 110),
    ),
    "a lost call": ((is_lost, Usage(1, 100, 10, cost=None)), (2, 201, 62.5), (2, None, 110)),
    "all fail": ((fails,), (3, 60, 0), (3, 0.00012, None)),
    # 37: 5 bytes and two messages
    "the last has no usage": ((fails, unknown_usage()), (2, 57, 52.5), (2, None, None)),
}


async def test_each_retry_is_reserved_and_settled():
    """The budget has the sum of all attempts, and so has the report; the tokens of the answer are
    those of the last.
    """

    async def at_once(seconds):
        assert all(abs(amount) < 1e-9 for amount in model.tracker.reserved.values())

    for name, (answers, (calls, read, written), (made, cost, tokens)) in RETRIED.items():
        model = Meter(LARGE, *answers)
        model.call = retry(model.call, attempts=3, sleep=at_once)
        end = await model.ask(max_tokens=50)
        assert model.tracker.spent == amounts(read, written, calls=calls), name
        assert (end.usage.calls, end.usage.retried_calls) == (made, made - 1), name
        assert end.usage.cost == (cost if cost is None else pytest.approx(cost)), name
        if isinstance(end, Reply):
            assert end.usage.answer_tokens == tokens, name


JSON, PROSE = '{"a": 1}', "It is good."
FORMAT, NO_TEMPERATURE = (
    "response_format is not supported",
    "'temperature' does not support 0 with this model.",
)


def refusal(words, status=400):
    return ModelError(f"status {status}: {words}", status=status, usage=Usage(calls=1))


def down():
    return ModelUnavailableError("status 500", status=500, retryable=True, usage=Usage(calls=1))


# answers of the endpoint to a judge: calls, tokens read and written, tokens of the answer; None: it
# fails
ADAPTED = {
    "at once": ([JSON], (1, 100, 10, 110)),
    "a format is refused": ([refusal(FORMAT), JSON], (2, 100, 10, 110)),
    "two are": ([refusal(FORMAT), refusal(FORMAT), JSON], (3, 100, 10, 110)),
    "all are": ([refusal(FORMAT)] * 3, (3, 0, 0, None)),
    "prose": ([PROSE, JSON], (2, 200, 20, 110)),
    "prose twice": ([PROSE, PROSE], (2, 200, 20, 110)),
    "prose after a refusal": ([refusal(FORMAT), PROSE, JSON], (3, 200, 20, 110)),
    "prose and an error": ([PROSE, refusal("no", 403)], (2, 100, 10, None)),
    "a parameter is refused": ([refusal(NO_TEMPERATURE), JSON], (2, 100, 10, 110)),
    "a parameter and a format": (
        [refusal(NO_TEMPERATURE), refusal(FORMAT), JSON],
        (3, 100, 10, 110),
    ),
    "a parameter and an error": ([refusal(NO_TEMPERATURE), refusal("no", 403)], (2, 0, 0, None)),
    "a format that fails is compared": (
        [*[down()] * MIN_FAILURES, JSON, down()],
        (2, 100, 10, 110),
    ),
    "and may be right": ([*[down()] * MIN_FAILURES, PROSE, JSON], (2, 200, 20, 110)),
}


@pytest.mark.parametrize("limits", [{}, LARGE])
async def test_requests_in_another_form_are_calls_of_the_same_answer(limits):
    """All are reserved, settled and reported; the tokens and the cost of the answer are those of
    the last alone.
    """
    for name, (answers, (calls, read, written, tokens)) in ADAPTED.items():
        model = Meter(limits)
        model.answers = [
            copy(each) if isinstance(each, Exception) else model.says(each) for each in answers
        ]
        model.call = adapt(model.call, EndpointCapabilities().for_model("endpoint#m", "m"))
        while True:
            end = await model.ask(schema=SCHEMA, temperature=0.0)
            if not (
                name.split()[-1] in ("compared", "right") and isinstance(end, ModelUnavailableError)
            ):
                break
        usd = (2 * read + 8 * written) / 1e6
        usage = end.usage
        assert (usage.calls, usage.input_tokens, usage.output_tokens) == (calls, read, written), (
            name
        )
        assert (usage.retried_calls, usage.cost) == (calls - 1, pytest.approx(usd)), name
        assert (tokens is None) == isinstance(end, ModelError), name
        if tokens is not None:
            assert (usage.answer_tokens, usage.answer_cost) == (tokens, pytest.approx(0.00028)), (
                name
            )
        failed = len(answers) - calls
        assert model.tracker.spent == amounts(read, written, calls=calls + failed), name


# ---- what a budget says of itself

EXCESSES = {  # limits, usage of a call with a maximum of 50 tokens: the text
    "kept": ({"tokens": 200}, Usage(1, 100, 10), ""),
    "exactly": ({"input_tokens": 101}, Usage(1, 101, 10), ""),
    "the prompt": (
        {"input_tokens": 101},
        Usage(1, 120, 10),
        "spent 120 of 101 input tokens, more than the budget allows: the server counted more tokens in a prompt than were reserved",
    ),
    "the answer": (
        {"output_tokens": 60},
        Usage(1, 100, 61),
        "spent 61 of 60 output tokens, more than the budget allows: the server wrote more than max_tokens",
    ),
    "both, of two limits": (
        {"tokens": 160, "usd": 0.0007},
        Usage(1, 110, 60, cost=0.002),
        (
            "spent 170 of 160 tokens, 0.002 of 0.0007 USD, more than the budget allows: the server wrote more than max_tokens; "
            "the server counted more tokens in a prompt than were reserved"
        ),
    ),
    "calls, with as many tokens as were reserved": (
        {"calls": 1, "tokens": 300},
        Usage(3, 101, 50),
        "spent 3 of 1 call, more than the budget allows: spending of earlier or other runs counts",
    ),
}


async def test_an_excess_is_reported_with_its_causes():
    """Which limits were exceeded, by how much, and what the server did."""
    for name, (limits, usage, text) in EXCESSES.items():
        model = Meter(limits, usage)
        await model.ask(max_tokens=50)
        assert model.tracker.excess == text, name


MESSAGES = {  # limits, number of calls made before: the message of the next one
    "too small": ({"tokens": 152}, 0, "the budget of 152 tokens is too small: 0 spent, "),
    "used up": (
        {"calls": 1},
        1,
        "the budget of 1 call is used up: 1 spent, the next step, with the grades of its text, may take 1",
    ),
    "in USD": (
        {"usd": 0.0009},
        1,
        "the budget of 0.0009 USD is used up: 0.0006 spent, the next step",
    ),
    "exceeded": (
        {"input_tokens": 120},
        1,
        "may take 301; spent 300 of 120 input tokens, more than the budget allows: ",
    ),
}


async def test_a_refusal_says_what_is_spent_and_what_would_be_needed():
    """Amounts of tokens are rounded up."""
    for name, (limits, calls, words) in MESSAGES.items():
        model = Meter(limits, Usage(1, 300, 0, cost=None))
        for _ in range(calls):
            await model.ask(max_tokens=50)
        end = await model.ask(max_tokens=50)
        assert isinstance(end, BudgetExhaustedError), name
        assert words in str(end), (name, end)
        assert (end.limit, end.usage) == (list(limits)[0], Usage()), name


# ---- grades that are reserved with their text


class FixedGrader:
    """A grader with these attributes, that asks with prompts of so many bytes for each grade;
    `later`: after the first one.
    """

    def __init__(self, name="grader", prompts=(50,), later=None, **attributes):
        self.name, self.prompts, self.later = name, prompts, prompts if later is None else later
        self.__dict__.update(attributes)

    async def grade(self, task, candidate, ask):
        prompts, self.prompts = self.prompts, self.later
        for size in prompts:
            await ask("y" * size)
        return 0.5


class Silent:
    """A model that says nothing of its usage."""

    name = identity = "silent"
    formats = ("text",)
    price = PRICE

    def __init__(self, *usages, **attributes):
        self.usages, self.requests, self.held, self.reserved = list(usages), [], [], []
        self.__dict__.update(attributes)

    async def complete(self, request):
        self.requests.append(request)
        if reservation := RESERVATION.get():
            self.held.append(tuple(reservation.tracker.held_for_grades[name] for name in NAMES[:3]))
            self.reserved.append(reservation.tracker.reserved["input_tokens"])
        answer = self.usages.pop(0) if self.usages else unknown_usage()
        if isinstance(answer, Exception):
            raise answer
        return Reply("t" * 40, answer)


def priced(**attributes):
    return FixedGrader(prompt_texts=("x" * 100,), max_tokens=200, **attributes)


TEXT = (1, 97, 67.2)  # "q", and the least answer: 64 tokens
# the task, 100 bytes, 3 messages and 64; 1.25 for each token of the text; a verdict of 200 tokens
ONE = (1, 229 + 80, 210)
GRADES = {  # graders: calls, tokens read and written by their grades
    "none": (lambda: lambda text: 0.5, (0, 0, 0)),
    "one": (priced, ONE),
    "two": (lambda: [priced(), priced(name="second")], (2, 2 * 309, 420)),
    # 512
    "no maximum": (
        lambda: FixedGrader(prompt_texts=("x" * 100,), max_tokens=None),
        (1, 309, 537.6),
    ),
    "a high maximum": (
        lambda: FixedGrader(prompt_texts=("x" * 100,), max_tokens=9000),
        (1, 309, 537.6),
    ),
    "free text": (lambda: FixedGrader(prompt_texts=("x" * 100,)), (1, 309, 1075.2)),  # 1024
    "unknown prompts": (lambda: FixedGrader(max_tokens=200), (1, 1900 + 309, 210)),
    "a rubric": (lambda: priced(rubric="r" * 30), (1, 339, 210)),
    "questions": (lambda: priced(questions="r" * 20), (1, 329, 210)),
    "other alphabets": (
        lambda: FixedGrader(prompt_texts=("é" * 50, "漢"), max_tokens=200),
        (1, 312, 210),
    ),
    "several calls": (lambda: priced(grade_calls=3), (3, 3 * 309, 630)),
    "calls for the task": (lambda: priced(setup_calls=2), (3, 3 * 309, 630)),
    "repeats": (lambda: Jury([priced()], repeats=3), (3, 3 * 309, 630)),
    "parts": (lambda: Jury([priced(), priced(name="second", grade_calls=2)]), (3, 3 * 309, 630)),
    "free of models": (
        lambda: [priced(), FixedGrader(name="second", model_free=True, prompts=())],
        ONE,
    ),
    "its own model": (
        lambda: priced(model=Silent(name="other", identity="other", price=Price(20.0, 80.0))),
        ONE,
    ),
}


def all_amounts(*calls, factor=1):
    """Return the amounts of a text and of its grades, whose tokens may cost several times as
    much.
    """
    (one, read, written), (more, shown, verdict) = calls
    usd = (read + factor * shown) * 2e-6 + (written + factor * verdict) * 8e-6
    return dict(
        zip(
            NAMES,
            (one + more, read + shown, written + verdict, read + shown + written + verdict, usd),
            strict=True,
        )
    )


def as_shown(name, amount):
    """Return an amount as messages have it."""
    return usd_amount(amount) if name == "usd" else str(ceil(amount - 1e-9))


async def refusal(task, graders, budget, model=None, **options):
    """Return the message of a refinement that no budget allows, without any call."""
    model = model or Silent()
    with pytest.raises(BudgetExhaustedError) as caught:
        await refine(
            task,
            model,
            graders,
            budget=Budget(**budget),
            noise_aware=False,
            max_iterations=0,
            **options,
        )
    assert model.requests == []
    return str(caught.value)


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize("name", GRADES)
async def test_the_grades_of_a_text_are_reserved_with_it(name):
    """A text is refused with the whole amount, in each unit; a budget of exactly that pays for
    it.
    """
    make, grades = GRADES[name]
    whole = all_amounts(TEXT, grades, factor=10 if name == "its own model" else 1)
    for limit, amount in whole.items():
        too_small = {limit: amount * 0.999 if limit == "usd" else ceil(amount - 1e-9) - 1}
        assert await refusal("q", make(), too_small) == (
            f"the budget of {as_shown(limit, too_small[limit])} {unit(limit, too_small[limit])} is too small: 0 spent, "
            f"the next step, with the grades of its text, may take {as_shown(limit, amount)}"
        )
        model = Silent()
        enough = Budget(**{limit: amount * (1 + 1e-9) if limit == "usd" else ceil(amount - 1e-9)})
        with suppress(BudgetExhaustedError):
            await refine("q", model, make(), budget=enough, noise_aware=False, max_iterations=0)
        assert model.requests, (limit, amount)


def unit(limit, amount):
    name = "USD" if limit == "usd" else limit.replace("_", " ")
    return name[:-1] if amount == 1 and name.endswith("s") else name


# task, calls of its grader: bytes and messages of the task for the writer, bytes and messages for
# each call of the judge
TASKS = {
    "a question": (Task("question"), (8, 1), (8, 1)),
    "a conversation": (Task([prompt("Be brief.", "system"), prompt("question")]), (17, 2), (17, 2)),
    "with a reference": (Task("question", reference="r" * 30), (8, 1), (38, 1)),
    "with a context": (Task("question", context="c" * 20), (None, None), (28, 1)),
    "with an answer of the assistant": (
        Task([prompt("one"), prompt("t" * 8, "assistant"), prompt("two")]),
        (16, 3),  # 6, and 1.25 for each byte
        (16, 3),
    ),
}


@pytest.mark.parametrize("name", TASKS)
async def test_the_prompts_of_grades_have_all_of_the_task(name):
    """Its messages, reference and context are in each prompt of a judge."""
    task, (written, messages), (judged, more) = TASKS[name]
    judge = judged + 100 + 16 * (more + 2 + 1) + 64 + 1.25 * 64
    if written is None:  # the writer's prompt is not known here: two graders show the part of one
        one, two = [
            int((await refusal(task, graders, {"input_tokens": 1})).rpartition(" ")[2])
            for graders in (priced(), [priced(), priced(name="b")])
        ]
        assert two - one == judge
        return
    text = written + 16 * (messages + 1) + 64
    assert (await refusal(task, priced(), {"input_tokens": 1})).endswith(
        f" may take {ceil(text + judge)}"
    )


async def test_a_given_text_is_graded_with_all_its_calls_or_none():
    """The first call is reserved by its own prompt, further ones by the estimate, with the text in
    each.
    """
    further = 1 + 100 + 16 * 4 + 64 + 40  # the task, the instructions, the messages, the text
    for calls, read, written in (
        (2, 146 + further, 67.2 + 210),
        (3, 146 + 2 * further, 67.2 + 420),
    ):
        grader = priced(grade_calls=calls, prompts=(50,) * calls)
        for limit, amount in (("input_tokens", read), ("output_tokens", written), ("calls", calls)):
            model = Silent()
            with pytest.raises(BudgetExhaustedError, match=f" may take {ceil(amount)};"):
                await grade(
                    ("q", "t" * 40), grader, model, budget=Budget(**{limit: ceil(amount) - 1})
                )
            assert model.requests == []
            await grade(("q", "t" * 40), grader, model, budget=Budget(**{limit: ceil(amount)}))
            assert len(model.requests) == calls


def drafts(count):
    """Return a plan that writes drafts, and asks one grader after the other about each after it was
    written.
    """

    def plan(trace):
        texts = trace.candidates
        if texts and (
            missing := trace.missing([Grade(g.name, trace.task, texts[-1]) for g in trace.panel])
        ):
            return missing[:1]
        if trace.fatal_failure or len(texts) >= count:
            return [Stop(trace.best.id if trace.best else None, "budget")]
        return [Generate(trace.next_id, trace.task.messages)]

    return plan


WRITTEN = Usage(1, 33, 40, cost=None)  # of a text; 33: a byte and 16 for each message
BUSY = "busy"
NOTHING = (0, 0, 0)
# grader, usages or errors of the calls, number of drafts: calls, tokens read and written that are
# held at each call
HELD = {
    "one grade": (lambda: priced(), [WRITTEN], 1, [(1, 229 + 1.25 * 8192, 210), NOTHING]),
    "an unknown length": (
        lambda: [priced(), priced(name="b")],
        [],
        1,
        [(2, 2 * (229 + 10_240), 420), (1, 229 + 10_240, 210), NOTHING],
    ),
    "a known length": (
        lambda: [priced(), priced(name="b")],
        [WRITTEN],
        1,
        [(2, 2 * (229 + 10_240), 420), (1, 229 + 50, 210), NOTHING],
    ),
    "a longer text than allowed": (
        lambda: [priced(), priced(name="b")],
        [Usage(1, 33, 9000, cost=None)],  # nothing is reserved beyond what was
        1,
        [(2, 2 * (229 + 10_240), 420), (1, 229 + 10_240, 210), NOTHING],
    ),
    "several calls": (
        lambda: priced(grade_calls=3, prompts=(50,) * 3),
        [WRITTEN],
        1,
        [(3, 3 * (229 + 10_240), 630), (2, 2 * 279, 420), (1, 279, 210), NOTHING],
    ),
    "fewer calls than reserved": (
        lambda: [priced(grade_calls=3), priced(name="b")],
        [WRITTEN],
        1,  # what is left is free then, and the second has its own
        [(4, 4 * (229 + 10_240), 840), (3, 3 * 279, 630), NOTHING],
    ),
    "more calls than reserved": (
        lambda: [priced(prompts=(50,) * 3), priced(name="b")],
        [WRITTEN],
        1,  # they take nothing from the second
        [(2, 2 * (229 + 10_240), 420), (1, 279, 210), (1, 279, 210), (1, 279, 210), NOTHING],
    ),
    # of 50 bytes, of which the text has 40 and the task 1: 9 instead of 100, and no more 64
    "measured prompts": (
        lambda: priced(),
        [WRITTEN],
        2,
        [(1, 229 + 10_240, 210), NOTHING, (1, 74 + 10_240, 210), NOTHING],
    ),
    "no prompt": (
        lambda: priced(prompts=()),
        [WRITTEN],
        2,
        [(1, 229 + 10_240, 210), (1, 165 + 10_240, 210)],
    ),
    "the longest prompt": (
        lambda: priced(prompts=(50, 90, 70), grade_calls=3),
        [WRITTEN],
        2,
        [(3, 3 * 10_469, 630), (2, 558, 420), (1, 279, 210), NOTHING, (3, 3 * (114 + 10_240), 630)],
    ),
    "counted calls": (  # of a grader whose prompts are unknown
        lambda: FixedGrader(prompts=(50, 50), max_tokens=200),
        [WRITTEN],
        2,
        [
            (1, 2129 + 10_240, 210),
            NOTHING,
            NOTHING,
            (2, 2 * (74 + 10_240), 420),
            (1, 74 + 10_240, 210),
            NOTHING,
        ],
    ),
    "the most calls": (
        lambda: FixedGrader(prompts=(50,) * 3, later=(50,), max_tokens=200),
        [WRITTEN],
        3,
        [
            (1, 12_369, 210),
            *[NOTHING] * 3,
            (3, 3 * 10_314, 630),
            (2, 2 * 10_314, 420),
            (3, 3 * 10_314, 630),
        ],
    ),
    "calls for the task are made once": (
        lambda: priced(setup_calls=2, prompts=(50,) * 3),
        [WRITTEN],
        2,
        [(3, 3 * 10_469, 630), (2, 558, 420), (1, 279, 210), NOTHING, (1, 74 + 10_240, 210)],
    ),
    "a failed text": (
        lambda: priced(),
        [BUSY, WRITTEN],
        1,
        [(1, 229 + 10_240, 210), (1, 229 + 10_240, 210), NOTHING],
    ),
    "a failed grade": (
        lambda: priced(grade_calls=2, prompts=(50, 50)),
        [WRITTEN, BUSY],
        1,  # it gets back what it drew, and draws it again
        [(2, 2 * (229 + 10_240), 420), (1, 279, 210), (1, 279, 210), NOTHING],
    ),
}


@pytest.mark.parametrize("name", HELD)
async def test_what_is_held_for_grades_at_each_call(monkeypatch, name):
    """The call of a text holds them; then they follow its length, each call draws its own, and the
    end of a grade frees the rest.
    """
    monkeypatch.setitem(retry.__kwdefaults__, "jitter", lambda: 0.0)
    make, answers, count, held = HELD[name]
    usages = [
        RateLimitError("no", retryable=True, usage=Usage(calls=1)) if each is BUSY else each
        for each in answers
    ]
    model = Silent(*usages)
    result = await refine(
        "q", model, make(), plan=drafts(count), budget=Budget(**LARGE), target_score=1
    )
    assert len(result.trace.graded_candidates) == count
    assert model.held[: len(held)] == [pytest.approx(each) for each in held]
    assert count > 1 or len(model.held) == len(held)


async def test_calls_for_the_task_are_not_held_again_after_a_given_text():
    """The first grade of that text has made them, and held what it needed after its first call."""
    model = Silent()
    grader = priced(setup_calls=1, prompts=(50, 50), later=(50,))
    await refine(
        Task("q", "t"), model, grader, plan=drafts(2), budget=Budget(**LARGE), target_score=1
    )
    assert model.held == [(1, 230, 210), NOTHING, (1, 229 + 10_240, 210), NOTHING]


async def test_a_call_beyond_those_reserved_is_reserved_by_its_own_prompt():
    """One that draws counts as no more than was held for it; once nothing is held, its prompt
    counts in full.
    """
    model = Silent(WRITTEN)
    await refine("q", model, priced(prompts=(1000, 1000)), plan=drafts(1), budget=Budget(**LARGE))
    assert model.reserved == [97, 279, 1032]


@pytest.mark.parametrize(("most", "asked"), [(145, 0), (146, 1)])
async def test_a_grader_with_a_budget_of_its_own_takes_nothing_of_the_grades_reserved(most, asked):
    """Its calls are reserved by their own prompts there; the call that it makes in the outer budget
    draws what was held for it.
    """
    inner, outer, refusals = Silent(), Silent(WRITTEN), []

    class Nested(FixedGrader):
        async def grade(self, task, candidate, ask):
            try:
                await grade(("q", "t"), priced(), inner, budget=Budget(input_tokens=most))
            except BudgetExhaustedError as error:
                refusals.append(str(error))
            return await super().grade(task, candidate, ask)

    grader = Nested(prompt_texts=("x" * 100,), max_tokens=200)
    await refine("q", outer, grader, plan=drafts(1), budget=Budget(**LARGE))
    assert (len(inner.requests), len(refusals)) == (asked, 1 - asked)
    assert all("may take 146" in refusal for refusal in refusals)
    assert inner.held == [(1, 279, 210)] * asked  # of the outer budget
    assert outer.held == [(1, 229 + 10_240, 210), NOTHING]
