"""The examples do what they say."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from in_process import run_script
from redraft import ScriptedModel

EXAMPLES = Path(__file__).parent.parent / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def verdict(done=False, **scores):
    rows = {
        name: {"evidence": "e", "change": f"better {name}", "score": score}
        for name, score in scores.items()
    }
    return json.dumps({"reason": "It is so.", "criteria": rows, "done": done})


def rank_by(texts, reason, done=False):
    """The answer of a judge that ranks the texts in this order, in whatever order they are
    shown.
    """

    def answer(messages):
        shown = {
            text: int(n)
            for n, text in re.findall(r"<answer-(\d+)-\w+>\n(.*)\n", messages[-1]["content"])
        }
        return json.dumps(
            {
                "reason": reason,
                "change": ["shorter"],
                "ranking": [shown[text] for text in texts],
                "done": done,
            }
        )

    return answer


async def test_a_users_evaluator_drives_the_loop_to_its_target(capsys):
    """The last score is above the target."""
    model = ScriptedModel([" ".join(["word"] * n) for n in (90, 60, 49)])
    result = await load("score_driven").main(model)
    assert result.score_history == pytest.approx([0.2, 0.8, 0.98])
    assert capsys.readouterr().out.splitlines()[1] == "0.98 2 True"


async def test_the_critique_example_ends_when_done(capsys):
    """Each step shows its actions."""
    better = "def total(n):\n    return n * (n + 1) // 2"
    model = ScriptedModel(
        [verdict(speed=1, readability=4), better, verdict(done=True, speed=4, readability=4)]
    )
    result = await load("critique_driven").main(model)
    out = capsys.readouterr().out
    assert (result.value, result.stop) == (better, "done")
    assert "better speed" in out
    assert "--- timestep 1: score 0.8, done: True" in out


async def test_the_template_example_compares_a_sample_with_its_improvement(capsys):
    """It shows both grades and the estimates."""
    model = ScriptedModel(
        [
            verdict(overall=1),
            "Water it when the top of the soil is dry.",
            verdict(done=True, overall=5),
        ]
    )
    result = await load("own_template").main(model)
    out = capsys.readouterr().out
    assert out.startswith(
        "The judge gave 0.2 to the original, and 1.0 to this answer:\nWater it when"
    )
    assert (
        0.2 < result.score < 1.0 and str(result.score) in out and str(result.score_interval) in out
    )
    assert '{"advice": "Water it."}' in model.messages[0][-1]["content"]
    assert result.stop == "done"


async def test_the_listwise_example_drafts_by_the_reason_of_a_ranking(capsys):
    """Every iteration is shown."""
    model = ScriptedModel(
        [
            "Crumb",
            rank_by(["Crumb"], "plain"),
            "Loaf Boat",
            rank_by(["Loaf Boat", "Crumb"], "nicer"),
            "Doughcks",
            rank_by(["Doughcks", "Loaf Boat", "Crumb"], "best", done=True),
        ]
    )
    trace = await load("listwise").main(model)
    out = capsys.readouterr().out
    assert trace.best.text == "Doughcks"
    assert "nicer" in model.messages[4][-1]["content"]
    assert "response 2, refined from 1" in out


@pytest.mark.parametrize("name", sorted(p.stem for p in EXAMPLES.glob("*.py")))
def test_examples_run_against_a_real_server(name, plain_server):
    """A user would run the file with a model's address alone."""
    done = run_script(EXAMPLES / f"{name}.py", plain_server)
    assert done.returncode == 0, done.err
    assert done.out.strip()


@pytest.mark.slow
def test_an_example_runs_in_a_process_of_its_own(plain_server):
    """The interpreter runs one of them from another folder."""
    command = [sys.executable, str(EXAMPLES / "critique_driven.py"), plain_server]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_every_example_is_tested():
    """A new example needs a test here."""
    tested = re.findall(
        r'load\("(\w+)"\)|EXAMPLES / "(\w+)\.py"', Path(__file__).read_text(encoding="utf-8")
    )
    assert {p.stem for p in EXAMPLES.glob("*.py")} <= {name for names in tested for name in names}
