"""Requirements of Redraft: what they share, the registry of their kinds, and what their specs may
hold: texts, counts and ranges.

A spec is a kind, a colon and an argument: `parse("words:80-200")`. A class declares its kind with
`@requirement` and derives the rest, from the parser of the argument to the wording of a check, from
the base class for what follows the colon: nothing, a count, a text, several texts, or a text and a
count. This module only names the modules that have the kinds. A text in a spec is written as it is,
or as a JSON string if it would be misread.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from importlib import import_module
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias, TypeVar

from ..base import checks
from ..base.own_code import is_own
from ..base.text import compose_nfc
from ..base.threads import run_in_thread
from ..errors import ConfigError
from ..protocols import Check, Edit, Requirement
from ..workers.pool import IN_PROCESS, run
from .text_spans import change_unprotected

Parser: TypeAlias = Callable[[str], Requirement]
Own = TypeVar("Own", bound="OwnRequirement")

_COUNT = re.compile(r"(?:(?:>=|<=|=|<|>)[0-9]{1,9}|=[0-9]{1,9}-[0-9]{1,9})\Z")
_DECODER = json.JSONDecoder(strict=False)
PATTERN_TIMEOUT = 0.5  # seconds that the search for a regular expression of the user may take


class RequirementKind(NamedTuple):
    """A kind of requirement: the parser of its argument, a line of help, and an example spec."""

    parser: Parser
    help: str
    example: str
    reads_files: bool = False


# of the kinds, in the order of the lists of them
_MODULES = ("length", "content", "data", "language", "layout", "typography")
_registered: list[tuple[str, str, RequirementKind]] = []  # with their modules and names


def kinds() -> Mapping[str, RequirementKind]:
    """Return every kind by its name. Few runs have a requirement, so their modules are loaded by
    the first call.
    """
    return _kinds_when(len(_registered))


@lru_cache(maxsize=1)
def _kinds_when(count: int) -> Mapping[str, RequirementKind]:
    """Return every kind by its name; `count` is how many are registered, or were so before other
    threads registered more.
    """
    del count
    for module in _MODULES:
        import_module(f".{module}", __package__)
    places = {f"{__package__}.{module}": place for place, module in enumerate(_MODULES)}
    ordered = sorted([*_registered], key=lambda each: places.get(each[0], len(places)))
    return {name: kind for _, name, kind in ordered}


def register_kind(
    name: str, help: str, example: str, *, reads_files: bool = False
) -> Callable[[Parser], Parser]:
    """Return a decorator that registers a parser of `name:ARGUMENT`; the parser receives ARGUMENT
    ("" if there is none).
    """

    def register(parser: Parser) -> Parser:
        kind = RequirementKind(parser, help, example, reads_files)
        _registered.append((parser.__module__, name, kind))
        return parser

    return register


def requirement(
    name: str, help: str, example: str, *, reads_files: bool = False
) -> Callable[[type[Own]], type[Own]]:
    """Return a decorator that registers the parser of a class of Redraft, as `register_kind`
    does.
    """

    def register(cls: type[Own]) -> type[Own]:
        cls.kind = name
        kind = RequirementKind(cls.parse, help, example, reads_files)
        _registered.append((cls.__module__, name, kind))
        return cls

    return register


# ---- what the requirements of Redraft share


@dataclass(frozen=True)
class OwnRequirement:
    """A requirement of Redraft. This one has nothing after the colon of its spec, and demands what
    is `wanted`.

    Texts are compared in the composed form of Unicode: `measure` and `edits` get the text in that
    form (for edits, code and URLs stay as they are), and so are the texts among their object's
    fields.
    """

    kind: ClassVar[str]
    wanted: ClassVar[str]

    @classmethod
    def parse(cls, argument: str) -> Self:
        """Return the requirement with this argument. Raises ConfigError."""
        if argument:
            raise ConfigError(f"it takes nothing after the colon, got {argument!r}")
        return cls()

    @property
    def argument(self) -> str:
        """What `parse` reads as this requirement."""
        return ""

    @property
    def spec(self) -> str:
        return f"{self.kind}:{self.argument}" if self.argument else self.kind

    @property
    def demand(self) -> str:
        return self.wanted

    def check(self, text: str) -> Check:
        return _with_composed_fields(self).measure(compose_nfc(text))

    def repairs(self, text: str) -> Iterable[Edit]:
        composed = text if text.isascii() else change_unprotected(text, compose_nfc)
        return _with_composed_fields(self).edits(composed)

    def measure(self, text: str) -> Check:
        """Return the check of a text."""
        raise NotImplementedError

    def edits(self, text: str) -> Iterable[Edit]:
        """Yield changed texts that may meet the requirement."""
        del text
        return ()


def _with_composed_fields(made: Own) -> Own:
    return replace(made, **{name: compose_texts(value) for name, value in vars(made).items()})


def compose_texts(value: Any) -> Any:
    """Return a text, or JSON and tuples with the texts in them, in the composed form of Unicode.
    Raises RecursionError.
    """
    if isinstance(value, dict):
        return {compose_texts(key): compose_texts(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return (list if isinstance(value, list) else tuple)(map(compose_texts, value))
    return compose_nfc(value) if isinstance(value, str) else value


@dataclass(frozen=True)
class RangeRequirement(OwnRequirement):
    """A requirement with a range after the colon."""

    count: Range

    @classmethod
    def parse(cls, argument: str) -> Self:
        return cls(parse_range(argument))

    @property
    def argument(self) -> str:
        return str(self.count)


class CountRequirement(RangeRequirement):
    """How many things of some sort a text has. A measurement calls one of them `noun`."""

    noun: ClassVar[str]

    @property
    def demand(self) -> str:
        return f"{self.count.description} {self.wanted}"

    def measure(self, text: str) -> Check:
        count = self.count_in(text)
        return self.count.check(count, self.measurement(count))

    def count_in(self, text: str) -> int:
        """Return how many there are."""
        raise NotImplementedError

    def measurement(self, count: int) -> str:
        """Return in words how many there are."""
        return format_count(count, self.noun)

    def edits(self, text: str) -> Iterator[Edit]:
        count = self.count_in(text)
        if missing := self.count.shortfall(count):
            yield from self.add(text, missing)
        elif surplus := self.count.surplus(count):
            yield from self.remove(text, surplus)

    def add(self, text: str, missing: int) -> Iterable[Edit]:
        """Yield the text with so many more."""
        del text, missing
        return ()

    def remove(self, text: str, surplus: int) -> Iterable[Edit]:
        """Yield the text with so many fewer."""
        del text, surplus
        return ()


@dataclass(frozen=True)
class TextRequirement(OwnRequirement):
    """A requirement with a text after the colon."""

    text: str

    @classmethod
    def parse(cls, argument: str) -> Self:
        return cls(parse_text(argument))

    @property
    def argument(self) -> str:
        return text_spec(self.text)


@dataclass(frozen=True)
class TextsRequirement(OwnRequirement):
    """A requirement with texts after the colon, between separators."""

    texts: tuple[str, ...]

    separator: ClassVar[str] = ","

    @classmethod
    def parse(cls, argument: str) -> Self:
        return cls(parse_texts(argument, cls.separator))

    @property
    def argument(self) -> str:
        return self.separator.join(
            _bare_or_quoted(text, lambda a: parse_texts(a, self.separator), (text,))
            for text in self.texts
        )


@dataclass(frozen=True)
class TextCountRequirement(CountRequirement):
    """How often a text has something that is named after the colon, before the count."""

    text: str

    @classmethod
    def parse(cls, argument: str) -> Self:
        text, count = parse_text_count(argument)
        return cls(count, text)

    @property
    def argument(self) -> str:
        written = _bare_or_quoted(self.text, parse_text_count, (self.text, Range(1)))
        return written if self.count == Range(1) else written + self.count.comparison


# ---- specs


def parse(spec: str, *, files: bool = True) -> Requirement:
    """Return the requirement that `spec` stands for.

    Raises ConfigError with the value, what is allowed, and the nearest names. With `files=False` no
    spec reads a file: use that for untrusted specs.
    """
    shown = checks.format_value(spec)
    if not isinstance(spec, str):
        raise ConfigError(f"a requirement is a spec such as 'words:80-200', got {shown}")
    name, _, argument = spec.partition(":")
    name = name.strip()
    kind = kinds().get(name)
    if kind is None:
        hint = ' (a requirement is KIND:VALUE, such as "words:80-200")' if ":" not in spec else ""
        raise ConfigError(
            checks.unknown_name_message(
                "requirement", name, kinds(), "redraft graders", full_value=spec
            )
            + hint
        )
    if not files and reads_file(spec):
        raise ConfigError(
            f"requirement {shown} would read a file, which is not allowed here; give it inline"
        )
    try:
        return kind.parser(argument.strip())
    except ConfigError as error:
        raise ConfigError(f"requirement {shown}: {error} (for example {kind.example!r})") from None


def reads_file(spec: str) -> bool:
    """Return whether a spec names a file that would be read."""
    name, _, argument = str(spec).partition(":")
    kind, argument = kinds().get(name.strip()), argument.strip()
    return kind is not None and kind.reads_files and bool(argument) and not argument.startswith("{")


def check_foreign_spec(spec: str) -> None:
    """Raise ConfigError unless `spec` is a requirement that reads no file. For specs from data
    sets.
    """
    parse(spec, files=False)


def parse_text(argument: str) -> str:
    """Return a text, bare or as a JSON string."""
    text, rest = _split_text(argument, "")
    if rest:
        raise ConfigError(f"there is {rest!r} after the quoted text")
    if not text.strip():
        raise ConfigError("it needs a text after the colon")
    return text


def parse_texts(argument: str, separator: str) -> tuple[str, ...]:
    """Return texts between separators, each bare or as a JSON string, without duplicates."""
    texts: dict[str, None] = {}
    rest = separator + argument
    while rest:
        if not rest.startswith(separator):
            raise ConfigError(f"there is {rest!r} after the quoted text")
        text, rest = _split_text(rest[len(separator) :].lstrip(), separator)
        if not text.strip():
            raise ConfigError(f"it needs texts with {separator!r} between them, got {argument!r}")
        texts[text] = None
    return tuple(texts)


def parse_text_count(argument: str) -> tuple[str, Range]:
    """Return a text and a count: `war` (at least once), `war>=8`, `war<3`, `war=2-4`. A text that
    ends like this is quoted.
    """
    if argument.startswith('"'):
        text, count = _split_text(argument, "")
        if count and not _COUNT.match(count):
            raise ConfigError(f"{count!r} is not a count; allowed: >=8, <=8, >8, <8, =8, =2-8")
    else:
        match = _COUNT.search(argument)
        count = match[0] if match else ""
        text = argument.removesuffix(count).rstrip() if count else argument
    if not text.strip():
        raise ConfigError("it needs a text after the colon")
    return text, parse_range(count.removeprefix("=")) if count else Range(1)


def _split_text(argument: str, separator: str) -> tuple[str, str]:
    if not argument.startswith('"'):
        end = argument.find(separator) if separator else -1
        return (argument, "") if end < 0 else (argument[:end].rstrip(), argument[end:])
    try:
        text, end = _DECODER.raw_decode(argument)
    except ValueError as error:
        raise ConfigError(f"{argument!r} starts a quoted text that does not end: {error}") from None
    return text, argument[end:].lstrip()


def _bare_or_quoted(text: str, parse: Callable[[str], object], expected: object) -> str:
    """Return the text as it is if parsing it gives `expected`, else as a JSON string."""
    try:
        if text == text.strip() and is_encodable(text) and parse(text) == expected:
            return text
    except ConfigError:
        pass
    return json.dumps(text, ensure_ascii=not is_encodable(text))


def text_spec(text: str) -> str:
    """Return what `parse_text` reads as `text`."""
    return _bare_or_quoted(text, parse_text, text)


def is_encodable(text: str) -> bool:
    """Return whether the text has a UTF-8 form (lone surrogates have none)."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# ---- ranges of counts


