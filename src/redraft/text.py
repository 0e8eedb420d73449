"""Text from a model, made safe to show in a terminal."""

from __future__ import annotations

import re

CONTROLS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
BIDI = re.compile("[\u202a-\u202e\u2066-\u2069]")


def plain(text: str) -> str:
    """The text without what could drive a terminal: escape sequences, control characters, direction overrides."""
    cleaned = BIDI.sub("", CONTROLS.sub("", text.replace("\r\n", "\n")))
    return cleaned.encode("utf-8", "replace").decode()
