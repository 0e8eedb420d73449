"""How often Python looks for cycles during a batch."""

import gc

import pytest

from redraft import ScriptedModel, refine_many
from redraft.garbage import RARELY, rare_collection
from redraft.runs import batch


@pytest.fixture
def set_threshold():
    """Set the threshold of the youngest objects; it is restored at the end of the test."""
    before = gc.get_threshold()
    yield lambda young: gc.set_threshold(young, *before[1:])
    gc.set_threshold(*before)


@pytest.mark.parametrize(
    ("own", "during"),
    [(700, RARELY[0]), (RARELY[0] - 1, RARELY[0]), (0, 0), (RARELY[0], RARELY[0]), (10**6, 10**6)],
)
async def test_a_batch_looks_for_cycles_rarely(tmp_path, set_threshold, own, during):
    """Unless the program looks even more rarely, or never. Afterwards it is as it was."""
    seen = []

    def grade(text):
        seen.append(gc.get_threshold()[0])
        return 1.0

    set_threshold(own)
    before = gc.get_threshold()
    rows = [{"id": "1", "prompt": "q", "response": "a"}]
    await batch(rows, tmp_path / "out.jsonl", ScriptedModel(["a"]), grade, mode="grade")
    assert (seen, gc.get_threshold()) == ([during], before)


async def test_many_refinements_look_for_cycles_rarely(set_threshold):
    """As a batch does."""
    seen = []

    def grade(text):
        seen.append(gc.get_threshold()[0])
        return 1.0

    set_threshold(700)
    await refine_many(["p", "q"], ScriptedModel(["a", "b"]), grade)
    assert (seen, gc.get_threshold()[0]) == ([RARELY[0]] * 2, 700)


def test_what_the_program_sets_meanwhile_stays(set_threshold):
    """Also if the block fails; else the threshold before is restored."""
    set_threshold(700)
    with pytest.raises(ValueError, match="x"), rare_collection():
        set_threshold(800)
        raise ValueError("x")
    assert gc.get_threshold()[0] == 800
    with pytest.raises(ValueError, match="x"), rare_collection():
        raise ValueError("x")
    assert gc.get_threshold()[0] == 800


def test_blocks_may_overlap(set_threshold):
    """The first restores the threshold."""
    set_threshold(700)
    first, second = rare_collection(), rare_collection()
    for block in (first, second):
        block.__enter__()
    first.__exit__(None, None, None)
    assert gc.get_threshold()[0] == 700
    second.__exit__(None, None, None)
    assert gc.get_threshold()[0] == 700
