"""Journals with runs that were not computed: as many rows as a test wants, with any texts, written
through the journal.
"""

import random
import sqlite3
from contextlib import closing

from redraft.base.jsontext import dumps_text
from redraft.loop.records import (
    Candidate,
    CriterionScore,
    Failure,
    Feedback,
    Outcome,
    StopReason,
)
from redraft.loop.task import Task
from redraft.loop.trace import PanelGrader, Trace
from redraft.runs.row_result import grader_columns, grader_values, row_result
from redraft.storage.journal import Journal
from redraft.storage.schema import LINES_PER_ROW
from redraft.usage import Usage

PANEL = (
    PanelGrader("judge"),
    PanelGrader("words:5-80", model_free=True, must=True),
    PanelGrader("style", weight=0.5),
)
CRITERIA = ("correctness", "completeness", "clarity")
WORDS = (
    "the harvest came in early this year and the river ran low while merchants counted their grain twice before they signed "
    "any contract with the mill because last autumn a third of it had spoiled in damp barns near the old bridge"
).split()
SETTINGS = {"max_iterations": 3, "target_score": 0.9, "model": "writer-1"}


def usage(random_numbers, scale=1.0):
    tokens = int(random_numbers.uniform(80, 400) * scale)
    return Usage(
        1,
        tokens,
        tokens // 2,
        cost=tokens * 2e-6,
        answer_tokens=tokens + tokens // 2,
        answer_cost=tokens * 2e-6,
    )


def sentence(numbers, n=40):
    return " ".join(numbers.choices(WORDS, k=n)).capitalize() + "."


def changed(numbers, text):
    words = text.split()
    for _ in range(4):
        words[numbers.randrange(len(words))] = numbers.choice(WORDS)
    at = numbers.randrange(len(words))
    return " ".join([*words[:at], *sentence(numbers, 6).lower().split(), *words[at + 2 :]])


def feedback(numbers, candidate, quality, action):
    scores = [
        min(1.0, max(0.0, round((quality + numbers.gauss(0, 0.12)) * 5) / 5)) for _ in CRITERIA
    ]
    criteria = tuple(
        CriterionScore(name, score, "the old bridge", f"{action} ({name})" if score < 1 else "")
        for name, score in zip(CRITERIA, scores, strict=True)
    )
    yield Feedback(
        sum(scores) / len(scores),
        "Clear, but it leaves out what happened to the grain.",
        tuple(c.action for c in criteria if c.action),
        min(scores) == 1,
        criteria,
        candidate,
        "judge",
        by="judge-1",
        usage=usage(numbers, 2),
        seconds=numbers.uniform(0.4, 2.5),
    )
    yield Feedback(1.0, "41 words", candidate=candidate, grader="words:5-80")
    style = min(1.0, max(0.0, quality + numbers.gauss(0, 0.2)))
    yield Feedback(
        style,
        "Plain words.",
        candidate=candidate,
        grader="style",
        by="judge-1",
        usage=usage(numbers),
        seconds=0.5,
    )


def make_trace(seed, *, prompt=None, text=None, action="Say what happened to the grain", gain=0.12):
    """Return a finished trace: a draft and up to three refinements, some of them worse than what
    they refine.
    """
    numbers = random.Random(seed)
    task = Task(prompt or f"Question {seed}: {sentence(numbers, 14)}", id=f"row-{seed}")
    trace = Trace(task, PANEL, settings=SETTINGS)
    if seed % 97 == 96:
        failure = Failure(
            ("candidate", 0),
            "generate",
            "ModelUnavailableError",
            "503: the server is busy",
            by="writer-1",
        )
        return trace + failure + Outcome(None, StopReason.FAILED, "the model failed")
    quality, answer = numbers.uniform(0.2, 0.8), text or sentence(numbers)
    for n in range(numbers.randint(1, 4)):
        role = "refine" if n else "generate"
        trace += Candidate(
            n,
            answer,
            n - 1 if n else None,
            "writer-1",
            role,
            usage=usage(numbers),
            seconds=numbers.uniform(1, 5),
        )
        for record in feedback(numbers, n, quality, action):
            trace += record
        quality = min(1.0, max(0.0, quality + numbers.gauss(gain, 0.12)))
        answer = f"{answer} {n}" if text else changed(numbers, answer)
    stop = numbers.choice(
        [StopReason.TARGET, StopReason.PATIENCE, StopReason.MAX_ITERATIONS, StopReason.GAIN]
    )
    best = trace.best.id
    score = trace.scores[best]
    interval = (max(0.0, score - 0.1), min(1.0, score + 0.1))
    return trace + Outcome(
        best, stop, "that is enough", score, interval, tuple(trace.scores.items()), 0.08
    )


def add_row(journal, run, position, trace, *, status=None, id=None):
    """Write one row with its trace and result, as a batch does."""
    id = id or trace.task.id
    journal.begin_row(
        run, id, position, f"key-{id!a}", {"task": ascii(id)}, dumps_text(trace.header())
    )
    from redraft.loop.serialize import record_to_json

    journal.append_records(run, id, 0, [record_to_json(r) for r in trace.records])
    if trace.outcome:
        result = row_result(trace, more=grader_values(trace, grader_columns(trace.panel)))
        journal.finish_row(run, id, status or result.status, result.as_data())


def write_run(path, rows=60, *, run="answers", seed=0, gain=0.12, traces=()):
    """Write a run of synthetic rows; `traces` come first."""
    with Journal(path) as journal:
        journal.update_run(
            run,
            invocation=1,
            last_full_invocation=1,
            model="writer-1",
            output="answers.jsonl",
            settings={"run": {"max_iterations": "3", "gain": str(gain)}},
        )
        for position in range(rows + len(traces)):
            trace = (
                traces[position]
                if position < len(traces)
                else make_trace(seed + position - len(traces), gain=gain)
            )
            add_row(journal, run, position, trace)
            if position % 500 == 499:
                journal.flush()
    return path


def write_large_run(path, rows, *, distinct=250):
    """Write a run of many rows quickly: `distinct` of them, and copies with other IDs."""
    write_run(path, distinct)
    with closing(sqlite3.connect(path)) as database:
        for first in range(distinct, rows, distinct):
            lines = first * LINES_PER_ROW
            database.execute(
                "INSERT INTO rows SELECT row + ?, run, json_quote('copy ' || (row + ?)), position + ?, key, key_parts, status, result FROM rows "
                "WHERE row <= ?",
                (first, first, first, distinct),
            )
            database.execute(
                "INSERT INTO lines SELECT number + ?, line FROM lines WHERE number < ?",
                (lines, (distinct + 1) * LINES_PER_ROW),
            )
            database.execute(
                "INSERT INTO seen_rows SELECT row + ?, invocation FROM seen_rows WHERE row <= ?",
                (first, distinct),
            )
        database.commit()
    return path
