"""Reading what judges of other systems wrote, by formats that have a name, or `Unreadable` with the exact complaint.

A format says where a verdict stands and which forms it may have; what is not there is not guessed, what stands there
twice and differs is no verdict, and a number outside its scale is no score. Recorded outputs are hostile input: their
size is bounded, digits are ASCII, and every pattern takes time in proportion to the text (a user's own has a time limit).

Nothing here knows of cases, or in which order a judge was shown anything: "first" is the first that it saw.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, TypeAlias

from .. import checks
from ..errors import ConfigError
from ..graders.judging.json_reader import MOST_CHARS, Unreadable, read_object, without_thinking

__all__ = ["FORMATS", "Format", "Reading", "Unreadable", "find_format", "read"]

Kind: TypeAlias = Literal["pair", "score", "ranking", "label"]
Winner: TypeAlias = Literal["first", "second", "tie"]
Scale: TypeAlias = tuple[float, float]
TIMEOUT = 0.5  # seconds for a user's own pattern on one text
MOST_RANKED = 100


@dataclass(frozen=True, slots=True)
class Reading:
    """What a judge's output says: one of `winner`, `score`, `ranking` and `label`; the others are None.

    `score` is on the judge's own `scale` (low, high). `ranking`: numbers from 1 as the judge was shown them, best
    first. `words` is the piece of the output that says so.
    """

    winner: Winner | None = None
    score: float | None = None
    scale: Scale | None = None
    ranking: tuple[int, ...] | None = None
    label: str | None = None
    words: str = ""

    @property
    def normalised(self) -> float | None:
        """The score's place on its scale, in [0, 1]; None without a score."""
        if self.score is None or self.scale is None:
            return None
        low, high = self.scale
        return (self.score - low) / (high - low)


@dataclass(frozen=True, slots=True)
class Format:
    """A form in which judges answer. `kind` says what a reading of it holds, `scale` (low, high) where its scores lie.

    `find` makes a reading of an output without its thinking, and of the format itself. `argument` is what stood after
    the colon of its name: a key, labels, a pattern; `takes` says which, "" for none.
    """

    name: str
    kind: Kind
    about: str
    example: str
    find: Callable[[str, Format], Reading]
    scale: Scale | None = None
    argument: str = ""
    takes: str = ""


def read(text: str, format: str | Format) -> Reading:
    """What a recorded output says, in a format or by its name, such as "arena_hard", "json:score@1-5" or "label:yes/no".

    Thinking (all up to the last `</think>`, and from a `<think>` that never ends) is put aside first. Raises Unreadable with the
    complaint, and ConfigError for a name that is none.
    """
    form = format if isinstance(format, Format) else find_format(format)
    if not isinstance(text, str):
        raise Unreadable(f"the output is no text: {type(text).__name__}")
    if len(text) > MOST_CHARS:
        raise Unreadable(f"the output is {len(text)} characters long; at most {MOST_CHARS} are read")
    said = without_thinking(text).replace("\r\n", "\n").strip()
    if not said:
        raise Unreadable("the output is empty")
    return form.find(said, form)


@lru_cache(maxsize=256)
def find_format(spec: str) -> Format:
    """The format that "name", "name:argument", "name@low-high" or "name:argument@low-high" means. Raises ConfigError."""
    name = re.split("[:@]", spec, maxsplit=1)[0]
    if name not in FORMATS:
        raise ConfigError(checks.unknown("format", name, FORMATS, given=spec))
    form, rest = FORMATS[name], spec[len(name) :]
    if scaled := _SCALE.search(rest):
        form, rest = _on(form, scaled, spec), rest[: scaled.start()]
    if not rest:
        return form
    if not form.takes or not rest[1:] or rest[0] != ":":
        allowed = f"{name}:{form.takes.upper()}" if form.takes else name
        raise ConfigError(f"format {spec!r} is not understood; it is written {allowed!r}, with a scale as in '@1-10'")
    return _checked(replace(form, argument=rest[1:]))


def _on(form: Format, scaled: re.Match[str], spec: str) -> Format:
    low, high = map(float, scaled.groups())
    if form.kind != "score" and form.name != "regex":
        raise ConfigError(f"format {form.name!r} gives no scores: no scale in {spec!r}")
    if not low < high:
        raise ConfigError(f"a scale goes from low to high, got {spec!r}")
    return replace(form, kind="score", scale=(low, high))


def _checked(form: Format) -> Format:
    if form.name == "regex":
        _compiled(form.argument)
    if form.name == "label" and len(set(_options(form))) < 2:
        raise ConfigError(f"labels are written 'label:yes/no', got {form.argument!r}")
    return form


