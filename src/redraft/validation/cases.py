"""The two sides of a validation, labels of people and verdicts of a grader, and the meaning of
labels in their many spellings.

Rows of any shape become `LabelledCase`s (see `labelled`); the answer of a grader about one, live or
recorded, is a `Verdict`. A label with more than one possible meaning raises `AmbiguousLabel`: its
row is left out and counted. This module does not know files or columns.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import isnan
from typing import Any, Literal, TypeAlias

from ..base.checks import format_value, is_blank
from ..errors import ConfigError
from ..loop.task import Task

LabelKind: TypeAlias = Literal["score", "pass", "pair", "ranking"]
"""Kinds of labels: a number for a response, pass or fail, the better of two responses, the order of
several.
"""

FIRST, SECOND, TIE, UNREADABLE = "first", "second", "tie", "unreadable"
"""Which of two responses is better."""
FIRST_BETTER, SECOND_BETTER, EQUAL = (0, 1), (1, 0), (0, 0)
"""The same as the ranks of the two responses."""
NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d{1,3})?", re.ASCII)
# 1,234 may be a thousand
DECIMAL_COMMA = re.compile(r"[-+]?(?:0,\d+|\d+,(?:\d{1,2}|\d{4,}))", re.ASCII)
NO_TWO_LABELS = re.compile(r"[-+]?(?:0,\d{2,}|\d+,0\d+|\d+,\d{4,})", re.ASCII)  # as 3,4 may be
ONE_DIGIT = re.compile(r"[-+]?\d,\d+", re.ASCII)
# no two labels, if all before the commas have one digit; 3,10 may be
MORE_DIGITS = re.compile(r"[-+]?\d,(?!10)\d\d+", re.ASCII)
SHARE_WITH_COMMA = re.compile(r"[-+]?(?:0,\d+|1,0+)", re.ASCII)
SHARE = re.compile(r"(\d+(?:[.,]\d*)?|\.\d+)\s*(?:%|(?:/|(?:out )?of)\s*(\d+(?:\.\d*)?))", re.ASCII)
MAX_NUMBER = 1e300
BRACKETS = re.compile(r"^\[\[(.*)\]\]$")


@dataclass(frozen=True, slots=True)
class LabelledCase:
    """One labelled row.

    `responses`: one for kinds score and pass, two for pair, several for ranking. `label`: the
    number on the scale that people used (kind score), or 1 or 0 (pass). `ranks`: the rank of each
    response, from 0, equal for ties (pair, ranking). `ratings`: the rating of each rater if known,
    None where one is missing: scores, 1 or 0, or for pairs the better response (1, 2; 0 is a tie).
    `group`: the heading of the report that counts the case. `source_order`: where each response was
    in the row of a benchmark, whose better responses come first (see `benchmarks`). `parent`: the
    ID of the case that this response refines, or "". `cluster`: what the case has in common with
    others, which are then not independent; "" is a cluster of its own. Raises ConfigError for a
    label that does not fit its kind, and for a blank response, which is none.
    """

    id: str
    kind: LabelKind
    task: Task
    responses: tuple[str, ...]
    label: float | None = None
    ranks: tuple[int, ...] | None = None
    ratings: tuple[float | None, ...] = ()
    group: str = ""
    source_order: tuple[int, ...] = ()
    parent: str = ""
    cluster: str = ""

    def __post_init__(self) -> None:
        if any(map(is_blank, self.responses)):
            raise ConfigError(f"case {self.id!r}: a response is blank")
        several = self.kind in {"pair", "ranking"}
        if several and (
            self.ranks is None or len(self.ranks) != len(self.responses) or len(self.responses) < 2
        ):
            raise ConfigError(
                f"case {self.id!r}: kind {self.kind!r} needs `ranks`, one for each response, such "
                f"as (0, 1) if the first is better, got {self.ranks!r} for {len(self.responses)} "
                "responses"
            )
        if not several and (self.label is None or len(self.responses) != 1):
            raise ConfigError(
                f"case {self.id!r}: kind {self.kind!r} needs one response and a `label`, got "
                f"{self.label!r}"
            )


def with_clusters(
    cases: Sequence[LabelledCase], names: Sequence[str] = ()
) -> tuple[LabelledCase, ...]:
    """Return cases with their clusters: those with the same task (prompt, context and reference) or
    the same name are one.

    `names` are further names of the cases, such as IDs that occur repeatedly; "" is none. What all
    cases share tells nothing apart: a name is then none, and if it is the task, the measures are
    about answers to it, and those with the same responses are one.
    """
    tasks = [repr((case.task.messages, case.task.context, case.task.reference)) for case in cases]
    if len(set(tasks)) == 1:
        tasks = [repr(sorted(case.responses)) for case in cases]
    parents: dict[tuple[str, str], tuple[str, str]] = {}

    def root(key: tuple[str, str]) -> tuple[str, str]:
        while (above := parents.setdefault(key, key)) != key:
            parents[key] = key = parents[above]
        return key

    for name, task in zip(names if len(set(names)) > 1 else (), tasks, strict=False):
        if name:
            parents[root(("name", name))] = root(("task", task))
    roots = [root(("task", task)) for task in tasks]
    sizes = Counter(roots)
    numbers = {each: str(n) for n, each in enumerate(sizes, 1)}
    return tuple(
        replace(case, cluster=numbers[each] if sizes[each] > 1 else "")
        for case, each in zip(cases, roots, strict=True)
    )


@dataclass(frozen=True, slots=True)
class Verdict:
    """One answer of a grader about a case. Without scores, ranks and `passed` it is unreadable, and
    `reason` says why.

    `scores`: the grader's score of each response, in the order of the case. `ranks`: the rank of
    each, from 0, equal for ties. `presentation_order`: the indexes of the responses in the order
    the grader saw them, if it saw them side by side. `passed`: for kind pass. `repeat` numbers
    repeated gradings.
    """

    case: str
    scores: tuple[float | None, ...] = ()
    ranks: tuple[int, ...] | None = None
    presentation_order: tuple[int, ...] = ()
    passed: bool | None = None
    repeat: int = 0
    reason: str = ""

    @property
    def readable(self) -> bool:
        """Whether the verdict covers every response."""
        return (
            self.ranks is not None
            or self.passed is not None
            or (bool(self.scores) and None not in self.scores)
        )


@dataclass(frozen=True)
class CaseVerdicts:
    """A case with all verdicts on it."""

    case: LabelledCase
    verdicts: tuple[Verdict, ...]

    @property
    def readable_verdicts(self) -> list[Verdict]:
        return [v for v in self.verdicts if v.readable]

    def mean_score(self, i: int = 0) -> float | None:
        """Return the mean score of a response over all verdicts; None if there is no score."""
        return mean_of_known(v.scores[i] for v in self.verdicts if i < len(v.scores))

    @property
    def first_response_length(self) -> int:
        return len(self.case.responses[0])

    @property
    def label(self) -> float:
        """The label as a number, for the kinds score and pass."""
        return float(self.case.label or 0)


def mean_of_known(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None


def preferred_response(row: CaseVerdicts) -> str:
    """Return which response a grader prefers: FIRST, SECOND, TIE or UNREADABLE.

    In each repeat it is the response preferred in every presentation order, else a tie; over
    repeats the majority decides. A row without a readable verdict is unreadable, not a tie.
    """
    repeats: defaultdict[int, set[str]] = defaultdict(set)
    for v in row.readable_verdicts:
        repeats[v.repeat].add(better_of_two(verdict_ranks(v)))
    votes = [
        preferences.pop() if len(preferences) == 1 else TIE for preferences in repeats.values()
    ]
    if not votes:
        return UNREADABLE
    first, second = votes.count(FIRST), votes.count(SECOND)
    return FIRST if first > second else SECOND if second > first else TIE


def verdict_ranks(verdict: Verdict) -> tuple[int, ...] | None:
    """Return the ranks in a verdict, or those of its scores; None if a score is missing."""
    if verdict.ranks is not None:
        return verdict.ranks
    scores = verdict.scores
    if not scores or any(s is None for s in scores):
        return None
    return tuple(sum((other or 0) > (own or 0) for other in scores) for own in scores)


def better_of_two(ranks: Sequence[int] | None) -> str:
    """Return which of two responses is better, TIE, or UNREADABLE."""
    if ranks is None:
        return UNREADABLE
    return TIE if ranks[0] == ranks[1] else FIRST if ranks[0] < ranks[1] else SECOND


# --- the direction of a scale
# ----------------------------------------------------------------------------

LOWER_IS_BETTER = re.compile(
    "_(?:wer|cer|ter|mer|perplexity|ppl|loss|nll|bpb|bits_per_byte|brier|ece|mae|mse|rmse|errors?|distance|latency|duration|ttft|seconds|cost|toxicity|toxic|hallucinations?|bias|fpr|fnr|fdr|eer|rmsle|mape|false_(?:positive|negative|discovery|alarm)s?|violations?|failures?|regret|elapsed|runtime|(?:response|run|execution|inference|wait|waiting)_time)_"
)
"""Words in the names of measures whose lower values are usually better."""
DIRECTION_OPTIONS = (
    "by --lower-is-better or --higher-is-better (from Python: lower_is_better=True or False)"
)
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")


def is_lower_better(name: str, *, stated: bool | None, way: str = DIRECTION_OPTIONS) -> bool:
    """Return whether lower values of a score are better, as `stated`; else False.

    Raises ConfigError if nothing is stated and the name says that lower may be better. `way` is how
    to state it.
    """
    words = f"_{'_'.join(WORD.findall(name)).lower()}_"
    if stated is None and LOWER_IS_BETTER.search(words):
        raise ConfigError(
            f"lower may be better for {format_value(name, 80)}: say which it is, {way}"
        )
    return bool(stated)


# --- the meaning of labels
# ----------------------------------------------------------------------------


class AmbiguousLabel(ValueError):
    """A label without a clear meaning; the message says why."""


def _meaning_by_spelling(meanings: Mapping[Any, str]) -> dict[str, Any]:
    return {word: meaning for meaning, words in meanings.items() for word in words.split()}


PAIR_SPELLINGS = _meaning_by_spelling(
    {
        FIRST_BETTER: (
            "first a a>b a>>b b<a b<<a model_a model_1 response_a response_1 output_a output_1 "
            "answer_a answer_1"
        ),
        SECOND_BETTER: (
            "second b b>a b>>a a<b a<<b model_b model_2 response_b response_2 output_b output_2 "
            "answer_b answer_2"
        ),
        EQUAL: "tie tied draw equal same both neither a=b b=a tie(bothbad) bothbad",
    }
)
PASS_SPELLINGS = _meaning_by_spelling(
    {
        1.0: "pass passed yes y true t correct right ok good acceptable accept accepted kept",
        0.0: "fail failed no n false f incorrect wrong bad unacceptable reject rejected broken",
    }
)
CLEAR_WORDS = (
    "pass",
    "passed",
    "yes",
    "true",
    "correct",
    "fail",
    "failed",
    "no",
    "false",
    "incorrect",
)
SCORE_WORDS = {word: PASS_SPELLINGS[word] for word in CLEAR_WORDS}
# of columns that hold no other letters; the letters that must be among them come first
LETTER_SCORES = (
    ("ci", {"c": 1.0, "i": 0.0, "p": 0.5, "n": 0.0}),  # as Inspect's metrics read them
    ("f", {"p": 1.0, "f": 0.0}),
    ("tf", {"t": 1.0, "f": 0.0}),
    ("yn", {"y": 1.0, "n": 0.0}),
)
RANKS_BY_RATING = {1.0: FIRST_BETTER, 2.0: SECOND_BETTER, 0.0: EQUAL}
RANKS_BY_WINNER = {FIRST: FIRST_BETTER, SECOND: SECOND_BETTER, TIE: EQUAL}


def is_missing(value: Any) -> bool:
    """Return whether a value is null, NaN or a blank text."""
    return (
        value is None
        or (isinstance(value, str) and is_blank(value))
        or (isinstance(value, float) and isnan(value))
    )


def normalise_label(value: Any) -> str:
    """Return a text without case, spaces and double brackets; "" for anything else."""
    bare = BRACKETS.sub(r"\1", value.strip()) if isinstance(value, str) else ""
    return "".join(bare.split()).casefold()


def parse_number(value: Any) -> float:
    """Return a finite number, also from a text, with a point or a comma. Raises AmbiguousLabel for
    others: "4/5", true, "1,234".
    """
    if isinstance(value, str) and DECIMAL_COMMA.fullmatch(value.strip()):
        value = value.replace(",", ".")
    if isinstance(value, str) and NUMBER.fullmatch(value.strip()):
        value = float(value)
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not -MAX_NUMBER <= value <= MAX_NUMBER
    ):
        hint = (
            "; write the decimal sign as a point" if isinstance(value, str) and "," in value else ""
        )
        raise AmbiguousLabel(f"{format_value(value, 80)} is not a number{hint}")
    return float(value)


def letter_scores(values: Iterable[Any]) -> Mapping[str, float]:
    """Return what single letters in a column mean, such as C and I for correct and incorrect; {} if
    it holds other letters.
    """
    letters = {
        value.strip().casefold()
        for value in values
        if isinstance(value, str) and len(value.strip()) == 1
    }
    letters = {letter for letter in letters if letter.isalpha()}
    return next(
        (
            scores
            for some, scores in LETTER_SCORES
            if letters & {*some} and letters <= scores.keys()
        ),
        {},
    )


def read_share(value: Any, letters: Mapping[str, float]) -> float | None:
    """Return the share from 0 to 1 that a value says, `letters` being what single letters mean;
    None if it says none. Raises AmbiguousLabel for a share above 1.
    """
    if isinstance(value, bool):
        return float(value)
    word = value.strip().casefold() if isinstance(value, str) else ""
    if not (match := SHARE.fullmatch(word)):
        return letters.get(word, SCORE_WORDS.get(word))
    part, whole = float(match[1].replace(",", ".")), float(match[2] or 100)
    if not part <= whole or not whole:
        raise AmbiguousLabel(f"{format_value(value, 80)} is no share from 0 to 1")
    return part / whole


def score_reader(values: Iterable[Any]) -> Callable[[Any], float]:
    """Return the function that reads the values of a column of scores, which raises AmbiguousLabel
    for those that are none.

    Scores are numbers, or shares from 0 to 1: true and false, "correct", "C" and their like, "60%",
    "6/10". Among numbers outside this range a share is on another scale, and no score. A comma is a
    decimal sign if the column shows it: "3,4" alone may be two labels.
    """
    known = [value for value in values if not is_missing(value)]
    texts = {value.strip() for value in known if isinstance(value, str)}
    letters, commas = letter_scores(texts), [text for text in texts if "," in text]
    is_decimal = all(map(DECIMAL_COMMA.fullmatch, commas)) and (
        any(map(NO_TWO_LABELS.fullmatch, commas))
        or all(map(SHARE_WITH_COMMA.fullmatch, commas))
        or (all(map(ONE_DIGIT.fullmatch, commas)) and any(map(MORE_DIGITS.fullmatch, commas)))
    )

    def number(value: Any) -> float:
        if isinstance(value, str) and not is_decimal and DECIMAL_COMMA.fullmatch(value.strip()):
            raise AmbiguousLabel(
                f"{format_value(value, 80)} may be a number or two labels; write the decimal sign "
                "as a point, and several labels as a list"
            )
        return parse_number(value)

    def is_outside(value: Any) -> bool:
        with suppress(AmbiguousLabel):
            return read_share(value, letters) is None and not 0 <= number(value) <= 1
        return False

    outside = next(filter(is_outside, known), None)

    def read(value: Any) -> float:
        if (found := read_share(value, letters)) is None:
            return number(value)
        if outside is not None:
            raise AmbiguousLabel(
                f"{format_value(value, 80)} is a share from 0 to 1, and there are numbers on "
                f"another scale, such as {format_value(outside, 80)}"
            )
        return found

    return read


def is_read(parse: Callable[[Any], object], value: Any) -> bool:
    """Return whether one of these functions, such as `parse_number`, accepts a value."""
    try:
        parse(value)
    except AmbiguousLabel:
        return False
    return True


def parse_whole_number(value: Any) -> int:
    """Return a whole number. Raises AmbiguousLabel."""
    number = parse_number(value)
    if number != int(number):
        raise AmbiguousLabel(f"{format_value(value, 80)} is not a whole number")
    return int(number)


def parse_pass(value: Any) -> float:
    """Return 1 for pass, 0 for fail. Raises AmbiguousLabel."""
    if isinstance(value, bool):
        return float(value)
    number = (
        parse_number(value)
        if is_read(parse_number, value)
        else PASS_SPELLINGS.get(normalise_label(value))
    )
    if number not in {0.0, 1.0}:
        raise AmbiguousLabel(f"{format_value(value, 80)} means neither pass nor fail")
    return number


def parse_preference(value: Any, *, from_zero: bool = False) -> tuple[int, ...]:
    """Return the ranks that a label gives to the two responses. Raises AmbiguousLabel.

    `from_zero`: 0 and 1 in the column may be the responses, or a tie and the first one, so numbers
    are ambiguous.
    """
    if isinstance(value, bool):
        raise AmbiguousLabel(f"{value!r} does not say which response is better")
    if not is_read(parse_number, value):
        if (spelling := normalise_label(value)) in PAIR_SPELLINGS:
            return tuple(PAIR_SPELLINGS[spelling])
        raise AmbiguousLabel(f"{format_value(value, 80)} does not say which response is better")
    if from_zero:
        raise AmbiguousLabel(
            f"{format_value(value, 80)} may count from 0, or say tie; state what it means"
        )
    if (number := parse_number(value)) in RANKS_BY_RATING:
        return RANKS_BY_RATING[number]
    raise AmbiguousLabel(f"{format_value(value, 80)} is neither 1, 2 nor 0 (tie)")


def counts_from_zero(values: Iterable[Any]) -> bool:
    """Return whether a column of preferences holds 0 but not 2, so that 0 may be the first response
    or a tie.
    """
    numbers = {parse_number(v) for v in values if is_read(parse_number, v)}
    return 0.0 in numbers and 2.0 not in numbers


def as_rating(ranks: Sequence[int]) -> float:
    """Return a preference as the number of the better response: 1, 2, or 0 for a tie."""
    return {FIRST_BETTER: 1.0, SECOND_BETTER: 2.0}.get((ranks[0], ranks[1]), 0.0)


def majority_rating(ratings: Sequence[float], undecided: float | None = None) -> float:
    """Return the most frequent rating. If there is none it is `undecided`; raises AmbiguousLabel if
    that is None.
    """
    first, *others = Counter(ratings).most_common(2)
    if not others or first[1] > others[0][1]:
        return first[0]
    if undecided is None:
        raise AmbiguousLabel("no rating is the most frequent")
    return undecided


def zero_based_ranks(ranks: Sequence[Any], n: int) -> tuple[int, ...]:
    """Return ranks from 0 of `n` responses, from ranks that count from 1, equal for ties. Raises
    AmbiguousLabel.
    """
    numbers = [parse_whole_number(rank) for rank in ranks]
    if len(numbers) != n or min(numbers, default=0) != 1 or max(numbers) > n:
        raise AmbiguousLabel(
            f"ranks of {n} responses are {n} numbers from 1 to {n}, got "
            f"{format_value(list(ranks), 80)}"
        )
    return tuple(sum(other < own for other in numbers) for own in numbers)


def ranks_from_order(order: Sequence[Any], n: int) -> tuple[int, ...]:
    """Return ranks from 0 of `n` responses, from their numbers (from 0 or 1), best first. Raises
    AmbiguousLabel.
    """
    numbers = [parse_whole_number(item) for item in order]
    start = min(numbers, default=0)
    if start not in {0, 1} or sorted(numbers) != list(range(start, start + n)):
        raise AmbiguousLabel(
            f"an order of {n} responses holds each of their numbers once, got "
            f"{format_value(list(order), 80)}"
        )
    return tuple(numbers.index(item) for item in range(start, start + n))
