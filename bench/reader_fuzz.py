"""Test the reader of verdicts with malformed ones: made-up scores, slow answers, and the share that
it can read.

    python bench/reader_fuzz.py [--answers 100000] [--seed 0] [--forms 500] [--valid 5000] [--before
    FOLDER] [--json FILE]

Verdicts of every judge are changed at random (tests/graders/malformed_verdicts.py) and read; an
independent oracle then looks for the result in the answer. Valid ones in loose forms
(tests/graders/loose_verdicts.py) must be read at the first ask. The exit code is 1 if anything was
made up or took more than 100 ms, or if a valid verdict was not read. FOLDER is another checkout of
Redraft, whose reader is tested with the same verdicts with format errors.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from time import thread_time

from tables import table, write

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "graders"))

import malformed_verdicts as malformed

from redraft.graders.judging.structured import MAX_CHARS, UnreadableOutput, read_object

SLOW = 0.1  # seconds of CPU
SIZES = [4_000, 8_000, 16_000, 32_000, 64_000, 128_000, MAX_CHARS]


def fuzz(answers, seed):
    """Count how the answers were read; measure the longest time."""
    rng, counts, longest = random.Random(seed), Counter(), 0.0
    for _ in range(answers):
        schema, text = malformed.malformed_verdict(rng)
        seconds = _seconds(text)
        longest = max(longest, seconds)
        honest = malformed.examine(schema, text)
        counts[{None: "unreadable", True: "read", False: "made up"}[honest]] += 1
        counts["slow"] += seconds > SLOW
    return {**counts, "answers": answers, "longest_ms": 1000 * longest}


def forms(each, seed):
    """Return, by format error, the share of verdicts that is read, and the number that is read as
    another verdict.
    """
    found = {}
    for form in malformed.FORMS:
        rng = random.Random(seed)
        results = Counter(malformed.of_form(form, rng) for _ in range(each))
        found[form] = {"read": results[True] / each, "otherwise": results[None]}
    return found


def valid(verdicts, seed):
    """Return how many valid verdicts in loose forms are read, as what they say or otherwise, by
    kind of verdict.
    """
    rng, counts = random.Random(seed), {}
    for _ in range(verdicts):
        kind, result = malformed.of_valid(rng)
        counts.setdefault(kind, Counter())[
            {True: "read", False: "unreadable", None: "otherwise"}[result]
        ] += 1
    return {kind: dict(found) for kind, found in sorted(counts.items())}


def other_checkout(folder, each, seed):
    """Return the same figures for another checkout."""
    command = [sys.executable, __file__, "--forms", str(each), "--seed", str(seed), "--only-forms"]
    paths = {"PYTHONPATH": str(Path(folder, "src").resolve())}
    return json.loads(
        subprocess.run(command, env=os.environ | paths, stdout=subprocess.PIPE, check=True).stdout
    )


def sizes():
    """Measure the CPU milliseconds for each hostile answer, by size; the best of three."""
    return {
        name: [
            1000 * min(_seconds(malformed.hostile_answer(name, n)) for _ in range(3)) for n in SIZES
        ]
        for name in malformed.NAMES
    }


def _seconds(text):
    start = thread_time()
    with suppress(UnreadableOutput):
        read_object(text)
    return thread_time() - start


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--answers", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--forms", type=int, default=500, help="verdicts with each format error")
    parser.add_argument("--valid", type=int, default=5_000, help="valid verdicts in loose forms")
    parser.add_argument("--before", metavar="FOLDER", help="another checkout of Redraft")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--only-forms", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main():
    given = arguments()
    by_form = forms(given.forms, given.seed)
    if given.only_forms:
        print(json.dumps(by_form))
        return 0
    before = other_checkout(given.before, given.forms, given.seed) if given.before else {}
    counts, by_size, by_kind = (
        fuzz(given.answers, given.seed),
        sizes(),
        valid(given.valid, given.seed),
    )
    report(counts, by_form, before, by_size, by_kind)
    if given.json:
        write(
            given.json,
            dict(counts=counts, forms=by_form, before=before, sizes=by_size, valid=by_kind),
        )
    otherwise = sum(found["otherwise"] for found in by_form.values())
    slow = counts["slow"] + sum(max(times) > 1000 * SLOW for times in by_size.values())
    unread = sum(n for found in by_kind.values() for result, n in found.items() if result != "read")
    return int(bool(counts.get("made up") or otherwise or slow or unread))


def report(counts, by_form, before, by_size, by_kind):
    print(f"{counts['answers']} malformed verdicts\n")
    must = {"read": "", "unreadable": "", "made up": "0", "slow": "0"}
    rows = [[what, str(counts.get(what, 0)), wanted] for what, wanted in must.items()]
    table(
        ["", "found", "must be"], [*rows, ["longest, CPU ms", f"{counts['longest_ms']:.1f}", "100"]]
    )
    print(
        "\nvalid verdicts in loose forms: how many are read at the first ask, and how many as "
        "another verdict\n"
    )
    totals = {
        "all": {
            key: sum(found.get(key, 0) for found in by_kind.values())
            for key in ("read", "unreadable", "otherwise")
        }
    }
    rows = [[kind, *_shares(found)] for kind, found in (by_kind | totals).items()]
    table(["", "verdicts", "read", "as another"], rows)
    print(
        "\nverdicts that are wrong in form alone: how many can be read, and how many were read as "
        "another verdict\n"
    )
    rows = [[form, *_shown(found), *_shown(before.get(form))] for form, found in by_form.items()]
    table(["", "read", "as another", "before", "as another"], rows)
    print("\nhostile answers that take longest: CPU ms by characters\n")
    slowest = sorted(by_size.items(), key=lambda found: -max(found[1]))[:12]
    table(
        ["", *map(str, SIZES)], [[name, *(f"{ms:.1f}" for ms in times)] for name, times in slowest]
    )


def _shares(found):
    all_ = sum(found.values())
    return [str(all_), f"{found.get('read', 0) / all_:.2%}", str(found.get("otherwise", 0))]


def _shown(found):
    return [f"{found['read']:.1%}", str(found["otherwise"])] if found else ["-", "-"]


if __name__ == "__main__":
    sys.exit(main())
