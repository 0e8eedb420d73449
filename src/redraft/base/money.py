"""Amounts of money as people read them, in one form everywhere."""

from __future__ import annotations

from math import floor, isfinite, log10

# significant digits of an amount below 1,000, and the least amount that is shown
DIGITS, LEAST = (4, 1e-9)


def format_usd(usd: float | None) -> str:
    """Format an amount in USD with its unit: "1,234.50 USD", "0.0004 USD", "0 USD"; "unknown" for
    None.
    """
    return "unknown" if usd is None else f"{usd_amount(usd)} USD"


def usd_amount(usd: float) -> str:
    """Format an amount in USD: "1,234.50", "0.0004", "0".

    It has four significant digits, two decimals at least, and no more zeros than these. Only
    nothing is shown as 0.
    """
    if not usd or not isfinite(usd):
        return f"{usd:.0f}"
    if abs(usd) < LEAST:
        return f"less than {LEAST:.9f}"
    decimals = max(2, DIGITS - 1 - floor(log10(abs(usd))))
    whole, _, fraction = f"{usd:,.{decimals}f}".partition(".")
    return f"{whole}.{fraction.rstrip('0'):0<2}"
