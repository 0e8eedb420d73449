"""Draw the figures of docs/concepts: python scripts/figures.py [--check]

The figure of estimates holds real numbers: it runs a refinement with a scripted model and a
scripted judge.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import redraft
from redraft.base.svg import Axes, Drawing, ticks

FOLDER = Path(__file__).parent.parent / "docs" / "concepts"
BOX_WIDTH, BOX_HEIGHT = 118, 46
GRADES = (2, 4, 3, 5, 4, 4, 4, 4)
"""Scores of the scripted judge in order, 0 to 5."""


def loop() -> Drawing:
    """Draw the loop of one refinement."""
    drawing = Drawing.create(
        760,
        280,
        "One refinement",
        ["generate, repair, grade, choose, refine, and return the best answer"],
    )
    labels = [
        ("generate", "the model writes"),
        ("repair", "the editor, no call"),
        ("grade", "all graders"),
        ("choose", "what gains most?"),
        ("return", "the best answer"),
    ]
    left = [24 + 148 * n for n in range(len(labels))]
    middle = [x + BOX_WIDTH / 2 for x in left]
    for n, (title, text) in enumerate(labels):
        box(drawing, left[n], 60, title, text)
        if n:
            arrow(drawing, left[n - 1] + BOX_WIDTH, 83, left[n], 83)
    for column, y, title, text, x in (
        (2, 140, "grade again", "if scores are noisy", middle[3] - 20),
        (1, 210, "refine", "as graders suggest", middle[3] + 20),
    ):
        box(drawing, left[column], y, title, text)
        drawing.add("line", "axis", x1=x, y1=60 + BOX_HEIGHT, x2=x, y2=y + BOX_HEIGHT / 2)
        arrow(drawing, x, y + BOX_HEIGHT / 2, left[column] + BOX_WIDTH, y + BOX_HEIGHT / 2)
        arrow(drawing, middle[column], y, middle[column], 60 + BOX_HEIGHT)
    return drawing


def box(drawing: Drawing, x: float, y: float, title: str, text: str) -> None:
    """Draw a step: its name, and what happens in it."""
    drawing.add("rect", "line", x=x, y=y, width=BOX_WIDTH, height=BOX_HEIGHT, rx=6)
    drawing.text(x + BOX_WIDTH / 2, y + 20, title, anchor="middle")
    drawing.text(x + BOX_WIDTH / 2, y + 37, text, "soft small", anchor="middle")


def arrow(drawing: Drawing, x1: float, y1: float, x2: float, y2: float) -> None:
    """Draw an arrow from one point to another."""
    length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
    ux, uy = (x2 - x1) / length, (y2 - y1) / length
    left = f"{x2 - 8 * ux - 4 * uy:.1f} {y2 - 8 * uy + 4 * ux:.1f}"
    right = f"{x2 - 8 * ux + 4 * uy:.1f} {y2 - 8 * uy - 4 * ux:.1f}"
    drawing.add("line", "axis", x1=x1, y1=y1, x2=x2 - 6 * ux, y2=y2 - 6 * uy)
    drawing.add("path", "mark", d=f"M {x2} {y2} L {left} L {right} Z")


def judged_refinement() -> redraft.Result:
    """Refine with a scripted judge."""
    verdicts = [
        json.dumps(
            {
                "reason": "It is so.",
                "criteria": {"quality": {"evidence": "", "change": "Improve it.", "score": grade}},
                "done": False,
            }
        )
        for grade in GRADES
    ]
    return redraft.refine_sync(
        "Write.",
        redraft.ScriptedModel([f"Text number {n}." for n in range(8)]),
        graders=redraft.Judge({"quality": "It is good."}),
        judge=redraft.ScriptedModel(verdicts),
    )


def estimates() -> Drawing:
    """Draw the scores and the estimate of each answer."""
    trace = judged_refinement().trace
    outcome = trace.outcome
    if outcome is None or outcome.interval is None:
        raise SystemExit("the refinement ended without an estimate")
    means = dict(outcome.estimates)
    words = [
        f"answer {c.id}: judge {trace.scores[c.id]:.2f}, estimate {means[c.id]:.2f}"
        for c in trace.graded_candidates
    ]
    drawing = Drawing.create(
        620, 120 + 44 * len(words), "Scores of the judge, and estimates", words
    )
    area = Axes(110, 50, 470, 44.0 * len(words))
    area.draw_x_axis(drawing, "score", ticks(0, 1))
    for n, candidate in enumerate(trace.graded_candidates):
        y = area.top + 22 + 44 * n
        drawing.text(24, y + 4, f"answer {candidate.id}")
        if candidate.id == outcome.best:
            low, high = outcome.interval
            drawing.add(
                "line", "line", "95 % interval", x1=area.x(low), x2=area.x(high), y1=y, y2=y
            )
        score = trace.scores[candidate.id]
        if score is not None:
            drawing.add("circle", "said", f"judge {score:.2f}", cx=area.x(score), cy=y, r=5)
        drawing.add(
            "circle",
            "mark",
            f"estimate {means[candidate.id]:.2f}",
            cx=area.x(means[candidate.id]),
            cy=y,
            r=5,
        )
    bottom = drawing.height - 14
    drawing.add("circle", "said", cx=120, cy=bottom - 4, r=5)
    drawing.text(132, bottom, "the judge", "soft small")
    drawing.add("circle", "mark", cx=212, cy=bottom - 4, r=5)
    drawing.text(
        224,
        bottom,
        "estimate; the bar is the 95 % interval of the answer that is returned",
        "soft small",
    )
    return drawing


def trace() -> Drawing:
    """Draw a trace as a list of records."""
    rows = [
        ("candidate 0", "the first draft"),
        ("feedback 0, judge", "its score, and what to change"),
        ("candidate 1", "a refinement of candidate 0"),
        ("failure 1, judge", "the judge could not be reached"),
        ("feedback 1, judge", "its score, on the second attempt"),
        ("outcome", "which answer is best, and why the work ended"),
    ]
    drawing = Drawing.create(
        620, 64 + 36 * len(rows), "A trace is a list of records", [f"{a}: {b}" for a, b in rows]
    )
    for n, (name, text) in enumerate(rows):
        y = 50 + 36 * n
        drawing.add("rect", "line", x=24, y=y, width=190, height=28, rx=5)
        drawing.text(36, y + 18, name)
        drawing.text(240, y + 18, text, "soft")
        if n:
            drawing.add("line", "axis", x1=119, x2=119, y1=y - 8, y2=y)
    return drawing


FIGURES = {"loop.svg": loop, "estimates.svg": estimates, "trace.svg": trace}


def main(*, check: bool) -> int:
    stale = {
        name: text
        for name, draw in FIGURES.items()
        if (text := draw().to_svg()) != read(FOLDER / name)
    }
    for name, text in stale.items():
        if check:
            print(f"{name} is stale: run python scripts/figures.py")
        else:
            (FOLDER / name).write_text(text)
    return int(check and bool(stale))


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main(check="--check" in sys.argv))
