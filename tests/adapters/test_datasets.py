"""Scores as columns of a Hugging Face data set."""

import pytest

from .answers import ANSWERS, QUICK, six_words


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 2])
def test_an_unknown_score_is_null(first, tmp_path):
    """Also in the first row, from which the type of a column would be read."""
    datasets = pytest.importorskip("datasets", reason="no datasets")
    from redraft.adapters.datasets import add_scores

    datasets.disable_progress_bars()
    rows = [{"q": q, "a": a, "ref": None} for q, a in ANSWERS.items()][first:]
    given = datasets.Dataset.from_list(
        rows,
        features=datasets.Features(dict.fromkeys(("q", "a", "ref"), datasets.Value("string"))),
    )
    scored = add_scores(given, six_words, prompt="q", response="a", reference="ref", **QUICK)
    expected = ([1.0, 0.0, None] * 3)[first:]
    assert scored["redraft_score"][:] == expected
    assert scored.features["redraft_score"] == datasets.Value("float64")
    assert scored["redraft_feedback"][expected.index(None)] == "six_words: GradingError"
    assert scored["q"][:] == given["q"][:]
