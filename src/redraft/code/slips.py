"""Repairs of syntax: slips of the pen, text around the code, and Python 2.

`repair_syntax` follows the compiler: it looks at the first error, tries what is known to cause such
an error, and goes on with the changes after which the first error lies farthest down, until the
code compiles. All changes are small, and the code is never run.
"""

from __future__ import annotations

import ast
import html
import keyword
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from .source import (
    MAX_CHARS,
    Problem,
    Proposal,
    compiles,
    indentation,
    parse_tree,
    syntax_problem,
    with_lines,
    without_comment,
)

MAX_STEPS = 16  # changes of one repair
MAX_PROPOSALS = 60  # changes that are tried for one error
MAX_TRIES = 1_500  # changes that are tried in all
MAX_WORK = 4_000_000  # characters that are compiled in all
BEAM_WIDTH = 4  # of the changed codes that do not compile yet, how many are followed
TOKENIZER_ERROR = re.compile(
    r"never closed|unmatched|does not match|unterminated|invalid (character|non-printable|\w+ literal)|tabs"  # noqa: E501
)
# no value ends there
AFTER_KEYWORD = re.compile(rf"\b({'|'.join(set(keyword.kwlist) - {'None', 'True', 'False'})})$")
MAX_LOST_LINES = 0.5  # share of the lines that may be removed
OPENING = {"(": ")", "[": "]", "{": "}"}
CLOSING = {closer: opener for opener, closer in OPENING.items()}
TYPOGRAPHY = str.maketrans(
    dict.fromkeys("\u201c\u201d\u201e\u201f\u00ab\u00bb\uff02", '"')
    | dict.fromkeys("\u2018\u2019\u201a\u201b\u00b4\uff07", "'")
    | dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212\ufe63\uff0d", "-")
    | dict.fromkeys(
        "\u00a0\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000",
        " ",
    )
    | dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff\u00ad", "")
    | {
        "\u00d7": "*",
        "\u00f7": "/",
        "\u2264": "<=",
        "\u2265": ">=",
        "\u2260": "!=",
        "\u2026": "...",
        "\u2192": "->",
    }
    | {
        "\uff08": "(",
        "\uff09": ")",
        "\uff1a": ":",
        "\uff0c": ",",
        "\uff1b": ";",
        "\uff1d": "=",
        "\u3002": ".",
    }
)
COMPOUND = re.compile(
    r"\s*(async\s+)?(def|class|if|elif|else|for|while|try|except|finally|with|match|case)\b"
)
STATEMENT = re.compile(
    r"\s*(def|class|if|elif|else|for|while|try|except|finally|with|return|import|from|raise|assert|pass|break|continue|del|global|"
    r"nonlocal|yield|async|await|lambda|print|not)\b(?! (is|the|this|a|an|you|we|it|these|that|above|below|each)\b)"  # noqa: E501
)
RETURN = re.compile(r"\s*(return|raise)\b")
CODE_SIGNS = re.compile(r"[=\[\]{}]|\w\(|^\s*[@#]|^\s*['\"]|^\s*\w+\.\w+|[)\],]\s*$")
PROSE = re.compile(
    r"\s*([-*>]+ |\d+[.)] |#+ )?[\"'(*_`]*[A-Za-z][\w'’,;*_`-]*(([ ,.:;!?'’()*_`\"/-]+[\w'’*_`-]+)+[ .:;!?)*_`\"]*|[.!])$"  # noqa: E501
)
FENCE = re.compile(r"^\s*(```|~~~)[\w+-]*\s*$")
PROMPT = re.compile(r"^\s*(>>>|\.\.\.)( |$)")
NUMBERED = re.compile(r"^\s*\d+\s*[:|.]?(\s|$)")


def repair_syntax(code: str) -> Proposal | None:
    """Return the code with its errors of syntax repaired; None if it compiles, if it cannot be
    repaired, or if it is too long.

    At most half of the lines are removed, no whole `return` among them, and at most 16 changes are
    made.
    """
    if len(code) > MAX_CHARS or not code.strip() or syntax_problem(code) is None:
        return None
    start = code.replace("\r\n", "\n").replace("\r", "\n")
    least = _code_lines(code) - max(1, MAX_LOST_LINES * _code_lines(code))
    states, tried, returns = [Proposal(start, "")], {start}, _returns(start)
    for _ in range(MAX_STEPS):
        found: list[tuple[tuple[int, int, int], Proposal]] = []
        for state, proposal in _next_proposals(states, tried):
            problem = syntax_problem(proposal.code)
            if problem:
                found.append((_progress(problem), _with_note(state, proposal)))
            elif (
                _code_lines(proposal.code) >= least
                and _returns(proposal.code) >= returns
                and compiles(proposal.code)
            ):
                return _with_note(state, proposal)
        states = [
            proposal
            for _, proposal in sorted(found, key=lambda item: item[0], reverse=True)[:BEAM_WIDTH]
        ]
    return None


