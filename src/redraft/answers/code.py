"""Answers that are code: `answer="code:python"`."""

from __future__ import annotations

import ast
import itertools
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Self

from ..base.lazy_imports import extension
from ..errors import ConfigError
from ..models.reasoning import split_reasoning
from ..protocols import Edit
from .base import AnswerForm, InvalidAnswer
from .python_program import ProgramTests, tested_program
from .python_source import PARSER_ERRORS, PYTHON_VERSION, FunctionNode, parse_quietly

if TYPE_CHECKING:
    from ..loop.task import Task

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
OPENING_FENCE = re.compile(
    r"^([ \t]*+(?:(?:-|\d{1,3}[.)])[ \t]++)?)(```++|~~~++)[ \t]*+([^\s`]*+)[^\n`]*+\n", re.MULTILINE
)
FENCE_LINE = re.compile(r"[ \t]*(?:```|~~~)[\w+-]*[ \t]*")
LABEL = re.compile(r"[a-z0-9+#.-]*")
# such as [BEGIN] and [DONE]
TAGS = re.compile(r"\A\s*\[[A-Z]+\][ \t]*\n|\n[ \t]*\[/?[A-Z]+\]\s*\Z")
ANSWER_TAGS = re.compile(r"<answer>(?=```)|(?<=```)</answer>")
INLINE = re.compile(r"\A(`{1,3})([^`\n]+)\1\Z")
TRIPLE_QUOTES = re.compile(r"\"{3}|'{3}")
LINE_ENDS = re.compile(r"\r\n?")
CODE_START = re.compile(
    r"^(?:(?:async\s+)?def\s|class\s+\w+\s*[(:]|import\s+\w|from\s+[\w.]+\s+import\b|@\w|\w+\s*=)",
    re.MULTILINE,
)
FIRST_LINE = re.compile(
    r"(?:(?:async\s+def|def|class)\s+\w+.*[:(,]|import\s+[\w., ]+|from\s+[\w.]+\s+import\b.*|@\w.*)\s*(?:#.*)?$"  # noqa: E501
)
DEFINITION = re.compile(r"(async\s+def|def|class|import|from)\b|@")
STATEMENT = re.compile(  # a line of code with a mistake, rather than prose
    r"\s|@|(?:def|class|async|if|elif|else|for|while|try|except|finally|with|return|raise|assert|import|from|del|global|print)\b"
    r"|[\w.\[\]]+\s*(?:[-+*/%&|^]?=|\()"
)
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\s*(?::[^=\n]+)?=(?!=)")
MAX_ASSIGNMENTS = 3  # between prose, with which code is tried to begin
MAX_BLOCKS = 50  # code blocks of an answer that are looked at
# ends of a block that are tried, for code that holds a fence itself; also of code without a fence
MAX_CLOSINGS = 8
# in longer answers, and of longer code, the syntax is not checked: parsing may take quadratic time
MAX_SYNTAX_CHARS = 40_000


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """A block between fences: its label, in lower case, and its code."""

    label: str
    code: str


