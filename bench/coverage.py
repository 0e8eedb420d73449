"""Measure what calibration to people's labels is worth: how often its intervals cover labels that
were held out, and its error.

    python bench/coverage.py FOLDER [--labels 100] [--splits 50] [--brief] [--json FILE]

FOLDER holds folders of data sets, recognised by their names: UniEval's meta-evaluation, Summary of
a Haystack, LLMBar, JudgeBench, PandaLM's test set, JUDGE-BENCH's ratings, and code with
self-written tests. In each split, whole clusters (documents, pairs, items, tasks) are drawn until
there are LABELS labels to fit; all other clusters are held out. The table has, as means over
splits: the share of held-out labels inside the 95 % interval and its width; the root mean squared
error of the calibrated score, of the judge's own score, of the same stretched to the range of the
labels (min-max), and of the constant mean label. The exit code is 1 if a set covers less than 90 %,
or if the calibrated score has a larger error than the judge's own.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import sqrt
from pathlib import Path
from statistics import fmean

from rich.console import Console
from rich.table import Table

from redraft.validation import fit_calibration

GOAL = 0.90
MIN_HELD_OUT = 30
FEW_ITEMS = 150
LEFT_OUT = {
    "attacks": "no labels",
    "gpt4_pointwise": "no labels of people: GPT-4's own grades",
    "ifeval": "verdicts of rules, and no judge",
    "selfrefine_gsm": "correct or not, and no judge's score",
    "selfrefine_yelp": "a judge's score, and no labels of people",
}


@dataclass(frozen=True)
class LabelledScore:
    """A judge's score and a label, both from 0 to 1 unless the judge has its own scale, and the
    cluster they are of.
    """

    score: float
    label: float
    cluster: str


@dataclass(frozen=True)
class LabelledSet:
    name: str
    rows: list[LabelledScore]


# --- the data sets
# ----------------------------------------------------------------------------


def read_rows(folder, pattern):
    """Yield the rows of all files that match a pattern, compressed or not."""
    for path in sorted([*folder.glob(pattern), *folder.glob(f"{pattern}.gz")]):
        with (gzip.open if path.suffix == ".gz" else Path.open)(
            path, "rt", encoding="utf-8"
        ) as file:
            yield from (json.loads(line) for line in file if line.strip())


def unit_labels(rows):
    """Return rows with labels from 0 to 1, by the lowest and the highest label of the set."""
    low, high = min(row.label for row in rows), max(row.label for row in rows)
    low, high = min(low, 0.0 if high <= 1 else low), max(high, 1.0)
    return [LabelledScore(row.score, (row.label - low) / (high - low), row.cluster) for row in rows]


def unieval(folder):
    """Return each dimension of each file: the mean rating of people, and UniEval's score."""
    for path in sorted(folder.glob("*.jsonl")):
        rows = list(read_rows(folder, path.name))
        for dimension in rows[0]["predict_scores"]:
            yield (
                f"{path.stem} {dimension}",
                [
                    LabelledScore(
                        row["predict_scores"][dimension], row["scores"][dimension], row["source"]
                    )
                    for row in rows
                    if dimension in row["scores"]
                ],
            )


COVERAGE = {"full": 1.0, "fully": 1.0, "partial": 0.5, "partially": 0.5, "no": 0.0, "not": 0.0}


def coverage_score(word):
    """Return 1, 0.5 or 0 for full, partial and no coverage; None for anything else."""
    return COVERAGE.get(str(word).lower().partition("_")[0])


def summhay(folder):
    """Return each judge's verdicts on single criteria, and its mean score of each summary."""
    by_criterion, by_summary = defaultdict(list), defaultdict(list)
    for row in read_rows(folder, "summaries*.jsonl"):
        people = {each["insight_id"]: coverage_score(each["coverage"]) for each in row["human"]}
        for judge, verdicts in row["judges"].items():
            scores = {each["insight_id"]: coverage_score(each["coverage"]) for each in verdicts}
            both = [
                (scores[key], label)
                for key, label in people.items()
                if scores.get(key) is not None and label is not None
            ]
            by_criterion[judge] += [LabelledScore(score, label, row["id"]) for score, label in both]
            if both:
                means = (fmean(each[side] for each in both) for side in (0, 1))
                by_summary[judge].append(LabelledScore(*means, row["subtopic_id"] + row["id"]))
    yield from ((f"summhay criteria {judge}", rows) for judge, rows in by_criterion.items())
    yield from ((f"summhay summaries {judge}", rows) for judge, rows in by_summary.items())