ALLOWED_FORMS = (
    "80-200 (from, to), 80- (at least), -200 (at most), 100 (exactly), or <300, <=300, >80, >=80, "
    "=100"
)

_FROM_TO = re.compile(r"([0-9]{0,9})(?:(-)([0-9]{0,9}))?")
_COMPARISON = re.compile(r"(>=|<=|=|<|>)\s*([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class Range:
    """From `minimum` to `maximum`, both included; None means no upper bound. Raises ConfigError for
    an empty range.
    """

    minimum: int = 0
    maximum: int | None = None

    def __post_init__(self) -> None:
        if self.minimum < 0 or (self.maximum is not None and self.maximum < self.minimum):
            raise ConfigError(
                f"nothing lies between {self.minimum} and {self.maximum}; allowed: {ALLOWED_FORMS}"
            )
        if self.minimum == 0 and self.maximum is None:
            raise ConfigError(
                f"every count is at least 0, so this demands nothing; allowed: {ALLOWED_FORMS}"
            )

    def __contains__(self, count: float) -> bool:
        return self.minimum <= count and (self.maximum is None or count <= self.maximum)

    def __str__(self) -> str:
        """Return the canonical form: 80-200, 80-, -200 or 100."""
        if self.maximum is None:
            return f"{self.minimum}-"
        if self.minimum == self.maximum:
            return str(self.minimum)
        return f"{self.minimum or ''}-{self.maximum}"

    @property
    def comparison(self) -> str:
        """The form that follows a text in a spec: >=8, <=2, =3 or =2-4."""
        if self.maximum is None:
            return f">={self.minimum}"
        if self.minimum == 0:
            return f"<={self.maximum}"
        return f"={self}"

    @property
    def description(self) -> str:
        """In words: "80 to 200", "at least 80", "at most 200", "exactly 100", "no"."""
        if self.maximum is None:
            return f"at least {self.minimum}"
        if self.minimum == self.maximum:
            return f"exactly {self.minimum}" if self.minimum else "no"
        return f"{self.minimum} to {self.maximum}" if self.minimum else f"at most {self.maximum}"

    def check(self, count: float, measurement: str) -> Check:
        """Return the check of a count, measured in these words. Its nearness is 1 for a count in
        the range, else the ratio of the smaller to the larger of the count and the bound.
        """
        if count < self.minimum:
            return Check(
                ok=False, measurement=measurement, nearness=(max(count, 0) + 1) / (self.minimum + 1)
            )
        ok = count in self
        return Check(ok, measurement, 1.0 if ok else ((self.maximum or 0) + 1) / (count + 1))

    def surplus(self, count: int) -> int:
        """Return by how many `count` exceeds the range."""
        return 0 if self.maximum is None else max(0, count - self.maximum)

    def shortfall(self, count: int) -> int:
        """Return by how many `count` falls short of the range."""
        return max(0, self.minimum - count)


NO_OCCURRENCES = Range(0, 0)


def parse_range(argument: str) -> Range:
    """Return the range that a spec's argument stands for. Raises ConfigError for anything else."""
    argument = argument.strip()
    if compared := _COMPARISON.fullmatch(argument):
        return _range_from_operator(compared[1], int(compared[2]))
    between = _FROM_TO.fullmatch(argument)
    if not between or not (between[1] or between[3]):
        raise ConfigError(f"{argument!r} is not a range; allowed: {ALLOWED_FORMS}")
    least = int(between[1] or 0)
    if not between[2]:
        return Range(least, least)
    return Range(least, int(between[3]) if between[3] else None)


def _range_from_operator(operator: str, bound: int) -> Range:
    if operator == "<" and bound == 0:
        raise ConfigError(f"no count is less than 0; allowed: {ALLOWED_FORMS}")
    least = {">=": bound, ">": bound + 1, "=": bound}
    most = {"<=": bound, "<": bound - 1, "=": bound}
    return Range(least.get(operator, 0), most.get(operator))


def format_count(count: int, noun: str) -> str:
    """Return a count with its noun: "1 word", "112 words"."""
    return f"{count:d} {noun if count == 1 else f'{noun}s'}"


# ---- checks with a time limit
#
# Very short checks run at once, short ones in a thread, long ones in a worker process that is
# stopped after a time. The cost is the number of characters that are read. A requirement that reads
# the text more than once has a method `check_cost(text)`; one that may take long for any text has
# `needs_thread`. Users' requirements run in a thread, without a limit.

# characters: some 10 ms for any text at most (bench/hostile_text.py); a thread takes 0.2 ms of
# every check
AT_ONCE = 2_048


async def check_with_limit(requirement: Requirement, text: str) -> Check:
    """Check a text. Raises ComputeLimitError if that takes too long: the result is unknown then."""
    if not is_own(type(requirement)):
        return await run_in_thread(requirement.check, text)
    cost = check_cost(requirement, text)
    if cost <= AT_ONCE and not getattr(requirement, "needs_thread", False):
        return requirement.check(text)
    if cost <= IN_PROCESS:
        return await run_in_thread(requirement.check, text)
    return Check(
        **await run(
            _check_in_worker,
            requirement.spec,
            text,
            failure_text=f"{short_spec(requirement.spec)} could not be checked",
            text_length=len(text),
        )
    )


def prepare() -> None:
    """Load the kinds in a worker before its first job, so that no job spends its time on it."""
    kinds()


def _check_in_worker(spec: str, text: str) -> dict[str, Any]:
    return asdict(parse(spec, files=False).check(text))


def check_cost(requirement: Requirement, text: str) -> float:
    """Return how many characters a check reads."""
    measure: Any = getattr(requirement, "check_cost", len)
    return float(measure(text))


def repair_cost(requirements: Sequence[Requirement], text: str) -> float:
    """Return the most characters that checking or repairing one of Redraft's requirements reads; 0
    without one.
    """
    return max((check_cost(each, text) for each in requirements if is_own(type(each))), default=0)


def short_spec(spec: str) -> str:
    """Return a spec as messages show it."""
    return spec if len(spec) <= 100 else f"{spec[:97]}..."
