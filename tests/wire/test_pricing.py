"""Prices of models; an unknown price is None."""

from __future__ import annotations

import pytest

from redraft.usage import Usage
from redraft.models import Chat, Price, ScriptedModel, connect, price_of


@pytest.mark.parametrize(
    ("model", "where"),
    [
        ("gpt-4o-mini", "https://api.openai.com/v1"),
        ("gpt-4o-mini", "openai"),
        ("claude-sonnet-4-5", "anthropic"),
        ("gemini-2.5-pro", "google"),
    ],
)
def test_published_prices(model, where):
    """Known models have a price per million tokens, higher for output than for input."""
    price = price_of(model, where)
    assert 0 < price.input < price.output < 1000


@pytest.mark.parametrize(
    ("model", "where"),
    [
        ("no-such-model", "openai"),
        ("gpt-4o-mini", "http://127.0.0.1:8000/v1"),
        ("gpt-4o-mini", "http://localhost:8000/v1"),
        ("gpt-4o-mini", "http://[::1]:8000/v1"),
        ("gpt-4o-mini", "https://proxy.example/v1"),
        ("gpt-4o-mini", "no-such-vendor"),
        ("gpt-4o-mini", None),
    ],
)
def test_unknown_price_is_none(model, where):
    """Unknown models, hosts and vendors, and local servers have no price."""
    assert price_of(model, where) is None


def test_price_of_a_model_object():
    """A model is priced by name and endpoint; a scripted model is free, and a function has no known price."""
    assert price_of(Chat("gpt-4o-mini")) == price_of("gpt-4o-mini", "openai")
    assert price_of(Chat("gpt-4o-mini", "http://127.0.0.1:1/v1")) is None
    assert price_of(ScriptedModel([])) == Price(0, 0)
    assert price_of(connect(lambda m: "x")) is None


def test_cost():
    """Cost is tokens times price; an unknown number of tokens costs None, and zero tokens cost 0."""
    price = Price(2, 8)
    assert price.cost(Usage(1, 1_000_000, 500_000)) == 6.0
    assert price.cost(Usage(1, None, 5)) is None
    assert price.cost(Usage(1, 5, None)) is None
    assert price.cost(Usage(1)) == 0.0