# --- pieces -------------------------------------------------------------------------------------------------------------

_SCALE = re.compile(r"@([0-9]{1,6}(?:\.[0-9]{1,6})?)-([0-9]{1,6}(?:\.[0-9]{1,6})?)\Z")
_NUMBER = r"[0-9]{1,6}(?:\.[0-9]{1,20})?"
_OUT_OF = r"[ \t]{0,8}(?:/|out[ ]of)[ \t]{0,8}"
_GRADE = rf"(?P<words>(?P<score>{_NUMBER})(?:{_OUT_OF}(?P<most>{_NUMBER}))?)"
_OF = r"[ \t]{0,8}(?:/|(?:out[ ])?of\b)[ \t]{0,8}"
_LABELLED = rf"(?P<words>(?P<score>{_NUMBER})(?:[ \t]{{1,8}}points?\b)?(?:{_OF}(?P<most>{_NUMBER}))?)"
# What may stand after a number: white space, at most closed off before; then no other number, percent sign or range.
_CLOSED = r"""(?=[*_`"')\]}.,;:!]{0,8}(?:\s|\Z))"""
_JOINT = r"[/\u2044\u2215\u00f7\u00d7x^+\-\u2010-\u2015\u2212~]|to\b|or\b"
_END = rf"{_CLOSED}(?![^\S\n]{{0,8}}(?:[%\u2030]|(?:{_JOINT})?[^\S\n]{{0,8}}\d))"
_GIVEN = re.compile(rf"[\s*_`\"'(\[]{{0,8}}{_LABELLED}{_END}", re.IGNORECASE)
# What must not stand after a number that does not say out of how many: what it counts, or another scale.
_COUNTED = re.compile(
    r"""[*_`"')\]}]{0,8}[^\S\n]{0,8}(?:[^\W\d_]|[/\\\u2044\u2215\u2605\u2606\u2b50\U0001f31f]"""
    r"""|[^\w\n]{1,8}(?:(?:out\s{1,4})?of|on\s{1,4}an?|stars?|scale|max(?:imum)?)\b)""",
    re.IGNORECASE,
)
_HEAD = re.compile(
    r"^[ \t>#*_\-]{0,12}(?:(?:my|the|final|overall|total)[ ]){0,3}(?:score|rating|grade)[*_]{0,3}[ \t]{0,8}(?:[:=]|is\b)[*_]{0,3}",
    re.IGNORECASE | re.MULTILINE,
)
_ALONE = re.compile(rf"^[ \t>#*_]{{0,12}}{_GRADE}[ \t*_.!]{{0,8}}$", re.IGNORECASE | re.MULTILINE)
_RATIO = re.compile(rf"{_NUMBER}{_OUT_OF}{_NUMBER}", re.IGNORECASE)
_DOUBLE = re.compile(r"\[\[([^\[\]]{0,100})\]\]")
_RESULT = re.compile(r"\[RESULT\][ \t]*:?", re.IGNORECASE)
_LETTER = re.compile(r"\s{0,4}\(?(?:Response[ ])?(?P<words>[AB])" + _CLOSED)
_VERDICT = re.compile(
    r"[ \t>#*_\-]{0,12}"
    r"(?:(?:(?:my|the|final)[ ]){0,2}(?:answer|verdict|label|judge?ment|decision|result)[*_]{0,3}[ \t]{0,8}[:=][ \t]{0,8})?"
    r"""[*_`"'(\[]{0,6}(?P<words>[^\n]{1,60}?)[*_`"'.)\]!]{0,6}[ \t]{0,8}""",
    re.IGNORECASE,
)
_SENTIMENT = re.compile(
    r"sentiment(?: of the (?:\w{1,20} )?review)? is [\"']?(very positive|positive|neutral|negative|very negative)\b", re.IGNORECASE
)
_RANK = re.compile(r"\[[0-9]{1,3}\](?:[ \t]{0,8}>[ \t]{0,8}\[[0-9]{1,3}\])+")

WINNERS: Mapping[str, Winner] = {
    **dict.fromkeys(("a", "1", "first"), "first"),
    **dict.fromkeys(("b", "2", "second"), "second"),
    **dict.fromkeys(("tie", "c", "0"), "tie"),
}
ARENA: Mapping[str, Winner] = {"A>>B": "first", "A>B": "first", "A=B": "tie", "B>A": "second", "B>>A": "second"}
LABELS = "yes/no/pass/fail/true/false/A/B"