@dataclass(frozen=True)
class CodeAnswer(AnswerForm[str]):
    """Code in one language. Graders see, and `result.value` and `result.parsed` are, the code
    without fences and prose.

    A text that is Python as a whole is the code. Reasoning before an answer, such as between
    <think> and </think>, is left out. Else it is one of the code blocks: of those labelled with the
    language, or without a label if there are none. Of Python, those count whose syntax is right,
    and that are more than values, if there are any. If the task has tests, it is the last block
    that defines what they call, together with the blocks that define what that one uses; if they
    give texts to standard input, the last one that reads it. Without tests it is the longest, the
    last of equally long ones. Without such a block the answer is the Python between prose, or the
    whole text. The body of a Python function alone, with `return`, keeps its indentation. The
    syntax of Python is checked with the parser of the Python that runs Redraft.

    Raises ConfigError for what is not the name of a language.
    """

    language: str
    tests: ProgramTests | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.language, str) or not LANGUAGE.fullmatch(self.language):
            raise ConfigError(
                "answer: 'code:' must be followed by a language, such as code:python, got "
                f"{self.language!r:.80}"
            )

    @property
    def name(self) -> str:
        return f"{self.language} code"

    @property
    def spec(self) -> str:
        return f"code:{self.language}"

    @property
    def fingerprint(self) -> str:
        return sha256(self.spec.encode()).hexdigest()[:16]

    @property
    def editable(self) -> bool:
        return self.language == "python"

    @property
    def demand(self) -> str:
        return f"the whole answer is {self.language} code in one code block; no other text"

    def for_task(self, task: Task) -> Self:
        """Return the form of the answers to a task, whose tests say which code of an answer is the
        program.
        """
        if self.language != "python" or not task.tests:
            return self
        try:
            return replace(self, tests=extension("tests").task_tests(task))
        except ConfigError:  # what grades the task says so
            return self

    def extract(self, text: str, *, given: bool = False) -> str:
        """Return the code in an answer, or the whole text, without the indentation of all lines; a
        function's body keeps it.
        """
        text = without_reasoning(plain_text(text))
        is_python = self.language == "python"
        blocks = code_blocks(text, self.language)
        codes = self.labelled_codes(blocks) or [block.code for block in blocks if not block.label]
        if is_python and blocks and len(text) <= MAX_SYNTAX_CHARS:
            if self.tests and (program := self._tested_code(blocks, codes, self.tests)):
                return program
            codes = _codes_that_count(codes)
        if codes:
            code = max(reversed(codes), key=len)
            return (is_python and function_body(code)) or _without_indentation(code)
        return (
            self._inline_code(text.strip())
            or (is_python and (function_body(text) or code_between_prose(text)))
            or _without_indentation(text).strip()
        )

    def _inline_code(self, text: str) -> str:
        """Return what is between backticks, without its label, if that is the whole text; else
        "".
        """
        inline = INLINE.match(text)
        if inline is None:
            return ""
        label, _, code = inline[2].strip().partition(" ")
        return code if code and label in self._labels and len(inline[1]) > 1 else inline[2]

    def _tested_code(
        self, blocks: Sequence[CodeBlock], codes: Sequence[str], tests: ProgramTests
    ) -> str:
        """Return what is tested of the blocks: `codes`, else those without a label as well, else
        all; "" if none of them is.
        """
        without_label = [block.code for block in blocks if not block.label or block.code in codes]
        for group in (codes, without_label, [block.code for block in blocks]):
            valid = [code for code in map(_without_indentation, group) if not syntax_error(code)]
            if program := tested_program(valid, tests):
                return program
        return ""

    def labelled_codes(self, blocks: Iterable[CodeBlock]) -> list[str]:
        """Return the code of the blocks that are labelled with the language."""
        return [block.code for block in blocks if block.label in self._labels]

    @property
    def _labels(self) -> Sequence[str]:
        return (self.language, *ALIASES.get(self.language, ()))

    def read(self, text: str) -> str:
        """Return the code. Raises InvalidAnswer if there is none, or if it is Python with an error
        of syntax.
        """
        if not text.strip():
            raise InvalidAnswer(("there is no code",))
        if (
            self.language == "python"
            and (problem := syntax_error(text))
            and not function_body(text)
        ):
            raise InvalidAnswer((problem,))
        return text

    def repairs(self, text: str) -> Iterator[Edit]:
        """Yield Python without the code fences and the indentation that keep it from being Python.

        The body of a function alone is left as it is.
        """
        if self.language == "python" and syntax_error(text) and not function_body(text):
            lines = [line for line in text.split("\n") if not FENCE_LINE.fullmatch(line)]
            code = textwrap.dedent("\n".join(lines))
            if is_code(code):
                yield Edit(code, "removed what was left around the code")

    def to_data(self, value: str, text: str) -> Any:
        return value

    def accepts(self, annotation: Any) -> bool:
        """Return False: graders get the code as text in any case."""
        return False


