"""The charts of the pages, as inline SVG: small enough to be legible on a phone, with their numbers
in the description.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt

from markupsafe import Markup

from ..base.svg import Axes, Drawing, clean_text, ticks
from ..base.text import pluralize
from .figures import GRID, Cells, IterationFigures, RunFigures

WIDTH, HEIGHT = 344, 230
PLOT = Axes(48, 44, 280, 130)
SQUARE = Axes(60, 44, 268, 268)  # of two scores of each row
UNIT_TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)
MAX_POINTS = 60
MAX_TICKS = 8
SIDES = ("above", "on", "below")  # of the line of equal scores
LEAST_RADIUS = 2.5  # of the mark of a single row among many


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One answer on the score curve: its number, its score or the estimate of it (None: unknown),
    and what wrote it.
    """

    id: int
    score: float | None
    origin: str


def score_curve(
    points: Sequence[CurvePoint], best: int | None, interval: tuple[float, float] | None
) -> Markup:
    """Draw the score of each answer in order, the best with the interval of its true score; nothing
    for a single answer.
    """
    if len(points) < 2:
        return Markup("")
    shown = points[:MAX_POINTS]
    known = [(n, point, point.score) for n, point in enumerate(shown) if point.score is not None]
    described = [f"{p.id} {clean_text(p.origin, 40)}: {score:.2f}" for _, p, score in known]
    described += _notes_on_scores(len(points), best, interval)
    drawing = Drawing.create(WIDTH, HEIGHT, "Score of each answer", described)
    axes = replace(PLOT, x_range=(0.0, float(len(shown) - 1)))
    axes.draw_y_axis(drawing, "", UNIT_TICKS)
    _draw_number_axis(drawing, axes, [point.id for point in shown], "answer")
    curve = [(n, score, f"answer {point.id}: {score:.3f}") for n, point, score in known]
    _draw_curve(drawing, axes, curve)
    places = {point.id: (n, score) for n, point, score in known}
    if best in places:
        _draw_best(drawing, axes, *places[best], interval)
    return _markup(drawing)


def _notes_on_scores(
    answers: int, best: int | None, interval: tuple[float, float] | None
) -> Iterator[str]:
    """Yield what a description says beside the scores."""
    yield "no best answer" if best is None else f"the best is {best}"
    if interval:
        yield f"95% interval of the best: {interval[0]:.2f} to {interval[1]:.2f}"
    if answers > MAX_POINTS:
        yield f"the first {MAX_POINTS} of {answers} answers"


def _draw_best(
    drawing: Drawing, axes: Axes, n: int, value: float, interval: tuple[float, float] | None
) -> None:
    """Draw a ring around the best answer, and the interval of its true score."""
    x = axes.x(n)
    drawing.add("circle", "best-ring", cx=x, cy=axes.y(value), r=8)
    if interval:
        low, high = map(axes.y, interval)
        drawing.add("line", "line soft-line", x1=x, x2=x, y1=low, y2=high)
        for end in (low, high):
            drawing.add("line", "line soft-line", x1=x - 4, x2=x + 4, y1=end, y2=end)


def score_grid(cells: Cells, title: str, x_label: str, y_label: str) -> Markup:
    """Draw two scores of each row: a mark for each cell of a grid, whose area is the number of rows
    in it. Nothing if no row has both scores.
    """
    if not cells:
        return Markup("")
    sides = Counter[str]()
    for cell, count in cells.items():
        sides[_side(cell)] += count
    drawing = Drawing.create(
        WIDTH,
        WIDTH + 24,
        title,
        [f"{pluralize(sides[side], 'row')} {side} the line of equal scores" for side in SIDES],
    )
    SQUARE.draw_y_axis(drawing, y_label, UNIT_TICKS)
    SQUARE.draw_x_axis(drawing, x_label, UNIT_TICKS)
    left, right, top, bottom = SQUARE.left, SQUARE.right, SQUARE.top, SQUARE.bottom
    drawing.add("line", "chance", x1=left, y1=bottom, x2=right, y2=top)
    most, width = max(cells.values()), SQUARE.width / GRID
    for (x, y), count in sorted(cells.items()):
        drawing.add(
            "circle",
            f"mark {_side((x, y))}",
            f"{pluralize(count, 'row')}: {x / GRID:.2f} to {(x + 1) / GRID:.2f}, then "
            f"{y / GRID:.2f} to {(y + 1) / GRID:.2f}",
            cx=left + (x + 0.5) * width,
            cy=bottom - (y + 0.5) * width,
            r=max(LEAST_RADIUS, sqrt(count / most) * width / 2),
        )
    drawing.text(left + 8, top + 18, "better", "soft halo")
    drawing.text(right - 8, bottom - 10, "worse", "soft halo", anchor="end")
    return _markup(drawing)


