"""Repairs of answers that hold code: what becomes of the text around the code."""

from __future__ import annotations

from textwrap import dedent

from ...answers.code import plain_text
from ...code.editor import CodeRepair
from ...protocols import Edit


def repaired_answer(text: str, code: str, program: str, repair: CodeRepair) -> Edit | None:
    """Return the answer `text` with its `code` repaired; None if the code is not one part of the
    text.

    `program` is what was repaired: the code, after what the task puts before it. That part is taken
    off again, if the repair did not change it.
    """
    own_part = "\n".join(program.split("\n")[-code.count("\n") - 1 :])
    start = program.removesuffix(own_part) if _is_same(own_part, code) else ""
    new = repair.code.removeprefix(start) if repair.code.startswith(start) else repair.code
    return edit_with_code(text, code, new if code[:1].isspace() else dedent(new), repair.note)


def edit_with_code(
    text: str, code: str, new: str, note: str, *, lossy: bool = False
) -> Edit | None:
    """Return the answer `text` with its `code` replaced; None if the code is not one part of the
    text.
    """
    text = plain_text(text)
    if text.count(code) == 1:
        return Edit(text.replace(code, new), note, lossy=lossy)
    return Edit(new, note, lossy=lossy) if _is_same(text, code) else None


def _is_same(first: str, second: str) -> bool:
    """Whether two pieces of code are the same except for indentation as a whole."""
    return dedent(first).strip() == dedent(second).strip()
