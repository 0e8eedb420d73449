"""What the editor for Python makes of recorded solutions that fail; `bench/code.py` runs it.

The first half of each task's tests is visible to the editor, the second half is hidden: it says
what the repairs are worth.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from dataclasses import dataclass
from hashlib import sha256

import numpy as np

from redraft.code import CodeRepair, PythonEditor, TestReport, Tests, arun_tests
from redraft.sync import run_sync

BOOTSTRAPS = 10_000


@dataclass(frozen=True)
class Attempt:
    """A failing program, the outcome of its tests, and its repair, if there is one."""

    id: str
    task_id: str
    before: TestReport
    repair: CodeRepair | None
    seconds: float

    @property
    def is_right(self) -> bool:
        """Whether the repair passes all tests, the hidden ones too."""
        return (
            self.repair is not None
            and self.after.ok
            and self.after.hidden_passed == self.after.hidden_total
        )

    @property
    def after(self) -> TestReport:
        return self.repair.after if self.repair else self.before


def half_hidden(tests: Tests) -> Tests | None:
    """Return the tests with the second half hidden; None if there is only one, or test code as a
    whole.
    """
    count = len(tests.items)
    return tests.hide(lambda n: n >= (count + 1) // 2) if count > 1 else None


def in_hash_order(failing):
    """Return the programs ordered by a hash of task and program, so that any first part is a sample
    that no order decides.
    """
    return sorted(
        failing,
        key=lambda each: sha256(f"{each[1]}\0{each[2]}".encode("utf-8", "replace")).hexdigest(),
    )


def attempts(failing, sandbox, limits, editor, total_seconds=None):
    """Yield an attempt for each (ID, task, program, tests) whose tests can be divided; no further
    one starts after the seconds.
    """

    async def run(code, tests, limits):
        return await arun_tests(code, tests, sandbox=sandbox, limits=limits)

    end = float("inf") if total_seconds is None else time.perf_counter() + total_seconds
    for id_, task_id, code, tests in failing:
        halves = half_hidden(tests)
        if halves is not None and time.perf_counter() < end:
            before = run_sync(run(code, halves, limits))
            started = time.perf_counter()
            repair = (
                editor.repair(code, halves, run, limits)
                if not before.ok and not before.problem
                else None
            )
            yield Attempt(id_, task_id, before, repair, time.perf_counter() - started)


def repair_figures(failing, sandbox, limits, *, limit=None, total_seconds=None, editor=None):
    """Return figures on the repairs of programs that fail: of all, or of the first `limit` in the
    order of a hash.
    """
    editor = editor or PythonEditor()
    found = list(attempts(in_hash_order(failing)[:limit], sandbox, limits, editor, total_seconds))
    open_ = [each for each in found if not each.before.ok]
    repaired = [each for each in open_ if each.repair]
    whole = [each for each in repaired if each.after.ok]
    right = [each for each in whole if each.is_right]
    changes = [
        (each.after.hidden_passed or 0) - (each.before.hidden_passed or 0) for each in repaired
    ]
    return {
        "max_runs": editor.max_runs,
        "seconds": editor.seconds,
        "programs_that_fail": len(failing),
        "failing": len(found),
        "fail_visible": len(open_),
        "tasks": len({each.task_id for each in open_}),
        "repaired": len(repaired),
        "pass_visible": len(whole),
        "pass_hidden": len(right),
        "repaired_share_interval": interval_by_task(
            [(each.task_id, each in whole) for each in open_]
        ),
        "right_share_interval": interval_by_task([(each.task_id, each.is_right) for each in whole]),
        "hidden_gained": sum(change for change in changes if change > 0),
        "hidden_lost": -sum(change for change in changes if change < 0),
        "hidden_lost_programs": sum(change < 0 for change in changes),
        "runs_per_program": sum(each.repair.runs for each in repaired) / max(1, len(repaired)),
        "seconds_per_program": sum(each.seconds for each in open_) / max(1, len(open_)),
        "longest_seconds": max((each.seconds for each in open_), default=0.0),
        "kinds": dict(Counter(kind_of(each) for each in whole).most_common()),
        "kinds_right": dict(Counter(kind_of(each) for each in right).most_common()),
        "repairs": [describe(each) for each in repaired],
    }


def interval_by_task(outcomes):
    """Return the 95 % interval of a share of (task, truth) pairs, by a bootstrap of tasks; None if
    there are none.

    Programs for one task are often alike, so the tasks are drawn, and not the programs.
    """
    tasks = {}
    for task, truth in outcomes:
        tasks.setdefault(task, []).append(truth)
    if not tasks:
        return None
    groups = np.array([(sum(group), len(group)) for group in tasks.values()])
    drawn = np.random.default_rng(0).integers(len(groups), size=(BOOTSTRAPS, len(groups)))
    sums = groups[drawn].sum(axis=1)
    low, high = np.quantile(sums[:, 0] / sums[:, 1], [0.025, 0.975])
    return [float(low), float(high)]


def kind_of(attempt):
    """Return the kind of a repair's last change: its note without what is particular to the
    program.
    """
    return re.sub(
        r"`[^`]*`|-?\d+",
        "...",
        attempt.repair.notes[-1].partition(": ")[2] or attempt.repair.notes[-1],
    )[:60]


def describe(attempt):
    after, before = attempt.after, attempt.before
    return {
        "id": attempt.id,
        "task": attempt.task_id,
        "right": attempt.is_right,
        "note": "; ".join(attempt.repair.notes),
        "visible": [before.passed, after.passed, len(after.results)],
        "hidden": [before.hidden_passed, after.hidden_passed, after.hidden_total],
        "runs": attempt.repair.runs,
        "seconds": round(attempt.seconds, 2),
    }


def repair_rows(figures):
    """Return lines of a table."""
    effort = (
        f"{figures['runs_per_program']:.0f} runs a repair, {figures['seconds_per_program']:.1f} s "
        "a failing program"
    )
    tried = (
        f"{figures['failing']:,} tried of {figures['programs_that_fail']:,}, in the order of a hash"
    )
    hidden = f"hidden tests: {figures['hidden_gained']:,} gained, {figures['hidden_lost']:,} lost"
    return [
        [
            "fail a visible test",
            f"{figures['fail_visible']:,}",
            f"first half of the tests; {figures['tasks']:,} tasks; {tried}",
        ],
        [
            "repaired: pass them all",
            f"{figures['pass_visible']:,}",
            f"{share(figures, 'repaired_share_interval')}; {effort}",
        ],
        [
            "right: pass the hidden ones, too",
            f"{figures['pass_hidden']:,}",
            f"{share(figures, 'right_share_interval')} of these; {hidden}",
        ],
    ]


def share(figures, name):
    """Return a 95 % interval by task in words."""
    interval = figures[name]
    return f"{interval[0]:.0%} to {interval[1]:.0%}" if interval else "-"