def _returns(code: str) -> int:
    """Return how many lines are a whole statement that returns or raises."""
    return sum(_is_statement(line) for line in code.split("\n") if RETURN.match(line))


def loses_lines(before: str, after: str) -> bool:
    """Return whether code has fewer lines than before; empty ones do not count, nor does `pass`,
    which may have been added.
    """
    return _content_lines(before) > _content_lines(after)


def _content_lines(code: str) -> int:
    return sum(line.strip() not in ("", "pass") for line in code.split("\n"))


def _next_proposals(
    states: Sequence[Proposal], tried: set[str]
) -> Iterator[tuple[Proposal, Proposal]]:
    """Yield each state with the proposals for its first error that are new."""
    for state in states:
        problem = syntax_problem(state.code)
        for proposal in islice(_proposals(state.code, problem), MAX_PROPOSALS) if problem else ():
            if proposal.code not in tried and len(tried) < min(
                MAX_TRIES, MAX_WORK // len(state.code)
            ):
                tried.add(proposal.code)
                yield state, proposal


def _with_note(state: Proposal, proposal: Proposal) -> Proposal:
    notes = dict.fromkeys(filter(None, (*state.note.split("; "), proposal.note)))
    return Proposal(proposal.code, "; ".join(notes))


def _progress(problem: Problem) -> tuple[int, int, int]:
    """Return how far the compiler came: it reports errors of the tokenizer in the whole text before
    those of the parser.
    """
    return (0 if TOKENIZER_ERROR.search(problem.message) else 1, problem.line, problem.column)


def _code_lines(code: str) -> int:
    return sum(
        bool(line.strip()) and not is_prose(line) and not FENCE.match(line)
        for line in code.split("\n")
    )


def _proposals(code: str, problem: Problem) -> Iterator[Proposal]:
    """Yield changes that may remove the first error, the likeliest and smallest first."""
    lines = code.split("\n")
    at = problem.line - 1
    for change in WHOLE_TEXT:
        yield from change(code, lines)
    for fix in FIXES:
        for line, new, note in fix(lines, at, problem):
            yield Proposal(
                with_lines(lines, line, line + len(new[0]), new[1]), f"line {line + 1}: {note}"
            )


# ---- the whole text


def _without_fences(code: str, lines: Sequence[str]) -> Iterator[Proposal]:
    if any(FENCE.match(line) for line in lines):
        yield Proposal(
            "\n".join(line for line in lines if not FENCE.match(line)), "removed the code fence"
        )


def _without_common_indentation(code: str, lines: Sequence[str]) -> Iterator[Proposal]:
    if (dedented := textwrap.dedent(code)) != code:
        yield Proposal(dedented, "removed the indentation of all lines")


def _without_prompts(code: str, lines: Sequence[str]) -> Iterator[Proposal]:
    """Remove the prompts of an interactive session, and the output between them."""
    if sum(bool(PROMPT.match(line)) for line in lines) >= 2:
        inputs = (line.lstrip()[4:] for line in lines if PROMPT.match(line))
        yield Proposal("\n".join(inputs), "removed the prompts of the interactive session")


def _without_line_numbers(code: str, lines: Sequence[str]) -> Iterator[Proposal]:
    used = [line for line in lines if line.strip()]
    if len(used) > 1 and all(NUMBERED.match(line) for line in used):
        bare = "\n".join(re.sub(r"^\s*\d+(\s*[:|.])?", "", line) for line in lines)
        yield Proposal(textwrap.dedent(bare), "removed the line numbers")


WHOLE_TEXT: Sequence[Callable[[str, Sequence[str]], Iterator[Proposal]]] = (
    _without_fences,
    _without_common_indentation,
    _without_prompts,
    _without_line_numbers,
)


# ---- one line: each function yields (line, (old lines, new lines), note)

