"""The smallest JSON that fits a schema, as a scripted model writes it."""

import json
from dataclasses import dataclass

SENTENCE = "It reads well, and it is 68 degrees."


def instance_of(schema, *, low=False):
    """Return an instance of a JSON schema as a text, with low numbers or the highest."""
    return json.dumps(Maker(schema, low).make(schema))


@dataclass(frozen=True)
class Maker:
    root: dict
    low: bool

    def make(self, schema):
        if "$ref" in schema:
            return self.make(self.find(schema["$ref"]))
        for several in ("anyOf", "oneOf", "allOf"):
            if several in schema:
                return self.make(schema[several][0])
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return schema["enum"][len(schema["enum"]) // 3 if self.low else -1]
        kind = schema.get("type", "object")
        return getattr(self, kind[0] if isinstance(kind, list) else kind)(schema)

    def find(self, reference):
        found = self.root
        for name in reference.removeprefix("#/").split("/"):
            found = found[name]
        return found

    def object(self, schema):
        return {name: self.make(each) for name, each in (schema.get("properties") or {}).items()}

    def array(self, schema):
        return [self.make(schema.get("items") or {"type": "string"})] * schema.get("minItems", 1)

    def string(self, schema):
        return SENTENCE[: schema.get("maxLength")]

    def integer(self, schema):
        return schema.get("minimum", 1) if self.low else schema.get("maximum", 5)

    number = integer

    def boolean(self, schema):
        return not self.low

    def null(self, schema):
        return None
