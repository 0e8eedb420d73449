"""Finding the final answer in a text: what it marks as such, a number, a choice.

A text may mark several different answers. All of them are returned, and graders count such a text
as wrong. If it withdraws one before it marks another ("wait", "actually", "no,"), only what follows
counts (`standing_text`). Everything takes time linear in the length of the text. Nothing here
compares answers.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

_BOX = re.compile(r"\\f?box(?:ed)?\s?\{")
_BRACE = re.compile(rf"{_BOX.pattern}|\\.|[{{}}]", re.DOTALL)
_REST_OF_LINE = r"(?=[ \t*_]*([^\r\n]{1,500}))"
_HEADING = r"(?:step|part|case|section|question|problem|example)\b|(?:final\s)?(?:answer|solution)[\s*_:]*$|\d{1,2}[.)][ \t]+\S"
_FINAL = "final (?:answer|result)"
_IS = r"(?:(?:is|are)\b|:|=)[ \t:]*"
_LINE_MARKER = re.compile(
    rf"(?<!\S)####(?!#)[ \t*_]*+(?!(?i:{_HEADING}))([^\r\n]{{1,500}})", re.MULTILINE
)
_ANSWER_MARKERS = (
    re.compile(r"<answer>(.{1,500}?)</answer>", re.IGNORECASE | re.DOTALL),
    _LINE_MARKER,
    re.compile(
        rf"(?:\b{_FINAL}\b[*_ \t]*{_IS}|^[#*_ \t]{{0,8}}{_FINAL}[*_ \t:]{{0,8}}\r?\n\s{{0,4}}){_REST_OF_LINE}",
        re.IGNORECASE | re.MULTILINE,
    ),
    re.compile(
        rf"(?:\b(?:answer|result|solution)\b[*_ \t]*{_IS}|\b(?:antwort|ergebnis|l\u00f6sung|r\u00e9ponse|respuesta)\b[*_ \t]*"
        r"(?:(?:ist|lautet|est|es)\b|:|=)[ \t:]*+(?!(?:nicht|pas|no)\b)"
        r"|\u7b54\u6848[*_ \t]*(?:\u5e94\u8be5|\u5e94|\u61c9\u8a72|\u61c9)?[\u662f\u4e3a\u70ba\u9009\u9078\uff1a:=][ \t:\uff1a]*)"
        rf"{_REST_OF_LINE}",
        re.IGNORECASE,
    ),
)
_FILLER = re.compile(r"\W*(?:(?:so|the|my|our|that|final|correct|right)\W+)*", re.IGNORECASE)
_GAP = r"[\s,.!\u2026\u2013\u2014-]{1,4}"
_IS_WRONG = (
    r"(?:(?:['\u2019]s|\s+is|\s+was)\s+(?:\w{1,12}\s+)?(?:wrong|incorrect|mistaken|not\s+(?:right|correct)|an?\s+(?:mistake|error))"
    r"|\s+(?:isn['\u2019]t|wasn['\u2019]t|can['\u2019]?t\s+be|cannot\s+be|(?:doesn['\u2019]t|does\s+not)\s+(?:seem|look))"
    r"\s+(?:\w{1,12}\s+)?(?:right|correct))\b"
)
_WITHDRAWAL = re.compile(  # at the beginning of a clause, outside quotation marks
    rf"""
    "[^"\n]{{0,300}}" | \u201c[^\u201d\n]{{0,300}}\u201d
    | (?:\A | [.,;!?()\n\u2026\u2013\u2014\u3002\uff0c\uff01\uff1f$}}\]] | \s-\s) [\s*_>]{{0,8}}+ (?=[a-z])
    (?:(?:but|however|oh|hm+|ah|okay|ok|so|well){_GAP})?
    (?P<words>
      (?P<final>(?:(?:wait|no|oops|hm+|hold\s+on|actually|sorry){_GAP}){{1,3}}(?:that|this|it|my\s+answer){_IS_WRONG}
        | (?:scratch|strike)\s+that\b | i\s+(?:have\s+)?made\s+an?\s+(?:\w{{1,12}}\s+)?(?:mistake|error)\b | i\s+was\s+wrong\b
        | correction\s*: | (?:w?h?oops)\b)
      | wait(?=\s*(?:[,.!?:;*_\u2026\u2013\u2014-]|\Z|\n)|\s+(?:no|actually|that|this|let|but|i)\b) | hold\s+on\b | hang\s+on\b
      | actually\b | no(?:pe)?(?=\s*[,.:;!\u2013\u2014]|\s+wait\b) | (?:i['\u2019]m\s+)?sorry\b
      | (?:my\s+)?apologies\b | i\s+apologi[sz]e\b | edit\s*: | on\s+second\s+thoughts?\b
      | (?:up)?on\s+(?:review|re-?examination|(?:closer|further|careful)\s+(?:review|inspection|examination|reflection|thought))\b
      | i\s+mean\b | rather\s*, | never\s*mind\b | (?:ignore|disregard)\s+(?:that|my)\b | my\s+(?:mistake|error|bad)\b
      | (?:that|this|it|which){_IS_WRONG} | correct(?:ion|ing|ed)\b | (?:my\s+)?(?:revised|corrected)\b
      | (?:(?:my|the)\s+)?(?:updated|revised|corrected|amended|new)\s+(?:final\s+)?(?:answer|result|solution)\b
      | re-?(?:check|calculat|comput|consider|count|examin|evaluat|think)ing\b
      | i\s+(?:misread|misunderstood|miscounted|miscalculated|forgot|overlooked)\b
      | (?:let\s+me|let['\u2019]s|let\s+us|i\s+(?:need|have|must|should|will|want)(?:\s+to)?|i['\u2019]ll)\s+(?:\w{{1,12}}\s+)?
        (?:re-?(?:check|do|calculate|compute|consider|count|examine|evaluate|think|verify|work|solve|read)|double[\s-]check|correct
          |fix\s+(?:this|that|it)|revise|try\s+(?:again|(?:an?)other|a\s+different)|start\s+over)\b
    ) | (?P<chinese>\u7b49\u7b49|\u7b49\u4e00\u4e0b|\u4e0d\u5bf9|\u4e0d\u5c0d|\u9519\u4e86|\u66f4\u6b63)
    | (?P<thought></think(?:ing)?>)
    """,
    re.VERBOSE | re.IGNORECASE,
)
_NEW_ANSWER = re.compile(  # after a withdrawal, without a mark: "no, it's C"
    rf"""
    [\s,.:;!*\u2026\u2013\u2014-]{{0,6}} (?:(?:wait|no|actually|sorry|i\ mean|it\ is|it['\u2019]s){_GAP}){{0,2}}
    (?P<verb>(?:so\ )?(?:it|that|this)(?:['\u2019]s|\ (?:is|should\ be|must\ be))\s|make\ (?:it|that)\s|(?:i\ )?mean(?:t)?\s)?
    (?:(?:actually|option|choice)\s)?
    (?P<answer> [*_($]{{0,3}}(?: (?-i:[A-J]) (?=[)*_]{{0,3}}(?:[.!;\n]|\Z|,?\ (?:not|because|since)\b
        |\ (?:is|must\ be)\ (?:the\ )?(?:right|correct|better|best)\b))
      | [-+\u2212]?\d[\d.,/]{{0,40}} [$*_%)]{{0,3}} (?: [.!]?[ \t]*(?:\n|\Z) | (?(verb)[.!]\s|(?!)) ) ))
    """,
    re.VERBOSE | re.IGNORECASE,
)
_VALUE = r"[*_$(-]{0,4}(?:\\\(\s?)?(?:\\boxed\{[^{}\n]{0,100}\}|\d(?:[\d.,/]{0,40}\d)?|(?-i:[A-J])(?![\w'\u2019]))[)$*_]{0,4}"
# one that is negated, and the words of one that is supposed, or that others name
_NOT_OWN_MARK = re.compile(
    rf"""
    (?: \b(?P<mark>(?:answer|result|solution)[*_ \t]{{1,4}}(?:is|are)) (?:n['\u2019]t | [ \t](?:\w{{1,12}}[ \t])?not)
      | \bnot(?=\s\$?\\boxed) ) [ \t]{{1,3}} {_VALUE} (?: (?:,[ ]?{_VALUE}){{0,9}} ,?[ ](?:or|nor|and)[ ]{_VALUE} )?
    (?P<but> ,?[ ]but(?:[ ](?:rather|instead))?[ ](?={_VALUE}) )?
    | (?:,[ ]|(?P<bracket>\())not[ ][*$-]{{0,3}}\d(?:[\d.,/]{{0,40}}\d)?[$*]{{0,3}}(?(bracket)\))
    | \b(?: if | suppos(?:e|ing) | assum(?:e|ing) | whether | imagine | pretend | unless
      | (?:you|one)[ ](?:might|may|could|would)[ ](?:\w{{1,12}}[ ])?(?:think|believe|say|guess|assume|expect|conclude)
      | (?:people|students?|many|some(?:one|body)?|he|she|they)[ ](?:\w{{1,12}}[ ])?
        (?:think|believe|guess|assume|expect|conclude|claim|say|said|thought|claimed|believed|guessed)s?
      ) \s (?P<supposed>(?:that[ ])? (?:the|my|our|your|this)[ ] (?:\w{{1,12}}[ ])?
      (?:answer|result|solution)[*_ \t]{{1,4}})(?:is|are)\b (?![ \t](?:\w{{1,12}}[ \t])?not\b)
    """,
    re.VERBOSE | re.IGNORECASE,
)
_QUOTATION = re.compile(r'(?<!\w)"(?=[\w\\$])[^"\n]{1,300}"(?!\w)|\u201c[^\u201d\n]{1,300}\u201d')
# to the answer before
_ADDS = re.compile(r"\b(?:also|another|the other|one more|as well|too(?! [a-z]))\b", re.IGNORECASE)
_SENTENCE = re.compile(  # not between letters of choices: "A; C", "A. B. C."
    r"[!?](?=\s|\Z)|[\u3002\uff01\uff1f]|[.;](?=\s|\Z)(?!(?:\W{1,4}(?:(?:and|or)\s)?[A-J](?!\w)){1,9}\W*\Z|\s\(?[A-J][:)=])"
)
_MATH = re.compile(
    r"\$\$([^$]{1,500})\$\$|\$([^$\n]{1,500})\$|\\\(([^\n]{1,500}?)\\\)|\\\[([^\n]{1,500}?)\\\]"
)
_LATEX_STYLE = re.compile(
    r"\\(?:(?:text|math)[a-z]{0,6}|mbox|emph|operatorname|left|right|bf|rm|large)(?![A-Za-z])|\\[ ,;:!]",
    re.IGNORECASE,
)
_AFTER_LETTER = (  # not another letter, an operator or, after an article, a word
    r"(?=$|[^\w'\u2019])(?!\s*[=<>+*/^\\])"
    r"(?!(?<=[AI])\s+(?!(?:because|since|as|for|so|and|or|is|in|which|that|from|due|by|with|while|but|not|if|only|here)\b)[a-z])"
)
_CHOICE = re.compile(
    rf"\W*(?:(?i:(?:most\s)?likely|probably|clearly|definitely|indeed|option|choice)\s+){{0,2}}\W*([A-J]){_AFTER_LETTER}|\W*\(([a-j])\)\W*\Z"
)
_IS_OUT = (
    r",?[ \t]{1,3}(?:is|are|can|must|would)[ \t]{1,3}(?:\w{1,12}[ \t]{1,3})?"
    r"(?:wrong|incorrect|false|not|ruled|eliminated|excluded|impossible)\b"
)
_RULED_OUT = rf"\)?(?:[ \t,]{{1,3}}(?:(?:and|or)[ \t]{{1,3}})?\(?[A-J]\)?){{0,9}}{_IS_OUT}"
_ANOTHER_CHOICE = (  # "A or B", "A, B", "A: 5, C: 7"; not "A, B is wrong", nor "A, I think"
    r"[()\[\]}{* \t]{0,6}(?:(?:, {0,3})?(?:or|OR|and/or) {1,3}(?:\w{1,12} {1,3})?[^\w\n]{0,3}([A-HJ]|I(?! +[a-z]))(?![\w'\u2019])"
    r"|(?:(?<= )|\. {1,3})([A-J])(?=(?:[.)]{0,2} [A-J]){0,9}\W*\Z)"
    r"|[.:)=] {0,3}[^,;\n]{1,60}[,;] {0,3}(?:(?:and|or) {1,3})?\(?([A-J])[.:)=]"
    r"|(?:[,&;|\u2013\u2014-]|(?:, {0,3})?(?:and|AND|to|through|plus|as well as) |, {0,3}(?:also|possibly|perhaps|maybe) )"
    rf"[^\w\n]{{0,6}}([A-J])(?![\w'\u2019]|\)? +(?!(?:and|or)\b)\w\w|{_RULED_OUT}))"
)
_ANOTHER = re.compile(_ANOTHER_CHOICE)
_CHOICE_LINE = re.compile(
    r"^[ \t*_]*(?:(?i:option|choice)[ \t])?(?:\(([A-J])\)|([A-J])[.):]|([A-J])[ \t*_.]*$)"
    rf"(?!{_RULED_OUT}|[ \t*:-]{{1,3}}(?i:wrong|incorrect|false|no)\b)(?![ \t]*{_ANOTHER_CHOICE})",
    re.MULTILINE,
)
_END_OF_CHOICE = r"(?=[ \t]*(?:[.!\r\n]|\Z)|[,;]?[ \t]{1,3}(?:because|since|as|not)\b)"
_CONCLUSION = re.compile(
    r"\b(?i:so|thus|hence|therefore|leaving|leaves|I\s(?:choose|pick|select)|(?:correct|right|best)\s(?:option|choice)\sis"
    r"|which\s(?:is|matches|corresponds\sto)(?=\s(?:option|choice)\b))[,:]?\s{1,3}(?i:us\s(?:with\s)?)?"
    r"(?i:(?:it|that|this)(?:['\u2019]s|\s(?:is|must\sbe))\s|the\s(?:(?:correct|right|best)\s)?(?:option|choice)\s(?:is|must\sbe)\s)?(?i:option\s|choice\s|only\s)?"
    rf"(?:\(([A-J])\)|([A-J]){_END_OF_CHOICE})"
    rf"(?!{_ANOTHER_CHOICE}|{_IS_OUT})"
)
_SAID_CHOICE = re.compile(
    r"(?:\b(?:answer|choice|option)\s(?:should|must|would|will|has\sto)\sbe|\b(?i:my)\s(?:choice|pick|guess)\sis"
    r"|\bI(?:['\u2019](?:d|ll|m)|\s(?:would|will|am))?\s(?:choose|pick|select|say|guess|go(?:ing)?\swith|answer))"
    r"\s{1,3}(?i:(?:it(?:['\u2019]s|\sis)|the\sanswer\sis)\s)?(?i:option\s|choice\s)?[*_]{0,2}"
    rf"(?:\(([A-J])\)|([A-J])(?:\)(?=\s)|[*_]{{0,2}}{_END_OF_CHOICE}))"
    rf"(?!{_ANOTHER_CHOICE}|{_IS_OUT})"
)
_CALLED_RIGHT = re.compile(
    r"(?:(?:^|[.:;]\s)[ \t*_]{0,3}|\b(?i:so|thus|hence|therefore)[,:]?\s{1,3}[*_]{0,2})"
    r"(?:(?i:option|choice|only)\s)?[*_(]{0,3}([A-J])[)*_]{0,3}\s(?:is|must\sbe)\s(?:the\s)?(?:only\s)?"
    r"(?:correct|right|best|answer)\b(?![^.\n]{0,20}\?)",
    re.MULTILINE,
)
_VULGAR_FRACTIONS = "\u00bc-\u00be\u2150-\u215e"
_POWER = "[-+\u2212]?\\d{1,3}"
_UNIT = "(?:[kcmn\u00b5]?m|[km\u00b5]?g|[mc]?l|L|[mn]?s|min|h|hrs?|mph|kmh|[kMG]?Hz|k?[VWJN]|kWh|m?A|\u00b0[CF]?|[kMGT]?B|px|pt|ft|in|lbs?|oz)"
_TOKEN = re.compile(
    rf"""(?<![\w.,])(?P<sign>[-+\u2212\u2013]?)[$\u20ac\u00a3\u00a5]?
    (?:(?P<chain>\d{{1,4}}(?:/\d{{1,4}}){{2,10}})|(?P<digits>\d[\d,.'\u2019\u00a0\u202f\u2009_]{{0,60}}|\.\d{{1,60}})|(?=[{_VULGAR_FRACTIONS}]))
    (?:[eE](?P<e>{_POWER})|\s?[\u00d7x*]\s?10\s?(?:\^|\*\*)\s?\{{?(?P<ten>{_POWER})\}}?
      |\s?[\u00d7x*]\s?10(?P<raised>\u207b?[\u2070\u00b9\u00b2\u00b3\u2074-\u2079]{{1,3}})
      |(?<=\b10)(?:(?:\^|\*\*)\{{?(?P<power>{_POWER})\}}?|(?P<above>\u207b?[\u2070\u00b9\u00b2\u00b3\u2074-\u2079]{{1,3}}))
      |\s?[/\u2044]\s?(?P<over>\d{{1,15}})(?![\d/]|[.,]\d)|\s?(?P<vulgar>[{_VULGAR_FRACTIONS}]))?
    (?P<percent>\s?\\?%)?(?:(?={_UNIT}(?!\w))|(?!\w))""",
    re.VERBOSE,
)
_TRAILING_CHARS = ".,'\u2019\u00a0\u202f\u2009_"
_PLAIN_DIGITS = re.compile(r"\d*\.?\d+|\d+\.")
_GROUPED_DIGITS = re.compile(
    r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d{1,3}(?:['\u2019\u00a0\u202f\u2009_]\d{3})+(?:\.\d+)?"
)
_NON_ASCII_DIGIT = re.compile("(?![0-9])\\d|[\u066b\u066c\uff0e\uff0d\ufe63\uff05\u066a]")
_ASCII_SIGNS = {
    "\u066b": ".",
    "\u066c": ",",
    "\uff0e": ".",
    "\uff0d": "-",
    "\ufe63": "-",
    "\uff05": "%",
    "\u066a": "%",
}
_SUPERSCRIPTS = str.maketrans(
    "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u207b\u2212", "0123456789--"
)
_WORD = r"[^\W\d_]{1,15}"
_SEPARATOR = (
    "(?:[,;:|&~\\n\u2013\u2014\uff0c\uff1b\u3001-]|\\.\\.\\.?|[\u548c\u6216\u3068\u5230]"
    "|\\b(?:and|or|to|und|oder|bis|y|o|et|ou|e|\u0438|\u0438\u043b\u0438)\\b)"
)
_LIST_GAP = re.compile(
    rf"""[ \t]+|[\s)\]}}]*(?:{_WORD}[ \t.)]*){{0,2}}?\s*{_SEPARATOR}(?:{_SEPARATOR}|\s)*
    (?:[^\W\d]\w{{0,11}}\s*[=:]\s*)?[\s(\[{{$\u20ac\u00a3\u00a5]*""",
    re.VERBOSE | re.IGNORECASE,
)
MAX_CONTEXT_WORDS = 3  # before a list and after it


def boxed_answers(text: str) -> list[str]:
    r"""Return the contents of \boxed{...} and \fbox{...}, with balanced braces; of nested ones, the
    innermost.
    """
    answers: list[str] = []
    open_braces: list[tuple[int, bool]] = []
    for brace in _BRACE.finditer(text):
        if brace[0].endswith("{") and brace[0] != r"\{":
            open_braces.append((brace.end(), len(brace[0]) > 1))
        elif brace[0] == "}" and open_braces:
            start, is_box = open_braces.pop()
            if (
                is_box
                and brace.start() - start <= 2000
                and not _BOX.search(text, start, brace.start())
            ):
                answers.append(text[start : brace.start()].strip())
    return list(filter(None, answers))


def marked_answers(text: str) -> list[str]:
    r"""Return the different answers that are marked as such, by the strongest marker that occurs.

    The markers, strongest first: \boxed, <answer>, #### (of several the last), "the final answer
    is", "the answer is".
    """
    return next(
        (list(dict.fromkeys(answers)) for answers in _answers_by_marker(text) if answers), []
    )


def _answers_by_marker(text: str) -> Iterator[list[str]]:
    """Yield the answers after each marker, the strongest first."""
    yield boxed_answers(text)
    for marker in _ANSWER_MARKERS:
        answers = list(_answers_after(marker, text))
        yield answers[-1:] if marker is _LINE_MARKER else answers


def _answers_after(marker: re.Pattern[str], text: str) -> Iterator[str]:
    for match in marker.finditer(text):
        piece = _SENTENCE.split(match[1], maxsplit=1)[0]
        if following := marker.search(piece):
            piece = piece[: following.start()]
        if not (following and _FILLER.fullmatch(piece)) and (answer := _clean(piece)):
            yield answer


def standing_text(text: str) -> str:
    """Return the text from its last withdrawal on that stands between two marked answers; without
    one, all of it.

    A withdrawal is a clause that begins with words such as "wait", "actually", "no,", "correction"
    or "let me recheck", outside quotation marks. It withdraws nothing if the next answer is said to
    be one more ("also", "another"), or if no answer is marked after it, unless it says outright
    that the answer is wrong ("wait, that is wrong", "scratch that"). The end of reasoning
    (</think>) withdraws all before it. An answer that follows at once ("no, it's C") is marked in
    what is returned. Marks that are not the text's own are taken out (see `_with_own_marks`).
    """
    text = _with_own_marks(text)
    marks = sorted(
        match.span() for marker in (_BOX, *_ANSWER_MARKERS) for match in marker.finditer(text)
    )
    starts = [start for start, _ in marks]
    for match in reversed([*_WITHDRAWAL.finditer(text, starts[0])] if starts else []):
        at = max(map(match.start, ("words", "chinese", "thought")))  # -1: a quotation
        following = bisect_left(starts, at)
        if following == len(marks):
            withdrawn = match["final"] or match["thought"]
            if match["words"] and (new := _NEW_ANSWER.match(text, match.end())):
                return f"Answer: {text[new.start('answer') :]}"
        else:
            start, end = marks[following]
            sentence_end = _SENTENCE.search(text, end, end + 60)
            around = (
                max(match.end(), start - 60),
                sentence_end.start() if sentence_end else end + 60,
            )
            withdrawn = match["thought"] or (at >= 0 and not _ADDS.search(text, *around))
        if withdrawn:
            return text[at:]
    return text


def _with_own_marks(text: str) -> str:
    """Return the text without marks that are negated or supposed, and those in quotation marks if
    there are others.

    "The answer is not 12", "if the answer is 12", "you might think the answer is 12".
    """
    text = _NOT_OWN_MARK.sub(_without_mark, text)
    unquoted = _QUOTATION.sub(lambda match: " " if _is_marked(match[0]) else match[0], text)
    return unquoted if _is_marked(unquoted) else text


def _without_mark(match: re.Match[str]) -> str:
    """Return what replaces a mark: "the answer" of a supposed one, "answer is" of "answer is not 12
    but 13", else a space.
    """
    return f"{match['supposed'] or (match['but'] and match['mark']) or ''} "


def _is_marked(text: str) -> bool:
    return any(marker.search(text) for marker in (_BOX, *_ANSWER_MARKERS))


def _clean(piece: str) -> str:
    piece = piece.strip().strip("*_`").strip().rstrip(".,;!")
    whole = _MATH.fullmatch(piece)
    return _first_group(whole) if whole else piece


def _first_group(match: re.Match[str]) -> str:
    return next(group for group in match.groups() if group is not None).strip()


def formulas(text: str) -> list[str]:
    """Return the formulas between dollar signs or LaTeX's brackets."""
    return [_first_group(m) for m in _MATH.finditer(text)]


def without_style(text: str) -> str:
    r"""Return a text without LaTeX's commands for the style of letters (\text, \mathbf) and for
    spaces.
    """
    return _LATEX_STYLE.sub(" ", text)


def choices(text: str) -> set[str]:
    """Return the letters A-J that a text chooses.

    These are the letters that it marks; else those that it concludes ("so (C)"), calls right ("C is
    correct"), says ("the answer must be C", "I would choose C"), or begins a line with.
    """
    text = standing_text(text)
    for answers in _answers_by_marker(text):
        if marked := set().union(*map(_chosen_letters, map(without_style, answers))):
            return marked
    forms = (_CONCLUSION, _CALLED_RIGHT, _SAID_CHOICE, _CHOICE_LINE)
    found = (
        {next(filter(None, match.groups())) for match in form.finditer(text)} for form in forms
    )
    return next(filter(None, found), set())


def _chosen_letters(answer: str) -> set[str]:
    """Return the letter that an answer begins with, and the one beside it ("A or B")."""
    answer = " ".join(re.sub("[{}~]", " ", answer).split())
    if not (first := _CHOICE.match(answer)):
        return set()
    another = _ANOTHER.match(answer, first.end())
    return {
        letter.upper()
        for letter in (*first.groups(), *(another.groups() if another else ()))
        if letter
    }


Number: TypeAlias = tuple[Fraction, bool]


def numbers(text: str) -> list[Number]:
    """Return the numbers in a text, in order, each with whether it is a percentage (its value is
    then divided by 100).

    Thousands may be grouped by commas, apostrophes or thin spaces; 1.5e3, 1.5 x 10^3, 3/4, 1 3/4,
    \u00bd and 5km are read, in the digits of any script, with ASCII or Unicode minus signs. 1,2,3
    and (1,2) are several numbers. An ambiguous form (3,14 or 1.2.3) is not a number.
    """
    return [number for run in number_runs(text) for number in run]


def number_runs(text: str) -> list[list[Number]]:
    """Return the numbers in a text, those of a list together: 1, 2 and 3; 3-5; x = 1, y = 2; 3
    apples and 4 pears.
    """
    return [run.numbers for run in _find_runs(_with_ascii_digits(text))]


def number_list(text: str) -> list[Number]:
    """Return the numbers of a text that is a list of numbers with at most three words on each side;
    none for any other text.
    """
    text = _with_ascii_digits(text)
    runs = _find_runs(text)
    if len(runs) != 1 or len(runs[0].numbers) < 2:
        return []
    around = text[: runs[0].start], text[runs[0].end :]
    return (
        runs[0].numbers if all(len(words.split()) <= MAX_CONTEXT_WORDS for words in around) else []
    )


@dataclass
class _NumberRun:
    """Numbers of one list, and where it starts and ends."""

    numbers: list[Number]
    start: int
    end: int


def _find_runs(text: str) -> list[_NumberRun]:
    """Return the lists of numbers in a text; a single number is a list of one."""
    runs: list[_NumberRun] = []
    for token in _TOKEN.finditer(text):
        if not (values := _parse_numbers(token)):
            continue
        gap = text[runs[-1].end : token.start()] if runs else ""
        if (
            gap == " "
            and token["over"]
            and runs[-1].numbers[-1][0].denominator == 1
            and 0 < values[0][0] < 1
        ):
            runs[-1].numbers[-1] = (runs[-1].numbers[-1][0] + values[0][0], values[0][1])  # 1 3/4
        elif gap and len(gap) <= 40 and _LIST_GAP.fullmatch(gap):
            runs[-1].numbers += values
        else:
            runs.append(_NumberRun(values, token.start(), 0))
        runs[-1].end = token.start() + len(token[0].rstrip(_TRAILING_CHARS))
    return runs


def _with_ascii_digits(text: str) -> str:
    return (
        text
        if text.isascii()
        else _NON_ASCII_DIGIT.sub(
            lambda m: _ASCII_SIGNS.get(m[0]) or str(unicodedata.digit(m[0])), text
        )
    )


def _parse_numbers(match: re.Match[str]) -> list[Number]:
    """Return the numbers in what looks like one: several if slashes or commas can only separate
    them.
    """
    digits = (match["chain"] or match["digits"] or "0").rstrip(_TRAILING_CHARS)
    if _GROUPED_DIGITS.fullmatch(digits):
        digits = re.sub(r"[^\d.]", "", digits)
    parts = re.split("[,/]", digits)
    if (
        not all(map(_PLAIN_DIGITS.fullmatch, parts))
        or (len(parts) == 2 and not _is_bracketed(match))
        or match["over"] == "0"
    ):
        return []
    values = [Fraction(int(part) if part.isdecimal() else part) for part in parts]
    values[-1] = _apply_scale(values[-1], match)
    values[0] *= -1 if match["sign"] in {"-", "\u2212", "\u2013"} else 1
    percent = bool(match["percent"])
    return [(value / 100 if percent else value, percent) for value in values]


def _is_bracketed(match: re.Match[str]) -> bool:
    around = (
        match.string[max(0, match.start() - 1) : match.start()]
        + match.string[match.end() : match.end() + 1]
    )
    return around in {"()", "[]", "{}"}


def _apply_scale(value: Fraction, match: re.Match[str]) -> Fraction:
    """Return the number with what follows its digits: a power of ten, a denominator, a vulgar
    fraction.
    """
    if match["over"]:
        return value / int(match["over"])
    if match["vulgar"]:
        return value + Fraction(unicodedata.numeric(match["vulgar"])).limit_denominator(10)
    if power := match["power"] or match["above"]:
        return Fraction(10) ** int(power.translate(_SUPERSCRIPTS))
    times = match["e"] or match["ten"] or match["raised"]
    return value * Fraction(10) ** int(times.translate(_SUPERSCRIPTS)) if times else value
