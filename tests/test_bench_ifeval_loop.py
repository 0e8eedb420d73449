"""bench/ifeval_loop.py, with a model whose answers are known."""

import asyncio
import importlib
import json
from pathlib import Path

import pytest

import redraft

BENCH = Path(__file__).parent.parent / "bench"
ROWS = [
    {
        "key": 1,
        "prompt": "No commas.",
        "instruction_id_list": ["punctuation:no_comma"],
        "kwargs": [{}],
    },
    {
        "key": 2,
        "prompt": "Say blue.",
        "instruction_id_list": ["keywords:existence", "punctuation:no_comma"],
        "kwargs": [{"keywords": ["blue"]}, {}],
    },
    {
        "key": 3,
        "prompt": "Be brief.",
        "instruction_id_list": ["length_constraints:number_sentences"],
        "kwargs": [{}],
    },
]


@pytest.fixture
def bench(monkeypatch):
    """The script, imported from its folder."""
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("ifeval_loop")


@pytest.fixture
def prompts(bench, tmp_path):
    """What the script takes from a folder with these rows."""
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return bench.covered_prompts(tmp_path, 60)


def writer(messages):
    """Answer with a comma; say blue only in a refinement."""
    return "It is blue, I think." if "grey" in str(messages) else "It is grey, I think."


def test_only_prompts_whose_constraints_are_all_covered_are_taken(prompts):
    """The verdict on a number of sentences needs nltk."""
    assert sorted(row["key"] for row, _ in prompts) == [1, 2]


def test_each_policy_is_judged_by_the_official_definitions(bench, prompts, capsys):
    """Repairs remove the comma, and only a refinement says blue."""
    found = asyncio.run(bench.measure(prompts, [redraft.connect(writer)], {}, 2, lambda _: None))
    figures = bench.summary(found)
    shares = {policy: of["share"] for policy, of in figures.items()}
    assert shares == {
        "asked once": 0,
        "first draft": 0,
        "best of four": 0,
        "best of four, repaired": 0.75,
        "Redraft": 1,
        "Redraft, no repairs": 0.25,
    }
    assert (
        figures["Redraft"]["gain"],
        figures["Redraft"]["error"],
        figures["Redraft"]["calls"],
    ) == (1, 0, 1.5)
    bench.report(figures)
    assert ["Redraft", "100%", "100%", "+1.00", "0.00", "1.5"] in [
        line.split() for line in capsys.readouterr().out.splitlines()
    ]
