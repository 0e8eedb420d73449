"""Texts that are designed to take a long time, and the operations that process them: requirements,
repairs, computed graders.

`cpu_seconds` measures one operation in a worker, which can be stopped.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from time import process_time

from redraft.answers.editor import FormEditor
from redraft.errors import ConfigError
from redraft.graders.registry import entries, grader_from_spec
from redraft.loop.records import Candidate
from redraft.loop.task import Task
from redraft.requirements import KINDS, parse

ATOMS = {
    "newlines": "\n",
    "CRLF": "\r\n",
    "CR": "\r",
    "spaces": " ",
    "newline space": "\n ",
    "tabs": "\t",
    "line separators": "\u2028",
    "[": "[",
    "{": "{",
    "]": "]",
    "(": "(",
    "[]": "[]",
    "<": "<",
    "<<a>>": "<<a>>",
    "tags": "<b>",
    "tool calls": "<tool_call>",
    "comments": "<!--",
    "`": "`",
    "fences": "```\n",
    "JSON fences": "```json\n{\n```\n",
    "tildes": "~~~\n",
    "#": "#",
    "headings": "# a\n",
    "rules": "---\n",
    "-": "-",
    "bullets": "- a\n",
    "*": "*",
    "*a": "*a",
    "_a": "_a ",
    "digits": "1",
    "digits in lines": "1\n",
    "numbered": "1. a\n",
    "numbers": "1,",
    "powers": "2x10^",
    "addresses": "1.1.1.1 ",
    "hex": "1:",
    "cards": "4111 ",
    "IBAN": "DE11 ",
    "phone": "+1 1",
    "boxed": r"\boxed{1}",
    "open boxes": r"\boxed{",
    "backslashes": "\\",
    "combining": "\u0316\u0301",
    "one combining": "\u0301",
    "emoji": "\U0001f600",
    "joined emoji": "\U0001f469\u200d",
    "URLs": "http://a.b/ ",
    "one URL": "http://a.b/",
    "mail": "a@b.c ",
    "@": "a@",
    "double quotes": '"',
    "single quotes": "'",
    "quoted": '"a" ',
    "open quotes": "\u201c",
    "CJK": "\u4e2d",
    "CJK sentences": "\u4e2d\u3002",
    "kana": "\u304b",
    "one word": "a",
    "words": "Ab ",
    "different": "",  # words that are all different
    "dots": ".",
    "short sentences": "a. ",
    "sentences": "The quick fox jumps. ",
    "paragraphs": "One two.\n\n",
    "labels": "Ab:\n",
    "answers": "final answer: ",
    "choices": "A) ",
    "dollars": "$1 ",
    "percent": "1% ",
    "table": "| a | b |\n",
    "|": "|",
    "nested JSON": '{"a":',
    "duplicate keys": '"a":1,',
    "objects": '{"a":1},',
    "citations": "[1] ",
    "links": "[a](b) ",
    "placeholders": "{{a}} ",
    "keys": "password=",
    "escape sequences": "\x1b[",
    "surrogates": "\ud800",
    "NUL": "\x00",
}
SHAPES = {"": "{}", "begun": "a b. {}", "ended": "{} x", "as JSON": '{{"a": [{}]}}'}
SPECS = {
    "bullets": ("bullets:3", "bullets:-1"),
    "capital_words": ("capital_words:-3", "capital_words:400-"),
    "contains": ("contains:a<3",),
    "contains_none": ("contains_none:a,very",),
    "ends_with": ("ends_with:a",),
    "headings": ("headings:2-", "headings:-1"),
    "highlights": ("highlights:3", "highlights:-1", "highlights:500-"),
    "json_schema": (
        'json_schema:{"type":"object","properties":{"a":{"type":"string","maxLength":3}}}',
        'json_schema:{"properties":{"a":{"uniqueItems":true,"items":{"pattern":"(a|b|ab)*c"}}}}',
        'json_schema:{"$ref":"#/$defs/a","$defs":{"a":{"properties":{"a":{"allOf":[{"$ref":"#"},{"$ref":"#"}]}}}}}',
    ),
    "letters": ("letters:a<4",),
    "nth_paragraph_starts": ("nth_paragraph_starts:2:a",),
    "paragraphs": ("paragraphs:2", "paragraphs:40"),
    "parts": ("parts:2:******", "parts:2:a"),
    "regex": (r"regex:\d{4}-\d{2}", "regex:(?:a|aa|aaa)+$"),
    "sentences": ("sentences:3", "sentences:90-"),
    "starts_with": ("starts_with:zz top",),
    "words": ("words:80-200", "words:-5"),
}
OPTIONS = ("exact:case=false,punctuation=false", "rouge:kind=rougeL", "citations:tolerance=0.2")
REFERENCES = {
    "json_fields": '{"name": "a", "items": [1, 2]}',
    "math": "42",
    "numeric": "42",
    "tool_calls": '[{"name": "a"}]',
}
CHECK, REPAIR, GRADE = "check", "repair", "grade"


@dataclass(frozen=True)
class Operation:
    """The check or the repair of a requirement, or a computed grader."""

    kind: str
    spec: str

    def __str__(self) -> str:
        return f"{self.kind} {self.spec}"

    async def run(self, text: str) -> object:
        """Run the operation as a refinement does."""
        if self.kind == REPAIR:
            return await FormEditor().arepair(text, [parse(self.spec)])
        return await grader_from_spec(self.spec).grade(self._task(text), Candidate(0, text), None)

    def run_here(self, text: str) -> object:
        """Run the operation in this process, without a limit."""
        if self.kind == CHECK:
            return parse(self.spec).check(text)
        if self.kind == REPAIR:
            return list(islice(parse(self.spec).repairs(text), 24))
        grader = grader_from_spec(self.spec)
        grade = getattr(grader.grade, "__wrapped__", type(grader).grade)
        return asyncio.run(grade(grader, self._task(text), Candidate(0, text), None))

    def _task(self, text: str) -> Task:
        reference = REFERENCES.get(
            self.spec.partition(":")[0], "[1] The quick fox jumps over 42 dogs."
        )
        other = (
            f"[1] {text}"
            if self.spec.startswith(("rouge", "bleu", "chrf", "fuzzy", "citations"))
            and len(text) % 2
            else reference
        )
        return Task("p", reference=other, context=other)


ENDPOINT_GRADERS = {"embedding", "moderation", "reward"}  # they send the text to a server


def operations() -> list[Operation]:
    """Return all operations; new requirements and computed graders are included automatically."""
    specs = [spec for name, kind in KINDS.items() for spec in SPECS.get(name, (kind.example,))]
    computing = [e for e in entries() if e.mode == "code" and e.name not in ENDPOINT_GRADERS]
    computed = [e.name if e.name == "tool_calls" else e.example for e in computing]
    return [
        *(Operation(kind, spec) for spec in specs for kind in (CHECK, REPAIR)),
        *(Operation(GRADE, spec) for spec in (*computed, *OPTIONS)),
    ]


def hostile(atom: str, shape: str, size: int) -> str:
    """Return a text of about that many characters."""
    piece = ATOMS[atom]
    body = (
        (piece * (size // len(piece) + 1))[:size]
        if piece
        else " ".join(map(str, range(10**6, 10**6 + size // 8)))
    )
    return SHAPES[shape].format(json.dumps(body) if shape == "as JSON" else body)


def cpu_seconds(kind: str, spec: str, atom: str, shape: str, size: int) -> float:
    """Return the CPU time of an operation in this process; modules that it imports lazily are
    imported before.
    """
    operation, text = Operation(kind, spec), hostile(atom, shape, size)
    with suppress(ConfigError):  # no answer that the grader can use
        operation.run_here("[1] It is so, 42.")
    begun = process_time()
    with suppress(ConfigError):
        operation.run_here(text)
    return process_time() - begun
