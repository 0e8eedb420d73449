"""Calls every public entry from many threads at once, in a fresh process: `python public_entries.py
FOLDER THREADS`.

Each thread begins with another entry, so that all of them are also imported and used for the first
time at the same moment. Every result must be that of a call in a single thread, and no call may
raise. Python changes threads as often as it can.
"""

import asyncio
import csv
import json
import sys
import threading
import traceback
import uuid
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

FOLDER, THREADS = Path(sys.argv[1]), int(sys.argv[2])
PROMPTS = [f"Describe city {n}." for n in range(3)]


def own_path(name):
    """Return the path of a file that no other call uses."""
    return FOLDER / f"{uuid.uuid4().hex}-{name}"


def model(name="writer"):
    from redraft import ScriptedModel

    return ScriptedModel(
        [lambda messages: f"A city by a river, number {len(messages[-1]['content'])}."] * 99,
        name=name,
    )


def share(text: str) -> float:
    return min(1.0, len(text) / 60)


def refine_sync():
    import redraft

    return redraft.refine_sync(
        PROMPTS[0], model(), graders=[share, "words:3-80"], max_iterations=2
    ).score


def refine_with_noise():
    import redraft

    scores, drafts = iter([2, 3, 3, 2, 4, 3, 4] * 9), iter(f"Draft {n}." for n in range(99))
    judge = redraft.ScriptedModel([lambda _: verdict(next(scores), done=False)] * 99, name="judge")
    writer = redraft.ScriptedModel([lambda _: next(drafts)] * 99)
    plan, budget = redraft.Adaptive(), redraft.Budget(calls=12)
    result = redraft.refine_sync(
        PROMPTS[0], writer, redraft.Judge({"truth": "It is true."}), judge, plan=plan, budget=budget
    )
    return result.value, result.score, result.stop


def refine():
    import redraft

    return asyncio.run(
        redraft.refine(PROMPTS[1], model(), graders=share, drafts=2, max_iterations=1)
    ).score


def refine_many():
    import redraft

    results = asyncio.run(redraft.refine_many(PROMPTS, model(), graders=share, max_iterations=0))
    return [result.score for result in results]


def stream():
    import redraft

    async def count():
        return len(
            [
                trace
                async for trace in redraft.stream(
                    PROMPTS[2], model(), graders=share, max_iterations=1
                )
            ]
        )

    return asyncio.run(count())


def grade_sync():
    import redraft

    return redraft.grade_sync(
        ("What is it?", "A city, by a river."), graders=["no_commas", "words:2-9", share]
    ).score


def grade():
    import redraft

    return asyncio.run(
        redraft.grade(("What is it?", '{"a": 1}'), graders=["json", "characters:90"])
    ).score


def judged():
    import redraft

    judge = redraft.ScriptedModel([verdict(5, done=True)] * 9, name="judge")
    result = redraft.refine_sync(
        PROMPTS[0], model(), redraft.Judge({"truth": "It is true."}), judge, max_iterations=1
    )
    return result.score, result.stop, judge.calls


def verdict(score, *, done):
    criteria = {"truth": {"evidence": "e", "change": "more", "score": score}}
    return json.dumps({"reason": "so", "criteria": criteria, "done": done})


def typed():
    import redraft

    answers = redraft.ScriptedModel(['{"city": "Oslo", "people": 700}'] * 4)
    result = redraft.refine_sync(
        "Which city?", answers, graders=[share], answer={"type": "object"}, max_iterations=0
    )
    return result.parsed


def batch_sync():
    import redraft

    rows = [
        {"id": n, "prompt": prompt, "response": f"Text {n}, here."}
        for n, prompt in enumerate(PROMPTS)
    ]
    output = own_path("batch.jsonl")
    report = redraft.batch_sync(rows, output, graders=["no_commas"], mode="grade")
    return report.rows.in_output, sorted(
        json.loads(line)["best_score"] for line in output.read_text().splitlines()
    )


def compare_sync():
    from redraft.comparison import compare_sync, read_results

    rows = [{"id": n, "prompt": f"T{n // 2}", "score": n % 3 / 3} for n in range(12)]
    better = [{**row, "score": row["score"] + 0.2} for row in rows]
    report = compare_sync(read_results(rows), better)
    return report.verdict, report.difference.interval


def validate_sync():
    from redraft.validation import validate_sync

    rows = [{"id": n, "prompt": "Say", "response": "x" * n, "label": n / 20} for n in range(20)]
    return validate_sync(rows, share, cards_dir=own_path("cards")).headline.value


def calibration():
    from redraft.validation import fit_calibration, ppi_mean

    scores = [n / 60 for n in range(60)]
    labels = [score**2 for score in scores]
    return fit_calibration(scores, labels).expected_label(0.5), ppi_mean(
        labels[:30], scores[:30], scores[30:]
    ).interval


