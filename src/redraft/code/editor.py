"""Repairs Python code without a model: each change is kept only if the tests say that it is better.

What is tried, in this order: errors of syntax, missing imports and names of other languages, a
function under another name than the tests call, statements that run when the program starts,
caching where time runs out, and small changes of single lines. A change is kept if more of the
visible tests pass and none that passed fails. A change that is no guess, such as a missing import,
is a step on the way even if no more tests pass, since another error may come next. Changes of
single lines are guesses: they are kept only if all pass in the end and, with few tests, if another
such change does the same. Hidden tests never decide; they are run at the beginning and at the end,
and reported.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from time import monotonic
from typing import Any, TypeAlias, TypeVar

from .. import checks
from ..sandbox import Limits
from ..sync import run_sync
from .agreement import Behaviour, behaviour, largest_group, similar_calls
from .coverage import suspicious_lines, with_line_recording
from .proposals import (
    Pairs,
    certain_proposals,
    mutation_proposals,
    propose,
    recursion_proposals,
    start_proposals,
    time_proposals,
)
from .report import TestReport, TestResult, report_without_score
from .runner import arun_tests
from .source import MAX_CHARS, Proposal
from .tests import Tests

Run: TypeAlias = Callable[[str, Tests, Limits], Awaitable[TestReport]]
"""Runs tests of a program within limits and returns the report."""

T = TypeVar("T")
PROBE_TESTS = 3  # failing tests that a change is tried on before all visible tests
PARALLEL_RUNS = max(1, min(4, os.cpu_count() or 1))
MIN_CPU_SECONDS = 1.0  # of CPU time for a changed program
FIRST_RUN_SHARE = 0.5  # of the seconds, that the run of the unchanged program may take
LAST_RUN_SHARE = 0.25  # of the seconds, that is left for the run of the repaired program
# of the seconds, for a process of the first run; two may run out of time
FIRST_CPU_SHARE, FIRST_WALL_SHARE = (1 / 8, 1 / 6)
MIN_FIRST_SECONDS = 0.5  # for such a process
OUT_OF_TIME = ("out of time", "not run: the tests before it used up the time")
MORE_RUNS = 40  # after a mutation that passes all tests, to find others that agree with it
MAX_AGREEING = 8  # mutations that are compared
MANY_TESTS = 4  # visible tests from which on a mutation counts that no other one agrees with
MAX_NAME_CHARS = 80  # of a test in a note
SLOWER = 4.0  # times the CPU time of the slowest test that passes, for a changed program


@dataclass(frozen=True)
class CodeRepair:
    """A program that passes more tests than the one before it.

    - `code`: the changed program. `notes`: what was changed, one item for each change that was
      kept.
    - `found_on`: the visible tests that failed before and pass now. The repair was chosen by them,
      so they prove less than tests that the editor did not see.
    - `before`, `after`: the reports on all tests, with the numbers of hidden tests that pass.
    - `runs`: how many times changed programs were run.
    """

    code: str
    notes: tuple[str, ...]
    found_on: tuple[str, ...]
    before: TestReport
    after: TestReport
    runs: int = 0

    @property
    def note(self) -> str:
        """What was changed, and on which tests it was found, in words."""
        names = [" ".join(name[:MAX_NAME_CHARS].split()) for name in self.found_on[:3]]
        tests = ", ".join(names) + (
            f" and {len(self.found_on) - 3} more" if len(self.found_on) > 3 else ""
        )
        passed = (
            f"{self.after.passed} of {len(self.after.results)} pass, before {self.before.passed}"
        )
        return f"{'; '.join(self.notes)} (found on the visible tests {tests}: {passed})"


@dataclass(frozen=True)
class PythonEditor:
    """Repairs Python code by its tests, without a model.

    Args:
        max_runs: Times that changed programs are run for one repair, from 1 to 10,000.
        seconds: Seconds by the clock for the whole repair, above 0: at most half of them for the
            run of the code as it is, and at least a quarter for the last run of the repaired code.
            What still runs then is stopped. A test of the code as it is gets at most an eighth of
            them as CPU time; one that takes longer must pass after the repair.

    Raises:
        ConfigError: An argument is out of range.
    """

    max_runs: int = 200
    seconds: float = 20.0

    def __post_init__(self) -> None:
        checks.whole_number("max_runs", self.max_runs, 1, 10_000)
        checks.positive("seconds", self.seconds, 86_400)

    def repair(
        self, code: str, tests: Tests, run: Run | None = None, limits: Limits | None = None
    ) -> CodeRepair | None:
        """Do the same as `arepair` from synchronous code."""
        return run_sync(self.arepair(code, tests, run, limits))

    async def arepair(
        self, code: str, tests: Tests, run: Run | None = None, limits: Limits | None = None
    ) -> CodeRepair | None:
        """Return a repair by the visible tests; None if all pass, none can be judged, or no change
        helps.

        `run` runs tests (None: `arun_tests` in the best sandbox there is), `limits` are those of a
        program. Raises what `run` raises, such as SandboxUnavailableError. Cancelling it ends the
        programs that run.
        """
        if not tests.visible or not code.strip() or len(code) > MAX_CHARS:
            return None
        run, limits, start = run or _run_in_sandbox, limits or Limits(), monotonic()
        first_limits = _first_limits(limits, self.seconds)
        before = await _until(
            start + FIRST_RUN_SHARE * self.seconds, run(code, tests, first_limits)
        )
        if before is None or before.ok or before.problem:
            return None
        search = _Search(
            visible_tests(tests),
            run,
            limits,
            self.max_runs,
            start + (1 - LAST_RUN_SHARE) * self.seconds,
        )
        best = await search.improve(_Version(code, before))
        if best.code == code:
            return None
        after = await _until(start + self.seconds, run(best.code, tests, limits))
        if after is None or not is_better(after, before):  # the tests do not agree with themselves
            return None
        if first_limits != limits and not _pass_after_timeout(after, before):
            return None
        found_on = tuple(
            new.shown_name
            for old, new in zip(before.results, after.results, strict=True)
            if new.ok and not old.ok
        )
        return CodeRepair(best.code, best.notes, found_on, before, after, search.runs)


async def _run_in_sandbox(code: str, tests: Tests, limits: Limits) -> TestReport:
    return await arun_tests(code, tests, limits=limits)


async def _until(end: float, work: Awaitable[T]) -> T | None:
    """Return the outcome of work that ends in time; None, and it is cancelled, if it does not."""
    try:
        return await asyncio.wait_for(work, max(0.0, end - monotonic()))
    except TimeoutError:
        return None


def _first_limits(limits: Limits, seconds: float) -> Limits:
    """Return the limits for the unchanged program, under which endless loops leave time for the
    repair.
    """
    cpu = min(limits.cpu_seconds, max(MIN_FIRST_SECONDS, FIRST_CPU_SHARE * seconds))
    if cpu == limits.cpu_seconds:
        return limits
    return replace(
        limits,
        cpu_seconds=cpu,
        wall_seconds=min(limits.wall, max(2 * MIN_FIRST_SECONDS, FIRST_WALL_SHARE * seconds)),
    )


def _pass_after_timeout(after: TestReport, before: TestReport) -> bool:
    """Whether all tests pass that ran out of time before: within higher limits they might have
    passed then, too.
    """
    return all(
        new.ok
        for old, new in zip(before.results, after.results, strict=True)
        if old.error.startswith(OUT_OF_TIME)
    )


def visible_tests(tests: Tests) -> Tests:
    """Return the tests without the hidden ones."""
    return _subset(tests, [not test.hidden for test in tests.items])


def _subset(tests: Tests, chosen: Sequence[bool]) -> Tests:
    def pick(items: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(item for item, keep in zip(items, chosen, strict=False) if keep)

    return replace(tests, calls=pick(tests.calls), runs=pick(tests.runs), code=pick(tests.code))


def is_better(after: TestReport, before: TestReport) -> bool:
    """Whether more of the visible tests pass, and none that passed before fails."""
    return keeps_passing(after, before) and after.passed > before.passed


def keeps_passing(after: TestReport, before: TestReport) -> bool:
    """Whether none of the tests that passed before fails."""
    if after.problem or len(after.results) != len(before.results) or after.score is None:
        return False
    return all(new.ok or not old.ok for old, new in zip(before.results, after.results, strict=True))


@dataclass(frozen=True)
class _Version:
    """A program with the report on its visible tests, and the notes of the changes that led to it.

    `is_guess`: one of the changes was a mutation.
    """

    code: str
    report: TestReport
    notes: tuple[str, ...] = ()
    is_guess: bool = False


@dataclass
class _Search:
    """Looks for better versions of a program until the runs or the time are used up."""

    tests: Tests
    run: Run
    limits: Limits
    max_runs: int
    end: float
    runs: int = 0
    _tried: set[str] = field(default_factory=set)

    @property
    def is_over(self) -> bool:
        return self.runs >= self.max_runs or monotonic() >= self.end

    async def run_in_time(self, code: str, tests: Tests, limits: Limits) -> TestReport:
        """Run tests until the time is used up; the report says so then, and has no score."""
        report = await _until(self.end, self.run(code, tests, limits))
        return report or report_without_score(tests.kind, "the time for the repair is used up")

    async def propose(
        self, function: Callable[..., Pairs], code: str, *arguments: Any
    ) -> list[Proposal]:
        """Return the proposals of a function; none if the time is used up."""
        return await _until(self.end, propose(function, code, *arguments)) or []

    async def improve(self, version: _Version) -> _Version:
        """Return the best version that can be reached by changes each of which is an improvement or
        certain.

        A mutation counts only if all tests pass in the end and, with fewer than four tests, if
        another mutation passes them and behaves alike: a change that satisfies a few tests seldom
        has to do with the mistake.
        """
        certain = version
        while not version.report.ok and (better := await self._next(version)):
            version = better
            certain = certain if version.is_guess else version
        return version if version.report.ok else certain

    async def _next(self, version: _Version) -> _Version | None:
        """Return an improved version, by the first kind of changes that improves it; None if none
        does.
        """
        for proposer in PROPOSERS:
            if self.is_over:
                return None
            is_guess = proposer is _propose_mutations
            needs_agreement = is_guess and len(version.report.results) < MANY_TESTS
            more = MORE_RUNS if needs_agreement else 0
            found = await self._improvements(version, await proposer(self, version), more)
            whole = [each for each in found if each.report.ok]
            best = max(found, key=lambda each: each.report.passed, default=None)
            if needs_agreement and whole:
                best = await self._agreeing(whole)
            if best:
                return replace(best, is_guess=version.is_guess or is_guess)
            if proposer is _propose_for_start and (step := await self._certain_step(version)):
                return step
        return None

    async def _certain_step(self, version: _Version) -> _Version | None:
        """Return the version without errors of syntax and names that need no guess, though no more
        tests pass yet.

        What is left then may be repaired by other changes. None if there are no such errors, or if
        a test that passed fails.
        """
        if self.is_over or not (proposals := await self.propose(certain_proposals, version.code)):
            return None
        self.runs += 1
        proposal = proposals[0]
        report = await self.run_in_time(proposal.code, self.tests, self._limits_for(version.report))
        if not keeps_passing(report, version.report):
            return None
        return replace(
            version, code=proposal.code, report=report, notes=(*version.notes, proposal.note)
        )

    async def _improvements(
        self, version: _Version, proposals: Sequence[Proposal], more: int
    ) -> list[_Version]:
        """Return improved versions. Once one passes all tests, only `more` others are tried."""
        new = (proposal for proposal in proposals if proposal.code not in self._tried)
        found: list[_Version] = []
        last = self.max_runs
        while (
            not self.is_over
            and self.runs < last
            and (group := list(islice(new, min(PARALLEL_RUNS, last - self.runs))))
        ):
            self._tried.update(proposal.code for proposal in group)
            had_whole = any(each.report.ok for each in found)
            found += filter(None, await self._try_all(version, group))
            if not had_whole and any(each.report.ok for each in found):
                last = min(last, self.runs + more)
        return found

    async def _agreeing(self, versions: Sequence[_Version]) -> _Version | None:
        """Return a version that another one agrees with, on inputs that are made from those of the
        tests; None if there is none.
        """
        versions = versions[:MAX_AGREEING]
        similar = similar_calls(self.tests) if len(versions) > 1 else None
        behaviours: list[Behaviour] = [()] * len(versions)
        if similar:
            limits = self._limits_for(versions[0].report)
            self.runs += len(versions)
            reports = await asyncio.gather(
                *(self.run_in_time(each.code, similar, limits) for each in versions)
            )
            if any(report.problem for report in reports):
                return None
            behaviours = [behaviour(report) for report in reports]
        group = largest_group(behaviours)
        return versions[group[0]] if len(group) > 1 else None

    async def _try_all(
        self, version: _Version, proposals: Sequence[Proposal]
    ) -> list[_Version | None]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._try(version, proposal)) for proposal in proposals]
        return [task.result() for task in tasks]

    async def _try(self, version: _Version, proposal: Proposal) -> _Version | None:
        """Return the changed version if it is better: tried on a few failing tests, then on all
        visible ones.
        """
        self.runs += 1
        limits = self._limits_for(version.report)
        probe = self._probe(version.report)
        if probe is not None and not (await self.run_in_time(proposal.code, probe, limits)).passed:
            return None
        report = await self.run_in_time(proposal.code, self.tests, limits)
        return (
            _Version(proposal.code, report, (*version.notes, proposal.note))
            if is_better(report, version.report)
            else None
        )

    def _probe(self, report: TestReport) -> Tests | None:
        """Return a few tests that fail; None if all tests are as few, or cannot be run apart."""
        items = self.tests.items
        if len(items) != len(report.results) or len(items) <= PROBE_TESTS + 1:
            return None
        failing = [n for n, result in enumerate(report.results) if not result.ok][:PROBE_TESTS]
        return _subset(self.tests, [n in failing for n in range(len(items))])

    def _limits_for(self, report: TestReport) -> Limits:
        """Return limits under which an endless loop costs little: what the tests that pass take,
        several times.
        """
        slowest = max(
            (result.seconds or 0.0 for result in report.results if result.ok), default=0.0
        )
        seconds = min(self.limits.cpu_seconds, max(MIN_CPU_SECONDS, SLOWER * slowest))
        wall = min(self.limits.wall_seconds or float("inf"), 2 * seconds + 1)
        return replace(self.limits, cpu_seconds=seconds, wall_seconds=wall)

    async def suspicious_lines(self, version: _Version) -> dict[int, float]:
        """Return how suspicious the lines are: by the tests that run them, and by the
        tracebacks.
        """
        found = {
            line: 1.0 for result in version.report.failures for line in _traceback_lines(result)
        }
        if self.tests.kind == "calls" and len({test.function for test in self.tests.calls}) == 1:
            name = self.tests.calls[0].function or self.tests.entry_point or ""
            if recording := with_line_recording(version.code, name):
                recorded = await self.run_in_time(
                    recording, self.tests, self._limits_for(version.report)
                )
                passed = [result.ok for result in version.report.results]
                found = {**suspicious_lines(recorded, passed), **found}
        return found


def _traceback_lines(result: TestResult) -> Iterator[int]:
    """Yield the lines in the traceback of a test."""
    for line in result.traceback.splitlines():
        number = line.removeprefix("line ").partition(":")[0].partition(",")[0]
        if line.startswith("line ") and number.isdecimal() and len(number) < 9:
            yield int(number)


# ---- what is tried, in this order


async def _propose_for_start(search: _Search, version: _Version) -> list[Proposal]:
    """Propose changes of a program that may not start, or in which names are missing."""
    entry_point = search.tests.entry_point or next(
        (test.function for test in search.tests.calls if test.function), ""
    )
    return await search.propose(start_proposals, version.code, entry_point)


async def _propose_for_time(search: _Search, version: _Version) -> list[Proposal]:
    """Propose caching if time runs out, and a higher limit of recursion if that was reached."""
    errors = [result.error for result in version.report.failures]
    if any(error.startswith("RecursionError") for error in errors):
        return await search.propose(recursion_proposals, version.code)
    if any(error.startswith(OUT_OF_TIME) for error in errors):
        return await search.propose(time_proposals, version.code)
    return []


async def _propose_mutations(search: _Search, version: _Version) -> list[Proposal]:
    """Propose changes of single lines, those first that failing tests run."""
    if not any(result.seconds is not None for result in version.report.results):
        return []  # nothing ran
    lines = await search.suspicious_lines(version)
    failure = next((result for result in version.report.failures if result.got is not None), None)
    expected, got = (failure.expected or "", failure.got or "") if failure else ("", "")
    return await search.propose(
        mutation_proposals, version.code, [list(item) for item in lines.items()], expected, got
    )


PROPOSERS: Sequence[Callable[[_Search, _Version], Awaitable[list[Proposal]]]] = (
    _propose_for_start,
    _propose_for_time,
    _propose_mutations,
)
