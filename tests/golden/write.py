"""Write the golden files: `python tests/golden/write.py`. A test compares them with what the code
writes now.

Each file carries the schema version of its format. A file whose content would change under the same
version is not written: raise the version first, so that a release that reads only the old one says
so instead of guessing.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from redraft.base.jsontext import dumps_text
from redraft.graders.cards import SCHEMA as CARD_SCHEMA
from redraft.graders.cards import Card, ClassRates, Measure
from redraft.loop.records import (
    Artifact,
    Candidate,
    Comparison,
    CriterionScore,
    Failure,
    Feedback,
    Outcome,
    StopReason,
    ToolCall,
    Usage,
)
from redraft.loop.serialize import SCHEMA, record_to_json
from redraft.loop.task import Task
from redraft.loop.trace import PanelGrader, Trace
from redraft.plans.quality.calibration import Calibration
from redraft.plans.quality.priors import Priors
from redraft.plans.quality.result_facts import ResultFacts
from redraft.protocols import Reply
from redraft.runs.forecast import ForecastRange, RunForecast
from redraft.runs.progress import SCHEMA as REPORT_SCHEMA
from redraft.runs.report import (
    BatchReport,
    ErrorExample,
    IterationReport,
    RunPriors,
    RunRows,
    RunScores,
    RunSpending,
)
from redraft.storage.journal import Journal
from redraft.storage.priors_store import SCHEMA as PRIORS_SCHEMA
from redraft.storage.priors_store import PriorsKey, StoredPriors
from redraft.storage.schema import SCHEMA as JOURNAL_SCHEMA
from redraft.storage.trace_file import JsonlStore

HERE = Path(__file__).parent
USAGE = Usage(2, 110, 45, 1, 1, 0.0125, 45, 0.01)
TOOL = {"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}
SPAN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
FAILURE = Failure(
    ("candidate", 2),
    "refine",
    "RateLimitError",
    "busy",
    StopReason.BUDGET,
    "m",
    USAGE,
    0.5,
    429,
    7.5,
    retryable=True,
    limit="usd",
    traceparent=SPAN,
)


def example_trace() -> Trace:
    """A trace in which every field of every record, of the task and of the panel differs from its
    default.
    """
    task = Task(
        [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "Say it. \ud83d\n\u00e9\u4e2d"},
        ],
        "It.",
        reference="Yes.",
        context="A note.",
        tests="assert True",
        requirements=["words:1-9"],
        id="row 1",
        metadata={"source": "mail", "n": [1, 2.5, None]},
        tools=[TOOL],
        tool_choice="auto",
    )
    panel = (
        PanelGrader(
            "judge",
            2.0,
            repeats=2,
            card={"status": "trusted"},
            may_call_model=True,
            reads_tool_calls=True,
            score_step=0.2,
        ),
        PanelGrader("words:1-9", must=True, model_free=True, editable=True, demand="1 to 9 words"),
        PanelGrader("final", compares=True),
    )
    artifact = Artifact(
        "image",
        "s3://bucket/a.png",
        "sha256:" + "0123456789abcdef" * 4,
        "image/png",
        {"width": 640},
    )
    call = ToolCall("search", '{"q": "rain"}', "call_1")
    vote = Feedback(0.5, "so so", grader="judge", candidate=1)
    records = (
        Candidate(0, "It."),
        Candidate(
            1,
            "It, kindly.",
            0,
            "m",
            "refine",
            True,
            "hm",
            "cut",
            True,
            USAGE,
            1.25,
            (call,),
            artifact,
            "block",
        ),
        Feedback(
            0.75,
            "good",
            ("be brief",),
            False,
            (CriterionScore("tone", 0.5, "It", "be kinder", 2.0),),
            1,
            "judge",
            1,
            "m",
            USAGE,
            0.5,
            (vote, FAILURE),
            0.25,
            {"words": [3, 1.5]},
            SPAN,
        ),
        Comparison(
            (1, 0),
            "kinder",
            ("be brief",),
            True,
            "final",
            1,
            "m",
            USAGE,
            0.5,
            ((0, 1),),
            (0, 1),
            (Comparison((1, 0)), FAILURE),
        ),
        FAILURE,
        Outcome(
            1,
            StopReason.TARGET,
            "so it is",
            0.7,
            (0.5, 0.9),
            ((0, 0.4), (1, 0.7)),
            0.12,
            (1, 0),
            0.25,
            120,
            SPAN,
        ),
    )
    return Trace(task, panel, records, settings={"target_score": 0.7})


def example_result() -> ResultFacts:
    """A result in which every field differs from its default."""
    return ResultFacts(
        "done",
        "patience",
        stop_note="nothing more",
        answer="It.",
        has_form=True,
        parsed=[1, {"a": None}],
        tool_calls=(ToolCall("search", '{"q": "rain"}', "c1"),),
        kept=({"id": 0, "text": "It."},),
        note="prompt cut",
        truncated=True,
        initial_score=0.25,
        score=0.75,
        interval=(0.5, 1.0),
        score_basis="by this judge",
        judge_score=0.8,
        broken=("one", "two; three"),
        diagnosis="noise",
        improved=True,
        worse=True,
        unsure=True,
        iterations=2,
        by_iteration=((None, 1, None), (0.75, 2, 0.5)),
        calls=3,
        tokens=40,
        cost=0.5,
        error="ModelError: no",
        error_kind="ModelError",
        more_columns={"judge_score": 0.5, "brief_reason": None},
        decisions=["calls", 2, [0.5]],
    )


def trace_lines() -> str:
    """The example trace as a trace file holds it."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.jsonl"
        with JsonlStore(path) as store:
            store.append(example_trace())
        return path.read_text()


