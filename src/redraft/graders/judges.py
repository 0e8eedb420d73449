"""The judges that have a name: the plain ones, and one for every rubric file in `gallery/`."""

from __future__ import annotations

from collections.abc import Iterator

from .judge import Judge
from .ranker import Ranker
from .registry import Entry, plainly

JUDGES: tuple[Entry, ...] = (
    Entry(
        "judge",
        "pointwise",
        "an LLM judge: instructions, correctness, completeness, clarity; says what to change",
        plainly("judge", Judge),
        ("messages", "context", "reference", "tests"),
        asks=True,
        example="judge",
    ),
    Entry(
        "ranker",
        "listwise",
        "an LLM that ranks all answers so far; its reason feeds the next draft",
        plainly("ranker", Ranker),
        ("messages",),
        asks=True,
        example="ranker",
    ),
)


def gallery() -> Iterator[Entry]:
    """The judges of the gallery."""
    yield from ()
