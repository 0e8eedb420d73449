"""How similar two Python programs are, whatever their layout, comments and names.

Each program is parsed, stripped of what does not run (docstrings, annotations) and written again,
so that layout, quotes and parentheses do not count. Names that the program gives itself count as
one and the same name, as in JPlag (Prechelt et al. 2002). The similarity is that of the two
sequences of tokens.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Sequence
from typing import Any

from ...answers.python_source import PARSER_ERRORS, FunctionNode

NAME = "\0name"  # stands for a name of the program's own
LAYOUT = frozenset({tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT, tokenize.ENDMARKER})


def code_similarity(code: str, reference: str, names: bool) -> float | None:  # noqa: FBT001  (called in a worker, with values)
    """Return twice the length of the longest common subsequence of tokens over the number of tokens
    of both, from 0 to 1.

    With `names`, names of the program's own must be equal. None if `code` is no Python. Raises
    SyntaxError for the reference.
    """
    from rapidfuzz import distance

    expected = program_tokens(reference, names=names)
    try:
        tokens = program_tokens(code, names=names)
    except PARSER_ERRORS:
        return None
    return float(distance.Indel.normalized_similarity(tokens, expected)) if tokens else 0.0


def program_tokens(code: str, *, names: bool) -> Sequence[str]:
    """Return the tokens of a program, normalised. Raises what `ast.parse` raises."""
    tree = ast.parse(code)
    _Stripper().visit(tree)
    own = frozenset() if names else _own_names(tree)
    return list(_normalise_tokens(ast.unparse(ast.fix_missing_locations(tree)), own))


class _Stripper(ast.NodeTransformer):
    """Removes what does not run: docstrings, annotations, texts that stand alone."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if isinstance(node, FunctionNode):
            node.returns = None
        body = getattr(node, "body", None)
        if isinstance(body, list) and isinstance(node, ast.stmt | ast.mod):
            kept = [child for child in body if not _is_bare_constant(child)]
            vars(node)["body"] = kept if kept or isinstance(node, ast.mod) else [ast.Pass()]
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        self.generic_visit(node)
        return ast.Assign([node.target], node.value) if node.value else ast.Pass()


def _is_bare_constant(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _own_names(tree: ast.AST) -> frozenset[str]:
    """Return the names that a program binds: variables, parameters, functions, classes."""
    names: set[str | None] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(ctx=ast.Store()):
                names.add(node.id)
            case ast.arg():
                names.add(node.arg)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.ExceptHandler():
                names.add(node.name)
    return frozenset(name for name in names if name and not name.startswith("__"))


def _normalise_tokens(code: str, own: frozenset[str]) -> list[str]:
    tokens: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type in LAYOUT:
            continue
        is_own = token.type == tokenize.NAME and token.string in own and tokens[-1:] != ["."]
        tokens.append(
            {tokenize.INDENT: "\0in", tokenize.DEDENT: "\0out"}.get(
                token.type, NAME if is_own else token.string
            )
        )
    return tokens
