"""The charts of the pages, as inline SVG: small enough to be legible on a phone, with their numbers
in the description.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import sqrt

from markupsafe import Markup

from ..base.svg import Axes, Drawing, clean_text, ticks
from ..base.text import pluralize
from .figures import GRID, IterationFigures, RunFigures

WIDTH, HEIGHT = 344, 230
PLOT = Axes(48, 44, 280, 130)
SQUARE = Axes(60, 44, 268, 268)  # of first and best scores
UNIT_TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)
MAX_POINTS = 60
MAX_TICKS = 8
LEAST_RADIUS = 1.5  # of the mark of a single row among many


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One answer on the score curve: its number, its score (None: unknown), its estimate if there
    is one, and what wrote it.
    """

    id: int
    score: float | None
    estimate: float | None
    origin: str

    @property
    def value(self) -> float | None:
        """The estimate, or else the score."""
        return self.score if self.estimate is None else self.estimate


def score_curve(
    points: Sequence[CurvePoint], best: int | None, interval: tuple[float, float] | None
) -> Markup:
    """Draw the score of each answer in order, the best with the interval of its true score; nothing
    for a single answer.
    """
    if len(points) < 2:
        return Markup("")
    shown = points[:MAX_POINTS]
    known = [(n, point, point.value) for n, point in enumerate(shown) if point.value is not None]
    described = [
        f"{point.id} {clean_text(point.origin, 40)}: {value:.2f}"
        f"{' (best)' if point.id == best else ''}"
        for _, point, value in known
    ]
    if interval:
        described.append(f"95 % interval of the best: {interval[0]:.2f} to {interval[1]:.2f}")
    if len(points) > MAX_POINTS:
        described.append(f"the first {MAX_POINTS} of {len(points)} answers")
    drawing = Drawing.create(
        WIDTH, HEIGHT, "Score of each answer", described or ["no answer has a score"]
    )
    axes = replace(PLOT, x_range=(0.0, float(len(shown) - 1)))
    axes.draw_y_axis(drawing, "", UNIT_TICKS)
    _draw_number_axis(drawing, axes, [point.id for point in shown], "answer")
    for n, point, value in known:
        if point.id == best:
            _draw_best(drawing, axes, n, value, interval)
    _draw_curve(drawing, axes, [(n, value, f"answer {p.id}: {value:.3f}") for n, p, value in known])
    return _markup(drawing)


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


def score_grid(figures: RunFigures) -> Markup:
    """Draw the first and the best score of all rows: a mark for each cell of a grid, whose area is
    the number of rows in it. Nothing if no row has both scores.
    """
    if not figures.grid:
        return Markup("")
    sides = {"above": 0, "on": 0, "below": 0}
    for (first, best), count in figures.grid.items():
        sides[_side(first, best)] += count
    drawing = Drawing.create(
        WIDTH,
        WIDTH + 24,
        "First and best score of each row",
        [
            f"{pluralize(count, 'row')} {side} the line of no change"
            for side, count in sides.items()
        ],
    )
    SQUARE.draw_y_axis(drawing, "score of the best answer", UNIT_TICKS)
    SQUARE.draw_x_axis(drawing, "score of the first answer", UNIT_TICKS)
    ends = {"x1": SQUARE.left, "y1": SQUARE.bottom, "x2": SQUARE.right, "y2": SQUARE.top}
    drawing.add("line", "chance", **ends)
    most, cell = max(figures.grid.values()), SQUARE.width / GRID
    for (first, best), count in sorted(figures.grid.items()):
        low, high = first / GRID, best / GRID
        drawing.add(
            "circle",
            f"mark {_side(first, best)}",
            f"{pluralize(count, 'row')}: first {low:.2f} to {low + 1 / GRID:.2f}, best {high:.2f} "
            f"to {high + 1 / GRID:.2f}",
            cx=SQUARE.x(low) + cell / 2,
            cy=SQUARE.y(high) - cell / 2,
            r=max(LEAST_RADIUS, sqrt(count / most) * cell / 2),
        )
    drawing.text(SQUARE.left + 8, SQUARE.top + 18, "better", "soft halo")
    drawing.text(SQUARE.right - 8, SQUARE.bottom - 10, "worse", "soft halo", anchor="end")
    return _markup(drawing)


def _side(first: int, best: int) -> str:
    """Return on which side of the line of no change a cell is."""
    if first == best:
        return "on"
    return "above" if best > first else "below"


def histogram(counts: Sequence[int], title: str, label: str, described: Sequence[str]) -> Markup:
    """Draw counts in equal bins from -1 to 1."""
    drawing = Drawing.create(WIDTH, HEIGHT, title, described or ["no rows"])
    top = max([1, *counts])
    axes = replace(PLOT, x_range=(-1.0, 1.0), y_range=(0.0, float(top)))
    axes.draw_y_axis(drawing, "", [n for n in ticks(0, top, 4) if n == int(n)])
    axes.draw_x_axis(drawing, label, (-1.0, -0.5, 0.0, 0.5, 1.0))
    width = axes.width / len(counts)
    for place, count in enumerate(counts):
        if count:
            height = max(1.0, axes.bottom - axes.y(count))
            drawing.add(
                "rect",
                "mark",
                pluralize(count, "row"),
                x=axes.left + place * width + 1,
                y=axes.bottom - height,
                width=width - 2,
                height=height,
            )
    return _markup(drawing)


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
    described = [
        f"{name}: {', '.join(f'{score:.3f}' for score in curve)}" for name, curve in curves if curve
    ]
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


def mean_by_iteration(iterations: Sequence[IterationFigures]) -> list[float]:
    """Return the mean best score of all scored rows after each iteration."""
    if not iterations or iterations[0].score is None:
        return []
    scores, base = [iterations[0].score], iterations[0].rows
    for iteration in iterations[1:]:
        scores.append(scores[-1] + (iteration.gain or 0.0) * iteration.rows / base)
    return [min(1.0, score) for score in scores]


def _draw_curve(
    drawing: Drawing, axes: Axes, points: Sequence[tuple[int, float, str]], style: str = ""
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
