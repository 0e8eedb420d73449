"""Measure when a trained head is worth it: on recorded judges and labels of people, compare the
best single judge, the same calibrated, and a head over all graders.

    python bench/train.py FOLDER [--labels 50 100 200 400] [--splits 20] [--only NAME] [--json FILE]

FOLDER holds folders of data sets, recognised by their names: Summary of a Haystack, UniEval's
meta-evaluation, LLMBar, JudgeBench and PandaLM's test set. In each split, whole clusters
(documents, tasks, pairs) are drawn until there are N labels to fit; all others are held out. The
best judge is the one that, calibrated, predicts the labels to fit best. Labels of answers: the root
mean squared error, from 0 to 1, lower is better. Labels of pairs: the share of pairs in which
people's choice is not preferred, ties count half; and the log loss of the probability of that
choice. The last columns say by how much the head differs from calibration, in how many of the
splits it is better, and how many of the held-out answers it abstains from.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections import defaultdict
from dataclasses import dataclass
from math import log, sqrt
from pathlib import Path
from statistics import fmean

from rich.console import Console
from rich.table import Table

from coverage import FIRST_IS_BETTER, coverage_score, read_rows
from redraft import Candidate, Task
from redraft.graders import as_grader
from redraft.train.fitting import Target, fit_head
from redraft.train.head import Features, HeadScore

MIN_HELD_OUT = 40
COMPUTED = {name: as_grader(name) for name in ("readability", "repetition")}
NO_JUDGES = {"log length", "overlap", *COMPUTED}
TEXTS: dict[str, dict[str, float]] = {}


@dataclass(frozen=True)
class Item:
    """What people say of one answer (features of one), or of two, from 0 to 1: that the first is
    better.
    """

    answers: tuple[dict[str, float], ...]
    label: float
    cluster: str


def computed(text):
    """Return what graders that only compute, and the length, say of a text."""
    if text not in TEXTS:
        found = {"log length": log(1 + len(text.split()))}
        for name, grader in COMPUTED.items():
            grade = grader.grade(Task(""), Candidate(0, text), None)
            found[name] = asyncio.run(grade).score or 0.0
        TEXTS[text] = found
    return TEXTS[text]


# --- the data sets
# ----------------------------------------------------------------------------


def summhay(folder):
    """Six judges say whether a summary covers a point."""
    for row in read_rows(folder, "summaries*.jsonl"):
        points = {each["insight_id"]: each["insight"] for each in row["criteria"]}
        said = {
            judge: {each["insight_id"]: coverage_score(each["coverage"]) for each in verdicts}
            for judge, verdicts in row["judges"].items()
        }
        text = "\n".join(row["summary"])
        for each in row["human"]:
            scores = {judge: found.get(each["insight_id"]) for judge, found in said.items()}
            label = coverage_score(each["coverage"])
            if label is not None and None not in scores.values():
                words = set(points[each["insight_id"]].lower().split())
                overlap = len(words & set(text.lower().split())) / len(words)
                features = {**scores, "overlap": overlap, **computed(text)}
                yield Item((features,), label, row["id"])


def unieval(folder, file, dimension):
    """One model scores several dimensions, people rate one of them."""
    rows = list(read_rows(folder, file))
    numbers = [row["scores"][dimension] for row in rows]
    low, high = min(numbers), max(numbers)
    for row in rows:
        features = {**row["predict_scores"], **computed(row["system_output"])}
        label = (row["scores"][dimension] - low) / (high - low)
        yield Item((features,), label, row["source"])


def llmbar(folder):
    """Judges rate each of two answers."""
    ratings = defaultdict(dict)
    for row in read_rows(folder, "judge_ratings*.jsonl"):
        scores = [row["score_1_raw"].strip(), row["score_2_raw"].strip()]
        if all(score.isdecimal() and int(score) <= 10 for score in scores):
            ratings[row["id"]][f"{row['judge']} {row['strategy']}"] = [int(s) / 10 for s in scores]
    judges = set().union(*ratings.values())
    for row in read_rows(folder, "pairs*.jsonl"):
        if ratings[row["id"]].keys() == judges:
            sides = (
                {judge: both[side] for judge, both in ratings[row["id"]].items()}
                | computed(row[f"output_{side + 1}"])
                for side in (0, 1)
            )
            yield Item(tuple(sides), float(str(row["label"]) == "1"), row["id"])


def compared(votes, texts, label, cluster):
    """Return a pair that judges compared: each answer has the share of a judge's votes for it."""
    shares = votes, {judge: 1 - share for judge, share in votes.items()}
    sides = (share | computed(text) for share, text in zip(shares, texts, strict=True))
    return Item(tuple(sides), label, cluster)


def judgebench(folder):
    """One judge compares two answers in both orders."""
    votes = defaultdict(list)
    for row in read_rows(folder, "judge_outputs*.jsonl"):
        if not row.get("scores"):
            vote = {"A>B": 1.0, "B>A": 0.0}.get((row["decision"] or "").replace(">>", ">"), 0.5)
            votes[row["pair_id"]].append(vote if row["order"] == "AB" else 1 - vote)
    for row in read_rows(folder, "pairs*.jsonl"):
        texts = row["response_A"], row["response_B"]
        said = {"claude-3-haiku": fmean(votes[row["pair_id"]])}
        yield compared(said, texts, float(row["label"] == "A>B"), str(row["original_id"]))


def pandalm(folder):
    """Two judges compare two answers, three people say which is better."""
    for row in read_rows(folder, "pairs*.jsonl"):
        votes = {
            judge: FIRST_IS_BETTER.get(str(row[f"{judge}_verdict"]), 0.5)
            for judge in ("gpt35", "pandalm7b")
        }
        label = fmean(FIRST_IS_BETTER[str(vote)] for vote in row["annotators"])
        texts = str(row["response_1"]), str(row["response_2"])
        yield compared(votes, texts, label, row["instruction"] + row["input"])


