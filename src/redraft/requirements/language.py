"""The script and the language of a text.

A script is determined letter by letter. A language is guessed by langdetect (the extra `language`;
offline), always with the same seed; without it only languages with a script of their own can be
recognised. Neither can be repaired without a model.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import Any, ClassVar

from ..base.checks import closest_names
from ..errors import ConfigError
from ..protocols import Check, Edit
from . import text_spans as texts
from .spec import register_kind, requirement

MIN_SHARE = 0.5  # of the letters
MAX_DETECTION_CHARS = 20_000  # used to guess the language

_SINGLE_SCRIPTS = (
    "arabic armenian bengali cyrillic devanagari ethiopic georgian greek gujarati gurmukhi han "
    "hangul hebrew hiragana kannada katakana khmer lao latin malayalam myanmar oriya sinhala "
    "tamil telugu thaana thai tibetan"
)
SCRIPTS: dict[str, str] = {name: rf"\p{{Script={name}}}" for name in _SINGLE_SCRIPTS.split()} | {
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


@requirement
class Script:
    """At least half of the letters outside code and URLs are of this script."""

    name: str

    def __post_init__(self) -> None:
        if self.name not in SCRIPTS:
            near = closest_names(self.name, SCRIPTS)
            hint = f"did you mean {' or '.join(near)}? " if near else ""
            raise ConfigError(
                f"unknown script {self.name[:50]!r}: {hint}the scripts are {', '.join(SCRIPTS)}"
            )

    @property
    def spec(self) -> str:
        return f"script:{self.name}"

    @property
    def demand(self) -> str:
        return f"written in {self.name} script"

    def check(self, text: str) -> Check:
        share = script_share(_prose(text), self.name)
        if share is None:
            return Check(ok=False, measurement="no letters")
        return Check(share >= MIN_SHARE, f"{share:.0%} of the letters are {self.name}", share)

    editable: ClassVar[bool] = False

    def repairs(self, text: str) -> Iterator[Edit]:
        del text
        return iter(())


def _prose(text: str) -> str:
    """Return the text without code and URLs; the whole text if nothing else has a letter."""
    pieces, last = [], 0
    for start, end in texts.protected_spans(text):
        pieces.append(text[last:start])
        last = end
    prose = " ".join([*pieces, text[last:]])
    return prose if any(map(str.isalpha, prose)) else text


def script_share(text: str, name: str) -> float | None:
    """Return the share of the letters that are of a script; None without letters."""
    letters, script_letters = _letters(), _letters(name)
    count = sum(1 for _ in letters.finditer(text))
    return sum(1 for _ in script_letters.finditer(text)) / count if count else None


@cache
def _letters(name: str = "") -> Any:
    import regex

    return regex.compile(rf"(?V1)[\p{{L}}&&[{SCRIPTS[name]}]]" if name else r"\p{L}")


@register_kind("script", "the script of most letters", "script:cyrillic")
def script(argument: str) -> Script:
    return Script(argument.lower())


@requirement
class Language:
    """The text is in a language, given by its ISO 639-1 code. It is guessed: short texts may be
    misjudged.
    """

    code: str

    def __post_init__(self) -> None:
        known = {*_detectable_codes(), *OWN_SCRIPT}
        if self.code not in known:
            more = (
                ""
                if _detectable_codes()
                else "; install redraft[language] for languages that share a script"
            )
            raise ConfigError(
                f"unknown language {self.code[:50]!r}; known: {', '.join(sorted(known))}{more}"
            )

    @property
    def spec(self) -> str:
        return f"language:{self.code}"

    @property
    def demand(self) -> str:
        return f"written in the language {self.code!r}"

    def check(self, text: str) -> Check:
        prose = _prose(text)[:MAX_DETECTION_CHARS]
        if not any(map(str.isalpha, prose)):
            return Check(ok=False, measurement="no letters")
        if self.code not in _detectable_codes():
            return Script(OWN_SCRIPT[self.code]).check(text)
        code = _detect_language(prose)
        return Check(
            code == self.code,
            f"the language looks like {code!r}" if code else "the language is not recognised",
        )

    editable: ClassVar[bool] = False
    needs_thread: ClassVar[bool] = True  # for the detection, which takes milliseconds

    def repairs(self, text: str) -> Iterator[Edit]:
        del text
        return iter(())


@cache
def _detector_factory() -> Any:
    """Return a factory of langdetect with a state of its own; None if it is not installed."""
    try:
        module: Any = import_module("langdetect.detector_factory")
    except ImportError:
        return None
    factory = module.DetectorFactory()
    factory.load_profile(module.PROFILES_DIRECTORY)
    return factory


@cache
def _detectable_codes() -> frozenset[str]:
    """Return the codes that can be guessed; Chinese is one language here, whatever its script."""
    return (
        frozenset(code.partition("-")[0] for code in _detector_factory().get_lang_list())
        if _detector_factory()
        else frozenset()
    )


def _detect_language(text: str) -> str | None:
    """Return the code of the likeliest language; None if the text gives no hint."""
    failed = import_module("langdetect.lang_detect_exception").LangDetectException
    detector = _detector_factory().create()
    detector.seed = 0  # it samples at random: with a seed the same text always gets the same answer
    detector.append(text)
    try:
        return str(detector.detect()).partition("-")[0]
    except failed:
        return None


@register_kind("language", "the language, by its two-letter code", "language:ko")
def language_requirement(argument: str) -> Language:
    return Language(argument.lower())