def write_journal(path: Path) -> None:
    """A journal with a run, a finished row with the records of the example, an open row, and a
    cached reply.
    """
    trace = example_trace()
    with Journal(path) as journal:
        journal.update_run(
            "a run",
            invocation=2,
            last_full_invocation=1,
            spent={"calls": 3.0},
            settings={"k": {"plan": "p"}},
        )
        for position, row in enumerate(("row 1", "row \u00e9")):
            journal.begin_row(
                "a run",
                row,
                position,
                f"key{position}",
                {"task": "t", "plan": "p"},
                dumps_text(trace.header()),
            )
        journal.append_records(
            "a run", "row 1", 0, [record_to_json(record) for record in trace.records]
        )
        result = example_result()
        journal.finish_row("a run", "row 1", result.status, result.to_data())
        journal.response_cache["reply"] = Reply(
            "It.", USAGE, "length", "hm", None, (ToolCall("search", "{}", "call_1"),)
        )


def journal_dump() -> str:
    """The tables and rows of that journal as SQL, with its schema version; the moments of writing
    are left out.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder) / "journal"
        write_journal(path)
        with closing(sqlite3.connect(path)) as database:
            version = database.execute("PRAGMA user_version").fetchone()[0]
            database.execute("UPDATE runs SET started_at = '', updated_at = ''")
            return "\n".join([f"-- schema {version}", *database.iterdump(), ""])


def example_card() -> Card:
    """A card in which every field has a value."""
    measure = Measure("accuracy", 0.8, 0.7, 0.9, 40, 0.5, "of all cases")
    return Card(
        grader="judge",
        fingerprint="f1",
        model="m",
        date="2026-05-01",
        data="pairs.jsonl",
        sha256="0" * 64,
        source="live",
        kind="pair",
        rows=40,
        unjudged=1,
        headline=measure,
        skipped_rows=2,
        measures=(measure,),
        groups=(Measure("group: a", None, n=3),),
        class_rates=(ClassRates("a", 0.5, None, 0.25, 8),),
        confusion={"a": {"a": 4, "b": 4}},
        parse_errors={"no JSON": 2},
        usage={"calls": 40},
        attacks={"rate": 0.1},
        calibration=Calibration(
            labels=120,
            clusters=60,
            knots=((0.0, 0.1), (1.0, 0.8)),
            errors=(-0.5, 0.0, 0.5),
            label_mean=0.6,
            score_mean=0.7,
            score_sd=0.2,
            bias=0.1,
            error_sd=0.15,
            score_error_sd=0.25,
            noise_sd=0.1,
            repeats=2.0,
            drift=0.02,
            drift_se=0.01,
            drift_pairs=30,
        ),
    )


def example_priors() -> StoredPriors:
    """Priors as the store keeps them."""
    return StoredPriors(
        PriorsKey("0123456789abcdef", "m", ("judge",), ("f1",)),
        Priors(tasks=40),
        "2026-05-01T00:00:00+00:00",
        "run a in b",
    )


def example_report() -> BatchReport:
    """A report with another value than the default in every field."""
    rows = RunRows(
        *range(2, 16),
        stops={"gain": 3, "target": 5},
        diagnoses={"noise": 2},
        errors={"ModelError": 2, "OtherError": 1},
        error_examples={
            "ModelError": ErrorExample("busy", "row 7"),
            "OtherError": ErrorExample("odd"),
        },
    )
    iterations = (
        IterationReport(0, 9, None, 9, 0.5, None, None),
        IterationReport(1, 5, 0.25, 7, 0.25, 0.056, 0.002),
    )
    scores = RunScores(0.5, 0.75, 0.25, (0.125, 0.375), {"by this judge": 9}, iterations)
    spending = RunSpending.from_usage(
        USAGE, cache_savings=0.005, excess="a call too many", price=0.02, price_unit="calls"
    )
    priors = RunPriors({"noise_sd": 0.1}, 40, ({"from": 16, "rows": 8},), 4, 50, 60)
    span = ForecastRange(10.0, 5.0, 20.0)
    return BatchReport(
        rows,
        scores,
        spending,
        priors,
        "disk",
        "the journal was deleted",
        12.5,
        "out-jsonl",
        "out.jsonl",
        "out.jsonl.journal",
        journal_lost=True,
        forecast=RunForecast(9, 100, span, span, None, span, ForecastRange(0.25, 0.125, 0.375)),
        callback_errors=("on_step raised KeyError",),
    )


class GoldenFile(NamedTuple):
    """A file, what writes its content, its schema version as the code has it, and how the version
    is read from a file.
    """

    name: str
    write: Callable[[], str]
    schema: int
    schema_of: Callable[[str], int]

    @property
    def path(self) -> Path:
        return HERE / self.name


GOLDEN_FILES = [
    GoldenFile(
        "trace.jsonl",
        trace_lines,
        SCHEMA,
        lambda text: int(json.loads(text.partition("\n")[0])["redraft"]),
    ),
    GoldenFile(
        "journal.sql",
        journal_dump,
        JOURNAL_SCHEMA,
        lambda text: int(text.partition("\n")[0].rpartition(" ")[2]),
    ),
    GoldenFile(
        "card.json",
        lambda: example_card().to_json(),
        CARD_SCHEMA,
        lambda text: int(json.loads(text)["redraft_card"]),
    ),
    GoldenFile(
        "priors.json",
        lambda: json.dumps(example_priors().as_data(), indent=1) + "\n",
        PRIORS_SCHEMA,
        lambda text: int(json.loads(text)["redraft_priors"]),
    ),
    GoldenFile(
        "report.json",
        lambda: json.dumps(example_report().as_data(), indent=1) + "\n",
        REPORT_SCHEMA,
        lambda text: int(json.loads(text)["schema"]),
    ),
]


def main() -> int:
    """Write the files that have a new version, or none yet."""
    for golden in GOLDEN_FILES:
        content = golden.write()
        if (
            golden.path.exists()
            and (old := golden.path.read_text()) != content
            and golden.schema_of(old) == golden.schema
        ):
            print(
                f"{golden.name}: the format changes: raise its schema version, which is {golden.schema}",
                file=sys.stderr,
            )
            return 1
        golden.path.write_text(content)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
