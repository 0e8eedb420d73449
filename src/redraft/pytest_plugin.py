"""The pytest plugin: the fixture `redraft_gate` fails a test if B is worse than A.

The mark `redraft` has its settings.

pytest loads this module at every start, so it imports nothing slow.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .comparison import ComparisonReport

MARK = (
    "redraft(undecided='fail', **settings): the settings of the fixture redraft_gate in this "
    "test, as of redraft.comparison.compare"
)
ON_UNDECIDED = ("pass", "fail", "skip")
LINE = "redraft.line"  # the property of a test that has the verdict in a sentence


@dataclass
class RedraftGate:
    """Compares two runs, models or prompts, and fails the test if B is worse than A.

    Attributes:
        settings: The settings of the mark `redraft`; those of a call go before them.
        undecided: What to do if more rows are needed to decide: "fail", "pass" or "skip".
        report: The last report, None before the first call.
    """

    settings: dict[str, Any]
    undecided: str = "fail"
    report: ComparisonReport | None = None
    _properties: list[tuple[str, object]] = field(default_factory=list, repr=False)

    def __call__(self, a: Any, b: Any, tasks: Any = None, **settings: Any) -> ComparisonReport:
        """Return the report if B is not worse than A by more than the margin; else fail the test.

        The arguments are those of `redraft.comparison.compare`. Calls are kept in pytest's cache,
        unless `journal` names a file, so that only what has changed is called again. Each test has
        a journal of its own there.
        """
        from .base.text import strip_control_sequences
        from .comparison import compare_sync

        self.report = report = compare_sync(a, b, tasks, **{**self.settings, **settings})
        line, *figures = [
            strip_control_sequences(text) for text in (report.gate_line(), *report.summary())
        ]
        difference = f"{report.value:.6g}"
        self._properties += [
            ("redraft.gate", report.gate),
            ("redraft.difference", difference),
            (LINE, line),
        ]
        if report.gate == "worse" or (report.gate == "undecided" and self.undecided == "fail"):
            pytest.fail("\n".join([line, *figures]), pytrace=False)
        if report.gate == "undecided" and self.undecided == "skip":
            pytest.skip(line)
        return report


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark."""
    config.addinivalue_line("markers", MARK)


@pytest.fixture
def redraft_gate(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> RedraftGate:
    """Compare two runs, models or prompts: `redraft_gate(a, b)` fails the test if B is worse than
    A.
    """
    from .errors import ConfigError

    settings: dict[str, Any] = {}
    for mark in reversed(list(request.node.iter_markers("redraft"))):
        if mark.args:
            raise ConfigError(
                f"the mark redraft takes keywords, such as margin=0.03, got {mark.args[0]!r}"
            )
        if given := [name for name in ("a", "b", "tasks") if name in mark.kwargs]:
            raise ConfigError(
                f"the mark redraft has only settings: give {given[0]} in the call of redraft_gate"
            )
        settings |= mark.kwargs
    undecided = settings.pop("undecided", "fail")
    if undecided not in ON_UNDECIDED:
        raise ConfigError(f"undecided must be one of {', '.join(ON_UNDECIDED)}, got {undecided!r}")
    settings.setdefault("journal", _journal(request, tmp_path_factory))
    return RedraftGate(settings, undecided, _properties=request.node.user_properties)


def _journal(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the journal of a test in pytest's cache; in a temporary folder if there is no cache.

    Tests do not share one, because pytest-xdist runs them in several processes, and a journal
    belongs to one process.
    """
    cache = getattr(request.config, "cache", None)
    folder = (
        Path(cache.mkdir("redraft")) if cache is not None else tmp_path_factory.mktemp("redraft")
    )
    return (
        folder
        / f"{sha256(request.node.nodeid.encode('utf-8', 'surrogatepass')).hexdigest()[:24]}.journal"
    )


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """List what the gates found, also those in the processes of pytest-xdist."""
    reports = [
        report
        for group in terminalreporter.stats.values()
        for report in group
        if getattr(report, "when", "") == "call"
    ]
    lines = [value for report in reports for name, value in report.user_properties if name == LINE]
    if lines:
        terminalreporter.section("redraft gates")
        for line in lines:
            terminalreporter.write_line(" ".join(str(line).split()))