def _side(cell: tuple[int, int]) -> str:
    """Return on which side of the line of equal scores a cell is."""
    x, y = cell
    return SIDES[(y <= x) + (y < x)]


def iteration_curves(runs: Iterable[tuple[str, RunFigures]]) -> Markup:
    """Draw the mean best score after each iteration, a line for each of one or two runs.

    A row that ended earlier keeps its score, so that all points are means of the same rows. Nothing
    if no row was refined.
    """
    curves = [
        (clean_text(name, 40), mean_by_iteration(figures.by_iteration)) for name, figures in runs
    ]
    longest = max(len(curve) for _, curve in curves)
    if longest < 2:
        return Markup("")
    described = [f"{name}: {', '.join(map('{:.3f}'.format, curve))}" for name, curve in curves]
    every = [score for _, curve in curves for score in curve]
    low, high = max(0.0, min(every) - 0.05), min(1.0, max(every) + 0.05)
    drawing = Drawing.create(WIDTH, HEIGHT, "Mean score after each iteration", described)
    axes = replace(PLOT, x_range=(0.0, float(longest - 1)), y_range=(low, high))
    axes.draw_y_axis(drawing, "", ticks(low, high, 4))
    _draw_number_axis(drawing, axes, range(longest), "iteration")
    for style, (name, curve) in zip(("", "second-"), curves, strict=False):
        points = [
            (n, score, f"{name}, iteration {n}: {score:.3f}") for n, score in enumerate(curve)
        ]
        _draw_curve(drawing, axes, points, style)
    return _markup(drawing)


def loss_curves(losses: Sequence[Mapping[str, float]]) -> Markup:
    """Draw the loss of a training at each step, and that on labels which it was not fitted to.
    Nothing for a single step.
    """
    curves = _points_by_curve(losses)
    points = [point for curve in curves.values() for point in curve]
    if len({step for step, _ in points}) < 2:
        return Markup("")
    steps, values = zip(*points, strict=True)
    described = [
        f"{name}: {curve[0][1]:.3f} at step {curve[0][0]:g}, {curve[-1][1]:.3f} at step "
        f"{curve[-1][0]:g}"
        for name, curve in curves.items()
        if curve
    ]
    drawing = Drawing.create(WIDTH, HEIGHT, "Loss at each step", described)
    low, high = min(0.0, *values), max(values) * 1.05 or 1.0
    axes = replace(PLOT, x_range=(min(steps), max(steps)), y_range=(low, high))
    axes.draw_y_axis(drawing, "", ticks(low, high, 4))
    axes.draw_x_axis(drawing, "step", ticks(*axes.x_range, 5))
    for style, (name, curve) in zip(("", "second-"), curves.items(), strict=True):
        places = [(step, value, f"{name}, step {step:g}: {value:.3f}") for step, value in curve]
        _draw_curve(drawing, axes, places, style)
    return _markup(drawing)


def _points_by_curve(losses: Sequence[Mapping[str, float]]) -> dict[str, list[tuple[float, float]]]:
    return {
        name: [(each["step"], each[key]) for each in losses if key in each]
        for key, name in (("loss", "training"), ("eval_loss", "other labels"))
    }


def mean_by_iteration(iterations: Sequence[IterationFigures]) -> list[float]:
    """Return the mean best score after each iteration; nothing if one of them is unknown."""
    scores = [iteration.score for iteration in iterations if iteration.score is not None]
    return scores if len(scores) == len(iterations) else []


def _draw_curve(
    drawing: Drawing, axes: Axes, points: Sequence[tuple[float, float, str]], style: str = ""
) -> None:
    """Draw a line through points, each with a tooltip."""
    places = [(axes.x(n), axes.y(value), tooltip) for n, value, tooltip in points]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in places)
    drawing.add("polyline", f"{style}line", points=line)
    for x, y, tooltip in places:
        drawing.add("circle", f"{style}mark", tooltip, cx=x, cy=y, r=4)


def _draw_number_axis(drawing: Drawing, axes: Axes, numbers: Sequence[int], label: str) -> None:
    """Draw an axis of whole numbers at equal distances."""
    step = -(-len(numbers) // MAX_TICKS)
    for place, number in enumerate(numbers):
        if place % step == 0:
            drawing.text(
                axes.x(place), axes.bottom + 18, str(number), "soft small", anchor="middle"
            )
    drawing.add("line", "axis", x1=axes.left, x2=axes.right, y1=axes.bottom, y2=axes.bottom)
    drawing.text(axes.left + axes.width / 2, axes.bottom + 40, label, "soft", anchor="middle")


def _markup(drawing: Drawing) -> Markup:
    return Markup(drawing.to_svg())  # noqa: S704  (ElementTree has escaped it)
