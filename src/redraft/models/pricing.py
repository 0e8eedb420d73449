"""What models cost, as far as anybody published it. An unknown price is None and never 0.

The list is the one in the `genai-prices` library; nothing is fetched. A server on this machine is unknown: its price
is whatever it costs you to run. An engine in this process and a scripted model are free: nobody is paid for a call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from ..usage import Usage


@dataclass(frozen=True, slots=True)
class Price:
    """USD per million tokens read and written.

    The published base price: discounts for cached input are not counted, nor surcharges for very long prompts.
    """

    input: float
    output: float

    def cost(self, usage: Usage) -> float | None:
        """What the tokens cost in USD; None when they are unknown."""
        if usage.input_tokens is None or usage.output_tokens is None:
            return None
        return (usage.input_tokens * self.input + usage.output_tokens * self.output) / 1_000_000


FREE = Price(0.0, 0.0)


def price_of(model: Any, provider_or_url: str | None = None) -> Price | None:
    """The price of a Model, or of a model's name at a base URL or with a provider ("anthropic"); None when unknown."""
    if not isinstance(model, str):
        return _price_of_model(model)
    return _published_price(model, provider_or_url) if provider_or_url and not _is_loopback(provider_or_url) else None


def _price_of_model(model: Any) -> Price | None:
    own = getattr(model, "price", None)
    where = getattr(model, "base_url", None) or getattr(model, "provider", None)
    return own if isinstance(own, Price) else price_of(getattr(model, "model_name", model.name), where)


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host in {"localhost", "::1", "0.0.0.0"} or host.startswith("127.")  # noqa: S104


def _published_price(name: str, provider_or_url: str) -> Price | None:
    from datetime import UTC, datetime

    from genai_prices.data_snapshot import get_snapshot

    at = (
        {"provider_api_url": provider_or_url, "provider_id": None}
        if "://" in provider_or_url
        else {"provider_api_url": None, "provider_id": provider_or_url}
    )
    try:
        _, found = get_snapshot().find_provider_model(name, None, **at)
    except LookupError:
        return None
    listed = found.get_prices(datetime.now(UTC))
    read, written = _base_price(getattr(listed, "input_mtok", None)), _base_price(getattr(listed, "output_mtok", None))
    return None if read is None or written is None else Price(read, written)


def _base_price(price: Any) -> float | None:
    """A price, or the base of one that grows with the prompt."""
    amount = getattr(price, "base", price)
    return None if amount is None else float(amount)
