"""The charts of the pages, as inline SVG: small enough to be legible on a phone, with their numbers
in the description.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ..base.svg import Axes, Drawing, clean_text, ticks
from ..base.text import pluralize
from .figures import RunFigures

WIDTH, HEIGHT = 344, 230
PLOT = Axes(48, 44, 280, 130)
UNIT_TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)
MAX_POINTS = 60
MAX_TICKS = 8


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One answer on the score curve: its number, its score (None: unknown), its estimate if there
    is one, and what wrote it.
    """

    id: int
    score: float | None
    estimate: float | None
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
    known = [
        (place, p, value)
        for place, p in enumerate(shown)
        if (value := p.score if p.estimate is None else p.estimate) is not None
    ]
    described = [
        f"{p.id} {clean_text(p.origin, 40)}: {value:.2f}{' (best)' if p.id == best else ''}"
        for _, p, value in known
    ]
    if interval:
        described.append(f"95 % interval of the best: {interval[0]:.2f} to {interval[1]:.2f}")
    if len(points) > MAX_POINTS:
        described.append(f"the first {MAX_POINTS} of {len(points)} answers")
    drawing = Drawing.create(
        WIDTH, HEIGHT, "Score of each answer", described or ["no answer has a score"]
    )
    axes = _unit_axes(max(1, len(shown) - 1))
    axes.draw_y_axis(drawing, "", UNIT_TICKS)
    _number_axis(drawing, axes, [p.id for p in shown], "answer")
    drawing.add(
        "polyline",
        "line",
        points=" ".join(f"{axes.x(n):.1f},{axes.y(value):.1f}" for n, _, value in known),
    )
    for n, point, value in known:
        if point.id == best:
            if interval:
                low, high = axes.y(interval[0]), axes.y(interval[1])
                drawing.add("line", "line soft-line", x1=axes.x(n), x2=axes.x(n), y1=low, y2=high)
                for end in (low, high):
                    drawing.add(
                        "line", "line soft-line", x1=axes.x(n) - 4, x2=axes.x(n) + 4, y1=end, y2=end
                    )
            drawing.add("circle", "best-ring", cx=axes.x(n), cy=axes.y(value), r=8)
        drawing.add(
            "circle", "mark", f"answer {point.id}: {value:.3f}", cx=axes.x(n), cy=axes.y(value), r=4
        )
    return Markup(drawing.to_svg())  # noqa: S704  (ElementTree has escaped it)


def uplift_histogram(figures: RunFigures) -> Markup:
    """Draw how many rows changed by how much."""
    counts = figures.histogram
    edges = [2 * n / len(counts) - 1 for n in range(len(counts) + 1)]
    described = [
        f"{low:+.2f} to {high:+.2f}: {pluralize(n, 'row')}"
        for low, high, n in zip(edges, edges[1:], counts, strict=False)
        if n
    ]
    return histogram(counts, "Rows by change of score", "best - first score", described)


def histogram(counts: Sequence[int], title: str, label: str, described: Sequence[str]) -> Markup:
    """Draw counts in equal bins from -1 to 1."""
    drawing = Drawing.create(WIDTH, HEIGHT, title, described or ["no rows"])
    top = max([1, *counts])
    axes = Axes(PLOT.left, PLOT.top, PLOT.width, PLOT.height, (-1.0, 1.0), (0.0, float(top)))
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
    return Markup(drawing.to_svg())  # noqa: S704


def iteration_curves(runs: Sequence[tuple[str, RunFigures]]) -> Markup:
    """Draw the mean best score after each iteration, a line for each of one or two runs.

    A row that ended earlier keeps its score, so that all points are means of the same rows. Nothing
    if no row was refined.
    """
    curves = [(name, mean_by_iteration(figures)) for name, figures in runs]
    if all(len(curve) < 2 for _, curve in curves):
        return Markup("")
    length = max([1, *(len(curve) - 1 for _, curve in curves)])
    described = [
        f"{clean_text(name, 40)}: {', '.join(f'{score:.3f}' for score in curve)}"
        for name, curve in curves
        if curve
    ]
    drawing = Drawing.create(
        WIDTH, HEIGHT, "Mean score after each iteration", described or ["no scores"]
    )
    every = [score for _, curve in curves for score in curve] or [0.0, 1.0]
    low, high = max(0.0, min(every) - 0.05), min(1.0, max(every) + 0.05)
    axes = Axes(PLOT.left, PLOT.top, PLOT.width, PLOT.height, (0.0, float(length)), (low, high))
    axes.draw_y_axis(drawing, "", ticks(low, high, 4))
    _number_axis(drawing, axes, list(range(length + 1)), "iteration")
    for number, (name, curve) in enumerate(curves):
        line, mark = ("line", "mark") if number == 0 else ("second-line", "second-mark")
        drawing.add(
            "polyline",
            line,
            points=" ".join(
                f"{axes.x(n):.1f},{axes.y(score):.1f}" for n, score in enumerate(curve)
            ),
        )
        for n, score in enumerate(curve):
            drawing.add(
                "circle",
                mark,
                f"{clean_text(name, 40)}, iteration {n}: {score:.3f}",
                cx=axes.x(n),
                cy=axes.y(score),
                r=3.5,
            )
    return Markup(drawing.to_svg())  # noqa: S704


def mean_by_iteration(figures: RunFigures) -> list[float]:
    """Return the mean best score of all scored rows after each iteration."""
    iterations = figures.by_iteration
    if not iterations or iterations[0].score is None or not iterations[0].rows:
        return []
    scores, base = [iterations[0].score], iterations[0].rows
    for iteration in iterations[1:]:
        scores.append(scores[-1] + (iteration.gain or 0.0) * iteration.rows / base)
    return [min(1.0, score) for score in scores]


def _unit_axes(last: int) -> Axes:
    return Axes(PLOT.left, PLOT.top, PLOT.width, PLOT.height, (0.0, float(last)), (0.0, 1.0))


def _number_axis(drawing: Drawing, axes: Axes, numbers: Sequence[int], label: str) -> None:
    """Draw an axis of whole numbers at equal distances."""
    step = -(-len(numbers) // MAX_TICKS) or 1
    for place, number in enumerate(numbers):
        if place % step == 0:
            drawing.text(
                axes.x(place), axes.bottom + 18, str(number), "soft small", anchor="middle"
            )
    drawing.add("line", "axis", x1=axes.left, x2=axes.right, y1=axes.bottom, y2=axes.bottom)
    drawing.text(axes.left + axes.width / 2, axes.bottom + 40, label, "soft", anchor="middle")
