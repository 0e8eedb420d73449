"""The picture: quality against calls, a panel for each world. Lines are policies with a knob, marks are those without."""

from __future__ import annotations

from typing import NamedTuple

from redraft.svg import Axes, Drawing, ticks

WIDE, TALL, ACROSS, TOP = 500, 360, 2, 100
NAMES = 82  # pixels for names beside a panel
APART = 13  # from one name to the next
NEAR = 3.0  # calls below which a name stands at its mark: nothing else is there
MOST_CALLS = 18.5


class Line(NamedTuple):
    """How a policy with a knob is drawn."""

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


# Okabe & Ito's colours, legible on white and on black; the dashes tell them apart without.
LINES = {
    "Adaptive, shipped priors": Line("#0072b2", "none"),
    "Adaptive, learned priors": Line("#d55e00", "7 3"),
    "Adaptive, true priors": Line("#009e73", "2 3"),
    "best of N": Line("#8b949e", "none"),
}


def frontier_svg(worlds):
    """The picture, of (name, curves, spots) for each world."""
    down = -(-len(worlds) // ACROSS)
    words = [f"{name}: {told(curves, spots)}" for name, curves, spots in worlds]
    drawn = Drawing.create(WIDE * ACROSS, TOP + TALL * down, "True quality of the answer against model calls a task", words)
    for i, (name, line) in enumerate(LINES.items()):
        x, y = 20 + 235 * (i % 4), 52
        stroke(drawn, [(x, y - 4), (x + 34, y - 4)], line, name)
        drawn.text(x + 42, y, name, "small")
    drawn.add("circle", "mark", cx=37.0, cy=70.0, r=4.5)
    drawn.text(62, 74, "ours, as they come", "small")
    drawn.add("rect", "said", x=268.0, y=66.0, width=8, height=8)
    drawn.text(297, 74, "others, as they come", "small")
    for i, world in enumerate(worlds):
        panel(drawn, Axes(64 + WIDE * (i % ACROSS), TOP + 24 + TALL * (i // ACROSS), WIDE - 74 - NAMES, TALL - 86), *world)
    return drawn.to_svg()


def told(curves, spots):
    ends = [
        f"{c.name} from {c.points[0][1]:.2f} at {c.points[0][0]:.1f} to {c.points[-1][1]:.2f} at {c.points[-1][0]:.1f} calls"
        for c in curves
    ]
    return ", ".join(ends + [f"{s.name} {s.quality:.2f} at {s.calls:.1f} calls" for s in spots])


def panel(drawn, place, name, curves, spots):
    """One world."""
    heights = [quality for curve in curves for _, quality in curve.points] + [spot.quality for spot in spots]
    low, high = min(heights), max(heights)
    room = max(high - low, 0.01) * 0.06
    frame = Axes(place.left, place.top, place.width, place.height, (0.0, MOST_CALLS), (low - 2 * room, high + room))
    drawn.text(frame.left, frame.top - 10, name, "head")
    frame.draw_x_axis(drawn, "model calls a task", range(0, 19, 2))
    frame.draw_y_axis(drawn, "true quality", ticks(low, high, 5))
    for curve in curves:
        stroke(drawn, [(frame.x(calls), frame.y(quality)) for calls, quality in curve.points], LINES[curve.name], curve.name)
    label(drawn, frame, spots)
    for spot in spots:
        mark(drawn, frame, spot)


def stroke(drawn, points, line, hint):
    told = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    drawn.add("polyline", "way", hint, points=told, fill="none", stroke=line.color, stroke_width=2.2, stroke_dasharray=line.dashes)


def mark(drawn, frame, spot):
    x, y, hint = frame.x(spot.calls), frame.y(spot.quality), f"{spot.name}: {spot.quality:.3f} at {spot.calls:.1f} calls"
    if spot.ours:
        drawn.add("circle", "mark", hint, cx=x, cy=y, r=4.5)
    else:
        drawn.add("rect", "said", hint, x=x - 4, y=y - 4, width=8, height=8)


def label(drawn, frame, spots):
    """Names beside the panel in the order of their marks, each as near to its own as the one above lets it be."""
    lowest = frame.top
    for spot in sorted(spots, key=lambda spot: -spot.quality):
        x, y = frame.x(spot.calls), frame.y(spot.quality)
        if spot.calls < NEAR:
            drawn.text(x - 5, y + 17, spot.name, "small")
            continue
        beside, lowest = max(y, lowest), max(y, lowest) + APART
        drawn.add("line", "axis", x1=x + 5, y1=y, x2=frame.right + 6, y2=beside, stroke_width=0.7)
        drawn.text(frame.right + 9, beside + 4, spot.name, "small")
