"""Bootstrap intervals of these tests are drawn 200 times in place of 1000: a fifth of the time, and as clear where they must be."""

import pytest

from redraft.validation import report


@pytest.fixture(autouse=True)
def few_draws(monkeypatch):
    """What a bootstrap gives at full length is tested with the measures, which are told how often to draw."""
    monkeypatch.setattr(report, "BOOTSTRAP_SAMPLES", 200)
