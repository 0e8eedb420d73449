"""Repairs a text so that it keeps more of its requirements, by what the requirements themselves propose.

An editor never breaks what was kept, and prefers what loses nothing and changes least. It knows no kind of requirement.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, NamedTuple

from .compute import IN_PROCESS, run
from .errors import ComputeLimitError
from .protocols import Check, Edit, Requirement
from .requirements import compute_limits as limits

REQUIREMENT_ERRORS = (ArithmeticError, ComputeLimitError, LookupError, RecursionError, TypeError, ValueError)
CHARACTER_DIFF_LIMIT = 20_000  # characters; longer texts are compared line by line


class _RepairStep(NamedTuple):
    """One repair that may be made: the edit, what it is for, and which requirements it keeps."""

    edit: Edit
    demand: str
    passing: frozenset[int]


@dataclass(frozen=True, slots=True)
class FormEditor:
    """Repairs form: it tries what each failing requirement proposes, and goes on until nothing more helps.

    In one step at most `proposals` texts are tried for each failing requirement (fewer, at least one, when the text is so
    long that the step would check more than `work` characters), and there are at most as many steps as requirements.
    With `lossy` off nothing of the text is ever given up.
    """

    max_proposals: int = 24
    max_work: int = 20_000_000
    allow_lossy: bool = True

    def repair(self, text: str, requirements: Sequence[Requirement]) -> Edit | None:
        """One edit that keeps every requirement that was kept and at least one more; None when there is none.

        Its note says what was done and for which demands. A requirement that raises is neither checked nor repaired.
        """
        kept = _passing(text, requirements)
        steps: list[_RepairStep] = []
        current = text
        while len(kept) < len(requirements) and (step := self._best(current, requirements, kept)):
            steps.append(step)
            current, kept = step.edit.text, step.passing
        if not steps:
            return None
        note = "; ".join(f"{step.edit.note} ({step.demand})" for step in steps)
        return Edit(current, note, lossy=any(step.edit.lossy for step in steps))

    async def arepair(self, text: str, requirements: Sequence[Requirement]) -> Edit | None:
        """The same without holding the event loop: what is much to read is repaired in a worker.

        There, requirements that are not of a kind that Redraft brings are not repaired, and an edit that breaks one of them
        is none. Raises ComputeLimitError where the text is such that repairing it takes too long.
        """
        if limits.repair_cost(requirements, text) <= IN_PROCESS:
            return await asyncio.to_thread(self.repair, text, requirements)
        ours = [each.spec for each in requirements if limits.is_builtin(each)]
        others = [each for each in requirements if not limits.is_builtin(each)]
        edit = await run(_repair, asdict(self), text, ours, failure_text="the text could not be repaired", text_length=len(text))
        kept = edit and await asyncio.to_thread(_breaks_none, others, text, edit["text"])
        return Edit(**edit) if kept else None

    def _best(self, text: str, requirements: Sequence[Requirement], passing: frozenset[int]) -> _RepairStep | None:
        """Of the steps that help, the one that loses nothing, keeps most, changes least, and comes first."""
        steps = [step for step in self._steps(text, requirements, passing) if passing < step.passing]
        if any(not step.edit.lossy for step in steps):
            steps = [step for step in steps if not step.edit.lossy]
        return min(steps, key=lambda step: (-len(step.passing), edit_distance(text, step.edit.text)), default=None)

    def _steps(self, text: str, requirements: Sequence[Requirement], passing: frozenset[int]) -> Iterator[_RepairStep]:
        tried = {text}
        failing = [requirement for i, requirement in enumerate(requirements) if i not in passing]
        share = self.max_work // (len(text) * len(requirements) * len(failing) + 1)
        for requirement in failing:
            for edit in _proposals(requirement, text, max(1, min(self.max_proposals, share))):
                if edit.text not in tried and edit.text.strip() and (self.allow_lossy or not edit.lossy):
                    tried.add(edit.text)
                    yield _RepairStep(edit, requirement.demand, _passing_after(edit.text, requirements, passing))


def _repair(settings: dict[str, Any], text: str, specs: list[str]) -> dict[str, Any] | None:
    edit = FormEditor(**settings).repair(text, [limits.parse_spec(spec) for spec in specs])
    return asdict(edit) if edit else None


def _breaks_none(requirements: Sequence[Requirement], text: str, new_text: str) -> bool:
    return _passing(text, requirements) <= _passing(new_text, requirements)


def _proposals(requirement: Requirement, text: str, limit: int) -> list[Edit]:
    """What a requirement proposes; nothing if it raises."""
    try:
        return list(islice(requirement.repairs(text), limit))
    except REQUIREMENT_ERRORS:
        return []


def _passing_after(text: str, requirements: Sequence[Requirement], passing: frozenset[int]) -> frozenset[int]:
    """Which requirements a text keeps; none of them counts once one that was kept is broken."""
    if not all(_check(requirements[i], text).ok for i in passing):
        return frozenset()
    return passing.union(i for i, requirement in enumerate(requirements) if i not in passing and _check(requirement, text).ok)


def _passing(text: str, requirements: Sequence[Requirement]) -> frozenset[int]:
    return frozenset(i for i, requirement in enumerate(requirements) if _check(requirement, text).ok)


def _check(requirement: Requirement, text: str) -> Check:
    """The check; one that raises is not kept, and says so."""
    try:
        return requirement.check(text)
    except REQUIREMENT_ERRORS as error:
        return Check(ok=False, measurement=f"cannot be measured: {type(error).__name__}")


def unmet_requirements(text: str, requirements: Sequence[Requirement]) -> list[tuple[Requirement, Check]]:
    """What a text still does not keep, with what was measured."""
    checks = ((requirement, _check(requirement, text)) for requirement in requirements)
    return [(requirement, check) for requirement, check in checks if not check.ok]


def edit_distance(before: str, after: str) -> int:
    """How much was changed: single-character edits (Levenshtein); for long texts, the characters in changed lines."""
    from rapidfuzz.distance import Levenshtein

    if max(len(before), len(after)) <= CHARACTER_DIFF_LIMIT:
        return Levenshtein.distance(before, after)
    ops = Levenshtein.opcodes(a := before.splitlines(keepends=True), b := after.splitlines(keepends=True))
    changed = [op for op in ops if op.tag != "equal"]
    return sum(sum(map(len, a[op.src_start : op.src_end])) + sum(map(len, b[op.dest_start : op.dest_end])) for op in changed)
