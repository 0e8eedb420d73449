"""Writes the grades of stored rows to the spans that show them: as annotations of Phoenix,
assessments of MLflow, or scores of Langfuse, none of which shows evaluation events.

A grade belongs to the span of the call that wrote the answer, the score of a row to the span of the
refinement; the `traceparent` of each record says which that is. A score has an ID, so that writing
it again doubles nothing: Phoenix and Langfuse replace a score that has the same ID, and MLflow is
asked first which it has. A score that is unknown is never a number: it is an error in MLflow, and a
label in the others.
"""

from __future__ import annotations

import asyncio
import re
from base64 import b64encode
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from hashlib import blake2b
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

from ..base.jsontext import list_in, loads, object_in
from ..base.masking import Mask, secrets_in_environment
from ..errors import ConfigError, ModelError, RedraftError
from ..loop.records import Failure, Feedback, Outcome, Record
from ..loop.trace import Trace
from ..models.http_client import RequestTarget, Timeouts, fetch
from ..models.waits import parse_retry_after
from ..tables.export.writer import RowId
from . import attributes as say

TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]([0-9a-f])")
NOT_RECORDED, NOT_SAMPLED = "no trace was recorded", "the trace was not sampled"
NO_GRADE = "not graded yet"
ROW_SCORE = "redraft"  # the name of the score of a row
ID_KEY = "redraft.id"  # in the metadata of an assessment
MAX_REASON = 4_000  # characters
MAX_NAMED_ROWS = 5  # of those that are left out for one reason
ROWS_AT_ONCE = 8
TIMEOUTS = Timeouts(total=60.0)
TOO_MANY_REQUESTS, NOT_FOUND, REFUSALS = 429, 404, {401, 403}
MAX_ATTEMPTS, MAX_WAIT = 6, 60.0  # seconds


@dataclass(frozen=True, slots=True)
class SpanScore:
    """A score of a span. `value` is from 0 to 1; if it is None, `error` says why it is unknown, or
    `label` what there is instead. `judge` is the model that graded, or "".
    """

    name: str
    value: float | None
    label: str | None = None
    error: str | None = None
    reason: str = ""
    judge: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""
    trace_id: str = ""
    span_id: str = ""

    @property
    def text(self) -> str | None:
        """What is shown in place of a number, or beside it."""
        return self.label or self.error


def span_scores(run: str, row: str, trace: Trace) -> tuple[list[SpanScore], set[str]]:
    """Return the scores of a row that have a span, and why others have none."""
    scores: list[SpanScore] = []
    reasons: set[str] = set()
    for record in (*trace.records_by_slot.values(), *trace.failures.values()):
        score = _score_in(record, trace)
        if score is None:
            continue
        match = TRACEPARENT.fullmatch(getattr(record, "traceparent", ""))
        if match is None or not int(match[3], 16) % 2:
            reasons.add(NOT_SAMPLED if match else NOT_RECORDED)
            continue
        id = blake2b(repr((*match.groups(), record.slot)).encode(), digest_size=16).hexdigest()
        metadata = {"run": run, "row": row, "judge": score.judge or None, **score.metadata}
        scores.append(
            replace(
                score,
                reason=say.clean(score.reason, MAX_REASON),
                metadata=say.without_unknown(metadata),
                id=id,
                trace_id=match[1],
                span_id=match[2],
            )
        )
    return scores, reasons


def _score_in(record: Record, trace: Trace) -> SpanScore | None:
    """Return the score that a record holds, without its span; None for another record."""
    match record:
        case Feedback():
            grader = next((each for each in trace.panel if each.name == record.grader), None)
            label = say.grade_label(record, grader) or ("critique" if record.is_critique else None)
            error = "unknown" if record.score is None and label is None else None
            metadata: Mapping[str, Any] = {
                "candidate": record.candidate,
                "repeat": record.repeat,
                "vote_sd": record.vote_sd,
                "criteria": {each.name: each.score for each in record.criteria} or None,
                "actions": list(record.actions) or None,
            }
            return SpanScore(
                record.grader, record.score, label, error, record.reason, record.by, metadata
            )
        case Failure(step_slot=("feedback", candidate, str(grader), repeat)):
            metadata = {"candidate": candidate, "repeat": repeat}
            return SpanScore(grader, None, None, record.error, record.message, record.by, metadata)
        case Outcome():
            error = "unknown" if trace.score is None else None
            metadata = {
                "candidate": record.best,
                "stop": str(record.reason),
                "interval": record.interval and list(record.interval),
                "p_target": record.p_target,
                "labels": record.labels,
            }
            return SpanScore(ROW_SCORE, trace.score, None, error, record.note, metadata=metadata)
    return None


