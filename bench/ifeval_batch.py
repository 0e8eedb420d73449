"""Repair IFEval's answers as one batch, kill it in the middle, resume it, and export preference
pairs.

    python bench/ifeval_batch.py FOLDER [--limit N] [--keep DIR] [--json FILE]

FOLDER is that of ifeval.py, and requirements are derived from the data as there: each row has its
own. All steps use the command line: `redraft batch` without a model, `kill -9` when half of the
rows are written, the same command again, then `redraft export`. The exit code is 1 when the output
differs from an undisturbed run's.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from ifeval import load
from tables import table, write

REDRAFT = [sys.executable, "-m", "redraft"]


def write_rows(path, answers, prompts):
    """Write a row for each answer that is not empty and has a covered constraint. Return the
    answers by row ID.
    """
    by_id = {
        f"{a.key}:{a.model}": a
        for a in answers
        if a.text.strip() and any(c.requirements for c in a.constraints)
    }
    with path.open("w") as file:
        for id, answer in by_id.items():
            specs = [
                requirement.spec for each in answer.constraints for requirement in each.requirements
            ]
            row = {
                "id": id,
                "prompt": prompts[answer.key],
                "response": answer.text,
                "requirements": specs,
            }
            file.write(json.dumps(row) + "\n")
    return by_id


def command(source, output):
    return [
        *REDRAFT,
        "batch",
        source,
        "-o",
        output,
        "--journal",
        f"{output}.journal",
        "--model",
        "none",
    ]


def run(*command_line):
    """Return the stdout of a command, and the seconds that it took."""
    began = time.perf_counter()
    done = subprocess.run(
        [str(part) for part in command_line], check=False, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(
            f"{' '.join(map(str, command_line[2:]))} ended with "
            f"{done.returncode}:\n{done.stderr[-3000:]}"
        )
    return done.stdout, time.perf_counter() - began


def kill_halfway(command_line, output, rows):
    """Kill the command when half of the rows are written. Return the number of rows written."""
    process = subprocess.Popen(
        [str(part) for part in command_line], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while process.poll() is None and lines(output) < rows // 2:
        time.sleep(0.005)
    process.kill()
    process.wait()
    return lines(output)


def lines(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


def measure(folder, answers, prompts):
    source, plain, output, pairs = (
        folder / f"{name}.jsonl" for name in ("rows", "plain", "repaired", "pairs")
    )
    by_id = write_rows(source, answers, prompts)
    _, undisturbed = run(*command(source, plain))
    written = kill_halfway(command(source, output), output, len(by_id))
    _, resumed = run(*command(source, output))
    run(
        *REDRAFT,
        "export",
        "repaired.jsonl",
        "-o",
        pairs,
        "--format",
        "preference",
        "--journal",
        f"{output}.journal",
    )
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    repaired = [(by_id[row["id"]], row["best"]) for row in rows if row["best"] != row["response"]]
    return {
        "rows": len(by_id),
        "rows written": len(rows),
        "finished before the kill": written,
        "seconds undisturbed": round(undisturbed, 1),
        "seconds after the kill": round(resumed, 1),
        "output equal to the undisturbed run's": output.read_bytes() == plain.read_bytes(),
        "errors": sum(bool(row["error"]) for row in rows),
        "mean score of the answers": mean(row["initial_score"] for row in rows),
        "mean score of the best": mean(row["best_score"] for row in rows),
        "answers that keep all": sum(keeps_all(by_id[row["id"]], row["response"]) for row in rows),
        "best that keep all": sum(keeps_all(by_id[row["id"]], row["best"]) for row in rows),
        "repaired": len(repaired),
        "broken by a repair, officially": sum(breaks(answer, text) for answer, text in repaired),
        "preference pairs": lines(pairs),
    }


def keeps_all(answer, text):
    return all(each.holds(text) for each in answer.constraints if each.requirements)


def breaks(answer, text):
    """Return whether a constraint that was met by the official definition no longer is."""
    return any(
        each.official(answer.text) and each.official(text) is False for each in answer.constraints
    )


def mean(scores):
    known = [score for score in scores if score is not None]
    return round(sum(known) / len(known), 4) if known else None


def prompts_in(folder):
    """Return the prompt of each key."""
    with (folder / "prompts.jsonl").open(encoding="utf-8") as file:
        return {row["key"]: row["prompt"] for row in map(json.loads, file)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--limit", type=int, help="only the first LIMIT answers")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the files in DIR")
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE")
    given = parser.parse_args()
    answers, prompts = load(given.folder, given.limit), prompts_in(given.folder)
    with TemporaryDirectory() as folder:
        if given.keep:
            given.keep.mkdir(parents=True, exist_ok=True)
        found = measure(given.keep or Path(folder), answers, prompts)
    table(["", "found"], [[name, str(value)] for name, value in found.items()])
    write(given.json, found)
    sys.exit(not found["output equal to the undisturbed run's"])


if __name__ == "__main__":
    main()
