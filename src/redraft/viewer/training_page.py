"""The page of a training: how the loss of the model fell, step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Mount, Route

from . import charts
from .page_parts import make_templates, static_file
from .static_page import html_head

Losses: TypeAlias = Sequence[Mapping[str, float]]
"""What the trainer logged, each with its "step"."""
COLUMNS = ("step", "loss", "accuracy", "eval_loss", "eval_accuracy")


def training_page(title: str, losses: Losses, root: str | None = None) -> str:
    """Return the HTML of the page, below the path `root` of a server; None: one self-contained
    file.
    """
    shared: dict[str, Any] = {"root": root} if root is not None else {"standalone": True}
    return make_templates(**shared).render(
        "training.html",
        title=title,
        head=html_head() if root is None else "",
        chart=charts.loss_curves(losses),
        losses=[{name: each.get(name) for name in COLUMNS} for each in losses],
    )


def training_app(title: str, read: Callable[[], Losses], root: str) -> Starlette:
    """Return the ASGI application with the page, which reads the losses each time."""

    def page(request: Request) -> Response:
        return HTMLResponse(training_page(title, read(), root))

    routes = [Route("/", page), Route("/static/{name}", static_file)]
    return Starlette(routes=[Mount(root, routes=routes)])
