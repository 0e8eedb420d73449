"""Pages of `redraft view` and `redraft label`: runs, their rows, their graders, and labels of
people. Needs `redraft[view]`.

`write_page` writes one page as a file, as `redraft view --html` does. Importing this package loads
nothing.

- `index.py`, `row_facts.py`, `row_query.py`: the index of a run in the cache; `run_library.py`: the
  runs that are shown.
- `figures.py`, `grader_figures.py`, `run_comparison.py`: what is summed up from an index.
- `pages.py`, `row_view.py`, `charts.py`, `formats.py`, `templates/`, `static/`: the pages;
  `static_page.py`: the file.
- `judging.py`: the prompts of judges, made again.
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
