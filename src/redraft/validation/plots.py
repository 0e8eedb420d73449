"""The pictures of a validation: as SVG for the card, and as text for the terminal.

Every picture says its numbers. What is unknown is not drawn; what is too much is counted instead. Names of groups and
classes are foreign text. Nothing here computes a measure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

from .svg import PlotArea, SvgDrawing, clean_text, tick_values

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

Point: TypeAlias = tuple[float, float, int]
"""Of one bin: the mean probability, the share that was true, how many there were."""
Estimate: TypeAlias = tuple[str, float | None, float | None, float | None, int]
"""A name, its value, the ends of its interval (None: unknown), and of how many rows."""
Counts: TypeAlias = Mapping[str, Mapping[str, int]]
"""How often people said the first label and the grader the second."""

MAX_ROWS, MAX_CLASSES, MAX_DOTS = 60, 24, 2000
GOLDEN_RATIO = 0.6180339887498949
UNIT_TICKS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


def reliability_svg(points: Sequence[Point]) -> str:
    """Probabilities that a grader gave, beside how often they came true. On the dashed line they would mean what they say."""
    words = [f"{p:.2f} said, {share:.2f} came true, {n} rows" for p, share, n in points]
    drawn = SvgDrawing.create(460, 460, "Does a probability mean what it says?", words or ["no rows"])
    frame = PlotArea(76, 48, 360, 352)
    frame.draw_x_grid(drawn, "mean probability that the grader gave", UNIT_TICKS)
    frame.draw_y_grid(drawn, "share that came true", UNIT_TICKS)
    drawn.add("line", "chance", x1=frame.x(0), y1=frame.y(0), x2=frame.x(1), y2=frame.y(1))
    ordered = sorted(points)
    drawn.add("polyline", "line", points=" ".join(f"{frame.x(p):.1f},{frame.y(share):.1f}" for p, share, _ in ordered))
    most = max((n for _, _, n in points), default=1)
    for (p, share, n), said in zip(ordered, sorted(words), strict=True):
        size = 3 + 6 * (n / most) ** 0.5
        drawn.add("circle", "mark", said, cx=frame.x(p), cy=frame.y(share), r=size)
        above = share > p or share < 0.1
        drawn.add_text(frame.x(p), frame.y(share) + (-size - 5 if above else size + 14), str(n), "small", anchor="middle")
    drawn.add_text(frame.right - 6, frame.bottom - 10, "numbers: rows", "soft small", anchor="end")
    return drawn.to_svg()


def histogram_svg(groups: Mapping[str, Sequence[float]], *, low: float = 0.0, high: float = 1.0, bins: int = 10) -> str:
    """The scores of a grader, one panel for each thing that people said. Scores outside [low, high] are an error."""
    counted = [(clean_text(name, 80), bin_counts(scores, low, high, bins), _mean(scores)) for name, scores in groups.items()]
    words = [f"{name}: {sum(counts)} rows, mean {_format_number(mean)}, by bin {counts}" for name, counts, mean in counted]
    panel = 84
    drawn = SvgDrawing.create(560, 92 + panel * max(len(counted), 1), "Scores by what people said", words or ["no rows"])
    whole = PlotArea(150, 44, 386, panel * max(len(counted), 1), (low, high))
    whole.draw_x_grid(drawn, "score that the grader gave; triangle: mean", tick_values(low, high))
    for row, (name, counts, mean) in enumerate(counted):
        _draw_panel(drawn, PlotArea(whole.left, whole.top + panel * row + 22, whole.width, panel - 22, (low, high)), counts, mean)
        _draw_label(drawn, whole.top + panel * row + 46, name, f"n = {sum(counts)}", f"mean {_format_number(mean)}")
    return drawn.to_svg()


def _draw_panel(drawing: SvgDrawing, frame: PlotArea, counts: Sequence[int], mean: float | None) -> None:
    """The bars of one group, the most frequent as high as the panel; a triangle at the mean."""
    wide, most = frame.width / len(counts), max([*counts, 1])
    for i, count in enumerate(counts):
        tall = (frame.height - 4) * count / most
        x = frame.left + wide * i
        drawing.add("rect", "mark", f"{count} rows", x=x + 1, y=frame.bottom - tall, width=wide - 2, height=tall)
        if count:
            drawing.add_text(x + wide / 2, frame.bottom - tall - 4, str(count), "small", anchor="middle")
    drawing.add("line", "axis", x1=frame.left, x2=frame.right, y1=frame.bottom, y2=frame.bottom)
    if mean is not None:
        x, y = frame.x(mean), frame.bottom
        drawing.add(
            "polygon", "said", f"mean {mean:.2f}", points=f"{x:.1f},{y + 1:.1f} {x - 5:.1f},{y + 9:.1f} {x + 5:.1f},{y + 9:.1f}"
        )


def _draw_label(drawing: SvgDrawing, y: float, name: str, *facts: str) -> None:
    drawing.add_text(16, y, clean_text(name, 17))
    for n, fact in enumerate(facts, 1):
        drawing.add_text(16, y + 16 * n, fact, "soft small")


def bin_counts(scores: Iterable[float], low: float, high: float, bins: int) -> list[int]:
    """How many scores lie in each of `bins` equal parts of [low, high]; the last holds `high` too. Raises ValueError outside."""
    counts = [0] * bins
    for score in scores:
        if not low <= score <= high:
            raise ValueError(f"a score of {score!r} does not lie in [{low:g}, {high:g}]")
        counts[min(int((score - low) / (high - low) * bins), bins - 1)] += 1
    return counts


def confusion_svg(labels: Sequence[str], counts: Counts) -> str:
    """What people said (down), beside what the grader said (across): counts, and the share of each row, the darker the larger."""
    across = labels[:MAX_CLASSES]
    down = _labels_used_by_people(across, counts)
    wide = 92 if len(across) <= 6 else 64
    words = [f"people {clean_text(a, 80)}, grader {clean_text(b, 80)}: {counts.get(a, {}).get(b, 0)}" for a in down for b in across]
    drawn = SvgDrawing.create(max(176 + wide * len(across), 340), 128 + 56 * len(down), "What people said, and what it said", words)
    drawn.add_text(150 + wide * len(across) / 2, 58, "grader", "soft", anchor="middle")
    drawn.add_text(18, 92 + 28 * len(down), "people", "soft", anchor="middle", rotation=-90)
    for j, label in enumerate(across):
        drawn.add_text(150 + wide * (j + 0.5), 80, clean_text(label, wide // 8), anchor="middle")
    for i, people in enumerate(down):
        row = [counts.get(people, {}).get(said, 0) for said in across]
        drawn.add_text(140, 92 + 56 * (i + 0.5) + 4, clean_text(people, 14), anchor="end")
        for j, n in enumerate(row):
            _draw_cell(drawn, PlotArea(150 + wide * j, 92 + 56 * i, wide, 56), n, sum(row), words[i * len(across) + j])
    if more := len(labels) - len(across):
        drawn.add_text(16, drawn.height - 12, f"{more} more labels are not drawn", "soft small")
    return drawn.to_svg()


def _labels_used_by_people(labels: Sequence[str], counts: Counts) -> list[str]:
    """The labels that people gave at all."""
    return [label for label in labels if any(counts.get(label, {}).values())]


def _draw_cell(drawing: SvgDrawing, box: PlotArea, n: int, total: int, tooltip: str) -> None:
    share, middle = n / total if total else 0.0, box.left + box.width / 2
    place = dict(x=box.left + 1, y=box.top + 1, width=box.width - 2, height=box.height - 2)
    drawing.add("rect", "mark", tooltip, **place, rx=4, fill_opacity=0.06 + 0.44 * share)
    drawing.add_text(middle, box.top + 26, str(n), anchor="middle")
    drawing.add_text(middle, box.top + 43, f"{share:.0%}" if total else "", "soft small", anchor="middle")


def scatter_svg(points: Sequence[tuple[float, float]]) -> str:
    """What people gave (across) beside what the grader gave, in [0, 1] (up). Equal labels are spread a little, always alike."""
    xs = [x for x, _ in points] or [0.0, 1.0]
    low, high = (min(xs), max(xs)) if max(xs) > min(xs) else (xs[0] - 0.5, xs[0] + 0.5)
    margin = (high - low) * 0.05
    step = -(-len(points) // MAX_DOTS) or 1
    drawn_points = points[::step]
    words = [f"{len(points)} rows, what people gave from {min(xs):g} to {max(xs):g}"] if points else ["no rows"]
    drawn = SvgDrawing.create(560, 420, "What people gave, and what it gave", words)
    frame = PlotArea(76, 48, 460, 312, (low - margin, high + margin), (-0.03, 1.03))
    frame.draw_x_grid(drawn, "what people gave", tick_values(low, high))
    frame.draw_y_grid(drawn, "what the grader gave", UNIT_TICKS)
    spread = margin * 1.2 * (len(set(xs)) < len(xs))
    for i, (x, y) in enumerate(drawn_points):
        drawn.add(
            "circle",
            "dot",
            f"people {x:g}, grader {y:.2f}",
            cx=frame.x(x + spread * (i * GOLDEN_RATIO % 1 - 0.5)),
            cy=frame.y(y),
            r=3.5,
        )
    shown = f"{len(points)} rows" if step == 1 else f"{len(drawn_points)} of {len(points)} rows"
    drawn.add_text(frame.right, 26, shown, "soft small", anchor="end")
    return drawn.to_svg()


def forest_svg(rows: Sequence[Estimate], chance: float | None = None) -> str:
    """One line for each estimate, with its interval, value and rows; the dashed line is chance."""
    kept = rows[:MAX_ROWS]
    words = [f"{clean_text(name, 80)}: {_format_estimate(value, low, high)}, {n} rows" for name, value, low, high, n in kept]
    if chance is not None:
        words.append(f"chance is {chance:.2f}")
    note = 24 * (len(rows) > len(kept))
    drawn = SvgDrawing.create(680, 112 + 26 * len(kept) + note, "By group, with 95 % intervals", words or ["no rows"])
    frame = PlotArea(184, 52, 282, 26 * len(kept) + 4, _value_range(kept, chance))
    frame.draw_x_grid(drawn, "value" if chance is None else f"value; dashed: chance, {chance:g}", tick_values(*frame.x_range))
    if chance is not None:
        drawn.add("line", "chance", x1=frame.x(chance), x2=frame.x(chance), y1=frame.top - 6, y2=frame.bottom)
    for i, (row, said) in enumerate(zip(kept, words, strict=False)):
        _draw_interval(drawn, frame, frame.top + 26 * i + 15, row, said)
    if note:
        drawn.add_text(16, drawn.height - 10, f"{len(rows) - len(kept)} more groups are not drawn", "soft small")
    return drawn.to_svg()


def _draw_interval(drawing: SvgDrawing, frame: PlotArea, y: float, row: Estimate, tooltip: str) -> None:
    name, value, low, high, n = row
    drawing.add_text(frame.left - 12, y + 4, clean_text(name, 22), "", anchor="end")
    drawing.add_text(frame.right + 16, y + 4, _format_estimate(value, low, high), "small")
    drawing.add_text(drawing.width - 12, y + 4, f"n = {n}", "soft small", anchor="end")
    if low is not None and high is not None:
        drawing.add("line", "line", x1=frame.x(low), x2=frame.x(high), y1=y, y2=y)
        for end in (low, high):
            drawing.add("line", "line", x1=frame.x(end), x2=frame.x(end), y1=y - 4, y2=y + 4)
    if value is not None:
        drawing.add("circle", "mark", tooltip, cx=frame.x(value), cy=y, r=5)


def _value_range(rows: Sequence[Estimate], chance: float | None) -> tuple[float, float]:
    """[0, 1], or wider where something lies outside."""
    there = [0.0, 1.0, *(x for _, *three, _ in rows for x in three if x is not None)] + ([] if chance is None else [chance])
    return min(there), max(there)


def _format_estimate(value: float | None, low: float | None, high: float | None) -> str:
    interval = "" if low is None or high is None else f" [{low:.2f}, {high:.2f}]"
    return _format_number(value) + interval


def _format_number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f}"


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _text_table(title: str, *heads: str) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left", box=None, padding=(0, 2, 0, 0), header_style="dim")
    for head in heads:
        table.add_column(Text(clean_text(head, 24)), no_wrap=True)
    return table


def _rich_text(text: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(text, style)


def text_bar(share: float, width: int = 12) -> str:
    """A share as a bar of blocks, in eighths of a character; whatever is not nothing is seen."""
    eighths = max(round(share * width * 8), share > 0)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def reliability_text(points: Sequence[Point]) -> Table:
    """The same as `reliability_svg`, a row for each bin."""
    table = _text_table("Does a probability mean what it says?", "said", "came true", "n", "")
    for p, share, n in points:
        table.add_row(f"{p:.2f}", f"{share:.2f}", str(n), _rich_text(_mark_line(30, {p: "|", share: "●"})))
    return table


def _mark_line(width: int, marks: Mapping[float, str], low: float = 0.0, high: float = 1.0) -> str:
    """A line of dots with marks at some values; the last one wins a place."""
    line = ["·"] * width
    for value, mark in marks.items():
        line[min(int((value - low) / (high - low) * width), width - 1)] = mark
    return "".join(line)


def histogram_text(groups: Mapping[str, Sequence[float]], *, low: float = 0.0, high: float = 1.0, bins: int = 10) -> Table:
    """The same as `histogram_svg`, a row for each bin and a column for each group."""
    table = _text_table("Scores by what people said", "score", *groups)
    counted = [bin_counts(scores, low, high, bins) for scores in groups.values()]
    for i in range(bins):
        start, end = (low + (high - low) * n / bins for n in (i, i + 1))
        bars = (_rich_text(f"{text_bar(c[i] / max([*c, 1]), 10)} {c[i]}" if c[i] else "", "blue") for c in counted)
        table.add_row(f"{start:.2f}-{end:.2f}", *bars)
    table.add_row("n", *(str(sum(c)) for c in counted))
    return table


def confusion_text(labels: Sequence[str], counts: Counts) -> Table:
    """The same as `confusion_svg`: people down, the grader across."""
    kept = labels[:MAX_CLASSES]
    table = _text_table("What people said (down), and what it said (across)", "", *kept, "n")
    for people in _labels_used_by_people(kept, counts):
        row = [counts.get(people, {}).get(said, 0) for said in kept]
        cells = (_rich_text(f"{n} ({n / sum(row):.0%})", "bold" * (said == people)) for said, n in zip(kept, row, strict=True))
        table.add_row(_rich_text(clean_text(people, 24)), *cells, str(sum(row)))
    return table


def forest_text(rows: Sequence[Estimate], chance: float | None = None) -> Table:
    """The same as `forest_svg`, a row for each estimate."""
    table = _text_table("By group, with 95 % intervals", "", "value", "n", "" if chance is None else f"| chance {chance:g}")
    low, high = _value_range(rows, chance)
    for name, value, start, end, n in islice(rows, MAX_ROWS):
        marks: dict[float, Any] = {} if chance is None else {chance: "|"}
        marks |= {x: mark for x, mark in ((start, "["), (end, "]"), (value, "●")) if x is not None}
        table.add_row(
            _rich_text(clean_text(name, 24)),
            _format_estimate(value, start, end),
            str(n),
            _rich_text(_mark_line(40, marks, low, high)),
        )
    return table
