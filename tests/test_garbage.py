"""How often Python looks for cycles of objects is the program's choice, not Redraft's."""

import gc
import subprocess
import sys

import pytest

from redraft import ScriptedModel, refine_many
from redraft.runs import batch


async def test_a_library_call_leaves_the_collector_as_it_is(tmp_path):
    """Also while it runs."""
    before, seen = gc.get_threshold(), []

    def grade(text):
        seen.append(gc.get_threshold())
        return 1.0

    rows = [{"id": "1", "prompt": "q", "response": "a"}]
    await batch(rows, tmp_path / "out.jsonl", ScriptedModel(["a"]), grade, mode="grade")
    await refine_many(["p", "q"], ScriptedModel(["a", "b"]), grade)
    assert seen == [before] * 3
    assert gc.get_threshold() == before


@pytest.mark.slow
@pytest.mark.parametrize(("command", "is_set"), [("batch", True), ("serve", False), ("run", False)])
def test_only_the_command_batch_looks_for_cycles_rarely(command, is_set):
    """Its process, and no server's."""
    code = (
        "import gc, sys\n"
        "from redraft.cli import main\n"
        "before = gc.get_threshold()\n"
        f"sys.argv[1:] = [{command!r}, '--help']\n"
        "main()\n"
        "print(gc.get_threshold() != before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == str(is_set)
