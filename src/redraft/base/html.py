"""HTML from templates: everything is escaped, and characters that are invisible or reorder text are
shown as visible ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
MAX_VALUE = 300_000  # characters of one value in a page
SURROGATE = re.compile("[\ud800-\udfff]")


def visible_text(text: str) -> str:
    """Return a text in which control characters, direction marks and invisible characters are
    shown.

    Control characters become their pictures, such as ␛; others their code, such as ⟨U+202E⟩. Tabs,
    line ends, and the joiners that many scripts and emoji need are left. A lone surrogate, which
    HTML cannot hold, becomes �.
    """
    shown = INVISIBLE.sub(lambda match: _picture(match[0]), text.replace("\r\n", "\n"))
    return SURROGATE.sub("\ufffd", shown)


def _picture(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else f"⟨U+{code:04X}⟩"


def html_text(value: Any) -> Markup:
    """Return a value as HTML: text is made visible and escaped."""
    return value if isinstance(value, Markup) else escape(visible_text(str(value)))


def _finalize(value: Any) -> Any:
    if isinstance(value, Markup):
        return value
    text = "" if value is None else str(value)
    return visible_text(text if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE]} …")


class Templates:
    """The templates in a folder. A missing value is an error; None is shown as nothing, and a very
    long text is cut.
    """

    def __init__(
        self, folder: Path, filters: Mapping[str, Callable[..., Any]] = {}, **shared: Any
    ) -> None:
        self._environment = Environment(
            loader=FileSystemLoader(folder),
            autoescape=True,
            finalize=_finalize,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters.update(filters)
        self._environment.globals.update(shared)

    def render(self, name: str, **values: Any) -> str:
        """Return the HTML of a template."""
        return self._environment.get_template(name).render(values)
