"""References in a JSON schema. Nothing is fetched, so each must lead to a place in the schema
itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import ConfigError

KEYWORDS = ("$ref", "$dynamicRef")


def check_references(schema: Mapping[str, Any]) -> None:
    """Raise ConfigError for a reference that leads nowhere, or out of the schema, with its path and
    the reason.
    """
    from referencing.exceptions import Unresolvable

    for node, keyword, error in _broken_references(schema):
        reference = node[keyword][:100]
        why = (
            f"{reference!r} is outside the schema, and nothing is fetched: copy it to $defs and "
            "refer to '#/$defs/NAME'"
            if type(error) is Unresolvable  # what leads nowhere raises a subclass
            else f"there is no {reference!r} in the schema"
        )
        raise ConfigError(f"the schema is not valid: {_path_of(node, schema)}.{keyword}: {why}")


def _broken_references(
    schema: Mapping[str, Any],
) -> Iterator[tuple[Mapping[str, Any], str, Exception]]:
    """Yield each reference that leads to no schema: the object that holds it, its keyword, and the
    error.

    What a reference leads to is searched, too: it may stand where no keyword of JSON Schema makes
    it a schema.
    """
    from referencing import Registry
    from referencing.jsonschema import DRAFT202012, specification_with

    dialect = specification_with(str(schema.get("$schema", "")), default=DRAFT202012)
    root = dialect.create_resource(schema)
    pending: list[Any] = [(root, Registry().resolver_with_root(root))]
    seen: set[int] = set()
    while pending:
        resource, resolver = pending.pop()
        node = resource.contents
        if id(node) in seen or not isinstance(node, Mapping):
            continue
        seen.add(id(node))
        for keyword in (each for each in KEYWORDS if isinstance(node.get(each), str)):
            try:
                target = resolver.lookup(node[keyword])
                if not isinstance(target.contents, Mapping | bool):
                    raise TypeError
            except Exception as error:  # noqa: BLE001  (the library raises anything for a pointer to what is no schema)
                yield node, keyword, error
            else:
                pending.append((dialect.create_resource(target.contents), target.resolver))
        pending += [(inner, resolver.in_subresource(inner)) for inner in resource.subresources()]


def _path_of(node: Any, root: Any) -> str:
    """Return the JSON path of an object in a schema."""
    pending: list[tuple[str, Any]] = [("$", root)]
    while pending:
        path, value = pending.pop()
        if value is node:
            return path
        if isinstance(value, Mapping):
            pending += [(f"{path}.{key}", each) for key, each in value.items()]
        elif isinstance(value, list):
            pending += [(f"{path}[{n}]", each) for n, each in enumerate(value)]
    return "$"
