"""bench/real_model.py, with a model whose answers are known."""

import asyncio
import importlib
import json
from collections import Counter
from pathlib import Path

import pytest

from redraft.protocols import Reply

BENCH = Path(__file__).parent.parent / "bench"
ROW = {
    "key": 1,
    "prompt": "Say blue.",
    "instruction_id_list": ["keywords:existence", "punctuation:no_comma"],
    "kwargs": [{"keywords": ["blue"]}, {}],
}


@pytest.fixture
def bench(monkeypatch):
    """The script, imported from its folder."""
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("real_model")


@pytest.fixture
def prompts(bench, tmp_path):
    """What the script takes from a folder with one prompt."""
    (tmp_path / "prompts.jsonl").write_text(json.dumps(ROW) + "\n")
    return bench.covered_prompts(tmp_path, 60)


class Writer:
    """Answers with a comma; says blue in the third draft and in every refinement."""

    name = identity = "writer"

    def __init__(self):
        self.asked = Counter()

    async def complete(self, request):
        kind = "refinement" if len(request.messages) > 1 else "draft"
        self.asked[kind] += 1
        is_blue = kind == "refinement" or self.asked[kind] == 3
        return Reply("It is blue, I think." if is_blue else "It is grey, I think.")


def test_plans_are_compared_by_the_same_drafts(bench, prompts, capsys):
    """No plan gets a draft of its own: four are written for all of them, and the third has the
    word. Without repairs the comma is left.
    """
    model = Writer()
    found = asyncio.run(bench.measure(prompts, model, bench.PLANS, 64, lambda *_: None))
    assert model.asked["draft"] == 4
    kept = {name: (answer.quality, answer.calls) for name, answer in found[0].items()}
    assert kept["draft"] == (0, 1)
    assert kept["best of four"] == (0, 4)
    assert kept["best of four, repaired"] == (1, 4)
    assert kept["default"] == (1, 2)
    fresh = {n: kept[bench.FRESH.format(n)] for n in bench.DRAFTS}
    assert fresh == {1: (0, 1), 2: (0, 2), 3: (1, 3), 4: (1, 3)}
    bench.report(bench.summary(found))
    assert "fresh drafts with repairs, at the calls of the default: -1.000" in (
        capsys.readouterr().out
    )


def test_differences_are_paired_by_prompt(bench):
    """A plan that is .5 below the default in both prompts has no error, though the prompts
    differ.
    """
    found = [
        {"default": bench.Answer(q, q, 2), "draft": bench.Answer(q - 0.5, q, 1)} for q in (1.0, 0.5)
    ]
    plans = bench.summary(found)["plans"]
    assert plans["draft"]["above"] == (-0.5, 0.0)
    assert plans["draft"]["all_kept"].error == pytest.approx(0.25)


def test_a_folder_without_prompts_is_a_usage_error(bench, tmp_path, capsys):
    """The message names the file that is missing; exit code 2."""
    with pytest.raises(SystemExit) as ended:
        bench.arguments([str(tmp_path)])
    assert ended.value.code == 2
    assert "has no prompts.jsonl" in capsys.readouterr().err
