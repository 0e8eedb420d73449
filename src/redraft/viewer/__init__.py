"""Pages of `redraft view` and `redraft label`: runs, their rows, their graders, and labels of
people. Needs `redraft[view]`.

`write_page` writes one page as a file, as `redraft view --html` does. Importing this package loads
nothing.

- `rows.py`: the facts of a row, and lists of rows; `index.py`: the index of a run in the cache;
  `run_library.py`: the runs that are shown.
- `figures.py`: what is summed up from an index: an overview, graders, two runs.
- `pages.py`, `row_view.py`, `charts.py`, `page_parts.py`, `templates/`, `static/`: the pages;
  `static_page.py`: the file.
- `label_items.py`, `label_pages.py`: what is judged, in which order, and the page for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base.lazy_imports import attribute_loader

if TYPE_CHECKING:
    from .static_page import write_page
else:
    __getattr__ = attribute_loader(__name__, {"write_page": "static_page"})

__all__ = ["write_page"]
