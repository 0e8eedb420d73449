"""What our plans would have made of refinements that others recorded, beside the last answer and the best one seen.

    python bench/replay.py FOLDER [--json FILE]

FOLDER holds traces.jsonl.gz of Self-Refine's review rewriting or of code written against tests, or a folder for each. The
plans are those of the package. Who carries out their steps answers from the record: a refinement is the next recorded text,
where that was made from the text in question; a grade is what the recorded judge said. What is not on record (a refinement of
another text, a new draft, another look) fails, and is counted.

The truth is not what a plan sees. *Code*: a plan sees the share passed of the tests that the model wrote itself; the truth is
the verdict of the official ones. *Reviews*: a plan sees what the model called its own rewrite, from very negative (0) to very
positive (1); the truth is the same, but 0 for a text that is no rewrite of the review at all. Rules tell that (`no_rewrite`).
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

from redraft.core.engine import advance
from redraft.core.records import Candidate, Failure, Feedback, Task
from redraft.core.steps import Generate, Grade, Refine, Stop
from redraft.core.trace import PanelGrader, Trace
from redraft.options import SHIPPED, Options
from redraft.quality.fit import fit_priors
from redraft.quality.lineage import observe
from redraft.usage import Usage
from tables import table, write

TARGET = 0.9  # the default target of a refinement
MOST = 100_000  # traces that are read
CALL = Usage(calls=1)
JUDGE = PanelGrader("judge")  # calls a model, so that its word depends on chance


class Unreadable(Exception):
    """What is not as the record should be."""


@dataclass(frozen=True)
class Told:
    """A recorded text, its grade in [0, 1] (None: unknown) and, in the same terms, its true quality."""

    text: str
    seen: float | None
    truth: float | None

    def __post_init__(self):
        if not isinstance(self.text, str) or not (self.seen is None or 0 <= self.seen <= 1):
            raise ValueError(f"no text with a grade: {self.text!r}, {self.seen!r}")


@dataclass(frozen=True)
class Chain:
    """The texts that one task was given, each made from the one before. Those with the same `topic` are no independent tasks."""

    topic: str
    prompt: str
    texts: tuple[Told, ...]


@dataclass(frozen=True)
class Ended:
    """What a policy returned, which score it reported, and what it took: refinements, and steps that were not on record."""

    kept: Told
    score: float | None
    refinements: int
    looks: int = 0  # further looks asked for, in vain
    cut: bool = False  # a refinement of another text was asked for, in vain
    reason: str = "end of record"


# --- the records ----------------------------------------------------------------------------------------------------


def reviews(row):
    """A chain of rewritten reviews."""
    texts = []
    for step in row["steps"]:
        seen = None if step["judge_score"] is None else (step["judge_score"] - 1) / 4
        texts.append(Told(step["response"], seen, 0.0 if no_rewrite(step["response"], row["prompt"]) else seen))
    return Chain(str(row["record_id"]), row["prompt"], tuple(texts))


# A text that begins so, or speaks of rewriting, is about a review and no review.
ABOUT = re.compile(
    r"""\W*(feedback\b | n/a\b | no\ (further|output|changes?|review|sentiment|rewrit)
    | there\ (is|are)\ no\ (\w+\ )?(need|review|sentiment|output|changes?|feedback)
    | (this|the|your)\ (\w+\ )?(review|sentiment|output|statement|input)(\ \w+)?\ (is|are|was|sounds?|has|does|remains|cannot)\b
    | great\ job | as\ an\ ai\b | (i'm\ )?sorry\b | i\ apologi | i\ need\ (a|more)\b
    | thank\ you\ for\ your\ feedback | why\ is\ this)
    | .*\bre-?writ""",
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)
EXAMPLE = "trop"  # the hotel of the example in the prompt that all chains share; no recorded review is about it


def no_rewrite(text, review):
    """Whether a text is no rewrite of a review: it is about one, it is about the prompt's example, or has no word in common."""
    words, given = words_of(text), words_of(review)
    return bool(ABOUT.match(text)) or EXAMPLE in words - given or not words & given


def words_of(text):
    return {word for word in re.findall(r"[a-z]+", text.lower()) if len(word) > 3}


def code(row):
    """A chain of programs. The tests that the model wrote are the same for all of them."""
    told = [Told(s["solution"], passed(s["self_test_feedback"]), float(s["verdict"] == "passed")) for s in row["steps"]]
    return Chain(row["task_id"], row["task_id"], tuple(told))


def passed(feedback):
    """The share of tests that a report counts as passed; None where it names none."""
    good, _, bad = (feedback or "").partition("Tests failed:")
    counts = [sum(line.startswith("assert") for line in part.splitlines()) for part in (good, bad)]
    return counts[0] / sum(counts) if sum(counts) else None


SIGNS = {"target_sentiment": ("reviews", reviews), "final_verdict": ("code", code)}
FILE = "traces.jsonl.gz"


def found(folder):
    """The chains in a folder and the folders in it, by what they are about; a field of the first row tells. Raises Unreadable."""
    sources = {}
    for path in sorted([*folder.glob(FILE), *folder.glob(f"*/{FILE}")]):
        try:
            rows = read(path)
            for sign, (name, chain) in SIGNS.items():
                if rows and sign in rows[0]:
                    sources[name] = [chain(row) for row in rows if row["steps"]]
        except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
            raise Unreadable(f"{path} cannot be read: {type(error).__name__}: {error}") from error
    if not sources:
        raise Unreadable(f"there are no recorded traces that are known here in {folder}")
    return sources


def read(path):
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in islice(lines, MOST)]


