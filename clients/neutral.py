"""Requests of real clients as the tests keep them: nothing of the machine that recorded them, and
long texts cut. Names, types and shapes of all fields stay.
"""

from __future__ import annotations

import json
import re
from typing import Any

PROMPT_CHARS, TEXT_CHARS, HEADER_CHARS = 100, 40, 200
NO_TIME = 10**12  # milliseconds; larger numbers are times
LEFT_OUT = {  # keys, and what the HTTP library says of itself
    "accept",
    "accept-encoding",
    "authorization",
    "connection",
    "content-length",
    "content-type",
    "host",
    "x-api-key",
}
ZERO_UUID = "00000000-0000-4000-8000-000000000000"
REPLACED = (
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), ZERO_UUID),
    (re.compile(r"\b[0-9a-f]{32,64}\b"), "0" * 32),
    (re.compile(r"\b(?:ses|prj|usr|req)_[0-9A-Za-z]{10,}"), "ses_0"),
    (re.compile(r"127\.0\.0\.1:\d+"), "127.0.0.1:8484"),
    (re.compile(r"\b20\d\d-\d\d-\d\d(?!\d)(?:T[\d:.]+Z?)?"), "2026-01-01"),
    (
        re.compile(r"\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]* [A-Z][a-z]{2} \d\d 20\d\d"),
        "Thu Jan 01 2026",
    ),
    (
        re.compile(
            r"(?:Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday), "
            r"[A-Z][a-z]+ \d{1,2}, 20\d\d"
        ),
        "Thursday, January 1, 2026",
    ),
    (re.compile(r"PGID: \d+"), "PGID: 1"),
    (re.compile(r"\(Debian [\d.]+; "), "(Linux; "),
)
DATED = ("anthropic-beta", "anthropic-version")  # headers whose dates are parts of names


def neutral_request(
    client: str, path: str, headers: dict[str, str], body: Any, places: dict[str, str]
) -> dict[str, Any]:
    """Return what a test posts again. `places`: neutral names of folders of this machine."""
    sent = {name: value for name, value in headers.items() if name.lower() not in LEFT_OUT}
    return {
        "client": client,
        "path": path,
        "headers": {
            name: value if name in DATED else neutral_text(value, places, HEADER_CHARS)
            for name, value in sorted(sent.items())
        },
        "body": neutral_value(body, places, PROMPT_CHARS),
    }


def neutral_value(value: Any, places: dict[str, str], most: int) -> Any:
    """Return a JSON value with neutral texts of at most `most` characters; less in descriptions."""
    if isinstance(value, dict):
        return {
            neutral_text(name, places, most): neutral_value(
                each, places, TEXT_CHARS if name in ("description", "definition", "tools") else most
            )
            for name, each in value.items()
        }
    if isinstance(value, list):
        return [neutral_value(each, places, most) for each in value]
    if isinstance(value, str):
        return neutral_text(value, places, most)
    return NO_TIME if isinstance(value, int) and value > NO_TIME else value


def neutral_text(text: str, places: dict[str, str], most: int) -> str:
    """Return a text without names of this machine, cut after `most` characters; JSON stays JSON."""
    if text.startswith("{") and (inner := _json_or_none(text)) is not None:
        return json.dumps(neutral_value(inner, places, most))
    for place, name in places.items():
        text = text.replace(place, name)
    for pattern, stands_for in REPLACED:
        text = pattern.sub(stands_for, text)
    return text if len(text) <= most or text.startswith("data:") else text[: most - 1] + "…"


def _json_or_none(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return None
