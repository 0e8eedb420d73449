"""The final answer of a text as mathematics, compared with the reference: 1/2 is 0.5.

What is compared as mathematics is compared in another process (`math_worker`), which is killed when it takes too long.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ...core.records import Candidate, Feedback, Task
from ...own_code import fingerprint_name
from ...protocols import JudgeClient
from .answers import boxed_answers, choices, formulas, marked_answers, numbers
from .arguments import check_number
from .compute_limits import compute_with_limit
from .math_pool import equal_in_worker
from .views import binary_feedback, preview, reference_of

MAX_EXPRESSION_CHARS = 400  # characters of an expression; what is longer is compared as text only

_LETTER = re.compile(r"\W*([A-Ja-j])\W*")
_COMMAND = r"\\(?:text|mathrm|textbf|mbox|operatorname|begin|end)\s?\{[^{}]{0,100}\}|\\[A-Za-z]+"
_LETTER_RUN = re.compile(rf"{_COMMAND}|(?P<letters>(?<=\^\d)[A-Za-z](?![A-Za-z])|[A-Za-z]{{2,}})")
_FUNCTIONS = {"sqrt", "sin", "cos", "tan", "cot", "sec", "csc", "log", "ln", "exp", "arcsin", "arccos", "arctan", "pi"}
_EQUATION = re.compile(r"[^\s=<>][^=<>\n]{0,80}=\s?([^=\n]{1,80}?)(?=[.;,]?\s*(?:\n|\Z))")
_SIGN = r"[-+*/^=\u2212\u00b7\u00d7]"
_AFTER_SIGN = re.compile(rf"(?<={_SIGN})|(?<={_SIGN}\s)|(?<=\d)|(?<=\\cdot\s)|(?<=\\times\s)")
_BEFORE_SIGN = re.compile(rf"{_SIGN}|\d|\s{_SIGN}\s")
_AFTER_BRACKET, _BEFORE_BRACKET = re.compile(r"(?<=[()\[\]{}|])"), re.compile(r"[()\[\]{}|]")
_MATHEMATICAL = re.compile(rf"{_SIGN}|[\d\\]")
_COUNTED_UNIT = re.compile(r"(?<=\d\s)(?![A-Za-z]{2,3}\s\+)")
_LIKE_VARIABLES = re.compile(r"[a-z]{1,2}|[abc]{3}|[^aeiou]{3}")
_WORDS = re.compile(
    "if|is|no|of|or|to|all|and|any|are|but|can|det|few|for|gcd|had|has|her|him|his|how|its|lcm|let|max|may|min|mod|new|not|now|off|one|our|out"
    "|per|she|six|ten|the|too|two|use|was|who|why|yes|yet|you"
)
_PARTICLES = re.compile("ah|am|an|as|at|be|by|do|go|he|hi|in|it|me|my|oh|ok|on|so|up|us|we")  # beside a sign, at is a times t


@fingerprint_name("math")
@dataclass(frozen=True)
class Math:
    r"""1 if the answer equals the reference as mathematics, else 0; None if the comparison takes too long.

    The answer is what the text marks (\boxed{...}, "####", "the final answer is", "the answer is"), else the text itself
    where it is one short expression, else its last formula, equation or number. Several different marked answers are
    compared as all of them together ("2, 3"), so naming every possibility wins nothing. A reference that is a letter from
    A to J is a choice. Compared by math-verify and sympy, from LaTeX or plain notation; nothing is ever evaluated as code.
    `seconds` (0.1 to 60) bounds one comparison. Reads `reference`; needs the extra `math`.
    """

    seconds: float = 5.0
    name: str = "math"

    model_free = True
    needs = ("reference",)

    def __post_init__(self) -> None:
        check_number("seconds", self.seconds, 0.1, 60)

    async def grade(self, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback:
        """Return 1, 0 or None."""
        wanted = await compute_with_limit(final_answer, reference_of(task, self.name), name=self.name)
        if letter := _LETTER.fullmatch(wanted):
            chosen = await compute_with_limit(_named_choices, candidate.text, wanted, letter[1].upper(), name=self.name)
            return _choice_feedback(chosen, letter[1].upper())
        found = await compute_with_limit(final_answer, candidate.text, name=self.name)
        if not found:
            return binary_feedback(ok=False, reason="there is no final answer in the text", action=STATE_ANSWER_ACTION)
        equal = await self._equals(found, wanted)
        if equal is None:
            return Feedback(None, f"whether {preview(found)} is right could not be found out within {self.seconds:g} s")
        return binary_feedback(
            equal, f"the final answer is {preview(found)}, which is {'right' if equal else 'wrong'}", CHECK_ANSWER_ACTION
        )

    async def _equals(self, answer: str, expected: str) -> bool | None:
        """Return whether two expressions are equal; None if the comparison takes too long."""
        equal = await compute_with_limit(equal_as_text_or_number, answer, expected, name=self.name)
        if equal is not None:
            return bool(equal)
        return await equal_in_worker(_brace_products(_strip_unit(answer, expected)), _brace_products(expected), self.seconds)


STATE_ANSWER_ACTION = "End with one line: The final answer is \\boxed{...}."
CHECK_ANSWER_ACTION = "Work it out again, step by step, and check the result."


def _named_choices(text: str, expected: str, letter: str) -> list[str]:
    """Return the choices that a text names, if the reference is a letter of a choice."""
    found = choices(text) or {m[1].upper() for m in [_LETTER.fullmatch(text.strip())] if m}
    if not found and (marks := boxed_answers(text) or marked_answers(text)) and marks == [expected]:
        found = {letter}
    return sorted(found)


def _choice_feedback(letters: list[str], letter: str) -> Feedback:
    if len(letters) != 1:
        what = "several choices are named" if letters else "no choice is named"
        return binary_feedback(ok=False, reason=what, action='State one choice: "The answer is X."')
    ok = letters == [letter]
    return binary_feedback(ok, f"the choice is {letters[0]}, which is {'right' if ok else 'wrong'}", CHECK_ANSWER_ACTION)


def final_answer(text: str) -> str:
    """Return the final expression of a text; "" if there is none."""
    if marks := marked_answers(text):
        return ", ".join(marks)
    bare = text.strip()
    if len(bare) <= MAX_EXPRESSION_CHARS and "\n" not in bare and not _has_prose(bare):
        return _right_side(bare.strip("$"))
    tail = text[-20_000:]
    if found := formulas(tail):
        return _right_side(found[-1])
    if found := [m[1] for m in _EQUATION.finditer(tail)]:
        return found[-1].strip()
    values = numbers(tail)
    return str(values[-1][0]) if values else (bare if len(bare) <= MAX_EXPRESSION_CHARS else "")


def _right_side(formula: str) -> str:
    """Return the last side of a chain of equations, or of one in a single unknown; other equations are unchanged."""
    left, equals_, right = formula.rpartition("=")
    return right.strip() if equals_ and not re.search(r"[<>!]$|\\[gln]eq?$", left) and _is_unknown_name(left) else formula.strip()


def _is_unknown_name(left: str) -> bool:
    return "=" in left or re.fullmatch(r"\s*\\?\w{1,20}(?:\(\w\))?\s*", left) is not None


def _has_prose(text: str) -> bool:
    """Return whether it contains words that are not mathematics."""
    return any(run["letters"] and run[0] not in _FUNCTIONS and not _is_product(run) for run in _LETTER_RUN.finditer(text))


def _is_product(run: re.Match[str]) -> bool:
    """Return whether letters are adjacent variables ("2ab"): at most three, next to a sign, or not a word."""
    letters, text = run[0].casefold(), run.string
    if len(letters) > 3 or _WORDS.fullmatch(letters) or _COUNTED_UNIT.match(text, run.start()):
        return False
    if _AFTER_SIGN.match(text, run.start()) or _BEFORE_SIGN.match(text, run.end()):
        return True
    return not _PARTICLES.fullmatch(letters) and bool(_LIKE_VARIABLES.fullmatch(letters) or _is_beside_bracket(run))


def _is_beside_bracket(run: re.Match[str]) -> bool:
    """Return whether letters are next to a bracket of a formula."""
    beside = _AFTER_BRACKET.match(run.string, run.start()) or _BEFORE_BRACKET.match(run.string, run.end())
    return bool(beside and _MATHEMATICAL.search(run.string))


def _brace_products(formula: str) -> str:
    """Return the formula with products of letters in braces, so that none is read as a unit."""
    return _LETTER_RUN.sub(lambda run: _brace_letters(run[0]) if run["letters"] and run[0] not in _FUNCTIONS else run[0], formula)


def _brace_letters(letters: str) -> str:
    return "".join(f"{{{letter}}}" for letter in letters)


def equal_as_text_or_number(answer: str, expected: str) -> bool | None:
    """Return whether two expressions are equal as text or as numbers; None if deciding that takes algebra."""
    if _normalise_expression(answer) == _normalise_expression(expected):
        return True
    answer = _strip_unit(answer, expected)
    if max(len(answer), len(expected)) > MAX_EXPRESSION_CHARS or _has_prose(answer) or _has_prose(expected):
        return False
    a, b = (_as_number(text) for text in (answer, expected))
    if a is not None and b is not None:
        return bool(a == b) or (abs(a - b) <= abs(b) / 10**6 and ("." in answer or "." in expected))
    return None


def _strip_unit(answer: str, expected: str) -> str:
    """Return the text without words after a number ("12 apples"), if the reference is a number."""
    with_unit = re.fullmatch(
        r"([$\u20ac\u00a3]?[-+\u2212]?[\d.,]+)\s?(?![abnxyz]{1,3}\Z)(?:[A-Za-z\u00b0]{1,20}[ .]?){1,4}", answer
    )
    return with_unit[1] if with_unit and _as_number(expected) is not None else answer


def _normalise_expression(text: str) -> str:
    return re.sub(r"\\[,;!: ]|\\(?:left|right|text|mathrm|displaystyle)\b|[\s{}$]", "", text).casefold()


def _as_number(text: str) -> Any:
    values = numbers(text)
    bare = re.sub(r"[\s$\\]", "", text)
    return values[0][0] if len(values) == 1 and re.fullmatch(r"[-+\u2212]?[\d.,]+", bare) else None
