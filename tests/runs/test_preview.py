"""The estimate of a run before its first call, compared with what the run then takes."""

import json

import pytest

from redraft import Budget
from redraft.errors import ConfigError
from redraft.graders import Checklist, Jury, Pairwise, Reward
from redraft.plans.quality.priors import Priors
from redraft.runs import BatchRun

from .test_online_priors import Writer, digit_judge

PROMPT = "question one, of forty letters or more. "


def table(path, n=20, **columns):
    rows = ({"id": f"r{i}", "prompt": PROMPT, **columns} for i in range(n))
    path.write_text(
        "".join(
            json.dumps({name: f"{text} {i}" for name, text in row.items()}) + "\n"
            for i, row in enumerate(rows)
        )
    )
    return path


async def second_judge(text, model):
    """Another judge with one call."""
    return len(await model(f"Grade that: {text}")) / 100


def run_of(folder, rows, graders=digit_judge, **given):
    return BatchRun.from_arguments(rows, folder / "out.jsonl", Writer(), graders, **given)


async def position_biased(messages):
    """A comparison that prefers the answer shown first."""
    return json.dumps({"reason": "It is so.", "change": [], "winner": "first", "done": False})


SETTINGS = {
    "as it comes": {},
    "plain": {"noise_aware": False},
    "drafts": {"drafts": 3, "max_iterations": 2},
    "drafts alone": {"max_iterations": 0},
    "best": {"mode": "best", "n": 3},
    "no gain is too small": {"min_expected_gain": 0.0, "max_iterations": 6},
    "learned that nothing helps": {
        "priors": Priors(gain=0.0, retention=1.0, gain_sd=0, step_sd=0, draft_sd=0)
    },
    "a jury": {"graders": Jury([digit_judge, lambda text: 0.5, digit_judge])},
    "final check": {"graders": [digit_judge, Pairwise(model=position_biased)], "drafts": 2},
    "computed": {"graders": "words:5-9"},
}


