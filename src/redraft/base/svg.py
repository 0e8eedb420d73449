"""Draw charts as SVG: self-contained files with a light and a dark style, and a description for
screen readers.

Everything in this package that draws SVG uses this module; it does not know what is drawn. Texts
are untrusted: ElementTree escapes them, and `clean_text` removes characters that are invalid in XML
or control a terminal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from xml.etree.ElementTree import Element, SubElement, tostring

from .text import strip_control_sequences

INVALID_IN_XML = re.compile("[\ufffe\uffff]")
STYLE = """
.redraft text { font: 13px system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: #1f2328 }
.redraft .head { font-size: 15px; font-weight: 600 }
.redraft .soft { fill: #59636e } .redraft .small { font-size: 11px }
.redraft .paper { fill: #ffffff } .redraft .mark { fill: #2a6fb5 } .redraft .dot { fill: #2a6fb5; fill-opacity: 0.45 }
.redraft .line { stroke: #2a6fb5; stroke-width: 2; fill: none }
.redraft .grid { stroke: #e3e7eb } .redraft .axis { stroke: #8b949e }
.redraft .chance { stroke: #bc4c00; stroke-width: 1.5; stroke-dasharray: 5 4; fill: none } .redraft .mean { fill: #bc4c00 }
@media (prefers-color-scheme: dark) {
.redraft text { fill: #e6edf3 } .redraft .soft { fill: #9aa5b1 } .redraft .paper { fill: #0d1117 }
.redraft .mark { fill: #58a6ff } .redraft .dot { fill: #58a6ff } .redraft .line { stroke: #58a6ff }
.redraft .grid { stroke: #262c36 } .redraft .axis { stroke: #6e7681 }
.redraft .chance { stroke: #f0883e } .redraft .mean { fill: #f0883e }
}
"""  # noqa: E501


def clean_text(text: Any, limit: int = 200) -> str:
    """Return untrusted text on one line, without characters that are invalid in XML or control a
    terminal, cut to `limit`.
    """
    flat = " ".join(
        INVALID_IN_XML.sub(
            "", strip_control_sequences(str(text)[: limit * 4]).replace("\r", " ")
        ).split()
    )
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


@dataclass(frozen=True)
class Drawing:
    """An SVG image under construction, `width` by `height` pixels at its natural size."""

    root: Element
    width: float
    height: float

    @classmethod
    def create(
        cls, width: float, height: float, title: str, descriptions: Iterable[str]
    ) -> Drawing:
        """Return an empty drawing with its heading; `descriptions` say what it shows, with the
        numbers.
        """
        description = "; ".join(descriptions)
        suffix = sha256(f"{title}{description}".encode()).hexdigest()[:8]
        drawing = cls(Element("svg", xmlns="http://www.w3.org/2000/svg"), width, height)
        drawing.root.attrib.update(
            {
                "viewBox": f"0 0 {_attribute(width)} {_attribute(height)}",
                "width": _attribute(width),
                "height": _attribute(height),
                "role": "img",
                "class": "redraft",
                "aria-labelledby": f"t{suffix} d{suffix}",
            }
        )
        SubElement(drawing.root, "title", id=f"t{suffix}").text = title
        SubElement(drawing.root, "desc", id=f"d{suffix}").text = description
        SubElement(drawing.root, "style").text = STYLE
        drawing.add("rect", "paper", width="100%", height="100%")
        drawing.text(16, 26, title, "head")
        return drawing

    def add(self, tag: str, style: str, tooltip: str = "", **attributes: Any) -> None:
        """Add a shape with a class of the style sheet. `tooltip` is shown while the pointer rests
        on it.
        """
        formatted = {
            name.replace("_", "-"): _attribute(value) for name, value in attributes.items()
        }
        shape = SubElement(self.root, tag, {"class": style, **formatted})
        if tooltip:
            SubElement(shape, "title").text = tooltip

    def text(
        self,
        x: float,
        y: float,
        text: str,
        style: str = "",
        *,
        anchor: str = "start",
        rotation: float = 0,
    ) -> None:
        """Add a text at its baseline; `anchor` is start, middle or end; `rotation` is in
        degrees.
        """
        attributes = {"x": _attribute(x), "y": _attribute(y), "text-anchor": anchor, "class": style}
        if rotation:
            attributes["transform"] = (
                f"rotate({_attribute(rotation)} {_attribute(x)} {_attribute(y)})"
            )
        SubElement(self.root, "text", attributes).text = text

    def to_svg(self) -> str:
        """Return the content of the SVG file."""
        return tostring(self.root, encoding="unicode") + "\n"


def _attribute(value: Any) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Axes:
    """The plot area: a rectangle in pixels, and the range of values on each axis."""

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
        """The horizontal position of a value, in pixels."""
        low, high = self.x_range
        return self.left + self.width * (value - low) / (high - low)

    def y(self, value: float) -> float:
        """The vertical position of a value, in pixels."""
        low, high = self.y_range
        return self.bottom - self.height * (value - low) / (high - low)

    def draw_x_axis(self, drawing: Drawing, label: str, ticks: Iterable[float]) -> None:
        """Draw vertical grid lines, their values below, and the label of the axis."""
        for tick in ticks:
            x = self.x(tick)
            drawing.add("line", "grid", x1=x, x2=x, y1=self.top, y2=self.bottom)
            drawing.text(x, self.bottom + 18, f"{tick:g}", "soft small", anchor="middle")
        drawing.add("line", "axis", x1=self.left, x2=self.right, y1=self.bottom, y2=self.bottom)
        drawing.text(self.left + self.width / 2, self.bottom + 40, label, "soft", anchor="middle")

    def draw_y_axis(self, drawing: Drawing, label: str, ticks: Iterable[float]) -> None:
        """Draw horizontal grid lines, their values on the left, and the label of the axis."""
        for tick in ticks:
            y = self.y(tick)
            drawing.add("line", "grid", x1=self.left, x2=self.right, y1=y, y2=y)
            drawing.text(self.left - 8, y + 4, f"{tick:g}", "soft small", anchor="end")
        drawing.text(
            self.left - 44, self.top + self.height / 2, label, "soft", anchor="middle", rotation=-90
        )


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return about `count` round numbers from `low` to `high`, in steps of 1, 2 or 5 times a power
    of ten.
    """
    rough = (high - low) / count
    power = float(f"1e{f'{rough:e}'.partition('e')[2]}")
    step = next(power * n for n in (1, 2, 5, 10) if power * n >= rough * (1 - 1e-9))
    first = -int(-low // step) if low % step else round(low / step)
    return [
        round(n * step, 12)
        for n in range(first, first + count * 3)
        if low - 1e-9 <= n * step <= high + 1e-9
    ]
