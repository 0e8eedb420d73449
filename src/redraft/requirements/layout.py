"""Layout of a text: bullets, headings, sections, parts between separators, the beginning of a
paragraph.

Repairs rewrite lists, headings and separators that are there in another form into the form that is
asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise

from ..errors import ConfigError
from ..protocols import Check, Edit
from . import text_spans as texts
from .spec import (
    NO_OCCURRENCES,
    Range,
    format_count,
    parse_range,
    parse_text,
    parse_text_count,
    parse_texts,
    register_kind,
    requirement,
    text_count_spec,
    text_spec,
    texts_spec,
)
from .text_spans import Span

_BULLET = re.compile(r"^[^\S\r\n]*(?:\*[^*\r\n]|-)[^\r\n]*", re.MULTILINE)
_OTHER_BULLET = re.compile(
    r"^([^\S\r\n]*)[\u2022\u2023\u25aa\u2013\u2014\u25e6\u25cf\u00b7\u2219+][ \t]+(?=\S)",
    re.MULTILINE,
)
_NUMBERED_ITEM = re.compile(r"^([^\S\r\n]*)[0-9]{1,3}[.)][ \t]+(?=\S)", re.MULTILINE)
_BULLET_MARK = re.compile(r"[^\S\r\n]*[*-][^\S\r\n]*")
_RULE = re.compile(
    r"^[^\S\r\n]*(?:(?:-[ \t]?){3,}|(?:\*[ \t]?){3,}|(?:_[ \t]?){3,}|={3,})[^\S\r\n]*$",
    re.MULTILINE,
)


@requirement
class Bullets:
    """The number of lines that begin with the Markdown bullets * or -."""

    count: Range

    @property
    def spec(self) -> str:
        return f"bullets:{self.count}"

    @property
    def demand(self) -> str:
        return f"{self.count.description} bullet points (- or *)"

    def check(self, text: str) -> Check:
        count = len(_BULLET.findall(text))
        return Check(
            count in self.count, format_count(count, "bullet point"), self.count.nearness(count)
        )

    def repairs(self, text: str) -> Iterator[Edit]:
        spans = [m.span() for m in _BULLET.finditer(text)]
        if missing := self.count.shortfall(len(spans)):
            yield from _add_bullets(text, missing)
        elif surplus := self.count.surplus(len(spans)):
            yield from _remove_bullets(text, spans, surplus)


def _add_bullets(text: str, missing: int) -> Iterator[Edit]:
    """Yield the text with other list markers as bullets; else with the last lines, or sentences, as
    bullets.
    """
    for patterns in ((_OTHER_BULLET,), (_NUMBERED_ITEM,), (_OTHER_BULLET, _NUMBERED_ITEM)):
        changed = text
        for pattern in patterns:
            changed = texts.change_unprotected(
                changed, partial(pattern.sub, r"\1- "), texts.fenced_blocks(changed)
            )
        if changed != text:
            yield Edit(changed, "wrote the list with - bullets")
    plain = [
        span for span in _unprotected_lines(text) if not _BLOCK_START.match(text[slice(*span)])
    ]
    for chosen in (plain[-missing:], plain[-missing - 1 : -1], plain[1 : missing + 1]):
        if len(chosen) == missing:
            yield Edit(
                texts.apply_changes(text, [(a, a, "- ") for a, _ in chosen]),
                f"made {format_count(missing, 'line')} bullet points",
            )
    yield from _sentences_as_bullets(text, missing)


_BLOCK_START = re.compile(r"[^\S\r\n]*(?:#|[-*+|>]|`{3}|~{3})")


def _sentences_as_bullets(text: str, missing: int) -> Iterator[Edit]:
    """Yield the text with the sentences of one paragraph, or its last ones, as bullets."""
    free = texts.removable_spans(text)
    for start, end in reversed(texts.paragraphs(text)[-6:]):
        inside = [span for span in free if start <= span[0] and span[1] <= end]
        if len(inside) < missing or _BLOCK_START.match(text[start:end]):
            continue
        line = texts.line_ending(text)
        changes = [
            (_whitespace_start(text, a, start), a, (line if a > start else "") + "- ")
            for a, _ in inside[-missing:]
        ]
        yield Edit(
            texts.apply_changes(text, changes),
            f"made {format_count(missing, 'sentence')} bullet points",
        )


def _whitespace_start(text: str, at: int, minimum: int) -> int:
    while at > minimum and text[at - 1].isspace():
        at -= 1
    return at


def _remove_bullets(text: str, spans: Sequence[Span], surplus: int) -> Iterator[Edit]:
    """Yield the text without horizontal rules, with nested bullets joined to their parents, or with
    the last ones joined.
    """
    fenced = texts.SpanIndex(texts.fenced_blocks(text))
    if rules := _rules(text):
        yield Edit(texts.remove_spans(text, rules), f"removed {format_count(len(rules), 'rule')}")
    free = [span for span in spans if not fenced.overlaps(span)]
    nested = [(a, b) for a, b in free[1:] if text[a].isspace()]
    late = [span for i, span in enumerate(free) if i and not text[free[i - 1][1] : span[0]].strip()]
    for chosen, what in (
        (nested, "nested bullet point"),
        (late[-surplus:], "bullet point"),
        (late[:surplus], "bullet point"),
    ):
        if len(chosen) >= surplus:
            yield _join_bullets(text, chosen, what)
    plain = [span for span in free if not text[slice(*span)].strip(" \t*-").startswith("*")][
        -surplus:
    ]
    if len(plain) == surplus:
        changes = [(a, a + _mark_length(text[a:b]), "") for a, b in plain]
        yield Edit(
            texts.apply_changes(text, changes),
            f"removed the bullets from {format_count(surplus, 'line')}",
        )


def _rules(text: str) -> list[Span]:
    """Return the horizontal rules outside of fenced blocks."""
    fenced = texts.SpanIndex(texts.fenced_blocks(text))
    return [m.span() for m in _RULE.finditer(text) if not fenced.overlaps(m.span())]


def _unprotected_lines(text: str) -> list[Span]:
    """Return the lines that overlap no protected span, without white space at their ends."""
    return [
        texts.trim_span(text, *span) for span in texts.unprotected_spans(text, texts.lines(text))
    ]


def _mark_length(line: str) -> int:
    mark = _BULLET_MARK.match(line)
    return mark.end() if mark else 0


def _join_bullets(text: str, spans: Sequence[Span], noun: str) -> Edit:
    """Return the text with these bullets joined to the line before them."""
    changes = []
    for a, b in spans:
        start = _whitespace_start(text, a, 0)
        closed = text[start - 1 : start] in set(".:;!?,")
        changes.append((start, a + _mark_length(text[a:b]), " " if closed else "; "))
    return Edit(
        texts.apply_changes(text, changes),
        f"joined {format_count(len(spans), noun)} to the one before",
    )


@register_kind("bullets", "how many bullet points (- or *)", "bullets:3")
def bullets(argument: str) -> Bullets:
    return Bullets(parse_range(argument))


_ATX = re.compile(r"^[ \t]{0,3}#{1,6}[ \t]+(\S[^\r\n]*)", re.MULTILINE)
_NAME_MARKS = "#*_:. \t"
_LIST_NUMBER = re.compile(r"(?:[0-9]{1,3}|[IVX]{1,4})[.):][ \t]+")


def _headings(text: str) -> list[tuple[Span, str]]:
    fenced = texts.SpanIndex(texts.fenced_blocks(text))
    return [
        (m.span(), _heading_name(m[1]))
        for m in _ATX.finditer(text)
        if not fenced.overlaps(m.span())
    ]


def _heading_name(line: str) -> str:
    """Return the name in a heading line, without marks and numbering."""
    bare = line.strip().strip(_NAME_MARKS)
    return _LIST_NUMBER.sub("", bare, count=1).strip(_NAME_MARKS)


@requirement
class Headings:
    """The number of Markdown headings (# like this)."""

    count: Range

    @property
    def spec(self) -> str:
        return f"headings:{self.count}"

    @property
    def demand(self) -> str:
        return f"{self.count.description} headings (# like this)"

    def check(self, text: str) -> Check:
        count = len(_headings(text))
        return Check(
            count in self.count, format_count(count, "heading"), self.count.nearness(count)
        )

    def repairs(self, text: str) -> Iterator[Edit]:
        headings = _headings(text)
        if missing := self.count.shortfall(len(headings)):
            yield from _add_headings(text, missing)
        elif surplus := self.count.surplus(len(headings)):
            changes = [(*span, f"**{name}**") for span, name in headings[-surplus:]]
            yield Edit(
                texts.apply_changes(text, changes),
                f"made {format_count(surplus, 'heading')} bold lines",
            )


def _add_headings(text: str, missing: int) -> Iterator[Edit]:
    """Yield the text with bold lines, and short lines that end with a colon, as headings."""
    lines = _label_lines(text)
    for chosen in (lines, lines[:missing], lines[-missing:]):
        if len(chosen) >= missing:
            changes = [(a, b, f"## {_heading_name(text[a:b])}") for a, b in chosen]
            yield Edit(
                texts.apply_changes(text, changes),
                f"made {format_count(len(chosen), 'line')} headings",
            )


def _label_lines(text: str) -> list[Span]:
    return [
        (a, b)
        for a, b in _unprotected_lines(text)
        if b - a <= 80 and _is_label(text[a:b]) and _heading_name(text[a:b])
    ]


def _is_label(line: str) -> bool:
    bold = (
        len(line) > 4
        and line.startswith("**")
        and line.rstrip(":").endswith("**")
        and line.count("**") == 2
    )
    return bold or (line.endswith(":") and line[0].isalnum() and len(line.split()) <= 8)


@register_kind("headings", "how many Markdown headings", "headings:2-")
def headings(argument: str) -> Headings:
    return Headings(parse_range(argument))


@requirement
class Sections:
    """A Markdown heading with each of these names, ignoring case, numbering and order."""

    names: tuple[str, ...]

    @property
    def spec(self) -> str:
        return f"sections:{texts_spec(self.names, ',')}"

    @property
    def demand(self) -> str:
        return f"sections with the headings {', '.join(self.names)}"

    def check(self, text: str) -> Check:
        missing = self._missing(text)
        measured = (
            f"no heading {', '.join(map(repr, missing))}" if missing else "every section is there"
        )
        return Check(not missing, measured, NO_OCCURRENCES.nearness(len(missing)))

    def _missing(self, text: str) -> list[str]:
        present = {name.casefold() for _, name in _headings(text)}
        return [name for name in self.names if _heading_name(name).casefold() not in present]

    def repairs(self, text: str) -> Iterator[Edit]:
        """Turn lines with the names ("Introduction:", "**Introduction**") into headings."""
        missing = {_heading_name(name).casefold() for name in self._missing(text)}
        named = [
            (a, b)
            for a, b in _unprotected_lines(text)
            if b - a < 200 and _heading_name(text[a:b]).casefold() in missing
        ]
        if named:
            changes = [(a, b, f"## {_heading_name(text[a:b])}") for a, b in named]
            yield Edit(
                texts.apply_changes(text, changes),
                f"made {format_count(len(named), 'line')} headings",
            )


@register_kind("sections", "headings with these names", "sections:Introduction,Method,Results")
def sections(argument: str) -> Sections:
    return Sections(parse_texts(argument, ","))


@requirement
class NumberedSections:
    """The number of occurrences of a label with a number: "Section 1", "Section 2"."""

    label: str
    count: Range

    @property
    def spec(self) -> str:
        return f"numbered_sections:{text_count_spec(self.label, self.count)}"

    @property
    def demand(self) -> str:
        return f"{self.count.description} sections marked {self.label + ' 1'!r} and so on"

    def _pattern(self) -> re.Pattern[str]:
        return re.compile(re.escape(self.label) + r"\s?[0-9]+")

    def check(self, text: str) -> Check:
        count = len(self._pattern().findall(text))
        return Check(
            count in self.count, format_count(count, "numbered section"), self.count.nearness(count)
        )

    def repairs(self, text: str) -> Iterator[Edit]:
        """Correct its case or another word for it ("Part 1"), or number the headings."""
        other = re.compile(
            rf"^([#* \t]*)(?:{re.escape(self.label)}|section|part|chapter|day|step)(?=\s?[0-9])",
            re.IGNORECASE | re.MULTILINE,
        )
        changed = texts.change_unprotected(
            text, lambda piece: other.sub(lambda m: m[1] + self.label, piece)
        )
        if changed != text:
            yield Edit(changed, f"marked the sections {self.label!r}")
        named = [span for span, _ in _headings(text)] or _label_lines(text)
        for chosen in (named, named[1:]):
            if len(chosen) in self.count:
                changes = [
                    (_name_start(text, a), f"{self.label} {n}: ")
                    for n, (a, _) in enumerate(chosen, 1)
                ]
                edited = texts.apply_changes(text, [(at, at, new) for at, new in changes])
                yield Edit(edited, f"numbered {format_count(len(chosen), 'section')}")


def _name_start(text: str, at: int) -> int:
    while text[at] in "#* \t":
        at += 1
    return at


@register_kind(
    "numbered_sections", "how often a label with a number occurs", "numbered_sections:Section>=3"
)
def numbered_sections(argument: str) -> NumberedSections:
    return NumberedSections(*parse_text_count(argument))


@requirement
class Parts:
    """The number of parts, all different and not empty, with a separator between them."""

    count: Range
    separator: str

    @property
    def spec(self) -> str:
        return f"parts:{self.count}:{text_spec(self.separator)}"

    @property
    def demand(self) -> str:
        return f"{self.count.description} different parts with {self.separator} between them"

    def check(self, text: str) -> Check:
        parts = _parts(text, self.separator)
        if "" in parts:
            return Check(ok=False, measurement=f"an empty part among {len(parts)}")
        if len(set(parts)) < len(parts):
            return Check(ok=False, measurement=f"the same part twice among {len(parts)}")
        return Check(
            len(parts) in self.count,
            format_count(len(parts), "part"),
            self.count.nearness(len(parts)),
        )

    def repairs(self, text: str) -> Iterator[Edit]:
        """Drop empty and repeated parts, turn horizontal rules into separators, join surplus parts,
        or separate the paragraphs.
        """
        return (
            edit for edit in self._proposals(text) if texts.preserves_protected(text, edit.text)
        )

    def _proposals(self, text: str) -> Iterator[Edit]:
        gap = texts.line_ending(text) * 2
        glue = gap + self.separator + gap
        parts = list(dict.fromkeys(filter(None, _parts(text, self.separator))))
        if parts != _parts(text, self.separator):
            yield Edit(glue.join(parts), "dropped empty or repeated parts", lossy=True)
        if rules := _rules(text):
            yield Edit(
                texts.apply_changes(text, [(*span, self.separator) for span in rules]),
                "wrote the rules as separators",
            )
        if self.count.surplus(len(parts)) and self.count.maximum:
            yield Edit(
                glue.join(
                    [*parts[: self.count.maximum - 1], gap.join(parts[self.count.maximum - 1 :])]
                ),
                "joined the last parts",
            )
        spans = texts.paragraphs(text)
        if len(parts) == 1 and len(spans) in self.count:
            gaps = [(a[1], b[0], glue) for a, b in pairwise(spans)]
            yield Edit(texts.apply_changes(text, gaps), "put separators between the paragraphs")


def _parts(text: str, separator: str) -> list[str]:
    """Return the texts between the separators; an empty one at either end is not a part."""
    parts = [part.strip() for part in text.split(separator)]
    if not parts[0]:
        parts = parts[1:]
    return parts[:-1] if parts and not parts[-1] else parts


@register_kind("parts", "how many different parts, with a separator between them", "parts:2:******")
def parts(argument: str) -> Parts:
    count, _, separator = argument.partition(":")
    return Parts(parse_range(count), parse_text(separator.strip()).strip())


_WORD_END = re.compile(r"[.,?!'\"]")
_EMPHASISED_WORD = re.compile(r"(\*{1,3}|_{1,3})([^\s*_]{1,100})\1")
_EMPTY_LINES = re.compile(r"(\r\n|\n|\r)(?:[^\S\r\n]*\1){2,}")


@requirement
class NthParagraphStarts:
    """The nth paragraph begins with a word, ignoring case, as IFEval defines it.

    Two line ends in a row separate paragraphs, counted from 1; more than two in a row enclose an
    empty paragraph, which counts. The first word ends at white space or one of . , ? ! ' " (opening
    quotation marks are skipped).
    """

    nth: int
    word: str

    @property
    def spec(self) -> str:
        return f"nth_paragraph_starts:{self.nth}:{text_spec(self.word)}"

    @property
    def demand(self) -> str:
        return f"paragraph {self.nth} begins with the word {self.word!r}"

    def check(self, text: str) -> Check:
        parts = [part.strip() for part in text.replace("\r\n", "\n").split("\n\n")]
        there = sum(map(bool, parts))
        if there < self.nth:
            return Check(ok=False, measurement=f"there are only {format_count(there, 'paragraph')}")
        word = _first_word(parts[self.nth - 1])
        return Check(
            word.lower() == self.word.lower(),
            f"it begins with {word[:60]!r}" if word else "it is empty",
        )

    def repairs(self, text: str) -> Iterator[Edit]:
        """Remove surplus empty lines, or the emphasis from the word; or start a paragraph where a
        sentence begins with it.
        """
        squeezed = texts.change_unprotected(text, lambda piece: _EMPTY_LINES.sub(r"\1\1", piece))
        if squeezed != text:
            yield Edit(squeezed, "removed surplus empty lines")
        spans = texts.paragraphs(text)
        for start, _ in spans[self.nth - 1 : self.nth]:
            if (word := _EMPHASISED_WORD.match(text, start)) and _first_word(
                word[2]
            ).lower() == self.word.lower():
                yield Edit(
                    texts.apply_changes(text, [(*word.span(), word[2])]),
                    f"removed the emphasis from {word[2]!r}",
                )
        gap = texts.line_ending(text) * 2
        starts = {start for start, _ in spans}
        inside = [
            a
            for a, b in texts.pieces(text)
            if a not in starts and _first_word(text[a:b]).lower() == self.word.lower()
        ]
        for at in inside[:20]:
            yield Edit(
                texts.apply_changes(text, [(_whitespace_start(text, at, 0), at, gap)]),
                f"began a paragraph with {self.word!r}",
            )


def _first_word(paragraph: str) -> str:
    first = paragraph.split(maxsplit=1)[:1]
    return _WORD_END.split(first[0].lstrip("'").lstrip('"'), maxsplit=1)[0] if first else ""


@register_kind(
    "nth_paragraph_starts",
    "the first word of a paragraph, with its marks (as IFEval reads it)",
    "nth_paragraph_starts:2:However",
)
def nth_paragraph_starts(argument: str) -> NthParagraphStarts:
    number, _, word = argument.partition(":")
    nth = parse_range(number)
    if nth.minimum != nth.maximum or not nth.minimum:
        raise ConfigError(f"{number!r} is not a paragraph number; allowed: 1, 2, 3 ...")
    word = parse_text(word.strip())
    if len(word.split()) != 1:
        raise ConfigError(f"it takes one word, got {word!r}")
    return NthParagraphStarts(nth.minimum, word)
