"""What `docs/architecture.md` shows of the packages: a picture of their layers, and a table of what
is in each. `scripts/docs.py` writes both.

The layers, and the imports that are forbidden besides, are those in `pyproject.toml`, which `make
lint` checks. What is in a package is the first sentence of its docstring; where the picture has
little space, it is that sentence up to its colon.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from textwrap import wrap

from redraft.base.svg import Drawing

ROOT = Path(__file__).parents[1]
CORE = "grading"  # the highest package of the core
WIDTH, MARGIN, GAP = 720, 16, 5
LEFT = 44  # of the boxes; the arrow is beside them
NAME_WIDTH, LETTER, LINE = 124, 7.5, 18  # pixels of a name, of a letter and of a line


@dataclass(frozen=True)
class Package:
    """A package of Redraft, or a module beside them. `forbidden`: what it must not import whatever
    the layers say.
    """

    name: str
    content: str
    forbidden: tuple[str, ...] = ()


def layers() -> list[list[Package]]:
    """The packages in their layers, the highest first."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = project["tool"]["importlinter"]["contracts"]
    (found,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    rows = [layer.split(" | ") for layer in found]
    return [
        [Package(name, first_sentence(name), forbidden(name, contracts, rows[n:])) for name in row]
        for n, row in enumerate(rows, 1)
    ]


def first_sentence(name: str) -> str:
    paragraph = (import_module(f"redraft.{name}").__doc__ or "").partition("\n\n")[0]
    return " ".join(paragraph.split()).partition(". ")[0].removesuffix(".")


def forbidden(
    name: str, contracts: list[dict[str, list[str]]], below: list[list[str]]
) -> tuple[str, ...]:
    """Return the packages of the layers below a package that contracts forbid it to import."""
    modules = {
        module
        for contract in contracts
        if f"redraft.{name}" in contract.get("source_modules", ())
        for module in contract.get("forbidden_modules", ())
    }
    return tuple(sorted(each for row in below for each in row if f"redraft.{each}" in modules))


def table() -> Iterator[str]:
    yield "| package | what is in it |\n|---|---|"
    for package in (package for layer in layers() for package in layer):
        names = ", ".join(f"`{name}`" for name in package.forbidden)
        yield f"| `{package.name}` | {package.content}{names and f'. Must not import {names}'} |"


def picture() -> str:
    """Return the layers as SVG: a box for each package, and a ground behind those of the core."""
    rows = layers()
    names = [", ".join(package.name for package in row) for row in rows]
    start = next(n for n, row in enumerate(rows) if any(each.name == CORE for each in row))
    heights = [row_height(row) for row in rows]
    height = 92 + sum(heights) + GAP * len(rows) + MARGIN + GAP
    drawing = Drawing.create(
        WIDTH,
        height,
        "Each package imports only from rows below its own",
        [f"From the top: {'; '.join(names[:start])}", f"the core: {'; '.join(names[start:])}"],
    )
    y = heading(drawing, 40, "uses the core")
    for n, row in enumerate(rows):
        if n == start:
            ground = {"x": LEFT - 8, "y": y + 3, "width": WIDTH - MARGIN - LEFT + 16}
            drawing.add("rect", "dot", **ground, height=height - y - 11, rx=8, opacity=0.3)
            y = heading(drawing, y, "the core")
        draw_row(drawing, row, y, heights[n])
        y += heights[n] + GAP
    x, end = LEFT - 24, height - MARGIN
    drawing.add("line", "axis", x1=x, y1=46, x2=x, y2=end)
    drawing.add("path", "axis", d=f"M{x - 5} {end - 8} L{x} {end} L{x + 5} {end - 8}", fill="none")
    drawing.text(x - 6, height / 2, "may import", "soft small", anchor="middle", rotation=-90)
    return drawing.to_svg()


def heading(drawing: Drawing, y: int, text: str) -> int:
    """Write what the next rows have in common, and return where they begin."""
    drawing.text(LEFT, y + 18, text, "soft")
    return y + 26


def row_height(row: list[Package]) -> int:
    most = max(len(lines) for lines in (short_lines(each, len(row)) for each in row))
    return 10 + LINE * (most if len(row) == 1 else most + 1)


def short_lines(package: Package, neighbours: int) -> list[str]:
    """Return what is in a package as one line, or up to the colon as lines, that fit its box."""
    space = box_width(neighbours) - (NAME_WIDTH if neighbours == 1 else 0) - 20
    text, letters = package.content.replace("`", ""), int(space / LETTER)
    return [text] if len(text) <= letters else wrap(text.partition(":")[0], letters)


def box_width(count: int) -> float:
    return (WIDTH - MARGIN - LEFT - GAP * (count - 1)) / count


def draw_row(drawing: Drawing, row: list[Package], y: int, height: int) -> None:
    """Draw the packages of a layer side by side; one that is alone has its text beside its name."""
    width = box_width(len(row))
    for n, package in enumerate(row):
        x = LEFT + n * (width + GAP)
        place = {"x": x, "y": y, "width": width, "height": height, "rx": 5}
        drawing.add("rect", "paper axis", package.content, **place)
        drawing.text(x + 10, y + LINE, package.name, "head")
        right, down = (NAME_WIDTH, 0) if len(row) == 1 else (0, LINE)
        for k, line in enumerate(short_lines(package, len(row))):
            drawing.text(x + 10 + right, y + LINE * (k + 1) + down, line, "soft")
