"""Computes and shows the difference of two texts, word by word, in any script.

A word is a sequence of letters with their combining marks. In scripts without spaces between words (such as Chinese,
Japanese and Thai) each character with its marks is a word.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache
from typing import Any, Literal

from rich.text import Text

from ..text import strip_control_sequences

Kind = Literal["same", "removed", "added"]
MAX_TOKENS = 6_000  # tokens on both sides together; beyond, whole lines are compared
CONTEXT = 48  # characters of unchanged text shown beside a change
MAX_CHANGE = 600  # characters of a change that are shown


@dataclass(frozen=True, slots=True)
class DiffSpan:
    """A part of a text that is the same, removed or added."""

    kind: Kind
    text: str


@cache
def _pattern() -> Any:
    import regex

    dense = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
    return regex.compile(rf"(?V1)[^\S\n]+|\n|[{dense}]\p{{M}}*|[\w\p{{M}}--[{dense}]]+|\X")


def tokens(text: str) -> list[str]:
    """Split a text into words, spaces and punctuation; joined, they are the text again."""
    found: list[str] = _pattern().findall(text)
    return found


def word_diff(before: str, after: str) -> list[DiffSpan]:
    """Return the spans that turn `before` into `after`."""
    old, new = tokens(before), tokens(after)
    if len(old) + len(new) > MAX_TOKENS:
        old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    found: list[DiffSpan] = []
    for tag, a, b, c, d in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal":
            found.append(DiffSpan("same", "".join(old[a:b])))
            continue
        found += [DiffSpan("removed", "".join(old[a:b]))] if b > a else []
        found += [DiffSpan("added", "".join(new[c:d]))] if d > c else []
    return list(_merge_adjacent(found))


def _merge_adjacent(found: list[DiffSpan]) -> Iterator[DiffSpan]:
    """Merge changes with only spaces between them into one change, which is easier to read than alternating words."""
    removed, added, space = "", "", ""
    for i, piece in enumerate(found):
        bridge = piece.kind == "same" and not piece.text.strip(" ") and (removed or added) and i + 1 < len(found)
        if bridge:
            space = piece.text
        elif piece.kind == "same":
            yield from _change(removed, added, space)
            removed, added, space = "", "", ""
            yield piece
        else:
            removed, added, space = removed + space, added + space, ""
            removed, added = (removed + piece.text, added) if piece.kind == "removed" else (removed, added + piece.text)
    yield from _change(removed, added, space)


def _change(removed: str, added: str, space: str) -> Iterator[DiffSpan]:
    if removed:
        yield DiffSpan("removed", removed)
    if added:
        yield DiffSpan("added", added)
    if space:
        yield DiffSpan("same", space)


STYLES = {"same": "dim", "removed": "red strike", "added": "green underline"}
MARKS = {"removed": ("[-", "-]"), "added": ("{+", "+}")}


def render_diff(before: str, after: str, *, colour: bool, full: bool = False) -> Text:
    """Return the changes, in colour or marked [-like-]{+this+}."""
    text = Text()
    found = word_diff(before, after)
    for i, piece in enumerate(found):
        shown = strip_control_sequences(piece.text)
        if piece.kind == "same":
            shown = shown if full else _excerpt(shown, first=i == 0, last=i == len(found) - 1)
        else:
            shown = _mark_line_ends(shown if full else _shorten_change(shown), ends=piece.kind == "added")
        opening, closing = MARKS.get(piece.kind, ("", "")) if not colour else ("", "")
        text.append(f"{opening}{shown}{closing}", STYLES[piece.kind] if colour else "")
    text.rstrip()
    return text


def _excerpt(text: str, *, first: bool, last: bool) -> str:
    """Return the parts of unchanged text beside a change."""
    head = "" if first else text[:CONTEXT]
    tail = "" if last else text[-CONTEXT:]
    if len(text) <= len(head) + len(tail) + 8:
        return text
    return f"{_cut_at_last_word(head)}…{_cut_at_first_word(tail)}"


def _cut_at_last_word(text: str) -> str:
    """Return the text without its last, incomplete word; unchanged where words have no spaces between them."""
    kept, space, _ = text.rpartition(" ")
    return f"{kept.rstrip()} " if space else text.rstrip("\n")


def _cut_at_first_word(text: str) -> str:
    _, space, kept = text.partition(" ")
    return f" {kept.lstrip()}" if space else text.lstrip("\n")


def _shorten_change(text: str) -> str:
    return text if len(text) <= MAX_CHANGE else f"{text[: MAX_CHANGE // 2]} […] {text[-MAX_CHANGE // 2 :]}"


def _mark_line_ends(text: str, *, ends: bool) -> str:
    """Show line ends that changed; a removed one breaks no line."""
    return text.replace("\n", "↵\n" if ends else "↵")
