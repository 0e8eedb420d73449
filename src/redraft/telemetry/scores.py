"""Writes the grades of stored rows to the spans that show them: as annotations of Phoenix,
assessments of MLflow, or scores of Langfuse, none of which shows evaluation events.

A grade belongs to the span of the call that wrote the answer, the score of a row to the span of the
refinement; the `traceparent` of each record says which that is. A score has an ID, so that writing
it again doubles nothing: Phoenix replaces a score that has the same ID, Langfuse one that also has
the same time (that is when the run began), and MLflow is asked first which it has. A score that is
unknown is never a number: it is an error in MLflow, and a label in the others.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from http import HTTPStatus
from itertools import islice
from time import monotonic
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from ..base.jsontext import list_in, loads, object_in
from ..base.masking import Mask, secrets_in_environment
from ..errors import ConfigError, ModelError, RedraftError
from ..loop.records import Failure, Feedback, Outcome, Record
from ..loop.trace import Trace
from ..models.http_client import RequestTarget, Timeouts, fetch
from ..models.waits import parse_retry_after
from ..storage.journal import Journal, RunInfo
from . import TRACEPARENT
from . import attributes as say

NOT_RECORDED, NOT_SAMPLED = "no trace was recorded", "the trace was not sampled"
NO_GRADE, NO_SPAN = "there is no grade", "no such span, or no such address (status 404)"
ROW_SCORE, ID_KEY = "redraft", "redraft.id"
MAX_REASON, MAX_ACTIONS, ROWS_AT_ONCE = 4_000, 20, 8  # characters, actions, rows
ARRIVAL_SECONDS, PAUSE = 10.0, 0.5  # for a tool to show spans that it was just sent
TIMEOUTS, MAX_WAIT, ATTEMPTS = Timeouts(total=60.0), 60.0, 6  # seconds


class SpanScore(NamedTuple):
    """A score of a span, from 0 to 1. If it is None, the label says why: "unknown", or the name of
    an error. `judge` is the model that graded, or ""; `time` is in ISO 8601.
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
    time: str = ""


def span_scores(run: RunInfo, row: str, trace: Trace) -> tuple[list[SpanScore], set[str]]:
    """Return the scores of a row that have a span, and why others have none."""
    scores: list[SpanScore] = []
    reasons: set[str] = set()
    for record in (*trace.records_by_slot.values(), *trace.failures.values()):
        if score := _score_in(record, trace):
            match = TRACEPARENT.fullmatch(getattr(record, "traceparent", ""))
            if match and int(match[3], 16) % 2:
                key = f"{match[0]} {record.slot!r}"
                origin = {"run": run.display_name, "row": row, "judge": score.judge or None}
                scores.append(
                    score._replace(
                        reason=say.clean(score.reason, MAX_REASON),
                        metadata=say.without_unknown({**origin, **score.metadata}),
                        id=blake2b(key.encode(), digest_size=16).hexdigest(),
                        trace_id=match[1],
                        span_id=match[2],
                        time=run.started_at,
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
                    "actions": [say.clean(each) for each in record.actions[:MAX_ACTIONS]] or None,
                },
            )
        case Failure(step_slot=("feedback", candidate, str(name), repeat)):
            metadata = {"candidate": candidate, "repeat": repeat}
            return SpanScore(name, None, record.error, record.message, record.by, metadata)
        case Outcome() if record.traceparent:  # another is no end: the row was cut short
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
    where = urlsplit(server.url).netloc.rpartition("@")[2]
    target = replace(server, url=f"{server.url}{path}")
    try:
        status, headers, content = await fetch(
            target, method, None if data is None else say.as_json(data).encode()
        )
        reply = loads(content) if status // 100 == 2 else content[:300].decode(errors="replace")
    except (ModelError, ValueError) as error:
        raise RedraftError(f"{where}: {error}") from None
    if status == HTTPStatus.TOO_MANY_REQUESTS and attempts > 1:
        await asyncio.sleep(min(parse_retry_after(headers) or 2.0, MAX_WAIT))
        return await _request(server, method, path, data, attempts - 1)
    if status // 100 != 2:
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
        info = object_in(object_in(await _request(server, "GET", path), "trace"), "trace_info")
        ids = {object_in(each, "metadata").get(ID_KEY) for each in list_in(info, "assessments")}
        for score in scores:
            if score.trace_id == trace_id and score.id not in ids:
                data = {"assessment": _assessment(score)}
                await _request(server, "POST", f"{path}/assessments", data)


def _assessment(score: SpanScore) -> Mapping[str, object]:
    """Return a score in the form of MLflow, whose metadata are texts."""
    return {
        "assessment_name": say.clean(score.name, 250),
        "trace_id": f"tr-{score.trace_id}",
        "span_id": score.span_id,
        "source": {
            "source_type": "LLM_JUDGE" if score.judge else "CODE",
            "source_id": score.judge or "redraft",
        },
        "create_time": score.time,
        "last_update_time": score.time,
        "feedback": {"error": {"error_code": score.label, "error_message": score.reason}}
        if score.value is None
        else {"value": score.value},
        "rationale": score.reason,
        "metadata": {
            name: say.clean(value if isinstance(value, str) else say.as_json(value), MAX_REASON)
            for name, value in {ID_KEY: score.id, **score.metadata}.items()
        },
    }


async def score_in_langfuse(server: RequestTarget, scores: Sequence[SpanScore]) -> None:
    """Write the scores of observations (https://langfuse.com/docs): a list, as its SDK 5 does."""
    data = [
        {
            "id": score.id,
            "traceId": score.trace_id,
            "observationId": score.span_id,
            "name": score.name,
            "value": score.label if score.value is None else score.value,
            "dataType": "CATEGORICAL" if score.value is None else "NUMERIC",
            "comment": score.reason,
            "metadata": score.metadata,
            "timestamp": score.time,
        }
        for score in scores
    ]
    reply = await _request(server, "POST", "/api/public/scores", data)
    if reply.get("rejected"):
        raise RedraftError(f"Langfuse rejects scores: {say.clean(reply.get('errors'), 300)}")


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
        values = (environ.get(name, "").strip() for name in self.url_variables)
        url = next(filter(None, values), "").rstrip("/").removesuffix("/v1/traces")
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
        secrets = [*secrets_in_environment(environ), token, password, pair]
        return RequestTarget(url, headers, TIMEOUTS, "env", Mask(secrets))


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
    """How many scores the tool has now, and the rows with scores that it does not have, by the
    reason.
    """

    scores: int = 0
    left_out: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))


async def export_scores(
    tool: ScoreTool,
    environ: Mapping[str, str],
    journal: Journal,
    run: RunInfo,
    arrival_seconds: float = 0.0,
) -> ScoreExport:
    """Write the scores of a run, whose spans the tool may still lack for `arrival_seconds`. Raises
    ConfigError if the environment names no server, and RedraftError if it does not take the scores.
    """
    exported, server, rows = ScoreExport(), tool.server(environ), journal.traces(run.name)
    ends_at = monotonic() + arrival_seconds

    async def write_row(row: str, trace: Trace) -> None:
        scores, reasons = span_scores(run, row, trace)
        while scores:
            try:
                await tool.write(server, scores)
                break
            except NoSpanError:
                if monotonic() >= ends_at:
                    scores, reasons = [], {*reasons, NO_SPAN}
                else:
                    await asyncio.sleep(PAUSE)
        exported.scores += len(scores)
        for reason in reasons:
            exported.left_out[reason].append(row)

    while some := [*islice(rows, ROWS_AT_ONCE)]:
        await asyncio.gather(*(write_row(row.id, trace) for row, trace in some))
    return exported
