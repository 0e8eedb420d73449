"""One self-contained HTML file of a run: its figures and its first rows, for a reader without
Redraft.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from markupsafe import Markup

from ..base.html import html_text
from ..base.page_server import csp_hash
from ..base.svg import STYLE
from ..errors import ConfigError, StoreError
from ..loop.trace import Trace
from ..storage import write_atomic
from .index import RunIndex
from .page_parts import make_templates, static_text
from .pages import overview_values
from .row_view import (
    AnswerView,
    Change,
    HeatRow,
    ShownText,
    answer_views,
    change,
    heat_rows,
    shown_text,
)
from .rows import RowFacts, RowQuery
from .run_library import RunEntry, RunLibrary

MAX_ROWS = 5_000
MAX_TEXT_BYTES = 20_000_000  # of the HTML of all texts
MAX_TEXT = 4_000  # characters of a text
MAX_SPANS = 400  # parts of a difference
MAX_HEAT_ROWS = 40  # graders and criteria of a row


@dataclass(frozen=True, slots=True)
class RowSummary:
    """A row of the file: its facts, its task, and what changed from its first answer to its best
    one.
    """

    facts: RowFacts
    task: ShownText
    change: Change | None
    heat: list[HeatRow]
    columns: list[str]


def write_page(run: str | Path, path: str | Path, *, name: str | None = None) -> None:
    """Write the figures and the first 5,000 rows of a run as one self-contained HTML file.

    The file has fewer rows if their texts take more than 20 MB, and says how many it has.

    Args:
        run: The output of the run, its journal, or a trace.
        path: The file to write; an existing one is replaced.
        name: The name of the run, if the journal has several.

    Raises:
        ConfigError: There is no such run, or there are several.
        StoreError: The run cannot be read.
    """
    with RunLibrary([Path(run)]) as library:
        entries = [
            entry
            for entry in library.entries()
            if name in {None, entry.info.name, entry.info.display_name}
        ]
        if len(entries) != 1:
            names = (
                ", ".join(repr(entry.info.display_name) for entry in library.entries()) or "none"
            )
            raise ConfigError(
                f"run={str(run)!r} with name={name!r} does not mean one run: there are {names}"
            )
        write_atomic(path, static_page(library, entries[0]))


def static_page(library: RunLibrary, entry: RunEntry) -> str:
    """Return the HTML of a run, with its first 5,000 rows. Raises StoreError if the run cannot be
    read.
    """
    index = library.build(entry).ready_index()
    page = index.page(RowQuery(), 0, MAX_ROWS)
    rows = list(_fitting(_summaries(index, page.rows)))
    shown = frozenset(row.facts.number for row in rows)
    templates = make_templates(standalone=True, shown_rows=shown)
    return templates.render(
        "static.html",
        title=index.info().display_name,
        head=html_head(),
        entry=entry,
        live=False,
        cards=[],
        rows=rows,
        total=page.total,
        version=_version(),
        **overview_values(entry, index),
    )


def _version() -> str:
    from .. import __version__

    return __version__


def html_head() -> Markup:
    """Return the style, the script, and the policy that allows these and nothing else."""
    style, script = static_text("app.css"), static_text("static.js")
    policy = (
        f"default-src 'none'; style-src {csp_hash(style)} {csp_hash(STYLE)}; script-src "
        f"{csp_hash(script)}; base-uri 'none'; form-action 'none'"
    )
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    return Markup(f"{meta}\n<style>{style}</style>\n<script>{script}</script>")  # noqa: S704  (files of ours)


def _fitting(rows: Iterable[RowSummary]) -> Iterator[RowSummary]:
    """Yield rows while the HTML of their texts fits into a file."""
    size = 0
    for row in rows:
        spans = row.change.spans if row.change else ()
        size += sum(
            len(html_text(text).encode())
            for text in (row.task.text, *(span.text for span in spans))
        )
        if size > MAX_TEXT_BYTES:
            return
        yield row


def _summaries(index: RunIndex, rows: Iterable[RowFacts]) -> Iterator[RowSummary]:
    for facts in rows:
        try:
            trace = index.trace(facts.number)
        except StoreError:  # a damaged row is one row
            trace = None
        yield _summary(facts, trace) if trace else RowSummary(facts, ShownText(""), None, [], [])


def _shorten(answer: AnswerView) -> AnswerView:
    text = shown_text(answer.candidate.display_text, MAX_TEXT).text
    return replace(answer, candidate=replace(answer.candidate, text=text, tool_calls=()))


def _summary(facts: RowFacts, trace: Trace) -> RowSummary:
    answers = answer_views(trace)
    best = [answer for answer in answers[1:] if answer.is_best]
    shown = [*answers[:1], *best]
    return RowSummary(
        facts,
        shown_text(trace.task.prompt, MAX_TEXT),
        _short_change(shown) if trace.best else None,
        heat_rows(shown)[:MAX_HEAT_ROWS],
        [f"{a.candidate.id}{' best' if a.is_best else ''}" for a in shown],
    )


def _short_change(shown: Sequence[AnswerView]) -> Change:
    """Return what changed from the first answer to the best one, which is the last of these."""
    *before, after = map(_shorten, shown)
    difference = change(before[0] if before else None, after)
    omitted = max(0, len(shown[-1].candidate.display_text) - MAX_TEXT)
    return replace(difference, spans=difference.spans[:MAX_SPANS], omitted=omitted)
