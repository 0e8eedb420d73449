"""Measure how many of IFEval's constraints a model's answers keep: asked once, best of four, and
refined by default.

    python bench/ifeval_loop.py FOLDER --model NAME [--prompts 60] [--max-tokens 256] [--texts FILE]
    [--json FILE]

FOLDER holds IFEval's prompts.jsonl, as for ifeval.py (google-research/instruction_following_eval,
CC BY 4.0). Of the prompts whose constraints all have a requirement and an official definition that
needs neither nltk nor langdetect, the script takes `--prompts` in the order of a hash. Only
requirements grade, so no model judges. Answers are then checked by the official definitions,
strictly, which ifeval.py implements without Redraft's requirements.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from hashlib import sha256
from pathlib import Path

import redraft
from ifeval import OFFICIAL, constraint, rows
from redraft.protocols import Request
from tables import table, write

ALONE = "asked once"
FIRST = "first draft"
# settings of `refine`; all of them draft from the same prompt, which states the requirements
POLICIES = {
    "best of four": {"plan": redraft.BestOfN(4), "editor": False},
    "best of four, repaired": {"plan": redraft.BestOfN(4)},
    "Redraft": {},
    "Redraft, no repairs": {"editor": False},
}


class SharedReplies:
    """A model whose replies are kept, so that all policies get the same reply to the same request,
    also a truncated one.
    """

    def __init__(self, model):
        self.model, self.name, self.identity, self.replies = model, model.name, model.identity, {}

    async def complete(self, request):
        key = json.dumps([request.messages, request.sample_index])
        if key not in self.replies:
            self.replies[key] = await self.model.complete(request)
        return self.replies[key]


def covered_prompts(folder, number):
    """Return prompts whose constraints are all covered, each with its constraints."""
    found = [
        (row, list(map(constraint, row["instruction_id_list"], row["kwargs"])))
        for row in rows(folder / "prompts.jsonl")
    ]
    covered = [
        (row, each)
        for row, each in found
        if all(c.requirements and c.kind in OFFICIAL for c in each)
    ]
    return sorted(covered, key=lambda pair: sha256(str(pair[0]["key"]).encode()).digest())[:number]


async def measure_prompt(row, constraints, model, settings):
    """Return what each policy answers to a prompt: the text, the share of constraints that it
    keeps, and the calls.
    """
    model, answers = SharedReplies(model), {}

    def add(policy, text, calls, **more):
        kept = [c.official(text) for c in constraints]
        answers[policy] = {
            "text": text,
            "kept": kept,
            "share": statistics.mean(kept),
            "calls": calls,
            **more,
        }

    specs = [requirement.spec for each in constraints for requirement in each.requirements]
    graders = [redraft.must(spec) for spec in dict.fromkeys(specs)]
    add(
        ALONE,
        (
            await model.complete(Request(({"role": "user", "content": row["prompt"]},), **settings))
        ).text,
        1,
    )
    for policy, own in POLICIES.items():
        result = await redraft.refine(row["prompt"], model, graders, **settings, **own)
        if policy == "best of four":
            add(FIRST, result.trace.candidates[0].text, 1)
        scores = [[c.role, c.text, result.trace.scores.get(c.id)] for c in result.trace.candidates]
        add(
            policy,
            result.value,
            result.usage.calls,
            stop=str(result.stop),
            score=result.score,
            candidates=scores,
        )
    return {"key": row["key"], "prompt": row["prompt"], "requirements": specs, "answers": answers}


async def measure(prompts, models, settings, in_flight, note):
    """Measure all prompts, `in_flight` at a time on each model."""
    free = asyncio.Queue()
    for model in models * in_flight:
        free.put_nowait(model)

    async def one(row, constraints):
        model = await free.get()
        found = await measure_prompt(row, constraints, model, settings)
        free.put_nowait(model)
        note(found)
        return found

    return await asyncio.gather(*(one(*each) for each in prompts))


def summary(found):
    """Return the figures by policy; the difference is to the model asked once, paired by prompt."""
    figures = {}
    for policy in found[0]["answers"]:
        shares = [each["answers"][policy]["share"] for each in found]
        gains = [
            share - each["answers"][ALONE]["share"]
            for share, each in zip(shares, found, strict=True)
        ]
        figures[policy] = {
            "share": statistics.mean(shares),
            "all kept": statistics.mean(share == 1 for share in shares),
            "gain": statistics.mean(gains),
            "error": statistics.stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else None,
            "calls": statistics.mean(each["answers"][policy]["calls"] for each in found),
        }
    return figures


def report(figures):
    lines = []
    for policy, of in figures.items():
        gain = (
            ["", ""]
            if policy == ALONE or of["error"] is None
            else [f"{of['gain']:+.2f}", f"{of['error']:.2f}"]
        )
        lines.append(
            [policy, f"{of['share']:.0%}", f"{of['all kept']:.0%}", *gain, f"{of['calls']:.1f}"]
        )
    table(["", "constraints kept", "prompts with all kept", "gain", "s.e.", "calls"], lines)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--model",
        action="append",
        required=True,
        help="the model; repeatable, for copies of one model",
    )
    parser.add_argument("--prompts", type=int, default=60, help="number of prompts")
    parser.add_argument(
        "--max-tokens", type=int, default=256, help="maximum number of tokens in one answer"
    )
    parser.add_argument(
        "--in-flight", type=int, default=2, help="number of prompts at a time on each model"
    )
    parser.add_argument(
        "--texts",
        type=Path,
        help="keep each prompt with its answers in this file; those in it are not measured again",
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    given = parser.parse_args()
    began = time.perf_counter()
    prompts = covered_prompts(given.folder, given.prompts)
    models = [redraft.connect(name) for name in given.model]

    earlier = list(rows(given.texts)) if given.texts and given.texts.exists() else []
    left = [
        (row, each)
        for row, each in prompts
        if row["key"] not in {found["key"] for found in earlier}
    ]

    def note(found):
        if given.texts:
            with given.texts.open("a", encoding="utf-8") as file:
                file.write(json.dumps(found) + "\n")

    found = earlier + asyncio.run(
        measure(left, models, {"max_tokens": given.max_tokens}, given.in_flight, note)
    )
    figures = summary(found)
    constraints = sum(len(each["answers"][ALONE]["kept"]) for each in found)
    print(
        f"{models[0].name}, {len(found)} prompts with {constraints} constraints, at most "
        f"{given.max_tokens} tokens an answer\n"
    )
    report(figures)
    print(f"\n{time.perf_counter() - began:.0f} s")
    write(
        given.json,
        {
            "model": models[0].name,
            "prompts": len(found),
            "constraints": constraints,
            "policies": figures,
        },
    )


if __name__ == "__main__":
    main()
