"""Compare Redraft's reader and measures with published figures: read recorded judge outputs, and
compute every figure again.

    python bench/validation.py FOLDER [--brief] [--json FILE]

FOLDER holds folders of data sets, recognised by a field in their first rows: LLMBar, JudgeBench,
PandaLM's test set, UniEval's meta-evaluation, JUDGE-BENCH's ratings, Summary of a Haystack, GPT-4
pointwise grades, Self-Refine's Yelp traces. Their references are in files beside them
(`*reference_stats*`, `judge_statistics*`, `counts.json`). A figure is equal when it rounds to the
reference's digits. The exit code is 1 when a figure differs.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import statistics
import sys
import time
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path

from rich.console import Console
from rich.table import Table

from redraft.validation import statistics as measures
from redraft.validation.recorded_formats import OUTPUT_FORMATS, UnreadableOutput, parse_output

EXACT = 9  # digits of references that were not rounded
SIDES = {"first": 1, "second": 2, "tie": 0}


@dataclass(frozen=True)
class Row:
    """A reference and Redraft's figure for it. `digits`: decimal places of the printed
    reference.
    """

    data: str
    subject: str
    measure: str
    reference: float | None
    ours: float | None
    digits: int = 6

    @property
    def difference(self):
        known = [
            value
            for value in (self.reference, self.ours)
            if value is not None and math.isfinite(value)
        ]
        return abs(known[0] - known[1]) if len(known) == 2 else math.inf if known else 0.0

    @property
    def equal(self):
        return self.difference <= 0.5 * 10**-self.digits + 1e-9


class Note(Row):
    """A figure that is shown only: there is no reference, or none for exactly this figure."""


def compare(data, subject, reference, ours, digits=6):
    """Return a row for each figure that both have."""
    return [
        Row(data, subject, name, reference[name], ours[name], digits)
        for name in ours
        if name in reference
    ]


def not_compared(data, subject, reference, compared):
    """Return the figures of a reference that were not computed again, so that no omission is
    silent.
    """
    numbers = {name: value for name, value in reference.items() if type(value) in {int, float}}
    missing = numbers.keys() - {row.measure for row in compared}
    return [
        Note(data, subject, f"{name} (not computed)", numbers[name], None)
        for name in sorted(missing)
    ]


# --- reading
# --------------------------------------------------------------------------------------------------------  # noqa: E501


def rows(path):
    with (gzip.open if path.suffix == ".gz" else Path.open)(path, "rt", encoding="utf-8") as file:
        yield from (json.loads(line) for line in file if line.strip())


def read_matching(folder, pattern):
    """Return the rows of all files that match a pattern, compressed or not."""
    return [
        row
        for path in sorted([*folder.glob(pattern), *folder.glob(f"{pattern}.gz")])
        for row in rows(path)
    ]


def references(folder):
    """Return the content of reference_stats.json."""
    path = folder / "reference_stats.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def read_verdict(text, form):
    """Return the verdict that Redraft reads; None if unreadable."""
    try:
        return parse_output(text, form)
    except UnreadableOutput:
        return None


def winner(text, form):
    """Return 1 or 2 for the first or second answer shown, 0 for a tie, None if unreadable."""
    made = read_verdict(text, form)
    return made and SIDES[made.winner]


def flip(side):
    return {1: 2, 2: 1}.get(side, side)


def share(hits):
    hits = list(hits)
    return sum(hits) / len(hits) if hits else None


def both_known(a, b):
    return [(x, y) for x, y in zip(a, b, strict=True) if None not in (x, y)]


# --- the data sets
# --------------------------------------------------------------------------------------------------


def llmbar(folder):
    """Compute accuracy, agreement of the orders and kappas of every judge and strategy from the raw
    outputs.
    """
    pairs = {row["id"]: row for row in read_matching(folder, "pairs*.jsonl")}
    winners = defaultdict(dict)
    outputs, ratings = (
        read_matching(folder, "judge_comparisons*.jsonl"),
        read_matching(folder, "judge_ratings*.jsonl"),
    )
    for row in outputs:
        side = winner(row["completion"], llmbar_format(row["judge"], row["strategy"]))
        winners[row["judge"], row["strategy"], row["id"]][row["order"]] = (
            flip(side) if row["order"] == "BA" else side
        )
    for row in ratings:
        winners[row["judge"], row["strategy"], row["id"]].update(rated_winners(row))
    out = [*reader_rows(outputs, pairs), *rating_rows(ratings, winners)]
    for reference in read_matching(folder, "judge_statistics*.jsonl"):
        run = [
            (row, winners[reference["judge"], reference["strategy"], id])
            for id, row in pairs.items()
            if row["subset"] == reference["subset"]
        ]
        out += run_rows(
            reference, [(row["label"], each.get("AB"), each.get("BA")) for row, each in run if each]
        )
    return out


def llmbar_format(judge, strategy):
    """Return the format of LLMBar's own configuration: by sentence if it asks for reasons first,
    else by line.
    """
    if strategy == "Swap":  # two prompts in turn, one of each kind
        return "llmbar"
    return (
        "llmbar_sentence"
        if strategy == "Swap_CoT" or (strategy == "CoT" and judge != "PaLM2")
        else "llmbar_line"
    )


def rated_winners(row):
    """LLMBar's rule: a tie is 2 when asked AB and 1 when asked BA, and a score that cannot be read
    gives 1 and 2.
    """
    first, second = (
        read_verdict(row[f"score_{n}_raw"].strip(), "bare_number@0-100") for n in (1, 2)
    )
    if not first or not second or not (first.excerpt + second.excerpt).isdigit():
        return {"AB": 1, "BA": 2}
    return {
        "AB": 1 if first.score > second.score else 2,
        "BA": 2 if second.score > first.score else 1,
    }


def run_rows(reference, run):
    """Compare one judge and strategy on one subset with the official figures and with those that
    others recomputed.
    """
    subject = " ".join(str(reference[key]) for key in ("subset", "judge", "strategy"))
    gold, ab, ba = ([row[i] for row in run] for i in range(3))
    forth, back = (
        share(g == w for g, w in zip(gold, ab, strict=True)),
        share(g == w for g, w in zip(gold, ba, strict=True)),
    )
    ours = {
        "n": len(run),
        "acc_AB": forth,
        "acc_BA": back,
        "acc_avg": (forth + back) / 2,
        "acc_both": share(g == a == b for g, a, b in run),
        "order_agreement": share(a == b for a, b in zip(ab, ba, strict=True)),
        "kappa_gold_AB": measures.cohen_kappa(gold, ab, missing="category"),
        "kappa_gold_BA": measures.cohen_kappa(gold, ba, missing="category"),
        "kappa_orders": measures.cohen_kappa(ab, ba, missing="category"),
        "null_winners": sum(w is None for w in [*ab, *ba]),
    }
    official = reference.get("official_statistics") or {}
    percent = {
        key: float(text.split("=")[-1].strip(" %")) / 100
        for key, text in official.items()
        if isinstance(text, str)
    }
    names = {
        "correct_False": "acc_AB",
        "correct_True": "acc_BA",
        "correct_average": "acc_avg",
        "correct_both": "acc_both",
        "equal": "order_agreement",
    }
    theirs = {f"official {key}": percent[key] for key in names if key in percent}
    if not ours["null_winners"] and "kappa_agreement" in official:
        theirs["official kappa_agreement"], names["kappa_agreement"] = (
            official["kappa_agreement"],
            "kappa_orders",
        )
    again = {f"official {key}": ours[name] for key, name in names.items()}
    out = compare("LLMBar", subject, reference, ours)
    return [
        *out,
        *compare("LLMBar", subject, theirs, again, EXACT),
        *not_compared("LLMBar", subject, reference, out),
    ]


def reader_rows(outputs, pairs):
    """Count the recorded winners that are read: with the format of each strategy, and with one
    format for all.
    """
    counts = defaultdict(Counter)
    for row in outputs:
        wanted = row["winner"] and int(row["winner"])
        for name, form in (
            ("its own format", llmbar_format(row["judge"], row["strategy"])),
            ("format llmbar", "llmbar"),
        ):
            side = winner(row["completion"], form)
            count = counts[pairs[row["id"]]["subset"], name]
            count.update(
                n=1,
                equal=(flip(side) if row["order"] == "BA" else side) == wanted,
                null=side is None,
                theirs=wanted is None,
            )
    return [
        row
        for (subset, name), count in sorted(counts.items())
        for row in reader_row(subset, name, count)
    ]


def reader_row(subset, name, count):
    if name == "its own format":
        yield Row(
            "LLMBar", f"{subset}, {name}", "recorded winners read", count["n"], count["equal"], 0
        )
        yield Row("LLMBar", f"{subset}, {name}", "unreadable", count["theirs"], count["null"], 0)
    else:
        yield Note(
            "LLMBar", f"{subset}, {name}", "recorded winners read", count["n"], count["equal"], 0
        )
        yield Note("LLMBar", f"{subset}, {name}", "unreadable", count["theirs"], count["null"], 0)


def rating_rows(ratings, winners):
    hits = Counter()
    for row in ratings:
        for order, side in winners[row["judge"], row["strategy"], row["id"]].items():
            hits.update(n=1, equal=str(side) == row[f"winner_{order}"])
    return (
        [Row("LLMBar", "pointwise ratings", "recorded winners read", hits["n"], hits["equal"], 0)]
        if hits
        else []
    )


def judgebench(folder):
    """Compute the two-game accuracy of every recorded judge, from its text or its scores."""
    pairs = {row["pair_id"]: row for row in read_matching(folder, "pairs*.jsonl")}
    games, hits = defaultdict(lambda: defaultdict(dict)), defaultdict(Counter)
    for row in read_matching(folder, "judge_outputs*.jsonl"):
        judge = row["judge"], row["judge_model"]
        side = preferred_side(row)
        games[judge][row["pair_id"]][row["order"]] = flip(side) if row["order"] == "BA" else side
        hits[judge].update(n=1, equal=side == DECISIONS.get(row["decision"]))
    out = [
        Row("JudgeBench", judge[1], "recorded decisions read", count["n"], count["equal"], 0)
        for judge, count in hits.items()
    ]
    for reference in read_matching(folder, "reference_stats*.jsonl"):
        named = dict(
            part.split("=", 1)
            for part in reference["file"].removesuffix(".jsonl").split(",")
            if "=" in part
        )
        model = plain(named["judge_model"])
        judges = [
            judge
            for judge in games
            if plain(judge[1]).endswith(model) or model.endswith(plain(judge[1]))
        ]
        for judge in judges:
            out += game_rows(
                reference, judge[1], [(pairs[id], both) for id, both in games[judge].items()]
            )
        if not judges:
            out.append(
                Row(
                    "JudgeBench",
                    named["judge_model"],
                    "its outputs are not here",
                    reference["n"],
                    None,
                    0,
                )
            )
    return out


DECISIONS = {"A>B": 1, "B>A": 2, "A=B": 0, None: None}


def plain(name):
    return "".join(filter(str.isalnum, name.lower()))


def preferred_side(row):
    """Return the side that a judge prefers, by its scores or by its text."""
    if row.get("scores"):
        first, second = row["scores"]
        return 1 if first > second else 2 if second > first else 0
    return winner(row["text"], row["judge"] if row["judge"] in OUTPUT_FORMATS else "arena_hard")


def game_rows(reference, judge, games):
    subsets = defaultdict(list)
    for pair, both in games:
        label = DECISIONS[pair["label"]]
        right, wrong = (
            sum(side == wanted for side in both.values()) for wanted in (label, flip(label))
        )
        for subset in (
            *(name for name in reference["two_game_pct"] if pair["source"].startswith(name)),
            "overall",
        ):
            subsets[subset].append(right > wrong)
    two = {f"two games, {name}": 100 * share(hits) for name, hits in subsets.items()}
    published = {f"two games, {name}": value for name, value in reference["two_game_pct"].items()}
    ours = {
        "n": len(games),
        "first_game_pct": 100
        * share(both.get("AB") == DECISIONS[pair["label"]] for pair, both in games),
        "order_consistent": sum(both.get("AB") == both.get("BA") for _, both in games),
    }
    out = [
        *compare("JudgeBench", judge, published, two, 2),
        *compare("JudgeBench", judge, reference, ours, 2),
    ]
    return [*out, *not_compared("JudgeBench", judge, {**reference, **published}, out)]


def pandalm(folder):
    """Compute the agreement of three people, and of two judges with their majority; unreadable as
    wrong, as a tie, left out.
    """
    data, reference = read_matching(folder, "pairs*.jsonl"), references(folder)
    people = list(zip(*(row["annotators"] for row in data), strict=True))
    ours = {
        "n": len(data),
        "krippendorff_alpha_nominal": measures.krippendorff_alpha(
            [row["annotators"] for row in data]
        ),
    }
    for a, b in combinations(range(len(people)), 2):
        ours[f"cohen_kappa_{a + 1}_{b + 1}"] = measures.cohen_kappa(people[a], people[b])
    out, truth = (
        compare("PandaLM", "three people", reference, ours),
        [row["majority"] for row in data],
    )
    out += not_compared("PandaLM", "three people", reference, out)
    whole = len(data) == WHOLE_PANDALM
    if whole:
        out += compare(
            "PandaLM",
            "three people",
            PUBLISHED["people"],
            {**ours, **{f"label {k}": v for k, v in Counter(truth).items()}},
            2,
        )
    for judge, numbers in reference.items():
        if isinstance(numbers, dict) and data and f"{judge}_raw" in data[0]:
            out += panda_rows(
                judge, numbers, data, truth, PUBLISHED.get(judge, {}) if whole else {}
            )
    return out


WHOLE_PANDALM = 999
# From PandaLM's README and paper, for the whole test set.
PUBLISHED = {
    "people": {
        "cohen_kappa_1_2": 0.85,
        "cohen_kappa_1_3": 0.88,
        "cohen_kappa_2_3": 0.86,
        "label 0": 105,
        "label 1": 422,
        "label 2": 472,
    },
    "gpt35": {
        "accuracy, as a tie": 0.7107,
        "macro F1, as a tie": 0.5755,
        "accuracy, as wrong": 0.6977,
        "accuracy, left out": 0.7156,
    },
    "pandalm7b": {"accuracy, as a tie": 0.6677, "macro F1, as a tie": 0.5743},
}


def panda_rows(judge, numbers, data, truth, published):
    winners = [
        winner({0: "Tie"}.get(raw, str(raw)), "pandalm")
        for raw in (row[f"{judge}_raw"] for row in data)
    ]
    tied = [0 if side is None else side for side in winners]
    known = [(true, side) for true, side in zip(truth, winners, strict=True) if side is not None]
    ours = {
        "n": len(winners),
        "accuracy": share(true == side for true, side in zip(truth, winners, strict=True)),
        "cohen_kappa": measures.cohen_kappa(truth, winners, missing="category"),
    }
    three = {
        "accuracy, as wrong": ours["accuracy"],
        "accuracy, as a tie": share(true == side for true, side in zip(truth, tied, strict=True)),
        "accuracy, left out": share(true == side for true, side in known),
        "macro F1, as a tie": measures.precision_recall_f1(truth, tied)["macro"].f1,
        "unreadable": len(winners) - len(known),
    }
    recorded = Row(
        "PandaLM",
        judge,
        "recorded verdicts read",
        len(data),
        sum(side == row[f"{judge}_verdict"] for side, row in zip(winners, data, strict=True)),
        0,
    )
    shown = [
        Note("PandaLM", judge, name, None, value)
        for name, value in three.items()
        if name not in published
    ]
    out = compare("PandaLM", judge, numbers, ours)
    out += not_compared("PandaLM", judge, numbers, out)
    return [recorded, *out, *compare("PandaLM", judge, published, three, 4), *shown]


def unieval(folder):
    """Compute three correlations for every dimension of every set."""
    out = []
    for name, dimensions in references(folder).items():
        data = read_matching(folder, f"{name}.jsonl")
        if not data:
            out.append(Note("UniEval", name, "its rows are not here", None, None))
        for dimension, reference in dimensions.items() if data else ():
            people, scores = (
                [row[side].get(dimension) for row in data] for side in ("scores", "predict_scores")
            )
            ours = {
                "n": len(both_known(people, scores)),
                "pearson": measures.pearson(people, scores),
                "spearman": measures.spearman(people, scores),
                "kendall_b": measures.kendall(people, scores),
            }
            here = compare("UniEval", f"{name} {dimension}", reference, ours)
            out += [*here, *not_compared("UniEval", f"{name} {dimension}", reference, here)]
    return out


def multi_rater(folder):
    """Compute Krippendorff's alpha for raters who differ from item to item; the ordinal one also as
    published.
    """
    out = []
    for path in sorted(folder.glob("*_reference_stats.json")):
        name = path.name.removesuffix("_reference_stats.json")
        data = read_matching(folder, f"{name}.jsonl")
        for metric, reference in json.loads(path.read_text(encoding="utf-8")).items():
            rated = [row["ratings"] for row in data if row["metric"] == metric]
            ours = {"items": len(rated), "max_raters": max(map(len, rated), default=0)}
            ours |= {
                f"alpha_{level}": measures.krippendorff_alpha(rated, level)
                for level in ("ordinal", "interval")
            }
            here = compare("JUDGE-BENCH", f"{name} {metric}", reference, ours)
            here += compare(
                "JUDGE-BENCH",
                f"{name} {metric}",
                reference,
                {"published_alpha_ordinal": ours["alpha_ordinal"]},
                EXACT,
            )
            out += [*here, *not_compared("JUDGE-BENCH", f"{name} {metric}", reference, here)]
    return out


COVERAGE = {
    "fully_covered": 1.0,
    "partially_covered": 0.5,
    "not_covered": 0.0,
    "FULL_COVERAGE": 1.0,
    "PARTIAL_COVERAGE": 0.5,
    "NO_COVERAGE": 0.0,
}


def summhay(folder):
    """Compare the coverage by six graders with people's: correlation, exact agreement, bias, and
    agreement on the bullet.
    """
    data = read_matching(folder, "summaries*.jsonl")
    return [
        row
        for judge, reference in references(folder).items()
        for row in summhay_rows(judge, reference, data)
    ]


def summhay_rows(judge, reference, data):
    both = [
        (people, theirs.get(people["insight_id"]))
        for row in data
        if (theirs := by_insight(row, judge)) is not None
        for people in row["human"]
    ]
    covered = [
        (COVERAGE[people["coverage"]], COVERAGE.get(grader["coverage"]) if grader else None)
        for people, grader in both
    ]
    truth, predicted = ([pair[side] for pair in covered] for side in (0, 1))
    linked = [(people["candidate_id"], grader["bullet_id"]) for people, grader in both if grader]
    # 0-based and 1-based
    linked = [(int(a), int(b) - 1) for a, b in linked if str(a).isdigit() and str(b).isdigit()]
    known = [(t, s) for t, s in covered if s is not None]
    ours = {
        "summaries": sum(by_insight(row, judge) is not None for row in data),
        "criteria": len(known),
        "missing": len(covered) - len(known),
        "pearson": measures.pearson(truth, predicted),
        "exact_agreement": share(t == s for t, s in known),
        "linking_accuracy": share(a == b for a, b in linked),
        "bias_mean_pred_minus_human": share(s - t for t, s in both_known(truth, predicted)),
    }
    out = compare("SummHay", judge, reference, ours)
    return [*out, *not_compared("SummHay", judge, reference, out)]


def by_insight(row, judge):
    return (
        {each["insight_id"]: each for each in row["judges"][judge]}
        if judge in row["judges"]
        else None
    )


def gpt4_pointwise(folder):
    """Compute how far three grades of the same answer differ."""
    data, reference = read_matching(folder, "*_eval*.jsonl"), references(folder)
    grades, models = [row["gpt4_scores"] for row in data], defaultdict(list)
    for row in data:
        models[row["response_model"]] += row["gpt4_scores"]
    fields = {field for row in data for field in row}
    ours = {
        "n": len(data),
        "fields_missing": sum(row.get(field) is None for row in data for field in fields),
        "all_three_equal": sum(len(set(looks)) == 1 for looks in grades),
        "range_ge_2": sum(max(looks) - min(looks) >= 2 for looks in grades),
        "mean_score": statistics.fmean(grade for looks in grades for grade in looks),
    }
    values = {
        str(value): n for value, n in Counter(grade for looks in grades for grade in looks).items()
    }
    out = compare("GPT-4 pointwise", "three scores", reference, ours)
    return [
        *out,
        *not_compared("GPT-4 pointwise", "three scores", reference, out),
        *compare("GPT-4 pointwise", "grades given", reference.get("score_values", {}), values, 0),
        *compare(
            "GPT-4 pointwise",
            "mean by model",
            reference.get("mean_by_model", {}),
            {k: statistics.fmean(v) for k, v in models.items()},
        ),
        Note(
            "GPT-4 pointwise", "three scores", "noise (sigma)", None, measures.noise_sigma(grades)
        ),
    ]


LEVELS = ("very negative", "negative", "neutral", "positive", "very positive")


def selfrefine_yelp(folder):
    """Read the model's ratings of its own rewrites, and find the best rewrite by them."""
    data, path = read_matching(folder, "traces*.jsonl"), folder / "counts.json"
    reference = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    ratings_by_trace = [[sentiment(step["judge_text"]) for step in row["steps"]] for row in data]
    pairs = [
        (rating, step)
        for row, trace in zip(data, ratings_by_trace, strict=True)
        for rating, step in zip(trace, row["steps"], strict=True)
    ]
    ours = {
        "traces": len(data),
        "steps": len(pairs),
        "unparsed_judge_texts": sum(rating is None for rating, _ in pairs),
        "final_worse_than_best": sum(ends_below_best(trace) for trace in ratings_by_trace),
        "reach_5": sum(5 in trace for trace in ratings_by_trace),
        **{f"model_{model}": n for model, n in Counter(row["model"] for row in data).items()},
    }
    labels = Row(
        "Self-Refine Yelp",
        "labels",
        "recorded labels read",
        len(pairs),
        sum(rating == step["judge_score"] for rating, step in pairs),
        0,
    )
    out = compare("Self-Refine Yelp", "traces", reference, ours, 0)
    return [labels, *out, *not_compared("Self-Refine Yelp", "traces", reference, out)]


