"""The access log: one line of JSON for each request, from the logger "redraft.access".

A line holds no prompt, no answer and no header, unless the operator asks for prompts and answers;
never a key, only its name. All text is escaped to ASCII, so that it cannot move a terminal's cursor
or begin a line of its own.

`AccessLogHandler` writes in a thread. If its reader does not keep up, as when a pipe is full, lines
are lost and counted: a log must not hold up requests.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from queue import Empty, SimpleQueue
from threading import Thread
from time import sleep
from typing import Any

from ..base.log import log
from .request_table import RequestFacts

MAX_WAITING_LINES = 10_000
MAX_PATH = 200  # characters of a path in the log
MAX_CONTENT = 20_000  # characters of a prompt or an answer in the log
CLOSE_SECONDS = 2.0
# for which lines are gathered: a thread that wakes up for each line would slow the event loop down
GATHER_SECONDS = 0.02
access_log = log.getChild("access")


def log_request(
    facts: RequestFacts,
    method: str,
    path: str,
    content: Mapping[str, str] | None = None,
    notice: str = "",
) -> None:
    """Log a request that ended. `path`: without the query. `content`: texts to log with it, by
    name; only if the operator asks.

    `notice`: what its client is told besides the answer.
    """
    if access_log.isEnabledFor(logging.INFO):
        access_log.info(request_line(facts, method, path, content, notice))


def request_line(
    facts: RequestFacts,
    method: str,
    path: str,
    content: Mapping[str, str] | None = None,
    notice: str = "",
) -> str:
    """Return the line for a request. What is unknown is null."""
    line: dict[str, Any] = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "trace_id": facts.trace_id,
        "otel_trace_id": facts.otel_trace_id,
        "client_request_id": facts.client_request_id,
        "key": facts.key_name or None,
        "method": method[:20],
        "path": path[:MAX_PATH],
        "model": facts.model[:MAX_PATH] or None,
        "status": facts.status,
        "error": facts.error or None,
        "cause": facts.cause or None,
        "ms": facts.milliseconds,
        "input_tokens": facts.input_tokens,
        "output_tokens": facts.output_tokens,
        "cost": facts.cost,
        "score": facts.score,
        "iterations": facts.iterations,
        "stop": facts.stop or None,
    }
    if notice:
        line["notice"] = notice
    if content:
        line["content"] = {name: text[:MAX_CONTENT] for name, text in content.items()}
    return json.dumps(line)


class AccessLogHandler(logging.Handler):
    """Writes lines to a file descriptor in a thread. `on_lost` is called in it with the number of
    lines that were lost.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self.on_lost: Callable[[int], object] = lambda _: None
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        self._lost_count = 0
        self._thread = Thread(target=self._run, name="redraft-access-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a line; it is lost if too many wait."""
        if self._lines.qsize() >= MAX_WAITING_LINES:
            self._lost_count += 1
        else:
            self._lines.put(record.getMessage())

    def close(self) -> None:
        """Write what waits, unless that takes longer than two seconds."""
        self._lines.put(None)
        self._thread.join(CLOSE_SECONDS)
        super().close()

    def _run(self) -> None:
        is_open = True
        while is_open:
            lines, is_open = self._next_lines()
            if self._lost_count:
                lost, self._lost_count = self._lost_count, 0
                self._report_lost(lost)
            if lines and not self._write(lines):
                self._report_lost(len(lines))

    def _next_lines(self) -> tuple[list[str], bool]:
        """Wait for lines; return all that are queued, and whether the handler is still open."""
        lines: list[str] = []
        line = self._lines.get()
        if line is not None:
            sleep(GATHER_SECONDS)
        with suppress(Empty):
            while line is not None:
                lines.append(line)
                line = self._lines.get_nowait()
        return lines, line is not None

    def _write(self, lines: list[str]) -> bool:
        """Return whether the lines were written."""
        data = "".join(f"{line}\n" for line in lines).encode()
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError:
            return False
        return True

    def _report_lost(self, count: int) -> None:
        self.on_lost(count)
        note = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "event": "lost_lines",
            "count": count,
        }
        self._write([json.dumps(note)])


@contextmanager
def access_log_on(descriptor: int) -> Iterator[AccessLogHandler]:
    """Write the access log to a file descriptor within the context, and nowhere else."""
    handler = AccessLogHandler(descriptor)
    level, propagate = access_log.level, access_log.propagate
    access_log.addHandler(handler)
    access_log.setLevel(logging.INFO)
    access_log.propagate = False
    try:
        yield handler
    finally:
        access_log.removeHandler(handler)
        access_log.setLevel(level)
        access_log.propagate = propagate
        handler.close()