Change = tuple[int, tuple[Sequence[str], Sequence[str]], str]
Fix = Callable[[Sequence[str], int, Problem], Iterator[Change]]


def _replace(at: int, line: str, new: str, note: str) -> Iterator[Change]:
    if new != line:
        yield at, ([line], [new]), note


def _prose(lines: Sequence[str], at: int, problem: Problem) -> Iterator[Change]:
    """Remove the paragraph of prose that begins or ends at the error."""
    first = at
    while first > 0 and lines[first - 1].strip() and is_prose(lines[first - 1]):
        first -= 1
    last = at
    while last < len(lines) and lines[last].strip() and is_prose(lines[last]):
        last += 1
    if last > at:
        yield first, (lines[first:last], []), "removed text that is not code"


def is_prose(line: str) -> bool:
    """Return whether a line reads as a sentence and not as code."""
    return (
        bool(PROSE.match(line))
        and not STATEMENT.match(line)
        and not CODE_SIGNS.search(line.partition("`")[0])
    )


def _typography(lines: Sequence[str], at: int, problem: Problem) -> Iterator[Change]:
    note = "replaced typographic characters by ASCII"
    yield from _replace(at, lines[at], lines[at].translate(TYPOGRAPHY), note)
    if "character" in problem.message or "string literal" in problem.message:
        yield 0, (lines, [line.translate(TYPOGRAPHY) for line in lines]), note


def _entities(lines: Sequence[str], at: int, problem: Problem) -> Iterator[Change]:
    if re.search(r"&(lt|gt|amp|quot|#39|#x27|nbsp);", lines[at]):
        yield (
            0,
            (lines, [html.unescape(line).translate({0xA0: " "}) for line in lines]),
            "replaced HTML entities",
        )


def _colon(lines: Sequence[str], at: int, problem: Problem) -> Iterator[Change]:
    """Add the colon at the end of a compound statement; the error may stand on the line after
    it.
    """
    for line in (at, at - 1):
        if line >= 0 and COMPOUND.match(lines[line]):
            code, rest = without_comment(lines[line])
            if code and not code.endswith((":", ",", "\\")):
                yield from _replace(line, lines[line], f"{code}:{rest}", "added the missing colon")
            if code.endswith((";", "{", ",", ".")):
                yield from _replace(
                    line,
                    lines[line],
                    f"{code[:-1].rstrip()}:{rest}",
                    "replaced the last character by a colon",
                )
    if problem.message == "expected ':'" and 0 < problem.column <= len(lines[at]):
        start, end = lines[at][: problem.column - 1].rstrip(), lines[at][problem.column - 1 :]
        yield from _replace(at, lines[at], f"{start}: {end.lstrip()}", "added the missing colon")


def _operators(lines: Sequence[str], at: int, problem: Problem) -> Iterator[Change]:
    """Rewrite operators and words of other languages, and `=` where a comparison is meant."""
    line = lines[at]
    if COMPOUND.match(line) or "Maybe you meant '=='" in problem.message:
        yield from _replace(
            at,
            line,
            re.sub(r"(?<![=!<>:+\-*/%&|^])=(?!=)", "==", line, count=1),
            "compared with == and not =",
        )
    everything = line
    for pattern, replacement, note in OTHER_LANGUAGES:
        yield from _replace(at, line, re.sub(pattern, replacement, line), note)
        everything = re.sub(pattern, replacement, everything)
    yield from _replace(at, line, everything, "wrote the operators of Python")


OTHER_LANGUAGES: Sequence[tuple[str, str, str]] = (
    (r"\belse\s+if\b|\b(elseif|elsif)\b", "elif", "wrote `elif`"),
    (r"\s*&&\s*", " and ", "wrote `and`"),
    (r"\s*\|\|\s*", " or ", "wrote `or`"),
    (r"!\s*(?=[A-Za-z_(])", "not ", "wrote `not`"),
    (r"=>(?!\s*\{)", ">=", "wrote `>=`"),
    (r"=<", "<=", "wrote `<=`"),
    (r"<>|!==", "!=", "wrote `!=`"),
    (r"===", "==", "wrote `==`"),
    (r"(\w+)\s*\+\+\s*;?\s*$", r"\1 += 1", "wrote `+= 1`"),
    (r"(\w+)\s*--\s*;?\s*$", r"\1 -= 1", "wrote `-= 1`"),
    (r"\b0+([1-9]\d*)\b", r"\1", "removed leading zeros"),
    (r"\b(\d+)[lL]\b", r"\1", "removed the suffix of a number"),
    (r"\bur(?=[\"'])", "r", "removed the prefix of a string"),
    (r"`([^`]+)`", r"repr(\1)", "called `repr`"),
    (r"^(\s*)(function|func|fn)\s+(?=\w+\s*\()", r"\1def ", "wrote `def`"),
    (r"^(\s*)(let|var|const)\s+(?=\w+\s*=)", r"\1", "removed a word of another language"),
    (r"^(\s*)catch\b.*?:?\s*$", r"\1except Exception:", "wrote `except`"),
    (r"\bnew\s+(?=[A-Z]\w*\()", "", "removed `new`"),
)