def sentiment(text):
    made = read_verdict(text, "self_refine_sentiment")
    return LEVELS.index(made.label) + 1 if made else None


def ends_below_best(trace):
    known = [score for score in trace if score is not None]
    return bool(known) and known[-1] < max(known)


SIGNS = {
    "completion": llmbar,
    "decision": judgebench,
    "annotators": pandalm,
    "predict_scores": unieval,
    "ratings": multi_rater,
    "judges": summhay,
    "gpt4_scores": gpt4_pointwise,
    "target_sentiment": selfrefine_yelp,
}


def find_data_sets(folder):
    """Find the data sets in a folder and its subfolders, by a field in the first row of each
    file.
    """
    out = {}
    for place in sorted([folder, *(each for each in folder.iterdir() if each.is_dir())]):
        fields = {
            field
            for path in sorted([*place.glob("*.jsonl"), *place.glob("*.jsonl.gz")])
            for field in next(rows(path), {})
        }
        out.update({measure: place for sign, measure in SIGNS.items() if sign in fields})
    return out


# --- the results
# -------------------------------------------------------------------------------------------------


def report(console, compared):
    table = Table(title="References and our figures")
    for name in ("data", "of", "measure", "reference", "ours", "equal"):
        table.add_column(
            name, justify="right" if name in {"reference", "ours"} else "left", no_wrap=True
        )
    for row in compared:
        table.add_row(
            row.data,
            row.subject,
            row.measure,
            shown(row.reference, row),
            shown(row.ours, row),
            mark(row),
        )
    console.print(table)