def plain_text(text: str) -> str:
    """Return a text with line ends of one character, and without a byte order mark."""
    return LINE_ENDS.sub("\n", text.removeprefix("\ufeff"))


def without_reasoning(text: str) -> str:
    """Return the answer in a text with reasoning, unless that is all there is; a text that is
    Python as a whole stays so.
    """
    answer = ANSWER_TAGS.sub("\n", split_reasoning(text).answer)
    return (
        text
        if answer == text or not answer.strip() or is_code(_without_indentation(text))
        else answer
    )


def is_code(code: str) -> bool:
    """Return whether a text is Python that does something: values alone, such as an output or a
    text in quotes, do nothing.
    """
    return (
        len(code) <= MAX_SYNTAX_CHARS
        and not syntax_error(code)
        and not all(map(_is_value, parse_quietly(code).body))
    )


def _is_value(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and not isinstance(node.value, ast.Call | ast.Await)


def _codes_that_count(codes: list[str]) -> list[str]:
    """Return the codes that do something; if there are none, those whose syntax is right, else
    all.
    """
    dedented = [(code, _without_indentation(code)) for code in codes]
    return (
        [code for code, bare in dedented if is_code(bare)]
        or [code for code, bare in dedented if not syntax_error(bare)]
        or codes
    )


def code_between_prose(text: str) -> str:
    """Return the functions and classes, and what is around them, of a text with prose before or
    after; "" for Python alone, and for a long text.
    """
    if len(text) > MAX_SYNTAX_CHARS:
        return ""
    untagged = TAGS.sub("", text)
    if untagged != text and not syntax_error(untagged):
        return untagged
    lines = text.split("\n")
    first = next((n for n, line in enumerate(lines) if FIRST_LINE.match(line)), None)
    # with other functions after it
    is_body = text[:1] in {" ", "\t"} and not syntax_error(f"def body():\n{text}")
    if is_body or not syntax_error(text):
        return ""
    if first is None:
        return _indented_code(lines)
    assigned = [n for n in range(first) if ASSIGNMENT.match(lines[n])]
    starts = (0, *assigned[:MAX_ASSIGNMENTS], first)
    return next(filter(None, (_code_before_prose(lines[start:]) for start in starts)), "")


def _indented_code(lines: Sequence[str]) -> str:
    """Return the Python among lines of prose that is indented as code is in Markdown; "" if there
    is none with a definition.
    """
    if any(line.strip() and not line[0].isspace() and STATEMENT.match(line) for line in lines):
        return ""
    code = textwrap.dedent(
        "\n".join(line for line in lines if not line.strip() or line.startswith(("    ", "\t")))
    ).strip("\n")
    return code if CODE_START.search(code) and is_code(code) else ""


def _code_before_prose(lines: Sequence[str]) -> str:
    """Return the Python that the lines begin with, up to a line of prose; "" if what is no Python
    there is a mistake in code.
    """
    for _ in range(MAX_CLOSINGS):
        try:
            tree = parse_quietly("\n".join(lines))
        except PARSER_ERRORS as error:
            line = getattr(error, "lineno", None) or 0
            if line < 2 or not lines[line - 1 : line] or STATEMENT.match(lines[line - 1]):
                return ""
            lines = lines[: line - 1]
        else:
            first, last = _without_values(tree.body, len(lines))
            return (
                "\n".join(lines[first:last]).strip()
                if any(isinstance(node, FunctionNode | ast.ClassDef) for node in tree.body)
                else ""
            )
    return ""


def _without_values(body: Sequence[ast.stmt], last: int) -> tuple[int, int]:
    """Return the first and the last line without words and tags before and after code, such as
    `[PYTHON]` or `Done`.
    """
    first = 0
    for node in itertools.takewhile(_is_word, body):
        first = node.end_lineno or 0
    for node in itertools.takewhile(_is_word, reversed(body)):
        last = node.lineno - 1
    return first, last


def _is_word(node: ast.stmt) -> bool:
    """Return whether a statement does nothing and documents nothing."""
    match node:
        case ast.Expr(value=ast.Constant()):
            return False
        case ast.AnnAssign(value=None):
            return True
    return _is_value(node)


def _without_indentation(code: str) -> str:
    """Return code without the indentation that all its lines have, as the body of a function alone
    may come.
    """
    return textwrap.dedent(code) if code.lstrip("\n")[:1] in {" ", "\t"} else code


def function_body(code: str) -> str:
    """Return code that is the body of a function, with the indentation of its first line if only
    that was lost; "" for other code.

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
    left: list[ast.AST] = [parse_quietly(code)]
    while left:
        node = left.pop()
        if isinstance(node, ast.Return | ast.Yield | ast.YieldFrom):
            return True
        if not isinstance(node, FunctionNode | ast.ClassDef | ast.Lambda):
            left += ast.iter_child_nodes(node)
    return False


def code_blocks(text: str, language: str) -> list[CodeBlock]:
    """Return the code blocks of a text. One that is not closed ends with the text. A text that is
    Python as a whole has none.
    """
    text = without_reasoning(plain_text(text))
    blocks: list[CodeBlock] = []
    at = start = 0  # where the next fence may be, and where the text before it begins
    has_code = in_quotes = (
        # of what is outside of the blocks: a fence in a text in three quotes is part of code there
        False
    )
    if language == "python" and OPENING_FENCE.search(text) and is_code(_without_indentation(text)):
        return []
    while len(blocks) < MAX_BLOCKS and (opening := OPENING_FENCE.search(text, at)):
        between = text[start : opening.start()]
        has_code = language == "python" and (has_code or CODE_START.search(between) is not None)
        in_quotes = has_code and in_quotes != _is_in_quotes(between)
        inner = OPENING_FENCE.match(text, opening.end())
        if in_quotes or (inner and inner[3]):  # or a fence around a fence
            at = start = opening.end()
            continue
        code, at = _block_at(text, opening, language)
        start, has_code = at, False
        label = LABEL.match(opening[3].lower().lstrip("{."))
        blocks.append(CodeBlock(label[0] if label else "", code))
    return [block for block in blocks if block.code.strip()]


def _is_in_quotes(text: str) -> bool:
    """Return whether a text ends inside of a text in three quotes."""
    return len(TRIPLE_QUOTES.findall(text)) % 2 == 1


def _block_at(text: str, opening: re.Match[str], language: str) -> tuple[str, int]:
    """Return the code of the block that begins here, and where it ends.

    Python may hold a fence in a text: if the code up to the first closing fence is not Python,
    later ones are tried, and if all are not, it is the first one outside of a text in three quotes.
    """
    fence = opening[2]
    closing = re.compile(rf"^[ \t]*+{fence}{fence[0]}*+[ \t]*+$\n?", re.MULTILINE)
    found: list[tuple[str, int]] = []
    at = opening.end()
    for _ in range(MAX_CLOSINGS):
        end = closing.search(text, at)
        code = _dedent(text[opening.end() : end.start() if end else len(text)], opening[1])
        block = code, end.end() if end else len(text)
        if language != "python" or len(text) > MAX_SYNTAX_CHARS or not syntax_error(code):
            return block
        if end is None:
            found = found or [block]
            break
        found.append(block)
        at = end.end()
    return next((block for block in found if not _is_in_quotes(block[0])), found[0])


def _dedent(code: str, indentation: str) -> str:
    code = code.removesuffix("\n")
    return textwrap.dedent(code) if indentation else code


def syntax_error(code: str) -> str:
    """Return what is wrong with the syntax of Python code, and where; "" if nothing is, or the code
    is too long to check.
    """
    if len(code) > MAX_SYNTAX_CHARS:
        return ""
    try:
        parse_quietly(code)
    except SyntaxError as error:
        return f"line {error.lineno}: {str(error.msg)[:200]} (checked with Python {PYTHON_VERSION})"
    except PARSER_ERRORS as error:
        return f"the code cannot be parsed: {str(error)[:200] or type(error).__name__}"
    return ""
