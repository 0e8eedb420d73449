"""Marks in a text: commas, quotation marks, placeholders, emphasis, a title, a postscript.

Repairs move, add or remove marks around words that are there; they write no words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..protocols import Check, Edit
from . import text_spans as texts
from .ranges import NONE, Range, as_range, counted
from .spec import as_text, kind, no_argument, text_spec
from .text_spans import Span

_COMMA = re.compile(r"[,\uff0c\u3001\u060c]")
_EAST = "\uff0c\u3001"


@dataclass(frozen=True, slots=True)
class NoCommas:
    """No comma, of any script."""

    @property
    def spec(self) -> str:
        return "no_commas"

    @property
    def demand(self) -> str:
        return "no commas"

    def check(self, text: str) -> Check:
        found = len(_COMMA.findall(text))
        return Check(not found, counted(found, "comma"), NONE.nearness(found))

    def repairs(self, text: str) -> Iterator[Edit]:
        """Takes them out: 1,000 becomes 1000; where words would run together a space takes the comma's place."""
        changed = texts.outside(text, _uncomma)
        if removed := len(_COMMA.findall(text)) - len(_COMMA.findall(changed)):
            yield Edit(changed, f"removed {counted(removed, 'comma')}")


def _uncomma(piece: str) -> str:
    return _COMMA.sub(_in_its_place, piece)


def _in_its_place(match: re.Match[str]) -> str:
    around = match.string[max(0, match.start() - 1) : match.start()], match.string[match.end() : match.end() + 1]
    if match[0] in _EAST:
        return " "
    digits = all(map(str.isdigit, around)) and all(around)
    joined = all(map(str.isalnum, around)) and all(around)
    return " " if joined and not digits else ""


@kind("no_commas", "no comma anywhere", "no_commas")
def no_commas(argument: str) -> NoCommas:
    no_argument(argument)
    return NoCommas()


_QUOTES = '"\u201c\u201d\u201e\u00ab\u00bb'


@dataclass(frozen=True, slots=True)
class Quoted:
    """The whole text stands in double quotation marks (")."""

    @property
    def spec(self) -> str:
        return "quoted"

    @property
    def demand(self) -> str:
        return "the whole text in double quotation marks"

    def check(self, text: str) -> Check:
        body = text.strip()
        ok = len(body) > 1 and body[0] == body[-1] == '"'
        return Check(ok, "in quotation marks" if ok else f"starts with {body[:1]!r} and ends with {body[-1:]!r}")

    def repairs(self, text: str) -> Iterator[Edit]:
        start, end = texts.trim(text, 0, len(text))
        if start < end:
            yield Edit(f'{text[:start]}"{text[start:end]}"{text[end:]}', "put it in quotation marks")
            opened, closed = text[start] in _QUOTES, text[end - 1] in _QUOTES and end - start > 1
            inner = text[start + opened : end - closed]
            if (opened or closed) and inner:
                yield Edit(f'{text[:start]}"{inner}"{text[end:]}', "made its quotation marks whole")


@kind("quoted", 'the whole text in double quotation marks (")', "quoted")
def quoted(argument: str) -> Quoted:
    no_argument(argument)
    return Quoted()


_PLACEHOLDER = re.compile(r"\[[^\[\]\n]*\]")
_OTHER_PLACEHOLDER = re.compile(r"\{\{?[ \t]*(\w[\w '-]{0,40})[ \t]*\}?\}|(?<!<)<([A-Z][\w '-]{0,40})>(?!>)")


@dataclass(frozen=True, slots=True)
class Placeholders:
    """So many placeholders in square brackets, such as [name]."""

    count: Range

    @property
    def spec(self) -> str:
        return f"placeholders:{self.count}"

    @property
    def demand(self) -> str:
        return f"{self.count.words} placeholders such as [name]"

    def check(self, text: str) -> Check:
        found = len(_PLACEHOLDER.findall(text))
        return Check(found in self.count, counted(found, "placeholder"), self.count.nearness(found))

    def repairs(self, text: str) -> Iterator[Edit]:
        """Writes {name}, {{name}} and <Name> as [name]."""
        changed = texts.outside(text, lambda piece: _OTHER_PLACEHOLDER.sub(lambda m: f"[{m[1] or m[2]}]", piece))
        if changed != text and self.count.missing(len(_PLACEHOLDER.findall(text))):
            yield Edit(changed, "wrote placeholders in square brackets")


