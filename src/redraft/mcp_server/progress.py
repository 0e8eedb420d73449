"""The progress of a call, and what it used: notes are sent while it works, the latest one only,
and again every few seconds without news. The last one goes out before the result.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from time import monotonic
from typing import TypeAlias

from ..base.text import strip_control_sequences
from ..loop.cancellation import cancel_and_wait
from ..loop.records import Candidate, Failure, Feedback, Record
from ..loop.steps import Step, Stop
from ..loop.trace import Trace
from ..result import format_score
from ..usage import NO_USAGE, Usage

ALIVE_SECONDS = 5.0  # clients give up on a call that is silent for long
LAST_NOTE_SECONDS = (
    1.0  # at most, that the result waits for a client that does not read the last note
)
MAX_NOTE = 300  # characters

SendProgress: TypeAlias = Callable[[float, None, str], Awaitable[None]]
VERBS = {
    "generate": "writing a draft",
    "refine": "rewriting",
    "repair": "repairing",
    "grade": "grading",
    "compare": "comparing",
}


class CallProgress:
    """Collects what happens in a call. `send` gets a growing number, no total, which is never
    known, and a note.
    """

    def __init__(self) -> None:
        self.usage: Usage = NO_USAGE
        self._changed, self._is_over = asyncio.Event(), False
        self._note, self._best, self._count = "started", "", 0
        self._began = monotonic()

    def note(self, text: str) -> None:
        """Say what happens now."""
        self._note = strip_control_sequences(" ".join(text[: 4 * MAX_NOTE].split()))[:MAX_NOTE]
        self._count += 1
        self._changed.set()

    def step(self, step: Step) -> None:
        """Say which step begins."""
        if not isinstance(step, Stop):
            self.note(VERBS.get(step.role, step.role))

    def record(self, record: Record) -> None:
        """Count what a record used, and say what it is about."""
        self.usage += getattr(record, "usage", NO_USAGE)
        match record:
            case Failure():
                self.note(f"failed: {record.message}")
            case Feedback(score=score) if score is not None:
                self.note(f"{record.grader}: {format_score(score)} {record.reason}")
            case Candidate():
                self.note(f"answer {record.id}: {record.role}")

    def trace(self, trace: Trace) -> None:
        """Remember the best score so far."""
        if trace.graded_candidates:
            self._best = f" · best so far {format_score(trace.score)}"

    @asynccontextmanager
    async def sent_to(self, send: SendProgress) -> AsyncGenerator[None, None]:
        """Send notes within the context. At its end, also after an error, the last one is sent,
        unless that takes too long.
        """
        sending = asyncio.ensure_future(self._send_notes(send))
        try:
            yield
        except asyncio.CancelledError:
            sending.cancel()  # the client does not want to hear more
            raise
        finally:
            self._is_over = True
            self._changed.set()
            try:
                await asyncio.wait([sending], timeout=LAST_NOTE_SECONDS)
            finally:
                await cancel_and_wait([sending])

    async def _send_notes(self, send: SendProgress) -> None:
        """Send notes to the end of the context. Without news, the latest one is repeated with the
        time.
        """
        sent = 0
        while True:
            elapsed = ""
            try:
                async with asyncio.timeout(ALIVE_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                elapsed = f" ({monotonic() - self._began:.0f} s)"
                self._count += 1
            self._changed.clear()
            if self._count > sent:
                sent = self._count
                await send(sent, None, self._note + self._best + elapsed)
            if self._is_over and self._count == sent:
                return