def _agreed(found: Iterable[str], what: str) -> str:
    """The one thing found, however often. Raises Unreadable for nothing, and for several that differ."""
    several = list(dict.fromkeys(found))
    if not several:
        raise Unreadable(f"there is no {what} in the output")
    if len(several) > 1:
        raise Unreadable(f"there are several that differ where one {what} should be: {_short(several)}")
    return several[0]


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."


def _scored(digits: str, scale: Scale, words: str) -> Reading:
    score, (low, high) = float(digits), scale
    if not low <= score <= high:
        raise Unreadable(f"{words!r} is outside the scale {low:g} to {high:g}")
    return Reading(score=score, scale=scale, words=words)


def _graded(words: str, scale: Scale | None) -> Reading:
    """The score in "7", "7/10" or "7 out of 10". What it is out of must be the top of the scale, or is, where there is none."""
    score, most, *_ = [*re.findall(_NUMBER, words), ""]
    if scale is None and not float(most or 0):
        raise Unreadable(f"{words!r} does not say out of how many; give the scale, as in '@1-10'")
    if scale is not None and most and float(most) != scale[1]:
        raise Unreadable(f"{words!r} is not on the scale {scale[0]:g} to {scale[1]:g}")
    return _scored(score, scale or (0.0, float(most)), words)


def _same_grade(found: Iterable[str], scale: Scale | None, what: str) -> Reading:
    """The grade that all of these words give."""
    readings = {(one.score, one.scale): one for one in (_graded(words, scale) for words in dict.fromkeys(found))}
    _agreed((one.words for one in readings.values()), what)
    return next(iter(readings.values()))


def _given(head: re.Match[str]) -> re.Match[str]:
    """The grade right after a head such as "Score:"."""
    match = _GIVEN.match(head.string, head.end())
    if not match:
        raise Unreadable(f"after {head[0].strip()!r} there is no score: {_short(head.string[head.end() : head.end() + 30])}")
    return match


def _labelled(head: re.Match[str]) -> re.Match[str]:
    """The same where the scale is not the format's own: a number of stars, or of five, is no score."""
    match = _given(head)
    if not match["most"] and _COUNTED.match(match.string, match.end()):
        raise Unreadable(f"{_short(match.string[match.start() : match.end() + 30].strip())} is not on a scale that is known")
    return match


# --- finders ------------------------------------------------------------------------------------------------------------


def _first_that_matches(*patterns: str) -> Callable[[str, Format], Reading]:
    """The winner whose pattern is found, in the order given: for the first, the second, the first, ..."""
    tried = [(re.compile(pattern), side) for pattern, side in zip(patterns, _SIDES, strict=False)]

    def find(text: str, form: Format) -> Reading:
        for pattern, side in tried:
            if match := pattern.search(text):
                return Reading(winner=side, words=match[0].strip())
        raise Unreadable("the output says of neither that it is better")

    return find


_SIDES: tuple[Winner, ...] = ("first", "second", "first", "second")
_SENTENCES = (r"Output \(a\) is better.", r"Output \(b\) is better.")
_LINES = (r"(?:^|\n) ?Output \(a\)", r"(?:^|\n) ?Output \(b\)")


def _arena(text: str, form: Format) -> Reading:
    said = _agreed((m for m in re.findall(r"\[\[([AB<>=]+)\]\]", text)), "verdict")
    if said not in ARENA:
        raise Unreadable(f"{_short(said)} is no verdict; they are {', '.join(ARENA)}")
    return Reading(winner=ARENA[said], words=f"[[{said}]]")


def _letters(text: str, form: Format) -> Reading:
    said = _agreed(re.findall(r"\[\[([ABC])\]\]", text), "verdict")
    return Reading(winner=WINNERS[said.lower()], words=f"[[{said}]]")


def _double_brackets(text: str, form: Format) -> Reading:
    inside = [held.strip() for held in _DOUBLE.findall(text) if any(map(str.isnumeric, held))]
    if odd := [held for held in inside if not re.fullmatch(_NUMBER, held)]:
        raise Unreadable(f"[[{odd[0]}]] holds no plain number")
    return _same_grade(inside, form.scale, "rating in double brackets")


def _score_of(text: str, form: Format) -> Reading:
    """The labelled scores; without any, those that have a line of their own."""
    if labelled := [_labelled(head) for head in _HEAD.finditer(text)]:
        return _same_grade((words for given in labelled for words in (given["words"], *_more(given))), form.scale, "score")
    return _same_grade((m["words"] for m in _ALONE.finditer(text) if m["most"]), form.scale, "score")


def _more(given: re.Match[str]) -> list[str]:
    """What else on the line of a grade looks like one."""
    end = given.string.find("\n", given.end())
    return _RATIO.findall(given.string, given.end(), len(given.string) if end < 0 else end)


