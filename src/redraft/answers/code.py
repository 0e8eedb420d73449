"""Answers that are code: `answer="code:python"`."""

from __future__ import annotations

import ast
import re
import sys
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from ..errors import ConfigError
from ..protocols import Check, Edit
from .base import InvalidAnswer

LANGUAGE = re.compile(r"[a-z][a-z0-9+#.-]{0,30}")
ALIASES: Mapping[str, Sequence[str]] = {
    "python": ("py", "python3", "py3", "ipython"),
    "javascript": ("js", "node", "jsx"),
    "typescript": ("ts", "tsx"),
    "bash": ("sh", "shell", "zsh"),
    "c++": ("cpp", "cc", "cxx"),
    "c#": ("cs", "csharp"),
    "rust": ("rs",),
    "ruby": ("rb",),
    "go": ("golang",),
    "yaml": ("yml",),
}
OPENING_FENCE = re.compile(r"^([ \t]*+)(```++|~~~++)[ \t]*+([^\s`]*+)[^\n`]*+\n", re.MULTILINE)
INLINE = re.compile(r"\A`([^`\n]+)`\Z")
DEFINITION = re.compile(r"(async\s+def|def|class|import|from)\b|@")
MAX_BLOCKS = 50  # code blocks of an answer that are looked at
MAX_CLOSINGS = 8  # ends of a block that are tried, for code that holds a fence itself
MAX_SYNTAX_CHARS = 40_000  # in longer answers, and of longer code, the syntax is not checked: parsing may take quadratic time


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """A block between fences: its label, in lower case, and its code."""

    label: str
    code: str


@dataclass(frozen=True)
class CodeAnswer:
    """Code in one language. Graders see, and `result.value` and `result.parsed` are, the code without fences and prose.

    Of several code blocks it takes those labelled with the language, or those without a label if there are none; of Python those
    whose syntax is right, if there are any; and of these the longest, the last of equally long ones. Without such a block the
    answer is the whole text. The body of a Python function alone, with `return`, keeps its indentation. The syntax of
    Python is checked with the parser of the Python that runs Redraft.

    Raises ConfigError for what is not the name of a language.
    """

    language: str

    def __post_init__(self) -> None:
        if not isinstance(self.language, str) or not LANGUAGE.fullmatch(self.language):
            raise ConfigError(f"answer: 'code:' must be followed by a language, such as code:python, got {self.language!r:.80}")

    @property
    def name(self) -> str:
        return f"{self.language} code"

    @property
    def spec(self) -> str:
        """The text that stands for this form."""
        return f"code:{self.language}"

    @property
    def fingerprint(self) -> str:
        """16 hex digits for everything that decides which answers are accepted."""
        return sha256(self.spec.encode()).hexdigest()[:16]

    schema = None

    @property
    def editable(self) -> bool:
        return self.language == "python"

    is_json = False

    in_process = True

    @property
    def demand(self) -> str:
        return f"the whole answer is {self.language} code in one code block; no other text"

    @property
    def instruction(self) -> str:
        return self.demand

    def extract(self, text: str, *, given: bool = False) -> str:
        """Return the code in an answer, or the whole text, without the indentation of all lines; a function's body keeps it."""
        blocks = code_blocks(text, self.language)
        codes = self.labelled_codes(blocks) or [block.code for block in blocks if not block.label]
        if self.language == "python" and len(text) <= MAX_SYNTAX_CHARS:
            codes = [code for code in codes if not syntax_error(_without_indentation(code))] or codes
        if codes:
            code = max(reversed(codes), key=len)
            return self._body(code) or _without_indentation(code)
        inline = INLINE.match(text.strip())
        return inline[1] if inline else self._body(text) or _without_indentation(text).strip()

    def labelled_codes(self, blocks: Iterable[CodeBlock]) -> list[str]:
        """Return the code of the blocks that are labelled with the language."""
        labels = {self.language, *ALIASES.get(self.language, ())}
        return [block.code for block in blocks if block.label in labels]

    def _body(self, code: str) -> str:
        """Return code that is the body of a Python function, with its indentation; "" for other code."""
        return function_body(code) if self.language == "python" else ""

    def read(self, text: str) -> str:
        """Return the code. Raises InvalidAnswer if there is none, or if it is Python with an error of syntax."""
        if not text.strip():
            raise InvalidAnswer(("there is no code",))
        if self.language == "python" and (problem := syntax_error(text)) and not function_body(text):
            raise InvalidAnswer((problem,))
        return text

    def check(self, text: str) -> Check:
        """Return whether the text is valid, as a requirement does."""
        try:
            self.read(text)
        except InvalidAnswer as invalid:
            return Check(ok=False, measurement=str(invalid))
        return Check(ok=True, measurement=f"valid as {self.name}")

    def repairs(self, text: str) -> Iterator[Edit]:
        """Yield Python with its syntax repaired, if small changes are enough (see `redraft.code.slips`)."""
        if self.language != "python" or function_body(text):
            return
        from ..code.proposals import repaired_syntax
        from ..code.slips import loses_lines

        if repaired := repaired_syntax(text):
            yield Edit(repaired.code, repaired.note, lossy=loses_lines(text, repaired.code))

    def to_data(self, value: str, text: str) -> Any:
        return value

    def accepts(self, annotation: Any) -> bool:
        """Return False: graders get the code as text in any case."""
        return False


