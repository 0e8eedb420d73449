"""Hooks of `mkdocs build`: files that are not in docs/ become pages, and links between both are
adapted.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent
PAGES = {
    "bench/README.md": "benchmarks.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "README.md": "index.md",
    "SECURITY.md": "security.md",
}
"""Files outside docs/, and the pages of the site made from them."""

SOURCE_ONLY = (
    "LICENSE",
    "Makefile",
    "bench/",
    "examples",
    "pyproject.toml",
    "scripts/",
    "src/",
    "tests/",
)
"""Files and folders that links may name and that the site does not contain: their names remain as
text.
"""

LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(((?!https?:|mailto:|#)[^)\s]+)\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the files of `PAGES`."""
    for path, page in PAGES.items():
        if page != "index.md":
            files.append(File.generated(config, page, content=(ROOT / path).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Adapt the links of a page."""
    path = next(
        (path for path, name in PAGES.items() if name == page.file.src_uri and name != "index.md"),
        "",
    )
    return adapt_links(markdown, path or f"docs/{page.file.src_uri}", page.file.src_uri)


def adapt_links(markdown: str, source: str, page: str) -> str:
    """Point the links of a file at pages of the site. `source` is its path in the repository,
    `page` its path in the site.
    """

    def adapt(match: re.Match[str]) -> str:
        text, link = match.groups()
        target, hash_sign, anchor = link.partition("#")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if path not in PAGES and path.startswith(SOURCE_ONLY):
            return text
        inside = PAGES.get(path) or path.removeprefix("docs/")
        return f"[{text}]({posixpath.relpath(inside, posixpath.dirname(page) or '.')}{hash_sign}{anchor})"  # noqa: E501

    return LINK.sub(adapt, markdown)
