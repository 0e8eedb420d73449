"""What the models of a session are known to take, learned from what they refused.

One `EndpointCapabilities` belongs to a session and holds a `Capabilities` for each model at its endpoint (`Model.identity`),
which `adapt` reads and writes. It is plain data, so that a batch keeps it in its journal and goes on with it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import islice
from typing import Any

import orjson

from ..protocols import Format, Request
from .cache import key_of

EVIDENCE = 3  # requests for which a format must fail, where no refusal names it, before it is not asked for any more
REPROBE = 256  # how often a format is passed over before it is tried again
MOST = 64  # schemas, and requests for each, that are remembered: there may be a schema for every row
log = logging.getLogger("redraft")


@dataclass
class FormatRecord:
    """What is known of one response format. `refused`: schemas that were refused by name; `doubts`: for each schema the requests
    that were answered in a lower format only. A success clears them; the oldest go where there are many.
    """

    works: bool = False
    refused: dict[str, None] = field(default_factory=dict)
    doubts: dict[str, set[str]] = field(default_factory=dict)

    def is_usable(self, schema: str) -> bool:
        """Whether to ask in this format for a schema. One that never worked is given up for all schemas."""
        if schema in self.refused or len(self.doubts.get(schema, ())) >= EVIDENCE:
            return False
        return self.works or len(self.refused) + sum(map(len, self.doubts.values())) < EVIDENCE

    def refuse(self, schema: str) -> None:
        """Remember that a schema was refused."""
        self.refused[schema] = None
        _trim(self.refused)

    def doubt(self, schema: str, requests: Iterable[str]) -> None:
        """Remember requests that were answered in a lower format."""
        known = self.doubts.setdefault(schema, set())
        known.update(islice(requests, MOST - len(known)))
        _trim(self.doubts)

    def clear(self, schema: str) -> bool:
        """Forget what spoke against a schema; whether something did."""
        known = schema in self.refused or schema in self.doubts
        self.refused.pop(schema, None)
        self.doubts.pop(schema, None)
        return known


class Capabilities:
    """What one model is known to take. `adaptations` are the names of those that its requests need (see `adapt`)."""

    def __init__(self, identity: str, name: str = "", changed: Callable[[], object] = lambda: None) -> None:
        self.name = name
        self.adaptations: list[str] = []
        self.formats: dict[Format, FormatRecord] = {}
        self._identity = identity
        self._changed = changed
        self._passed_over = 0
        self._troubled: dict[str, int] = {}

    def keep(self, adaptation: str, told: str, *, lossless: bool) -> None:
        """Remember, and tell, that requests need an adaptation."""
        if adaptation not in self.adaptations:
            self.adaptations.append(adaptation)
            log.log(logging.INFO if lossless else logging.WARNING, "model %s %s", self.name, told)
            self._changed()

    def formats_for(self, request: Request, formats: Sequence[Format]) -> Sequence[Format]:
        """The formats in which to ask, strictest first; now and then also those that are known to be refused."""
        if not any(record.refused or record.doubts for record in self.formats.values()):
            return formats
        schema = schema_key(request)
        usable = [format for format in formats[:-1] if self._record(format).is_usable(schema)]
        if len(usable) < len(formats) - 1:
            self._passed_over += 1
            if self._passed_over % REPROBE == 0:
                return formats
        return [*usable, formats[-1]]

    def is_proven(self, format: Format) -> bool:
        """Whether the format has ever been answered."""
        return self._record(format).works

    def note_success(self, request: Request) -> None:
        """The format of the request was answered."""
        record = self._record(request.format)
        self._troubled.clear()
        if record.works and not record.refused and not record.doubts:
            return
        proven, record.works = record.works, True
        if record.clear(schema_key(request)) or not proven:
            self._changed()

    def note_refusal(self, format: Format, request: Request) -> None:
        """The format was refused by name: it is not asked for with this schema any more."""
        schema, record = schema_key(request), self._record(format)
        self._tell(format, usable=record.is_usable(schema))
        record.refuse(schema)
        self._changed()

    def note_doubt(self, format: Format, request: Request) -> None:
        """The request was answered in a lower format only, and nothing says why."""
        schema, record = schema_key(request), self._record(format)
        usable = record.is_usable(schema)
        record.doubt(schema, [self._key(request)])
        self._tell(format, usable=usable and not record.is_usable(schema))
        self._changed()

    def _tell(self, format: Format, *, usable: bool) -> None:
        if usable:
            log.warning("model %s does not take the response format %s; judges ask in a lower one", self.name, format)

    def note_trouble(self, request: Request) -> None:
        """The request failed in a format that never worked, and the error names nothing: the format may be the reason."""
        key = self._key(request)
        self._troubled[key] = self._troubled.get(key, 0) + 1

    def had_trouble(self, request: Request) -> bool:
        """Whether the request failed so often that it is time to find out what the reason is; that is asked once."""
        if not self._troubled or self._troubled.get(self._key(request), 0) < EVIDENCE:
            return False
        del self._troubled[self._key(request)]
        return True

    def _record(self, format: Format) -> FormatRecord:
        return self.formats.setdefault(format, FormatRecord())

    def _key(self, request: Request) -> str:
        return key_of(self._identity, replace(request, format="text"))[:16]

    def as_data(self) -> dict[str, Any]:
        formats = {
            format: {
                "works": record.works,
                "refused": list(record.refused),
                "doubts": {schema: sorted(keys) for schema, keys in record.doubts.items()},
            }
            for format, record in self.formats.items()
        }
        return {"adaptations": self.adaptations, "formats": formats}

    def restore(self, data: Mapping[str, Any]) -> None:
        """Add what was known before."""
        self.adaptations += [name for name in data["adaptations"] if name not in self.adaptations]
        for format, known in data["formats"].items():
            record = self._record(format)
            record.works |= known["works"]
            for schema in known["refused"]:
                record.refuse(schema)
            for schema, keys in known["doubts"].items():
                record.doubt(schema, keys)


class EndpointCapabilities:
    """The capabilities of all models of a session. `on_change` is called when something was learned."""

    def __init__(self) -> None:
        self.on_change: Callable[[], object] | None = None
        self._models: dict[str, Capabilities] = {}

    def of(self, identity: str, name: str = "") -> Capabilities:
        """Those of the model with this identity; `name` is how people call it."""
        key = sha256(identity.encode()).hexdigest()[:16]  # an identity may hold what is nobody's business
        known = self._models.setdefault(key, Capabilities(key, name, self._changed))
        known.name = known.name or name
        return known

    def as_data(self) -> dict[str, Any]:
        """All of it, as JSON values."""
        return {key: known.as_data() for key, known in self._models.items()}

    def restore(self, data: Mapping[str, Any]) -> None:
        """Add what was known before; from `as_data`."""
        for key, known in data.items():
            self._models.setdefault(key, Capabilities(key, changed=self._changed)).restore(known)

    def _changed(self) -> None:
        if self.on_change:
            self.on_change()


def _trim(known: dict[str, Any]) -> None:
    while len(known) > MOST:
        del known[next(iter(known))]


def schema_key(request: Request) -> str:
    """A short name of the request's schema."""
    return sha256(orjson.dumps(request.schema, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]
