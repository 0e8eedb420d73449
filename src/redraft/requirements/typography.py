"""Typography: letter case, commas, quotation marks, placeholders, emphasis, a title, a postscript.

Repairs change the case of letters, or move, add or remove marks around existing words; they write
no words. Changing case loses information (which letters were capitals), so these repairs are lossy.
Code and URLs are never changed; a text that would need it cannot be repaired.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import ClassVar

from ..protocols import Check, Edit
from . import text_spans as texts
from .spec import (
    NO_OCCURRENCES,
    CountRequirement,
    OwnRequirement,
    TextRequirement,
    format_count,
    requirement,
)
from .text_spans import Span

# ---- letter case


_TOKEN = re.compile(r"\w+(?:[-./&]\w+)*")


class _LetterCase(OwnRequirement):
    """All letters with a case are in one case. A text without such letters does not meet it."""

    wrong_letter: ClassVar[str]

    def measure(self, text: str) -> Check:
        is_lower = self.kind == "lowercase"
        wrong = sum(map(str.isupper if is_lower else str.islower, text))
        if not wrong and not (text.islower() if is_lower else text.isupper()):
            return Check(ok=False, measurement="no letter with a case")
        return NO_OCCURRENCES.check(wrong, format_count(wrong, self.wrong_letter))

    def edits(self, text: str) -> Iterator[Edit]:
        change = str.lower if self.kind == "lowercase" else str.upper
        changed = texts.change_unprotected(text, change)
        if changed != text:
            yield Edit(changed, f"changed to {self.kind}", lossy=True)


@requirement("lowercase", "no capital letter", "lowercase")
class Lowercase(_LetterCase):
    wanted = "all in lower case"
    wrong_letter = "capital letter"


@requirement("uppercase", "no small letter", "uppercase")
class Uppercase(_LetterCase):
    wanted = "all in capital letters"
    wrong_letter = "small letter"


@requirement("capital_words", "how many words are all in capital letters", "capital_words:<10")
class CapitalWords(CountRequirement):
    """The number of words all in capital letters. "I", "A" and "U.S." are such words; "X-RAY" and
    "AND/OR" are one each.
    """

    wanted = "words in capital letters"

    def count_in(self, text: str) -> int:
        return len(_capitals(text))

    def measurement(self, count: int) -> str:
        return f"{format_count(count, 'word')} in capital letters"

    def add(self, text: str, missing: int) -> Iterator[Edit]:
        """Put the longest words, or the first long ones, in capitals."""
        small = texts.unprotected_spans(
            text, (m.span() for m in _TOKEN.finditer(text) if not m[0].isupper() and m[0].isalpha())
        )
        by_size = sorted(small, key=lambda span: (span[0] - span[1], span[0]))
        long = [span for span in small if span[1] - span[0] > 4]
        for chosen in (by_size[:missing], long[:missing]):
            if len(chosen) == missing:
                yield Edit(
                    texts.apply_changes(text, [(a, b, text[a:b].upper()) for a, b in chosen]),
                    f"put {format_count(missing, 'word')} in capitals",
                    lossy=True,
                )

    def remove(self, text: str, surplus: int) -> Iterator[Edit]:
        """Put the last or first words (never I or A) in small letters; sentences keep a capital."""
        free = texts.unprotected_spans(text, _capitals(text))
        long = [(a, b) for a, b in free if b - a > 1]
        if len(long) < surplus:
            return
        opening = {start for start, _ in texts.pieces(text)}
        for chosen in (long[-surplus:], long[:surplus]):
            changes = [
                (a, b, text[a:b].capitalize() if a in opening else text[a:b].lower())
                for a, b in chosen
            ]
            yield Edit(
                texts.apply_changes(text, changes),
                f"took {format_count(surplus, 'word')} out of capitals",
                lossy=True,
            )


def _capitals(text: str) -> list[Span]:
    return [m.span() for m in _TOKEN.finditer(text) if m[0].isupper()]


# ---- punctuation and markup


_COMMA = re.compile(r"[,\uff0c\u3001\u060c]")
_EAST_ASIAN_COMMAS = "\uff0c\u3001"


@requirement("no_commas", "no comma anywhere", "no_commas")
class NoCommas(OwnRequirement):
    """No comma, of any script."""

    wanted = "no commas"

    def measure(self, text: str) -> Check:
        count = len(_COMMA.findall(text))
        return NO_OCCURRENCES.check(count, format_count(count, "comma"))

    def edits(self, text: str) -> Iterator[Edit]:
        """Remove them: 1,000 becomes 1000; between words a space replaces the comma."""
        changed = texts.change_unprotected(text, partial(_COMMA.sub, _comma_replacement))
        if removed := len(_COMMA.findall(text)) - len(_COMMA.findall(changed)):
            yield Edit(changed, f"removed {format_count(removed, 'comma')}")


def _comma_replacement(match: re.Match[str]) -> str:
    text, (start, end) = match.string, match.span()
    before, after = text[max(0, start - 1) : start], text[end : end + 1]
    joined = before.isalnum() and after.isalnum()
    digits = before.isdigit() and after.isdigit()
    return " " if match[0] in _EAST_ASIAN_COMMAS or (joined and not digits) else ""


_QUOTES = '"\u201c\u201d\u201e\u00ab\u00bb'


@requirement("quoted", 'the whole text in double quotation marks (")', "quoted")
class QuotedText(OwnRequirement):
    """The whole text is in double quotation marks (")."""

    wanted = "the whole text in double quotation marks"

    def measure(self, text: str) -> Check:
        body = text.strip()
        ok = len(body) > 1 and body[0] == body[-1] == '"'
        return Check(
            ok,
            "in quotation marks" if ok else f"starts with {body[:1]!r} and ends with {body[-1:]!r}",
        )

    def edits(self, text: str) -> Iterator[Edit]:
        start, end = texts.trim_span(text, 0, len(text))
        if start < end:
            yield Edit(
                f'{text[:start]}"{text[start:end]}"{text[end:]}', "put it in quotation marks"
            )
            opened, closed = text[start] in _QUOTES, text[end - 1] in _QUOTES and end - start > 1
            inner = text[start + opened : end - closed]
            if (opened or closed) and inner:
                yield Edit(f'{text[:start]}"{inner}"{text[end:]}', "completed its quotation marks")


_PLACEHOLDER = re.compile(r"\[[^\[\]\n]*\]")
_OTHER_PLACEHOLDER = re.compile(
    r"\{\{?[ \t]*(\w[\w '-]{0,40})[ \t]*\}?\}|(?<!<)<([A-Z][\w '-]{0,40})>(?!>)"
)


@requirement("placeholders", "how many placeholders such as [name]", "placeholders:3-")
class Placeholders(CountRequirement):
    """The number of placeholders in square brackets, such as [name]."""

    noun = "placeholder"
    wanted = "placeholders such as [name]"

    def count_in(self, text: str) -> int:
        return len(_PLACEHOLDER.findall(text))

    def add(self, text: str, missing: int) -> Iterator[Edit]:
        """Write {name}, {{name}} and <Name> as [name]."""
        del missing
        changed = texts.change_unprotected(
            text, partial(_OTHER_PLACEHOLDER.sub, lambda m: f"[{m[1] or m[2]}]")
        )
        if changed != text:
            yield Edit(changed, "wrote placeholders in square brackets")


_SINGLE = re.compile(r"\*[^\n*]*\*")
_DOUBLE = re.compile(r"\*\*[^\n*]*\*\*")
_EMPHASIS = re.compile(r"\*\*([^\n*]+)\*\*|\*([^\n*]+)\*")
_OTHER_EMPHASIS = re.compile(
    r"(?<![\w_])(__?)(?=[^\s_])([^_\n]{1,200})(?<=[^\s_])\1(?![\w_])|<(b|i|em|strong|mark)>([^<\n]{1,200})</\3>"
)
_LABEL = re.compile(
    r"^([ \t]*(?:[-*+] |[0-9]{1,3}[.)] )?)([^\s*:#>`\[|][^*:\n`]{0,60})(?=:\s)", re.MULTILINE
)
_HEADING = re.compile(
    r"^([ \t]{0,3}#{1,6}[ \t]+)([^\s*][^*\n`]*[^\s*#`])(?=[ \t#]*\r?$)", re.MULTILINE
)


@requirement(
    "highlights", "how many emphasised passages, *like this* or **like this**", "highlights:2-"
)
class Highlights(CountRequirement):
    """The number of emphasised passages, *like this* or **like this**, each within a line."""

    noun = "highlighted passage"
    wanted = "highlighted passages (*like this* or **like this**)"

    def count_in(self, text: str) -> int:
        passages = [each.strip("*") for each in _SINGLE.findall(text)]
        passages += [each[2:-2] for each in _DOUBLE.findall(text)]
        return sum(bool(passage.strip()) for passage in passages)

    def add(self, text: str, missing: int) -> Iterator[Edit]:
        """Emphasise labels, headings, then sentences."""
        changed = texts.change_unprotected(
            text, partial(_OTHER_EMPHASIS.sub, lambda m: f"**{m[2] or m[4]}**")
        )
        if changed != text:
            yield Edit(changed, "wrote emphasis with asterisks")
        labels = [m.span(2) for pattern in (_HEADING, _LABEL) for m in pattern.finditer(text)]
        by_size = sorted(_plain_sentences(text), key=lambda span: (span[1] - span[0], span[0]))
        yield from _emphasise(text, labels, missing, "labels")
        yield from _emphasise(text, by_size, missing, "sentences")
        yield from _emphasise(text, labels + by_size, missing, "labels and sentences")

    def remove(self, text: str, surplus: int) -> Iterator[Edit]:
        """Remove the emphasis from the last ones."""
        matches = texts.matches_outside(_EMPHASIS, text, texts.protected_spans(text))
        if changes := [(*m.span(), m[1] or m[2]) for m in matches[-surplus:]]:
            yield Edit(
                texts.apply_changes(text, changes),
                f"removed the emphasis from {len(changes)}",
                lossy=True,
            )


def _plain_sentences(text: str) -> list[Span]:
    """Return sentences within one line and without an asterisk, without their list markers."""
    spans = [
        span for span in texts.removable_spans(text) if not set("*\n#|<[") & set(text[slice(*span)])
    ]
    marks = [re.match(r"(?:[-+>]|[0-9]{1,3}[.)])[ \t]+", text[slice(*span)]) for span in spans]
    return [(a + (m.end() if m else 0), b) for (a, b), m in zip(spans, marks, strict=True)]


def _emphasise(text: str, spans: Sequence[Span], missing: int, noun: str) -> Iterator[Edit]:
    free: list[Span] = []
    for span in texts.unprotected_spans(text, spans):
        if len(free) < missing and not any(a < span[1] and span[0] < b for a, b in free):
            free.append(span)
    if len(free) == missing:
        changes = [(a, b, f"**{text[a:b]}**") for a, b in free]
        yield Edit(texts.apply_changes(text, changes), f"highlighted {missing} {noun}")


_TITLE_MARKS = "#*_\"'\u201c\u201d <>"
_MARKED_LINE = re.compile(r"[#<]|\*\*.*\*\*\Z")
_TITLE_LABEL = re.compile(r"(?:title|subject)[ \t]*:[ \t]*", re.IGNORECASE)


@requirement("title", "a title in double angle brackets, <<like this>>", "title")
class Title(OwnRequirement):
    """A title in double angle brackets: <<like this>>."""

    wanted = "a title in double angle brackets, <<like this>>"

    def measure(self, text: str) -> Check:
        title = next(filter(None, map(_title_text, text.split("\n"))), "")
        return Check(bool(title), f"the title {title[:80]!r}" if title else "no <<title>>")

    def edits(self, text: str) -> Iterator[Edit]:
        """Wrap a heading, or a short first line that is not a sentence."""
        for index, span in enumerate(texts.unprotected_spans(text, texts.lines(text[:4000])[:12])):
            start, end = texts.trim_span(text, *span)
            if name := _title_from_line(text[start:end], first=index == 0):
                yield Edit(
                    texts.apply_changes(text, [(start, end, f"<<{name}>>")]),
                    f"wrapped the title {name!r}",
                )


def _title_text(line: str) -> str:
    start, end = line.find("<<"), line.rfind(">>")
    return line[start + 2 : end].strip("<> \t\r") if 0 <= start < end else ""


def _title_from_line(line: str, *, first: bool) -> str:
    """Return the title in a line, without marks; "" if it is not a title."""
    bare = line.strip(_TITLE_MARKS)
    name = _TITLE_LABEL.sub("", bare, count=1).strip(_TITLE_MARKS)
    if not name or len(name) > 100 or name.endswith((".", ",", ":", ";", "!")):
        return ""
    is_plain = len(name.split()) <= 12 and not line.startswith(("-", "*", "|", "["))
    is_marked = _MARKED_LINE.match(line) or _TITLE_LABEL.match(bare)
    return name if is_marked or (first and is_plain) else ""


@requirement("postscript", "a postscript with this marker", "postscript:P.S.")
class Postscript(TextRequirement):
    """A postscript that begins with a marker such as P.S. or P.P.S., ignoring case and spacing."""

    @property
    def demand(self) -> str:
        return f"a postscript that begins with {self.text!r}"

    def measure(self, text: str) -> Check:
        found = self._pattern().search(text)
        return Check(bool(found), f"a postscript {self.text!r}" if found else "no such postscript")

    def _pattern(self) -> re.Pattern[str]:
        letters = self.text.replace(" ", "").rstrip(".").split(".")
        if letters in (["P", "S"], ["P", "P", "S"]):
            return re.compile(
                r"(?<![\w.])" + r"\.\s?".join(letters) + (r"\." if len(letters) == 2 else ""),
                re.IGNORECASE,
            )
        return re.compile(re.escape(self.text.strip()), re.IGNORECASE)

    def edits(self, text: str) -> Iterator[Edit]:
        """Write the last PS, P.S or "Postscript:" at the start of a line as the marker."""
        matches = list(_POSTSCRIPT.finditer(text))
        if matches:
            changed = texts.apply_changes(text, [(*matches[-1].span(1), self.text.strip())])
            yield Edit(changed, f"wrote {matches[-1][1]!r} as {self.text!r}")


_POSTSCRIPT = re.compile(
    r"^[ \t]*[*_]{0,2}((?:(?:p\.?[ \t]?){1,2}s\b\.?|post[ -]?script)(?:[ \t]?:)?)(?=[ \t*_])",
    re.IGNORECASE | re.MULTILINE,
)
