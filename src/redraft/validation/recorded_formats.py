"""Parsing outputs of other systems' judges by named formats, or `UnreadableOutput` with the exact
complaint.

A format says where a verdict is and which forms it may have. A missing verdict is not guessed,
contradicting verdicts count as none, and a number outside its scale is not a score. Recorded
outputs are hostile input: their size is limited, digits are ASCII, and every pattern takes time
linear in the text (the pattern of a user has a time limit).

This module does not know cases or presentation orders: "first" is the response that the judge was
shown first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, TypeAlias

from ..base import checks
from ..errors import ConfigError
from ..graders.judging.structured import MAX_CHARS, UnreadableOutput, find_object, without_thinking

__all__ = [
    "OUTPUT_FORMATS",
    "OutputFormat",
    "ParsedOutput",
    "UnreadableOutput",
    "find_format",
    "parse_output",
]

OutputKind: TypeAlias = Literal["pair", "score", "ranking", "label"]
Winner: TypeAlias = Literal["first", "second", "tie"]
Scale: TypeAlias = tuple[float, float]
PATTERN_TIMEOUT = 0.5  # seconds for a user's pattern on one text
MAX_RANKED = 100


@dataclass(frozen=True, slots=True)
class ParsedOutput:
    """The verdict in a judge's output: one of `winner`, `score`, `ranking` and `label`; the others
    are None.

    `score` is on the judge's own `scale` (low, high). `ranking` holds numbers from 1 in the order
    shown, best first. `excerpt` is the part of the output with the verdict.
    """

    winner: Winner | None = None
    score: float | None = None
    scale: Scale | None = None
    ranking: tuple[int, ...] | None = None
    label: str | None = None
    excerpt: str = ""

    @property
    def normalised_score(self) -> float | None:
        """The score on its scale, in [0, 1]; None without a score."""
        if self.score is None or self.scale is None:
            return None
        low, high = self.scale
        return (self.score - low) / (high - low)


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """A format of judges' outputs. `kind` says what its outputs hold, `scale` (low, high) is that
    of its scores.

    `parse` receives an output without its thinking, and the format itself. `argument` is the text
    after the colon of its name: a key, labels or a pattern; `argument_name` says which, "" for
    none.
    """

    name: str
    kind: OutputKind
    about: str
    example: str
    parse: Callable[[str, OutputFormat], ParsedOutput]
    scale: Scale | None = None
    argument: str = ""
    argument_name: str = ""


def parse_output(text: str, output_format: str | OutputFormat) -> ParsedOutput:
    """Parse a recorded output. A format is an `OutputFormat` or a name such as "arena_hard",
    "json:score@1-5" or "label:yes/no".

    The judge's reasoning is removed first, in the form of any model family. Raises UnreadableOutput
    with the complaint, and ConfigError for an unknown name.
    """
    known_format = (
        output_format if isinstance(output_format, OutputFormat) else find_format(output_format)
    )
    if not isinstance(text, str):
        raise UnreadableOutput(f"the output is not text: {type(text).__name__}")
    if len(text) > MAX_CHARS:
        raise UnreadableOutput(
            f"the output is {len(text)} characters long; at most {MAX_CHARS} are read"
        )
    answer = without_thinking(text).replace("\r\n", "\n").strip()
    if not answer:
        raise UnreadableOutput("the output is empty")
    return known_format.parse(answer, known_format)


@lru_cache(maxsize=256)
def find_format(spec: str) -> OutputFormat:
    """Return the format for "name", "name:argument", "name@low-high" or "name:argument@low-high".
    Raises ConfigError.
    """
    name = re.split("[:@]", spec, maxsplit=1)[0]
    if name not in OUTPUT_FORMATS:
        raise ConfigError(
            checks.unknown_name_message("format", name, OUTPUT_FORMATS, full_value=spec)
        )
    output_format, rest = OUTPUT_FORMATS[name], spec[len(name) :]
    if scaled := _SCALE.search(rest):
        output_format, rest = _with_scale(output_format, scaled, spec), rest[: scaled.start()]
    if not rest:
        return output_format
    if not output_format.argument_name or not rest[1:] or rest[0] != ":":
        allowed = (
            f"{name}:{output_format.argument_name.upper()}" if output_format.argument_name else name
        )
        raise ConfigError(
            f"format {spec!r} is not understood; it is written {allowed!r}, with a scale as in "
            "'@1-10'"
        )
    return _check_format(replace(output_format, argument=rest[1:]))


def _with_scale(output_format: OutputFormat, match: re.Match[str], spec: str) -> OutputFormat:
    low, high = map(float, match.groups())
    if output_format.kind != "score" and output_format.name != "regex":
        raise ConfigError(f"format {output_format.name!r} gives no scores: no scale in {spec!r}")
    if not low < high:
        raise ConfigError(f"a scale goes from low to high, got {spec!r}")
    return replace(output_format, kind="score", scale=(low, high))


def _check_format(output_format: OutputFormat) -> OutputFormat:
    if output_format.name == "regex":
        _compile_pattern(output_format.argument)
    if output_format.name == "label" and len(set(_label_options(output_format))) < 2:
        raise ConfigError(f"labels are written 'label:yes/no', got {output_format.argument!r}")
    return output_format


# ---- patterns

_SCALE = re.compile(r"@([0-9]{1,6}(?:\.[0-9]{1,6})?)-([0-9]{1,6}(?:\.[0-9]{1,6})?)\Z")
_NUMBER = r"[0-9]{1,6}(?:\.[0-9]{1,20})?"
_OUT_OF = r"[ \t]{0,8}(?:/|out[ ]of)[ \t]{0,8}"
_SCORE = rf"(?P<words>(?P<score>{_NUMBER})(?:{_OUT_OF}(?P<most>{_NUMBER}))?)"
_OUT_OF_OR_OF = r"[ \t]{0,8}(?:/|(?:out[ ])?of\b)[ \t]{0,8}"
_LABELLED_SCORE = rf"(?P<words>(?P<score>{_NUMBER})(?:[ \t]{{1,8}}points?\b)?(?:{_OUT_OF_OR_OF}(?P<most>{_NUMBER}))?)"  # noqa: E501
# What may follow a number: closing marks and white space, but not another number, a percent sign or
# a range.
_TOKEN_END = r"""(?=[*_`"')\]}.,;:!]{0,8}(?:\s|\Z))"""
_RANGE_JOINT = r"[/\u2044\u2215\u00f7\u00d7x^+\-\u2010-\u2015\u2212~]|to\b|or\b"
_SCORE_END = rf"{_TOKEN_END}(?![^\S\n]{{0,8}}(?:[%\u2030]|(?:{_RANGE_JOINT})?[^\S\n]{{0,8}}\d))"
_SCORE_VALUE = re.compile(rf"[\s*_`\"'(\[]{{0,8}}{_LABELLED_SCORE}{_SCORE_END}", re.IGNORECASE)
# What must not follow a number without "out of": a unit or another scale.
_OTHER_UNIT = re.compile(
    r"""[*_`"')\]}]{0,8}[^\S\n]{0,8}(?:[^\W\d_]|[/\\\u2044\u2215\u2605\u2606\u2b50\U0001f31f]"""
    r"""|[^\w\n]{1,8}(?:(?:out\s{1,4})?of|on\s{1,4}an?|stars?|scale|max(?:imum)?)\b)""",
    re.IGNORECASE,
)
_SCORE_LABEL = re.compile(
    r"^[ \t>#*_\-]{0,12}(?:(?:my|the|final|overall|total)[ ]){0,3}(?:score|rating|grade)[*_]{0,3}[ \t]{0,8}(?:[:=]|is\b)[*_]{0,3}",  # noqa: E501
    re.IGNORECASE | re.MULTILINE,
)
_SCORE_LINE = re.compile(
    rf"^[ \t>#*_]{{0,12}}{_SCORE}[ \t*_.!]{{0,8}}$", re.IGNORECASE | re.MULTILINE
)
_RATIO = re.compile(rf"{_NUMBER}{_OUT_OF}{_NUMBER}", re.IGNORECASE)
_DOUBLE_BRACKETS = re.compile(r"\[\[([^\[\]]{0,100})\]\]")
_RESULT = re.compile(r"\[RESULT\][ \t]*:?", re.IGNORECASE)
_LETTER = re.compile(r"\s{0,4}\(?(?:Response[ ])?(?P<words>[AB])" + _TOKEN_END)
_VERDICT = re.compile(
    r"[ \t>#*_\-]{0,12}"
    r"(?:(?:(?:my|the|final)[ ]){0,2}(?:answer|verdict|label|judge?ment|decision|result)[*_]{0,3}[ \t]{0,8}[:=][ \t]{0,8})?"  # noqa: E501
    r"""[*_`"'(\[]{0,6}(?P<words>[^\n]{1,60}?)[*_`"'.)\]!]{0,6}[ \t]{0,8}""",
    re.IGNORECASE,
)
_SENTIMENT = re.compile(
    r"sentiment(?: of the (?:\w{1,20} )?review)? is [\"']?(very positive|positive|neutral|negative|very negative)\b",  # noqa: E501
    re.IGNORECASE,
)
_RANKING_CHAIN = re.compile(r"\[[0-9]{1,3}\](?:[ \t]{0,8}>[ \t]{0,8}\[[0-9]{1,3}\])+")

WINNERS: Mapping[str, Winner] = {
    **dict.fromkeys(("a", "1", "first"), "first"),
    **dict.fromkeys(("b", "2", "second"), "second"),
    **dict.fromkeys(("tie", "c", "0"), "tie"),
}
ARENA: Mapping[str, Winner] = {
    "A>>B": "first",
    "A>B": "first",
    "A=B": "tie",
    "B>A": "second",
    "B>>A": "second",
}
DEFAULT_LABELS = "yes/no/pass/fail/true/false/A/B"


def _single_value(values: Iterable[str], subject: str) -> str:
    """Return the only distinct value. Raises UnreadableOutput for none, and for several distinct
    values.
    """
    distinct = list(dict.fromkeys(values))
    if not distinct:
        raise UnreadableOutput(f"there is no {subject} in the output")
    if len(distinct) > 1:
        raise UnreadableOutput(
            f"there are several different values where one {subject} is expected: "
            f"{_abbreviate(distinct)}"
        )
    return distinct[0]


def _abbreviate(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _score_from_digits(digits: str, scale: Scale, excerpt: str) -> ParsedOutput:
    score, (low, high) = float(digits), scale
    if not low <= score <= high:
        raise UnreadableOutput(f"{excerpt!r} is outside the scale {low:g} to {high:g}")
    return ParsedOutput(score=score, scale=scale, excerpt=excerpt)


def _parse_score(excerpt: str, scale: Scale | None) -> ParsedOutput:
    """Return the score in "7", "7/10" or "7 out of 10", where the second number must be the maximum
    of `scale` if given.
    """
    score, maximum, *_ = [*re.findall(_NUMBER, excerpt), ""]
    if scale is None and not float(maximum or 0):
        raise UnreadableOutput(
            f"{excerpt!r} does not say out of how many; give the scale, as in '@1-10'"
        )
    if scale is not None and maximum and float(maximum) != scale[1]:
        raise UnreadableOutput(f"{excerpt!r} is not on the scale {scale[0]:g} to {scale[1]:g}")
    return _score_from_digits(score, scale or (0.0, float(maximum)), excerpt)


def _consistent_score(scores: Iterable[str], scale: Scale | None, subject: str) -> ParsedOutput:
    """Return the score that all texts give. Raises UnreadableOutput if they differ."""
    parsed = [_parse_score(words, scale) for words in dict.fromkeys(scores)]
    readings = {(output.score, output.scale): output for output in parsed}
    _single_value((output.excerpt for output in readings.values()), subject)
    return next(iter(readings.values()))


def _score_after(label: re.Match[str]) -> re.Match[str]:
    """Return the score directly after a label such as "Score:"."""
    match = _SCORE_VALUE.match(label.string, label.end())
    if not match:
        raise UnreadableOutput(
            f"after {label[0].strip()!r} there is no score: "
            f"{_abbreviate(label.string[label.end() : label.end() + 30])}"
        )
    return match


def _labelled_score(label: re.Match[str]) -> re.Match[str]:
    """Return the score after a label, which must not be followed by another unit, as in "4 stars"
    or "4 of 5".
    """
    match = _score_after(label)
    if not match["most"] and _OTHER_UNIT.match(match.string, match.end()):
        excerpt = match.string[match.start() : match.end() + 30].strip()
        raise UnreadableOutput(f"{_abbreviate(excerpt)} is not on a scale that is known")
    return match


# ---- parsers


def _first_matching_pattern(*patterns: str) -> Callable[[str, OutputFormat], ParsedOutput]:
    """Return a parser that tries patterns in order: for the first response, the second, the first
    again, ...
    """
    tried: list[tuple[re.Pattern[str], Winner]] = [
        (re.compile(pattern), side) for pattern, side in zip(patterns, _SIDES, strict=False)
    ]

    def find(text: str, output_format: OutputFormat) -> ParsedOutput:
        for pattern, side in tried:
            if match := pattern.search(text):
                return ParsedOutput(winner=side, excerpt=match[0].strip())
        raise UnreadableOutput("the output does not say which one is better")

    return find


_SIDES: tuple[Winner, ...] = ("first", "second", "first", "second")
_SENTENCES = (r"Output \(a\) is better.", r"Output \(b\) is better.")
_LINES = (r"(?:^|\n) ?Output \(a\)", r"(?:^|\n) ?Output \(b\)")


def _parse_arena(text: str, output_format: OutputFormat) -> ParsedOutput:
    verdict = _single_value((m for m in re.findall(r"\[\[([AB<>=]+)\]\]", text)), "verdict")
    if verdict not in ARENA:
        raise UnreadableOutput(
            f"{_abbreviate(verdict)} is not a verdict; these are {', '.join(ARENA)}"
        )
    return ParsedOutput(winner=ARENA[verdict], excerpt=f"[[{verdict}]]")


def _parse_letters(text: str, output_format: OutputFormat) -> ParsedOutput:
    letter = _single_value(re.findall(r"\[\[([ABC])\]\]", text), "verdict")
    return ParsedOutput(winner=WINNERS[letter.lower()], excerpt=f"[[{letter}]]")


def _parse_double_brackets(text: str, output_format: OutputFormat) -> ParsedOutput:
    ratings = [
        inner.strip() for inner in _DOUBLE_BRACKETS.findall(text) if any(map(str.isnumeric, inner))
    ]
    if invalid := [rating for rating in ratings if not re.fullmatch(_NUMBER, rating)]:
        raise UnreadableOutput(f"[[{invalid[0]}]] does not hold a plain number")
    return _consistent_score(ratings, output_format.scale, "rating in double brackets")


def _parse_score_line(text: str, output_format: OutputFormat) -> ParsedOutput:
    """Return the labelled scores or, if there are none, those on lines of their own."""
    if labelled := [_labelled_score(head) for head in _SCORE_LABEL.finditer(text)]:
        return _consistent_score(
            (words for given in labelled for words in (given["words"], *_other_scores(given))),
            output_format.scale,
            "score",
        )
    return _consistent_score(
        (m["words"] for m in _SCORE_LINE.finditer(text) if m["most"]), output_format.scale, "score"
    )


def _other_scores(score: re.Match[str]) -> list[str]:
    """Return other ratios on the line of a score."""
    end = score.string.find("\n", score.end())
    return _RATIO.findall(score.string, score.end(), len(score.string) if end < 0 else end)


def _parse_bare_number(text: str, output_format: OutputFormat) -> ParsedOutput:
    if not re.fullmatch(_NUMBER, text):
        raise UnreadableOutput(f"the output is not a number alone: {_abbreviate(text)}")
    return _score_from_digits(text, _required_scale(output_format), text)


def _required_scale(output_format: OutputFormat) -> Scale:
    if output_format.scale is None:
        raise ConfigError(
            f"format {output_format.name!r} needs a scale, as in '{output_format.name}@1-10'"
        )
    return output_format.scale


def _parse_prometheus(text: str, output_format: OutputFormat) -> ParsedOutput:
    return _consistent_score(
        (_score_after(head)["words"] for head in _RESULT.finditer(text)),
        output_format.scale,
        "[RESULT]",
    )


def _parse_prometheus_pair(text: str, output_format: OutputFormat) -> ParsedOutput:
    letters = (_LETTER.match(text, head.end()) for head in _RESULT.finditer(text))
    letter = _single_value((match["words"] if match else "?" for match in letters), "[RESULT]")
    if letter == "?":
        raise UnreadableOutput("after [RESULT] there is neither A nor B")
    return ParsedOutput(winner=WINNERS[letter.lower()], excerpt=letter)


def _parse_pandalm(text: str, output_format: OutputFormat) -> ParsedOutput:
    line = text.split("\n", 1)[0].strip()
    if line.lower() not in {"1", "2", "tie"}:
        raise UnreadableOutput(f"the first line is none of '1', '2' and 'Tie': {_abbreviate(line)}")
    return ParsedOutput(winner=WINNERS[line.lower()], excerpt=line)


def _parse_label(text: str, output_format: OutputFormat) -> ParsedOutput:
    known = {option.lower(): option for option in _label_options(output_format)}
    lines = [
        match["words"] if (match := _VERDICT.fullmatch(line)) else "" for line in text.split("\n")
    ]
    if lines[-1].lower() not in known:
        raise UnreadableOutput(f"the last line is none of {', '.join(known.values())}")
    label = _single_value((line.lower() for line in lines if line.lower() in known), "label")
    return ParsedOutput(label=known[label], excerpt=lines[-1])


def _label_options(output_format: OutputFormat) -> list[str]:
    return [
        option.strip()
        for option in (output_format.argument or DEFAULT_LABELS).split("/")
        if option.strip()
    ]


def _parse_sentiment(text: str, output_format: OutputFormat) -> ParsedOutput:
    sentiments = _SENTIMENT.findall(text)
    if not sentiments:
        raise UnreadableOutput("the output does not say what the sentiment is")
    return ParsedOutput(label=sentiments[-1].lower(), excerpt=sentiments[-1])


def _parse_chain(text: str, output_format: OutputFormat) -> ParsedOutput:
    chain = _single_value(_RANKING_CHAIN.findall(text), "ranking such as [2] > [1]")
    return _ranking_output([int(n) for n in re.findall(r"[0-9]+", chain)], chain)


def _ranking_output(order: list[int], excerpt: str) -> ParsedOutput:
    if len(order) > MAX_RANKED or sorted(order) != list(range(1, len(order) + 1)) or len(order) < 2:
        raise UnreadableOutput(f"a ranking holds each number from 1 on once: {_abbreviate(order)}")
    return ParsedOutput(ranking=tuple(order), excerpt=excerpt)


def _parse_json_score(text: str, output_format: OutputFormat) -> ParsedOutput:
    value, words = _value_at_key(text, output_format)
    if type(value) not in {int, float}:
        raise UnreadableOutput(
            f"{output_format.argument!r} must be a number, got {_abbreviate(value)}"
        )
    if not re.fullmatch(_NUMBER, words):
        raise UnreadableOutput(f"{words} is not a plain number")
    key = re.escape(output_format.argument.rpartition(".")[2])
    if not re.search(
        rf"""{key}["'”’]\s{{0,20}}:\s{{0,20}}{re.escape(words)}\s{{0,20}}[,}}"'“‘]""", text
    ):
        raise UnreadableOutput(f"{output_format.argument!r} is not written plainly: {words}")
    return _score_from_digits(words, _required_scale(output_format), words)


def _parse_json_pair(text: str, output_format: OutputFormat) -> ParsedOutput:
    value, words = _value_at_key(text, output_format)
    winner = WINNERS.get(value.strip().lower()) if isinstance(value, str) else None
    if winner is None:
        raise UnreadableOutput(
            f"{output_format.argument!r} must be one of {', '.join(WINNERS)}, got "
            f"{_abbreviate(value)}"
        )
    return ParsedOutput(winner=winner, excerpt=words)


def _parse_json_label(text: str, output_format: OutputFormat) -> ParsedOutput:
    value, words = _value_at_key(text, output_format)
    if not isinstance(value, (str, bool)) or value == "":
        raise UnreadableOutput(
            f"{output_format.argument!r} must be a label, got {_abbreviate(value)}"
        )
    return ParsedOutput(label=value if isinstance(value, str) else words, excerpt=words)


def _parse_json_ranking(text: str, output_format: OutputFormat) -> ParsedOutput:
    value, words = _value_at_key(text, output_format)
    if not isinstance(value, list) or any(type(n) is not int for n in value):
        raise UnreadableOutput(
            f"{output_format.argument!r} must be a list of whole numbers, got {_abbreviate(value)}"
        )
    return _ranking_output(value, words)


def _value_at_key(text: str, output_format: OutputFormat) -> tuple[Any, str]:
    """Return the value under the key, and its text in the output."""
    value: Any = find_object(text)
    for key in output_format.argument.split("."):
        if not isinstance(value, dict) or key not in value:
            raise UnreadableOutput(f"{output_format.argument!r} is missing")
        value = value[key]
    words = value if isinstance(value, str) else json.dumps(value)
    if not isinstance(value, list) and words not in text:
        raise UnreadableOutput(
            f"{output_format.argument!r} is not written plainly: {_abbreviate(value)}"
        )
    return value, words


def _parse_user_pattern(text: str, output_format: OutputFormat) -> ParsedOutput:
    """Return the match of a user's pattern (of its first group if it has one): a score if there is
    a scale, else a winner.
    """
    try:
        matches = [
            m[1] if m.re.groups else m[0]
            for m in _compile_pattern(output_format.argument).finditer(
                text, timeout=PATTERN_TIMEOUT
            )
        ]
    except TimeoutError:
        raise UnreadableOutput(f"the pattern took more than {PATTERN_TIMEOUT} s") from None
    words = _single_value((each for each in matches if each is not None), "match of the pattern")
    if output_format.scale is None:
        if words.strip().lower() not in WINNERS:
            raise UnreadableOutput(f"{_abbreviate(words)} is none of {', '.join(WINNERS)}")
        return ParsedOutput(winner=WINNERS[words.strip().lower()], excerpt=words)
    if not re.fullmatch(_NUMBER, words.strip()):
        raise UnreadableOutput(f"{_abbreviate(words)} is not a plain number")
    return _score_from_digits(words.strip(), output_format.scale, words.strip())


@lru_cache(maxsize=256)
def _compile_pattern(pattern: str) -> Any:
    import regex

    if not pattern or len(pattern) > 1000:
        raise ConfigError(f"a pattern has 1 to 1000 characters, this one has {len(pattern)}")
    try:
        return regex.compile(pattern)
    except (regex.error, OverflowError, RecursionError, ValueError, KeyError, IndexError) as error:
        raise ConfigError(f"{pattern!r} is not a pattern of the regex library: {error}") from None


# ---- formats

_FORMAT_LIST = (
    OutputFormat(
        "arena_hard",
        "pair",
        "[[A>>B]] ... [[B>>A]] somewhere; different ones are no verdict",
        "My verdict: [[A>B]]",
        _parse_arena,
    ),
    OutputFormat(
        "mt_bench_pair", "pair", "[[A]], [[B]] or [[C]] (a tie) somewhere", "[[B]]", _parse_letters
    ),
    OutputFormat(
        "mt_bench_score",
        "score",
        "a number in double brackets",
        "Rating: [[7]]",
        _parse_double_brackets,
        (1, 10),
    ),
    OutputFormat(
        "llmbar",
        "pair",
        "a sentence (that for (a) is tried first), else a line that begins with the winner",
        "Output (a) is better.",
        _first_matching_pattern(*_SENTENCES, *_LINES),
    ),
    OutputFormat(
        "llmbar_sentence",
        "pair",
        "the sentence alone, as LLMBar reads CoT",
        "Output (b) is better.",
        _first_matching_pattern(*_SENTENCES),
    ),
    OutputFormat(
        "llmbar_line",
        "pair",
        "the line alone, as LLMBar reads plain answers",
        "Output (b)",
        _first_matching_pattern(*_LINES),
    ),
    OutputFormat(
        "pandalm",
        "pair",
        "'1', '2' or 'Tie' as the first line",
        "Tie\n\n### Reason: ...",
        _parse_pandalm,
    ),
    OutputFormat(
        "prometheus",
        "score",
        "a number after [RESULT]",
        "Feedback: ... [RESULT] 4",
        _parse_prometheus,
        (1, 5),
    ),
    OutputFormat(
        "prometheus_pair",
        "pair",
        "A or B after [RESULT]",
        "Feedback: ... [RESULT] B",
        _parse_prometheus_pair,
    ),
    OutputFormat(
        "score_of",
        "score",
        "'Score: 7/10', or '7 out of 10' in a line of its own",
        "**Score:** 4 / 5",
        _parse_score_line,
    ),
    OutputFormat(
        "bare_number", "score", "a number and nothing else", "7", _parse_bare_number, (0, 10)
    ),
    OutputFormat(
        "label",
        "label",
        "a label as the last line",
        "Verdict: PASS",
        _parse_label,
        argument_name="labels",
    ),
    OutputFormat(
        "self_refine_sentiment",
        "label",
        "'the sentiment is Very positive', the last",
        "The sentiment is Neutral.",
        _parse_sentiment,
    ),
    OutputFormat(
        "rank_gpt", "ranking", "numbers in brackets, best first", "[2] > [1] > [3]", _parse_chain
    ),
    OutputFormat(
        "json",
        "score",
        "the number under a key of a JSON object",
        '{"score": 0.8}',
        _parse_json_score,
        (0, 1),
        "score",
        "key",
    ),
    OutputFormat(
        "json_pair",
        "pair",
        "the winner under a key: A, B or tie",
        '{"winner": "A"}',
        _parse_json_pair,
        None,
        "winner",
        "key",
    ),
    OutputFormat(
        "json_label",
        "label",
        "the label under a key",
        '{"label": "pass"}',
        _parse_json_label,
        None,
        "label",
        "key",
    ),
    OutputFormat(
        "json_ranking",
        "ranking",
        "a list of numbers, best first",
        '{"ranking": [2, 1]}',
        _parse_json_ranking,
        None,
        "ranking",
        "key",
    ),
    OutputFormat(
        "regex",
        "pair",
        "the first group of a pattern: a score with a scale, else a winner",
        "winner: A",
        _parse_user_pattern,
        None,
        r"(?i)winner: (\w+)",
        "pattern",
    ),
)
OUTPUT_FORMATS: Mapping[str, OutputFormat] = {form.name: form for form in _FORMAT_LIST}
