"""The smallest JSON that fits a schema, as a scripted model writes it."""

import json

SENTENCE = "The notes say new, and all is well."


def instance_of(schema):
    """Return an instance of a JSON schema as a text."""
    return json.dumps(_instance(schema, schema))


def _instance(schema, root):
    if "$ref" in schema:
        found = root
        for name in schema["$ref"].removeprefix("#/").split("/"):
            found = found[name]
        return _instance(found, root)
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            return _instance(schema[several][0], root)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][-1]
    kind = schema.get("type", "object")
    return MAKERS[kind[0] if isinstance(kind, list) else kind](schema, root)


def _object(schema, root):
    properties = schema.get("properties") or {}
    return {name: _instance(each, root) for name, each in properties.items()}


def _array(schema, root):
    return [_instance(schema.get("items") or {"type": "string"}, root)] * schema.get("minItems", 1)


MAKERS = {
    "object": _object,
    "array": _array,
    "string": lambda schema, root: SENTENCE[: schema.get("maxLength")],
    "integer": lambda schema, root: schema.get("maximum", 4),
    "number": lambda schema, root: schema.get("maximum", 4.0),
    "boolean": lambda schema, root: True,
    "null": lambda schema, root: None,
}