def labelled_sets(folder, only):
    """Yield the name of each set with its items."""
    readers = {
        "summhay": lambda: summhay(folder / "summhay_rubric"),
        "sfhot overall": lambda: unieval(folder / "unieval_meta", "sfhot.jsonl", "overall"),
        "qags consistency": lambda: unieval(
            folder / "unieval_meta", "qags_xsum.jsonl", "consistency"
        ),
        "llmbar": lambda: llmbar(folder / "llmbar"),
        "judgebench": lambda: judgebench(folder / "judgebench"),
        "pandalm": lambda: pandalm(folder / "pandalm"),
    }
    for name, read in readers.items():
        if only in name:
            yield name, list(read())


# --- the measurement
# ----------------------------------------------------------------------------


def split_items(items, labels, rng):
    """Return items to fit and items held out: whole clusters until there are enough labels."""
    by_cluster = defaultdict(list)
    for item in items:
        by_cluster[item.cluster].append(item)
    names = sorted(by_cluster)
    rng.shuffle(names)
    fit, held_out = [], []
    for name in names:
        (held_out if len(fit) >= labels else fit).extend(by_cluster[name])
    return fit[:labels], held_out


def head_of(items, names):
    answers = [
        Features({name: answer[name] for name in names})
        for item in items
        for answer in item.answers
    ]
    step = len(items[0].answers)
    targets = [
        Target(n * step, n * step + 1 if step == 2 else None, item.label, item.cluster)
        for n, item in enumerate(items)
    ]
    return fit_head(answers, targets, names)


def raw_error(items, name):
    """Return the error of a judge's own score."""
    return error_of(items, [[answer[name] for answer in item.answers] for item in items])


def error_of(items, scores):
    """Return the root mean squared error, or 1 - the share of pairs that people's choice wins."""
    if len(items[0].answers) == 1:
        return sqrt(
            fmean((item.label - score) ** 2 for item, (score,) in zip(items, scores, strict=True))
        )
    decided = [
        (item.label > 0.5, a, b)
        for item, (a, b) in zip(items, scores, strict=True)
        if item.label != 0.5
    ]
    return fmean(0.5 if a == b else float((a > b) != first) for first, a, b in decided)


def log_loss(items, scores):
    """Return the mean log loss of the probability that the first answer is better."""

    def loss(label, a, b):
        odds = a / (1 - a) * (1 - b) / b
        return -label * log(odds / (1 + odds)) - (1 - label) * log(1 / (1 + odds))

    return fmean(loss(item.label, *both) for item, both in zip(items, scores, strict=True))


def head_scores(fitted, items, names):
    """Return the scores of all answers, the mean (0.5) where the head abstains, and how many of
    those there are.
    """
    unknown = 0
    scores = []
    for item in items:
        found = [
            fitted.head.score(Features({name: answer[name] for name in names}))
            for answer in item.answers
        ]
        unknown += sum(not isinstance(each, HeadScore) for each in found)
        scores.append([each.value if isinstance(each, HeadScore) else 0.5 for each in found])
    return scores, unknown


def measure_split(items, labels, rng):
    """Return the errors of one split."""
    fit, held_out = split_items(items, labels, rng)
    if len(held_out) < MIN_HELD_OUT or len({item.cluster for item in fit}) < 10:
        return None
    answers = [answer for item in fit for answer in item.answers]
    names = [name for name in answers[0] if len({answer[name] for answer in answers}) > 1]
    singles = {name: head_of(fit, [name]) for name in names if name not in NO_JUDGES}
    best = min(singles, key=lambda name: singles[name].loss)
    head = head_of(fit, names)
    judged, _ = head_scores(singles[best], held_out, [best])
    scores, unknown = head_scores(head, held_out, names)
    cv_choice = scores if head.loss < singles[best].loss else judged
    pairs = len(items[0].answers) == 2
    return {
        "single": raw_error(held_out, best),
        "calibrated": error_of(held_out, judged),
        "head": error_of(held_out, scores),
        "chosen": error_of(held_out, cv_choice),
        "calibrated loss": log_loss(held_out, judged) if pairs else None,
        "head loss": log_loss(held_out, scores) if pairs else None,
        "abstains": unknown / (len(held_out) * len(items[0].answers)),
        "best": best,
    }


def measure(name, items, labels, splits):
    """Return the means over the splits; None if too few are held out."""
    rng = random.Random(f"{name} {labels}")
    found = [each for _ in range(splits) if (each := measure_split(items, labels, rng))]
    if not found:
        return None
    numbers = [key for key in found[0] if key != "best" and found[0][key] is not None]
    better = fmean(each["head"] < each["calibrated"] for each in found)
    names = [each["best"] for each in found]
    return {
        "set": name,
        "labels": labels,
        **{key: fmean(each[key] for each in found) for key in numbers},
        "better in": better,
        "best": max(set(names), key=names.count),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--labels", type=int, nargs="+", default=[50, 100, 200, 400])
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--only", default="")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    columns = (
        "set",
        "labels",
        "best",
        "single",
        "calibrated",
        "head",
        "chosen",
        "better in",
        "abstains",
        "calibrated loss",
        "head loss",
    )
    table, rows = Table(*columns), []
    for name, items in labelled_sets(args.folder, args.only):
        for labels in args.labels:
            if row := measure(name, items, labels, args.splits):
                rows.append(row)
                cells = (row.get(column) for column in columns)
                table.add_row(
                    *(
                        "" if c is None else f"{c:.3f}" if isinstance(c, float) else str(c)
                        for c in cells
                    )
                )
    Console(width=160).print(table)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
