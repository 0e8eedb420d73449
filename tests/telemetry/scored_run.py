"""A run of a batch whose spans are sent to a tool that shows traces, with every kind of grade: known
scores of a requirement and of a judge, an unknown score, a failed grade; and a row whose trace is
not sampled.
"""

import json

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult

import redraft

ROWS = [
    {"id": "known", "prompt": "Describe the sky."},
    {"id": "unknown", "prompt": "Describe the sea, with sources."},
    {"id": "failed", "prompt": "Describe the moon."},
    {"id": "unsampled", "prompt": "Describe the sun."},
]
ANSWER = "It is blue, and clear, and wide."


class DropRow(Sampler):
    """Drops the traces of one row."""

    def should_sample(self, parent_context, trace_id, name, kind=None, attributes=None, *_, **__):
        if (attributes or {}).get("redraft.row.id") == "unsampled":
            return SamplingResult(Decision.DROP)
        return SamplingResult(Decision.RECORD_AND_SAMPLE, attributes)

    def get_description(self):
        return "all rows but one"


def sources(task, candidate):
    """Grade what cannot be graded: one score is unknown, and one grade fails."""
    if "moon" in task.prompt:
        raise RuntimeError("the index of sources cannot be read")
    known = "sky" in task.prompt
    return redraft.Feedback(0.75 if known else None, reason="one of four is missing" if known else "there is no source to check")


def judge(messages):
    """Answer as a judge that likes all answers equally well."""
    return json.dumps({"reason": "It is short and right.", "score": 8})
