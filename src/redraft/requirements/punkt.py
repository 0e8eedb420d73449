"""Counting sentences as NLTK's English tokenizer does, which IFEval uses: Punkt (Kiss and Strunk 2006).

Punkt takes every full stop, question mark and exclamation mark before white space, a bracket, a quotation mark, a colon or an
asterisk for the end of a sentence, whatever follows. After abbreviations, initials, numbers and "..." it looks at the next word.
NLTK uses a table learned from newspapers; here a few words replace it. A list number such as "1." is a sentence, and so is an
asterisk left at the end ("**Done.**"). Everything takes linear time.
"""

from __future__ import annotations

import re
from itertools import pairwise

_CURLY = "\u2018\u2019\u201c\u201d\u00ab\u00bb"
_NON_WORD = rf"?!)\";}}\]*:@'({{\[{_CURLY}"  # characters that no word contains
_END = re.compile(rf"[.?!](?=[{_NON_WORD}]|\s+\S)")
_CLOSING = re.compile(rf"[\"')\]}}{_CURLY}]+?(?:\s+|(?=--)|$)", re.MULTILINE)
_INNER_STOP = re.compile(rf"(?:[?!](?=[{_NON_WORD}]|\.\.)|(?<!\.)\.(?=[{_NON_WORD}]))")
_TOKEN = re.compile(rf"(?:\.{{2,}}|['{_CURLY}]?(?:[^\s{_NON_WORD}.`&#,-][^\s{_NON_WORD}]*)?\.)\Z")
_NEXT_TOKEN = re.compile(rf"[(\"`{{\[:;&#*@)}}\],-]|[^\s][^\s{_NON_WORD}]*?(?=[\s{_NON_WORD}]|--|\.\.|,(?:[\s{_NON_WORD}]|\Z)|\Z)")
_NUMBER = re.compile(r"-?[.,]?\d[\d,.-]*\.?")
_INITIAL = re.compile(r"[^\W\d]\.")
_LINE_START = re.compile(r"(?:\A|\n)[ \t]*\Z")
MAX_WORD_CHARS = 80  # longer words are cut


def _word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Abbreviations in NLTK's English model ("etc.", "e.g." and "i.e." are not).
ABBREVIATIONS = _word_set(
    """
    mr mrs ms dr prof st sr jr gen col lt maj sen rep reps messrs adm ph.d m.b.a co corp inc ltd bros cos cie dept ave ft
    va vs chg yr ok jan feb aug sept sep oct nov dec tues wed fri a.m p.m u.s u.k u.n u.s.a u.s.s.r d.c n.y l.a n.j a.d
    j.k calif mass tenn minn okla ariz ore wis fla colo kan mich conn ill wash ala nev ky ga vt c d e f g h k l m n p r s
    t v w
    """
)
# Words that often start sentences: Punkt lets them do so after an abbreviation, too.
SENTENCE_STARTERS = _word_set(
    """
    the he it i in but if this they there however when while since so these both most some many under although though
    instead similarly nevertheless nonetheless thus nor yet even indeed meanwhile moreover despite according among
    """
)
# Words often written in lower case, so that they are not part of a name after an initial.
COMMON_WORDS = _word_set(
    """
    a an i you we she my your his her our its their then therefore here what who whom whose which how why where let please
    perhaps maybe well as at for from to of on by with and or not no yes first next finally also one two three every each
    all any another other are is was were do does did can could will would should may might must have has had be now using
    given because until after before during once only
    """
)


def count_sentences(text: str) -> int:
    """Return the number of sentences; 0 for an empty text."""
    if not text.strip():
        return 0
    count = last = seen = 0
    ends = [match.end() for match in _END.finditer(text)]
    for end, following in pairwise([*ends, len(text)]):
        if following != len(text) and len(text[end:following].split(maxsplit=1)) == 1 and not text[end].isspace():
            continue  # of several in one word, the last decides
        word = text[seen:end].rsplit(maxsplit=1)[-1]
        seen = end
        if _ends_sentence(word, text, end):
            count, last = count + 1, end
    rest = text[last:].lstrip() if last else text
    closing = _CLOSING.match(rest) if last else None
    return count + (len(rest) > (closing.end() if closing else 0))


def _ends_sentence(word: str, text: str, end: int) -> bool:
    """Return whether a sentence ends with a word that ends with a closing mark."""
    token = _TOKEN.search(word[-MAX_WORD_CHARS:])
    if token is None or _INNER_STOP.search(word):
        return True
    whole = token[0].rpartition("--")[2]
    name, rest = whole[:-1].lower(), text[end : end + MAX_WORD_CHARS]
    found = _NEXT_TOKEN.match(rest.lstrip())
    following = found[0] if found else ""
    goes_on = following[:1].islower() or following in {";", ":", ",", ".", "!", "?"}
    capital = following[:1].isupper()
    if _INITIAL.fullmatch(whole):
        label = following.isalpha() and bool(_LINE_START.search(text[max(0, end - MAX_WORD_CHARS) : end - len(word)]))  # "A. Paris"
        common = following.lower() in SENTENCE_STARTERS | COMMON_WORDS or (
            following[1:].islower() and "\n" in rest[: len(rest) - len(rest.lstrip())]
        )
        return name not in ABBREVIATIONS and not goes_on and (label or common or not capital)
    if _NUMBER.fullmatch(whole):
        return not goes_on
    abbreviated = name in ABBREVIATIONS or name.rpartition("-")[2] in ABBREVIATIONS
    return (capital and following.lower() in SENTENCE_STARTERS) if abbreviated or whole.endswith("..") else True
