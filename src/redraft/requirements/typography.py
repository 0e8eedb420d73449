"""Typography: letter case, commas, quotation marks, placeholders, emphasis, a title, a postscript.

Repairs change the case of letters, or move, add or remove marks around existing words; they write
no words. Changing case loses information (which letters were capitals), so these repairs are lossy.
Code and URLs are never changed; a text that would need it cannot be repaired.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ..protocols import Check, Edit
from . import text_spans as texts
from .spec import (
    NO_OCCURRENCES,
    Range,
    format_count,
    no_argument,
    parse_range,
    parse_text,
    register_kind,
    requirement,
    text_spec,
)
from .text_spans import Span

# ---- letter case


_TOKEN = re.compile(r"\w+(?:[-./&]\w+)*")


@requirement
class LetterCase:
    """All letters with a case are "lowercase" or "uppercase". A text without such letters does not
    meet it.
    """

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


@requirement
class CapitalWords:
    """The number of words all in capital letters. "I", "A" and "U.S." are such words; "X-RAY" and
    "AND/OR" are one each.
    """

    count: Range

    @property
    def spec(self) -> str:
        return f"capital_words:{self.count}"

    @property
    def demand(self) -> str:
        return f"{self.count.description} words in capital letters"

    def check(self, text: str) -> Check:
        count = len(_capitals(text))
        return Check(
            count in self.count,
            format_count(count, "word in capital letters", "words in capital letters"),
            self.count.nearness(count),
        )

    def repairs(self, text: str) -> Iterator[Edit]:
        spans = _capitals(text)
        if surplus := self.count.surplus(len(spans)):
            yield from _lowercase_words(text, spans, surplus)
        elif missing := self.count.shortfall(len(spans)):
            yield from _uppercase_words(text, missing)


def _capitals(text: str) -> list[Span]:
    return [m.span() for m in _TOKEN.finditer(text) if m[0].isupper()]


def _lowercase_words(text: str, spans: list[Span], surplus: int) -> Iterator[Edit]:
    """Yield the text with the last or first surplus words (never I or A) in small letters;
    sentences keep a capital.
    """
    long = [span for span in texts.unprotected_spans(text, spans) if span[1] - span[0] > 1]
    if len(long) < surplus:
        return
    opening = {start for start, _ in texts.pieces(text)}
    for chosen in (long[-surplus:], long[:surplus]):
        changes = [
            (a, b, text[a:b].capitalize() if a in opening else text[a:b].lower()) for a, b in chosen
        ]
        yield Edit(
            texts.apply_changes(text, changes),
            f"took {format_count(surplus, 'word')} out of capitals",
            lossy=True,
        )


def _uppercase_words(text: str, missing: int) -> Iterator[Edit]:
    """Yield the text with the longest words, or the first long ones, in capitals."""
    small = texts.unprotected_spans(
        text, (m.span() for m in _TOKEN.finditer(text) if not m[0].isupper() and m[0].isalpha())
    )
    by_size = sorted(small, key=lambda span: (span[0] - span[1], span[0]))
    long = [span for span in small if span[1] - span[0] > 4]
    for chosen in (by_size[:missing], long[:missing]):
        if len(chosen) == missing:
            changes = [(a, b, text[a:b].upper()) for a, b in chosen]
            yield Edit(
                texts.apply_changes(text, changes),
                f"put {format_count(missing, 'word')} in capitals",
                lossy=True,
            )


@register_kind("capital_words", "how many words are all in capital letters", "capital_words:<10")
def capital_words(argument: str) -> CapitalWords:
    return CapitalWords(parse_range(argument))


# ---- punctuation and markup


_COMMA = re.compile(r"[,\uff0c\u3001\u060c]")
_EAST_ASIAN_COMMAS = "\uff0c\u3001"


@requirement
class NoCommas:
    """No comma, of any script."""

    @property
    def spec(self) -> str:
        return "no_commas"

    @property
    def demand(self) -> str:
        return "no commas"

    def check(self, text: str) -> Check:
        count = len(_COMMA.findall(text))
        return Check(not count, format_count(count, "comma"), NO_OCCURRENCES.nearness(count))

    def repairs(self, text: str) -> Iterator[Edit]:
        """Remove them: 1,000 becomes 1000; between words a space replaces the comma."""
        changed = texts.change_unprotected(text, _remove_commas)
        if removed := len(_COMMA.findall(text)) - len(_COMMA.findall(changed)):
            yield Edit(changed, f"removed {format_count(removed, 'comma')}")


def _remove_commas(piece: str) -> str:
    return _COMMA.sub(_comma_replacement, piece)


def _comma_replacement(match: re.Match[str]) -> str:
    around = (
        match.string[max(0, match.start() - 1) : match.start()],
        match.string[match.end() : match.end() + 1],
    )
    if match[0] in _EAST_ASIAN_COMMAS:
        return " "
    digits = all(map(str.isdigit, around)) and all(around)
    joined = all(map(str.isalnum, around)) and all(around)
    return " " if joined and not digits else ""


@register_kind("no_commas", "no comma anywhere", "no_commas")
def no_commas(argument: str) -> NoCommas:
    no_argument(argument)
    return NoCommas()


_QUOTES = '"\u201c\u201d\u201e\u00ab\u00bb'


@requirement
class QuotedText:
    """The whole text is in double quotation marks (")."""

    @property
    def spec(self) -> str:
        return "quoted"

    @property
    def demand(self) -> str:
        return "the whole text in double quotation marks"

    def check(self, text: str) -> Check:
        body = text.strip()
        ok = len(body) > 1 and body[0] == body[-1] == '"'
        return Check(
            ok,
            "in quotation marks" if ok else f"starts with {body[:1]!r} and ends with {body[-1:]!r}",
        )

    def repairs(self, text: str) -> Iterator[Edit]:
        start, end = texts.trim_span(text, 0, len(text))
        if start < end:
            yield Edit(
                f'{text[:start]}"{text[start:end]}"{text[end:]}', "put it in quotation marks"
            )
            opened, closed = text[start] in _QUOTES, text[end - 1] in _QUOTES and end - start > 1
            inner = text[start + opened : end - closed]
            if (opened or closed) and inner:
                yield Edit(f'{text[:start]}"{inner}"{text[end:]}', "completed its quotation marks")


@register_kind("quoted", 'the whole text in double quotation marks (")', "quoted")
def quoted_text(argument: str) -> QuotedText:
    no_argument(argument)
    return QuotedText()


_PLACEHOLDER = re.compile(r"\[[^\[\]\n]*\]")
_OTHER_PLACEHOLDER = re.compile(
    r"\{\{?[ \t]*(\w[\w '-]{0,40})[ \t]*\}?\}|(?<!<)<([A-Z][\w '-]{0,40})>(?!>)"
)


@requirement
class Placeholders:
    """The number of placeholders in square brackets, such as [name]."""

    count: Range

    @property
    def spec(self) -> str:
        return f"placeholders:{self.count}"

    @property
    def demand(self) -> str:
        return f"{self.count.description} placeholders such as [name]"

    def check(self, text: str) -> Check:
        count = len(_PLACEHOLDER.findall(text))
        return Check(
            count in self.count, format_count(count, "placeholder"), self.count.nearness(count)
        )

    def repairs(self, text: str) -> Iterator[Edit]:
        """Write {name}, {{name}} and <Name> as [name]."""
        changed = texts.change_unprotected(
            text, lambda piece: _OTHER_PLACEHOLDER.sub(lambda m: f"[{m[1] or m[2]}]", piece)
        )
        if changed != text and self.count.shortfall(len(_PLACEHOLDER.findall(text))):
            yield Edit(changed, "wrote placeholders in square brackets")


@register_kind("placeholders", "how many placeholders such as [name]", "placeholders:3-")
def placeholders(argument: str) -> Placeholders:
    return Placeholders(parse_range(argument))


_SINGLE = re.compile(r"\*[^\n*]*\*")
_DOUBLE = re.compile(r"\*\*[^\n*]*\*\*")
_OTHER_EMPHASIS = re.compile(
    r"(?<![\w_])(__?)(?=[^\s_])([^_\n]{1,200})(?<=[^\s_])\1(?![\w_])|<(b|i|em|strong|mark)>([^<\n]{1,200})</\3>"
)
_LABEL = re.compile(
    r"^([ \t]*(?:[-*+] |[0-9]{1,3}[.)] )?)([^\s*:#>`\[|][^*:\n`]{0,60})(?=:\s)", re.MULTILINE
)
_HEADING = re.compile(
    r"^([ \t]{0,3}#{1,6}[ \t]+)([^\s*][^*\n`]*[^\s*#`])(?=[ \t#]*\r?$)", re.MULTILINE
)


@requirement
class Highlights:
    """The number of emphasised passages, *like this* or **like this**, each within a line."""

    count: Range

    @property
    def spec(self) -> str:
        return f"highlights:{self.count}"

    @property
    def demand(self) -> str:
        return f"{self.count.description} highlighted passages (*like this* or **like this**)"

    def check(self, text: str) -> Check:
        count = _highlights(text)
        return Check(
            count in self.count,
            format_count(count, "highlighted passage"),
            self.count.nearness(count),
        )

    def repairs(self, text: str) -> Iterator[Edit]:
        """Emphasise labels, headings, then sentences; or remove the emphasis from the last ones."""
        count = _highlights(text)
        if missing := self.count.shortfall(count):
            yield from _add_highlights(text, missing)
        elif surplus := self.count.surplus(count):
            yield from _remove_highlights(text, surplus)


def _highlights(text: str) -> int:
    single = sum(bool(each.strip("*").strip()) for each in _SINGLE.findall(text))
    return single + sum(bool(each[2:-2].strip()) for each in _DOUBLE.findall(text))


def _add_highlights(text: str, missing: int) -> Iterator[Edit]:
    changed = texts.change_unprotected(
        text, lambda piece: _OTHER_EMPHASIS.sub(lambda m: f"**{m[2] or m[4]}**", piece)
    )
    if changed != text:
        yield Edit(changed, "wrote emphasis with asterisks")
    labels = [m.span(2) for pattern in (_HEADING, _LABEL) for m in pattern.finditer(text)]
    yield from _emphasise(text, labels, missing, "labels")
    by_size = sorted(_plain_sentences(text), key=lambda span: (span[1] - span[0], span[0]))
    yield from _emphasise(text, by_size, missing, "sentences")
    yield from _emphasise(text, labels + by_size, missing, "labels and sentences")


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


def _remove_highlights(text: str, surplus: int) -> Iterator[Edit]:
    protected = texts.SpanIndex(texts.protected_spans(text))
    both = re.compile(r"\*\*([^\n*]+)\*\*|\*([^\n*]+)\*")
    matches = [m for m in both.finditer(text) if not protected.overlaps(m.span())]
    changes = [(*m.span(), m[1] or m[2]) for m in matches[-surplus:]]
    if changes:
        yield Edit(
            texts.apply_changes(text, changes),
            f"removed the emphasis from {len(changes)}",
            lossy=True,
        )


@register_kind(
    "highlights", "how many emphasised passages, *like this* or **like this**", "highlights:2-"
)
def highlights(argument: str) -> Highlights:
    return Highlights(parse_range(argument))


_TITLE_MARKS = "#*_\"'\u201c\u201d <>"
_TITLE_LABEL = re.compile(r"(?:title|subject)[ \t]*:[ \t]*", re.IGNORECASE)


@requirement
class Title:
    """A title in double angle brackets: <<like this>>."""

    @property
    def spec(self) -> str:
        return "title"

    @property
    def demand(self) -> str:
        return "a title in double angle brackets, <<like this>>"

    def check(self, text: str) -> Check:
        title = next(filter(None, map(_title_text, text.split("\n"))), "")
        return Check(bool(title), f"the title {title[:80]!r}" if title else "no <<title>>")

    def repairs(self, text: str) -> Iterator[Edit]:
        """Wrap a heading, or a short first line that is not a sentence."""
        for index, span in enumerate(texts.unprotected_spans(text, texts.lines(text[:4000])[:12])):
            line = text[slice(*texts.trim_span(text, *span))]
            if name := _title_from_line(line, first=index == 0):
                start, end = texts.trim_span(text, *span)
                yield Edit(
                    texts.apply_changes(text, [(start, end, f"<<{name}>>")]),
                    f"wrapped the title {name!r}",
                )


def _title_text(line: str) -> str:
    start, end = line.find("<<"), line.rfind(">>")
    return line[start + 2 : end].strip("<> \t\r") if 0 <= start < end else ""


def _title_from_line(line: str, *, first: bool) -> str:
    """Return the title in a line, without marks; "" if it is not a title."""
    label = _TITLE_LABEL.match(line.strip(_TITLE_MARKS))
    marked = line.startswith(("#", "<")) or (line.startswith("**") and line.endswith("**")) or label
    name = _TITLE_LABEL.sub("", line.strip(_TITLE_MARKS), count=1).strip(_TITLE_MARKS)
    short = len(name) <= 100 and not name.endswith((".", ",", ":", ";", "!"))
    plain_first = (
        first and short and len(name.split()) <= 12 and not line.startswith(("-", "*", "|", "["))
    )
    return name if name and short and (marked or plain_first) else ""


@register_kind("title", "a title in double angle brackets, <<like this>>", "title")
def title(argument: str) -> Title:
    no_argument(argument)
    return Title()


@requirement
class Postscript:
    """A postscript that begins with a marker such as P.S. or P.P.S., ignoring case and spacing."""

    marker: str

    @property
    def spec(self) -> str:
        return f"postscript:{text_spec(self.marker)}"

    @property
    def demand(self) -> str:
        return f"a postscript that begins with {self.marker!r}"

    def check(self, text: str) -> Check:
        match = self._pattern().search(text)
        return Check(
            bool(match), f"a postscript {self.marker!r}" if match else "no such postscript"
        )

    def _pattern(self) -> re.Pattern[str]:
        letters = self.marker.replace(" ", "").rstrip(".").split(".")
        if letters in (["P", "S"], ["P", "P", "S"]):
            return re.compile(
                r"(?<![\w.])" + r"\.\s?".join(letters) + (r"\." if len(letters) == 2 else ""),
                re.IGNORECASE,
            )
        return re.compile(re.escape(self.marker.strip()), re.IGNORECASE)

    def repairs(self, text: str) -> Iterator[Edit]:
        """Write the last PS, P.S or "Postscript:" at the start of a line as the marker."""
        matches = list(_POSTSCRIPT.finditer(text))
        if matches:
            changed = texts.apply_changes(text, [(*matches[-1].span(1), self.marker.strip())])
            yield Edit(changed, f"wrote {matches[-1][1]!r} as {self.marker!r}")


_POSTSCRIPT = re.compile(
    r"^[ \t]*[*_]{0,2}((?:(?:p\.?[ \t]?){1,2}s\b\.?|post[ -]?script)(?:[ \t]?:)?)(?=[ \t*_])",
    re.IGNORECASE | re.MULTILINE,
)


@register_kind("postscript", "a postscript with this marker", "postscript:P.S.")
def postscript(argument: str) -> Postscript:
    return Postscript(parse_text(argument))
