"""Texts that are no answer though a judge may take them for one: nothing, punctuation, a bare opener.

Openers such as "Thought process:" or "Solution" were found to be judged correct in up to 80-90 % of cases by LLM judges
(Zhao et al. 2025, "One Token to Fool LLM-as-a-Judge", arXiv:2507.08794). This looks at form alone: it never takes a
short real answer ("Yes.", "42", "B") for none, and does not know whether an answer is right.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from ...contracts import Ask
from ...core.records import Candidate, Feedback, Task
from .views import verdict

LONGEST = 400  # characters; what is longer is more than openers

OPENERS = (
    "thought process",
    "thinking process",
    "thoughts",
    "thinking",
    "reasoning",
    "reasoning process",
    "analysis",
    "explanation",
    "solution",
    "the solution",
    "answer",
    "the answer",
    "the answer is",
    "final answer",
    "the final answer",
    "the final answer is",
    "my answer",
    "response",
    "result",
    "output",
    "conclusion",
    "step by step solution",
    "lets think step by step",
    "let us think step by step",
    "lets solve this problem step by step",
    "let us solve this problem step by step",
    "lets solve this step by step",
    "lets work through this step by step",
    "lets work this out step by step",
    "lets break this down",
    "lets break this down step by step",
    "lets begin",
    "lets start",
    "here is the solution",
    "here is my answer",
    "here is the answer",
    "heres the solution",
    "heres the answer",
    "to solve this problem",
    "we need to solve this problem step by step",
    # Chinese, Japanese, Korean
    "解",
    "解答",
    "解析",
    "答案",
    "答",
    "思考过程",
    "思考過程",
    "解题过程",
    "让我们一步一步来解决这个问题",
    "让我们一步步解决这个问题",
    "让我们一步一步地思考",
    "かいせつ",
    "解説",
    "回答",
    "思考プロセス",
    "ステップバイステップで考えましょう",
    "この問題を段階的に解いてみましょう",
    "풀이",
    "해설",
    "해답",
    "사고 과정",
    "이 문제를 단계별로 해결해 봅시다",
    # Spanish, French, German, Portuguese, Italian, Russian
    "respuesta",
    "solucion",
    "proceso de pensamiento",
    "resolvamos este problema paso a paso",
    "reponse",
    "la solution",
    "processus de reflexion",
    "processus de pensee",
    "resolvons ce probleme etape par etape",
    "antwort",
    "losung",
    "gedankengang",
    "denkprozess",
    "losen wir dieses problem schritt fur schritt",
    "lassen sie uns dieses problem schritt fur schritt losen",
    "resposta",
    "solucao",
    "processo de pensamento",
    "vamos resolver este problema passo a passo",
    "risposta",
    "soluzione",
    "processo di pensiero",
    "risolviamo questo problema passo dopo passo",
    "ответ",
    "решение",
    "ход мыслеи",
    "процесс мышления",
    "давайте решим эту задачу шаг за шагом",
)
ALONE = {"solution", "解", "かいせつ", "respuesta"}  # any other single word is an opener only before a colon

_APOSTROPHE = re.compile(r"[\u2019'`]")
_TAG = re.compile(r"</?(?:think|thinking|answer|solution|response|result|output)\s*/?>|<!--[^<>]{0,400}-->", re.IGNORECASE)
_WORDS = re.compile(r"[^\W_]+")


def is_no_answer(text: str) -> str | None:
    """Why a text is no answer, in words; None where it may be one."""
    bare = _TAG.sub(" ", text) if len(text) <= LONGEST else text
    if not bare.strip():
        return "it is empty"
    if not any(_says(c) for c in bare):
        return "it holds nothing but punctuation"
    if len(bare) <= LONGEST and _only_openers(_plain(bare), colon=":" in bare or "：" in bare):
        return "it opens an answer and gives none"
    return None


def _says(char: str) -> bool:
    """Letters, digits and symbols (an emoji, a euro sign, a plus) may be an answer; marks, spaces and controls are none."""
    return unicodedata.category(char)[0] in "LNS" and char not in "`^|~"


def _plain(text: str) -> str:
    """Words in small letters without accents."""
    spread = unicodedata.normalize("NFD", _APOSTROPHE.sub("", text).casefold())
    bare = "".join(c for c in spread if not unicodedata.combining(c))
    return " ".join(_WORDS.findall(unicodedata.normalize("NFC", bare)))


_KEYS = frozenset(map(_plain, OPENERS))
_KEYS_ALONE = frozenset(map(_plain, ALONE))
_MOST_WORDS = max(len(key.split()) for key in _KEYS)


def _only_openers(text: str, *, colon: bool) -> bool:
    """Whether the words are openers one after the other, and nothing else."""
    words = text.split()
    if not words:
        return False
    if len(words) == 1 and not colon:
        return text in _KEYS_ALONE
    reached = {0}
    for start in range(len(words)):
        if start in reached:
            reached |= {end for end in range(start + 1, start + 1 + _MOST_WORDS) if " ".join(words[start:end]) in _KEYS}
    return len(words) in reached


@dataclass(frozen=True)
class Answered:
    """0 for a text that is no answer (see `is_no_answer`), else 1. Says nothing of whether the answer is right."""

    name: str = "answered"

    free = True

    async def grade(self, task: Task, candidate: Candidate, ask: Ask) -> Feedback:
        """1 or 0."""
        why = is_no_answer(candidate.text)
        return verdict(why is None, f"no answer: {why}" if why else "there is an answer", "Give an answer.")
