"""Bootstrap intervals of these tests use 200 samples in place of 1000, which takes a fifth of the
time.
"""

import pytest

from redraft.validation import report


@pytest.fixture(autouse=True)
def few_bootstrap_samples(monkeypatch):
    """Use fewer samples; the tests of the statistics set the number themselves."""
    monkeypatch.setattr(report, "BOOTSTRAP_SAMPLES", 200)
