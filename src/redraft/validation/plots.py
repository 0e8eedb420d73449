"""The pictures of a validation: as SVG for the card, and as text for the terminal.

Every picture says its numbers. What is unknown is not drawn; what is too much is counted instead. Names of groups and
classes are foreign text. Nothing here computes a measure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

from .svg import Drawing, Frame, clean, ticks

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

Point: TypeAlias = tuple[float, float, int]
"""Of one bin: the mean probability, the share that was true, how many there were."""
Estimate: TypeAlias = tuple[str, float | None, float | None, float | None, int]
"""A name, its value, the ends of its interval (None: unknown), and of how many rows."""
Counts: TypeAlias = Mapping[str, Mapping[str, int]]
"""How often people said the first label and the grader the second."""

MOST_ROWS, MOST_CLASSES, MOST_DOTS = 60, 24, 2000
GOLDEN = 0.6180339887498949
FIFTHS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


def reliability_svg(points: Sequence[Point]) -> str:
    """Probabilities that a grader gave, beside how often they came true. On the dashed line they would mean what they say."""
    words = [f"{p:.2f} said, {share:.2f} came true, {n} rows" for p, share, n in points]
    drawn = Drawing.of(460, 460, "Does a probability mean what it says?", words or ["no rows"])
    frame = Frame(76, 48, 360, 352)
    frame.grid_across(drawn, "mean probability that the grader gave", FIFTHS)
    frame.grid_up(drawn, "share that came true", FIFTHS)
    drawn.add("line", "chance", x1=frame.x(0), y1=frame.y(0), x2=frame.x(1), y2=frame.y(1))
    ordered = sorted(points)
    drawn.add("polyline", "line", points=" ".join(f"{frame.x(p):.1f},{frame.y(share):.1f}" for p, share, _ in ordered))
    most = max((n for _, _, n in points), default=1)
    for (p, share, n), said in zip(ordered, sorted(words), strict=True):
        size = 3 + 6 * (n / most) ** 0.5
        drawn.add("circle", "mark", said, cx=frame.x(p), cy=frame.y(share), r=size)
        above = share > p or share < 0.1
        drawn.text(frame.x(p), frame.y(share) + (-size - 5 if above else size + 14), str(n), "small", anchor="middle")
    drawn.text(frame.right - 6, frame.bottom - 10, "numbers: rows", "soft small", anchor="end")
    return drawn.done()


def histogram_svg(groups: Mapping[str, Sequence[float]], *, low: float = 0.0, high: float = 1.0, bins: int = 10) -> str:
    """The scores of a grader, one panel for each thing that people said. Scores outside [low, high] are an error."""
    counted = [(clean(name, 80), counts_in(scores, low, high, bins), _mean(scores)) for name, scores in groups.items()]
    words = [f"{name}: {sum(counts)} rows, mean {_number(mean)}, by bin {counts}" for name, counts, mean in counted]
    panel = 84
    drawn = Drawing.of(560, 92 + panel * max(len(counted), 1), "Scores by what people said", words or ["no rows"])
    whole = Frame(150, 44, 386, panel * max(len(counted), 1), (low, high))
    whole.grid_across(drawn, "score that the grader gave; triangle: mean", ticks(low, high))
    for row, (name, counts, mean) in enumerate(counted):
        _panel(drawn, Frame(whole.left, whole.top + panel * row + 22, whole.width, panel - 22, (low, high)), counts, mean)
        _named(drawn, whole.top + panel * row + 46, name, f"n = {sum(counts)}", f"mean {_number(mean)}")
    return drawn.done()


def _panel(drawn: Drawing, frame: Frame, counts: Sequence[int], mean: float | None) -> None:
    """The bars of one group, the most frequent as high as the panel; a triangle at the mean."""
    wide, most = frame.width / len(counts), max([*counts, 1])
    for i, count in enumerate(counts):
        tall = (frame.height - 4) * count / most
        x = frame.left + wide * i
        drawn.add("rect", "mark", f"{count} rows", x=x + 1, y=frame.bottom - tall, width=wide - 2, height=tall)
        if count:
            drawn.text(x + wide / 2, frame.bottom - tall - 4, str(count), "small", anchor="middle")
    drawn.add("line", "axis", x1=frame.left, x2=frame.right, y1=frame.bottom, y2=frame.bottom)
    if mean is not None:
        x, y = frame.x(mean), frame.bottom
        drawn.add(
            "polygon", "said", f"mean {mean:.2f}", points=f"{x:.1f},{y + 1:.1f} {x - 5:.1f},{y + 9:.1f} {x + 5:.1f},{y + 9:.1f}"
        )


def _named(drawn: Drawing, y: float, name: str, *facts: str) -> None:
    drawn.text(16, y, clean(name, 17))
    for n, fact in enumerate(facts, 1):
        drawn.text(16, y + 16 * n, fact, "soft small")


def counts_in(scores: Iterable[float], low: float, high: float, bins: int) -> list[int]:
    """How many scores lie in each of `bins` equal parts of [low, high]; the last holds `high` too. Raises ValueError outside."""
    counts = [0] * bins
    for score in scores:
        if not low <= score <= high:
            raise ValueError(f"a score of {score!r} does not lie in [{low:g}, {high:g}]")
        counts[min(int((score - low) / (high - low) * bins), bins - 1)] += 1
    return counts


def confusion_svg(labels: Sequence[str], counts: Counts) -> str:
    """What people said (down), beside what the grader said (across): counts, and the share of each row, the darker the larger."""
    across = labels[:MOST_CLASSES]
    down = _said_by_people(across, counts)
    wide = 92 if len(across) <= 6 else 64
    words = [f"people {clean(a, 80)}, grader {clean(b, 80)}: {counts.get(a, {}).get(b, 0)}" for a in down for b in across]
    drawn = Drawing.of(max(176 + wide * len(across), 340), 128 + 56 * len(down), "What people said, and what it said", words)
    drawn.text(150 + wide * len(across) / 2, 58, "grader", "soft", anchor="middle")
    drawn.text(18, 92 + 28 * len(down), "people", "soft", anchor="middle", turn=-90)
    for j, label in enumerate(across):
        drawn.text(150 + wide * (j + 0.5), 80, clean(label, wide // 8), anchor="middle")
    for i, people in enumerate(down):
        row = [counts.get(people, {}).get(said, 0) for said in across]
        drawn.text(140, 92 + 56 * (i + 0.5) + 4, clean(people, 14), anchor="end")
        for j, n in enumerate(row):
            _cell(drawn, Frame(150 + wide * j, 92 + 56 * i, wide, 56), n, sum(row), words[i * len(across) + j])
    if more := len(labels) - len(across):
        drawn.text(16, drawn.height - 12, f"{more} more labels are not drawn", "soft small")
    return drawn.done()


def _said_by_people(labels: Sequence[str], counts: Counts) -> list[str]:
    """The labels that people gave at all."""
    return [label for label in labels if any(counts.get(label, {}).values())]


def _cell(drawn: Drawing, box: Frame, n: int, of: int, hint: str) -> None:
    share, middle = n / of if of else 0.0, box.left + box.width / 2
    place = dict(x=box.left + 1, y=box.top + 1, width=box.width - 2, height=box.height - 2)
    drawn.add("rect", "mark", hint, **place, rx=4, fill_opacity=0.06 + 0.44 * share)
    drawn.text(middle, box.top + 26, str(n), anchor="middle")
    drawn.text(middle, box.top + 43, f"{share:.0%}" if of else "", "soft small", anchor="middle")


def scatter_svg(points: Sequence[tuple[float, float]]) -> str:
    """What people gave (across) beside what the grader gave, in [0, 1] (up). Equal labels are spread a little, always alike."""
    xs = [x for x, _ in points] or [0.0, 1.0]
    low, high = (min(xs), max(xs)) if max(xs) > min(xs) else (xs[0] - 0.5, xs[0] + 0.5)
    margin = (high - low) * 0.05
    step = -(-len(points) // MOST_DOTS) or 1
    drawn_points = points[::step]
    words = [f"{len(points)} rows, what people gave from {min(xs):g} to {max(xs):g}"] if points else ["no rows"]
    drawn = Drawing.of(560, 420, "What people gave, and what it gave", words)
    frame = Frame(76, 48, 460, 312, (low - margin, high + margin), (-0.03, 1.03))
    frame.grid_across(drawn, "what people gave", ticks(low, high))
    frame.grid_up(drawn, "what the grader gave", FIFTHS)
    spread = margin * 1.2 * (len(set(xs)) < len(xs))
    for i, (x, y) in enumerate(drawn_points):
        drawn.add(
            "circle", "dot", f"people {x:g}, grader {y:.2f}", cx=frame.x(x + spread * (i * GOLDEN % 1 - 0.5)), cy=frame.y(y), r=3.5
        )
    shown = f"{len(points)} rows" if step == 1 else f"{len(drawn_points)} of {len(points)} rows"
    drawn.text(frame.right, 26, shown, "soft small", anchor="end")
    return drawn.done()


def forest_svg(rows: Sequence[Estimate], chance: float | None = None) -> str:
    """One line for each estimate, with its interval, value and rows; the dashed line is chance."""
    kept = rows[:MOST_ROWS]
    words = [f"{clean(name, 80)}: {_estimate(value, low, high)}, {n} rows" for name, value, low, high, n in kept]
    if chance is not None:
        words.append(f"chance is {chance:.2f}")
    note = 24 * (len(rows) > len(kept))
    drawn = Drawing.of(680, 112 + 26 * len(kept) + note, "By group, with 95 % intervals", words or ["no rows"])
    frame = Frame(184, 52, 282, 26 * len(kept) + 4, _range(kept, chance))
    frame.grid_across(drawn, "value" if chance is None else f"value; dashed: chance, {chance:g}", ticks(*frame.across))
    if chance is not None:
        drawn.add("line", "chance", x1=frame.x(chance), x2=frame.x(chance), y1=frame.top - 6, y2=frame.bottom)
    for i, (row, said) in enumerate(zip(kept, words, strict=False)):
        _whisker(drawn, frame, frame.top + 26 * i + 15, row, said)
    if note:
        drawn.text(16, drawn.height - 10, f"{len(rows) - len(kept)} more groups are not drawn", "soft small")
    return drawn.done()


def _whisker(drawn: Drawing, frame: Frame, y: float, row: Estimate, said: str) -> None:
    name, value, low, high, n = row
    drawn.text(frame.left - 12, y + 4, clean(name, 22), "", anchor="end")
    drawn.text(frame.right + 16, y + 4, _estimate(value, low, high), "small")
    drawn.text(drawn.width - 12, y + 4, f"n = {n}", "soft small", anchor="end")
    if low is not None and high is not None:
        drawn.add("line", "line", x1=frame.x(low), x2=frame.x(high), y1=y, y2=y)
        for end in (low, high):
            drawn.add("line", "line", x1=frame.x(end), x2=frame.x(end), y1=y - 4, y2=y + 4)
    if value is not None:
        drawn.add("circle", "mark", said, cx=frame.x(value), cy=y, r=5)


def _range(rows: Sequence[Estimate], chance: float | None) -> tuple[float, float]:
    """[0, 1], or wider where something lies outside."""
    there = [0.0, 1.0, *(x for _, *three, _ in rows for x in three if x is not None)] + ([] if chance is None else [chance])
    return min(there), max(there)


def _estimate(value: float | None, low: float | None, high: float | None) -> str:
    interval = "" if low is None or high is None else f" [{low:.2f}, {high:.2f}]"
    return _number(value) + interval


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f}"


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _table(title: str, *heads: str) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left", box=None, padding=(0, 2, 0, 0), header_style="dim")
    for head in heads:
        table.add_column(Text(clean(head, 24)), no_wrap=True)
    return table


def _words(text: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(text, style)


def bar(share: float, width: int = 12) -> str:
    """A share as a bar of blocks, in eighths of a character; whatever is not nothing is seen."""
    eighths = max(round(share * width * 8), share > 0)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def reliability_text(points: Sequence[Point]) -> Table:
    """The same as `reliability_svg`, a row for each bin."""
    table = _table("Does a probability mean what it says?", "said", "came true", "n", "")
    for p, share, n in points:
        table.add_row(f"{p:.2f}", f"{share:.2f}", str(n), _words(_scale(30, {p: "|", share: "●"})))
    return table


def _scale(width: int, marks: Mapping[float, str], low: float = 0.0, high: float = 1.0) -> str:
    """A line of dots with marks at some values; the last one wins a place."""
    line = ["·"] * width
    for value, mark in marks.items():
        line[min(int((value - low) / (high - low) * width), width - 1)] = mark
    return "".join(line)


def histogram_text(groups: Mapping[str, Sequence[float]], *, low: float = 0.0, high: float = 1.0, bins: int = 10) -> Table:
    """The same as `histogram_svg`, a row for each bin and a column for each group."""
    table = _table("Scores by what people said", "score", *groups)
    counted = [counts_in(scores, low, high, bins) for scores in groups.values()]
    for i in range(bins):
        start, end = (low + (high - low) * n / bins for n in (i, i + 1))
        bars = (_words(f"{bar(c[i] / max([*c, 1]), 10)} {c[i]}" if c[i] else "", "blue") for c in counted)
        table.add_row(f"{start:.2f}-{end:.2f}", *bars)
    table.add_row("n", *(str(sum(c)) for c in counted))
    return table


def confusion_text(labels: Sequence[str], counts: Counts) -> Table:
    """The same as `confusion_svg`: people down, the grader across."""
    kept = labels[:MOST_CLASSES]
    table = _table("What people said (down), and what it said (across)", "", *kept, "n")
    for people in _said_by_people(kept, counts):
        row = [counts.get(people, {}).get(said, 0) for said in kept]
        cells = (_words(f"{n} ({n / sum(row):.0%})", "bold" * (said == people)) for said, n in zip(kept, row, strict=True))
        table.add_row(_words(clean(people, 24)), *cells, str(sum(row)))
    return table


def forest_text(rows: Sequence[Estimate], chance: float | None = None) -> Table:
    """The same as `forest_svg`, a row for each estimate."""
    table = _table("By group, with 95 % intervals", "", "value", "n", "" if chance is None else f"| chance {chance:g}")
    low, high = _range(rows, chance)
    for name, value, start, end, n in islice(rows, MOST_ROWS):
        marks: dict[float, Any] = {} if chance is None else {chance: "|"}
        marks |= {x: mark for x, mark in ((start, "["), (end, "]"), (value, "●")) if x is not None}
        table.add_row(_words(clean(name, 24)), _estimate(value, start, end), str(n), _words(_scale(40, marks, low, high)))
    return table