def _python_2(lines: Sequence[str], at: int, problem: Problem) -> Iterator[Change]:
    line = lines[at]
    code, rest = without_comment(line)
    if printed := re.match(r"(\s*)print\s+(?!\()(.+)$", code) or re.match(
        r"(\s*)print\s+(.+)$", code
    ):
        yield from _replace(
            at,
            line,
            f"{printed[1]}print({printed[2].rstrip(',')}){rest}",
            "called print as a function",
        )
    if caught := re.match(r"(\s*except\s+)([\w.]+|\([^)]*\))\s*,\s*(\w+)\s*:(.*)$", code):
        yield from _replace(
            at,
            line,
            f"{caught[1]}{caught[2]} as {caught[3]}:{caught[4]}{rest}",
            "wrote `except ... as`",
        )
    if thrown := re.match(r"(\s*raise\s+)([\w.]+)\s*,\s*(.+)$", code):
        yield from _replace(
            at,
            line,
            f"{thrown[1]}{thrown[2]}({thrown[3]}){rest}",
            "raised the exception with its argument",
        )
    if run := re.match(r"(\s*)exec\s+(?!\()(.+)$", code):
        yield from _replace(at, line, f"{run[1]}exec({run[2]}){rest}", "called exec as a function")


def _words(lines: Sequence[str], at: int, problem: Problem) -> Iterator[Change]:
    """Correct a misspelled keyword at the start of the line."""
    from rapidfuzz import distance

    first = re.match(r"(\s*)([A-Za-z]+)\b(?!\s*[=(.\[])", lines[at])
    if first and first[2] not in keyword.kwlist:
        near = [
            word
            for word in keyword.kwlist
            if word.islower()
            and len(word) > 2
            and distance.OSA.distance(first[2].lower(), word) <= 1
        ]
        for word in near:
            yield from _replace(
                at,
                lines[at],
                f"{first[1]}{word}{lines[at][first.end() :]}",
                f"corrected {first[2]!r} to {word!r}",
            )


def _brackets(lines: Sequence[str], at: int, problem: Problem) -> Iterator[Change]:
    """Close a bracket, remove one that closes nothing, or replace one that does not match."""
    message, line = problem.message, lines[at]
    if opened := re.match(r"'([(\[{])' was never closed", message):
        yield from _close(lines, at, OPENING[opened[1]])
        column = problem.column - 1
        yield from _replace(
            at, line, line[:column] + line[column + 1 :], f"removed the unmatched {opened[1]!r}"
        )
    elif unmatched := re.match(r"unmatched '([)\]}])'", message):
        column = problem.column - 1
        yield from _replace(
            at, line, line[:column] + line[column + 1 :], f"removed the unmatched {unmatched[1]!r}"
        )
        for place in _statement_starts(line, column):
            yield from _replace(
                at,
                line,
                line[:place] + CLOSING[unmatched[1]] + line[place:],
                "added the missing opening bracket",
            )
    elif mismatch := re.match(
        r"closing parenthesis '(.)' does not match opening parenthesis '(.)'", message
    ):
        column = problem.column - 1
        closer = OPENING[mismatch[2]]
        yield from _replace(
            at, line, line[:column] + closer + line[column:], f"added the missing {closer!r}"
        )
        yield from _replace(
            at,
            line,
            line[:column] + closer + line[column + 1 :],
            f"replaced {mismatch[1]!r} by {closer!r}",
        )
        before = re.search(r"on line (\d+)", message)
        yield from _close(lines, int(before[1]) - 1 if before else at, closer)
    else:
        yield from _close_open_line(lines, at)


