"""What all pages have in common: numbers and times as they write them (an unknown value is a dash,
never 0), the templates, the files that pages load, and what a page says of an error.
"""

from __future__ import annotations

from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from ..base.html import Templates
from ..base.money import usd_amount
from ..base.text import format_duration
from ..errors import ConfigError, RedraftError
from ..result import STOP_PHRASES

FOLDER = Path(__file__).parent
STATIC = {"app.css": "text/css", "app.js": "text/javascript", "icon.svg": "image/svg+xml"}
MAX_MESSAGE = 2_000  # characters of an error
UNKNOWN = "–"
HEAT_STEPS = 10
STOPS = {
    **{str(reason): phrase for reason, phrase in STOP_PHRASES.items()},
    "done": "the graders are satisfied",
    "not_started": "no budget or time was left for it",
}


def score(value: float | None, digits: int = 2) -> str:
    """Format a score."""
    return UNKNOWN if value is None else f"{value:.{digits}f}"


def difference(value: float | None, digits: int = 2) -> str:
    """Format a difference with its sign; a difference of nothing has none."""
    if value is None:
        return UNKNOWN
    return f"{value:+.{digits}f}" if round(value, digits) else f"{0:.{digits}f}"


def interval(value: tuple[float, float] | None, digits: int = 2) -> str:
    """Format the ends of an interval of scores."""
    return UNKNOWN if value is None else f"{value[0]:.{digits}f} to {value[1]:.{digits}f}"


def difference_interval(value: Any, digits: int = 3) -> str:
    """Format the ends of an interval of differences; what is no pair of numbers is unknown."""
    match value:
        case (int() | float() as low, int() | float() as high):
            return f"{low:+.{digits}f} to {high:+.{digits}f}"
    return UNKNOWN


def number(value: float | None) -> str:
    """Format a count, or an amount with few digits, without an exponent."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if abs(value) >= 100 else f"{Decimal(f'{value:.3g}'):f}"


def count(value: float | None, noun: str) -> str:
    """Format a count with its noun: "1 row", "2 rows", "– rows"."""
    return f"{number(value)} {noun if value == 1 else f'{noun}s'}"


def money(usd: float | None) -> str:
    """Format an amount in USD."""
    return UNKNOWN if usd is None else f"${usd_amount(usd)}"


def seconds(value: float | None) -> str:
    """Format a duration."""
    return UNKNOWN if value is None else format_duration(value)


def amount(value: float | None, form: str) -> str:
    """Format an amount of calls or tokens (form "number"), of "money" or of time ("seconds")."""
    return {"number": number, "money": money, "seconds": seconds}[form](value)


def percent(share: float | None) -> str:
    """Format a share."""
    return UNKNOWN if share is None else f"{share:.0%}"


def heat(value: float | None) -> str:
    """Return the class of a cell by its score: "heat-0" to "heat-10", or "heat-none"."""
    return "heat-none" if value is None else f"heat-{round(value * HEAT_STEPS)}"


def sign_class(value: float | None, tolerance: float = 5e-4) -> str:
    """Return the class of a difference: "up", "down" or "level"."""
    return "level" if value is None or abs(value) < tolerance else "up" if value > 0 else "down"


def time(iso: Any) -> str:
    """Format an ISO 8601 time in UTC to the minute."""
    return str(iso)[:16].replace("T", " ") + " UTC" if iso else UNKNOWN


def stop_phrase(stop: str) -> str:
    """Return why a row ended, in the words of `redraft run`; another text as it is."""
    return STOPS.get(stop, stop)


FILTERS = {
    function.__name__: function
    for function in (
        score,
        difference,
        interval,
        difference_interval,
        number,
        count,
        money,
        seconds,
        amount,
        percent,
        heat,
        sign_class,
        stop_phrase,
        time,
    )
}
"""The filters of the templates."""


# ---- templates and files


def make_templates(**shared: Any) -> Templates:
    """Return the templates of the viewer."""
    return Templates(FOLDER / "templates", FILTERS, **{"standalone": False, "root": "", **shared})


@lru_cache
def static_text(name: str) -> str:
    """Return the text of a file that pages load."""
    return (FOLDER / "static" / name).read_text(encoding="utf-8")


def static_file(request: Request) -> Response:
    """A file that pages load."""
    name = request.path_params["name"]
    if name not in STATIC:
        return PlainTextResponse("not found", 404)
    return Response(static_text(name), media_type=STATIC[name])


# ---- errors


def error_status(error: Exception) -> int:
    """Return the status of a page that an error replaces: 500 only for a fault of ours."""
    match error:
        case HTTPException():
            return error.status_code
        case ConfigError():
            return 400
        case RedraftError():
            return 422
    return 500


def error_message(error: Exception) -> str:
    """Return what a page says of an error."""
    match error:
        case HTTPException():
            return error.detail[:MAX_MESSAGE]
        case RedraftError():
            return str(error)[:MAX_MESSAGE]
    return f"{type(error).__name__} (this is a fault of Redraft)"
