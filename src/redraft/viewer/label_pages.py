"""The pages of `redraft label`: one item at a time, blind, with a key for every answer.

Annotators see neither scores nor where an answer comes from; which of two answers stands first is
decided by a hash of the item and the annotator's name. A label is in the file before the next page
is shown.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from time import monotonic
from typing import Any
from urllib.parse import parse_qsl, urlencode

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route

from ..errors import ConfigError, RedraftError, StoreError
from ..validation.label_file import (
    Label,
    LabelFile,
    LabelItem,
    LabelQuestion,
    Sample,
    check_annotator,
)
from .label_items import LabelQueue, LabelSource, identical_pairs
from .page_parts import error_message, error_status, make_templates, static_file
from .row_view import ShownText, shown_text

MAX_FORM = 10_000  # bytes of a form
MAX_SHOWN = 200_000  # characters of a text
LONGEST_SECONDS = 3600.0  # a longer time was a break
MAX_ANNOTATORS = 1000
SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Choice:
    """A button: its value in the form, its key, and its words."""

    value: str
    key: str
    words: str


def choices(question: LabelQuestion) -> list[Choice]:
    """Return the buttons of a question; the values of pairs are those of the order on the page."""
    if question.kind == "pair":
        shown = [
            Choice("1", "1", "The first is better"),
            Choice("2", "2", "The second is better"),
            Choice("0", "0", "Equally good"),
        ]
    elif question.kind == "pass":
        shown = [Choice("1", "1", "Good"), Choice("0", "0", "Not good")]
    else:
        low, high = question.scale
        ends = {low: " (worst)", high: " (best)"}
        shown = [Choice(str(n), str(n), f"{n}{ends.get(n, '')}") for n in range(low, high + 1)]
    return [*shown, Choice(SKIP, "s", "Skip")]


def presentation_order(item: LabelItem, annotator: str) -> tuple[int, ...]:
    """Return the numbers of the responses in the order in which an annotator sees them."""
    identity = f"{annotator}\n{item.id}".encode("utf-8", "surrogatepass")
    swaps = len(item.responses) == 2 and sha256(identity).digest()[0] % 2 == 1
    return (1, 0) if swaps else tuple(range(len(item.responses)))


def item_handle(id: str) -> str:
    """Return how forms name an item: IDs may hold characters that a form changes."""
    return sha256(id.encode("utf-8", "surrogatepass")).hexdigest()[:24]


def label_value(question: LabelQuestion, choice: str, order: tuple[int, ...]) -> float | None:
    """Return the label that a button means; for pairs the number of the better response, wherever
    it stood. Raises ConfigError.
    """
    if choice not in {each.value for each in choices(question)}:
        raise ConfigError(f"there is no choice {choice[:20]!r}")
    if choice == SKIP:
        return None
    value = float(choice)
    return float(order[int(value) - 1] + 1) if question.kind == "pair" and value else value


class LabelPages:
    """The pages over some items and a file of labels. `root`: the first part of every path;
    `count`: how many labels are wanted.
    """

    def __init__(
        self,
        source: LabelSource,
        file: LabelFile,
        queue: LabelQueue,
        root: str,
        count: int | None = None,
    ) -> None:
        self.source, self.file, self.queue, self.root, self.count = source, file, queue, root, count
        identical = source.identical
        self.left_out = f"{identical_pairs(identical)}: each is a tie." if identical else ""
        self.templates = make_templates(root=root)
        self._lock = threading.Lock()
        self._shown_at: dict[str, tuple[str, float]] = {}
        self._empty: set[str] = set()  # items with nothing to judge
        self._ids = {item_handle(id): id for id in (*source.information, *file.labels.items)}

    def app(self) -> Starlette:
        """Return the ASGI application."""
        routes = [
            Route("/", self.start, methods=["GET"]),
            Route("/judge", self.judge, methods=["GET"]),
            Route("/judge", self.save, methods=["POST"]),
            Route("/undo", self.undo, methods=["POST"]),
            Route("/static/{name}", static_file, methods=["GET"]),
        ]
        handlers: Mapping[Any, Any] = {
            RedraftError: self._failure,
            HTTPException: self._failure,
            Exception: self._failure,
        }
        return Starlette(routes=[Mount(self.root, routes=routes)], exception_handlers=handlers)

    def start(self, request: Request) -> Response:
        """Who is judging."""
        with self._lock:
            names = {name: len(self.file.labels.of(name)) for name in self.file.labels.annotators}
        return self._page(
            "label_start.html",
            "Label",
            names=names,
            total=len(self.source.information),
            left_out=self.left_out,
        )

    def judge(self, request: Request) -> Response:
        """The next item of an annotator, or the one that was taken back."""
        annotator = request.query_params.get("annotator", "")
        check_annotator(annotator)
        with self._lock:
            item = self._next_item(annotator, request.query_params.get("item"))
            own = self.file.labels.of(annotator)
        values: dict[str, Any] = {
            "annotator": annotator,
            "done": len(own),
            "can_undo": bool(own),
            "total": len(self.source.information),
            "left_out": self.left_out,
        }
        if item is None or (
            self.count is not None and len(own) >= self.count and "item" not in request.query_params
        ):
            title = (
                "Nothing left to judge" if item is None else "You have judged what was asked for"
            )
            return self._page("label_end.html", title, is_all=item is None, **values)
        order = presentation_order(item, annotator)
        if len(self._shown_at) > MAX_ANNOTATORS:
            self._shown_at.clear()
        self._shown_at[annotator] = (item.id, monotonic())
        return self._page(
            "label.html",
            "Which answer is better?" if len(order) == 2 else "How good is this answer?",
            handle=item_handle(item.id),
            question=self.file.labels.question,
            choices=choices(self.file.labels.question),
            responses=[shown_text(item.responses[n], MAX_SHOWN) for n in order],
            prompt=shown_text(item.prompt, MAX_SHOWN),
            more=_more_texts(item),
            goal=self.count,
            **values,
        )

    async def save(self, request: Request) -> Response:
        """Write a label, and show the next item."""
        form = await read_form(request)
        return await run_in_threadpool(self._save, form)

    def _save(self, form: Mapping[str, str]) -> Response:
        annotator, id = form.get("annotator", ""), self._ids.get(form.get("item", ""), "")
        check_annotator(annotator)
        with self._lock:
            item = self._item(id)
            if item is None:
                raise HTTPException(404, "There is no such item.")
            order = presentation_order(item, annotator)
            value = label_value(self.file.labels.question, form.get("choice", ""), order)
            sample: Sample = "random" if self.queue.is_random(id) else "chosen"
            self.file.add(
                item, Label(id, annotator, value, sample, order, self._seconds(annotator, id))
            )
        return self._to_judge(annotator=annotator)

    async def undo(self, request: Request) -> Response:
        """Take the annotator's last label back, and show its item again."""
        form = await read_form(request)
        return await run_in_threadpool(self._undo, form.get("annotator", ""))

    def _undo(self, annotator: str) -> Response:
        check_annotator(annotator)
        with self._lock:
            label = self.file.undo(annotator)
        return self._to_judge(
            annotator=annotator, **({"item": item_handle(label.item)} if label else {})
        )

    def _to_judge(self, **parameters: str) -> Response:
        return RedirectResponse(f"{self.root}/judge?{urlencode(parameters)}", 303)

    def _next_item(self, annotator: str, handle: str | None) -> LabelItem | None:
        if handle is not None:
            return self._item(self._ids.get(handle, ""))
        labels = self.file.labels
        own = [label.item for label in labels.of(annotator)]
        others = [label.item for label in labels.labels.values() if label.annotator != annotator]
        return next(
            (item for each in self.queue.following(own, others) if (item := self._item(each))), None
        )

    def _item(self, id: str) -> LabelItem | None:
        """Return an item: as it was judged before, if it was, so that all annotators see the same
        texts; None if it is empty.
        """
        if known := self.file.labels.items.get(id):
            return known
        if id in self._empty or id not in self.source.information:
            return None
        with suppress(StoreError):  # nobody can judge a damaged row, and the others can be judged
            if item := self.source.read(id):
                return item
        self._empty.add(id)
        return None

    def _seconds(self, annotator: str, id: str) -> float | None:
        shown, since = self._shown_at.get(annotator, ("", 0.0))
        seconds = monotonic() - since
        return round(seconds, 1) if shown == id and seconds < LONGEST_SECONDS else None

    def _page(self, template: str, title: str, status: int = 200, **values: Any) -> HTMLResponse:
        return HTMLResponse(
            self.templates.render(template, title=title, source=self.source.name, **values), status
        )

    def _failure(self, request: Request, error: Exception) -> Response:
        return self._page(
            "error.html", "This is not possible", error_status(error), message=error_message(error)
        )


def _more_texts(item: LabelItem) -> list[tuple[str, ShownText]]:
    texts = {"Context": item.context, "Reference": item.reference}
    return [(name, shown_text(text, MAX_SHOWN)) for name, text in texts.items() if text]


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form. Raises HTTPException for one that is too large or no form."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_FORM:
            raise HTTPException(413, "The form is too large.")
    try:
        return dict(
            parse_qsl(
                body.decode("ascii"),
                keep_blank_values=True,
                strict_parsing=True,
                errors="surrogateescape",
                max_num_fields=10,
            )
        )
    except ValueError as error:
        raise HTTPException(400, "This is no form.") from error