def _close(lines: Sequence[str], at: int, closer: str) -> Iterator[Change]:
    """Add a closing bracket to the line, and to those after it: before the colon or comma at its
    end, or after everything.
    """
    for line in range(at, min(at + 6, len(lines))):
        code, rest = without_comment(lines[line])
        note = f"added the missing {closer!r}"
        if code.endswith((":", ",")):
            yield from _replace(line, lines[line], f"{code[:-1]}{closer}{code[-1]}{rest}", note)
        yield from _replace(line, lines[line], f"{code}{closer}{rest}", note)
        if COMPOUND.match(code) and not code.endswith(":"):
            yield from _replace(
                line, lines[line], f"{code}{closer}:{rest}", f"{note} and the colon"
            )


def _close_open_line(lines: Sequence[str], at: int) -> Iterator[Change]:
    """Close what the line before the error, or the line itself, leaves open."""
    for line in (at - 1, at):
        if line >= 0 and (closers := open_brackets(without_comment(lines[line])[0])):
            yield from _close(lines, line, closers)


def open_brackets(code: str) -> str:
    """Return what closes the brackets that a line leaves open; brackets in strings don't count."""
    bare = re.sub(r"\"(\\.|[^\"\\])*\"|'(\\.|[^'\\])*'", "", code)
    stack: list[str] = []
    for character in bare:
        if character in OPENING:
            stack.append(OPENING[character])
        elif stack and character == stack[-1]:
            stack.pop()
    return "".join(reversed(stack))


def _statement_starts(line: str, before: int) -> Iterator[int]:
    """Yield where an expression may begin: after `return`, `=`, a comma or an opening bracket, and
    at the start.
    """
    for match in reversed(
        list(
            re.finditer(
                r"^\s*|\breturn\s+|(?<![=!<>])=\s*|[,(\[{]\s*|\b(if|while|in|not|and|or)\s+",
                line[:before],
            )
        )
    ):
        yield match.end()


def _strings(lines: Sequence[str], at: int, problem: Problem) -> Iterator[Change]:
    """Close a string, or write one that holds its own quotation mark with the other one."""
    line = lines[at]
    if "triple-quoted" in problem.message:
        mark = '"""' if '"""' in line else "'''"
        yield len(lines) - 1, ([lines[-1]], [f"{lines[-1]}{mark}"]), "closed the string at the end"
        yield from _replace(at, line, f"{line.rstrip()}{mark}", "closed the string on its line")
    elif "unterminated" in problem.message:
        for mark, other in (("'", '"'), ('"', "'")):
            if line.count(mark) >= 3 and other not in line:
                first, last = line.index(mark), line.rindex(mark)
                new = f"{line[:first]}{other}{line[first + 1 : last]}{other}{line[last + 1 :]}"
                yield from _replace(at, line, new, "used the other quotation marks")
        start = min(problem.column - 1, max(0, len(line) - 1))
        mark = next((character for character in line[start:] if character in "\"'"), '"')
        for end in (r"[)\]}]*:?\s*$", r"[)\]},:;]*\s*$", r"\s*$"):
            place = re.search(end, line)
            assert place
            new = f"{line[: place.start()]}{mark}{line[place.start() :]}"
            yield from _replace(at, line, new, "closed the string")
    if "f-string" in problem.message or re.search(r"\bf[\"']", line):
        yield from _replace(
            at,
            line,
            _with_other_inner_quotes(line),
            "used other quotation marks inside the f-string",
        )


def _with_other_inner_quotes(line: str) -> str:
    """Return the line with other marks for strings inside the braces of an f-string, which Python
    3.11 requires.
    """
    opened = re.search(r"\bf([\"'])", line)
    if not opened:
        return line
    mark, other = (opened[1], "'" if opened[1] == '"' else '"')
    inner = re.sub(r"\{[^{}]*\}", lambda match: match[0].replace(mark, other), line[opened.end() :])
    return line[: opened.end()] + inner


def _commas(lines: Sequence[str], at: int, problem: Problem) -> Iterator[Change]:
    """Add a comma between two values, on the line or at the end of the line before."""
    if "comma" not in problem.message and "invalid syntax" not in problem.message:
        return
    for line in range(max(0, at - 1), min(at + 2, len(lines), problem.end_line + 1)):
        for gap in list(
            re.finditer(r"(?<=[\w\"')\]}])\s+(?=[\w\"'(\[{-])|(?<=[\w\"')\]}])\s*$", lines[line])
        )[:12]:
            if AFTER_KEYWORD.search(lines[line][: gap.start()]):
                continue
            new = f"{lines[line][: gap.start()]},{lines[line][gap.start() :]}"
            yield from _replace(line, lines[line], new, "added the missing comma")