@kind("placeholders", "how many placeholders such as [name]", "placeholders:3-")
def placeholders(argument: str) -> Placeholders:
    return Placeholders(as_range(argument))


_SINGLE = re.compile(r"\*[^\n*]*\*")
_DOUBLE = re.compile(r"\*\*[^\n*]*\*\*")
_OTHER_EMPHASIS = re.compile(
    r"(?<![\w_])(__?)(?=[^\s_])([^_\n]{1,200})(?<=[^\s_])\1(?![\w_])|<(b|i|em|strong|mark)>([^<\n]{1,200})</\3>"
)
_LABEL = re.compile(r"^([ \t]*(?:[-*+] |[0-9]{1,3}[.)] )?)([^\s*:#>`\[|][^*:\n`]{0,60})(?=:\s)", re.MULTILINE)
_HEADING = re.compile(r"^([ \t]{0,3}#{1,6}[ \t]+)([^\s*][^*\n`]*[^\s*#`])(?=[ \t#]*\r?$)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Highlights:
    """So many emphasised stretches, *so* or **so**, each within a line."""

    count: Range

    @property
    def spec(self) -> str:
        return f"highlights:{self.count}"

    @property
    def demand(self) -> str:
        return f"{self.count.words} highlighted stretches (*so* or **so**)"

    def check(self, text: str) -> Check:
        found = _highlights(text)
        return Check(
            found in self.count, counted(found, "highlighted stretch", "highlighted stretches"), self.count.nearness(found)
        )

    def repairs(self, text: str) -> Iterator[Edit]:
        """Emphasises labels, headings, then sentences; or takes the emphasis from the last ones."""
        found = _highlights(text)
        if missing := self.count.missing(found):
            yield from _more(text, missing)
        elif surplus := self.count.surplus(found):
            yield from _fewer(text, surplus)


def _highlights(text: str) -> int:
    single = sum(bool(each.strip("*").strip()) for each in _SINGLE.findall(text))
    return single + sum(bool(each[2:-2].strip()) for each in _DOUBLE.findall(text))


def _more(text: str, missing: int) -> Iterator[Edit]:
    changed = texts.outside(text, lambda piece: _OTHER_EMPHASIS.sub(lambda m: f"**{m[2] or m[4]}**", piece))
    if changed != text:
        yield Edit(changed, "wrote emphasis with asterisks")
    labels = [m.span(2) for pattern in (_HEADING, _LABEL) for m in pattern.finditer(text)]
    yield from _emphasised(text, labels, missing, "labels")
    by_size = sorted(_plain_pieces(text), key=lambda span: (span[1] - span[0], span[0]))
    yield from _emphasised(text, by_size, missing, "sentences")
    yield from _emphasised(text, labels + by_size, missing, "labels and sentences")


def _plain_pieces(text: str) -> list[Span]:
    """Sentences within one line and without an asterisk, bare of a list marker."""
    spans = [span for span in texts.droppable(text) if not set("*\n#|<[") & set(text[slice(*span)])]
    marks = [re.match(r"(?:[-+>]|[0-9]{1,3}[.)])[ \t]+", text[slice(*span)]) for span in spans]
    return [(a + (m.end() if m else 0), b) for (a, b), m in zip(spans, marks, strict=True)]


def _emphasised(text: str, spans: Sequence[Span], missing: int, what: str) -> Iterator[Edit]:
    kept = texts.Spans(texts.protected(text))
    free: list[Span] = []
    for span in spans:
        if len(free) < missing and not kept.touch(span) and not any(a < span[1] and span[0] < b for a, b in free):
            free.append(span)
    if len(free) == missing:
        changes = [(a, b, f"**{text[a:b]}**") for a, b in free]
        yield Edit(texts.replaced(text, changes), f"highlighted {missing} {what}")


def _fewer(text: str, surplus: int) -> Iterator[Edit]:
    kept = texts.Spans(texts.protected(text))
    both = re.compile(r"\*\*([^\n*]+)\*\*|\*([^\n*]+)\*")
    found = [m for m in both.finditer(text) if not kept.touch(m.span())]
    changes = [(*m.span(), m[1] or m[2]) for m in found[-surplus:]]
    if changes:
        yield Edit(texts.replaced(text, changes), f"took the emphasis from {len(changes)}", lossy=True)


@kind("highlights", "how many emphasised stretches, *so* or **so**", "highlights:2-")
def highlights(argument: str) -> Highlights:
    return Highlights(as_range(argument))


_TITLE_MARKS = "#*_\"'\u201c\u201d <>"
_TITLE_LABEL = re.compile(r"(?:title|subject)[ \t]*:[ \t]*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Title:
    """A title in double angular brackets: <<so>>."""

    @property
    def spec(self) -> str:
        return "title"

    @property
    def demand(self) -> str:
        return "a title in double angular brackets, <<so>>"

    def check(self, text: str) -> Check:
        found = next(filter(None, map(_title, text.split("\n"))), "")
        return Check(bool(found), f"the title {found[:80]!r}" if found else "no <<title>>")

    def repairs(self, text: str) -> Iterator[Edit]:
        """Wraps a heading, or a short first line that is no sentence."""
        kept = texts.Spans(texts.protected(text))
        spans = [span for span in texts.lines(text[:4000])[:12] if not kept.touch(span)]
        for index, span in enumerate(spans):
            line = text[slice(*texts.trim(text, *span))]
            if name := _title_in(line, first=index == 0):
                start, end = texts.trim(text, *span)
                yield Edit(texts.replaced(text, [(start, end, f"<<{name}>>")]), f"wrapped the title {name!r}")


def _title(line: str) -> str:
    start, end = line.find("<<"), line.rfind(">>")
    return line[start + 2 : end].strip("<> \t\r") if 0 <= start < end else ""


def _title_in(line: str, *, first: bool) -> str:
    """The title that a line is, bare of marks; "" if it is none."""
    label = _TITLE_LABEL.match(line.strip(_TITLE_MARKS))
    marked = line.startswith(("#", "<")) or (line.startswith("**") and line.endswith("**")) or label
    name = _TITLE_LABEL.sub("", line.strip(_TITLE_MARKS), count=1).strip(_TITLE_MARKS)
    short = len(name) <= 100 and not name.endswith((".", ",", ":", ";", "!"))
    plain_first = first and short and len(name.split()) <= 12 and not line.startswith(("-", "*", "|", "["))
    return name if name and short and (marked or plain_first) else ""


@kind("title", "a title in double angular brackets, <<so>>", "title")
def title(argument: str) -> Title:
    no_argument(argument)
    return Title()


@dataclass(frozen=True, slots=True)
class Postscript:
    """A postscript that begins with a marker such as P.S. or P.P.S., whatever its case and spacing."""

    marker: str

    @property
    def spec(self) -> str:
        return f"postscript:{text_spec(self.marker)}"

    @property
    def demand(self) -> str:
        return f"a postscript that begins with {self.marker!r}"

    def check(self, text: str) -> Check:
        found = self._written().search(text)
        return Check(bool(found), f"a postscript {self.marker!r}" if found else "no such postscript")

    def _written(self) -> re.Pattern[str]:
        letters = self.marker.replace(" ", "").rstrip(".").split(".")
        if letters in (["P", "S"], ["P", "P", "S"]):
            return re.compile(r"(?<![\w.])" + r"\.\s?".join(letters) + (r"\." if len(letters) == 2 else ""), re.IGNORECASE)
        return re.compile(re.escape(self.marker.strip()), re.IGNORECASE)

    def repairs(self, text: str) -> Iterator[Edit]:
        """Writes a PS, P.S or "Postscript:" that opens a line as the marker; the last one."""
        found = list(_POSTSCRIPT.finditer(text))
        if found:
            changed = texts.replaced(text, [(*found[-1].span(1), self.marker.strip())])
            yield Edit(changed, f"wrote {found[-1][1]!r} as {self.marker!r}")


_POSTSCRIPT = re.compile(
    r"^[ \t]*[*_]{0,2}((?:(?:p\.?[ \t]?){1,2}s\b\.?|post[ -]?script)(?:[ \t]?:)?)(?=[ \t*_])", re.IGNORECASE | re.MULTILINE
)


@kind("postscript", "a postscript with this marker", "postscript:P.S.")
def postscript(argument: str) -> Postscript:
    return Postscript(as_text(argument))
