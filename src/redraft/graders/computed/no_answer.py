"""Texts that are no answer although judges may accept them: nothing, a full stop, or an opener such
as "Solution:" alone.

Openers such as "Thought process:" or "Solution", and single marks such as ":", were found to be
judged correct in up to 80-90% of cases by LLM judges (Zhao et al. 2025, "One Token to Fool
LLM-as-a-Judge", arXiv:2507.08794). Any other short text is an answer: "Yes.", "42", "B", "[]",
"&&", "*", an emoji. So is a text that the task lists as an option or has as its reference. Nothing
here checks whether an answer is right.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from ...base.own_code import fingerprint_name
from ...base.threads import run_in_thread_if_large
from ...loop.records import Candidate, Feedback
from ...loop.task import Task, message_text
from ...protocols import JudgeClient
from ...workers.pool import run_on_texts

MAX_CHARS = 400  # a longer text is more than an opener

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
# any other single word is an opener only before a colon
SINGLE_WORD_OPENERS = {"solution", "解", "かいせつ", "respuesta"}

PUNCTUATION_MARKS = frozenset(
    ".,:\u2026\u3002\uff0c\u3001\uff0e\uff1a\ufe13\uff61\uff64\u060c\u06d4\u0964\u0589\u1362"
)  # of any script
OPERATORS = {"::", ".."}

_APOSTROPHE = re.compile(r"[\u2019'`]")
_EMPTY = re.compile(
    r"</?(?:think|thinking|answer|solution|response|result)\s*/?>|<!--[^<>]{0,400}-->|^\s*(```|~~~)[\w+-]*\s*\1\s*$",
    re.IGNORECASE,
)
_WORDS = re.compile(r"[^\W_]+")
_COLON = re.compile("[:\uff1a]")
_SENTENCE = re.compile(r"[.?!\u3002\uff1f\uff01\n]")
_OR_WORD = re.compile(
    r"\b(?:or|oder|ou|\u0438\u043b\u0438)\b|\u6216\u8005?|\u8fd8\u662f|\u307e\u305f\u306f|[/|]",
    re.IGNORECASE,
)
_COMMA = re.compile(r"[,;:()\uff0c\u3001\uff1a]")
_BULLET = re.compile(r"^[ \t]*[-*+\u2022\u2013][ \t]+(\S.*)$", re.MULTILINE)
_LETTERED_ITEM = re.compile(r"(?:^|\s)\(?[A-Za-z0-9]{1,2}[.):][ \t]+")
_OPEN, _CLOSE = "\"'`\u201c\u2018\u201e\u00ab\u300c", "\"'`\u201c\u201d\u2019\u00bb\u300d"
# before a colon it is a JSON key
_QUOTE = re.compile(rf"[{_OPEN}]([^{_OPEN}{_CLOSE}\n]{{1,80}})[{_CLOSE}](?!\s*:)")


async def find_no_answer_reason(text: str, task: Task) -> str | None:
    """Return why a text is no answer; None if it may be one. A text that the task asks for is an
    answer, whatever its form.

    It does not block the event loop, however long the text and the task are.
    """
    if len(text) > MAX_CHARS and text[0].isalnum():  # as most answers begin
        return None
    reason = await run_in_thread_if_large(len(text), _emptiness_reason, text)
    if reason is None or _is_reference(text, task):
        return None
    prompt = "\n".join(message_text(m) for m in task.messages if m["role"] != "assistant")
    asked_for = await run_on_texts(
        _is_asked_for,
        text[: MAX_CHARS + 1],
        prompt,
        failure_text="answered could not be computed",
    )
    return None if asked_for else reason


def _emptiness_reason(text: str) -> str | None:
    is_long = len(text) > MAX_CHARS
    bare = text if is_long else _EMPTY.sub(" ", text)
    visible = filter(_is_visible, bare)
    if not (first := next(visible, "")):
        return "it is empty"
    only_marks = first in PUNCTUATION_MARKS and all(c in PUNCTUATION_MARKS for c in visible)
    if only_marks and bare.strip() not in OPERATORS:
        return "it holds nothing but a punctuation mark"
    if not is_long and _only_openers(_normalise(bare), colon=bool(_COLON.search(bare))):
        return "it opens an answer and gives none"
    return None


def _is_visible(char: str) -> bool:
    return unicodedata.category(char)[0] not in "ZCM"


def _normalise(text: str) -> str:
    """Return the words in lower case without accents."""
    bare = _APOSTROPHE.sub("", text).casefold()
    if not bare.isascii():  # one character at a time: a long run of marks takes quadratic time
        decomposed = (unicodedata.normalize("NFD", c) for c in bare)
        bare = unicodedata.normalize(
            "NFC", "".join(c for piece in decomposed for c in piece if not unicodedata.combining(c))
        )
    return " ".join(_WORDS.findall(bare))


def _text_key(text: str) -> str:
    """Return a key that is equal for texts of the same words or, without words, the same marks."""
    return _normalise(text) or text.strip()


def _announces(text: str) -> bool:
    return bool(_COLON.search(text) and _normalise(text))


def _is_reference(text: str, task: Task) -> bool:
    """Return whether a text equals the reference; if both are short, ignoring case, accents and
    punctuation.
    """
    answer, wanted = text.strip(), (task.reference or "").strip()
    short = max(len(answer), len(wanted)) <= MAX_CHARS
    return bool(answer) and (answer == wanted or (short and _text_key(answer) == _text_key(wanted)))


def _is_asked_for(text: str, prompt: str) -> bool:
    """Return whether a text is an option that the task lists, or an opener if the task quotes one.

    An example of the latter is "What is 'answer' in Spanish?". Words with a colon announce
    something, so they are no option; nor is a text longer than any opener.
    """
    key = _text_key(text) if len(text) <= MAX_CHARS else ""
    if not key or _announces(text):
        return False
    quoted = {_text_key(quote) for quote in _QUOTE.findall(prompt) if not _announces(quote)}
    translated = any(word in _OPENER_KEYS for word in quoted if " " not in word)
    return translated or key in quoted | _list_items(prompt) or _is_alternative(key, prompt)


def _list_items(prompt: str) -> set[str]:
    """Return the items of bullets and of lists with "A)", "(b)" or "1."."""
    lettered = (piece for line in prompt.splitlines() for piece in _LETTERED_ITEM.split(line)[1:])
    return {_text_key(item) for item in (*_BULLET.findall(prompt), *lettered)}


def _is_alternative(text: str, prompt: str) -> bool:
    """Return whether it is an alternative in a sentence with "or": "Is salt water a solution or a
    mixture?".
    """
    sentences = (sentence for sentence in _SENTENCE.split(prompt) if _OR_WORD.search(sentence))
    pieces = (
        _normalise(piece)
        for sentence in sentences
        for part in _OR_WORD.split(sentence)
        for piece in _COMMA.split(part)
    )
    return any(f" {piece}".endswith(f" {text}") for piece in pieces)


_OPENER_KEYS = frozenset(map(_normalise, OPENERS))
_SINGLE_WORD_KEYS = frozenset(map(_normalise, SINGLE_WORD_OPENERS))
_OPENER_SEQUENCE = re.compile(rf"(?:(?:{'|'.join(sorted(_OPENER_KEYS))})(?: |\Z))+")


def _only_openers(text: str, *, colon: bool) -> bool:
    """Return whether the words are a sequence of openers and nothing else."""
    if " " not in text and not colon:
        return text in _SINGLE_WORD_KEYS
    return _OPENER_SEQUENCE.fullmatch(text) is not None


@fingerprint_name("answered")
@dataclass(frozen=True)
class AnswerPresence:
    """0 for a text that is no answer (see `find_no_answer_reason`), else 1. A wrong answer is an
    answer.
    """

    name: str = "answered"

    model_free = True

    async def grade(self, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback:
        """Return 1 or 0."""
        reason = None if candidate.tool_calls else await find_no_answer_reason(candidate.text, task)
        if reason:
            return Feedback(0.0, f"no answer: {reason}", ("Give an answer.",), done=False)
        return Feedback(1.0, "there is an answer")
