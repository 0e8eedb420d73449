"""The scores of a run in the real Phoenix and MLflow, and what Langfuse's SDK takes for scores.

Each needs an environment of its own: `pip install arize-phoenix`, and put its `phoenix` on the PATH;
`pip install mlflow`, and its `mlflow`; `pip install langfuse`, and LANGFUSE_PYTHON names its Python.
"""

import asyncio
import json
import os
import subprocess
import urllib.request

import pytest

from .conftest import configure
from .score_server import ScoreServer, export
from .score_tools import mlflow, phoenix
from .scored_run import GRADES, NO_SOURCES, make_run, stored_traces, tracer_provider

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def make_scored_run(folder, monkeypatch, exporter):
    """Make the run, whose spans the exporter sends; return the records with a score by their span,
    the name of what graded, and the score.
    """
    provider = tracer_provider(exporter)
    configure(monkeypatch, provider)
    asyncio.run(make_run(folder))
    provider.shutdown()
    traces = stored_traces(folder)
    records = [
        record
        for row, trace in traces.items()
        if row != "unsampled"
        for record in trace.records
        if getattr(record, "traceparent", "")
    ]
    return sorted(
        (
            record.traceparent.split("-")[2],
            getattr(record, "grader", "") or ("judge" if hasattr(record, "error") else "redraft"),
            repr(getattr(record, "score", None)),
        )
        for record in records
    )


def read_json(url):
    with urllib.request.urlopen(url, timeout=30) as reply:
        return json.load(reply)


def export_twice(folder, tool, url):
    """Export the scores twice, and look at what is said both times."""
    for _ in range(2):
        exported = asyncio.run(export(folder, tool, url))
        assert (exported.scores, [*exported.left_out.values()]) == (GRADES, [["unsampled"]])


def test_phoenix(tmp_path, monkeypatch):
    """Each score is an annotation of its span, once; an unknown one is a label."""
    with phoenix(tmp_path) as (url, exporter):
        expected = make_scored_run(tmp_path, monkeypatch, exporter)
        export_twice(tmp_path, "phoenix", url)
        spans = "&".join(f"span_ids={span}" for span in {span for span, *_ in expected})
        found = read_json(f"{url}/v1/projects/default/span_annotations?limit=100&{spans}")["data"]
    assert expected == sorted(
        (each["span_id"], each["name"], repr(each["result"]["score"])) for each in found
    )
    unknown = [each["result"] for each in found if each["result"]["score"] is None]
    assert {(each["label"], each["explanation"]) for each in unknown} == {
        ("unknown", NO_SOURCES),
        ("ModelError", "the judge is not there"),
    }


def test_mlflow(tmp_path, monkeypatch):
    """Each score is an assessment of its span, once; an unknown one is an error."""
    with mlflow(tmp_path) as (url, exporter):
        expected = make_scored_run(tmp_path, monkeypatch, exporter)
        export_twice(tmp_path, "mlflow", url)
        traces = {
            record.traceparent.split("-")[1]
            for row, trace in stored_traces(tmp_path).items()
            if row != "unsampled"
            for record in trace.records
            if getattr(record, "traceparent", "")
        }
        found = [
            each
            for trace in traces
            for each in read_json(f"{url}/api/3.0/mlflow/traces/tr-{trace}")["trace"]["trace_info"][
                "assessments"
            ]
        ]
    assert expected == sorted(
        (each["span_id"], each["assessment_name"], repr(each["feedback"]["value"]))
        for each in found
    )
    errors = [each["feedback"]["error"] for each in found if "error" in each["feedback"]]
    assert {(each["error_code"], each["error_message"]) for each in errors} == {
        ("unknown", NO_SOURCES),
        ("ModelError", "the judge is not there"),
    }


CHECK = """
import json, sys
from langfuse.api.core import parse_obj_as
from langfuse.api.scores.types import CreateScoresRequest
scores = parse_obj_as(CreateScoresRequest, json.load(sys.stdin))
known = [{**vars(score), "model_extra": score.model_extra} for score in scores]
print(json.dumps(known, default=str))
"""


def test_langfuse(tmp_path, monkeypatch):
    """What is sent is a list of scores as the SDK knows them, with all fields in their places."""
    python = os.environ.get("LANGFUSE_PYTHON") or pytest.skip("no LANGFUSE_PYTHON")
    configure(monkeypatch, tracer_provider())
    asyncio.run(make_run(tmp_path))
    with ScoreServer() as server:
        asyncio.run(export(tmp_path, "langfuse", server.url))
    command, text = [python, "-c", CHECK], json.dumps(server.posted)
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(server.posted) == GRADES
    for sent, known in zip(server.posted, json.loads(done.stdout), strict=True):
        assert not known["model_extra"]
        assert known["data_type"] == (
            "NUMERIC" if isinstance(known["value"], float) else "CATEGORICAL"
        )
        assert [known[name] for name in ("trace_id", "observation_id", "value", "comment")] == [
            sent[name] for name in ("traceId", "observationId", "value", "comment")
        ]
        assert known["timestamp"].startswith(sent["timestamp"][:10])