def shown(value, row):
    return (
        "-"
        if value is None
        else str(value)
        if isinstance(value, int)
        else f"{value:.{min(row.digits, 6)}f}"
    )


def mark(row):
    return "shown only" if isinstance(row, Note) else "yes" if row.equal else "NO"


def summary(compared):
    """Return for each data set the number of references, of equal figures, and the largest known
    difference.
    """
    out = {}
    for name in dict.fromkeys(row.data for row in compared):
        with_reference = [row for row in compared if row.data == name and not isinstance(row, Note)]
        out[name] = {
            "references": len(with_reference),
            "equal": sum(row.equal for row in with_reference),
            "largest difference": max(
                (row.difference for row in with_reference if math.isfinite(row.difference)),
                default=None,
            ),
        }
    return out


def report_summary(console, compared):
    table = Table(title="References that our figures equal")
    for name in ("data", "references", "equal", "largest difference"):
        table.add_column(name, justify="left" if name == "data" else "right")
    for name, row in summary(compared).items():
        worst = row["largest difference"]
        table.add_row(
            name,
            str(row["references"]),
            str(row["equal"]),
            "-" if worst is None else f"{worst:.1e}",
        )
    console.print(table)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--brief",
        action="store_true",
        help="show only differences, figures without a reference, and the summary",
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    given = parser.parse_args()
    console, start = Console(width=None if sys.stdout.isatty() else 140), time.perf_counter()
    folders = find_data_sets(given.folder) if given.folder.is_dir() else {}
    if not folders:
        parser.error(f"there is no data set that is known here in {given.folder}")
    compared = [
        row for measure in SIGNS.values() if measure in folders for row in measure(folders[measure])
    ]
    seconds = time.perf_counter() - start
    report(
        console,
        [row for row in compared if not given.brief or isinstance(row, Note) or not row.equal],
    )
    report_summary(console, compared)
    for measure in SIGNS.values():
        if measure not in folders:
            console.print(f"{measure.__name__}: no such data here, left out")
    console.print(f"seconds: {seconds:.1f}")
    if given.json:
        rows_as_data = [
            {**asdict(row), "equal": row.equal, "counts": not isinstance(row, Note)}
            for row in compared
        ]
        given.json.write_text(
            json.dumps(
                {"summary": summary(compared), "rows": rows_as_data, "seconds": seconds}, indent=2
            )
            + "\n",
            encoding="utf-8",
        )
    sys.exit(any(not row.equal for row in compared if not isinstance(row, Note)))


if __name__ == "__main__":
    main()
