"""Apply Redraft's plans to recorded refinements, and compare them with the last answer and with the
best-graded one.

    python bench/replay.py FOLDER [--json FILE]

FOLDER holds traces.jsonl.gz of Self-Refine's review rewriting or of code written against tests, or
a folder for each. The plans are those of the package. Their steps are answered from the record: a
refinement is the next recorded text, if that was made from the text in question; a grade is that of
the recorded judge. Steps that are not on record (a refinement of another text, a new draft, a
repeated grade) fail, and are counted.

The truth differs from what a plan sees. *Code*: a plan sees the share of passed tests among those
that the model wrote itself; the truth is the verdict of the official tests. *Reviews*: a plan sees
the model's rating of its own rewrite, from very negative (0) to very positive (1); the truth is the
same, but 0 for a text that is not a rewrite of the review (see `no_rewrite`).
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import re
import sys
from collections import Counter, defaultdict
from contextlib import aclosing
from dataclasses import dataclass
from itertools import compress, islice
from math import sqrt
from pathlib import Path
from statistics import fmean
from zlib import crc32

from redraft.loop.engine import advance
from redraft.loop.records import Candidate, Failure, Feedback
from redraft.loop.steps import Generate, Grade, Refine, Stop
from redraft.loop.task import Task
from redraft.loop.trace import PanelGrader, Trace
from redraft.plans.quality.fit import fit_priors
from redraft.plans.quality.lineage import observe
from redraft.session.options import SHIPPED, Options
from redraft.usage import Usage
from tables import table, write

TARGET = 0.9  # the default target of a refinement
MOST = 100_000  # traces that are read
CALL = Usage(calls=1)
JUDGE = PanelGrader("judge")  # calls a model, so its scores are noisy


class UnreadableRecordError(Exception):
    """The record is malformed."""


@dataclass(frozen=True)
class RecordedText:
    """A recorded text, its grade in [0, 1] (None: unknown) and, in the same terms, its true
    quality.
    """

    text: str
    seen: float | None
    truth: float | None

    def __post_init__(self):
        if not isinstance(self.text, str) or not (self.seen is None or 0 <= self.seen <= 1):
            raise ValueError(f"no text with a grade: {self.text!r}, {self.seen!r}")


@dataclass(frozen=True)
class Chain:
    """The texts of one task, each made from the one before. Chains with the same `topic` are not
    independent.
    """

    topic: str
    prompt: str
    texts: tuple[RecordedText, ...]


@dataclass(frozen=True)
class ReplayResult:
    """The text that a policy returned, the score that it reported, its refinements, and its steps
    that were not on record.
    """

    answer: RecordedText
    score: float | None
    refinements: int
    repeats: int = 0  # repeated grades that were requested and are not on record
    cut: bool = False  # a refinement of another text was requested and is not on record
    reason: str = "end of record"


# --- the records
# ----------------------------------------------------------------------------


def reviews(row):
    """Return a chain of rewritten reviews."""
    texts = []
    for step in row["steps"]:
        seen = None if step["judge_score"] is None else (step["judge_score"] - 1) / 4
        texts.append(
            RecordedText(
                step["response"], seen, 0.0 if no_rewrite(step["response"], row["prompt"]) else seen
            )
        )
    return Chain(str(row["record_id"]), row["prompt"], tuple(texts))


# A text that begins like this, or mentions rewriting, is about a review and is not a review.
ABOUT = re.compile(
    r"""\W*(feedback\b | n/a\b | no\ (further|output|changes?|review|sentiment|rewrit)
    | there\ (is|are)\ no\ (\w+\ )?(need|review|sentiment|output|changes?|feedback)
    | (this|the|your)\ (\w+\ )?(review|sentiment|output|statement|input)(\ \w+)?\ (is|are|was|sounds?|has|does|remains|cannot)\b
    | great\ job | as\ an\ ai\b | (i'm\ )?sorry\b | i\ apologi | i\ need\ (a|more)\b
    | thank\ you\ for\ your\ feedback | why\ is\ this)
    | .*\bre-?writ""",  # noqa: E501
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)
# the hotel of the example in the prompt that all chains share; no recorded review is about it
EXAMPLE = "trop"


def no_rewrite(text, review):
    """Return whether a text is not a rewrite of a review: it comments on one, is about the prompt's
    example, or shares no word.
    """
    words, given = words_of(text), words_of(review)
    return bool(ABOUT.match(text)) or EXAMPLE in words - given or not words & given


def words_of(text):
    return {word for word in re.findall(r"[a-z]+", text.lower()) if len(word) > 3}


def code(row):
    """Return a chain of programs. The tests that the model wrote are the same for all of them."""
    texts = [
        RecordedText(
            s["solution"], pass_share(s["self_test_feedback"]), float(s["verdict"] == "passed")
        )
        for s in row["steps"]
    ]
    return Chain(row["task_id"], row["task_id"], tuple(texts))


def pass_share(feedback):
    """Return the share of tests that a report counts as passed; None if it names none."""
    counts = test_counts(feedback)
    return counts[0] / sum(counts) if sum(counts) else None


def test_counts(feedback):
    """Return how many tests a report names as passed, and how many as failed."""
    parts = (feedback or "").partition("Tests failed:")[::2]
    return [sum(line.startswith("assert") for line in part.splitlines()) for part in parts]


SIGNS = {"target_sentiment": ("reviews", reviews), "final_verdict": ("code", code)}
FILE = "traces.jsonl.gz"


def load_chains(folder):
    """Return the chains in a folder and its subfolders by topic, which a field of the first row
    shows. Raises Unreadable.
    """
    sources = {}
    for path in sorted([*folder.glob(FILE), *folder.glob(f"*/{FILE}")]):
        try:
            rows = read(path)
            for sign, (name, chain) in SIGNS.items():
                if rows and sign in rows[0]:
                    sources[name] = [chain(row) for row in rows if row["steps"]]
        except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
            raise UnreadableRecordError(
                f"{path} cannot be read: {type(error).__name__}: {error}"
            ) from error
    if not sources:
        raise UnreadableRecordError(f"there are no recorded traces that are known here in {folder}")
    return sources


def read(path):
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in islice(lines, MOST)]


# --- the policies
# ----------------------------------------------------------------------------


def first(chain):
    return at(chain, 0, 0)


def last(chain):
    return at(chain, len(chain.texts) - 1, len(chain.texts) - 1)


def best_seen(chain):
    """Return the text with the highest grade, the earliest of several; texts without a grade
    lose.
    """
    grades = [-1.0 if text.seen is None else text.seen for text in chain.texts]
    return at(chain, grades.index(max(grades)), len(chain.texts) - 1)


def at(chain, i, refinements):
    return ReplayResult(chain.texts[i], chain.texts[i].seen, refinements)


def policies(chains):
    """Return all policies by name. Priors are learned from chains of other topics, replayed with
    the shipped priors.
    """
    learned_priors = [
        fit_priors(
            (observe(replay_plan(c, plan_for(c))) for c in chains if half(c) != side), SHIPPED
        )
        for side in (0, 1)
    ]
    return {
        "first answer": first,
        "last answer": last,
        "best seen": best_seen,
        "SelfRefine": lambda chain: replay_result(chain, plan_for(chain, noise_aware=False)),
        "Adaptive": lambda chain: replay_result(chain, plan_for(chain)),
        "Adaptive, learned": lambda chain: replay_result(
            chain, plan_for(chain, learned_priors[half(chain)])
        ),
    }


def half(chain):
    return crc32(chain.topic.encode()) % 2


def plan_for(chain, priors=SHIPPED, noise_aware=None):
    """Return the plan as `refine` makes it at temperature 0 (one draft), with as many refinements
    as are on record.
    """
    options = Options(max_iterations=len(chain.texts) - 1, temperature=0, noise_aware=noise_aware)
    return options.make_plan(writes=True, noisy=True, priors=priors)


def replay_result(chain, plan):
    trace = replay_plan(chain, plan)
    missing = Counter(failure.role for failure in trace.failures.values())
    answer, cut, reason = chain.texts[trace.best.id], missing["refine"], trace.outcome.reason.value
    return ReplayResult(
        answer, trace.score, trace.iterations + cut, missing["grade"], bool(cut), reason
    )


def replay_plan(chain, plan):
    """Replay a plan on a record; return its result."""
    return asyncio.run(
        run_to_end(Trace(Task(chain.prompt), (JUDGE,)), plan, recorded_performer(chain))
    )


async def run_to_end(trace, plan, perform):
    async with aclosing(advance(trace, plan, perform)) as traces:
        async for latest in traces:
            trace = latest
    return trace


def recorded_performer(chain):
    """Return a function that answers steps from the record."""

    async def perform(step):
        match step:
            case Generate(id=0):
                return Candidate(0, chain.texts[0].text, by="record", role="generate", usage=CALL)
            case Refine(id=id, parent=parent) if follows(chain, id, parent):
                return Candidate(
                    id, chain.texts[id].text, parent, by="record", role="refine", usage=CALL
                )
            case Grade(repeat=0, candidate=candidate):
                return Feedback(
                    chain.texts[candidate.id].seen,
                    candidate=candidate.id,
                    grader=step.grader,
                    usage=CALL,
                )
            case Stop():
                return step
        return Failure(step.slot, step.role, "NotRecorded", "this step is not on record")

    return perform


def follows(chain, id, parent):
    """Return whether a recorded text was made from this one, or from an equal one."""
    return id < len(chain.texts) and chain.texts[id - 1].text == chain.texts[parent].text


# --- what comes out
# ----------------------------------------------------------------------------


def compare(name, chains):
    """Compute the figures of all policies on all chains, and on those in which no plan left the
    record.
    """
    ends = {policy: [end(chain) for chain in chains] for policy, end in policies(chains).items()}
    yield name, compute_figures(chains, ends)
    on_record = [
        c.texts[0].seen is not None and not any(results[i].cut for results in ends.values())
        for i, c in enumerate(chains)
    ]
    if not all(on_record):
        kept = {policy: list(compress(results, on_record)) for policy, results in ends.items()}
        yield (
            f"{name}, on record throughout",
            compute_figures(list(compress(chains, on_record)), kept),
        )


def compute_figures(chains, ends):
    """Compute the figures of all policies. Truth is compared on the chains in which that of every
    answer is known.
    """
    known = [
        i
        for i in range(len(chains))
        if all(results[i].answer.truth is not None for results in ends.values())
    ]
    topics = [chains[i].topic for i in known]
    truths = {name: [results[i].answer.truth for i in known] for name, results in ends.items()}
    figures = {}
    for name, results in ends.items():
        reported = [
            (results[i].score, results[i].answer.truth)
            for i in known
            if results[i].score is not None
        ]
        figures[name] = {
            "truth": mean(truths[name], topics),
            **{
                f"over {rival}": lead(truths[name], truths[rival], topics)
                for rival in ("last answer", "best seen")
            },
            "reported - truth": fmean(score - truth for score, truth in reported)
            if reported
            else None,
            "false success": sum(
                (end.answer.seen or 0) >= TARGET > end.answer.truth
                for end in (results[i] for i in known)
            ),
            "refinements": fmean(end.refinements for end in results) if results else None,
            "repeats in vain": sum(end.repeats for end in results),
            "cut off": sum(end.cut for end in results),
            "ends": dict(Counter(end.reason for end in results)),
        }
    return {"chains": len(chains), "compared": len(known), "policies": figures}


def mean(values, topics):
    """Return the mean and its standard error; values of one topic count as dependent."""
    if not values:
        return None
    middle, off = fmean(values), defaultdict(float)
    for value, topic in zip(values, topics, strict=True):
        off[topic] += value - middle
    return {"mean": middle, "se": sqrt(sum(each**2 for each in off.values())) / len(values)}


def lead(ours, theirs, topics):
    """Return by how much the truth of the answers is higher, and in how many chains it is higher or
    lower.
    """
    leads = [a - b for a, b in zip(ours, theirs, strict=True)]
    return leads and {
        **mean(leads, topics),
        "better": sum(x > 0 for x in leads),
        "worse": sum(x < 0 for x in leads),
    }


def report(name, measures):
    print(
        f"{name}: {measures['chains']} recorded chains; truth known of every answer in "
        f"{measures['compared']}\n"
    )
    header = [
        "",
        "truth",
        "- last answer",
        "up/down",
        "- best seen",
        "up/down",
        "too high",
        "false",
        "refined",
        "repeats",
        "cut off",
    ]
    table(header, [line(policy, figures) for policy, figures in measures["policies"].items()])
    print()


def line(policy, figures):
    cells = [policy, shown(figures["truth"])]
    for rival in ("last answer", "best seen"):
        over = figures[f"over {rival}"]
        cells += (
            ["", ""]
            if rival == policy or not over
            else [shown(over, "+"), f"{over['better']}/{over['worse']}"]
        )
    honest = figures["reported - truth"]
    cells += ["" if honest is None else f"{honest:+.3f}", str(figures["false success"])]
    taken = figures["refinements"]
    return [
        *cells,
        "" if taken is None else f"{taken:.2f}",
        str(figures["repeats in vain"]),
        str(figures["cut off"]),
    ]


def shown(value, sign=""):
    return f"{value['mean']:{sign}.3f} ±{value['se']:.3f}" if value else ""


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    given = parser.parse_args()
    try:
        sources = load_chains(given.folder)
    except UnreadableRecordError as error:
        parser.error(str(error))
    figures = {}
    for name, chains in sources.items():
        print(f"{name}: {len(chains)} chains", file=sys.stderr)
        for title, measures in compare(name, chains):
            figures[title] = measures
            report(title, measures)
    write(given.json, figures)


if __name__ == "__main__":
    main()
