"""A Griffe extension: the reference shows a method decorated with `cached_view` as the property
that it is.
"""

from __future__ import annotations

from typing import Any

from griffe import Attribute, Extension, Function


class CachedViews(Extension):
    """Replaces such methods by attributes while the source is read."""

    def on_function(self, *, func: Function, **_: Any) -> None:
        if func.parent and any(
            str(decorator.value) == "cached_view" for decorator in func.decorators
        ):
            attribute = Attribute(
                func.name,
                lineno=func.lineno,
                endlineno=func.endlineno,
                annotation=func.returns,
                docstring=func.docstring,
            )
            attribute.labels.add("property")
            func.parent.set_member(func.name, attribute)
