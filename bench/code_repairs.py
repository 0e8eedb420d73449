"""What the editor for Python makes of recorded solutions that fail; `bench/code.py` runs it.

The first half of each task's tests is visible to the editor, the second half is hidden: it says what the repairs are worth.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from dataclasses import dataclass

from redraft.code import CodeRepair, PythonEditor, TestReport, Tests, arun_tests
from redraft.sync import run_sync


@dataclass(frozen=True)
class Attempt:
    """A failing program, the outcome of its tests, and its repair, if there is one."""

    id: str
    before: TestReport
    repair: CodeRepair | None
    seconds: float

    @property
    def after(self) -> TestReport:
        return self.repair.after if self.repair else self.before


def half_hidden(tests: Tests) -> Tests | None:
    """Return the tests with the second half hidden; None if there is only one, or test code as a whole."""
    count = len(tests.items)
    return tests.hide(lambda n: n >= (count + 1) // 2) if count > 1 else None


def evenly_chosen(items, limit):
    """Return `limit` of the items, from all parts of the list; all of them if there are not more."""
    count = len(items) if limit is None else min(limit, len(items))
    return [items[n * len(items) // count] for n in range(count)]


def attempts(failing, sandbox, limits, editor, limit=None):
    """Yield an attempt for each (ID, program, tests) of those whose tests can be divided."""

    async def run(code, tests, limits):
        return await arun_tests(code, tests, sandbox=sandbox, limits=limits)

    for id_, code, tests in evenly_chosen(failing, limit):
        halves = half_hidden(tests)
        if halves is not None:
            before = run_sync(run(code, halves, limits))
            started = time.perf_counter()
            repair = editor.repair(code, halves, run, limits) if not before.ok and not before.problem else None
            yield Attempt(id_, before, repair, time.perf_counter() - started)


def repair_figures(failing, sandbox, limits, limit=None, editor=None):
    """Return figures on the repairs of programs that fail."""
    editor = editor or PythonEditor()
    found = list(attempts(failing, sandbox, limits, editor, limit))
    open_ = [each for each in found if not each.before.ok]
    repaired = [each for each in open_ if each.repair]
    whole = [each for each in repaired if each.after.ok]
    right = [each for each in whole if each.after.hidden_passed == each.after.hidden_total]
    return {
        "max_runs": editor.max_runs,
        "seconds": editor.seconds,
        "failing": len(found),
        "fail_visible": len(open_),
        "repaired": len(repaired),
        "pass_visible": len(whole),
        "pass_hidden": len(right),
        "hidden_gained": sum((each.after.hidden_passed or 0) - (each.before.hidden_passed or 0) for each in repaired),
        "hidden_lost_programs": sum((each.after.hidden_passed or 0) < (each.before.hidden_passed or 0) for each in repaired),
        "runs_per_program": sum(each.repair.runs for each in repaired) / max(1, len(repaired)),
        "seconds_per_program": sum(each.seconds for each in open_) / max(1, len(open_)),
        "kinds": dict(Counter(kind_of(each) for each in whole).most_common()),
        "kinds_right": dict(Counter(kind_of(each) for each in right).most_common()),
        "repairs": [describe(each) for each in repaired],
    }


def kind_of(attempt):
    """Return the kind of a repair's last change: its note without what is particular to the program."""
    return re.sub(r"`[^`]*`|-?\d+", "...", attempt.repair.notes[-1].partition(": ")[2] or attempt.repair.notes[-1])[:60]


def describe(attempt):
    after, before = attempt.after, attempt.before
    return {
        "id": attempt.id,
        "note": "; ".join(attempt.repair.notes),
        "visible": [before.passed, after.passed, len(after.results)],
        "hidden": [before.hidden_passed, after.hidden_passed, after.hidden_total],
        "runs": attempt.repair.runs,
        "seconds": round(attempt.seconds, 2),
    }


def repair_rows(figures):
    """Return lines of a table."""
    effort = f"{figures['runs_per_program']:.0f} runs a repair, {figures['seconds_per_program']:.1f} s a failing program"
    return [
        [
            "failing programs",
            f"{figures['failing']:,}",
            f"{figures['fail_visible']:,} fail a visible test (first half of the tests)",
        ],
        ["repaired: pass the visible tests", f"{figures['pass_visible']:,}", effort],
        ["of these pass the hidden tests", f"{figures['pass_hidden']:,}", f"{figures['hidden_gained']:+,} hidden tests in all"],
    ]