def llmbar(folder):
    """Return the ratings of single answers (label: the better of its pair) and the comparisons
    (label: the first is better).
    """
    pairs = {row["id"]: row for row in read_rows(folder, "pairs*.jsonl")}
    rated = defaultdict(list)
    for row in read_rows(folder, "judge_ratings*.jsonl"):
        for side in (1, 2):
            text = row[f"score_{side}_raw"].strip()
            if re.fullmatch(r"\d|10", text):
                label = float(int(pairs[row["id"]]["label"]) == side)
                rated[f"{row['judge']} {row['strategy']}"].append(
                    LabelledScore(int(text) / 10, label, row["id"])
                )
    yield from ((f"llmbar {name}", rows) for name, rows in rated.items())
    votes = defaultdict(lambda: defaultdict(list))
    for row in read_rows(folder, "judge_comparisons*.jsonl"):
        if row["winner"] is not None:
            votes[f"{row['judge']} {row['strategy']}"][row["id"]].append(
                float(row["winner"] == "1")
            )
    for name, by_pair in votes.items():
        rows = [
            LabelledScore(fmean(each), float(int(pairs[id]["label"]) == 1), id)
            for id, each in by_pair.items()
        ]
        yield f"llmbar pairs {name}", rows


def judgebench(folder):
    """Return the scores of reward models (label: correct) and the verdicts of judges (label: the
    first is correct).
    """
    pairs = {row["pair_id"]: row["label"] == "A>B" for row in read_rows(folder, "pairs*.jsonl")}
    rewards, votes = defaultdict(list), defaultdict(lambda: defaultdict(list))
    for row in read_rows(folder, "judge_outputs*.jsonl"):
        if row["pair_id"] not in pairs:
            continue
        judge, first = row["judge_model"] or row["judge"], pairs[row["pair_id"]]
        if row.get("scores") and None not in row["scores"]:
            if row["order"] == "AB":
                both = zip(row["scores"], (first, not first), strict=True)
                rewards[judge] += [
                    LabelledScore(score, float(label), row["pair_id"]) for score, label in both
                ]
        elif row["decision"] is not None:
            vote = {"A>B": 1.0, "A=B": 0.5, "B>A": 0.0}[row["decision"].replace(">>", ">")]
            votes[judge][row["pair_id"]].append(vote if row["order"] == "AB" else 1 - vote)
    yield from ((f"judgebench {judge}", rows) for judge, rows in rewards.items())
    for judge, by_pair in votes.items():
        yield (
            f"judgebench pairs {judge}",
            [LabelledScore(fmean(each), float(pairs[id]), id) for id, each in by_pair.items()],
        )


FIRST_IS_BETTER = {"1": 1.0, "2": 0.0, "0": 0.5}


def pandalm(folder):
    """Return both judges' verdicts on pairs; the label is the mean of three people (the first is
    better: 1, tie: 0.5).
    """
    rows = list(read_rows(folder, "pairs*.jsonl"))
    for judge in ("gpt35", "pandalm7b"):
        yield (
            f"pandalm {judge}",
            [
                LabelledScore(
                    FIRST_IS_BETTER[str(row[f"{judge}_verdict"])],
                    fmean(FIRST_IS_BETTER[str(vote)] for vote in row["annotators"]),
                    row["instruction"] + row["input"],
                )
                for row in rows
                if str(row[f"{judge}_verdict"]) in FIRST_IS_BETTER
            ],
        )


