"""Prices of models. An unknown price is None, never 0.

Prices are those in the `genai-prices` library; nothing is fetched. The price of a server on this
machine is unknown. A model that runs in this process and a scripted model are free.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from ..usage import Usage
from .traits import traits_of_model


@dataclass(frozen=True, slots=True)
class Price:
    """USD per million input and output tokens.

    This is the published base price, without discounts for cached input and surcharges for very
    long prompts.
    """

    input: float
    output: float

    def cost(self, usage: Usage) -> float | None:
        """Return the cost of the tokens in USD; None if their number is unknown."""
        if usage.input_tokens is None or usage.output_tokens is None:
            return None
        return (usage.input_tokens * self.input + usage.output_tokens * self.output) / 1_000_000


FREE = Price(0.0, 0.0)


def price_of(
    model: Any, provider_or_url: str | None = None, *, writes_text: bool = True
) -> Price | None:
    """Return the price of a model; None if it is unknown.

    `model` is a `Model`, or a name with a base URL or a provider such as "anthropic" as
    `provider_or_url`. One that writes no text has no price for its output.
    """
    if not isinstance(model, str):
        traits = traits_of_model(model)
        if isinstance(traits.price, Price):
            return traits.price
        model, provider_or_url = traits.model_name, traits.base_url or traits.provider
        writes_text = traits.writes_text
    if not provider_or_url or _is_loopback(provider_or_url):
        return None
    return _published_price(model, provider_or_url, writes_text=writes_text)


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host in {"localhost", "::1", "0.0.0.0"} or host.startswith("127.")  # noqa: S104


def context_window_of(name: str, url: str) -> int | None:
    """Return the published context window of a model at a base URL, in tokens; None if it is
    unknown.
    """
    info = None if _is_loopback(url) else _published_model(name, url)
    return info.context_window if info else None


def _published_model(name: str, provider_or_url: str) -> Any:
    from genai_prices.data_snapshot import get_snapshot

    provider = (
        {"provider_api_url": provider_or_url, "provider_id": None}
        if "://" in provider_or_url
        else {"provider_api_url": None, "provider_id": provider_or_url}
    )
    try:
        _, info = get_snapshot().find_provider_model(name, None, **provider)
    except LookupError:
        return None
    return info


def _published_price(name: str, provider_or_url: str, *, writes_text: bool) -> Price | None:
    from datetime import UTC, datetime

    info = _published_model(name, provider_or_url)
    if info is None:
        return None
    prices = info.get_prices(datetime.now(UTC))
    input_price, output_price = (
        _base_price(getattr(prices, name, None)) for name in ("input_mtok", "output_mtok")
    )
    if output_price is None and not writes_text:
        output_price = 0.0
    return None if input_price is None or output_price is None else Price(input_price, output_price)


def _base_price(price: Any) -> float | None:
    """Return a price, or the base of one that grows with the length of the prompt."""
    amount = getattr(price, "base", price)
    return None if amount is None else float(amount)
