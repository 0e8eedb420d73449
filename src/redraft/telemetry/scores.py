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
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from hashlib import blake2b
from http import HTTPStatus
from itertools import islice
from typing import Any, NamedTuple
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
NO_GRADE, NO_SPAN = "there is no grade", "the tool does not have the spans"
NOT_RECORDED, NOT_SAMPLED = "no trace was recorded", "the trace was not sampled"
ROW_SCORE, ID_KEY = "redraft", "redraft.id"
MAX_REASON, ROWS_AT_ONCE = 4_000, 8  # characters, rows
TIMEOUTS, MAX_WAIT, ATTEMPTS = Timeouts(total=60.0), 60.0, 6  # seconds


class SpanScore(NamedTuple):
    """A score of a span, from 0 to 1. If it is None, the label says why: "unknown", or the name of
    an error. `judge` is the model that graded, or "".
    """

    name: str
    value: float | None
    label: str | None
    reason: str
    judge: str
    metadata: Mapping[str, Any]
    id: str = ""
    trace_id: str = ""
    span_id: str = ""


def span_scores(run: str, row: str, trace: Trace) -> tuple[list[SpanScore], set[str]]:
    """Return the scores of a row that have a span, and why others have none."""
    scores: list[SpanScore] = []
    reasons: set[str] = set()
    for record in (*trace.records_by_slot.values(), *trace.failures.values()):
        if score := _score_in(record, trace):
            match = TRACEPARENT.fullmatch(getattr(record, "traceparent", ""))
            if match and int(match[3], 16) % 2:
                key = f"{match[0]} {record.slot!r}".encode()
                metadata = {"run": run, "row": row, "judge": score.judge or None, **score.metadata}
                scores.append(
                    score._replace(
                        reason=say.clean(score.reason, MAX_REASON),
                        metadata=say.without_unknown(metadata),
                        id=blake2b(key, digest_size=16).hexdigest(),
                        trace_id=match[1],
                        span_id=match[2],
                    )
                )
            else:
                reasons.add(NOT_SAMPLED if match else NOT_RECORDED)
    return scores, reasons if scores or reasons else {NO_GRADE}


def _score_in(record: Record, trace: Trace) -> SpanScore | None:
    """Return the score in a record, or why it is unknown; None for another record, and for a
    critique.
    """
    match record:
        case Feedback() if not record.is_critique:
            grader = next((each for each in trace.panel if each.name == record.grader), None)
            return SpanScore(
                record.grader,
                record.score,
                "unknown" if record.score is None else say.grade_label(record, grader),
                record.reason,
                record.by,
                {
                    "candidate": record.candidate,
                    "repeat": record.repeat,
                    "vote_sd": record.vote_sd,
                    "criteria": {each.name: each.score for each in record.criteria} or None,
                    "actions": list(record.actions) or None,
                },
            )
        case Failure(step_slot=("feedback", candidate, str(name), repeat)):
            metadata = {"candidate": candidate, "repeat": repeat}
            return SpanScore(name, None, record.error, record.message, record.by, metadata)
        case Outcome():
            return SpanScore(
                ROW_SCORE,
                trace.score,
                "unknown" if trace.score is None else None,
                record.note,
                "",
                {
                    "candidate": record.best,
                    "stop": str(record.reason),
                    "interval": record.interval and list(record.interval),
                    "p_target": record.p_target,
                    "labels": record.labels,
                },
            )
    return None


# ---- the tools


class NoSpanError(RedraftError):
    """The tool does not have the span of a score."""


async def _request(
    server: RequestTarget, method: str, path: str, data: object = None, attempts: int = ATTEMPTS
) -> Mapping[str, Any]:
    """Return the JSON object of a reply. Raises NoSpanError, and RedraftError, which names the
    host.
    """
    where = urlsplit(server.url).hostname
    body = None if data is None else say.as_json(data).encode()
    try:
        status, headers, content = await fetch(
            replace(server, url=f"{server.url}{path}"), method, body
        )
        reply = loads(content) if status == HTTPStatus.OK else say.clean(content, 300)
    except (ModelError, ValueError) as error:
        raise RedraftError(f"{where}: {error}") from None
    if status == HTTPStatus.TOO_MANY_REQUESTS and attempts > 1:
        await asyncio.sleep(min(parse_retry_after(headers) or 2.0, MAX_WAIT))
        return await _request(server, method, path, data, attempts - 1)
    if status != HTTPStatus.OK:
        kind = NoSpanError if status == HTTPStatus.NOT_FOUND else RedraftError
        raise kind(f"{where} answers with status {status}: {reply}")
    return object_in({"reply": reply}, "reply")


async def annotate_in_phoenix(server: RequestTarget, scores: Sequence[SpanScore]) -> None:
    """Write the annotations of spans (https://arize.com/docs/phoenix)."""
    annotations = [
        {
            "span_id": score.span_id,
            "name": score.name,
            "annotator_kind": "LLM" if score.judge else "CODE",
            "result": {
                "score": score.value,
                "label": score.label,
                "explanation": score.reason or None,
            },
            "metadata": score.metadata,
            "identifier": score.id,
        }
        for score in scores
    ]
    await _request(server, "POST", "/v1/span_annotations?sync=true", {"data": annotations})


