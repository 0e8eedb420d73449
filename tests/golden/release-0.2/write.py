"""How Redraft 0.2 wrote the files of this folder: `python write.py` in an empty folder, with that
release. They are never written again: `tests/cli/test_earlier_files.py` reads them as they are.

Left out are the page and the plots of the card, and the lock files.
"""

import asyncio
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

os.environ["REDRAFT_HOME"] = "."

import redraft
from redraft import ScriptedModel
from redraft.gateway.config import Retention
from redraft.gateway.keys import KeyLimits, KeyRing
from redraft.gateway.request_store import RequestEnd, RequestStore
from redraft.storage import JsonlStore
from redraft.validation import validate_sync
from redraft.validation.label_file import Label, LabelFile, LabelItem, LabelQuestion

COLOURS = ("red", "green", "blue", "black")
PROMPTS = {f"q{n}": f"Name {n} colours, one a line." for n in range(1, 5)}
LEVELS = ("full", "metadata", "full")


def answer(messages):
    """Answer with what is asked for; the first time with five words more."""
    number = int(re.search(r"Name (\d)", str(messages))[1])
    is_first = all(message["role"] != "assistant" for message in messages)
    return "\n".join([*COLOURS[:number], *["white"] * 5 * is_first])


def verdict(messages):
    """Find an answer without "white" clear."""
    is_clear = "white" not in messages[-1]["content"].split("<answer-")[-1]
    score = {
        "evidence": "",
        "change": "" if is_clear else "be brief",
        "score": 5 if is_clear else 1,
    }
    criteria = {"wording": score, "structure": score}
    return json.dumps({"reason": "so it is", "criteria": criteria, "done": is_clear})


def write_runs(model):
    """Write a finished batch, and one that its budget ends after two of four rows."""
    rows = [json.dumps({"id": id, "prompt": prompt}) + "\n" for id, prompt in PROMPTS.items()]
    Path("questions.jsonl").write_text("".join(rows))
    given = {"graders": ["words:1-4"], "editor": False}
    redraft.batch_sync("questions.jsonl", "finished.jsonl", model, **given)
    budget = redraft.Budget(calls=5)
    redraft.batch_sync(
        "questions.jsonl", "unfinished.jsonl", model, budget=budget, max_in_flight=1, **given
    )


def write_traces(model):
    """Write a trace, and the same one as `kill -9` leaves it: its fourth line is torn."""
    for name in ("trace.jsonl", "unfinished-trace.jsonl"):
        with JsonlStore(name) as store:
            redraft.refine_sync(PROMPTS["q2"], model, "words:1-4", store=store, editor=False)
    lines = Path(name).read_text().splitlines(keepends=True)
    Path(name).write_text("".join(lines[:3]) + lines[3][:20])


def write_labels():
    """Write the labels of two people, one of whom takes the last one back."""
    with LabelFile("labels.jsonl", LabelQuestion("pass", "Is it short?")) as labels:
        for n, (id, prompt) in enumerate([*PROMPTS.items()] * 3):
            text = "\n".join([*COLOURS[: n % 4 + 1], *["white"] * (5 * (n % 2))])
            item = LabelItem(f"{id}-{n}", prompt, (text,), origins=("best",))
            note = "fine" if n == 0 else ""
            for person, value in (("ann", n % 2 == 0), ("bob", n % 2 == 0 or n == 5)):
                given = (item.id, person, float(value), "random", (0,), 2.5)
                labels.add(item, Label(*given, "2026-11-28T20:00:00+00:00", note))
        labels.undo("bob")


@dataclass(frozen=True)
class Owner:
    """Who makes the requests."""

    id: str = "k1"
    name: str = "alice"


async def write_requests():
    """Write a request that is kept in full, one without its texts, and one that was passed on."""
    Path("gateway").mkdir()
    store, grades = RequestStore(Path("gateway")), {"one": 0.1, "two": 0.5, "three": 0.95}
    for n, level in enumerate(LEVELS):
        recorder = store.begin(f"request-{n}", Owner(), "refine/fast", "chat", Retention(level))
        if n == 2:
            recorder.record_exchange(b'{"messages": []}', b'{"choices": []}')
        else:
            model = ScriptedModel(list(grades))
            await redraft.refine("Count.", model, grades.get, store=recorder)
        recorder.finish(RequestEnd(200))
    await store.wait_for_commit()
    store.close()


def main():
    """Write all files."""
    model = ScriptedModel([answer] * 100)
    write_runs(model)
    write_traces(model)
    write_labels()
    judge = ScriptedModel([verdict] * 1000)
    validate_sync("labels.jsonl", "clarity", judge, cards_dir="cards").save_card()
    asyncio.run(write_requests())
    with KeyRing(Path("gateway")) as keys:
        keys.add("anna", KeyLimits(usd_per_day=5.0), ("pass/*",))
    writer = ScriptedModel([lambda messages: "red and white " * (1 + len(messages))] * 200)
    redraft.calibrate_sync(list(PROMPTS.values()) * 5, writer, "clarity", judge).save()


if __name__ == "__main__":
    main()