def _indentation(lines: Sequence[str], at: int, problem: Problem) -> Iterator[Change]:
    message = problem.message
    if "tabs" in message or "\t" in indentation(lines[at]):
        for width in (4, 8):
            yield (
                0,
                (lines, [_with_spaces(line, width) for line in lines]),
                "indented with spaces and not with tabs",
            )
    if "expected an indented block" in message:
        yield from _indent_block(lines, at)
    elif "indent" in message or "outside" in message or "invalid syntax" in message:
        yield from _realign(lines, at)


def _with_spaces(line: str, width: int) -> str:
    space = indentation(line)
    return space.expandtabs(width) + line[len(space) :]


def _indent_block(lines: Sequence[str], at: int) -> Iterator[Change]:
    """Indent the line, the lines up to the next empty line or to the end, or add `pass`."""
    header = next(
        (
            line
            for line in range(at - 1, -1, -1)
            if lines[line].strip() and COMPOUND.match(lines[line])
        ),
        None,
    )
    if header is None:
        return
    inner = indentation(lines[header]) + "    "
    empty: Change = header + 1, ([], [f"{inner}pass"]), "added `pass` to an empty block"
    if re.match(r"\s*(def|class|@|async)\b", lines[at]):
        yield empty
    if lines[at].strip():
        end = next((line for line in range(at, len(lines)) if not lines[line].strip()), len(lines))
        level = len(indentation(lines[at]))
        same = next((n for n in range(at, end) if len(indentation(lines[n])) < level), end)
        for last in dict.fromkeys((at + 1, end, same, len(lines))):
            block = [inner + line[level:] if line.strip() else line for line in lines[at:last]]
            yield at, (lines[at:last], block), "indented the block"
    yield empty


def _realign(lines: Sequence[str], at: int) -> Iterator[Change]:
    """Give the line, or the lines with the same or a deeper indentation after it, an indentation
    that is used before it.
    """
    line = lines[at]
    old = indentation(line)
    before = [indentation(each) for each in lines[:at] if each.strip()]
    header = (
        [f"{before[-1]}    "]
        if before and COMPOUND.match(next(x for x in reversed(lines[:at]) if x.strip()))
        else []
    )
    end = next(
        (
            n
            for n in range(at + 1, len(lines))
            if lines[n].strip() and len(indentation(lines[n])) < len(old)
        ),
        len(lines),
    )
    for new in dict.fromkeys([*header, *reversed(before[-12:])]):
        if new != old:
            yield at, ([line], [new + line.lstrip()]), "corrected the indentation"
            block = [new + each[len(old) :] if each.strip() else each for each in lines[at:end]]
            yield at, (lines[at:end], block), "corrected the indentation"


def _tokens(lines: Sequence[str], at: int, problem: Problem) -> Iterator[Change]:
    """Remove the character at the error, or the one before it: an operator that is there twice."""
    line, column = lines[at], problem.column - 1
    for place in (column, column - 1):
        if 0 <= place < len(line) and line[place] in "+-*/%=<>.,:;&|^@\\$":
            yield from _replace(
                at, line, line[:place] + line[place + 1 :], f"removed {line[place]!r}"
            )


def _cut_off_end(lines: Sequence[str], at: int, problem: Problem) -> Iterator[Change]:
    """Remove the last line if the text ends in the middle of it, with the lines that then are no
    use; never whole statements.
    """
    last = next((line for line in range(len(lines) - 1, -1, -1) if lines[line].strip()), 0)
    if (
        at < last - 3
        and "never closed" not in problem.message
        and "triple-quoted" not in problem.message
    ):
        return
    for first in range(last, max(0, last - 4), -1):
        if _is_statement(lines[first]):
            return
        yield first, (lines[first:], []), "removed the end of the code, which was cut off"


def _is_statement(line: str) -> bool:
    """Return whether a line is a whole statement by itself; a value alone may be a part of one."""
    return any(not isinstance(node, ast.Expr) for node in parse_tree(line.strip()).body)


FIXES: Sequence[Fix] = (
    _typography,
    _entities,
    _prose,
    _python_2,
    _colon,
    _strings,
    _brackets,
    _indentation,
    _operators,
    _words,
    _commas,
    _tokens,
    _cut_off_end,
)
