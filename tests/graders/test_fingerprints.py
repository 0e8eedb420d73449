"""Fingerprints identify what was measured: they survive moves and renames of code and change only
on purpose.
"""

import ast
import importlib
import json
import os
import pkgutil
import textwrap
from pathlib import Path

import pytest

import redraft
from redraft.answers.editor import FormEditor
from redraft.base.own_code import fingerprint_name, is_own, stable_name
from redraft.graders import (
    Cascade,
    Checklist,
    Gate,
    Judge,
    Jury,
    Minimum,
    Pairwise,
    Ranker,
    RankingJury,
    RequirementGrader,
    Rubric,
    WeightedMean,
    as_grader,
    entries,
    router,
)
from redraft.graders.fingerprint import grader_fingerprint
from redraft.loop.stopping import (
    StopRule,
    done,
    max_iterations,
    patience,
    repairs_only,
    target,
    tool_calls,
)
from redraft.plans.adaptive import Adaptive
from redraft.plans.quality.priors import Priors
from redraft.plans.self_refine import BestOfN, SelfRefine
from redraft.requirements import KINDS, parse
from redraft.train.features import graders_of
from redraft.train.grader import TrainedGrader
from redraft.train.head import Head

GOLDEN = Path(__file__).parents[1] / "golden" / "fingerprints.json"
ADVICE = """
These fingerprints changed. Every validation card, learned prior and finished row that depends on them becomes stale for all users.
If you did not mean to change how these grade: restore the names and defaults of settings, the prompts, and the arguments of
`fingerprint_name`. If you did: say so in CHANGELOG.md, and write the new values with

    python tests/graders/test_fingerprints.py
"""
RUBRIC = Rubric.from_data({"criteria": {"truth": "It is true."}}, "r", "r")
COMPOSITES = {
    "cascade": lambda: Cascade("words:-5", "judge"),
    "checklist of questions": lambda: Checklist(["Is it short?", ("Is it true?", 2)]),
    "gate": lambda: Gate("words:-5", "judge"),
    "judge with a rubric": lambda: Judge(RUBRIC),
    "judge by expectation": lambda: Judge(RUBRIC, scoring="expectation"),
    "judge of separate criteria": lambda: Judge(RUBRIC, criteria_mode="separate"),
    "judge with a template": lambda: Judge(template="{query} {response}"),
    "judge with a form of its own": lambda: Judge(
        template="{query} {response}", scale=(1, 10), read="score"
    ),
    "judge with decimals": lambda: Judge(
        template="{query} {response}", scale=(1.0, 10.0), read="score"
    ),
    "jury": lambda: Jury(["judge", "words:-5"], "trimmed", repeats=2),
    "minimum": lambda: Minimum(["words:-5", "characters:-20"]),
    "pairwise with a template": lambda: Pairwise(
        template="{response_a} {response_b}", read="winner"
    ),
    "pairwise with a rubric": lambda: Pairwise(rubric=RUBRIC),
    "pairwise without a rubric": Pairwise,
    "ranker with a rubric": lambda: Ranker(rubric=RUBRIC),
    "ranker without a rubric": Ranker,
    "ranking jury": lambda: RankingJury(["ranker", "pairwise"]),
    "router": lambda: router(
        {"short": "words:-5", "other": "judge"}, by="metadata.kind", default="clarity"
    ),
    "trained": lambda: TrainedGrader(
        graders_of(["judge", "readability"], "http://127.0.0.1:1/v1#vectors"),
        Head(
            ("judge", "readability"),
            (0.5,) * 3,
            (0.2,) * 3,
            (0.0,) * 2,
            (1.0,) * 2,
            (1.0,) * 3,
            0.1,
            ((1.0,) * 4,),
            1,
            2.0,
        ),
        "trained:NAME",
    ),
    "weighted mean": lambda: WeightedMean({"words:-5": 1, "judge": 2}),
}
PLANS = {
    "adaptive": Adaptive,
    "adaptive with priors": lambda: Adaptive(priors=Priors(draft_mean=0.5)),
    "best of n": lambda: BestOfN(3),
    "best of n, several kept": lambda: BestOfN(3, keep=2),
    "self refine": SelfRefine,
    "stop rules": lambda: SelfRefine(
        target(0.8) | done() | patience(3) | max_iterations(4) | tool_calls() | repairs_only(),
        drafts=2,
        repairs=False,
    ),
}
EDITORS = {
    "form editor": FormEditor,
    "form editor, nothing lossy": lambda: FormEditor(allow_lossy=False),
}


def fingerprint(value):
    return grader_fingerprint(value, lambda model: f"identity of {model}")


def registry_graders():
    """Return every named grader except requirements, which have a list of their own, and those that
    are trained, which are read from a file.
    """
    return {
        entry.name: entry.example
        for entry in entries()
        if entry.mode != "requirement" and entry.origin == "redraft" and entry.name != "trained"
    }


