"""Content of a text: words and phrases that must or must not occur, begin it, or end it.

No repair writes a missing keyword: only a beginning or an ending that the demand itself spells out
is added.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Self

from ..base.text import compose_nfc
from ..errors import ComputeLimitError, ConfigError
from ..protocols import Check, Edit
from . import text_spans as texts
from .length import drop_sentences
from .spec import (
    NO_OCCURRENCES,
    PATTERN_TIMEOUT,
    OwnRequirement,
    Range,
    TextCountRequirement,
    TextRequirement,
    TextsRequirement,
    format_count,
    requirement,
)
from .text_spans import Span

MAX_PHRASES_AT_ONCE = 64  # that are searched for without a thread
MIN_SIMILARITY = (
    90.0  # of 100: a beginning at least so similar counts as a misspelling of the demanded one
)


@lru_cache(maxsize=256)
def _pattern(text: str, *, whole_word: bool) -> re.Pattern[str]:
    """Return a pattern for the text, ignoring case. `whole_word`: not inside a word, in scripts
    with spaces between words.
    """
    escaped = re.escape(text)
    if whole_word:
        escaped = (
            ("(?<!\\w)" if _uses_spaces(text[0]) else "")
            + escaped
            + ("(?!\\w)" if _uses_spaces(text[-1]) else "")
        )
    return re.compile(escaped, re.IGNORECASE)


def _uses_spaces(char: str) -> bool:
    return (char.isalnum() or char == "_") and not (
        "\u3040" <= char <= "\u9fff" or "\u0e00" <= char <= "\u0eff"
    )


class _Occurrences(TextCountRequirement):
    """How often a text occurs, ignoring case. Sentences with it are dropped if it occurs too often;
    none is added.
    """

    what = ""

    @property
    def demand(self) -> str:
        times = "time" if self.count == Range(1, 1) else "times"
        how_often = "never" if self.count.maximum == 0 else f"{self.count.description} {times}"
        return f"{self.what}{self.text!r} {how_often}"

    def count_in(self, text: str) -> int:
        return len(self.spans(text))

    def measurement(self, count: int) -> str:
        return f"{self.text!r} occurs {format_count(count, 'time')}"

    def edits(self, text: str) -> Iterator[Edit]:
        spans = self.spans(text)
        if self.count.surplus(len(spans)):
            yield from _drop_occurrences(text, spans, self.count)

    def spans(self, text: str) -> list[Span]:
        """Return where it occurs."""
        return [m.span() for m in _pattern(self.text, whole_word=False).finditer(text)]


@requirement(
    "contains", "a text, ignoring case, even inside a word; optionally how often", "contains:war>=8"
)
class Contains(_Occurrences):
    what = "contains "

    @property
    def demand(self) -> str:
        return f"{self.what}{self.text!r}" if self.count == Range(1) else super().demand

    @property
    def editable(self) -> bool:
        """Only too many occurrences can be repaired."""
        return self.count.maximum is not None


@requirement(
    "contains_word",
    "a word or phrase, not inside another word; optionally how often",
    "contains_word:peace=2-4",
)
class ContainsWord(Contains):
    what = "contains the word "

    def spans(self, text: str) -> list[Span]:
        return [m.span() for m in _pattern(self.text, whole_word=True).finditer(text)]


def _drop_occurrences(text: str, spots: Sequence[Span], count: Range) -> Iterator[Edit]:
    """Yield the text without sentences that hold an occurrence, from the end or the beginning,
    until the count fits.
    """
    holders = _sentences_with(text, spots)
    for order in (holders[::-1], holders):
        left, chosen = len(spots), []
        for span, occurrences in order:
            if left in count or left - occurrences < count.minimum:
                continue
            chosen.append(span)
            left -= occurrences
        if left in count:
            yield from drop_sentences(text, chosen)


def _sentences_with(text: str, spots: Sequence[Span]) -> list[tuple[Span, int]]:
    """Return the removable sentences with occurrences, and how many each holds."""
    spans = texts.removable_spans(text)
    among = texts.SpanIndex(spots)
    starts = [start for start, _ in spots]
    holders = [span for span in spans if among.overlaps(span)]
    return [
        (span, bisect_left(starts, span[1]) - bisect_left(starts, span[0]))
        for span in holders[:500]
    ]


@requirement("contains_none", "none of these words or phrases", "contains_none:very,in conclusion")
class ContainsNone(TextsRequirement):
    """None of these words or phrases occurs, ignoring case; inside another word they do not
    count.
    """

    @property
    def demand(self) -> str:
        return f"contains none of {', '.join(map(repr, self.texts))}"

    @property
    def needs_thread(self) -> bool:
        """Whether the list is long: every phrase is searched for by itself."""
        return len(self.texts) > MAX_PHRASES_AT_ONCE

    def measure(self, text: str) -> Check:
        present = [each for each in self.texts if _pattern(each, whole_word=True).search(text)]
        measured = (
            f"contains {', '.join(map(repr, present))}" if present else "contains none of them"
        )
        return NO_OCCURRENCES.check(len(present), measured)

    def edits(self, text: str) -> Iterator[Edit]:
        spots = sorted(
            m.span() for each in self.texts for m in _pattern(each, whole_word=True).finditer(text)
        )
        among = texts.SpanIndex(texts.merge_spans(spots))
        chosen = [span for span in texts.removable_spans(text) if among.overlaps(span)]
        yield from drop_sentences(text, chosen)


@requirement("starts_with", "how it begins, ignoring case", "starts_with:Dear Ms. Lee")
class StartsWith(TextRequirement):
    """The text begins with another, ignoring case and leading white space."""

    @property
    def demand(self) -> str:
        return f"starts with {self.text!r}"

    def measure(self, text: str) -> Check:
        start = text.strip()
        ok = start.lower().startswith(self.text.strip().lower())
        return Check(ok, f"starts with {start[: max(20, min(len(self.text), 80))]!r}")

    def edits(self, text: str) -> Iterator[Edit]:
        """Cut what precedes it, mend a beginning that is similar, or insert it."""
        wanted = self.text.strip()
        match = _pattern(wanted, whole_word=False).search(text)
        if match:
            yield Edit(
                text[match.start() :], f"cut what preceded {_abbreviate(wanted)}", lossy=True
            )
        elif almost := _near_match_end(text, wanted):
            yield Edit(wanted + text[almost:], f"restored the beginning {_abbreviate(wanted)}")
        elif text.strip():
            gap = texts.line_ending(text) * 2 if len(wanted.split()) > 3 else " "
            yield Edit(wanted + gap + text.lstrip(), f"put {_abbreviate(wanted)} in front")


def _abbreviate(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _near_match_end(text: str, beginning: str) -> int:
    """Return the end of a beginning that is similar to the wanted one; 0 if there is none."""
    from rapidfuzz import fuzz

    ends = [end for _, end in texts.lines(text[: 2 * len(beginning) + 200])[:12]]
    scores = [(fuzz.ratio(text[:end].strip().lower(), beginning.lower()), end) for end in ends]
    score, end = max(scores, default=(0.0, 0))
    return end if score >= MIN_SIMILARITY else 0


@requirement("ends_with", "how it ends, ignoring case", "ends_with:Yours, Ann")
class EndsWith(TextRequirement):
    """The text ends with another, ignoring case, trailing white space and double quotes."""

    @property
    def demand(self) -> str:
        return f"ends with {self.text!r}"

    def measure(self, text: str) -> Check:
        end = text.strip().strip('"').strip()
        ok = end.lower().endswith(self.text.strip().lower())
        return Check(ok, f"ends with {end[-max(20, min(len(self.text), 80)) :]!r}")

    def edits(self, text: str) -> Iterator[Edit]:
        """Cut what follows its last occurrence, or add it at the end."""
        wanted = self.text.strip()
        body = text.rstrip()
        quoted = '"' if len(body) > 1 and body.lstrip()[0] == body[-1] == '"' else ""
        ends = [m.end() for m in _pattern(wanted, whole_word=False).finditer(text)]
        if ends:
            yield Edit(
                text[: ends[-1]] + quoted, f"cut what followed {_abbreviate(wanted)}", lossy=True
            )
        elif body:
            body = body.removesuffix('"') if quoted else body
            for gap in (texts.line_ending(text) * 2, " "):
                yield Edit(body + gap + wanted + quoted, f"added {_abbreviate(wanted)} at the end")


@requirement("one_of", "one of these texts, exactly as spelt", "one_of:Yes.|No.|Maybe.")
class OneOf(TextsRequirement):
    """One of these texts occurs, spelt exactly like this."""

    separator = "|"

    @property
    def demand(self) -> str:
        return f"says one of {', '.join(map(repr, self.texts))}"

    def measure(self, text: str) -> Check:
        present = [option for option in self.texts if option in text]
        return Check(
            bool(present),
            f"says {', '.join(map(repr, present))}" if present else "says none of them",
        )

    def edits(self, text: str) -> Iterator[Edit]:
        """Correct the case and closing mark of the only option that occurs otherwise."""
        near = [
            (match, option)
            for option in self.texts
            if (match := _loose_pattern(option).search(text))
        ]
        if len(near) == 1:
            match, option = near[0]
            changed = texts.apply_changes(text, [(*match.span(), option)])
            yield Edit(changed, f"spelt {match[0]!r} as {option!r}")


@lru_cache(maxsize=256)
def _loose_pattern(option: str) -> re.Pattern[str]:
    core = option.strip().rstrip(".!?")
    words = re.escape(core or option).replace("\\ ", r"[ \t]{1,3}")
    return re.compile(rf"(?<!\w){words}(?!\w)[.!?]?", re.IGNORECASE)


@requirement("letters", "how often one letter occurs, ignoring case", "letters:e<10")
class Letters(_Occurrences):
    """The number of occurrences of one letter (or any character), ignoring case."""

    what = "the letter "

    @classmethod
    def parse(cls, argument: str) -> Self:
        made = super().parse(argument)
        if len(compose_nfc(made.text)) != 1:
            raise ConfigError(f"it counts one letter, got {made.text!r}")
        return made

    def count_in(self, text: str) -> int:
        return text.lower().count(self.text.lower())


_SENTENCE_EDGE = re.compile(r"[\W_]+")


@requirement("no_duplicate_sentences", "no sentence occurs twice", "no_duplicate_sentences")
class NoDuplicateSentences(OwnRequirement):
    """No sentence of two or more words occurs twice, ignoring case, spacing and punctuation."""

    wanted = "no sentence twice"

    def measure(self, text: str) -> Check:
        seen = Counter(
            filter(None, (_normalise(text[slice(*span)]) for span in texts.pieces(text)))
        )
        repeats = sum(count - 1 for count in seen.values())
        check = NO_OCCURRENCES.check(repeats, format_count(repeats, "repeated sentence"))
        return check if text.strip() else replace(check, ok=False)

    def edits(self, text: str) -> Iterator[Edit]:
        seen: set[str] = set()
        repeats = []
        free = set(texts.removable_spans(text))
        for span in texts.pieces(text):
            plain = _normalise(text[slice(*span)])
            if plain and plain in seen and span in free:
                repeats.append(span)
            seen.add(plain)
        if repeats:
            note = f"dropped {format_count(len(repeats), 'repeated sentence')}"
            yield Edit(texts.remove_spans(text, repeats), note, lossy=True)


def _normalise(sentence: str) -> str:
    plain = _SENTENCE_EDGE.sub(" ", sentence).strip().casefold()
    return plain if " " in plain or not plain.isascii() else ""


@requirement(
    "regex", "a pattern of the `regex` library matches somewhere", r"regex:\d{4}-\d{2}-\d{2}"
)
@dataclass(frozen=True)
class RegexMatch(TextRequirement):
    """A regular expression (of the `regex` library) matches somewhere. If the search takes too
    long, the result is unknown.

    Text and pattern are in the composed form of Unicode: a letter with an accent is one character,
    if Unicode has it.
    """

    editable = False
    needs_thread = True  # for the pattern of a user

    def __post_init__(self) -> None:
        _compile_pattern(compose_nfc(self.text))

    @property
    def demand(self) -> str:
        return f"matches {self.text!r}"

    def measure(self, text: str) -> Check:
        """Search for the pattern. Raises ComputeLimitError if that takes longer than half a second,
        or too much memory.
        """
        try:
            match = _compile_pattern(self.text).search(text, timeout=PATTERN_TIMEOUT)
        except (TimeoutError, RecursionError, MemoryError) as error:
            limit = (
                f"within {PATTERN_TIMEOUT:g} s"
                if isinstance(error, TimeoutError)
                else "without nesting too deep"
            )
            raise ComputeLimitError(
                f"regex:{self.text} could not be checked {limit} ({len(text):,} characters)"
            ) from None
        return Check(bool(match), "matches" if match else "does not match")


@lru_cache(maxsize=256)
def _compile_pattern(pattern: str) -> Any:
    import regex

    if len(pattern) > 1000:
        raise ConfigError(f"a pattern has at most 1000 characters, this one has {len(pattern)}")
    try:
        return regex.compile(pattern)
    except (regex.error, OverflowError, RecursionError, ValueError, KeyError, IndexError) as error:
        raise ConfigError(f"{pattern!r} is not a pattern of the regex library: {error}") from None