def raters(folder):
    """Return the first rater of each item as the judge of the mean of the others; all metrics
    together if items are few.
    """
    for path in sorted(folder.glob("*.jsonl")):
        by_metric = defaultdict(list)
        for row in read_rows(folder, path.name):
            ratings = [rating for rating in row["ratings"] if rating is not None]
            if len(ratings) > 1:
                by_metric[row["metric"]].append(
                    LabelledScore(ratings[0], fmean(ratings[1:]), row["item"])
                )
        if min(map(len, by_metric.values()), default=0) < FEW_ITEMS:
            by_metric = {"all metrics": [row for rows in by_metric.values() for row in rows]}
        for name, rows in by_metric.items():
            numbers = [value for row in rows for value in (row.score, row.label)]
            low, high = min(numbers), max(numbers)
            yield (
                f"raters {path.stem} {name}",
                [
                    LabelledScore(
                        (row.score - low) / (high - low),
                        (row.label - low) / (high - low),
                        row.cluster,
                    )
                    for row in rows
                ],
            )


def code(folder):
    """Return the share of self-written tests that a program passes; the label is the verdict of the
    official tests.
    """
    rows = []
    for trace in read_rows(folder, "traces*.jsonl"):
        for step in trace["steps"]:
            passed, _, failed = (step["self_test_feedback"] or "").partition("Tests failed:")
            counts = [text.count("\nassert") for text in (passed, failed)]
            if sum(counts):
                rows.append(
                    LabelledScore(
                        counts[0] / sum(counts),
                        float(step["verdict"] == "passed"),
                        trace["task_id"],
                    )
                )
    yield "code self-written tests", rows


READERS = {
    "unieval_meta": unieval,
    "summhay_rubric": summhay,
    "llmbar": llmbar,
    "judgebench": judgebench,
    "pandalm": pandalm,
    "multi_rater": raters,
    "code_refine": code,
}


def labelled_sets(folder: Path) -> Iterator[LabelledSet]:
    """Yield the labelled sets of a folder, with labels from 0 to 1."""
    for name, read in READERS.items():
        if (folder / name).is_dir():
            for title, rows in read(folder / name):
                if rows:
                    yield LabelledSet(title, unit_labels(rows))


# --- the measurement
# ----------------------------------------------------------------------------


@dataclass(frozen=True)
class CoverageRow:
    """Means over the splits of one set. `best_of_four` is the coverage of the answer with the
    highest score of four.
    """

    name: str
    rows: int
    coverage: float
    width: float
    best_of_four: float | None
    best_bias: float | None
    judge_best_bias: float | None
    calibrated: float
    judge: float
    min_max: float
    constant: float

    @property
    def covers(self):
        return self.coverage >= GOAL

    @property
    def better_than_judge(self):
        return self.calibrated < self.judge


def split_rows(rows, labels, rng):
    """Return rows to fit and rows held out: whole clusters until there are enough labels, and all
    other clusters.
    """
    by_cluster = defaultdict(list)
    for row in rows:
        by_cluster[row.cluster].append(row)
    names = sorted(by_cluster)
    rng.shuffle(names)
    fit, held_out = [], []
    for name in names:
        if len(fit) < labels:
            fit += by_cluster[name][: labels - len(fit)]
        else:
            held_out += by_cluster[name]
    return fit, held_out


def unit_scores(fit, held_out):
    """Return rows with scores from 0 to 1; those of a judge with its own scale are stretched by the
    rows to fit.
    """
    low, high = min(row.score for row in fit), max(row.score for row in fit)
    if (
        min(row.score for row in fit + held_out) >= 0
        and max(row.score for row in fit + held_out) <= 1
    ):
        return fit, held_out
    return (
        [
            LabelledScore(min(1.0, max(0.0, (r.score - low) / (high - low))), r.label, r.cluster)
            for r in part
        ]
        for part in (fit, held_out)
    )


def rms(errors):
    return sqrt(fmean(error * error for error in errors))


def covered(prediction, label):
    return prediction.interval[0] - 1e-9 <= label <= prediction.interval[1] + 1e-9


def best_of_four(calibration, rows, rng):
    """Return coverage and bias (prediction and judge minus label) of the highest score in random
    groups of four.
    """
    rows = rng.sample(rows, len(rows))
    best = [max(rows[i : i + 4], key=lambda row: row.score) for i in range(0, len(rows) - 3, 4)]
    predictions = [calibration.predict(row.score) for row in best]
    pairs = list(zip(best, predictions, strict=True))
    return (
        fmean(covered(prediction, row.label) for row, prediction in pairs),
        fmean(prediction.mean - row.label for row, prediction in pairs),
        fmean(row.score - row.label for row in best),
    )


