"""The editor repairs a text so that it meets more of its requirements, with the edits that the
requirements propose.

It never breaks a requirement that the text meets, and prefers edits that lose nothing and change
least. It works with any kind of requirement.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, NamedTuple

from ..base.checks import is_blank
from ..base.own_code import fingerprint_name, is_own
from ..base.threads import run_in_thread
from ..errors import ComputeLimitError
from ..protocols import Check, Edit, Requirement
from ..requirements.spec import kinds, parse, repair_cost
from ..workers.pool import IN_PROCESS, run

REQUIREMENT_ERRORS = (
    ArithmeticError,
    ComputeLimitError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
CHARACTER_DIFF_LIMIT = 20_000  # longer texts are compared line by line


class _RepairStep(NamedTuple):
    """A possible edit, the demand it is for, and the requirements that the text meets after it."""

    edit: Edit
    demand: str
    passing: frozenset[int]


@fingerprint_name("form_editor")
@dataclass(frozen=True, slots=True)
class FormEditor:
    """Repairs the form of a text: it applies edits that failing requirements propose, as long as
    one helps.

    Each step tries at most `max_proposals` edits for each failing requirement (fewer, but at least
    one, for a text so long that the step would check more than `max_work` characters). There are at
    most as many steps as requirements. Without `allow_lossy`, edits that remove content are not
    used.
    """

    max_proposals: int = 24
    max_work: int = 20_000_000
    allow_lossy: bool = True

    def repair(self, text: str, requirements: Sequence[Requirement]) -> Edit | None:
        """Return an edit that keeps all requirements met so far and meets at least one more; None
        if there is none.

        Its note says what was done and for which demands. A requirement that raises is neither
        checked nor repaired.
        """
        passing = _passing(text, requirements)
        steps: list[_RepairStep] = []
        current = text
        while len(passing) < len(requirements) and (
            step := self._best(current, requirements, passing)
        ):
            steps.append(step)
            current, passing = step.edit.text, step.passing
        if not steps:
            return None
        note = "; ".join(f"{step.edit.note} ({step.demand})" for step in steps)
        return Edit(current, note, lossy=any(step.edit.lossy for step in steps))

    async def arepair(self, text: str, requirements: Sequence[Requirement]) -> Edit | None:
        """Do the same without blocking the event loop; long texts are repaired in a worker process.

        A worker does not repair users' own requirements, and an edit that breaks one of them is
        dropped. The form of a typed answer is repaired here, if the worker finds nothing to repair.
        Raises ComputeLimitError if the repair takes too long for this text.
        """
        portable = [requirement for requirement in requirements if _is_portable(requirement)]
        if repair_cost(portable, text) <= IN_PROCESS:
            return await run_in_thread(self.repair, text, requirements)
        specs = [requirement.spec for requirement in portable]
        others = [requirement for requirement in requirements if not _is_portable(requirement)]
        edit = await run(
            _repair,
            asdict(self),
            text,
            specs,
            failure_text="the text could not be repaired",
            text_length=len(text),
        )
        if edit is None:
            forms = [requirement for requirement in others if is_own(type(requirement))]
            return await run_in_thread(self.repair, text, forms) if forms else None
        allowed = await run_in_thread(_breaks_none, others, text, edit["text"])
        return Edit(**edit) if allowed else None

    def _best(
        self, text: str, requirements: Sequence[Requirement], passing: frozenset[int]
    ) -> _RepairStep | None:
        """Return the best helpful step: lossless first, then by most requirements met, smallest
        change, and order of proposal.
        """
        steps = [
            step for step in self._steps(text, requirements, passing) if passing < step.passing
        ]
        if any(not step.edit.lossy for step in steps):
            steps = [step for step in steps if not step.edit.lossy]
        return min(
            steps,
            key=lambda step: (-len(step.passing), edit_distance(text, step.edit.text)),
            default=None,
        )

    def _steps(
        self, text: str, requirements: Sequence[Requirement], passing: frozenset[int]
    ) -> Iterator[_RepairStep]:
        tried = {text}
        failing = [requirement for i, requirement in enumerate(requirements) if i not in passing]
        share = self.max_work // (len(text) * len(requirements) * len(failing) + 1)
        for requirement in failing:
            for edit in _proposals(requirement, text, max(1, min(self.max_proposals, share))):
                if (
                    edit.text not in tried
                    and not is_blank(edit.text)
                    and (self.allow_lossy or not edit.lossy)
                ):
                    tried.add(edit.text)
                    yield _RepairStep(
                        edit, requirement.demand, _passing_after(edit.text, requirements, passing)
                    )


def _is_portable(requirement: Requirement) -> bool:
    """Return whether a worker can make the requirement from its spec."""
    return is_own(type(requirement)) and not getattr(requirement, "in_process", False)


def prepare() -> None:
    """Load the kinds of requirements in a worker before its first job, so that no job spends its
    time on it.
    """
    kinds()


def _repair(settings: dict[str, Any], text: str, specs: list[str]) -> dict[str, Any] | None:
    edit = FormEditor(**settings).repair(text, [parse(spec, files=False) for spec in specs])
    return asdict(edit) if edit else None


def _breaks_none(requirements: Sequence[Requirement], text: str, new_text: str) -> bool:
    return _passing(text, requirements) <= _passing(new_text, requirements)


def _proposals(requirement: Requirement, text: str, limit: int) -> list[Edit]:
    """Return the edits that a requirement proposes; none if it raises."""
    try:
        return list(islice(requirement.repairs(text), limit))
    except REQUIREMENT_ERRORS:
        return []


def _passing_after(
    text: str, requirements: Sequence[Requirement], passing: frozenset[int]
) -> frozenset[int]:
    """Return the requirements that a text meets; none if it breaks one that was met before."""
    if not all(_check(requirements[i], text).ok for i in passing):
        return frozenset()
    return passing.union(
        i
        for i, requirement in enumerate(requirements)
        if i not in passing and _check(requirement, text).ok
    )


def _passing(text: str, requirements: Sequence[Requirement]) -> frozenset[int]:
    return frozenset(
        i for i, requirement in enumerate(requirements) if _check(requirement, text).ok
    )


def _check(requirement: Requirement, text: str) -> Check:
    """Return the check; a requirement that raises is not met, and the measurement says so."""
    try:
        return requirement.check(text)
    except REQUIREMENT_ERRORS as error:
        return Check(ok=False, measurement=f"cannot be measured: {type(error).__name__}")


def unmet_requirements(
    text: str, requirements: Sequence[Requirement]
) -> list[tuple[Requirement, Check]]:
    """Return the requirements that a text does not meet, with their checks."""
    checks = ((requirement, _check(requirement, text)) for requirement in requirements)
    return [(requirement, check) for requirement, check in checks if not check.ok]


def edit_distance(before: str, after: str) -> int:
    """Return the Levenshtein distance; for long texts, the number of characters in changed
    lines.
    """
    from rapidfuzz import distance

    if max(len(before), len(after)) <= CHARACTER_DIFF_LIMIT:
        return distance.Levenshtein.distance(before, after)
    ops = distance.Levenshtein.opcodes(
        a := before.splitlines(keepends=True), b := after.splitlines(keepends=True)
    )
    changed = [op for op in ops if op.tag != "equal"]
    return sum(
        sum(map(len, a[op.src_start : op.src_end])) + sum(map(len, b[op.dest_start : op.dest_end]))
        for op in changed
    )