@pytest.fixture
def current_fingerprints(monkeypatch):
    """Return all fingerprints as they are now."""
    # the embedding grader looks for a key when it is made
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary")
    return all_fingerprints()


def all_fingerprints():
    return {
        "graders": {
            name: fingerprint(as_grader(spec)) for name, spec in sorted(registry_graders().items())
        }
        | {name: fingerprint(make()) for name, make in COMPOSITES.items()},
        "requirements": {
            name: fingerprint(RequirementGrader(parse(kind.example)))
            for name, kind in sorted(KINDS.items())
        },
        "plans": {name: fingerprint(make()) for name, make in PLANS.items()},
        "editors": {name: fingerprint(make()) for name, make in EDITORS.items()},
    }


def test_fingerprints_equal_the_golden_file(current_fingerprints):
    """The file covers all named graders, all kinds of requirements, the plans and the editor."""
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    differences = [
        f"{kind}: {name}"
        for kind in current_fingerprints | golden
        for name in sorted(current_fingerprints[kind].keys() | golden[kind].keys())
        if current_fingerprints[kind].get(name) != golden[kind].get(name)
    ]
    assert not differences, f"{ADVICE}\nchanged: {', '.join(differences)}"


def test_different_things_have_different_fingerprints(current_fingerprints):
    """No two share a fingerprint."""
    for marks in (
        current_fingerprints[kind] for kind in ("graders", "requirements", "plans", "editors")
    ):
        assert len(set(marks.values())) == len(marks)


SOURCE = """
    from dataclasses import dataclass
    from redraft.base.own_code import fingerprint_name

    @fingerprint_name("example")
    @dataclass(frozen=True)
    class {name}:
        limit: int = 5
        name: str = "example"
        model_free = True

        async def grade(self, task, candidate, ask):
            return {body}

    @fingerprint_name("rule")
    def {rule}(trace):
        return {body}
"""


def own_module(module, name, rule, body):
    """Return a class and a function as Redraft would define them in this module."""
    namespace = {"__name__": module}
    exec(textwrap.dedent(SOURCE.format(name=name, rule=rule, body=body)), namespace)
    return namespace[name], namespace[rule]


@pytest.mark.parametrize(
    ("module", "name", "rule", "body"),
    [
        ("redraft.graders.elsewhere", "Example", "rule", "None"),
        ("redraft.graders.example", "Renamed", "renamed", "None"),
        ("redraft.moved", "Renamed", "renamed", "None"),
        ("redraft.graders.example", "Example", "rule", "1"),
    ],
    ids=["moved", "renamed", "moved and renamed", "edited"],
)
def test_fingerprint_survives_moves_renames_and_edits(module, name, rule, body):
    """A class, and a function inside a plan, keep their fingerprint; a changed setting changes
    it.
    """
    before, rule_before = own_module("redraft.graders.example", "Example", "rule", "None")
    after, rule_after = own_module(module, name, rule, body)
    assert fingerprint(before()) == fingerprint(after())
    assert fingerprint(before()) != fingerprint(after(limit=6))
    assert fingerprint(SelfRefine(StopRule((rule_before,)))) == fingerprint(
        SelfRefine(StopRule((rule_after,)))
    )


def test_stable_name_is_not_inherited():
    """A subclass is another grader."""

    @fingerprint_name("parent")
    class Parent:
        """A grader with a stable name."""

    class Child(Parent):
        """A subclass without a stable name."""

    assert stable_name(Parent) == "parent"
    assert stable_name(Child).endswith("Child")


def own_classes():
    """Return all classes that Redraft defines."""
    for info in pkgutil.walk_packages(redraft.__path__, "redraft."):
        needs_framework = info.name.startswith("redraft.adapters.")
        if info.name.endswith(("__main__", "worker")) or needs_framework:
            continue
        module = importlib.import_module(info.name)
        yield from (
            c for c in vars(module).values() if isinstance(c, type) and c.__module__ == info.name
        )


def test_every_grader_has_a_stable_name():
    """Every grader, comparer and plan of Redraft has a stable name."""
    graders = {
        c
        for c in own_classes()
        if callable(getattr(c, "grade", None)) or callable(getattr(c, "compare", None))
    }
    public = {
        c
        for c in graders
        if not getattr(c, "_is_protocol", False) and not c.__name__.startswith("_")
    }
    assert {c.__qualname__ for c in public if "__fingerprint_name__" not in vars(c)} == set()
    assert {Judge, Ranker, Jury} < public
    assert all(map(is_own, public))


@pytest.mark.slow
def test_stable_names_are_unique():
    """No stable name occurs twice in the source."""
    names = [
        call.args[0].value
        for path in Path(redraft.__file__).parent.rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id == "fingerprint_name"
    ]
    assert len(names) > 40
    assert sorted(set(names)) == sorted(names)


if __name__ == "__main__":
    os.environ["OPENAI_API_KEY"] = "sk-canary"
    GOLDEN.write_text(json.dumps(all_fingerprints(), indent=2) + "\n", encoding="utf-8")
