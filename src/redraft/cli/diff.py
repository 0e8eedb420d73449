"""What changed between two texts, word by word, in any script; and how that is shown.

Words are runs of letters with their marks. Where a script sets no spaces (Chinese, Japanese, Thai and their kind) a word
is a character with its marks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache
from typing import Any, Literal

from rich.text import Text

from ..text import strip_control_sequences

Kind = Literal["same", "gone", "new"]
LARGE = 6_000  # tokens on both sides together; beyond, whole lines are compared
AROUND = 48  # characters of what stayed that are shown beside a change
LONG = 600  # characters of a change that are shown


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of text that stayed, went or came."""

    kind: Kind
    text: str


@cache
def _pattern() -> Any:
    import regex

    dense = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
    return regex.compile(rf"(?V1)[^\S\n]+|\n|[{dense}]\p{{M}}*|[\w\p{{M}}--[{dense}]]+|\X")


def tokens(text: str) -> list[str]:
    """The text cut into words, spaces and signs; joined they are the text again."""
    found: list[str] = _pattern().findall(text)
    return found


def pieces(before: str, after: str) -> list[Piece]:
    """How `before` became `after`."""
    old, new = tokens(before), tokens(after)
    if len(old) + len(new) > LARGE:
        old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    found: list[Piece] = []
    for tag, a, b, c, d in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal":
            found.append(Piece("same", "".join(old[a:b])))
            continue
        found += [Piece("gone", "".join(old[a:b]))] if b > a else []
        found += [Piece("new", "".join(new[c:d]))] if d > c else []
    return list(_joined(found))


def _joined(found: list[Piece]) -> Iterator[Piece]:
    """Changes with nothing but space between them as one change: easier to read than alternating words."""
    gone, new, space = "", "", ""
    for i, piece in enumerate(found):
        bridge = piece.kind == "same" and not piece.text.strip(" ") and (gone or new) and i + 1 < len(found)
        if bridge:
            space = piece.text
        elif piece.kind == "same":
            yield from _change(gone, new, space)
            gone, new, space = "", "", ""
            yield piece
        else:
            gone, new, space = gone + space, new + space, ""
            gone, new = (gone + piece.text, new) if piece.kind == "gone" else (gone, new + piece.text)
    yield from _change(gone, new, space)


def _change(gone: str, new: str, space: str) -> Iterator[Piece]:
    if gone:
        yield Piece("gone", gone)
    if new:
        yield Piece("new", new)
    if space:
        yield Piece("same", space)


STYLES = {"same": "dim", "gone": "red strike", "new": "green underline"}
MARKS = {"gone": ("[-", "-]"), "new": ("{+", "+}")}


def drawn(before: str, after: str, *, colour: bool, full: bool = False) -> Text:
    """The changes as people read them: in colour, or between [-signs-]{+like these+}."""
    text = Text()
    found = pieces(before, after)
    for i, piece in enumerate(found):
        shown = strip_control_sequences(piece.text)
        if piece.kind == "same":
            shown = shown if full else _excerpt(shown, first=i == 0, last=i == len(found) - 1)
        else:
            shown = _visible(shown if full else _shortened(shown), ends=piece.kind == "new")
        opening, closing = MARKS.get(piece.kind, ("", "")) if not colour else ("", "")
        text.append(f"{opening}{shown}{closing}", STYLES[piece.kind] if colour else "")
    text.rstrip()
    return text


def _excerpt(text: str, *, first: bool, last: bool) -> str:
    """Of what stayed, only what stands beside a change."""
    head = "" if first else text[:AROUND]
    tail = "" if last else text[-AROUND:]
    if len(text) <= len(head) + len(tail) + 8:
        return text
    return f"{_up_to_a_word(head)}…{_from_a_word(tail)}"


def _up_to_a_word(text: str) -> str:
    """Without a word that the cut went through; where words have no spaces between them, as it is."""
    kept, space, _ = text.rpartition(" ")
    return f"{kept.rstrip()} " if space else text.rstrip("\n")


def _from_a_word(text: str) -> str:
    _, space, kept = text.partition(" ")
    return f" {kept.lstrip()}" if space else text.lstrip("\n")


def _shortened(text: str) -> str:
    return text if len(text) <= LONG else f"{text[: LONG // 2]} […] {text[-LONG // 2 :]}"


def _visible(text: str, *, ends: bool) -> str:
    """Line ends that came or went are shown; one that went breaks no line."""
    return text.replace("\n", "↵\n" if ends else "↵")