def _without_indentation(code: str) -> str:
    """Return code without the indentation that all its lines have, as the body of a function alone may come."""
    return textwrap.dedent(code) if code.lstrip("\n")[:1] in {" ", "\t"} else code


def function_body(code: str) -> str:
    """Return code that is the body of a function, with the indentation of its first line if only that was lost; "" for other code.

    A body that is not indented is code like any other.
    """
    lines = [line for line in code.splitlines() if line.strip()]
    if not lines or len(code) > MAX_SYNTAX_CHARS or ("return" not in code and "yield" not in code):
        return ""
    body = code.strip("\n").rstrip()
    if not lines[0][0].isspace():
        if DEFINITION.match(lines[0]):
            return ""
        depths = [len(line) - len(line.lstrip()) for line in lines[1:]]
        body = " " * min(depths, default=0) + body
    dedented = textwrap.dedent(body)
    return body if dedented != body and not syntax_error(dedented) and _returns(dedented) else ""


def _returns(code: str) -> bool:
    """Whether there is a `return` or `yield` outside of the functions and classes of the code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        left: list[ast.AST] = [ast.parse(code)]
    while left:
        node = left.pop()
        if isinstance(node, ast.Return | ast.Yield | ast.YieldFrom):
            return True
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            left += ast.iter_child_nodes(node)
    return False


def code_blocks(text: str, language: str) -> list[CodeBlock]:
    """Return the code blocks of a text. One that is not closed ends with the text."""
    blocks: list[CodeBlock] = []
    at = 0
    while len(blocks) < MAX_BLOCKS and (opening := OPENING_FENCE.search(text, at)):
        code, at = _block_at(text, opening, language)
        blocks.append(CodeBlock(opening[3].lower().strip("{}."), code))
    return [block for block in blocks if block.code.strip()]


def _block_at(text: str, opening: re.Match[str], language: str) -> tuple[str, int]:
    """Return the code of the block that begins here, and where it ends.

    Python may hold a fence in a text: if the code up to the first closing fence is not Python, later ones are tried.
    """
    closing = re.compile(rf"^[ \t]*+{opening[2]}[ \t]*+$\n?", re.MULTILINE)
    first: tuple[str, int] | None = None
    at = opening.end()
    for _ in range(MAX_CLOSINGS):
        end = closing.search(text, at)
        code = _dedent(text[opening.end() : end.start() if end else len(text)], opening[1])
        block = code, end.end() if end else len(text)
        first = first or block
        if language != "python" or end is None or len(text) > MAX_SYNTAX_CHARS or not syntax_error(code):
            return block if end or first is block else first
        at = end.end()
    return first or ("", len(text))


def _dedent(code: str, indentation: str) -> str:
    code = code.removesuffix("\n")
    return textwrap.dedent(code) if indentation else code


def syntax_error(code: str) -> str:
    """Return what is wrong with the syntax of Python code, and where; "" if nothing is, or the code is too long to check."""
    if len(code) > MAX_SYNTAX_CHARS:
        return ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(code)
    except SyntaxError as error:
        version = ".".join(map(str, sys.version_info[:2]))
        return f"line {error.lineno}: {str(error.msg)[:200]} (checked with Python {version})"
    except (ValueError, RecursionError, MemoryError) as error:
        return f"the code cannot be parsed: {str(error)[:200] or type(error).__name__}"
    return ""