# ---- the tools


class NoSpanError(RedraftError):
    """The tool does not have the span of a score."""


@dataclass(frozen=True, slots=True)
class ScoreServer:
    """The API of a tool, at a URL."""

    tool: ScoreTool
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    mask: Mask = field(repr=False)

    async def request(self, method: str, path: str, data: object = None) -> Mapping[str, Any]:
        """Return the JSON object of a reply. Raises NoSpanError, and RedraftError, which names the
        tool and its host.
        """
        headers = {**self.headers, "Content-Type": "application/json"}
        target = RequestTarget(f"{self.url}{path}", headers, TIMEOUTS, "env", self.mask)
        body = None if data is None else say.as_json(data).encode()
        where = f"{self.tool.name} at {urlsplit(self.url).hostname}"
        try:
            for _ in range(MAX_ATTEMPTS):
                status, replied, content = await fetch(target, method, body)
                if status != TOO_MANY_REQUESTS:
                    break
                await asyncio.sleep(min(parse_retry_after(replied) or 2.0, MAX_WAIT))
            reply = loads(content) if status == 200 else content[:300].decode(errors="replace")
        except (ModelError, ValueError) as error:
            raise RedraftError(f"{where}: {error}") from None
        if status == NOT_FOUND:
            raise NoSpanError(f"{self.tool.name} does not have its spans")
        if status != 200:
            names = [each for each in self.tool.credentials if each]
            hint = f" (it takes {' and '.join(names)})" if status in REFUSALS else ""
            raise RedraftError(f"{where}: status {status}{hint}: {' '.join(str(reply).split())}")
        return object_in({"reply": reply}, "reply")


async def annotate_in_phoenix(server: ScoreServer, scores: Sequence[SpanScore]) -> None:
    """Write the annotations of spans (https://arize.com/docs/phoenix)."""
    annotations = [
        {
            "span_id": score.span_id,
            "name": score.name,
            "annotator_kind": "LLM" if score.judge else "CODE",
            "result": say.without_unknown(
                {"score": score.value, "label": score.text, "explanation": score.reason or None}
            ),
            "metadata": score.metadata,
            "identifier": score.id,
        }
        for score in scores
    ]
    await server.request("POST", "/v1/span_annotations?sync=true", {"data": annotations})


async def assess_in_mlflow(server: ScoreServer, scores: Sequence[SpanScore]) -> None:
    """Write the assessments of traces that MLflow does not have yet (https://mlflow.org/docs)."""
    for trace_id in {score.trace_id for score in scores}:
        path = f"/api/3.0/mlflow/traces/tr-{trace_id}"
        trace = object_in(await server.request("GET", path), "trace")
        existing = list_in(object_in(trace, "trace_info"), "assessments")
        ids = {object_in(each, "metadata").get(ID_KEY) for each in existing}
        for score in scores:
            if score.trace_id == trace_id and score.id not in ids:
                data = {"assessment": _assessment(score)}
                await server.request("POST", f"{path}/assessments", data)


def _assessment(score: SpanScore) -> dict[str, Any]:
    now = datetime.now(UTC).isoformat()
    error = {"error_code": score.error, "error_message": score.reason or score.error}
    metadata = {ID_KEY: score.id, **score.metadata}
    return {
        "assessment_name": score.name,
        "trace_id": f"tr-{score.trace_id}",
        "span_id": score.span_id,
        "source": {
            "source_type": "LLM_JUDGE" if score.judge else "CODE",
            "source_id": score.judge or "redraft",
        },
        "create_time": now,
        "last_update_time": now,
        "feedback": {"error": error}
        if score.error
        else {"value": score.label if score.value is None else score.value},
        "rationale": score.reason,
        "metadata": {
            name: value if isinstance(value, str) else say.as_json(value)
            for name, value in metadata.items()
        },
    }


