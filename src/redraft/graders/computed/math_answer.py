"""The final answer of a text as mathematics, compared with the reference: 1/2 is 0.5.

Expressions are compared in a worker process (`math_worker`), since sympy cannot be stopped
otherwise. A worker loads sympy once (about a second) and answers many questions.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...base import checks
from ...base.checks import check_extra
from ...base.own_code import fingerprint_name
from ...errors import ComputeLimitError
from ...loop.records import Candidate, Feedback
from ...loop.task import Task
from ...protocols import JudgeClient
from ...workers.pool import run, run_on_texts
from .answers import (
    choices,
    formulas,
    marked_answers,
    numbers,
    standing_text,
    without_style,
)
from .base import binary_feedback, preview, reference_of, with_composed_texts
from .math_worker import equal_as_mathematics

MAX_EXPRESSION_CHARS = 400  # a longer expression is compared as text only
MAX_SPELLINGS = 5  # marked answers of a text that are compared each

_LETTER = re.compile(r"\W*([A-Ja-j])\W*")
_COMMAND = r"\\(?:text|mathrm|textbf|mbox|operatorname|begin|end)\s?\{[^{}]{0,100}\}|\\[A-Za-z]+"
_LETTER_RUN = re.compile(rf"{_COMMAND}|(?P<letters>(?<=\^\d)[A-Za-z](?![A-Za-z])|[A-Za-z]{{2,}})")
_FUNCTIONS = {
    "sqrt",
    "sin",
    "cos",
    "tan",
    "cot",
    "sec",
    "csc",
    "log",
    "ln",
    "exp",
    "arcsin",
    "arccos",
    "arctan",
    "pi",
}
_EQUATION = re.compile(r"[^\s=<>][^=<>\n]{0,80}=\s?([^=\n]{1,80}?)(?=[.;,]?\s*(?:\n|\Z))")
_SIGN = r"[-+*/^=\u2212\u00b7\u00d7]"
_AFTER_SIGN = re.compile(rf"(?<={_SIGN})|(?<={_SIGN}\s)|(?<=\d)|(?<=\\cdot\s)|(?<=\\times\s)")
_BEFORE_SIGN = re.compile(rf"{_SIGN}|\d|\s{_SIGN}\s")
_AFTER_BRACKET, _BEFORE_BRACKET = re.compile(r"(?<=[()\[\]{}|])"), re.compile(r"[()\[\]{}|]")
_MATHEMATICAL = re.compile(rf"{_SIGN}|[\d\\]")
_COUNTED_UNIT = re.compile(r"(?<=\d\s)(?![A-Za-z]{2,3}\s\+)")
_LIKE_VARIABLES = re.compile(r"[a-z]{1,2}|[abc]{3}|[^aeiou]{3}")
_WORDS = re.compile(
    "if|is|no|of|or|to|all|and|any|are|but|can|det|few|for|gcd|had|has|her|him|his|how|its|lcm|let|max|may|min|mod|new|not|now|off|one|our|out|per|she|six|ten|the|too|two|use|was|who|why|yes|yet|you"
)
# beside a sign, at is a times t
_PARTICLES = re.compile("ah|am|an|as|at|be|by|do|go|he|hi|in|it|me|my|oh|ok|on|so|up|us|we")


@fingerprint_name("math")
@dataclass(frozen=True)
class Math:
    r"""1 if the answer equals the reference as mathematics, else 0; None if the comparison takes
    too long.

    The answer is what the text marks (\boxed{...}, "####", "the final answer is", "the answer is");
    else the text itself if it is one short expression; else its last formula, equation or number.
    Several different marked answers are compared together, as a list ("2, 3"), so an answer that
    names every possibility is wrong, and one that is right in several spellings (1/2 and 0.5) is
    right; of several with a withdrawal between them ("wait", "no,"), the last counts (see
    `answers.standing_text`). A reference that is a letter from A to J is a choice. math-verify and
    sympy compare LaTeX or plain notation; nothing is ever evaluated as code. `seconds` (0.1 to 60)
    limits one comparison. Reads `reference`; needs the extra `math`.
    """

    seconds: float = 5.0
    name: str = "math"

    model_free = True
    needs = ("reference",)

    def __post_init__(self) -> None:
        checks.number("seconds", self.seconds, 0.1, 60)

    async def grade(self, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback:
        """Return 1, 0 or None."""
        task, candidate = await with_composed_texts(task, candidate)
        expected = ", ".join(await self._run(final_answers, reference_of(task, self.name)))
        if letter := _LETTER.fullmatch(without_style(expected)):
            letters = await self._run(_named_choices, candidate.text, expected, letter[1].upper())
            return _choice_feedback(letters, letter[1].upper())
        answers = await self._run(final_answers, candidate.text)
        answer = ", ".join(answers)
        if not answer:
            return binary_feedback(
                ok=False, reason="there is no final answer in the text", action=STATE_ANSWER_ACTION
            )
        equal = await self._is_equal(answer, expected)
        # one answer in several spellings: 1/2 and 0.5
        if equal is False and 1 < len(answers) <= MAX_SPELLINGS:
            equals = [await self._is_equal(each, expected) for each in answers]
            equal = next((found for found in (False, None) if found in equals), True)
        if equal is None:
            return Feedback(
                None,
                f"whether {preview(answer)} is right could not be found out within "
                f"{self.seconds:g} s",
            )
        return binary_feedback(
            equal,
            f"the final answer is {preview(answer)}, which is {'right' if equal else 'wrong'}",
            CHECK_ANSWER_ACTION,
        )

    async def _is_equal(self, answer: str, expected: str) -> bool | None:
        """Return whether two expressions are equal; None if that takes too long. Raises
        ConfigError.
        """
        equal: bool | None = await self._run(equal_as_text_or_number, answer, expected)
        if equal is not None:
            return equal
        self.check_environment()
        bare = _brace_products(_strip_unit(answer, expected))
        try:
            equal = await run(
                equal_as_mathematics,
                bare,
                _brace_products(expected),
                failure_text="the expressions could not be compared",
                text_length=len(bare),
                seconds=self.seconds,
            )
        except ComputeLimitError:
            return None
        return equal

    async def _run(self, function: Callable[..., Any], *texts: str) -> Any:
        return await run_on_texts(
            function, *texts, failure_text=f"{self.name} could not be computed"
        )

    def check_environment(self) -> None:
        """Raise ConfigError if the extra is missing."""
        check_extra("math", "math needs", "math_verify")


STATE_ANSWER_ACTION = "End with one line: The final answer is \\boxed{...}."
CHECK_ANSWER_ACTION = "Work it out again, step by step, and check the result."


def _named_choices(text: str, expected: str, letter: str) -> list[str]:
    """Return the choices that a text names, if the reference is a letter of a choice."""
    letters = choices(text)
    if not letters and (whole := _LETTER.fullmatch(text.strip())):
        letters = {whole[1].upper()}
    if not letters and marked_answers(standing_text(text)) == [expected]:
        letters = {letter}
    return sorted(letters)


def _choice_feedback(letters: list[str], letter: str) -> Feedback:
    if len(letters) != 1:
        reason = "several choices are named" if letters else "no choice is named"
        return binary_feedback(
            ok=False, reason=reason, action='State one choice: "The answer is X."'
        )
    ok = letters == [letter]
    return binary_feedback(
        ok,
        f"the choice is {letters[0]}, which is {'right' if ok else 'wrong'}",
        CHECK_ANSWER_ACTION,
    )


def final_answers(text: str) -> list[str]:
    """Return the different answers that a text marks, else the one final expression."""
    text = standing_text(text)
    return marked_answers(text) or [_last_expression(text)]


def _last_expression(text: str) -> str:
    bare = text.strip()
    if len(bare) <= MAX_EXPRESSION_CHARS and "\n" not in bare and not _has_prose(bare):
        return _right_side(bare.strip("$"))
    tail = text[-20_000:]
    if in_math := formulas(tail):
        return _right_side(in_math[-1])
    if right_sides := [m[1] for m in _EQUATION.finditer(tail)]:
        return right_sides[-1].strip()
    values = numbers(tail)
    return str(values[-1][0]) if values else (bare if len(bare) <= MAX_EXPRESSION_CHARS else "")


def _right_side(formula: str) -> str:
    """Return the last side of a chain of equations, or of one in a single unknown; other equations
    are unchanged.
    """
    left, equals_, right = formula.rpartition("=")
    return (
        right.strip()
        if equals_ and not re.search(r"[<>!]$|\\[gln]eq?$", left) and _is_unknown_name(left)
        else formula.strip()
    )


def _is_unknown_name(left: str) -> bool:
    return "=" in left or re.fullmatch(r"\s*\\?\w{1,20}(?:\(\w\))?\s*", left) is not None


def _has_prose(text: str) -> bool:
    """Return whether it contains words that are not mathematics."""
    return any(
        run["letters"] and run[0] not in _FUNCTIONS and not _is_product(run)
        for run in _LETTER_RUN.finditer(text)
    )


def _is_product(run: re.Match[str]) -> bool:
    """Return whether letters are adjacent variables ("2ab"): at most three, next to a sign, or not
    a word.
    """
    letters, text = run[0].casefold(), run.string
    if len(letters) > 3 or _WORDS.fullmatch(letters) or _COUNTED_UNIT.match(text, run.start()):
        return False
    if _AFTER_SIGN.match(text, run.start()) or _BEFORE_SIGN.match(text, run.end()):
        return True
    beside_bracket = _AFTER_BRACKET.match(text, run.start()) or _BEFORE_BRACKET.match(
        text, run.end()
    )
    in_formula = beside_bracket and _MATHEMATICAL.search(text)
    return not _PARTICLES.fullmatch(letters) and bool(
        _LIKE_VARIABLES.fullmatch(letters) or in_formula
    )


def _brace_products(formula: str) -> str:
    """Return the formula with products of letters in braces, so that none is read as a unit."""

    def with_braces(run: re.Match[str]) -> str:
        return (
            "".join(f"{{{letter}}}" for letter in run[0])
            if run["letters"] and run[0] not in _FUNCTIONS
            else run[0]
        )

    return _LETTER_RUN.sub(with_braces, formula)


def equal_as_text_or_number(answer: str, expected: str) -> bool | None:
    """Return whether two expressions are equal as text or as numbers; None if deciding that takes
    algebra.
    """
    if _normalise_expression(answer) == _normalise_expression(expected):
        return True
    answer = _strip_unit(answer, expected)
    if (
        max(len(answer), len(expected)) > MAX_EXPRESSION_CHARS
        or _has_prose(answer)
        or _has_prose(expected)
    ):
        return False
    a, b = _as_number(answer), _as_number(expected)
    if a is not None and b is not None:
        return bool(a == b) or (abs(a - b) <= abs(b) / 10**6 and ("." in answer or "." in expected))
    return None


def _strip_unit(answer: str, expected: str) -> str:
    """Return the text without words after a number ("12 apples"), if the reference is a number."""
    with_unit = re.fullmatch(
        r"([$\u20ac\u00a3]?[-+\u2212]?[\d.,]+)\s?(?![abnxyz]{1,3}\Z)(?:[A-Za-z\u00b0]{1,20}[ .]?){1,4}",  # noqa: E501
        answer,
    )
    return with_unit[1] if with_unit and _as_number(expected) is not None else answer


def _normalise_expression(text: str) -> str:
    return re.sub(
        r"\\[,;!: ]|\\(?:left|right|text|mathrm|displaystyle)\b|[\s{}$]", "", text
    ).casefold()


def _as_number(text: str) -> Any:
    values = numbers(text)
    bare = re.sub(r"[\s$\\]", "", text)
    return values[0][0] if len(values) == 1 and re.fullmatch(r"[-+\u2212]?[\d.,]+", bare) else None
