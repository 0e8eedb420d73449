"""What a run is expected to take, before anything is asked, beside what it then takes."""

import json

import pytest

from redraft import Budget, Priors
from redraft.errors import ConfigError
from redraft.graders import Checklist, Jury, Pairwise
from redraft.runs import BatchRun

from .test_online_priors import Writer, judged

PROMPT = "question one, of forty letters or more. "


def table(path, n=20, **columns):
    rows = ({"id": f"r{i}", "prompt": PROMPT, **columns} for i in range(n))
    path.write_text("".join(json.dumps({name: f"{text} {i}" for name, text in row.items()}) + "\n" for i, row in enumerate(rows)))
    return path


def run_of(folder, rows, graders=judged, **given):
    return BatchRun.of(rows, folder / "out.jsonl", Writer(), graders, **given)


async def fair(messages):
    """Of two answers it prefers the one shown first."""
    return json.dumps({"reason": "", "change": [], "winner": "first", "done": False})


SETTINGS = {
    "as it comes": {},
    "plain": {"noise_aware": False},
    "drafts": {"drafts": 3, "max_iterations": 2},
    "drafts alone": {"max_iterations": 0},
    "best": {"mode": "best", "n": 3},
    "no gain is too small": {"min_expected_gain": 0.0, "max_iterations": 6},
    "learned that nothing helps": {"priors": Priors(gain=0.0, retention=1.0, gain_sd=0, step_sd=0, draft_sd=0)},
    "a jury": {"graders": Jury([judged, lambda text: 0.5, judged])},
    "final check": {"graders": [judged, Pairwise(model=fair)], "drafts": 2},
    "computed": {"graders": "words:5-9"},
}


@pytest.mark.parametrize("answered", [False, True])
@pytest.mark.parametrize("name", SETTINGS)
async def test_what_is_likely_lies_between_the_ends_and_so_does_what_is_taken(tmp_path, name, answered):
    """Calls, tokens and USD; a run takes no fewer calls and no more than was said."""
    rows = table(tmp_path / "rows.jsonl", **({"response": "An answer of a few words."} if answered else {}))
    run = run_of(tmp_path, rows, **{"prices": {"writer": (1.0, 2.0), "fair": (1.0, 2.0)}, **SETTINGS[name]})
    told = await run.prepare()
    for what in ("calls", "tokens", "cost"):
        low, high = getattr(told, what)
        assert low <= getattr(told.expected, what) <= high
    usage = (await run.go()).usage
    assert told.calls[0] <= usage.calls - usage.retried_calls <= told.calls[1]
    if told.calls[0] < told.calls[1] and name != "learned that nothing helps":
        assert told.calls[0] < told.expected.calls


async def test_likely_goes_by_what_is_believed(tmp_path):
    """Where refining is known to bring nothing, no refinement is likely."""
    rows = table(tmp_path / "rows.jsonl")
    usual = (await run_of(tmp_path, rows).prepare()).expected
    useless = Priors(gain=0.0, retention=1.0, gain_sd=0, step_sd=0, draft_sd=0)
    assert (await run_of(tmp_path, rows, priors=useless).prepare()).expected.calls == 40 < usual.calls


async def test_likely_goes_by_the_lengths_of_texts(tmp_path):
    """Longer prompts and responses, also in other scripts, and a lower max_tokens."""
    plain = (await run_of(tmp_path, table(tmp_path / "a.jsonl")).prepare()).expected
    longer = (await run_of(tmp_path, table(tmp_path / "b.jsonl", prompt=PROMPT * 50)).prepare()).expected
    foreign = (await run_of(tmp_path, table(tmp_path / "c.jsonl", prompt="問" * 2000)).prepare()).expected
    shorter = (await run_of(tmp_path, table(tmp_path / "a.jsonl"), max_tokens=20).prepare()).expected
    answered = (await run_of(tmp_path, table(tmp_path / "d.jsonl", response="word " * 2000)).prepare()).expected
    assert plain.calls == longer.calls == foreign.calls == shorter.calls
    assert foreign.tokens > longer.tokens - 1500 > plain.tokens > shorter.tokens
    assert answered.tokens / answered.calls > 2 * plain.tokens / plain.calls


@pytest.mark.parametrize("limits", [{"calls": 50}, {"tokens": 9000}, {"usd": 0.001}])
async def test_a_budget_bounds_it(tmp_path, limits):
    """No more is likely than may be spent."""
    run = run_of(tmp_path, table(tmp_path / "rows.jsonl"), budget=Budget(**limits), prices={"writer": (1.0, 2.0)})
    told = await run.prepare()
    [(what, limit)] = limits.items()
    name = "cost" if what == "usd" else what
    assert getattr(told, name)[1] == limit
    assert getattr(told.expected, name) <= limit


async def test_what_is_unknown_stays_unknown(tmp_path):
    """A cost without a price; anything likely of a plan that is not ours."""
    rows = table(tmp_path / "rows.jsonl")
    told = await run_of(tmp_path, rows).prepare()
    assert (told.cost, told.expected.cost) == (None, None)
    assert (await run_of(tmp_path, rows, plan=lambda trace: []).prepare()).expected is None


async def test_it_is_said_how_rows_begin(tmp_path):
    """How many have a response; where none has, which columns there are and how one is stated."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "a", "answer": "b"}\n{"prompt": "c", "answer": null}\n')
    assert "1 rows have a response to start with, 1 get a first draft" in (await run_of(tmp_path, rows).prepare()).summary
    rows.write_text('{"prompt": "a", "said": "b"}\n')
    told = "no column is known to be the response (response, completion, answer, output are); state it by --column response=NAME. There are 'prompt', 'said'"
    assert any(told in line for line in (await run_of(tmp_path, rows).prepare()).summary)
    with pytest.raises(ConfigError, match="There are 'prompt', 'said'"):
        await run_of(tmp_path, rows, mode="grade").prepare()


async def test_what_a_grader_asks_once_for_a_task_is_in_the_range(tmp_path):
    """A checklist that draws up its own questions makes one more call for each row, likely and at both ends."""
    rows = table(tmp_path / "rows.jsonl")
    given = await run_of(tmp_path, rows, Checklist(questions=["Is it short?"])).prepare()
    drawn = await run_of(tmp_path, rows, Checklist()).prepare()
    assert [b - a for a, b in zip(given.calls, drawn.calls, strict=True)] == [20, 20]
    assert drawn.expected.calls - given.expected.calls == 20
