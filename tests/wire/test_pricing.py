"""Prices of models; an unknown price is None."""

from __future__ import annotations

import pytest

from redraft.models import Chat, Price, ScriptedModel, connect, price_of
from redraft.models.pricing import context_window_of
from redraft.usage import Usage

OPENAI = "https://api.openai.com/v1"
PUBLISHED = [  # USD per million tokens read and written, as the providers have published them
    ("gpt-4o-mini", OPENAI, (0.15, 0.6)),
    ("gpt-4o-mini", "openai", (0.15, 0.6)),
    ("claude-sonnet-4-5", "anthropic", (3, 15)),
    # of prompts up to 200,000 tokens; longer ones cost more
    ("gemini-2.5-pro", "google", (1.25, 10)),
]


@pytest.mark.parametrize(("model", "where", "price"), PUBLISHED)
def test_published_prices(model, where, price):
    """Known models have a price per million tokens; where it grows with the prompt, that of short
    ones.
    """
    assert price_of(model, where) == Price(*price)


def test_a_model_that_writes_no_text_has_no_price_for_it():
    """Its price is unknown if it is to write."""
    assert price_of("text-embedding-3-small", "openai") is None
    assert price_of("text-embedding-3-small", "openai", writes_text=False) == Price(0.02, 0)
    assert price_of("gpt-4o-mini", "openai", writes_text=False) == Price(0.15, 0.6)


def test_published_context_windows():
    """Of known models at their provider; not of servers on this machine."""
    windows = [
        context_window_of(*each)
        for each in (
            ("gpt-4o-mini", OPENAI),
            ("none", OPENAI),
            ("gpt-4o-mini", "http://localhost/v1"),
        )
    ]
    assert windows == [128_000, None, None]


@pytest.mark.parametrize(
    ("model", "where"),
    [
        ("no-such-model", "openai"),
        ("gpt-4o-mini", "http://127.0.0.1:8000/v1"),
        ("gpt-4o-mini", "http://localhost:8000/v1"),
        ("gpt-4o-mini", "http://[::1]:8000/v1"),
        ("gpt-4o-mini", "http://0.0.0.0:8000/v1"),
        ("gpt-4o-mini", "http://127.9.9.9:8000/v1"),
        ("gpt-4o-mini", "https://proxy.example/v1"),
        ("gpt-4o-mini", "no-such-vendor"),
        ("gpt-4o-mini", None),
    ],
)
def test_unknown_price_is_none(model, where):
    """Unknown models, hosts and vendors, and local servers have no price."""
    assert price_of(model, where) is None


def test_price_of_a_model_object():
    """A model is priced by name and endpoint; a scripted model is free, and a function has no known
    price.
    """
    assert price_of(Chat("gpt-4o-mini")) == price_of("gpt-4o-mini", "openai")
    assert price_of(Chat("gpt-4o-mini", "http://127.0.0.1:1/v1")) is None
    assert price_of(ScriptedModel([])) == Price(0, 0)
    assert price_of(connect(lambda m: "x")) is None


def test_cost():
    """Cost is tokens times price; an unknown number of tokens costs None, and zero tokens cost
    0.
    """
    price = Price(2, 8)
    assert price.cost(Usage(1, 1_000_000, 500_000)) == 6.0
    assert price.cost(Usage(1, None, 5)) is None
    assert price.cost(Usage(1, 5, None)) is None
    assert price.cost(Usage(1)) == 0.0