def labels():
    from redraft.validation import Label, LabelFile, LabelItem, LabelQuestion, read_labels

    path = own_path("labels.jsonl")
    with LabelFile(path, LabelQuestion("pass")) as file:
        item = LabelItem("1", "T", ("text",))
        file.add(item, Label("1", "ann", 1.0))
    return len(read_labels(path).labels)


def priors():
    from redraft.plans.quality.priors import Priors
    from redraft.storage.priors_store import PriorsKey, PriorsStore, StoredPriors

    store = PriorsStore.in_folder(FOLDER / "priors")
    key = PriorsKey.from_graders("model", "identity", [("judge", 1.0, "f" * 8)])
    store.save_if_more_tasks(StoredPriors.create(key, Priors(tasks=9), "a test"))
    return store.load(key).priors.tasks, len(list(store.entries()))


def requirements():
    from redraft.requirements import kinds, parse

    specs = ["words:2-9", "no_commas", "characters:40", "contains:city", "json", "sentences:1-3"]
    return len(kinds()), [parse(spec).check("A city by a river.").ok for spec in specs]


def graders():
    from redraft.graders import as_grader, entries, find_entry

    return len(list(entries())), find_entry("clarity").calls, as_grader("helpfulness").name


def templates():
    import redraft
    from redraft.base.templates import fill_template, parse_template

    plan = redraft.SelfRefine(draft_prompt="Say: {prompt}")
    result = redraft.refine_sync("this", model(), graders=share, plan=plan)
    return fill_template(parse_template("Say: {prompt}", {"prompt"}), str.upper), result.score


def readers():
    from redraft.tables import iter_rows

    return [len(list(iter_rows(FOLDER / name))) for name in ("rows.jsonl", "rows.csv")]


class Endpoint(BaseHTTPRequestHandler):
    """An endpoint with one answer."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        message = {"role": "assistant", "content": "A city by a river."}
        body = json.dumps(
            {
                "choices": [{"message": message, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 9},
            }
        ).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments):
        pass


@cache
def shared_model():
    """Return a client that all threads use."""
    import redraft

    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return redraft.connect(f"http://127.0.0.1:{server.server_address[1]}/v1#model")


@cache
def shared_grader():
    """Return a grader that all threads use."""
    from redraft.graders import Checklist

    return Checklist(["Is it a city?"])


def over_http():
    import redraft

    result = redraft.refine_sync(
        PROMPTS[0], shared_model(), graders=["words:2-9", share], max_iterations=0
    )
    return result.value, result.score, result.usage.calls


def shared_objects():
    import redraft

    answer = {"reason": "so", "q1": {"evidence": "e", "change": "", "answer": "yes"}}
    judge = redraft.ScriptedModel([json.dumps(answer)] * 9)
    return redraft.grade_sync(("Which?", "A city."), graders=shared_grader(), judge=judge).score


def connect():
    import redraft

    return redraft.connect("openai:gpt-4o-mini").name


def repair():
    from redraft.answers.json_text import repaired_json

    return repaired_json("{'a': 1,}")


ENTRIES = [
    refine_sync,
    refine_with_noise,
    refine,
    refine_many,
    stream,
    grade_sync,
    grade,
    judged,
    typed,
    batch_sync,
    compare_sync,
    validate_sync,
    calibration,
    labels,
    priors,
    requirements,
    graders,
    templates,
    readers,
    over_http,
    shared_objects,
    connect,
    repair,
]


def fill_caches():
    """Fill the caches of plans, so that each new entry drops another."""
    from redraft.plans.quality.filtering import tree_with_intervals
    from redraft.plans.quality.likelihood import score_interval
    from redraft.plans.quality.lineage import Node, Observations, TreeShape
    from redraft.plans.quality.priors import Priors
    from redraft.plans.quality.tree import cached_tree

    for n in range(1100):
        text = Node("draft", None, 1 + n / 1e6)
        cached_tree(TreeShape((text,), 1.0), Priors())
        interval = {0: (score_interval(n / 1100, 0.25),)}
        shape = TreeShape((text,), 1.0)
        tree_with_intervals(Observations(shape, (0.5,), {0: 0}, intervals=interval), Priors())


def main():
    fill_caches()
    rows = [{"id": n, "prompt": prompt} for n, prompt in enumerate(PROMPTS)]
    (FOLDER / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with (FOLDER / "rows.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["id", "prompt"])
        writer.writeheader()
        writer.writerows(rows)
    found: list[tuple[str, object]] = []
    failures: list[str] = []
    start = threading.Barrier(THREADS)

    def work(place):
        start.wait()
        for entry in [*ENTRIES[place:], *ENTRIES[:place]]:
            try:
                found.append((entry.__name__, entry()))
            except BaseException:  # everything is to be seen
                failures.append(f"{entry.__name__}: {traceback.format_exc()}")

    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=work, args=(place,)) for place in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(0.005)
    alone = {entry.__name__: entry() for entry in ENTRIES}
    failures += [
        f"{name}: {result!r}, and alone {alone[name]!r}"
        for name, result in found
        if result != alone[name]
    ]
    print("\n".join([*failures, f"{len(found)} calls"]))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
