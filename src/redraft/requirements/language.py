"""Which script a text is written in, and which language.

A script is counted letter by letter. A language is guessed by py3langid (the extra `language`; offline, its model in the
wheel); without it only languages that have a script to themselves can be told. Neither can be repaired by form: no
translating here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from typing import Any, ClassVar

from ..contracts import Check, Edit
from ..core.errors import ConfigError
from . import texts
from .spec import kind

SHARE = 0.5  # of the letters
READ = 20_000  # characters that a language is guessed by

_ONE = (
    "arabic armenian bengali cyrillic devanagari ethiopic georgian greek gujarati gurmukhi han hangul hebrew hiragana "
    "kannada katakana khmer lao latin malayalam myanmar oriya sinhala tamil telugu thaana thai tibetan"
)
SCRIPTS: dict[str, str] = {name: rf"\p{{Script={name}}}" for name in _ONE.split()} | {
    "kana": r"\p{Hiragana}\p{Katakana}\u30fc",
    "japanese": r"\p{Hiragana}\p{Katakana}\p{Han}\u30fc",
    "cjk": r"\p{Hiragana}\p{Katakana}\p{Han}\p{Hangul}\p{Bopomofo}\u30fc",
}
OWN_SCRIPT = {
    "am": "ethiopic",
    "bn": "bengali",
    "el": "greek",
    "gu": "gujarati",
    "he": "hebrew",
    "hy": "armenian",
    "ja": "japanese",
    "ka": "georgian",
    "km": "khmer",
    "kn": "kannada",
    "ko": "hangul",
    "lo": "lao",
    "ml": "malayalam",
    "my": "myanmar",
    "or": "oriya",
    "pa": "gurmukhi",
    "si": "sinhala",
    "ta": "tamil",
    "te": "telugu",
    "th": "thai",
}


@dataclass(frozen=True, slots=True)
class Script:
    """At least half of the letters outside code and URLs are of this script."""

    name: str

    def __post_init__(self) -> None:
        if self.name not in SCRIPTS:
            raise ConfigError(f"unknown script {self.name[:50]!r}: {_near(self.name, SCRIPTS)}the scripts are {', '.join(SCRIPTS)}")

    @property
    def spec(self) -> str:
        return f"script:{self.name}"

    @property
    def demand(self) -> str:
        return f"written in {self.name} script"

    def check(self, text: str) -> Check:
        share = script_share(_prose(text), self.name)
        if share is None:
            return Check(ok=False, measured="no letters")
        return Check(share >= SHARE, f"{share:.0%} of the letters are {self.name}")

    editable: ClassVar[bool] = False

    def repairs(self, text: str) -> Iterator[Edit]:
        del text
        return iter(())


def _near(name: str, names: Any) -> str:
    near = get_close_matches(name[:50].lower(), list(names), n=3)
    return f"did you mean {' or '.join(near)}? " if near else ""


def _prose(text: str) -> str:
    """The text without code and URLs; all of it where nothing else has a letter."""
    pieces, last = [], 0
    for start, end in texts.protected(text):
        pieces.append(text[last:start])
        last = end
    prose = " ".join([*pieces, text[last:]])
    return prose if any(map(str.isalpha, prose)) else text


def script_share(text: str, name: str) -> float | None:
    """The share of the letters that are of a script; None when there are no letters."""
    letters, those = _letters(), _letters(name)
    count = sum(1 for _ in letters.finditer(text))
    return sum(1 for _ in those.finditer(text)) / count if count else None


@cache
def _letters(name: str = "") -> Any:
    import regex

    return regex.compile(rf"(?V1)[\p{{L}}&&[{SCRIPTS[name]}]]" if name else r"\p{L}")


@kind("script", "the script most letters are of", "script:cyrillic")
def script(argument: str) -> Script:
    return Script(argument.lower())


@dataclass(frozen=True, slots=True)
class Language:
    """Written in a language, by its ISO 639-1 code; guessed, so short texts may be misjudged."""

    code: str

    def __post_init__(self) -> None:
        guess = _guesser()
        known = set(guess.labels) if guess else set(OWN_SCRIPT)
        if self.code not in known:
            more = "" if guess else "; install redraft[language] for languages that share a script"
            raise ConfigError(f"unknown language {self.code[:50]!r}; known: {', '.join(sorted(known))}{more}")

    @property
    def spec(self) -> str:
        return f"language:{self.code}"

    @property
    def demand(self) -> str:
        return f"written in the language {self.code!r}"

    def check(self, text: str) -> Check:
        prose = _prose(text)[:READ]
        if not any(map(str.isalpha, prose)):
            return Check(ok=False, measured="no letters")
        if guess := _guesser():
            found = str(guess.classify(prose)[0])
            return Check(found == self.code, f"the language looks like {found!r}")
        return Script(OWN_SCRIPT[self.code]).check(text)

    editable: ClassVar[bool] = False

    def repairs(self, text: str) -> Iterator[Edit]:
        del text
        return iter(())


@cache
def _guesser() -> Any:
    """py3langid's identifier, one of our own; None where it is not installed."""
    try:
        langid: Any = import_module("py3langid.langid")
    except ImportError:
        return None
    return langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE)


@kind("language", "the language, by its two-letter code", "language:ko")
def language(argument: str) -> Language:
    return Language(argument.lower())