async def assess_in_mlflow(server: RequestTarget, scores: Sequence[SpanScore]) -> None:
    """Write the assessments of traces that MLflow does not have yet (https://mlflow.org/docs)."""
    for trace_id in {score.trace_id for score in scores}:
        path = f"/api/3.0/mlflow/traces/tr-{trace_id}"
        trace = object_in(await _request(server, "GET", path), "trace")
        existing = list_in(object_in(trace, "trace_info"), "assessments")
        ids = {object_in(each, "metadata").get(ID_KEY) for each in existing}
        for score in scores:
            if score.trace_id == trace_id and score.id not in ids:
                await _request(server, "POST", f"{path}/assessments", _assessment(score))


def _assessment(score: SpanScore) -> Mapping[str, object]:
    """Return a score in the form of MLflow, whose metadata are texts."""
    now, metadata = datetime.now(UTC).isoformat(), {ID_KEY: score.id, **score.metadata}
    assessment = {
        "assessment_name": score.name,
        "trace_id": f"tr-{score.trace_id}",
        "span_id": score.span_id,
        "source": {
            "source_type": "LLM_JUDGE" if score.judge else "CODE",
            "source_id": score.judge or "redraft",
        },
        "create_time": now,
        "last_update_time": now,
        "feedback": {"error": {"error_code": score.label, "error_message": score.reason}}
        if score.value is None
        else {"value": score.value},
        "rationale": score.reason,
        "metadata": {
            name: value if isinstance(value, str) else say.as_json(value)
            for name, value in metadata.items()
        },
    }
    return {"assessment": assessment}


async def score_in_langfuse(server: RequestTarget, scores: Sequence[SpanScore]) -> None:
    """Write the scores of observations (https://api.reference.langfuse.com)."""
    for score in scores:
        data = {
            "id": score.id,
            "traceId": score.trace_id,
            "observationId": score.span_id,
            "name": score.name,
            "value": score.label if score.value is None else score.value,
            "dataType": "CATEGORICAL" if score.value is None else "NUMERIC",
            "comment": score.reason or None,
            "metadata": score.metadata,
        }
        await _request(server, "POST", "/api/public/scores", data)


class ScoreTool(NamedTuple):
    """A tool that shows scores, what writes them, and the environment variables that it documents:
    for its URL (the first that is set counts), and for a token, a user and a password.
    """

    name: str
    write: Callable[[RequestTarget, Sequence[SpanScore]], Awaitable[None]]
    url_variables: tuple[str, ...]
    credentials: tuple[str, str, str]

    def server(self, environ: Mapping[str, str]) -> RequestTarget:
        """Return its server. Raises ConfigError if the environment names none."""
        urls = (environ.get(name, "").strip() for name in self.url_variables)
        url = next(filter(None, urls), "").rstrip("/").removesuffix("/v1/traces")
        if not url.startswith(("http://", "https://")):
            raise ConfigError(
                f"{self.url_variables[0]} must be the http:// or https:// URL of {self.name}, and "
                f"is {'another text' if url else 'not set'}"
            )
        token, user, password = (environ.get(name, "").strip() for name in self.credentials)
        pair = b64encode(f"{user}:{password}".encode()).decode()
        headers = {"Content-Type": "application/json"}
        if token or user:
            headers["Authorization"] = f"Bearer {token}" if token else f"Basic {pair}"
        mask = Mask([*secrets_in_environment(environ), token, password, pair])
        return RequestTarget(url, headers, TIMEOUTS, "env", mask)


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
    """How many rows there are, how many scores of them the tool has now, and by reason the rows
    that have scores which it does not have.
    """

    rows: int = 0
    scores: int = 0
    left_out: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    async def add(
        self, tool: ScoreTool, server: RequestTarget, run: str, row: str, trace: Trace
    ) -> None:
        """Write the scores of a row."""
        scores, reasons = span_scores(run, row, trace)
        try:
            if scores:
                await tool.write(server, scores)
        except NoSpanError:
            scores, reasons = [], {*reasons, NO_SPAN}
        self.rows, self.scores = self.rows + 1, self.scores + len(scores)
        for reason in reasons:
            self.left_out[reason].append(row)


async def export_scores(
    tool: ScoreTool, environ: Mapping[str, str], run: str, rows: Iterable[tuple[RowId, Trace]]
) -> ScoreExport:
    """Write the scores of the rows of a run. Raises ConfigError if the environment names no server,
    and RedraftError if it does not take the scores.
    """
    exported, server, rest = ScoreExport(), tool.server(environ), iter(rows)
    while some := [*islice(rest, ROWS_AT_ONCE)]:
        await asyncio.gather(
            *(exported.add(tool, server, run, row.id, trace) for row, trace in some)
        )
    return exported
