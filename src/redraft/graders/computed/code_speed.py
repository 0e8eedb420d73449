"""How fast Python code is beside the reference solution."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from ... import checks
from ...code.timing import SpeedComparison, compare_speed
from ...core.records import Candidate, Feedback
from ...core.task import Task
from ...errors import ConfigError
from ...own_code import fingerprint_name
from ...protocols import JudgeClient
from ...threads import run_in_thread
from ..base import check_needs
from .code_tests import PYTHON, RunsTests, program_of

# share of the goal by which a program may miss it: measurements of one program differ by that
TOLERANCE = 0.1
TOLERANCE_SECONDS = 0.0002  # by which a program may take longer than the goal


@fingerprint_name("speed")
@dataclass(frozen=True)
class Speed(RunsTests):
    """How many times as fast as the reference solution Python code is, divided by `goal`; 1 if it
    reaches the goal.

    With the default goal 1, code that is as fast as the reference scores 1, and code that takes
    twice as long 1/2. Both run on the inputs of the task's visible tests, in the same sandbox, in
    turn and `rounds` times; the ratio is the median of those of the rounds. The time is CPU time,
    measured outside of the sandbox, without the start of the process. Code that misses the goal by
    up to a tenth, or by up to 0.2 ms, scores 1, since measurements differ by that; so give inputs
    that take several milliseconds. Code that fails a visible test scores 0. The score is None if
    the reference fails one, or the tests have no inputs.

    - `sandbox`, `packages`, `cpu_seconds`, `memory_mb`, `entry_point`: as for the grader `tests`;
      `cpu_seconds` is for one run.

    Reads `tests`, `reference` and `metadata`. Unlike other computed graders it measures, so its
    scores differ a little from time to time.
    """

    goal: float = 1.0
    rounds: int = 5
    sandbox: str = "auto"
    packages: tuple[str, ...] = ()
    cpu_seconds: float = 10.0
    memory_mb: int = 512
    entry_point: str | None = None
    name: str = "speed"

    model_free = True
    needs = ("tests", "reference")
    reads_metadata = True

    def __post_init__(self) -> None:
        self._check_execution()
        checks.positive("goal", self.goal, 1000)
        checks.whole_number("rounds", self.rounds, 1, 100)

    async def grade(self, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback:
        """Return a score from 0 to 1, or None."""
        check_needs(self.name, self.needs, task)
        tests = self._tests(task)
        if tests.kind not in ("calls", "stdio") or not tests.visible:
            return Feedback(
                None,
                "the tests have no inputs that could be timed: give calls, or texts for standard "
                "input",
            )
        code = await run_in_thread(program_of, candidate.text, task, tests)
        reference = await run_in_thread(program_of, task.reference or "", task, tests)
        if not PYTHON.extract(reference).strip():
            raise ConfigError(
                f"grader {self.name!r}: the reference is blank: give a solution in Python"
            )
        limits, sandbox = self._limits(), self._sandbox()
        comparison = await compare_speed(
            code, reference, tests, rounds=self.rounds, sandbox=sandbox, limits=limits
        )
        return self._feedback(comparison, sandbox.tier)

    def _feedback(self, comparison: SpeedComparison, tier: str) -> Feedback:
        if comparison.reference_failed:
            return Feedback(None, f"the reference solution cannot be timed: {comparison.problem}")
        ratio = comparison.ratio
        if ratio is None:
            reason = f"speed counts for right answers only: {comparison.problem}"
            return Feedback(0.0, reason, ("Correct the code: it must pass the tests.",), done=False)
        seconds, theirs = median(comparison.seconds), median(comparison.reference_seconds)
        metadata = {
            "ratio": ratio,
            "seconds": seconds,
            "reference_seconds": theirs,
            "sandbox": tier,
        }
        reason = (
            f"{ratio:.2f} times as fast as the reference ({1000 * seconds:.1f} ms, reference "
            f"{1000 * theirs:.1f} ms)"
        )
        if (
            ratio >= (1 - TOLERANCE) * self.goal
            or seconds <= theirs / self.goal + TOLERANCE_SECONDS
        ):
            return Feedback(1.0, reason, metadata=metadata)
        action = (
            f"Make it faster: it is {ratio:.2f} times as fast as the reference, and {self.goal:g} "
            "times is the goal."
        )
        return Feedback(ratio / self.goal, reason, (action,), metadata=metadata)
