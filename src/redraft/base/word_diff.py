"""The difference of two texts, word by word, in any script."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache
from typing import Any, Literal, TypeAlias

MAX_SHORT = (
    1_200  # words on both sides together that are compared in the way that is easiest to read
)
MAX_LONG = 20_000  # words, or lines, that are compared
MAX_CHARACTERS = 200_000  # of both texts together that are split into words


@dataclass(frozen=True, slots=True)
class DiffSpan:
    """A part of a text that is the same, removed or added."""

    kind: Literal["same", "removed", "added"]
    text: str


@cache
def _pattern() -> Any:
    import regex

    dense = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
    return regex.compile(rf"(?V1)[^\S\n]+|\n|[{dense}]\p{{M}}*|[\w\p{{M}}--[{dense}]]+|\X")


def tokens(text: str) -> list[str]:
    """Split a text into words, spaces and punctuation; joined, they are the text again.

    A word is a sequence of letters with their combining marks. In scripts without spaces between
    words (such as Chinese, Japanese and Thai) each character with its marks is a word.
    """
    words: list[str] = _pattern().findall(text)
    return words


Operation: TypeAlias = tuple[str, int, int, int, int]


def _compare(before: str, after: str) -> tuple[list[str], list[str], Iterable[Operation]]:
    """Return the parts of both texts, and the operations that turn the first into the second, as
    difflib writes them.

    difflib's result is easier to read, and its time grows with the cube of the length; the longest
    common subsequence takes a 64th of the square.
    """
    is_long = len(before) + len(after) > MAX_CHARACTERS
    if not is_long:
        old, new = tokens(before), tokens(after)
        if len(old) + len(new) <= MAX_SHORT:
            return old, new, SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    old, new = _split_both(
        before, after, (_split_lines,) if is_long else (_split_words, _split_lines)
    )
    from rapidfuzz import distance

    return (
        old,
        new,
        [
            (o.tag, o.src_start, o.src_end, o.dest_start, o.dest_end)
            for o in distance.Indel.opcodes(old, new)
        ],
    )


def _split_both(
    before: str, after: str, splits: Iterable[Callable[[str], list[str]]]
) -> tuple[list[str], list[str]]:
    """Return the parts of both texts by the first of these ways that gives few enough; else each as
    a whole.
    """
    for split in splits:
        old, new = split(before), split(after)
        if len(old) + len(new) <= MAX_LONG:
            return old, new
    return [text for text in (before,) if text], [text for text in (after,) if text]


def _split_words(text: str) -> list[str]:
    words: list[str] = []
    for token in tokens(text):
        if token == " " and words:
            words[-1] += token
        else:
            words.append(token)
    return words


def _split_lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def word_diff(before: str, after: str) -> list[DiffSpan]:
    """Return the spans that turn `before` into `after`.

    Long texts are compared line by line, and texts of very many lines as a whole: the time is
    bounded.
    """
    spans: list[DiffSpan] = []
    old, new, operations = _compare(before, after)
    for tag, a, b, c, d in operations:
        if tag == "equal":
            spans.append(DiffSpan("same", "".join(old[a:b])))
            continue
        spans += [DiffSpan("removed", "".join(old[a:b]))] if b > a else []
        spans += [DiffSpan("added", "".join(new[c:d]))] if d > c else []
    return list(_merge_adjacent(spans))


def _merge_adjacent(spans: list[DiffSpan]) -> Iterator[DiffSpan]:
    """Merge changes with only spaces between them into one change, which is easier to read than
    alternating words.
    """
    removed, added, space = "", "", ""
    for i, span in enumerate(spans):
        is_gap = (
            span.kind == "same"
            and not span.text.strip(" ")
            and (removed or added)
            and i + 1 < len(spans)
        )
        if is_gap:
            space = span.text
        elif span.kind == "same":
            yield from _change(removed, added, space)
            removed, added, space = "", "", ""
            yield span
        else:
            removed, added, space = removed + space, added + space, ""
            removed, added = (
                (removed + span.text, added)
                if span.kind == "removed"
                else (removed, added + span.text)
            )
    yield from _change(removed, added, space)


def _change(removed: str, added: str, space: str) -> Iterator[DiffSpan]:
    if removed:
        yield DiffSpan("removed", removed)
    if added:
        yield DiffSpan("added", added)
    if space:
        yield DiffSpan("same", space)
