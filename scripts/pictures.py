"""Take the pictures of the tutorial and the README with a real browser: python scripts/pictures.py
[NAME ...]

It runs the commands of the tutorial in a temporary folder, opens what `redraft view` and `redraft
label` serve, and writes the pictures. A test makes the same walk without writing, so that what a
picture shows is still there. Needs Chromium.
"""

from __future__ import annotations

import base64
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from examples import BLOCK, DOCS, ENVIRONMENT, run_in_subprocess, with_outputs
from playwright.sync_api import Browser, Page, sync_playwright

TUTORIAL = DOCS / "tutorials" / "from-a-batch-to-a-decision.md"
FOLDER = TUTORIAL.parent / "pictures"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WIDTH, SCALE, QUALITY = 1000, 1.5, 70


@dataclass(frozen=True)
class Picture:
    """A picture: the command that serves the page, how to get there, its height, texts that it
    shows, and its folder.
    """

    name: str
    command: str
    go: Callable[[Page], None]
    height: int
    texts: tuple[str, ...]
    folder: Path = FOLDER


def stay(page: Page) -> None:
    """The first page is the one."""


def open_row(page: Page) -> None:
    """Choose the largest gains, and open the recipe, as the tutorial says."""
    page.click("text=The largest gains")
    page.click("text=task-595")
    show_answers(page)


def open_recorded(page: Page) -> None:
    """Choose Rows, and open the only one."""
    page.click("nav >> text=Rows")
    page.click("tbody a")
    show_answers(page)


def show_answers(page: Page) -> None:
    """Scroll to the answers of a row."""
    page.locator("section.block h2", has_text="Answers").scroll_into_view_if_needed()
    page.evaluate(
        "scrollTo(0, document.querySelector('.answers').closest('section').offsetTop - 12)"
    )


def compare_runs(page: Page) -> None:
    """Choose both runs."""
    page.select_option("[name=a]", label="opt.jsonl")
    page.select_option("[name=b]", label="llama.jsonl")
    page.click("main button")


def begin_labels(page: Page) -> None:
    """Enter a name."""
    page.fill("[name=annotator]", "Ann")
    page.keyboard.press("Enter")
    page.wait_for_selector(".choices")


PICTURES = (
    Picture(
        "overview",
        "redraft view short.jsonl",
        stay,
        840,
        (
            "The best answers score higher",
            "+0.077",
            "0.895 → 0.971",
            "Where the scores stand",
            "improved",
            "unchanged",
            "Look at next",
        ),
    ),
    Picture(
        "row",
        "redraft view short.jsonl",
        open_row,
        800,
        ("0.61", "0.93", "Feedback on answer 0", "Preheat oven", "52 words"),
    ),
    Picture(
        "compare",
        "redraft view",
        compare_runs,
        1060,
        ("undecided", "+0.024", "8 / 24 / 3", "Most gained", "Most lost"),
    ),
    Picture(
        "label",
        "redraft label opt.jsonl llama.jsonl --count 10",
        begin_labels,
        560,
        (
            "Which answer is better?",
            "Ann: 0 of 10",
            "The first is better",
            "Equally good",
            "First answer",
            "Second answer",
        ),
    ),
)
README_PICTURE = Picture(
    "answer",
    "redraft view examples/recorded/library.jsonl",
    open_recorded,
    458,
    (
        "0.80",
        "0.94",
        "SmolLM2-135M-Instruct",
        "services, and information",
        "Feedback on answer 0",
        "reading grade 14.9",
    ),
    DOCS,
)


def console_commands(page: str) -> list[str]:
    """Return the commands of a page that a reader types in a terminal, in order."""
    blocks = [code for language, _, code in BLOCK.findall(page) if language == "console"]
    return re.findall(r"^\$ (.+)$", "".join(blocks), re.MULTILINE)


@contextmanager
def serving(command: str, folder: Path) -> Iterator[str]:
    """Run `redraft view` or `redraft label`; the value is the address that it prints."""
    words = [sys.executable, "-m", *shlex.split(command), "--no-browser"]
    environment = {**os.environ, **ENVIRONMENT, "REDRAFT_HOME": str(folder / ".home")}
    process = subprocess.Popen(  # noqa: S603
        words,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.communicate(timeout=30)


def walk(
    folder: Path,
    browser: Browser,
    take: Callable[[Picture, Page], None],
    pictures: Collection[Picture],
) -> None:
    """Follow the tutorial in a folder where its other commands have run, and call `take` at each of
    the pictures.
    """
    context = browser.new_context(viewport={"width": WIDTH, "height": 700}, color_scheme="light")
    for command in dict.fromkeys(picture.command for picture in pictures):
        with serving(command, folder) as url:
            for picture in (each for each in pictures if each.command == command):
                page = context.new_page()
                page.set_viewport_size({"width": WIDTH, "height": picture.height})
                page.goto(url)
                picture.go(page)
                take(picture, page)
                page.close()
    context.close()


def missing_texts(picture: Picture, page: Page) -> list[str]:
    """Return the texts that are not in the part of the page that the picture shows."""
    shown = page.evaluate(VISIBLE)
    return [text for text in picture.texts if text not in shown]


VISIBLE = """(() => {
  const texts = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walker.nextNode());) {
    const range = document.createRange(); range.selectNodeContents(node);
    const box = range.getBoundingClientRect();
    if (box.height && box.top >= 0 && box.top + 10 < innerHeight && node.parentElement.checkVisibility()) texts.push(node.data);
  }
  return texts.join('').replace(/[ \\n]+/g, ' ');
})()"""  # noqa: E501


def write_picture(picture: Picture, page: Page) -> None:
    """Write what the page shows as WebP."""
    if missing := missing_texts(picture, page):
        raise SystemExit(f"{picture.name}: the page does not show {missing}")
    page.mouse.move(0, 0)
    clip = {
        "x": 0,
        "y": page.evaluate("scrollY"),
        "width": WIDTH,
        "height": picture.height,
        "scale": SCALE,
    }
    shot = page.context.new_cdp_session(page).send(
        "Page.captureScreenshot", {"format": "webp", "quality": QUALITY, "clip": clip}
    )
    path = picture.folder / f"{picture.name}.webp"
    path.write_bytes(base64.b64decode(shot["data"]))
    print(f"{path.relative_to(DOCS.parent)}: {path.stat().st_size / 1000:.0f} kB")


def main(names: list[str]) -> None:
    """Run the tutorial and write the pictures with these names, or all."""
    chosen = [
        picture for picture in (*PICTURES, README_PICTURE) if not names or picture.name in names
    ]
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        (folder / "examples").symlink_to(DOCS.parent / "examples")
        with_outputs(TUTORIAL.read_text(), folder, run_in_subprocess)
        with playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=FLAGS
        ) as browser:
            walk(folder, browser, write_picture, chosen)


if __name__ == "__main__":
    main(sys.argv[1:])
