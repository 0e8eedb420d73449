"""What is said of the fields of a request that its model did not get, because its protocol has no
place for them: in a header of the reply, and once in the log for each key and field.

The names are a client's, so that they are bounded, and in plain ASCII.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from ..base.log import log

IGNORED_HEADER = "x-redraft-ignored"
MAX_NAME_CHARS, MAX_NAMES = 100, 50
MAX_LOGGED = 4096  # pairs of a key and a field that are remembered
gateway_log = log.getChild("gateway")


def ignored_header(names: Iterable[str]) -> dict[str, str]:
    """Return the header that lists fields, such as "metadata, reasoning.summary"; none for none."""
    shown = _plain_names(names)
    return {IGNORED_HEADER: ", ".join(shown)} if shown else {}


def _plain_names(names: Iterable[str]) -> list[str]:
    """Return the first names, each once; "..." for more."""
    plain = dict.fromkeys(map(_plain, names))
    more = ["..."] if len(plain) > MAX_NAMES else []
    return [*islice(plain, MAX_NAMES), *more]


def _plain(name: str) -> str:
    """Return a name in characters that a list in a header may have."""
    return "".join(c if " " <= c <= "~" and c != "," else "?" for c in name[:MAX_NAME_CHARS])


class IgnoredFields:
    """Logs the fields that were left out, each once for a key, as far as it remembers."""

    def __init__(self) -> None:
        self._logged: dict[tuple[str, str], None] = {}

    def log(self, key_name: str, model: str, names: Iterable[str]) -> None:
        """Log the fields of a request to a model that have not been logged for this key."""
        for name in _plain_names(names):
            if (key_name, name) in self._logged:
                continue
            self._logged[key_name, name] = None
            if len(self._logged) > MAX_LOGGED:
                del self._logged[next(iter(self._logged))]
            gateway_log.info(
                "key %s: the field %s of requests to %s is left out: the model does not take it",
                key_name or "(none)",
                name,
                model,
            )
