"""The figure: quality against calls, a panel for each world. Lines are policies with a parameter,
marks those without one.
"""

from __future__ import annotations

from typing import NamedTuple

from redraft.base.svg import Axes, Drawing, ticks

WIDE, TALL, ACROSS, TOP = 500, 360, 2, 100
NAMES = 82  # pixels for names beside a panel
APART = 13  # from one name to the next
NEAR = 3.0  # calls below which a name is written at its mark
MOST_CALLS = 18.5


class Line(NamedTuple):
    """How a policy with a parameter is drawn."""

    color: str
    dashes: str


class Curve(NamedTuple):
    name: str
    points: list  # of (calls, quality)


class Spot(NamedTuple):
    name: str
    calls: float
    quality: float
    ours: bool


# Okabe & Ito's colours, legible on white and on black; the dashes distinguish them without colour.
LINES = {
    "Adaptive, shipped priors": Line("#0072b2", "none"),
    "Adaptive, learned in 64 rows": Line("#d55e00", "7 3"),
    "Adaptive, true priors": Line("#009e73", "2 3"),
    "best of N": Line("#8b949e", "none"),
}


def frontier_svg(worlds):
    """Return the figure as SVG, from (name, curves, spots) for each world."""
    down = -(-len(worlds) // ACROSS)
    words = [f"{name}: {describe(curves, spots)}" for name, curves, spots in worlds]
    drawing = Drawing.create(
        WIDE * ACROSS,
        TOP + TALL * down,
        "True quality of the answer against model calls a task",
        words,
    )
    for i, (name, line) in enumerate(LINES.items()):
        x, y = 20 + 235 * (i % 4), 52
        stroke(drawing, [(x, y - 4), (x + 34, y - 4)], line, name)
        drawing.text(x + 42, y, name, "small")
    drawing.add("circle", "mark", cx=37.0, cy=70.0, r=4.5)
    drawing.text(62, 74, "ours, as they come", "small")
    drawing.add("rect", "said", x=268.0, y=66.0, width=8, height=8)
    drawing.text(297, 74, "others, as they come", "small")
    for i, world in enumerate(worlds):
        panel(
            drawing,
            Axes(
                64 + WIDE * (i % ACROSS),
                TOP + 24 + TALL * (i // ACROSS),
                WIDE - 74 - NAMES,
                TALL - 86,
            ),
            *world,
        )
    return drawing.to_svg()


def describe(curves, spots):
    ends = [
        (
            f"{c.name} from {c.points[0][1]:.2f} at {c.points[0][0]:.1f} to "
            f"{c.points[-1][1]:.2f} at {c.points[-1][0]:.1f} calls"
        )
        for c in curves
    ]
    return ", ".join(ends + [f"{s.name} {s.quality:.2f} at {s.calls:.1f} calls" for s in spots])


def panel(drawing, place, name, curves, spots):
    """Draw the panel of one world."""
    heights = [quality for curve in curves for _, quality in curve.points] + [
        spot.quality for spot in spots
    ]
    low, high = min(heights), max(heights)
    room = max(high - low, 0.01) * 0.06
    frame = Axes(
        place.left,
        place.top,
        place.width,
        place.height,
        (0.0, MOST_CALLS),
        (low - 2 * room, high + room),
    )
    drawing.text(frame.left, frame.top - 10, name, "head")
    frame.draw_x_axis(drawing, "model calls a task", range(0, 19, 2))
    frame.draw_y_axis(drawing, "true quality", ticks(low, high, 5))
    for curve in curves:
        stroke(
            drawing,
            [(frame.x(calls), frame.y(quality)) for calls, quality in curve.points],
            LINES[curve.name],
            curve.name,
        )
    label(drawing, frame, spots)
    for spot in spots:
        mark(drawing, frame, spot)


def stroke(drawing, points, line, hint):
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    drawing.add(
        "polyline",
        "way",
        hint,
        points=path,
        fill="none",
        stroke=line.color,
        stroke_width=2.2,
        stroke_dasharray=line.dashes,
    )


def mark(drawing, frame, spot):
    x, y, hint = (
        frame.x(spot.calls),
        frame.y(spot.quality),
        f"{spot.name}: {spot.quality:.3f} at {spot.calls:.1f} calls",
    )
    if spot.ours:
        drawing.add("circle", "mark", hint, cx=x, cy=y, r=4.5)
    else:
        drawing.add("rect", "said", hint, x=x - 4, y=y - 4, width=8, height=8)


def label(drawing, frame, spots):
    """Write the names beside the panel in the order of their marks, each as near to its mark as the
    name above it permits.
    """
    lowest = frame.top
    for spot in sorted(spots, key=lambda spot: -spot.quality):
        x, y = frame.x(spot.calls), frame.y(spot.quality)
        if spot.calls < NEAR:
            drawing.text(x - 5, y + 17, spot.name, "small")
            continue
        beside, lowest = max(y, lowest), max(y, lowest) + APART
        drawing.add("line", "axis", x1=x + 5, y1=y, x2=frame.right + 6, y2=beside, stroke_width=0.7)
        drawing.text(frame.right + 9, beside + 4, spot.name, "small")
