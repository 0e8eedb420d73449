r"""Templates with named fields, for prompts that users write.

Only named fields are replaced; every other brace stays as written. There is no attribute access, no
format specification and no code, as in `str.format`, and inserted text is never parsed again. The
meaning of braces:

- `{response}`: a field; a name that is not known is for the caller to accept or to reject;
- `{word}` directly after a letter, a digit or one of `^ _ $ \ }`, as in LaTeX (`\frac{a}{b}`) and
  in code (`${HOME}`): itself, unless the name is known;
- `{{word}}`: the text `{word}`, whatever the name;
- everything else, such as `{"a": 1}`, `{x: 1}`, `{0}`, `{}`, `{ context }`: itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator

FIELD = re.compile(r"\{\{([A-Za-z_]\w*)\}\}|\{([A-Za-z_]\w*)\}")
PREFIX_OF_CODE = re.compile(r"[A-Za-z0-9^_$\\}]\Z")

TemplatePart = tuple[str, str]
"""A text, and the name of the field that follows it ("" for none)."""


def parse_template(text: str, known: Collection[str]) -> tuple[TemplatePart, ...]:
    """Return the parts of a template; `known` are the names that are fields wherever they stand in
    braces.
    """
    return tuple(_parts(text, known))


def _parts(text: str, known: Collection[str]) -> Iterator[TemplatePart]:
    end, after_field = 0, -1
    for match in FIELD.finditer(text):
        escaped, name = match.groups()
        before = text[end : match.start()]
        prefix = text[max(0, match.start() - 1) : match.start()]
        if escaped:
            yield f"{before}{{{escaped}}}", ""
        elif name not in known and PREFIX_OF_CODE.search(prefix) and match.start() != after_field:
            yield before + match[0], ""
        else:
            yield before, name
            after_field = match.end()
        end = match.end()
    yield text[end:], ""


def fill_template(parts: Collection[TemplatePart], value: Callable[[str], str]) -> str:
    """Return the text of a template with each field replaced by its value."""
    return "".join(text + (value(name) if name else "") for text, name in parts)
