r"""Repairs the form of JSON that a model wrote.

Text that is not clean JSON is read token by token and written as JSON again. This repairs form
only: missing, doubled or trailing commas; texts and keys in single or typographic quotes; line
breaks, single backslashes and pairs of quotes within a text; comments; the words true, false and
null in another case, and None. Numbers, keys and brackets are copied unchanged or refused. Also
refused are keys without quotes, truncated objects, and comments with digits, double quotes or
brackets, which may state another value. The reader is linear in its input.

A single backslash is one that the writer did not double: in `\alpha`, which is no escape of JSON,
but also in `\frac`, which is read as a form feed and `rac`. `double_backslashes` doubles them, in
clean JSON as well.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

MAX_DEPTH = 32
TOO_DEEP = f"the JSON is nested too deep; at most {MAX_DEPTH} is read"
SPACE = r"[ \t\n\r]*+"
NUMBER = r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?"
COMMENT = r"""(?:(?://|\#)[^\n\d"{}\[\]]{0,200}+(?=\n|\Z)|/\*[^*\d"{}\[\]]{0,200}+\*/)"""
COMMENTS = re.compile(rf"(?:{SPACE}{COMMENT})++")
WORD = "(?i:true|false|null|none)"
TOKEN = re.compile(
    rf"""{SPACE}((?:{NUMBER}|{WORD})(?=[ \t\n\r,}}\]]|//|/\*|\Z)|[{{}}\[\]:,"'“‘])"""
)
WORDS = {"true": "true", "false": "false", "null": "null", "none": "null"}
QUOTES = {'"': '"', "'": "'", "“": "”", "‘": "’"}
KEY_PATTERNS = {
    '"': re.compile(r'(?:[^"\\\x00-\x1f]++|\\.)*(?=")'),
    **{
        opening: re.compile(rf"[^{closing}\\\x00-\x1f]*+(?={closing})")
        for opening, closing in list(QUOTES.items())[1:]
    },
}
STRING_PATTERNS = {
    opening: re.compile(rf"(?:[^{closing}\\]++|\\.)*", re.DOTALL)
    for opening, closing in QUOTES.items()
}
# What follows the quote that ends a text in an object and in a list: the closing bracket, or the
# next key or value.
# (bounded: a comment may hold the quote that is being looked for)
GAP = rf"(?:[ \t\n\r,]*+{COMMENT}){{0,8}}+[ \t\n\r,]*+"
STRING_END = {
    "{": re.compile(rf"""{GAP}(?:\}}|["'“‘][^"'“”‘’\\\n]*+["'”’]{SPACE}:)"""),
    "[": re.compile(
        rf"""{GAP}(?:\]|(?<=[ \t\n\r,/])(?:["'“‘{{[]|(?:{NUMBER}|{WORD}){SPACE}[,\]]))"""
    ),
}
COLON = re.compile(f"{SPACE}:")
ESCAPE_OR_QUOTE = re.compile(r"""\\(?:u[0-9a-fA-F]{4}|["\\/bfnrt'])|[\\"]""")


class UnrepairableError(ValueError):
    """A text is no JSON, and cannot be repaired with certainty; the message says why."""


class JsonRepair:
    """Rewrites one object, token by token, as clean JSON in `output`."""

    def __init__(self, text: str, start: int) -> None:
        self.output: list[str] = []
        self._text, self._position = text, start
        self._open_brackets: list[str] = []
        self._last_token = ""  # an opening bracket, ":", "," (not written yet), or "value"

    def rewrite(self) -> int:
        """Rewrite the whole object and return its end. Raises UnrepairableError."""
        while True:
            if comments := COMMENTS.match(self._text, self._position):
                self._position = comments.end()
            token = TOKEN.match(self._text, self._position)
            if token is None:
                raise self._unexpected_token()
            self._position = token.end()
            self._consume(token[1])
            if not self._open_brackets:
                return self._position

    def _consume(self, piece: str) -> None:
        if piece == ",":
            self._comma()
        elif piece == ":":
            self._colon()
        elif piece in "}]":
            self._close(piece)
        elif piece in "{[":
            self._start(piece)
        elif piece in QUOTES:
            is_key = self._open_brackets[-1] == "{" and self._last_token != ":"
            self._write(self._key(piece) if is_key else self._string(piece))
        elif self._last_token == "value":
            raise UnrepairableError(f"there is no comma before {piece[:20]!r}")
        else:
            self._write(WORDS.get(piece.lower(), piece))

    def _write(self, piece: str) -> None:
        """Write a value, a key or an opening bracket, and the comma before it even if it was
        missing.
        """
        if self._last_token in {",", "value"}:
            self.output.append(",")
        self.output.append(piece)
        self._last_token = "value"

    def _start(self, bracket: str) -> None:
        self._write(bracket)
        self._open_brackets.append(bracket)
        self._last_token = bracket
        if len(self._open_brackets) > MAX_DEPTH:
            raise UnrepairableError(TOO_DEEP)

    def _comma(self) -> None:
        doubled = self._open_brackets[-1] == "{" and self._last_token in {"{", ","}
        if self._last_token != "value" and not doubled:
            raise UnrepairableError("there is a comma in place of a value")
        self._last_token = self._last_token if doubled else ","

    def _colon(self) -> None:
        if self._last_token != "value":
            raise UnrepairableError("there is a colon in place of a key or a value")
        self.output.append(":")
        self._last_token = ":"

    def _close(self, bracket: str) -> None:
        if self._open_brackets.pop() + bracket not in {"{}", "[]"}:
            raise UnrepairableError(f"{bracket!r} closes what it did not open")
        self.output.append(bracket)
        self._last_token = "value"

    def _key(self, quote: str) -> str:
        key = KEY_PATTERNS[quote].match(self._text, self._position)
        if key is None:
            raise UnrepairableError("a key is not written plainly in quotes")
        self._position = key.end() + 1
        return f'"{key[0]}"' if quote == '"' else json.dumps(key[0])

    def _string(self, quote: str) -> str:
        """Return a text. Quotes within it that are not escaped must come in pairs, else its end is
        ambiguous.
        """
        start = end = self._position
        within = 0
        end_pattern = STRING_END[self._open_brackets[-1]]
        while not end_pattern.match(self._text, (end := self._quote_after(quote, end)) + 1):
            if COLON.match(self._text, end + 1):
                raise UnrepairableError("a text does not end before the next key")
            within += not self._is_apostrophe(end)
            end += 1
        if within % 2:
            raise UnrepairableError("a quote within a text is not escaped")
        self._position = end + 1
        return f'"{ESCAPE_OR_QUOTE.sub(_escape, _with_doubled(self._text[start:end]))}"'

    def _quote_after(self, quote: str, at: int) -> int:
        """Return the position of the next quote that may end a text."""
        content = STRING_PATTERNS[quote].match(self._text, at)
        if content is None or self._text[content.end() : content.end() + 1] != QUOTES[quote]:
            raise UnrepairableError("the JSON is cut off")
        return content.end()

    def _is_apostrophe(self, at: int) -> bool:
        around = self._text[at - 1 : at + 2]
        return around[1] in "'’" and around[::2].isalnum()

    def _unexpected_token(self) -> UnrepairableError:
        rest = self._text[self._position :].lstrip(" \t\n\r")
        if not rest:
            return UnrepairableError("the JSON is cut off")
        odd = re.split(r"[,}\]\n]", rest[:20])[0] or rest[:1]
        if self._last_token == ":" or self._open_brackets[-1] == "[":
            return UnrepairableError(f"{odd!r} is not a plain number, text, true, false or null")
        return UnrepairableError(
            f"there is {odd!r} in place of a key in quotes, a comma or a bracket"
        )


def _escape(match: re.Match[str]) -> str:
    """Return an escape unchanged, and a bare quote or backslash escaped."""
    if match[0] == "\\'":
        return "'"
    return match[0] if len(match[0]) > 1 else f"\\{match[0]}"


# ---- single backslashes


TEXT = re.compile(r'"((?:[^"\\]++|\\.)*+)"', re.DOTALL)
ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{4}|[tnr][A-Za-z]++(?![^\W_])|.|\Z)", re.DOTALL)
NO_JSON_ESCAPE = re.compile(
    r"""\\(?!["\\/bfnrt'\n\r0]|u[0-9a-fA-F]{4}|u\{|x[0-9a-fA-F]{2}|U[0-9a-fA-F]{8}|\Z)"""
)
"""A backslash that JSON lacks, except those that another language has for one character: its value
would have to be guessed.
"""
LETTER_AFTER_CONTROL = re.compile(r"\\[bf](?=[^\W\d_])")
RARE_COMMAND = re.compile(
    r"""\\(?:
    n(?:abla|atural|e(?:arrow|wcommand|wenvironment|wline|wpage)|[gl]eq(?:q|slant)?|oindent|olimits|onumber|ormalsize|otin|warrow
      |su[bp]seteqq?|triangle(?:left|right)(?:eq)?|[vV][dD]ash|(?:Left|left|Right|right|Leftright|leftright)arrow)
    |neq(?!\ ?[=:.(\[])|not(?=\\|=)|(?:(?<=\ \\)(?:neq|ne(?=\ ?[-\d\\]))|(?<=_\\)nu(?!\d)|(?<=[\ $(={]\\)neg(?!\.))
    |(?:(?<=\A\\)|(?<=[\ $({=^_]\\))tau|tau(?!\ [^\W\d_]{2})
    |t(?:anh|herefore|heta|hickapprox|hicksim|ilde|imes|iny|oprule|riangle(?:down|left|lefteq|q|right|righteq)?|woheadrightarrow
      |ableofcontents|ext(?:asciitilde|backslash|color|greater|less|style|superscript|subscript|width)
      |(?:ext(?:bf|it|md|normal|rm|sc|sf|tt|up)?|binom|frac|ag|itle)(?=\{)|frac(?=\d)|ag(?=\*))
    |tan(?=[(\\^{_])|(?<=[\ })]\\)to(?=\ ?[-+\d\\]|\ [a-z]\b)
    |r(?:angle|brace|brack|ceil|enewcommand|equire|floor|group|ho|ight|isingdotseq|m|mfamily|oot|times|[vV]ert
      |ight(?:arrow|arrowtail|harpoondown|harpoonup|leftarrows|leftharpoons|rightarrows|squigarrow|threetimes)
      |(?:ef|ule|aisebox|esizebox|owcolor)(?=[{\[]))
    )(?![^\W\d_])""",  # noqa: E501
    re.VERBOSE,
)
"""A command of LaTeX of which the rest, after a line break, a tab or a carriage return, is no word
that begins a line.
"""
COMMON_COMMANDS = re.compile(
    r"\\(?:n(?:u|e|eg|eq|i|mid|ot|exists|less|gtr|sim|cong|prec|succ|parallel|subset|supset)|tan|to|top)"
)
r"""Commands of LaTeX of which the rest may begin a line, as the `u` of `\nu`: what stands around
them decides.
"""
BEFORE_COMMAND = re.compile(r"(?:\A|[\s$=+*/(){}\[\]<>|&\d_-]|(?<![^\W\d_])[A-Za-z])\Z")
END_OF_FORMULA = re.compile(r"(?<=\S)\$(?!\d)")
BEFORE_SCRIPT = re.compile(r"(?:\^\{?|_\{)\Z")
WINDOWS_PATH = re.compile(r'[A-Za-z]:(?:\\[^\\"<>|*?:]++)+\\?')
PATH_IN_TEXT = re.compile(r'(?<![^\W_])[A-Za-z]:(?:(?<![.,;!)])\\(?!n[^a-z])[^\\\s"<>|*?:]++)+')


def double_backslashes(text: str) -> str:
    """Return a JSON value, clean except for single backslashes, with these doubled.

    Doubled is each backslash that is no escape of JSON, and each before `b` or `f` and another
    letter: no text holds a backspace or a form feed before a letter. One before `t`, `n` or `r` is
    doubled if a command of LaTeX follows that cannot be a line break, a tab or a carriage return
    and a word.
    """
    return TEXT.sub(lambda match: f'"{_with_doubled(match[1])}"', text) if "\\" in text else text


def single_backslash(text: str) -> str:
    r"""Return the first command after a backslash that `double_backslashes` doubles in clean JSON,
    such as `\frac`; "" if none.
    """
    doubled = double_backslashes(text)
    if doubled == text:
        return ""
    at = next(
        n for n, (before, after) in enumerate(zip(text, doubled, strict=False)) if before != after
    )
    found = re.compile(r"\w{1,20}|.?", re.DOTALL).match(text, at)
    return f"\\{found[0] if found else ''}"


def _with_doubled(content: str) -> str:
    """Return the content of a text of JSON with its single backslashes doubled."""
    if "\\" not in content:
        return content
    single = set(_single_backslashes(content))
    pieces = (f"\\{char}" if at in single else char for at, char in enumerate(content))
    return "".join(pieces) if single else content


def _single_backslashes(content: str) -> Iterator[int]:
    """Yield where the single backslashes are. What is unclear alone is decided by the clear ones of
    the same text.
    """
    escapes = list(ESCAPE.finditer(content))
    clear = {escape.start() for escape in escapes if _is_clear(content, escape.start())}
    yield from clear
    if clear:
        yield from _path_backslashes(content, clear, escapes)
    begin = content.find(r"\begin{")
    in_formulas = set(_in_formulas(content, escapes))
    for escape in escapes:
        at = escape.start()
        if escape[0] == r"\\":
            if begin in clear and _ends_latex_line(content, at):
                yield from (at, at + 1)
        elif at in in_formulas or _is_single_by_context(content, escape, has_clear=bool(clear)):
            yield at


def _in_formulas(content: str, escapes: list[re.Match[str]]) -> Iterator[int]:
    """Yield where COMMON_COMMANDS begin that stand in a formula between dollars."""
    last_formula = max((end.start() for end in END_OF_FORMULA.finditer(content)), default=0)
    dollars = after = 0
    for escape in escapes:
        at, end = escape.span()
        dollars, after = dollars + content.count("$", after, at), end
        if escape[0] == r"\n":
            dollars = 0  # no formula within a line goes on after it
        elif dollars % 2 == 1 and at < last_formula and COMMON_COMMANDS.fullmatch(escape[0]):
            yield at


def _path_backslashes(content: str, clear: set[int], escapes: list[re.Match[str]]) -> Iterator[int]:
    """Yield where the backslashes of Windows paths are, in a text with clear single ones."""
    if WINDOWS_PATH.fullmatch(content):
        yield from (escape.start() for escape in escapes)
    for path in PATH_IN_TEXT.finditer(content):
        if path.start() + len("C:") in clear:
            yield from (escape.start() for escape in ESCAPE.finditer(content, *path.span()))


def _ends_latex_line(content: str, at: int) -> bool:
    """Whether two backslashes may end a line in LaTeX: no letter and no other backslash is
    beside them.
    """
    before, after = content[max(0, at - 1) : at], content[at + 2 : at + 3]
    return "\\" not in before + after and not after.isalpha()


def _is_single_by_context(content: str, escape: re.Match[str], *, has_clear: bool) -> bool:
    """Whether the backslash of an escape that could be one of JSON is a single one, by what stands
    before it and by the clear ones of the same text.
    """
    if escape[0] in {r"\b", r"\f"}:
        return has_clear
    if not COMMON_COMMANDS.fullmatch(escape[0]):
        return False
    before = content[max(0, escape.start() - 2) : escape.start()]
    return (
        escape[0] == content
        or BEFORE_SCRIPT.search(before) is not None
        or (has_clear and BEFORE_COMMAND.search(before) is not None)
    )


def _is_clear(content: str, at: int) -> bool:
    """Whether the backslash of an escape is a single one, whatever else the text says."""
    return any(
        pattern.match(content, at)
        for pattern in (NO_JSON_ESCAPE, LETTER_AFTER_CONTROL, RARE_COMMAND)
    )
