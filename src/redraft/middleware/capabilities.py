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

from ..log import log
from ..protocols import Format, Request
from .cache import cache_key

MIN_FAILURES = 3  # requests for which a format must fail, where no refusal names it, before it is not asked for any more
REPROBE_INTERVAL = 256  # how often a format is passed over before it is tried again
MAX_SCHEMAS = 64  # schemas, and requests for each, that are remembered: there may be a schema for every row


@dataclass
class FormatRecord:
    """What is known of one response format. `refused`: schemas that were refused by name; `doubts`: for each schema the requests
    that were answered in a lower format only. A success clears them; the oldest go where there are many.
    """

    works: bool = False
    refused_schemas: dict[str, None] = field(default_factory=dict)
    fallback_requests: dict[str, set[str]] = field(default_factory=dict)

    def is_usable(self, schema: str) -> bool:
        """Whether to ask in this format for a schema. One that never worked is given up for all schemas."""
        if schema in self.refused_schemas or len(self.fallback_requests.get(schema, ())) >= MIN_FAILURES:
            return False
        return self.works or len(self.refused_schemas) + sum(map(len, self.fallback_requests.values())) < MIN_FAILURES

    def add_refusal(self, schema: str) -> None:
        """Remember that a schema was refused."""
        self.refused_schemas[schema] = None
        _trim(self.refused_schemas)

    def add_fallbacks(self, schema: str, requests: Iterable[str]) -> None:
        """Remember requests that were answered in a lower format."""
        known = self.fallback_requests.setdefault(schema, set())
        known.update(islice(requests, MAX_SCHEMAS - len(known)))
        _trim(self.fallback_requests)

    def clear(self, schema: str) -> bool:
        """Forget what spoke against a schema; whether something did."""
        known = schema in self.refused_schemas or schema in self.fallback_requests
        self.refused_schemas.pop(schema, None)
        self.fallback_requests.pop(schema, None)
        return known


class ModelCapabilities:
    """What one model is known to take. `adaptations` are the names of those that its requests need (see `adapt`)."""

    def __init__(self, identity: str, name: str = "", on_change: Callable[[], object] = lambda: None) -> None:
        self.name = name
        self.adaptations: list[str] = []
        self.formats: dict[Format, FormatRecord] = {}
        self._identity = identity
        self._on_change = on_change
        self._skip_count = 0
        self._unexplained_errors: dict[str, int] = {}

    def add_adaptation(self, adaptation: str, log_message: str, *, lossless: bool) -> None:
        """Remember, and tell, that requests need an adaptation."""
        if adaptation not in self.adaptations:
            self.adaptations.append(adaptation)
            log.log(logging.INFO if lossless else logging.WARNING, "model %s %s", self.name, log_message)
            self._on_change()

    def formats_for(self, request: Request, formats: Sequence[Format]) -> Sequence[Format]:
        """The formats in which to ask, strictest first; now and then also those that are known to be refused."""
        if not any(record.refused_schemas or record.fallback_requests for record in self.formats.values()):
            return formats
        schema = schema_key(request)
        usable: list[Format] = [format for format in formats[:-1] if self._record(format).is_usable(schema)]
        if len(usable) < len(formats) - 1:
            self._skip_count += 1
            if self._skip_count % REPROBE_INTERVAL == 0:
                return formats
        return [*usable, formats[-1]]

    def is_proven(self, format: Format) -> bool:
        """Whether the format has ever been answered."""
        return self._record(format).works

    def record_success(self, request: Request) -> None:
        """The format of the request was answered."""
        record = self._record(request.format)
        self._unexplained_errors.clear()
        if record.works and not record.refused_schemas and not record.fallback_requests:
            return
        proven, record.works = record.works, True
        if record.clear(schema_key(request)) or not proven:
            self._on_change()

    def record_refusal(self, format: Format, request: Request) -> None:
        """The format was refused by name: it is not asked for with this schema any more."""
        schema, record = schema_key(request), self._record(format)
        self._warn_format_lost(format, usable=record.is_usable(schema))
        record.add_refusal(schema)
        self._on_change()

    def record_fallback(self, format: Format, request: Request) -> None:
        """The request was answered in a lower format only, and nothing says why."""
        schema, record = schema_key(request), self._record(format)
        usable = record.is_usable(schema)
        record.add_fallbacks(schema, [self._key(request)])
        self._warn_format_lost(format, usable=usable and not record.is_usable(schema))
        self._on_change()

    def _warn_format_lost(self, format: Format, *, usable: bool) -> None:
        if usable:
            log.warning("model %s does not take the response format %s; judges ask in a lower one", self.name, format)

    def record_unexplained_error(self, request: Request) -> None:
        """The request failed in a format that never worked, and the error names nothing: the format may be the reason."""
        key = self._key(request)
        self._unexplained_errors[key] = self._unexplained_errors.get(key, 0) + 1

    def should_compare_formats(self, request: Request) -> bool:
        """Whether the request failed so often that it is time to find out what the reason is; that is asked once."""
        if not self._unexplained_errors or self._unexplained_errors.get(self._key(request), 0) < MIN_FAILURES:
            return False
        del self._unexplained_errors[self._key(request)]
        return True

    def _record(self, format: Format) -> FormatRecord:
        return self.formats.setdefault(format, FormatRecord())

    def _key(self, request: Request) -> str:
        return cache_key(self._identity, replace(request, format="text"))[:16]

    def as_data(self) -> dict[str, Any]:
        formats = {
            format: {
                "works": record.works,
                "refused_schemas": list(record.refused_schemas),
                "fallback_requests": {schema: sorted(keys) for schema, keys in record.fallback_requests.items()},
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
            for schema in known["refused_schemas"]:
                record.add_refusal(schema)
            for schema, keys in known["fallback_requests"].items():
                record.add_fallbacks(schema, keys)


class EndpointCapabilities:
    """The capabilities of all models of a session. `on_change` is called when something was learned."""

    def __init__(self) -> None:
        self.on_change: Callable[[], object] | None = None
        self._models: dict[str, ModelCapabilities] = {}

    def for_model(self, identity: str, name: str = "") -> ModelCapabilities:
        """Those of the model with this identity; `name` is how people call it."""
        key = sha256(identity.encode()).hexdigest()[:16]  # an identity may hold what is nobody's business
        known = self._models.setdefault(key, ModelCapabilities(key, name, self._notify_change))
        known.name = known.name or name
        return known

    def as_data(self) -> dict[str, Any]:
        """All of it, as JSON values."""
        return {key: known.as_data() for key, known in self._models.items()}

    def restore(self, data: Mapping[str, Any]) -> None:
        """Add what was known before; from `as_data`."""
        for key, known in data.items():
            self._models.setdefault(key, ModelCapabilities(key, on_change=self._notify_change)).restore(known)

    def _notify_change(self) -> None:
        if self.on_change:
            self.on_change()


def _trim(mapping: dict[str, Any]) -> None:
    while len(mapping) > MAX_SCHEMAS:
        del mapping[next(iter(mapping))]


def schema_key(request: Request) -> str:
    """A short name of the request's schema."""
    return sha256(orjson.dumps(request.schema, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]