# --- the policies ---------------------------------------------------------------------------------------------------


def first(chain):
    return at(chain, 0, 0)


def last(chain):
    return at(chain, len(chain.texts) - 1, len(chain.texts) - 1)


def best_seen(chain):
    """The highest grade, and the earliest of those; what has none loses."""
    grades = [-1.0 if told.seen is None else told.seen for told in chain.texts]
    return at(chain, grades.index(max(grades)), len(chain.texts) - 1)


def at(chain, i, refinements):
    return Ended(chain.texts[i], chain.texts[i].seen, refinements)


def policies(chains):
    """All of them, by name. What a plan learned, it learned from chains of other topics, replayed with the shipped priors."""
    taught = [fit_priors((observe(replayed(c, plan_for(c))) for c in chains if half(c) != side), SHIPPED) for side in (0, 1)]
    return {
        "first answer": first,
        "last answer": last,
        "best seen": best_seen,
        "SelfRefine": lambda chain: ended(chain, plan_for(chain, noise_aware=False)),
        "Adaptive": lambda chain: ended(chain, plan_for(chain)),
        "Adaptive, learned": lambda chain: ended(chain, plan_for(chain, taught[half(chain)])),
    }


def half(chain):
    return crc32(chain.topic.encode()) % 2


def plan_for(chain, priors=SHIPPED, noise_aware=None):
    """The plan as `refine` makes it, with as many refinements as there are on record; at temperature 0 it drafts only once."""
    options = Options(max_iterations=len(chain.texts) - 1, temperature=0, noise_aware=noise_aware)
    return options.make_plan(writes=True, noisy=True, priors=priors)


def ended(chain, plan):
    trace = replayed(chain, plan)
    missing = Counter(failure.role for failure in trace.failures.values())
    kept, cut, reason = chain.texts[trace.best.id], missing["refine"], trace.outcome.reason.value
    return Ended(kept, trace.score, trace.iterations + cut, missing["grade"], bool(cut), reason)


def replayed(chain, plan):
    """Where a plan ends on a record."""
    return asyncio.run(to_the_end(Trace(Task(chain.prompt), (JUDGE,)), plan, recalling(chain)))


async def to_the_end(trace, plan, perform):
    async with aclosing(advance(trace, plan, perform)) as growing:
        async for grown in growing:
            trace = grown
    return trace


def recalling(chain):
    """Carries out what is on record."""

    async def perform(step):
        match step:
            case Generate(id=0):
                return Candidate(0, chain.texts[0].text, by="record", role="generate", usage=CALL)
            case Refine(id=id, parent=parent) if follows(chain, id, parent):
                return Candidate(id, chain.texts[id].text, parent, by="record", role="refine", usage=CALL)
            case Grade(repeat=0, candidate=candidate):
                return Feedback(chain.texts[candidate.id].seen, candidate=candidate.id, grader=step.grader, usage=CALL)
            case Stop():
                return step.outcome
        return Failure(step.slot, step.role, "NotRecorded", "this step is not on record")

    return perform


