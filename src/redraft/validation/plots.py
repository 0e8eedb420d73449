"""The charts of a validation: as SVG for the card, and as text for the terminal.

Every chart also shows its numbers as text. Unknown values are not drawn; items beyond a limit are
counted instead. Names of groups and classes are untrusted text. This module computes no measure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

from ..base.svg import Axes, Drawing, clean_text, ticks
from ..base.text import format_estimate, format_number, pluralize

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

Point: TypeAlias = tuple[float, float, int]
"""One bin: the mean probability, the share of positive outcomes, and the number of rows."""
Estimate: TypeAlias = tuple[str, float | None, float | None, float | None, int, float | None]
"""A name, its value, the ends of its interval, the number of rows, and the value of chance (None:
unknown).
"""
Counts: TypeAlias = Mapping[str, Mapping[str, int]]
"""How often people gave the first label and the grader the second."""

MAX_ROWS, MAX_CLASSES, MAX_DOTS = 60, 24, 2000
GOLDEN_RATIO = 0.6180339887498949
UNIT_TICKS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


def reliability_svg(points: Sequence[Point]) -> str:
    """Draw a reliability diagram: predicted probabilities against observed frequencies; the dashed
    line is perfect calibration.
    """
    descriptions = [
        f"{p:.2f} said, {share:.2f} came true, {pluralize(n, 'row')}" for p, share, n in points
    ]
    drawing = Drawing.create(460, 460, "Are probabilities calibrated?", descriptions or ["no rows"])
    axes = Axes(76, 48, 360, 352)
    axes.draw_x_axis(drawing, "mean probability that the grader gave", UNIT_TICKS)
    axes.draw_y_axis(drawing, "share that came true", UNIT_TICKS)
    drawing.add("line", "chance", x1=axes.x(0), y1=axes.y(0), x2=axes.x(1), y2=axes.y(1))
    ordered = sorted(points)
    drawing.add(
        "polyline",
        "line",
        points=" ".join(f"{axes.x(p):.1f},{axes.y(share):.1f}" for p, share, _ in ordered),
    )
    most = max((n for _, _, n in points), default=1)
    for (p, share, n), description in zip(ordered, sorted(descriptions), strict=True):
        size = 3 + 6 * (n / most) ** 0.5
        drawing.add("circle", "mark", description, cx=axes.x(p), cy=axes.y(share), r=size)
        above = share > p or share < 0.1
        drawing.text(
            axes.x(p),
            axes.y(share) + (-size - 5 if above else size + 14),
            str(n),
            "small",
            anchor="middle",
        )
    drawing.text(axes.right - 6, axes.bottom - 10, "numbers: rows", "soft small", anchor="end")
    return drawing.to_svg()


def histogram_svg(
    groups: Mapping[str, Sequence[float]], *, low: float = 0.0, high: float = 1.0, bins: int = 10
) -> str:
    """Draw the scores of a grader, a histogram for each label of people. Raises ValueError for
    scores outside [low, high].
    """
    panels = [
        (clean_text(name, 80), bin_counts(scores, low, high, bins), _mean(scores))
        for name, scores in groups.items()
    ]
    descriptions = [
        f"{name}: {pluralize(sum(counts), 'row')}, mean {format_number(mean, 2)}, by bin {counts}"
        for name, counts, mean in panels
    ]
    panel = 84
    drawing = Drawing.create(
        560, 92 + panel * max(len(panels), 1), "Scores by label", descriptions or ["no rows"]
    )
    outer = Axes(150, 44, 386, panel * max(len(panels), 1), (low, high))
    outer.draw_x_axis(drawing, "score that the grader gave; triangle: mean", ticks(low, high))
    for row, (name, counts, mean) in enumerate(panels):
        _draw_histogram(
            drawing,
            Axes(outer.left, outer.top + panel * row + 22, outer.width, panel - 22, (low, high)),
            counts,
            mean,
        )
        _row_label(
            drawing,
            outer.top + panel * row + 46,
            name,
            f"n = {sum(counts)}",
            f"mean {format_number(mean, 2)}",
        )
    return drawing.to_svg()


def _draw_histogram(
    drawing: Drawing, axes: Axes, counts: Sequence[int], mean: float | None
) -> None:
    """Draw the bars of one group, the most frequent as high as the axes, and a triangle at the
    mean.
    """
    width, maximum = axes.width / len(counts), max([*counts, 1])
    for i, count in enumerate(counts):
        height = (axes.height - 4) * count / maximum
        x = axes.left + width * i
        drawing.add(
            "rect",
            "mark",
            pluralize(count, "row"),
            x=x + 1,
            y=axes.bottom - height,
            width=width - 2,
            height=height,
        )
        if count:
            drawing.text(
                x + width / 2, axes.bottom - height - 4, str(count), "small", anchor="middle"
            )
    drawing.add("line", "axis", x1=axes.left, x2=axes.right, y1=axes.bottom, y2=axes.bottom)
    if mean is not None:
        x, y = axes.x(mean), axes.bottom
        drawing.add(
            "polygon",
            "mean",
            f"mean {mean:.2f}",
            points=f"{x:.1f},{y + 1:.1f} {x - 5:.1f},{y + 9:.1f} {x + 5:.1f},{y + 9:.1f}",
        )


def _row_label(drawing: Drawing, y: float, name: str, *facts: str) -> None:
    drawing.text(16, y, clean_text(name, 17))
    for n, fact in enumerate(facts, 1):
        drawing.text(16, y + 16 * n, fact, "soft small")


def bin_counts(scores: Iterable[float], low: float, high: float, bins: int) -> list[int]:
    """Count the scores in each of `bins` equal parts of [low, high]; the last part includes `high`.

    Raises ValueError for a score outside.
    """
    counts = [0] * bins
    for score in scores:
        if not low <= score <= high:
            raise ValueError(f"a score of {score!r} does not lie in [{low:g}, {high:g}]")
        counts[min(int((score - low) / (high - low) * bins), bins - 1)] += 1
    return counts


def confusion_svg(labels: Sequence[str], counts: Counts) -> str:
    """Draw a confusion matrix: labels of people in rows, of the grader in columns; larger shares of
    a row are darker.
    """
    columns = labels[:MAX_CLASSES]
    rows = _labels_given_by_people(columns, counts)
    width = 92 if len(columns) <= 6 else 64
    descriptions = [
        f"people {clean_text(a, 80)}, grader {clean_text(b, 80)}: {counts.get(a, {}).get(b, 0)}"
        for a in rows
        for b in columns
    ]
    drawing = Drawing.create(
        max(176 + width * len(columns), 340),
        128 + 56 * len(rows),
        "Labels and verdicts",
        descriptions,
    )
    drawing.text(150 + width * len(columns) / 2, 58, "grader", "soft", anchor="middle")
    drawing.text(18, 92 + 28 * len(rows), "people", "soft", anchor="middle", rotation=-90)
    for j, label in enumerate(columns):
        drawing.text(150 + width * (j + 0.5), 80, clean_text(label, width // 8), anchor="middle")
    for i, people in enumerate(rows):
        row = [counts.get(people, {}).get(label, 0) for label in columns]
        drawing.text(140, 92 + 56 * (i + 0.5) + 4, clean_text(people, 14), anchor="end")
        for j, n in enumerate(row):
            _draw_cell(
                drawing,
                Axes(150 + width * j, 92 + 56 * i, width, 56),
                n,
                sum(row),
                descriptions[i * len(columns) + j],
            )
    if more := len(labels) - len(columns):
        drawing.text(
            16,
            drawing.height - 12,
            f"{pluralize(more, 'more label is', 'more labels are')} not drawn",
            "soft small",
        )
    return drawing.to_svg()


def _labels_given_by_people(labels: Sequence[str], counts: Counts) -> list[str]:
    """Return the labels that people gave at least once."""
    return [label for label in labels if any(counts.get(label, {}).values())]


def _draw_cell(drawing: Drawing, box: Axes, n: int, of: int, hint: str) -> None:
    share, middle = n / of if of else 0.0, box.left + box.width / 2
    place = dict(x=box.left + 1, y=box.top + 1, width=box.width - 2, height=box.height - 2)
    drawing.add("rect", "mark", hint, **place, rx=4, fill_opacity=0.06 + 0.44 * share)
    drawing.text(middle, box.top + 26, str(n), anchor="middle")
    drawing.text(middle, box.top + 43, f"{share:.0%}" if of else "", "soft small", anchor="middle")


def scatter_svg(points: Sequence[tuple[float, float]]) -> str:
    """Draw labels of people (x) against scores of the grader in [0, 1] (y). Equal labels get a
    deterministic jitter.
    """
    xs = [x for x, _ in points] or [0.0, 1.0]
    low, high = (min(xs), max(xs)) if max(xs) > min(xs) else (xs[0] - 0.5, xs[0] + 0.5)
    margin = (high - low) * 0.05
    step = -(-len(points) // MAX_DOTS) or 1
    shown_points = points[::step]
    descriptions = (
        [f"{pluralize(len(points), 'row')}, what people gave from {min(xs):g} to {max(xs):g}"]
        if points
        else ["no rows"]
    )
    drawing = Drawing.create(560, 420, "What people gave, and what it gave", descriptions)
    axes = Axes(76, 48, 460, 312, (low - margin, high + margin), (-0.03, 1.03))
    axes.draw_x_axis(drawing, "what people gave", ticks(low, high))
    axes.draw_y_axis(drawing, "what the grader gave", UNIT_TICKS)
    spread = margin * 1.2 * (len(set(xs)) < len(xs))
    for i, (x, y) in enumerate(shown_points):
        drawing.add(
            "circle",
            "dot",
            f"people {x:g}, grader {y:.2f}",
            cx=axes.x(x + spread * (i * GOLDEN_RATIO % 1 - 0.5)),
            cy=axes.y(y),
            r=3.5,
        )
    rows = pluralize(len(points), "row")
    shown = rows if step == 1 else f"{len(shown_points):,} of {rows}"
    drawing.text(axes.right, 26, shown, "soft small", anchor="end")
    return drawing.to_svg()


def forest_svg(rows: Sequence[Estimate]) -> str:
    """Draw a forest plot: a line for each estimate with its interval, value and rows; a dashed line
    is its chance.
    """
    visible = rows[:MAX_ROWS]
    descriptions = [
        f"{clean_text(name, 80)}: {format_estimate(value, low, high)}, {pluralize(n, 'row')}"
        + ("" if chance is None else f", chance {chance:.2f}")
        for name, value, low, high, n, chance in visible
    ]
    note = 24 * (len(rows) > len(visible))
    drawing = Drawing.create(
        680,
        112 + 26 * len(visible) + note,
        "By group, with 95% intervals",
        descriptions or ["no rows"],
    )
    axes = Axes(184, 52, 282, 26 * len(visible) + 4, _value_range(visible))
    axes.draw_x_axis(
        drawing,
        f"value; dashed: {_chance_label(visible)}" if _chances(visible) else "value",
        ticks(*axes.x_range),
    )
    for i, (row, description) in enumerate(zip(visible, descriptions, strict=True)):
        _draw_estimate(drawing, axes, axes.top + 26 * i + 15, row, description)
    if note:
        drawing.text(
            16,
            drawing.height - 10,
            f"{pluralize(len(rows) - len(visible), 'more group is', 'more groups are')} not drawn",
            "soft small",
        )
    return drawing.to_svg()


def _draw_estimate(drawing: Drawing, axes: Axes, y: float, row: Estimate, description: str) -> None:
    name, value, low, high, n, chance = row
    if chance is not None:
        drawing.add(
            "line",
            "chance",
            f"chance {chance:g}",
            x1=axes.x(chance),
            x2=axes.x(chance),
            y1=y - 13,
            y2=y + 13,
        )
    drawing.text(axes.left - 12, y + 4, clean_text(name, 22), "", anchor="end")
    drawing.text(axes.right + 16, y + 4, format_estimate(value, low, high), "small")
    drawing.text(drawing.width - 12, y + 4, f"n = {n}", "soft small", anchor="end")
    if low is not None and high is not None:
        drawing.add("line", "line", x1=axes.x(low), x2=axes.x(high), y1=y, y2=y)
        for end in (low, high):
            drawing.add("line", "line", x1=axes.x(end), x2=axes.x(end), y1=y - 4, y2=y + 4)
    if value is not None:
        drawing.add("circle", "mark", description, cx=axes.x(value), cy=y, r=5)


def _value_range(rows: Sequence[Estimate]) -> tuple[float, float]:
    """Return [0, 1], or a wider range where a value lies outside."""
    values = [
        0.0,
        1.0,
        *(x for _, *three, _, chance in rows for x in (*three, chance) if x is not None),
    ]
    return min(values), max(values)


def _chances(rows: Sequence[Estimate]) -> set[float]:
    """Return the different values of chance."""
    return {chance for *_, chance in rows if chance is not None}


def _chance_label(rows: Sequence[Estimate]) -> str:
    """Return "chance", with its value if all rows have the same."""
    return "chance" if len(_chances(rows)) > 1 else f"chance, {next(iter(_chances(rows))):.3g}"


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _text_table(title: str, *heads: str) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(title), title_justify="left", box=None, padding=(0, 2, 0, 0), header_style="dim"
    )
    for head in heads:
        table.add_column(Text(clean_text(head, 24)), no_wrap=True)
    return table


def _text(text: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(text, style)


def text_bar(share: float, width: int = 12) -> str:
    """Draw a share as a bar of block characters, in eighths of a character; any share above 0 is
    visible.
    """
    eighths = max(round(share * width * 8), share > 0)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def reliability_text(points: Sequence[Point]) -> Table:
    """Return the data of `reliability_svg` as a table, a row for each bin."""
    table = _text_table("Are probabilities calibrated?", "said", "came true", "n", "")
    for p, share, n in points:
        table.add_row(
            f"{p:.2f}", f"{share:.2f}", str(n), _text(_mark_line(30, {p: "|", share: "●"}))
        )
    return table


def _mark_line(width: int, marks: Mapping[float, str], low: float = 0.0, high: float = 1.0) -> str:
    """Return a line of dots with marks at some values; of marks at the same place the last one is
    shown.
    """
    line = ["·"] * width
    for value, mark in marks.items():
        line[min(int((value - low) / (high - low) * width), width - 1)] = mark
    return "".join(line)


def histogram_text(
    groups: Mapping[str, Sequence[float]], *, low: float = 0.0, high: float = 1.0, bins: int = 10
) -> Table:
    """Return the data of `histogram_svg` as a table, a row for each bin and a column for each
    group.
    """
    table = _text_table("Scores by label", "score", *groups)
    counts = [bin_counts(scores, low, high, bins) for scores in groups.values()]
    for i in range(bins):
        start, end = (low + (high - low) * n / bins for n in (i, i + 1))
        bars = (
            _text(f"{text_bar(c[i] / max([*c, 1]), 10)} {c[i]}" if c[i] else "", "blue")
            for c in counts
        )
        table.add_row(f"{start:.2f}-{end:.2f}", *bars)
    table.add_row("n", *(str(sum(c)) for c in counts))
    return table


def confusion_text(labels: Sequence[str], counts: Counts) -> Table:
    """Return the data of `confusion_svg` as a table: people in rows, the grader in columns."""
    visible = labels[:MAX_CLASSES]
    table = _text_table("Labels (down) and verdicts (across)", "", *visible, "n")
    for people in _labels_given_by_people(visible, counts):
        row = [counts.get(people, {}).get(label, 0) for label in visible]
        cells = (
            _text(f"{n} ({n / sum(row):.0%})", "bold" * (label == people))
            for label, n in zip(visible, row, strict=True)
        )
        table.add_row(_text(clean_text(people, 24)), *cells, str(sum(row)))
    return table


def forest_text(rows: Sequence[Estimate]) -> Table:
    """Return the data of `forest_svg` as a table, a row for each estimate."""
    chance_head = ["| chance"] if _chances(rows) else []
    table = _text_table("By group, with 95% intervals", "", "value", "n", *chance_head, "")
    low, high = _value_range(rows)
    for name, value, start, end, n, chance in islice(rows, MAX_ROWS):
        marks = {
            x: mark
            for x, mark in ((chance, "|"), (start, "["), (end, "]"), (value, "●"))
            if x is not None
        }
        chance_cell = ["" if chance is None else f"{chance:.3g}"] if chance_head else []
        line = _text(_mark_line(40, marks, low, high))
        table.add_row(
            _text(clean_text(name, 24)),
            format_estimate(value, start, end),
            str(n),
            *chance_cell,
            line,
        )
    return table
