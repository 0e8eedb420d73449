"""The mathematical answer that a text comes to, against the reference: 1/2 is 0.5.

What is compared as mathematics is compared in another process (`math_worker`), which is killed when it takes too long.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ...core.records import Candidate, Feedback, Task
from ...protocols import Ask
from .answers import boxed, choices, formulas, marked, numbers
from .arguments import check_number
from .compute_limits import compute
from .math_pool import same
from .views import reference_of, shown, verdict

LONGEST = 400  # characters of an expression; what is longer is compared as text only

_LETTER = re.compile(r"\W*([A-Ja-j])\W*")
_COMMAND = r"\\(?:text|mathrm|textbf|mbox|operatorname|begin|end)\s?\{[^{}]{0,100}\}|\\[A-Za-z]+"
_RUN = re.compile(rf"{_COMMAND}|(?P<letters>(?<=\^\d)[A-Za-z](?![A-Za-z])|[A-Za-z]{{2,}})")
_FUNCTIONS = {"sqrt", "sin", "cos", "tan", "cot", "sec", "csc", "log", "ln", "exp", "arcsin", "arccos", "arctan", "pi"}
_EQUATION = re.compile(r"[^\s=<>][^=<>\n]{0,80}=\s?([^=\n]{1,80}?)(?=[.;,]?\s*(?:\n|\Z))")
_SIGN = r"[-+*/^=\u2212\u00b7\u00d7]"
_AFTER_SIGN = re.compile(rf"(?<={_SIGN})|(?<={_SIGN}\s)|(?<=\d)|(?<=\\cdot\s)|(?<=\\times\s)")
_BEFORE_SIGN = re.compile(rf"{_SIGN}|\d|\s{_SIGN}\s")
_AFTER_BRACKET, _BEFORE_BRACKET = re.compile(r"(?<=[()\[\]{}|])"), re.compile(r"[()\[\]{}|]")
_MATHEMATICAL = re.compile(rf"{_SIGN}|[\d\\]")
_COUNTED = re.compile(r"(?<=\d\s)(?![A-Za-z]{2,3}\s\+)")
_LIKE_VARIABLES = re.compile(r"[a-z]{1,2}|[abc]{3}|[^aeiou]{3}")
_WORDS = re.compile(
    "if|is|no|of|or|to|all|and|any|are|but|can|det|few|for|gcd|had|has|her|him|his|how|its|lcm|let|max|may|min|mod|new|not|now|off|one|our|out"
    "|per|she|six|ten|the|too|two|use|was|who|why|yes|yet|you"
)
_PARTICLES = re.compile("ah|am|an|as|at|be|by|do|go|he|hi|in|it|me|my|oh|ok|on|so|up|us|we")  # beside a sign, at is a times t


@dataclass(frozen=True)
class Math:
    r"""1 when the answer equals the reference as mathematics, else 0; None when that could not be found out in time.

    The answer is what the text marks (\boxed{...}, "####", "the final answer is", "the answer is"), else the text itself
    where it is one short expression, else its last formula, equation or number. Several different marked answers are
    compared as all of them together ("2, 3"), so naming every possibility wins nothing. A reference that is a letter from
    A to J is a choice. Compared by math-verify and sympy, from LaTeX or plain notation; nothing is ever evaluated as code.
    `seconds` (0.1 to 60) bounds one comparison. Reads `reference`; needs the extra `math`.
    """

    seconds: float = 5.0
    name: str = "math"

    free = True
    needs = ("reference",)

    def __post_init__(self) -> None:
        check_number("seconds", self.seconds, 0.1, 60)

    async def grade(self, task: Task, candidate: Candidate, ask: Ask) -> Feedback:
        """1, 0 or None."""
        wanted = await compute(final_answer, reference_of(task, self.name), what=self.name)
        if letter := _LETTER.fullmatch(wanted):
            chosen = await compute(_choices, candidate.text, wanted, letter[1].upper(), what=self.name)
            return _choice_verdict(chosen, letter[1].upper())
        found = await compute(final_answer, candidate.text, what=self.name)
        if not found:
            return verdict(ok=False, reason="there is no final answer in the text", action=STATE)
        equal = await self._equals(found, wanted)
        if equal is None:
            return Feedback(None, f"whether {shown(found)} is right could not be found out within {self.seconds:g} s")
        return verdict(equal, f"the final answer is {shown(found)}, which is {'right' if equal else 'wrong'}", WRONG)

    async def _equals(self, found: str, wanted: str) -> bool | None:
        """Whether two expressions are equal; None when it could not be found out in time."""
        equal = await compute(equals_plainly, found, wanted, what=self.name)
        if equal is not None:
            return bool(equal)
        return await same(_apart(_unit_gone(found, wanted)), _apart(wanted), self.seconds)


STATE = "End with one line: The final answer is \\boxed{...}."
WRONG = "Work it out again, step by step, and check the result."


def _choices(text: str, wanted: str, letter: str) -> list[str]:
    """The choices that a text names, where the reference `wanted` is the choice of a letter."""
    found = choices(text) or {m[1].upper() for m in [_LETTER.fullmatch(text.strip())] if m}
    if not found and (marks := boxed(text) or marked(text)) and marks == [wanted]:
        found = {letter}
    return sorted(found)


def _choice_verdict(found: list[str], letter: str) -> Feedback:
    if len(found) != 1:
        what = "several choices are named" if found else "no choice is named"
        return verdict(ok=False, reason=what, action='State one choice: "The answer is X."')
    ok = found == [letter]
    return verdict(ok, f"the choice is {found[0]}, which is {'right' if ok else 'wrong'}", WRONG)


def final_answer(text: str) -> str:
    """The expression a text comes to; "" where there is none."""
    if marks := marked(text):
        return ", ".join(marks)
    bare = text.strip()
    if len(bare) <= LONGEST and "\n" not in bare and not _prose(bare):
        return _right_side(bare.strip("$"))
    tail = text[-20_000:]
    if found := formulas(tail):
        return _right_side(found[-1])
    if found := [m[1] for m in _EQUATION.finditer(tail)]:
        return found[-1].strip()
    values = numbers(tail)
    return str(values[-1][0]) if values else (bare if len(bare) <= LONGEST else "")


def _right_side(formula: str) -> str:
    """What an unknown or a chain of equations is equal to; an equation in several unknowns stays whole."""
    left, equals_, right = formula.rpartition("=")
    return right.strip() if equals_ and not re.search(r"[<>!]$|\\[gln]eq?$", left) and _is_name(left) else formula.strip()


def _is_name(left: str) -> bool:
    return "=" in left or re.fullmatch(r"\s*\\?\w{1,20}(?:\(\w\))?\s*", left) is not None


def _prose(text: str) -> bool:
    """Whether words stand in it that are no mathematics."""
    return any(run["letters"] and run[0] not in _FUNCTIONS and not _multiplied(run) for run in _RUN.finditer(text))


def _multiplied(run: re.Match[str]) -> bool:
    """Whether letters are variables side by side ("2ab"): at most three, beside a sign, or such as make no word."""
    letters, text = run[0].casefold(), run.string
    if len(letters) > 3 or _WORDS.fullmatch(letters) or _COUNTED.match(text, run.start()):
        return False
    if _AFTER_SIGN.match(text, run.start()) or _BEFORE_SIGN.match(text, run.end()):
        return True
    return not _PARTICLES.fullmatch(letters) and bool(_LIKE_VARIABLES.fullmatch(letters) or _bracketed(run))


def _bracketed(run: re.Match[str]) -> bool:
    """Whether letters stand at a bracket of a formula."""
    beside = _AFTER_BRACKET.match(run.string, run.start()) or _BEFORE_BRACKET.match(run.string, run.end())
    return bool(beside and _MATHEMATICAL.search(run.string))


def _apart(formula: str) -> str:
    """The formula with its products of letters in braces, so that nobody takes one for a unit."""
    return _RUN.sub(lambda run: _braced(run[0]) if run["letters"] and run[0] not in _FUNCTIONS else run[0], formula)


def _braced(letters: str) -> str:
    return "".join(f"{{{letter}}}" for letter in letters)


def equals_plainly(found: str, wanted: str) -> bool | None:
    """Whether two expressions are equal as text or as numbers; None where that takes mathematics to tell."""
    if _as_text(found) == _as_text(wanted):
        return True
    found = _unit_gone(found, wanted)
    if max(len(found), len(wanted)) > LONGEST or _prose(found) or _prose(wanted):
        return False
    a, b = (_as_number(text) for text in (found, wanted))
    if a is not None and b is not None:
        return bool(a == b) or (abs(a - b) <= abs(b) / 10**6 and ("." in found or "." in wanted))
    return None


def _unit_gone(found: str, wanted: str) -> str:
    """Without the words after a number ("12 apples") where only a number is asked for."""
    with_unit = re.fullmatch(r"([$\u20ac\u00a3]?[-+\u2212]?[\d.,]+)\s?(?![abnxyz]{1,3}\Z)(?:[A-Za-z\u00b0]{1,20}[ .]?){1,4}", found)
    return with_unit[1] if with_unit and _as_number(wanted) is not None else found


def _as_text(text: str) -> str:
    return re.sub(r"\\[,;!: ]|\\(?:left|right|text|mathrm|displaystyle)\b|[\s{}$]", "", text).casefold()


def _as_number(text: str) -> Any:
    values = numbers(text)
    bare = re.sub(r"[\s$\\]", "", text)
    return values[0][0] if len(values) == 1 and re.fullmatch(r"[-+\u2212]?[\d.,]+", bare) else None