async def score_in_langfuse(server: ScoreServer, scores: Sequence[SpanScore]) -> None:
    """Write the scores of observations (https://api.reference.langfuse.com)."""
    for score in scores:
        data = {
            "id": score.id,
            "traceId": score.trace_id,
            "observationId": score.span_id,
            "name": score.name,
            "value": score.text if score.value is None else score.value,
            "dataType": "CATEGORICAL" if score.value is None else "NUMERIC",
            "comment": score.reason or None,
            "metadata": score.metadata,
        }
        await server.request("POST", "/api/public/scores", say.without_unknown(data))


@dataclass(frozen=True, slots=True)
class ScoreTool:
    """A tool that shows scores, what writes them, and the environment variables that it documents:
    for its URL (the first that is set counts), and for a token, a user and a password.
    """

    name: str
    write: Callable[[ScoreServer, Sequence[SpanScore]], Awaitable[None]]
    urls: tuple[str, ...]
    credentials: tuple[str, ...]

    def server(self, environ: Mapping[str, str]) -> ScoreServer:
        """Return its server. Raises ConfigError if the environment does not name one."""
        variable = next((each for each in self.urls if environ.get(each)), self.urls[0])
        url = environ.get(variable, "").strip().rstrip("/").removesuffix("/v1/traces")
        if not url.startswith(("http://", "https://")):
            raise ConfigError(
                f"{variable} is {'no URL of a server' if url else 'not set'}: set it to the URL of "
                f"{self.name}, http://... or https://..."
            )
        token, user, password = (environ.get(name, "").strip() for name in self.credentials)
        pair = b64encode(f"{user}:{password}".encode()).decode()
        authorization = f"Bearer {token}" if token else f"Basic {pair}" if user else ""
        headers = {"Authorization": authorization} if authorization else {}
        mask = Mask([*secrets_in_environment(environ), token, password, pair])
        return ScoreServer(self, url, headers, mask)


TOOLS: Mapping[str, ScoreTool] = {
    "phoenix": ScoreTool(
        "Phoenix",
        annotate_in_phoenix,
        ("PHOENIX_ENDPOINT", "PHOENIX_COLLECTOR_ENDPOINT", "PHOENIX_BASE_URL"),
        ("PHOENIX_API_KEY", "", ""),
    ),
    "mlflow": ScoreTool(
        "MLflow",
        assess_in_mlflow,
        ("MLFLOW_TRACKING_URI",),
        ("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"),
    ),
    "langfuse": ScoreTool(
        "Langfuse",
        score_in_langfuse,
        ("LANGFUSE_BASE_URL", "LANGFUSE_HOST"),
        ("", "LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY"),
    ),
}


# ---- the rows of a run


@dataclass
class ScoreExport:
    """What was written: the number of rows, and of scores that the tool now has. `left_out` counts
    the rows with scores that it lacks by the reason, and `row_names` has the first of them.
    """

    rows: int = 0
    scores: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    row_names: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    async def add_row(self, server: ScoreServer, run: str, row: str, trace: Trace) -> None:
        """Write the scores of a row."""
        scores, reasons = span_scores(run, row, trace)
        try:
            if scores:
                await server.tool.write(server, scores)
        except NoSpanError as error:
            scores, reasons = [], {*reasons, str(error)}
        self.rows += 1
        self.scores += len(scores)
        for reason in reasons or (() if scores else (NO_GRADE,)):
            self.left_out[reason] += 1
            if len(names := self.row_names[reason]) < MAX_NAMED_ROWS:
                names.append(row)


async def export_scores(
    server: ScoreServer, run: str, rows: Iterable[tuple[RowId, Trace]]
) -> ScoreExport:
    """Write the scores of the rows of a run. Raises RedraftError if a tool does not take them, or
    if there are none.
    """
    exported, rows = ScoreExport(), iter(rows)
    while some := [*islice(rows, ROWS_AT_ONCE)]:
        await asyncio.gather(*(exported.add_row(server, run, row.id, trace) for row, trace in some))
    if not exported.scores:
        reasons = "; ".join(f"{n:,} x {reason}" for reason, n in exported.left_out.most_common())
        raise RedraftError(
            f"nothing was written: none of the {exported.rows:,} rows of run {run!r} has a score "
            f"with a span in {server.tool.name}: {reasons or 'there are none yet'}"
        )
    return exported