def measure_split(rows, labels, rng):
    """Return the figures of one split."""
    fit, held_out = unit_scores(*split_rows(rows, labels, rng))
    low, high = min(row.score for row in fit), max(row.score for row in fit)
    calibration = fit_calibration(
        [row.score for row in fit],
        [row.label for row in fit],
        clusters=[row.cluster for row in fit],
    )
    predictions = [calibration.predict(row.score) for row in held_out]
    both = list(zip(held_out, predictions, strict=True))
    stretched = [
        (min(high, max(low, row.score)) - low) / (high - low) if high > low else row.score
        for row in held_out
    ]
    return (
        fmean(covered(prediction, row.label) for row, prediction in both),
        fmean(prediction.interval[1] - prediction.interval[0] for prediction in predictions),
        *best_of_four(calibration, held_out, rng),
        rms(prediction.mean - row.label for row, prediction in both),
        rms(row.score - row.label for row in held_out),
        rms(score - row.label for row, score in zip(held_out, stretched, strict=True)),
        rms(calibration.label_mean - row.label for row in held_out),
    )


def measure_set(each, labels, splits, seed):
    """Return the means over splits."""
    figures = [
        measure_split(each.rows, labels, random.Random(f"{seed} {n}")) for n in range(splits)
    ]
    return CoverageRow(each.name, len(each.rows), *map(fmean, zip(*figures, strict=True)))


def show(rows, too_small, folder, *, brief=False):
    """Print the table, what was left out, and the totals. `brief` omits sets of pairs that meet the
    goals.
    """
    headings = [
        "set",
        "rows",
        "covers",
        "width",
        "best of 4",
        "bias",
        "judge's",
        "calibrated",
        "judge",
        "min-max",
        "constant",
        "",
    ]
    table = Table(*headings, box=None)
    for row in rows:
        if brief and " pairs " in row.name and row.covers and row.better_than_judge:
            continue
        numbers = [row.coverage, row.width, row.best_of_four, row.best_bias, row.judge_best_bias]
        numbers += [row.calibrated, row.judge, row.min_max, row.constant]
        met = "met" if row.covers and row.better_than_judge else "MISSED"
        table.add_row(row.name, str(row.rows), *(f"{number:.3f}" for number in numbers), met)
    console = Console(width=None if sys.stdout.isatty() else 150)
    console.print(table)
    for name, n in too_small:
        console.print(f"left out: {name}: its {n} rows are too few to fit some and hold others out")
    for path in sorted(folder.iterdir()):
        if path.is_dir() and path.name not in READERS:
            console.print(f"left out: {path.name}: {LEFT_OUT.get(path.name, 'not known')}")
    console.print(totals(rows))


def totals(rows):
    """Return the number of sets in which each goal is met, in words."""
    beaten = {
        name: sum(row.calibrated < getattr(row, name) for row in rows)
        for name in ("judge", "min_max", "constant")
    }
    return (
        f"{sum(row.covers for row in rows)} of {len(rows)} sets cover {GOAL:.0%} or more. The "
        f"calibrated score has a lower error than the judge's own in {beaten['judge']}, than "
        f"min-max in {beaten['min_max']}, than the constant in {beaten['constant']}. Best of "
        f"four: {sum(row.best_of_four >= GOAL for row in rows)} cover, mean bias "
        f"{fmean(row.best_bias for row in rows):+.3f} (the judge's "
        f"{fmean(row.judge_best_bias for row in rows):+.3f})."
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--labels", type=int, default=100)
    parser.add_argument("--splits", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--brief", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    sets = list(labelled_sets(args.folder))
    too_small = [
        (each.name, len(each.rows)) for each in sets if len(each.rows) < args.labels + MIN_HELD_OUT
    ]
    rows = [
        measure_set(each, args.labels, args.splits, args.seed)
        for each in sets
        if len(each.rows) >= args.labels + MIN_HELD_OUT
    ]
    show(rows, too_small, args.folder, brief=args.brief)
    if args.json:
        args.json.write_text(
            json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8"
        )
    return 0 if rows and all(row.covers and row.better_than_judge for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
