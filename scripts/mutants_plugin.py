"""A plugin of pytest for the runs of `mutants.py`.

MUTANTS_REPORT names the file for the outcomes, MUTANTS_TESTS a file with the tests to run, in this
order.
"""

import json
import os
import resource
import sys
from pathlib import Path

import pytest

MOST_MEMORY = 8 << 30


def pytest_configure(config: pytest.Config) -> None:
    """Let no change take all memory of the machine. Of several processes, the first reports."""
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(
        resource.RLIMIT_DATA, (MOST_MEMORY if most == resource.RLIM_INFINITY else most, most)
    )
    if hasattr(config, "workerinput"):
        os.environ.pop("MUTANTS_REPORT", None)


def pytest_collection() -> None:
    """Let Hypothesis try the same examples each time, look for no smaller ones, and take its
    time.
    """
    if "hypothesis" in sys.modules:
        from hypothesis import HealthCheck, Phase, settings

        phases, checks = [Phase.explicit, Phase.generate], [HealthCheck.too_slow]
        settings.register_profile(
            "mutants", settings(), phases=phases, derandomize=True, suppress_health_check=checks
        )
        settings.load_profile("mutants")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if path := os.environ.get("MUTANTS_TESTS"):
        places = {test: place for place, test in enumerate(json.loads(Path(path).read_text()))}
        items[:] = sorted(
            (item for item in items if item.nodeid in places), key=lambda item: places[item.nodeid]
        )


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    path = os.environ.get("MUTANTS_REPORT")
    if path and (report.when == "call" or not report.passed):
        outcome = (
            "by time" if report.failed and "Timeout (>" in report.longreprtext else report.outcome
        )
        with Path(path).open("a") as file:
            file.write(json.dumps([report.nodeid, report.duration, outcome]) + "\n")
