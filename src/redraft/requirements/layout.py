"""Layout of a text: bullets, headings, sections, parts between separators, the beginning of a
paragraph.

Repairs rewrite lists, headings and separators that are there in another form into the form that is
asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Self

from ..errors import ConfigError
from ..protocols import Check, Edit
from . import text_spans as texts
from .spec import (
    NO_OCCURRENCES,
    CountRequirement,
    RangeRequirement,
    TextCountRequirement,
    TextRequirement,
    TextsRequirement,
    format_count,
    parse_range,
    parse_text,
    requirement,
    text_spec,
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


@requirement("bullets", "how many bullet points (- or *)", "bullets:3")
class Bullets(CountRequirement):
    """The number of lines that begin with the Markdown bullets * or -."""

    noun = "bullet point"
    wanted = "bullet points (- or *)"

    def count_in(self, text: str) -> int:
        return len(_BULLET.findall(text))

    def add(self, text: str, missing: int) -> Iterator[Edit]:
        """Write other list markers as bullets; else make the last lines, or sentences, bullets."""
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

    def remove(self, text: str, surplus: int) -> Iterator[Edit]:
        """Remove horizontal rules, or join nested bullets to their parents, or the last ones."""
        if rules := _rules(text):
            yield Edit(
                texts.remove_spans(text, rules), f"removed {format_count(len(rules), 'rule')}"
            )
        free = [m.span() for m in texts.matches_outside(_BULLET, text, texts.fenced_blocks(text))]
        nested = [(a, b) for a, b in free[1:] if text[a].isspace()]
        late = [b for a, b in pairwise(free) if not text[a[1] : b[0]].strip()]
        for chosen, what in (
            (nested, "nested bullet point"),
            (late[-surplus:], "bullet point"),
            (late[:surplus], "bullet point"),
        ):
            if len(chosen) >= surplus:
                yield _join_bullets(text, chosen, what)
        plain = [span for span in free if not text[slice(*span)].strip(" \t*-").startswith("*")]
        if len(plain) >= surplus:
            changes = [(a, a + _mark_length(text[a:b]), "") for a, b in plain[-surplus:]]
            yield Edit(
                texts.apply_changes(text, changes),
                f"removed the bullets from {format_count(surplus, 'line')}",
            )


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
            (texts.whitespace_start(text, a, start), a, (line if a > start else "") + "- ")
            for a, _ in inside[-missing:]
        ]
        yield Edit(
            texts.apply_changes(text, changes),
            f"made {format_count(missing, 'sentence')} bullet points",
        )


def _rules(text: str) -> list[Span]:
    """Return the horizontal rules outside of fenced blocks."""
    return [m.span() for m in texts.matches_outside(_RULE, text, texts.fenced_blocks(text))]


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
        start = texts.whitespace_start(text, a)
        closed = text[start - 1 : start] in set(".:;!?,")
        changes.append((start, a + _mark_length(text[a:b]), " " if closed else "; "))
    return Edit(
        texts.apply_changes(text, changes),
        f"joined {format_count(len(spans), noun)} to the one before",
    )


_ATX = re.compile(r"^[ \t]{0,3}#{1,6}[ \t]+(\S[^\r\n]*)", re.MULTILINE)
_NAME_MARKS = "#*_:. \t"
_LIST_NUMBER = re.compile(r"(?:[0-9]{1,3}|[IVX]{1,4})[.):][ \t]+")


def _headings(text: str) -> list[tuple[Span, str]]:
    matches = texts.matches_outside(_ATX, text, texts.fenced_blocks(text))
    return [(m.span(), _heading_name(m[1])) for m in matches]


def _heading_name(line: str) -> str:
    """Return the name in a heading line, without marks and numbering."""
    bare = line.strip().strip(_NAME_MARKS)
    return _LIST_NUMBER.sub("", bare, count=1).strip(_NAME_MARKS)


@requirement("headings", "how many Markdown headings", "headings:2-")
class Headings(CountRequirement):
    """The number of Markdown headings (# like this)."""

    noun = "heading"
    wanted = "headings (# like this)"

    def count_in(self, text: str) -> int:
        return len(_headings(text))

    def add(self, text: str, missing: int) -> Iterator[Edit]:
        """Make headings of bold lines, and of short lines that end with a colon."""
        lines = _label_lines(text)
        for chosen in (lines, lines[:missing], lines[-missing:]):
            if len(chosen) >= missing:
                yield _as_headings(text, chosen)

    def remove(self, text: str, surplus: int) -> Iterator[Edit]:
        changes = [(*span, f"**{name}**") for span, name in _headings(text)[-surplus:]]
        yield Edit(
            texts.apply_changes(text, changes),
            f"made {format_count(surplus, 'heading')} bold lines",
        )


def _as_headings(text: str, lines: Sequence[Span]) -> Edit:
    changes = [(a, b, f"## {_heading_name(text[a:b])}") for a, b in lines]
    return Edit(
        texts.apply_changes(text, changes), f"made {format_count(len(lines), 'line')} headings"
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


@requirement("sections", "headings with these names", "sections:Introduction,Method,Results")
class Sections(TextsRequirement):
    """A Markdown heading with each of these names, ignoring case, numbering and order."""

    @property
    def demand(self) -> str:
        return f"sections with the headings {', '.join(self.texts)}"

    def measure(self, text: str) -> Check:
        missing = self._missing(text)
        measured = (
            f"no heading {', '.join(map(repr, missing))}" if missing else "every section is there"
        )
        return NO_OCCURRENCES.check(len(missing), measured)

    def _missing(self, text: str) -> list[str]:
        present = {name.casefold() for _, name in _headings(text)}
        return [name for name in self.texts if _heading_name(name).casefold() not in present]

    def edits(self, text: str) -> Iterator[Edit]:
        """Turn lines with the names ("Introduction:", "**Introduction**") into headings."""
        missing = {_heading_name(name).casefold() for name in self._missing(text)}
        named = [
            (a, b)
            for a, b in _unprotected_lines(text)
            if b - a < 200 and _heading_name(text[a:b]).casefold() in missing
        ]
        if named:
            yield _as_headings(text, named)


@requirement(
    "numbered_sections", "how often a label with a number occurs", "numbered_sections:Section>=3"
)
class NumberedSections(TextCountRequirement):
    """The number of occurrences of a label with a number: "Section 1", "Section 2"."""

    noun = "numbered section"

    @property
    def demand(self) -> str:
        return f"{self.count.description} sections marked {self.text + ' 1'!r} and so on"

    def count_in(self, text: str) -> int:
        return len(re.findall(re.escape(self.text) + r"\s?[0-9]+", text))

    def edits(self, text: str) -> Iterator[Edit]:
        """Correct its case or another word for it ("Part 1"), or number the headings."""
        other = re.compile(
            rf"^([#* \t]*)(?:{re.escape(self.text)}|section|part|chapter|day|step)(?=\s?[0-9])",
            re.IGNORECASE | re.MULTILINE,
        )
        changed = texts.change_unprotected(
            text, lambda piece: other.sub(lambda m: m[1] + self.text, piece)
        )
        if changed != text:
            yield Edit(changed, f"marked the sections {self.text!r}")
        named = [span for span, _ in _headings(text)] or _label_lines(text)
        for chosen in (named, named[1:]):
            if len(chosen) in self.count:
                names = [b - len(text[a:b].lstrip("#* \t")) for a, b in chosen]
                changes = [(at, at, f"{self.text} {n}: ") for n, at in enumerate(names, 1)]
                yield Edit(
                    texts.apply_changes(text, changes),
                    f"numbered {format_count(len(chosen), 'section')}",
                )


@requirement("parts", "how many different parts, with a separator between them", "parts:2:******")
@dataclass(frozen=True)
class Parts(RangeRequirement):
    """The number of parts, all different and not empty, with a separator between them."""

    separator: str

    @classmethod
    def parse(cls, argument: str) -> Self:
        count, _, separator = argument.partition(":")
        return cls(parse_range(count), parse_text(separator.strip()).strip())

    @property
    def argument(self) -> str:
        return f"{self.count}:{text_spec(self.separator)}"

    @property
    def demand(self) -> str:
        return f"{self.count.description} different parts with {self.separator} between them"

    def measure(self, text: str) -> Check:
        parts = _parts(text, self.separator)
        if "" in parts:
            return Check(ok=False, measurement=f"an empty part among {len(parts)}")
        if len(set(parts)) < len(parts):
            return Check(ok=False, measurement=f"the same part twice among {len(parts)}")
        return self.count.check(len(parts), format_count(len(parts), "part"))

    def edits(self, text: str) -> Iterator[Edit]:
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


_WORD_END = re.compile(r"[.,?!'\"]")
_EMPHASISED_WORD = re.compile(r"(\*{1,3}|_{1,3})([^\s*_]{1,100})\1")
_EMPTY_LINES = re.compile(r"(\r\n|\n|\r)(?:[^\S\r\n]*\1){2,}")


@requirement(
    "nth_paragraph_starts",
    "the first word of a paragraph, with its marks (as IFEval reads it)",
    "nth_paragraph_starts:2:However",
)
@dataclass(frozen=True)
class NthParagraphStarts(TextRequirement):
    """The nth paragraph begins with a word, ignoring case, as IFEval defines it.

    Two line ends in a row separate paragraphs, counted from 1; more than two in a row enclose an
    empty paragraph, which counts. The first word ends at white space or one of . , ? ! ' " (opening
    quotation marks are skipped).
    """

    nth: int

    @classmethod
    def parse(cls, argument: str) -> Self:
        number, _, word = argument.partition(":")
        nth = parse_range(number)
        if nth.minimum != nth.maximum or not nth.minimum:
            raise ConfigError(f"{number!r} is not a paragraph number; allowed: 1, 2, 3 ...")
        word = parse_text(word.strip())
        if len(word.split()) != 1:
            raise ConfigError(f"it takes one word, got {word!r}")
        return cls(word, nth.minimum)

    @property
    def argument(self) -> str:
        return f"{self.nth}:{text_spec(self.text)}"

    @property
    def demand(self) -> str:
        return f"paragraph {self.nth} begins with the word {self.text!r}"

    def measure(self, text: str) -> Check:
        parts = [part.strip() for part in text.replace("\r\n", "\n").split("\n\n")]
        there = sum(map(bool, parts))
        if there < self.nth:
            return Check(ok=False, measurement=f"there are only {format_count(there, 'paragraph')}")
        word = _first_word(parts[self.nth - 1])
        return Check(
            word.lower() == self.text.lower(),
            f"it begins with {word[:60]!r}" if word else "it is empty",
        )

    def edits(self, text: str) -> Iterator[Edit]:
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
            ).lower() == self.text.lower():
                yield Edit(
                    texts.apply_changes(text, [(*word.span(), word[2])]),
                    f"removed the emphasis from {word[2]!r}",
                )
        gap = texts.line_ending(text) * 2
        starts = {start for start, _ in spans}
        inside = [
            a
            for a, b in texts.pieces(text)
            if a not in starts and _first_word(text[a:b]).lower() == self.text.lower()
        ]
        for at in inside[:20]:
            yield Edit(
                texts.apply_changes(text, [(texts.whitespace_start(text, at), at, gap)]),
                f"began a paragraph with {self.text!r}",
            )


def _first_word(paragraph: str) -> str:
    first = paragraph.split(maxsplit=1)[:1]
    return _WORD_END.split(first[0].lstrip("'").lstrip('"'), maxsplit=1)[0] if first else ""
