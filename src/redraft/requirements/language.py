"""The script and the language of a text.

A script is determined letter by letter. A language is guessed by langdetect (the extra `language`;
offline), always with the same seed; without it only languages with a script of their own can be
recognised. Neither can be repaired without a model.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any, Self

from ..base.checks import closest_names
from ..errors import ConfigError
from ..protocols import Check
from . import text_spans as texts
from .spec import TextRequirement, requirement

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


@requirement("script", "the script of most letters", "script:cyrillic")
class Script(TextRequirement):
    """At least half of the letters outside code and URLs are of this script."""

    editable = False

    @classmethod
    def parse(cls, argument: str) -> Self:
        name = argument.lower()
        if name not in SCRIPTS:
            near = closest_names(name, SCRIPTS)
            hint = f"did you mean {' or '.join(near)}? " if near else ""
            raise ConfigError(
                f"unknown script {name[:50]!r}: {hint}the scripts are {', '.join(SCRIPTS)}"
            )
        return cls(name)

    @property
    def demand(self) -> str:
        return f"written in {self.text} script"

    def measure(self, text: str) -> Check:
        share = script_share(_prose(text), self.text)
        if share is None:
            return Check(ok=False, measurement="no letters")
        return Check(share >= MIN_SHARE, f"{share:.0%} of the letters are {self.text}", share)


def _prose(text: str) -> str:
    """Return the text without code and URLs; the whole text if nothing else has a letter."""
    gaps = texts.gaps_between(text, texts.protected_spans(text))
    prose = " ".join(text[start:end] for start, end in gaps)
    return prose if any(map(str.isalpha, prose)) else text


def script_share(text: str, name: str) -> float | None:
    """Return the share of the letters that are of a script; None without letters."""
    count = len(_letters().findall(text))
    return len(_letters(name).findall(text)) / count if count else None


@cache
def _letters(name: str = "") -> Any:
    import regex

    return regex.compile(rf"(?V1)[\p{{L}}&&[{SCRIPTS[name]}]]" if name else r"\p{L}")


@requirement("language", "the language, by its two-letter code", "language:ko")
class Language(TextRequirement):
    """The text is in a language, given by its ISO 639-1 code. It is guessed: short texts may be
    misjudged.
    """

    editable = False
    needs_thread = True  # for the detection, which takes milliseconds

    @classmethod
    def parse(cls, argument: str) -> Self:
        code = argument.lower()
        known = {*_detectable_codes(), *OWN_SCRIPT}
        if code not in known:
            more = (
                ""
                if _detectable_codes()
                else "; install redraft[language] for languages that share a script"
            )
            raise ConfigError(
                f"unknown language {code[:50]!r}; known: {', '.join(sorted(known))}{more}"
            )
        return cls(code)

    @property
    def demand(self) -> str:
        return f"written in the language {self.text!r}"

    def measure(self, text: str) -> Check:
        prose = _prose(text)[:MAX_DETECTION_CHARS]
        if not any(map(str.isalpha, prose)):
            return Check(ok=False, measurement="no letters")
        if self.text not in _detectable_codes():
            return Script(OWN_SCRIPT[self.text]).measure(text)
        code = _detect_language(prose)
        return Check(
            code == self.text,
            f"the language looks like {code!r}" if code else "the language is not recognised",
        )


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