@pytest.mark.parametrize("answered", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.slow(but_each=8)
async def test_the_estimate_and_the_actual_usage_are_within_the_range(tmp_path, name, answered):
    """This holds for calls, tokens and USD."""
    rows = table(
        tmp_path / "rows.jsonl", **({"response": "An answer of a few words."} if answered else {})
    )
    run = run_of(
        tmp_path,
        rows,
        **{"prices": {"writer": (1.0, 2.0), "position_biased": (1.0, 2.0)}, **SETTINGS[name]},
    )
    told = await run.prepare()
    for what in ("calls", "tokens", "cost"):
        low, high = getattr(told, what)
        assert low <= getattr(told.expected, what) <= high
    usage = (await run.go()).spending.usage
    assert told.calls[0] <= usage.calls - usage.retried_calls <= told.calls[1]
    if told.calls[0] < told.calls[1] and name != "learned that nothing helps":
        assert told.calls[0] < told.expected.calls


async def test_the_estimate_depends_on_the_priors(tmp_path):
    """Where the priors say that refining does not help, no refinement is expected."""
    rows = table(tmp_path / "rows.jsonl")
    usual = (await run_of(tmp_path, rows).prepare()).expected
    useless = Priors(gain=0.0, retention=1.0, gain_sd=0, step_sd=0, draft_sd=0)
    assert (
        (await run_of(tmp_path, rows, priors=useless).prepare()).expected.calls == 40 < usual.calls
    )


@pytest.mark.slow
async def test_the_estimate_depends_on_the_lengths_of_texts(tmp_path):
    """Longer prompts and responses raise it, also in other scripts, and a lower max_tokens lowers
    it.
    """
    plain = (await run_of(tmp_path, table(tmp_path / "a.jsonl")).prepare()).expected
    longer = (
        await run_of(tmp_path, table(tmp_path / "b.jsonl", prompt=PROMPT * 50)).prepare()
    ).expected
    foreign = (
        await run_of(tmp_path, table(tmp_path / "c.jsonl", prompt="問" * 2000)).prepare()
    ).expected
    shorter = (
        await run_of(tmp_path, table(tmp_path / "a.jsonl"), max_tokens=20).prepare()
    ).expected
    answered = (
        await run_of(tmp_path, table(tmp_path / "d.jsonl", response="word " * 2000)).prepare()
    ).expected
    assert plain.calls == longer.calls == foreign.calls == shorter.calls
    assert foreign.tokens > longer.tokens - 1500 > plain.tokens > shorter.tokens
    assert answered.tokens / answered.calls > 2 * plain.tokens / plain.calls


@pytest.mark.parametrize("limits", [{"calls": 50}, {"tokens": 9000}, {"usd": 0.001}])
async def test_the_estimate_is_bounded_by_the_budget(tmp_path, limits):
    """No more is expected than may be spent."""
    run = run_of(
        tmp_path,
        table(tmp_path / "rows.jsonl"),
        budget=Budget(**limits),
        prices={"writer": (1.0, 2.0)},
    )
    told = await run.prepare()
    [(what, limit)] = limits.items()
    name = "cost" if what == "usd" else what
    assert getattr(told, name)[1] == limit
    assert getattr(told.expected, name) <= limit


# tokens read and written: of 40 letters, of an answer, and of a judge
DRAFT, GRADE = ((10, 300), (10 + 300 + 300, 250))
FIGURES = {
    "drafts": ({}, "", [DRAFT, GRADE]),
    "short drafts": ({"max_tokens": 100}, "", [(10, 100), (10 + 100 + 300, 250)]),
    "drafts and responses": ({}, "half", [(10, 20), (10 + 20 + 300, 250), (10 + 20 + 300, 250)]),
    "responses": ({"mode": "grade"}, "all", [(10 + 20 + 300, 250)] * 2),
    "long responses": ({"mode": "grade", "max_tokens": 15}, "all", [(10 + 15 + 300, 250)] * 2),
    "two judges": ({"graders": [digit_judge, second_judge]}, "", [DRAFT, GRADE, GRADE]),
    "a jury": (
        {"graders": Jury([digit_judge, second_judge, lambda text: 0.5])},
        "",
        [DRAFT, GRADE, GRADE],
    ),
    "a model of scores": (
        {"graders": Reward("http://127.0.0.1:9/classify#r")},
        "",
        [DRAFT, (10 + 300, 0)],
    ),
    "computed": ({"graders": "words:5-9"}, "", [DRAFT]),
}


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize(("settings", "responses", "calls"), FIGURES.values(), ids=FIGURES)
async def test_the_estimate_without_refinements_is_a_sum_of_calls(
    tmp_path, settings, responses, calls
):
    """Of 4 bytes a token, and what a draft or a verdict usually has; responses are as long as they
    are.
    """
    rows = [
        {
            "prompt": "p" * 40,
            **({"response": "r" * 80} if responses == "all" or (responses and n % 2) else {}),
        }
        for n in range(20)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = {"max_iterations": 0, "prices": {"writer": (1.0, 2.0)}, **settings}
    if given.get("mode") == "grade":
        del given["max_iterations"]
    told = await run_of(
        tmp_path, tmp_path / "rows.jsonl", given.pop("graders", digit_judge), **given
    ).prepare()
    rows_with_call = 10 if responses else 20
    read, written = (rows_with_call * sum(each[which] for each in calls) for which in (0, 1))
    assert (told.expected.calls, told.expected.tokens) == (
        rows_with_call * len(calls),
        read + written,
    )
    if settings.get("graders") is None:
        assert told.expected.cost == pytest.approx((read + 2 * written) / 1e6)


async def test_unknown_estimates_are_none(tmp_path):
    """The cost is unknown without a price, and the estimate for a user's own plan."""
    rows = table(tmp_path / "rows.jsonl")
    told = await run_of(tmp_path, rows).prepare()
    assert (told.cost, told.expected.cost) == (None, None)
    assert (await run_of(tmp_path, rows, plan=lambda trace: []).prepare()).expected is None


async def test_the_preview_says_how_rows_begin(tmp_path):
    """It counts rows with a response; where none has one, it lists the columns and says how to name
    one.
    """
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "a", "answer": "b"}\n{"prompt": "c", "answer": null}\n')
    assert (
        "1 row has a response to start with, 1 gets a first draft"
        in (await run_of(tmp_path, rows).prepare()).summary
    )
    rows.write_text('{"prompt": "a", "said": "b"}\n')
    told = "no column is known to be the response (response, completion, answer, output are); state it by --column response=NAME. There are 'prompt', 'said'"
    assert any(told in line for line in (await run_of(tmp_path, rows).prepare()).summary)
    with pytest.raises(ConfigError, match="There are 'prompt', 'said'"):
        await run_of(tmp_path, rows, mode="grade").prepare()


async def test_calls_of_a_grader_for_the_whole_task_are_in_the_range(tmp_path):
    """A checklist that writes its own questions makes one more call for each row, in the estimate
    and both bounds.
    """
    rows = table(tmp_path / "rows.jsonl")
    given = await run_of(tmp_path, rows, Checklist(questions=["Is it short?"])).prepare()
    drawn = await run_of(tmp_path, rows, Checklist()).prepare()
    assert [b - a for a, b in zip(given.calls, drawn.calls, strict=True)] == [20, 20]
    assert drawn.expected.calls - given.expected.calls == 20
