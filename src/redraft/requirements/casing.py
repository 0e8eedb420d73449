"""Letter case: all lower, all upper, and the number of words in capitals.

Changing case loses information (which letters were capitals), so these repairs are lossy. Code and URLs are never changed; a text
that would need it cannot be repaired.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ..protocols import Check, Edit
from . import text_spans as texts
from .ranges import NO_OCCURRENCES, Range, format_count, parse_range
from .spec import no_argument, register_kind
from .text_spans import Span

_TOKEN = re.compile(r"\w+(?:[-./&]\w+)*")


@dataclass(frozen=True, slots=True)
class LetterCase:
    """All letters with a case are "lowercase" or "uppercase". A text without such letters does not meet it."""

    case: str

    @property
    def spec(self) -> str:
        return self.case

    @property
    def demand(self) -> str:
        return "all in lower case" if self.case == "lowercase" else "all in capital letters"

    def check(self, text: str) -> Check:
        wrong = sum(map(str.isupper if self.case == "lowercase" else str.islower, text))
        ok = text.islower() if self.case == "lowercase" else text.isupper()
        if not ok and not wrong:
            return Check(ok=False, measurement="no letter with a case")
        return Check(
            ok,
            format_count(wrong, "capital letter" if self.case == "lowercase" else "small letter"),
            NO_OCCURRENCES.nearness(wrong),
        )

    def repairs(self, text: str) -> Iterator[Edit]:
        change = str.lower if self.case == "lowercase" else str.upper
        changed = texts.change_unprotected(text, change)
        if changed != text:
            yield Edit(changed, f"changed to {self.case}", lossy=True)


@register_kind("lowercase", "no capital letter", "lowercase")
def lowercase(argument: str) -> LetterCase:
    no_argument(argument)
    return LetterCase("lowercase")


@register_kind("uppercase", "no small letter", "uppercase")
def uppercase(argument: str) -> LetterCase:
    no_argument(argument)
    return LetterCase("uppercase")


@dataclass(frozen=True, slots=True)
class CapitalWords:
    """The number of words all in capital letters. "I", "A" and "U.S." are such words; "X-RAY" and "AND/OR" are one each."""

    count: Range

    @property
    def spec(self) -> str:
        return f"capital_words:{self.count}"

    @property
    def demand(self) -> str:
        return f"{self.count.description} words in capital letters"

    def check(self, text: str) -> Check:
        found = len(_capitals(text))
        return Check(
            found in self.count,
            format_count(found, "word in capital letters", "words in capital letters"),
            self.count.nearness(found),
        )

    def repairs(self, text: str) -> Iterator[Edit]:
        found = _capitals(text)
        if surplus := self.count.surplus(len(found)):
            yield from _lowercase_words(text, found, surplus)
        elif missing := self.count.shortfall(len(found)):
            yield from _uppercase_words(text, missing)


def _capitals(text: str) -> list[Span]:
    return [m.span() for m in _TOKEN.finditer(text) if m[0].isupper()]


def _lowercase_words(text: str, spans: list[Span], surplus: int) -> Iterator[Edit]:
    """Yield the text with the last or first surplus words (never I or A) in small letters; sentences keep a capital."""
    kept = texts.SpanIndex(texts.protected_spans(text))
    long = [span for span in spans if not kept.overlaps(span) and span[1] - span[0] > 1]
    if len(long) < surplus:
        return
    opening = {start for start, _ in texts.pieces(text)}
    for chosen in (long[-surplus:], long[:surplus]):
        changes = [(a, b, text[a:b].capitalize() if a in opening else text[a:b].lower()) for a, b in chosen]
        yield Edit(texts.apply_changes(text, changes), f"took {format_count(surplus, 'word')} out of capitals", lossy=True)


def _uppercase_words(text: str, missing: int) -> Iterator[Edit]:
    """Yield the text with the longest words, or the first long ones, in capitals."""
    kept = texts.SpanIndex(texts.protected_spans(text))
    small = [m.span() for m in _TOKEN.finditer(text) if not m[0].isupper() and m[0].isalpha() and not kept.overlaps(m.span())]
    by_size = sorted(small, key=lambda span: (span[0] - span[1], span[0]))
    long = [span for span in small if span[1] - span[0] > 4]
    for chosen in (by_size[:missing], long[:missing]):
        if len(chosen) == missing:
            changes = [(a, b, text[a:b].upper()) for a, b in chosen]
            yield Edit(texts.apply_changes(text, changes), f"put {format_count(missing, 'word')} in capitals", lossy=True)


@register_kind("capital_words", "how many words are all in capital letters", "capital_words:<10")
def capital_words(argument: str) -> CapitalWords:
    return CapitalWords(parse_range(argument))
