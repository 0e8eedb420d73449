"""The logger "redraft" and its children. Quiet until the program configures logging; importing
`redraft` does not import it.

`redraft` logs what a model does not accept and how many results a batch replaces, `redraft.retry`
retries, `redraft.endpoint` pauses and outages, `redraft.record` drafts and grades. A message names
models, hosts, files, kinds of errors and HTTP statuses; it never holds a prompt, an answer, a
server's message or a key. A record of a retry has the attributes `endpoint` and `wait`, in seconds,
one of a draft or a grade `task`, the ID of the task.
"""

from __future__ import annotations

import logging

from ..errors import ConfigError, ModelError, StoreError, error_name

log = logging.getLogger("redraft")
log.addHandler(logging.NullHandler())
retry_log = log.getChild("retry")
endpoint_log = log.getChild("endpoint")
record_log = log.getChild("record")


def error_kind(error: ModelError) -> str:
    """Return the kind of an error without its message, such as "RateLimitError (status 429)"."""
    return f"{error_name(error)} (status {error.status})" if error.status else error_name(error)


def error_summary(error: BaseException, endpoint: str = "") -> str:
    """Return an error without text of an endpoint or of a row, such as "AuthenticationError (status
    401): api.example".
    """
    if isinstance(error, ConfigError | StoreError) and str(error):
        return str(error)
    kind, reason = (
        (error_kind(error), error.reason)
        if isinstance(error, ModelError)
        else (type(error).__name__, "")
    )
    return ": ".join(filter(None, [kind, endpoint, reason]))
