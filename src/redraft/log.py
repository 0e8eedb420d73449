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

from .core.records import Candidate, Comparison, Feedback, Record
from .errors import ConfigError, ModelError, StoreError, error_name

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
        else (error_name(error), "")
    )
    return ": ".join(filter(None, [kind, endpoint, reason]))


def log_record(record: Record, task_id: str | None) -> None:
    """Log a draft, a repair or a grade in one line, without its text."""
    if not record_log.isEnabledFor(logging.INFO) or not isinstance(
        record, Candidate | Feedback | Comparison
    ):
        return
    match record:
        case Candidate():
            what = f"candidate {record.id}: {record.role} by {record.by}"
        case Feedback():
            score = "no score" if record.score is None else f"{record.score:.2f}"
            what = f"candidate {record.candidate}: {score} by {_grader_text(record)}"
        case Comparison():
            what = f"candidates {record.order_text} by {_grader_text(record)}"
    tokens = "unknown" if record.usage.tokens is None else f"{record.usage.tokens:,}"
    seconds = "" if record.seconds is None else f", {record.seconds:.2f} s"
    record_log.info(
        "%s; calls %d, tokens %s%s",
        what,
        record.usage.calls,
        tokens,
        seconds,
        extra={"task": task_id},
    )


def _grader_text(record: Feedback | Comparison) -> str:
    """Return the grader without its argument, which may quote a text, and the model that it
    asked.
    """
    name = record.grader.partition(":")[0]
    return f"{name} ({record.by})" if record.by else name
