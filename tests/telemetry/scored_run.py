"""A run of a batch whose spans are sent to tools that show traces: with known scores of a
requirement and of a judge, an unknown score, a failed grade, and a row whose trace is not sampled.
"""

import json

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.sampling import Decision, ParentBased, Sampler, SamplingResult

import redraft
from redraft.errors import ModelError
from redraft.storage.journal import Journal

ROWS = [
    {"id": "known", "prompt": "Describe the sky."},
    {"id": "unknown", "prompt": "Describe the sea."},
    {"id": "failed", "prompt": "Describe the moon."},
    {"id": "unsampled", "prompt": "Describe the sun."},
]
GRADES = 6 + 1 + 6 + 3  # of the rows "known" with its own score, "unknown" and "failed"
DRAFT, ANSWER = "It is wide.", "It is blue, and clear, and wide."
SOURCES, NO_SOURCES = "one of four is missing", "there is nothing to check"


class DropRow(Sampler):
    """Drops the trace of the row "unsampled"."""

    def should_sample(self, parent_context, trace_id, name, kind=None, attributes=None, *_, **__):
        is_dropped = (attributes or {}).get("redraft.row.id") == "unsampled"
        decision = Decision.DROP if is_dropped else Decision.RECORD_AND_SAMPLE
        return SamplingResult(decision, attributes)

    def get_description(self):
        return "all rows but one"


class Writer:
    """A model whose second answer to a prompt is better than its first."""

    def __init__(self):
        self.prompts = set()

    def __call__(self, messages):
        prompt = messages[0]["content"]
        answer = ANSWER if prompt in self.prompts else DRAFT
        self.prompts.add(prompt)
        return answer


def judge(messages):
    """Answer as a judge that cannot be asked about the moon."""
    text = json.dumps(messages)
    if "moon" in text:
        raise ModelError("the judge is not there")
    row = {"evidence": "wide", "change": "say more", "score": 4 if ANSWER in text else 2}
    return json.dumps({"reason": "It is short.", "criteria": {"clarity": row}, "done": False})


def sources(text, task):
    """Check the sources of a text: of the sea there are none, so its score is unknown."""
    if "sea" in task.prompt:
        return redraft.Feedback(None, NO_SOURCES)
    return redraft.Feedback(0.75, SOURCES)


def tracer_provider(*exporters):
    """Return a provider that sends all spans but those of one row."""
    provider = TracerProvider(sampler=ParentBased(DropRow()))
    for exporter in exporters:
        provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


async def make_run(folder):
    """Make the run, whose output and journal are in the folder."""
    graders = ["words:5-9", sources, redraft.Judge({"clarity": "A child can follow it."})]
    settings = {"max_iterations": 1, "retries": 0, "editor": False}
    return await redraft.batch(ROWS, folder / "out.jsonl", Writer(), graders, judge, **settings)


def stored_traces(folder):
    """Return the traces of the run by the IDs of its rows."""
    with Journal(folder / "out.jsonl.journal", read_only=True) as journal:
        return {row.id: trace for row, trace in journal.traces(journal.runs()[0].name)}
