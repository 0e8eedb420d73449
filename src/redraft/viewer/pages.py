"""The pages of `redraft view`: an ASGI application over a library of runs.

Each page is made on the server from what the index and the journal say at that moment. Nothing here
writes to a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Mount, Route

from ..base.documents import read_small_text
from ..base.svg import STYLE
from ..errors import ConfigError, RedraftError
from ..graders.cards import Card, CardStore, format_measure
from ..loop.records import Candidate
from ..loop.trace import Trace
from ..storage.journal import STATUSES
from . import charts
from .figures import (
    GAINS,
    LOSSES,
    RunFigures,
    compare_runs,
    pair_figures,
    part_figures,
    run_figures,
    settings_difference,
    uplift_figures,
)
from .index import RunIndex
from .page_parts import error_message, error_status, make_templates, static_file, time
from .row_view import (
    AnswerView,
    change,
    judging_views,
    prompt_messages,
    row_values,
    shown_messages,
    shown_text,
    snippet,
)
from .rows import CHANGES, ORDERS, RowQuery
from .run_library import IndexBuild, RunEntry, RunLibrary

ROWS_PER_PAGE = 50
BUILD_WAIT = 0.4  # seconds to wait for an index before a page says how far it is
LIVE_SECONDS = 120  # a run that changed in this time may be in progress
PLOTS = {"groups": "By group", "scores": "Scores by label", "scatter": "Scores beside people's", "confusion": "Labels and verdicts",  # noqa: E501
         "reliability": "Scores read as probabilities"}  # fmt: skip
MAX_CARDS = 20
MAX_DIGITS = 18  # of a number in an address, which SQLite can hold
STYLES = (STYLE,)
"""The inline styles of the pages, which their policy must allow: that of the charts."""


RunPage: TypeAlias = Callable[[Request, RunEntry, RunIndex], Response]


@dataclass(frozen=True, slots=True)
class CardView:
    """A validation card, its headline in words, and the names and paths of its plots."""

    card: Card
    summary: str
    plots: tuple[tuple[str, str], ...]


class BuildingError(Exception):
    """The index of a run is not built yet."""

    def __init__(self, entry: RunEntry, build: IndexBuild) -> None:
        self.entry, self.build = entry, build


class ViewerPages:
    """The pages over a library. `root`: the first part of every path. `cards`: the validation cards
    (default: the user's).
    """

    def __init__(self, library: RunLibrary, root: str, cards: CardStore | None = None) -> None:
        self.library, self.root = library, root
        self.cards = cards or CardStore.in_folder(None)
        self.templates = make_templates(root=root)

    def app(self) -> Starlette:
        """Return the ASGI application."""
        of_a_run: Mapping[str, RunPage] = {
            "": self.overview,
            "/rows": self.rows,
            "/rows/{number}": self.row,
            "/rows/{number}/text/{candidate}": self.text,
            "/rows/{number}/judging/{candidate}": self.judging,
            "/graders": self.graders,
        }
        pages: Mapping[str, Callable[[Request], Response]] = {
            "/": self.runs,
            **{f"/run/{{key}}{path}": self._of_run(page) for path, page in of_a_run.items()},
            "/compare": self.comparison,
            "/static/{name}": static_file,
            "/cards/{card}/{plot}": self.plot,
        }
        routes = [Route(path, handler, methods=["GET"]) for path, handler in pages.items()]
        handlers: Mapping[Any, Any] = {
            BuildingError: self._building,
            RedraftError: self._failure,
            HTTPException: self._failure,
            Exception: self._failure,
        }
        return Starlette(routes=[Mount(self.root, routes=routes)], exception_handlers=handlers)

    # ---- pages

    def runs(self, request: Request) -> Response:
        """All runs; a single one is shown at once."""
        entries = self.library.entries()
        if len(entries) == 1 and not self.library.problems:
            return self.overview(request, entries[0], self._index(entries[0]))
        return self._page(
            "runs.html",
            "Runs",
            entries=entries,
            problems=self.library.problems,
            duplicate_names=_has_duplicates(entries),
        )

    def overview(self, request: Request, entry: RunEntry, index: RunIndex) -> Response:
        """What a person looks for first in a run."""
        values = overview_values(entry, index)
        info = index.info()
        return self._page(
            "overview.html",
            info.display_name,
            entry=entry,
            page="overview",
            live=is_live(info.updated_at, values["figures"].open),
            cards=list(self._cards(index.names("grader"))),
            **values,
        )

    def rows(self, request: Request, entry: RunEntry, index: RunIndex) -> Response:
        """A list of rows."""
        query = RowQuery.from_parameters(request.query_params)
        everything = known_figures(index)
        page = index.page(
            query, whole_number(request.query_params.get("offset")) or 0, ROWS_PER_PAGE
        )
        return self._page(
            "rows.html",
            f"Rows of {entry.info.display_name}",
            entry=entry,
            page="rows",
            query=query,
            rows=page,
            limit=ROWS_PER_PAGE,
            figures=uplift_figures(index, query) if query.filters else everything,
            changes=CHANGES,
            statuses=STATUSES,
            orders=ORDERS,
            stops=everything.stops,
            errors=[problem.name for problem in everything.errors],
            requirements=index.names("must"),
            graders=index.names("grader"),
            criteria=index.names("criterion"),
        )

    def row(self, request: Request, entry: RunEntry, index: RunIndex) -> Response:
        """One row: its answers, what changed between two of them, and why."""
        number, trace = _number_and_trace(index, request)
        row_id = _row_id(index, number)
        view = row_values(trace)
        parameters = dict(request.query_params)
        return self._page(
            "row.html",
            row_id,
            entry=entry,
            page="rows",
            number=number,
            row_id=row_id,
            view=view,
            style="inline" if parameters.get("view") == "inline" else "split",
            snippet=snippet(trace, entry.trace_code(trace.task.id or row_id)),
            link=lambda **changes: link_parameters(parameters, **changes),
            kept_parameters=[
                (name, value) for name, value in parameters.items() if name not in {"a", "b"}
            ],
            **_change_values(trace, view["answers"], parameters),
            **self._neighbours(entry, index, parameters),
        )

    def text(self, request: Request, entry: RunEntry, index: RunIndex) -> Response:
        """The whole text of an answer, as a file."""
        candidate = _answer(_number_and_trace(index, request)[1], request)
        body = candidate.display_text.encode("utf-8", "replace")
        return Response(
            body,
            media_type="text/plain; charset=utf-8",
            headers={"Content-Disposition": 'attachment; filename="answer.txt"'},
        )

    def judging(self, request: Request, entry: RunEntry, index: RunIndex) -> Response:
        """The prompts that graders were sent about an answer."""
        number, trace = _number_and_trace(index, request)
        candidate = _answer(trace, request)
        return self._page(
            "judging.html",
            f"Prompts of graders, answer {candidate.id}",
            entry=entry,
            page="rows",
            number=number,
            row_id=_row_id(index, number),
            views=list(judging_views(trace, candidate, index.judges(number))),
        )

    def graders(self, request: Request, entry: RunEntry, index: RunIndex) -> Response:
        """What the graders of a run say, and how they were validated."""
        return self._page(
            "graders.html",
            f"Graders of {entry.info.display_name}",
            entry=entry,
            page="graders",
            graders=index.computed("graders", lambda: part_figures(index, "grader")),
            criteria=index.computed("criteria", lambda: part_figures(index, "criterion")),
            pairs=index.computed("pairs", lambda: pair_figures(index)),
            cards=list(self._cards(index.names("grader"))),
        )

    def comparison(self, request: Request) -> Response:
        """Two runs on the same rows."""
        entry = self._entry(request.query_params.get("a", ""))
        other = self._entry(request.query_params["b"]) if request.query_params.get("b") else None
        entries = self.library.entries()
        values: dict[str, Any] = {"comparison": None, "problem": ""}
        if other:
            try:
                values |= self._comparison_values(entry, other)
            except ConfigError as error:
                values["problem"] = str(error)[:2000]
        duplicates = _has_duplicates(entries)
        return self._page(
            "compare.html",
            "Compare runs",
            entry=entry,
            page="compare",
            other=other,
            entries=entries,
            duplicate_names=duplicates,
            **values,
        )

    def plot(self, request: Request) -> Response:
        """A plot of a validation card."""
        name, plot = request.path_params["card"], request.path_params["plot"]
        text = None
        if plot in PLOTS and name.replace("_", "").replace("-", "").isalnum():
            with suppress(OSError, ValueError):
                text = read_small_text(self.cards.folder / name / f"{plot}.svg")
        if text is None:
            raise HTTPException(404, "There is no such plot.")
        return Response(text, media_type="image/svg+xml")

    # ---- parts of pages

    def _page(self, template: str, title: str, status: int = 200, **values: Any) -> HTMLResponse:
        return HTMLResponse(self.templates.render(template, title=title[:200], **values), status)

    def _of_run(self, page: RunPage) -> Callable[[Request], Response]:
        """Return the page of the run that an address names."""

        def respond(request: Request) -> Response:
            entry = self._entry(request.path_params["key"])
            return page(request, entry, self._index(entry))

        return respond

    def _entry(self, key: str) -> RunEntry:
        if (entry := self.library.entry(key)) is None:
            raise HTTPException(404, "There is no such run.")
        return entry

    def _index(self, entry: RunEntry) -> RunIndex:
        """Return the index of a run. Raises BuildingError while it is being built."""
        build = self.library.build(entry)
        if not build.wait(BUILD_WAIT):
            raise BuildingError(entry, build)
        if build.error:
            raise build.error
        return build.index

    def _comparison_values(self, entry: RunEntry, other: RunEntry) -> dict[str, Any]:
        """Return what the page of a comparison shows. Raises ConfigError if the runs have no row in
        common.
        """
        first, second = self._index(entry), self._index(other)
        names = (entry.info.display_name, other.info.display_name)
        if names[0] == names[1]:
            names = (f"{names[0]} (A)", f"{names[1]} (B)")
        figures = zip(names, map(known_figures, (first, second)), strict=True)
        key = ("comparison", other.key, second.version)
        comparison = first.computed(key, lambda: compare_runs(first, second, names))
        return {
            "comparison": comparison,
            "iteration_chart": charts.iteration_curves(figures),
            "score_chart": charts.score_grid(
                comparison.cells, "Best score of each row", "in the first run", "in the second run"
            ),
            "settings": settings_difference(entry.info.metadata, other.info.metadata),
        }

    def _neighbours(
        self, entry: RunEntry, index: RunIndex, parameters: Mapping[str, str]
    ) -> dict[str, Any]:
        """Return the addresses of the list (`up`), of the row before and of the row after, in the
        list that led to this row.
        """
        query = RowQuery.from_parameters(parameters)
        base = f"{self.root}/run/{entry.key}/rows"
        place = whole_number(parameters.get("n"))
        if place is None:
            return {"up": base, "previous": None, "next": None}
        style = {"view": parameters["view"]} if "view" in parameters else {}
        first = max(0, place - 1)
        addresses = {
            n: f"{base}/{row.number}?{query.parameters(n=n, **style)}"
            for n, row in enumerate(index.page(query, first, 3).rows, first)
        }
        up = query.parameters(offset=place // ROWS_PER_PAGE * ROWS_PER_PAGE or None)
        return {
            "up": f"{base}?{up}" if up else base,
            "previous": addresses.get(place - 1),
            "next": addresses.get(place + 1),
        }

    def _cards(self, graders: list[str]) -> Iterator[CardView]:
        shown = [card for card in self.cards.cards if card.grader in graders][:MAX_CARDS]
        for card in shown:
            folder = self.cards.card_folder(card.grader, card.fingerprint, card.data, card.sha256)
            plots = [
                (title, f"{folder.name}/{name}")
                for name, title in PLOTS.items()
                if (folder / f"{name}.svg").is_file()
            ]
            yield CardView(
                card, f"{format_measure(card.headline)}, {card.data}, {card.date}", tuple(plots)
            )

    # ---- errors

    def _building(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, BuildingError)
        values: dict[str, Any] = {
            "entry": error.entry,
            "page": "",
            "build": error.build,
            "reload_seconds": 1,
        }
        return self._page("building.html", error.entry.info.display_name, **values)

    def _failure(self, request: Request, error: Exception) -> Response:
        status = error_status(error)
        title = "Not found" if status == 404 else "This page cannot be shown"
        return self._page("error.html", title, status, message=error_message(error))


def _number_and_trace(index: RunIndex, request: Request) -> tuple[int, Trace]:
    """Return the number and the trace of the row that an address names."""
    number = whole_number(request.path_params["number"])
    trace = None if number is None else index.trace(number)
    if number is None or trace is None:
        raise HTTPException(404, "This run has no such row.")
    return number, trace


def _answer(trace: Trace, request: Request) -> Candidate:
    """Return the answer that an address names."""
    wanted = whole_number(request.path_params["candidate"])
    if (candidate := None if wanted is None else trace.by_id.get(wanted)) is None:
        raise HTTPException(404, "This row has no such answer.")
    return candidate


def _row_id(index: RunIndex, number: int) -> str:
    return str(index.read("SELECT id FROM rows WHERE number = ?", number)[0][0])


def known_figures(index: RunIndex) -> RunFigures:
    """Return the figures of a run, computed once for each state of its index."""
    return index.computed("figures", lambda: run_figures(index))


def overview_values(entry: RunEntry, index: RunIndex) -> dict[str, Any]:
    """Return what the overview of a run shows, on a page and in a file."""
    figures = known_figures(index)
    return {
        "figures": figures,
        "gains_query": GAINS,
        "losses_query": LOSSES,
        "score_chart": charts.score_grid(
            figures.cells,
            "First and best score of each row",
            "score of the first answer",
            "score of the best answer",
        ),
        "iteration_chart": charts.iteration_curves([(entry.info.display_name, figures)]),
        "run_facts": list(run_facts(entry)),
    }


def is_live(updated_at: str, open_rows: int) -> bool:
    """Whether a run may be in progress: it has open rows, and has changed a short time ago."""
    try:
        age = datetime.now(UTC) - datetime.fromisoformat(updated_at)
    except (ValueError, TypeError):  # a time without a zone
        return False
    return bool(open_rows) and age < timedelta(seconds=LIVE_SECONDS)


def run_facts(entry: RunEntry) -> Iterator[tuple[str, str]]:
    """Yield what the journal says of a run beside its rows."""
    yield "journal", entry.label
    for name in ("source", "model", "mode", "output", "state"):
        if value := entry.info.metadata.get(name):
            yield name, str(value)[:500]
    yield "started", time(entry.info.started_at)
    yield "last change", time(entry.info.updated_at)


def chosen_answers(
    answers: Sequence[AnswerView], parameters: Mapping[str, str]
) -> tuple[AnswerView | None, AnswerView | None]:
    """Return the two answers that an address names: by default the best, or the latest, and the one
    that it was made from.
    """
    by_id = {str(a.candidate.id): a for a in answers}
    best = next((a for a in answers if a.is_best), answers[-1] if answers else None)
    after = by_id.get(parameters.get("b", "")) or best
    if after is None or parameters.get("a") == "none":
        return None, after
    return by_id.get(parameters.get("a") or str(after.candidate.parent)), after


def link_parameters(parameters: Mapping[str, str], **changes: Any) -> str:
    """Return the parameters of an address with changes; None removes one."""
    return urlencode(
        {name: value for name, value in {**parameters, **changes}.items() if value is not None}
    )


def _change_values(
    trace: Trace, answers: Sequence[AnswerView], parameters: Mapping[str, str]
) -> dict[str, Any]:
    """Return what the page of a row shows of the two answers that an address names."""
    before, after = chosen_answers(answers, parameters)
    if after is None:
        return {"change": None}
    ids = [None, *(answer.candidate.id for answer in answers), None]
    place = ids.index(after.candidate.id)
    return {
        "change": change(before, after),
        "prompt": _prompt(trace, after.candidate),
        "reasoning": shown_text(after.candidate.reasoning or ""),
        "previous_answer": ids[place - 1],
        "next_answer": ids[place + 1],
    }


def _prompt(trace: Trace, candidate: Candidate) -> list[tuple[str, Any]] | None:
    """Return the prompt that asked for an answer; None if it cannot be made again."""
    with suppress(RedraftError, ValueError):  # a template with a column that no journal holds
        return list(shown_messages(prompt_messages(trace, candidate)))
    return None


def whole_number(text: str | None) -> int | None:
    """Return the whole number that a text is, with at most 18 digits; None for any other text."""
    return (
        int(text)
        if text and len(text) <= MAX_DIGITS and text.isascii() and text.isdecimal()
        else None
    )


def _has_duplicates(entries: list[RunEntry]) -> bool:
    names = [entry.info.display_name for entry in entries]
    return len(set(names)) < len(names)