def _bare_number(text: str, form: Format) -> Reading:
    if not re.fullmatch(_NUMBER, text):
        raise Unreadable(f"the output is not a number alone: {_short(text)}")
    return _scored(text, _scale(form), text)


def _scale(form: Format) -> Scale:
    if form.scale is None:
        raise ConfigError(f"format {form.name!r} needs a scale, as in '{form.name}@1-10'")
    return form.scale


def _prometheus(text: str, form: Format) -> Reading:
    return _same_grade((_given(head)["words"] for head in _RESULT.finditer(text)), form.scale, "[RESULT]")


def _prometheus_pair(text: str, form: Format) -> Reading:
    letters = (_LETTER.match(text, head.end()) for head in _RESULT.finditer(text))
    said = _agreed((match["words"] if match else "?" for match in letters), "[RESULT]")
    if said == "?":
        raise Unreadable("after [RESULT] there is neither A nor B")
    return Reading(winner=WINNERS[said.lower()], words=said)


def _pandalm(text: str, form: Format) -> Reading:
    line = text.split("\n", 1)[0].strip()
    if line.lower() not in {"1", "2", "tie"}:
        raise Unreadable(f"the first line is none of '1', '2' and 'Tie': {_short(line)}")
    return Reading(winner=WINNERS[line.lower()], words=line)


def _label(text: str, form: Format) -> Reading:
    known = {option.lower(): option for option in _options(form)}
    lines = [match["words"] if (match := _VERDICT.fullmatch(line)) else "" for line in text.split("\n")]
    if lines[-1].lower() not in known:
        raise Unreadable(f"the last line is none of {', '.join(known.values())}")
    label = _agreed((line.lower() for line in lines if line.lower() in known), "label")
    return Reading(label=known[label], words=lines[-1])


def _options(form: Format) -> list[str]:
    return [option.strip() for option in (form.argument or LABELS).split("/") if option.strip()]


def _sentiment(text: str, form: Format) -> Reading:
    found = _SENTIMENT.findall(text)
    if not found:
        raise Unreadable("the output does not say what the sentiment is")
    return Reading(label=found[-1].lower(), words=found[-1])


def _chain(text: str, form: Format) -> Reading:
    chain = _agreed(_RANK.findall(text), "ranking such as [2] > [1]")
    return _ranked([int(n) for n in re.findall(r"[0-9]+", chain)], chain)


def _ranked(order: list[int], words: str) -> Reading:
    if len(order) > MOST_RANKED or sorted(order) != list(range(1, len(order) + 1)) or len(order) < 2:
        raise Unreadable(f"a ranking holds each number from 1 on once: {_short(order)}")
    return Reading(ranking=tuple(order), words=words)


def _json(text: str, form: Format) -> Reading:
    value, words = _value(text, form)
    if type(value) not in {int, float}:
        raise Unreadable(f"{form.argument!r} must be a number, got {_short(value)}")
    if not re.fullmatch(_NUMBER, words):
        raise Unreadable(f"{words} is not a plain number")
    key = re.escape(form.argument.rpartition(".")[2])
    if not re.search(rf"""{key}["'”’]\s{{0,20}}:\s{{0,20}}{re.escape(words)}\s{{0,20}}[,}}"'“‘]""", text):
        raise Unreadable(f"{form.argument!r} is not written plainly: {words}")
    return _scored(words, _scale(form), words)


def _json_pair(text: str, form: Format) -> Reading:
    value, words = _value(text, form)
    winner = WINNERS.get(value.strip().lower()) if isinstance(value, str) else None
    if winner is None:
        raise Unreadable(f"{form.argument!r} must be one of {', '.join(WINNERS)}, got {_short(value)}")
    return Reading(winner=winner, words=words)


def _json_label(text: str, form: Format) -> Reading:
    value, words = _value(text, form)
    if not isinstance(value, (str, bool)) or value == "":
        raise Unreadable(f"{form.argument!r} must be a label, got {_short(value)}")
    return Reading(label=value if isinstance(value, str) else words, words=words)


def _json_ranking(text: str, form: Format) -> Reading:
    value, words = _value(text, form)
    if not isinstance(value, list) or any(type(n) is not int for n in value):
        raise Unreadable(f"{form.argument!r} must be a list of whole numbers, got {_short(value)}")
    return _ranked(value, words)


