"""Drawing a plot as SVG: one file that needs nothing else, light and dark, with words for those who cannot see it.

Texts are foreign: ElementTree escapes them, and what XML or a terminal cannot take is left out before. Nothing here
knows what is drawn.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from xml.etree.ElementTree import Element, SubElement, tostring

from ..text import strip_control_sequences

INVALID_XML = re.compile("[\ufffe\uffff]")
STYLE = """
.redraft text { font: 13px system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: #1f2328 }
.redraft .head { font-size: 15px; font-weight: 600 }
.redraft .soft { fill: #59636e } .redraft .small { font-size: 11px }
.redraft .paper { fill: #ffffff } .redraft .mark { fill: #2a6fb5 } .redraft .dot { fill: #2a6fb5; fill-opacity: 0.45 }
.redraft .line { stroke: #2a6fb5; stroke-width: 2; fill: none }
.redraft .grid { stroke: #e3e7eb } .redraft .axis { stroke: #8b949e }
.redraft .chance { stroke: #bc4c00; stroke-width: 1.5; stroke-dasharray: 5 4; fill: none } .redraft .said { fill: #bc4c00 }
@media (prefers-color-scheme: dark) {
.redraft text { fill: #e6edf3 } .redraft .soft { fill: #9aa5b1 } .redraft .paper { fill: #0d1117 }
.redraft .mark { fill: #58a6ff } .redraft .dot { fill: #58a6ff } .redraft .line { stroke: #58a6ff }
.redraft .grid { stroke: #262c36 } .redraft .axis { stroke: #6e7681 }
.redraft .chance { stroke: #f0883e } .redraft .said { fill: #f0883e }
}
"""


def clean_text(text: Any, max_chars: int = 200) -> str:
    """Foreign text on one line, without what XML or a terminal cannot take, cut after `most` characters."""
    flat = " ".join(INVALID_XML.sub("", strip_control_sequences(str(text)[: max_chars * 4]).replace("\r", " ")).split())
    return flat if len(flat) <= max_chars else flat[: max_chars - 1] + "…"


@dataclass(frozen=True)
class SvgDrawing:
    """A picture under construction, `width` by `height` pixels at its natural size."""

    root: Element
    width: float
    height: float

    @classmethod
    def create(cls, width: float, height: float, title: str, description: Iterable[str]) -> SvgDrawing:
        """An empty one with its heading; `words` say what it shows, with the numbers."""
        told = "; ".join(description)
        mark = sha256(f"{title}{told}".encode()).hexdigest()[:8]
        drawn = cls(Element("svg", xmlns="http://www.w3.org/2000/svg"), width, height)
        drawn.root.attrib.update(
            {
                "viewBox": f"0 0 {_format_number(width)} {_format_number(height)}",
                "width": _format_number(width),
                "height": _format_number(height),
                "role": "img",
                "class": "redraft",
                "aria-labelledby": f"t{mark} d{mark}",
            }
        )
        SubElement(drawn.root, "title", id=f"t{mark}").text = title
        SubElement(drawn.root, "desc", id=f"d{mark}").text = told
        SubElement(drawn.root, "style").text = STYLE
        drawn.add("rect", "paper", width="100%", height="100%")
        drawn.add_text(16, 26, title, "head")
        return drawn

    def add(self, tag: str, css_class: str, tooltip: str = "", **attributes: Any) -> None:
        """A shape of a kind that the style knows. `hint` is shown where a pointer rests on it."""
        named = {name.replace("_", "-"): _format_number(value) for name, value in attributes.items()}
        shape = SubElement(self.root, tag, {"class": css_class, **named})
        if tooltip:
            SubElement(shape, "title").text = tooltip

    def add_text(
        self, x: float, y: float, content: str, css_class: str = "", *, anchor: str = "start", rotation: float = 0
    ) -> None:
        """A text at its baseline; `anchor`: start, middle or end; `turn` in degrees."""
        attributes = {"x": _format_number(x), "y": _format_number(y), "text-anchor": anchor, "class": css_class}
        if rotation:
            attributes["transform"] = f"rotate({_format_number(rotation)} {_format_number(x)} {_format_number(y)})"
        SubElement(self.root, "text", attributes).text = content

    def to_svg(self) -> str:
        """The file."""
        return tostring(self.root, encoding="unicode") + "\n"


def _format_number(value: Any) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class PlotArea:
    """Where data are drawn: a rectangle in pixels, and the ranges of both axes."""

    left: float
    top: float
    width: float
    height: float
    x_range: tuple[float, float] = (0.0, 1.0)
    y_range: tuple[float, float] = (0.0, 1.0)

    @property
    def right(self) -> float:
        return self.left + self.width

    @property
    def bottom(self) -> float:
        return self.top + self.height

    def x(self, value: float) -> float:
        low, high = self.x_range
        return self.left + self.width * (value - low) / (high - low)

    def y(self, value: float) -> float:
        low, high = self.y_range
        return self.bottom - self.height * (value - low) / (high - low)

    def draw_x_grid(self, drawing: SvgDrawing, label: str, positions: Iterable[float]) -> None:
        """Upright lines with their values below, and what they measure."""
        for tick in positions:
            x = self.x(tick)
            drawing.add("line", "grid", x1=x, x2=x, y1=self.top, y2=self.bottom)
            drawing.add_text(x, self.bottom + 18, f"{tick:g}", "soft small", anchor="middle")
        drawing.add("line", "axis", x1=self.left, x2=self.right, y1=self.bottom, y2=self.bottom)
        drawing.add_text(self.left + self.width / 2, self.bottom + 40, label, "soft", anchor="middle")

    def draw_y_grid(self, drawing: SvgDrawing, label: str, positions: Iterable[float]) -> None:
        """Level lines with their values on the left, and what they measure."""
        for tick in positions:
            y = self.y(tick)
            drawing.add("line", "grid", x1=self.left, x2=self.right, y1=y, y2=y)
            drawing.add_text(self.left - 8, y + 4, f"{tick:g}", "soft small", anchor="end")
        drawing.add_text(self.left - 44, self.top + self.height / 2, label, "soft", anchor="middle", rotation=-90)


def tick_values(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers from `low` to `high`, `about` that many: steps of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / count
    power = float(f"1e{f'{rough:e}'.partition('e')[2]}")
    step = next(power * n for n in (1, 2, 5, 10) if power * n >= rough * (1 - 1e-9))
    first = -int(-low // step) if low % step else round(low / step)
    return [round(n * step, 12) for n in range(first, first + count * 3) if low - 1e-9 <= n * step <= high + 1e-9]
