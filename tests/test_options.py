"""Invalid settings are refused before any call."""

import pytest

from redraft import Budget, ScriptedModel, refine
from redraft.errors import ConfigError

WRONG = [
    ("prices", 5),
    ("prices", {"scripted": 1}),
    ("prices", {"scripted": (1,)}),
    ("prices", {"scripted": ("a", "b")}),
    ("prices", {"scripted": (-1, 2)}),
    ("prices", {"scripted": (float("nan"), 2)}),
    ("cache", 3),
    ("store", "run.jsonl"),
    ("on_record", 3),
    ("on_step", "step"),
    ("editor", "yes"),
    ("cards_dir", 3),
]


@pytest.mark.parametrize(("name", "value"), WRONG)
async def test_invalid_settings_are_refused_by_name(name, value):
    """The error has the argument and its value; no call is made."""
    model = ScriptedModel(["a"])
    with pytest.raises(ConfigError, match=f"^{name} must .*, got ") as caught:
        await refine("q", model, lambda _: 0.5, **{name: value})
    assert repr(value if name != "prices" or value == 5 else value["scripted"]) in str(caught.value)
    assert model.calls == 0


def test_a_budget_of_tokens_is_a_whole_number():
    """Half a token is refused, half a dollar is not."""
    with pytest.raises(
        ConfigError, match=r"budget: tokens must be a whole number >= 0 or None, got 1\.5"
    ):
        Budget(tokens=1.5)
    assert Budget(usd=0.5).limits == {"usd": 0.5}


async def test_a_summary_names_the_musts_that_are_still_broken():
    """The summary does not show a high score alone where an answer breaks a must."""
    from redraft import must

    result = await refine(
        "q", ScriptedModel(["one", "two"]), [lambda _: 0.95, must("words:3")], max_iterations=1
    )
    assert "still broken: words:3" in result.summary()
    kept = await refine("q", ScriptedModel(["one two three"]), [lambda _: 0.95, must("words:3")])
    assert "broken" not in kept.summary()


def test_a_batch_without_a_model_says_what_rows_lack(tmp_path):
    """With model=None the error does not say that a model was looked for, but which column could
    have the responses.
    """
    from redraft import batch_sync

    rows = [{"id": 1, "question": "a", "text": "b"}]
    with pytest.raises(
        ConfigError, match="no response to repair: no column is known to be the response .* 'text'"
    ):
        batch_sync(rows, str(tmp_path / "out.jsonl"), False, "no_commas")
