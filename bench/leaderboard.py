"""How often the intervals of a leaderboard contain the truth, and how often equal variants are told
apart.

    python bench/leaderboard.py [--repetitions 200]

Simulated judges compare simulated answers in both orders, with ties, with a preference for the
first position, and with answers whose quality all comparisons of a row have in common. Printed is,
for each world, the share of 95 % intervals of the strengths that contain the true ones: those of
`bradley_terry` (a jackknife over rows), of the observed information, which takes comparisons as
independent and ties as games with the spread of wins, and of a bootstrap over rows (percentiles).
Then the share of leaderboards of equal variants on which any two are told apart.
"""

from __future__ import annotations

import argparse
import tempfile
from itertools import combinations
from math import sqrt
from pathlib import Path
from random import Random

import numpy as np

from redraft.comparison import leaderboard_sync
from redraft.loop.records import Comparison
from redraft.validation import bradley_terry

WORLDS = (  # variants, rows, largest strength, spread of answers, ties
    (3, 20, 0.5, 1.0, 0.3),
    (3, 20, 0.5, 0.0, 0.3),
    (4, 50, 0.5, 1.0, 0.3),
    (6, 30, 0.8, 1.0, 0.5),
    (3, 200, 1.0, 1.0, 0.3),
    (3, 20, 1.5, 1.0, 0.0),
)
BOOTSTRAP = 200  # samples


def play(rng, strengths, rows, spread, tie):
    """Return the share of each comparison that its first variant won: pairs by rows."""
    quality = strengths + spread * rng.gumbel(size=(rows, len(strengths)))
    shares = []
    for i, j in combinations(range(len(strengths)), 2):
        gap = quality[:, i] - quality[:, j]
        orders = [gap + 0.7 * rng.logistic(size=rows) + bias for bias in (-0.3, 0.3)]
        shares.append(np.mean([np.where(abs(x) < tie, 0.5, x > 0) for x in orders], axis=0))
    return np.array(shares)


def strengths_of(shares, count, picked=None):
    """Return `bradley_terry` of these comparisons, or of the rows that are picked."""
    shares = shares if picked is None else shares[:, picked]
    pairs = list(combinations(range(count), 2))
    first, second = (np.repeat([pair[n] for pair in pairs], shares.shape[1]) for n in (0, 1))
    rows = np.tile(np.arange(shares.shape[1]), len(pairs))
    found = bradley_terry(first.tolist(), second.tolist(), shares.ravel(), clusters=rows.tolist())
    return [found[n] for n in range(count)]


def information_errors(found, rows):
    """Return the standard errors by the observed information, of a round robin."""
    values = np.array([each.value for each in found])
    chances = 1 / (1 + np.exp(values[None, :] - values[:, None]))
    weights = rows * chances * (1 - chances)
    np.fill_diagonal(weights, 0)
    return np.sqrt(np.diag(np.linalg.pinv(np.diag(weights.sum(1)) - weights, 1e-10)))


def coverage(world, repetitions):
    """Return the share of intervals that contain the truth, by method."""
    count, rows, largest, spread, tie = world
    true = np.linspace(-largest, largest, count)
    truth = [
        s.value
        for s in strengths_of(play(np.random.default_rng(1), true, 20_000, spread, tie), count)
    ]
    hits = {"jackknife": [], "information": [], "bootstrap": []}
    for seed in range(repetitions):
        rng = np.random.default_rng(1000 + seed)
        shares = play(rng, true, rows, spread, tie)
        found = strengths_of(shares, count)
        if any(each.interval is None for each in found):
            continue
        errors = information_errors(found, rows)
        samples = np.array(
            [
                [s.value for s in strengths_of(shares, count, rng.integers(0, rows, rows))]
                for _ in range(BOOTSTRAP if seed < repetitions / 4 else 0)
            ],
            float,
        )
        for n, value in enumerate(truth):
            hits["jackknife"].append(found[n].interval[0] <= value <= found[n].interval[1])
            hits["information"].append(abs(found[n].value - value) <= 1.96 * errors[n])
            if len(samples):
                low, high = np.nanpercentile(samples[:, n], [2.5, 97.5])
                hits["bootstrap"].append(low <= value <= high)
    return {name: np.mean(each) for name, each in hits.items()}


class Coin:
    """A comparer that ranks answers by chance."""

    name = "coin"
    model_free = True

    async def compare(self, task, candidates, ask):
        best_first = sorted(candidates, key=lambda c: Random(c.text).random())
        return Comparison(tuple(c.id for c in best_first))


def false_alarms(count, rows, repetitions):
    """Return the share of leaderboards of equal variants on which any two are told apart."""
    alarms = 0
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(repetitions):
            runs = [
                [
                    {"id": str(k), "prompt": f"T{k}", "response": f"{seed} {n} {k}", "score": None}
                    for k in range(rows)
                ]
                for n in range(count)
            ]
            board = leaderboard_sync(runs, graders=Coin(), journal=Path(folder, f"{seed}.journal"))
            alarms += any(d.verdict != "undecided" for d in board.differences.values())
    return alarms / repetitions


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--repetitions", type=int, default=200)
    repetitions = parser.parse_args().repetitions
    print("variants  rows  strength  spread  ties   jackknife  information  bootstrap")
    for world in WORLDS:
        found = coverage(world, repetitions)
        count, rows, largest, spread, tie = world
        figures = "  ".join(f"{found[name]:9.3f}" for name in found)
        print(f"{count:8} {rows:5} {largest:9} {spread:7} {tie:5}   {figures}", flush=True)
    boards = 5 * repetitions
    for count, rows in ((3, 20), (4, 40)):
        share, error = false_alarms(count, rows, boards), 1.96 * sqrt(0.05 * 0.95 / boards)
        allowed = f"0.05 +- {error:.3f} at most"
        print(f"{count} equal variants, {rows} rows: told apart {share:.3f} ({allowed})")


if __name__ == "__main__":
    main()