def follows(chain, id, parent):
    """Whether a recorded text was made from this one, or from its equal."""
    return id < len(chain.texts) and chain.texts[id - 1].text == chain.texts[parent].text


# --- what comes out -------------------------------------------------------------------------------------------------


def compared(name, chains):
    """The figures of all policies on all chains, and on those in which no plan left the record."""
    ends = {policy: [end(chain) for chain in chains] for policy, end in policies(chains).items()}
    yield name, measured(chains, ends)
    on_record = [c.texts[0].seen is not None and not any(told[i].cut for told in ends.values()) for i, c in enumerate(chains)]
    if not all(on_record):
        kept = {policy: list(compress(told, on_record)) for policy, told in ends.items()}
        yield f"{name}, on record throughout", measured(list(compress(chains, on_record)), kept)


def measured(chains, ends):
    """The figures of all policies. Truth is compared on the chains where that of every answer is known."""
    known = [i for i in range(len(chains)) if all(told[i].kept.truth is not None for told in ends.values())]
    topics = [chains[i].topic for i in known]
    truths = {name: [told[i].kept.truth for i in known] for name, told in ends.items()}
    figures = {}
    for name, told in ends.items():
        reported = [(told[i].score, told[i].kept.truth) for i in known if told[i].score is not None]
        figures[name] = {
            "truth": mean(truths[name], topics),
            **{f"over {rival}": lead(truths[name], truths[rival], topics) for rival in ("last answer", "best seen")},
            "reported - truth": fmean(score - truth for score, truth in reported) if reported else None,
            "false success": sum((end.kept.seen or 0) >= TARGET > end.kept.truth for end in (told[i] for i in known)),
            "refinements": fmean(end.refinements for end in told) if told else None,
            "looks in vain": sum(end.looks for end in told),
            "cut off": sum(end.cut for end in told),
            "ends": dict(Counter(end.reason for end in told)),
        }
    return {"chains": len(chains), "compared": len(known), "policies": figures}


def mean(values, topics):
    """The mean, and its standard error, values of one topic counted as dependent."""
    if not values:
        return None
    middle, off = fmean(values), defaultdict(float)
    for value, topic in zip(values, topics, strict=True):
        off[topic] += value - middle
    return {"mean": middle, "se": sqrt(sum(each**2 for each in off.values())) / len(values)}


def lead(ours, theirs, topics):
    """By how much the truth of our answers is higher, and in how many chains it is higher or lower."""
    leads = [a - b for a, b in zip(ours, theirs, strict=True)]
    return leads and {**mean(leads, topics), "better": sum(x > 0 for x in leads), "worse": sum(x < 0 for x in leads)}


def report(name, measures):
    print(f"{name}: {measures['chains']} recorded chains; truth known of every answer in {measures['compared']}\n")
    header = ["", "truth", "- last answer", "up/down", "- best seen", "up/down", "too high", "false", "refined", "looks", "cut off"]
    table(header, [line(policy, figures) for policy, figures in measures["policies"].items()])
    print()


def line(policy, figures):
    cells = [policy, shown(figures["truth"])]
    for rival in ("last answer", "best seen"):
        over = figures[f"over {rival}"]
        cells += ["", ""] if rival == policy or not over else [shown(over, "+"), f"{over['better']}/{over['worse']}"]
    honest = figures["reported - truth"]
    cells += ["" if honest is None else f"{honest:+.3f}", str(figures["false success"])]
    taken = figures["refinements"]
    return [*cells, "" if taken is None else f"{taken:.2f}", str(figures["looks in vain"]), str(figures["cut off"])]


def shown(value, sign=""):
    return f"{value['mean']:{sign}.3f} ±{value['se']:.3f}" if value else ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path, help="write the figures here")
    asked = parser.parse_args()
    try:
        sources = found(asked.folder)
    except Unreadable as error:
        parser.error(str(error))
    figures = {}
    for name, chains in sources.items():
        print(f"{name}: {len(chains)} chains", file=sys.stderr)
        for title, measures in compared(name, chains):
            figures[title] = measures
            report(title, measures)
    write(asked.json, figures)


if __name__ == "__main__":
    main()