def _value(text: str, form: Format) -> tuple[Any, str]:
    """What stands under the key, and how it is written in the output, as far as it is written that way."""
    value: Any = read_object(text)
    for key in form.argument.split("."):
        if not isinstance(value, dict) or key not in value:
            raise Unreadable(f"{form.argument!r} is missing")
        value = value[key]
    words = value if isinstance(value, str) else json.dumps(value)
    if not isinstance(value, list) and words not in text:
        raise Unreadable(f"{form.argument!r} is not written plainly: {_short(value)}")
    return value, words


def _own(text: str, form: Format) -> Reading:
    """What a user's own pattern holds in its first group (or as a whole): a score with a scale, else a winner."""
    try:
        found = [m[1] if m.re.groups else m[0] for m in _matches(form.argument, text)]
    except TimeoutError:
        raise Unreadable(f"the pattern took more than {TIMEOUT} s") from None
    words = _agreed((each for each in found if each is not None), "match of the pattern")
    if form.scale is None:
        if words.strip().lower() not in WINNERS:
            raise Unreadable(f"{_short(words)} is none of {', '.join(WINNERS)}")
        return Reading(winner=WINNERS[words.strip().lower()], words=words)
    if not re.fullmatch(_NUMBER, words.strip()):
        raise Unreadable(f"{_short(words)} is not a plain number")
    return _scored(words.strip(), form.scale, words.strip())


def _matches(pattern: str, text: str) -> Iterator[Any]:
    yield from _compiled(pattern).finditer(text, timeout=TIMEOUT)


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> Any:
    import regex

    if not pattern or len(pattern) > 1000:
        raise ConfigError(f"a pattern has 1 to 1000 characters, this one has {len(pattern)}")
    try:
        return regex.compile(pattern)
    except (regex.error, OverflowError, RecursionError, ValueError, KeyError, IndexError) as error:
        raise ConfigError(f"{pattern!r} is no pattern of the regex library: {error}") from None


# --- the formats --------------------------------------------------------------------------------------------------------

_ALL = (
    Format(
        "arena_hard", "pair", "[[A>>B]] ... [[B>>A]] somewhere; several that differ are no verdict", "My verdict: [[A>B]]", _arena
    ),
    Format("mt_bench_pair", "pair", "[[A]], [[B]] or [[C]] (a tie) somewhere", "[[B]]", _letters),
    Format("mt_bench_score", "score", "a number in double brackets", "Rating: [[7]]", _double_brackets, (1, 10)),
    Format(
        "llmbar",
        "pair",
        "a sentence, (a) looked for first, else a line that begins with the winner",
        "Output (a) is better.",
        _first_that_matches(*_SENTENCES, *_LINES),
    ),
    Format(
        "llmbar_sentence",
        "pair",
        "the sentence alone, as LLMBar reads CoT",
        "Output (b) is better.",
        _first_that_matches(*_SENTENCES),
    ),
    Format("llmbar_line", "pair", "the line alone, as LLMBar reads plain answers", "Output (b)", _first_that_matches(*_LINES)),
    Format("pandalm", "pair", "'1', '2' or 'Tie' as the first line", "Tie\n\n### Reason: ...", _pandalm),
    Format("prometheus", "score", "a number after [RESULT]", "Feedback: ... [RESULT] 4", _prometheus, (1, 5)),
    Format("prometheus_pair", "pair", "A or B after [RESULT]", "Feedback: ... [RESULT] B", _prometheus_pair),
    Format("score_of", "score", "'Score: 7/10', or '7 out of 10' in a line of its own", "**Score:** 4 / 5", _score_of),
    Format("bare_number", "score", "a number and nothing else", "7", _bare_number, (0, 10)),
    Format("label", "label", "a label as the last line", "Verdict: PASS", _label, takes="labels"),
    Format("self_refine_sentiment", "label", "'the sentiment is Very positive', the last", "The sentiment is Neutral.", _sentiment),
    Format("rank_gpt", "ranking", "numbers in brackets, best first", "[2] > [1] > [3]", _chain),
    Format("json", "score", "the number under a key of a JSON object", '{"score": 0.8}', _json, (0, 1), "score", "key"),
    Format("json_pair", "pair", "the winner under a key: A, B or tie", '{"winner": "A"}', _json_pair, None, "winner", "key"),
    Format("json_label", "label", "the label under a key", '{"label": "pass"}', _json_label, None, "label", "key"),
    Format(
        "json_ranking", "ranking", "a list of numbers, best first", '{"ranking": [2, 1]}', _json_ranking, None, "ranking", "key"
    ),
    Format(
        "regex",
        "pair",
        "the first group of a pattern: a score with a scale, else a winner",
        "winner: A",
        _own,
        None,
        r"(?i)winner: (\w+)",
        "pattern",
    ),
)
FORMATS: Mapping[str, Format] = {form.name: form for form in _ALL}
